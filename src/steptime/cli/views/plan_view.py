"""What the terminal shows of a plan: the answer, its layout, where the time goes, and what would help."""

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
from steptime.hardware.rental_prices import kind_and_date, origin_in_words
from steptime.hardware.unit_cost import usd
from steptime.physics.extrapolation import SEPARATE_POOLS
from steptime.physics.layout import Layout, show_layout
from steptime.planning.elasticity import IN_WORDS
from steptime.planning.plan_result import (
    Plan,
    Point,
    chosen_point,
    cost_changes,
    mean_resources,
    mean_terms,
    runner_up_dearer,
)
from steptime.planning.plan_search import AS_CHEAP
from steptime.planning.speculative_config import step_yield
from steptime.units import counted, in_digits, show

FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("USD/M output tokens", "usd_per_million_output_tokens", usd),
    ("Speed for each user", "tokens_per_second_per_user", lambda x: f"{x:,.1f} tok/s"),
    ("First token, mean", "ttft", lambda x: show(x, "s")),
    ("Output per chip", "tokens_per_second_per_chip", lambda x: show(x, "tok/s")),
)
MEANING = "90 % range: of measured runs that were left out of the engine's fit, nine in ten lie in it."
AXES = {
    "tp": "tensor parallel ways",
    "pp": "pipeline stages",
    "dp": "attention groups",
    "ep": "expert parallel ways",
    "cp": "context parallel ways",
    "mb": "micro-batches in flight at once",
    "x": "copies",
    "red": "redundant experts",
}


def has_rent(plan: Plan) -> bool:
    """Whether money can be counted."""
    return math.isfinite(plan.usd_per_second)


def plan_view(plan: Plan, width: int, lead: Sequence[RenderableType] = ()) -> RenderableType:
    """Return everything that a plan says, what changes the answer first; `lead`: what a replay of it found."""
    parts: list[RenderableType] = [_question(plan), *notes(plan.warnings)]
    if not plan.feasible:
        parts.append(_impossible(plan))
        if plan.front:
            parts += [Text(), front_plot(plan, width)]
        return Group(*parts)
    parts += [
        *lead,
        _answer(plan),
        *_cost_lines(plan),
        *_trust(plan),
        *_draft_lines(plan),
        Text(),
        _pools(plan),
        _legend(plan),
        Text(),
        _comparison(plan),
    ]
    parts += [*_memory_bars(plan, width), Text()]
    parts += [_shares(plan, width), Text(), front_plot(plan, width), *_front_table(plan), Text(), Text(plan.why, style="bold")]
    if has_rent(plan):
        parts += [Text(), _changes(plan, width)]
    parts += _choices(plan)
    parts += _drafted(plan)
    return Group(*parts)


def plan_brief(plan: Plan, lead: Sequence[RenderableType] = ()) -> RenderableType:
    """Return the answer alone, behind what a replay of it found (`lead`)."""
    if not plan.feasible:
        return Group(_scenario_text(plan), *notes(plan.warnings), _impossible(plan))
    rows = []
    for (name, field, write), limits in _figures(plan):
        rent = f"; {kind_and_date(plan.rent)}" if name.startswith("USD") else ""
        rows.append((name, ranged(getattr(chosen_point(plan), field), limits, write) + rent))
    rows.append(("Layout", f"{plan.layout_text}, batch {plan.pools[-1].batch:,}, on {_used(plan)}, engine {plan.engine}"))
    lines = (Text(f"{name}: {value}") for name, value in rows)
    energy_lines = _cost_lines(plan)[has_rent(plan) :] if math.isfinite(plan.electricity) else []
    return Group(
        _scenario_text(plan),
        *notes(plan.warnings),
        *lead,
        *lines,
        *energy_lines,
        *_trust(plan, brief=True),
        *_draft_lines(plan),
    )


def _draft_lines(plan: Plan) -> list[Text]:
    """Say what is drafted and accepted, where anything is."""
    return [Text(f"Drafts: {plan.speculation.text}.")] if plan.speculation.drafts else []


def _used(plan: Plan) -> str:
    """Say how many chips are rented, and how many of them idle."""
    return counted(plan.chips, "chip") + (f", {plan.idle_chips:,} of them idle" if plan.idle_chips else "")


def _figures(plan: Plan) -> list[tuple[tuple[str, str, Callable[[float], str]], tuple[float, float] | None]]:
    """Return what a plan is judged by, with the ranges; money only where it can be counted."""
    ranges = (plan.cost_range, plan.speed_range, plan.ttft_range, plan.throughput_range)
    figures = list(zip(FIGURES, ranges, strict=True))
    return figures if has_rent(plan) else [figures[3], *figures[1:3]]


def _impossible(plan: Plan) -> Text:
    return Text.assemble(("Not possible: ", "bold red"), plan.reason + ".")


