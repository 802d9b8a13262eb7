"""Open model market: median prices of models with open weights, with the known figures of the models."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from steptime.pricing.bundled_prices import RESELLER, Row, model_costs, open_rows
from steptime.pricing.serving_costs import HOPPER
from steptime.units import MILLION

# Rows collected after this month belong to the current market.
CURRENT: Final = "2026-06"
LEAST_SELLERS: Final = 3
# Prompt and output tokens of the request for margins.
INPUT, OUTPUT = 4096, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model with open weights: number of sellers, median prices, costs and size.

    input and output: median prices [USD per million tokens]; price and costs: USD per request, costs by system; active and
    total: parameters; kv_bytes: KV bytes per token; cost_ratios: cost of output over input tokens, by system.
    """

    name: str
    sellers: int
    input: float
    output: float
    price: float
    costs: Mapping[str, float]
    active: float
    total: float
    kv_bytes: float
    cost_ratios: Mapping[str, float]

    @property
    def hopper(self) -> float:
        """Cost of a request on Hopper [USD]: geometric mean of the systems in `HOPPER` that serve the model."""
        return mean_of_hopper(self.costs)

    @property
    def margin(self) -> float:
        """Price of the median seller over the cost on Hopper."""
        return self.price / self.hopper


def mean_of_hopper(costs: Mapping[str, float]) -> float:
    """Return the geometric mean of costs on Hopper.

    Args:
        costs: Costs by system.

    Returns:
        Mean of the known costs on `HOPPER`; NaN without any.
    """
    known_costs = [costs[name] for name in HOPPER if math.isfinite(costs.get(name, math.nan))]
    return math.exp(math.fsum(map(math.log, known_costs)) / len(known_costs)) if known_costs else math.nan


def one_each(rows: list[Row]) -> list[Row]:
    """Select one standard row of each seller, without resellers.

    Args:
        rows: Rows of one family.

    Returns:
        Rows of the current market; the model itself has priority over a variant.
    """
    row_by_provider: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row.variant != "", row.variant)):
        current = row.service == "standard" and not row.above_tokens and row.retrieval_date > CURRENT
        if current and row.role != RESELLER:
            row_by_provider.setdefault(row.provider, row)
    return list(row_by_provider.values())


@lru_cache(maxsize=1)
def costs_by_model() -> Mapping[tuple[str, str], Mapping[str, Mapping[str, str]]]:
    """Return the shipped costs of models.

    Returns:
        Rows by model and weight format, then by system.
    """
    costs: dict[tuple[str, str], dict[str, Mapping[str, str]]] = defaultdict(dict)
    for row in model_costs():
        costs[row["catalogue"], row["weights"]][row["system"]] = row
    return costs


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Return the families with at least `LEAST_SELLERS` sellers.

    Returns:
        Families.
    """
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in open_rows():
        grouped[row.family].append(row)
    return tuple(family for name, rows in grouped.items() if (family := _family(name, rows)) is not None)


def known_figures(family: str) -> dict[str, float]:
    """Return the known size of a model with open weights.

    Args:
        family: Family.

    Returns:
        Parameters and KV bytes by name of an estimate; empty for an unknown family.
    """
    row = next((row for row in open_rows() if row.family == family), None)
    costs = costs_by_model().get((row.catalogue, row.weights)) if row is not None else None
    if not costs:
        return {}
    figures = next(iter(costs.values()))
    kv_column = "kv_bytes_read_per_token"
    names = {"active_parameters": "active_parameters", "total_parameters": "total_parameters", "kv_bytes_per_token": kv_column}
    return {name: float(figures[column]) for name, column in names.items()}


def _family(name: str, rows: list[Row]) -> Family | None:
    sold = one_each(rows)
    costs = costs_by_model().get((rows[0].catalogue, rows[0].weights))

    # The median of fewer sellers is not a market price.
    if len(sold) < LEAST_SELLERS or not costs:
        return None
    inputs, outputs = np.array([(row.input, row.output) for row in sold]).T
    figures = next(iter(costs.values()))
    return Family(
        name=name,
        sellers=len(sold),
        input=float(np.median(inputs)),
        output=float(np.median(outputs)),
        price=float(np.median(INPUT * inputs + OUTPUT * outputs)) / MILLION,
        costs={system: float(row["usd_per_request"] or math.nan) for system, row in costs.items()},
        active=float(figures["active_parameters"]),
        total=float(figures["total_parameters"]),
        kv_bytes=float(figures["kv_bytes_per_token"]),
        cost_ratios={system: _ratio(row) for system, row in costs.items()},
    )


def _ratio(row: Mapping[str, str]) -> float:
    """Return the cost of output tokens over that of input tokens on a system."""
    return float(row["output_usd"] or math.nan) / float(row["input_usd"] or math.nan)
