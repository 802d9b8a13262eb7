"""The planner: the cheapest deployment of a model on a system within limits.

`plan` searches every legal layout, batch and chunk size, aggregated and disaggregated (`plan_search`). It
keeps the candidates within the limits and refines the cheapest (`refinement`). It then computes how much
cheaper a token would be on better hardware (`elasticity`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, InputError, RangeError, UnitError, UnknownName, expect
from steptime.hardware.energy import read_carbon, read_electricity
from steptime.hardware.system import System
from steptime.hardware.what_if import is_single
from steptime.models.model import Model, stored_formats
from steptime.models.model_loading import ModelLike
from steptime.number_checks import MOST_CHIPS, positive, single, whole_number
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.chunked_evaluation import keep_memory
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import IDEAL, Engine, anchored, at_workload, bare, model_and_system, serving_engine
from steptime.physics.engine_rules import has_pools, most_sequences
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import has_range
from steptime.planning.elasticity import LOOKED_AT, binding, relaxed, worths
from steptime.planning.evidence import ANY, EVIDENCE, MEASURED, PUBLISHED, check_evidence
from steptime.planning.fleet import Fleet, replicas_for, replicas_within, size_fleet
from steptime.planning.launch_facts import what_is_served
from steptime.planning.plan_alternatives import (
    alternative_sentence,
    best_drafting,
    by_saving,
    evaluate_alternative,
    list_choices,
)
from steptime.planning.plan_energy import plan_energy
from steptime.planning.plan_figures import Selection, bound_point, delivered, front_points, plan_point, shown_batch
from steptime.planning.plan_messages import blame_choices, chunk_without_effect, does_not_fit, list_warnings, unreachable, why
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    Pinned,
    PlanProblem,
    evaluate_state,
    with_evidence,
)
from steptime.planning.plan_result import Alternative, Plan, Point, SingleSystem, chosen_point, median_and_range
from steptime.planning.plan_search import absent_because, fitting, ranked, rows_within, search
from steptime.planning.refinement import FINALISTS, best
from steptime.planning.session_hits import SessionCase
from steptime.planning.slo_probability import check_percentile, check_sure, point, target_levels
from steptime.planning.steady_state import mean_context
from steptime.planning.two_systems import (
    LikelyPair,
    as_single_system,
    check_two_systems,
    likely_pair,
    likely_prefill_chips,
    rent_or_chips,
    single_system_problems,
    with_prefill_system,
)
from steptime.units import counted, in_digits, parse, show
from steptime.workload.workload import AUTO, MOST_DRAFTS, Slo, Workload, check_asked, choose_speculation, drafting_warnings

MODES = (AGGREGATED, DISAGGREGATED)
# Parallel sizes that the user may choose.
PINNED_SIZES = ("tp", "pp", "dp", "ep", "cp")
MOST_SLOTS = 1 << 20
# Reason of a rough search, or of one among layouts of better evidence, that found no layout.
NO_LAYOUT: Final = "no such layout"
# Smallest and largest chunk of the user [tokens].
OWN_CHUNKS = (16, 1 << 20)
# Relative gain below which the cheapest layout of all is not worth a line.
ACCURACY = 0.015
# Most scale-up domains that are tried with equal layouts; with more, transfers across domains cost little.
MOST_ALIKE = 4
# Utilization of a single replica below which a warning says that fewer chips may serve the rate.
HALF_USED = 0.5
# Factor on limits which other draws of the requests of a plan may reach.
OTHER_DRAWS = 1.1
# Candidates that are tuned where closed forms alone choose: rates on a grid of batches order them within some 3 %.
TUNED_ALONE = 12
# Factor on the limit on TPOT by which closed forms may be slower than a simulation, as with short outputs.
SLACK = 1.25
# Most repeated searches for a plan with a probability, and the factor below the limit that each one aims at.
TURNS, CLOSER = 6, 0.998


class DoesNotFit(Impossible):
    """The model does not fit the chips; the message says how many chips are enough."""


def plan(
    model: ModelLike,
    system: SystemLike,
    workload: Workload,
    slo: Slo | None = None,
    *,
    chips: int | None = None,
    engine: Engine | str | None = None,
    modes: str | tuple[str, ...] = MODES,
    electricity: str | float | None = None,
    carbon: str | float | None = None,
    alternatives: bool = True,
    elasticities: bool = True,
    front: bool = True,
    diagnostics: bool = True,
    quick: bool = False,
    sure: float | None = None,
    drafts: int | str | None = None,
    acceptance: float | None = None,
    anchor: Anchors | Anchor | None = None,
    percentile: str = "p90",
    evidence: str = MEASURED,
    sizes: Mapping[str, int] | None = None,
    chunk: int | None = None,
    max_num_seqs: int | None = None,
    rate: float | None = None,
    spare: int = 0,
    power_cap: float | str | None = None,
    prefill_system: SystemLike | None = None,
    prefill_chips: int | tuple[int, ...] | None = None,
    turns: SessionCase | None = None,
) -> Plan:
    """Return the cheapest deployment of a workload within limits.

    Limits that no layout meets are not an error: the result is a Plan with `feasible=False` and the reason. The cheapest
    layouts of a search serve drawn requests one by one, and the plan reports their results. Without numba, means from
    closed forms stand for percentiles.

    Args:
        model: Model, or its name as for `load_model`.
        system: System, or its name as for `load_system`.
        workload: Requests: input and output tokens, cached share.
        slo: Limits on TTFT and TPOT [s]; by default no limits.
        chips: Number of chips; by default one scale-up domain.
        engine: Engine or its name. "ideal" gives the physical bound; by default `engine_for` chooses a
            real one.
        modes: "aggregated", "disaggregated", or a tuple of both.
        electricity: Price of electricity, as "0.08/kWh" or in USD/J.
        carbon: CO2 of the grid, as a number in g/kWh or a grid of `hardware.energy.GRIDS`, such as "germany".
        alternatives: Evaluate other formats, chips and modes, which takes about a third of the search time.
        elasticities: Evaluate the effect of each hardware figure, which takes longer than the search.
        front: Compute the front of speed and cost; without it the search skips candidates outside the limits.
        diagnostics: Compute the runner-up, the same layout without losses, and the binding limits.
        quick: Simulate few layouts, in a quarter of the time. Costs are mostly within 6 % of those of the whole search.
        sure: Probability of meeting each limit, 0.5 to 0.99; by default limits hold on average, which a
            machine may miss half the time.
        drafts: Speculative tokens per step from the model's drafter or its own layers, or "auto" for the best
            number; by default none, as in engines.
        acceptance: Mean acceptance length [tokens per step], 1 to drafts + 1; by default a measured
            value, or the prior of the drafter.
        anchor: Your own runs (`st.load_anchor`) of this model, system and engine, which correct the times.
        percentile: Percentile of requests that meets the limits: "mean", "p50", "p90", "p95" or "p99".
        evidence: "measured" prefers kinds of layouts that were measured, then published ones; "published" prefers
            these; "any" takes the cheapest of all.
        sizes: Your own parallel sizes of every pool, such as {"tp": 8}; the others are searched.
        chunk: Your own prompt tokens per data-parallel rank in a mixed step.
        max_num_seqs: Your own slots per replica.
        rate: Requests to serve [requests/s]; the plan then has a `fleet` of whole replicas on whole hosts.
        spare: Further replicas of that fleet.
        power_cap: Power [W, or a text such as "1MW"] of all hosts. Without a rate, the fleet is the largest within it.
        prefill_system: System of the prefill pool, if it is another one; `system` then only decodes.
        prefill_chips: Number of chips of that system, or the numbers to try, the likeliest first (`likely_prefill`); by default
            the whole hosts with the lowest cost per token.
        turns: Sessions with which finalists are confirmed, as `plan_sessions` gives them.

    Returns:
        The plan.

    Raises:
        DoesNotFit: The weights do not fit the chips in any layout.
        RangeError: An argument is out of range.
    """
    started = time.perf_counter()
    keep_memory()
    modes = (modes,) if isinstance(modes, str) else modes
    expect("modes", modes, (tuple, list), "a tuple of " + " and ".join(MODES))
    if not modes or set(modes) - set(MODES):
        raise RangeError(f"modes: must be {' or '.join(MODES)}, got {', '.join(map(str, modes)) or 'nothing'}")
    slo = Slo() if slo is None else slo
    expect("a workload", workload, Workload, "a Workload, such as Workload(input_tokens=8192, output_tokens=1024)")
    expect("a pair of limits", slo, Slo, "a Slo, such as Slo(tpot=0.02, ttft=2)")
    price, grid_carbon = _read_energy(electricity, carbon)
    check_limits(sure, slo)
    check_asked(drafts, acceptance)
    check_percentile(percentile)
    check_evidence(evidence)
    pinned = _pinned(sizes, chunk, max_num_seqs)
    if prefill_system is not None:
        modes = check_two_systems(modes, rate)
        if power_cap is not None:
            raise RangeError("power_cap: sizes fleets of one system; leave out --power-cap, or --prefill-system")
    elif prefill_chips is not None:
        raise RangeError(
            "prefill_chips: needs another system for prefill; give prefill_system too (--prefill-system), or leave it out"
        )
    if chunk is not None and AGGREGATED not in modes:
        raise RangeError(
            f"chunk: separate pools prefill whole prompts, got {chunk:,}; leave it out, or allow one pool (--mode)"
        )
    rate = None if rate is None else float(positive("rate", rate, "requests/s"))
    spare = whole_number("spare", spare, minimum=0, maximum=MOST_CHIPS)
    cap = math.inf if power_cap is None else _read_power(power_cap)
    if spare and rate is None and power_cap is None:
        raise RangeError("spare: only a fleet has spare replicas; give a rate too (--rate), or a power (--power-cap)")
    model, system = model_and_system(model, system, engine)
    problem = _make_problem(model, system, workload, slo, percentile, chips, engine, anchor)
    modes = _modes_of_engine(problem.engine, modes)
    if prefill_system is not None:
        problem = with_prefill_system(problem, model, resolve_system(prefill_system), prefill_chips)
    case = replace(
        problem,
        sure=sure,
        front=front,
        diagnostics=diagnostics,
        rough=quick,
        pinned=pinned,
        turns=turns,
    )
    _check_lengths(case, chunk)
    layouts = fitting(case)
    if not layouts:
        raise _no_layout(case)
    if prefill_system is not None:
        _check_prefill_fits(case)
    case = _choose_speculation(case, modes, layouts, drafts, acceptance)
    if prefill_system is not None:
        best_plan = _plan_on_two_systems(case, evidence, price, prefill_chips)
    else:
        effects = {"alternatives": alternatives, "elasticities": elasticities}
        best_plan, kind = _with_most_evidence(case, evidence, modes, price, **effects)
        best_plan = _with_cheaper_plans(case, best_plan, kind, evidence, modes, price)
    best_plan = replace(best_plan, energy=plan_energy(case, best_plan, price=price, carbon=grid_carbon))
    return replace(_with_fleet(case, best_plan, rate, spare, cap), search_seconds=time.perf_counter() - started)


def likely_prefill(
    model: ModelLike,
    system: SystemLike,
    prefill_system: SystemLike,
    workload: Workload,
    slo: Slo,
    *,
    chips: int | None = None,
    engine: Engine | str | None = None,
    percentile: str = "p90",
    evidence: str = MEASURED,
) -> LikelyPair:
    """Return the lowest cost per request of pools on two systems by closed forms, which rank pairs before they are planned.

    Args:
        model: Model.
        system: System that decodes.
        prefill_system: System of the prefill pool.
        workload: Requests.
        slo: Limits at the percentile.
        chips: Chips that decode.
        engine: Engine.
        percentile: Percentile of the limits.
        evidence: Evidence that layouts must have.

    Returns:
        The cost, and the likely numbers of prefill chips.

    Raises:
        InputError: The two systems cannot exchange KV caches.
    """
    model, system = model_and_system(model, system, engine)
    problem = _make_problem(model, system, workload, slo, percentile, chips, engine, None)
    problem = with_prefill_system(problem, model, resolve_system(prefill_system), None)
    return likely_pair(replace(problem, front=False), evidence)


def likely_rate(
    model: ModelLike,
    system: SystemLike,
    workload: Workload,
    slo: Slo,
    *,
    chips: int,
    engine: Engine | str | None = None,
    percentile: str = "p90",
    sure: float | None = None,
) -> float:
    """Return about the highest rate of a quick plan, by closed forms, which say which plans are worth their simulation.

    Args:
        model: Model.
        system: System.
        workload: Requests.
        slo: Limits at the percentile.
        chips: Number of chips.
        engine: Engine.
        percentile: Percentile of the limits.
        sure: Probability of meeting each limit.

    Returns:
        Requests/s; 0 where no layout fits or meets the limits.
    """
    model, system = model_and_system(model, system, engine)
    problem = _make_problem(model, system, workload, slo, percentile, chips, engine, None)
    case = replace(problem, sure=sure, rough=True, front=False, diagnostics=False)
    _check_lengths(case, None)
    modes = _modes_of_engine(case.engine, MODES)
    for kind in EVIDENCE if has_range(case.engine) else (ANY,):
        of_kind = with_evidence(case, kind)
        subjects = [(of_kind, modes), (_symmetric_problem(of_kind, modes), (DISAGGREGATED,))]
        rates = [
            float(np.max(table.rate[rows]))
            for subject, its_modes in subjects
            if subject is not None
            for table in search(subject, its_modes, fitting(subject))
            for level in subject.levels
            if len(rows := rows_within(replace(subject, slo=level), table))
        ]
        if rates:
            return max(rates)
    return 0.0


def _with_cheaper_plans(
    case: PlanProblem, best_plan: Plan, kind: str, evidence: str, modes: tuple[str, ...], price: float
) -> Plan:
    """Return a plan with what layouts of less evidence than `kind`, and other choices than the user's, would change."""
    if best_plan.feasible and kind != ANY and case.diagnostics:
        cheapest = best_plan
        # A rough search over all layouts has few finalists, and may miss cheaper published ones.
        for level in EVIDENCE[EVIDENCE.index(kind) + 1 :]:
            least = cheapest.requests_per_second
            wider = with_evidence(case, level, rough=level == ANY, at_least=least, front=False, diagnostics=False)
            candidate = _of_evidence(wider, modes, price, alternatives=False, elasticities=False)
            if candidate.feasible and candidate.requests_per_second > least:
                cheapest = candidate
        is_unlike = EVIDENCE.index(cheapest.evidence) > EVIDENCE.index(best_plan.evidence)
        if is_unlike and cheapest.requests_per_second > best_plan.requests_per_second * (1 + ACCURACY):
            best_plan = replace(best_plan, unmeasured=chosen_point(cheapest))
    if case.pinned != Pinned() and (case.diagnostics or not best_plan.feasible):
        best_plan = _judge_choices(case, best_plan, evidence, modes, price)
    return best_plan


