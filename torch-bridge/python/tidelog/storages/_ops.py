"""Facts of an op: what it touches, and what its schema says."""

from __future__ import annotations

import enum
import functools
import gc
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tidelog.memory._record import Holder, Storage, data_ptr, has_storage, nbytes, unseen, untyped_storage

OpOverload: TypeAlias = "torch._ops.OpOverload[..., Any]"
Work: TypeAlias = "torch.distributed.Work"
Op: TypeAlias = "OpOverload | Launch"
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)

# The name of an op, the places of the arguments that it writes as bits, what stands for it in fingerprints, its traits.
Facts: TypeAlias = tuple[str, int, int, int]

# Namespaces of ops that launch nothing in Python.
_IN_CPP = ("aten.", "prims.", "c10d", "_c10d_functional", "_dtensor", "mkldnn.", "quantized.", "inductor.")

_COMPOSITE = "CompositeExplicitAutograd"

_ARGUMENTS_MAX = 63  # as native/kernel.h has a bit for each, and one for all others

# How an argument is walked, by its type.
_PLAIN, _TENSOR, _SUBCLASS, _LIST, _STORAGE = range(5)
_walks: dict[type, int] = {Tensor: _TENSOR, torch.nn.Parameter: _TENSOR, list: _LIST, tuple: _LIST}


def _walk_of(kind: type) -> int:
    """Classifies a type that has not been met before, and remembers it."""
    for base, walk in (
        (Tensor, _TENSOR),
        ((list, tuple), _LIST),
        (torch.UntypedStorage, _STORAGE),
    ):
        if issubclass(kind, base):
            break
    else:
        walk = _PLAIN
    if walk == _TENSOR and getattr(kind, "__torch_dispatch__", None) is not Tensor.__torch_dispatch__:
        walk = _SUBCLASS
    _walks[kind] = walk
    return walk


def holders_in(value: Any, holders: list[Holder], shapes: list[Any] | None = None) -> None:
    """Appends every tensor in an argument that has a storage, and every storage, to `holders`, and the tensors' shapes
    and types to `shapes`."""
    walk = _walks.get(type(value))
    if walk is None:
        walk = _walk_of(type(value))
    if walk == _SUBCLASS:
        walk = _PLAIN if is_wrapper(value) else _TENSOR
    if walk == _TENSOR:
        if has_storage(value):
            holders.append(value)
        else:
            _components_in(value, holders, shapes)
        if shapes is not None:
            shapes.append(value.shape if not value.is_nested else value.numel())
            shapes.append(value.dtype)
    elif walk == _LIST:
        for item in value:
            holders_in(item, holders, shapes)
    elif walk == _STORAGE:
        holders.append(value)


def is_wrapper(tensor: Tensor) -> bool:
    """Returns whether a tensor only stands for others (DTensor does): its storage has a size, and never any memory. Its
    own dispatch makes ops on those others of it.
    """
    if type(tensor) in _PLAIN_TENSORS:
        return False
    try:
        storage = untyped_storage(tensor)
        return storage._tide is None and storage.device.type != "meta" and data_ptr(storage) < 0
    except (NotImplementedError, RuntimeError):
        return True


def holders_of(args: Iterable[Any], kwargs: Kwargs, shapes: list[Any] | None = None) -> list[Holder]:
    """Returns the owners of storages among all of an op's arguments; see `holders_in`."""
    holders: list[Holder] = []
    for value in args:
        holders_in(value, holders, shapes)
    for value in kwargs.values():
        holders_in(value, holders, shapes)
    return holders


def storages_of(args: Iterable[Any], kwargs: Kwargs) -> list[Storage]:
    """The storages of all of an op's arguments."""
    return storages(holders_of(args, kwargs))


def storages(holders: Iterable[Holder]) -> list[Storage]:
    """The storage of each."""
    return [untyped_storage(each) if isinstance(each, Tensor) else each for each in holders]


def living_tensors() -> Iterator[Tensor]:
    """Every tensor that Python has."""
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            yield thing


def memory_of(tensor: Tensor) -> list[Storage]:
    """The storages of a tensor, asked for outside of an op: of a sparse one, those of its components."""
    try:
        return [untyped_storage(tensor)]
    except RuntimeError:
        with unseen():  # components are had by ops
            return storages_of((tensor,), {})


def _components_in(tensor: Tensor, holders: list[Holder], shapes: list[Any] | None) -> None:
    """A sparse tensor has no storage of its own; its components have. Opaque layouts stay where
    they are."""
    parts: tuple[Tensor, ...]
    if tensor.layout is torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        parts = ()
    holders_in(parts, holders, shapes)