def _question(plan: Plan) -> Text:
    real = "with its losses; --engine ideal gives the bound that physics sets"
    meaning = "the bound that physics sets" if plan.engine == "ideal" else real
    return _scenario_text(plan).append(f". Engine: {plan.engine}, {meaning}.")


def _scenario_text(plan: Plan) -> Text:
    w, limits = plan.workload, []
    if math.isfinite(plan.slo.tpot):
        limits.append(f"at least {in_digits(1 / plan.slo.tpot, 4)} tok/s per user")
    if math.isfinite(plan.slo.ttft):
        limits.append(f"first token within {show(plan.slo.ttft, 's')}")
    cached = f" ({w.cached_share:.0%} cached)" if w.cached_share else ""
    text = f"{counted(plan.chips, 'chip')}, {counted(w.input_tokens, 'token')} in{cached}, {w.output_tokens:,} out"
    scenario = Text.assemble((plan.model, "bold"), " on ", (plan.system, "bold"), f": {text}")
    if limits:
        scenario.append("; " + ", ".join(limits))
    return scenario


def _answer(plan: Plan) -> Text:
    if not has_rent(plan):
        rate = ranged(plan.tokens_per_second_per_chip, plan.throughput_range, lambda x: show(x, "tok/s"))
        return Text.assemble((f"{rate} of output per chip", "bold green"), ", the most within the limits.")
    if plan.cost_range is None:
        spread = f"from {usd(plan.cost_bounds[0])}, were all overlapped, to {usd(plan.cost_bounds[1])}, were nothing"
    else:
        spread = f"90 % range {usd(plan.cost_range[0])} to {usd(plan.cost_range[1])}"
    if plan.ideal is not None:
        spread += f"; ideal {usd(plan.ideal.usd_per_million_output_tokens)}"
    return Text.assemble(
        (f"{usd(plan.usd_per_million_output_tokens)} per million output tokens", "bold green"),
        f", prompts included ({spread}). ",
        f"Billed each for itself: {usd(plan.prefill_usd_per_million_tokens)} per million tokens in and "
        f"{usd(plan.decode_usd_per_million_tokens)} per million out.",
    )


def _cost_lines(plan: Plan) -> list[Text]:
    """Say what the chips cost and draw: the rent with its kind, date and grade, and energy with its basis."""
    lines = [f"Rent: {_rent(plan)}."] if has_rent(plan) else []
    return [Text(line) for line in (*lines, _energy(plan)) if line]


def _trust(plan: Plan, *, brief: bool = False) -> list[Text]:
    """Say how likely the plan meets its limits, and in which ways it is unlike what was measured; `brief`: in a line or two."""
    names = {"tpot": "the speed", "ttft": "the first token"}
    likely = " and ".join(f"{share:.0%} for {names[name]}" for name, share in plan.slo_probability.items())
    aimed = f", as --sure {plan.sure:g} asks" if plan.sure is not None else "; --sure 0.9 plans for nine in ten"
    has_chances = likely and plan.tpot_range is not None
    lines = [f"Chance of meeting the limits: {likely}{'' if brief else aimed}."] if has_chances else []
    if plan.distance:
        wider = f"Ranges are wider here: {beyond_runs(plan.distance)}"
        if SEPARATE_POOLS.words in plan.distance:
            wider += " First tokens of public pools came 2.1 times as late as predicted at the median; 3 in 4 lie in the range."
        lines.append(f"Unlike what was measured: {', '.join(plan.distance)}." if brief else wider)
    return [*_anchored(plan), *(Text(line) for line in lines)]


def _anchored(plan: Plan) -> list[Text]:
    """Say by which runs of one's own the times were set right, and what they were before."""
    before = plan.unanchored
    if before is None:
        return []
    times = f"{before.tokens_per_second_per_user:,.1f} tok/s for each user, first token {show(before.ttft, 's')}"
    cost = f", {usd(before.usd_per_million_output_tokens)}" if has_rent(plan) else ""
    return [*own_runs(plan.anchor), Text(f"Before them, the same layout and batch: {times}{cost}.")]


def _rent(plan: Plan) -> str:
    note = f" ({plan.rent.note})" if plan.rent.note and plan.rent.kind != "given" else ""
    return f"{show(plan.usd_per_second, 'USD/s')} for {counted(plan.chips, 'chip')}, {origin_in_words(plan.rent)}{note}"


