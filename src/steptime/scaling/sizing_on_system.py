"""The same bill with steptime's own costs: requests as a plan serves them, on a named system, at a limit on speed.

The family of models is the rule of `shapes`. A few sizes of it are planned (`st.plan`: batch as large as the speed allows,
prompts apart from outputs, cached shares, KV cache by context) and trained (`st.train`: the fastest layout that fits of as many
chips as end in the days given, with its failures), and between them the cost of a request, of an output and of a training token
is a power of the size. Around the least bill more sizes are planned, so that what is told is one of them.
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
from steptime.scaling.compute_optimal import TRAINING_FLOP, least
from steptime.scaling.lifetime_compute import SERVING_FLOP, Demand, total_parameters
from steptime.scaling.scaling_laws import Law, tokens_for
from steptime.scaling.shape_rule import LARGEST, SMALLEST, shaped
from steptime.scaling.size_cost import Serving, SizeServed, chips_for, served_size, training_cost
from steptime.units import DAY, show

SIZES: Final = 7  # that are planned before the least bill is known
ROUNDS: Final = 4  # of planning the size of the least bill itself
SPAN: Final = 8.0  # times below and above the size around which they lie
LITTLE: Final = 1.03  # of a size: what is planned lies about as near
HALVINGS: Final = 50
LOSSES: Final = (1e-3, 12.0)  # nats a token, between which the loss that a bill buys lies: 11.8 is a guess of 128,256 tokens


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MachineBudget(Tabular):
    """The model of least bill where steptime reckons what training and serving cost; a row for each size that was planned."""

    law: str = field(metadata=unit("", "the law that says how many tokens a size needs"))
    system: str = field(metadata=unit("", "the system that serves"))
    training_system: str = field(metadata=unit("", "the system that trains"))
    params: float = field(metadata=unit("", "active parameters"))
    total_params: float = field(metadata=unit("", "parameters in all"))
    tokens: float = field(metadata=unit("tokens", "training tokens"))
    loss: float = field(metadata=unit("", "in nats a token by that law"))
    training_usd: float = field(metadata=unit("USD", "training"))
    rl_usd: float = field(metadata=unit("USD", "RL: rollouts as decode, the rest as training"))
    serving_usd: float = field(metadata=unit("USD", "serving over the lifetime"))
    total_usd: float = field(metadata=unit("USD", "the whole bill"))
    eta: float = field(metadata=unit("", "what a FLOP of serving costs over one of training here"))
    usd_per_million_tokens: float = field(
        metadata=unit("USD", "rent of a million tokens served, inputs too", key="usd_per_million_tokens")
    )
    serving_chips: float = field(metadata=unit("", "chips that serve it all its life"))
    half_cost: float = field(metadata=unit("", "the bill of half the parameters at the same loss over the least"))
    double_cost: float = field(metadata=unit("", "the bill of twice the parameters at the same loss over the least"))
    sizes: tuple[SizeServed, ...] = field(metadata=unit("", "the sizes that were planned"))
    mfu: float = field(metadata=unit("", "share of the chip's rate that training reaches at this size"))
    training_chips: int = field(metadata=unit("", "chips that train it"))
    training_seconds: float = field(metadata=unit("s", "wall-clock time of its training"))
    training_by: str = field(metadata=unit("", "how training is priced"))
    notes: tuple[str, ...] = field(metadata=unit("", "what is to be minded"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the size in words."""
        return f"Least bill on {self.system}: {show(self.params)} parameters, {show(self.tokens)} tokens", {
            "bill": f"${self.total_usd:,.0f}", "eta": f"{self.eta:.2f}",
        }  # fmt: skip

    def columns(self) -> dict[str, Any]:
        """Return a row for each size that was planned."""
        return columns_by_key(SizeServed, self.sizes)


