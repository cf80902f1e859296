"""Backward passes as autograd runs them where no dispatch mode is entered: it adds gradients up in place then, and
computes formulas in fewer ops. cpp/backward.h says how a block sees the ops all the same, and cpp/sums.h why sums do
not depend on what moves.

Code in Python that the engine runs finds the mode as ever where it may ask for it: in functions, in the hooks of saved
tensors, and where torch.compile is at work. Only the hooks of gradients do not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks

from tidelog import _patches
from tidelog._patches import Wrapper


class Engine(Protocol):
    """What the module of the kernels has for this."""

    def run_backward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls what runs autograd's engine, which finds no mode."""

    def run_with_mode(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls what finds the mode there, too."""

    def enter_compiled(self, save: Callable[[], None]) -> None:
        """Notes the keys of this thread by a function, and finds the mode again until they are put back."""


_engine: Engine | None = None


def install(engine: Engine) -> None:
    """From here on, until the block ends."""
    global _engine
    places = (
        (torch.autograd, "_engine_run_backward", lambda original: partial(_run_backward, engine, original)),
        # By which keys an operator of higher order finds what it does.
        (torch._ops, "key_extractor", with_mode),
        (BackwardCFunction, "_get_user_fn", lambda original: lambda node: with_mode(original(node))),
        (saved_tensors_hooks, "__init__", _unpacking),
        # Guards of compiled functions compare dispatch keys: where a hook of gradients calls one, it must have those of
        # all calls, else it is compiled again each time.
        (torch._C, "_dynamo_save_local_dispatch_key_set", lambda original: partial(engine.enter_compiled, original)),
    )
    if all(hasattr(owner, name) for owner, name, _ in places):  # else this torch keeps them elsewhere
        _engine = engine
        for owner, name, make in places:
            _patches.replace(owner, name, make)


def _run_backward(engine: Engine, original: Wrapper, *args: Any, **kwargs: Any) -> Any:
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiled, "compiled_autograd_enabled", False):  # it runs the pass in Python, with tensors of a mode
        return original(*args, **kwargs)
    return engine.run_backward(original, *args, **kwargs)


def with_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, as one that finds the block's mode wherever it is called."""
    return function if _engine is None else partial(_engine.run_with_mode, function)


def _unpacking(original: Wrapper) -> Wrapper:
    def wrapper(hooks: object, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        original(hooks, with_mode(pack_hook), with_mode(unpack_hook))

    return wrapper
