"""The planner's lower bound of a step on the machine as it is measured here: tidelog-bench measures the pool's folder
by the data path that ran, tidelog-plan makes a machine of that and of the GPU's link, and says what no policy can beat.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

BENCH_BYTES = "1g"
BENCH_SECONDS = 2


class Bounds:
    """`tools` is where the binaries are; without them `why_not` says so."""

    def __init__(self, tools, gpu_at=None, bench_bytes=BENCH_BYTES, bench_seconds=BENCH_SECONDS):
        self._bench, self._plan = (pathlib.Path(tools) / name for name in ("tidelog-bench", "tidelog-plan"))
        self._gpu_at, self._bytes, self._seconds = gpu_at, bench_bytes, bench_seconds
        missing = [str(binary) for binary in (self._bench, self._plan) if not binary.exists()]
        self.why_not = f"no bound: {' and '.join(missing)} missing" if missing else None

    def machine(self, folder, data_path, direct):
        """Measures the devices behind a folder, and the GPU's link: a machine without its memory, as tidelog-plan
        writes it.
        """
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=folder) as scratch:
            runs = []
            for name, how, depth in [("write", "write", 16), ("read", "read", 16), ("alone", "read", 1)]:
                target = [
                    f"--ioengine=tidelog-{data_path}",
                    f"--rw={how}",
                    f"--filename={scratch}/device",
                    f"--size={self._bytes}",
                ]
                options = [
                    "--bs=1m",
                    f"--iodepth={depth}",
                    f"--direct={int(direct)}",
                    f"--runtime={self._seconds}",
                    "--time_based",
                ]
                runs.append(pathlib.Path(scratch, f"{name}.json"))
                runs[-1].write_text(self._run(self._bench, f"--name={name}", *target, *options, "--output-format=json"))
            return self._calibrated(*runs, "--memory", "1GiB")

    def _calibrated(self, *arguments):
        """Calibrates a machine with the GPU's link, where the kernel says how wide that is; virtual machines do not."""
        if self._gpu_at:
            try:
                return json.loads(self._run(self._plan, "calibrate", *arguments, "--gpu-at", self._gpu_at))
            except BoundError as why:
                print(f"train.py: bounds without the GPU's link: {why}", file=sys.stderr)
        return json.loads(self._run(self._plan, "calibrate", *arguments))

    def seconds(self, trace, machine, limit, staging):
        """The shortest time that any policy could make the traced step take, with `limit` bytes of memory."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({**machine, "memory": limit, "staging": staging}, file)
            file.flush()
            rows = json.loads(self._run(self._plan, "compare", trace, file.name, "--output", "json"))
        return next(row["time_ns"] for row in rows if row["policy"] == "lower bound") / 1e9

    def _run(self, *command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip() or "no word"
            said = json.loads(said)["error"] if said.startswith("{") else said.splitlines()[-1]
            raise BoundError(f"{pathlib.Path(command[0]).name}: {said}")
        return done.stdout


class BoundError(Exception):
    """A tool did not answer, and what it said."""
