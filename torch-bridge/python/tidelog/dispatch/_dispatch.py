"""The kernels in C++ that all ops meet (the folder `native`): where an op changes nothing it goes past the hook, which
does the same with all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog._turns import waiting
from tidelog._whole import held
from tidelog.native._built import native
from tidelog.storages._ops import IN_CPP, Args, Kwargs, Launch, Op, OpInfo, OpOverload, info_of

if TYPE_CHECKING:
    from tidelog.abi._native import Session
    from tidelog.output._figures import Dispatch
    from tidelog.storages._ledger import Ledger

# Ops that a distributed program's hook makes other ops of.
_FUNCTIONAL = ("_c10d_functional", "_dtensor")
# What torch.compile has products written to buffers by. None is resized that has the product's shape.
_PRODUCTS = ("aten.mm.out", "aten.addmm.out", "aten.bmm.out", "aten.baddbmm.out")
_ARGUMENTS_MAX = 64  # as native/kernel.h has a bit for each
# What torch.compile looks at entered frames with now.
get_compiler: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback


class Followed(Protocol):
    """A plan, as it is followed."""

    funcs: list[Op | None]
    due: bytes


class Observer(Protocol):
    """What is called with an op."""

    def __call__(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], Any]) -> Any:
        """Returns what it returns. `run` has torch run it with these arguments."""


class Module(Protocol):
    """What the module has for Python."""

    def adopt(
        self,
        func: OpOverload,
        text: str,
        name: str,
        overload: str,
        written: int,
        seed: int,
        looks: int,
        is_product: bool,
        repeats: bool,
    ) -> None:
        """Has an op go past Python where that changes nothing. `repeats`: it may run again where it has failed."""

    def adopt_launch(self, func: Launch, name: str, written: int, seed: int, makes: bool, arguments: int) -> None:
        """Knows what is launched from here on."""

    def launch(self, func: Launch, args: Args, otherwise: Callable[[Launch, Args], Any]) -> Any:
        """Launches it as an op, or has a function do so."""

    def open(
        self,
        hook: Observer,
        bystander: Observer,
        ledger: Ledger,
        compiler: Callable[[], object],
        attention: memoryview,
        held: list[int],
        waiting: list[object],
    ) -> None:
        """A block begins in this thread. What else it has is found by attributes of the hook. `bystander` gets ops of
        other threads."""

    def close(self) -> None:
        """It ends."""

    def follow(self, plan: Followed | None) -> None:
        """The block follows this plan in steps that follow one. None: its steps are profiled."""

    def running_uses(self) -> dict[int, int]:
        """What the op uses that runs and was looked at in full there: number -> 0 or MODIFIES."""

    def is_busy(self) -> bool:
        """Whether it is in the middle of something that runs as a whole (`_whole`)."""

    def is_under_way(self) -> bool:
        """The same, or an op is under way past Python."""

    def is_inside(self) -> bool:
        """Whether this thread is inside an op."""

    def finalizers_begin(self) -> bool:
        """Finalizers begin to run in this thread; returns whether it is inside an op."""

    def finalizers_end(self) -> None:
        """They have run, inside an op."""

    def works(self, does: bool) -> None:
        """Whether this thread works for the block, whatever torch says."""

    def works_here(self) -> bool:
        """Whether this thread works for the block that is open."""

    def meet_new_ops(self) -> None:
        """Ops may have come."""

    def passed(self) -> int:
        """How many ops did not go through Python so far."""

    def performed(self) -> int:
        """How many requests were not done in Python so far."""


class Kernels:
    """The kernels, as one block uses them."""

    def __init__(self) -> None:
        self._module: Module = native()
        self._is_open = False
        self._passed = self._before = 0  # ops, and those of the process when they were counted last
        self._performed = self._performed_before = 0  # the same of requests
        self._followed: tuple[Followed, bytes] | None = None  # and what was due in it
        self.is_inside, self.works_here = self._module.is_inside, self._module.works_here
        self.finalizers_begin, self.finalizers_end = self._module.finalizers_begin, self._module.finalizers_end

    def open(self, hook: Observer, bystander: Observer, ledger: Ledger, session: Session) -> None:
        """From here on ops come to the hook, or go past it where it would only pass them on."""
        if not self._is_open:
            module = self._module
            module.open(hook, bystander, ledger, get_compiler, session.attention, held, waiting)
            _patches.replace(torch.library.Library, "define", self._meeting_ops)
            _patches.replace(torch.ops, "load_library", self._meeting_ops)
            self._is_open = True
            self._before, self._performed_before = module.passed(), module.performed()

    def _meeting_ops(self, original: Wrapper) -> Wrapper:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._module.meet_new_ops()
            return result

        return wrapper

    def close(self) -> None:
        """From here on none does."""
        if self._is_open:
            self.figures()
            self._module.close()
            self._is_open = False

    def running_uses(self) -> dict[int, int]:
        """What the op uses that runs and was looked at in full past the hook: number -> 0 or MODIFIES."""
        return self._module.running_uses()

    def figures(self) -> Dispatch:
        """How many ops and requests of the block did not go through Python."""
        if self._is_open:
            self._passed += self._module.passed() - self._before
            self._performed += self._module.performed() - self._performed_before
            self._before, self._performed_before = self._module.passed(), self._module.performed()
        return {"ops_past_python": self._passed, "requests_past_python": self._performed}

    def launch(self, func: Launch, args: Args, otherwise: Callable[[Launch, Args], Any]) -> Any:
        """Launches a kernel, without Python or by what does it otherwise."""
        return self._module.launch(func, args, otherwise)

    def is_busy(self) -> bool:
        """Whether they are in the middle of something."""
        return self._module.is_busy()

    def is_under_way(self) -> bool:
        """The same, or an op is under way past Python."""
        return self._module.is_under_way()

    def adopt(self, func: Op) -> None:
        """Has an op go past the hook where that changes nothing."""
        if func not in _adopted:
            _adopted.add(func)
            info = info_of(func)
            if isinstance(info, OpInfo):
                if _may_pass(info):
                    op = cast(OpOverload, func)
                    written = sum(1 << position for position, _ in info.written)
                    self._module.adopt(
                        *(op, info.name, op._schema.name, op._schema.overload_name, written, info.seed, _looks(info)),
                        *(info.name in _PRODUCTS, info.repeats),
                    )
            elif (passing := cast(Launch, func).passing()) is not None and passing.arguments <= _ARGUMENTS_MAX:
                written = sum(1 << position for position in passing.written)
                self._module.adopt_launch(
                    cast(Launch, func), info.name, written, info.seed, passing.makes, passing.arguments
                )

    def follow(self, plan: Followed) -> None:
        """Steps follow this plan from here on."""
        if self._is_open and self._followed != (plan, plan.due):
            self._followed = plan, plan.due
            for func in plan.funcs:
                if func is not None:
                    self.adopt(func)
            self._module.follow(plan)

    def forget_plan(self) -> None:
        """Steps are profiled until `follow` is called again."""
        self._followed = None
        self._module.follow(None)


_adopted: set[Op] = set()


def _may_pass(info: OpInfo) -> bool:
    is_usual = not info.special or info.name in _PRODUCTS
    return is_usual and info.name.startswith(IN_CPP) and not info.name.startswith(_FUNCTIONAL)


def _looks(info: OpInfo) -> int:
    """What an op asks of a tensor, where that is not its bytes: `Looks` in native/kernel.h."""
    if info.asks_pinned:
        return 3
    return (2 if info.name == "aten.view.default" else 1) if info.looks else 0
