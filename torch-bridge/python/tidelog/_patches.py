"""Entry points of torch and other libraries that are replaced while a block is open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

Wrapper: TypeAlias = Callable[..., Any]

_undo: list[tuple[Any, str, Any]] = []


def put(owner: Any, name: str, value: Any) -> None:
    """Puts `value` where a class or a module has something else, until `take_back`."""
    _undo.append((owner, name, vars(owner).get(name)))
    setattr(owner, name, value)


def replace(owner: Any, name: str, make: Callable[[Wrapper], Wrapper]) -> None:
    """Replaces a function by the result of `make` for it."""
    original = getattr(owner, name)
    put(owner, name, functools.wraps(original)(make(original)))


def take_back() -> None:
    """Puts everything back as it was."""
    while _undo:
        owner, name, own = _undo.pop()
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
