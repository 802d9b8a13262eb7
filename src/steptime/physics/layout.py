"""Layout: how a model is distributed over chips by each kind of parallelism.

One replica has `tp * cp * dp * pp` chips: `pp` stages of `dp` data-parallel ranks of `tp * cp` chips. Attention and dense
layers are divided inside a rank and repeated in each rank. `tp` divides heads. `cp` divides the cached context where there
are not enough heads: each chip keeps every cp-th token, queries are gathered and partial outputs are scattered, as in
vLLM's decode context parallelism. Routed experts are spread over all chips of a stage, `ep` ways. The `tp * cp * dp / ep`
chips that share an expert divide it. Neighbours in tp are neighbours in the machine, then neighbours in cp, dp and pp.

A `Rule` is one condition on layouts, which `layout_rules` lists; `Facts` are what rules check of a model, system and
engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from steptime.errors import LayoutError, RangeError, expect
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import MOST_CHIPS, Number, divisors, whole_number
from steptime.physics.engine import Engine
from steptime.result_base import Tabular, broadcast, in_words, unit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Layout(Tabular):
    """Degrees of each kind of parallelism; any field may be an array.

    tp: Tensor parallelism.
    pp: Pipeline stages.
    dp: Data-parallel ranks of attention.
    ep: Expert parallelism.
    cp: Context parallelism.
    microbatches: Parts of the batch in flight at once, for pipeline stages and two-batch overlap.
    replicas: Copies of the whole.
    redundant_experts: Extra copies of busy experts, which balance the load.
    """

    tp: Number = field(default=1, metadata=unit("", "tensor-parallel degree"))
    pp: Number = field(default=1, metadata=unit("", "pipeline stages"))
    dp: Number = field(default=1, metadata=unit("", "data-parallel ranks"))
    ep: Number = field(default=1, metadata=unit("", "expert-parallel degree"))
    cp: Number = field(default=1, metadata=unit("", "context-parallel degree"))
    microbatches: Number = field(default=1, metadata=unit("", "micro-batches in flight at once"))
    replicas: Number = field(default=1, metadata=unit("", "replicas"))
    redundant_experts: Number = field(default=0, metadata=unit("", "extra copies of busy experts"))

    def __post_init__(self) -> None:
        """Raise LayoutError for an invalid Python scalar; arrays are checked where used."""
        values = _ALL_DEGREES(self)
        # A search creates thousands of layouts, so that the common case skips the full check.
        if {*map(type, values)} == {int} and min(values[:-1]) >= 1 and values[-1] >= 0 and max(values) <= MOST_CHIPS:
            return
        for name, value in zip(NAMES, values, strict=True):
            minimum = 0 if name == "redundant_experts" else 1
            if isinstance(value, np.ndarray | np.generic | list | tuple):
                continue
            try:
                whole_number(name, value, minimum=minimum, maximum=MOST_CHIPS)
            except RangeError as error:
                raise LayoutError(str(error)) from None

    @property
    def group(self) -> Number:
        """Chips of one data-parallel rank."""
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
        values = ((f.name, f.default, getattr(self, f.name)) for f in fields(self))
        texts = (f"{name}={in_words(value, '{:g}'.format)}" for name, usual, value in values if np.any(value != usual))
        return f"Layout({', '.join(texts)})"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the degrees that are not 1, and the chips of a replica.

        Returns:
            A title and a table of texts.
        """
        return repr(self), {"chips of a replica": in_words(self.chips, "{:,g}".format)}

    def columns(self) -> dict[str, Any]:
        """Return one row per layout.

        Returns:
            Arrays of one shape by field name.
        """
        return broadcast({name: getattr(self, name) for name in NAMES})


NAMES = tuple(f.name for f in fields(Layout))
_ALL_DEGREES = attrgetter(*NAMES)


def show_layout(layout: Layout) -> str:
    """Return a layout as text: the degrees that are not 1.

    Args:
        layout: A layout of plain numbers.

    Returns:
        Text such as "tp8 ep8".

    >>> show_layout(Layout(tp=8, ep=8)), show_layout(Layout())
    ('tp8 ep8', 'one chip')
    """
    short = {"microbatches": "mb", "replicas": "x", "redundant_experts": "red"}
    texts = [f"{short.get(n, n)}{getattr(layout, n):g}" for n in NAMES if getattr(layout, n) > (n != "redundant_experts")]
    return " ".join(texts) or "one chip"


