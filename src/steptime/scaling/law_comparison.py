"""Comparison of scaling laws for one model: loss, and distance from the optimum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.blackboard.training_compute import overtraining
from steptime.errors import InputError
from steptime.number_checks import positive
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import TRAINING_FLOP, optimal
from steptime.scaling.lifetime_compute import own_tokens
from steptime.scaling.scaling_laws import Law, beyond, loss
from steptime.units import show


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
    compute = TRAINING_FLOP * params * tokens
    figures = {"loss": np.nan, "over_own": np.nan, "best_params": np.nan, "best_tokens": np.nan, "best_loss": np.nan}
    far = beyond(law, params=params, tokens=tokens, ratio=tokens / params, compute=compute)
    reason = "only the optimal split of compute" if law.form == "split" else ""
    try:
        if law.form == "split" or law.tells_loss:
            best = optimal(law, compute)
            figures |= {"best_params": float(best.params), "best_tokens": float(best.tokens), "best_loss": float(best.loss)}
        # A law that has only the split has no loss to compare.
        if law.tells_loss:
            figures["over_own"] = tokens / float(own_tokens(law, params))
        if law.form != "split":
            figures["loss"] = float(np.asarray(loss(law, params, tokens)))
    except InputError as problem:
        reason = "it lacks constants" if law.lacks else str(problem).removeprefix(f"{law.name} ").partition(":")[0]
        far = {}
    over = float(overtraining(tokens, params))
    return LawPrediction(law=law.name, grade=law.grade, over_chinchilla=over, beyond=far, reason=reason, **figures)
