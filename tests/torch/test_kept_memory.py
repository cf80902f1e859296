"""Memory of tensors that is freed stays for the next ones, as far as the process may hold it (`_kept`, `_heap`)."""

import ctypes
import textwrap

import pytest

from tidelog.memory import _kept
from tidetest import process

BLOCK = """
import os, resource
pool, how, *heap = sys.argv[1:]
os.environ["TIDELOG_HEAP"] = heap[0] if heap else ""
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512 + 32 * (n % 3), 512 + 32 * ((n + 1) % 3)) for n in range(24)))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(64, 512)

def step():
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()

def steps(tide, count):
    for _ in range(count):
        with tide.step():
            step()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def kept(tide):
    return tide.stats()["host_heap"]["kept"]

block = tidelog.offload(model, optimizer, pool=pool, memory=32 * MIB, pool_size=256 * MIB, mode="reactive")
warnings.simplefilter("ignore")
"""

FAULTS = """
losses, counts, highest = [], [], 0
with block as tide:
    for _ in range(8):
        before = faults()
        with tide.step():
            losses.append(step())
        counts.append(faults() - before)
        heap = tide.stats()["host_heap"]
        assert heap["anonymous"] <= heap["anonymous_max"] + 8 * MIB, heap
    assert (kept(tide) > 0) == (how == "kept"), heap
print(sorted(counts)[3], *losses)
"""


def faults_and_losses(pool, *arguments):
    ended = process.run(BLOCK + FAULTS, pool, *arguments)
    assert ended.code == 0, ended.err
    count, *losses = ended.out.split()
    return int(count), losses


def test_a_step_asks_the_kernel_for_little_and_computes_the_same(pool):
    kept, losses = faults_and_losses(pool, "kept")
    trimmed, expected = faults_and_losses(pool, "trimmed", "libc")
    assert losses == expected
    assert kept < trimmed / 3, f"{kept} page faults in a step, {trimmed} with the C library's heap"


OTHERS = """
from tidelog.memory import _heap

def trims(tide):
    return tide.stats()["host_heap"]["trims"]

def count(tide):
    before = trims(tide), faults()
    steps(tide, 4)
    return trims(tide) - before[0], (faults() - before[1]) // 4

with block as tide:
    steps(tide, 4)
    _, usual = count(tide)
    *others, last = (bytearray(40_000) for _ in range(2000))  # 80 MB of the C library's heap, which are not its end
    steps(tide, 2)
    futile, full = count(tide)
    heap = tide.stats()["host_heap"]
    assert heap["anonymous"] > heap["anonymous_max"] + 16 * MIB, heap
    del others
    _heap._LESS_TOLERATED_BYTES = 32 * MIB
    steps(tide, 4)
    heap = tide.stats()["host_heap"]
    assert heap["anonymous"] <= heap["anonymous_max"] + 8 * MIB, heap
print(futile, usual, full)
"""


def test_where_others_fill_the_allowance_memory_is_not_given_back_in_vain_until_they_leave(pool):
    ended = process.run(BLOCK + OTHERS, pool, "kept")
    assert ended.code == 0, ended.err
    futile, usual, full = map(int, ended.out.split())
    assert futile == 0, f"the C library's heap was trimmed {futile} times in four steps"
    assert full < max(2 * usual, 2000), f"{full} page faults in a step, {usual} before"


def test_after_the_block_nothing_is_kept_and_tensors_stay(pool):
    script = """
    from tidelog.memory import _kept
    with block as tide:
        steps(tide, 3)
        tensor = torch.arange(1 << 18)
    memory = _kept.begin()
    if memory is not None:
        assert memory.size == 0
    _kept.end()
    assert torch.equal(tensor, torch.arange(1 << 18))
    del tensor
    assert memory is None or memory.size == 0
    print("done")
    """
    process.assert_done(process.run(BLOCK + textwrap.dedent(script), pool, "kept"))


def test_a_child_of_fork_frees_and_allocates_and_its_parent_goes_on(pool):
    script = """
    with block as tide:
        steps(tide, 3)
        tensor = torch.arange(1 << 18)
        child = os.fork()
        if child == 0:
            same = torch.equal(tensor, torch.arange(1 << 18))
            del tensor
            torch.zeros(1 << 18).add_(1)
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(tensor, torch.arange(1 << 18))
        steps(tide, 1)
    print("done")
    """
    process.assert_done(process.run(BLOCK + textwrap.dedent(script), pool, "kept"))


@pytest.mark.parametrize("why", ["a profiler of memory", "no addresses"])
def test_torchs_allocator_stays_as_it_is(pool, why):
    script = """
    import types
    if how == "no addresses":
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 30),) * 2)
    else:
        sys.modules["memray"] = types.ModuleType("memray")
    with block as tide:
        steps(tide, 3)
        assert kept(tide) == 0
    print("done")
    """
    process.assert_done(process.run(BLOCK + textwrap.dedent(script), pool, why))


