"""Model sizing with the costs of steptime's own planners, on a named system.

**Family of models.** The rule of `model_config` follows the three sizes of Llama 3: heads of 128 values, 8 KV heads, a gated
feed-forward block of 3.5 times the width, a vocabulary of 128,256. There is about one layer per 128 of width (8 B: 4,096 and 32
layers; 70 B: 8,192 and 80; 405 B: 16,384 and 126). The width is 1,024 times a number of three bits (1 to 8, then 10, 12, 14,
16, 20 ...). With this, KV heads divide the heads, and wide models divide over many chips. The number of layers makes up the
difference. A mixture has the same number of layers with the same attention. Each expert has 1/granularity of the block, and a
token uses `granularity` experts.

**Costs.** A few sizes are planned for serving (`st.plan`: the largest batch within the speed limit, prefill and decode, cache
hits, KV cache by context). They are also planned for training (`st.train`: the fastest layout that fits, on chips that take the
given days, with failures). Between two sizes, the cost of a request, of an output token and of a training token is a power of
the size. More sizes are planned around the minimum, so that the result is a planned size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, InputError, RangeError
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters
from steptime.models.model import total_parameters as model_parameters
from steptime.models.model_loading import load_model
from steptime.number_checks import MOST_CHIPS, Array, Number, positive, whole_number
from steptime.physics.engine import Engine
from steptime.planning.planner import DoesNotFit, plan
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import least
from steptime.scaling.law_forms import TRAINING_FLOP, bisect
from steptime.scaling.lifetime_compute import SERVING_FLOP, Demand, total_parameters
from steptime.scaling.scaling_laws import Law, tokens_for
from steptime.training.training_alternatives import NothingFits
from steptime.training.training_planner import train
from steptime.units import DAY, MILLION, show
from steptime.workload.workload import Slo, Workload

# Head width, KV heads, feed-forward over width, tokens: Llama 3, arXiv 2407.21783, Table 3.
HEAD, KV_HEADS, FEED_FORWARD, VOCABULARY = 128, 8, 3.5, 128_256
WIDTHS: Final = tuple(1024 * mantissa << exponent for exponent in range(6) for mantissa in range(1 if not exponent else 5, 9))
# Width per layer of Llama 3.
LAYERS_TO_WIDTH: Final = 128
# Range of the rule [parameters].
SMALLEST, LARGEST = 0.3e9, 30e12
POSITIONS: Final = 1_048_576
# Scale-up domains to try; the smallest number with enough memory serves the model.
DOMAIN_COUNTS: Final = (1, 2, 4, 8)
# Share of the rate of a chip for the estimate of training chips, and its number format.
USUAL_SHARE: Final = 0.4
FORMAT: Final = "bf16"
# Sizes that are planned first.
SIZES: Final = 7
# Rounds that plan the size of minimum cost itself.
ROUNDS: Final = 4
# Factor between the center and the ends of the first sizes.
SPAN: Final = 8.0
# Factor below which two sizes count as the same.
LITTLE: Final = 1.03
# Range of the loss of a budget [nats per token]; a random guess among 128,256 tokens has 11.8.
LOSSES: Final = (1e-3, 12.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How models are served and trained: system, workload, limits, formats and engine."""

    system: SystemLike = field(metadata=unit("", "serving system", kind="text"))
    workload: Workload = field(metadata=unit("", "requests to serve"))
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
    >>> from steptime.workload.workload import Workload
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
    for domains in DOMAIN_COUNTS:
        try:
            best_plan = plan(model, system, serving.workload, serving.slo, chips=system.chips * domains, engine=serving.engine,
                             alternatives=False, elasticities=False, front=False, diagnostics=False)  # fmt: skip
        except DoesNotFit:
            reason = f"{show(training_figures['params'])} parameters do not fit {system.chips * domains} chips"
            continue
        if best_plan.feasible:
            batch = max(pool.batch for pool in best_plan.pools)
            return SizeServed(
                **size_figures,
                chips=best_plan.chips,
                usd_per_request=float(best_plan.usd_per_request),
                usd_per_output_token=float(best_plan.decode_usd_per_million_tokens) / MILLION,
                batch=float(batch),
            )
        # The smallest number of domains with enough memory decides, even if its plan misses the limits.
        reason = best_plan.reason
        break
    nothing: Any = {"usd_per_request": np.nan, "usd_per_output_token": np.nan, "batch": np.nan}
    return SizeServed(**size_figures, chips=0, **nothing, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MachineBudget(Tabular):
    """Size of minimum lifetime cost by steptime's planners; one row per planned size."""

    law: str = field(metadata=unit("", "scaling law for the training tokens of a size"))
    system: str = field(metadata=unit("", "serving system"))
    training_system: str = field(metadata=unit("", "training system"))
    params: float = field(metadata=unit("", "active parameters"))
    total_params: float = field(metadata=unit("", "total parameters"))
    tokens: float = field(metadata=unit("tokens", "training tokens"))
    loss: float = field(metadata=unit("", "loss by this law, in nats per token"))
    training_usd: float = field(metadata=unit("USD", "cost of training"))
    rl_usd: float = field(metadata=unit("USD", "cost of RL: rollouts as decode, the rest as training"))
    serving_usd: float = field(metadata=unit("USD", "cost of serving over the lifetime"))
    total_usd: float = field(metadata=unit("USD", "lifetime cost"))
    eta: float = field(metadata=unit("", "cost of a serving FLOP over a training FLOP on these systems"))
    usd_per_million_tokens: float = field(
        metadata=unit("USD", "rent per million served tokens, input and output", key="usd_per_million_tokens")
    )
    serving_chips: float = field(metadata=unit("", "chips for serving over the lifetime"))
    half_cost: float = field(metadata=unit("", "lifetime cost of half the parameters at the same loss over the minimum"))
    double_cost: float = field(metadata=unit("", "lifetime cost of twice the parameters at the same loss over the minimum"))
    sizes: tuple[SizeServed, ...] = field(metadata=unit("", "planned sizes"))
    mfu: float = field(metadata=unit("", "MFU of training at this size"))
    training_chips: int = field(metadata=unit("", "training chips"))
    training_seconds: float = field(metadata=unit("s", "wall-clock time of training"))
    training_by: str = field(metadata=unit("", "chips, format and time of training, as text"))
    notes: tuple[str, ...] = field(metadata=unit("", "warnings"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the size of minimum cost.

        Returns:
            Title, and lines by name.
        """
        return f"Minimum lifetime cost on {self.system}: {show(self.params)} parameters, {show(self.tokens)} tokens", {
            "cost": f"${self.total_usd:,.0f}", "eta": f"{self.eta:.2f}",
        }  # fmt: skip

    def columns(self) -> dict[str, Any]:
        """Return one row per planned size.

        Returns:
            Values by column name.
        """
        return columns_by_key(SizeServed, self.sizes)


def by_machine(
    law: Law, at_loss: float, demand: Demand, serving: Serving, *, around: float, usd: float = np.nan, **inputs: float
) -> MachineBudget:
    """Return the size of minimum lifetime cost at a loss, or of minimum loss for USD.

    Sizes from an eighth to eight times `around` are planned, and then sizes near the optimum.

    Args:
        law: Scaling law.
        at_loss: Loss to reach [nats per token]; it also gives the training tokens and chips of each size.
        demand: Served tokens and RL over the lifetime.
        serving: How the model is served and trained.
        around: Parameters at the center of the planned sizes.
        usd: Lifetime cost to spend [USD]; nan for the minimum cost at the loss.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Size, tokens and costs.

    Raises:
        Impossible: If no size of the family meets the limits.
        InputError: If a system has no rent, or the law needs a sparsity.
    """
    system = resolve_system(serving.system)
    trainer = system if serving.training_system is None else resolve_system(serving.training_system)
    for machine in (system, trainer):
        if not np.isfinite(float(machine.rent.typical)):
            raise InputError(f"{machine.name}: no rent is known; give one, such as --rent 2.10")
    if "sparsity" in inputs:
        raise InputError(f"{law.name} has a sparsity and no number of experts, which a system needs; take a law with experts")
    family = _Family(law, at_loss, demand, serving, system, trainer, inputs)
    low, high = max(SMALLEST, around / SPAN), min(LARGEST, around * SPAN)
    for params in np.geomspace(low, high, SIZES):
        family.add(float(params))
    costs, best = _best(family, usd, around)
    # Plan the interpolated optimum itself until it is a planned size.
    for _ in range(ROUNDS):
        if not family.add(best):
            break
        costs, best = _best(family, usd, around)
    return _machine_budget(costs, best)


@dataclass(slots=True)
class _Family:
    """Planned sizes by parameters."""

    law: Law
    at_loss: float
    demand: Demand
    serving: Serving
    system: System
    trainer: System
    inputs: dict[str, float]
    sizes: dict[float, SizeServed] = field(default_factory=dict)

    def add(self, target_params: float) -> bool:
        """Plan a size, and return whether it is a new one."""
        model = self._shaped(target_params, self.serving.weights, self.serving.kv)
        params = float(active_parameters(model))
        # The rule has discrete shapes, so that a new target may give a known size.
        if any(_is_near(params, size) for size in self.sizes):
            return False

        tokens = float(np.asarray(tokens_for(self.law, params, self.at_loss, **self.inputs)))
        chips = chips_for(params, tokens, self.trainer, self.serving)
        usd, mfu, seconds = training_cost(self._shaped(target_params), self.trainer, self.serving, chips=chips, tokens=tokens)
        training_figures = {
            "params": params,
            "total_params": float(model_parameters(model)),
            "training_chips": chips,
            "training_seconds": seconds,
            "usd_per_training_token": usd,
            "mfu": mfu,
        }
        self.sizes[params] = served_size(model, training_figures, self.serving, self.system)
        return True

    def _shaped(self, target_params: float, weights: str = "", kv: str = "") -> Model:
        experts, granularity = (whole_number(name, self.inputs.get(name, 1)) for name in ("experts", "granularity"))
        return shaped(target_params, experts, granularity, weights, kv)

    @property
    def planned(self) -> list[SizeServed]:
        """Sizes, smallest first."""
        return [self.sizes[params] for params in sorted(self.sizes)]


@dataclass(frozen=True, slots=True)
class _Costs:
    """Lifetime costs at a loss by size, from the prices of planned sizes."""

    family: _Family
    sizes: list[SizeServed]
    at_loss: float

    def bill(self, params: Number) -> tuple[Array, Array, Array, Array]:
        """Return tokens, and USD of training, RL and serving.

        Rollouts of RL cost as much as output tokens, the rest of RL as much as training.
        """
        demand, law = self.family.demand, self.family.law
        token_usd = self._price(params, "usd_per_training_token")
        tokens = np.asarray(tokens_for(law, params, self.at_loss, **self.family.inputs))
        training = np.asarray(token_usd * tokens)
        requests = self.requests
        served = self._price(params, "usd_per_request") * requests if requests else np.zeros_like(training)
        rl = np.zeros_like(training)
        if demand.rl_tokens:
            rl = demand.rl_tokens * self._price(params, "usd_per_output_token")
        if demand.rl_tokens and demand.rl_flop != SERVING_FLOP:
            rl = rl + demand.rl_tokens * token_usd * (demand.rl_flop - SERVING_FLOP) / TRAINING_FLOP
        if demand.rl_share:
            rl = rl + (training + served) * demand.rl_share / (1 - demand.rl_share)
        return tokens, training, np.asarray(rl), served

    @property
    def requests(self) -> float:
        """Served requests over the lifetime."""
        demand, workload = self.family.demand, self.family.serving.workload
        return float(demand.served * (1 - demand.discard) / (workload.input_tokens + workload.output_tokens))

    def total(self, params: Number) -> Array:
        """Return the lifetime cost [USD]."""
        return np.asarray(sum(self.bill(params)[1:]))

    def cheapest(self) -> tuple[float, float]:
        """Return the size of minimum lifetime cost, and this cost; the cost is infinite where all sizes are too small."""
        nodes = [size.params for size in self.sizes]
        best = float(least(self.total, low=nodes[0], high=nodes[-1]))
        # Take a planned size if one is close enough.
        nearest = min(nodes, key=lambda size: abs(np.log(size / best)))
        best = nearest if _is_near(nearest, best) else best
        return best, float(self.total(best))

    def _price(self, params: Number, name: str) -> Array:
        """Return a price by size: a power law between planned sizes, infinite beyond."""
        nodes, logs = np.log([size.params for size in self.sizes]), np.log([getattr(size, name) for size in self.sizes])
        log_params = np.log(params)
        inside = (log_params >= nodes[0] - 1e-9) & (log_params <= nodes[-1] + 1e-9)
        return np.where(inside, np.exp(np.interp(log_params, nodes, logs)), np.inf)


def _is_near(size: float, other_size: float) -> bool:
    return max(size / other_size, other_size / size) < LITTLE


def _best(family: _Family, usd: float, around: float) -> tuple[_Costs, float]:
    """Return the size of minimum cost at the loss of the family, or of minimum loss for USD, with the costs at that loss."""
    costs = _Costs(family, _priced_sizes(family, around), family.at_loss)
    if np.isnan(usd):
        params, total = costs.cheapest()
        if not np.isfinite(total):
            raise Impossible(f"all planned sizes, up to {show(costs.sizes[-1].params)} parameters, are too small for the loss")
        return costs, params

    # A lower loss costs more.
    def is_affordable(at_loss: Number) -> bool:
        return replace(costs, at_loss=float(at_loss)).cheapest()[1] <= usd

    if not is_affordable(LOSSES[1]):
        raise Impossible(f"usd: serving takes more than ${usd:,.0f} at any size from {show(costs.sizes[0].params)} parameters")
    bought = replace(costs, at_loss=float(bisect(is_affordable, *LOSSES)))
    return bought, bought.cheapest()[0]


def _machine_budget(costs: _Costs, params: float) -> MachineBudget:
    """Return the result for the optimal size."""
    family, demand, serving = costs.family, costs.family.demand, costs.family.serving
    tokens, training, rl, served = (float(part) for part in costs.bill(params))
    total = training + rl + served
    # Figures without an interpolation come from the nearest planned size.
    nearest = _with_bill(min(costs.sizes, key=lambda size: abs(np.log(size.params / params))), costs)
    request_usd = served / costs.requests if costs.requests else nearest.usd_per_request
    half, double = (float(costs.total(params * factor)) / total for factor in (0.5, 2.0))
    trained = f"{nearest.training_chips:,} chips of {family.trainer.name} in {serving.training_format} for "
    return MachineBudget(
        law=family.law.name,
        system=family.system.name,
        training_system=family.trainer.name,
        params=params,
        total_params=nearest.total_params,
        tokens=tokens,
        loss=costs.at_loss,
        training_usd=training,
        rl_usd=rl,
        serving_usd=served,
        total_usd=total,
        eta=_eta(params, tokens, demand, training, served),
        usd_per_million_tokens=MILLION * request_usd / (serving.workload.input_tokens + serving.workload.output_tokens),
        serving_chips=served / (1 - demand.discard or np.nan) / float(family.system.rent.typical) / demand.lifetime,
        half_cost=half,
        double_cost=double,
        sizes=tuple(_with_bill(size, costs) for size in family.planned),
        mfu=nearest.mfu,
        training_chips=nearest.training_chips,
        training_seconds=nearest.training_seconds,
        training_by=(
            f"{trained}{nearest.training_seconds / DAY:,.0f} days, {serving.training_batch:,} sequences of "
            f"{serving.training_seq:,} tokens per step, with failures"
        ),
        notes=tuple(_notes(family, nearest)),
    )


def _notes(family: _Family, size: SizeServed) -> Iterator[str]:
    """Yield warnings: mixtures whose total parameters differ from those of the law."""
    by_law = float(np.asarray(total_parameters(family.law, size.params, family.inputs)))
    ratio = max(by_law / size.total_params, size.total_params / by_law)
    if ratio > LITTLE**4:
        yield (
            f"the served mixture has {show(size.total_params)} parameters for {show(size.params)} active ones, and the runs of "
            f"the law have {show(by_law)}: the loss is that of another model"
        )


def _priced_sizes(family: _Family, around: float) -> list[SizeServed]:
    """Return the sizes with both costs; raise Impossible if there are fewer than two."""
    sizes = family.planned
    priced_sizes = [size for size in sizes if np.isfinite(size.usd_per_request) and np.isfinite(size.usd_per_training_token)]
    if len(priced_sizes) > 1:
        return priced_sizes
    if sum(bool(np.isfinite(size.usd_per_training_token)) for size in sizes) < 2:
        max_chips = max(size.training_chips for size in sizes)
        raise Impossible(
            f"{max_chips:,} chips of {family.trainer.name} can train no size near {show(around)} parameters to the loss"
            if max_chips
            else f"all sizes near {show(around)} parameters are too small for the loss"
        )
    # The smallest size has the lowest memory need, so that its reason is the most useful.
    first = next(size for size in sizes if size.reason)
    raise Impossible(
        f"no size near {show(around)} parameters is served within the limits; for {show(first.params)}: {first.reason}"
    )


def _eta(params: float, tokens: float, demand: Demand, training: float, served: float) -> float:
    """Return the cost of a serving FLOP (2 N per token) over a training FLOP (6 N)."""
    flop = SERVING_FLOP * params * demand.served * (1 - demand.discard)
    return served / flop / (training / (TRAINING_FLOP * params * tokens)) if flop else np.nan


def _with_bill(size: SizeServed, costs: _Costs) -> SizeServed:
    """Return a size with its lifetime cost, if it can be served and trained."""
    if not (np.isfinite(size.usd_per_request) and np.isfinite(size.usd_per_training_token)):
        return size
    tokens, training, rl, served = (float(part) for part in costs.bill(size.params))
    # The training time was computed for the tokens of the loss of the family; scale it to the tokens here.
    family = costs.family
    timed = float(np.asarray(tokens_for(family.law, size.params, family.at_loss, **family.inputs)))
    seconds = size.training_seconds * tokens / timed
    return replace(size, tokens=tokens, training_seconds=seconds, training_usd=training, rl_usd=rl, serving_usd=served)


def per_layer(width: int) -> float:
    """Return the active parameters of a layer.

    They are queries and outputs, keys and values, and three matrices of the feed-forward block.

    Args:
        width: Width of the residual stream.

    Returns:
        Parameters.

    >>> per_layer(8192)
    855638016.0
    """
    return 2 * width**2 + 2 * width * KV_HEADS * HEAD + 3 * FEED_FORWARD * width**2


def width_and_layers(active: float) -> tuple[int, int]:
    """Return the width and the number of layers for a number of parameters.

    The proportion is close to that of Llama 3. The head counts.

    Args:
        active: Active parameters.

    Returns:
        Width, and layers.

    >>> width_and_layers(70e9), width_and_layers(8e9), width_and_layers(0.4e9)
    ((8192, 81), (4096, 34), (1024, 18))
    """
    shapes = [(width, max(1, round((active - VOCABULARY * width) / per_layer(width)))) for width in WIDTHS]
    return min(shapes, key=lambda shape: abs(math.log(shape[0] / (LAYERS_TO_WIDTH * shape[1]))))


def model_config(active: float, experts: int = 1, granularity: int = 1) -> dict[str, Any]:
    """Return the config of a model with about the given active parameters.

    Above one expert, the feed-forward block exists `experts` times.

    Args:
        active: Active parameters.
        experts: Feed-forward blocks, of which a token uses one.
        granularity: Experts per token; each has 1/granularity of a feed-forward block.

    Returns:
        Config by key, as in config.json.

    Raises:
        RangeError: If the parameters are out of the range of the rule.

    >>> config = model_config(70e9)
    >>> config["hidden_size"], config["num_hidden_layers"]
    (8192, 81)
    """
    if not SMALLEST <= active <= LARGEST:
        raise RangeError(f"parameters: must be from {SMALLEST / 1e9:g} B to {LARGEST / 1e12:g} T, got {active:,.0f}")
    width, layers = width_and_layers(active)
    block = round(FEED_FORWARD * width)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": block,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    if experts > 1:
        config |= {
            "model_type": "qwen3_moe",
            "num_experts": experts * granularity,
            "num_experts_per_tok": granularity,
            # Multiples of 64 keep the expert width divisible over chips.
            "moe_intermediate_size": max(64, round(block / granularity / 64) * 64),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return config


@lru_cache(maxsize=256)
def shaped(active: float, experts: int = 1, granularity: int = 1, weights: str = "", kv: str = "") -> Model:
    """Return the model of the rule.

    Args:
        active: Active parameters.
        experts: Feed-forward blocks, of which a token uses one.
        granularity: Experts per token; each has 1/granularity of a feed-forward block.
        weights: Number format of the weights; bf16 if empty.
        kv: Number format of the KV cache; bf16 if empty.

    Returns:
        Model.
    """
    return load_model(model_config(active, experts, granularity), weights=weights, kv=kv)
