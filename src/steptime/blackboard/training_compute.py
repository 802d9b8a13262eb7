r"""Training tokens at which pretraining, RL and serving cost the same, and the balanced batch and context.

Lecture sections 3 and 12.

$C_{pre} = 6 N D_{pre}$, $C_{RL} = k N D_{RL} \eta$ with $k$ from 2 to 6, $C_{inf} = 2 N D_{inf} \eta$. $\eta$ is the cost
of a decode FLOP over a training FLOP, about 3.

The rule of thumb: the sum of a falling and a rising cost has its minimum near the point where both are equal. This is exact
for $x + 1/x$; `steptime.scaling` computes the true minimum. In the same way, a batch $B^*$ or a context $L^*$ is balanced
where memory and arithmetic take equal time.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def served_tokens(rate: Number, seconds: Number) -> Number:
    """Return the tokens that a model serves over its lifetime.

    Args:
        rate: Served tokens per second [tok/s].
        seconds: Lifetime of the model [s].

    Returns:
        Tokens.

    References:
        Lecture, section 12.

    >>> served_tokens(50e6, 60 * 86400.0)
    259200000000000.0
    """
    return rate * seconds


def chinchilla_tokens(params: Number, per_parameter: Number = 20.0) -> Number:
    """Return the training tokens by the rule of 20 tokens per parameter.

    Args:
        params: Parameters of the model.
        per_parameter: Training tokens per parameter of the rule.

    Returns:
        Tokens.

    References:
        Hoffmann et al. 2022; lecture, section 12.

    >>> chinchilla_tokens(100e9)
    2000000000000.0
    """
    return per_parameter * params


def overtraining(trained: Number, params: Number, per_parameter: Number = 20.0) -> Number:
    """Return the ratio of training tokens to `chinchilla_tokens`.

    Args:
        trained: Training tokens of the model.
        params: Parameters of the model.
        per_parameter: Training tokens per parameter of the rule.

    Returns:
        Ratio; 1 is Chinchilla-optimal.

    References:
        Lecture, section 12.

    >>> overtraining(200e12, 100e9)
    100.0
    """
    return trained / (per_parameter * params)


def tokens_equal_to_rl(rl_tokens: Number, eta: Number = 3.0, per_token: Number = 3.0) -> Number:
    r"""Return the training tokens that cost as much as RL.

    The formula is $D_{pre} = (k/6) \eta D_{RL}$.

    Args:
        rl_tokens: Tokens $D_{RL}$ of RL.
        eta: Cost of a decode FLOP over a training FLOP.
        per_token: FLOP $k$ per parameter and RL token, 2 to 6.

    Returns:
        Tokens.

    References:
        Lecture, section 12.

    >>> tokens_equal_to_rl(1.0)
    1.5
    """
    return per_token / 6 * eta * rl_tokens


def tokens_equal_to_serving(served: Number, eta: Number = 3.0) -> Number:
    r"""Return the training tokens that cost as much as serving.

    The formula is $D_{pre} = (\eta/3) D_{inf}$.

    Args:
        served: Tokens $D_{inf}$ served over the lifetime.
        eta: Cost of a decode FLOP over a training FLOP.

    Returns:
        Tokens.

    References:
        Lecture, section 12.

    >>> tokens_equal_to_serving(200e12)
    200000000000000.0
    """
    return eta / 3 * served


def cost_at_equality(falls: Number, rises: Number) -> Number:
    """Return the cost at equal parts over the minimum of $A x^{-m} + B x^n$.

    The ratio is 2 over $(m + n) m^{-m/(m+n)} n^{-n/(m+n)}$. It is 1 where both exponents are equal, as for $x + 1/x$.
    *Derived.*

    Args:
        falls: Exponent $m$ of the falling part.
        rises: Exponent $n$ of the rising part.

    Returns:
        Ratio, at least 1.

    >>> cost_at_equality(1.0, 1.0), round(cost_at_equality(1.0, 3.0), 3)
    (1.0, 1.14)
    """
    # Scaled to x = 1 at equality, the sum there is 2; the denominator is the minimum of x^-m + x^n.
    exponent_sum = falls + rises
    return 2 / (exponent_sum * falls ** (-falls / exponent_sum) * rises ** (-rises / exponent_sum))


def optimal_batch(
    machine_balance: Number, sparsity: Number, context: Number = 0.0, balanced_context: Number = np.inf
) -> Number:
    r"""Return the batch at which memory and arithmetic take equal time.

    The batch is $B^* = R\sigma / (1 - L/L^*)$; it is infinite from $L^*$ on.

    Args:
        machine_balance: Hardware balance $R$ from `balance`.
        sparsity: Total over active parameters, at least 1.
        context: Tokens in the KV cache of each sequence.
        balanced_context: Context $L^*$ at which KV reads take as long as the arithmetic [tokens].

    Returns:
        Sequences.

    References:
        Lecture, section 3.

    >>> float(optimal_batch(300, 256 / 32)), round(float(optimal_batch(300, 671 / 37)))
    (2400.0, 5441)
    """
    room = 1 - context / balanced_context
    # The inner `where` avoids a division by zero in the branch that the outer one discards.
    return np.where(room > 0, machine_balance * sparsity / np.where(room > 0, room, 1.0), np.inf)


def balanced_context(active: Number, weight_bytes: Number, machine_balance: Number, kv_bytes_per_token: Number) -> Number:
    r"""Return the context at which KV reads take as long as the arithmetic.

    The context is $L^* = b_w N_{act} / (R \kappa)$.

    Args:
        active: Active parameters per token.
        weight_bytes: Bytes per parameter.
        machine_balance: Hardware balance $R$ from `balance`.
        kv_bytes_per_token: KV cache per token of context [B].

    Returns:
        Tokens.

    References:
        Lecture, sections 1 and 13.

    >>> round(balanced_context(37e9, 1.0, 295.0, 35136))
    3570
    """
    return weight_bytes * active / (machine_balance * kv_bytes_per_token)
