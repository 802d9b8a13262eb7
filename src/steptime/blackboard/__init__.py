r"""Closed forms of the lecture on an ideal machine, one file per topic.

An ideal machine has two numbers: $F$ multiply-accumulates per second (half of the dense FLOP/s of a data sheet) and $W$
bytes of memory traffic per second. A model has four numbers: $N_{act}$ and $N_{tot}$ parameters, $b_w$ bytes per parameter,
and $\kappa$ bytes of KV cache per token.

All functions take plain numbers or arrays and broadcast. Units are bytes, seconds, tokens, sequences, parameters and
dollars.

Every formula follows from one equation for a decode step of $B$ sequences at context $L$:

$$ \rho = t_{mem} / t_{comp} = B^*/B + L/L^*, \qquad B^* = R \sigma, \qquad L^* = b_w N_{act} / (R \kappa) $$

with balance $R = F b_w / W$ and sparsity $\sigma = N_{tot}/N_{act}$.

Section numbers are those of the lecture: Reiner Pope, "The math behind how LLMs are trained and served", 2026-04-29.
Formulas marked *derived* follow from the equations of the lecture, which does not contain them.
"""

from steptime.blackboard.decode_latency import (
    attention_equals_weights,
    balance,
    compute_seconds,
    drain_seconds,
    kv_read_seconds,
    mean_wait,
    memory_over_compute,
    multiplies,
    sparse_reads,
    step_seconds,
    throughput,
    utilisation,
    weight_seconds,
    worst_wait,
)
from steptime.blackboard.expert_activation import (
    across_racks,
    distinct_hit,
    exchange_bytes,
    experts_per_chip,
    experts_touched,
    floor_of_domain,
    pipeline_condition,
    two_level_exchange,
    weights_touched,
)
from steptime.blackboard.pipeline_stages import (
    bubble_fraction,
    free_drafts,
    kv_bytes_per_chip,
    token_latency,
    tokens_per_pass,
    weight_bytes_per_chip,
)
from steptime.blackboard.token_cost import (
    active_from_input,
    batch_for_cost,
    batch_ratio,
    break_even_hits,
    break_even_hold,
    cost_per_token,
    decode_utilisation,
    hold_cost,
    hold_price,
    hold_seconds,
    joint_balanced_context,
    joint_batch_ratio,
    kv_bytes_from_shape,
    kv_bytes_from_step,
    kv_bytes_from_tier,
    kv_over_weights,
    pass_ratio,
    ratio_below_step,
    recompute_cost,
    retrieve_cost,
    speed_ceiling,
    speed_for_price,
    unbatched_penalty,
    usd_per_byte_read,
    usd_per_flop,
)
from steptime.blackboard.training_compute import (
    balanced_context,
    chinchilla_tokens,
    cost_at_equality,
    optimal_batch,
    overtraining,
    served_tokens,
    tokens_equal_to_rl,
    tokens_equal_to_serving,
)

__all__ = [
    "across_racks",
    "active_from_input",
    "attention_equals_weights",
    "balance",
    "balanced_context",
    "batch_for_cost",
    "batch_ratio",
    "break_even_hits",
    "break_even_hold",
    "bubble_fraction",
    "chinchilla_tokens",
    "compute_seconds",
    "cost_at_equality",
    "cost_per_token",
    "decode_utilisation",
    "distinct_hit",
    "drain_seconds",
    "exchange_bytes",
    "experts_per_chip",
    "experts_touched",
    "floor_of_domain",
    "free_drafts",
    "hold_cost",
    "hold_price",
    "hold_seconds",
    "joint_balanced_context",
    "joint_batch_ratio",
    "kv_bytes_from_shape",
    "kv_bytes_from_step",
    "kv_bytes_from_tier",
    "kv_bytes_per_chip",
    "kv_over_weights",
    "kv_read_seconds",
    "mean_wait",
    "memory_over_compute",
    "multiplies",
    "optimal_batch",
    "overtraining",
    "pass_ratio",
    "pipeline_condition",
    "ratio_below_step",
    "recompute_cost",
    "retrieve_cost",
    "served_tokens",
    "sparse_reads",
    "speed_ceiling",
    "speed_for_price",
    "step_seconds",
    "throughput",
    "token_latency",
    "tokens_equal_to_rl",
    "tokens_equal_to_serving",
    "tokens_per_pass",
    "two_level_exchange",
    "unbatched_penalty",
    "usd_per_byte_read",
    "usd_per_flop",
    "utilisation",
    "weight_bytes_per_chip",
    "weight_seconds",
    "weights_touched",
    "worst_wait",
]