def _check_prefill_fits(case: PlanProblem) -> None:
    """Raise an error where no layout of the prefill pool holds the weights."""
    if fitting(case.prefill):
        return
    problem = _no_layout(case.prefill)
    raise type(problem)(f"prefill pool: {str(problem).replace('--chips', '--prefill-chips')}")


def _plan_on_two_systems(case: PlanProblem, evidence: str, price: float, prefill_chips: int | tuple[int, ...] | None) -> Plan:
    """Return the cheapest plan whose pools are on two systems, with what each system costs alone."""
    effects = {"alternatives": False, "elasticities": False}
    modes = (DISAGGREGATED,)
    counts = prefill_chips if isinstance(prefill_chips, tuple) else (case.prefill_chips,)
    if prefill_chips is None:
        counts = tuple(likely_prefill_chips(case, evidence))
    case = replace(case, prefill_chips=counts[0])
    best_plan, kind = _with_most_evidence(case, evidence, modes, price, **effects)
    for count in counts[1:]:
        # Another number of chips must serve more for its rent. The first runs of its candidates are at that rate.
        sized = replace(case, prefill_chips=count)
        enough = best_plan.requests_per_second * rent_or_chips(sized) / rent_or_chips(case) if best_plan.feasible else 0.0
        sized_plan, sized_kind = _with_most_evidence(replace(sized, at_least=enough), evidence, modes, price, **effects)
        if sized_plan.feasible and sized_plan.requests_per_second > enough:
            best_plan, kind, case = sized_plan, sized_kind, sized
    if not (case.diagnostics and best_plan.feasible):
        return best_plan
    singles = []
    for problem in single_system_problems(case):
        reason = f"{case.model.name} does not fit {problem.chips} chips"
        if fitting(problem):
            single, _ = _with_most_evidence(problem, kind, MODES, price, **effects)
            if single.feasible:
                singles.append(as_single_system(single))
                continue
            reason = single.reason
        rent = float(problem.rent)
        singles.append(SingleSystem(system=problem.system.name, chips=problem.chips, usd_per_second=rent, reason=reason))
    return replace(best_plan, single_systems=tuple(singles))


