"""The command `steptime plan`."""

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import (
    CSV,
    FULL,
    JSON,
    LIMITS,
    OUTPUT,
    SubjectChanges,
    grouped,
    not_empty,
    option,
    read_systems,
    refuse_idle,
)
from steptime.cli.output import check_folder, check_outputs, make_console, print_json, show, write_csv, write_folder, wrote
from steptime.errors import InputError
from steptime.picture_files import check_picture
from steptime.planning.planner import DoesNotFit
from steptime.questions.plan_question import PlanInputs, answers_from, bind_plan, solve

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine
    from steptime.planning.plan_result import Plan
    from steptime.simulation.plan_replay import Replay


@dataclass(frozen=True, kw_only=True)
class PlanOutput:
    """Options of the plan's simulation, text and files."""

    percentile: Annotated[str, option("Percentile for --simulate: mean, p50, p90, p95 or p99.", LIMITS)] = "p90"
    simulate: Annotated[
        bool,
        option("Simulate random arrivals, and lower the rate until percentiles meet the limits.", "Deployment", "--simulate"),
    ] = False
    explain: Annotated[bool, option("Show each term's formula with its numbers and sources.", OUTPUT, "--explain")] = False
    launch: Annotated[
        str | None, option("Print launch commands for vllm, sglang, trtllm, or all.", OUTPUT, metavar="ENGINE")
    ] = None
    launch_dir: Annotated[
        str | None,
        option("Write launch scripts to a folder, one per host, with a README.", OUTPUT, "--launch-dir", metavar="FOLDER"),
    ] = None
    force: Annotated[
        bool, option("Overwrite scripts in the folder, and remove scripts of an earlier plan.", OUTPUT, "--force")
    ] = False
    full: FULL = False
    plot: Annotated[
        str | None,
        option("Draw the Pareto front of speed and cost: .svg, .png or .pdf.", OUTPUT, "--plot", metavar="FILE"),
    ] = None
    csv: CSV = None
    json: JSON = False

    def launches(self) -> tuple[str, ...]:
        """Return the engines that --launch names.

        Returns:
            Names of engines; empty without --launch.

        Raises:
            UnknownName: There is no such engine.
        """
        if self.launch is None:
            return ()
        from steptime.errors import UnknownName
        from steptime.launch.launch_commands import ENGINES

        not_empty("--launch", self.launch, "an engine: vllm, sglang, trtllm or all")
        if self.launch != "all" and self.launch not in ENGINES:
            raise UnknownName("engine", self.launch, [*ENGINES, "all"], "Known: vllm, sglang, trtllm, all.")
        return tuple(ENGINES) if self.launch == "all" else (self.launch,)


