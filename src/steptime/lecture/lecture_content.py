"""Sections, claims and question cards of the lecture, with verdicts on their numbers.

The text is in `data/lecture`. A verdict says whether a computed number confirms the number of the lecture; `check` computes
all numbers again and compares the verdicts with the stored ones.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from steptime.catalog.data_files import PACKAGED
from steptime.describe import make_card
from steptime.errors import DataFileError, RangeError
from steptime.result_base import Result, Tabular, columns_by_key, unit
from steptime.units import show

# Largest ratio, up or down, within which a number "holds within a factor"; the same for every number.
WITHIN_FACTOR: Final = 2.5
HOLDS, FACTOR, FAILS, UNDECIDED = VERDICTS = ("holds", "holds within a factor", "fails", "undecided")
RELATIONS: Final = ("about", "at least", "at most")


def verdict(
    computed: Sequence[float], stated: float, *, tolerance: float = 0.05, factor: float = WITHIN_FACTOR, relation: str = "about"
) -> str:
    """Return the verdict on a stated number from one or several computed numbers.

    The number holds within the relative `tolerance`; otherwise it holds within the `factor` up or down; otherwise it
    fails. "at least" and "at most" test one side only, and hold or fail. Several computed numbers (chips, laws, models)
    must all agree: the verdict is undecided if some fail and others do not, or if a number is missing.

    Args:
        computed: Computed numbers in the unit of `stated`.
        stated: Number of the lecture.
        tolerance: Relative distance within which a number holds.
        factor: Largest ratio, up or down, within which a number holds within a factor.
        relation: about, at least or at most.

    Returns:
        holds, holds within a factor, fails or undecided.

    Raises:
        RangeError: The relation is unknown.

    >>> verdict([2400.0], 2400), verdict([5441.0], 2400, factor=3), verdict([295.0, 900.0], 300), verdict([900.0], 300)
    ('holds', 'holds within a factor', 'undecided', 'fails')
    """
    if relation not in RELATIONS:
        raise RangeError(f"relation: must be about, at least or at most, got {relation!r}")
    if not computed or any(math.isnan(value) for value in computed):
        return UNDECIDED
    # Each number gets its own grade; the verdict combines them.
    grades = {_grade(value, stated, tolerance, factor, relation) for value in computed}
    # Numbers that disagree about a failure decide nothing.
    if FAILS in grades:
        return FAILS if len(grades) == 1 else UNDECIDED
    return FACTOR if FACTOR in grades else HOLDS


def _grade(value: float, stated: float, tolerance: float, factor: float, relation: str) -> str:
    if (relation == "at least" and value >= stated) or (relation == "at most" and value <= stated):
        return HOLDS
    if abs(value - stated) <= (tolerance + 1e-12) * abs(stated):
        return HOLDS
    if relation != "about":
        return FAILS
    # Numbers of opposite sign have no ratio.
    return FACTOR if value * stated > 0 and max(value / stated, stated / value) <= factor else FAILS


FOLDER: Final = PACKAGED / "lecture"
LECTURE: Final = "https://www.dwarkesh.com/p/reiner-pope"
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A number of the lecture with the function that computes it."""

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "computed": unit("", "computed number, or several numbers", kind="list of number"),
        "computed_verdict": unit("", "computed verdict", key="computed_verdict"),
    }

    name: str = field(metadata=unit("", "description of the number"))
    call: str = field(metadata=unit("", "function of the package that computes the number"))
    arguments: Mapping[str, Any] = field(default_factory=dict, metadata=unit("", "arguments in SI units", kind="object"))
    stated: float = field(metadata=unit("", "number as spoken or published", key="stated"))
    relation: str = field(default="about", metadata=unit("", "about, at least or at most"))
    tolerance: float = field(default=0.05, metadata=unit("", "relative distance for the verdict holds"))
    factor: float = field(default=WITHIN_FACTOR, metadata=unit("", "ratio for the verdict holds within a factor"))
    check: int = field(default=0, metadata=unit("", "number of the acceptance check; 0: no check"))
    today: bool = field(default=False, metadata=unit("", "whether the number is about real models, machines or prices"))
    undecided: bool = field(default=False, metadata=unit("", "whether public figures cannot decide it"))
    verdict: str = field(metadata=unit("", "stored verdict: holds, holds within a factor, fails or undecided"))
    reason: str = field(default="", metadata=unit("", "reason for the verdict"))
    source: str = field(default=LECTURE, metadata=unit("", "source of the number"))
    date: str = field(default="", metadata=unit("", "day of the verdict on a prediction, YYYY-MM-DD"))
    unit: str = field(default="", metadata=unit("", "unit of the number"))

    @property
    def computed(self) -> tuple[float, ...]:
        """The computed number, or several numbers."""
        # Text arguments make the call hashable for the cache.
        return _computed(self.call, json.dumps(self.arguments))

    @property
    def computed_verdict(self) -> str:
        """The verdict on the computed numbers."""
        if self.undecided:
            return UNDECIDED
        return verdict(self.computed, self.stated, tolerance=self.tolerance, factor=self.factor, relation=self.relation)


