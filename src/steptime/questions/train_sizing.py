"""Number of chips of a training run that ends before a deadline, or within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from steptime.errors import Impossible, InputError, LayoutError, RangeError
from steptime.hardware.system import System
from steptime.planning.slo_probability import likelihood
from steptime.training.training_planner import Training
from steptime.training.training_runs import TrainingRunCost
from steptime.units import counted, parse, show

# Largest number of chips of a search; numbers are powers of two.
MOST_SIZED_CHIPS: Final = 65_536
# Axes of a layout whose product is a divisor of the number of chips.
CHIP_AXES: Final = ("tp", "pp", "cp", "dp")


def size_run(
    train_on: Callable[[int], Training],
    system: System,
    *,
    deadline: float = math.inf,
    budget: float = math.inf,
    layout: Mapping[str, Any] | None = None,
) -> Training:
    """Return the run on the fewest chips that end before a deadline, or the fastest run within a budget.

    Numbers of chips are powers of two. All are evaluated, because neither time nor cost has a single minimum: few chips need
    recomputation, and many have few sequences per replica. With both limits, the answer is the fewest chips within both.

    Args:
        train_on: Function from a number of chips to its training run, with a cost of the run.
        system: Chips and links.
        deadline: Longest duration [s].
        budget: Largest rent [USD].
        layout: Axes of the layout that are fixed, for messages.

    Returns:
        The training run.

    Raises:
        Impossible: If no number of chips meets the limits.
        RangeError: If there is a budget, and the rent of the system is not known.
    """
    largest = int(system.scale_up.size) if system.is_box else MOST_SIZED_CHIPS
    runs: list[Training] = []
    problems: list[Exception] = []
    for chips in (2**power for power in range(largest.bit_length())):
        try:
            training = train_on(chips)
        except (Impossible, LayoutError) as error:
            problems.append(error)
            continue
        run = required_run(training)
        if math.isfinite(budget) and not math.isfinite(run.usd):
            raise RangeError(f"budget: the rent of {system.name} is not known; give rent")
        if math.isfinite(deadline) and _within(run, deadline, budget):
            return training
        runs.append(training)
    affordable = [training for training in runs if _within(required_run(training), deadline, budget)]
    if affordable:
        return min(affordable, key=lambda training: required_run(training).seconds)
    if runs:
        raise Impossible(_reason(runs, system, deadline, budget, layout or {}, largest))
    axes = _axes_text(layout or {})
    if axes and all(isinstance(error, LayoutError) for error in problems):
        raise Impossible(f"no power of two up to {largest:,} is a number of chips for the given layout {axes}; give chips")
    raise Impossible(str(problems[0]))


def required_run(training: Training) -> TrainingRunCost:
    """Return the cost of a run.

    Args:
        training: Training run.

    Returns:
        Cost.

    Raises:
        InputError: If the run has no tokens.
    """
    if training.run is None:
        raise InputError("tokens: a deadline or a budget needs the tokens of the run, such as 15T")
    return training.run


def run_limits(run: TrainingRunCost, deadline: float, budget: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the limits of a run, and the probability that the run meets each.

    Args:
        run: Cost of the run.
        deadline: Longest duration [s]; infinite without one.
        budget: Largest rent [USD]; infinite without one.

    Returns:
        Limits by name, and probabilities by name, from the 90 % ranges of time and rent.
    """
    limits = {name: limit for name, limit in (("deadline", deadline), ("budget", budget)) if math.isfinite(limit)}
    figures = {"deadline": (run.seconds, (run.low, run.high)), "budget": (run.usd, (run.usd_low, run.usd_high))}
    return limits, {name: likelihood(*figures[name], limit) for name, limit in limits.items()}


def _within(run: TrainingRunCost, deadline: float, budget: float) -> bool:
    """Return whether a run meets its limits, with its figures rounded as they are printed."""
    seconds = min(run.seconds, parse(show(run.seconds, "s"), "s"))
    in_time = not math.isfinite(deadline) or seconds <= deadline * (1 + 1e-9)
    return in_time and (not math.isfinite(budget) or min(run.usd, float(f"{run.usd:.3g}")) <= budget)


def _reason(
    runs: Sequence[Training], system: System, deadline: float, budget: float, layout: Mapping[str, Any], largest: int
) -> str:
    axes = _axes_text(layout)
    in_time = [training for training in runs if _within(required_run(training), deadline, math.inf)]
    layout_text = f" with the given layout {axes}" if axes else ""
    # A layout with dp runs on few numbers of chips.
    fixed = f"; {axes} runs on {_sizes(runs)} only: leave dp out, or " if "dp" in layout else "; "
    if not in_time:
        fastest = min(runs, key=lambda training: required_run(training).seconds)
        return (
            f"no number of chips up to {largest:,} ends within {show(deadline, 's')}{layout_text}: the fastest, "
            f"{counted(fastest.chips, 'chip')} of {system.name}, takes {show(required_run(fastest).seconds, 's')}"
            f"{fixed}take a later deadline or a larger batch"
        )
    cheapest = min(in_time, key=lambda training: required_run(training).usd)
    run = required_run(cheapest)
    within = f" within {show(deadline, 's')}" if math.isfinite(deadline) else ""
    return (
        f"no number of chips of {system.name} trains the model{within} for {budget:,.0f} USD{layout_text}: the cheapest, "
        f"{counted(cheapest.chips, 'chip')}, costs {math.ceil(run.usd):,} USD and takes {show(run.seconds, 's')}"
        f"{fixed}take a larger budget{', a later deadline' if within else ''} or a narrower dtype"
    )


def _axes_text(layout: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={layout[axis]}" for axis in CHIP_AXES if axis in layout)


def _sizes(runs: Sequence[Training]) -> str:
    *first, last = [f"{training.chips:,}" for training in runs]
    return f"{', '.join(first)} and {last} chips" if first else f"{last} chips"
