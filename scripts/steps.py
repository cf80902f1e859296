#!/usr/bin/env python3
"""Runs make's targets one after the other, up to the first that fails, and tells what each took.

scripts/steps.py TARGET[,TARGET...]...

Targets with commas between them run side by side.
"""

import resource
import subprocess
import sys
import time


def main():
    rows, failed = [], None
    for target in sys.argv[1:]:
        print(f"== make {target}", flush=True)
        began, cpu = time.monotonic(), cpu_seconds()
        running = [subprocess.Popen(["make", "--no-print-directory", each]) for each in target.split(",")]
        codes = [each.wait() for each in running]
        rows.append((target, time.monotonic() - began, cpu_seconds() - cpu))
        if any(codes):
            failed = target
            break
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    print(f"\n{'step':18}{'minutes':>10}{'CPU minutes':>14}")
    for target, seconds, cpu in rows:
        print(f"{target:18}{seconds / 60:10.1f}{cpu / 60:14.1f}")
    if failed:
        print(f"make {failed} failed; its output is above the table", file=sys.stderr)
    return 1 if failed else 0


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
