"""`tidelog completions`: the script that completes the command's words in a shell.

`scripts/completions.py` writes the scripts from the options, and the package carries them.
"""

from __future__ import annotations

import argparse
import sys
from importlib import resources

from tidelog.commands._commands import Commands, tell

# Shell -> the file's name, which is the one that the shell looks for.
SCRIPTS = {"bash": "tidelog", "zsh": "_tidelog", "fish": "tidelog.fish"}

EPILOG = """\
Where to put it:
  bash  ~/.local/share/bash-completion/completions/tidelog
  zsh   _tidelog, in a folder of $fpath
  fish  ~/.config/fish/completions/tidelog.fish

Examples:
  tidelog completions bash > ~/.local/share/bash-completion/completions/tidelog
  source <(tidelog completions bash)
"""


def add_command(commands: Commands) -> None:
    """Adds `completions` to the commands of `tidelog`."""
    parser = commands.add_parser(
        "completions",
        help="print the script that completes this command's words in a shell",
        description="Prints the script that completes the words of `tidelog` in a shell.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help="bash, zsh or fish")
    parser.set_defaults(command=completions)


def completions(said: argparse.Namespace) -> int:
    """Prints the script."""
    script = resources.files("tidelog.commands").joinpath("completions", SCRIPTS[said.shell])
    tell(script.read_text(encoding="utf-8"), sys.stdout, end="")
    return 0
