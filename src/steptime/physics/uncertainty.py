r"""Uncertainty: the 90 % range of a predicted time.

The range has three sources.

**Groups.** A group is all runs of a model on a system with an engine. Runs are predicted with their model, or their system,
left out of the fit. Two factors $e^{-q_-}$ and $e^{q_+}$ contain the measured time divided by the prediction for 90 % of the
runs. Each group has the same weight. Quantiles over runs describe the largest groups: they held 77 % of the runs of a
group on average, and quantiles by engine and regime no more. Runs of an unknown release left out too do not change the
factors. An engine file contains them for time per token and time to first token.

**Constants.** Let $g = \partial \log f / \partial \log \theta$ be the gradient of a time $f$. Let $\Sigma$ be the
covariance of the logarithms of the fitted constants $\theta$. Then $\log f$ has the variance $g^T \Sigma g$. The errors of
left-out runs contain its mean $\bar v$ over the fitted runs already, so that only the excess widens the range. A constant that
no run determines has a prior deviation instead (`[fit.prior]`), such as the skew of experts or the time of a state-space layer:

$$ w_\pm = \sqrt{q_\pm^2 + z^2 \max(0, g^T \Sigma g - \bar v)}, \qquad f e^{-w_-} \le t \le f e^{w_+}. $$

A step like the measured steps gets the interval of left-out runs. A step that depends on an uncertain constant gets a wider
interval. On chips of a vendor without fitted runs, and for an engine without a fit, the range is at least `WIDE`. Your own
runs (`anchor`) replace the scatter where the range of corrected times is narrower (`bias_correction`). They do not narrow the
part of a step's constants or of its distance from measured runs.
The ideal engine is a bound and not a prediction: it has no range.

**Distance.** The shipped engines are fitted to closed-loop runs on one node: replicas of up to eight chips, one pool, no
pipeline stages. Layouts beyond were compared with 398 public disaggregated runs (InferenceX, DeepSeek-R1 on hgx-b200,
gb200-nvl72 and mi355x-8, 140 of them with speculative tokens). Ratios of measured to predicted time per token, for nine
runs in ten:

- NVIDIA, pools of up to eight chips: 0.8 to 1.6. Wider pools: 0.6 to 1.3.
- AMD without data-parallel ranks: 0.8 to 1.4. With data-parallel ranks: 0.6 to 1.5, after the time of MoRI's exchange was
  fitted to these runs.
- 144 runs with speculative tokens in one pool: 0.9 to 2.2 (SGLang on hgx-b200 is the slowest).

First tokens of pools took 2.1 times the predicted time at the median (379 runs). They wait in routers and queues that no
column of the tables describes. Three in four are in the range given here, not nine in ten. The chance of a limit on them is
that of a log-normal around 2.1 times the prediction.

Each kind of distance widens the range by its observed error, as an independent error: logarithms add in quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.hardware.system import System
from steptime.hardware.what_if import is_scalar
from steptime.models.model import Model, stored_formats
from steptime.models.model_loading import ModelLike
from steptime.number_checks import Array, Number
from steptime.physics.bias_correction import USUAL, Anchor, Anchors, OperatingPoint
from steptime.physics.engine import (
    IDEAL,
    REGIMES_BY_QUANTITY,
    Engine,
    anchored,
    constant,
    engine_for,
    load_engine,
    model_and_system,
    with_constants,
)
from steptime.physics.layout import NAMES, Layout
from steptime.physics.speculative_step import drafted_step
from steptime.physics.step import Step, first_step
from steptime.units import percent

# Largest replica in the fitted runs, in chips.
LARGEST_MEASURED: Final = 8
# Longest context in the fitted runs, in tokens, with some room.
LONGEST_MEASURED: Final = 16_384
# With fewer runs on a system, its errors are hardly known.
MIN_RUNS_PER_SYSTEM: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One difference from the measured runs: name, and logarithms that it adds.

    low, high: Logarithms that the range gains below and above.
    late: Logarithm that the range of first tokens gains above, where it is more than `high`.
    usually: Logarithm of the median first token over the prediction.
    """

    words: str
    low: float
    high: float
    late: float = 0.0
    usually: float = 0.0

    @property
    def delay(self) -> float:
        """Median of first tokens over their prediction."""
        return math.exp(self.usually)


