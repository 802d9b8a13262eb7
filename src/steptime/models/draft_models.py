r"""Draft models: what drafts the speculative tokens of a model, an EAGLE-3 head or a small model.

**EAGLE-3** (arXiv 2503.01840; vLLM, vllm/model_executor/models/llama_eagle3.py). Let $h$ be the width of the model. A head has
one layer, and an output matrix over a reduced draft vocabulary. A matrix from $3h$ to $h$ fuses the features of three layers.
Queries, keys and values of the layer read $2h$: the embedding of the last token, and the fused features or the
head's last output. The embedding is that of the model. Engines fuse once per step, before the first draft pass, and each chip
has the whole fusing matrix (`ReplicatedLinear`).

**Shapes** are those of a public head in the catalogue. For other models with grouped-query attention and a dense feed-forward
block, the layer has the shape of the model's layers. The public heads of such models do too (SpecForge's configs). For models
with experts or latent attention the public heads follow no rule, so that they need an entry.

**A draft model** is a whole model with the same vocabulary. It has its own embedding, output matrix and KV cache.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal

from steptime.catalog.acceptance_lengths import OWN_LAYERS, Head, eagle3_head
from steptime.errors import InputError, short_repr
from steptime.hardware.number_formats import number_format
from steptime.models.model import Attention, Drafter, Layer, Model, Op, Split, kv_bytes_per_token, total_parameters, with_kv
from steptime.models.model_loading import load_model

EAGLE3: Final = "eagle3"
DRAFT_MODEL: Final = "draft_model"
# Layers whose features a head fuses.
FUSED_LAYERS: Final = 3
# Draft vocabulary of most public heads (SpecForge's configs).
DRAFT_VOCABULARY: Final = 32_000
# Format in which the public heads are stored.
HEAD_FORMAT: Final = "bf16"
RULE: Final = "by rule: one layer with the shape of the model's layers"


def with_draft_model(model: Model, name: str, catalog: str | os.PathLike[str] | None = None) -> Model:
    """Return a model with what drafts its speculative tokens.

    Args:
        model: The model that verifies.
        name: mtp (the model's own layers), eagle3, or a small model: catalogue name, Hugging Face id or path.
        catalog: Folder that is searched first.

    Returns:
        The model with a drafter; for mtp the model without a separate one.

    Raises:
        InputError: The model has no such layers, no shape of a head is known, or the small model does not fit it.
    """
    if name == OWN_LAYERS:
        if not model.draft:
            raise InputError(
                f"draft_model: {model.name} has no layers that draft tokens (multi-token prediction), got mtp; give eagle3, "
                "or a small model with the same vocabulary"
            )
        return replace(model, drafter=None)
    place = None if catalog is None else os.fspath(catalog)
    drafter = _eagle3(model, place) if name == EAGLE3 else _small_model(model, name, catalog)
    # Engines give the drafter the KV cache format of the model (vLLM, llama_eagle3.py get_cache_config).
    if drafter.model.kv_format != model.kv_format:
        drafter = replace(drafter, model=with_kv(drafter.model, number_format(model.kv_format)))
    return replace(model, drafter=drafter)


def _small_model(model: Model, name: str, catalog: str | os.PathLike[str] | None) -> Drafter:
    """Return a small model as drafter, or the reason why it cannot draft."""
    small = load_model(name, catalog=catalog)
    # Rejection sampling compares the two distributions token by token (vLLM, verify_equal_vocab_size_if_draft_model).
    if small.vocabulary != model.vocabulary:
        raise InputError(
            f"draft_model: must have the vocabulary of {model.name} ({model.vocabulary:,} tokens), got {small.name} with "
            f"{small.vocabulary:,}; give a small model of the same family, or eagle3"
        )
    if total_parameters(small) >= total_parameters(model):
        raise InputError(
            f"draft_model: must be smaller than {model.name}, got {small.name} with {total_parameters(small):,.0f} parameters"
        )
    place = small.checkpoint.place
    # A draft model runs without multi-token-prediction layers and without images.
    small = replace(small, draft=(), media=None, drafter=None)
    return Drafter(method=DRAFT_MODEL, model=small, place=place, source=f"config of {small.name}")


@lru_cache(maxsize=64)
def _eagle3(model: Model, catalog: str | None) -> Drafter:
    """Return the EAGLE-3 head of a model, from the catalogue or by rule."""
    head = eagle3_head(model.name, catalog)
    if head is not None and head.heads:
        shape, source = head, head.source
    else:
        shape, source = _layer_shape(model, head), RULE if head is None else f"{RULE}; {head.source}"
    return Drafter(
        method=EAGLE3, model=_head_model(model, shape), entry=(_fusion(model),), place="" if head is None else head.place,
        source=source,
    )  # fmt: skip


def _layer_shape(model: Model, head: Head | None) -> Head:
    """Return the shape of the model's layers, for a model with grouped-query attention and a dense block."""
    layer = model.layers[-1][0]
    ops = {op.name: op for op in layer.ops}
    mixers = [a for a in layer.attention if a.name == "attention"]
    if model.routed or not {"q_proj", "k_proj", "gate_proj"} <= ops.keys() or len(mixers) != 1:
        raise InputError(
            f"draft_model: no shape of an EAGLE-3 head of {model.name} is known, and a rule exists only for models with "
            "grouped-query attention and dense layers; give a small model with the same vocabulary, or add the head to a "
            "file acceptance/*.toml of a catalogue (--catalog)"
        )
    heads = mixers[0].heads
    return Head(
        models=(model.name,),
        place="" if head is None else head.place,
        intermediate=int(ops["gate_proj"].outputs),
        heads=heads,
        kv_heads=mixers[0].kv_shards,
        head_dim=int(ops["q_proj"].outputs) // heads,
        vocabulary=DRAFT_VOCABULARY if head is None else head.vocabulary,
        source="",
    )


def _matrix(
    name: str,
    inputs: int,
    outputs: int,
    *,
    term: str = "projections",
    rows: Literal["tokens", "outputs"] = "tokens",
    split: Split = "group",
    limit: float = float("inf"),
) -> Op:
    return Op(
        name=name,
        term=term,
        weights=inputs * outputs,
        flops_per_row=2 * inputs * outputs,
        format=number_format(HEAD_FORMAT),
        rows=rows,
        split=split,
        split_limit=limit,
        inputs=inputs,
        outputs=outputs,
    )


def _norm(name: str, width: int) -> Op:
    return Op(
        name=name, term="norms", weights=width, flops_per_row=0.0, format=number_format(HEAD_FORMAT), split="replicated",
        inputs=width, outputs=width,
    )  # fmt: skip


def _fusion(model: Model) -> Op:
    """Return the matrix that fuses the features of three layers; every chip has it."""
    return _matrix("fc", FUSED_LAYERS * model.width, model.width, split="replicated")


def _head_model(model: Model, shape: Head) -> Model:
    """Return the layer and the output matrix of a head, as a model of one layer."""
    width, inner = model.width, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ops = (
        *(_norm(name, width) for name in ("input_norm", "hidden_norm", "post_norm")),
        _matrix("q_proj", 2 * width, queries, limit=shape.heads),
        _matrix("k_proj", 2 * width, keys, limit=shape.kv_heads),
        _matrix("v_proj", 2 * width, keys, limit=shape.kv_heads),
        _matrix("o_proj", queries, width),
        _matrix("gate_proj", width, inner, term="feed-forward"),
        _matrix("up_proj", width, inner, term="feed-forward"),
        _matrix("down_proj", inner, width, term="feed-forward"),
    )
    # Scores and weighted sums: two multiply-adds of each head's values per pair.
    flops = 4.0 * queries
    attention = Attention(
        name="attention",
        kv_bytes=2 * keys * number_format(HEAD_FORMAT).bytes,
        kv_shards=shape.kv_heads,
        flops_per_pair_decode=flops,
        flops_per_pair_prefill=flops,
        heads=shape.heads,
        query_values=queries,
        output_values=queries,
    )
    shared = tuple(replace(op, stored=False) for op in model.stem if op.term == "embedding" and op.rows == "lookup")
    stem = (*shared, _norm("final_norm", width), _matrix("lm_head", width, shape.vocabulary, term="head", rows="outputs"))
    return Model(
        name=f"EAGLE-3 head of {model.name}",
        family=EAGLE3,
        layers=((Layer(name="EAGLE-3 layer", ops=ops, attention=(attention,)), 1),),
        stem=stem,
        width=width,
        vocabulary=shape.vocabulary,
        heads=shape.heads,
        max_context=model.max_context,
        kv_format=HEAD_FORMAT,
    )


def drafter_words(model: Model) -> str:
    """Return what drafts for a model, with its size, as a note.

    Args:
        model: A model with a separate drafter.

    Returns:
        One sentence without its full stop; "" without a separate drafter.
    """
    drafter = model.drafter
    if drafter is None:
        return ""
    size = total_parameters(drafter.model) + sum(op.total_weights for op in drafter.entry)
    cache = f"{kv_bytes_per_token(drafter.model):,.0f} B of KV cache per token"
    place = f", weights {short_repr(drafter.place)}" if drafter.place else ", no public weights known"
    return f"drafted by {drafter.model.name}: {size / 1e9:.2f} B parameters, {cache}; {drafter.source}{place}"
