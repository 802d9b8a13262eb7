r"""How much each uncertain input changes an answer, and which one to measure first.

The question is evaluated at both ends of each input (tornado), and at samples of all inputs together (Sobol).

**Cliffs.** Near a limit the cost of a plan has a cliff: the batch falls to a few sequences per chip, and then no plan meets the
limit. An end of a range counts as missed if it has no answer, or an answer worse than `BEYOND` times the base answer. A search
then halves the interval from base to end `HALVINGS` times, in logarithms if both are above 0. It returns the last value that is
not missed. Valid if the answer worsens monotonically on the way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from steptime.errors import Impossible, InputError, RangeError, UnknownName, short_repr
from steptime.number_checks import Array
from steptime.physics.engine import Engine
from steptime.questions.declaration import RENT, Answer, Question, listed, lower_is_better
from steptime.questions.registry import find_question, plain_name
from steptime.questions.step_question import with_layout
from steptime.questions.subject import SIZES
from steptime.sweeps import variance_shares
from steptime.sweeps.axes import Axis, duration, read_inputs, rents_per_second
from steptime.sweeps.executor import Progress, run
from steptime.sweeps.parameter_ranges import Unsure, unsure_inputs, with_ranges
from steptime.sweeps.point_grid import Job
from steptime.sweeps.sensitivity_result import Sensitivity, Swing, written
from steptime.units import DAY, counted, percent

# Factor on the base cost from which a limit counts as missed: nobody buys such a plan. An assumption.
BEYOND: Final = 3.0
# Number of halvings of the interval.
HALVINGS: Final = 6
# Default number of samples of a question that takes arrays.
USUAL: Final = 4096
# Approximate time of the default number of samples of another question [s].
PATIENT: Final = 120.0
# Smallest number of samples.
FEWEST: Final = 16
# Largest number of samples.
MAX_SAMPLES: Final = 2**20
# Largest number of points; their inputs fit in 1 GB.
MOST_POINTS: Final = 2**22
# Longest evaluation that is started [s].
LONGEST: Final = DAY
# Time per point from which inputs with a small swing get no indices [s].
SLOW: Final = 1e-3
# Share of the largest swing below which an input of a slow question gets no indices; it makes 0.25 % of the variance.
SMALL: Final = 0.05
# Change of the variance by correlations from which a note reports it.
REPORTED_CORRELATION: Final = 0.01
# Largest share of samples without an answer.
MOST_REFUSED: Final = 0.1

Announce = Callable[[str], None]
Evaluate = Callable[[Sequence[Unsure], Mapping[str, Array]], Array]


def sensitivity(
    question: Question | str | Callable[..., Any],
    *,
    answer: str | None = None,
    vary: Mapping[str, Any] | None = None,
    sobol: bool = False,
    samples: int | None = None,
    seed: int = 0,
    vectorised: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
    **fixed: Any,
) -> Sensitivity:
    """Return how much each uncertain input changes one answer of a question.

    The default ranges of steps and plans have these sources. Figures of the machine: the grade of their source. Constants of
    the engine: the covariance of their fit. Other errors of the engine: runs that the fit left out. Rents: dated quotes. The
    user's traffic: an assumption.

    Each input takes both ends of its range while the others stay at their base (tornado). The planner runs again at each
    point: the result is the cost if the input had that value, and the planner had it too.

    Args:
        question: "step", "plan", "blackboard.NAME", or a Python function, as for `sweep`.
        answer: Name of the answer; the cost by default.
        vary: Ranges by input, "LOW:HIGH" with units or two numbers in base units (a rent: USD per chip-hour). They add to the
            default ranges, or replace them.
        sobol: Whether to compute Sobol's first and total indices as well, from samples of all inputs together.
        samples: Number of samples, a power of two; None: as many as take about `PATIENT` seconds.
        seed: Random seed of the samples.
        vectorised: Whether a Python function takes arrays.
        workers: Processes of this machine; None: all cores if that is safe and faster.
        progress: Called with the points done and the number of points.
        announce: Called with a text before each long evaluation.
        **fixed: Other inputs by name.

    Returns:
        Swings of all inputs, the largest first.

    Raises:
        Impossible: If the question has no answer with these inputs.

    >>> analysis = sensitivity("blackboard.drain_seconds", vary={"bandwidth": (3e12, 5e12)}, capacity=80e9, bandwidth=4e12)
    >>> [(swing.name, round(swing.at_low, 4), round(swing.at_high, 4)) for swing in analysis.swings]
    [('bandwidth', 0.0267, 0.016)]
    """
    declaration = find_question(question, vectorised=vectorised)
    _, fixed_inputs = read_inputs(declaration, {}, fixed)
    ranges = [(name, rents_per_second(ends) if name == RENT else ends) for name, ends in (vary or {}).items()]
    return compute_sensitivity(
        declaration, fixed_inputs, answer=answer, ranges=ranges, sobol=sobol, samples=samples, seed=seed, workers=workers,
        progress=progress, announce=announce,
    )  # fmt: skip


def compute_sensitivity(
    question: Question,
    fixed: Mapping[str, Any],
    *,
    answer: str | None = None,
    ranges: Iterable[tuple[str, Any]] = (),
    sobol: bool = False,
    samples: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Sensitivity:
    """Return the sensitivity of a question whose inputs are already read.

    Args:
        question: Declaration of the question.
        fixed: Fixed inputs by name, in base units.
        answer: Name of the answer; the cost by default.
        ranges: Names and ranges of inputs.
        sobol: Whether to compute Sobol's indices as well.
        samples: Number of samples, a power of two.
        seed: Random seed of the samples.
        workers: Processes of this machine.
        progress: Called with the points done and the number of points.
        announce: Called with a text before each long evaluation.

    Returns:
        Swings of all inputs, the largest first.

    Raises:
        InputError: If no input is uncertain, or the question has no answer.
        RangeError: If an input is not one value, or a number is out of bounds.
    """
    started = time.perf_counter()
    check_samples(samples, seed, sobol=sobol)
    for name, value in fixed.items():
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            raise RangeError(f"{name}: must be one value, got {short_repr(value)}; give a range with vary")
    answer_name = choose_answer(question, answer, has_run=fixed.get("tokens") is not None)
    ranges = list(ranges)

    # A default layout would change from point to point if sizes or subject vary.
    ranged_names = {plain_name(question, name) for name, _ in ranges}
    if ranged_names.isdisjoint({*SIZES, "model", "system"}):
        fixed = with_layout(question, fixed)
    missing = [name for name in question.needs if name not in fixed and name not in ranged_names]
    if missing:
        raise InputError(
            f"{question.name} needs {listed(missing)}; give a value (--NAME VALUE), or a range (--vary NAME=LOW:HIGH)"
        )
    input_values, parameters = unsure_inputs(question, fixed, answer_name)
    inputs = with_ranges(question, input_values, parameters, ranges)
    if not inputs:
        raise InputError(f"vary: {question.name} has no uncertain inputs by default; give ranges, --vary NAME=LOW:HIGH")
    ask = _Asking(question, input_values, answer_name, workers, progress)
    answer_name = ask.answer = ask.ask_base(inputs)
    say = announce or (lambda _: None)
    plans = 1 + 2 * len(inputs)
    if not ask.quick:
        say(f"computing {counted(plans, question.name if question.name == 'plan' else 'point')}, about {ask.time(plans)} ...")

    # The first point is the base; then each input takes its low and its high value.
    answers, reasons = ask(inputs, variance_shares.points(inputs))
    limit_reaches = _reached(ask, inputs, answers, input_values)
    swings = _swings(inputs, answers, reasons, limit_reaches)

    # A step is computed even if it does not fit, so that a note must say so.
    share = _memory_share(question, fixed)
    over = (f"the base case does not fit: it needs {percent(share)} of the memory of a chip",) if share > 1 else ()
    declared = question.answers.get(answer_name, Answer())
    analysis = Sensitivity(
        question=question.name,
        meaning=question.meaning,
        answer=answer_name,
        answer_meaning=declared.meaning or answer_name.replace("_", " "),
        unit=declared.unit,
        base=float(answers[0]),
        swings=tuple(swings),
        evaluations=plans + HALVINGS * len(limit_reaches),
        fixed=dict(fixed),
        fits=share <= 1,
        notes=(*over, *_notes(swings, input_values, inputs)),
    )
    if sobol:
        analysis = _with_indices(analysis, ask, inputs, samples, seed, say)
    return replace(analysis, seconds=time.perf_counter() - started)


def _memory_share(question: Question, fixed: Mapping[str, Any]) -> float:
    """Return the used share of a chip's memory; 0 if the question has no such answer."""
    if "memory_share" not in question.answers:
        return 0.0
    return float(np.max(question.ask(fixed, frozenset({"memory_share"}))["memory_share"]))


