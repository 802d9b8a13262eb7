"""Tables, bars, notes and headings of the terminal output, in one style.

A table is declared by a template, which names the fields of a record and the form in which each is written. The frame of an
answer is a sentence, then tables and charts within 40 lines, warnings, and where there is more.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, SupportsFloat

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from steptime.errors import replace_controls
from steptime.hardware.rental_prices import usd
from steptime.units import counted, in_digits, percent, show

BLOCKS = " ▏▎▍▌▋▊▉█"
# Glyphs of a stacked bar, which differ without colour too.
FILLS = "█▓▒▚"
# Characters between two columns of a table, and at its two edges.
BETWEEN, EDGES = 3, 2
# Maximum width of an unbroken word, in characters.
WORD = 16
# Lines of an answer without --full; a terminal narrower than the usual columns has more lines in proportion.
MAX_LINES, USUAL_WIDTH = 40, 80
# Warnings of an answer without --full.
MAX_WARNINGS = 3
# Rows below which a table is left out instead of shortened.
MIN_ROWS = 2
# Units that are written with a prefix.
PREFIXED: Final = ("s", "B", "B/s", "FLOP", "FLOP/s", "USD/s", "USD/J", "W", "J", "kg", "tok/s")
# How a number is written: a form of `write`, or a function of the number.
Form = str | Callable[[float], str]


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


# --- values -------------------------------------------------------------------------------------------------------------


def write(value: Any, form: Form = "", *, zeros: bool = False) -> str:
    """Write a value in a form.

    Args:
        value: A number or a text.
        form: A unit, such as "s" or "USD"; "count": with a letter from a million on; "digits" or "digits4": in 3 or 4
            digits, with the unit that follows; "x" or "ratio": a ratio in three digits or with two decimals; "or -": a count,
            and "-" for none; ".1%": a share; else a format of Python, by default with commas.
        zeros: Whether numbers in digits keep zeros at their end.

    Returns:
        The text; "-" for a number that is not finite.

    >>> write(0.0123, "s"), write(671e9, "count"), write(122345.6, "digits tok/s"), write(2.5, "x"), write(8192)
    ('12.3 ms', '671 B', '122,000 tok/s', '2.5x', '8,192')
    """
    if callable(form):
        return form(value)
    if isinstance(value, str):
        return value
    if not math.isfinite(value) or (form == "or -" and not value):
        return "-"
    if form in PREFIXED or form == "count":
        return show(value, "" if form == "count" else form)
    if form == "USD":
        return usd(value)
    if form.startswith("digits"):
        digits, _, unit = form.removeprefix("digits").partition(" ")
        return f"{in_digits(value, int(digits or 3), zeros=zeros)} {unit}".rstrip()
    if form.endswith("%"):
        return percent(value, int(form[1:-1]))
    if form in ("x", "ratio"):
        return f"{in_digits(value, zeros=zeros) if form == 'x' else format(value, ',.2f')}x"
    return format(value, ",") if form in ("", "or -") else format(value, form)


def ranged(value: SupportsFloat, limits: Sequence[Any] | None, form: Form, label: str = "90 %: ") -> str:
    """Write a value with its 90 % range.

    Args:
        value: The value.
        limits: Ends of its 90 % range; None writes the value without a range.
        form: Form of the value for `write`.
        label: Words before the range; empty if a header names it.

    Returns:
        The text; the limits repeat the unit if units differ, or if a letter scales dollars. Without limits if all three
        are written alike.

    >>> ranged(0.0234, (0.0179, 0.0312), "s")
    '23.4 ms (90 %: 17.9 to 31.2)'
    >>> ranged(0.95e-3, (0.8e-3, 1.2e-3), "s"), ranged(2.0, None, "USD")
    ('950 µs (90 %: 800 µs to 1.20 ms)', '$2.00')
    >>> ranged(7600.0, (7600.0, 7600.0), "USD"), ranged(2.0, (1.5, 4.0), "x", "")
    ('$7,600', '2.00x (1.50x to 4.00x)')
    """
    if limits is None or not all(map(math.isfinite, (float(value), *limits))):
        return write(float(value), form)
    text, low, high = (write(float(number), form, zeros=True) for number in (value, *limits))
    if low == text == high:
        return text
    # One unit for all three values is written once.
    units = {part.partition(" ")[2] for part in (text, low, high)}
    if len(units) == 1 and not text.startswith("$"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} ({label}{low} to {high})"


# --- tables -------------------------------------------------------------------------------------------------------------


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

    def widths(self, width: int) -> dict[int, int]:
        """Return the columns that fit `width`, with the width of each.

        Args:
            width: Characters of the terminal.

        Returns:
            Width by position of the column.
        """
        # Minimum width and full width of each column.
        needs: dict[int, tuple[int, int]] = {}
        for position, name in enumerate(self.columns):
            cells, head = [row[position].plain for row, _ in self.rows], name if self.header else ""
            is_whole = position in {*self.numbers, *self.no_wrap}
            longest = max((cell_len(part) for cell in cells for part in ([cell] if is_whole else cell.split())), default=1)
            least = max([longest if is_whole else min(longest, WORD), *map(cell_len, head.split()), 1])
            needs[position] = least, max(map(cell_len, (*head.splitlines(), *cells, "")))
        positions = list(needs)
        # Omit columns until the minimum widths of texts fit with the space between columns.
        going = [*self.first_to_go, *(p for p in reversed(positions[2:]) if p not in self.first_to_go)]
        room = width + BETWEEN - EDGES
        while going and sum(needs[p][0] + BETWEEN for p in positions) > room:
            positions.remove(going.pop(0))

        # Then narrow the widest texts, which wrap.
        widths = {position: needs[position][1] for position in positions}
        over = sum(widths.values()) + BETWEEN * len(positions) - room
        while over > 0:
            narrowable = [p for p in positions if widths[p] > needs[p][0]]
            if not narrowable:
                break
            widths[max(narrowable, key=lambda p: widths[p])] -= 1
            over -= 1
        return widths

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rich_table = Table(
            box=box.SIMPLE_HEAD, title=self.title or None, title_justify="left", title_style="bold", pad_edge=False,
            show_header=self.header,
        )  # fmt: skip
        widths, numbers = self.widths(options.max_width), set(self.numbers)
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


def table(
    *columns: str, rows: Iterable[Sequence[str | Text]] = (), title: str = "", numbers: Iterable[int] = (),
    first_to_go: Sequence[int] = (), header: bool = True,
) -> Grid:  # fmt: skip
    """Return a table of texts.

    Args:
        *columns: Headers.
        rows: Texts of each row.
        title: Title above the table.
        numbers: Positions of columns that align right and never break.
        first_to_go: Positions of columns in the order in which they are omitted.
        header: Whether to print the headers.

    Returns:
        The table.
    """
    grid = Grid(columns=columns, title=title, numbers=tuple(numbers), first_to_go=first_to_go, header=header)
    for cells in rows:
        grid.add_row(*cells)
    return grid


class Filler(string.Formatter):
    """Fills the fields of a template from the attributes of a record, or from functions of the record."""

    def get_value(self, key: Any, args: Sequence[Any], kwargs: Mapping[str, Callable[[Any], Any]]) -> Any:
        """Return the value of a field.

        Args:
            key: Name of the field.
            args: The record.
            kwargs: Functions of the record by the name of the field.

        Returns:
            The result of the function of that name, else the attribute.
        """
        return kwargs[key](args[0]) if key in kwargs else getattr(args[0], key)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Write the value of a field.

        Args:
            value: The value.
            format_spec: A form of `write`.

        Returns:
            The text.
        """
        return write(value, format_spec)


