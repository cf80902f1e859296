"""Parameters that FSDP2 gathers from the ranks (`fully_shard`), around micro-batches that pass layer by layer: gathered
once for each block, for all micro-batches, and gradients reduce-scattered once, when they are complete.

FSDP2's own hooks gather what a module uses, in both passes. What they do behind it is for one micro-batch at a time:
giving gathered parameters up, and reducing gradients. Meanwhile they do neither, and it is done here, behind all
micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from tidelog._errors import OrderError
from tidelog.order._chains import Chain


class _Group:
    """Parameters that are gathered together, and what the program has set for them."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.is_done = False  # its gradients are complete, and reduced
        shards = [each.sharded_param for each in group.fsdp_params]
        self._had_none = [shard for shard in shards if shard.grad is None]
        self._mesh, self._reduces = group.post_forward_mesh_info, group.reduce_grads
        self._reshards = group.reshard_after_backward

    @property
    def reshards_after_forward(self) -> bool:
        return self._mesh is not None

    def leave_to_us(self) -> None:
        group = self.group
        group.post_forward_mesh_info, group.reduce_grads, group.reshard_after_backward = None, False, False

    def restore(self) -> None:
        group = self.group
        group.post_forward_mesh_info, group.reduce_grads = self._mesh, self._reduces
        group.reshard_after_backward = self._reshards

    def leaves(self) -> list[tuple[Any, Tensor]]:
        """Returns the gathered parameters that there are, of which autograd makes gradients."""
        found = ((each, getattr(each, "_unsharded_param", None)) for each in self.group.fsdp_params)
        return [(each, leaf) for each, leaf in found if leaf is not None]

    def let_go(self, after_backward: bool) -> None:
        """Gives the gathered parameters up, if the program would."""
        if self.group.is_unsharded and (self._reshards if after_backward else self.reshards_after_forward):
            self.group.reshard()

    def end_micro_batch(self) -> None:
        """Ends a backward pass of the group for one micro-batch: FSDP2 adds its gradients to those of the others."""
        self.group.post_backward()
        self._becomes_idle()

    def finish(self) -> None:
        """Reduces gradients that are complete."""
        self.restore()
        self.group.post_backward()
        self.leave_to_us()
        self.is_done = True
        self._becomes_idle()

    def _becomes_idle(self) -> None:
        self.group._training_state = _idle()

    def reset(self) -> None:
        """Resets what a pass that has failed had begun."""
        for shard in self._had_none:
            shard.grad = None
        if self.group._all_gather_result is not None:
            self.group.wait_for_unshard()
        self._becomes_idle()
        self.group._post_forward_indices.clear()
        if self.group.is_unsharded:
            self.group.reshard()


