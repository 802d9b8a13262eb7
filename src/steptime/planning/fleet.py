"""A fleet for a rate of requests, or for a power: whole replicas on whole hosts, with spares, its cost and its utilization."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from steptime.errors import Impossible, RangeError
from steptime.hardware.rental_prices import usd_per_million
from steptime.result_base import unit
from steptime.units import DAY, show

MONTH: Final = 365.25 / 12 * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The hosts that serve a rate of requests, or that a power supplies, and their cost, busy or not."""

    rate: float = field(metadata=unit("requests/s", "requests to serve", key="rate_requests_per_s"))
    replicas: int = field(metadata=unit("", "replicas that serve them, without spares; a replica may have separate pools"))
    spare: int = field(metadata=unit("", "further replicas that wait for a failure or a peak"))
    replica_chips: int = field(metadata=unit("", "chips of a replica"))
    hosts: int = field(metadata=unit("", "whole hosts, spares included"))
    chips: int = field(metadata=unit("", "chips of these hosts"))
    utilisation: float = field(metadata=unit("", "requests to serve over those that all replicas but the spares can serve"))
    usd_per_month: float = field(metadata=unit("USD", "rent of all hosts for a month", key="usd_per_month"))
    usd_per_million_output_tokens: float = field(
        metadata=unit("USD", "rent of all hosts per million output tokens at this rate", key="usd_per_million_output_tokens")
    )
    watts: float = field(default=math.nan, metadata=unit("W", "power of all hosts; null: not known", key="power_w"))
    power_cap: float = field(default=math.nan, metadata=unit("W", "power that is available; null: no cap", key="power_cap_w"))


def replicas_per_host(replica_chips: int, host_chips: int) -> tuple[int, int]:
    """Return the replicas that share a host, and the hosts of each replica: one of both is 1.

    Args:
        replica_chips: Chips of a replica.
        host_chips: Chips of a host.

    Returns:
        Replicas per host and hosts per replica.

    >>> replicas_per_host(3, 8), replicas_per_host(12, 8)
    ((2, 1), (1, 2))
    """
    return max(1, host_chips // replica_chips), max(1, math.ceil(replica_chips / host_chips))


def replicas_for(rate: float, served: float) -> int:
    """Return the fewest replicas whose rates add up to a rate.

    Args:
        rate: Requests to serve [requests/s].
        served: Requests that one replica serves [requests/s].

    Returns:
        Number of replicas, at least 1.
    """
    return max(1, math.ceil(rate / served - 1e-9))


def size_fleet(
    rate: float,
    *,
    served: float,
    replica_chips: int,
    host_chips: int,
    chip_rent: float,
    output_tokens: float,
    spare: int = 0,
    least: int = 1,
    chip_watts: float = math.nan,
) -> Fleet:
    """Return the fewest replicas that serve a rate, on whole hosts.

    Args:
        rate: Requests to serve [requests/s].
        served: Requests that one replica serves within its limits [requests/s].
        replica_chips: Chips of a replica.
        host_chips: Chips of a host. Small replicas share it; large ones take whole hosts.
        chip_rent: Rent of a chip [USD/s].
        output_tokens: Mean output tokens per request.
        spare: Further replicas.
        least: Fewest replicas that serve the rate within its limits.
        chip_watts: Power of a chip with its share of the host [W].

    Returns:
        The fleet.

    >>> fleet = size_fleet(20, served=3, replica_chips=4, host_chips=8, chip_rent=1 / 3600, output_tokens=500, spare=1)
    >>> fleet.replicas, fleet.hosts, fleet.chips, round(fleet.utilisation, 3), round(fleet.usd_per_million_output_tokens, 3)
    (7, 4, 32, 0.952, 0.889)
    """
    replicas = max(least, replicas_for(rate, served))
    per_host, hosts_each = replicas_per_host(replica_chips, host_chips)
    hosts = math.ceil((replicas + spare) / per_host) * hosts_each
    chips = hosts * host_chips
    rent = chips * chip_rent
    return Fleet(
        rate=rate,
        replicas=replicas,
        spare=spare,
        replica_chips=replica_chips,
        hosts=hosts,
        chips=chips,
        utilisation=rate / (replicas * served),
        usd_per_month=rent * MONTH,
        usd_per_million_output_tokens=float(usd_per_million(rent, rate * output_tokens)),
        watts=chips * chip_watts,
    )


def replicas_within(power_cap: float, *, replica_chips: int, host_chips: int, chip_watts: float) -> int:
    """Return the replicas on the whole hosts that a power supplies.

    Args:
        power_cap: Available power [W].
        replica_chips: Chips of a replica.
        host_chips: Chips of a host.
        chip_watts: Power of a chip with its share of the host [W].

    Returns:
        Number of replicas.

    Raises:
        RangeError: The power of a chip is not known.
        Impossible: The cap is too low for one replica.

    >>> replicas_within(100e3, replica_chips=4, host_chips=8, chip_watts=1250.0)
    20
    """
    if not math.isfinite(chip_watts):
        raise RangeError("power_cap: the power of this system is not known; set it per chip, such as --set power=1.5kW")
    per_host, hosts_each = replicas_per_host(replica_chips, host_chips)
    host_watts = host_chips * chip_watts
    replicas = int(power_cap / host_watts + 1e-9) // hosts_each * per_host
    if replicas < 1:
        needed = show(hosts_each * host_watts, "W")
        raise Impossible(
            f"the hosts of one replica take {needed}, more than the {show(power_cap, 'W')} of --power-cap; raise it to {needed}"
        )
    return replicas
