"""A picture of the runs: seconds a step and peak memory of each contender, one SVG."""

import contenders
from picture import BAD, GOOD, GREY, PLAIN, line, text

ROW, LEFT, PANEL, GAP, TOP = 24, 280, 330, 70, 60
PANELS = [
    ("seconds", "seconds a step"),
    ("memory", "peak memory of the process, GiB"),
    ("moved", "GiB read and written a step"),
]
OURS = {each.name for each in contenders.CONTENDERS if each.is_ours}


def draw(tables, machine):
    """One block of bars for each number of micro-batches and each kind of pool."""
    rows = sum(len(found) for found in tables.values())
    height = TOP + ROW * (rows + 3 * len(tables))
    width = LEFT + len(PANELS) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(10, 20, f"The same training, Linux {machine['kernel']}, {machine['cpus']} CPUs", size=14),
        text(10, 38, "Bars: medians of rounds; thin line: least to most; green: Tidelog, the same bits as plain torch"),
    ]
    top = TOP
    for (micro_batches, pool), found in tables.items():
        parts += block(top, f"{micro_batches} micro-batches, pool on {pool}", found)
        top += ROW * (len(found) + 3)
    return "\n".join([*parts, "</svg>\n"])


def block(top, heading, rows):
    yield text(10, top + 4, heading, size=13)
    for index, (name, words) in enumerate(PANELS):
        left = LEFT + index * (PANEL + GAP)
        values = [value_of(row, name) for row in rows]
        most = max((value["max"] for value in values), default=0) or 1
        yield text(left, top + 4, words)
        for number, (row, value) in enumerate(zip(rows, values, strict=True)):
            yield from bar(left, top + ROW * (number + 1), row, value, most)
    for number, row in enumerate(rows):
        yield text(LEFT - 10, top + ROW * (number + 1) + 4, row["words"], anchor="end")


def bar(left, middle, row, value, most):
    colour = PLAIN if row["contender"] not in OURS else BAD if row["same_bits"] is False else GOOD
    at = {what: left + PANEL * figure / most for what, figure in value.items()}
    yield line(left, middle, left + PANEL, middle, GREY, 1)
    yield line(left, middle, at["median"], middle, colour, 12)
    yield line(at["min"], middle, at["max"], middle, "#24292f", 1)
    yield text(at["median"] + 5, middle + 4, f"{value['median']:.2f}")


def value_of(row, name):
    if name == "seconds":
        return {what: row["seconds"][what] for what in ("min", "median", "max")}
    figure = row["peak_bytes"] if name == "memory" else row["bytes_read"] + row["bytes_written"]
    return dict.fromkeys(("min", "median", "max"), figure / 2**30)
