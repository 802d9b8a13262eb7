"""Co-design: models and machines that are not built, and the Pareto front among them.

The axes of a design are fields of an architecture (`arch.kv_heads`, `arch.attention`, ...) and factors on parts of the chip
(`times.bandwidth`, ...). Any figure of the machine, and all other inputs of the question, are axes too. `within="power"` trades
the parts of a chip within its budget: if memory and links take more, arithmetic gets less (`hardware.power_budget`).

The quality of a changed model is not part of the result. Compare models with the same number of parameters, which
`arch.equal` keeps constant. The rent is constant as well: within a budget, the chip is assumed to cost the same as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import Impossible, InputError, RangeError, UnknownName
from steptime.models.model_loading import ModelLike
from steptime.models.model_variants import BALANCE_KEY, EQUAL
from steptime.number_checks import Array
from steptime.pareto import pareto
from steptime.questions.declaration import WITHIN, Question, lower_is_better
from steptime.questions.registry import find_question
from steptime.questions.step_question import with_layout
from steptime.questions.subject import ARCH, DESIGN_ANSWERS, TIMES
from steptime.result_base import Tabular, unit
from steptime.sweeps.axes import Axis, read_inputs
from steptime.sweeps.executor import Progress
from steptime.sweeps.sweep import sweep_axes
from steptime.sweeps.sweep_result import Sweep, column_name
from steptime.units import counted, percent

# Default aims by question: cost and speed, or time and throughput of a training step; of a training run, rent and days.
SPEED: Final = "tokens_per_second_per_user"
AIMS: Final = {
    "step": ("usd_per_million_tokens", SPEED), "plan": ("usd_per_million_output_tokens", SPEED),
    "train": ("step_time", "tokens_per_second_per_chip"),
}  # fmt: skip
# Answers about a training run, which needs tokens.
OF_RUN: Final = ("usd", "days", "usd_low", "usd_high", "goodput")
# Largest number of designs that are compared in three or more aims.
MOST_COMPARED: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Design(Tabular):
    """Designs, their Pareto front, the best in the first aim, and the present design.

    The table has one row per design. `on_front` is 1 if no other design is at least as good in every aim and better in one;
    of equal designs only the first has 1.
    """

    SCHEMA: ClassVar[str] = "steptime.design/2"
    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "text": unit("", "the answer in one sentence"),
        "front_rows": unit("", "designs on the Pareto front, best in the first aim first", key="front", kind="list of objects"),
    }

    sweep: Sweep = field(metadata=unit("", "all designs with their answers"))
    aims: tuple[str, ...] = field(metadata=unit("", "answers to minimize or maximize, the most important first"))
    front: tuple[int, ...] = field(
        metadata=unit("", "positions of the Pareto front, best in the first aim first", left_out=True)
    )
    today: Mapping[str, Any] = field(metadata=unit("", "the same answers for the present model and machine", kind="object"))

    @property
    def fits(self) -> Array:
        """Whether each design fits the memory of a chip."""
        return self.sweep.fits

    @property
    def best(self) -> int:
        """Position of the best design in the first aim."""
        return self.front[0]

    @property
    def text(self) -> str:
        """The answer in one sentence."""
        aim = self.aims[0]
        column, now = self.sweep.column(aim), float(self.today.get(aim, np.nan))
        value = float(column.values.ravel()[self.best])
        words = aim.replace("_", " ").replace("usd", "USD")
        change = value / now - 1
        change_note = f"{percent(abs(change))} {'less' if change < 0 else 'more'} than today"
        than = f", {change_note if abs(change) >= 0.005 else 'the same as today'} ({now:,.4g})" if np.isfinite(change) else ""
        least = "lowest" if lower_is_better(aim) else "highest"
        designs, other_designs = (
            counted(self.sweep.points - len(self.sweep.reasons), "design"),
            counted(self.ties, "other design"),
        )
        tie_note = f"; {other_designs} {'is' if self.ties == 1 else 'are'} equally good" if self.ties else ""
        return f"{least} {words} of {designs}: {value:,.4g}{than}, with {self.called(self.best)}{tie_note}"

    @property
    def ties(self) -> int:
        """Number of other designs that equal the best in every aim."""
        same = self.fits.ravel().copy()
        for name in self.aims:
            values = self.sweep.column(name).values.ravel()
            same &= np.isclose(values, values[self.best], rtol=1e-9, atol=0)
        return int(np.count_nonzero(same)) - 1

    @property
    def front_rows(self) -> list[dict[str, Any]]:
        """Designs on the Pareto front as rows."""
        columns = self.columns()
        return [{name: values[position] for name, values in columns.items()} for position in self.front]

    def called(self, position: int) -> str:
        """Return the values of a design on each axis, in words.

        Args:
            position: Position of the design.

        Returns:
            Text such as "kv_heads 8, times.bandwidth 3".
        """
        values = [grid.ravel()[position] for grid in self.sweep.grid()]
        return ", ".join(
            f"{axis.name.removeprefix(ARCH)} {f'{value:,.4g}' if axis.numeric else value}"
            for axis, value in zip(self.sweep.axes, values, strict=True)
        )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the number of designs on the front.

        Returns:
            The title, and counts in words.
        """
        return f"Design: {self.text}", {"front": counted(len(self.front), "design")}

    def columns(self) -> dict[str, Any]:
        """Return one row per design.

        Returns:
            Columns by name; `on_front` is 1 on the Pareto front.
        """
        on_front = np.zeros(self.sweep.points)
        on_front[list(self.front)] = 1
        return {**self.sweep.columns(), "on_front": on_front}

    def plot(self, path: str, *, answer: str | None = None, against: str | None = None) -> None:
        """Write a plot of the first aim over the axes, or against another answer.

        Args:
            path: File with the ending .svg, .png or .pdf.
            answer: Answer to plot; the first aim by default.
            against: Answer for the other axis; None plots over the axes of the sweep.
        """
        self.sweep.plot(path, answer=answer or self.aims[0], against=against)


