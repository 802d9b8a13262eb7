r"""Acceptance of drafters by number of drafts: measured lengths, their extension, and the prior of a method.

**Formula.** If each draft is accepted with probability $a$, independently, a step with $N$ drafts yields

$$ L(N) = \frac{1 - a^{N+1}}{1 - a} $$

tokens (Leviathan et al., arXiv 2211.17192, equation 1). A published length at another number of drafts gives $a$, and $a$
gives the length at $N$.

**Limits.** Acceptance is not independent of the position. EAGLE-3 loses little with it (arXiv 2503.01840, figure 7); layers
that draft again and again lose more. gpt-oss-120b in vLLM has 1.91, 2.07 and 2.13 tokens with 2, 3 and 4 drafts; from the
first, the formula predicts 2.10 and 2.21. So an extension to fewer drafts is too low, and one to more drafts too high. Lengths
differ by task (code and mathematics above chat) and fall with temperature. Trees of drafts are not chains: their lengths
are not used.

**Prior.** For a model without measurement the length is the median over all rows of the method. The range reaches from the
smallest to the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.blackboard.pipeline_stages import tokens_per_pass
from steptime.catalog.acceptance_lengths import TYPICAL, Curve, Lengths, curves, measured_lengths
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.units import in_span

# Halvings of the bracket of a probability: 2^-60 is below the spacing of floats next to 1.
HALVINGS: Final = 60
METHOD_NAMES: Final = {"eagle3": "EAGLE-3 heads", "draft_model": "draft models"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceEstimate:
    """Tokens per step with a number of drafts, and their source.

    low, high: the range of a prior; equal to the length where it was measured on the model. source: in words.
    """

    length: float
    low: float
    high: float
    source: str
    is_measured: bool


def acceptance_per_token(length: Number, drafts: Number) -> Number:
    r"""Return the probability $a$ per draft from the tokens per step: the root of $L(N) = (1 - a^{N+1}) / (1 - a)$.

    Args:
        length: Tokens per step, from 1 to drafts + 1.
        drafts: Drafts $N$ per step, at least 1.

    Returns:
        Probability from 0 to 1; the arguments broadcast.

    References:
        Leviathan et al., arXiv 2211.17192, equation 1, solved by bisection: L grows with a.

    >>> round(float(acceptance_per_token(2.5, 3)), 4), float(acceptance_per_token(1.85, 1)).__round__(6)
    (0.6914, 0.85)
    """
    low = np.zeros(np.broadcast_shapes(np.shape(length), np.shape(drafts)))
    high = np.ones_like(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_below = tokens_per_pass(drafts, middle) < length
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return (low + high) / 2


def length_at(length: Number, measured_drafts: Number, drafts: Number) -> Number:
    """Return the tokens per step with a number of drafts, from those measured with another number.

    Args:
        length: Tokens per step that were measured.
        measured_drafts: Drafts per step of the measurement.
        drafts: Drafts per step.

    Returns:
        Tokens per step; the measured ones where the numbers are equal.

    >>> float(length_at(2.5, 3, 3)), round(float(length_at(2.5, 3, 7)), 3), round(float(length_at(3.0, 2, 5)), 3)
    (2.5, 3.071, 6.0)
    """
    extended: Number = tokens_per_pass(drafts, acceptance_per_token(length, measured_drafts))
    return np.where(np.asarray(measured_drafts) == drafts, length, extended)


def estimate_acceptance(model: Model, drafts: int) -> AcceptanceEstimate:
    """Return the acceptance length of a model's separate drafter.

    Args:
        model: A model with a separate drafter.
        drafts: Drafts per step, at least 1.

    Returns:
        The mean over tasks, measured on this model if possible, else the prior of the method.
    """
    assert model.drafter is not None
    method, place = model.drafter.method, model.drafter.place
    rows = [row for row in measured_lengths() if row.method == method and not row.tree]
    measured = [row for row in rows if model.name in row.models]
    if method == "draft_model":
        measured = [row for row in measured if row.drafter == model.drafter.model.name]
    # A head's own figures come before those of other heads of the model, and measured numbers of drafts before others.
    measured = [row for row in measured if row.drafter == place] or measured
    measured = [row for row in measured if row.drafts == drafts] or _nearest(measured, drafts)
    if measured:
        return _measured(measured, drafts)
    curve = next((curve for curve in curves() if curve.method == method and model.name in curve.models), None)
    if curve is not None:
        length, last = _curve_length(curve, drafts), min(drafts, len(curve.tokens))
        figure = curve.figures[last - 1]
        source = f"{figure.grade}, measured on this model: {curve.words}{_extension(last, drafts)}"
        return AcceptanceEstimate(length=length, low=length, high=length, source=source, is_measured=True)
    return _prior(rows, method, drafts)


def _nearest(rows: Sequence[Lengths], drafts: int) -> list[Lengths]:
    """Return the rows whose number of drafts is nearest to `drafts`."""
    nearest = min((abs(row.drafts - drafts) for row in rows), default=0)
    return [row for row in rows if abs(row.drafts - drafts) == nearest]


def _row_lengths(row: Lengths, drafts: int) -> list[float]:
    """Return the tokens per step of each task of a row, at a number of drafts."""
    values = np.array([figure.value for figure in row.figures])
    at_drafts = tokens_per_pass(drafts, values) if row.kind == "rate" else length_at(values, row.drafts, drafts)
    return [float(value) for value in np.asarray(at_drafts)]


def _curve_length(curve: Curve, drafts: int) -> float:
    """Return the tokens per step of a curve; beyond its end, at the acceptance per token of its last point."""
    last = min(drafts, len(curve.tokens))
    return float(length_at(curve.tokens[last - 1], last, drafts))


def _extension(measured_drafts: int, drafts: int) -> str:
    """Return in words that a length was taken to another number of drafts; "" where it was not."""
    if measured_drafts == drafts:
        return ""
    return f", taken from {measured_drafts} to {drafts} drafts at equal acceptance per token"


def _measured(rows: Sequence[Lengths], drafts: int) -> AcceptanceEstimate:
    lengths = [value for row in rows for value in _row_lengths(row, drafts)]
    tasks = ", ".join(dict.fromkeys(task for row in rows for task in row.tasks))
    first, length = rows[0], float(np.mean(lengths))
    spread = f", {in_span(min(lengths), max(lengths))} by task" if len(lengths) > 1 else ""
    source = (
        f"{first.figures[0].grade}, measured on this model with {first.drafter}: {tasks}{spread}"
        f"{_extension(first.drafts, drafts)}; {first.figures[0].url}"
    )
    return AcceptanceEstimate(length=length, low=length, high=length, source=source, is_measured=True)


def _prior(rows: Iterable[Lengths], method: str, drafts: int) -> AcceptanceEstimate:
    """Return the median over rows and curves of a method, with the range of all of them."""
    groups = [_row_lengths(row, drafts) for row in rows]
    groups += [[_curve_length(curve, drafts)] for curve in curves() if curve.method == method and TYPICAL not in curve.models]
    every = [value for group in groups for value in group]
    length = float(np.median([np.mean(group) for group in groups]))
    source = f"prior of {METHOD_NAMES[method]}: {in_span(min(every), max(every))} in {len(groups)} published measurements"
    return AcceptanceEstimate(length=length, low=min(every), high=max(every), source=source, is_measured=False)
