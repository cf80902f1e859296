"""The blocks of layers that micro-batches pass one after the other: which they are, and when they are
called."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from tidelog._errors import OrderError

# What has hooks of its own between blocks, which no pass but its own could have, and what to take instead.
_REDUCERS = {
    "FullyShardedDataParallel": "gathers and frees one flat parameter in the order of its own passes: take fully_shard",
    "DDP": "(replicate) hides its reducer from its modules: take DistributedDataParallel",
}
_LISTS = (nn.ModuleList, nn.Sequential)
# A list's item with more than this part of the list's parameters is looked into for a list of its own.
_MOST = 2 / 3

# Gets a block, and the call; returns its result.
Call: TypeAlias = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Chain:
    """Blocks of a model, in words and in lists."""

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module] | None) -> None:
        self.names = {id(module): name or "the model" for name, module in model.named_modules()}
        self.are_named = blocks is not None  # by the user
        lists = _found(model) if blocks is None else [list(blocks)]
        self.blocks = {id(block): block for block in (block for each in lists for block in each)}
        self.last = {id(each[-1]) for each in lists if each}
        if not self.blocks:
            raise OrderError(
                f"{type(model).__name__} has no list of blocks (a ModuleList or Sequential of modules with "
                "parameters): name them, as blocks=model.layers."
            )
        for module in (model, *model.modules()):
            _refuse_compiled(module, self)

    def name(self, block: nn.Module) -> str:
        """Returns the name of a block."""
        return self.names.get(id(block), type(block).__name__)

    def modules_of_several_parts(self, model: nn.Module) -> dict[int, nn.Module]:
        """Modules that blocks are a part of, and those that are a part of several blocks, or of one and of the rest."""
        inside: dict[int, int] = {}
        for block in self.blocks.values():
            for module in block.modules():
                inside[id(module)] = inside.get(id(module), 0) + 1
        outside: set[int] = set()
        todo = [model]
        while todo:
            module = todo.pop()
            if id(module) not in outside and id(module) not in self.blocks:
                outside.add(id(module))
                todo += module.children()
        return {
            id(module): module
            for module in model.modules()
            if inside.get(id(module), 0) + (id(module) in outside) > 1 or (id(module) in outside and self.holds(module))
        }

    def holds(self, module: nn.Module) -> bool:
        """Returns whether a block is a part of this module."""
        return any(id(part) in self.blocks for part in module.modules() if part is not module)


def _found(module: nn.Module) -> list[Sequence[nn.Module]]:
    """The outermost lists of modules that have parameters."""
    if isinstance(module, _LISTS):
        items = [item for item in module if any(True for _ in item.parameters())]
        sizes = [sum(parameter.numel() for parameter in item.parameters()) for item in items]
        if len(items) > 1:
            inner = [_found(item) if size > _MOST * sum(sizes) else [] for item, size in zip(items, sizes)]
            if any(inner):
                return [part for item, lists in zip(items, inner) for part in (lists or [[item]])]
            return [items]
    return [found for child in module.children() for found in _found(child)]


def refuse_reducers(model: nn.Module) -> None:
    """Refuses a model whose blocks are not called themselves, or not without what reduces their gradients."""
    for module in model.modules():
        if isinstance(module, DataParallel):
            raise OrderError(
                "DataParallel calls copies of the blocks, which it makes for each forward pass: take "
                "DistributedDataParallel, with a process for each GPU."
            )
        for kind in type(module).__mro__:
            if kind.__module__.startswith("torch.distributed.") and kind.__name__ in _REDUCERS:
                raise OrderError(f"{kind.__name__} {_REDUCERS[kind.__name__]}.")


def _refuse_compiled(module: nn.Module, chain: Chain) -> None:
    kinds = [kind.__name__ for kind in type(module).__mro__]
    is_compiled = "OptimizedModule" in kinds or module._compiled_call_impl is not None
    if is_compiled and chain.holds(module) and id(module) not in chain.blocks:
        raise OrderError(
            f"{chain.name(module)} is compiled as a whole, so its blocks are not called one by one. Compile each "
            "block: for block in blocks: block.compile()."
        )


class CallsOfClasses:
    """Calls of all modules whose class has one of these names, whoever makes them and when."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._own: Callable[..., Any] | None = None

    def begin(self, call: Call) -> None:
        """Begins to redirect calls."""
        self._own = own = nn.Module.__call__

        @functools.wraps(own)
        def wrapper(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if type(block).__name__ not in self._names or torch.compiler.is_compiling():
                return own(block, *args, **kwargs)
            return call(block, own, args, kwargs)

        setattr(nn.Module, "__call__", wrapper)

    def close(self) -> None:
        """Modules are called as they were."""
        if self._own is not None:
            setattr(nn.Module, "__call__", self._own)
            self._own = None


class CallsSeen:
    """Calls of named blocks: from `begin` to `close` calls of blocks go through a function, in any thread. Hooks of a
    module would be too late where its class checkpoints or compiles what its call does. Finalizers call blocks as ever:
    what they do is no part of the program's pass. `close` may be called again: Ctrl-C may have come in between.
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        self._blocks = list(blocks)
        self._own = {type(block): vars(type(block)).get("__call__") for block in self._blocks}
        self._collecting: int | None = None  # the thread in which the collector runs, and so finalizers do

    def begin(self, call: Call) -> None:
        """Begins to redirect calls."""
        ids = {id(block) for block in self._blocks}

        def is_seen(block: nn.Module) -> bool:
            return id(block) in ids and self._collecting != threading.get_ident()

        gc.callbacks.append(self._collects)
        for kind in self._own:
            setattr(kind, "__call__", _through(kind.__call__, is_seen, call))

    def _collects(self, phase: str, _info: object) -> None:
        self._collecting = threading.get_ident() if phase == "start" else None

    def close(self) -> None:
        """Classes are as they were."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collects)
        for kind, own in self._own.items():
            if own is not None:
                setattr(kind, "__call__", own)
            elif "__call__" in vars(kind):
                delattr(kind, "__call__")


@contextlib.contextmanager
def gradients_seen(look: Callable[[Iterable[Any]], None]) -> Iterator[None]:
    """Passes to `look` what any thread computes gradients of, before it does."""
    original = getattr(torch.autograd, "_engine_run_backward")

    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        look(outputs)
        return original(outputs, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, torch.autograd, "_engine_run_backward", original)
        setattr(torch.autograd, "_engine_run_backward", run_backward)
        yield


def _through(original: Callable[..., Any], is_seen: Callable[[nn.Module], bool], call: Call) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not is_seen(block):
            return original(block, *args, **kwargs)
        return call(block, original, args, kwargs)

    return wrapper
