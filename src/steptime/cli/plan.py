"""The commands `steptime plan` and `steptime fleet`: a deployment of one model, and of several."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import (
    CSV,
    JSON,
    OUTPUT,
    Output,
    SubjectChanges,
    grouped,
    lengths_need,
    not_empty,
    option,
    read_systems,
)
from steptime.cli.output import (
    check_folder,
    check_outputs,
    compiled_part,
    make_console,
    patience,
    print_json,
    reported,
    say_system,
    write_csv,
    write_folder,
)
from steptime.errors import InputError
from steptime.planning.planner import DoesNotFit
from steptime.questions.plan_question import PlanInputs, answers_from, bind_plan, solve
from steptime.questions.subject import read_prefill_system

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine
    from steptime.planning.plan_replay import Replay
    from steptime.planning.plan_result import Plan


LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True, kw_only=True)
class PlanOutput(Output):
    """Options of the plan's simulation, text and files."""

    simulate: Annotated[
        bool,
        option("Serve new random requests, and lower the rate until they meet the limits.", "Deployment", "--simulate"),
    ] = False
    explain: Annotated[bool, option("Show each term's formula with its numbers and sources.", OUTPUT, "--explain")] = False
    launch: Annotated[
        str | None, option("Print launch commands for vllm, sglang, trtllm, llama.cpp, or all.", OUTPUT, metavar="ENGINE")
    ] = None
    launch_dir: Annotated[
        str | None,
        option("Write launch scripts to a folder, one per host, with a README.", OUTPUT, "--launch-dir", metavar="FOLDER"),
    ] = None
    force: Annotated[
        bool, option("Overwrite scripts in the folder, and remove scripts of an earlier plan.", OUTPUT, "--force")
    ] = False
    plot: Annotated[
        str | None,
        option("Draw the Pareto front of speed and cost: .svg, .png or .pdf.", OUTPUT, "--plot", metavar="FILE"),
    ] = None

    def launches(self, engine: str = "") -> tuple[str, ...]:
        """Return the engines that --launch names.

        Args:
            engine: Engine of the plan; "" where it is not known yet.

        Returns:
            Names of engines; empty without --launch.

        Raises:
            InputError: Its commands start no plan of this engine.
            UnknownName: There is no such engine.
        """
        if self.launch is None:
            return ()
        from steptime.errors import UnknownName
        from steptime.launch.launch_commands import ENGINES

        not_empty("--launch", self.launch, "an engine: vllm, sglang, trtllm, llama.cpp or all")
        is_llama = engine == LLAMA_CPP
        if self.launch == LLAMA_CPP != engine:
            raise InputError(f"--launch {LLAMA_CPP} starts plans of that engine: add --engine {LLAMA_CPP}, got engine {engine}")
        if self.launch == "all":
            return (LLAMA_CPP,) if is_llama else tuple(ENGINES)
        if self.launch not in (*ENGINES, LLAMA_CPP):
            names = [*ENGINES, LLAMA_CPP, "all"]
            hint = f"Known: {', '.join(names)}. --launch-dir FOLDER adds files for Dynamo, llm-d, LiteLLM and FOCUS."
            raise UnknownName("engine of --launch", self.launch, names, hint)
        if is_llama and self.launch != LLAMA_CPP:
            raise InputError(
                f"--launch {self.launch} cannot start a plan of {engine}: use --launch {LLAMA_CPP}, or --engine {self.launch}"
            )
        return (self.launch,)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan with its subject, and its simulation with random arrivals if there is one."""

    model: "Model"
    system: "System"
    engine: "Engine"
    plan: "Plan"
    replay: "Replay | None"
    prefill_system: "System | None" = None

    @property
    def is_refused(self) -> bool:
        """Whether the plan misses its limits in the simulation."""
        return self.replay is not None and not self.replay.good

    def explanation(self) -> dict[str, Any]:
        """Return the explanation of the plan as data.

        Returns:
            Equations and passes by pool, and the sources of model and system.
        """
        from steptime.cli.views.plan_view import explain_json

        return explain_json(self.model, self.system, self.plan, self.engine, self.prefill_system)


@grouped
def plan(ctx: typer.Context, inputs: PlanInputs, changes: SubjectChanges, output: PlanOutput) -> None:
    """Find the cheapest way to serve a model on a system within limits on speed and first token.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    # Wrong options are reported before the search, which takes seconds.
    needs = {
        "text, not --json, which has the commands of all engines": (not output.json, "launch"),
        "--launch ENGINE": (output.launch is not None, "launch_dir"),
        "--launch-dir FOLDER": (output.launch_dir is not None, "force"),
        **lengths_need(inputs.trace),
    }
    output.check(ctx, needs, [*changes.files(vars(inputs)), inputs.trace or ""], plot=output.plot)
    not_empty("--electricity", inputs.electricity, "USD per kWh, such as 0.08/kWh")
    not_empty("--carbon", inputs.carbon, "g of CO2 per kWh, or a grid such as us")
    check_folder("--launch-dir", output.launch_dir)
    if output.simulate:
        from steptime.cli.simulate import need_numba

        need_numba()
    inputs.slo()
    planned, launches = _planned(changes.values(ctx, PlanInputs), output)

    # Files come before text: a closed pipe must not keep them from being written.
    deployment, starts = planned.plan, planned.plan.feasible and not planned.is_refused
    if output.csv is not None:
        write_csv(output.csv, deployment)
    if output.plot is not None:
        with reported(output.plot, "the Pareto front"):
            deployment.plot(output.plot)
    # Launch scripts would start a plan that misses its limits.
    if output.launch_dir is not None and starts:
        _write_launch(deployment, launches, output.launch_dir, force=output.force)
    if output.json:
        print_json(_data(planned, explain=output.explain))
    else:
        _print(planned, output, launches)
    if not starts:
        raise typer.Exit(1)


