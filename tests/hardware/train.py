#!/usr/bin/env python3
"""Trains a GPT of a billion parameters on a GPU: without limit, with save_on_cpu hooks, with FSDP2's and DeepSpeed's
offload, and with Tidelog at parts of that peak; compares every bit of every loss, and each step with the least that it
could take.

    python tests/hardware/train.py [--pool NAME=DIR ...] [--fraction 0.5 ...] [--batch 8 ...] [--within SECONDS]
    [--resume FILE]

A limited run cannot cheat: what CUDA has beside the limit is taken from it first, and the model is built inside the
block. Each run is a process of its own. The rows that say most come first; one that would not fit into the time is not
begun, and listed as such. With --resume a later call does what this one left, and what failed once more. The bound is
tidelog-plan's for the traced step, on a machine as tidelog-bench measures it here by the data path that ran (--tools
says where both are).

Exit code 1: a loss differs in any bit, a step is above the mark, or a run failed; 2: wrong use; 3: rows are left; 77:
there is no GPU.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
_ROOMS = ("torch-bridge/python", "demo", "tests/torch", "tests/hardware")
sys.path[:0] = [str(ROOT / room) for room in _ROOMS]

import torch  # noqa: E402

from training import GIB, WARM_STEPS, runs  # noqa: E402
from training.bound import BoundError, Bounds  # noqa: E402

NO_GPU, LEFT = 77, 3
LACKING = 78  # of a child: this machine cannot run it
# What Python does between the ops is most of so small a step: no mark is for it.
TINY = {"layers": 2, "width": 128, "context": 32, "batch": [2], "steps": 5, "mark": float("inf")}


def main():
    arguments = parse_arguments()
    if arguments.run:
        try:
            return runs.RUNS[arguments.run](arguments)
        except runs.Lacking as why:
            print(why, file=sys.stderr)
            return LACKING
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("train.py: torch finds no CUDA GPU: nothing ran")
        return NO_GPU
    comparison = Comparison(arguments)
    for wanted in rows_of(arguments):
        comparison.run(wanted)
    if arguments.output == "json":
        print(json.dumps(comparison.results, indent=1))
    if any(line_of(result, arguments.mark).startswith("FAILED") for result in comparison.results):
        return 1
    return LEFT if any("left" in result for result in comparison.results) else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--fraction", type=float, nargs="+", default=[0.5, 0.33, 0.25], help="limits, as parts of the peak"
    )
    parser.add_argument(
        "--pool", nargs="+", metavar="NAME=DIR", help="folders for the pool, the fastest first (memory=/dev/shm)"
    )
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        default=[8, 4, 16],
        help="sequences a step, one comparison each, the first before the others",
    )
    parser.add_argument(
        "--segments",
        choices=["native", "expandable"],
        nargs="+",
        default=["native"],
        help="how torch's allocator has the GPU's memory in the first limited runs",
    )
    parser.add_argument("--steps", type=int, default=6, help=f"steps of each run; the first {WARM_STEPS} are not timed")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=2048, help="20 layers of 2048 are 1.01 billion parameters")
    parser.add_argument("--context", type=int, default=512, help="tokens a sequence")
    parser.add_argument(
        "--mark",
        type=float,
        default=1.10,
        help="a limited step takes at most so many times its bound (no mark with --tiny)",
    )
    parser.add_argument("--tiny", action="store_true", help="a small model and few steps, to try the script itself")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu, to try the script itself")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument(
        "--resume",
        type=pathlib.Path,
        help="rows that passed, and are in this file, are not run again; new ones go there",
    )
    parser.add_argument("--traces", type=pathlib.Path, help="a folder that keeps the traces of limited runs")
    parser.add_argument("--tools", default=ROOT / "target" / "release", help="where tidelog-bench and tidelog-plan are")
    parser.add_argument("--gpu-at", help="the GPU's PCI address, whose link limits the bound (default: torch says)")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    for name, kind in {
        "run": str,
        "folder": str,
        "limit": int,
        "pool-size": int,
        "host-memory": int,
        "result": str,
        "trace": str,
    }.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name, value in TINY.items() if arguments.tiny else ():
        if getattr(arguments, name) == parser.get_default(name):
            setattr(arguments, name, value)
    if arguments.steps <= WARM_STEPS:
        parser.error(f"--steps {arguments.steps}: at least {WARM_STEPS + 1}, of which the last are timed")
    if any(not 0 < fraction <= 1 for fraction in arguments.fraction):
        parser.error(f"--fraction {arguments.fraction}: each is above 0, and 1 at most")
    named = (pool.rpartition("=") for pool in arguments.pool or [tempfile.gettempdir()])
    arguments.pool = {name or folder: folder for name, _, folder in named}
    return arguments


def rows_of(arguments):
    """All rows, those that say most first: what offloading costs, others beside it, then other
    sizes and slower pools.
    """
    first, *others = arguments.batch
    fast, *slow = arguments.pool
    disk = slow[-1] if slow else fast

    def limited(batch, pool, fractions=arguments.fraction):
        return [{"run": "limited", "batch": batch, "pool": pool, "fraction": fraction} for fraction in fractions]

    # In page-locked host memory, which only a GPU's tensors have.
    in_host_memory = [{**row, "host": True} for row in limited(first, fast) if arguments.device == "cuda"]
    rows = [{"run": "plain", "batch": first}, *in_host_memory, *limited(first, fast)]
    if "expandable" in arguments.segments:
        rows += [{**row, "segments": "expandable"} for row in limited(first, fast)]
    if "native" not in arguments.segments:
        rows = [row for row in rows if row["run"] == "plain" or "segments" in row]
    rows += [{"run": name, "batch": first, "pool": disk} for name in ("hooks", "fsdp")]
    rows += [row for pool in slow for row in limited(first, pool, arguments.fraction[:1])]
    rows += [row for batch in others for row in [{"run": "plain", "batch": batch}, *limited(batch, fast)]]
    rows += [{"run": "deepspeed", "batch": first, "pool": disk}]
    rows += [row for pool in slow for row in limited(first, pool, arguments.fraction[1:])]
    rows += [row for batch in others for pool in slow for row in limited(batch, pool)]
    rows += [{"run": name, "batch": batch, "pool": disk} for batch in others for name in ("hooks", "fsdp", "deepspeed")]
    return rows


NAMES = {"plain": "no limit", "hooks": "save_on_cpu", "fsdp": "FSDP2 CPU offload", "deepspeed": "ZeRO-Infinity"}
SAME_MATHEMATICS = ("plain", "hooks", "limited")  # others update on the CPU, whose last bits are others


def name_of(wanted):
    place = "in host memory" if wanted.get("host") else f"on {wanted.get('pool')}"
    name = NAMES.get(wanted["run"]) or f"{wanted['fraction']:.0%} {place}"
    return f"{name}, {wanted['segments']}" if "segments" in wanted else name


class Comparison:
    """Runs rows, one after the other, within the time; keeps what was found, also from call to call."""

    def __init__(self, arguments):
        self._arguments = arguments
        self._deadline = time.monotonic() + arguments.within
        self._known = self._read_known()
        self._took = {}  # seconds, by kind of run and pool: what the next one of its kind is expected to take
        self._machines = {}
        smaller = {"bench_bytes": "16m", "bench_seconds": 1} if arguments.tiny else {}
        self._bounds = Bounds(arguments.tools, arguments.gpu_at or gpu_address(arguments.device), **smaller)
        self.results = []

    def run(self, wanted):
        key = json.dumps(
            {
                **wanted,
                **{name: getattr(self._arguments, name) for name in ("device", "layers", "width", "context", "steps")},
            }
        )
        result = self._known.get(key)
        if result is None:
            tokens = wanted["batch"] * self._arguments.context
            result = {"name": name_of(wanted), **wanted, "tokens": tokens, **self._attempt(wanted)}
            if "left" not in result and not self._has_failed(result) and self._arguments.resume:
                with self._arguments.resume.open("a") as file:
                    file.write(json.dumps({"key": key, "result": result}) + "\n")
        self.results.append(result)
        if self._arguments.output == "text":
            print(line_of(result, self._arguments.mark), flush=True)

    def _has_failed(self, result):
        return line_of(result, self._arguments.mark).startswith("FAILED")

    def _read_known(self):
        file = self._arguments.resume
        lines = file.read_text().splitlines() if file and file.exists() else []
        known = {each["key"]: each["result"] for each in map(json.loads, lines)}
        return {key: result for key, result in known.items() if not self._has_failed(result)}

    def _attempt(self, wanted):
        plain = self._plain(wanted["batch"])
        if wanted["run"] != "plain" and (plain is None or "seconds" not in plain):
            return {"left": "its run without limit is missing"}
        kind = (wanted["run"], wanted.get("pool"), wanted.get("host"))
        left = self._deadline - time.monotonic()
        if left <= self._took.get(kind, 0):
            return {
                "left": f"the time was up ({max(left, 0):.0f} s left, the last of its kind took {self._took.get(kind, 0):.0f} s)"
            }
        started = time.monotonic()
        folder = self._arguments.pool.get(wanted.get("pool"))
        # Whatever becomes of the process, its pool goes.
        with (
            tempfile.TemporaryDirectory() as scratch,
            tempfile.TemporaryDirectory(prefix="tidelog-train-", dir=folder) as pool,
        ):
            found = self._child(wanted, plain, scratch, pool, left)
            self._took[kind] = time.monotonic() - started
            if "losses" not in found:
                return found
            found["step_seconds"] = statistics.median(found["seconds"][WARM_STEPS:])
            self._compare(found, plain or found, wanted)
            if wanted["run"] == "limited":
                trace = pathlib.Path(scratch, "trace.json")
                found |= self._bound(found, folder, trace)
                if self._arguments.traces and trace.exists():
                    self._arguments.traces.mkdir(parents=True, exist_ok=True)
                    shutil.copy(trace, self._arguments.traces / f"{name_of(wanted)}, {wanted['batch']}.json")
        return found

    def _plain(self, batch):
        return next((each for each in self.results if each["run"] == "plain" and each["batch"] == batch), None)

    def _child(self, wanted, plain, scratch, pool, left):
        """Runs the row in a process of its own; returns its figures, or why there are none."""
        result, arguments = pathlib.Path(scratch, "result.json"), self._arguments
        command = [sys.executable, __file__, "--run", wanted["run"], "--result", result, "--batch", wanted["batch"]]
        for name in ("steps", "layers", "width", "context", "device"):
            command += [f"--{name}", getattr(arguments, name)]
        command += ["--folder", pool]
        if wanted["run"] == "limited":
            # The model is not there yet when the pool is made: its size is told.
            room = shutil.disk_usage(pool).free * 9 // 10
            if room < plain["peak_bytes"]:
                return {
                    "lacking": f"{pool} has room for {room / GIB:.1f} GiB, of {plain['peak_bytes'] / GIB:.1f} that train"
                }
            command += [
                "--limit",
                int(plain["peak_bytes"] * wanted["fraction"]),
                "--trace",
                pathlib.Path(scratch, "trace.json"),
            ]
            command += ["--pool-size", min(3 * plain["peak_bytes"] // 2, room)]
            if wanted.get("host"):
                command += ["--host-memory", 3 * plain["peak_bytes"] // 2]
        # Deterministic matrix products need it (torch.use_deterministic_algorithms).
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if "segments" in wanted:
            environment |= dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
        limit = None if left == float("inf") else left
        try:
            done = subprocess.run(
                [str(word) for word in command],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return {"left": f"not done within the {left:.0f} s that were left"}
        if done.returncode == 0:
            return json.loads(result.read_text())
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        if done.returncode == LACKING:
            return {"lacking": last}
        sys.stderr.write(done.stderr)
        # That somebody else's program does not run here says nothing of ours.
        return {"failed": last} if wanted["run"] in SAME_MATHEMATICS else {"lacking": f"it does not run here: {last}"}

    def _compare(self, found, plain, wanted):
        found["plain_seconds"] = statistics.median(plain["seconds"][WARM_STEPS:])
        found["ratio"] = found["step_seconds"] / found["plain_seconds"]
        found["same"] = found["losses"] == plain["losses"]
        found["different"] = not found["same"] and wanted["run"] in SAME_MATHEMATICS
        pairs = [(float.fromhex(one), float.fromhex(other)) for one, other in zip(found["losses"], plain["losses"])]
        found["loss_difference"] = max(abs(one - other) for one, other in pairs)

    def _bound(self, found, folder, trace):
        if self._bounds.why_not or not trace.exists():
            return {
                "bound_why_not": self._bounds.why_not or f"no bound: no plan was made ({'; '.join(found['notices'])})"
            }
        way = folder, found["data_path"]
        try:
            if way not in self._machines:
                self._machines[way] = self._bounds.machine(*way, direct=runs.is_direct(folder))
            machine = self._machines[way]
            if found["host_memory"]:
                if "pcie" not in machine:
                    return {"bound_why_not": "no bound: the rate of the GPU's link is not known"}
                machine = {**machine, "host": {**machine["pcie"], "latency_ns": 0, "memory": found["host_memory"]}}
            least = self._bounds.seconds(trace, machine, found["limit"], found["staging_in_budget"])
        except BoundError as why:
            return {"bound_why_not": f"no bound: {why}"}
        return {"machine": self._machines[way], "bound_seconds": least, "to_bound": found["step_seconds"] / least}


def gpu_address(device):
    """Returns the PCI address of CUDA's first GPU, if torch tells."""
    if device != "cuda":
        return None
    properties = torch.cuda.get_device_properties(0)
    if not hasattr(properties, "pci_bus_id"):
        return None
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def line_of(result, mark):
    """A row of the table: FACT, FAILED or LEFT, and what there is to say."""
    about = f"{result['name']:24} {result['tokens']:5} tokens a step: "
    for word, why in (("FAILED", "failed"), ("LEFT", "left"), ("LEFT", "lacking")):
        if result.get(why):
            return f"{word} {about}{result[why]}"
    wrong = []
    line = f"{result['step_seconds']:.3f} s a step ({result['ratio']:.2f} x), peak {result['peak_bytes'] / GIB:.2f} GiB"
    if "bytes_in" in result:
        moved = f"{result['bytes_out'] / GIB:.2f} GiB out, {result['bytes_in'] / GIB:.2f} GiB in"
        line += f" by {result['data_path']}, in the last step {moved}, {result['stall_seconds']:.2f} s waiting"
    if "to_bound" in result:
        # The bound rests on what each op took when it was profiled. A GPU that had to wait for launches makes that
        # longer than the plain step is, and the bound too easy: both are told.
        ops = result["plan"]["compute_ns"] / 1e9
        line += f", {result['to_bound']:.2f} x the bound of {result['bound_seconds']:.3f} s"
        line += f" (from ops of {ops:.3f} s; a plain step takes {result['plain_seconds']:.3f} s)"
        if result["to_bound"] > mark:
            wrong.append(f"ABOVE THE MARK of {mark:.2f} x")
    if memory := result.get("gpu_memory"):
        line += (
            f", {result['reserved_bytes'] / GIB:.2f} GiB reserved at most, {memory['not_ours'] / GIB:.2f} GiB not ours"
        )
        line += f", {memory['trims']} trims, {memory['device_allocations']} allocations of the driver"
        line += f", {memory['out_of_memory']} times without memory"
    if rates := result.get("rates"):
        named = {name: each for name, each in rates.items() if name in ("ssd", "host") and each}
        each = (
            f"{name} {way} {rate['bytes_per_second'] / 1e9:.1f}" for name in named for way, rate in named[name].items()
        )
        line += f", planned with GB/s of {', '.join(each)}"
    line += ", " + result["bound_why_not"] if "bound_why_not" in result else ""
    line += ", same bits" if result["same"] else f", losses within {result['loss_difference']:.2g}"
    if result["different"]:
        wrong.append("DIFFERENT LOSSES")
    return f"FAILED {about}{' and '.join(wrong)}: {line}" if wrong else f"FACT {about}{line}"


if __name__ == "__main__":
    sys.exit(main())
