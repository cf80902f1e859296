"""The command `tidelog`, also `python -m tidelog`."""

from __future__ import annotations

import argparse
import sys

from tidelog.abi import _library
from tidelog.commands import _completions, _fit_command, _run_command
from tidelog.commands._commands import Parser, ended

DESCRIPTION = """\
Trains with NVMe SSDs as if they were memory. `tidelog COMMAND --help` says more of each command.
"""

EPILOG = """\
Examples:
  tidelog fit config.json --memory 8GiB --pool /mnt/nvme0/tide    what would it need, how fast is it
  tidelog run --memory 8GiB --pool /mnt/nvme0/tide train.py       train, with the program as it is
"""


def parser() -> Parser:
    """The command line with all commands."""
    whole = Parser(
        prog="tidelog",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"tidelog {_library.version()}")
    commands = whole.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in (_run_command, _fit_command, _completions):
        command.add_command(commands)
    return whole


def main() -> int:
    """Runs the command line of this process; returns the exit code."""
    try:
        said = parser().parse_args()
    except SystemExit as ending:  # help was printed, or the command line makes no sense
        return ended(ending.code if isinstance(ending.code, int) else 0)
    code: int = said.command(said)
    # What `run` leaves in standard output is its program's, and ends as it would without tidelog.
    return code if said.command is _run_command.run else ended(code)


if __name__ == "__main__":
    sys.exit(main())
