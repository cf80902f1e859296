"""Wraps comments and docstrings that are wider than code. Only paragraphs with a line that is too wide are touched."""

import ast
import re
import textwrap

import checks

COMMENT = {"//": re.compile(r"^(\s*(?:///|//!|//) ?)(.*)$"), "#": re.compile(r"^(\s*#!? ?)(.*)$")}
HEADING = re.compile(r"^\s*#+ ")
# Where a line of its own begins: lists, headings, tables, code.
OWN_LINE = re.compile(r"^\s*([-*+] |\d+[.)] |#|\||```|SAFETY:|\[\w|    )")


def source(path, text):
    """The text with every paragraph of its comments, and of Python's docstrings, no wider than its code."""
    wrapped = comments(path, text)
    return docstrings(wrapped) if path.endswith(".py") else wrapped


def comments(path, text):
    mark = checks.comment_mark(path)
    if mark is None:
        return text
    pattern = COMMENT[mark]
    lines, wrapped, in_code = text.split("\n"), [], False
    while lines:
        found = pattern.match(lines[0])
        if found and found[2].lstrip().startswith("```"):
            in_code = not in_code
        if not found or in_code or not found[2].strip() or lines[0].startswith("#!"):
            wrapped.append(lines.pop(0))
            continue
        wrapped += fill(checks.comment_columns(path), *paragraph(lines, pattern, found[1]))
    return "\n".join(wrapped)


def paragraph(lines, pattern, prefix):
    """Takes the lines of one paragraph off the front; returns the prefix and the texts."""
    texts = []
    while lines:
        found = pattern.match(lines[0])
        if not found or found[1] != prefix or not found[2].strip():
            break
        if texts and OWN_LINE.match(found[2]):
            break
        texts.append(found[2])
        lines.pop(0)
        if HEADING.match(found[2]):
            break
    return prefix, texts


def fill(width, prefix, texts):
    """Fills lines of text; keeps them where nothing is too wide, or where they hold columns (pictures, tables)."""
    as_it_was = [prefix + text for text in texts]
    is_picture = any("   " in text.strip() or text.startswith(("|", "    ")) for text in texts)
    if is_picture or all(len(line) <= width for line in as_it_was):
        return as_it_was
    first = re.match(r"^\s*(?:[-*+] |\d+[.)] )?", texts[0])[0]
    indent = " " * (len(first) - len(first.lstrip()))
    return textwrap.wrap(
        " ".join(text.strip() for text in texts),
        width,
        initial_indent=prefix + indent,
        subsequent_indent=prefix + " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def docstrings(text):
    """Docstrings only: other strings are data."""
    lines = text.split("\n")
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, holders) and ast.get_docstring(node, False)]
    # From the last to the first, so that the numbers of lines before stay true.
    for string in sorted((node.body[0] for node in nodes), key=lambda it: -it.lineno):
        old = lines[string.lineno - 1 : string.end_lineno]
        lines[string.lineno - 1 : string.end_lineno] = docstring(old, " " * string.col_offset)
    return "\n".join(lines)


def docstring(lines, indent):
    """Wraps a docstring. One that is a line too wide gets its closing quotes on a line of their own."""
    if all(len(line) <= checks.COLUMNS for line in lines):
        return lines
    if lines[-1].strip() != '"""':
        lines = [*lines[:-1], lines[-1].rstrip()[: -len('"""')], indent + '"""']
    wrapped, rest = [], lines[:-1]
    while rest:
        if not rest[0].strip():
            wrapped.append(rest.pop(0))
            continue
        prefix = re.match(r"\s*", rest[0])[0]
        texts = [rest.pop(0)[len(prefix) :]]
        while (
            rest and rest[0].strip() and re.match(r"\s*", rest[0])[0] == prefix and not OWN_LINE.match(rest[0].strip())
        ):
            texts.append(rest.pop(0)[len(prefix) :])
        wrapped += fill(checks.COLUMNS, prefix, texts)
    return [*wrapped, lines[-1]]
