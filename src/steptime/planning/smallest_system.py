"""The smallest system that holds a model: what a person would rent for it."""

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

STEP_PROMPT_TOKENS: Final = 256  # prompt tokens of a step
REQUEST: Final = 8192  # tokens of the request that must fit beside the weights, or the model's context where that is shorter


def smallest_system(model: Model, systems: Iterable[System]) -> tuple[System, int] | None:
    """Return the system, and the chips of it, that hold `model` and one request for the least USD an hour.

    A request of 8,192 tokens (or of the model's context) must fit beside the weights, in some layout that the system's usual
    engine runs. Chips are counted in powers of two up to the usual deployment. Systems without a known rent come only where no
    other holds the model, the fewest chips first, then the least memory.
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
    """Return what comes first: the lowest rent, fewest chips, least memory, highest bandwidth; systems without a rent last."""
    rent = chips * float(system.rent.typical) if has_rent(system.rent) else math.inf
    return rent, chips, chips * float(system.chip.capacity), -float(system.chip.hbm.bandwidth)


def _holds(model: Model, system: System, chips: int) -> bool:
    """Whether some layout leaves room for a request, and for the prompt tokens that a step reads of it."""
    context = min(REQUEST, model.max_context)
    request = Workload(input_tokens=1, output_tokens=1)
    case = PlanProblem(model=model, system=system, workload=request, slo=Slo(), chips=chips, engine=engine_for(system, None))
    layouts = fitting(case)
    if not layouts:
        return False
    table = stacked(layouts)
    bytes_besides_weights = cache_per_sequence(model, context, table) + activations_per_chip(model, STEP_PROMPT_TOKENS, table)
    return bool(np.any(weights_per_chip(model, table) + bytes_besides_weights <= prefill_room(case)))
