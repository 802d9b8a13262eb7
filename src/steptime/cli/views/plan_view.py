"""Text of a plan: the answer, layout, time by operator, memory, and alternatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.step_view import TERM_COLOURS, memory_bar, own_runs, resource_table
from steptime.cli.views.terminal_plots import front_plot
from steptime.cli.views.widgets import Grid, bar, beyond_runs, heading, notes, ranged, share_table, table
from steptime.hardware.energy import counted_by, power_in_words
from steptime.hardware.rental_prices import origin_in_words, usd
from steptime.physics.layout import Layout, show_layout
from steptime.physics.uncertainty import SEPARATE_POOLS
from steptime.planning.elasticity import IN_WORDS
from steptime.planning.plan_result import (
    Alternative,
    Plan,
    Point,
    chosen_point,
    cost_changes,
    mean_resources,
    mean_terms,
    runner_up_dearer,
)
from steptime.planning.plan_search import AS_CHEAP
from steptime.planning.workload import step_yield
from steptime.units import counted, in_digits, show

# Main figures of a plan: name, field, and the function that writes its value.
FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("USD/M output", "usd_per_million_output_tokens", usd),
    ("Speed/user", "tokens_per_second_per_user", lambda x: f"{in_digits(x)} tok/s"),
    ("First token", "ttft", lambda x: show(x, "s")),
    ("Output/chip", "tokens_per_second_per_chip", lambda x: f"{in_digits(x)} tok/s"),
)
AXES = {
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "dp": "data-parallel ranks of attention",
    "ep": "expert-parallel ranks",
    "cp": "context-parallel ranks",
    "mb": "micro-batches in flight",
    "x": "replicas",
    "red": "redundant experts",
}
# Below this probability of meeting a limit, the answer points to --sure.
LIKELY = 0.9


def has_rent(plan: Plan) -> bool:
    """Return whether the plan has a cost.

    Args:
        plan: A plan.

    Returns:
        Whether the rent of its chips is known.
    """
    return math.isfinite(plan.usd_per_second)


def plan_view(plan: Plan, width: int, replay: Sequence[RenderableType] = (), *, full: bool = False) -> RenderableType:
    """Return a plan as text: the answer, its figures and layout, what limits it, and with `full` everything else.

    Args:
        plan: A plan, feasible or not.
        width: Columns of the terminal.
        replay: Lines on the simulation of the plan, printed after the answer.
        full: Whether to add memory, time by operator, the Pareto front, elasticities and alternatives.

    Returns:
        Something that a console prints.
    """
    # Without a plan, the reason comes first; the Pareto front shows the possible speeds.
    if not plan.feasible:
        parts: list[RenderableType] = [_impossible(plan), *notes(plan.warnings)]
        return Group(*parts, Text(), front_plot(plan, width)) if full and plan.front else Group(*parts)
    parts = [_answer(plan), *replay, _figure_table(plan), _pool_table(plan), *notes(_warnings(plan)), *_money(plan, full=full)]
    if plan.speculation.drafts:
        parts.append(Text(f"Speculative decoding: {plan.speculation.text}."))
    parts.append(Text(plan.why, style="bold"))
    if not full:
        return Group(*parts)

    # The tables of --full.
    parts += [_legend(plan), *_totals(plan), *_memory_bars(plan, width), Text(), _time_tables(plan, width), Text()]
    parts += [front_plot(plan, width), *_front_table(plan)]
    if has_rent(plan):
        parts += [Text(), _elasticity_table(plan, width)]
    return Group(*parts, *_alternative_table(plan), *_speculation_table(plan))


def _workload(plan: Plan) -> str:
    w = plan.workload
    cached = f" ({w.cached_share:.0%} cached)" if w.cached_share else ""
    return f"{counted(w.input_tokens, 'token')} in{cached}, {w.output_tokens:,} out"


def _impossible(plan: Plan) -> Text:
    subject = f"{plan.model} on {counted(plan.chips, 'chip')} of {plan.system}, {_workload(plan)}"
    return Text.assemble(("Not possible: ", "bold red"), f"{plan.reason}. Asked: {subject}.")


def _answer(plan: Plan) -> Text:
    """Say what the plan serves, on what, and for how much."""
    idle = f", {plan.idle_chips:,} of them idle" if plan.idle_chips else ""
    subject = f"Serve {plan.model} on {counted(plan.chips, 'chip')} of {plan.system}{idle}"
    if has_rent(plan):
        cost = ranged(plan.usd_per_million_output_tokens, plan.cost_range, usd)
        words = (f" for {cost} per million output tokens", " at full load, input included.")
    else:
        rate = ranged(plan.tokens_per_second_per_chip, plan.throughput_range, lambda x: f"{in_digits(x)} tok/s")
        words = (f" at {rate} per chip", ". Its rent is not known.")
    rate = f"{in_digits(plan.requests_per_second)} requests/s"
    return Text.assemble(
        (subject, "bold"), (words[0], "bold green"), f"{words[1]} {rate}: {_workload(plan)}; engine {plan.engine}."
    )


def _figures(plan: Plan) -> list[tuple[tuple[str, str, Callable[[float], str]], tuple[float, float] | None]]:
    """Return the main figures of a plan with their ranges; cost only if the rent is known."""
    ranges = (plan.cost_range, plan.speed_range, plan.ttft_range, plan.throughput_range)
    figures = list(zip(FIGURES, ranges, strict=True))
    return figures if has_rent(plan) else [figures[3], *figures[1:3]]


def _figure_table(plan: Plan) -> Grid:
    """Return the plan's figures with their ranges and limits, next to the same layout without losses and the runner-up."""
    limits = {
        "tokens_per_second_per_user": f"≥ {in_digits(1 / plan.slo.tpot)}" if math.isfinite(plan.slo.tpot) else "",
        "ttft": f"≤ {show(plan.slo.ttft, 's')}" if math.isfinite(plan.slo.ttft) else "",
    }
    chances = {"tokens_per_second_per_user": plan.slo_probability.get("tpot"), "ttft": plan.slo_probability.get("ttft")}
    comparisons = {"Ideal": plan.ideal, "Runner-up": plan.runner_up}
    points = {title: point for title, point in comparisons.items() if point is not None}
    figures = _figures(plan)
    has_limits = any(limits.values())
    has_ranges = any(limit_range for _, limit_range in figures)
    mine = "This plan (90 % range)" if has_ranges else "This plan"
    heads = ["", mine, *([f"Limit{' (chance)' if has_ranges else ''}"] if has_limits else []), *points]
    grid = table(*heads, numbers=range(1, len(heads)), first_to_go=range(len(heads) - 1, 2, -1))
    for (name, field, write), limit_range in figures:
        cells = [ranged(getattr(chosen_point(plan), field), limit_range, write, label="")]
        if has_limits:
            chance = chances.get(field) if limits.get(field) and has_ranges else None
            cells.append(limits.get(field, "") + (f" ({chance:.0%})" if chance is not None else ""))
        grid.add_row(name, *cells, *(write(getattr(point, field)) for point in points.values()))
    return grid


