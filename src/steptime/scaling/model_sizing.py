"""Model size and training tokens of minimum lifetime cost, by scaling law.

The lecture's mode counts FLOP: 6 N D for training and 2 N eta for serving. `sizing_on_system` takes the costs of steptime's
own planners instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from steptime.blackboard.training_compute import overtraining
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, InputError, RangeError
from steptime.hardware.system import System
from steptime.number_checks import Number, positive, share
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.scaling.compute_optimal import over_errors, over_laws, own_tokens
from steptime.scaling.lifetime_compute import (
    Bill,
    Demand,
    Target,
    at_equal_loss,
    equality,
    lifetime_bill,
    read_target,
    total_parameters,
    within,
)
from steptime.scaling.scaling_laws import Law, LawLike, beyond, extrapolation_note, in_beyond, load_laws, tokens_for
from steptime.scaling.sizing_on_system import MachineBudget, Serving, by_machine
from steptime.units import DAY, in_digits, percent, show

# Llama 3 405B on 8,192 H100 in bf16 (arXiv 2407.21783, Table 4).
MFU: Final = 0.43
FORMAT: Final = "bf16"
SYSTEM: Final = "hgx-h100"
TRAINING_DAYS: Final = 60.0
# Factor between laws from which there is a warning.
FAR: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Optimal size by one law, in the lecture's mode.

    Ranges are 90 %, over the errors of the constants.
    """

    law: str = field(metadata=unit("", "scaling law"))
    scaling_law: Law = field(metadata={"left_out": True})
    grade: str = field(metadata=unit("", "grade of the sources of its constants"))
    loss: float = field(metadata=unit("", "loss of the model by this law, in nats per token"))
    params: float = field(metadata=unit("", "active parameters"))
    total_params: float = field(metadata=unit("", "total parameters, as built in the runs of the law"))
    tokens: float = field(metadata=unit("tokens", "training tokens, with repeats"))
    training_flop: float = field(metadata=unit("FLOP", "training, 6 N D"))
    rl_flop: float = field(metadata=unit("FLOP", "RL, in training-equivalent FLOP"))
    serving_flop: float = field(metadata=unit("FLOP", "serving, 2 N D eta, in training-equivalent FLOP"))
    total_flop: float = field(metadata=unit("FLOP", "lifetime cost, in training-equivalent FLOP"))
    training_share: float = field(metadata=unit("", "share of training in the lifetime cost"))
    over_chinchilla: float = field(metadata=unit("", "training tokens over 20 N"))
    over_own: float = field(metadata=unit("", "training tokens over the compute-optimal tokens of this law"))
    equality_params: float = field(metadata=unit("", "parameters at which training costs as much as RL and serving"))
    equality_tokens: float = field(metadata=unit("tokens", "training tokens at which training costs as much as RL and serving"))
    equality_cost: float = field(metadata=unit("", "lifetime cost at this equality over the minimum"))
    half_cost: float = field(
        metadata=unit("", "lifetime cost of half the parameters at the same loss over the minimum; nan if they cannot reach it")
    )
    double_cost: float = field(metadata=unit("", "lifetime cost of twice the parameters at the same loss over the minimum"))
    usd: float = field(metadata=unit("USD", "lifetime cost at the rent of the system"))
    training_usd: float = field(metadata=unit("USD", "cost of training"))
    rl_usd: float = field(metadata=unit("USD", "cost of RL"))
    serving_usd: float = field(metadata=unit("USD", "cost of serving over the lifetime"))
    training_chips: float = field(metadata=unit("", "chips for training in the given days"))
    serving_chips: float = field(metadata=unit("", "chips for serving over the lifetime"))
    ranges: Mapping[str, tuple[float, float]] = field(
        default_factory=dict,
        metadata=unit("", "90 % ranges by figure, from the joint errors of the law", kind="object of pairs"),
    )
    beyond: Mapping[str, float] = field(
        default_factory=dict, metadata=unit("", "factor of extrapolation beyond the runs of the law, by input")
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Budget(Tabular):
    """Optimal size and training tokens: one choice per law, the leading law first."""

    SCHEMA: ClassVar[str] = "steptime.budget/2"

    target: Target = field(metadata=unit("", "target of the sizing"))
    demand: Demand = field(metadata=unit("", "served tokens and RL over the lifetime"))
    law_inputs: Mapping[str, float] = field(
        metadata=unit("", "further inputs of the laws: experts, granularity, sparsity, unique tokens")
    )
    choices: tuple[Choice, ...] = field(metadata=unit("", "optimal size by each law"))
    params_over_laws: tuple[float, float] | None = field(
        metadata=unit("", "smallest and largest parameters over the laws within their tokens per parameter; null with one law")
    )
    tokens_over_laws: tuple[float, float] | None = field(
        metadata=unit(
            "tokens", "smallest and largest training tokens over the same laws; null with one", key="tokens_over_laws"
        )
    )
    over_chinchilla_over_laws: tuple[float, float] | None = field(
        metadata=unit("", "smallest and largest tokens over 20 N over the same laws; null with one")
    )
    system: str = field(metadata=unit("", "system whose rent and rate convert FLOP to USD and chips"))
    mfu: float = field(metadata=unit("", "MFU of training in the lecture's mode, of the bf16 rate"))
    rent: float = field(metadata=unit("USD/s", "rent per chip"))
    training_days: float = field(metadata=unit("", "days of training that give the number of chips"))
    machine: MachineBudget | None = field(metadata=unit("", "result with the costs of steptime's planners, or null"))
    warnings: tuple[str, ...] = field(metadata=unit("", "warnings"))

    @property
    def choice(self) -> Choice:
        """Choice of the leading law."""
        return self.choices[0]

    @property
    def comparable_choices(self) -> tuple[Choice, ...]:
        """Choices of the leading law, and of laws with runs at such tokens per parameter."""
        return comparable(self.choices)

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the choice of the leading law.

        Returns:
            Title, and lines by name.
        """
        best = self.choice
        spread = self.params_over_laws
        over = f" ({show(spread[0])} to {show(spread[1])} over {len(self.comparable_choices)} laws)" if spread else ""
        return f"Budget for {self.target.words}, by {best.law}", {
            "parameters": show(best.params) + over,
            "tokens": f"{show(best.tokens)}, {in_digits(best.over_chinchilla)}x the Chinchilla-optimal 20 per parameter",
            "training": f"{percent(best.training_share)} of {best.total_flop:.3g} FLOP",
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per law.

        Returns:
            Values by column name.
        """
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
    """Return the size and training tokens of minimum lifetime cost for a target.

    Args:
        target: Target, or "MODEL@TOKENS" for the loss of a model; a `Target` may also be a loss, FLOP or USD.
        demand: Served tokens and RL over the lifetime.
        law: Scaling law or several, the leading one first. By default those that have all `inputs`, or all dense ones of
            sufficient grade.
        system: System that converts FLOP to USD and chips, or its name.
        mfu: MFU of training in the lecture's mode.
        training_days: Days of training that give the number of chips.
        machine: How the model is served, for a second result with the costs of steptime's planners.
        **inputs: Further inputs of the law: `experts`, `granularity`, `sparsity`, `unique`, `bits`.

    Returns:
        Optimal size by each law.

    Raises:
        Impossible: If no law has a model for the target.
        InputError: If a law has no such input, or no rent is known for a target in USD.

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

    # A target in USD is a target in FLOP at the rent of the system.
    aim = target
    if not math.isnan(target.usd):
        if math.isnan(price.rent):
            raise InputError(f"{hardware.name}: no rent for a target in USD; give one, such as --rent 2.10")
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
        params_over_laws=over_laws([choice.params for choice in comparable(choices)]),
        tokens_over_laws=over_laws([choice.tokens for choice in comparable(choices)]),
        over_chinchilla_over_laws=over_laws([choice.over_chinchilla for choice in comparable(choices)]),
        system=hardware.name,
        mfu=mfu,
        rent=price.rent,
        training_days=training_days,
        machine=answer,
        warnings=warnings,
    )


def comparable(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices whose range says how far laws disagree.

    Laws are made to extrapolate in size. At other tokens per parameter than those of its runs, a law leaves the range.

    Args:
        choices: Optimal size by each law, the leading law first.

    Returns:
        The choice of the leading law, and those without an extrapolation in tokens per parameter.
    """
    return tuple(choice for choice in choices if choice is choices[0] or "ratio" not in choice.beyond)


def default_laws(inputs: Mapping[str, Number]) -> tuple[Law, ...]:
    """Return the default laws for the inputs of a model.

    These are the laws that have the inputs, or the laws marked as default in their files.

    Args:
        inputs: Further inputs of the law by name.

    Returns:
        Scaling laws.

    Raises:
        InputError: If granularity is given without experts.
    """
    if not inputs:
        return load_laws()
    names = {"unique": ["muennighoff"], "sparsity": ["abnar"], "granularity": ["krajewski"], "bits": ["kumar"]}
    first = next((names[name] for name in names if name in inputs), ["ludziejewski"])
    if first == ["krajewski"] and "experts" not in inputs:
        raise InputError("granularity: it needs experts; give experts=64, the number of krajewski")
    return usable(load_laws(first), inputs)


def usable(laws: Iterable[Law], inputs: Mapping[str, Number]) -> tuple[Law, ...]:
    """Check that each law has a loss and all inputs.

    Args:
        laws: Scaling laws.
        inputs: Further inputs of the law by name.

    Returns:
        The laws.

    Raises:
        InputError: If a law has no loss from tokens, or lacks an input.
    """
    candidates = tuple(laws)
    for law in candidates:
        # This call raises the error with the reason.
        tokens_for(law, 1e9, 3.0, **inputs)
    return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """Cost of a training FLOP."""

    # FLOP/s that a chip reaches.
    rate: float
    rent: float
    # Seconds of training.
    seconds: float

    @classmethod
    def from_system(cls, system: System, mfu: float, days: float) -> _Price:
        peak = system.chip.peak.get(FORMAT)
        if peak is None:
            raise RangeError(f"{system.name} has no {FORMAT} rate, which training needs; take another --system")
        return cls(rate=float(peak) * mfu, rent=float(system.rent.typical), seconds=days * DAY)

    @property
    def usd_per_flop(self) -> float:
        return self.rent / self.rate


def _solve(law: Law, aim: Target, demand: Demand, inputs: Mapping[str, Number]) -> Bill:
    if math.isnan(aim.compute):
        # The reference model is dense and has enough unique tokens.
        dense = {name: value for name, value in inputs.items() if name == "bits"}
        return at_equal_loss(law, demand, aim.loss_by(law, **dense), **inputs)
    return within(law, demand, aim.compute, **inputs)


def _ratios(law: Law, bill: Bill, inputs: Mapping[str, Number]) -> dict[str, Number]:
    """Return the figures of a lifetime cost that have a range."""
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
    """Return the choice of each law, and the reasons of laws without a choice."""
    choices, reasons = [], []
    for law in laws:
        try:
            choices.append(_choice(law, aim, demand, price, inputs))
        except Impossible as problem:
            reasons.append(problem)
    if not choices:
        raise reasons[0]
    return tuple(choices), [f"law left out: {problem}" for problem in reasons]


def _choice(law: Law, aim: Target, demand: Demand, price: _Price, inputs: Mapping[str, Number]) -> Choice:
    bill = _solve(law, aim, demand, inputs)
    figures = {name: float(np.asarray(value)) for name, value in _ratios(law, bill, inputs).items()}
    total, at_loss, params = figures["total_flop"], float(np.asarray(bill.loss)), figures["params"]

    # Costs at equality and at half and twice the size show how flat the minimum is.
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
        beyond=beyond(law, params=params, tokens=figures["tokens"], **inputs),
        **figures,
    )


