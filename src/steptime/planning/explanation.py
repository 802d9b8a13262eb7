"""A step taken apart: every term with its formula, its numbers, and the sources of the machine's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.machines.system import System
from steptime.models.model import Model
from steptime.physics.demand import Demand, Work, attention_demands, operator_demand, work_of
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Layout
from steptime.physics.memory import sequences_per_group, stage_share
from steptime.physics.roofline import overlap
from steptime.physics.step import Step
from steptime.planning.deployment import Pool
from steptime.planning.steady import decode_steps, fresh_tokens, mean_context
from steptime.planning.workload import Workload
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One operator or collective: its term, what it is, the formula with numbers, and its seconds."""

    term: str
    name: str
    formula: str
    seconds: float


def explain_step(
    model: Model, system: System, step: Step, *, given: dict[str, Any], layout: Layout, engine: Engine
) -> list[Line]:
    """Return the lines of one micro-batch's pass through all layers, longest first inside each term.

    `given` are the arguments of the step: batch, context, query, prompts, tokens, prefix.
    """
    arrays = {name: np.asarray(given.get(name, 1 if name == "query" else 0)) for name in GIVEN}
    work = work_of(arrays, Layout(**{name: np.asarray(getattr(layout, name)) for name in NAMES}))
    lines: dict[tuple[str, str, str], tuple[int, float]] = {}
    for layer, n in (*model.layers, *((None, 1),)):
        for op in layer.ops if layer else model.stem:
            if op.rows in ("none", "lookup") or op.term == "norms":
                continue
            demand = operator_demand(op, work, system, layout, engine)
            _collect(lines, op.term, op.name, demand, n, system, engine)
        for attention in layer.attention if layer else ():
            for phase, demand in attention_demands(attention, work, system, layout, engine).items():
                _collect(lines, "attention", f"{attention.name}, {phase}", demand, n, system, engine)
    found = [
        Line(term=term, name=f"{name} x {count}" if count > 1 else name, formula=formula, seconds=seconds)
        for (term, name, formula), (count, seconds) in lines.items()
    ]
    found += _collectives(model, system, step, work, layout)
    order = {term: position for position, term in enumerate(step.terms)}
    return sorted(found, key=lambda line: (order.get(line.term, 99), -line.seconds))


GIVEN = ("batch", "context", "query", "prompts", "tokens", "prefix")


def _collect(
    lines: dict[tuple[str, str, str], tuple[int, float]],
    term: str,
    name: str,
    demand: Demand,
    count: int,
    system: System,
    engine: Engine,
) -> None:
    bandwidth = system.chip.hbm.bandwidth
    efficiency = engine.attention_memory_efficiency if np.any(demand.kv) else engine.memory_efficiency
    bytes_ = float(demand.weights + demand.activations + demand.kv)
    compute = float(demand.flops) / float(demand.peak) / float(demand.efficiency)
    memory = bytes_ / float(bandwidth) / float(efficiency)
    of_peak = f" / {float(demand.efficiency):.2f}" if demand.efficiency != 1 else ""
    of_memory = f" / {float(efficiency):.2f}" if efficiency != 1 else ""
    joined = "max" if np.isinf(engine.roofline_norm) else f"{float(engine.roofline_norm):g}-norm"
    formula = (
        f"{joined}({show(float(demand.flops), 'FLOP')} / {show(float(demand.peak), 'FLOP/s')}{of_peak} = {show(compute, 's')}, "
        f"{show(bytes_, 'B')} / {show(float(bandwidth), 'B/s')}{of_memory} = {show(memory, 's')})"
    )
    seconds = float(overlap(compute, memory, engine.roofline_norm))
    previous, total = lines.get((term, name, formula), (0, 0.0))
    lines[term, name, formula] = (previous + count, total + count * seconds)


