"""Text of training runs: step, memory, schedule, cost, scaling, training stacks, and their validation.

Pipeline schedule of a training step as a text chart: one row per device, time from left to right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import figure, label, render_chart, room
from steptime.cli.views.widgets import Grid, facts, heading, notes, ranged, share_table, stacked
from steptime.hardware.energy import BASES
from steptime.hardware.rental_prices import rent_in_words, usd
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array
from steptime.result_base import in_words
from steptime.training.layer_profile import LayerProfile, layer_profiles
from steptime.training.layer_time import layer_passes
from steptime.training.schedule_timeline import IDLE, KIND_NAMES, Timeline
from steptime.training.schedules.work_order import BACKWARD, INPUT, KINDS, PAIR
from steptime.training.training_alternatives import Change, Scaling
from steptime.training.training_job import show_training_layout
from steptime.training.training_memory import PARTS
from steptime.training.training_planner import Training, TrainingStep
from steptime.training.training_runs import TrainingRunCost
from steptime.training.training_stack import CONSTANTS, TrainingEngine, load_stack, on_chip
from steptime.units import DAY, counted, in_digits, show
from steptime.validation.training_validation import TrainingValidation

# Changes that the default output names.
MAX_CHANGES = 3


def stacks_view(names: Iterable[str], catalog: str | None) -> RenderableType:
    """Return the training stacks with title, measured runs and speed.

    Args:
        names: Names of training stacks.
        catalog: Folder that is searched before the packaged catalogue.

    Returns:
        Something that a console prints.
    """
    grid = Grid(("Training stack", "What", "Runs", "Speed"), numbers=(2, 3))
    for name in names:
        stack = load_stack(name, catalog)
        grid.add_row(stack.name, stack.title, f"{stack.fit.get('runs', 0):,}", f"{float(stack.speed):.2f}")
    return Group(Text("Training stacks (steptime train --engine NAME)", style="bold"), grid)


def stack_view(stack: TrainingEngine) -> RenderableType:
    """Return the constants of a stack with their uncertainty, and the features of the stack.

    Args:
        stack: A training stack.

    Returns:
        Something that a console prints.
    """
    width = stack.fit.get("width", {})
    grid = Grid(("Constant", "Value", "Std dev", "What"), numbers=(1, 2), first_to_go=(3, 2))
    for name, description in CONSTANTS.items():
        sure = f"{width[name]:.2g}" if name in width else ""
        grid.add_row(name, f"{float(getattr(stack.constants, name)):.4g}", sure, f"{description['unit']} {description['line']}")
    has = [(feature, ", ".join(values)) for feature, values in (
        ("Schedules", stack.schedules), ("Sharding", stack.shardings), ("Recomputation", stack.recomputes),
    ) if values]  # fmt: skip
    rows = [("Stack", f"{stack.name}: {stack.title}"), ("Fitted to", f"{stack.fit.get('runs', 0):,} measured runs"),
            ("Speed", f"{float(stack.speed):.3g} of the constants'"), *has]  # fmt: skip
    note = Text("Std dev: of the logarithm of the constant; of the value for gains and exponents.", style="bright_black")
    return Group(facts(rows), grid, note)


# Colours of operators, then of uses of memory.
COLOURS = {
    "matrices": "blue", "attention": "magenta", "experts": "green", "element-wise": "white", "head": "bright_blue",
    "recompute": "cyan", "tensor parallel": "yellow", "context parallel": "bright_yellow", "expert exchange": "yellow",
    "data parallel": "bright_yellow", "pipeline idle": "red", "pipeline hops": "bright_red", "optimizer": "bright_black",
    "launch": "bright_black", "step": "bright_black", "multi-token prediction": "bright_green",
}  # fmt: skip
MEMORY_COLOURS = {
    "weights": "blue", "gradients": "cyan", "optimizer": "green", "activations": "magenta", "logits": "yellow",
    "gathered": "bright_blue", "buffers": "white", "reserved": "bright_black",
}  # fmt: skip


def training_view(training: Training, system: System, timeline: Timeline | None, width: int, *, full: bool) -> RenderableType:
    """Return a training run as text: days, dollars and MFU, its layout and step, and with `full` everything else.

    Args:
        training: The run with its fastest layout.
        system: What it runs on.
        timeline: The schedule of a step; None without pipeline stages.
        width: Columns of the terminal.
        full: Whether to add memory, the time of all operators, the run's figures and the schedule.

    Returns:
        Something that a console prints.
    """
    # The short answer ends with what would help; tables and charts need --full.
    step = training.step
    times = share_table({name: float(value) for name, value in step.terms.items()}, COLOURS, width, "Operator")
    parts: list[RenderableType] = [_answer(training), *notes(_warnings(step)), facts(_figures(training, system, full=full))]
    if not full:
        return Group(
            *parts,
            Text(f"{training.why[:1].upper()}{training.why[1:].rstrip('.')}.", style="bold"),
            _changes(training.changes[:MAX_CHANGES]),
        )
    memory = [
        (name, float(getattr(step.memory, name)), MEMORY_COLOURS[name]) for name in PARTS if float(getattr(step.memory, name))
    ]
    memory_title = f"Memory of the fullest chip, {show(float(step.memory.capacity), 'B')}"
    parts += [
        times,
        stacked(memory, float(step.memory.capacity), width, memory_title),
        Text(f"{training.why[:1].upper()}{training.why[1:].rstrip('.')}.", style="bold"),
    ]
    if training.changes:
        parts.append(_changes(training.changes))
    if timeline is not None:
        parts.append(schedule_picture(timeline, width, "The schedule of a step"))
    return Group(*parts)


def _warnings(step: TrainingStep) -> list[str]:
    """Return the warnings of a step."""
    reversible = step.layout.recompute == "reversible"
    return [f"assumes reversible layers; the layers of {step.model} are not reversible"] if reversible else []


def _days(seconds: float) -> str:
    return f"{in_digits(seconds / DAY)} days" if seconds >= DAY else show(seconds, "s")


def _answer(training: Training) -> Text:
    """Return days, cost and MFU of the run, or the step time without --tokens."""
    step, job, run = training.step, training.job, training.run
    verb = {"pretrain": "Train", "sft": "Fine-tune", "lora": "Fine-tune (LoRA)"}[job.task]
    subject = f"{step.model} on {counted(training.chips, 'chip')} of {step.system}"
    mfu = f"MFU {float(step.mfu_causal):.1%}"
    if run is None:
        limits = None if step.stack == "ideal" else (float(step.low), float(step.high))
        time = f"{ranged(float(step.total), limits, lambda value: show(value, 's'))} per step, {mfu}."
        return Text.assemble((f"{verb} {subject}: ", "bold"), (time, "bold green"), " --tokens gives days and cost.")
    limits = (run.usd_low, run.usd_high) if math.isfinite(run.usd_low) and math.isfinite(run.usd_high) else None
    cost = f"{ranged(run.usd, limits, usd)}, " if math.isfinite(run.usd) else ""
    time = f"{ranged(run.seconds, (run.low, run.high), _days)}, {cost}{mfu}."
    return Text.assemble((f"{verb} {subject} on {_tokens(run.tokens)} tokens: ", "bold"), (time, "bold green"))


def _figures(training: Training, system: System, *, full: bool) -> list[tuple[str, str | Text]]:
    """Return the figures of a step and of the run, the shorter list without `full`."""
    step, job, run = training.step, training.job, training.run
    limits = None if step.stack == "ideal" else (float(step.low), float(step.high))
    time = ranged(float(step.total), limits, lambda value: show(value, "s"))
    batch = f"{counted(int(job.batch), 'sequence')} of {counted(int(job.seq), 'token')} in {job.dtype}"
    rows: list[tuple[str, str | Text]] = [
        ("Layout", Text(show_training_layout(step.layout), style="bold")),
        ("Step", f"{time}: {batch}, stack {step.stack}"),
        ("Tokens per chip", f"{in_digits(float(step.tokens_per_second_per_chip))} tok/s"),
    ]
    bubble, exposed = float(np.asarray(step.bubble)), float(np.asarray(step.exposed))
    rows += [("Pipeline bubble", f"{bubble:.1%} of the step")] if bubble else []
    rows += [("Exposed communication", f"{show(exposed, 's')} per step")] if exposed else []
    if training.runner_up:
        rows.append(("Runner-up", f"{training.runner_up}: {training.runner_up_slower - 1:.1%} slower"))
    if full:
        rows += [
            ("Bounds", f"{show(float(step.lower), 's')} without losses, {show(float(step.upper), 's')} without overlap"),
            ("MFU, full attention", f"{float(step.mfu_full):.1%}"),
            ("HFU, with recomputation", f"{float(step.hfu):.1%}"),
            ("Layouts tried", f"{training.evaluated_layouts:,}"),
        ]
    return rows + (_run(run, system, full=full) if run is not None else [])


def _run(run: TrainingRunCost, system: System, *, full: bool) -> list[tuple[str, str | Text]]:
    failures = f"{in_digits(run.failures)} failures, one every {show(run.between_failures, 's')}"
    checkpoints = f"a checkpoint every {show(run.checkpoint_every, 's')}"
    rows: list[tuple[str, str | Text]] = [("Goodput", f"{run.goodput:.1%}: {failures}; {checkpoints}")]
    if math.isfinite(run.usd):
        spares = f" ({run.spares:,} spares included)" if run.spares else ""
        rows.append(("Rent", f"{in_digits(run.chip_hours)} chip-hours{spares} at {rent_in_words(system.rent)}"))
    else:
        rows.append(("Rent", f"the rent of {system.name} is not known; --rent 2.10 sets it in USD per chip-hour"))
    if full:
        rows += [
            ("Steps", f"{run.steps:,.0f}, {run.flops:.3g} FLOP with causal attention"),
            ("Failures", f"{in_digits(run.failures)} in the run; {show(run.checkpoint, 'B')} per checkpoint"),
            ("Chip-hours", f"{run.chip_hours:,.0f}"),
        ]
    if full and math.isfinite(run.joules):
        rows.append(("Energy", f"{in_digits(run.joules / 3.6e9)} MWh, {BASES.get(run.power_basis, run.power_basis)}"))
    return rows


def _changes(changes: Sequence[Change]) -> RenderableType:
    grid = Grid(("What would help", "Speed-up", "Layout"), numbers=(1,), first_to_go=(2,))
    for change in changes:
        grid.add_row(change.description, f"{change.faster:.2f}x", change.layout or "the same")
    return grid


def scaling_view(scaling: Scaling, width: int) -> RenderableType:
    """Return step time and tokens per chip against the number of chips.

    Args:
        scaling: Points of strong and weak scaling.
        width: Columns of the terminal.

    Returns:
        A table, and a chart if three or more points fit in memory.
    """
    grid = Grid(("Scaling", "Chips", "Batch", "Step", "tok/s per chip", "Layout"), numbers=(1, 2, 3, 4), first_to_go=(5,))
    for point in scaling.points:
        is_feasible = math.isfinite(point.seconds)
        grid.add_row(point.kind, f"{point.chips:,}", f"{point.batch:,}", show(point.seconds, "s") if is_feasible else "-",
                     f"{point.tokens_per_second_per_chip:,.0f}" if is_feasible else "-", point.layout)  # fmt: skip
    drawable = [point for point in scaling.points if math.isfinite(point.seconds)]
    if len(drawable) < 3:
        return grid
    # Logarithmic axis of chips, with both kinds of scaling in one chart.
    chart = figure(room(width), 12)
    x = np.log2([point.chips for point in drawable])
    y = np.array([point.tokens_per_second_per_chip for point in drawable])
    chart.set_x_limits(float(x.min()) - 0.2, float(x.max()) + 0.2)
    chart.set_y_limits(0, float(y.max()) * 1.1)
    chart.x_ticks_fkt, chart.y_ticks_fkt = (lambda value, _: f"{2**value:,.0f}"), (lambda value, _: f"{value:,.0f}")
    label(chart, "chips", "tok/s per chip", width)
    for kind, colour, marker in (("strong", "green", "s"), ("weak", "cyan", "w")):
        indices = [place for place, point in enumerate(drawable) if point.kind == kind]
        if indices:
            chart.plot(x[indices], y[indices], lc=colour)
            chart.scatter(x[indices], y[indices], lc=colour, marker=marker)
    legend = Text("s strong: the same batch   ", style="green").append("w weak: the batch grows with the chips", style="cyan")
    return Group(grid, Text("Tokens per second per chip against chips", style="bold"), render_chart(chart), legend)


def explained_view(model: Model, system: System, training: Training, engine: TrainingEngine) -> RenderableType:
    """Return the forward and backward time of each kind of layer for one micro-batch, and the sum of a step.

    Args:
        model: The model.
        system: The system.
        training: The run with its layout.
        engine: The training stack.

    Returns:
        A table with formulas, and a line on the step.
    """
    x, job = training.step.layout, training.job
    tuned = on_chip(engine, system, experts=model.routed)
    grid = Grid(("Layer", "What", "Forward", "Backward", "How"), numbers=(2, 3), first_to_go=(4,))
    twice = "as much" if job.task == "lora" else "twice"
    rows = f"{x.micro_batch:g} x {job.seq:,} / cp {x.cp:g} = {x.micro_batch * job.seq / x.cp:,.0f} rows"
    for (sheet, n), (layer, _) in zip(layer_profiles(model), model.layers, strict=True):
        passes = layer_passes(sheet, job, system, tuned, x)
        how = {
            "matrices": f"{_giga(sheet, routed=False)} GFLOP per row, {rows}, tp {x.tp:g}; backward {twice}",
            "experts": f"{_giga(sheet, routed=True)} GFLOP per row, equal tokens per expert",
            "attention": "causal pairs; backward takes 2.5 times (flash attention)"
            if job.attention == "flash"
            else "all pairs, scores in memory",
            "element-wise": f"{sheet.element_values:,.0f} values per row in 16 bits, each read or written once; backward twice",
            "tensor parallel": f"{2 * sheet.blocks} collectives forward, {3 * sheet.blocks} backward, minus overlap with GEMMs",
            "recompute": f"{x.recompute}: forward pass again before the backward pass",
        }
        for place, name in enumerate(dict.fromkeys([*passes.forward, *passes.backward])):
            seconds = [
                in_words(np.asarray(part.get(name, 0.0)) / tuned.speed, lambda v: show(v, "s"))
                for part in (passes.forward, passes.backward)
            ]
            grid.add_row(f"{n} x {layer.name}" if not place else "", name, *seconds, how.get(name, ""))
    step = training.step
    idle, copies = (show(float(step.terms.get(name, 0.0)), "s") for name in ("pipeline idle", "data parallel"))
    words = (
        f"Step time: {counted(float(step.microbatches), 'micro-batch', 'micro-batches')} x the slowest stage, plus {idle} of "
        f"pipeline idle time, {copies} of exposed data-parallel communication, the optimizer, and the constant time per step. "
        f"Sum: {show(float(step.total), 's')}."
    )
    return Group(Text("One layer and one micro-batch on one chip", style="bold"), grid, Text(words))


def _giga(sheet: LayerProfile, *, routed: bool) -> str:
    """Return the GFLOP per row of a layer's GEMMs."""
    return f"{sum(product.flops for product in sheet.products if product.routed is routed) / 1e9:,.3g}"


