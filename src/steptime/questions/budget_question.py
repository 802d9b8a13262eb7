"""The question `budget`: the model size and training tokens with the lowest lifetime cost for a quality and a traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptime.catalog.hardware_loading import load_system, resolve_system
from steptime.hardware.rental_prices import with_rent
from steptime.hardware.system import System
from steptime.planning.workload import Workload, limits
from steptime.questions.declaration import Reader, bind, count, number, question_of_result, read_answers, rent, text, texts
from steptime.scaling.lifetime_compute import Demand, read_served, read_target
from steptime.scaling.model_sizing import Budget, budget
from steptime.scaling.sizing_on_system import Serving
from steptime.units import count as read_count

AIM, TRAFFIC, RL, LAWS, MIX, PRICE, MACHINE = (
    "Target (one of these)", "Traffic", "Reinforcement learning", "Scaling laws", "Architecture", "Price of compute",
    "Serving costs from plans",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BudgetInputs:
    """Inputs of `budget`: target, traffic, reinforcement learning, laws and prices."""

    match_quality: str | None = text(
        None,
        "target: the loss of a reference model, such as 100B@200T (100 B parameters on 200 T tokens) or llama-3.1-8b@15T",
        group=AIM,
        metavar="MODEL@TOKENS",
    )
    loss: Any = number(None, "target: a loss in nats per token, as each scaling law defines it", group=AIM)
    compute: Any = number(
        None,
        "target: the lowest loss for a lifetime budget of FLOP, such as 1e26; serving and RL count in training FLOP",
        group=AIM,
    )
    usd: Any = text(None, "target: the lowest loss for a lifetime budget in USD, such as 100M", group=AIM, metavar="USD")
    tokens_served: str = text(
        "0", "input and output tokens served: a rate such as 50M/s, or a total such as 200T", group=TRAFFIC, metavar="N[/s]"
    )
    lifetime: str | None = text(None, "time during which the model is served, such as 60d", group=TRAFFIC, metavar="TIME")
    eta: Any = number(
        3.0, "cost of one serving FLOP / cost of one training FLOP: serving uses the FLOP/s of a chip less well", group=TRAFFIC
    )
    discard: Any = number(
        0.0, "probability that the model is never served (0 to 1); it lowers the expected cost of serving", group=TRAFFIC
    )
    rl_tokens: Any = count(0, "tokens generated in the rollouts of RL, such as 10T", unit="tokens", minimum=0, group=RL)
    rl_share: Any = number(0.0, "share of the lifetime budget for RL (0 to 1), in place of a number of RL tokens", group=RL)
    rl_flop: Any = number(
        3.0, "FLOP per parameter and RL token: 2 for generation, up to 6 with training on every token", group=RL
    )
    law: Any = texts(
        "scaling laws, separated by commas: the first gives the answer, the others show how far it varies; repeatable",
        group=LAWS, metavar="NAME",
        default_words="epoch, hoffmann, muennighoff, sardana; with options of the architecture, a law that has them",
    )  # fmt: skip
    experts: Any = count(None, "number of experts of an MoE model, for scaling laws of MoE models", group=MIX)
    granularity: Any = count(
        None,
        "granularity: the number of smaller experts that replace one expert; active experts grow by the same factor",
        group=MIX,
    )
    sparsity: Any = number(
        None, "share of all parameters that a token does not use: 1 - active / total parameters (0 to 1)", group=MIX
    )
    unique_tokens: Any = count(None, "distinct training tokens; a run on more tokens repeats them", unit="tokens", group=MIX)
    system: Any = text("hgx-h100", "training system: catalogue name, or path to a TOML file", group=PRICE, metavar="SYSTEM")
    mfu: Any = number(0.43, "MFU of training: the share of the chips' bf16 rate (0 to 1)", group=PRICE)
    rent: Any = rent(
        None, "rent: owned (cost of ownership), contract, ondemand, or USD per chip-hour such as 2.10", unit="USD/s",
        group=PRICE, default_words="the newest known of contract and on demand", metavar="KIND",
    )  # fmt: skip
    training_days: Any = number(60.0, "duration of training in days, from which the number of chips follows", group=PRICE)
    machine: Any = text(
        None,
        "serving system: the costs of serving and training also come from plans, not only from FLOP",
        group=MACHINE,
        metavar="SYSTEM",
    )
    input: Any = count(2048, "prompt tokens per request", unit="tokens", group=MACHINE)
    output: Any = count(512, "output tokens per request", unit="tokens", group=MACHINE)
    cached: Any = number(0.0, "share of the prompt that is in the prefix cache (0 to 1)", group=MACHINE)
    speed: Any = number(None, "minimum output speed for each user in tok/s", unit="tok/s", group=MACHINE)
    ttft: Any = number(None, "maximum mean time to first token in seconds", unit="s", group=MACHINE)
    engine: Any = text(None, "serving engine: a name, or ideal", group=MACHINE, metavar="NAME")
    training_chips: Any = count(
        None, "number of training chips", group=MACHINE, default_words="as many as finish in --training-days"
    )
    training_batch: Any = count(2048, "training batch: sequences of 8,192 tokens per step", group=MACHINE)
    machine_rent: str | None = text(
        None, "rent of the serving system: owned, contract, ondemand, or USD per chip-hour such as 2.10", group=MACHINE,
        metavar="KIND",
        default_words="the catalogue's; --rent if --machine and --system are the same",
    )  # fmt: skip
    weights: str | None = text(None, "number format of the served weights", group=MACHINE, metavar="FORMAT")
    kv: str | None = text(None, "number format of the KV cache", group=MACHINE, metavar="FORMAT")

    def demand(self) -> Demand:
        """Return the tokens that the model will serve and generate over its lifetime.

        Returns:
            Served tokens, lifetime, RL tokens and the cost factors of their FLOP.
        """
        served, lifetime = read_served(self.tokens_served, self.lifetime)
        return Demand(
            served=served, lifetime=lifetime, eta=self.eta, discard=self.discard, rl_tokens=float(self.rl_tokens),
            rl_share=self.rl_share, rl_flop=self.rl_flop,
        )  # fmt: skip

    def laws(self) -> list[str] | None:
        """Return the names of the scaling laws that the user gave.

        Returns:
            One name per law, in order; None if there is no name.
        """
        return [part.strip() for words in self.law for part in words.split(",") if part.strip()] or None

    def mixture(self) -> dict[str, float]:
        """Return the inputs that describe the model in addition to its size.

        Returns:
            Values by the argument names of `budget`, without inputs that are not set.
        """
        values = {
            "experts": self.experts, "granularity": self.granularity, "sparsity": self.sparsity, "unique": self.unique_tokens,
        }  # fmt: skip
        return {name: float(value) for name, value in values.items() if value is not None}

    def serving(self) -> Serving | None:
        """Return how the model is served.

        Returns:
            System, workload, limits and formats; None if no serving system is given.
        """
        if self.machine is None:
            return None

        # One rent serves both systems only if they are the same: a rent in USD belongs to one chip.
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
    """Return the model size and the training tokens with the lowest lifetime cost.

    Args:
        values: Values of `BudgetInputs` by name.

    Returns:
        The chosen size, its costs, and the answers of the other laws.
    """
    inputs = bind(BudgetInputs, values, "budget")
    # Budgets are counts with suffixes ("100M"), so that "$" and "USD" go before the number is read.
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
    "over_chinchilla": Reader(
        meaning="training tokens, as a multiple of 20 tokens per parameter", value=_of_choice("over_chinchilla")
    ),
    "total_flop": Reader(meaning="lifetime compute in training FLOP", unit="FLOP", value=_of_choice("total_flop")),
    "training_share": Reader(meaning="share of training in the lifetime compute", value=_of_choice("training_share")),
    "usd": Reader(meaning="lifetime cost", unit="USD", value=_of_choice("usd")),
    "law": Reader(meaning="scaling law of these answers", value=_of_choice("law"), text=True),
}
BUDGET = question_of_result(
    "budget",
    "model size and training tokens with the lowest lifetime cost",
    form=BudgetInputs,
    solve=solve,
    reads=READS,
    shows=("params", "tokens", "over_chinchilla", "total_flop", "usd"),
    seconds=0.2,
)


def summary(result: Budget) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        result: Result of `solve`.

    Returns:
        Answers by name, in base units.
    """
    return read_answers(READS, result)
