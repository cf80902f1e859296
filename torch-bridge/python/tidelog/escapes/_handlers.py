"""Signal handlers and finalizers of the program: they run as they do without a block, where `_whole` lets them."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog._whole import held, is_in_whole
from tidelog.dispatch._access import Access
from tidelog.dispatch._hook import Hook
from tidelog.escapes._launches import pointers_mean
from tidelog.escapes._threads import Bystander, is_covered
from tidelog.storages._ops import Args, Kwargs, OpOverload, any_wrapper

# What those of the module `signal` call, whoever has kept them by another name.
_signal: Any = vars(signal)["_signal"]
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_mode_at: Callable[[int], object] = torch._C._get_dispatch_stack_at
_is_excluded: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_excluded
_push_mode: Callable[[TorchDispatchMode], None] = torch._C._push_on_torch_dispatch_stack
_pop_mode: Callable[[None], object] = torch._C._pop_torch_dispatch_stack


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
        with pointers_mean(None):  # whatever the frame that it interrupts asks for addresses for
            return self.handler(number, frame)


class Inside(TorchDispatchMode):
    """Has ops of finalizers that run in the middle of an op come to the hook as what they are. Torch has taken that
    mode away there.
    """

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self._hook = hook

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return Hook.ignore_compile_internals()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if types and any_wrapper(args, kwargs or {}):
            return NotImplemented
        return self._hook.inside(func, args, kwargs or {})


class Handlers:
    """The handlers and finalizers of one block's program."""

    def __init__(self, access: Access, hook: Hook, bystander: Bystander, is_busy: Callable[[], bool]) -> None:
        """`is_busy`: whether what is written in C++ is in the middle of something."""
        self._bystander = bystander
        self._access = access
        self._hook = hook
        self._inside = Inside(hook)
        self._is_busy = is_busy
        self._pushed_in: int | None = None  # the thread in which a finalizer's ops come here, if there is one

    def must_wait(self, frame: FrameType | None) -> bool:
        """Whether this frame is interrupted in the middle of something."""
        if not self._access.is_live():
            return False
        # Where another thread does the work of the block's, both would be at work. And torch has code of its own in
        # Python on the way to the mode and from it, without which the handler's ops would be seen by nobody.
        return self._access.is_replaced() or self._is_busy() or not self._is_on() or is_in_whole(frame)

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
        """It ends, if it has begun. Before what `_patches` has replaced is put back."""
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
        """Whether a handler is code of the program's. Ours notes that the signal came, and asyncio's does nothing: it
        is told in another way.
        """
        module = getattr(handler, "__module__", None) or ""
        is_plain = handler is signal.default_int_handler or module == "asyncio.unix_events"
        return callable(handler) and not is_plain and not module.startswith("tidelog.")

    def _collects(self, phase: str, _info: object) -> None:
        """The collector is about to run, and has run, in whatever thread."""
        thread = threading.get_ident()
        if phase == "start":
            mode = self._mode_for_finalizers() if self._access.is_live() else None
            if mode is not None:
                _push_mode(mode)
                self._pushed_in = thread
        elif self._pushed_in == thread:
            self._pushed_in = None
            _pop_mode(None)

    def _mode_for_finalizers(self) -> TorchDispatchMode | None:
        """By which ops of finalizers are seen in this thread; None: they are."""
        if self._access.is_elsewhere():
            return None if is_covered(self._access) else self._bystander
        return None if self._is_on() else self._inside

    def _is_on(self) -> bool:
        is_cut_off = _is_excluded(torch._C.DispatchKey.PythonTLSSnapshot)
        return not is_cut_off and any(_mode_at(place) is self._hook for place in range(_count_modes()))


def _handler_of(handler: Any) -> Any:
    """What the program has set."""
    return handler.handler if isinstance(handler, _Handler) else handler
