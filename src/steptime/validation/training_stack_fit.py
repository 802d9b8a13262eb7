r"""Constants of training stacks, fitted to measured runs.

One set of constants is shared by all stacks; what differs is drawn from normal distributions about it: a factor on the speed
of a stack, of a chip and of a chip's architecture, the rate of attention kernels of an architecture, the element-wise traffic
of a stack. Residuals of log step times have heavy tails (Student's t), so that a run with a flag that nobody recorded moves
little. Runs of one source, model and chip weigh as much as the root of their number, since they err together. Maximum a
posteriori by Gauss-Newton.
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
"""Where each constant is believed to be before any run, and how far it may be off: of its logarithm, of its logit for shares
that
overlap, of itself for gains and exponents."""
SHARES: Final = ("tensor_overlap", "expert_overlap", "data_overlap", "scale_up_efficiency", "scale_out_efficiency")
PLAIN: Final = ("yearly_gain", "expert_yearly_gain", "chip_departure", "power_exponent")
NAMES: Final = tuple(PRIOR)
SPREADS: Final = (("stack", "", 0.2), ("chip", "", 0.04), ("architecture", "", 0.06),
                  ("architecture", "attention_efficiency", 0.25), ("stack", "memory_efficiency", 0.15))  # fmt: skip
"""What differs by stack, chip and architecture: of which constant ("": all of the time), and how far, of its logarithm."""
# of the logarithm of step times that nothing recorded explains: "noise floor" of repeated runs, 2 to 6 %
SCATTER: Final = 0.06
# of Student's t
FREEDOM: Final = 3.0
STEP: Final = 1e-3
MOST_ROUNDS: Final = 12


def to_free(name: str, value: float) -> float:
    """Return a constant as what is fitted: a logarithm, a logit, or itself."""
    if name in SHARES:
        return float(np.log(value / (1 - value)))
    return value if name in PLAIN else float(np.log(value))


def from_free(name: str, value: Any) -> Any:
    """Return a constant from what is fitted."""
    if name in SHARES:
        return 1 / (1 + np.exp(-value))
    return value if name in PLAIN else np.exp(value)


START: Final = np.array([to_free(name, PRIOR[name][0]) for name in NAMES])
WIDTH: Final = np.array([PRIOR[name][1] for name in NAMES])
# kind, constant, value
Label = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fit: the free constants, what differs by label, and their covariance."""

    free: Array
    differs: Mapping[Label, float]
    covariance: Array

    def constants(self) -> dict[str, float]:
        """Return the shared constants."""
        return {name: float(from_free(name, value)) for name, value in zip(NAMES, self.free, strict=True)}


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs that one call predicts: all that is no number is alike in them."""

    run: TrainingRun
    layout: TrainingLayout
    seq: Array
    batch: Array
    places: Array
    year: Array


@dataclass(slots=True)
class Runs:
    """Runs to fit, in groups; `kinds` say by which labels they differ."""

    runs: Sequence[TrainingRun]
    layouts: Sequence[TrainingLayout]
    architectures: Mapping[str, str]
    spreads: tuple[tuple[str, str, float], ...] = SPREADS
    # whose factors for chips hold, where they are not fitted
    base: TrainingEngine = IDEAL
    groups: list[_Group] = field(init=False)
    labels: list[Label] = field(init=False)
    member: Array = field(init=False)
    widths: Array = field(init=False)
    weights: Array = field(init=False)
    logs: Array = field(init=False)

    def __post_init__(self) -> None:
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
        cluster_sizes = Counter((run.source, run.model.name, run.system.chip.name) for run in self.runs)
        self.weights = np.array([cluster_sizes[run.source, run.model.name, run.system.chip.name] ** -0.5 for run in self.runs])

    def kinds(self, run: TrainingRun) -> dict[str, str]:
        """Return the stack, chip and architecture of a run."""
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
    """Return the logarithms of predicted step times, and their slopes by the free constants where they are asked for."""
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
    """Return (points, runs) logarithms of step times."""
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
    """Return the constants that the runs make most likely; prior: where the free constants are believed, and how far off."""
    believed, width = prior
    free = believed.copy() if start is None else start.free.copy()
    differs = np.array([0.0 if start is None else start.differs.get(label, 0.0) for label in data.labels])
    constant_count = len(free)
    information = np.eye(constant_count + len(differs))
    for _ in range(rounds):
        logs, slopes = predicted(data, free, dict(zip(data.labels, differs, strict=True)), slopes=True)
        columns = [slopes[:, NAMES.index(name)] if name else np.ones(len(logs)) for _, name, _ in data.labels]
        x = np.hstack([slopes, data.member * np.array(columns).T.reshape(data.member.shape)])
        off = data.logs - logs
        weight = data.weights * (FREEDOM + 1) / (FREEDOM + (off / SCATTER) ** 2)
        information = x.T @ (weight[:, None] * x) / SCATTER**2 + np.diag(np.concatenate([width**-2.0, data.widths**-2.0]))
        pull = x.T @ (weight * off) / SCATTER**2
        pull -= np.concatenate([(free - believed) / width**2, differs / data.widths**2])
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
    """Return the logarithms of predicted over measured step times, each run's by a fit without any of its group."""
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
