"""How a plan's figures come about: each pass line by line, its equations and the sources of the machine's figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.step_view import bounds
from steptime.cli.views.widgets import Grid, heading, sourced, table
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.physics.kv_dtype import as_served
from steptime.physics.step import Step
from steptime.planning.plan_result import (
    Plan,
    Pool,
)
from steptime.planning.step_explanation import Line, equations, explain_step, sources, step_given
from steptime.units import show


def lines_table(lines: list[Line]) -> Grid:
    """Return a step's operators and collectives with their formulas."""
    grid = table("Term", "Operator", "Per chip and micro-batch", "Time", numbers=(3,), first_to_go=(1,))
    previous = ""
    for line in lines:
        grid.add_row(line.term if line.term != previous else "", line.name, line.formula, show(line.seconds, "s"))
        previous = line.term
    return grid


def explain_plan(model: Model, system: System, plan: Plan, engine: Engine) -> RenderableType:
    """Return every term of a plan's steps with formulas, numbers and sources."""
    model = as_served(model, system, engine)
    parts: list[RenderableType] = []
    for pool in plan.pools:
        parts += [Text(), heading(f"How the {pool.role} pool's figures come about")]
        parts += [Text(f"  {rule}") for rule in _equations(model, plan, pool)]
        for name, step, mixed in _passes(pool):
            parts += [Text(), heading(f"A {name}: {show(float(step.total), 's')} (bounds {bounds(step)})")]
            parts.append(lines_table(_explained(model, system, plan, pool, engine, mixed=mixed)))
    origin = model.source or {"url": "a local config"}
    provenance = ", ".join(text for key in ("grade", "date") if (text := origin.get(key)))
    parts.append(Text(f"Model: {origin['url']}" + (f" ({provenance})" if provenance else ""), no_wrap=True, overflow="ignore"))
    return Group(*parts, sources_table(system))


def explain_json(model: Model, system: System, plan: Plan, engine: Engine) -> dict[str, Any]:
    """Return what `explain_plan` shows, as data."""
    model = as_served(model, system, engine)
    pools = []
    for pool in plan.pools:
        passes = []
        for name, step, mixed in _passes(pool):
            lines = _explained(model, system, plan, pool, engine, mixed=mixed)
            times = {"total_s": step.total, "lower_s": step.lower, "upper_s": step.upper}
            passes.append({"pass": name, **times, "lines": lines})
        pools.append({"pool": pool.role, "equations": _equations(model, plan, pool), "passes": passes})
    return {"pools": pools, "model_source": dict(model.source), "sources": sources_json(system)}


def _equations(model: Model, plan: Plan, pool: Pool) -> list[str]:
    return equations(model, pool, plan.workload, utilisation=plan.utilisation, speculation=plan.speculation)


def _explained(model: Model, system: System, plan: Plan, pool: Pool, engine: Engine, *, mixed: bool) -> list[Line]:
    """Return the lines of a pass of a pool."""
    drafts = plan.speculation.drafts
    sizes = step_given(pool, plan.workload, mixed=mixed, drafts=drafts)
    return explain_step(model, system, sizes=sizes, layout=pool.layout, engine=engine, drafts=drafts)


def _passes(pool: Pool) -> Iterator[tuple[str, Step, bool]]:
    """Yield the passes of a pool: its name, the step, and whether a prompt chunk is read beside decode."""
    yield "prefill pass" if pool.role == "prefill" else "decode step", pool.step, False
    if pool.mixed is not None:
        yield "step with a prompt chunk", pool.mixed, True


def sources_table(system: System) -> RenderableType:
    """Return where the machine's figures come from."""
    return sourced("Figure", sources(system))


def sources_json(system: System) -> list[dict[str, str]]:
    """Return where the machine's figures come from, as data."""
    return [dict(zip(("figure", "value", "grade", "date", "url"), row, strict=True)) for row in sources(system)]
