"""Sums of gradients while tensors move: in place where they are without a block."""

import contextlib
import functools
import os

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidelog.native import _built
from tidelog.native._built import native
from tidetest import KIB, MIB
from tidetest.requests import until_it_waits
from tidetest.updates import compare

WIDTH = 64
kept = []


@pytest.fixture(autouse=True)
def built():
    assert _built.build() == ""
    yield
    kept.clear()


@contextlib.contextmanager
def looking(pool):
    """A block that looks at ops."""
    options = {"memory": 64 * MIB, "staging": 256 * KIB, "pool_size": 64 * MIB, "mode": "reactive"}
    with tidelog.offload(pool=pool, **options) as tide:
        tide.evict(torch.ones(WIDTH))
        yield tide


def nothing(_tide, _gradient):
    pass


def evict(tide, gradient):
    tide.evict(gradient)


def begin_to_evict(tide, gradient):
    number = tide.ledger.record_of(gradient.untyped_storage()).id
    until_it_waits(tide, lambda: tide.session.evict(number))


def begin_to_evict_parts(tide, gradient):
    storage = gradient.untyped_storage()
    record = tide.ledger.record_of(storage)
    for begin in (0, gradient.nbytes // 2):
        assert tide.performer.parts.evict(record, storage, gradient.nbytes // 2, begin)


def keep(_tide, gradient):
    kept.append(gradient)


def keep_storage(_tide, gradient):
    kept.append(gradient.untyped_storage())


def keep_in_cpp(_tide, gradient):
    with torch.enable_grad():
        kept.append(torch.ones(WIDTH, requires_grad=True) * gradient)


def share(_tide, gradient):
    """Shares a gradient with a mapping of the same memory, as another process would have it."""
    descriptor, size = gradient.share_memory_().untyped_storage()._share_fd_cpu_()
    kept.append(torch.UntypedStorage._new_shared_fd_cpu(os.dup(descriptor), size))


def foreign(_tide, gradient):
    """The memory is an array's, whose own reference does not count."""
    array = gradient.numpy().copy()
    given = torch.from_numpy(array)
    given.untyped_storage()
    kept.append(array)
    return (given,)


WHO = [nothing, keep, keep_storage, keep_in_cpp, share, foreign]
ON_HOSTS = pytest.mark.host_memory("parts of what a step makes move in the host's memory alone")
MOVES = [evict, begin_to_evict, pytest.param(begin_to_evict_parts, marks=ON_HOSTS)]


def sum_of_two(does, tide):
    """The first gradient of two that are added up is given to somebody. Returns whether the sum is in place."""
    leaf = torch.linspace(-1, 1, WIDTH, requires_grad=True)
    added = leaf.clone()
    first, second = added.sin(), added.cos()
    versions = []
    second.grad_fn.register_hook(lambda inputs, _outputs: does(tide, inputs[0]))  # its gradient comes first
    added.grad_fn.register_prehook(lambda gradients: versions.append(gradients[0]._version))
    torch.stack([first, second]).sum().backward()
    assert torch.equal(leaf.grad, leaf.detach().cos() - leaf.detach().sin())
    for each in kept:
        assert torch.equal(contents(each), -leaf.detach().sin())
    kept.clear()
    return versions[0]


@pytest.mark.parametrize("does", WHO)
def test_a_sum_is_in_place_where_it_is_without_a_block(pool, does):
    expected = sum_of_two(does, None)
    with looking(pool) as tide:
        for _ in range(3):  # the first of each op goes through Python
            assert sum_of_two(does, tide) == expected


@pytest.mark.parametrize("does", MOVES)
def test_what_has_moved_is_added_to_like_any(pool, does):
    with looking(pool) as tide:
        for _ in range(3):
            sum_of_two(does, tide)


def begin_to_evict_unseen(tide, gradient):
    """Has a gradient leave of which Python has no storage, which would be another holder."""
    record = native().record_in(gradient)
    for _ in range(100):
        until_it_waits(tide, lambda: tide.session.evict(record.id))
        if record.in_flight:
            return
        gradient.sum()  # it was out before anybody waited: it comes back, for a retry
    raise AssertionError("no eviction was waited for")


def test_what_is_on_its_way_is_added_to_in_place(pool):
    """The block is no holder of it that autograd would see."""
    expected = sum_of_two(nothing, None)
    with looking(pool) as tide:
        for _ in range(3):
            assert sum_of_two(begin_to_evict_unseen, tide) == expected


def contents(kept):
    if isinstance(kept, torch.UntypedStorage):
        return torch.empty(0).set_(kept)[:WIDTH]
    if isinstance(kept, torch.Tensor) and kept.requires_grad:
        return torch.autograd.grad(kept.sum(), kept.grad_fn.next_functions[0][0].variable)[0]
    return torch.as_tensor(kept)


def test_a_sum_of_what_functorch_wraps_changes_nothing_that_is_kept(pool):
    """The engine has a wrapper then. Its tensor has no other, also where the wrapper has."""

    def unwrapped(tensor):
        return torch._C._functorch.get_unwrapped(tensor)

    def function(leaf):
        added = leaf * 1
        for result in (results := [added.sin(), added.cos(), added.exp(), added.tanh()]):
            result.grad_fn.register_hook(lambda inputs, _outputs: keep_wrapped(inputs[0]))
        return torch.stack(results).sum()

    def keep_wrapped(gradient):
        kept.append(gradient)
        copies.append(unwrapped(gradient).clone())
        tide.evict(unwrapped(gradient))

    with looking(pool) as tide, torch.no_grad():
        for _ in range(2):  # the first of each op goes through Python
            copies = []
            torch.func.grad(function)(torch.linspace(-1, 1, WIDTH))
            assert len(kept) == 4
            for one, other in zip(kept, copies, strict=True):
                assert torch.equal(unwrapped(one), other)
            kept.clear()


class Reused(nn.Module):
    """Model whose layers' inputs have several gradients, the first of which, or their sum, is kept."""

    def __init__(self, checkpointing=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.checkpointing = checkpointing
        self.found = []

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(self.call, layer, x, use_reentrant=False) if self.checkpointing else self.call(layer, x)
        return x

    def call(self, layer, x):
        added = torch.tanh(layer(x))
        for result in (results := [added.sin(), added.exp(), added.cos()]):
            result.grad_fn.register_hook(lambda inputs, _outputs: self.keep(inputs[0]))
        return torch.stack(results).sum(0)

    def keep(self, gradient):
        self.found.append((gradient, gradient.clone()))
        self.push_out(gradient)


ORDERS = {
    "early": {"updates": "early"},
    "lazy": {"updates": "lazy"},
    "layer-wise": {"updates": "own"},
    "recompute": {"updates": "own", "recompute": "best"},
}


@pytest.mark.parametrize("mode", ["reactive", "auto"])
@pytest.mark.parametrize("order", ORDERS)
def test_sums_in_other_orders_change_nothing_that_is_kept(pool, order, mode):
    """Compares gradients with those of a run without a block; whoever keeps one has what it was."""

    def scenario(program):
        model = program.model
        model.push_out = program.push_out
        for number in range(6):
            program.optimizer.zero_grad()
            batches = [program.x[:8], program.x[8:]]
            if order == "layer-wise" and program.tide is not None:
                tidelog.accumulate(model, batches, loss_of, blocks=model.layers)
            else:
                for batch in batches:
                    loss_of(model, batch).backward()
            program.optimizer.step()
            for kept, copied in model.found:
                assert torch.equal(kept, copied)
            # Layer by layer they come in another order.
            program.note(number, sorted(float(copied.norm()) for _, copied in model.found))
            model.found.clear()

    model = functools.partial(Reused, checkpointing=order == "recompute")
    options = {"memory": 256 * KIB + 128 * KIB, "mode": mode, **ORDERS[order]}
    compare(scenario, pool, model=model, expect_moved=order in ("early", "lazy"), **options)


def loss_of(model, batch):
    return model(batch).square().mean()
