"""Optimal model sizes: by compute, by loss at minimum cost, dense equivalents; and comparisons of laws.

All functions broadcast, also over the constants of a law. Sizes are searched on a logarithmic grid and then by
golden-section search, which suits any form of law. The additive form has a closed form.

`over_errors` and `over_laws` give the range of an optimal size over the errors of one law and over several laws.
`predict_losses` gives the loss of one model by several laws, and its distance from the optimum of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.training_compute import overtraining
from steptime.errors import InputError
from steptime.number_checks import LARGEST, Array, Number, positive
from steptime.result_base import Result, Tabular, columns_by_key, in_words, unit
from steptime.scaling.law_forms import TRAINING_FLOP, bisect, clark_equivalent, split_of_compute
from steptime.scaling.scaling_laws import Law, LawLike, beyond, load_law, loss, sample_constants, tokens_for
from steptime.units import show

# Range of the search [parameters].
SMALLEST, LARGEST_SIZE = 1e3, 1e15
# Sizes of the grid, 16 per factor of 10.
GRID: Final = 193
GOLDEN: Final = (5**0.5 - 1) / 2
# Step of a logarithm for numerical slopes.
STEP: Final = 1e-4
# Iterations of the golden-section search; they reduce a grid step to a relative error of 1e-10.
TURNS: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Split(Result):
    """Compute-optimal parameters and tokens by a law. Figures broadcast."""

    law: str
    compute: Number = field(metadata=unit("FLOP", "training compute, 6 N D"))
    params: Number = field(metadata=unit("", "parameters"))
    tokens: Number = field(metadata=unit("tokens", "training tokens"))
    loss: Number = field(metadata=unit("", "loss in nats per token; nan for a law that has only the split"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the split as a title, with parameters, tokens and loss.

        Returns:
            Title, and lines by name.
        """
        ratio = np.asarray(self.tokens) / self.params
        return f"Best split of {in_words(self.compute, '{:.3g}'.format)} FLOP by {self.law}", {
            "parameters": in_words(self.params, show),
            "tokens": f"{in_words(self.tokens, show)}, {in_words(ratio, '{:.3g}'.format)} per parameter",
            "loss": in_words(self.loss, "{:.4g}".format),
        }


def least(
    cost: Callable[[Array], Array], shape: tuple[int, ...] = (), low: float = SMALLEST, high: float = LARGEST_SIZE
) -> Array:
    """Return the sizes of minimum cost.

    Valid for a cost with one minimum over the size. The cost may be infinite.

    Args:
        cost: Function of the sizes, an array of shape (grid, *shape) or `shape`.
        shape: Shape of the result.
        low: Smallest size.
        high: Largest size.

    Returns:
        Sizes of minimum cost, with the shape `shape`.

    >>> float(f"{least(lambda n: 2 * n + 8e18 / n):.6g}")
    2000000000.0
    """
    grid = np.linspace(np.log(low), np.log(high), GRID).reshape(-1, *(1 for _ in shape))
    costs = np.broadcast_to(cost(np.exp(grid)), (GRID, *shape))
    best = np.argmin(np.where(np.isnan(costs), np.inf, costs), axis=0)

    # Golden-section search between the neighbours of the best grid point.
    nodes = grid.ravel()
    low_log, high_log = nodes[np.maximum(best - 1, 0)], nodes[np.minimum(best + 1, GRID - 1)]
    for _ in range(TURNS):
        inner, outer = high_log - GOLDEN * (high_log - low_log), low_log + GOLDEN * (high_log - low_log)
        lower, upper = cost(np.exp(inner)), cost(np.exp(outer))
        # Sizes with an infinite cost are too small for the loss, so that the minimum is to their right.
        keep = (lower < upper) & np.isfinite(lower)
        low_log, high_log = np.where(keep, low_log, inner), np.where(keep, outer, high_log)
    return np.asarray(np.exp((low_log + high_log) / 2))


