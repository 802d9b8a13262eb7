"""The figures of a plan: what its candidate delivers, with ranges, pools, points and warnings.

A candidate has the figures of its simulated run where there is one, and those of closed forms otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.rental_prices import usd_per_million
from steptime.number_checks import Number, as_whole, distinct
from steptime.pareto import pareto
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.chip_memory import sampling_per_sequence, sequences_per_group
from steptime.physics.engine import ttft_factor
from steptime.physics.layout import Layout, equal_parts, host_chips
from steptime.physics.step import Step
from steptime.physics.uncertainty import interval_coverage_words
from steptime.planning.evidence import ANY, deployment_evidence
from steptime.planning.plan_intervals import candidate_ranges, list_distances, widened
from steptime.planning.plan_messages import list_warnings
from steptime.planning.plan_problem import (
    LEAST_BATCH,
    Candidate,
    PlanProblem,
    Table,
    evaluate_state,
    kv_cache_tokens,
    moving,
    slots_memory,
)
from steptime.planning.plan_result import Drafted, Point, Pool
from steptime.planning.plan_search import is_small_chunk
from steptime.planning.prefill_pool import Prefill
from steptime.planning.refinement import evaluate_occupancy, first_token_of, matched_rate, planned_prefill
from steptime.planning.slo_probability import percentile_ratio
from steptime.planning.steady_state import State, decode_pool, mean_context
from steptime.planning.two_systems import pair_warning
from steptime.units import percent
from steptime.workload.workload import NONE, Slo, decode_steps, drafting_warnings

# Factor on the sequences in flight where closed forms have no finite wait, and how often it applies.
SMALLER, MOST_STEPS = 0.9, 20
# Doublings of the smallest batch at which the effect of speculative tokens is shown.
MOST_DOUBLINGS = 14
# Relative standard error of a simulated mean from which the range contains it.
LARGE_ERROR = 0.1


class Selection(NamedTuple):
    """A candidate with its simulated run; None without numba. `pools` has the slots of the run."""

    candidate: Candidate
    run: Any = None
    pools: tuple[Any, ...] = ()


def shown_batch(batch: float) -> float:
    """Return a mean batch of a run, whole from 8 sequences on and in eighths below.

    Args:
        batch: Sequences.

    Returns:
        Sequences.
    """
    return float(as_whole(max(LEAST_BATCH, round(batch) if batch >= 8 else round(8 * batch) / 8)))


def delivered(case: PlanProblem, selection: Selection) -> dict[str, Any]:
    """Return the fields of a plan that depend on its candidate.

    Args:
        case: Plan problem.
        selection: Candidate with its run.

    Returns:
        Values by field.
    """
    candidate, case = selection.candidate, _basis(case, selection)
    closed_batch = evaluate_state(case, candidate, candidate.batch, max(candidate.chunk, 1))
    # Closed forms of a nearly full queue may have no finite wait; their ranges then come from a smaller batch.
    replicas = int(candidate.layout.replicas)
    for _ in range(MOST_STEPS):
        state, prefill, closed = _figures(case, candidate)
        if math.isfinite(closed["ttft"]):
            break
        # An arrival finds those in flight and adds one (`in_flight`).
        sequences = SMALLER * max(candidate.batch * replicas - 1, 0.0)
        candidate = replace(candidate, batch=(1 + sequences) / replicas)
    figures = _shown_figures(case, selection, closed)
    rate, all_in = figures["requests_per_second"], figures["usd_per_million_output_tokens"]
    # Ranges and bounds of closed forms keep their relative widths.
    scale = {
        name: figures[figure] / (closed[figure] or math.nan)
        for name, figure in {"tpot": "tpot", "ttft": "ttft", "cost": "usd_per_million_output_tokens",
                             "throughput": "requests_per_second"}.items()
    }  # fmt: skip
    closed_ranges = candidate_ranges(case, candidate, state, prefill, closed["utilisation"])
    shares = closed_ranges.pop("range_shares", {})
    ranges = {
        name: ends and (ends[0] * scale[name.removesuffix("_range")], ends[1] * scale[name.removesuffix("_range")])
        for name, ends in closed_ranges.items()
    }
    error = 0.0 if selection.run is None else selection.run.tpot_error
    if error >= LARGE_ERROR and ranges["tpot_range"] is not None:
        ranges["tpot_range"] = widened(figures["tpot"], ranges["tpot_range"], error)
    workload, share = case.workload, _input_share(case, candidate, state, prefill)
    output_rate, input_rate = rate * workload.output_tokens, rate * workload.input_tokens
    return figures | {
        "mode": candidate.mode,
        "evidence": _evidence(case, candidate),
        "layout_text": candidate.text,
        "pools": _pools(case, selection, closed_batch, prefill, rate),
        "tpot_bounds": (float(state.lower) * scale["tpot"], float(state.upper) * scale["tpot"]),
        "concurrency": float(rate * (figures["mean_ttft"] + decode_steps(workload) * figures["mean_tpot"])),
        "cost_bounds": (float(all_in * _bound(state, prefill, "lower")), float(all_in * _bound(state, prefill, "upper"))),
        "prefill_usd_per_million_tokens": float(usd_per_million(case.rent * share, input_rate)),
        "decode_usd_per_million_tokens": float(usd_per_million(case.rent * (1 - share), output_rate)),
        "usd_per_request": float(case.rent / rate),
        "transfer_seconds": _transfer(case, candidate, rate),
        "distance": list_distances(case, candidate),
        "warnings": (
            *_few_requests_warning(error),
            *pair_warning(case, candidate),
            *_hosts_warning(case, candidate),
            *list_warnings(case),
            *drafting_warnings(case.model, case.speculation),
        ),
        "interval_coverage": interval_coverage_words(
            case.engine, case.system, drafts=bool(case.speculation.drafts), pools=prefill is not None
        ),
        "drafted": _drafted(case, candidate),
        "session_run": None if selection.run is None else selection.run.session,
        "range_shares": shares,
        **ranges,
    }


def _evidence(case: PlanProblem, candidate: Candidate) -> str:
    """Return the evidence for a candidate; nobody has published runs with small chunks, or with pools on two systems."""
    if is_small_chunk(case.workload, candidate.chunk) or case.is_pair:
        return ANY
    return deployment_evidence(case.engine, case.system, candidate.layout, candidate.prefill_layout)


def _few_requests_warning(error: float) -> tuple[str, ...]:
    """Return a warning where the mean time per token rests on few requests."""
    if not error >= LARGE_ERROR:
        return ()
    return (
        f"the mean time per token rests on few requests with long waits: its standard error in the simulation is "
        f"{percent(error)}; a limit at a percentile is met more certainly (--percentile p90)",
    )


def _hosts_warning(case: PlanProblem, candidate: Candidate) -> tuple[str, ...]:
    """Return a warning where the replicas take more hosts than the chips of the plan fill."""
    if case.prefill_system is not None and candidate.prefill_layout is not None:
        decoding = _hosts_warning(replace(case, prefill_system=None, prefill_chips=0), replace(candidate, prefill_layout=None))
        prefill = replace(candidate, layout=candidate.prefill_layout, prefill_layout=None)
        return (*decoding, *_hosts_warning(case.prefill, prefill))
    host = host_chips(case.system)
    hosts = _hosts([layout for layout in (candidate.prefill_layout, candidate.layout) if layout is not None], host)
    if hosts <= math.ceil(case.chips / host):
        return ()
    return (
        f"laid out so, it takes {hosts} hosts of {host} chips ({hosts * host} chips), because its replicas do not fill hosts; "
        f"the cost counts {case.chips} chips",
    )


def _hosts(pools: list[Layout], host: int) -> int:
    """Return the hosts of all replicas in equal parts: large replicas first, small ones on the chips that they leave."""
    # Hosts by the number of their free chips.
    hosts: Counter[int] = Counter()
    sizes = [(*equal_parts(int(pool.chips), host), int(pool.replicas)) for pool in pools]
    for nodes, chips, replicas in sorted(sizes, reverse=True):
        for _ in range(replicas):
            missing, hosts_in_use = nodes, Counter[int]()
            for free in sorted(hosts):
                if free >= chips and missing:
                    hosts_in_use[free] = min(hosts[free], missing)
                    missing -= hosts_in_use[free]
            hosts_in_use[host] = missing
            hosts.subtract({free: count for free, count in hosts_in_use.items() if free < host})
            hosts.update({free - chips: count for free, count in hosts_in_use.items()})
    return hosts.total()


def _shown_figures(case: PlanProblem, selection: Selection, closed: dict[str, float]) -> dict[str, float]:
    """Return the main figures of a candidate: those of its run where there is one."""
    run = selection.run
    if run is None:
        # Log-normal waits stand for those at a percentile.
        ratio = percentile_ratio(case.workload, case.percentile)
        return closed | {"mean_ttft": closed["ttft"], "mean_tpot": closed["tpot"], "ttft": closed["ttft"] * ratio}
    # Where no request has a second token, there is only the time that a step would take.
    return {
        "tpot": run.tpot or closed["tpot"],
        "ttft": run.ttft,
        "mean_tpot": run.mean_tpot or closed["tpot"],
        "mean_ttft": run.mean_ttft,
        "utilisation": run.busy[0] if len(run.busy) > 1 else closed["utilisation"],
        "requests_per_second": run.rate,
        "usd_per_million_output_tokens": float(usd_per_million(case.rent, run.rate * case.workload.output_tokens)),
    }


def _drafted(case: PlanProblem, candidate: Candidate) -> tuple[Drafted, ...]:
    """Return the effect of speculative tokens at each batch that fits.

    The batches are powers of two and the batch of the plan.
    """
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


def _basis(case: PlanProblem, selection: Selection) -> PlanProblem:
    """Return the problem whose closed forms a plan's figures are compared with: of a run, that without limits."""
    return case if selection.run is None else replace(case, slo=Slo(), sure=None)


