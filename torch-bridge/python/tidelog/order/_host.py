"""Updates that run on the host, beside a GPU: what the optimizer keeps never comes to the GPU. A step copies each
gradient to host memory; a thread of ours updates the parameter's copy there, by torch's own step; and the parameter
comes back just before anybody touches it, as with "lazy".

The copy of a parameter is kept from step to step. It is made anew where anything may have written the parameter since
(`Record.writes`), so that only gradients leave and parameters return.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from tidelog import _errors
from tidelog._budget_error import BudgetError
from tidelog._whole import whole
from tidelog.memory._record import Pending, unseen, untyped_storage
from tidelog.native._built import native
from tidelog.native._module import Event, Ledger, Record
from tidelog.order import _element_wise
from tidelog.order._element_wise import Group, tensors_in
from tidelog.order._lazy import Late, LazyUpdates
from tidelog.order._shards import are_apart, is_plain, local, part_of, storage_of
from tidelog.order._update import Step, Update, name_of
from tidelog.order._updates import interrupts_deferred
from tidelog.output._figures import UpdateFigures
from tidelog.output._notebook import binary

# Gradients that wait for their updates may have this part of what parameters have, at least the largest of them.
_WAITING_PARTS = 8

_INSTEAD = "Run with updates='lazy' or 'own'."


# -- what it takes ----------------------------------------------------------------------------------


def needed(optimizer: Optimizer) -> int:
    """Returns the bytes of host memory that updates of this optimizer take; an error where they cannot run there."""
    if (why := _element_wise.why_never(type(optimizer))) is not None:
        _refuse(optimizer, why)
    kept, gradients = 0, [0]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                kept += _bytes_kept(optimizer, group, parameter)
                gradients.append(local(parameter).nbytes)
    return kept + max(*gradients, sum(gradients) // _WAITING_PARTS)


def _bytes_kept(optimizer: Optimizer, group: Group, parameter: Tensor) -> int:
    """Returns the bytes of a parameter's copy and its state: what torch makes for a parameter of two elements tells."""
    with unseen(), torch.no_grad():
        probe = torch.zeros(2, dtype=parameter.dtype, device="cpu")
        probe.grad = torch.zeros_like(probe)
        entry: dict[str, Any] = {}
        numbers = {**_element_wise.numbers_of(group), "capturable": False}
        Step(optimizer).compute(numbers, probe, entry)
        state = sum(each.nbytes for each in tensors_in(entry) if each.shape == probe.shape)
    return local(parameter).nbytes * (probe.nbytes + state) // probe.nbytes


def _refuse(optimizer: Optimizer, why: str) -> NoReturn:
    raise _errors.OrderError(
        f"updates='host': the steps of {type(optimizer).__name__} cannot run on the host: {why}. {_INSTEAD}"
    )


# -- what the host has --------------------------------------------------------------------------------


class _Copy:
    """The copy of a parameter on the host."""

    def __init__(self, tensor: Tensor, kept: int) -> None:
        self.tensor = tensor
        self.bytes = kept  # with the state
        self._record: Record | None = None
        self._seen: tuple[Any, ...] = ()

    def note(self, part: Tensor, record: Record | None) -> None:
        """The parameter has the same elements now. `part`: this rank's of it."""
        self._record, self._seen = record, _look_of(part, record)

    def is_of(self, part: Tensor, record: Record | None) -> bool:
        """Returns whether the parameter has these elements still."""
        return record is not None and record is self._record and _look_of(part, record) == self._seen


def _look_of(part: Tensor, record: Record | None) -> tuple[Any, ...]:
    return record.writes if record is not None else None, part.storage_offset(), part.shape, part.stride(), part.dtype


def _is_beside(tensor: Tensor) -> bool:
    return native().record_for(storage_of(tensor)).is_beside


def _put_beside(tensor: Tensor) -> None:
    native().record_for(storage_of(tensor)).is_beside = True


def _holders(tensor: Tensor) -> tuple[int, int]:
    """Returns how many have a tensor's object in Python, and its storage."""
    part = local(tensor)
    return sys.getrefcount(tensor), torch._C._storage_Use_Count(storage_of(part)._cdata)


def _usual_holders() -> tuple[int, int]:
    """Returns the same of state that nobody but its optimizer has."""
    with unseen():
        entry = {"": torch.zeros(1, device="cpu")}
    _put_beside(entry[""])
    (found,) = [_holders(each) for each in tensors_in(entry)]
    return found


