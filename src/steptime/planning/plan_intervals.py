"""The 90 % ranges of a plan's times and cost, from those of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from steptime.hardware.rental_prices import usd_per_million
from steptime.number_checks import Number
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.engine import Engine
from steptime.physics.step import mixed_step
from steptime.physics.uncertainty import (
    REGIMES,
    Z90,
    Distance,
    factors,
    has_range,
    latency_regime,
    parameter_variance,
    range_shares,
    wait_regime,
    widening,
    with_slopes,
)
from steptime.planning.plan_problem import Candidate, PlanProblem, evaluate_prefill, evaluate_state
from steptime.planning.prefill_pool import Prefill
from steptime.planning.refinement import first_token_of, matched_rate
from steptime.planning.slo_probability import decode_widening, extrapolation_flags, pool_flags
from steptime.planning.steady_state import State, fresh_tokens, mean_context

Range = tuple[float, float]
# The layout with the best of several predictions delivers less than predicted: mean and standard deviation of the logarithm,
# over measured fronts of 8 models (docs/fronts.md, docs/fit_fronts.py).
OPTIMISM, OPTIMISM_DEVIATION = -0.007, 0.15
CHOICE_WORDS, PRIOR_WORDS = "choosing the best of several predictions", "an acceptance length of other models"


def candidate_ranges(
    case: PlanProblem, candidate: Candidate, state: State, prefill: Prefill | None, utilisation: Number
) -> dict[str, Any]:
    """Return the 90 % ranges of TPOT, TTFT, cost and throughput of a candidate.

    The candidate keeps its batch and the utilization of its prefill queue. The errors of the two pools of a
    disaggregated plan are equal: the cost is highest where both are slowest. Decode pools use the regime
    "decode", prefill pools "mixed". Ranges widen with the distance of the candidate from measured runs
    (`distance`), and with the range of an acceptance length that is a prior. Cost and throughput of a searched layout
    have the optimism of a choice as well (`chosen_range`).

    Args:
        case: Plan problem.
        candidate: Candidate.
        state: Predicted steady state of the candidate.
        prefill: Predicted prefill pool; None for an aggregated candidate.
        utilisation: Utilization of its prefill queue [share].

    Returns:
        `tpot_range` and `ttft_range` [s], `cost_range` [USD per million output tokens] and `throughput_range`
        [tok/s per chip]; all None for the ideal engine. `range_shares` says what the upper halves of the ranges of cost, speed
        and first token are made of (`uncertainty.range_shares`).
    """
    if not has_range(case.engine):
        return dict.fromkeys(("tpot_range", "ttft_range", "cost_range", "throughput_range"))

    def times(engine: Engine) -> tuple[Number, ...]:
        ideal_case = replace(case, engine=engine)
        now = evaluate_state(ideal_case, candidate, candidate.batch, max(candidate.chunk, 1))
        first = evaluate_prefill(ideal_case, candidate, now.tpot)
        soon = first_token_of(ideal_case, candidate, now, first, utilisation)
        return (now.tpot, soon) if first is None else (now.tpot, soon, first.step.total)

    # The variance of the constants adds to that of the candidate's own steps.
    (tpot, tpot_slopes), (ttft, ttft_slopes), *reading = with_slopes(times, case.engine)
    tpot_variance, ttft_variance = (parameter_variance(slopes, case.engine) for slopes in (tpot_slopes, ttft_slopes))
    decoding = latency_regime(state.input_share)
    waiting = wait_regime(ttft, _prompt_seconds(case, candidate))
    first_system = case.system if prefill is None else case.prefill.system
    of_decode, of_prefill = pool_flags(case, candidate.layout, candidate.prefill_layout, candidate.batch)
    # An acceptance length that is a prior is another independent error of the time per token.
    wider = decode_widening(of_decode, case.speculation)
    # Own runs narrow the range by the layout, load and context that they share.
    context = mean_context(case.workload)
    point = OperatingPoint(layout=candidate.layout, load=candidate.batch, context=context)
    slow = factors(case.engine, "tpot", decoding, variance=tpot_variance, system=case.system, wider=wider, point=point)
    prefill_layout = candidate.prefill_layout
    prefill_point = point if prefill_layout is None else OperatingPoint(layout=prefill_layout, context=context)
    arguments: dict[str, Any] = {"system": first_system, "point": point}
    late = factors(case.engine, "ttft", waiting, variance=ttft_variance, wider=widening(of_prefill, "ttft"), **arguments)
    arguments |= {"wider": widening(of_prefill), "point": prefill_point}
    prefill_variance = parameter_variance(reading[0][1], case.engine) if reading else 0.0
    prefill_factors = factors(case.engine, "tpot", REGIMES[1], variance=prefill_variance, **arguments) if reading else slow
    slowed = (_slowed_rate(case, candidate, state, prefill, slow[side], prefill_factors[side]) for side in (0, 1))
    fast, least = (float(rate * case.workload.output_tokens) for rate in slowed)
    # What makes the ranges as wide as they are. The pool that limits the rate decides for the cost.
    fewer, additional = case.speculation.log_range
    of_decode = (*of_decode, (Distance(words=PRIOR_WORDS, low=fewer, high=additional), np.asarray(additional > 0)))
    speed = range_shares(case.engine, tpot_slopes, of_decode, str(decoding))
    shares = {"cost": speed, "speed": speed}
    shares["first token"] = range_shares(case.engine, ttft_slopes, of_prefill, str(waiting), "ttft")
    if prefill is not None and reading and prefill.rate / prefill_factors[1] < state.rate / slow[1]:
        shares["cost"] = range_shares(case.engine, reading[0][1], of_prefill, REGIMES[1])
    if not case.pinned.sizes:
        rate = float(matched_rate(case, candidate, state, prefill)[0] * case.workload.output_tokens)
        shares["cost"] = chosen_shares(shares["cost"], rate, least)
        least, fast = chosen_range(rate, least, fast)
    return {
        "range_shares": shares,
        "tpot_range": (float(tpot * slow[0]), float(tpot * slow[1])),
        "ttft_range": (float(ttft * late[0]), float(ttft * late[1])),
        "cost_range": (float(usd_per_million(case.rent, fast)), float(usd_per_million(case.rent, least))),
        "throughput_range": (least / case.total_chips, fast / case.total_chips),
    }


def _prompt_seconds(case: PlanProblem, candidate: Candidate) -> Number:
    """Return the time of the prefill of a prompt alone, on each data-parallel rank [s]."""
    work, layout, system = case.workload, candidate.layout, case.system
    if candidate.prefill_layout is not None:
        layout, system = candidate.prefill_layout, case.prefill.system
    fresh = fresh_tokens(work)
    sizes: dict[str, Any] = {"prompts": layout.dp, "tokens": fresh, "prefix": max(work.input_tokens - fresh, 0)}
    return mixed_step(case.model, system, layout=replace(layout, replicas=1), engine=case.engine, parts=False, **sizes).total


def chosen_range(rate: float, low: float, high: float) -> Range:
    """Return the 90 % range of the throughput of a layout that was chosen because its prediction is the best.

    Args:
        rate: Predicted throughput [any unit].
        low: Lower end of its 90 % range.
        high: Upper end of its 90 % range.

    Returns:
        The range, moved by the mean optimism of a choice and widened by its deviation.

    >>> [round(end, 3) for end in chosen_range(100.0, 80.0, 120.0)]
    [72.203, 136.862]
    """
    low, high = widened(rate, (low, high), OPTIMISM_DEVIATION)
    return low * math.exp(-OPTIMISM), high * math.exp(-OPTIMISM)


def chosen_shares(shares: Mapping[str, float], rate: float, low: float) -> dict[str, float]:
    """Return what a range of the cost is made of, with the choice of the layout (`chosen_range`).

    Args:
        shares: Shares of the range without the choice, by source (`range_shares`).
        rate: Predicted throughput [any unit].
        low: Lower end of its 90 % range without the choice.

    Returns:
        Shares by source, the largest first; they add up to 1.

    >>> {name: round(share, 2) for name, share in chosen_shares({"a group": 1.0}, 100.0, 80.0).items()}
    {'choosing the best of several predictions': 0.55, 'a group': 0.45}
    """
    slower = math.log(rate / low) ** 2 if low > 0 else math.inf
    choice = (Z90 * OPTIMISM_DEVIATION) ** 2 / (slower + (Z90 * OPTIMISM_DEVIATION) ** 2)
    parts = {name: (1 - choice) * share for name, share in shares.items()} | {CHOICE_WORDS: choice}
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def widened(value: float, ends: Range, deviation: float) -> Range:
    """Return a 90 % range that contains another independent deviation.

    Args:
        value: Value in the range.
        ends: Range.
        deviation: Standard deviation of the logarithm of the value.

    Returns:
        The wider range.

    >>> [round(end, 3) for end in widened(1.0, (0.8, 1.25), 0.3)]
    [0.582, 1.719]
    """
    below, above = (math.hypot(math.log(end / value), Z90 * deviation) if end > 0 else math.inf for end in ends)
    return value * math.exp(-below), value * math.exp(above)


def list_distances(case: PlanProblem, candidate: Candidate) -> tuple[str, ...]:
    """List in which ways a candidate differs from measured runs.

    Args:
        case: Plan problem.
        candidate: Candidate.

    Returns:
        One phrase per way.
    """
    prior = (PRIOR_WORDS,) if case.speculation.acceptance_range is not None else ()
    flags = extrapolation_flags(case, candidate.layout, candidate.prefill_layout, candidate.batch)
    return (*(flag.words for flag, applies in flags if applies), *(prior if has_range(case.engine) else ()))


def _slowed_rate(
    case: PlanProblem, candidate: Candidate, state: State, prefill: Prefill | None, decode: Number, reading: Number
) -> Number:
    """Return the requests/s where decode and prefill take a multiple of their time."""
    slowed = replace(state, rate=state.rate / decode)
    return matched_rate(case, candidate, slowed, prefill and replace(prefill, rate=prefill.rate / reading))[0]
