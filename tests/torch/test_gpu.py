"""Blocks whose memory is a GPU's: on a fake CUDA, whose copies are late, and on a GPU where there is one."""

import gc
import os
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import tidelog
from tidelog.block import _block
from tidelog.memory import _record
from tidelog.native._built import native
from tidetest import MIB, parting
from tidetest.ballast import Ballast
from tidetest.bits import assert_same, bits
from tidetest.compare import compare
from tidetest.device import STAGING
from tidetest.fake_cuda import Event, FakeCuda, RealCuda
from tidetest.parting import Program
from tidetest.requests import when_done
from tidetest.world import BUDGET, TENSORS, World

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU")


@pytest.fixture
def fake(monkeypatch, tmp_path_factory):
    """`fake(seed, laziness)`: the fake takes torch.cuda's place. Whatever a test does must have been lawful."""
    made = []

    def start(seed=1, laziness=3):
        made.append(FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed, laziness))
        return made[-1]

    yield start
    gc.collect()
    for each in made:
        each.assert_lawful()


@pytest.fixture(params=["fake", pytest.param("cuda", marks=needs_cuda)])
def gpu(request, fake):
    """`gpu(seed, laziness)`: the fake, or a GPU, which is as late as it is."""
    return fake if request.param == "fake" else lambda seed=1, laziness=3: RealCuda()


def test_training_gives_the_same_bits(gpu, pool, mode):
    gpu = gpu(seed=7)

    def train(world):
        world.steps(2)
        if world.tide is not None:
            stats = world.tide.stats()
            assert stats["gpu"].startswith(gpu.name)
            assert stats["totals"]["evictions"] and stats["totals"]["fetches"], "everything fitted"
            assert world.tide.peak_bytes <= TENSORS
            assert world.tide.live_bytes == world.tide.ledger.live

    compare(train, pool, mode, device=gpu.device, memory=TENSORS, staging=STAGING)


# With an arena it is a matter of minutes, on a busy machine, until a plan moves parts.
@pytest.mark.parametrize("allocator", ["torch", pytest.param("arena", marks=pytest.mark.slow)])
def test_parts_of_tensors_move_with_the_same_bits(gpu, pool, allocator):
    gpu = gpu(seed=3)
    program = Program(gpu.device)
    memory = parting.BUDGET - parting.STAGING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with parting.offload(program, pool, device=gpu.device, memory=memory, allocator=allocator) as tide:
            parting.step_until_parts_move(tide, program)
            for _ in range(3):
                parting.step(tide, program)
            stats = tide.stats()
            assert stats["totals"]["fetches_of_parts"] and tide.peak_bytes <= memory
            if allocator == "arena":
                arena = stats["gpu_memory"]["arena"]
                assert arena["error"] is None and arena["requested"] <= memory < arena["capacity"], arena
    tide.restore()
    assert program.sums() == parting.expected(program)


def test_cuda_graphs_are_refused(fake, pool):
    """A replay would use the addresses of its capture."""
    graph = torch.cuda.CUDAGraph
    before = graph.replay
    with tidelog.offload(pool=pool, memory=BUDGET, staging=STAGING, device="cpu"):
        assert graph.replay is before  # a block of host memory leaves a GPU's graphs alone
    gpu = fake()
    with tidelog.offload(pool=pool, memory=TENSORS, staging=STAGING, device=gpu.device):
        for call in (graph.capture_begin, graph.replay):
            with pytest.raises(tidelog.Error, match="a CUDA graph has the addresses"):
                call(None)
    assert graph.replay is before


def test_training_by_cufile_gives_the_same_bits_and_none_passes_through_the_host(gpu, pool, mode):
    gpu = gpu(seed=9)

    def train(world):
        before = gpu.host_bytes()  # opening the pool reads what it says of itself
        world.steps(2)
        if world.tide is not None:
            stats = world.tide.stats()
            assert stats["data_path"] == "gds" and "no byte of it passes through the host" in stats["gpu"]
            assert stats["totals"]["evictions"] and stats["totals"]["fetches"], "everything fitted"
            assert world.tide.peak_bytes <= BUDGET
            assert gpu.host_bytes() == before

    try:
        compare(train, pool, mode, device=gpu.device, memory=BUDGET, staging=STAGING, data_path=gpu.gds)
    except tidelog.Error as error:
        if gpu.device == "cuda" and "gds data path does not work here" in str(error):
            pytest.skip(str(error))
        raise


