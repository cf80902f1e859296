"""Code that runs as a part of an op, such as the body of a custom op that is written in Python."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

import torch

from tidelog.dispatch._hook import Hook
from tidelog.escapes._threads import Bystander

_MODES = (Hook, Bystander)
_DISPATCHES = {mode.__torch_dispatch__.__code__ for mode in _MODES}
_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_mode_at: Callable[[int], object] = torch._C._get_dispatch_stack_at


def is_in_op(frame: FrameType | None) -> bool:
    """Whether this frame is a part of an op that a block has seen. What the op uses stays for its
    duration, so an address that is asked for there is good for as long as the op runs."""
    if any(isinstance(_mode_at(place), _MODES) for place in range(_count_modes())):
        return False  # an op that began here would be seen: in an op, none is
    while frame is not None:
        if frame.f_code in _DISPATCHES:
            return True
        frame = frame.f_back
    return False
