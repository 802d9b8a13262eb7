r"""Step time model: coefficients that give n equal steps a closed-form sum.

There are $b$ decoding sequences whose contexts add up to $C$. Prefill chunks have $P$ tokens, $Q$ pairs of
query and key, and $K$ keys in all:

$$ t = d_b + x_b C + (r_{b+P} - r_b) + q\,Q + k\,K $$

A factor (`joint`) multiplies the first two parts. It covers waits that decode and prefill share and that are
no sums: collectives that overlap with operators, and the cycle of a pipeline.

$d_b$ and $x_b$ are a line through decode steps of $b$ sequences at contexts that are equally frequent, so that the mean step
is that of all contexts also where a window ends the reads of long ones. $r_n$ is the pass of $n$
prompt tokens without their attention. The weights stream once for decode and prefill, so that prefill rows
cost only their own compute and traffic. $q$ and $k$ are the attention of prompts. This is exact for full
attention on an ideal machine with one limit at a time. `decode_error` and `mixed_error` give the deviation
from the steps of `physics.step` on random points of the range in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from steptime.errors import RangeError
from steptime.hardware.system import SCALED, System
from steptime.models.model import Model
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.engine import Engine, engine_for, launches_kernels, ttft_factor, with_launches
from steptime.physics.layout import Layout
from steptime.physics.op_work import has_joint_calls
from steptime.physics.speculative_step import drafted_step
from steptime.result_base import Result, unit
from steptime.simulation.loop_state import Rates
from steptime.units import percent

LEFT_OUT = unit("", "", left_out=True)
# Largest tabulated number of rows; beyond it the last slope continues, which is that up to a full step.
MAX_ROWS = 1 << 17
SAMPLES = 200
# Coefficients of prefill work.
PROMPT_COEFFICIENTS = ("rows", "pair", "key", "chunk", "rank_rows", "shared_rows", "slack", "least")
# Factor on the times of launches with which they last longer than the work of any chip.
SLOW = 1e6
# Terms on which the data-parallel ranks work together.
SHARED_TERMS = ("experts", "dispatch", "combine")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pace(Result):
    """Step time coefficients [s]; see the module for the formula.

    `decode` is in s by batch, `context` in s/token by batch, and `rows` in s by prompt tokens. `pair` and
    `key` are in s, and `chunk` in s per prompt in a step. With several data-parallel ranks (`groups`), `rows`
    has two parts. `rank_rows` [s] depends on the prompt tokens of the busiest rank. `shared_rows` [s], the
    experts and their exchange, depends on the prompt tokens of all ranks.

    `stages` counts pipeline stages, and `waves` the micro-batches under way in them. With one stage, all
    micro-batches of a pipeline are one step.

    `late` is the time of a prompt beyond its last pass in a pipeline, over that pass. `joint` is the factor
    on a mixed step without the attention of prompts. Its axes are decode sequences and prompt tokens, both
    powers of two minus one. `slack` [s] has the same axes: collectives that overlap with operators may last longer
    than these, and then hide as much attention of prompts. `least` [s], by batch, is the minimum time of a step with prompts,
    where the host launches its kernels one by one: above `graph_tokens` tokens of a data-parallel rank, of which each sequence
    has `query`. `before` [s] and `before_token` [s per prompt token] are the time from arrival to the queue. `answer` counts
    decode steps from the end of the prompt until the user sees the first token.
    `extra_delay` is the share of the time from a slot to the first token by which all tokens reach the user
    later. It comes from measured runs (an anchor). `decode_error` and `mixed_error` are mean relative errors.
    """

    decode: Any = field(metadata=LEFT_OUT)
    context: Any = field(metadata=LEFT_OUT)
    rows: Any = field(metadata=LEFT_OUT)
    pair: float = field(default=0.0, metadata=LEFT_OUT)
    key: float = field(default=0.0, metadata=LEFT_OUT)
    chunk: float = field(default=0.0, metadata=LEFT_OUT)
    rank_rows: Any = field(default=None, metadata=LEFT_OUT)
    shared_rows: Any = field(default=None, metadata=LEFT_OUT)
    joint: Any = field(default=None, metadata=LEFT_OUT)
    slack: Any = field(default=None, metadata=LEFT_OUT)
    least: Any = field(default=None, metadata=LEFT_OUT)
    graph_tokens: float = field(default=0.0, metadata=LEFT_OUT)
    query: int = field(default=1, metadata=LEFT_OUT)
    late: float = field(default=0.0, metadata=LEFT_OUT)
    groups: int = field(default=1, metadata=LEFT_OUT)
    stages: int = field(default=1, metadata=LEFT_OUT)
    waves: int = field(default=1, metadata=LEFT_OUT)
    before: float = field(default=0.0, metadata=LEFT_OUT)
    before_token: float = field(default=0.0, metadata=LEFT_OUT)
    answer: float = field(default=0.0, metadata=LEFT_OUT)
    extra_delay: float = field(default=0.0, metadata=LEFT_OUT)
    decode_error: float = field(default=0.0, metadata=unit("", "mean relative error of decode steps"))
    mixed_error: float = field(default=0.0, metadata=unit("", "mean relative error of mixed steps"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the errors of the coefficients.

        Returns:
            Title with the number of sequences; errors by label.
        """
        return f"Pace of up to {len(self.decode) - 1:,} sequences", {
            "mean error": f"{percent(self.decode_error, 2)} for decode steps, {percent(self.mixed_error, 2)} for mixed steps"
        }

    @property
    def rates(self) -> Rates:
        """The arrays that the event loop uses."""
        return Rates(
            np.ascontiguousarray(self.decode, dtype=np.float64),
            np.ascontiguousarray(self.context, dtype=np.float64),
            np.ascontiguousarray(self.rows if self.shared_rows is None else self.shared_rows, dtype=np.float64),
            float(self.pair),
            float(self.key),
            float(self.chunk),
            np.ascontiguousarray(self.rows if self.rank_rows is None else self.rank_rows, dtype=np.float64),
            int(self.groups),
            np.ones((1, 1)) if self.joint is None else np.ascontiguousarray(self.joint, dtype=np.float64),
            np.zeros((1, 1)) if self.slack is None else np.ascontiguousarray(self.slack, dtype=np.float64),
            np.zeros(1) if self.least is None else np.ascontiguousarray(self.least, dtype=np.float64),
            float(self.graph_tokens),
            int(self.query),
        )

    def seconds(self, batch: Any, context: Any, tokens: Any = 0, pairs: Any = 0.0, keys: Any = 0.0, chunks: Any = 0) -> Any:
        """Return the time of one step; all arguments broadcast.

        Args:
            batch: Decoding sequences.
            context: Sum of their contexts [tokens].
            tokens: Prompt tokens of the step.
            pairs: Pairs of query and key in the attention of prompts.
            keys: Keys in the attention of prompts.
            chunks: Prefill chunks.

        Returns:
            Seconds.
        """
        rows = np.asarray(self.rows)
        last = len(rows) - 1
        top = np.asarray(batch) + np.asarray(tokens)
        beyond = np.maximum(top - last, 0) * (rows[last] - rows[last - 1])
        added = rows[np.minimum(top, last)] + beyond - rows[np.minimum(batch, last)]
        decode = np.asarray(self.decode)[batch] + np.asarray(self.context)[batch] * context
        factor = 1.0 if self.joint is None else np.where(np.asarray(tokens) > 0, _interpolated(self.joint, batch, tokens), 1.0)
        hidden = 0.0 if self.slack is None else _interpolated(self.slack, batch, tokens)
        attention = np.maximum(self.pair * pairs + self.key * keys - hidden, 0.0)
        seconds = factor * (decode + added) + attention + self.chunk * chunks
        if self.least is None:
            return seconds
        is_launched = (np.asarray(tokens) > 0) & (tokens + self.query * np.asarray(batch) > self.graph_tokens * self.groups)
        return np.where(is_launched, np.maximum(seconds, np.asarray(self.least)[batch]), seconds)


