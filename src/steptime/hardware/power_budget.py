r"""What the parts of a chip take of its power, and how much arithmetic is left where others take more.

Moving a bit costs energy: $p = 8 e W$ watts at $W$ bytes a second and $e$ joules a bit. What memory and links do not take is
taken to go to arithmetic and what feeds it, in proportion to its rate. So a chip of the power $P$ with $w$ times the bandwidth
and $l$ times the links has $f = (P - w p_w - l p_l) / p_f$ times the FLOP/s, with $p_f = P - p_w - p_l$.

A link's bits are counted once: a chip sends and receives as many, and a bit's energy is that of both ends.
Capacity takes next to no power, and no part in this. Sources, both reported: HBM2 3.9 pJ a bit (O'Connor et al., Fine-Grained
DRAM, MICRO 2017, https://doi.org/10.1145/3123939.3124545); long-reach SerDes 5.5 pJ a bit, with which NVLink-C2C is compared
(https://www.besthub.dev/articles/why-nvidia-s-nvlink-c2c-is-redefining-gpu-cpu-interconnects-f3c3b77f8d87).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from steptime.errors import RangeError
from steptime.hardware.system import System
from steptime.number_checks import Number

MEMORY_JOULES_PER_BIT: Final = 3.9e-12
LINK_JOULES_PER_BIT: Final = 5.5e-12
FLOPS, BANDWIDTH, CAPACITY, LINK = "flops", "bandwidth", "capacity", "link"
PARTS: Final = (FLOPS, BANDWIDTH, CAPACITY, LINK)
LEAST_LEFT: Final = 0.01  # times the arithmetic, below which nothing is left of a chip


def moving_watts(bytes_per_second: Number, joules_per_bit: Number) -> Number:
    """Power of moving bits [W]: bytes_per_second [B/s] x 8 x joules_per_bit [J].

    >>> round(moving_watts(3.35e12, 3.9e-12), 1)
    104.5
    """
    return 8 * bytes_per_second * joules_per_bit


def power_shares(system: System) -> dict[str, float]:
    """Return the share of a chip's own power that each of its parts takes: arithmetic, memory, links in and out.

    Raises RangeError where no power of the chip is known, or its memory and links would take all of it.
    """
    watts = float(system.chip.power_w)
    if not math.isfinite(watts):
        raise RangeError(f"no power of {system.chip.name} is known; --set chip.power=700W tells it, or weights of your own")
    if system.chip.hbm.name != "hbm":
        hint = "as of HBM; --within bandwidth=0.3,link=0.1 gives shares of your own"
        raise RangeError(f"what a bit of {system.chip.hbm.name} takes is not known, {hint}")
    memory = float(moving_watts(system.chip.hbm.bandwidth, MEMORY_JOULES_PER_BIT))
    links = float(moving_watts(system.scale_up.link.bandwidth, LINK_JOULES_PER_BIT))
    if memory + links >= watts:
        raise RangeError(
            f"memory and links of {system.chip.name} would take {memory + links:,.0f} W, all of its {watts:,.0f} W"
        )
    return {FLOPS: (watts - memory - links) / watts, BANDWIDTH: memory / watts, CAPACITY: 0.0, LINK: links / watts}


def flops_left(shares: Mapping[str, float], times: Mapping[str, Number]) -> Number:
    """Times the FLOP/s that fit a budget beside the other parts: shares add up to 1, times are of the chip as it is.

    >>> round(float(flops_left({"flops": 0.8, "bandwidth": 0.15, "link": 0.05}, {"bandwidth": 2.0})), 4)
    0.8125
    """
    other_power: Number = sum(share * times.get(part, 1.0) for part, share in shares.items() if part != FLOPS)
    factor: Number = (1 - other_power) / shares[FLOPS]
    return factor
