"""A model on one scale-up domain, as the few numbers of the blackboard."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from steptime.blackboard.critical_batch import balanced_context
from steptime.blackboard.decode_latency import weight_seconds
from steptime.blackboard.ideal_machine import balance
from steptime.hardware.number_formats import peak_rate
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters, cache_bytes_read, entries_read, total_parameters, weight_bytes

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