def optimal(law: LawLike, compute: Number, **inputs: Number) -> Split:
    """Return the parameters and tokens of minimum loss for a training compute.

    The compute is 6 N D. All arguments broadcast.

    Args:
        law: Scaling law, or its name or path.
        compute: Training compute [FLOP].
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Parameters, tokens and loss.

    Raises:
        InputError: If the law has no loss or lacks constants.

    >>> best = optimal("hoffmann-tex", 5.76e23)
    >>> round(float(best.params) / 1e9, 1), round(float(best.tokens / best.params))
    (40.3, 59)
    """
    scaling_law = load_law(law)
    budget = np.asarray(positive("compute", compute), dtype=float)
    if scaling_law.form != "split" and not scaling_law.tells_loss:
        # This call raises the error with the reason.
        tokens_for(scaling_law, 1e9, 3.0, **inputs)
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
    r"""Return the closed-form optimal parameters of the additive form.

    $N = G (C/6)^{\beta/(\alpha+\beta)}$, $G = (\alpha A / \beta B)^{1/(\alpha+\beta)}$. Source: Hoffmann et al., equation
    4.
    """
    alpha, beta = np.asarray(law.constants["alpha"]), np.asarray(law.constants["beta"])
    split = (alpha * law.constants["A"] / (beta * law.constants["B"])) ** (1 / (alpha + beta))
    return np.asarray(split * (compute / TRAINING_FLOP) ** (beta / (alpha + beta)))


def size_for(law: LawLike, at_loss: Number, tokens: Number, **inputs: Number) -> Array:
    """Return the parameters at which a number of tokens gives a loss.

    Args:
        law: Scaling law, or its name or path.
        at_loss: Loss to reach [nats per token].
        tokens: Training tokens.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Parameters; infinite where no size reaches the loss.

    >>> float(f"{size_for('hoffmann', 1.9365, 1.4e12):.3g}")
    70400000000.0
    """
    scaling_law = load_law(law)
    shape = np.broadcast(at_loss, tokens, *scaling_law.constants.values(), *inputs.values()).shape

    def is_enough(params: Number) -> Array:
        return np.asarray(loss(scaling_law, params, tokens, **inputs)) <= at_loss

    return np.where(is_enough(LARGEST_SIZE), bisect(is_enough, SMALLEST, LARGEST_SIZE, shape), np.inf)


def equivalent_dense(
    law: LawLike, active: Number, experts: Number = 1.0, *, tokens: Number | None = None, **inputs: Number
) -> Array:
    """Return the dense parameters with the same loss as a mixture of experts.

    All arguments broadcast.

    Args:
        law: Scaling law, or its name or path.
        active: Active parameters per token.
        experts: Experts, of which a token uses one, or an equivalent part.
        tokens: Training tokens of both models; laws other than those of Clark et al. need them.
        **inputs: Further inputs of the law: `granularity`, `sparsity`.

    Returns:
        Dense parameters.

    Raises:
        InputError: If the law has no experts, or needs tokens.

    >>> round(float(equivalent_dense("clark-s-base", 370e6, 64)) / 1e9, 2)
    1.37
    >>> round(float(equivalent_dense("ludziejewski", 1e9, 32, tokens=1e12)) / 1e9, 2)
    3.06
    """
    scaling_law = load_law(law)
    if not {"experts", "sparsity"} & set(scaling_law.kind.takes):
        raise InputError(f"{scaling_law.name} has no input for experts; take clark-s-base, krajewski, ludziejewski or abnar")
    if scaling_law.form == "routed":
        checked = np.asarray(positive("active parameters", active), dtype=float)
        return clark_equivalent(scaling_law.constants, checked, np.asarray(positive("experts", experts, minimum=1)))
    if tokens is None:
        raise InputError(f"{scaling_law.name} needs training tokens for the dense equivalent of a mixture; give tokens")
    mixture_inputs = dict(inputs)
    if "experts" in scaling_law.kind.takes:
        mixture_inputs["experts"] = experts
    return size_for(scaling_law, loss(scaling_law, active, tokens, **mixture_inputs), tokens)


