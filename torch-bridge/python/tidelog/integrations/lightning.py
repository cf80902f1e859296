"""Callback for Lightning's Trainer.

with tidelog.offload(module, pool="/mnt/nvme/tide", memory="20GiB") as tide:
    trainer = Trainer(max_epochs=1, callbacks=[OffloadCallback(tide)])
    trainer.fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from tidelog import Tide
from tidelog.integrations import step_figures

__all__ = ["OffloadCallback"]


class OffloadCallback(Callback):
    """Names the tensors of an open block as the module and its optimizer do, and logs the block's
    figures with the module's own metrics, once after each step of the optimizer; see
    `tidelog.integrations.step_figures`. Steps need no marks: the block sees the optimizer step, also
    where gradients are accumulated."""

    def __init__(self, tide: Tide) -> None:
        self._tide = tide
        self._steps = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._tide.name(pl_module, trainer.optimizers[0] if trainer.optimizers else None)
        self._steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            pl_module.log_dict(step_figures(self._tide))
