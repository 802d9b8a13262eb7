"""Training validation: predictions of measured training runs, their errors, and a stack fitted to a user's runs.

A prediction contains the step time with a 90 % range, the memory, whether it fits, and the reason if there is no prediction.

**Fit.** All stacks share one set of constants. Deviations from it have normal priors. They are factors on the speed of a stack,
a chip and a chip architecture. Others are on the attention rate of an architecture, and on the element-wise traffic of a stack.
Residuals of log step times have heavy tails (Student's t), so a run with an unrecorded flag has little influence. Runs of one
source, model and chip share their errors. Their total weight is the square root of their number. The fit is the maximum a
posteriori estimate by Gauss-Newton. `docs/fit_training.py` fits the shipped stacks with the same functions.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from steptime.atomic_files import temporary_file
from steptime.errors import InputError, safe_cell
from steptime.number_checks import Array
from steptime.result_base import Tabular, broadcast, unit
from steptime.training.training_job import DEGREES, TrainingLayout
from steptime.training.training_memory import TrainingMemory, training_memory
from steptime.training.training_search import search
from steptime.training.training_stack import (
    IDEAL,
    REFERENCE_YEAR,
    Constants,
    TrainingEngine,
    age_constants,
    decimal_year,
    fill_outputs,
    largest_gemm_share,
    load_stack,
    on_chip,
    step_time_range,
    training_engine,
)
from steptime.training.training_step import step_seconds
from steptime.units import percent, percent_change, show
from steptime.validation.training_run_table import (
    LEAST_RECOMPUTED,
    LEAST_RECOMPUTED_WITH_EXPERTS,
    TrainingRun,
    read_training_runs,
)

COLUMNS: Final = (
    "id", "step_s", "step_low_s", "step_high_s", "tokens_per_s_per_chip", "peak_memory_gib", "fits", "bound", "reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Prediction of a training run.

    step, low and high [s]; peak [B], counted like the peak of the row; own_factor: factor of your other runs on the step;
    reason: why there is no prediction.
    """

    run: TrainingRun | None
    id: str
    layout: TrainingLayout | None = None
    step: float = np.nan
    low: float = np.nan
    high: float = np.nan
    peak: float = np.nan
    fits: bool | None = None
    bound: str = ""
    own_factor: float = 1.0
    reason: str = ""

    @property
    def measured(self) -> float:
        """Measured step [s]; NaN if not measured."""
        return (self.run.step if self.run else None) or np.nan

    @property
    def measured_peak(self) -> float:
        """Measured peak [B]; NaN if not measured."""
        return (self.run.peak if self.run else None) or np.nan

    @property
    def off(self) -> float:
        """Logarithm of the predicted over the measured step."""
        return float(np.log(self.step / self.measured))

    @property
    def fits_word(self) -> str:
        """Whether the run fits, as text; "" if unknown."""
        return "" if self.fits is None else str(self.fits).lower()


def resolve_layout(run: TrainingRun, engine: TrainingEngine) -> TrainingLayout:
    """Complete the layout of a run.

    Adds the recomputation, the schedule, or the whole layout if these are not recorded.

    Args:
        run: Run.
        engine: Training stack.

    Returns:
        Layout.

    Raises:
        InputError: No layout divides the batch on the chips.
    """
    if run.layout is None:
        candidates = search(run.model, run.system, run.job, engine, chips=run.chips, fixed={"virtual_stages": 1})
        best = candidates.fastest() or candidates.fastest(fitting=False)
        if best is None:
            raise InputError(f"no layout divides {run.job.batch} sequences on {run.chips} chips")
        return best[0]
    layout = run.layout
    if run.open:
        least = LEAST_RECOMPUTED_WITH_EXPERTS if run.experts else LEAST_RECOMPUTED
        trials = [replace(layout, recompute=recompute) for recompute in least]

        # Users recompute as little as memory allows.
        layout = next((trial for trial in trials if bool(estimate_run_memory(run, engine, trial).fits)), trials[-1])

    # Try all numbers of virtual stages that divide the layers.
    if run.any_order:
        fixed_fields = {
            name: getattr(layout, name)
            for name in (*DEGREES, "sharding", "sharding_group", "recompute")
            if name != "virtual_stages"
        }
        candidates = search(run.model, run.system, run.job, engine, chips=run.chips, fixed=fixed_fields)
        best = candidates.fastest(fitting=False)
        layout = layout if best is None else best[0]
    return layout


