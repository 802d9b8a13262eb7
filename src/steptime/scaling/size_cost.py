"""One size of a family as a machine serves and trains it: what a request, an output and a training token cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import MOST_CHIPS, positive, whole_number
from steptime.physics.engine import Engine
from steptime.planning.planner import DoesNotFit, plan
from steptime.planning.workload import Slo, Workload
from steptime.result_base import unit
from steptime.scaling.compute_optimal import TRAINING_FLOP
from steptime.training.infeasibility import NothingFits
from steptime.training.training_planner import train
from steptime.units import DAY, show

DOMAINS: Final = (1, 2, 4, 8)  # scale-up domains of which the first that holds a model serves it
USUAL_SHARE: Final = 0.4  # of a chip's rate, by which the chips are counted that end a run in time
FORMAT: Final = "bf16"  # in which those are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How models are served: system, requests that are alike, limits, formats, engine; and what trains them."""

    system: SystemLike = field(metadata=unit("", "the system that serves", kind="text"))
    workload: Workload = field(metadata=unit("", "requests that are alike"))
    slo: Slo = field(default=Slo(), metadata=unit("", "limits on them"))
    weights: str = field(default="", metadata=unit("", "number format of the weights served; empty: bf16"))
    kv: str = field(default="", metadata=unit("", "number format of the KV cache; empty: bf16"))
    engine: str | Engine | None = field(default=None, metadata=unit("", "serving engine; null: the system's usual one"))
    training_system: SystemLike | None = field(default=None, metadata=unit("", "the system that trains; null: the same"))
    training_chips: int | None = field(default=None, metadata=unit("", "chips that train; null: those that end in time"))
    training_days: float = field(default=60.0, metadata=unit("", "days in which training is to end, where no chips are given"))
    training_seq: int = field(default=8192, metadata=unit("tokens", "a sequence of training"))
    training_batch: int = field(default=2048, metadata=unit("", "sequences of a training step"))
    training_format: str = field(default="bf16", metadata=unit("", "number format of training's products"))

    def __post_init__(self) -> None:
        if self.training_chips is not None:
            whole_number("training chips", self.training_chips, maximum=MOST_CHIPS)
        positive("training days", self.training_days)
        whole_number("training sequence", self.training_seq)
        whole_number("training batch", self.training_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeServed:
    """One size of the family as it is served."""

    params: float = field(metadata=unit("", "active parameters of the model that was planned"))
    total_params: float = field(metadata=unit("", "its parameters in all"))
    width: int = field(metadata=unit("", "of its residual stream"))
    layers: int = field(metadata=unit("", "its layers"))
    chips: int = field(metadata=unit("", "chips of the plan"))
    usd_per_request: float = field(
        metadata=unit("USD", "whole rent of a request; null: no plan meets the limits", key="usd_per_request")
    )
    usd_per_output_token: float = field(
        metadata=unit("USD", "rent of the chip-time that an output takes, prompts apart", key="usd_per_output_token")
    )
    batch: float = field(metadata=unit("", "sequences that decode together in a replica"))
    training_chips: int = field(metadata=unit("", "chips that train it"))
    training_seconds: float = field(metadata=unit("s", "wall-clock time of its training; null: no layout holds it"))
    usd_per_training_token: float = field(
        metadata=unit("USD", "rent of a training token; null: no layout holds it", key="usd_per_training_token")
    )
    mfu: float = field(metadata=unit("", "share of the chip's rate that training reaches"))
    tokens: float = field(default=np.nan, metadata=unit("tokens", "training tokens at the loss; null: too small for it"))
    training_usd: float = field(default=np.nan, metadata=unit("USD", "training them"))
    rl_usd: float = field(default=np.nan, metadata=unit("USD", "RL"))
    serving_usd: float = field(default=np.nan, metadata=unit("USD", "serving over the lifetime"))
    reason: str = field(default="", metadata=unit("", "why there is no plan"))


def chips_for(params: float, tokens: float, system: System, serving: Serving) -> int:
    """Return the chips that train a size: those given, or systems of them by a power of two that end in about the days given.

    No chips for tokens that are not finite; at most those that the system has.

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
    """Return what a training token costs [USD] with failures and restarts, the share of the chip's rate, and the time [s].

    Of the fastest layout of so many chips that holds the model (`st.train`). None is a number where none does.
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
    """Return a size as it is served on as few scale-up domains as hold it; training_figures: what is known of its training."""
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
        reason = best_plan.reason
        break
    nothing: Any = {"usd_per_request": np.nan, "usd_per_output_token": np.nan, "batch": np.nan}
    return SizeServed(**size_figures, chips=0, **nothing, reason=reason)
