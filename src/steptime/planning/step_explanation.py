"""Step explanation: each entry of a step with its formula, and the sources used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.hardware.rental_prices import has_rent, kind_in_words
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.chip_memory import stage_share
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.op_work import busiest, software_factor
from steptime.physics.speculative_step import TERM, draft_passes, drafter
from steptime.physics.step import ledger_of_step
from steptime.physics.time_ledger import Entry
from steptime.planning.plan_result import Pool
from steptime.planning.steady_state import fresh_tokens, longer_prefix, longest_prefix, mean_context, split_chunks
from steptime.units import counted, percent, show
from steptime.workload.workload import NONE, Speculation, Workload, decode_steps, step_yield

COLLECTIVES = {
    "all-reduce": "of each block over {group} chips",
    "dispatch": "of tokens to their experts on {ep} chips",
    "combine": "of expert outputs, in 16 bits",
    "context exchange": "of queries and partial outputs over {cp} chips",
    "pipeline": "of a micro-batch through {pp} stages",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One operator, collective or overhead of a step, with its formula and seconds."""

    term: str
    name: str
    formula: str
    seconds: float


def explain_step(
    model: Model, system: System, *, sizes: dict[str, Any], layout: Layout, engine: Engine, drafts: int = 0
) -> list[Line]:
    """Explain a step line by line.

    The lines are sorted by term, and inside a term by time. Their seconds add up to the step. A formula is
    that of one instance in one micro-batch. The seconds include all instances in all micro-batches.

    Args:
        model: Model.
        system: System.
        sizes: Arguments of the step, single numbers: batch, context, query, prompts, tokens, prefix.
        layout: Layout of the replica.
        engine: Engine.
        drafts: Speculative tokens drafted in the step; each pass has its own line.

    Returns:
        Lines of the step.
    """
    step, entries = ledger_of_step(model, system, sizes, layout=layout, engine=engine)
    totals: dict[tuple[str, str, str], list[float]] = {}
    for entry in entries:
        if float(entry.seconds) > 0:
            sums = totals.setdefault((entry.term, _name(entry, layout), _once(entry, system, engine)), [0.0, 0.0])
            sums[0] += float(np.asarray(entry.count))
            sums[1] += float(entry.counted)
    order = {term: position for position, term in enumerate(step.terms)}
    lines = [_line(term, name, once, count, seconds) for (term, name, once), (count, seconds) in totals.items()]
    lines.sort(key=lambda line: (order[line.term], -line.seconds))
    point = OperatingPoint(layout=layout, load=sizes.get("batch", 0), context=sizes.get("context", 0))
    lines = [replace(line, formula=line.formula + _slower(system, engine, point)) for line in lines]
    pass_sizes: dict[str, Any] = {"batch": 0, "context": 0, "prompts": 0, "tokens": 0, "prefix": 0, **sizes}
    pass_sizes.pop("query", None)
    return lines + [
        _passes(count, float(draft_step.total), drafter(model).name)
        for count, draft_step in draft_passes(model, system, pass_sizes, drafts=drafts, layout=layout, engine=engine)
    ]


def _slower(system: System, engine: Engine, point: OperatingPoint) -> str:
    """Return the factors on all times that are not 1, as the end of a formula."""
    software = float(software_factor(system, engine))
    text = f" x {software:.4g} (software)" if software != 1 else ""
    return text if engine.anchor is None else f"{text} x {float(engine.anchor.step_factor(point)):.4g} (your own runs)"


def _passes(count: float, seconds: float, name: str) -> Line:
    """Return the line of `count` passes of the draft layers, `seconds` each."""
    formula = f"{count:g} x {show(seconds, 's')}" if count > 1 else show(seconds, "s")
    return Line(term=TERM, name=name, formula=formula, seconds=count * seconds)


def _line(term: str, name: str, once: str, count: float, seconds: float) -> Line:
    """Return the line of `count` instances.

    The count follows the name of an operator, and precedes the formula of other entries.
    """
    if term == "overhead":
        return Line(term=term, name=name, formula=f"{count:g} x {once}", seconds=seconds)
    if term in COLLECTIVES:
        return Line(term=term, name=name, formula=f"{count:g} x ({once})" if count > 1 else f"({once})", seconds=seconds)
    return Line(term=term, name=f"{name} x {count:g}" if count > 1 else name, formula=once, seconds=seconds)


