"""The command `steptime simulate`, and what all commands that simulate share: the check for numba and its compilation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import OUTPUT, Output, SubjectChanges, grouped, not_empty, option
from steptime.cli.output import compiled_part, make_console, patience, print_json, reported, say, say_release, write_csv, wrote
from steptime.errors import InputError, RangeError, numba_missing
from steptime.questions.simulate_question import SIMULATE, TRAFFIC, Setup, SimulateInputs, setup

if TYPE_CHECKING:
    from steptime.simulation.max_rate import HighestRate
    from steptime.simulation.simulation_result import Simulation
    from steptime.workload.traffic import Traffic


def need_numba() -> None:
    """Raise InputError, with the package to install, if numba is missing."""
    if find_spec("numba") is None:
        raise InputError(numba_missing())


@contextmanager
def compiling() -> Iterator[None]:
    """Print a message if compiling the simulator takes long.

    Yields:
        Nothing.
    """
    # numba caches the compiled code on disk, so that the next run starts at once.
    with patience(compiled_part, then="compiled after {}; now simulating"):
        yield


def compile_first() -> None:
    """Compile the simulator, or load it from the cache, before many runs."""
    need_numba()
    from steptime.simulation.simulator import simulate
    from steptime.workload.traffic import Lengths, open_loop

    # One short request compiles all functions.
    with compiling():
        simulate("llama-3.1-8b", "hgx-h100", open_loop(1.0, 1, Lengths(mean=8), Lengths(mean=2)))


@dataclass(frozen=True, kw_only=True)
class SimulateOutput(Output):
    """Options of the search for the highest rate, of text and files."""

    find_rate: Annotated[
        bool,
        option(
            "Search the highest rate within the limits. With --trace: the highest scale of its arrival rate. With "
            "--concurrency: the largest number of clients.",
            TRAFFIC,
            "--find-rate",
        ),
    ] = False
    find_replicas: Annotated[
        bool,
        option("Search the fewest replicas that meet the limits at the rate in a steady state.", TRAFFIC, "--find-replicas"),
    ] = False
    range_: Annotated[
        bool, option("Repeat the run with step times at both ends of the engine's 90 % range.", OUTPUT, "--range")
    ] = False
    export: Annotated[str | None, option("Write every request to a .csv or .parquet file.", OUTPUT, metavar="FILE")] = None
    chrome: Annotated[
        str | None, option("Write the timeline as a Chrome trace, for Perfetto or chrome://tracing.", OUTPUT, metavar="FILE")
    ] = None
    report: Annotated[
        str | None, option("Write an llm-d Benchmark Report v0.2 to a .json or .yaml file.", OUTPUT, metavar="FILE")
    ] = None


@grouped
def simulate(ctx: typer.Context, inputs: SimulateInputs, changes: SubjectChanges, output: SimulateOutput) -> None:
    """Simulate requests one by one: queues, percentiles, and the highest rate of a deployment.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.validation.llmd_report import check_report_path

    # Wrong options and files are reported before the run.
    _check_traffic(inputs, output)
    files = [*changes.files(vars(inputs)), inputs.trace or ""]
    output.check(ctx, _needs(inputs, output), files, export=output.export, chrome=output.chrome, report=output.report)
    if output.export is not None and not output.export.casefold().endswith((".csv", ".parquet")):
        raise InputError(f"{output.export}: --export needs a file name that ends in .csv or .parquet")
    if output.export is not None and output.export.casefold().endswith(".parquet") and find_spec("pyarrow") is None:
        raise InputError("parquet files need pyarrow: pip install pyarrow, or write a .csv file")
    if output.report is not None:
        check_report_path(output.report)
    not_empty("--policy", inputs.policy, "continuous, prefill-first, static or train")
    need_numba()
    from steptime.physics.uncertainty import has_range

    prepared = setup(changes.values(ctx, SimulateInputs), searches_rate=output.find_rate)
    say_release(prepared.model)
    if output.range_ and not has_range(prepared.arguments["engine"]):
        raise RangeError("--range needs an engine with a 90 % range; the ideal engine is a bound and has none")
    if output.find_replicas:
        prepared = _with_fewest_replicas(prepared, quiet=output.json)
    if output.find_rate:
        _find_rate(prepared, output)
    else:
        _run(prepared, output)


