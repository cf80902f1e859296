"""`tidelog run`: programs that know nothing of Tidelog run under a budget, and end as they would."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tidelog
from tidetest import process
from tidelog.block._loop import owner_of

PACKAGES = str(Path(tidelog.__file__).resolve().parent.parent)

TRAIN = """
import argparse, sys
import torch

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    steps = parser.parse_args().steps
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 128)).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)

if __name__ == "__main__":
    main()
"""
PORT = 29400 + os.getpid() % 500
# Three quarters of what the program above has at once.
MEMORY = ["--memory", "2000KiB", "--staging", "256KiB", "--pool-size", "64MiB"]


def environment(**more):
    inherited = {name: value for name, value in os.environ.items() if name != "LOCAL_WORLD_SIZE"}
    paths = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def start(*words, cwd=None, **more):
    pipe = subprocess.PIPE
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=environment(**more))


def run(*words, **more):
    started = start(*words, **more)
    out, err = started.communicate(timeout=process.HANGS_SECONDS)
    return started.returncode, out, err


COMMAND = """
import os
folder, variables, *words = sys.argv[1:]
os.chdir(folder)
os.environ.update(json.loads(variables))
if "AWAIT_PLANS" in os.environ:
    from tidetest import plans
    tidelog.Tide._end_step = plans.awaited(tidelog.Tide._end_step)
sys.argv = ["tidelog", *words]
from tidelog.__main__ import main
sys.exit(main())
"""


def tidelog_command(*words, cwd=".", imports=(), **more):
    """The command `tidelog` with these words, where torch has been imported already."""
    ended = process.run(COMMAND, cwd, json.dumps(more), *words, imports=["tidelog.__main__", *imports])
    return ended.code, ended.out, ended.err


PLAIN = """
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_plain(*words, imports=()):
    """The program without Tidelog, where torch has been imported already."""
    ended = process.run(PLAIN, *words, imports=imports)
    return ended.code, ended.out, ended.err


@pytest.fixture
def program(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def tidelog_run(pool):
    return ["-m", "tidelog", "run", *MEMORY, "--pool", pool]


def test_a_program_gives_the_same_bits_and_a_summary(program, tidelog_run, tmp_path):
    path, stats, report = program(TRAIN), tmp_path / "stats.json", tmp_path / "step.html"
    plain = run(path, "--steps", 8)
    code, out, err = run(*tidelog_run, "--stats", stats, "--report", report, path, "--steps", 8)
    assert (code, out) == (0, plain[1]), err
    assert (
        "8 steps, " in err
        and "TB a day are written to the SSDs" in err
        and "ops waited" in err
        and "of a budget of 2.0 MiB" in err
        and "Traceback" not in err
    ), err
    figures = json.loads(stats.read_text())
    assert figures["steps"] == 8 and figures["totals"]["bytes_read"] > 0
    assert figures["peak_bytes"] <= figures["budget"] == 2000 << 10
    assert "3.weight" in report.read_text()  # the loop's own names


def test_what_is_computed_again_is_the_planners_choice(program, tidelog_run, tmp_path):
    text = TRAIN.replace(
        "loss = model(torch.randn(64, 128))",
        "loss = checkpoint_sequential(model, 4, torch.randn(64, 128), use_reentrant=False)",
    )
    path, stats = program("from torch.utils.checkpoint import checkpoint_sequential\n" + text), tmp_path / "stats.json"
    plain = run_plain(path, "--steps", 16)
    words = ["--recompute", "best", "--stats", stats]
    code, out, err = tidelog_command(*tidelog_run[2:], *words, path, "--steps", 16)
    assert (code, out) == (0, plain[1]), err
    figures = json.loads(stats.read_text())["recompute"]
    assert figures["kept"] + figures["again"] == 3 or not figures["settled"], figures


def test_blocks_that_may_be_computed_again_are_named_by_their_class(program, tidelog_run, tmp_path):
    path, stats = program(TRAIN), tmp_path / "stats.json"
    plain = run_plain(path, "--steps", 16)
    words = ["--recompute", "best", "--blocks", "Linear", "--stats", stats]
    code, out, err = tidelog_command(*tidelog_run[2:], *words, path, "--steps", 16)
    assert (code, out) == (0, plain[1]), err
    figures = json.loads(stats.read_text())["recompute"]
    assert figures["kept"] + figures["again"] == 12, figures


def test_a_module_finds_its_arguments_and_its_package(program, tidelog_run, tmp_path):
    program("import helper, sys; print(__name__, sys.argv[1:], helper.ANSWER)", "job.py")
    program("ANSWER = 42", "helper.py")
    code, out, err = tidelog_command(*tidelog_run[2:], "-m", "job", "--memory", "3", cwd=tmp_path)
    assert (code, out) == (0, "__main__ ['--memory', '3'] 42\n"), err


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('all is lost')", 1),
        ("sys.exit()", 0),
        ("raise ValueError('a mistake of its own')", 1),
        ("os._exit(9)", 9),
    ],
)
def test_a_program_ends_as_it_would(program, tidelog_run, ending, expected):
    path = program(f"import os, sys, torch\nprint('ran', flush=True)\n{ending}\n")
    code, out, err = tidelog_command(*tidelog_run[2:], path)
    assert (code, out) == (expected, "ran\n"), err
    for word in ("all is lost", "a mistake of its own"):
        assert (word in err) == (word in ending), err


