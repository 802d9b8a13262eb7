r"""The uncertain inputs of a question: the range of each, the basis of the range, and how to learn the value.

A step, a plan, a training run and a budget have uncertain inputs by default (`unsure_inputs`). These are figures of the
machine, the engine, rents, and the user's traffic. Any other input becomes uncertain if the user gives a range (`with_ranges`).

**Log-normal.** For most inputs the base is the median, and low and high are the 5 % and 95 % points. Each side of the range is
half of a log-normal distribution, as everywhere in steptime. With the standard normal $z$ and $Z = 1.645$

$$ x = b \, e^{w z / Z}, \qquad w = \log(b / l) \text{ below}, \quad \log(h / b) \text{ above}. $$

**Uniform.** If only the ends are known, every value between them is equally likely (JCGM 100:2008, 4.3.7). This holds for rents
between dated quotes, and for ranges that the user gives.

**Figures** of the machine have the range of their grade (`HALF_WIDTHS`). A figure that the caller sets is certain. All peak
rates of a chip follow one clock, and err together: `chip.peak` is a factor on them.

**Constants** of the engine that were fitted have the (marginal) standard deviation of their logarithm from the covariance of
the fit. Correlations between them are left out; `variance_shares.correlated` gives their effect. Constants with a prior
deviation (`[fit.prior]`) have this deviation. Other constants that were fixed during the fit are part of the scatter.

**Scatter** is the error that remains in runs left out of the fit, in addition to the constants. It is a factor $x$ on the time
of every step, whose 90 % range is $e^{-s_-}$ to $e^{s_+}$ with

$$ s_\pm^2 = q_\pm^2 - Z^2 \bar v + d_\pm^2. $$

Here $q$ is the interval of the left-out runs. The mean variance $\bar v$ that the constants made in these runs reduces it. The
distance $d$ of a layout from the measured ones widens it (`physics/uncertainty`). Scatter and constants together give the range
of a plan, and of a step whose layout is similar to the measured ones. Errors of data sheets of measured machines are part of
that scatter too, so that figures count slightly twice there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from steptime.catalog.acceptance_lengths import OWN_LAYERS, TYPICAL, curves
from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.hardware.number_formats import SOFTWARE
from steptime.hardware.rental_prices import has_rent, kind_in_words
from steptime.hardware.system import System
from steptime.hardware.what_if import in_force, settable
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine, constant, engine_for, with_constants
from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, GROUP_BY_NAME, SHARE, find_problem
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step
from steptime.physics.uncertainty import (
    REGIMES,
    Z90,
    distances,
    factors,
    has_range,
    latency_regime,
    log_gradient,
    uncertain_constants,
    widening,
)
from steptime.planning.plan_result import Pool
from steptime.questions.declaration import COUNT, RENT, TEXT, Input, Question
from steptime.questions.registry import find_input, plain_name
from steptime.questions.subject import FORMATS, SIZES, SUBJECT, read_subject, read_system, settable_figures
from steptime.questions.train_question import YEAR, bind_train, solve
from steptime.scaling.lifetime_compute import read_served
from steptime.scaling.scaling_laws import Law, load_law, load_laws, with_constant
from steptime.sweeps.axes import read_values
from steptime.sweeps.sensitivity_result import written
from steptime.training.training_runs import LARGEST_RUN_OVERHEAD, TYPICAL_RUN_OVERHEAD, UNCERTAIN_LOSSES
from steptime.training.training_stack import TrainingEngine
from steptime.units import percent
from steptime.workload.workload import choose_speculation

# Half-width of the user's forecasts of traffic, about which nothing is known: 25 % more, or 20 % less. An assumption.
ASSUMED: Final = 0.25
# Factor within which a guess is right, as for the times of an engine that was never measured (`uncertainty.WIDE`).
GUESSED: Final = 2.0

# Pairs of independent figures of one quantity, from two sources of the same grade, as in the notes of the catalogue.
# measured: shares of bandwidth and of arithmetic that GEMMs reach on B200 and on GB200, which have the same die.
# vendor: HBM of B200, of B300 and of TPU7x [TB/s].
# reported: FP4 of B300 [PFLOP/s]; all-in power of GB200, H100 and B200 [kW], of a GB300 rack [kW] and of VR200 [W].
SEEN_TWICE: Final[Mapping[str, tuple[tuple[float, float], ...]]] = {
    "measured": ((0.724, 0.741), (0.693, 0.686)),
    "vendor": ((8.0, 7.7), (8.0, 7.75), (7.38, 7.37)),
    "reported": ((13.5, 14.0), (13.5, 13.1), (1.87, 2.10), (1.37, 1.73), (1.71, 2.17), (120.0, 136.0), (1800.0, 2300.0)),
}


def half_width(pairs: Sequence[tuple[float, float]]) -> float:
    r"""Return half of the 90 % range of a figure, as a logarithm, from pairs.

    $w = Z \sqrt{\overline{d^2} / 2}$ with the difference $d$ of the logarithms of a pair, whose variance is twice that of one
    figure. Valid for differences well below 1.

    Args:
        pairs: Independent figures of the same quantity, in one unit per pair.

    Returns:
        Half-width of the logarithm.

    >>> round(half_width([(1.0, 1.1)]), 4), half_width([(8.0, 8.0)])
    (0.1109, 0.0)
    """
    differences = [math.log(a / b) for a, b in pairs]
    return Z90 * math.sqrt(math.fsum(d * d for d in differences) / len(differences) / 2)


# Half of the 90 % range of a figure by grade, as a logarithm: measured 2 %, vendor 3 %, reported and recalled 22 %, guess a
# factor of two. Recalled figures are as good as reported ones: of eleven that were looked up since, none was wrong
# (docs/models.md).
HALF_WIDTHS: Final[Mapping[str, float]] = {
    **{grade: half_width(pairs) for grade, pairs in SEEN_TWICE.items()},
    "recalled": half_width(SEEN_TWICE["reported"]),
    "guess": math.log(GUESSED),
}

# Names of the grades in texts.
GRADE_WORDS: Final[Mapping[str, str]] = {
    "measured": "measured", "vendor": "data sheet", "reported": "reported", "recalled": "recalled", "guess": "a guess",
}  # fmt: skip


def in_words(grade: str) -> str:
    """Return the basis of the range of a figure, in words.

    Args:
        grade: Grade of the source.

    Returns:
        Text with the grade and the half-width.

    >>> in_words("vendor"), in_words("guess")
    ('data sheet, 3 %', 'a guess, a factor of 2')
    """
    width = HALF_WIDTHS[grade]
    return f"{GRADE_WORDS[grade]}, " + (percent(math.expm1(width)) if width < 0.5 else f"a factor of {GUESSED:g}")


# Inputs of a question by name, and the function that sets one of them.
InputValues = Mapping[str, Any]
Place = Callable[[InputValues, str, Any], InputValues]


def put(input_values: InputValues, name: str, value: Any) -> InputValues:
    """Return the inputs of a question with one of them set.

    Args:
        input_values: Inputs by name.
        name: Name of the input to set.
        value: Its value in base units.

    Returns:
        A copy with the new value.
    """
    return {**input_values, name: value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """An uncertain input with its range.

    Attributes:
        name: Name of the input.
        description: Noun phrase, such as "the rent".
        unit: Unit of low, base and high.
        low: Low end of the range.
        base: Value without uncertainty.
        high: High end of the range.
        basis: Basis of the range, in words.
        learn: How to learn the value, in words.
        even: Whether every value of the range is equally likely; else the ends are the 5 % and 95 % points.
        place: Sets a value in the inputs of a question.
        minimum: Smallest possible value.
        maximum: Largest possible value.
        is_count: Whether the value is a count.
        broadcasts: Whether the value may be an array.
    """

    name: str
    description: str
    unit: str = ""
    low: float
    base: float
    high: float
    basis: str
    learn: str = ""
    even: bool = False
    place: Place = put
    minimum: float = -math.inf
    maximum: float = math.inf
    is_count: bool = False
    broadcasts: bool = True

    def checked(self, values: Number) -> Array:
        """Return values within the possible bounds; round counts.

        Args:
            values: Values in base units, of any shape.

        Returns:
            Array of the same shape.
        """
        within = np.clip(np.asarray(values, dtype=np.float64), self.minimum, self.maximum)
        return np.maximum(np.round(within), 1.0) if self.is_count else within

    @property
    def ends(self) -> tuple[float, float]:
        """Low and high value, within bounds and rounded if the input is a count."""
        low, high = self.checked(np.array([self.low, self.high])).tolist()
        return low, high

    @property
    def deviations(self) -> float:
        """Standard deviations in half of the range: 1.645, or sqrt(3) for a uniform one."""
        return math.sqrt(3.0) if self.even else Z90

    def values(self, shares: Array) -> Array:
        """Return the quantiles of the input.

        Args:
            shares: Probabilities between 0 and 1, both excluded, of any shape.

        Returns:
            Values below which these shares of all cases lie.

        >>> rent = Unsure(name="rent", description="the rent", low=1.0, base=2.0, high=3.0, basis="quotes", even=True)
        >>> rent.values(np.array([0.25, 0.5])).tolist()
        [1.5, 2.0]
        >>> rate = Unsure(name="rate", description="a rate", low=1.0, base=2.0, high=8.0, basis="guess")
        >>> rate.values(np.array([0.05, 0.5, 0.95])).round(3).tolist()
        [1.0, 2.0, 7.999]
        """
        if self.even:
            return self.checked(self.low + shares * (self.high - self.low))
        from scipy.special import ndtri

        # Each side has its own width, so that the median stays at the base.
        z = ndtri(shares) / Z90
        below, above = math.log(self.base / self.low), math.log(self.high / self.base)
        return self.checked(self.base * np.exp(np.where(z < 0, below, above) * z))


def spread(name: str, base: float, width: float | tuple[float, float], **attributes: Any) -> Unsure:
    """Return an input whose logarithm has a symmetric or two-sided 90 % range.

    Args:
        name: Name of the input.
        base: Median, in base units.
        width: Half-width of the logarithm, or the widths below and above.
        **attributes: Other fields of `Unsure`.

    Returns:
        The uncertain input.
    """
    below, above = width if isinstance(width, tuple) else (width, width)
    return Unsure(name=name, base=base, low=base * math.exp(-below), high=base * math.exp(above), **attributes)


# Names of the two inputs that are factors: on all peak rates, and on the time of every step.
CLOCK, SCATTER = "chip.peak", "scatter"
# How to learn the values, in words.
MICROBENCHMARK = "a microbenchmark of the machine, then --set FIGURE=VALUE"
# Constants with a prior that move a pass by less than this share of its time, at one deviation, have no row.
LEAST_EFFECT = 0.02
# The skew moves only steps of several ranks.
SKEW = "expert_skew"
# Unit of a time in an engine file, before the unit that it is divided by.
SECONDS = "s per"
OWN_RUNS = "your own runs (`steptime anchors`, `steptime calibrate`)"
TRAFFIC = "your own traffic"
# Inputs of a step that depend on traffic, by phase.
DECODE, PREFILL = ("batch", "context"), ("tokens", "prefix")
LENGTHS: Final = {"decode": DECODE, "prefill": PREFILL, "mixed": (*DECODE, *PREFILL)}
# Exponents of a law whose errors have correlations.
EXPONENTS: Final = ("alpha", "beta")
# Names of figures in descriptions; other figures keep their own name.
NOUNS: Final = {
    "bandwidth": "the bandwidth", "latency": "the latency", "capacity": "the capacity", "usd_per_byte": "the price",
}  # fmt: skip
# Names of the parts of a machine in descriptions; other parts keep their own name.
PLACES: Final = {
    "": "a chip with its share of host and network", "hbm": "HBM", "scale-up": "the scale-up domain",
    "scale-out": "the scale-out network",
}  # fmt: skip


def put_constant(input_values: InputValues, name: str, value: Any) -> InputValues:
    """Return the inputs of a question with one constant of the engine set.

    Args:
        input_values: Inputs by name.
        name: Name of the constant.
        value: Its value.

    Returns:
        Inputs with a changed engine.
    """
    return {**input_values, "engine": with_constants(_engine(input_values), {name: value})}


def _engine(input_values: InputValues) -> Engine:
    engine = input_values.get("engine")
    if isinstance(engine, Engine):
        return engine
    return engine_for(read_system(input_values), engine, input_values.get("catalog"))


def put_clock(input_values: InputValues, name: str, value: Any) -> InputValues:
    """Return the inputs of a question with all peak rates of the chip scaled.

    Peak rates that the user set stay as they are.

    Args:
        input_values: Inputs by name, with a system.
        name: Path of the peak rates.
        value: Factor on them.

    Returns:
        Inputs with the scaled figures.
    """
    peak = {f"{name}.{kind}": rate * value for kind, rate in input_values["system"].chip.peak.items()}
    return {**peak, **input_values}


def put_scatter(input_values: InputValues, name: str, value: Any) -> InputValues:  # noqa: ARG001
    """Return the inputs of a question with the time of every step scaled.

    A slower step is the same as slower software, so that the factor changes the share of the rates that software reaches.

    Args:
        input_values: Inputs by name, with a system and an engine.
        name: Name of the input, not used.
        value: Factor on the time.

    Returns:
        Inputs with a changed system and engine.
    """
    system, engine = input_values["system"], input_values["engine"]
    follows = engine.kernels.chip_departure > 0
    share = system.chip.reached.get(SOFTWARE, 1.0) if follows else 1.0
    # An engine that ignores the software of the chip needs a tiny weight on it, so that the factor has an effect.
    if not follows:
        engine = with_constants(engine, {"chip_departure": 1e-12})
    chip = replace(system.chip, reached={**system.chip.reached, SOFTWARE: share / value})
    return {**input_values, "system": replace(system, chip=chip), "engine": engine}


def unsure_inputs(question: Question, input_values: InputValues, answer: str) -> tuple[InputValues, list[Unsure]]:
    """Return the inputs of a question with names loaded, and the uncertain inputs.

    Everything that the user set of model, system and engine is applied, and no longer an input.

    Args:
        question: The question.
        input_values: Inputs by name.
        answer: Answer whose uncertainty matters: money and energy depend on more inputs.

    Returns:
        The inputs, and the uncertain ones; none unless the question is a step, a plan, a training run or a budget.
    """
    if question.name == "budget":
        return input_values, list(_budget_inputs(input_values))
    if question.name == "train":
        return input_values, list(_training_inputs(input_values, answer))
    if question.name not in ("step", "plan"):
        return input_values, []
    model, system, engine = read_subject(input_values)
    dropped = (*FORMATS, *SUBJECT, "power")
    inputs = {name: value for name, value in input_values.items() if name not in dropped and "." not in name}
    inputs |= {"model": model, "system": system, "engine": engine}
    if question.name == "step":
        layout = Layout(**{name: float(np.max(inputs.get(name, 1))) for name in SIZES})
        chips = float(layout.chips)
        phase = inputs.get("phase", "decode")
        # Errors of decode and of prefill were fitted separately.
        regime = REGIMES[0] if phase == "decode" else REGIMES[1]
        flags = distances(engine, system, layout, model=model)
        scatter = _scatter(engine, system, regime, widening(flags))
        lengths = {name: f"the {name}" for name in LENGTHS.get(phase, DECODE)}
    else:
        chips = float(inputs.get("chips") or system.chips)
        scatter = _planned_scatter(inputs, model, engine, system)
        lengths = {"input": "the prompt length", "output": "the output length"}
    parameters = [
        *_figures(system, answer, chips),
        *_constants(model, system, engine),
        *scatter,
        *_assumed_constants(model, system, engine),
        *_rent(system, answer),
    ]
    for name, description in lengths.items():
        base = inputs.get(name, question.inputs[name].default)
        # An array is an axis of the user, and certain.
        if np.ndim(base) == 0 and base > 0:
            parameters.append(_assumed(name, float(base), description, is_count=True))
    if question.name == "plan":
        if inputs.get("cached"):
            parameters.append(_assumed("cached", float(inputs["cached"]), "the cached share of prompts", maximum=0.99))
        parameters += _acceptance(inputs, model)
    return inputs, parameters


# Forecasts of a model's traffic and lifetime before it is trained are right within these factors; assumptions.
TRAFFIC_FACTOR, LIFETIME_FACTOR = 4.0, 2.0
# Cost of a serving FLOP over a training FLOP: plans on machines give 0.4 to 2.5 (docs/budget.md), small batches up to 5.
ETA_RANGE: Final = (0.4, 5.0)
# Share of RL in a lifetime budget: none, or as much as pre-training and as serving.
RL_SHARES: Final = (0.0, 1 / 3)


def _budget_inputs(input_values: InputValues) -> Iterator[Unsure]:
    """Yield the uncertain inputs of a lifetime budget: traffic, lifetime, costs of FLOP, RL, and the exponents of the law."""
    served_text, lifetime = str(input_values.get("tokens_served", "0")), input_values.get("lifetime")
    served, seconds = read_served(served_text, lifetime)
    is_rate = "/" in served_text
    if served > 0:
        yield spread(
            "tokens_served", served / seconds if is_rate else served, math.log(TRAFFIC_FACTOR),
            description="the traffic", unit="tok/s" if is_rate else "tokens",
            basis=f"assumed, a factor of {TRAFFIC_FACTOR:g}", learn=TRAFFIC, broadcasts=False,
            place=_put_rate if is_rate else _put_text,
        )  # fmt: skip
        if is_rate:
            yield spread(
                "lifetime", seconds, math.log(LIFETIME_FACTOR), description="the time in service", unit="s",
                basis=f"assumed, a factor of {LIFETIME_FACTOR:g}", learn="the date of the next model", broadcasts=False,
                place=_put_seconds,
            )  # fmt: skip
        eta = float(input_values.get("eta", 3.0))
        yield Unsure(
            name="eta", description="the cost of a serving FLOP over that of a training FLOP", low=min(ETA_RANGE[0], eta),
            base=eta, high=max(ETA_RANGE[1], eta), basis="plans on machines and small batches",
            learn="budget --serving-system SYSTEM", broadcasts=False,
        )  # fmt: skip
    if not input_values.get("rl_tokens"):
        share = float(input_values.get("rl_share", 0.0))
        yield Unsure(
            name="rl_share", description="the share of RL in the budget", low=RL_SHARES[0], base=share,
            high=max(RL_SHARES[1], share), basis="no RL, to as much as pre-training and serving", learn="your own RL runs",
            even=True, broadcasts=False,
        )  # fmt: skip
    law = load_laws(_law_names(input_values))[0]
    if law.spread is not None:
        for name in EXPONENTS:
            if name in law.spread.names:
                yield spread(
                    name, float(law.constants[name]), _exponent_width(law, name), place=_put_exponent, broadcasts=False,
                    description=f"the exponent {name} of {law.name}", basis="resampled points of the law",
                    learn="your own small runs (`steptime laws --fit`)",
                )  # fmt: skip


# Answers of a training run that depend on its failures and its overhead.
RUN_ANSWERS: Final = ("days", "usd", "goodput", "probability")
# Inputs of a training run with the field of `Reliability`, what they are in words, their unit, and how to learn them.
RUN_LOSSES: Final = (
    ("failures", "rate", "the failure rate", "failures per chip and year", "the log of your cluster"),
    ("checkpoint", "checkpoint", "the pause of a checkpoint", "s", "one checkpoint"),
    ("restart", "restart", "the time of a restart", "s", "one restart"),
)


def _training_inputs(input_values: InputValues, answer: str) -> Iterator[Unsure]:
    """Yield the uncertain inputs of a training run: time of a step, failures, other overhead and rent."""
    inputs, _, system, engine = bind_train(input_values)
    if not engine.fit:
        return
    # The range that `train` prints: of a searched layout, or with the user's own runs.
    step = solve(input_values, changes=False).step
    low, high = (float(np.asarray(end / step.total)) for end in (step.low, step.high))
    yield Unsure(
        name=SCATTER, description="the error of the predicted step", low=low, base=1.0, high=high, broadcasts=False,
        basis="runs of left-out models", learn="a few steps of your own, then `steptime calibrate`",
        place=partial(_put_slowness, engine),
    )  # fmt: skip
    if inputs.tokens is not None and any(name in answer for name in RUN_ANSWERS):
        reliability = inputs.reliability()
        for name, field, description, unit, learn in RUN_LOSSES:
            base, ends = next((base, ends) for loss, base, ends in UNCERTAIN_LOSSES if loss == field)
            if getattr(reliability, field) == base:
                scale = YEAR if field == "rate" else 1.0
                yield Unsure(
                    name=name, description=description, unit=unit, low=ends[0] * scale, base=base * scale,
                    high=ends[1] * scale, basis="published clusters", learn=learn, broadcasts=False,
                )  # fmt: skip
        if reliability.overhead is None:
            yield Unsure(
                name="overhead", description="the time of evaluations, slow periods and network problems", low=1.0,
                base=TYPICAL_RUN_OVERHEAD, high=LARGEST_RUN_OVERHEAD, basis="five published runs", learn="an earlier run",
                broadcasts=False,
            )  # fmt: skip
        if input_values.get(RENT) is None:
            yield from (replace(rent, place=_put_hourly, broadcasts=False) for rent in _rent(system, answer))


def _put_slowness(engine: TrainingEngine, input_values: InputValues, _: str, value: Any) -> InputValues:
    return {**input_values, "engine": replace(engine, speed=engine.speed / float(value))}


def _put_hourly(input_values: InputValues, name: str, value: Any) -> InputValues:
    return {**input_values, name: f"{float(value) * 3600:.12g}"}


def _law_names(input_values: InputValues) -> list[Any] | None:
    names = input_values.get("law") or ()
    parts = [names] if isinstance(names, str | Law) else list(names)
    split = [part.split(",") if isinstance(part, str) else [part] for part in parts]
    return [name.strip() if isinstance(name, str) else name for part in split for name in part] or None


def _put_rate(input_values: InputValues, name: str, value: Any) -> InputValues:
    return {**input_values, name: f"{float(value):.12g}/s"}


def _put_text(input_values: InputValues, name: str, value: Any) -> InputValues:
    return {**input_values, name: f"{float(value):.12g}"}


def _put_seconds(input_values: InputValues, name: str, value: Any) -> InputValues:
    return {**input_values, name: f"{float(value):.12g}s"}


def _put_exponent(input_values: InputValues, name: str, value: Any) -> InputValues:
    laws = list(load_laws(_law_names(input_values)))
    # The published value changes nothing, so that it does not undo the other exponent.
    if float(value) == float(load_law(laws[0].name).constants[name]):
        return input_values
    return {**input_values, "law": (with_constant(laws[0], name, float(value)), *laws[1:])}


def _exponent_width(law: Law, name: str) -> float:
    """Return half of the 90 % range of the logarithm of a constant."""
    deviation = law.spread.deviations[law.spread.names.index(name)] if law.spread else 0.0
    is_log = law.spread is not None and name in law.spread.logs
    return Z90 * (deviation if is_log else deviation / float(law.constants[name]))


def _assumed(name: str, base: float, description: str, **attributes: Any) -> Unsure:
    return spread(
        name, base, math.log1p(ASSUMED), description=description,
        unit="tokens" if attributes.get("is_count") and name != "batch" else "",
        basis=f"assumed, {percent(ASSUMED)}", learn=TRAFFIC, **attributes,
    )  # fmt: skip


def _figures(system: System, answer: str, chips: float) -> Iterator[Unsure]:
    """Yield the figures of a machine that have a source, with the range of its grade.

    Figures of power matter only for energy, the scale-out network only for more chips than a scale-up domain.
    """
    grades = [system.figures[f"{CLOCK}.{kind}"].grade for kind in system.chip.peak if f"{CLOCK}.{kind}" in system.figures]
    widths = [HALF_WIDTHS[grade] for grade in grades if grade in HALF_WIDTHS]
    if widths:
        # Peak rates may have several grades; the most frequent one stands for the clock.
        usual = max(set(grades) & set(HALF_WIDTHS), key=grades.count)
        yield spread(
            CLOCK, 1.0, HALF_WIDTHS[usual], description="the arithmetic of the chip", basis=in_words(usual),
            learn=MICROBENCHMARK, place=put_clock,
        )  # fmt: skip
    for path, unit in settable(system).items():
        figure = system.figures.get(path)
        idle = path.endswith("power") and "joule" not in answer
        idle |= path.startswith("scale_out.") and chips <= np.min(system.scale_up.size)
        if path.startswith(CLOCK) or figure is None or figure.grade not in HALF_WIDTHS or idle:
            continue
        value = in_force(system, path)
        if np.ndim(value) == 0 and 0 < value < math.inf and not path.endswith("size"):
            head, _, key = path.rpartition(".")
            place = head.removeprefix("chip.").replace("_", "-")
            yield spread(
                path, float(value), HALF_WIDTHS[figure.grade],
                description=f"{NOUNS.get(key, 'the ' + key)} of {PLACES.get(place, place)}",
                unit=unit, basis=in_words(figure.grade), learn=MICROBENCHMARK,
            )  # fmt: skip


def _idle(model: Model, system: System, engine: Engine) -> set[str]:
    """Return the uncertain constants without effect on a model.

    A constant that no run determines also has none where its deviation moves a pass by less than `LEAST_EFFECT`. The passes run
    on one chip: decode of one sequence with a long context, decode of many sequences, and prefill of a long
    prompt. Constants of the exchange between chips have no effect on one chip, and always count.
    """
    together, names = ("seconds_per_collective", "network_efficiency"), uncertain_constants(engine)
    # A constant without an effect on these passes, such as one of experts in a dense model, has no row in the result.
    passes = ({"batch": 1, "context": 2**17}, {"batch": 1024, "context": 1024}, {"prompts": 1, "tokens": 8192})
    slopes = np.max([np.abs(log_gradient(partial(_seconds, model, system, work), engine)) for work in passes], axis=0)
    least = [LEAST_EFFECT / engine.fit["prior"][name] if name in engine.fit.get("prior", {}) else 0.0 for name in names]
    return {name for name, has_effect in zip(names, slopes > least, strict=True) if not has_effect and name not in together}


def _seconds(model: Model, system: System, work: Mapping[str, Any], engine: Engine) -> Number:
    return mixed_step(model, system, **work, engine=engine).total


def _constants(model: Model, system: System, engine: Engine) -> Iterator[Unsure]:
    """Yield the fitted constants with an effect on a model, with their deviations."""
    names = engine.fit.get("names", ())
    if not names:
        return
    idle = _idle(model, system, engine)

    # The diagonal of the covariance has the marginal variances.
    deviation = np.sqrt(np.diagonal(np.asarray(engine.fit.get("covariance", np.zeros((len(names), len(names)))))))
    runs = engine.fit.get("runs")
    basis = f"fitted to {runs:,} runs" if runs else "fitted"
    for name, sigma in zip(names, deviation.tolist(), strict=True):
        base, description = constant(engine, name), DESCRIPTIONS[name]
        if sigma > 0 and name not in idle and np.ndim(base) == 0 and base > 0:
            meaning = description["line"].partition(",")[0]
            share, is_time = description["unit"] == "share", description["unit"].startswith(SECONDS)
            yield spread(
                name, float(base), Z90 * sigma,
                description=f"the {'share ' if share else 'time of ' if is_time else ''}{meaning}",
                unit="s" if is_time else "", basis=basis, learn=OWN_RUNS, place=put_constant, minimum=0.0,
                maximum=SHARE if share else math.inf,
            )  # fmt: skip


def _scatter(
    engine: Engine, system: System, regime: Number | str, wider: tuple[Number, Number] = (0.0, 0.0)
) -> Iterator[Unsure]:
    """Yield the remaining error of an engine, as a factor on the time of every step."""
    if not has_range(engine):
        return
    # The variance that the constants made in the left-out runs is already in the constants.
    usual = float(engine.fit.get("parameter_variance", {}).get("tpot", {}).get(str(regime), 0.0))
    low, high = factors(engine, "tpot", regime, system=system, wider=wider)
    below, above = (math.sqrt(max(0.0, float(np.log(end)) ** 2 - Z90**2 * usual)) for end in (low, high))
    if below or above:
        runs = engine.fit.get("runs")
        far = ", outside the measured runs" if any(np.any(np.asarray(excess) > 0) for excess in wider) else ""
        yield spread(
            SCATTER, 1.0, (below, above), description="the prediction error on this model and machine",
            basis=(f"errors of {runs:,} left-out runs{far}" if runs else "never measured, a factor of 2"),
            learn=OWN_RUNS, place=put_scatter,
        )  # fmt: skip


def _planned_scatter(input_values: InputValues, model: Model, engine: Engine, system: System) -> Iterator[Unsure]:
    """Yield the scatter of a plan, in the regime and at the distance of the best plan."""
    if not has_range(engine):
        return
    from steptime.questions.plan_question import solve

    # Layout and regime of the best plan are known only after planning.
    deployment = solve(input_values, diagnostics=False)
    if not deployment.feasible:
        return
    pools = deployment.pools
    layouts = (pool.layout for pool in pools)
    extrapolation = distances(engine, system, *layouts, model=model, drafts=bool(input_values.get("drafts")))
    yield from _scatter(engine, system, str(latency_regime(_input_share(pools[-1]))), widening(extrapolation))


def _input_share(pool: Pool) -> float:
    """Return the share of prefill in the time of a pool's steps; 0 without prefill."""
    if pool.mixed is None:
        return 0.0
    # Chunked prefill lengthens a share of the steps from the decode time to the mixed time.
    decode_seconds, mixed_seconds = float(pool.step.total), float(pool.mixed.total)
    mean = decode_seconds + pool.chunk_share * (mixed_seconds - decode_seconds)
    return pool.chunk_share * (mixed_seconds - decode_seconds) / mean