def _interpolated(values: Any, batch: Any, tokens: Any) -> Any:
    """Return values interpolated in a table whose axes are powers of two minus one."""
    table = np.asarray(values)
    (i, x), (j, y) = _between(batch, len(table)), _between(tokens, len(table[0]))
    low, high = ((1 - y) * table[row, j] + y * table[row, j + 1] for row in (i, i + 1))
    return (1 - x) * low + x * high


def _between(number: Any, points: int) -> tuple[Any, Any]:
    """Return the lower point of an axis of powers of two minus one, and the distance."""
    place = np.minimum(np.log2(1.0 + np.asarray(number)), points - 1)
    below = np.minimum(place.astype(np.int64), points - 2)
    return below, place - below


def linear_pace(
    *,
    step: float,
    sequence: float = 0.0,
    context: float = 0.0,
    token: float = 0.0,
    pair: float = 0.0,
    max_num_seqs: int = 256,
    max_tokens: int = 8192,
) -> Pace:
    """Return step times from measured constants.

    Args:
        step: Time per step [s].
        sequence: Time per decoding sequence [s].
        context: Time per token of context [s].
        token: Time per prompt token [s].
        pair: Time per pair of query and key in the attention of prompts [s].
        max_num_seqs: Most sequences.
        max_tokens: Most prompt tokens per step.

    Returns:
        The step times.

    >>> pace = linear_pace(step=0.01, sequence=1e-4, context=1e-8, token=2e-5)
    >>> round(float(pace.seconds(10, 10_000)), 6), round(float(pace.seconds(0, 0, 1000)), 6)
    (0.0111, 0.03)
    """
    b, n = np.arange(max_num_seqs + 1), np.arange(max(2, max_num_seqs + max_tokens + 1))
    return Pace(
        decode=np.where(b > 0, step + sequence * b, 0.0),
        context=np.full(max_num_seqs + 1, float(context)),
        rows=np.where(n > 0, step + token * n, 0.0),
        pair=pair,
    )


