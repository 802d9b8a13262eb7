"""How sure the figures of a candidate are: the 90 % ranges of its times and cost, from those of its steps (`uncertainty`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from steptime.hardware.unit_cost import usd_per_million
from steptime.number_checks import Number
from steptime.physics.engine import Engine
from steptime.physics.extrapolation import widening
from steptime.physics.uncertainty import REGIMES, factors, has_range, regime_of, with_variances
from steptime.planning.plan_problem import Candidate, Case, prefill_of, state_of
from steptime.planning.prefill_pool import Prefill
from steptime.planning.refinement import first_token_of, matched_rate
from steptime.planning.slo_probability import ways_of
from steptime.planning.steady_state import State

Range = tuple[float, float]


def candidate_ranges(
    case: Case, candidate: Candidate, state: State, prefill: Prefill | None, utilisation: Number
) -> dict[str, Range | None]:
    """Return the ranges of TPOT and TTFT [s], cost [USD per million output tokens] and throughput [tok/s per chip].

    Keys: `tpot_range`, `ttft_range`, `cost_range` and `throughput_range`; all None for the ideal.

    `state`, `prefill` and `utilisation` are what the engine predicts of the candidate, which keeps its batch and the use of
    its prompt queue whatever the times turn out to be. The pools of a disaggregated one err together: the cost is highest
    where both are slowest. Decode pools take the regime "decode", prefill pools "mixed". Ranges widen with the distance of the
    candidate from what was measured (`distance`).
    """
    if not has_range(case.engine):
        return dict.fromkeys(("tpot_range", "ttft_range", "cost_range", "throughput_range"))

    def times(engine: Engine) -> tuple[Number, ...]:
        of = replace(case, engine=engine)
        now = state_of(of, candidate, candidate.batch, max(candidate.chunk, 1))
        first = prefill_of(of, candidate, now.tpot)
        soon = first_token_of(of, candidate, now, first, utilisation)
        return (now.tpot, soon) if first is None else (now.tpot, soon, first.step.total)

    (tpot, tpot_variance), (ttft, ttft_variance), *reading = with_variances(times, case.engine)
    decoding = regime_of(state.input_share)
    waiting = decoding if prefill is None else REGIMES[1]
    ways = ways_of(case, candidate.layout, candidate.prefill_layout)
    given: dict[str, Any] = {"system": case.system, "wider": widening(ways)}
    slow = factors(case.engine, "tpot", decoding, variance=tpot_variance, **given)
    late = factors(case.engine, "ttft", waiting, variance=ttft_variance, **given | {"wider": widening(ways, "ttft")})
    read = factors(case.engine, "tpot", REGIMES[1], variance=reading[0][1], **given) if reading else slow
    slowed = (_slowed_rate(case, candidate, state, prefill, slow[side], read[side]) for side in (0, 1))
    fast, least = (float(rate * case.workload.output_tokens) for rate in slowed)
    return {
        "tpot_range": (float(tpot * slow[0]), float(tpot * slow[1])),
        "ttft_range": (float(ttft * late[0]), float(ttft * late[1])),
        "cost_range": (float(usd_per_million(case.rent, fast)), float(usd_per_million(case.rent, least))),
        "throughput_range": (least / case.chips, fast / case.chips),
    }


def distances_of(case: Case, candidate: Candidate) -> tuple[str, ...]:
    """Say in which ways a candidate is unlike what was measured."""
    return tuple(one.words for one, there in ways_of(case, candidate.layout, candidate.prefill_layout) if there)


def _slowed_rate(
    case: Case, candidate: Candidate, state: State, prefill: Prefill | None, decode: Number, reading: Number
) -> Number:
    """Requests per second where a token takes `decode` times as long, and a pass of a prefill pool `reading` times."""
    slowed = replace(state, rate=state.rate / decode)
    return matched_rate(case, candidate, slowed, prefill and replace(prefill, rate=prefill.rate / reading))[0]
