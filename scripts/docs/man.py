#!/usr/bin/env python3
"""Makes the man page of each tool from what its `--help` says, and that of its commands.

    scripts/docs/man.py FOLDER      writes FOLDER/tidelog-format.1 and so on

`make install` calls it: no page is kept that could be out of date.
"""

import importlib.util
import re
import sys
from pathlib import Path

from helptexts import ROOT, TOOLS, helps

UNWRAPPED = 10_000  # columns: roff breaks lines itself

# A heading stands at the margin alone, with its lines indented under it.
_HEADING = re.compile(r"^([A-Z][\w ]*|options|positional arguments):$")
_USAGE = re.compile(r"^(?:Usage|usage): (.*(?:\n {7,}\S.*)*)", re.MULTILINE)
# An option, an argument, a command or an exit code, and perhaps its text beside it.
_ENTRY = re.compile(
    r"^ {2,6}(?P<name>-\S.*?|[<\[]\S+?|[A-Z][A-Z_]*|[a-z][a-z-]*|\d+)(?:(?: {2,}|(?<=\d) )(?P<text>\S.*))?$"
)
_HEADINGS = {"options": "Options", "positional arguments": "Arguments", "Exit codes": "Exit status"}
# What lists no entries: shown as it is.
_AS_IT_IS = ("Examples",)


def main(folder):
    for tool in TOOLS:
        if tool == "tidelog" and importlib.util.find_spec("torch") is None:
            print("man: no page of the command tidelog, which pip installs: its help needs PyTorch", file=sys.stderr)
            continue
        (folder / f"{tool}.1").write_text(page(tool, list(helps(tool, UNWRAPPED))))


def page(tool, said):
    """The page of a tool in roff."""
    about = _paragraph_after_usage(said[0].text)
    lines = [f'.TH {tool.upper()} 1 "" "Tidelog {version()}" "User Commands"', ".nh", ".ad l", ".SH NAME"]
    lines.append(f"{tool} \\- {_text(about[0].lower() + about[1:])}")
    lines.append(".SH SYNOPSIS")
    for help in said:
        lines += [".HP", _text(" ".join(_USAGE.search(help.text)[1].split()))]
    lines.append(".SH DESCRIPTION")
    lines += body(said[0].text)
    if len(said) > 1:
        lines.append(".SH EACH COMMAND")
    for help in said[1:]:
        lines.append(f".SS {' '.join(help.words)}")
        lines += body(help.text, inner=True)
    others = ", ".join(f"\\fB{_text(other)}\\fR(1)" for other in TOOLS if other != tool)
    lines += [".SH SEE ALSO", others]
    return "\n".join(lines) + "\n"


def version():
    return re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def _paragraph_after_usage(text):
    """Returns the purpose of a tool: the first paragraph that is no usage."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text.strip()) if not part.lower().startswith("usage:")]
    return re.split(r"(?<=\w)\. ", " ".join(paragraphs[0].split()))[0].rstrip(".")


def body(text, inner=False):
    """Paragraphs, headings and entries of a help."""
    text = _USAGE.sub("", text).replace("\n  COMMAND\n", "\n")
    heading = None
    for block in _blocks(text):
        first = block[0]
        if found := _HEADING.match(first):
            heading = _HEADINGS.get(found[1], found[1])
            yield from [".PP", f".B {heading}"] if inner else [f".SH {heading.upper()}"]
            block = block[1:]
        if not block:
            continue
        if not block[0].startswith(" "):
            yield from _paragraph(block)
        elif heading in _AS_IT_IS or heading is None or not any(map(_ENTRY.match, block)):
            yield from [".PP", ".nf", *(_text(line) for line in block), ".fi"]
        else:
            yield from _entries(block)


def _blocks(text):
    """Runs of lines: a heading with all that is indented under it, a paragraph, or indented lines."""
    block = []
    for line in text.splitlines():
        indented = line.startswith(" ") or not line.strip()
        starts = bool(_HEADING.match(line)) or (
            block and not indented and (block[-1] == "" or block[-1].startswith(" "))
        )
        if starts and block:
            yield _stripped(block)
            block = []
        if not line.strip() and block and not block[0].startswith(" ") and not _HEADING.match(block[0]):
            yield _stripped(block)
            block = []
        elif line.strip() or block:
            block.append(line.rstrip())
    if block:
        yield _stripped(block)


def _stripped(block):
    while block and not block[-1].strip():
        block = block[:-1]
    return block


def _paragraph(block):
    """Prose is filled; what is indented in it keeps its lines."""
    yield ".PP"
    indented = False
    for line in block:
        if line.startswith(" ") != indented:
            indented = not indented
            yield ".nf" if indented else ".fi"
        yield _text(line)
    if indented:
        yield ".fi"


def _entries(block):
    """Options and the like: each with its text, whose lists keep their lines."""
    for line in block:
        entry = _ENTRY.match(line)
        if entry and not line.startswith(" " * 8):
            yield ".TP"
            yield f"\\fB{_text(entry['name'])}\\fR"
            if entry["text"]:
                yield _text(entry["text"])
        elif not line.strip():
            yield ".sp"
        elif line.strip().startswith("- "):
            yield ".br"
            yield _text(line.strip())
        else:
            yield _text(line.strip())


def _text(line):
    """Escapes a line, so that nothing in it is an instruction to roff."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
