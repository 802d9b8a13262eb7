r"""Step predictor: the time of any pass of one replica in microseconds, from a table compiled once.

Simulators of engines ask for the time of each batch that a scheduler makes, thousands of times a second. A pass decodes
$b$ sequences of mean context $c$ and prefills $p$ prompts of $n$ tokens each after $x$ cached tokens. On one data-parallel rank
without pipeline stages, operators run one after another. The time of the pass is a sum:

$$ t = D(b, c) + R(p n) + A(p, n, x) + J(b, p n) + E(w, r) $$

$D$ is a decode step, $R$ one prompt without its attention, and $A$ the attention of prompts with the logits of all but the
first. $J$ corrects for the weights, launches and host work that decode and prefill share. Each part is a table of exact
steps of `physics.step`, and the predictor interpolates linearly between its points. $D$ and $A$ are linear in contexts for
full attention. The points are close enough for errors below 1 % (`CLOSE`, `BEND`). `compile_predictor` measures them on
drawn passes.

$E$ is the time of routed experts with expert parallelism. The busiest rank depends on the rows $w$ and on their requests:
the tokens of one request prefer the same experts (`expert_imbalance.busiest_rows`). Requests of
$w_i$ rows fluctuate as much as this number of equal ones (Kish, Survey Sampling, 1965; `op_work.effective_requests`):

$$ w = b + p n, \qquad r = \frac{(\sum_i w_i)^2}{\sum_i w_i^2} = \frac{(b + p n)^2}{b + p n^2} $$

$D$, $R$, $A$ and $J$ are then without experts. Elsewhere experts depend on rows only, so that these parts include them.

Where one kernel takes prompts and decoding sequences in one call (`attention_kernels.JointKernel`), the attention of sequences
is longer with prompts. $J$ is then without attention. $D$ has a second table for such passes, and a third one by $b$ and $n$.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import LayoutError, RangeError
from steptime.models.model import Model
from steptime.models.model_loading import ModelLike, load_model
from steptime.number_checks import Array, between
from steptime.physics.chip_memory import memory_per_chip, words_of_excess
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import Engine, default_formats, engine_for, launches_kernels, model_and_system, with_launches
from steptime.physics.layout import Layout, show_layout
from steptime.physics.layout_space import default_layout
from steptime.physics.op_work import has_joint_calls
from steptime.physics.step import mixed_step
from steptime.result_base import Result, unit
from steptime.simulation.step_time_model import minimum_steps
from steptime.units import percent

# Ratio of neighbouring points of an axis: the time of a roofline bends little between two of them.
CLOSE: Final = 1.12
COARSE: Final = 1.5
# Values up to which each whole number is a point.
EXACT: Final = 16
# Relative error of an axis that adds a point, and the most rounds of such points.
BEND, ROUNDS = 2e-3, 5
# Passes on which the error is measured, and the seed that draws them.
SAMPLES, SEED = 1200, 7
# Largest relative error that a table has without a note.
PROMISED: Final = 0.01
# Largest tables.
MOST_BATCH, MOST_TOKENS, MOST_CONTEXT = 65_536, 1 << 20, 1 << 22
ATTENTION: Final = "attention"
EXPERTS: Final = "experts"
# Relative spread over requests from which experts are a table by rows and requests.
SPREAD: Final = 1e-6
LEFT_OUT = unit("", "", left_out=True)


def axis(largest: int, *, ratio: float = CLOSE, exact: int = EXACT, zero: bool = False) -> list[float]:
    """Return the points of an axis: whole numbers, then a geometric series that ends at the largest value.

    Args:
        largest: Largest value.
        ratio: Ratio of neighbouring points.
        exact: Largest value up to which each whole number is a point.
        zero: Whether 0 is a point.

    Returns:
        Points in ascending order.

    >>> axis(40, ratio=1.5, exact=4, zero=True)
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 21.0, 32.0, 40.0]
    """
    points = list(range(0 if zero else 1, min(exact, largest) + 1))
    while points[-1] < largest:
        points.append(min(largest, max(points[-1] + 1, math.ceil(points[-1] * ratio))))
    return [float(point) for point in points]


def refined(points: list[float], seconds: Callable[[Array], Array]) -> list[float]:
    """Return an axis with further points where a time bends, such as at the largest tile of a kernel.

    Args:
        points: Points of the axis.
        seconds: Exact times at points.

    Returns:
        Points in ascending order, between which interpolation departs by less than `BEND`.

    >>> len(refined([0.0, 8.0, 16.0], lambda x: 1 + np.maximum(x, 3.0)))
    6
    """
    for _ in range(ROUNDS):
        knots = np.array(points)
        middle = np.floor((knots[:-1] + knots[1:]) / 2)
        times, exact = seconds(knots), seconds(middle)
        share = (middle - knots[:-1]) / (knots[1:] - knots[:-1])
        wrong = np.abs(times[:-1] + share * (times[1:] - times[:-1]) - exact) > BEND * exact
        if not np.any(wrong & (middle > knots[:-1])):
            break
        points = sorted({*points, *middle[wrong].tolist()})
    return points


def place(points: Sequence[float], value: float) -> tuple[int, float]:
    """Return the point below a value, and the share of the way to the next one; beyond the ends the last slope continues."""
    # Comparisons take half the time of `min` and `max`.
    below, last = bisect_right(points, value) - 1, len(points) - 2
    below = 0 if below < 0 else last if below > last else below
    return below, (value - points[below]) / (points[below + 1] - points[below])


def interpolated(table: list[list[float]], rows: Sequence[float], columns: Sequence[float], row: float, column: float) -> float:
    """Return the value of a table between four of its points; beyond its ends the last slopes continue."""
    i, u = place(rows, row)
    j, v = place(columns, column)
    low, high = table[i], table[i + 1]
    return (1 - u) * ((1 - v) * low[j] + v * low[j + 1]) + u * ((1 - v) * high[j] + v * high[j + 1])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepPredictor(Result):
    """Times of passes of one replica, from tables of exact steps; see the module for the formula.

    All tables are in seconds. `decode` is by batch and context, and `rows` by prompt tokens of the pass.
    `attention` is by prompts, tokens of a prompt and cached tokens. `shared` is by batch and prompt tokens of the pass.
    `experts` is by rows and requests of the pass, and empty where experts depend on rows only. `joint` is `decode` in passes
    with prompts, and `joint_tokens` is by batch and tokens of a prompt; both are empty where prompts and sequences have their
    own kernels.
    `least` is the minimum time of a pass with prompts by batch, where the host launches its kernels (above `graph_tokens`
    tokens); empty elsewhere.
    """

    SCHEMA: ClassVar[str] = "steptime.predictor/1"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "note": unit("", "warning of errors above 1 %, or of weights that do not fit; empty otherwise", kind="text")
    }

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    layout: Layout = field(metadata=unit("", "layout of the replica"))
    max_batch: int = field(metadata=unit("sequences", "largest decode batch of the table"))
    max_tokens: int = field(metadata=unit("tokens", "most prompt tokens of a pass"))
    max_context: int = field(metadata=unit("tokens", "longest context of the table"))
    error: float = field(default=0.0, metadata=unit("", "largest relative error on drawn passes, against exact steps"))
    excess: float = field(
        default=0.0, metadata=unit("B", "bytes that the weights of a chip need above its memory; 0 where they fit")
    )
    batches: list[float] = field(metadata=LEFT_OUT)
    contexts: list[float] = field(metadata=LEFT_OUT)
    prompts: list[float] = field(metadata=LEFT_OUT)
    tokens: list[float] = field(metadata=LEFT_OUT)
    prefixes: list[float] = field(metadata=LEFT_OUT)
    decode: list[list[float]] = field(metadata=LEFT_OUT)
    rows: list[float] = field(metadata=LEFT_OUT)
    attention: list[list[list[float]]] = field(metadata=LEFT_OUT)
    shared: list[list[float]] = field(metadata=LEFT_OUT)
    shared_batches: list[float] = field(metadata=LEFT_OUT)
    shared_tokens: list[float] = field(metadata=LEFT_OUT)
    joint: list[list[float]] = field(metadata=LEFT_OUT)
    joint_tokens: list[list[float]] = field(metadata=LEFT_OUT)
    least: list[float] = field(default_factory=list, metadata=LEFT_OUT)
    graph_tokens: float = field(default=0.0, metadata=LEFT_OUT)
    experts: list[list[float]] = field(metadata=LEFT_OUT)
    expert_rows: list[float] = field(metadata=LEFT_OUT)
    expert_requests: list[float] = field(metadata=LEFT_OUT)

    @property
    def note(self) -> str:
        """The warning of errors above 1 %, or of weights that do not fit; "" otherwise."""
        notes = []
        if missing := words_of_excess(self.excess):
            notes.append(f"{self.model} does not fit: {missing}; raise tp")
        if self.error > PROMISED:
            notes.append(
                f"this table departs from exact steps by up to {percent(self.error, 1)}, above the "
                f"{percent(PROMISED)} of other tables; ask `steptime step` for the exact time of a pass"
            )
        return "; ".join(notes)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the subject and the range of the table.

        Returns:
            A title and a table of texts.
        """
        title = f"Step predictor of {self.model} on {self.system}, {show_layout(self.layout)}, engine {self.engine}"
        reach = f"up to {self.max_batch:,} sequences, {self.max_tokens:,} prompt tokens and {self.max_context:,} of context"
        figures = {"table": reach, "largest error": f"{percent(self.error, 2)} on {SAMPLES:,} drawn passes"}
        return title, figures | ({"note": self.note} if self.note else {})

    def uniform_seconds(
        self, batch: float = 0, context: float = 0, prompts: float = 1, tokens: float = 0, prefix: float = 0
    ) -> float:
        """Return the time of a pass with equal sequences and equal prompts.

        Args:
            batch: Decoding sequences.
            context: Tokens in the KV cache of each.
            prompts: Prompts in prefill, if they have new tokens.
            tokens: New tokens of each prompt.
            prefix: Cached tokens of each prompt.

        Returns:
            Seconds; 0 for an empty pass.

        Raises:
            RangeError: A size is negative, not finite, or outside the table.
        """
        return self._seconds(batch, context, prompts, tokens, prefix, prompts * tokens * tokens)

    def _seconds(self, batch: float, context: float, prompts: float, tokens: float, prefix: float, squares: float) -> float:
        """Return the time of a pass; `squares` is the sum of the squared new tokens of its prompts."""
        total = prompts * tokens
        if not (0 <= batch <= self.max_batch and 0 <= total <= self.max_tokens and 0 <= prompts <= self.max_batch):
            raise self._outside(batch, total)
        longest = context if context > prefix + tokens else prefix + tokens
        if not (0 <= longest <= self.max_context and context >= 0 and prefix >= 0):
            raise RangeError(f"context: the table holds 0 to {self.max_context:,} tokens, got {longest:g}; raise max_context")
        seconds = 0.0
        if batch > 0:
            table = self.joint if total > 0 and self.joint else self.decode
            seconds = interpolated(table, self.batches, self.contexts, batch, context)
        if total > 0:
            k, w = place(self.tokens, total)
            seconds += (1 - w) * self.rows[k] + w * self.rows[k + 1] + self._attention(prompts, tokens, prefix)
            if batch > 0:
                seconds += interpolated(self.shared, self.shared_batches, self.shared_tokens, batch, total)
                if self.joint:
                    seconds += interpolated(self.joint_tokens, self.batches, self.tokens, batch, tokens)
        if self.experts and batch + squares > 0:
            seconds += self._experts(batch + total, batch + squares)
        if self.least and total > 0 and batch + total > self.graph_tokens:
            k, w = place(self.batches, batch) if batch > 1 else (0, 0.0)
            floor = (1 - w) * self.least[k] + w * self.least[k + 1]
            return floor if floor > seconds else seconds
        return seconds

    def _experts(self, rows: float, squares: float) -> float:
        """Return the time of experts; `squares` is the sum of the squared rows of all requests."""
        # A mean number of requests below 1 counts as one, as in `expert_imbalance.busiest_rows`.
        requests = max(rows * rows / squares, 1.0)
        return interpolated(self.experts, self.expert_rows, self.expert_requests, rows, requests)

    def _attention(self, prompts: float, tokens: float, prefix: float) -> float:
        """Return the attention of prompts, with the logits of all but the first."""
        p, u = place(self.prompts, prompts)
        i, v = place(self.tokens, tokens)
        k, w = place(self.prefixes, prefix)
        seconds = 0.0
        # A single prompt, as in most passes, is at a point.
        for offset, share in ((p, 1 - u), (p + 1, u)) if u else ((p, 1.0),):
            near, far = self.attention[offset][i], self.attention[offset][i + 1]
            seconds += share * ((1 - v) * ((1 - w) * near[k] + w * near[k + 1]) + v * ((1 - w) * far[k] + w * far[k + 1]))
        return seconds

    def _outside(self, batch: float, total: float) -> RangeError:
        if not 0 <= batch <= self.max_batch:
            return RangeError(f"batch: the table holds 0 to {self.max_batch:,} sequences, got {batch:g}; raise max_batch")
        return RangeError(f"tokens: the table holds 0 to {self.max_tokens:,} prompt tokens, got {total:g}; raise max_tokens")

    def seconds(self, contexts: Sequence[float] = (), prefills: Iterable[tuple[float, float]] = ()) -> float:
        """Return the time of a pass with any sequences and prompts.

        Sequences count with their mean context, which is exact for full attention. Prompts count as equal ones with the same
        number of new tokens and of pairs of query and key; experts count the new tokens of each.

        Args:
            contexts: Tokens in the KV cache of each decoding sequence.
            prefills: New tokens and cached tokens of each prompt.

        Returns:
            Seconds; 0 for an empty pass.
        """
        batch = len(contexts)
        context = sum(contexts) / batch if batch else 0.0
        prompts, total, pairs, squares = 0, 0.0, 0.0, 0.0
        for tokens, prefix in prefills:
            prompts += 1
            total += tokens
            pairs += tokens * (prefix + 0.5 * tokens)
            squares += tokens * tokens
        if not total:
            return self.uniform_seconds(batch, context)
        # The prefix that gives equal prompts the same pairs; shorter equal prompts where that is negative.
        tokens = total / prompts
        prefix = pairs / total - 0.5 * tokens
        return self._seconds(batch, context, prompts, tokens, max(prefix, 0.0), squares)


