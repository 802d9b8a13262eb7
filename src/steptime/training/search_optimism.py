"""Search optimism: how much faster a searched layout looks than the best measured one.

The fastest of thousands of predictions is one whose errors are lucky, and few runs have the best layout. `docs/fit_search.py`
searches a layout for every measured job without its layout, with constants that were fitted without the model of the job.
The logarithm of measured over predicted seconds is the sum of a value and of deviations. The value is that of dense models or
of experts; the deviations are those of the stack and the chip architecture. Where few models were measured, these are pulled to
zero (ridge regression).
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.training.training_stack import DENSE, SPARSE, TrainingEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptimism:
    """Correction of a searched layout.

    factor: on the seconds of the layout, at least 1. high: factor on corrected seconds that 95 % of the jobs are below.
    """

    factor: float = 1.0
    high: float = 1.0


@cache
def _fitted() -> dict[str, Any]:
    return tomllib.loads((resources.files("steptime") / "data" / "training_search.toml").read_text(encoding="utf-8"))


def searched_axes(model: Model) -> tuple[str, ...]:
    """Return the axes without which a layout counts as searched.

    Args:
        model: Model to train.

    Returns:
        Field names of `TrainingLayout`.
    """
    return ("tp", "pp", "ep") if model.routed else ("tp", "pp")


def search_optimism(engine: TrainingEngine, system: System, *, experts: bool) -> SearchOptimism:
    """Return the correction of a searched layout.

    Args:
        engine: Training stack.
        system: Chips and links.
        experts: Whether the model has routed experts.

    Returns:
        Correction; none for the stack "ideal", which is a bound.
    """
    if engine.name == "ideal":
        return SearchOptimism()
    fitted, kind = _fitted(), SPARSE if experts else DENSE
    architecture = fitted["chips"].get(system.chip.name, "")
    logarithm = fitted["kinds"][kind] + fitted["stacks"].get(engine.name, 0.0) + fitted["architectures"].get(architecture, 0.0)
    return SearchOptimism(factor=math.exp(max(logarithm, 0.0)), high=float(fitted["high"][kind]))
