r"""Bias correction from your own measured runs (an anchor).

Most of the error of a prediction is shared by the runs of a curve: the kernels that a release has for a model, its formats and
layout on a chip. `run_covariance` states how much two runs share, with variances that are estimated from public runs. Your runs
move a prediction the more, the more they share with it. One run moves its curve almost to it near its load and context, and
less with each doubling away. Other layouts, releases and models move less still.

With the posterior mean $\hat r$ of $\log(\text{measured} / \text{predicted})$, every step takes $e^{\hat r}$ times as long. Its
load is its number of decoding sequences. A step without any takes the usual load and context of your runs. First tokens have
their own factor, which replaces that of steps.

The 90 % range becomes $\hat r \pm q s$ where that is narrower than the range without runs (`run_covariance`). The range
contains a run that is far outside its prediction, because such a run widens it. The scale is at least 1,
so that runs that agree do not narrow the range by it.

Repeats, runs of one point, count as one observation: they measure the error of that point and their noise, and say nothing else
about other points. Unknown formats, or an unknown layout, share no level of the layout with any run.

A training step has its own quantity: its load is the number of sequences per step, its context their length, and the distance
in load is that in sequences and in chips.

References:
    docs/corrections.md and docs/training_corrections.md have the errors before and after one run of the same curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from steptime.errors import InputError, expect, one_line, short_repr
from steptime.number_checks import Array, Number
from steptime.physics.run_covariance import TRAINING, Covariance, read_covariances
from steptime.result_base import Result, Tabular, unit
from steptime.units import counted

# Runs that a correction uses: those that share the most, because each prediction evaluates the covariance with all of them.
MAX_RUNS: Final = 200
# What a correction multiplies, and what a run measured, by quantity.
QUANTITIES: Final = {"tpot": "steps", "ttft": "first tokens", TRAINING: "training steps"}
TIMES: Final = {"tpot": "time per token", "ttft": "time to first token", TRAINING: "time of a training step"}
# Runs that a sentence names, and the change below which an answer counts as unchanged.
MAX_NAMED: Final = 3
SMALL_CHANGE: Final = 0.02
# Share of runs that a 90 % range leaves out.
OUTSIDE_SHARE: Final = 0.1
LEFT_OUT: Final = unit("", "", left_out=True)


class Degrees(Protocol):
    """Parallel degrees of a layout (`physics.layout.Layout`), which may be arrays."""

    @property
    def tp(self) -> Number:
        """Tensor-parallel degree."""

    @property
    def pp(self) -> Number:
        """Pipeline stages."""

    @property
    def dp(self) -> Number:
        """Data-parallel ranks."""

    @property
    def ep(self) -> Number:
        """Expert-parallel degree."""

    @property
    def cp(self) -> Number:
        """Context-parallel degree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """Where a time is predicted: layout, sequences per replica that run at once, and mean context [tokens].

    A load or context of None, or a load of 0, stands for the usual one of the runs. Serving has no chips: its load is that of
    a replica. A training step has the load of all its chips.
    """

    layout: Degrees | None = None
    load: Number | None = None
    context: Number | None = None
    chips: Number = 1.0


