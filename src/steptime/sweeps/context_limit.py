"""How long a context may be: within a time per token and a price, by how the cache is kept. Lecture, section 16.

For each technique (`models.techniques`) and each length, the layouts of one replica are tried that fit the chips, each with the
largest batch that memory and the time per token allow; the cheapest stands for that length. Where nothing meets the limits any
more is the wall. Costs are those of decode alone: prompts are not counted in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from steptime.blackboard.token_cost import cost_per_token
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, RangeError
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
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_CHIPS, Array, limit, positive, single, whole_number
from steptime.physics.chip_memory import memory_per_chip, sequences_that_fit
from steptime.physics.engine import Engine, engine_for
from steptime.physics.kv_dtype import as_served
from steptime.physics.layout import Layout, select_layouts, shaped, show_layout, stacked
from steptime.physics.layout_space import legal
from steptime.physics.step import decode_step
from steptime.physics.uncertainty import step_range
from steptime.processes import map_in_processes
from steptime.sweeps.context_limit_result import LONGEST, ContextWall, ContextWalls
from steptime.units import MILLION, counted, show

CONTEXT: Final = 131_072
TPOT: Final = 0.05  # s: 20 tokens a second, somewhat faster than one reads
LEAST: Final = 64
OCTAVE: Final = 2  # lengths to a factor of two, once the layouts worth trying are known from one each
FINER: Final = 16  # between two of them, again and again
ROUNDS: Final = 2  # of that, so that a wall is known to two thousandths
GRID, LOOKS = 12, 4  # batches that are looked at at once, and how often: to one in two thousand
MOST_BATCH: Final = 1 << 20
CHIPS: Final = 128  # of a scale-up domain at most, unless more are asked for
ENDS: Final = 4  # layouts of most room, and fastest ones, that are looked at about the longest contexts
AS_IS: Final = ""
USUAL: Final = (
    "kv=fp8", "kv=int4", "window=4096@5of6", "share=2", "kv_heads=1", "latent=512", "rank=0.5", "keep=8192", "topk=2048",
    "blocks=128x16", "kv_heads=1+window=1024@5of6+share=3+kv=int8",
)  # fmt: skip
"""Techniques that are held against one another where none is asked for; those that a model cannot have are left out. The last
is Character.AI's (https://research.character.ai/optimizing-inference/)."""


@dataclass(frozen=True)
class Scenario:
    """What is asked of each technique: limits, and where it runs."""

    system: System
    engine: Engine
    chips: int
    context: int
    tpot: float
    usd: float | None  # per million tokens; None: what the model as it is costs at `context`
    rent: float


def context_walls(
    model: ModelLike,
    system: SystemLike,
    *,
    techniques: Sequence[str] | None = None,
    context: int = CONTEXT,
    tpot: float = TPOT,
    usd_per_million: float | None = None,
    chips: int = 0,
    engine: Engine | str | None = None,
) -> ContextWalls:
    """Return how long a context may be on a system within a time per token and a price, by how the cache is kept.

    techniques: such as "window=1024@5of6+kv=int8" (`with_techniques`), by default the usual ones that the model can have;
    context: the length [tokens] at which they are held against one another; tpot: the limit on the time of a step [s];
    usd_per_million: on the cost of decoding a million tokens, by default that of the model as it is at `context`; chips: that
    one replica may take, by default a scale-up domain (at most `CHIPS`).
    Raises InputError for a technique that is none or does not suit the model.
    """
    resolved_model, resolved_system = resolve_model(model), resolve_system(system)
    techniques = [techniques] if isinstance(techniques, str) else techniques
    if techniques is not None and "" in techniques:
        raise InputError("a technique is empty; the model as it is comes first anyhow")
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
            f"no rent of {resolved_system.name} is known, so that nothing has a price; "
            "--rent 2.50 gives one in USD per chip-hour"
        )
    served = as_served(resolved_model, resolved_system, runs_on)
    scenario = Scenario(resolved_system, runs_on, chips, context, tpot, usd_per_million, rent)
    variants, left_out = _variants(served, techniques)
    base, curve = _wall(AS_IS, served, scenario)
    price_limit = usd_per_million
    if price_limit is None:
        price_limit = math.inf if math.isnan(base.usd_per_million) else base.usd_per_million
    scenario = replace(scenario, usd=price_limit)
    walls_and_curves = [(base, curve), *map_in_processes(partial(_named_wall, scenario=scenario), variants)]
    return ContextWalls(
        model=resolved_model.name, system=resolved_system.name, engine=runs_on.name, kv_format=served.kv_format,
        chips=chips, context=context, tpot=tpot, usd_per_million=price_limit, priced=usd_per_million is not None,
        max_context=resolved_model.max_context, reason="" if base.longest else _reason(served, scenario),
        walls=tuple(wall for wall, _ in walls_and_curves),
        left_out=left_out, curves=tuple(curve for _, curve in walls_and_curves),
    )  # fmt: skip


