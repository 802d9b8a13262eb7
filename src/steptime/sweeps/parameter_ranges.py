r"""The uncertain inputs of a step and of a plan: figures of the machine, the engine, rents, and the user's traffic.

**Figures** of the machine have the range of their grade (`input_distribution.HALF_WIDTHS`). A figure that the caller sets is
certain. All peak rates of a chip follow one clock, and err together: `chip.peak` is a factor on them.

**Constants** of the engine that were fitted have the (marginal) standard deviation of their logarithm from the covariance of
the fit. Correlations between them are left out; `tornado.correlated` gives their effect. Constants that were fixed during the
fit are part of the scatter.

**Scatter** is the error that remains in runs left out of the fit, in addition to the constants. It is a factor $x$ on the time
of every step, whose 90 % range is $e^{-s_-}$ to $e^{s_+}$ with

$$ s_\pm^2 = q_\pm^2 - Z^2 \bar v + d_\pm^2 $$

Here $q$ is the interval of the left-out runs. The mean variance $\bar v$ that the constants made in these runs reduces it. The
distance $d$ of a layout from the measured ones widens it (`physics/uncertainty`, `physics/extrapolation`). Scatter and
constants together give the range of a plan, and of a step whose layout is similar to the measured ones. Errors of data sheets
of measured machines are part of that scatter too, so that figures count slightly twice there.

The uncertain inputs of a question, with their ranges and the basis of each range.

`HOMES` names a function per question that returns its uncertain inputs. Another package adds its questions there. Any other
input becomes uncertain if the user gives a range.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np

from steptime.catalog.acceptance_lengths import OWN_LAYERS, TYPICAL, curves
from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.hardware.number_formats import SOFTWARE
from steptime.hardware.rental_prices import has_rent, kind_in_words
from steptime.hardware.system import System
from steptime.hardware.what_if import in_force, settable
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.physics.engine import Engine, constant, engine_for, with_constants
from steptime.physics.engine_parameters import CONSTANTS, DESCRIPTIONS, SHARE, find_problem
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step
from steptime.physics.uncertainty import REGIMES, Z90, distances, factors, has_range, latency_regime, log_gradient, widening
from steptime.planning.plan_result import Pool
from steptime.planning.workload import choose_speculation
from steptime.questions.declaration import COUNT, RENT, TEXT, Input, Question
from steptime.questions.registry import find_input, plain_name
from steptime.questions.subject import FORMATS, SIZES, SUBJECT, read_subject, read_system
from steptime.sweeps.axes import read_values
from steptime.sweeps.input_distribution import ASSUMED, HALF_WIDTHS, InputValues, Unsure, in_words, put, spread
from steptime.sweeps.sensitivity_result import written

# Names of the two inputs that are factors: on all peak rates, and on the time of every step.
CLOCK, SCATTER = "chip.peak", "scatter"
# How to learn the values, in words.
MICROBENCHMARK = "a microbenchmark of the machine, then --set FIGURE=VALUE"
OWN_RUNS = "your own runs (`steptime anchors`, `steptime calibrate`)"
TRAFFIC = "your own traffic"
# Defaults of the inputs of a step that depend on traffic, by phase (`step_question.ask`).
LENGTHS: Final = {
    "decode": {"batch": 1, "context": 4096},
    "prefill": {"tokens": 8192, "prefix": 0},
    "mixed": {"batch": 1, "context": 4096, "tokens": 8192, "prefix": 0},
}
# Names of figures in descriptions; other figures keep their own name.
NOUNS: Final = {
    "bandwidth": "the bandwidth", "latency": "the latency", "capacity": "the capacity", "usd_per_byte": "the price",
}  # fmt: skip


def settled(input_values: InputValues) -> tuple[dict[str, Any], Model, System, Engine]:
    """Return the inputs of a question with model, system and engine loaded.

    Everything that the user set of them is applied, and no longer an input.

    Args:
        input_values: Inputs by name.

    Returns:
        Inputs, model, system and engine.
    """
    model, system, engine = read_subject(input_values)
    other_inputs = {
        name: value
        for name, value in input_values.items()
        if name not in (*FORMATS, *SUBJECT) and "." not in name and name != "power"
    }
    return {**other_inputs, "model": model, "system": system, "engine": engine}, model, system, engine


def put_constant(input_values: InputValues, name: str, value: Any) -> InputValues:
    """Return the inputs of a question with one constant of the engine set.

    Args:
        input_values: Inputs by name.
        name: Name of the constant.
        value: Its value.

    Returns:
        Inputs with a changed engine.
    """
    engine = input_values.get("engine")
    if not isinstance(engine, Engine):
        engine = engine_for(read_system(input_values), engine, input_values.get("catalog"))
    return {**input_values, "engine": with_constants(engine, {name: value})}


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


def of_step(input_values: InputValues, answer: str) -> tuple[InputValues, list[Unsure]]:
    """Return the inputs of a step, and the uncertain ones among them.

    Args:
        input_values: Inputs by name.
        answer: Name of the answer; money and energy depend on more inputs.

    Returns:
        Inputs with names loaded, and the uncertain inputs.
    """
    inputs, model, system, engine = settled(input_values)
    phase = inputs.get("phase", "decode")
    lengths = LENGTHS.get(phase, LENGTHS["decode"])

    # Errors of decode and of prefill were fitted separately.
    regime = REGIMES[0] if phase == "decode" else REGIMES[1]
    degrees = {name: float(np.max(inputs.get(name, 1))) for name in SIZES}
    layout = Layout(**degrees)
    far = widening(distances(engine, system, layout))
    parameters = [
        *_figures(system, answer, float(layout.chips)),
        *_constants(model, system, engine),
        *_scatter(engine, system, regime, far),
    ]
    parameters += [*_imbalance(model, engine, input_values), *_rent(system, answer)]
    for name, usual in lengths.items():
        base = inputs.get(name, usual)

        # An array is an axis of the user, and certain.
        if np.ndim(base) == 0 and base > 0:
            parameters.append(_assumed(name, float(base), f"the {name}", is_count=True))
    return inputs, parameters


def of_plan(input_values: InputValues, answer: str) -> tuple[InputValues, list[Unsure]]:
    """Return the inputs of a plan, and the uncertain ones among them.

    Args:
        input_values: Inputs by name.
        answer: Name of the answer; money and energy depend on more inputs.

    Returns:
        Inputs with names loaded, and the uncertain inputs.
    """
    inputs, model, system, engine = settled(input_values)
    chips = float(inputs.get("chips") or system.chips)
    parameters = [
        *_figures(system, answer, chips),
        *_constants(model, system, engine),
        *_planned_scatter(inputs, engine, system),
    ]
    parameters += [*_imbalance(model, engine, input_values), *_rent(system, answer)]
    for name, description in (("input", "the prompt length"), ("output", "the output length")):
        parameters.append(_assumed(name, float(inputs.get(name, 1024)), description, is_count=True))
    if inputs.get("cached"):
        parameters.append(_assumed("cached", float(inputs["cached"]), "the cached share of prompts", maximum=0.99))
    return inputs, [*parameters, *_acceptance(inputs, model)]


def _assumed(name: str, base: float, description: str, **attributes: Any) -> Unsure:
    return spread(
        name, base, math.log1p(ASSUMED), description=description,
        unit="tokens" if attributes.get("is_count") and name != "batch" else "",
        basis=f"assumed, {ASSUMED:.0%}".replace("%", " %"), learn=TRAFFIC, **attributes,
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
            place = head.removeprefix("chip.").replace("_", "-") if head else "a chip with its share of host and network"
            yield spread(
                path, float(value), HALF_WIDTHS[figure.grade],
                description=f"{NOUNS.get(key, 'the ' + key)} of {_place_name(place)}",
                unit=unit, basis=in_words(figure.grade), learn=MICROBENCHMARK,
            )  # fmt: skip


def _place_name(place: str) -> str:
    return {"hbm": "HBM", "scale-up": "the scale-up domain", "scale-out": "the scale-out network"}.get(place, place)


def _idle(model: Model, system: System, engine: Engine) -> set[str]:
    """Return the fitted constants without effect on a model.

    The test passes run on one chip: decode of one sequence with a long context, decode of many sequences, and prefill of a long
    prompt. Constants of the exchange between chips have no effect on one chip, and always count.
    """
    together = ("seconds_per_collective", "network_efficiency")
    # A constant without an effect on these passes, such as one of experts in a dense model, has no row in the result.
    passes: list[dict[str, Any]] = [
        {"batch": 1, "context": 2**17},
        {"batch": 1024, "context": 1024},
        {"prompts": 1, "tokens": 8192},
    ]
    moved = np.zeros(len(engine.fit["names"]), dtype=bool)
    for work in passes:
        moved |= log_gradient(partial(_seconds, model, system, work), engine) != 0
    return {
        name for name, has_effect in zip(engine.fit["names"], moved, strict=True) if not has_effect and name not in together
    }


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
            share = description["unit"] == "share"
            yield spread(
                name, float(base), Z90 * sigma,
                description=f"the share {description['line']}" if share else f"the time of {description['line']}",
                unit="" if share else "s", basis=basis, learn=OWN_RUNS, place=put_constant, minimum=0.0,
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


def _planned_scatter(input_values: InputValues, engine: Engine, system: System) -> Iterator[Unsure]:
    """Yield the scatter of a plan, in the regime and at the distance of the best plan."""
    if not has_range(engine):
        return
    from steptime.questions.plan_question import solve

    # Layout and regime of the best plan are known only after planning.
    deployment = solve(input_values, diagnostics=False)
    if not deployment.feasible:
        return
    pools = deployment.pools
    extrapolation = distances(engine, system, *(pool.layout for pool in pools), drafts=bool(input_values.get("drafts")))
    yield from _scatter(engine, system, str(latency_regime(_input_share(pools[-1]))), widening(extrapolation))


def _input_share(pool: Pool) -> float:
    """Return the share of prefill in the time of a pool's steps; 0 without prefill."""
    if pool.mixed is None:
        return 0.0
    # Chunked prefill lengthens a share of the steps from the decode time to the mixed time.
    decode_seconds, mixed_seconds = float(pool.step.total), float(pool.mixed.total)
    mean = decode_seconds + pool.chunk_share * (mixed_seconds - decode_seconds)
    return pool.chunk_share * (mixed_seconds - decode_seconds) / mean


