"""Sections that run as a whole: no signal handler and no finalizer of the program runs in the middle of it.

Without a block an op is one call of C, and so is most of what reads a tensor's memory. Inside one they are Python of
ours, too, and Python runs handlers of signals between any two bytecodes, and finalizers wherever its garbage collector
finds that it is time. One that computes, saves or checkpoints there would have an op's tensors leave after they have
come for it, and find requests and tables half done. So handlers wait until what runs as a whole has returned, and the
collector is off meanwhile.

Python's own handler of Ctrl-C does not wait: it only raises an error, which everything here is made for.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from tidelog import _turns
from tidelog._turns import give_way, waiting

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# As if a signal had come: Python calls its handler soon. None of bytecode, as the next three.
come_again: Callable[[Any], None] = _thread.interrupt_main
is_collecting, collect = gc.isenabled, gc.enable
# Says whether it was collecting, too: another thread may have begun or ended something in between.
stop_collecting: Callable[[], int] = ctypes.pythonapi.PyGC_Disable

# Numbers of the signals whose handlers wait. The kernels in C++ have them come again, too: it is never replaced.
held: list[int] = []
os.register_at_fork(after_in_child=held.clear)


def whole(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Has a function run as a whole."""

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if waiting:
            give_way(sys._getframe(1))
        collects = is_collecting()
        try:
            collects = bool(stop_collecting()) or collects
            return function(*args, **kwargs)
        finally:
            if collects:
                collect()
            # Python looks for signals after a call, and not after a list is made: so it is the caller that finds them.
            if held:
                [*map(come_again, take_held())]

    is_whole(call)
    return call


def is_whole(function: Callable[..., object]) -> None:
    """Says of a function that does the same by itself that it runs as a whole."""
    _turns.is_middle(function.__code__)


def take_held() -> Iterable[int]:
    """The signals whose handlers wait; none in another thread than that of handlers, where others may be in the
    middle of something."""
    if threading.current_thread() is not threading.main_thread():
        return ()
    numbers = held[:]
    del held[:]
    return numbers


def is_in_whole(frame: FrameType | None) -> bool:
    """Returns whether this frame is a part of what runs as a whole."""
    return _turns.is_in(frame)
