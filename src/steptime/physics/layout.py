"""How a model is laid over chips, and which layouts are legal.

One replica is `tp * cp * dp * pp` chips: `pp` stages of `dp` attention groups of `tp * cp` chips. Attention and dense layers
are divided inside a group and repeated in each; `tp` divides heads, and `cp` the cached context where heads run out (each chip
keeps every cp-th token; queries are gathered and partial outputs scattered, as in vLLM's decode context parallelism). Routed
experts are spread over all chips of a stage, `ep` ways, each expert divided over the `tp * cp * dp / ep` chips that share it.
Neighbours in tp are neighbours in the machine, then cp, dp, pp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np

from steptime.errors import LayoutError
from steptime.machines.system import System
from steptime.models.model import Model
from steptime.numbers import Number
from steptime.results import Tabular, broadcast, in_words, unit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Layout(Tabular):
    """Ways of each kind of parallelism; any field may be an array, and all broadcast.

    tp: tensor parallel. pp: pipeline stages. dp: attention groups (data parallel attention). ep: expert parallel. cp: context
    parallel. microbatches: parts of the batch in flight at once, which pipeline stages and two-batch overlap need.
    replicas: copies of it all. redundant_experts: extra copies of busy experts, held to balance the load.
    """

    tp: Number = field(default=1, metadata=unit("", "tensor parallel ways"))
    pp: Number = field(default=1, metadata=unit("", "pipeline stages"))
    dp: Number = field(default=1, metadata=unit("", "attention groups"))
    ep: Number = field(default=1, metadata=unit("", "expert parallel ways"))
    cp: Number = field(default=1, metadata=unit("", "context parallel ways"))
    microbatches: Number = field(default=1, metadata=unit("", "parts of the batch in flight at once"))
    replicas: Number = field(default=1, metadata=unit("", "copies of it all"))
    redundant_experts: Number = field(default=0, metadata=unit("", "extra copies of busy experts"))

    @property
    def group(self) -> Number:
        """Chips of one attention group."""
        return self.tp * self.cp

    @property
    def stage(self) -> Number:
        """Chips of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def chips(self) -> Number:
        """Chips of one replica."""
        return self.stage * self.pp

    def __repr__(self) -> str:
        shown = ((f.name, f.default, getattr(self, f.name)) for f in fields(self))
        given = (f"{name}={in_words(value, '{:g}'.format)}" for name, usual, value in shown if np.any(value != usual))
        return f"Layout({', '.join(given)})"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the ways that are not 1, and the chips of a replica."""
        return repr(self), {"chips of a replica": in_words(self.chips, "{:,g}".format)}

    def columns(self) -> dict[str, Any]:
        """Return a row for each layout."""
        return broadcast({name: getattr(self, name) for name in NAMES})


NAMES = tuple(f.name for f in fields(Layout))
LARGEST_REPLICA = 256  # chips; larger ones are tried only where one scale-up domain is larger


def show_layout(layout: Layout) -> str:
    """Return a layout as text: the axes that are not 1.

    >>> show_layout(Layout(tp=8, ep=8)), show_layout(Layout())
    ('tp8 ep8', 'one chip')
    """
    short = {"microbatches": "mb", "replicas": "x", "redundant_experts": "red"}
    shown = [f"{short.get(n, n)}{getattr(layout, n):g}" for n in NAMES if getattr(layout, n) > (n != "redundant_experts")]
    return " ".join(shown) or "one chip"


def check(layout: Layout, model: Model, system: System) -> None:
    """Raise LayoutError where a layout does not divide the model, naming the axis and the nearest ways that would."""
    for name in NAMES:
        value = np.asarray(getattr(layout, name))
        least = 0 if name == "redundant_experts" else 1
        whole = value.dtype.kind in "iu" or not np.any(value % 1)
        if not whole or np.any(value < least):
            raise LayoutError(f"{name} must be a whole number of at least {least}, not {np.min(value):g}")
    routed = [layer.routed for layer, _ in model.layers if layer.routed is not None]
    if np.any(model.heads % np.asarray(layout.group)):
        axes = "tp x cp" if np.any(np.asarray(layout.cp) > 1) else "tp"
        near = _near(model.heads, layout.group)
        raise LayoutError(f"{axes}={layout.group} does not divide the {model.heads} heads of {model.name}; try {near}")
    if np.any(np.asarray(layout.pp) > model.depth):
        raise LayoutError(f"pp={layout.pp} is more than the {model.depth} layers of {model.name}")
    if np.any(np.asarray(layout.ep) > 1) and not routed:
        raise LayoutError(f"ep={layout.ep}, but {model.name} has no experts; use tp or pp")
    if np.any(layout.stage % np.asarray(layout.ep)):
        raise LayoutError(
            f"ep={layout.ep} does not divide the tp x cp x dp = {layout.stage} chips of a stage; "
            f"try {_near(layout.stage, layout.ep)}"
        )
    for op in routed:
        if np.any(np.asarray(layout.ep) > op.experts):
            raise LayoutError(f"ep={layout.ep} is more than the {op.experts} experts of {model.name}")
    if np.any(np.asarray(layout.dp) > 1) and not routed:
        raise LayoutError(f"dp={layout.dp}, but {model.name} has no experts that attention groups could share; use replicas")
    if np.any(np.asarray(layout.cp) > 1) and all(a.state_bytes > 0 for layer, _ in model.layers for a in layer.attention):
        raise LayoutError(f"cp={layout.cp}, but {model.name} has no KV cache to divide")
    if math.isfinite(system.scale_out.size) and np.any(np.asarray(layout.chips) > system.scale_out.size):
        raise LayoutError(f"{layout.chips} chips are more than the {system.scale_out.size} of {system.name}")


def _near(whole: Number, ways: Number) -> str:
    if np.ndim(whole) or np.ndim(ways):
        return "ways that divide it"
    divisors = [d for d in range(1, int(whole) + 1) if whole % d == 0]
    return " or ".join(str(d) for d in sorted(sorted(divisors, key=lambda d: abs(d - ways))[:2]))


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, smallest first.

    >>> divisors(72)
    [1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36, 72]
    """
    return [d for d in range(1, number + 1) if number % d == 0]