def _warnings(target: Target, demand: Demand, choices: Sequence[Choice], price: _Price) -> tuple[str, ...]:
    words = [target.note] if target.note else []
    if not demand.weight and not demand.rl_share:
        words.append("no served tokens and no RL: the result is the compute-optimal split of each law")
    if not math.isnan(target.loss) and len(choices) > 1:
        words.append("losses of different laws are not comparable: each has its own corpus and tokenizer")
    if math.isnan(price.rent):
        words.append("no rent of the system is known: no results in USD")
    sizes = [choice.params for choice in comparable(choices)]
    far = max(sizes) / min(sizes)
    if far > FAR:
        words.append(f"laws differ by {in_digits(far, 2)}x in parameters")
    words += _extrapolation_notes(choices)
    return tuple(words)


def _extrapolation_notes(choices: Sequence[Choice]) -> list[str]:
    """Return how far the laws of the range extrapolate, and which laws are left out of it."""
    compared = comparable(choices)
    note = extrapolation_note([(choice.scaling_law, choice.beyond) for choice in compared])
    missing = [
        f"the range over laws leaves out {choice.law}, "
        + in_beyond({"ratio": choice.beyond["ratio"]}, choice.scaling_law)
        for choice in choices if choice not in compared
    ]  # fmt: skip
    return [note, *missing] if note else missing
