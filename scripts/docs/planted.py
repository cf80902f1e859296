#!/usr/bin/env python3
"""Shows that the checks of pages find what they are for: mistakes that are planted in pages made up here.

Each planted mistake must be found, and pages without it must pass. Ends with 1 where a check is blind.
"""

import sys

import figures
import links
import questions
import reference

RIGHT = {
    "docs/README.md": "# Map\n\n[a](a.md) [b](../b.md#the-heading) [itself](#map) [out](https://example.com)",
    "docs/a.md": "# A\n\n![picture](a.png) [code](../src/) [back](README.md)",
    "b.md": "# B\n\n## The `heading`\n\n## The heading\n\n[second](#the-heading-1)",
}
FILES = {*RIGHT, "docs/a.png", "src/main.rs"}

# The page, what is put in place of what, and what the finding must say.
WRONG = (
    ("docs/README.md", "a.md", "c.md", "there is no docs/c.md"),
    ("docs/README.md", "[a](a.md)", "", "does not name this page"),
    ("docs/README.md", "#the-heading", "#the-headline", "has no heading #the-headline"),
    ("docs/README.md", "#map", "#mop", "has no heading #mop"),
    ("docs/a.md", "a.png", "b.png", "there is no docs/b.png"),
    ("docs/a.md", "../src/", "../srcs/", "there is no srcs"),
    ("b.md", "#the-heading-1", "#the-heading-2", "has no heading #the-heading-2"),
)


ASKED = {
    "README.md": "# A\n\n[map](docs/map.md)\n",
    "docs/map.md": "# Map\n\n[b](b.md)\n",
    "docs/b.md": "# B\n\n## Why\n\nBecause.\n\n## How\n\nSo.\n",
}
QUESTION = questions.Question("Why?", "docs/b.md", "Why", ("because",))
UNANSWERED = (
    ("README.md", "(docs/map.md)", "(docs/b.mdx)", "more than 2 clicks"),
    ("docs/b.md", "Why", "What", "has no heading 'Why'"),
    ("docs/b.md", "Because", "For", "says nothing of 'because'"),
)


def findings(texts):
    return list(links.broken_inside({path: links.Page(text) for path, text in texts.items()}, FILES))


def blind():
    """Says what was not found, or found where nothing was planted."""
    if found := findings(RIGHT):
        yield f"links: nothing is wrong, but: {found}"
    for path, before, after, sentence in WRONG:
        found = findings({**RIGHT, path: RIGHT[path].replace(before, after)})
        if not any(sentence in finding for finding in found):
            yield f"links: {after!r} in {path}: found {found}"
    if found := list(questions.unanswered(ASKED, [QUESTION])):
        yield f"questions: nothing is wrong, but: {found}"
    for path, before, after, sentence in UNANSWERED:
        found = list(questions.unanswered({**ASKED, path: ASKED[path].replace(before, after)}, [QUESTION]))
        if not any(sentence in finding for finding in found):
            yield f"questions: {after!r} in {path}: found {found}"
    for name in figures.TABLES:
        right = f"<!-- figures: {name} -->\n{figures.TABLES[name]()}<!-- end of figures -->\n"
        digit = next(at for at in reversed(range(len(right))) if right[at].isdigit())
        wrong = right[:digit] + str((int(right[digit]) + 1) % 10) + right[digit + 1 :]
        if figures.corrected(right) != right or figures.corrected(wrong) != right:
            yield f"figures: a wrong digit in the table {name} was not found"
    try:
        reference.header_page("/* About. */\n\n/**\n * One.\n */\nint tide_one(void);\n\nint tide_two(void);\n")
        yield "reference: a function without a comment was not found"
    except SystemExit:
        pass


if __name__ == "__main__":
    for line in (told := list(blind())):
        print(line, file=sys.stderr)
    sys.exit(1 if told else 0)
