"""Blocks in which only what forward passes make moves, which is what they save for the backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from tidelog.native._module import Ledger
from tidelog.storages._ledger import adopt


class ActivationsAlone:
    """Context in which what there was before stays in memory, as does what backward passes and steps of optimizers
    make: gradients and state."""

    def __init__(self, ledger: Ledger, is_live: Callable[[], bool], is_elsewhere: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._is_here = lambda: is_live() and not is_elsewhere()
        self._hooks: list[RemovableHandle] = []
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # whose parameters stay

    def before_what_lives(self) -> None:
        """Keeps all that is there from the start."""
        self._ledger.newborn_moves = False

    def begin(self) -> None:
        """Has what forward passes make move from here on."""
        self._ledger.newborn_moves, self._ledger.backward_moves = True, False
        self._hooks += [
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._has_stepped),
        ]

    def begin_step(self) -> None:
        """A step begins, also after one that an exception has cut short."""
        self._ledger.newborn_moves = True

    def end(self) -> None:
        """The block ends."""
        while self._hooks:
            self._hooks.pop().remove()

    def _steps(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_here():
            self._ledger.newborn_moves = False

    def _has_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._is_here():
            return
        self._ledger.newborn_moves = True
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._stay(each for group in optimizer.param_groups for each in group["params"])

    def _stay(self, tensors: Iterable[Tensor]) -> None:
        """Parameters that were made inside the block stay from their first step on."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                record = adopt(self._ledger, getattr(tensor, "_local_tensor", tensor))
                if record is not None and record.moves:
                    self._ledger.access.bring_back(record())
                    record.moves = False
                    self._ledger.pin(record)
