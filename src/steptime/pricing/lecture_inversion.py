"""Lecture inversion: the estimates of the lecture (sections 5, 13 to 15) from a price list, for a given machine and model size.

It also tests whether the estimates of two sections contradict each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.blackboard.token_cost import (
    break_even_hits,
    break_even_hold,
    decode_utilisation,
    joint_balanced_context,
    joint_batch_ratio,
    kv_bytes_from_tier,
    ratio_below_step,
)
from steptime.errors import RangeError
from steptime.number_checks import positive
from steptime.pricing.price_list import PriceList
from steptime.result_base import Result, unit
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """Machine and model size of the lecture's formulas."""

    balance: float = field(default=300.0, metadata=unit("", "R: multiplies per second x bytes per weight / bandwidth"))
    active: float = field(default=100e9, metadata=unit("", "active parameters", key="active_parameters"))
    weight_bytes: float = field(default=1.0, metadata=unit("B", "bytes per weight"))
    drain: float = field(default=0.020, metadata=unit("s", "drain time of HBM"))
    short: float = field(default=20e3, metadata=unit("tokens", "usual context below the price step"))
    long: float = field(default=400e3, metadata=unit("tokens", "usual context above the price step"))

    def __post_init__(self) -> None:
        for name in ("balance", "active", "weight_bytes", "drain", "short", "long"):
            positive(name, getattr(self, name))
        if self.short >= self.long:
            raise RangeError(
                f"the short context ({self.short:,.0f} tokens) must be below the long one ({self.long:,.0f}): "
                "the price step is between them"
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdealReading(Result):
    """The lecture's estimates from a price list; NaN where the list lacks a price."""

    ideal: Ideal = field(metadata=unit("", "given machine and model size"))
    ratio: float = field(default=math.nan, metadata=unit("", "output price over input price"))
    decode_utilisation: float = field(
        default=math.nan, metadata=unit("", "section 14: MFU of decode over that of prefill, 1/r")
    )
    threshold: float = field(default=math.nan, metadata=unit("tokens", "context of the first step"))
    kv_bytes: float = field(
        default=math.nan, metadata=unit("B", "section 13: KV bytes per token if the threshold is L*", key="kv_bytes_per_token")
    )
    ratio_left: float = field(
        default=math.nan, metadata=unit("", "section 13: maximum output price over input price at the short context")
    )
    consistent: bool = field(default=True, metadata=unit("", "whether the separate estimates of sections 13 and 14 agree"))
    balanced: float = field(default=math.nan, metadata=unit("tokens", "joint estimate: context L*"))
    joint_kv_bytes: float = field(
        default=math.nan, metadata=unit("B", "joint estimate: KV bytes per token", key="joint_kv_bytes_per_token")
    )
    joint_batch: float = field(default=math.nan, metadata=unit("", "joint estimate: best batch over batch, B*/B"))
    hbm_break_even: float = field(
        default=math.nan, metadata=unit("s", "section 15: storage time in HBM above which a new prefill is cheaper, drain x L*")
    )
    hits: tuple[float, ...] = field(default=(), metadata=unit("", "section 15: break-even hits of each write price"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the estimates.

        Returns:
            Title, and text by label.
        """
        figures = {"MFU of decode (14)": f"{self.decode_utilisation:.2g} by r = {self.ratio:.3g}"}
        if math.isfinite(self.kv_bytes):
            figures["KV bytes (13)"] = f"{self.kv_bytes:,.1f} B per token by L* = {self.threshold:,.0f}"
            figures["break-even storage in HBM (15)"] = show(self.hbm_break_even, "s")
            figures["13 and 14 together"] = (
                f"L* {self.balanced:,.0f}, {self.joint_kv_bytes:,.0f} B per token, B*/B {self.joint_batch:.3g}"
            )
            figures["separately"] = "consistent" if self.consistent else f"inconsistent: 13 limits r to {self.ratio_left:.2g}"
        if self.hits:
            figures["break-even hits (15)"] = " and ".join(f"{hit_count:.2f}" for hit_count in self.hits)
        return "The lecture's estimates, on an ideal machine", figures


def read_ideal(price_list: PriceList, ideal: Ideal) -> IdealReading:
    """Compute the lecture's estimates from a price list.

    Args:
        price_list: Price list.
        ideal: Machine and model size.

    Returns:
        Estimates.
    """
    base, tiers = price_list.base, price_list.service_rates()
    ratio = base.output / base.input if base.input > 0 else math.nan
    figures: dict[str, float] = {"ratio": ratio, "decode_utilisation": float(decode_utilisation(ratio))}
    consistent = True

    # Sections 13 and 14 need a step of the output price over context.
    if len(tiers) > 1 and tiers[1].output > tiers[0].output > 0 and math.isfinite(ratio):
        threshold, multiple = tiers[1].above_tokens, tiers[1].output / tiers[0].output
        ratio_left = float(ratio_below_step(threshold, ideal.short))
        joint = float(joint_balanced_context(ratio, multiple, ideal.short, ideal.long))
        figures |= {
            "threshold": threshold,
            "kv_bytes": float(kv_bytes_from_tier(ideal.active, threshold, ideal.balance, ideal.weight_bytes)),
            "ratio_left": ratio_left,
            "balanced": joint,
            "joint_kv_bytes": float(kv_bytes_from_tier(ideal.active, joint, ideal.balance, ideal.weight_bytes)),
            "joint_batch": float(joint_batch_ratio(ratio, multiple, ideal.short, ideal.long)),
            "hbm_break_even": float(break_even_hold(ideal.drain, threshold)),
        }
        consistent = ratio <= ratio_left
    writes = [price for price in (base.cache_write, base.cache_write_long) if math.isfinite(price)]
    hits = (
        tuple(float(break_even_hits(write, base.input, base.effective_cache_read)) for write in writes)
        if base.effective_cache_read < base.input
        else ()
    )
    return IdealReading(ideal=ideal, consistent=consistent, hits=hits, **figures)
