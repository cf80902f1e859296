"""The command `tidelog run`."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from tidelog._offload import offload
from tidelog._options import Option
from tidelog.commands._commands import FOUND, Commands, RunExit, add_output, reader

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
  {RunExit.USAGE}  the command line makes no sense
  {RunExit.NO_PROGRAM}  there is no such program
  {RunExit.NOT_OPENED}  the pool could not be opened, or the budget is too small to begin; nothing ran

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
        if name not in FOUND:
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
    from tidelog.commands import _run  # with torch, which no help needs

    return _run.run(said)
