"""Storages that Python has not met: the kernels of `_dispatch` count them, and the session knows them by number.

Most die before anybody in Python looks at them. One that is looked at gets its record then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.memory._record import Record


class Unmet(Protocol):
    """Those of a block."""

    def bytes(self) -> int:
        """How much memory they take."""

    def meet_all(self) -> None:
        """Gives each of them its record."""

    def meet_numbered(self, number: int) -> Record | None:
        """Gives the one that the session knows by this number its record; None: there is none."""

    def tell_unmet(self) -> None:
        """Tells the session of those that it has not heard of, and of those that have died."""


class NoUnmet:
    """There are none."""

    def bytes(self) -> int:
        return 0

    def meet_all(self) -> None:
        pass

    def meet_numbered(self, _number: int) -> Record | None:
        return None

    def tell_unmet(self) -> None:
        pass