# The layout, load and context of the runs themselves.
USUAL: Final = OperatingPoint()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasuredRun(Result):
    """One run with its measured over predicted times, and the properties that it may share with other runs."""

    name: str = field(metadata=unit("", "id of the run"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    version: str = field(default="", metadata=unit("", "release of the engine; its month where the version is unknown"))
    formats: tuple[str, ...] = field(
        default=(), metadata=unit("", "formats of dense layers and of routed experts, or settings of a training step")
    )
    tp: int = field(default=1, metadata=unit("", "tensor-parallel degree"))
    pp: int = field(default=1, metadata=unit("", "pipeline stages"))
    dp: int = field(default=1, metadata=unit("", "data-parallel ranks"))
    ep: int = field(default=1, metadata=unit("", "expert-parallel degree"))
    cp: int = field(default=1, metadata=unit("", "context-parallel degree"))
    chips: float = field(default=1.0, metadata=unit("", "chips of a training step; 1 for serving"))
    load: float = field(default=1.0, metadata=unit("", "sequences of a replica that run at once, or of a training step"))
    context: float = field(default=1.0, metadata=unit("tokens", "mean context of a sequence"))
    tpot: float | None = field(
        default=None, metadata=unit("", "measured over predicted time per token; null: not measured", key="tpot")
    )
    ttft: float | None = field(
        default=None, metadata=unit("", "measured over predicted time to first token; null: not measured", key="ttft")
    )
    training_step: float | None = field(
        default=None, metadata=unit("", "measured over predicted time of a training step; null: not measured")
    )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the run and its ratios.

        Returns:
            A title and a table of texts.
        """
        ratios = {name: f"{getattr(self, name):.3g} times the prediction" for name in QUANTITIES if getattr(self, name)}
        return f"Run {self.name} of {self.model} on {self.system}", ratios


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Factor(Result):
    """The correction of one predicted quantity at the layouts, loads and contexts of the runs (geometric means)."""

    runs: int = field(metadata=unit("", "number of measured runs"))
    ratio: float = field(metadata=unit("", "measured time divided by predicted time, median of the runs"))
    factor: float = field(metadata=unit("", "factor on predictions at the load of the runs"))
    low: float = field(metadata=unit("", "lower end of the 90 % range of measured over corrected time there"))
    high: float = field(metadata=unit("", "upper end of the 90 % range of measured over corrected time there"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the factor and the runs behind it.

        Returns:
            A title and a table of texts.
        """
        return f"Factor {self.factor:.3g}", {
            "from": f"{counted(self.runs, 'run')}, measured at {self.ratio:.3g} times the prediction"
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Anchor(Result):
    """The correction of one model on one system with one engine, from your own runs.

    Without measurements of a time, `tpot` or `ttft` has the value None. `usual_load` and `usual_context` replace those of the
    runs where a question has no load or context.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "runs": unit("", "ids of the runs"),
        "tpot": unit("", "correction of the time per token, which applies to every step; null: none", key="tpot"),
        "ttft": unit("", "correction of the time to first token; null: the same as steps", key="ttft"),
        TRAINING: unit("", "correction of the time of a training step; null: none"),
    }

    source: str = field(metadata=unit("", "files with the runs"))
    is_stored: bool = field(default=False, metadata=unit("", "whether `steptime anchors` stores the runs"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine that predicted the runs"))
    version: str = field(default="", metadata=unit("", "version of the engine; empty where the runs do not state it"))
    formats: tuple[str, ...] = field(
        default=(), metadata=unit("", "formats of dense layers and of routed experts; empty: unknown")
    )
    measured: tuple[MeasuredRun, ...] = field(metadata=LEFT_OUT)
    outside_range: tuple[str, ...] = field(
        default=(), metadata=unit("", "ids of runs with a measured time outside the 90 % range of its prediction")
    )
    far_outside: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    explanations: tuple[str, ...] = field(
        default=(), metadata=unit("", "what may explain runs outside the range, one text per run, farthest run first")
    )
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "runs that are not used, each with the reason"))
    usual_load: float | None = field(default=None, metadata=LEFT_OUT)
    usual_context: float | None = field(default=None, metadata=LEFT_OUT)

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the runs."""
        return tuple(run.name for run in self.measured)

    @property
    def tpot(self) -> Factor | None:
        """The correction of the time per token."""
        return _summary(self, "tpot")

    @property
    def ttft(self) -> Factor | None:
        """The correction of the time to first token."""
        return _summary(self, "ttft")

    @property
    def training_step(self) -> Factor | None:
        """The correction of the time of a training step."""
        return _summary(self, TRAINING)

    @property
    def has_group(self) -> bool:
        """Whether one of the runs is of this model and system."""
        return any((run.model, run.system) == (self.model, self.system) for run in self.measured)

    def has(self, quantity: str) -> bool:
        """Whether a run measured a quantity.

        Args:
            quantity: "tpot", "ttft" or "training_step".

        Returns:
            True or false.
        """
        return any(getattr(run, quantity) is not None for run in self.measured)

    def correction(self, quantity: str, point: OperatingPoint = USUAL) -> tuple[Array, Array]:
        """Return the correction of a quantity at an operating point.

        Args:
            quantity: "tpot", "ttft" or "training_step".
            point: Layout, load and context, which may be arrays that broadcast.

        Returns:
            Logarithm of the factor on the prediction, and half of the 90 % range in logarithms; 0 and infinity where no run
            measured the quantity.
        """
        return self.log_factor(quantity, point), self.half_width(quantity, point)

    def log_factor(self, quantity: str, point: OperatingPoint = USUAL) -> Array:
        """Return the logarithm of the factor on a prediction.

        Args:
            quantity: "tpot", "ttft" or "training_step".
            point: Layout, load and context, which may be arrays that broadcast.

        Returns:
            Logarithms; 0 where no run measured the quantity.
        """
        if not self.has(quantity):
            return np.asarray(0.0)
        k, weights = self._covariances(quantity, point)
        return k @ weights

    def _covariances(self, quantity: str, point: OperatingPoint) -> tuple[Array, Array]:
        """Return the covariance with each point of the runs, in the last axis, and $K^{-1} r$."""
        solved = _solved(self.measured, quantity)
        load, context = self._coordinates(point, solved.points)
        shared = self._shared(solved.points, point.layout)
        chips = np.log2(np.asarray(point.chips, dtype=np.float64))
        squares = (
            np.square(load[..., None] - solved.load) + np.square(chips[..., None] - solved.chips),
            np.square(context[..., None] - solved.context),
        )
        return solved.covariance.between(shared, solved.covariance.nearness(*squares)), solved.weights

    def _coordinates(self, point: OperatingPoint, usable: tuple[MeasuredRun, ...]) -> tuple[Array, Array]:
        """Return load and context in doublings; the usual ones where a point has none."""
        same = [run for run in usable if (run.model, run.system) == (self.model, self.system)] or usable
        load = self.usual_load or float(np.exp(np.mean(np.log([max(run.load, 1.0) for run in same]))))
        context = self.usual_context or float(np.exp(np.mean(np.log([max(run.context, 1.0) for run in same]))))
        sequences = np.asarray(load if point.load is None else point.load, dtype=np.float64)
        decodes = sequences > 0
        sequences = np.where(decodes, np.maximum(sequences, 1.0), load)
        if point.context is None or self.usual_context is not None:
            tokens: Any = context
        else:
            tokens = np.where(decodes, np.maximum(point.context, 1.0), context)
        return np.log2(sequences), np.log2(np.broadcast_to(tokens, np.broadcast_shapes(np.shape(tokens), sequences.shape)))

    def _shared(self, usable: tuple[MeasuredRun, ...], layout: Degrees | None) -> dict[str, Any]:
        """Return whether each run shares the levels of the covariance with a layout; the last axis has the runs."""
        model = np.array([run.model == self.model for run in usable])
        group = model & np.array([run.system == self.system for run in usable])
        release = group & np.array([run.version == self.version for run in usable])
        # As in the covariance between runs: formats and all degrees are equal. Unknown ones equal nothing.
        has_layout = layout is not None and bool(self.formats)
        same: Any = group & np.array([has_layout and run.formats == self.formats for run in usable])
        if layout is not None:
            for name in ("tp", "pp", "dp", "ep", "cp"):
                degrees = np.array([getattr(run, name) for run in usable])
                same = same & (np.asarray(getattr(layout, name))[..., None] == degrees)
        return {"model": model, "group": group, "release": release, "layout": same, "layout_release": same & release}

    def step_factor(self, point: OperatingPoint = USUAL) -> Array:
        """Return the factor on the time of steps.

        Args:
            point: Layout, load and context.

        Returns:
            Factors, 1 without a measured time per token.
        """
        factor: Array = np.exp(self.log_factor("tpot", point))
        return factor

    def wait_factor(self, point: OperatingPoint = USUAL) -> Array:
        """Return the factor on times to first token, in addition to the factor on steps.

        Args:
            point: Layout, load and context.

        Returns:
            Factors, 1 without a measured time to first token.
        """
        if not self.has("ttft"):
            return np.asarray(1.0)
        factor: Array = np.exp(self.log_factor("ttft", point) - self.log_factor("tpot", point))
        return factor

    def half_width(self, quantity: str, point: OperatingPoint = USUAL) -> Array:
        """Return half of the 90 % range of a corrected time, in logarithms.

        Args:
            quantity: "tpot", "ttft" or "training_step".
            point: Layout, load and context.

        Returns:
            Logarithms; infinity without a measurement.
        """
        if not self.has(quantity):
            return np.asarray(np.inf)
        return _solved(self.measured, quantity).half_width(self._covariances(quantity, point)[0])

    def scale(self, quantity: str) -> float:
        """Return how much wider the range is because the runs are far from their predictions.

        Args:
            quantity: "tpot", "ttft" or "training_step".

        Returns:
            Factor of at least 1.
        """
        if not self.has(quantity):
            return 1.0
        return _solved(self.measured, quantity).scale

    @property
    def group(self) -> str:
        """The model, system and engine of the correction, as text."""
        return f"{self.model} on {self.system} with engine {self.engine}"

    def applied(self, point: OperatingPoint) -> dict[str, float]:
        """Return the factors on the times of an answer.

        Args:
            point: Layout, mean load and mean context of the answer.

        Returns:
            Factors by quantity: on steps for "tpot", and on first tokens for "ttft"; only of measured quantities.
        """
        return {name: float(np.exp(self.log_factor(name, point))) for name in QUANTITIES if self.has(name)}

    def text(self, applied: Mapping[str, float] | None) -> str:
        """Say how an answer was corrected, and by which runs.

        Args:
            applied: Factors on the times of the answer, by quantity; None for an answer at many loads.

        Returns:
            Sentences.
        """
        hint = " --no-anchor ignores these runs." if self.is_stored else ""
        parts = [line.partition(": ") for line in self.left_out]
        exclusions = "".join(one_line(f" Run {short_repr(name)} is not used: {reason}.") for name, _, reason in parts)
        if not self.has_group and applied is not None and all(abs(factor - 1) < SMALL_CHANGE for factor in applied.values()):
            return f"Your runs are of other models or systems; the prediction is unchanged.{hint}{exclusions}"
        count = len(self.measured)
        whose = f"{count:,} run{'s' * (count != 1)} that you measured ({self.source}{', ' * bool(self.version)}{self.version})"
        if applied is None:
            factors = "each step by its load"
        else:
            by_quantity = [f"{QUANTITIES[name]} x {factor:.2f}" for name, factor in applied.items()] or ["steps x 1"]
            factors = f"{', '.join(by_quantity)} here"
        quantities = [name for name in QUANTITIES if self.has(name)] if applied is None else applied
        caution = "" if self.has_group else " None of them is of this model and system, so that they say little."
        ratios = "".join(f" {self._worst(name)}" for name in quantities) if self.has_group else ""
        return one_line(f"Corrected by {whose}: {factors}.{ratios}{caution}{hint}") + exclusions

    def _worst(self, quantity: str) -> str:
        """Return the ratios of the runs of the group that are the furthest from their predictions, with their loads."""
        same = [run for run in self.measured if (run.model, run.system) == (self.model, self.system)]
        ratios = {run: ratio for run in same if (ratio := getattr(run, quantity)) is not None}
        worst = sorted(ratios, key=lambda run: -abs(math.log(ratios[run])))[:MAX_NAMED]
        if not worst:
            return f"No run of this model and system measured {QUANTITIES[quantity]}."
        if abs(math.log(ratios[worst[0]])) < SMALL_CHANGE:
            return f"Measured {TIMES[quantity]}: as predicted."
        listed = ", ".join(f"{ratios[run]:.2f} ({run.name}, {_place(run, quantity)})" for run in worst)
        further = f", and {len(ratios) - len(worst):,} closer to 1" if len(ratios) > len(worst) else ""
        return f"Measured over predicted {TIMES[quantity]}: {listed}{further}."

    @property
    def warning(self) -> str:
        """What to check where runs are far outside their ranges, or more runs are outside than expected; "" otherwise."""
        outside, runs = len(self.outside_range), len(self.measured)
        expected = OUTSIDE_SHARE * runs + 2 * math.sqrt(OUTSIDE_SHARE * (1 - OUTSIDE_SHARE) * runs)
        if outside > expected:
            subject = "Your run lies" if runs == 1 else f"{outside:,} of your {runs:,} runs lie"
            general = "" if self.explanations else " Check tp, weight format, prefix cache, sampling and version."
            words = [f"{subject} outside the 90 % range of the prediction.{general}", *self.explanations[:MAX_NAMED]]
        else:
            subjects = tuple(f"Run {short_repr(name)} " for name in self.far_outside)
            words = [text for text in self.explanations if text.startswith(subjects)][:MAX_NAMED]
        return one_line(" ".join(words))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the group of the runs and the factors.

        Returns:
            A title and a table of texts.
        """
        factors = {
            name: f"measured at {factor.ratio:.3g} times the prediction, factor {factor.factor:.3g}"
            for name, factor in (
                ("time per token", self.tpot),
                ("first token", self.ttft),
                ("training step", self.training_step),
            )
            if factor is not None
        }
        return f"Anchor: {counted(len(self.measured), 'run')} of {self.group}, from {self.source}", factors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """The points of some runs, and the solution for their errors.

    points: one run of each. place: point of each run with the quantity. load, context, chips: of points [doublings].
    covariance: with the noise of the repeats. matrix: covariance $C$ between points, without noise.
    inverse: $K^{-1}$. weights: $K^{-1} r$.
    scale: factor on standard deviations, at least 1.
    """

    points: tuple[MeasuredRun, ...]
    place: Array
    load: Array
    context: Array
    chips: Array
    covariance: Covariance
    matrix: Array
    inverse: Array
    weights: Array
    scale: float

    def half_width(self, k: Array) -> Array:
        """Return half of the 90 % range of a further run with the covariance `k` with each point, in logarithms."""
        variance = self.covariance.total - np.sum((k @ self.inverse) * k, axis=-1)
        # The asked point and the runs share one covariance, so that a run leaves at least its noise.
        assert not np.any(variance <= 0), "the covariance of runs is not positive definite"
        half: Array = self.covariance.quantile * np.sqrt(variance) * self.scale
        return half


def _place(run: MeasuredRun, quantity: str) -> str:
    """Return where a run was measured, in words."""
    return f"on {counted(int(run.chips), 'chip')}" if quantity == TRAINING else f"{run.load:,.3g} at once"


def _point(run: MeasuredRun) -> tuple[Any, ...]:
    """Return the properties that are equal in repeats of a run."""
    degrees = (run.tp, run.pp, run.dp, run.ep, run.cp, run.chips)
    return (run.model, run.system, run.version, run.formats, *degrees, max(run.load, 1.0), max(run.context, 1.0))


@lru_cache(maxsize=256)
def _solved(runs: tuple[MeasuredRun, ...], quantity: str) -> _Solved:
    r"""Return the solution for the runs with a quantity.

    The $m_i$ repeats of point $i$ have the mean error $r_i$, with the noise $\sigma^2_{noise} / m_i$. The sum of squares of
    repeats around their means raises the noise as the scale of `run_covariance` does, with their own degrees of freedom.
    """
    usable = tuple(run for run in runs if getattr(run, quantity) is not None)
    keys = [_point(run) for run in usable]
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    points = tuple(usable[first[key]] for key in dict.fromkeys(keys))
    place = np.array([[*dict.fromkeys(keys)].index(key) for key in keys])
    logs, repeats = np.log([getattr(run, quantity) for run in usable]), np.bincount(place)
    means = np.bincount(place, logs) / repeats

    prior = read_covariances()[quantity]
    square_of_repeats = float(np.sum(np.square(logs - means[place])) / prior.noise)
    noisier = max(1.0, float(prior.scale(square_of_repeats, len(usable) - len(points))) ** 2)
    covariance = replace(prior, noise=prior.noise * noisier)
    load, context, chips = (np.log2([max(getattr(run, name), 1.0) for run in points]) for name in ("load", "context", "chips"))
    matrix = _matrix(points, covariance, load, context, chips)
    inverse = np.linalg.inv(matrix + np.diag(covariance.noise / repeats))
    weights = inverse @ means
    scale = max(1.0, float(covariance.scale(float(means @ weights), len(points))))
    return _Solved(
        points=points, place=place, load=load, context=context, chips=chips, covariance=covariance, matrix=matrix,
        inverse=inverse, weights=weights, scale=scale,
    )  # fmt: skip


def _matrix(runs: tuple[MeasuredRun, ...], covariance: Covariance, load: Array, context: Array, chips: Array) -> Array:
    """Return the covariance of the errors of runs, without noise."""

    def equal(key: Any) -> Array:
        labels = np.unique([repr(key(run)) for run in runs], return_inverse=True)[1].ravel()
        same: Array = labels[:, None] == labels[None]
        return same

    group = equal(lambda run: (run.model, run.system))
    release = group & equal(lambda run: run.version)
    layout = group & equal(lambda run: (run.formats, run.tp, run.pp, run.dp, run.ep, run.cp))
    shared = {
        "model": equal(lambda run: run.model), "group": group, "release": release, "layout": layout,
        "layout_release": layout & release,
    }  # fmt: skip
    squares = [np.square(x[:, None] - x[None]) for x in (load, context, chips)]
    near = covariance.nearness(squares[0] + squares[2], squares[1])
    return covariance.between(shared, near)


@lru_cache(maxsize=256)
def _summary(anchor: Anchor, quantity: str) -> Factor | None:
    """Return the correction at the points of the runs of the group, or at those of all runs without such a group."""
    if not anchor.has(quantity):
        return None
    usable, solved = [run for run in anchor.measured if getattr(run, quantity) is not None], _solved(anchor.measured, quantity)
    group = [i for i, run in enumerate(usable) if (run.model, run.system) == (anchor.model, anchor.system)]
    same = [usable[i] for i in group] or usable
    if group:
        # Each run has its own formats, layout and release.
        k = solved.matrix[solved.place[group]]
        factors, halves = k @ solved.weights, solved.half_width(k)
    else:
        load, context, chips = (np.array([getattr(run, name) for run in same]) for name in ("load", "context", "chips"))
        unbound = replace(anchor, usual_load=None, usual_context=None)
        factors, halves = unbound.correction(quantity, OperatingPoint(load=load, context=context, chips=chips))
    ratio = math.exp(float(np.median(np.log([getattr(run, quantity) for run in same]))))
    factor, half = float(np.mean(factors)), float(np.mean(halves))
    return Factor(runs=len(usable), ratio=ratio, factor=math.exp(factor), low=math.exp(-half), high=math.exp(half))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Anchors(Tabular):
    """The corrections of all groups in some files; as a table, one row per group."""

    SCHEMA: ClassVar[str] = "steptime.anchors/3"

    source: str = field(metadata=unit("", "files with the runs"))
    anchors: tuple[Anchor, ...] = field(metadata=unit("", "one correction per model, system, engine and version"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of groups and their factors.

        Returns:
            A title and a table of texts.
        """
        factors = {anchor.group: ", ".join(anchor.headline()[1].values()) for anchor in self.anchors}
        return f"Anchors of {len(self.anchors):,} group{'s' * (len(self.anchors) != 1)}, from {self.source}", factors

    def columns(self) -> dict[str, Any]:
        """Return one row per group.

        Returns:
            Lists by column name, one entry per group.
        """
        names = ("source", "model", "system", "engine", "version")
        columns: dict[str, Any] = {name: [getattr(anchor, name) for anchor in self.anchors] for name in names}
        columns["runs"] = [len(anchor.runs) for anchor in self.anchors]
        for name in QUANTITIES:
            factors = [getattr(anchor, name) for anchor in self.anchors]
            columns[f"{name}_ratio"] = [None if anchor is None else anchor.ratio for anchor in factors]
            columns[f"{name}_factor"] = [None if anchor is None else anchor.factor for anchor in factors]
        return columns


def select_anchor(anchors: Anchors | Anchor, *, model: str, system: str, engine: str, formats: tuple[str, ...] = ()) -> Anchor:
    """Return the correction for a model, system and engine.

    All runs of the engine count, each the more, the more it shares with the model and system. The release is that of the newest
    runs of the model on the system.

    Args:
        anchors: Corrections of several groups, or of one.
        model: Name of the model.
        system: Name of the system.
        engine: Name of the engine.
        formats: Formats of dense layers and of routed experts; by default unknown.

    Returns:
        The correction of the group.

    Raises:
        InputError: The runs belong to other engines; the message names both.
    """
    expect("an anchor", anchors, (Anchors, Anchor), "what st.load_anchor gives")
    all_ = anchors.anchors if isinstance(anchors, Anchors) else (anchors,)
    fitting = [anchor for anchor in all_ if anchor.engine == engine]
    if not fitting:
        # Two groups are enough to see the mismatch; a file may have dozens.
        groups = list(dict.fromkeys(anchor.group for anchor in all_))
        remainder = f" and {len(groups) - 2:,} more" if len(groups) > 2 else ""
        target = f"{model} on {system} with engine {engine}"
        raise InputError(
            f"{anchors.source}: has no runs of {target}, got runs of {', and of '.join(groups[:2])}{remainder}; "
            f"use runs of the same engine; engine={engine} after the file says that it served them"
        )

    # Runs of the same group come last, and the newest of these at the end.
    fitting.sort(key=lambda anchor: (anchor.model == model, anchor.system == system))
    last = fitting[-1]
    is_group = (last.model, last.system) == (model, system)
    measured = tuple(dict.fromkeys(run for anchor in fitting for run in anchor.measured))
    return replace(
        last,
        model=model,
        system=system,
        version=last.version if is_group else "",
        formats=formats,
        source=", ".join(dict.fromkeys(anchor.source for anchor in reversed(fitting))),
        measured=measured[-MAX_RUNS:],
        outside_range=tuple(dict.fromkeys(name for anchor in fitting for name in anchor.outside_range)),
        far_outside=tuple(dict.fromkeys(name for anchor in fitting for name in anchor.far_outside)),
        explanations=tuple(dict.fromkeys(words for anchor in reversed(fitting) for words in anchor.explanations)),
        left_out=tuple(dict.fromkeys(words for anchor in fitting for words in anchor.left_out)),
    )
