"""Cost of serving and training one model size on a system.

The costs are per request, per output token and per training token.

Target of a model sizing: a loss, or the minimum loss within FLOP or USD.

The loss may be that of a given model on given tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.errors import InputError, RangeError, UnitError, short_repr
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters, total_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import LARGEST, MOST_CHIPS, Number, positive, whole_number
from steptime.physics.engine import Engine
from steptime.planning.planner import DoesNotFit, plan
from steptime.planning.workload import Slo, Workload
from steptime.result_base import unit
from steptime.scaling.law_forms import TRAINING_FLOP
from steptime.scaling.lifetime_compute import MOST_SERVED
from steptime.scaling.scaling_laws import Law, loss
from steptime.training.infeasibility import NothingFits
from steptime.training.training_planner import train
from steptime.units import DAY, count, parse, show

# Scale-up domains to try; the smallest number with enough memory serves the model.
DOMAINS: Final = (1, 2, 4, 8)
# Share of the rate of a chip for the estimate of training chips.
USUAL_SHARE: Final = 0.4
# Number format of this estimate.
FORMAT: Final = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How models are served and trained: system, workload, limits, formats and engine."""

    system: SystemLike = field(metadata=unit("", "serving system", kind="text"))
    workload: Workload = field(metadata=unit("", "workload of identical requests"))
    slo: Slo = field(default=Slo(), metadata=unit("", "limits on the latency of requests"))
    weights: str = field(default="", metadata=unit("", "number format of the served weights; empty for bf16"))
    kv: str = field(default="", metadata=unit("", "number format of the KV cache; empty for bf16"))
    engine: str | Engine | None = field(default=None, metadata=unit("", "serving engine; null for the system's default"))
    training_system: SystemLike | None = field(default=None, metadata=unit("", "training system; null for the serving system"))
    training_chips: int | None = field(default=None, metadata=unit("", "training chips; null to meet training_days"))
    training_days: float = field(default=60.0, metadata=unit("", "days of training, if no training chips are given"))
    training_seq: int = field(default=8192, metadata=unit("tokens", "training sequence"))
    training_batch: int = field(default=2048, metadata=unit("", "sequences per training step"))
    training_format: str = field(default="bf16", metadata=unit("", "number format of the products of training"))

    def __post_init__(self) -> None:
        if self.training_chips is not None:
            whole_number("training chips", self.training_chips, maximum=MOST_CHIPS)
        positive("training days", self.training_days)
        whole_number("training sequence", self.training_seq)
        whole_number("training batch", self.training_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeServed:
    """One model size with its serving and training cost."""

    params: float = field(metadata=unit("", "active parameters of the planned model"))
    total_params: float = field(metadata=unit("", "total parameters of the planned model"))
    width: int = field(metadata=unit("", "width of the residual stream"))
    layers: int = field(metadata=unit("", "layers"))
    chips: int = field(metadata=unit("", "chips of the plan"))
    usd_per_request: float = field(
        metadata=unit("USD", "rent per request; null if no plan meets the limits", key="usd_per_request")
    )
    usd_per_output_token: float = field(
        metadata=unit("USD", "rent per output token, without prefill", key="usd_per_output_token")
    )
    batch: float = field(metadata=unit("", "decode batch per replica, in sequences"))
    training_chips: int = field(metadata=unit("", "training chips"))
    training_seconds: float = field(metadata=unit("s", "wall-clock time of training; null if no layout fits"))
    usd_per_training_token: float = field(
        metadata=unit("USD", "rent per training token; null if no layout fits", key="usd_per_training_token")
    )
    mfu: float = field(metadata=unit("", "MFU of training"))
    tokens: float = field(default=np.nan, metadata=unit("tokens", "training tokens for the loss; null if out of reach"))
    training_usd: float = field(default=np.nan, metadata=unit("USD", "cost of training"))
    rl_usd: float = field(default=np.nan, metadata=unit("USD", "cost of RL"))
    serving_usd: float = field(default=np.nan, metadata=unit("USD", "cost of serving over the lifetime"))
    reason: str = field(default="", metadata=unit("", "reason why there is no plan"))


def chips_for(params: float, tokens: float, system: System, serving: Serving) -> int:
    """Return the number of training chips for a size.

    It is the given number, or systems in a power of two that take about the given days. The size of the system limits it.

    Args:
        params: Active parameters.
        tokens: Training tokens.
        system: Training system.
        serving: How the model is served and trained.

    Returns:
        Chips; 0 for tokens that are not finite.

    >>> from steptime.catalog.hardware_loading import load_system
    >>> from steptime.planning.workload import Workload
    >>> serving = Serving(system="hgx-h100", workload=Workload(input_tokens=1, output_tokens=1), training_days=60)
    >>> chips_for(405e9, 15.6e12, load_system("hgx-h100"), serving)
    16384
    """
    if not np.isfinite(tokens):
        return 0
    if serving.training_chips is not None:
        return serving.training_chips
    rate = float(system.chip.peak.get(FORMAT, max(system.chip.peak.values()))) * USUAL_SHARE
    units = TRAINING_FLOP * params * tokens / rate / (serving.training_days * DAY) / system.chips
    max_systems = 1.0 if system.is_box else MOST_CHIPS / system.chips
    return int(system.chips * min(2.0 ** max(0, round(np.log2(units))), 2.0 ** np.floor(np.log2(max_systems))))


def training_cost(model: Model, system: System, serving: Serving, *, chips: int, tokens: float) -> tuple[float, float, float]:
    """Return the cost of a training token, the MFU and the time of training.

    The run includes failures and restarts. It is the fastest layout on the chips that fits (`st.train`).

    Args:
        model: Model.
        system: Training system.
        serving: How the model is served and trained.
        chips: Training chips.
        tokens: Training tokens.

    Returns:
        USD per token, MFU, and seconds; nan where no layout fits.
    """
    none = (np.nan, np.nan, np.nan)
    if not chips:
        return none
    try:
        training_plan = train(model, system, chips=chips, seq=serving.training_seq, batch=serving.training_batch, tokens=tokens,
                              changes=False, dtype=serving.training_format)  # fmt: skip
    except NothingFits:
        return none
    if training_plan.run is None:
        return none
    return (
        float(training_plan.run.usd) / tokens,
        float(np.asarray(training_plan.step.mfu_causal)),
        float(training_plan.run.seconds),
    )


def served_size(model: Model, training_figures: dict[str, float], serving: Serving, system: System) -> SizeServed:
    """Return a size with its serving cost.

    It takes as few scale-up domains as have room for the model.

    Args:
        model: Model.
        training_figures: Fields of `SizeServed` about training.
        serving: How the model is served and trained.
        system: Serving system.

    Returns:
        Size; with a reason if no plan meets the limits.
    """
    size_figures: dict[str, Any] = {
        **training_figures,
        "width": int(model.width),
        "layers": int(sum(count for _, count in model.layers)),
    }
    reason = ""
    for domains in DOMAINS:
        try:
            best_plan = plan(model, system, serving.workload, serving.slo, chips=system.chips * domains, engine=serving.engine,
                             alternatives=False, elasticities=False)  # fmt: skip
        except DoesNotFit:
            reason = f"{show(training_figures['params'])} parameters do not fit {system.chips * domains} chips"
            continue
        if best_plan.feasible:
            batch = max(pool.batch for pool in best_plan.pools)
            return SizeServed(
                **size_figures,
                chips=best_plan.chips,
                usd_per_request=float(best_plan.usd_per_request),
                usd_per_output_token=float(best_plan.decode_usd_per_million_tokens) / 1e6,
                batch=float(batch),
            )
        # The smallest number of domains with enough memory decides, even if its plan misses the limits.
        reason = best_plan.reason
        break
    nothing: Any = {"usd_per_request": np.nan, "usd_per_output_token": np.nan, "batch": np.nan}
    return SizeServed(**size_figures, chips=0, **nothing, reason=reason)


TARGET_KINDS = ("match_quality", "loss", "compute", "usd")
MOST_FLOP = 1e32
# Nats per token; a random guess among 128,256 tokens has 11.8.
MOST_LOSS = 12.0
# Below these values, laws do not describe language models.
LEAST_PARAMS, LEAST_TOKENS, LEAST_FLOP = 1e4, 1e5, 1e10
# Largest number of parameters or tokens of a reference model.
MOST_COUNT = 1e18


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
        aims = [
            name for name, value in (("params and tokens", self.params), *((n, getattr(self, n)) for n in TARGET_KINDS[1:]))
            if not math.isnan(value)
        ]  # fmt: skip
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
    aims = [name for name, value in zip(TARGET_KINDS, (quality, loss, compute, usd), strict=True) if value is not None]
    if len(aims) != 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in aims) or "nothing"
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
        raise InputError(f"quality: it is MODEL@TOKENS, such as 100B@200T or llama-3.1-8b@15T, got {short_repr(quality)}")
    tokens = positive("tokens", count(written.strip(), "tokens", maximum=MOST_COUNT), minimum=LEAST_TOKENS)
    size = _size(name.strip())
    if size is not None:
        return Target(params=positive("parameters", size, minimum=LEAST_PARAMS), tokens=tokens)

    # Laws of dense models have no experts: a mixture counts with its active parameters.
    model = load(name.strip())
    active, total = float(active_parameters(model)), float(total_parameters(model))
    note = ""
    if total > 1.2 * active:
        note = (
            f"{model.name} counts as a dense model of its {show(active)} active parameters, of {show(total)}: "
            "its real loss is lower"
        )
    return Target(params=active, tokens=tokens, model=model.name, note=note)


