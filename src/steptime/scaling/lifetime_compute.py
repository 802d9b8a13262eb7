r"""The lecture's bill of a model: training $6 N D$, RL $k N D_{RL} \eta$, serving $2 N D_{inf} \eta$, as training FLOP.

`Demand` is what is served and trained by RL. Serving counts with the probability that a model is served at all, training and
RL are paid in any case. Everything broadcasts over the constants of laws, so that a law drawn a hundred times is one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from steptime.errors import Impossible, RangeError
from steptime.number_checks import LARGEST, Array, Number, between, positive, share
from steptime.result_base import unit
from steptime.scaling.compute_optimal import LARGEST_SIZE, SMALLEST, TRAINING_FLOP, cheapest, least, size_for
from steptime.scaling.law_forms import LawInputs
from steptime.scaling.scaling_laws import Law, loss, tokens_for
from steptime.units import show

SERVING_FLOP: Final = 2.0  # for each parameter and token
RL_FLOP: Final = 3.0  # k: 2 to roll out, up to 6 where every token is trained on too; the lecture's cards take 3
ETA: Final = 3.0  # what a FLOP of decoding costs over one of training: about 1 over a third of the rate (lecture, section 12)
MOST_SERVED: Final = 1e20
HALVINGS: Final = 60
STEP: Final = 1e-4  # of a logarithm, over which a slope is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a model will do: tokens served over its life, tokens of RL or the share of the bill that RL takes, at what cost."""

    served: float = field(default=0.0, metadata=unit("tokens", "tokens served over the lifetime, input and output"))
    lifetime: float = field(default=np.nan, metadata=unit("s", "how long it is served"))
    eta: float = field(default=ETA, metadata=unit("", "what a FLOP of serving costs over one of training"))
    discard: float = field(default=0.0, metadata=unit("", "probability that the model is never served"))
    rl_tokens: float = field(default=0.0, metadata=unit("tokens", "tokens rolled out in RL"))
    rl_share: float = field(default=0.0, metadata=unit("", "share of the whole bill that RL takes, where no tokens are given"))
    rl_flop: float = field(
        default=RL_FLOP,
        metadata=unit("", "FLOP of RL a parameter and token, each as dear as one of serving", key="rl_flop_per_token"),
    )

    def __post_init__(self) -> None:
        between("tokens served", self.served, 0.0, MOST_SERVED)
        between("RL tokens", self.rl_tokens, 0.0, MOST_SERVED)
        positive("eta", self.eta, maximum=1e6)
        share("discard", self.discard)
        share("rl share", self.rl_share, whole_too=False)
        between("RL FLOP a parameter and token", self.rl_flop, 0.0, 1e3)
        if self.rl_tokens and self.rl_share:
            raise RangeError("RL is asked for by its tokens and by its share; give one of the two")

    @property
    def weight(self) -> float:
        """Tokens of serving and RL, as served tokens at the cost of training: what makes the bill grow with N alone."""
        rolled = self.rl_flop / SERVING_FLOP * self.rl_tokens
        return self.eta * (self.served * (1 - self.discard) + rolled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a model of some parameters and tokens comes to, in FLOP of training; figures broadcast."""

    params: Number
    tokens: Number
    loss: Number
    training: Number
    rl: Number
    serving: Number

    @property
    def total(self) -> Number:
        """The whole bill."""
        return self.training + self.rl + self.serving


def lifetime_bill(demand: Demand, params: Number, tokens: Number, at_loss: Number) -> Bill:
    """Return the bill of a model; RL that is asked for as a share takes it of the whole.

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
    """Return the bill of the parameters that cost least at a loss.

    Raises Impossible where the law reaches the loss with no model.
    """
    params = cheapest(law, at_loss, demand.weight, **inputs)
    tokens = np.asarray(tokens_for(law, params, at_loss, **inputs))
    if tokens.ndim == 0 and not np.isfinite(tokens):
        floor = float(loss(law, LARGEST, LARGEST, **inputs))
        short = "" if inputs.get("unique") is None else ", or with so few unique tokens"
        raise Impossible(
            f"{law.name} puts no model of up to {LARGEST_SIZE:.0e} parameters at a loss of {float(np.asarray(at_loss)):.4g}: "
            f"its floor is {floor:.4g}{short}"
        )
    return lifetime_bill(demand, params, tokens, at_loss)


def within(law: Law, demand: Demand, total: Number, **inputs: Number) -> Bill:
    """Return the bill of the model of least loss that a whole bill of `total` [FLOP of training] allows."""
    room = np.asarray(positive("compute", total)) * (1 - demand.rl_share)

    def tokens_at_size(params: Number) -> Array:
        return np.asarray((room / params - SERVING_FLOP * demand.weight) / TRAINING_FLOP)

    def loss_at_size(params: Array) -> Array:
        tokens = tokens_at_size(params)
        losses = loss(law, params, np.where(tokens > 1, tokens, 1.0), **inputs)
        return np.asarray(np.where(tokens > 1, losses, np.inf))

    shape = np.broadcast(room, *law.constants.values()).shape
    max_params = room.max() / (SERVING_FLOP * demand.weight) if demand.weight else np.inf
    if max_params < SMALLEST:
        raise Impossible(f"serving {show(demand.served)} tokens takes more than {float(room.max()):.3g} FLOP at any size")
    params = least(loss_at_size, shape, high=float(min(max_params, room.max() / TRAINING_FLOP, 1e15)))
    tokens = tokens_at_size(params)
    return lifetime_bill(demand, params, tokens, loss(law, params, tokens, **inputs))


def equality(law: Law, demand: Demand, at_loss: Number, **inputs: Number) -> Bill:
    r"""Return the bill where training costs what RL and serving do: $D = \eta D_{inf} / 3$, at the size of that loss.

    Without traffic there is none: parameters and tokens are not numbers.
    """
    tokens = np.asarray(SERVING_FLOP / TRAINING_FLOP * demand.weight)
    if not demand.weight:
        return lifetime_bill(demand, np.nan, np.nan, at_loss)
    params = size_for(law, at_loss, tokens, **inputs)
    return lifetime_bill(demand, np.where(np.isfinite(params), params, np.nan), tokens, at_loss)


def own_tokens(law: Law, params: Number, **inputs: Number) -> Array:
    """Return the tokens for which parameters are a law's best split of compute: where a part more of either gains alike.

    >>> from steptime.scaling.scaling_laws import load_law
    >>> round(float(own_tokens(load_law("hoffmann-tex"), 40.3e9) / 40.3e9))
    59
    """
    shape = np.broadcast(params, *law.constants.values()).shape
    low, high = np.zeros(shape), np.full(shape, np.log(LARGEST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tokens = np.exp(middle)
        wider = loss(law, np.asarray(params) * np.exp(STEP), tokens * np.exp(-STEP), **inputs)
        narrower = loss(law, np.asarray(params) * np.exp(-STEP), tokens * np.exp(STEP), **inputs)
        enough = np.asarray(wider) <= narrower  # at the same compute, more parameters for fewer tokens would gain
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.exp((low + high) / 2))


def total_parameters(law: Law, active: Number, inputs: Mapping[str, Number]) -> Number:
    """Return all parameters of a model of some active ones, as the law's own runs were built.

    A feed-forward block of four times the width is two thirds of a layer; Clark's mixtures have experts in every second layer,
    the others' in each; the sparsity of Abnar is the share that is left out, and Krajewski's ratio is in its file.

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


FEED_FORWARD: Final = 2 / 3  # of the parameters of a layer of 4 h^2 in attention and 8 h^2 in the feed-forward block
