"""The command `steptime watch`: a running vLLM or SGLang server, measured against predicted."""

import json
import math
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import CATALOG, OUTPUT, RENT, grouped, not_empty, option
from steptime.cli.output import check_outputs, make_console, print_json, reported, say
from steptime.cli.validate import RunSettings
from steptime.errors import InputError, RangeError, escape_controls

if TYPE_CHECKING:
    from rich.console import Group

    from steptime.validation.live_drift import Watched

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
        option("Name of the model, where the server has several.", WATCHING, "--served", metavar="NAME", show_default=False),
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
    missing = [f"--{name}" for name in ("model", "system", "weights") if not settings.get(name)]
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
        f"Drifted: {watched.drifted}, {watched.factor:.2f} times its predicted time; it explains {watched.explained:.0%} of "
        "the squared deviations of TPOT."
    )
