"""The best way to serve a model on a system: the cheapest layout within the limits, what binds, and what would help.

`plan` searches every legal layout, batch and chunk size, aggregated and disaggregated (`search`), keeps what meets the limits,
refines the cheapest, and asks of each figure of the machine how much cheaper a token would be if it were better
(`elasticity`).
"""

from __future__ import annotations

import math
import time
from dataclasses import fields, replace
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, RangeError, expect
from steptime.hardware.energy import read_electricity
from steptime.hardware.system import System
from steptime.hardware.unit_cost import usd_per_million
from steptime.hardware.what_if import is_single
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_CHIPS, Number, as_whole, distinct, single, whole_number
from steptime.pareto import pareto
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.engine import IDEAL, Engine, anchored, bare, engine_for
from steptime.physics.kv_dtype import as_served
from steptime.physics.layout import Layout
from steptime.physics.uncertainty import has_range, interval_coverage_words
from steptime.planning.elasticity import binding, relaxed, worths
from steptime.planning.launch_facts import what_is_served
from steptime.planning.plan_alternatives import (
    alternative_sentence,
    best_drafting,
    by_saving,
    evaluate_alternative,
    list_choices,
)
from steptime.planning.plan_intervals import candidate_ranges, list_distances
from steptime.planning.plan_messages import does_not_fit, list_warnings, unreachable, why
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Candidate, PlanProblem, Table, evaluate_state, moving
from steptime.planning.plan_result import Drafted, Plan, Point, Pool
from steptime.planning.plan_search import fitting, ranked, search
from steptime.planning.prefill_pool import Prefill
from steptime.planning.refinement import best, evaluate_occupancy, first_token_of, matched_rate, planned_prefill
from steptime.planning.slo_probability import check_sure, point
from steptime.planning.speculative_config import AUTO, NONE, check_asked, choose_speculation, decode_steps, drafting_warnings
from steptime.planning.steady_state import State, decode_pool
from steptime.planning.workload import Slo, Workload

MODES = (AGGREGATED, DISAGGREGATED)
MOST_ALIKE = 4  # scale-up domains that are tried alike: of more, a transfer between any two is as good
MOST_DOUBLINGS = 14  # of the smallest batch, in what drafts do at each
TURNS, CLOSER = 6, 0.998  # searches more at most for a plan that is sure of its limits, and how far below them each aims


