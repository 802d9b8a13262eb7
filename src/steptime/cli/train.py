"""The command `steptime train`: the fastest layout of a training run that fits in memory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from steptime.atomic_files import write_text_atomically
from steptime.cli.options import OUTPUT, SET, SUBJECT, Output, grouped, not_empty, option, typed_values, typed_with_changes
from steptime.cli.output import (
    check_outputs,
    check_picture,
    make_console,
    patience,
    print_json,
    reported,
    say_release,
    write_csv,
)
from steptime.errors import RangeError, UnknownName
from steptime.questions.train_question import TRAIN, TrainInputs, bind_train, solve
from steptime.training.training_stack import TrainingEngine
from steptime.units import show

# Unit of time in a trace, per second.
MICROSECONDS = 1e6
# With --launch of these stacks, the layout is searched for that stack, unless --engine names another.
STARTED = ("torchtitan", "maxtext")


@dataclass(frozen=True, kw_only=True)
class TrainOutput(Output):
    """Options of the text and files of a training run."""

    scaling: Annotated[bool, option("Show strong and weak scaling, from 1/8 to 8 times the chips.", OUTPUT, "--scaling")] = (
        False
    )
    explain: Annotated[bool, option("Show each layer's operators with formulas and sources.", OUTPUT, "--explain")] = False
    launch: Annotated[
        str | None,
        option("Print launch lines for megatron-lm, megatron-bridge, torchtitan or maxtext.", OUTPUT, metavar="STACK"),
    ] = None
    anchor: Annotated[
        str | None,
        option(
            "CSV of your training runs that correct the prediction, as for `steptime validate`.", SUBJECT, "--anchor",
            metavar="RUNS", show_default="the runs that `steptime anchors` stores",
        ),
    ] = None  # fmt: skip
    no_anchor: Annotated[bool, option("Ignore the runs that `steptime anchors` stores.", SUBJECT, "--no-anchor")] = False
    plot: Annotated[str | None, option("Draw the schedule of a step and the memory of a chip: .svg, .png or .pdf.", OUTPUT)] = (
        None
    )
    chrome: Annotated[
        str | None,
        option("Write the schedule as a Chrome trace, for Perfetto or chrome://tracing.", OUTPUT, "--chrome", metavar="FILE"),
    ] = None


@grouped
def train(ctx: typer.Context, inputs: TrainInputs, output: TrainOutput, set_: SET = None) -> None:
    """Find the fastest layout of a training run that fits: step time, memory, schedule, days, money, failures.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.launch.training_commands import training_lines
    from steptime.training.training_alternatives import strong_and_weak_scaling
    from steptime.training.training_planner import step_timeline, step_trace

    _check_limits(inputs)
    _check_launch(inputs, output)
    not_empty("--layers", inputs.layers, "layers by chunk, such as 7,8x14,7")
    check_outputs({"--csv": output.csv, "--plot": output.plot, "--chrome": output.chrome}, [inputs.model, inputs.system])
    check_picture(output.plot)
    if "," in inputs.system:
        _compare(ctx, inputs, output, set_)
        return
    values = typed_with_changes(ctx, TrainInputs, set_)

    # The search for the fastest layout, with changes that would help.
    model, system, stack = _bind_to_launch(values, inputs, output)
    say_release(model)
    with patience("searching layouts"):
        training = solve(values)
        scaled = None
        if output.scaling:
            scaled = strong_and_weak_scaling(
                model, system, chips=training.chips, engine=stack, layout=inputs.axes(), job=training.job,
                evidence=inputs.evidence,
            )  # fmt: skip

    # Files come before text. The schedule is simulated only to be drawn.
    is_pipeline = int(training.step.layout.pp) > 1
    is_shown = output.full and not output.json and is_pipeline
    schedule_plot = step_timeline(model, system, training, stack) if output.plot or is_shown else None
    if output.csv is not None:
        write_csv(output.csv, training)
    if output.plot is not None and schedule_plot is not None:
        _write_plot(output.plot, training.step, *schedule_plot)
    if output.chrome is not None:
        _write_trace(output.chrome, step_trace(model, system, training, stack), training.step.total)
    launch = output.launch
    lines = [] if launch is None else training_lines(model, training.job, training.step.layout, system, launch)
    if output.json:
        extra_fields = {"summary": TRAIN.read_result(training), **({"scaling": scaled.to_dict()} if scaled else {})}
        print_json(training.to_dict(**extra_fields, **({"launch": lines} if lines else {})))
        _exit_if_missed(training)
        return
    from steptime.cli.views.plan_view import sources_table
    from steptime.cli.views.training_view import explained_view, scaling_view, training_view
    from steptime.cli.views.widgets import more_line

    console = make_console()
    # One stage has no schedule to show as text.
    shown_timeline = schedule_plot[0] if schedule_plot is not None and is_pipeline else None
    launcher = "" if lines else _launch_text(model, training, system)
    console.print(training_view(training, system, shown_timeline, console.width, full=output.full, launcher=launcher))
    if not (output.full or output.explain or scaled):
        tables = "--full (memory, time, schedule)"
        console.print(more_line(tables, "--explain", "--scaling", "--launch STACK", "--plot FILE", "--json"))
    if scaled is not None:
        console.print(scaling_view(scaled, console.width))
    if output.explain:
        console.print(explained_view(model, system, training, stack), sources_table(system), sep="\n")
    for line in lines:
        typer.echo(line)
    _exit_if_missed(training)


