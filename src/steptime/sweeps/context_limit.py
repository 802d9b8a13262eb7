"""The longest context of a model within a time per token and a price, by KV cache technique. Lecture, section 16.

For each technique (`models.kv_compression`) and each length, the search tries the layouts of one replica. Each layout gets the
largest batch that memory and the time per token allow. The cheapest layout is the result at that length. The longest context
that meets the limits is the wall. Costs are those of decode; prefill is not part of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from steptime.blackboard.token_cost import cost_per_token
from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import InputError, RangeError
from steptime.hardware.rental_prices import usd
from steptime.hardware.system import System
from steptime.models.kv_compression import describe_technique, technique_caveats, with_techniques
from steptime.models.model import (
    Model,
    cache_bytes,
    cache_bytes_read,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    total_parameters,
    weight_bytes,
)
from steptime.models.model_loading import ModelLike
from steptime.number_checks import MOST_CHIPS, Array, Number, limit, positive, single, whole_number
from steptime.physics.chip_memory import memory_per_chip, sequences_that_fit
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import Engine, engine_for, model_and_system
from steptime.physics.layout import Layout, select_layouts, shaped, show_layout, stacked
from steptime.physics.layout_space import legal
from steptime.physics.step import decode_step
from steptime.physics.uncertainty import step_range, unmeasured_engine_warning
from steptime.picture_files import save_picture
from steptime.processes import map_in_processes
from steptime.questions.declaration import Answer, bind, count, inputs_from, number, question_of_result, texts
from steptime.questions.subject import PricedSubject, read_subject
from steptime.result_base import Tabular, columns_by_key, range_columns, unit
from steptime.sweeps.plots import draw_contexts
from steptime.units import MILLION, counted, in_digits, percent, show

# Longest context of the search [tokens].
LONGEST: Final = 2**29


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWall:
    """Cost and longest context of a model with one KV cache technique."""

    technique: str = field(metadata=unit("", "technique as the user wrote it; empty: the unchanged model"))
    words: str = field(metadata=unit("", "technique in words"))
    parameters: float = field(metadata=unit("", "parameters of the model with the technique"))
    kv_bytes: float = field(
        metadata=unit("B", "KV cache per additional token, before any window is full", key="kv_bytes_per_token")
    )
    cache: float = field(metadata=unit("B", "KV cache of one sequence at the compared length", key="cache_bytes"))
    read_bytes: float = field(metadata=unit("B", "part of that cache that one step reads", key="read_bytes"))
    batch: int = field(default=0, metadata=unit("", "decode batch of a replica at that length; 0: no layout meets the limit"))
    layout: str = field(default="", metadata=unit("", "layout of the replica"))
    chips: int = field(default=0, metadata=unit("", "chips of the replica"))
    step: float = field(default=math.nan, metadata=unit("s", "time of a step at that length"))
    step_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range of the step"))
    usd_per_million: float = field(
        default=math.nan,
        metadata=unit("USD", "cost of decode per million output tokens at that length", key="usd_per_million_output_tokens"),
    )
    longest: float = field(
        metadata=unit("tokens", "longest context within the time per token; null: any length, because the cache does not grow")
    )
    longest_range: tuple[float, float] | None = field(
        default=None, metadata=unit("tokens", "90 % range, from the range of the step")
    )
    longest_priced: float = field(
        metadata=unit("tokens", "longest context within time and price; null: any length, or no known rent")
    )
    binds: str = field(default="", metadata=unit("", "limit of the longest context: time or memory"))
    read_share: float = field(
        default=math.nan,
        metadata=unit("", "share of the memory bandwidth at which attention reads the cache, at the longest context"),
    )
    caveats: tuple[str, ...] = field(default=(), metadata=unit("", "drawbacks of the technique, with their sources"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ContextWalls(Tabular):
    """Longest contexts of a model by KV cache technique, the unchanged model first."""

    SCHEMA: ClassVar[str] = "steptime.context_walls/2"

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    kv_format: str = field(metadata=unit("", "number format of the KV cache of the unchanged model"))
    chips: int = field(metadata=unit("", "chips that one replica may take"))
    context: int = field(metadata=unit("tokens", "length at which techniques are compared"))
    tpot: float = field(metadata=unit("s", "limit on the time per token"))
    usd_per_million: float = field(metadata=unit("USD", "limit on the price of output", key="usd_per_million_output_tokens"))
    priced: bool = field(
        metadata=unit("", "whether the user gave that limit; else it is the cost of the unchanged model at the compared length")
    )
    max_context: float = field(
        metadata=unit("tokens", "maximum context of the model; null: not stated", key="max_context_tokens")
    )
    reason: str = field(default="", metadata=unit("", "why the unchanged model reaches no length; empty: it reaches one"))
    walls: tuple[ContextWall, ...] = field(metadata=unit("", "one entry per technique, the unchanged model first"))
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "usual techniques that the model cannot have, and why"))
    notes: tuple[str, ...] = field(
        default=(), metadata=unit("", "an engine without measured runs; why a technique that reads less reaches fewer tokens")
    )
    curves: tuple[tuple[Array, Array], ...] = field(
        default=(), metadata=unit("", "lengths [tokens] and costs [USD per million tokens] of each technique", left_out=True)
    )

    @property
    def base(self) -> ContextWall:
        """The unchanged model."""
        return self.walls[0]

    @property
    def text(self) -> str:
        """The answer in a sentence or two."""
        base, longer = self.base, max(self.walls, key=lambda wall: (wall.longest_priced, wall.longest))
        speed = f"{in_digits(1 / self.tpot)} tok/s"
        first = f"At {speed} {self.model} on {self.system} reaches {tokens(base.longest)} of context"
        first += (
            f" (90 % range {tokens(base.longest_range[0])} to {tokens(base.longest_range[1])})" if base.longest_range else ""
        )
        if not base.longest:
            return f"{self.model} on {self.system} reaches no context at {speed}: {self.reason}."

        # A range narrower than 1 % comes from memory, which has no uncertainty.
        if base.longest_range and base.longest_range[1] < 1.01 * base.longest_range[0]:
            first = f"At {speed} {self.model} on {self.system} reaches {tokens(base.longest)} of context, limited by memory"
        if math.isfinite(self.usd_per_million) and self.priced:
            first += f", and {tokens(base.longest_priced)} for {usd(self.usd_per_million)} per million output tokens"
        first += "."
        if longer is base or not longer.longest_priced > 1.01 * base.longest_priced:
            return first
        money = f" at {usd(self.usd_per_million)} per million output tokens" if math.isfinite(self.usd_per_million) else ""
        ends = (
            "any length, because its cache does not grow"
            if math.isinf(longer.longest_priced)
            else tokens(longer.longest_priced)
        )
        return f"{first} The technique with the longest context{money} is {longer.technique}: {ends}."

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the longest context of each technique.

        Returns:
            The title, and lengths in words by technique.
        """
        title = f"Longest contexts of {self.model} on {self.system}, {show(self.tpot, 's')} a token"
        return title, {wall.technique or "unchanged": tokens(wall.longest) for wall in self.walls}

    def columns(self) -> dict[str, Any]:
        """Return one row per technique; ranges as two columns.

        Returns:
            Columns by name, one value per technique.
        """
        table = columns_by_key(ContextWall, self.walls)
        del table["caveats"]
        for name, key in (("step_range_s", "step_{}_s"), ("longest_range_tokens", "longest_{}_tokens")):
            table[key.format("low")], table[key.format("high")] = range_columns(table.pop(name))
        return table

    def plot(self, path: str) -> None:
        """Write a plot of the costs over the length of context to a file.

        Args:
            path: File with the ending .svg, .png or .pdf.
        """
        save_picture(path, lambda: draw_contexts(self))


