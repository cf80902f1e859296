"""The command `tidelog`, also `python -m tidelog`."""

import argparse
import sys

from tidelog import _fit, _native, _run

DESCRIPTION = """\
Trains with NVMe SSDs as if they were memory. `tidelog COMMAND --help` says more of each command.
"""


class Parser(argparse.ArgumentParser):
    """Ends as Tidelog's other tools do where the command line makes no sense."""

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(_run.Exit.USAGE, f"{self.prog}: {message}\n")


def main():
    """Runs the command line of this process; returns the exit code."""
    parser = Parser(prog="tidelog", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"tidelog {_native.version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    _run.add_command(commands)
    _fit.add_command(commands)
    said = parser.parse_args()
    return said.command(said)


if __name__ == "__main__":
    sys.exit(main())
