"""Sums of what FSDP2 gathers: they differ where any byte does."""

import pytest
import torch

from tidelog.recompute import _gathers

pytestmark = pytest.mark.host_memory("sums of a GPU's memory are of the same ops, and the tests of ranks have them")

CHUNK = 4 * _gathers._WORDS  # bytes
KINDS = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool]


def sums(*tensors):
    return _gathers.Gathers(None, None, None)._summed(tensors)


class Odd(torch.Tensor):
    pass


def made(kind, size):
    return (torch.rand(size) > 0.5).to(kind) if kind == torch.bool else (20 * torch.randn(size)).to(kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [1, 7, 4096, CHUNK + 3])
def test_any_byte_changes_the_sums(kind, size):
    tensor = made(kind, size)
    before = sums(tensor)
    assert torch.equal(before, sums(tensor.clone()))
    data = tensor.view(torch.uint8)
    for place in {0, data.numel() // 2, data.numel() - 1}:
        for bit in (1, 128):
            data[place] ^= bit
            assert not torch.equal(before, sums(tensor)), (place, bit)
            data[place] ^= bit


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_changes_that_other_sums_do_not_see(kind):
    """Words that change places, whole chunks that do, and signs of all numbers."""
    tensor = made(kind, 4 * CHUNK // kind.itemsize)
    before, halves = sums(tensor), tensor.chunk(2)
    assert len(before) == 4
    for other in (
        tensor.flip(0),
        tensor.roll(1),
        torch.cat(halves[::-1]),
        -tensor,
        tensor.roll(CHUNK // kind.itemsize),
    ):
        assert not torch.equal(before, sums(other.contiguous()))
    assert not torch.equal(sums(*halves), sums(*halves[::-1]))


@pytest.mark.parametrize(
    ("tensor", "can"),
    [
        (torch.ones(3, 4), True),
        (torch.nn.Parameter(torch.ones(3)), True),
        (torch.ones(3, 4).t(), False),
        (torch.ones(0), False),
        (torch.ones(3).as_subclass(Odd), False),
    ],
    ids=["tensor", "parameter", "transposed", "empty", "subclass"],
)
def test_what_cannot_be_summed_counts_as_changed(tensor, can):
    assert _gathers._can_be_summed(tensor) == can


def test_weights_are_no_generators_of_the_program():
    before = torch.get_rng_state()
    sums(torch.ones(3))
    assert torch.equal(before, torch.get_rng_state())
