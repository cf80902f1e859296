"""The version of torch, and the oldest that will do. What differs between two of them is asked for by name where it is
used, and by its version where it has none. For C++ that is in `native/compat.h`.

Asked before anything else of the bridge is imported: what a torch lacks that is too old would be an error that says
less.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

OLDEST = (2, 10)  # that has all which the bridge needs


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of a version as torch writes it."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def refuse_older(text: str) -> None:
    """Raises where a torch of this version lacks what the bridge needs."""
    if version_of(text) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ImportError(
            f"tidelog needs torch {needed} or newer, and this is torch {text}: pip install 'torch>={needed}'"
        )


def installed() -> str | None:
    """The version of the torch that this process has, or would import. None: there is none, or nothing says its
    version before it is imported."""
    if (torch := sys.modules.get("torch")) is not None:
        return str(torch.__version__)
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