SEPARATE_POOLS: Final = Distance(words="separate prefill and decode pools", low=0.2, high=0.2, late=1.5, usually=0.72)
WIDE_REPLICA: Final = Distance(words="replicas of more than 8 chips", low=0.3, high=0.1)
GROUPS: Final = Distance(words="data-parallel ranks on AMD chips", low=0.5, high=0.6)
# A guess: no run has pipeline stages.
STAGED: Final = Distance(words="pipeline stages", low=0.33, high=0.33)
WITH_DRAFTS: Final = Distance(words="speculative tokens", low=0.1, high=0.3)
# Published slow-downs over predicted ones, from 0.79 (Punica, 70B on 8 A100) to 1.42 (vLLM of 2024): docs/how-to/lora.md.
WITH_ADAPTERS: Final = Distance(words="LoRA adapters", low=0.24, high=0.35)
# Kernels of single sequences above 30,000 tokens: nine in ten timings within -0.23 and +0.61 of the logarithm.
LONG_CONTEXT: Final = Distance(words="contexts above 16,000 tokens", low=0.2, high=0.3)
FEW_RUNS: Final = Distance(words="few runs on this system", low=0.25, high=0.46)
# Nine in ten runs of groups that were published after a fit were within 35 % (README.md).
NEW_ARCHITECTURE: Final = Distance(words="an architecture without measured runs", low=0.3, high=0.3)
# Families with recurrent layers in measured runs: Qwen3.5-397B (144 runs; Qwen3-Next has the same layers) and Nemotron Nano 9B
# v2 (24 runs of ML.ENERGY).
MEASURED_RECURRENT: Final = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "nemotron_h")
# Families with weights of three values, which no run has.
TERNARY: Final = ("bitnet",)

# A guess: no run of llama.cpp has more sequences than `LARGEST_BATCH`.
LARGE_BATCH: Final = Distance(words="batches larger than those of the runs", low=0.2, high=0.5)
# Largest batch of the fitted runs of an engine, in sequences, where it is far below what the engine serves.
# llama.cpp: batched-bench tables of https://github.com/ggml-org/llama.cpp/tree/master/benches.
LARGEST_BATCH: Final = {"llama.cpp": 32}
# Engine with runs on machines on a desk.
DESK_ENGINE: Final = "llama.cpp"


def is_new_architecture(model: Model) -> bool:
    """Whether no measured run has such layers: recurrent layers of other families, or weights of three values.

    Args:
        model: The model.

    Returns:
        True or false.
    """
    is_recurrent = any(mixer.state_bytes > 0 for layer, _ in model.layers for mixer in layer.attention)
    return model.family in TERNARY or (is_recurrent and model.family not in MEASURED_RECURRENT)


def distances(
    engine: Engine,
    system: System,
    layout: Layout,
    reader: Layout | None = None,
    *,
    model: Model | None = None,
    drafts: bool = False,
    context: Number = 0.0,
    batch: Number = 0.0,
) -> tuple[tuple[Distance, Array], ...]:
    """Return the possible differences from the runs of a fit, and which apply.

    Few runs on a system do not count where there are own runs of the group (`anchor`).

    Args:
        engine: The engine; without a fit there are no differences.
        system: The system.
        layout: Layout of the replicas, which may contain arrays.
        reader: Layout of the prefill pool of a disaggregated deployment. Its runs had speculative tokens too.
        model: The model, with its LoRA adapters; None for one like those of measured runs.
        drafts: Whether there are speculative tokens.
        context: Tokens of a sequence.
        batch: Sequences that decode on a replica.

    Returns:
        Pairs of a difference and an array of booleans.
    """
    if not engine.fit:
        return ()

    # In separate pools the larger of the two replicas decides.
    is_disaggregated, prefill_layout = reader is not None, layout if reader is None else reader
    chips, stages, groups = (np.maximum(getattr(layout, axis), getattr(prefill_layout, axis)) for axis in ("chips", "pp", "dp"))
    runs = engine.fit.get("systems")
    has_few_runs = runs is not None and int(runs.get(system.name, 0)) < MIN_RUNS_PER_SYSTEM
    has_few_runs = has_few_runs and (engine.anchor is None or not engine.anchor.has_group)
    return (
        (SEPARATE_POOLS, np.asarray(is_disaggregated)),
        (WIDE_REPLICA, chips > LARGEST_MEASURED),
        (GROUPS, np.logical_and(groups > 1, system.chip.vendor == "AMD")),
        (STAGED, stages > 1),
        (WITH_DRAFTS, np.asarray(drafts and not is_disaggregated)),
        (WITH_ADAPTERS, np.asarray(model is not None and model.adapters is not None)),
        (LONG_CONTEXT, np.asarray(context) > LONGEST_MEASURED),
        (FEW_RUNS, np.asarray(has_few_runs)),
        (LARGE_BATCH, np.asarray(batch) > LARGEST_BATCH.get(engine.name, math.inf)),
        *(((NEW_ARCHITECTURE, np.True_),) if model is not None and is_new_architecture(model) else ()),
    )


