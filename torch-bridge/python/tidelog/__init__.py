"""Tidelog: train with NVMe SSDs as if they were memory.

    import tidelog

    with tidelog.offload(model, optimizer, pool="/mnt/nvme/tide", memory="20GiB") as tide:
        for batch in loader:
            with tide.step():
                ...  # the loop as it was

Results are bit-identical to the same run without offloading. See ``help(tidelog.offload)``.
"""

from typing import TYPE_CHECKING, Any

from tidelog import _versions  # noqa: F401, I001 (first: it refuses a torch that is too old)
from tidelog._accumulate import accumulate
from tidelog._errors import (
    BudgetError,
    DeviceError,
    Error,
    ForkedError,
    LeftBehindWarning,
    OrderError,
    PausedError,
    PinnedError,
    PoolError,
    RankError,
    UnmovableError,
)
from tidelog._offload import offload
from tidelog.abi import _library
from tidelog.block._block import Tide
from tidelog.checkpoints._checkpoint import Checkpoints, restore
from tidelog.output._notebook import Report

if TYPE_CHECKING:
    from tidelog.commands._fit import fit
    from tidelog.commands._fit_result import Fit

    __version__: str

__all__ = [
    "BudgetError",
    "Checkpoints",
    "DeviceError",
    "Error",
    "Fit",
    "ForkedError",
    "LeftBehindWarning",
    "OrderError",
    "PausedError",
    "PinnedError",
    "PoolError",
    "RankError",
    "Report",
    "Tide",
    "UnmovableError",
    "accumulate",
    "fit",
    "offload",
    "restore",
]


def __getattr__(name: str) -> Any:
    # What a training program does not use is not loaded for it.
    if name == "__version__":
        return _library.version()
    if name in ("Fit", "fit"):
        from tidelog.commands import _fit

        return getattr(_fit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
