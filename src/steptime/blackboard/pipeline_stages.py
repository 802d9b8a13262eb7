"""Pipeline stages: memory per chip, latency per token, bubbles; and tokens per pass of speculative decoding.

Lecture sections 10 and 17.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def weight_bytes_per_chip(total: Number, weight_bytes: Number, expert_ways: Number, stages: Number) -> Number:
    """Return the weights per chip, $b_w N_{tot} / (E P)$.

    Args:
        total: Parameters in total.
        weight_bytes: Bytes per parameter.
        expert_ways: Expert parallelism $E$: chips per stage.
        stages: Pipeline stages $P$.

    Returns:
        Bytes per chip.

    References:
        Lecture, section 10.

    >>> weight_bytes_per_chip(2e12, 1, 64, 4)
    7812500000.0
    """
    return weight_bytes * total / (expert_ways * stages)


def kv_bytes_per_chip(
    microbatch: Number, context: Number, kv_bytes_per_token: Number, expert_ways: Number, stages: Number
) -> Number:
    r"""Return the KV cache per chip, $B L \kappa / (E P)$.

    The pipeline has $B = P b$ sequences in flight, so that the number of stages cancels.

    Args:
        microbatch: Sequences $b$ per micro-batch.
        context: Tokens in the KV cache of each sequence.
        kv_bytes_per_token: KV cache per token of context [B].
        expert_ways: Expert parallelism $E$: chips per stage.
        stages: Pipeline stages $P$.

    Returns:
        Bytes per chip.

    References:
        Lecture, section 10.

    >>> [kv_bytes_per_chip(2400, 2e5, 1667, 64, p) for p in (1, 4)]
    [12502500000.0, 12502500000.0]
    """
    # Each stage needs its own micro-batch in flight, which cancels the saving per chip.
    in_flight = microbatch * stages
    return in_flight * context * kv_bytes_per_token / (expert_ways * stages)


def token_latency(step: Number, stages: Number, hop: Number) -> Number:
    """Return the time per token of a looped pipeline.

    The time is one step plus one hop per stage.

    Args:
        step: Time of a step through all stages [s].
        stages: Pipeline stages $P$.
        hop: Time of a hop between two stages [s].

    Returns:
        Seconds per token.

    References:
        Lecture, section 10.

    >>> round(token_latency(0.020, 4, 0.0025), 6)
    0.03
    """
    return step + stages * hop


def bubble_fraction(stages: Number, microbatches: Number) -> Number:
    """Return the idle share of a training step with a flush, $(P-1)/(M+P-1)$.

    Args:
        stages: Pipeline stages $P$.
        microbatches: Micro-batches $M$ per step.

    Returns:
        Share of the step, 0 to 1.

    References:
        GPipe, arXiv 1811.06965; lecture, section 10.

    >>> bubble_fraction(4, 13)
    0.1875
    """
    return (stages - 1) / (microbatches + stages - 1)


def tokens_per_pass(drafts: Number, acceptance: Number) -> Number:
    r"""Return the expected tokens per verification pass, $(1 - a^{\gamma+1})/(1-a)$.

    Each speculative token is accepted with probability $a$, independently. At $a = 1$ the result is $\gamma + 1$.

    Args:
        drafts: Speculative tokens $\gamma$ per pass.
        acceptance: Acceptance probability $a$ per token.

    Returns:
        Tokens per pass.

    References:
        Leviathan et al., arXiv 2211.17192; lecture, section 17.

    >>> round(float(tokens_per_pass(1, 0.85)), 2), float(tokens_per_pass(4, 1.0))
    (1.85, 5.0)
    """
    # The closed form is 0/0 at an acceptance of 1.
    exact = np.greater_equal(acceptance, 1)
    safe = np.where(exact, 0.5, acceptance)
    return np.where(exact, drafts + 1.0, (1 - safe ** (drafts + 1.0)) / (1 - safe))


def free_drafts(ratio: Number) -> Number:
    r"""Return the speculative tokens that cost no time, from $\gamma + 1 \le \rho$.

    They cost no time while a pass is memory-bound.

    Args:
        ratio: Memory time over compute time, $\rho$.

    Returns:
        Whole number of speculative tokens per pass, at least 0.

    References:
        Lecture, section 17, *derived*.

    >>> float(free_drafts(5.0)), float(free_drafts(0.8))
    (4.0, 0.0)
    """
    drafts: Number = np.maximum(0.0, np.floor(ratio) - 1)
    return drafts
