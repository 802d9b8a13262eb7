"""The command `steptime simulate`. No formula lives here: it reads words, calls the library and prints what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli_options import (
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
    from steptime.engine import Engine
    from steptime.hardware import System
    from steptime.model import Model
    from steptime.plans import Plan
    from steptime.simulate.cache import Cache
    from steptime.simulate.run import Simulation
    from steptime.simulate.search import Replay
    from steptime.simulate.traffic import Lengths, Traffic


def simulate(
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
        typer.Option(help="Requests; by default 10,000, 10 for each client, or the whole trace.", rich_help_panel="Traffic"),
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
        float, typer.Option(help="Share of --rate that is served first (fast tier).", rich_help_panel="Traffic")
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
        typer.Option(help="KV room of a replica [tokens]; by default what the chips hold.", rich_help_panel="Policy"),
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
    speed: Annotated[float | None, typer.Option(help="Least output speed for each user [tok/s].")] = None,
    ttft: Annotated[float | None, typer.Option(help="Longest time to first token [s].")] = None,
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
    from steptime.errors import RangeError
    from steptime.mapping import Mapping
    from steptime.workload import Slo

    if (trace is not None) + (rate is not None) + (concurrency is not None) + find_rate != 1:
        raise RangeError("give one of --trace FILE, --rate R, --concurrency C or --find-rate")
    need_numba()
    from steptime.blackboard import drain_seconds
    from steptime.simulate.policy import Policy, budget_of, kind_of
    from steptime.simulate.run import simulate as run
    from steptime.simulate.traffic import Lengths, with_sessions

    machine = read_system(system, set_, catalog)
    described = read_model(model, weights, experts, kv, catalog)
    runs_on = read_engine(engine, imbalance, machine, catalog)
    sizes = (Lengths(mean=input_, shape=lengths, spread=spread), Lengths(mean=output, shape=lengths, spread=spread))
    hbm = machine.chip.hbm
    schedule = Policy(
        kind=policy or kind_of(runs_on),
        max_sequences=max_sequences,
        token_budget=budget_of(runs_on, prompt=input_, batch=max_sequences) if token_budget is None else token_budget,
        kv_tokens=math.inf if kv_tokens is None else kv_tokens,
        when_full=when_full,
        interval=float(drain_seconds(hbm.capacity, hbm.bandwidth)) if interval is None else interval,
        patience=patience,
        drafted=drafted,
        acceptance=acceptance,
        route=route,
    )
    slo = Slo(tpot=math.inf if speed is None else reciprocal("speed", speed), ttft=math.inf if ttft is None else ttft)
    mapping = Mapping(tp=tp, pp=pp, dp=dp, ep=ep, cp=cp, microbatches=pp, replicas=replicas)
    prefill = Mapping(tp=prefill_tp or tp, replicas=prefill_replicas) if prefill_replicas else None
    given: dict[str, Any] = {"mapping": mapping, "engine": runs_on, "policy": schedule, "slo": slo, "prefill": prefill}
    if fast_replicas:
        if not fast_share:
            raise RangeError("--fast-replicas needs --fast-share, the share of requests that they serve")
        given |= {"fast": replace(schedule, max_sequences=fast_sequences or max_sequences), "fast_replicas": fast_replicas}
    if find_rate:
        from steptime.simulate.search import highest_rate, rates

        best, points = highest_rate(
            rates(described, machine, *sizes, requests=requests or 4000, seed=seed, **given), slo=slo, quantile=quantile
        )
        if json:
            print_json({"highest_rate": best, "quantile": quantile, "points": points})
            return
        from steptime.render_simulation import rate_view

        console = console_of()
        console.print(rate_view(best, points, quantile, console.width))
        return
    traffic = _traffic(trace, rate, concurrency, requests, sizes, arrivals, burst, rate_scale, fast_share, seed)
    if prefixes:
        traffic = with_sessions(traffic, prefixes=prefixes, prefix_tokens=prefix_tokens, seed=seed)
    again = partial(run, described, machine, traffic, cache=_cache(prefix_cache, machine), **given)
    found = _with_progress(len(traffic), json, lambda progress: again(progress=progress))
    ends = _at_the_ends(runs_on, machine, again) if range_ else {}
    from steptime.simulate import export as files

    if export:
        files.write_requests(export, found.requests)
    if chrome:
        files.write_chrome_trace(chrome, found)
    if json:
        print_json(
            {"model": described.name, "system": machine.name, "engine": runs_on.name, "mapping": mapping}
            | files.report(found)
            | {"range": [{"slowness": slowness, "answers": end.answers} for slowness, end in ends.items()]}
        )
        return
    from steptime.render_simulation import range_view, simulation_title, simulation_view

    console = console_of()
    title = simulation_title(described.name, machine.chip.name, found, mapping, runs_on.name)
    console.print(simulation_view(title, found, console.width), *([range_view(found, ends)] if ends else []), sep="\n")


def _at_the_ends(engine: Engine, system: System, run: Callable[..., Simulation]) -> dict[float, Simulation]:
    """Return the simulation at both ends of the engine's 90 % range, by how slow its steps are; none for the ideal."""
    from steptime.uncertainty import has_range, widest

    return {slowness: run(slowness=slowness) for slowness in widest(engine, system)} if has_range(engine) else {}


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
    from steptime.simulate.search import replay

    return replay(
        model, system, plan.workload, plan.slo, plan.pools, plan.requests_per_second, engine=engine, quantile=quantile
    )


def replay_json(found: Replay | None) -> dict[str, Any]:
    """Return what a replay adds to a plan's JSON."""
    if found is None:
        return {}
    from steptime.simulate.export import replay_report

    return {"simulated": replay_report(found)}


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
    from steptime.simulate.traces import read_trace
    from steptime.simulate.traffic import closed_loop, merged, open_loop, scaled

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
    parts = ((fast_share, fast), (1 - fast_share, max(1, count - fast)))
    return merged(
        [open_loop(rate * share, n, *sizes, kind=arrivals, burst=burst, seed=seed + k) for k, (share, n) in enumerate(parts)]
    )


def _cache(text: str, machine: Any) -> Cache | None:
    """Read tiers such as hbm=20GB,host=1TB: capacities here, bandwidths from the machine."""
    if not text:
        return None
    from steptime.errors import RangeError, UnknownName
    from steptime.simulate.cache import Cache, Tier
    from steptime.units import parse

    known = {tier.name: tier for tier in (machine.chip.hbm, *machine.tiers)}
    tiers = []
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not equals:
            raise RangeError(f"{part!r} is not TIER=CAPACITY, such as host=1TB")
        if name not in known:
            raise UnknownName("memory tier", name, known, f"Known: {', '.join(known)}.")
        tier = known[name]
        latency = float(getattr(tier, "latency", 0.0) or 0.0)
        tiers.append(Tier(name=name, capacity=parse(size, "B"), bandwidth=float(tier.bandwidth), latency=latency))
    return Cache(tiers=tuple(tiers))


def _with_progress(total: int, quiet: bool, work: Any) -> Any:
    """Run `work` with a progress bar on the terminal where it is long."""
    from steptime.simulate.run import PORTION

    if quiet or total < 4 * PORTION:
        return work(None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)
        return work(lambda done: bar.update(task, completed=done))
