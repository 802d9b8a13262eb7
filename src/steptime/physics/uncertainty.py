r"""How far off a prediction may be: the 90 % range of a time, from what was measured and from how well constants are known.

**Scatter.** Of the runs whose model-system pair was left out of a fit, 90 % lie between two factors $e^{-q_-}$ and $e^{q_+}$ on
their prediction. An engine file holds them by regime, for time per token and time to first token.

**Constants.** With the gradient $g = \partial \log f / \partial \log \theta$ of a time $f$ and the covariance $\Sigma$ of the
logarithms of the fitted constants $\theta$, $\log f$ has the variance $g^T \Sigma g$. The errors of left-out runs hold the mean
$\bar v$ of it over the fitted runs already, so that only what exceeds it widens the range:

$$ w_\pm = \sqrt{q_\pm^2 + z^2 \max(0, g^T \Sigma g - \bar v)}, \qquad f e^{-w_-} \le t \le f e^{w_+} $$

A step like those measured gets the interval of left-out runs; one that rests on a badly known constant gets a wider one. On
chips of a vendor of which no run was fitted, and for an engine without a fit, the range is at least `WIDE`. Runs of one's own
(`anchor`) narrow the scatter, not what a step's own constants or its distance from what was measured add. The ideal engine is a
bound and no prediction: it has no range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.hardware.system import System
from steptime.hardware.what_if import is_scalar
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import Array, Number
from steptime.physics.bias_correction import Anchor, Anchors
from steptime.physics.engine import IDEAL, Engine, anchored, constant, engine_for, with_constants
from steptime.physics.extrapolation import distances, widening
from steptime.physics.layout import NAMES, Layout
from steptime.physics.step import Step, first_step, mixed_step

Z90 = 1.645  # standard deviations between which 90 % of a normal distribution lie
WIDE = (0.5, 2.0)  # of an engine without a fit, or of chips that were never measured
REGIMES = ("decode", "mixed")  # most of the time goes to decode, or a good part to others' prompts
LEFT_OUT, DRAFTED, POOLS = "left_out", "drafted", "pools"  # runs of which `fit.held` tells how many lay in their range
PREFILL_SHARE = 0.15  # of a token's time from which a run is "mixed"
NUDGE = 1e-4  # of a constant's logarithm, for differences


def latency_regime(prefill_share: Number) -> Any:
    """Return the regime of a time of which `prefill_share` goes to prompts.

    >>> latency_regime(np.array([0.0, 0.5])).tolist()
    ['decode', 'mixed']
    """
    return np.where(np.asarray(prefill_share) > PREFILL_SHARE, REGIMES[1], REGIMES[0])


def half_width(scatter: Number, excess: Number) -> Number:
    r"""Half of a 90 % range in logarithms: $\sqrt{q^2 + z^2 \max(0, e)}$, for one of its sides.

    scatter $q$ of left-out runs, excess $e$ of the constants' variance over that of the fitted runs; all broadcast.

    >>> float(half_width(0.3, -1.0)), round(float(half_width(0.3, 0.04)), 3)
    (0.3, 0.445)
    """
    return np.sqrt(np.square(scatter) + Z90**2 * np.maximum(excess, 0.0))


def has_range(engine: Engine) -> bool:
    """Whether an engine predicts, and so may be off; the ideal one is a bound."""
    return engine.name != IDEAL.name


def _nudged(engine: Engine, dimensions: int) -> Engine:
    """Return the engine with constants of shape (1 + constants, 1, ...): as they are, then each fitted one a little larger."""
    names = engine.fit.get("names", ())
    table = np.exp(NUDGE * np.vstack([np.zeros(len(names)), np.eye(len(names))]))
    shape = (-1,) + (1,) * dimensions
    return with_constants(engine, {n: (constant(engine, n) * table[:, i]).reshape(shape) for i, n in enumerate(names)})


def _gradient(values: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes: Array = np.nan_to_num((np.log(values[1:]) - np.log(values[0])) / NUDGE, posinf=0.0, neginf=0.0)
    return slopes


def log_gradient(function: Callable[[Engine], Number], engine: Engine, *, dimensions: int = 0) -> Array:
    """Return d log(function) / d log(constant) of each fitted constant of the engine: shape (constants, ...).

    One evaluation: `function` gets an engine whose constants are arrays with a leading axis, and `dimensions` axes of length
    one for the axes of its other input.

    >>> engine = Engine(name="a", fit={"names": ["memory_efficiency", "seconds_per_step"]})
    >>> log_gradient(lambda e: 3 / e.kernels.memory_efficiency, engine).round(6).tolist()
    [-1.0, 0.0]
    """
    return _gradient(_rows(function(_nudged(engine, dimensions)), engine, dimensions))


def _rows(values: Number, engine: Engine, dimensions: int) -> Array:
    """Return values with a row for each nudged engine, also where they depend on no constant."""
    count = 1 + len(engine.fit.get("names", ()))
    shape = np.shape(values)
    inner = shape[1:] if len(shape) > dimensions else shape
    return np.broadcast_to(values, (count, *inner))


def parameter_variance(gradient: Array, engine: Engine) -> Array:
    """Variance of log(f) that the constants' covariance brings about: gradient of shape (constants, ...) -> (...)."""
    covariance = np.asarray(engine.fit.get("covariance", np.zeros((len(gradient), len(gradient)))))
    variance: Array = np.maximum(np.einsum("i...,ij,j...->...", gradient, covariance, gradient), 0.0)
    return variance


