"""Stops a migration half way, where the tests want to touch: a copy is being written, or bytes are being read."""

from tidelog.abi._library import Status
from tidelog.memory import _record

ATTEMPTS = 20


def _begin(tide, record, status, before):
    """Until the storage is half way: its memory is in the engine's hands then, and what comes of
    that is not processed.
    """
    session = tide.session
    while True:
        if status == Status.ACTION:
            tide.performer.perform()
        if record.state not in before:
            return
        # Others make room first, or have to arrive.
        assert status in (Status.ACTION, Status.WAITING), status
        status = session.resume() if status == Status.ACTION else session.wait(50)


def begin_eviction(tide, tensor):
    """The tensor's bytes are being copied out."""
    for _ in range(ATTEMPTS):  # on a fast disk the write may be over before it is seen under way
        tide.restore(tensor)
        tide.access.wrote(tensor.untyped_storage())  # what has a copy already leaves without a write
        tide._hook.end_touch()
        record = tensor.untyped_storage()._tide
        status = tide.session.evict(tide.ledger.number_of(record))
        _begin(tide, record, status, (_record.SETTLED, _record.CLEAN))
        if record.state == _record.LEAVING:
            return
    raise AssertionError(f"in {ATTEMPTS} attempts each write was over before it was seen under way: {record.state}")


def begin_fetch(tide, tensor):
    """The tensor has memory again, and a device is writing its bytes there."""
    record = tensor.untyped_storage()._tide
    status = tide.session.op_begin(-1, 0, b"half a fetch", {record.id: 0}, 0)
    _begin(tide, record, status, (_record.OUT,))
    assert record.state == _record.COMING, record.state


def is_moving(tensor):
    """Whether a device may be reading or writing the tensor's memory."""
    record = tensor.untyped_storage()._tide
    return record is not None and record.state in (_record.LEAVING, _record.COMING)
