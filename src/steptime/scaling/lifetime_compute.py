r"""Lifetime compute of a model by the lecture: training, RL and serving; with the target and the demand of a sizing.

`Target` is a loss, or the minimum loss within FLOP or USD. The loss may be that of a given model on given tokens.

Training takes $6 N D$, RL $k N D_{RL} \eta$ and serving $2 N D_{inf} \eta$, all as training-equivalent FLOP. `Demand` has
the served tokens and the RL. Serving counts with the probability that a model is served at all; training and RL are paid in
any case.

All functions broadcast over the constants of laws, so that a law with a hundred draws takes one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from steptime.errors import Impossible, InputError, RangeError, UnitError, short_repr
from steptime.models.model import Model, active_parameters
from steptime.models.model import total_parameters as model_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import LARGEST, Array, Number, between, positive, share
from steptime.result_base import unit
from steptime.scaling.compute_optimal import LARGEST_SIZE, SMALLEST, cheapest, least, size_for
from steptime.scaling.law_forms import TRAINING_FLOP, LawInputs
from steptime.scaling.scaling_laws import Law, loss, tokens_for
from steptime.units import count, parse_duration, show

# FLOP per parameter and token.
SERVING_FLOP: Final = 2.0
# k: 2 for the rollout, up to 6 if every token is also trained on; the cards of the lecture take 3.
RL_FLOP: Final = 3.0
# Cost of a decode FLOP over a training FLOP: one over about a third of the rate (lecture, section 12).
ETA: Final = 3.0
# Feed-forward share of a layer with 4 h^2 parameters in attention and 8 h^2 in the feed-forward block.
FEED_FORWARD: Final = 2 / 3
MOST_FLOP = 1e32
# Nats per token; a random guess among 128,256 tokens has 11.8.
MOST_LOSS = 12.0
# Below these values, laws do not describe language models.
LEAST_PARAMS, LEAST_TOKENS, LEAST_FLOP = 1e4, 1e5, 1e10
# Largest number of parameters or tokens of a reference model.
MOST_COUNT = 1e18
# Largest number of served tokens that is accepted.
MOST_SERVED: Final = 1e20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target of a model sizing.

    It is one of: parameters and tokens of a reference model, whose loss each law computes itself; a loss; FLOP; or USD.
    """

    params: float = field(default=math.nan, metadata=unit("", "parameters of the reference model"))
    tokens: float = field(default=math.nan, metadata=unit("tokens", "training tokens of the reference model"))
    loss: float = field(default=math.nan, metadata=unit("", "target loss, in nats per token"))
    compute: float = field(default=math.nan, metadata=unit("FLOP", "lifetime cost, in training-equivalent FLOP"))
    usd: float = field(default=math.nan, metadata=unit("USD", "lifetime cost"))
    model: str = field(default="", metadata=unit("", "name of the reference model in the catalogue"))
    note: str = field(default="", metadata=unit("", "warning about the reference model"))

    def __post_init__(self) -> None:
        values = {"params and tokens": self.params, "loss": self.loss, "compute": self.compute, "usd": self.usd}
        aims = [name for name, value in values.items() if not math.isnan(value)]
        if len(aims) != 1 or math.isnan(self.params) != math.isnan(self.tokens):
            raise RangeError(
                f"target: give one of params with tokens, loss, compute or usd, got {' and '.join(aims) or 'none of them'}"
            )

    @property
    def words(self) -> str:
        """The target as text."""
        if not math.isnan(self.params):
            model_text = f"{self.model}, " if self.model else ""
            return f"the loss of {model_text}{show(self.params)} parameters on {show(self.tokens)} tokens"
        if not math.isnan(self.loss):
            return f"a loss of {self.loss:g}"
        if not math.isnan(self.compute):
            return f"the minimum loss for {self.compute:.3g} FLOP in total"
        return f"the minimum loss for ${self.usd:,.0f} in total"

    def loss_by(self, law: Law, **dense: Number) -> Number:
        """Return the target loss by a law.

        With a reference model, the law computes the loss of a dense model.

        Args:
            law: Scaling law.
            **dense: Further inputs of the reference model, such as `bits`.

        Returns:
            Loss [nats per token].
        """
        return self.loss if math.isnan(self.params) else loss(law, self.params, self.tokens, **dense)


