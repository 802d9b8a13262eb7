"""Model sizing with the costs of steptime's own planners, on a named system.

The family of models is the rule of `shape_rule`. A few sizes are planned for serving (`st.plan`: the largest batch within
the speed limit, prefill and decode, cache hits, KV cache by context). They are also planned for training (`st.train`: the
fastest layout that fits, on chips that take the given days, with failures).

Between two sizes, the cost of a request, of an output token and of a training token is a power of the size. More sizes are
planned around the minimum, so that the result is a planned size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from steptime.catalog.hardware_loading import resolve_system
from steptime.errors import Impossible, InputError
from steptime.hardware.system import System
from steptime.models.model import Model, active_parameters
from steptime.models.model import total_parameters as parameters_of
from steptime.number_checks import Array, Number, whole_number
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import least
from steptime.scaling.law_forms import TRAINING_FLOP, bisect
from steptime.scaling.lifetime_compute import SERVING_FLOP, Demand, total_parameters
from steptime.scaling.scaling_laws import Law, tokens_for
from steptime.scaling.shape_rule import LARGEST, SMALLEST, shaped
from steptime.scaling.size_cost import Serving, SizeServed, chips_for, served_size, training_cost
from steptime.units import DAY, show

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
    _check(law, system, trainer, inputs)
    family = _Family(law, at_loss, serving, system, trainer, inputs)
    low, high = max(SMALLEST, around / SPAN), min(LARGEST, around * SPAN)
    for params in np.geomspace(low, high, SIZES):
        family.add(float(params))
    optimum = _best(family, demand, at_loss, usd, around)
    # Plan the interpolated optimum itself until it is a planned size.
    for _ in range(ROUNDS):
        if not family.add(optimum.params):
            break
        optimum = _best(family, demand, at_loss, usd, around)
    return _machine_budget(family, demand, optimum)


@dataclass(slots=True)
class _Family:
    """Planned sizes by parameters."""

    law: Law
    at_loss: float
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
        if any(max(params / size, size / params) < LITTLE for size in self.sizes):
            return False

        tokens = float(np.asarray(tokens_for(self.law, params, self.at_loss, **self.inputs)))
        chips = chips_for(params, tokens, self.trainer, self.serving)
        usd, mfu, seconds = training_cost(self._shaped(target_params), self.trainer, self.serving, chips=chips, tokens=tokens)
        training_figures = {
            "params": params,
            "total_params": float(parameters_of(model)),
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
class _Best:
    """Size of minimum lifetime cost, with the prices of planned sizes and the loss."""

    prices: _Prices
    demand: Demand
    at_loss: float
    params: float

    def bill(self, params: Number) -> tuple[Array, Array, Array, Array]:
        """Return tokens, and USD of training, RL and serving."""
        return self.prices.bill(self.demand, self.at_loss, params)


@dataclass(frozen=True, slots=True)
class _Prices:
    """Cost of a request, an output token and a training token by size."""

    family: _Family
    sizes: list[SizeServed]

    def bill(self, demand: Demand, at_loss: float, params: Number) -> tuple[Array, Array, Array, Array]:
        """Return tokens, and USD of training, RL and serving.

        Rollouts of RL cost as much as output tokens, the rest of RL as much as training.
        """
        workload, law = self.family.serving.workload, self.family.law
        token_usd = self._price(params, "usd_per_training_token")
        tokens = np.asarray(tokens_for(law, params, at_loss, **self.family.inputs))
        training = np.asarray(token_usd * tokens)
        requests = demand.served * (1 - demand.discard) / (workload.input_tokens + workload.output_tokens)
        served = self._price(params, "usd_per_request") * requests if requests else np.zeros_like(training)
        rl = np.zeros_like(training)
        if demand.rl_tokens:
            rl = demand.rl_tokens * self._price(params, "usd_per_output_token")
        if demand.rl_tokens and demand.rl_flop != SERVING_FLOP:
            rl = rl + demand.rl_tokens * token_usd * (demand.rl_flop - SERVING_FLOP) / TRAINING_FLOP
        if demand.rl_share:
            rl = rl + (training + served) * demand.rl_share / (1 - demand.rl_share)
        return tokens, training, np.asarray(rl), served

    def cheapest(self, demand: Demand, at_loss: float) -> tuple[float, float]:
        """Return the size of minimum lifetime cost at a loss, and this cost.

        The cost is infinite where all sizes are too small.
        """

        def total(params: Array) -> Array:
            return np.asarray(sum(self.bill(demand, at_loss, params)[1:]))

        best = float(least(total, low=self.sizes[0].params, high=self.sizes[-1].params))
        # Take a planned size if one is close enough.
        nodes = [size.params for size in self.sizes]
        best = min(nodes, key=lambda size: abs(np.log(size / best))) if _near(best, nodes) else best
        return best, float(total(np.asarray(best)))

    def _price(self, params: Number, name: str) -> Array:
        """Return a price by size: a power law between planned sizes, infinite beyond."""
        nodes, logs = np.log([size.params for size in self.sizes]), np.log([getattr(size, name) for size in self.sizes])
        log_params = np.log(params)
        inside = (log_params >= nodes[0] - 1e-9) & (log_params <= nodes[-1] + 1e-9)
        return np.where(inside, np.exp(np.interp(log_params, nodes, logs)), np.inf)


def _near(size: float, nodes: Sequence[float]) -> bool:
    return any(max(size / node, node / size) < LITTLE for node in nodes)


def _best(family: _Family, demand: Demand, at_loss: float, usd: float, around: float) -> _Best:
    """Return the size of minimum cost at a loss, or of minimum loss for USD."""
    prices = _Prices(family, _priced_sizes(family, around))
    if np.isnan(usd):
        params, bill = prices.cheapest(demand, at_loss)
        if not np.isfinite(bill):
            raise Impossible(f"all planned sizes, up to {show(prices.sizes[-1].params)} parameters, are too small for the loss")
        return _Best(prices, demand, at_loss, params)

    # Bisection over the loss: a lower loss costs more.
    if prices.cheapest(demand, LOSSES[1])[1] > usd:
        raise Impossible(f"usd: serving takes more than ${usd:,.0f} at any size from {show(prices.sizes[0].params)} parameters")
    bought = float(bisect(lambda loss: prices.cheapest(demand, float(loss))[1] <= usd, *LOSSES))
    return _Best(prices, demand, bought, prices.cheapest(demand, bought)[0])


def _machine_budget(family: _Family, demand: Demand, optimum: _Best) -> MachineBudget:
    """Return the result for the optimal size."""
    serving, priced_sizes = family.serving, optimum.prices.sizes
    tokens, training, rl, served = (float(part) for part in optimum.bill(optimum.params))
    total = training + rl + served
    # Figures without an interpolation come from the nearest planned size.
    nearest = _with_bill(min(priced_sizes, key=lambda size: abs(np.log(size.params / optimum.params))), optimum)
    a_request = serving.workload.input_tokens + serving.workload.output_tokens
    requests = demand.served * (1 - demand.discard) / a_request
    request_usd = served / requests if requests else nearest.usd_per_request
    half, double = (float(sum(optimum.bill(np.asarray(optimum.params * factor))[1:])) / total for factor in (0.5, 2.0))
    trained = f"{nearest.training_chips:,} chips of {family.trainer.name} in {serving.training_format} for "
    return MachineBudget(
        law=family.law.name,
        system=family.system.name,
        training_system=family.trainer.name,
        params=optimum.params,
        total_params=nearest.total_params,
        tokens=tokens,
        loss=optimum.at_loss,
        training_usd=training,
        rl_usd=rl,
        serving_usd=served,
        total_usd=total,
        eta=_eta(optimum.params, tokens, demand, training, served),
        usd_per_million_tokens=1e6 * request_usd / a_request,
        serving_chips=served / (1 - demand.discard or np.nan) / float(family.system.rent.typical) / demand.lifetime,
        half_cost=half,
        double_cost=double,
        sizes=tuple(_with_bill(size, optimum) for size in family.planned),
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


def _check(law: Law, system: System, trainer: System, inputs: dict[str, float]) -> None:
    for machine in (system, trainer):
        if not np.isfinite(float(machine.rent.typical)):
            raise InputError(f"{machine.name}: no rent is known; give one, such as --rent 2.10")
    if "sparsity" in inputs:
        raise InputError(f"{law.name} has a sparsity and no number of experts, which a system needs; take a law with experts")


def _with_bill(size: SizeServed, optimum: _Best) -> SizeServed:
    """Return a size with its lifetime cost, if it can be served and trained."""
    if not (np.isfinite(size.usd_per_request) and np.isfinite(size.usd_per_training_token)):
        return size
    tokens, training, rl, served = (float(part) for part in optimum.bill(size.params))
    # The training time was computed for the tokens of the loss of the family; scale it to the tokens here.
    family = optimum.prices.family
    timed = float(np.asarray(tokens_for(family.law, size.params, family.at_loss, **family.inputs)))
    seconds = size.training_seconds * tokens / timed
    return replace(size, tokens=tokens, training_seconds=seconds, training_usd=training, rl_usd=rl, serving_usd=served)
