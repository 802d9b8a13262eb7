"""Which unsure input swings an answer most, and what is worth measuring first: `sensitivity`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.number_checks import Array
from steptime.physics.engine import Engine
from steptime.questions.declaration import Question, listed
from steptime.questions.registry import find_question, plain_name
from steptime.questions.step_question import with_layout
from steptime.questions.subject import SIZES
from steptime.sweeps import sobol as indices_of
from steptime.sweeps import tornado
from steptime.sweeps.axes import in_base_units, read_held
from steptime.sweeps.executor import Progress
from steptime.sweeps.input_distribution import Unsure
from steptime.sweeps.parameter_ranges import unsure_inputs, with_ranges
from steptime.sweeps.question_inputs import lower_is_better
from steptime.sweeps.sample_evaluation import answers_at
from steptime.sweeps.sensitivity_result import Sensitivity, Swing, written
from steptime.sweeps.slo_cliffs import BEYOND, HALVINGS, Reach, is_missed, reaches
from steptime.units import DAY, counted

USUAL: Final = 4096  # samples of a question that takes arrays
PATIENT: Final = 120.0  # s that samples of another question take by default, about
FEWEST: Final = 16  # samples
MAX_SAMPLES: Final = 2**20
MOST_POINTS: Final = 2**22  # whose inputs fit in a gigabyte
LONGEST: Final = DAY
SLOW: Final = 1e-3  # s of a point from which inputs that hardly swing the answer are left out of the indices
SMALL: Final = (
    0.05  # of the largest swing: what is smaller is left out of the indices of a slow question, 0.25 % of the variance
)
REPORTED_CORRELATION: Final = 0.01  # of the variance that correlations change, from which it is said
MOST_REFUSED: Final = 0.1  # of the samples that may have no answer

Announce = Callable[[str], None]


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
    """Return how far each unsure input swings one answer of a question, and which is worth measuring first.

    question: "step", "plan", "blackboard.NAME", or a function of your own, as for `sweep`. answer: by default the
    cost. vary: ranges by input, "LOW:HIGH" with units or two numbers in base units
    (a rent: USD per chip-hour), beside or in place of those that are known of
    steps and plans: figures of the machine by the grade of their source, the engine's constants by the covariance of their fit
    and its other errors by runs that were left out, rents by dated quotes, one's own traffic as assumed. fixed: other inputs.

    Each input goes to both ends of its range while the others stay (tornado). sobol: first and total indices too, from
    `samples` (a power of two) of all inputs together, drawn with `seed`. A plan is made anew at each point: what it would cost
    if the input were so, and were known. progress(done, total) and announce(words) are called on the way.

    Raises InputError where the question itself has no answer.

    >>> analysis = sensitivity("blackboard.drain_seconds", vary={"bandwidth": (3e12, 5e12)}, capacity=80e9, bandwidth=4e12)
    >>> [(swing.name, round(swing.at_low, 4), round(swing.at_high, 4)) for swing in analysis.swings]
    [('bandwidth', 0.0267, 0.016)]
    """
    declaration = find_question(question, vectorised=vectorised)
    fixed_inputs = in_base_units(declaration, {plain_name(declaration, name): value for name, value in fixed.items()})
    fixed_inputs = read_held(declaration, fixed_inputs, fixed_inputs)
    return compute_sensitivity(
        declaration, fixed_inputs, answer=answer, ranges=tuple(in_base_units(declaration, vary or {}).items()), sobol=sobol,
        samples=samples, seed=seed, workers=workers, progress=progress, announce=announce,
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
    """Return what swings an answer of a question whose inputs were read already; see `sensitivity`."""
    started = time.perf_counter()
    check_samples(samples, seed, sobol=sobol)
    for name, value in fixed.items():
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            raise RangeError(f"{name} must be one value, not {short_repr(value)}: a range goes into vary")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise RangeError(f"workers must be a whole number of at least 1, not {short_repr(workers)}")
    answer_name = choose_answer(question, answer)
    ranges = list(ranges)
    if not {plain_name(question, name) for name, _ in ranges} & {*SIZES, "model", "system"}:
        fixed = with_layout(question, fixed)
    _check_needs(question, fixed, [name for name, _ in ranges])
    input_values, parameters = unsure_inputs(question, fixed, answer_name)
    inputs = with_ranges(question, input_values, parameters, ranges)
    if not inputs:
        raise InputError(f"nothing is known to be unsure of {question.name}: give ranges, --vary NAME=LOW:HIGH")
    ask = _Asking(question, input_values, answer_name, workers, progress)
    answer_name = ask.answer = _answered(ask, inputs)
    say = announce or (lambda _: None)
    plans = 1 + 2 * len(inputs)
    if not ask.quick:
        say(f"one at a time: {counted(plans, 'point')}, some {ask.time(plans)} ...")
    answers, reasons = ask(inputs, tornado.points(inputs))
    limit_reaches = _reached(ask, inputs, answers, input_values)
    swings = _swings(inputs, answers, reasons, limit_reaches)
    share = _memory_share(question, fixed)
    over = (f"it does not fit: {share:.0%} of the memory of a chip would be taken",) if share > 1 else ()
    analysis = Sensitivity(
        question=question.name,
        meaning=question.meaning,
        answer=answer_name,
        answer_meaning=question.answers[answer_name].meaning
        if answer_name in question.answers
        else answer_name.replace("_", " "),
        unit=question.answers[answer_name].unit if answer_name in question.answers else "",
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
    """Return the share of a chip's memory that is taken, where the question tells it; else 0."""
    if "memory_share" not in question.answers:
        return 0.0
    return float(np.max(question.ask(fixed, frozenset({"memory_share"}))["memory_share"]))


