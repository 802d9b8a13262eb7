r"""The highest request rate of a deployment within limits, from the curve of its figures by rate.

Limits select a rate on a curve that they do not change. Its points are runs at rates of one grid, with the same draws and
with starts that follow from the rate. Between two points a figure follows a power law. A wider limit therefore never selects
a lower rate, and twice the chips with twice the rate have the same points.

The first curve of a candidate has one short run at each rate. The best candidates get a second curve: the mean of long runs
with other draws, which chose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from steptime.planning.simulated_rate import Loop, Run
from steptime.simulation.run_metrics import MOST_GROWTH
from steptime.workload.workload import Slo

# Ratio of neighbouring rates: fourteen steps double the rate.
GRID = 2 ** (1 / 14)
# Most rates of one curve that are run for a limit, and the largest step between two of them.
MOST_RATES, MOST_STEPS = 24, 8
# Steps down where a figure has no value, because a queue grows.
STEPS_FROM_GROWTH = 3
# Largest ratio of a run to its limits for which its means settle, and a run at a higher rate is added.
FAR_BEYOND = 1.5
# At a rate higher by `Loop.above`, no figure may be further beyond its limit than this ratio, and the mean TTFT may rise by
# that one: where a queue is so steep, no run shows what another one will.
CONFIRM_WORST, STEEP_TTFT = 1.5, 2.5
# Sequences at the start of the run at that rate, over those at the confirmed one. They must become fewer, apart from chance.
CONFIRM_START, CHANCE_GROWTH = 1.4, 0.01
# Runs in which means must settle, and the ratio to those at the start up to which they have.
SETTLING_RUNS, UNSETTLED = 4, 1.25
# Figures of a run between two rates of a curve that follow power laws, and those that are interpolated in the rate.
POWERS, LINES = ("ttft", "tpot", "mean_ttft", "mean_tpot"), ("batch", "growth")


def ratios(run: Run, slo: Slo) -> dict[str, float]:
    """Return each figure of a run over its limit.

    Args:
        run: Run, or the mean of runs at one rate.
        slo: Limits.

    Returns:
        Ratios by what they limit, at most 1 where the run meets it.
    """
    ttft, tpot = max(run.ttft, run.ttft_above / CONFIRM_WORST), max(run.tpot, run.tpot_above / CONFIRM_WORST)
    return {
        "first token": 0.0 if math.isinf(slo.ttft) else ttft / slo.ttft,
        "speed": 0.0 if math.isinf(slo.tpot) else tpot / slo.tpot,
        run.cause: run.saturation,
    }


def worst(run: Run, slo: Slo) -> float:
    """Return the largest of the ratios of a run: at most 1 if it meets all limits.

    Args:
        run: Run.
        slo: Limits.

    Returns:
        Ratio.
    """
    return max(ratios(run, slo).values())


class Curve:
    """Figures of one deployment by request rate.

    Args:
        run_at: Function from a place on the grid to the run at its rate, `GRID` to the power of the place [requests/s].
    """

    def __init__(self, run_at: Callable[[float], Run]) -> None:
        self.run_at = run_at
        self.points: dict[float, Run] = {}

    def point(self, place: float) -> Run:
        """Return the run at a place, which is made once.

        Args:
            place: Power of `GRID`; a whole or half number.

        Returns:
            The run.
        """
        if place not in self.points:
            self.points[place] = self.run_at(place)
        return self.points[place]

    def highest(self, slo: Slo, first: float, least: float = 0.0) -> Run | None:
        """Return the figures at the highest rate within the limits; `binding` names what a higher one would miss.

        Args:
            slo: Limits.
            first: First rate [requests/s].
            least: Rate below which none is sought [requests/s].

        Returns:
            The run; None where no rate above `least` meets the limits.
        """
        low, high, place = -math.inf, math.inf, place_below(max(first, least))
        for attempt in range(MOST_RATES):
            ratio = worst(self.point(place), slo)
            low, high = (max(low, place), high) if ratio <= 1 else (low, min(high, place))
            if high - low == 1 or (math.isinf(low) and GRID**high <= least):
                break
            place = self._next(low, high, slo, attempt)
            # No rate below the least one is of use, so that this one decides.
            if least and math.isinf(low):
                place = max(place, place_below(least))
        if math.isinf(low):
            return None
        if math.isinf(high):
            return replace(self.point(low), worst=worst(self.point(low), slo))
        return self._between(int(low), slo)

    def _next(self, low: float, high: float, slo: Slo, attempt: int) -> int:
        """Return the next place: between those that enclose the highest rate, or beyond the one that does not."""
        if math.isinf(low) or math.isinf(high):
            last_place, sign = (high, -1) if math.isinf(low) else (low, 1)
            ratio = max(worst(self.point(last_place), slo), 1e-9)
            steps = STEPS_FROM_GROWTH if math.isinf(ratio) else abs(math.log(ratio)) / math.log(GRID) / 2
            # The first steps are short, because the first rate is mostly a good guess.
            return int(last_place + sign * min(max(round(steps), 2 * attempt - 1, 1), MOST_STEPS))
        below, above = worst(self.point(low), slo), worst(self.point(high), slo)
        # A figure that jumps is found by halving.
        part = 0.5 if math.isinf(above) or attempt % 2 else _crossing(below, above)
        return int(min(max(math.floor(low + part * (high - low)), low + 1), high - 1))

    def _between(self, low: int, slo: Slo) -> Run:
        """Return the figures at the highest rate between a place within the limits and the next one, which is not."""
        below, above, width = self.point(low), self.point(low + 1), 1.0
        names = ratios(above, slo)
        if math.isinf(above.saturation):
            # A queue that grows has no figures, so that the rate is enclosed more closely.
            half = self.point(low + 0.5)
            binding = above.cause
            if worst(half, slo) <= 1:
                return replace(half, worst=worst(half, slo), binding=binding)
            names = ratios(half, slo)
            if math.isinf(half.saturation):
                return replace(below, worst=worst(below, slo), binding=half.cause)
            above, width = half, 0.5
        before = ratios(below, slo) | {above.cause: below.saturation}
        part, binding = min((_crossing(before.get(name, 0.0), ratio), name) for name, ratio in names.items())
        # Rounding must not lift a figure above its limit.
        part *= 1 - 1e-9
        run = blend(below, above, part, GRID ** (low + width * part))
        return replace(run, worst=worst(run, slo), binding=binding)


def place_below(rate: float) -> int:
    """Return the place of the highest rate of the grid that is not above a rate.

    Args:
        rate: Rate [requests/s].

    Returns:
        Place.
    """
    return math.floor(math.log(rate) / math.log(GRID) + 1e-9)


def _crossing(below: float, above: float) -> float:
    """Return the part of the way, in logarithms, at which a power law through two ratios is at 1; 1 where it is not."""
    if above <= 1:
        return 1.0
    if below <= 0 or math.isinf(above):
        return 0.5
    return min(max(-math.log(below) / math.log(above / below), 0.0), 1.0)


def blend(below: Run, above: Run, part: float, rate: float) -> Run:
    """Return the figures of a run between two rates.

    Args:
        below: Run at the lower rate.
        above: Run at the higher rate.
        part: Part of the way between them, in logarithms of the rate.
        rate: Rate [requests/s].

    Returns:
        The run.
    """

    def power(name: str) -> float:
        first, second = getattr(below, name), getattr(above, name)
        return float(first ** (1 - part) * second**part) if 0 < second < math.inf else float(first)

    def line(first: float, second: float) -> float:
        return first + part * (second - first)

    figures: dict[str, Any] = {name: power(name) for name in (*POWERS, "ttft_above", "tpot_above")}
    figures |= {name: line(getattr(below, name), getattr(above, name)) for name in LINES}
    busy = tuple(line(*shares) for shares in zip(below.busy, above.busy, strict=True))
    return replace(below, rate=rate, busy=busy, saturation=min(below.saturation, 1.0), **figures)


def confirmed_by(loops: Sequence[Loop], slo: Slo, percentile: str, start: Curve, far: float = FAR_BEYOND) -> Curve:
    """Return the curve of runs with other draws than those that chose a candidate.

    Near saturation, a few percent of load decide whether a queue grows. Therefore a slightly higher rate must not be far
    beyond the limits, and a run that starts with more sequences there must end with fewer.

    Args:
        loops: The deployment with several draws.
        slo: Limits, far beyond which a run need not settle.
        percentile: Percentile of the limits.
        start: Curve whose means the runs start with.
        far: Ratio of a run to its limits from which it counts as far beyond them.

    Returns:
        The curve.
    """

    def run_at(place: float) -> Run:
        rate, first = GRID**place, start.point(place)
        tpot, ttft = first.mean_tpot, first.mean_ttft
        # A run without figures misses its limits as it is. Its first tokens never come.
        if math.isinf(ttft):
            return first
        for _ in range(SETTLING_RUNS):
            first = loops[0].run(rate, slo, percentile, tpot, ttft, always_decode=True)
            if worst(first, slo) > far:
                return first
            remaining = [loop.run(rate, slo, percentile, tpot, ttft, always_decode=True) for loop in loops[1:]]
            mean = mean_run([first, *remaining])
            # A run that starts with fewer requests than it ends with has not settled: the next one starts with more.
            if mean.mean_ttft <= UNSETTLED * ttft and mean.mean_tpot <= UNSETTLED * tpot:
                return with_surge(mean, loops[0], slo, percentile, tpot, ttft)
            tpot, ttft = max(tpot, mean.mean_tpot), max(ttft, mean.mean_ttft)
        return replace(mean, saturation=math.inf, cause="saturation")

    return Curve(run_at)


def with_surge(mean: Run, loop: Loop, slo: Slo, percentile: str, tpot: float, ttft: float) -> Run:
    """Return a mean run with the figures at a slightly higher rate, which starts with more sequences.

    Near saturation, the number of sequences settles over many lifetimes. Where it falls, it settles below that at the start.

    Args:
        mean: Mean of runs at a rate.
        loop: The deployment with one of their draws.
        slo: Limits.
        percentile: Percentile of the limits.
        tpot: Mean time per output token at the start [s].
        ttft: Mean time to first token at the start [s].

    Returns:
        The run; its saturation includes how much steeper the higher rate is.
    """
    above = loop.run(loop.above * mean.rate, slo, percentile, CONFIRM_START * tpot, ttft)
    queue = "prefill rate"
    if len(mean.busy) == 1:
        queue = loop.what_is_full(max(above.batch, mean.batch) / loop.parts)
    saturation, cause = max(
        (mean.saturation, mean.cause),
        (mean.growth / MOST_GROWTH, "saturation"),
        (above.saturation / CONFIRM_WORST, above.cause),
        (above.mean_ttft / (STEEP_TTFT * mean.mean_ttft), queue),
        (above.growth / CHANCE_GROWTH, "saturation"),
    )
    return replace(mean, saturation=saturation, cause=cause, ttft_above=above.ttft, tpot_above=above.tpot)


def mean_run(runs: Sequence[Run]) -> Run:
    """Return the mean of runs at one rate.

    Args:
        runs: Runs.

    Returns:
        A run; its cause is that of the most saturated one.
    """
    names = ("ttft", "tpot", "mean_ttft", "mean_tpot", "batch", "growth", "saturation")
    figures: dict[str, Any] = {name: float(np.mean([getattr(run, name) for run in runs])) for name in names}
    figures["tpot_error"] = math.sqrt(sum(run.tpot_error**2 for run in runs)) / len(runs)
    busy = tuple(sum(shares) / len(runs) for shares in zip(*(run.busy for run in runs), strict=True))
    return replace(max(runs, key=lambda run: run.saturation), busy=busy, **figures)
