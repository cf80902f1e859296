"""Ops past Python in a block of a GPU's memory: in streams, and where CUDA has no memory for one of them."""

import ctypes

import pytest
import torch
from torch import nn

import tidelog
from tidetest import KIB, MIB, native
from tidetest.fake_cuda import FakeCuda, Stream
from tidetest.requests import of_python

# An op for which there is no memory, as torch's allocator for GPUs tells it.
FAILING = """
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tanh.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

static int left = 0, failures = 0;

static at::Tensor tanh_or_none(const at::Tensor &x) {
    if (left > 0) {
        --left, ++failures;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 16.00 KiB.");
    }
    at::Tensor out = at::empty_like(x);
    return at::tanh_out(out, x);
}

static torch::Library *library = nullptr;

extern "C" void begin() {
    library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    library->impl("tanh", tanh_or_none);
}
extern "C" void fail(int times) { left = times, failures = 0; }
extern "C" int failed() { return failures; }
extern "C" void end() { delete library; }
"""

WIDTH, LAYERS, STEPS = 64, 8, 8
BUDGETS = {"all fits": 8 * MIB, "each op is looked at": 300 * KIB}


@pytest.fixture
def fake(monkeypatch, tmp_path_factory):
    made = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=3, laziness=1)
    yield made
    made.assert_lawful()


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """`failing.fail(times)`: the next so many calls of `tanh` find no memory."""
    library = ctypes.CDLL(str(native.build_for_torch(tmp_path_factory.mktemp("failing"), "failing", FAILING)))
    library.begin()
    yield library
    library.end()


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.losses = []

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(32, WIDTH)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


@pytest.fixture(scope="module")
def plain():
    training = Training()
    for _ in range(STEPS):
        training.step()
    return training.losses


def block(training, pool, budget, mode):
    options = {"memory": BUDGETS[budget], "staging": 256 * KIB, "pool_size": 64 * MIB, "device": "cpu"}
    return tidelog.offload(training.model, training.optimizer, pool=pool, mode=mode, **options)


@pytest.mark.parametrize("budget", BUDGETS)
def test_ops_go_past_python(fake, pool, mode, plain, budget):
    training, shares = Training(), []
    with block(training, pool, budget, mode) as tide:
        for _ in range(STEPS):
            with tide.step():
                before = tide.stats()["dispatch"]["ops_past_python"]
                training.step()
                shares.append(tide.stats()["dispatch"]["ops_past_python"] - before)
        assert bool(tide.stats()["totals"]["evictions"]) == (budget != "all fits")
    assert training.losses == plain
    assert shares[-1] > 200, shares  # of some 260


def test_usual_requests_go_past_python(fake, pool, mode, plain, monkeypatch):
    training = Training()
    with block(training, pool, "each op is looked at", mode) as tide:
        done = []
        for number in range(STEPS):
            if number == 1:
                done = of_python(monkeypatch)
            with tide.step():
                training.step()
        totals = tide.stats()["totals"]
        assert totals["evictions"] > 100 and totals["fetches"] > 100
        assert done == []
        assert tide.stats()["dispatch"]["requests_past_python"] > 4 * 100
    assert training.losses == plain


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("budget", BUDGETS)
def test_an_op_without_memory_runs_again_with_room(fake, pool, mode, plain, failing, budget, times):
    training = Training()
    with block(training, pool, budget, mode) as tide:
        for number in range(STEPS):
            failing.fail(times if number == STEPS - 2 else 0)
            with tide.step():
                training.step()
            assert failing.failed() == (times if number == STEPS - 2 else 0)
    assert training.losses == plain


def test_a_stream_that_ops_had_not_used_waits_for_fetches(fake, pool, plain):
    training = Training()
    with block(training, pool, "each op is looked at", "auto") as tide:
        for number in range(STEPS):
            with tide.step(), fake.on(Stream() if number == STEPS - 1 else fake.stream):
                training.step()
        assert len(tide.device.streams) == 2
    assert training.losses == plain
