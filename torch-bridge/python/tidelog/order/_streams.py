"""Random numbers of micro-batches in another order than the program's.

In the program's order micro-batch 2 begins where the generators are after micro-batch 1. Where all of them
run at once, each needs the states to begin with beforehand. A first pass in the program's order counts
what each draws; from then on states are computed: the host's generator is run ahead by so many numbers,
and of a GPU's, whose numbers are a function of their place, the place is put ahead. What a micro-batch
has drawn at its end is compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tidelog._errors import OrderError
from tidelog._whole import whole
from tidelog.memory._record import unseen

# Of torch's Mersenne Twister, in the bytes of its state: the array of which it takes numbers, which is made
# anew after so many, and how many of it are taken.
_ARRAY, _TAKEN, _NUMBERS = slice(24, 24 + 624 * 8), slice(16, 24), 624
_COUNT_MAX = 1 << 31
_AT_ONCE = 1 << 20

# The shapes of a micro-batch's tensors.
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class State(NamedTuple):
    """The state of all of torch's usual generators."""

    host: bytes
    gpus: tuple[tuple[int, int], ...]  # of each GPU, where torch has begun to use them: the seed, and the place


class Count(NamedTuple):
    """Count of numbers that were drawn."""

    host: int
    gpus: tuple[int, ...]


# Of each model, by the modules that have dropout. None: it cannot be said.
_counts: weakref.WeakKeyDictionary[nn.Module, dict[tuple[int, ...], dict[Shapes, Count | None]]] = (
    weakref.WeakKeyDictionary()
)


def states() -> State:
    """Returns the state of all of torch's usual generators."""
    return State(state(), tuple((gpu.initial_seed(), gpu.get_offset()) for gpu in _gpus()))


def put_states(value: State) -> None:
    """Gives all of torch's usual generators a state."""
    put(value.host)
    for gpu, (seed, place) in zip(_gpus(), value.gpus):
        if gpu.initial_seed() != seed:
            gpu.manual_seed(seed)
        gpu.set_offset(place)


def _gpus() -> Sequence[Any]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


@whole
def state(generator: torch.Generator = torch.default_generator) -> bytes:
    """The state of a generator for the processor."""
    with unseen():
        # Read without the attributes that a block replaces: nobody keeps the address.
        read: bytes = torch._C.TensorBase.numpy(generator.get_state()).tobytes()
        return read


@whole
def put(value: bytes, generator: torch.Generator = torch.default_generator) -> None:
    """Gives a generator a state."""
    with unseen():
        generator.set_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))


@whole
def _ahead(value: bytes, count: int) -> bytes:
    """Returns the state after `count` numbers."""
    generator = torch.Generator()
    put(value, generator)
    with unseen():
        while count > 0:
            torch.empty(min(count, _AT_ONCE), dtype=torch.int32, device="cpu").random_(generator=generator)
            count -= _AT_ONCE
    return state(generator)


def _states_ahead(value: State, count: Count) -> State:
    """Returns the states after a count of numbers."""
    gpus = tuple((seed, place + more) for (seed, place), more in zip(value.gpus, count.gpus))
    return State(_ahead(value.host, count.host), gpus)


def _count(before: State, after: State) -> Count | None:
    """Returns the count of numbers between two states."""
    host = _count_of_host(before.host, after.host)
    gpus = [(old[0] == new[0], new[1] - old[1]) for old, new in zip(before.gpus, after.gpus)]
    is_known = host is not None and len(before.gpus) == len(after.gpus)
    if not is_known or not all(same and more >= 0 for same, more in gpus):
        return None
    return Count(host or 0, tuple(more for _, more in gpus))


def _count_of_host(before: bytes, after: bytes) -> int | None:
    count, at = 0, before
    while at[_ARRAY] != after[_ARRAY]:
        at = _ahead(at, _NUMBERS)
        count += _NUMBERS
        if count > _COUNT_MAX:
            return None
    count += int.from_bytes(after[_TAKEN], "little") - int.from_bytes(at[_TAKEN], "little")
    return count if count >= 0 and _ahead(before, count) == after else None


class Known:
    """Counts of the random numbers of a model's micro-batches: those of the same shapes as many, while the same modules
    have dropout.
    """

    def __init__(self, model: nn.Module, micro_batches: Sequence[object]) -> None:
        dropouts = _dropouts(model)
        self.has_dropout = bool(dropouts)
        self._counts: dict[Shapes, Count | None] = _counts.setdefault(model, {}).setdefault(dropouts, {})
        self._shapes = [_shapes_of(each) for each in micro_batches]
        self.is_unknown = bool(dropouts) and not self._counts.keys() >= set(self._shapes)

    def learn(self, states: Sequence[State]) -> None:
        """`states`: before, between and after the micro-batches, in the program's order."""
        for shapes, before, after in zip(self._shapes, states, states[1:]):
            self._counts[shapes] = _count(before, after)

    def streams(self) -> Streams | None:
        """None: the micro-batches draw nothing, or it is not known how much."""
        found = [self._counts.get(shapes) for shapes in self._shapes]
        counts = [count for count in found if count is not None]
        draws = any(count.host or any(count.gpus) for count in counts)
        return Streams(counts) if draws and len(counts) == len(found) else None


def _dropouts(model: nn.Module) -> tuple[int, ...]:
    """Returns the modules that look as if they had dropout."""
    return tuple(
        place
        for place, module in enumerate(model.modules())
        if module.training
        and any(
            ("drop" in name or name == "p") and isinstance(value, float) and value > 0
            for name, value in vars(module).items()
        )
    )


def _shapes_of(micro_batch: object) -> Shapes:
    return tuple(tuple(leaf.shape) for leaf in tree_leaves(micro_batch) if isinstance(leaf, Tensor))


class Streams:
    """The generators' states of each micro-batch."""

    def __init__(self, counts: list[Count]) -> None:
        self._left = states()  # where the generators are while no micro-batch runs
        self._begins = [self._left]
        for count in counts:
            self._begins.append(_states_ahead(self._begins[-1], count))
        self._now = self._begins[:-1]

    def enter(self, number: int) -> None:
        """A micro-batch goes on."""
        self.refuse_others()
        put_states(self._now[number])

    def leave(self, number: int) -> None:
        """Suspends a micro-batch."""
        self._left = self._now[number] = states()

    def refuse_others(self) -> None:
        """Raises an error if another thread has drawn since a micro-batch was suspended."""
        if states() != self._left:
            raise OrderError("the backward pass draws random numbers, which would be others in another order.")

    def end(self, number: int) -> None:
        """Ends a micro-batch."""
        if self._now[number] != self._begins[number + 1]:
            raise OrderError(
                f"micro-batch {number + 1} draws another number of random numbers than one of the same shapes did, so "
                "those after it have begun with wrong ones. Set dropout to 0."
            )
