"""GPU memory that a program manages itself: pools of its own (`torch.cuda.MemPool`), among them those
of managed memory.

Such memory is what it is to the program: managed, registered with a network card, of an allocator
that someone wrote. Memory that a storage gets when it comes back would be torch's usual. So what is
in a pool stays there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tidelog import _patches
from tidelog._patches import Wrapper
from tidelog.dispatch._access import Access


def install(access: Access) -> None:
    """Sees when a program begins and ends to allocate from a pool of its own."""
    depth = [0]

    def counting(step: int) -> Callable[[Wrapper], Wrapper]:
        def make(original: Wrapper) -> Wrapper:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if not access.is_elsewhere():
                    depth[0] += step
                    access.of_a_pool(depth[0] > 0)
                return result

            return wrapper

        return make

    _patches.replace(torch.cuda.memory, "_cuda_beginAllocateCurrentThreadToPool", counting(1))
    _patches.replace(torch.cuda.memory, "_cuda_endAllocateToPool", counting(-1))
