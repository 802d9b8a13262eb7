"""The command `steptime simulate`."""

from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import (
    BRIEF,
    CSV,
    JSON,
    LAYOUT,
    LIMITS,
    OUTPUT,
    Held,
    Rented,
    Ways,
    count,
    not_empty,
    option,
    read_limits,
    refuse_idle,
)
from steptime.cli.output import check_outputs, console_of, print_json, show, write_csv, wrote
from steptime.cli.simulate_common import compiling, known_quantile, need_numba, with_progress
from steptime.errors import InputError, RangeError

if TYPE_CHECKING:
    from steptime.hardware.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine
    from steptime.physics.layout import Layout
    from steptime.simulation.max_rate import HighestRate
    from steptime.simulation.prefix_cache import Cache
    from steptime.simulation.scheduling_policy import Policy
    from steptime.simulation.simulation_result import Simulation
    from steptime.simulation.traffic import Lengths, Traffic

TRAFFIC, POLICY = "Traffic", "Policy"


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Which requests come, and when."""

    trace: Annotated[str | None, option("Trace file: Azure CSV, Mooncake or vLLM JSONL.", TRAFFIC)] = None
    rate: Annotated[float | None, option("Requests per second.", TRAFFIC)] = None
    concurrency: Annotated[
        int | None, count("--concurrency", "Clients of a closed loop; with --find-rate, those that are tried first.", TRAFFIC)
    ] = None
    find_rate: Annotated[
        bool,
        option(
            "Search the highest rate within the limits; with --trace, of the trace played faster or slower; with "
            "--concurrency, the most clients.",
            TRAFFIC,
            "--find-rate",
        ),
    ] = False
    requests: Annotated[
        int | None,
        count(
            "--requests",
            "Requests; by default 10,000, 10 a client, or the whole trace. The least for --find-rate: 4,000 a replica.",
            TRAFFIC,
        ),
    ] = None
    input_: Annotated[int, count("--input", "Mean prompt tokens.", TRAFFIC)] = 1024
    output: Annotated[int, count("--output", "Mean output tokens.", TRAFFIC)] = 256
    lengths: Annotated[str, option("fixed, uniform or lognormal.", TRAFFIC)] = "fixed"
    spread: Annotated[float, option("Half the range (uniform) or the deviation (lognormal) over the mean.", TRAFFIC)] = 0.0
    arrivals: Annotated[str, option("poisson, gamma or constant.", TRAFFIC)] = "poisson"
    burst: Annotated[float, option("Squared variation of gamma intervals.", TRAFFIC)] = 4.0
    rate_scale: Annotated[float, option("Play a trace this many times as fast.", TRAFFIC)] = 1.0
    fast_share: Annotated[float, option("Share of requests that is served first (fast tier).", TRAFFIC)] = 0.0
    prefixes: Annotated[int, count("--prefixes", "Shared prompt beginnings among requests.", TRAFFIC)] = 0
    prefix_tokens: Annotated[int, count("--prefix-tokens", "Tokens of each.", TRAFFIC)] = 512
    seed: Annotated[int, count("--seed", "Reproduces the run.", TRAFFIC)] = 0

    def sizes(self) -> "tuple[Lengths, Lengths]":
        """Return the lengths of prompts and outputs."""
        from steptime.simulation.traffic import Lengths

        return (
            Lengths(mean=self.input_, shape=self.lengths, spread=self.spread),
            Lengths(mean=self.output, shape=self.lengths, spread=self.spread),
        )

    def check(self) -> None:
        """Raise RangeError unless one kind of traffic is asked for."""
        given = [f"--{name}" for name in ("trace", "rate", "concurrency") if getattr(self, name) is not None]
        if self.find_rate and self.rate is not None:
            raise RangeError(
                "--find-rate searches the rate itself: leave --rate out, or --find-rate to serve requests at that rate"
            )
        if len(given) > 1 or not (given or self.find_rate):
            raise RangeError(
                "give one of --trace FILE, --rate R, --concurrency C or --find-rate; --find-rate goes with --trace or "
                "--concurrency too" + (f", not {' and '.join(given)} together" if given else "")
            )
        if self.find_rate and self.concurrency is not None and self.concurrency < 1:
            raise RangeError(f"concurrency must be at least 1, not {self.concurrency}")

    def traffic(self, rate: float | None, requests: int | None, clients: int | None = None, *, more: int = 0) -> "Traffic":
        """Return the requests: a trace, or those drawn at a rate [requests/s] or for some clients.

        more: tokens of each prompt that are images or recordings, behind its text.
        """
        from steptime.simulation.trace_files import read_trace
        from steptime.simulation.traffic import drawn, longer, scaled, with_sessions

        if self.trace is not None:
            made = scaled(read_trace(self.trace, most=requests), self.rate_scale)
        else:
            made = drawn(
                *self.sizes(), rate=rate, clients=clients, requests=requests, fast_share=self.fast_share,
                kind=self.arrivals, burst=self.burst, seed=self.seed,
            )  # fmt: skip
        if self.prefixes and len(made.starts):
            raise RangeError(f"--prefixes does not go with {self.trace}: its prompts have blocks of their own (hash_ids)")
        if self.prefixes:
            made = with_sessions(made, prefixes=self.prefixes, prefix_tokens=self.prefix_tokens, seed=self.seed)
        return longer(made, more) if more else made


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a replica schedules what has come."""

    policy: Annotated[str | None, option("continuous, prefill-first, static or train; by default the engine's.", POLICY)] = None
    max_sequences: Annotated[int, count("--max-sequences", "Seats of a replica.", POLICY)] = 256
    token_budget: Annotated[int | None, count("--token-budget", "Tokens of a step; by default the engine's.", POLICY)] = None
    kv_tokens: Annotated[
        int | None, count("--kv-tokens", "KV room of a replica, in tokens; by default what the chips hold.", POLICY)
    ] = None
    when_full: Annotated[str, option("recompute (preempt) or queue.", POLICY)] = "recompute"
    interval: Annotated[float | None, option("Seconds between trains; by default the HBM drain time.", POLICY)] = None
    patience: Annotated[float, option("Seconds a static batch waits to fill.", POLICY)] = 0.0
    drafted: Annotated[int, count("--drafted", "Tokens drafted for each step.", POLICY)] = 0
    acceptance: Annotated[
        float, option("Tokens that a step yields by drafts, from 1 to drafted + 1: a count, not a share.", POLICY)
    ] = 1.0
    route: Annotated[str, option("round-robin, least-loaded or prefix-aware.", POLICY)] = "round-robin"
    prefix_cache: Annotated[str, option("Cache of a replica, such as hbm=20GB,host=1TB,ssd=4TB.", POLICY, metavar="TIERS")] = ""

    def read(self, engine: "Engine", system: "System", prompt: float) -> "Policy":
        """Return the schedule; `prompt`: the longest that comes [tokens]."""
        from steptime.simulation.scheduling_policy import policy_for

        not_empty("--policy", self.policy, "continuous, prefill-first, static or train")
        return policy_for(
            engine, system, prompt=prompt, kind=self.policy, max_sequences=self.max_sequences,
            token_budget=self.token_budget, kv_tokens=self.kv_tokens, when_full=self.when_full, interval=self.interval,
            patience=self.patience, drafted=self.drafted, acceptance=self.acceptance, route=self.route,
        )  # fmt: skip

    def cache(self, system: "System", layout: "Layout") -> "Cache | None":
        """Return the prefix cache of a replica, of tiers such as hbm=20GB,host=1TB."""
        if not self.prefix_cache:
            return None
        from steptime.simulation.prefix_cache import cache_of
        from steptime.units import parse

        sizes: dict[str, float] = {}
        for part in self.prefix_cache.split(","):
            name, equals, size = part.strip().partition("=")
            if not equals:
                raise RangeError(f"{part!r} is not TIER=CAPACITY, such as host=1TB")
            if name in sizes:
                raise RangeError(f"{name} is given twice")
            sizes[name] = parse(size, "B")
        return cache_of(system, layout, sizes)


