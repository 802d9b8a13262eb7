"""The commands `steptime validate`, `calibrate`, `anchors` and `watch`: predictions against runs, own runs and live servers."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.atomic_files import write_text_atomically
from steptime.cli.options import (
    CATALOG,
    FULL,
    OUTPUT,
    RENT,
    Output,
    anchor_path,
    count,
    grouped,
    not_empty,
    option,
    read_anchor,
)
from steptime.cli.output import (
    check_outputs,
    make_console,
    patience,
    print_json,
    print_result,
    reported,
    say,
    write_csv,
    writing,
)
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, escape_controls
from steptime.units import counted, percent

if TYPE_CHECKING:
    from rich.console import Group

    from steptime.physics.bias_correction import Anchors
    from steptime.validation.live_drift import Watched

FILES = (
    "CSV of runs (`steptime validate --columns` lists its columns), or results of a benchmark, or folders of them: `vllm bench "
    "serve`, SGLang's bench_serving, llm-d, AIPerf, GuideLLM, inference-perf or InferenceX."
)
SKIP = Annotated[bool, typer.Option("--skip-bad", help="Leave out runs that cannot be read, and say which.")]
PANEL = "Settings of the runs or the server"
ACTIONS = ("add", "remove")


def _setting(words: str, name: str, metavar: str, default: str | bool = False) -> Any:
    return option(words, PANEL, name, metavar=metavar, show_default=default)


def _count(words: str, name: str, default: str | bool = False) -> Any:
    return count(name, words, PANEL, show_default=default)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of the runs that the files lack."""

    model: Annotated[
        str, _setting("Catalogue name or config; it replaces the model_id of a result file.", "--model", "NAME")
    ] = ""
    system: Annotated[str, _setting("Measured system.", "--system", "NAME")] = ""
    tp: Annotated[int | None, _count("Tensor-parallel size.", "--tp")] = None
    pp: Annotated[int | None, _count("Pipeline stages.", "--pp", "1")] = None
    dp: Annotated[int | None, _count("Data-parallel ranks (DP attention); GPUs = tp x pp x dp.", "--dp", "1")] = None
    ep: Annotated[int | None, _count("Expert-parallel size.", "--ep", "1")] = None
    weights: Annotated[
        str, _setting("Number format of all weights except routed experts: bf16, fp8, nvfp4, ...", "--weights", "FORMAT")
    ] = ""
    experts: Annotated[str, _setting("Number format of the routed experts.", "--experts", "FORMAT", "as --weights")] = ""
    kv: Annotated[
        str, _setting("Number format of the KV cache.", "--kv", "FORMAT", "8 bits if the weights have 8 or fewer")
    ] = ""

    def arguments(self) -> dict[str, Any]:
        """Return the settings that were typed.

        Returns:
            Values by the argument of `validate` and `calibrate`.
        """
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def _is_training_file(files: Sequence[str], settings: Mapping[str, Any]) -> bool:
    """Return whether the only file is one of training runs; raise RangeError for other files or settings with it."""
    if not any(name.casefold().endswith(".csv") for name in files):
        return False
    from steptime.validation.training_run_table import is_training, read_header

    training_tables = [name for name in files if name.casefold().endswith(".csv") and is_training(read_header(name))]
    if training_tables and len(files) > 1:
        raise RangeError(f"{training_tables[0]} has training runs; give no other file with it")
    if training_tables and settings:
        raise RangeError(f"--{next(iter(settings))} applies to JSON results only; {training_tables[0]} has columns of its own")
    return bool(training_tables)


