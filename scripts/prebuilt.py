#!/usr/bin/env python3
"""Puts the bridge's part in C++ into a built package, compiled for each torch that there is.

scripts/prebuilt.py PACKAGE TORCH...

PACKAGE: the folder of the package `tidelog`, with its sources and the library. TORCH: a virtual environment with torch,
or its interpreter. What a module needs of the C and C++ libraries must be in those that wheels for glibc 2.28 may ask
for (TIDELOG_GLIBC), else there is none of it, and this fails.
"""

import os
import pathlib
import re
import subprocess
import sys

# What manylinux_2_28 allows beside its glibc, by the prefixes of versions of symbols.
NEWEST = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (8,)}
# What is loaded before it, and is not in it.
TORCH = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")
BUILD = """
import pathlib, sys, torch
from tidelog.native import _built
print(_built.prebuild(pathlib.Path(sys.argv[1])))
print(pathlib.Path(torch.__file__).parent / "lib")
"""


def main():
    package, *torches = sys.argv[1:]
    glibc = os.environ.get("TIDELOG_GLIBC")
    for torch in torches:
        module, libraries = build(pathlib.Path(package), pathlib.Path(torch))
        subprocess.run(["strip", "--strip-unneeded", module], check=True)
        if glibc and (why := too_new(module, libraries, glibc)):
            module.unlink()
            sys.exit(f"prebuilt: {module.name} needs {', '.join(why)}: glibc {glibc} and its libstdc++ lack it")
        print(f"prebuilt: {module.name}, {module.stat().st_size >> 10} KiB")


def build(package, torch):
    """The module, and where the libraries of torch are that it is for."""
    python = torch / "bin" / "python" if torch.is_dir() else torch
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    run = subprocess.run(
        [python, "-c", BUILD, package / "native" / "prebuilt"], env=environment, stdout=subprocess.PIPE, text=True
    )
    if run.returncode:
        sys.exit(f"prebuilt: nothing was built with {python}; its output is above")
    module, libraries = map(pathlib.Path, run.stdout.splitlines()[-2:])
    return module, libraries


def too_new(module, libraries, glibc):
    """Returns the symbols of a module that are newer than allowed, and those that no library has."""
    newest = {**NEWEST, "GLIBC": tuple(map(int, glibc.split(".")))}
    found, others = set(), set()
    for line in listed("-D", "--undefined-only", "--with-symbol-versions", module):
        kind, name = line.split()[:2]
        symbol, _, version = name.partition("@")
        if not version:
            # Weak ones may be nowhere. Python's own are the interpreter's.
            others |= {symbol} if kind == "U" and not re.match("_?Py", symbol) else set()
            continue
        library, _, number = version.strip("@").partition("_")
        if tuple(map(int, number.split("."))) > newest.get(library, ()):
            found.add(f"{symbol} of {version.strip('@')}")
    for name in TORCH if others else ():
        others -= {line.split()[-1] for line in listed("-D", "--defined-only", libraries / name)}
    return sorted(found | others)


def listed(*options):
    return subprocess.run(["nm", *options], check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    main()