def _read_energy(electricity: str | float | None, carbon: str | float | None) -> tuple[float, float]:
    """Return the price of electricity [USD/J] and the CO2 of the grid [g/kWh]; NaN where they are not given."""
    return (
        math.nan if electricity is None else read_electricity(electricity),
        math.nan if carbon is None else read_carbon(carbon),
    )


def _read_power(power: float | str) -> float:
    """Return a power in W; raise an error if the value is not a power."""
    try:
        watts = parse(power, "W") if isinstance(power, str) else power
    except UnitError as problem:
        raise UnitError(f"power_cap: {problem}") from None
    return float(positive("power_cap", watts, "W"))


def _pinned(sizes: Mapping[str, int] | None, chunk: int | None, max_num_seqs: int | None) -> Pinned:
    """Return the user's own choices; raise RangeError where one is out of range."""
    given_sizes = dict(sizes or {})
    unknown = set(given_sizes) - set(PINNED_SIZES)
    if unknown:
        raise UnknownName("parallel size", min(unknown), PINNED_SIZES, f"Known: {', '.join(PINNED_SIZES)}.")
    return Pinned(
        sizes=tuple(
            (name, whole_number(name, given_sizes[name], maximum=MOST_CHIPS)) for name in PINNED_SIZES if name in given_sizes
        ),
        chunk=None if chunk is None else whole_number("chunk", chunk, minimum=OWN_CHUNKS[0], maximum=OWN_CHUNKS[1]),
        max_num_seqs=None if max_num_seqs is None else whole_number("max_num_seqs", max_num_seqs, maximum=MOST_SLOTS),
    )