@lru_cache(maxsize=1024)
def _computed(call: str, arguments: str) -> tuple[float, ...]:
    numbers = np.asarray(resolve_function(call)(**json.loads(arguments)), dtype=float)
    return tuple(float(value) for value in numbers.ravel())


def resolve_function(call: str) -> Any:
    """Return a function of the package.

    Args:
        call: Dotted path below `steptime`, such as "blackboard.optimal_batch".

    Returns:
        The function.
    """
    module, _, name = call.rpartition(".")
    return getattr(import_module(f"steptime.{module}"), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve of a picture: a function of the quantity along the axis."""

    name: str
    call: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The picture of a section: curves over one quantity."""

    title: str
    vary: str
    label: str
    low: float
    high: float
    unit: str = ""
    result: str
    result_unit: str = ""
    linear: bool = False
    is_integer: bool = False
    lines: tuple[Line, ...]

    def points(self, count: int = 61) -> tuple[Any, dict[str, Any]]:
        """Compute the curves of the picture.

        Args:
            count: Points along the axis.

        Returns:
            Values along the axis, and values of each curve by name.
        """
        x = np.linspace(self.low, self.high, count) if self.linear else np.geomspace(self.low, self.high, count)
        x = np.unique(np.round(x)) if self.is_integer else x
        curves = {}
        for line in self.lines:
            # The functions take scalars, so the curve is computed point by point.
            function = resolve_function(line.call)
            y = [function(**line.arguments, **{self.vary: int(v) if self.is_integer else float(v)}) for v in x]
            curves[line.name] = np.asarray(y, dtype=float)
        return x, curves


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Section(Result):
    """A section of the lecture: summary, formula, numbers and limits of the claim."""

    SCHEMA: ClassVar[str] = "steptime.lecture-section/2"

    number: int = field(metadata=unit("", "number of the section"))
    title: str = field(metadata=unit("", "title of the section"))
    summary: str = field(metadata=unit("", "summary of the section in new words"))
    formula: str = field(metadata=unit("", "formula in plain letters"))
    symbols: Mapping[str, str] = field(metadata=unit("", "meaning of the letters, with units", kind="object of text"))
    fails: str = field(metadata=unit("", "cases where the claim fails, and the result there"))
    statements: tuple[Statement, ...] = field(metadata=unit("", "numbers of the section"))
    picture: Picture = field(metadata=unit("", "picture of the section", left_out=True))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the title, the formula and the verdicts.

        Returns:
            Title, and figures by name.
        """
        return f"Section {self.number}: {self.title}", {
            "formula": self.formula,
            "numbers": ", ".join(statement.computed_verdict for statement in self.statements),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A prediction or a claim of the lecture."""

    number: int = field(metadata=unit("", "number of the claim"))
    section: int = field(metadata=unit("", "section of the lecture"))
    summary: str = field(metadata=unit("", "summary of the claim in new words"))
    statement: Statement = field(metadata=unit("", "number that decides the claim"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A question about the lecture, its answer, and the number of the answer."""

    number: int = field(metadata=unit("", "number of the card"))
    question: str = field(metadata=unit("", "question in new words"))
    answer: str = field(metadata=unit("", "closed form in words"))
    watch: str = field(metadata=unit("", "caveat"))
    section: int = field(metadata=unit("", "section of the lecture"))
    statement: Statement = field(metadata=unit("", "number of the answer"))


def _make(kind: type[Record], path: Path, place: str, data: Mapping[str, Any]) -> Record:
    """Return a dataclass from a table; a missing or unknown key is an error."""
    names = {attribute.name for attribute in fields(kind)}  # type: ignore[arg-type]
    if unknown := set(data) - names:
        raise DataFileError(path, f"{place}: unknown key {sorted(unknown)[0]}")
    try:
        return kind(**data)
    except TypeError as error:
        raise DataFileError(path, f"{place}: {str(error).rpartition('missing ')[2]}") from None


def _statement(path: Path, place: str, data: Mapping[str, Any]) -> Statement:
    statement = _make(Statement, path, place, data)
    if statement.verdict not in VERDICTS:
        raise DataFileError(path, f"{place}: a verdict must be one of {', '.join(VERDICTS)}, not {statement.verdict!r}")
    return statement


def _read_toml(name: str) -> tuple[Path, dict[str, Any]]:
    path = FOLDER / name
    return path, tomllib.loads(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def sections() -> tuple[Section, ...]:
    """Return the sections in order.

    Returns:
        All sections of `data/lecture`.
    """
    return tuple(_section(path.name) for path in sorted(FOLDER.glob("[0-9]*.toml")))


def _section(name: str) -> Section:
    path, data = _read_toml(name)
    lines = tuple(_make(Line, path, "picture.lines", table) for table in data["picture"].pop("lines"))
    data["picture"] = _make(Picture, path, "picture", data["picture"] | {"lines": lines})
    data["statements"] = tuple(_statement(path, "statements", table) for table in data["statements"])
    return _make(Section, path, "the section", data)


def section(number: int) -> Section:
    """Return one section.

    Args:
        number: Number of the section, from 1.

    Returns:
        The section.

    Raises:
        RangeError: There is no such section.
    """
    every = sections()
    if not 1 <= number <= len(every):
        raise RangeError(f"the lecture has sections 1 to {len(every)}, not {number}; `steptime lecture` lists them")
    return every[number - 1]


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """Return the predictions and claims in order.

    Returns:
        All claims of `data/lecture/claims.toml`.
    """
    return tuple(_entries("claims", Claim))


@lru_cache(maxsize=1)
def cards() -> tuple[Card, ...]:
    """Return the question cards in order.

    Returns:
        All cards of `data/lecture/cards.toml`.
    """
    return tuple(_entries("cards", Card))


def _entries(name: str, kind: type[Record]) -> Iterator[Record]:
    path, data = _read_toml(f"{name}.toml")
    for table in data[name]:
        place = f"number {table.get('number')}"
        yield _make(kind, path, place, table | {"statement": _statement(path, place, table["statement"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stated number, the computed range, and the verdict."""

    place: str = field(metadata=unit("", "section 3, claim 3 or card 3"))
    check: int = field(metadata=unit("", "number of the acceptance check; 0: no check"))
    name: str = field(metadata=unit("", "description of the number"))
    stated: float = field(metadata=unit("", "number as spoken or published"))
    relation: str = field(metadata=unit("", "about, at least or at most"))
    low: float = field(metadata=unit("", "smallest computed number"))
    high: float = field(metadata=unit("", "largest computed number"))
    verdict: str = field(metadata=unit("", "computed verdict"))
    stored: str = field(metadata=unit("", "stored verdict"))
    reason: str = field(metadata=unit("", "reason for the verdict"))
    source: str = field(metadata=unit("", "source of the stated number"))
    date: str = field(metadata=unit("", "day of the verdict on a prediction, YYYY-MM-DD"))
    unit: str = field(metadata=unit("", "unit of the numbers"))

    @property
    def changed(self) -> bool:
        """Whether the computed verdict differs from the stored one."""
        return self.verdict != self.stored


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdicts(Tabular):
    """All numbers of the lecture with their verdicts."""

    SCHEMA: ClassVar[str] = "steptime.lecture-verdicts/2"

    rows: tuple[Row, ...] = field(metadata=unit("", "one row per number"))

    @property
    def changed(self) -> tuple[Row, ...]:
        """Numbers whose computed verdict differs from the stored one."""
        return tuple(row for row in self.rows if row.changed)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the count of numbers per verdict.

        Returns:
            Title, and counts by verdict.
        """
        # Verdicts without a number are shown as 0.
        counts = {name: sum(row.verdict == name for row in self.rows) for name in VERDICTS}
        figures = {name: f"{count:,}" for name, count in counts.items()}
        return f"The lecture: {len(self.rows):,} numbers, {len(self.changed)} with a changed verdict", figures

    def columns(self) -> dict[str, Any]:
        """Return one row per number.

        Returns:
            Columns by name, each with one value per number.
        """
        return columns_by_key(Row, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """A section with the verdicts on its numbers."""

    number: int = field(metadata=unit("", "number of the section"))
    title: str = field(metadata=unit("", "title of the section"))
    formula: str = field(metadata=unit("", "formula in plain letters"))
    verdicts: tuple[str, ...] = field(metadata=unit("", "verdicts on its numbers", kind="list of text"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Lecture(Tabular):
    """The sections of the lecture."""

    SCHEMA: ClassVar[str] = "steptime.lecture/2"

    sections: tuple[Title, ...] = field(metadata=unit("", "sections in order"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of sections and the verdicts on their numbers.

        Returns:
            Title, and counts by verdict.
        """
        numbers = [verdict for section in self.sections for verdict in section.verdicts]
        counts = {name: f"{numbers.count(name):,} of {len(numbers):,} numbers" for name in VERDICTS}
        return f"The math behind how LLMs are trained and served: {len(self.sections):,} sections", counts

    def columns(self) -> dict[str, Any]:
        """Return one row per section.

        Returns:
            Columns by name, each with one value per section.
        """
        verdicts = [", ".join(section.verdicts) for section in self.sections]
        return columns_by_key(Title, self.sections) | {"verdicts": verdicts}


def contents() -> Lecture:
    """Return the sections with the stored verdicts on their numbers.

    Returns:
        All sections.
    """
    return Lecture(
        sections=tuple(
            make_card(Title, section, verdicts=tuple(statement.verdict for statement in section.statements))
            for section in sections()
        )
    )


def statements() -> Iterator[tuple[str, Statement]]:
    """Yield every number with its place in the lecture.

    Yields:
        Place, such as "section 3", and statement.
    """
    for section in sections():
        yield from ((f"section {section.number}", statement) for statement in section.statements)
    yield from ((f"claim {claim.number}", claim.statement) for claim in claims())
    yield from ((f"card {card.number}", card.statement) for card in cards())


def check() -> Verdicts:
    """Compute every number of the lecture again.

    Returns:
        One row per number, with the computed and the stored verdict.
    """
    return Verdicts(rows=tuple(_row(place, statement) for place, statement in statements()))


def _row(place: str, statement: Statement) -> Row:
    low, high = min(statement.computed), max(statement.computed)
    verdicts = {"verdict": statement.computed_verdict, "stored": statement.verdict}
    return make_card(Row, statement, place=place, low=low, high=high, **verdicts)


# --- numbers in words ------------------------------------------------------------------------------------------------------

SHORT: Final = {"tokens": "tok", "sequences": "seq", "parameters": ""}


def format_claim(value: float, relation: str, unit: str) -> str:
    """Write a number of the lecture.

    Args:
        value: the number.
        relation: about, at least or at most.
        unit: its unit.

    Returns:
        The number with its relation and unit.

    >>> format_claim(2400, "about", ""), format_claim(1, "at least", ""), format_claim(0.02, "about", "s")
    ('about 2,400', '>= 1', 'about 20.0 ms')
    """
    return {"about": "about ", "at least": ">= ", "at most": "<= "}[relation] + written(value, unit)


def written(value: float, unit: str) -> str:
    """Write a number with its unit, small counts in full.

    Args:
        value: the number.
        unit: its unit.

    Returns:
        Three digits and the unit; none for an infinite number.
    """
    if math.isinf(value):
        return "none"
    if unit in ("s", "B"):
        return show(value, unit)
    if unit == "share":
        return f"{100 * value:.3g} %"
    if unit == "x":
        return f"{value:,.3g}x" if abs(value) < 1000 else f"{value:,.0f}x"
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else show(value) if abs(value) >= 1e6 else f"{value:.3g}"
    return f"{text} {SHORT.get(unit, unit)}".rstrip()


def between(low: float, high: float, unit: str) -> str:
    """Write a number, or the range of several, with their common unit once.

    Args:
        low: the smallest.
        high: the largest.
        unit: their unit.

    Returns:
        One number or a range.

    >>> between(0.013, 0.043, "s"), between(5.0, 5.0, "")
    ('13.0 to 43.0 ms', '5')
    >>> between(0.054, 0.067, "share"), between(31.0, 86.0, "x")
    ('5.4 to 6.7 %', '31x to 86x')
    """
    first, last = written(low, unit), written(high, unit)
    if first == last:
        return first
    ends = [text.partition(" ")[2] for text in (first, last)]
    return f"{first.partition(' ')[0] if ends[0] == ends[1] else first} to {last}"