def design(
    question: Question | str,
    model: ModelLike,
    system: SystemLike,
    axes: Mapping[str, Any],
    *,
    aims: Iterable[str] = (),
    within: str | None = None,
    workers: int | None = None,
    out: str | None = None,
    progress: Progress | None = None,
    **fixed_inputs: Any,
) -> Design:
    """Return the Pareto front of designs of a model and a machine.

    Args:
        question: "step", "plan" or "train".
        model: Catalogue name or path; a name if `arch.*` varies its config.
        system: Catalogue name, path or system.
        axes: Values by input, as for `sweep`. One of them is `arch.*`, `times.*` or a figure of the machine.
        aims: Answers to minimize or maximize. By default cost and speed; rent and days of a training run with tokens; time and
            throughput of a training step.
        within: "power", or shares of another budget of the chip, such as area or price ("bandwidth=0.3,link=0.1").
            The FLOP/s take the rest.
        workers: Processes of this machine; by default all cores if that is safe.
        out: File of results.
        progress: Called with the points done and the number of points.
        **fixed_inputs: Other inputs; names with a dot as **{"arch.equal": "total"}.

    Returns:
        All designs, the front, and the present design.

    >>> designs = design("step", "llama-3.3-70b", "hgx-h100", {"times.bandwidth": "1:4:4"}, within="power", tp=8, batch=64,
    ...                engine="ideal")
    >>> designs.called(designs.best)
    'times.bandwidth 3'
    """
    declaration = find_question(question)
    design_axes, fixed = read_inputs(declaration, axes, {"model": model, "system": system, **fixed_inputs})
    return compare_designs(
        declaration, design_axes, fixed, aims=aims, within=within, workers=workers, out=out, progress=progress
    )


