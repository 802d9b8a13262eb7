"""What the terminal shows of a simulation: figures, the distribution of latency, the timeline, rate against latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steptime.physics.layout import show_layout
from steptime.simulation.metrics import OVERLOADED, SATURATED, Answers, Quantiles
from steptime.simulation.outcome import Simulation
from steptime.simulation.prefix_cache import CacheUse
from steptime.simulation.rates import RatePoint, Replay
from steptime.simulation.state import DONE
from steptime.terminal.widgets import table, usd
from steptime.units import show

COLOURS = {SATURATED: "bold yellow", OVERLOADED: "bold red"}
LEVELS = " ▁▂▃▄▅▆▇█"


def simulation_view(title: str, found: Simulation, width: int) -> RenderableType:
    """Return a run on one screen."""
    a = found.answers
    parts: list[RenderableType] = [Text(title), Text(), _verdict(a)]
    if not a.served:
        return Group(*parts)
    if a.classes:
        parts.append(_classes(a, found.limited))
    parts += [_latencies(a), _rates(a, found), Text(), _distribution(found, width), Text(), _timeline(found, width)]
    if found.cache is not None:
        parts += [Text(), _cache(found.cache)]
    if found.pace.mixed_error > 0.02 or found.pace.decode_error > 0.02:
        parts.append(
            Text(
                f"Note: the step time's coefficients are off by {found.pace.decode_error:.1%} (decode) and "
                f"{found.pace.mixed_error:.1%} (mixed) in the mean.",
                style="yellow",
            )
        )
    return Group(*parts)


def _verdict(a: Answers) -> Text:
    text = Text.assemble((a.verdict, COLOURS.get(a.verdict, "bold green")), f": {a.why}.")
    if a.rejected and a.served:
        text.append(f" {a.rejected:,} of {a.sent:,} requests were rejected: {a.rejected_why}.", style="yellow")
    return text


def _latencies(a: Answers) -> Table:
    shown = table("", "Mean", "p50", "p90", "p95", "p99", numbers=range(1, 6))
    rows: tuple[tuple[str, Quantiles], ...] = (
        ("Time to first token", a.ttft),
        ("Time per token", a.tpot),
        ("Between two tokens", a.inter_token),
        ("End to end", a.end_to_end),
        ("Wait for a seat", a.wait),
    )
    for name, s in rows:
        shown.add_row(name, *("-" if math.isnan(x) else show(x, "s") for x in (s.mean, s.p50, s.p90, s.p95, s.p99)))
    return shown


def _classes(a: Answers, limited: bool) -> Table:
    shown = table(
        "Class", "Served", "TTFT mean", "p99", "TPOT mean", "p99", *(["Within limits"] if limited else []), numbers=range(1, 7)
    )
    for c in a.classes:
        name = "fast" if c.rank == 0 else "slow" if len(a.classes) == 2 else f"{c.rank}"
        times = (c.ttft.mean, c.ttft.p99, c.tpot.mean, c.tpot.p99)
        within = [f"{c.within_limits:.1%}"] if limited else []
        shown.add_row(name, f"{c.served:,}", *("-" if math.isnan(x) else show(x, "s") for x in times), *within)
    return shown


def _rates(a: Answers, found: Simulation) -> Table:
    shown = table("", "", "", "", numbers=(1, 3))
    shown.show_header = False
    money = usd(a.usd_per_million_output_tokens) if math.isfinite(a.usd_per_million_output_tokens) else "unknown"
    cells = [
        ("Served", f"{a.served:,} in {show(a.seconds, 's')}"),
        ("Throughput", f"{a.requests_per_second:,.4g} requests/s"),
        ("Within the limits", f"{a.within_limits:.1%}, {a.goodput:,.4g} requests/s")
        if found.limited
        else ("Input", show(a.input_tokens_per_second, "tok/s")),
        ("Output", show(a.output_tokens_per_second, "tok/s")),
        ("Output of each chip", show(a.output_tokens_per_second / found.chips, "tok/s")),
        ("Per million output tokens", money),
        ("Busy", _busy(a, found)),
        ("Decode batch", f"{a.batch:,.1f}" + ("" if found.fast_replicas else f" of {found.policy.max_sequences:,}")),
        ("KV cache taken", f"{a.kv:.0%}" + ("" if found.fast_replicas else f" of {found.policy.kv_tokens:,.0f} tokens")),
        ("Waiting", f"{a.queue:,.1f} requests"),
        ("Preemptions", f"{a.preemptions:,}"),
        ("Chips", f"{found.chips:,}"),
    ]
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        shown.add_row(*left, *right)
    return shown


def _busy(a: Answers, found: Simulation) -> str:
    """The share of time in which replicas work, by pool where there are two."""
    if len(a.pool_utilisation) < 2:
        return f"{a.utilisation:.0%} of the time"
    names = ("fast", "slow") if found.fast_replicas else ("prefill", "decode")
    return ", ".join(f"{name} {share:.0%}" for name, share in zip(names, a.pool_utilisation, strict=True))


def _figure(width: int, rows: int) -> Any:
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height, figure.origin, figure.with_colors = max(30, min(60, width - 36)), rows, False, True
    figure.color_mode = "names"
    return figure


def _seconds(value: float, _: float = 0.0) -> str:
    return str(show(10**value, "s", 2))


def _distribution(found: Simulation, width: int) -> RenderableType:
    """Return the share of requests within a latency, TTFT and TPOT, on a logarithmic axis."""
    done = found.requests[found.requests["status"] == DONE]
    curves = (
        ("TTFT", "green", done["first"] - done["arrival"]),
        ("TPOT", "cyan", ((done["finish"] - done["first"]) / np.maximum(done["outputs"] - 1, 1))[done["outputs"] > 1]),
    )
    figure = _figure(width, 10)
    share = np.linspace(0.0, 1.0, 101)
    drawn = [(name, colour, np.log10(np.maximum(np.quantile(v, share), 1e-9))) for name, colour, v in curves if np.any(v > 0)]
    low = min(math.log10(np.quantile(v[v > 0], 0.01)) for _, _, v in curves if np.any(v > 0))
    high = max(x[-1] for _, _, x in drawn)
    figure.set_x_limits(float(low) - 0.05, float(max(high, low + 0.1)) + 0.05)
    figure.set_y_limits(0, 100)
    figure.x_ticks_fkt, figure.y_ticks_fkt = _seconds, lambda value, _: f"{value:.0f} %"
    figure.x_label, figure.y_label = "latency", "requests"
    for _, colour, x in drawn:
        figure.plot(x, 100 * share, lc=colour)
    legend = Text()
    for name, colour, _ in drawn:
        legend.append(f"━ {name}   ", style=colour)
    return Group(Text("Share of requests within a latency", style="bold"), Text.from_ansi(figure.show(legend=False)), legend)


def _timeline(found: Simulation, width: int) -> RenderableType:
    """Return decode batch, cache and queue over time as rows of bars."""
    line = found.timeline
    cells = max(20, min(100, width - 34))
    shown = table("Over time", f"0 to {show(float(line['seconds'][-1]), 's')}", "Most", numbers=(2,))
    rows: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("Sequences decoding", "decoding", lambda v: f"{v:,.0f}"),
        ("KV cache", "kv", lambda v: f"{v:.0%}"),
        ("Requests waiting", "waiting", lambda v: f"{v:,.0f}"),
    )
    for name, key, write in rows:
        values = np.array([part.mean() for part in np.array_split(np.asarray(line[key], dtype=np.float64), cells)])
        most = float(np.max(line[key]))
        scale = values / (most or 1.0)
        bars = "".join(LEVELS[min(8, math.ceil(8 * max(0.0, s) - 1e-9))] for s in scale)
        shown.add_row(name, Text(bars, style="cyan", no_wrap=True), write(most))
    return shown


def _cache(use: CacheUse) -> RenderableType:
    shown = table("Prefix cache", "Hits", "Read", "Written", numbers=(1, 2, 3))
    for name, hits, read, written in zip(use.tiers, use.hit_tokens, use.bytes_read, use.bytes_written, strict=True):
        shown.add_row(name, f"{hits:,.0f} tok", show(float(read), "B"), show(float(written), "B"))
    text = f"{use.hit_rate:.1%} of prompt tokens need not be computed"
    if use.recomputed:
        text += f"; {use.recomputed:,} tokens lie behind a block that is computed sooner than loaded"
    return Group(shown, Text(text + "."))


def rate_view(rate: float, points: Sequence[RatePoint], quantile: str, width: int) -> RenderableType:
    """Return the search for the highest rate: a plot of latency against rate, and the points."""
    parts: list[RenderableType] = []
    drawn = [p for p in points if math.isfinite(p.ttft)]
    if len(drawn) > 1:
        figure = _figure(width, 10)
        x = np.log10([p.rate for p in drawn])
        y = np.log10([max(p.ttft, 1e-9) for p in drawn])
        figure.set_x_limits(float(x.min()) - 0.05, float(x.max()) + 0.05)
        figure.set_y_limits(float(y.min()) - 0.1, float(max(y.max(), y.min() + 0.2)) + 0.1)
        figure.x_ticks_fkt, figure.y_ticks_fkt = lambda value, _: f"{10**value:.3g}", _seconds
        figure.x_label, figure.y_label = "requests/s", f"TTFT {quantile}"
        figure.plot(x, y, lc="green")
        parts += [Text(f"Rate against {quantile} of TTFT", style="bold"), Text.from_ansi(figure.show(legend=False))]
    shown = table("Requests/s", f"TTFT {quantile}", f"TPOT {quantile}", "", numbers=(0, 1, 2))
    for p in points:
        shown.add_row(
            f"{p.rate:.4g}",
            *("-" if math.isnan(value) else show(value, "s") for value in (p.ttft, p.tpot)),
            Text(p.verdict if p.good or p.verdict == OVERLOADED else f"{p.verdict}, {p.why or 'limits not met'}"),
        )
    best = f"{rate:,.4g} requests/s is the highest rate within the limits" if rate else "no rate is within the limits"
    why = next((p.why for p in points if p.why), "")
    if not rate and why:
        best += f": {why}"
    return Group(*parts, shown, Text(best + f", at {quantile}.", style="bold green" if rate else "bold red"))


def range_view(found: Simulation, ends: Mapping[float, Simulation]) -> RenderableType:
    """Return a run beside those whose steps all take as long as at the `ends` of the engine's 90 % range."""
    runs = {"As predicted": found} | {f"Steps x {slowness:.2f}": end for slowness, end in ends.items()}
    shown = table("90 % range", *runs, numbers=range(1, 1 + len(runs)))

    def row(name: str, write: Callable[[Answers], str]) -> None:
        shown.add_row(name, *(write(end.answers) for end in runs.values()))

    row("First token, p90", lambda a: show(a.ttft.p90, "s"))
    row("Time per token, p90", lambda a: show(a.tpot.p90, "s"))
    row("Throughput", lambda a: f"{a.requests_per_second:,.4g} requests/s")
    row("Within the limits", lambda a: f"{a.within_limits:.1%}")
    row("Verdict", lambda a: a.verdict)
    return shown


