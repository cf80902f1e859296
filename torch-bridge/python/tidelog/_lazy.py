"""The lazy optimizer: a step is taken note of, and each parameter's update runs just before anybody
touches the parameter, its gradient or its state: mostly in the next forward pass.

Who touches it: ops, by the hook; calls that are no ops, by the wrappers of `_escape`; who reads an
optimizer's state, by a property of the class; and the next step, a fork and the end of the block.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from tidelog import _element_wise, _errors, _patches
from tidelog._element_wise import Group, is_plain, tensors_in
from tidelog._figures import UpdateFigures
from tidelog._hook import Hook, apart, compiler
from tidelog._ledger import Ledger
from tidelog._nested import is_in_op
from tidelog._ops import Args, Kwargs, Launch, OpOverload, storages_of
from tidelog._record import Storage, run_updates, untyped_storage
from tidelog._update import Step, Update

_NOTHING = contextlib.nullcontext()


class Updates:
    """The updates of one block that have not run."""

    def __init__(
        self,
        ledger: Ledger,
        is_live: Callable[[], bool],
        is_forked: Callable[[], bool],
        why_never: str | None,
        say: Callable[[str], None],
        is_ours: Callable[[object], bool],
        is_elsewhere: Callable[[], bool],
    ) -> None:
        """`why_never`: why no step may run later, if that is so. `is_ours` says of a step hook whether the
        block has it, `is_elsewhere` whether this is another thread than the block's."""
        self.pending: dict[int, Update] = {}  # by id, in their order
        self.is_running = False  # whether one runs: its ops use no storages of another one
        self._hook: Hook
        self._ledger = ledger
        self._is_live = is_live
        self._is_forked = is_forked
        self._why_never = why_never
        self._say = say
        self._is_ours = is_ours
        self._said: set[tuple[type, str]] = set()
        self._late = 0  # updates that have run after their step
        self._is_elsewhere = is_elsewhere
        self._handle: RemovableHandle | None = None
        # Of each optimizer the parameters (by id) that had no state after a step that ran in its place.
        self._stateless: weakref.WeakKeyDictionary[Optimizer, set[int]] = weakref.WeakKeyDictionary()

    def begin(self, hook: Hook) -> None:
        """From here on steps are taken note of."""
        self._hook = hook
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        _patches.put(Optimizer, "state", property(self._state_of, self._set_state))
        for name in ("load_state_dict", "__setstate__"):
            _patches.replace(Optimizer, name, self._after_updates)

    def figures(self) -> UpdateFigures:
        """What `stats` says."""
        return {"pending": len(self.pending), "late": self._late}

    # -- a step -----------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Called before each step of any optimizer. Returns what the step is called with instead."""
        if torch.compiler.is_compiling() or compiler() is not None:
            self._compiled(optimizer)
            return None
        if not self._is_live() or self._is_elsewhere():
            return None
        why = self._why_never or _element_wise.why_not(optimizer, args, kwargs, self._is_known)
        if why is not None:
            with _interrupts_deferred():
                self._run_what_waited(optimizer)
            self._say_once(optimizer, why)
            return None
        (closure,) = args[1:] or (kwargs.get("closure"),)
        if closure is not None:  # it makes the gradients
            with torch.enable_grad():
                loss = closure()
            args, kwargs = (optimizer, lambda: loss), {}
        with _interrupts_deferred():
            self._run_what_waited(optimizer)
            step = Step(optimizer, self.run)
            groups = self._note(optimizer, step)
        return (step.stand_in(groups, step.state), *args[1:]), kwargs

    @torch.compiler.disable
    def _compiled(self, optimizer: Optimizer) -> None:
        """A step is being compiled. What is compiled is as the program has it, and what it reads up to date."""
        self.run_of(optimizer)
        self._say_once(optimizer, "torch.compile has them")

    def _run_what_waited(self, optimizer: Optimizer) -> None:
        """What had a whole step to be touched in, and what nobody will touch."""
        for update in list(self.pending.values()):
            if update.step.optimizer() in (optimizer, None):
                update.run()

    def _is_known(self, hook: object) -> bool:
        return getattr(hook, "__self__", None) is self or self._is_ours(hook)

    def _say_once(self, optimizer: Optimizer, why: str) -> None:
        said = type(optimizer), why
        if said not in self._said:
            self._said.add(said)
            self._say(f"steps of {type(optimizer).__name__} run where they are called: {why} (said once)")

    def _note(self, optimizer: Optimizer, step: Step) -> list[Group]:
        """Notes a step's updates. Returns groups with the parameters that are updated in its place: the
        first step of each makes its state."""
        groups, stateless = [], self._stateless.setdefault(optimizer, set())
        for group in optimizer.param_groups:
            numbers, at_once = _element_wise.noted(group), []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                entry = step.state.get(parameter)
                if (entry or id(parameter) in stateless) and self._put_off(step, numbers, parameter, entry or {}):
                    continue
                at_once.append(parameter)
                if not entry:
                    stateless.add(id(parameter))
            if at_once:
                groups.append({**numbers, "params": at_once})
        return groups

    def _put_off(self, step: Step, group: Group, parameter: Tensor, entry: dict[str, Any]) -> bool:
        """Notes one parameter's update; returns whether it may run later."""
        gradient = parameter.grad
        tensors = [each for each in (parameter, gradient, *tensors_in(entry)) if each is not None]
        if gradient is None or not all(map(is_plain, tensors)):
            return False
        storages = [untyped_storage(each) for each in tensors]
        for storage in storages:
            if storage._tide_update is not None:
                storage._tide_update.run()
        if not all(map(self._is_seen, storages)):
            return False
        record = storages[0]._tide
        try:
            update = Update(step, group, parameter, gradient, record.describe() if record else "a tensor")
        except RuntimeError:  # of a type that a view of the parameter takes no gradient of
            return False
        torch.autograd.graph.increment_version(parameter)  # what was computed with it is out of date from here on
        self.pending[id(update)] = update
        update.hang()
        return True

    def _is_seen(self, storage: Storage) -> bool:
        """Whether nobody can read the storage unseen: no alias of its memory is about."""
        record = self._ledger.record_of(storage)
        return record is not None and not record.pins and not storage._aliased and self._ledger.movable(storage)

    # -- running them -------------------------------------------------------------------------------

    def run(self, update: Update) -> None:
        """Runs one, unless it has run."""
        if id(update) not in self.pending:
            return
        if self._is_forked():
            raise _errors.ForkedError("an update that has not run belongs to the parent process: see updates='lazy'.")
        if self._is_elsewhere() or is_in_op(sys._getframe(1)):
            update.refuse()
        self._run(update)

    def before_op(self, args: Args, kwargs: Kwargs) -> None:
        """An op is about to run: what it uses is up to date after this."""
        for storage in storages_of(args, kwargs):
            update = storage._tide_update
            if isinstance(update, Update):
                if self._is_forked():
                    update.run()
                self._run(update)

    def run_all(self) -> None:
        """Runs all that are pending."""
        while self.pending:
            next(iter(self.pending.values())).run()

    def end(self) -> BaseException | None:
        """The block ends, however: all that is pending runs, as the program has stepped its optimizer.
        Returns what came in between."""
        failure = None
        try:
            if not self._is_forked():
                self.run_all()
        except BaseException as error:  # the block ends first
            failure = error
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        left = list(self.pending.values())
        for update in left:
            self._forget(update)
        if left and not self._is_forked():
            warnings.warn(
                f"the last updates of {len(left)} parameters did not run: these are as they were before their "
                f"optimizer's last step ({failure!r}). Go on from a checkpoint.",
                _errors.LeftBehindWarning,
                stacklevel=3,
            )
        return failure

    def _run(self, update: Update) -> None:
        """A parameter is never left half updated by Ctrl-C: who is asked to stop in a forward pass need
        not expect that."""
        with _interrupts_deferred():
            self._forget(update)
            self._late += 1
            if compiler() is not None:
                apart()(self._compute, update)
            else:
                self._compute(update)

    def _compute(self, update: Update) -> None:
        """As the step would have run: its ops come to the hook, and what surrounds the touch is no
        matter."""
        usual = torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING
        self.is_running = True
        try:
            with (
                _disable_current_modes(),
                self._hook,
                torch._C.DisableTorchFunction(),
                torch._C._DisableAutocast(),
                usual,
                torch.no_grad(),
            ):
                update.compute()
        finally:
            self.is_running = False

    def _forget(self, update: Update) -> None:
        update.take_off()
        self.pending.pop(id(update), None)

    # -- who reads an optimizer's state ---------------------------------------------------------------

    def run_of(self, optimizer: Optimizer) -> None:
        """Runs those of one optimizer."""
        if self.pending and not self.is_running:
            for update in list(self.pending.values()):
                if update.step.optimizer() is optimizer:
                    update.run()

    def _state_of(self, optimizer: Optimizer) -> Any:
        self.run_of(optimizer)
        try:
            return vars(optimizer)["state"]
        except KeyError:
            raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'state'") from None

    def _set_state(self, optimizer: Optimizer, state: object) -> None:
        self.run_of(optimizer)
        vars(optimizer)["state"] = state

    def _after_updates(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            self.run_of(optimizer)
            return original(optimizer, *args, **kwargs)

        return wrapper


class LazyHook(Hook):
    """The hook of a block with updates that run later."""

    def __init__(self, updates: Updates, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._updates = updates
        self.updates = updates.pending  # the kernels of `_dispatch` look there

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        updates = self._updates
        if updates.pending and not updates.is_running and compiler() is None:
            updates.before_op(args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def launch(self, func: Launch, args: Args, kwargs: Kwargs) -> Any:
        if self._updates.pending:
            run_updates(storages_of(args, kwargs))
        return super().launch(func, args, kwargs)

    def expect_collectives(self) -> None:
        self._updates.run_all()
        super().expect_collectives()


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Ctrl-C waits until the end of this."""
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
        if came:
            before(*came[-1])
