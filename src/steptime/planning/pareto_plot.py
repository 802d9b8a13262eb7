"""Pareto front of a plan as a picture: the cost of each speed, and the plan itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from steptime.errors import InputError
from steptime.hardware.rental_prices import usd
from steptime.picture_files import BLUE, GREEN, GREY, ORANGE, STYLE
from steptime.units import in_digits

if TYPE_CHECKING:
    from steptime.planning.plan_result import Plan

# Ticks of a logarithmic axis: 1, 2 and 5 of each power of ten.
TICKS = tuple(mantissa * 10.0**power for power in range(-4, 8) for mantissa in (1, 2, 5))


def draw_pareto_front(plan: Plan) -> Any:
    """Return the Pareto front of a plan as a matplotlib figure.

    Args:
        plan: A plan with its front. The vertical axis is dollars per million output tokens, or output per chip where no
            rent is known.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: The plan has fewer than two points in its front.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with_cost = math.isfinite(plan.usd_per_second)
    speeds = np.array([point.tokens_per_second_per_user for point in plan.front])
    heights = np.array(
        [point.usd_per_million_output_tokens if with_cost else point.tokens_per_second_per_chip for point in plan.front]
    )
    is_drawable = np.isfinite(speeds) & np.isfinite(heights) & (heights > 0)
    if is_drawable.sum() < 2:
        raise InputError("the plan has no Pareto front to draw: fewer than two layouts have an answer")
    speeds, heights = speeds[is_drawable], heights[is_drawable]

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4))
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.plot(speeds, heights, color=BLUE, lw=2, marker="o", ms=3.5, label="Pareto front: best layout at each mean speed")
        if plan.feasible:
            _mark_plan(axes, plan, with_cost=with_cost)
        if math.isfinite(plan.slo.tpot):
            axes.axvline(1 / plan.slo.tpot, color=GREY, ls="--", lw=1.2, label="speed limit")
        # A single user on a whole rack costs a hundred times the rest and would flatten the picture.
        lowest = [heights.min(), plan.ideal.usd_per_million_output_tokens if plan.ideal is not None else math.inf]
        floor = min(lowest)
        axes.set_ylim(floor * 0.7, min(heights.max() * 1.3, floor * 60)) if with_cost else None
        for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            axis.set_major_locator(matplotlib.ticker.FixedLocator([tick for tick in TICKS if ends[0] <= tick <= ends[1]]))
            axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.set_xlabel("output tokens per second per user")
        axes.set_ylabel("USD per million output tokens" if with_cost else "output tokens per second per chip")
        axes.legend(fontsize=8.5, framealpha=1, edgecolor="none", loc="upper left" if with_cost else "upper right")
        lengths = f"{plan.workload.input_tokens:,} tokens in, {plan.workload.output_tokens:,} out"
        title = f"{plan.model} on {plan.machines_text}, {lengths}"
        figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure


def _mark_plan(axes: Any, plan: Plan, *, with_cost: bool) -> None:
    """Draw the chosen layout with its 90 % ranges in both directions."""
    speed = plan.tokens_per_second_per_user
    height = plan.usd_per_million_output_tokens if with_cost else plan.tokens_per_second_per_chip
    limits = plan.cost_range if with_cost else plan.throughput_range
    if plan.speed_range and limits:
        axes.hlines(height, *plan.speed_range, color=ORANGE, lw=1.2, alpha=0.8)
        axes.vlines(speed, *limits, color=ORANGE, lw=1.2, alpha=0.8)
    words = f"{usd(height)} at {in_digits(speed, 3)} tok/s" if with_cost else f"{in_digits(height, 3)} tok/s per chip"
    ranges = ", with 90 % ranges" if plan.speed_range and limits else ""
    axes.plot(speed, height, "D", color=ORANGE, ms=8, mec="white", mew=1.2, zorder=5, label=f"this plan: {words}{ranges}")
    if plan.ideal is not None:
        bound = plan.ideal.usd_per_million_output_tokens if with_cost else plan.ideal.tokens_per_second_per_chip
        axes.plot(
            plan.ideal.tokens_per_second_per_user,
            bound,
            "*",
            color=GREEN,
            ms=11,
            mec="white",
            label="the same layout without losses",
        )