def slowed(pace: Pace, slowness: float) -> Pace:
    """Return step times multiplied by a factor.

    Args:
        pace: Step times.
        slowness: Factor, above 0.

    Returns:
        The slower step times.

    >>> round(float(slowed(linear_pace(step=0.01), 1.5).seconds(10, 0)), 6)
    0.015
    """
    if slowness == 1:
        return pace
    if not slowness > 0:
        raise RangeError(f"slowness: must be greater than 0, got {slowness:g}")
    return _scaled(pace, slowness, "decode", "context", *PROMPT_COEFFICIENTS)


def with_first_tokens(pace: Pace, factor: float) -> Pace:
    """Return step times with which the TTFT is multiplied by a factor.

    A factor below 1 shortens the prefill work. A factor above 1 adds a delay outside the chips, which takes
    no capacity: the TPOT was also measured, and it gives the time of a step.

    Args:
        pace: Step times.
        factor: Factor on the TTFT.

    Returns:
        The changed step times.

    >>> faster, slower = (with_first_tokens(linear_pace(step=0.01, token=2e-5), factor) for factor in (0.5, 2.0))
    >>> float(slower.seconds(0, 0, 1000)), slower.extra_delay, round(float(faster.seconds(0, 0, 1000)), 6)
    (0.03, 1.0, 0.015)
    """
    if factor == 1:
        return pace
    pace = _scaled(pace, factor, "before", "before_token", "answer")
    if factor < 1:
        return _scaled(pace, factor, *PROMPT_COEFFICIENTS)
    return replace(_scaled(pace, factor, "late"), extra_delay=factor - 1)


def _scaled(pace: Pace, factor: float, *names: str) -> Pace:
    """Return step times with some fields multiplied by a factor."""
    changed: dict[str, Any] = {name: getattr(pace, name) * factor for name in names if getattr(pace, name) is not None}
    return replace(pace, **changed)