def _figures(case: PlanProblem, candidate: Candidate) -> tuple[State, Prefill | None, dict[str, float]]:
    """Return the steady state of a candidate, its prefill pool, and its main figures."""
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
    """Return a bound of the step time over its estimate; the mean of separate pools."""
    ratio = float(getattr(state, name) / state.tpot)
    return ratio if prefill is None else (ratio + float(getattr(prefill.step, name) / prefill.step.total)) / 2


def _input_share(case: PlanProblem, candidate: Candidate, state: State, prefill: Prefill | None) -> float:
    """Return the share of the rent for input tokens: that of prefill in the chip-time, or in its rent on two systems."""
    if prefill is None or candidate.prefill_layout is None:
        return float(state.input_share)
    # Chip-seconds per request.
    reads = candidate.prefill_layout.chips / prefill.rate
    decodes = candidate.layout.chips / state.rate
    if case.prefill_system is not None:
        reads, decodes = reads * case.prefill_system.rent.typical, decodes * case.system.rent.typical
    return float(reads / (reads + decodes))


def _prefill_share(case: PlanProblem, selection: Selection, layout: Layout) -> float:
    """Return the factor on prefill work of a run, as `step_time_model.with_first_tokens` takes it from own runs.

    First tokens that come sooner than steps take shorten the prefill work.
    """
    return 1.0 if selection.run is None else min(1.0, float(ttft_factor(case.engine, OperatingPoint(layout=layout))))


