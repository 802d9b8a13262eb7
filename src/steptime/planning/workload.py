"""What is asked of a deployment: the requests, and the limits they must meet."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, field
from typing import Final

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import MOST_TOKENS, between, check_shapes, limit, positive, share
from steptime.result_base import unit
from steptime.units import DAY

LONGEST_TPOT: Final = 10.0  # s; a longer one was meant as a speed
# Searches relax a limit a little.
SLACK: Final = 1.5


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
    """Limits on the mean time to first token `ttft` [s] and time per output token `tpot` [s].

    speed [tok/s]: the least output speed for each user, in place of `tpot`.

    >>> Slo(speed=50, ttft=2)
    Slo(ttft=2, tpot=0.02)
    """

    ttft: float = field(default=math.inf, metadata=unit("s", "longest mean time to first token; null: no limit"))
    tpot: float = field(default=math.inf, metadata=unit("s", "longest time per output token; null: no limit"))

    speed: InitVar[float | None] = None

    def __post_init__(self, speed: float | None) -> None:
        if speed is not None:
            if self.tpot != math.inf:
                raise InputError("speed and tpot are one limit, tpot = 1 / speed; give one of the two")
            object.__setattr__(self, "tpot", 1 / positive("speed", speed, "tok/s", minimum=1 / LONGEST_TPOT))
        limit("the TTFT limit", self.ttft)
        limit("the TPOT limit", self.tpot)
        for name, value, maximum, fix in (
            ("tpot", self.tpot, LONGEST_TPOT, "for a speed in tok/s give Slo(speed=...)"),
            ("ttft", self.ttft, DAY, "it is a time in s; for a speed in tok/s give Slo(speed=...)"),
        ):
            times = np.asarray(value, dtype=np.float64)
            longest = np.max(times, where=np.isfinite(times), initial=0.0)
            if longest > maximum * SLACK:
                raise InputError(f"{name} must be at most {maximum:g} s, got {longest:g}; {fix}")


def limits(*, speed: float | None = None, ttft: float | None = None) -> Slo:
    """Return limits from a least output speed [tok/s] for each user and a longest time to first token [s]; None is no limit.

    >>> limits(speed=50)
    Slo(ttft=inf, tpot=0.02)
    """
    return Slo(speed=speed, ttft=math.inf if ttft is None else ttft)
