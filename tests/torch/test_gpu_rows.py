"""Tests of the conclusions of gpu.sh from the output and end of its rows: here of programs, and of a Python, that only
say what they are told.

The plugin that makes rows of pytest's tests is asked as well, on tests of its own.
"""

import glob
import importlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HARDWARE = Path(__file__).resolve().parents[1] / "hardware"
BUILT = ("gpu-tests", "tidelog-doctor", "tidelog-bench", "tidelog-plan", "libtidelog.so")
SANITIZED = "checksum::the_checksum_kernel_agrees_with_the_host_bit_for_bit"
# $FAKE_… is what a test has them do; $told is where pytest's rows go.
PYTHON = """
case $1 in
-) program=$(cat); case $program in *libcufile*) "$REAL" - <<<"$program" ;; *) echo "torch 0 on nothing" ;; esac ;;
-c) ;;
-m) shift 2; while [ $# -gt 0 ]; do [ "$1" = --rows-to ] && told=$2; shift; done; eval "$FAKE_pytest" ;;
*train.py) echo "$@" >>"$asked"; eval "$FAKE_train" ;;
esac
"""


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """`rows(part, train="echo FACT one")`: the verdicts of gpu.sh, the exit code with them."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "built").mkdir()

    def program(name, text):
        path = tmp_path / name
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)

    for built in BUILT:
        program(f"built/{built}", 'eval "$FAKE_rust"' if built == "gpu-tests" else "")
    program("bin/ldconfig", "echo 'libcuda.so.1 => /nowhere/libcuda.so.1'")
    program("bin/compute-sanitizer", 'eval "$FAKE_sanitizer"')
    program("python", PYTHON)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)

    def run(part, seconds=60, logs=tmp_path / "logs", cufile="", **does):
        environment = {
            "ONLY": part,
            "PYTHON": tmp_path / "python",
            "LOGS": logs,
            "SECONDS_MAX": seconds,
            "REAL": sys.executable,
        }
        environment |= {
            "TIDELOG_CUFILE": cufile,
            "asked": tmp_path / "asked",
            **{f"FAKE_{name}": text for name, text in does.items()},
        }
        environment = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        words = [HARDWARE / "gpu.sh", tmp_path / "built"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        table = done.stdout.rpartition("\n\n")[2].splitlines()
        assert table, done.stdout + done.stderr
        return done.returncode, table[:-1]

    run.folder = tmp_path
    return run


def test_training_rows_are_what_train_py_says(rows):
    code, table = rows("training", train="echo FACT one; echo LEFT two; exit 3")
    assert (code, table) == (2, ["ok      training: one", "not run training: two"])
    code, table = rows("training", train="echo FACT one; echo FAILED two: DIFFERENT LOSSES; exit 1")
    assert (code, table) == (1, ["ok      training: one", "FAILED  training: two: DIFFERENT LOSSES"])
    assert rows("training", train="echo FACT one")[0] == 0


@pytest.mark.parametrize("end", [1, 2, 77, 139])
@pytest.mark.parametrize("before", ["", "echo FACT one; "])
def test_a_training_that_ends_otherwise_has_failed_whatever_came_before(rows, before, end):
    code, table = rows("training", train=f"{before}echo it broke; exit {end}")
    assert code == 1 and table[-1] == f"FAILED  training: train.py ended with {end}: it broke"
    assert len(table) == (2 if before else 1)


def test_a_training_that_says_nothing_has_failed(rows):
    assert rows("training", train="true") == (1, ["FAILED  training: train.py ended with 0: "])


def test_what_was_under_way_when_the_time_was_up_is_not_run(rows):
    code, table = rows("training", seconds=2, train="echo FACT one; sleep 20")
    assert code == 2 and table[0] == "ok      training: one"
    assert table[1].startswith("not run training: the time was up after")


def test_another_calls_rows_are_no_rows_of_this_one(rows):
    assert rows("training", train="echo FACT one")[0] == 0
    code, table = rows("training", seconds=0, train="echo FACT two")
    assert (code, table) == (2, ["not run training: the time was up"])


def test_what_passed_does_not_run_again_with_the_same_logs_and_build(rows):
    tests = 'case $1 in --list) printf "%s: test\\n" good bad;; *) echo "$2" >>"$asked"; echo "FACT fast"; [ "$2" = good ];; esac'
    expected = ["ok      good; fast", "FAILED  bad: FACT fast"]
    assert rows("tests", rust=tests)[1][:2] == expected
    assert rows("tests", rust=tests)[1][:2] == ["ok      good; fast (in an earlier call)", expected[1]]
    asked = rows.folder / "asked"
    assert asked.read_text().split() == ["good", "bad", "bad"], "what failed is tried again"
    (rows.folder / "built" / "libtidelog.so").write_text("#another build")
    assert rows("tests", rust=tests)[1][:2] == expected


SAID = {
    "ok": 'echo "FACT 7 GB/s"',
    "not run": f"echo 'test {SANITIZED} ... SKIPPED {SANITIZED}: no GPU'",
    "FAILED": "echo 'thread panicked at here'; exit 1",
}


@pytest.mark.parametrize("verdict", SAID)
def test_a_rust_row(rows, verdict):
    tests = f"case $1 in --list) echo '{SANITIZED}: test';; *) {SAID[verdict]};; esac"
    assert rows("tests", rust=tests)[1][0].startswith(f"{verdict:7} {SANITIZED}")


def test_a_sanitizer_that_the_sandbox_refuses_did_not_run(rows):
    def sanitizer_rows(does):
        table = rows("late", rust="", sanitizer=does)[1]
        return [row for row in table if row[8:].startswith("compute-sanitizer")]

    refused = (
        "echo '========= COMPUTE-SANITIZER'; echo '========= Error: Device not supported. Please refer to'; exit 1"
    )
    table = sanitizer_rows(refused)
    assert len(table) == 2
    assert all(row.startswith("not run ") and "Device not supported" in row for row in table)
    table = sanitizer_rows("echo '========= ERROR SUMMARY: 2 errors'; exit 1")
    assert [row.startswith("FAILED ") for row in table] == [True, True]


def test_what_failed_does_not_run_again_where_that_is_asked(rows, monkeypatch):
    tests = 'case $1 in --list) echo "bad: test";; *) echo "$2" >>"$asked"; echo "panicked: why"; exit 1;; esac'
    assert rows("tests", rust=tests)[1][0] == "FAILED  bad: panicked: why"
    monkeypatch.setenv("RETRY", "0")
    assert rows("tests", rust=tests)[1][0] == "FAILED  bad: panicked: why (in an earlier call)"
    assert (rows.folder / "asked").read_text() == "bad\n"
    assert (rows.folder / "logs.tar.gz").exists()


def test_what_a_part_ran_another_does_not_run_again(rows):
    tests = f'case $1 in --list) printf "%s: test\n" {SANITIZED} cufile::one other;; *) echo "$2" >>"$asked";; esac'
    code, table = rows("cufile smoke tests", rust=tests)
    ran = (rows.folder / "asked").read_text().split()
    assert ran == ["cufile::one", SANITIZED, "other"], "cuFile's alone, the smoke's, then the others"
    assert code == 0 and len(table) == 5


def test_a_row_that_hangs_ends_alone(rows):
    """cuFile's rows have a process and a short limit each."""
    tests = "case $1 in --list) printf '%s: test\\n' cufile::hangs cufile::goes;; *) [ $2 = cufile::goes ] || sleep 60;; esac"
    _, table = rows("cufile", seconds=100, rust=tests)
    assert table == ["FAILED  cufile::hangs: not done within 20 s", "ok      cufile::goes"]


