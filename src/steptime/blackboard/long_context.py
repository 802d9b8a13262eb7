"""Cost of long contexts, and savings of sparse attention.

Lecture sections 15 and 16.
"""

from __future__ import annotations

import numpy as np

from steptime.number_checks import Number


def sparse_reads(context: Number, tokens_per_block: Number) -> Number:
    r"""Return the fewest entries that block-sparse attention reads, $2 \sqrt{m L}$.

    Attention reads $L/s$ summaries of blocks of $s$ tokens, and $m$ selected blocks. The best block size is
    $s = \sqrt{L/m}$.

    Args:
        context: Context $L$ [tokens].
        tokens_per_block: Number $m$ of selected blocks.

    Returns:
        Entries per query.

    References:
        Lecture, section 16, *derived*.

    >>> float(sparse_reads(1e6, 1.0))
    2000.0
    """
    return 2 * np.sqrt(tokens_per_block * context)


def attention_equals_weights(active: Number, layers: Number, heads: Number, head_dim: Number) -> Number:
    """Return the context at which attention multiplies as much as the weights.

    The context is $N_{act} / (2 n h d)$.

    Args:
        active: Active parameters per token.
        layers: Layers $n$.
        heads: Query heads $h$ per layer.
        head_dim: Width $d$ of a head.

    Returns:
        Tokens.

    References:
        Lecture, section 15, *derived*.

    >>> round(attention_equals_weights(70.6e9, 80, 64, 128), -3)
    54000.0
    """
    return active / (2 * layers * heads * head_dim)
