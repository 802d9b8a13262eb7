"""The command `steptime train`: the fastest layout of a training run that fits in memory."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import CSV, FULL, JSON, OUTPUT, SET, grouped, not_empty, option, typed_with_changes
from steptime.cli.output import check_outputs, make_console, patience, print_json, show, write_csv, wrote
from steptime.questions.train_question import TRAIN, TrainInputs, bind_train, solve

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.training.training_planner import Training


# With --launch of these stacks, the layout is searched for that stack, unless --engine names another.
STARTED = ("torchtitan", "maxtext")


@grouped
def train(
    ctx: typer.Context,
    inputs: TrainInputs,
    scaling: Annotated[
        bool, option("Show strong and weak scaling, from 1/8 to 8 times the chips.", OUTPUT, "--scaling")
    ] = False,
    explain: Annotated[bool, option("Show each layer's operators with formulas and sources.", OUTPUT, "--explain")] = False,
    launch: Annotated[
        str | None,
        option("Print launch lines for megatron, megatron-bridge, torchtitan or maxtext.", OUTPUT, metavar="STACK"),
    ] = None,
    plot: Annotated[str | None, option("Draw the pipeline schedule: .svg, .png or .pdf.", OUTPUT)] = None,
    set_: SET = None,
    full: FULL = False,
    csv: CSV = None,
    json: JSON = False,
) -> None:
    """Find the fastest layout of a training run that fits: step time, memory, schedule, days, money, failures.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    not_empty("--layers", inputs.layers, "layers by chunk, such as 7,8x14,7")
    check_outputs({"--csv": csv, "--plot": plot}, [inputs.model, inputs.system])
    values = typed_with_changes(ctx, TrainInputs, set_)
    if inputs.engine is None and launch in STARTED:
        values["engine"] = launch

    # The search for the fastest layout, with changes that would help.
    _, described, machine, stack = bind_train(values)
    with patience("searching layouts"):
        training = solve(values)
        scaled = _scaled(described, machine, training, stack, inputs.axes()) if scaling else None

    # Files come before text.
    if csv is not None:
        write_csv(csv, training.step)
    if plot is not None:
        _write_plot(plot, described, machine, training, stack)
    lines = None if launch is None else _lines(described, machine, training, launch)
    if json:
        extra_fields = {"summary": TRAIN.read_result(training), **({"scaling": scaled.to_dict()} if scaled else {})}
        print_json(training.to_dict(**extra_fields, **({"launch": lines} if lines else {})))
        return
    _show_training(described, machine, training, stack, scaled, full=full, explain=explain)
    for line in lines or []:
        typer.echo(line)


def _lines(described: Any, machine: "System", training: "Training", stack: str) -> list[str]:
    """Return the lines of a launch script."""
    from steptime.launch.training_commands import training_lines

    return training_lines(described, training.job, training.step.layout, machine, stack)


def _show_training(
    described: Any, machine: "System", training: "Training", stack: Any, scaled: Any, *, full: bool, explain: bool
) -> None:
    from steptime.cli.views.explain_view import sources_table
    from steptime.cli.views.training_view import explained_view, scaling_view, training_view
    from steptime.cli.views.widgets import more_line
    from steptime.training.training_planner import step_timeline

    console = make_console()
    # The schedule is simulated only to be drawn.
    timeline = step_timeline(described, machine, training, stack) if full else None
    show(training_view(training, machine, timeline, console.width, full=full), console=console)
    if not (full or explain or scaled):
        tables = "--full (memory, time, schedule)"
        show(more_line(tables, "--explain", "--scaling", "--launch STACK", "--plot FILE", "--json"), console=console)
    if scaled is not None:
        show(scaling_view(scaled, console.width), console=console)
    if explain:
        show(explained_view(described, machine, training, stack), console=console)
        show(sources_table(machine), console=console)


def _write_plot(path: str, described: Any, machine: "System", training: "Training", stack: Any) -> None:
    import os

    from steptime.errors import RangeError
    from steptime.training.schedule_timeline import write_timeline as drawn
    from steptime.training.training_planner import step_timeline

    timeline = step_timeline(described, machine, training, stack)
    if timeline is None:
        raise RangeError("--plot draws a pipeline schedule, and this layout has one stage (pp=1); give --pp")
    existed = os.path.exists(path)
    drawn(timeline, path)
    wrote(path, "the schedule of a step", replaced=existed)


def _scaled(described: Any, machine: "System", training: "Training", stack: Any, laid: dict[str, Any]) -> Any:
    from steptime.training.training_alternatives import strong_and_weak_scaling

    return strong_and_weak_scaling(described, machine, chips=training.chips, engine=stack, layout=laid, job=training.job)
