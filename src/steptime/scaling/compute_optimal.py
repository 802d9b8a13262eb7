"""The best of sizes: least loss of a compute budget, equal loss at least cost, and the dense size of a mixture.

Everything broadcasts, over the constants of a law too. Sizes are searched on a grid of logarithms and then by the golden
section, so that any form will do; the additive one has its closed form.

How far a best size is sure: over the errors of one law, and over laws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from steptime.errors import InputError
from steptime.number_checks import Array, Number, positive
from steptime.result_base import Result, in_words, unit
from steptime.scaling.law_forms import clark_equivalent, split_of_compute
from steptime.scaling.scaling_laws import Law, LawLike, load_law, loss, sample_constants, tokens_for
from steptime.units import show

SMALLEST, LARGEST_SIZE = 1e3, 1e15  # parameters that are looked at
GRID: Final = 193  # sizes of the first look, 16 to a factor of 10
GOLDEN: Final = (5**0.5 - 1) / 2
TURNS: Final = 48  # of the golden section: the step of the grid down to a part in 1e10
TRAINING_FLOP: Final = 6.0  # for each parameter and token: 2 forward, 4 backward


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Split(Result):
    """How a training compute is best split by a law. Figures broadcast."""

    law: str
    compute: Number = field(metadata=unit("FLOP", "training compute, 6 N D"))
    params: Number = field(metadata=unit("", "parameters"))
    tokens: Number = field(metadata=unit("tokens", "training tokens"))
    loss: Number = field(metadata=unit("", "loss in nats a token; none of a law that tells the split alone"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the split in words."""
        ratio = np.asarray(self.tokens) / self.params
        return f"Best split of {in_words(self.compute, '{:.3g}'.format)} FLOP by {self.law}", {
            "parameters": in_words(self.params, show),
            "tokens": f"{in_words(self.tokens, show)}, {in_words(ratio, '{:.3g}'.format)} a parameter",
            "loss": in_words(self.loss, "{:.4g}".format),
        }


def least(
    cost: Callable[[Array], Array], shape: tuple[int, ...] = (), low: float = SMALLEST, high: float = LARGEST_SIZE
) -> Array:
    """Return the sizes of least cost between two, each of `shape`; cost may be infinite, and has one valley.

    >>> float(f"{least(lambda n: 2 * n + 8e18 / n):.6g}")
    2000000000.0
    """
    grid = np.linspace(np.log(low), np.log(high), GRID).reshape(-1, *(1 for _ in shape))
    costs = np.broadcast_to(cost(np.exp(grid)), (GRID, *shape))
    best = np.argmin(np.where(np.isnan(costs), np.inf, costs), axis=0)
    nodes = grid.ravel()
    low_log, high_log = nodes[np.maximum(best - 1, 0)], nodes[np.minimum(best + 1, GRID - 1)]
    for _ in range(TURNS):
        inner, outer = high_log - GOLDEN * (high_log - low_log), low_log + GOLDEN * (high_log - low_log)
        lower, upper = cost(np.exp(inner)), cost(np.exp(outer))
        keep = (lower < upper) & np.isfinite(lower)  # what cannot be lies to the left: too small for the loss
        low_log, high_log = np.where(keep, low_log, inner), np.where(keep, outer, high_log)
    return np.asarray(np.exp((low_log + high_log) / 2))


def optimal(law: LawLike, compute: Number, **inputs: Number) -> Split:
    """Return the parameters and tokens of least loss for a training compute 6 N D [FLOP]; broadcasts.

    inputs: as of `laws.loss`.

    >>> best = optimal("hoffmann-tex", 5.76e23)
    >>> round(float(best.params) / 1e9, 1), round(float(best.tokens / best.params))
    (40.3, 59)
    """
    scaling_law = load_law(law)
    budget = np.asarray(positive("compute", compute), dtype=float)
    if scaling_law.form != "split" and not scaling_law.tells_loss:
        tokens_for(scaling_law, 1e9, 3.0, **inputs)  # says why it tells no loss from tokens
    if scaling_law.form == "split":
        params, tokens = split_of_compute(scaling_law.constants, budget)
        return Split(law=scaling_law.name, compute=compute, params=params, tokens=tokens, loss=np.nan)
    if scaling_law.form == "additive" and not scaling_law.lacks:
        params = _closed(scaling_law, budget)
    else:
        shape = np.broadcast(budget, *scaling_law.constants.values(), *inputs.values()).shape
        params = least(
            lambda n: np.asarray(loss(scaling_law, n, np.maximum(budget / (TRAINING_FLOP * n), 1e-9), **inputs)), shape
        )
    tokens = budget / (TRAINING_FLOP * params)
    return Split(
        law=scaling_law.name, compute=compute, params=params, tokens=tokens, loss=loss(scaling_law, params, tokens, **inputs)
    )


def _closed(law: Law, compute: Array) -> Array:
    r"""Return $N = G (C/6)^{\beta/(\alpha+\beta)}$, $G = (\alpha A / \beta B)^{1/(\alpha+\beta)}$ (Hoffmann et al., eq. 4)."""
    alpha, beta = np.asarray(law.constants["alpha"]), np.asarray(law.constants["beta"])
    split = (alpha * law.constants["A"] / (beta * law.constants["B"])) ** (1 / (alpha + beta))
    return np.asarray(split * (compute / TRAINING_FLOP) ** (beta / (alpha + beta)))