def _tokens(count: float) -> str:
    """Write a number of tokens with a scale letter: 14.8T, 469B."""
    scale, letter = (1e12, "T") if count >= 1e12 else (1e9, "B") if count >= 1e9 else (1e6, "M")
    return f"{count / scale:,.4g}{letter}"


# Maximum number of runs without a prediction that the text names.
MOST_NAMED = 12
COLUMNS = ("", "Runs", "Median", "Mean", "p90", "Bias", "Covered")


def validation_view(validation: TrainingValidation) -> RenderableType:
    """Return the errors of the step time by kind, of memory, and the runs without a prediction.

    Args:
        validation: Predicted and measured training runs.

    Returns:
        Something that a console prints.
    """
    parts: list[RenderableType] = [
        Text(f"{counted(validation.runs, 'training run')}: predicted against measured", style="bold")
    ]
    for name, table in validation.step.items():
        grid = Grid(COLUMNS, title="Time of a step" if name == "all" else f"By {name}", numbers=range(1, len(COLUMNS)))
        for value, errors in ({"all": table} if name == "all" else table).items():
            grid.add_row(value, *_cells(errors))
        parts.append(grid)
    if validation.memory:
        m = validation.memory
        parts.append(
            Text(
                f"Peak memory of {counted(int(m['runs']), 'run')}: median error {m['median']:.1%}, mean {m['mean']:.1%}, worst "
                f"{m['worst']:.1%}, bias {m['bias']:+.1%}"
            )
        )
    parts.append(Text(f"Predicted to fit in memory: {validation.fitting:.1%} of the measured runs"))
    if validation.unanswered:
        parts.append(Text(f"{counted(len(validation.unanswered), 'run')} without a prediction:", style="bold"))
        parts += [Text(f"  {words}") for words in validation.unanswered[:MOST_NAMED]]
        unnamed_count = len(validation.unanswered) - MOST_NAMED
        if unnamed_count > 0:
            parts.append(Text(f"  and {unnamed_count} more; --predictions OUT.csv has them all"))
    return Group(*parts)


