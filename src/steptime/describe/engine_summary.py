"""Summary of an engine: its constants and its measured error."""

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
    """The summary of an engine (`steptime engines NAME`)."""

    SCHEMA: ClassVar[str] = "steptime.engine/2"

    name: str = field(metadata=unit("", "name in the catalogue"))
    title: str = field(metadata=unit("", "description"))
    constants: Mapping[str, float] = field(metadata=unit("", "all constants in seconds, bytes or shares; null: no limit"))
    fit: Mapping[str, Any] = field(
        metadata=unit(
            "",
            "fitted runs, vendors of their chips, interval and parameter_variance by quantity and regime, and deviation of "
            "fitted constants (one standard deviation, as a share)",
        )
    )
    source: Mapping[str, Any] = field(metadata=unit("", "source of the constants: url, date, grade, note"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the title and the number of fitted runs.

        Returns:
            Title, and figures by name.
        """
        runs = self.fit.get("runs")
        return f"Card of engine {self.name}", {"is": self.title[:120], "fitted to": f"{runs:,} runs" if runs else "nothing"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineTable(Tabular):
    """The engines of the catalogue, one row per engine and one column per constant."""

    SCHEMA: ClassVar[str] = "steptime.engines/2"

    engines: tuple[EngineCard, ...] = field(metadata=unit("", "one card per engine"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of engines and their names.

        Returns:
            Title, and figures by name.
        """
        return f"{len(self.engines)} engines", {"names": ", ".join(card.name for card in self.engines)}

    def columns(self) -> dict[str, Any]:
        """Return one row per engine.

        Returns:
            Columns by name, each with one value per engine.
        """
        names_and_titles: dict[str, Any] = {
            "name": [card.name for card in self.engines],
            "title": [card.title for card in self.engines],
        }
        return names_and_titles | {name: [card.constants[name] for card in self.engines] for name in CONSTANTS}


def engine_card(engine: Engine) -> EngineCard:
    """Summarize an engine: constants, and errors on runs left out of its fit.

    Args:
        engine: The engine.

    Returns:
        Constants, fit and source.
    """
    constants = {name: float(constant(engine, name)) for name in CONSTANTS}
    fit = {key: engine.fit[key] for key in ("runs", "vendors", "interval", "parameter_variance") if key in engine.fit}
    # The covariance has one row per fitted constant; its diagonal holds the variances.
    variances = zip(engine.fit.get("names", ()), engine.fit.get("covariance", ()), strict=True)
    fit |= {"deviation": {name: math.sqrt(row[i]) for i, (name, row) in enumerate(variances)}} if fit else {}
    return EngineCard(name=engine.name, title=engine.title, constants=constants, fit=fit, source=dict(engine.source))


def engine_table(engines: Iterable[Engine]) -> EngineTable:
    """Summarize several engines.

    Args:
        engines: The engines.

    Returns:
        One card per engine.
    """
    return EngineTable(engines=tuple(map(engine_card, engines)))