def _modes_of_engine(engine: Engine, modes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modes that an engine can start; raise RangeError for none."""
    if has_pools(engine.name):
        return modes
    if AGGREGATED not in modes:
        raise RangeError(
            f"{engine.name} has no separate pools, because its servers cannot pass a KV cache on; use --mode aggregated "
            "without --prefill-system, or another engine"
        )
    return (AGGREGATED,)


def _check_lengths(case: PlanProblem, chunk: int | None) -> None:
    """Raise RangeError where the user's slots exceed those of the engine, or the chunk exceeds all slots."""
    slots, limit = case.pinned.max_num_seqs, most_sequences(case.engine.name)
    if slots is not None and slots > limit:
        raise RangeError(f"max_num_seqs: {case.engine.name} serves at most {limit:,.0f} sequences at a time, got {slots:,}")
    if chunk is not None and chunk > (most_tokens := case.model.max_context * case.pinned.slots):
        raise RangeError(f"chunk: must be at most {most_tokens:,.0f} tokens, max_num_seqs times the context, got {chunk:,}")


def _judge_choices(case: PlanProblem, deployment: Plan, evidence: str, modes: tuple[str, ...], price: float) -> Plan:
    """Return a plan with what the user's choices cost, prevent, or have no effect on."""

    def best_with(choices: Pinned, allowed_modes: tuple[str, ...] = modes) -> Plan:
        problem = replace(case, pinned=choices, front=False, diagnostics=False)
        return _with_most_evidence(problem, evidence, allowed_modes, price, alternatives=False, elasticities=False)[0]

    free = best_with(Pinned())
    deployment = replace(deployment, free=chosen_point(free) if free.feasible else None)
    if not deployment.feasible:
        return replace(deployment, reason=blame_choices(case.pinned, best_with) if free.feasible else free.reason)
    if case.pinned.chunk is None or deployment.mode == AGGREGATED:
        return deployment
    warning = chunk_without_effect(deployment, best_with(case.pinned, (AGGREGATED,)))
    return replace(deployment, warnings=(warning, *deployment.warnings))


def _no_layout(case: PlanProblem) -> InputError:
    """Return why there is no layout: the weights do not fit, or none has the user's own sizes."""
    free = replace(case, pinned=Pinned())
    if not case.pinned.sizes or not fitting(free):
        return DoesNotFit(does_not_fit(free))
    layout = Layout(**dict(case.pinned.sizes))
    words = ", ".join(f"{name} {size}" for name, size in case.pinned.sizes)
    why = absent_because(case, layout)
    return RangeError(f"no layout with {words} can serve this model: {why[0] if why else 'other sizes must be given too'}")


def _with_fleet(case: PlanProblem, deployment: Plan, rate: float | None, spare: int, power_cap: float) -> Plan:
    """Return a plan with its fleet; not feasible, with the reason, where the power does not supply the fleet.

    Without a rate and a power there is no fleet.
    """
    if not deployment.feasible or (rate is None and math.isinf(power_cap)):
        return deployment
    try:
        fleet = _fleet(case, deployment, rate, spare, power_cap)
    except Impossible as problem:
        # The plan of one replica stays, as data.
        return replace(deployment, feasible=False, reason=str(problem))
    warnings = deployment.warnings
    if fleet.replicas == 1 and fleet.utilisation < HALF_USED and fleet.replica_chips > deployment.served.host_chips:
        warnings = (
            f"at this rate, less than half of the {fleet.replica_chips} chips of a replica is used: fewer chips may cost less "
            "(--chips; steptime compare --chips any tries several numbers)",
            *warnings,
        )
    return replace(deployment, fleet=fleet, warnings=warnings)


def _fleet(case: PlanProblem, deployment: Plan, rate: float | None, spare: int, power_cap: float) -> Fleet:
    """Return the fleet of a plan: each replica of one pool is a unit, separate pools are one unit.

    Without a rate it is the largest fleet within the power.

    Raises:
        Impossible: The power does not supply the replicas.
    """
    single = len(deployment.pools) == 1
    count = int(deployment.pools[-1].layout.replicas) if single else 1
    served = deployment.requests_per_second / count
    sizes: dict[str, Any] = {
        "replica_chips": sum(pool.chips for pool in deployment.pools) // count,
        "host_chips": deployment.served.host_chips,
        "chip_watts": float(case.system.power.watts),
    }
    replicas = replicas_within(power_cap, **sizes) if math.isfinite(power_cap) else math.inf
    if replicas <= spare:
        supplied = counted(int(replicas), "replica")
        raise Impossible(f"{show(power_cap, 'W')} supply {supplied}, all of them spare (--spare {spare}); raise --power-cap")
    least = _fewest_replicas(case, deployment, rate, served, count) if rate is not None and case.turns is None else 1
    fleet = size_fleet(
        (replicas - spare) * served if rate is None else rate, served=served, chip_rent=float(case.system.rent.typical),
        output_tokens=float(case.workload.output_tokens), spare=spare, least=least, **sizes,
    )  # fmt: skip
    if fleet.replicas + spare > replicas:
        supplied, served_at_most = counted(int(replicas), "replica"), in_digits((replicas - spare) * served)
        raise Impossible(
            f"{show(power_cap, 'W')} supply {supplied}, which serve at most {served_at_most} requests/s of "
            f"{in_digits(fleet.rate)}; raise --power-cap, or lower --rate"
        )
    return replace(fleet, power_cap=power_cap if math.isfinite(power_cap) else math.nan)


def _fewest_replicas(case: PlanProblem, deployment: Plan, rate: float, served: float, count: int) -> int:
    """Return the fewest replicas that serve a rate within the limits, at most the `count` of the plan.

    A queue before few replicas has longer waits than one before many. Where a fleet has fewer replicas than the plan, drawn
    requests show how many it needs.
    """
    low, high = replicas_for(rate, served), count
    if not has_simulator():
        return low
    from steptime.planning.plan_replay import replay_pools

    (pool, *_), limits = deployment.pools, case.limits
    slo = Slo(ttft=limits.ttft * OTHER_DRAWS, tpot=limits.tpot * OTHER_DRAWS)
    while low < high:
        middle = (low + high) // 2
        run = replay_pools(
            case.model, case.system, case.workload, slo, (replace(pool, layout=replace(pool.layout, replicas=middle)),), rate,
            engine=case.engine, percentile=case.percentile, tries=1, speculation=case.speculation,
        )  # fmt: skip
        low, high = (low, middle) if run.good else (middle + 1, high)
    return low


def _with_most_evidence(
    case: PlanProblem, evidence: str, modes: tuple[str, ...], price: float, **effects: bool
) -> tuple[Plan, str]:
    """Return the cheapest plan of the first level of evidence that has one, and the level; the last level where none has."""
    # The ideal engine is a bound over all layouts.
    is_ranked = has_range(case.engine)
    for kind in EVIDENCE[EVIDENCE.index(evidence if is_ranked else ANY) :]:
        best_plan = _of_evidence(with_evidence(case, kind), modes, price, **effects)
        if best_plan.feasible:
            break
    if evidence == ANY and is_ranked:
        # Mean waits favour odd layouts, which may keep fewer requests within a percentile than usual ones do.
        usual = _of_evidence(with_evidence(case, PUBLISHED, front=False), modes, price, **effects)
        if usual.feasible and not (best_plan.feasible and best_plan.requests_per_second >= usual.requests_per_second):
            best_plan = replace(usual, front=best_plan.front)
    return best_plan, kind


def _of_evidence(case: PlanProblem, modes: tuple[str, ...], price: float, *, alternatives: bool, elasticities: bool) -> Plan:
    """Return the cheapest plan among layouts of the evidence of a problem, with the probability of its limits."""
    solve = _planned if case.sure is None or not has_range(case.engine) else _sure
    best_plan = solve(case, modes, fitting(case), price, alternatives=alternatives, elasticities=elasticities)

    # Equal domains keep KV caches inside their domain; they may serve more although some chips stay idle.
    fewer = _symmetric_problem(case, modes)
    if fewer is not None:
        subject = fewer, (DISAGGREGATED,), fitting(fewer), price
        disaggregated_plan = solve(*subject, alternatives=False, elasticities=elasticities)
        if disaggregated_plan.requests_per_second > best_plan.requests_per_second:
            best_plan = disaggregated_plan
            if alternatives:
                best_plan = solve(*subject, alternatives=True, elasticities=elasticities)
    return replace(best_plan, sure=case.sure)


def check_limits(sure: float | None, slo: Slo) -> None:
    """Check a probability and its limits.

    Args:
        sure: Probability of meeting each limit, or None.
        slo: Limits.

    Raises:
        RangeError: The probability is out of range, or there is no limit.
    """
    check_sure(sure)
    if sure is not None and slo == Slo():
        raise RangeError("sure: is the probability of meeting limits and needs a limit, got none; set --speed or --ttft (Slo)")


def _choose_speculation(
    case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], drafts: int | str | None, acceptance: float | None
) -> PlanProblem:
    """Return the problem with the requested or the best number of speculative tokens."""
    if drafts is None:
        if case.model.drafter is not None:
            raise RangeError(
                f"draft_model: needs a number of drafts, got none; give 1 to {MOST_DRAFTS} or auto (--drafts auto)"
            )
        return case
    if drafts == AUTO:
        # Check first that something can draft for the model.
        choose_speculation(case.model, 1, 1.0)
        return replace(case, speculation=best_drafting(case, tuple(modes), layouts))
    return replace(case, speculation=choose_speculation(case.model, int(drafts), acceptance))


