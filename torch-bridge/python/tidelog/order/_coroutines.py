"""Functions that are suspended and resumed: each runs in a thread of its own, but only one at a time.

A forward pass that is suspended between two blocks keeps all that its Python frames hold. A generator
could not stop there, as the frames in between are the program's.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tidelog.native._built import loaded, native

# After Ctrl-C a function that comes to its next block by itself is not interrupted in between.
_SECONDS_TO_NEXT_BLOCK = 1.0
_SECONDS_BETWEEN_LOOKS = 0.5
_DEVICES = ("cpu", "cuda")  # that autocast is carried over for


class Cancelled(BaseException):
    """Ends a function that is not to go on. Code that catches every Exception does not catch it."""


class Coroutine:
    """A function that runs whenever it is resumed, until it suspends itself or returns.

    `when_changed` gets the thread that runs from now on; None: the caller's. Ctrl-C may come between any two
    bytecodes of the caller. Where it keeps a function from being cancelled, its thread ends when this is gone.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        surroundings: Surroundings,
        when_changed: Callable[[int | None], None],
        is_busy: Callable[[], bool],
    ) -> None:
        """`is_busy`: whether what runs must not be interrupted now."""
        self._when_changed = when_changed
        self._is_busy = is_busy
        self._thread = thread = _Thread(function, surroundings)
        weakref.finalize(self, _Thread.orphan, thread)
        thread.start()

    @property
    def ident(self) -> int:
        """The thread's number."""
        assert self._thread.ident is not None
        return self._thread.ident

    @property
    def has_ended(self) -> bool:
        """Returns whether the function has returned."""
        return self._thread.has_ended

    def take_result(self) -> Any:
        """Returns the result, which nothing holds any more."""
        result, self._thread.result = self._thread.result, None
        return result

    def resume(self) -> None:
        """Returns when the function has suspended itself, or has ended. Raises what it raises."""
        # The cache is the process's, and what is in it belongs to the graph of one micro-batch.
        torch.clear_autocast_cache()
        try:
            self._when_changed(self.ident)
            self._thread.go.put(None)
            self._thread.await_back()
        except BaseException as error:  # of a signal's handler: Ctrl-C
            self.cancel(type(error))
            raise
        self._when_changed(None)
        torch.clear_autocast_cache()
        raised, self._thread.error = self._thread.error, None
        if raised is not None:
            raise raised

    def suspend(self) -> None:
        """Called by the function: returns when it is resumed."""
        self._thread.suspend()

    def cancel(self, interrupt: type[BaseException] | None = None) -> None:
        """Ends the function where it is, and waits until it has ended. `interrupt`: what it gets in
        case that it runs right now, and goes on running. Where it takes no notice, another Ctrl-C ends the wait."""
        thread = self._thread
        thread.is_cancelled = True
        while thread.is_alive():
            try:
                self._when_changed(self.ident)
                thread.go.put(None)  # one too many harms nobody
                thread.join(_SECONDS_TO_NEXT_BLOCK)
                if interrupt is not None and thread.is_alive() and not self._is_busy():
                    number, kind = ctypes.c_ulong(self.ident), ctypes.py_object(interrupt)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(number, kind)
            except KeyboardInterrupt:
                if interrupt is not None:
                    thread.orphan()
                    break
                interrupt = KeyboardInterrupt
        self._when_changed(None)
        thread.error = None


class _Thread(threading.Thread):
    """Thread that holds nothing of the caller, so that the caller's side may go first."""

    def __init__(self, function: Callable[[], Any], surroundings: Surroundings) -> None:
        super().__init__(name="tidelog micro-batch", daemon=True)
        self.go: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.back: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = self.is_cancelled = self.is_orphan = False
        self._work: tuple[Callable[[], Any], Surroundings] | None = (function, surroundings)

    def run(self) -> None:
        try:
            self.go.get()
            if not self.is_cancelled and self._work is not None:
                function, surroundings = self._work
                self.result = surroundings.run(function)
        except BaseException as error:
            self.error = error
        finally:
            function = surroundings = self._work = None  # type: ignore[assignment]
            self.has_ended = True
            self.back.put(None)

    def await_back(self) -> None:
        """Returns when the function has suspended itself, or has ended."""
        while True:
            # A signal that comes just before the wait begins is seen after it only.
            with contextlib.suppress(queue.Empty):
                self.back.get(timeout=_SECONDS_BETWEEN_LOOKS)
                return

    def suspend(self) -> None:
        if not self.is_cancelled:
            self.back.put(None)
            self.go.get()
        if self.is_orphan and (module := loaded()):  # nobody waits while it ends, no block either
            module.works(False)
        if self.is_cancelled:
            raise Cancelled

    def orphan(self) -> None:
        if not self.has_ended:
            self.is_cancelled = self.is_orphan = True
            self.go.put(None)


class Surroundings:
    """State that torch and Python keep for each thread, of the thread that makes this."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._has_grad = torch.is_grad_enabled()
        self._autocasts = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES
        ]
        self._caches_casts = torch.is_autocast_cache_enabled()
        self._modes = [torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())]
        self._function_modes = [
            torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())
        ]
        self._default_device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        self._saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        self._works = (module := loaded()) is not None and module.works_here()  # for the block that is open
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None

    def run(self, function: Callable[[], Any]) -> Any:
        """Runs a function in another thread as it would have run in the first. The thread ends with it,
        so nothing of this is undone."""
        torch.set_grad_enabled(self._has_grad)
        for device, is_on, dtype in self._autocasts:
            torch.set_autocast_enabled(device, is_on)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._caches_casts)
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)
            torch.cuda.set_stream(self._stream)
        if self._saved_tensors_hooks is not None:
            torch._C._autograd._push_saved_tensors_default_hooks(*self._saved_tensors_hooks)
        if self._default_device is not None:
            torch._GLOBAL_DEVICE_CONTEXT.device_context = self._default_device
        for mode in self._function_modes:
            torch._C._push_on_torch_function_stack(mode)
        for mode in self._modes:
            torch._C._push_on_torch_dispatch_stack(mode)
        if self._works:
            native().works(True)
        return self._context.copy().run(function)
