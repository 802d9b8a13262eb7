"""Tables, bars, notes and headings of the terminal output, in one style.

The frame of an answer: a sentence, then tables and charts within 40 lines, warnings, and where there is more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from steptime.errors import replace_controls
from steptime.units import counted, show

BLOCKS = " ▏▎▍▌▋▊▉█"
# Glyphs of a stacked bar, which differ without colour too.
FILLS = "█▓▒="
# Characters between two columns of a table, and at its two edges.
BETWEEN, EDGES = 3, 2
# Maximum width of an unbroken word, in characters.
WORD = 16


class SafeConsole(Console):
    """A console that replaces control characters in texts, because names come from files of others."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object to segments.

        Args:
            renderable: The object.
            options: Options of the console.

        Yields:
            Segments with control characters replaced.
        """
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else replace_controls(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


@dataclass
class Grid:
    """A table that fits the width: text wraps, and columns are omitted before headers or numbers would break.

    `numbers` are the positions of columns that align right and never break. `no_wrap` are the positions of texts that never
    break. `first_to_go` are positions in the order in which columns are omitted; after them, columns are omitted from the
    right, except the first two.
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
        """Add a row; missing cells are empty.

        Args:
            *cells: Texts in the order of the columns.
            style: Style of the row.
        """
        texts = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self.rows.append(([*texts, *[Text()] * (len(self.columns) - len(cells))], style))

    def add_section(self) -> None:
        """Draw a line between the rows so far and the next rows."""
        self.sections.add(len(self.rows))

    def _cells(self, position: int) -> list[str]:
        return [row[position].plain for row, _ in self.rows]

    def _needs(self, position: int) -> tuple[int, int]:
        """Return the minimum width and the full width of a column."""
        cells, head = self._cells(position), self.columns[position] if self.header else ""
        full = max(map(cell_len, (*head.splitlines(), *cells, "")))
        words = [cell_len(word) for word in head.split()]
        if position in {*self.numbers, *self.no_wrap}:
            return max([*map(cell_len, cells), *words, 1]), full
        longest = max((cell_len(word) for cell in cells for word in cell.split()), default=1)
        return max([min(longest, WORD), *words, 1]), full

    def widths(self, width: int) -> dict[int, int]:
        """Return the columns that fit `width`, with the width of each.

        Args:
            width: Characters of the terminal.

        Returns:
            Width by position of the column.
        """
        positions = list(range(len(self.columns)))
        needs = {position: self._needs(position) for position in positions}
        # Omit columns until the minimum widths fit.
        going = [*self.first_to_go, *(p for p in reversed(positions[2:]) if p not in self.first_to_go)]
        while going and sum(needs[p][0] for p in positions) > _room(width, len(positions)):
            positions.remove(going.pop(0))

        # Then narrow the widest texts, which wrap.
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
    """A wide table if all its columns fit, else a narrow table."""

    wide: Grid
    narrow: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if len(self.wide.widths(options.max_width)) == len(self.wide.columns) else self.narrow


def _room(width: int, columns: int) -> int:
    """Return the characters for text in a table with a number of columns."""
    return width - BETWEEN * (columns - 1) - EDGES


def table(
    *columns: str, title: str = "", numbers: Iterable[int] = (), first_to_go: Sequence[int] = (), header: bool = True
) -> Grid:
    """Return an empty table.

    Args:
        *columns: Headers.
        title: Title above the table.
        numbers: Positions of columns that align right and never break.
        first_to_go: Positions of columns in the order in which they are omitted.
        header: Whether to print the headers.

    Returns:
        The table.
    """
    return Grid(columns=columns, title=title, numbers=tuple(numbers), first_to_go=first_to_go, header=header)


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Grid:
    """Return a table of names and values, without a header.

    Args:
        pairs: Names with their values.

    Returns:
        The table.
    """
    grid = table("", "", header=False)
    for name, value in pairs:
        grid.add_row(name, value)
    return grid


def notes(words: Iterable[str]) -> list[Text]:
    """Return notes on an answer, one line each.

    Args:
        words: Sentences.

    Returns:
        Lines that begin with "Note:" and end with a period.
    """
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
    """Return the title of a part of an answer.

    Args:
        text: The title.

    Returns:
        The title in bold.
    """
    return Text(text, style="bold")