def _assumed_constants(model: Model, system: System, engine: Engine) -> Iterator[Unsure]:
    """Yield the constants with a prior deviation that no run determines, such as the skew of experts."""
    idle = _idle(model, system, engine) if engine.fit.get("names") else set()
    for name, sigma in engine.fit.get("prior", {}).items():
        base, description = constant(engine, name), DESCRIPTIONS[name]
        # Experts matter only to a model with experts, and their skew only where the imbalance is not known.
        is_known = np.any(np.asarray(engine.experts.expert_imbalance) > 0)
        is_idle = GROUP_BY_NAME[name] == "experts" and (not model.routed or is_known)
        is_idle |= name in idle and name != SKEW
        if not is_idle and np.ndim(base) == 0 and base > 0:
            of_experts = GROUP_BY_NAME[name] == "experts"
            yield spread(
                name, float(base), Z90 * sigma, description=f"the {description['line'].partition(' (')[0]}",
                unit="s" if description["unit"].startswith(SECONDS) else "",
                basis="published values of other models and data" if of_experts else "a prior that no run determines",
                minimum=float(description["least"]), maximum=float(description["most"]), place=put_constant,
                learn=f"{TRAFFIC}: rows of the busiest rank, divided by the mean (--imbalance)" if of_experts else OWN_RUNS,
            )  # fmt: skip


