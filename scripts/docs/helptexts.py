"""Help texts of each tool: the `--help` of the tool and of each of its commands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
PACKAGE = ROOT / "torch-bridge/python"
TOOLS = ("tidelog", "tidelog-format", "tidelog-doctor", "tidelog-plan", "tidelog-bench")

# Where a help lists commands: under "Commands:" (clap) or below the metavar COMMAND (argparse).
_LISTS = (
    re.compile(r"^Commands:\n((?:  .*\n)+)", re.MULTILINE),
    re.compile(r"^positional arguments:\n  COMMAND\n((?:    .*\n)+)", re.MULTILINE),
)
_COMMAND = re.compile(r"^ {2,4}([a-z][a-z-]*)(?: |$)", re.MULTILINE)


class Help(NamedTuple):
    """One command line's help."""

    words: tuple  # such as ("tidelog-format", "check")
    text: str


def helps(tool, columns=100):
    """The help of a tool, then those of its commands, wrapped at `columns` columns where the tool lets us."""
    first = _said(columns, tool)
    yield Help((tool,), first)
    for command in _commands(first):
        yield Help((tool, command), _said(columns, tool, command))


def _commands(text):
    for pattern in _LISTS:
        if listed := pattern.search(text):
            return [name for name in _COMMAND.findall(listed[1]) if name != "help"]
    return []


def _said(columns, tool, *words):
    program = [sys.executable, "-m", "tidelog"] if tool == "tidelog" else [RELEASE / tool]
    library = {} if "TIDELOG_LIBRARY" in os.environ else {"TIDELOG_LIBRARY": str(RELEASE / "libtidelog.so")}
    env = {**os.environ, **library, "PYTHONPATH": str(PACKAGE), "COLUMNS": str(columns)}
    try:
        done = subprocess.run([*program, *words, "--help"], env=env, text=True, capture_output=True, check=True)
    except FileNotFoundError:
        raise SystemExit(f"{RELEASE / tool} is missing: run `make build`") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{' '.join((tool, *words))} --help ended with {error.returncode}: {error.stderr}") from None
    return done.stdout