def compare_designs(
    question: Question,
    axes: Sequence[Axis],
    fixed: Mapping[str, Any],
    *,
    aims: Iterable[str] = (),
    within: str | None = None,
    workers: int | None = None,
    out: str | None = None,
    progress: Progress | None = None,
) -> Design:
    """Return the Pareto front of designs whose axes are already read.

    Args:
        question: Declaration of "step", "plan" or "train".
        axes: Axes of the sweep.
        fixed: Fixed inputs by name.
        aims: Answers to minimize or maximize, as for `design`.
        within: Budget of the chip, as for `design`.
        workers: Processes of this machine.
        out: File of results.
        progress: Called with the points done and the number of points.

    Returns:
        All designs, the front, and the present design.

    Raises:
        UnknownName: If the question or an aim does not exist.
        InputError: If no axis changes the model or the machine.
        RangeError: If an aim is about a training run, and it has no tokens.
        Impossible: If no design has an answer.
    """
    if question.name not in AIMS:
        raise UnknownName("question of a design", question.name, AIMS, f"Known: {', '.join(AIMS)}.")
    has_run = question.name == "train" and "tokens" in {*fixed, *(axis.name for axis in axes)}
    aim_names = tuple(dict.fromkeys(aims)) or (OF_RUN[:2] if has_run else AIMS[question.name])
    for name in aim_names:
        if name not in question.answers or question.answers[name].text:
            numbers = [key for key, answer in question.answers.items() if not answer.text]
            raise UnknownName("aim", name, numbers, f"Known: {', '.join(numbers)}.")
        if question.name == "train" and name in OF_RUN and not has_run:
            raise RangeError(f"aims: {name} needs the tokens of the run, got none; give tokens (--tokens)")
    design_axes = [axis.name for axis in axes if is_design(axis.name)]
    if not design_axes:
        raise InputError(
            "axes: a design needs an axis of the model (arch.kv_heads, arch.attention, arch.layers, ...) or of the chip "
            "(times.bandwidth, times.link, ... or a figure of the machine)"
        )

    # The layout is chosen once, so that all designs run on the same number of chips.
    fixed = with_layout(question, fixed, axes)
    inputs = {**fixed, **({} if within is None else {WITHIN: within})}
    answer_names = tuple(dict.fromkeys([*aim_names, *question.shows, *DESIGN_ANSWERS]))
    sweep = sweep_axes(question, axes, inputs, answers=answer_names, workers=workers, out=out, progress=progress)
    for name in aim_names:
        if name not in sweep.answers or not np.isfinite(sweep.answers[name].values).any():
            why = "no rent is known; give --rent 2.10, or --aim tokens_per_second_per_chip, which needs none"
            raise Impossible(f"no design has an answer: {next(iter(sweep.refused_because), why)}")
    return Design(sweep=sweep, aims=aim_names, front=_front(sweep, aim_names), today=_today(question, axes, fixed, aim_names))


def is_design(name: str) -> bool:
    """Return whether an input belongs to a model or machine that is not built.

    Args:
        name: Name of an input.

    Returns:
        True for names with a dot.

    >>> is_design("arch.heads"), is_design("chip.hbm.bandwidth"), is_design("batch")
    (True, True, False)
    """
    return "." in name