def _energy(plan: Plan) -> str:
    """Say what a token takes of energy, what that costs where a price is given, and how far the rent pays for it."""
    joules, cost = plan.joules_per_output_token, plan.electricity_usd_per_million_output_tokens
    if not math.isfinite(joules):
        has_price = math.isfinite(plan.electricity)
        return f"Energy: no power of {plan.system} is known; give that of a chip as --set power=1.5kW." if has_price else ""
    sentence = f"Energy: {show(joules, 'J')} per output token, from {power_in_words(plan.power)}"
    if math.isfinite(cost):
        price = show(plan.electricity, "USD/J")
        sentence += f"; at {price} {usd(cost)} per million output tokens, {counted_by(plan.rent)}"
    return sentence + "."


def _pools(plan: Plan) -> Grid:
    grid = table("Pool", "Layout of a replica", "Chips", "Batch", "Chunk", "Step", numbers=(2, 3, 4, 5), first_to_go=(4, 5))
    for pool in plan.pools:
        replica_layout = Layout(
            **{name: getattr(pool.layout, name) for name in ("tp", "pp", "dp", "ep", "cp", "microbatches", "redundant_experts")}
        )
        count = int(pool.layout.replicas)
        grid.add_row(
            pool.role,
            show_layout(replica_layout),
            f"{count} x {int(pool.layout.chips)}",
            counted(pool.batch, "prompt") if pool.role == "prefill" else f"{pool.batch:,} seq",
            f"{pool.chunk:,} tok" if pool.chunk else "-",
            show(sum(mean_terms(pool).values()), "s"),
        )
    return grid


def _legend(plan: Plan) -> Text:
    """Say what the letters of the layouts mean."""
    points: list[str] = [
        plan.layout_text,
        plan.runner_up.layout_text if plan.runner_up else "",
        *(p.layout_text for p in plan.front),
    ]
    used = {word.rstrip("0123456789") for text in points for word in text.split()}
    axis_text = "; ".join(f"{axis}: {words}" for axis, words in AXES.items() if axis in used)
    legend = f"{axis_text}." if axis_text else "one chip: no layout is needed."
    if any(pool.role == "prefill" and pool.batch > 1 for pool in plan.pools):
        legend += (
            " Batch and step of the prefill pool: the most that a pass takes; the mean pass has fewer prompts and is shorter."
        )
    return Text(legend, style="bright_black")


def _comparison(plan: Plan) -> RenderableType:
    """Return the plan's figures with their ranges beside those of the ideal and of the runner-up."""
    alternatives = {"Ideal": plan.ideal, "Runner-up": plan.runner_up}
    points = {title: point for title, point in alternatives.items() if point is not None}
    best = "Cheapest" if has_rent(plan) else "Chosen"
    figures = _figures(plan)
    ranged_title = best + (" (90 % range)" if any(limits for _, limits in figures) else "")
    grid = table("", ranged_title, *points, numbers=range(1, 2 + len(points)), first_to_go=(3, 2)[2 - len(points) :])
    mine = chosen_point(plan)
    for (name, field, write), limits in figures:
        cells = [write(getattr(point, field)) for point in points.values()]
        grid.add_row(name, ranged(getattr(mine, field), limits, write), *cells)
    return Group(grid, *_comparison_lines(plan), Text())


def _comparison_lines(plan: Plan) -> list[Text]:
    """Say what the columns of the comparison are, and what else the plan comes to."""
    figures = [
        f"{in_digits(plan.requests_per_second)} requests a second",
        f"{plan.concurrency:,.0f} requests in flight"
        if plan.concurrency >= 10
        else f"{plan.concurrency:.2g} requests in flight",
        f"prompts come at {plan.utilisation:.0%} of the rate at which they can be read",
    ]
    if plan.idle_chips:
        figures.append(f"{plan.idle_chips:,} of {counted(plan.chips, 'chip')} idle")
    if plan.transfer_seconds:
        figures.append(f"{show(plan.transfer_seconds, 's')} of KV transfer a request")
    lines = [Text("; ".join(figures) + ".")]
    if plan.runner_up:
        runner_up = plan.runner_up
        lines.append(Text(f"Runner-up: {runner_up.layout_text}, batch {runner_up.batch:,}: {_price(plan)}."))
    if plan.ideal:
        range_note = f"90 % range: in it lie {'; '.join(plan.interval_coverage)}." if plan.interval_coverage else MEANING
        lines.append(Text(f"{range_note} Ideal: the same layout and batch, were nothing lost.", style="bright_black"))
    return lines


def _price(plan: Plan) -> str:
    """Say how the runner-up compares: in money, or in output for each chip where no rent is known."""
    cost_difference = runner_up_dearer(plan)
    if abs(cost_difference) < 0.0005:
        return "the same cost" if has_rent(plan) else "the same output per chip"
    if not has_rent(plan):
        return f"{abs(cost_difference):.1%} {'less' if cost_difference > 0 else 'more'} output for the same chips"
    return (
        f"{cost_difference:.1%} dearer"
        if cost_difference > 0
        else f"{-cost_difference:.1%} cheaper (within {AS_CHEAP:.1%}, the fastest comes first)"
    )