def test_cufile_is_looked_for_among_pythons_packages(rows):
    installed = glob.glob(f"{sysconfig.get_paths()['purelib']}/nvidia/*/lib/libcufile.so.0")
    if not installed:
        pytest.skip("this Python has no package of cuFile")
    tests = "case $1 in --list) echo 'one: test';; *) echo FACT $TIDELOG_CUFILE;; esac"
    assert rows("tests", rust=tests)[1][0] == f"ok      one; {installed[0]}"
    named = rows("tests", rust=tests, logs=rows.folder / "others", cufile="/mine")
    assert named[1][0] == "ok      one; /mine"


def test_pytest_is_called_once_and_makes_a_row_of_each_file(rows):
    say = 'printf "%s\\t%s\\t%s\\n" FACT test_touch_aliases "7 passed" FAILED test_touch_reads "1 failed: why" '
    say = (
        'echo called >>"$asked"; '
        + say
        + 'LEFT test_touch_modes "the time was up before 3 of its 9 tests" >"$told"; echo at the end; exit 1'
    )
    code, table = rows("touch", pytest=say)
    table = {row.partition("test_")[2].partition(":")[0].partition(";")[0]: row for row in table}
    suite = "touch suite on CUDA"
    assert code == 1 and (rows.folder / "asked").read_text() == "called\n"
    assert table["touch_aliases"] == f"ok      {suite}: test_touch_aliases; 7 passed"
    assert table["touch_reads"] == f"FAILED  {suite}: test_touch_reads: 1 failed: why"
    assert table["touch_modes"] == f"not run {suite}: test_touch_modes: the time was up before 3 of its 9 tests"
    assert table["programs"] == f"FAILED  {suite}: test_programs: pytest ended with 1 and no word on it: at the end"
    again = rows("touch", pytest=say)[1]
    assert f"ok      {suite}: test_touch_aliases; 7 passed (in an earlier call)" in again