def _variants(model: Model, techniques: Sequence[str] | None) -> tuple[list[tuple[str, Model]], tuple[str, ...]]:
    """Return the model with each technique that is asked for; of the usual ones those that it can have, and why not others."""
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
            return [], (f"all: {model.name} keeps no keys and values",)
        before, after = (
            cache_bytes(candidate, CONTEXT) + cache_bytes_read(candidate, CONTEXT) for candidate in (model, variant)
        )
        if (variant.layers, variant.stem) == (model.layers, model.stem):
            left_out.append(f"{name} changes nothing: the cache of {model.name} is kept so already")
        elif after >= before:
            left_out.append(f"{name} would make the cache of {model.name} no smaller, and no less of it read")
        else:
            variants.append((name, variant))
    return variants, tuple(left_out)


# --- one technique ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """The cheapest point at each length: cost [USD per million; infinite: none], batch, step [s], and the row of its layout."""

    cost: Array
    batch: Array
    seconds: Array
    row: Array


def _named_wall(variant: tuple[str, Model], scenario: Scenario) -> tuple[ContextWall, tuple[Array, Array]]:
    return _wall(*variant, scenario)


def _wall(name: str, model: Model, scenario: Scenario) -> tuple[ContextWall, tuple[Array, Array]]:
    every = _layouts(model, scenario)
    octaves = round(math.log2(LONGEST / LEAST))
    coarse = np.unique(np.append(np.geomspace(LEAST, LONGEST, octaves + 1).round(), scenario.context))
    first = _cheapest(model, scenario, every, coarse, scenario.tpot, looks=1)
    layouts = select_layouts(every, _promising_rows(model, scenario, every, coarse, first))
    lengths = np.unique(np.append(np.geomspace(LEAST, LONGEST, octaves * OCTAVE + 1).round(), scenario.context))

    def cheapest(contexts: Array, slower: float = 1.0) -> Best:
        return _cheapest(model, scenario, layouts, contexts, scenario.tpot / slower)

    best = cheapest(lengths)
    context_index = int(np.searchsorted(lengths, scenario.context))
    end = partial(_end, beyond=float(LONGEST) if growing_kv_bytes_per_token(model) else math.inf)
    longest = end(cheapest, lengths, best, math.inf)
    rented = math.isfinite(scenario.rent)
    price_limit = scenario.usd if scenario.usd is not None else float(best.cost[context_index]) if rented else math.inf
    priced = end(cheapest, lengths, best, price_limit * (1 + 1e-9))
    common: dict[str, Any] = {
        "technique": name, "words": describe_technique(name) if name else "as it is", "parameters": total_parameters(model),
        "kv_bytes": kv_bytes_per_token(model), "cache": float(cache_bytes(model, scenario.context)),
        "read_bytes": float(cache_bytes_read(model, scenario.context)), "longest": longest,
        "longest_priced": min(priced, longest),
        "caveats": technique_caveats(name) if name else (), "binds": _binds(model, scenario, layouts, longest),
    }  # fmt: skip
    curve = (lengths[np.isfinite(best.cost)], best.cost[np.isfinite(best.cost)])
    if 0 < longest < LONGEST:
        factors = _factors(model, scenario, layouts, longest, cheapest(np.array([longest])), 0)
        if factors is not None:  # times that turn out slower or faster by them
            fast, slow = (
                end(partial(cheapest, slower=factor), lengths, cheapest(lengths, factor), math.inf) for factor in factors
            )
            common["longest_range"] = (min(slow, longest), max(fast, longest))
    if not np.isfinite(best.cost[context_index]):
        return ContextWall(**common), curve
    layout, seconds = _layout_at_row(layouts, int(best.row[context_index])), float(best.seconds[context_index])
    limits = _factors(model, scenario, layouts, scenario.context, best, context_index)
    return ContextWall(
        **common, batch=int(best.batch[context_index]), layout=show_layout(layout), chips=int(layout.chips), step=seconds,
        step_range=None if limits is None else (seconds * limits[0], seconds * limits[1]),
        usd_per_million=float(best.cost[context_index]) if rented else math.nan,
    ), curve  # fmt: skip


def _layout_at_row(layouts: Layout, row: int) -> Layout:
    layout = select_layouts(layouts, row)
    return Layout(**{key: int(getattr(layout, key)) for key in ("tp", "dp", "ep", "cp", "redundant_experts")})


def _factors(
    model: Model, scenario: Scenario, layouts: Layout, context: float, best: Best, index: int
) -> tuple[float, float] | None:
    """Return the 90 % range of the step of the cheapest point at a length, over the step; None for the ideal engine."""
    limits = step_range(
        model, scenario.system, batch=int(best.batch[index]), context=context,
        layout=_layout_at_row(layouts, int(best.row[index])), engine=scenario.engine,
    )  # fmt: skip
    if limits is None:
        return None
    low, high = (float(np.asarray(value)) / float(best.seconds[index]) for value in limits)
    return low, high


