"""Updates of parameters at other times than the program has them: what those orders have in common.

A hook of torch's hands an optimizer's `step` a stand-in with those parameters alone that are updated in
its place. When, and where, the others are is the business of `_lazy`, `_early` and `_host`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from tidelog import _patches
from tidelog._whole import come_again
from tidelog.dispatch._dispatch import apart, get_compiler
from tidelog.memory._device import Host
from tidelog.memory._record import Storage
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.order import _element_wise
from tidelog.order._element_wise import Group
from tidelog.order._update import Step
from tidelog.output._figures import UpdateFigures
from tidelog.storages._ops import Args, Kwargs

_NOTHING = contextlib.nullcontext()


class Updates:
    """The updates of one block. Here: where the program has them."""

    def __init__(
        self,
        ledger: Ledger,
        is_live: Callable[[], bool],
        is_forked: Callable[[], bool],
        device: Host,
        say: Callable[[str], None],
        is_ours: Callable[[object], bool],
        is_elsewhere: Callable[[], bool],
        beside: int,
    ) -> None:
        """`is_ours` says of a step hook whether the block has it, `is_elsewhere` whether this is another thread than the
        block's. `beside`: bytes of host memory that updates may take there."""
        self.pending: dict[int, Any] = {}  # by id: what hangs on storages, in its order
        self.is_running = False  # whether one runs: its ops use no storages of another one
        self.is_live = is_live
        self.is_forked = is_forked
        self.is_elsewhere = is_elsewhere
        self.device, self.streams = device, device.streams
        # Meanwhile another thread does what the block's alone may do: see `Access.turn`.
        self.in_turn: Callable[[Record], contextlib.AbstractContextManager[None]]
        self._ledger = ledger
        self._beside = beside
        self._say = say
        self._is_ours = is_ours
        self._said: set[tuple[type, str]] = set()
        self._handle: RemovableHandle | None = None

    def begin(self) -> None:
        """Begins to defer steps."""
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        _patches.put(Optimizer, "state", property(self._state_of, self._set_state))
        for name in ("load_state_dict", "__setstate__"):
            _patches.replace(Optimizer, name, self._after_updates)

    def end(self) -> BaseException | None:
        """The block ends, however. Returns what came in between."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        return None

    def figures(self) -> UpdateFigures | None:
        """Returns the figures for `stats`."""
        return None

    # -- what an order says -------------------------------------------------------------------------

    def note(self, optimizer: Optimizer, step: Step) -> list[Group]:
        """Defers a step. Returns groups with the parameters that are updated in its place."""
        raise NotImplementedError

    def leave_to(self, optimizer: Optimizer, why: str) -> None:
        """A step runs in place."""

    def rests(self, optimizer: Optimizer) -> bool:
        """All fits so far, and nothing would be gained by another order. Returns whether the step may run in place."""
        return True

    def look_at(self, optimizer: Optimizer) -> None:
        """Handles an access to an optimizer's state."""

    def run_all(self) -> None:
        """Runs all that are pending."""

    def is_ahead(self) -> bool:
        """Returns whether parameters have been updated whose step is still to come: nobody may use them."""
        return False

    def expect_reducer(self, module: nn.Module) -> None:
        """DDP reduces the gradients of this module's parameters."""

    # -- a step -----------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Called before each step of any optimizer. Returns what the step is called with instead."""
        if torch.compiler.is_compiling() or get_compiler() is not None:
            self._compiled(optimizer)
            return None
        if not self.is_live() or self.is_elsewhere():
            return None
        why = _element_wise.why_not(optimizer, args, kwargs, self._is_known)
        if why is not None:
            with interrupts_deferred():
                self.leave_to(optimizer, why)
            self.say_once(optimizer, why)
            return None
        if self._ledger.quiet and self.rests(optimizer):
            return None
        (closure,) = args[1:] or (kwargs.get("closure"),)
        if closure is not None:  # it makes the gradients
            with torch.enable_grad():
                loss = closure()
            args, kwargs = (optimizer, lambda: loss), {}
        with interrupts_deferred():
            step = Step(optimizer)
            groups = self.note(optimizer, step)
        return (step.stand_in(groups, step.state), *args[1:]), kwargs

    @torch.compiler.disable
    def _compiled(self, optimizer: Optimizer) -> None:
        """A step is being compiled. What is compiled is as the program has it, and what it reads up to date."""
        self.look_at(optimizer)
        self.leave_to(optimizer, "torch.compile has them")
        self.say_once(optimizer, "torch.compile has them")

    def _is_known(self, hook: object) -> bool:
        return getattr(hook, "__self__", None) is self or self._is_ours(hook)

    def say_once(self, optimizer: Optimizer, why: str, example: str = "") -> None:
        """Tells the user why a step, or a part of it, runs in place. `example` belongs to what is said first."""
        said = type(optimizer), why
        if said not in self._said:
            self._said.add(said)
            self._say(f"steps of {type(optimizer).__name__} run where they are called: {why}{example}")

    def is_seen(self, storage: Storage) -> bool:
        """Returns whether nobody can read the storage unseen: no alias of its memory is about."""
        record = self._ledger.record_of(storage)
        return record is not None and not record.pins and not record.has_address and self._ledger.movable(storage)

    # -- running one --------------------------------------------------------------------------------

    def run_apart(self, compute: Callable[[], None]) -> None:
        """Runs one where torch.compile does not look."""
        if get_compiler() is not None:
            apart()(self._compute, compute)
        else:
            self._compute(compute)

    def _compute(self, compute: Callable[[], None]) -> None:
        """Computes an update as the step would have run: its ops are the block's, and what surrounds them is no matter."""
        usual = torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING
        self.is_running = True
        try:
            with (
                _disable_current_modes(),
                native().Seen(),
                torch._C.DisableTorchFunction(),
                torch._C._DisableAutocast(),
                usual,
                torch.no_grad(),
            ):
                compute()
        finally:
            self.is_running = False

    # -- who reads an optimizer's state ---------------------------------------------------------------

    def _state_of(self, optimizer: Optimizer) -> Any:
        self._look_at(optimizer)
        try:
            return vars(optimizer)["state"]
        except KeyError:
            raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'state'") from None

    def _set_state(self, optimizer: Optimizer, state: object) -> None:
        self._look_at(optimizer)
        vars(optimizer)["state"] = state

    def _after_updates(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._look_at(optimizer)
            return original(optimizer, *args, **kwargs)

        return wrapper

    def _look_at(self, optimizer: Optimizer) -> None:
        if not self.is_running:
            self.look_at(optimizer)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C waits until the end of this: no parameter is left half updated by it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *call: came.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and before is signal.default_int_handler:
            before(*came[-1])
        elif came:
            come_again(signal.SIGINT)