def test_torch_profiler_sees_what_is_allocated_and_freed(pool):
    script = """
    from torch.profiler import ProfilerActivity, profile
    with block as tide:
        steps(tide, 3)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            tensor = torch.ones(1 << 18)
            del tensor
    moved = [each.cpu_memory_usage for each in profiled.key_averages() if each.cpu_memory_usage]
    assert max(moved) >= 1 << 20, moved
    print("done")
    """
    process.assert_done(process.run(BLOCK + textwrap.dedent(script), pool, "kept"))


def test_large_allocations_alone_come_from_what_is_kept():
    memory = _kept.begin()
    if memory is None:
        pytest.skip("torch's allocator is left as it is here")
    library = memory._library
    try:
        memory.release()
        for size, kept in ((1000, 0), (1 << 20, 1 << 20)):
            place = ctypes.c_void_p()
            assert library.tide_memory_allocate(ctypes.byref(place), 64, size) == 0
            assert place.value and place.value % 64 == 0
            library.tide_memory_free(place)
            assert memory.size == kept
        assert memory.hold(1 << 50) == 0 and memory.size == 1 << 20
        assert memory.hold(0) > 0 and memory.size == 1 << 20, "a little is kept whatever others have"
        memory.release()
        assert memory.size == 0
    finally:
        _kept.end()
    assert memory.size == 0


@pytest.mark.parametrize("heap", ["", "libc"])
def test_what_others_fill_the_allowance_with_does_not_have_all_leave_again_and_again(pool, heap):
    script = """
    with block as tide:
        steps(tide, 1)
        ballast = bytearray(os.urandom(64 * MIB))
        before, faulted = tide.stats()["host_heap"]["trims"], faults()
        steps(tide, 8)
        trims, faulted = tide.stats()["host_heap"]["trims"] - before, (faults() - faulted) // 8
    assert trims <= 40, trims
    assert faulted <= 8000 or heap[0], faulted
    print("done")
    """
    process.assert_done(process.run(BLOCK + textwrap.dedent(script), pool, "kept", heap))


def test_small_tensors_get_the_memory_that_this_thread_has_freed(pool):
    """Checks small tensors without the C library, from the beginning of the block to its end."""
    script = """
    from tidelog.memory import _kept
    library = _kept._directed()

    def same(size):
        first = torch.empty(size, dtype=torch.uint8)
        address = first.data_ptr()
        del first
        others = [torch.empty(size + 64, dtype=torch.uint8) for _ in range(3)]
        return torch.empty(size, dtype=torch.uint8).data_ptr() == address and library.tide_memory_kept() > 0

    with tidelog.offload(pool=pool, memory=64 * MIB, pool_size=64 * MIB) as tide:
        if library is not None:
            assert all(same(size) for size in (1, 64, 1000, 5000, 60000))
            tensors = [torch.empty(60000, dtype=torch.uint8) for _ in range(400)]
            del tensors
            assert 7 * MIB < library.tide_memory_kept() <= 8 * MIB
            tensor = torch.arange(100)
    assert library is None or library.tide_memory_kept() == 0
    assert library is None or torch.equal(tensor, torch.arange(100))
    print("done")
    """
    process.assert_done(
        process.run(textwrap.dedent("pool, how, *heap = sys.argv[1:]") + textwrap.dedent(script), pool, "kept")
    )


def test_large_tensors_get_memory_that_was_freed_before_the_budget_is_reached_too(pool):
    """Checks large tensors, as far as the process may hold it, and until the block ends."""
    script = """
    from tidelog.memory import _kept
    pool = sys.argv[1]
    if _kept._directed() is None:
        print("done")
        sys.exit()

    def new(size):
        return torch.empty(size, dtype=torch.uint8)

    with tidelog.offload(pool=pool, memory=64 * MIB, pool_size=64 * MIB) as tide:
        for size in (MIB, 3 * MIB):
            first, between = new(size), new(size)
            address = first.data_ptr()
            del first
            assert new(size).data_ptr() == address
            del between
        assert tide.stats()["host_heap"]["kept"] >= 6 * MIB
        for _ in range(50):
            new(40 * MIB).fill_(1)
            new(20 * MIB).fill_(1)
        heap = tide.stats()["host_heap"]
        assert heap["kept"] >= 40 * MIB and heap["anonymous"] <= heap["anonymous_max"], heap
        tensor = torch.arange(1 << 18)
        assert tide.stats()["evictions"] == 0
    memory = _kept.begin()
    assert memory.size == 0
    _kept.end()
    assert torch.equal(tensor, torch.arange(1 << 18))
    print("done")
    """
    process.assert_done(process.run(textwrap.dedent(script), pool))