def _launch_text(model: Any, training: Any, system: Any) -> str:
    """Return the start of the command of the first stack that can run the layout, or an option that finds another layout."""
    from steptime.launch.training_commands import WRITERS, first_capable_stack, short_command, stacks_on

    run = (model, training.job, training.step.layout, system)
    stack = first_capable_stack(*run)
    if stack:
        return f"{short_command(*run, stack)} ...; --launch {stack} prints it"
    for name in stacks_on(system):
        return f"no command runs this layout; --launch {name} takes one that {WRITERS[name].TITLE} runs, or says why not"
    return f"steptime writes no commands for chips of {system.chip.vendor}"


def _bind_to_launch(values: dict[str, Any], inputs: TrainInputs, output: TrainOutput) -> tuple[Any, Any, Any]:
    """Return model, system and stack, with a stack in `values` whose layouts the stack of --launch can run."""
    if inputs.engine is None and output.launch in STARTED:
        values["engine"] = output.launch
    _, model, system, stack = bind_train(values)
    if output.launch is not None and inputs.schedule is None and not stack.schedules:
        from steptime.launch.megatron import SCHEDULES

        # Stacks other than Megatron list their schedules.
        values["engine"] = stack = replace(stack, schedules=SCHEDULES)
    values |= _corrected(values, output)
    return model, system, values["engine"] if isinstance(values.get("engine"), TrainingEngine) else stack


def _corrected(values: Mapping[str, Any], output: TrainOutput) -> dict[str, Any]:
    """Return the inputs with a stack that the user's runs correct."""
    from steptime.validation.own_training_runs import with_own_runs

    if output.anchor is not None and output.no_anchor:
        raise RangeError("--anchor adds runs and --no-anchor ignores them; keep one of the two")
    not_empty("--anchor", output.anchor, "a CSV of training runs")
    return dict(values) if output.no_anchor else with_own_runs(values, output.anchor)


def _exit_if_missed(training: Any) -> None:
    """Exit with 1 if the run misses its deadline or its budget."""
    if training.missed_limits:
        raise typer.Exit(1)


def _check_launch(inputs: TrainInputs, output: TrainOutput) -> None:
    """Raise UnknownName or RangeError unless the stack of --launch has commands for the run."""
    from steptime.launch.training_commands import ALIASES, OFFLOADING, STACKS
    from steptime.training.training_job import NO_OFFLOAD

    launch = output.launch
    if launch is None:
        return
    if launch not in (*STACKS, *ALIASES):
        raise UnknownName("training stack of --launch", launch, STACKS, f"Known: {', '.join(STACKS)}.")
    if inputs.offload != NO_OFFLOAD and ALIASES.get(launch, launch) not in OFFLOADING:
        raise RangeError(
            f"--launch {launch} cannot configure --offload; use --launch {' or '.join(OFFLOADING)}, or leave one of the two out"
        )


def _check_limits(inputs: TrainInputs) -> None:
    """Raise RangeError for limits that are missing or wrong, before anything is loaded."""
    if inputs.chips is None and inputs.deadline is None and inputs.budget is None:
        raise RangeError("give --chips, or --tokens with --deadline or --budget")
    if inputs.tokens is None and not (inputs.deadline is None and inputs.budget is None):
        raise RangeError("--deadline and --budget need --tokens, such as --tokens 15T")
    if inputs.tokens is None and inputs.batch is None:
        raise RangeError("give --batch, or --tokens, from which a batch follows")
    inputs.limits()


def _compare(ctx: typer.Context, inputs: TrainInputs, output: TrainOutput, changes: Any) -> None:
    """Print the runs of several systems; raise RangeError for options that need one system."""
    from steptime.questions.train_comparison import compare_training

    single = {
        "--set": changes, "--launch": output.launch, "--plot": output.plot, "--chrome": output.chrome,
        "--explain": output.explain, "--scaling": output.scaling,
    }  # fmt: skip
    for name, value in single.items():
        if value:
            raise RangeError(f"{name} needs one system, got {inputs.system}; give one of them")
    systems = [name.strip() for name in inputs.system.split(",") if name.strip()]
    with patience(f"searching layouts on {len(systems)} systems"):
        comparison = compare_training(systems, typed_values(ctx, TrainInputs), lambda values: _corrected(values, output))
    output.print(comparison, "training_view.comparison_view")
    if not comparison.standings[0].chips or comparison.standings[0].missed:
        raise typer.Exit(1)


def _write_trace(path: str, trace: dict[str, Any], total: Any) -> None:
    """Write a trace, and say why it does not end at the printed time of the step."""
    end = max((event["ts"] + event["dur"] for event in trace["traceEvents"] if "dur" in event), default=0.0) / MICROSECONDS
    words = f"the trace of a step, {show(end, 's')} by simulation; the answer, {show(total, 's')}, is a closed form"
    with reported(path, words):
        write_text_atomically(path, json.dumps(trace) + "\n")


def _write_plot(path: str, step: Any, timeline: Any, memory: Any, title: str) -> None:
    """Write the picture of a schedule, and say why a whole pipeline takes less time than the step."""
    from steptime.training.schedule_timeline import write_timeline

    words = "the schedule of a step, and the memory of its fullest chip"
    if int(step.layout.pp) > 1 and not title:
        pipeline, total = show(timeline.total, "s"), show(step.total, "s")
        words = (
            f"the pipeline of a step, {pipeline} by simulation, and the memory of its fullest chip; the answer, {total}, also "
            "has what follows the pipeline, and after a search an allowance"
        )
    with reported(path, words):
        write_timeline(timeline, path, title, memory)
