"""Facts of Python source for the checks: which strings are documentation."""

import io
import tokenize

STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
# What may stand before a docstring: the beginning of a file or of a block.
BEFORE_DOCSTRING = {None, tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.COMMENT, tokenize.NL}


def without_strings(text):
    """The text with blanks for all strings but docstrings, line by line as it was."""
    lines = text.split("\n")
    before = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in STRINGS and before not in BEFORE_DOCSTRING:
            blank(lines, token.start, token.end)
        before = token.type
    return "\n".join(lines)


def blank(lines, start, end):
    for row in range(start[0], end[0] + 1):
        first = start[1] if row == start[0] else 0
        last = end[1] if row == end[0] else len(lines[row - 1])
        lines[row - 1] = lines[row - 1][:first] + " " * (last - first) + lines[row - 1][last:]
