"""When an op under a plan asks the session, and when it need not: whatever way it is given a tensor that is out."""

import pytest
import torch
from torch import nn

import tidelog
from tidelog.memory._record import CLEAN, SETTLED, record_in, unseen
from tidelog.storages._ops import info_of
from tidetest import MIB, device

READS, WRITES = info_of(torch.ops.aten.mul.Tensor), info_of(torch.ops.aten.mul_.Tensor)


class Plain(torch.Tensor):
    """A subclass that dispatches as a tensor does."""


# What gives a tensor to an op: its arguments, by position and by name.
FORMS = {
    "a tensor": lambda tensor: ((tensor, 2.0), {}),
    "behind scalars": lambda tensor: ((1, True, None, "mean", torch.float32, tensor), {}),
    "a parameter": lambda tensor: ((nn.Parameter(tensor),), {}),
    "a view": lambda tensor: ((tensor[1:],), {}),
    "a subclass": lambda tensor: ((tensor.as_subclass(Plain),), {}),
    "in a list": lambda tensor: (([torch.ones(1), tensor], 0), {}),
    "in a tuple in a list": lambda tensor: (([(tensor,)],), {}),
    "by name": lambda tensor: ((torch.ones(1),), {"weight": tensor}),
    "in a list by name": lambda tensor: ((), {"weights": [tensor]}),
    "a sparse tensor's values": lambda tensor: ((torch.ones(1), sparse_of(tensor)), {}),
}


def sparse_of(tensor):
    places = torch.arange(len(tensor))[None]
    return torch.sparse_coo_tensor(places, tensor, (len(tensor),), check_invariants=False)


def settles(hook, info, args, kwargs):
    """Whether an op may run without asking the session; what that does is done."""
    with unseen():  # as where the hook runs
        return hook._is_settled(info, args, kwargs)


def block(pool):
    return tidelog.offload(pool=pool, memory=device.budget(16 * MIB), pool_size=64 * MIB)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_out_is_asked_for_however_it_is_given(pool, form):
    tensor = torch.randn(64)
    args, kwargs = FORMS[form](tensor)

    def settled(hook):
        return settles(hook, READS, args, kwargs), settles(hook, WRITES, args, kwargs)

    with block(pool) as tide:
        assert settled(tide._hook) == (True, True)
        tide.evict(tensor)
        assert settled(tide._hook) == (False, False)
        tide.restore(tensor)
        assert tensor.untyped_storage()._tide.state == CLEAN
        # It has a copy in the log: who reads it leaves that as good as it was, who writes it does not.
        assert settles(tide._hook, READS, args, kwargs)
        assert tensor.untyped_storage()._tide.state == CLEAN
        assert settles(tide._hook, WRITES, args, kwargs)
        is_written = tensor.untyped_storage()._tide in [*map(record_in, WRITES.modified(args, kwargs))]
        assert tensor.untyped_storage()._tide.state == (SETTLED if is_written else CLEAN)


def test_of_what_was_written_the_copy_is_not_used_again(pool):
    tensor = torch.randn(1024)
    expected = 2 * tensor
    with block(pool) as tide:
        tide.evict(tensor)
        tide.restore(tensor)
        assert settles(tide._hook, WRITES, (tensor, 2.0), {})
        with unseen():  # as an op that nobody looks at in full
            tensor.mul_(2)
        before = tide.stats()["totals"]["bytes_written"]
        tide.evict(tensor)
        assert tide.stats()["totals"]["bytes_written"] - before >= tensor.nbytes
        tide.restore(tensor)
        assert torch.equal(tensor, expected)


def test_what_was_never_met_is_asked_for(pool):
    with block(pool) as tide:
        with unseen():
            unmet = torch.randn(64)
        assert not tide._hook._is_settled(READS, (unmet,), {})
        unmet.mul(2)


def test_ops_that_are_always_looked_at():
    for op in (torch.ops.aten._foreach_add_.Scalar, torch.ops.aten.resize_.default, torch.ops.aten.mul.out):
        assert info_of(op).special
    assert not READS.special and not WRITES.special