def tokens(value: float) -> str:
    """Write a length of context in words.

    Args:
        value: Tokens; 0 for no length, infinite for any.

    Returns:
        A text with three digits.

    >>> tokens(131072), tokens(2_345_678), tokens(math.inf), tokens(LONGEST), tokens(0)
    ('131,000 tokens', '2.35 M tokens', 'any length', 'over 536 M tokens', 'no length')
    """
    if not value:
        return "no length"
    if math.isinf(value):
        return "any length"
    if value >= LONGEST:
        return f"over {LONGEST // MILLION:,.0f} M tokens"
    rounded = float(f"{value:.3g}")
    return f"{rounded / MILLION:,.4g} M tokens" if rounded >= MILLION else f"{rounded:,.0f} tokens"


# Default context at which techniques are compared [tokens].
DEFAULT_CONTEXT: Final = 131_072
# Default limit on the time per output token [s]: 20 tokens per second, somewhat faster than reading speed.
TPOT: Final = 0.05
# Shortest context of the search [tokens].
LEAST: Final = 64
# Lengths per factor of two in the second search, over the layouts that a first search with one length per factor kept.
OCTAVE: Final = 2
# Lengths between two neighbours in each refinement.
FINER: Final = 16
# Number of refinements; the wall is then known to 0.2 %.
ROUNDS: Final = 2
# Batches per evaluation, and number of evaluations: the batch is then known to 0.05 %.
GRID, LOOKS = 12, 4
# Largest batch of the search.
MOST_BATCH: Final = 1 << 20
# Largest replica in a scale-up domain unless the user gives a number of chips.
CHIPS: Final = 128
# Longest context of the timed attention kernels [tokens] (data/kernels/attention.toml).
LONGEST_TIMED: Final = 131_072
# Arithmetic of attention, over that of the unchanged model, from which on it is the cause of slow reads.
MORE_ARITHMETIC: Final = 1.5
# Number of roomiest and of fastest layouts that the search keeps near the longest contexts.
ENDS: Final = 4
# Name of the unchanged model among the techniques.
AS_IS: Final = ""
# Techniques of the default comparison; those that a model cannot have are left out. The last one is Character.AI's
# (https://research.character.ai/optimizing-inference/).
USUAL: Final = (
    "kv=fp8", "kv=int4", "window=4096@5of6", "share=2", "kv_heads=1", "latent=512", "rank=0.5", "keep=8192", "topk=2048",
    "blocks=128x16", "kv_heads=1+window=1024@5of6+share=3+kv=int8",
)  # fmt: skip


