"""Text of training runs: step, memory, cost, scaling, training stacks, their validation, and the schedule as a chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.step_view import own_runs
from steptime.cli.views.terminal_plots import Axis, Curve, draw, log10
from steptime.cli.views.widgets import (
    Answer,
    Grid,
    facts,
    footnote,
    heading,
    listing,
    notes,
    packed,
    ranged,
    section,
    share_table,
    stacked,
    table,
)
from steptime.hardware.energy import BASES
from steptime.hardware.rental_prices import rent_in_words, usd
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array
from steptime.physics.run_covariance import TRAINING
from steptime.questions.train_comparison import TrainComparison
from steptime.result_base import in_words
from steptime.training.layer_profile import LayerProfile, layer_profiles
from steptime.training.layer_time import layer_passes
from steptime.training.schedule_timeline import IDLE, KIND_NAMES, Timeline
from steptime.training.schedules.work_order import BACKWARD, INPUT, KINDS, PAIR
from steptime.training.training_alternatives import Change, Scaling
from steptime.training.training_evidence import MEASURED
from steptime.training.training_job import show_training_layout
from steptime.training.training_memory import PARTS
from steptime.training.training_planner import SEARCH_TERM, Training
from steptime.training.training_runs import TrainingRunCost
from steptime.training.training_stack import CONSTANTS, TrainingEngine, load_stack, on_chip
from steptime.units import DAY, counted, in_digits, percent, percent_change, show
from steptime.validation.training_validation import TrainingValidation

# Changes that the default output names.
MAX_CHANGES = 3
# Runs without a prediction that the text names.
MOST_NAMED = 12


def comparison_view(comparison: TrainComparison, *, width: int, full: bool) -> Answer:  # noqa: ARG001 - views have one signature
    """Return the training runs of several systems, the cheapest first.

    Args:
        comparison: Runs.
        width: Columns of the terminal.
        full: Whether to show the layouts.

    Returns:
        The answer.
    """
    able = [standing for standing in comparison.standings if standing.chips]
    heads = ("System", "Chips", "Step", "tok/s/chip", "MFU", "Time (90 % range)", "Rent (90 % range)", "Layout")
    grid = table(*heads, numbers=range(1, 5), first_to_go=(7, 4) if not full else (4,))
    for standing in able:
        run = (standing.run_low, standing.run_high), (standing.usd_low, standing.usd_high)
        grid.add_row(
            standing.system, f"{standing.chips:,}", show(standing.step, "s"), f"{standing.tokens_per_second_per_chip:,.0f}",
            percent(standing.mfu), _or_unknown(standing.run, run[0], lambda value: show(value, "s")),
            _or_unknown(standing.usd, run[1], usd), standing.layout,
        )  # fmt: skip
    misses = [
        f"{standing.system}: misses the {standing.missed.replace(', ', ' and the ')}." for standing in able if standing.missed
    ]
    reasons = [f"{standing.system}: {standing.reason.rstrip('.')}." for standing in comparison.standings if not standing.chips]
    return Answer(
        sentence=comparison.text,
        body=[
            *([grid] if able else []), section("Too late or too expensive", misses) if misses else None,
            section("No run", reasons) if reasons else None,
        ],
        full_adds="layout of each",
    )  # fmt: skip


def _or_unknown(value: float, ends: tuple[float, float], write: Callable[[float], str]) -> str:
    return ranged(value, ends, write, label="") if math.isfinite(value) else "unknown"


def stacks_view(names: Iterable[str], catalog: str | None) -> RenderableType:
    """Return the training stacks with title, measured runs and speed.

    Args:
        names: Names of training stacks.
        catalog: Folder that is searched before the packaged catalogue.

    Returns:
        Something that a console prints.
    """
    grid = listing(
        "Training stack: {name} | Title: {title} | Runs: {runs:,} | Speed: {speed:.2f}",
        [load_stack(name, catalog) for name in names], runs=_measured_runs,
    )  # fmt: skip
    note = footnote("Runs: measured runs of the fit. Speed: of the stack, relative to the constants that all stacks share.")
    return Group(heading("Training stacks (steptime train --engine NAME)"), grid, note or "")


def _measured_runs(stack: TrainingEngine) -> int:
    return int(stack.fit.get("runs", 0))


def stack_view(stack: TrainingEngine, *, width: int, full: bool = False) -> Answer:  # noqa: ARG001 - views are called alike
    """Return the constants of a stack with their uncertainty, and the features of the stack.

    Args:
        stack: A training stack.
        width: Columns of the terminal.
        full: Whether to show all constants.

    Returns:
        The answer.
    """
    deviations = stack.fit.get("width", {})
    rows = [
        (name, f"{float(getattr(stack.constants, name)):.4g}", f"{deviations[name]:.2g}" if name in deviations else "",
         f"{about['unit']} {about['line']}")
        for name, about in CONSTANTS.items()
    ]  # fmt: skip
    about = [
        ("Stack", f"{stack.name}: {stack.title}"),
        ("Fitted to", f"{_measured_runs(stack):,} measured runs"),
        ("Speed", f"{float(stack.speed):.3g} of the constants'"),
        ("Schedules", ", ".join(stack.schedules)),
        ("Sharding", ", ".join(stack.shardings)),
        ("Recomputation", ", ".join(stack.recomputes)),
    ]
    grid = table("Constant", "Value", "Std dev", "What", rows=rows, numbers=(1, 2), first_to_go=(3, 2))
    note = footnote("Std dev: of the logarithm of the constant; of the value for gains and exponents.")
    return Answer(
        sentence=f"{stack.name}: {stack.title}, fitted to {_measured_runs(stack):,} measured runs.",
        body=[facts(about), grid, note], full_adds="all constants", files="", full=full,
    )  # fmt: skip


# Colours of operators, then of uses of memory.
COLOURS = {
    "matrices": "blue", "attention": "magenta", "experts": "green", "element-wise": "white", "head": "bright_blue",
    "recompute": "cyan", "tensor parallel": "yellow", "context parallel": "bright_yellow", "expert exchange": "yellow",
    "data parallel": "bright_yellow", "pipeline idle": "red", "pipeline hops": "bright_red", "optimizer": "bright_black",
    "launch": "bright_black", "offload": "bright_yellow", "step": "bright_black",
    "multi-token prediction": "bright_green",
}  # fmt: skip
MEMORY_COLOURS = {
    "weights": "blue", "gradients": "cyan", "optimizer": "green", "activations": "magenta", "logits": "yellow",
    "gathered": "bright_blue", "buffers": "white", "reserved": "bright_black",
}  # fmt: skip


def training_view(
    training: Training, system: System, timeline: Timeline | None, width: int, *, full: bool, launcher: str = ""
) -> RenderableType:
    """Return a training run as text: days, dollars and MFU, its layout and step, and with `full` everything else.

    Args:
        training: The run with its fastest layout.
        system: What it runs on.
        timeline: The schedule of a step; None without pipeline stages.
        width: Columns of the terminal.
        full: Whether to add memory, the time of all operators, the run's figures and the schedule.
        launcher: How to start the run; "" if no stack can.

    Returns:
        Something that a console prints.
    """
    step, memory = training.step, training.step.memory
    not_reversible = f"assumes reversible layers; the layers of {step.model} are not reversible"
    warnings = [not_reversible] if step.layout.recompute == "reversible" else []
    figures = facts(_figures(training, system, full=full, launcher=launcher))
    missed = [Text(_miss(training, name), style="bold red") for name in training.missed_limits]
    applied = {TRAINING: training.own_factor}
    parts: list[RenderableType] = [*missed, _answer(training), *own_runs(training.anchor, applied), *notes(warnings), figures]
    if full:
        uses = [(name, float(getattr(memory, name)), MEMORY_COLOURS[name]) for name in PARTS if float(getattr(memory, name))]
        capacity = float(memory.capacity)
        # The allowance of a search lengthens all parts alike.
        terms = {name: training.search_factor * seconds for name, seconds in step.terms.items() if name != SEARCH_TERM}
        parts.append(share_table(terms, COLOURS, width, "Operator"))
        parts.append(stacked(uses, capacity, width, f"Memory of the fullest chip, {show(capacity, 'B')} by its driver"))
    # The short answer ends with what would help; tables and charts need --full.
    parts.append(heading(f"{training.why[:1].upper()}{training.why[1:].rstrip('.')}."))
    if training.changes or not full:
        parts.append(_changes(training.changes if full else training.changes[:MAX_CHANGES]))
    if full and timeline is not None:
        parts.append(schedule_picture(timeline, width, "The schedule of a step"))
    return Group(*parts)


def _answer(training: Training) -> Text:
    """Return days, cost and MFU of the run, or the step time without --tokens."""
    step, job, run = training.step, training.job, training.run
    verb = {"pretrain": "Train", "sft": "Fine-tune", "lora": "Fine-tune (LoRA)"}[job.task]
    subject = f"{verb} {step.model} on {counted(training.chips, 'chip')} of {step.system}"
    mfu = f"MFU {percent(float(step.mfu_causal), 1)}"
    if run is None:
        time = f"{_step_time(training)} per step, {mfu}."
        return Text.assemble((f"{subject}: ", "bold"), (time, "bold green"), " --tokens gives days and cost.")
    cost = f"{ranged(run.usd, (run.usd_low, run.usd_high), 'USD')}, " if math.isfinite(run.usd) else ""
    time = f"{ranged(run.seconds, (run.low, run.high), _days)}, {cost}{mfu}."
    return Text.assemble((f"{subject} on {show(run.tokens)} tokens: ", "bold"), (time, "bold green"))


def _miss(training: Training, name: str) -> str:
    """Return what the run takes or costs in place of a limit, with the probability that it meets the limit."""
    run = training.run
    assert run is not None
    takes = _days(run.seconds) if name == "deadline" else usd(run.usd)
    probability = _percent(training.limit_probability[name])
    limit = LIMIT_WORDS[name](training.limits[name])
    misses = {"deadline": "misses the deadline", "budget": "exceeds the budget"}[name]
    return f"{takes}: {misses} of {limit} (chance to meet it: {probability})."


def _step_time(training: Training) -> str:
    step = training.step
    return ranged(step.total, None if step.stack == "ideal" else (step.low, step.high), "s")


def _days(seconds: float) -> str:
    return f"{in_digits(seconds / DAY)} days" if seconds >= DAY else show(seconds, "s")


def _figures(training: Training, system: System, *, full: bool, launcher: str) -> list[tuple[str, str | Text]]:
    """Return the figures of a step and of the run, the shorter list without `full`."""
    step, job, run = training.step, training.job, training.run
    batch = f"{counted(int(job.batch), 'sequence')} of {counted(int(job.seq), 'token')} in {job.dtype}"
    # As the time of the step, with the allowance of a search.
    bubble, exposed = float(np.asarray(step.bubble)), training.search_factor * float(np.asarray(step.exposed))
    # It may take less time: among near equals the simplest layout is chosen.
    slower = training.runner_up_slower - 1
    runner_up = f"{training.runner_up}: {percent(abs(slower), 1)} {'more' if slower >= 0 else 'less'} time"
    rows: list[tuple[str, str | Text]] = [
        ("Layout", heading(show_training_layout(step.layout))),
        ("Launch", launcher),
        ("Risks", _risks(training)),
        ("Step", f"{_step_time(training)}: {batch}, stack {step.stack}"),
        ("Batch", _batch(training)),
        ("Tokens per chip", f"{in_digits(float(step.tokens_per_second_per_chip))} tok/s"),
        ("Pipeline bubble", f"{percent(bubble, 1)} of the step" if bubble else ""),
        ("Exposed communication", f"{show(exposed, 's')} per step" if exposed else ""),
        ("Host memory", _host_memory(training)),
        *_evidence(training),
    ]
    if full:
        rows += [
            ("Runner-up", runner_up if training.runner_up else ""),
            ("Bounds", f"{show(float(step.lower), 's')} without losses, {show(float(step.upper), 's')} without overlap"),
            ("MFU, full attention", percent(float(step.mfu_full), 1)),
            ("HFU, with recomputation", percent(float(step.hfu), 1)),
            ("Layouts tried", f"{training.evaluated_layouts:,}"),
        ]
    return rows + (_run(run, system, full=full) if run is not None else [])


# How limits of a run are written.
LIMIT_WORDS: Final[dict[str, Callable[[float], str]]] = {"deadline": lambda limit: show(limit, "s"), "budget": usd}
MISS_WORDS: Final = {"deadline": "miss the deadline", "budget": "exceed the budget"}
# Duration of contracts by their term. A shorter run leaves the chips to another use.
CONTRACT_SECONDS: Final = {"three-year": 3 * 365 * DAY}
# Share of a chip's memory above which a longer sequence or a fragmented allocator may not fit.
FULL_SHARE = 0.9
# Tokens of a step above which --batch was probably given in tokens: four times those of DeepSeek-V3 (15,360 x 4,096).
MOST_TOKENS_PER_STEP = 2.5e8


def _risks(training: Training) -> str:
    """Return what makes a run longer or more expensive: limits, contracts, failures, a full chip, what no fitted run had."""
    step, run = training.step, training.run
    share = float(np.asarray(step.memory.used / step.memory.capacity))
    risks = [
        f"{_percent(1 - training.limit_probability[name])} chance to {MISS_WORDS[name]} of {LIMIT_WORDS[name](limit)}"
        for name, limit in training.limits.items()
        if name not in training.missed_limits
    ]
    rent = training.system.rent
    if run is not None and math.isfinite(run.usd) and run.seconds < CONTRACT_SECONDS.get(rent.term, 0.0):
        risks.append(f"the rent is that of a {rent.term} contract")
    if run is not None and run.failures >= 1:
        risks.append(f"a failure every {show(run.between_failures, 's')}")
    elif run is not None and run.failures > 0:
        risks.append(f"{_percent(-math.expm1(-run.failures))} chance of a failure")
    risks += training.unlike
    if training.job.batch * training.job.seq > MOST_TOKENS_PER_STEP:
        risks.append(f"a step of {show(training.job.batch * training.job.seq)} tokens: --batch counts sequences, not tokens")
    if share > FULL_SHARE:
        risks.append(f"the fullest chip is {percent(share)} full")
    if training.evidence != MEASURED:
        risks.append("no run has this kind of layout")
    return "; ".join(risks)


def _batch(training: Training) -> str:
    """Return the tokens of a step, and how many hardly cost quality; "" without the tokens of the run."""
    tokens, largest = (show(float(value)) for value in (training.job.batch * training.job.seq, training.largest_batch))
    words = f"{tokens} tokens; more than {largest} would cost quality"
    return words if math.isfinite(training.largest_batch) and training.job.task == "pretrain" else ""


def _host_memory(training: Training) -> str:
    """Return the offloaded bytes per chip; "" without offload."""
    memory = training.step.memory
    if not float(np.asarray(memory.host)):
        return ""
    used, capacity = (show(float(np.asarray(value)), "B") for value in (memory.host, memory.host_capacity))
    return f"{used} of {capacity} per chip, for {training.job.offload.replace('+', ' and ')}"


def _percent(probability: float) -> str:
    return "over 99 %" if probability > 0.99 else "under 1 %" if probability < 0.01 else percent(probability)


def _evidence(training: Training) -> list[tuple[str, str | Text]]:
    """Return which layouts were measured, how many are about as fast, and the allowance of the search."""
    kind = "measured runs have this kind of layout" if training.evidence == MEASURED else "no run has this kind of layout"
    close = f"; the simplest of {training.close_layouts:,} layouts within 3.5 % of the fastest"
    saving = percent(training.unmeasured_saving)
    unmeasured = f"{training.unmeasured}: {saving} less time, if its prediction holds (--evidence any)"
    allowance = (
        f"all times include {percent(training.search_factor - 1)}, since the fastest of many predictions is mostly too short; "
        "a layout that you give (--tp, --pp and so on) has no allowance"
    )
    return [
        ("Evidence", kind + (close if training.close_layouts > 1 else "")),
        ("Unmeasured layout", unmeasured if training.unmeasured and round(training.unmeasured_saving, 2) > 0 else ""),
        ("Search allowance", allowance if round(training.search_factor, 2) > 1 else ""),
    ]


def _goodput(run: TrainingRunCost) -> str:
    """Return the goodput with its range, if it has one."""
    ends = f" ({percent(run.goodput_low)} to {percent(run.goodput_high)})" if run.low < run.high else ""
    return percent(run.goodput, 1) + ends


def _run(run: TrainingRunCost, system: System, *, full: bool) -> list[tuple[str, str | Text]]:
    # Less than one is a chance, which the risks name.
    failures = f"{in_digits(run.failures)} failures; " if run.failures >= 1 else ""
    is_single = run.checkpoint_every >= run.seconds * run.goodput * (1 - 1e-9)
    checkpoints = "one checkpoint, at the end" if is_single else f"a checkpoint every {show(run.checkpoint_every, 's')}"
    overhead = f"; {percent(run.overhead - 1)} for evaluations and slow periods" if run.overhead > 1 else ""
    rent = f"the rent of {system.name} is not known; --rent 2.10 sets it in USD per chip-hour"
    if math.isfinite(run.usd):
        spares = f" ({run.spares:,} spares included)" if run.spares else ""
        rent = f"{in_digits(run.chip_hours)} chip-hours{spares} at {rent_in_words(system.rent)}"
        # The range of the cost is that of the time; other rents are a second, separate uncertainty.
        lowest, highest = (run.usd * float(end / system.rent.typical) for end in (system.rent.low, system.rent.high))
        if lowest < 0.995 * highest:
            rent += f". With the lowest and highest rents of the past twelve months it is {usd(lowest)} and {usd(highest)}"
            rent += "; the range above is at this rent" if run.low < run.high else ""
    energy = f"{in_digits(run.joules / 3.6e9)} MWh, {BASES.get(run.power_basis, run.power_basis)}"
    rows: list[tuple[str, str | Text]] = [
        ("Goodput", f"{_goodput(run)}: {failures}{checkpoints}{overhead}"),
        ("Rent", rent),
        ("Steps", f"{run.steps:,.0f}, {run.flops:.3g} FLOP with causal attention"),
        ("Failures", f"{in_digits(run.failures)} in the run; {show(run.checkpoint, 'B')} per checkpoint"),
        ("Chip-hours", f"{run.chip_hours:,.0f}"),
        ("Energy", energy if math.isfinite(run.joules) else ""),
    ]
    return rows if full else rows[:2]


def _changes(changes: Sequence[Change]) -> RenderableType:
    return listing(
        "What would help: {description} | Speed-up: {faster:.2f}x | Layout: {layout}", changes, first_to_go=(2,),
        layout=lambda change: change.layout or "the same",
    )  # fmt: skip


def scaling_view(scaling: Scaling, width: int) -> RenderableType:
    """Return step time and tokens per chip against the number of chips.

    Args:
        scaling: Points of strong and weak scaling.
        width: Columns of the terminal.

    Returns:
        A table, and a chart if three or more points fit in memory.
    """
    grid = listing(
        "Scaling: {kind} | Chips: {chips:,} | Batch: {batch:,} | Step: {seconds:s} | "
        "tok/s per chip: {rate:,.0f} | Layout: {layout}",
        scaling.points, first_to_go=(5,),
        rate=lambda point: point.tokens_per_second_per_chip if math.isfinite(point.seconds) else math.nan,
    )  # fmt: skip
    drawable = [point for point in scaling.points if math.isfinite(point.seconds)]
    if len(drawable) < 3:
        return grid
    x = log10([point.chips for point in drawable])
    y = np.array([point.tokens_per_second_per_chip for point in drawable])
    curves = []
    for kind, colour, words in (
        ("strong", "green", "strong: the same batch"),
        ("weak", "cyan", "weak: the batch grows with the chips"),
    ):
        indices = [place for place, point in enumerate(drawable) if point.kind == kind]
        curves += [Curve(x[indices], y[indices], words, colour, kind[0])] if indices else []
    across = Axis("chips", x.min() - 0.06, x.max() + 0.06, "{:,.0f}".format)
    up = Axis("tok/s per chip", 0, y.max() * 1.1, "{:,.0f}".format, log=False)
    return Group(grid, draw(curves, across, up, width, 12, "Tokens per second per chip against chips"))


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
    x, job, step = training.step.layout, training.job, training.step
    tuned = on_chip(engine, system, experts=model.routed)
    grid = table("Layer", "What", "Forward", "Backward", "How", numbers=(2, 3), first_to_go=(4,))
    twice = "as much" if job.task == "lora" else "twice"
    rows = f"{x.micro_batch:g} x {job.seq:,} / cp {x.cp:g} = {x.micro_batch * job.seq / x.cp:,.0f} rows"
    flash = "causal pairs; backward takes 2.5 times (flash attention)"
    for (sheet, n), (layer, _) in zip(layer_profiles(model), model.layers, strict=True):
        passes = layer_passes(sheet, job, system, tuned, x)
        how = {
            "matrices": f"{_giga(sheet, routed=False)} GFLOP per row, {rows}, tp {x.tp:g}; backward {twice}",
            "experts": f"{_giga(sheet, routed=True)} GFLOP per row, equal tokens per expert",
            "attention": flash if job.attention == "flash" else "all pairs, scores in memory",
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
    idle, copies = (show(float(step.terms.get(name, 0.0)), "s") for name in ("pipeline idle", "data parallel"))
    words = (
        f"Step time: {counted(float(step.microbatches), 'micro-batch', 'micro-batches')} x the slowest stage, plus {idle} of "
        f"pipeline idle time, {copies} of exposed data-parallel communication, the optimizer, and the constant time per step"
        f"{', and the search allowance' if SEARCH_TERM in step.terms else ''}. Sum: {show(float(step.total), 's')}."
    )
    return Group(heading("One layer and one micro-batch on one chip"), grid, Text(words))


def _giga(sheet: LayerProfile, *, routed: bool) -> str:
    """Return the GFLOP per row of a layer's GEMMs."""
    return f"{sum(product.flops for product in sheet.products if product.routed is routed) / 1e9:,.3g}"