class Trait(enum.IntFlag):
    """Traits of an op: `Trait` in native/kernel.h."""

    LOOKS = 1  # it asks no tensor for its bytes: what is out stays out
    LOOKS_AT_SHAPE = 2  # the same, where its second argument is the shape of its first
    ASKS_PINNED = 4  # it asks whether memory is page-locked
    IS_PRODUCT = 8  # it writes a product of its last two matrices
    REPEATS = 16  # it changes nothing: where a GPU had no memory for it, it may run a second time
    RESIZES = 32  # it may change the size of what it writes
    IN_PIECES = 64  # element by element over lists: doing a list in pieces gives the same bits
    IN_PYTHON = 128  # it may be written in Python, and launch kernels
    GOES_ON = 256  # it may go on after it has returned: its result has a `Work`
    COMPOSED = 512  # it is made of other ops
    TELLS_STREAMS = 2048  # it tells torch's allocator which streams use its tensors
    UNFILLED = 1024  # its result has no values yet: torch.tensor writes them in C++, past all ops


# By name. A state_dict is made with the first ones, and torch asks `is_pinned` of a tensor that it saves. A view only
# looks where it is of the same shape, as `DTensor.to_local` makes it: of others it is said that they bring bytes back.
_TRAITS_OF = {
    "aten.detach.default": Trait.LOOKS,
    "aten.alias.default": Trait.LOOKS,
    "aten.view.default": Trait.LOOKS_AT_SHAPE,
    "aten.is_pinned.default": Trait.LOOKS | Trait.ASKS_PINNED,
    "aten.record_stream.default": Trait.TELLS_STREAMS,
    # What torch.compile has products written to buffers by. None is resized that has the product's shape.
    **dict.fromkeys(("aten.mm.out", "aten.addmm.out", "aten.bmm.out", "aten.baddbmm.out"), Trait.IS_PRODUCT),
}
_ALL = (1 << 64) - 1  # arguments


class OpInfo:
    """Facts of one overload, read from its schema once."""

    __slots__ = ("draws", "launches", "name", "seed", "traits", "written")

    def __init__(self, func: OpOverload) -> None:
        self.name = str(func)
        self.seed = _seed_of(self.name)
        schema = getattr(func, "_schema", None)
        arguments = schema.arguments if schema is not None else ()
        # It may go on after it has returned: its result has a `Work`.
        self.launches = any("c10d.Work" in str(each.type) for each in (schema.returns if schema is not None else ()))
        self.written = tuple(
            (position, argument.name)
            for position, argument in enumerate(arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write) or self._fills(argument)
        )
        # Random numbers, perhaps of a generator among its arguments.
        self.draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.traits = self._traits() | (Trait.COMPOSED if func in functional_collectives() else Trait(0))

    def _traits(self) -> Trait:
        base, traits = self.name.removeprefix("aten."), _TRAITS_OF.get(self.name, Trait(0))
        # Only these can change the size of a storage that exists already.
        if self.written and (
            "resize" in base or base.startswith("set_") or any(name.startswith("out") for _, name in self.written)
        ):
            traits |= Trait.RESIZES
        if base.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
            traits |= Trait.IN_PIECES
        if self.launches:
            traits |= Trait.GOES_ON
        if base.startswith("empty"):
            traits |= Trait.UNFILLED
        if not self.name.startswith(_IN_CPP):
            traits |= Trait.IN_PYTHON
        if not (self.written or self.launches or self.draws or Trait.IN_PYTHON in traits):
            traits |= Trait.REPEATS
        return traits

    @property
    def facts(self) -> Facts:
        """Returns the facts for its kernel."""
        return self.name, sum(1 << position for position, _ in self.written), self.seed, int(self.traits)

    def _fills(self, argument: Any) -> bool:
        """Collectives write what their schemas do not say they write."""
        return self.launches and "input" not in argument.name and not self.name.startswith("c10d.send")

    def ends_alone(self, storages: Sequence[Storage]) -> bool:
        """Returns whether what it launched is complete some time, whatever this rank does next: a collective is, once
        every rank has launched it. The other side of a send or a receive may wait for this one; and on the host, a part
        of a reduce-scatter is done by who waits.
        """
        on_host = all(storage.device.type == "cpu" for storage in storages)
        return not ("send" in self.name or "recv" in self.name or (on_host and "reduce_scatter" in self.name))

    def works_in(self, result: Any) -> Iterator[Work]:
        """Each `Work` of a result that is not complete."""
        if not self.launches:
            return
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, torch.ScriptObject):
                work = torch.distributed.distributed_c10d.Work.unbox(value)
                if not work.is_completed():
                    yield work

    def modified(self, args: Args, kwargs: Kwargs) -> list[Holder]:
        """Returns the arguments that the op writes."""
        found: list[Holder] = []
        for position, name in self.written:
            if position < len(args):
                holders_in(args[position], found)
            elif name in kwargs:
                holders_in(kwargs[name], found)
        return found


