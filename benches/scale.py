"""Prints what a pool moves over reactors, devices and transfer sizes, and what a larger machine would.

    python benches/scale.py [--only simulated memory] [--machine-devices 8 ...] [--output json]

Each row is tidelog-bench at the log level, every read compared with its checksums. `simulated` are the engine's own
disks in memory, with one reactor for each pool: more reactors are as many pools, each with its part of the devices.
`memory` are files in memory through `io_uring`, one pool, whose reactors share its devices. On both a device is a copy
in memory: a processor does what an SSD would, so that GB/s are those of this machine's cores and say little of SSDs.

What carries over is the time of processors for an operation and for a byte, of all threads: a line through the rows
of `memory` with one reactor. For a machine with SSDs the kernel's part of a byte is left out, since no processor copies
what an SSD reads or writes. The rate there is the least of what its devices, its cores and its memory can do.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
KINDS = {"simulated": "tidelog-sim", "memory": "tidelog-uring"}
DIRECTIONS = ("read", "write")
# Bytes in flight: enough for every device, and no more than the caches and the staging memory stand.
IN_FLIGHT = 16 << 20
# Bytes of tensors for each device, which take more than twice that there: no cache holds them.
TENSORS = 128 << 20

Case = collections.namedtuple("Case", "kind direction reactors devices size")
Cost = collections.namedtuple("Cost", "operation byte")


class Result(collections.namedtuple("Result", "rate operations user system")):
    """Bytes and operations per second, and seconds of processors for a second of them."""

    def of_operation(self):
        return [part / self.operations for part in (self.user, self.system)]


def cases(options):
    for kind in options.only:
        for direction in DIRECTIONS:
            for reactors in options.reactors:
                for devices in options.devices:
                    if reactors <= devices:
                        for size in options.sizes:
                            yield Case(kind, direction, reactors, devices, size)


def command(case, bench, folder, seconds):
    """Returns the command of a case: of `simulated` a job for each reactor, of `memory` one."""
    pools = case.reactors if case.kind == "simulated" else 1
    depth = max(4, min(256, IN_FLIGHT // case.size)) // pools
    unit = max(64 << 10, min(1 << 20, case.size))
    # As each reactor needs, or there are fewer.
    staging = max(64 << 20, case.reactors * max(8, 2 * case.devices) * unit)
    common = [
        *(f"--ioengine={KINDS[case.kind]}", "--level=log", f"--rw=rand{case.direction}", f"--bs={case.size}"),
        *(
            f"--iodepth={max(1, depth)}",
            "--direct=0",
            "--time_based",
            f"--runtime={round(1000 * seconds)}ms",
            "--ramp_time=300ms",
        ),
        *(f"--stripe_unit={unit}", f"--staging={staging}"),
        f"--size={TENSORS * case.devices // pools}",
        *("--fixedbufs=0", "--group_reporting"),
    ]
    if case.kind == "memory":
        common.append(f"--reactors={case.reactors}")
    jobs = []
    for pool in range(pools):
        devices = range(pool, case.devices, pools)
        names = ":".join(str(folder / f"device{device}") for device in devices)
        jobs += [f"--name=pool{pool}", *common, f"--filename={names}"]
    return [str(bench), "--output-format=json", *jobs]


def measure(case, bench, folder, seconds):
    for path in folder.iterdir():
        path.unlink()
    called = command(case, bench, folder, seconds)
    run = subprocess.run(called, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(called)}\nended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return result_of(json.loads(run.stdout)["jobs"][0], case.direction)


def result_of(job, direction):
    moved, own = job[direction], job["tidelog"]
    user, system = own["usr_cpu_seconds"], own["sys_cpu_seconds"]
    of_cores = own["cores"] / max(user + system, 1e-9)
    return Result(moved["bw_bytes"], moved["iops"], user * of_cores, system * of_cores)


def line(points):
    """The least squares line through (size, seconds of an operation), weighed by 1/seconds², never below 0."""
    weights = [1 / max(seconds, 1e-12) ** 2 for _, seconds in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, points))
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, (x, y) in zip(weights, points))
    slope = max(0.0, slope / spread if spread else 0.0)
    return Cost(max(0.0, mean_y - slope * mean_x), slope)


def costs(results, direction):
    """Returns the costs in user space and in the kernel, on one device by one reactor; `None` without two sizes."""
    rows = [(case.size, result) for case, result in results.items() if is_fitted(case, direction)]
    parts = zip(*([(size, seconds) for seconds in result.of_operation()] for size, result in rows))
    return [line(points) for points in parts] if len(rows) > 1 else None


def is_fitted(case, direction):
    return case.kind == "memory" and case.direction == direction and case.reactors == 1 and case.devices == 1


Machine = collections.namedtuple("Machine", "devices read write iops cores memory")
# How often a byte passes the memory: an SSD writes it there, a core reads it and writes the copy past its caches; or a
# core reads it and writes the copy, for which its line is read first, and an SSD reads that.
PASSES = {"read": 3, "write": 4}


def projected(machine, cost, direction, size):
    """Returns GB/s by each limit, of transfers of this size."""
    user, kernel = cost
    seconds = user.operation + kernel.operation + user.byte * size
    return {
        "devices": machine.devices * min(getattr(machine, direction), machine.iops * size / 1e9),
        "cores": machine.cores * size / seconds / 1e9,
        "memory": machine.memory / PASSES[direction],
    }


def size_name(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def measured_table(results):
    lines = ["| devices | | reactors | of | size | GB/s | cores | GB of a core's second |", "|---" * 8 + "|"]
    for case, result in results.items():
        cores = result.user + result.system
        figures = f"{result.rate / 1e9:.2f} | {cores:.2f} | {result.rate / 1e9 / cores:.2f}"
        lines.append(
            f"| {case.kind} | {case.direction} | {case.reactors} | {case.devices} | {size_name(case.size)} | {figures} |"
        )
    return "\n".join(lines)


def cost_lines(direction, cost):
    user, kernel = cost
    return (
        f"{direction}: an operation costs {user.operation * 1e6:.2f} µs in user space and {kernel.operation * 1e6:.2f} in "
        f"the kernel, a byte {user.byte * 1e9:.3f} ns and {kernel.byte * 1e9:.3f} (left out below)."
    )


def machine_table(machine, results, options):
    lines = ["| | size | GB/s | by its | devices | cores | memory | cores for all its devices give |", "|---" * 8 + "|"]
    for direction in DIRECTIONS:
        cost = costs(results, direction)
        for size in options.sizes if cost else []:
            limits = projected(machine, cost, direction, size)
            least = min(limits, key=limits.get)
            needed = machine.cores * limits["devices"] / limits["cores"]
            each = " | ".join(f"{limits[limit]:.1f}" for limit in ("devices", "cores", "memory"))
            lines.append(f"| {direction} | {size_name(size)} | {limits[least]:.1f} | {least} | {each} | {needed:.1f} |")
    return "\n".join(lines)


def assumptions(machine):
    return (
        f"Assumed: {machine.devices} SSDs of {machine.read:g} GB/s reads, {machine.write:g} GB/s writes and "
        f"{machine.iops / 1e6:g} million operations a second, each with PCIe lanes of its own; {machine.cores} cores as fast "
        f"as these, all for this; {machine.memory:g} GB/s of memory, which a byte that is read passes {PASSES['read']} "
        f"times, and one that is written {PASSES['write']} times. The thread of the caller, whose memory is copied from and "
        "to, is in the figures. What is not: interrupts of SSDs, the distance to a second processor's memory, and that the "
        "kernel's copy leaves bytes in a core's caches, where an SSD leaves them in the last one or in memory."
    )


def parse():
    cores = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="these devices (both)")
    parser.add_argument("--reactors", nargs="+", type=int, default=[1, 2], help="(1 2)")
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4], help="(1 2 4)")
    sizes = [4 << 10, 64 << 10, 256 << 10, 1 << 20]
    parser.add_argument("--sizes", nargs="+", type=int, default=sizes, help="bytes of a transfer (4 KiB to 1 MiB)")
    parser.add_argument("--seconds", type=float, default=2, help="of each row (2)")
    parser.add_argument("--bench", type=pathlib.Path, help="a tidelog-bench that is built already")
    parser.add_argument("--machine-devices", type=int, default=8, help="SSDs of the larger machine (8)")
    parser.add_argument("--machine-read", type=float, default=14, help="GB/s that one reads (14: PCIe 5.0, 4 lanes)")
    parser.add_argument("--machine-write", type=float, default=10, help="GB/s that one writes (10)")
    parser.add_argument("--machine-iops", type=float, default=2.5e6, help="operations a second of one (2.5 million)")
    parser.add_argument("--machine-cores", type=int, default=32, help="cores that are for this (32)")
    parser.add_argument(
        "--machine-memory", type=float, default=460, help="GB/s of memory (460: 12 channels of DDR5-4800)"
    )
    parser.add_argument("--output", choices=["table", "json"], default="table")
    return parser.parse_args(), cores


def built():
    """Builds tidelog-bench as it is released; returns its path."""
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "tidelog-bench"], cwd=ROOT, check=True)
    return ROOT / "target" / "release" / "tidelog-bench"


def main():
    options, cores = parse()
    bench = options.bench or built()
    results = {}
    with tempfile.TemporaryDirectory(prefix="tidelog-scale-", dir="/dev/shm") as folder:
        for case in cases(options):
            print(" ".join(map(str, case)), "...", file=sys.stderr)
            results[case] = measure(case, bench, pathlib.Path(folder), options.seconds)
    machine = Machine(
        *(options.machine_devices, options.machine_read, options.machine_write, options.machine_iops),
        *(options.machine_cores, options.machine_memory),
    )
    if options.output == "json":
        rows = [{**case._asdict(), **result._asdict()} for case, result in results.items()]
        fitted = {direction: costs(results, direction) for direction in DIRECTIONS}
        print(json.dumps({"cores": cores, "rows": rows, "costs": fitted, "machine": machine._asdict()}, indent=1))
        return
    print(f"Measured on {cores} cores:\n\n{measured_table(results)}\n")
    for direction in DIRECTIONS:
        if cost := costs(results, direction):
            print(cost_lines(direction, cost))
    print(f"\n{assumptions(machine)}\n\n{machine_table(machine, results, options)}")


if __name__ == "__main__":
    main()