def _weighted_sum(*parts: tuple[float, Step]) -> Step:
    """Return the sum of some steps, each times its weight."""
    times: dict[str, Any] = {
        name: sum(weight * getattr(step, name) for weight, step in parts) for name in ("lower", "total", "upper", "latency")
    }
    for name in ("terms", "resources"):
        tables = [(weight, getattr(step, name)) for weight, step in parts]
        keys = dict.fromkeys(key for _, table in tables for key in table)
        times[name] = {key: sum(weight * table.get(key, 0.0) for weight, table in tables) for key in keys}
    return replace(parts[-1][1], **times)


def _pools(case: PlanProblem, selection: Selection, state: State, prefill: Prefill | None, rate: Any) -> tuple[Pool, ...]:
    candidate = selection.candidate
    # The steps of a plan take the same correction as its run.
    if state.mixed is not None and (share := _prefill_share(case, selection, candidate.layout)) < 1:
        state = replace(state, mixed=_weighted_sum((1 - share, state.decode), (share, state.mixed)))
    if prefill is not None and candidate.prefill_layout is not None:
        share = _prefill_share(case, selection, candidate.prefill_layout)
        prefill = replace(prefill, step=_weighted_sum((share, prefill.step)))
    workload, seats = case.workload, evaluate_occupancy(case, state, candidate, candidate.batch)
    slots, queued = int(min(float(seats.max_num_seqs), case.slots)), bool(seats.capped)
    if selection.pools:
        slots, queued = selection.pools[-1].max_num_seqs, selection.pools[-1].queued
    # The sampler has room for all slots.
    further = sequences_per_group(slots, candidate.layout) - sequences_per_group(state.max_num_seqs, candidate.layout)
    activations = state.memory.activations + further * sampling_per_sequence(case.model, case.engine)
    state = replace(state, memory=replace(state.memory, activations=activations))
    server_tokens = sequences_per_group(state.max_num_seqs, candidate.layout) * mean_context(workload)
    server = Pool(
        role="serve" if prefill is None else "decode",
        layout=candidate.layout,
        batch=float(as_whole(min(candidate.batch, case.slots))),
        chunk=candidate.chunk,
        chunk_share=float(1 - state.decode_only_share),
        chunks_per_mixed_step=float(state.chunks_per_mixed_step),
        max_num_seqs=slots,
        kv_tokens_per_rank=kv_cache_tokens(state.memory, server_tokens),
        queued=queued,
        step=state.decode,
        mixed=state.mixed,
        memory=slots_memory(state, slots, candidate.layout),
        tokens_per_second=float(rate * workload.output_tokens),
    )

    # A disaggregated plan has a prefill pool in front of the decode pool.
    if prefill is None or candidate.prefill_layout is None:
        return (server,)
    # A prefill pool stores the pass that runs and the one that it sends to the decode pool.
    prefill_tokens = sequences_per_group(2 * prefill.seats, candidate.prefill_layout) * workload.input_tokens
    first = Pool(
        role="prefill",
        layout=candidate.prefill_layout,
        batch=int(prefill.seats),
        max_num_seqs=int(prefill.seats),
        kv_tokens_per_rank=kv_cache_tokens(prefill.memory, prefill_tokens),
        step=prefill.step,
        memory=prefill.memory,
        tokens_per_second=float(rate * workload.input_tokens),
    )
    return first, server


