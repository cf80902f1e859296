"""The state of a program without the bytes of its tensors: what a checkpoint keeps beside them.

Tensors are views of storages. A manifest has the state as pickle writes it, with a storage's number
and a view of it in the place of each tensor: tied weights stay tied, and views stay views.
"""

from __future__ import annotations

import collections
import io
import json
import math
import pickle
from collections.abc import Callable
from typing import Any, cast

import torch

from tidelog import _errors
from tidelog.memory._record import Storage, untyped_storage, nbytes

_VERSION = 1

# What a state_dict is made of besides tensors and Python's own types.
_ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "slice"): slice,
    ("builtins", "bytearray"): bytearray,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
}


class Placed:
    """A tensor of which only the storage's number is known, and that it is all of it."""

    def __init__(self, storage: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.storage, self.dtype, self.shape = storage, dtype, shape

    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def saved(self) -> Any:
        """Returns the tensor as `Writer` writes it."""
        strides = [math.prod(self.shape[dimension + 1 :]) for dimension in range(len(self.shape))]
        view = (self.shape, tuple(strides), 0)
        return (self.storage, str(self.dtype).removeprefix("torch."), view, "tensor", (False, False, False))


class Writer(pickle.Pickler):
    """Writes a state, and collects the storages of its tensors."""

    def __init__(self) -> None:
        self._text = io.BytesIO()
        super().__init__(self._text, protocol=4)
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, thing: object) -> Any:
        """A tensor by its storage."""
        if isinstance(thing, Placed):
            return thing.saved()
        if not isinstance(thing, torch.Tensor):
            if isinstance(thing, (torch.UntypedStorage, torch.TypedStorage)):
                raise _errors.Error("a storage cannot be part of a checkpoint; put a tensor there.")
            return None
        self.check(thing)
        storage = untyped_storage(thing)
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        view = (tuple(thing.shape), tuple(thing.stride()), thing.storage_offset())
        kind = "parameter" if isinstance(thing, torch.nn.Parameter) else "tensor"
        flags = (thing.requires_grad, thing.is_conj(), thing.is_neg())
        return (number, str(thing.dtype).removeprefix("torch."), view, kind, flags)

    def check(self, tensor: torch.Tensor) -> None:
        """Refuses by name what could not be read again."""
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise _errors.Error(
                f"a tensor of layout {tensor.layout} on {tensor.device} cannot be part of a checkpoint: "
                "only strided tensors with bytes of their own are."
            )
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise _errors.Error(
                f"a {type(tensor).__name__} cannot be part of a checkpoint: put the tensor there that it holds "
                "(of a DTensor, `to_local()`), or use tidelog.dcp."
            )

    def manifest(self, state: object, ids: Callable[[], list[str]]) -> bytes:
        """The manifest of a state. `ids` gives the ids in the log of `storages`, in their order."""
        self.dump(state)
        sizes = [nbytes(storage) for storage in self.storages]
        head = {"version": _VERSION, "ids": ids(), "sizes": sizes}
        text = json.dumps(head).encode()
        return len(text).to_bytes(8, "little") + text + self._text.getvalue()


class Manifest:
    """A manifest that was read."""

    def __init__(self, content: bytes) -> None:
        length = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + length])
        if head["version"] != _VERSION:
            raise _errors.Error(
                f"the checkpoint has version {head['version']}; this version of Tidelog reads {_VERSION}."
            )
        self.ids: list[str] = head["ids"]
        self.sizes: list[int] = head["sizes"]
        self._state = content[8 + length :]

    def state(self, tensor: Callable[[View], object], *, weights_only: bool = True) -> Any:
        """The state, with what `tensor` makes of each view."""
        return _Reader(io.BytesIO(self._state), tensor, weights_only).load()


class View:
    """A tensor in a manifest."""

    def __init__(self, saved: Any) -> None:
        self.storage, dtype, (self.shape, self.stride, self.offset), self.kind, flags = saved
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.requires_grad, self.conj, self.neg = flags

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor, on memory that has its storage's bytes."""
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        tensor.set_(cast(Any, storage), self.offset, self.shape, self.stride)
        tensor = tensor.conj() if self.conj else tensor
        tensor = torch._neg_view(tensor) if self.neg else tensor
        if self.kind == "parameter":
            return torch.nn.Parameter(tensor, requires_grad=self.requires_grad)
        return tensor.requires_grad_(self.requires_grad) if self.requires_grad else tensor

    def nbytes(self) -> int:
        """Bytes of its elements."""
        return int(math.prod(self.shape)) * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Returns whether the elements lie one after the other, in order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return not (self.conj or self.neg)


class _Reader(pickle.Unpickler):
    def __init__(self, text: io.BytesIO, tensor: Callable[[View], object], weights_only: bool) -> None:
        super().__init__(text)
        self._tensor, self._weights_only = tensor, weights_only

    def persistent_load(self, saved: Any) -> object:
        return self._tensor(View(saved))

    def find_class(self, module: str, name: str) -> Any:
        if not self._weights_only:
            return super().find_class(module, name)
        found = _ALLOWED.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise _errors.Error(
                f"the checkpoint has a {module}.{name}, and reading one runs its code; if you trust who wrote "
                "the pool, pass weights_only=False."
            )
        return found
