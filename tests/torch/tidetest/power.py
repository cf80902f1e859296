"""Power cuts of a recorded run: the files as a cut at any moment could have left them.

What had been written when a flush began is there once that flush has ended. Of what came later a cut keeps any
part: a write whole, in some of its sectors, or not at all.
"""

import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512  # what a device writes whole or not at all

_HEADER = struct.Struct("<QQQQq")  # kind, operation, file, offset, length
_WRITE, _FORCED_WRITE, _FLUSH, _ENDED, _NOTE = range(1, 6)
_LOG, _FOLDER = "TIDETEST_RECORDING", "TIDETEST_RECORDED_FOLDER"


def recorded(folder, log):
    """The variables of a process whose writes to the files in a folder are recorded."""
    library = Path(log).with_suffix(".so")
    source = Path(__file__).with_name("recording.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), _LOG: str(log), _FOLDER: str(folder)}


def note(text):
    """Says in the log, where there is one, that the program has come to here."""
    if path := os.environ.get(_LOG):
        log = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(log, _HEADER.pack(_NOTE, 0, 0, 0, len(text)) + text.encode())
        os.close(log)


@dataclass
class Entry:
    """Entry of a log."""

    kind: int
    operation: int
    file: int
    offset: int
    length: int  # of zeroes: negative
    at: int  # where its bytes are in the log


class Images:
    """Images of one file at ever later moments of a log."""

    def __init__(self, log, file, begun, *, blind=False):
        """`begun`: the file as it was before. `blind`: flushes are passed over, as by a disk that lies."""
        self._log = Path(log).read_bytes()
        self._blind = blind
        self.entries = list(self._entries())
        self._inode = file.stat().st_ino
        self._certain = bytearray(begun.read_bytes())
        self._open = {}  # operation that has not ended -> the write that it is, or the writes that its flush covers
        self._pending = []  # (write, whether it is there for certain), from the first that is not, in their order
        self._ended = set()  # which of them have ended
        self._next = 0

    def _entries(self):
        at = 0
        while at < len(self._log):
            entry = Entry(*_HEADER.unpack_from(self._log, at), at + _HEADER.size)
            yield entry
            has_bytes = entry.kind in (_WRITE, _FORCED_WRITE, _NOTE)
            at = entry.at + (max(entry.length, 0) if has_bytes else 0)

    def notes(self, end=None):
        """Returns the notes of the program before an entry, with where it stands."""
        found = enumerate(self.entries[:end])
        return [(index, self._bytes(entry).decode()) for index, entry in found if entry.kind == _NOTE]

    def flushes(self):
        """Returns the start and the end of each flush."""
        begun = {entry.operation for entry in self.entries if entry.kind == _FLUSH}
        return [index for index, entry in enumerate(self.entries) if entry.operation in begun]

    def cut(self, end, choose):
        """The file as a cut before an entry could have left it. Cuts do not go back."""
        for entry in self.entries[self._next : end]:
            self._take(entry)
        self._next = max(self._next, end)
        image = bytearray(self._certain)
        for entry, certain in self._pending:
            outcome = 0 if certain else choose.randrange(4)
            data = self._bytes(entry)
            if outcome < 2:
                image[entry.offset : entry.offset + len(data)] = data
            elif outcome == 2:
                for begin in range(0, len(data), SECTOR):
                    if choose.random() < 0.5:
                        part = data[begin : begin + SECTOR]
                        image[entry.offset + begin : entry.offset + begin + len(part)] = part
        return image

    def _take(self, entry):
        if entry.kind in (_WRITE, _FORCED_WRITE) and entry.file == self._inode:
            self._pending.append((entry, False))
            self._open[entry.operation] = entry
        elif entry.kind == _FLUSH and entry.file == self._inode:
            # What has ended before it began.
            self._open[entry.operation] = {write.operation for write, _ in self._pending} & self._ended
        elif entry.kind == _ENDED:
            self._end(entry.operation)

    def _end(self, operation):
        begun = self._open.pop(operation, None)
        if isinstance(begun, Entry):
            self._ended.add(operation)
        covered = begun if isinstance(begun, set) else set()
        if isinstance(begun, Entry) and begun.kind == _FORCED_WRITE:
            covered = {operation}
        if not covered or self._blind:
            return
        self._pending = [(write, certain or write.operation in covered) for write, certain in self._pending]
        # In their order: a write that may be lost stands before one that cannot.
        while self._pending and self._pending[0][1]:
            write, _ = self._pending.pop(0)
            data = self._bytes(write)
            self._certain[write.offset : write.offset + len(data)] = data
            self._ended.discard(write.operation)

    def _bytes(self, entry):
        if entry.length < 0:
            return bytes(-entry.length)
        return self._log[entry.at : entry.at + entry.length]