class DoesNotFit(Impossible):
    """The model does not fit the chips: by how much, and what would hold it."""


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
    alternatives: bool = True,
    elasticities: bool = True,
    front: bool = True,
    diagnostics: bool = True,
    sure: float | None = None,
    drafts: int | str | None = None,
    acceptance: float | None = None,
    anchor: Anchors | Anchor | None = None,
) -> Plan:
    """Return the cheapest way to serve `workload` within `slo` on `chips` chips (by default one scale-up domain).

    model and system may be named, as for `load_model` and `load_system`. engine: "ideal" for the bound that physics sets; by
    default a real one, which `default_engine` chooses for the system. electricity: its price, as "0.08/kWh" or in USD/J.
    alternatives: whether other choices are looked at too, which takes about as long as a third of the search.
    elasticities: whether what each figure of the machine is worth is told too (`elasticities`), which takes longer than the
    search.
    front: whether what other speeds cost is told too; without it a search leaves out what cannot keep the limits.
    diagnostics: whether the runner-up, the same layout without losses and what binds are told.
    sure: probability with which each limit is met, such as
    0.9; by default a plan meets them in the mean, which a machine may miss half the time.
    drafts: tokens that the model's own layers draft for a step, "auto" for the number that serves most; none by default, as
    engines do. acceptance: tokens that a step then yields in the mean, from 1 to drafts + 1; by default as it was measured.
    anchor: runs of one's own (`st.load_anchor`) of this model on this system by this engine, which set its times right.
    Raises DoesNotFit where the weights do not fit the chips in any layout. Limits that nothing meets are an answer: a Plan
    with `feasible=False` and the reason.
    """
    started = time.perf_counter()
    modes = (modes,) if isinstance(modes, str) else modes
    expect("modes", modes, (tuple, list), "a tuple of " + " and ".join(MODES))
    if not modes or set(modes) - set(MODES):
        raise RangeError(f"mode must be {' or '.join(MODES)}, not {', '.join(map(str, modes)) or 'nothing'}")
    slo = Slo() if slo is None else slo
    expect("a workload", workload, Workload, "a Workload, such as Workload(input_tokens=8192, output_tokens=1024)")
    expect("a pair of limits", slo, Slo, "a Slo, such as Slo(tpot=0.02, ttft=2)")
    price = math.nan if electricity is None else read_electricity(electricity)
    check_limits(sure, slo)
    check_asked(drafts, acceptance)
    case = replace(
        _make_problem(resolve_model(model), resolve_system(system), workload, slo, chips, engine, anchor),
        sure=sure,
        front=front,
        diagnostics=diagnostics,
    )
    layouts = fitting(case)
    if not layouts:
        raise DoesNotFit(does_not_fit(case))
    case = _choose_speculation(case, modes, layouts, drafts, acceptance)
    best_plan = _sure(case, modes, layouts, price, sure, alternatives=alternatives, elasticities=elasticities)
    fewer = _symmetric_problem(case, modes)
    if fewer is not None:
        disaggregated_plan = _sure(
            fewer, (DISAGGREGATED,), fitting(fewer), price, sure, alternatives=False, elasticities=elasticities
        )
        if disaggregated_plan.requests_per_second > best_plan.requests_per_second:
            best_plan = (
                _sure(fewer, (DISAGGREGATED,), fitting(fewer), price, sure, alternatives=True, elasticities=elasticities)
                if alternatives
                else disaggregated_plan
            )
    return replace(best_plan, search_seconds=time.perf_counter() - started)


def check_limits(sure: float | None, slo: Slo) -> None:
    """Raise RangeError for what is no probability, and for one without a limit."""
    check_sure(sure)
    if sure is not None and slo == Slo():
        raise RangeError("sure is of limits, and there are none: give Slo(tpot=...) or Slo(ttft=...) (--speed, --ttft) with it")


def _choose_speculation(
    case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], drafts: int | str | None, acceptance: float | None
) -> PlanProblem:
    """Return the case with the drafts that are asked for, or with those that serve most."""
    if drafts is None:
        return case
    if drafts == AUTO:
        choose_speculation(case.model, 1, 1.0)  # whether it can draft at all
        return replace(case, speculation=best_drafting(case, tuple(modes), layouts))
    return replace(case, speculation=choose_speculation(case.model, int(drafts), acceptance))


def _symmetric_problem(case: PlanProblem, modes: tuple[str, ...]) -> PlanProblem | None:
    """Return the case with whole scale-up domains that are laid out alike, where there are a few of them; others idle."""
    domain = int(case.system.scale_up.size)
    fewer = replace(case, symmetric_domains=True)
    has_few_domains = domain < case.chips < (MOST_ALIKE + 1) * domain
    return fewer if DISAGGREGATED in modes and has_few_domains and fitting(fewer) else None