def widening(flags: Iterable[tuple[Distance, Array]], quantity: str = "tpot") -> tuple[Number, Number]:
    """Return the logarithms by which differences widen a range, below and above.

    Args:
        flags: Differences and whether they apply, as `distances` returns them.
        quantity: "tpot" or "ttft".

    Returns:
        Two logarithms, 0 where no difference applies.

    >>> [round(float(x), 3) for x in widening(((SEPARATE_POOLS, np.True_), (WIDE_REPLICA, np.True_), (STAGED, np.False_)))]
    [0.361, 0.224]
    """
    low: Number = 0.0
    high: Number = 0.0
    for flag, applies in flags:
        above = flag.high if quantity == "tpot" else max(flag.high, flag.late)
        low, high = low + applies * flag.low**2, high + applies * above**2
    return np.sqrt(low), np.sqrt(high)


def usual_delay(flags: Iterable[tuple[Distance, Array]]) -> Number:
    """Return the median of first tokens over their prediction.

    Args:
        flags: Differences and whether they apply, as `distances` returns them.

    Returns:
        Factor; 1 where no difference applies.

    >>> round(float(usual_delay(((SEPARATE_POOLS, np.True_), (STAGED, np.True_)))), 2), float(usual_delay(()))
    (2.05, 1.0)
    """
    logarithms: Number = sum((applies * flag.usually for flag, applies in flags), np.float64(0.0))
    return np.exp(logarithms)


# 90 % of a normal distribution are within this number of standard deviations.
Z90 = 1.645
# Range factors of an engine without a fit, or of chips without measurements.
WIDE = (0.5, 2.0)
# Decode takes most of the time, or prefill of other requests takes a considerable part.
REGIMES = REGIMES_BY_QUANTITY["tpot"]
# First tokens wait for little besides their prompt, or for others. Errors of the second are twice as large.
WAITS = REGIMES_BY_QUANTITY["ttft"]
# Times of the prefill of a prompt alone above which a first token belongs to the second.
QUEUED = 6.0
# Kinds of runs in `fit.held`, which gives the share of runs inside their range.
LEFT_OUT, DRAFTED, POOLS = "left_out", "drafted", "pools"
# Share of prefill in the time of a token above which a run is "mixed".
PREFILL_SHARE = 0.15
GROUP_WORDS = "a group of runs that no fit has seen"
# Step in a constant's logarithm for finite differences.
NUDGE = 1e-4


def latency_regime(prefill_share: Number) -> Any:
    """Return the regime of a time per token.

    Args:
        prefill_share: Share of the time that goes to prefill.

    Returns:
        "decode" or "mixed", with the shape of `prefill_share`.

    >>> latency_regime(np.array([0.0, 0.5])).tolist()
    ['decode', 'mixed']
    """
    return np.where(np.asarray(prefill_share) > PREFILL_SHARE, REGIMES[1], REGIMES[0])


def wait_regime(ttft: Number, prefill: Number) -> Any:
    """Return the regime of a time to first token.

    Args:
        ttft: Time to first token [s].
        prefill: Time of the prefill of its prompt alone [s].

    Returns:
        "prompt" or "queue", with the broadcast shape of the arguments.

    >>> wait_regime(np.array([0.2, 1.0]), 0.1).tolist()
    ['prompt', 'queue']
    """
    return np.where(np.asarray(ttft) > QUEUED * np.asarray(prefill), WAITS[1], WAITS[0])


