"""Tidelog: train with NVMe SSDs as if they were memory.

    import tidelog

    with tidelog.offload(model, optimizer, pool="/mnt/nvme/tide", memory="20GiB") as tide:
        for batch in loader:
            with tide.step():
                ...  # the loop as it was

Results are bit-identical to the same run without offloading. See ``help(tidelog.offload)``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tidelog import _versions
from tidelog._errors import (
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
from tidelog.output._notebook import Report

if TYPE_CHECKING:
    from tidelog._accumulate import accumulate
    from tidelog._budget_error import BudgetError
    from tidelog.block._block import Tide
    from tidelog.checkpoints._checkpoint import Checkpoints, restore
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


if (_torch := _versions.installed()) is not None:
    _versions.refuse_older(_torch)

# What needs torch, or is not for training programs, is imported when it is asked for: `tidelog --help` needs neither.
_LATER = {
    "BudgetError": "tidelog._budget_error",
    "Checkpoints": "tidelog.checkpoints._checkpoint",
    "Fit": "tidelog.commands._fit_result",
    "Tide": "tidelog.block._block",
    "accumulate": "tidelog._accumulate",
    "fit": "tidelog.commands._fit",
    "restore": "tidelog.checkpoints._checkpoint",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from tidelog.abi._library import version

            value = version()
        elif name in _LATER:
            value = getattr(importlib.import_module(_LATER[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})
