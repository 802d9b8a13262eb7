"""Priors of price estimates: fits to the shipped rows, and their accuracy in cross-validation on known models.

`fit_prices.py` writes `priors_text` to `data/prices/priors.toml`. Estimates read this file, so they take milliseconds.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from steptime.blackboard.token_cost import active_from_input, usd_per_flop
from steptime.number_checks import Array
from steptime.pricing.bundled_prices import RESELLER, Row, costs_by_model, dated_rows, open_rows, table
from steptime.pricing.market import CURRENT, LEAST_SELLERS
from steptime.pricing.price_estimate import Z90, Coverage, Margin, interval
from steptime.pricing.price_inversion import HALF_BUSY, calibrated
from steptime.pricing.price_list import PriceList, Rates
from steptime.pricing.serving_costs import HOPPER, mean_of_hopper, plausible
from steptime.units import MILLION

# Prompt and output tokens of the request for margins.
INPUT, OUTPUT = 4096, 1024

Fit = tuple[Array, float]
"""Coefficients of log10 of a size, and the scatter of the residuals."""


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
def families() -> tuple[Family, ...]:
    """Return the families with at least `LEAST_SELLERS` sellers.

    Returns:
        Families.
    """
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in open_rows():
        grouped[row.family].append(row)
    return tuple(family for name, rows in grouped.items() if (family := _family(name, rows)) is not None)


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


def by_input(inputs: Array, _: Array, sizes: Array) -> Fit:
    """Fit size = constant x input price in log10, with the median ratio.

    Args:
        inputs: Input prices [USD per million tokens], of shape (models,).
        _: Output prices, not used.
        sizes: Sizes, of shape (models,).

    Returns:
        Coefficients and scatter.
    """
    ratio = np.log10(sizes / inputs)
    centre = float(np.median(ratio))
    return np.array([centre, 1.0, 0.0]), float(np.std(ratio - centre, ddof=1))


def by_both(inputs: Array, outputs: Array, sizes: Array) -> Fit:
    """Fit size = constant x input price ** a x output price ** b in log10.

    Args:
        inputs: Input prices [USD per million tokens], of shape (models,).
        outputs: Output prices, of shape (models,).
        sizes: Sizes, of shape (models,).

    Returns:
        Coefficients and scatter of a least-squares fit.
    """
    columns = np.stack([np.ones_like(inputs), np.log10(inputs), np.log10(outputs)], axis=1)
    coefficients, *_ = np.linalg.lstsq(columns, np.log10(sizes), rcond=None)
    scatter = np.log10(sizes) - columns @ coefficients
    return coefficients, float(np.std(scatter, ddof=3))


def predicted(fit: Array, inputs: Array | float, outputs: Array | float) -> Array:
    """Return log10 of the size that a fit predicts.

    Args:
        fit: Coefficients.
        inputs: Input prices [USD per million tokens].
        outputs: Output prices.

    Returns:
        log10 of the sizes.
    """
    log_sizes: Array = fit[0] + fit[1] * np.log10(inputs) + fit[2] * np.log10(outputs)
    return log_sizes


def left_out(fit: Callable[[Array, Array, Array], Fit], sizes: Array) -> Coverage:
    """Cross-validate the 90 % range of a fit.

    Args:
        fit: Fit function.
        sizes: Sizes, of shape (models,).

    Returns:
        Number of models inside the range of a fit to the others.
    """
    inputs, outputs = _prices()
    hits = 0
    for index in range(len(sizes)):
        is_other = np.arange(len(sizes)) != index
        coefficients, scatter = fit(inputs[is_other], outputs[is_other], sizes[is_other])
        hits += bool(abs(math.log10(sizes[index]) - predicted(coefficients, inputs[index], outputs[index])) <= Z90 * scatter)
    return Coverage(hits=hits, trials=len(sizes))


def _prices() -> tuple[Array, Array]:
    inputs, outputs = np.array([(family.input, family.output) for family in families()]).T
    return inputs, outputs


def tier_list(provider: str, model: str) -> PriceList:
    """Return the newest dated price list of a model with context tiers.

    Args:
        provider: Seller.
        model: Model id of the seller.

    Returns:
        Price list.
    """
    newest: dict[float, Rates] = {}
    for row in dated_rows():
        if (row.provider, row.model, row.service) == (provider, model, "standard"):
            newest[row.above_tokens] = Rates(above_tokens=row.above_tokens, input=row.input, output=row.output)
    return PriceList(provider=provider, model=model, rates=tuple(newest[above] for above in sorted(newest)))


def known_tiers() -> list[tuple[PriceList, float]]:
    """Return the price lists with a step of models with known KV bytes.

    Returns:
        Price list, and KV bytes read per token of context in BF16.
    """
    known_models = []
    for model in table("tier_models")["models"]:
        figures = next(iter(costs_by_model()[model["catalogue"], model["weights"]].values()))
        known_models.append((tier_list(model["provider"], model["model"]), float(figures["kv_bytes_read_per_token"])))
    return known_models


def tier_coverage(margin: Margin) -> tuple[Coverage, Coverage, list[float]]:
    """Test the KV bytes from price steps on known models.

    Args:
        margin: Prior of the margin.

    Returns:
        Coverage of the range, coverage of the upper bound, and log10 of estimate over known value.
    """
    hits, below, errors = 0, 0, []
    for price_list, truth in known_tiers():
        values, bounds = calibrated(price_list, margin)
        low, high = interval(values)
        hits += low <= truth <= high
        below += bool(truth <= np.quantile(bounds, 0.95))
        errors.append(math.log10(float(np.median(values)) / truth))
    return Coverage(hits=hits, trials=len(errors)), Coverage(hits=below, trials=len(errors)), errors


def active_bound_held() -> int:
    """Count families whose input price covers the arithmetic of their size.

    Returns:
        Number of families below the upper bound.
    """
    usd = usd_per_operation()
    return sum(bool(family.active <= active_from_input(family.input / MILLION, usd)) for family in families())


def of_market() -> Margin:
    """Compute the margins of families on Hopper from the shipped rows.

    Returns:
        Prior.
    """
    values = tuple(sorted(family.margin for family in families() if math.isfinite(family.margin)))
    low, median, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return Margin(median=median, low=low, high=high, basis="market", values=values)


def within(values: Sequence[float], low: float, high: float) -> Coverage:
    """Count values in a range.

    Args:
        values: Values.
        low: Lower end.
        high: Upper end.

    Returns:
        Coverage.
    """
    return Coverage(hits=sum(low <= value <= high for value in values), trials=len(values))


def rank_correlation(a: Array, b: Array) -> float:
    """Return Spearman's rank correlation; ties have their mean rank.

    Args:
        a: Values.
        b: Values, of the same shape.

    Returns:
        Correlation from -1 to 1.
    """
    ranks = np.stack(
        [np.mean([np.searchsorted(np.sort(sample), sample, side) for side in ("left", "right")], axis=0) for sample in (a, b)]
    )
    return float(np.corrcoef(ranks)[0, 1])


def explained_variance(targets: Array, *predictors: Array) -> float:
    """Return the share of variance that a log-log regression explains.

    Args:
        targets: Values, of shape (n,).
        *predictors: Predictors, of shape (n,).

    Returns:
        R squared in log10.
    """
    columns = np.stack([np.ones_like(targets), *(np.log10(predictor) for predictor in predictors)], axis=1)
    logs = np.log10(targets)
    coefficients, *_ = np.linalg.lstsq(columns, logs, rcond=None)
    return float(1 - np.var(logs - columns @ coefficients) / np.var(logs))


def _cost_ratios() -> dict[str, Array]:
    """Return the cost of output tokens over that of input tokens, by system and family."""
    return {
        name: np.array([family.cost_ratios.get(name, math.nan) for family in families()]) for name in families()[0].cost_ratios
    }


def _steps_at_one_threshold() -> dict[str, float]:
    """Compare price factors with known KV bytes, for models whose first step is at the most common threshold."""
    steps = [(tiers[1].above_tokens, tiers[1].output / tiers[0].output, truth) for tiers, truth in _first_steps()]
    # Factors at different thresholds are not comparable.
    common_threshold = statistics.mode(above for above, _, _ in steps)
    multiples, truths = np.array([(multiple, truth) for above, multiple, truth in steps if above == common_threshold]).T
    return {
        "step_above": common_threshold,
        "step_models": len(multiples),
        "step_low": float(np.min(multiples)),
        "step_high": float(np.max(multiples)),
        "step_bytes_apart": float(np.max(truths) / np.min(truths)),
        "step_rank": rank_correlation(multiples, truths),
    }


def _first_steps() -> list[tuple[tuple[Rates, ...], float]]:
    return [(listed.service_rates(), truth) for listed, truth in known_tiers()]


def blind_facts() -> dict[str, float | str]:
    """Return the evidence that some quantities are not identifiable.

    Returns:
        Rank correlations and explained variances of price ratios, price levels and cache hit prices, by name.
    """
    inputs, outputs = _prices()
    kv = np.array([family.kv_bytes for family in families()])
    ratios = outputs / inputs
    ranks = {
        name: rank_correlation(ratios[able], costs[able])
        for name, costs in _cost_ratios().items()
        for able in [np.isfinite(costs)]
    }

    # Cache hits: does KV size explain their price beyond the input price?
    low, high = min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)
    cached = {family.name: family.kv_bytes for family in families()}
    hits = [row for row in open_rows() if row.family in cached and row.cache_read > 0 and row.service == "standard"]
    cache_reads, fresh, kv_bytes = np.array([(row.cache_read, row.input, cached[row.family]) for row in hits]).T
    return {
        "models": len(ratios),
        "ratio_systems": len(ranks),
        "ratio_rank": float(np.median(list(ranks.values()))),
        "ratio_rank_low": ranks[low],
        "ratio_rank_low_on": low,
        "ratio_rank_high": ranks[high],
        "ratio_rank_high_on": high,
        "at_four": int(np.sum(np.isclose(ratios, 4))),
        "levels_r2": explained_variance(kv, inputs, outputs),
        "hits": len(hits),
        "hit_r2": explained_variance(cache_reads, fresh),
        "hit_kv_r2": explained_variance(cache_reads, fresh, kv_bytes),
        **_steps_at_one_threshold(),
    }


def log_spread(sizes: Array) -> float:
    """Return the standard deviation of log10 of sizes, without prices.

    Args:
        sizes: Sizes.

    Returns:
        Standard deviation.
    """
    return float(np.std(np.log10(sizes), ddof=1))


def usd_per_operation() -> float:
    """Return the median cost of an FP8 operation on plausible systems.

    Returns:
        USD per FLOP at `HALF_BUSY` of the peak rate.
    """
    machines, _ = plausible()
    rents = np.array([float(machine.rent.typical) for machine in machines])
    rates = np.array([float(machine.chip.peak.get("fp8", math.nan)) for machine in machines])
    return float(np.nanmedian(usd_per_flop(rents, rates, HALF_BUSY)))


def _written(name: str, fit: Fit, coverage: Coverage, sizes: Array) -> list[str]:
    figures = ", ".join(f"{value:.6f}" for value in fit[0])
    return [
        f"[{name}]",
        f"log10 = [{figures}] # constant, power of the input price, power of the output price, in USD per million",
        f"scatter = {fit[1]:.6f} # standard deviation of log10",
        f"spread = {log_spread(sizes):.6f} # the same without prices",
        f"held = {coverage.hits}",
        f"of = {coverage.trials}",
        "",
    ]


def priors_text() -> str:
    """Format the priors as TOML.

    Returns:
        Text of the file.
    """
    market = of_market()
    active, total = (np.array([getattr(family, name) for family in families()]) for name in ("active", "total"))
    prices = _prices()
    coverage, below, errors = tier_coverage(market)
    kv_bytes = np.array([float(next(iter(rows.values()))["kv_bytes_read_per_token"]) for rows in costs_by_model().values()])
    inside = within(market.values, 0.5, 10)
    lines = [
        "# Written by docs/fit_prices.py from the rows of this folder; tests recompute each figure.",
        "",
        "[margin] # of the median seller of each model over a request's cost (4,096 in, 1,024 out, 40 tok/s), a busy chip",
        f'chips = "Hopper (geometric mean of {" and ".join(HOPPER)})"',
        "values = [",
        *(f"  {value:.6g}," for value in market.values),
        "]",
        f"held = {inside.hits} # within 0.5 to 10",
        f"of = {inside.trials}",
        "",
        *_written("active", by_input(*prices, active), left_out(by_input, active), active)[:-1],
        f"bound_held = {active_bound_held()} # all of the input price spent on arithmetic",
        "",
        *_written("total", by_both(*prices, total), left_out(by_both, total), total),
        "[dollars] # of plausible systems",
        f"usd_per_flop = {usd_per_operation():.6g} # median, FP8 at {HALF_BUSY:g} of the peak",
        "",
        "[blind] # why some readings do not hold: ratios of prices against ratios of costs, KV bytes against prices and hits",
        *(f'{name} = "{fact}"' if isinstance(fact, str) else f"{name} = {fact:.6g}" for name, fact in blind_facts().items()),
        "",
        "[step] # KV bytes per token from price steps of models whose architecture is known (tier_models.toml)",
        f"scatter = {float(np.std(errors, ddof=1)):.6f} # standard deviation of log10 of reading over truth",
        f"bias = {float(np.mean(errors)):.6f}",
        f"spread = {log_spread(kv_bytes):.6f} # of the models that are sold, without prices",
        f"held = {coverage.hits}",
        f"bound_held = {below.hits} # at margin 1",
        f"of = {coverage.trials}",
        "",
    ]
    return "\n".join(lines)