def _symmetric_problem(case: PlanProblem, modes: tuple[str, ...]) -> PlanProblem | None:
    """Return the problem with whole, equal scale-up domains, if there are a few.

    Chips outside whole domains stay idle.
    """
    if case.prefill_system is not None:
        return None
    domain = int(case.system.scale_up.size)
    fewer = replace(case, symmetric_domains=True)
    has_few_domains = domain < case.chips < (MOST_ALIKE + 1) * domain
    return fewer if DISAGGREGATED in modes and has_few_domains and fitting(fewer) else None


def _sure(
    case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], price: float, *, alternatives: bool, elasticities: bool
) -> Plan:
    """Return the cheapest plan that meets the limits with the probability of the problem.

    The search includes the ranges of each candidate, except the part
    that the engine's constants add. Where the resulting plan is slightly below `sure`, the search is repeated
    with lower targets.
    """
    assert case.sure is not None
    deployment = _planned(case, modes, layouts, price, alternatives=alternatives, elasticities=elasticities)
    for _ in range(TURNS):
        over = [_over(deployment, case.limits, name, case.sure) for name in ("tpot", "ttft")]
        if not deployment.feasible or max(over) <= 1 + 1e-9:
            break
        aim = case.aim[0] * min(1.0, CLOSER / max(over[0], 1e-9)), case.aim[1] * min(1.0, CLOSER / max(over[1], 1e-9))
        case = replace(case, aim=aim)
        deployment = _planned(case, modes, layouts, price, alternatives=alternatives, elasticities=elasticities)
    if not deployment.feasible:
        return replace(deployment, reason=f"with probability {case.sure:g}, {deployment.reason}")
    return deployment


