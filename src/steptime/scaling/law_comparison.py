"""What several laws say of one model: its loss, and how it stands to their own best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from steptime.blackboard.compute_allocation import overtraining
from steptime.errors import InputError
from steptime.number_checks import positive
from steptime.result_base import Tabular, table_of, unit
from steptime.scaling.compute_optimal import TRAINING_FLOP, optimal
from steptime.scaling.lifetime_compute import own_tokens
from steptime.scaling.scaling_laws import Law, beyond, loss
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A model by a law."""

    law: str = field(metadata=unit("", "the law"))
    grade: str = field(metadata=unit("", "how far to trust it"))
    loss: float = field(metadata=unit("", "in nats a token; null: it tells none"))
    over_chinchilla: float = field(metadata=unit("", "tokens over 20 N"))
    over_own: float = field(
        metadata=unit("", "tokens over those for which the parameters are the law's best split; null: not told")
    )
    best_params: float = field(metadata=unit("", "parameters that the law would train with the same compute"))
    best_tokens: float = field(metadata=unit("tokens", "tokens that it would train them on"))
    best_loss: float = field(metadata=unit("", "their loss"))
    beyond: Mapping[str, float] = field(metadata=unit("", "how many times it lies outside the law's runs, by input"))
    reason: str = field(metadata=unit("", "why the law tells no loss"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Losses(Tabular):
    """A dense model by several laws; a row for each."""

    SCHEMA: ClassVar[str] = "steptime.losses/2"

    params: float = field(metadata=unit("", "parameters of the model"))
    tokens: float = field(metadata=unit("tokens", "training tokens"))
    losses: tuple[Told, ...] = field(metadata=unit("", "the model by each law"))

    @property
    def words(self) -> str:
        """The losses in a sentence."""
        known = [one.loss for one in self.losses if np.isfinite(one.loss)]
        model = f"{show(self.params)} parameters on {show(self.tokens)} tokens"
        if not known:
            return f"Of {model} no loss is told by {', '.join(one.law for one in self.losses)}"
        if len(known) == 1:
            law = next(one.law for one in self.losses if np.isfinite(one.loss))
            return f"{model} have a loss of {known[0]:.4f} nats a token by {law}"
        return f"{model} have a loss of {min(known):.2f} to {max(known):.2f} nats a token, by {len(known)} laws"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the losses in a sentence, and each."""
        return self.words, {one.law: f"{one.loss:.4f} nats/token" for one in self.losses if np.isfinite(one.loss)}

    def columns(self) -> dict[str, Any]:
        """Return a row for each law."""
        columns = table_of(Told, self.losses)
        columns.pop("beyond")
        return columns


def losses_of(laws: Iterable[Law], params: float, tokens: float) -> Losses:
    """Return what each law says of a dense model of some parameters on some tokens.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> told = losses_of([load_law("epoch")], 70e9, 1.4e12).losses[0]
    >>> round(told.loss, 3), round(told.over_own, 2)
    (1.974, 1.09)
    """
    size, read = float(positive("parameters", params)), float(positive("tokens", tokens))
    return Losses(params=size, tokens=read, losses=tuple(_of(law, size, read) for law in laws))


def _of(law: Law, params: float, tokens: float) -> Told:
    compute = TRAINING_FLOP * params * tokens
    at = {"loss": np.nan, "over_own": np.nan, "best_params": np.nan, "best_tokens": np.nan, "best_loss": np.nan}
    far = beyond(law, params=params, tokens=tokens, ratio=tokens / params, compute=compute)
    reason = "the best split of compute alone" if law.form == "split" else ""
    try:
        if law.form == "split" or law.tells_loss:
            best = optimal(law, compute)
            at |= {"best_params": float(best.params), "best_tokens": float(best.tokens), "best_loss": float(best.loss)}
        if law.tells_loss:
            at["over_own"] = tokens / float(own_tokens(law, params))
        if law.form != "split":
            at["loss"] = float(np.asarray(loss(law, params, tokens)))
    except InputError as problem:
        reason = "its constants are not known" if law.lacks else str(problem).removeprefix(f"{law.name} ").partition(":")[0]
        far = {}
    over = float(overtraining(tokens, params))
    return Told(law=law.name, grade=law.grade, over_chinchilla=over, beyond=far, reason=reason, **at)