class Launch:
    """Launch of a kernel that gets addresses, such as one of Triton's, as if it were an op. What runs inside of it is a
    part of it, as inside of an op.
    """

    def __init__(self, kernel: Any, run: Callable[..., Any]) -> None:
        self.name = f"kernel {getattr(kernel, '__name__', '')}".rstrip()
        self._kernel = kernel
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with unseen():
            return self._run(self._kernel, *args, **kwargs)

    def __str__(self) -> str:
        return self.name

    def written(self, _count: int) -> Sequence[int] | None:
        """The places of those of so many arguments that it writes, beside those by name. None: it may write all."""
        return None

    def facts(self, count: int) -> Facts:
        """Returns the facts for the kernel of launches with `count` arguments."""
        places = self.written(count)
        written = _ALL if places is None or count > _ARGUMENTS_MAX else sum(1 << place for place in places)
        return self.name, written | _ALL << count & _ALL, _seed_of(self.name), 0

    def modified(self, args: Args, kwargs: Kwargs) -> list[Holder]:
        """Returns the arguments that it may write."""
        places = self.written(len(args))
        return holders_of(args if places is None else [args[place] for place in places], kwargs)

    def expect(self, _args: Args) -> int:
        """Bytes of the new storages that it will make."""
        return 0


def _seed_of(name: str) -> int:
    """Stands for an op in fingerprints; the same in every process."""
    return zlib.crc32(name.encode())


_infos: dict[OpOverload, OpInfo] = {}


def info_of(func: OpOverload) -> OpInfo:
    info = _infos.get(func)
    if info is None:
        info = _infos[func] = OpInfo(func)
    return info


def modified(func: Op, args: Args, kwargs: Kwargs) -> list[Holder]:
    """Returns the arguments that an op writes."""
    return (func if isinstance(func, Launch) else info_of(func)).modified(args, kwargs)


@functools.cache
def functional_collectives() -> set[OpOverload]:
    """Ops that are made of others: c10d's with their `Work`, which the functional op keeps to itself."""
    found: set[OpOverload] = set()
    for namespace in ("_c10d_functional", "_dtensor"):
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith(namespace + "::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE):
                packet = getattr(getattr(torch.ops, namespace), name.split("::")[1].split(".")[0])
                for op in (getattr(packet, overload) for overload in packet.overloads()):
                    if awaits(op) or any(argument.name == "group_name" for argument in op._schema.arguments):
                        found.add(op)
    return found


def awaits(op: OpOverload) -> bool:
    """Returns whether the launch waits for the functional collectives that made its arguments."""
    return str(op).startswith("_c10d_functional.wait_tensor")


def expected(func: Op, args: Args, kwargs: Kwargs) -> int:
    """Bytes of the new storages that an op will make, from a run on meta tensors; 0 where that
    cannot tell.

    Costs some tens of microseconds, so the result is kept by shapes. Meta kernels draw no random
    numbers; should one do so after all, the generator's state is put back.
    """
    if isinstance(func, Launch):
        return func.expect(args)
    if str(func).startswith("c10d."):
        return 0  # they write what they are given, and torch's meta kernels for them draw from Python's generator
    random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
    state = torch.get_rng_state() if random else None
    try:
        known: set[object] = set()
        result = func(
            *(_as_meta(value, known) for value in args),
            **{name: _as_meta(value, known) for name, value in kwargs.items()},
        )
        return sum({s._cdata: nbytes(s) for s in storages_of((result,), {}) if s._cdata not in known}.values())
    except Exception:  # no meta kernel, or the shape depends on the data
        return 0
    finally:
        if state is not None:
            torch.set_rng_state(state)


def _as_meta(value: Any, known: set[object]) -> Any:
    if isinstance(value, Tensor):
        twin = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        known.add(untyped_storage(twin)._cdata)
        known.add(twin)  # keeps it alive: a storage's address must not serve twice
        return twin
    if isinstance(value, (list, tuple)):
        return type(value)(_as_meta(item, known) for item in value)
    return torch.device("meta") if isinstance(value, torch.device) else value
