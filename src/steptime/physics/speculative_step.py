r"""Steps that draft: each verifies the drafts of the step before, then drafts again, token by token, with small layers.

A model's own multi-token-prediction layers draft. A step of $N$ drafts gives every sequence $N + 1$ tokens (the last sure one
and its drafts) in one pass of the model, and then runs $N$ passes of the draft layers, one after another, each of one token a
sequence behind embedding and head:

$$ t = t_{model}(N + 1) + N\, t_{draft}(1) $$

Prompts go through the draft layers once, since those have a cache of their own. All modules of a model that has several are
stored, and each pass runs one of them. With pipeline stages the draft layers are in the last one, which drafts for one
micro-batch after another; it is taken to be the fullest. The host works once for a step, not once for a pass.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model, cache_bytes
from steptime.number_checks import Number
from steptime.physics.chip_memory import (
    Memory,
    cache_per_sequence,
    memory_per_chip,
    sequences_per_group,
    sequences_that_fit,
    weights_per_chip,
)
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.step import Step, add_passes, mixed_step, scale_step

TERM = "drafts"


@lru_cache(maxsize=256)
def drafter(model: Model) -> Model:
    """Return one of the modules that draft for a model, as a model with the same embedding and head."""
    modules = math.gcd(*(count for _, count in model.draft))
    layers = tuple((layer, count // modules) for layer, count in model.draft)
    return replace(model, name=f"{model.name}, draft layers", layers=layers, draft=(), media=None)


@lru_cache(maxsize=256)
def _stored(model: Model) -> Model:
    """Return the layers of all modules that draft, without embedding and head, which are the model's own."""
    return replace(model, layers=model.draft, stem=(), draft=())


def drafted_step(
    model: Model,
    system: System,
    *,
    drafts: int = 0,
    batch: Number = 0,
    context: Number = 0,
    prompts: Number = 0,
    tokens: Number = 0,
    prefix: Number = 0,
    layout: Layout,
    engine: Engine,
    has_draft_term: bool = True,
    parts: bool = True,
    legal: bool = False,
) -> Step:
    """Return the time of a step that verifies and makes `drafts` tokens for each sequence; the rest is as of `mixed_step`.

    A model without layers of its own that draft verifies drafts that come from elsewhere, in no time.
    has_draft_term: whether draft passes are a separate term, or are added to the terms of the model.
    parts: whether there are terms.
    legal: as of `mixed_step`.
    """
    sizes: dict[str, Any] = {"batch": batch, "context": context, "prompts": prompts, "tokens": tokens, "prefix": prefix}
    step = mixed_step(model, system, **sizes, query=drafts + 1, layout=layout, engine=engine, parts=parts, legal=legal)
    passes = draft_passes(model, system, sizes, drafts=drafts, layout=layout, engine=engine, parts=parts)
    return add_passes(step, passes, TERM if has_draft_term else None) if passes else step


def draft_passes(
    model: Model, system: System, sizes: dict[str, Any], *, drafts: int, layout: Layout, engine: Engine, parts: bool = True
) -> list[tuple[float, Step]]:
    """Return the passes of the draft layers in a step, with how many there are of each; sizes: of `mixed_step`."""
    if not drafts or not model.draft:
        return []
    small = drafter(model)
    inner = np.maximum(1, np.asarray(layout.microbatches) // layout.pp)
    turns = np.ceil(np.asarray(layout.microbatches) / inner)
    one_stage = replace(layout, pp=1, microbatches=inner)
    overheads = replace(engine.overheads, seconds_per_step=0.0)
    bare = replace(engine, overheads=overheads)

    def draft_pass(**pass_sizes: Any) -> Step:
        sizes_per_turn = {name: pass_sizes[name] / turns for name in ("batch", "prompts") if name in pass_sizes}
        return scale_step(
            mixed_step(small, system, **pass_sizes | sizes_per_turn, layout=one_stage, engine=bare, parts=parts), turns
        )

    decodes, reads = bool(np.any(np.asarray(sizes["batch"]) > 0)), bool(np.any(np.asarray(sizes["prompts"]) > 0))
    weighted_passes = [(1.0, draft_pass(**sizes))] if reads else []
    repeats = drafts - len(weighted_passes)
    if decodes and repeats:
        weighted_passes.append((float(repeats), draft_pass(batch=sizes["batch"], context=sizes["context"])))
    return weighted_passes


def drafted_memory(
    model: Model,
    system: System,
    *,
    drafts: int = 0,
    batch: Number,
    context: Number,
    layout: Layout,
    engine: Engine,
    step_tokens: Number | None = None,
    legal: bool = False,
) -> Memory:
    """Return what a chip holds as `memory_per_chip` does, with the weights and the cache of draft layers where they draft.

    step_tokens: by default those that one attention group verifies for its sequences. legal: as of `memory_per_chip`.
    """
    sequences = sequences_per_group(batch, layout)
    step_rows = sequences / layout.microbatches * (drafts + 1) if step_tokens is None else step_tokens
    arguments: dict[str, Any] = {"layout": layout, "engine": engine, "step_tokens": step_rows, "legal": legal}
    memory = memory_per_chip(model, system, batch=batch, context=context, **arguments)
    if not drafts or not model.draft:
        return memory
    weights, draft_bytes_per_sequence = draft_bytes(model, context, layout)
    return replace(memory, weights=memory.weights + weights, cache=memory.cache + sequences * draft_bytes_per_sequence)


def drafted_sequences(
    model: Model,
    system: System,
    *,
    context: Number,
    drafts: int,
    layout: Layout,
    engine: Engine,
    step_tokens: Number = 0.0,
    is_integer: bool = True,
) -> Number:
    """Return how many sequences of `context` [tokens] one replica holds: `sequences_that_fit`, beside layers that draft."""
    arguments: dict[str, Any] = {"context": context, "layout": layout, "engine": engine, "step_tokens": step_tokens}
    if not drafts or not model.draft:
        return sequences_that_fit(model, system, **arguments, is_integer=is_integer)
    empty = drafted_memory(model, system, drafts=drafts, batch=0, **arguments)
    bytes_per_sequence = cache_per_sequence(model, context, layout) + draft_bytes(model, context, layout)[1]
    room, endless = np.maximum(empty.capacity - empty.used, -1.0), np.where(empty.used > empty.capacity, -1.0, np.inf)
    sequences = room / np.where(bytes_per_sequence > 0, bytes_per_sequence, 1.0)
    return np.where(bytes_per_sequence > 0, np.floor(sequences) if is_integer else sequences, endless) * layout.dp


def cache_moved(model: Model, context: Number, drafts: int) -> Number:
    """Return the bytes of cache that follow a prompt of `context` [tokens] to another pool, with those of draft layers."""
    model_cache = cache_bytes(model, context)
    return model_cache + cache_bytes(_stored(model), context) if drafts and model.draft else model_cache


def draft_bytes(model: Model, context: Number, layout: Layout) -> tuple[Number, Number]:
    """Return the bytes that draft layers take of a chip of the last stage: weights, and cache of one sequence of `context`."""
    stored, last = _stored(model), replace(layout, pp=1)
    return weights_per_chip(stored, last), cache_per_sequence(stored, context, last)
