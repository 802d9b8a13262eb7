"""What is asked of a deployment: the requests, and the limits they must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from steptime.numbers import MOST_TOKENS, Number, between, check_shapes, limit, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of `input_tokens` [tokens] that each get `output_tokens`; `cached_share` of the input is in a prefix cache."""

    input_tokens: Number
    output_tokens: Number
    cached_share: Number = 0.0

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

    ttft: Number = math.inf
    tpot: Number = math.inf

    def __post_init__(self) -> None:
        limit("the TTFT limit", self.ttft)
        limit("the TPOT limit", self.tpot)
