"""What is asked of a deployment: the requests, and the limits they must meet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.errors import RangeError
from steptime.results import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of `input_tokens` [tokens] that each get `output_tokens`; `cached_share` of the input is in a prefix cache."""

    input_tokens: float = field(metadata=unit("tokens", "of a prompt"))
    output_tokens: float = field(metadata=unit("tokens", "that are made for it"))
    cached_share: float = field(default=0.0, metadata=unit("", "share of the prompt that is in a prefix cache"))

    def __post_init__(self) -> None:
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise RangeError(f"input and output must be at least 1 token, not {self.input_tokens} and {self.output_tokens}")
        if not 0 <= self.cached_share < 1:
            raise RangeError(f"cached share must be at least 0 and below 1, not {self.cached_share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits on the mean time to first token `ttft` [s] and time per output token `tpot` [s]."""

    ttft: float = field(default=math.inf, metadata=unit("s", "longest mean time to first token; null: no limit"))
    tpot: float = field(default=math.inf, metadata=unit("s", "longest time per output token; null: no limit"))

    def __post_init__(self) -> None:
        for name, value in (("TTFT", self.ttft), ("TPOT", self.tpot)):
            if not value > 0:
                raise RangeError(f"the {name} limit must be greater than 0 s, not {value}")


def limits(*, speed: float | None = None, ttft: float | None = None) -> Slo:
    """Return limits from a least output speed [tok/s] for each user and a longest time to first token [s]; None is no limit.

    >>> limits(speed=50)
    Slo(ttft=inf, tpot=0.02)
    """
    return Slo(tpot=math.inf if speed is None else 1 / speed, ttft=math.inf if ttft is None else ttft)