def _pool_table(plan: Plan) -> Grid:
    grid = table("Pool", "Replicas x chips", "Layout", "Batch", "Chunk", "Step", numbers=(1, 3, 4, 5), first_to_go=(4, 5))
    for pool in plan.pools:
        layout = Layout(
            **{name: getattr(pool.layout, name) for name in ("tp", "pp", "dp", "ep", "cp", "microbatches", "redundant_experts")}
        )
        grid.add_row(
            pool.role,
            f"{int(pool.layout.replicas)} x {int(pool.layout.chips)}",
            show_layout(layout),
            counted(pool.batch, "prompt") if pool.role == "prefill" else f"{in_digits(pool.batch)} seq",
            f"{pool.chunk:,} tok" if pool.chunk else "-",
            show(sum(mean_terms(pool).values()), "s"),
        )
    return grid


def _warnings(plan: Plan) -> list[str]:
    """Return the warnings of a plan."""
    warnings = list(plan.warnings)
    if plan.distance:
        warnings.append(beyond_runs(plan.distance))
    if SEPARATE_POOLS.words in plan.distance:
        warnings.append(
            "In public runs with separate pools, TTFT was 2.1 times the prediction (median); 3 of 4 runs are inside the range."
        )
    # Probability of the limits: promised by --sure, or low enough to name the option.
    if plan.sure is not None:
        warnings.append(f"The plan meets each limit with at least {plan.sure:.0%} probability (--sure {plan.sure:g}).")
    elif plan.slo_probability and plan.tpot_range is not None and min(plan.slo_probability.values()) < LIKELY:
        warnings.append("The plan meets its limits on average. --sure 0.9 plans for 90 % probability of each.")
    # Own runs change the plan: show it without them.
    if plan.unanchored is not None:
        before = plan.unanchored
        cost = f", {usd(before.usd_per_million_output_tokens)}" if has_rent(plan) else ""
        speed = f"{in_digits(before.tokens_per_second_per_user)} tok/s per user, first token {show(before.ttft, 's')}"
        warnings += [line.plain for line in own_runs(plan.anchor)]
        warnings.append(f"Without your runs, the same layout and batch: {speed}{cost}.")
    return warnings


