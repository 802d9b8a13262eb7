"""What the terminal shows: tables, bars and plots of plans, steps, models and systems. No formula lives here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from steptime.machines.system import System
from steptime.models.model import Model
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout, show_layout
from steptime.physics.memory import Memory
from steptime.physics.step import Step
from steptime.planning.deployment import Plan, Point, mean_resources, mean_terms
from steptime.planning.elasticity import IN_WORDS
from steptime.planning.explanation import Line, equations, explain_step, sources, step_given
from steptime.planning.launch_commands import launch_commands
from steptime.planning.refine import AS_CHEAP
from steptime.terminal.widgets import bar, ranged, share_table, sourced, table, usd
from steptime.units import show

COLOURS = {
    "projections": "blue",
    "attention": "magenta",
    "feed-forward": "cyan",
    "experts": "green",
    "shared experts": "bright_green",
    "head": "bright_blue",
    "embedding": "bright_blue",
    "norms": "white",
    "all-reduce": "yellow",
    "context exchange": "bright_yellow",
    "dispatch": "yellow",
    "combine": "bright_yellow",
    "pipeline": "red",
    "overhead": "red",
}
RESOURCES = {
    "compute": "arithmetic",
    "weights": "weights",
    "kv": "KV cache",
    "activations": "activations",
    "scale-up": "scale-up network",
    "pod": "pod network",
    "scale-out": "scale-out network",
    "latency": "message latency",
    "overhead": "engine overhead",
}
RESOURCE_COLOURS = {
    "compute": "green",
    "weights": "blue",
    "kv": "magenta",
    "activations": "white",
    "scale-up": "yellow",
    "pod": "bright_yellow",
    "scale-out": "red",
    "latency": "bright_red",
    "overhead": "bright_black",
}
FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("USD/M output tokens", "usd_per_million_output_tokens", usd),
    ("Speed for each user", "tokens_per_second_per_user", lambda x: f"{x:,.1f} tok/s"),
    ("First token, mean", "ttft", lambda x: show(x, "s")),
    ("Output per chip", "tokens_per_second_per_chip", lambda x: show(x, "tok/s")),
)
MEANING = "90 % range: of measured runs that were left out of the engine's fit, nine in ten lie in it."

# --- plan ---------------------------------------------------------------------------------------------------------------


def plan_view(plan: Plan, width: int) -> RenderableType:
    """Return everything that a plan says on one screen."""
    parts: list[RenderableType] = [_question(plan)]
    if not plan.feasible:
        parts.append(Text.assemble(("Not possible: ", "bold red"), plan.reason + "."))
        if plan.front:
            parts += [Text(), _front_plot(plan, width)]
        return Group(*parts, *_warnings(plan))
    parts += [_answer(plan), Text(), _pools(plan), _comparison(plan), *_memory_bars(plan, width), Text()]
    parts += [
        _shares(plan, width),
        Text(),
        _front_plot(plan, width),
        Text(),
        Text(plan.why, style="bold"),
        Text(),
        _worth(plan, width),
    ]
    return Group(*parts, *_warnings(plan))


def _question(plan: Plan) -> Text:
    w, limits = plan.workload, []
    if math.isfinite(plan.slo.tpot):
        limits.append(f"at least {1 / plan.slo.tpot:,.4g} tok/s per user")
    if math.isfinite(plan.slo.ttft):
        limits.append(f"first token within {show(plan.slo.ttft, 's')}")
    cached = f" ({w.cached_share:.0%} cached)" if w.cached_share else ""
    text = f"{plan.chips:,} chips, {w.input_tokens:,} tokens in{cached}, {w.output_tokens:,} out"
    what = Text.assemble((plan.model, "bold"), " on ", (plan.system, "bold"), f": {text}")
    if limits:
        what.append("; " + ", ".join(limits))
    real = "with its losses; --engine ideal gives the bound that physics sets"
    return what.append(f". Engine: {plan.engine}, {'the bound that physics sets' if plan.engine == 'ideal' else real}.")


def _answer(plan: Plan) -> Text:
    if plan.cost_range is None:
        spread = f"from {usd(plan.cost_bounds[0])}, were all overlapped, to {usd(plan.cost_bounds[1])}, were nothing"
    else:
        spread = f"90 % range {usd(plan.cost_range[0])} to {usd(plan.cost_range[1])}"
    if plan.ideal is not None:
        spread += f"; ideal {usd(plan.ideal.usd_per_million_output_tokens)}"
    return Text.assemble(
        (f"{usd(plan.usd_per_million_output_tokens)} per million output tokens", "bold green"),
        f", prompts included ({spread}). ",
        f"Apart: {usd(plan.prefill_usd_per_million_tokens)} per million in, "
        f"{usd(plan.decode_usd_per_million_tokens)} per million out.",
    )


def _pools(plan: Plan) -> Table:
    shown = table("Pool", "Layout of a replica", "Chips", "Batch", "Chunk", "Step", numbers=(2, 3, 4, 5))
    for pool in plan.pools:
        one = Layout(**{name: getattr(pool.layout, name) for name in ("tp", "pp", "dp", "ep", "cp", "microbatches")})
        count = int(pool.layout.replicas)
        shown.add_row(
            pool.role,
            show_layout(one),
            f"{count} x {int(pool.layout.chips)}",
            f"{pool.batch:,} {'prompts' if pool.role == 'prefill' else 'seq'}",
            f"{pool.chunk:,} tok" if pool.chunk else "-",
            show(sum(mean_terms(pool).values()), "s"),
        )
    return shown


def _comparison(plan: Plan) -> RenderableType:
    """Return the plan's figures with their ranges beside those of the ideal and of the runner-up."""
    others = {"Ideal": plan.ideal, "Runner-up": plan.runner_up}
    points = {title: point for title, point in others.items() if point is not None}
    ranges = (plan.cost_range, plan.speed_range, plan.ttft_range, plan.throughput_range)
    shown = table("", "Cheapest" + (" (90 % range)" if any(ranges) else ""), *points, numbers=range(1, 2 + len(points)))
    mine = _own_point(plan)
    for (name, field, write), limits in zip(FIGURES, ranges, strict=True):
        cells = [write(getattr(point, field)) for point in points.values()]
        shown.add_row(name, ranged(getattr(mine, field), limits, write), *cells)
    return Group(shown, *_beside(plan), Text())


