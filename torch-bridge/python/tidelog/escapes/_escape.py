"""Accesses that do not go through the dispatcher: bring the bytes back first, and pin where an
alias stays.

torch.save, deepcopy, pickle, numpy(), data_ptr() and the like read memory without an op that a
kernel could see. While a block is open, the methods they go through are wrapped. What is
not wrapped meets the access guard: an error that names the tensor, never old bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from tidelog import _errors, _patches
from tidelog._patches import Wrapper
from tidelog._whole import whole
from tidelog.dispatch._access import Access
from tidelog.escapes import (
    _collectives,
    _compiled,
    _forks,
    _launches,
    _loading,
    _pools,
    _profilers,
)
from tidelog.escapes._launches import meaning_of_pointers, pointers_mean
from tidelog.escapes._threads import borrow
from tidelog.memory._record import (
    AWAY,
    LEAVING,
    Alias,
    Storage,
    nbytes,
    refuse,
    resizable,
    run_updates,
    untyped_storage,
)
from tidelog.native._built import native
from tidelog.native._module import Record
from tidelog.storages._alone import learn_arrays
from tidelog.storages._ops import memory_of

# Functions that only ask whether tensors share memory: of FSDP2 and of inductor, which may be
# imported at any time.
_COMPARES_ADDRESSES = ("reset_sharded_param", "is_same_tensor")
# Functions of inductor that only ask whether tensors are aligned. Memory that moves is, always.
_ASKS_ALIGNMENT = ("copy_misaligned_inputs", "remove_unaligned_input_idxs")
# Functions of `torch.load`, before torch 2.15, that only ask whether a storage has memory.
_ASKS_PRESENCE = ("load_tensor", "persistent_load")

_TENSOR_READS = ("tolist", "__repr__", "__deepcopy__", "__reduce_ex__", "storage", "_typed_storage")
_SCRIPT_SAVES = ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile")
# These run a Python function over the bytes.
_TENSOR_WRITES = ("apply_", "map_", "map2_")
_TENSOR_ALIASES = ("__dlpack__",)
# These give the storage other memory, which other processes see.
_TENSOR_SHARES = ("share_memory_",)
# is_shared: torch aborts the process there when the storage is guarded.
_STORAGE_READS = (
    "nbytes",
    "size",
    "__len__",
    "tolist",
    "clone",
    "cpu",
    "__deepcopy__",
    "is_shared",
)
_STORAGE_WRITES = ("copy_", "fill_", "__setitem__", "byteswap", "_byteswap")
_STORAGE_SHARES = ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_", "_shared_incref")


def install(access: Access, has_graphs: bool, say: Callable[[str], None]) -> None:
    """Wraps the entry points for a block; `has_graphs`: see `Host`. `say` tells the user."""
    Storage._tide_update = None
    setattr(Storage, "_tide", property(native().record_in))  # so that looking up a storage's record never raises
    native().storages_have(attrgetter("_tide_update"))
    for name in _TENSOR_READS:
        _wrap(access, torch.Tensor, name, _read, find=_read_from)
    for name in _TENSOR_WRITES:
        _wrap(access, torch.Tensor, name, _write, after=_modified)
    for name in _TENSOR_ALIASES:
        _wrap(access, torch.Tensor, name, _alias)
    _patches.replace(torch.Tensor, "numpy", lambda original: _array(access, original))
    _patches.replace(torch, "from_numpy", lambda original: _from_array(access, original))
    for name in _STORAGE_READS:
        _wrap(access, torch.UntypedStorage, name, _read)
    _patches.replace(torch.Tensor, "__setitem__", lambda original: _assigning(access, original))
    _patches.replace(torch.UntypedStorage, "__getitem__", lambda original: _part(access, original))
    # Of a GPU's memory torch makes another storage here, for an op that copies its bytes: nobody sees that
    # the op uses this one, which must not leave for the op's sake.
    _wrap(access, torch.UntypedStorage, "_write_file", _read, holds=True)
    _wrap(access, torch.UntypedStorage, "_set_from_file", _write, after=_modified, holds=True)
    # What torch.save has asked for the size of may have left again in another thread.
    _wrap(access, torch._C.PyTorchFileWriter, "write_record", _read)
    for name in _STORAGE_WRITES:
        _wrap(access, torch.UntypedStorage, name, _write, after=_modified)
    _patches.replace(torch.UntypedStorage, "resize_", lambda original: _resize(access, original))
    for owner, names in ((torch.Tensor, _TENSOR_SHARES), (torch.UntypedStorage, _STORAGE_SHARES)):
        for name in names:
            _wrap(access, owner, name, _share)
    _patches.replace(torch.Tensor, "data_ptr", lambda original: _tensor_pointer(access, original))
    _patches.replace(torch.UntypedStorage, "data_ptr", lambda original: _storage_pointer(access, original))
    _patches.replace(torch, "save", lambda original: _within("identity", original))
    _wrap(access, torch._C, "_to_dlpack", _alias)
    for module in (torch.utils.dlpack, torch):
        _wrap(access, module, "to_dlpack", _alias)
    _collectives.install(access)
    _launches.install(access)
    _loading.install(access)
    _forks.install(access)
    for name in _SCRIPT_SAVES:
        _wrap(access, torch._C.ScriptModule, name, _read, find=_read_of_script, holds=True)
    _compiled.install(access, say)
    _profilers.install(access, say)
    if has_graphs:
        for name in ("capture_begin", "replay"):
            _patches.replace(torch.cuda.CUDAGraph, name, lambda original: _refused_graph(access, original))
        _pools.install(access)
    if importlib.util.find_spec("safetensors") is not None:
        _install_safetensors(access)


def _refused_graph(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(graph: object, *args: Any, **kwargs: Any) -> Any:
        if access.is_live():
            raise _errors.Error(
                "a CUDA graph has the addresses of tensors in it, and inside an offload block these "
                "move: a replay would read and write memory that is somebody else's by then. Run "
                'without graphs (torch.compile: another mode than "reduce-overhead"), or keep '
                "captures and replays outside the block, or in a pause of it."
            )
        access.has_captured = True
        return original(graph, *args, **kwargs)

    return wrapper


def remove() -> None:
    """Puts every entry point back as it was."""
    _collectives.remove()
    _compiled.remove()
    _patches.take_back()


def _wrap(
    access: Access,
    owner: Any,
    name: str,
    before: Callable[..., None],
    after: Callable[..., None] | None = None,
    find: Callable[[Any], Sequence[Storage]] | None = None,
    holds: bool = False,
) -> None:
    """`before` and `after` get the access, and the storages of the call's arguments, its subject's
    first. `find` says which those of an argument are; `holds`: they stay where they are during the call."""
    if not hasattr(owner, name):
        return

    def make(original: Wrapper) -> Wrapper:
        @whole
        def wrapper(subject: Any, *args: Any, **kwargs: Any) -> Any:
            storages = [storage for thing in (subject, *args) for storage in (find or _storages_of)(thing)]
            with _borrowed(access, storages, storages[:1] if before in _TAKES_HOLD else ()):
                access.await_copies()
                before(access, *storages)
                held = [access.hold(storage) for storage in storages] if holds and access.is_live() else None
                result = original(subject, *args, **kwargs)
                del held
            if after is not None:
                after(access, *storages)
            return result

        return wrapper

    _patches.replace(owner, name, make)


def _borrowed(
    access: Access, storages: Sequence[Storage], written: Sequence[Storage] = ()
) -> contextlib.AbstractContextManager[None]:
    """Brings the storages of a call up to date, and in another thread than the block's keeps their memory meanwhile."""
    if access.is_elsewhere() and access.is_live():
        return borrow(access, storages, written)
    run_updates(storages)
    return contextlib.nullcontext()