def sample_pace(
    model: Model,
    system: System,
    *,
    layout: Layout | None = None,
    engine: Engine | str | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    contexts: tuple[float, float] = (1.0, 8192.0),
    frequent_contexts: Any = None,
    query: int = 1,
    prompt_tokens: float = math.inf,
    check: bool = True,
    has_mixed_steps: bool = True,
    legal: bool = False,
) -> Pace:
    """Sample the step times of a replica and fit the coefficients.

    Prompts are spread evenly over the data-parallel ranks. A step is not shorter than its longest chunk on
    one rank, with the experts that the prompts of all ranks use. With `query` > 1 every decode step verifies
    speculative tokens, and the draft layers of the model, if any, make new ones.

    Args:
        model: Model.
        system: System.
        layout: Layout of the replica.
        engine: Engine or its name.
        max_num_seqs: Slots per replica.
        max_num_batched_tokens: Tokens of a data-parallel rank in a step.
        contexts: Range of the context of a decoding sequence [tokens].
        frequent_contexts: Contexts of decoding sequences that are equally frequent [tokens]; by default five over the range.
        query: Tokens per sequence in a decode step: 1 plus speculative tokens.
        prompt_tokens: Mean new tokens of a prompt. The tokens of a rank come from as many prompts: experts are more even
            over several requests. By default they come from one prompt.
        check: Compute the errors of the coefficients.
        has_mixed_steps: Fit how much longer steps with prompts and decoding sequences are than their parts. Separate
            pools have such steps only after a preemption.
        legal: Whether the layout is already checked.

    Returns:
        The step times.

    Raises:
        RangeError: `max_num_seqs` or `max_num_batched_tokens` is below 1.
    """
    layout = layout or Layout()
    low, high = max(1.0, contexts[0]), max(contexts[0] + 1.0, contexts[1])
    frequent = np.linspace(low, high, 5) if frequent_contexts is None else np.asarray(frequent_contexts, dtype=np.float64)
    if max_num_seqs < 1 or max_num_batched_tokens < 1:
        raise RangeError(
            f"max_num_seqs, max_num_batched_tokens: must be at least 1, got {max_num_seqs} and {max_num_batched_tokens}"
        )
    runs_on = engine_for(system, engine)
    # Sums of coefficients have no minimum time of steps with prompts.
    settings: dict[str, Any] = {
        "layout": layout, "engine": with_launches(runs_on, 0.0), "drafts": query - 1, "has_draft_term": False, "legal": legal,
    }  # fmt: skip

    # Each coefficient comes from its own sample of steps; they are evaluated together.
    groups = int(layout.dp)
    full_rows = int(max_num_seqs + max_num_batched_tokens * groups)
    # The prompts of a knot are whole, so that the slope between two neighbours is that of no step.
    tokens = np.unique(np.append(_knots(min(MAX_ROWS, full_rows)), full_rows))
    overlaps, budget = bool(layout.microbatches > layout.pp), max_num_batched_tokens * groups
    # Collectives that overlap with operators can hide attention, so that it is sampled without them.
    without_links = _without_links(system) if overlaps else system
    even = _even_prompts(tokens, groups, prompt_tokens)
    samples = {
        "decode": (model, system, {"batch": _knots(max_num_seqs)[:, None], "context": frequent}),
        "even": (model, system, even),
        "even operators": (model, without_links, even),
        "attention": (model, without_links, _chunks_of_prompts(budget / groups, groups, high)),
        "late": (model, system, _even_prompts(budget, groups, prompt_tokens)),
    }
    if groups > 1:
        samples["full"] = (model, without_links, {"tokens": tokens, "prompts": groups})
    if has_mixed_steps:
        # Collectives would hide attention of prompts.
        model_of_rows = _without_prompt_attention(model) if overlaps else model
        mixed = _mixed_sizes(max_num_seqs, budget, groups, float(np.mean(frequent)), prompt_tokens)
        for name, machine in (("", system), (" operators", without_links)):
            samples["mixed" + name] = (model_of_rows, machine, mixed)
            samples["mixed decode" + name] = (model_of_rows, machine, {key: mixed[key] for key in ("batch", "context")})
            if has_joint_calls(model, system, runs_on):
                prompts_only = {"batch": 0 * mixed["batch"], "prompts": mixed["prompts"], "tokens": mixed["tokens"]}
                samples["mixed prompts" + name] = (model_of_rows, machine, prompts_only)
    times = _sampled(samples, settings)
    decode, slope = _decode_coefficients(samples["decode"][2], times["decode"].total)
    even_seconds = times["even"].total - times["even"].attention
    rows = _interpolate(even_seconds, tokens)
    pair, key = _attention_coefficients(samples["attention"][2], times["attention"])
    rank_rows = shared_rows = None
    if groups > 1:
        # Where collectives of one micro-batch overlap with operators of another, a rank has its operators, and the rest of
        # an even pass is shared.
        operators, full = times["even operators"], times["full"]
        shared = even_seconds - (operators.total - operators.attention - operators.shared) if overlaps else operators.shared
        rank_rows, shared_rows = _interpolate(full.total - full.attention - full.shared, tokens), _interpolate(shared, tokens)
    pace = Pace(
        decode=decode,
        context=slope,
        rows=rows,
        pair=pair,
        key=key,
        rank_rows=rank_rows,
        shared_rows=shared_rows,
        # A prompt's time beyond its pass.
        late=float(times["late"].latency / times["late"].total) - 1 if layout.pp > 1 else 0.0,
        groups=groups,
        before=float(runs_on.scheduler.seconds_before_queue),
        before_token=float(runs_on.scheduler.seconds_before_queue_per_token),
        answer=float(runs_on.scheduler.steps_before_answer)
        + (float(runs_on.scheduler.steps_to_balance) if groups > 1 else 0.0),
    )

    # The joint factor corrects the sum of the parts, so that it needs the other coefficients.
    if has_mixed_steps:
        joint, slack = _joint_factors(pace, mixed, times, overlaps=overlaps)
        pace = replace(pace, joint=joint, slack=slack if overlaps else None)
    # The joint factor is that of steps that launches do not limit.
    if launches_kernels(runs_on):
        batch = np.unique(np.append(_knots(max_num_seqs), 0))
        smallest: dict[str, Any] = settings | {"batch": batch, "context": 1.0, "prompts": groups, "tokens": 1, "parts": False}
        least = minimum_steps(lambda slow: drafted_step(model, system, **(smallest | {"engine": slow})).total, runs_on)
        least = np.interp(np.arange(max_num_seqs + 1), batch, least)
        graph_tokens = float(runs_on.overheads.graph_tokens) * float(layout.microbatches)
        pace = replace(pace, least=least, graph_tokens=graph_tokens, query=query)
    factor = float(ttft_factor(runs_on, OperatingPoint(layout=layout)))
    if not check:
        return with_first_tokens(pace, factor)
    errors = _sample_errors(
        model, system, settings | {"engine": runs_on}, pace, (low, high), max_num_seqs, budget, prompt_tokens
    )
    return with_first_tokens(replace(pace, decode_error=errors[0], mixed_error=errors[1]), factor)