def legal(model: Model, system: System, chips: int, *, microbatches: tuple[int, ...] = (1, 2)) -> Iterator[Layout]:
    """Yield the layouts of `model` whose replicas fit `chips` chips, with as many replicas as fit.

    An attention group stays inside the scale-up domain; a stage may span several. `microbatches`: micro-batches a stage.
    """
    routed = next((layer.routed for layer, _ in model.layers if layer.routed is not None), None)
    domain = min(system.scale_up.size, chips)
    largest = min(chips, max(domain, LARGEST_REPLICA))
    tps = [t for t in divisors(model.heads) if t <= domain]
    kv = max((a.kv_shards for layer, _ in model.layers for a in layer.attention), default=1)
    seen = set()
    for tp, pp in product(tps, [p for p in (1, 2, 3, 4, 6, 8, 9, 12, 16) if p <= min(model.depth, chips)]):
        for cp in (1, 2, 4, 8):
            if tp * cp * pp > largest or (cp > 1 and (tp < kv or tp * cp > domain or model.heads % (tp * cp))):
                continue
            for dp in _groups(largest // (tp * cp * pp), routed is not None):
                stage = tp * cp * dp
                if stage > domain and domain % (tp * cp):
                    continue  # an attention group would straddle two domains
                for ep in _expert_ways(stage, dp, routed.experts if routed else 0):
                    for parts in microbatches:
                        layout = Layout(
                            tp=tp,
                            pp=pp,
                            dp=dp,
                            ep=ep,
                            cp=cp,
                            microbatches=pp * parts,
                            replicas=replicas(system, chips, stage * pp),
                        )
                        if layout not in seen:
                            seen.add(layout)
                            yield layout


def exchanges_experts(layout: Layout) -> bool:
    """Whether attention groups send each other tokens for their experts."""
    return bool(layout.dp > 1 and layout.ep > 1)


def replicas(system: System, chips: int, each: int) -> int:
    """How many replicas of `each` chips fit in `chips`: whole ones in each scale-up domain, where they fit in one."""
    domain = min(system.scale_up.size, chips)
    if each > domain:
        return chips // each
    return int(chips // domain * (domain // each) + chips % domain // each)


def _groups(most: int, shared: bool) -> list[int]:
    """Attention groups worth trying: all that divide evenly into the chips, and the powers of two below."""
    if not shared:
        return [1]
    return sorted(set(divisors(most)) | {2**n for n in range(most.bit_length()) if 2**n <= most})


def _expert_ways(stage: int, dp: int, experts: int) -> list[int]:
    """Expert parallel ways: none, or all chips of the stage (as many as there are experts for)."""
    if not experts:
        return [1]
    most = max(w for w in divisors(stage) if w <= experts)
    return sorted({1, most} if dp == 1 or most == stage else {1})


def stacked(layouts: list[Layout]) -> Layout:
    """Return one layout whose fields are arrays of shape (layouts,)."""
    return Layout(**{name: np.array([getattr(m, name) for m in layouts]) for name in NAMES})


def shaped(layout: Layout, dimensions: int) -> Layout:
    """Return the layout with `dimensions` axes of length one appended to every array field."""
    return replace(layout, **{n: np.asarray(getattr(layout, n)).reshape((-1,) + (1,) * dimensions) for n in NAMES})
