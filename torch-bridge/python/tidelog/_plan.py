"""The plan that a session follows, as the hook needs it: which op is expected, and which has something due."""

import ctypes


class Plan:
    __slots__ = ("due", "funcs", "needs", "ops")

    def __init__(self, library, handle, funcs, needs):
        address, count = ctypes.c_void_p(), ctypes.c_uint64()
        library.tide_session_plan(handle, ctypes.byref(address), ctypes.byref(count))
        self.ops = min(count.value, len(funcs))
        self.due = bytes(ctypes.string_at(address.value, count.value)) if count.value else b""
        self.funcs = funcs
        self.needs = needs