def _sure(
    case: PlanProblem,
    modes: tuple[str, ...],
    layouts: list[Layout],
    price: float,
    sure: float | None,
    *,
    alternatives: bool,
    elasticities: bool,
) -> Plan:
    """Return the cheapest plan whose times stay within the limits with probability `sure`, or in the mean where it is None.

    A search knows how sure the times of each candidate are but for what constants add to its own: where the one that is found
    is a little less sure, all aim a little lower.
    """
    deployment = _planned(case, modes, layouts, price, alternatives=alternatives, elasticities=elasticities)
    if sure is None or not has_range(case.engine):
        return replace(deployment, sure=sure)
    for _ in range(TURNS):
        over = [_over(deployment, case.slo, name, sure) for name in ("tpot", "ttft")]
        if not deployment.feasible or max(over) <= 1 + 1e-9:
            break
        aim = case.aim[0] * min(1.0, CLOSER / max(over[0], 1e-9)), case.aim[1] * min(1.0, CLOSER / max(over[1], 1e-9))
        case = replace(case, aim=aim)
        deployment = _planned(case, modes, layouts, price, alternatives=alternatives, elasticities=elasticities)
    if not deployment.feasible:
        return replace(deployment, reason=f"with probability {sure:g}, {deployment.reason}", sure=sure)
    return replace(deployment, sure=sure)


def _over(deployment: Plan, limits_asked: Slo, name: str, sure: float) -> float:
    """What a figure stays below with probability `sure`, over the limit; 0 without a limit."""
    limit = float(getattr(limits_asked, name))
    return point(getattr(deployment, name), getattr(deployment, f"{name}_range"), sure) / limit if math.isfinite(limit) else 0.0


def _planned(
    case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], price: float, *, alternatives: bool, elasticities: bool
) -> Plan:
    """Return the plan for a case, of those layouts."""
    workload = case.workload
    tables = search(case, modes, layouts)
    common = Plan(
        feasible=False,
        model=case.model.name,
        system=case.system.name,
        engine=case.engine.name,
        workload=workload,
        slo=case.slo,
        chips=case.chips,
        usd_per_second=float(case.rent),
        rent=case.system.rent,
        power=case.system.power,
        electricity=price,
        front=_front(case, tables) if case.front else (),
        evaluated=sum(len(table) for table in tables),
        warnings=(*list_warnings(case), *drafting_warnings(case.model, case.speculation)),
        speculation=case.speculation,
        served=what_is_served(case.model, case.system),
        anchor=case.engine.anchor,
    )
    candidates = ranked(case, tables)
    if not candidates:
        return replace(common, reason=unreachable(case, modes, layouts))
    candidate, *other_finalists = finalists = [peak.candidate for peak in best(case, candidates)]
    choices = list_choices(case, modes) if alternatives else ()
    figures = worths(case, finalists, ranked(relaxed(case), tables)) if elasticities else {}
    deployment = replace(
        common,
        feasible=True,
        binding=binding(case, candidate) if case.diagnostics else (),
        runner_up=_point(case, other_finalists[0]) if other_finalists and case.diagnostics else None,
        ideal=_point(replace(case, engine=IDEAL), candidate) if has_range(case.engine) and case.diagnostics else None,
        unanchored=_point(replace(case, engine=bare(case.engine)), candidate) if case.engine.anchor else None,
        **_delivered(case, candidate),
    )
    deployment = replace(
        deployment,
        alternatives=by_saving([evaluate_alternative(case, candidate, modes, choice) for choice in choices]),
        elasticities={name: figure() for name, figure in figures.items()},
    )
    return replace(deployment, why=why(case, deployment) + alternative_sentence(deployment) if case.diagnostics else "")


def _make_problem(
    model: Model,
    system: System,
    workload: Workload,
    slo: Slo,
    chips: int | None,
    engine: Engine | str | None,
    anchor: Anchors | Anchor | None,
) -> PlanProblem:
    """Return what a plan is made for; raise RangeError for arrays, and for chips that a machine does not have."""
    single(chips=chips)
    number = whole_number("chips", system.chips if chips is None else chips, maximum=MOST_CHIPS)
    if not is_single(system) or any(np.ndim(getattr(group, f.name)) for group in (workload, slo) for f in fields(group)):
        raise RangeError("a plan takes one machine, one workload and one pair of limits: numbers, not arrays of them")
    if number > system.scale_out.size:
        has = f"{system.name} has {system.scale_out.size:,} chips and no network beyond them"
        raise RangeError(f"{has}; {number:,} are too many")
    runs_on = anchored(engine_for(system, engine), anchor, model=model.name, system=system.name)
    served = as_served(model, system, runs_on)
    return PlanProblem(model=served, system=system, workload=workload, slo=slo, chips=number, engine=runs_on)