def cost_at(law: LawLike, at_loss: Number, params: Number, served: Number, **inputs: Number) -> Array:
    """Return the FLOP of training and serving at equal loss.

    The formula is $6 N D(N) + 2 N D_s$.

    Args:
        law: Scaling law, or its name or path.
        at_loss: Loss to reach [nats per token].
        params: Active parameters.
        served: Served tokens times eta, the cost of a serving FLOP over a training FLOP.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Training-equivalent FLOP; infinite where the size is too small for the loss.
    """
    return np.asarray(params * (TRAINING_FLOP * tokens_for(law, params, at_loss, **inputs) + 2.0 * np.asarray(served)))


def cheapest(law: LawLike, at_loss: Number, served: Number, **inputs: Number) -> Array:
    """Return the parameters of minimum training and serving cost at a loss.

    All arguments broadcast. The example is the question of the lecture, section 12: the loss of 100 B parameters on 200 T
    tokens, with 200 T tokens served at eta = 3.

    Args:
        law: Scaling law, or its name or path.
        at_loss: Loss to reach [nats per token].
        served: Served tokens times eta, the cost of a serving FLOP over a training FLOP.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Parameters.

    >>> target = loss("hoffmann", 100e9, 200e12)
    >>> round(float(cheapest("hoffmann", target, 3 * 200e12)) / 1e9, 1)
    104.9
    """
    scaling_law = load_law(law)
    shape = np.broadcast(at_loss, served, *scaling_law.constants.values(), *inputs.values()).shape
    return least(lambda n: cost_at(scaling_law, at_loss, n, served, **inputs), shape)


def own_tokens(law: Law, params: Number, **inputs: Number) -> Array:
    """Return the tokens for which a size is the optimal split of compute.

    At the optimum, a small increase of either gains the same.

    Args:
        law: Scaling law.
        params: Active parameters.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Training tokens.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> round(float(own_tokens(load_law("hoffmann-tex"), 40.3e9) / 40.3e9))
    59
    """
    shape = np.broadcast(params, *law.constants.values()).shape

    # Enough tokens: more parameters and fewer tokens at the same compute reduce the loss.
    def is_enough(tokens: Array) -> Array:
        wider = loss(law, np.asarray(params) * np.exp(STEP), tokens * np.exp(-STEP), **inputs)
        narrower = loss(law, np.asarray(params) * np.exp(-STEP), tokens * np.exp(STEP), **inputs)
        return np.asarray(np.asarray(wider) <= narrower)

    return bisect(is_enough, 1.0, LARGEST, shape)


# Sets of constants that are drawn from the errors of a law.
DRAWS: Final = 400
QUANTILES: Final = (0.05, 0.95)
# Share of the draws that must have a result.
ENOUGH: Final = 0.5