def estimate_run_memory(run: TrainingRun, engine: TrainingEngine, layout: TrainingLayout) -> TrainingMemory:
    """Estimate the memory of a run.

    Args:
        run: Run.
        engine: Training stack.
        layout: Layout.

    Returns:
        Memory per chip.
    """
    microbatches = max(run.job.batch / (layout.dp * layout.micro_batch), 1.0)
    return training_memory(run.model, run.job, run.system, engine, layout, microbatches=microbatches)


def predict_training(run: TrainingRun | str, *, name: str = "", engine: TrainingEngine | None = None) -> Predicted:
    """Predict a training run.

    Args:
        run: Run, or the reason why it is invalid.
        name: Id of an invalid run.
        engine: Training stack; by default that of the run.

    Returns:
        Prediction, or the reason for its absence.
    """
    if isinstance(run, str):
        return Predicted(run=None, id=name, reason=run)
    used = training_engine(run.stack, run.system) if engine is None else engine
    if run.dropped:
        return Predicted(run=run, id=run.id, reason="tokens were dropped: the work of the step is not known")
    try:
        layout = resolve_layout(run, used)
    except InputError as error:
        return Predicted(run=run, id=run.id, reason=str(error))
    tuned = on_chip(used, run.system, experts=run.experts, date=run.date)
    breakdown = step_seconds(run.model, run.job, run.system, tuned, layout)
    memory = estimate_run_memory(run, used, layout)
    step = float(breakdown.total)
    low, high = step_time_range(used, run.system, experts=run.experts)
    peak, fits = float(memory.allocated), bool(memory.fits)

    # The driver's peak includes the cache of the allocator, up to the capacity of the chip.
    if run.driver:
        driver_peak = peak * (1 + used.cached) + float(memory.reserved)
        peak = min(driver_peak, float(memory.capacity)) if fits else driver_peak
    terms = {name: float(np.sum(value)) for name, value in breakdown.terms.items()}
    return Predicted(
        run=run, id=run.id, layout=layout, step=step, low=step * low, high=step * high, peak=peak, fits=fits,
        bound=max(terms, key=lambda term: terms[term]),
        reason="" if fits else f"needs {show(float(memory.used), 'B')} of the {show(float(memory.capacity), 'B')} of a chip",
    )  # fmt: skip


def write_training_predictions(path: str | os.PathLike[str], predictions: Sequence[Predicted]) -> None:
    """Write predictions as CSV, one row per run; missing values are empty.

    Args:
        path: File to write.
        predictions: Predictions.
    """
    with temporary_file(path) as place, place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for p in predictions:
            rate = p.run.job.batch * p.run.job.seq / p.step / p.run.chips if p.run else np.nan
            figures = (p.step, p.low, p.high, float(rate), p.peak / 2**30)
            cells = (p.id, *(figure if np.isfinite(figure) else "" for figure in figures), p.fits_word, p.bound, p.reason)
            writer.writerow(map(safe_cell, cells))