class _HostUpdate(Update):
    """One parameter's update, on the host."""

    def __init__(
        self, step: Step, group: Group, parameter: Tensor, gradient: Tensor, copy: _Copy, ready: Event | None
    ) -> None:
        """`gradient`: on the host, once `ready` has happened."""
        super().__init__(step, group, parameter, gradient, copy.tensor)
        self.bytes = gradient.nbytes  # that wait for it
        self._copy, self._ready = copy, ready
        self._to = local(parameter).data
        self._done: Future[None]
        # State stands in the order of the program's parameters, whichever of them is used first.
        self._is_first = parameter not in step.state
        if self._is_first:
            step.state[parameter] = {}

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Begins the update, in another thread."""
        self._done = threads.submit(self._on_host)

    def _on_host(self) -> None:
        if self._ready is not None:
            self._ready.synchronize()
        try:
            with unseen(), torch.no_grad():
                self.run()
        finally:
            self._view.grad = None
            for each in tensors_in(self.entry):
                _put_beside(each)

    def is_done(self) -> bool:
        """Returns whether the update has run; the parameter may have to return."""
        return self._done.done()

    def wait(self) -> None:
        """Waits until the update has run."""
        self._done.result()

    def compute(self) -> None:
        """Has the parameter return. After an error it may be called again."""
        self.wait()
        self.keep()
        if self._is_first and not self.step.state.get(self._parameter, True):
            del self.step.state[self._parameter]  # it has none
        self._to.copy_(self._copy.tensor, non_blocking=True)
        self._copy.note(self._to, untyped_storage(self._to)._tide)


# -- a block's ------------------------------------------------------------------------------------------


class HostUpdates(LazyUpdates):
    """The updates of one block that run on the host."""

    name = "host"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._copies = WeakIdKeyDictionary()  # of each parameter its `_Copy`
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._threads = ThreadPoolExecutor(1, "tidelog updates")
        self._waiting: deque[_HostUpdate] = deque()  # whose gradients have host memory
        self._usual_holders = (0, 0)

    def begin(self) -> None:
        super().begin()
        self._ledger.counts_writes = True
        self._usual_holders = _usual_holders()

    def figures(self) -> UpdateFigures:
        return {**super().figures(), "host_bytes": self._kept_bytes() + self._bytes_of_waiting()}

    def _kept_bytes(self) -> int:
        return sum(copy.bytes for copy in list(self._copies.values()))

    def _bytes_of_waiting(self) -> int:
        while self._waiting and self._waiting[0].is_done():
            self._waiting.popleft()
        return sum(each.bytes for each in self._waiting)

    # -- a step -----------------------------------------------------------------------------------

    def rests(self, optimizer: Optimizer) -> bool:
        """State is on the host, also where all would fit on the GPU."""
        return False

    @whole
    def leave_to(self, optimizer: Optimizer, why: str) -> None:
        if any(self._is_here(each) for group in optimizer.param_groups for each in group["params"]):
            _refuse(optimizer, why)

    def _is_here(self, parameter: Tensor) -> bool:
        try:
            return self._ledger.owns(storage_of(parameter))
        except RuntimeError:  # it has no storage
            return True

    @whole
    def note(self, optimizer: Optimizer, step: Step) -> list[Group]:
        """Begins a step's updates. In its place are those of parameters that are on the host anyway."""
        self._run_what_waited(optimizer)
        self._optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and (why := _why_not(parameter)) is not None:
                    _refuse(optimizer, f"{name_of_any(parameter)} {why}")
        groups = []
        for group in optimizer.param_groups:
            numbers, in_place = _element_wise.noted(group), []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self._is_here(parameter):
                    in_place.append(parameter)
                    continue
                copy = self._copy_of(optimizer, group, parameter)
                self.run_apart(partial(self._begin_update, step, numbers, parameter, copy))
            if in_place:
                groups.append({**numbers, "params": in_place})
        return groups

    def _copy_of(self, optimizer: Optimizer, group: Group, parameter: Tensor) -> _Copy:
        part = local(parameter)
        copy: _Copy | None = self._copies.get(parameter)
        if copy is not None and (copy.tensor.shape, copy.tensor.dtype) == (part.shape, part.dtype):
            return copy
        self._copies.pop(parameter, None)
        kept = _bytes_kept(optimizer, group, parameter)
        self._require(self._kept_bytes() + kept + part.nbytes, parameter)
        copy = self._copies[parameter] = _Copy(self._like(part), kept)
        return copy

    def _require(self, needs: int, parameter: Tensor) -> None:
        if needs > self._beside:
            raise BudgetError(
                f"host_memory= is too small for updates='host': with {name_of(parameter)} the copies of parameters, "
                f"their state and a gradient need {binary(needs)}, and updates may have {binary(self._beside)} of it. "
                "Raise it; pass the optimizer to offload(), which says at once how much all of its updates take."
            )

    def _like(self, tensor: Tensor) -> Tensor:
        """Returns host memory for a tensor of this shape and type."""
        with unseen():
            made = self.device.host_like(tensor)
        _put_beside(made)
        return made

    def _begin_update(self, step: Step, numbers: Group, parameter: Tensor, copy: _Copy) -> None:
        """Copies a gradient to the host, where its update begins."""
        part, gradient = local(parameter), local(parameter.grad)
        storage = untyped_storage(part)
        if storage._tide_update is not None:  # of another parameter in the same memory
            self._run_now(storage._tide_update)
        record = self._ledger.record_of(storage)
        is_seen = self.is_seen(storage)
        if not (is_seen and copy.is_of(part, record)):
            copy.tensor.copy_(part.detach())
        self._make_room_for(gradient, parameter)
        sent = self._like(gradient)
        sent.copy_(gradient.detach(), non_blocking=True)
        is_held = self._state_is_held(step, parameter)
        self._have_state_here(step, parameter)
        update = _HostUpdate(step, numbers, parameter, sent, copy, self.streams.after())
        del sent
        late = Late(step, parameter, self)
        late.each.append(update)
        late.add([parameter])
        torch.autograd.graph.increment_version(parameter)  # what was computed with it is out of date from here on
        update.begin(self._threads)
        self._waiting.append(update)
        self.pending[id(late)] = late
        late.hang()
        if not is_seen:
            self._run_now(late)
        elif is_held:
            update.wait()

    def _run_now(self, update: Pending) -> None:
        """Runs an update in the midst of what begins others: it is not one of those."""
        self.is_running = False
        update.run()
        self.is_running = True

    def _make_room_for(self, gradient: Tensor, parameter: Tensor) -> None:
        room = self._beside - self._kept_bytes()
        while (waiting := self._bytes_of_waiting()) + gradient.nbytes > room:
            if not waiting:
                self._require(self._kept_bytes() + gradient.nbytes, parameter)
            self._waiting[0].wait()

    def _state_is_held(self, step: Step, parameter: Tensor) -> bool:
        """Returns whether anybody but the optimizer has some of a parameter's state, and may read it at any time."""
        state = step.state.get(parameter, {})
        return any(_holders(each) != self._usual_holders for each in tensors_in(state) if _is_beside(each))

    def _have_state_here(self, step: Step, parameter: Tensor) -> None:
        """State that was made or loaded elsewhere comes to the host."""
        entry = step.state.get(parameter, {})
        for name, value in entry.items():
            if isinstance(value, Tensor) and not _is_beside(value):
                part = local(value)
                here = self._like(part)
                here.copy_(part)
                entry[name] = part_of(here, parameter) if part is not value else here

    # -- running them -------------------------------------------------------------------------------

    @whole
    def _run(self, update: Late) -> None:
        """Has a parameter return. Where there is no memory for it, whoever touches it next retries."""
        with interrupts_deferred():
            self._forget(update)
            try:
                self.streams.call_on(update.stream, partial(self.run_apart, update.compute))
            except BaseException:
                self.pending[id(update)] = update
                update.hang()
                raise
            self._late += len(update.each)

    # -- the end --------------------------------------------------------------------------------------

    def end(self) -> BaseException | None:
        failure = super().end()
        self._ledger.counts_writes = False
        if not self.is_forked():
            self._threads.shutdown()
            self._waiting.clear()
            self._return_state()
        self._copies.clear()
        return failure

    def _return_state(self) -> None:
        """Moves state to where torch has it, if there is room for that beside all else."""
        found = [each for optimizer in self._optimizers for each in _states(optimizer, self._is_here)]
        size = sum(local(each).nbytes for _, entry in found for each in tensors_in(entry) if each.dim())
        if not size:
            return
        if _bytes_of(self._ledger) + size <= self._ledger.limit:
            with contextlib.suppress(BudgetError):
                self.run_apart(partial(_move_all, found, self.device.place))
                return
        warnings.warn(
            f"the optimizer state of {len(found)} parameters ({binary(size)}) stays in host memory (updates='host'): "
            "the budget has no room for it on the GPU. The optimizer steps again in a block with updates='host'; "
            "elsewhere once optimizer.load_state_dict(optimizer.state_dict()) has moved it.",
            _errors.LeftBehindWarning,
            stacklevel=5,
        )


