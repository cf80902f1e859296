"""Those who are compared: each runs a load on two devices and says what came of it."""

import json
import shutil
import subprocess
from dataclasses import dataclass


class NoPeer(Exception):
    """A peer is not on this machine."""


@dataclass(frozen=True)
class Load:
    """A load in fio's words."""

    rw: str
    bs: str
    iodepth: int
    size: str | None = None
    cpus: str | None = None

    def options(self, devices, seconds):
        given = {
            "name": "compare",
            "rw": self.rw,
            "bs": self.bs,
            "iodepth": self.iodepth,
            "filename": ":".join(devices.names),
            "direct": 1,
            "time_based": 1,
            "runtime": f"{round(seconds * 1000)}ms",
            "ramp_time": "200ms",
            "randseed": 1,
            "output-format": "json",
        }
        if self.size or devices.size:
            given["size"] = self.size or devices.size
        if self.cpus:
            given["cpus_allowed"] = self.cpus
        return [f"--{name}={value}" for name, value in given.items()]


@dataclass(frozen=True)
class Sample:
    """What one run did."""

    bytes_per_second: float
    cpu_seconds_per_gib: float
    p99_us: float


def run(command):
    """A report in fio's JSON as a sample."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{ran.stdout}{ran.stderr}")
    (job,) = json.loads(ran.stdout[ran.stdout.index("{") :])["jobs"]
    way = job["read"] if job["read"]["io_bytes"] else job["write"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return Sample(
        bytes_per_second=way["bw_bytes"],
        cpu_seconds_per_gib=cpu / (way["bw_bytes"] / 2**30),
        p99_us=way["clat_ns"]["percentile"]["99.000000"] / 1000,
    )


class Peer:
    """Somebody who can run a load."""

    name: str

    def run(self, load, devices, seconds):
        raise NotImplementedError


class Fio(Peer):
    """fio's io_uring engine with what makes it fast: buffers and files registered, one thread."""

    def __init__(self):
        if not shutil.which("fio"):
            raise NoPeer("fio is not installed (on Debian and Ubuntu: apt-get install fio)")
        version = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        self.name = f"{version} io_uring fixedbufs registerfiles"

    def run(self, load, devices, seconds):
        # fio changes what it writes from time to time unless told not to; we write the same bytes again.
        engine = ["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1", "--thread", "--scramble_buffers=0"]
        return run(["fio", *load.options(devices, seconds), *engine])


class Tidelog(Peer):
    """Tidelog, on bytes of devices (raw) or as a log of tensors with checksums (log)."""

    def __init__(self, program, level):
        self.program, self.level, self.name = str(program), level, f"tidelog {level}"

    def run(self, load, devices, seconds):
        words = ["--ioengine=tidelog-uring", f"--level={self.level}", "--eta=never"]
        # These devices were made a moment ago; what stands on them is ours or the last run's.
        if load.rw.endswith("write") and self.level == "raw":
            words.append(f"--overwrite={':'.join(devices.names)}")
        if self.level == "log":
            # What a tensor's piece on one device is, an operation is to the peer.
            words.append(f"--stripe_unit={load.bs}")
        return run([self.program, *load.options(devices, seconds), *words])
