"""What the commands of `tidelog` have in common: how they are read, and how they end."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, NoReturn, Protocol

USAGE = 64  # the exit code of a command line that makes no sense, as of Tidelog's other tools


class Parser(argparse.ArgumentParser):
    """Ends as Tidelog's other tools do where the command line makes no sense."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")
        raise SystemExit(USAGE)


class Commands(Protocol):
    """What commands are added to."""

    def add_parser(self, name: str, **words: Any) -> Parser:
        """A command line of the command's own."""


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """The option that all of Tidelog's tools have."""
    parser.add_argument("--output", choices=("text", "json"), default="text", help=f"how {what} (default text)")


def failure(said: argparse.Namespace, code: int, text: object) -> str:
    """Why there is no answer: as the other tools say it in JSON, or as people read it."""
    if said.output == "json":
        return json.dumps({"error": str(text), "exit": int(code)})
    return f"tidelog {said.name}: {text}"
