"""Vision towers: stored beside the language model, not run for text."""

from __future__ import annotations

from steptime.models.config import Config
from steptime.models.model import Op


def tower(c: Config, name: str, weights: float) -> Op:
    """All parameters of a vision tower or of its projector; a token of text uses none of them."""
    return Op(
        name=name,
        term="vision",
        weights=weights,
        flops_per_row=0,
        format=c.base_format,
        rows="none",
        split="replicated",
        active=0,
    )


def dense(inputs: float, outputs: float, *, bias: bool = True) -> float:
    """Parameters of a matrix with its bias."""
    return inputs * outputs + bias * outputs


def block(width: int, hidden: int, *, inner: int = 0, bias: bool = True, norm_bias: bool = True) -> float:
    """Parameters of a block of two norms, multi-head attention of `inner` values and a plain feed-forward."""
    inner = inner or width
    attention = 3 * dense(width, inner, bias=bias) + dense(inner, width, bias=bias)
    feed_forward = dense(width, hidden, bias=bias) + dense(hidden, width, bias=bias)
    return attention + feed_forward + 2 * width * (1 + norm_bias)
