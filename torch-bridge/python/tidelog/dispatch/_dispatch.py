"""Kernels in C++ for ops that change nothing (the folder `native`): they go past the hook, which does the same with
all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog._turns import waiting
from tidelog._whole import held
from tidelog.dispatch import _backward
from tidelog.dispatch._backward import Engine
from tidelog.memory._record import Storage
from tidelog.native._built import native
from tidelog.storages._ops import IN_CPP, Args, Launch, Op, OpInfo, OpOverload, info_of

if TYPE_CHECKING:
    from tidelog.abi._native import Session
    from tidelog.output._figures import Dispatch
    from tidelog.storages._ledger import Ledger

# Ops that a distributed program's hook makes other ops of.
_FUNCTIONAL = ("_c10d_functional", "_dtensor")
# What torch.compile has products written to buffers by. None is resized that has the product's shape.
_PRODUCTS = ("aten.mm.out", "aten.addmm.out", "aten.bmm.out", "aten.baddbmm.out")
_ARGUMENTS_MAX = 64  # as native/kernel.h has a bit for each
# What torch.compile looks at entered frames with now; None where it does not look.
get_compiler: Callable[[], object] | None = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)


class Followed(Protocol):
    """A plan, as it is followed."""

    funcs: list[Op | None]
    due: bytes


class Module(Engine, Protocol):
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
    ) -> bool:
        """Registers a kernel for an op; returns whether it has one now. `repeats`: it may run again where it has failed."""

    def adopt_launch(self, func: Launch, name: str, written: int, seed: int, makes: bool, arguments: int) -> None:
        """Knows what is launched from here on."""

    def launch(self, func: Launch, args: Args, otherwise: Callable[[Launch, Args], Any]) -> Any:
        """Launches it as an op, or has a function do so."""

    def open(
        self,
        hook: TorchDispatchMode,
        ledger: Ledger,
        compiler: Callable[[], object],
        attention: memoryview,
        hides_mode: bool,
        held: list[int],
        waiting: list[object],
    ) -> None:
        """A block begins. What else it has is found by attributes of the hook."""

    def close(self) -> None:
        """It ends."""

    def follow(self, plan: Followed | None) -> None:
        """The block follows this plan in steps that follow one. None: its steps are profiled."""

    def running_uses(self) -> dict[int, int]:
        """What the op uses that runs and was looked at in full there: number -> 0 or MODIFIES."""

    def why_sums_unknown(self) -> str:
        """Why autograd's sums cannot be told from others, if so."""

    def is_busy(self) -> bool:
        """Whether it is in the middle of something that runs as a whole (`_whole`)."""

    def is_under_way(self) -> bool:
        """The same, or an op is under way past Python."""

    def watch_scalars(self, bring_back: Callable[[Storage], None]) -> None:
        """Has a function called with storages that are guarded before C++ reads a number of them."""

    def passed(self) -> int:
        """How many ops did not go through Python so far."""

    def performed(self) -> int:
        """How many requests were not done in Python so far."""


