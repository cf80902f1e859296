"""A step of `make gpu-step` beside the walk of the real code, by the same constants: the model's causes, and those that the
bridge itself tells of recorded kernels on a GPU that is not there, in virtual time (tests/torch/tidetest/walk.py).

    benches/gpu_walk.py [STEP] [--percent P] [--steps N] [--end fast|value|slow]

The last of N steps counts: by then a plan is followed, and what it needs has been allocated. The second table has all
steps under a plan but the first STEADY_AFTER. Nothing here depends on the machine or on its load, but how long it takes.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "torch-bridge" / "python"), str(ROOT / "tests" / "torch")]

from tidetest.walk import walked  # noqa: E402

STEADY_AFTER = 10  # planned steps, in which better plans come, and the arena's memory is made
# What a steady step should not have at all: each has a name for people, and its count in a walk.
NEVER = {
    "GPU is waited for (cudaFree and cudaMalloc, too)": "drains",
    "out of memory": "out_of_memory",
    "torch's cache is emptied": "trims",
    "declined by the arena": "arena_declined",
    "bytes of the arena from the driver": "arena_made",
}

BRIDGE = "arena"  # the model of the code as it is, with allocator="arena"


def modelled(name, percent, end):
    """Returns the model's figures of the step, with constants of this end of their ranges."""
    words = ["cargo", "run", "--release", "-q", "-p", "tidelog-planner", "--example", "gpu-step", "--", name]
    words += ["--percent", str(percent), "--bridge", BRIDGE, "--output", "json"]
    told = json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    point = next(point for point in told["steps"][0]["points"] if point["constants"] == end)
    return point["bound_ns"], point["bridges"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", default="gpt-8", help="a trace of planner/traces")
    parser.add_argument("--percent", type=int, default=50, help="memory, in hundredths of the step's peak")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--end", default="value", choices=["fast", "value", "slow"], help="of the constants' ranges")
    asked = parser.parse_args()
    bound, model = modelled(asked.step, asked.percent, asked.end)
    with tempfile.TemporaryDirectory() as folder:
        steps = walked(asked.step, asked.percent, folder, "--end", asked.end, steps=asked.steps)["steps"]
    walk = steps[-1]
    print(f"{asked.step}, {asked.percent} % of its memory: true bound {bound / 1e9:.3f} s")
    print(f"{'':22}{'model':>10}{'walk':>10}")

    def row(label, one, other, unit=1e6, digits=1):
        print(f"{label:22}{one / unit:>10.{digits}f}{other / unit:>10.{digits}f}")

    row("step, ms", model["time_ns"], walk["took_ns"])
    row("of the bound", model["time_ns"], walk["took_ns"], bound, 3)
    for cause, took in model["causes_ns"].items():
        row(f"{cause}, ms", took, walk["causes_ns"][cause])
    counts = model["counts"]
    row("host waits", counts["host_waits"], walk["host_waits"], 1, 0)
    row("requests", counts["requests"], walk["requests"], 1, 0)
    row("2 MiB mapped anew", counts["remapped"], walk["remapped"], 1, 0)
    row("GPU is waited for", counts["drains"], walk["drains"], 1, 0)
    tell_steady([step for step in steps if step["phase"] == "planned"][STEADY_AFTER:], bound)


def tell_steady(steps, bound):
    """Prints what all of these steps took, and what they should not have had."""
    if not steps:
        return
    took = sorted(step["took_ns"] / bound for step in steps)
    print(
        f"{len(steps)} steady steps: {took[0]:.3f} to {took[-1]:.3f} of the bound, half {took[len(took) // 2]:.3f} or less"
    )
    for told, name in NEVER.items():
        print(f"  {told}: {sum(step[name] for step in steps)}")


if __name__ == "__main__":
    main()