FILLER: Final = Filler()


def listing(
    template: str, records: Iterable[Any], *, title: str = "", numbers: Iterable[int] = (), first_to_go: Sequence[int] = (),
    no_wrap: Sequence[int] = (), style: Callable[[Any], str | None] | None = None, **derived: Callable[[Any], Any],
) -> Grid:  # fmt: skip
    """Return a table with a row for each record, as a template declares it.

    Args:
        template: Columns with "|" between them, each "Head: text with {field} or {field:form}". A form is one of `write`;
            columns with a form align right.
        records: Objects whose attributes are the fields.
        title: Title above the table.
        numbers: Positions of further columns that align right and never break.
        first_to_go: Positions of columns in the order in which they are omitted.
        no_wrap: Positions of columns whose texts never break.
        style: Returns the style of a record's row.
        **derived: Functions of a record by the name of a field; the only field of a column may be a styled text.

    Returns:
        The table.

    >>> from types import SimpleNamespace as Record
    >>> grid = listing("Name: {name} | Time: {seconds:s}", [Record(name="a", seconds=0.5)])
    >>> grid.columns, [[cell.plain for cell in cells] for cells, _ in grid.rows], grid.numbers
    (['Name', 'Time'], [['a', '500 ms']], (1,))
    """
    columns = [column.strip().partition(":") for column in template.split(" | ")]
    texts = [text.strip() for _, _, text in columns]
    right = (*(place for place, text in enumerate(texts) if ":" in text), *numbers)
    grid = Grid([head for head, _, _ in columns], title, right, first_to_go, no_wrap=no_wrap)
    for record in records:
        cells = [
            derived[text[1:-1]](record) if text[1:-1] in derived else FILLER.vformat(text, (record,), derived) for text in texts
        ]
        grid.add_row(*cells, style=style(record) if style else None)
    return grid


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Grid:
    """Return a table of names and values, without a header.

    Args:
        pairs: Names with their values; a pair without a value is left out.

    Returns:
        The table.
    """
    return table("", "", rows=[pair for pair in pairs if pair[1]], header=False)


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


