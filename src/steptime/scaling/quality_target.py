"""What a budget aims at: the loss of a model on tokens, a loss, or the least loss that FLOP or USD buy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from steptime.errors import InputError, RangeError, UnitError, short_repr
from steptime.models.model import Model, active_parameters, total_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import LARGEST, Number, positive
from steptime.result_base import unit
from steptime.scaling.lifetime_compute import MOST_SERVED
from steptime.scaling.scaling_laws import Law, loss
from steptime.units import count, parse, show

TARGET_KINDS = ("match_quality", "loss", "compute", "usd")
MOST_FLOP = 1e32
MOST_LOSS = 12.0  # nats a token: a guess among 128,256 tokens has 11.8
LEAST_PARAMS, LEAST_TOKENS, LEAST_FLOP = 1e4, 1e5, 1e10  # below them laws tell losses of no language model
MOST_COUNT = 1e18  # tokens or parameters of a model whose quality is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One of: parameters with tokens, whose loss each law tells for itself; a loss; FLOP of training; USD, the whole bill."""

    params: float = field(default=math.nan, metadata=unit("", "parameters of the model whose quality is asked for"))
    tokens: float = field(default=math.nan, metadata=unit("tokens", "training tokens of that model"))
    loss: float = field(default=math.nan, metadata=unit("", "the loss asked for, in nats a token"))
    compute: float = field(default=math.nan, metadata=unit("FLOP", "the whole bill in FLOP of training"))
    usd: float = field(default=math.nan, metadata=unit("USD", "the whole bill"))
    model: str = field(default="", metadata=unit("", "the model of the catalogue whose quality is asked for"))
    note: str = field(default="", metadata=unit("", "what is to be minded of it"))

    def __post_init__(self) -> None:
        aims = [
            name for name, value in (("params and tokens", self.params), *((n, getattr(self, n)) for n in TARGET_KINDS[1:]))
            if not math.isnan(value)
        ]  # fmt: skip
        if len(aims) != 1 or math.isnan(self.params) != math.isnan(self.tokens):
            raise RangeError(
                f"a target is one of params with tokens, loss, compute or usd, not {' and '.join(aims) or 'none of them'}"
            )

    @property
    def words(self) -> str:
        """What is aimed at."""
        if not math.isnan(self.params):
            model_text = f"{self.model}, " if self.model else ""
            return f"the loss of {model_text}{show(self.params)} parameters on {show(self.tokens)} tokens"
        if not math.isnan(self.loss):
            return f"a loss of {self.loss:g}"
        if not math.isnan(self.compute):
            return f"least loss for {self.compute:.3g} FLOP in all"
        return f"least loss for ${self.usd:,.0f} in all"

    def loss_by(self, law: Law, **dense: Number) -> Number:
        """Return the loss aimed at, as a law tells it of a dense model where it is of one."""
        return self.loss if math.isnan(self.params) else loss(law, self.params, self.tokens, **dense)


def read_target(
    quality: str | tuple[float, float] | None = None,
    loss: float | None = None,
    compute: float | None = None,
    usd: float | None = None,
    *,
    load: Callable[[str], Model] = load_model,
) -> Target:
    """Return what is aimed at; exactly one is given.

    quality: "MODEL@TOKENS", such as 100B@200T or llama-3.1-8b@15T, or parameters and tokens. load: returns the model of a
    name.

    >>> read_target("100B@200T").words
    'the loss of 100 B parameters on 200 T tokens'
    """
    aims = [name for name, value in zip(TARGET_KINDS, (quality, loss, compute, usd), strict=True) if value is not None]
    if len(aims) != 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in aims) or "nothing"
        raise RangeError(
            f"a budget aims at one thing, and {names} {'are' if len(aims) > 1 else 'is'} given: --match-quality 100B@200T, "
            "--loss 1.9, --compute 1e25 or --usd 100M"
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
            raise InputError(f"a quality is MODEL@TOKENS, or parameters and tokens, not {short_repr(quality)}") from None
        return Target(
            params=positive("parameters", params, minimum=LEAST_PARAMS, maximum=MOST_COUNT),
            tokens=positive("tokens", tokens, minimum=LEAST_TOKENS, maximum=MOST_COUNT),
        )
    name, separator, written = quality.partition("@")
    if not separator or not name.strip() or not written.strip():
        raise InputError(f"a quality is MODEL@TOKENS, such as 100B@200T or llama-3.1-8b@15T, not {short_repr(quality)}")
    tokens = positive("tokens", count(written.strip(), "tokens", maximum=MOST_COUNT), minimum=LEAST_TOKENS)
    size = _size(name.strip())
    if size is not None:
        return Target(params=positive("parameters", size, minimum=LEAST_PARAMS), tokens=tokens)
    model = load(name.strip())
    active, total = float(active_parameters(model)), float(total_parameters(model))
    note = ""
    if total > 1.2 * active:
        note = (
            f"{model.name} is taken for a dense model of its {show(active)} active parameters, of {show(total)}: it is better"
        )
    return Target(params=active, tokens=tokens, model=model.name, note=note)


def _size(text: str) -> float | None:
    """Return parameters that are written as a number; None where it is a name."""
    try:
        return float(count(text, "parameters", maximum=MOST_COUNT))
    except (UnitError, RangeError):
        return None


def _lifetime(text: str) -> float:
    """Return a time that is written in seconds, hours or days."""
    try:
        return float(parse(text, "s"))
    except UnitError:
        raise UnitError(f"--lifetime needs a time with its unit, such as 60d or 24h, not {short_repr(text)}") from None


def read_served(text: str, lifetime: str | None = None) -> tuple[float, float]:
    """Return tokens served in all, and the lifetime [s], of texts such as "50M/s" and "60d", or "200T".

    >>> read_served("50M/s", "60d")
    (259200000000000.0, 5184000.0)
    """
    seconds = math.nan if lifetime is None else positive("lifetime", _lifetime(lifetime), "s")
    number, slash, per = text.strip().partition("/")
    number = number.strip()
    for word in ("tokens", "token", "tok"):
        number = number.removesuffix(word).strip()
    served = float(count(number, "tokens served", maximum=MOST_SERVED))
    if served < 0:
        raise RangeError(f"tokens served must be at least 0, not {short_repr(text)}")
    if not slash:
        return served, seconds
    if math.isnan(seconds) and served:
        raise InputError(f"{short_repr(text)} is a rate: --lifetime says for how long, such as 60d")
    return served * (0.0 if math.isnan(seconds) else seconds) / parse(f"1 {per.strip()}", "s"), seconds
