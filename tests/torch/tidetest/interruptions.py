"""Code of the program that Python runs in the middle of other code: handlers of signals, at each line of ours or at any
time, and finalizers wherever the garbage collector runs. Each computes, saves and makes checkpoints."""

import contextlib
import gc
import io
import os
import random
import signal
import sys
import traceback
from pathlib import Path

import torch

import tidelog
from tidetest.bits import assert_same, frozen

_OURS = str(Path(tidelog.__file__).parent) + os.sep
_SIGNAL = signal.SIGUSR1


class Act:
    """Act of a handler, or a finalizer: one thing after the other. `world` has a model and, in a block, its `tide`."""

    def __init__(self, world, most=10**9, refused=()):
        """`most`: how many times it does something. `refused`: errors that say what cannot be done at the moment."""
        self.world = world
        self._most = most
        self._refused = refused
        self.done = 0
        self.errors = []
        self._saved = {}
        self._is_acting = False

    def __call__(self, *_):
        if self._is_acting or self.done >= self._most or self.world.tide is None or not self.world.tide.is_open:
            return
        self._is_acting = True
        try:
            self._act()
            self.done += 1
        except self._refused:
            pass
        except BaseException as error:  # of a finalizer Python drops it
            self.errors.append([*traceback.format_stack(), *traceback.format_exception(error)])
        finally:
            self._is_acting = False

    def _act(self):
        world = self.world
        kind = self.done % 3
        with torch.no_grad():
            if kind == 0:
                world.model(world.x)
                torch.stack([each.double().sum() for each in world.model.parameters()]).tolist()
            elif kind == 1:
                expected = frozen(dict(world.model.state_dict()))
                file = io.BytesIO()
                torch.save(world.model.state_dict(), file)
                file.seek(0)
                # Loaded when nobody is in the middle of something: what torch.load makes cannot move.
                self._saved["file"] = expected, file
            else:
                expected = frozen(dict(world.model.state_dict()))
                world.tide.checkpoint("kept", {"model": world.model.state_dict()})
                self._saved["checkpoint"] = expected, None

    def check(self, pool):
        """Checks after the block that nothing has failed, and what was saved is what there was."""
        count = f"{len(self.errors)} of {self.done + len(self.errors)} have failed"
        assert not self.errors, f"{count}, the first so:\n{''.join(self.errors[0])}"
        assert self.done >= 3, self.done
        for name, (expected, file) in self._saved.items():
            state = torch.load(file) if file is not None else _checkpoint(pool)
            assert_same(expected, frozen(dict(state)), name)


def _checkpoint(pool):
    return tidelog.restore(pool, "kept")["model"]


@contextlib.contextmanager
def handled(act):
    """Makes a signal call an act meanwhile."""
    before = signal.signal(_SIGNAL, act)
    try:
        yield
    finally:
        signal.signal(_SIGNAL, before)


@contextlib.contextmanager
def at_lines(act, chance):
    """A signal comes at lines of ours, and at returns to them, by chance."""

    def line(frame, event, _argument):
        if event in ("line", "return") and chance():
            signal.raise_signal(_SIGNAL)
        return line

    def call(frame, _event, _argument):
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    with handled(act):
        sys.settrace(call)
        try:
            yield
        finally:
            sys.settrace(before)


@contextlib.contextmanager
def at_times(act, chance):
    """A signal comes at times."""
    with handled(lambda *_: (act(), signal.setitimer(signal.ITIMER_REAL, 0.003))):
        timer = signal.signal(signal.SIGALRM, signal.getsignal(_SIGNAL))
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, timer)


@contextlib.contextmanager
def at_collections(act, chance):
    """Finalizers come at allocations of Python's objects."""

    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            if runs:
                Garbage()
                if chance():
                    act()

    runs, thresholds = [True], gc.get_threshold()
    gc.set_threshold(5, 2, 1000)
    Garbage()
    try:
        yield
    finally:
        runs.clear()
        gc.set_threshold(*thresholds)


WAYS = {"lines": (at_lines, 40), "times": (at_times, 1), "collections": (at_collections, 40)}


def while_interrupted(act, way, seed):
    """Runs what is inside with interruptions of one kind."""
    interrupt, one_in = WAYS[way]
    numbers = random.Random(seed)
    return interrupt(act, lambda: numbers.random() * one_in < 1)
