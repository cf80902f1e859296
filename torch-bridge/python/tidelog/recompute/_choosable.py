"""Choices of recomputation: regions under `torch.utils.checkpoint`, which a program runs twice, or calls of blocks that
are named to `offload`, which it runs once.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from tidelog.order._chains import CallsOfClasses, CallsSeen
from tidelog.output._figures import RegionChoice
from tidelog.recompute._blocks import Blocks
from tidelog.recompute._regions import Key, Region, Regions
from tidelog.storages._ops import Args, Kwargs, Op

# In percent of the program's own step: nothing else is worth a change, by the planner.
_WORTH = 98


class Decision(NamedTuple):
    """Decision by the planner's choice."""

    otherwise: Sequence[int]  # places of regions that run otherwise than the program has them: none, and all stays
    why: str
    seconds: tuple[float, float] | None = None  # such a step, and the program's own, as the planner expects them


class Choosable(abc.ABC):
    """The regions of one kind in the steps of a block."""

    runs_twice: ClassVar[bool]  # as the program has it: then the planner can choose from its own steps
    own_way: ClassVar[str]  # what all do as the program has it
    other_way: ClassVar[str]  # and those that do not
    whatever: ClassVar[str]  # what those do that have no choice
    no_choice: ClassVar[str]  # where none has one
    callee: ClassVar[str]  # what a step has to call

    def __init__(self, regions: Regions) -> None:
        self.regions = regions

    @property
    @abc.abstractmethod
    def otherwise(self) -> dict[int, Key]:
        """Returns the regions that run otherwise than the program has them, by their places in the step."""

    @otherwise.setter
    @abc.abstractmethod
    def otherwise(self, keys: dict[int, Key]) -> None: ...

    def begin(self) -> None:
        """Begins to watch calls."""
        self.regions.begin()

    def close(self) -> None:
        """Ends watching calls: restores what `begin` has not put where the block itself puts it back."""

    def begin_step(self) -> None:
        """A step begins."""
        self.regions.begin_step()

    def end_step(self) -> None:
        """A step that is looked at has run to its end."""

    def saw(self, func: Op, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op has run, in a step that is looked at."""
        self.regions.saw(func, args, kwargs, result)

    @abc.abstractmethod
    def decide(self, choice: RegionChoice, seen: list[Region], asked: list[int]) -> Decision:
        """Decides by a choice of the planner from the regions of a step at the places `asked`."""

    def counts(self, seen: int) -> tuple[int, int]:
        """Returns the numbers of regions that run once, and again."""
        return (0, seen) if self.runs_twice else (seen, 0)


class CheckpointedRegions(Choosable):
    """Regions under `torch.utils.checkpoint`."""

    runs_twice = True
    own_way = "regions run again"
    other_way = "regions that ran once"
    whatever = "checkpointed regions run again"
    no_choice = "every region has to run again"
    callee = "torch.utils.checkpoint"

    @property
    def otherwise(self) -> dict[int, Key]:
        return self.regions.once

    @otherwise.setter
    def otherwise(self, keys: dict[int, Key]) -> None:
        self.regions.once = keys

    def decide(self, choice: RegionChoice, seen: list[Region], asked: list[int]) -> Decision:
        once = [asked[number] for number in choice["once"]]
        if not once:
            return Decision(once, self._why_none(choice, seen))
        own = choice.get("own_ns")
        seconds = (choice["best_ns"] / 1e9, own / 1e9) if own else None
        return Decision(once, f"{len(once)} of {len(seen)} regions run once", seconds)

    def _why_none(self, choice: RegionChoice, seen: list[Region]) -> str:
        if all(region.why for region in seen):
            return self.no_choice
        if without := choice.get("without_room"):
            return (
                "to run all again is best, by the planner, which has left out what the pool has no room for: "
                f"{without} of {choice['tried']} choices. A larger pool_size= may help"
            )
        return "to run all again is best, by the planner"


class NamedBlocks(Choosable):
    """Calls of named blocks."""

    runs_twice = False
    own_way = whatever = "blocks run once"
    other_way = "blocks that ran again"
    no_choice = "no block can run again"
    callee = "a block"

    def __init__(self, regions: Regions, calls: CallsSeen | CallsOfClasses) -> None:
        super().__init__(regions)
        self._blocks = Blocks(calls, regions)

    def begin(self) -> None:
        super().begin()
        self._blocks.begin()

    def close(self) -> None:
        self._blocks.close()

    def begin_step(self) -> None:
        super().begin_step()
        self._blocks.begin_step()

    def end_step(self) -> None:
        self._blocks.end_step()

    def saw(self, func: Op, args: Args, kwargs: Kwargs, result: Any) -> None:
        self._blocks.saw(func, args, kwargs, result)

    @property
    def otherwise(self) -> dict[int, Key]:
        return self._blocks.again

    @otherwise.setter
    def otherwise(self, keys: dict[int, Key]) -> None:
        self._blocks.again = keys

    def decide(self, choice: RegionChoice, seen: list[Region], asked: list[int]) -> Decision:
        if all(seen[place].why for place in asked):
            return Decision([], self.no_choice)
        best, none = choice["best_ns"], choice["none_ns"]
        once = {asked[number] for number in choice["best"]}
        again = [place for place in asked if seen[place].why is None and place not in once]
        if none is None or best * 100 > none * _WORTH or not again:
            return Decision([], "to run all once, as the program has it, is best, by the planner")
        return Decision(again, f"{len(again)} of {len(seen)} blocks run again", (best / 1e9, none / 1e9))
