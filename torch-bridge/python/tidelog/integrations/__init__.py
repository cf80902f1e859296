"""Tidelog in other libraries' training loops. Each module needs its library; none is needed by
Tidelog."""

from __future__ import annotations

from tidelog import Tide

__all__ = ["step_figures"]


def step_figures(tide: Tide) -> dict[str, float]:
    """Returns figures of a block after a step: `tidelog/stall_seconds`, `tidelog/bytes_written` and
    `tidelog/bytes_read` of the last step, and `tidelog/peak_bytes` so far. Any tracker takes them, such as
    `accelerator.log(step_figures(tide), step)`.
    """
    last = tide.last_step()
    return {
        "tidelog/stall_seconds": last["stall_seconds"],
        "tidelog/bytes_written": last["bytes_written"],
        "tidelog/bytes_read": last["bytes_read"],
        "tidelog/peak_bytes": tide.peak_bytes,
    }
