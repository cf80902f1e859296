"""docs/conventions.md: every row about command lines holds for every tool, Python's included."""

import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidelog.commands._commands import asks_for_json
from tidetest import process

ROOT = Path(__file__).resolve().parents[2]
BUILT = [folder for folder in (ROOT / "target/release", ROOT / "target/debug") if (folder / "tidelog-plan").exists()]

TRACE = """{"format": "tidelog-trace", "version": 1, "name": "one weight",
 "storages": [{"identity": {"name": "a"}, "size": 1000000, "kind": "parameter", "movable": true}],
 "ops": [{"name": "one", "duration_ns": 1000, "fingerprint": "01", "uses": [{"storage": 0, "access": "read"}]}]}"""
MACHINE = """{"budget": 2000000, "staging": 0, "verify": 1000000000000,
 "ssd": {"read": 1000000000, "write": 1000000000, "latency_ns": 0}}"""
CONFIG = '{"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 1, "vocab_size": 50}'
FIT = "fit config.json --sequence 8 --micro-batch 1 --read 1e9 --write 1e9"
ABSENT = FIT.replace("config.json", "absent.json")
BENCH = "--name=job --ioengine=tidelog-sim --rw=read --size=64k"
RUN = "run --memory lots --pool absent absent.py"

# For each tool: an unknown option; figures; a failure that is no wrong command line, and its code; the script of a
# shell; a command line that reads a size and is refused for nothing else than that.
TOOLS = {
    "tidelog-format": ("list --frobnicate", "list .", "inspect absent", 3, "completions", "format a --size SIZE"),
    "tidelog-doctor": ("check --frobnicate", "check", "check --scratch absent", 5, "completions", "check --size SIZE"),
    "tidelog-plan": (
        "simulate a b --frobnicate",
        "simulate trace.json machine.json",
        "simulate absent absent",
        1,
        "completions",
        "calibrate absent --memory SIZE",
    ),
    "tidelog-bench": (BENCH + " --frobnicate", BENCH, "absent.fio", 5, "--completions", None),
    "tidelog": ("fit a --frobnicate", FIT, ABSENT, 1, "completions", f"{ABSENT} --memory SIZE"),
}

