"""Facts of Rust source for the checks: comments, definitions, and which module uses which."""

import re
from typing import NamedTuple

COMMENT = re.compile(r"^\s*//")
DEFINITION = re.compile(r"^\s*pub(?:\([^)]*\))? (?:unsafe )?(?:struct|enum|trait|type|union) (\w+)")
TEST_FILE = re.compile(r"(^|/)(tests?|[a-z_]+_tests)(\.rs$|/)")


class Definition(NamedTuple):
    """A type that more than its own file can name."""

    name: str
    path: str
    line: int


STRING_OR_COMMENT = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|b?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""",
    re.DOTALL,
)


def without_strings(text):
    """The text with blanks for string and character literals, line by line as it was."""

    def blank(found):
        return found[0] if found["comment"] else re.sub(r"[^\n]", " ", found[0])

    return STRING_OR_COMMENT.sub(blank, text)


def lines_of_code(text):
    """Numbered lines outside of comments; what follows `#[cfg(test)] mod` is left out."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#[cfg(test)]") or line.startswith("#[cfg(all(test"):
            return
        if not COMMENT.match(line):
            yield number, line


def definitions(path, text):
    """Types with any `pub`. An associated type of a trait is none: it is indented within an `impl`."""
    for number, line in lines_of_code(text):
        found = DEFINITION.match(line)
        if found and not line.startswith(" "):
            yield Definition(found[1], path, number)


def uses_of_crate(text):
    """The first names behind `crate::`, also in groups: `use crate::{a::B, c}` is a and c."""
    code = "\n".join(line for _, line in lines_of_code(text))
    for found in re.finditer(r"\bcrate::(\w+|\{)", code):
        if found[1] != "{":
            yield found[1]
            continue
        yield from first_names_of_group(code[found.end() :])


def first_names_of_group(rest):
    """Yields the first names of a group, `a` and `d` of `a::{B, C}, d}`, up to the brace that closes it."""
    depth, at_start = 1, True
    for word in re.finditer(r"[{},]|\w+", rest):
        match word[0]:
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return
            case ",":
                at_start = depth == 1
                continue
            case name:
                if depth == 1 and at_start:
                    yield name
        at_start = False
