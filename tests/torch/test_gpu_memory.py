"""Tests of a block of a GPU's memory with torch's caching allocator, played by tidetest.fake_allocator: when what is
free goes back, what is not the block's, and ops for which there is no memory.
"""

import functools
import glob
import os
import subprocess
import sys
import sysconfig

import pytest
import torch
from torch import nn

import tidelog
from tidelog.memory import _device, _heap
from tidetest import MIB
from tidetest.bits import assert_same, bits
from tidetest.fake_allocator import WORKSPACE, Allocating
from tidetest.fake_cuda import FakeCuda

WIDTH, LAYERS, ROWS = 512, 12, 1024  # a weight of 1 MiB a layer, an activation of 2 MiB
BUDGET = 48 * MIB  # of some 100 MiB that are alive
OPTIONS = {"staging": 4 * MIB, "pool_size": 512 * MIB, "device": "cpu"}


@pytest.fixture
def card(monkeypatch, tmp_path_factory):
    """`card(capacity)`: the fake, whose tensors take their memory from a pool of so many bytes."""
    modes = []

    def start(capacity=1 << 40):
        made = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=3, laziness=1)
        made.pool.capacity = capacity
        made.allocating = Allocating(made.pool, made.guard, monkeypatch)
        made.allocating.__enter__()
        modes.append(made.allocating)
        return made

    yield start
    for mode in modes:
        mode.__exit__(None, None, None)


class Training:
    """Matrix products, an optimizer with two states, and what lives over a step."""

    def __init__(self):
        torch.manual_seed(5)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.x = torch.randn(ROWS, WIDTH)
        self.losses = []

    def step(self):
        self.optimizer.zero_grad()
        x = self.x
        for layer in self.model:
            x = torch.tanh(layer(x))
        loss = x.square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(bits(loss.detach()))

    def tensors(self):
        states = [each for state in self.optimizer.state.values() for each in state.values()]
        return [self.x, *self.model.parameters(), *states]

    def result(self):
        return [*self.losses, *(bits(parameter) for parameter in self.model.parameters())]


@functools.cache
def plain(steps):
    training = Training()
    for _ in range(steps):
        training.step()
    return training.result()


def assert_same_results(found, expected):
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected)):
        assert_same(one, other, f"result {number}")


def test_the_cache_is_not_emptied_for_what_is_no_tensors(card, pool):
    """The workspace of cuBLAS is larger than what was once allowed beside the tensors: each look at the allocator then
    emptied it, and every block was allocated anew.
    """
    gpu = card()
    training = Training()
    with tidelog.offload(
        training.model, training.optimizer, pool=pool, memory=BUDGET, mode="reactive", **OPTIONS
    ) as tide:
        training.step()
        before, emptied = gpu.pool.stats(), gpu.emptied
        for _ in range(3):
            training.step()
        after, memory = gpu.pool.stats(), tide.stats()["gpu_memory"]
        assert tide.stats()["totals"]["evictions"] > 0, "everything fitted"
        assert gpu.emptied == emptied
        allocations = after["num_device_alloc"] - before["num_device_alloc"]
        assert allocations <= 3, f"{allocations} allocations of the driver in three steps"
        assert WORKSPACE - MIB < memory["not_ours"] < WORKSPACE + MIB
        assert 0 < memory["tensors"] <= BUDGET and memory["kept"] < _heap._KEPT_BYTES_MIN


