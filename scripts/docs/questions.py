#!/usr/bin/env python3
"""Checks that a stranger's questions are answered within two clicks of the README.

    scripts/docs/questions.py    a part of `make docs`

Each question names a page with a heading, and words of its answer. Links lead from the README to that page, over at
most one other page, and the words are under the heading. Prints a line for each question that is not answered, and ends
with 1 where there is any.
"""

import posixpath
import re
import sys
from typing import NamedTuple

import links

START = "README.md"
CLICKS = 2


class Question(NamedTuple):
    """A question, the page and the heading that answer it, and words of the answer."""

    text: str
    page: str
    heading: str
    words: tuple[str, ...]


# Written down before the pages were.
QUESTIONS = (
    Question(
        "Does my training loop change, and are the results the same?", "docs/faq.md", "Questions", ("Bit for bit",)
    ),
    Question(
        "Does it run on my system, GPU, driver, torch and Python?",
        "README.md",
        "What it needs",
        ("x86-64", "NVIDIA", "ROCm", "aarch64", "PyTorch", "driver", "file systems"),
    ),
    Question(
        "How do I install it without changing my torch, and how do I remove it?",
        "docs/how-to/install.md",
        "Beside the torch that is there",
        ("--no-deps", "2.10 to 2.15"),
    ),
    Question("Which budget do I give it?", "docs/how-to/choose-a-budget.md", "Choose a budget", ('memory="auto"',)),
    Question("How much slower is a step?", "docs/measurements.md", "In short", ("times as long",)),
    Question(
        "What does an 8B model cost on a card of 24 GB?", "docs/faq.md", "Questions", ("24 GB", "tokens a second")
    ),
    Question(
        "How long does my SSD last, and what can I do about it?",
        "docs/how-to/endurance.md",
        "How long SSDs last",
        ("TB", "host_memory"),
    ),
    Question("Should I take LoRA, FSDP2 or ZeRO-Infinity instead?", "README.md", "What it needs", ("LoRA", "FSDP2")),
    Question(
        "Does it work with the Trainer, Lightning, DDP and torch.compile?",
        "docs/integrations.md",
        "Tidelog in other libraries",
        ("transformers", "Lightning", "accelerate"),
    ),
    Question("What is lost when a run is killed or a drive fails?", "docs/faq.md", "Questions", ("killed", "striped")),
    Question(
        "Does it run in a container, without root?",
        "docs/how-to/container.md",
        "What a container needs",
        ("memory", "io_uring", "shared memory"),
    ),
    Question("What does not work, and where do I report a bug?", "CONTRIBUTING.md", "Report a bug", ("tide.stats()",)),
)


def main():
    pages = {path.relative_to(links.ROOT).as_posix(): path.read_text() for path in links.ROOT.glob("*.md")}
    pages |= {path.relative_to(links.ROOT).as_posix(): path.read_text() for path in (links.ROOT / "docs").rglob("*.md")}
    found = list(unanswered(pages, QUESTIONS))
    for finding in found:
        print(finding)
    return 1 if found else 0


def unanswered(pages, questions):
    """Yields a sentence for each question that is not answered within the clicks."""
    near = within_clicks(pages)
    for question in questions:
        if question.page not in near:
            yield f"{question.text} {question.page} is more than {CLICKS} clicks from {START}: link it there"
            continue
        answer = section(pages[question.page], question.heading)
        if answer is None:
            yield f"{question.text} {question.page} has no heading {question.heading!r}"
            continue
        for word in question.words:
            if word.lower() not in answer.lower():
                yield f"{question.text} {question.page}, {question.heading!r} says nothing of {word!r}"


def within_clicks(pages):
    """Returns the pages that few clicks from the start lead to."""
    near = {START}
    for _ in range(CLICKS):
        near |= {target for path in near & pages.keys() for target in targets(path, pages[path])}
    return near


def targets(path, text):
    """Yields the files that the links of a page lead to."""
    for _, link in links.Page(text).links:
        file = link.partition("#")[0]
        if file and not re.match(r"[a-z]+:", link):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), file))


def section(text, heading):
    """Returns the text under a heading, up to the next one of its level or above; None where there is no such heading."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    if not found:
        return None
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


if __name__ == "__main__":
    sys.exit(main())