GROUPINGS: dict[str, Callable[[TrainingRun], str]] = {
    "model": lambda run: run.model.name,
    "system": lambda run: run.system.name,
    "stack": lambda run: run.stack,
    "dtype": lambda run: run.job.dtype,
    "task": lambda run: run.job.task,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingValidation(Tabular):
    """Predictions compared with measured training runs; as a table, one row per run."""

    SCHEMA: ClassVar[str] = "steptime.training_validation/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {"runs": unit("", "rows of the file")}

    predictions: tuple[Predicted, ...] = field(metadata=unit("", "a prediction for each row", left_out=True))
    step: Mapping[str, Any] = field(
        metadata=unit(
            "",
            "errors of the step time: all, and by model, system, stack, dtype, task; each has runs, median, mean and p90 "
            "of abs(predicted / measured - 1), bias, and coverage (share inside the 90 % range)",
            key="step",
        )
    )
    memory: Mapping[str, Any] = field(
        metadata=unit("", "errors of peak memory of the runs that have it: runs, median, mean, worst, bias", key="memory")
    )
    fitting: float = field(metadata=unit("", "share of successful runs that are predicted to fit in memory"))
    unanswered: tuple[str, ...] = field(metadata=unit("", "runs without a prediction, with the reason"))
    source: str = field(default="", metadata=unit("", "file of your own runs that correct the predictions; empty: none"))
    before: Mapping[str, float] = field(
        default_factory=dict,
        metadata=unit("", "errors of the step time without your own runs, of the runs that they correct, as in step"),
    )
    after: Mapping[str, float] = field(
        default_factory=dict,
        metadata=unit("", "errors of the same runs, corrected; no run is among those that correct it"),
    )

    @property
    def runs(self) -> int:
        """Rows of the file."""
        return len(self.predictions)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the errors of all runs.

        Returns:
            Title, and text by label.
        """
        errors = self.step.get("all", {})
        words = (
            f"median error {percent(errors['median'], 1)}, p90 {percent(errors['p90'], 1)}, "
            f"bias {percent_change(errors['bias'])}, {percent(errors['coverage'])} inside the 90 % range"
            if errors
            else "nothing was measured"
        )
        lines = {"step": words, "predicted to fit": percent(self.fitting, 1)}
        if self.before:
            lines["before the correction"] = f"median error {percent(self.before['median'], 1)}"
        return f"Validation of {self.runs:,} training runs", lines

    def columns(self) -> dict[str, Any]:
        """Return the table of runs.

        Returns:
            Columns by name, one row per run.
        """
        predictions = self.predictions
        return broadcast(
            {
                "id": [p.id for p in predictions],
                "measured_step_s": [p.measured for p in predictions],
                "step_s": [p.step for p in predictions],
                "step_low_s": [p.low for p in predictions],
                "step_high_s": [p.high for p in predictions],
                "peak_memory_bytes": [p.peak for p in predictions],
                "fits": [p.fits_word for p in predictions],
                "bound": [p.bound for p in predictions],
                "own_factor": [p.own_factor for p in predictions],
                "reason": [p.reason for p in predictions],
            }
        )


def validate_training(
    path: str | os.PathLike[str], *, engine: str | None = None, catalog: str | None = None
) -> TrainingValidation:
    """Predict every row of a file of training runs.

    Args:
        path: CSV file.
        engine: Training stack for all runs; by default that of each run.
        catalog: Folder of additional catalogue entries.

    Returns:
        Predictions and their errors.
    """
    runs, rows = read_training_runs(path, catalog=catalog, stack=engine)
    names = [row.get("id") or f"line {place + 2}" for place, row in enumerate(rows)]
    stack = None if engine is None else load_stack(engine, catalog)
    return summarize_training([predict_training(run, name=name, engine=stack) for run, name in zip(runs, names, strict=True)])


def summarize_training(predictions: Sequence[Predicted]) -> TrainingValidation:
    """Return the errors of predictions.

    Args:
        predictions: A prediction for each row of a file.

    Returns:
        Predictions and their errors.
    """
    # Runs that ran out of memory are no evidence of a layout that fits.
    fits = [p.fits for p in predictions if p.run and not p.run.out_of_memory and p.fits is not None]
    return TrainingValidation(
        predictions=tuple(predictions),
        step=_error_tables([p for p in predictions if np.isfinite(p.off)]),
        memory=_memory_errors(
            np.array([p.peak / p.measured_peak - 1 for p in predictions if np.isfinite(p.peak / p.measured_peak)])
        ),
        fitting=float(np.mean(fits)) if fits else float("nan"),
        unanswered=tuple(f"{p.id}: {p.reason}" for p in predictions if not np.isfinite(p.step)),
    )


def _error_tables(predictions: Sequence[Predicted]) -> dict[str, Any]:
    """Return the errors of the step time of all runs, and by the labels of `GROUPINGS`."""
    if not predictions:
        return {}
    tables: dict[str, Any] = {"all": step_errors(predictions)}
    for name, get_label in GROUPINGS.items():
        labels = [get_label(p.run) for p in predictions if p.run]
        members = {
            value: [p for p, label in zip(predictions, labels, strict=True) if label == value] for value in sorted(set(labels))
        }
        tables[name] = {value: step_errors(group) for value, group in members.items()}
    return tables


def step_errors(predictions: Sequence[Predicted]) -> dict[str, float]:
    """Return the errors of the step time.

    Args:
        predictions: Predictions of runs with a measured step.

    Returns:
        Number of runs, median, mean and p90 of |predicted / measured - 1|, bias, and share inside the 90 % range.
    """
    off = np.array([p.off for p in predictions])
    away = np.abs(np.expm1(off))
    is_covered = [p.low <= p.measured <= p.high for p in predictions]
    return {
        "runs": len(off), "median": float(np.median(away)), "mean": float(away.mean()), "p90": float(np.quantile(away, 0.9)),
        "bias": float(np.expm1(np.median(off))), "coverage": float(np.mean(is_covered)),
    }  # fmt: skip


def _memory_errors(off: Array) -> dict[str, float]:
    if not len(off):
        return {}
    away = np.abs(off)
    return {
        "runs": len(off), "median": float(np.median(away)), "mean": float(away.mean()), "worst": float(away.max()),
        "bias": float(np.median(off)),
    }  # fmt: skip


PRIOR: Final[dict[str, tuple[float, float]]] = {
    "compute_efficiency": (0.68, 0.15),
    "eight_bit_efficiency": (0.75, 0.2),
    "block_efficiency": (0.7, 0.2),
    "four_bit_efficiency": (0.5, 0.3),
    "expert_efficiency": (0.6, 0.3),
    "attention_efficiency": (0.5, 0.3),
    "memory_efficiency": (0.8, 0.3),
    "scale_up_efficiency": (0.7, 0.5),
    "scale_out_efficiency": (0.6, 0.5),
    "exposed_writes": (0.65, 0.15),
    "fill_share": (0.5, 0.5),
    "tensor_overlap": (0.3, 0.7),
    "expert_overlap": (0.3, 0.7),
    "data_overlap": (0.6, 0.7),
    # About 20 kernels, each of which takes the host 5 microseconds.
    "seconds_per_layer": (1e-4, 0.7),
    "seconds_per_expert_layer": (3e-4, 0.7),
    # About 8 kernels: the products and casts of two linear layers.
    "seconds_per_local_expert": (4e-5, 0.7),
    "seconds_per_step": (0.05, 1.0),
    "yearly_gain": (0.05, 0.05),
    "expert_yearly_gain": (0.2, 0.1),
    # What timed products reach of a chip's data sheet counts in full; the width is that of the timings.
    "chip_departure": (1.0, 0.05),
    "power_exponent": (0.33, 0.1),
}
"""Prior value and deviation of each constant. The deviation is that of the logarithm, of the logit (`SHARES`), or of the value
itself (`PLAIN`)."""
SHARES: Final = ("tensor_overlap", "expert_overlap", "data_overlap", "scale_up_efficiency", "scale_out_efficiency")
PLAIN: Final = ("yearly_gain", "expert_yearly_gain", "chip_departure", "power_exponent")
NAMES: Final = tuple(PRIOR)
SPREADS: Final = (("stack", "", 0.2), ("chip", "", 0.04), ("architecture", "", 0.06),
                  ("kernel", "attention_efficiency", 0.25), ("stack", "memory_efficiency", 0.15))  # fmt: skip
"""Deviations by stack, chip, architecture and attention kernel: the constant ("": the whole step time) and the deviation of
its logarithm."""
# Stacks whose runs had FlashAttention-2; of `typical`, most own runs are those of nanotron, which has it too. On Hopper it
# reaches 35 % of the data sheet, and later kernels (cuDNN of Transformer Engine, FlashAttention-3) reach up to 75 % (arXiv
# 2407.08608, abstract).
FLASH2_STACKS: Final = ("llm-foundry", "torchtitan", "typical")
# Unexplained scatter of log step times; the "noise floor" of repeated runs is 2 to 6 %.
SCATTER: Final = 0.06
# Degrees of freedom of Student's t.
FREEDOM: Final = 3.0
STEP: Final = 1e-3
MOST_ROUNDS: Final = 12


def to_free(name: str, value: float) -> float:
    """Transform a constant to its fitted form: logarithm, logit, or unchanged.

    Args:
        name: Name of the constant.
        value: Value.

    Returns:
        Transformed value.
    """
    if name in SHARES:
        return float(np.log(value / (1 - value)))
    return value if name in PLAIN else float(np.log(value))


def from_free(name: str, value: Any) -> Any:
    """Transform a fitted value back to a constant.

    Args:
        name: Name of the constant.
        value: Transformed value; a number or an array.

    Returns:
        Constant, with the shape of `value`.
    """
    if name in SHARES:
        return 1 / (1 + np.exp(-value))
    return value if name in PLAIN else np.exp(value)


# Minimum prior deviation of a constant's logarithm: a user's machine may differ this much from the shipped runs.
LEAST_WIDTH: Final = 0.02
START: Final = np.array([to_free(name, PRIOR[name][0]) for name in NAMES])
WIDTH: Final = np.array([PRIOR[name][1] for name in NAMES])
# Kind ("stack", "chip", "architecture", "kernel"), constant, and value of the kind.
Label = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fit: transformed constants, deviations by label, and their covariance."""

    free: Array
    differs: Mapping[Label, float]
    covariance: Array

    def constants(self) -> dict[str, float]:
        """Return the shared constants.

        Returns:
            Constants by name.
        """
        return {name: float(from_free(name, value)) for name, value in zip(NAMES, self.free, strict=True)}


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs for one vectorized prediction: they differ in numbers only."""

    run: TrainingRun
    layout: TrainingLayout
    seq: Array
    batch: Array
    places: Array
    year: Array


@dataclass(slots=True)
class Runs:
    """Runs to fit, in groups; `kinds` gives the labels of each run."""

    runs: Sequence[TrainingRun]
    layouts: Sequence[TrainingLayout]
    architectures: Mapping[str, str]
    spreads: tuple[tuple[str, str, float], ...] = SPREADS
    # Stack with the chip factors that are not fitted.
    base: TrainingEngine = replace(IDEAL, rings=True)
    groups: list[_Group] = field(init=False)
    labels: list[Label] = field(init=False)
    member: Array = field(init=False)
    widths: Array = field(init=False)
    weights: Array = field(init=False)
    logs: Array = field(init=False)

    def __post_init__(self) -> None:
        # Runs that differ in numbers only are predicted in one call.
        together: dict[Any, list[int]] = defaultdict(list)
        for place, (run, layout) in enumerate(zip(self.runs, self.layouts, strict=True)):
            job = replace(run.job, seq=0, batch=0)
            chip = run.system.chip
            key = (run.model, run.system.name, str(run.system.domains), chip.power_w, str(chip.reached), job, run.stack,
                   layout.sharding, layout.recompute, layout.schedule)  # fmt: skip
            together[key].append(place)
        self.groups = [self._group(places) for places in together.values()]
        kinds = [self.kinds(run) for run in self.runs]
        self.labels = sorted({(kind, name, labels_by_kind[kind]) for labels_by_kind in kinds for kind, name, _ in self.spreads})
        wide = {(kind, name): width for kind, name, width in self.spreads}
        self.widths = np.array([wide[label[0], label[1]] for label in self.labels])
        self.member = np.array(
            [[labels_by_kind[label[0]] == label[2] for label in self.labels] for labels_by_kind in kinds], dtype=float
        )
        self.logs = np.log([run.step or np.nan for run in self.runs])

        self.weights = cluster_weights(self.runs, np.ones(len(self.runs), dtype=bool))

    def kinds(self, run: TrainingRun) -> dict[str, str]:
        """Return the stack, chip and architecture of a run.

        Args:
            run: Run.

        Returns:
            Values by kind.
        """
        chip = run.system.chip.name
        architecture = self.architectures.get(chip, chip)
        kernel = attention_kernel(run.stack, architecture)
        return {"stack": run.stack, "chip": chip, "architecture": architecture, "kernel": kernel}

    def _group(self, places: list[int]) -> _Group:
        first = self.layouts[places[0]]
        sizes: Any = {n: np.array([float(getattr(self.layouts[i], n)) for i in places]) for n in (*DEGREES, "sharding_group")}
        return _Group(
            self.runs[places[0]],
            replace(first, **sizes),
            np.array([float(self.runs[i].job.seq) for i in places]),
            np.array([float(self.runs[i].job.batch) for i in places]),
            np.array(places),
            np.array([decimal_year(self.runs[i].date) if self.runs[i].date else REFERENCE_YEAR for i in places]),
        )


def attention_kernel(stack: str, architecture: str) -> str:
    """Return the group of attention kernels that share their share of the data sheet.

    Args:
        stack: Name of the training stack.
        architecture: Chip architecture.

    Returns:
        Name of the group.

    >>> attention_kernel("torchtitan", "hopper"), attention_kernel("megatron", "hopper")
    ('hopper, FlashAttention-2', 'hopper')
    """
    return f"{architecture}, FlashAttention-2" if architecture == "hopper" and stack in FLASH2_STACKS else architecture


def predicted(data: Runs, free: Array, differs: Mapping[Label, float], *, slopes: bool) -> tuple[Array, Array]:
    """Predict the logarithms of step times.

    Args:
        data: Runs in groups.
        free: Transformed constants, of shape (constants,).
        differs: Deviations by label.
        slopes: Whether to compute derivatives.

    Returns:
        log(seconds), of shape (runs,), and derivatives by constant, of shape (runs, constants), or empty.
    """
    logs = np.zeros(len(data.runs))
    gradient = np.zeros((len(data.runs), len(free))) if slopes else np.zeros((0, 0))
    for group in data.groups:
        labels_by_kind = data.kinds(group.run)
        group_free, added = free.copy(), 0.0
        for kind, name, _ in data.spreads:
            value = differs.get((kind, name, labels_by_kind[kind]), 0.0)
            if name:
                group_free[NAMES.index(name)] += value
            else:
                added += value
        points = np.vstack([group_free, group_free + STEP * np.eye(len(group_free))]) if slopes else group_free[None]
        times = _logs(group, points, data.base)
        logs[group.places] = times[0] + added
        if slopes:
            gradient[group.places] = ((times[1:] - times[0]) / STEP).T
    return logs, gradient


def _logs(group: _Group, points: Array, base: TrainingEngine) -> Array:
    """Return the logarithms of step times, of shape (points, runs)."""
    values = {name: from_free(name, points[:, place])[:, None] for place, name in enumerate(NAMES)}
    c = Constants(**values)
    job = replace(group.run.job, seq=group.seq, batch=group.batch)
    years = group.year - REFERENCE_YEAR
    chip = base.chips.get(group.run.system.chip.name, {})
    older = age_constants(c, years if group.run.experts else 0.0)
    older = replace(older, attention_efficiency=c.attention_efficiency * chip.get("attention", 1.0))
    speed = base.speed * chip.get("speed", 1.0) * np.exp(c.yearly_gain * years)
    largest_share = largest_gemm_share(group.run.system.chip.name)
    fill = fill_outputs(group.run.system.chip)
    engine = replace(base, constants=older, speed=speed, largest_share=largest_share, fill_outputs=fill)
    return np.asarray(np.log(step_seconds(group.run.model, job, group.run.system, engine, group.layout).total))


def fit(
    data: Runs, start: Fitted | None = None, *, rounds: int = MOST_ROUNDS, prior: tuple[Array, Array] = (START, WIDTH)
) -> Fitted:
    """Fit the constants and deviations to the runs.

    Args:
        data: Runs in groups.
        start: Fit to start from.
        rounds: Maximum Gauss-Newton iterations.
        prior: Prior means and deviations of the transformed constants.

    Returns:
        The most probable constants and deviations, with their covariance.
    """
    believed, width = prior
    constant_count = len(believed)
    start_free = believed if start is None else start.free
    values = np.concatenate([start_free, [0.0 if start is None else start.differs.get(label, 0.0) for label in data.labels]])
    center, widths = _priors(data, believed, width)
    information = np.eye(len(values))
    for _ in range(rounds):
        logs, x = _slopes(data, values)
        # Limit each step, because the model is not linear in the logarithms.
        step, information = _gauss_newton(x, data.logs - logs, data.weights, values - center, widths)
        values = values + step
        if np.abs(step).max() < 2e-3:
            break
    return _fitted(data, values, constant_count, np.linalg.inv(information))


def _priors(data: Runs, believed: Array, width: Array) -> tuple[Array, Array]:
    """Return the prior means and deviations of constants and of deviations by label."""
    return np.concatenate([believed, np.zeros(len(data.labels))]), np.concatenate([width, data.widths])


def _fitted(data: Runs, values: Array, constant_count: int, covariance: Array) -> Fitted:
    """Return a fit from the values of constants and of deviations by label."""
    differs = dict(zip(data.labels, map(float, values[constant_count:]), strict=True))
    return Fitted(free=values[:constant_count], differs=differs, covariance=covariance)


def _slopes(data: Runs, values: Array) -> tuple[Array, Array]:
    """Return the predicted logarithms of step times, and their derivatives by constant and by deviation."""
    count = len(values) - len(data.labels)
    differs = dict(zip(data.labels, values[count:], strict=True))
    logs, slopes = predicted(data, values[:count], differs, slopes=True)
    columns = [slopes[:, NAMES.index(name)] if name else np.ones(len(logs)) for _, name, _ in data.labels]
    return logs, np.hstack([slopes, data.member * np.array(columns).T.reshape(data.member.shape)])


def _gauss_newton(x: Array, off: Array, weights: Array, away: Array, widths: Array) -> tuple[Array, Array]:
    """Return the next step of the values, and the information matrix.

    off: measured minus predicted logarithms. away: values minus their prior means.
    """
    # Weights of Student's t: a run far from its prediction has little influence.
    weight = weights * (FREEDOM + 1) / (FREEDOM + (off / SCATTER) ** 2)
    information = x.T @ (weight[:, None] * x) / SCATTER**2 + np.diag(widths**-2.0)
    pull = x.T @ (weight * off) / SCATTER**2 - away / widths**2
    return np.clip(np.linalg.solve(information, pull), -0.4, 0.4), information


def fits_without(data: Runs, all_runs: Fitted, labels: Sequence[str]) -> dict[str, Fitted]:
    """Fit the runs without each group.

    All fits take the derivatives of the whole fit, so that they are computed once. Groups that are left out change the
    constants little.

    Args:
        data: Runs in groups.
        all_runs: Fit of all runs.
        labels: Group of each run.

    Returns:
        Fit without the runs of each group, by group.
    """
    start = np.concatenate([all_runs.free, [all_runs.differs[label] for label in data.labels]])
    logs, x = _slopes(data, start)
    center, widths = _priors(data, START, WIDTH)
    groups = np.array(labels)
    fits = {}
    for group in sorted(set(labels)):
        is_kept = groups != group
        weights = is_kept * cluster_weights(data.runs, is_kept)
        values = start
        for _ in range(MOST_ROUNDS):
            off = data.logs - logs - x @ (values - start)
            step, information = _gauss_newton(x, off, weights, values - center, widths)
            values = values + step
            if np.abs(step).max() < 2e-3:
                break
        fits[group] = _fitted(data, values, len(all_runs.free), np.linalg.inv(information))
    return fits


def cluster_weights(runs: Sequence[TrainingRun], is_kept: Array) -> Array:
    """Return the weight of each run: n runs of one source, model and chip have the total weight sqrt(n).

    Args:
        runs: Runs.
        is_kept: Whether each run counts.

    Returns:
        Weights, of shape (runs,).
    """
    clusters = [(run.source, run.model.name, run.system.chip.name) for run in runs]
    sizes = Counter(cluster for cluster, counts in zip(clusters, is_kept, strict=True) if counts)
    return np.array([max(sizes[cluster], 1) ** -0.5 for cluster in clusters])


def calibrate_training(
    path: str | os.PathLike[str], *, name: str, prior: str | None = None, catalog: str | None = None
) -> tuple[TrainingEngine, str, int]:
    """Fit a training stack to a user's runs.

    The constants of the prior with their deviations are the prior of the fit. Few runs change them little, and change the speed
    of the whole stack most.

    Args:
        path: CSV file.
        name: Name of the new stack.
        prior: Stack to start from; by default that of the first run.
        catalog: Folder of additional catalogue entries.

    Returns:
        The fitted stack, the text of its file, and the number of runs.

    Raises:
        InputError: No row has a step time, or the prior is the ideal stack.
    """
    parsed_runs, _ = read_training_runs(path, catalog=catalog)
    runs = [run for run in parsed_runs if isinstance(run, TrainingRun) and run.step is not None and not run.dropped]
    if not runs:
        reasons = [run for run in parsed_runs if isinstance(run, str)]
        raise InputError("no row of the file has a step time" + (f"; the first problem is: {reasons[0]}" if reasons else ""))
    base = training_engine(prior or runs[0].stack, runs[0].system, catalog)
    if base.name == "ideal":
        raise InputError("--prior ideal has no constants that a fit can change; use typical or the most similar stack")
    runs = [replace(run, stack=name) for run in runs]
    layouts = [resolve_layout(run, base) for run in runs]
    start = np.array([to_free(name, float(getattr(base.constants, name))) for name in NAMES])
    width = np.array([max(float(base.fit.get("width", {}).get(name, 0.1)), LEAST_WIDTH) for name in NAMES])

    # A user has one stack, so only its speed deviates; chips and architectures stay as shipped.
    stack_spreads = tuple((kind, constant, spread) for kind, constant, spread in SPREADS if kind == "stack" and not constant)
    solution = fit(Runs(runs, layouts, {}, stack_spreads, base), prior=(start, width))
    speed = base.speed * float(np.exp(-solution.differs.get(("stack", "", name), 0.0)))
    until = max([float(base.fit.get("until", 0.0)), *(decimal_year(run.date) for run in runs if run.date)])
    systems = sorted({*base.fit.get("systems", ()), *(run.system.chip.name for run in runs)})
    fitted_stack = replace(base, name=name, title=f"{base.name} fitted to {len(runs)} of your runs", speed=speed,
                   constants=Constants(**solution.constants()),
                   fit=dict(base.fit) | {"runs": len(runs), "until": until, "systems": systems})  # fmt: skip
    return fitted_stack, format_toml(fitted_stack, base, solution), len(runs)


def format_toml(fitted_stack: TrainingEngine, base: TrainingEngine, solution: Fitted) -> str:
    """Format the file of a fitted stack.

    Args:
        fitted_stack: Fitted stack.
        base: Stack that the fit started from.
        solution: Fit.

    Returns:
        TOML text.
    """
    numbers = ("elsewhere", "gradient_bytes", "logit_bytes", "reserved_bytes", "cached", "prefetched")
    words = ("schedules", "shardings", "recomputes", "adapted")
    switches = [f"{name} = true" for name in ("gathered_inputs", "grouped_experts") if getattr(base, name)]
    lines = [f"name = {json.dumps(fitted_stack.name)}", f"title = {json.dumps(fitted_stack.title)}"]
    lines += [f"{key} = {getattr(base, key)}" for key in numbers] + switches
    lines += [f"{key} = {json.dumps(list(getattr(base, key)))}" for key in words if getattr(base, key)]
    lines += [f"speed = {fitted_stack.speed:.4g}", "", "[constants]"]
    lines += [f"{name} = {value:.4g}" for name, value in solution.constants().items()]
    for chip, factors in base.chips.items():
        lines += ["", f"[chips.{chip}]", *(f"{key} = {value}" for key, value in factors.items())]
    fitted = fitted_stack.fit
    lines += ["", "[fit]", f"runs = {fitted['runs']}", f"until = {fitted['until']:.3f}"]
    lines += [f"systems = {json.dumps(fitted['systems'])}", f"chips = {json.dumps(sorted(fitted.get('chips', ())))}"]
    lines += [f"typical_speed = {fitted.get('typical_speed', 1.0)}", "", "[fit.interval]"]
    lines += [f"{json.dumps(kind)} = {json.dumps(list(limits))}" for kind, limits in base.fit.get("interval", {}).items()]

    # The fitted deviations are the prior of the next fit.
    deviation = np.sqrt(np.diag(solution.covariance)[: len(NAMES)])
    lines += ["", "[fit.width]", *(f"{name} = {value:.3g}" for name, value in zip(NAMES, deviation, strict=True))]
    return "\n".join(lines) + "\n"
