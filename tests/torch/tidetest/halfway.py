"""Stops a migration half way, where the tests want to touch: a copy is being written, or bytes are being read."""

import array

from tidelog import _native, _record


def _begin(tide, status):
    assert status == _native.ACTION, status
    tide._perform()  # hands the memory to the engine; what comes of it is not taken in


def begin_eviction(tide, tensor):
    """The tensor's bytes are being copied out."""
    tide.restore(tensor)
    tide._hook.end_touch()
    record = tensor.untyped_storage()._tide
    _begin(tide, tide._library.tide_session_evict(tide._sync(), record.id))
    assert record.state == _record.LEAVING, record.state


def begin_fetch(tide, tensor):
    """The tensor has memory again, and a device is writing its bytes there."""
    record = tensor.untyped_storage()._tide
    uses = array.array("I", [record.id])
    address, count = uses.buffer_info()
    begin = tide._library.tide_session_op_begin
    _begin(tide, begin(tide._sync(), -1, 0, b"half a fetch", address, count, 0))
    assert record.state == _record.COMING, record.state


def is_moving(tensor):
    """Whether a device may be reading or writing the tensor's memory."""
    record = tensor.untyped_storage()._tide
    return record is not None and record.state in (_record.LEAVING, _record.COMING)
