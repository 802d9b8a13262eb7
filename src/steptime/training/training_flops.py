"""FLOPs of training per token: by the model-FLOPs convention, and recomputed."""

from __future__ import annotations

import numpy as np

from steptime.models.model import Model, matmul_flops_per_token, pairs
from steptime.number_checks import Number
from steptime.training.layer_profile import layer_profiles
from steptime.training.layer_time import ALTERNATE, recomputed_modules
from steptime.training.training_job import TrainingJob


def forward_flops(model: Model, seq: Number, *, full: bool) -> Number:
    """Return the FLOPs of the forward pass per token, with the head.

    Args:
        model: Model to train.
        seq: Tokens per sequence.
        full: Whether masked query-key pairs count.

    Returns:
        FLOPs per token.

    >>> import steptime as st
    >>> m = st.load_model("llama-3.1-405b")
    >>> round(3 * float(forward_flops(m, 8192, full=False)) / 1e9), round(3 * float(forward_flops(m, 8192, full=True)) / 1e9)
    (2524, 2625)
    """
    flops: Number = matmul_flops_per_token(model)
    for layer, n in model.layers:
        for a in layer.attention:
            attended_tokens = np.minimum(seq, np.minimum(a.window, a.selected)) if full else pairs(a, seq * 1.0, 0.0) / seq
            flops = flops + n * (a.flops_per_pair_prefill * attended_tokens + a.state_flops_per_token)
    return flops


def draft_flops(model: Model, seq: Number, *, full: bool) -> Number:
    """Return the FLOPs of the multi-token-prediction layers forward, per token.

    Each layer counts with the head.

    Args:
        model: Model to train.
        seq: Tokens per sequence.
        full: Whether masked query-key pairs count.

    Returns:
        FLOPs per token.
    """
    head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
    flops: Number = 0.0
    for layer, n in model.draft:
        flops = flops + n * (head + sum(op.flops_per_row * op.active for op in layer.ops if op.rows in ("tokens", "routed")))
        for a in layer.attention:
            attended_tokens = np.minimum(seq, np.minimum(a.window, a.selected)) if full else pairs(a, seq * 1.0, 0.0) / seq
            flops = flops + n * a.flops_per_pair_prefill * attended_tokens
    return flops


def model_flops(model: Model, job: TrainingJob, *, full: bool) -> Number:
    """Return the FLOPs of training per token.

    Training costs three times the forward pass, and twice with a frozen base (LoRA, without its adapters).

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        full: Whether masked query-key pairs count.

    Returns:
        FLOPs per token.
    """
    forward = forward_flops(model, job.seq, full=full) + (draft_flops(model, job.seq, full=full) if job.mtp else 0.0)
    return (2 + job.trained) * forward


def recompute_flops(model: Model, job: TrainingJob, recompute: str) -> Number:
    """Return the FLOPs per token that the backward pass computes again.

    Attention counts all query-key pairs.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        recompute: Recomputation of the layout.

    Returns:
        FLOPs per token.
    """
    # The head is not inside a recomputed layer.
    if recompute in ("full", "reversible"):
        head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
        return forward_flops(model, job.seq, full=True) - head
    flops: Number = 0.0
    for (sheet, n), (layer, _) in zip(layer_profiles(model), model.layers, strict=True):
        if recompute == ALTERNATE:
            # Selective checkpointing by operator recomputes every second product.
            flops = flops + n * sum(product.flops for product in sheet.products) / 2
            continue
        for module in recomputed_modules(recompute):
            flops = flops + n * sheet.recompute_work[module][0]
            if module == "attention":
                attention_flops = (
                    a.flops_per_pair_prefill * np.minimum(job.seq, np.minimum(a.window, a.selected)) for a in layer.attention
                )
                flops = flops + n * sum(attention_flops)
    return flops