def read_target(
    quality: str | tuple[float, float] | None = None,
    loss: float | None = None,
    compute: float | None = None,
    usd: float | None = None,
    *,
    load: Callable[[str], Model] = load_model,
) -> Target:
    """Return the target from exactly one of its options.

    Args:
        quality: "MODEL@TOKENS", such as 100B@200T or llama-3.1-8b@15T, or parameters and tokens.
        loss: Target loss [nats per token].
        compute: Lifetime cost [training-equivalent FLOP].
        usd: Lifetime cost [USD].
        load: Function that returns the model of a name.

    Returns:
        Target.

    Raises:
        RangeError: If no option or several are given, or a value is out of its range.
        InputError: If the quality cannot be read.

    >>> read_target("100B@200T").words
    'the loss of 100 B parameters on 200 T tokens'
    """
    values = {"--match-quality": quality, "--loss": loss, "--compute": compute, "--usd": usd}
    aims = [name for name, value in values.items() if value is not None]
    if len(aims) != 1:
        names = " and ".join(aims) or "nothing"
        raise RangeError(
            f"a budget has one target, and {names} {'are' if len(aims) > 1 else 'is'} given; give one of "
            "--match-quality 100B@200T, --loss 1.9, --compute 1e25 or --usd 100M"
        )
    if quality is not None:
        return _of_quality(quality, load)
    if loss is not None:
        return Target(loss=positive("loss", loss, maximum=MOST_LOSS))
    if compute is not None:
        return Target(compute=positive("compute", compute, "FLOP", minimum=LEAST_FLOP, maximum=MOST_FLOP))
    return Target(usd=positive("usd", float(usd or 0.0), "USD", maximum=LARGEST))


