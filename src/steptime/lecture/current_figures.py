"""Numbers of real machines, models, laws and prices for the lecture's statements.

A `Pair` is a model on one scale-up domain, as the few numbers of the blackboard.

The functions take names of the catalogue and return numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.blackboard.decode_latency import (
    balance,
    drain_seconds,
    memory_over_compute,
    multiplies,
    step_seconds,
    weight_seconds,
)
from steptime.blackboard.expert_activation import pipeline_condition
from steptime.blackboard.token_cost import ratio_below_step, recompute_cost, retrieve_cost
from steptime.blackboard.training_compute import balanced_context, optimal_batch, overtraining, tokens_equal_to_serving
from steptime.catalog.hardware_loading import load_system
from steptime.errors import RangeError
from steptime.hardware.number_formats import number_format, peak_rate
from steptime.hardware.rental_prices import sequences_in_flight
from steptime.hardware.system import System
from steptime.models.model import (
    Model,
    active_parameters,
    cache_bytes,
    cache_bytes_read,
    entries_read,
    kv_bytes_per_token,
    total_parameters,
    weight_bytes,
)
from steptime.models.model_loading import load_model
from steptime.number_checks import Array, Number
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import engine_for
from steptime.pricing.bundled_prices import closed_rows
from steptime.reversible.avalanche import CIPHERS, cipher_curve, feistel_expected, known_times, network_curve
from steptime.reversible.memory_tradeoff import plain_bytes, reversible_bytes
from steptime.reversible.random_networks import trained_and_random
from steptime.reversible.sboxes import sbox_card
from steptime.scaling.compute_optimal import cheapest, equivalent_dense
from steptime.scaling.scaling_laws import Law, loss, tokens_for
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_runs import forward_flops
from steptime.units import DAY, HOUR, MILLION

# Default context [tokens].
CONTEXT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The parameters of a model and the rates of one scale-up domain.

    `active` and `total` are parameters; `bytes_of_weight` is the mean bytes of a weight. `mac_rate` [MAC/s],
    `bandwidth` [B/s] and `capacity` [B] are of the whole domain.

    `kv_bytes` [B] is the cache that a step reads at `context` tokens, divided by `context`; it includes windows and
    sparse reads. `attention` [s] is the arithmetic of attention for one sequence at that context, which the
    blackboard leaves out.
    """

    active: float
    total: float
    bytes_of_weight: float
    kv_bytes: float
    context: int
    chips: int
    mac_rate: float
    bandwidth: float
    capacity: float
    attention: float = 0.0
    experts: int = 1
    active_experts: int = 1

    @property
    def balance(self) -> float:
        """Balance R for the number formats of the weights and of their products."""
        return float(balance(self.mac_rate, self.bytes_of_weight, self.bandwidth))

    @property
    def sparsity(self) -> float:
        """Total over active parameters."""
        return self.total / self.active

    @property
    def knee(self) -> float:
        """L* [tokens]: reading the KV cache takes as long as the products with the weights; infinite without a cache."""
        if self.kv_bytes == 0:
            return math.inf
        return float(balanced_context(self.active, self.bytes_of_weight, self.balance, self.kv_bytes))

    @property
    def attention_ratio(self) -> float:
        """Arithmetic time of attention over that of the weights, at the context."""
        return self.attention * self.mac_rate / self.active

    @property
    def knee_with_attention(self) -> float:
        """L* with the arithmetic of attention; infinite if that takes longer than reading the cache."""
        slope = self.kv_bytes / self.bandwidth - self.attention / self.context
        return self.active / self.mac_rate / slope if slope > 0 else math.inf

    @property
    def floor(self) -> float:
        """Seconds to read every weight once."""
        return float(weight_seconds(self.total, self.bytes_of_weight, self.bandwidth))

    @property
    def best_batch(self) -> float:
        """B* [sequences] at the context; infinite from L* on."""
        return float(optimal_batch(self.balance, self.sparsity, self.context, self.knee))

    @property
    def room(self) -> float:
        """Sequences whose caches fit the memory next to the weights."""
        return (self.capacity - self.bytes_of_weight * self.total) / max(self.kv_bytes * self.context, 1e-9)

    def step_seconds(self, batch: Any) -> Any:
        """Return the step time of the closed form.

        Args:
            batch: Sequences, one number or an array.

        Returns:
            Seconds, with the shape of `batch`.
        """
        return step_seconds(
            batch, self.context, active=self.active, total=self.total, weight_bytes=self.bytes_of_weight,
            kv_bytes_per_token=self.kv_bytes, mac_rate=self.mac_rate, bandwidth=self.bandwidth,
        )  # fmt: skip