@grouped
def validate(
    ctx: typer.Context,
    run_settings: RunSettings,
    output: Output,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE...", help=FILES, show_default=False)] = None,
    predictions: Annotated[
        str | None,
        typer.Option(
            metavar="OUT.csv",
            help="Write predicted times and throughput with 90 % intervals of every row, or the reason why it is missing.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        option(
            "Engine for all rows (ideal: the bound).", None, "--engine", metavar="NAME", show_default="the engine of each row"
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            metavar="RESULTS",
            help="Benchmark results that correct the predictions, as for `steptime step`, or a CSV of training runs, as for "
            "`steptime train`. Serving runs that are also in FILE correct themselves; each training run is left out of its own "
            "correction.",
        ),
    ] = None,
    skip_bad: SKIP = False,
    columns: Annotated[bool, typer.Option("--columns", help="List the columns of the file and exit.")] = False,
    catalog: CATALOG = None,
) -> None:
    """Compare predictions with measured serving or training runs: error, bias, coverage of the ranges.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.cli.views.validation_view import columns_view
    from steptime.validation.error_summary import write_predictions
    from steptime.validation.validate_api import validate as compare_runs

    if columns:
        if files or predictions or engine or anchor or output.csv or output.json:
            raise RangeError("--columns stands alone: it lists the columns and reads no file")
        make_console().print(columns_view())
        return
    if not files:
        raise RangeError("validate needs FILE: a CSV of runs (--columns lists its columns), or results of a load generator")
    not_empty("--engine", engine, "the name of an engine")
    inputs = [*files, engine or "", anchor_path(anchor or ""), run_settings.model, run_settings.system]
    output.check(ctx, inputs=inputs, predictions=predictions)
    if _is_training_file(files, run_settings.arguments()):
        not_empty("--anchor", anchor, "a CSV of training runs")
        _validate_training(files[0], predictions, engine, anchor, catalog, output)
        return
    with patience(f"reading and predicting the runs of {', '.join(files[:3])}{' ...' if len(files) > 3 else ''}"):
        settings = run_settings.arguments()
        own_runs = None if anchor is None else _read_own_runs(anchor, settings, engine, catalog)
        validation = compare_runs(files, engine=engine, anchor=own_runs, skip_bad=skip_bad, catalog=catalog, **settings)
    if predictions:
        with reported(predictions, f"times of {counted(validation.runs, 'run')} in s and tok/s, with 90 % ranges"):
            write_predictions(predictions, validation.rows, validation.predictions)
    output.print(validation, "validation_view.validation_view")
    # Without a usable run nothing was compared; predictions alone may be wanted.
    if not validation.tables and not predictions:
        raise typer.Exit(1)


def _read_own_runs(text: str, settings: dict[str, Any], engine: str | None, catalog: str | None) -> "Anchors":
    """Return the runs of --anchor, predicted by the engine of --engine."""
    from steptime.physics.engine import load_engine

    defaults = {name: str(settings.get(name) or "") for name in ("system", "weights")}
    return read_anchor(text, defaults, None if engine is None else load_engine(engine, catalog), catalog)


def _validate_training(
    path: str, predictions: str | None, engine: str | None, anchor: str | None, catalog: str | None, output: Output
) -> None:
    """Predict every row of a file of training runs, and print the errors."""
    from steptime.validation.own_training_runs import validate_with_own_runs
    from steptime.validation.training_validation import validate_training, write_training_predictions

    with patience(f"reading and predicting the training runs of {path}"):
        if anchor is None:
            validation = validate_training(path, engine=engine, catalog=catalog)
        else:
            validation = validate_with_own_runs(path, anchor, engine=engine, catalog=catalog)
    if predictions:
        subject = f"steps of {counted(validation.runs, 'training run')} in s, with 90 % ranges, and their memory"
        with reported(predictions, subject):
            write_training_predictions(predictions, validation.predictions)
    if output.csv is not None:
        write_csv(output.csv, validation)
    if output.json:
        print_json(validation)
    else:
        from steptime.cli.views.training_view import training_errors_view

        make_console().print(training_errors_view(validation))


@grouped
def calibrate(
    run_settings: RunSettings,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=FILES, show_default=False)],
    name: Annotated[str, typer.Option(help="Name of the new engine.", show_default=False)],
    prior: Annotated[
        str | None,
        typer.Option(help="Engine to start from; few runs change it little. By default that of the runs, or typical."),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Engine file to write; by default NAME.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an engine file that is there already.")] = False,
    skip_bad: SKIP = False,
    catalog: CATALOG = None,
    full: FULL = False,
) -> None:
    """Fit an engine's physical constants to your own measured runs, with a shipped engine as prior.

    Args:
        run_settings: the first option; help texts describe this and the others.
    """
    from steptime.validation.error_summary import report
    from steptime.validation.predictions import predict
    from steptime.validation.training_validation import calibrate_training
    from steptime.validation.validate_api import calibrate as fit

    path = _place(name, out, force)
    not_empty("--prior", prior, "the name of an engine")
    check_outputs({"--out": path}, [*files, prior or "", run_settings.model, run_settings.system])
    if _is_training_file(files, run_settings.arguments()):
        with patience(f"reading the runs and fitting {name}"):
            stack, text, runs = calibrate_training(files[0], name=name, prior=prior, catalog=catalog)
        with writing(path):
            write_text_atomically(path, text)
        speed = f"{float(stack.speed):.3g}"
        typer.echo(f"{name}: fitted to {counted(runs, 'training run')}; speed {speed} of the prior's constants")
        typer.echo(f"Written to {path}: use it with `steptime train --engine {path}`")
        return
    if prior is not None:
        _check_prior(prior, catalog)
    with patience(f"reading the runs and fitting {name}; many runs take minutes"):
        calibration = fit(files, name=name, prior=prior, skip_bad=skip_bad, catalog=catalog, **run_settings.arguments())
        rows, engines = list(calibration.rows), (calibration.prior, calibration.engine)
        tables = {candidate.name: report(rows, predict(rows, engine=candidate, catalog=catalog)) for candidate in engines}
    with writing(path):
        write_text_atomically(path, calibration.toml)
    print_result(calibration, "validation_view.calibration_view", full=full, tables=tables, path=path)


def _place(engine: str, out: str | None, force: bool) -> str:
    """Return where the engine file goes; a shipped engine's name, another folder and a file that is there are refused."""
    from steptime.catalog.data_files import files

    if not engine.strip() or engine in (".", "..") or engine != os.path.basename(engine) or not engine.isprintable():
        raise InputError(f"--name takes a plain name, not {engine!r}; name another folder with --out FILE")
    if any(mark in engine for mark in '\\"'):
        raise InputError(f"--name takes a plain name without quotes and backslashes, not {engine!r}")
    if engine.casefold() in ("ideal", *files("engines")):
        raise InputError(f"--name {engine} is an engine of the catalogue; give yours another name, such as {engine}-mine")
    path = f"{engine}.toml" if out is None else out
    if os.path.isfile(path) and not force:
        raise DataFileError(path, "is there already; give --force to write over it, or another name with --out")
    return path


