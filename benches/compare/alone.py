"""Measures Tidelog alone, with nobody beside it."""

import pathlib
import subprocess
import time
from dataclasses import dataclass

from devices import LoopDevices
from peers import Failed, Load, Tidelog

IDLE_SECONDS, WARM_SECONDS = 10, 1
# The benchmark's own threads. What else there is in its process is the engine.
BENCHMARKS = ("tidelog-bench", "signals", "job-")


@dataclass(frozen=True)
class Idle:
    """Peer with next to nothing to do: one get a second, so that it is known to live."""

    ours: Tidelog
    cpu_percent_max: float = 0.1
    name: str = "alone:idle"

    def is_for(self, kind):
        return kind is LoopDevices

    def turns(self, effort, kind):
        return (IDLE_SECONDS + WARM_SECONDS) / effort.seconds / 2

    def check(self):
        """Checks nothing, as it needs no peer."""

    def measured(self, kind, folder, effort, progress):
        load = Load("read", "4k", 1, size="1m", rate_iops=1)
        with kind(folder, 2) as devices:
            command = self.ours.command(load, devices, 10 * IDLE_SECONDS)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
                try:
                    used = engine_seconds_while_idle(running)
                finally:
                    running.terminate()
                    _, said = running.communicate()
        if used is None:
            raise Failed(f"{' '.join(command)}\nended too early: {said}")
        return {
            "case": self.name,
            "devices": kind.kind,
            "ours": self.ours.name,
            "seconds": IDLE_SECONDS,
            "alone": {"cpu_percent": 100 * used / IDLE_SECONDS},
            "limits": {"cpu_percent_max": self.cpu_percent_max},
        }


def engine_seconds_while_idle(running):
    """CPU time of the engine's threads in a while; `None` if it is not there."""
    deadline = time.monotonic() + 10 * WARM_SECONDS
    while not engine_threads(running.pid):
        if running.poll() is not None or time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    time.sleep(WARM_SECONDS)
    before = cpu_seconds(running.pid)
    time.sleep(IDLE_SECONDS)
    if running.poll() is not None or not engine_threads(running.pid):
        return None
    return cpu_seconds(running.pid) - before


def engine_threads(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task")
    named = [(task, (task / "comm").read_text().strip()) for task in tasks.iterdir()] if tasks.exists() else []
    return [task for task, name in named if not name.startswith(BENCHMARKS)]


def cpu_seconds(pid):
    return sum(int((task / "schedstat").read_text().split()[0]) for task in engine_threads(pid)) / 1e9


def cases(program):
    return [Idle(Tidelog(program, "log"))]
