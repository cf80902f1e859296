"""Progress of work that may take long, for people at a terminal."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

_LONG_SECONDS = 2.0  # what takes less shows nothing


class Progress:
    """Shows by tqdm how far some work is, once it has taken long. Nothing is shown where tqdm is not
    installed, or standard error is no terminal."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._done = 0
        self._began = time.monotonic()
        self._bar: Any = None
        self._may_show = sys.stderr.isatty() and importlib.util.find_spec("tqdm") is not None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, amount: int, at: str = "") -> None:
        """Adds progress; `at` names it."""
        self._done += amount
        if self._bar is not None:
            self._bar.set_postfix_str(at, refresh=False)
            self._bar.update(amount)
        elif self._may_show and time.monotonic() - self._began >= _LONG_SECONDS:
            self._bar = self._shown()

    def _shown(self) -> Any:
        from tqdm.auto import tqdm

        scaled = self._unit == "B"
        return tqdm(
            desc=f"tidelog: {self._what}",
            initial=self._done,
            total=self._total,
            unit=self._unit,
            unit_scale=scaled,
            unit_divisor=1024,
            leave=False,
        )