def half_width(scatter: Number, excess: Number) -> Number:
    r"""Return half of a 90 % range in logarithms: $\sqrt{q^2 + z^2 \max(0, e)}$.

    Args:
        scatter: $q$ of left-out runs, for one side of the range.
        excess: $e$, the variance of the constants minus that of the fitted runs.

    Returns:
        A logarithm.

    >>> float(half_width(0.3, -1.0)), round(float(half_width(0.3, 0.04)), 3)
    (0.3, 0.445)
    """
    return np.sqrt(np.square(scatter) + Z90**2 * np.maximum(excess, 0.0))


def has_range(engine: Engine) -> bool:
    """Whether an engine predicts times with a range; the ideal engine is a bound.

    Args:
        engine: The engine.

    Returns:
        True or false.
    """
    return engine.name != IDEAL.name


def uncertain_constants(engine: Engine) -> tuple[str, ...]:
    """Return the names of the constants that widen a range.

    Args:
        engine: The engine.

    Returns:
        The fitted constants, then those with a prior deviation that no run determines (`[fit.prior]`).
    """
    return (*engine.fit.get("names", ()), *engine.fit.get("prior", ()))


def constants_covariance(engine: Engine) -> Array:
    """Return the covariance of the logarithms of `uncertain_constants`.

    Constants with a prior deviation are independent of each other and of the fitted constants.

    Args:
        engine: The engine.

    Returns:
        Array of shape (constants, constants).

    >>> fit = {"names": ["memory_efficiency"], "covariance": [[0.01]], "prior": {"expert_skew": 0.5}}
    >>> constants_covariance(Engine(fit=fit)).tolist()
    [[0.01, 0.0], [0.0, 0.25]]
    """
    fitted, assumed = len(engine.fit.get("names", ())), tuple(engine.fit.get("prior", {}).values())
    covariance = np.zeros((fitted + len(assumed),) * 2)
    covariance[:fitted, :fitted] = engine.fit.get("covariance", 0.0)
    covariance[fitted:, fitted:] = np.diag(np.square(assumed))
    return covariance


def _nudged(engine: Engine, dimensions: int) -> Engine:
    """Return the engine as it is and with each constant a little larger, in one axis.

    The shape of each constant is (1 + constants, 1, ...).
    """
    names = uncertain_constants(engine)
    table = np.exp(NUDGE * np.vstack([np.zeros(len(names)), np.eye(len(names))]))
    shape = (-1,) + (1,) * dimensions
    return with_constants(engine, {n: (constant(engine, n) * table[:, i]).reshape(shape) for i, n in enumerate(names)})


def _value_and_slopes(values: Number, engine: Engine, dimensions: int) -> tuple[Array, Array]:
    """Return the value of an engine, and the slopes of its logarithm by constant, from the values of nudged engines."""
    # Values that use no constant have no row for each.
    count, shape = 1 + len(uncertain_constants(engine)), np.shape(values)
    table = np.broadcast_to(values, (count, *(shape[1:] if len(shape) > dimensions else shape)))
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes: Array = np.nan_to_num((np.log(table[1:]) - np.log(table[0])) / NUDGE, posinf=0.0, neginf=0.0)
    return table[0], slopes


def log_gradient(function: Callable[[Engine], Number], engine: Engine, *, dimensions: int = 0) -> Array:
    """Return d log(function) / d log(constant) of each of the `uncertain_constants` of an engine.

    There is one evaluation: `function` gets an engine whose constants are arrays with a leading axis, and `dimensions` axes
    of length one for the axes of its other input.

    Args:
        function: Function of an engine.
        engine: The engine.
        dimensions: Number of axes of the function's other input.

    Returns:
        Slopes of shape (constants, ...).

    >>> engine = Engine(name="a", fit={"names": ["memory_efficiency", "seconds_per_step"]})
    >>> log_gradient(lambda e: 3 / e.kernels.memory_efficiency, engine).round(6).tolist()
    [-1.0, 0.0]
    """
    return _value_and_slopes(function(_nudged(engine, dimensions)), engine, dimensions)[1]


