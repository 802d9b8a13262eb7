"""Extrapolation: distance of a layout from measured runs, and wider ranges.

The shipped engines are fitted to closed-loop runs on one node: replicas of up to eight chips, one pool, no pipeline stages.
Layouts beyond were compared with 398 public disaggregated runs (InferenceX, DeepSeek-R1 on hgx-b200, gb200-nvl72 and
mi355x-8, 140 of them with speculative tokens). Ratios of measured to predicted time per token, for nine runs in ten:

- NVIDIA, pools of up to eight chips: 0.8 to 1.5. Wider pools: 0.7 to 1.3.
- AMD without data-parallel ranks: 0.7 to 1.3. With data-parallel ranks (MoRI's exchange, in no other run): 1.0 to 3.5.
- 144 runs with speculative tokens in one pool: 0.9 to 2.2 (SGLang on hgx-b200 is the slowest).

First tokens of pools took 2.1 times the predicted time at the median. They wait in routers and queues that no column of the
tables describes. Three in four are in the range given here, not nine in ten.

Each kind of distance widens the range by its observed error, as an independent error: logarithms add in
quadrature.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.hardware.system import System
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout

# Largest replica in the fitted runs, in chips.
LARGEST_MEASURED: Final = 8
# With fewer runs on a system, its errors are hardly known.
MIN_RUNS_PER_SYSTEM: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One difference from the measured runs: name, and logarithms that it adds.

    low, high: Logarithms that the range gains below and above.
    late: Logarithm that the range of first tokens gains above, where it is more than `high`.
    """

    words: str
    low: float
    high: float
    late: float = 0.0


SEPARATE_POOLS: Final = Distance(words="separate prefill and decode pools", low=0.2, high=0.2, late=1.5)
WIDE: Final = Distance(words="replicas of more than 8 chips", low=0.15, high=0.1)
GROUPS: Final = Distance(words="data-parallel ranks on AMD chips", low=0.1, high=1.2)
# A guess: no run has pipeline stages.
STAGED: Final = Distance(words="pipeline stages", low=0.33, high=0.33)
WITH_DRAFTS: Final = Distance(words="speculative tokens", low=0.1, high=0.3)
FEW_RUNS: Final = Distance(words="few runs on this system", low=0.25, high=0.46)


def distances(
    engine: Engine, system: System, layout: Layout, reader: Layout | None = None, *, drafts: bool = False
) -> tuple[tuple[Distance, Array], ...]:
    """Return the possible differences from the runs of a fit, and which apply.

    Few runs on a system do not count where there are own runs (`anchor`).

    Args:
        engine: The engine; without a fit there are no differences.
        system: The system.
        layout: Layout of the replicas, which may contain arrays.
        reader: Layout of the prefill pool of a disaggregated deployment. Its runs had speculative tokens too.
        drafts: Whether there are speculative tokens.

    Returns:
        Pairs of a difference and an array of booleans.
    """
    if not engine.fit:
        return ()

    # In separate pools the larger of the two replicas decides.
    is_disaggregated, prefill_layout = reader is not None, layout if reader is None else reader
    chips, stages, groups = (np.maximum(getattr(layout, axis), getattr(prefill_layout, axis)) for axis in ("chips", "pp", "dp"))
    runs = engine.fit.get("systems")
    has_few_runs = runs is not None and int(runs.get(system.name, 0)) < MIN_RUNS_PER_SYSTEM and engine.anchor is None
    return (
        (SEPARATE_POOLS, np.asarray(is_disaggregated)),
        (WIDE, chips > LARGEST_MEASURED),
        (GROUPS, np.logical_and(groups > 1, system.chip.vendor == "AMD")),
        (STAGED, stages > 1),
        (WITH_DRAFTS, np.asarray(drafts and not is_disaggregated)),
        (FEW_RUNS, np.asarray(has_few_runs)),
    )


def widening(flags: Iterable[tuple[Distance, Array]], quantity: str = "tpot") -> tuple[Number, Number]:
    """Return the logarithms by which differences widen a range, below and above.

    Args:
        flags: Differences and whether they apply, as `distances` returns them.
        quantity: "tpot" or "ttft".

    Returns:
        Two logarithms, 0 where no difference applies.

    >>> [round(float(x), 3) for x in widening(((SEPARATE_POOLS, np.True_), (WIDE, np.True_), (STAGED, np.False_)))]
    [0.25, 0.224]
    """
    low: Number = 0.0
    high: Number = 0.0
    for flag, applies in flags:
        above = flag.high if quantity == "tpot" else max(flag.high, flag.late)
        low, high = low + applies * flag.low**2, high + applies * above**2
    return np.sqrt(low), np.sqrt(high)