def _storage_of(thing: Any) -> Storage | None:
    if isinstance(thing, Storage):
        return thing
    try:
        return untyped_storage(thing)
    except (RuntimeError, TypeError):
        return None  # sparse, opaque or not a tensor at all: the original says what is wrong


def _storages_of(thing: Any) -> Sequence[Storage]:
    return () if (storage := _storage_of(thing)) is None else (storage,)


def _read_from(thing: Any) -> Sequence[Storage]:
    """Returns the storages that a reader of a tensor reads: of a sparse one, its components."""
    return memory_of(thing) if isinstance(thing, Tensor) else ()


def _read_of_script(thing: Any) -> Sequence[Storage]:
    """Returns the storages of a scripted module's file, all at once."""
    if not isinstance(thing, torch._C.ScriptModule):
        return ()
    script: Any = torch._C
    tensors = [tensor for kind in (script.ParameterDict, script.BufferDict) for _, tensor in kind(thing).items()]
    graphs: list[Any] = [thing._get_method(name).graph for name in thing._method_names()]
    nodes = [node for graph in graphs for node in graph.findAllNodes("prim::Constant")]
    tensors += [node.t("value") for node in nodes if node.hasAttribute("value") and node.kindOf("value") == "t"]
    storages = [storage for tensor in tensors for storage in memory_of(tensor)]
    for _, part in script.ModuleDict(thing).items():
        storages += _read_of_script(part)
    return storages


