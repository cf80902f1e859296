#!/usr/bin/env python3
"""Runs each feature in each place (tidetest.everywhere), prints the table, and writes it into docs/everywhere.md.

tests/torch/everywhere.py               the whole table
tests/torch/everywhere.py NAME...       these columns or features, which writes nothing
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tidetest import interpreted

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "everywhere.md"
TABLE = re.compile(r"(<!-- everywhere -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
SCRIPT = "import sys; from tidetest import everywhere; everywhere.main(*sys.argv[1:])"

RANKS = 2
# Each with whose memory it is, and the program of several ranks.
COLUMNS = {
    "host": ("cpu", ""),
    "host, DDP": ("cpu", "ddp"),
    "host, FSDP2": ("cpu", "fsdp2"),
    "GPU": ("fake", ""),
    "GPU, DDP": ("fake", "ddp"),
    "GPU, FSDP2": ("fake", "fsdp2"),
}


def tried(column, features=()):
    """Returns the result of each feature in a place: None where it is right, and else why not."""
    memory, program = COLUMNS[column]
    count = RANKS if program else 1
    paths = [str(HERE), str(HERE.parents[1] / "torch-bridge" / "python"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    if memory == "fake":
        environment |= interpreted.ENVIRONMENT
    with tempfile.TemporaryDirectory() as folder:
        started, ended = [], []
        for rank in range(count):
            out, err = (open(Path(folder, f"{what} {rank}"), "w+") for what in ("out", "err"))
            command = [sys.executable, "-c", SCRIPT, memory, program, str(rank), str(count), folder, *features]
            started.append((subprocess.Popen(command, stdout=out, stderr=err, env=environment), out, err))
        for rank, (process, out, err) in enumerate(started):
            code = process.wait()
            for file in (out, err):
                file.seek(0)
            text = err.read()
            err.close()
            assert code == 0, f"{column}, rank {rank} ended with {code}:\n{text}"
            with out:
                ended.append(dict(json.loads(line) for line in out if line.startswith("[")))
    # Where ranks say different things, one of them says why not.
    return {name: next((each[name] for each in ended if each[name] is not None), None) for name in ended[0]}


def table(columns):
    """The page's table, and the reasons below it."""
    names, reasons = list(next(iter(columns.values()))), []
    lines = ["| feature | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for name in names:
        cells = []
        for found in columns.values():
            if (why := found[name]) is not None and why not in reasons:
                reasons.append(why)
            cells.append("yes" if why is None else f"no ({reasons.index(why) + 1})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    listed = [f"{number}. {why}" for number, why in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *(textwrap.fill(each, 120, subsequent_indent="   ") for each in listed)]) + "\n"


def said_of(column):
    """Returns for each feature whether the page says that it runs in this place."""
    lines = TABLE.search(PAGE.read_text())[2].splitlines()
    head, _, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("|"))
    return {row[0]: row[head.index(column)] == "yes" for row in rows}


def main(names):
    columns = [each for each in COLUMNS if each in names] or [*COLUMNS]
    features = [each for each in names if each not in COLUMNS]
    found = {}
    for column in columns:
        found[column] = tried(column, features)
        print(f"{column}: tried", file=sys.stderr, flush=True)
    print("\n" + table(found))
    if not names:
        text = TABLE.sub(lambda part: f"{part[1]}{table(found)}{part[3]}", PAGE.read_text())
        PAGE.write_text(text)
        print(f"wrote the table of {PAGE.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
