"""The lecture's own reading of a list (sections 5, 13 to 15), machine and size given, and the tension between two sections."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.blackboard.cache_tiers import break_even_hits, break_even_hold
from steptime.blackboard.price_signals import (
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
    """The machine and the size that the lecture's formulas need: R, active parameters, bytes of a weight, drain time of HBM.

    short, long: usual contexts below and above a step [tokens], for the joint reading.
    """

    balance: float = field(default=300.0, metadata=unit("", "R: multiplies per second x bytes of a weight / bandwidth"))
    active: float = field(default=100e9, metadata=unit("", "active parameters", key="active_parameters"))
    weight_bytes: float = field(default=1.0, metadata=unit("B", "of a weight"))
    drain: float = field(default=0.020, metadata=unit("s", "of HBM"))
    short: float = field(default=20e3, metadata=unit("tokens", "usual context below the step"))
    long: float = field(default=400e3, metadata=unit("tokens", "usual context above it"))

    def __post_init__(self) -> None:
        for name in ("balance", "active", "weight_bytes", "drain", "short", "long"):
            positive(name, getattr(self, name))
        if self.short >= self.long:
            raise RangeError(
                f"the short context ({self.short:,.0f} tokens) must be below the long one ({self.long:,.0f}): a step of price "
                "lies between them"
            )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IdealReading(Result):
    """What the lecture reads from a list. Figures that a list does not give are not numbers."""

    ideal: Ideal = field(metadata=unit("", "what is given"))
    ratio: float = field(default=math.nan, metadata=unit("", "output over input price"))
    decode_utilisation: float = field(
        default=math.nan, metadata=unit("", "section 14: MFU of decode over that of prefill, 1/r")
    )
    threshold: float = field(default=math.nan, metadata=unit("tokens", "context of the first step"))
    kv_bytes: float = field(
        default=math.nan, metadata=unit("B", "section 13: KV bytes per token, threshold taken as L*", key="kv_bytes_per_token")
    )
    ratio_left: float = field(
        default=math.nan, metadata=unit("", "output over input that section 13 leaves at the short context")
    )
    consistent: bool = field(default=True, metadata=unit("", "whether sections 13 and 14, read apart, can both be"))
    balanced: float = field(default=math.nan, metadata=unit("tokens", "joint reading: context L*"))
    joint_kv_bytes: float = field(
        default=math.nan, metadata=unit("B", "joint reading: KV bytes per token", key="joint_kv_bytes_per_token")
    )
    joint_batch: float = field(default=math.nan, metadata=unit("", "joint reading: best batch over batch, B*/B"))
    hbm_break_even: float = field(
        default=math.nan, metadata=unit("s", "section 15: holding in HBM against remaking, drain x L*")
    )
    hits: tuple[float, ...] = field(default=(), metadata=unit("", "section 15: hits that pay each write price"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return its figures."""
        figures = {"MFU of decode (14)": f"{self.decode_utilisation:.2g} by r = {self.ratio:.3g}"}
        if math.isfinite(self.kv_bytes):
            figures["KV bytes (13)"] = f"{self.kv_bytes:,.1f} B a token by L* = {self.threshold:,.0f}"
            figures["HBM against remaking (15)"] = show(self.hbm_break_even, "s")
            figures["13 and 14 together"] = (
                f"L* {self.balanced:,.0f}, {self.joint_kv_bytes:,.0f} B a token, B*/B {self.joint_batch:.3g}"
            )
            figures["apart"] = "consistent" if self.consistent else f"inconsistent: 13 leaves r = {self.ratio_left:.2g}"
        if self.hits:
            figures["hits to break even (15)"] = " and ".join(f"{hit_count:.2f}" for hit_count in self.hits)
        return "The lecture's reading, on an ideal machine", figures


def read_ideal(price_list: PriceList, ideal: Ideal) -> IdealReading:
    """Return the lecture's reading of a list."""
    base, tiers = price_list.base, price_list.service_rates()
    ratio = base.output / base.input if base.input > 0 else math.nan
    figures: dict[str, float] = {"ratio": ratio, "decode_utilisation": float(decode_utilisation(ratio))}
    consistent = True
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
