"""The training comparison for machines with a GPU runs, and tells when losses differ: here on a
CPU, at a small size.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[1] / "hardware" / "train.py"
SMALL = ["--device", "cpu", "--tiny", "--fraction", "0.5"]


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_run_gives_the_same_losses_and_none_beats_the_bound(tmp_path):
    pool, rows = tmp_path / "pool", tmp_path / "rows"
    pool.mkdir()
    arguments = [*SMALL, "--pool", f"a folder={pool}", "--resume", rows]
    done = run(*arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    found = {result["run"]: result for result in json.loads(done.stdout)}
    assert list(found) == ["plain", "limited", "hooks", "fsdp", "deepspeed"]
    plain, limited = found["plain"], found["limited"]
    assert all(found[name]["same"] for name in ("plain", "hooks", "limited"))
    assert found["fsdp"]["loss_difference"] < 1e-4
    assert found["deepspeed"]["lacking"], "no deepspeed, or no GPU for it"
    assert limited["peak_bytes"] <= plain["peak_bytes"] / 2
    assert limited["bytes_in"] > 0 and limited["ratio"] > 0 and limited["name"] == "50% on a folder"
    if "bound_why_not" in limited:
        assert "tidelog-plan" in limited["bound_why_not"]  # the tools are not built
    else:
        assert limited["machine"]["drives"]["read"] > 0 and limited["bound_seconds"] > 0
        assert limited["plan"]["compute_ns"] > 0
    assert not list(pool.iterdir()), "the pool was left behind"

    again = run(*arguments, "--within", "0")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("same bits") >= 3, "rows that ran are not run again, whatever time there is"


@pytest.fixture
def script(monkeypatch):
    """train.py as a module."""
    monkeypatch.setattr(sys, "path", [str(SCRIPT.parent), str(SCRIPT.parents[2] / "demo"), *sys.path])
    return importlib.import_module("train")


PLAIN = {
    "run": "plain",
    "name": "no limit",
    "tokens": 64,
    "step_seconds": 1.0,
    "ratio": 1.0,
    "peak_bytes": 1 << 30,
    "same": True,
    "different": False,
}
LIMITED = {
    **PLAIN,
    "run": "limited",
    "name": "50% on a folder",
    "bytes_in": 1,
    "bytes_out": 1,
    "stall_seconds": 0.1,
    "data_path": "posix",
}
LIMITED |= {"to_bound": 1.05, "bound_seconds": 0.95, "plain_seconds": 0.5, "plan": {"compute_ns": 600_000_000}}
MEASURED = {
    "gpu_memory": {"not_ours": 1 << 28, "trims": 2, "device_allocations": 70, "out_of_memory": 1},
    "reserved_bytes": 3 << 29,
    "rates": {
        "ssd": {"read": {"bytes_per_second": 5_000_000_000}, "write": {"bytes_per_second": 3_000_000_000}},
        "host": None,
        "links": [],
    },
}
OTHER = {"same": False, "different": True, "loss_difference": 0.25}


@pytest.mark.parametrize(
    "result, word, says",
    [
        (PLAIN, "FACT", "same bits"),
        (LIMITED, "FACT", "1.05 x the bound of 0.950 s (from ops of 0.600 s; a plain step takes 0.500 s), same bits"),
        (
            {**LIMITED, **MEASURED},
            "FACT",
            "1.50 GiB reserved at most, 0.25 GiB not ours, 2 trims, 70 allocations of the driver, 1 times without "
            "memory, planned with GB/s of ssd read 5.0, ssd write 3.0, same bits",
        ),
        ({**LIMITED, "to_bound": 1.11}, "FAILED", "ABOVE THE MARK of 1.10 x: "),
        ({**LIMITED, **OTHER}, "FAILED", "DIFFERENT LOSSES: "),
        ({**LIMITED, **OTHER, "to_bound": 2.0}, "FAILED", "ABOVE THE MARK of 1.10 x and DIFFERENT LOSSES: "),
        ({**PLAIN, **OTHER, "different": False}, "FACT", "losses within 0.25"),
        ({**PLAIN, "failed": "it broke"}, "FAILED", "it broke"),
        ({**PLAIN, "lacking": "no deepspeed"}, "LEFT", "no deepspeed"),
    ],
)
def test_a_row_says_what_was_found(script, result, word, says):
    line = script.line_of(result, mark=1.10)
    assert line.startswith(f"{word} ") and says in line


def test_a_run_with_other_losses_fails_the_comparison(script, monkeypatch, capsys, tmp_path):
    """Checks that a failed run is run again by a later call, as one that broke is; what passed is not."""
    asked = []

    def child(comparison, wanted, plain, *rest):
        asked.append(wanted["run"])
        losses = ["0x1.1p0" if wanted["run"] == "hooks" else "0x1.0p0"] * 5
        return (
            {"failed": "it broke"}
            if wanted["run"] == "fsdp"
            else {"losses": losses, "seconds": [1.0] * 5, "peak_bytes": 1 << 30, "notices": []}
        )

    monkeypatch.setattr(script.Comparison, "_child", child)
    monkeypatch.setattr(
        sys,
        "argv",
        ["train.py", *SMALL, "--tools", "/nowhere", "--pool", str(tmp_path), "--resume", str(tmp_path / "rows")],
    )
    assert script.main() == 1
    lines = {line[7:30].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert [line.split()[0] for line in lines.values()] == ["FACT", "FACT", "FAILED", "FAILED", "FACT"]
    assert "DIFFERENT LOSSES" in lines["save_on_cpu"]
    assert asked == ["plain", "limited", "hooks", "fsdp", "deepspeed"]
    asked.clear()
    assert script.main() == 1
    assert asked == ["hooks", "fsdp"]


def test_a_step_runs_with_no_default_device(script):
    """save_on_cpu makes page-locked memory on the default device, which must be the host then."""
    seen = []

    def step(inputs, targets):
        seen.append((inputs.device.type, torch.empty(1).device.type))
        return torch.zeros(())

    script.runs.train(SimpleNamespace(device="meta", steps=1), step)
    assert seen == [("meta", "cpu")]


def test_the_bound_is_measured_by_the_path_that_ran(script, tmp_path):
    bench = tmp_path / "tidelog-bench"
    bench.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    plan = tmp_path / "tidelog-plan"
    plan.write_text("#!/bin/sh\necho '{}'\n")
    for tool in (bench, plan):
        tool.chmod(0o755)
    assert script.Bounds(tmp_path).machine(tmp_path, "posix", direct=True) == {}
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 3 and all("--ioengine=tidelog-posix" in words for words in asked)


def test_what_does_not_fit_into_the_time_is_listed():
    done = run(*SMALL, "--within", "0")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and all(line.startswith("LEFT") for line in lines), done.stdout
    assert "the time was up" in lines[0] and "its run without limit is missing" in lines[1]


def test_limited_runs_are_made_with_expandable_segments_too(script, monkeypatch):
    words = ["train.py", *SMALL, "--segments", "native", "expandable"]
    monkeypatch.setattr(sys, "argv", words)
    names = [script.name_of(row) for row in script.rows_of(script.parse_arguments())]
    assert names[0] == "no limit" and names[2] == f"{names[1]}, expandable"


def test_what_makes_no_sense_is_refused():
    for arguments, reason in [(["--steps", "3"], "--steps 3"), (["--fraction", "2"], "--fraction")]:
        done = run(*arguments)
        assert done.returncode == 2 and reason in done.stderr