class _Asking:
    """A question with what is held, which tells one answer at many points, and how long that takes."""

    def __init__(
        self, question: Question, input_values: Mapping[str, Any], answer: str, workers: int | None, progress: Progress | None
    ) -> None:
        self.question, self.input_values, self.answer, self.workers, self.progress = (
            question,
            input_values,
            answer,
            workers,
            progress,
        )
        self.seconds_per_point = question.seconds  # s of one point, about

    @property
    def quick(self) -> bool:
        return self.seconds_per_point < SLOW

    def time(self, points: int) -> str:
        """Say how long so many points take, as those before did."""
        from steptime.sweeps.point_limits import duration

        return duration(points * self.seconds_per_point)

    def __call__(self, inputs: Sequence[Unsure], points: Mapping[str, Array]) -> tuple[Array, dict[int, str]]:
        started = time.perf_counter()
        answers_and_reasons = answers_at(
            self.question, self.input_values, inputs, points, self.answer, workers=self.workers, progress=self.progress
        )
        if not self.question.vectorised:
            self.seconds_per_point = (time.perf_counter() - started) / len(answers_and_reasons[0])
        return answers_and_reasons


def choose_answer(question: Question, answer: str | None) -> str:
    """Return the answer that is asked for: by default the cost, or the first; raise InputError for one that is no number."""
    if answer is None:
        shows = [name for name in question.shows if not question.answers[name].text] if question.answers else []
        return next((name for name in shows if name.startswith("usd_per_million")), shows[0] if shows else "")
    answer = answer.replace("-", "_")
    if question.answers and answer not in question.answers:
        raise UnknownName(f"answer of {question.name}", answer, question.answers, f"It has {', '.join(question.answers)}.")
    if question.answers and question.answers[answer].text:
        numbers = [name for name, spec in question.answers.items() if not spec.text]
        raise InputError(f"{answer} is a text, and nothing swings it by so much; numbers are {listed(numbers, 40)}")
    return answer


