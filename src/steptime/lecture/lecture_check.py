"""Recompute the lecture's numbers and compare their verdicts with the stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.lecture.claim_verdicts import VERDICTS
from steptime.lecture.lecture_content import Section, Statement, cards, claims, sections
from steptime.result_base import Tabular, columns_by_key, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A stated number, the computed range, and the verdict."""

    place: str = field(metadata=unit("", "section 3, claim 3 or card 3"))
    check: int = field(metadata=unit("", "number of the acceptance check; 0: no check"))
    name: str = field(metadata=unit("", "description of the number"))
    stated: float = field(metadata=unit("", "number as spoken or published"))
    low: float = field(metadata=unit("", "smallest computed number"))
    high: float = field(metadata=unit("", "largest computed number"))
    verdict: str = field(metadata=unit("", "computed verdict"))
    stored: str = field(metadata=unit("", "stored verdict"))
    reason: str = field(metadata=unit("", "reason for the verdict"))
    source: str = field(metadata=unit("", "source of the stated number"))
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
        every = self.sections
        return {
            "number": [section.number for section in every],
            "title": [section.title for section in every],
            "formula": [section.formula for section in every],
            "verdicts": [", ".join(section.verdicts) for section in every],
        }


def contents() -> Lecture:
    """Return the sections with the stored verdicts on their numbers.

    Returns:
        All sections.
    """
    return Lecture(sections=tuple(_title(section) for section in sections()))


def _title(section: Section) -> Title:
    verdicts = tuple(statement.verdict for statement in section.statements)
    return Title(number=section.number, title=section.title, formula=section.formula, verdicts=verdicts)


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
    computed = statement.computed
    return Row(
        place=place, check=statement.check, name=statement.name, stated=statement.stated, low=min(computed),
        high=max(computed), verdict=statement.computed_verdict, stored=statement.verdict,
        reason=statement.reason, source=statement.source, unit=statement.unit,
    )  # fmt: skip