def with_variances(
    function: Callable[[Engine], tuple[Number, ...]], engine: Engine, *, dimensions: int = 0
) -> list[tuple[Array, Array]]:
    """Return each value that `function` gives for the engine with the variance of its logarithm, from one evaluation."""
    tables = [_rows(values, engine, dimensions) for values in function(_nudged(engine, dimensions))]
    return [(table[0], parameter_variance(_gradient(table), engine)) for table in tables]


def measured_on(engine: Engine, system: System) -> bool:
    """Whether an engine was fitted to runs on chips of this vendor, as far as its file says."""
    vendors = engine.fit.get("vendors")
    return vendors is None or system.chip.vendor in vendors


def factors(
    engine: Engine,
    quantity: str,
    regime: Number | str,
    *,
    variance: Number | None = None,
    system: System | None = None,
    wider: tuple[Number, Number] = (0.0, 0.0),
) -> tuple[Number, Number]:
    """Return the factors on a prediction between which 90 % of measured values are expected: at most 1, at least 1.

    quantity: "tpot" (also of a step) or "ttft"; regime: of `REGIMES`; variance: `parameter_variance` of the prediction, by
    default that of the fitted runs; system: where it runs; wider: logarithms that distance from what was measured adds to both
    sides (`distance`). All broadcast.
    """
    table = engine.fit.get("interval", {}).get(quantity, {})
    usual = _by_regime(engine.fit.get("parameter_variance", {}).get(quantity, {}), 0.0, regime)
    remaining_width = (
        1.0 if engine.anchor is None else engine.anchor.width(quantity)
    )  # of the scatter; own runs tell the rest (`anchor`)
    low, high = (_by_regime({r: f[side] for r, f in table.items()}, WIDE[side], regime) ** remaining_width for side in (0, 1))
    excess = 0.0 if variance is None else variance - usual
    low = np.exp(-np.hypot(half_width(np.maximum(-np.log(low), 0.0), excess), wider[0]))
    high = np.exp(np.hypot(half_width(np.maximum(np.log(high), 0.0), excess), wider[1]))
    if system is not None and not measured_on(engine, system):
        low, high = np.minimum(low, WIDE[0] ** remaining_width), np.maximum(high, WIDE[1] ** remaining_width)
    return low, high


