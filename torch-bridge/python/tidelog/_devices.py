"""The devices of a pool, as users name them: one path, or text with commas between several.

The library reads the text by the same rule (`DeviceSpec::parse_list`).
"""

from __future__ import annotations

import os
import re

from tidelog.output._figures import StrPath


def listed(pool: StrPath) -> str:
    """The list that names a pool. Text is one; a path object is one path, whatever is in it."""
    if isinstance(pool, str):
        return pool
    return re.sub(r"([,\\])", r"\\\1", os.fspath(pool))


def split(devices: str) -> list[str]:
    """The names of a list: a backslash before a comma or a backslash makes it part of the name."""
    names = [""]
    for escaped, comma, other in re.findall(r"\\([,\\])|(,)|(.)", devices, re.DOTALL):
        if comma:
            names.append("")
        else:
            names[-1] += escaped or other
    return [name.strip() for name in names]
