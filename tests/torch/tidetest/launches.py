"""What is launched while a block is open, and every storage out before each launch."""

import contextlib

import pytest

from tidelog.dispatch._hook import Hook
from tidelog.native._built import native
from tidelog.memory._record import OUT


@contextlib.contextmanager
def launched(before=lambda hook: None):
    """The names of what is launched meanwhile; `before` is called before each launch, and before each op that Python
    looks at.
    """
    names = []
    observed, launch = Hook._observed, Hook.launch

    def observing(hook, *arguments):
        before(hook)
        return observed(hook, *arguments)

    def launching(hook, func, *arguments):
        names.append(func.name)
        if not native().is_inside():  # else an op runs, and uses what it uses
            before(hook)
        return launch(hook, func, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hook, "_observed", observing)
        patch.setattr(Hook, "launch", launching)
        yield names


class AllOut:
    """Pushes every storage that can move out before each launch and op of a block: `launched(AllOut(tide))`."""

    def __init__(self, tide):
        self._tide = tide
        self.counts = []  # of storages that were out, for each op

    def __call__(self, hook):
        ledger, session, performer = hook._ledger, hook._session, self._tide.performer
        hook.end_touch()
        out = 0
        for record in ledger.all():
            storage = record()
            if storage is None or record.pins or not ledger.movable(storage):
                continue
            for _ in range(8):
                performer.settle()
                if record.state & OUT:
                    break
                session.evict(ledger.number_of(record))
            assert record.state & OUT, record.describe()
            out += 1
        self.counts.append(out)