def _promising_rows(model: Model, scenario: Scenario, layouts: Layout, lengths: Array, first: Best) -> Array:
    """Return the rows of the layouts worth trying: the cheapest at some length, and about the last the roomiest and fastest."""
    fits = np.flatnonzero(np.isfinite(first.cost))
    last = fits[-1] if len(fits) else 0
    about = lengths[last : last + 2]
    wide = shaped(layouts, 1)
    room = np.asarray(sequences_that_fit(model, scenario.system, context=about, layout=wide, engine=scenario.engine))
    step = decode_step(model, scenario.system, batch=1, context=about, layout=wide, engine=scenario.engine)
    roomy, fast = np.argsort(-room, axis=0)[:ENDS], np.argsort(np.where(room >= 1, step.total, np.inf), axis=0)[:ENDS]
    return np.unique(np.concatenate([first.row[fits], roomy.ravel(), fast.ravel()]))


def _cheapest(model: Model, scenario: Scenario, layouts: Layout, contexts: Array, tpot: float, looks: int = LOOKS) -> Best:
    """Return the cheapest of the layouts at each length, each with a batch that memory and the time allow.

    Batches are looked at `GRID` at once between one and what memory holds, then as many about the largest that is fast enough.
    """
    wide = shaped(layouts, 2)
    context_grid = contexts[None, :, None]
    room = np.asarray(sequences_that_fit(model, scenario.system, context=context_grid, layout=wide, engine=scenario.engine))
    max_batch = np.clip(np.broadcast_to(room, (np.size(layouts.tp), len(contexts), 1)), 1.0, MOST_BATCH)
    rent = scenario.rent if math.isfinite(scenario.rent) else 1.0
    low, high = np.ones_like(max_batch), max_batch
    steps, rows = np.linspace(0.0, 1.0, GRID), np.arange(len(contexts))
    for _ in range(looks):
        batch = np.floor(low * (high / low) ** steps + 1e-9)
        step = decode_step(model, scenario.system, batch=batch, context=context_grid, layout=wide, engine=scenario.engine)
        seconds = np.asarray(step.total)
        good = (seconds <= tpot) & (room >= 1)
        last = np.maximum(GRID - 1 - np.argmax(good[..., ::-1], axis=-1), 0)[..., None]
        low = np.take_along_axis(batch, last, axis=-1)
        high = np.take_along_axis(batch, np.minimum(last + 1, GRID - 1), axis=-1)
    cost = np.asarray(cost_per_token(seconds, batch, wide.chips, rent)) * MILLION
    cost = np.where(good, cost, np.inf)
    cheap = np.argmin(cost, axis=-1)[..., None]
    cost, batch, seconds = (np.take_along_axis(x, cheap, axis=-1)[..., 0] for x in (cost, batch, seconds))
    row = np.argmin(cost, axis=0)
    return Best(cost[row, rows], batch[row, rows], seconds[row, rows], row)


def _end(cheapest: Callable[[Array], Best], lengths: Array, best: Best, price_limit: float, *, beyond: float) -> float:
    """Return the longest context within `price_limit` [USD per million tokens]; 0 where none is, `beyond` where all are."""
    for turn in range(ROUNDS + 1):
        fits = np.isfinite(best.cost) & (best.cost <= price_limit)
        if not fits.any():
            return 0.0
        last = int(np.flatnonzero(fits)[-1])
        if last == len(lengths) - 1:
            return beyond if turn == 0 else float(lengths[-1])
        if turn == ROUNDS:
            break
        lengths = np.unique(np.geomspace(lengths[last], lengths[last + 1], FINER + 1).round())
        best = cheapest(lengths)
    return float(lengths[last])


def _reason(model: Model, scenario: Scenario) -> str:
    """Say why not even a short context is reached: what the weights take, or the fastest step."""
    layouts = shaped(_layouts(model, scenario), 1)
    lengths = np.array([float(LEAST)])
    fits = memory_per_chip(model, scenario.system, batch=1, context=lengths, layout=layouts, engine=scenario.engine)
    if not fits.fits.any():
        room = scenario.chips * float(np.max(np.asarray(fits.capacity - fits.reserved)))
        weights = show(weight_bytes(model), "B")
        return f"its weights take {weights}, and {counted(scenario.chips, 'chip')} hold {show(room, 'B')}; --chips takes more"
    step = decode_step(model, scenario.system, batch=1, context=lengths, layout=layouts, engine=scenario.engine)
    fastest = float(np.min(np.where(fits.fits, step.total, np.inf)))
    return f"one sequence alone gets at most {1 / fastest:,.3g} tok/s"


def _layouts(model: Model, scenario: Scenario) -> Layout:
    """Return the layouts of one replica, without pipeline stages."""
    layouts = [x for x in legal(model, scenario.system, scenario.chips, microbatches=(1,), engine=scenario.engine) if x.pp == 1]
    if not layouts:
        raise RangeError(f"{model.name} cannot be laid over {counted(scenario.chips, 'chip')} of {scenario.system.name}")
    return stacked([replace(x, replicas=1) for x in layouts])


def _binds(model: Model, scenario: Scenario, layouts: Layout, longest: float) -> str:
    """Say what ends the longest context: memory where a longer one fits on no layout, else the time of a step."""
    if longest >= LONGEST:
        return ""
    beyond = max(longest, LEAST) * 1.02
    room = np.asarray(sequences_that_fit(model, scenario.system, context=beyond, layout=layouts, engine=scenario.engine))
    return "memory" if np.max(room) < 1 else "time"