def by_machine(
    law: Law, at_loss: float, demand: Demand, serving: Serving, *, around: float, usd: float = np.nan, **inputs: float
) -> MachineBudget:
    """Return the model of least bill at a loss, or of least loss for a bill of `usd` where that is given.

    Sizes are planned from an eighth to eight times `around`, and then about the best; at_loss also tells how many tokens, and
    so chips, each trains on. Raises Impossible where no size of the family meets the limits.
    """
    system = resolve_system(serving.system)
    trainer = system if serving.training_system is None else resolve_system(serving.training_system)
    _check(law, system, trainer, inputs)
    family = _Family(law, at_loss, serving, system, trainer, inputs)
    low, high = max(SMALLEST, around / SPAN), min(LARGEST, around * SPAN)
    for params in np.geomspace(low, high, SIZES):
        family.add(float(params))
    optimum = _best(family, demand, at_loss, usd, around)
    for _ in range(ROUNDS):
        if not family.add(optimum.params):
            break
        optimum = _best(family, demand, at_loss, usd, around)
    return _machine_budget(family, demand, optimum)


@dataclass(slots=True)
class _Family:
    """Sizes that are planned, by parameters."""

    law: Law
    at_loss: float
    serving: Serving
    system: System
    trainer: System
    inputs: dict[str, float]
    sizes: dict[float, SizeServed] = field(default_factory=dict)

    def add(self, target_params: float) -> bool:
        """Plan a size; whether it is a new one."""
        model = self._shaped(target_params, self.serving.weights, self.serving.kv)
        params = float(active_parameters(model))
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
        """The sizes, smallest first."""
        return [self.sizes[params] for params in sorted(self.sizes)]


@dataclass(frozen=True, slots=True)
class _Best:
    """The size of least bill: prices of the sizes that are known, and the loss."""

    prices: _Prices
    demand: Demand
    at_loss: float
    params: float

    def bill(self, params: Number) -> tuple[Array, Array, Array, Array]:
        """Return tokens, and USD of training, RL and serving."""
        return self.prices.bill(self.demand, self.at_loss, params)


@dataclass(frozen=True, slots=True)
class _Prices:
    """What a request, an output and a training token cost by size."""

    family: _Family
    sizes: list[SizeServed]

    def bill(self, demand: Demand, at_loss: float, params: Number) -> tuple[Array, Array, Array, Array]:
        """Return tokens, and USD of training, RL and serving: rollouts as outputs, what else RL takes as training."""
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
        """Return the size of least bill at a loss, and the bill; infinite where all sizes are too small."""

        def total(params: Array) -> Array:
            return np.asarray(sum(self.bill(demand, at_loss, params)[1:]))

        best = float(least(total, low=self.sizes[0].params, high=self.sizes[-1].params))
        nodes = [size.params for size in self.sizes]  # a size that was planned, where one is as near as they are made
        best = min(nodes, key=lambda size: abs(np.log(size / best))) if _near(best, nodes) else best
        return best, float(total(np.asarray(best)))

    def _price(self, params: Number, name: str) -> Array:
        """Return a price by parameters: a power between two sizes that are known, infinite beyond them."""
        nodes, logs = np.log([size.params for size in self.sizes]), np.log([getattr(size, name) for size in self.sizes])
        log_params = np.log(params)
        inside = (log_params >= nodes[0] - 1e-9) & (log_params <= nodes[-1] + 1e-9)
        return np.where(inside, np.exp(np.interp(log_params, nodes, logs)), np.inf)


def _near(size: float, nodes: Sequence[float]) -> bool:
    return any(max(size / node, node / size) < LITTLE for node in nodes)


def _best(family: _Family, demand: Demand, at_loss: float, usd: float, around: float) -> _Best:
    """Return the size of least bill at a loss, or where a bill is given, at the least loss that it buys."""
    prices = _Prices(family, _priced_sizes(family, around))
    if np.isnan(usd):
        params, bill = prices.cheapest(demand, at_loss)
        if not np.isfinite(bill):
            raise Impossible(
                f"the sizes that are served and trained, up to {show(prices.sizes[-1].params)} parameters, are too small for "
                "the loss"
            )
        return _Best(prices, demand, at_loss, params)
    low, high = np.log(LOSSES)
    if prices.cheapest(demand, LOSSES[1])[1] > usd:
        raise Impossible(f"serving takes more than ${usd:,.0f} at any size from {show(prices.sizes[0].params)} parameters on")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if prices.cheapest(demand, float(np.exp(middle)))[1] > usd else (low, middle)
    bought = float(np.exp(high))
    return _Best(prices, demand, bought, prices.cheapest(demand, bought)[0])


