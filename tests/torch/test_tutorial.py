"""The tutorial, word for word: what docs/tutorial.md says to save is saved, what it says to type is typed, in an
empty folder, and the output is the page's.

A code block is one of two kinds, and the page has no other:
- a file, after a paragraph that ends with: Save it as `NAME`:
- ```console: lines that begin with "$ " are commands; what follows each is its output.

A comment before a console block, <!-- differs: REGULAR EXPRESSION -->, says which parts of its output are not the
same everywhere. Readers do not see it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target" / "release"
COMMAND_SECONDS = 120


class Failed(AssertionError):
    """The page says something else than what happens."""


def follow(page, folder, env):
    """Does what the page says, in its order."""
    differs, save_as = None, None
    for token in MarkdownIt("commonmark").parse(page):
        if token.type == "html_block":
            said = re.fullmatch(r"<!-- differs: (.+) -->\n?", token.content)
            assert said, f"line {token.map[0] + 1}: a comment that says nothing to this test"
            differs = re.compile(said[1])
        elif token.type == "inline":
            named = re.search(r"\bSave it\s+as\s+`([\w.-]+)`:$", token.content)
            save_as = named[1] if named else None
        elif token.type in ("fence", "code_block"):
            if token.info == "console":
                run_block(token, folder, env, differs)
            else:
                assert save_as, f"line {token.map[0] + 1}: this block is neither a file nor console"
                (folder / save_as).write_text(token.content)
            differs, save_as = None, None


def run_block(token, folder, env, differs):
    """Types each command of a block, and compares what it prints."""
    assert token.content.startswith("$ "), f"line {token.map[0] + 1}: a console block begins with a command"
    line = token.map[0] + 2
    for part in re.split(r"^\$ ", token.content, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if alike(done.stdout, differs) != alike(expected, differs):
            raise Failed(
                f"line {line}: {command}\nthe page:\n{expected}\nprinted, with {done.returncode}:\n{done.stdout}"
            )
        line += part.count("\n")


def alike(output, differs):
    """The output with a mark in place of each part that is not the same everywhere."""
    return differs.sub("\N{HORIZONTAL ELLIPSIS}", output) if differs else output


@pytest.fixture(name="env")
def environment(tmp_path):
    """Returns the environment of a reader who installed Tidelog: its command, its tools and its package are found."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "tidelog").write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog "$@"\n')
    (programs / "tidelog").chmod(0o755)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{TOOLS}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "torch-bridge" / "python"),
    }


@pytest.mark.timeout(1800)  # seven programs, each of which imports transformers
def test_the_tutorial_is_what_happens(env, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    follow((ROOT / "docs" / "tutorial.md").read_text(), folder, env)
    assert not {"pool", "small"} & {path.name for path in folder.iterdir()}, "the page cleans up"


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ echo 3\n4\n```",
        "```console\n$ echo 3\n```",
        "```console\n$ true\n3\n```",
        "<!-- differs: [a-z]+ -->\n```console\n$ echo 3 s\n4 s\n```",
        "```console\n$ echo 3\n3\n$ no-such-command\n```",
        "Save it as `a.txt`:\n\n```text\n3\n```\n\n```console\n$ cat a.txt\n4\n```",
        "```python\nprint(3)\n```",
    ],
)
def test_a_page_that_is_wrong_fails(page, tmp_path):
    with pytest.raises(AssertionError):
        follow(page, tmp_path, dict(os.environ))


def test_what_differs_is_compared_around(tmp_path):
    follow("<!-- differs: \\d+ s -->\n```console\n$ echo took 3 s here\ntook 4 s here\n```", tmp_path, dict(os.environ))