class Gathered:
    """Parameters that FSDP2 gathers of a model, in one pass of micro-batches."""

    def __init__(self, model: nn.Module, chain: Chain) -> None:
        self._states: dict[int, Any] = {}
        self._roots: list[Any] = []
        self._begun = False
        modules: dict[int, list[nn.Module]] = {}  # of a state
        for module in _sharded_in(model):
            state = module._get_fsdp_state()  # type: ignore[operator]
            if state._is_root is None:
                state._lazy_init()  # as the first forward pass would
            if state._is_root:
                self._roots.append(state)
            self._states[id(state)] = state
            modules.setdefault(id(state), []).append(module)
        self._contexts = {id(state._state_ctx): state._state_ctx for state in self._states.values()}
        self._are_last = {key: context.is_last_backward for key, context in self._contexts.items()}
        if any(getattr(context, "manual_backward_finalization", False) for context in self._contexts.values()):
            raise OrderError("FSDP2 is told by the program when gradients are reduced (manual_backward_finalization).")
        self._passing: list[_Group] = []  # of modules that each part calls as a whole
        self._around: list[_Group] = []  # of those that micro-batches are inside of while they are suspended
        for key, state in self._states.items():
            groups = [_Group(each) for each in _groups_of(state)]
            (self._around if _is_around(modules[key], chain) else self._passing).extend(groups)

    def __bool__(self) -> bool:
        return bool(self._states)

    def _all(self) -> list[_Group]:
        return [*self._passing, *self._around]

    def of_any_rank(self, value: bool) -> bool:
        """Returns whether any of the ranks that gather has a true value. All of them call it."""
        found = value
        for group, device in {id(each): (each, device) for each, device in self._process_groups()}.values():
            flag = torch.tensor(int(found), dtype=torch.int32, device=device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group)
            found = bool(flag.item())
        return found

    def _process_groups(self) -> Iterable[tuple[Any, Any]]:
        for each in self._all():
            for name in ("shard_process_group", "replicate_process_group"):
                if (found := getattr(each.group.mesh_info, name, None)) is not None:
                    yield found, each.group.device

    def begin(self) -> None:
        """Begins a pass."""
        self._begun = True
        for each in self._all():
            each.leave_to_us()
        for context in self._contexts.values():
            context.is_last_backward = False

    def names(self) -> dict[int, str]:
        """Returns the names of gathered parameters, by id."""
        return {id(leaf): each._param_fqn for group in self._all() for each, leaf in group.leaves()}

    def refuse_sums_of_parts(self, users: Mapping[int, list[int]]) -> None:
        """Refuses a parameter whose gradient of one micro-batch would be added up in another type. `users`: the parts
        that use each leaf."""
        for group in self._all():
            for each, leaf in group.leaves():
                if len(users.get(id(leaf), ())) > 1 and each.reduce_dtype not in (None, leaf.dtype):
                    raise OrderError(
                        f"{each._param_fqn} is used at several places, and FSDP2 reduces its gradient in another type: "
                        "parts of the gradient would be added up in that. Untie it, or take one reduce_dtype."
                    )

    def end_forward(self) -> None:
        """Ends a part of the forward pass, for all micro-batches."""
        for each in self._passing:
            each.let_go(after_backward=False)

    def end_micro_batch(self, leaves: Mapping[int, Tensor]) -> None:
        """Ends a part of the backward pass for one micro-batch. `leaves`: what it has made gradients of."""
        for each in self._all():
            if any(id(leaf) in leaves for _, leaf in each.leaves()):
                each.end_micro_batch()

    def end_backward(self, number: int, firsts: Mapping[int, int]) -> None:
        """Ends a part of the backward pass, for all micro-batches. `firsts`: the first part that uses each leaf, where
        its gradient is complete."""
        for each in self._passing:
            parts = [firsts[id(leaf)] for _, leaf in each.leaves() if id(leaf) in firsts]
            if parts and min(parts) == number:
                each.finish()
            each.let_go(after_backward=True)

    def end(self) -> None:
        """Ends the pass as FSDP2 ends a backward pass: waits for what it has begun."""
        self._restore()
        for each in self._all():
            if each.is_done:
                each.group._training_state = _kinds().TrainingState.POST_BACKWARD
        for state in self._roots:
            context = state._state_ctx
            if getattr(context, "manual_backward_finalization_active", False) is None:
                context.manual_backward_finalization_active = False  # no module's output had a gradient
            state._root_post_backward_final_callback()

    def _restore(self) -> None:
        for each in self._all():
            each.restore()
        for key, context in self._contexts.items():
            context.is_last_backward = self._are_last[key]
        self._begun = False

    def close(self) -> None:
        """Resets what an error has left; after `end` there is nothing to do."""
        if not self._begun:
            return
        self._restore()
        for state in self._states.values():
            state._training_state = _idle()
            getattr(state, "_modules_to_run_forward", set()).clear()
            state._comm_ctx.post_forward_order.clear()
        for each in self._all():
            each.reset()
        for context in self._contexts.values():
            context.iter_forward_root = None
            context.post_backward_final_callback_queued = False


def is_ours(hook: object) -> bool:
    """Returns whether a hook of a tensor is FSDP2's: in the backward pass it gathers what its module needs."""
    return type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed.fsdp.")


def _sharded_in(model: nn.Module) -> list[nn.Module]:
    if not torch.distributed.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _groups_of(state: Any) -> list[Any]:
    """The groups of a state, of which it has one at most in an older torch."""
    if (groups := getattr(state, "_fsdp_param_groups", None)) is not None:
        return list(groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _is_around(modules: list[nn.Module], chain: Chain) -> bool:
    """Returns whether micro-batches are suspended between calls of these modules, or inside of one."""
    if any(chain.holds(module) for module in modules):
        return True
    inside = [{id(part) for part in block.modules()} for block in chain.blocks.values()]
    return len(modules) > 1 and not any(all(id(each) in parts for each in modules) for parts in inside)


def _kinds() -> Any:
    import torch.distributed.fsdp._fully_shard._fsdp_common as common

    return common


def _idle() -> Any:
    return _kinds().TrainingState.IDLE
