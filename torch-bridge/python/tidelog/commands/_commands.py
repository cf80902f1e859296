"""Parts that the commands of `tidelog` share: how they are read, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NoReturn, Protocol, TextIO

from tidelog._errors import Error

# As of Tidelog's other tools: the command line makes no sense, the output could not be written.
USAGE, OUTPUT = 64, 74

SECONDS_OF_A_DAY = 24 * 60 * 60

# Options of `offload` that are objects of a program, which `run` finds, or that need them.
FOUND = ("model", "optimizer", "resume")

_lost: list[OSError] = []  # what went wrong on standard output


class RunExit(IntEnum):
    """Exit codes of `tidelog run` where the program does not decide it."""

    USAGE = USAGE
    NO_PROGRAM = 66
    NOT_OPENED = 69


class Parser(argparse.ArgumentParser):
    """Ends as Tidelog's other tools do where the command line makes no sense."""

    errors_to_stderr = False  # also those in JSON, as standard output is a program's

    def _print_message(self, message: str, file: Any = None) -> None:
        tell(message, file or sys.stderr, end="")

    def error(self, message: str) -> NoReturn:
        if asks_for_json(sys.argv[1:]):
            document = {"error": message, "help": self.format_usage().strip(), "exit": USAGE}
            tell(json.dumps(document), sys.stderr if self.errors_to_stderr else sys.stdout)
        else:
            tell(f"{self.format_usage()}{self.prog}: {message}", sys.stderr)
        raise SystemExit(USAGE)


class Commands(Protocol):
    """Object to which commands are added."""

    def add_parser(self, name: str, **words: Any) -> Parser:
        """A command line of the command's own."""


def asks_for_json(words: Sequence[str]) -> bool:
    """Returns whether a command line that makes no sense asks for JSON nevertheless. What is behind the name of a
    program is the program's.
    """
    before = ""
    for place, word in enumerate(words):
        if word == "--output=json" or (before, word) == ("--output", "json"):
            return True
        is_program = place > 0 and not before.startswith("-") and not word.startswith("-")
        if words[0] == "run" and (is_program or word == "-m"):
            return False
        before = word
    return False


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """The option that all of Tidelog's tools have."""
    parser.add_argument("--output", choices=("text", "json"), default="text", help=f"how {what} (default text)")


def reader(read: Callable[[Any, str], Any], name: str) -> Callable[[str], Any]:
    """Returns a reader for argparse of an option that a function reads: what makes no sense is a wrong command line."""

    def reading(text: str) -> Any:
        try:
            return read(text, name)
        except Error as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{name}=")) from None

    return reading


def failure(said: argparse.Namespace, code: int, text: object) -> str:
    """Returns the reason why there is no answer: as the other tools say it in JSON, or as people read it."""
    if said.output == "json":
        return json.dumps({"error": str(text), "help": "", "exit": int(code)})
    return f"tidelog {said.name}: {text}"


def tell(text: object, to: TextIO, end: str = "\n") -> None:
    """Prints. What gets lost on standard output `ended` tells; of standard error nobody can be told."""
    try:
        print(text, file=to, end=end, flush=True)
    except OSError as error:
        _silence(to)
        if to is sys.stdout:
            _lost.append(error)


def ended(code: int) -> int:
    """The exit code once what was printed is out: as it is, or `OUTPUT` where the output of a success got
    lost. Whoever closed it early (`| head`) has seen enough."""
    for error in _lost:
        if not isinstance(error, BrokenPipeError):
            tell(f"tidelog: standard output: {error.strerror}", sys.stderr)
            return code or OUTPUT
    return code


def _silence(stream: TextIO) -> None:
    """Lets what a stream still holds go nowhere, as the interpreter writes it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
