"""Why long contexts cost, and what sparse attention saves. Lecture sections 15 and 16."""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


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