def check_samples(samples: int | None, seed: int, *, sobol: bool) -> None:
    """Raise RangeError for numbers of samples that Sobol's sequence does not have, and for samples without indices."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise RangeError(f"seed must be a whole number from 0 to {2**32 - 1:,}, not {short_repr(seed)}")
    if samples is None:
        return
    if not sobol:
        raise RangeError("samples are for Sobol's indices: ask for them too (--sobol)")
    if isinstance(samples, bool) or not isinstance(samples, int) or not FEWEST <= samples <= MAX_SAMPLES:
        raise RangeError(f"samples must be a power of two from {FEWEST:,} to {MAX_SAMPLES:,}, not {short_repr(samples)}")
    if samples & (samples - 1):
        below = 1 << (samples.bit_length() - 1)
        raise RangeError(
            f"samples must be a power of two, as Sobol's sequence has them: {below:,} or {2 * below:,}, not {samples:,}"
        )


def _check_needs(question: Question, fixed: Mapping[str, Any], ranged: Sequence[str]) -> None:
    ranged_names = {plain_name(question, name) for name in ranged}
    missing = [name for name in question.needs if name not in fixed and name not in ranged_names]
    if missing:
        raise InputError(
            f"{question.name} needs {listed(missing)}: give a value (--NAME VALUE), or a range (--vary NAME=LOW:HIGH)"
        )


def _answered(ask: _Asking, inputs: Sequence[Unsure]) -> str:
    """Ask once with every input at its base; return the answer's name. Raises InputError where there is no number."""
    from steptime.sweeps.sample_evaluation import varied

    base: dict[str, Any] = {
        name: value for name, value in ask.input_values.items() if name not in {parameter.name for parameter in inputs}
    }
    base |= {parameter.name: int(parameter.base) if parameter.is_count else parameter.base for parameter in inputs}
    started = time.perf_counter()
    answers = varied(ask.question, inputs).ask(base, frozenset({ask.answer} - {""}))
    if not ask.question.vectorised:
        ask.seconds_per_point = time.perf_counter() - started
    if answers.get("reason") and ask.answer not in answers:
        raise InputError(f"{ask.question.name} has no answer as it is asked: {answers['reason']}")
    name = ask.answer or next((key for key, value in answers.items() if not isinstance(value, str)), "")
    if name not in answers:
        raise UnknownName(f"answer of {ask.question.name}", name, answers, f"It has {', '.join(answers)}.")
    if not np.all(np.isfinite(np.asarray(answers[name], dtype=np.float64))):
        rent_hint = "; no rent is known: give one (--rent 2.10), or ask for another answer (--of time)" if "usd" in name else ""
        raise InputError(f"{name} is not known as it is asked{rent_hint}")
    return name


def _reached(
    ask: _Asking, inputs: Sequence[Unsure], answers: Array, input_values: Mapping[str, Any]
) -> dict[tuple[int, int], Reach]:
    """Return the last value that meets the limits, of each end that misses them; none where nothing is limited."""
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
    """Return the swing of each input, the largest first; one with an end that has no answer before all others."""
    low, high = answers[1::2].copy(), answers[2::2].copy()
    feasible_ends = [list(parameter.ends) for parameter in inputs]
    for (index, side), reach in limit_reaches.items():
        (low, high)[side][index] = reach.answer
        feasible_ends[index][side] = reach.value
    halves = np.array([parameter.deviations for parameter in inputs])
    logs = tornado.logged(low, high)
    deviations = tornado.deviations(logs[0], logs[1], halves)
    shares = tornado.shares(deviations)
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
    """Say where an end of a range has no answer, and what correlations of an engine's constants would change."""
    notes = [
        f"{swing.name}: no answer at an end of its range: {swing.reason}"
        for swing in swings
        if swing.reason and not swing.missed
    ]
    for swing in swings:
        for side in (0, 1):
            if swing.misses(side):
                end, answer = (swing.low, swing.high)[side], (swing.at_low, swing.at_high)[side]
                costs = swing.reason if math.isnan(answer) else f"met at more than {BEYOND:g} times the answer as asked alone"
                notes.append(
                    f"{swing.name}: limits are met from {written(swing.base, swing.unit)} to "
                    f"{written(swing.feasible_range[side], swing.unit)}; at {written(end, swing.unit)} they are missed "
                    f"({costs}), which is no part of the variance"
                )
    engine = input_values.get("engine")
    fit = engine.fit if isinstance(engine, Engine) else {}
    names = list(fit.get("names", ()))
    as_fitted = {parameter.name for parameter in inputs if parameter.basis.startswith("fitted")}
    signed = {
        swing.name: math.copysign(math.sqrt(swing.share), swing.at_met[1] - swing.at_met[0])
        for swing in swings
        if swing.name in as_fitted and not math.isnan(swing.swing)
    }
    if len(signed) > 1:
        ratio = tornado.correlated(signed, names, np.asarray(fit["covariance"]))
        share = sum(swing.share for swing in swings if swing.name in signed)
        if abs(ratio - 1) * share > REPORTED_CORRELATION:
            direction = "more" if ratio > 1 else "less"
            notes.append(
                f"the engine's fitted constants are correlated, and make {abs(ratio - 1):.0%} {direction} variance together "
                "than told here, where each errs by itself"
            )
    return notes


