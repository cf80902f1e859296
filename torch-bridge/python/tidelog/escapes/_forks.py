"""Processes that the program starts: what they are given is in memory while they start. A fork copies memory, and what
is out stays with the parent; a loader's workers may read a dataset of tensors that nothing else uses, so that it
leaves.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog.dispatch._access import Access
from tidelog.memory._record import Storage
from tidelog.storages._ops import memory_of

_CONTAINERS = (list, tuple, set, frozenset, deque)
_PLAIN = (int, float, complex, str, bytes, bytearray, type(None), type, types.ModuleType, types.BuiltinFunctionType)


def install(access: Access) -> None:
    """Installs the hooks for a block."""
    process = multiprocessing.process.BaseProcess
    _patches.replace(process, "start", lambda original: _starting(access, original))


def _starting(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(process: Any) -> Any:
        if not access.is_live() or access.is_elsewhere():
            return original(process)
        storages = {id(storage): storage for tensor in tensors_in(vars(process)) for storage in memory_of(tensor)}
        with access.pinned([storage for storage in storages.values() if _may_be_out(access, storage)]):
            return original(process)

    return wrapper


def _may_be_out(access: Access, storage: Storage) -> bool:
    return storage._tide is not None or storage._tide_update is not None or access.owns(storage)


def tensors_in(thing: object) -> Iterator[Tensor]:
    """Every tensor that a new process can reach from here: in containers, attributes, what functions close over, and
    names of a module that they use."""
    seen: set[int] = set()
    kept = []  # what is made on the way: its identity must not serve twice
    waiting: list[Any] = [thing]
    while waiting:
        each = waiting.pop()
        if isinstance(each, _PLAIN) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            yield each
            continue
        parts = list(_parts_of(each))
        kept.append(parts)
        waiting += parts


def _parts_of(thing: Any) -> Iterable[Any]:
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, _CONTAINERS):
        yield from (each for each in thing if not isinstance(each, _PLAIN))
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing)
    else:
        yield from getattr(thing, "__dict__", {}).values()
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                yield getattr(thing, name, None)
            if not kind.__module__.startswith(("torch.", "multiprocessing.", "builtins", "collections")):
                yield from (each for each in vars(kind).values() if isinstance(each, types.FunctionType))


def _parts_of_function(function: types.FunctionType) -> Iterable[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
    if function.__module__ is not None and function.__module__.startswith(("torch.", "multiprocessing.")):
        return
    for name in _names_in(function.__code__):
        value = function.__globals__.get(name)
        # Of what else is there, such as a model, a worker need not use all.
        if isinstance(value, (Tensor, torch.utils.data.Dataset, types.FunctionType, dict, *_CONTAINERS)):
            yield value


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
