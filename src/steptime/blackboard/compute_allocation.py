r"""How many tokens to train on, for those that are served: training, RL and serving cost alike. Lecture section 12.

$C_{pre} = 6 N D_{pre}$, $C_{RL} = k N D_{RL} \eta$ with $k$ from 2 to 6, $C_{inf} = 2 N D_{inf} \eta$; $\eta$ is what a FLOP of
decoding costs over one of training, about 3. That the sum of a falling and a rising cost is least near where they are equal is
a rule of thumb: exact for $x + 1/x$; `steptime.scaling` finds the minimum itself.
"""

from __future__ import annotations

from steptime.number_checks import Number


def served_tokens(rate: Number, seconds: Number) -> Number:
    """Tokens that are served in all: rate [tok/s] over the lifetime of a model, `seconds`. Section 12.

    >>> served_tokens(50e6, 60 * 86400.0)
    259200000000000.0
    """
    return rate * seconds


def chinchilla_tokens(params: Number, per_parameter: Number = 20.0) -> Number:
    """Training tokens by the rule of 20 a parameter (Hoffmann et al. 2022). Section 12.

    >>> chinchilla_tokens(100e9)
    2000000000000.0
    """
    return per_parameter * params


def overtraining(trained: Number, params: Number, per_parameter: Number = 20.0) -> Number:
    """How many times the tokens of `chinchilla_tokens` a model is trained on. Section 12.

    >>> overtraining(200e12, 100e9)
    100.0
    """
    return trained / (per_parameter * params)


def tokens_equal_to_rl(rl_tokens: Number, eta: Number = 3.0, per_token: Number = 3.0) -> Number:
    r"""Training tokens that cost what RL does: $D_{pre} = (k/6) \eta D_{RL}$, k FLOP a parameter and token of RL. Section 12.

    >>> tokens_equal_to_rl(1.0)
    1.5
    """
    return per_token / 6 * eta * rl_tokens


def tokens_equal_to_serving(served: Number, eta: Number = 3.0) -> Number:
    r"""Training tokens that cost what serving does: $D_{pre} = (\eta/3) D_{inf}$. Section 12.

    >>> tokens_equal_to_serving(200e12)
    200000000000000.0
    """
    return eta / 3 * served


def cost_at_equality(falls: Number, rises: Number) -> Number:
    r"""What equal costs cost over the least of $A x^{-m} + B x^n$: 2 over $(m + n) m^{-m/(m+n)} n^{-n/(m+n)}$. *Derived.*

    falls $m$, rises $n$. 1 where they are alike, as for $x + 1/x$.

    >>> cost_at_equality(1.0, 1.0), round(cost_at_equality(1.0, 3.0), 3)
    (1.0, 1.14)
    """
    exponent_sum = falls + rises
    return 2 / (exponent_sum * falls ** (-falls / exponent_sum) * rises ** (-rises / exponent_sum))