def context_walls(
    model: ModelLike,
    system: SystemLike,
    *,
    techniques: Sequence[str] | None = None,
    context: int = DEFAULT_CONTEXT,
    tpot: float = TPOT,
    usd_per_million: float | None = None,
    chips: int = 0,
    engine: Engine | str | None = None,
) -> ContextWalls:
    """Return the longest context within a time per token and a price, by technique.

    Args:
        model: Catalogue name, path or model.
        system: Catalogue name, path or system.
        techniques: Names such as "window=1024@5of6+kv=int8" (`with_techniques`); by default the usual ones for the model.
        context: Length at which techniques are compared [tokens].
        tpot: Limit on the time per output token [s].
        usd_per_million: Limit on the cost of decode [USD per million tokens]; by default the cost of the unchanged model at
            `context`.
        chips: Chips that one replica may take; by default a scale-up domain, at most `CHIPS`.
        engine: Name or engine; the system's by default.

    Returns:
        One wall per technique, the unchanged model first.

    Raises:
        InputError: If a technique does not exist, or does not suit the model.
        RangeError: If a value is outside its bounds, or the system has no rent and a price is limited.
    """
    resolved_model, resolved_system = model_and_system(model, system, engine)
    techniques = [techniques] if isinstance(techniques, str) else techniques
    if techniques is not None and not all(words.strip() for words in techniques):
        raise InputError("technique: is empty; the unchanged model comes first in any case")
    single(context=context, tpot=tpot, usd_per_million=usd_per_million, chips=chips)
    context = whole_number("the context", context, minimum=LEAST, maximum=LONGEST, unit="token")
    tpot = limit("the time per token", tpot)
    if usd_per_million is not None:
        usd_per_million = positive("USD per million tokens", usd_per_million, "USD")
    domain = int(min(float(np.asarray(resolved_system.scale_up.size)), CHIPS))
    chips = whole_number("chips", chips, maximum=MOST_CHIPS) if chips else domain
    runs_on = engine_for(resolved_system, engine)
    rent = float(np.asarray(resolved_system.rent.typical))
    if usd_per_million is not None and not math.isfinite(rent):
        raise RangeError(
            f"rent: {resolved_system.name} has no known rent, so that the price cannot be limited; "
            "give a rent, such as 2.50 USD per chip-hour"
        )

    # The engine may store the cache in another format than the checkpoint; techniques change the served model.
    served = as_served(resolved_model, resolved_system, runs_on)
    search = _Search(served, resolved_system, runs_on, chips, context, tpot, usd_per_million)
    variants, left_out = _variants(served, techniques)

    # The unchanged model comes first: its cost is the price limit of the others by default.
    base, curve = search.wall(AS_IS)
    price_limit = usd_per_million
    if price_limit is None:
        price_limit = math.inf if math.isnan(base.usd_per_million) else base.usd_per_million
    searches = [(name, replace(search, model=variant, usd=price_limit)) for name, variant in variants]
    unmeasured = unmeasured_engine_warning(runs_on, resolved_system)
    walls, curves = zip((base, curve), *map_in_processes(_wall, searches), strict=True)
    return ContextWalls(
        model=resolved_model.name, system=resolved_system.name, engine=runs_on.name, kv_format=served.kv_format,
        chips=chips, context=context, tpot=tpot, usd_per_million=price_limit, priced=usd_per_million is not None,
        max_context=resolved_model.max_context, reason="" if base.longest else search.reason(),
        walls=walls, left_out=left_out, curves=curves,
        notes=(*([unmeasured] if unmeasured else []), *_shorter_notes(walls, served, dict(variants))),
    )  # fmt: skip


