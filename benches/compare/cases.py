"""Cases: the peers that are compared, and the limits of the ratios."""

from dataclasses import dataclass

import measure
import spdk
from devices import Files, LoopDevices
from figures import Limits
from peers import Fio, Load, Tidelog
from python_peers import DeepSpeed, SavedFile

# The log keeps two versions of what is written, so it works on a part of its devices.
PART = "384m"
# DeepSpeed is handed a whole device's share as one tensor, and tells its caller of nothing less.
TENSORS = "8m"


@dataclass(frozen=True)
class Case:
    """One load, the two that do it, and what the ratios must be."""

    name: str
    peer: object
    ours: Tidelog
    load: Load
    limits: Limits = Limits()
    devices: int = 2
    # Both leave the devices as they find them, so they need not have devices of their own.
    share_devices: bool = False
    # Whether it is shown on files of a disk, too.
    on_disk: bool = True
    # Whether both sides drive controllers without the kernel.
    on_controllers: bool = False

    def is_for(self, kind):
        if self.on_controllers or kind is spdk.Controllers:
            return self.on_controllers and kind is spdk.Controllers
        return self.on_disk or kind is LoopDevices

    def limits_on(self, kind):
        """Limits are for software. What a disk allows is shown."""
        return Limits() if kind == Files.kind else self.limits

    def turns(self, effort, kind):
        """Pairs with the one that warms up."""
        pairs, _ = effort.of(self, kind.kind)
        return pairs + 1

    def check(self):
        self.peer.check()

    def measured(self, kind, folder, effort, progress):
        return measure.on_devices(self, kind, folder, effort, progress)


def cases(program, environment):
    """Every case. Names begin with the peer, so that `--only` can choose one."""
    return [
        *against_fio(program),
        *against_deepspeed(program, environment),
        *against_savers(program, environment),
        *against_spdk(program),
    ]


def against_build(program, other):
    """Returns the cases against fio, with another build of ours in fio's place."""
    return [
        Case(
            f"build:{case.name.partition(':')[2]}",
            Tidelog(other, case.ours.level),
            case.ours,
            case.load,
            share_devices=case.share_devices,
        )
        for case in against_fio(program)
        if case.name.startswith("fio-io_uring:")
    ]


def against_fio(program):
    raw, log = Tidelog(program, "raw"), Tidelog(program, "log")
    sequential, random = {"bs": "1m", "iodepth": 32}, {"bs": "4k", "iodepth": 64, "cpus": "0"}
    as_fast = Limits(median_min=1.0, lower_min=0.97, cpu_max=1.05)
    loads = [
        ("raw-read", raw, Load("read", **sequential), as_fast),
        ("raw-write", raw, Load("write", **sequential), as_fast),
        ("raw-randread-4k", raw, Load("randread", **random), as_fast),
        ("log-read", log, Load("read", size=PART, **sequential), Limits(median_min=0.75)),
        ("log-write", log, Load("write", size=PART, **sequential), Limits(median_min=0.85)),
    ]
    for engine in ("io_uring", "libaio"):
        for name, ours, load, limits in loads:
            # What is asked for is asked against io_uring; libaio is shown beside it, where nothing of ours is between.
            if engine == "io_uring":
                yield Case(f"fio-{engine}:{name}", Fio(engine), ours, load, limits, share_devices=ours.level == "raw")
            elif ours.level == "raw":
                yield Case(f"fio-{engine}:{name}", Fio(engine), ours, load, share_devices=True)


def against_deepspeed(program, environment):
    """DeepSpeed has no checksums. Our raw path has none either; our log does not compare them here where it reads, and
    has no way to write without, so that row has no limits."""
    peer = DeepSpeed(environment)
    for devices, write, read in ((2, 1.05, 1.2), (1, 1.05, 1.3)):
        for level in ("raw", "log"):
            ours = Tidelog(program, level, checksums=False, tensors=TENSORS if level == "log" else None)
            for rw, least in (("write", write), ("read", read)):
                load = Load(rw, "1m", 32, size=PART)
                limits = Limits(median_min=least, cpu_max=0.7 if devices == 2 else None)
                if (level, rw) == ("log", "write"):
                    limits = Limits()
                yield Case(
                    f"deepspeed:{level}-{rw}-{devices}-devices", peer, ours, load, limits, devices, on_disk=devices == 2
                )


def against_savers(program, environment):
    """Tensors made durable and loaded again. They write one file, so both sides have one device."""
    log = Tidelog(program, "log")
    for way in ("safetensors", "torch-save"):
        for rw in ("write", "read"):
            load = Load(rw, "1m", 32, size=PART, durable=rw == "write")
            yield Case(f"{way}:log-{rw}", SavedFile(environment, way), log, load, devices=1)


def against_spdk(program):
    ours = Tidelog(program, "raw", engine="tidelog-spdk")
    for name, load in (
        ("randread-4k", Load("randread", "4k", 64, cpus=str(spdk.CPU))),
        ("read-128k", Load("read", "128k", 32, cpus=str(spdk.CPU))),
        ("write-128k", Load("write", "128k", 32, cpus=str(spdk.CPU))),
    ):
        limits = Limits(median_min=0.95)
        yield Case(f"spdk:{name}", spdk.Perf(), ours, load, limits, share_devices=True, on_controllers=True)
