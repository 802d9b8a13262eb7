"""Validation and calibration interface: compares predictions with measured runs and fits an engine to them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from steptime.errors import InputError, short_repr
from steptime.models.model_loading import release_notes
from steptime.physics.bias_correction import Anchors
from steptime.physics.engine import TYPICAL, Engine, constant, load_engine
from steptime.physics.engine_parameters import RUN_WAITS
from steptime.result_base import Tabular, unit
from steptime.units import counted, percent, percent_change
from steptime.validation.bench_results import Runs, file_names, read_rows
from steptime.validation.engine_fit import NAMES, QUEUE_NAMES, calibrated_engine, engine_file
from steptime.validation.error_summary import MEASURED, Predictions, report
from steptime.validation.mlperf_data_sets import submission_notes
from steptime.validation.predictions import predict, resolve_engine
from steptime.validation.published_deployments import is_scripted
from steptime.validation.run_table import ENGINES, LOOPS, POOLS, in_runs, run_kind, unread_columns
from steptime.validation.user_calibration import far_runs

QUANTITY_LABELS = {"tpot": "TPOT", "ttft": "TTFT", "ttft_median": "TTFT, median", "output_tok_s": "output tok/s"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Validation(Tabular):
    """Comparison of predictions with measured runs; as a table, one row per run."""

    SCHEMA: ClassVar[str] = "steptime.validation/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"runs": unit("", "number of valid runs")}

    rows: tuple[dict[str, str], ...] = field(metadata=unit("", "measured runs", left_out=True))
    predictions: Predictions = field(metadata=unit("", "predictions of the runs", left_out=True))
    tpot: Mapping[str, Any] | None = field(
        metadata=unit(
            "",
            "errors of the time per output token: all, and by kind of run, model, system, engine, weight_dtype, concurrency, "
            "bound; each has runs, median, mean and p90 of abs(predicted / measured - 1); bias; within_25 (share within 25 %); "
            "coverage (share inside the 90 % range); null if not measured",
            key="tpot",
        )
    )
    ttft: Mapping[str, Any] | None = field(metadata=unit("", "errors of the mean time to first token, like tpot", key="ttft"))
    ttft_median: Mapping[str, Any] | None = field(
        default=None, metadata=unit("", "errors of the median time to first token, like tpot", key="ttft_median")
    )
    output_tok_s: Mapping[str, Any] | None = field(
        default=None,
        metadata=unit("", "errors of the output tokens per second of the whole deployment, like tpot", key="output_tok_s"),
    )
    simulated: bool = field(metadata=unit("", "whether TTFT comes from simulated loops"))
    doubtful: tuple[str, ...] = field(
        default=(),
        metadata=unit(
            "", "runs that cannot be right, are in doubt or have no prediction, with the reason; tables exclude them"
        ),
    )
    scripted: int = field(
        default=0, metadata=unit("", "runs in the tables with settings of their published scripts instead of their columns")
    )
    unread: tuple[str, ...] = field(default=(), metadata=unit("", "columns of the file without effect"))
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "runs that could not be read, and why"))
    notes: tuple[str, ...] = field(
        default=(),
        metadata=unit(
            "", "models whose shape is that of another release in the catalogue, and which; corrected columns of MLPerf"
        ),
    )

    @property
    def runs(self) -> int:
        """Number of valid runs."""
        return len(self.rows)

    @property
    def tables(self) -> dict[str, Any]:
        """Error tables by quantity, for quantities that were measured."""
        return {name: getattr(self, name) for name in MEASURED if getattr(self, name) is not None}

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the errors of all runs.

        Returns:
            Title, and text by quantity.
        """
        title = f"Validation of {self.runs:,} run{'s' * (self.runs != 1)}" + (
            f", {len(self.left_out):,} left out" if self.left_out else ""
        )
        figures = {QUANTITY_LABELS[name]: _in_words(table["all"]) for name, table in self.tables.items()}
        if self.doubtful:
            figures["cannot be right"] = f"{in_runs(len(self.doubtful))}, not in the tables"
        return title, figures

    def columns(self) -> dict[str, Any]:
        """Return the table of runs: their columns, measured and predicted values.

        Returns:
            Columns by name, one row per run.
        """
        names = dict.fromkeys(name for row in self.rows for name in row)
        run_columns = {name: [row.get(name, "") for row in self.rows] for name in names}
        measured = {f"measured_{name}": run_columns.pop(name) for name in MEASURED.values() if name in run_columns}
        numbers = {name: [float(text) if text else float("nan") for text in texts] for name, texts in measured.items()}
        return run_columns | numbers | {f"predicted_{name}": values for name, values in self.predictions.columns().items()}