def _variants(model: Model, techniques: Sequence[str] | None) -> tuple[list[tuple[str, Model]], tuple[str, ...]]:
    """Return the model with each technique, and why usual techniques are left out."""
    if techniques is not None:
        return [(name, with_techniques(model, name)) for name in dict.fromkeys(techniques)], ()
    variants, left_out = [], []
    for name in USUAL:
        try:
            variant = with_techniques(model, name)
        except InputError as error:
            left_out.append(str(error) if str(error).startswith(name) else f"{name}: {error}")
            continue
        if not kv_bytes_per_token(model):
            return [], (f"all: {model.name} has no KV cache",)

        # A technique may shrink the stored cache or only the part that a step reads; both count.
        before, after = (
            cache_bytes(candidate, DEFAULT_CONTEXT) + cache_bytes_read(candidate, DEFAULT_CONTEXT)
            for candidate in (model, variant)
        )
        if (variant.layers, variant.stem) == (model.layers, model.stem):
            left_out.append(f"{name}: changes nothing; {model.name} already stores its cache this way")
        elif after >= before:
            left_out.append(f"{name}: does not make the cache of {model.name} smaller, nor its reads")
        else:
            variants.append((name, variant))
    return variants, tuple(left_out)


def _shorter_notes(walls: Sequence[ContextWall], model: Model, variants: Mapping[str, Model]) -> tuple[str, ...]:
    """Say why techniques that read fewer bytes reach fewer tokens than the unchanged model."""
    base, notes = walls[0], []
    for wall in walls[1:]:
        if not (wall.longest < 0.99 * base.longest and wall.read_bytes < base.read_bytes and wall.read_share < base.read_share):
            continue
        variant = variants[wall.technique]
        times = _attention_flop(variant) / _attention_flop(model)
        cause = ""
        if times > MORE_ARITHMETIC:
            cause = f": it takes {times:.2g} times the arithmetic"
        elif variant.kv_format != model.kv_format:
            cause = f": with few sequences, the engine's kernels for {variant.kv_format} fill less of a chip"
            cause += f" (timed up to {LONGEST_TIMED:,} tokens)"
        notes.append(
            f"{wall.technique} reaches fewer tokens than the unchanged model, because attention reads the cache at "
            f"{percent(wall.read_share)} of the memory bandwidth ({percent(base.read_share)} unchanged){cause}"
        )
    return tuple(notes)


