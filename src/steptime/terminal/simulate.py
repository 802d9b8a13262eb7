"""The command `steptime simulate`. No formula lives here: it reads words, calls the library and prints what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    reciprocal,
)

if TYPE_CHECKING:
    from steptime.machines.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine
    from steptime.physics.layout import Layout
    from steptime.planning.deployment import Plan
    from steptime.simulation.prefix_cache import Cache
    from steptime.simulation.rates import Replay
    from steptime.simulation.traffic import Lengths, Traffic


LONGER = 4  # times as long a run as finds a rate, to confirm it


def simulate(
    ctx: typer.Context,
    model: MODEL,
    system: SYSTEM,
    trace: Annotated[
        str | None, typer.Option(help="Trace file: Azure CSV, Mooncake or vLLM JSONL.", rich_help_panel="Traffic")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second.", rich_help_panel="Traffic")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Clients of a closed loop.", rich_help_panel="Traffic")] = None,
    find_rate: Annotated[
        bool, typer.Option("--find-rate", help="Search the highest rate within the limits.", rich_help_panel="Traffic")
    ] = False,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Requests; by default 10,000, 10 a client, or the whole trace. The least for --find-rate: 4,000 a replica.",
            rich_help_panel="Traffic",
        ),
    ] = None,
    input_: Annotated[int, typer.Option("--input", help="Mean prompt tokens.", rich_help_panel="Traffic")] = 1024,
    output: Annotated[int, typer.Option("--output", help="Mean output tokens.", rich_help_panel="Traffic")] = 256,
    lengths: Annotated[str, typer.Option(help="fixed, uniform or lognormal.", rich_help_panel="Traffic")] = "fixed",
    spread: Annotated[
        float,
        typer.Option(help="Half the range (uniform) or the deviation (lognormal) over the mean.", rich_help_panel="Traffic"),
    ] = 0.0,
    arrivals: Annotated[str, typer.Option(help="poisson, gamma or constant.", rich_help_panel="Traffic")] = "poisson",
    burst: Annotated[float, typer.Option(help="Squared variation of gamma intervals.", rich_help_panel="Traffic")] = 4.0,
    rate_scale: Annotated[float, typer.Option(help="Play a trace this many times as fast.", rich_help_panel="Traffic")] = 1.0,
    fast_share: Annotated[
        float, typer.Option(help="Share of requests that is served first (fast tier).", rich_help_panel="Traffic")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Reproduces the run.", rich_help_panel="Traffic")] = 0,
    policy: Annotated[
        str | None,
        typer.Option(help="continuous, prefill-first, static or train; by default the engine's.", rich_help_panel="Policy"),
    ] = None,
    max_sequences: Annotated[int, typer.Option(help="Seats of a replica.", rich_help_panel="Policy")] = 256,
    token_budget: Annotated[
        int | None, typer.Option(help="Tokens of a step; by default the engine's.", rich_help_panel="Policy")
    ] = None,
    kv_tokens: Annotated[
        float | None,
        typer.Option(help="KV room of a replica, in tokens; by default what the chips hold.", rich_help_panel="Policy"),
    ] = None,
    when_full: Annotated[str, typer.Option(help="recompute (preempt) or queue.", rich_help_panel="Policy")] = "recompute",
    interval: Annotated[
        float | None, typer.Option(help="Seconds between trains; by default the HBM drain time.", rich_help_panel="Policy")
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds a static batch waits to fill.", rich_help_panel="Policy")] = 0.0,
    drafted: Annotated[int, typer.Option(help="Tokens drafted for each step.", rich_help_panel="Policy")] = 0,
    acceptance: Annotated[float, typer.Option(help="Tokens that a step yields by drafts.", rich_help_panel="Policy")] = 1.0,
    route: Annotated[
        str, typer.Option(help="round-robin, least-loaded or prefix-aware.", rich_help_panel="Policy")
    ] = "round-robin",
    prefix_cache: Annotated[
        str,
        typer.Option(metavar="TIERS", help="Cache of a replica, such as hbm=20GB,host=1TB,ssd=4TB.", rich_help_panel="Policy"),
    ] = "",
    prefixes: Annotated[int, typer.Option(help="Shared prompt beginnings among requests.", rich_help_panel="Policy")] = 0,
    prefix_tokens: Annotated[int, typer.Option(help="Tokens of each.", rich_help_panel="Policy")] = 512,
    tp: Annotated[int, typer.Option(help="Tensor parallel ways.", rich_help_panel="Layout")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.", rich_help_panel="Layout")] = 1,
    dp: Annotated[int, typer.Option(help="Attention groups (data parallel attention).", rich_help_panel="Layout")] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallel ways.", rich_help_panel="Layout")] = 1,
    cp: Annotated[int, typer.Option(help="Context parallel ways.", rich_help_panel="Layout")] = 1,
    replicas: Annotated[int, typer.Option(help="Replicas.", rich_help_panel="Layout")] = 1,
    fast_replicas: Annotated[
        int, typer.Option(help="More replicas, for the fast tier alone; 0 to share.", rich_help_panel="Layout")
    ] = 0,
    fast_sequences: Annotated[
        int | None, typer.Option(help="Their seats; by default --max-sequences.", rich_help_panel="Layout")
    ] = None,
    prefill_replicas: Annotated[
        int, typer.Option(help="Replicas that only read prompts; 0 for one pool.", rich_help_panel="Layout")
    ] = 0,
    prefill_tp: Annotated[
        int | None, typer.Option(help="Their tensor parallel ways; by default --tp.", rich_help_panel="Layout")
    ] = None,
    speed: Annotated[float | None, typer.Option(help="Least output speed for each user, in tok/s.")] = None,
    ttft: Annotated[float | None, typer.Option(help="Longest time to first token, in s.")] = None,
    quantile: Annotated[str, typer.Option(help="At which the limits hold: mean, p50, p90, p95 or p99.")] = "p99",
    engine: ENGINE = None,
    weights: WEIGHTS = "",
    experts: EXPERTS = "",
    kv: KV = "",
    imbalance: IMBALANCE = None,
    set_: SET = None,
    catalog: CATALOG = None,
    export: Annotated[str, typer.Option(metavar="FILE", help="Write every request to a .csv or .parquet file.")] = "",
    range_: Annotated[
        bool, typer.Option("--range", help="Run it again with every step at the ends of the engine's 90 % range.")
    ] = False,
    chrome: Annotated[str, typer.Option(metavar="FILE", help="Write the timeline as a Chrome trace.")] = "",
    json: JSON = False,
) -> None:
    """Serve requests one by one: queues, percentiles, and the rate that a deployment can take."""
    from steptime.errors import RangeError, UnknownName
    from steptime.physics.layout import Layout
    from steptime.physics.uncertainty import has_range
    from steptime.planning.workload import Slo

    if (trace is not None) + (rate is not None) + (concurrency is not None) + find_rate != 1:
        raise RangeError("give one of --trace FILE, --rate R, --concurrency C or --find-rate")
    drawn, random, once = trace is None, rate is not None or find_rate, not find_rate
    _all_of_use(
        ctx,
        {
            "--rate, --concurrency or --find-rate; a trace has its own": (drawn, "input_ output lengths spread"),
            "arrivals that are drawn, or --prefixes": (drawn or prefixes != 0, "seed"),
            "--find-rate": (find_rate, "quantile"),
            "--rate, --find-rate or --trace; clients stay with their replica": (concurrency is None, "route"),
            "--prefix-cache": (bool(prefix_cache), "prefixes"),
            "--rate or --find-rate": (random, "arrivals burst fast_share"),
            "--trace": (not drawn, "rate_scale"),
            "a run at one rate, not --find-rate": (once, "export chrome range_"),
            "--arrivals gamma": (arrivals == "gamma", "burst"),
            "--lengths uniform or lognormal": (lengths != "fixed", "spread"),
            "--spread greater than 0, unless fixed": (lengths not in ("uniform", "lognormal") or spread > 0, "lengths"),
            "--policy train": (policy == "train", "interval"),
            "--policy static": (policy == "static", "patience"),
            "--prefixes": (prefixes != 0, "prefix_tokens"),
            "--prefixes or a trace with hash_ids": (prefixes != 0 or not drawn, "prefix_cache"),
            "--prefix-cache, unless round-robin or least-loaded": (bool(prefix_cache) or route != "prefix-aware", "route"),
            "--prefill-replicas": (prefill_replicas > 0, "prefill_tp"),
            "--fast-replicas": (fast_replicas > 0, "fast_sequences"),
            "--fast-share, the share of requests that they serve": (fast_share > 0, "fast_replicas"),
        },
    )
    need_numba()
    from steptime.blackboard.machine import drain_seconds
    from steptime.simulation.policy import Policy, budget_of, kind_of
    from steptime.simulation.rates import QUANTILES
    from steptime.simulation.traffic import Lengths, with_sessions

    machine = read_system(system, set_, catalog)
    described = read_model(model, weights, experts, kv, catalog)
    runs_on = read_engine(engine, imbalance, machine, catalog)
    if quantile not in QUANTILES:
        raise UnknownName("quantile", quantile, tuple(QUANTILES), f"Known: {', '.join(QUANTILES)}.")
    if range_ and not has_range(runs_on):
        raise RangeError("--range needs an engine with a range: the ideal one is a bound")
    sizes = (Lengths(mean=input_, shape=lengths, spread=spread), Lengths(mean=output, shape=lengths, spread=spread))

    def traffic_at(rate: float | None, count: int | None) -> Traffic:
        made = _traffic(trace, rate, concurrency, count, sizes, arrivals, burst, rate_scale, fast_share, seed)
        if prefixes and len(made.starts):
            raise RangeError(f"--prefixes does not go with {trace}: its prompts have blocks of their own (hash_ids)")
        return with_sessions(made, prefixes=prefixes, prefix_tokens=prefix_tokens, seed=seed) if prefixes else made

    played = None if find_rate else traffic_at(rate, requests)
    prompt = float(input_ if played is None or drawn else max(played.inputs))
    hbm = machine.chip.hbm
    schedule = Policy(
        kind=policy or kind_of(runs_on),
        max_sequences=max_sequences,
        token_budget=budget_of(runs_on, prompt=prompt, batch=max_sequences) if token_budget is None else token_budget,
        kv_tokens=math.inf if kv_tokens is None else kv_tokens,
        when_full=when_full,
        interval=float(drain_seconds(hbm.capacity, hbm.bandwidth)) if interval is None else interval,
        patience=patience,
        drafted=drafted,
        acceptance=acceptance,
        route=route,
    )
    slo = Slo(tpot=math.inf if speed is None else reciprocal("speed", speed), ttft=math.inf if ttft is None else ttft)
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, cp=cp, microbatches=pp, replicas=replicas)
    prefill = Layout(tp=tp if prefill_tp is None else prefill_tp, replicas=prefill_replicas) if prefill_replicas else None
    given: dict[str, Any] = {"layout": layout, "engine": runs_on, "policy": schedule, "slo": slo, "prefill": prefill}
    if fast_replicas:
        seats = max_sequences if fast_sequences is None else fast_sequences
        given |= {"fast": replace(schedule, max_sequences=seats), "fast_replicas": fast_replicas}
    given["cache"] = _cache(prefix_cache, machine, prefill or layout)
    if played is None:
        least = 4000 * (replicas + fast_replicas) if requests is None else requests
        _find_rate(described, machine, traffic_at, least, given, quantile, json)
    else:
        _run(described, machine, played, given, export, chrome, range_, json)


def _find_rate(
    model: Model,
    system: System,
    traffic: Callable[[float | None, int | None], Traffic],
    requests: int,
    given: dict[str, Any],
    quantile: str,
    json: bool,
) -> None:
    """Search the highest rate within the limits, and print it."""
    from steptime.physics.layout import show_layout
    from steptime.simulation.rates import highest_rate, rates
    from steptime.terminal.simulation_view import rate_view

    run, longer = (rates(model, system, traffic, requests=n * requests, **given) for n in (1, LONGER))
    found = highest_rate(run, slo=given["slo"], quantile=quantile, longer=longer)
    if json:
        print_json(found.to_dict(**_about(model, system, given), policy=given["policy"]))
        return
    console = console_of()
    what = f"{model.name} on {system.chip.name} ({show_layout(given['layout'])}), engine {given['engine'].name}"
    console.print(
        f"{what}, {given['policy'].kind} batching",
        rate_view(found.rate, list(found.points), quantile, console.width),
        sep="\n\n",
    )


def _run(
    model: Model, system: System, traffic: Traffic, given: dict[str, Any], export: str, chrome: str, ends: bool, json: bool
) -> None:
    """Serve a traffic, at both `ends` of the engine's range too if asked, write files and print what came of it."""
    from steptime.physics.uncertainty import widest
    from steptime.simulation import files
    from steptime.simulation.run import simulate as run

    files.check_paths(export, chrome)
    again = partial(run, model, system, traffic, **given)
    found = _with_progress(len(traffic), json, lambda progress: again(progress=progress))
    slower = {slowness: again(slowness=slowness) for slowness in (widest(given["engine"], system) if ends else ())}
    if export:
        files.write_requests(export, found.requests)
    left = files.write_chrome_trace(chrome, found) if chrome else 0
    if json:
        ranges = [{"slowness": slowness, "answers": end.answers} for slowness, end in slower.items()]
        print_json(found.to_dict(range=ranges))
        return
    from steptime.terminal.simulation_view import range_view, simulation_title, simulation_view

    console = console_of()
    title = simulation_title(model.name, system.chip.name, found, given["layout"], given["engine"].name)
    console.print(simulation_view(title, found, console.width), *([range_view(found, slower)] if slower else []), sep="\n")
    if left:
        console.print(f"{chrome} leaves the last {left:,} requests out.")


