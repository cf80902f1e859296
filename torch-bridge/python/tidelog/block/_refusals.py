"""Texts of BudgetError: what does not fit, what cannot move and why, and a budget that is enough.

The session knows what an op needs and how much stays. Why something stays, what it is called in the program, and how
large staging buffers are in another budget is known here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tidelog._budget_error import BudgetError
from tidelog.memory import _device
from tidelog.memory._record import Storage
from tidelog.native._module import Ledger, Record
from tidelog.output._figures import StayingFigures
from tidelog.output._notebook import binary
from tidelog.storages._ledger import adopt
from tidelog.storages._ops import living_tensors, memory_of

# What the session says (`too_large` in src/executor/ops.rs).
_SAID = re.compile(
    r"(?P<subject>.*?) does not fit the budget: .+? must be in memory at once, .+?: (?P<parts>.+), .+? of staging; "
    r"the largest: (?P<largest>.*)\. The smallest budget that would do is (?P<least>\d+) bytes: .*",
    re.DOTALL,
)
_UNNAMED = re.compile(r"\bstorage (\d+)(?= \()")
_NAMED_MAX = 3
_ITEMS_MAX = 10_000  # of a list in which a tensor's name is looked for
# A budget that is named has room for the scalars of the next op, too.
_ROOM_BYTES, _STEP_BYTES = 4 << 10, 64 << 10


class Refusals:
    """The words of one block's refusals. `buffers`: how much of the budget staging buffers take, which have `staging`
    bytes; `least` says the smallest budget that has so much beside its own."""

    def __init__(
        self, ledger: Ledger, device: _device.Host, budget: int, buffers: int, staging: int, least: Callable[[int], int]
    ) -> None:
        self._ledger = ledger
        self._device = device
        self._budget = budget
        self._buffers = buffers
        self._staging = staging
        self._least = least

    def tell(self, error: BudgetError) -> BudgetError:
        """The session's error, in full."""
        said = _SAID.fullmatch(str(error))
        if said is None:
            return error
        met = self._meet_all()
        needed = int(said["least"]) - self._staging + met
        subject, parts, advice = said["subject"], [said["parts"]], _FOR_AN_OP
        stays = sorted(self._that_stay(), key=lambda each: -each[0].size)
        names = _names_in_modules()
        largest = "; the largest: " + _UNNAMED.sub(lambda found: self._name(found, names), said["largest"])
        if not subject:  # no op: the block begins
            subject, advice, largest = "What cannot move", _FOR_THE_START, ""
            parts, room = [f"{binary(needed)} that cannot move"], self._largest_that_moves()
            if room:
                parts.append(f"{binary(room)} for the largest tensor that moves")
            needed += room
        elif met:
            parts.append(f"{binary(met)} that cannot move and was not met before")
        if self._buffers:
            parts.append(f"{binary(self._buffers)} of staging")
        enough = -(-(self._least(needed) + _ROOM_BYTES) // _STEP_BYTES) * _STEP_BYTES
        return BudgetError(
            f"{subject} does not fit the budget: the block is out of memory. {binary(needed + self._buffers)} must be in "
            f"memory at once, but the budget is {binary(self._budget)}: {', '.join(parts)}{largest}{_told(stays, names)}. The "
            f"smallest budget that would do is {enough} bytes: raise memory= to it, or {advice}"
        )

    def largest_that_stay(self) -> list[StayingFigures]:
        """Returns the largest tensors that cannot move as things are, the largest first."""
        stays = sorted(self._that_stay(), key=lambda each: -each[0].size)[:_NAMED_MAX]
        names = _names_in_modules() if stays else {}
        return [{"name": _called(record, names), "bytes": record.size, "why": why} for record, _, why in stays]

    def _meet_all(self) -> int:
        """Tensors that the ledger has not met count from here on. Returns the bytes of those that cannot move."""
        found = 0
        for tensor in living_tensors():
            is_met = torch._is_functional_tensor(tensor) or any(each._tide is not None for each in memory_of(tensor))
            record = adopt(self._ledger, tensor) if not is_met else None
            storage = record() if record is not None else None
            if record is not None and storage is not None and self._why_it_stays(record, storage) is not None:
                found += record.size
        return found

    def _largest_that_moves(self) -> int:
        """Ops of the block will use it."""
        moves = (each for each in self._present() if self._why_it_stays(*each) is None)
        return max((record.size for record, _ in moves), default=0)

    def _that_stay(self) -> Iterator[tuple[Record, Storage, str]]:
        for record, storage in self._present():
            if (why := self._why_it_stays(record, storage)) is not None:
                yield record, storage, why

    def _present(self) -> Iterator[tuple[Record, Storage]]:
        for record in self._ledger.all():
            if (storage := record()) is not None:
                yield record, storage

    def _name(self, found: re.Match[str], names: Mapping[int, str]) -> str:
        record = self._ledger.record_at(int(found[1]))
        return _called(record, names) if record is not None else found[0]

    def _why_it_stays(self, record: Record, storage: Storage) -> str | None:
        if record.async_uses:
            return "a collective uses it"
        if not self._ledger.movable(storage):
            if not record.moves and not self._ledger.backward_moves:
                return 'what="activations" leaves it'
            if not record.moves:
                return "it is in a memory pool of the program's own"
            return self._device.why_unmovable(storage) or "torch reads as much for the state of random numbers, unseen"
        if record.aliases:
            return "a NumPy array or a slice of its storage has its memory"
        if record.has_address:
            return "its address was asked for, by data_ptr() or DLPack: tide.unpin() lets it go"
        return "tide.pinned() holds it" if record.pins else None


_FOR_AN_OP = "make the op smaller (a smaller batch, fewer tensors at once)"
_FOR_THE_START = "let go of some of it before the block"


def _told(stays: Sequence[tuple[Record, Storage, str]], names: Mapping[int, str]) -> str:
    """The largest that cannot move, and why each cannot."""
    told = [f"{_called(record, names)} ({binary(record.size)}: {why})" for record, _, why in stays[:_NAMED_MAX]]
    more = f" and {len(stays) - _NAMED_MAX} more" if len(stays) > _NAMED_MAX else ""
    return f". Of what cannot move the largest are: {', '.join(told)}{more}" if told else ""


def _called(record: Record, names: Mapping[int, str]) -> str:
    storage = record()
    return record.name or (storage is not None and names.get(storage._cdata)) or record.describe()


def _names_in_modules() -> dict[int, str]:
    """Returns names of memory by variables of modules that are running, and by the lists and dicts in these."""
    names: dict[int, str] = {}
    for variables in _modules():
        for name, value in list(variables.items()):
            for found, tensor in _tensors_in(name, value):
                for storage in memory_of(tensor):
                    names.setdefault(storage._cdata, found)
    return names


def _modules() -> Iterator[Mapping[str, Any]]:
    """The variables of the modules whose functions run, of the program's."""
    frame, seen = sys._getframe(), set[int]()
    while frame is not None:
        variables = frame.f_globals
        package = str(variables.get("__name__", "")).partition(".")[0]
        if id(variables) not in seen and package not in ("tidelog", "torch"):
            seen.add(id(variables))
            yield variables
        frame = frame.f_back  # type: ignore[assignment]


def _tensors_in(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif type(value) in (list, tuple, dict) and len(value) <= _ITEMS_MAX:  # type: ignore[arg-type]
        items = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
        for key, each in items:
            if isinstance(each, Tensor):
                yield f"{name}[{key!r}]", each
