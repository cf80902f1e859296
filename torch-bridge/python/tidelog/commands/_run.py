"""Runs of training programs, unedited, inside an offload block: what `tidelog run` does."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import runpy
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tidelog import _errors
from tidelog._offload import offload
from tidelog.block._block import Tide
from tidelog.block._ranks import local_rank, local_world_size
from tidelog.commands._commands import FOUND, SECONDS_OF_A_DAY, RunExit, failure, tell
from tidelog.output._notebook import binary
from tidelog.output._figures import Phase, StayingFigures, Stats, StrPath


def run(said: argparse.Namespace) -> int:
    """Runs what the command line says; returns the exit code."""
    if not said.is_module and not os.path.exists(said.program):
        return _refuse(said, RunExit.NO_PROGRAM, f"there is no program {said.program!r}")
    with contextlib.ExitStack() as block:
        try:
            tide = block.enter_context(offload(**_options(said)))
        except _errors.Error as error:
            return _refuse(said, RunExit.NOT_OPENED, error)
        # The process ends with the program: what stays on NVMe then is of no use to anybody.
        warnings.simplefilter("ignore", _errors.LeftBehindWarning)
        staying = _Staying(tide)
        tide.loop.on_end = staying.look
        try:
            ending = _execute(said)
        finally:
            _conclude(said, tide, staying.last)
    if ending is not None:
        raise ending
    return 0


def _refuse(said: argparse.Namespace, code: RunExit, why: object) -> int:
    """Says why nothing runs."""
    if said.output == "json":
        tell(failure(said, code, why), sys.stderr)
    else:
        _say(why)
    return code


def _options(said: argparse.Namespace) -> dict[str, Any]:
    """Returns the options for `offload`. The report is written by `_conclude`, however the program ends."""
    options = {name: getattr(said, name) for name in offload.options if name not in (*FOUND, "report")}
    if options["device"] == "auto" and torch.cuda.is_available():
        # There is no model yet whose place could tell.
        options["device"] = f"cuda:{local_rank()}"
    return options


def _execute(said: argparse.Namespace) -> SystemExit | None:
    """Runs the program as the interpreter would. Returns the SystemExit that it ended by, if any."""
    sys.argv = [said.program, *said.arguments]
    try:
        if said.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(said.program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(said.program)))
            runpy.run_path(said.program, run_name="__main__")
    except SystemExit as ending:
        return ending
    return None


# -- the end ----------------------------------------------------------------------------------------


class _Staying:
    """The largest tensors that cannot move, looked up now and then where a step has ended: a program that has ended
    leaves none of its tensors to look at."""

    def __init__(self, tide: Tide) -> None:
        self.last: list[StayingFigures] = []
        self._tide = tide
        self._next = 1  # how many steps have ended when it is time to look again

    def look(self) -> None:
        """Looks after the first step, the second, the fourth and so on."""
        if len(self._tide.loop.seconds) >= self._next:
            self._next *= 2
            self.last = self._tide.refusals.largest_that_stay()


class Figures(Stats):
    """Figures of a run: `Tide.stats`, and these."""

    steps: int
    seconds_per_step: float | None  # the median
    seconds: float  # of the whole run
    phase: Phase  # at the end
    budget: int
    peak_bytes: int
    staying: list[StayingFigures]  # the largest tensors that could not move


def _conclude(said: argparse.Namespace, tide: Tide, staying: list[StayingFigures]) -> None:
    """Says how the run went, and writes what was asked for. What fails here fails nothing else."""
    if not tide.access.is_live():
        return  # a forked child of the program ends here, too: the run is the parent's
    steps = tide.loop
    figures: Figures = {
        **tide.stats(),
        "steps": len(steps.seconds),
        "seconds_per_step": statistics.median(steps.seconds) if steps.seconds else None,
        "seconds": time.perf_counter() - steps.began,
        "phase": tide.phase,
        "budget": tide.budget,
        "peak_bytes": tide.peak_bytes,
        "staying": staying,
    }
    if said.output == "json":
        rank = {"rank": int(os.environ.get("RANK", "0"))} if local_world_size() > 1 else {}
        tell(json.dumps({**rank, **figures}), sys.stderr)
    else:
        for line in _summary(figures):
            _say(line)
    for path, write in ((said.report, tide.report), (said.stats, functools.partial(_write_json, figures))):
        if path is not None:
            path = _of_this_rank(path)
            try:
                write(path)
                if said.output == "text":
                    _say(f"wrote {path}")
            except (OSError, _errors.Error) as error:
                _say(f"{path} could not be written: {error}")


def _of_this_rank(path: str) -> str:
    """Ranks write files of their own: "step.html" is "step.1.html" for rank 1."""
    if local_world_size() == 1:
        return path
    name, ending = os.path.splitext(path)
    return f"{name}.{os.environ.get('RANK', '0')}{ending}"


def _summary(figures: Figures) -> Iterator[str]:
    totals, paces = figures["totals"], figures["seconds_per_step"]
    pace = "no step was seen to end" if paces is None else f"{paces:.3f} s each (median)"
    yield f"{figures['steps']} steps, {pace}; at the end {figures['phase']}"
    if (plan := figures["plan"]) is not None:
        yield f"the ops of a step take {plan['compute_ns'] / 1e9:.3f} s, as they were recorded without a plan"
    yield f"at most {binary(figures['peak_bytes'])} in memory, of a budget of {binary(figures['budget'])}"
    if staying := figures["staying"]:
        named = (f"{each['name']} ({binary(each['bytes'])}: {each['why']})" for each in staying)
        yield f"of what cannot move the largest are: {', '.join(named)}"
    yield f"{binary(totals['bytes_written'])} moved out, {binary(totals['bytes_read'])} moved in, by {figures['data_path']}"
    if totals["bytes_written"]:
        per_day = totals["bytes_written"] / figures["seconds"] * SECONDS_OF_A_DAY
        yield f"{per_day / 1e12:,.1f} TB a day are written to the SSDs at this pace"
    if (budget := figures["write_budget"]) is not None:
        yield (
            f"{budget['written_per_day'] / 1e12:,.3g} TB a day with all that devices write, of a write budget of "
            f"{budget['bytes_per_day'] / 1e12:,.3g} TB; paused {budget['pause_ns'] / 1e9:.1f} s after "
            f"{budget['pauses']} steps"
        )
    stalled = totals["stall_ns"] / 1e9
    yield f"ops waited {stalled:.1f} s of {figures['seconds']:.1f} s ({stalled / figures['seconds']:.0%})"
    # Notices are warnings of the logger, where the block ends.


def _write_json(figures: Figures, path: StrPath) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=2)
        file.write("\n")


def _say(text: object) -> None:
    rank = f" (rank {os.environ.get('RANK', '0')})" if local_world_size() > 1 else ""
    tell(f"tidelog run{rank}: {text}", sys.stderr)