def minimum_steps(times: Callable[[Engine], Any], engine: Engine) -> Any:
    """Return the minimum time of steps with prompts [s]: launches of all layers, embedding, head and host work.

    Slow launches decide each step. A step is then linear in their time, with the rest outside of layers.

    Args:
        times: Function from an engine to the times of the steps [s].
        engine: Engine that launches layers one by one.

    Returns:
        Seconds, of the shape of the times.
    """
    slow, slower = (times(with_launches(engine, factor)) for factor in (SLOW, 2 * SLOW))
    return slow - (slower - slow) * (1.0 - 1.0 / SLOW)


@lru_cache(maxsize=256)
def _knots(last: int, dense: int = 64) -> Any:
    """Return whole numbers to sample: all up to `dense`, then 1/16 octave apart."""
    far = np.geomspace(dense, max(last, dense), max(2, int(16 * np.log2(max(last, dense) / dense)) + 2))
    return np.unique(np.minimum(np.concatenate([np.arange(1, dense + 1), np.round(far)]), last)).astype(np.int64)


class _Times(NamedTuple):
    """Seconds of steps: all, attention, work that data-parallel ranks share, and from the first to the last micro-batch."""

    total: Any
    attention: Any
    shared: Any
    latency: Any


def _sampled(samples: Mapping[str, tuple[Model, System, dict[str, Any]]], settings: Any) -> dict[str, _Times]:
    """Return the times of samples of steps, by name.

    Samples of one model and system are one call, which takes as long as the evaluation of a thousand steps.
    """
    names = ("batch", "context", "prompts", "tokens", "prefix")
    together: dict[tuple[int, int, bool], list[str]] = {}
    for name, (model, system, sizes) in samples.items():
        # Layers that draft run also where only some of the points decode.
        decodes = bool(settings["drafts"]) and "batch" in sizes
        together.setdefault((id(model), id(system), decodes), []).append(name)
    times = {}
    for members in together.values():
        model, system, _ = samples[members[0]]
        grids = [np.broadcast_arrays(*(samples[member][2].get(name, 0) for name in names)) for member in members]
        points = {name: np.concatenate([grid[place].ravel() for grid in grids]) for place, name in enumerate(names)}
        step = drafted_step(model, system, **(settings | points), parts="terms")
        nothing = np.zeros(step.total.shape)
        shared = sum((step.terms[name] for name in SHARED_TERMS if name in step.terms), nothing)
        columns = (step.total, step.terms.get("attention", nothing), shared, step.latency)
        ends = np.cumsum([grid[0].size for grid in grids])[:-1]
        parts = zip(*(np.split(column, ends) for column in columns), strict=True)
        for member, grid, part in zip(members, grids, parts, strict=True):
            times[member] = _Times(*(seconds.reshape(grid[0].shape) for seconds in part))
    return times


