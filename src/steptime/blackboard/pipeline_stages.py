"""Pipeline stages: memory of a chip, latency of a token, bubbles. Lecture section 10."""

from __future__ import annotations

from steptime.number_checks import Number


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
