"""Kernels that get addresses, and what launches them: each launch is an op.

Triton's launcher asks every argument for its address, for the time of the kernel. The kernels of
torch.compile are in `_compiled`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog.dispatch._access import Access
from tidelog.escapes._threads import borrow
from tidelog.storages._ops import Args, Kwargs, Launch, storages, storages_of

_scope = threading.local()


@contextmanager
def pointers_mean(meaning: str | None) -> Iterator[None]:
    """Says what addresses that are asked for meanwhile are for. None: nothing is known."""
    before = getattr(_scope, "meaning", None)
    _scope.meaning = meaning
    try:
        yield
    finally:
        _scope.meaning = before


def meaning_of_pointers() -> str | None:
    """Returns the purpose of addresses. None: nothing is known, they may be kept."""
    return getattr(_scope, "meaning", None)


def launch(access: Access, func: Launch, args: Args, kwargs: Kwargs) -> Any:
    """Launches a kernel, whatever thread this is."""
    if access.is_elsewhere() and access.is_live():
        with borrow(access, storages_of(args, kwargs), storages(func.modified(args, kwargs))):
            return func(*args, **kwargs)
    return access.launch(func, args, kwargs)


def install(access: Access) -> None:
    """Makes launches of Triton's kernels ops."""
    used = "triton" in sys.modules or os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available()
    if used and importlib.util.find_spec("triton") is not None:
        from triton.runtime import interpreter, jit

        for owner in (jit.JITFunction, interpreter.InterpretedFunction):
            _patches.replace(
                owner,
                "run",
                lambda original: launching(access, lambda kernel: Launch(kernel, original)),
            )


def launching(access: Access, launch_of: Callable[[Any], Launch]) -> Wrapper:
    """Returns a wrapper for a method of kernels that launches them. `launch_of` makes the `Launch` of one, once: plans
    know it by that.
    """
    launches: dict[Any, Launch] = {}

    def wrapper(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        func = launches.get(kernel)
        if func is None:
            func = launches[kernel] = launch_of(kernel)
        with pointers_mean("momentary"):
            return launch(access, func, args, kwargs)

    return wrapper
