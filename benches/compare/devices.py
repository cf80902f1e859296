"""What loads run on: pairs of devices that are made for a case and go with it."""

import os
import pathlib
import subprocess
import tempfile

MEMORY = pathlib.Path("/dev/shm")
DEVICE_BYTES = 1 << 30
BLANK = bytes(1 << 20)


class NoDevices(Exception):
    """This machine has none to give."""


def run(*command):
    """What a program says, or why there is no device."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoDevices(f"{command[0]} is not installed") from None
    if ran.returncode != 0:
        raise NoDevices(f"{command[0]}: {ran.stderr.strip()}")
    return ran.stdout.strip()


class LoopDevices:
    """Two loop devices over files in memory."""

    kind = "loop, memory"
    size = None

    def __init__(self, _disk):
        self.names, self.folder = [], None

    def __enter__(self):
        if os.geteuid() != 0:
            raise NoDevices("loop devices need root")
        if not MEMORY.is_dir():
            raise NoDevices(f"there is no {MEMORY}")
        self.folder = tempfile.TemporaryDirectory(prefix="tidelog-compare-", dir=MEMORY)
        try:
            for name in ("a", "b"):
                backing = pathlib.Path(self.folder.name, name)
                # Written in full: memory that was only reserved is found, page by page, when it is first used.
                with open(backing, "wb") as file:
                    for _ in range(DEVICE_BYTES // len(BLANK)):
                        file.write(BLANK)
                # Where the file system in memory has no O_DIRECT the loop device copies through its page cache,
                # for both sides alike.
                self.names.append(run("losetup", "--find", "--show", "--direct-io=on", str(backing)))
        except NoDevices:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["losetup", "--detach", name], check=False)
        if self.folder:
            self.folder.cleanup()


class Files:
    """Two files on a disk."""

    kind = "files, disk"
    size = "512m"

    def __init__(self, disk):
        self.folder = tempfile.TemporaryDirectory(dir=disk)
        self.names = [str(pathlib.Path(self.folder.name, name)) for name in ("a", "b")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()