def _why_not(parameter: Tensor) -> str | None:
    """Returns the reason why a parameter cannot be updated on the host."""
    gradient = parameter.grad
    if gradient is None or not is_plain(parameter) or not is_plain(gradient):
        return "or its gradient is no plain tensor"
    if not are_apart(parameter, [gradient]):
        return "is updated with what other ranks have of its gradient"
    return "has a gradient that requires one" if gradient.requires_grad else None


def name_of_any(parameter: Tensor) -> str:
    """Returns the name of a parameter, which may have no storage of its own."""
    try:
        return name_of(parameter)
    except RuntimeError:
        return "a parameter"


def _states(optimizer: Optimizer, is_here: Callable[[Tensor], bool]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yields each parameter that is updated on the host, and its state."""
    for parameter, entry in vars(optimizer)["state"].items():
        if is_here(parameter) and any(map(_is_beside, tensors_in(entry))):
            yield parameter, entry


def _bytes_of(ledger: Ledger) -> int:
    return sum(record.size for record in ledger.all() if not record.is_slice)


def _move_all(states: list[tuple[Tensor, dict[str, Any]]], place: torch.device) -> None:
    for parameter, entry in states:
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.dim():
                part = local(value)
                there = torch.empty_like(part, device=place)
                there.copy_(part)
                entry[name] = part_of(there, parameter) if part is not value else there