def _check_traffic(inputs: SimulateInputs, output: SimulateOutput) -> None:
    """Raise RangeError unless the options give one kind of traffic."""
    kinds = [f"--{name}" for name in ("trace", "rate", "concurrency") if getattr(inputs, name) is not None]
    if output.find_rate and inputs.rate is not None:
        raise RangeError("--find-rate searches the rate and --rate sets it; keep one of the two")
    if len(kinds) > 1 or not (kinds or output.find_rate):
        raise RangeError(
            (f"{' and '.join(kinds)} exclude each other: " if len(kinds) > 1 else "")
            + "simulate needs one of --trace FILE, --rate R, --concurrency C and --find-rate; --find-rate also works with "
            "--trace or --concurrency"
        )


def _needs(inputs: SimulateInputs, output: SimulateOutput) -> dict[str, tuple[bool, str]]:
    """Return the requirements of options: whether each is met, and which parameters need it."""
    is_synthetic, once = inputs.trace is None, not output.find_rate
    random = is_synthetic and inputs.concurrency is None
    cached, lengths, prefixes = bool(inputs.prefix_cache), inputs.lengths, inputs.prefixes != 0
    limited = any(limit is not None for limit in (inputs.speed, inputs.tpot, inputs.ttft))
    varied = inputs.spread > 0 or (inputs.output_spread or 0) > 0
    # Keys complete the message "--option needs ...".
    return {
        "--trace without --find-rate, which searches the scale": (once or is_synthetic, "rate_scale"),
        "--trace already gives lengths; leave out {}": (
            is_synthetic,
            "input output lengths spread output_spread",
        ),
        "random arrivals, or --prefixes": (is_synthetic or prefixes, "seed"),
        "--speed or --ttft (a limit for that percentile), or --find-rate": (limited or not once, "percentile"),
        "--find-rate; --export writes the requests of one run": (not once, "csv"),
        "--rate, --find-rate or --trace; a client keeps its replica": (inputs.concurrency is None, "route"),
        "--prefix-cache": (cached, "prefixes"),
        "--rate or --find-rate": (random, "arrivals burst fast_share"),
        "--trace": (not is_synthetic, "rate_scale"),
        "a run at one rate, not --find-rate": (once, "export chrome report range_"),
        "--arrivals gamma": (inputs.arrivals == "gamma", "burst"),
        "--lengths uniform or lognormal": (lengths != "fixed", "spread output_spread"),
        "--spread greater than 0, unless fixed": (lengths not in ("uniform", "lognormal") or varied, "lengths"),
        "--policy train": (inputs.policy == "train", "interval"),
        "--policy static": (inputs.policy == "static", "patience"),
        "--prefixes": (prefixes, "prefix_tokens"),
        "--prefixes or a trace with hash_ids, or --sessions": (
            prefixes or not is_synthetic or inputs.sessions is not None,
            "prefix_cache",
        ),
        "--sessions": (inputs.sessions is not None, "think_time system_prompt"),
        "--rate or --find-rate, without --concurrency and --trace": (random, "sessions"),
        "requests without --sessions, which have their own prompts": (
            inputs.sessions is None,
            "prefixes fast_share image audio",
        ),
        "--prefix-cache, unless round-robin or least-loaded": (cached or inputs.route != "prefix-aware", "route"),
        "--rate or --trace, and --speed, --tpot or --ttft": (limited and inputs.concurrency is None and once, "find_replicas"),
        "--find-replicas left out; it searches them": (not output.find_replicas, "replicas"),
        "one pool, without --prefill-replicas and --fast-replicas": (
            inputs.prefill_replicas == 0 and inputs.fast_replicas == 0,
            "find_replicas",
        ),
        "--prefill-replicas": (inputs.prefill_replicas > 0, "prefill_tp"),
        "--rate or --find-rate; a trace has its own times": (random, "day"),
        "--day": (inputs.day is not None, "peak_hour"),
        "--rate or --trace without a search; --autoscale gives the number of replicas": (
            once and not output.find_replicas and inputs.concurrency is None,
            "autoscale",
        ),
        "--autoscale left out; it gives the fewest and the most replicas": (inputs.autoscale is None, "replicas"),
        "--autoscale": (
            inputs.autoscale is not None,
            "scale_on scale_target scale_interval scale_down_wait cold_start image_pull load_bandwidth engine_start",
        ),
        "--cold-start left out, which has all of them": (inputs.cold_start is None, "image_pull load_bandwidth engine_start"),
        "--fast-replicas": (inputs.fast_replicas > 0, "fast_max_num_seqs"),
        "--fast-share, their share of the requests": (inputs.fast_share > 0, "fast_replicas"),
    }