def _about(model: Model, system: System, given: dict[str, Any]) -> dict[str, Any]:
    """What was run on what, in JSON."""
    return {"model": model.name, "system": system.name, "engine": given["engine"].name, "layout": given["layout"]}


def _all_of_use(ctx: typer.Context, needs: dict[str, tuple[bool, str]]) -> None:
    """Raise RangeError for an option that was given and would be of no use; `needs` says which need what, and if it holds."""
    from steptime.errors import RangeError

    given = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
    for what, (holds, names) in needs.items():
        idle = [name for name in names.split() if name in given]
        if idle and not holds:
            raise RangeError(f"--{idle[0].strip('_').replace('_', '-')} needs {what}")


def need_numba() -> None:
    """Raise InputError where the simulator cannot run, with what to install."""
    from importlib.util import find_spec

    from steptime.errors import InputError

    if find_spec("numba") is None:
        raise InputError("the simulator is compiled by numba, which is not installed: pip install 'steptime[simulate]'")


def replay_of(asked: bool, model: Model, system: System, plan: Plan, engine: Engine, quantile: str) -> Replay | None:
    """Return what random arrivals make of a feasible plan, where it is `asked` for."""
    if not asked or not plan.feasible:
        return None
    need_numba()
    from steptime.simulation.rates import replay

    return replay(
        model, system, plan.workload, plan.slo, plan.pools, plan.requests_per_second, engine=engine, quantile=quantile
    )