def _money(plan: Plan, *, full: bool) -> list[Text]:
    """Return the rent with its kind, date and grade, and the energy with its basis."""
    lines = [f"Rent: {_rent(plan)}."] if has_rent(plan) else []
    if has_rent(plan) and full:
        lines.append(
            f"Share of the rent: {usd(plan.prefill_usd_per_million_tokens)} per million input tokens, "
            f"{usd(plan.decode_usd_per_million_tokens)} per million output tokens."
        )
    if full or math.isfinite(plan.electricity):
        lines.append(_energy(plan))
    return [Text(line) for line in lines if line]


def _rent(plan: Plan) -> str:
    note = f" ({plan.rent.note})" if plan.rent.note and plan.rent.kind != "given" else ""
    return f"{show(plan.usd_per_second, 'USD/s')} for {counted(plan.chips, 'chip')}, {origin_in_words(plan.rent)}{note}"


def _energy(plan: Plan) -> str:
    """Return the energy per token, its cost if a price is given, and whether the rent includes it."""
    joules, cost = plan.joules_per_output_token, plan.electricity_usd_per_million_output_tokens
    if not math.isfinite(joules):
        is_asked = math.isfinite(plan.electricity)
        return f"Energy: the power of {plan.system} is not known; set it per chip: --set power=1.5kW." if is_asked else ""
    words = f"Energy: {show(joules, 'J')} per output token, from {power_in_words(plan.power)}"
    if math.isfinite(cost):
        price = show(plan.electricity, "USD/J")
        words += f"; at {price} {usd(cost)} per million output tokens, {counted_by(plan.rent)}"
    return words + "."


def _legend(plan: Plan) -> Text:
    """Return the meaning of the letters in layouts."""
    texts: list[str] = [
        plan.layout_text,
        plan.runner_up.layout_text if plan.runner_up else "",
        *(p.layout_text for p in plan.front),
    ]
    used_axes = {word.rstrip("0123456789") for text in texts for word in text.split()}
    meanings = "; ".join(f"{axis}: {words}" for axis, words in AXES.items() if axis in used_axes)
    words = f"{meanings}." if meanings else "One chip: no layout is needed."
    if any(pool.role == "prefill" and pool.batch > 1 for pool in plan.pools):
        words += " Batch and step of the prefill pool are maxima; the mean prefill pass has fewer prompts and is shorter."
    return Text(words, style="bright_black")


def _totals(plan: Plan) -> list[Text]:
    """Return the load of the deployment, the runner-up, and the share of measured runs inside such ranges."""
    facts = [
        f"{in_digits(plan.requests_per_second)} requests/s",
        f"{in_digits(plan.concurrency)} requests in flight",
        f"{plan.utilisation:.0%} utilization of prefill",
    ]
    if plan.transfer_seconds:
        facts.append(f"{show(plan.transfer_seconds, 's')} of KV transfer per request")
    lines = [Text("; ".join(facts) + ".")]
    if plan.runner_up:
        runner_up = plan.runner_up
        lines.append(Text(f"Runner-up: {runner_up.layout_text}, batch {runner_up.batch:,}: {_compared_cost(plan)}."))
    if plan.interval_coverage:
        lines.append(Text(f"The 90 % range contains {'; '.join(plan.interval_coverage)}.", style="bright_black"))
    return lines


def _compared_cost(plan: Plan) -> str:
    """Compare the runner-up: in money, or in output per chip if the rent is not known."""
    cost_difference = runner_up_dearer(plan)
    if abs(cost_difference) < 0.0005:
        return "the same cost" if has_rent(plan) else "the same output per chip"
    if not has_rent(plan):
        change = cost_difference / (1 + cost_difference)
        return f"{abs(change):.1%} {'less' if change > 0 else 'more'} output per chip"
    if cost_difference > 0:
        return f"{cost_difference:.1%} more expensive"
    return f"{-cost_difference:.1%} cheaper; among layouts within {AS_CHEAP:.1%} in cost, the plan is the fastest"


def _memory_bars(plan: Plan, width: int) -> list[RenderableType]:
    capacity = show(float(plan.pools[0].memory.capacity), "B")
    names = {"serve": f"Memory of a chip, {capacity}"}
    return [
        memory_bar(pool.memory, width, names.get(pool.role, f"Memory of a {pool.role} chip, {capacity}")) for pool in plan.pools
    ]


def _time_tables(plan: Plan, width: int) -> RenderableType:
    server = plan.pools[-1]
    kind = "mean step, prefill chunks included" if server.mixed is not None else "decode step"
    step_tokens = float(step_yield(plan.workload, plan.speculation))
    title = f"Where the {show(plan.tpot, 's')} per token go ({kind})"
    if plan.speculation.drafts:
        title = f"Where the {show(plan.tpot * step_tokens, 's')} per step go ({kind}; {step_tokens:.3g} tokens per user)"
    return Group(
        heading(title),
        share_table(mean_terms(server), TERM_COLOURS, width, "Term"),
        resource_table(mean_resources(server), width),
    )