def _planned(values: dict[str, Any], output: PlanOutput) -> tuple[Planned, tuple[str, ...]]:
    """Search for the cheapest deployment, and simulate it with `--simulate`; with the engines that --launch names."""
    _, model, system, engine, _ = bind_plan(values)
    if values.get("chips") is None:
        say_system(values["system"], system)
    second = read_prefill_system(values)
    if output.launch is not None and engine.name == "ideal":
        raise InputError("--launch cannot be used with --engine ideal")
    if output.launch_dir is not None and engine.name == LLAMA_CPP:
        raise InputError(f"--launch-dir writes no scripts of {LLAMA_CPP}: --launch {LLAMA_CPP} prints its command")
    launches = output.launches(engine.name)
    try:
        # The search goes on after the compilation: silence would look as if it hung.
        then = "compiled after {}; now searching, with simulations"
        with patience(compiled_part, then=then):
            deployment = solve(values)
    except DoesNotFit as problem:
        raise DoesNotFit(f"{problem}{_smallest_system_hint(model, values.get('catalog'))}") from None
    replayed = None
    if output.simulate and deployment.feasible:
        from steptime.cli.simulate import compiling
        from steptime.planning.plan_replay import replay

        with compiling():
            replayed = replay(deployment, model, system, engine, prefill_system=second)
    answer = Planned(model=model, system=system, engine=engine, plan=deployment, replay=replayed, prefill_system=second)
    return answer, launches


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
    """Name the smallest system whose memory is enough for a model, with its rent if that is known."""
    from steptime.hardware.rental_prices import has_rent, kind_in_words
    from steptime.planning.plan_search import smallest_system
    from steptime.units import show

    alternative = smallest_system(model, read_systems(catalog))
    if alternative is None:
        return ""
    system, chips = alternative
    rent = (
        f", {show(float(chips * system.rent.typical), 'USD/s')}, {kind_in_words(system.rent)}" if has_rent(system.rent) else ""
    )
    machine = f"{chips} x {system.chip.name}{rent}"
    return f"; the smallest system of the catalogue with enough memory is {system.name} ({machine})"


