"""Writer for TensorBoard, in any loop.

writer = SummaryWriter("runs/one")
with tidelog.offload(model, optimizer, pool="/mnt/nvme/tide", memory="20GiB") as tide:
    for number, batch in enumerate(loader):
        with tide.step():
            ...  # the loop as it was
        write_step(writer, tide, number)
"""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter

from tidelog import Tide
from tidelog.integrations import step_figures

__all__ = ["write_step"]


def write_step(writer: SummaryWriter, tide: Tide, step: int) -> None:
    """Writes the figures of `step_figures`, and `tidelog/memory_bytes`: what is in memory now."""
    for name, value in step_figures(tide).items():
        writer.add_scalar(name, value, step)
    writer.add_scalar("tidelog/memory_bytes", tide.live_bytes, step)
