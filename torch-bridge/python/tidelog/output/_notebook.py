"""HTML and SVG for notebooks that need nothing from elsewhere, no script, no style of others."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.output._figures import Phase, Stats

_WIDTH, _HEIGHT, _MARGIN = 520, 18, 22
_LINE, _LABEL = 14, 130  # a label's height and width, with some space
_USED, _ROOM, _MARK = "#3b7dd8", "#d9dee5", "#c0392b"


@dataclass(frozen=True)
class Report(os.PathLike[str]):
    """A report that was written: its path, and in a notebook the page itself."""

    path: str

    def __fspath__(self) -> str:
        return self.path

    def _repr_html_(self) -> str:
        return _framed(Path(self.path).read_text(encoding="utf-8"))


def of_block(stats: Stats, phase: Phase, budget: int, live: int, peak: int) -> str:
    """A block as it is now."""
    totals = stats["totals"]
    rows = {
        "phase": phase,
        "data path": stats["data_path"] or "unknown",
        "moved out": f"{binary(totals['bytes_written'] + totals['bytes_to_host'])} in {totals['evictions']} evictions",
        "moved in": f"{binary(totals['bytes_read'] + totals['bytes_from_host'])} in {totals['fetches']} fetches",
        "stalls": f"{totals['stalls']}, {totals['stall_ns'] / 1e9:.2f} s in all",
    }
    bar = memory_bar(live, {"peak": peak, "budget": budget}, "tensors and staging buffers in memory")
    return page(
        "<b>tidelog</b> ", binary(live), " in memory", "<br>", bar, _table(rows), text("\n".join(stats["notices"]))
    )


def memory_bar(used: int, marks: Mapping[str, int], what: str) -> str:
    """A bar for the bytes in use, on a scale that holds it and every mark."""
    whole = max(used, *marks.values(), 1)

    def place(size: int) -> float:
        return round(size / whole * _WIDTH, 1)

    places = sorted((place(size), name, size) for name, size in marks.items())
    lines = _lines([at for at, *_ in places])
    height = _HEIGHT + _MARGIN + max(lines, default=0) * _LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 1}" height="{height}" role="img">',
        f"<title>{html.escape(what)}: {binary(used)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="{_ROOM}"/>',
        f'<rect width="{place(used)}" height="{_HEIGHT}" fill="{_USED}"/>',
    ]
    for line, (at, name, size) in zip(lines, places, strict=True):
        side = "end" if at > _WIDTH / 2 else "start"
        parts.append(f'<line x1="{at}" x2="{at}" y2="{_HEIGHT + 4}" stroke="{_MARK}" stroke-width="2"/>')
        parts.append(
            f'<text x="{at}" y="{_HEIGHT + 17 + line * _LINE}" font-size="12" font-family="sans-serif" fill="currentColor" '
            f'text-anchor="{side}">{html.escape(name)} {binary(size)}</text>'
        )
    return "".join(parts) + "</svg>"


def _lines(places: Sequence[float]) -> list[int]:
    """Returns the line of each label under a bar: the first on which it meets no other."""
    taken_on: list[list[tuple[float, float]]] = []
    lines: list[int] = []
    for at in places:
        begin, end = (at - _LABEL, at) if at > _WIDTH / 2 else (at, at + _LABEL)
        line = next(
            (n for n, taken in enumerate(taken_on) if all(end <= b or begin >= e for b, e in taken)), len(taken_on)
        )
        if line == len(taken_on):
            taken_on.append([])
        taken_on[line].append((begin, end))
        lines.append(line)
    return lines


def _table(rows: Mapping[str, str]) -> str:
    """Names and what they are."""
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items())
    return "<table>" + "".join(cells) + "</table>"


def text(lines: str) -> str:
    """Text as it is."""
    return f"<pre>{html.escape(lines)}</pre>"


def _framed(document: str) -> str:
    """A whole page inside of another one; what it has of scripts runs in no page but its own."""
    frame = 'sandbox="allow-scripts" width="100%" height="640" style="border:0"'
    return f'<iframe {frame} srcdoc="{html.escape(document)}"></iframe>'


def page(*parts: str) -> str:
    """Returns the whole page."""
    return "<div>" + "".join(parts) + "</div>"


def binary(size: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
