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
from typing import Any, Protocol, TypeAlias

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks

from tidelog import _patches, _versions
from tidelog._patches import Wrapper

# Of whom, what is replaced, and by what that is made of it.
Place: TypeAlias = tuple[Any, str, Callable[[Wrapper], Wrapper]]


class Engine(Protocol):
    """What the module of the kernels has for this."""

    def run_backward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls what runs autograd's engine, which finds no mode."""

    def run_with_mode(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls what finds the mode there, too."""

    def enter_compiled(self, save: Callable[[], None]) -> None:
        """Notes the keys of this thread by a function, and finds the mode again until they are put back."""

    def enter_noted(self, function: Callable[[], Any]) -> Any:
        """Calls a function, notes the keys of this thread, and finds the mode again."""

    def leave_noted(self, function: Callable[..., Any], *args: Any) -> Any:
        """Puts back the keys that were noted last, and calls a function."""


_engine: Engine | None = None


def why_not(engine: Engine) -> str:
    """Why autograd's engine has to find the mode, if so: this torch has not all that is replaced."""
    missing = [name for owner, name, _ in _places(engine) if not hasattr(owner, name)]
    return f"torch {torch.__version__} has no {', '.join(missing)}" if missing else ""


def install(engine: Engine) -> None:
    """From here on, until the block ends."""
    global _engine
    if not why_not(engine):
        _engine = engine
        for owner, name, make in _places(engine):
            _patches.replace(owner, name, make)


def _places(engine: Engine) -> list[Place]:
    return [
        (torch.autograd, "_engine_run_backward", lambda original: partial(_run_backward, engine, original)),
        # By which keys an operator of higher order finds what it does.
        (torch._ops, "key_extractor", with_mode),
        _of_functions(),
        (saved_tensors_hooks, "__init__", _unpacking),
        *_of_compiled(engine),
    ]


def _of_functions() -> Place:
    """Where a function's backward pass is called in Python."""
    if hasattr(BackwardCFunction, "_get_user_fn"):  # where there is one, `apply` is not always called
        return BackwardCFunction, "_get_user_fn", lambda original: lambda node: with_mode(original(node))
    return BackwardCFunction, "apply", lambda original: lambda node, *args: with_mode(original)(node, *args)


def _of_compiled(engine: Engine) -> list[Place]:
    """Where a compiled function is entered. Guards of such functions compare dispatch keys: where a hook of gradients
    calls one, it must have those of all calls, else it is compiled again each time.
    """
    if hasattr(torch._C, "_dynamo_save_local_dispatch_key_set"):  # torch puts back what it has noted by this
        return [
            (torch._C, "_dynamo_save_local_dispatch_key_set", lambda original: partial(engine.enter_compiled, original))
        ]
    if _versions.THIS >= (2, 13):  # the function gets the keys that are read by these, and torch puts back what was
        return [(torch._C, f"_dispatch_tls_local_{kind}_set", with_mode) for kind in ("include", "exclude")]
    layers: Any = torch._C._functorch  # of which it calls one before a function, and the other after it
    return [
        (layers, "get_dynamic_layer_stack_depth", lambda original: partial(engine.enter_noted, original)),
        (layers, "pop_dynamic_layer_stack_and_undo_to_depth", lambda original: partial(engine.leave_noted, original)),
    ]


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
