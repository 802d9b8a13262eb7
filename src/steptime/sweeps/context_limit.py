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
class Asked:
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
    of, on = resolve_model(model), resolve_system(system)
    techniques = [techniques] if isinstance(techniques, str) else techniques
    if techniques is not None and "" in techniques:
        raise InputError("a technique is empty; the model as it is comes first anyhow")
    single(context=context, tpot=tpot, usd_per_million=usd_per_million, chips=chips)
    context = whole_number("the context", context, minimum=LEAST, maximum=LONGEST, unit="token")
    tpot = limit("the time per token", tpot)
    if usd_per_million is not None:
        usd_per_million = positive("USD per million tokens", usd_per_million, "USD")
    domain = int(min(float(np.asarray(on.scale_up.size)), CHIPS))
    chips = whole_number("chips", chips, maximum=MOST_CHIPS) if chips else domain
    runs_on = engine_for(on, engine)
    rent = float(np.asarray(on.rent.typical))
    if usd_per_million is not None and not math.isfinite(rent):
        raise RangeError(
            f"no rent of {on.name} is known, so that nothing has a price; --rent 2.50 gives one in USD per chip-hour"
        )
    served = as_served(of, on, runs_on)
    asked = Asked(on, runs_on, chips, context, tpot, usd_per_million, rent)
    variants, left_out = _variants(served, techniques)
    base, curve = _wall(AS_IS, served, asked)
    most = usd_per_million
    if most is None:
        most = math.inf if math.isnan(base.usd_per_million) else base.usd_per_million
    asked = replace(asked, usd=most)
    found = [(base, curve), *map_in_processes(partial(_named_wall, asked=asked), variants)]
    return ContextWalls(
        model=of.name, system=on.name, engine=runs_on.name, kv_format=served.kv_format, chips=chips, context=context, tpot=tpot,
        usd_per_million=most, priced=usd_per_million is not None, max_context=of.max_context,
        reason="" if base.longest else _reason(served, asked), walls=tuple(one for one, _ in found), left_out=left_out,
        curves=tuple(curve for _, curve in found),
    )  # fmt: skip


def _variants(model: Model, techniques: Sequence[str] | None) -> tuple[list[tuple[str, Model]], tuple[str, ...]]:
    """Return the model with each technique that is asked for; of the usual ones those that it can have, and why not others."""
    if techniques is not None:
        return [(name, with_techniques(model, name)) for name in dict.fromkeys(techniques)], ()
    found, left_out = [], []
    for name in USUAL:
        try:
            variant = with_techniques(model, name)
        except InputError as error:
            left_out.append(str(error) if str(error).startswith(name) else f"{name}: {error}")
            continue
        if not kv_bytes_per_token(model):
            return [], (f"all: {model.name} keeps no keys and values",)
        before, after = (cache_bytes(one, CONTEXT) + cache_bytes_read(one, CONTEXT) for one in (model, variant))
        if (variant.layers, variant.stem) == (model.layers, model.stem):
            left_out.append(f"{name} changes nothing: the cache of {model.name} is kept so already")
        elif after >= before:
            left_out.append(f"{name} would make the cache of {model.name} no smaller, and no less of it read")
        else:
            found.append((name, variant))
    return found, tuple(left_out)


# --- one technique ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """The cheapest point at each length: cost [USD per million; infinite: none], batch, step [s], and the row of its layout."""

    cost: Array
    batch: Array
    seconds: Array
    row: Array


def _named_wall(variant: tuple[str, Model], asked: Asked) -> tuple[ContextWall, tuple[Array, Array]]:
    return _wall(*variant, asked)


def _wall(name: str, model: Model, asked: Asked) -> tuple[ContextWall, tuple[Array, Array]]:
    every = _layouts(model, asked)
    octaves = round(math.log2(LONGEST / LEAST))
    coarse = np.unique(np.append(np.geomspace(LEAST, LONGEST, octaves + 1).round(), asked.context))
    first = _cheapest(model, asked, every, coarse, asked.tpot, looks=1)
    layouts = select_layouts(every, _worth(model, asked, every, coarse, first))
    lengths = np.unique(np.append(np.geomspace(LEAST, LONGEST, octaves * OCTAVE + 1).round(), asked.context))

    def cheapest(contexts: Array, slower: float = 1.0) -> Best:
        return _cheapest(model, asked, layouts, contexts, asked.tpot / slower)

    best = cheapest(lengths)
    at = int(np.searchsorted(lengths, asked.context))
    end = partial(_end, beyond=float(LONGEST) if growing_kv_bytes_per_token(model) else math.inf)
    longest = end(cheapest, lengths, best, math.inf)
    rented = math.isfinite(asked.rent)
    most = asked.usd if asked.usd is not None else float(best.cost[at]) if rented else math.inf
    priced = end(cheapest, lengths, best, most * (1 + 1e-9))
    common: dict[str, Any] = {
        "technique": name, "words": describe_technique(name) if name else "as it is", "parameters": total_parameters(model),
        "kv_bytes": kv_bytes_per_token(model), "cache": float(cache_bytes(model, asked.context)),
        "read": float(cache_bytes_read(model, asked.context)), "longest": longest, "longest_priced": min(priced, longest),
        "caveats": technique_caveats(name) if name else (), "binds": _binds(model, asked, layouts, longest),
    }  # fmt: skip
    curve = (lengths[np.isfinite(best.cost)], best.cost[np.isfinite(best.cost)])
    if 0 < longest < LONGEST:
        factors = _factors(model, asked, layouts, longest, cheapest(np.array([longest])), 0)
        if factors is not None:  # times that turn out slower or faster by them
            fast, slow = (end(partial(cheapest, slower=by), lengths, cheapest(lengths, by), math.inf) for by in factors)
            common["longest_range"] = (min(slow, longest), max(fast, longest))
    if not np.isfinite(best.cost[at]):
        return ContextWall(**common), curve
    chosen, seconds = _one(layouts, int(best.row[at])), float(best.seconds[at])
    limits = _factors(model, asked, layouts, asked.context, best, at)
    return ContextWall(
        **common, batch=int(best.batch[at]), layout=show_layout(chosen), chips=int(chosen.chips), step=seconds,
        step_range=None if limits is None else (seconds * limits[0], seconds * limits[1]),
        usd_per_million=float(best.cost[at]) if rented else math.nan,
    ), curve  # fmt: skip


