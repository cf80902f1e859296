"""Torch's access guard, as a storage has it that is out, and what takes a storage's memory and gives it back."""

import numpy
import pytest
import torch

from tidelog.native._built import native


def accesses(view):
    storage = view.untyped_storage()
    return (view.data_ptr, view.sum, view.zero_, storage.tolist, lambda: view.numpy().sum())


def test_the_guard_stops_every_access_and_is_lifted():
    view = torch.full((16,), 3, dtype=torch.uint8)
    storage = view.untyped_storage()
    for _ in range(2):
        native().guard(storage, "tidelog: it is out")
        for access in accesses(view):
            with pytest.raises(RuntimeError, match="it is out"):
                access()
        for _ in range(2):
            native().open_to_reads(storage)
        assert storage.tolist() == [3] * 16 and view.sum() == 48


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.arange(1024, dtype=torch.uint8),
        lambda: torch.from_numpy(numpy.arange(1024, dtype=numpy.uint8)),
        lambda: torch.frombuffer(bytearray(range(256)) * 4, dtype=torch.uint8),
    ],
    ids=["torch's", "NumPy's", "a buffer's"],
)
def test_memory_of_any_owner_is_taken_and_given_back(made):
    tensor = made()
    view, storage = tensor[100:200], tensor.untyped_storage()
    resizable = storage.resizable()
    for value in (5, 6):
        native().take(storage, "tidelog: it is out")
        assert storage.nbytes() == 1024 and view.shape == (100,)
        for access in accesses(view):
            with pytest.raises(RuntimeError, match="it is out"):
                access()
        address = native().give(storage, 1024, "tidelog: it is coming")
        with pytest.raises(RuntimeError, match="it is coming"):
            view.sum()
        native().open_to_reads(storage)
        assert view.data_ptr() == address + 100 and storage.resizable() == resizable
        tensor.fill_(value)
        assert view.sum() == 100 * value


def test_a_bucket_is_guarded_against_writes_and_may_be_asked_for_what_it_shares():
    """DDP's reducer asks so in C++, between ops."""
    bucket = torch.full((16,), 3.0)
    storage = bucket.untyped_storage()
    record = native().record_for(storage)
    record.is_guarded = False
    for _ in range(2):
        native().take(storage, record.guard())
        for out in (True, False):
            assert torch._C._is_alias_of(bucket[2:], bucket) and not torch._C._is_alias_of(bucket, torch.ones(1))
            with native().Unseen(), pytest.raises(RuntimeError, match="data pointer"):
                bucket.fill_(1)
            if out:
                native().give(storage, 64, record.guard())
        native().open_to_reads(storage)
        assert bucket.fill_(1).sum() == 16


def test_an_empty_storage_counts_no_bytes_and_one_that_is_discarded_has_no_guard():
    tensor = torch.ones(1024)
    storage = tensor.untyped_storage()
    native().empty(storage, "tidelog: it is gone")
    assert storage.nbytes() == 0
    with pytest.raises(RuntimeError, match="it is gone"):
        storage.data_ptr()
    native().give(storage, 4096, None)
    storage.fill_(0)
    assert tensor.sum() == 0 and tensor.shape == (1024,)
    native().take(storage, "tidelog: it is out")
    native().discard(storage)
    assert storage.nbytes() == 0 and storage.tolist() == []
    storage.resize_(4096)
    assert tensor.fill_(1).sum() == 1024


def test_two_storages_have_each_others_memory_and_what_goes_with_it():
    array = numpy.ones(512, dtype=numpy.float32)
    one, other = torch.from_numpy(array), torch.full((1024,), 2.0)
    noted = []
    storages = one.untyped_storage(), other.untyped_storage()
    native().swap(*storages, None, lambda: noted.append(1))
    assert [each.nbytes() for each in storages] == [4096, 2048] and noted == [1]
    assert [each.resizable() for each in storages] == [True, False]
    assert one.sum() == 1024 and other[:512].sum() == 512


def test_no_version_counter_moves():
    tensor = torch.ones(16)
    before = tensor._version
    native().take(tensor.untyped_storage(), "it is out")
    native().give(tensor.untyped_storage(), 64, "it is out")
    native().open_to_reads(tensor.untyped_storage())
    assert tensor._version == before


def test_what_is_no_storage_is_refused():
    with pytest.raises(TypeError, match="incompatible"):
        native().take([torch.ones(3)], "it is out")
