"""How unlike a layout is all that was measured, and how much less sure that makes its times.

The shipped engines are fitted to runs in closed loop on one node: replicas of up to eight chips, one pool, no pipeline. What
lies beyond was held against 258 decode pools of public disaggregated runs (InferenceX, DeepSeek-R1 on hgx-b200, gb200-nvl72 and
mi355x-8; batch by Little's law): steps of pools of up to eight chips are predicted from 0.60 to 1.36 times the measured ones
in nine of ten, those of wider pools from 0.50 to 0.96 times, too fast nearly always. Each kind of distance widens the range by
what was seen of it, as an error of its own: logarithms add in quadrature.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.machines.system import System
from steptime.physics.engine import Engine

LARGEST_MEASURED: Final = 8  # chips of a replica in the runs that engines were fitted to
FEW: Final = 30  # runs on a system under which its own errors are hardly known


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One way in which a candidate is unlike what was measured: in words, and logarithms that its range gains to both sides."""

    words: str
    low: float
    high: float


APART: Final = Distance(words="prefill and decode in pools of their own", low=0.31, high=0.51)
WIDE: Final = Distance(words="replicas of more than 8 chips", low=0.04, high=0.69)
STAGED: Final = Distance(words="pipeline stages", low=0.31, high=0.51)  # no run at all: a guess, as unsure as pools apart
FEW_RUNS: Final = Distance(words="few runs on this system", low=0.33, high=0.58)  # as gb200-nvl72, of which 22 runs were fitted


def distances(engine: Engine, system: System, *, chips: int, stages: int, apart: bool) -> tuple[Distance, ...]:
    """Return in which ways a candidate is unlike the runs that an engine was fitted to; none for one without a fit.

    chips: of the largest replica; stages: of the deepest pipeline; apart: whether pools are.
    """
    runs = engine.fit.get("systems")
    if not engine.fit:
        return ()
    found = [(APART, apart), (WIDE, chips > LARGEST_MEASURED), (STAGED, stages > 1)]
    found.append((FEW_RUNS, runs is not None and int(runs.get(system.name, 0)) < FEW))
    return tuple(one for one, there in found if there)


def widening(ways: Iterable[Distance]) -> tuple[float, float]:
    """Return the logarithms by which several distances widen a range, to both sides.

    >>> [round(x, 3) for x in widening((APART, WIDE))], widening(())
    ([0.313, 0.858], (0.0, 0.0))
    """
    sides = np.array([(one.low, one.high) for one in ways]).reshape(-1, 2)
    low, high = np.sqrt(np.sum(np.square(sides), axis=0)).tolist()
    return low, high
