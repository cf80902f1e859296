"""Calls of blocks that are named to `offload`: regions that the program has run once, and that may run again in the
backward pass, as if they were under `torch.utils.checkpoint`, where that is better.

No second run may show. So the program's own steps are looked at first: what a block uses and changes, and what is
changed of it before its backward pass, which is when a second run would read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tidelog import _errors
from tidelog.memory._record import Holder
from tidelog.native._built import native
from tidelog.native._module import Record
from tidelog.order._chains import CallsOfClasses, CallsSeen
from tidelog.recompute._regions import Key, Region, Regions
from tidelog.storages._ops import Args, Kwargs, Op, holders_in, holders_of, modified

# What a second run finds as the first one did, but for the bytes of tensors.
_PLAIN = (Tensor, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Generator)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Uses:
    """The storages of one region's first run, by their numbers."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.made: set[int] = set()
        self.read: set[int] = set()  # of others


class Blocks:
    """The named blocks of an offload block."""

    def __init__(self, calls: CallsSeen | CallsOfClasses, regions: Regions) -> None:
        self.again: dict[int, Key] = {}  # calls that run again, by their places in the step
        self._calls = calls
        self._regions = regions
        self._uses: _Uses | None = None  # of the call that runs now, in a step of the program's own
        self._waiting: list[_Uses] = []  # of those whose backward pass has not begun
        regions.are_named = True

    def begin(self) -> None:
        """Begins to watch calls."""
        self._calls.begin(self._call)

    def close(self) -> None:
        """Ends watching calls."""
        self._calls.close()

    def begin_step(self) -> None:
        """A step begins."""
        self._uses, self._waiting = None, []

    def end_step(self) -> None:
        """Ends the step."""
        for uses in self._waiting:
            uses.region.refuse("it has no backward pass in its step")

    # -- calls -----------------------------------------------------------------------------------

    def _call(self, block: nn.Module, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        function, given = _of_positions(original, block, args, kwargs)
        regions = self._regions
        region = regions.called(function, given, True, {}) if regions.looks or self.again else None
        if region is None:
            return original(block, *args, **kwargs)
        if (why := _why_not(block, args, kwargs)) is not None:
            region.refuse(why)
        if self._runs_again(region):
            return regions.again(region, _checked(block, function), given)
        regions.kept += 1
        uses = _Uses(region)
        self._uses = uses
        try:
            with regions.runs(region):
                result = original(block, *args, **kwargs)
        finally:
            self._uses = None
        if regions.looks and not self.again:
            self._await_backward(uses, result)
        return result

    def _runs_again(self, region: Region) -> bool:
        place = len(self._regions.of_step) - 1
        return region.why is None and self.again.get(place) == region.key

    def _await_backward(self, uses: _Uses, result: Any) -> None:
        nodes = {each.grad_fn for each in tree_leaves(result) if isinstance(each, Tensor) and each.grad_fn is not None}
        if not nodes:
            uses.region.refuse("it makes nothing that has a gradient")
            return
        self._waiting.append(uses)

        def begins(_gradients: Any) -> None:
            if uses in self._waiting:
                self._waiting.remove(uses)

        for node in nodes:
            node.register_prehook(begins)

    # -- ops of steps that are looked at ------------------------------------------------------------

    def saw(self, func: Op, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op has run."""
        self._regions.saw(func, args, kwargs, result)
        if self.again:
            return
        written = dict(_numbers(modified(func, args, kwargs)))
        gathered = self._regions.gathers.of(modified(func, args, kwargs)) if self._regions.gathers.is_gathering else ()
        for waiting in self._waiting:
            if not waiting.region.gathered.keys().isdisjoint(gathered):
                continue  # whether the bytes are others is found when all have come
            for number in waiting.read & written.keys():
                waiting.region.refuse(f"{written[number].describe()}, which it reads, changes before its backward pass")
        if (uses := self._uses) is not None:
            for number in written.keys() - uses.made:
                uses.region.refuse(f"it changes {written[number].describe()}")
            used = {number for number, _ in _numbers(holders_of(args, kwargs))}
            made: list[Holder] = []
            holders_in(result, made)
            uses.read |= used - uses.made
            uses.made |= {number for number, _ in _numbers(made)} - used


def _of_positions(
    original: Callable[..., Any], block: nn.Module, args: Args, kwargs: Kwargs
) -> tuple[Callable[..., Any], Args]:
    """A call without keywords: `checkpoint` saves the random state of the GPUs that other arguments are on."""
    names, count = tuple(kwargs), len(args)

    def call(*given: Any) -> Any:
        return original(block, *given[:count], **dict(zip(names, given[count:])))

    return call, (*args, *kwargs.values())


def _checked(block: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose second run raises where the bytes that it reads are no longer those of the first one. In the
    steps that were looked at they were."""
    first: list[int] = []

    def run(*args: Any) -> Any:
        arguments = tree_leaves(args)
        read = (*block.parameters(), *block.buffers(), *(each for each in arguments if isinstance(each, Tensor)))
        versions = [tensor._version for tensor in read]
        if first and versions != first:
            raise _errors.OrderError(
                f"a {type(block).__name__} of blocks= was to run again in the backward pass, but a tensor that it reads "
                "has changed since it ran. Leave that block out of blocks=."
            )
        first[:] = versions
        return function(*args)

    return run


def _numbers(holders: Iterable[Holder]) -> Iterator[tuple[int, Record]]:
    for holder in holders:
        if (record := native().record_in(holder)) is not None:
            yield record.id, record


def _why_not(block: nn.Module, args: Args, kwargs: Kwargs) -> str | None:
    for value in (*args, *kwargs.values()):
        if (other := _not_plain(value)) is not None:
            return f"an argument of it is a {type(other).__name__}, which a second run may find as another"
    for module in block.modules():
        if any(getattr(module, hooks, None) for hooks in _HOOKS):
            return f"{type(module).__name__} has hooks, which would see a second run"
    if torch._C._current_graph_task_id() != -1:
        return "it is called in a backward pass"
    return None


def _not_plain(value: Any) -> Any:
    """Returns the numbers and tensors of a value; None: nothing."""
    if type(value) is tuple:
        return next((other for each in value if (other := _not_plain(each)) is not None), None)
    return None if isinstance(value, _PLAIN) else value
