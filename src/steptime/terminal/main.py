"""The command line. No formula lives here: it reads words, calls the library and prints what comes back."""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any

import typer

from steptime.terminal.measured import calibrate, validate
from steptime.terminal.options import (
    CATALOG,
    ENGINE,
    EXPERTS,
    IMBALANCE,
    JSON,
    KV,
    MODEL,
    SET,
    SYSTEM,
    WEIGHTS,
    console_of,
    print_json,
    read_engine,
    read_model,
    read_system,
    read_systems,
    reciprocal,
)
from steptime.terminal.simulate import simulate

app = typer.Typer(
    name="steptime",
    help="The arithmetic of serving large language models: step time, latency, throughput and dollars per token.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  steptime plan deepseek-ai/DeepSeek-V3 gb200-nvl72 --input 8192 --output 1024 --speed 50 --ttft 2",
)


@app.command(epilog="Example:  steptime plan qwen3-235b-a22b hgx-b200 --input 4000 --output 1000 --speed 40 --launch vllm")
def plan(
    model: MODEL,
    system: SYSTEM,
    input_: Annotated[int, typer.Option("--input", help="Prompt tokens of a request.")] = 1024,
    output: Annotated[int, typer.Option("--output", help="Output tokens of a request.")] = 1024,
    speed: Annotated[float | None, typer.Option(help="Least output speed for each user, in tok/s.")] = None,
    ttft: Annotated[float | None, typer.Option(help="Longest mean time to first token, in s.")] = None,
    chips: Annotated[int | None, typer.Option(help="Chips to use; by default one scale-up domain.")] = None,
    cached: Annotated[float, typer.Option(help="Share of the prompt that a prefix cache holds (0 to 1).")] = 0.0,
    mode: Annotated[
        str, typer.Option(help="aggregated (prefill and decode share chips), disaggregated (pools), or any.")
    ] = "any",
    engine: ENGINE = None,
    weights: WEIGHTS = "",
    experts: EXPERTS = "",
    kv: KV = "",
    imbalance: IMBALANCE = None,
    set_: SET = None,
    catalog: CATALOG = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show each term's formula with its numbers and sources.")] = False,
    launch: Annotated[str, typer.Option(metavar="ENGINE", help="Print launch commands for vllm, sglang, trtllm, or all.")] = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Replay it with random arrivals, and lower the batch until percentiles hold.")
    ] = False,
    quantile: Annotated[
        str, typer.Option(help="At which the limits hold with --simulate: mean, p50, p90, p95 or p99.")
    ] = "p90",
    json: JSON = False,
) -> None:
    """Find the cheapest way to serve a model on a system within limits on speed and first token."""
    from steptime.errors import UnknownName
    from steptime.planning.launch_commands import ENGINES
    from steptime.planning.planner import MODES, DoesNotFit, smallest_system
    from steptime.planning.planner import plan as make_plan
    from steptime.planning.workload import Slo, Workload

    if mode != "any" and mode not in MODES:
        raise UnknownName("mode", mode, [*MODES, "any"], "Known: aggregated, disaggregated, any.")
    if launch and launch != "all" and launch not in ENGINES:
        raise UnknownName("engine", launch, [*ENGINES, "all"], "Known: vllm, sglang, trtllm, all.")
    machine = read_system(system, set_, catalog)
    described = read_model(model, weights, experts, kv, catalog)
    runs_on = read_engine(engine, imbalance, machine, catalog)
    tpot = math.inf if speed is None else reciprocal("speed", speed)
    slo = Slo(tpot=tpot, ttft=math.inf if ttft is None else ttft)
    workload = Workload(input_tokens=input_, output_tokens=output, cached_share=cached)
    try:
        found = make_plan(
            described, machine, workload, slo, chips=chips, engine=runs_on, modes=MODES if mode == "any" else (mode,)
        )
    except DoesNotFit as problem:
        other = smallest_system(described, read_systems(catalog))
        where = (
            f"; the smallest system of the catalogue that holds it is {other.name} ({other.chips} x {other.chip.name})"
            if other
            else ""
        )
        raise DoesNotFit(f"{problem}{where}") from None
    from steptime.terminal.simulate import replay_json, replay_of

    replayed = replay_of(simulate, described, machine, found, runs_on, quantile)
    if json:
        from steptime.planning.launch_commands import launch_commands

        commands = {name: launch_commands(found, name) for name in ENGINES} if found.feasible else {}
        print_json(found.to_dict(launch=commands, **replay_json(replayed)))
    else:
        from steptime.terminal.plan_view import explain_plan, launch_view, plan_view

        console = console_of()
        console.print(plan_view(found, console.width))
        if replayed is not None:
            from steptime.terminal.simulation_view import replay_view

            console.print(replay_view(replayed))
        if explain and found.feasible:
            console.print(explain_plan(described, machine, found, runs_on))
        if launch and found.feasible:
            console.print(launch_view(found, ENGINES if launch == "all" else (launch,)), soft_wrap=True)
        if found.feasible and not (explain or launch):
            console.print(
                f"{found.evaluated:,} layouts in {found.search_seconds:.2f} s. More: --explain, --launch all, --json.",
                style="bright_black",
            )
    if not found.feasible:
        raise typer.Exit(1)