def parameter_variance(gradient: Array, engine: Engine) -> Array:
    """Return the variance of log(f) from the covariance of the constants.

    Args:
        gradient: Slopes of shape (constants, ...).
        engine: The engine.

    Returns:
        Variances of shape (...).
    """
    covariance = constants_covariance(engine)
    variance: Array = np.maximum(np.einsum("i...,ij,j...->...", gradient, covariance, gradient), 0.0)
    return variance


def with_variances(
    function: Callable[[Engine], tuple[Number, ...]], engine: Engine, *, dimensions: int = 0
) -> list[tuple[Array, Array]]:
    """Return each value of a function with the variance of its logarithm.

    Args:
        function: Function of an engine that returns several values.
        engine: The engine.
        dimensions: Number of axes of the function's other input.

    Returns:
        Pairs of a value and a variance, from one evaluation.
    """
    pairs = with_slopes(function, engine, dimensions=dimensions)
    return [(value, parameter_variance(slopes, engine)) for value, slopes in pairs]


def with_slopes(
    function: Callable[[Engine], tuple[Number, ...]], engine: Engine, *, dimensions: int = 0
) -> list[tuple[Array, Array]]:
    """Return each value of a function with the slopes of its logarithm by constant.

    Args:
        function: Function of an engine that returns several values.
        engine: The engine.
        dimensions: Number of axes of the function's other input.

    Returns:
        Pairs of a value and slopes of shape (constants, ...), from one evaluation.
    """
    return [_value_and_slopes(values, engine, dimensions) for values in function(_nudged(engine, dimensions))]


def measured_on(engine: Engine, system: System) -> bool:
    """Whether an engine was fitted to runs on chips of this vendor.

    Args:
        engine: The engine.
        system: The system.

    Returns:
        True or false; true where the engine file names no vendors.
    """
    vendors = engine.fit.get("vendors")
    return vendors is None or system.chip.vendor in vendors


def unmeasured_engine_warning(engine: Engine, system: System) -> str:
    """Say that an engine has no run on the chips of a system, and name the engine for machines on a desk where that has.

    Args:
        engine: The engine.
        system: The system.

    Returns:
        A sentence without a period; empty for an engine with runs, and for one without a range.
    """
    if not has_range(engine) or measured_on(engine, system):
        return ""
    words = (
        f"engine {engine.name} has no measured run on chips of {system.chip.vendor or 'this vendor'}: times are a guess from "
        "others, and ranges reach from half to twice the time or further"
    )
    has_runs = measured_on(load_engine(DESK_ENGINE), system)
    return f"{words}. --engine {DESK_ENGINE} has measured runs there" if has_runs else words


def factors(
    engine: Engine,
    quantity: str,
    regime: Number | str,
    *,
    variance: Number | None = None,
    system: System | None = None,
    wider: tuple[Number, Number] = (0.0, 0.0),
    point: OperatingPoint = USUAL,
) -> tuple[Number, Number]:
    """Return the factors on a prediction that contain 90 % of measured values.

    All arguments broadcast.

    Args:
        engine: The engine.
        quantity: "tpot" (also for a step) or "ttft".
        regime: One of `REGIMES`, of `WAITS` for "ttft", or an array of them.
        variance: `parameter_variance` of the prediction; by default the variance of the fitted runs.
        system: The system; None for chips of a measured vendor.
        wider: Logarithms that distance from measured runs adds below and above (`extrapolation`).
        point: Layout, load and context of the prediction, for the correction by own runs.

    Returns:
        A factor of at most 1 and a factor of at least 1.
    """
    table = engine.fit.get("interval", {}).get(quantity, {})
    low, high = (_by_regime({r: f[side] for r, f in table.items()}, WIDE[side], regime) for side in (0, 1))
    is_measured = system is None or measured_on(engine, system)
    if engine.anchor is not None and engine.anchor.has(quantity):
        # Own runs replace the scatter where they say more (`bias_correction`); the other parts of the range stay.
        floor = (1.0, 1.0) if is_measured else WIDE
        half, scale = engine.anchor.half_width(quantity, point), engine.anchor.scale(quantity)
        low = np.exp(-np.minimum(scale * -np.log(np.minimum(low, floor[0])), half))
        high = np.exp(np.minimum(scale * np.log(np.maximum(high, floor[1])), half))
        is_measured = True
    excess = 0.0 if variance is None else _excess_variance(engine, quantity, regime, variance)
    low = np.exp(-np.hypot(half_width(np.maximum(-np.log(low), 0.0), excess), wider[0]))
    # A queue that a slightly slower machine does not empty has no upper end.
    with np.errstate(over="ignore"):
        high = np.exp(np.hypot(half_width(np.maximum(np.log(high), 0.0), excess), wider[1]))
    if not is_measured:
        low, high = np.minimum(low, WIDE[0]), np.maximum(high, WIDE[1])
    return low, high