@dataclass(frozen=True, kw_only=True)
class Pools(Ways):
    """How many replicas there are, and of which kinds."""

    replicas: Annotated[int, count("--replicas", "Replicas.", LAYOUT)] = 1
    fast_replicas: Annotated[int, count("--fast-replicas", "More replicas, for the fast tier alone; 0 to share.", LAYOUT)] = 0
    fast_sequences: Annotated[int | None, count("--fast-sequences", "Their seats; by default --max-sequences.", LAYOUT)] = None
    prefill_replicas: Annotated[
        int, count("--prefill-replicas", "Replicas that only read prompts; 0 for one pool.", LAYOUT)
    ] = 0
    prefill_tp: Annotated[int | None, count("--prefill-tp", "Their tensor parallel ways; by default --tp.", LAYOUT)] = None

    def prefill(self, tp: int) -> "Layout | None":
        """Return the layout of the replicas that only read prompts, where there are any."""
        from steptime.physics.layout import Layout

        ways = tp if self.prefill_tp is None else self.prefill_tp
        return Layout(tp=ways, replicas=self.prefill_replicas) if self.prefill_replicas else None

    def fast(self, schedule: "Policy") -> dict[str, Any]:
        """Return the pool of the fast tier alone, where there is one."""
        if not self.fast_replicas:
            return {}
        seats = schedule.max_sequences if self.fast_sequences is None else self.fast_sequences
        return {"fast": replace(schedule, max_sequences=seats), "fast_replicas": self.fast_replicas}


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The limits, and what is printed and written."""

    speed: Annotated[float | None, option("Least output speed for each user, in tok/s.", LIMITS)] = None
    ttft: Annotated[float | None, option("Longest time to first token, in s.", LIMITS)] = None
    quantile: Annotated[str, option("At which the limits hold: mean, p50, p90, p95 or p99.", LIMITS)] = "p99"
    range_: Annotated[
        bool, option("Run it again with every step at the ends of the engine's 90 % range.", OUTPUT, "--range")
    ] = False
    export: Annotated[str | None, option("Write every request to a .csv or .parquet file.", OUTPUT, metavar="FILE")] = None
    chrome: Annotated[str | None, option("Write the timeline as a Chrome trace.", OUTPUT, metavar="FILE")] = None
    brief: BRIEF = False
    csv: CSV = None
    json: JSON = False


@grouped
def simulate(
    ctx: typer.Context, subject: Rented, asking: Asking, held: Held, schedule: Schedule, pools: Pools, answering: Answering
) -> None:
    """Serve requests one by one: queues, percentiles, and the rate that a deployment can take."""
    asking.check()
    refuse_idle(ctx, _needs(asking, schedule, pools, answering))
    _check_files(subject, asking, answering)
    known_quantile(answering.quantile)
    need_numba()
    from steptime.physics.uncertainty import has_range

    model, system, engine = subject.read()
    if answering.range_ and not has_range(engine):
        raise RangeError("--range needs an engine with a range: the ideal one is a bound")
    sizes = asking.sizes()
    drawn_for_search = asking.find_rate and asking.trace is None
    more = held.tokens(model)
    played = None if drawn_for_search else asking.traffic(asking.rate, asking.requests, asking.concurrency, more=more)
    prompt = float(sizes[0].mean + more if played is None or asking.trace is None else max(played.inputs))
    model = held.read(model, sizes[0].mean if played is None else max(1.0, float(played.inputs.mean()) - more))
    policy, context = schedule.read(engine, system, prompt), prompt + (sizes[1].mean if played is None else max(played.outputs))
    layout = pools.layout_for(model, system, engine, batch=1, context=context, replicas=pools.replicas)
    prefill = pools.prefill(int(layout.tp))
    given: dict[str, Any] = {
        "layout": layout, "engine": engine, "policy": policy, "slo": read_limits(answering.speed, answering.ttft),
        "prefill": prefill, "cache": schedule.cache(system, prefill or layout), "quantile": answering.quantile,
        **pools.fast(policy),
    }  # fmt: skip
    if played is None or asking.find_rate:
        _find_rate(model, system, asking, played, given, answering, more)
    else:
        _run(model, system, played, given, answering)


def _needs(asking: Asking, schedule: Schedule, pools: Pools, answering: Answering) -> dict[str, tuple[bool, str]]:
    """Return what options need: whether that holds, and which options need it."""
    drawn, once = asking.trace is None, not asking.find_rate
    random = drawn and asking.concurrency is None
    cached, lengths, prefixes = bool(schedule.prefix_cache), asking.lengths, asking.prefixes != 0
    limited = answering.speed is not None or answering.ttft is not None
    return {
        "--trace without --find-rate, which searches the scale itself": (once or drawn, "rate_scale"),
        "--rate, --concurrency or --find-rate; a trace has its own": (drawn, "input_ output lengths spread"),
        "arrivals that are drawn, or --prefixes": (drawn or prefixes, "seed"),
        "--speed or --ttft, the limits that hold at it, or --find-rate": (limited or not once, "quantile"),
        "--find-rate; --export writes the requests of a run": (not once, "csv"),
        "--rate, --find-rate or --trace; clients stay with their replica": (asking.concurrency is None, "route"),
        "--prefix-cache": (cached, "prefixes"),
        "--rate or --find-rate": (random, "arrivals burst fast_share"),
        "--trace": (not drawn, "rate_scale"),
        "a run at one rate, not --find-rate": (once, "export chrome range_"),
        "--arrivals gamma": (asking.arrivals == "gamma", "burst"),
        "--lengths uniform or lognormal": (lengths != "fixed", "spread"),
        "--spread greater than 0, unless fixed": (lengths not in ("uniform", "lognormal") or asking.spread > 0, "lengths"),
        "--policy train": (schedule.policy == "train", "interval"),
        "--policy static": (schedule.policy == "static", "patience"),
        "--prefixes": (prefixes, "prefix_tokens"),
        "--prefixes or a trace with hash_ids": (prefixes or not drawn, "prefix_cache"),
        "--prefix-cache, unless round-robin or least-loaded": (cached or schedule.route != "prefix-aware", "route"),
        "--prefill-replicas": (pools.prefill_replicas > 0, "prefill_tp"),
        "--fast-replicas": (pools.fast_replicas > 0, "fast_sequences"),
        "--fast-share, the share of requests that they serve": (asking.fast_share > 0, "fast_replicas"),
        "text, not --json": (not answering.json, "brief"),
    }


def _check_files(subject: Rented, asking: Asking, answering: Answering) -> None:
    """Raise InputError, before a run, for a file that could not be written after it."""
    outputs = {"--export": answering.export, "--chrome": answering.chrome, "--csv": answering.csv}
    check_outputs(outputs, [*subject.files(), asking.trace or ""])
    if answering.export is not None and not answering.export.casefold().endswith((".csv", ".parquet")):
        raise InputError(f"{answering.export}: requests are written to a .csv or a .parquet file")
    if answering.export is not None and answering.export.casefold().endswith(".parquet") and find_spec("pyarrow") is None:
        raise InputError("parquet files need pyarrow: pip install pyarrow, or write a .csv file")


def _find_rate(
    model: "Model",
    system: "System",
    asking: Asking,
    trace: "Traffic | None",
    given: dict[str, Any],
    answering: Answering,
    more: int,
) -> None:
    """Search the highest rate within the limits, and print it; leave with 1 where none is."""
    from steptime.simulation.max_rate import find_clients, find_rate, find_scale

    with compiling():
        if trace is not None:
            found = find_scale(model, system, trace, **given)
        elif asking.concurrency is not None:
            loop = partial(_clients, asking, more)
            found = find_clients(model, system, loop, start=asking.concurrency, requests=asking.requests or 0, **given)
        else:
            found = find_rate(model, system, partial(asking.traffic, more=more), requests=asking.requests, **given)
    if answering.csv is not None:
        write_csv(answering.csv, found)
    if answering.json:
        print_json(found.to_dict(**_about(model, system, given), policy=given["policy"]))
    else:
        _print_rate(model, system, found, trace, given, answering)
    if not found.rate > 0:
        raise typer.Exit(1)


def _clients(asking: Asking, more: int, clients: int, requests: int) -> "Traffic":
    """Return the requests of some clients of a closed loop."""
    return asking.traffic(None, requests, clients, more=more)


def _print_rate(
    model: "Model",
    system: "System",
    found: "HighestRate",
    trace: "Traffic | None",
    given: dict[str, Any],
    answering: Answering,
) -> None:
    """Print the highest rate, and what was tried."""
    from steptime.cli.views.simulation_view import rate_answer, rate_view, uncached
    from steptime.cli.views.step_view import own_runs
    from steptime.cli.views.widgets import notes
    from steptime.physics.layout import show_layout
    from steptime.planning.workload import Slo
    from steptime.units import counted

    console = console_of()
    what = f"{model.name} on {system.chip.name} ({show_layout(given['layout'])}), engine {given['engine'].name}"
    what += "" if given["prefill"] is None else f", {counted(int(given['prefill'].replicas), 'prefill replica')}"
    played = "" if trace is None else f", {trace.name} of {len(trace):,} requests"
    console.print(f"{what}, {given['policy'].kind} batching{played}")
    if trace is not None and given["cache"] is None:
        show(*notes(uncached(trace)), console=console)
    if given["engine"].anchor is not None:
        show(*own_runs(given["engine"].anchor), console=console)
    limited = given["slo"] != Slo()
    show(rate_answer(found, limited) if answering.brief else rate_view(found, console.width, limited), console=console)


def _run(model: "Model", system: "System", traffic: "Traffic", given: dict[str, Any], answering: Answering) -> None:
    """Serve a traffic, at both ends of the engine's range too if asked, write files and print what came of it."""
    from steptime.physics.extrapolation import distances, widening
    from steptime.physics.uncertainty import widest
    from steptime.simulation.simulator import simulate as run

    again = partial(run, model, system, traffic, **given)
    with compiling():
        found = with_progress(len(traffic), answering.json, lambda progress: again(progress=progress))
    ways = distances(given["engine"], system, given["layout"], given["prefill"]) if answering.range_ else ()
    ends = widest(given["engine"], system, widening(ways)) if answering.range_ else ()
    slower = {slowness: again(slowness=slowness) for slowness in ends}
    _write(found, answering)
    if answering.json:
        ranges = [{"slowness": slowness, "answers": end.answers} for slowness, end in slower.items()]
        print_json(found.to_dict(range=ranges))
        return
    from steptime.cli.views.simulation_view import range_view, simulation_brief, simulation_title, simulation_view

    console = console_of()
    title = simulation_title(model.name, system.chip.name, found, given["layout"], given["engine"].name)
    show(simulation_brief(title, found) if answering.brief else simulation_view(title, found, console.width), console=console)
    if slower:
        show(range_view(found, slower, [one.words for one, there in ways if there]), console=console)


def _write(found: "Simulation", answering: Answering) -> None:
    """Write the requests and the timeline where files are named, and say so."""
    import os

    from steptime.simulation import run_export

    if answering.export is not None:
        existed = os.path.exists(answering.export)
        run_export.write_requests(answering.export, found.requests)
        wrote(answering.export, f"{len(found.requests):,} requests; times in s, lengths in tokens", replaced=existed)
    if answering.chrome is not None:
        existed = os.path.exists(answering.chrome)
        left = run_export.write_chrome_trace(answering.chrome, found)
        rest = f"; the last {left:,} requests are left out" if left else ""
        wrote(answering.chrome, f"a timeline for chrome://tracing or ui.perfetto.dev{rest}", replaced=existed)


def _about(model: "Model", system: "System", given: dict[str, Any]) -> dict[str, Any]:
    """What was run on what, in JSON."""
    engine = given["engine"]
    names = {"model": model.name, "system": system.name, "engine": engine.name}
    return names | {"layout": given["layout"], "anchor": engine.anchor}