class _Asking:
    """A question with fixed inputs that evaluates one answer at many values of its uncertain inputs."""

    def __init__(
        self, question: Question, input_values: Mapping[str, Any], answer: str, workers: int | None, progress: Progress | None
    ) -> None:
        self.question, self.input_values, self.answer = question, input_values, answer
        self.run = partial(run, workers=workers, progress=progress)
        # Approximate time of one point [s].
        self.seconds_per_point = question.seconds

    @property
    def quick(self) -> bool:
        return self.seconds_per_point < SLOW

    def time(self, points: int) -> str:
        """Return the time of a number of points in words, from the time of earlier points."""
        return duration(points * self.seconds_per_point)

    def varied(self, inputs: Sequence[Unsure]) -> Question:
        """Return the question with values of uncertain inputs by their names."""
        return replace(
            self.question,
            ask=partial(_ask_placed, self.question, tuple(inputs)),
            vectorised=self.question.vectorised and all(parameter.broadcasts for parameter in inputs),
        )

    def __call__(self, inputs: Sequence[Unsure], points: Mapping[str, Array]) -> tuple[Array, dict[int, str]]:
        """Return the answer at points of shape (points,), NaN without an answer, and the reasons of these points."""
        started = time.perf_counter()
        axes = tuple(
            Axis(name=parameter.name, values=points[parameter.name], broadcasts=parameter.broadcasts) for parameter in inputs
        )
        fixed = {name: value for name, value in self.input_values.items() if name not in points}
        # All inputs advance together: one point per position of their values.
        job = Job(question=self.varied(inputs), axes=axes, fixed=fixed, answer_names=frozenset({self.answer}), together=True)
        gathered = self.run(job)
        answers = gathered.arrays.get(self.answer)
        if answers is None or answers.dtype == object:
            answers = np.full(job.points, np.nan)
        if not self.question.vectorised:
            self.seconds_per_point = (time.perf_counter() - started) / job.points
        return answers, gathered.reasons

    def ask_base(self, inputs: Sequence[Unsure]) -> str:
        """Evaluate the question once at the base, and return the name of the answer.

        Raises InputError if there is no number.
        """
        base_values = {parameter.name: int(parameter.base) if parameter.is_count else parameter.base for parameter in inputs}
        started = time.perf_counter()
        answers = self.varied(inputs).ask({**self.input_values, **base_values}, frozenset({self.answer} - {""}))
        if not self.question.vectorised:
            self.seconds_per_point = time.perf_counter() - started
        if answers.get("reason") and self.answer not in answers:
            raise Impossible(f"{self.question.name}: has no answer with these inputs: {answers['reason']}")
        name = self.answer or next((key for key, value in answers.items() if not isinstance(value, str)), "")
        if name not in answers:
            raise UnknownName(f"answer of {self.question.name}", name, answers, f"It has {', '.join(answers)}.")
        if not np.all(np.isfinite(np.asarray(answers[name], dtype=np.float64))):
            answer = next((name for name in self.question.shows if "usd" not in name), "")
            rent_hint = f"; no rent is known: give one (--rent 2.10), or another answer (--answer {answer})"
            raise InputError(f"{name}: is unknown with these inputs{rent_hint if 'usd' in name else ''}")
        return name