def test_a_forked_child_ends_as_it_would(program, tidelog_run):
    path = program(
        "import os, sys, torch\npid = os.fork()\nif pid == 0: sys.exit(5)\nprint(os.waitpid(pid, 0)[1] >> 8)"
    )
    code, out, err = tidelog_command(*tidelog_run[2:], path)
    assert (code, out) == (0, "5\n"), err
    assert err.count("ops waited") == 1 and "Traceback" not in err, err


@pytest.mark.parametrize(
    ("words", "more", "expected", "said"),
    [
        ([], {}, 64, "--pool, --memory, PROGRAM"),
        (["--memory", "lots", "--pool", "nowhere", "train.py"], {}, 64, "'lots': expected a size"),
        (["--memory", "1GiB", "--pool", "nowhere/at/all", "train.py"], {}, 69, "nowhere/at/all"),
        (["--memory", "1GiB", "--pool", ".", "--sped", "train.py"], {}, 64, "--sped"),
        (["--memory", "1GiB", "--pool", ".", "absent.py"], {}, 66, "absent.py"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(program, tmp_path, words, more, expected, said):
    program("print('ran')")
    code, out, err = tidelog_command("run", *words, cwd=tmp_path, **more)
    assert (code, out) == (expected, ""), err
    assert said in err and "Traceback" not in err, err


def test_ctrl_c_ends_the_program_and_still_says_how_it_went(program, tidelog_run):
    running = start(*tidelog_run, program(TRAIN), "--steps", 1_000_000)
    for _ in range(5):
        running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=process.HANGS_SECONDS)
    assert running.returncode == -signal.SIGINT and "KeyboardInterrupt" in err, err
    assert "ops waited" in err, err


def test_the_summary_and_what_is_refused_are_json_where_that_is_asked_for(program, tidelog_run):
    words = ["run", "--output", "json", *tidelog_run[3:]]
    code, out, err = tidelog_command(*words, program(TRAIN), "--steps", 3)
    assert (code, len(out.split())) == (0, 3), err
    figures = json.loads(err.splitlines()[-1])
    assert (figures["steps"], figures["budget"]) == (3, 2000 << 10) and "rank" not in figures
    assert figures["totals"]["bytes_written"] > 0
    for refused, expected, why in (
        ([*words, "absent.py"], 66, "absent.py"),
        (["run", "--output", "json", "--memory", "lots", "--pool", "x", __file__], 64, "'lots': expected a size"),
    ):
        code, out, err = tidelog_command(*refused)
        said = json.loads(err)
        assert (code, out, said["exit"]) == (expected, "", expected) and why in said["error"]


def test_a_write_budget_is_kept_and_summed_up(program, tidelog_run):
    path = program(TRAIN)
    plain = run_plain(path, "--steps", 8)
    code, out, err = tidelog_command(*tidelog_run[2:], "--write-budget", "800 GB a day", path, "--steps", 8)
    assert (code, out) == (0, plain[1]), err
    said = re.search(r"of a write budget of 0\.8 TB; paused (\d+\.\d) s after [1-8] steps", err)
    assert said and float(said[1]) > 0, err
    code, _, err = tidelog_command(*tidelog_run[2:], "--write-budget", "2", path)
    assert code == 64 and "--write-budget: '2': less than 1GB a day" in err, err


def test_the_summary_names_what_cannot_move(program, tidelog_run, tmp_path):
    path, stats = (
        program(TRAIN.replace("    for step", "    held = model[3].weight.detach().numpy()\n    for step")),
        tmp_path / "s",
    )
    code, _, err = tidelog_command(*tidelog_run[2:], "--stats", stats, path, "--steps", 4)
    assert code == 0, err
    assert "the largest are: 3.weight (64.0 KiB: a NumPy array or a slice of its storage has its memory)" in err, err
    assert json.loads(stats.read_text())["staying"][0]["bytes"] == 64 << 10
    words = ["--updates", "lazy", "--stats", stats]
    code, _, err = tidelog_command(*tidelog_run[2:], *words, program(TRAIN), "--steps", 4)
    assert code == 0 and "cannot move" not in err, err
    assert json.loads(stats.read_text())["updates"]["late"] > 0, (
        "a step hook of the command's own keeps updates from it"
    )


def test_an_unknown_word_for_an_option_is_a_wrong_command_line(program):
    code, _, err = tidelog_command("run", "--memory", "1GiB", "--pool", ".", "--mode", "sometimes", program("pass"))
    assert code == 64 and "reactive" in err, err


def test_help_says_what_each_option_of_offload_does():
    code, out, _ = tidelog_command("run", "--help")
    assert code == 0
    of_objects = ("model", "optimizer", "resume")
    for name in tidelog.offload.options:
        assert ("--" + name.replace("_", "-") in out) == (name not in of_objects), name


@pytest.mark.parametrize("words", [[], ["--sparse"]])
def test_the_pool_that_it_makes_has_its_space_unless_it_shall_be_sparse(program, pool, words):
    code, _, err = tidelog_command("run", *MEMORY, "--pool", pool, *words, program("pass"))
    assert code == 0, err
    stored = [(Path(each) / "tidelog.device").stat().st_blocks * 512 for each in pool.split(",")]
    assert all((each < 32 << 20) == bool(words) for each in stored), stored


def test_torchrun_starts_it(program, tidelog_run):
    words = ["-m", "torch.distributed.run", "--nproc-per-node", 1, "--standalone", *tidelog_run]
    code, out, err = run(*words, program(TRAIN), "--steps", 3)
    assert (code, len(out.split())) == (0, 3), err


# -- under torchrun -------------------------------------------------------------------------------

FSDP = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    # One write: both ranks have one pipe.
    sys.stdout.write(f"{dist.get_rank()} {step} {loss.item().hex()}\\n")
    sys.stdout.flush()
dist.destroy_process_group()
"""


def torchrun(folder, nodes, program, *command):
    """Runs two ranks, on one node or two; returns what they printed, sorted."""
    started = []
    for node in range(nodes):
        words = ["-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", 2 // nodes]
        words += ["--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", PORT + nodes]
        own = [str(word).replace("@node@", str(node)) for word in command]
        started.append(start(*words, *own, program, cwd=folder))
    ended = [each.communicate(timeout=process.HANGS_SECONDS) for each in started]
    assert all(each.returncode == 0 for each in started), ended
    return sorted(line for out, _ in ended for line in out.splitlines()), "".join(err for _, err in ended)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks_of_torchrun_share_the_pool_of_their_node(program, tmp_path, nodes):
    script = program(FSDP)
    for node in range(nodes):
        (tmp_path / f"pool{node}").mkdir()
    expected, _ = torchrun(tmp_path, nodes, script)
    options = ["--pool", "pool@node@", "--memory", "4MiB", "--staging", "256KiB", "--pool-size", "64MiB"]
    got, err = torchrun(
        tmp_path, nodes, script, "-m", "tidelog", "run", *options, "--stats", "s@node@.json", "--report", "r@node@.html"
    )
    assert len(expected) == 20 and got == expected
    written = sorted(path.name for path in tmp_path.glob("[rs]?.*"))
    figures = [json.loads((tmp_path / name).read_text()) for name in written if name.endswith("json")]
    assert [each["phase"] for each in figures] == ["planned"] * 2, err
    assert all(each["peak_bytes"] <= 4 << 20 and each["totals"]["evictions"] > 20 for each in figures)
    endings = "0.html" if nodes == 1 else "html"
    assert f"r0.{endings}" in written and len(written) == 4
    for rank in range(2 if nodes == 1 else 0):
        assert f"tidelog run (rank {rank}): 10 steps" in err


# -- where steps end ------------------------------------------------------------------------------


def assert_planned_by(step, figures):
    """Steps are recorded from the second on: nothing marks the first one's beginning."""
    held_back = figures["held_back"]
    assert figures["phase"] == "planned" and len(held_back) + 2 <= step, held_back
    assert all(re.fullmatch(r"step \d+: .+", line) for line in held_back)
    assert "a plan for such steps" in held_back[-1], held_back


def test_an_unedited_loop_is_planned_by_its_eighth_step(program, tidelog_run, tmp_path):
    stats = tmp_path / "stats.json"
    words = [*tidelog_run[2:], "--stats", stats, program(TRAIN), "--steps", 8]
    code, _, err = tidelog_command(*words, AWAIT_PLANS="1")
    assert code == 0, err
    assert_planned_by(8, json.loads(stats.read_text()))


def optimizers(number):
    models = [torch.nn.Linear(4, 4) for _ in range(number)]
    return models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]


def test_a_step_ends_where_the_optimizer_has_stepped(pool):
    (model,), (optimizer,) = optimizers(1)
    with tidelog.offload(pool=pool, memory="64MiB") as tide:
        for _ in range(6):
            for _ in range(2):  # micro-batches
                model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert len(tide.loop.seconds) == 6
        assert tide.phase == "planned"
        assert tide.stats()["notices"] == []
        assert tide.ledger.record_of(model.weight.untyped_storage()).name == "weight"
        for _ in range(3):  # marks by hand win
            with tide.step():
                optimizer.step()
        assert len(tide.loop.seconds) == 6
    optimizer.step()
    assert len(tide.loop.seconds) == 6


@pytest.mark.parametrize(("turns", "ends"), [("ab", 7), ("aab", 8), ("abb", 7), ("aaaab", 10)])
def test_where_several_optimizers_take_turns_each_has_stepped(pool, turns, ends):
    _, (first, second) = optimizers(2)
    with tidelog.offload(pool=pool, memory="64MiB") as tide:
        for turn in turns * 6:
            (first if turn == "a" else second).step()
        assert 6 <= len(tide.loop.seconds) <= ends
        assert sum("several optimizers" in notice for notice in tide.stats()["notices"]) == 1
        count = len(tide.loop.seconds)
        del first
        for _ in range(3):  # nobody waits for one that is gone
            second.step()
        assert len(tide.loop.seconds) == count + 3


def test_the_owner_is_the_whole_model():
    inner = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(inner, torch.nn.Linear(4, 4))
    assert owner_of(torch.optim.SGD(inner.parameters())) is model
    assert owner_of(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])) is None


def test_names_do_not_keep_a_model_alive(pool):
    with tidelog.offload(pool=pool, memory="64MiB") as tide:
        model = torch.nn.Linear(4, 4)
        tide.name(model, torch.optim.SGD(model.parameters()))
        weight = model.weight
        del model
        with tide.step():
            weight.sum()
        assert tide.ledger.record_of(weight.untyped_storage()).name == "weight"
