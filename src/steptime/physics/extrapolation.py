"""How unlike a layout is all that was measured, and how much less sure that makes its times.

The shipped engines are fitted to runs in closed loop on one node: replicas of up to eight chips, one pool, no pipeline. What
lies beyond was held against 398 public disaggregated runs (InferenceX, DeepSeek-R1 on hgx-b200, gb200-nvl72 and mi355x-8, 140
of them with drafts). On NVIDIA's chips, times per token of nine in ten are measured from 0.8 to 1.5 times as long as predicted
for pools of up to eight chips, and from 0.7 to 1.3 times for wider ones; without attention groups, from 0.7 to 1.3 times on
AMD's chips. With groups there (MoRI's exchange, which no other run has) from 1.0 to 3.5 times. First tokens of pools came 2.1
times as late as predicted at the median, behind routers and queues that no column tells: three in four lie in the range stated
here, not nine in ten. Of 144 drafted runs of one pool, nine in ten are measured from 0.9 to 2.2 times as long (SGLang on
hgx-b200 is the slowest). Each kind of distance widens the range by what was seen of it, as an error of its own: logarithms add
in quadrature.
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

LARGEST_MEASURED: Final = 8  # chips of a replica in the runs that engines were fitted to
MIN_RUNS_PER_SYSTEM: Final = 30  # runs on a system under which its own errors are hardly known


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One way in which a candidate is unlike what was measured: in words, and logarithms that its ranges gain to both sides.

    late: what the range of first tokens gains above, where that is more than `high`.
    """

    words: str
    low: float
    high: float
    late: float = 0.0


SEPARATE_POOLS: Final = Distance(words="prefill and decode in pools of their own", low=0.2, high=0.2, late=1.5)
WIDE: Final = Distance(words="replicas of more than 8 chips", low=0.15, high=0.1)
GROUPS: Final = Distance(words="attention groups on AMD's chips", low=0.1, high=1.2)
STAGED: Final = Distance(words="pipeline stages", low=0.33, high=0.33)  # no run at all: a guess
WITH_DRAFTS: Final = Distance(words="drafts", low=0.1, high=0.3)
FEW_RUNS: Final = Distance(words="few runs on this system", low=0.25, high=0.46)


def distances(
    engine: Engine, system: System, layout: Layout, reader: Layout | None = None, *, drafts: bool = False
) -> tuple[tuple[Distance, Array], ...]:
    """Return the ways in which replicas can be unlike the runs that an engine was fitted to, and which of them are.

    None for an engine without a fit; few runs on a system do not count where there are some of one's own (`anchor`).
    layout: of replicas, which may hold arrays; reader: of those that read prompts in a pool of their own, whose runs had drafts
    too. drafts: whether tokens are drafted.
    """
    if not engine.fit:
        return ()
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
    """Return the logarithms by which distances widen a range of "tpot" or "ttft", to both sides; 0 where there is none.

    >>> [round(float(x), 3) for x in widening(((SEPARATE_POOLS, np.True_), (WIDE, np.True_), (STAGED, np.False_)))]
    [0.25, 0.224]
    """
    low: Number = 0.0
    high: Number = 0.0
    for flag, applies in flags:
        above = flag.high if quantity == "tpot" else max(flag.high, flag.late)
        low, high = low + applies * flag.low**2, high + applies * above**2
    return np.sqrt(low), np.sqrt(high)