# --- bars ---------------------------------------------------------------------------------------------------------------


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


def bar_table(heads: Sequence[str], rows: Iterable[Sequence[Any]], cells: int, numbers: Iterable[int] = ()) -> Grid:
    """Return a table whose last column has bars, and goes first where the width is short.

    Args:
        heads: Headers, the last of them above the bars.
        rows: Texts of each row, then the share and the colour of its bar.
        cells: Cells of a full bar.
        numbers: Positions of columns that align right; by default all but the first and the bars.

    Returns:
        The table.
    """
    last = len(heads) - 1
    bars = ([*texts, bar(share, cells, colour)] for *texts, share, colour in rows)
    return table(*heads, rows=bars, numbers=numbers or range(1, last), first_to_go=(last,))


def share_table(
    values: Mapping[str, SupportsFloat], colours: Mapping[str, str], width: int, title: str, *, head: str = "Time",
    form: str = "s", least: float = 1e-3,
) -> Grid:  # fmt: skip
    """Return values with their shares as bars, the largest first.

    Args:
        values: Values by name.
        colours: Colour of the bar by name.
        width: Columns of the terminal.
        title: Header of the names.
        head: Header of the values.
        form: Form of the values for `write`.
        least: Share below which a value is omitted.

    Returns:
        The table.
    """
    ranked = sorted(((float(value), name) for name, value in values.items()), key=lambda pair: -pair[0])
    total = sum(value for value, _ in ranked) or 1.0
    rows = [
        (name, write(value, form), percent(value / total, 1), value / total, colours.get(name, "white"))
        for value, name in ranked
        if value >= least * total
    ]
    return bar_table((title, head, "Share", ""), rows, max(8, min(40, width - 44)))


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
    line, legend = Text(), [Text(f"{title}:")]
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
    return Group(*packed(legend, width), line)


def packed(pieces: Sequence[Text], width: int, between: str = "  ") -> list[Text]:
    """Return lines with as many unbroken pieces as fit the width.

    Args:
        pieces: Texts, the first of them perhaps a title that ends with a colon.
        width: Columns of the terminal.
        between: Space between two pieces.

    Returns:
        The lines.
    """
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if lines[-1].cell_len + len(between) + piece.cell_len <= width:
            lines[-1] = Text(" " if lines[-1].plain.endswith(":") else between).join([lines[-1], piece])
        else:
            lines.append(piece)
    return lines


# --- words --------------------------------------------------------------------------------------------------------------


def notes(words: Iterable[str]) -> list[Text]:
    """Return notes on an answer, one line each.

    Args:
        words: Sentences.

    Returns:
        Lines that begin with "Note:" and end with a period.
    """
    return [Text.assemble(("Note: ", "bold yellow"), text.rstrip(".") + ".") for text in words]


