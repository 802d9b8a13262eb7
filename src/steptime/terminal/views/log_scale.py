"""A logarithmic axis, of dollars unless told: where a value stands in a row of letters, and the labels below."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from steptime.machines.money import usd

LEAST, MOST = 20, 100  # columns of the axis at least, and of the picture at most
TICKS = (1, 2, 5)


@dataclass(frozen=True)
class LogScale:
    """Names in `left` columns, then `cells` columns from 10^low to 10^high."""

    left: int
    cells: int
    low: float
    high: float

    @classmethod
    def of(cls, names: Sequence[str], values: Iterable[float], width: int, *, beside: int, spare: float = 1.0) -> LogScale:
        """Return the axis that holds all values, `spare` times wider at each end, beside names of so many columns."""
        left = min(max(map(len, names)), beside, max(8, width // 3))
        values = list(values)
        cells = max(LEAST, min(width, MOST) - left - 3)
        return cls(left, cells, math.log10(min(values) / spare), math.log10(max(values) * spare))

    def at(self, value: float) -> int:
        """Return the column of a value."""
        scale = (self.cells - 1) / max(self.high - self.low, 1e-9)
        return max(0, min(self.cells - 1, round((math.log10(value) - self.low) * scale)))

    def labels(self, write: Callable[[float], str] = usd) -> Text:
        """Return the labels of both ends, and of as many round figures between as do not touch, as `write` has them."""
        row = [" "] * (self.cells + 8)

        def put(label: str, cell: int) -> None:
            room = row[max(cell - 2, 0) : cell + len(label) + 2]
            if set(room) <= {" "} and cell + len(label) <= len(row):
                row[cell : cell + len(label)] = label

        first, last = write(10**self.low), write(10**self.high)
        put(first, 0)
        put(last, self.cells - len(last))
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for step in TICKS:
                value = step * 10.0**power
                if self.low < math.log10(value) < self.high:
                    put(write(value).removesuffix(".00"), self.at(value))
        return Text(" " * (self.left + 1) + "".join(row).rstrip(), style="bright_black")