TESTS = {
    "test_a": "def test_one(): pass\ndef test_two(): assert 1 == 2, 'no'\ndef test_three(): pytest.skip('because')",
    "test_b": "def test_long(): time.time = lambda: 3e9\ndef test_late(): pass",
    "test_c": "pytest.skip('not here', allow_module_level=True)",
    "test_d": "@pytest.mark.parametrize('x', 'ab')\ndef test_both(x): pass",
}


@pytest.mark.parametrize("by", ["file", "test"])
def test_rows_of_tests(tmp_path, by):
    for name, text in TESTS.items():
        (tmp_path / f"{name}.py").write_text(f"import time, pytest\n{text}\n")
    files = ["test_a.py", "test_d.py", "test_b.py", "test_c.py"]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "rows",
        "--rows-by",
        by,
        "--rows-to",
        "told",
        "--rows-until",
        "2.9e9",
        *files,
    ]
    environment = {**os.environ, "PYTHONPATH": str(HARDWARE)}
    subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
    told = {line.split("\t")[1]: line.split("\t")[::2] for line in (tmp_path / "told").read_text().splitlines()}
    if by == "file":
        assert told == {
            "test_a": ["FAILED", "1 failed, 1 passed, 1 skipped: test_a.py::test_two: AssertionError: no"],
            "test_b": ["LEFT", "the time was up before 1 of its 2 tests"],
            "test_c": ["LEFT", "not here"],
            "test_d": ["FACT", "2 passed"],
        }
    else:
        assert {name: word for name, (word, _) in told.items()} == {
            "test_one": "FACT", "test_two": "FAILED", "test_three": "LEFT", "test_both": "FACT",
            "test_long": "FACT", "test_late": "LEFT", "test_c": "LEFT",
        }  # fmt: skip


def dry_run(folder, program, *options):
    """Runs a program that measures on a GPU, on the fake in its place."""
    paths = [HARDWARE.parent.parent / "torch-bridge" / "python", HARDWARE.parent / "torch"]
    environment = {**os.environ, "FAKE": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = [sys.executable, HARDWARE / program, "--pool", folder, "--rounds", "1", *options]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_the_arena_is_compared_with_torchs_allocator_without_a_gpu(tmp_path):
    done = dry_run(tmp_path, "allocators.py", "--steps", "3")
    assert done.returncode == 0, done.stderr[-2000:]
    arena, by_torch, by_arena = re.findall(r"^FACT (.*)", done.stdout, re.MULTILINE)
    assert re.match(r"arena: a step takes [\d.]+ s, [\d.]+ s with torch's allocator: .*, same bits\)$", arena)
    assert "in the arena" not in by_torch and "by the gpu's clock" in by_torch
    assert re.search(r"in the arena [1-9]\d* allocations.*error None", by_arena) and "by the gpu's clock" in by_arena


def test_idle_time_of_a_fetch_is_measured_without_a_gpu(tmp_path):
    """Measures idle time by the fake's clock. What comes out is the machine's matter, which is busy."""
    done = dry_run(tmp_path, "fetches.py")
    facts = re.findall(r"^FACT (\w+): the GPU idles \d+ us for a fetch by events", done.stdout, re.MULTILINE)
    assert (done.returncode, facts) == (0, ["room", "reactive", "auto"]), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("idle", "base", "told"), [(10.0, 500.0, "0.02"), (10.0, 0.0, "no ratio"), (0.0, 0.0, "no ratio")]
)
def test_where_a_gpu_never_idled_no_ratio_is_told(monkeypatch, idle, base, told):
    """Checks a quiet machine, on which a plan hides every fetch, also where the host waits for it."""
    monkeypatch.syspath_prepend(str(HARDWARE))
    assert importlib.import_module("fetches").ratio(idle, base) == told