def _attention_flop(model: Model) -> float:
    """Return the FLOP of all layers for a query and an entry of the cache."""
    return sum(times * a.flops_per_pair_decode for layer, times in model.layers for a in layer.attention)


# --- one technique ------------------------------------------------------------------------------------------------------


class _Best(NamedTuple):
    """The cheapest point at each length: USD per million tokens (infinite without a point), batch, time, row of the layout."""

    cost: Array
    batch: Array
    seconds: Array
    row: Array


def _wall(named_search: tuple[str, _Search]) -> tuple[ContextWall, tuple[Array, Array]]:
    name, search = named_search
    return search.wall(name)


@dataclass(frozen=True)
class _Search:
    """A search over layouts, batches and lengths for one model."""

    model: Model
    system: System
    engine: Engine
    # Chips of one replica.
    chips: int
    # Length at which techniques are compared [tokens].
    context: int
    # Limit on the time per output token [s].
    tpot: float
    # USD per million tokens; None: the cost of this model at `context`.
    usd: float | None

    @cached_property
    def rent(self) -> float:
        """Rent of a chip [USD/s]; NaN if unknown."""
        return float(np.asarray(self.system.rent.typical))

    @cached_property
    def layouts(self) -> Layout:
        """The layouts of one replica without pipeline stages."""
        every = legal(self.model, self.system, self.chips, microbatches=(1,), engine=self.engine)
        without_stages = [replace(layout, replicas=1) for layout in every if layout.pp == 1]
        if not without_stages:
            raise RangeError(
                f"chips: {self.model.name} has no layout on {counted(self.chips, 'chip')} of {self.system.name}; give more"
            )
        return stacked(without_stages)

    def room(self, contexts: Number, layouts: Layout) -> Array:
        """Return the largest batch that fits in memory."""
        return np.asarray(sequences_that_fit(self.model, self.system, context=contexts, layout=layouts, engine=self.engine))

    def step_seconds(self, batch: Number, contexts: Number, layouts: Layout) -> Array:
        """Return the time of a decode step."""
        step = decode_step(self.model, self.system, batch=batch, context=contexts, layout=layouts, engine=self.engine)
        return np.asarray(step.total)

    def wall(self, name: str) -> tuple[ContextWall, tuple[Array, Array]]:
        """Return the cost and the longest context of this model, and its costs by length.

        Args:
            name: Technique that the model has.

        Returns:
            The wall; lengths, and costs at these lengths.
        """
        # A coarse search over all layouts keeps the few that are cheapest somewhere; the fine search tries only those.
        octaves = round(math.log2(LONGEST / LEAST))
        coarse = np.unique(np.append(np.geomspace(LEAST, LONGEST, octaves + 1).round(), self.context))
        layouts = select_layouts(self.layouts, self.promising_rows(coarse))
        lengths = np.unique(np.append(np.geomspace(LEAST, LONGEST, octaves * OCTAVE + 1).round(), self.context))

        def cheapest(contexts: Array, slower: float = 1.0) -> _Best:
            return self.cheapest(layouts, contexts, self.tpot / slower)

        best = cheapest(lengths)
        index = int(np.searchsorted(lengths, self.context))
        end = partial(_end, lengths=lengths, beyond=float(LONGEST) if growing_kv_bytes_per_token(self.model) else math.inf)
        longest = end(cheapest, best, math.inf)
        rented = math.isfinite(self.rent)
        price_limit = self.usd if self.usd is not None else float(best.cost[index]) if rented else math.inf
        figures: dict[str, Any] = {}
        if 0 < longest < LONGEST:
            at_end = cheapest(np.array([longest]))
            figures["read_share"] = self.read_share(layouts, longest, at_end)
            # A step that is slower or faster by the ends of its range moves the wall.
            factors = self.range_factors(layouts, longest, at_end, 0)
            if factors is not None:
                fast, slow = (end(partial(cheapest, slower=x), cheapest(lengths, x), math.inf) for x in factors)
                figures["longest_range"] = (min(slow, longest), max(fast, longest))
        if np.isfinite(best.cost[index]):
            layout, seconds = _layout_at_row(layouts, int(best.row[index])), float(best.seconds[index])
            limits = self.range_factors(layouts, self.context, best, index)
            figures |= {
                "batch": int(best.batch[index]), "layout": show_layout(layout), "chips": int(layout.chips), "step": seconds,
                "step_range": None if limits is None else (seconds * limits[0], seconds * limits[1]),
                "usd_per_million": float(best.cost[index]) if rented else math.nan,
            }  # fmt: skip
        has_cost = np.isfinite(best.cost)
        return ContextWall(
            technique=name, words=describe_technique(name) if name else "unchanged", parameters=total_parameters(self.model),
            kv_bytes=kv_bytes_per_token(self.model), cache=float(cache_bytes(self.model, self.context)),
            read_bytes=float(cache_bytes_read(self.model, self.context)), longest=longest,
            # Rounding must not exclude the point whose own cost is the limit.
            longest_priced=min(end(cheapest, best, price_limit * (1 + 1e-9)), longest),
            caveats=technique_caveats(name) if name else (), binds=self.binds(layouts, longest), **figures,
        ), (lengths[has_cost], best.cost[has_cost])  # fmt: skip

    def range_factors(self, layouts: Layout, context: float, best: _Best, index: int) -> tuple[float, float] | None:
        """Return the 90 % range of a step, divided by the step; None for the ideal engine."""
        layout = _layout_at_row(layouts, int(best.row[index]))
        limits = step_range(
            self.model, self.system, batch=int(best.batch[index]), context=context, layout=layout, engine=self.engine
        )
        if limits is None:
            return None
        low, high = (float(np.asarray(value)) / float(best.seconds[index]) for value in limits)
        return low, high

    def read_share(self, layouts: Layout, context: float, best: _Best) -> float:
        """Return the share of the replica's memory bandwidth at which attention reads the cache."""
        layout, batch = _layout_at_row(layouts, int(best.row[0])), float(best.batch[0])
        step = decode_step(self.model, self.system, batch=batch, context=context, layout=layout, engine=self.engine)
        seconds = float(np.asarray(step.terms.get("attention", 0.0)))
        bandwidth = float(layout.chips) * float(np.asarray(self.system.chip.hbm.bandwidth))
        return batch * float(cache_bytes_read(self.model, context)) / (seconds * bandwidth) if seconds else math.nan

    def promising_rows(self, lengths: Array) -> Array:
        """Return the rows of layouts worth a fine search.

        These are the cheapest at some length, and near the longest context the roomiest and the fastest.
        """
        first = self.cheapest(self.layouts, lengths, self.tpot, looks=1)
        fits = np.flatnonzero(np.isfinite(first.cost))
        last = fits[-1] if len(fits) else 0
        about, wide = lengths[last : last + 2], shaped(self.layouts, 1)
        room = self.room(about, wide)
        seconds = np.where(room >= 1, self.step_seconds(1, about, wide), np.inf)
        roomy, fast = np.argsort(-room, axis=0)[:ENDS], np.argsort(seconds, axis=0)[:ENDS]
        return np.unique(np.concatenate([first.row[fits], roomy.ravel(), fast.ravel()]))

    def cheapest(self, layouts: Layout, contexts: Array, tpot: float, looks: int = LOOKS) -> _Best:
        """Return the cheapest layout at each length, with a batch within memory and time.

        Each evaluation tries `GRID` batches between 1 and the memory limit, then as many around the largest that is fast
        enough.
        """
        # Axes of the arrays: layouts, lengths, batches.
        wide, context_grid = shaped(layouts, 2), contexts[None, :, None]
        room = self.room(context_grid, wide)
        max_batch = np.clip(np.broadcast_to(room, (np.size(layouts.tp), len(contexts), 1)), 1.0, MOST_BATCH)
        low, high = np.ones_like(max_batch), max_batch
        steps, rows = np.linspace(0.0, 1.0, GRID), np.arange(len(contexts))
        for _ in range(looks):
            batch = np.floor(low * (high / low) ** steps + 1e-9)
            seconds = self.step_seconds(batch, context_grid, wide)
            good = (seconds <= tpot) & (room >= 1)
            last = np.maximum(GRID - 1 - np.argmax(good[..., ::-1], axis=-1), 0)[..., None]

            # The next evaluation refines the interval between the last batch that meets the limits and the next one.
            low = np.take_along_axis(batch, last, axis=-1)
            high = np.take_along_axis(batch, np.minimum(last + 1, GRID - 1), axis=-1)
        # Without a rent, cost is in chip time, which has the same order.
        rent = self.rent if math.isfinite(self.rent) else 1.0
        cost = np.where(good, np.asarray(cost_per_token(seconds, batch, wide.chips, rent)) * MILLION, np.inf)
        cheap = np.argmin(cost, axis=-1)[..., None]
        cost, batch, seconds = (np.take_along_axis(x, cheap, axis=-1)[..., 0] for x in (cost, batch, seconds))
        row = np.argmin(cost, axis=0)
        return _Best(cost[row, rows], batch[row, rows], seconds[row, rows], row)

    def reason(self) -> str:
        """Return why no length is reached: the size of the weights, or the fastest step."""
        layouts, lengths = shaped(self.layouts, 1), np.array([float(LEAST)])
        fits = memory_per_chip(self.model, self.system, batch=1, context=lengths, layout=layouts, engine=self.engine)
        if not fits.fits.any():
            room = self.chips * float(np.max(np.asarray(fits.capacity - fits.reserved)))
            weights = show(weight_bytes(self.model), "B")
            return f"its weights take {weights}, and {counted(self.chips, 'chip')} have {show(room, 'B')}; give more chips"
        fastest = float(np.min(np.where(fits.fits, self.step_seconds(1, lengths, layouts), np.inf)))
        return f"a single sequence gets at most {1 / fastest:,.3g} tok/s"

    def binds(self, layouts: Layout, longest: float) -> str:
        """Return "memory" if memory limits the longest context, "time" if a step does."""
        if longest >= LONGEST:
            return ""
        # Just beyond the wall, either no layout has room for one sequence, or all are too slow.
        return "memory" if np.max(self.room(max(longest, LEAST) * 1.02, layouts)) < 1 else "time"


