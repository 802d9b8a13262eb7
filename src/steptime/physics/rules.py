"""Which layouts can run, as one table of rules: `check` raises the first that is broken, the search keeps what breaks none.

A rule holds over arrays of layouts at once. Its scope says what breaking it means: "model", it cannot run at all; "search", it
could run, but another layout does the same at less cost; "engine", the engine at hand cannot run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steptime.errors import LayoutError
from steptime.machines.system import System
from steptime.models.model import Model
from steptime.numbers import Number
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Layout, check_ways, exchanges_experts

MODEL, SEARCH, ENGINE = "model", "search", "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rules ask of a model, a machine, the chips of a deployment and an engine.

    heads, kv_heads, depth, experts (0: none); cached: whether any layer keeps a KV cache; domain: chips of a scale-up domain
    that the deployment uses; most: chips that the machine can have; two_batch: what the engine overlaps.
    """

    model: str = ""
    system: str = ""
    heads: int = 0
    kv_heads: int = 1
    depth: int = 0
    experts: int = 0
    cached: bool = True
    domain: Number = math.inf
    most: Number = math.inf
    chips: Number = math.inf
    engine: str = ""
    two_batch: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on layouts: where it `holds`, the `reason` to give where it does not, and the engines that need it.

    engines: names; none: all.
    """

    name: str
    scope: str
    holds: Callable[[Facts, Layout], Any]
    reason: Callable[[Facts, Layout], str]
    engines: tuple[str, ...] = ()


def facts_of(model: Model, system: System, *, chips: int | None = None, engine: Engine | None = None) -> Facts:
    """Return what rules ask, of `chips` of the system (by default any number) and an engine (by default any)."""
    shape = _shape(model)
    most = system.scale_out.size
    inside = system.scale_up.size if chips is None else min(system.scale_up.size, chips)
    return Facts(
        **shape,
        system=system.name,
        domain=inside,
        most=most,
        chips=most if chips is None else chips,
        engine="" if engine is None else engine.name,
        two_batch=2.0 if engine is None else float(engine.scheduler.two_batch),
    )


def facts_of_engine(engine: Engine) -> Facts:
    """Return what rules of scope "engine" ask, whatever the model and the machine."""
    return Facts(engine=engine.name, two_batch=float(engine.scheduler.two_batch))


def _shape(model: Model) -> dict[str, Any]:
    """Return what rules ask of a model."""
    mixers = [a for layer, _ in model.layers for a in layer.attention]
    return {
        "model": model.name,
        "heads": model.heads,
        "kv_heads": max((a.kv_shards for a in mixers), default=1),
        "depth": model.depth,
        "experts": min((layer.routed.experts for layer, _ in model.layers if layer.routed), default=0),
        "cached": any(a.state_bytes == 0 for a in mixers),
    }


def _axis(value: Number) -> Any:
    return np.asarray(value)


def _first(value: Number) -> str:
    """Write an axis of a layout: its number, or the first of several."""
    return f"{_axis(value).ravel()[0]:g}" if np.ndim(value) else f"{value}"


def _near(whole: Number, ways: Number) -> str:
    """Write the divisors of `whole` that are nearest to `ways`."""
    if np.ndim(whole) or np.ndim(ways):
        return "ways that divide it"
    number, about = int(whole), float(ways)
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return " or ".join(str(d) for d in sorted(sorted(divisors, key=lambda d: abs(d - about))[:2]))


def _heads(facts: Facts, layout: Layout) -> str:
    axes = "tp x cp" if np.any(_axis(layout.cp) > 1) else "tp"
    near = _near(facts.heads, layout.group)
    return f"{axes}={layout.group} does not divide the {facts.heads} heads of {facts.model}; try {near}"


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="heads",
        scope=MODEL,
        holds=lambda f, x: f.heads % _axis(x.group) == 0,
        reason=_heads,
    ),
    Rule(
        name="stages",
        scope=MODEL,
        holds=lambda f, x: _axis(x.pp) <= f.depth,
        reason=lambda f, x: f"pp={x.pp} is more than the {f.depth} layers of {f.model}",
    ),
    Rule(
        name="has experts",
        scope=MODEL,
        holds=lambda f, x: (_axis(x.ep) == 1) | (f.experts > 0),
        reason=lambda f, x: f"ep={x.ep}, but {f.model} has no experts; use tp or pp",
    ),
    Rule(
        name="expert ways",
        scope=MODEL,
        holds=lambda _, x: x.stage % _axis(x.ep) == 0,
        reason=lambda _, x: (
            f"ep={x.ep} does not divide the tp x cp x dp = {x.stage} chips of a stage; try {_near(x.stage, x.ep)}"
        ),
    ),
    Rule(
        name="experts enough",
        scope=MODEL,
        holds=lambda f, x: (_axis(x.ep) <= f.experts) | (f.experts == 0),
        reason=lambda f, x: f"ep={x.ep} is more than the {f.experts} experts of {f.model}",
    ),
    Rule(
        name="shared experts",
        scope=MODEL,
        holds=lambda f, x: (_axis(x.dp) == 1) | (f.experts > 0),
        reason=lambda f, x: f"dp={x.dp}, but {f.model} has no experts that attention groups could share; use replicas",
    ),
    Rule(
        name="divided cache",
        scope=MODEL,
        holds=lambda f, x: (_axis(x.cp) == 1) | f.cached,
        reason=lambda f, x: f"cp={x.cp}, but {f.model} has no KV cache to divide",
    ),
    Rule(
        name="chips of the machine",
        scope=MODEL,
        holds=lambda f, x: _axis(x.chips * x.replicas) <= f.most,
        reason=lambda f, x: f"{np.max(x.chips * x.replicas):,} chips are more than the {np.max(f.most):,} of {f.system}",
    ),
    Rule(
        name="chips of the deployment",
        scope=SEARCH,
        holds=lambda f, x: _axis(x.chips) <= f.chips,
        reason=lambda f, x: f"a replica of {x.chips} chips is more than the {f.chips} at hand",
    ),
    Rule(
        name="heads before context",
        scope=SEARCH,
        holds=lambda f, x: (_axis(x.cp) == 1) | (_axis(x.tp) >= f.kv_heads),
        reason=lambda f, x: f"cp={x.cp} divides contexts before tp={x.tp} has divided the {f.kv_heads} KV heads",
    ),
    Rule(
        name="groups inside a domain",
        scope=SEARCH,
        holds=lambda f, x: _axis(x.group) <= f.domain,
        reason=lambda f, x: f"an attention group of {x.group} chips leaves the scale-up domain of {f.domain}",
    ),
    Rule(
        name="groups that fill a domain",
        scope=SEARCH,
        holds=lambda f, x: (x.stage <= f.domain) | (f.domain % _axis(x.group) == 0),
        reason=lambda f, x: f"an attention group of {x.group} chips would straddle two domains of {f.domain}",
    ),
    Rule(
        name="two batches",
        scope=ENGINE,
        holds=lambda f, x: (_axis(x.microbatches) <= x.pp) | (f.two_batch >= np.where(exchanges_experts(x), 1, 2)),
        reason=lambda f, _: (
            f"{f.engine or 'the engine'} overlaps two micro-batches of a stage "
            + ("in no layout" if f.two_batch < 1 else "only where attention groups exchange experts")
        ),
    ),
)
"""Sources of engine rules: https://docs.vllm.ai/en/stable/design/dbo/,
https://docs.sglang.io/advanced_features/expert_parallelism.html"""


