"""Signal handlers and finalizers of the program: they run as they do without a block, where `_whole` lets them."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog._whole import held, is_in_whole
from tidelog.dispatch._access import Access
from tidelog.escapes._launches import pointers_mean
from tidelog.native._built import native

# What those of the module `signal` call, whoever has kept them by another name.
_signal: Any = vars(signal)["_signal"]


class _Handler:
    """A handler of the program's, while a block is open."""

    def __init__(self, handlers: Handlers, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handlers = handlers
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if self._handlers.must_wait(frame):
            if number not in held:
                held.append(number)
            return None
        self._handlers.ran += 1
        with pointers_mean(None):  # whatever the frame that it interrupts asks for addresses for
            return self.handler(number, frame)


class Handlers:
    """The handlers and finalizers of one block's program."""

    def __init__(self, access: Access, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether what is not seen in frames is in the middle of something."""
        self._access = access
        self._is_busy = is_busy
        self.ran = 0  # handlers of the program's that have run
        self._collects_in: int | None = None  # the thread in which finalizers run inside an op, if there is one

    def must_wait(self, frame: FrameType | None) -> bool:
        """Returns whether this frame is interrupted in the middle of something."""
        if not self._access.is_live():
            return False
        # Where another thread does the work of the block's, both would be at work. Inside an op no other is seen.
        is_inside = native().is_inside()
        return self._access.is_replaced() or self._is_busy() or is_inside or is_in_whole(frame)

    def begin(self) -> None:
        """The block begins. Where its thread is not the one that handlers run in, they are another thread's code."""
        gc.callbacks.append(self._collects)
        if threading.current_thread() is not threading.main_thread():
            return
        _patches.replace(_signal, "getsignal", lambda original: lambda number: _handler_of(original(number)))
        _patches.replace(_signal, "signal", self._setting)
        for number in signal.valid_signals():
            if self._waits(handler := _signal.getsignal(number)):
                _signal.signal(number, handler)

    def end(self) -> None:
        """Ends the replacement, if it has begun. Before what `_patches` has replaced is put back."""
        if self._collects not in gc.callbacks:
            return
        gc.callbacks.remove(self._collects)
        original = getattr(_signal.signal, "__wrapped__", None)
        if original is not None and threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if self._waits(handler := _signal.getsignal(number)):
                    original(number, handler)

    def _setting(self, original: Wrapper) -> Wrapper:
        def wrapper(number: int, handler: Any) -> Any:
            return _handler_of(original(number, _Handler(self, handler) if self._waits(handler) else handler))

        return wrapper

    def _waits(self, handler: object) -> bool:
        """Returns whether a handler is code of the program's. Ours notes that the signal came, and asyncio's does
        nothing: it is told in another way.
        """
        module = getattr(handler, "__module__", None) or ""
        is_plain = handler is signal.default_int_handler or module == "asyncio.unix_events"
        return callable(handler) and not is_plain and not module.startswith("tidelog.")

    def _collects(self, phase: str, _info: object) -> None:
        """The collector is about to run, and has run, in whatever thread."""
        thread = threading.get_ident()
        if phase == "start":
            if self._access.is_live() and native().finalizers_begin():
                self._collects_in = thread
        elif self._collects_in == thread:
            self._collects_in = None
            native().finalizers_end()


def _handler_of(handler: Any) -> Any:
    """Returns the handler that the program has set."""
    return handler.handler if isinstance(handler, _Handler) else handler
