"""Rules of `make lint` for the source. Each takes a tree (path -> text) and yields what breaks it."""

import re
from typing import NamedTuple

import known
import python
import rust
import summaries

# Comments are as wide as code: rustfmt keeps Rust at 100 columns, ruff Python at 120.
RUST_COMMENT_COLUMNS = 100
COLUMNS = 120
# Neither breaks a string.
STRING_COLUMNS = 160

RUST = re.compile(r"\.rs$")
CPP = re.compile(r"\.(h|cpp)$")
HASH_COMMENTS = re.compile(r"(\.py|\.sh|\.toml|(^|/)Makefile)$")
PAGE = re.compile(r"^(README|ARCHITECTURE)\.md$|^docs/.*\.md$|^(tools|benches|tests)/.*README\.md$")


class Finding(NamedTuple):
    """A place, and a sentence that says what is wrong there and what to do."""

    path: str
    line: int
    sentence: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.sentence}"


def line_widths(tree):
    """No line of code, comments or prose is wider than a reader can take in at once."""
    for path, text in tree.items():
        if comment_mark(path):
            yield from widths_of_source(path, text)
        elif PAGE.search(path):
            yield from widths_of_page(path, text)


def widths_of_source(path, text):
    """A comment that holds one long word, an address for example, cannot be broken."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().split()
        if line.lstrip().startswith(comment_mark(path)):
            if len(line) > comment_columns(path) and len(words) > 2:
                yield Finding(
                    path,
                    number,
                    f"the comment has {len(line)} columns: wrap it at "
                    f"{comment_columns(path)} (scripts/tidy/run.py --wrap does so)",
                )
        elif len(line) > STRING_COLUMNS:
            yield Finding(path, number, f"the line has {len(line)} columns: break it before {COLUMNS}")


def comment_mark(path):
    """Returns the characters that begin a comment of a file; None: it has no code."""
    if RUST.search(path) or CPP.search(path):
        return "//"
    return "#" if HASH_COMMENTS.search(path) else None


def comment_columns(path):
    """Comments are as wide as the code around them."""
    return RUST_COMMENT_COLUMNS if RUST.search(path) else COLUMNS


def widths_of_page(path, text):
    """Tables and code are as wide as they must be."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_prose = not (in_code or line.startswith("|") or line.startswith("    "))
        if is_prose and len(line) > COLUMNS and " " in line.strip() and "](" not in line:
            yield Finding(path, number, f"the line has {len(line)} columns: wrap prose at {COLUMNS}")


def one_meaning(tree):
    """A type that more than its file can name has a name of its own in the whole workspace."""
    by_name = {}
    for path, text in tree.items():
        if RUST.search(path) and not rust.TEST_FILE.search(path):
            for definition in rust.definitions(path, text):
                by_name.setdefault(definition.name, []).append(definition)
    for name, places in sorted(by_name.items()):
        if len(places) > known.NAMES_OF_MORE.get(name, 1):
            last = places[-1]
            others = ", ".join(f"{place.path}:{place.line}" for place in places[:-1])
            yield Finding(
                last.path,
                last.line,
                f"`{name}` is a type elsewhere too ({others}): give one of them the "
                "name that the field has for it, or make it private to its file",
            )
    # A name that was made unique stays so.
    for name, count in sorted(known.NAMES_OF_MORE.items()):
        if len(by_name.get(name, [])) < count and by_name:
            yield Finding(
                "scripts/tidy/known.py",
                1,
                f"`{name}` has {len(by_name.get(name, []))} definitions now: "
                f"lower its number in NAMES_OF_MORE (it says {count}), or remove it at 1",
            )


def no_circles(tree):
    """Rooms of a crate, and those of the Python package, use each other in one direction only."""
    for house, edges in graphs(tree).items():
        allowed = {frozenset(circle) for circle, _reason in known.CIRCLES.get(house, ())}
        for circle in circles(edges):
            if frozenset(circle) not in allowed:
                names = " -> ".join([*circle, circle[0]])
                yield Finding(
                    house, 1, f"modules use each other in a circle: {names}. Move what both need into a room below them"
                )
        for gone in allowed - {frozenset(circle) for circle in circles(edges)}:
            yield Finding(
                "scripts/tidy/known.py",
                1,
                f"the circle {', '.join(sorted(gone))} of {house} is gone: remove it from CIRCLES",
            )


