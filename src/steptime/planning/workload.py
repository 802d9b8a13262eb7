"""What is asked of a deployment: the requests, and the limits they must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from steptime.numbers import MOST_TOKENS, between, check_shapes, limit, share
from steptime.results import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of `input_tokens` [tokens] that each get `output_tokens`; `cached_share` of the input is in a prefix cache."""

    input_tokens: float = field(metadata=unit("tokens", "of a prompt"))
    output_tokens: float = field(metadata=unit("tokens", "that are made for it"))
    cached_share: float = field(default=0.0, metadata=unit("", "share of the prompt that is in a prefix cache"))

    def __post_init__(self) -> None:
        between("input tokens", self.input_tokens, 1, MOST_TOKENS, "token")
        between("output tokens", self.output_tokens, 1, MOST_TOKENS, "token")
        share("cached share", self.cached_share, whole_too=False)
        check_shapes(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cached_share=self.cached_share)
        reach = np.asarray(self.input_tokens, dtype=np.float64) + np.asarray(self.output_tokens, dtype=np.float64)
        between("input and output tokens together", reach, 1, MOST_TOKENS, "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits on the mean time to first token `ttft` [s] and time per output token `tpot` [s]."""

    ttft: float = field(default=math.inf, metadata=unit("s", "longest mean time to first token; null: no limit"))
    tpot: float = field(default=math.inf, metadata=unit("s", "longest time per output token; null: no limit"))

    def __post_init__(self) -> None:
        limit("the TTFT limit", self.ttft)
        limit("the TPOT limit", self.tpot)


def limits(*, speed: float | None = None, ttft: float | None = None) -> Slo:
    """Return limits from a least output speed [tok/s] for each user and a longest time to first token [s]; None is no limit.

    >>> limits(speed=50)
    Slo(ttft=inf, tpot=0.02)
    """
    return Slo(tpot=math.inf if speed is None else 1 / speed, ttft=math.inf if ttft is None else ttft)
