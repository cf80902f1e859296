"""Traces of training loops without their hardware.

A step runs on meta tensors: shapes, storages and their lives are real, bytes and time are not. What
a kernel would take comes from a roofline of a GPU that is described in a file
(``planner/machines``). What comes out is the trace that the planner reads (``docs/plan.md``).

    gpu = Gpu.load("planner/machines/h100-nvl.json")
    recorder = Recorder(gpu, precision="fp32")
    with recorder:
        step()                      # makes what lives across steps: gradients, optimizer state
        recorder.name_globals(names)
        with recorder.iteration("my model"):
            step()
    text = recorder.to_json()
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tidelog.memory._record import Storage, untyped_storage
from tidelog.output._figures import StrPath
from tidelog.storages._ops import Args, Kwargs, OpOverload, holders_of, info_of, storages, storages_of

FORMAT, VERSION = "tidelog-trace", 1

# Launch no kernel: they name memory that exists, or that a later kernel fills.
_NO_KERNEL = {
    "aten::" + name
    for name in (
        "_reshape_alias _unsafe_view alias as_strided detach empty empty_like empty_strided expand "
        "lift_fresh new_empty new_empty_strided permute select slice split split_with_sizes "
        "squeeze t transpose unbind "
        "unsqueeze view view_as_real view_as_complex unfold chunk"
    ).split()
}
_GATHERS = ("embedding", "index", "gather", "scatter", "nll_loss")
_REDUCTIONS = ("sum", "mean", "softmax", "norm", "var", "max", "min", "argmax", "cumsum")


@dataclass(frozen=True)
class Gpu:
    """Figures that bound a kernel on one GPU. Efficiencies say which part of a peak its kind of kernel reaches."""

    name: str
    memory_bytes: int
    memory_bandwidth: float  # bytes per second
    matmul_flops: dict[str, float]  # by precision
    vector_flops: float
    efficiency: dict[str, float]  # by kind of kernel
    launch_ns: int  # the least that any kernel takes
    peer_bandwidth: float  # bytes per second to the next GPU

    @classmethod
    def load(cls, path: StrPath) -> Gpu:
        with open(path, encoding="utf-8") as file:
            return cls(**json.load(file))

    def kernel_ns(self, kind: str, flops: float, bytes_moved: float, precision: str) -> int:
        """The larger of what arithmetic and memory take, never less than a launch."""
        dense = kind in ("matmul", "attention")
        peak = self.matmul_flops[precision] if dense else self.vector_flops
        arithmetic = flops / (peak * (self.efficiency[kind] if dense else 1))
        memory_kind = "elementwise" if dense else kind
        memory = bytes_moved / (self.memory_bandwidth * self.efficiency[memory_kind])
        return max(self.launch_ns, round(max(arithmetic, memory) * 1e9))


def kind_of(func: OpOverload) -> str:
    """Returns the part of the roofline that bounds an op."""
    packet = func._schema.name.removeprefix("aten::")
    if "attention" in packet:
        return "attention"
    if func.overloadpacket in flop_registry:
        return "matmul"
    if any(packet.startswith(name) for name in _GATHERS):
        return "gather"
    if any(name in packet for name in _REDUCTIONS):
        return "reduction"
    return "elementwise"


@dataclass
class _Storage:
    """A storage that was seen. `identity` is set when it is put into the trace."""

    size: int
    born: tuple[int, int] | None = None  # (op, slot) in the iteration that is recorded
    kind: str = "other"
    identity: object = None
    index: int | None = None
    alive: bool = True


@dataclass
class _Op:
    name: str
    duration_ns: int
    fingerprint: str
    uses: list[dict[str, Any]]
    births: list[dict[str, int]] = field(default_factory=list)
    deaths: list[dict[str, int]] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Follows every op between ``with`` and its end; writes down those of one iteration."""

    attention = "tidelog"  # which of models.ATTENTIONS a transformers model has

    def __init__(self, gpu: Gpu, precision: str = "fp32") -> None:
        super().__init__()
        self.gpu = gpu
        self.precision = precision
        self.name = ""
        self._known: dict[
            int, tuple[weakref.ref[Storage], _Storage]
        ] = {}  # storage address -> (weak reference, _Storage)
        self._storages: list[_Storage] = []
        self._ops: list[_Op] = []
        self._recording = False
        self._kind = "activation"

    # -- what the caller says ---------------------------------------------------------------------

    def name_globals(self, named: Iterable[tuple[str, str, Tensor]]) -> None:
        """Names what lives across iterations: (name, kind, tensor) each."""
        for name, kind, tensor in named:
            storage = self._of(untyped_storage(tensor))
            if storage.index is None:
                storage.identity, storage.kind = {"name": name}, kind
                self._list(storage)

    @contextmanager
    def iteration(self, name: str) -> Iterator[None]:
        """Records an iteration: what runs inside is the trace. It must leave alive what was alive before it, and
        nothing else.
        """
        self.name, self._recording = name, True
        try:
            yield
        finally:
            self._recording = False

    @contextmanager
    def makes(self, kind: str) -> Iterator[None]:
        """New storages are of this kind: ``gradient``, ``activation``, ``other``."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def receive(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, name: str = "recv") -> Tensor:
        """A tensor that comes from the next GPU."""
        size = torch.Size(shape).numel() * dtype.itemsize
        with _Named(self, name, round(size / self.gpu.peer_bandwidth * 1e9)):
            return torch.empty(shape, dtype=dtype, device="meta")

    def send(self, tensor: Tensor, name: str = "send") -> None:
        """A tensor goes to the next GPU."""
        self.transfer([tensor], name, tensor.numel() * tensor.itemsize)

    def transfer(self, tensors: Sequence[Tensor], name: str, size: int, writes: bool = False) -> None:
        """Bytes to or from other GPUs that belong to these tensors (a send, an all-reduce)."""
        storages = [untyped_storage(tensor) for tensor in tensors]
        written = storages if writes else []
        duration = max(self.gpu.launch_ns, round(size / self.gpu.peer_bandwidth * 1e9))
        self._begin(name, duration, storages, written, [name, size])

    # -- ops --------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        info = info_of(func)
        result = func(*args, **kwargs)
        shapes: list[Any] = []
        used = storages(holders_of(args, kwargs, shapes))
        born = storages_of((result,), {})
        addresses = {storage._cdata for storage in used}
        born = [s for s in born if s._cdata not in addresses and not self._is_known(s)]
        if func._schema.name in _NO_KERNEL:
            if born:
                self._begin(str(func), 0, [], [], shapes, born)
            return result
        duration = self._duration(func, args, kwargs, result)
        facts = [*shapes, *_places_of((*args, *kwargs.values()))]
        self._begin(str(func), duration, used, storages(info.modified(args, kwargs)), facts, born)
        return result

    def _duration(self, func: OpOverload, args: Args, kwargs: Kwargs, result: Any) -> int:
        counter = flop_registry.get(func.overloadpacket)
        flops = counter(*args, **kwargs, out_val=result) if counter else 0
        moved = _bytes_of(args) + _bytes_of(kwargs.values()) + _bytes_of([result])
        kind = kind_of(func)
        if kind == "gather":
            moved = 2 * _bytes_of([result])  # reads what it gathers, not the whole table
        return self.gpu.kernel_ns(kind, flops, moved, self.precision)

    def _begin(
        self,
        name: str,
        duration: int,
        used: Sequence[Storage],
        written: Iterable[Storage],
        facts: Sequence[object],
        born: Sequence[Storage] = (),
    ) -> None:
        modified = {storage._cdata for storage in written}
        uses: dict[int, tuple[_Storage, str]] = {}
        places: dict[int, int] = {}
        for storage in used:
            record = self._of(storage)
            access = "update" if storage._cdata in modified else "read"
            places.setdefault(id(record), len(places))
            if id(record) not in uses or uses[id(record)][1] == "read":
                uses[id(record)] = (record, access)
        if not self._recording:
            for storage in born:
                self._of(storage)
            return
        text = repr((name, [str(fact) for fact in facts], list(places.values())))
        fingerprint = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        op = _Op(name, duration, fingerprint, [])
        for record, access in uses.values():
            op.uses.append({"storage": self._list(record), "access": access})
        self._ops.append(op)
        for slot, storage in enumerate(born):
            record = self._of(storage)
            record.born = (len(self._ops) - 1, slot)
            record.kind = self._kind
            record.identity = {"output": {"op": record.born[0], "slot": slot}}
            op.births.append({"storage": self._list(record), "slot": slot})

    # -- storages ---------------------------------------------------------------------------------

    def _is_known(self, storage: Storage) -> bool:
        entry = self._known.get(storage._cdata)
        return entry is not None and entry[0]() is storage

    def _of(self, storage: Storage) -> _Storage:
        address = storage._cdata
        entry = self._known.get(address)
        if entry is not None and entry[0]() is storage:
            return entry[1]
        record = _Storage(storage.nbytes())
        self._known[address] = (weakref.ref(storage, lambda _: self._died(address, record)), record)
        return record

    def _died(self, address: int, record: _Storage) -> None:
        entry = self._known.get(address)
        if entry is not None and entry[1] is record:
            del self._known[address]
        record.alive = False
        if self._recording and self._ops and record.index is not None:
            if record.born is None:
                raise RuntimeError(f"{record.identity} lived across iterations and died in one")
            self._ops[-1].deaths.append({"storage": record.index})

    def _list(self, record: _Storage) -> int:
        if record.index is None:
            if record.identity is None:
                record.identity = "arrival"  # made between iterations; may only be read
            record.index = len(self._storages)
            self._storages.append(record)
        return record.index

    # -- the trace --------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The trace as the planner reads it, one op or storage per line."""
        storages = [{"identity": s.identity, "size": s.size, "kind": s.kind, "movable": True} for s in self._storages]
        ops = []
        for op in self._ops:
            entry = {
                "name": op.name,
                "duration_ns": op.duration_ns,
                "fingerprint": op.fingerprint,
                "uses": op.uses,
            }
            if op.births:
                entry["births"] = op.births
            if op.deaths:
                entry["deaths"] = op.deaths
            ops.append(entry)
        head = json.dumps({"format": FORMAT, "version": VERSION, "name": self.name}, indent=2)
        return f'{head[:-2]},\n  "storages": {_lines(storages)},\n  "ops": {_lines(ops)}\n}}\n'


class _Named:
    """Creations inside are one op of this name and duration."""

    def __init__(self, recorder: Recorder, name: str, duration: int) -> None:
        self._recorder, self._name = recorder, name
        self._duration = max(duration, recorder.gpu.launch_ns)

    def __enter__(self) -> None:
        self._ops = len(self._recorder._ops)

    def __exit__(self, *error: object) -> None:
        for op in self._recorder._ops[self._ops :]:
            op.name, op.duration_ns = self._name, self._duration


def _bytes_of(values: Iterable[Any]) -> int:
    """Bytes that the tensors among some arguments cover, each view by its own size."""
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            total += _bytes_of(value)
    return total


def _places_of(values: Iterable[Any]) -> Iterator[object]:
    """Yields the places of tensors in their storages, and the numbers, among some arguments: ops are alike if these
    are, too.
    """
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is torch.strided and not value.is_nested:
                yield value.storage_offset()
                yield value.stride()
        elif isinstance(value, (list, tuple)):
            yield from _places_of(value)
        elif isinstance(value, (bool, int, float)):
            yield value


def _lines(entries: Sequence[object]) -> str:
    return "[\n    " + ",\n    ".join(json.dumps(entry) for entry in entries) + "\n  ]"
