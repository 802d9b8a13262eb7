"""A budget: the parameters and tokens that serve a traffic at least cost, by one law or a range over several.

The lecture's mode counts FLOP, 6 N D to train and 2 N eta to serve; `machine` puts steptime's own costs in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.compute_allocation import overtraining
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, InputError, RangeError
from steptime.hardware.system import System
from steptime.number_checks import Number, positive, share
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import TRAINING_FLOP, over_errors, over_laws
from steptime.scaling.lifetime_compute import (
    Bill,
    Demand,
    at_equal_loss,
    equality,
    lifetime_bill,
    own_tokens,
    total_parameters,
    within,
)
from steptime.scaling.quality_target import Target, read_target
from steptime.scaling.scaling_laws import Law, LawLike, beyond, in_beyond, load_laws, tokens_for
from steptime.scaling.size_cost import Serving
from steptime.scaling.sizing_on_system import MachineBudget, by_machine
from steptime.units import DAY, in_digits, show

MFU: Final = 0.43  # Llama 3 405B on 8,192 H100 in bf16 (arXiv 2407.21783, Table 4)
FORMAT: Final = "bf16"
SYSTEM: Final = "hgx-h100"
TRAINING_DAYS: Final = 60.0
RANGED: Final = ("params", "tokens", "total_flop", "training_share", "over_chinchilla", "over_own")
FAR: Final = 3.0  # between laws, from which a warning says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one law chooses, in the lecture's mode; ranges are of 90 %, over the errors of its constants."""

    law: str = field(metadata=unit("", "the scaling law"))
    scaling_law: Law = field(metadata={"left_out": True})  # the law itself
    grade: str = field(metadata=unit("", "how far to trust its constants"))
    loss: float = field(metadata=unit("", "of the model, in nats a token by this law"))
    params: float = field(metadata=unit("", "parameters that a token passes through"))
    total_params: float = field(metadata=unit("", "parameters in all, as the law's own runs were built"))
    tokens: float = field(metadata=unit("tokens", "training tokens, repeats counted"))
    training_flop: float = field(metadata=unit("FLOP", "6 N D"))
    rl_flop: float = field(metadata=unit("FLOP", "RL, in FLOP of training"))
    serving_flop: float = field(metadata=unit("FLOP", "2 N D eta, in FLOP of training"))
    total_flop: float = field(metadata=unit("FLOP", "the whole bill"))
    training_share: float = field(metadata=unit("", "share of the bill that training takes"))
    over_chinchilla: float = field(metadata=unit("", "tokens over 20 N"))
    over_own: float = field(metadata=unit("", "tokens over what this law would train these parameters on without traffic"))
    equality_params: float = field(metadata=unit("", "parameters at which training costs what RL and serving do"))
    equality_tokens: float = field(metadata=unit("tokens", "tokens at which it does"))
    equality_cost: float = field(metadata=unit("", "the bill there over the least"))
    half_cost: float = field(
        metadata=unit("", "the bill of half the parameters at the same loss over the least; none: out of reach")
    )
    double_cost: float = field(metadata=unit("", "the bill of twice the parameters at the same loss over the least"))
    usd: float = field(metadata=unit("USD", "the whole bill at the rent of the system"))
    training_usd: float = field(metadata=unit("USD", "training"))
    rl_usd: float = field(metadata=unit("USD", "RL"))
    serving_usd: float = field(metadata=unit("USD", "serving over the lifetime"))
    training_chips: float = field(metadata=unit("", "chips that train it in the days that are given"))
    serving_chips: float = field(metadata=unit("", "chips that serve it all its life"))
    ranges: Mapping[str, tuple[float, float]] = field(
        default_factory=dict,
        metadata=unit("", "90 % ranges by figure, over the law's errors; empty: not known together", kind="object of pairs"),
    )
    beyond: Mapping[str, float] = field(
        default_factory=dict,
        metadata=unit("", "how many times what it chooses lies outside the runs that it was fitted to, by input"),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Budget(Tabular):
    """How large a model, on how many tokens: a choice by each law, the first of them first."""

    SCHEMA: ClassVar[str] = "steptime.budget/2"

    target: Target = field(metadata=unit("", "what is aimed at"))
    demand: Demand = field(metadata=unit("", "what the model will do"))
    law_inputs: Mapping[str, float] = field(
        metadata=unit("", "what it is beside its size: experts, granularity, sparsity, unique tokens")
    )
    choices: tuple[Choice, ...] = field(metadata=unit("", "a choice by each law"))
    params_over_laws: tuple[float, float] | None = field(
        metadata=unit("", "least and most parameters over the laws; null of one")
    )
    tokens_over_laws: tuple[float, float] | None = field(
        metadata=unit("tokens", "least and most tokens over the laws; null of one", key="tokens_over_laws")
    )
    over_chinchilla_over_laws: tuple[float, float] | None = field(metadata=unit("", "least and most tokens over 20 N"))
    system: str = field(metadata=unit("", "the system whose rent and rate turn FLOP into USD and chips"))
    mfu: float = field(metadata=unit("", "share of the chip's bf16 rate that training reaches in the lecture's mode"))
    rent: float = field(metadata=unit("USD/s", "rent of a chip"))
    training_days: float = field(metadata=unit("", "days of training that chips are counted for"))
    machine: MachineBudget | None = field(metadata=unit("", "the same with steptime's own costs; null unless asked for"))
    warnings: tuple[str, ...] = field(metadata=unit("", "what is to be minded"))

    @property
    def choice(self) -> Choice:
        """What the first law chooses."""
        return self.choices[0]

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the first law's choice in words."""
        best = self.choice
        spread = self.params_over_laws
        over = f" ({show(spread[0])} to {show(spread[1])} over {len(self.choices)} laws)" if spread else ""
        return f"Budget for {self.target.words}, by {best.law}", {
            "parameters": show(best.params) + over,
            "tokens": f"{show(best.tokens)}, {in_digits(best.over_chinchilla)}x over 20 a parameter",
            "training": f"{best.training_share:.0%} of {best.total_flop:.3g} FLOP",
        }

    def columns(self) -> dict[str, Any]:
        """Return a row for each law."""
        columns = columns_by_key(Choice, self.choices)
        columns.pop("ranges"), columns.pop("beyond")
        return columns


def budget(
    target: Target | str,
    demand: Demand | None = None,
    *,
    law: LawLike | Sequence[LawLike] | None = None,
    system: SystemLike = SYSTEM,
    mfu: float = MFU,
    training_days: float = TRAINING_DAYS,
    machine: Serving | None = None,
    **inputs: float,
) -> Budget:
    """Return the model of least bill for a target and what it will do, by one law or several.

    target: "MODEL@TOKENS" whose loss is wanted, or a `Target`, which aims at a loss, FLOP or USD too. law: a name, or several,
    of which the first leads; by default those that know what `inputs` says (`experts`, `granularity`, `sparsity`, `unique`
    tokens), or all dense ones that are sure enough. system, mfu: what FLOP cost in the lecture's mode. machine: how the model
    is served, for a second answer with steptime's own costs.

    >>> found = budget("100B@200T", Demand(served=200e12), law="hoffmann")
    >>> round(found.choice.params / 1e9, 1), round(found.choice.over_chinchilla, 1), round(found.choice.training_share, 3)
    (104.9, 85.9, 0.474)
    """
    target = read_target(target) if isinstance(target, str) else target
    demand = Demand() if demand is None else demand
    law_inputs = {name: value for name, value in inputs.items() if value is not None}
    laws = usable(load_laws(law), law_inputs) if law is not None else default_laws(law_inputs)
    hardware = resolve_system(system)
    share("mfu", positive("mfu", mfu))
    positive("training days", training_days)
    price = _Price.from_system(hardware, mfu, training_days)
    aim = target
    if not math.isnan(target.usd):
        if math.isnan(price.rent):
            raise InputError(f"no rent of {hardware.name} is known, so that USD buy no FLOP; give one, such as --rent 2.10")
        aim = Target(compute=target.usd / price.usd_per_flop)
    choices, floors = _choices(laws, aim, demand, price, law_inputs)
    warnings = (*floors, *_warnings(target, demand, choices, price))
    answer = None
    if machine is not None:
        answer = by_machine(
            choices[0].scaling_law, choices[0].loss, demand, machine, around=choices[0].params, usd=target.usd, **law_inputs
        )
    return Budget(
        target=target,
        demand=demand,
        law_inputs=law_inputs,
        choices=choices,
        params_over_laws=over_laws([choice.params for choice in choices]),
        tokens_over_laws=over_laws([choice.tokens for choice in choices]),
        over_chinchilla_over_laws=over_laws([choice.over_chinchilla for choice in choices]),
        system=hardware.name,
        mfu=mfu,
        rent=price.rent,
        training_days=training_days,
        machine=answer,
        warnings=warnings,
    )


def default_laws(inputs: Mapping[str, Number]) -> tuple[Law, ...]:
    """Return the laws that are used unless told: those that know what a model is, or those marked so in their files."""
    if not inputs:
        return load_laws()
    names = {"unique": ["muennighoff"], "sparsity": ["abnar"], "granularity": ["krajewski"], "bits": ["kumar"]}
    first = next((names[name] for name in names if name in inputs), ["ludziejewski"])
    if first == ["krajewski"] and "experts" not in inputs:
        raise InputError("granularity goes with experts: krajewski knows 64")
    return usable(load_laws(first), inputs)


def usable(laws: Iterable[Law], inputs: Mapping[str, Number]) -> tuple[Law, ...]:
    """Return the laws; raise InputError for one that tells no loss from tokens, or does not know what is asked."""
    candidates = tuple(laws)
    for law in candidates:
        tokens_for(law, 1e9, 3.0, **inputs)  # says what it lacks
    return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """What a FLOP of training costs."""

    rate: float  # FLOP/s that a chip reaches
    rent: float
    seconds: float  # of training

    @classmethod
    def from_system(cls, system: System, mfu: float, days: float) -> _Price:
        peak = system.chip.peak.get(FORMAT)
        if peak is None:
            raise RangeError(f"{system.name} has no {FORMAT} rate, in which training is counted; take another --system")
        return cls(rate=float(peak) * mfu, rent=float(system.rent.typical), seconds=days * DAY)

    @property
    def usd_per_flop(self) -> float:
        return self.rent / self.rate


def _solve(law: Law, aim: Target, demand: Demand, inputs: Mapping[str, Number]) -> Bill:
    if math.isnan(aim.compute):
        dense = {
            name: value for name, value in inputs.items() if name == "bits"
        }  # the model compared with is dense and not short of data
        return at_equal_loss(law, demand, aim.loss_by(law, **dense), **inputs)
    return within(law, demand, aim.compute, **inputs)


def _ratios(law: Law, bill: Bill, inputs: Mapping[str, Number]) -> dict[str, Number]:
    """Return what is told of a bill, with its range."""
    return {
        "params": bill.params,
        "tokens": bill.tokens,
        "total_flop": bill.total,
        "training_share": bill.training / bill.total,
        "over_chinchilla": overtraining(bill.tokens, bill.params),
        "over_own": np.asarray(bill.tokens) / own_tokens(law, bill.params, **inputs),
    }


def _choices(
    laws: Sequence[Law], aim: Target, demand: Demand, price: _Price, inputs: Mapping[str, Number]
) -> tuple[tuple[Choice, ...], list[str]]:
    """Return what each law chooses, and why others choose nothing; raise Impossible where none does."""
    choices, reasons = [], []
    for law in laws:
        try:
            choices.append(_choice(law, aim, demand, price, inputs))
        except Impossible as problem:
            reasons.append(problem)
    if not choices:
        raise reasons[0]
    return tuple(choices), [f"left out: {problem}" for problem in reasons]


def _choice(law: Law, aim: Target, demand: Demand, price: _Price, inputs: Mapping[str, Number]) -> Choice:
    bill = _solve(law, aim, demand, inputs)
    figures = {name: float(np.asarray(value)) for name, value in _ratios(law, bill, inputs).items()}
    total, at_loss, params = figures["total_flop"], float(np.asarray(bill.loss)), figures["params"]
    even = equality(law, demand, at_loss, **inputs)
    neighbour_costs = [
        float(np.asarray(lifetime_bill(demand, size, tokens_for(law, size, at_loss, **inputs), at_loss).total)) / total
        for size in (params / 2, params * 2)
    ]
    usd = {name: float(np.asarray(getattr(bill, name))) * price.usd_per_flop for name in ("training", "rl", "serving")}
    return Choice(
        law=law.name,
        scaling_law=law,
        grade=law.grade,
        loss=at_loss,
        total_params=float(np.asarray(total_parameters(law, params, inputs))),
        training_flop=float(np.asarray(bill.training)),
        rl_flop=float(np.asarray(bill.rl)),
        serving_flop=float(np.asarray(bill.serving)),
        equality_params=float(np.asarray(even.params)),
        equality_tokens=float(np.asarray(even.tokens)),
        equality_cost=float(np.asarray(even.total)) / total,
        half_cost=neighbour_costs[0],
        double_cost=neighbour_costs[1],
        usd=total * price.usd_per_flop,
        training_usd=usd["training"],
        rl_usd=usd["rl"],
        serving_usd=usd["serving"],
        training_chips=float(np.asarray(bill.training)) / price.rate / price.seconds,
        serving_chips=float(np.asarray(bill.serving)) / (1 - demand.discard or math.nan) / price.rate / demand.lifetime,
        ranges=over_errors(law, lambda sampled_law: _ratios(sampled_law, _solve(sampled_law, aim, demand, inputs), inputs)),
        beyond=_beyond(law, params, figures["tokens"], inputs),
        **figures,
    )


def _beyond(law: Law, params: float, tokens: float, inputs: Mapping[str, Number]) -> dict[str, float]:
    """Return how far a choice lies outside the runs of a law."""
    domain_inputs: dict[str, Number] = {
        "params": params,
        "tokens": tokens,
        "ratio": tokens / params,
        "compute": TRAINING_FLOP * params * tokens,
    }
    return beyond(law, **domain_inputs, **{name: value for name, value in inputs.items() if name != "unique"})


def _warnings(target: Target, demand: Demand, choices: Sequence[Choice], price: _Price) -> tuple[str, ...]:
    words = [target.note] if target.note else []
    if not demand.weight and not demand.rl_share:
        words.append("nothing is served and no RL is done: this is each law's own best split of compute")
    if not math.isnan(target.loss) and len(choices) > 1:
        words.append("a loss means something else to each law: its own corpus and tokens")
    if math.isnan(price.rent):
        words.append("no rent of the system is known, so that nothing is told in USD")
    far = max(choice.params for choice in choices) / min(choice.params for choice in choices)
    if far > FAR:
        words.append(f"laws differ by {in_digits(far, 2)}x in parameters")
    extrapolations = [f"{choice.law} {in_beyond(choice.beyond, choice.scaling_law)}" for choice in choices if choice.beyond]
    if extrapolations:
        words.append("beyond the runs that laws were fitted to: " + "; ".join(extrapolations))
    return tuple(words)
