"""Counts the instructions of small and large operations, by the part of the program that runs them.

    python benches/instructions.py [--only NAME ...] [--bench PATH] [--output json]

Each row is tidelog-bench under valgrind's callgrind twice, the second time with more operations: the difference has no
start and no end in it. The path is `uring` on a file in memory, the counts are those of all threads in user space, and
the kernel's are not in them. The checksums are those of a processor without AVX-512, which valgrind does not have.
Counts do not depend on what else the machine does, but for how many operations a wake-up brings.
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
RAW = ("--level=raw", "--size=64m")
LOG = ("--level=log", "--size=16m")


class Row(collections.namedtuple("Row", "name options block operations")):
    """One kind of operation: its options, its size in bytes, and the operations of the shorter run."""

    def command(self, bench, path, times):
        size = self.block * self.operations * times
        return [
            *(str(bench), f"--name={self.name}", "--ioengine=tidelog-uring", "--iodepth=32"),
            *(f"--bs={self.block}", f"--io_size={size}", *self.options, f"--filename={path}"),
        ]


ROWS = [
    Row("raw-read-4k", (*RAW, "--rw=randread"), 4096, 8192),
    Row("raw-write-4k", (*RAW, "--rw=randwrite"), 4096, 8192),
    Row("log-read-4k", (*LOG, "--rw=randread"), 4096, 4096),
    Row("log-write-4k", (*LOG, "--rw=randwrite"), 4096, 4096),
    Row("log-read-1m", (*LOG, "--rw=randread"), 1 << 20, 64),
    Row("log-write-1m", (*LOG, "--rw=randwrite"), 1 << 20, 64),
]

# The part of the program by the path of a function, the first that matches.
PARTS = [
    ("checksums", r"crc32c::|memory::checksum"),
    ("benchmark", r"tidelog_bench::|hdrhistogram::"),
    ("pool", r"tidelog_engine::(pool|layout)::"),
    ("log", r"tidelog_engine::log::"),
    ("reactor", r"tidelog_engine::schedule::"),
    ("data path", r"tidelog_engine::path::|io_uring::"),
    ("memory", r"tidelog_engine::memory::|^__mem|memcpy|memmove|memset"),
    ("clocks", r"Timespec|Instant|clock_gettime"),
]
REST = "rest"
PART_NAMES = [*(part for part, _ in PARTS), REST]


def part_of(function):
    return next((part for part, pattern in PARTS if re.search(pattern, function)), REST)


def counted(command, folder):
    """Runs a command under callgrind; returns the instructions by function."""
    counts = folder / "callgrind.out"
    under = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}", *command]
    run = subprocess.run(under, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(under)}\nended with {run.returncode}:\n{run.stdout}{run.stderr}")
    annotate = ["callgrind_annotate", "--threshold=100", "--auto=no", str(counts)]
    text = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout
    functions = collections.Counter()
    for line in text.splitlines():
        match = re.match(r"\s*([\d,]+) \([ \d.]+%\)\s+[^:]*:(.*?)(?: \[.*)?$", line)
        if match:
            functions[match[2]] += int(match[1].replace(",", ""))
    return functions


def measure(row, bench, folder):
    """Returns a row's instructions for one operation, by part."""
    path = folder / "file"

    def once(times):
        path.unlink(missing_ok=True)
        return counted(row.command(bench, path, times), folder)

    shorter, longer = once(1), once(2)
    parts = collections.Counter()
    for function in longer.keys() | shorter.keys():
        parts[part_of(function)] += (longer[function] - shorter[function]) / row.operations
    return {part: round(parts[part], 1) for part in PART_NAMES}


def built():
    """Builds tidelog-bench as it is released; returns its path."""
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "tidelog-bench"], cwd=ROOT, check=True)
    return ROOT / "target" / "release" / "tidelog-bench"


def table(results):
    names = ["instructions of one", "all", *PART_NAMES]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for name, of in results.items():
        cells = [f"{sum(of.values()):,.0f}", *(f"{of[part]:,.0f}" for part in PART_NAMES)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these rows (default: all)")
    parser.add_argument("--bench", type=pathlib.Path, help="a tidelog-bench that is built already")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed: nothing was counted (Debian, Ubuntu: apt install valgrind)")
    bench = options.bench or built()
    results = {}
    with tempfile.TemporaryDirectory(prefix="tidelog-instructions-", dir="/dev/shm") as folder:
        for row in ROWS:
            if row.name in options.only:
                print(f"{row.name} ...", file=sys.stderr)
                results[row.name] = measure(row, bench, pathlib.Path(folder))
    print(json.dumps(results, indent=1) if options.output == "json" else table(results))


if __name__ == "__main__":
    main()
