"""Optimizers whose steps may run later, one parameter at a time, with the same bits; and the reasons against all
others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer, optimizer as torch_optimizer
from torch.utils._device import DeviceContext

from tidelog.storages._ops import Args, Kwargs

Group: TypeAlias = dict[str, Any]

# Each element of a parameter is updated from the same element of its gradient and its state, and from numbers.
ELEMENT_WISE = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip
# Why others are not. Of a class that stands nowhere here nothing is known.
OTHERS = {
    "Adafactor": "it adds up over rows and columns",
    "LBFGS": "it calls a closure, and all parameters decide on each",
    "Muon": "it multiplies matrices",
    "SparseAdam": "its gradients are sparse",
}

_known = {kind for name in ELEMENT_WISE if (kind := getattr(torch.optim, name, None)) is not None}
_reasons = {getattr(torch.optim, name, None): reason for name, reason in OTHERS.items()}

# What such a step computes with; whatever else users keep in a group is not looked at.
_NUMBERS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "alpha", "rho", "lambd", "lr_decay", "t0")

_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_function_mode_at: Callable[[int], object] = torch._C._get_function_stack_at


def step_of(kind: type[Optimizer]) -> Callable[[Any], object]:
    """The step of a class of optimizers as torch wrote it: without hooks, and what wraps it."""
    step: Callable[[Any], object] = inspect.unwrap(kind.step)
    return step


def why_never(kind: type[Optimizer]) -> str | None:
    """Returns the reason why no step of this class can run later."""
    if kind in _reasons:
        return f"{_reasons[kind]}, so it is not element-wise"
    if kind not in _known or not step_of(kind).__module__.startswith("torch.optim."):
        return "only classes of torch.optim are known to be element-wise, and no subclasses"
    return None


def why_not(optimizer: Optimizer, args: Args, kwargs: Kwargs, known_hooks: Callable[[object], bool]) -> str | None:
    """Returns the reason why this step cannot run later; None: it can. `known_hooks` says of a step hook whether it is
    ours.
    """
    if (why := why_never(type(optimizer))) is not None:
        return why
    if len(args) > 2 or not kwargs.keys() <= {"closure"}:
        return "it is called with more than a closure"
    hooks = (
        *optimizer._optimizer_step_pre_hooks.values(),
        *optimizer._optimizer_step_post_hooks.values(),
        *torch_optimizer._global_optimizer_pre_hooks.values(),
        *torch_optimizer._global_optimizer_post_hooks.values(),
    )
    if not all(map(known_hooks, hooks)):
        return "it has step hooks, which may do anything"
    if any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
        return "a GradScaler has it scale gradients by itself"
    return _of_groups(optimizer.param_groups) or _of_the_moment(optimizer.param_groups)


def _of_groups(groups: list[Group]) -> str | None:
    for group in groups:
        for name in ("capturable", "differentiable"):
            if group.get(name):
                return f"it is {name}"
        for name in _NUMBERS:
            value = group.get(name)
            if any(isinstance(each, Tensor) for each in (value if isinstance(value, (tuple, list)) else (value,))):
                return f"its {name} is a tensor, which may change before the update runs"
    return None


def _of_the_moment(groups: list[Group]) -> str | None:
    """Returns values of groups that hold at the step but may no longer hold when its updates run."""
    if torch.is_inference_mode_enabled():
        return "it steps in inference mode"
    places = {each.device.type for group in groups for each in group["params"]}
    if any(torch.amp.is_autocast_available(place) and torch.is_autocast_enabled(place) for place in places):
        return "it steps under autocast"
    modes = [_function_mode_at(place) for place in range(_count_function_modes())]
    if _count_modes() or not all(isinstance(mode, DeviceContext) for mode in modes):
        return "another mode sees its ops"
    return None


def numbers_of(group: Group) -> Group:
    """Returns a group's values now, without its parameters."""
    return {
        name: value.copy() if isinstance(value, (list, dict)) else value
        for name, value in group.items()
        if name not in ("params", "param_names")
    }


def noted(group: Group) -> Group:
    """Returns the values with which a step of this group computes now, without its parameters."""
    numbers = numbers_of(group)
    if numbers.get("foreach", False) is None and not numbers.get("fused"):
        # Torch decides it by all parameters of the group; of one alone it may say something else.
        stepped = [each for each in group["params"] if each.grad is not None]
        if len({(each.device.type, type(each) in torch_optimizer._foreach_supported_types) for each in stepped}) > 1:
            numbers["foreach"] = False
    return numbers


def tensors_in(entry: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among a parameter's state."""
    return [value for value in entry.values() if isinstance(value, Tensor)]