def bar(share: float, width: int, colour: str) -> Text:
    """Return a horizontal bar, with a resolution of an eighth of a cell.

    Args:
        share: Share of the width, from 0 to 1.
        width: Cells of the full bar.
        colour: Style of the bar.

    Returns:
        The bar, padded to `width` cells.
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    text = "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(width), style=colour)


def stacked(parts: Sequence[tuple[str, float, str]], capacity: float, width: int, title: str) -> RenderableType:
    """Return a stacked bar of the parts of a capacity, with a legend.

    Args:
        parts: Name, bytes and colour of each part.
        capacity: Bytes of the full bar.
        width: Columns of the terminal.
        title: Words before the legend.

    Returns:
        Something that a console prints.
    """
    cells = max(20, min(60, width - 4))
    line, legend = Text(), []
    filled, total = 0, 0.0
    for number, (name, value, colour) in enumerate(parts):
        total += value
        # Rounding the sum, not each part, keeps the length of the bar right.
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
    """Return lines with as many unbroken pieces as fit the width."""
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
        label: Words before the range; empty if a header names it.

    Returns:
        The text; the limits repeat the unit if units differ, or if a letter scales dollars.

    >>> from steptime.hardware.rental_prices import usd
    >>> ranged(0.0234, (0.0179, 0.0312), lambda s: show(s, "s"))
    '23.4 ms (90 %: 17.9 to 31.2)'
    >>> ranged(0.95e-3, (0.8e-3, 1.2e-3), lambda s: show(s, "s")), ranged(2.0, None, usd)
    ('950 µs (90 %: 800 µs to 1.20 ms)', '$2.00')
    """
    text = write(value)
    if limits is None or not all(math.isfinite(x) for x in (value, *limits)):
        return text
    low, high = (write(limit) for limit in limits)
    # One unit for all three values is written once.
    units = {part.partition(" ")[2] for part in (text, low, high)}
    if len(units) == 1 and not text.startswith("$"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} ({label}{low} to {high})"


def share_table(seconds: Mapping[str, float], colours: Mapping[str, str], width: int, title: str) -> Grid:
    """Return times with their shares as bars, longest first; shares below 0.1 % are omitted.

    Args:
        seconds: Seconds by name.
        colours: Colour of the bar by name.
        width: Columns of the terminal.
        title: Header of the names.

    Returns:
        The table.
    """
    total = sum(seconds.values()) or 1.0
    grid = table(title, "Time", "Share", "", numbers=(1, 2), first_to_go=(3,))
    cells = max(8, min(40, width - 44))
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value >= 1e-3 * total:
            grid.add_row(name, show(value, "s"), f"{value / total:.1%}", bar(value / total, cells, colours.get(name, "white")))
    return grid


def sourced(title: str, rows: Iterable[tuple[str, str, str, str, str]]) -> RenderableType:
    """Return figures with their sources: a table with numbers of sources, and the list of sources.

    Args:
        title: Header of the figures.
        rows: Name, value, grade, date and URL of each figure.

    Returns:
        Something that a console prints.
    """
    grid = table(title, "Value", "Grade", "Date", "Source", numbers=(1, 4), first_to_go=(3, 2))
    # A source that several figures share has one number.
    numbers: dict[str, int] = {}
    for figure, value, grade, date, url in rows:
        number = f"[{numbers.setdefault(url, len(numbers) + 1)}]" if url else ""
        grid.add_row(figure, value, grade, date, Text(number))
    links = [Text(f"[{number}] {url}", no_wrap=True, overflow="ignore") for url, number in numbers.items()]
    return Group(grid, *links)


MAX_LINES = 40  # lines of an answer without --full
USUAL_WIDTH = 80  # columns; a narrower terminal has more lines in proportion
MAX_WARNINGS = 3  # warnings of an answer without --full
MIN_ROWS = 2  # rows below which a table is left out instead of shortened


