"""What rules of layouts ask: the facts of a model, a machine and an engine, and what a rule is (`rules` has them all)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model, Op
from steptime.number_checks import Number, divisors
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout

MODEL, SEARCH, ENGINE = "model", "search", "engine"  # scopes of rules
READ_ENGINES = ("vllm", "sglang", "trtllm")  # engines whose source was read; any other obeys what all of these do
LARGEST_HOST = 8  # chips of one host where a system's file tells none: no server of several such boards holds more
FREE = ("", "ideal")  # no engine, and the one that does whatever mathematics allows
BETWEEN = {"gate_proj": "outputs", "up_proj": "outputs", "down_proj": "inputs"}  # side of a matrix that has a block's columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rules ask of a model, a machine, the chips of a deployment and an engine.

    heads, kv_heads, depth, experts (0: none); cached: whether any layer keeps a KV cache; kv_kinds: KV heads of each kind of
    attention (1: a latent); state_heads: heads of each kind of recurrent mixer. columns: greatest common divisor of the widths
    inside feed-forward blocks, that tp divides, and expert_columns inside routed experts; block and expert_block: columns that
    share a scale (0 each: not known, or none). domain: chips of a scale-up domain that the deployment uses; whole: those it
    has; most: chips that the machine can have; two_batch: what the engine overlaps; host: chips of a host that the kernels of
    an overlapped exchange count by, 0 where they do not run, infinite where any number of chips will do. role: "prefill" or
    "decode" of a pool that hands its cache on or takes it; "" elsewhere.
    """

    model: str = ""
    system: str = ""
    heads: int = 0
    kv_heads: int = 1
    kv_kinds: tuple[int, ...] = ()
    state_heads: tuple[int, ...] = ()
    depth: int = 0
    experts: int = 0
    columns: int = 0
    expert_columns: int = 0
    block: int = 0
    expert_block: int = 0
    cached: bool = True
    domain: Number = math.inf
    domain_chips: Number = math.inf
    max_chips: Number = math.inf
    chips: Number = math.inf
    engine: str = ""
    two_batch: float = 2.0
    host: float = math.inf
    role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on layouts: where it `holds`, the `reason` to give where it does not, and the engines that need it.

    engines: names; none: all. An engine that is not known obeys a rule that all known ones have. says: the condition in
    words; sources: where each engine says so.
    """

    name: str
    scope: str
    holds: Callable[[Facts, Layout], Any]
    reason: Callable[[Facts, Layout], str]
    engines: tuple[str, ...] = ()
    says: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def binds(self, engine: str) -> bool:
        """Whether an engine of that name obeys it."""
        if not self.engines:
            return True
        return set(READ_ENGINES) <= set(self.engines) if engine not in (*READ_ENGINES, *FREE) else engine in self.engines


def collect_facts(
    model: Model, system: System, *, chips: int | None = None, engine: Engine | None = None, role: str = ""
) -> Facts:
    """Return what rules ask, of `chips` of the system (by default any number), an engine (by default any) and a role."""
    shape = _shape(model)
    largest = system.scale_out.size
    inside = system.scale_up.size if chips is None else min(system.scale_up.size, chips)
    return Facts(
        **shape,
        system=system.name,
        domain=inside,
        domain_chips=system.scale_up.size,
        max_chips=largest,
        chips=largest if chips is None else chips,
        engine="" if engine is None else engine.name,
        role=role,
        two_batch=2.0 if engine is None else float(engine.scheduler.two_batch),
        host=_host(system),
    )


def _host(system: System) -> float:
    """Return the chips of a host by which DeepEP counts: none without NVLink, no matter in a rack of NVLink or on AMD's."""
    if system.chip.vendor != "NVIDIA":
        return math.inf
    if system.scale_up.name != "nvlink":
        return 0.0
    host = host_chips(system)
    return math.inf if np.max(system.scale_up.size, initial=0) > host else float(host)


def facts_of_engine(engine: Engine) -> Facts:
    """Return what rules of scope "engine" ask, whatever the model and the machine."""
    return Facts(engine=engine.name, two_batch=float(engine.scheduler.two_batch))


@lru_cache(maxsize=256)
def _shape(model: Model) -> dict[str, Any]:
    """Return what rules ask of a model."""
    mixers = [a for layer, _ in model.layers for a in layer.attention]
    routed = [layer.routed for layer, _ in model.layers if layer.routed]
    dense = [(op, _columns(op)) for layer, _ in model.layers for op in layer.ops if op.term == "feed-forward" and _columns(op)]
    return {
        "model": model.name,
        "heads": model.heads,
        "kv_heads": max((a.kv_shards for a in mixers), default=1),
        "kv_kinds": tuple(sorted({a.kv_shards for a in mixers if a.state_bytes == 0})),
        "state_heads": tuple(sorted({a.heads for a in mixers if a.state_bytes > 0})),
        "depth": model.depth,
        "experts": min((op.experts for op in routed), default=0),
        "columns": math.gcd(*(columns for _, columns in dense)),
        "expert_columns": math.gcd(*(op.columns for op in routed)),
        "block": max((op.format.block for op, _ in dense), default=0),
        "expert_block": max((op.format.block for op in routed), default=0),
        "cached": any(a.state_bytes == 0 for a in mixers),
    }


def _columns(op: Op) -> int:
    """Return the width inside a feed-forward block that an operator is one side of; 0 where it is not known."""
    side = BETWEEN.get(op.name)
    return int(getattr(op, side)) if side and op.split == "group" else 0


def host_chips(system: System) -> int:
    """Return the chips of one host of a system: as its file tells, or those of a scale-up domain, at most `LARGEST_HOST`."""
    return int(system.rack.get("host_chips", np.min(system.scale_up.size, initial=LARGEST_HOST)))


def axis(value: Number) -> Any:
    """Return an axis of a layout as an array."""
    return np.asarray(value)


def near(total: Number, degree: Number) -> str:
    """Write the divisors of `total` that are nearest to `degree`.

    >>> near(12, 5), near(7, 3)
    ('4 or 6', '1 or 7')
    """
    if np.ndim(total) or np.ndim(degree):
        return "ways that divide it"
    number, about = int(total), float(degree)
    return " or ".join(str(d) for d in sorted(sorted(divisors(number), key=lambda d: abs(d - about))[:2]))
