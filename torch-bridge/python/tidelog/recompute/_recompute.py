"""Recomputation as a choice: which regions under `torch.utils.checkpoint` run once in the steps of a block.

First steps run as the program has them. Once they follow a plan, the planner looks which regions are better run
once, beside the training. Those do so from a step on, and since that is another step, it is profiled and planned
for anew. Where it is slower all the same, all goes back. None of that changes a bit.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from tidelog._whole import whole
from tidelog.abi._native import Session
from tidelog.dispatch._steps import Steps
from tidelog.output import _logging
from tidelog.output._figures import RecomputeFigures
from tidelog.recompute._choosable import Choosable
from tidelog.recompute._regions import Region
from tidelog.storages._ops import Args, Kwargs, Op

# So many steps under each plan are compared. The one that begins to follow it is none of them.
_COMPARED = 5
# Steps with regions that run once are planned for within so many, or all goes back.
_PATIENCE = 60
# They may be so much slower and stay: what is measured is no more exact.
_SLOWER = 1.02


class _Phase(Enum):
    LOOKS = auto()  # the program's own steps are profiled, until they follow a plan
    TIMES = auto()  # they are timed
    DOUBLES = auto()  # named blocks run twice, and such steps are profiled
    CHOOSES = auto()  # and timed, while the planner looks
    LEARNS = auto()  # regions run once: such steps are profiled
    COMPARES = auto()  # and timed
    ENDS = auto()


class Recompute:
    """The choice of one block."""

    def __init__(
        self,
        choosable: Choosable,
        steps: Steps,
        session: Session,
        why_never: str | None,
        say: Callable[[str], None],
    ) -> None:
        self._choosable = choosable
        self._regions = choosable.regions
        self._steps = steps
        self._session = session
        self._say = say
        self._phase = _Phase.LOOKS
        self._why = "the program's own steps are learnt"
        self._seen: list[Region] = []  # of the last step that was profiled
        self._same: list[tuple[int, int]] = []  # ops of that step that gather the same bytes
        self._asked: list[int] = []  # places of those that the planner chooses from
        self._seconds: deque[float] = deque(maxlen=_COMPARED + 1)
        self._own: float | None = None
        self._kept: float | None = None
        self._last = (0, 0)  # regions that ran once in the last step, and again
        self._patience = _PATIENCE
        self._regions.looks = why_never is None
        if why_never is not None:
            self.end(why_never)

    def end(self, why: str) -> None:
        """Ends the choice: from the next step on all is as the program has it."""
        if self._phase is _Phase.ENDS and not self._choosable.otherwise:
            return
        self._regions.looks = False
        self._last = self._choosable.counts(len(self._seen))
        if self._choosable.otherwise:
            self._run_otherwise([])
        self._phase, self._why = _Phase.ENDS, why

    def is_choosing(self) -> bool:
        """Returns whether the planner looks."""
        return self._phase is _Phase.CHOOSES and self._session.chosen_regions() is None

    def figures(self) -> RecomputeFigures:
        """Returns the figures for `stats`."""
        refused = [f"region {place}: {region.why}" for place, region in enumerate(self._seen) if region.why]
        return {
            "kept": self._last[0],
            "again": self._last[1],
            "settled": self._phase is _Phase.ENDS,
            "why": self._why,
            "refused": refused,
            "own_seconds": self._own,
            "kept_seconds": self._kept,
        }

    # -- steps -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins to watch calls, if any has a choice."""
        if self._regions.looks:
            self._choosable.begin()

    def close(self) -> None:
        """Ends watching calls."""
        self._choosable.close()

    @whole
    def begin_step(self) -> Callable[[Op, Args, Kwargs, Any], None] | None:
        """Begins a step. Returns what is to see its ops, if it is looked at."""
        if self._phase is _Phase.CHOOSES:
            self._take_choice()
        if self._phase is _Phase.LOOKS:
            self._session.looks_at_regions()
        self._choosable.begin_step()
        return self._choosable.saw if self._regions.looks else None

    def end_step(self, started: float | None, is_planned: bool) -> None:
        """A step that began at `started` (of `Steps.clock`) has ended; None: by an exception. `is_planned`: it has
        followed a plan to its end.
        """
        regions = self._regions
        if regions.looks and started is not None:
            self._choosable.end_step()
        if regions.of_step:
            self._last = regions.kept, len(regions.of_step) - regions.kept
        if started is None or self._phase is _Phase.ENDS:
            return None
        if not is_planned:
            return self._unplanned()
        if self._phase in (_Phase.LOOKS, _Phase.LEARNS):
            regions.looks = False
            self._seconds.clear()
            self._phase = _Phase.TIMES if self._phase is _Phase.LOOKS else _Phase.COMPARES
            return None
        if self._phase is _Phase.DOUBLES:
            regions.looks = False
            return self._ask()
        self._steps.await_device()  # each of the steps that are compared begins when the one before is done
        self._seconds.append(self._steps.clock() - started)
        if len(self._seconds) < _COMPARED:
            return None
        if self._phase is _Phase.TIMES:
            self._own = statistics.median(self._seconds)
            self._ask() if self._choosable.runs_twice else self._double()
        elif self._phase is _Phase.COMPARES:
            self._compare()
        return None

    def _unplanned(self) -> None:
        if self._phase in (_Phase.LOOKS, _Phase.DOUBLES):
            self._seen, self._same = self._regions.of_step, self._regions.gathers.same
        if self._phase in (_Phase.DOUBLES, _Phase.LEARNS, _Phase.COMPARES):
            self._patience -= 1
            if not self._patience:
                self._go_back(f"{_PATIENCE} steps with {self._choosable.other_way} followed no plan")

    def _double(self) -> None:
        """The program's own steps are known. What it would be to run blocks again is not."""
        places = [place for place, region in enumerate(self._seen) if region.why is None]
        if not places:
            return self._find_none()
        self._run_otherwise(places)
        self._regions.looks = True
        self._phase, self._why = _Phase.DOUBLES, "steps in which blocks run again are learnt"
        return None

    def _run_otherwise(self, places: Sequence[int]) -> None:
        """Makes those regions, and no others, run otherwise than the program has them."""
        self._choosable.otherwise = {place: self._seen[place].key for place in places}
        self._regions.watch({place: tuple(self._seen[place].gathered) for place in places})
        self._steps.learn_again()

    def _ask(self) -> None:
        """Steps with both runs of each region are known."""
        for region in self._seen:
            if len(region.runs) != 2:
                region.refuse("it does not run again" if len(region.runs) < 2 else "it runs more than twice")
        self._asked = [place for place, region in enumerate(self._seen) if region.why is None]
        if not self._asked:
            return self._find_none()
        self._phase, self._why = _Phase.CHOOSES, "the planner looks which regions are better run once"
        self._session.choose_regions([self._seen[place].ops() for place in self._asked], self._same)
        return None

    def _find_none(self) -> None:
        if self._seen:
            self.end(self._choosable.no_choice)
            self._tell_refused()
        elif self._regions.was_elsewhere:
            self.end("regions ran in other threads, as in tidelog.accumulate")
        else:
            self.end(f"no step has called {self._choosable.callee}, outside of compiled graphs")

    def _tell_refused(self) -> None:
        refused = [region.why for region in self._seen if region.why]
        if refused:
            self._say(
                f"{len(refused)} of {len(self._seen)} {self._choosable.whatever} whatever the planner says: the first "
                f"because {refused[0]}"
            )

    def _take_choice(self) -> None:
        choice = self._session.chosen_regions()
        if choice is None:
            return
        if "why_not" in choice:
            self.end(f"the planner failed: {choice['why_not']}")
            return
        for number, why in choice["refused"]:
            self._seen[self._asked[number]].refuse(why)
        self._tell_refused()
        places, why, seconds = self._choosable.decide(choice, self._seen, self._asked)
        if not places:
            self.end(why)
            return
        if self._choosable.runs_twice:  # so do the steps beside the planner, which may have been slower
            self._own = min(self._own or self._seconds[-1], statistics.median(self._seconds))
        self._why = why
        if seconds is not None:
            self._why += f": {seconds[0]:.3f} s a step instead of {seconds[1]:.3f} s, by the planner"
        _logging.regions_chosen(self._why)
        self._run_otherwise(places)
        self._phase = _Phase.LEARNS

    def _compare(self) -> None:
        self._kept = statistics.median(self._seconds)
        assert self._own is not None
        if self._kept > self._own * _SLOWER:
            self._go_back(f"steps took {self._kept:.3f} s with {self._choosable.other_way}, {self._own:.3f} s without")
        else:
            self._phase = _Phase.ENDS
            self._why += f"; {self._kept:.3f} s and {self._own:.3f} s measured"

    def _go_back(self, why: str) -> None:
        self.end(f"all {self._choosable.own_way}, as the program has it: {why}")
        self._say(self._why)