def over_errors(law: Law, answer: Callable[[Law], dict[str, Number]], draws: int = DRAWS) -> dict[str, tuple[float, float]]:
    """Return the 90 % range of each figure over the errors of a law.

    Draws without a result (a minimum loss above the given one) are left out. If they are more than half, there is no range.

    Args:
        law: Scaling law.
        answer: Function of a law that returns the figures.
        draws: Number of draws.

    Returns:
        Lower and upper end by figure; empty where the law has no joint errors.
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
    """Return the smallest and the largest value over several laws.

    Args:
        values: One value per law.

    Returns:
        Both values; None with fewer than two finite values.
    """
    finite_values = [value for value in values if np.isfinite(value)]
    return (min(finite_values), max(finite_values)) if len(finite_values) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPrediction:
    """Loss of a model by one law."""

    law: str = field(metadata=unit("", "scaling law"))
    grade: str = field(metadata=unit("", "grade of the sources of its constants"))
    loss: float = field(metadata=unit("", "loss in nats per token; null if the law has none"))
    over_chinchilla: float = field(metadata=unit("", "training tokens over 20 N"))
    over_own: float = field(
        metadata=unit("", "training tokens over the compute-optimal tokens of this law; null if it has no loss")
    )
    best_params: float = field(metadata=unit("", "compute-optimal parameters of the law for the same compute"))
    best_tokens: float = field(metadata=unit("tokens", "compute-optimal tokens of the law for the same compute"))
    best_loss: float = field(metadata=unit("", "loss at the optimum"))
    beyond: Mapping[str, float] = field(metadata=unit("", "factor of extrapolation beyond the runs of the law, by input"))
    reason: str = field(metadata=unit("", "reason why the law has no loss"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Losses(Tabular):
    """Loss of a dense model by several laws; one row per law."""

    SCHEMA: ClassVar[str] = "steptime.losses/2"

    params: float = field(metadata=unit("", "parameters of the model"))
    tokens: float = field(metadata=unit("tokens", "training tokens"))
    losses: tuple[LawPrediction, ...] = field(metadata=unit("", "loss by each law"))

    @property
    def words(self) -> str:
        """The losses as a sentence."""
        losses = [prediction.loss for prediction in self.losses if np.isfinite(prediction.loss)]
        model = f"{show(self.params)} parameters on {show(self.tokens)} tokens"
        if not losses:
            return f"No loss of {model} by {', '.join(prediction.law for prediction in self.losses)}"
        if len(losses) == 1:
            law = next(prediction.law for prediction in self.losses if np.isfinite(prediction.loss))
            return f"{model} have a loss of {losses[0]:.4f} nats per token by {law}"
        return f"{model} have a loss of {min(losses):.2f} to {max(losses):.2f} nats per token, by {len(losses)} laws"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the losses as a sentence, and the loss of each law.

        Returns:
            Title, and lines by law.
        """
        return self.words, {
            prediction.law: f"{prediction.loss:.4f} nats/token" for prediction in self.losses if np.isfinite(prediction.loss)
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per law.

        Returns:
            Values by column name.
        """
        columns = columns_by_key(LawPrediction, self.losses)
        columns.pop("beyond")
        return columns


def predict_losses(laws: Iterable[Law], params: float, tokens: float) -> Losses:
    """Return the loss of a dense model by each law.

    Args:
        laws: Scaling laws.
        params: Parameters.
        tokens: Training tokens.

    Returns:
        Loss, and distance from the optimum, by law.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> prediction = predict_losses([load_law("epoch")], 70e9, 1.4e12).losses[0]
    >>> round(prediction.loss, 3), round(prediction.over_own, 2)
    (1.974, 1.09)
    """
    size, token_count = float(positive("parameters", params)), float(positive("tokens", tokens))
    return Losses(params=size, tokens=token_count, losses=tuple(_predict_loss(law, size, token_count) for law in laws))


def _predict_loss(law: Law, params: float, tokens: float) -> LawPrediction:
    # A law without a loss still has a row, with the reason.
    figures = dict.fromkeys(("loss", "over_own", "best_params", "best_tokens", "best_loss"), np.nan)
    far = beyond(law, params=params, tokens=tokens)
    reason = "only the optimal split of compute" if law.form == "split" else ""
    try:
        if law.form == "split" or law.tells_loss:
            best = optimal(law, TRAINING_FLOP * params * tokens)
            figures |= {"best_params": float(best.params), "best_tokens": float(best.tokens), "best_loss": float(best.loss)}
        # A law that has only the split has no loss to compare.
        if law.tells_loss:
            figures["over_own"] = tokens / float(own_tokens(law, params))
        if law.form != "split":
            figures["loss"] = float(np.asarray(loss(law, params, tokens)))
    except InputError as problem:
        reason = "it lacks constants" if law.lacks else str(problem).removeprefix(f"{law.name} ").partition(":")[0]
        far = {}
    over_chinchilla = float(overtraining(tokens, params))
    return LawPrediction(law=law.name, grade=law.grade, over_chinchilla=over_chinchilla, beyond=far, reason=reason, **figures)
