"""Loads the library (a path), uses nothing of it, and reads behind the end of a file that is mapped: the process has to
end by SIGBUS, as it does without the library.
"""

import ctypes
import mmap
import signal
import sys
import tempfile

ctypes.CDLL(sys.argv[1])
signal.alarm(20)
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    print(mapped[0])
