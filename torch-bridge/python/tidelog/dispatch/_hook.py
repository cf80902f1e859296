"""Part of ops that is done in Python: what is rare, and what is done once for an op. All else is decided and done by
the kernels in C++ (native/kernel.h), which call this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tidelog import _turns
from tidelog._turns import give_way
from tidelog._whole import collect, come_again, held, is_collecting, stop_collecting, take_held, whole
from tidelog.dispatch._dispatch import get_compiler, set_compiler
from tidelog.dispatch._steps import Steps
from tidelog.memory import _record
from tidelog.memory._heap import Cache, Heap
from tidelog.memory._record import run_updates
from tidelog.native._built import native
from tidelog.native._module import Record
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ops import (
    Args,
    Facts,
    Kwargs,
    Launch,
    Op,
    OpOverload,
    expected,
    holders_of,
    info_of,
    storages_of,
)


class Observer(Protocol):
    """Function that is called with an op."""

    def __call__(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], Any], /) -> Any:
        """Returns what it returns. `run` has torch run it with these arguments."""


class Services(NamedTuple):
    """The functions that the kernels call, in the order of `Services` in native/services.h."""

    facts: Callable[[Op, int], Facts]  # of an op that is met for the first time, with so many arguments
    expect: Callable[[Op, Args, Kwargs], int]  # the bytes of its results, where they were not seen with these shapes
    touch_updates: Callable[[Op, Args, Kwargs], None]  # updates that have not run hang on what the op uses
    in_python: Observer  # runs an op that may be written in Python
    compose: Observer  # the same of one that is made of others, which are seen
    bystander: Observer  # the same in another thread than the block's
    began: Callable[[OpOverload, Args, Kwargs, Any], None]  # an op has returned that may go on
    look: Callable[[], object]  # whether such ops have ended
    left_plan: Callable[[int, str, str | None], None]  # at this op another one ran than the one that was planned
    make_room: Callable[[str, str, int, int], None]  # the device had no memory: what it said, for which op, and needs
    make_usual: Callable[[_record.Storage], None]  # a storage may be resized
    refuse_in_child: Callable[[Record], None]  # in a child of a fork an op uses it
    give_way: Callable[[], None]  # other threads wait for their turns
    allocated: Callable[[int], None]  # so many bytes were
    get_compiler: Callable[[], object]  # what torch.compile looks at entered frames with
    set_compiler: Callable[[object], object]  # changes that, and returns what it was


class Pending(Protocol):
    """Updates that have not run."""

    pending: dict[int, Any]  # never replaced
    is_running: bool  # whether one runs: its ops use no storages of another one


class Hook:
    """Part of ops that is done in Python, in one block."""

    def __init__(self, steps: Steps, heap: Heap | Cache, async_uses: AsyncUses, updates: Pending) -> None:
        self._steps = steps
        self._heap = heap
        self._async_uses = async_uses
        self._updates = updates

    def services(self, bystander: Observer) -> Services:
        """Returns the functions that the kernels call."""
        return Services(
            facts=_facts,
            expect=expected,
            touch_updates=self._touch_updates,
            in_python=_in_python,
            compose=whole(self._async_uses.launch),
            bystander=bystander,
            began=self._began,
            look=self._async_uses.look,
            left_plan=self._steps.left_plan,
            make_room=self._steps.make_room,
            make_usual=self._steps.make_usual,
            refuse_in_child=_record.refuse_in_child,
            give_way=_give_way,
            allocated=self._heap.allocated,
            get_compiler=get_compiler,
            set_compiler=set_compiler,
        )

    def launch(self, func: Launch, args: Args, kwargs: Kwargs) -> Any:
        """A kernel that gets addresses is about to be launched: it is an op like any other."""
        if self._updates.pending:
            run_updates(storages_of(args, kwargs))
        return self._launch(func, args, kwargs)

    @whole
    def _launch(self, func: Launch, args: Args, kwargs: Kwargs) -> Any:
        return native().launch(func, args, kwargs)

    @whole
    def _touch_updates(self, func: Op, args: Args, kwargs: Kwargs) -> None:
        if not self._updates.is_running:
            for holder in holders_of(args, kwargs):
                if (update := native().update_on(holder)) is not None:
                    update.touch(func)

    def _began(self, func: OpOverload, args: Args, kwargs: Kwargs, result: Any) -> None:
        self._async_uses.began(info_of(func), args, kwargs, result)


def _facts(func: Op, count: int) -> Facts:
    return func.facts(count) if isinstance(func, Launch) else info_of(func).facts


def _in_python(_func: Op, _args: Args, _kwargs: Kwargs, run: Callable[[], Any]) -> Any:
    """An op may be written in Python. Who looks where its thread is finds a frame of it."""
    # As `whole` does it, without giving way: the op has begun.
    collects = is_collecting()
    try:
        collects = bool(stop_collecting()) or collects
        return run()
    finally:
        if collects:
            collect()
        if held:
            [*map(come_again, take_held())]


_turns.is_middle(_in_python.__code__, of_any_thread=True)


def _give_way() -> None:
    give_way(sys._getframe(1), works=True)


# From where it has stood still on, until the kernel counts the op.
_turns.is_middle(_give_way.__code__)
