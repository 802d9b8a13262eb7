"""Best predicted layouts against best measured ones; write docs/fronts.md: `python docs/fit_fronts.py RUNS.csv ...`.

A front is a model on a system with an engine. Runs of at least three of its layouts were measured with equal formats and
lengths. At equal speed per user, the best predicted throughput is compared with the best measured one. What is best of many
predictions is too good on average: the mean and the deviation of that optimism widen the cost range of a plan
(`steptime.planning.plan_intervals`). Each model is scored by figures of the others.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steptime.units import percent
from steptime.validation.predictions import predict
from steptime.validation.run_table import LOOPS, read_runs, run_kind

HERE = Path(__file__).parent
FRONT, SAME = ("model", "system", "engine"), ("weight_dtype", "expert_dtype", "input_tokens", "output_tokens")
LAYOUT = ("tp", "pp", "dp", "ep")
LEAST_LAYOUTS = 3
# Speeds of a group at which layouts are compared.
SPEEDS = 9
WIDTH = 140
# Share of the fronts that a range is to hold, and the deviations of a normal law on each side of it.
HELD, DEVIATIONS = 0.9, 1.645


@dataclass(frozen=True, slots=True)
class Point:
    """Speeds at which one layout was measured and predicted, and throughputs with the predicted range [tok/s per chip]."""

    measured: tuple[float, float]
    predicted: tuple[float, float]
    limits: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """The layouts of a group at one speed per user.

    `best` is the best predicted over the best measured throughput. The layout with the best prediction has `chosen`, its
    predicted over its measured throughput, and `reached`, its measured over the best measured throughput. `limits` are the ends
    of the predicted range over the best measured throughput.
    """

    best: float
    chosen: float
    reached: float
    limits: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Front:
    """Comparisons of one model on one system with one engine."""

    model: str
    system: str
    engine: str
    layouts: int
    points: tuple[Compared, ...]

    def median(self, name: str) -> float:
        """Return the median of a figure over the speeds."""
        return float(np.nanmedian([getattr(point, name) for point in self.points]))

    def held(self, mean: float = 0.0, deviation: float = 0.0) -> float:
        """Return the share of speeds at which the range holds the best measured throughput, moved and widened."""
        return float(np.mean([holds(point, mean, deviation) for point in self.points]))


def holds(point: Compared, mean: float, deviation: float) -> bool:
    """Whether a range holds the best measured throughput.

    Args:
        point: Comparison.
        mean: Mean optimism of the logarithm.
        deviation: Its standard deviation.
    """
    low, high = (math.log(end / point.best) for end in point.limits)
    off = -math.log(point.best) + mean
    extra = (DEVIATIONS * deviation) ** 2
    return -math.sqrt(low**2 + extra) <= off <= math.sqrt(high**2 + extra)


def fronts(rows: Sequence[Mapping[str, str]]) -> list[Front]:
    """Group runs into fronts and compare their layouts."""
    found = predict([dict(row) for row in rows])
    groups: dict[Any, dict[Any, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for i, row in enumerate(rows):
        if run_kind(row) not in LOOPS or found.reason[i] or not row["ttft_s"] or not row["tpot_s"]:
            continue
        # An empty size is one.
        sizes = tuple(int(float(row[name] or 1)) for name in LAYOUT)
        chips, output = math.prod(sizes[:3]), float(row["output_tokens"])

        def shown(ttft: float, tpot: float, load: float = float(row["concurrency"]) / chips, output: float = output) -> Any:
            return 1 / tpot, load * output / (ttft + output * tpot)

        key = tuple(row[name] for name in FRONT), tuple(row[name] for name in SAME)
        groups[key][sizes].append(
            Point(
                shown(float(row["ttft_s"]), float(row["tpot_s"])), shown(float(found.ttft[i]), float(found.tpot[i])),
                (float(found.output_tok_s_low[i]) / chips, float(found.output_tok_s_high[i]) / chips),
            )
        )  # fmt: skip
    points, counts = defaultdict(list), defaultdict(set)
    for (front, _), layouts in groups.items():
        if len(layouts) >= LEAST_LAYOUTS:
            points[front] += compared(layouts)
            counts[front] |= set(layouts)
    return [Front(*front, len(counts[front]), tuple(points[front])) for front in sorted(points) if points[front]]


def compared(layouts: Mapping[Any, list[Point]]) -> list[Compared]:
    """Compare the layouts of a group at speeds that both predictions and runs of some reach."""
    curves = {
        name: (
            _curve(points, lambda point: (*point.measured,)),
            _curve(points, lambda point: (*point.predicted, *point.limits)),
        )
        for name, points in layouts.items()
    }
    sides = [[pair[side] for pair in curves.values()] for side in (0, 1)]
    slowest = max(min(curve[0, 0] for curve in side) for side in sides)
    fastest = min(max(curve[0, -1] for curve in side) for side in sides)
    out = []
    for speed in np.geomspace(slowest, fastest * 0.999, SPEEDS) if slowest < fastest else ():
        measured = {name: _at(pair[0], speed) for name, pair in curves.items()}
        predicted = {name: _at(pair[1], speed) for name, pair in curves.items()}
        most = max(float(values[0]) for values in measured.values() if len(values))
        winner = max((name for name in predicted if len(predicted[name])), key=lambda name: float(predicted[name][0]))
        rate, *ends = (float(value) for value in predicted[winner])
        own = float(measured[winner][0]) if len(measured[winner]) else math.nan
        # A layout that never reaches the speed is no choice for it.
        reached = own / most if math.isfinite(own) else 0.0
        if sum(len(values) > 0 for values in measured.values()) > 1:
            out.append(Compared(rate / most, rate / own, reached, (ends[0] / most, ends[1] / most)))
    return out


def _curve(points: list[Point], columns: Callable[[Point], tuple[float, ...]]) -> Any:
    """Return the columns of points as rows, by rising speed."""
    return np.array(sorted(columns(point) for point in points)).T


def _at(curve: Any, speed: float) -> Any:
    """Return the figures of a layout at a speed, between its runs; none beyond the fastest, those of the slowest below it."""
    speeds = curve[0]
    if speed > speeds[-1] * (1 + 1e-9):
        return np.zeros(0)
    return np.exp([np.interp(math.log(speed), np.log(speeds), np.log(row)) for row in curve[1:]])


def optimism(rows: Sequence[Front]) -> tuple[float, float]:
    """Return the mean of the optimism of a chosen layout, and the deviation with which its range holds enough of the fronts."""
    mean = float(np.mean([math.log(front.median("chosen")) for front in rows]))
    grid = np.arange(0, 1, 0.005)
    enough = (deviation for deviation in grid if np.mean([front.held(mean, deviation) for front in rows]) >= HELD)
    return mean, float(next(enough, grid[-1]))


def left_out(rows: Sequence[Front]) -> list[tuple[float, float]]:
    """Return the optimism for each front, from the fronts of other models."""
    by_model = {model: optimism([front for front in rows if front.model != model]) for model in {front.model for front in rows}}
    return [by_model[front.model] for front in rows]


def page(rows: Sequence[Front]) -> str:
    """Return the page."""
    mean, deviation = optimism(rows)
    others = left_out(rows)
    best = np.array([front.median("best") for front in rows])
    corrected = best / np.exp([other[0] for other in others])
    reached = np.array([front.median("reached") for front in rows])
    held = np.mean([front.held() for front in rows])
    widened = np.mean([front.held(*other) for front, other in zip(rows, others, strict=True)])

    def three(values: Any) -> str:
        return " | ".join(f"{value:.2f}" for value in np.quantile(values, [0.1, 0.5, 0.9]))

    lines = [
        "# Best predicted layouts against best measured ones",
        "",
        textwrap.fill(
            f"{len(rows)} fronts of {len({front.model for front in rows})} models (`docs/fit_fronts.py`): a model on "
            f"a system with an engine, with runs of at least {LEAST_LAYOUTS} layouts of equal formats and lengths. At "
            "equal speed per user, the best predicted throughput of a chip is compared with the best measured one, "
            "at nine speeds; a front has the median. The constants of engines were fitted to most of these runs; the "
            "correction for the optimism of a choice is that of the other models.",
            WIDTH,
        ),
        "",
        "| | 10 of 100 | median | 90 of 100 |",
        "|---|---:|---:|---:|",
        f"| best predicted over best measured | {three(best)} |",
        f"| the same, corrected for optimism | {three(corrected)} |",
        f"| measured throughput of the layout that is predicted best, over the best measured | {three(reached)} |",
        "",
        textwrap.fill(
            f"The layout with the best prediction delivers {percent(1 - math.exp(-mean), 1)} less than predicted on average: "
            "what is best of several predictions is too good. Its throughput at equal concurrency has a 90 % range. "
            f"This range holds the best measured throughput at {percent(held)} of the speeds: a small error of a step "
            f"changes the batch at equal speed. With a further standard deviation of {percent(deviation)}, each from "
            f"other models, it holds {percent(widened)}. Plans that search a layout have both in their ranges of cost and "
            "throughput.",
            WIDTH,
        ),
        "",
        "| model | system | engine | layouts | best predicted / best measured | choice reaches | inside range | widened |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for front, other in zip(rows, others, strict=True):
        lines.append(
            f"| {front.model} | {front.system} | {front.engine} | {front.layouts} | {front.median('best'):.2f} | "
            f"{percent(front.median('reached'))} | {percent(front.held())} | {percent(front.held(*other))} |"
        )
    return "\n".join(lines) + "\n"


def main(paths: Sequence[str]) -> None:
    """Write the page and print the figures."""
    rows = fronts([row for path in paths for row in read_runs(path, skip_bad=True)[0]])
    print("mean {:.3f}, deviation {:.3f}".format(*optimism(rows)))
    (HERE / "fronts.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