def _rent(system: System, answer: str) -> Iterator[Unsure]:
    """Yield the rent, uniform between the quotes of its kind within a year.

    The rent is certain if the user gave it, and without effect if the answer is not money.
    """
    rent = system.rent
    if "usd" in answer and has_rent(rent) and np.ndim(rent.typical) == 0 and rent.high > rent.low:
        yield Unsure(
            name=RENT, description="the rent", unit="USD/s", low=float(rent.low), base=float(rent.typical),
            high=float(rent.high), basis=f"{kind_in_words(rent)}, quotes of the year to {rent.date[:7]}", even=True,
            learn="a quote, then --rent",
        )  # fmt: skip


def _acceptance(input_values: Mapping[str, Any], model: Model) -> Iterator[Unsure]:
    """Yield the acceptance length, uniform between the values measured for all models, or in the range of a prior."""
    drafts = input_values.get("drafts") or 0
    if not drafts or input_values.get("acceptance") is not None:
        return
    speculation = choose_speculation(model, int(drafts))
    base = speculation.acceptance
    if speculation.method != OWN_LAYERS:
        if speculation.acceptance_range is not None:
            low, high = speculation.acceptance_range
            yield Unsure(
                name="acceptance", description="the acceptance length", unit="", low=low, base=base, high=high, minimum=1.0,
                maximum=drafts + 1.0, basis=speculation.source, even=True, place=put, learn=f"{TRAFFIC} (--acceptance)",
            )  # fmt: skip
        return

    # The curve "typical" stands for models without a measured curve, and is no measurement of one model.
    every = [
        curve.tokens[drafts - 1]
        for curve in curves()
        if curve.method == OWN_LAYERS and len(curve.tokens) >= drafts and TYPICAL not in curve.models
    ]
    low, high = min([base, *every]), max([base, *every])
    if high > low:
        yield Unsure(
            name="acceptance", description="the acceptance length", unit="", low=low, base=base, high=high, minimum=1.0,
            maximum=drafts + 1.0, basis=f"{len(every)} acceptance lengths of other models and prompts", even=True, place=put,
            learn=f"{TRAFFIC} (--acceptance)",
        )  # fmt: skip


