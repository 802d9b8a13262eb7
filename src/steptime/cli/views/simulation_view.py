"""Text of a simulation and of a search for the highest rate.

A simulation shows figures, the distribution of latency and the timeline. A search shows the answer, latency against rate,
and the rates that it tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.step_view import own_runs
from steptime.cli.views.terminal_plots import Axis, Curve, draw, log10, seconds
from steptime.cli.views.widgets import Either, Grid, beyond_runs, footnote, listing, notes, table, write
from steptime.hardware.rental_prices import has_rent, origin_in_words, usd
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.layout import Layout, show_layout
from steptime.planning.plan_replay import Replay
from steptime.simulation.max_rate import HighestRate, RatePoint
from steptime.simulation.prefix_cache import CacheUse
from steptime.simulation.run_metrics import OVERLOADED, SATURATED, Answers, Judged, at_percentile, latencies
from steptime.simulation.simulation_result import Simulation
from steptime.units import DAY, HOUR, counted, in_digits, percent, request_rate, show
from steptime.workload.trace_files import few_requests_caution
from steptime.workload.traffic import Traffic, repeated_share

COLOURS = {SATURATED: "bold yellow", OVERLOADED: "bold red"}
SLOT_WAIT = (
    "Arrival to slot: host work on the prompt, then the wait in the queue. Between two tokens: stalls by prefill of other "
    "requests included."
)
LEVELS = " ▁▂▃▄▅▆▇█"
# Slots limit a run if more than FULL of them and less than HALF of the KV cache are in use.
FULL, HALF = 0.75, 0.5
# Relative error of the linear step-time model that needs no note.
WORTH_A_NOTE = 0.02


def simulation_view(
    title: str, simulation: Simulation, width: int, *, full: bool = False, rate: float | None = None, has_day: bool = False
) -> RenderableType:
    """Return a simulation as text: verdict, latencies, rates and warnings, and with `full` its pictures.

    Args:
        title: What was simulated on what.
        simulation: A simulation.
        width: Columns of the terminal.
        full: Whether to add the distribution of latencies, the timeline, the prefix cache and the rent.
        rate: Mean arrival rate [requests/s]; None if it is not given.
        has_day: Whether the rate varies by the hour of the day.

    Returns:
        Something that a console prints.
    """
    a, warnings = simulation.answers, notes(_notes(simulation))
    parts: list[RenderableType | None] = [
        *_autoscaled(simulation, rate), *_limits(simulation.limits), _verdict(a, simulation.limits), Text(title),
        _covered_hours(simulation, rate) if has_day and rate is not None else None,
    ]  # fmt: skip
    if not a.served:
        return Group(*(part for part in parts if part is not None), *warnings)
    parts += [_classes(a, simulation.limited) if a.classes else None, _latencies(a), footnote(SLOT_WAIT), _rates(simulation)]
    if math.isfinite(a.steady_from):
        parts += [
            footnote(f"Throughput, cost and loads: from {show(a.steady_from, 's')} to the last arrival, in the steady state.")
        ]
    parts += [] if simulation.scaling is None else [Text(), _scaling(simulation, width)]
    # Hits are a result of sessions; other requests have the prefixes that they were given.
    hits = [] if simulation.cache is None else [Text(), _cache(simulation.cache)]
    has_turns = simulation.traffic.turns is not None
    parts += [*(hits if has_turns else []), *_own_runs(simulation), *warnings, _rent(simulation)]
    if full:
        parts += [Text(), _distribution(latencies(simulation.requests), width), Text()]
        parts += [_timeline(simulation, width), *([] if has_turns else hits)]
    return Group(*(part for part in parts if part is not None))


def _own_runs(simulation: Simulation) -> list[Text]:
    """Return how your own runs correct a simulation, at its mean load and context."""
    if simulation.anchor is None:
        return []
    context = float(np.mean(simulation.traffic.inputs) + np.mean(simulation.traffic.outputs) / 2)
    point = OperatingPoint(layout=simulation.layout, load=simulation.answers.batch, context=context)
    return own_runs(simulation.anchor, simulation.anchor.applied(point))


def _rent(simulation: Simulation) -> Text | None:
    """Return the rent of the chips with its kind, date and grade."""
    if not has_rent(simulation.rent):
        return None
    rent_rate = show(simulation.chips * float(simulation.rent.typical), "USD/s")
    return Text(f"Rent: {rent_rate} for {counted(simulation.chips, 'chip')}, {origin_in_words(simulation.rent)}.")


def _notes(simulation: Simulation) -> list[str]:
    a, pace, slots = simulation.answers, simulation.pace, simulation.policy.max_num_seqs
    words = uncached(simulation.traffic) if simulation.cache is None else []
    prefill_replicas = simulation.prefill_replicas or simulation.replicas
    if simulation.traffic.turns is not None and prefill_replicas > 1 and simulation.policy.route != "prefix-aware":
        words.append("the turns of a session go to different replicas: --route prefix-aware keeps them where their history is")
    if caution := few_requests_caution(a.sent):
        words.append(caution)
    # Requests wait for sequence slots while the KV cache has room.
    is_full = a.verdict in (SATURATED, OVERLOADED) and a.batch >= FULL * slots and a.kv <= HALF
    if is_full and not simulation.fast_replicas:
        words.append(
            f"the {slots:,} sequence slots are full while {percent(a.kv)} of the KV cache is taken: raise --max-num-seqs"
        )
    if math.isnan(a.steady_from) and a.arriving:
        words.append("the run is too short for a steady state (--requests): throughput and cost include its start and its end")
    if max(pace.mixed_error, pace.decode_error) > WORTH_A_NOTE:
        off = f"{percent(pace.decode_error, 1)} (decode) and {percent(pace.mixed_error, 1)} (mixed)"
        words.append(f"the linear model of the step time has a mean error of {off}")
    return words


def uncached(traffic: Traffic) -> list[str]:
    """Return a note if prompts share blocks and the run has no prefix cache.

    Args:
        traffic: Requests.

    Returns:
        The note, with the option that helps; empty if prompts share no blocks.
    """
    if not (share := repeated_share(traffic)):
        return []
    hint = "prefill computes them again; --prefix-cache keeps them, such as hbm=20GB,host=1TB"
    return [f"{percent(share, 1)} of the prompts' blocks occurred in earlier prompts: {hint}"]


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


def _latencies(a: Answers) -> Grid:
    names = {
        "Time to first token": a.ttft, "Time per token": a.tpot, "Between two tokens": a.inter_token,
        "End to end": a.end_to_end, "Arrival to slot": a.wait,
    }  # fmt: skip
    rows = [(name, *(write(x, "s") for x in (s.mean, s.p50, s.p90, s.p95, s.p99))) for name, s in names.items()]
    return table("", "Mean", "p50", "p90", "p95", "p99", rows=rows, numbers=range(1, 6), first_to_go=(4, 1, 3))


def _classes(a: Answers, limited: bool) -> Grid:
    return listing(
        "Class: {name} | Served: {served:,} | TTFT mean: {ttft.mean:s} | TTFT p99: {ttft.p99:s} | TPOT mean: {tpot.mean:s} | "
        "TPOT p99: {tpot.p99:s}" + (" | Within limits: {within_limits:.1%}" if limited else ""),
        a.classes, first_to_go=(4, 2, 1),
        name=lambda c: "fast" if c.rank == 0 else "slow" if len(a.classes) == 2 else f"{c.rank}",
    )  # fmt: skip


def _rates(simulation: Simulation) -> Either:
    """Return the figures in two columns, or in one column on a narrow terminal."""
    a, policy = simulation.answers, simulation.policy
    # Fast and slow replicas have slots of different sizes.
    slots, tokens = (f" of {policy.max_num_seqs:,}", f" of {policy.kv_tokens:,.0f} tokens")
    slots, tokens = ("", "") if simulation.fast_replicas else (slots, tokens)
    pools = ("fast", "slow") if simulation.fast_replicas else ("prefill", "decode")
    busy = [f"{name} {percent(share)}" for name, share in zip(pools, a.pool_utilisation, strict=False)]
    has_cost = math.isfinite(a.usd_per_million_output_tokens)
    cells = [
        ("Served", f"{a.served:,} in {show(a.seconds, 's')}"),
        ("Throughput", request_rate(a.requests_per_second, 4)),
        ("Within the limits", _within(a)) if simulation.limited else ("Input", show(a.input_tokens_per_second, "tok/s")),
        ("Output", show(a.output_tokens_per_second, "tok/s")),
        ("Output per chip", show(simulation.output_tokens_per_second_per_chip, "tok/s")),
        ("USD/M output tokens", usd(a.usd_per_million_output_tokens) if has_cost else "rent not known"),
        ("A step runs", ", ".join(busy) if len(a.pool_utilisation) > 1 else f"{percent(a.utilisation)} of the time"),
        ("Decode batch", f"{a.batch:,.1f}{slots} requests"),
        ("KV cache taken", f"{percent(a.kv)}{tokens}"),
        ("Mean queue", f"{a.queue:,.1f} requests"),
        ("Preemptions", f"{a.preemptions:,}"),
        ("Chips", f"{simulation.chips:,}"),
    ]
    pairs = [(*first_cells, *second_cells) for first_cells, second_cells in zip(cells[::2], cells[1::2], strict=True)]
    wide = table("", "", "", "", rows=pairs, numbers=(1, 3), header=False, first_to_go=(3, 2))
    return Either(wide, table("", "", rows=cells, numbers=(1,), header=False))


def _within(a: Answers) -> str:
    """Return the share and rate of requests within the limits."""
    if not a.within_limits:
        return "no request"
    if a.within_limits < 0.001:
        return "fewer than 0.1 % of requests"
    # Those before the steady state are not part of the rate.
    return f"{percent(a.within_limits, 1)}{f', {request_rate(a.goodput, 4)}' if a.goodput else ''}"


def _distribution(samples: dict[str, Any], width: int) -> RenderableType:
    """Return the share of requests within a latency, a curve for each quantity, on a logarithmic axis."""
    styles = {"TTFT": ("green", "━"), "TPOT": ("cyan", "o")}
    share = np.linspace(0.0, 1.0, 101)
    samples = {name: values for name, values in samples.items() if np.any(values > 0)}
    if not samples:
        return Text()
    curves = []
    for name, values in samples.items():
        colour, glyph = styles[name]
        mark = glyph if glyph == "o" else ""
        quantiles = log10(np.quantile(values, share))
        curves.append(Curve(quantiles, 100 * share, name, colour, mark, (5, 10), glyph=glyph))
    low = min(math.log10(np.quantile(values[values > 0], 0.01)) for values in samples.values())
    high = max(curve.x[-1] for curve in curves)
    across = Axis("latency", low - 0.05, max(high, low + 0.1) + 0.05, seconds)
    up = Axis("requests", 0, 100, "{:.0f} %".format, log=False)
    return draw(curves, across, up, width, title="Share of requests within a latency")


def _timeline(simulation: Simulation, width: int) -> Grid:
    """Return decode batch, KV cache and queue over time as rows of bars."""
    line = simulation.timeline
    cells = max(8, min(100, width - 34))
    grid = table("Over time", f"0 to {show(float(line['seconds'][-1]), 's')}", "Maximum", numbers=(2,))
    for name, key, form in (
        ("Sequences decoding", "decoding", ",.0f"), ("KV cache", "kv", ".0%"), ("Requests waiting", "waiting", ",.0f"),
    ):  # fmt: skip
        # Bars show means over equal times, scaled to the peak.
        values = np.array([part.mean() for part in np.array_split(np.asarray(line[key], dtype=np.float64), cells)])
        peak = float(np.max(line[key]))
        bars = "".join(LEVELS[min(8, math.ceil(8 * max(0.0, share) - 1e-9))] for share in values / (peak or 1.0))
        grid.add_row(name, Text(bars, style="cyan", no_wrap=True), write(peak, form))
    return grid


def _scaling(simulation: Simulation, width: int) -> RenderableType:
    """Return the replicas over time as bars, and hours and dollars next to those of a fixed fleet."""
    scaling = simulation.scaling
    assert scaling is not None
    rule, a = scaling.autoscaler, simulation.answers
    cells = max(8, min(96, width - 34))
    # The last reading holds until the next one.
    until = float(scaling.times[-1]) + rule.interval
    grid = table("Replicas over time", f"0 to {show(until, 's')}", "Most", numbers=(2,))
    for name, values in (("Rented", scaling.rented), ("Taking requests", scaling.ready)):
        # Bars show the most replicas in equal times, so that short peaks are seen.
        peaks = np.array([part.max() for part in np.array_split(np.asarray(values, dtype=float), min(cells, len(values)))])
        bars = "".join(LEVELS[math.ceil(8 * share - 1e-9)] for share in peaks / max(scaling.largest, 1))
        grid.add_row(name, Text(bars, style="cyan", no_wrap=True), f"{int(np.max(values)):,}")

    def dollars(value: float) -> str:
        return usd(value) if math.isfinite(value) else "no rent known"

    rows = [
        ("Replica-hours", in_digits(scaling.replica_hours), in_digits(scaling.fixed_replica_hours)),
        ("Rent", dollars(scaling.usd), dollars(scaling.fixed_usd)),
        ("First token, p90", show(a.ttft.p90, "s"), show(scaling.fixed_ttft, "s")),
        ("Time per token, p90", show(a.tpot.p90, "s"), show(scaling.fixed_tpot, "s")),
    ]
    if simulation.limited:
        rows.append(("Within the limits", percent(a.within_limits, 1), percent(scaling.fixed_within_limits, 1)))
    fixed = f"Fixed fleet of {scaling.largest:,}"
    words = (
        f"Autoscaler: {rule.minimum:,} to {counted(rule.maximum, 'replica')} for {in_digits(rule.target)} requests "
        f"{'in' if rule.metric == 'concurrency' else 'waiting in'} each, read every {show(rule.interval, 's')}; a cold start "
        f"takes {show(rule.cold_start, 's')}; {counted(scaling.starts, 'start')}."
    )
    return Group(grid, table("", "Autoscaled", fixed, rows=rows, numbers=(1, 2)), Text(words))


def _autoscaled(simulation: Simulation, rate: float | None) -> list[Text]:
    """Return replicas and rent of an autoscaled run, after a warning if the run is too short for its autoscaler."""
    scaling = simulation.scaling
    if scaling is None:
        return []
    rule, arriving = scaling.autoscaler, float(np.max(simulation.traffic.arrival, initial=0.0))
    fewest, largest = int(np.min(scaling.rented)), int(np.max(scaling.rented))
    replicas = counted(largest, "replica") if fewest == largest else f"{fewest:,} to {counted(largest, 'replica')}"
    cost = f", {usd(scaling.usd)}" if math.isfinite(scaling.usd) else ""
    lines = [Text(f"{replicas} rented: {in_digits(scaling.replica_hours)} replica-hours{cost}.", "bold")]
    acts_after = rule.interval + rule.cold_start
    if arriving < acts_after:
        wait = "a cold start" if rule.cold_start else "one interval of the autoscaler"
        fix = "raise --requests" if rate is None else f"a day at {request_rate(rate)} needs --requests {rate * DAY:.0f}"
        words = (
            f"The autoscaler changes nothing in this run: all requests arrive within {show(arriving, 's')}, and {wait} ends "
            f"after {show(acts_after, 's')} at the earliest; {fix}."
        )
        lines.insert(0, Text(words, "bold yellow"))
    return lines


def _covered_hours(simulation: Simulation, rate: float) -> Text | None:
    """Return which hours of the day a run covers, if it is shorter than a day, and its arrival rate."""
    arrival = simulation.traffic.arrival
    arriving = float(np.max(arrival, initial=0.0))
    if not 0 < arriving < DAY - HOUR:
        return None
    last_hour = math.floor(arriving / HOUR)
    hours = "hour 0" if last_hour == 0 else f"hours 0 to {last_hour}"
    arrival_rate = request_rate(len(arrival) / arriving)
    span = f"The run covers {hours} of the day, {show(arriving, 's')}"
    return Text(f"{span}: {arrival_rate} arrive, {request_rate(rate)} over the day.")


def _cache(use: CacheUse) -> RenderableType:
    rows = [
        (
            tier.name, f"{tier.hit_tokens:,.0f} tok", percent(tier.hit_share, 1), show(float(tier.bytes_read), "B"),
            show(float(tier.bytes_written), "B"),
        )
        for tier in use.by_tier
    ]  # fmt: skip
    text = f"{percent(use.hit_rate, 1)} of prompt tokens hit the cache"
    if use.recomputed:
        text += f"; {use.recomputed:,} tokens follow a block that prefill computes faster than the cache loads it"
    return Group(table("Prefix cache", "Hits", "Of all", "Read", "Written", rows=rows, numbers=(1, 2, 3, 4)), Text(text + "."))


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
    answers = [run.answers for run in runs.values()]
    limited = [
        ("Limits", *(run.limits.verdict if run.limits else "-" for run in runs.values())),
        ("Within the limits", *(percent(a.within_limits, 1) for a in answers)),
    ]
    rows = [
        ("First token, p90", *(show(a.ttft.p90, "s") for a in answers)),
        ("Time per token, p90", *(show(a.tpot.p90, "s") for a in answers)),
        ("Requests/s", *(in_digits(a.requests_per_second, 4) for a in answers)),
        *(limited if simulation.limited else []),
        ("Verdict", *(a.verdict for a in answers)),
    ]
    grid = table("90 % range", *runs, rows=rows, numbers=range(1, 1 + len(runs)))
    return Group(grid, Text(beyond_runs(unlike))) if unlike else grid


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
    share = "the plan's rate" if replay.attempts == 1 else f"{percent(replay.rate / replay.planned_rate)} of the plan's rate"
    load = f"{request_rate(replay.rate)}, {share}"
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
    traffic = simulation.traffic
    sent = counted(simulation.answers.sent, "request")
    if len(traffic):
        sent += f" of {lengths_in_words(float(np.mean(traffic.inputs)), float(np.mean(traffic.outputs)))}"
    return f"{model} on {simulation.chips} x {chip} ({pools}), engine {engine}: {sent}, {traffic.name}, {kind}"


def lengths_in_words(inputs: float, outputs: float) -> str:
    """Return the mean lengths of requests.

    Args:
        inputs: Mean prompt tokens.
        outputs: Mean output tokens.

    Returns:
        Text such as "1,024 tokens in, 128 out on average".
    """
    return f"{inputs:,.0f} tokens in, {outputs:,.0f} out on average"


def rate_view(search: HighestRate, width: int) -> RenderableType:
    """Return the rates that a search tried: latency against rate as a plot and a table.

    Args:
        search: A search for the highest rate.
        width: Columns of the terminal.

    Returns:
        Something that a console prints.
    """
    points = sorted((p for p in search.points if math.isfinite(p.ttft) and p.rate > 0), key=lambda p: p.rate)
    if len({p.rate for p in points}) < 2:
        return _points_table(search)
    x, y = log10([p.rate for p in points]), log10([p.ttft for p in points])
    across = Axis("requests/s", x.min() - 0.05, x.max() + 0.05)
    up = Axis(f"TTFT {search.percentile}", y.min() - 0.1, max(y.max(), y.min() + 0.2) + 0.1, seconds)
    curve = Curve(x, y, "a rate that was tried", "green", "o")
    chart = draw([curve], across, up, width, title=f"Rate against {search.percentile} of TTFT")
    # Latencies of one rate differ between runs of different lengths.
    longer = footnote("Runs near the answer have more requests: where the queue grows, they wait longer.")
    return Group(chart, _points_table(search), longer or "")


def _points_table(search: HighestRate) -> Grid:
    """Return a row for each rate that was tried."""
    columns = ["Clients: {clients:,}"] if search.clients is not None else []
    columns = ["Trace scale: x {scale:.3g}"] if search.scale is not None else columns
    columns += [
        "Requests/s: {rate:digits4}",
        "Requests: {requests}",
        *(f"{name} {search.percentile}: {{{name.lower()}:s}}" for name in ("TTFT", "TPOT")),
    ]

    def verdict(point: RatePoint) -> str:
        is_plain = point.good or point.verdict == OVERLOADED
        return point.verdict if is_plain else f"{point.verdict}, {point.why or 'limits not met'}"

    return listing(" | ".join([*columns, ": {verdict}"]), search.points, verdict=verdict)


def rate_answer(search: HighestRate, limited: bool = True) -> Text:
    """Return the highest rate within the limits, or without limits the highest rate at which the queue does not grow.

    Args:
        search: A search for the highest rate.
        limited: Whether the search had limits.

    Returns:
        One to three sentences.
    """
    percentile, rate = at_percentile(search.percentile), request_rate(search.rate, 4)
    if not limited and search.rate:
        load = f"{search.clients:,} clients of a closed loop" if search.clients is not None else rate
        note = (
            " is the highest load at which the queue does not grow. At a saturated load the median request waits longer than "
            "its prefill takes. To search within limits, add --speed or --ttft."
        )
        return Text.assemble((load, "bold green"), note)

    # No load is within the limits: the reason, and the latencies at the lowest load.
    if not search.rate:
        why = next((f": {p.why}" for p in search.points if p.why), "")
        none = "No number of clients is" if search.clients is not None else "No rate is"
        lowest = ""
        if search.points:
            least = search.points[0]
            times = f"TTFT {show(least.ttft, 's')} and TPOT {show(least.tpot, 's')}"
            lowest = f" The lowest tried, {request_rate(least.rate, 3)}, has {times}, {percentile}."
        return Text.assemble((f"{none} within the limits{why}, {percentile}.", "bold red"), lowest)

    if search.clients is not None:
        best = f"{counted(search.clients, 'client')} of a closed loop: the maximum within the limits, {percentile}"
        return Text.assemble((f"{best}.", "bold green"), f" They send {rate}: a client sends its next request after an answer.")
    words = ""
    best_point = next((p for p in search.points if p.good and p.rate == search.rate), None)
    if best_point is not None:
        words += f" At this rate TTFT is {show(best_point.ttft, 's')} and TPOT {show(best_point.tpot, 's')}."
    if search.scale is not None:
        words += f" This rate is {in_digits(search.scale)} times the rate of the trace, with its lengths and bursts."
    # Short runs at high rates do not show whether the queue grows.
    if search.cut_short:
        trace = "at a higher scale the trace is too short"
        why = trace if search.scale is not None else "at higher rates the runs are too short"
        words += f" A higher rate may be possible: {why} for an answer."
    return Text.assemble((f"{rate} is the highest rate within the limits, {percentile}.", "bold green"), words)
