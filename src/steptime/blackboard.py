r"""The lecture's closed forms on an ideal machine.

An ideal machine is two numbers: $F$ multiply-accumulates a second (half of a data sheet's dense FLOP/s) and $W$ bytes of memory
traffic a second. A model is a few: $N_{act}$ and $N_{tot}$ parameters of $b_w$ bytes, and $\kappa$ bytes of KV cache a token.
All functions are bare and broadcast; units are bytes, seconds, tokens, sequences, parameters and dollars.

Everything is a reading of one line, for one decode step of $B$ sequences at context $L$:

$$ \rho = t_{mem} / t_{comp} = B^*/B + L/L^*, \qquad B^* = R \sigma, \qquad L^* = b_w N_{act} / (R \kappa) $$

with balance $R = F b_w / W$ and sparsity $\sigma = N_{tot}/N_{act}$. The section numbers are those of the lecture (Reiner Pope,
"The math behind how LLMs are trained and served", 2026-04-29); formulas marked *derived* follow from its lines but were
not spoken.
"""

from __future__ import annotations

import numpy as np

from steptime.hardware import Number
from steptime.roofline import distinct_hit, experts_touched

# --- 0. the machine -----------------------------------------------------------------------------------------------------


def multiplies(flops: Number) -> Number:
    """Multiply-accumulates per second of a data sheet's dense FLOP/s, which counts a multiply and an add as two.

    >>> multiplies(1978.9e12)
    989450000000000.0
    """
    return flops / 2


def balance(mac_rate: Number, weight_bytes: Number, bandwidth: Number) -> Number:
    r"""Hardware balance $R = F b_w / W$: multiplies per weight that memory can deliver. Dimensionless, about 300.

    mac_rate [MAC/s], weight_bytes [B/parameter], bandwidth [B/s]. H100 in FP8:

    >>> round(balance(multiplies(1978.9e12), 1.0, 3.35e12), 1)
    295.4
    """
    return mac_rate * weight_bytes / bandwidth


# --- 1. roofline latency ------------------------------------------------------------------------------------------------


def compute_seconds(batch: Number, active: Number, mac_rate: Number) -> Number:
    """Time of the arithmetic $B N_{act} / F$: batch [sequences], active [parameters], mac_rate [MAC/s] -> [s]. Section 1.

    >>> round(compute_seconds(2400, 37e9, 1.8e17) * 1e3, 3)
    0.493
    """
    return batch * active / mac_rate


def weight_seconds(total: Number, weight_bytes: Number, bandwidth: Number) -> Number:
    """Time to stream every weight once $b_w N_{tot} / W$: the floor of a step's latency [s]. Sections 1 and 4.

    >>> round(weight_seconds(671e9, 1.0, 8 * 3.35e12) * 1e3, 1)
    25.0
    """
    return weight_bytes * total / bandwidth


def kv_read_seconds(batch: Number, context: Number, kv_bytes_per_token: Number, bandwidth: Number) -> Number:
    r"""Time to stream every live KV cache once $B L \kappa / W$ [s]. Valid when no prefix is shared. Section 1.

    >>> kv_read_seconds(256, 4096, 70_272, 8e12)
    0.009210691584
    """
    return batch * context * kv_bytes_per_token / bandwidth


def step_seconds(
    batch: Number,
    context: Number,
    *,
    active: Number,
    total: Number,
    weight_bytes: Number,
    kv_bytes_per_token: Number,
    mac_rate: Number,
    bandwidth: Number,
) -> Number:
    r"""Time of a decode step $\max(t_{comp}, t_w + t_{kv})$ [s], with perfect overlap. Section 1.

    >>> step = step_seconds(64, 1000, active=8e9, total=8e9, weight_bytes=2, kv_bytes_per_token=131072,
    ...                     mac_rate=4.95e14, bandwidth=3.35e12)
    >>> round(float(step) * 1e3, 2)
    7.28
    """
    memory = weight_seconds(total, weight_bytes, bandwidth) + kv_read_seconds(batch, context, kv_bytes_per_token, bandwidth)
    return np.maximum(compute_seconds(batch, active, mac_rate), memory)


