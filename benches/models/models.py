"""Programs as they are written elsewhere, in 35 % of the memory that they need: the bits, the budget, the time.

    python benches/models/models.py [NAME ...] [--minutes 8] [--again failed|NAME] [--pool DIR] [--threads 1]

Each program runs eagerly and compiled. Its peak is measured in a block with plenty of memory; then it trains plain
and in a block, in two processes, step by step in turn, and all that both hold in the end is compared bit by bit.
Results are in target/models.json; a run that was cut off goes on where it was. Ends with 1 where a program that
runs without Tidelog differs, fails or exceeds its budget.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AT_A_TIME = 8  # programs whose peaks are measured, two at once, before any is timed


def main():
    arguments = parse_arguments()
    prepare(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("models: ended by a signal"))  # pools are removed
    import measure
    from catalog import PROGRAMS

    unknown = [name for name in arguments.names if name not in PROGRAMS]
    if unknown:
        sys.exit(f"models: no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    chosen = [(name, way) for name in arguments.names or PROGRAMS for way in arguments.ways]
    results = Results(arguments.figures, arguments.again)
    with tempfile.TemporaryDirectory(prefix="tidelog-models-", dir=arguments.pool) as folder:
        measuring = measure.Measuring(arguments, Path(folder))
        pending = [each for each in chosen if each not in results.of]
        for first in range(0, len(pending), AT_A_TIME):
            several = pending[first : first + AT_A_TIME]
            for each, peak in measuring.peaks([each for each in several if each not in results.peaks]):
                results.peaks[each] = peak
                results.write()
            for each in several:
                if each in results.peaks and measuring.is_time():
                    results.of[each] = measuring.result(*each, results.peaks[each])
                    results.write()
                    tell(results.of[each], sum(key in results.of for key in chosen), len(chosen))
    return report(chosen, results)


def tell(result, number, count):
    figures = f"{result['plain_seconds']:.3f} s, {result['ratio']:.2f} x" if "ratio" in result else result["reason"]
    # Flushed: the run may be cut off.
    print(
        f"{number:3} of {count}  {result['program']:30} {result['way']:8}  {result['verdict']:10} {figures[:120]}",
        flush=True,
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="some of the programs (default: all)")
    parser.add_argument("--ways", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--minutes", type=float, default=1e6, help="start no program after so many minutes")
    parser.add_argument("--again", nargs="*", default=[], help="programs to run again; `failed`: all that failed")
    parser.add_argument("--pool", help="folder in which a temporary pool is made (default: /dev/shm, else TMPDIR)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--figures", type=Path, default=ROOT / "target" / "models.json")
    arguments = parser.parse_args()
    if arguments.pool is None and os.access("/dev/shm", os.W_OK):
        arguments.pool = "/dev/shm"
    return arguments


def prepare(arguments):
    """Prepares the process before torch is imported: threads, and where compiled kernels are kept."""
    work = ROOT / "target" / "models"
    work.mkdir(parents=True, exist_ok=True)
    os.environ.update(
        OMP_NUM_THREADS=str(arguments.threads),
        OPENBLAS_NUM_THREADS="1",
        TORCHINDUCTOR_CACHE_DIR=str(work / "inductor"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TRANSFORMERS_VERBOSITY="error",
        HF_HUB_OFFLINE="1",
    )
    arguments.work = work
    sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "torch-bridge" / "python")]


class Results:
    """The file of results, written after each. A peak that could not be measured is not kept."""

    def __init__(self, path, again):
        self._path = path
        before = json.loads(path.read_text()) if path.exists() else {"results": [], "peaks": []}

        def known(document):
            return {(each["program"], each["way"]): each for each in before[document] if each["program"] not in again}

        self.of, self.peaks = known("results"), known("peaks")
        if "failed" in again:
            self.of = {key: each for key, each in self.of.items() if each["verdict"] == "same bits"}

    def write(self):
        peaks = [
            {"program": name, "way": way, **peak} for (name, way), peak in self.peaks.items() if isinstance(peak, dict)
        ]
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"results": list(self.of.values()), "peaks": peaks}, indent=2) + "\n")
        fresh.replace(self._path)


def report(chosen, results):
    """One line for what is not as it should be, and how many there are of each verdict."""
    found = [results.of[each] for each in chosen if each in results.of]
    counts = {}
    for each in found:
        counts[each["verdict"]] = counts.get(each["verdict"], 0) + 1
    missing = len(chosen) - len(found)
    print("models:", ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "none measured", end="")
    print(f"; {missing} still to be run" if missing else "")
    bad = [each for each in found if each["verdict"] in ("other bits", "over budget", "failed")]
    for each in bad:
        print(f"models: {each['program']}, {each['way']}: {each['verdict']}: {each.get('reason', '')[:300]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
