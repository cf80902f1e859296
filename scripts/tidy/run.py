#!/usr/bin/env python3
"""Holds the source to the rules of checks.py, as a part of `make lint`.

    scripts/tidy/run.py          print what breaks a rule, one line each; ends with 1 where there is any
    scripts/tidy/run.py --wrap   wrap comments and docstrings that are wider than code, in place

It looks at what git tracks, takes a few seconds, and needs nothing but Python.
"""

import argparse
import pathlib
import subprocess
import sys

import checks
import wrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What others wrote or a program makes, and the examples of the checks themselves.
NOT_OURS = (
    "fuzz/corpus/",
    "tests/fixtures/",
    "tests/planted/",
    "scripts/tidy/planted.py",
    "Cargo.lock",
    "torch-bridge/include/",
)


def tree():
    """Returns the files that git tracks and new ones, as text by path."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "-co", "--exclude-standard"], check=True, text=True, capture_output=True
    ).stdout
    files = {}
    for path in filter(None, listed.split("\0")):
        if path.startswith(NOT_OURS) or not (ROOT / path).is_file():
            continue
        try:
            files[path] = (ROOT / path).read_text()
        except UnicodeDecodeError:
            pass  # A picture, a pool, a recorded trace: nothing that has lines.
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wrap", action="store_true", help="wrap comments and docstrings that are wider than code, in place"
    )
    arguments = parser.parse_args()
    files = tree()
    if arguments.wrap:
        for path, text in files.items():
            wrapped = wrap.source(path, text)
            if wrapped != text:
                (ROOT / path).write_text(wrapped)
                print(f"wrapped comments of {path}")
        return 0
    found = [finding for check in checks.CHECKS for finding in check(files)]
    for finding in found:
        print(finding)
    if found:
        print(f"tidy: {len(found)} places break a rule; each line says what to do", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
