"""Speculative decoding: tokens of a verified pass. Lecture section 17."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


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
    drafts: Number = np.maximum(0.0, np.floor(ratio) - 1)
    return drafts