def _find_rate(prepared: Setup, output: SimulateOutput) -> None:
    """Search the highest rate within the limits and print it; exit with 1 if no rate meets them."""
    from steptime.simulation.max_rate import find_clients, find_rate, find_scale

    inputs, model, system, arguments = prepared.inputs, prepared.model, prepared.system, prepared.arguments

    def traffic(rate: float | None, requests: int | None, clients: int | None = None) -> "Traffic":
        return replace(inputs, rate=rate, requests=requests, concurrency=clients).traffic(
            prepared.gained_tokens, longest=float(prepared.model.max_context)
        )

    # The load that is searched: scale of a trace, number of clients, or rate of random arrivals.
    with compiling():
        if prepared.traffic is not None:
            highest = find_scale(model, system, prepared.traffic, **arguments)
        elif inputs.concurrency is not None:
            highest = find_clients(
                model, system, lambda clients, requests: traffic(None, requests, clients),
                start=inputs.concurrency, requests=inputs.requests or 0, **arguments,
            )  # fmt: skip
        else:
            highest = find_rate(model, system, traffic, requests=inputs.requests, **arguments)
    if output.csv is not None:
        write_csv(output.csv, highest)
    if output.json:
        engine = arguments["engine"]
        about = {"model": model.name, "system": system.name, "engine": engine.name, "layout": arguments["layout"]}
        print_json(highest.to_dict(**about, anchor=engine.anchor, policy=arguments["policy"]))
    else:
        _print_rate(prepared, highest)
    if not highest.rate > 0:
        raise typer.Exit(1)


def _with_fewest_replicas(prepared: Setup, *, quiet: bool) -> Setup:
    """Return the setup with the fewest replicas that meet the limits, and print how many."""
    from steptime.simulation.max_rate import find_replicas
    from steptime.units import counted
    from steptime.workload.traffic import DEFAULT_REQUESTS

    inputs, arguments = prepared.inputs, prepared.arguments

    def traffic(requests: int) -> "Traffic":
        if inputs.trace is not None:
            assert prepared.traffic is not None
            return prepared.traffic
        return replace(inputs, requests=requests).traffic(prepared.gained_tokens, longest=float(prepared.model.max_context))

    with compiling():
        fewest = find_replicas(
            prepared.model, prepared.system, traffic, requests=max(inputs.requests or 0, DEFAULT_REQUESTS), **arguments
        )
    layout = replace(arguments["layout"], replicas=fewest.replicas)
    if not quiet:
        chips = counted(int(layout.chips) * fewest.replicas, "chip")
        fewer = f"; with one less: {fewest.fewer}." if fewest.fewer else "."
        make_console().print(f"Fewest replicas: {fewest.replicas:,} ({chips}){fewer}")
    return replace(prepared, traffic=fewest.traffic, arguments={**arguments, "layout": layout})


def _print_rate(prepared: Setup, highest: "HighestRate") -> None:
    """Print the highest rate, and the rates that the search tried."""
    import numpy as np

    from steptime.cli.views.simulation_view import lengths_in_words, rate_answer, rate_view, uncached
    from steptime.cli.views.step_view import own_runs
    from steptime.cli.views.widgets import notes
    from steptime.physics.layout import show_layout
    from steptime.units import counted
    from steptime.workload.workload import Slo

    console, arguments, trace = make_console(), prepared.arguments, prepared.traffic
    engine, prefill = arguments["engine"], arguments["prefill"]
    title = f"{prepared.model.name} on {prepared.system.chip.name} ({show_layout(arguments['layout'])}), engine {engine.name}"
    title += "" if prefill is None else f", {counted(int(prefill.replicas), 'prefill replica')}"
    mean = (prepared.inputs.input, prepared.inputs.output) if trace is None else (np.mean(trace.inputs), np.mean(trace.outputs))
    played = f", requests of {lengths_in_words(*map(float, mean))}"
    played += "" if trace is None else f", {trace.name} of {len(trace):,} requests"
    limited = arguments["slo"] != Slo()
    shared = uncached(trace) if trace is not None and arguments["cache"] is None else []
    console.print(
        rate_answer(highest, limited), f"{title}, {arguments['policy'].kind} batching{played}",
        *notes(shared), *own_runs(engine.anchor, None), rate_view(highest, console.width),
        sep="\n",
    )  # fmt: skip
    _print_drafting(prepared)


