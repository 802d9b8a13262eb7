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
MOST: Final = 2**20
MOST_POINTS: Final = 2**22  # whose inputs fit in a gigabyte
LONGEST: Final = DAY
SLOW: Final = 1e-3  # s of a point from which inputs that hardly swing the answer are left out of the indices
SMALL: Final = (
    0.05  # of the largest swing: what is smaller is left out of the indices of a slow question, 0.25 % of the variance
)
TOLD: Final = 0.01  # of the variance that correlations change, from which it is said
MOST_REFUSED: Final = 0.1  # of the samples that may have no answer

Announce = Callable[[str], None]


def sensitivity(
    question: Question | str | Callable[..., Any],
    *,
    of: str | None = None,
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

    question: "step", "plan", "blackboard.NAME", or a function of your own, as for `sweep`. of: the answer, by default the cost.
    vary: ranges by input, "LOW:HIGH" with units or two numbers in base units
    (a rent: USD per chip-hour), beside or in place of those that are known of
    steps and plans: figures of the machine by the grade of their source, the engine's constants by the covariance of their fit
    and its other errors by runs that were left out, rents by dated quotes, one's own traffic as assumed. fixed: other inputs.

    Each input goes to both ends of its range while the others stay (tornado). sobol: first and total indices too, from
    `samples` (a power of two) of all inputs together, drawn with `seed`. A plan is made anew at each point: what it would cost
    if the input were so, and were known. progress(done, total) and announce(words) are called on the way.

    Raises InputError where the question itself has no answer.

    >>> found = sensitivity("blackboard.drain_seconds", vary={"bandwidth": (3e12, 5e12)}, capacity=80e9, bandwidth=4e12)
    >>> [(one.name, round(one.at_low, 4), round(one.at_high, 4)) for one in found.swings]
    [('bandwidth', 0.0267, 0.016)]
    """
    asked = find_question(question, vectorised=vectorised)
    held = in_base_units(asked, {plain_name(asked, name): value for name, value in fixed.items()})
    held = read_held(asked, held, held)
    return sensitivity_of(
        asked, held, of=of, ranges=tuple(in_base_units(asked, vary or {}).items()), sobol=sobol, samples=samples, seed=seed,
        workers=workers, progress=progress, announce=announce,
    )  # fmt: skip


def sensitivity_of(
    asked: Question,
    held: Mapping[str, Any],
    *,
    of: str | None = None,
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
    for name, value in held.items():
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            raise RangeError(f"{name} must be one value, not {short_repr(value)}: a range goes into vary")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise RangeError(f"workers must be a whole number of at least 1, not {short_repr(workers)}")
    answer = chosen(asked, of)
    ranges = list(ranges)
    if not {plain_name(asked, name) for name, _ in ranges} & {*SIZES, "model", "system"}:
        held = with_layout(asked, held)
    _check_needs(asked, held, [name for name, _ in ranges])
    given, known = unsure_inputs(asked, held, answer)
    inputs = with_ranges(asked, given, known, ranges)
    if not inputs:
        raise InputError(f"nothing is known to be unsure of {asked.name}: give ranges, --vary NAME=LOW:HIGH")
    ask = _Asking(asked, given, answer, workers, progress)
    answer = ask.answer = _answered(ask, inputs)
    say = announce or (lambda _: None)
    plans = 1 + 2 * len(inputs)
    if not ask.quick:
        say(f"one at a time: {counted(plans, 'point')}, some {ask.time(plans)} ...")
    answers, reasons = ask(inputs, tornado.points(inputs))
    met = _reached(ask, inputs, answers, given)
    swings = _swings(inputs, answers, reasons, met)
    share = _memory_share(asked, held)
    over = (f"it does not fit: {share:.0%} of the memory of a chip would be taken",) if share > 1 else ()
    found = Sensitivity(
        question=asked.name,
        meaning=asked.meaning,
        answer=answer,
        answer_meaning=asked.answers[answer].meaning if answer in asked.answers else answer.replace("_", " "),
        unit=asked.answers[answer].unit if answer in asked.answers else "",
        base=float(answers[0]),
        swings=tuple(swings),
        evaluations=plans + HALVINGS * len(met),
        fixed=dict(held),
        fits=share <= 1,
        notes=(*over, *_notes(swings, given, inputs)),
    )
    if sobol:
        found = _with_indices(found, ask, inputs, samples, seed, say)
    return replace(found, seconds=time.perf_counter() - started)


def _memory_share(asked: Question, held: Mapping[str, Any]) -> float:
    """Return the share of a chip's memory that is taken, where the question tells it; else 0."""
    if "memory_share" not in asked.answers:
        return 0.0
    return float(np.max(asked.ask(held, frozenset({"memory_share"}))["memory_share"]))


class _Asking:
    """A question with what is held, which tells one answer at many points, and how long that takes."""

    def __init__(
        self, question: Question, given: Mapping[str, Any], answer: str, workers: int | None, progress: Progress | None
    ) -> None:
        self.question, self.given, self.answer, self.workers, self.progress = question, given, answer, workers, progress
        self.each = question.seconds  # s of one point, about

    @property
    def quick(self) -> bool:
        return self.each < SLOW

    def time(self, points: int) -> str:
        """Say how long so many points take, as those before did."""
        from steptime.sweeps.point_limits import duration

        return duration(points * self.each)

    def __call__(self, inputs: Sequence[Unsure], points: Mapping[str, Array]) -> tuple[Array, dict[int, str]]:
        started = time.perf_counter()
        found = answers_at(self.question, self.given, inputs, points, self.answer, workers=self.workers, progress=self.progress)
        if not self.question.vectorised:
            self.each = (time.perf_counter() - started) / len(found[0])
        return found


def chosen(asked: Question, of: str | None) -> str:
    """Return the answer that is asked for: by default the cost, or the first; raise InputError for one that is no number."""
    if of is None:
        shows = [name for name in asked.shows if not asked.answers[name].text] if asked.answers else []
        return next((name for name in shows if name.startswith("usd_per_million")), shows[0] if shows else "")
    of = of.replace("-", "_")
    if asked.answers and of not in asked.answers:
        raise UnknownName(f"answer of {asked.name}", of, asked.answers, f"It has {', '.join(asked.answers)}.")
    if asked.answers and asked.answers[of].text:
        numbers = [name for name, one in asked.answers.items() if not one.text]
        raise InputError(f"{of} is a text, and nothing swings it by so much; numbers are {listed(numbers, 40)}")
    return of


def check_samples(samples: int | None, seed: int, *, sobol: bool) -> None:
    """Raise RangeError for numbers of samples that Sobol's sequence does not have, and for samples without indices."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise RangeError(f"seed must be a whole number from 0 to {2**32 - 1:,}, not {short_repr(seed)}")
    if samples is None:
        return
    if not sobol:
        raise RangeError("samples are for Sobol's indices: ask for them too (--sobol)")
    if isinstance(samples, bool) or not isinstance(samples, int) or not FEWEST <= samples <= MOST:
        raise RangeError(f"samples must be a power of two from {FEWEST:,} to {MOST:,}, not {short_repr(samples)}")
    if samples & (samples - 1):
        below = 1 << (samples.bit_length() - 1)
        raise RangeError(
            f"samples must be a power of two, as Sobol's sequence has them: {below:,} or {2 * below:,}, not {samples:,}"
        )


def _check_needs(asked: Question, held: Mapping[str, Any], ranged: Sequence[str]) -> None:
    on = {plain_name(asked, name) for name in ranged}
    missing = [name for name in asked.needs if name not in held and name not in on]
    if missing:
        raise InputError(
            f"{asked.name} needs {listed(missing)}: give a value (--NAME VALUE), or a range (--vary NAME=LOW:HIGH)"
        )


def _answered(ask: _Asking, inputs: Sequence[Unsure]) -> str:
    """Ask once with every input at its base; return the answer's name. Raises InputError where there is no number."""
    from steptime.sweeps.sample_evaluation import varied

    base: dict[str, Any] = {name: value for name, value in ask.given.items() if name not in {one.name for one in inputs}}
    base |= {one.name: int(one.base) if one.whole else one.base for one in inputs}
    started = time.perf_counter()
    found = varied(ask.question, inputs).ask(base, frozenset({ask.answer} - {""}))
    if not ask.question.vectorised:
        ask.each = time.perf_counter() - started
    if found.get("reason") and ask.answer not in found:
        raise InputError(f"{ask.question.name} has no answer as it is asked: {found['reason']}")
    name = ask.answer or next((key for key, value in found.items() if not isinstance(value, str)), "")
    if name not in found:
        raise UnknownName(f"answer of {ask.question.name}", name, found, f"It has {', '.join(found)}.")
    if not np.all(np.isfinite(np.asarray(found[name], dtype=np.float64))):
        others = "; no rent is known: give one (--rent 2.10), or ask for another answer (--of time)" if "usd" in name else ""
        raise InputError(f"{name} is not known as it is asked{others}")
    return name


def _reached(ask: _Asking, inputs: Sequence[Unsure], answers: Array, given: Mapping[str, Any]) -> dict[tuple[int, int], Reach]:
    """Return the last value that meets the limits, of each end that misses them; none where nothing is limited."""
    if not any(given.get(name) is not None for name in ask.question.limits):
        return {}
    less = lower_is_better(ask.answer)
    missed = is_missed(answers[1:], float(answers[0]), lower_is_better=less)
    ends = [(int(at) // 2, int(at) % 2) for at in np.flatnonzero(missed)]
    if not ends:
        return {}
    return reaches(inputs, ends, float(answers[0]), lambda some, points: ask(some, points)[0], lower_is_better=less)


def _swings(
    inputs: Sequence[Unsure], answers: Array, reasons: Mapping[int, str], met: Mapping[tuple[int, int], Reach]
) -> list[Swing]:
    """Return the swing of each input, the largest first; one with an end that has no answer before all others."""
    low, high = answers[1::2].copy(), answers[2::2].copy()
    kept = [list(one.ends) for one in inputs]
    for (at, side), one in met.items():
        (low, high)[side][at] = one.answer
        kept[at][side] = one.value
    halves = np.array([one.deviations for one in inputs])
    logs = tornado.logged(low, high)
    alone = tornado.deviations(logs[0], logs[1], halves)
    shares = tornado.shares(alone)
    found = [
        Swing(
            name=one.name, what=one.what, unit=one.unit, low=one.ends[0], base=one.base, high=one.ends[1], even=one.even,
            basis=one.basis, learn=one.learn, at_low=float(answers[1 + 2 * i]), at_high=float(answers[2 + 2 * i]),
            missed="".join(word for word, side in (("low", 0), ("high", 1)) if (i, side) in met).replace("lowhigh", "both"),
            met=(kept[i][0], kept[i][1]), at_met=(float(low[i]), float(high[i])), share=float(shares[i]),
            reason=reasons.get(1 + 2 * i, "") or reasons.get(2 + 2 * i, ""),
        )
        for i, one in enumerate(inputs)
    ]  # fmt: skip
    return sorted(found, key=lambda one: (not math.isnan(one.swing), -one.swing if math.isfinite(one.swing) else 0.0))


def _notes(swings: Sequence[Swing], given: Mapping[str, Any], inputs: Sequence[Unsure]) -> list[str]:
    """Say where an end of a range has no answer, and what correlations of an engine's constants would change."""
    found = [f"{one.name}: no answer at an end of its range: {one.reason}" for one in swings if one.reason and not one.missed]
    for one in swings:
        for side in (0, 1):
            if one.misses(side):
                end, answer = (one.low, one.high)[side], (one.at_low, one.at_high)[side]
                costs = one.reason if math.isnan(answer) else f"met at more than {BEYOND:g} times the answer as asked alone"
                found.append(
                    f"{one.name}: limits are met from {written(one.base, one.unit)} to {written(one.met[side], one.unit)}; at "
                    f"{written(end, one.unit)} they are missed ({costs}), which is no part of the variance"
                )
    engine = given.get("engine")
    fit = engine.fit if isinstance(engine, Engine) else {}
    names = list(fit.get("names", ()))
    as_fitted = {one.name for one in inputs if one.basis.startswith("fitted")}
    signed = {
        one.name: math.copysign(math.sqrt(one.share), one.at_met[1] - one.at_met[0])
        for one in swings
        if one.name in as_fitted and not math.isnan(one.swing)
    }
    if len(signed) > 1:
        ratio = tornado.correlated(signed, names, np.asarray(fit["covariance"]))
        share = sum(one.share for one in swings if one.name in signed)
        if abs(ratio - 1) * share > TOLD:
            more = "more" if ratio > 1 else "less"
            found.append(
                f"the engine's fitted constants are correlated, and make {abs(ratio - 1):.0%} {more} variance together than "
                "told here, where each errs by itself"
            )
    return found


def _with_indices(
    found: Sensitivity, ask: _Asking, inputs: Sequence[Unsure], samples: int | None, seed: int, say: Announce
) -> Sensitivity:
    """Return what was found with the indices of the inputs that matter."""
    swings = {one.name: one for one in found.swings}
    if not ask.quick:
        largest = max((one.swing for one in found.swings if not math.isnan(one.swing)), default=0.0)
        inputs = [one for one in inputs if not swings[one.name].swing < SMALL * largest]
    inputs = [one for one in inputs if one.ends[0] < one.ends[1]]
    if not inputs:
        raise InputError("no input swings the answer, and there is nothing to apportion")
    samples = _many(ask, len(inputs), samples)
    points = samples * (len(inputs) + 2)
    if not ask.quick:
        say(f"Sobol's indices of {counted(len(inputs), 'input')}: {counted(points, 'point')}, some {ask.time(points)} ...")
    drawn = indices_of.rows(samples, len(inputs), seed)
    values = {one.name: np.clip(one.values(drawn[:, :, i].ravel()), *_within(swings[one.name])) for i, one in enumerate(inputs)}
    answers, reasons = ask(inputs, values)
    table = answers.reshape(len(inputs) + 2, samples)
    whole = np.isfinite(table).all(axis=0)
    lost = 1 - float(np.mean(whole))
    if lost > MOST_REFUSED:
        why = f"; the first reason: {next(iter(reasons.values()))}" if reasons else ""
        words = f"{lost:.0%} of {samples:,} samples have no answer: there are no indices, which would say little of the others"
        return replace(found, notes=(*found.notes, words + why), evaluations=found.evaluations + points)
    (logs,) = tornado.logged(table[:, whole])
    told = indices_of.indices(logs, seed)
    spread = np.quantile(table[:2, whole], (0.05, 0.5, 0.95))
    for i, one in enumerate(inputs):
        swings[one.name] = replace(
            swings[one.name], first=float(told.first[i]), first_range=_pair(told.first_range[:, i]),
            total=float(told.total[i]), total_range=_pair(told.total_range[:, i]),
        )  # fmt: skip
    notes = list(found.notes)
    if lost > 0:
        notes.append(f"{lost:.1%} of the samples have no answer, and were left out")
    if len(inputs) < len(found.swings):
        left = len(found.swings) - len(inputs)
        notes.append(f"{counted(left, 'input')} that alone {'swings' if left == 1 else 'swing'} the answer by less than "
                     f"{SMALL:.0%} of the largest swing {'has' if left == 1 else 'have'} no indices")  # fmt: skip
    return replace(
        found, swings=tuple(swings[one.name] for one in found.swings), notes=tuple(notes), samples=int(whole.sum()), seed=seed,
        evaluations=found.evaluations + points, spread=(float(spread[0]), float(spread[2])), median=float(spread[1]),
    )  # fmt: skip


def _within(one: Swing) -> tuple[float, float]:
    """Return the least and the most of an input that samples take: a side with a missed limit ends where it is met."""
    return one.met[0] if one.misses(0) else -math.inf, one.met[1] if one.misses(1) else math.inf


def _pair(ends: Array) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def _many(ask: _Asking, inputs: int, samples: int | None) -> int:
    """Return how many samples are drawn; raise RangeError for more than can be held, or waited for."""
    if samples is None and ask.quick:
        samples = min(USUAL, 1 << int(math.log2(MOST_POINTS / (inputs + 2))))
    elif samples is None:
        affordable = PATIENT / max(ask.each, 1e-9) / (inputs + 2)
        samples = max(FEWEST, min(USUAL, 1 << max(0, int(math.log2(max(affordable, 1.0))))))
    points = samples * (inputs + 2)
    if points > MOST_POINTS or points * ask.each > LONGEST:
        raise RangeError(
            f"{samples:,} samples of {counted(inputs, 'input')} are {points:,} points, and would take some {ask.time(points)}"
            f"{f'; at most {MOST_POINTS:,} fit in memory' if points > MOST_POINTS else ''}: ask for fewer samples"
        )
    return samples
