"""`tidelog run`: a training program, unedited, inside an offload block."""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import json
import os
import runpy
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import torch

from tidelog import _errors
from tidelog._offload import offload
from tidelog._options import Option
from tidelog.block._block import Tide
from tidelog.block._ranks import local_rank, local_world_size
from tidelog.commands._commands import SECONDS_OF_A_DAY, USAGE, Commands, add_output, failure, reader, tell
from tidelog.output._figures import Phase, Stats, StrPath

_MIB = 1 << 20

# Options of `offload` that are objects of a program, which `run` finds, or that need them.
_FOUND = ("model", "optimizer", "resume")


class Exit(IntEnum):
    """How `tidelog run` ends where the program does not decide it."""

    USAGE = USAGE
    NO_PROGRAM = 66
    NOT_OPENED = 69


DESCRIPTION = """\
Runs a Python program that trains with PyTorch, as `python PROGRAM ARGUMENTS` would, with at most
--memory bytes of tensors in memory; the rest lies on --pool. The program is not edited, and its
results have the same bits. A step ends where its optimizer has stepped: from the first steps a plan
is made, and later ones follow it.
"""

EPILOG = f"""\
At the end, also after an error or Ctrl-C, a summary goes to standard error: steps, memory, bytes
moved, how long ops waited; with --output json, as one line of JSON. What cannot run is said there, too.

Exit codes: those of the program, as without tidelog; and
  {Exit.USAGE}  the command line makes no sense
  {Exit.NO_PROGRAM}  there is no such program
  {Exit.NOT_OPENED}  the pool could not be opened, or the budget is too small to begin; nothing ran

Examples:
  tidelog run --memory 20GiB --pool /mnt/nvme0/tide,/mnt/nvme1/tide train.py --epochs 3
  tidelog run --memory 8GiB --pool /mnt/nvme0/tide --report step.html -m my.package.train
  tidelog run --memory 8GiB --pool /mnt/nvme0/tide --output json train.py 2>&1 >losses.txt | tail -n 1
  torchrun --nproc-per-node 4 -m tidelog run --memory 20GiB --pool /mnt/nvme0/tide train.py

Under torchrun the ranks of a machine share the pool, and --memory is what each rank may take. The
files of --report and --stats get the rank's number before their ending.
"""


def add_command(commands: Commands) -> None:
    """Adds `run` to the commands of `tidelog`."""
    parser = commands.add_parser(
        "run",
        help="run a training program, unedited, under a budget",
        usage="tidelog run --memory BYTES --pool DEVICES [options] PROGRAM [ARGUMENTS ...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, option in offload.options.items():
        if name not in _FOUND:
            _add_option(parser, name, option, offload.defaults[name], offload.choices[name])
    parser.add_argument("--stats", metavar="FILE", help="write the figures of the run there, as JSON")
    add_output(parser, "the summary at the end is written")
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is the name of a module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file; with -m, a module")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="what the program gets")
    parser.set_defaults(command=run, name="run")
    parser.errors_to_stderr = True


def _add_option(
    parser: argparse.ArgumentParser, name: str, option: Option, default: object, choices: tuple[str, ...]
) -> None:
    words: dict[str, Any] = {"help": option.help.replace("%", "%%")}
    if default is False:
        words["action"] = "store_true"
    else:
        words |= {"choices": choices} if choices else {"metavar": name.upper()}
        if option.read is not None and not choices:
            words["type"] = reader(option.read, "--" + name.replace("_", "-"))
        words["required"] = default is inspect.Parameter.empty
        if not words["required"]:
            words["default"] = default
    parser.add_argument("--" + name.replace("_", "-"), **words)


def run(said: argparse.Namespace) -> int:
    """Runs what the command line says; returns the exit code."""
    if not said.is_module and not os.path.exists(said.program):
        return _refuse(said, Exit.NO_PROGRAM, f"there is no program {said.program!r}")
    with contextlib.ExitStack() as block:
        try:
            tide = block.enter_context(offload(**_options(said)))
        except _errors.Error as error:
            return _refuse(said, Exit.NOT_OPENED, error)
        # The process ends with the program: what stays on NVMe then is of no use to anybody.
        warnings.simplefilter("ignore", _errors.LeftBehindWarning)
        try:
            ending = _execute(said)
        finally:
            _conclude(said, tide)
    if ending is not None:
        raise ending
    return 0


def _refuse(said: argparse.Namespace, code: Exit, why: object) -> int:
    """Says why nothing runs."""
    if said.output == "json":
        tell(failure(said, code, why), sys.stderr)
    else:
        _say(why)
    return code


def _options(said: argparse.Namespace) -> dict[str, Any]:
    """What is said for `offload`. The report is written by `_conclude`, however the program ends."""
    options = {name: getattr(said, name) for name in offload.options if name not in (*_FOUND, "report")}
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


class Figures(Stats):
    """What is written of a run: `Tide.stats`, and these."""

    steps: int
    seconds_per_step: float | None  # the median
    seconds: float  # of the whole run
    phase: Phase  # at the end
    budget: int
    peak_bytes: int


def _conclude(said: argparse.Namespace, tide: Tide) -> None:
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
    yield f"at most {_mib(figures['peak_bytes'])} in memory, of a budget of {_mib(figures['budget'])}"
    yield f"{_mib(totals['bytes_written'])} moved out, {_mib(totals['bytes_read'])} moved in, by {figures['data_path']}"
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


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"


def _write_json(figures: Figures, path: StrPath) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=2)
        file.write("\n")


def _say(text: object) -> None:
    rank = f" (rank {os.environ.get('RANK', '0')})" if local_world_size() > 1 else ""
    tell(f"tidelog run{rank}: {text}", sys.stderr)