def cautions(words: Iterable[str]) -> list[Text]:
    """Return warnings that put a whole answer in doubt, one line each.

    Args:
        words: Sentences.

    Returns:
        Lines that begin with "CAUTION:" and end with a period.
    """
    return [Text.assemble(("CAUTION: ", "bold red"), text.rstrip(".") + ".") for text in words]


def beyond_runs(differences: Iterable[str]) -> str:
    """Return how an answer differs from the runs that the engine was fitted to.

    Args:
        differences: Ways in which the answer extrapolates.

    Returns:
        A sentence.
    """
    return f"The range is wider for lack of measured runs: {', '.join(differences)}."


def more_line(*options: str) -> Text:
    """Return the last line of an answer: the options that print more.

    Args:
        options: Options with what each of them adds, such as "--full (all tables)"; empty ones are left out.

    Returns:
        One dim line.
    """
    return Text(f"More: {', '.join(filter(None, options))}.", style="bright_black")


def heading(text: str) -> Text:
    """Return the title of a part of an answer.

    Args:
        text: The title.

    Returns:
        The title in bold.
    """
    return Text(text, style="bold")


def footnote(text: str) -> Text | None:
    """Return what marks and columns of a table mean.

    Args:
        text: The meaning, in sentences.

    Returns:
        The text in grey; None without a text.
    """
    return Text(text, style="bright_black") if text else None


def section(title: str, lines: Iterable[str | RenderableType | None]) -> Group | None:
    """Return a part of an answer below a heading.

    Args:
        title: The heading.
        lines: Texts, which are indented, or tables and charts; None is left out.

    Returns:
        An empty line, the heading and the lines; None without lines.
    """
    parts = [Text(f"  {line}") if isinstance(line, str) else line for line in lines if line is not None]
    return Group(Text(), heading(title), *parts) if parts else None


# --- the frame of an answer ---------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Answer:
    """An answer that fits a screen, or with `full` all of it.

    Attributes:
        sentence: The answer as one would say it to a colleague.
        conditions: What was asked, in a plain line.
        body: Tables and charts that answer the question, the most important first; texts among them are always shown, None
            is left out.
        details: What only --full shows.
        warnings: Texts that a reader must know, the most important first.
        full_adds: What --full adds.
        files: Option that writes all rows to a file; empty where a command has none.
        has_json: Whether the command has --json.
        full: Whether to show everything.
    """

    sentence: str | Text
    conditions: str = ""
    body: Sequence[RenderableType | None] = ()
    details: Sequence[RenderableType | None] = ()
    warnings: Iterable[str] = ()
    full_adds: str | Sequence[str] = ""
    files: str = "--csv FILE"
    has_json: bool = True
    full: bool = False
    hidden: list[str] = field(default_factory=list, init=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [self.sentence if isinstance(self.sentence, Text) else heading(self.sentence)]
        head += [Text(self.conditions)] if self.conditions else []
        body, warnings = [part for part in self.body if part is not None], notes(self.warnings)
        # Full answers are for files and pagers, so that nothing is measured.
        if self.full:
            yield from (*head, *body, *warnings, *(part for part in self.details if part is not None))
            return
        self.hidden = [words for words in ([self.full_adds] if isinstance(self.full_adds, str) else self.full_adds) if words]
        if len(warnings) > MAX_WARNINGS:
            self.hidden.append(counted(len(warnings) - MAX_WARNINGS, "more warning"))
            warnings = warnings[:MAX_WARNINGS]
        # What is always shown is counted first, and tables and charts share the lines that are left.
        always = [*head, *warnings, *(part for part in body if isinstance(part, Text)), self._last_line()]
        room = round(MAX_LINES * max(1.0, USUAL_WIDTH / options.max_width))
        room -= sum(_height(part, console, options) for part in always)
        yield from head
        for part in body:
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
        # Hidden columns are counted first: the line that names them takes room as well.
        hidden_columns = len(part.columns) - len(part.widths(options.max_width))
        total = len(part.rows)
        # A row takes a line at least.
        for rows in range(min(total, room), 0, -1):
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
        return more_line(added, "--json" if self.has_json else "", self.files)


def _height(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    """Return the lines that a part takes."""
    return len(console.render_lines(part, options, pad=False))