def compile_predictor(
    model: ModelLike,
    system: SystemLike,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    weights: str = "",
    experts: str = "",
    kv: str = "",
    max_batch: int = 256,
    max_tokens: int = 8192,
    max_context: int = 131_072,
) -> StepPredictor:
    """Compile a table of exact steps that answers the time of any pass in microseconds.

    Args:
        model: A model, or a name as for `load_model`.
        system: A system, or a name as for `load_system`.
        layout: Parallel degrees; by default the smallest layout that holds the weights. One data-parallel rank and one
            pipeline stage.
        engine: An engine, or its name; by default that of the system.
        weights: Number format of the weights; "": the config's.
        experts: Number format of the routed experts; "": that of `weights`.
        kv: Number format of the KV cache; "": the engine's.
        max_batch: Largest decode batch.
        max_tokens: Most prompt tokens of a pass, over all prompts.
        max_context: Longest context, with the cached tokens of prompts.

    Returns:
        The predictor.

    Raises:
        LayoutError: The layout has several data-parallel ranks, stages or micro-batches.
        RangeError: A size of the table is out of range.

    >>> predictor = compile_predictor("llama-3.1-8b", "hgx-h100", engine="ideal", max_batch=8, max_tokens=512, max_context=2048)
    >>> seconds = predictor.seconds([1024, 512], [(256, 0)])
    >>> 0.0045 < seconds < 0.0075
    True
    """
    between("max_batch", max_batch, 2, MOST_BATCH)
    between("max_tokens", max_tokens, 2, MOST_TOKENS)
    between("max_context", max_context, 2, MOST_CONTEXT)
    machine = resolve_system(system)
    runs_on = engine_for(machine, engine)
    if isinstance(model, str) and (weights or experts or kv):
        loaded = load_model(model, weights=weights, experts=experts, kv=kv)
        loaded = loaded if weights else default_formats(loaded, runs_on)
    else:
        loaded, _ = model_and_system(model, machine, runs_on)
    loaded = as_served(loaded, machine, runs_on)
    degrees = default_layout(loaded, machine) if layout is None else layout
    if degrees.dp != 1 or degrees.pp != 1 or degrees.microbatches != 1:
        raise LayoutError(
            f"layout: a predictor has one data-parallel rank and one stage, got {show_layout(degrees)}; "
            "compile one predictor per rank"
        )
    tables = _tables(loaded, machine, runs_on, degrees, max_batch, max_tokens, max_context)
    room = float(memory_per_chip(loaded, machine, batch=0, context=0, layout=degrees, engine=runs_on).cache_room)
    predictor = StepPredictor(
        model=loaded.name, system=machine.name, engine=runs_on.name, layout=degrees, max_batch=max_batch,
        max_tokens=max_tokens, max_context=max_context, excess=max(0.0, -room), **tables,
    )  # fmt: skip
    sizes = drawn_passes(predictor, SAMPLES, SEED)
    exact = mixed_step(loaded, machine, **sizes, layout=degrees, engine=runs_on, parts=False).total
    columns = zip(*(sizes[name].tolist() for name in ("batch", "context", "prompts", "tokens", "prefix")), strict=True)
    answers = np.array([predictor.uniform_seconds(*values) for values in columns])
    return replace(predictor, error=float(np.max(np.abs(answers / exact - 1))))