def _layout_at_row(layouts: Layout, row: int) -> Layout:
    layout = select_layouts(layouts, row)
    return Layout(**{key: int(getattr(layout, key)) for key in ("tp", "dp", "ep", "cp", "redundant_experts")})


def _end(cheapest: Callable[[Array], _Best], best: _Best, price_limit: float, *, lengths: Array, beyond: float) -> float:
    """Return the longest context within a price limit [USD per million tokens].

    It is 0 if no length meets the limit, and `beyond` if all do.
    """
    for turn in range(ROUNDS + 1):
        fits = np.isfinite(best.cost) & (best.cost <= price_limit)
        if not fits.any():
            return 0.0
        last = int(np.flatnonzero(fits)[-1])
        if last == len(lengths) - 1:
            return beyond if turn == 0 else float(lengths[-1])
        # The last refinement is not refined again.
        if turn == ROUNDS:
            break
        lengths = np.unique(np.geomspace(lengths[last], lengths[last + 1], FINER + 1).round())
        best = cheapest(lengths)
    return float(lengths[last])


# --- the question -------------------------------------------------------------------------------------------------------


CACHE_GROUP, LIMITS_GROUP = "Cache", "Limits"


@dataclass(frozen=True, kw_only=True)
class ContextInputs(PricedSubject):
    """Inputs of `context`: model, machine, techniques and limits."""

    technique: Any = texts(
        "KV cache technique. Formats: kv=int4. Tokens: window=4096, keep=8192 (drops the others). Layers that share a cache: "
        "share=2. Smaller entries: kv_heads=1, latent=512 (MLA), rank=0.5 (share of the rank). Tokens read: topk=2048, "
        "blocks=128x16 (16 blocks of 128 tokens). @5of6 applies a technique to 5 of 6 layers, @full or @local to layers of "
        "that kind. + combines techniques: window=1024@5of6+kv=int8. Repeatable",
        default_words="the usual ones that the model can have",
        group=CACHE_GROUP,
        metavar="CHANGE",
    )
    context: Any = count(
        131_072, "context at which techniques are compared, in tokens (k is 1,000)", unit="tokens", minimum=LEAST,
        maximum=LONGEST, group=CACHE_GROUP,
    )  # fmt: skip
    speed: Any = number(20.0, "minimum output speed for each user in tok/s", unit="tok/s", minimum=1e-6, group=LIMITS_GROUP)
    usd: Any = number(
        None, "maximum USD per million output tokens, decode only", unit="USD", minimum=1e-12,
        group=LIMITS_GROUP, default_words="what the unchanged model costs at --context",
    )  # fmt: skip
    chips: Any = count(
        None, "maximum chips per replica", maximum=MOST_CHIPS, group=LIMITS_GROUP,
        default_words="a scale-up domain, at most 128",
    )  # fmt: skip


