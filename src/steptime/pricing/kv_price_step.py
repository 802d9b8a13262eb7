"""KV bytes per token from a price step over context, in dollars.

Above a threshold an output token costs more by $\\Delta P$ because it reads $\\Delta L$ tokens more of cache:

$$ \\kappa = \\frac{\\Delta P}{\\Delta L \\, c_{byte} \\, G} $$

with $c_{byte}$ the dollars to read a byte and $G$ the seller's margin. The first step counts: further ones are set by other
things (Alibaba's last ones by up to twelve times). Mean contexts on its two sides are drawn as traces have them. At $G = 1$ it
is a bound, without batch or size. A cache in FP8 has half the bytes of BF16, in which both reading and bound are told.
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
    """Return USD to read a byte on each system that margins are calibrated on, at a share of its bandwidth."""
    machines = [load_system(name) for name in HOPPER]
    rents = np.array([float(machine.rent.typical) for machine in machines])
    widths = np.array([float(machine.chip.hbm.bandwidth) for machine in machines])
    return np.asarray(usd_per_byte_read(rents, widths, np.asarray(share)[..., None]))


def has_step(price_list: PriceList) -> bool:
    """Whether output costs more above the first threshold."""
    tiers = price_list.service_rates(STANDARD)
    return len(tiers) > 1 and tiers[1].output > tiers[0].output


def drawn_bytes(price_list: PriceList, draws: Draws, random: np.random.Generator) -> Array:
    """Return bytes read a token of context at margin 1, drawn over contexts and chips; the list must have a step."""
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
    low, high = assumed("context_above")
    below = draws.log_uniform(random, *assumed("context_below"))
    above = draws.log_uniform(random, min(low, end), min(high, end))
    dollars = draws.choice(random, usd_per_byte(1.0)) / draws.log_uniform(random, *assumed("memory_share"))
    return np.asarray(kv_bytes_from_step(dearer, (above - below) * first, dollars))


def calibrated(price_list: PriceList, margin: Margin, draws: Draws) -> tuple[Array, Array]:
    """Return draws of KV bytes a token in BF16: by a margin prior, and at margin 1, which bounds them."""
    random = draws.generator()
    bytes_read = drawn_bytes(price_list, draws, random)
    halves = random.random(draws.count // 2) < assumed("fp8_cache")[0]
    wide = np.where(np.concatenate([halves, halves]), 2.0, 1.0)
    return bytes_read * wide / margin.at_scores(draws.scores(random)), bytes_read * wide