def _of_quality(quality: str | tuple[float, float], load: Callable[[str], Model]) -> Target:
    if not isinstance(quality, str):
        try:
            params, tokens = quality
        except (TypeError, ValueError):
            raise InputError(f"quality: it is MODEL@TOKENS, or parameters and tokens, got {short_repr(quality)}") from None
        return Target(
            params=positive("parameters", params, minimum=LEAST_PARAMS, maximum=MOST_COUNT),
            tokens=positive("tokens", tokens, minimum=LEAST_TOKENS, maximum=MOST_COUNT),
        )

    name, separator, written = quality.partition("@")
    if not separator or not name.strip() or not written.strip():
        nearest = f"{name.strip() or '100B'}@{written.strip() or '15T'}"
        raise InputError(
            f"--match-quality: must be MODEL@TOKENS, such as 100B@200T or llama-3.1-8b@15T, got {short_repr(quality)}; "
            f"write {nearest} for {nearest.partition('@')[2]} training tokens"
        )
    tokens = positive("tokens", count(written.strip(), "tokens", maximum=MOST_COUNT), minimum=LEAST_TOKENS)
    try:
        size = float(count(name.strip(), "parameters", maximum=MOST_COUNT))
    except (UnitError, RangeError):
        # Not a number, so it is the name of a model.
        pass
    else:
        return Target(params=positive("parameters", size, minimum=LEAST_PARAMS), tokens=tokens)

    # Laws of dense models have no experts: a mixture counts with its active parameters.
    model = load(name.strip())
    active, total = float(active_parameters(model)), float(model_parameters(model))
    note = ""
    if total > 1.2 * active:
        note = (
            f"{model.name} counts as a dense model of its {show(active)} active parameters, of {show(total)}: "
            "its real loss is lower"
        )
    return Target(params=active, tokens=tokens, model=model.name, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Lifetime demand of a model: served tokens and RL, with their relative costs."""

    served: float = field(default=0.0, metadata=unit("tokens", "tokens served over the lifetime, input and output"))
    lifetime: float = field(default=np.nan, metadata=unit("s", "lifetime of the model"))
    eta: float = field(default=ETA, metadata=unit("", "cost of a serving FLOP over a training FLOP"))
    discard: float = field(default=0.0, metadata=unit("", "probability that the model is never served"))
    rl_tokens: float = field(default=0.0, metadata=unit("tokens", "rollout tokens of RL"))
    rl_share: float = field(default=0.0, metadata=unit("", "share of RL in the lifetime cost, if no RL tokens are given"))
    rl_flop: float = field(
        default=RL_FLOP,
        metadata=unit("", "FLOP of RL per parameter and token, at the cost of a serving FLOP", key="rl_flop_per_token"),
    )

    def __post_init__(self) -> None:
        between("tokens served", self.served, 0.0, MOST_SERVED)
        between("RL tokens", self.rl_tokens, 0.0, MOST_SERVED)
        positive("eta", self.eta, maximum=1e6)
        share("discard", self.discard)
        share("rl share", self.rl_share, whole_too=False)
        between("RL FLOP per parameter and token", self.rl_flop, 0.0, 1e3)
        if self.rl_tokens and self.rl_share:
            raise RangeError(
                f"rl_tokens, rl_share: both are given, got {self.rl_tokens:g} and {self.rl_share:g}; give one of the two"
            )

    @property
    def weight(self) -> float:
        """Tokens of serving and RL, as serving tokens at the cost of training."""
        rolled = self.rl_flop / SERVING_FLOP * self.rl_tokens
        return self.eta * (self.served * (1 - self.discard) + rolled)


def read_served(text: str, lifetime: str | None = None) -> tuple[float, float]:
    """Return the served tokens and the lifetime from texts.

    Args:
        text: Tokens per time, such as "50M/s" or "2G/day", or in total over the lifetime, such as "200T".
        lifetime: Time with a unit, such as "60d"; a rate needs it.

    Returns:
        Served tokens, and lifetime [s] (nan if not given).

    Raises:
        InputError: If a rate has no lifetime.
        RangeError: If the tokens are below 0.

    >>> read_served("50M/s", "60d")
    (259200000000000.0, 5184000.0)
    """
    seconds = math.nan
    if lifetime is not None:
        try:
            seconds = parse_duration(lifetime)
        except UnitError:
            raise UnitError(f"--lifetime needs a time with a unit, such as 60d or 2y, got {short_repr(lifetime)}") from None
        positive("lifetime", seconds, "s")
    number, slash, per = text.strip().partition("/")
    number = number.strip()
    for word in ("tokens", "token", "tok"):
        number = number.removesuffix(word).strip()
    served = float(count(number, "tokens served", maximum=MOST_SERVED))
    if served < 0:
        raise RangeError(f"tokens served must be at least 0, got {short_repr(text)}")
    if not slash:
        return served, seconds
    if math.isnan(seconds) and served:
        raise InputError(f"{short_repr(text)} is a rate, which needs a --lifetime, such as 60d")
    try:
        interval = parse_duration(f"1 {per.strip()}")
    except UnitError:
        raise UnitError(
            f"--tokens-served: must be tokens per time, such as {number}/s or {number}/day, got {short_repr(text)}"
        ) from None
    return served * (0.0 if math.isnan(seconds) else seconds) / interval, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Lifetime cost of a model in training-equivalent FLOP; figures broadcast."""

    params: Number
    tokens: Number
    loss: Number
    training: Number
    rl: Number
    serving: Number

    @property
    def total(self) -> Number:
        """Training, RL and serving together."""
        return self.training + self.rl + self.serving


def lifetime_bill(demand: Demand, params: Number, tokens: Number, at_loss: Number) -> Bill:
    """Return the lifetime cost of a model.

    RL that is given as a share is a share of the total.

    Args:
        demand: Served tokens and RL over the lifetime.
        params: Active parameters.
        tokens: Training tokens.
        at_loss: Loss of the model [nats per token].

    Returns:
        Training-equivalent FLOP by part.

    >>> bill = lifetime_bill(Demand(served=200e12), 100e9, 200e12, 1.8)
    >>> float(bill.training), float(bill.serving)
    (1.2e+26, 1.2e+26)
    """
    training = TRAINING_FLOP * params * np.asarray(tokens)
    serving = SERVING_FLOP * np.asarray(params) * demand.eta * demand.served * (1 - demand.discard)
    rolled = demand.rl_flop * np.asarray(params) * demand.eta * demand.rl_tokens
    rl = rolled + (training + serving) * demand.rl_share / (1 - demand.rl_share) if demand.rl_share else rolled
    return Bill(params=params, tokens=tokens, loss=at_loss, training=training, rl=rl, serving=serving)


def at_equal_loss(law: Law, demand: Demand, at_loss: Number, **inputs: Number) -> Bill:
    """Return the lifetime cost of the cheapest size with a given loss.

    Args:
        law: Scaling law.
        demand: Served tokens and RL over the lifetime.
        at_loss: Loss to reach [nats per token].
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Training-equivalent FLOP by part.

    Raises:
        Impossible: If no model reaches the loss by this law.
    """
    params = cheapest(law, at_loss, demand.weight, **inputs)
    tokens = np.asarray(tokens_for(law, params, at_loss, **inputs))
    if tokens.ndim == 0 and not np.isfinite(tokens):
        floor = float(loss(law, LARGEST, LARGEST, **inputs))
        short = "" if inputs.get("unique") is None else ", or the unique tokens are too few"
        raise Impossible(
            f"{law.name} has no model of up to {LARGEST_SIZE:.0e} parameters at a loss of {float(np.asarray(at_loss)):.4g}: "
            f"its floor is {floor:.4g}{short}"
        )
    return lifetime_bill(demand, params, tokens, at_loss)


def within(law: Law, demand: Demand, total: Number, **inputs: Number) -> Bill:
    """Return the lifetime cost of the best model within a total cost.

    The best model has the minimum loss.

    Args:
        law: Scaling law.
        demand: Served tokens and RL over the lifetime.
        total: Lifetime cost [training-equivalent FLOP].
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Training-equivalent FLOP by part.

    Raises:
        Impossible: If serving takes more than the total at any size.
    """
    # Tokens follow from the size: the compute that RL and serving leave for training.
    room = np.asarray(positive("compute", total)) * (1 - demand.rl_share)

    def tokens_at_size(params: Number) -> Array:
        return np.asarray((room / params - SERVING_FLOP * demand.weight) / TRAINING_FLOP)

    def loss_at_size(params: Array) -> Array:
        tokens = tokens_at_size(params)
        losses = loss(law, params, np.where(tokens > 1, tokens, 1.0), **inputs)
        return np.asarray(np.where(tokens > 1, losses, np.inf))

    # Above this size, serving takes more than the total.
    shape = np.broadcast(room, *law.constants.values()).shape
    max_params = room.max() / (SERVING_FLOP * demand.weight) if demand.weight else np.inf
    if max_params < SMALLEST:
        raise Impossible(f"serving {show(demand.served)} tokens takes more than {float(room.max()):.3g} FLOP at any size")
    params = least(loss_at_size, shape, high=float(min(max_params, room.max() / TRAINING_FLOP, 1e15)))
    tokens = tokens_at_size(params)
    return lifetime_bill(demand, params, tokens, loss(law, params, tokens, **inputs))


def equality(law: Law, demand: Demand, at_loss: Number, **inputs: Number) -> Bill:
    r"""Return the lifetime cost where training costs as much as RL and serving.

    The tokens are $D = \eta D_{inf} / 3$, at the size with the given loss.

    Args:
        law: Scaling law.
        demand: Served tokens and RL over the lifetime.
        at_loss: Loss to reach [nats per token].
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Training-equivalent FLOP by part; nan without served tokens.
    """
    tokens = np.asarray(SERVING_FLOP / TRAINING_FLOP * demand.weight)
    if not demand.weight:
        return lifetime_bill(demand, np.nan, np.nan, at_loss)
    params = size_for(law, at_loss, tokens, **inputs)
    return lifetime_bill(demand, np.where(np.isfinite(params), params, np.nan), tokens, at_loss)


def total_parameters(law: Law, active: Number, inputs: Mapping[str, Number]) -> Number:
    """Return the total parameters of a model, as built in the runs of a law.

    A feed-forward block of four times the width is two thirds of a layer. Mixtures of Clark et al. have experts in every
    second layer, those of others in each layer. The sparsity of Abnar et al. is the unused share, and the ratio of
    Krajewski et al. is in its file.

    Args:
        law: Scaling law.
        active: Active parameters per token.
        inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Parameters.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> round(float(total_parameters(load_law("clark-s-base"), 1.0, {"experts": 64})), 6)
    22.0
    """
    law_inputs = LawInputs(**dict(inputs))
    if law.form == "sparse":
        return active / (1 - np.asarray(law_inputs.sparsity))
    if law.form == "granular":
        return active * np.where(np.asarray(law_inputs.experts) > 1, law.constants["total_of_active"], 1.0)
    routed = {"routed": FEED_FORWARD / 2, "joint": FEED_FORWARD}.get(law.form, 0.0)
    return active * (1 + routed * (np.asarray(law_inputs.experts) - 1.0))