def _read(access: Access, *storages: Storage) -> None:
    """Brings back what is out of the storages, all at once."""
    for storage in storages:
        if storage._tide is not None and storage._tide.state & AWAY:
            access.bring_back(*storages)
            return


def _write(access: Access, *storages: Storage) -> None:
    """The first is written, and may get other memory: nothing may be reading the old."""
    if storages:
        access.bring_back(*storages, written=storages[0])


def _modified(access: Access, *storages: Storage) -> None:
    if storages:
        access.wrote(storages[0])


def _assigning(access: Access, original: Wrapper) -> Wrapper:
    """`x[i] = t`. Of a `t` without dimensions torch asks in C++ whether it shares memory with `x`: both must be here."""
    assigns = _assigning_a_number(access, original)

    def wrapper(tensor: Tensor, index: Any, value: Any) -> Any:
        is_number = isinstance(value, Tensor) and not value.dim() and access.is_live()
        return (assigns if is_number else original)(tensor, index, value)

    return wrapper


def _assigning_a_number(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(tensor: Tensor, index: Any, value: Tensor) -> Any:
        storages = [*_storages_of(tensor), *_storages_of(value)]
        with _borrowed(access, storages):
            access.await_copies()
            _read(access, *storages)
            held = [access.hold(storage) for storage in storages]
            result = original(tensor, index, value)
            del held
        return result

    return wrapper


def _resize(access: Access, original: Wrapper) -> Wrapper:
    @whole
    def wrapper(storage: Storage, size: int) -> Any:
        with _borrowed(access, [storage], [storage]):
            access.await_copies()
            if size == 0:
                access.empty(storage)
            else:
                access.bring_back(storage, written=storage)
            access.make_usual(storage)
            result = original(storage, size)
        access.wrote(storage)
        return result

    return wrapper


def _alias(access: Access, *storages: Storage) -> None:
    """Pins storages to whose memory somebody holds an address: it must never move again."""
    if not storages:
        return
    storage = storages[0]
    access.await_copies()
    _read(access, storage)
    if storage._tide is not None and storage._tide.addresses_end:
        return
    if access.owns(storage):
        _give_address(access, storage).has_address = True


def _give_address(access: Access, storage: Storage) -> Record:
    """Pins a storage in memory, of whose memory somebody is about to have the address."""
    record = native().record_for(storage)
    if record.state & LEAVING and not record.pins and access.is_elsewhere():
        refuse(record)  # only the block's own thread can stop it
    return record


def _array(access: Access, original: Wrapper) -> Wrapper:
    """An array of NumPy's has a tensor's memory. What is made of it has the array, so the memory stays for its life."""

    @whole
    def numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        storages = _storages_of(tensor)
        with _borrowed(access, storages, storages):
            access.await_copies()
            _read(access, *storages)
            records = [_give_address(access, storage) for storage in storages if access.owns(storage)]
            for storage, record in zip(storages, records, strict=False):
                record.is_alone |= resizable(storage)  # torch calls it not resizable from here on
            aliases = [*map(Alias, records)]
            array = original(tensor, *args, **kwargs)
            weakref.finalize(array, aliases.clear).atexit = False
        return array

    return numpy


def _from_array(access: Access, original: Wrapper) -> Wrapper:
    """A tensor has an array's memory. It may leave where nothing else has the array: from here on, what gives the
    memory to others is seen."""

    def from_numpy(array: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(array)
        with native().Inside():  # the session hears of it when it is known that it may move
            tensor = original(array)
        if access.is_live() and access.owns(tensor):
            learn_arrays()
            access.came(untyped_storage(tensor), makes_room=False)  # the caller has the array still
        return tensor

    return from_numpy


def _part(access: Access, original: Wrapper) -> Wrapper:
    """A byte of a storage, or a slice: another storage in the same memory, which stays as long as
    the slice does. What is a slice of a file gets memory of its own once nobody else has that (native/slices.h)."""

    @whole
    def wrapper(storage: Storage, index: Any) -> Any:
        with _borrowed(access, [storage]):
            access.await_copies()
            _read(access, storage)
            part = original(storage, index)
            if isinstance(part, Storage) and access.owns(part):
                if native().maps_file(storage):
                    access.maps(native().record_for(part))
                else:
                    part._tide_whole = Alias(native().record_for(storage))
        return part

    return wrapper


def _share(access: Access, *storages: Storage) -> None:
    _write(access, *storages)
    _alias(access, *storages)


# After these the storage's memory is written, or somebody has its address.
_TAKES_HOLD = (_write, _alias, _share)


# -- addresses ------------------------------------------------------------------------------------
# torch.save and safetensors compare addresses only to find tensors that share memory. Giving them
# the storage's identity instead neither pins nor restores anything, and stays true while storages
# move.


def _meaning(caller: FrameType) -> str | None:
    """Returns the purpose of an address that this frame asks for. None: nothing is known, it may be kept."""
    if caller.f_code.co_name in _COMPARES_ADDRESSES:
        return "identity"
    if caller.f_code.co_name in _ASKS_ALIGNMENT:
        return "alignment"
    asks = caller.f_back if caller.f_code.co_name == "_data_ptr" else None  # of the storage that has this one
    if asks is not None and asks.f_code.co_name in _ASKS_PRESENCE and asks.f_globals is vars(torch.serialization):
        return "presence"
    return meaning_of_pointers() or ("momentary" if native().is_inside() else None)


def _within(meaning: str, original: Wrapper) -> Wrapper:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with pointers_mean(meaning):
            return original(*args, **kwargs)

    return wrapper


def _identity(storage: Storage) -> int:
    return (storage._cdata << 8) & 0x7FFF_FFFF_FFFF_FFFF


def _storage_pointer(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(storage: Storage) -> Any:
        meaning = _meaning(sys._getframe(1))
        if meaning == "identity" or (meaning == "presence" and nbytes(storage)):
            return _identity(storage)
        return _pointer(access, original, storage, storage, _read if meaning == "momentary" else _alias)

    return wrapper


def _tensor_pointer(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(tensor: Tensor) -> Any:
        storage = _storage_of(tensor)
        if storage is not None:
            meaning = _meaning(sys._getframe(1))
            if meaning == "identity" or (meaning == "alignment" and resizable(storage)):
                return _identity(storage) + tensor.storage_offset() * tensor.element_size()
            return _pointer(access, original, tensor, storage, _alias if meaning is None else _read)
        return original(tensor)

    return wrapper


@whole
def _pointer(access: Access, original: Wrapper, subject: Any, storage: Storage, before: Callable[..., None]) -> Any:
    with _borrowed(access, [storage], [storage] if before is _alias else ()):
        before(access, storage)
    return original(subject)


# -- safetensors ----------------------------------------------------------------------------------


def _install_safetensors(access: Access) -> None:
    """safetensors hands raw addresses of all tensors to its writer at once. Where they do not fit
    in memory together, each is copied in turn to a file without a name, whose pages the kernel may
    drop."""
    import safetensors.torch as library

    for name in ("_evaluate_tensors_for_save", "_remove_duplicate_names", "_find_shared_tensors"):
        if hasattr(library, name):
            _patches.replace(library, name, lambda original: _within("identity", original))
    if hasattr(library, "_tobytes"):  # copies each tensor itself, one after the other
        _patches.replace(library, "_tobytes", lambda original: _within("momentary", original))
    if hasattr(library, "_to_ndarray"):
        _patches.replace(library, "_to_ndarray", lambda original: _through_a_file(access, original))


def _through_a_file(access: Access, original: Wrapper) -> Wrapper:
    import numpy

    def wrapper(tensor: Tensor) -> Any:
        with pointers_mean("momentary"):
            data, owner = original(tensor)
            if data.nbytes == 0 or not access.moves(tensor):
                return data, owner
            file = tempfile.TemporaryFile()
            copy = numpy.memmap(file, dtype=data.dtype, mode="w+", shape=data.shape)
            copy[...] = data
            return copy, copy

    return wrapper