def _machine_budget(family: _Family, demand: Demand, optimum: _Best) -> MachineBudget:
    """Return the answer."""
    serving, priced_sizes = family.serving, optimum.prices.sizes
    tokens, training, rl, served = (float(part) for part in optimum.bill(optimum.params))
    total = training + rl + served
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
            f"{serving.training_seq:,} tokens a step, failures included"
        ),
        notes=tuple(_notes(family, nearest)),
    )


def _notes(family: _Family, size: SizeServed) -> Iterator[str]:
    """Yield what is to be minded: mixtures of the family that hold more, or less, than those of the law's runs."""
    by_law = float(np.asarray(total_parameters(family.law, size.params, family.inputs)))
    ratio = max(by_law / size.total_params, size.total_params / by_law)
    if ratio > LITTLE**4:
        yield (
            f"the family's mixture holds {show(size.total_params)} parameters for {show(size.params)} active ones, the law's "
            f"own runs {show(by_law)}: what is served is not quite what the law judged"
        )


def _priced_sizes(family: _Family, around: float) -> list[SizeServed]:
    """Return the sizes that are served and trained; raise Impossible, with the reason, where they are fewer than two."""
    sizes = family.planned
    priced_sizes = [size for size in sizes if np.isfinite(size.usd_per_request) and np.isfinite(size.usd_per_training_token)]
    if len(priced_sizes) > 1:
        return priced_sizes
    if sum(bool(np.isfinite(size.usd_per_training_token)) for size in sizes) < 2:
        max_chips = max(size.training_chips for size in sizes)
        raise Impossible(
            f"{max_chips:,} chips of {family.trainer.name} train no size near {show(around)} parameters to the loss"
            if max_chips
            else f"all sizes near {show(around)} parameters are too small for the loss"
        )
    first = next(size for size in sizes if size.reason)  # the smallest, which has the best chance
    raise Impossible(
        f"no size near {show(around)} parameters is served within the limits; of {show(first.params)}: {first.reason}"
    )


def _eta(params: float, tokens: float, demand: Demand, training: float, served: float) -> float:
    """Return what a FLOP of serving costs over one of training, counted as 2 N and 6 N a token."""
    flop = SERVING_FLOP * params * demand.served * (1 - demand.discard)
    return served / flop / (training / (TRAINING_FLOP * params * tokens)) if flop else np.nan


def _check(law: Law, system: System, trainer: System, inputs: dict[str, float]) -> None:
    for machine in (system, trainer):
        if not np.isfinite(float(machine.rent.typical)):
            raise InputError(f"{machine.name}: no rent is known; give one, such as --rent 2.10")
    if "sparsity" in inputs:
        raise InputError(f"{law.name} tells the sparsity of a model and not its experts, of which the machine needs the number")


def _with_bill(size: SizeServed, optimum: _Best) -> SizeServed:
    """Return a size with its bill; without one where it is not served or not trained."""
    if not (np.isfinite(size.usd_per_request) and np.isfinite(size.usd_per_training_token)):
        return size
    tokens, training, rl, served = (float(part) for part in optimum.bill(size.params))
    family = optimum.prices.family  # which timed it on the tokens of its own loss
    timed = float(np.asarray(tokens_for(family.law, size.params, family.at_loss, **family.inputs)))
    seconds = size.training_seconds * tokens / timed
    return replace(size, tokens=tokens, training_seconds=seconds, training_usd=training, rl_usd=rl, serving_usd=served)
