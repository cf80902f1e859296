"""Callback for the Trainer of transformers, and what builds on it, such as TRL's trainers.

with tidelog.offload(model, pool="/mnt/nvme/tide", memory="20GiB") as tide:
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[OffloadCallback(tide)])
    trainer.train()
    trainer.save_model("trained")
"""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tidelog import Tide
from tidelog.integrations import step_figures

__all__ = ["OffloadCallback"]


class OffloadCallback(TrainerCallback):
    """Marks the Trainer's steps in an open block, and adds the block's figures to what the Trainer
    logs: `tidelog/stall_seconds`, `tidelog/bytes_written` and `tidelog/bytes_read` of the last
    step, `tidelog/peak_bytes`. They are in `trainer.state.log_history`. Reporters, such as the one
    for TensorBoard, see them where this callback comes before theirs:

        trainer.callback_handler.callbacks.insert(0, OffloadCallback(tide))
    """

    def __init__(self, tide: Tide) -> None:
        self._tide = tide
        self._step = contextlib.ExitStack()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        self._tide.name(model, getattr(optimizer, "optimizer", optimizer))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step.enter_context(self._tide.step())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._step.close()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step.close()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        added = step_figures(self._tide)
        state.log_history[-1].update(added)
        if logs is not None:
            logs.update(added)
