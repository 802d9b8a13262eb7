"""Speculative decoding: tokens per verification pass. Lecture section 17."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


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
    exact = np.asarray(acceptance) >= 1
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