def _decode_coefficients(sizes: dict[str, Any], times: Any) -> tuple[Any, Any]:
    """Return decode step time at no context, and per token of total context, by batch up to the last one."""
    batch, contexts = sizes["batch"], sizes["context"]
    rows, mean_time, mean_context = batch[:, 0], times.mean(1), contexts.mean()
    deviations = contexts - mean_context
    # Equal weights keep the mean step.
    slope = (times * deviations).sum(1) / ((deviations**2).sum() * rows)
    slope = np.clip(slope, 0.0, mean_time / (rows * mean_context))
    base = mean_time - slope * rows * mean_context
    batches = np.arange(rows[-1] + 1)
    decode, context = np.interp(batches, rows, base), np.interp(batches, rows, slope)
    decode[0] = context[0] = 0.0
    return decode, context


def _without_links(system: System) -> System:
    """Return a system whose collectives take no time."""
    fast = (
        replace(d, link=replace(d.link, bandwidth=np.minimum(d.link.bandwidth * 1e6, SCALED), latency=0.0))
        for d in system.domains
    )
    return replace(system, domains=tuple(fast))


def _even_prompts(tokens: Any, groups: int, prompt_tokens: float) -> dict[str, Any]:
    """Return the sizes of prompts that are spread evenly over the ranks, with about `prompt_tokens` each."""
    per_rank = np.maximum(1.0, np.round(tokens / groups / prompt_tokens))
    return {"prompts": groups * per_rank, "tokens": tokens / groups / per_rank}


def _mixed_sizes(max_batch: int, budget: int, groups: int, context: float, prompt_tokens: float) -> dict[str, Any]:
    """Return the sizes of mixed steps whose prompts are spread evenly over the ranks."""
    batch, tokens = (2 ** np.arange(np.ceil(np.log2(1 + n)) + 1).astype(np.int64) - 1 for n in (max_batch, budget))
    return {
        "batch": np.minimum(batch, max_batch)[:, None],
        "context": context,
        **_even_prompts(np.maximum(tokens, groups), groups, prompt_tokens),
    }


def _joint_factors(pace: Pace, sizes: dict[str, Any], times: Mapping[str, _Times], *, overlaps: bool) -> tuple[Any, Any]:
    """Return the time of mixed steps over the sum of their parts, and its excess over that of operators [s].

    The attention of prompts is left out. Where a kernel takes prompts and decoding sequences in one call, it is that of prompts
    without sequences. The factor then covers how much longer the attention of sequences is with prompts.
    """
    batch, tokens = sizes["batch"], np.round(sizes["prompts"] * sizes["tokens"]).astype(np.int64)

    def without_attention(name: str) -> Any:
        if "mixed prompts" + name in times:
            return times["mixed" + name].total - times["mixed prompts" + name].attention
        attention = times["mixed" + name].attention - times["mixed decode" + name].attention
        # Terms that collectives hide are zero, also those of decode in a mixed step.
        return times["mixed" + name].total - (np.maximum(attention, 0.0) if overlaps else attention)

    total = without_attention("")
    # Decode at this context itself: the line through all contexts is another value where windows bend it.
    decode = np.where(batch > 0, times["mixed decode"].total, 0.0)
    summed = decode + pace.seconds(batch, 0.0, tokens) - pace.seconds(batch, 0.0)
    return total / summed, np.maximum(total - without_attention(" operators"), 0.0)