def _ask_placed(
    question: Question, inputs: tuple[Unsure, ...], values: Mapping[str, Any], answer_names: frozenset[str]
) -> Mapping[str, Any]:
    """Return the answers with each uncertain input set in its place, such as a constant inside the engine."""
    names = {parameter.name for parameter in inputs}
    question_inputs: Mapping[str, Any] = {name: value for name, value in values.items() if name not in names}
    for parameter in inputs:
        value = values[parameter.name]
        is_scalar_count = parameter.is_count and not np.ndim(value)
        question_inputs = parameter.place(question_inputs, parameter.name, int(value) if is_scalar_count else value)
    return question.ask(question_inputs, answer_names)


def choose_answer(question: Question, answer: str | None, *, has_run: bool = False) -> str:
    """Return the name of the answer: the given one, else the cost, else the first.

    Args:
        question: The question.
        answer: Name of the answer; None for the default.
        has_run: Whether a training step is a part of a run, which has a rent.

    Returns:
        Name of a numeric answer; "" if a Python function has not yet named its answers.

    Raises:
        UnknownName: If the answer does not exist.
        InputError: If the answer is a text.
    """
    if answer is None:
        shows = [name for name in question.shows if not question.answers[name].text] if question.answers else []
        costs = ("usd_per_million", *(("usd",) if has_run and question.name == "train" else ()))
        return next((name for name in shows if name.startswith(costs)), shows[0] if shows else "")
    answer = answer.replace("-", "_")
    question.check_answer(answer)
    if question.answers and question.answers[answer].text:
        numbers = [name for name, spec in question.answers.items() if not spec.text]
        raise InputError(f"answer: {answer} is a text, which has no swing; give {listed(numbers, 40)}")
    return answer