def memory_over_compute(batch: Number, context: Number, best_batch: Number, balanced_context: Number) -> Number:
    r"""The one line: $\rho = t_{mem}/t_{comp} = B^*/B + L/L^*$; cost over its floor is $\max(1, \rho)$. Section 1, *derived*.

    >>> memory_over_compute(2400.0, 0.0, 2400.0, 200e3), memory_over_compute(1e30, 400e3, 2400.0, 200e3)
    (1.0, 2.0)
    """
    return best_batch / batch + context / balanced_context


def utilisation(ratio: Number) -> Number:
    r"""Model FLOPs utilisation $1/\max(1, \rho)$. Section 1.

    >>> float(utilisation(2.0))
    0.5
    """
    return 1 / np.maximum(1.0, ratio)


def weights_touched(batch: Number, active: Number, total: Number, *, experts: int, chosen: int) -> Number:
    """Parameters that a step must fetch when few tokens touch few experts: all but the untouched experts. Section 1, *derived*.

    At a batch of one it is the active parameters, far above n/k all of them.

    >>> round(float(weights_touched(1, 37e9, 671e9, experts=256, chosen=8)) / 1e9, 6)
    37.0
    """
    routed = (total - active) / (1 - chosen / experts)  # parameters of all routed experts together
    return total - routed + routed * experts_touched(experts, chosen, batch) / experts


# --- 2. cost per token --------------------------------------------------------------------------------------------------


def cost_per_token(seconds: Number, batch: Number, chips: Number, rent: Number) -> Number:
    """USD per token of a step that makes `batch` tokens on `chips` rented at `rent` [USD per chip-second]. Section 2.

    >>> round(cost_per_token(0.02, 2000, 72, 2 / 3600) * 1e6, 3)
    0.4
    """
    return rent * chips * seconds / batch


def unbatched_penalty(machine_balance: Number, sparsity: Number) -> Number:
    r"""Cost of a token at batch 1 over its floor, no KV: $R \sigma$. Section 2, *derived*.

    >>> unbatched_penalty(300, 8)
    2400
    """
    return machine_balance * sparsity


def batch_for_cost(multiple: Number, best_batch: Number, context: Number = 0.0, balanced_context: Number = np.inf) -> Number:
    r"""Batch at which a token costs `multiple` of its compute floor: $B^*/(m - L/L^*)$. Section 2, *derived*.

    >>> float(batch_for_cost(1.5, 2400.0))
    1600.0
    """
    room = multiple - context / balanced_context
    return np.where(room > 0, best_batch / np.where(room > 0, room, 1.0), np.inf)


# --- 3. optimal batch ---------------------------------------------------------------------------------------------------


def optimal_batch(
    machine_balance: Number, sparsity: Number, context: Number = 0.0, balanced_context: Number = np.inf
) -> Number:
    r"""Batch at which memory and compute take equal time: $B^* = R\sigma / (1 - L/L^*)$; infinite beyond $L^*$. Section 3.

    >>> float(optimal_batch(300, 256 / 32)), round(float(optimal_batch(300, 671 / 37)))
    (2400.0, 5441)
    """
    room = 1 - context / balanced_context
    return np.where(room > 0, machine_balance * sparsity / np.where(room > 0, room, 1.0), np.inf)


def balanced_context(active: Number, weight_bytes: Number, machine_balance: Number, kv_bytes_per_token: Number) -> Number:
    r"""Context $L^* = b_w N_{act} / (R \kappa)$ at which reading KV takes as long as the arithmetic. Sections 1 and 13.

    >>> round(balanced_context(37e9, 1.0, 295.0, 35136))
    3570
    """
    return weight_bytes * active / (machine_balance * kv_bytes_per_token)