def domain_chips(system: System) -> int:
    """Return the chips of the scale-up domain, or of a smaller usual deployment.

    The usual deployment is smaller in TPU pods.

    Args:
        system: The system.

    Returns:
        Chips.
    """
    return int(min(float(system.scale_up.size), system.chips))


def build_pair(model: Model, system: System, *, context: int = CONTEXT) -> Pair:
    """Return a model on one scale-up domain as blackboard numbers.

    Multiplies run at the peak rate of each operator's arithmetic.

    Args:
        model: The model.
        system: The system.
        context: Tokens of each sequence.

    Returns:
        Parameters, bytes and rates.
    """
    chips, chip = domain_chips(system), system.chip
    seconds = multiplied = 0.0
    routed = [op for layer, _ in model.layers if (op := layer.routed) is not None]
    every = [(op, n) for layer, n in model.layers for op in layer.ops] + [(op, 1) for op in model.stem]
    # The rate is the harmonic mean over operators, weighted by their active weights.
    for op, count in every:
        if op.rows in ("tokens", "routed", "outputs"):
            multiplied += count * op.active_weights
            seconds += count * op.active_weights / (float(peak_rate(chip.peak, op.format.arithmetic)) / 2)
    # Attention runs in its own arithmetic, which may differ from that of the weights.
    attention = 0.0
    for layer, count in model.layers:
        for a in layer.attention:
            flops = float(np.asarray(a.flops_per_pair_decode * entries_read(a, context) + a.state_flops_per_token))
            attention += count * flops / (chips * float(peak_rate(chip.peak, a.arithmetic)))
    total = total_parameters(model)
    return Pair(
        active=active_parameters(model), total=total, bytes_of_weight=weight_bytes(model) / total,
        kv_bytes=float(np.asarray(cache_bytes_read(model, context))) / context, context=context, chips=chips,
        mac_rate=chips * multiplied / seconds, bandwidth=chips * float(chip.hbm.bandwidth),
        capacity=chips * float(chip.hbm.capacity),
        attention=attention, experts=int(routed[0].experts) if routed else 1,
        active_experts=int(routed[0].active) if routed else 1,
    )  # fmt: skip


def balances(systems: Sequence[str], weights: str) -> Array:
    """Return the balance R of systems for one number format of weights.

    Args:
        systems: Names of systems.
        weights: Number format of the weights.

    Returns:
        Multiplies per weight read, one value per system.

    >>> [round(float(one)) for one in balances(["hgx-h100", "hgx-h200"], "fp8")]
    [295, 206]
    """
    stored = number_format(weights)
    chips = [load_system(name).chip for name in systems]
    # The lecture leaves out the scales of block formats.
    of_weight = stored.bytes if weights != "nvfp4" else 0.5
    return np.array(
        [balance(multiplies(float(peak_rate(c.peak, stored.arithmetic))), of_weight, float(c.hbm.bandwidth)) for c in chips]
    )


def drains(systems: Sequence[str]) -> Array:
    """Return the drain times of the chips' own memory.

    Args:
        systems: Names of systems.

    Returns:
        Seconds, one value per system.

    >>> [round(float(one) * 1e3) for one in drains(["hgx-h100", "tpu-v5e"])]
    [24, 20]
    """
    chips = [load_system(name).chip for name in systems]
    return np.array([drain_seconds(float(c.hbm.capacity), float(c.hbm.bandwidth)) for c in chips])


def kv_bytes(models: Sequence[str]) -> Array:
    """Return the KV bytes per token of models, in the format of their configs.

    Args:
        models: Names of models.

    Returns:
        Bytes per token, one value per model.

    >>> [float(one) for one in kv_bytes(["deepseek-v3", "llama-3.3-70b"])]
    [70272.0, 327680.0]
    """
    return np.array([kv_bytes_per_token(load_model(name)) for name in models])


def best_batch(model: str, system: str) -> float:
    """Return B* of a model on a system without a KV cache.

    R of the model's number formats, times total over active parameters.

    Args:
        model: Name of a model.
        system: Name of a system.

    Returns:
        Sequences.
    """
    pair = build_pair(load_model(model), load_system(system))
    return float(optimal_batch(pair.balance, pair.sparsity))