def _collectives(model: Model, system: System, step: Step, work: Work, layout: Layout) -> list[Line]:
    rows = float(work.decode + work.prefill)
    described = {
        "all-reduce": f"2 (g-1)/g x {rows:,.0f} rows x {model.width:,} x 2 B over g = {int(layout.group)} chips, each block, "
        "or g-1 in one phase where that is faster",
        "dispatch": f"{float(work.everywhere / layout.stage):,.1f} tokens of a chip to experts on {int(layout.ep)} chips",
        "combine": "the same way back in 16 bits",
        "context exchange": f"queries and partial outputs over cp {int(layout.cp)} chips",
        "pipeline": f"{rows / float(layout.group):,.1f} rows x {model.width:,} x 2 B through {int(layout.pp)} stages",
        "overhead": "the engine's seconds per layer, per sequence and per step",
    }
    link = f" at {show(float(system.scale_up.link.bandwidth), 'B/s')} inside the {system.scale_up.name} domain"
    return [
        Line(term=term, name="", formula=text + ("" if term == "overhead" else link), seconds=float(step.terms[term]))
        for term, text in described.items()
        if term in step.terms and float(step.terms[term]) > 0
    ]


def step_given(pool: Pool, workload: Workload, *, mixed: bool) -> dict[str, Any]:
    """Return the arguments of the step that a pool of a plan runs."""
    fresh = fresh_tokens(workload)
    cached = workload.input_tokens - fresh
    if pool.role == "prefill":
        return {"prompts": pool.batch, "tokens": fresh, "prefix": cached}
    given: dict[str, Any] = {"batch": pool.batch, "context": mean_context(workload), "query": 1}
    if mixed and pool.mixed is not None:
        tokens = min(pool.chunk, fresh)
        together = max(1, pool.chunk // fresh)
        given |= {"prompts": together * pool.layout.dp, "tokens": tokens, "prefix": cached + (fresh - tokens) / 2}
    return given


def equations(model: Model, pool: Pool, workload: Workload) -> list[str]:
    """Return the equations that join the step to the plan's figures, with their numbers."""
    step = float(pool.step.total)
    each = float(sequences_per_group(pool.batch, pool.layout))
    lines = [
        f"batch {pool.batch:,} = {each:,.0f} sequences x {int(pool.layout.dp)} attention groups"
        + (f", in {int(pool.layout.microbatches)} micro-batches" if pool.layout.microbatches > 1 else ""),
        f"mean context {mean_context(workload):,.0f} = input + output / 2",
    ]
    if pool.mixed is not None:
        mixed, share = float(pool.mixed.total), pool.chunk_share
        mean = (1 - share) * step + share * mixed
        lines += [
            "share of steps with a prompt chunk f = batch x input / ((output - 1) x chunk x groups) = "
            f"{pool.batch:,} x {fresh_tokens(workload):,.0f} / "
            f"({decode_steps(workload):,.0f} x {pool.chunk:,} x {int(pool.layout.dp)}) = {share:.3f}",
            f"time per token = (1 - f) x {show(step, 's')} + f x {show(mixed, 's')} = {show(mean, 's')}",
        ]
    if pool.layout.pp > 1:
        lines.append(
            f"the fullest of {int(pool.layout.pp)} stages holds {float(stage_share(model, pool.layout)):.1%} of the layers"
        )
    return lines


def sources(system: System) -> list[tuple[str, str, str, str, str]]:
    """Return (figure, value, grade, date, URL) of the machine's figures that a step depends on, and of the rent."""
    wanted = [
        (path, figure)
        for path, figure in system.figures.items()
        if path.startswith(("chip.peak", "chip.hbm", "chip.sram", "scale_up", "pod", "scale_out"))
    ]
    found = [(path, figure.text, figure.grade, figure.date, figure.url) for path, figure in wanted]
    rent = system.rent
    return [*found, ("rent", show(float(rent.typical), "USD/s"), rent.grade, rent.date, rent.url or rent.note)]