def check_ways(layout: Layout) -> Layout:
    """Return a layout with lists as arrays.

    Args:
        layout: A layout; fields may be numbers, lists or arrays.

    Returns:
        The layout.

    Raises:
        LayoutError: A field has other numbers than whole numbers of at least 1 (redundant experts: 0).
        InputError: The argument is not a layout.
    """
    expect("a layout", layout, Layout, "a Layout, such as Layout(tp=8)")
    lists = {name: value for name in NAMES if isinstance(value := getattr(layout, name), list | tuple)}
    for name in NAMES:
        try:
            whole_number(name, getattr(layout, name), minimum=0 if name == "redundant_experts" else 1, maximum=MOST_CHIPS)
        except RangeError as error:
            raise LayoutError(str(error)) from None
    try:
        np.broadcast_shapes(*(np.shape(getattr(layout, name)) for name in NAMES))
    except ValueError as error:
        raise LayoutError(f"layout: the shapes of its fields do not broadcast: {error}") from None
    return replace(layout, **{name: np.asarray(value) for name, value in lists.items()}) if lists else layout


# Products of the results of other products in their block: they never share an input with these.
CLOSING = ("o_proj", "out_proj", "down_proj")
# Products whose inner dimension chips divide. Some of them have a separate input.
SECOND = (*CLOSING, "wo_b", "output_linear", "linear_out")


def shard_count(parts: float, chips: Number) -> Number:
    """Return the number of shards of indivisible parts over chips.

    The chip with the most parts determines the number.

    Args:
        parts: Number of parts that cannot be cut; infinite where any cut is possible.
        chips: Number of chips, or an array.

    Returns:
        Number of shards, at most `chips`.

    >>> [float(shard_count(8, chips)) for chips in (1, 6, 8, 16)], float(shard_count(10, 8)), float(shard_count(math.inf, 6))
    ([1.0, 4.0, 8.0, 8.0], 5.0, 6.0)
    """
    return chips if math.isinf(parts) else parts / np.ceil(parts / np.asarray(chips))


def exchanges_experts(layout: Layout) -> Any:
    """Whether data-parallel ranks exchange tokens for their experts.

    Args:
        layout: A layout; fields may be arrays.

    Returns:
        Booleans with the broadcast shape of dp and ep.
    """
    return (np.asarray(layout.dp) > 1) & (np.asarray(layout.ep) > 1)


def stacked(layouts: list[Layout]) -> Layout:
    """Return one layout whose fields are arrays of shape (layouts,).

    Args:
        layouts: Layouts of plain numbers.

    Returns:
        One layout.
    """
    degrees = np.array([*map(_ALL_DEGREES, layouts)]).reshape(-1, len(NAMES))
    return Layout(**dict(zip(NAMES, degrees.T.copy(), strict=True)))


def unstacked(layouts: Layout) -> list[Layout]:
    """Return the layouts of plain numbers of one layout whose fields are arrays.

    Args:
        layouts: A layout with fields of shape (layouts,).

    Returns:
        One layout per row.

    >>> unstacked(stacked([Layout(tp=2), Layout(dp=4, ep=4)])) == [Layout(tp=2), Layout(dp=4, ep=4)]
    True
    """
    columns = (np.asarray(column).tolist() for column in _ALL_DEGREES(layouts))
    return [Layout(**dict(zip(NAMES, row, strict=True))) for row in zip(*columns, strict=True)]


def joined_layouts(first: Layout, second: Layout) -> Layout:
    """Return one layout with the rows of two layouts.

    Args:
        first: Layout with fields of shape (layouts,).
        second: Layout with fields of shape (other layouts,).

    Returns:
        The rows of `first`, then those of `second`.
    """
    return Layout(**{name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in NAMES})


