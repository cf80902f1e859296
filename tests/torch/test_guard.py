"""The access guard of a torch that cannot lift it by itself (2.14 and older), which this one plays where it can."""

import pytest
import torch

import tidelog
from tidelog.memory import _guard
from tidetest.compare import compare


@pytest.fixture
def older(monkeypatch):
    monkeypatch.setattr(_guard, "_clear", None)
    monkeypatch.setattr(_guard, "_flag", _guard._find_flag())
    assert _guard.is_there()


def test_an_older_torch_s_guard_stops_every_access_and_is_lifted_by_its_flag(older):
    view = torch.full((16,), 3, dtype=torch.uint8)
    storage = view.untyped_storage()
    for _ in range(2):
        _guard.setting(storage, "tidelog: it is out")()
        for access in (view.data_ptr, view.sum, view.zero_, storage.tolist, lambda: view.numpy().sum()):
            with pytest.raises(RuntimeError, match="it is out"):
                access()
        for _ in range(2):
            _guard.lifting(storage)()
        assert storage.tolist() == [3] * 16 and view.sum() == 48


def test_training_under_an_older_torch_s_guard_gives_the_same_bits(older, pool, mode):
    def train(world):
        world.steps(2)
        if world.tide is not None:
            assert world.tide.stats()["totals"]["evictions"], "everything fitted"

    compare(train, pool, "resize", mode)


def test_where_the_flag_is_not_found_blocks_are_refused(monkeypatch, pool):
    monkeypatch.setattr(_guard, "_clear", None)
    monkeypatch.setattr(_guard, "_flag", None)
    with pytest.raises(tidelog.Error, match="no data-pointer access guard that could be lifted again"):
        with tidelog.offload(pool=pool, memory="1GiB"):
            pass