def _front_table(plan: Plan, max_rows: int = 7) -> list[RenderableType]:
    """Return some points of the Pareto front, evenly spaced in speed."""
    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return []
    heads = ["tok/s per user", "tok/s per chip", "USD/M out", "Batch", "Layout"]
    money = has_rent(plan)
    heads = heads if money else [head for head in heads if head != "USD/M out"]
    grid = table(*heads, numbers=range(len(heads) - 1), first_to_go=(3, 2) if money else (2,))
    # Points with equal ratios of speed cover the front better than equal differences.
    speed = np.log([p.tokens_per_second_per_user for p in points])
    marks = np.linspace(speed.max(), speed.min(), max_rows)
    for position in dict.fromkeys(int(np.argmin(np.abs(speed - mark))) for mark in marks):
        grid.add_row(*_front_row(points[position], money=money))
    return [grid]


def _front_row(point: Point, *, money: bool) -> list[str]:
    cost = [usd(point.usd_per_million_output_tokens)] if money else []
    speeds = [in_digits(point.tokens_per_second_per_user), in_digits(point.tokens_per_second_per_chip)]
    return [*speeds, *cost, f"{point.batch:,}", point.layout_text]


def _elasticity_table(plan: Plan, width: int) -> RenderableType:
    """Return the change of the cost for 10 % more of each figure."""
    grid = table("10 % more", "Cost changes by", "", numbers=(1,), first_to_go=(2,))
    changes = cost_changes(plan)
    largest = max((abs(change) for change in changes.values()), default=1.0) or 1.0
    cells = max(10, min(30, width - 44))
    for name, change in sorted(changes.items(), key=lambda item: item[1]):
        text = f"{change:+.1%}" if abs(change) >= 5e-4 else "0.0%"
        grid.add_row(IN_WORDS.get(name, name), text, bar(abs(change) / largest, cells, "green" if change < 0 else "red"))
    return Group(heading("Change of the cost with each figure"), grid)


def _change(alternative: Alternative, plan: Plan) -> str:
    """Return the change of the cost, or of the output per chip if the rent is not known."""
    change = -alternative.saving if has_rent(plan) else 1 / (1 - alternative.saving) - 1
    return f"{change:+.1%}" if abs(change) >= 5e-4 else "0.0%"


def _alternative_table(plan: Plan) -> list[RenderableType]:
    """Return the alternatives: other formats, more chips, other pools, speculative decoding."""
    if not plan.alternatives:
        return []
    grid = table(
        "Alternative", "Cost changes by" if has_rent(plan) else "Output per chip", "Layout", numbers=(1,), first_to_go=(2,)
    )
    for alternative in plan.alternatives:
        grid.add_row(alternative.option or alternative.words, _change(alternative, plan), alternative.layout_text)
    words = "Searched only near the chosen layout; a separate plan may find a better layout."
    return [Text(), heading("Alternatives"), grid, Text(words, style="bright_black")]


def _speculation_table(plan: Plan) -> list[RenderableType]:
    """Return TPOT and rate with and without speculative decoding, by batch."""
    if not plan.drafted:
        return []
    grid = table(
        "Batch", "Plain TPOT", "Speculative", "Plain rate", "Speculative", "Speed-up",
        numbers=range(6), first_to_go=(3, 4),
    )  # fmt: skip
    for row in plan.drafted:
        times, rates = (row.tpot_without, row.tpot), (row.rate_without, row.rate)
        cells = [*(show(x, "s") for x in times), *(show(x, "tok/s") for x in rates), f"{row.speed_up:.2f} x"]
        grid.add_row(f"{row.batch:,}", *cells)
    words = "TPOT and rate per chip of decode steps without prefill chunks."
    return [Text(), heading("Speculative decoding at each batch"), grid, Text(words, style="bright_black")]


def launch_view(plan: Plan, engines: Iterable[str]) -> RenderableType:
    """Return launch commands, one block per engine.

    Args:
        plan: A feasible plan.
        engines: Names of engines.

    Returns:
        Something that a console prints.
    """
    from steptime.launch.launch_commands import launch_commands
    from steptime.launch.serve_args import NAMES

    parts: list[RenderableType] = []
    for engine in engines:
        parts += [
            Text(),
            heading(NAMES[engine]),
            *(Text(line, no_wrap=True, overflow="ignore") for line in launch_commands(plan, engine)),
        ]
    return Group(*parts)