def interval_coverage_words(engine: Engine, system: System, *, drafts: bool, pools: bool) -> tuple[str, ...]:
    """Describe how many measured times per token were in their 90 % range.

    Args:
        engine: The engine.
        system: The system.
        drafts: Whether there are speculative tokens.
        pools: Whether prefill and decode have separate pools.

    Returns:
        Texts for all left-out runs and for runs of this kind. Empty for an engine that was not fitted to the project's
        runs, or with own runs.
    """
    table = engine.fit.get("held", {})
    if not table or engine.anchor is not None:
        return ()
    vendor = system.chip.vendor
    is_other_vendor = len(engine.fit.get("vendors", ())) > 1 and vendor != "NVIDIA"
    words = []
    for kind, is_relevant, label in (
        (LEFT_OUT, True, "left-out runs"),
        (vendor, is_other_vendor, f"on {vendor} chips"),
        (DRAFTED, drafts and not pools, "with speculative tokens"),
        (POOLS, pools, "with separate pools"),
    ):
        if is_relevant and kind in table:
            share, runs = table[kind]
            words.append(f"{percent(share)} of {runs:,.0f} {label}")
        elif is_relevant and kind != vendor:
            words.append(f"no run {label} was measured with {engine.name}")
    return tuple(words)


def widest(engine: Engine, system: System, wider: tuple[Number, Number] = (0.0, 0.0)) -> tuple[float, float]:
    """Return the widest 90 % range of a time per token over all regimes.

    Args:
        engine: The engine.
        system: The system.
        wider: Logarithms that distance from measured runs adds below and above.

    Returns:
        The lowest and the highest factor.
    """
    low, high = factors(engine, "tpot", np.array(REGIMES), system=system, wider=wider)
    return float(np.min(low)), float(np.max(high))


def _by_regime(table: Mapping[str, float], default: float, regime: Number | str) -> Number:
    names = np.asarray(regime)
    values: Array = np.full(names.shape, default)
    for name, value in table.items():
        values = np.where(names == name, value, values)
    return values


def _excess_variance(engine: Engine, quantity: str, regime: Number | str, variance: Number) -> Number:
    """Return the variance from the constants minus that of the fitted runs."""
    return variance - _by_regime(engine.fit.get("parameter_variance", {}).get(quantity, {}), 0.0, regime)


def step_range(
    model: ModelLike,
    system: SystemLike,
    *,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    drafts: int = 0,
    **inputs: Any,
) -> tuple[Number, Number] | None:
    """Return the 90 % range of the time of one step.

    A step with prefill has the regime "mixed": no run with prefill only was measured. A layout that differs from measured
    layouts has a wider range (`extrapolation`), as in a plan.

    Args:
        model: A model, or its name.
        system: A system, or its name.
        engine: An engine, or its name; by default the engine of the system.
        anchor: Correction from your own runs.
        drafts: Speculative tokens that the step verifies and drafts, in place of `query`.
        inputs: The other arguments of `mixed_step`, which may be arrays.

    Returns:
        Two times in seconds; None for the ideal engine.
    """
    return explained_step_range(model, system, engine=engine, anchor=anchor, drafts=drafts, **inputs)[1]


