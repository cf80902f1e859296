"""The part of a parameter that this rank has: all of a plain tensor, the local shard of a DTensor. An update uses the
memory of that part alone, and no other rank has a part in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tidelog.memory._record import Storage, untyped_storage

_PLAIN = (Tensor, torch.nn.Parameter)


def _is_sharded(tensor: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # without it there is no DTensor
    return module is not None and type(tensor) is module.DTensor


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank has."""
    part: Tensor = tensor._local_tensor if _is_sharded(tensor) else tensor
    return part


def storage_of(tensor: Tensor) -> Storage:
    """Returns the storage of a tensor's local part."""
    return untyped_storage(local(tensor))


def is_plain(tensor: object) -> bool:
    """Returns whether this rank's part has one storage, and neither a dispatch of its own nor a mode that it is bound
    to.
    """
    part = local(tensor)
    return type(part) in _PLAIN and part.layout is torch.strided and not part.is_inference()


def are_apart(parameter: Tensor, others: Iterable[Tensor]) -> bool:
    """Returns whether what is computed of these, element by element, needs nothing of another rank: then it may be
    computed at any time. `others`: the parameter's gradient and state.
    """
    if not _is_sharded(parameter):
        return not any(map(_is_sharded, others))
    layout = _layout(parameter)
    if any(placement.is_partial() for placement in layout[1]) or not local(parameter).dim():
        return False
    return all(_layout(each) == layout for each in others if _is_sharded(each))


def _layout(sharded: Any) -> tuple[Any, Any]:
    return sharded.device_mesh, sharded.placements


def part_of(value: Any, parameter: Any) -> Any:
    """State that was made for the local part of a parameter, as the parameter's own: a part of a DTensor, if the
    parameter is one."""
    is_its = isinstance(value, Tensor) and value.shape == local(parameter).shape
    return type(parameter)(value, parameter._spec, requires_grad=False) if _is_sharded(parameter) and is_its else value


def maker_of_similar(tensor: Any) -> Callable[[], Tensor]:
    """Returns a function that makes tensors of its shape and type, with any values. It does not keep the tensor."""
    part = local(tensor)
    make = partial(torch.empty_strided, part.shape, part.stride(), dtype=part.dtype, device=part.device)
    if part is tensor:
        return make
    kind, spec = type(tensor), tensor._spec
    return lambda: kind(make(), spec, requires_grad=False)
