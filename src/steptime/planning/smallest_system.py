"""The smallest system on which a model fits: what a person would rent for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from steptime.hardware.rental_prices import has_rent
from steptime.hardware.system import System
from steptime.models.model import Model, weight_bytes
from steptime.physics.chip_memory import activations_per_chip, cache_per_sequence, weights_per_chip
from steptime.physics.engine import engine_for
from steptime.physics.layout import stacked
from steptime.planning.plan_problem import PlanProblem
from steptime.planning.plan_search import fitting, prefill_room
from steptime.planning.workload import Slo, Workload

# Prefill tokens of a step.
STEP_PROMPT_TOKENS: Final = 256
# Tokens of the request that must fit in addition to the weights, or the model's context where that is shorter.
REQUEST: Final = 8192


def smallest_system(model: Model, systems: Iterable[System]) -> tuple[System, int] | None:
    """Return the cheapest system on which a model and one request fit.

    A request of 8,192 tokens (or of the model's context) must fit in addition to the weights. The layout must
    be one that the system's usual engine runs. Chips are powers of two up to the usual deployment. Systems
    without a known rent come last, sorted by chips and then by memory.

    Args:
        model: Model.
        systems: Systems to compare.

    Returns:
        The system and the number of chips; None where no system is large enough.
    """
    need = weight_bytes(model)
    tries = ((_order(system, chips), system, chips) for system in systems for chips in _counts(system))
    for _, system, chips in sorted(tries, key=lambda entry: entry[0]):
        if chips * system.chip.capacity > need and _holds(model, system, chips):
            return system, chips
    return None


def _counts(system: System) -> Iterator[int]:
    yield from (2**n for n in range(system.chips.bit_length()) if 2**n < system.chips)
    yield system.chips


def _order(system: System, chips: int) -> tuple[float, ...]:
    """Return the sort key: rent, chips, memory, bandwidth; no known rent sorts last."""
    rent = chips * float(system.rent.typical) if has_rent(system.rent) else math.inf
    return rent, chips, chips * float(system.chip.capacity), -float(system.chip.hbm.bandwidth)


def _holds(model: Model, system: System, chips: int) -> bool:
    """Whether some layout leaves room for a request and the prefill tokens of a step."""
    context = min(REQUEST, model.max_context)
    request = Workload(input_tokens=1, output_tokens=1)
    case = PlanProblem(model=model, system=system, workload=request, slo=Slo(), chips=chips, engine=engine_for(system, None))
    layouts = fitting(case)
    if not layouts:
        return False
    table = stacked(layouts)
    bytes_besides_weights = cache_per_sequence(model, context, table) + activations_per_chip(model, STEP_PROMPT_TOKENS, table)
    return bool(np.any(weights_per_chip(model, table) + bytes_besides_weights <= prefill_room(case)))
