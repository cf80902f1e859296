"""The C ABI of libtidelog (include/tidelog.h), as ctypes sees it. No policy here."""

import ctypes
import os
import pathlib

from tidelog import _errors

# tide_status: what a call answers. Below zero: an error, whose text `last_error` gives.
READY = 0
ACTION = 1
WAITING = 2

# tide_action.kind: what only the caller can do to a storage's memory.
EVICT = 1
RELEASE = 2
ALLOCATE = 3
SETTLE = 4

NO_STORAGE = 0xFFFFFFFF

_EXCEPTIONS = {
    -1: _errors.Error,  # invalid argument or internal error
    -2: _errors.PoolError,
    -3: _errors.DeviceError,
    -4: _errors.BudgetError,
    -5: _errors.ForkedError,
    -6: _errors.Error,  # stale handle
    -7: _errors.Error,  # a panic, caught at the boundary
}


class Action(ctypes.Structure):
    _fields_ = [
        ("sequence", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("storage", ctypes.c_uint32),
    ]


class SessionOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("devices", ctypes.c_char_p),
        ("data_path", ctypes.c_char_p),
        ("budget", ctypes.c_uint64),
        ("staging", ctypes.c_uint64),
        ("host_memory", ctypes.c_uint64),
        ("pool_size", ctypes.c_uint64),
        ("share", ctypes.c_uint32),
        ("buffered", ctypes.c_uint8),
        ("reactive", ctypes.c_uint8),
        ("policy", ctypes.c_uint8),
        ("gpu", ctypes.c_uint8),
        ("must_exist", ctypes.c_uint64),
    ]


_u32, _u64, _i64, _int = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int
_ptr, _text = ctypes.c_void_p, ctypes.c_char_p

_SIGNATURES = {
    "tide_version": (_text, []),
    "tide_last_error": (ctypes.c_size_t, [_text, ctypes.c_size_t, ctypes.POINTER(_u32)]),
    "tide_session_open": (_int, [ctypes.POINTER(SessionOptions), ctypes.POINTER(_u64)]),
    "tide_session_close": (_int, [_u64]),
    "tide_session_attention": (_ptr, [_u64]),
    "tide_session_set_budget": (_int, [_u64, _u64]),
    "tide_session_sync": (_int, [_u64, _ptr, ctypes.c_size_t, _ptr, ctypes.c_size_t]),
    "tide_session_name": (_int, [_u64, _u32, _u32, _text]),
    "tide_session_resized": (_int, [_u64, _u32, _u64]),
    "tide_session_modified": (_int, [_u64, _u32]),
    "tide_session_pin": (_int, [_u64, _u32, _int]),
    "tide_session_evict": (_int, [_u64, _u32]),
    "tide_session_step": (_int, [_u64, _int]),
    "tide_session_op_begin": (_int, [_u64, _i64, _u64, _text, _ptr, ctypes.c_size_t, _u64]),
    "tide_session_op_end": (_int, [_u64]),
    "tide_session_settle": (_int, [_u64]),
    "tide_session_resume": (_int, [_u64]),
    "tide_session_wait": (_int, [_u64, _u32]),
    "tide_session_next_action": (_int, [_u64, ctypes.POINTER(Action)]),
    "tide_session_action_done": (_int, [_u64, _u64, _u64, _ptr]),
    "tide_session_durations": (_int, [_u64, _ptr, ctypes.c_size_t]),
    "tide_session_leave_plan": (_int, [_u64]),
    "tide_session_plan": (_int, [_u64, ctypes.POINTER(_ptr), ctypes.POINTER(_u64)]),
    "tide_session_stats": (ctypes.c_size_t, [_u64, _text, ctypes.c_size_t]),
    "tide_session_simulate": (ctypes.c_size_t, [_u64, _text, ctypes.c_size_t]),
    "tide_session_report": (_int, [_u64, _text]),
    "tide_session_trace": (_int, [_u64, _text]),
}


def _candidates():
    if "TIDELOG_LIBRARY" in os.environ:
        return [pathlib.Path(os.environ["TIDELOG_LIBRARY"])]
    package = pathlib.Path(__file__).resolve().parent
    checkout = package.parents[2]
    return [
        package / "libtidelog.so",
        checkout / "target" / "release" / "libtidelog.so",
        checkout / "target" / "debug" / "libtidelog.so",
    ]


def load():
    """Opens libtidelog and declares its functions. Raises an error that lists where it looked."""
    tried = _candidates()
    for path in tried:
        if path.exists():
            library = ctypes.CDLL(str(path))
            break
    else:
        raise _errors.Error(
            "libtidelog.so was not found; build it with `cargo build --release -p tidelog-torch`, or set "
            "TIDELOG_LIBRARY to its path. Looked at: " + ", ".join(map(str, tried))
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def last_error(library, code):
    """The exception for a negative status, and the storage it is about (or None)."""
    storage = _u32(NO_STORAGE)
    length = library.tide_last_error(None, 0, ctypes.byref(storage))
    text = ctypes.create_string_buffer(length + 1)
    library.tide_last_error(text, length + 1, None)
    error = _EXCEPTIONS.get(code, _errors.Error)
    about = None if storage.value == NO_STORAGE else storage.value
    return error, text.value.decode(errors="replace"), about


def text_of(fetch):
    """The string of a `(buffer, capacity) -> length` function of the ABI."""
    length = fetch(None, 0)
    while True:
        buffer = ctypes.create_string_buffer(length + 1)
        actual = fetch(buffer, length + 1)
        if actual <= length:
            return buffer.value.decode()
        length = actual