def knee(model: str, system: str, context: int) -> float:
    """Return L* of a model on a system, with the KV cache format of the system's usual engine.

    Args:
        model: Name of a model.
        system: Name of a system.
        context: Tokens of context, which decide the cache bytes that a token reads.

    Returns:
        Tokens.
    """
    machine = load_system(system)
    return build_pair(as_served(load_model(model), machine, engine_for(machine)), machine, context=context).knee


def floor(model: str, system: str) -> float:
    """Return the time in which one scale-up domain reads all weights once.

    Args:
        model: Name of a model.
        system: Name of a system.

    Returns:
        Seconds.
    """
    return build_pair(load_model(model), load_system(system)).floor


def scale_out_ratio(systems: Sequence[str]) -> Array:
    """Return the bandwidth of a chip inside a domain over that between domains.

    Args:
        systems: Names of systems.

    Returns:
        Ratio, one value per system.
    """
    machines = [load_system(name) for name in systems]
    return np.array([float(machine.scale_up.link.bandwidth) / float(machine.scale_out.link.bandwidth) for machine in machines])


def domain_growth(before: str, after: str) -> float:
    """Return the ratio of the chips of two scale-up domains.

    Args:
        before: Name of the earlier system.
        after: Name of the later system.

    Returns:
        Chips of the later domain over chips of the earlier domain.
    """
    return float(load_system(after).scale_up.size) / float(load_system(before).scale_up.size)


def pipeline_ratio(model_experts: float, systems: Sequence[str]) -> Array:
    """Return the pipeline condition for one layer per stage on real links.

    Args:
        model_experts: Experts that a token uses.
        systems: Names of systems.

    Returns:
        Ratio, one value per system; from 1 on the transfer is hidden.
    """
    return np.asarray(pipeline_condition(model_experts, 1, scale_out_ratio(systems)))


def batch_in_flight(tokens_per_second: float, tokens_per_second_per_user: float, best: float) -> float:
    """Return the sequences in flight over the best batch, by Little's law.

    Args:
        tokens_per_second: Output of all users [tok/s].
        tokens_per_second_per_user: Output of one user [tok/s].
        best: Best batch [sequences].

    Returns:
        Ratio.

    >>> round(batch_in_flight(18 * 14_800, 21, 300 * 671 / 37), 2)
    2.33
    """
    return float(sequences_in_flight(tokens_per_second, tokens_per_second_per_user)) / best


def best_overtraining(laws: Sequence[str], params: float, trained: float, served: float) -> Array:
    """Return the overtraining of the cheapest model at the loss of a given model.

    Args:
        laws: Names of scaling laws.
        params: Parameters of the given model.
        trained: Training tokens of the given model.
        served: Served tokens, converted to tokens of forward passes in training.

    Returns:
        Training tokens over Chinchilla's, one value per law.
    """
    return np.array([float(cheapest_overtraining(law, params, trained, served)) for law in laws])


def cheapest_overtraining(law: Law | str, params: float, trained: float, served: Number) -> Number:
    """Return the overtraining of the cheapest model at the loss of a given model, by one scaling law.

    Args:
        law: Scaling law, or its name.
        params: Parameters of the given model.
        trained: Training tokens of the given model.
        served: Served tokens, converted to tokens of forward passes in training.

    Returns:
        Training tokens over Chinchilla's, with the shape of `served`.
    """
    # The cheapest model has the loss of the given one, so the laws are compared at equal quality.
    at_loss = loss(law, params, trained)
    size = cheapest(law, at_loss, served)
    return overtraining(tokens_for(law, size, at_loss), size)


def dense_worth(laws: Sequence[str], active: float, experts: float) -> Array:
    """Return the dense parameters with the loss of a mixture of experts.

    Args:
        laws: Names of scaling laws.
        active: Active parameters.
        experts: Number of experts.

    Returns:
        Parameters, one value per law.
    """
    return np.array([float(equivalent_dense(law, active, experts)) for law in laws])


def dense_gain(law: str, active: float, experts: float) -> float:
    """Return the dense parameters with the loss of an MoE, over its active ones.

    Args:
        law: Name of a scaling law.
        active: Active parameters.
        experts: Number of experts.

    Returns:
        Ratio.
    """
    return float(equivalent_dense(law, active, experts)) / active


