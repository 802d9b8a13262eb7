"""Power budget: the shares of a chip's parts, and the arithmetic that remains.

Moving a bit costs energy: $p = 8 e W$ watts at $W$ bytes per second and $e$ joules per bit. The model assigns the rest of
the power to arithmetic and its supply of data, in proportion to its rate. Take a chip of power $P$ with $w$ times the
bandwidth and $l$ times the link bandwidth. It has $f = (P - w p_w - l p_l) / p_f$ times the FLOP/s, with $p_f = P - p_w -
p_l$.

The bits of a link count once: a chip sends as many as it receives, and the energy of a bit is that of both ends. Capacity
takes almost no power, so that the model ignores it.

References:
    Both reported. HBM2: 3.9 pJ per bit (O'Connor et al., Fine-Grained DRAM, MICRO 2017,
    https://doi.org/10.1145/3123939.3124545). Long-reach SerDes: 5.5 pJ per bit, the comparison value for
    NVLink-C2C
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
# Share of the arithmetic below which a design counts as impossible.
LEAST_LEFT: Final = 0.01


def moving_watts(bytes_per_second: Number, joules_per_bit: Number) -> Number:
    """Return the power of moving bits.

    Args:
        bytes_per_second: Bandwidth [B/s].
        joules_per_bit: Energy of one bit [J].

    Returns:
        Watts.

    >>> round(moving_watts(3.35e12, 3.9e-12), 1)
    104.5
    """
    return 8 * bytes_per_second * joules_per_bit


def power_shares(system: System) -> dict[str, float]:
    """Return the share of a chip's power for each of its parts.

    Args:
        system: The system.

    Returns:
        Shares by part; they add up to 1.

    Raises:
        RangeError: The power of the chip is unknown, or its memory and links would take all of it.
    """
    watts = float(system.chip.power_w)
    if not math.isfinite(watts):
        raise RangeError(
            f"chip.power: unknown for {system.chip.name}; set it with --set chip.power=700W, or set your own weights"
        )
    if system.chip.hbm.name != "hbm":
        hint = "set your own shares with --within bandwidth=0.3,link=0.1"
        raise RangeError(f"{system.chip.hbm.name}: the energy per bit is known only for HBM; {hint}")

    # Arithmetic gets the power that memory and links leave.
    memory = float(moving_watts(system.chip.hbm.bandwidth, MEMORY_JOULES_PER_BIT))
    links = float(moving_watts(system.scale_up.link.bandwidth, LINK_JOULES_PER_BIT))
    if memory + links >= watts:
        raise RangeError(f"{system.chip.name}: memory and links would take {memory + links:,.0f} W of its {watts:,.0f} W")
    return {FLOPS: (watts - memory - links) / watts, BANDWIDTH: memory / watts, CAPACITY: 0.0, LINK: links / watts}


def flops_left(shares: Mapping[str, float], times: Mapping[str, Number]) -> Number:
    """Return the FLOP/s that remain within a power budget, relative to the chip.

    Args:
        shares: Share of power by part; they add up to 1.
        times: Rate of each other part, relative to the chip.

    Returns:
        A factor on the FLOP/s; negative where the other parts exceed the budget.

    >>> round(float(flops_left({"flops": 0.8, "bandwidth": 0.15, "link": 0.05}, {"bandwidth": 2.0})), 4)
    0.8125
    """
    other_power: Number = sum(share * times.get(part, 1.0) for part, share in shares.items() if part != FLOPS)
    factor: Number = (1 - other_power) / shares[FLOPS]
    return factor