def _front(sweep: Sweep, aims: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the Pareto front of designs that fit and have an answer.

    The best in the first aim comes first.
    """
    gains = _gains(sweep, aims)
    feasible = (_memory_shares(sweep) <= 1) & np.all(np.isfinite(gains), axis=0)
    if not feasible.any():
        answered = sweep.points - len(sweep.reasons)
        if not answered:
            raise Impossible(f"no design has an answer: {next(iter(sweep.refused_because))}")
        least = float(np.nanmin(np.where(np.all(np.isfinite(gains), axis=0), _memory_shares(sweep), np.nan)))
        raise Impossible(
            f"no design fits: the smallest of {counted(answered, 'design')} takes {percent(least)} of the memory of a chip; "
            "give more chips (tp, dp, ep), a smaller batch or a shorter context"
        )
    places = np.flatnonzero(feasible)
    table = gains[:, places]
    if len(aims) == 1:
        return (int(places[np.argmax(table[0])]),)
    if len(aims) == 2:
        best = pareto(table[0], table[1])
    else:
        if len(places) > MOST_COMPARED:
            raise InputError(
                f"aims: {len(aims)} aims compare at most {MOST_COMPARED:,} designs, got {len(places):,}; "
                "give two aims or fewer designs"
            )

        # Of equal designs only the first stays, so that ties do not fill the front.
        _, first = np.unique(table, axis=1, return_index=True)
        best = np.array([column for column in np.sort(first) if not _beaten(table, int(column))])
        best = best[np.argsort(-table[0][best], kind="stable")]
    return tuple(int(place) for place in places[best])


def _gains(sweep: Sweep, aims: Sequence[str]) -> Array:
    """Return values that are larger for better designs, of shape (aims, designs)."""
    signs = [-1.0 if lower_is_better(name) else 1.0 for name in aims]
    return np.array([sign * sweep.column(name).values.ravel() for sign, name in zip(signs, aims, strict=True)], dtype=float)


def _memory_shares(sweep: Sweep) -> Array:
    """Return the used share of a chip's memory of each design; 0 if unknown."""
    shares = sweep.answers["memory_share"].values if "memory_share" in sweep.answers else np.zeros(sweep.shape)
    return np.asarray(shares, dtype=float).ravel()


def _beaten(table: Array, column: int) -> bool:
    as_good, better = table >= table[:, [column]], table > table[:, [column]]
    return bool(np.any(as_good.all(axis=0) & better.any(axis=0)))


def _today(question: Question, axes: Sequence[Axis], fixed: Mapping[str, Any], aims: Sequence[str]) -> dict[str, Any]:
    """Return the aims for the present model and machine.

    The best in the first aim counts, over the axes that do not change the design. Fixed inputs stay, except the budget and the
    compensation of parameters. The result is empty if there is no answer, or nothing fits.
    """
    # A budget and a compensation apply only to changed designs.
    idle = (WITHIN, f"{ARCH}{EQUAL}", f"{ARCH}{BALANCE_KEY}")
    plain = {name: value for name, value in fixed.items() if name not in idle}
    plain_axes = [axis for axis in axes if not is_design(axis.name)]
    # A sweep needs an axis: without one, the model is an axis with one value.
    swept_axes = plain_axes or [Axis(name="model", values=(plain.pop("model"),))]
    names = dict.fromkeys([*aims, *DESIGN_ANSWERS, *(["memory_share"] if "memory_share" in question.answers else [])])
    try:
        sweep = sweep_axes(question, swept_axes, plain, answers=names)
    except InputError:
        return {}
    if aims[0] not in sweep.answers:
        return {}
    gains = _gains(sweep, aims[:1])[0]
    able = (_memory_shares(sweep) <= 1) & np.isfinite(gains)
    if not able.any():
        return {}
    best = int(np.argmax(np.where(able, gains, -np.inf)))
    coordinates = dict(zip((axis.name for axis in plain_axes), (values.ravel()[best] for values in sweep.grid()), strict=False))
    return coordinates | {name: column.values.ravel()[best] for name, column in sweep.answers.items()}


def columns_in_short(designs: Design) -> dict[str, str]:
    """Return the answers that a short table of designs shows.

    Args:
        designs: Result of `design`.

    Returns:
        Names of columns by answer.
    """
    axes = [axis.name for axis in designs.sweep.axes]
    of_model = ("parameters", "active_parameters", "kv_bytes_per_token") if any(name.startswith(ARCH) for name in axes) else ()
    of_chip = ("flops",) if any(name.startswith(TIMES) for name in axes) else ()
    names = dict.fromkeys([*designs.aims, *of_model, *of_chip])
    return {name: column_name(name, designs.sweep.answers[name].unit) for name in names if name in designs.sweep.answers}
