"""Errors, one class per thing a caller may want to handle. `BudgetError`, which is torch's own too, is in
`_budget_error`: what is here needs no torch.
"""


class Error(RuntimeError):
    """Error of Tidelog. Its text says what was wrong, where, and what to do."""


class PoolError(Error):
    """The pool cannot be formatted, opened or written: held by another process, full, damaged."""


class DeviceError(Error):
    """A device failed an operation. The text names the device and the tensor."""


class RankError(Error):
    """Error of another rank of the distributed program. The text says which, and why."""


class OrderError(Error):
    """The bits of the program's own order cannot be given, by `tidelog.accumulate` or where a block of layers runs
    again. The text says why."""


class ForkedError(Error):
    """The offload block belongs to the parent process; a forked child cannot move tensors."""


class PausedError(Error):
    """The offload block is paused: what it moves is out until `tide.resume()`."""


class PinnedError(Error):
    """The tensor's memory has an alias that Tidelog cannot see (numpy, DLPack, a raw pointer)."""


class UnmovableError(Error):
    """The tensor's memory is not torch's own (from_numpy, shared memory, a file): it stays."""


class LeftBehindWarning(UserWarning):
    """Tensors stayed out of memory when the offload block ended, because they did not fit."""


# Users see them under the name by which they can catch them.
for _each in (Error, *Error.__subclasses__(), LeftBehindWarning):
    _each.__module__ = "tidelog"