def drawn_passes(predictor: StepPredictor, count: int, seed: int) -> dict[str, Any]:
    """Draw passes from all of a predictor's table: a third each of decode, prefill, and both.

    Args:
        predictor: The predictor.
        count: Number of passes.
        seed: Seed of the random numbers.

    Returns:
        Sizes of `mixed_step` by name.
    """
    random = np.random.default_rng(seed)

    def log_uniform(largest: Any) -> Any:
        return np.floor(np.exp(random.uniform(0, 1, count) * np.log(np.maximum(np.floor(largest), 1) + 0.999)))

    kind = np.arange(count) % 3
    batch = np.where(kind == 1, 0, log_uniform(predictor.max_batch))
    prompts = np.where(kind == 0, 0, log_uniform(min(predictor.max_batch, predictor.max_tokens)))
    tokens = np.where(kind == 0, 0, log_uniform(predictor.max_tokens / np.maximum(prompts, 1)))
    room = predictor.max_context - tokens
    prefix = np.where((kind == 0) | (random.uniform(size=count) < 0.5), 0, log_uniform(room))
    context = np.where(kind == 1, 0, log_uniform(predictor.max_context))
    return {"batch": batch, "context": context, "prompts": prompts, "tokens": tokens, "prefix": np.minimum(prefix, room)}