def _beside(plan: Plan) -> list[Text]:
    """Say what the columns of the comparison are, and what else the plan comes to."""
    facts = [
        f"{plan.requests_per_second:,.3g} requests a second",
        f"{plan.concurrency:,.0f} sequences in flight",
        f"prompt queue {plan.utilisation:.0%} in use",
        f"{show(plan.usd_per_second, 'USD/s')} for {plan.chips:,} chips",
    ]
    if plan.transfer_seconds:
        facts.append(f"{show(plan.transfer_seconds, 's')} of KV transfer a request")
    lines = [Text("; ".join(facts) + ".")]
    if plan.runner_up:
        more = plan.runner_up.usd_per_million_output_tokens / plan.usd_per_million_output_tokens - 1
        price = f"{more:.1%} dearer" if more > 0 else f"{-more:.1%} cheaper (within {AS_CHEAP:.1%}, the fastest comes first)"
        price = "as dear" if abs(more) < 0.0005 else price
        lines.append(Text(f"Runner-up: {plan.runner_up.layout_text}, batch {plan.runner_up.batch:,}: {price}."))
    if plan.ideal:
        lines.append(Text(f"{MEANING} Ideal: the same layout and batch, were nothing lost.", style="bright_black"))
    return lines


def _own_point(plan: Plan) -> Point:
    return Point(
        mode=plan.mode,
        layout_text=plan.layout_text,
        batch=plan.pools[-1].batch,
        tokens_per_second_per_user=plan.tokens_per_second_per_user,
        tokens_per_second_per_chip=plan.tokens_per_second_per_chip,
        usd_per_million_output_tokens=plan.usd_per_million_output_tokens,
        ttft=plan.ttft,
    )


def memory_bar(memory: Memory, width: int, title: str) -> RenderableType:
    """Return one stacked bar of a chip's memory with its legend."""
    capacity = float(memory.capacity)
    parts = [
        ("weights", memory.weights, "blue"),
        ("KV cache", memory.cache, "magenta"),
        ("activations", memory.activations, "cyan"),
    ]
    if np.any(memory.reserved):
        parts.append(("engine", memory.reserved, "white"))
    cells = max(20, min(60, width - 4))
    line, legend = Text(), Text(f"{title}: ")
    filled = 0
    total = 0.0
    for name, value, colour in parts:
        total += float(value) / capacity
        until = round(min(total, 1.0) * cells)
        line.append("█" * (until - filled), style=colour)
        filled = until
        legend.append("■ ", style=colour).append(f"{name} {show(float(value), 'B')}  ")
    free = capacity - float(memory.used)
    line.append("░" * (cells - filled), style="bright_black")
    legend.append("░ ", style="bright_black").append(f"free {show(free, 'B')}" if free >= 0 else f"{show(-free, 'B')} too much")
    return Group(legend, line)


