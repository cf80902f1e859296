"""A picture of the ratios: one SVG, which any browser shows without anything else."""

from html import escape

ROW, LEFT, PANEL, GAP, TOP = 22, 330, 270, 60, 66
PANELS = [
    ("bytes_per_second", "throughput", "more is better"),
    ("cpu_seconds_per_gib", "CPU seconds per GiB", "less is better"),
    ("p99_us", "p99 latency", "less is better"),
]
# Ratios shown, on a scale of equal steps for equal factors.
LEAST, MOST = 0.25, 4.0
GOOD, BAD, PLAIN, GREY = "#1a7f37", "#cf222e", "#0550ae", "#d0d7de"


def place(ratio):
    """Returns the place of a ratio along a panel, from 0 to 1."""
    from math import log

    held = min(max(ratio, LEAST), MOST)
    return log(held / LEAST) / log(MOST / LEAST)


def draw(results, title):
    """The picture of results, as `compare.json` has them."""
    height = TOP + ROW * len(results) + 40
    width = LEFT + len(PANELS) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(10, 20, title, size=14),
        text(
            10,
            38,
            "Ratio of Tidelog to its peer: thin line from least to most, bar the 95 % bounds, dot the median, red mark the limit",
        ),
    ]
    for index, (name, heading, better) in enumerate(PANELS):
        left = LEFT + index * (PANEL + GAP)
        parts += axis(left, height - 30, f"{heading} ({better})")
        for row, result in enumerate(results):
            parts += bar(left, TOP + row * ROW, result, name)
    for row, result in enumerate(results):
        parts.append(text(LEFT - 12, TOP + row * ROW + 4, f"{result['case']} · {result['devices']}", anchor="end"))
    return "\n".join([*parts, "</svg>\n"])


def axis(left, bottom, heading):
    yield text(left + PANEL / 2, 54, heading, anchor="middle")
    for ratio in (0.25, 0.5, 1, 2, 4):
        at = left + PANEL * place(ratio)
        strong = ratio == 1
        yield line(at, TOP - 8, at, bottom, "#57606a" if strong else GREY, 1.5 if strong else 1)
        yield text(at, bottom + 14, f"{ratio:g}×", anchor="middle")


def bar(left, middle, result, name):
    figures = result["ratios"][name]
    if figures is None:
        yield text(left + PANEL / 2, middle + 4, "not told", anchor="middle", colour="#8c959f")
        return
    at = {what: left + PANEL * place(value) for what, value in figures.items() if value is not None}
    limit = result["limits"].get({"bytes_per_second": "median_min", "cpu_seconds_per_gib": "cpu_max"}.get(name))
    met = is_met(result["limits"], name, figures)
    colour = PLAIN if limit is None else GOOD if met else BAD
    yield line(at["min"], middle, at["max"], middle, colour, 1)
    if "lower" in at:
        yield line(at["lower"], middle, at["upper"], middle, colour, 7)
    yield f'<circle cx="{at["median"]:.1f}" cy="{middle}" r="5" fill="{colour}" stroke="white"><title>{figures["median"]:.3f}</title></circle>'
    if not LEAST <= figures["median"] <= MOST:
        yield text(at["median"] + 8, middle + 4, f"{figures['median']:.1f}×", colour=colour)
    if limit is not None:
        mark = left + PANEL * place(limit)
        yield line(mark, middle - 9, mark, middle + 9, BAD, 2)


def is_met(limits, name, figures):
    """Returns whether one of the figures is what it must be."""
    if name == "cpu_seconds_per_gib":
        return limits.get("cpu_max") is None or figures["median"] <= limits["cpu_max"]
    wanted = {"median": limits.get("median_min"), "lower": limits.get("lower_min")}
    return all(least is None or (figures[what] or 0) >= least for what, least in wanted.items())


def line(x1, y1, x2, y2, colour, width):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def text(x, y, words, anchor="start", colour="#24292f", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{escape(words)}</text>'
