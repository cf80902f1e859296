"""Wraps comments that are wider than code. Only paragraphs with a line that is too wide are touched."""

import re
import textwrap

import checks

COMMENT = {"//": re.compile(r"^(\s*(?:///|//!|//) ?)(.*)$"), "#": re.compile(r"^(\s*#!? ?)(.*)$")}
# Where a line of its own begins: lists, headings, tables, code.
OWN_LINE = re.compile(r"^\s*([-*+] |\d+[.)] |#|\||```|SAFETY:|\[\w|    )")


def comments(path, text):
    """The text with every paragraph of its comments no wider than its code."""
    if checks.RUST.search(path):
        pattern = COMMENT["//"]
    elif checks.HASH_COMMENTS.search(path):
        pattern = COMMENT["#"]
    else:
        return text
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
    return prefix, texts


def fill(width, prefix, texts):
    """As it was where nothing is too wide, or where the lines are columns of their own (pictures, tables)."""
    as_it_was = [prefix + text for text in texts]
    is_picture = any("   " in text.strip() or text.startswith(("|", "    ")) for text in texts)
    if is_picture or all(len(line) <= width for line in as_it_was):
        return as_it_was
    first = re.match(r"^\s*(?:[-*+] |\d+[.)] )?", texts[0])[0]
    indent = " " * (len(first) - len(first.lstrip()))
    return textwrap.wrap(" ".join(text.strip() for text in texts), width, initial_indent=prefix + indent,
                         subsequent_indent=prefix + " " * len(first), break_long_words=False, break_on_hyphens=False)
