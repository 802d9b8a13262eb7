"""Explanation of a plan: operators of each pass, equations, and sources of the system's figures."""

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
    """Return a step's operators and collectives with their formulas.

    Args:
        lines: Operators and collectives with formula and time.

    Returns:
        A table; the name of a term stands in its first row only.
    """
    grid = table("Term", "Operator", "Per chip and micro-batch", "Time", numbers=(3,), first_to_go=(1,))
    previous = ""
    for line in lines:
        grid.add_row(line.term if line.term != previous else "", line.name, line.formula, show(line.seconds, "s"))
        previous = line.term
    return grid


def explain_plan(model: Model, system: System, plan: Plan, engine: Engine) -> RenderableType:
    """Return every term of a plan's steps with formulas, numbers and sources.

    Args:
        model: The model.
        system: The system.
        plan: A feasible plan.
        engine: The engine.

    Returns:
        Something that a console prints.
    """
    # The KV cache has the number format of the engine.
    model = as_served(model, system, engine)
    parts: list[RenderableType] = []
    for pool in plan.pools:
        parts += [Text(), heading(f"Equations of the {pool.role} pool")]
        parts += [Text(f"  {rule}") for rule in _equations(model, plan, pool)]
        for name, step, mixed in _passes(pool):
            parts += [Text(), heading(f"A {name}: {show(float(step.total), 's')} (bounds {bounds(step)})")]
            parts.append(lines_table(_explained(model, system, plan, pool, engine, mixed=mixed)))
    origin = model.source or {"url": "a local config"}
    provenance = ", ".join(text for key in ("grade", "date") if (text := origin.get(key)))
    parts.append(Text(f"Model: {origin['url']}" + (f" ({provenance})" if provenance else ""), no_wrap=True, overflow="ignore"))
    return Group(*parts, sources_table(system))


def explain_json(model: Model, system: System, plan: Plan, engine: Engine) -> dict[str, Any]:
    """Return the explanation of a plan as data.

    Args:
        model: The model.
        system: The system.
        plan: A feasible plan.
        engine: The engine.

    Returns:
        Equations and passes by pool, and the sources of model and system.
    """
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
    """Yield name and step of each pass of a pool, and whether it combines a prefill chunk with decode."""
    yield "prefill pass" if pool.role == "prefill" else "decode step", pool.step, False
    if pool.mixed is not None:
        yield "step with a prefill chunk", pool.mixed, True


def sources_table(system: System) -> RenderableType:
    """Return the sources of a system's figures as a table.

    Args:
        system: The system.

    Returns:
        A table with the list of sources.
    """
    return sourced("Figure", sources(system))


def sources_json(system: System) -> list[dict[str, str]]:
    """Return the sources of a system's figures as data.

    Args:
        system: The system.

    Returns:
        Name, value, grade, date and URL of each figure.
    """
    return [dict(zip(("figure", "value", "grade", "date", "url"), row, strict=True)) for row in sources(system)]