def _data(planned: Planned, *, explain: bool) -> dict[str, Any]:
    """Return a plan as data, with launch commands, and with simulation and explanation if there are any.

    A plan that misses its limits in the simulation is not feasible. Its figures stay, the reason is the simulation's.
    """
    from steptime.launch.launch_commands import engines_of_plan, launch_commands

    deployment, replayed = planned.plan, planned.replay
    answers = answers_from(deployment, planned.model, planned.system)
    if replayed is not None and not replayed.good:
        deployment = replace(deployment, feasible=False, reason=replayed.reason)
    return deployment.to_dict(
        launch={name: launch_commands(deployment, name) for name in engines_of_plan(deployment)} if deployment.feasible else {},
        summary=answers,
        **({} if replayed is None else {"simulated": replayed}),
        **({"explanation": planned.explanation()} if explain and deployment.feasible else {}),
    )


def _print(planned: Planned, output: PlanOutput, launches: tuple[str, ...]) -> None:
    """Print a plan as text."""
    from steptime.cli.views.plan_view import explanation_view, launch_view, plan_view
    from steptime.cli.views.widgets import more_line

    console, lines = make_console(), []
    if planned.replay is not None:
        from steptime.cli.views.simulation_view import replay_lines

        lines = replay_lines(planned.replay, full=output.full)
    console.print(plan_view(planned.plan, console.width, lines, full=output.full))
    if not planned.plan.feasible or planned.is_refused:
        return
    if output.explain:
        console.print(explanation_view(planned.explanation(), planned.system, planned.prefill_system))
    if launches:
        console.print(launch_view(planned.plan, launches), soft_wrap=True)
    # Readers who asked for more know the options already.
    if not (output.explain or launches):
        tables = "" if output.full else "--full (time, memory, Pareto front)"
        console.print(more_line(tables, "--explain", "--launch all", "--plot FILE", "--json"))


# Shown by --help; a bracket before a name is escaped, because it would be markup.
FLEET_FILE = """\b
budget = 200             # USD per hour (optional)
[\\[models]]
name = "llama-3.1-8b"
rate = 100               # requests/s; or rates: 24 of them
day = "chat"             # optional: chat, images, or peak over mean
peak_hour = 20           # optional: hour of the peak, 0 to 23
input = 1000             # tokens of a prompt
output = 200             # tokens of an answer
speed = 30               # limit: tokens/s per user (optional)
ttft = 2                 # limit: s to the first token (optional)
percentile = "p90"       # mean, p50, p90, p95 or p99 (optional)
sure = 0.9               # probability of meeting each limit (optional)
cached = 0.5             # share of the prompt (optional)
weights = "fp8"          # also experts, kv (optional)
systems = ["hgx-h100"]   # only on these (optional)
[\\[systems]]
name = "hgx-h100"
chips = 32
rent = "2.10"            # USD per hour of a reserved chip (optional)
on_demand = "3.50"       # USD per chip-hour on demand (optional)
engine = "sglang"        # (optional)
"""


def fleet(
    file: Annotated[str, typer.Argument(metavar="file", help="Models, systems and budget: a TOML, JSON or YAML file.")],
    budget: Annotated[
        float | None, option("Limit on the rent in USD per hour.", OUTPUT, metavar="USD", show_default="that of the file")
    ] = None,
    csv: CSV = None,
    json_: JSON = False,
) -> None:
    """Find the cheapest deployments of several models on one budget of chips.

    `FLEET_FILE` has the keys of the file.

    Without a feasible fleet the exit code is 1, and the answer says which model has no room and what would suffice.
    """
    from steptime.number_checks import positive
    from steptime.planning.model_fleet import plan_fleet, read_fleet

    check_outputs({"--csv": csv}, [file])
    models, systems, limit = read_fleet(file)
    if budget is not None:
        limit = float(positive("budget", budget, "USD/h"))
    answer = plan_fleet(models, systems, limit)
    if csv is not None:
        write_csv(csv, answer)
    if json_:
        print_json(answer.to_dict())
    else:
        from steptime.cli.views.fleet_view import fleet_view

        make_console().print(fleet_view(answer))
    # The exit code is 1 where the chips or the budget do not suffice.
    raise typer.Exit(0 if answer.feasible else 1)