def test_what_is_free_goes_back_where_it_is_much(card, pool, monkeypatch):
    """Sizes that do not fit each other's blocks: without a bound, fragments would grow."""
    kept = 16 * MIB
    monkeypatch.setattr(_heap, "_KEPT_BYTES_MIN", kept)
    gpu = card()
    with tidelog.offload(pool=pool, memory=BUDGET, mode="reactive", **OPTIONS) as tide:
        most = 0
        for round_ in range(12):
            tensors = [
                torch.full((size * MIB // 4,), 1.0) for size in (2 + round_, 11 + 3 * round_ % 20) for _ in range(2)
            ]
            del tensors
            memory = tide.stats()["gpu_memory"]
            most = max(most, memory["reserved"] - memory["not_ours"])
        # Between two looks so much may have come.
        assert most <= BUDGET + kept + 70 * MIB
        assert 0 < memory["trims"] <= 12
        assert gpu.emptied


def test_an_op_for_which_there_is_no_memory_runs_again_after_others_have_left(card, pool):
    """A third of the budget is with others, which nobody told the block."""
    expected = plain(3)
    gpu = card(capacity=WORKSPACE + 2 * BUDGET // 3)
    training = Training()
    block = tidelog.offload(training.model, training.optimizer, pool=pool, memory=BUDGET, mode="reactive", **OPTIONS)
    with (
        pytest.warns(tidelog.LeftBehindWarning, match="CUDA had memory for it only after another had left"),
        block as tide,
    ):
        for _ in range(3):
            training.step()
        stats = tide.stats()
        assert gpu.pool.failures > 0, "there was memory for all of it"
        assert any("CUDA had no memory for aten." in notice for notice in stats["notices"])
        assert stats["gpu_memory"]["out_of_memory"] == gpu.pool.failures
        found = training.result()
    # What stays out (which that is depends on what was used last) has its size back, and no memory: there would be
    # none.
    out = [tensor for tensor in training.tensors() if not tide.is_resident(tensor)]
    assert out and all(tensor.untyped_storage().nbytes() >= tensor.nbytes for tensor in out)
    assert not any(map(gpu.allocating.has_memory, out))
    assert_same_results(found, expected)


@pytest.mark.parametrize(
    ("memory", "mode", "times"),
    [
        ("much", "auto", 3),
        ("little", "auto", 1),
        ("little", "auto", 3),
        ("little", "reactive", 3),
        pytest.param("much", "auto", 1, marks=pytest.mark.slow),
        pytest.param("little", "reactive", 1, marks=pytest.mark.slow),
        pytest.param("much", "reactive", 1, marks=pytest.mark.slow),
        pytest.param("much", "reactive", 3, marks=pytest.mark.slow),
    ],
)
def test_an_op_that_writes_nothing_is_begun_again_wherever_it_fails(card, pool, memory, mode, times):
    """Checks ops while all is quiet, while a plan is followed, and while each op is looked at."""
    expected = plain(6)
    gpu = card()
    training = Training()
    budget = 512 * MIB if memory == "much" else BUDGET
    with tidelog.offload(training.model, training.optimizer, pool=pool, memory=budget, mode=mode, **OPTIONS) as tide:
        for _ in range(5):
            training.step()
            tide.await_plan()
        gpu.allocating.fail_next = times  # what has left may be in pieces
        training.step()
        assert not gpu.allocating.fail_next
        found = training.result()
    assert_same_results(found, expected)


def test_an_op_that_writes_or_draws_is_not_begun_again(card, pool):
    """Checks an op that must not write or draw twice."""
    gpu = card()
    with tidelog.offload(pool=pool, memory=BUDGET, mode="reactive", **OPTIONS):
        batch, *statistics = torch.rand(8, 64), torch.rand(64), torch.rand(64)
        gpu.allocating.fail_next = 1
        with pytest.raises(torch.OutOfMemoryError, match="as a test asked"):
            torch.ops.aten._native_batch_norm_legit(batch, None, None, *statistics, True, 0.1, 1e-5)
        gpu.allocating.fail_next = 1
        with pytest.raises(torch.OutOfMemoryError, match="as a test asked"):
            torch.rand(8)
        assert not gpu.allocating.fail_next


def test_what_is_cached_is_free_for_a_sessions_rings(card, pool, monkeypatch):
    """cuFile's ring is allocated past torch, whose cache may have all that is left."""
    gpu = card()
    gpu.library.fake_plan(b"alloc", 0, 2, -1)  # CUDA_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: gpu.library.fake_plan_end(b"alloc"))
    with tidelog.offload(pool=pool, memory=BUDGET, mode="reactive", data_path="gds", **OPTIONS) as tide:
        assert tide.stats()["data_path"] == "gds"


def test_a_storage_that_is_shared_by_a_handle_stays(card, pool, monkeypatch):
    """Checks a storage whose address another process has, by torch.multiprocessing."""
    card()
    shared = []
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", shared.append, raising=False)
    with tidelog.offload(pool=pool, memory=BUDGET, mode="reactive", **OPTIONS) as tide:
        tensor = torch.arange(4096.0)
        storage = tensor.untyped_storage()
        tide.evict(tensor)
        storage._share_cuda_()
        assert tide.is_resident(tensor) and len(shared) == 1
        with pytest.raises((tidelog.PinnedError, tidelog.UnmovableError)):
            tide.evict(tensor)
        assert_same(bits(tensor), bits(torch.arange(4096.0)), "what was shared")


def test_page_locked_tensors_of_the_host_stay_where_they_are(pool, monkeypatch):
    """A copy from a GPU may be under way to one after its op has returned, and memory that is given
    back would not be page-locked."""
    staging = torch.zeros(1 << 18)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    locked = staging.untyped_storage()._cdata
    monkeypatch.setattr(_device, "is_page_locked", lambda storage: storage._cdata == locked)
    options = {"pool_size": 64 * MIB, "device": "cpu", "mode": "reactive"}
    with tidelog.offload(pool=pool, memory=16 * MIB, **options) as tide:
        with pytest.raises(tidelog.UnmovableError):
            tide.evict(staging)
        others = [torch.full((1 << 20,), float(number)) for number in range(8)]
        assert tide.is_resident(staging) and not all(map(tide.is_resident, others))
        assert len(tide.stats()["unmovable"]) == 1


def test_a_copy_is_long_enough_to_be_worth_the_call(card, pool):
    """One of 256 KiB takes the link no longer than the host takes to ask for it."""
    gpu = card()
    with tidelog.offload(pool=pool, memory=BUDGET, mode="reactive", **{**OPTIONS, "staging": 16 * MIB}) as tide:
        tensor = torch.rand(2 * MIB)
        before = gpu.library.fake_count(b"copies")
        tide.evict(tensor)
        assert gpu.library.fake_count(b"copies") - before == tensor.nbytes // MIB


CUFILE = """
import ctypes, os, sys
from tidelog.memory import _device
_device.place_cufile_log()
class Answer(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("cuda", ctypes.c_int)]
library = ctypes.CDLL(sys.argv[1])
library.cuFileDriverOpen.restype = library.cuFileSetParameterBool.restype = Answer
library.cuFileSetParameterBool(1, ctypes.c_bool(False))
library.cuFileDriverOpen()
print(os.environ["CUFILE_LOGFILE_PATH"])
"""


def test_cufiles_log_is_not_in_the_current_folder(tmp_path):
    """NVIDIA's own library, which opens nothing here, and says so there."""
    libraries = glob.glob(f"{sysconfig.get_paths()['purelib']}/nvidia/*/lib/libcufile.so.0")
    if not libraries or torch.cuda.is_available():
        pytest.skip("this Python has no package of cuFile, or there is a GPU that it opens on")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUFILE_")}
    environment |= {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", CUFILE, libraries[0]]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "state" / "tidelog" / "cufile.log")
    assert (tmp_path / "state" / "tidelog" / "cufile.log").exists()
    assert not (tmp_path / "cufile.log").exists()
