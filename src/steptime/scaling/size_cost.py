"""Cost of serving and training one model size on a system.

The costs are per request, per output token and per training token.
"""

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
