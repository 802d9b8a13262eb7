"""Small pieces of terminal output: tables, bars and money in one style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from steptime.safe_text import replace_controls
from steptime.units import show

BLOCKS = " ▏▎▍▌▋▊▉█"
FILLS = "█▓▒="  # of the parts of a stacked bar, in turn: told apart without colour
BETWEEN, EDGES = 3, 2  # columns between two columns of a table, and at its ends
WORD = 16  # columns that a word of text may need before it is broken


class SafeConsole(Console):
    """A console that prints control characters of texts as replacement characters: names come from files of others."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object to segments."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else replace_controls(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


@dataclass
class Grid:
    """A table that fits the width: text wraps, and where headers or numbers would break, whole columns are left out.

    numbers: positions of columns that align right and never break; no_wrap: of texts that never break. first_to_go: positions
    of columns in the order in which they are left out; then those on the right, down to the first two.
    """

    columns: Sequence[str]
    title: str = ""
    numbers: Iterable[int] = ()
    first_to_go: Sequence[int] = ()
    header: bool = True
    no_wrap: Sequence[int] = ()
    rows: list[tuple[list[Text], str | None]] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)

    def add_row(self, *cells: str | Text, style: str | None = None) -> None:
        """Add a row; cells that are not given are empty."""
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self.rows.append(([*texts, *[Text()] * (len(self.columns) - len(cells))], style))

    def add_section(self) -> None:
        """Part the rows before from those that follow."""
        self.sections.add(len(self.rows))

    def _cells(self, position: int) -> list[str]:
        return [row[position].plain for row, _ in self.rows]

    def _needs(self, position: int) -> tuple[int, int]:
        """Return the least and the full width of a column."""
        cells, head = self._cells(position), self.columns[position] if self.header else ""
        full = max(map(cell_len, (*head.splitlines(), *cells, "")))
        words = [cell_len(word) for word in head.split()]
        if position in {*self.numbers, *self.no_wrap}:
            return max([*map(cell_len, cells), *words, 1]), full
        longest = max((cell_len(word) for cell in cells for word in cell.split()), default=1)
        return max([min(longest, WORD), *words, 1]), full

    def widths(self, width: int) -> dict[int, int]:
        """Return the columns that fit `width`, each with its own width: the widest texts are narrowed first."""
        positions = list(range(len(self.columns)))
        needs = {position: self._needs(position) for position in positions}
        going = [*self.first_to_go, *(p for p in reversed(positions[2:]) if p not in self.first_to_go)]
        while going and sum(needs[p][0] for p in positions) > _room(width, len(positions)):
            positions.remove(going.pop(0))
        widths = {position: needs[position][1] for position in positions}
        over = sum(widths.values()) - _room(width, len(positions))
        while over > 0:
            narrowable = [p for p in positions if widths[p] > needs[p][0]]
            if not narrowable:
                break
            widths[max(narrowable, key=lambda p: widths[p])] -= 1
            over -= 1
        return widths

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self.widths(options.max_width)
        rich_table = Table(
            box=box.SIMPLE_HEAD, title=self.title or None, title_justify="left", title_style="bold", pad_edge=False,
            show_header=self.header,
        )  # fmt: skip
        numbers = set(self.numbers)
        for position, width in widths.items():
            side = "right" if position in numbers else "left"
            rich_table.add_column(self.columns[position], justify=side, overflow="fold", width=width)  # type: ignore[arg-type]
        for number, (row, style) in enumerate(self.rows):
            if number in self.sections:
                rich_table.add_section()
            rich_table.add_row(*(row[position] for position in widths), style=style)
        yield rich_table


@dataclass
class Either:
    """A table where all its columns fit, else another."""

    wide: Grid
    narrow: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if len(self.wide.widths(options.max_width)) == len(self.wide.columns) else self.narrow


def _room(width: int, columns: int) -> int:
    """Return the columns of text that a table of so many columns has."""
    return width - BETWEEN * (columns - 1) - EDGES


def table(
    *columns: str, title: str = "", numbers: Iterable[int] = (), first_to_go: Sequence[int] = (), header: bool = True
) -> Grid:
    """Return an empty table in the house style."""
    return Grid(columns=columns, title=title, numbers=tuple(numbers), first_to_go=first_to_go, header=header)


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Grid:
    """Return names with their values, without a header."""
    grid = table("", "", header=False)
    for name, value in pairs:
        grid.add_row(name, value)
    return grid


def notes(words: Iterable[str]) -> list[Text]:
    """Return what is to be minded about an answer."""
    return [Text.assemble(("Note: ", "bold yellow"), text.rstrip(".") + ".") for text in words]


