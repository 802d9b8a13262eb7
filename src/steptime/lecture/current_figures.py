"""What real machines, models, laws and prices say to the numbers of the lecture: functions of names that return numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from steptime.blackboard.cache_tiers import recompute_cost, retrieve_cost
from steptime.blackboard.compute_allocation import overtraining, tokens_equal_to_serving
from steptime.blackboard.critical_batch import optimal_batch
from steptime.blackboard.decode_latency import memory_over_compute
from steptime.blackboard.ideal_machine import balance, drain_seconds, multiplies
from steptime.blackboard.price_signals import ratio_below_step
from steptime.blackboard.scale_out import pipeline_condition
from steptime.catalog.hardware_loading import load_system
from steptime.errors import RangeError
from steptime.hardware.number_formats import number_format, peak_rate
from steptime.hardware.unit_cost import sequences_in_flight
from steptime.lecture.model_on_system import build_pair
from steptime.models.model import cache_bytes, cache_bytes_read, kv_bytes_per_token, total_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.reversible.avalanche import CIPHERS, cipher_curve, feistel_expected, network_curve
from steptime.reversible.dependency_patterns import known_times
from steptime.reversible.memory_tradeoff import plain_bytes, reversible_bytes
from steptime.reversible.random_networks import trained_and_random
from steptime.reversible.sboxes import sbox_card
from steptime.scaling.compute_optimal import cheapest, equivalent_dense
from steptime.scaling.scaling_laws import loss, tokens_for
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_flops import forward_flops
from steptime.units import DAY, HOUR, MILLION


def balances(systems: Sequence[str], weights: str) -> Array:
    """Return R of systems in one number format of weights.

    >>> [round(float(one)) for one in balances(["hgx-h100", "hgx-h200"], "fp8")]
    [295, 206]
    """
    stored = number_format(weights)
    chips = [load_system(name).chip for name in systems]
    of_weight = stored.bytes if weights != "nvfp4" else 0.5  # the lecture leaves scales out
    return np.array(
        [balance(multiplies(float(peak_rate(c.peak, stored.arithmetic))), of_weight, float(c.hbm.bandwidth)) for c in chips]
    )


def drains(systems: Sequence[str]) -> Array:
    """Return the drain times of systems' own memory [s].

    >>> [round(float(one) * 1e3) for one in drains(["hgx-h100", "tpu-v5e"])]
    [24, 20]
    """
    chips = [load_system(name).chip for name in systems]
    return np.array([drain_seconds(float(c.hbm.capacity), float(c.hbm.bandwidth)) for c in chips])


def kv_bytes(models: Sequence[str]) -> Array:
    """Return KV bytes per token of models as their configs store them.

    >>> [float(one) for one in kv_bytes(["deepseek-v3", "llama-3.3-70b"])]
    [70272.0, 327680.0]
    """
    return np.array([kv_bytes_per_token(load_model(name)) for name in models])


def best_batch(model: str, system: str) -> float:
    """Return B* of a real pair, no cache: R of its formats times all over active parameters."""
    pair = build_pair(load_model(model), load_system(system))
    return float(optimal_batch(pair.balance, pair.sparsity))


def knee(model: str, system: str, context: int) -> float:
    """Return L* of a real pair [tokens], by what a token of `context` reads."""
    return build_pair(load_model(model), load_system(system), context=context).knee


def floor(model: str, system: str) -> float:
    """Return the time in which one domain reads all weights once [s]."""
    return build_pair(load_model(model), load_system(system)).floor


def scale_out_ratio(systems: Sequence[str]) -> Array:
    """Return bandwidth inside a domain over that between domains, of a chip."""
    machines = [load_system(name) for name in systems]
    return np.array([float(machine.scale_up.link.bandwidth) / float(machine.scale_out.link.bandwidth) for machine in machines])


def domain_growth(before: str, after: str) -> float:
    """Return chips of a scale-up domain over those of an earlier one."""
    return float(load_system(after).scale_up.size) / float(load_system(before).scale_up.size)


def pipeline_ratio(model_experts: float, systems: Sequence[str]) -> Array:
    """Return the pipeline condition for one layer a stage on real links."""
    return np.asarray(pipeline_condition(model_experts, 1, scale_out_ratio(systems)))


def batch_in_flight(tokens_per_second: float, tokens_per_second_per_user: float, best: float) -> float:
    """Return sequences in flight over the best batch, by Little's law.

    >>> round(batch_in_flight(18 * 14_800, 21, 300 * 671 / 37), 2)
    2.33
    """
    return float(sequences_in_flight(tokens_per_second, tokens_per_second_per_user)) / best


def best_overtraining(laws: Sequence[str], params: float, trained: float, served: float) -> Array:
    """Return how far over Chinchilla's tokens the cheapest model is trained, for the loss of a given one, by law.

    served: tokens of serving that cost as forward passes of training do, relative speed counted in.
    """
    ratios = []
    for law in laws:
        at_loss = loss(law, params, trained)
        size = float(cheapest(law, at_loss, served))
        ratios.append(float(overtraining(float(tokens_for(law, size, at_loss)), size)))
    return np.array(ratios)


def dense_worth(laws: Sequence[str], active: float, experts: float) -> Array:
    """Return the dense parameters of the same loss as a mixture of experts, by law."""
    return np.array([float(equivalent_dense(law, active, experts)) for law in laws])


def dense_gain(law: str, active: float, experts: float) -> float:
    """Return the same over the active parameters."""
    return float(equivalent_dense(law, active, experts)) / active


def bandwidth_growth(before: str, after: str) -> float:
    """Return the memory bandwidth of a scale-up domain over that of an earlier one."""
    wide, narrow = (float(s.scale_up.size) * float(s.chip.hbm.bandwidth) for s in (load_system(after), load_system(before)))
    return wide / narrow


def figure_ratio(over: float, under: float) -> float:
    """Return one measured figure over another.

    >>> figure_ratio(10, 4)
    2.5
    """
    return over / under


def microbatches_without_idle(stages: int) -> int:
    """Return the least micro-batches in flight that keep every stage of a loop busy, by walking the loop.

    Each micro-batch goes through all stages, a beat each, and starts again. -> count

    >>> microbatches_without_idle(4)
    4
    """
    for count in range(1, 2 * stages):
        places = [-number for number in range(count)]  # micro-batches follow one another, and those below 0 have not started
        busy = 0
        for beat in range(8 * stages):
            busy_stages = [place % stages for place in places if place >= 0]
            if beat >= 4 * stages:
                busy += len(set(busy_stages))
            places = [place + 1 for place in places]
        if busy == 4 * stages * stages:
            return count
    raise RangeError(f"no number of micro-batches below {2 * stages} keeps {stages} stages busy")


def dense_reads(context: float) -> float:
    """Return the cache entries that attention to all tokens reads: all of them."""
    return context


def cost_over_floor(context: float, knee: float) -> float:
    """Return the cost of a token over its floor by context, a batch without end: max(1, L/L*)."""
    return float(ratio_below_step(knee, context))


def mixing_rounds(pattern: str) -> float:
    """Return the rounds until each output depends on each input, by the name of a cipher's or a network's pattern."""
    return known_times([pattern])[pattern]


def flipped_share(name: str, rounds: float) -> float:
    """Return the share of output bits, or signs, that one input bit flips after rounds of a cipher, or layers of a network."""
    shares = _flipped(name)
    return shares[min(int(rounds), len(shares)) - 1]


@lru_cache(maxsize=32)
def _flipped(name: str) -> tuple[float, ...]:
    return (cipher_curve(name, samples=4096) if name in CIPHERS else network_curve(name)).shares


def strength(sbox: str, figure: str) -> float:
    """Return a figure of a known S-box's card: `uniformity` or `walsh`."""
    return float(getattr(sbox_card(sbox), figure))