def _over(deployment: Plan, limits_asked: Slo, name: str, sure: float) -> float:
    """Return the `sure` quantile of a figure over its limit; 0 without a limit."""
    limit = float(getattr(limits_asked, name))
    return point(*median_and_range(deployment, name), sure) / limit if math.isfinite(limit) else 0.0


def _planned(
    case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], price: float, *, alternatives: bool, elasticities: bool
) -> Plan:
    """Return the plan for a problem from some layouts."""
    workload = case.workload
    front: tuple[Point, ...] = ()
    for searched in _searched_problems(case):
        tables = search(searched, modes, layouts)
        front = front_points(case, tables) if searched.front else front
        estimates = next((level for level in _by_level(searched) if ranked(level, tables, 1)), None)
        if estimates is not None:
            break
    common = Plan(
        feasible=False,
        model=case.model.name,
        system=case.system.name,
        engine=case.engine.name,
        workload=workload,
        slo=case.limits,
        percentile=case.percentile,
        chips=case.chips,
        usd_per_second=float(case.rent),
        rent=case.system.rent,
        power=case.system.power,
        **_second_system(case),
        electricity=price,
        front=front,
        evaluated=sum(len(table) for table in tables),
        warnings=(*list_warnings(case), *drafting_warnings(case.model, case.speculation)),
        speculation=case.speculation,
        served=what_is_served(case.model, case.system),
        anchor=case.engine.anchor,
    )

    # Effects of choices and figures are estimated by closed forms, relative to the best candidate by closed forms.
    peaks: list[Candidate] = []
    selection: list[Selection] = []
    if estimates is not None and (candidates := ranked(estimates, tables)):
        uses_peaks = alternatives or elasticities or not has_simulator()
        tuned = FINALISTS if has_simulator() else TUNED_ALONE
        peaks = [peak.candidate for peak in best(estimates, candidates, tuned)] if uses_peaks else candidates[:1]
        selection = [Selection(candidate) for candidate in peaks]
        if has_simulator():
            # numba takes a third of a second to import.
            from steptime.planning.finalists import list_finalists, simulate_finalists

            finalists = simulate_finalists(case, list_finalists(searched, tables, searched.levels))
            selection = [
                Selection(replace(finalist.candidate, batch=shown_batch(finalist.run.batch)), finalist.run, finalist.pools)
                for finalist in finalists
            ]
    if estimates is None or not selection:
        # Layouts with less evidence are tried next, and nobody reads the reason of a rough search.
        if case.evidence != ANY or case.rough:
            return replace(common, reason=NO_LAYOUT)
        is_simulated = case.diagnostics and has_simulator()
        return replace(common, reason=unreachable(case, modes, layouts, simulated=is_simulated))
    first, runners_up = selection[0], selection[1:]
    choices = list_choices(estimates, modes) if alternatives else ()
    figures = worths(estimates, peaks, ranked(relaxed(estimates), tables, LOOKED_AT)) if elasticities else {}

    # The sentences of a plan need its figures, and are added last.
    deployment = replace(
        common,
        feasible=True,
        binding=_limits_reached(case, estimates, peaks[0], first) if case.diagnostics else (),
        runner_up=plan_point(case, runners_up[0]) if runners_up and case.diagnostics else None,
        ideal=bound_point(case, replace(case, engine=IDEAL), first) if has_range(case.engine) and case.diagnostics else None,
        unanchored=bound_point(case, replace(case, engine=bare(case.engine)), first) if case.engine.anchor else None,
        **delivered(case, first),
    )
    options = by_saving([*map(partial(evaluate_alternative, estimates, peaks[0], modes), choices)])
    deployment = replace(
        deployment,
        alternatives=tuple(_scaled_to(deployment, option) for option in options),
        elasticities={name: figure() for name, figure in figures.items()},
    )
    return replace(deployment, why=why(case, deployment) + alternative_sentence(deployment) if case.diagnostics else "")


