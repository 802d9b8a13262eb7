"""Size estimates from a price list: active and total parameters, and KV bytes per token from a price step over context."""

from __future__ import annotations

import math

import numpy as np

from steptime.blackboard.price_signals import active_from_input, kv_bytes_from_step, kv_bytes_from_tier
from steptime.pricing.bundled_prices import table
from steptime.pricing.kv_price_step import calibrated, has_step, usd_per_byte
from steptime.pricing.monte_carlo import Z90, Draws, Margin, interval
from steptime.pricing.price_estimate import Reading, prior_coverage, unidentifiable
from steptime.pricing.price_list import PriceList
from steptime.pricing.prior_calibration import HALF_BUSY
from steptime.pricing.serving_costs import HOPPER
from steptime.units import MILLION

# Machine of the lecture in FP8: balance R, and bytes per weight.
BALANCE, WEIGHT_BYTES = 300.0, 1.0
# Share of memory bandwidth, for values without draws.
MEMORY_SHARE = 0.77


def information_bits(name: str) -> float:
    """Return the information in the prices about a quantity.

    Args:
        name: Name of the prior.

    Returns:
        log2 of the spread without prices over the scatter with them [bits], at least 0.
    """
    prior = table("priors")[name]
    return max(0.0, math.log2(prior["spread"] / prior["scatter"]))


def size(price_list: PriceList, which: str, quantity: str) -> Reading:
    """Estimate active or total parameters by a fit to open models.

    Args:
        price_list: Price list.
        which: "active" or "total".
        quantity: Description of the quantity.

    Returns:
        Estimate with a 90 % range; active parameters also have an upper bound.
    """
    base, fit = price_list.base, table("priors")[which]
    if not (base.input > 0 and base.output > 0):
        return unidentifiable(f"{which}_parameters", quantity, "a price of 0 contains no information", measure="parameters")
    constant, power_in, power_out = fit["log10"]
    centre = constant + power_in * math.log10(base.input) + power_out * math.log10(base.output)
    half = Z90 * fit["scatter"]

    # Upper bound: the seller spends the whole input price on arithmetic.
    bound = math.nan
    if which == "active":
        bound = float(active_from_input(base.input / MILLION, table("priors")["dollars"]["usd_per_flop"]))
    return Reading(
        name=f"{which}_parameters",
        quantity=quantity,
        measure="parameters",
        value=10**centre,
        interval=(10 ** (centre - half), 10 ** (centre + half)),
        bound=bound,
        bound_held=prior_coverage(which, "bound_held") if which == "active" else None,
        bits=information_bits(which),
        interval_held=prior_coverage(which),
        reason=(
            "median of models with open weights at that input price"
            if which == "active"
            else f"fit to models with open weights: input price to the power {power_in:.2g}, output price {power_out:.2g}"
        )
        + (
            f"; at the bound, arithmetic at {HALF_BUSY:.0%} of FP8 peak costs the whole input price".replace("%", " %")
            if which == "active"
            else ""
        ),
    )


def kv_bytes(price_list: PriceList, margin: Margin, draws: Draws, active: float, balance: float = BALANCE) -> Reading:
    """Estimate KV bytes per token from the first step of output prices.

    Args:
        price_list: Price list.
        margin: Prior of the margin.
        draws: Draws.
        active: Active parameters, for the lecture's formula.
        balance: Machine balance R, for the lecture's formula.

    Returns:
        Estimate with a 90 % range and an upper bound; without a value if there is no step.
    """
    name, quantity = "kv_bytes_per_token", "KV bytes per token"
    tiers = price_list.service_rates()
    if not has_step(price_list):
        rising = len(tiers) > 1 and tiers[1].input > tiers[0].input
        why = (
            "only the input price increases at the step, and prefill is compute-bound"
            if rising
            else "the list has no price step"
        )
        return unidentifiable(
            name, quantity, f"{why}; KV bytes can only be inferred from output prices that increase with context", measure="B"
        )

    # The lecture's formula, the draws, and one value at margin 1 for comparison.
    ideal = float(kv_bytes_from_tier(active, tiers[1].above_tokens, balance, WEIGHT_BYTES))
    values, bounds = calibrated(price_list, margin, draws)
    at_one = float(
        kv_bytes_from_step(
            (tiers[1].output - tiers[0].output) / MILLION, tiers[1].above_tokens, float(usd_per_byte(MEMORY_SHARE)[0])
        )
    )

    # KV reads belong to decode, so a steeper input price has another reason.
    rises = tiers[1].input / tiers[0].input > tiers[1].output / tiers[0].output if tiers[0].input and tiers[0].output else False
    steeper = "; the input price increases more than the output price, which KV reads do not explain" if rises else ""
    return Reading(
        name=name,
        quantity=quantity,
        measure="B",
        value=float(np.median(values)),
        interval=interval(values),
        bound=float(np.quantile(bounds, 0.95)),
        bound_held=prior_coverage("step", "bound_held"),
        bits=information_bits("step"),
        interval_held=prior_coverage("step") if margin.values else None,
        reason=f"output costs {tiers[1].output - tiers[0].output:g} USD/M more above {tiers[1].above_tokens:,.0f} tokens. "
        f"Price / cost: {margin.median:.2g} ({margin.low:.2g} to {margin.high:.2g}; {margin.basis}). At exactly "
        f"{tiers[1].above_tokens:,.0f} tokens and price / cost of 1, the value is {at_one / 1e3:,.0f} kB. The upper bound "
        f"assumes price / cost of at least 1 and USD per byte of {' and '.join(HOPPER)}. Range and bound are in BF16{steeper}",
        ideal=ideal,
        ideal_from=f"section 13: memory time equals compute time at the threshold; "
        f"{active / 1e9:,.0f} B active, R = {balance:g}",
    )
