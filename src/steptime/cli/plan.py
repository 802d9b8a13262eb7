"""The command `steptime plan`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import BRIEF, CSV, JSON, LIMITS, OUTPUT, SubjectChanges, not_empty, option, read_systems, refuse_idle
from steptime.cli.output import check_outputs, console_of, print_json, show, write_csv, wrote
from steptime.cli.output_folders import check_folder, write_folder
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
    """How a plan is replayed, and what is printed of it."""

    quantile: Annotated[str, option("Percentile for --simulate: mean, p50, p90, p95 or p99.", LIMITS)] = "p90"
    simulate: Annotated[
        bool,
        option("Replay it with random arrivals, and lower the rate until percentiles hold.", "Deployment", "--simulate"),
    ] = False
    explain: Annotated[bool, option("Show each term's formula with its numbers and sources.", OUTPUT, "--explain")] = False
    launch: Annotated[
        str | None, option("Print launch commands for vllm, sglang, trtllm, or all.", OUTPUT, metavar="ENGINE")
    ] = None
    launch_dir: Annotated[
        str | None,
        option("Write them as scripts into a folder, one a host, with a README.", OUTPUT, "--launch-dir", metavar="FOLDER"),
    ] = None
    force: Annotated[
        bool, option("Write over other scripts in the folder, and remove those of an earlier plan.", OUTPUT, "--force")
    ] = False
    brief: BRIEF = False
    plot: Annotated[
        str | None,
        option("Draw the Pareto front of speed and cost: .svg, .png or .pdf.", OUTPUT, "--plot", metavar="FILE"),
    ] = None
    csv: CSV = None
    json: JSON = False

    def launches(self) -> tuple[str, ...]:
        """Return the engines to launch with."""
        if self.launch is None:
            return ()
        from steptime.errors import UnknownName
        from steptime.launch.launch_commands import ENGINES

        not_empty("--launch", self.launch, "an engine: vllm, sglang, trtllm or all")
        if self.launch != "all" and self.launch not in ENGINES:
            raise UnknownName("engine", self.launch, [*ENGINES, "all"], "Known: vllm, sglang, trtllm, all.")
        return tuple(ENGINES) if self.launch == "all" else (self.launch,)


@grouped
def plan(ctx: typer.Context, inputs: PlanInputs, changes: SubjectChanges, wanted: PlanOutput) -> None:
    """Find the cheapest way to serve a model on a system within limits on speed and first token."""
    refuse_idle(
        ctx,
        {
            "--simulate": (wanted.simulate, "quantile"),
            "text, not --json, which has the commands of all engines": (not wanted.json, "launch"),
            "text, not --json": (not wanted.json, "brief"),
            "a whole plan, not --brief": (not wanted.brief, "explain launch"),
            "--launch ENGINE": (wanted.launch is not None, "launch_dir"),
            "--launch-dir FOLDER": (wanted.launch_dir is not None, "force"),
        },
    )
    launches = wanted.launches()
    not_empty("--electricity", inputs.electricity, "USD per kWh, such as 0.08/kWh")
    check_outputs({"--csv": wanted.csv, "--plot": wanted.plot}, changes.files(vars(inputs)))
    if wanted.plot is not None:
        check_picture(wanted.plot)
    check_folder("--launch-dir", wanted.launch_dir)
    if wanted.simulate:
        from steptime.cli.simulate_common import known_quantile, need_numba

        known_quantile(wanted.quantile)
        need_numba()
    inputs.slo()
    values = changes.values(ctx, PlanInputs)
    _, model, system, engine, _ = bind_plan(values)
    if launches and engine.name == "ideal":
        raise InputError("--launch cannot be used with --engine ideal")
    try:
        found = solve(values, diagnostics=not wanted.brief)
    except DoesNotFit as problem:
        raise DoesNotFit(f"{problem}{_other(model, inputs.catalog)}") from None
    replayed = _replayed(model, system, found, engine, wanted.quantile) if wanted.simulate and found.feasible else None
    if wanted.csv is not None:
        write_csv(wanted.csv, found)
    if wanted.plot is not None:
        found.plot(wanted.plot)
        wrote(wanted.plot, "the Pareto front")
    refused = replayed is not None and not replayed.good
    if wanted.launch_dir is not None and found.feasible and not refused:
        _write_launch(found, launches, wanted.launch_dir, force=wanted.force)
    if wanted.json:
        print_json(
            _data(model, system, found, engine, replayed, explain=wanted.explain, answers=answers_from(found, model, system))
        )
    else:
        _print(model, system, found, engine, replayed, wanted, launches)
    if refused or not found.feasible:
        raise typer.Exit(1)


def _write_launch(found: "Plan", launches: tuple[str, ...], folder: str, *, force: bool) -> None:
    """Write the scripts of a plan; those of several engines into a folder of their own each."""
    from steptime.launch.launch_commands import launch_files

    files = {
        f"{engine}/{name}" if len(launches) > 1 else name: text
        for engine in launches
        for name, text in launch_files(found, engine).items()
    }
    write_folder(folder, files, force=force)


def _other(model: "Model", catalog: str | None) -> str:
    """Name the smallest system that would hold a model."""
    from steptime.planning.smallest_system import smallest_system

    found = smallest_system(model, read_systems(catalog))
    if found is None:
        return ""
    system, chips = found
    what = f"{chips} x {system.chip.name}{_rent_of(system, chips)}"
    return f"; the smallest system of the catalogue that holds it is {system.name} ({what})"


def _rent_of(system: "System", chips: int) -> str:
    """Return the rent of some chips with its kind, where one is known."""
    from steptime.hardware.rental_prices import has_rent, kind_in_words
    from steptime.units import show as in_units

    if not has_rent(system.rent):
        return ""
    return f", {in_units(float(chips * system.rent.typical), 'USD/s')}, {kind_in_words(system.rent)}"


def _replayed(model: "Model", system: "System", found: "Plan", engine: "Engine", quantile: str) -> "Replay":
    """Return what random arrivals make of a plan."""
    from steptime.cli.simulate_common import compiling
    from steptime.simulation.plan_replay import replay

    with compiling():
        return replay(found, model, system, engine, percentile=quantile)


def _data(
    model: "Model",
    system: "System",
    found: "Plan",
    engine: "Engine",
    replayed: "Replay | None",
    *,
    explain: bool,
    answers: dict[str, Any],
) -> dict[str, Any]:
    """Return a plan as data, with launch commands, the replay, and its explanation where one is wanted.

    A plan that its replay refuses is not feasible, for the replay's reason; its own figures stay.
    """
    from steptime.cli.views.explain_view import explain_json
    from steptime.launch.launch_commands import ENGINES, launch_commands

    if replayed is not None and not replayed.good:
        found = replace(found, feasible=False, reason=replayed.reason)
    more: dict[str, Any] = {"launch": {name: launch_commands(found, name) for name in ENGINES} if found.feasible else {}}
    more["summary"] = answers
    if replayed is not None:
        more["simulated"] = replayed
    if explain and found.feasible:
        more["explanation"] = explain_json(model, system, found, engine)
    return found.to_dict(**more)


def _print(
    model: "Model",
    system: "System",
    found: "Plan",
    engine: "Engine",
    replayed: "Replay | None",
    wanted: PlanOutput,
    launches: tuple[str, ...],
) -> None:
    """Print a plan as text."""
    from steptime.cli.views.plan_view import launch_view, plan_brief, plan_view

    console = console_of()
    lead = []
    if replayed is not None:
        from steptime.cli.views.simulation_view import replay_lines

        lead = replay_lines(replayed, brief=wanted.brief)
    show(plan_brief(found, lead) if wanted.brief else plan_view(found, console.width, lead), console=console)
    if not found.feasible or wanted.brief or (replayed is not None and not replayed.good):
        return
    if wanted.explain:
        from steptime.cli.views.explain_view import explain_plan

        show(explain_plan(model, system, found, engine), console=console)
    if launches:
        console.print(launch_view(found, launches), soft_wrap=True)
    if not (wanted.explain or launches):
        more = f"{found.evaluated:,} layouts in {found.search_seconds:.2f} s. More: --explain, --launch all, --json, --csv."
        console.print(more, style="bright_black")
