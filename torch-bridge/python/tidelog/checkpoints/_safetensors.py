"""Checkpoints of a pool as safetensors files, and the other way round: a piece at a time."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from typing import cast

import torch

from tidelog import _errors
from tidelog.checkpoints._manifest import Placed, View
from tidelog.checkpoints._saved import Saved
from tidelog.memory._record import Storage, untyped_storage

# Bytes of one tensor in memory while it is exported.
_CHUNK = 16 << 20

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def export(saved: Saved, path: str) -> None:
    """Writes the tensors of a checkpoint without holding more than a piece of one, or one that is no run
    of bytes. The file is there whole or not at all."""
    views: dict[str, View] = {}
    metadata: dict[str, str] = {"format": "pt"}
    for key, value in saved.parts(saved.manifest.state(lambda view: view)).items():
        if key in metadata:
            raise _errors.Error(f"a part of the checkpoint is called {key!r}, as a part of each file is.")
        if isinstance(value, View):
            views[key] = value
        elif isinstance(value, (int, float, str, bool)):
            metadata[key] = json.dumps(value)
    header = _header(views, metadata)
    partial = f"{path}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for view in views.values():
                for piece in _pieces(saved, view):
                    file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)
        raise
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _header(views: dict[str, View], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for key, view in views.items():
        dtype = _NAMES.get(view.dtype)
        if dtype is None:
            raise _errors.Error(f"{key} is of {view.dtype}, which safetensors files have no name for.")
        start, end = end, end + view.nbytes()
        header[key] = {"dtype": dtype, "shape": list(view.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return text + b" " * (-len(text) % 8)


def _pieces(saved: Saved, view: View) -> Iterator[bytes]:
    if view.is_contiguous():
        yield from saved.bytes_of(view, _CHUNK)
    else:
        tensor = saved.tensor(view).detach().resolve_conj().resolve_neg().contiguous()
        yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


class File:
    """A safetensors file, mapped: no more of it is in memory than the kernel keeps."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            # Copied on write, as torch takes no memory that it must not change.
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(self._mapped[:8], "little")
        start = 8 + length
        if start > len(self._mapped):
            raise _errors.Error(f"{path} is no safetensors file: its header would be longer than the file.")
        header = json.loads(self._mapped[8:start])
        metadata = header.pop("__metadata__", {})
        self.state: dict[str, object] = {key: _scalar(text) for key, text in metadata.items() if key != "format"}
        self.storages: list[Storage] = []
        for key, entry in header.items():
            first, end = entry["data_offsets"]
            dtype = _DTYPES.get(entry["dtype"])
            if dtype is None:
                raise _errors.Error(f"{key} in {path} is of {entry['dtype']}, which torch tensors cannot be here.")
            placed = Placed(len(self.storages), dtype, tuple(entry["shape"]))
            if not 0 <= first <= end <= len(self._mapped) - start or placed.nbytes() != end - first:
                raise _errors.Error(f"{path} is damaged: {key} lies where it cannot lie.")
            self.state[key] = placed
            self.storages.append(self._storage(start + first, end - first))

    def _storage(self, offset: int, length: int) -> Storage:
        if length == 0:
            return cast(Storage, torch.UntypedStorage(0))
        return untyped_storage(torch.frombuffer(self._mapped, dtype=torch.uint8, offset=offset, count=length))


def _scalar(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