def _cells(errors: Mapping[str, float]) -> list[str]:
    """Return the cells of a row."""
    shares = [f"{errors[name]:.1%}" for name in ("median", "mean", "p90")]
    return [f"{errors['runs']:,.0f}", *shares, f"{errors['bias']:+.1%}", f"{errors['coverage']:.0%}"]


# Colours in the order of KINDS.
STYLES: Final = ("blue", "yellow", "yellow", "green", "magenta")
# Glyphs in the same order, which differ without colour too.
FILLS: Final = ("█", "▒", "▒", "░", "▓")
GAP: Final = "·"
# Maximum rows; with more devices, only the first and the last are shown.
MOST_ROWS: Final = 24
# Maximum width of the shortest piece of work, in cells.
WIDEST: Final = 8


def schedule_picture(timeline: Timeline, width: int, title: str = "") -> RenderableType:
    """Return the work of each device over time; a long step shows only its beginning and its end.

    Args:
        timeline: Start, end and kind of all work in a step.
        width: Columns of the terminal.
        title: Title above the chart.

    Returns:
        Something that a console prints.
    """
    label = len(str(timeline.devices - 1)) + 1
    room = max(20, width - label - 1)
    shortest = float((timeline.end - timeline.start).min())
    total_units = timeline.total / shortest
    # Width of the shortest piece of work if the whole step is shown.
    cells = math.floor(room / total_units)
    lines = [heading(title)] if title else []
    if cells >= 1:
        step = shortest / min(cells, WIDEST)
        count = min(room, math.ceil(timeline.total / step - 1e-9))
        lines += _rows(timeline, [(0.0, count)], step, label)
        lines.append(_axis([(0.0, timeline.total)], [count], label))
    else:
        # Two cells for the shortest piece of work: beginning and end share the width.
        step, half = shortest / 2, (room - 3) // 2
        since = timeline.total - half * step
        lines += _rows(timeline, [(0.0, half), (since, half)], step, label)
        lines.append(_axis([(0.0, half * step), (since, timeline.total)], [half, half], label))
    return Group(*lines, *_legend(timeline, width), _summary(timeline))


