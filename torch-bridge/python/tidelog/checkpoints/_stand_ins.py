"""A state without the bytes of its tensors, for the planners of `torch.distributed.checkpoint`.

Each tensor has one in its place that has its shape, its strides and its dtype, and no memory (torch's
"meta" device). Those that share a storage share one again, so that whatever view a planner takes says
where its bytes lie in the storage that stands behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import torch
from torch.distributed.tensor import DTensor

from tidelog import _errors
from tidelog.checkpoints._manifest import View, Writer
from tidelog.memory._record import Storage, untyped_storage, nbytes


class _StandIn(torch.Tensor):
    """A tensor's place. What would keep its bytes finds that there are none."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise _errors.Error(
            "async_save keeps tensors that the planner finds one by one, in dicts and lists; here one is inside of "
            "something that it writes as a whole. Let the planner flatten the state (flatten_state_dict), or call "
            "dcp.save."
        )


class StandIns(Writer):
    """Maker of stand-ins for a state. `places` are their storages, and `storages` those that they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[torch.UntypedStorage] = []

    def of(self, value: Any) -> Any:
        """The state with a stand-in for each tensor that dicts and lists lead to. The rest is copied."""
        if isinstance(value, DTensor):
            with torch.no_grad():
                place = DTensor.from_local(
                    self._stand_in(value.to_local()),
                    value.device_mesh,
                    value.placements,
                    run_check=False,
                    shape=value.shape,
                    stride=value.stride(),
                )
            return place.requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor):
            return self._stand_in(value)
        if isinstance(value, Mapping):
            return {key: self.of(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.of(item) for item in value]
        return copy.deepcopy(value)

    def check(self, tensor: torch.Tensor) -> None:
        """Checks a tensor as for any checkpoint."""
        try:
            super().check(tensor)
        except _errors.Error as error:
            raise _errors.Error(f"{error} (async_save takes plain tensors and DTensors.)") from None

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        view = View(self.persistent_id(tensor))
        view.kind = "tensor"
        for storage in self.storages[len(self.places) :]:
            self.places.append(torch.UntypedStorage(nbytes(storage), device="meta"))
        with torch.no_grad():
            place = view.on(self.places[view.storage]).detach().as_subclass(_StandIn)
        return place.requires_grad_(view.requires_grad)


class OfStandIns(Writer):
    """Writes a state in which tensors are views of stand-ins in these places."""

    def __init__(self, places: Sequence[torch.UntypedStorage]) -> None:
        super().__init__()
        self._known = {cast(Storage, place)._cdata: number for number, place in enumerate(places)}

    def check(self, tensor: torch.Tensor) -> None:
        """Refuses what has no bytes."""
        if untyped_storage(tensor)._cdata not in self._known:
            raise _errors.Error(
                f"the planner of an async_save has made a tensor of its own, {tuple(tensor.shape)} on {tensor.device}: "
                "it may take parts of tensors, and not compute with them. dcp.save lets it."
            )

    @property
    def found(self) -> list[int]:
        """The numbers of the places that the state has, each once, in the order of `storages`."""
        return [self._known[storage._cdata] for storage in self.storages]
