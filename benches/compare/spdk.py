"""SPDK's own perf tool, and controllers for it: those of SPDK's target program, over TCP on the loopback."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import devices
from peers import Failed, NoPeer, Peer, Sample, run, size_in_bytes

START_SECONDS = 60
# The target polls one processor all the time; who is measured has another.
TARGET_CPU, CPU = 0, 1
MEMORY_MIB = 2560


def installed(name):
    """A program of the installed SPDK: in the path, or beside the libraries that pkg-config finds."""
    if found := shutil.which(name):
        return found
    asked = subprocess.run(["pkg-config", "--libs-only-L", "spdk_nvme"], capture_output=True, text=True, check=False)
    places = [pathlib.Path(flag.removeprefix("-L"), "../bin", name) for flag in asked.stdout.split()]
    return next((str(program) for program in places if program.exists()), None)


class Controllers:
    """Controllers over memory, behind NVMe over TCP."""

    kind = "NVMe/TCP, memory"
    size = None

    def __init__(self, disk, count):
        self.disk, self.count = disk, count

    def __enter__(self):
        program = installed("nvmf_tgt")
        if program is None:
            raise devices.NoDevices("no SPDK is installed: nvmf_tgt is neither in the path nor beside its libraries")
        if len(os.sched_getaffinity(0)) < 2:
            raise devices.NoDevices("the target takes a processor for itself, and there is one")
        self.folder = tempfile.TemporaryDirectory(prefix="spdk-", dir=self.disk)
        self.ports = free_ports(self.count)
        self.transports = [
            f"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{subsystem(index)}"
            for index, port in enumerate(self.ports)
        ]
        self.names = ["spdk\\:" + transport.replace(":", "\\:") for transport in self.transports]
        configuration = pathlib.Path(self.folder.name, "target.json")
        configuration.write_text(json.dumps(served(self.ports)))
        words = ["--no-huge", "-s", str(MEMORY_MIB), "--no-pci", "-m", hex(1 << TARGET_CPU), "--disable-cpumask-locks"]
        words += ["-r", str(pathlib.Path(self.folder.name, "rpc")), "--json", str(configuration)]
        log = pathlib.Path(self.folder.name, "log").open("w+")
        self.process = subprocess.Popen([program, *words], stdout=log, stderr=log)
        try:
            self.wait_until_it_listens(log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_until_it_listens(self, log):
        until = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                # The controllers are opened in their order.
                if probe.connect_ex(("127.0.0.1", self.ports[-1])) == 0:
                    return
            if self.process.poll() is not None or time.monotonic() > until:
                log.seek(0)
                raise devices.NoDevices(f"SPDK's target does not serve: {log.read()[-300:]}")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Where it is killed, what it traces into is left behind.
        pathlib.Path(f"/dev/shm/nvmf_trace.pid{self.process.pid}").unlink(missing_ok=True)
        self.folder.cleanup()


def free_ports(count):
    """Ports that are free now, which is as much as can be known."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in held]
    for it in held:
        it.close()
    return ports


def subsystem(index):
    return f"nqn.2026-01.io.tidelog:disk{index}"


def served(ports):
    """Makes the calls by which the target configures itself at its start."""

    def call(method, **parameters):
        return {"method": method, "params": parameters}

    disks, calls = [], [call("nvmf_create_transport", trtype="TCP")]
    for index, port in enumerate(ports):
        disk, nqn = f"disk{index}", subsystem(index)
        address = {"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": str(port)}
        disks.append(call("bdev_malloc_create", name=disk, num_blocks=devices.DEVICE_BYTES // 4096, block_size=4096))
        calls += [
            call("nvmf_create_subsystem", nqn=nqn, allow_any_host=True, serial_number=disk),
            call("nvmf_subsystem_add_ns", nqn=nqn, namespace={"bdev_name": disk}),
            call("nvmf_subsystem_add_listener", nqn=nqn, listen_address=address),
        ]
    return {"subsystems": [{"subsystem": "bdev", "config": disks}, {"subsystem": "nvmf", "config": calls}]}


class Perf(Peer):
    """`spdk_nvme_perf`, on one core."""

    name = "spdk_nvme_perf"

    def check(self):
        if installed(self.name) is None:
            raise NoPeer(f"{self.name} is neither in the path nor beside the libraries of an installed SPDK")

    def run(self, load, on, seconds):
        # It has whole seconds, and a depth for each namespace.
        words = ["-w", load.rw, "-o", str(size_in_bytes(load.bs)), "-q", str(load.iodepth // len(on.names))]
        words += ["-t", str(max(1, round(seconds))), "-c", hex(1 << CPU), "--no-huge", "-s", "256"]
        for transport in on.transports:
            words += ["-r", transport]
        said = run([installed(self.name), *words])
        return Sample(bytes_per_second=total_mib(said) * 2**20, cpu_seconds_per_gib=None)


def total_mib(said):
    """MiB in a second of all namespaces: `Total : IOPS MiB/s ...`."""
    for line in said.splitlines():
        if line.startswith("Total"):
            return float(line.partition(":")[2].split()[1])
    raise Failed(f"spdk_nvme_perf tells of no total:\n{said}")
