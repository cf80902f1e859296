#!/usr/bin/env python3
"""Checks the links of all pages, as they are read in the repository: files, and headings in them.

    scripts/docs/links.py             links inside the repository; a part of `make lint`
    scripts/docs/links.py --external  links to other sites, which need a network

Prints a line for each link that leads nowhere, and ends with 1 where there is any. The site's own links are
checked by MkDocs, when it is built.
"""

import argparse
import posixpath
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
MAP = "docs/README.md"
TIMEOUT_SECONDS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--external", action="store_true", help="check links to other sites, and nothing else")
    arguments = parser.parse_args()
    tracked = set(
        subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], check=True, text=True, capture_output=True
        ).stdout.splitlines()
    )
    pages = {path: Page((ROOT / path).read_text()) for path in sorted(tracked) if path.endswith(".md")}
    found = list(broken_outside(pages) if arguments.external else broken_inside(pages, tracked))
    for finding in found:
        print(finding)
    return 1 if found else 0


class Page:
    """The links of a page, each with its line, and the anchors of its headings."""

    def __init__(self, text):
        self.links, self.anchors = [], set()
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
        for before, token in zip([None, *tokens], tokens):
            if token.type != "inline":
                continue
            line = token.map[0] + 1
            for child in token.children:
                link = child.attrGet("href") or child.attrGet("src")
                if link:
                    self.links.append((line, link))
            if before.type == "heading_open":
                self._add_anchor("".join(child.content for child in token.children))

    def _add_anchor(self, title):
        """Adds the anchor of a title as GitHub makes it: letters, numbers, - and _ stay; a title that stands twice gets
        a number.
        """
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        number, chosen = 0, anchor
        while chosen in self.anchors:
            number += 1
            chosen = f"{anchor}-{number}"
        self.anchors.add(chosen)


def broken_inside(pages, tracked):
    """Links to files and headings that are not there, and pages that the map does not name."""
    folders = {str(parent) for path in tracked for parent in Path(path).parents}
    on_map = {MAP}
    for path, page in pages.items():
        for line, link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
            if path == MAP:
                on_map.add(target)
            if target not in tracked and target not in folders:
                yield f"{path}:{line}: {link}: there is no {target}"
            elif anchor and (target not in pages or anchor not in pages[target].anchors):
                yield f"{path}:{line}: {link}: {target} has no heading #{anchor}"
    for path in sorted(pages.keys() - on_map):
        yield f"{path}:1: {MAP} does not name this page: add it there"


def broken_outside(pages):
    """Links to other sites that do not answer."""
    links = {}
    for path, page in pages.items():
        for line, link in page.links:
            if link.startswith(("http://", "https://")):
                links.setdefault(link.partition("#")[0], f"{path}:{line}")
    for link, place in sorted(links.items()):
        request = urllib.request.Request(link, headers={"User-Agent": "tidelog-links"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
                pass
        except (urllib.error.URLError, OSError) as error:
            yield f"{place}: {link}: {error}"


if __name__ == "__main__":
    sys.exit(main())