def range_shares(
    engine: Engine,
    gradient: Array,
    flags: Iterable[tuple[Distance, Array]] = (),
    regime: str = REGIMES[0],
    quantity: str = "tpot",
) -> dict[str, float]:
    """Return what the upper half of a 90 % range of a time is made of, as shares of its square.

    Args:
        engine: The engine.
        gradient: Slopes of the logarithm of the time by constant, of shape (constants,).
        flags: Differences from measured runs, and whether they apply.
        regime: One of `REGIMES`, or of `WAITS` for "ttft".
        quantity: "tpot" or "ttft".

    Returns:
        Shares by source, the largest first; they add up to 1. Sources below 1 % are together.

    >>> engine = Engine(fit={"interval": {"tpot": {"decode": [0.7, 1.4]}}, "prior": {"seconds_per_state_layer": 0.7}})
    >>> {name: round(share, 2) for name, share in range_shares(engine, np.array([0.3])).items()}
    {'seconds_per_state_layer': 0.51, 'a group of runs that no fit has seen': 0.49}
    """
    high = float(factors(engine, quantity, regime)[1])
    parts = {GROUP_WORDS: math.log(high) ** 2}
    variance = float(parameter_variance(gradient, engine))
    excess = Z90**2 * max(0.0, float(_excess_variance(engine, quantity, regime, variance)))
    if excess > 0:
        contributions = gradient * (constants_covariance(engine) @ gradient) / variance
        parts |= {
            name: excess * max(0.0, share) for name, share in zip(uncertain_constants(engine), contributions, strict=True)
        }
    is_token = quantity == "tpot"
    parts |= {
        flag.words: (flag.high if is_token else max(flag.high, flag.late)) ** 2 for flag, applies in flags if np.any(applies)
    }
    total = sum(parts.values())
    shares = {
        name: float(part / total) for name, part in sorted(parts.items(), key=lambda item: -item[1]) if part >= 0.01 * total
    }
    if (small := 1 - sum(shares.values())) > 1e-9:
        shares["others"] = small
    return shares


def explained_step_range(
    model: ModelLike,
    system: SystemLike,
    *,
    engine: Engine | str | None = None,
    anchor: Anchors | Anchor | None = None,
    drafts: int = 0,
    **inputs: Any,
) -> tuple[Step, tuple[Number, Number] | None, dict[str, float]]:
    """Return a step, its 90 % range and what the range is made of, from one evaluation.

    Args:
        model: A model, or its name.
        system: A system, or its name.
        engine: An engine, or its name; by default the engine of the system.
        anchor: Correction from your own runs.
        drafts: Speculative tokens that the step verifies and drafts, in place of `query`.
        inputs: The other arguments of `mixed_step`, which may be arrays.

    Returns:
        The step, its range (None for the ideal engine), and `range_shares` (empty for several steps and the ideal engine).
    """
    loaded_model, loaded_system = model_and_system(model, system, engine)
    formats = stored_formats(loaded_model)
    engine = engine_for(loaded_system, engine)
    engine = anchored(engine, anchor, model=loaded_model.name, system=loaded_system.name, formats=formats)
    layout = inputs.get("layout") or Layout()
    evaluate = partial(drafted_step, loaded_model, loaded_system, drafts=drafts, **{**inputs, "layout": layout})
    if not has_range(engine):
        return evaluate(engine=engine), None, {}

    # One evaluation of the nudged engine gives the step (first row) and its gradient (other rows).
    dimensions = max(np.ndim(value) for value in (*inputs.values(), *(getattr(layout, name) for name in NAMES)))
    if not is_scalar(loaded_system):
        dimensions = np.ndim(evaluate(engine=engine).total)
    every = evaluate(engine=_nudged(engine, dimensions))
    seconds, gradient = _value_and_slopes(every.total, engine, dimensions)
    step = first_step(every, dimensions)
    variance = parameter_variance(gradient, engine)
    reads = np.asarray(inputs.get("prompts", 0)) * np.asarray(inputs.get("tokens", 0)) > 0
    prompt = np.asarray(inputs.get("prefix", 0)) + np.asarray(inputs.get("tokens", 0))
    longest = np.maximum(inputs.get("context", 0), prompt)
    flags = distances(
        engine, loaded_system, layout, model=loaded_model, drafts=bool(drafts), context=longest, batch=inputs.get("batch", 0),
    )  # fmt: skip
    regime = np.where(reads, REGIMES[1], REGIMES[0])
    point = OperatingPoint(layout=layout, load=inputs.get("batch", 0), context=inputs.get("context", 0))
    low, high = factors(engine, "tpot", regime, variance=variance, system=loaded_system, wider=widening(flags), point=point)
    shares = range_shares(engine, gradient, flags, str(regime)) if gradient.ndim == 1 and not regime.ndim else {}
    return step, (seconds * low, seconds * high), shares