def _transfer(case: PlanProblem, candidate: Candidate, rate: Number) -> float:
    layout = candidate.prefill_layout
    return 0.0 if layout is None else float(moving(case, layout).seconds(rate / layout.replicas))


def bound_point(case: PlanProblem, changed_case: PlanProblem, selection: Selection) -> Point:
    """Return the point of another engine, relative to that of the plan as closed forms have it.

    Args:
        case: Plan problem.
        changed_case: The same with another engine.
        selection: Candidate with its run.

    Returns:
        The point.
    """
    closed, bound = (_figures(_basis(problem, selection), selection.candidate)[2] for problem in (case, changed_case))
    now = _shown_figures(case, selection, closed)
    figures = {name: now[name] * bound[name] / closed[name] for name in closed}
    return _as_point(case, selection.candidate, figures)


def plan_point(case: PlanProblem, selection: Selection) -> Point:
    """Return the point of a candidate.

    Args:
        case: Plan problem.
        selection: Candidate with its run.

    Returns:
        The point.
    """
    return _as_point(
        case, selection.candidate, _shown_figures(case, selection, _figures(_basis(case, selection), selection.candidate)[2])
    )


def _as_point(case: PlanProblem, candidate: Candidate, figures: dict[str, float]) -> Point:
    return Point(
        mode=candidate.mode,
        layout_text=candidate.text,
        batch=candidate.batch,
        tokens_per_second_per_user=1 / figures["tpot"],
        tokens_per_second_per_chip=float(figures["requests_per_second"] * case.workload.output_tokens / case.total_chips),
        usd_per_million_output_tokens=figures["usd_per_million_output_tokens"],
        ttft=figures["ttft"],
    )


def front_points(case: PlanProblem, tables: list[Table]) -> tuple[Point, ...]:
    """Return the Pareto front of speed and throughput, fastest first, at any speed.

    Args:
        case: Plan problem.
        tables: Tables of a search.

    Returns:
        Points.
    """
    speeds, rates, starts = [], [], [0]
    limit = case.levels[1].ttft if len(case.levels) > 1 else case.slo.ttft
    for table in tables:
        good = (table.ttft <= limit) & (table.memory <= 1) & (table.rate > 0)
        speeds.append(np.where(good, 1 / table.tpot, np.nan))
        rates.append(table.rate)
        starts.append(starts[-1] + len(table))

    if not speeds:
        return ()
    # Points of all tables compete; the index of a point gives its table and row.
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
                tokens_per_second_per_chip=float(throughput / case.total_chips),
                usd_per_million_output_tokens=float(usd_per_million(case.rent, throughput)),
                ttft=float(tables[number].ttft[index]),
            )
        )
    return tuple(points)
