"""torch.profiler, where tensors move: it reads addresses before each op, and at each call of a module.

For shapes, floating-point operations and stacks torch notes the address of every tensor that an op gets, of each
module's parameters and of the optimizer's state, before anybody could bring them back. The guard of what is out raises
an error there: in training itself for stacks, and as a failed assertion and wrong shapes for the others. So a profile
that begins where tensors move does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog.dispatch._access import Access

# What the profiler is asked for in words -> the attributes that make it read addresses.
_READS = {"record_shapes": "record_shapes", "with_flops": "with_flops", "with_stack": "with_stack"}


def install(access: Access, say: Callable[[str], None]) -> None:
    """Makes profiles omit what reads addresses. `say` tells the user."""
    if hasattr(profiler.profile, "config"):  # else this torch keeps it elsewhere
        _patches.replace(profiler.profile, "config", lambda original: _configuring(access, say, original))


def _configuring(access: Access, say: Callable[[str], None], original: Wrapper) -> Wrapper:
    said: set[str] = set()

    def config(profile: Any, *args: Any, **kwargs: Any) -> Any:
        asked = [name for name, attribute in _READS.items() if getattr(profile, attribute, False)]
        if not asked or not access.is_live() or not access.may_be_out():
            return original(profile, *args, **kwargs)
        text = (
            f"torch.profiler does without {', '.join(asked)} in this block: for these it reads the addresses of tensors "
            "that may be out. All else is recorded. Where all fits in the budget it has them"
        )
        if text not in said:
            said.add(text)
            say(text)
        had = {attribute: getattr(profile, attribute) for attribute in _READS.values() if hasattr(profile, attribute)}
        try:
            for attribute in had:
                setattr(profile, attribute, False)
            return original(profile, *args, **kwargs)
        finally:
            for attribute, value in had.items():
                setattr(profile, attribute, value)

    return config