# --- what a candidate delivers ------------------------------------------------------------------------------------------


def _delivered(case: PlanProblem, candidate: Candidate) -> dict[str, Any]:
    """Return what a plan says of its candidate."""
    state, prefill, figures = _figures(case, candidate)
    rate, all_in = figures["requests_per_second"], figures["usd_per_million_output_tokens"]
    workload, share = case.workload, _input_share(candidate, state, prefill)
    output_rate, input_rate = rate * workload.output_tokens, rate * workload.input_tokens
    return figures | {
        "mode": candidate.mode,
        "layout_text": candidate.text,
        "pools": _pools(case, candidate, state, prefill, rate),
        "tpot_bounds": (float(state.lower), float(state.upper)),
        "concurrency": float(rate * (figures["ttft"] + decode_steps(workload) * state.tpot)),
        "cost_bounds": (float(all_in * _bound(state, prefill, "lower")), float(all_in * _bound(state, prefill, "upper"))),
        "prefill_usd_per_million_tokens": float(usd_per_million(case.rent * share, input_rate)),
        "decode_usd_per_million_tokens": float(usd_per_million(case.rent * (1 - share), output_rate)),
        "usd_per_request": float(case.rent / rate),
        "transfer_seconds": _transfer(case, candidate, rate),
        "distance": list_distances(case, candidate),
        "interval_coverage": interval_coverage_words(
            case.engine, case.system, drafts=bool(case.speculation.drafts), pools=prefill is not None
        ),
        "drafted": _drafted(case, candidate),
        **candidate_ranges(case, candidate, state, prefill, figures["utilisation"]),
    }


def _drafted(case: PlanProblem, candidate: Candidate) -> tuple[Drafted, ...]:
    """Return what drafts do at each batch that fits, powers of two and the plan's own."""
    if not case.speculation.drafts:
        return ()
    unit = int(candidate.layout.dp * candidate.layout.microbatches)
    batch = distinct([*(unit * 2**n for n in range(MOST_DOUBLINGS)), candidate.batch])
    arguments: dict[str, Any] = {"layout": candidate.layout, "batch": batch, "engine": case.engine}
    plain, drafted = (
        decode_pool(case.model, case.system, case.workload, speculation=speculation, **arguments)
        for speculation in (NONE, case.speculation)
    )
    return tuple(
        Drafted(
            batch=as_whole(batch[i]),
            tpot_without=float(plain.tpot[i]),
            tpot=float(drafted.tpot[i]),
            rate_without=float(batch[i] / plain.tpot[i] / candidate.layout.chips),
            rate=float(batch[i] / drafted.tpot[i] / candidate.layout.chips),
            speed_up=float(plain.tpot[i] / drafted.tpot[i]),
        )
        for i in np.nonzero(drafted.memory.fits | (batch == candidate.batch))[0]
    )


def _figures(case: PlanProblem, candidate: Candidate) -> tuple[State, Prefill | None, dict[str, float]]:
    """Return the steady state of a candidate, its prefill pool, and its times, rate and cost."""
    state = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    prefill = planned_prefill(case, candidate, state.tpot)
    rate, utilisation = matched_rate(case, candidate, state, prefill)
    return (
        state,
        prefill,
        {
            "tpot": float(state.tpot),
            "ttft": float(first_token_of(case, candidate, state, prefill, utilisation)),
            "utilisation": float(utilisation),
            "requests_per_second": float(rate),
            "usd_per_million_output_tokens": float(usd_per_million(case.rent, rate * case.workload.output_tokens)),
        },
    )


