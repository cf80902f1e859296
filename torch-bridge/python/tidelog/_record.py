"""What Python knows of one storage: a weak reference to it, hung on the storage itself.

A storage owns its record (`storage._tide`), so that a lookup is one attribute read and a record
never outlives its storage unnoticed: the weak reference's callback reports the death.
"""

import threading
import weakref

from tidelog import _errors

# Record.state: the mark that the session put on a storage. 0: resident, no copy in the log.
SETTLED = 0
CLEAN = 1  # resident, and the log holds the same bytes: a modification must be reported
LEAVING = 2  # resident, a copy is being written
OUT = 4  # no memory; guarded
COMING = 8  # memory is there, its bytes are not yet; guarded
AWAY = OUT | COMING

_lending = threading.Lock()


class _Newborn(weakref.ref):
    """What every record has: slots, so that one that nothing else is asked of needs no dict."""

    # birth: (op index, output slot, op name), or the op alone, or None
    __slots__ = ("birth", "size")


class Record(_Newborn):
    """Made once per new storage, on the hot path: what most records never need is a default of the
    class."""

    # Each block sets these four in a class of its own.
    ledger = None  # that it stands in
    access = None  # how another block or thread reaches the storage
    outside = None  # where it is when it is out, in words
    process = None  # whose block it is
    id = None  # the session's number for it, given when the session must learn of it
    state = SETTLED
    reported = False  # whether the session has heard of it
    pins = 0  # aliases that we cannot see; above zero the memory stays where it is
    addresses_end = 0  # scopes after which nobody uses an address that they asked for
    async_uses = 0  # ops that have returned and use it still
    loans = 0  # ops of other threads that are using it right now
    is_guarded = True  # when it is out; for a bucket of DDP: see `Ledger.of_a_reducer`
    name = None

    def hold(self):
        """Keeps the memory where it is, until what this returns is gone."""
        return _Hold(self)

    def borrow(self, more):
        """Counts another thread in (1) or out (-1) that uses the storage's memory right now."""
        with _lending:
            self.loans += more

    def describe(self):
        """The name people know the tensor by."""
        if self.name is not None:
            return self.name
        if self.birth is not None:
            if not isinstance(self.birth, tuple):
                return f"an output of {self.birth}"
            index, slot, op = self.birth
            where = f"op {index}" if index >= 0 else "outside a step"
            return f"output {slot} of {op} ({where})"
        return f"a tensor of {self.size} bytes (storage {self.id})"

    def guard_text(self):
        """What an access meets that nothing has brought the bytes back for."""
        return (
            f"tidelog: tensor {self.describe()} is {self.outside}, and this access did not go "
            "through the offload block (another thread, a raw kernel, or after the block). Touch "
            "it by a torch op inside the block first, or call restore() on the block's object."
        )

    def guard(self):
        """The text of the guard while the block runs; None: there is none."""
        return self.guard_text() if self.is_guarded else None

    def refuse(self):
        """Raises the error that the guard would give."""
        raise _errors.Error(self.guard_text())

    def refuse_in_child(self):
        """Memory that a fork copied is as good as any; what was out stays with the parent."""
        if self.state & AWAY:
            raise _errors.ForkedError(
                f"{self.describe()} is {self.outside} and belongs to the parent process "
                f"({self.process}); touch it before the fork, or restore it there."
            )


class _Hold:
    def __init__(self, record):
        self._record = record
        record.ledger.pin(record)

    def __del__(self):
        self._record.ledger.unpin(self._record)
