"""Summary of a scaling law: form, constants with errors and sources, fitted range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.describe import make_card
from steptime.result_base import Result, Tabular, unit
from steptime.scaling.scaling_laws import Law, fitted_to
from steptime.units import Figure


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LawCard(Result):
    """The summary of a scaling law (`steptime laws NAME`)."""

    SCHEMA: ClassVar[str] = "steptime.law/2"

    name: str = field(metadata=unit("", "name in the catalogue"))
    title: str = field(metadata=unit("", "description"))
    year: int = field(metadata=unit("", "year of the paper"))
    grade: str = field(metadata=unit("", "lowest grade of its constants"))
    default: bool = field(metadata=unit("", "whether budgets use it by default"))
    formula: str = field(metadata=unit("", "formula of the loss"))
    counts: str = field(metadata=unit("", "parameters that the law counts; steptime converts active parameters to them"))
    takes: tuple[str, ...] = field(metadata=unit("", "inputs in addition to parameters and tokens"))
    lacks: tuple[str, ...] = field(metadata=unit("", "constants of its form without a confirmed value"))
    constants: Mapping[str, float] = field(metadata=unit("", "constants by name"))
    errors: Mapping[str, float] = field(metadata=unit("", "published standard errors of constants; empty: not published"))
    drawn_together: bool = field(
        metadata=unit("", "whether the correlation of the errors is known, so that budgets have ranges")
    )
    fitted_to: str = field(metadata=unit("", "corpus and range of the fitted runs, in words"))
    domain: Mapping[str, tuple[float, float]] = field(
        metadata=unit("", "range of each quantity that varied in the runs; null: not known", kind="object of pairs")
    )
    fixed: Mapping[str, float] = field(metadata=unit("", "quantities that did not vary in the runs"))
    figures: Mapping[str, Figure] = field(metadata=unit("", "every figure with its source, by path in the file"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the formula and the constants.

        Returns:
            Title, and figures by name.
        """
        constants = ", ".join(f"{name} {value:g}" for name, value in self.constants.items())
        return f"Card of law {self.name}", {"is": self.title, "form": self.formula, "constants": constants or "not known"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LawTable(Tabular):
    """The scaling laws of the catalogue (`steptime laws`), one row per law."""

    SCHEMA: ClassVar[str] = "steptime.laws/2"

    laws: tuple[LawCard, ...] = field(metadata=unit("", "one card per law"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of laws and their names.

        Returns:
            Title, and figures by name.
        """
        return f"{len(self.laws)} scaling laws", {"names": ", ".join(card.name for card in self.laws)}

    def columns(self) -> dict[str, Any]:
        """Return one row per law.

        Returns:
            Columns by name, each with one value per law.
        """
        names = ("name", "title", "year", "grade", "default", "formula", "counts", "fitted_to")
        return {name: [getattr(card, name) for card in self.laws] for name in names}


def law_card(law: Law) -> LawCard:
    """Summarize a scaling law.

    Args:
        law: The law.

    Returns:
        Form, constants, sources and fitted range.
    """
    # Constants may be numpy scalars; JSON needs floats.
    constants = {name: float(np.asarray(value)) for name, value in law.constants.items()}
    return make_card(
        LawCard, law, formula=law.kind.formula, takes=law.kind.takes, constants=constants, fitted_to=fitted_to(law),
        drawn_together=law.spread is not None,
    )  # fmt: skip


def law_table(laws: Iterable[Law]) -> LawTable:
    """Summarize several scaling laws.

    Args:
        laws: The laws.

    Returns:
        One card per law.
    """
    return LawTable(laws=tuple(map(law_card, laws)))