def _tables(
    model: Model, system: Any, engine: Engine, layout: Layout, max_batch: int, max_tokens: int, max_context: int
) -> dict[str, Any]:
    """Return the axes and tables of a predictor."""
    # Sums of tables have no minimum time of passes with prompts.
    launching, engine = engine, with_launches(engine, 0.0)
    # Attention bends at the length of a window.
    windows = {a.window * a.stride for layer, _ in model.layers for a in layer.attention if math.isfinite(a.window)}
    bends = {near for window in windows for near in (window / 2, window * 3 / 4, window - 1, window, window + 1)}

    def with_bends(points: list[float]) -> list[float]:
        return sorted({*points, *(bend for bend in bends if 1 < bend < points[-1])})

    batches, contexts = axis(max_batch), with_bends(axis(max_context, exact=1, zero=True))
    prompts = axis(max_batch, ratio=COARSE, exact=2)
    tokens, prefixes = with_bends(axis(max_tokens)), with_bends([0.0, *axis(max_context, exact=1, ratio=1.3)[5:]])
    shared_batches, shared_tokens = axis(max_batch, ratio=1.25, exact=4), axis(max_tokens, ratio=1.15, exact=4)

    def step(**sizes: Any) -> Any:
        arrays: dict[str, Any] = {name: np.asarray(value, dtype=float) for name, value in sizes.items()}
        return mixed_step(model, system, **arrays, layout=layout, engine=engine)

    def seconds(term: str, **sizes: Any) -> Array:
        result = step(**sizes)
        return np.asarray(result.terms.get(term, np.zeros_like(result.total)))

    expert_rows, expert_requests, experts = _experts(lambda **sizes: seconds(EXPERTS, **sizes), layout, max_batch, max_tokens)
    routed_term = (EXPERTS,) if experts else ()

    def without(*terms: str, **sizes: Any) -> Array:
        result = step(**sizes)
        return np.asarray(result.total - sum(np.asarray(result.terms.get(term, 0.0)) for term in terms))

    tokens = refined(tokens, lambda points: without(*routed_term, prompts=1, tokens=points))
    shared_tokens = refined(shared_tokens, lambda points: without(*routed_term, batch=1, context=1, prompts=1, tokens=points))
    column = np.array(batches)[:, None]
    decode = without(*routed_term, batch=column, context=np.array(contexts)[None, :])
    rows = without(ATTENTION, *routed_term, prompts=1, tokens=np.array(tokens))
    heads = without(ATTENTION, *routed_term, prompts=np.array(prompts), tokens=1) - np.interp(prompts, tokens, rows)
    attention = partial(seconds, ATTENTION)
    grid = np.array(prompts)[:, None, None], np.array(tokens)[None, :, None], np.array(prefixes)[None, None, :]
    attended = attention(prompts=grid[0], tokens=grid[1], prefix=grid[2]) + heads[:, None, None]

    # What both parts of a mixed pass share does not depend on contexts.
    fixed = min(max_context, 128)
    group, sizes = np.array(shared_batches)[:, None], np.array(shared_tokens)[None, :]
    joined = has_joint_calls(model, system, engine)
    excluded_terms = (ATTENTION, *routed_term) if joined else routed_term
    mixed = without(*excluded_terms, batch=group, context=fixed, prompts=1, tokens=sizes)
    shared = mixed - without(*excluded_terms, batch=group, context=fixed) - without(*excluded_terms, prompts=1, tokens=sizes)
    longer = longer_tokens = np.zeros((0, 0))
    if joined:
        sequences: dict[str, Any] = {"batch": column, "context": np.array(contexts)[None, :]}
        prompt: dict[str, Any] = {"prompts": 1, "tokens": 1}
        longer = decode + attention(**sequences, **prompt) - attention(**sequences) - attention(**prompt)
        sequences, prompt = {"batch": column, "context": fixed}, {"prompts": 1, "tokens": np.array(tokens)[None, :]}
        longer_tokens = attention(**sequences, **prompt) - attention(**prompt)
        longer_tokens = longer_tokens - longer_tokens[:, :1]
    least: list[float] = []
    if launches_kernels(launching):
        smallest: dict[str, Any] = {"batch": np.array(batches), "context": 1.0, "prompts": 1, "tokens": 1, "layout": layout}
        least = minimum_steps(lambda slow: mixed_step(model, system, **smallest, engine=slow).total, launching).tolist()
    return {
        "batches": batches, "contexts": contexts, "prompts": prompts, "tokens": tokens, "prefixes": prefixes,
        "decode": decode.tolist(), "rows": rows.tolist(), "attention": attended.tolist(),
        "shared": shared.tolist(), "shared_batches": shared_batches, "shared_tokens": shared_tokens,
        "joint": longer.tolist(), "joint_tokens": longer_tokens.tolist(),
        "least": least, "graph_tokens": float(launching.overheads.graph_tokens),
        "experts": experts, "expert_rows": expert_rows, "expert_requests": expert_requests,
    }  # fmt: skip


def _experts(
    seconds: Callable[..., Array], layout: Layout, max_batch: int, max_tokens: int
) -> tuple[list[float], list[float], list[list[float]]]:
    """Return rows, requests and the table of experts; three empty lists where requests do not change their time."""
    if np.all(np.asarray(layout.ep) == 1):
        return [], [], []

    # Of equal prompts, the effective number of requests is the number of prompts.
    def table(rows: Array, requests: Array) -> Array:
        return seconds(prompts=requests[None, :], tokens=rows[:, None] / requests[None, :])

    # By Cauchy's inequality the effective number of b sequences and p prompts is at most b + p. The time falls steeply between
    # one and two requests, so that points between whole numbers are needed.
    requests = np.geomspace(1.0, 2.0 * max_batch, math.ceil(math.log(2 * max_batch, CLOSE)) + 1)
    ends = requests[[0, -1]]
    rows = refined(axis(max_batch + max_tokens), lambda points: table(points, ends[:1])[:, 0])
    rows = refined(rows, lambda points: table(points, ends[1:])[:, 0])
    times = table(np.array(rows), requests)
    if np.all(np.ptp(times, axis=1) <= SPREAD * np.max(times, axis=1)):
        return [], [], []
    return rows, requests.tolist(), times.tolist()
