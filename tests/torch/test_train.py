"""The training comparison for machines with a GPU runs, and tells when losses differ: here on a CPU, at a small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert limited["bytes_read"] > 0 and limited["ratio"] > 0 and limited["name"] == "50% on a folder"
    if "bound_why_not" in limited:
        assert "tidelog-plan" in limited["bound_why_not"]  # the tools are not built
    else:
        assert limited["machine"]["drives"]["read"] > 0 and limited["bound_seconds"] > 0
    assert not list(pool.iterdir()), "the pool was left behind"

    again = run(*arguments, "--within", "0")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("same bits") >= 3, "rows that ran are not run again, whatever time there is"


def test_what_does_not_fit_into_the_time_is_listed():
    done = run(*SMALL, "--within", "0")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and all(line.startswith("LEFT") for line in lines), done.stdout
    assert "the time was up" in lines[0] and "its run without limit is missing" in lines[1]


def test_what_makes_no_sense_is_refused():
    for arguments, reason in [(["--steps", "3"], "--steps 3"), (["--fraction", "2"], "--fraction")]:
        done = run(*arguments)
        assert done.returncode == 2 and reason in done.stderr