@lru_cache(maxsize=1)
def trained_flips() -> float:
    """Return the share of outputs that one input flips in a network trained to tell how groups of its inputs vote."""
    return trained_and_random().trained


def kept_over_reversible(layers: float, stream_bytes: float, layer_bytes: float) -> float:
    """Return activations that plain layers keep over those of reversible ones: two streams and one layer at any depth."""
    return float(plain_bytes(layers, layer_bytes)) / float(reversible_bytes(stream_bytes, layer_bytes))


def balances_by_format(pairs: Sequence[tuple[str, str]]) -> Array:
    """Return R of systems, each with its own number format of weights."""
    return np.concatenate([balances([system], weights) for system, weights in pairs])


def share_read(models: Sequence[str], context: int) -> Array:
    """Return the share of a cache's bytes that a token reads at a context [tokens], by model."""
    loaded_models = [load_model(name) for name in models]
    return np.array([float(cache_bytes_read(model, context)) / float(cache_bytes(model, context)) for model in loaded_models])


def longest_contexts(models: Sequence[str]) -> Array:
    """Return the longest contexts that configs state [tokens]."""
    return np.array([float(load_model(name).max_context) for name in models])


def parameters(model: str) -> float:
    """Return all parameters of a model, as counted from its config."""
    return total_parameters(load_model(model))


