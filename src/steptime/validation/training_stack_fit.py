"""Training stack fit: constants of training stacks from measured runs.

All stacks share one set of constants. Deviations from it have normal priors. They are factors on the speed of a stack, a chip
and a chip architecture. There are also factors on the attention rate of an architecture and the element-wise traffic of a
stack.

Residuals of log step times have heavy tails (Student's t), so a run with an unrecorded flag has little influence. Runs of one
source, model and chip share their errors. Their total weight is the square root of their number. The fit is the maximum a
posteriori estimate by Gauss-Newton.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from steptime.number_checks import Array
from steptime.training.training_layout import DEGREES, TrainingLayout
from steptime.training.training_stack import IDEAL, REFERENCE_YEAR, Constants, TrainingEngine, age_constants, decimal_year
from steptime.training.training_step import step_seconds
from steptime.validation.training_run_table import TrainingRun

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
    "tensor_overlap": (0.3, 0.7),
    "expert_overlap": (0.3, 0.7),
    "data_overlap": (0.6, 0.7),
    "seconds_per_layer": (2e-5, 0.7),
    "seconds_per_expert_layer": (3e-4, 0.7),
    "seconds_per_step": (0.05, 1.0),
    "yearly_gain": (0.05, 0.05),
    "expert_yearly_gain": (0.2, 0.1),
    "chip_departure": (0.5, 0.25),
    "power_exponent": (0.33, 0.1),
}
"""Prior value and deviation of each constant. The deviation is that of the logarithm, of the logit (`SHARES`), or of the value
itself (`PLAIN`)."""
SHARES: Final = ("tensor_overlap", "expert_overlap", "data_overlap", "scale_up_efficiency", "scale_out_efficiency")
PLAIN: Final = ("yearly_gain", "expert_yearly_gain", "chip_departure", "power_exponent")
NAMES: Final = tuple(PRIOR)
SPREADS: Final = (("stack", "", 0.2), ("chip", "", 0.04), ("architecture", "", 0.06),
                  ("architecture", "attention_efficiency", 0.25), ("stack", "memory_efficiency", 0.15))  # fmt: skip
"""Deviations by stack, chip and architecture: the constant ("": the whole step time) and the deviation of its logarithm."""
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


START: Final = np.array([to_free(name, PRIOR[name][0]) for name in NAMES])
WIDTH: Final = np.array([PRIOR[name][1] for name in NAMES])
# Kind ("stack", "chip", "architecture"), constant, and value of the kind.
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
    base: TrainingEngine = IDEAL
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
            key = (run.model, run.system.name, str(run.system.domains), run.system.chip.power_w, job, run.stack,
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

        # n runs of one source, model and chip have the total weight sqrt(n).
        cluster_sizes = Counter((run.source, run.model.name, run.system.chip.name) for run in self.runs)
        self.weights = np.array([cluster_sizes[run.source, run.model.name, run.system.chip.name] ** -0.5 for run in self.runs])

    def kinds(self, run: TrainingRun) -> dict[str, str]:
        """Return the stack, chip and architecture of a run.

        Args:
            run: Run.

        Returns:
            Values by kind.
        """
        chip = run.system.chip.name
        return {"stack": run.stack, "chip": chip, "architecture": self.architectures.get(chip, chip)}

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
    engine = replace(base, constants=older)
    seconds = step_seconds(group.run.model, job, group.run.system, engine, group.layout).total
    return np.asarray(np.log(seconds) - np.log(base.speed * chip.get("speed", 1.0)) - c.yearly_gain * years)


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
    free = believed.copy() if start is None else start.free.copy()
    differs = np.array([0.0 if start is None else start.differs.get(label, 0.0) for label in data.labels])
    constant_count = len(free)
    information = np.eye(constant_count + len(differs))
    for _ in range(rounds):
        logs, slopes = predicted(data, free, dict(zip(data.labels, differs, strict=True)), slopes=True)
        columns = [slopes[:, NAMES.index(name)] if name else np.ones(len(logs)) for _, name, _ in data.labels]
        x = np.hstack([slopes, data.member * np.array(columns).T.reshape(data.member.shape)])

        # Weights of Student's t: a run far from its prediction has little influence.
        off = data.logs - logs
        weight = data.weights * (FREEDOM + 1) / (FREEDOM + (off / SCATTER) ** 2)
        information = x.T @ (weight[:, None] * x) / SCATTER**2 + np.diag(np.concatenate([width**-2.0, data.widths**-2.0]))
        pull = x.T @ (weight * off) / SCATTER**2
        pull -= np.concatenate([(free - believed) / width**2, differs / data.widths**2])

        # Limit each step, because the model is not linear in the logarithms.
        step = np.clip(np.linalg.solve(information, pull), -0.4, 0.4)
        free, differs = free + step[:constant_count], differs + step[constant_count:]
        if np.abs(step).max() < 2e-3:
            break
    return Fitted(
        free=free, differs=dict(zip(data.labels, map(float, differs), strict=True)), covariance=np.linalg.inv(information)
    )


def left_out(
    runs: Sequence[TrainingRun], layouts: Sequence[TrainingLayout], architectures: Mapping[str, str],
    group: Callable[[TrainingRun], str], start: Fitted, *, rounds: int = 3,
) -> Array:  # fmt: skip
    """Cross-validate: predict each run with a fit without its group.

    Args:
        runs: Runs.
        layouts: Layout of each run.
        architectures: Architecture by chip.
        group: Function from a run to its group.
        start: Fit to start from.
        rounds: Gauss-Newton iterations of each fit.

    Returns:
        log(predicted / measured) of step times, of shape (runs,).
    """
    errors = np.full(len(runs), np.nan)
    labels = [group(run) for run in runs]
    for value in sorted(set(labels)):
        out = [place for place, label in enumerate(labels) if label == value]
        training_places = [place for place, label in enumerate(labels) if label != value]
        without = fit(
            Runs([runs[i] for i in training_places], [layouts[i] for i in training_places], architectures), start, rounds=rounds
        )
        test = Runs([runs[i] for i in out], [layouts[i] for i in out], architectures)
        errors[out] = predicted(test, without.free, without.differs, slopes=False)[0] - test.logs
    return errors