@app.command(epilog="Example:  steptime step deepseek-v3 gb200-nvl72 --batch 8192 --context 4096 --dp 72 --ep 72 --explain")
def step(
    model: MODEL,
    system: SYSTEM,
    phase: Annotated[str, typer.Option(help="decode, prefill, or mixed.")] = "decode",
    batch: Annotated[int, typer.Option(help="Sequences that decode in one replica.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of context of each.")] = 4096,
    query: Annotated[int, typer.Option(help="Tokens that each sequence gets in the pass (above 1: verified drafts).")] = 1,
    prompts: Annotated[int | None, typer.Option(help="Prompts in the pass; by default one for each attention group.")] = None,
    tokens: Annotated[int, typer.Option(help="New tokens of each prompt in the pass.")] = 8192,
    prefix: Annotated[int, typer.Option(help="Cached tokens before them.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor parallel ways.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Attention groups (data parallel attention).")] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallel ways.")] = 1,
    cp: Annotated[int, typer.Option(help="Context parallel ways.")] = 1,
    microbatches: Annotated[int | None, typer.Option(help="Parts of the batch in flight; by default one a stage.")] = None,
    engine: ENGINE = None,
    weights: WEIGHTS = "",
    experts: EXPERTS = "",
    kv: KV = "",
    imbalance: IMBALANCE = None,
    set_: SET = None,
    catalog: CATALOG = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show each term's formula with its numbers and sources.")] = False,
    json: JSON = False,
) -> None:
    """Time one forward pass: decode, prefill, or both at once, on a layout of your choice."""
    from steptime.cards.steps import step_card
    from steptime.errors import RangeError, UnknownName
    from steptime.physics.layout import Layout, show_layout

    if phase not in ("decode", "prefill", "mixed"):
        raise UnknownName("phase", phase, ("decode", "prefill", "mixed"), "Known: decode, prefill, mixed.")
    decodes, prefills = phase != "prefill", phase != "decode"
    for name, value, needed in (("batch", batch, decodes), ("context", context, decodes), ("tokens", tokens, prefills)):
        if needed and value < 1:
            raise RangeError(f"--{name} must be at least 1, not {value}")
    machine = read_system(system, set_, catalog)
    described = read_model(model, weights, experts, kv, catalog)
    runs_on = read_engine(engine, imbalance, machine, catalog)
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, cp=cp, microbatches=pp if microbatches is None else microbatches)
    given: dict[str, Any] = {"batch": batch, "context": context, "query": query} if decodes else {}
    if prefills:
        given |= {"prompts": dp if prompts is None else prompts, "tokens": tokens, "prefix": prefix}
    found = step_card(described, machine, **given, layout=layout, engine=runs_on)
    low_high = None if found.range is None else (float(found.range[0]), float(found.range[1]))
    ideal, memory, seconds = found.ideal, found.memory, float(found.total)
    rows = given.get("prompts", 0) * given.get("tokens", 0)
    if json:
        print_json(found)
        return
    from steptime.planning.explanation import explain_step
    from steptime.terminal.plan_view import lines_table, sources_table, step_view
    from steptime.terminal.widgets import ranged
    from steptime.units import show

    def rate(amount: float) -> str:
        slowest_fastest = low_high and (amount / low_high[1], amount / low_high[0])
        return ranged(amount / seconds, slowest_fastest, lambda each: show(each, "tok/s"))

    rates = {"Bound by": str(found.bound)}
    if decodes:
        rates["Speed for each user"] = rate(query)
        rates["Output per chip"] = rate(batch * query / int(layout.chips))
    if prefills:
        rates["Prompt tokens per chip"] = rate(rows / int(layout.chips))
    rates["Fits"] = "yes" if memory.fits else f"no, {show(float(memory.used - memory.capacity), 'B')} too much on a chip"
    where = f"{int(layout.chips)} x {machine.chip.name}, {show_layout(layout)}, engine {runs_on.name}"
    title = f"{described.name} on {where}: one {phase} step"
    console = console_of()
    console.print(step_view(title, found, rates, memory, console.width, limits=low_high, ideal=ideal))
    if explain:
        console.print(lines_table(explain_step(described, machine, given=given, layout=layout, engine=runs_on)))
        console.print(sources_table(machine))


