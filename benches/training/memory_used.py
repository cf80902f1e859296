"""The kernel's count of a process's memory: the peak since it was last asked, without pages of files."""

import pathlib

STATUS, RESET = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def fields():
    """Bytes by name (proc(5))."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}


def anonymous():
    """Anonymous memory now, and huge pages, which the kernel counts apart."""
    now = fields()
    return now["RssAnon"] + now.get("HugetlbPages", 0)


def begin_peak():
    """The kernel forgets the peak so far."""
    RESET.write_text("5")


def peak():
    """VmHWM, the most that was resident, less what are pages of files: libraries, which stay."""
    now = fields()
    return now["VmHWM"] - now["RssFile"] - now["RssShmem"] + now.get("HugetlbPages", 0)


def moved():
    """Bytes that this process read from devices, and wrote to them."""
    words = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    return int(words["read_bytes"]), int(words["write_bytes"])