def _with_indices(
    analysis: Sensitivity, ask: _Asking, inputs: Sequence[Unsure], samples: int | None, seed: int, say: Announce
) -> Sensitivity:
    """Return what was found with the indices of the inputs that matter."""
    swings = {swing.name: swing for swing in analysis.swings}
    if not ask.quick:
        largest = max((swing.swing for swing in analysis.swings if not math.isnan(swing.swing)), default=0.0)
        inputs = [parameter for parameter in inputs if not swings[parameter.name].swing < SMALL * largest]
    inputs = [parameter for parameter in inputs if parameter.ends[0] < parameter.ends[1]]
    if not inputs:
        raise InputError("no input swings the answer, and there is nothing to apportion")
    samples = _sample_count(ask, len(inputs), samples)
    points = samples * (len(inputs) + 2)
    if not ask.quick:
        say(f"Sobol's indices of {counted(len(inputs), 'input')}: {counted(points, 'point')}, some {ask.time(points)} ...")
    shares = indices_of.rows(samples, len(inputs), seed)
    values = {
        parameter.name: np.clip(parameter.values(shares[:, :, i].ravel()), *_within(swings[parameter.name]))
        for i, parameter in enumerate(inputs)
    }
    answers, reasons = ask(inputs, values)
    table = answers.reshape(len(inputs) + 2, samples)
    complete = np.isfinite(table).all(axis=0)
    lost = 1 - float(np.mean(complete))
    if lost > MOST_REFUSED:
        why = f"; the first reason: {next(iter(reasons.values()))}" if reasons else ""
        words = f"{lost:.0%} of {samples:,} samples have no answer: there are no indices, which would say little of the others"
        return replace(analysis, notes=(*analysis.notes, words + why), evaluations=analysis.evaluations + points)
    (logs,) = tornado.logged(table[:, complete])
    indices = indices_of.indices(logs, seed)
    spread = np.quantile(table[:2, complete], (0.05, 0.5, 0.95))
    for i, parameter in enumerate(inputs):
        swings[parameter.name] = replace(
            swings[parameter.name], first=float(indices.first[i]), first_range=_pair(indices.first_range[:, i]),
            total=float(indices.total[i]), total_range=_pair(indices.total_range[:, i]),
        )  # fmt: skip
    notes = list(analysis.notes)
    if lost > 0:
        notes.append(f"{lost:.1%} of the samples have no answer, and were left out")
    if len(inputs) < len(analysis.swings):
        omitted = len(analysis.swings) - len(inputs)
        notes.append(f"{counted(omitted, 'input')} that alone {'swings' if omitted == 1 else 'swing'} the answer by less than "
                     f"{SMALL:.0%} of the largest swing {'has' if omitted == 1 else 'have'} no indices")  # fmt: skip
    return replace(
        analysis, swings=tuple(swings[swing.name] for swing in analysis.swings), notes=tuple(notes),
        samples=int(complete.sum()), seed=seed, evaluations=analysis.evaluations + points,
        spread=(float(spread[0]), float(spread[2])), median=float(spread[1]),
    )  # fmt: skip


def _within(swing: Swing) -> tuple[float, float]:
    """Return the least and the most of an input that samples take: a side with a missed limit ends where it is met."""
    return swing.feasible_range[0] if swing.misses(0) else -math.inf, swing.feasible_range[1] if swing.misses(1) else math.inf


def _pair(ends: Array) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def _sample_count(ask: _Asking, inputs: int, samples: int | None) -> int:
    """Return how many samples are drawn; raise RangeError for more than can be held, or waited for."""
    if samples is None and ask.quick:
        samples = min(USUAL, 1 << int(math.log2(MOST_POINTS / (inputs + 2))))
    elif samples is None:
        affordable = PATIENT / max(ask.seconds_per_point, 1e-9) / (inputs + 2)
        samples = max(FEWEST, min(USUAL, 1 << max(0, int(math.log2(max(affordable, 1.0))))))
    points = samples * (inputs + 2)
    if points > MOST_POINTS or points * ask.seconds_per_point > LONGEST:
        raise RangeError(
            f"{samples:,} samples of {counted(inputs, 'input')} are {points:,} points, and would take some {ask.time(points)}"
            f"{f'; at most {MOST_POINTS:,} fit in memory' if points > MOST_POINTS else ''}: ask for fewer samples"
        )
    return samples