def beyond_runs(differences: Iterable[str]) -> str:
    """Return how an answer differs from the runs that the engine was fitted to.

    Args:
        differences: Ways in which the answer extrapolates.

    Returns:
        A sentence.
    """
    return f"Extrapolates beyond the measured runs: {', '.join(differences)}."


def more_line(*options: str) -> Text:
    """Return the last line of an answer: the options that print more.

    Args:
        options: Options with what each of them adds, such as "--full (all tables)".

    Returns:
        One dim line.
    """
    return Text(f"More: {', '.join(options)}.", style="bright_black")


def heading(text: str) -> Text:
    """Return the title of a part of an answer."""
    return Text(text, style="bold")


def bar(share: float, width: int, colour: str) -> Text:
    """Return a bar of `share` of `width` cells, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    text = "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(width), style=colour)


def stacked(parts: Sequence[tuple[str, float, str]], capacity: float, width: int, title: str) -> RenderableType:
    """Return one bar of `parts` (name, bytes, colour) of a `capacity`, each with a glyph of its own, and its legend."""
    cells = max(20, min(60, width - 4))
    line, legend = Text(), []
    filled, total = 0, 0.0
    for number, (name, value, colour) in enumerate(parts):
        total += value
        until = round(min(total / capacity, 1.0) * cells)
        glyph = FILLS[number % len(FILLS)]
        line.append(glyph * (until - filled), style=colour)
        filled = until
        legend.append(Text.assemble((f"{glyph} ", colour), f"{name} {show(value, 'B')}"))
    line.append("░" * (cells - filled), style="bright_black")
    remainder = f"free {show(capacity - total, 'B')}" if total <= capacity else f"{show(total - capacity, 'B')} too much"
    legend.append(Text.assemble(("░ ", "bright_black"), remainder))
    return Group(*_packed(Text(f"{title}:"), legend, width), line)


def _packed(first: Text, pieces: Iterable[Text], width: int) -> list[Text]:
    """Return pieces set one after the other, as many to a line as there is room for, none of them broken."""
    lines = [first]
    for piece in pieces:
        if lines[-1].cell_len + 2 + piece.cell_len <= width:
            lines[-1] = Text("  " if lines[-1] is not first else " ").join([lines[-1], piece])
        else:
            lines.append(piece)
    return lines


def ranged(value: float, limits: tuple[float, float] | None, write: Callable[[float], str], label: str = "90 %: ") -> str:
    """Write a value with its 90 % range.

    Args:
        value: The value.
        limits: Ends of its 90 % range; None writes the value without a range.
        write: Writes a value with its unit.
        label: Words before the range; empty where a header says what it is.

    Returns:
        The text; the limits repeat the unit only where units differ, or where a letter scales dollars.

    >>> from steptime.hardware.unit_cost import usd
    >>> ranged(0.0234, (0.0179, 0.0312), lambda s: show(s, "s"))
    '23.4 ms (90 %: 17.9 to 31.2)'
    >>> ranged(0.95e-3, (0.8e-3, 1.2e-3), lambda s: show(s, "s")), ranged(2.0, None, usd)
    ('950 µs (90 %: 800 µs to 1.20 ms)', '$2.00')
    """
    text = write(value)
    if limits is None or not all(math.isfinite(x) for x in (value, *limits)):
        return text
    low, high = (write(limit) for limit in limits)
    units = {part.partition(" ")[2] for part in (text, low, high)}
    if len(units) == 1 and not text.startswith("$"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} ({label}{low} to {high})"


def share_table(seconds: Mapping[str, float], colours: Mapping[str, str], width: int, title: str) -> Grid:
    """Return seconds by name as bars, longest first; what is below a thousandth is left to the sum."""
    total = sum(seconds.values()) or 1.0
    grid = table(title, "Time", "Share", "", numbers=(1, 2), first_to_go=(3,))
    cells = max(8, min(40, width - 44))
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value >= 1e-3 * total:
            grid.add_row(name, show(value, "s"), f"{value / total:.1%}", bar(value / total, cells, colours.get(name, "white")))
    return grid


def sourced(title: str, rows: Iterable[tuple[str, str, str, str, str]]) -> RenderableType:
    """Return figures with their sources: a table that numbers the sources, and the list of them below."""
    grid = table(title, "Value", "Grade", "Date", "Source", numbers=(1, 4), first_to_go=(3, 2))
    numbers: dict[str, int] = {}
    for figure, value, grade, date, url in rows:
        number = f"[{numbers.setdefault(url, len(numbers) + 1)}]" if url else ""
        grid.add_row(figure, value, grade, date, Text(number))
    links = [Text(f"[{number}] {url}", no_wrap=True, overflow="ignore") for url, number in numbers.items()]
    return Group(grid, *links)