def _one(layouts: Layout, row: int) -> Layout:
    chosen = select_layouts(layouts, row)
    return Layout(**{key: int(getattr(chosen, key)) for key in ("tp", "dp", "ep", "cp", "redundant_experts")})


def _factors(model: Model, asked: Asked, layouts: Layout, context: float, best: Best, at: int) -> tuple[float, float] | None:
    """Return the 90 % range of the step of the cheapest point at a length, over the step; None for the ideal engine."""
    limits = step_range(
        model, asked.system, batch=int(best.batch[at]), context=context, layout=_one(layouts, int(best.row[at])),
        engine=asked.engine,
    )  # fmt: skip
    if limits is None:
        return None
    low, high = (float(np.asarray(value)) / float(best.seconds[at]) for value in limits)
    return low, high


def _worth(model: Model, asked: Asked, layouts: Layout, lengths: Array, first: Best) -> Array:
    """Return the rows of the layouts worth trying: the cheapest at some length, and about the last the roomiest and fastest."""
    fits = np.flatnonzero(np.isfinite(first.cost))
    last = fits[-1] if len(fits) else 0
    about = lengths[last : last + 2]
    wide = shaped(layouts, 1)
    room = np.asarray(sequences_that_fit(model, asked.system, context=about, layout=wide, engine=asked.engine))
    step = decode_step(model, asked.system, batch=1, context=about, layout=wide, engine=asked.engine)
    roomy, fast = np.argsort(-room, axis=0)[:ENDS], np.argsort(np.where(room >= 1, step.total, np.inf), axis=0)[:ENDS]
    return np.unique(np.concatenate([first.row[fits], roomy.ravel(), fast.ravel()]))


def _cheapest(model: Model, asked: Asked, layouts: Layout, contexts: Array, tpot: float, looks: int = LOOKS) -> Best:
    """Return the cheapest of the layouts at each length, each with a batch that memory and the time allow.

    Batches are looked at `GRID` at once between one and what memory holds, then as many about the largest that is fast enough.
    """
    wide = shaped(layouts, 2)
    at = contexts[None, :, None]
    room = np.asarray(sequences_that_fit(model, asked.system, context=at, layout=wide, engine=asked.engine))
    most = np.clip(np.broadcast_to(room, (np.size(layouts.tp), len(contexts), 1)), 1.0, MOST_BATCH)
    rent = asked.rent if math.isfinite(asked.rent) else 1.0
    low, high = np.ones_like(most), most
    steps, rows = np.linspace(0.0, 1.0, GRID), np.arange(len(contexts))
    for _ in range(looks):
        batch = np.floor(low * (high / low) ** steps + 1e-9)
        step = decode_step(model, asked.system, batch=batch, context=at, layout=wide, engine=asked.engine)
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


def _end(cheapest: Callable[[Array], Best], lengths: Array, best: Best, most: float, *, beyond: float) -> float:
    """Return the longest context that costs at most `most` [USD per million tokens]; 0 where none, `beyond` where all do."""
    for turn in range(ROUNDS + 1):
        fits = np.isfinite(best.cost) & (best.cost <= most)
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


def _reason(model: Model, asked: Asked) -> str:
    """Say why not even a short context is reached: what the weights take, or the fastest step."""
    layouts = shaped(_layouts(model, asked), 1)
    lengths = np.array([float(LEAST)])
    fits = memory_per_chip(model, asked.system, batch=1, context=lengths, layout=layouts, engine=asked.engine)
    if not fits.fits.any():
        room = asked.chips * float(np.max(np.asarray(fits.capacity - fits.reserved)))
        weights = show(weight_bytes(model), "B")
        return f"its weights take {weights}, and {counted(asked.chips, 'chip')} hold {show(room, 'B')}; --chips takes more"
    step = decode_step(model, asked.system, batch=1, context=lengths, layout=layouts, engine=asked.engine)
    fastest = float(np.min(np.where(fits.fits, step.total, np.inf)))
    return f"one sequence alone gets at most {1 / fastest:,.3g} tok/s"


def _layouts(model: Model, asked: Asked) -> Layout:
    """Return the layouts of one replica, without pipeline stages."""
    found = [x for x in legal(model, asked.system, asked.chips, microbatches=(1,), engine=asked.engine) if x.pp == 1]
    if not found:
        raise RangeError(f"{model.name} cannot be laid over {counted(asked.chips, 'chip')} of {asked.system.name}")
    return stacked([replace(x, replicas=1) for x in found])


def _binds(model: Model, asked: Asked, layouts: Layout, longest: float) -> str:
    """Say what ends the longest context: memory where a longer one fits on no layout, else the time of a step."""
    if longest >= LONGEST:
        return ""
    beyond = max(longest, LEAST) * 1.02
    room = np.asarray(sequences_that_fit(model, asked.system, context=beyond, layout=layouts, engine=asked.engine))
    return "memory" if np.max(room) < 1 else "time"
