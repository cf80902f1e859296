"""Tidelog: train with NVMe SSDs as if they were memory.

    import tidelog

    with tidelog.offload(model, optimizer, pool="/mnt/nvme/tide", memory="20GiB") as tide:
        for batch in loader:
            with tide.step():
                ...  # the loop as it was

Results are bit-identical to the same run without offloading. See ``help(tidelog.offload)``.
"""

from tidelog import _native
from tidelog._block import Tide
from tidelog._errors import (
    BudgetError,
    DeviceError,
    Error,
    ForkedError,
    LeftBehindWarning,
    PinnedError,
    PoolError,
    RankError,
    UnmovableError,
)
from tidelog._offload import offload

__all__ = [
    "BudgetError",
    "DeviceError",
    "Error",
    "ForkedError",
    "LeftBehindWarning",
    "PinnedError",
    "PoolError",
    "RankError",
    "Tide",
    "UnmovableError",
    "offload",
]


def __getattr__(name):
    if name == "__version__":
        return _native.version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
