"""Whether a run meets its limits at a percentile, and how many of its requests do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.errors import UnknownName
from steptime.planning.workload import Slo
from steptime.result_base import Result, unit
from steptime.simulation.run_metrics import OVERLOADED, Answers, Percentiles
from steptime.units import show

PASSED, MISSED = "MET", "MISSED"
PERCENTILES = {"mean": 1.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # share of requests that must be served
DEFAULT_PERCENTILE = "p99"  # at which limits hold unless told


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judged(Result):
    """A run against its limits: MET or MISSED at a percentile, and how many of its requests meet all of theirs."""

    verdict: str = field(metadata=unit("", "MET or MISSED"))
    is_met: bool = field(metadata=unit("", "whether it is MET"))
    percentile: str = field(metadata=unit("", "at which the limits are held: mean, p50, p90, p95 or p99"))
    within: int = field(metadata=unit("requests", "that meet all their limits", key="requests_within"))
    sent: int = field(metadata=unit("requests", "that came", key="requests_sent"))
    ttft: float = field(metadata=unit("s", "time to first token at the percentile"))
    ttft_limit: float = field(metadata=unit("s", "its limit; null: none, or one for each class"))
    tpot: float = field(metadata=unit("s", "time per output token at the percentile"))
    tpot_limit: float = field(metadata=unit("s", "its limit; null: none, or one for each class"))
    why: str = field(metadata=unit("", "what it rests on"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the verdict, what it rests on, and how many requests meet their limits."""
        return f"Limits: {self.verdict} {at_percentile(self.percentile)}", {"because": self.why, "requests": self.count}

    @property
    def count(self) -> str:
        """How many requests meet all their limits, in words."""
        if not self.within:
            return f"none of {self.sent:,} requests meets all limits"
        share = self.within / self.sent
        percent = "fewer than 0.1%" if share < 0.001 else f"{share:.1%}"
        return f"{self.within:,} of {self.sent:,} requests ({percent}) meet all limits"


def at_percentile(percentile: str) -> str:
    """Say at which percentile limits hold: "at p99", or "in the mean"."""
    return "in the mean" if percentile == "mean" else f"at {percentile}"


def check_percentile(percentile: str) -> str:
    """Return a percentile; raise UnknownName for one that no limit can be held at."""
    if not isinstance(percentile, str) or percentile not in PERCENTILES:
        raise UnknownName("percentile", percentile, PERCENTILES, f"Known: {', '.join(PERCENTILES)}.")
    return percentile


def judge(answers: Answers, slo: Slo | tuple[Slo, ...], percentile: str = DEFAULT_PERCENTILE) -> Judged:
    """Return whether a run meets the limits at a percentile ("mean", "p50", "p90", "p95", "p99"), those of each class by class.

    No more requests may be rejected than the percentile leaves out, and none of a mean; and a run whose queue grows meets no
    limit: it would miss them later.
    """
    share, figures, late = PERCENTILES[check_percentile(percentile)], [], False
    for name, ttft, tpot, limits in _figures_by_class(answers, slo):
        for metric, times, limit in (("first token", ttft, limits.ttft), ("time per token", tpot, limits.tpot)):
            value = getattr(times, percentile)
            if math.isfinite(limit) and not math.isnan(value):
                late |= value > limit
                figures.append(f"{name}{metric} {show(value, 's')} (limit {show(limit, 's')}{', missed' * (value > limit)})")
    if short := answers.served < share * answers.sent or not answers.served:
        figures.append(f"{answers.rejected / max(answers.sent, 1):.1%} rejected: {answers.rejected_why}")
    if grows := answers.verdict == OVERLOADED and answers.served > 0:
        figures.append("the queue grows, and with it every wait")
    is_met, target = not (late or short or grows), slo[0] if isinstance(slo, tuple) and len(slo) == 1 else slo
    return Judged(
        verdict=PASSED if is_met else MISSED,
        is_met=is_met,
        percentile=percentile,
        within=round(answers.within_limits * answers.sent) if answers.sent else 0,
        sent=answers.sent,
        ttft=getattr(answers.ttft, percentile),
        ttft_limit=math.inf if isinstance(target, tuple) else target.ttft,
        tpot=getattr(answers.tpot, percentile),
        tpot_limit=math.inf if isinstance(target, tuple) else target.tpot,
        why="; ".join(figures),
    )


def _figures_by_class(answers: Answers, slo: Slo | tuple[Slo, ...]) -> list[tuple[str, Percentiles, Percentiles, Slo]]:
    """Return what is held to which limits: all requests to one pair, or each class to its own, with its name."""
    if isinstance(slo, Slo):
        return [("", answers.ttft, answers.tpot, slo)]
    if not answers.classes:
        return [("", answers.ttft, answers.tpot, slo[0])]
    return [(f"class {c.rank}: ", c.ttft, c.tpot, slo[min(c.rank, len(slo) - 1)]) for c in answers.classes]