def test_training_gives_the_same_bits_where_host_memory_takes_a_part(gpu, pool, mode):
    gpu = gpu(seed=11)
    host_memory = TENSORS // 2

    def train(world):
        world.steps(2)
        if world.tide is not None:
            stats = world.tide.stats()
            totals, tier = stats["totals"], stats["host_memory"]
            assert tier["capacity"] == host_memory and 0 < tier["peak"] <= host_memory
            assert totals["bytes_to_host"] and totals["bytes_from_host"], "host memory took nothing"
            assert totals["bytes_written"] and totals["bytes_read"], "all of it fitted into host memory"
            assert world.tide.peak_bytes <= TENSORS

    compare(train, pool, mode, device=gpu.device, memory=TENSORS, staging=STAGING, host_memory=host_memory)


def test_what_fits_into_host_memory_reaches_no_ssd_and_leaves_clean_without_a_copy(gpu, pool):
    world = World(device=gpu(seed=12).device)
    with world.block(pool, mode="reactive", memory=TENSORS, staging=STAGING, host_memory="64MiB") as tide:
        world.steps(3)
        kept = world.subject("parameter")
        tide.evict(kept)
        before = bits(kept)  # which brings it back
        assert kept.untyped_storage()._tide.state == _record.CLEAN, "it has a copy in host memory"
        drops = tide.stats()["totals"]["clean_drops"]
        tide.evict(kept)
        totals = tide.stats()["totals"]
        assert not tide.is_resident(kept)
        # Others may leave, too, and be copied for it: what another test left behind counts against the budget.
        assert totals["clean_drops"] == drops + 1
        assert totals["bytes_written"] == totals["bytes_read"] == 0
        assert_same(bits(kept), before, "a parameter that left twice")


def test_page_locked_memory_goes_back_with_the_block(fake, pool):
    card = fake()
    world = World()
    with world.block(pool, mode="reactive", memory=TENSORS, staging=STAGING, host_memory=32 * MIB) as tide:
        world.steps(1)
        held = card.page_locked_bytes()
        assert 0 < tide.stats()["host_memory"]["used"] <= 32 * MIB <= held
    assert card.page_locked_bytes() == held, "the only copy of what the budget left out"
    tide.restore()
    assert card.page_locked_bytes() <= held - 32 * MIB


def test_a_byte_that_host_memory_lost_is_an_error_that_names_the_tensor(fake, pool):
    card = fake()
    world = World()
    with world.block(pool, mode="reactive", memory=64 * MIB, host_memory=32 * MIB) as tide:
        world.steps(1)
        parameter = world.subject("parameter")
        tide.evict(parameter)
        torch.cuda.synchronize()  # it is in host memory
        card.flip_a_bit()
        with pytest.raises(tidelog.DeviceError, match=r"3\.linear\.weight: .*host memory .*CRC32C"):
            parameter.sum()
        assert not tide.is_resident(parameter)
        parameter.sum()  # it was the link: the copy is good


@pytest.mark.parametrize("host_memory, reason", [("1GiB", "for the tensors of a GPU"), ("lots", "host_memory='lots'")])
def test_host_memory_that_cannot_be_is_refused_with_the_reason(pool, host_memory, reason):
    with pytest.raises(tidelog.Error, match=reason):
        with tidelog.offload(pool=pool, memory="1GiB", device="cpu", host_memory=host_memory):
            pass


