"""Turns: what only the block's thread may do, another thread does while the block's is between two ops, or waits.

One thread at a time speaks to the session and moves storages. That is the block's, or one that works for it, such as
autograd's of a GPU. Another thread that needs what is out takes a turn. It says so first, so that the block's thread
stops where it would begin something next. Then it looks where that thread is. Is that not in the middle of anything (it
computes in Python, or waits for this very thread), or has it stopped, the turn has come.

Nobody takes a lock for that: an op of the block's thread costs one look at a list. Python's own lock orders the looks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

_POLL_SECONDS = 0.0002
# So long a thread may stand still in code of the program's that runs as a part of an op. It may wait for this one.
_STANDS_STILL_SECONDS = 5.0
_OPS_OF_TORCH = os.path.join("torch", "_ops.py")
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Who waits for a turn, or has it: a ticket each. The kernels in C++ look here, too: it is never replaced.
waiting: list[object] = []

get_ident = threading.get_ident


class Refused(Exception):
    """No turn will come: the threads would wait for each other."""


class _Block:
    """The block that is open, as turns need it."""

    def __init__(self) -> None:
        self.works_here: Callable[[], bool] = bool  # whether this thread is the block's, or stands in for it
        self.workers: Callable[[], tuple[int | None, ...]] = tuple  # those threads
        self.is_busy: Callable[[], bool] = bool  # whether what is written in C++ is in the middle of something
        self.is_busy_here: Callable[[], bool] = bool  # the same of this thread alone


class _Now:
    """State of the present turn: its owner, and the thread that stands still for it."""

    def __init__(self) -> None:
        self.holder: int | None = None  # has the turn, or is looking whether it has come
        self.depth = 0  # of its turn
        self.has_come = False
        self.stopped: set[int] = set()
        self.awaits_loans = False  # whether who moves storages waits until other threads have used one


_block = _Block()
_now = _Now()
# Code in which a thread that works for the block is in the middle of something, and code in which any thread is.
_codes_of_workers: set[CodeType] = set()
_codes_of_all: set[CodeType] = set()


def _forget() -> None:
    """A child of a fork has one thread."""
    global _now
    _now = _Now()
    del waiting[:]


os.register_at_fork(after_in_child=_forget)


def begin(
    works_here: Callable[[], bool],
    workers: Callable[[], tuple[int | None, ...]],
    is_busy: Callable[[], bool],
    is_busy_here: Callable[[], bool],
) -> None:
    """A block begins."""
    _block.works_here, _block.workers = works_here, workers
    _block.is_busy, _block.is_busy_here = is_busy, is_busy_here


def end() -> None:
    """Ends the turn."""
    _block.__init__()  # type: ignore[misc]


def is_middle(code: CodeType, *, of_any_thread: bool = False) -> None:
    """Says of code that who is in it, on a thread of the block's or on any, is in the middle of something."""
    _codes_of_workers.add(code)
    if of_any_thread:
        _codes_of_all.add(code)


def is_in(frame: FrameType | None, codes: set[CodeType] = _codes_of_workers) -> bool:
    """Returns whether this frame, or one that it was called from, is of this code."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


# -- the block's thread ---------------------------------------------------------------------------


def give_way(caller: FrameType | None, *, works: bool = False) -> None:
    """Gives way to waiting threads when this thread is about to begin something: those that wait have their turns
    first. Not where it is in the middle of something, or another thread than the block's. `works`: it is known to work
    for the block.
    """
    tickets, me = waiting[:], get_ident()
    if not tickets or me == _now.holder or not (works or _block.works_here()):
        return
    if is_in(caller) or _block.is_busy_here():
        return
    try:
        while True:
            _now.stopped.add(me)
            while _now.holder is not None or any(each in waiting for each in tickets):
                time.sleep(_POLL_SECONDS)
            # First this, then the look: a turn begins the other way round. Those that have come since wait for the next
            # time, or this thread would stand still for good.
            _now.stopped.discard(me)
            if _now.holder is None:
                return
    finally:
        _now.stopped.discard(me)


@contextlib.contextmanager
def awaiting_loans() -> Iterator[None]:
    """Makes the thread that moves storages wait until other threads have used one."""
    outer = _now.awaits_loans
    _now.awaits_loans = True
    try:
        yield
    finally:
        _now.awaits_loans = outer


# -- another thread -------------------------------------------------------------------------------


def is_mine() -> bool:
    """Returns whether this thread has the turn."""
    return _now.holder == get_ident() and _now.has_come


@contextlib.contextmanager
def taken(*, borrows: bool) -> Iterator[None]:
    """Waits until it is this thread's turn, and ends that. `borrows`: whether somebody may wait until this thread has
    used a storage. Raises `Refused` where waiting would not help."""
    if is_mine():
        yield
        return
    ticket = object()
    try:
        waiting.append(ticket)
        while waiting[0] is not ticket:
            _look_whether_it_helps(borrows)
            time.sleep(_POLL_SECONDS)
        _await_turn(borrows)
        yield
    finally:
        if _now.holder == get_ident():
            _now.has_come, _now.holder = False, None
        if ticket in waiting:
            waiting.remove(ticket)


def _await_turn(borrows: bool) -> None:
    still: tuple[object, float] = (None, 0.0)
    while True:
        _now.holder = get_ident()
        busy = _who_is_busy()
        if busy is None:
            _now.has_come = True
            return
        _now.holder = None
        _look_whether_it_helps(borrows)
        where = _place_of_program_in(busy)
        if where is None or where != still[0]:
            still = where, time.monotonic()
        elif time.monotonic() > still[1] + _STANDS_STILL_SECONDS:
            raise Refused("an op of the block waits for this thread")
        del busy
        time.sleep(_POLL_SECONDS)


def _look_whether_it_helps(borrows: bool) -> None:
    if borrows and _now.awaits_loans:
        raise Refused("the block waits until this thread has used another tensor")


def _who_is_busy() -> FrameType | _Busy | None:
    """Returns the frame in which another thread is busy. None: none is."""
    me, workers = get_ident(), _block.workers()
    if _block.is_busy():
        return _BUSY
    for thread, frame in sys._current_frames().items():
        if thread == me or thread in _now.stopped:
            continue
        if is_in(frame, _codes_of_workers if thread in workers else _codes_of_all):
            return frame
    return None


class _Busy:
    """Activity of code in C++ that is in the middle of something."""


_BUSY = _Busy()


def _place_of_program_in(busy: FrameType | _Busy) -> object:
    """Returns the place of the program's code that is called in the middle of an op; None: it is none."""
    if isinstance(busy, _Busy):
        return None
    file = busy.f_code.co_filename
    return None if file.startswith(_OURS) or file.endswith(_OPS_OF_TORCH) else (id(busy), busy.f_lasti)
