"""Small pieces of terminal output: tables, bars and money in one style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steptime.units import show

BLOCKS = " ▏▎▍▌▋▊▉█"


def table(*columns: str, title: str = "", numbers: Iterable[int] = ()) -> Table:
    """Return an empty table in the house style; columns whose positions are in `numbers` align right."""
    numbers = set(numbers)
    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for position, column in enumerate(columns):
        made.add_column(column, justify="right" if position in numbers else "left", overflow="fold")
    return made


def bar(share: float, width: int, colour: str) -> Text:
    """Return a bar of `share` of `width` cells, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    text = "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(width), style=colour)


def usd(value: float) -> str:
    """Write dollars: from one on to two places, less to three digits.

    >>> usd(1234.5), usd(0.3), usd(0.05018), usd(0.0)
    ('$1,234.50', '$0.300', '$0.0502', '$0.00')
    """
    if not math.isfinite(value):
        return "unknown"
    return f"${value:,.{2 - min(0, math.floor(math.log10(value))) if value > 0 else 2}f}"


def ranged(value: float, limits: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    """Write a value with its 90 % range, the unit once where it is one.

    >>> ranged(0.0234, (0.0179, 0.0312), lambda s: show(s, "s"))
    '23.4 ms (17.9 to 31.2)'
    >>> ranged(0.95e-3, (0.8e-3, 1.2e-3), lambda s: show(s, "s")), ranged(2.0, None, usd)
    ('950 µs (800 µs to 1.20 ms)', '$2.00')
    """
    text = write(value)
    if limits is None or not all(math.isfinite(x) for x in (value, *limits)):
        return text
    low, high = (write(limit) for limit in limits)
    units = {part.partition(" ")[2] for part in (text, low, high)}
    if len(units) == 1:
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} ({low} to {high})"


def share_table(seconds: Mapping[str, float], colours: Mapping[str, str], width: int, title: str) -> Table:
    """Return seconds by name as bars, longest first; what is below a thousandth is left to the sum."""
    total = sum(seconds.values()) or 1.0
    shown = table(title, "Time", "Share", "", numbers=(1, 2))
    shown.show_header = True
    cells = max(10, min(40, width - 44))
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value >= 1e-3 * total:
            shown.add_row(name, show(value, "s"), f"{value / total:.1%}", bar(value / total, cells, colours.get(name, "white")))
    return shown


def sourced(title: str, rows: Iterable[tuple[str, str, str, str, str]]) -> RenderableType:
    """Return figures with their sources: a table that numbers the sources, and the list of them below."""
    shown = table(title, "Value", "Grade", "Date", "Source", numbers=(1, 4))
    numbers: dict[str, int] = {}
    for figure, value, grade, date, url in rows:
        number = f"[{numbers.setdefault(url, len(numbers) + 1)}]" if url else ""
        shown.add_row(figure, value, grade, date, Text(number))
    links = [Text(f"[{number}] {url}", no_wrap=True, overflow="ignore") for url, number in numbers.items()]
    return Group(shown, *links)