def _listed_devices(devices: int) -> list[int]:
    """Return the devices with a row; -1 stands for the omitted devices."""
    if devices <= MOST_ROWS:
        return list(range(devices))
    half = MOST_ROWS // 2
    return [*range(half), -1, *range(devices - half, devices)]


def _rows(timeline: Timeline, parts: list[tuple[float, int]], step: float, label: int) -> list[Text]:
    part_cells = [timeline.cells(since, step, count) for since, count in parts]
    lines = []
    for device in _listed_devices(timeline.devices):
        if device < 0:
            lines.append(Text("⋮".rjust(label - 1)))
            continue
        line = Text(f"{device}".rjust(label - 1) + " ")
        for number, cells in enumerate(part_cells):
            line.append(" … " if number else "")
            line.append_text(_row(timeline, cells[device]))
        lines.append(line)
    return lines


def _row(timeline: Timeline, cells: Array) -> Text:
    """Return the cells of a device: number of the micro-batch, then the glyph of its work."""
    line = Text()
    bounds = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    for low, high in pairwise(bounds):
        place, length = int(cells[low]), high - low
        if place == IDLE:
            line.append(GAP * length, style="bright_black")
            continue
        kind, micro, back = int(timeline.kind[place]), int(timeline.micro[place]), int(timeline.back_micro[place])
        number = f"{micro}" if kind != PAIR else f"{micro},{back}"
        number = number if len(number) < length else ""
        style = STYLES[kind] + (" dim" if timeline.chunk[place] else "")
        line.append(number, style=f"bold {STYLES[kind]}")
        line.append(FILLS[kind] * (length - len(number)), style=style)
    return line


