"""What an op touches and what its schema says: which arguments it writes, what may be split."""

from __future__ import annotations

import functools
import gc
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor

from tidelog.memory._record import Holder, Storage, data_ptr, has_storage, nbytes, unseen, untyped_storage

OpOverload: TypeAlias = "torch._ops.OpOverload[..., Any]"
Work: TypeAlias = "torch.distributed.Work"
# What the hook is asked about, and its facts.
Op: TypeAlias = "OpOverload | Launch"
Info: TypeAlias = "OpInfo | LaunchInfo"
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)

# Namespaces of ops that launch nothing in Python.
IN_CPP = ("aten.", "prims.", "c10d", "_c10d_functional", "_dtensor", "mkldnn.", "quantized.", "inductor.")

_COMPOSITE = "CompositeExplicitAutograd"

# How an argument is walked, by its type.
_PLAIN, _TENSOR, _SUBCLASS, _LIST, _STORAGE, _INTEGER = range(6)
_walks: dict[type, int] = {Tensor: _TENSOR, torch.nn.Parameter: _TENSOR, list: _LIST, tuple: _LIST, int: _INTEGER}

# Of these there are no storages to look for.
SCALARS: frozenset[type] = frozenset(
    {int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)


def _walk_of(kind: type) -> int:
    """Classifies a type that has not been met before, and remembers it."""
    for base, walk in (
        (Tensor, _TENSOR),
        ((list, tuple), _LIST),
        (torch.UntypedStorage, _STORAGE),
        (int, _INTEGER),
    ):
        if issubclass(kind, base):
            break
    else:
        walk = _PLAIN
    if walk == _TENSOR and getattr(kind, "__torch_dispatch__", None) is not Tensor.__torch_dispatch__:
        walk = _SUBCLASS
    _walks[kind] = walk
    return walk


def holders_in(
    value: Any, holders: list[Holder], shapes: list[Any] | None = None, sizes: list[int] | None = None
) -> None:
    """Appends every tensor in an argument that has a storage, and every storage, to `holders`, the tensors' shapes and
    types to `shapes`, and whole numbers (sizes and offsets) to `sizes`."""
    walk = _walks.get(type(value))
    if walk is None:
        walk = _walk_of(type(value))
    if walk == _SUBCLASS:
        walk = _PLAIN if is_wrapper(value) else _TENSOR
    if walk == _TENSOR:
        if has_storage(value):
            holders.append(value)
        else:
            _components_in(value, holders, shapes, sizes)
        if shapes is not None:
            shapes.append(value.shape if not value.is_nested else value.numel())
            shapes.append(value.dtype)
    elif walk == _LIST:
        for item in value:
            holders_in(item, holders, shapes, sizes)
    elif walk == _STORAGE:
        holders.append(value)
    elif walk == _INTEGER and sizes is not None:
        sizes.append(value)


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor only stands for others (DTensor does): its storage has a size, and never any
    memory. Its own dispatch makes ops on those others of it."""
    if type(tensor) in _PLAIN_TENSORS:
        return False
    try:
        storage = untyped_storage(tensor)
        return storage._tide is None and storage.device.type != "meta" and data_ptr(storage) < 0
    except (NotImplementedError, RuntimeError):
        return True


def holders_of(
    args: Iterable[Any], kwargs: Kwargs, shapes: list[Any] | None = None, sizes: list[int] | None = None
) -> list[Holder]:
    """What has a storage of all of an op's arguments; see `holders_in`."""
    holders: list[Holder] = []
    for value in args:
        holders_in(value, holders, shapes, sizes)
    for value in kwargs.values():
        holders_in(value, holders, shapes, sizes)
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


def _components_in(tensor: Tensor, holders: list[Holder], shapes: list[Any] | None, sizes: list[int] | None) -> None:
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
    holders_in(parts, holders, shapes, sizes)


# What a state_dict is made with, and what torch asks of a tensor that it saves. A view only where it is
# of the same shape, as `DTensor.to_local` makes it: of others it is said that they bring bytes back.
_LOOKS = {"aten.detach.default", "aten.alias.default", "aten.view.default", "aten.is_pinned.default"}


class OpInfo:
    """Facts of one overload, read from its schema once."""

    __slots__ = (
        "asks_pinned",
        "chunks",
        "draws",
        "launches",
        "looks",
        "name",
        "nests",
        "repeats",
        "resizes",
        "seed",
        "special",
        "text",
        "written",
    )

    def __init__(self, func: OpOverload) -> None:
        self.name = str(func)
        self.text = self.name.encode()
        # Stands for the op in fingerprints; the same in every process.
        self.seed = zlib.crc32(self.text)
        schema = getattr(func, "_schema", None)
        arguments = schema.arguments if schema is not None else ()
        # It may go on after it has returned: its result has a `Work`.
        self.launches = any("c10d.Work" in str(each.type) for each in (schema.returns if schema is not None else ()))
        self.written = tuple(
            (position, argument.name)
            for position, argument in enumerate(arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write) or self._fills(argument)
        )
        base = self.name.removeprefix("aten.")
        # Only these can change the size of a storage that exists already.
        self.resizes = bool(self.written) and (
            "resize" in base or base.startswith("set_") or any(name.startswith("out") for _, name in self.written)
        )
        # Element-wise over lists: doing a list in pieces gives the same bits.
        self.chunks = base.startswith(("_foreach_", "_fused_", "_amp_foreach_"))
        # It may ask no tensor for its bytes: `leaves_out`.
        self.looks = self.name in _LOOKS
        self.asks_pinned = self.name == "aten.is_pinned.default"
        # Random numbers, perhaps of a generator among its arguments.
        self.draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        # It may be written in Python, and launch kernels.
        self.nests = not self.name.startswith(IN_CPP)
        # It changes nothing, and gives the same again: where a GPU had no memory for it, it may run a second time.
        self.repeats = not (self.written or self.launches or self.nests or self.draws)
        # It is looked at in full wherever it runs.
        self.special = self.chunks or self.nests or self.launches or self.resizes

    def leaves_out(self, args: Args) -> bool:
        """Whether what is out stays out: the op, one of those that only look, does not see the bytes."""
        return self.name != "aten.view.default" or (len(args) == 2 and tuple(args[1]) == tuple(args[0].shape))

    def _fills(self, argument: Any) -> bool:
        """Collectives write what their schemas do not say they write."""
        return self.launches and "input" not in argument.name and not self.name.startswith("c10d.send")

    def ends_alone(self, storages: Sequence[Storage]) -> bool:
        """Whether what it launched is complete some time, whatever this rank does next: a
        collective is, once every rank has launched it. The other side of a send or a receive may
        wait for this one; and on the host, a part of a reduce-scatter is done by who waits."""
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

    def expect(self, func: Op, args: Args, kwargs: Kwargs) -> int:
        """Bytes of the new storages that the op will make."""
        return _expect(func, args, kwargs)

    def modified(self, args: Args, kwargs: Kwargs) -> list[Holder]:
        """What of the arguments the op writes."""
        found: list[Holder] = []
        for position, name in self.written:
            if position < len(args):
                holders_in(args[position], found)
            elif name in kwargs:
                holders_in(kwargs[name], found)
        return found


class Passing(NamedTuple):
    """What must be known of launches that go past Python."""

    written: Sequence[int]  # places of arguments
    makes: bool  # whether they give a new tensor
    arguments: int


class Launch:
    """What launches a kernel that gets addresses, such as one of Triton's, as if it were an op. What
    runs inside of it is a part of it, as inside of an op."""

    def __init__(self, kernel: Any, run: Callable[..., Any]) -> None:
        self.name = f"kernel {getattr(kernel, '__name__', '')}".rstrip()
        self._kernel = kernel
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with unseen():
            return self._run(self._kernel, *args, **kwargs)

    def __str__(self) -> str:
        return self.name

    def modified(self, args: Args, kwargs: Kwargs) -> list[Holder]:
        """What it may write: all, where nothing says which of them it only reads."""
        return holders_of(args, kwargs)

    def expect(self, _args: Args) -> int:
        """Bytes of the new storages that it will make."""
        return 0

    def passing(self) -> Passing | None:
        """How it may go past Python. None: it may not."""
        return None


class LaunchInfo:
    """The same facts of a launch."""

    __slots__ = ("_launch", "name", "seed", "text")

    asks_pinned = chunks = draws = looks = nests = resizes = special = False
    launches: Literal[False] = False
    written = True
    repeats = False

    def __init__(self, launch: Launch) -> None:
        self.name = launch.name
        self.text = self.name.encode()
        self.seed = zlib.crc32(self.text)
        self._launch = launch

    def leaves_out(self, _args: Args) -> bool:
        return False

    def modified(self, args: Args, kwargs: Kwargs) -> list[Holder]:
        return self._launch.modified(args, kwargs)

    def expect(self, _func: Op, args: Args, _kwargs: Kwargs) -> int:
        return self._launch.expect(args)


_infos: dict[Op, Info] = {}


@overload
def info_of(func: OpOverload) -> OpInfo: ...
@overload
def info_of(func: Op) -> Info: ...
def info_of(func: Op) -> Info:
    info = _infos.get(func)
    if info is None:
        info = LaunchInfo(func) if isinstance(func, Launch) else OpInfo(func)
        _infos[func] = info
    return info


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
    """Whether it waits for the functional collectives that made its arguments."""
    return str(op).startswith("_c10d_functional.wait_tensor")


def halves(args: Args, kwargs: Kwargs) -> list[tuple[Args, Kwargs]] | None:
    """The arguments of a foreach or fused op with their tensor lists cut in two; None where they
    hold one tensor."""
    lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple))]
    length = max(map(len, lists), default=0)
    if length < 2:
        return None
    middle = length // 2

    def cut(value: Any, piece: slice) -> Any:
        return value[piece] if isinstance(value, (list, tuple)) and len(value) == length else value

    return [
        (tuple(cut(a, piece) for a in args), {name: cut(a, piece) for name, a in kwargs.items()})
        for piece in (slice(0, middle), slice(middle, length))
    ]


def merged(results: list[Any]) -> Any:
    """One op's result out of its pieces' results: lists are joined, tuples of lists member by
    member."""
    first = results[0]
    if isinstance(first, list):
        return [item for result in results for item in result]
    if isinstance(first, tuple):
        return tuple(merged([result[i] for result in results]) for i in range(len(first)))
    return first


def _expect(func: Op, args: Args, kwargs: Kwargs) -> int:
    """Bytes of the new storages that an op will make, from a run on meta tensors; 0 where that
    cannot tell.

    Costs some tens of microseconds, so the result is kept by shapes. Meta kernels draw no random
    numbers; should one do so after all, the generator's state is put back.
    """
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
