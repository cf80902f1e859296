"""Stops a migration half way, where the tests want to touch: a copy is being written, or bytes are being read."""

from tidelog.memory import _record
from tidetest.requests import until_it_waits

ATTEMPTS = 20


def begin_eviction(tide, tensor):
    """The tensor's bytes are being copied out: its memory is in the engine's hands then, and what comes of that is not
    processed."""
    for _ in range(ATTEMPTS):  # on a fast disk the write may be over before it is seen under way
        tide.restore(tensor)
        tide.access.wrote(tensor.untyped_storage())  # what has a copy already leaves without a write
        tide.steps.end_touch()
        record = tensor.untyped_storage()._tide
        number = tide.ledger.number_of(record)
        until_it_waits(tide, lambda: tide.session.evict(number), lambda: record.state == _record.LEAVING)
        if record.state == _record.LEAVING:
            return
    raise AssertionError(f"in {ATTEMPTS} attempts each write was over before it was seen under way: {record.state}")


def begin_fetch(tide, tensor):
    """The tensor has memory again, and a device is writing its bytes there."""
    record = tensor.untyped_storage()._tide
    uses = {record.id: 0}
    for _ in range(ATTEMPTS):
        until_it_waits(
            tide,
            lambda: tide.session.op_begin(-1, 0, b"half a fetch", uses, 0),
            lambda: record.state == _record.COMING,
        )
        if record.state == _record.COMING:
            return
        tide.evict(tensor)
    raise AssertionError(f"in {ATTEMPTS} attempts each read was over before it was seen under way: {record.state}")


def is_moving(tensor):
    """Returns whether a device may be reading or writing the tensor's memory."""
    record = tensor.untyped_storage()._tide
    return record is not None and record.state in (_record.LEAVING, _record.COMING)