def _axis(parts: list[tuple[float, float]], counts: list[int], label: int) -> Text:
    """Return the time axis: the times at both ends of each part."""
    line = " " * label
    for number, ((since, until), count) in enumerate(zip(parts, counts, strict=True)):
        line += "   " if number else ""
        first, last = show(since, "s") if since else "0", show(until, "s")
        line += first + last.rjust(max(1, count - len(first)))
    return Text(line, style="bright_black")


def _legend(timeline: Timeline, width: int) -> list[Text]:
    """Return the meaning of the glyphs."""
    kinds = [KINDS.index(kind) for kind in timeline.kinds]
    both = "backward, whole or gradients of inputs" if BACKWARD in kinds else KIND_NAMES[INPUT]
    pieces = [
        Text.assemble((f"{FILLS[kind]} ", STYLES[kind]), both if kind == INPUT else KIND_NAMES[kind])
        for kind in kinds
        if not (kind == BACKWARD and INPUT in kinds)
    ]
    if int(timeline.chunk.max()) > 0:
        pieces.append(Text.assemble(("dim", "dim"), " later parts of the model"))
    pieces.append(Text.assemble((f"{GAP} ", "bright_black"), "idle"))
    # As many pieces per line as fit the width.
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if lines[-1].cell_len + 3 + piece.cell_len <= width:
            lines[-1] = Text("   ").join([lines[-1], piece])
        else:
            lines.append(piece)
    return lines


def _summary(timeline: Timeline) -> Text:
    """Return time, idle time and micro-batches in flight in one line."""
    min_idle, max_in_flight = float(timeline.idle.min()), float(timeline.in_flight.max())
    idle = (
        f"the busiest device idles {show(min_idle, 's')} ({min_idle / timeline.total:.1%})"
        if min_idle
        else "the busiest device is never idle"
    )
    flight = f"at most {max_in_flight:.4g} micro-batch{'es' if max_in_flight > 1 else ''} in flight on a device"
    return Text(f"{show(timeline.total, 's')} a step; {idle}; {flight}")