def bandwidth_growth(before: str, after: str) -> float:
    """Return the ratio of the memory bandwidths of two scale-up domains.

    Args:
        before: Name of the earlier system.
        after: Name of the later system.

    Returns:
        Bandwidth of the later domain over that of the earlier domain.
    """
    wide, narrow = (float(s.scale_up.size) * float(s.chip.hbm.bandwidth) for s in (load_system(after), load_system(before)))
    return wide / narrow


def batch_growth(machine_balance: float, total: float, active: float, times: float) -> float:
    """Return the growth of the best batch if a model has more of all its parameters.

    Args:
        machine_balance: Balance R of the machine.
        total: Parameters in total.
        active: Active parameters.
        times: Factor on both.

    Returns:
        Ratio of best batches.

    >>> batch_growth(300, 671e9, 37e9, 2)
    1.0
    """
    before, after = (optimal_batch(machine_balance, total * size / (active * size)) for size in (1.0, times))
    return float(after / before)


def layer_count(model: str) -> float:
    """Return the layers of a model.

    Args:
        model: Name of a model.

    Returns:
        Layers.

    >>> layer_count("deepseek-v3")
    61.0
    """
    return float(load_model(model).depth)


def figure_ratio(over: float, under: float) -> float:
    """Return the ratio of two measured figures.

    Args:
        over: Numerator.
        under: Denominator.

    Returns:
        Ratio.

    >>> figure_ratio(10, 4)
    2.5
    """
    return over / under


def figure_ratios(over: Sequence[float], under: float) -> Array:
    """Return the ratios of several measured figures to one.

    Args:
        over: Numerators.
        under: Denominator.

    Returns:
        Ratios, one value per numerator.

    >>> figure_ratios([10, 5], 4).tolist()
    [2.5, 1.25]
    """
    return np.asarray(over) / under


def domain_memory(system: str) -> float:
    """Return the memory of the chips of one scale-up domain.

    Args:
        system: Name of a system.

    Returns:
        Bytes.

    >>> domain_memory("gb200-nvl72") / 1e12
    13.392
    """
    loaded = load_system(system)
    return float(domain_chips(loaded) * loaded.chip.hbm.capacity)


def microbatches_without_idle(stages: int) -> int:
    """Return the minimum micro-batches in flight that keep all stages of a loop busy.

    The function walks the loop: each micro-batch passes all stages, one beat per stage, and starts again.

    Args:
        stages: Pipeline stages.

    Returns:
        Number of micro-batches.

    Raises:
        RangeError: No number below twice the stages keeps them busy.

    >>> microbatches_without_idle(4)
    4
    """
    for count in range(1, 2 * stages):
        # Micro-batches start one beat apart; a place below 0 has not started.
        places = [-number for number in range(count)]
        busy = 0
        for beat in range(8 * stages):
            busy_stages = [place % stages for place in places if place >= 0]
            # The first beats fill the pipeline and do not count.
            if beat >= 4 * stages:
                busy += len(set(busy_stages))
            places = [place + 1 for place in places]
        if busy == 4 * stages * stages:
            return count
    raise RangeError(f"no number of micro-batches below {2 * stages} keeps {stages} stages busy")


def dense_reads(context: float) -> float:
    """Return the cache entries that full attention reads: all of them.

    Args:
        context: Tokens of context.

    Returns:
        Entries.
    """
    return context


def cost_over_floor(context: float, knee: float) -> float:
    """Return the cost of a token over its floor, for an infinite batch.

    max(1, L/L*)

    Args:
        context: Tokens of context, L.
        knee: L* [tokens].

    Returns:
        Ratio.
    """
    return float(ratio_below_step(knee, context))


def mixing_rounds(pattern: str) -> float:
    """Return the rounds until every output depends on every input.

    Args:
        pattern: Name of a pattern of a cipher or a network.

    Returns:
        Rounds; infinity if it never mixes completely.
    """
    return known_times([pattern])[pattern]


def flipped_share(name: str, rounds: float) -> float:
    """Return the share of output bits that one flipped input bit flips.

    Args:
        name: Name of a cipher, or of a kind of network whose bits are signs.
        rounds: Rounds of the cipher, or layers of the network.

    Returns:
        Share from 0 to 1.
    """
    shares = _flipped(name)
    return shares[min(int(rounds), len(shares)) - 1]


