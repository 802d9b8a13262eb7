"""The workload of a deployment, and the limits (SLO) that it must meet."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, field
from typing import Final

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import MOST_TOKENS, between, check_shapes, limit, positive, share
from steptime.result_base import unit
from steptime.units import DAY

# Longest plausible TPOT [s]; a larger value was probably meant as a speed.
LONGEST_TPOT: Final = 10.0
# Searches relax a limit a little.
SLACK: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests with input and output tokens; part of the input may be cached.

    `cached_share` is the share of the input that is in a prefix cache.
    """

    input_tokens: float = field(metadata=unit("tokens", "input tokens per request"))
    output_tokens: float = field(metadata=unit("tokens", "output tokens per request"))
    cached_share: float = field(default=0.0, metadata=unit("", "share of the input that is in a prefix cache"))

    def __post_init__(self) -> None:
        between("input tokens", self.input_tokens, 1, MOST_TOKENS, "token")
        between("output tokens", self.output_tokens, 1, MOST_TOKENS, "token")
        share("cached share", self.cached_share, whole_too=False)
        check_shapes(input_tokens=self.input_tokens, output_tokens=self.output_tokens, cached_share=self.cached_share)
        reach = np.asarray(self.input_tokens, dtype=np.float64) + np.asarray(self.output_tokens, dtype=np.float64)
        between("input and output tokens together", reach, 1, MOST_TOKENS, "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits on the mean TTFT `ttft` [s] and the time per output token `tpot` [s].

    `speed` [tok/s] is the minimum output speed per user, in place of `tpot`.

    >>> Slo(speed=50, ttft=2)
    Slo(ttft=2, tpot=0.02)
    """

    ttft: float = field(default=math.inf, metadata=unit("s", "limit on the mean time to first token; null: no limit"))
    tpot: float = field(default=math.inf, metadata=unit("s", "limit on the time per output token; null: no limit"))

    speed: InitVar[float | None] = None

    def __post_init__(self, speed: float | None) -> None:
        if speed is not None:
            if self.tpot != math.inf:
                raise InputError("speed: tpot = 1 / speed is the same limit, got both; give one of the two")
            object.__setattr__(self, "tpot", 1 / positive("speed", speed, "tok/s", minimum=1 / LONGEST_TPOT))
        limit("the TTFT limit", self.ttft)
        limit("the TPOT limit", self.tpot)
        for name, value, maximum, fix in (
            ("tpot", self.tpot, LONGEST_TPOT, "to limit a speed in tok/s, give the speed"),
            ("ttft", self.ttft, DAY, "it is a time in s; to limit a speed in tok/s, give the speed"),
        ):
            times = np.asarray(value, dtype=np.float64)
            longest = np.max(times, where=np.isfinite(times), initial=0.0)
            if longest > maximum * SLACK:
                raise InputError(f"{name} must be at most {maximum:g} s, got {longest:g}; {fix}")


def limits(*, speed: float | None = None, ttft: float | None = None) -> Slo:
    """Return limits from a minimum output speed and a maximum TTFT.

    Args:
        speed: Minimum output speed per user [tok/s]; None: no limit.
        ttft: Maximum mean time to first token [s]; None: no limit.

    Returns:
        The limits.

    >>> limits(speed=50)
    Slo(ttft=inf, tpot=0.02)
    """
    return Slo(speed=speed, ttft=math.inf if ttft is None else ttft)
