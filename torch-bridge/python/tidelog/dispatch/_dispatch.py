"""The kernels in C++ that all ops meet (the folder `native`), as Python sees them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog._turns import waiting
from tidelog._whole import held
from tidelog.native._built import native
from tidelog.native._module import Step

if TYPE_CHECKING:
    from tidelog.abi._native import Session
    from tidelog.output._figures import Dispatch

# What torch.compile looks at entered frames with now.
get_compiler: Callable[[], object] = torch._C._dynamo.eval_frame.get_eval_frame_callback
set_compiler: Callable[[Any], object] = torch._C._dynamo.eval_frame.set_eval_frame


@functools.cache
def apart() -> Callable[..., Any]:
    """Calls a function where torch.compile looks at no frame that is entered, wherever it looks at each."""
    call: Callable[..., Any] = torch.compiler.disable(lambda function, *arguments: function(*arguments))
    return call


class Kernels:
    """The kernels, as one block uses them."""

    def __init__(self) -> None:
        self._module = native()
        self._is_open = False
        self._passed = self._before = 0  # ops, and those of the process when they were counted last
        self._performed = self._performed_before = 0  # the same of requests

    def open(self, services: tuple[Any, ...], step: Step, session: Session, updates: dict[int, Any]) -> None:
        """Makes ops of this thread those of a block. `services`: those of its `Hook`."""
        if not self._is_open:
            module = self._module
            module.open(step, services, updates, session.attention, held, waiting)
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
        """Ends the block's ops of this thread."""
        if self._is_open:
            self.figures()
            self._module.close()
            self._is_open = False

    def figures(self) -> Dispatch:
        """Returns the number of ops and requests of the block that needed nothing of Python's."""
        if self._is_open:
            self._passed += self._module.passed() - self._before
            self._performed += self._module.performed() - self._performed_before
            self._before, self._performed_before = self._module.passed(), self._module.performed()
        return {"ops_past_python": self._passed, "requests_past_python": self._performed}
