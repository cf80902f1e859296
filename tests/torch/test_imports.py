"""Tests of what is imported when: `import tidelog` and the command's help need no torch, which takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from tidetest import process

PACKAGES = str(Path(tidelog.__file__).resolve().parent.parent)

SCRIPT = """
import json, sys, time
began = time.perf_counter()
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = sys.argv[2:]
code = 0
try:
    if sys.argv[1:] == ["import"]:
        import tidelog
        assert {"offload", "fit", "BudgetError", "__version__"} <= set(dir(tidelog))
    else:
        from tidelog.__main__ import main
        code = main()
except SystemExit as ending:
    code = ending.code
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "transformers", "triton"})
print(json.dumps([code or 0, heavy, time.perf_counter() - began]), file=sys.stderr)
"""


def start(*words):
    ended = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, PACKAGES, *words],
        capture_output=True,
        text=True,
        timeout=process.HANGS_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, *json.loads(ended.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import"], ""),
        (["--version"], "tidelog "),
        (["--help"], "train, with the program as it is"),
        (["completions", "bash"], "--write-budget"),
        (["fit", "--help"], "before any training"),
        (["run", "--help"], "what may be written to the SSDs a day"),
    ],
)
def test_no_torch_is_imported_for_what_needs_none(words, said):
    out, code, heavy, seconds = start(*words)
    assert (code, heavy) == (0, []) and said in " ".join(out.split()), (code, heavy)
    print(f"{' '.join(words)}: {seconds:.2f} s")


def test_what_needs_torch_is_there_when_it_is_asked_for():
    """Imports by name, by `from` and by a star give equal objects."""
    script = """
import sys
import tidelog
assert "torch" not in sys.modules and tidelog.offload.options
from tidelog import BudgetError, Checkpoints, Fit, Tide, accumulate, fit, restore
import torch
assert issubclass(BudgetError, (tidelog.Error, torch.OutOfMemoryError)) and BudgetError.__module__ == "tidelog"
names = {}
exec("from tidelog import *", names)
assert all(names[name] is getattr(tidelog, name) for name in tidelog.__all__)
assert tidelog.__version__ and tidelog.Tide is Tide
try:
    tidelog.ofload
except AttributeError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {PACKAGES!r})\n{script}"],
        capture_output=True,
        text=True,
        timeout=process.HANGS_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "module 'tidelog' has no attribute 'ofload'\n"), ended.stderr