def _imbalance(model: Model, engine: Engine, input_values: InputValues) -> Iterator[Unsure]:
    """Yield the expert imbalance: its excess over 1 is a guess within a factor of two."""
    name = "expert_imbalance"
    base = constant(engine, name)
    if input_values.get("imbalance") is None and np.ndim(base) == 0 and base > 1 and model.routed:
        yield Unsure(
            name=name, description="the imbalance of experts", low=1 + (float(base) - 1) / 2, base=float(base),
            high=1 + (float(base) - 1) * 2, basis="a guess: the excess over 1 within a factor of 2", minimum=1.0,
            learn=f"{TRAFFIC}: rows of the busiest chip, divided by the mean (--imbalance)", place=put_constant,
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
    """Yield the acceptance length, uniform between the values measured for all models."""
    drafts = input_values.get("drafts") or 0
    if not drafts or input_values.get("acceptance") is not None:
        return
    base = choose_speculation(model, int(drafts)).acceptance

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


# Module and name of the function that returns the uncertain inputs of a question.
# It takes inputs and the name of the answer, and returns the settled inputs and the uncertain ones.
HOMES: Final = {"step": "parameter_ranges of_step", "plan": "parameter_ranges of_plan"}


def unsure_inputs(question: Question, input_values: Mapping[str, Any], answer: str) -> tuple[Mapping[str, Any], list[Unsure]]:
    """Return the inputs of a question with names loaded, and the uncertain inputs.

    Args:
        question: The question.
        input_values: Inputs by name.
        answer: Answer whose uncertainty matters.

    Returns:
        The inputs, and the uncertain ones; none for a closed form.
    """
    if question.name not in HOMES:
        return input_values, []
    module, _, name = HOMES[question.name].partition(" ")
    tells: Callable[..., tuple[Mapping[str, Any], list[Unsure]]] = getattr(import_module(f"steptime.sweeps.{module}"), name)
    return tells(input_values, answer)


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
        name = _name(question, by_name, typed)
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

        # A range of the user says nothing about its middle, so that all values are equally likely.
        attributes: dict[str, Any] = {"low": low, "base": float(middle), "high": high, "basis": basis, "even": True}
        if base is not None:
            by_name[name] = Unsure(
                name=name, description=base.description, unit=base.unit, learn=base.learn, place=base.place,
                is_count=base.is_count, broadcasts=base.broadcasts, **attributes,
            )  # fmt: skip
        else:
            by_name[name] = Unsure(
                name=name, description=f"the {spec.meaning}" if spec.meaning else name, unit=spec.unit,
                is_count=spec.kind == COUNT, place=put_constant if name in CONSTANTS else put, broadcasts=spec.broadcasts,
                **attributes,
            )  # fmt: skip
    return list(by_name.values())


def _name(question: Question, parameters: Mapping[str, Unsure], name: str) -> str:
    under = name.strip().lstrip("-").replace("-", "_")
    return under if under in parameters or under in CONSTANTS else plain_name(question, name)


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
        raise UnknownName(
            f"input of {question.name}", name, [*question.inputs, *figures, *_paths(question, input_values)],
            f"Known: {', '.join(question.inputs)}" + (
                ", figures of the system (`steptime systems NAME`) and constants of the engine (`steptime engines NAME`)."
                if figures else "."
            ),
        ) from None  # fmt: skip


def _paths(question: Question, input_values: Mapping[str, Any]) -> list[str]:
    if not question.figures or input_values.get("system") is None:
        return []
    from steptime.questions.subject import settable_figures

    return list(settable_figures(input_values))


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
        engine = input_values.get("engine")
        engine = (
            engine if isinstance(engine, Engine) else engine_for(read_system(input_values), engine, input_values.get("catalog"))
        )
        value = float(constant(engine, name))
        return value if math.isfinite(value) else None
    if question.figures and system is not None and ("." in name or name in ("rent", "power")):
        figure = float(in_force(read_system(input_values), name))
        return figure if math.isfinite(figure) else None
    if question.written is not None:
        default = inspect.signature(question.written).parameters[name].default
        return float(default) if isinstance(default, int | float) else None
    return None