def _run(prepared: Setup, output: SimulateOutput) -> None:
    """Simulate the traffic, with --range also at both ends of the engine's range; write files and print the latencies."""
    from steptime.physics.uncertainty import distances, widening, widest
    from steptime.simulation.run_metrics import MISSED, OVERLOADED
    from steptime.simulation.simulator import simulate as run_simulation

    model, system, arguments = prepared.model, prepared.system, prepared.arguments
    traffic, engine = prepared.traffic, arguments["engine"]
    assert traffic is not None
    once = partial(run_simulation, model, system, traffic, **arguments)
    with compiling():
        run = _with_progress(len(traffic), output.json, once)

    # Step times of --range: both ends of the 90 % range, wider outside the measured runs.
    layouts = arguments["layout"], arguments["prefill"]
    flags = distances(engine, system, *layouts, model=model) if output.range_ else ()
    ends = widest(engine, system, widening(flags)) if output.range_ else ()
    slower = {slowness: once(slowness=slowness) for slowness in ends}
    _write(run, output)
    if output.json:
        ranges = [{"slowness": slowness, "answers": end.answers} for slowness, end in slower.items()]
        extra = {"speculation": prepared.speculation} if prepared.speculation.drafts else {}
        print_json(run.to_dict(range=ranges, summary=SIMULATE.read_result(run), **extra))
    else:
        from steptime.cli.views.simulation_view import range_view, simulation_title, simulation_view
        from steptime.cli.views.widgets import more_line

        console = make_console()
        title = simulation_title(model.name, system.chip.name, run, arguments["layout"], engine.name)
        rate, has_day = prepared.inputs.rate, prepared.inputs.day is not None
        console.print(simulation_view(title, run, console.width, full=output.full, rate=rate, has_day=has_day))
        _print_drafting(prepared)
        if slower:
            console.print(range_view(run, slower, [flag.words for flag, applies in flags if applies]))
        if not output.full:
            pictures = "--full (distribution, timeline)"
            console.print(more_line(pictures, "--range", "--find-rate", "--export FILE", "--json"))
    # The exit code is 1 if limits are missed, the queue grows without end or no request is served.
    missed = run.limits is not None and run.limits.verdict == MISSED
    is_overloaded = run.answers.verdict == OVERLOADED
    if missed or is_overloaded:
        causes = ["the limits are missed"] * missed + ["the queue grows until the end of the run"] * is_overloaded
        say(f"steptime: {' and '.join(causes)}: exit code 1")
        raise typer.Exit(1)


def _print_drafting(prepared: Setup) -> None:
    """Print what drafts and on what its acceptance length rests; nothing without drafts."""
    if prepared.speculation.drafts:
        from steptime.cli.views.widgets import notes
        from steptime.models.draft_models import drafter_words

        console, words = make_console(), drafter_words(prepared.model)
        console.print(f"Speculative decoding: {prepared.speculation.text}.", markup=False)
        console.print(*notes((words,) if words else ()), sep="\n")


def _with_progress(total: int, quiet: bool, work: "Callable[..., Simulation]") -> "Simulation":
    """Run a simulation of a number of requests, with a progress bar on standard error for long runs."""
    from steptime.simulation.replica_pools import PORTION

    # The simulator reports after each portion of requests; short runs need no bar.
    if quiet or total < 4 * PORTION:
        return work(progress=None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)
        return work(progress=lambda done: bar.update(task, completed=done))


def _write(run: "Simulation", output: SimulateOutput) -> None:
    """Write the files of --export, --chrome and --report."""
    import os

    from steptime.simulation.simulation_result import write_chrome_trace, write_requests

    if output.export is not None:
        with reported(output.export, f"{len(run.requests):,} requests; times in s, lengths in tokens"):
            write_requests(output.export, run.requests)
    if output.chrome is not None:
        existed = os.path.exists(output.chrome)
        omitted_requests = write_chrome_trace(output.chrome, run)
        note = f"; without the last {omitted_requests:,} requests" if omitted_requests else ""
        wrote(output.chrome, f"a timeline for chrome://tracing or ui.perfetto.dev{note}", replaced=existed)
    if output.report is not None:
        from steptime.validation.llmd_report import write_report

        with reported(output.report, "an llm-d Benchmark Report v0.2; times in s"):
            write_report(output.report, run)