def replay_json(found: Replay | None) -> dict[str, Any]:
    """Return what a replay adds to a plan's JSON."""
    return {} if found is None else {"simulated": found}


def _traffic(
    trace: str | None,
    rate: float | None,
    concurrency: int | None,
    requests: int | None,
    sizes: tuple[Lengths, Lengths],
    arrivals: str,
    burst: float,
    rate_scale: float,
    fast_share: float,
    seed: int,
) -> Traffic:
    from steptime.errors import RangeError
    from steptime.simulation.traces import read_trace
    from steptime.simulation.traffic import closed_loop, merged, open_loop, scaled

    if trace is not None:
        return scaled(read_trace(trace, most=requests), rate_scale)
    if concurrency is not None:
        return closed_loop(concurrency, 10 * concurrency if requests is None else requests, *sizes, seed=seed)
    assert rate is not None
    count = 10_000 if requests is None else requests
    if not 0 <= fast_share < 1:
        raise RangeError(f"the fast share must be at least 0 and below 1, not {fast_share:g}")
    if not fast_share:
        return open_loop(rate, count, *sizes, kind=arrivals, burst=burst, seed=seed)
    fast = max(1, round(count * fast_share))
    if count < 2:
        raise RangeError("two classes need at least 2 requests")
    parts = ((fast_share, fast), (1 - fast_share, max(1, count - fast)))
    return merged(
        [open_loop(rate * share, n, *sizes, kind=arrivals, burst=burst, seed=seed + k) for k, (share, n) in enumerate(parts)]
    )


