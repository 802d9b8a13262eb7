"""What there is to know about an engine: its constants and how far off it was."""

from __future__ import annotations

import math
from typing import Any

from steptime.physics.constants import CONSTANTS
from steptime.physics.engine import Engine, constant


def engine_card(engine: Engine) -> dict[str, Any]:
    """Return an engine's constants, and how far off it was on the runs that were left out of its fit."""
    constants = {name: constant(engine, name) for name in CONSTANTS}
    known = {key: engine.fit[key] for key in ("runs", "vendors", "interval", "parameter_variance") if key in engine.fit}
    variances = zip(engine.fit.get("names", ()), engine.fit.get("covariance", ()), strict=True)
    known |= {"deviation": {name: math.sqrt(row[i]) for i, (name, row) in enumerate(variances)}} if known else {}
    return {"name": engine.name, "title": engine.title, "constants": constants, "fit": known, "source": dict(engine.source)}