@pytest.mark.parametrize("where", ["staging", "gds"])
def test_what_a_kernel_that_nobody_saw_writes_while_a_tensor_leaves_is_kept(gpu, pool, where):
    """Checks a kernel that gets its address past the dispatcher, and past torch's Python: nothing says that it runs.
    What it writes while a tensor leaves to host memory is an error (test_gpu_lag.py).
    """
    gpu = gpu(laziness=1)
    memory = TENSORS + 4 * MIB
    options = {"staging": {}, "gds": {"data_path": gpu.gds}}[where]
    options |= {"memory": memory, "staging": STAGING, "device": gpu.device, "mode": "reactive"}
    with tidelog.offload(pool=pool, **options) as tide:
        tensor = torch.full((MIB,), 1, dtype=torch.uint8, device=gpu.device)
        submitted = []

        def poke(address):
            if not submitted:
                time.sleep(0.3)  # until it is written
                gpu.poke(address + MIB // 2, 2)
            submitted.append(address)

        with when_done(tide, poke):
            tide.evict(tensor)
        assert not tide.is_resident(tensor)
        assert len(set(submitted)) == 1, "it moved meanwhile"
        totals = tide.stats()["totals"]
        assert (totals["bytes_written"], totals["evictions"], totals["clean_drops"]) == (2 * MIB, 2, 0)
        expected = torch.full((MIB,), 1, dtype=torch.uint8)
        expected[MIB // 2] = 2
        assert_same(bits(tensor), bits(expected), "what came back")


ILLEGAL_ADDRESS = 700  # CUDA_ERROR_ILLEGAL_ADDRESS


@pytest.mark.parametrize(
    "options", [{}, {"data_path": "gds"}, {"host_memory": 4 * MIB}], ids=["staging", "gds", "host"]
)
@pytest.mark.parametrize("when", ["idle", "under way"])
def test_a_block_ends_after_a_kernel_went_wrong(fake, pool, options, when):
    """Every call of CUDA's returns that error from then on, and what was put into streams does not happen."""
    gpu = fake(laziness=3)
    options = {"memory": 8 * MIB, "staging": STAGING, "device": gpu.device, "mode": "reactive", **options}
    with pytest.raises(RuntimeError) as raised, warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with tidelog.offload(pool=pool, **options) as tide:
            tensors = [torch.full((MIB // 4,), float(number)) for number in range(16)]
            assert not all(map(tide.is_resident, tensors))
            if when == "under way":
                gpu.library.fake_hold(True)  # what is under way does not end before
                threading.Timer(0.3, gpu.library.fake_break, [ILLEGAL_ADDRESS]).start()
            else:
                gpu.library.fake_break(ILLEGAL_ADDRESS)
            for tensor in tensors:
                bits(tensor)
    assert "700" in str(raised.value) or "ILLEGAL_ADDRESS" in str(raised.value)
    assert _block._active is None


def test_an_eviction_waits_for_every_stream(gpu, pool):
    """Kernels that have not run yet write the tensor, on a stream or on two: the bytes that leave
    are those after them.
    """
    for seed in range(6):
        card = gpu(seed, laziness=40)
        world = World(device=card.device)
        made = torch.arange(128.0 * 128, device=card.device).reshape(128, 128)
        lates = [torch.zeros(128, 128, device=card.device) for _ in range(3)]
        launched_on = [card.stream, card.stream, card.Stream()]
        with world.block(pool, mode="reactive", memory=64 * MIB) as tide:
            for late, stream in zip(lates, launched_on):
                card.write_late(stream, late, made)
                tide.evict(late)
            assert len(tide.device.streams) == 2
            for late in lates:
                assert not tide.is_resident(late)
                assert_same(bits(made), bits(late), f"a late kernel's bytes, seed {seed}")


def test_streams_are_told_of_memory_that_is_guarded(gpu, pool):
    """A fetch that is given up: torch asks for the address of what is guarded still, and nobody else may."""
    card = gpu()
    tensor = torch.arange(4096.0, device=card.device)
    with tidelog.offload(pool=pool, memory=64 * MIB, mode="reactive", device=card.device) as tide:
        for stream in (card.stream, card.Stream()):
            with card.on(stream):
                tide.ledger.launches(0)
        assert len(tide.device.streams) == 2
        storage = tensor.untyped_storage()
        native().guard(storage, "it is out")
        tide.ledger.share(storage)
        with pytest.raises(RuntimeError, match="it is out"):
            torch._C.StorageBase.data_ptr(storage)
        native().open_to_reads(storage)
        assert_same(bits(tensor), bits(torch.arange(4096.0)), "what was guarded")


def test_a_stream_that_appears_where_memory_moves_is_told_of_all_that_is_there(fake, pool):
    """Checks a stream that is first seen when a fetch asks what was launched, before the op that needs the fetch."""
    card = fake()
    with tidelog.offload(pool=pool, memory=64 * MIB, mode="reactive", device=card.device) as tide:
        here, out = torch.arange(4096.0), torch.arange(4096.0)
        for tensor in (here, out):
            tide.evict(tensor)
        here.sum()  # it has memory of the first stream's from here on
        beside = card.Stream()
        with card.on(beside):
            out.sum()
        assert len(tide.device.streams) == 2
        assert card.has_told(out, card.stream) and card.has_told(out, beside)
        assert card.has_told(here, beside)


def test_what_an_op_takes_is_told_by_events(fake, pool):
    fake()
    world = World()
    with world.block(pool, mode="auto", memory=TENSORS, staging=STAGING) as tide:
        world.warm_up("auto")
        plan = tide.stats()["plan"]
        assert plan["compute_ns"] == plan["ops"] * Event.OP_MILLISECONDS * 1e6


@pytest.fixture
def ballast():
    """`ballast(left)`: all memory of the GPU is taken past torch, but so many bytes."""
    taken = []
    yield lambda left: taken.append(Ballast(left))
    for each in taken:
        each.release()


@needs_cuda
@pytest.mark.parametrize("others", ["alone", "all other memory taken"])
def test_cuda_itself_has_back_what_left(pool, ballast, others):
    """Four times the budget is made: CUDA itself says that the process never holds much more than the budget, and where
    others have the rest of the GPU it could not.
    """
    budget, allowance = 256 * MIB, 96 * MIB  # what torch's allocator and its libraries take beside
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    if others != "alone":
        ballast(budget + allowance)
    free_before, _ = torch.cuda.mem_get_info()
    with tidelog.offload(pool=pool, memory=budget, device="cuda", mode="reactive", pool_size=2048 * MIB) as tide:
        tensors = []
        for number in range(64):
            tensors.append(torch.full((4 * MIB,), float(number), device="cuda"))
            taken = free_before - torch.cuda.mem_get_info()[0]
            assert taken <= budget + allowance, f"{taken >> 20} MiB are taken after {number + 1} tensors"
        for number, tensor in enumerate(tensors):
            assert tensor.min().item() == tensor.max().item() == number
        tensors.clear()
        assert tide.stats()["totals"]["evictions"] > 0


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@needs_cuda
def test_training_gives_the_same_bits_in_expandable_segments(mode):
    """The allocator is asked before it starts, so this is a process of its own; it shows that it
    did as it was asked.
    """
    tests = [f"{__file__}::{name}" for name in ("test_segments_are_expandable", "test_training_gives_the_same_bits")]
    chosen = f"segments or (cuda and {mode})"
    words = [sys.executable, "-m", "pytest", "-q", "-rs", *tests, "-k", chosen]
    done = subprocess.run(words, env={**os.environ, **EXPANDABLE}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout[-2000:]


@pytest.mark.skipif(
    not all(os.environ.get(name) == value for name, value in EXPANDABLE.items()), reason="for the test above"
)
def test_segments_are_expandable():
    kept = torch.zeros(MIB, device="cuda")
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()), kept.shape


LAYERS, WIDTH = 8, 256
LAYER = 4 * WIDTH * WIDTH  # the bytes of a layer's weight
MODEL_BUDGET = LAYERS * LAYER // 2


def layer_weights():
    """Yields the weights, the same for every way to make the model, in the host's memory, one at a time."""
    for number in range(LAYERS):
        yield np.random.default_rng(number).standard_normal((WIDTH, WIDTH), dtype=np.float32)


def layers(device):
    with torch.device(device):
        return nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))


def from_meta(device, folder):
    """Each layer gets its memory on the GPU, and is filled there."""
    model = layers("meta")
    for layer, weight in zip(model, layer_weights()):
        layer.to_empty(device=device)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
    return model


def from_cpu(device, folder):
    """The whole is in the host's memory, and goes over a layer at a time."""
    model = layers("cpu")
    for layer, weight in zip(model, layer_weights()):
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
    return nn.ModuleList(layer.to(device) for layer in model)


def from_safetensors(device, folder):
    """A checkpoint in shards, as large ones are. Where the tensors that it makes are a file that is mapped (the fake's
    are) they cannot move: they are copied, and die.
    """
    model = layers("meta")
    for number, layer in enumerate(model):
        layer.to_empty(device=device)
        with safetensors.safe_open(folder / f"{number}.safetensors", framework="pt", device=device) as shard:
            layer.load_state_dict({name: shard.get_tensor(name) for name in shard.keys()})
    return model


@pytest.mark.parametrize("build", [from_meta, from_cpu, from_safetensors])
def test_a_model_that_the_gpu_never_holds_whole(gpu, pool, tmp_path, build):
    """Trains a model that is made inside the block, with memory for half of it, and trains to the bits of a run without
    a limit.
    """
    card = gpu(seed=13)
    if build is from_cpu and card.device == "cpu":
        pytest.skip("the fake's memory is the host's: nothing could be on the host alone")
    for number, weight in enumerate(layer_weights()):
        safetensors.numpy.save_file({"weight": weight}, tmp_path / f"{number}.safetensors")

    def train():
        model, found = build(card.device, tmp_path), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.ones(4, WIDTH, device=card.device) / WIDTH
            for layer in model:
                x = torch.tanh(layer(x))
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(bits(x))
        return [*found, *(bits(parameter) for parameter in model.parameters())]

    options = {"pool_size": 64 * MIB, "staging": STAGING, "device": card.device, "mode": "reactive"}
    with tidelog.offload(pool=pool, memory=MODEL_BUDGET, **options) as tide:
        limited = train()
        assert tide.peak_bytes <= MODEL_BUDGET < LAYERS * LAYER
        assert tide.stats()["totals"]["evictions"] >= LAYERS // 2
    del tide
    for one, other in zip(train(), limited, strict=True):
        assert_same(one, other, "what it trained to")


@pytest.mark.parametrize("device, reason", [("cuda:99", "GPU"), ("meta", "not of this"), ("gpu", "device='gpu'")])
def test_a_device_that_cannot_be_is_refused_by_name(pool, device, reason):
    with pytest.raises(tidelog.Error, match=reason):
        with tidelog.offload(pool=pool, memory="1GiB", device=device):
            pass