# --- 4. latency floor, train schedule, drain ----------------------------------------------------------------------------


def drain_seconds(capacity: Number, bandwidth: Number) -> Number:
    """Time to read a memory once, capacity / bandwidth [s]: no step of a full machine can be faster, and none need be slower.

    >>> drain_seconds(288e9, 20e12)
    0.0144
    """
    return capacity / bandwidth


def worst_wait(interval: Number) -> Number:
    r"""Worst latency of a train that departs every `interval` [s] while not full: $2 \Delta$, wait and ride. Section 4.

    >>> worst_wait(0.020)
    0.04
    """
    return 2 * interval


def mean_wait(interval: Number) -> Number:
    r"""Mean latency of arrivals spread evenly, while not full: $1.5 \Delta$. Section 4, *derived*.

    >>> mean_wait(0.020)
    0.03
    """
    return 1.5 * interval


def throughput(batch: Number, interval: Number) -> Number:
    """Tokens per second of a batch that steps once per interval [s]. Section 4.

    >>> throughput(2000, 1 / 64)
    128000.0
    """
    return batch / interval


# --- 5. fast and slow modes ---------------------------------------------------------------------------------------------


def batch_ratio(price_ratio: Number, speed_ratio: Number) -> Number:
    """How many times smaller the batch of a fast mode is: price ratio times speed ratio. Section 5, *derived*.

    >>> batch_ratio(6, 2.5)
    15.0
    """
    return price_ratio * speed_ratio


def kv_over_weights(price_ratio: Number, speed_ratio: Number) -> Number:
    r"""KV time over weight time of the base mode, both modes memory-bound: $(s-1)/(1-1/q)$. Section 5, *derived*.

    >>> round(kv_over_weights(6, 2.5), 9)
    1.8
    """
    return (speed_ratio - 1) / (1 - 1 / price_ratio)


def speed_ceiling(price_ratio: Number, speed_ratio: Number) -> Number:
    r"""Largest speed-up at any price on the same hardware: $1 + (s-1)/(1-1/q)$. Section 5, *derived*.

    >>> round(speed_ceiling(6, 2.5), 9)
    2.8
    """
    return 1 + kv_over_weights(price_ratio, speed_ratio)


# --- 7. expert parallelism ----------------------------------------------------------------------------------------------


def experts_per_chip(experts: Number, chips: Number) -> Number:
    """Experts that each chip holds. Section 7.

    >>> experts_per_chip(256, 64)
    4.0
    """
    return experts / chips


def exchange_bytes(tokens: Number, width: Number, value_bytes: Number, *, experts: int, active: int, chips: Number) -> Number:
    """Bytes that a chip sends to dispatch (or to combine) its `tokens` over `chips`, once per chip hit. Section 7, *derived*.

    `value_bytes` is the sum of both directions' bytes per value where both are meant.

    >>> round(float(exchange_bytes(32, 7168, 1, experts=256, active=8, chips=64)) / 1e6, 2)
    1.76
    """
    return tokens * distinct_hit(experts, active, chips) * width * value_bytes


def across_racks(racks: Number, bandwidth_ratio: Number) -> Number:
    r"""Slow-down of an exchange over $r$ racks against one: $\max(1/r, \beta (r-1)/r)$. Section 7.

    Scale-up is $\beta$ = `bandwidth_ratio` times as fast as scale-out.

    >>> float(across_racks(2, 8))
    4.0
    """
    return np.maximum(1 / racks, bandwidth_ratio * (racks - 1) / racks)


# --- 9. pipelining across racks -----------------------------------------------------------------------------------------


def pipeline_condition(active: Number, layers_per_stage: Number, bandwidth_ratio: Number) -> Number:
    r"""Scale-up time over scale-out time of a stage, $2 k \ell / \beta$; at least 1 and the hop between racks hides. Section 9.

    >>> pipeline_condition(8, 1, 8)
    2.0
    """
    return 2 * active * layers_per_stage / bandwidth_ratio