def _bound(state: State, prefill: Prefill | None, name: str) -> float:
    """The bound of the slower pool's time over its estimate."""
    ratio = float(getattr(state, name) / state.tpot)
    return ratio if prefill is None else (ratio + float(getattr(prefill.step, name) / prefill.step.total)) / 2


def _input_share(candidate: Candidate, state: State, prefill: Prefill | None) -> float:
    """Share of the rent that input tokens bear: of the time that chips need for a request, whole replicas or not."""
    if prefill is None or candidate.prefill_layout is None:
        return float(state.input_share)
    reads = candidate.prefill_layout.chips / prefill.rate  # chip-seconds of a request
    decodes = candidate.layout.chips / state.rate
    return float(reads / (reads + decodes))


def _pools(case: PlanProblem, candidate: Candidate, state: State, prefill: Prefill | None, rate: Any) -> tuple[Pool, ...]:
    workload, seats = case.workload, evaluate_occupancy(case, state, candidate, candidate.batch)
    server = Pool(
        role="serve" if prefill is None else "decode",
        layout=candidate.layout,
        batch=candidate.batch,
        chunk=candidate.chunk,
        chunk_share=float(1 - state.decode_only_share),
        chunks_per_mixed_step=float(state.chunks_per_mixed_step),
        max_num_seqs=int(seats.max_num_seqs),
        queued=bool(seats.capped),
        step=state.decode,
        mixed=state.mixed,
        memory=seats.memory,
        tokens_per_second=float(rate * workload.output_tokens),
    )
    if prefill is None or candidate.prefill_layout is None:
        return (server,)
    first = Pool(
        role="prefill",
        layout=candidate.prefill_layout,
        batch=int(prefill.seats),
        max_num_seqs=int(prefill.seats),
        step=prefill.step,
        memory=prefill.memory,
        tokens_per_second=float(rate * workload.input_tokens),
    )
    return first, server


def _transfer(case: PlanProblem, candidate: Candidate, rate: Number) -> float:
    layout = candidate.prefill_layout
    return 0.0 if layout is None else float(moving(case, layout).seconds(rate / layout.replicas))


def _point(case: PlanProblem, candidate: Candidate) -> Point:
    _, _, figures = _figures(case, candidate)
    return Point(
        mode=candidate.mode,
        layout_text=candidate.text,
        batch=candidate.batch,
        tokens_per_second_per_user=1 / figures["tpot"],
        tokens_per_second_per_chip=float(figures["requests_per_second"] * case.workload.output_tokens / case.chips),
        usd_per_million_output_tokens=figures["usd_per_million_output_tokens"],
        ttft=figures["ttft"],
    )


def _front(case: PlanProblem, tables: list[Table]) -> tuple[Point, ...]:
    """Return the candidates that no other beats in speed and throughput, fastest first, whatever the speed limit."""
    speeds, rates, starts = [], [], [0]
    for table in tables:
        good = (table.ttft <= case.slo.ttft) & (table.memory <= 1) & (table.rate > 0)
        speeds.append(np.where(good, 1 / table.tpot, np.nan))
        rates.append(table.rate)
        starts.append(starts[-1] + len(table))
    speed, rate = np.concatenate(speeds), np.concatenate(rates)
    points = []
    for position in pareto(speed, rate):
        number = int(np.searchsorted(starts, position, side="right")) - 1
        index = int(position) - starts[number]
        throughput = rate[position] * case.workload.output_tokens
        points.append(
            Point(
                mode=tables[number].mode,
                layout_text=tables[number].row(index).text,
                batch=int(tables[number].batch[index]),
                tokens_per_second_per_user=float(speed[position]),
                tokens_per_second_per_chip=float(throughput / case.chips),
                usd_per_million_output_tokens=float(usd_per_million(case.rent, throughput)),
                ttft=float(tables[number].ttft[index]),
            )
        )
    return tuple(points)