@app.command(
    epilog="Examples:  steptime models deepseek-v3    steptime models --like qwen3    "
    "steptime models --table deepseek-v3 qwen3-235b-a22b kimi-k2 --context 131072"
)
def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A model to show, or several to compare; without one, the catalogue is listed.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--table", help="Compare the models named, or those that --like finds.")] = False,
    like: Annotated[str, typer.Option(help="List only names that contain this text.")] = "",
    context: Annotated[int, typer.Option(help="Context in tokens, for the figures that depend on one.")] = 8192,
    weights: WEIGHTS = "",
    experts: EXPERTS = "",
    kv: KV = "",
    catalog: CATALOG = None,
    json: JSON = False,
) -> None:
    """List the models, compare some of them, or show what one is made of."""
    from steptime.cards import models as cards
    from steptime.catalog.files import files
    from steptime.errors import RangeError
    from steptime.numbers import whole

    whole("context", context, unit="token")
    chosen = names or []
    if compare and not chosen:
        chosen = [name for name in files("models", catalog) if like.casefold() in name.casefold()]
        if not chosen:
            raise RangeError(f"--like {like!r} finds no model to compare")
    read = [read_model(name, weights, experts, kv, catalog) for name in chosen]
    if len(read) == 1 and not compare:
        card = cards.model_card(read[0], context=context)
        if json:
            print_json(card)
            return
        from steptime.terminal.card_views import model_view

        console = console_of()
        console.print(model_view(card, console.width))
        return
    if read:
        compared = cards.compared(read, context=context)
        if json:
            print_json(compared)
            return
        from steptime.terminal.card_views import comparison_view

        console = console_of()
        console.print(comparison_view(compared.models, console.width))
        return
    listed = cards.model_table(like, catalog)
    if json:
        print_json(listed)
        return
    from steptime.terminal.card_views import models_view

    console_of().print(models_view(listed.models))


@app.command(epilog="Examples:  steptime systems    steptime systems gb200-nvl72")
def systems(
    name: Annotated[
        str | None, typer.Argument(help="A system to show; without it, the catalogue is listed.", show_default=False)
    ] = None,
    set_: SET = None,
    catalog: CATALOG = None,
    json: JSON = False,
) -> None:
    """List the systems, or show one: balance, drain time, links, rent, and where each figure comes from."""
    from steptime.cards import systems as cards

    if name is not None:
        card = cards.system_card(read_system(name, set_, catalog))
        if json:
            print_json(card)
            return
        from steptime.terminal.card_views import system_view

        console_of().print(system_view(card))
        return
    listed = cards.system_table(read_systems(catalog))
    if json:
        print_json(listed)
        return
    from steptime.terminal.card_views import systems_view

    console_of().print(systems_view(listed.systems))


@app.command(epilog="Examples:  steptime engines    steptime engines ideal")
def engines(
    name: Annotated[
        str | None, typer.Argument(help="An engine to show; without it, all are listed.", show_default=False)
    ] = None,
    catalog: CATALOG = None,
    json: JSON = False,
) -> None:
    """List the engines, or show the constants of one."""
    from steptime.cards import engines as cards
    from steptime.catalog.files import files
    from steptime.physics.engine import load_engine

    names = ("ideal", *files("engines", catalog)) if name is None else (name,)
    shown = cards.engine_table(load_engine(n, catalog) for n in names)
    if json:
        print_json(shown if name is None else shown.engines[0])
        return
    from steptime.terminal.card_views import engine_view, engines_view

    console_of().print(engines_view(shown.engines) if name is None else engine_view(shown.engines[0]))


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"steptime {installed('steptime')}")
        raise typer.Exit


app.command(
    epilog="Examples:  steptime validate runs.csv --predictions predicted.csv    "
    "steptime validate vllm-result.json --system hgx-h200 --tp 4 --weights fp8"
)(validate)
app.command(
    epilog="Examples:  steptime calibrate runs.csv --prior vllm --engine mine --out mine.toml    "
    "steptime calibrate results/ --prior vllm --engine mine --system hgx-h200 --tp 4 --weights fp8"
)(calibrate)
app.command(
    epilog="Examples:  steptime simulate llama-3.1-8b hgx-h100 --rate 20 --input 512 --output 128 --ttft 0.2    "
    "steptime simulate llama-3.1-8b hgx-h100 --find-rate --ttft 0.5 --speed 50    "
    "steptime simulate llama-3.1-70b hgx-h100 --tp 4 --concurrency 64    "
    "steptime simulate qwen3-32b hgx-h200 --tp 2 --replicas 2 --prefill-replicas 2 --trace requests.csv"
)(simulate)


def main() -> None:
    """Run the command line; wrong input gets one message and exit code 2."""
    from steptime.errors import InputError

    try:
        app()
    except InputError as problem:
        typer.echo(f"steptime: {problem}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