def _memory_bars(plan: Plan, width: int) -> list[RenderableType]:
    capacity = show(float(plan.pools[0].memory.capacity), "B")
    names = {"serve": f"Memory of a chip, {capacity}"}
    return [
        memory_bar(pool.memory, width, names.get(pool.role, f"Memory of a {pool.role} chip, {capacity}")) for pool in plan.pools
    ]


def _shares(plan: Plan, width: int) -> RenderableType:
    server = plan.pools[-1]
    what = "mean step, steps with a prompt chunk included" if server.mixed is not None else "decode step"
    return Group(
        Text(f"Where the {show(plan.tpot, 's')} per token go ({what})", style="bold"),
        share_table(mean_terms(server), COLOURS, width, "Term"),
        share_table(
            {RESOURCES.get(k, k): v for k, v in mean_resources(server).items()},
            _renamed(RESOURCE_COLOURS),
            width,
            "Waits for",
        ),
    )


def _renamed(colours: Mapping[str, str]) -> dict[str, str]:
    return {RESOURCES[name]: colour for name, colour in colours.items()}


def _nice(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if value <= m * power * 1.0001)


def _front_plot(plan: Plan, width: int) -> RenderableType:
    """Return speed against throughput on the Pareto front, the chosen layout marked."""
    import plotille

    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return Text("Only one layout is on the Pareto front.")
    speed = np.log10([p.tokens_per_second_per_user for p in points])
    output = np.array([p.tokens_per_second_per_chip for p in points])
    step = _nice(float(max(output)) / 8)
    rows = math.ceil(float(max(output)) / step)
    low, high = math.floor(2 * speed.min()) / 2, math.ceil(2 * speed.max() + 1e-9) / 2
    columns = 10 * max(3, min(6, (width - 34) // 10))
    figure = plotille.Figure()
    figure.width, figure.height, figure.origin, figure.with_colors = columns, rows, False, True
    figure.color_mode = "names"
    figure.set_x_limits(low, high)
    figure.set_y_limits(0, rows * step)
    figure.x_ticks_fkt = lambda value, _: f"{10**value:,.0f}" if 10**value >= 9.5 else f"{10**value:.2g}"
    figure.y_ticks_fkt = lambda value, _: f"{value:,.0f}" if step >= 1 else f"{value:.3g}"
    figure.x_label, figure.y_label = "tok/s per user", "tok/s per chip"
    figure.plot(speed, output)
    if math.isfinite(plan.slo.tpot) and low < -math.log10(plan.slo.tpot) < high:
        limit = -math.log10(plan.slo.tpot)
        figure.plot([limit, limit], [0, rows * step], lc="red")
    if plan.feasible:
        figure.scatter([-math.log10(plan.tpot)], [plan.tokens_per_second_per_chip], lc="green", marker="◆")
    caption = Text("Pareto front: speed for each user against output of each chip", style="bold")
    marks = Text("◆ the cheapest layout" if plan.feasible else "", style="green").append(
        "   │ the speed asked for", style="red"
    )
    return Group(caption, Text.from_ansi(figure.show(legend=False)), marks, _front_table(points))


def _front_table(points: list[Point], most: int = 7) -> Table:
    """Return some points of the front, evenly spaced in speed."""
    shown = table("tok/s per user", "tok/s per chip", "USD/M out", "Batch", "Layout", numbers=(0, 1, 2, 3))
    speed = np.log([p.tokens_per_second_per_user for p in points])
    marks = np.linspace(speed.max(), speed.min(), most)
    for position in dict.fromkeys(int(np.argmin(np.abs(speed - mark))) for mark in marks):
        p = points[position]
        shown.add_row(
            f"{p.tokens_per_second_per_user:,.1f}",
            f"{p.tokens_per_second_per_chip:,.0f}",
            usd(p.usd_per_million_output_tokens),
            f"{p.batch:,}",
            p.layout_text,
        )
    return shown


def _worth(plan: Plan, width: int) -> RenderableType:
    """Return what 10 % more of each figure does to the cost."""
    shown = table("10 % more", "Cost changes by", "", numbers=(1,))
    changes = {name: 1.1**value - 1 for name, value in plan.elasticities.items()}
    largest = max((abs(change) for change in changes.values()), default=1.0) or 1.0
    cells = max(10, min(30, width - 44))
    for name, change in sorted(changes.items(), key=lambda item: item[1]):
        text = f"{change:+.1%}" if abs(change) >= 5e-4 else "0.0%"
        shown.add_row(IN_WORDS.get(name, name), text, bar(abs(change) / largest, cells, "green" if change < 0 else "red"))
    return Group(Text("What each figure is worth", style="bold"), shown)


def _warnings(plan: Plan) -> list[RenderableType]:
    return [Text.assemble(("Note: ", "yellow"), warning) for warning in plan.warnings]


def launch_view(plan: Plan, engines: Iterable[str]) -> RenderableType:
    """Return launch commands, one block an engine."""
    names = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
    parts: list[RenderableType] = []
    for engine in engines:
        parts += [
            Text(),
            Text(names[engine], style="bold"),
            *(Text(line, no_wrap=True, overflow="ignore") for line in launch_commands(plan, engine)),
        ]
    return Group(*parts)


# --- explanations -------------------------------------------------------------------------------------------------------


def lines_table(lines: list[Line]) -> Table:
    """Return a step's operators and collectives with their formulas."""
    shown = table("Term", "Operator", "Per chip and micro-batch", "Time", numbers=(3,))
    previous = ""
    for line in lines:
        shown.add_row(line.term if line.term != previous else "", line.name, escape(line.formula), show(line.seconds, "s"))
        previous = line.term
    return shown


def explain_plan(model: Model, system: System, plan: Plan, engine: Engine) -> RenderableType:
    """Return every term of a plan's steps with formulas, numbers and sources."""
    parts: list[RenderableType] = []
    for pool in plan.pools:
        parts += [Text(), Text(f"How the {pool.role} pool's figures come about", style="bold")]
        parts += [Text(f"  {rule}") for rule in equations(model, pool, plan.workload)]
        for step, mixed in ((pool.step, False), (pool.mixed, True)):
            if step is None:
                continue
            name = "prefill pass" if pool.role == "prefill" else "step with a prompt chunk" if mixed else "decode step"
            parts += [Text(), Text(f"A {name}: {show(float(step.total), 's')} (bounds {bounds(step)})", style="bold")]
            given = step_given(pool, plan.workload, mixed=mixed)
            parts.append(lines_table(explain_step(model, system, given=given, layout=pool.layout, engine=engine)))
    origin = model.source or {"url": "a local config"}
    where = ", ".join(text for key in ("grade", "date") if (text := origin.get(key)))
    parts.append(Text(f"Model: {origin['url']}" + (f" ({where})" if where else ""), no_wrap=True, overflow="ignore"))
    return Group(*parts, sources_table(system))


def bounds(step: Step) -> str:
    """Write the two bounds of a step."""
    return f"{show(float(step.lower), 's')}, all overlapped, to {show(float(step.upper), 's')}, nothing overlapped"


def sources_table(system: System) -> RenderableType:
    """Return where the machine's figures come from."""
    return sourced("Figure", sources(system))


# --- step ---------------------------------------------------------------------------------------------------------------


def step_view(
    title: str,
    step: Step,
    rates: Mapping[str, str],
    memory: Memory,
    width: int,
    *,
    limits: tuple[float, float] | None = None,
    ideal: Step | None = None,
) -> RenderableType:
    """Return one step: its time, the `limits` of its 90 % range, the `ideal`, what it delivers, its terms, and memory."""
    facts = table("", "", numbers=(1,))
    facts.show_header = False
    time = ranged(float(step.total), limits, lambda s: show(s, "s"))
    facts.add_row("Time" + (" (90 % range)" if limits else ""), Text(time, style="bold green"))
    if ideal is not None:
        facts.add_row("Ideal, were nothing lost", show(float(ideal.total), "s"))
    facts.add_row("Bounds", bounds(step))
    for name, value in rates.items():
        facts.add_row(name, value)
    return Group(
        Text(title),
        facts,
        share_table({k: float(v) for k, v in step.terms.items()}, COLOURS, width, "Term"),
        share_table(
            {RESOURCES.get(k, k): float(v) for k, v in step.resources.items()},
            _renamed(RESOURCE_COLOURS),
            width,
            "Waits for",
        ),
        memory_bar(memory, width, f"Memory of a chip, {show(float(memory.capacity), 'B')}"),
    )
