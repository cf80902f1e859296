"""Tests of inductor besides training a plain model: each gives the same bits inside a block, from as many graphs."""

import contextlib
import functools
import gc
import threading
import warnings

import pytest
import torch
import torch._dynamo
from torch import nn

import tidelog
from tidelog.escapes import _compiled
from tidetest import KIB, MIB, device
from tidetest.bits import assert_same, bits
from tidetest.launches import AllOut, launched

pytestmark = [
    pytest.mark.host_memory("inductor's kernels in C++ are of the host"),
    pytest.mark.usefixtures("compiled_once"),
]

WIDTH = 64
STEPS = 4
MOST = 180 * KIB  # of tensors in memory; a matrix has 16 KiB


def parameters(count, *shape):
    return [nn.Parameter(torch.randn(*shape) / 8) for _ in range(count)]


def descend(tensors):
    with torch.no_grad():
        for each in tensors:
            each -= 0.01 * each.grad
            each.grad = None


def trained(compile, tensors, function):
    """Runs `function` compiled, forward and backward, and steps."""
    compiled = compile(function)

    def run(_):
        compiled(torch.randn(8, WIDTH)).sum().backward()
        descend(tensors)

    return run, tensors


def dropout(compile):
    weights = parameters(12, WIDTH, WIDTH)

    def function(x):
        for each in weights:
            x = nn.functional.dropout(torch.relu(x @ each), 0.3)
        return x

    return trained(compile, weights, function)


def reads_of_values(compile):
    """Reads values by methods that a block wraps, for which Dynamo breaks graphs."""
    weights = parameters(12, WIDTH, WIDTH)

    def function(x):
        for each in weights:
            x = torch.tanh(x @ each)
        data = x.detach()
        total, row, array = data.sum().item(), data[0].tolist(), data.clone().numpy()
        return x * total + row[0] + float(array.sum()) + len(repr(data[0, :2]))

    return trained(compile, weights, function)


def attention(compile):
    weights = parameters(6, WIDTH, 3 * WIDTH)

    def function(x):
        x = x[None]
        for each in weights:
            q, k, v = (x @ each).view(1, 8, 4, 48).transpose(1, 2).chunk(3, -1)
            heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + heads.transpose(1, 2).reshape(1, 8, WIDTH)
        return x

    return trained(compile, weights, function)


def convolutions(compile):
    weights, norms = parameters(6, 8, 8, 3, 3), [nn.BatchNorm2d(8) for _ in range(6)]

    def function(x):
        x = x.view(2, 8, 4, 8)
        for each, norm in zip(weights, norms, strict=True):
            x = torch.relu(norm(nn.functional.conv2d(x, each, padding=1)))
        return x

    # It has small tensors only: these are what does not fit.
    ballast = [torch.randn(WIDTH, WIDTH) for _ in range(12)]
    run, _ = trained(compile, weights, function)

    def step(number):
        run(number)
        for each in ballast:
            each.mul_(1.5)

    return step, [*weights, *(norm.running_mean for norm in norms), *ballast]


def compiled_backward(compile):
    """Compiled autograd: the backward pass of several graphs is one."""
    weights = parameters(12, WIDTH, WIDTH)

    @compile
    def function(x):
        for each in weights:
            x = torch.tanh(x @ each)
        return x.sum()

    def run(_):
        x = torch.randn(8, WIDTH)
        with torch._dynamo.config.patch(compiled_autograd=True):
            compile(lambda: function(x).backward())()
        descend(weights)

    return run, weights


def flex_attention(compile):
    from torch.nn.attention.flex_attention import flex_attention

    tensors = [torch.randn(1, 4, 32, 16) for _ in range(30)]
    function = compile(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + i - j))

    def run(_):
        with torch.no_grad():
            for place in range(0, 27, 3):
                tensors[place + 3] = function(*tensors[place : place + 3])

    return run, tensors


def selective_checkpoint(compile):
    """A policy says which results a checkpoint keeps: those of matrix products."""
    from torch.utils import checkpoint

    weights = parameters(12, WIDTH, WIDTH)

    def policy(_context, op, *args, **kwargs):
        kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return checkpoint.CheckpointPolicy.MUST_SAVE if kept else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def part(x, each):
        return torch.tanh(torch.sin(x @ each) * x)

    def function(x):
        for each in weights:
            x = checkpoint.checkpoint(
                part,
                x,
                each,
                use_reentrant=False,
                context_fn=functools.partial(checkpoint.create_selective_checkpoint_contexts, policy),
            )
        return x

    return trained(compile, weights, function)


def branches(compile):
    tensors = [torch.randn(WIDTH, WIDTH) for _ in range(14)]

    @compile
    def function(x, y):
        return torch.cond(x.sum() > 0, lambda x, y: torch.tanh(x + y), lambda x, y: torch.sin(x * y), (x, y))

    def run(number):
        x = torch.randn(WIDTH, WIDTH)
        for each in tensors:
            x = function(x, each)
        tensors[number] = x

    return run, tensors


def views(compile):
    """Inputs that are written, and outputs that share memory with them."""
    tensors = [torch.randn(WIDTH, WIDTH) for _ in range(14)]

    @compile
    def function(x, y):
        y.mul_(0.5)
        part = y[8:24]
        part.add_(1)
        return x.t(), part, y.view(-1)[3:], (x @ y).t().contiguous()

    def run(number):
        x = torch.randn(WIDTH, WIDTH)
        for each in tensors:
            turned, part, _, product = function(x, each)
            part.add_(1)
            x = product * 0.01 + turned
        tensors[number].copy_(x)

    return run, tensors