def _second_system(case: PlanProblem) -> dict[str, Any]:
    """Return the fields of a plan on the system of the prefill pool, if it is another one."""
    system = case.prefill_system
    if system is None:
        return {}
    return {
        "prefill_system": system.name,
        "prefill_chips": case.prefill_chips,
        "prefill_rent": system.rent,
        "prefill_power": system.power,
        "prefill_served": what_is_served(case.model, system),
    }


def _limits_reached(case: PlanProblem, estimates: PlanProblem, peak: Candidate, first: Selection) -> tuple[str, ...]:
    """Return the limits that a larger batch would break; waiting for slots of the user or engine counts."""
    names = binding(estimates, peak) if first.run is None else (first.run.binding,)
    candidate, slots = first.candidate, case.slots
    # A plan with fewer slots than the user or the engine allows serves no more with more of them.
    if (
        math.isinf(slots)
        or (first.pools and first.pools[-1].max_num_seqs < slots)
        or float(evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1)).max_num_seqs) <= slots
    ):
        return names
    # The time per token contains the wait for a slot of a separate decode pool.
    waiting = ("first token", "prompt queue") if candidate.mode == AGGREGATED else ("speed",)
    is_fast = float(evaluate_state(case, candidate, slots, max(candidate.chunk, 1)).tpot) <= case.limits.tpot
    return tuple("slots" if name in waiting and is_fast else name for name in names)


