r"""Speculative step: verify the previous speculative tokens, then draft new ones.

The multi-token-prediction layers of a model draft one token at a time. A step with $N$ speculative tokens runs $N + 1$ tokens
per sequence in one pass of the model: the last accepted token and its drafts. Then it runs $N$ passes of the draft
layers one after another, each with one token per sequence, behind embedding and head:

$$ t = t_{model}(N + 1) + N\, t_{draft}(1). $$

Prompts pass the draft layers once, because these have a separate KV cache. If a model has several modules, memory contains
all of them, and each pass runs one module. With pipeline stages the draft layers are in the last stage, which drafts for
one micro-batch after another. The model assumes that this is the stage with the most layers. The host works once per step,
not once per pass.

**Separate drafters** (`Model.drafter`): an EAGLE-3 head or a small model takes the place of these layers, with its own
weights and KV cache on the same chips. It has the tensor-parallel size of the model, which is vLLM's default and the only
size that its draft models allow (vllm 0.33, v1/spec_decode/draft_model.py, `_raise_if_draft_tp_mismatch`). It has no expert
parallelism unless it has experts. An EAGLE-3 head fuses features of the model once per step, in the first pass.

Not included: engines run the first draft pass on all $N + 1$ verified rows of a sequence, of which one counts here. This
adds $N$ rows of the drafter to $N + 1$ rows of the model: where arithmetic binds, less than the drafter's share of the
model's parameters (2 % for an EAGLE-3 head of a 70B model).
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
    sampling_per_sequence,
    sequences_in_room,
    sequences_per_group,
    sequences_that_fit,
    weights_per_chip,
)
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.step import Step, add_passes, mixed_step, scale_step

TERM = "drafts"


@lru_cache(maxsize=256)
def drafter(model: Model, *, is_first: bool = False) -> Model:
    """Return the model that one draft pass runs: the separate drafter, or a draft module with the same embedding and head.

    Args:
        model: The model.
        is_first: Whether the pass is the first of a step, which also fuses features of the model (EAGLE-3).

    Returns:
        A small model.
    """
    if model.drafter is not None:
        small = model.drafter.model
        return replace(small, stem=(*model.drafter.entry, *small.stem)) if is_first and model.drafter.entry else small
    modules = math.gcd(*(count for _, count in model.draft))
    layers = tuple((layer, count // modules) for layer, count in model.draft)
    return replace(model, name=f"{model.name}, draft layers", layers=layers, draft=(), media=None, adapters=None)


@lru_cache(maxsize=256)
def _stored(model: Model) -> Model:
    """Return the layers of all draft modules, without embedding and head; or the whole separate drafter."""
    if model.drafter is not None:
        return drafter(model, is_first=True)
    return replace(model, layers=model.draft, stem=(), draft=(), adapters=None)


def drafted_step(
    model: Model,
    system: System,
    *,
    drafts: int = 0,
    batch: Number = 0,
    context: Number = 0,
    query: Number = 1,
    prompts: Number = 0,
    tokens: Number = 0,
    prefix: Number = 0,
    layout: Layout,
    engine: Engine,
    has_draft_term: bool = True,
    parts: bool | str = True,
    legal: bool = False,
) -> Step:
    """Return the time of a step that verifies and drafts `drafts` tokens per sequence.

    A model without draft layers and without drafter verifies tokens from another source, which take no time to draft.

    Args:
        model: The model.
        system: The system.
        drafts: Speculative tokens per sequence and step.
        batch: Sequences per replica.
        context: Tokens in the KV cache of each sequence.
        query: New tokens of each sequence without drafts; with drafts they are `drafts` + 1.
        prompts: Prompts per replica, as in `mixed_step`.
        tokens: New tokens of each prompt.
        prefix: Cached tokens of each prompt.
        layout: Parallel degrees; fields may be arrays.
        engine: The engine.
        has_draft_term: Whether draft passes are a separate term; otherwise they are added to the terms of the
            model.
        parts: Whether the step has terms and resources, or the name of one of them.
        legal: Whether the sizes and the layout are already checked, as in a search.

    Returns:
        The step.
    """
    sizes: dict[str, Any] = {"batch": batch, "context": context, "prompts": prompts, "tokens": tokens, "prefix": prefix}
    rows = drafts + 1 if drafts else query
    step = mixed_step(model, system, **sizes, query=rows, layout=layout, engine=engine, parts=parts, legal=legal)
    if not drafts:
        return step
    passes = draft_passes(model, system, sizes, drafts=drafts, layout=layout, engine=engine, parts=parts, legal=legal)
    return add_passes(step, passes, TERM if has_draft_term else None) if passes else step


def draft_passes(
    model: Model,
    system: System,
    sizes: dict[str, Any],
    *,
    drafts: int,
    layout: Layout,
    engine: Engine,
    parts: bool | str = True,
    legal: bool = False,
) -> list[tuple[float, Step]]:
    """Return the passes of the draft layers in a step.

    Args:
        model: The model.
        system: The system.
        sizes: Sizes of `mixed_step` by name.
        drafts: Speculative tokens per sequence and step.
        layout: Parallel degrees; fields may be arrays.
        engine: The engine.
        parts: Whether the steps have terms and resources, or the name of one of them.
        legal: Whether the sizes and the layout are already checked, as in a search.

    Returns:
        Pairs of a number of passes and the step of one pass.
    """
    if not drafts or not model.can_draft:
        return []
    small, entering = drafter(model), drafter(model, is_first=True)

    # The last stage drafts for one micro-batch after another, in turns.
    inner = np.maximum(1, np.asarray(layout.microbatches) // layout.pp)
    turns = np.ceil(np.asarray(layout.microbatches) / inner)
    one_stage = replace(layout, pp=1, microbatches=inner)
    # The rules of layouts hold for the model, and its heads divide those of a separate drafter (rule "draft heads").
    legal = legal or model.drafter is not None
    if model.drafter is not None and not small.routed:
        one_stage = replace(one_stage, ep=1, redundant_experts=0)
    # The host works once per step, which the pass of the model contains already.
    overheads = replace(engine.overheads, seconds_per_step=0.0)
    bare = replace(engine, overheads=overheads)
    decodes, reads = bool(np.any(np.asarray(sizes["batch"]) > 0)), bool(np.any(np.asarray(sizes["prompts"]) > 0))

    # The first draft pass also runs the prompts and fuses features; the other passes have decode rows only.
    first = [(1, sizes, entering)] if reads or entering is not small else []
    further = [(drafts - len(first), {name: sizes[name] for name in ("batch", "context")}, small)] if decodes else []
    weighted_passes = []
    for repeats, pass_sizes, runs in first + further:
        if not repeats:
            continue
        arguments = {name: size / turns if name in ("batch", "prompts") else size for name, size in pass_sizes.items()}
        step = mixed_step(runs, system, **arguments, layout=one_stage, engine=bare, parts=parts, legal=legal)
        weighted_passes.append((float(repeats), scale_step(step, turns)))
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
    """Return the bytes on one chip, with weights and KV cache of draft layers.

    Args:
        model: The model.
        system: The system.
        drafts: Speculative tokens per sequence and step; 0 for no draft layers.
        batch: Sequences per replica.
        context: Tokens in the KV cache of each sequence.
        layout: Parallel degrees; fields may be arrays.
        engine: The engine.
        step_tokens: Tokens of a data-parallel rank in a step; by default those that it verifies for its
            sequences.
        legal: Whether the sizes and the layout are already checked, as in a search.

    Returns:
        The bytes by part.
    """
    sequences = sequences_per_group(batch, layout)
    step_rows = sequences / layout.microbatches * (drafts + 1) if step_tokens is None else step_tokens
    arguments: dict[str, Any] = {"layout": layout, "engine": engine, "step_tokens": step_rows, "legal": legal}
    memory = memory_per_chip(model, system, batch=batch, context=context, **arguments)
    if not drafts or not model.can_draft:
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
    """Return the number of sequences that fit in one replica next to draft layers.

    Args:
        model: The model.
        system: The system.
        context: Tokens in the KV cache of each sequence.
        drafts: Speculative tokens per sequence and step; 0 for no draft layers.
        layout: Parallel degrees; fields may be arrays.
        engine: The engine.
        step_tokens: Tokens that one data-parallel rank processes at once.
        is_integer: Whether to round down to whole sequences per data-parallel rank.

    Returns:
        Sequences per replica; below 1 the weights leave no room.
    """
    arguments: dict[str, Any] = {"context": context, "layout": layout, "engine": engine, "step_tokens": step_tokens}
    if not drafts or not model.can_draft:
        return sequences_that_fit(model, system, **arguments, is_integer=is_integer)
    empty = drafted_memory(model, system, drafts=drafts, batch=0, **arguments)
    bytes_per_sequence = cache_per_sequence(model, context, layout) + draft_bytes(model, context, layout)[1]
    bytes_per_sequence = bytes_per_sequence + sampling_per_sequence(model, engine)
    return sequences_in_room(empty, bytes_per_sequence, layout, is_integer=is_integer)


def cache_moved(model: Model, context: Number, drafts: int) -> Number:
    """Return the bytes of KV cache that a prompt transfers to another pool.

    Args:
        model: The model.
        context: Tokens of the prompt.
        drafts: Speculative tokens per sequence and step; above 0 the cache of draft layers is included.

    Returns:
        Bytes per prompt.
    """
    model_cache = cache_bytes(model, context)
    return model_cache + cache_bytes(_stored(model), context) if drafts and model.can_draft else model_cache


def draft_bytes(model: Model, context: Number, layout: Layout) -> tuple[Number, Number]:
    """Return the bytes of draft layers on a chip of the last stage.

    Args:
        model: The model.
        context: Tokens in the KV cache of the sequence.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes of weights, and bytes of one sequence's KV cache.
    """
    stored, last = _stored(model), replace(layout, pp=1)
    return weights_per_chip(stored, last), cache_per_sequence(stored, context, last)