@dataclass(kw_only=True)
class Answer:
    """An answer that fits a screen, or with `full` all of it.

    Attributes:
        sentence: the answer as one would say it to a colleague.
        conditions: what was asked, in a plain line.
        body: tables and charts that answer the question, the most important first; texts among them are always shown.
        details: what only --full shows.
        warnings: texts that a reader must know, the most important first.
        full_adds: what --full adds.
        files: option that writes all rows to a file; empty where a command has none.
        has_json: whether the command has --json.
        full: whether to show everything.
    """

    sentence: str | Text
    conditions: str = ""
    body: Sequence[RenderableType] = ()
    details: Sequence[RenderableType] = ()
    warnings: Iterable[str] = ()
    full_adds: str = ""
    files: str = "--csv FILE"
    has_json: bool = True
    full: bool = False
    hidden: list[str] = field(default_factory=list, init=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [self.sentence if isinstance(self.sentence, Text) else heading(self.sentence)]
        head += [Text(self.conditions)] if self.conditions else []
        warnings = notes(self.warnings)
        # full answers are for files and pagers, so that nothing is measured
        if self.full:
            yield from (*head, *self.body, *warnings, *self.details)
            return
        self.hidden = [self.full_adds] if self.full_adds else []
        if len(warnings) > MAX_WARNINGS:
            self.hidden.append(counted(len(warnings) - MAX_WARNINGS, "more warning"))
            warnings = warnings[:MAX_WARNINGS]
        # what is always shown is counted first, and tables and charts share the lines that are left
        always = [*head, *warnings, *(part for part in self.body if isinstance(part, Text)), self._last_line()]
        room = round(MAX_LINES * max(1.0, USUAL_WIDTH / options.max_width))
        room -= sum(_height(part, console, options) for part in always)
        yield from head
        for part in self.body:
            pieces = [part] if isinstance(part, Text) else self._fitted(part, room, console, options)
            room -= 0 if isinstance(part, Text) else sum(_height(piece, console, options) for piece in pieces)
            if not pieces and not any("chart" in words for words in self.hidden):
                self.hidden.append("remaining tables and charts")
            yield from pieces
        yield from warnings
        yield self._last_line()

    def _fitted(self, part: RenderableType, room: int, console: Console, options: ConsoleOptions) -> list[RenderableType]:
        """Return a part as far as it fits the lines left: a table loses rows from its end, others fit or are left out."""
        if not isinstance(part, Grid):
            return [part] if _height(part, console, options) <= room else []
        # hidden columns are counted first: the line that names them takes room as well
        hidden_columns = len(part.columns) - len(part.widths(options.max_width))
        total = len(part.rows)
        for rows in range(total, 0, -1):
            grid = replace(part, rows=part.rows[:rows], sections={place for place in part.sections if place < rows})
            pieces: list[RenderableType] = [grid, *self._remainder(total, rows, hidden_columns)]
            if sum(_height(piece, console, options) for piece in pieces) <= room:
                return pieces if rows >= min(total, MIN_ROWS) else []
        return []

    def _remainder(self, total: int, rows: int, hidden_columns: int) -> list[Text]:
        """Return the line below a table that says which rows and columns are left out."""
        file = f" or with {self.files.partition(' ')[0]}" if self.files else ""
        words = [f"{rows} of {total} rows; --full shows all"] if rows < total else []
        words += [f"{counted(hidden_columns, 'column')} more in a wider terminal{file}"] if hidden_columns else []
        return [Text("; ".join(words) + ".", style="bright_black")] if words else []

    def _last_line(self) -> Text:
        added = f"--full ({', '.join(self.hidden)})" if self.hidden else ""
        return more_line(*filter(None, [added, "--json" if self.has_json else "", self.files]))


def _height(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    """Return the lines that a part takes."""
    return len(console.render_lines(part, options, pad=False))


def section(title: str, lines: Iterable[str | RenderableType]) -> Group:
    """Return a part of an answer below a heading.

    Args:
        title: the heading.
        lines: texts, which are indented, or tables and charts.

    Returns:
        An empty line, the heading and the lines.
    """
    return Group(Text(), heading(title), *(Text(f"  {line}") if isinstance(line, str) else line for line in lines))


def footnote(text: str) -> Text:
    """Return what marks and columns of a table mean.

    Args:
        text: the meaning, in sentences.

    Returns:
        The text in grey.
    """
    return Text(text, style="bright_black")
