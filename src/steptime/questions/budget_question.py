"""The question `budget`: the parameters and tokens of least lifetime cost for a quality and a traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptime.catalog.hardware_loading import load_system, resolve_system
from steptime.hardware.rental_prices import with_rent
from steptime.hardware.system import System
from steptime.planning.workload import Workload, limits
from steptime.questions.declaration import Reader, bind, count, number, question_of_result, read_answers, rent, text, texts
from steptime.scaling.lifetime_compute import Demand
from steptime.scaling.model_sizing import Budget, budget
from steptime.scaling.quality_target import read_served, read_target
from steptime.scaling.size_cost import Serving
from steptime.units import count as read_count

AIM, TRAFFIC, RL, LAWS, MIX, PRICE, MACHINE = (
    "Target: one of these", "Traffic", "Reinforcement learning", "Scaling laws", "The model besides its size", "Price of FLOP",
    "Serving costs by plans",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BudgetInputs:
    """The size of a model for a quality and a traffic."""

    match_quality: str | None = text(
        None, "the loss of a model trained on tokens, such as 100B@200T or llama-3.1-8b@15T", group=AIM, metavar="MODEL@TOKENS"
    )
    loss: Any = number(None, "a loss in nats per token, as each law defines it", group=AIM)
    compute: Any = number(None, "minimum loss for a lifetime budget in training FLOP, such as 1e26", group=AIM)
    usd: Any = text(None, "minimum loss for a lifetime budget in USD, such as 100M", group=AIM, metavar="USD")
    tokens_served: str = text(
        "0", "tokens served, input and output: a rate such as 50M/s, or a total such as 200T", group=TRAFFIC, metavar="N[/s]"
    )
    lifetime: str | None = text(None, "time for which the model is served, such as 60d", group=TRAFFIC, metavar="TIME")
    eta: Any = number(3.0, "cost of a FLOP of serving over one of training", group=TRAFFIC)
    discard: Any = number(0.0, "probability that the model is never served (0 to 1)", group=TRAFFIC)
    rl_tokens: Any = count(0, "tokens rolled out in RL, such as 10T", unit="tokens", minimum=0, group=RL)
    rl_share: Any = number(0.0, "share of the lifetime budget that RL takes, in place of tokens", group=RL)
    rl_flop: Any = number(3.0, "FLOP per parameter and token of RL: 2 to generate, up to 6 to train on all", group=RL)
    law: Any = texts(
        "a law, or several separated by commas: the first leads, the others give a range; repeatable", group=LAWS,
        metavar="NAME", default_words="those that `steptime laws` marks",
    )  # fmt: skip
    experts: Any = count(None, "experts of a mixture, for laws that have them", group=MIX)
    granularity: Any = count(None, "parts that each expert is cut into, and factor of the active experts", group=MIX)
    sparsity: Any = number(None, "share of all parameters that a token does not use", group=MIX)
    unique_tokens: Any = count(None, "distinct training tokens; more are repeats", unit="tokens", group=MIX)
    system: Any = text("hgx-h100", "system that trains", group=PRICE, metavar="SYSTEM")
    mfu: Any = number(0.43, "share of its bf16 rate that training reaches", group=PRICE)
    rent: Any = rent(
        None, "rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10", unit="USD/s",
        group=PRICE, default_words="the newest known of contract and on demand", metavar="KIND",
    )  # fmt: skip
    training_days: Any = number(60.0, "days of training, for the number of chips", group=PRICE)
    machine: Any = text(None, "system that serves: compute costs from plans too", group=MACHINE, metavar="SYSTEM")
    input: Any = count(2048, "prompt tokens of a request", unit="tokens", group=MACHINE)
    output: Any = count(512, "output tokens of a request", unit="tokens", group=MACHINE)
    cached: Any = number(0.0, "share of the prompt that a prefix cache holds (0 to 1)", group=MACHINE)
    speed: Any = number(None, "minimum output speed for each user [tok/s]", unit="tok/s", group=MACHINE)
    ttft: Any = number(None, "maximum mean time to first token [s]", unit="s", group=MACHINE)
    engine: Any = text(None, "serving engine, or ideal", group=MACHINE, metavar="NAME")
    training_chips: Any = count(
        None, "chips of --system that train", group=MACHINE, default_words="those that end in --training-days"
    )
    training_batch: Any = count(2048, "sequences of 8,192 tokens in a training step", group=MACHINE)
    machine_rent: str | None = text(
        None, "rent of the serving system, as --rent", group=MACHINE, metavar="USD",
        default_words="its own, or --rent if it is --system too",
    )  # fmt: skip
    weights: str | None = text(None, "number format of the served weights", group=MACHINE, metavar="FORMAT")
    kv: str | None = text(None, "number format of the KV cache", group=MACHINE, metavar="FORMAT")

    def demand(self) -> Demand:
        """Return what the model will do over its lifetime."""
        served, lifetime = read_served(self.tokens_served, self.lifetime)
        return Demand(
            served=served, lifetime=lifetime, eta=self.eta, discard=self.discard, rl_tokens=float(self.rl_tokens),
            rl_share=self.rl_share, rl_flop=self.rl_flop,
        )  # fmt: skip

    def laws(self) -> list[str] | None:
        """Return the laws that are named."""
        return [part.strip() for words in self.law for part in words.split(",") if part.strip()] or None

    def mixture(self) -> dict[str, float]:
        """Return what the model is besides its size."""
        values = {
            "experts": self.experts, "granularity": self.granularity, "sparsity": self.sparsity, "unique": self.unique_tokens,
        }  # fmt: skip
        return {name: float(value) for name, value in values.items() if value is not None}

    def serving(self) -> Serving | None:
        """Return how the model is served; None unless a machine is named."""
        if self.machine is None:
            return None
        same = self.machine == self.system
        return Serving(
            system=_rented(self.machine, self.machine_rent or (self.rent if same else None)),
            workload=Workload(input_tokens=self.input, output_tokens=self.output, cached_share=self.cached),
            slo=limits(speed=self.speed, ttft=self.ttft),
            weights=self.weights or "",
            kv=self.kv or "",
            engine=self.engine,
            training_system=_rented(self.system, self.rent),
            training_chips=self.training_chips,
            training_days=self.training_days,
            training_batch=self.training_batch,
        )


def _rented(name: Any, kind: Any) -> System:
    system = load_system(name) if isinstance(name, str) else resolve_system(name)
    return system if kind is None else with_rent(system, kind)


def solve(values: Mapping[str, Any]) -> Budget:
    """Return the size of least lifetime cost.

    Args:
        values: values of `BudgetInputs` by name.
    """
    inputs = bind(BudgetInputs, values, "budget")
    usd = None
    if inputs.usd is not None:
        words = str(inputs.usd).lstrip("$").removesuffix("USD").strip()
        usd = float(read_count(words, "usd"))
    target = read_target(inputs.match_quality, inputs.loss, inputs.compute, usd)
    return budget(
        target, inputs.demand(), law=inputs.laws(), system=_rented(inputs.system, inputs.rent), mfu=inputs.mfu,
        training_days=inputs.training_days, machine=inputs.serving(), **inputs.mixture(),
    )  # fmt: skip


def _of_choice(name: str) -> Any:
    return lambda result: getattr(result.choice, name)


READS: Final[Mapping[str, Reader]] = {
    "params": Reader(meaning="parameters that a token uses", value=_of_choice("params")),
    "tokens": Reader(meaning="training tokens", unit="tokens", value=_of_choice("tokens")),
    "loss": Reader(meaning="loss in nats per token", value=_of_choice("loss")),
    "over_chinchilla": Reader(meaning="training tokens over 20 per parameter", value=_of_choice("over_chinchilla")),
    "total_flop": Reader(meaning="lifetime compute in training FLOP", unit="FLOP", value=_of_choice("total_flop")),
    "training_share": Reader(meaning="share of training in it", value=_of_choice("training_share")),
    "usd": Reader(meaning="lifetime cost", unit="USD", value=_of_choice("usd")),
    "law": Reader(meaning="the leading law", value=_of_choice("law"), text=True),
}
BUDGET = question_of_result(
    "budget",
    "parameters and tokens of least lifetime cost",
    form=BudgetInputs,
    solve=solve,
    reads=READS,
    shows=("params", "tokens", "over_chinchilla", "total_flop", "usd"),
    seconds=0.2,
)


def summary(result: Budget) -> dict[str, Any]:
    """Return the answers of the question from its result."""
    return read_answers(READS, result)