@lru_cache(maxsize=32)
def _flipped(name: str) -> tuple[float, ...]:
    return (cipher_curve(name, samples=4096) if name in CIPHERS else network_curve(name)).shares


def strength(sbox: str, figure: str) -> float:
    """Return a figure of a known S-box.

    Args:
        sbox: aes or present.
        figure: `uniformity` or `walsh`.

    Returns:
        Number of inputs.
    """
    return float(getattr(sbox_card(sbox), figure))


@lru_cache(maxsize=1)
def trained_flips() -> float:
    """Return the share of outputs that one input flips in a trained network.

    The network learned the majority of each group of its inputs.

    Returns:
        Share from 0 to 1.
    """
    return trained_and_random().trained


def kept_over_reversible(layers: float, stream_bytes: float, layer_bytes: float) -> float:
    """Return the activations of plain layers over those of reversible layers.

    Reversible layers keep two streams and one layer at any depth.

    Args:
        layers: Number of layers.
        stream_bytes: Activations of one stream [B].
        layer_bytes: Activations of one layer [B].

    Returns:
        Ratio.
    """
    return float(plain_bytes(layers, layer_bytes)) / float(reversible_bytes(stream_bytes, layer_bytes))


def balances_by_format(pairs: Sequence[tuple[str, str]]) -> Array:
    """Return the balance R of systems, each with its own weight format.

    Args:
        pairs: Name of a system and number format of the weights.

    Returns:
        Multiplies per weight read, one value per pair.
    """
    return np.concatenate([balances([system], weights) for system, weights in pairs])


def share_read(models: Sequence[str], context: int) -> Array:
    """Return the share of the cached bytes that a token reads.

    Args:
        models: Names of models.
        context: Tokens of context.

    Returns:
        Share from 0 to 1, one value per model.
    """
    loaded_models = [load_model(name) for name in models]
    return np.array([float(cache_bytes_read(model, context)) / float(cache_bytes(model, context)) for model in loaded_models])


def longest_contexts(models: Sequence[str]) -> Array:
    """Return the longest contexts in the configs of models.

    Args:
        models: Names of models.

    Returns:
        Tokens, one value per model.
    """
    return np.array([float(load_model(name).max_context) for name in models])


def parameters(model: str) -> float:
    """Return the total parameters of a model, counted from its config.

    Args:
        model: Name of a model.

    Returns:
        Parameters.
    """
    return total_parameters(load_model(model))


def active_count(model: str) -> float:
    """Return the active parameters of a model, counted from its config.

    Args:
        model: Name of a model.

    Returns:
        Parameters per token.
    """
    return active_parameters(load_model(model))


def median_price_ratios(over: str, under: str, providers: Sequence[str], since: str) -> Array:
    """Return the median ratio of two list prices for each seller.

    Args:
        over: Price in the numerator: input, output or cache_read.
        under: Price in the denominator.
        providers: Sellers.
        since: First day or year of the prices.

    Returns:
        Ratios, one value per seller.

    >>> median_price_ratios("output", "input", ["anthropic"], "2026")
    array([5.])
    """
    ratios: dict[str, list[float]] = {provider: [] for provider in providers}
    for row in closed_rows():
        price = getattr(row, under)
        # Rows of longer contexts repeat the model.
        if row.provider in ratios and row.service == "standard" and not row.above_tokens and row.since >= since and price > 0:
            ratios[row.provider].append(getattr(row, over) / price)
    return np.array([np.median(values) for values in ratios.values()])


def per_second_of_month(tokens_a_month: Sequence[float]) -> Array:
    """Return tokens per second from tokens per month of 365/12 days.

    Args:
        tokens_a_month: Tokens per month.

    Returns:
        Tokens per second, one value per month.

    >>> [round(float(one) / 1e6) for one in per_second_of_month([480e12, 1300e12])]
    [183, 495]
    """
    return np.asarray(tokens_a_month) / (365 / 12 * DAY)


def memory_share(system: str, usd_per_byte: Sequence[float], price: float) -> Array:
    """Return the cost of the HBM of one domain over the price of the domain.

    Args:
        system: Name of a system.
        usd_per_byte: Prices of memory [USD/B].
        price: Price of the whole domain [USD].

    Returns:
        Share, one value per price of memory.
    """
    machine = load_system(system)
    return np.asarray(usd_per_byte) * float(machine.scale_up.size) * float(machine.chip.hbm.capacity) / price


