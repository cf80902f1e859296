"""Pools on a disk of a given rate, for what is to be seen where disks are the limit, whatever else the machine does."""

import os
import subprocess
from pathlib import Path

FOLDER = "TIDETEST_SLOW_FOLDER"  # the variable that says what is slow
OPTIONS = {"data_path": "posix"}  # of a block: past the C library nothing is slower
# Four of that path's threads wait for each file: there are so many that reads do not wait for all writes.
_FILES = 4


def variables(folder, bytes_per_second):
    """Returns the variables of a process that reads and writes the files below a folder no faster, each way."""
    library = Path(folder, "slow_disk.so")
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return {
        "LD_PRELOAD": str(library),
        FOLDER: os.path.realpath(folder),
        "TIDETEST_SLOW_RATE": str(bytes_per_second),
    }


def pool(folder):
    """Makes a folder below the one that is slow; returns the devices of a pool there."""
    os.makedirs(folder, exist_ok=True)
    return ",".join(os.path.join(folder, str(number)) for number in range(_FILES))