def _check_prior(name: str, catalog: str | None) -> None:
    """Raise InputError for an engine without fitted constants."""
    from steptime.physics.engine import load_engine
    from steptime.physics.uncertainty import has_range

    if not has_range(load_engine(name, catalog)):
        raise InputError(f"--prior {name} has no fitted constants to start from; `steptime engines` lists those that have")


@grouped
def anchors(
    ctx: typer.Context,
    run_settings: RunSettings,
    output: Output,
    action: Annotated[
        str | None, typer.Argument(metavar="[add|remove]", help="Without it, kept runs are listed.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="add: results of a benchmark harness, as for validate, or a CSV of runs or training runs; remove: a name.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, option("Keep the runs under this name.", None, "--name", show_default="that of the file")
    ] = None,
    engine: Annotated[
        str | None,
        _setting("Serving engine of the runs.", "--engine", "NAME", "that of the file, or typical where it has none"),
    ] = None,
    skip_bad: SKIP = False,
    catalog: CATALOG = None,
) -> None:
    """Keep your measured runs: plan, step, simulate and train correct predictions of the same model, system and engine.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.validation import own_training_runs, user_calibration

    needs = {
        "add FILE": (
            action == "add",
            " ".join(["name", "engine", "skip_bad", *(setting.name for setting in fields(run_settings))]),
        ),
        "the list of runs": (action is None, "csv"),
    }
    output.check(ctx, needs)
    if action is None:
        serving_anchors = user_calibration.kept_anchors(catalog)
        training_anchors = own_training_runs.kept_training_anchors(catalog)
        all_anchors = replace(serving_anchors, anchors=(*serving_anchors.anchors, *training_anchors))
        output.print(all_anchors, "validation_view.anchors_view")
        return
    if action not in ACTIONS:
        raise UnknownName("action", action, ACTIONS, "Known: add FILE, remove NAME; alone it lists them.")
    if not target:
        raise RangeError(f"anchors {action} needs {'a file of runs' if action == 'add' else 'the name of runs that are kept'}")
    not_empty("--name", name, "a name for the runs")
    not_empty("--engine", engine, "the name of an engine")
    if action == "remove":
        say(f"Removed {user_calibration.remove(target, catalog=catalog)}.")
        return
    settings = run_settings.arguments() | ({"engine": engine} if engine else {})
    if _is_training_file([target], settings):
        path, runs = own_training_runs.keep_training(target, name=name or "", skip_bad=skip_bad, catalog=catalog)
        say(f"Keeping {path}: train uses it for the same model, system and stack; --no-anchor leaves it out.")
        output.print(runs, "validation_view.anchors_view")
        return
    path, runs = user_calibration.keep(target, name=name or "", skip_bad=skip_bad, catalog=catalog, **settings)
    say(f"Keeping {path}: plan, step and simulate use it for the same model, system and engine; --no-anchor leaves it out.")
    output.print(runs, "validation_view.anchors_view")


WATCHING = "Watching"
# Shortest time between two scrapes [s].
SHORTEST_INTERVAL = 0.2
# Requests of a window below which its means say little.
MIN_REQUESTS = 30
LABELS = {
    "tpot": ("TPOT", "s"),
    "ttft": ("TTFT", "s"),
    "output_tokens_per_second": ("Throughput", "tok/s"),
    "usd_per_million_tokens": ("Cost per million output tokens", "USD"),
}


@grouped
def watch(
    ctx: typer.Context,
    run_settings: RunSettings,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Address of the server, such as localhost:8000.", show_default=False)
    ] = None,
    interval: Annotated[float, option("Seconds between two scrapes.", WATCHING, "--interval")] = 10.0,
    once: Annotated[bool, option("Stop after one window of two scrapes.", WATCHING, "--once")] = False,
    windows: Annotated[
        int | None, option("Stop after N windows.", WATCHING, "--windows", metavar="N", show_default=False)
    ] = None,
    served: Annotated[
        str,
        option(
            "Name of the model, where the server has several.",
            WATCHING,
            "--served-model-name",
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    replicas: Annotated[int, option("Equal servers behind the address.", WATCHING, "--replicas", metavar="N")] = 1,
    rent: RENT = None,
    exporter: Annotated[
        int | None,
        option("Port of a Prometheus exporter on 127.0.0.1.", OUTPUT, "--exporter", metavar="PORT", show_default=False),
    ] = None,
    dashboard: Annotated[
        str | None,
        option("Write a Grafana board of the exporter's metrics.", OUTPUT, "--dashboard", metavar="FILE", show_default=False),
    ] = None,
    json_: Annotated[bool, option("Print a line of JSON for each window.", OUTPUT, "--json")] = False,
    catalog: CATALOG = None,
) -> None:
    """Compare a running vLLM or SGLang server with its prediction, and name the term that drifted.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.validation.engine_metrics import metrics_url
    from steptime.validation.live_drift import Exporter, Watcher, watch_windows

    del ctx
    not_empty("--rent", rent, "owned, contract, ondemand, or USD per chip-hour such as 2.10")
    if dashboard is not None:
        check_outputs({"--dashboard": dashboard}, [])
        _write_dashboard(dashboard)
        if url is None:
            return
    if url is None:
        raise RangeError("watch needs the URL of a server, such as localhost:8000, or --dashboard FILE")
    for name, value, least in (
        ("--interval", interval, SHORTEST_INTERVAL),
        ("--windows", windows, 1),
        ("--replicas", replicas, 1),
    ):
        if value is not None and not (math.isfinite(value) and value >= least):
            raise RangeError(f"{name} must be at least {least:g}, got {value:g}")
    if exporter is not None and not 0 <= exporter <= 65_535:
        raise RangeError(f"--exporter must be a port from 0 to 65,535, got {exporter}")
    settings = run_settings.arguments()
    missing = [f"--{name}" for name in ("model", "system") if not settings.get(name)]
    if missing:
        raise RangeError(f"watch needs {' and '.join(missing)} of the server, to predict its times")
    address = metrics_url(url)
    watcher = Watcher(replicas=replicas, rent=rent, catalog=catalog, **settings)
    exported = None if exporter is None else Exporter()
    server = None if exported is None or exporter is None else exported.serve(exporter)[0]
    if server is not None:
        say(f"Metrics for Prometheus: http://127.0.0.1:{server.server_port}/metrics")
    remaining = 1 if once else windows
    try:
        for watched in watch_windows(address, watcher, interval=interval, served=served):
            if isinstance(watched, InputError):
                # Before the first window, or for one window, an error is the answer.
                if remaining is not None:
                    raise watched
                say(f"steptime: {watched}")
                if exported is not None:
                    exported.failed()
                continue
            if exported is not None:
                exported.update(watched)
            _print(watched, is_json=json_, is_single=once)
            remaining = None if remaining is None else remaining - 1
            if remaining == 0:
                break
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _write_dashboard(path: str) -> None:
    """Write the Grafana board of the package."""
    from steptime.atomic_files import write_text_atomically

    text = package_files("steptime").joinpath("data", "boards", "watch.json").read_text(encoding="utf-8")
    with reported(path, "a Grafana board; import it, and choose the Prometheus data source"):
        write_text_atomically(path, text)


def _print(watched: "Watched", *, is_json: bool, is_single: bool) -> None:
    if is_json and is_single:
        print_json(watched)
    elif is_json:
        print(escape_controls(json.dumps(watched.to_dict())), flush=True)
    else:
        make_console().print(watch_view(watched))


def watch_view(watched: "Watched") -> "Group":
    """Return the text of a window.

    Args:
        watched: The comparison.

    Returns:
        Something that a console prints.
    """
    from rich.console import Group
    from rich.text import Text

    from steptime.cli.views.widgets import notes, ranged, table, write

    window = watched.window
    chips = f"{watched.chips} chip{'s' * (watched.chips > 1)} of {watched.system}"
    lengths = ", ".join(
        f"{value:,.0f} tokens {side}" for value, side in ((window.input, "in"), (window.output, "out")) if math.isfinite(value)
    )
    head = f"{watched.model} on {chips} ({watched.engine}), last {window.seconds:.3g} s"
    finished = window.requests_per_second * window.seconds
    if watched.tpot is None:
        return Group(Text(f"{head}: no request to measure; {window.running:.0f} running, {window.waiting:.0f} waiting."))
    rows: list[Any] = []
    for quantity, (label, form) in LABELS.items():
        comparison = getattr(watched, quantity)
        mark = "drifted" if comparison.has_drifted else ""
        predicted = ranged(comparison.predicted, (comparison.low, comparison.high), form, "")
        rows.append((label, write(comparison.measured, form), predicted, f"{comparison.ratio:.2f}", mark))
    load = (
        f"{head}: {finished:,.0f} requests finished, {window.in_flight:.1f} in flight, {lengths}, {window.waiting:.0f} waiting."
    )
    weak = [f"only {finished:,.0f} requests finished in the window: means of so few say little; use a longer --interval"]
    weak = weak if finished < MIN_REQUESTS else []
    heads = ("", "Measured", "Predicted (90 %)", "Ratio", "")
    return Group(
        Text(load), table(*heads, rows=rows, numbers=(1, 2, 3)), Text(_verdict(watched)), *notes([*weak, *watched.notes])
    )


def _verdict(watched: "Watched") -> str:
    """Say what drifted."""
    if not watched.drifted:
        outside = [label for quantity, (label, _) in LABELS.items() if getattr(watched, quantity).has_drifted]
        return f"Outside the range: {', '.join(outside)}." if outside else "All is within the 90 % range."
    if not math.isfinite(watched.factor):
        return f"Drifted: {watched.drifted}."
    return (
        f"Drifted: {watched.drifted}, {watched.factor:.2f} times its predicted time; it explains "
        f"{percent(watched.explained)} of the squared deviations of TPOT."
    )
