"""DistributedDataParallel around micro-batches that pass layer by layer: gradients are added up as without ranks, and
reduced once, when those of all micro-batches are complete.

DDP counts how many gradients of a backward pass are ready, by a hook of each. Layer by layer there are many backward
passes, each of a part. So DDP takes all of them for passes without a reduction, and is told afterwards what it would
have heard from its hooks, in their order: on that depends into which buckets gradients come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from tidelog._errors import OrderError

_ACTIVE = "_active_ddp_module"
_UNUSUAL = {
    "static_graph": "takes the hooks of its first backward pass for those of every other, and here there are more",
    "mixed_precision": "casts parameters in hooks on their way to each other part of the model, in both passes",
    "_use_python_reducer": "has torch.compile reduce gradients in the backward pass that it compiles",
    "_delay_all_reduce_params": "reduces parameters in the hook of another one, whenever that has a gradient",
}


class Replica:
    """One module of DDP's, in one pass of micro-batches."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._syncs = module.require_backward_grad_sync  # not inside its no_sync()
        self._order: list[Tensor] = []  # parameters, as their gradients of the last micro-batch were made
        _refuse(module)
        self._places = {id(parameter): place for place, parameter in enumerate(_reduced(module))}
        self._hooks: list[RemovableHandle] = []
        # Each forward pass leaves what it has found: suspended in each other they would leave the module, for good.
        self._active = getattr(DistributedDataParallel, _ACTIVE, None)

    def begin(self, is_last: Callable[[Tensor], bool]) -> None:
        """Begins a pass. `is_last`: whether what was just added completes a parameter's gradient."""
        self._module.require_backward_grad_sync = False
        self._hooks.append(self._module.module.register_forward_pre_hook(self._entered))

        def made(parameter: Tensor) -> None:
            if is_last(parameter):
                self._order.append(parameter)

        hooked = (each for each in _reduced(self._module) if self._syncs)
        self._hooks += (each.register_post_accumulate_grad_hook(_Made(made)) for each in hooked)

    def _entered(self, _module: nn.Module, _args: object) -> None:
        """The first micro-batch has got the buffers of rank 0. The others get none, as in the program's order."""
        self._module.require_forward_param_sync = False

    def reduce(self, bring_back: Callable[[Tensor], None]) -> None:
        """Reduces the gradients, as the program's last backward pass does. `bring_back`: called before one is read."""
        self.close()
        if not self._syncs:
            return
        module, reducer = self._module, self._module.reducer
        module.logger.set_runtime_stats_and_log()
        reducer.prepare_for_forward()
        module.require_forward_param_sync = True
        reducer.prepare_for_backward([_Used.apply(*self._order)] if module.find_unused_parameters else [])

        def tell() -> None:
            for parameter in self._order:
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    bring_back(parameter.grad)
                reducer._autograd_hook(self._places[id(parameter)])

        _In.apply(torch.zeros((), device="cpu", requires_grad=True), tell).backward()
        self._order.clear()

    def close(self) -> None:
        """Ends the pass, also after an error."""
        self._module.require_backward_grad_sync = self._syncs
        setattr(DistributedDataParallel, _ACTIVE, self._active)
        while self._hooks:
            self._hooks.pop().remove()


class _Made:
    """Hook of a gradient that only looks, and changes nothing."""

    def __init__(self, made: Callable[[Tensor], None]) -> None:
        self._made = made

    def __call__(self, parameter: Tensor) -> None:
        self._made(parameter)


def is_ours(hook: object) -> bool:
    """Returns whether a hook of a gradient is one of these."""
    return isinstance(hook, _Made)


class _Used(torch.autograd.Function):
    """Tensor whose graph reaches parameters, as the output of the last micro-batch does."""

    @staticmethod
    def forward(_context: Any, *parameters: Tensor) -> Tensor:
        return torch.zeros((), device="cpu")

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nobody computes gradients of it")


class _In(torch.autograd.Function):
    """Calls a function in a backward pass: at whose end DDP waits for what it has begun."""

    @staticmethod
    def forward(context: Any, _anchor: Tensor, function: Callable[[], None]) -> Tensor:
        context.function = function
        return torch.zeros((), device="cpu")

    @staticmethod
    def backward(context: Any, *_gradients: Tensor) -> tuple[None, None]:
        context.function()
        return None, None


def replicas_of(model: nn.Module) -> list[Replica]:
    """Returns the modules of DDP's in a model, each of which is as it was until `begin`."""
    return [Replica(module) for module in model.modules() if isinstance(module, DistributedDataParallel)]


def _reduced(module: Any) -> list[Tensor]:
    """The parameters that DDP reduces, in its order."""
    return [parameter for parameter in module._module_parameters if parameter.requires_grad]


def _refuse(module: Any) -> None:
    for name, why in _UNUSUAL.items():
        if getattr(module, name, None):
            raise OrderError(f"DistributedDataParallel with {name.strip('_')} {why}.")
    if module._join_config.enable:
        raise OrderError(
            "DistributedDataParallel.join() tells ranks that have no more batches, in each forward pass, whether gradients "
            "are reduced behind it, and layer by layer they are reduced behind all of them."
        )
    if hasattr(module, "buffer_hook"):
        raise OrderError("DistributedDataParallel has a hook for buffers, which runs in each forward pass.")
    parameters = _reduced(module)
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters):
        raise OrderError("DistributedDataParallel runs an optimizer in the backward pass, after each gradient.")
    if len(parameters) != int(module._get_ddp_logging_data()["num_parameter_tensors"]):
        raise OrderError("parameters of a DistributedDataParallel were frozen, or thawed, after that was made.")
