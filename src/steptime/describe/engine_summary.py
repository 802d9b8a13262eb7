"""What there is to know about an engine: its constants and how far off it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.physics.engine import Engine, constant
from steptime.physics.engine_parameters import CONSTANTS
from steptime.result_base import Result, Tabular, unit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineCard(Result):
    """Everything that `steptime engines NAME` shows."""

    SCHEMA: ClassVar[str] = "steptime.engine/2"

    name: str = field(metadata=unit("", "name in the catalogue"))
    title: str = field(metadata=unit("", "what it is"))
    constants: Mapping[str, float] = field(metadata=unit("", "every constant: seconds, bytes, shares; null: no limit"))
    fit: Mapping[str, Any] = field(
        metadata=unit(
            "",
            "runs that were fitted, vendors of their chips, interval and parameter_variance by quantity and regime, deviation "
            "of fitted constants (one standard deviation, as a share)",
        )
    )
    source: Mapping[str, Any] = field(metadata=unit("", "where the constants come from: url, date, grade, note"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what it is, and how many runs it was fitted to."""
        runs = self.fit.get("runs")
        return f"Card of engine {self.name}", {"is": self.title[:120], "fitted to": f"{runs:,} runs" if runs else "nothing"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineTable(Tabular):
    """The engines of the catalogue: what `steptime engines` lists; as a table, one row an engine and a column a constant."""

    SCHEMA: ClassVar[str] = "steptime.engines/2"

    engines: tuple[EngineCard, ...] = field(metadata=unit("", "one card each"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many there are, and their names."""
        return f"{len(self.engines)} engines", {"names": ", ".join(card.name for card in self.engines)}

    def columns(self) -> dict[str, Any]:
        """Return a row for each engine."""
        names_and_titles: dict[str, Any] = {
            "name": [card.name for card in self.engines],
            "title": [card.title for card in self.engines],
        }
        return names_and_titles | {name: [card.constants[name] for card in self.engines] for name in CONSTANTS}


def engine_card(engine: Engine) -> EngineCard:
    """Return an engine's constants, and how far off it was on the runs that were left out of its fit."""
    constants = {name: float(constant(engine, name)) for name in CONSTANTS}
    fit = {key: engine.fit[key] for key in ("runs", "vendors", "interval", "parameter_variance") if key in engine.fit}
    variances = zip(engine.fit.get("names", ()), engine.fit.get("covariance", ()), strict=True)
    fit |= {"deviation": {name: math.sqrt(row[i]) for i, (name, row) in enumerate(variances)}} if fit else {}
    return EngineCard(name=engine.name, title=engine.title, constants=constants, fit=fit, source=dict(engine.source))


def engine_table(engines: Iterable[Engine]) -> EngineTable:
    """Return the cards of several engines."""
    return EngineTable(engines=tuple(map(engine_card, engines)))
