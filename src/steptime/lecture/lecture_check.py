"""All numbers of the lecture computed again, with their verdicts held against those that are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.lecture.claim_verdicts import VERDICTS
from steptime.lecture.lecture_content import Section, Statement, cards, claims, sections
from steptime.result_base import Tabular, columns_by_key, unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number that was said, what is computed, and the verdict."""

    place: str = field(metadata=unit("", "section 3, claim 3 or card 3"))
    check: int = field(metadata=unit("", "number of the acceptance check; 0: none"))
    name: str = field(metadata=unit("", "what it is"))
    stated: float = field(metadata=unit("", "the number as spoken, or as published"))
    low: float = field(metadata=unit("", "least of what is computed"))
    high: float = field(metadata=unit("", "greatest of what is computed"))
    verdict: str = field(metadata=unit("", "as computed"))
    stored: str = field(metadata=unit("", "as stored"))
    reason: str = field(metadata=unit("", "why"))
    source: str = field(metadata=unit("", "where the number stands"))
    unit: str = field(metadata=unit("", "of the numbers"))

    @property
    def changed(self) -> bool:
        """Whether the verdict is another than the stored one."""
        return self.verdict != self.stored


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdicts(Tabular):
    """Every number of the lecture with its verdict."""

    SCHEMA: ClassVar[str] = "steptime.lecture-verdicts/2"

    rows: tuple[Row, ...] = field(metadata=unit("", "one each number"))

    @property
    def changed(self) -> tuple[Row, ...]:
        """Numbers whose verdict is another than the stored one."""
        return tuple(row for row in self.rows if row.changed)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many numbers there are of each verdict."""
        counts = {name: sum(row.verdict == name for row in self.rows) for name in VERDICTS}
        figures = {name: f"{count:,}" for name, count in counts.items()}
        return f"The lecture: {len(self.rows):,} numbers, {len(self.changed)} with another verdict than stored", figures

    def columns(self) -> dict[str, Any]:
        """Return a row for each number."""
        return columns_by_key(Row, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """A section with the verdicts on its numbers."""

    number: int = field(metadata=unit("", "of the section"))
    title: str = field(metadata=unit("", "what it is about"))
    formula: str = field(metadata=unit("", "in plain letters"))
    verdicts: tuple[str, ...] = field(metadata=unit("", "on its numbers", kind="list of text"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Lecture(Tabular):
    """The sections of the lecture."""

    SCHEMA: ClassVar[str] = "steptime.lecture/2"

    sections: tuple[Title, ...] = field(metadata=unit("", "in their order"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many sections and numbers there are."""
        numbers = [verdict for section in self.sections for verdict in section.verdicts]
        counts = {name: f"{numbers.count(name):,} of {len(numbers):,} numbers" for name in VERDICTS}
        return f"The math behind how LLMs are trained and served: {len(self.sections):,} sections", counts

    def columns(self) -> dict[str, Any]:
        """Return a row for each section."""
        every = self.sections
        return {
            "number": [section.number for section in every],
            "title": [section.title for section in every],
            "formula": [section.formula for section in every],
            "verdicts": [", ".join(section.verdicts) for section in every],
        }


def contents() -> Lecture:
    """Return the sections with the stored verdicts on their numbers."""
    return Lecture(sections=tuple(_title(section) for section in sections()))


def _title(section: Section) -> Title:
    verdicts = tuple(statement.verdict for statement in section.statements)
    return Title(number=section.number, title=section.title, formula=section.formula, verdicts=verdicts)


def statements() -> Iterator[tuple[str, Statement]]:
    """Yield every number with the place where it stands."""
    for section in sections():
        yield from ((f"section {section.number}", statement) for statement in section.statements)
    yield from ((f"claim {claim.number}", claim.statement) for claim in claims())
    yield from ((f"card {card.number}", card.statement) for card in cards())


def check() -> Verdicts:
    """Return every number computed again."""
    return Verdicts(rows=tuple(_row(place, statement) for place, statement in statements()))


def _row(place: str, statement: Statement) -> Row:
    computed = statement.computed
    return Row(
        place=place, check=statement.check, name=statement.name, stated=statement.stated, low=min(computed),
        high=max(computed), verdict=statement.computed_verdict, stored=statement.verdict,
        reason=statement.reason, source=statement.source, unit=statement.unit,
    )  # fmt: skip