def _size(text: str) -> float | None:
    """Return parameters that are written as a number; None for a name."""
    try:
        return float(count(text, "parameters", maximum=MOST_COUNT))
    except (UnitError, RangeError):
        return None


def _lifetime(text: str) -> float:
    """Return a time in seconds from text with a unit."""
    try:
        return float(parse(text, "s"))
    except UnitError:
        raise UnitError(f"--lifetime needs a time with a unit, such as 60d or 24h, got {short_repr(text)}") from None


def read_served(text: str, lifetime: str | None = None) -> tuple[float, float]:
    """Return the served tokens and the lifetime from texts.

    Args:
        text: Tokens per time, such as "50M/s", or in total, such as "200T".
        lifetime: Time with a unit, such as "60d"; a rate needs it.

    Returns:
        Served tokens, and lifetime [s] (nan if not given).

    Raises:
        InputError: If a rate has no lifetime.
        RangeError: If the tokens are below 0.

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
        raise RangeError(f"tokens served must be at least 0, got {short_repr(text)}")
    if not slash:
        return served, seconds
    if math.isnan(seconds) and served:
        raise InputError(f"{short_repr(text)} is a rate, which needs a --lifetime, such as 60d")
    return served * (0.0 if math.isnan(seconds) else seconds) / parse(f"1 {per.strip()}", "s"), seconds
