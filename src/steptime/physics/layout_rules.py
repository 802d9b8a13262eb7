"""Layout rules: one table of the conditions under which a layout can run.

`check` raises the first broken rule; a search keeps the layouts that break no rule. A rule is evaluated for arrays of
layouts at once. Its scope gives the meaning of a broken rule:

- "model": the layout cannot run.
- "search": it could run, but another layout does the same at a lower cost.
- "engine": this engine cannot run it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from steptime.errors import LayoutError
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.physics.engine_rules import ENGINE_RULES
from steptime.physics.layout import (
    ENGINE,
    MODEL,
    NAMES,
    SEARCH,
    Facts,
    Layout,
    Rule,
    axis,
    check_ways,
    collect_facts,
    dividing,
    near,
)


def _copies(layout: Layout) -> str:
    """Write the number of redundant experts of a layout."""
    return f" and {layout.redundant_experts} copies" if np.any(axis(layout.redundant_experts) > 0) else ""


def _heads(facts: Facts, layout: Layout) -> str:
    axes = "tp x cp" if np.any(axis(layout.cp) > 1) else "tp"
    degrees = dividing(facts.heads, layout.group, facts.domain)
    return f"{axes}={layout.group} does not divide the {facts.heads} heads of {facts.model}; try {degrees}"


RULES: Final[tuple[Rule, ...]] = (
    Rule(name="heads", scope=MODEL, holds=lambda f, x: f.heads % axis(x.group) == 0, reason=_heads),
    Rule(
        name="draft heads",
        scope=MODEL,
        holds=lambda f, x: f.draft_heads % axis(x.group) == 0,
        reason=lambda f, x: (
            f"tp={x.group} does not divide the {f.draft_heads} heads of the drafter of {f.model}, which runs with the same "
            f"tensor-parallel size; try {near(f.draft_heads, x.group, f.chips)}"
        ),
    ),
    Rule(
        name="stages",
        scope=MODEL,
        holds=lambda f, x: axis(x.pp) <= f.depth,
        reason=lambda f, x: f"pp={x.pp} is more than the {f.depth} layers of {f.model}",
    ),
    Rule(
        name="has experts",
        scope=MODEL,
        holds=lambda f, x: (axis(x.ep) == 1) | (f.experts > 0),
        reason=lambda f, x: f"ep={x.ep}, but {f.model} has no experts; use tp or pp",
    ),
    Rule(
        name="expert ways",
        scope=MODEL,
        holds=lambda _, x: x.stage % axis(x.ep) == 0,
        reason=lambda _, x: (
            f"ep={x.ep} does not divide the tp x cp x dp = {x.stage} chips of a stage; try {near(x.stage, x.ep)}"
        ),
    ),
    Rule(
        name="experts enough",
        scope=MODEL,
        holds=lambda f, x: (axis(x.ep) <= f.experts + axis(x.redundant_experts)) | (f.experts == 0),
        reason=lambda f, x: f"ep={x.ep} is more than the {f.experts} experts of {f.model}{_copies(x)}",
    ),
    Rule(
        name="shared experts",
        scope=MODEL,
        holds=lambda f, x: (axis(x.dp) == 1) | (f.experts > 0),
        reason=lambda f, x: (
            f"dp={x.dp}, but {f.model} has no routed experts that data-parallel ranks could share; use replicas"
        ),
    ),
    Rule(
        name="divided cache",
        scope=MODEL,
        holds=lambda f, x: (axis(x.cp) == 1) | f.cached,
        reason=lambda f, x: f"cp={x.cp}, but {f.model} has no KV cache to divide",
    ),
    Rule(
        name="chips of the machine",
        scope=MODEL,
        holds=lambda f, x: axis(x.chips * x.replicas) <= f.max_chips,
        reason=lambda f, x: f"{np.max(x.chips * x.replicas):,} chips are more than the {np.max(f.max_chips):,} of {f.system}",
    ),
    Rule(
        name="chips of the deployment",
        scope=SEARCH,
        holds=lambda f, x: axis(x.chips) <= f.chips,
        reason=lambda f, x: (
            f"a replica of {x.chips} chips is larger than the deployment of {f.chips} chips; try --chips {x.chips}"
        ),
    ),
    Rule(
        name="heads before context",
        scope=SEARCH,
        holds=lambda f, x: (axis(x.cp) == 1) | (axis(x.tp) >= f.kv_heads),
        reason=lambda f, x: f"cp={x.cp} divides contexts although tp={x.tp} does not yet divide all {f.kv_heads} KV heads",
    ),
    Rule(
        name="groups inside a domain",
        scope=SEARCH,
        holds=lambda f, x: axis(x.group) <= f.domain,
        reason=lambda f, x: f"a data-parallel rank of {x.group} chips is larger than the scale-up domain of {f.domain} chips",
    ),
    Rule(
        name="groups that fill a domain",
        scope=SEARCH,
        holds=lambda f, x: (x.stage <= f.domain) | (f.domain % axis(x.group) == 0),
        reason=lambda f, x: f"a data-parallel rank of {x.group} chips would span two scale-up domains of {f.domain} chips",
    ),
    *ENGINE_RULES,
)


def check(layout: Layout, model: Model, system: System) -> None:
    """Raise LayoutError where a layout is invalid or breaks a rule of model or system.

    Args:
        layout: The layout; fields may be arrays.
        model: The model.
        system: The system.

    Raises:
        LayoutError: The first problem.
    """
    check_ways(layout)
    check_rules(layout, model, system)


def check_rules(layout: Layout, model: Model, system: System) -> None:
    """Raise LayoutError where a layout cannot run the model on the system.

    The message names the axis and the nearest valid degrees. `check_ways` must have accepted the layout before.

    Args:
        layout: The layout; fields may be arrays.
        model: The model.
        system: The system.

    Raises:
        LayoutError: The first broken rule.
    """
    facts = collect_facts(model, system)
    for rule in broken(layout, facts, scopes=(MODEL,)):
        raise LayoutError(rule.reason(facts, layout))


def reasons(layout: Layout, facts: Facts, scopes: Collection[str] = (MODEL, SEARCH, ENGINE)) -> list[str]:
    """Return the reasons why a search excludes a layout, one per broken rule.

    Args:
        layout: The layout; fields may be arrays.
        facts: Facts of model, system and engine.
        scopes: Scopes of the rules to check.

    Returns:
        Messages; empty where no rule is broken.
    """
    return [rule.reason(facts, layout) for rule in broken(layout, facts, scopes)]


def broken(layout: Layout, facts: Facts, scopes: Collection[str] = (MODEL, SEARCH, ENGINE)) -> list[Rule]:
    """Return the rules that a layout breaks.

    Args:
        layout: The layout; fields may be arrays.
        facts: Facts of model, system and engine.
        scopes: Scopes of the rules to check.

    Returns:
        The broken rules, in the order of the table.
    """
    in_force = [rule for rule in RULES if rule.scope in scopes and rule.binds(facts.engine)]
    return [rule for rule in in_force if not np.all(rule.holds(facts, layout))]


def allowed(layouts: Layout, facts: Facts, scopes: Collection[str] = (MODEL, SEARCH, ENGINE)) -> Any:
    """Return which of several layouts break no rule.

    Args:
        layouts: Layouts with fields of shape (layouts,).
        facts: Facts of model, system and engine.
        scopes: Scopes of the rules to check.

    Returns:
        Booleans of shape (layouts,).
    """
    is_allowed = np.ones(np.broadcast_shapes(*(np.shape(getattr(layouts, name)) for name in NAMES)), dtype=bool)
    for rule in RULES:
        if rule.scope in scopes and rule.binds(facts.engine):
            is_allowed &= rule.holds(facts, layouts)
    return is_allowed
