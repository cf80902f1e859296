#!/usr/bin/env python3
"""Writes the completions of the command `tidelog` that the package carries, from its options.

    .venv/bin/python scripts/completions.py

The package needs neither this nor shtab. tests/torch/test_completions.py holds the files to the options.
"""

import argparse
import pathlib
import sys

PACKAGES = pathlib.Path(__file__).resolve().parents[1] / "torch-bridge" / "python"
FOLDER = PACKAGES / "tidelog" / "commands" / "completions"

# What is completed with paths: the names that help shows for values.
PATHS = {"FILE", "POOL", "PROGRAM", "ARGUMENTS", "REPORT", "MODEL"}


def scripts():
    """File name -> text."""
    import shtab

    from tidelog.__main__ import parser
    from tidelog.commands._completions import SCRIPTS

    whole = parser()
    for action in actions(whole):
        if action.metavar in PATHS or action.dest == "pool":
            action.complete = shtab.FILE
        action.help = (action.help or "").partition(":")[0].partition(". ")[0]  # one line of a menu
    return {name: shtab.complete(whole, shell) for shell, name in SCRIPTS.items()}


def actions(parser):
    """The options and arguments of a command line and of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                command.description = None  # a menu shows the command's help
                yield from actions(command)
        else:
            yield action


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, text in scripts().items():
        (FOLDER / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(PACKAGES))
    main()
