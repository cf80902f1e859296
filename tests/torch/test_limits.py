"""Budgets and the memory that there is: of the machine, or of the control group that a container is."""

import contextlib
import json
import os
import pathlib

import pytest

import tidelog
from tidelog.memory import _limits
from tidetest import MIB, process
from tidetest.bits import assert_same
from tidetest.world import World

GIB = 1 << 30
# A program for a process that comes under a limit before it imports torch.
JOINED = """
import os, runpy, sys
with open(sys.argv[1], "w") as processes:
    processes.write(str(os.getpid()))
sys.argv = ["tidelog", *sys.argv[2:]]
runpy.run_module("tidelog", run_name="__main__")
"""


@pytest.fixture
def control_group():
    """Makes a group with a limit, of version 2 or 1, whichever there is; returns its folder."""
    root = pathlib.Path("/sys/fs/cgroup")
    is_new = (root / "cgroup.controllers").exists()
    parent, limit = (root, "memory.max") if is_new else (root / "memory", "memory.limit_in_bytes")
    made = []

    def make(size):
        folder = parent / f"tidelog-test-{os.getpid()}-{len(made)}"
        try:
            folder.mkdir()
            made.append(folder)
            (folder / limit).write_text(str(size))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        return folder

    make.limit = limit
    yield make
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def test_the_kernel_says_how_much_there_is():
    host = _limits.host_memory()
    assert 0 < host["available"] <= (host["limit"] or host["machine"]) <= host["machine"]
    assert host["machine"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (host["limit"] is None) == (host["limit_file"] is None)


def test_more_than_there_is_is_refused(pool):
    host = _limits.host_memory()
    most = host["limit"] or host["machine"]
    with pytest.raises(tidelog.Error, match=rf"memory={most + 1}.* is more than the .* GiB that this .* take less"):
        tidelog.offload(pool=pool, memory=most + 1)
    tidelog.offload(pool=pool, memory=most)
    assert not os.path.exists(pool), "nothing is made before the block begins"


def test_the_budgets_of_all_ranks_of_a_machine_count_together(pool, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    host = _limits.host_memory()
    quarter = (host["limit"] or host["machine"]) // 4
    tidelog.offload(pool=pool, memory=quarter)
    with pytest.raises(tidelog.Error, match="for each of 4 ranks here"):
        tidelog.offload(pool=pool, memory=quarter + 1)


def test_page_locked_memory_is_the_hosts(pool):
    with pytest.raises(tidelog.Error, match=r"host_memory='9PiB' is more than"):
        tidelog.offload(pool=pool, memory=64 * MIB, host_memory="9PiB")


def test_auto_takes_most_of_what_is_free_and_what_the_model_has(pool, monkeypatch):
    free = {"machine": 64 * GIB, "limit": 10 * GIB, "limit_file": "memory.max", "available": 5 * GIB}
    monkeypatch.setattr(_limits, "host_memory", lambda: free)
    world = World()
    model_bytes = sum(each.nbytes for each in (*world.model.parameters(), *world.model.buffers()))
    assert tidelog.offload(pool=pool, memory="auto").budget == 4 * GIB
    assert tidelog.offload(world.model, pool=pool, memory="auto").budget == 4 * GIB + model_bytes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert tidelog.offload(pool=pool, memory="auto").budget == 2 * GIB


def test_auto_trains_with_the_same_bits(pool):
    plain, world = World(), World()
    plain.steps(2)
    with tidelog.offload(world.model, world.optimizer, pool=pool, memory="auto"):
        world.steps(2)
    assert_same(plain.result(), world.result())


def test_a_container_says_what_it_may_take(control_group, tmp_path):
    """An unedited program is refused by name before the kernel would kill it, and runs in what there is."""
    folder = control_group(2 * GIB)
    program = tmp_path / "train.py"
    program.write_text("import torch\nprint('sum', torch.ones(1 << 20).sum().item())\n")
    run = ["run", "--pool", str(tmp_path / "pool"), "--pool-size", "64MiB", "--output", "json"]

    def told(memory):
        return process.run(JOINED, str(folder / "cgroup.procs"), *run, "--memory", memory, str(program))

    refused = told("4GiB")
    assert refused.code == 69, refused.err
    error = str(json.loads(refused.err.splitlines()[-1]))
    assert (
        f"2.0 GiB that this process may use with others of its control group ({folder}/{control_group.limit})" in error
    )
    ran = told("auto")
    assert ran.code == 0 and "sum 1048576.0" in ran.out, ran.err
    assert json.loads(ran.err.splitlines()[-1])["budget"] <= 2 * GIB


LOCKED = """
import ctypes, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
class Data(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]
libc, header, data = ctypes.CDLL(None), Header(0x20080522, 0), (Data * 2)()
assert libc.capget(ctypes.byref(header), data) == 0
for name in ("effective", "permitted", "inheritable"):
    setattr(data[0], name, getattr(data[0], name) & ~(1 << CAP_IPC_LOCK))
assert libc.capset(ctypes.byref(header), data) == 0
with tidelog.offload(pool=sys.argv[1], memory="64MiB", staging="1MiB", pool_size="128MiB") as tide:
    summed = sum((torch.ones(1000) + 0).sum().item() for _ in range(3)) / 3
    stats = tide.stats()
print(json.dumps([summed, stats["data_path"], stats["unregistered"]]))
"""


def test_a_small_limit_of_locked_memory_is_said_and_enough(pool):
    """Checks what many containers have: buffers are not registered then."""
    ended = process.run(LOCKED, pool)
    assert ended.code == 0, ended.err
    summed, path, why = json.loads(ended.out.splitlines()[-1])
    assert summed == 1000
    if path != "uring":
        pytest.skip(f"{path} registers no memory")
    assert "do not fit into the memlock limit of 64 KiB (ulimit -l raises it)" in why, why


FEW_FILES = """
import os, resource
from tidelog.native import _built
assert _built.build() == ""
few = len(os.listdir("/proc/self/fd")) - 1 + int(sys.argv[2])  # of these, listing itself had one
resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
try:
    with tidelog.offload(pool=sys.argv[1], memory="64MiB", staging="1MiB", pool_size="128MiB"):
        print("ran")
except tidelog.Error as error:
    print(error)
"""


@pytest.mark.parametrize("left", [1, 5])
def test_too_few_open_files_are_one_line_that_says_what_raises_them(pool, left):
    ended = process.run(FEW_FILES, pool, str(left))
    assert ended.code == 0, ended.err
    (said,) = ended.out.splitlines()
    assert "Too many open files" in said and said.endswith("which ulimit -n raises"), said