def _by_level(case: PlanProblem) -> list[PlanProblem]:
    """Return the problem with each level of its targets, the usual one first and the widest last."""
    return [replace(case, slo=level) for level in (*case.levels[1:2], *case.levels[:1])]


def _searched_problems(case: PlanProblem) -> list[PlanProblem]:
    """Return the problem, and one with slack: where closed forms just miss the limit on TPOT, the simulator may meet it.

    Finalists meet the limit of the user in either case.
    """
    if case.rough or case.sure is not None or math.isinf(case.limits.tpot) or not has_simulator():
        return [case]
    levels = tuple(replace(level, tpot=SLACK * level.tpot) for level in case.levels)
    return [case, replace(case, slo=levels[0], levels=levels, slack=SLACK, front=False)]


def has_simulator() -> bool:
    """Return whether numba, which compiles the simulator, is installed."""
    return find_spec("numba") is not None


def _scaled_to(deployment: Plan, option: Alternative) -> Alternative:
    """Return an alternative whose figures follow from those of the plan and the relative saving."""
    factor = 1 - option.saving
    return replace(
        option,
        tokens_per_second_per_chip=deployment.tokens_per_second_per_chip / factor,
        usd_per_million_output_tokens=deployment.usd_per_million_output_tokens * factor,
    )


def _make_problem(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo,
    percentile: str,
    chips: int | None,
    engine: Engine | str | None,
    anchor: Anchors | Anchor | None,
) -> PlanProblem:
    """Return the plan problem with its targets; raise RangeError for arrays and for too many chips."""
    single(chips=chips)
    number = whole_number("chips", system.chips if chips is None else chips, maximum=MOST_CHIPS)
    if not is_single(system) or any(np.ndim(getattr(group, f.name)) for group in (workload, slo) for f in fields(group)):
        raise RangeError("a plan takes one system, one workload and one pair of limits, got arrays; give single numbers")
    if number > system.scale_out.size:
        has = f"at most {system.scale_out.size:,}, because {system.name} has no network beyond them"
        raise RangeError(f"chips: must be {has}, got {number:,}")
    runs_on = anchored(
        serving_engine(system, engine), anchor, model=model.name, system=system.name, formats=stored_formats(model)
    )
    runs_on = at_workload(runs_on, None, float(mean_context(workload)))
    served = as_served(model, system, runs_on)
    levels = tuple(target_levels(workload, slo, percentile, simulated=has_simulator()))
    return PlanProblem(
        model=served, system=system, workload=workload, slo=levels[0], limits=slo, levels=levels, percentile=percentile,
        chips=number, engine=runs_on,
    )  # fmt: skip
