"""Logger "tidelog": warnings of what a user should look at, and as information how blocks begin, follow plans and end.
The library prints nothing.
"""

from __future__ import annotations

import logging

from tidelog.output._figures import Stats

_log = logging.getLogger("tidelog")


def block_begins(budget: int, stats: Stats) -> None:
    """The pool is open."""
    if made := stats["made"]:
        _log.warning(
            "%s. If there should have been one, mount its file system; must_exist (--must-exist) refuses to make any.",
            made,
        )
    _log.info("a block begins: budget %d bytes, data path %s", budget, stats["data_path"])
    for why in stats["why_not"] or ():
        _log.info("no better data path: %s", why)


def plan_followed(ops: int) -> None:
    """The first plan is ready."""
    _log.info("a plan of %d ops is ready, and steps follow it from here on", ops)


def regions_chosen(text: str) -> None:
    """Logs that some regions under torch.utils.checkpoint run once, or named blocks again."""
    _log.info("%s", text)


def block_ends(peak: int, stats: Stats) -> None:
    """The loop has ended; what is out comes back next."""
    for notice in stats["notices"]:
        _log.warning("%s", notice)
    totals = stats["totals"]
    _log.info(
        "the block ends: at most %d bytes in memory, %d moved out, %d moved in, %d stalls of %.3f s in all",
        peak,
        totals["bytes_written"] + totals["bytes_to_host"],
        totals["bytes_read"] + totals["bytes_from_host"],
        totals["stalls"],
        totals["stall_ns"] / 1e9,
    )