def inference(compile):
    tensors = [torch.randn(WIDTH, WIDTH) for _ in range(14)]
    function = compile(lambda x, y: torch.tanh(x @ y) + y)

    def run(number):
        with torch.inference_mode():
            x = torch.randn(WIDTH, WIDTH)
            for each in tensors:
                x = function(x, each)
            assert x.is_inference()
            tensors[number] = x

    return run, tensors


_inside = None  # what the next op computes by


@torch.library.custom_op("tidetest::computes_by_a_compiled_function", mutates_args=())
def _computes(x: torch.Tensor) -> torch.Tensor:
    return _inside(x)


@_computes.register_fake
def _(x):
    return torch.empty_like(x)


def inside_an_op(compile):
    """Kernels that are launched in an op, and use tensors that are no arguments of it."""
    global _inside
    tensors = [torch.randn(WIDTH, WIDTH) for _ in range(14)]
    _inside = compile(lambda x: torch.tanh(x + tensors[3]) * tensors[4].sin() + tensors[5])

    def run(_):
        for each in tensors:
            each.mul_(0.9)
        x = torch.randn(WIDTH, WIDTH)
        for each in tensors[:3]:
            x = _computes(x) * each
        tensors[6].copy_(x)

    return run, tensors


FUNCTIONS = {
    "attention": attention,
    "branches": branches,
    "compiled backward": compiled_backward,
    "convolutions": convolutions,
    "dropout": dropout,
    "flex_attention": flex_attention,
    "inference": inference,
    "inside an op": inside_an_op,
    "selective checkpoint": selective_checkpoint,
    "views": views,
}
IN_EVERY_RUN = ("inference", "inside an op", "views")


@contextlib.contextmanager
def no_block():
    yield None


def block(pool, mode, tensors=MOST):
    return tidelog.offload(
        pool=pool,
        memory=device.budget(tensors),
        staging=device.STAGING,
        pool_size=64 * MIB,
        mode=mode,
    )


def outcome(function, compile, opened, early, before=None):
    """The bits that it leaves, and the graphs and kernels that it took. `early`: it was compiled before the block.
    `before(tide)` makes what is called before each op."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    torch._dynamo.reset()
    counters.clear()
    metrics.reset()
    gc.collect()
    torch.manual_seed(3)
    run, tensors = function(compile)
    if early:
        run(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with opened as tide:
            with launched(before(tide)) if before is not None else contextlib.nullcontext():
                for number in range(STEPS):
                    with tide.step() if tide is not None else contextlib.nullcontext():
                        run(number)
            result = [bits(each.detach()) for each in tensors]
            if tide is not None:
                assert tide.stats()["evictions"] > 10
                assert tide.peak_bytes <= tide.budget
    breaks, kernels = sum(counters["graph_break"].values()), metrics.generated_kernel_count
    return result, {"graphs": counters["stats"]["unique_graphs"], "breaks": breaks, "kernels": kernels}


def compare(pool, mode, function, compile, early, before=None):
    expected, graphs = outcome(function, compile, no_block(), early)
    got, graphs_in_block = outcome(function, compile, block(pool, mode), early, before)
    for place, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert_same(one, other, f"tensor {place}")
    # What was compiled where no mode is, is compiled again for the inside of an op.
    if function is not inside_an_op or not early:
        assert graphs == graphs_in_block


@pytest.mark.parametrize(("mode", "early"), [("auto", False), ("reactive", True)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.slow) for name in FUNCTIONS]
)
def test_bits_and_graphs_are_the_same(pool, mode, early, name):
    compare(pool, mode, FUNCTIONS[name], torch.compile, early)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "views" else pytest.mark.slow) for name in FUNCTIONS]
)
def test_bits_are_the_same_with_every_storage_out_between_any_two_launches(pool, name):
    made = []

    def all_out(tide):
        made.append(AllOut(tide))
        return made[-1]

    compare(pool, "reactive", FUNCTIONS[name], torch.compile, False, all_out)
    counts = made[-1].counts
    assert len(counts) >= 4 * STEPS and min(counts[-10:]) > 5


@pytest.mark.parametrize("early", [False, True])
def test_methods_that_a_block_wraps_break_graphs_as_they_do_without_it(pool, early):
    compare(pool, "reactive", reads_of_values, functools.partial(torch.compile, backend="aot_eager"), early)


def test_another_thread_runs_compiled_on_what_is_out(pool):
    function = torch.compile(lambda x, y: torch.tanh(x) * y)
    tensors = [torch.randn(WIDTH, WIDTH) for _ in range(20)]
    with torch.no_grad():
        expected = [bits(function(each, each)) for each in tensors]
    launched, got = [], []

    def elsewhere():
        with torch.no_grad():
            got.extend(bits(function(each, each)) for each in tensors)

    def count(func, *arguments):
        launched.append(func)
        return call(func, *arguments)

    call = _compiled._Kernel.__call__
    with pytest.MonkeyPatch.context() as patch, block(pool, "reactive") as tide:
        patch.setattr(_compiled._Kernel, "__call__", count)
        for each in tensors:
            each.add_(0)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert len(launched) == len(got) and tide.stats()["evictions"] > 5
        tide.restore()
    for place, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert_same(one, other, f"tensor {place}")


def test_a_kernel_that_does_not_fit_is_refused_with_figures(pool):
    function = torch.compile(lambda tensors: [torch.tanh(each) for each in tensors])
    with block(pool, "reactive"), torch.no_grad():
        tensors = [torch.randn(WIDTH, WIDTH) for _ in range(16)]
        with pytest.raises(tidelog.BudgetError, match=r"kernel cpp_fused|empty_strided_cpu"):
            function(tensors)
        assert [float(each.numel()) for each in tensors] == [WIDTH * WIDTH] * 16