def replay_view(found: Replay) -> RenderableType:
    """Return in a few lines what random arrivals make of a plan."""
    a, q = found.simulation.answers, found.quantile
    ttft, tpot = show(getattr(a.ttft, q), "s"), show(getattr(a.tpot, q), "s")
    text = Text.assemble(
        ("Simulated", "bold"),
        f" with random arrivals, limits at {q}: batch {found.batch:,} instead of {found.planned_batch:,} and "
        f"{found.rate:,.4g} requests/s instead of {found.planned_rate:,.4g} give TTFT {ttft} and TPOT {tpot}, "
        f"{usd(a.usd_per_million_output_tokens)} per million output tokens ({a.verdict}).",
    )
    if not found.good:
        text.append(f" After {found.tried} tries the limits still do not hold.", style="yellow")
    return text


def simulation_title(model: str, chip: str, found: Simulation, layout: Any, engine: str) -> str:
    """Say in a line what was run on what."""
    n = found.prefill_replicas
    extra = f", {n} prefill replica{'s' if n > 1 else ''}" if n else ""
    layout = show_layout(layout) + extra
    kind = (
        f"a train every {show(found.policy.interval, 's')}" if found.policy.kind == "train" else f"{found.policy.kind} batching"
    )
    sent = f"{found.answers.sent:,} request" + ("s" if found.answers.sent > 1 else "")
    return f"{model} on {found.chips} x {chip} ({layout}), engine {engine}: {sent}, {found.traffic.name}, {kind}"
