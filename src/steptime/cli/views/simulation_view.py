"""Text of a simulation and of a search for the highest rate.

A simulation shows figures, the distribution of latency and the timeline. A search shows the answer, latency against rate,
and the rates that it tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.step_view import own_runs
from steptime.cli.views.terminal_plots import distribution_plot, rate_plot
from steptime.cli.views.widgets import Either, Grid, beyond_runs, notes, table
from steptime.hardware.rental_prices import has_rent, origin_in_words, usd
from steptime.physics.layout import Layout, show_layout
from steptime.simulation.max_rate import HighestRate, RatePoint
from steptime.simulation.plan_replay import Replay
from steptime.simulation.prefix_cache import CacheUse
from steptime.simulation.run_metrics import OVERLOADED, SATURATED, Answers, Judged, Percentiles, at_percentile, latencies
from steptime.simulation.simulation_result import Simulation
from steptime.simulation.traffic import Traffic, repeated_share
from steptime.units import counted, in_digits, show

COLOURS = {SATURATED: "bold yellow", OVERLOADED: "bold red"}
MEANING = "Arrival to slot includes the wait in the queue. Between two tokens includes stalls by prefill of other requests."
LEVELS = " ▁▂▃▄▅▆▇█"
# Slots limit a run if more than FULL of them and less than HALF of the KV cache are in use.
FULL, HALF = 0.75, 0.5
# Relative error of the linear step-time model that needs no note.
WORTH_A_NOTE = 0.02


def simulation_view(title: str, simulation: Simulation, width: int, *, full: bool = False) -> RenderableType:
    """Return a simulation as text: verdict, latencies, rates and warnings, and with `full` its pictures.

    Args:
        title: What was simulated on what.
        simulation: A simulation.
        width: Columns of the terminal.
        full: Whether to add the distribution of latencies, the timeline, the prefix cache and the rent.

    Returns:
        Something that a console prints.
    """
    a = simulation.answers
    parts: list[RenderableType] = [*_limits(simulation.limits), _verdict(a, simulation.limits), Text(title)]
    if not a.served:
        return Group(*parts, *notes(_notes(simulation)))
    if a.classes:
        parts.append(_classes(a, simulation.limited))
    parts += [_latencies(a), *_rates(a, simulation), *own_runs(simulation.anchor), *notes(_notes(simulation))]
    parts += _rent(simulation)
    if not full:
        return Group(*parts)
    parts += [Text(MEANING, style="bright_black"), Text()]
    parts += [distribution_plot(latencies(simulation.requests), width), Text(), _timeline(simulation, width)]
    if simulation.cache is not None:
        parts += [Text(), _cache(simulation.cache)]
    return Group(*parts)


def _rent(simulation: Simulation) -> list[Text]:
    """Return the rent of the chips with its kind, date and grade."""
    if not has_rent(simulation.rent):
        return []
    rent_rate = show(simulation.chips * float(simulation.rent.typical), "USD/s")
    return [Text(f"Rent: {rent_rate} for {counted(simulation.chips, 'chip')}, {origin_in_words(simulation.rent)}.")]


def _notes(simulation: Simulation) -> list[str]:
    pace, notes_ = simulation.pace, uncached(simulation.traffic) if simulation.cache is None else []
    notes_ += full_slots(simulation)
    if max(pace.mixed_error, pace.decode_error) > WORTH_A_NOTE:
        off = f"{pace.decode_error:.1%} (decode) and {pace.mixed_error:.1%} (mixed)"
        notes_.append(f"the linear model of the step time has a mean error of {off}")
    return notes_


def full_slots(simulation: Simulation) -> list[str]:
    """Return a note if requests wait for sequence slots while the KV cache has room.

    Args:
        simulation: A simulation.

    Returns:
        The note, with the option that helps; empty if slots do not limit the run.
    """
    a, slots = simulation.answers, simulation.policy.max_num_seqs
    if a.verdict not in (SATURATED, OVERLOADED) or simulation.fast_replicas or a.batch < FULL * slots or a.kv > HALF:
        return []
    return [f"the {slots:,} sequence slots are full while {a.kv:.0%} of the KV cache is taken: raise --max-sequences"]


def uncached(traffic: Traffic) -> list[str]:
    """Return a note if prompts share blocks and the run has no prefix cache.

    Args:
        traffic: Requests.

    Returns:
        The note, with the option that helps; empty if prompts share no blocks.
    """
    if not (share := repeated_share(traffic)):
        return []
    hint = "prefill computes them again; --prefix-cache hbm=20GB would keep them"
    return [f"{share:.1%} of the prompts' blocks (hash_ids) occurred in earlier prompts: {hint}"]


def _limits(judged: Judged | None) -> list[Text]:
    """Return whether the limits are met, and by how many requests; nothing without limits."""
    if judged is None:
        return []
    colour = "bold green" if judged.is_met else "bold red"
    why = f"{judged.why}. " if judged.why else ""
    count = judged.count[0].upper() + judged.count[1:]
    return [Text.assemble((f"{judged.verdict} {at_percentile(judged.percentile)}", colour), f": {why}{count}.")]


def _verdict(a: Answers, judged: Judged | None) -> Text:
    """Return whether the queue grows."""
    # Missed limits stand above: green would contradict them.
    well = "bold" if judged is not None and not judged.is_met else "bold green"
    text = Text.assemble((a.verdict, COLOURS.get(a.verdict, well)), f": {a.why}.")
    if a.rejected and a.served:
        text.append(f" {a.rejected:,} of {counted(a.sent, 'request')} were rejected: {a.rejected_why}.", style="yellow")
    return text


def _time(value: float) -> str:
    return "-" if math.isnan(value) else show(value, "s")


def _latencies(a: Answers) -> Grid:
    grid = table("", "Mean", "p50", "p90", "p95", "p99", numbers=range(1, 6), first_to_go=(4, 1, 3))
    rows: tuple[tuple[str, Percentiles], ...] = (
        ("Time to first token", a.ttft),
        ("Time per token", a.tpot),
        ("Between two tokens", a.inter_token),
        ("End to end", a.end_to_end),
        ("Arrival to slot", a.wait),
    )
    for name, s in rows:
        grid.add_row(name, *map(_time, (s.mean, s.p50, s.p90, s.p95, s.p99)))
    return grid


def _classes(a: Answers, limited: bool) -> Grid:
    heads = ("Class", "Served", "TTFT mean", "TTFT p99", "TPOT mean", "TPOT p99", *(["Within limits"] if limited else []))
    grid = table(*heads, numbers=range(1, 7), first_to_go=(4, 2, 1))
    for c in a.classes:
        name = "fast" if c.rank == 0 else "slow" if len(a.classes) == 2 else f"{c.rank}"
        within = [f"{c.within_limits:.1%}"] if limited else []
        grid.add_row(name, f"{c.served:,}", *map(_time, (c.ttft.mean, c.ttft.p99, c.tpot.mean, c.tpot.p99)), *within)
    return grid


def _figures(a: Answers, simulation: Simulation) -> list[tuple[str, str]]:
    """Return the figures of the run by name."""
    limits = ("Within the limits", _within(a)) if simulation.limited else ("Input", show(a.input_tokens_per_second, "tok/s"))
    money = usd(a.usd_per_million_output_tokens) if math.isfinite(a.usd_per_million_output_tokens) else "rent not known"
    return [
        ("Served", f"{a.served:,} in {show(a.seconds, 's')}"),
        ("Throughput", f"{in_digits(a.requests_per_second, 4)} requests/s"),
        limits,
        ("Output", show(a.output_tokens_per_second, "tok/s")),
        ("Output per chip", show(simulation.output_tokens_per_second_per_chip, "tok/s")),
        ("USD/M output tokens", money),
        ("Busy", _busy(a, simulation)),
        ("Decode batch", f"{a.batch:,.1f}" + ("" if simulation.fast_replicas else f" of {simulation.policy.max_num_seqs:,}")),
        (
            "KV cache taken",
            f"{a.kv:.0%}" + ("" if simulation.fast_replicas else f" of {simulation.policy.kv_tokens:,.0f} tokens"),
        ),
        ("Waiting", f"{a.queue:,.1f} requests on average"),
        ("Preemptions", f"{a.preemptions:,}"),
        ("Chips", f"{simulation.chips:,}"),
    ]


def _within(a: Answers) -> str:
    """Return the share and rate of requests within the limits."""
    if not a.goodput:
        return "no request"
    if a.within_limits < 0.001:
        return "fewer than 0.1% of requests"
    return f"{a.within_limits:.1%}, {in_digits(a.goodput, 4)} requests/s"


def _rates(a: Answers, simulation: Simulation) -> list[RenderableType]:
    """Return the figures in two columns, or in one column on a narrow terminal."""
    cells = _figures(a, simulation)
    wide = table("", "", "", "", numbers=(1, 3), header=False, first_to_go=(3, 2))
    for left_figure, right_figure in zip(cells[::2], cells[1::2], strict=True):
        wide.add_row(*left_figure, *right_figure)
    narrow = table("", "", numbers=(1,), header=False)
    for cell in cells:
        narrow.add_row(*cell)
    return [Either(wide, narrow)]


def _busy(a: Answers, simulation: Simulation) -> str:
    """Return the share of time in which replicas compute, by pool if there are two."""
    if len(a.pool_utilisation) < 2:
        return f"{a.utilisation:.0%} of the time"
    names = ("fast", "slow") if simulation.fast_replicas else ("prefill", "decode")
    return ", ".join(f"{name} {share:.0%}" for name, share in zip(names, a.pool_utilisation, strict=True))


def _timeline(simulation: Simulation, width: int) -> Grid:
    """Return decode batch, KV cache and queue over time as rows of bars."""
    line = simulation.timeline
    cells = max(8, min(100, width - 34))
    grid = table("Over time", f"0 to {show(float(line['seconds'][-1]), 's')}", "Maximum", numbers=(2,))
    rows: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("Sequences decoding", "decoding", lambda v: f"{v:,.0f}"),
        ("KV cache", "kv", lambda v: f"{v:.0%}"),
        ("Requests waiting", "waiting", lambda v: f"{v:,.0f}"),
    )
    for name, key, write in rows:
        # Bars show means over equal times, scaled to the peak.
        values = np.array([part.mean() for part in np.array_split(np.asarray(line[key], dtype=np.float64), cells)])
        peak = float(np.max(line[key]))
        scale = values / (peak or 1.0)
        bars = "".join(LEVELS[min(8, math.ceil(8 * max(0.0, s) - 1e-9))] for s in scale)
        grid.add_row(name, Text(bars, style="cyan", no_wrap=True), write(peak))
    return grid


def _cache(use: CacheUse) -> RenderableType:
    grid = table("Prefix cache", "Hits", "Read", "Written", numbers=(1, 2, 3))
    for name, hits, bytes_read, bytes_written in zip(use.tiers, use.hit_tokens, use.bytes_read, use.bytes_written, strict=True):
        grid.add_row(name, f"{hits:,.0f} tok", show(float(bytes_read), "B"), show(float(bytes_written), "B"))
    text = f"{use.hit_rate:.1%} of prompt tokens hit the cache"
    if use.recomputed:
        text += f"; {use.recomputed:,} tokens follow a block that prefill computes faster than the cache loads it"
    return Group(grid, Text(text + "."))


def range_view(simulation: Simulation, ends: Mapping[float, Simulation], unlike: Sequence[str]) -> RenderableType:
    """Return a run next to runs with step times at the ends of the engine's 90 % range.

    Args:
        simulation: The run with predicted step times.
        ends: Runs by the factor on their step times.
        unlike: Ways in which the run extrapolates beyond the measured runs; they widen the range.

    Returns:
        A table, with a line on the extrapolation if there is any.
    """
    runs = {"As predicted": simulation} | {f"Steps x {slowness:.2f}": end for slowness, end in ends.items()}
    grid = table("90 % range", *runs, numbers=range(1, 1 + len(runs)))

    def row(name: str, write: Callable[[Answers], str]) -> None:
        grid.add_row(name, *(write(end.answers) for end in runs.values()))

    row("First token, p90", lambda a: show(a.ttft.p90, "s"))
    row("Time per token, p90", lambda a: show(a.tpot.p90, "s"))
    row("Requests/s", lambda a: in_digits(a.requests_per_second, 4))
    if simulation.limited:
        limits = {id(end.answers): end.limits for end in runs.values()}
        row("Limits", lambda a: getattr(limits[id(a)], "verdict", "-"))
        row("Within the limits", lambda a: f"{a.within_limits:.1%}")
    row("Verdict", lambda a: a.verdict)
    if not unlike:
        return grid
    return Group(grid, Text(beyond_runs(unlike)))


def replay_lines(replay: Replay, *, full: bool) -> list[Text]:
    """Return what random arrivals change in a plan, to print after the plan's answer.

    Args:
        replay: The simulation of a plan.
        full: Whether to add how many requests met their limits, and the verdict.

    Returns:
        Lines of text.
    """
    a, percentile = replay.answers, at_percentile(replay.percentile)
    if not replay.good:
        return [Text.assemble(("With random arrivals not possible: ", "bold red"), f"{replay.reason}.")]
    dollars = a.usd_per_million_output_tokens
    rate = f"{show(replay.simulation.output_tokens_per_second_per_chip, 'tok/s')} of output per chip"
    answer = f"{usd(dollars)} per million output tokens" if math.isfinite(dollars) else rate
    share = "the plan's rate" if replay.attempts == 1 else f"{replay.rate / replay.planned_rate:.0%} of the plan's rate"
    load = f"{in_digits(replay.rate)} requests/s, {share}"
    head = Text.assemble((f"With random arrivals: {answer}", "bold green"), f"; the limits are met {percentile} at {load}.")
    return [head, *_limits(replay.simulation.limits), _verdict(a, None)] if full else [head]


def simulation_title(model: str, chip: str, simulation: Simulation, layout: Layout, engine: str) -> str:
    """Return one line on the model, the deployment and the traffic of a run.

    Args:
        model: Name of the model.
        chip: Name of the chip.
        simulation: The run.
        layout: Layout of a replica.
        engine: Name of the engine.

    Returns:
        The line.
    """
    n = simulation.prefill_replicas
    pools = show_layout(layout) + (f", {counted(n, 'prefill replica')}" if n else "")
    kind = (
        f"a train every {show(simulation.policy.interval, 's')}"
        if simulation.policy.kind == "train"
        else f"{simulation.policy.kind} batching"
    )
    sent = counted(simulation.answers.sent, "request")
    return f"{model} on {simulation.chips} x {chip} ({pools}), engine {engine}: {sent}, {simulation.traffic.name}, {kind}"


def rate_view(search: HighestRate, width: int) -> RenderableType:
    """Return the rates that a search tried: latency against rate as a plot and a table.

    Args:
        search: A search for the highest rate.
        width: Columns of the terminal.

    Returns:
        Something that a console prints.
    """
    parts: list[RenderableType] = []
    plotted_points = [p for p in search.points if math.isfinite(p.ttft) and p.rate > 0]
    if len({p.rate for p in plotted_points}) > 1:
        by_rate = sorted(plotted_points, key=lambda p: p.rate)
        parts.append(rate_plot([p.rate for p in by_rate], [p.ttft for p in by_rate], search.percentile, width))
    return Group(*parts, _points_table(search))


def rate_answer(search: HighestRate, limited: bool = True) -> Text:
    """Return the highest rate within the limits, or without limits the highest rate at which the queue does not grow.

    Args:
        search: A search for the highest rate.
        limited: Whether the search had limits.

    Returns:
        One to three sentences.
    """
    percentile = at_percentile(search.percentile)
    if not limited and search.rate:
        rate_text = (
            f"{search.clients:,} clients of a closed loop"
            if search.clients is not None
            else f"{in_digits(search.rate, 4)} requests/s"
        )
        note = " is the highest load at which the queue does not grow. To search within limits, add --speed or --ttft."
        return Text.assemble((rate_text, "bold green"), note)

    # No load is within the limits: the reason, and the latencies at the lowest load.
    if not search.rate:
        why = next((p.why for p in search.points if p.why), "")
        none = "No number of clients is" if search.clients is not None else "No rate is"
        answer = Text(f"{none} within the limits" + (f": {why}" if why else "") + f", {percentile}.", style="bold red")
        if search.points:
            least = search.points[0]
            times = f"TTFT {show(least.ttft, 's')} and TPOT {show(least.tpot, 's')}"
            answer.append(
                f" The lowest tried, {in_digits(least.rate, 3)} requests/s, has {times}, {percentile}.", style="not bold"
            )
        return answer

    rate = f"{in_digits(search.rate, 4)} requests/s"
    if search.clients is not None:
        best = f"{counted(search.clients, 'client')} of a closed loop: the maximum within the limits, {percentile}"
        return Text.assemble((f"{best}.", "bold green"), f" They send {rate}: a client sends its next request after an answer.")
    answer = Text(f"{rate} is the highest rate within the limits, {percentile}.", style="bold green")
    best_point = next((p for p in search.points if p.good and p.rate == search.rate), None)
    if best_point is not None:
        latencies_there = f" At this rate TTFT is {show(best_point.ttft, 's')} and TPOT {show(best_point.tpot, 's')}."
        answer.append(latencies_there, style="not bold")
    if search.scale is not None:
        answer.append(
            f" This rate is {in_digits(search.scale)} times the rate of the trace, with its lengths and bursts.",
            style="not bold",
        )
    # Short runs at high rates do not show whether the queue grows.
    if search.cut_short:
        answer.append(
            " A higher rate may be possible: at a higher scale the trace is too short for an answer."
            if search.scale is not None
            else " A higher rate may be possible: at higher rates the runs are too short for an answer.",
            style="not bold",
        )
    return answer


def _points_table(search: HighestRate) -> Grid:
    """Return a row for each rate that was tried."""
    load_head = "Clients" if search.clients is not None else "Trace scale" if search.scale is not None else ""
    heads = ("Requests/s", f"TTFT {search.percentile}", f"TPOT {search.percentile}", "")
    grid = table(*([load_head] if load_head else []), *heads, numbers=range(len(heads) - (not load_head)))
    for p in search.points:
        verdict = p.verdict if p.good or p.verdict == OVERLOADED else f"{p.verdict}, {p.why or 'limits not met'}"
        grid.add_row(*_load(p), in_digits(p.rate, 4), _rate_time(p.ttft), _rate_time(p.tpot), verdict)
    return grid


def _load(point: RatePoint) -> list[str]:
    """Return the clients of a point, or the scale of a trace; nothing for random arrivals."""
    if point.clients is not None:
        return [f"{point.clients:,}"]
    return [] if point.scale is None else [f"x {point.scale:.3g}"]


def _rate_time(value: float) -> str:
    return "-" if math.isnan(value) else show(value, "s")
