"""SLO check: whether a run meets its limits at a percentile, and its goodput."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.errors import UnknownName
from steptime.planning.workload import Slo
from steptime.result_base import Result, unit
from steptime.simulation.run_metrics import OVERLOADED, Answers, Percentiles
from steptime.units import show

PASSED, MISSED = "MET", "MISSED"
PER_TOKEN = "time per token"
# Share of requests that must be served.
PERCENTILES = {"mean": 1.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# Default percentile at which limits must be met.
DEFAULT_PERCENTILE = "p99"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judged(Result):
    """A run compared with its limits: MET or MISSED at a percentile."""

    verdict: str = field(metadata=unit("", "MET or MISSED"))
    is_met: bool = field(metadata=unit("", "whether the verdict is MET"))
    percentile: str = field(metadata=unit("", "percentile of the limits: mean, p50, p90, p95 or p99"))
    within: int = field(metadata=unit("requests", "requests that meet all their limits", key="requests_within"))
    sent: int = field(metadata=unit("requests", "requests that arrived", key="requests_sent"))
    ttft: float = field(metadata=unit("s", "time to first token at the percentile"))
    ttft_limit: float = field(metadata=unit("s", "limit on the time to first token; null: no limit, or limits by class"))
    tpot: float = field(metadata=unit("s", "time per output token at the percentile"))
    tpot_limit: float = field(metadata=unit("s", "limit on the time per output token; null: no limit, or limits by class"))
    why: str = field(metadata=unit("", "reason for the verdict"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the reason.

        Returns:
            Title with the verdict; reason and number of requests by label.
        """
        return f"Limits: {self.verdict} {at_percentile(self.percentile)}", {"because": self.why, "requests": self.count}

    @property
    def count(self) -> str:
        """How many requests meet all their limits, in words."""
        if not self.within:
            return f"0 of {self.sent:,} requests meet all limits"
        share = self.within / self.sent
        percent = "fewer than 0.1%" if share < 0.001 else f"{share:.1%}"
        return f"{self.within:,} of {self.sent:,} requests ({percent}) meet all limits"


def at_percentile(percentile: str) -> str:
    """Return the percentile of limits in words: "at p99", or "on average".

    Args:
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        Words.
    """
    return "on average" if percentile == "mean" else f"at {percentile}"


def check_percentile(percentile: str) -> str:
    """Return a percentile if it is a valid one.

    Args:
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        The percentile.

    Raises:
        UnknownName: It is not one of these.
    """
    if not isinstance(percentile, str) or percentile not in PERCENTILES:
        raise UnknownName("percentile", percentile, PERCENTILES, f"Known: {', '.join(PERCENTILES)}.")
    return percentile


def judge(answers: Answers, slo: Slo | tuple[Slo, ...], percentile: str = DEFAULT_PERCENTILE) -> Judged:
    """Compare a run with its limits at a percentile.

    With limits by class, each class is compared with its own. The share of rejected requests must not exceed
    what the percentile leaves out; with the mean, it must be 0. A run whose queue grows meets no limit,
    because it would miss the limits later.

    Args:
        answers: Figures of the run.
        slo: Limits, or limits by class.
        percentile: "mean", "p50", "p90", "p95" or "p99".

    Returns:
        The verdict and its reason.
    """
    share, figures, late = PERCENTILES[check_percentile(percentile)], [], False
    for name, ttft, tpot, limits in _figures_by_class(answers, slo):
        for metric, times, limit in (("first token", ttft, limits.ttft), (PER_TOKEN, tpot, limits.tpot)):
            value = getattr(times, percentile)
            if math.isfinite(limit) and not math.isnan(value):
                late |= value > limit
                sign = ">" if value > limit else "≤"
                figures.append(f"{name}{metric} {show(value, 's')} {sign} {show(limit, 's')}{_as_speed(metric, limit)}")

    # A run that rejects or accumulates requests meets no limit, even if the served ones are fast.
    if short := answers.served < share * answers.sent or not answers.served:
        figures.append(f"{answers.rejected / max(answers.sent, 1):.1%} rejected: {answers.rejected_why}")
    if grows := answers.verdict == OVERLOADED and answers.served > 0:
        figures.append("the queue grows during the run, and so do all waits")
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


def _as_speed(metric: str, limit: float) -> str:
    """Return a limit on the time per token as a speed, in brackets."""
    return f" ({show(1 / limit, 'tok/s')})" if metric == PER_TOKEN and limit > 0 else ""


def _figures_by_class(answers: Answers, slo: Slo | tuple[Slo, ...]) -> list[tuple[str, Percentiles, Percentiles, Slo]]:
    """Return pairs of latencies and limits: of all requests, or of each class."""
    if isinstance(slo, Slo):
        return [("", answers.ttft, answers.tpot, slo)]
    if not answers.classes:
        return [("", answers.ttft, answers.tpot, slo[0])]
    return [(f"class {c.rank}: ", c.ttft, c.tpot, slo[min(c.rank, len(slo) - 1)]) for c in answers.classes]