def shaped(layout: Layout, dimensions: int) -> Layout:
    """Append axes of length one to every field of a layout.

    Args:
        layout: A layout with fields of shape (layouts,).
        dimensions: Number of axes to append.

    Returns:
        The layout.
    """
    return replace(layout, **{n: np.asarray(getattr(layout, n)).reshape((-1,) + (1,) * dimensions) for n in NAMES})


def select_layouts(layout: Layout, index: Any) -> Layout:
    """Return the layout with the rows `index` of every field.

    Args:
        layout: A layout with fields of shape (layouts, ...).
        index: Any index of a numpy array.

    Returns:
        The layout.
    """
    return Layout(**{name: np.asarray(getattr(layout, name))[index] for name in NAMES})


# Scopes of rules.
MODEL, SEARCH, ENGINE = "model", "search", "engine"
# Engines whose sources were read; any other engine follows the rules that all of these share.
READ_ENGINES = ("vllm", "sglang", "trtllm")
# Default chips per host: no server of several such boards has more.
LARGEST_HOST = 8
# No engine, and the engine without limits of software.
FREE = ("", "ideal")
# The side of each matrix that has the columns of a feed-forward block.
BETWEEN = {"gate_proj": "outputs", "up_proj": "outputs", "down_proj": "inputs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a model, a system, a deployment and an engine that rules check.

    heads, kv_heads, depth, experts: Numbers of the model (0 experts: no routed experts).
    draft_heads: Heads of its separate drafter (0: no drafter).
    cached: Whether any layer has a KV cache.
    hybrid: Whether layers have caches of several kinds: recurrent states, or windows next to whole contexts.
    kv_kinds: KV heads of each kind of attention (1: a latent).
    state_heads: Heads of each kind of recurrent mixer.
    columns: Greatest common divisor of the widths inside feed-forward blocks, which tp divides.
    expert_columns: The same inside routed experts.
    block, expert_block: Columns that share a scale (0: unknown, or no such blocks).
    domain: Chips of a scale-up domain that the deployment uses.
    domain_chips: Chips of a scale-up domain.
    max_chips: Maximum chips of the system.
    chips: Chips of the deployment.
    two_batch: The engine's overlap of two micro-batches.
    host: Chips per host for the kernels of an overlapped exchange; 0 where these do not run, infinite where any
    number works.
    role: "prefill" or "decode" for a pool of a disaggregated deployment; "" otherwise.
    family, cache_format: Architecture of the model (`model_type` of its config), and the format of its KV cache.
    host_chips: Chips of a host.
    """

    model: str = ""
    system: str = ""
    heads: int = 0
    draft_heads: int = 0
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
    hybrid: bool = False
    domain: Number = math.inf
    domain_chips: Number = math.inf
    max_chips: Number = math.inf
    chips: Number = math.inf
    engine: str = ""
    two_batch: float = 2.0
    host: float = math.inf
    role: str = ""
    family: str = ""
    cache_format: str = ""
    host_chips: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on layouts: its test, the reason for a failure, and its engines.

    engines: Names of the engines with this rule; empty for all. An unknown engine follows the rules that all
    known engines share.
    says: The condition in words.
    sources: The source for each engine.
    """

    name: str
    scope: str
    holds: Callable[[Facts, Layout], Any]
    reason: Callable[[Facts, Layout], str]
    engines: tuple[str, ...] = ()
    says: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def binds(self, engine: str) -> bool:
        """Whether an engine of that name follows the rule.

        Args:
            engine: Name of an engine; "" or "ideal" for no engine.

        Returns:
            True or false.
        """
        if not self.engines or engine in self.engines:
            return True
        return engine not in (*READ_ENGINES, *FREE) and set(READ_ENGINES) <= set(self.engines)


def collect_facts(
    model: Model, system: System, *, chips: int | None = None, engine: Engine | None = None, role: str = ""
) -> Facts:
    """Collect the facts that rules check.

    Args:
        model: The model.
        system: The system.
        chips: Chips of the deployment; by default any number.
        engine: The engine; by default any.
        role: "prefill" or "decode" for a pool of a disaggregated deployment.

    Returns:
        The facts.
    """
    shape = _shape(model)
    largest = system.scale_out.size
    inside = system.scale_up.size if chips is None else min(system.scale_up.size, chips)
    # Chips per host for DeepEP: any number in NVLink racks and on AMD chips, none without NVLink.
    host = math.inf
    if system.chip.vendor == "NVIDIA" and system.scale_up.name != "nvlink":
        host = 0.0
    elif system.chip.vendor == "NVIDIA" and np.max(system.scale_up.size, initial=0) <= host_chips(system):
        host = float(host_chips(system))
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
        host=host,
        host_chips=float(host_chips(system)),
    )