def _cache(text: str, machine: System, layout: Layout) -> Cache | None:
    """Read tiers of a replica such as hbm=20GB,host=1TB: capacities here, bandwidths and order from the machine.

    The chips' own memory comes first, of no capacity unless given: only there is a block of use without a load.
    """
    if not text:
        return None
    from steptime.errors import RangeError, UnknownName
    from steptime.simulation.prefix_cache import Cache, Tier
    from steptime.units import parse, show

    hbm = machine.chip.hbm
    known = {tier.name: tier for tier in (hbm, *machine.tiers)}
    sizes = {hbm.name: 0.0}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals:
            raise RangeError(f"{part!r} is not TIER=CAPACITY, such as host=1TB")
        if name not in known:
            raise UnknownName("memory tier", name, known, f"Known: {', '.join(known)}.")
        if sizes.get(name):
            raise RangeError(f"{name} is given twice")
        sizes[name] = parse(size, "B")
    most = float(hbm.capacity) * int(layout.chips)
    if sizes[hbm.name] > most:
        raise RangeError(f"{hbm.name}={show(sizes[hbm.name], 'B')} is more than the {show(most, 'B')} of a replica's chips")
    return Cache(
        tiers=tuple(
            Tier(name=name, capacity=sizes[name], bandwidth=float(tier.bandwidth), latency=float(tier.latency or 0.0))
            for name, tier in known.items()
            if name in sizes
        )
    )


def _with_progress(total: int, quiet: bool, work: Any) -> Any:
    """Run `work` with a progress bar on the terminal where it is long."""
    from steptime.simulation.run import PORTION

    if quiet or total < 4 * PORTION:
        return work(None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)
        return work(lambda done: bar.update(task, completed=done))
