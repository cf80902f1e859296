"""Bytes that FSDP2 gathers (`fully_shard`): compared each time that they are gathered in a step, where the choice of a
region hangs on it.

A region reads parameters that are gathered for the forward pass, and again before the backward pass, when another rank
may have changed its part. No op of this rank shows that. But all that is gathered is here: so it is summed up with
weights, and the sums are compared. This waits for no other rank.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tidelog import _patches
from tidelog.dispatch._access import Access
from tidelog.dispatch._steps import Steps
from tidelog.memory._record import Holder
from tidelog.native._built import native
from tidelog.storages._ops import Args, Kwargs, Op, modified

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

# Words of 32 bits that are summed up at a time, so that little memory is needed beside them. A GPU needs larger ops.
_WORDS, _WORDS_OF_GPU = 1 << 14, 1 << 20
_SEED = 0x7469646C


class Group:
    """Parameters that are gathered together."""

    def __init__(self) -> None:
        self.content = 0  # a number for the bytes as they were gathered last in this step; 0: they were not
        self.name = "a parameter"
        self.sums: Tensor | None = None
        self.writes: list[int | None] = []  # of each parameter, the op that wrote it then

    def forget(self) -> None:
        """Forgets what was gathered: another step begins."""
        self.content, self.sums, self.writes = 0, None, []


class Gathers:
    """Gathers of FSDP2 in the steps of a block."""

    def __init__(self, steps: Steps, access: Access, gathered: Callable[[Group], None]) -> None:
        """`gathered`: called with a group that has been gathered."""
        self.looks = False  # whether all groups are compared, beside the step; others than `watched` are not
        self.watched: frozenset[Group] = frozenset()
        self.is_gathering = False
        self.same: list[tuple[int, int]] = []  # ops of a step that was looked at, the later of which wrote the same
        self._steps = steps
        self._access = access
        self._has_gathered = gathered
        self._groups: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()
        self._of_storages: dict[int, Group] = {}  # by their numbers, in a step that is looked at
        self._writes: dict[int, int] = {}  # of storages, by their numbers, in the gather that is under way
        self._weights: dict[torch.device, Tensor] = {}
        self._is_put = False

    def begin_step(self) -> None:
        """A step begins."""
        for group in self._groups.values():
            group.forget()
        self.same, self._of_storages = [], {}
        if not self._is_put and (module := sys.modules.get(_MODULE)) is not None:
            _patches.replace(module.FSDPParamGroup, "wait_for_unshard", self._wait)
            self._is_put = True

    def of(self, holders: Iterable[Holder]) -> set[Group]:
        """Returns the groups that these storages have been gathered for, in a step that is looked at."""
        return {self._of_storages[number] for number in _numbers(holders) if number in self._of_storages}

    def saw(self, func: Op, args: Args, kwargs: Kwargs) -> None:
        """An op has run, in a step that is looked at."""
        if self.is_gathering:
            for number in _numbers(modified(func, args, kwargs)):
                self._writes[number] = self._steps.place.next_op - 1

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(group: Any) -> Any:
            if group._all_gather_result is None or not self._access.is_live():
                return original(group)
            self.is_gathering, self._writes = True, {}
            try:
                result = original(group)
            finally:
                self.is_gathering = False
            self._gathered(group)
            return result

        return wait

    def _gathered(self, gathered: Any) -> None:
        group = self._groups.setdefault(gathered, Group())
        if not self.looks and group not in self.watched:
            return
        parameters = [_local(each._unsharded_param) for each in gathered.fsdp_params]
        group.name = getattr(gathered.fsdp_params[0], "_param_fqn", None) or group.name
        if self._access.is_elsewhere() or not all(map(_can_be_summed, parameters)):
            group.content += 1  # as far as anybody knows
            group.sums = None
        elif self.looks:
            with self._steps.of_none():
                self._compare(group, parameters)
            self._note(group, parameters)
        else:
            self._compare(group, parameters)
        self._has_gathered(group)

    def _compare(self, group: Group, parameters: list[Tensor]) -> None:
        with torch.no_grad():
            sums = self._summed(parameters)
            is_same = group.sums is not None and torch.equal(group.sums, sums)
        group.content += not is_same
        group.sums = sums

    def _note(self, group: Group, parameters: list[Tensor]) -> None:
        before, group.writes = group.writes, []
        for parameter in parameters:
            number = next(_numbers([parameter]), -1)
            self._of_storages[number] = group
            group.writes.append(self._writes.get(number))
        if group.content == 1:
            pairs = zip(before, group.writes)
            self.same += [(first, later) for first, later in pairs if first is not None and later is not None]

    def _summed(self, parameters: list[Tensor]) -> Tensor:
        """Sums up words of 32 bits, or fewer, each times a random weight of its place, modulo 2**64. Of two contents
        that differ somewhere at most one in 2**32 choices of weights gives the same sums."""
        sums = []
        for parameter in parameters:
            weights = self._weights_on(parameter.device)
            words = _words(parameter)
            for begin in range(0, len(words), len(weights)):
                part = words[begin : begin + len(weights)]
                sums.append((part * weights[: len(part)]).sum())
        return torch.stack(sums)

    def _weights_on(self, device: torch.device) -> Tensor:
        if (weights := self._weights.get(device)) is None:
            count = _WORDS if device.type == "cpu" else _WORDS_OF_GPU
            most = torch.iinfo(torch.int64)
            generator = torch.Generator().manual_seed(_SEED)  # no generator of the program's
            made = torch.randint(most.min, most.max, (count,), dtype=torch.int64, generator=generator, device="cpu")
            weights = self._weights[device] = made.to(device)
        return weights


def _numbers(holders: Iterable[Holder]) -> Iterator[int]:
    found = (native().record_in(holder) for holder in holders)
    return (record.id for record in found if record is not None)


def _local(parameter: Tensor) -> Tensor:
    local: Tensor = getattr(parameter, "_local_tensor", parameter)
    return local


def _can_be_summed(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_contiguous() and tensor.numel() > 0


def _words(tensor: Tensor) -> Tensor:
    flat = tensor.detach().view(-1)
    for kind in (torch.int32, torch.int16):
        size = kind.itemsize
        if flat.nbytes % size == 0 and flat.storage_offset() * flat.itemsize % size == 0:
            return flat.view(kind)
    return flat.view(torch.uint8)