def _memory_bars(plan: Plan, width: int) -> list[RenderableType]:
    capacity = show(float(plan.pools[0].memory.capacity), "B")
    names = {"serve": f"Memory of a chip, {capacity}"}
    return [
        memory_bar(pool.memory, width, names.get(pool.role, f"Memory of a {pool.role} chip, {capacity}")) for pool in plan.pools
    ]


def _shares(plan: Plan, width: int) -> RenderableType:
    server = plan.pools[-1]
    step_kind = "mean step, steps with a prompt chunk included" if server.mixed is not None else "decode step"
    gained = float(step_yield(plan.workload, plan.speculation))
    title = f"Where the {show(plan.tpot, 's')} per token go ({step_kind})"
    if plan.speculation.drafts:
        title = f"Where the {show(plan.tpot * gained, 's')} of a step go ({step_kind}; makes {gained:.3g} tokens of each user)"
    return Group(
        heading(title),
        share_table(mean_terms(server), TERM_COLOURS, width, "Term"),
        resource_table(mean_resources(server), width),
    )


def _front_table(plan: Plan, max_rows: int = 7) -> list[RenderableType]:
    """Return some points of the front, evenly spaced in speed."""
    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return []
    heads = ["tok/s per user", "tok/s per chip", "USD/M out", "Batch", "Layout"]
    money = has_rent(plan)
    heads = heads if money else [head for head in heads if head != "USD/M out"]
    grid = table(*heads, numbers=range(len(heads) - 1), first_to_go=(3, 2) if money else (2,))
    speed = np.log([p.tokens_per_second_per_user for p in points])
    marks = np.linspace(speed.max(), speed.min(), max_rows)
    for position in dict.fromkeys(int(np.argmin(np.abs(speed - mark))) for mark in marks):
        grid.add_row(*_front_row(points[position], money=money))
    return [grid]


def _front_row(point: Point, *, money: bool) -> list[str]:
    cost = [usd(point.usd_per_million_output_tokens)] if money else []
    speeds = [f"{point.tokens_per_second_per_user:,.1f}", f"{point.tokens_per_second_per_chip:,.0f}"]
    return [*speeds, *cost, f"{point.batch:,}", point.layout_text]


def _changes(plan: Plan, width: int) -> RenderableType:
    """Return what 10 % more of each figure does to the cost."""
    grid = table("10 % more", "Cost changes by", "", numbers=(1,), first_to_go=(2,))
    changes = cost_changes(plan)
    largest = max((abs(change) for change in changes.values()), default=1.0) or 1.0
    cells = max(10, min(30, width - 44))
    for name, change in sorted(changes.items(), key=lambda item: item[1]):
        text = f"{change:+.1%}" if abs(change) >= 5e-4 else "0.0%"
        grid.add_row(IN_WORDS.get(name, name), text, bar(abs(change) / largest, cells, "green" if change < 0 else "red"))
    return Group(heading("How the cost follows each figure"), grid)


def _choices(plan: Plan) -> list[RenderableType]:
    """Return what other formats, more chips, other pools and drafts would come to."""
    if not plan.alternatives:
        return []
    money = has_rent(plan)
    grid = table("Choice", "Cost changes by" if money else "Output per chip", "Layout", numbers=(1,), first_to_go=(2,))
    for lever in plan.alternatives:
        change = -lever.saving if money else 1 / (1 - lever.saving) - 1
        name = lever.option or lever.words
        grid.add_row(name, f"{change:+.1%}" if abs(change) >= 5e-4 else "0.0%", lever.layout_text)
    footnote = "Searched near the chosen layout alone: a plan of its own may find more."
    return [Text(), heading("What other choices would do"), grid, Text(footnote, style="bright_black")]


def _drafted(plan: Plan) -> list[RenderableType]:
    """Return what drafts do at each batch."""
    if not plan.drafted:
        return []
    grid = table(
        "Batch", "Plain token", "Drafted", "Plain output", "Drafted", "Faster",
        numbers=range(6), first_to_go=(3, 4),
    )  # fmt: skip
    for row in plan.drafted:
        times, rates = (row.tpot_without, row.tpot), (row.rate_without, row.rate)
        cells = [*(show(x, "s") for x in times), *(show(x, "tok/s") for x in rates), f"{row.speed_up:.2f} x"]
        grid.add_row(f"{row.batch:,}", *cells)
    footnote = "Time per token and output per chip of decode steps that read no prompts, without drafts and with them."
    return [Text(), heading("What drafts do at each batch"), grid, Text(footnote, style="bright_black")]


def launch_view(plan: Plan, engines: Iterable[str]) -> RenderableType:
    """Return launch commands, one block an engine."""
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


# --- explanations -------------------------------------------------------------------------------------------------------
