"""What there is to know about a scaling law: its form, constants with errors and sources, and where it was fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.provenance import Figure
from steptime.result_base import Result, Tabular, unit
from steptime.scaling.scaling_laws import Law, fitted_to


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LawCard(Result):
    """Everything that `steptime laws NAME` shows."""

    SCHEMA: ClassVar[str] = "steptime.law/2"

    name: str = field(metadata=unit("", "name in the catalogue"))
    title: str = field(metadata=unit("", "what it is"))
    year: int = field(metadata=unit("", "of its paper"))
    grade: str = field(metadata=unit("", "the worst of its constants"))
    default: bool = field(metadata=unit("", "whether budgets use it unless told"))
    formula: str = field(metadata=unit("", "how it reckons"))
    counts: str = field(
        metadata=unit("", "the parameters that it means; steptime is asked in active ones and turns them into these")
    )
    takes: tuple[str, ...] = field(metadata=unit("", "what it knows beside parameters and tokens"))
    lacks: tuple[str, ...] = field(metadata=unit("", "constants that its form needs and nobody has confirmed"))
    constants: Mapping[str, float] = field(metadata=unit("", "its constants"))
    errors: Mapping[str, float] = field(metadata=unit("", "standard errors of constants as published; empty: none"))
    drawn_together: bool = field(
        metadata=unit("", "whether it is known how the errors hang together, so that budgets have ranges")
    )
    fitted_to: str = field(metadata=unit("", "corpus and range of the runs, in words"))
    domain: Mapping[str, tuple[float, float]] = field(
        metadata=unit("", "least and most of what varied in the runs; null: not known", kind="object of pairs")
    )
    fixed: Mapping[str, float] = field(metadata=unit("", "what did not vary in the runs"))
    figures: Mapping[str, Figure] = field(metadata=unit("", "every figure with its source, by its place in the file"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its formula and its constants."""
        constants = ", ".join(f"{name} {value:g}" for name, value in self.constants.items())
        return f"Card of law {self.name}", {"is": self.title, "form": self.formula, "constants": constants or "not known"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LawTable(Tabular):
    """The laws of the catalogue: what `steptime laws` lists; as a table, one row a law."""

    SCHEMA: ClassVar[str] = "steptime.laws/2"

    laws: tuple[LawCard, ...] = field(metadata=unit("", "one card each"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many there are, and their names."""
        return f"{len(self.laws)} scaling laws", {"names": ", ".join(card.name for card in self.laws)}

    def columns(self) -> dict[str, Any]:
        """Return a row for each law."""
        names = ("name", "title", "year", "grade", "default", "formula", "counts", "fitted_to")
        return {name: [getattr(card, name) for card in self.laws] for name in names}


def law_card(law: Law) -> LawCard:
    """Return what there is to know about a law."""
    return LawCard(
        name=law.name,
        title=law.title,
        year=law.year,
        grade=law.grade,
        default=law.default,
        formula=law.kind.formula,
        counts=law.counts,
        takes=law.kind.takes,
        lacks=law.lacks,
        constants={name: float(np.asarray(value)) for name, value in law.constants.items()},
        errors=dict(law.errors),
        drawn_together=law.spread is not None,
        fitted_to=fitted_to(law),
        domain=dict(law.domain),
        fixed=dict(law.fixed),
        figures=dict(law.figures),
    )


def law_table(laws: Iterable[Law]) -> LawTable:
    """Return the cards of several laws."""
    return LawTable(laws=tuple(map(law_card, laws)))