# In a child of the process that has imported torch. The streams are opened before anything prints.
PYTHON = """
import os
folder, streams, *words = sys.argv[1:]
os.chdir(folder)
for number, kind in json.loads(streams).items():
    reader, writer = os.pipe() if kind == "closed" else (-1, os.open(kind, os.O_WRONLY))
    os.dup2(writer, int(number))
    if reader >= 0:
        os.close(reader)
sys.argv = ["tidelog", *words]
from tidelog.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def here(tmp_path):
    for name, text in (("trace.json", TRACE), ("machine.json", MACHINE), ("config.json", CONFIG)):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(tool, words, folder, **streams):
    """Runs a tool. A stream may be "closed", or a path; what it is given is not returned."""
    streams = {{"out": 1, "err": 2}[name]: kind for name, kind in streams.items()}
    if tool == "tidelog":
        imports = ["transformers.models.gpt2.modeling_gpt2"] if words.startswith(FIT) else []
        ended = process.run(PYTHON, folder, json.dumps(streams), *words.split(), imports=imports)
        return SimpleNamespace(code=ended.code, out=ended.out, err=ended.err)
    pipes = {}
    for number in (1, 2):
        kind = streams.get(number)
        reader, pipes[number] = os.pipe() if kind == "closed" else (-1, subprocess.PIPE)
        if kind == "closed":
            os.close(reader)
        elif kind is not None:
            pipes[number] = os.open(kind, os.O_WRONLY)
    command = [BUILT[0] / tool, *words.split()]
    ended = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipes[1], stderr=pipes[2], text=True)
    for opened in pipes.values():
        if opened != subprocess.PIPE:
            os.close(opened)
    return SimpleNamespace(code=ended.returncode, out=ended.stdout, err=ended.stderr)


def orderly(ended):
    assert "panicked" not in (ended.err or "") and "Traceback" not in (ended.err or ""), ended.err
    return ended


def json_option(tool):
    return "--output-format=json" if tool == "tidelog-bench" else "--output json"


def test_what_a_program_is_asked_for_is_not_asked_of_run():
    for words, expected in (
        ("run --memry 1 --output json train.py", True),
        ("run --memory 1 train.py --output json", False),
        ("run -m train --output=json", False),
        ("fit absent --frobnicate --output json", True),
        ("--output text json", False),
    ):
        assert asks_for_json(words.split()) == expected, words


# -- the rows ---------------------------------------------------------------------------------------


def help_and_version(tool, here):
    for word, shown in (("--help", "xamples"), ("--version", tool)):
        ended = run(tool, word, here)
        assert (ended.code, ended.err) == (0, "") and shown in ended.out, ended


def usage_is_64(tool, here):
    for words in (TOOLS[tool][0], ""):
        ended = orderly(run(tool, words, here))
        assert (ended.code, ended.out) == (64, "") and ended.err, ended
    help = run(tool, "fit --help" if tool == "tidelog" else "--help", here).out
    assert re.search(r"^\s+64 ", help, re.MULTILINE) and re.search(r"^\s+74 ", help, re.MULTILINE), help


def lost_output_is_74(tool, here):
    _, figures, _, _, completions, _ = TOOLS[tool]
    for words in ("--help", "--version", f"{completions} bash", figures, f"{figures} {json_option(tool)}"):
        ended = orderly(run(tool, words, here, out="/dev/full"))
        # The doctor says with 3 that it tried nothing; whoever asks finds that, and the message.
        own = 3 if (tool, words) == ("tidelog-doctor", f"check {json_option(tool)}") or words == "check" else 74
        assert ended.code == own and "standard output: No space left" in ended.err, (words, ended)


def a_closed_reader_is_no_error(tool, here):
    _, figures, _, _, completions, _ = TOOLS[tool]
    for words in ("--help", f"{completions} bash", figures):
        ended = orderly(run(tool, words, here, out="closed"))
        assert (ended.code, ended.err) == (3 if words == "check" else 0, ""), (words, ended)


def lost_messages_change_nothing(tool, here):
    unknown, _, failing, code, _, _ = TOOLS[tool]
    assert run(tool, unknown, here, err="/dev/full").code == 64
    assert run(tool, failing, here, err="/dev/full").code == code
    if tool == "tidelog":
        assert run(tool, RUN, here, err="/dev/full").code == 64


def unknown_options_are_refused(tool, here):
    ended = run(tool, TOOLS[tool][0], here)
    assert ended.code == 64 and "frobnicate" in ended.err, ended
    if tool == "tidelog-bench":
        ended = run(tool, f"{BENCH} --frobnicate --fsnyc=1", here)
        assert all(word in ended.err for word in ("frobnicate", "did you mean fsync?")), ended


def figures_and_errors_are_json(tool, here):
    unknown, figures, failing, code, _, _ = TOOLS[tool]
    assert json.loads(run(tool, f"{figures} {json_option(tool)}", here).out)
    for words, expected in ((failing, code), (unknown, 64), (f"{json_option(tool)} frobnicate", None)):
        ended = run(tool, f"{words} {json_option(tool)}", here)
        said = json.loads(ended.out)
        assert said["exit"] == ended.code == (expected or ended.code) and said["error"] and "help" in said, ended
        assert (ended.code > 0, ended.err) == (True, ""), ended
    if tool == "tidelog":
        ended = run(tool, RUN.replace("run", "run --output json"), here)
        assert (ended.code, ended.out) == (64, "") and json.loads(ended.err)["exit"] == 64, ended


def completions_are_printed(tool, here):
    for shell in ("bash", "zsh", "fish"):
        ended = run(tool, f"{TOOLS[tool][4]} {shell}", here)
        assert (ended.code, ended.err) == (0, "") and tool in ended.out, ended


def nothing_changes_without_yes(tool, here):
    if tool != "tidelog-format":
        return  # the doctor's tests hand over devices that are trees of files
    (here / "pool").mkdir()
    made = "format pool --size 16MiB --buffered"
    ended = run(tool, made, here)
    assert ended.code == 0 and "Nothing was written" in ended.out and not os.listdir(here / "pool"), ended
    assert run(tool, f"{made} --yes", here).code == 0
    before = (here / "pool" / "tidelog.device").read_bytes()
    for command in ("wipe", "calibrate"):
        ended = run(tool, f"{command} pool --buffered", here)
        assert ended.code == 0 and "othing was" in ended.out, ended
    assert (here / "pool" / "tidelog.device").read_bytes() == before


def size(tool, here, text):
    """Returns a tool's reading of a size. No option of the bench is one: jobs have fio's."""
    words = TOOLS[tool][5]
    return None if words is None else run(tool, words.replace("SIZE", text), here)


def sizes_alone_are_powers_of_two(tool, here):
    for text in ("20G", "20GiB"):
        ended = size(tool, here, text)
        assert ended is None or ended.code != 64, ended
    ended = size(tool, here, "20X")
    assert ended is None or (ended.code == 64 and "expected a size such as 20GiB, 24GB (10^9" in ended.err), ended
    if tool == "tidelog-format":
        assert '"bytes": 16777216' in run(tool, "format a --size 16M --buffered --output json", here).out


def a_gb_is_10_to_the_9(tool, here):
    ended = size(tool, here, "24GB")
    assert ended is None or ended.code != 64, ended
    if tool == "tidelog-format":
        # Whole blocks of the 16,000,000 bytes.
        assert '"bytes": 15998976' in run(tool, "format a --size 16MB --buffered --output json", here).out


def root_is_not_told_to_be_root(tool, here):
    if os.geteuid() != 0:
        pytest.skip("this is for root")
    absent = here / "dead"
    absent.symlink_to("/proc/self/mem")
    words = f"list {absent}" if tool == "tidelog-format" else TOOLS[tool][1]
    ended = run(tool, words, here)
    assert "as root" not in ended.out + ended.err, ended


ROWS = {
    "`--help` and `--version` answer on standard output": help_and_version,
    "64: the command line makes no sense": usage_is_64,
    "74: an error in output": lost_output_is_74,
    r"`TOOL \| head`: a reader that has seen enough is no error": a_closed_reader_is_no_error,
    "a message that cannot be written changes no exit code": lost_messages_change_nothing,
    "unknown options are refused": unknown_options_are_refused,
    "figures and errors as JSON on request": figures_and_errors_are_json,
    "`TOOL completions SHELL` prints a script": completions_are_printed,
    "`format` begins after a short wait": nothing_changes_without_yes,
    "sizes such as `4k`, `1m` are powers of two": sizes_alone_are_powers_of_two,
    "a card of 24GB has 24 × 10^9 bytes": a_gb_is_10_to_the_9,
    "advice to become root is for others than root": root_is_not_told_to_be_root,
}


def test_every_row_about_command_lines_has_a_check():
    page = (ROOT / "docs" / "conventions.md").read_text("utf-8")
    section = page.split("## Command lines")[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[2].strip() for line in section.splitlines() if line.startswith("|")]
    assert rows[2:] == list(ROWS)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.__name__)
def test_a_convention_holds(tool, row, here):
    if not BUILT and tool != "tidelog":
        pytest.skip("the tools are not built")
    row(tool, here)
