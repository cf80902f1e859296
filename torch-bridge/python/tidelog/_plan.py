"""The plan that a session follows, as the hook needs it: which op is expected, and which has something due."""

import ctypes


class Plan:
    __slots__ = ("due", "funcs", "needs", "ops")

    def __init__(self, library, handle, funcs, needs):
        self.funcs = funcs
        self.needs = needs
        self.read(library, handle)

    def read(self, library, handle):
        """Takes over what is due when: a step may begin with a new plan for the same ops."""
        address, count = ctypes.c_void_p(), ctypes.c_uint64()
        library.tide_session_plan(handle, ctypes.byref(address), ctypes.byref(count))
        self.ops = min(count.value, len(self.funcs))
        self.due = bytes(ctypes.string_at(address.value, count.value)) if count.value else b""
