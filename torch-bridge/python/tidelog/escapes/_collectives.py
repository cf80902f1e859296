"""Actions of torch.distributed outside the dispatcher: waiting for a `Work`, and DDP's reducer, which looks at
gradients and makes buckets in C++.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog.dispatch._access import Access
from tidelog.memory._record import untyped_storage
from tidelog.storages._ops import Work

_watched: list[torch.utils.hooks.RemovableHandle] = []  # hooks of gradients that DDP looks at
_modules_watched: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def install(access: Access) -> None:
    """Watches waits for a `Work`: whoever waits for one knows that it is complete; the `Work` itself may not say so."""
    if torch.distributed.is_available():
        _patches.replace(torch.distributed.Work, "wait", lambda original: _wait(access, original))
        for owner in (torch.distributed, torch.distributed.distributed_c10d):
            _patches.replace(owner, "init_process_group", lambda original: _distributed(access, original))
        ddp = torch.nn.parallel.DistributedDataParallel
        _patches.replace(ddp, "_ddp_init_helper", lambda original: _making_buckets(access, original))
        _patches.replace(ddp, "_pre_forward", lambda original: _before_forward(access, original))
        _patches.replace(ddp, "_register_builtin_comm_hook", lambda original: _registering(access, original))
        distributed: Any = torch.distributed
        _patches.replace(
            distributed, "_verify_params_across_processes", lambda original: _making_buckets(access, original)
        )


def remove() -> None:
    """Watches no gradient any longer."""
    _modules_watched.clear()
    while _watched:
        _watched.pop().remove()


def _making_buckets(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with access.of_a_reducer():
            return original(*args, **kwargs)

    return wrapper


def _before_forward(access: Access, original: Wrapper) -> Wrapper:
    """The second forward pass makes the buckets anew, in the order in which gradients came."""
    make_buckets = _making_buckets(access, original)

    def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _watch_gradients(access, module)
        return make_buckets(module, *args, **kwargs)

    return wrapper


def _registering(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        _look_for_builtin_hook(access, module)
        return result

    return wrapper


def _look_for_builtin_hook(access: Access, module: Any) -> None:
    """Keeps buckets in memory where torch's own hook compresses gradients: a callback in C++ writes the bucket on a
    thread of the backend's, where nobody can bring that back.
    """
    kinds: Any = torch.distributed
    if not access.is_live():
        return
    if module._get_ddp_logging_data().get("comm_hook") == str(kinds.BuiltinCommHookType.FP16_COMPRESS):
        access.keep_buckets()


def _watch_gradients(access: Access, module: Any) -> None:
    """DDP's reducer looks at each gradient, in C++, when that is complete: it must be here then. With
    a static graph it looks at all of them when the first backward pass is at its end, so that the
    guard would refuse those that are out."""
    if module in _modules_watched:
        return
    _modules_watched.add(module)
    access.expect_reducer(module)
    _look_for_builtin_hook(access, module)

    reducer = weakref.ref(module)  # which in C++ holds the parameters, and with them this hook

    def look(gradient: Tensor) -> None:
        if access.is_live() and not gradient.is_sparse:
            storage = untyped_storage(gradient)
            access.bring_back(storage)
            if (owner := reducer()) is not None and owner.static_graph and storage._tide is not None:
                storage._tide.is_guarded = False

    is_complete = _Complete(look)
    torch.utils.hooks.unserializable_hook(is_complete)  # torch.save need not warn of it
    for parameter in module.parameters():
        if parameter.requires_grad:
            _watched.append(parameter.register_hook(is_complete))


class _Complete:
    """Hook of a gradient that DDP's reducer looks at next. It changes nothing."""

    def __init__(self, look: Callable[[Tensor], None]) -> None:
        self._look = look

    def __call__(self, gradient: Tensor) -> None:
        self._look(gradient)


def is_ours(hook: object) -> bool:
    """Returns whether a hook of a gradient is one of these."""
    return isinstance(hook, _Complete)


def _distributed(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        access.meet_others()
        return result

    return wrapper


def _wait(access: Access, original: Wrapper) -> Wrapper:
    def wrapper(work: Work, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        access.waited(work)
        return result

    return wrapper