@grouped
def plan(ctx: typer.Context, inputs: PlanInputs, changes: SubjectChanges, output: PlanOutput) -> None:
    """Find the cheapest way to serve a model on a system within limits on speed and first token.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    # Wrong options are reported before the search, which takes seconds.
    refuse_idle(
        ctx,
        {
            "--simulate": (output.simulate, "percentile"),
            "text, not --json, which has the commands of all engines": (not output.json, "launch"),
            "text, not --json": (not output.json, "full"),
            "--launch ENGINE": (output.launch is not None, "launch_dir"),
            "--launch-dir FOLDER": (output.launch_dir is not None, "force"),
        },
    )
    launches = output.launches()
    not_empty("--electricity", inputs.electricity, "USD per kWh, such as 0.08/kWh")
    check_outputs({"--csv": output.csv, "--plot": output.plot}, changes.files(vars(inputs)))
    if output.plot is not None:
        check_picture(output.plot)
    check_folder("--launch-dir", output.launch_dir)
    if output.simulate:
        from steptime.cli.simulate import check_percentile, need_numba

        check_percentile(output.percentile)
        need_numba()
    inputs.slo()

    # The search for the cheapest deployment, then its simulation.
    values = changes.values(ctx, PlanInputs)
    _, model, system, engine, _ = bind_plan(values)
    if launches and engine.name == "ideal":
        raise InputError("--launch cannot be used with --engine ideal")
    try:
        deployment = solve(values)
    except DoesNotFit as problem:
        raise DoesNotFit(f"{problem}{_smallest_system_hint(model, inputs.catalog)}") from None
    replayed = (
        _replayed(model, system, deployment, engine, output.percentile) if output.simulate and deployment.feasible else None
    )

    # Files come before text: a closed pipe must not keep them from being written.
    if output.csv is not None:
        write_csv(output.csv, deployment)
    if output.plot is not None:
        existed = os.path.exists(output.plot)
        deployment.plot(output.plot)
        wrote(output.plot, "the Pareto front", replaced=existed)
    # Launch scripts would start a plan that misses its limits.
    refused = replayed is not None and not replayed.good
    if output.launch_dir is not None and deployment.feasible and not refused:
        _write_launch(deployment, launches, output.launch_dir, force=output.force)
    if output.json:
        print_json(
            _data(
                model,
                system,
                deployment,
                engine,
                replayed,
                explain=output.explain,
                answers=answers_from(deployment, model, system),
            )
        )
    else:
        _print(model, system, deployment, engine, replayed, output, launches)
    if refused or not deployment.feasible:
        raise typer.Exit(1)


def _write_launch(deployment: "Plan", launches: tuple[str, ...], folder: str, *, force: bool) -> None:
    """Write the launch scripts of a plan; each of several engines gets its own folder."""
    from steptime.launch.launch_commands import launch_files

    files = {
        f"{engine}/{name}" if len(launches) > 1 else name: text
        for engine in launches
        for name, text in launch_files(deployment, engine).items()
    }
    write_folder(folder, files, force=force)


def _smallest_system_hint(model: "Model", catalog: str | None) -> str:
    """Name the smallest system whose memory is enough for a model."""
    from steptime.planning.plan_search import smallest_system

    alternative = smallest_system(model, read_systems(catalog))
    if alternative is None:
        return ""
    system, chips = alternative
    machine = f"{chips} x {system.chip.name}{_rent_words(system, chips)}"
    return f"; the smallest system of the catalogue with enough memory is {system.name} ({machine})"


def _rent_words(system: "System", chips: int) -> str:
    """Return the rent of some chips with its kind; empty if it is not known."""
    from steptime.hardware.rental_prices import has_rent, kind_in_words
    from steptime.units import show as in_units

    if not has_rent(system.rent):
        return ""
    return f", {in_units(float(chips * system.rent.typical), 'USD/s')}, {kind_in_words(system.rent)}"


def _replayed(model: "Model", system: "System", deployment: "Plan", engine: "Engine", percentile: str) -> "Replay":
    """Simulate a plan with random arrivals."""
    from steptime.cli.simulate import compiling
    from steptime.simulation.plan_replay import replay

    with compiling():
        return replay(deployment, model, system, engine, percentile=percentile)


def _data(
    model: "Model",
    system: "System",
    deployment: "Plan",
    engine: "Engine",
    replayed: "Replay | None",
    *,
    explain: bool,
    answers: dict[str, Any],
) -> dict[str, Any]:
    """Return a plan as data, with launch commands, and with simulation and explanation if there are any.

    A plan that misses its limits in the simulation is not feasible. Its figures stay, the reason is the simulation's.
    """
    from steptime.cli.views.explain_view import explain_json
    from steptime.launch.launch_commands import ENGINES, launch_commands

    if replayed is not None and not replayed.good:
        deployment = replace(deployment, feasible=False, reason=replayed.reason)
    extra_fields: dict[str, Any] = {
        "launch": {name: launch_commands(deployment, name) for name in ENGINES} if deployment.feasible else {}
    }
    extra_fields["summary"] = answers
    if replayed is not None:
        extra_fields["simulated"] = replayed
    if explain and deployment.feasible:
        extra_fields["explanation"] = explain_json(model, system, deployment, engine)
    return deployment.to_dict(**extra_fields)


def _print(
    model: "Model",
    system: "System",
    deployment: "Plan",
    engine: "Engine",
    replayed: "Replay | None",
    output: PlanOutput,
    launches: tuple[str, ...],
) -> None:
    """Print a plan as text."""
    from steptime.cli.views.plan_view import launch_view, plan_view
    from steptime.cli.views.widgets import more_line

    console = make_console()
    lines = []
    if replayed is not None:
        from steptime.cli.views.simulation_view import replay_lines

        lines = replay_lines(replayed, full=output.full)
    show(plan_view(deployment, console.width, lines, full=output.full), console=console)
    if not deployment.feasible or (replayed is not None and not replayed.good):
        return
    if output.explain:
        from steptime.cli.views.explain_view import explain_plan

        show(explain_plan(model, system, deployment, engine), console=console)
    if launches:
        console.print(launch_view(deployment, launches), soft_wrap=True)
    # Readers who asked for more know the options already.
    if not (output.explain or launches):
        tables = [] if output.full else ["--full (time, memory, Pareto front)"]
        show(more_line(*tables, "--explain", "--launch all", "--plot FILE", "--json"), console=console)
