"""Sparse tensors have no storage of their own: their components move, and count."""

import contextlib
import copy
import io

import pytest
import torch
from torch import nn

import tidelog
from tidetest import KIB, MIB, device
from tidetest.bits import assert_same, bits, frozen

ROWS, WIDTH, STEPS = 4000, 32, 8
OPTIMIZERS = {
    "SparseAdam": torch.optim.SparseAdam,
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}
PLENTY = device.budget(64 * MIB)


@pytest.fixture(autouse=True)
def no_invariants(monkeypatch):
    """Skips invariants of sparse tensors, as torch does by default, without its warning."""
    before = torch.sparse.check_sparse_tensor_invariants.is_enabled()
    torch.sparse.check_sparse_tensor_invariants.disable()
    yield
    if before:
        torch.sparse.check_sparse_tensor_invariants.enable()


def train(optimizer, step=contextlib.nullcontext):
    """Trains with sparse gradients, two of which add up in each step."""
    torch.manual_seed(3)
    with torch.device(device.kind()):
        model = nn.Embedding(ROWS, WIDTH, sparse=True)
        tokens = torch.randint(0, ROWS, (STEPS, 2, 500))
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for number in range(STEPS):
        with step():
            optimizer.zero_grad()
            for part in tokens[number]:
                model(part).pow(2).sum().backward()
            assert model.weight.grad.is_sparse
            optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return frozen([model.weight, model.weight.grad.coalesce().values(), *states])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sparse_gradients_where_all_fits(pool, optimizer):
    with tidelog.offload(pool=pool, memory=PLENTY, pool_size=64 * MIB) as tide:
        ours = train(optimizer, tide.step)
        assert tide.stats()["evictions"] == 0
    assert_same(train(optimizer), ours)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sparse_gradients_under_a_budget(pool, optimizer, mode):
    memory = device.STAGING + 1050 * KIB
    with tidelog.offload(pool=pool, memory=memory, mode=mode, pool_size=64 * MIB, staging=device.STAGING) as tide:
        ours = train(optimizer, tide.step)
        assert tide.stats()["evictions"] > 0
        assert tide.peak_bytes <= memory
    assert_same(train(optimizer), ours)


def test_results_that_are_sparse_where_all_fits(pool):
    def made():
        torch.manual_seed(5)
        dense = torch.randn(64, 64).relu()
        several = dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr(8)
        return frozen([each.to_dense() for each in several] + [(several[0] + several[0]).to_dense()])

    with tidelog.offload(pool=pool, memory=PLENTY, pool_size=64 * MIB):
        ours = made()
    assert_same(made(), ours)


def test_components_count_from_the_start_and_while_all_fits(pool):
    """Counts the components of a sparse tensor that is older than the block, and of one that an op makes."""
    values = torch.randn(50_000)
    older = torch.sparse_coo_tensor(torch.arange(50_000)[None], values, (50_000,))
    size = values.nbytes + older._indices().nbytes
    del values
    with tidelog.offload(pool=pool, memory=PLENTY, pool_size=64 * MIB) as tide:
        before = tide.peak_bytes
        assert before >= size
        newer = torch.eye(256).to_sparse_csr()
        made = sum(part.nbytes for part in (newer.crow_indices(), newer.col_indices(), newer.values()))
        torch.ones(1)
        assert tide.peak_bytes - before >= made


LAYOUTS = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_tensor_moves_by_its_components(pool, layout):
    torch.manual_seed(7)
    with torch.device(device.kind()):
        sparse = LAYOUTS[layout](torch.randn(32, 32))
    expected, shown = bits(sparse.to_dense()), repr(sparse)
    with tidelog.offload(pool=pool, memory=PLENTY, pool_size=64 * MIB) as tide:
        for use in (
            lambda: tide.restore(sparse),
            lambda: assert_same(shown, repr(sparse)),
            lambda: assert_same(expected, bits((sparse * 1).to_dense())),
            lambda: assert_same(expected, bits(saved_and_loaded(sparse).to_dense())),
            lambda: sparse.is_sparse and assert_same(expected, bits(copy.deepcopy(sparse).to_dense())),
        ):
            tide.evict(sparse)
            assert not tide.is_resident(sparse)
            use()
        tide.restore(sparse)
        assert tide.is_resident(sparse)
        with tide.pinned(sparse), pytest.raises(tidelog.PinnedError):
            tide.evict(sparse)
        tide.evict(sparse)
    assert_same(expected, bits(sparse.to_dense()))


def saved_and_loaded(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)