def interval_coverage_words(engine: Engine, system: System, *, drafts: bool, pools: bool) -> tuple[str, ...]:
    """Say how many measured times per token lay in their 90 % range: of all left-out runs, and of those of this kind.

    Nothing for an engine that was not fitted by steptime's own runs, or with runs of one's own.
    """
    table = engine.fit.get("held", {})
    if not table or engine.anchor is not None:
        return ()
    vendor = system.chip.vendor
    is_other_vendor = len(engine.fit.get("vendors", ())) > 1 and vendor != "NVIDIA"
    words = []
    for kind, is_relevant, label in (
        (LEFT_OUT, True, "left-out runs"),
        (vendor, is_other_vendor, f"on {vendor}'s chips"),
        (DRAFTED, drafts and not pools, "with drafts"),
        (POOLS, pools, "in pools of their own"),
    ):
        if is_relevant and kind in table:
            share, runs = table[kind]
            words.append(f"{share:.0%} of {runs:,.0f} {label}")
        elif is_relevant and kind != vendor:
            words.append(f"none {label} was measured with {engine.name}")
    return tuple(words)


def widest(engine: Engine, system: System, wider: tuple[Number, Number] = (0.0, 0.0)) -> tuple[float, float]:
    """Return the factors of the 90 % range of a time per token whatever its regime: the lowest and the highest.

    wider: by how much distance from what was measured widens it, in logarithms.
    """
    low, high = factors(engine, "tpot", np.array(REGIMES), system=system, wider=wider)
    return float(np.min(low)), float(np.max(high))


def _by_regime(table: Mapping[str, float], default: float, regime: Number | str) -> Number:
    decode, mixed = (table.get(name, default) for name in REGIMES)
    return np.where(np.asarray(regime) == REGIMES[1], mixed, decode)


def step_range(
    model: ModelLike,
    system: SystemLike,
    *,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    **inputs: Any,
) -> tuple[Number, Number] | None:
    """Return the 90 % range of the time of one step [s], or None for the ideal engine.

    `inputs`: the arguments of `mixed_step`, which may be arrays; anchor: one's own runs. A step that reads prompts takes the
    regime "mixed": no run that only reads prompts was measured. A layout unlike those that were measured has a wider range
    (`distance`), as that of a plan.
    """
    return step_and_range(model, system, engine=engine, anchor=anchor, **inputs)[1]


def step_and_range(
    model: ModelLike,
    system: SystemLike,
    *,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    **inputs: Any,
) -> tuple[Step, tuple[Number, Number] | None]:
    """Return a step as `mixed_step` does, with its range as `step_range` does, from one evaluation."""
    loaded_model, loaded_system = resolve_model(model), resolve_system(system)
    engine = anchored(engine_for(loaded_system, engine), anchor, model=loaded_model.name, system=loaded_system.name)
    if not has_range(engine):
        return mixed_step(loaded_model, loaded_system, engine=engine, **inputs), None
    layout = inputs.get("layout") or Layout()
    dimensions = max(np.ndim(value) for value in (*inputs.values(), *(getattr(layout, name) for name in NAMES)))
    if not is_scalar(loaded_system):
        dimensions = np.ndim(mixed_step(loaded_model, loaded_system, engine=engine, **inputs).total)
    every = mixed_step(loaded_model, loaded_system, engine=_nudged(engine, dimensions), **inputs)
    table = _rows(every.total, engine, dimensions)
    step, seconds = first_step(every, dimensions), table[0]
    variance = parameter_variance(_gradient(table), engine)
    reads = np.asarray(inputs.get("prompts", 0)) * np.asarray(inputs.get("tokens", 0)) > 0
    wider = widening(distances(engine, loaded_system, layout))
    low, high = factors(
        engine, "tpot", np.where(reads, REGIMES[1], REGIMES[0]), variance=variance, system=loaded_system, wider=wider
    )
    return step, (seconds * low, seconds * high)