def _without_prompt_attention(model: Model) -> Model:
    """Return a model in which pairs of query and key of prompts take no time."""
    layers = tuple(
        (replace(layer, attention=tuple(replace(mixer, flops_per_pair_prefill=0.0) for mixer in layer.attention)), count)
        for layer, count in model.layers
    )
    return replace(model, layers=layers)


def _interpolate(times: Any, tokens: Any) -> Any:
    """Interpolate times [s] for every number of tokens up to the last one, or one beyond the table; 0 tokens take 0."""
    seconds = np.interp(np.arange(np.clip(tokens[-1] + 1, 2, MAX_ROWS + 2)), tokens, np.maximum.accumulate(times))
    seconds[0] = 0.0
    return seconds


def _chunks_of_prompts(most_tokens: float, groups: int, context: float) -> dict[str, Any]:
    """Return the sizes of chunks at several positions of prompts no longer than `context`."""
    tokens = np.geomspace(16, max(17.0, min(most_tokens, context)), 6)[:, None]
    prefix = np.linspace(0.0, 1.0, 5) * np.maximum(context - tokens, 0.0)
    return {"tokens": tokens, "prefix": prefix, "prompts": groups}


def _attention_coefficients(sizes: dict[str, Any], steps: _Times) -> tuple[float, float]:
    """Return the time [s] per pair and per key of the attention of prompts."""
    tokens, prefix, groups, times = sizes["tokens"], sizes["prefix"], sizes["prompts"], steps.attention
    pairs, keys = groups * (tokens * prefix + tokens * (tokens + 1) / 2), groups * (tokens + prefix)
    weight = 1 / steps.total
    columns = np.stack([(pairs * weight).ravel(), (keys * weight).ravel()], axis=1)
    coefficients, *_ = np.linalg.lstsq(columns, (times * weight).ravel(), rcond=None)
    # A negative coefficient has no meaning: one of the two then explains all.
    if min(coefficients) < 0:
        single_fits = [max(float(c @ (times * weight).ravel() / (c @ c)), 0.0) for c in columns.T]
        target = times * weight
        residuals = [float(np.sum((target.ravel() - a * c) ** 2)) for a, c in zip(single_fits, columns.T, strict=True)]
        coefficients = np.array([single_fits[0], 0.0]) if residuals[0] <= residuals[1] else np.array([0.0, single_fits[1]])
    return float(coefficients[0]), float(coefficients[1])


def _sample_errors(
    model: Model,
    system: System,
    settings: Any,
    pace: Pace,
    contexts: tuple[float, float],
    max_batch: int,
    budget: int,
    prompt_tokens: float,
) -> tuple[float, float]:
    """Return mean relative errors of decode steps and mixed steps at random points."""
    draw = np.random.default_rng(0)
    batch = np.maximum(1, np.round(max_batch ** draw.random(SAMPLES))).astype(np.int64)
    context = draw.uniform(*contexts, SAMPLES)
    groups = settings["layout"].dp
    even = _even_prompts(groups * draw.integers(1, max(2, budget // groups + 1), SAMPLES), groups, prompt_tokens)
    prompts, tokens = even["prompts"], even["tokens"]
    prefix = draw.uniform(0, contexts[1], SAMPLES)
    true = drafted_step(model, system, batch=batch, context=context, **settings, parts=False).total
    decode = np.mean(np.abs(pace.seconds(batch, batch * context) / true - 1))
    mixed = drafted_step(model, system, batch=batch, context=context, **even, prefix=prefix, **settings)
    pairs, keys = prompts * (tokens * prefix + tokens * (tokens + 1) / 2), prompts * (tokens + prefix)
    ours = pace.seconds(batch, batch * context, np.round(prompts * tokens).astype(np.int64), pairs, keys)
    return float(decode), float(np.mean(np.abs(ours / mixed.total - 1)))