def solve(values: Mapping[str, Any]) -> ContextWalls:
    """Return the longest context of a model by technique.

    Args:
        values: Values of `ContextInputs` by name, and figures of the machine by path.

    Returns:
        One wall per technique.
    """
    inputs = bind(ContextInputs, values, "context")
    model, system, engine = read_subject(values)
    return context_walls(
        model, system, techniques=inputs.technique or None, context=inputs.context, tpot=1 / inputs.speed,
        usd_per_million=inputs.usd, chips=inputs.chips or 0, engine=engine,
    )  # fmt: skip


CONTEXT = question_of_result(
    "context",
    "the longest context within a speed and a price",
    inputs=inputs_from(ContextInputs),
    solve=solve,
    answers={
        "longest_context": Answer(meaning="longest context of the unchanged model", unit="tokens", source="base.longest"),
        "longest_context_in_price": Answer(
            meaning="longest context of the unchanged model within the price", unit="tokens", source="base.longest_priced"
        ),
        "cache_bytes": Answer(meaning="cache of one sequence at the compared length", unit="B", source="base.cache"),
        "batch": Answer(meaning="decode batch of a replica at the compared length", unit="sequences", source="base.batch"),
        "step_time": Answer(meaning="time of a step at the compared length", unit="s", source="base.step"),
        "reason": Answer(meaning="why no length is reached", text=True),
    },
    shows=("longest_context", "longest_context_in_price", "batch", "step_time", "reason"),
    figures=True,
    seconds=1.0,
)
