"""Result of `tidelog.fit`: figures, as text, and in a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from tidelog.output import _notebook

_GIB, _MIB = 1 << 30, 1 << 20
_WIDTH = 88  # of the notes
_DAYS_OF_A_YEAR = 365


class Rates(TypedDict):
    """Bytes per second of a pool."""

    read: int
    write: int


# The key is a keyword of Python.
PoolRates = TypedDict("PoolRates", {"read": int, "write": int, "from": Literal["measured", "said"]})


class Change(TypedDict):
    """Effect of other hardware."""

    change: str
    step_seconds: float


class _Planned(TypedDict, total=False):
    """Figures where the model fits."""

    pool: PoolRates
    slowdown: float  # of ops beside transfers
    step_seconds: float
    tokens_per_second: float
    waiting_seconds: float
    bytes_written: int  # in a step
    bytes_read: int
    bytes_to_host: int  # to host memory, with --host-memory
    bytes_from_host: int
    bytes_written_per_day: float  # where training never pauses
    wear: dict[str, Any]  # where the drives are named
    notes: list[str]  # what a reader would wonder about
    what_if: list[Change]


class FitFigures(_Planned):
    """Figures of `Fit`. Sizes are bytes."""

    model: str
    parameters: int
    tokens_per_step: int
    ops_from: str
    threads: int | None
    memory: int
    memory_least: int
    memory_least_op: str
    memory_without_tidelog: int
    compute_seconds: float
    fits: bool


@dataclass(frozen=True)
class Fit:
    """Prediction for a model: its needs, and its speed. As text it is one screen."""

    figures: FitFigures

    @property
    def fits(self) -> bool:
        """Returns whether the budget is enough."""
        return self.figures["fits"]

    def __str__(self) -> str:
        return "\n".join(_screen(self.figures))

    def _repr_html_(self) -> str:
        figures = self.figures
        marks = {"budget": figures["memory"], "least": figures["memory_least"]}
        bar = _notebook.memory_bar(figures["memory_without_tidelog"], marks, "all tensors at once")
        return _notebook.page(bar, _notebook.text(str(self)))


def _screen(figures: FitFigures) -> Iterator[str]:
    """The figures as people read them."""
    yield f"{figures['model']}: parameters {binary(figures['parameters'])}, {figures['tokens_per_step']} tokens a step"
    threads = figures["threads"]
    yield f"ops: {figures['ops_from']}, " + ("computed" if threads is None else f"measured with {threads} threads")
    yield ""
    yield f"without Tidelog   {binary(figures['memory_without_tidelog']):>10}   {figures['compute_seconds']:.3f} s a step"
    yield f"least memory      {binary(figures['memory_least']):>10}   {figures['memory_least_op']} uses it at once"
    if not figures["fits"]:
        yield f"memory given      {binary(figures['memory']):>10}   too small: give at least {figures['memory_least']} bytes"
        yield "smaller           micro-batches, sequences or --checkpointing need less"
        return
    step, waiting = figures["step_seconds"], figures["waiting_seconds"]
    slower = step / figures["compute_seconds"]
    yield f"memory given      {binary(figures['memory']):>10}   {step:.3f} s a step, {slower:.2f} x of all in memory"
    yield f"                               {figures['tokens_per_second']:,.1f} tokens a second"
    yield f"                               {waiting:.3f} s of it waiting for the SSDs"
    pool = figures["pool"]
    rates = f"reads {pool['read'] / 1e9:.2f} GB/s and writes {pool['write'] / 1e9:.2f} GB/s"
    yield f"pool              {rates} ({pool['from']})"
    if figures["slowdown"] > 1:
        yield f"                  ops take {figures['slowdown']:.2f} x as long beside its transfers (measured)"
    yield f"moved in a step   {binary(figures['bytes_written'])} written, {binary(figures['bytes_read'])} read"
    if figures["bytes_to_host"]:
        yield f"                  {binary(figures['bytes_to_host'])} to host memory, {binary(figures['bytes_from_host'])} back"
    if figures["bytes_written"]:
        yield f"wear              {figures['bytes_written_per_day'] / 1e12:,.1f} TB a day are written, if training never pauses"
        yield f"drives last       {_lasting(figures)}"
    for note in figures["notes"]:
        yield ""
        yield from textwrap.wrap(note, _WIDTH)
    if figures["what_if"]:
        yield ""
        yield "What would change it"
    for each in figures["what_if"]:
        yield f"  {each['change']:<24} {each['step_seconds']:.3f} s a step"


def _lasting(figures: FitFigures) -> str:
    """Returns the time for which the drives' rated writes hold, in a unit in which that is no zero."""
    if "wear" not in figures:
        return "--drive says which they are (tidelog-plan endurance --help lists them)"
    hours = figures["wear"]["lifetime_hours"]
    if hours is None:
        return "not known: no rating of that drive (tidelog-plan endurance --help lists drives)"
    days = hours / 24
    if days < 2:
        return f"{hours:.1f} hours of training"
    return (
        f"{days:.1f} days of training" if days < _DAYS_OF_A_YEAR else f"{days / _DAYS_OF_A_YEAR:.1f} years of training"
    )


def binary(value: float) -> str:
    """A number of bytes, or of parameters, as people read it."""
    unit, name = (_GIB, "GiB") if value >= _GIB else (_MIB, "MiB")
    return f"{value / unit:.2f} {name}"