def per_second_of_month(tokens_a_month: Sequence[float]) -> Array:
    """Return tokens a second from totals of a month of 365/12 days.

    >>> [round(float(one) / 1e6) for one in per_second_of_month([480e12, 1300e12])]
    [183, 495]
    """
    return np.asarray(tokens_a_month) / (365 / 12 * DAY)


def memory_share(system: str, usd_per_byte: Sequence[float], price: float) -> Array:
    """Return what the HBM of one domain costs over the price of the whole [USD], at prices of memory [USD/B]."""
    machine = load_system(system)
    return np.asarray(usd_per_byte) * float(machine.scale_up.size) * float(machine.chip.hbm.capacity) / price


def price_over_cost(usd_per_million: float, active: float, mac_rate: float, usd_per_hour: float) -> float:
    """Return the price of an input token over the rent of its arithmetic.

    >>> round(price_over_cost(5, 100e9, 2.25e15, 2))
    202
    """
    return usd_per_million / MILLION / float(recompute_cost(active, mac_rate, usd_per_hour / HOUR))


def chips_over_domain(chips: float, system: str) -> float:
    """Return chips that share an expert layer over those that a scale-up domain joins."""
    return chips / float(load_system(system).scale_up.size)


def slow_mode(batches: float) -> float:
    """Return the cost of a token at so many times the best batch over that at the best one, no cache: 1 from there on.

    >>> slow_mode(4), slow_mode(0.5)
    (1.0, 2.0)
    """
    return max(1.0, float(memory_over_compute(batches, 0.0, 1.0, 1.0)))


def idle_over_gpipe(schedule: str, stages: int, microbatches: int) -> float:
    """Return the idle time of a schedule over GPipe's; forward, input and weight gradients take a beat each."""
    idle, gpipe_idle = (schedule_named(name).idle(stages, microbatches, 1, 1.0, 2.0, 1.0) for name in (schedule, "gpipe"))
    return float(idle) / float(gpipe_idle)


def stage_imbalance(layers: int, stages: int) -> float:
    """Return the largest over the mean number of layers of a stage.

    >>> stage_imbalance(60, 4), round(stage_imbalance(61, 4), 2)
    (1.0, 1.05)
    """
    return -(-layers // stages) * stages / layers


def training_flops_per_parameter(model: str, seq: int) -> float:
    """Return the FLOPs of training on a token, over parameters: three forward passes of sequences of `seq` tokens."""
    loaded_model = load_model(model)
    return 3 * float(forward_flops(loaded_model, seq, full=False)) / total_parameters(loaded_model)


def serving_over_training(served: float, trained: float, eta: float) -> float:
    """Return the cost of serving tokens over that of pre-training: 2 eta D_inf over 6 D_pre."""
    return float(tokens_equal_to_serving(served, eta)) / trained


def read_over_recompute(
    kv_bytes: float, bandwidth: float, tier_usd_per_hour: float, active: float, mac_rate: float, usd_per_hour: float
) -> float:
    """Return the cost of reading a cached token back from a tier over that of computing it again."""
    read_cost = retrieve_cost(kv_bytes, bandwidth, tier_usd_per_hour / HOUR)
    return float(read_cost / recompute_cost(active, mac_rate, usd_per_hour / HOUR))


def feistel_flips(rounds: int, half: int) -> float:
    """Return the expected share of outputs that one input bit flips after some Feistel rounds on halves of bits."""
    return float(feistel_expected(rounds, half)[-1])