# --- 10. micro-batches and memory ---------------------------------------------------------------------------------------


def weight_bytes_per_chip(total: Number, weight_bytes: Number, expert_ways: Number, stages: Number) -> Number:
    """Weights of a chip $b_w N_{tot} / (E P)$ [B]. Section 10.

    >>> weight_bytes_per_chip(2e12, 1, 64, 4)
    7812500000.0
    """
    return weight_bytes * total / (expert_ways * stages)


def kv_bytes_per_chip(
    microbatch: Number, context: Number, kv_bytes_per_token: Number, expert_ways: Number, stages: Number
) -> Number:
    r"""KV cache of a chip: $B L \kappa / (E P)$ of the $B = P b$ sequences in flight [B]. The stages cancel. Section 10.

    >>> [kv_bytes_per_chip(2400, 2e5, 1667, 64, p) for p in (1, 4)]
    [12502500000.0, 12502500000.0]
    """
    in_flight = microbatch * stages
    return in_flight * context * kv_bytes_per_token / (expert_ways * stages)


def token_latency(step: Number, stages: Number, hop: Number) -> Number:
    """Seconds per token of a looped pipeline: the step and one hop for each stage. Section 10.

    >>> round(token_latency(0.020, 4, 0.0025), 6)
    0.03
    """
    return step + stages * hop


def bubble_fraction(stages: Number, microbatches: Number) -> Number:
    """Idle share of a training step with a flush, $(P-1)/(M+P-1)$ (GPipe, arXiv 1811.06965). Section 10.

    >>> bubble_fraction(4, 13)
    0.1875
    """
    return (stages - 1) / (microbatches + stages - 1)


# --- 11. larger scale-up ------------------------------------------------------------------------------------------------


def floor_of_domain(total: Number, weight_bytes: Number, chips: Number, bandwidth: Number) -> Number:
    """Latency floor of a scale-up domain: its chips read the weights of one step together [s]. Section 11.

    >>> round(floor_of_domain(5e12, 0.5, 72, 8e12) * 1e3, 1)
    4.3
    """
    return weight_bytes * total / (chips * bandwidth)


# --- 13-14. prices read backwards ---------------------------------------------------------------------------------------


def kv_bytes_from_tier(active: Number, context: Number, machine_balance: Number, weight_bytes: Number) -> Number:
    r"""KV bytes per token of a model whose price steps up at `context`: $\kappa = b_w N_{act} / (R L)$. Section 13.

    >>> round(kv_bytes_from_tier(100e9, 200e3, 300, 1.0), 1)
    1666.7
    """
    return weight_bytes * active / (machine_balance * context)


def kv_bytes_from_shape(layers: Number, head_dim: Number, kv_heads: Number, value_bytes: Number = 1.0) -> Number:
    """KV bytes per token of an attention shape: keys and values of every layer that keeps its own. Section 13.

    >>> kv_bytes_from_shape(1, 128, 8)
    2048.0
    """
    return layers * 2 * head_dim * kv_heads * value_bytes


def decode_utilisation(output_over_input: Number) -> Number:
    """MFU of decode when output costs `output_over_input` times input and prefill is compute-bound. Section 14.

    >>> float(decode_utilisation(5.0))
    0.2
    """
    return utilisation(output_over_input)


def pass_ratio(ratio: Number, tokens: Number) -> Number:
    r"""Memory over compute of a pass of $\lambda$ tokens a sequence, $\rho / \lambda$. Section 14.

    At $\lambda = \rho$ a pass turns compute-bound.

    >>> pass_ratio(5.0, 5.0)
    1.0
    """
    return ratio / tokens


# --- 15. cache tiers ----------------------------------------------------------------------------------------------------


