"""SVG: small pictures of results for notebooks, in the colours of the web page.

These functions compute only positions in the picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from steptime.number_checks import Array
from steptime.units import show

COLOURS: Final = {
    "compute": "#0072b2", "weights": "#d55e00", "kv": "#009e73", "network": "#cc79a7", "overhead": "#7b7b7b",
    "money": "#b07d00", "total": "#22282b", "ghost": "#b9b4a6",
}  # fmt: skip
"""Colours of parts, here and on the web page: Okabe and Ito's palette, which colour-blind readers can distinguish."""
PARTS: Final = ("compute", "weights", "kv", "network", "overhead")
PART_NAMES: Final = {
    "compute": "arithmetic", "weights": "weights", "kv": "KV cache", "network": "network", "overhead": "overhead",
}  # fmt: skip
_PART: Final = {"compute": "compute", "weights": "weights", "kv": "kv", "overhead": "overhead", "activations": "weights"}
SPARE_COLOURS: Final = (
    "#56b4e9", "#e69f00", "#8c6bb1", "#a6761d", "#f0e442", "#1b9e77", "#e7298a", "#3b4cc0", "#999933", "#bbbbbb",
)  # fmt: skip
WIDTH: Final = 560


def in_colours(resources: Mapping[str, Any], shape: tuple[int, ...] = ()) -> dict[str, Array]:
    """Return the seconds of a step in the five colours of its resources.

    Resources other than arithmetic, memory and overhead count as network.

    Args:
        resources: Seconds by resource.
        shape: Shape of the seconds.

    Returns:
        Seconds by colour.

    >>> {name: float(v) for name, v in in_colours({"compute": 1.0, "kv": 2.0, "up": 3.0, "latency": 0.5}).items()}
    {'compute': 1.0, 'weights': 0.0, 'kv': 2.0, 'network': 3.5, 'overhead': 0.0}
    """
    parts = {name: np.zeros(shape) for name in PARTS}
    for name, seconds in resources.items():
        part = _PART.get(name, "network")
        parts[part] = parts[part] + seconds
    return parts


def _svg(height: float, parts: Sequence[str], words: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(words)}" font-family="system-ui, sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


def stacked(parts: Mapping[str, float], unit: str, *, total: float | None = None, words: str = "") -> str:
    """Draw the parts of a whole as one bar, with names and values below.

    Args:
        parts: Values by name.
        unit: Unit of the values.
        total: End of the bar; by default the sum of the parts.
        words: Text for screen readers.

    Returns:
        SVG text; "" without a positive part.

    >>> drawn = stacked({"weights": 3e-3, "kv": 1e-3}, "s")
    >>> drawn.count("<rect"), "3.00 ms" in drawn
    (4, True)
    """
    positive_parts = {name: value for name, value in parts.items() if value > 0 and math.isfinite(value)}
    end = max(sum(positive_parts.values()), total or 0.0)
    if not end:
        return ""
    elements, x, spare_index = [], 0.0, 0

    # A frame up to `total`, one rectangle per part, and a legend of three columns below.
    if total:
        elements.append(f'<rect x="0" y="0" width="{WIDTH}" height="22" fill="none" stroke="{COLOURS["ghost"]}"/>')
    for place, (name, value) in enumerate(positive_parts.items()):
        colour = COLOURS.get(name)
        if colour is None:
            colour, spare_index = SPARE_COLOURS[spare_index % len(SPARE_COLOURS)], spare_index + 1
        width = WIDTH * value / end
        elements.append(f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="22" fill="{colour}"/>')
        row, column = divmod(place, 3)
        label_x, top = column * WIDTH / 3, 40 + 18 * row
        elements.append(f'<rect x="{label_x:.0f}" y="{top - 9}" width="10" height="10" fill="{colour}"/>')
        label = f"{escape(name)} {escape(show(value, unit))}"
        elements.append(f'<text x="{label_x + 15:.0f}" y="{top}" fill="currentColor">{label}</text>')
        x += width
    return _svg(48 + 18 * ((len(positive_parts) - 1) // 3), elements, words or f"parts of {show(end, unit)}")


def curve(
    x: Sequence[float], y: Sequence[float], *, x_words: str, y_words: str, point: tuple[float, float] | None = None
) -> str:
    """Draw a curve on two logarithmic axes, with one marked point.

    Args:
        x: Positive values.
        y: Positive values.
        x_words: Label of the horizontal axis.
        y_words: Label of the vertical axis.
        point: The chosen point.

    Returns:
        SVG text; "" with fewer than two points.

    >>> curve([1, 10, 100], [3, 2, 1], x_words="tok/s", y_words="USD", point=(10, 2)).count("<circle")
    1
    """
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a > 0 and b > 0 and math.isfinite(a) and math.isfinite(b)]
    if len(pairs) < 2:
        return ""
    every = [*pairs, *([point] if point else [])]
    low_x, high_x = min(a for a, _ in every), max(a for a, _ in every)
    low_y, high_y = min(b for _, b in every), max(b for _, b in every)

    def to_pixels(a: float, b: float) -> tuple[float, float]:
        across = math.log(a / low_x) / (math.log(high_x / low_x) or 1.0)
        up = math.log(b / low_y) / (math.log(high_y / low_y) or 1.0)
        return 70 + (WIDTH - 90) * across, 190 - 160 * up

    path = " ".join(f"{'ML'[n > 0]}{px:.1f} {py:.1f}" for n, (px, py) in enumerate(to_pixels(a, b) for a, b in sorted(pairs)))
    elements = [
        f'<path d="M70 20V190H{WIDTH - 20}" fill="none" stroke="{COLOURS["ghost"]}"/>',
        f'<path d="{path}" fill="none" stroke="{COLOURS["money"]}" stroke-width="2"/>',
        *(
            f'<text x="64" y="{to_pixels(low_x, value)[1] + 4:.0f}" text-anchor="end" fill="currentColor">{value:.3g}</text>'
            for value in (low_y, high_y)
        ),
        *(
            f'<text x="{to_pixels(value, low_y)[0]:.0f}" y="206" text-anchor="middle" fill="currentColor">{value:.3g}</text>'
            for value in (low_x, high_x)
        ),
        f'<text x="{WIDTH / 2:.0f}" y="206" text-anchor="middle" fill="currentColor">{escape(x_words)}</text>',
        f'<text x="70" y="12" fill="currentColor">{escape(y_words)}</text>',
    ]
    if point:
        px, py = to_pixels(*point)
        elements.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5.5" fill="{COLOURS["total"]}" stroke="#fff" stroke-width="2"/>'
        )
    return _svg(214, elements, f"{y_words} against {x_words}")
