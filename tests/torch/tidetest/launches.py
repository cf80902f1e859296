"""Launches of kernels while a block is open, with every storage out before each."""

import contextlib

import pytest

from tidelog.dispatch._hook import Hook
from tidelog.native._built import native
from tidelog.memory._record import OUT
from tidelog.storages._ops import storages_of


@contextlib.contextmanager
def launched(before=None):
    """The names of what is launched meanwhile. `before` is called before each launch, and after each op that its block
    looks at in full."""
    names = []
    launch = Hook._launch

    def launching(hook, func, *arguments):
        names.append(func.name)
        if before is not None and not native().is_inside():  # else an op runs, and uses what it uses
            before()
        return launch(hook, func, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hook, "_launch", launching)
        if before is not None:
            native().observe(lambda _func, _args, _kwargs, result: before(storages_of((result,), {})))
        yield names
    if before is not None:
        native().observe(None)


class AllOut:
    """Pushes every storage out that can move, around each launch and op of a block: `launched(AllOut(tide))`."""

    def __init__(self, tide):
        self.tide = tide
        self.counts = []  # of storages that were out, for each op

    def __call__(self, made=()):
        """`made` stays: by an op that has run, of which torch may go on in C++."""
        kept = {storage._cdata for storage in made}
        ledger, session = self.tide.ledger, self.tide.session
        self.tide.steps.place.end_touch()
        out = 0
        for record in ledger.all():
            storage = record()
            if storage is None or storage._cdata in kept or record.pins or not ledger.movable(storage):
                continue
            for _ in range(8):
                session.settle()
                if record.state & OUT:
                    break
                session.evict(ledger.number_of(record))
            assert record.state & OUT, record.describe()
            out += 1
        self.counts.append(out)
