"""The training comparison for machines with a GPU runs, and tells when losses differ: here on a CPU, at a small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "hardware" / "train.py"
SMALL = ["--device", "cpu", "--layers", "2", "--width", "128", "--context", "32", "--batch", "2", "--steps", "5"]


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_run_gives_the_same_losses(tmp_path):
    done = run(*SMALL, "--fraction", "0.5", "--pool", str(tmp_path), "--output", "json")
    assert done.returncode == 0, done.stderr
    plain, hooks, limited = json.loads(done.stdout)
    assert plain["same"] and hooks["same"] and limited["same"]
    assert limited["peak_bytes"] <= plain["peak_bytes"] / 2
    assert limited["bytes_read"] > 0 and limited["ratio"] > 0
    assert not list(tmp_path.iterdir()), "the pool was left behind"


def test_what_makes_no_sense_is_refused():
    for arguments, reason in [(["--steps", "3"], "--steps 3"), (["--fraction", "2"], "--fraction")]:
        done = run(*arguments)
        assert done.returncode == 2 and reason in done.stderr
