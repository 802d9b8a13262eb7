"""Plan energy: power of a deployment at its load, and the energy, electricity and carbon of its tokens.

A pool alternates between decode steps and mixed steps, so its power is their energy over their time. A prefill pool is busy for
its utilization; for the rest of the time, and for chips in no pool, a chip takes its static power. The power around the chips
is constant. `physics/chip_power.py` has the law and its source.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from steptime.hardware.energy import electricity_per_million
from steptime.hardware.system import System
from steptime.physics.chip_power import (
    EnergyCoefficients,
    StepWork,
    chip_joules,
    energy_coefficients,
    step_work,
    surrounding_watts,
)
from steptime.physics.compute_dtype import as_served
from steptime.physics.uncertainty import Z90
from steptime.planning.plan_problem import PlanProblem
from steptime.planning.plan_result import Plan, PlanEnergy, Pool
from steptime.planning.step_explanation import step_given
from steptime.units import MILLION

JOULES_PER_MEGAWATT_HOUR = 3.6e9


def plan_energy(case: PlanProblem, plan: Plan, *, price: float = math.nan, carbon: float = math.nan) -> PlanEnergy | None:
    """Return the energy of a plan at its load.

    Args:
        case: Problem of the plan, with its model, systems and engine.
        plan: A feasible plan.
        price: Price of electricity [USD/J].
        carbon: CO2 of the grid [g/kWh].

    Returns:
        The energy; None if the power of a chip is not known.
    """
    machines = [(case.system, plan.chips)]
    if case.prefill_system is not None:
        machines.append((case.prefill_system, plan.prefill_chips))
    coefficients = [energy_coefficients(system) for system, _ in machines]
    if not plan.feasible or any(entry is None for entry in coefficients):
        return None

    # One function per group of chips returns its power at a factor on the times of all steps.
    loads: list[tuple[int, Callable[[float], float]]] = []
    around = unused = 0.0
    for place, ((system, chips), energy) in enumerate(zip(machines, coefficients, strict=True)):
        assert energy is not None
        # The second system prefills; it may be the same as the first.
        pools = [pool for pool in plan.pools if len(machines) == 1 or (pool.role == "prefill") == (place == 1)]
        loads += [(pool.chips, _pool_power(case, plan, pool, system, energy)) for pool in pools]
        unused += (chips - sum(pool.chips for pool in pools)) * energy.static
        around += chips * surrounding_watts(system)

    def chip_power(factor: float) -> float:
        """Return the power of all chips, if all steps take `factor` times their time."""
        return unused + sum(count * power(factor) for count, power in loads)

    output = float(plan.requests_per_second * plan.workload.output_tokens)
    watts = chip_power(1.0)
    joules = (watts + around) / output
    limits = None
    if plan.throughput_range is not None:
        spread = max(entry.spread for entry in coefficients if entry is not None)
        margin = Z90 * spread * watts / (watts + around)
        factors = [plan.tokens_per_second_per_chip / end for end in plan.throughput_range]
        slow, fast = (math.log(factor * (chip_power(factor) + around) / (watts + around)) for factor in factors)
        limits = (joules * math.exp(-math.hypot(fast, margin)), joules * math.exp(math.hypot(slow, margin)))
    return PlanEnergy(
        chip_watts=watts / plan.total_chips,
        total_watts=watts + around,
        joules=joules,
        joules_range=limits,
        tokens_per_second_per_megawatt=MILLION / joules,
        rent_per_megawatt_hour=plan.usd_per_second / (watts + around) * JOULES_PER_MEGAWATT_HOUR,
        electricity_usd=float(electricity_per_million(joules, price)),
        carbon_grams=joules * MILLION * carbon / 3.6e6,
        carbon=carbon,
        coefficients=" and ".join(dict.fromkeys(entry.source for entry in coefficients if entry is not None)),
    )


def _pool_power(
    case: PlanProblem, plan: Plan, pool: Pool, system: System, energy: EnergyCoefficients
) -> Callable[[float], float]:
    """Return the function that gives the mean power of a chip of a pool at a factor on its times."""
    model, drafts = as_served(case.model, system, case.engine), plan.speculation.drafts
    share = pool.chunk_share if pool.mixed is not None else 0.0
    passes: list[tuple[float, float, float, StepWork]] = []
    for weight, mixed, step in ((1 - share, False, pool.step), (share, True, pool.mixed)):
        if step is not None and weight > 0:
            sizes = step_given(pool, plan.workload, mixed=mixed, drafts=drafts)
            verified, work = step_work(model, system, sizes, layout=pool.layout, engine=case.engine)
            # Passes of the drafter take the power of the pass that verifies.
            passes.append((weight, float(step.total), float(verified.total), work))
    is_busy = plan.utilisation if pool.role == "prefill" and math.isfinite(plan.utilisation) else 1.0

    def power(factor: float) -> float:
        seconds = sum(weight * total for weight, total, _, _ in passes) * factor
        joules = sum(
            weight * float(chip_joules(energy, work, verified * factor)) * total / verified
            for weight, total, verified, work in passes
        )
        return is_busy * joules / seconds + (1 - is_busy) * energy.static

    return power