def _name(entry: Entry, layout: Layout) -> str:
    if entry.traffic is None:
        return entry.name
    degrees = {"group": int(layout.group), "ep": int(layout.ep), "cp": int(layout.cp), "pp": int(layout.pp)}
    return (entry.name or COLLECTIVES[entry.term]).format(**degrees, sharing=int(layout.stage) // int(layout.ep))


def _once(entry: Entry, system: System, engine: Engine) -> str:
    """Return the formula of one instance with its numbers."""
    if entry.demand is not None:
        return _roofline(entry, system, engine)
    if entry.traffic is not None:
        return _transfer(entry, system, engine)
    return show(float(entry.seconds_each), "s")


def _roofline(entry: Entry, system: System, engine: Engine) -> str:
    """Return the two sides of an operator's roofline with their numbers."""
    demand, share = entry.demand, float(np.asarray(entry.times)) / float(entry.count)
    assert demand is not None
    flops, norm = float(demand.flops) * share, float(engine.kernels.roofline_norm)
    bytes_ = float(demand.weights + demand.activations + demand.kv) * share
    compute, memory = float(entry.compute) / float(entry.count), float(entry.memory) / float(entry.count)
    bandwidth = float(system.chip.hbm.bandwidth)
    # Reached share of the bandwidth, over all bytes that are moved.
    reached = bytes_ / bandwidth / memory if memory > 0 else 1.0
    joined = "max" if np.isinf(norm) else f"{norm:g}-norm"
    rate = f"{show(float(demand.peak), 'FLOP/s')}{_over(demand.efficiency)}"
    moved = f"{show(bytes_, 'B')} / {show(bandwidth, 'B/s')}{_over(reached)} = {show(memory, 's')}"
    return f"{joined}({show(flops, 'FLOP')} / {rate} = {show(compute, 's')}, {moved})" if flops else moved


def _over(efficiency: Number) -> str:
    share = float(efficiency)
    return "" if abs(share - 1) < 5e-4 else f" / {share:.3f}" if share >= 0.1 else f" / {share:.3g}"


def _transfer(entry: Entry, system: System, engine: Engine) -> str:
    """Return the load of each network level in a collective, its latency and overhead."""
    traffic, count = entry.traffic, max(float(np.asarray(entry.count)), 1.0)
    assert traffic is not None
    reached = engine.kernels.network_efficiency
    parts = []
    for domain, seconds in zip(system.domains, traffic.busy, strict=True):
        busy, bandwidth = float(np.asarray(seconds)) / count, float(domain.link.bandwidth)
        if busy > 0:
            carried = f"{show(busy * bandwidth, 'B')} / {show(bandwidth, 'B/s')}{_over(reached)}"
            parts.append(f"{domain.name} {carried} = {show(busy / float(reached), 's')}")
    joined = [f"max({', '.join(parts)})" if entry.at_once and len(parts) > 1 else " + ".join(parts)] if parts else []
    if float(np.asarray(traffic.latency)) > 0:
        joined.append(f"{show(float(np.asarray(traffic.latency)) / count, 's')} latency")
    if float(entry.seconds_each) > 0:
        calls = float(np.asarray(traffic.calls)) / count
        joined.append(f"{calls:g} x {show(float(entry.seconds_each), 's')}")
    return " + ".join(joined)


def step_given(pool: Pool, workload: Workload, *, mixed: bool, drafts: int = 0) -> dict[str, Any]:
    """Return the arguments of the step of a plan's pool.

    Args:
        pool: Pool of a plan.
        workload: Requests.
        mixed: True for the step with prefill chunks.
        drafts: Speculative tokens to verify per sequence.

    Returns:
        Arguments by name.
    """
    fresh = fresh_tokens(workload)
    cached = workload.input_tokens - fresh
    if pool.role == "prefill":
        return {"prompts": pool.batch, "tokens": fresh, "prefix": cached + longer_prefix(workload)}
    sizes: dict[str, Any] = {"batch": pool.batch, "context": mean_context(workload), "query": drafts + 1}
    if mixed and pool.mixed is not None:
        tokens = float(split_chunks(workload, pool.chunk)[0])
        sizes |= {
            "prompts": pool.chunks_per_mixed_step,
            "tokens": tokens,
            "prefix": float(longest_prefix(workload, tokens, pool.chunks_per_mixed_step)),
        }
    return sizes


def equations(
    model: Model, pool: Pool, workload: Workload, *, utilisation: float, speculation: Speculation = NONE
) -> list[str]:
    """Return the equations from the step to the plan's figures, with their numbers.

    Args:
        model: Model.
        pool: Pool of a plan.
        workload: Requests.
        utilisation: Utilization of its prefill queue [share].
        speculation: Speculative tokens.

    Returns:
        Lines of text.
    """
    step = mean = float(pool.step.total)
    unit_word, owed = ("step", "((output - 1) / accepted)") if speculation.drafts else ("token", "(output - 1)")
    sequences_per_rank, groups = float(busiest(pool.batch, pool.layout.dp)), int(pool.layout.dp)
    lines = [
        f"batch {pool.batch:,} = {sequences_per_rank:,.6g} sequence{'s' * (sequences_per_rank != 1)}"
        f" x {counted(groups, 'data-parallel rank')}"
        + (f", in {int(pool.layout.microbatches)} micro-batches" if pool.layout.microbatches > 1 else ""),
    ]
    if pool.role != "prefill":
        lines.append(
            f"mean context of decode {mean_context(workload):,.0f} = input + output x (1 + output spread^2) / 2 = "
            f"{workload.input_tokens:,} + {workload.output_tokens:,} x (1 + {workload.output_spread:g}^2) / 2"
        )

    # A pool with chunked prefill has a mean over two kinds of steps.
    if pool.mixed is not None:
        mixed, share = float(pool.mixed.total), pool.chunk_share
        mean = (1 - share) * step + share * mixed
        _, chunks, together = (float(sequences_per_rank) for sequences_per_rank in split_chunks(workload, pool.chunk))
        # Mean number of other sequences in flight.
        other_sequences = pool.batch - 1 / int(pool.layout.replicas)
        load, places = other_sequences * chunks / float(decode_steps(workload, speculation)), int(pool.layout.dp * together)
        places_told = f"{places:,} slot{'s' * (places > 1)} for a chunk per step"
        lines += [
            f"chunks per step = (batch - 1 / replicas) x chunks per prompt / {owed} = {other_sequences:,.4g} x {chunks:,.0f} / "
            f"{decode_steps(workload, speculation):,.0f} = {load:,.3f}: {pool.chunks_per_mixed_step:,.3g} in each mixed step, "
            f"and a token meets mixed steps with the share f = {share:.3f}",
            f"time per {unit_word} = (1 - f) x {show(step, 's')} + f x {show(mixed, 's')} = {show(mean, 's')}",
            f"prefill queue: {places_told}, in use for {percent(utilisation, 1)} of the time",
        ]
    if speculation.drafts and pool.role != "prefill":
        gained = float(step_yield(workload, speculation))
        lines += [
            f"speculative decoding: {speculation.text}",
            f"time per token = {show(mean, 's')} / {gained:.3g} = {show(mean / gained, 's')}",
        ]
    if pool.layout.pp > 1:
        layers_share = percent(float(stage_share(model, pool.layout)), 1)
        lines.append(f"the fullest of {int(pool.layout.pp)} stages contains {layers_share} of the layers")
    return lines


def sources(system: System) -> list[tuple[str, str, str, str, str]]:
    """Return the sources of the system's figures that a step depends on.

    The rent is the last of them.

    Args:
        system: System.

    Returns:
        Figure, value, grade, date and URL of each.
    """
    paths = [
        (path, figure)
        for path, figure in system.figures.items()
        if path.startswith(("chip.peak", "chip.hbm", "chip.sram", "scale_up", "pod", "scale_out"))
    ]
    # Plans use the bytes that the driver counts, which differ from the label of the data sheet.
    notes = {"chip.hbm.capacity": f" on the label; the driver counts {show(float(system.chip.capacity), 'B')}"}
    figures = [(path, figure.text + notes.get(path, ""), figure.grade, figure.date, figure.url) for path, figure in paths]
    rent = system.rent
    value = f"{show(float(rent.typical), 'USD/s')} ({kind_in_words(rent)})" if has_rent(rent) else "not known"
    return [*figures, ("rent", value, rent.grade, rent.date, rent.url or rent.note)]