def graphs(tree):
    """Returns, for each house (a crate's src, the Python package), a map of each room to the rooms it uses."""
    houses = {}
    for path, text in tree.items():
        crate = re.match(r"(.*?/src)/([a-z_]+)", path)
        if crate and RUST.search(path) and not rust.TEST_FILE.search(path):
            house, room = crate.groups()
            if room not in ("lib", "main"):
                houses.setdefault(house, {}).setdefault(room, set()).update(set(rust.uses_of_crate(text)) - {room})
        python = re.match(r"(torch-bridge/python/tidelog)/(\w+)(?:/.*)?\.py$", path)
        if python:
            house, room = python.groups()
            names = re.findall(r"^\s*from tidelog\.(\w+)|^\s*from tidelog import ([\w, ]+)", text, re.MULTILINE)
            used = {name.strip() for one, many in names for name in (one or many).split(",")}
            houses.setdefault(house, {}).setdefault(room, set()).update(used - {room})
    return {house: {room: used & edges.keys() for room, used in edges.items()} for house, edges in houses.items()}


def circles(edges):
    """Sets of rooms each of which reaches the others (strongly connected components of two and more)."""

    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for room in edges[todo.pop()] - seen:
                seen.add(room)
                todo.append(room)
        return seen

    reach = {room: reached(room) for room in edges}
    found = {frozenset(other for other in reach[room] if room in reach[other]) for room in edges if room in reach[room]}
    return sorted(sorted(circle) for circle in found)


def raw_calls(tree):
    """The C ABI is called in few modules of the Python package, and its functions are defined in one room."""
    for path, text in tree.items():
        if path.startswith("torch-bridge/python/") and path not in known.ABI_MODULES:
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(r"\b\w*(library|lib|_native|native)\.tide_\w+|\bctypes\.(CDLL|PyDLL)\((?!None)", line):
                    yield Finding(
                        path,
                        number,
                        f"the C library is called here: add a checked method to {known.ABI_MODULE} and call that",
                    )
        if path.startswith("torch-bridge/src/") and not path.startswith("torch-bridge/src/abi/"):
            for number, line in rust.lines_of_code(text):
                if 'extern "C" fn' in line or "no_mangle" in line:
                    yield Finding(
                        path, number, "a C function is defined here: functions of the C ABI are in torch-bridge/src/abi"
                    )


def old_words(tree):
    """docs/glossary.md lists words that the project does not use, with the ones that it does.

    Names, comments and pages are looked at; messages keep their text.
    """
    patterns = [
        (re.compile(rf"\b{re.escape(word)}\b"), word, instead)
        for word, instead in words_not_used(tree.get(known.GLOSSARY, ""))
    ]
    for path, text in tree.items():
        if path == known.GLOSSARY or not (RUST.search(path) or CPP.search(path) or path.endswith((".py", ".md"))):
            continue
        for number, line in enumerate(without_messages(path, text).splitlines(), 1):
            for pattern, word, instead in patterns:
                if pattern.search(line):
                    yield Finding(path, number, f"`{word}`: the field says {instead} ({known.GLOSSARY})")


def without_messages(path, text):
    """The text with blanks for what strings hold; docstrings stay."""
    if RUST.search(path) or CPP.search(path):
        return rust.without_strings(text)
    return python.without_strings(text) if path.endswith(".py") else text


def words_not_used(glossary):
    """Rows `| word | use instead | ...` of the table under the heading that begins with "Words"."""
    in_table = False
    for line in glossary.splitlines():
        if line.startswith("#"):
            in_table = "not used" in line.lower()
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if in_table and line.startswith("|") and len(cells) >= 2 and not set(cells[0]) <= set("-: "):
            if cells[0].lower() != "word":
                yield cells[0], cells[1]


def summary_lines(tree):
    """The first sentence of each doc comment begins with a noun or a verb, and needs no text outside of it."""
    for path, text in tree.items():
        for summary in summaries.of_file(path, text):
            fault = summaries.fault(summary.sentence)
            if fault:
                yield Finding(
                    path,
                    summary.line,
                    f"the summary {fault}: say in the field's terms what the item is (a noun) or does (a verb)",
                )


def one_version(tree):
    """The workspace, the C header and the changelog name one version; all else takes it from the workspace."""
    found = re.search(r'^version = "(\d+)\.(\d+)\.(\d+)"$', tree.get(known.WORKSPACE, ""), re.MULTILINE)
    if not found:
        return
    version = ".".join(found.groups())
    if not re.search(rf"^## {re.escape(version)}\b", tree.get(known.CHANGELOG, ""), re.MULTILINE):
        yield Finding(known.CHANGELOG, 1, f"no section `## {version}`, which {known.WORKSPACE} names: add it")
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), found.groups(), strict=True):
        if f"TIDE_VERSION_{name}: i32 = {number};" not in tree.get(known.ABI_VERSION, ""):
            yield Finding(known.ABI_VERSION, 1, f"TIDE_VERSION_{name} is not {number}, as {known.WORKSPACE} has it")


CHECKS = (line_widths, one_meaning, no_circles, raw_calls, old_words, summary_lines, one_version)