def price_over_cost(usd_per_million: float, active: float, mac_rate: float, usd_per_hour: float) -> float:
    """Return the price of an input token over the rent of its arithmetic.

    Args:
        usd_per_million: Price of a million input tokens [USD].
        active: Active parameters.
        mac_rate: Multiplies per second of the chip.
        usd_per_hour: Rent of the chip [USD/h].

    Returns:
        Ratio.

    >>> round(price_over_cost(5, 100e9, 2.25e15, 2))
    202
    """
    return usd_per_million / MILLION / float(recompute_cost(active, mac_rate, usd_per_hour / HOUR))


def chips_over_domain(chips: float, system: str) -> float:
    """Return the chips that share an expert layer over the chips of a domain.

    Args:
        chips: Chips that share an expert layer.
        system: Name of a system.

    Returns:
        Ratio.
    """
    return chips / float(load_system(system).scale_up.size)


def slow_mode(batches: float) -> float:
    """Return the cost of a token at a larger batch over its cost at the best batch.

    Without a KV cache the ratio is 1 from the best batch on.

    Args:
        batches: Batch over the best batch.

    Returns:
        Ratio, at least 1.

    >>> slow_mode(4), slow_mode(0.5)
    (1.0, 2.0)
    """
    return max(1.0, float(memory_over_compute(batches, 0.0, 1.0, 1.0)))


def idle_over_gpipe(schedule: str, stages: int, microbatches: int) -> float:
    """Return the idle time of a pipeline schedule over the idle time of GPipe.

    Forward pass, input gradients and weight gradients take one beat each.

    Args:
        schedule: Name of a schedule.
        stages: Pipeline stages.
        microbatches: Micro-batches of a step.

    Returns:
        Ratio.
    """
    idle, gpipe_idle = (schedule_named(name).idle(stages, microbatches, 1, 1.0, 2.0, 1.0) for name in (schedule, "gpipe"))
    return float(idle) / float(gpipe_idle)


def stage_imbalance(layers: int, stages: int) -> float:
    """Return the layers of the largest stage over the mean.

    Args:
        layers: Number of layers.
        stages: Pipeline stages.

    Returns:
        Ratio, at least 1.

    >>> stage_imbalance(60, 4), round(stage_imbalance(61, 4), 2)
    (1.0, 1.05)
    """
    return -(-layers // stages) * stages / layers


def training_flops_per_parameter(model: str, seq: int) -> float:
    """Return the training FLOP per token and parameter.

    A training step costs three forward passes.

    Args:
        model: Name of a model.
        seq: Tokens of a sequence.

    Returns:
        FLOP per token and parameter.
    """
    loaded_model = load_model(model)
    return 3 * float(forward_flops(loaded_model, seq, full=False)) / total_parameters(loaded_model)


def serving_over_training(served: float, trained: float, eta: float) -> float:
    """Return the cost of serving over the cost of pre-training.

    2 eta D_inf / (6 D_pre)

    Args:
        served: Served tokens, D_inf.
        trained: Pre-training tokens, D_pre.
        eta: Cost of a served FLOP over a trained FLOP.

    Returns:
        Ratio.
    """
    return float(tokens_equal_to_serving(served, eta)) / trained


def read_over_recompute(
    kv_bytes: float, bandwidth: float, tier_usd_per_hour: float, active: float, mac_rate: float, usd_per_hour: float
) -> float:
    """Return the cost of reading a cached token from a tier over recomputing it.

    Args:
        kv_bytes: KV cache of a token [B].
        bandwidth: Bandwidth of the tier [B/s].
        tier_usd_per_hour: Rent of the tier [USD/h].
        active: Active parameters.
        mac_rate: Multiplies per second of the chip.
        usd_per_hour: Rent of the chip [USD/h].

    Returns:
        Ratio.
    """
    read_cost = retrieve_cost(kv_bytes, bandwidth, tier_usd_per_hour / HOUR)
    return float(read_cost / recompute_cost(active, mac_rate, usd_per_hour / HOUR))


def feistel_flips(rounds: int, half: int) -> float:
    """Return the expected avalanche of a Feistel cipher after its last round.

    Args:
        rounds: Number of rounds.
        half: Bits of a half.

    Returns:
        Share from 0 to 1.
    """
    return float(feistel_expected(rounds, half)[-1])