def training_errors_view(validation: TrainingValidation) -> RenderableType:
    """Return the errors of the step time by kind, of memory, and the runs without a prediction.

    Args:
        validation: Predicted and measured training runs.

    Returns:
        Something that a console prints.
    """
    parts: list[RenderableType] = [heading(f"{counted(validation.runs, 'training run')}: predicted against measured")]
    if validation.before:
        corrections = {"without own runs": validation.before, "by other runs": validation.after}
        parts.append(_errors_table(f"Corrected by {validation.source}", corrections))
    if validation.source:
        parts.append(Text("Your own runs correct the predictions below; each is left out of its own correction."))
    parts += [
        _errors_table("Time of a step", {"all": errors}) if name == "all" else _errors_table(f"By {name}", errors)
        for name, errors in validation.step.items()
    ]
    if validation.memory:
        m = validation.memory
        errors = f"median error {percent(m['median'], 1)}, mean {percent(m['mean'], 1)}, worst {percent(m['worst'], 1)}, "
        errors += f"bias {percent_change(m['bias'])}"
        parts.append(Text(f"Peak memory of {counted(int(m['runs']), 'run')}: {errors}"))
    parts.append(Text(f"Predicted to fit in memory: {percent(validation.fitting, 1)} of the measured runs"))
    if validation.unanswered:
        parts.append(heading(f"{counted(len(validation.unanswered), 'run')} without a prediction:"))
        parts += [Text(f"  {words}") for words in validation.unanswered[:MOST_NAMED]]
        unnamed_count = len(validation.unanswered) - MOST_NAMED
        if unnamed_count > 0:
            parts.append(Text(f"  and {unnamed_count} more; --predictions OUT.csv has them all"))
    return Group(*parts)