def check(layout: Layout, model: Model, system: System) -> None:
    """Raise LayoutError where a layout is none, or breaks a rule of the model or the system."""
    check_ways(layout)
    check_rules(layout, model, system)


def check_rules(layout: Layout, model: Model, system: System) -> None:
    """Raise LayoutError where a layout cannot run the model on the system, naming the axis and the nearest ways that could.

    `check_ways` has passed the layout.
    """
    for reason in reasons(layout, facts_of(model, system), scopes=(MODEL,)):
        raise LayoutError(reason)


def reasons(layout: Layout, facts: Facts, scopes: Iterable[str] = (MODEL, SEARCH, ENGINE)) -> list[str]:
    """Return why a layout is absent from a search: what each rule that it breaks says; fields may be arrays."""
    return [rule.reason(facts, layout) for rule in _in_force(facts, scopes) if not np.all(rule.holds(facts, layout))]


def allowed(layouts: Layout, facts: Facts, scopes: Iterable[str] = (MODEL, SEARCH, ENGINE)) -> Any:
    """Return which of the layouts, fields of shape (layouts,), break no rule: booleans of that shape."""
    held = np.ones(np.broadcast_shapes(*(np.shape(getattr(layouts, name)) for name in NAMES)), dtype=bool)
    for rule in _in_force(facts, scopes):
        held &= rule.holds(facts, layouts)
    return held


def _in_force(facts: Facts, scopes: Iterable[str]) -> list[Rule]:
    wanted = tuple(scopes)
    return [rule for rule in RULES if rule.scope in wanted and (not rule.engines or facts.engine in rule.engines)]
