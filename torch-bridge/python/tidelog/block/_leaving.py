"""The dispatch modes of a thread when a block is left, in whatever order the program leaves them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_mode_at: Callable[[int], TorchDispatchMode] = torch._C._get_dispatch_stack_at
_pop: Callable[[None], TorchDispatchMode] = torch._C._pop_torch_dispatch_stack
_push: Callable[[TorchDispatchMode], None] = torch._C._push_on_torch_dispatch_stack


def leave(mode: TorchDispatchMode) -> list[TorchDispatchMode]:
    """Leaves a mode of the block's. Returns those that were entered inside of it and have not been left: torch would
    take the last of them off the stack in its place."""
    modes = [_mode_at(place) for place in range(_count_modes())]
    places = [place for place, each in enumerate(modes) if each is mode]
    inside = modes[places[-1] + 1 :] if places else []
    for _ in inside:
        _pop(None)
    if not places:  # the thread that entered it has ended, and its stack with it
        _push(mode)
    mode.__exit__(None, None, None)
    for each in inside:
        _push(each)
    return inside