def _errors_table(title: str, errors: Mapping[str, Mapping[str, float]]) -> Grid:
    rows = [
        (value, f"{e['runs']:,.0f}", *(percent(e[name], 1) for name in ("median", "mean", "p90")), percent_change(e['bias']),
         percent(e['coverage']))
        for value, e in errors.items()
    ]  # fmt: skip
    return table("", "Runs", "Median", "Mean", "p90", "Bias", "Covered", rows=rows, title=title, numbers=range(1, 7))


# --- the schedule -------------------------------------------------------------------------------------------------------

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
    return packed([*pieces, Text.assemble((f"{GAP} ", "bright_black"), "idle")], width, "   ")


def _summary(timeline: Timeline) -> Text:
    """Return time, idle time and micro-batches in flight in one line."""
    min_idle, max_in_flight = float(timeline.idle.min()), float(timeline.in_flight.max())
    idle = (
        f"the busiest device idles {show(min_idle, 's')} ({percent(min_idle / timeline.total, 1)})"
        if min_idle
        else "the busiest device is never idle"
    )
    flight = f"at most {max_in_flight:.4g} micro-batch{'es' if max_in_flight > 1 else ''} in flight on a device"
    return Text(f"{show(timeline.total, 's')} for the micro-batches of a step, without a search allowance; {idle}; {flight}")