def check_samples(samples: int | None, seed: int, *, sobol: bool) -> None:
    """Raise an error for samples that Sobol's sequence does not have.

    Args:
        samples: Number of samples; None for the default.
        seed: Random seed.
        sobol: Whether indices are computed.

    Raises:
        RangeError: If `samples` is not a power of two within bounds, or there are samples without indices.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise RangeError(f"seed: must be a whole number from 0 to {2**32 - 1:,}, got {short_repr(seed)}")
    if samples is None:
        return
    if not sobol:
        raise RangeError("samples: only Sobol's indices use samples; add --sobol")
    if isinstance(samples, bool) or not isinstance(samples, int) or not FEWEST <= samples <= MAX_SAMPLES:
        raise RangeError(f"samples: must be a power of two from {FEWEST:,} to {MAX_SAMPLES:,}, got {short_repr(samples)}")
    if samples & (samples - 1):
        below = 1 << (samples.bit_length() - 1)
        raise RangeError(
            f"samples: must be a power of two for Sobol's sequence, got {samples:,}; give {below:,} or {2 * below:,}"
        )


def _reached(
    ask: _Asking, inputs: Sequence[Unsure], answers: Array, input_values: Mapping[str, Any]
) -> dict[tuple[int, int], Reach]:
    """Return the last value within the limits, for each end that misses them.

    Empty if no limit is given.
    """
    if not any(input_values.get(name) is not None for name in ask.question.limits):
        return {}
    is_lower_better = lower_is_better(ask.answer)
    missed = is_missed(answers[1:], float(answers[0]), lower_is_better=is_lower_better)
    ends = [(int(index) // 2, int(index) % 2) for index in np.flatnonzero(missed)]
    if not ends:
        return {}
    return reaches(
        inputs, ends, float(answers[0]), lambda parameters, points: ask(parameters, points)[0], lower_is_better=is_lower_better
    )


def _swings(
    inputs: Sequence[Unsure], answers: Array, reasons: Mapping[int, str], limit_reaches: Mapping[tuple[int, int], Reach]
) -> list[Swing]:
    """Return the swing of each input, the largest first.

    Inputs with an end without an answer come before all others.
    """
    low, high = answers[1::2].copy(), answers[2::2].copy()
    feasible_ends = [list(parameter.ends) for parameter in inputs]

    # An end beyond a limit is replaced by the last value that meets it; the rest does not count as variance.
    for (index, side), reach in limit_reaches.items():
        (low, high)[side][index] = reach.answer
        feasible_ends[index][side] = reach.value
    halves = np.array([parameter.deviations for parameter in inputs])
    logs = variance_shares.logged(low, high)
    deviations = variance_shares.deviations(logs[0], logs[1], halves)
    shares = variance_shares.shares(deviations)
    swings = [
        Swing(
            name=parameter.name, description=parameter.description, unit=parameter.unit, low=parameter.ends[0],
            base=parameter.base, high=parameter.ends[1], even=parameter.even, basis=parameter.basis, learn=parameter.learn,
            at_low=float(answers[1 + 2 * i]), at_high=float(answers[2 + 2 * i]),
            missed="".join(word for word, side in (("low", 0), ("high", 1)) if (i, side) in limit_reaches)
            .replace("lowhigh", "both"),
            feasible_range=(feasible_ends[i][0], feasible_ends[i][1]), at_met=(float(low[i]), float(high[i])),
            share=float(shares[i]), reason=reasons.get(1 + 2 * i, "") or reasons.get(2 + 2 * i, ""),
        )
        for i, parameter in enumerate(inputs)
    ]  # fmt: skip
    return sorted(swings, key=lambda swing: (not math.isnan(swing.swing), -swing.swing if math.isfinite(swing.swing) else 0.0))


def _notes(swings: Sequence[Swing], input_values: Mapping[str, Any], inputs: Sequence[Unsure]) -> list[str]:
    """Return notes on ends without an answer, missed limits and correlated constants."""
    notes = [
        f"{swing.name}: no answer at an end of its range: {swing.reason}"
        for swing in swings
        if swing.reason and not swing.missed
    ]
    for swing in swings:
        for side in (0, 1):
            if swing.misses(side):
                end, answer = (swing.low, swing.high)[side], (swing.at_low, swing.at_high)[side]
                costs = swing.reason if math.isnan(answer) else f"met only at more than {BEYOND:g} times the base answer"
                notes.append(
                    f"{swing.name}: limits are met from {written(swing.base, swing.unit)} to "
                    f"{written(swing.feasible_range[side], swing.unit)}, and missed at {written(end, swing.unit)} ({costs}). "
                    "The variance counts only values that meet them"
                )
    engine = input_values.get("engine")
    fit = engine.fit if isinstance(engine, Engine) else {}
    names = list(fit.get("names", ()))
    as_fitted = {parameter.name for parameter in inputs if parameter.basis.startswith("fitted")}

    # The sign of each effect matters, since correlated errors may cancel.
    signed = {
        swing.name: math.copysign(math.sqrt(swing.share), swing.at_met[1] - swing.at_met[0])
        for swing in swings
        if swing.name in as_fitted and not math.isnan(swing.swing)
    }
    if len(signed) > 1:
        ratio = variance_shares.correlated(signed, names, np.asarray(fit["covariance"]))
        share = sum(swing.share for swing in swings if swing.name in signed)
        if abs(ratio - 1) * share > REPORTED_CORRELATION:
            direction = "more" if ratio > 1 else "less"
            notes.append(
                f"the engine's fitted constants are correlated: together they make {percent(abs(ratio - 1))} {direction} "
                "variance than here, where they are independent"
            )
    return notes


def _with_indices(
    analysis: Sensitivity, ask: _Asking, inputs: Sequence[Unsure], samples: int | None, seed: int, say: Announce
) -> Sensitivity:
    """Return the analysis with the indices of the inputs that matter."""
    # Each index costs as many points as there are samples: slow questions skip inputs with a small swing.
    swings = {swing.name: swing for swing in analysis.swings}
    if not ask.quick:
        largest = max((swing.swing for swing in analysis.swings if not math.isnan(swing.swing)), default=0.0)
        inputs = [parameter for parameter in inputs if not swings[parameter.name].swing < SMALL * largest]
    inputs = [parameter for parameter in inputs if parameter.ends[0] < parameter.ends[1]]
    if not inputs:
        raise InputError("vary: no input changes the answer, so that there is no variance to divide; give wider ranges")
    samples = _sample_count(ask, len(inputs), samples)
    points = samples * (len(inputs) + 2)
    if not ask.quick:
        say(f"Sobol's indices of {counted(len(inputs), 'input')}: {counted(points, 'point')}, about {ask.time(points)} ...")
    shares = variance_shares.rows(samples, len(inputs), seed)
    values = {
        parameter.name: np.clip(parameter.values(shares[:, :, i].ravel()), *_within(swings[parameter.name]))
        for i, parameter in enumerate(inputs)
    }
    answers, reasons = ask(inputs, values)
    table = answers.reshape(len(inputs) + 2, samples)

    # An index needs the answers of all matrices in a row.
    complete = np.isfinite(table).all(axis=0)
    lost = 1 - float(np.mean(complete))
    if lost > MOST_REFUSED:
        why = f"; the first reason: {next(iter(reasons.values()))}" if reasons else ""
        words = (
            f"{percent(lost)} of {samples:,} samples have no answer; indices of the others would be biased, and are left out"
        )
        return replace(analysis, notes=(*analysis.notes, words + why), evaluations=analysis.evaluations + points)
    (logs,) = variance_shares.logged(table[:, complete])
    indices = variance_shares.indices(logs, seed)
    spread = np.quantile(table[:2, complete], (0.05, 0.5, 0.95))
    for i, parameter in enumerate(inputs):
        swings[parameter.name] = replace(
            swings[parameter.name], first=float(indices.first[i]), first_range=tuple(indices.first_range[:, i].tolist()),
            total=float(indices.total[i]), total_range=tuple(indices.total_range[:, i].tolist()),
        )  # fmt: skip
    notes = list(analysis.notes)
    if lost > 0:
        notes.append(f"{percent(lost, 1)} of the samples have no answer, and are left out")
    if len(inputs) < len(analysis.swings):
        omitted = len(analysis.swings) - len(inputs)
        notes.append(f"{counted(omitted, 'input')} with less than {percent(SMALL)} of the largest swing "
                     f"{'has' if omitted == 1 else 'have'} no indices")  # fmt: skip
    return replace(
        analysis, swings=tuple(swings[swing.name] for swing in analysis.swings), notes=tuple(notes),
        samples=int(complete.sum()), seed=seed, evaluations=analysis.evaluations + points,
        spread=(float(spread[0]), float(spread[2])), median=float(spread[1]),
    )  # fmt: skip


def _within(swing: Swing) -> tuple[float, float]:
    """Return the bounds of the samples of an input: a missed limit ends its side."""
    return swing.feasible_range[0] if swing.misses(0) else -math.inf, swing.feasible_range[1] if swing.misses(1) else math.inf


def _sample_count(ask: _Asking, inputs: int, samples: int | None) -> int:
    """Return the number of samples; raise RangeError for too much memory or time."""
    if samples is None and ask.quick:
        samples = min(USUAL, 1 << int(math.log2(MOST_POINTS / (inputs + 2))))
    elif samples is None:
        # As many samples as take about `PATIENT` seconds, rounded down to a power of two.
        affordable = PATIENT / max(ask.seconds_per_point, 1e-9) / (inputs + 2)
        samples = max(FEWEST, min(USUAL, 1 << max(0, int(math.log2(max(affordable, 1.0))))))
    points = samples * (inputs + 2)
    if points > MOST_POINTS or points * ask.seconds_per_point > LONGEST:
        raise RangeError(
            f"samples: {samples:,} samples of {counted(inputs, 'input')} are {points:,} points, and would take about "
            f"{ask.time(points)}{f'; at most {MOST_POINTS:,} fit in memory' if points > MOST_POINTS else ''}; give fewer"
        )
    return samples


# --- cliffs -------------------------------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """The last value that meets the limits on the way to an end, with its answer."""

    value: float
    answer: float


def is_missed(answers: Array, base: float, *, lower_is_better: bool) -> Array:
    """Return whether answers count as missed limits.

    Args:
        answers: Answers of any shape; NaN without an answer.
        base: Answer with every input at its base.
        lower_is_better: Whether a lower answer is better.

    Returns:
        Truth values of the same shape.

    >>> is_missed(np.array([0.5, 2.9, 3.1, np.nan]), 1.0, lower_is_better=True).tolist()
    [False, False, True, True]
    """
    worse = answers > base * BEYOND if lower_is_better else answers < base / BEYOND
    missed: Array = ~np.isfinite(answers) | (worse if base > 0 else False)
    return missed


def reaches(
    inputs: Sequence[Unsure], ends: Sequence[tuple[int, int]], base: float, evaluate: Evaluate, *, lower_is_better: bool
) -> dict[tuple[int, int], Reach]:
    """Return the last value that meets the limits, for each missed end.

    Args:
        inputs: The uncertain inputs.
        ends: Missed ends: position of the input, and 0 for its low or 1 for its high end.
        base: Answer with every input at its base.
        evaluate: Returns answers at values of all inputs.
        lower_is_better: Whether a lower answer is better.

    Returns:
        The value and its answer by end; the base if no other value meets the limits.
    """
    reach_by_end = {end: Reach(inputs[end[0]].base, base) for end in ends}
    missed = {(index, side): inputs[index].ends[side] for index, side in ends}
    for _ in range(HALVINGS):
        middle = {end: _middle(reach_by_end[end].value, missed[end]) for end in ends}

        # All ends are evaluated together: one point per end, with the other inputs at their base.
        points = {parameter.name: np.full(len(ends), parameter.base) for parameter in inputs}
        for row, (index, side) in enumerate(ends):
            parameter = inputs[index]
            middle[index, side] = float(parameter.checked(middle[index, side]))
            points[parameter.name][row] = middle[index, side]
        answers = evaluate(inputs, points)
        over_limits = is_missed(answers, base, lower_is_better=lower_is_better)
        for end, answer, over in zip(ends, answers, over_limits, strict=True):
            # The cliff lies before a missed middle, and behind a met one.
            if over:
                missed[end] = middle[end]
            else:
                reach_by_end[end] = Reach(middle[end], float(answer))
    return reach_by_end


def _middle(met_value: float, missed_value: float) -> float:
    return math.sqrt(met_value * missed_value) if min(met_value, missed_value) > 0 else (met_value + missed_value) / 2
