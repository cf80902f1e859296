"""Backward passes run as without a block, in which autograd finds no dispatch mode; the block sees all ops."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import checkpoint

import tidelog
from tidelog.native import _built
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits


WIDTH = 64
STAGING = 256 * KIB
FITS, MOVES = 64 * MIB, STAGING + 160 * KIB  # budgets


class Doubled(TorchDispatchMode):
    """Sees ops, and doubles what each sine gives."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func)
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result


class Tripled(torch.Tensor):
    """A subclass with a dispatch of its own: what it adds up is tripled."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        result = func(*plain, **(kwargs or {}))
        return result * 3 if func is torch.ops.aten.add.Tensor else result


@pytest.fixture(autouse=True)
def built():
    assert _built.build() == ""


def program():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(hook, steps=7, pool=None, forward=None, memory=None):
    """The losses of a training, and its gradients in the end; `hook` looks at a gradient in the backward pass, and may
    give another. Each output has several uses, so that gradients add up."""
    model, optimizer = program()
    losses = []

    def step():
        optimizer.zero_grad()
        out = forward(model, torch.randn(16, WIDTH)) if forward else model(torch.randn(16, WIDTH))
        out = torch.tanh(out)
        out.register_hook(hook)
        loss = sum((out[:, at] * out[:, at + 1]).sum() for at in range(12))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def gradients():
        return [bits(parameter.grad) for parameter in model.parameters()]

    if pool is None:
        for _ in range(steps):
            step()
        return losses, gradients()
    options = {"memory": memory, "staging": STAGING, "pool_size": 64 * MIB}
    with warnings.catch_warnings(), tidelog.offload(model, optimizer, pool=pool, **options) as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        for _ in range(steps):
            with tide.step():
                step()
            tide.await_plan()
        stats = tide.stats()
        assert (stats["evictions"] > 0) == (memory == MOVES)
        assert tide.phase == "planned"
        assert stats["notices"] == []  # of plans that were left
        assert tide.peak_bytes <= memory
        return losses, gradients()


def check(pool, hook, **options):
    plain_losses, plain = train(hook, **options)
    for memory in (FITS, MOVES):
        losses, found = train(hook, pool=pool, memory=memory, **options)
        assert losses == plain_losses, memory
        for at, (one, other) in enumerate(zip(plain, found, strict=True)):
            assert_same(one, other, f"gradient {at}, {memory} bytes")


def sums(**options):
    """Sums gradients in a training, in place and otherwise."""
    with torch.profiler.profile() as profile:
        train(lambda gradient: None, **options)
    counts = {event.key: event.count for event in profile.key_averages()}
    return counts["aten::add_"], counts["aten::add"]


def test_gradients_add_up_in_place(pool):
    assert sums(pool=pool, memory=FITS) == sums()


@pytest.mark.parametrize("memory", [FITS, MOVES], ids=["all fits", "tensors move"])
def test_autograd_finds_no_mode(pool, memory):
    seen = []
    train(lambda gradient: seen.append(torch._C._len_torch_dispatch_stack()), pool=pool, memory=memory)
    assert seen == [0] * 7


def test_keys_and_place_of_a_thread_are_as_before_when_it_ends(tmp_path):
    seen = []

    def hook(gradient):
        seen.append(what_is_seen())
        if len(seen) == 3:
            raise KeyboardInterrupt

    with tidelog.offload(pool=tmp_path / "pool", memory=64 * MIB, staging=MIB, pool_size=128 * MIB):
        tensor = torch.ones(4, requires_grad=True)
        before = what_is_seen()
        for _ in range(3):
            product = tensor * 2
            product.register_hook(hook)
            with pytest.raises(KeyboardInterrupt) if len(seen) == 2 else contextlib.nullcontext():
                product.sum().backward()
            assert what_is_seen() == before
    assert [is_inside for _, _, is_inside in seen] == [False] * 3


def what_is_seen():
    """Returns the state of this thread that decides which modes see its ops."""
    sets = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return *map(str, sets), _built.native().is_inside()


def within_a_mode(gradient):
    with Doubled() as mode:
        result = gradient.sin() + 1
    assert mode.ops == [torch.ops.aten.sin.default, torch.ops.aten.add.Tensor]
    return result


def without_modes(gradient):
    with _disable_current_modes():
        return gradient + 0.5


def without_dispatch(gradient):
    """Disables dispatch, as torch's own `no_dispatch` does, in which a subclass is a tensor like any."""
    kept = torch.full_like(gradient, 0.5)
    with torch._C._DisableTorchDispatch():
        return kept.add(1)


def by_a_subclass(gradient):
    return gradient * (Tripled(gradient) + 1)


def by_a_subclass_without_modes(gradient):
    wrapped, scale = Tripled(gradient), torch.ones(())
    with _disable_current_modes():
        return wrapped + scale


def by_functions_of_functions(gradient):
    jacobian = torch.func.grad(lambda x: (x.sin() * x).sum())(gradient.detach())
    return torch.func.vmap(lambda row, other: row * other + 1)(gradient, jacobian)


def by_another_backward(gradient):
    with torch.enable_grad():
        leaf = gradient.detach().requires_grad_()
        (first,) = torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), leaf)
    return second


HOOKS = [
    within_a_mode, without_modes, without_dispatch, by_a_subclass, by_a_subclass_without_modes,
    by_functions_of_functions, by_another_backward,
]  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_what_runs_in_a_backward_pass_does_what_it_does_without_a_block(pool, hook):
    check(pool, hook)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(pool, reentrant):
    def forward(model, x):
        x.requires_grad_()
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return x

    check(pool, lambda gradient: None, forward=forward)


def test_a_function_that_is_compiled_in_a_backward_pass(pool, compiled_once):
    compiled = torch.compile(lambda x: torch.tanh(x * 2) + x)

    def hook(gradient):
        return compiled(gradient.detach())

    def steps(**options):
        torch.compiler.reset()
        return train(hook, **options)

    plain_losses, plain = steps()
    for memory in (FITS, MOVES):
        losses, found = steps(pool=pool, memory=memory)
        assert losses == plain_losses
        for one, other in zip(plain, found, strict=True):
            assert_same(one, other)


def test_what_is_compiled_in_a_backward_pass_is_compiled_once(pool):
    compiled = torch.compile(lambda x: torch.tanh(x * 2) + x, backend="aot_eager")
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for memory in (FITS, MOVES):
        train(lambda gradient: compiled(gradient), pool=pool, memory=memory)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_backward_pass_that_is_compiled(pool):
    leaf = torch.linspace(-1, 1, WIDTH, requires_grad=True)
    with tidelog.offload(pool=pool, memory=FITS, staging=STAGING, pool_size=64 * MIB):
        with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
            (leaf.sin() + leaf.exp()).sum().backward()
    assert torch.equal(leaf.grad, leaf.detach().cos() + leaf.detach().exp())


def test_a_higher_order_backward_with_a_graph(pool):
    def hook(gradient):
        return None

    def forward(model, x):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return gradient

    check(pool, hook, forward=forward)
