"""The frame of an answer: a sentence, then tables and charts within 40 lines, warnings, and where there is more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from steptime.cli.views.widgets import Grid, heading, more_line, notes
from steptime.units import counted

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
