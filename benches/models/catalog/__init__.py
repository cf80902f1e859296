"""The programs of `make models`, by name. What a program needs is imported when it is made, so that one whose
library is not to be had is a row with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Training:
    """A model that trains. `loss` takes the model, or the compiled model in its place, and a batch."""

    model: Any
    optimizer: Any
    batches: Iterator[Any]
    loss: Callable[[Any, Any], Any]
    compiles_update: bool = False  # the compiled program compiles the optimizer's step, too
    by_closures: bool = False  # the optimizer computes the loss itself, several times


@dataclass(frozen=True)
class Program:
    """A row of the table. `make` returns its `Training`."""

    name: str
    kind: str
    make: Callable[[], Training]


PROGRAMS: dict[str, Program] = {}


def program(name: str, kind: str, make: Callable[[], Training]) -> None:
    """Adds a program."""
    assert name not in PROGRAMS, name
    PROGRAMS[name] = Program(name, kind, make)


from catalog import images_and_sound, optimizers, others, text  # noqa: E402, F401