def recompute_cost(active: Number, mac_rate: Number, rent: Number) -> Number:
    """USD to make one token of context again. active [parameters], mac_rate [MAC/s], rent [USD/s]. Section 15.

    >>> round(recompute_cost(100e9, 2.25e15, 2 / 3600) * 1e6, 4)
    0.0247
    """
    return active / mac_rate * rent


def hold_cost(kv_bytes_per_token: Number, capacity: Number, rent: Number) -> Number:
    """USD per second to hold one token of context in a tier of `capacity` [B] that costs `rent` [USD/s]. Section 15.

    >>> round(hold_cost(2048, 192e9, 2 / 3600) * 1e6 * 3600, 4)
    0.0213
    """
    return kv_bytes_per_token / capacity * rent


def retrieve_cost(kv_bytes_per_token: Number, bandwidth: Number, rent: Number) -> Number:
    """USD to read one token of context back at `bandwidth` [B/s] from a tier that costs `rent` [USD/s]. Section 15.

    >>> round(retrieve_cost(2048, 7e9, 0.1 / 3600) * 1e12, 3)
    8.127
    """
    return kv_bytes_per_token / bandwidth * rent


def break_even_hold(drain: Number, balanced: Number) -> Number:
    r"""Seconds for which holding a token in HBM costs as much as making it again: $t_{drain} L^*$. Section 15, *derived*.

    >>> break_even_hold(0.020, 200e3)
    4000.0
    """
    return drain * balanced


def break_even_hits(write_price: Number, base_price: Number, read_price: Number) -> Number:
    """Cache hits after which writing to a cache is cheaper than not: (write - base) / (base - read). Section 15, *derived*.

    >>> [round(break_even_hits(w, 5, 0.5), 2) for w in (6.25, 10)]
    [0.28, 1.11]
    """
    return (write_price - base_price) / (base_price - read_price)


# --- 16. the context wall -----------------------------------------------------------------------------------------------


def sparse_reads(context: Number, tokens_per_block: Number) -> Number:
    r"""Entries that block-sparse attention reads at its best, $2 \sqrt{m L}$. Section 16, *derived*.

    It reads $L/s$ summaries of blocks of $s$ tokens, and $m$ selected blocks; $s = \sqrt{L/m}$ is best.

    >>> float(sparse_reads(1e6, 1.0))
    2000.0
    """
    return 2 * np.sqrt(tokens_per_block * context)


def attention_equals_weights(active: Number, layers: Number, heads: Number, head_dim: Number) -> Number:
    """Context at which attention multiplies as much as the weights do: $N_{act} / (2 n h d)$ [tokens]. Section 15, *derived*.

    >>> round(attention_equals_weights(70.6e9, 80, 64, 128), -3)
    54000.0
    """
    return active / (2 * layers * heads * head_dim)


# --- 17. speculative decoding -------------------------------------------------------------------------------------------


def tokens_per_pass(drafts: Number, acceptance: Number) -> Number:
    r"""Expected tokens of a verified pass, $(1 - a^{\gamma+1})/(1-a)$ (Leviathan et al., arXiv 2211.17192). Section 17.

    Each draft is accepted with probability $a$ independently; at $a = 1$ it is $\gamma + 1$.

    >>> round(float(tokens_per_pass(1, 0.85)), 2), float(tokens_per_pass(4, 1.0))
    (1.85, 5.0)
    """
    exact = np.asarray(acceptance) >= 1
    safe = np.where(exact, 0.5, acceptance)
    return np.where(exact, drafts + 1.0, (1 - safe ** (drafts + 1.0)) / (1 - safe))


def free_drafts(ratio: Number) -> Number:
    r"""Drafts that cost no time while a pass is memory-bound: $\gamma + 1 \le \rho$. Section 17, *derived*.

    >>> float(free_drafts(5.0)), float(free_drafts(0.8))
    (4.0, 0.0)
    """
    return np.maximum(0.0, np.floor(ratio) - 1)