def size_for(law: LawLike, at_loss: Number, tokens: Number, **inputs: Number) -> Array:
    """Return the parameters at which models of so many tokens have a loss; infinite where none do.

    >>> float(f"{size_for('hoffmann', 1.9365, 1.4e12):.3g}")
    70400000000.0
    """
    scaling_law = load_law(law)
    shape = np.broadcast(at_loss, tokens, *scaling_law.constants.values(), *inputs.values()).shape
    low, high = np.full(shape, np.log(SMALLEST)), np.full(shape, np.log(LARGEST_SIZE))
    for _ in range(60):
        middle = (low + high) / 2
        enough = np.asarray(loss(scaling_law, np.exp(middle), tokens, **inputs)) <= at_loss
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(np.asarray(loss(scaling_law, LARGEST_SIZE, tokens, **inputs)) <= at_loss, np.exp(high), np.inf)


def equivalent_dense(
    law: LawLike, active: Number, experts: Number = 1.0, *, tokens: Number | None = None, **inputs: Number
) -> Array:
    """Return the dense parameters of the same loss as a mixture of experts; broadcasts.

    active: parameters that a token passes through; tokens: that both are trained on, which laws but Clark's need; inputs: as of
    `laws.loss` (`granularity`, `sparsity`).

    >>> round(float(equivalent_dense("clark-s-base", 370e6, 64)) / 1e9, 2)
    1.37
    >>> round(float(equivalent_dense("ludziejewski", 1e9, 32, tokens=1e12)) / 1e9, 2)
    3.06
    """
    scaling_law = load_law(law)
    if not {"experts", "sparsity"} & set(scaling_law.kind.takes):
        raise InputError(f"{scaling_law.name} knows nothing of experts; clark-s-base, krajewski, ludziejewski and abnar do")
    if scaling_law.form == "routed":
        checked = np.asarray(positive("active parameters", active), dtype=float)
        return clark_equivalent(scaling_law.constants, checked, np.asarray(positive("experts", experts, minimum=1)))
    if tokens is None:
        raise InputError(f"{scaling_law.name} tells the equivalent of a mixture for a number of tokens; give one")
    mixture_inputs = dict(inputs)
    if "experts" in scaling_law.kind.takes:
        mixture_inputs["experts"] = experts
    return size_for(scaling_law, loss(scaling_law, active, tokens, **mixture_inputs), tokens)


def cost_at(law: LawLike, at_loss: Number, params: Number, served: Number, **inputs: Number) -> Array:
    r"""Return the FLOP of training and serving at equal loss: $6 N D(N) + 2 N D_s$, in FLOP of training; infinite if too small.

    served: tokens that are served, times what a token costs over one of training at the same parameters ($\eta$).
    """
    return np.asarray(params * (TRAINING_FLOP * tokens_for(law, params, at_loss, **inputs) + 2.0 * np.asarray(served)))


def cheapest(law: LawLike, at_loss: Number, served: Number, **inputs: Number) -> Array:
    """Return the parameters at which training and serving cost least at equal loss; broadcasts.

    served: served tokens times eta, as of `cost_at`. The lecture's question, section 12: the loss of 100 B parameters on 200 T
    tokens, 200 T tokens served at eta = 3.

    >>> target = loss("hoffmann", 100e9, 200e12)
    >>> round(float(cheapest("hoffmann", target, 3 * 200e12)) / 1e9, 1)
    104.9
    """
    scaling_law = load_law(law)
    shape = np.broadcast(at_loss, served, *scaling_law.constants.values(), *inputs.values()).shape
    return least(lambda n: cost_at(scaling_law, at_loss, n, served, **inputs), shape)


DRAWS: Final = 400
QUANTILES: Final = (0.05, 0.95)
ENOUGH: Final = 0.5  # share of draws that must give an answer


def over_errors(law: Law, answer: Callable[[Law], dict[str, Number]], draws: int = DRAWS) -> dict[str, tuple[float, float]]:
    """Return the 90 % range of each figure of an answer over a law's errors; empty where they are not known together.

    Draws in which the law has no answer (a floor above the loss) are left out; where they are half, there is no range.
    """
    if law.spread is None:
        return {}
    figures = answer(sample_constants(law, draws))
    return {name: ends for name, values in figures.items() if (ends := _ends(np.asarray(values))) is not None}


def _ends(values: Array) -> tuple[float, float] | None:
    finite_values = values[np.isfinite(values)]
    if finite_values.size < ENOUGH * values.size or finite_values.size < 2:
        return None
    low, high = np.quantile(finite_values, QUANTILES)
    return float(low), float(high)


def over_laws(values: list[float]) -> tuple[float, float] | None:
    """Return the least and the largest of what several laws answer; None of one."""
    finite_values = [value for value in values if np.isfinite(value)]
    return (min(finite_values), max(finite_values)) if len(finite_values) > 1 else None