def _in_words(errors: Mapping[str, float]) -> str:
    text = f"median error {percent(errors['median'], 1)}, bias {percent_change(errors['bias'])}, "
    text += f"{percent(errors['within_25'])} within 25 %"
    inside = errors["coverage"]
    return text if math.isnan(inside) else f"{text}, {percent(inside)} inside the 90 % range"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Calibrated(Tabular):
    """Engine fitted to measured runs, and its prior; as a table, one row per constant."""

    SCHEMA: ClassVar[str] = "steptime.calibrated/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "runs": unit("", "number of runs in the fit"),
        "constants": unit("", "fitted constants by name, in seconds or as shares"),
        "prior_constants": unit("", "constants of the prior by name"),
    }

    engine: Engine = field(metadata=unit("", "the fitted engine", left_out=True))
    prior: Engine = field(metadata=unit("", "engine that the fit started from", left_out=True))
    rows: tuple[dict[str, str], ...] = field(metadata=unit("", "measured runs", left_out=True))
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "runs that could not be read, and why"))

    @property
    def runs(self) -> int:
        """Number of runs in the fit."""
        return len(self.rows)

    @property
    def constants(self) -> dict[str, float]:
        """Fitted constants by name."""
        return _constants(self.engine)

    @property
    def prior_constants(self) -> dict[str, float]:
        """Constants of the prior by name."""
        return _constants(self.prior)

    @property
    def toml(self) -> str:
        """Text of the engine file."""
        return engine_file(self.engine, self.engine.source)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the fitted engine and its largest changes.

        Returns:
            Title, and text by label.
        """
        before, now = self.prior_constants, self.constants
        moved = sorted(
            ((abs(now[name] / before[name] - 1), name) for name in now if before[name] and now[name] != before[name]),
            reverse=True,
        )
        title = f"Engine {self.engine.name}: {self.prior.name} fitted to {in_runs(self.runs)}"
        return title, {
            "largest changes": ", ".join(f"{n} {percent_change(now[n] / before[n] - 1)}" for _, n in moved[:3]) or "nothing"
        }

    def columns(self) -> dict[str, Any]:
        """Return the table of constants, before and after the fit.

        Returns:
            Columns by name, one row per constant.
        """
        now, before = self.constants, self.prior_constants
        return {"constant": list(now), "prior": list(before.values()), "fitted": list(now.values())}


def _constants(engine: Engine) -> dict[str, float]:
    return {name: float(constant(engine, name)) for name in (*NAMES, *QUEUE_NAMES, *RUN_WAITS)}


def validate(
    runs: Runs,
    *,
    engine: Engine | str | None = None,
    anchor: Anchors | None = None,
    skip_bad: bool = False,
    catalog: str | None = None,
    **settings: str | int,
) -> Validation:
    """Compare predictions with measured runs.

    Args:
        runs: File, folder, several of them, or rows as dicts by column (`steptime validate --columns` lists the columns).
        engine: Engine for every run, instead of the engine of each run.
        anchor: Own runs (`st.load_anchor`) that correct the predictions of their engine. Runs that are also predicted
            correct themselves.
        skip_bad: Whether to leave out bad runs instead of raising.
        catalog: Folder of additional catalogue entries.
        **settings: Values that JSON results of load generators lack: `system="hgx-h200", tp=4, weights="fp8"`
            (`SETTING_COLUMNS`).

    Returns:
        Errors by quantity, and the predictions.

    Raises:
        InputError: A run is bad and `skip_bad` is False (with file and line).
    """
    rows, problems = read_rows(runs, settings, skip_bad, catalog)
    loaded = None if engine is None else load_engine(engine, catalog)
    predictions = predict(rows, engine=loaded, anchor=anchor, catalog=catalog)
    tables = report(rows, predictions)
    # Own runs correct the runs that are far from their predictions.
    far = far_runs(rows, predictions, engine=loaded, catalog=catalog) if anchor is None else []
    return Validation(
        rows=tuple(rows),
        predictions=predictions,
        **{name: tables.get(name) for name in MEASURED},
        simulated=predictions.simulated,
        doubtful=tuple(_list_reasons(rows, predictions.reason)),
        scripted=sum(is_scripted(row) for row, reason in zip(rows, predictions.reason, strict=True) if not reason),
        unread=tuple(unread_columns(rows)),
        left_out=tuple(problems),
        notes=(
            *release_notes((row["model"] for row in rows), catalog),
            *submission_notes(rows),
            *_unknown_engines(rows if engine is None else (), catalog),
            *_corrections(anchor),
            *far,
        ),
    )


def _unknown_engines(rows: Iterable[Mapping[str, str]], catalog: str | None) -> list[str]:
    """Say which engines of the rows are none of the catalogue, so that the typical one stands for them."""
    names = sorted({row["engine"] for row in rows} - {TYPICAL})
    unknown = [short_repr(name) for name in names if resolve_engine(name, catalog=catalog).name == TYPICAL]
    choices = ", ".join(name for name in ENGINES if name != TYPICAL)
    return [f"engine {', '.join(unknown)} is not known ({choices}): {TYPICAL} predicts its runs"] if unknown else []


def _corrections(anchor: Anchors | None) -> list[str]:
    """Say which own runs correct the predictions."""
    if anchor is None:
        return []
    count = sum(len(group.measured) for group in anchor.anchors)
    return [
        f"predictions are corrected by {counted(count, 'run')} of {anchor.source}, most by runs of the same model and system"
    ]


def _list_reasons(rows: Sequence[Mapping[str, str]], reasons: Iterable[str]) -> list[str]:
    """Return id and reason of the rows that have a reason."""
    return [f"{row['id']}: {reason}" for row, reason in zip(rows, reasons, strict=True) if reason]


def calibrate(
    runs: Runs,
    *,
    name: str,
    prior: Engine | str | None = None,
    skip_bad: bool = False,
    catalog: str | None = None,
    **settings: str | int,
) -> Calibrated:
    """Fit the physical constants of an engine to a user's runs.

    Args:
        runs: Runs, as in `validate`.
        name: Name of the new engine.
        prior: Engine to start from; by default that of the runs, or the typical one. Few runs change it little.
        skip_bad: Whether to leave out bad runs instead of raising.
        catalog: Folder of additional catalogue entries.
        **settings: Values that JSON results lack, as in `validate`.

    Returns:
        The fitted engine and its prior; `toml` is the text of the engine file.

    Raises:
        InputError: No run can be fitted.
    """
    run_rows, problems = read_rows(runs, settings, skip_bad, catalog)
    rows, rejections = fitting(run_rows, catalog=catalog)
    problems += rejections
    ran = {row["engine"] for row in rows}
    before = (
        resolve_engine(min(ran) if len(ran) == 1 else TYPICAL, catalog=catalog)
        if prior is None
        else load_engine(prior, catalog)
    )
    fitted = calibrated_engine(rows, name=name, prior=before, catalog=catalog)
    note = in_runs(len(rows))
    if run_files := file_names(runs):
        note += f" of {run_files[0]}" + (f" and {len(run_files) - 1} more files" if len(run_files) > 1 else "")
    source = {"url": "", "date": datetime.date.today().isoformat(), "grade": "measured", "note": note}
    return Calibrated(engine=replace(fitted, source=source), prior=before, rows=tuple(rows), left_out=tuple(problems))


def fitting(rows: list[dict[str, str]], *, catalog: str | None = None) -> tuple[list[dict[str, str]], list[str]]:
    """Select the rows that an engine can be fitted to.

    These are closed loops that pass the checks, with or without speculative tokens. Runs on separate pools count as runs of
    their decode pool and need a measured throughput.

    Args:
        rows: Runs.
        catalog: Folder of additional catalogue entries.

    Returns:
        The selected rows, and a description of each row that was left out.

    Raises:
        InputError: No row is left.
    """
    reasons = predict(rows, catalog=catalog, by_simulation=False).reason
    for i, row in enumerate(rows):
        kind = run_kind(row)
        if not reasons[i] and kind == POOLS and not (row.get("tpot_s") and row.get("output_tok_s")):
            reasons[i] = "not in the fit: the batch of its decode pool needs both tpot_s and output_tok_s"
        elif not reasons[i] and kind not in (*LOOPS, POOLS):
            reasons[i] = f"not in the fit: its throughput ({kind}) depends on more than the step time"
    rejections = _list_reasons(rows, reasons)
    if len(rejections) == len(rows):
        raise InputError(f"no run for the fit: {rejections[0]}")
    return [row for row, reason in zip(rows, reasons, strict=True) if not reason], rejections
