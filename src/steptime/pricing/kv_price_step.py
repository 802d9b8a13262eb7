r"""KV price step: KV bytes per token from a price that increases above a context length, in dollars.

Above the threshold, an output token costs $\Delta P$ more because it reads $\Delta L$ more tokens of KV cache:

$$ \kappa = \frac{\Delta P}{\Delta L \, c_{byte} \, G} $$

with $c_{byte}$ the dollars per byte read and $G$ the seller's margin. Only the first step is used: later steps have other
reasons (the last steps of Alibaba are up to twelve times higher). Mean contexts below and above the step are drawn from the
range of public traces. At $G = 1$ the result is an upper bound that needs neither batch nor model size. An FP8 KV cache has
half the bytes of a BF16 cache. Estimate and bound are in BF16.
"""

from __future__ import annotations

import math

import numpy as np

from steptime.blackboard.price_signals import kv_bytes_from_step, usd_per_byte_read
from steptime.catalog.hardware_loading import load_system
from steptime.number_checks import Array
from steptime.pricing.monte_carlo import Draws, Margin, assumed
from steptime.pricing.price_list import STANDARD, PriceList
from steptime.pricing.serving_costs import HOPPER
from steptime.units import MILLION


def usd_per_byte(share: float | Array) -> Array:
    """Return the cost of reading a byte on the calibration systems.

    Args:
        share: Share of the memory bandwidth in use; a number or an array.

    Returns:
        USD per byte, of the shape of `share` plus an axis of systems.
    """
    machines = [load_system(name) for name in HOPPER]
    rents = np.array([float(machine.rent.typical) for machine in machines])
    widths = np.array([float(machine.chip.hbm.bandwidth) for machine in machines])
    return np.asarray(usd_per_byte_read(rents, widths, np.asarray(share)[..., None]))


def has_step(price_list: PriceList) -> bool:
    """Check whether output costs more above the first threshold.

    Args:
        price_list: Price list.

    Returns:
        True with such a step.
    """
    tiers = price_list.service_rates(STANDARD)
    return len(tiers) > 1 and tiers[1].output > tiers[0].output


def drawn_bytes(price_list: PriceList, draws: Draws, random: np.random.Generator) -> Array:
    """Draw the KV bytes per token at margin 1.

    Args:
        price_list: Price list with a step.
        draws: Draws.
        random: Generator.

    Returns:
        Bytes per token of context, of shape (draws,).
    """
    tiers = price_list.service_rates(STANDARD)
    dearer = (tiers[1].output - tiers[0].output) / MILLION
    first = tiers[1].above_tokens
    end = (
        tiers[2].above_tokens / first
        if len(tiers) > 2
        else price_list.longest / first
        if math.isfinite(price_list.longest)
        else math.inf
    )

    # Contexts above the step end at the next threshold, or at the longest context for sale.
    low, high = assumed("context_above")
    below = draws.log_uniform(random, *assumed("context_below"))
    above = draws.log_uniform(random, min(low, end), min(high, end))
    dollars = draws.choice(random, usd_per_byte(1.0)) / draws.log_uniform(random, *assumed("memory_share"))
    return np.asarray(kv_bytes_from_step(dearer, (above - below) * first, dollars))


def calibrated(price_list: PriceList, margin: Margin, draws: Draws) -> tuple[Array, Array]:
    """Draw the KV bytes per token in BF16.

    Args:
        price_list: Price list with a step.
        margin: Prior of the margin.
        draws: Draws.

    Returns:
        Bytes per token with the margin prior, and at margin 1 (upper bound), of shape (draws,).
    """
    random = draws.generator()
    bytes_read = drawn_bytes(price_list, draws, random)

    # A seller with an FP8 cache reads half the bytes that a BF16 cache has.
    halves = random.random(draws.count // 2) < assumed("fp8_cache")[0]
    wide = np.where(np.concatenate([halves, halves]), 2.0, 1.0)
    return bytes_read * wide / margin.at_scores(draws.scores(random)), bytes_read * wide
