"""An op finds its tensors whatever way it is given them, and of what it has written no copy is used again."""

import pytest
import torch
from torch import nn

import tidelog
from tidelog.memory._record import CLEAN, SETTLED, unseen
from tidelog.storages._ops import Trait, info_of
from tidetest import MIB, device
from tidetest.bits import assert_same, bits

SIZE = 64


class Plain(torch.Tensor):
    """A subclass that dispatches as a tensor does."""


def sparse_of(tensor):
    places = torch.arange(len(tensor))[None]
    return torch.sparse_coo_tensor(places, tensor, (len(tensor),), check_invariants=False)


# What reads a tensor, and what writes it.
FORMS = {
    "a tensor": (lambda tensor: tensor * 2, lambda tensor: tensor.mul_(2)),
    "behind a number": (lambda tensor: torch.pow(2, tensor), lambda tensor: torch.pow(2, tensor, out=tensor)),
    "a parameter": (lambda tensor: nn.Parameter(tensor) * 2, lambda tensor: nn.Parameter(tensor).mul_(2)),
    "a view": (lambda tensor: tensor[1:] * 2, lambda tensor: tensor[1:].mul_(2)),
    "a subclass": (lambda tensor: tensor.as_subclass(Plain) * 2, lambda tensor: tensor.as_subclass(Plain).mul_(2)),
    "in a list": (lambda tensor: torch.cat([torch.ones(1), tensor]), lambda tensor: torch._foreach_mul_([tensor], 2)),
    "in an optional list": (
        lambda tensor: torch.arange(9)[tensor.long() % 9],
        lambda tensor: tensor.index_put_([torch.arange(4)], torch.ones(4)),
    ),
    "by name": (
        lambda tensor: torch.searchsorted(torch.arange(64.0), torch.ones(3), sorter=tensor.argsort()),
        lambda tensor: torch.mul(torch.ones(SIZE), 3, out=tensor),
    ),
    "a sparse tensor's values": (
        lambda tensor: sparse_of(tensor).to_dense(),
        lambda tensor: sparse_of(tensor).mul_(2),
    ),
}


def block(pool):
    return tidelog.offload(pool=pool, memory=device.budget(16 * MIB), pool_size=64 * MIB)


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_what_is_out_comes_back_however_it_is_given(pool, form):
    read, write = FORMS[form]
    tensor = torch.randn(SIZE)
    expected, plain = bits(read(tensor)), tensor.clone()
    write(plain)
    with block(pool) as tide:
        for _ in range(4):  # at last without Python, where the op needs nothing of it
            tide.evict(tensor)
            assert_same(bits(read(tensor)), expected, "what was read")
            # It has a copy in the log: who reads it leaves that as good as it was, who writes it does not.
            assert tensor.untyped_storage()._tide.state == CLEAN
        before = tide.stats()["totals"]["bytes_written"]
        write(tensor)
        assert tensor.untyped_storage()._tide.state == SETTLED
        tide.evict(tensor)
        assert tide.stats()["totals"]["bytes_written"] - before >= tensor.nbytes
        assert_same(bits(tensor), bits(plain), "what was written")


def test_what_was_never_met_is_counted(pool):
    with block(pool) as tide:
        tide.evict(torch.ones(SIZE))  # ops are looked at from here on
        with unseen():
            unmet = torch.randn(SIZE)
        live = tide.live_bytes
        product = unmet * 2
        assert tide.live_bytes == live + unmet.nbytes + product.nbytes


def test_what_is_special_about_ops():
    aten = torch.ops.aten
    assert info_of(aten._foreach_add_.Scalar).traits == Trait.IN_PIECES
    assert info_of(aten.resize_.default).traits == Trait.RESIZES
    assert info_of(aten.mm.out).traits == Trait.RESIZES | Trait.IS_PRODUCT
    assert info_of(aten.mul.Tensor).traits == Trait.REPEATS
    assert info_of(aten.mul_.Tensor).traits == info_of(aten.bernoulli.default).traits == Trait(0)
