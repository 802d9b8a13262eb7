"""Energy result: power of a deployment at its load, with energy, electricity and carbon of its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.result_base import Result, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanEnergy(Result):
    """Power of a deployment at the load of its plan, and energy, electricity and carbon per output token."""

    chip_watts: float = field(
        metadata=unit("W", "mean power of a chip at this load, without host, network and cooling", key="chip_power_w")
    )
    total_watts: float = field(metadata=unit("W", "power of all chips with the power around them", key="total_power_w"))
    joules: float = field(metadata=unit("J", "energy of all chips per output token", key="joules_per_output_token"))
    joules_range: tuple[float, float] | None = field(
        default=None,
        metadata=unit(
            "J",
            "90 % range: throughput and coefficients of power; null for the ideal engine",
            key="joules_per_output_token_range",
        ),
    )
    tokens_per_second_per_megawatt: float = field(
        metadata=unit("tok/s", "output tokens per second of a megawatt", key="tokens_per_s_per_megawatt")
    )
    rent_per_megawatt_hour: float = field(
        metadata=unit("USD", "rent of a megawatt of chips per hour; null: not known", key="rent_usd_per_megawatt_hour")
    )
    electricity_usd: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "electricity per million output tokens; null: no price", key="electricity_usd_per_million_output_tokens"
        ),
    )
    carbon_grams: float = field(
        default=math.nan,
        metadata=unit("g", "CO2 per million output tokens; null: no grid", key="carbon_grams_per_million_output_tokens"),
    )
    carbon: float = field(default=math.nan, metadata=unit("g/kWh", "CO2 of a kWh of the grid; null: no grid"))
    coefficients: str = field(default="", metadata=unit("", "chips whose measured power gave the coefficients"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return power and energy.

        Returns:
            Title, and text by label.
        """
        return "Energy of a plan", {
            "power": show(self.total_watts, "W"), "energy per output token": show(self.joules, "J"),
        }  # fmt: skip
