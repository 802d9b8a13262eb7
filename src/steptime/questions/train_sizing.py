"""Number of chips of a training run that ends before a deadline, or within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from steptime.errors import Impossible, InputError, LayoutError, RangeError
from steptime.hardware.system import System
from steptime.training.training_planner import Training
from steptime.training.training_runs import TrainingRunCost
from steptime.units import counted, show

# Largest number of chips of a search; numbers are powers of two.
MOST_SIZED_CHIPS: Final = 65_536


def size_run(
    train_on: Callable[[int], Training], system: System, *, deadline: float = math.inf, budget: float = math.inf
) -> Training:
    """Return the run on the fewest chips that end before a deadline, or the fastest run within a budget.

    Numbers of chips are powers of two. With both limits, the fewest chips that end in time must be within the budget,
    because more chips cost more.

    Args:
        train_on: Function from a number of chips to its training run, with a cost of the run.
        system: Chips and links.
        deadline: Longest duration [s].
        budget: Largest rent [USD].

    Returns:
        The training run.

    Raises:
        Impossible: If no number of chips meets the limits.
        RangeError: If there is a budget, and the rent of the system is not known.
    """
    largest = int(system.scale_up.size) if system.is_box else MOST_SIZED_CHIPS
    chips, best, first_problem = 1, None, ""
    last_usd = lowest_usd = math.inf
    while chips <= largest:
        try:
            training = train_on(chips)
        except (Impossible, LayoutError) as error:
            first_problem = first_problem or str(error)
            chips *= 2
            continue
        run = required_run(training)
        if math.isfinite(budget) and not math.isfinite(run.usd):
            raise RangeError(f"budget: the rent of {system.name} is not known; give rent")
        if math.isfinite(deadline):
            if run.seconds <= deadline:
                return _within(training, budget)
            # Few chips may need recomputation, so that more of them gain more than in proportion, by far less than 4.
            chips = max(2 * chips, 2 ** math.ceil(math.log2(chips * run.seconds / deadline / 4)))
            best = training
            continue
        lowest_usd = min(lowest_usd, run.usd)
        # Few chips cost more where memory is short, and many where replicas have few sequences.
        if run.usd > budget:
            if run.usd >= last_usd:
                break
            last_usd = run.usd
            chips *= 2
            continue
        last_usd = run.usd
        best = training if best is None or run.seconds < required_run(best).seconds else best
        chips *= 2
    if best is not None and not math.isfinite(deadline):
        return best
    raise Impossible(_reason(best, system, deadline, budget, lowest_usd, first_problem, largest))


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


def _within(training: Training, budget: float) -> Training:
    run = required_run(training)
    if run.usd > budget:
        raise Impossible(
            f"the fewest chips that end in time, {training.chips:,}, cost {run.usd:,.0f} USD, more than the {budget:,.0f} of "
            "the budget; take a later deadline, a larger budget, or a narrower dtype"
        )
    return training


def _reason(
    slowest: Training | None,
    system: System,
    deadline: float,
    budget: float,
    lowest_usd: float,
    problem: str,
    largest: int,
) -> str:
    if slowest is not None and math.isfinite(deadline):
        return (
            f"no number of chips up to {largest:,} ends within {show(deadline, 's')}: {counted(slowest.chips, 'chip')} of "
            f"{system.name} take {show(required_run(slowest).seconds, 's')}; take a later deadline or a larger batch"
        )
    if math.isfinite(lowest_usd):
        return (
            f"no number of chips of {system.name} trains the model for {budget:,.0f} USD: the cheapest takes "
            f"{lowest_usd:,.0f}; take a larger budget"
        )
    return problem