class Kernels:
    """The kernels, as one block uses them."""

    def __init__(self) -> None:
        self._module: Module | None = None
        self._why_not = ""
        if get_compiler is None:
            self._why_not = f"torch {torch.__version__} does not say whether torch.compile looks at frames"
        self._passed = self._before = 0  # ops, and those of the process when they were counted last
        self._performed = self._performed_before = 0  # the same of requests
        self._followed: tuple[Followed, bytes] | None = None  # and what was due in it
        self._why_mode: str | None = None  # autograd finds the mode where tensors move; empty where it does not

    def open(self, hook: TorchDispatchMode, ledger: Ledger, session: Session) -> None:
        """From here on ops go past the hook that it would only pass on."""
        if self._module is None and get_compiler is not None:
            module = cast(Module, native())
            module.open(hook, ledger, get_compiler, session.attention, self._hides_mode(module), held, waiting)
            _backward.install(module)
            self._module = module
            self._why_not, self._before, self._performed_before = "", module.passed(), module.performed()

    def close(self) -> None:
        """From here on none does."""
        if self._module is not None:
            self.figures()
            self._module.close()
            self._module = None

    def _hides_mode(self, module: Module) -> bool:
        """Whether autograd finds no mode where tensors move."""
        if self._why_mode is None:
            self._why_mode = module.why_sums_unknown() or _backward.why_not(module)
        return not self._why_mode

    def running_uses(self) -> dict[int, int]:
        """What the op uses that runs and was looked at in full past the hook: number -> 0 or MODIFIES."""
        return self._module.running_uses() if self._module is not None else {}

    def figures(self) -> Dispatch:
        """How many ops and requests of the block did not go through Python; why none does, where none can."""
        if self._module is not None:
            self._passed += self._module.passed() - self._before
            self._performed += self._module.performed() - self._performed_before
            self._before, self._performed_before = self._module.passed(), self._module.performed()
        return {
            "ops_past_python": self._passed,
            "requests_past_python": self._performed,
            "why_not": self._why_not,
            "why_sums_out_of_place": self._why_mode or "",
        }

    def launch(self, func: Launch, args: Args, otherwise: Callable[[Launch, Args], Any]) -> Any:
        """Launches a kernel, without Python or by what does it otherwise."""
        return self._module.launch(func, args, otherwise) if self._module is not None else otherwise(func, args)

    def is_busy(self) -> bool:
        """Whether they are in the middle of something."""
        return self._module is not None and self._module.is_busy()

    def is_under_way(self) -> bool:
        """The same, or an op is under way past Python."""
        return self._module is not None and self._module.is_under_way()

    def adopt(self, func: Op) -> None:
        """Has an op go past the hook where that changes nothing."""
        if self._module is not None and func not in _adopted:
            _adopted.add(func)
            info = info_of(func)
            if isinstance(func, Launch):
                self._adopt_launch(self._module, func)
                return
            schema = getattr(func, "_schema", None)
            # What has no schema is no op of the dispatcher's.
            if schema is not None and isinstance(info, OpInfo) and _may_pass(info):
                written = sum(1 << position for position, _ in info.written)
                self._module.adopt(
                    cast(OpOverload, func),
                    *(info.name, schema.name, schema.overload_name, written, info.seed, _looks(info)),
                    info.name in _PRODUCTS,
                    info.repeats,
                )

    def _adopt_launch(self, module: Module, func: Launch) -> None:
        passing = func.passing()
        if passing is not None and passing.arguments <= _ARGUMENTS_MAX:
            written = sum(1 << position for position in passing.written)
            info = info_of(func)
            module.adopt_launch(func, info.name, written, info.seed, passing.makes, passing.arguments)

    def follow(self, plan: Followed) -> None:
        """Steps follow this plan from here on."""
        if self._why_not:  # autograd has found the mode in the steps that the plan is for: its ops are others then
            self._why_mode = "the plan is older than the kernels in C++"
        if self._module is not None and self._followed != (plan, plan.due):
            self._followed = plan, plan.due
            for func in plan.funcs:
                if func is not None:
                    self.adopt(func)
            self._module.follow(plan)

    def forget_plan(self) -> None:
        """Steps are profiled until `follow` is called again."""
        self._followed = None
        if self._module is not None:
            self._module.follow(None)


def watch_scalars(bring_back: Callable[[Storage], None]) -> None:
    """Has a function called with storages of which a number is about to be read that may be out."""
    cast(Module, native()).watch_scalars(bring_back)


_adopted: set[Op] = set()


def _may_pass(info: OpInfo) -> bool:
    is_usual = not info.special or info.name in _PRODUCTS
    return is_usual and info.name.startswith(IN_CPP) and not info.name.startswith(_FUNCTIONAL)


def _looks(info: OpInfo) -> int:
    """What an op asks of a tensor, where that is not its bytes: `Looks` in native/kernel.h."""
    if info.asks_pinned:
        return 3
    return (2 if info.name == "aten.view.default" else 1) if info.looks else 0