def with_ranges(
    question: Question, input_values: Mapping[str, Any], parameters: Sequence[Unsure], ranges: Iterable[tuple[str, Any]]
) -> list[Unsure]:
    """Return the uncertain inputs of a question with the ranges that the user gives.

    Args:
        question: The question.
        input_values: Inputs by name.
        parameters: Inputs that are uncertain by default.
        ranges: Names with "LOW:HIGH", or with two numbers in base units.

    Returns:
        The uncertain inputs, with the given ranges in place of the default ones.

    Raises:
        RangeError: If a range does not contain the value of its input.
        UnknownName: If an input does not exist.
        InputError: If an input is a name, or has two ranges.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    ranged_names: set[str] = set()
    for typed, values in ranges:
        name = typed.strip().lstrip("-").replace("-", "_")
        if name not in by_name and name not in CONSTANTS:
            name = plain_name(question, typed)
        if name in ranged_names:
            raise InputError(f"{name}: has two ranges; keep one of them")
        ranged_names.add(name)
        base = by_name.get(name)
        spec = _input(question, input_values, base, name)
        if spec.kind == TEXT and (isinstance(values, str) or question.answers):
            raise InputError(f"{name}: is a name without a range; compare several with `steptime sweep --over {name}=...`")
        low, high = _ends(name, values, spec)
        if name in CONSTANTS and (problem := find_problem(name, low) or find_problem(name, high)):
            raise RangeError(f"{name} {problem}")
        middle = base.base if base is not None else _base_value(question, input_values, name)
        basis = "range as given" if middle is not None else "range as given, base at its middle"
        middle = (low + high) / 2 if middle is None else middle
        if not low <= middle <= high:
            value, lower, upper = (written(float(number), spec.unit) for number in (middle, low, high))
            raise RangeError(
                f"{name}: the value {value} is outside its range from {lower} to {upper}; widen the range, or give another "
                f"{name}"
            )

        if base is None:
            base = Unsure(
                name=name, description=f"the {spec.meaning}" if spec.meaning else name, unit=spec.unit, low=low, base=middle,
                high=high, basis=basis, place=put_constant if name in CONSTANTS else put, is_count=spec.kind == COUNT,
                broadcasts=spec.broadcasts,
            )  # fmt: skip
        # A range of the user says nothing about its middle, so that all values are equally likely, and has its own bounds.
        by_name[name] = replace(
            base, low=low, base=float(middle), high=high, basis=basis, even=True, minimum=-math.inf, maximum=math.inf
        )
    return list(by_name.values())


def _input(question: Question, input_values: Mapping[str, Any], parameter: Unsure | None, name: str) -> Input:
    """Return the declaration with which the range of an input is read."""
    if name in question.inputs:
        return question.inputs[name]
    if parameter is not None:
        return Input(
            meaning=parameter.description,
            unit=parameter.unit,
            broadcasts=True,
            bare=not parameter.unit or parameter.place is put_constant,
        )

    # Constants of the engine have no declaration: the unit is the first word of their description.
    if name in CONSTANTS and "engine" in question.inputs:
        description = DESCRIPTIONS[name]
        unit = "s" if description["unit"].startswith("s ") or description["unit"] == "s" else ""
        return Input(meaning=f"engine's {name.replace('_', ' ')}", unit=unit, broadcasts=True, bare=True)
    try:
        return find_input(question, name, input_values)
    except UnknownName:
        figures = [CLOCK, *CONSTANTS] if "engine" in question.inputs else []
        has_system = question.figures and input_values.get("system") is not None
        paths = settable_figures(input_values) if has_system else {}
        raise UnknownName(
            f"input of {question.name}", name, [*question.inputs, *figures, *paths],
            f"Known: {', '.join(question.inputs)}" + (
                ", figures of the system (`steptime systems NAME`) and constants of the engine (`steptime engines NAME`)."
                if figures else "."
            ),
        ) from None  # fmt: skip


def _ends(name: str, values: Any, spec: Input) -> tuple[float, float]:
    if isinstance(values, str):
        parts = values.split(":")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise RangeError(f"{name}: must be LOW:HIGH, such as {_example(spec)}, got {short_repr(values)}")
        # The reader of axes knows units: LOW:HIGH:2 gives both ends.
        ends = [float(value) for value in read_values(name, f"{values}:2", spec)]
        return ends[0], ends[-1]
    pair = list(values) if isinstance(values, tuple | list | np.ndarray) else []
    if len(pair) != 2 or not all(isinstance(end, int | float | np.number) and math.isfinite(end) for end in pair):
        raise RangeError(f"{name}: a range must be two numbers, low and high, got {short_repr(values)}")
    low, high = float(pair[0]), float(pair[1])
    if not low < high:
        raise RangeError(f"{name}: low must be below high, got {short_repr(low)} to {short_repr(high)}")
    return low, high


def _example(spec: Input) -> str:
    return {
        "B/s": "7TB/s:8TB/s", "B": "80GB:96GB", "FLOP/s": "1PFLOP/s:2PFLOP/s", "s": "1ms:2ms", "USD/s": "1.5:3",
    }.get(spec.unit, "1k:8k" if spec.kind == COUNT else "0.8:1.2")  # fmt: skip


def _base_value(question: Question, input_values: Mapping[str, Any], name: str) -> float | None:
    """Return the value of an input; None if it is unknown."""
    if name in input_values:
        value = input_values[name]
        if not isinstance(value, int | float | np.number) or isinstance(value, bool):
            raise RangeError(f"{name}: must be one number to have a range, got {short_repr(value)}")
        return float(value)

    # Values that the user did not give come from the engine, the machine, or the default of the closed form.
    system = input_values.get("system")
    if name in CONSTANTS:
        value = float(constant(_engine(input_values), name))
        return value if math.isfinite(value) else None
    if question.figures and system is not None and ("." in name or name in ("rent", "power")):
        figure = float(in_force(read_system(input_values), name))
        return figure if math.isfinite(figure) else None
    if question.written is not None:
        default = inspect.signature(question.written).parameters[name].default
        return float(default) if isinstance(default, int | float) else None
    return None
