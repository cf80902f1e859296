"""Peers: each runs a load on devices and says what came of it."""

import json
import shutil
import subprocess
from dataclasses import dataclass

UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class NoPeer(Exception):
    """A peer is not on this machine."""


class Failed(Exception):
    """A run came to nothing."""


def size_in_bytes(text):
    """`384m`, as fio and we read it."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


@dataclass(frozen=True)
class Load:
    """A load in fio's words."""

    rw: str
    bs: str
    iodepth: int
    size: str | None = None
    cpus: str | None = None
    # Whether what was written survives a crash when the time is taken.
    durable: bool = False
    rate_iops: int | None = None

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
        if self.rate_iops:
            given["rate_iops"] = self.rate_iops
        if self.cpus:
            given["cpus_allowed"] = self.cpus
        return [f"--{name}={value}" for name, value in given.items()]


@dataclass(frozen=True)
class Sample:
    """Result of one run. Who does not tell of single operations has no latency of them."""

    bytes_per_second: float
    cpu_seconds_per_gib: float
    p99_us: float | None = None


def run(command):
    """Returns the output of a program that succeeds."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Failed(f"{' '.join(command)}\nexit {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def sample_of(report):
    """A report in fio's JSON as a sample."""
    (job,) = json.loads(report[report.index("{") :])["jobs"]
    way = job["read"] if job["read"]["io_bytes"] else job["write"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return Sample(
        bytes_per_second=way["bw_bytes"],
        cpu_seconds_per_gib=cpu / (way["bw_bytes"] / 2**30),
        p99_us=way["clat_ns"]["percentile"]["99.000000"] / 1000,
    )


class Peer:
    """Peer that can run a load."""

    name: str

    def check(self):
        """Raises `NoPeer` where this machine does not have it."""

    def prepare(self, load, devices, seconds):
        """Prepares a case once, before any pair; it is not measured."""

    def run(self, load, devices, seconds):
        """Runs the load once."""
        raise NotImplementedError


class Fio(Peer):
    """An engine of fio with what makes it fast, on one thread."""

    EXTRA = {"io_uring": ["--fixedbufs=1", "--registerfiles=1"], "libaio": []}

    def __init__(self, engine):
        self.engine, self.name = engine, f"fio {engine}"

    def check(self):
        if not shutil.which("fio"):
            raise NoPeer("fio is not installed (on Debian and Ubuntu: apt-get install fio)")
        ran = subprocess.run(["fio", f"--enghelp={self.engine}"], capture_output=True, check=False)
        if ran.returncode != 0:
            raise NoPeer(f"this fio was built without {self.engine}")
        self.name = f"{run(['fio', '--version']).strip()} {self.engine} {' '.join(self.EXTRA[self.engine])}".strip()

    def run(self, load, devices, seconds):
        # fio changes what it writes from time to time unless told not to; we write the same bytes again.
        engine = [f"--ioengine={self.engine}", "--thread", "--scramble_buffers=0", *self.EXTRA[self.engine]]
        return sample_of(run(["fio", *load.options(devices, seconds), *engine]))


class Tidelog(Peer):
    """Tidelog, on bytes of devices (raw) or as a log of tensors (log)."""

    def __init__(self, program, level, checksums=True, tensors=None, engine="tidelog-uring"):
        self.program, self.level, self.checksums, self.engine = str(program), level, checksums, engine
        # Of what size tensors are; they are operations of the load if nothing is said.
        self.tensors = tensors
        self.name = f"tidelog {level}"
        if level == "log":
            self.name += (
                f"{f', tensors of {tensors}' if tensors else ''}{'' if checksums else ', checksums not compared'}"
            )

    def run(self, load, devices, seconds):
        return sample_of(run(self.command(load, devices, seconds)))

    def command(self, load, devices, seconds):
        words = [f"--ioengine={self.engine}", f"--level={self.level}", "--eta=never"]
        if self.level == "log":
            # What a tensor's piece on one device is, an operation is to the peer.
            words += [f"--checksums={int(self.checksums)}", f"--stripe_unit={load.bs}"]
            if self.tensors:
                # As many bytes in flight.
                depth = load.iodepth * size_in_bytes(load.bs) // size_in_bytes(self.tensors)
                words += [f"--bs={self.tensors}", f"--iodepth={depth}"]
        if load.durable:
            # A commit for as many tensors as the peer puts into one file.
            words.append(f"--fsync={size_in_bytes(load.size) // size_in_bytes(load.bs)}")
        # These devices were made a moment ago; what stands on them is ours or the last run's.
        if load.rw.endswith("write") and self.level == "raw":
            words.append(f"--overwrite={':'.join(devices.names)}")
        return [self.program, *load.options(devices, seconds), *words]