def facts_of_engine(engine: Engine) -> Facts:
    """Collect the facts that rules of scope "engine" check, for any model and system.

    Args:
        engine: The engine.

    Returns:
        The facts.
    """
    return Facts(engine=engine.name, two_batch=float(engine.scheduler.two_batch))


@lru_cache(maxsize=256)
def _shape(model: Model) -> dict[str, Any]:
    """Return the facts of a model."""
    mixers = [a for layer, _ in model.layers for a in layer.attention]
    routed = [layer.routed for layer, _ in model.layers if layer.routed]
    # Inner widths of feed-forward blocks.
    dense = [
        (op, int(columns))
        for layer, _ in model.layers
        for op in layer.ops
        if op.term == "feed-forward" and op.split == "group" and (columns := getattr(op, BETWEEN.get(op.name, ""), 0))
    ]
    return {
        "model": model.name,
        "family": model.family,
        "cache_format": model.kv_format,
        "heads": model.heads,
        "draft_heads": model.drafter.model.heads if model.drafter is not None else 0,
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
        "hybrid": any(a.state_bytes > 0 for a in mixers) or len({a.window for a in mixers}) > 1,
    }


def host_chips(system: System) -> int:
    """Return the chips of one host of a system.

    Args:
        system: The system.

    Returns:
        The number in its file, otherwise the chips of a scale-up domain, at most `LARGEST_HOST`.
    """
    return int(system.rack.get("host_chips", np.min(system.scale_up.size, initial=LARGEST_HOST)))


def equal_parts(chips: int, host: int) -> tuple[int, int]:
    """Return the smallest number of hosts that hold a replica in equal parts.

    Args:
        chips: Chips of the replica.
        host: Chips per host.

    Returns:
        Number of hosts, and chips of the replica on each.

    >>> equal_parts(2, 8), equal_parts(16, 8), equal_parts(12, 8), equal_parts(36, 4)
    ((1, 2), (2, 8), (2, 6), (9, 4))
    """
    nodes = next(n for n in range(-(-chips // host), chips + 1) if chips % n == 0)
    return nodes, chips // nodes


# An axis of a layout as an array.
axis: Callable[[Number], Any] = np.asarray


def near(total: Number, degree: Number, chips: Number = math.inf) -> str:
    """Write the two divisors of `total` that are nearest to `degree`.

    Args:
        total: Number to divide.
        degree: Number that does not divide it.
        chips: Chips of the deployment, which no divisor exceeds.

    Returns:
        Text such as "4 or 6"; a general text for arrays.

    >>> near(12, 5), near(7, 3), near(32, 1000, 8)
    ('4 or 6', '1 or 7', '4 or 8')
    """
    if np.ndim(total) or np.ndim(degree):
        return "a degree that divides it"
    possible = [divisor for divisor in divisors(int(total)) if divisor <= np.max(chips)]
    return " or ".join(str(d) for d in sorted(sorted(possible, key=lambda d: abs(d - float(degree)))[:2]))


def dividing(total: Number, degree: Number, chips: Number) -> str:
    """Write all divisors of `total` on some chips.

    Args:
        total: Number to divide.
        degree: Number that does not divide it.
        chips: Chips of a scale-up domain, which no divisor exceeds.

    Returns:
        Text such as "1, 2 or 4"; a general text for arrays.

    >>> dividing(64, 3, 8), dividing(3, 2, 8)
    ('1, 2, 4 or 8', '1 or 3')
    """
    if np.ndim(total) or np.ndim(degree):
        return near(total, degree)
    possible = [str(divisor) for divisor in divisors(int(total)) if divisor <= np.max(chips)]
    return " or ".join(filter(None, (", ".join(possible[:-1]), possible[-1])))
