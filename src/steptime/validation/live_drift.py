r"""Measured against predicted, live: TPOT, TTFT, throughput and cost of a server, and the term that drifted.

A window of the server's metrics becomes a row of a run, as `steptime validate` reads them, at the measured load and lengths.
Its prediction has a 90 % range, and a quantity outside its range has drifted. The load of the prediction leaves out requests in
the queue: the server measures them. The term that explains the drift is:

- **queue**: TTFT without its measured queue is within the range of TTFT.
- **prefill**: TTFT has drifted, and its queue does not explain it.
- **a resource of the decode step** (weights, kv, compute, network, overhead): TPOT has drifted, and the time of this resource
  explains the deviations of the windows best. Window $i$ has the deviation $d_i$ and the predicted time $T_{ki}$ of resource
  $k$. The factor of least squares is $1 + \sum_i d_i T_{ki} / \sum_i T_{ki}^2$. It explains the share
  $(\sum_i d_i T_{ki})^2 / (\sum_i d_i^2 \sum_i T_{ki}^2)$ of the squared deviations. Old windows fade, so that a few sums are
  enough memory. If all windows have one load, resources cannot be distinguished, and the term is the decode step.

Metrics of the exporter follow Prometheus' rules of names (https://prometheus.io/docs/practices/naming/). Costs have the names
of OpenCost's AI inference costs, `llm_total_hourly_cost` and `llm_cost_per_million_tokens`, with their labels
(https://llm-d.ai/docs/dev/operations/observability/inference-cost), and `model_name` is vLLM's label.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import load_system
from steptime.errors import InputError, RangeError, install_hint
from steptime.hardware.rental_prices import deployment_rent, usd_per_million, with_rent
from steptime.models.model import stored_formats
from steptime.models.model_loading import load_model
from steptime.physics.chip_memory import memory_per_chip, words_of_excess
from steptime.physics.layout import Layout
from steptime.result_base import Result, unit
from steptime.units import percent
from steptime.validation.bench_results import SETTING_COLUMNS, convert_result, read_rows
from steptime.validation.closed_loop import solve_closed_loops
from steptime.validation.engine_metrics import Scrape, Window, fetch_text, is_restarted, read_scrape, window_between
from steptime.validation.predictions import grouped, predict, resolve_engine
from steptime.validation.run_table import AXES

# Share of its weight that a window keeps for each later one.
FADING: Final = 0.98
# Windows before a resource is named. It leaves at most half of what the next one leaves unexplained, beyond rounding.
LEAST_WINDOWS, RESIDUAL_RATIO, ROUNDING = 5, 0.5, 1e-6
# Predictions that are kept: their memory is constant, and few loads come back after more.
MOST_PREDICTIONS: Final = 256
SECONDS_PER_HOUR: Final = 3600.0
QUANTITIES: Final = ("tpot", "ttft", "output_tokens_per_second", "usd_per_million_tokens")
DECODE, PREFILL, QUEUE = "decode step", "prefill", "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A measured quantity, its prediction with a 90 % range, and measured over predicted."""

    measured: float = field(metadata=unit("", "measured value, in the unit of the quantity"))
    predicted: float = field(metadata=unit("", "predicted value"))
    low: float = field(metadata=unit("", "lower end of the 90 % range"))
    high: float = field(metadata=unit("", "upper end of the 90 % range"))
    ratio: float = field(metadata=unit("", "measured over predicted"))
    has_drifted: bool = field(metadata=unit("", "whether the measured value is outside the range"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Watched(Result):
    """A window of a server, measured against predicted."""

    SCHEMA: ClassVar[str] = "steptime.watch/1"

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "engine of the server: vllm or sglang"))
    chips: int = field(metadata=unit("", "chips of the server"))
    usd_per_hour: float = field(metadata=unit("USD", "rent of these chips for an hour", key="usd_per_hour"))
    window: Window = field(metadata=unit("", "what the server did"))
    tpot: Comparison | None = field(default=None, metadata=unit("s", "time per output token; null: nothing was generated"))
    ttft: Comparison | None = field(default=None, metadata=unit("s", "time to first token"))
    output_tokens_per_second: Comparison | None = field(default=None, metadata=unit("tok/s", "throughput"))
    usd_per_million_tokens: Comparison | None = field(
        default=None, metadata=unit("USD", "rent for a million output tokens", key="usd_per_million_tokens")
    )
    drifted: str = field(
        default="", metadata=unit("", "term that explains the drift; empty: every quantity is inside its range")
    )
    factor: float = field(default=math.nan, metadata=unit("", "how much that term is larger than predicted; null: not known"))
    explained: float = field(
        default=math.nan, metadata=unit("", "share of the squared deviations of TPOT that the term explains; null: not known")
    )
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "what the prediction leaves out"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the server, and measured over predicted by quantity.

        Returns:
            Title, and text by quantity.
        """
        compared = {name: getattr(self, name) for name in QUANTITIES}
        ratios = {
            name: f"{comparison.ratio:.2f} of predicted" for name, comparison in compared.items() if comparison is not None
        }
        return f"Watched: {self.model} on {self.chips} chips of {self.system}", {"drifted": self.drifted or "nothing", **ratios}


@dataclass(slots=True)
class DriftSums:
    """Fading sums from which the drift of the decode step is explained: constant memory for any number of windows."""

    windows: int = 0
    squared: float = 0.0
    products: dict[str, float] = field(default_factory=dict)
    squares: dict[str, float] = field(default_factory=dict)

    def add(self, deviation: float, resources: Mapping[str, float]) -> None:
        """Add a window.

        Args:
            deviation: Measured minus predicted time per output token [s].
            resources: Predicted time of each resource [s].
        """
        self.windows += 1
        self.squared = self.squared * FADING + deviation**2
        for name in {*self.products, *resources}:
            seconds = resources.get(name, 0.0)
            self.products[name] = self.products.get(name, 0.0) * FADING + deviation * seconds
            self.squares[name] = self.squares.get(name, 0.0) * FADING + seconds**2

    def explain(self) -> tuple[str, float, float]:
        """Return the resource that explains the deviations, its factor, and the share that it explains.

        Returns:
            Name, factor and share; the decode step without a factor where no resource stands out.
        """
        shares = {
            name: self.products[name] ** 2 / (square * self.squared)
            for name, square in self.squares.items()
            if square > 0 and self.squared > 0 and self.products[name] ** 2 > 0
        }
        ordered = sorted(shares, key=lambda name: -shares[name])
        residuals = [1 - min(1.0, shares[name]) for name in ordered] + [1.0, 1.0]
        if self.windows < LEAST_WINDOWS or not residuals[0] + ROUNDING < RESIDUAL_RATIO * residuals[1]:
            return DECODE, math.nan, math.nan
        best = ordered[0]
        return best, 1 + self.products[best] / self.squares[best], min(1.0, shares[best])


class Watcher:
    """Predictions for the windows of one server, and the memory of its drift."""

    def __init__(
        self, *, replicas: int = 1, rent: str | float | None = None, catalog: str | None = None, **settings: str | int
    ) -> None:
        """Keep the deployment.

        Args:
            replicas: Equal servers behind the address.
            rent: Kind of rent, or USD per chip-hour; None: that of the system's file.
            catalog: Folder of additional catalogue entries.
            **settings: Model, system, sizes and formats, as `st.validate` takes them.
        """
        self.replicas, self.catalog, self.settings = replicas, catalog, settings
        system = load_system(str(settings["system"]), catalog)
        self.system = system if rent is None else with_rent(system, rent)
        # Wrong settings end here, before the first scrape. Without a format the server has those of the config.
        weights, experts = stored_formats(load_model(str(settings["model"]), catalog=catalog))
        if not settings.get("weights"):
            self.settings = {**settings, "weights": weights, "experts": settings.get("experts") or experts}
        formats: dict[str, Any] = {name: str(self.settings.get(name) or "") for name in ("weights", "experts", "kv")}
        model = load_model(str(settings["model"]), catalog=catalog, **formats)
        layout = Layout(**{axis: int(settings.get(axis) or 1) for axis in AXES})
        room = float(memory_per_chip(model, self.system, batch=0, context=0, layout=layout).cache_room)
        if missing := words_of_excess(-room):
            raise RangeError(f"tp, pp, dp and ep: {model.name} does not fit: {missing}; give the server's sizes and formats")
        self.sums = DriftSums()
        self.predictions: dict[tuple[Any, ...], tuple[dict[str, tuple[float, ...]], dict[str, float]]] = {}

    def compare(self, scrape: Scrape, window: Window) -> Watched:
        """Compare a window with its prediction.

        Args:
            scrape: Last scrape of the window.
            window: The window.

        Returns:
            The comparison; without figures where nothing was generated.
        """
        sizes = {axis: int(self.settings.get(axis) or 1) for axis in ("tp", "pp", "dp")}
        chips = math.prod(sizes.values()) * self.replicas
        usd_per_second = float(deployment_rent(chips, float(self.system.rent.typical)))
        about: dict[str, Any] = {
            "model": str(self.settings.get("model") or scrape.model), "system": self.system.name, "engine": scrape.engine,
            "chips": chips, "usd_per_hour": usd_per_second * SECONDS_PER_HOUR, "window": window, "notes": _notes(window),
        }  # fmt: skip
        figures = (window.tpot, window.ttft, window.input, window.output, window.in_flight)
        if not all(math.isfinite(value) and value > 0 for value in figures) or window.output <= 1:
            return Watched(**about)
        ends, resources = self._predict(scrape, window)
        speed = tuple(value * self.replicas for value in ends["output_tok_s"])
        cost = tuple(float(usd_per_million(usd_per_second, speed[i])) for i in (0, 2, 1))
        compared: dict[str, Any] = {
            "tpot": _compared(window.tpot, ends["tpot"]),
            "ttft": _compared(window.ttft, ends["ttft"]),
            "output_tokens_per_second": _compared(window.output_tokens_per_second, speed),
            "usd_per_million_tokens": _compared(float(usd_per_million(usd_per_second, window.output_tokens_per_second)), cost),
        }
        self.sums.add(window.tpot - ends["tpot"][0], resources)
        term, factor, explained = self._drift(window, compared)
        return Watched(**about, **compared, drifted=term, factor=factor, explained=explained)

    def _predict(self, scrape: Scrape, window: Window) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
        """Return predicted figures with their ranges, and the resources of the decode step.

        Loads and lengths have three digits, so that a steady server asks for few predictions.
        """
        flight = max(1.0, window.in_flight / self.replicas)
        flight, inputs, outputs = (float(f"{value:.3g}") for value in (flight, window.input, window.output))
        load = scrape.engine, flight, inputs, outputs
        if load not in self.predictions:
            if len(self.predictions) >= MOST_PREDICTIONS:
                self.predictions.clear()
            row = self._row(scrape, window, flight, inputs, outputs)
            figures = predict([row], catalog=self.catalog, by_simulation=False)
            ends = {
                name: tuple(float(getattr(figures, f"{name}{end}")[0]) for end in ("", "_low", "_high"))
                for name in ("tpot", "ttft", "output_tok_s")
            }
            self.predictions[load] = ends, self._resources(row)
        return self.predictions[load]

    def _row(self, scrape: Scrape, window: Window, flight: float, inputs: float, outputs: float) -> dict[str, str]:
        """Return the window as a row of a run of one replica."""
        result: dict[str, Any] = {
            "backend": scrape.engine,
            "model_id": scrape.model,
            "completed": max(1.0, window.requests_per_second * window.seconds),
            "duration": window.seconds,
            "mean_tpot_ms": window.tpot * 1e3,
            "mean_ttft_ms": window.ttft * 1e3,
        }
        lengths = {"input": inputs, "output": outputs}
        result |= {f"total_{name}_tokens": tokens * result["completed"] for name, tokens in lengths.items()}
        # A long run at a constant number of requests in flight.
        result["max_concurrency"] = flight
        row = convert_result(result, self._overrides(), id_="watch")
        row |= {
            "concurrency": f"{flight:.0f}",
            "concurrency_mean": f"{flight:.6g}",
            "requests": f"{max(flight * 100, 100):.0f}",
        }
        rows, _ = read_rows([row], {}, False, self.catalog)
        return rows[0]

    def _overrides(self) -> dict[str, str]:
        settings = {"tp": 1} | {name: value for name, value in self.settings.items() if value not in ("", None)}
        return {SETTING_COLUMNS[name]: str(value) for name, value in settings.items()}

    def _resources(self, row: dict[str, str]) -> dict[str, float]:
        """Return the predicted time of each resource in a decode step, per token [s]."""
        engine = resolve_engine(row["engine"], catalog=self.catalog)
        (runs,) = grouped([row], {row["engine"]: engine}, catalog=self.catalog)
        loop = solve_closed_loops(runs, engine)
        return {name: float(np.ravel(seconds)[0]) for name, seconds in loop.decode.resources.items()}

    def _drift(self, window: Window, compared: Mapping[str, Comparison]) -> tuple[str, float, float]:
        """Return the term that explains the drift."""
        if compared["tpot"].has_drifted:
            return self.sums.explain()
        first = compared["ttft"]
        if not first.has_drifted:
            return "", math.nan, math.nan
        unqueued = window.ttft - window.queue
        is_queue = math.isfinite(window.queue) and first.ratio > 1 and unqueued <= first.high
        return QUEUE if is_queue else PREFILL, math.nan, math.nan


def _scraped(url: str, clock: Callable[[], float], served: str) -> Scrape:
    """Return a scrape of a server; a problem of its text names the address."""
    text = fetch_text(url)
    try:
        return read_scrape(text, clock(), served)
    except RangeError:
        raise
    except InputError as problem:
        raise InputError(f"{url}: {problem}") from None


def watch_windows(
    url: str,
    watcher: Watcher,
    *,
    interval: float,
    served: str = "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Watched | InputError]:
    """Scrape a server at intervals, and compare each window with its prediction.

    Args:
        url: Address of the metrics.
        watcher: Deployment and its drift.
        interval: Time from one scrape to the next [s].
        served: Name of the served model, where the server has several.
        clock: Returns a time that never goes back [s].
        sleep: Waits for a time [s].

    Yields:
        A comparison for each window, or the error of a scrape after which a new window starts.
    """
    last: Scrape | None = None
    due = clock()
    while True:
        try:
            scrape = _scraped(url, clock, served)
            if last is not None and is_restarted(last, scrape):
                last = None
                yield InputError(f"{url}: the server restarted; its counters began again")
            if last is not None:
                yield watcher.compare(scrape, window_between(last, scrape))
            last = scrape
        except InputError as error:
            last = None
            yield error
        # Scrapes keep their rhythm; those that a slow answer missed are left out.
        due = max(due + interval, clock())
        sleep(max(0.0, due - clock()))


def _notes(window: Window) -> tuple[str, ...]:
    """Return what the prediction leaves out."""
    notes = {
        f"{percent(window.cached_share)} of the prompt tokens came from the prefix cache, which the prediction leaves out": (
            window.cached_share > 0.01
        ),
        f"a speculative step yields {window.acceptance:.2f} tokens, which the prediction leaves out": window.acceptance >= 1,
        f"{window.preemptions:.0f} requests lost their KV cache: fewer may run at once": window.preemptions > 0,
    }
    return tuple(text for text, holds in notes.items() if holds)


def _compared(measured: float, prediction: tuple[float, ...]) -> Comparison:
    predicted, low, high = prediction
    # The ideal engine has no range.
    has_drifted = bool(math.isfinite(low) and not low <= measured <= high)
    ratio = measured / predicted if predicted > 0 else math.nan
    return Comparison(measured=measured, predicted=predicted, low=low, high=high, ratio=ratio, has_drifted=has_drifted)


# --- the exporter -------------------------------------------------------------------------------------------------------------


class Exporter:
    """Metrics of a watched server for Prometheus, on the loopback address."""

    # Quantity, metric, and its help.
    COMPARED: ClassVar[Mapping[str, tuple[str, str]]] = {
        "tpot": ("steptime_time_per_output_token_seconds", "Mean time per output token after the first."),
        "ttft": ("steptime_time_to_first_token_seconds", "Mean time to first token."),
        "output_tokens_per_second": ("steptime_output_tokens_per_second", "Output tokens per second of the server."),
    }

    def __init__(self) -> None:
        """Make the metrics in a registry of this exporter's, so that several do not clash."""
        if find_spec("prometheus_client") is None:
            raise InputError(f"--exporter needs prometheus_client: {install_hint('watch')}")
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = CollectorRegistry()

        def gauge(name: str, about: str, *labels: str) -> Any:
            return Gauge(name, about, ["model_name", *labels], registry=self.registry)

        self.compared = {quantity: gauge(*texts, "basis") for quantity, texts in self.COMPARED.items()}
        cost_labels = ("namespace", "cost_basis", "workload_type")
        self.hourly = gauge("llm_total_hourly_cost", "Rent of the chips of the model in USD per hour.", *cost_labels)
        self.per_million = gauge(
            "llm_cost_per_million_tokens", "Rent in USD per million output tokens, measured or predicted.", *cost_labels,
            "phase", "basis",
        )  # fmt: skip
        self.ratio = gauge("steptime_measured_to_predicted_ratio", "Measured over predicted.", "quantity")
        self.drifted = gauge("steptime_drifted", "Whether a quantity is outside its 90 % range: 1 or 0.", "quantity")
        self.term = gauge("steptime_drift_term", "The term that explains the drift has 1.", "term")
        self.in_flight = gauge("steptime_requests_in_flight", "Mean requests in flight, by Little's law.")
        self.up = Gauge(
            "steptime_engine_up", "Whether the last scrape of the engine succeeded: 1 or 0.", registry=self.registry
        )
        self.scrapes = Counter("steptime_scrapes", "Scrapes of the engine.", registry=self.registry)
        self.failures = Counter("steptime_scrape_failures", "Scrapes of the engine that failed.", registry=self.registry)

    def serve(self, port: int) -> tuple[Any, Any]:
        """Serve the metrics on the loopback address.

        Args:
            port: Port; 0 for a free one.

        Returns:
            Server and its thread.

        Raises:
            InputError: The port cannot be used.
        """
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise InputError(f"--exporter {port}: {error.strerror or error}") from None
        return server, thread

    def failed(self) -> None:
        """Count a scrape that failed."""
        self.scrapes.inc()
        self.failures.inc()
        self.up.set(0)

    def update(self, watched: Watched) -> None:
        """Set the metrics of a window.

        Args:
            watched: The comparison of the window.
        """
        self.scrapes.inc()
        self.up.set(1)
        model, costs = watched.model, {"namespace": "", "cost_basis": "allocation", "workload_type": "inference"}
        self.hourly.labels(model_name=model, **costs).set(watched.usd_per_hour)
        self.in_flight.labels(model_name=model).set(watched.window.in_flight)
        self.term.clear()
        if watched.drifted:
            self.term.labels(model_name=model, term=watched.drifted).set(1)
        for quantity in QUANTITIES:
            comparison = getattr(watched, quantity)
            if comparison is None:
                continue
            self.ratio.labels(model_name=model, quantity=quantity).set(comparison.ratio)
            self.drifted.labels(model_name=model, quantity=quantity).set(comparison.has_drifted)
            for basis in ("measured", "predicted", "low", "high"):
                value = getattr(comparison, basis)
                if quantity in self.compared:
                    self.compared[quantity].labels(model_name=model, basis=basis).set(value)
                else:
                    self.per_million.labels(model_name=model, **costs, phase="generation", basis=basis).set(value)
