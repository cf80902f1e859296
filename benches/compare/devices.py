"""Devices of loads: devices that are made for a case and go with it."""

import concurrent.futures
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

MEMORY = pathlib.Path("/dev/shm")
DEVICE_BYTES = 1 << 30
BLANK = bytes(1 << 20)


class NoDevices(Exception):
    """Error of a machine that has no devices to give."""


def run(*command):
    """Returns the output of a program, or raises the reason why there is no device."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoDevices(f"{command[0]} is not installed") from None
    if ran.returncode != 0:
        raise NoDevices(f"{command[0]}: {ran.stderr.strip()}")
    return ran.stdout.strip()


def fill(backing, size):
    """Written in full: memory that was only reserved is found, page by page, when it is first used."""
    with open(backing, "wb") as file:
        for _ in range(size // len(BLANK)):
            file.write(BLANK)


def unmount(place, tries=50):
    """Unmounts a file system, which operations of a killed process hold for a moment longer."""
    for _ in range(tries):
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.2)
    print(f"compare: {place} stays mounted", file=sys.stderr)


class LoopDevices:
    """Loop devices over files in memory."""

    kind = "loop, memory"
    size = None

    def __init__(self, _disk, count, device_bytes=DEVICE_BYTES):
        self.count, self.device_bytes = count, device_bytes
        self.names, self.mounted, self.undo = [], [], contextlib.ExitStack()

    def __enter__(self):
        if os.geteuid() != 0:
            raise NoDevices("loop devices need root")
        if not MEMORY.is_dir():
            raise NoDevices(f"there is no {MEMORY}")
        with contextlib.ExitStack() as undo:
            self.folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-compare-", dir=MEMORY))
            backings = [pathlib.Path(self.folder, f"device-{index}") for index in range(self.count)]
            with concurrent.futures.ThreadPoolExecutor() as threads:
                list(threads.map(fill, backings, [self.device_bytes] * self.count))
            for backing in backings:
                self.names.append(self.loop(undo, backing))
            self.undo = undo.pop_all()
        return self

    def loop(self, undo, backing):
        # Where the file system in memory has no O_DIRECT the loop device copies through its page cache,
        # for both sides alike.
        name = run("losetup", "--find", "--show", "--direct-io=on", str(backing))
        undo.callback(subprocess.run, ["losetup", "--detach", name], check=False)
        return name

    def files(self):
        """A file on each device, for those who take no devices: on ext4, made when it is first asked for."""
        for index, name in enumerate(self.names[len(self.mounted) :], len(self.mounted)):
            place = pathlib.Path(self.folder, f"mounted-{index}")
            place.mkdir()
            # All of it now: what is put off would be written while others are measured.
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", name)
            run("mount", name, str(place))
            self.undo.callback(unmount, place)
            self.mounted.append(place / "data")
        return self.mounted

    def __exit__(self, *_):
        self.undo.close()


class Files:
    """Files on a disk."""

    kind = "files, disk"
    size = "512m"

    def __init__(self, disk, count, _device_bytes=None):
        self.folder = tempfile.TemporaryDirectory(prefix="compare-", dir=disk)
        self.names = [str(pathlib.Path(self.folder.name, f"device-{index}")) for index in range(count)]

    def files(self):
        """Files for those who are not us, where the caller's own do not lie."""
        return [pathlib.Path(f"{name}.data") for name in self.names]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()


KINDS = {"loop": LoopDevices, "files": Files}
