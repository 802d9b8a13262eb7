"""The questions `budget`, `laws`, `rl` and `prices`: what models cost to train and to serve over their life.

`budget`: the model size and training tokens with the lowest lifetime cost for a quality and a traffic. `laws`: the loss of a
dense model by one scaling law. `rl`: the time of one step of reinforcement learning. `prices`: the prices of an open-weight
model at its sellers, and the cost of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from steptime.catalog.hardware_loading import resolve_system
from steptime.errors import RangeError
from steptime.hardware.rental_prices import with_rent
from steptime.hardware.system import System
from steptime.models.model_loading import resolve_model
from steptime.number_checks import MOST_CHIPS
from steptime.physics.layout import Layout
from steptime.planning.evidence import EVIDENCE
from steptime.pricing.kv_storage_cost import read_holds
from steptime.pricing.market import Market, survey_prices
from steptime.pricing.serving_costs import SOLD_EVIDENCE
from steptime.questions.declaration import (
    Answer,
    bind,
    count,
    inputs_from,
    number,
    question_of_result,
    rent,
    switch,
    text,
    texts,
)
from steptime.questions.plan_question import EVIDENCE_HELP, read_modes
from steptime.questions.subject import (
    SUBJECT_GROUP,
    USUAL_INPUT,
    USUAL_OUTPUT,
    ModelOnSystem,
    ParallelSizes,
    parallel_size,
    read_machine,
)
from steptime.scaling.compute_optimal import Losses, predict_losses
from steptime.scaling.lifetime_compute import MOST_FLOP, Demand, read_served, read_target
from steptime.scaling.model_sizing import Budget, budget
from steptime.scaling.rl_step import RlStep, rl_step
from steptime.scaling.scaling_laws import LawLike, load_law
from steptime.scaling.sizing_on_system import Serving
from steptime.training.training_evidence import MEASURED
from steptime.units import dollars
from steptime.workload.workload import Workload, limits

AIM_GROUP, TRAFFIC_GROUP, RL_GROUP, LAWS_GROUP, MIX_GROUP, PRICE_GROUP, MACHINE_GROUP = (
    "Target (one of these)", "Traffic", "Reinforcement learning", "Scaling laws", "Architecture", "Price of compute",
    "Serving costs from plans",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BudgetInputs:
    """Inputs of `budget`: target, traffic, reinforcement learning, laws and prices."""

    match_quality: str | None = text(
        None,
        "target: the loss of a reference model, such as 100B@200T (100 B parameters on 200 T tokens) or llama-3.1-8b@15T",
        group=AIM_GROUP,
        metavar="MODEL@TOKENS",
    )
    loss: Any = number(None, "target: a loss in nats per token, as each scaling law defines it", group=AIM_GROUP)
    compute: Any = number(
        None,
        "target: the lowest loss for a lifetime budget of FLOP, such as 1e26; serving and RL count in training FLOP",
        maximum=MOST_FLOP,
        group=AIM_GROUP,
    )
    usd: Any = text(
        None, "target: the lowest loss for a lifetime budget in USD, such as 100M", group=AIM_GROUP, metavar="USD", bare=True
    )
    tokens_served: str = text(
        "0",
        "input and output tokens served: a rate such as 50M/s or 2G/day, which needs a lifetime, or the total of the whole "
        "lifetime, such as 200T",
        group=TRAFFIC_GROUP,
        metavar="N[/s|/day]",
    )
    lifetime: str | None = text(
        None, "time during which the model is served, such as 60d or 2y", group=TRAFFIC_GROUP, metavar="TIME"
    )  # fmt: skip
    eta: Any = number(
        3.0,
        "cost of one serving FLOP / cost of one training FLOP: serving uses the FLOP/s of a chip less well",
        group=TRAFFIC_GROUP,
    )
    discard: Any = number(
        0.0, "probability that the model is never served (0 to 1); it lowers the expected cost of serving", group=TRAFFIC_GROUP
    )
    rl_tokens: Any = count(0, "tokens generated in the rollouts of RL, such as 10T", unit="tokens", minimum=0, group=RL_GROUP)
    rl_share: Any = number(
        0.0, "share of the lifetime budget for RL (0 to 1), in place of a number of RL tokens", group=RL_GROUP
    )
    rl_flop: Any = number(
        3.0, "FLOP per parameter and RL token: 2 for generation, up to 6 with training on every token", group=RL_GROUP
    )
    law: Any = texts(
        "scaling laws, separated by commas: the first gives the answer, the others show how far it varies; repeatable",
        group=LAWS_GROUP, metavar="NAME",
        default_words="epoch, hoffmann, muennighoff, sardana; with options of the architecture, a law that has them",
    )  # fmt: skip
    experts: Any = count(None, "number of experts of an MoE model, for scaling laws of MoE models", group=MIX_GROUP)
    granularity: Any = count(
        None,
        "granularity: the number of smaller experts that replace one expert; active experts grow by the same factor",
        group=MIX_GROUP,
    )
    sparsity: Any = number(
        None, "share of all parameters that a token does not use: 1 - active / total parameters (0 to 1)", group=MIX_GROUP
    )
    unique_tokens: Any = count(
        None, "distinct training tokens; a run on more tokens repeats them", unit="tokens", group=MIX_GROUP
    )
    system: Any = text(
        "hgx-h100", "training system: catalogue name, or path to a TOML file", group=PRICE_GROUP, metavar="SYSTEM"
    )
    mfu: Any = number(0.43, "MFU of training: the share of the chips' bf16 rate (0 to 1)", group=PRICE_GROUP)
    rent: Any = rent(group=PRICE_GROUP)
    training_days: Any = number(60.0, "duration of training in days, from which the number of chips follows", group=PRICE_GROUP)
    serving_system: Any = text(
        None,
        "serving system: the costs of serving and training also come from plans, not only from FLOP",
        group=MACHINE_GROUP,
        metavar="SYSTEM",
    )
    input: Any = count(USUAL_INPUT, "prompt tokens per request", unit="tokens", group=MACHINE_GROUP)
    output: Any = count(USUAL_OUTPUT, "output tokens per request", unit="tokens", group=MACHINE_GROUP)
    cached: Any = number(0.0, "share of the prompt that is in the prefix cache (0 to 1)", group=MACHINE_GROUP)
    speed: Any = number(None, "minimum output speed in tok/s, for 90 % of the requests", unit="tok/s", group=MACHINE_GROUP)
    ttft: Any = number(None, "maximum time to first token in seconds, for 90 % of the requests", unit="s", group=MACHINE_GROUP)
    engine: Any = text(None, "serving engine: a name, or ideal", group=MACHINE_GROUP, metavar="NAME")
    training_chips: Any = count(
        None, "number of training chips", group=MACHINE_GROUP, default_words="as many as finish in --training-days"
    )
    training_batch: Any = count(2048, "training batch: sequences of 8,192 tokens per step", group=MACHINE_GROUP)
    serving_rent: str | None = text(
        None, "rent of the serving system: owned, contract, ondemand, or USD per chip-hour such as 2.10", group=MACHINE_GROUP,
        metavar="KIND",
        default_words="the catalogue's; --rent if --serving-system and --system are the same",
    )  # fmt: skip
    weights: str | None = text(None, "number format of the served weights", group=MACHINE_GROUP, metavar="FORMAT")
    kv: str | None = text(None, "number format of the KV cache", group=MACHINE_GROUP, metavar="FORMAT")

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

    def laws(self) -> list[LawLike] | None:
        """Return the scaling laws that the user gave.

        Returns:
            One name or law each, in order; None if the user gave no law.
        """
        split = [words.split(",") if isinstance(words, str) else [words] for words in self.law]
        return [part.strip() if isinstance(part, str) else part for parts in split for part in parts if part] or None

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
        if self.serving_system is None:
            return None

        # One rent serves both systems only if they are the same: a rent in USD belongs to one chip.
        same = self.serving_system == self.system
        return Serving(
            system=_rented(self.serving_system, self.serving_rent or (self.rent if same else None)),
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
    system = resolve_system(name)
    return system if kind is None else with_rent(system, kind)


def solve_budget(values: Mapping[str, Any]) -> Budget:
    """Return the model size and the training tokens with the lowest lifetime cost.

    Args:
        values: Values of `BudgetInputs` by name.

    Returns:
        The chosen size, its costs, and the answers of the other laws.
    """
    inputs = bind(BudgetInputs, values, "budget")
    usd = None if inputs.usd is None else dollars(inputs.usd, "usd")
    target = read_target(inputs.match_quality, inputs.loss, inputs.compute, usd)
    return budget(
        target, inputs.demand(), law=inputs.laws(), system=_rented(inputs.system, inputs.rent), mfu=inputs.mfu,
        training_days=inputs.training_days, machine=inputs.serving(), **inputs.mixture(),
    )  # fmt: skip


BUDGET = question_of_result(
    "budget",
    "model size and training tokens with the lowest lifetime cost",
    inputs=inputs_from(BudgetInputs),
    solve=solve_budget,
    answers={
        "params": Answer(meaning="parameters that a token uses", source="choice.params"),
        "tokens": Answer(meaning="training tokens", unit="tokens", source="choice.tokens"),
        "loss": Answer(meaning="loss in nats per token", source="choice.loss"),
        "over_chinchilla": Answer(
            meaning="training tokens, as a multiple of 20 tokens per parameter", source="choice.over_chinchilla"
        ),
        "total_flop": Answer(meaning="lifetime compute in training FLOP", unit="FLOP", source="choice.total_flop"),
        "training_share": Answer(meaning="share of training in the lifetime compute", source="choice.training_share"),
        "usd": Answer(meaning="lifetime cost", unit="USD", source="choice.usd"),
        "law": Answer(meaning="scaling law of these answers", source="choice.law", text=True),
    },
    shows=("params", "tokens", "over_chinchilla", "total_flop", "usd"),
    seconds=0.2,
)

LOSS_GROUP = "A loss"


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Inputs of `laws`: a scaling law, and a dense model with its training tokens."""

    name: str = text("epoch", "scaling law: catalogue name, or path to a TOML file")
    params: Any = count(MISSING, "parameters of the model, such as 70B", group=LOSS_GROUP)
    tokens: Any = count(MISSING, "training tokens, such as 15T", unit="tokens", group=LOSS_GROUP)
    catalog: str | None = text(None, "folder with a subfolder laws/, searched before the packaged laws", metavar="FOLDER")


def solve_laws(values: Mapping[str, Any]) -> Losses:
    """Return the loss of a dense model by one scaling law.

    Args:
        values: Values of `LossInputs` by name.

    Returns:
        The loss, and the compute-optimal size for the same compute.
    """
    inputs = bind(LossInputs, values, "laws")
    return predict_losses([load_law(inputs.name, inputs.catalog)], inputs.params, inputs.tokens)


LOSS = question_of_result(
    "laws",
    "the loss of a dense model by one scaling law",
    inputs=inputs_from(LossInputs),
    solve=solve_laws,
    answers={
        "loss": Answer(meaning="loss in nats per token", source="losses.0.loss"),
        "over_chinchilla": Answer(
            meaning="training tokens, as a multiple of 20 tokens per parameter", source="losses.0.over_chinchilla"
        ),
        "compute_optimal_params": Answer(
            meaning="compute-optimal parameters for the same compute", source="losses.0.best_params"
        ),
        "compute_optimal_tokens": Answer(
            meaning="compute-optimal training tokens for the same compute", unit="tokens", source="losses.0.best_tokens"
        ),
        "compute_optimal_loss": Answer(
            meaning="loss of the compute-optimal model in nats per token", source="losses.0.best_loss"
        ),
    },
    seconds=0.01,
)

STEP_GROUP, PHASE_GROUP = "The step", "Phases"


@dataclass(frozen=True, kw_only=True)
class RlInputs(ParallelSizes, ModelOnSystem):
    """Inputs of `rl`: rollout, log-probabilities, training and transfer of weights."""

    tp: Any = parallel_size("tensor-parallel size", default_words="1; without any parallel size, that of the shortest step")
    chips: Any = count(64, "number of chips", maximum=MOST_CHIPS, group=STEP_GROUP)
    rollouts: Any = count(2048, "rollouts per step", group=STEP_GROUP)
    prompt: Any = count(256, "prompt tokens per rollout", unit="tokens", group=STEP_GROUP)
    output: Any = count(2048, "mean output tokens per rollout", unit="tokens", group=STEP_GROUP)
    longest: Any = count(16384, "maximum output tokens per rollout", unit="tokens", group=STEP_GROUP)
    spread: Any = number(0.8, "spread of output lengths: standard deviation over the mean (0: equal lengths)", group=STEP_GROUP)
    rollout_share: Any = number(
        None, "share of the chips that generate, while the others train one step behind; 1: all chips do both in turn "
        "(on policy)", group=PHASE_GROUP, default_words="1, or with --off-policy that of the shortest step",
    )  # fmt: skip
    off_policy: bool = switch(
        "train one step behind the rollout on other chips: the split and both layouts with the shortest step",
        group=PHASE_GROUP,
    )
    passes: Any = number(2.0, "number of forward passes for log-probabilities", group=PHASE_GROUP)
    updates: Any = count(1, "number of training steps on the rollouts", group=PHASE_GROUP)
    group: Any = count(1, "rollouts per prompt, which share its prefill and KV cache", group=STEP_GROUP)
    tool_seconds: Any = number(
        0.0, "time in seconds in which a rollout waits for tools and sandboxes", unit="s", minimum=0.0, maximum=1e6,
        group=STEP_GROUP,
    )  # fmt: skip
    steps_spanned: Any = count(
        1, "steps that a rollout may span (partial rollouts, a queue); 1: each step waits for its longest rollout",
        maximum=64, group=PHASE_GROUP,
    )  # fmt: skip
    mfu: Any = number(
        None, "MFU of training and log-probabilities: the share of the chips' bf16 rate (0 to 1)", group=PHASE_GROUP,
        default_words="from steptime's training step",
    )  # fmt: skip
    evidence: str = text(
        MEASURED, "kinds of rollout layouts that a search may take: measured (in published steps) or any", group=PHASE_GROUP
    )
    engine: Any = text(
        None, "serving engine of the rollout: a name, or ideal", group=SUBJECT_GROUP, default_words="the system's"
    )
    rent: Any = rent(group=SUBJECT_GROUP)


def solve_rl(values: Mapping[str, Any]) -> RlStep:
    """Return the time of one step of reinforcement learning.

    Args:
        values: Values of `RlInputs` by name, and figures of the machine by path.

    Returns:
        Times of the phases, MFU and cost.
    """
    inputs = bind(RlInputs, values, "rl")
    # Sizes that are not given take the defaults of `Layout`, where any is given.
    sizes = inputs.given_sizes()
    rollout_share = inputs.rollout_share if inputs.rollout_share is not None or inputs.off_policy else 1.0
    if inputs.off_policy and rollout_share == 1:
        raise RangeError("rollout_share: 1 is on policy; leave it out, or leave off_policy out")
    return rl_step(
        resolve_model(inputs.model), read_machine(values), chips=inputs.chips, rollouts=inputs.rollouts, prompt=inputs.prompt,
        output=inputs.output, longest=inputs.longest,
        layout=Layout(**sizes, microbatches=sizes.get("pp", 1)) if sizes else None,
        spread=inputs.spread, rollout_share=rollout_share, passes=inputs.passes, mfu=inputs.mfu, updates=inputs.updates,
        group=inputs.group, tool_seconds=inputs.tool_seconds, steps_spanned=inputs.steps_spanned, engine=inputs.engine,
        evidence=inputs.evidence,
    )  # fmt: skip


RL = question_of_result(
    "rl",
    "the time of one step of reinforcement learning",
    inputs=inputs_from(RlInputs),
    solve=solve_rl,
    answers={
        "step_time": Answer(meaning="time of a step", unit="s", source="total"),
        "step_time_low": Answer(meaning="lower end of its 90 % range", unit="s", source="low"),
        "step_time_high": Answer(meaning="upper end of its 90 % range", unit="s", source="high"),
        "overhead_time": Answer(meaning="time of published steps beyond the computed phases", unit="s", source="overhead"),
        "rollout_time": Answer(meaning="time of the rollout", unit="s", source="rollout"),
        "rollout_tail_time": Answer(
            meaning="time of the rollout after 90 % of the rollouts have ended", unit="s", source="tail"
        ),
        "log_probs_time": Answer(meaning="time of log-probabilities", unit="s", source="log_probs"),
        "training_time": Answer(meaning="time of training", unit="s", source="training"),
        "refit_time": Answer(meaning="time to give the new weights to the rollout", unit="s", source="refit"),
        "mfu": Answer(meaning="MFU of training: the share of the chips' bf16 rate"),
        "usd_per_step": Answer(meaning="rent of a step", unit="USD", source="usd"),
    },
    shows=("step_time", "rollout_time", "training_time", "usd_per_step"),
    bands={"step_time": ("step_time_low", "step_time_high")},
    figures=True,
    seconds=0.5,
)

READ_GROUP, REQUEST_GROUP = "Sellers and dates", "Requests"


@dataclass(frozen=True, kw_only=True)
class PricesInputs:
    """Inputs of `prices`: a model with open weights, and a request."""

    model: Any = text(MISSING, "model with open weights: catalogue name", positional=True)
    provider: str | None = text(None, "name of the only seller to show", group=READ_GROUP, metavar="NAME")
    date: str | None = text(
        None,
        "time of prices and rents: a day, 2026-03-01, or an hour, 2026-11-20T02:00Z",
        group=READ_GROUP,
        metavar="DATE",
        default_words="the newest",
    )
    speed: Any = number(40.0, "output speed for each user in tok/s", unit="tok/s", group=REQUEST_GROUP)
    ttft: Any = number(
        None, "maximum time to first token in seconds", unit="s", group=REQUEST_GROUP, default_words="no limit"
    )  # fmt: skip
    mix: str = text(
        "4096:1024",
        "request mix: prompt tokens, output tokens, and cached share of the prompt (0 to 1)",
        group=REQUEST_GROUP,
        metavar="IN:OUT[:CACHED]",
    )
    mode: str = text("any", "deployment mode: aggregated, disaggregated, or any", group=REQUEST_GROUP)
    chips: str | None = text(
        None,
        "chips of each plan: a number, or usual for the default of plan and compare (8 for an HGX node)",
        group=REQUEST_GROUP,
        metavar="N",
        bare=True,
        default_words="64, or one scale-up domain if larger",
    )
    evidence: str = text(SOLD_EVIDENCE, EVIDENCE_HELP, choices=EVIDENCE, group=REQUEST_GROUP)
    hold: Any = texts(
        "cost of KV cache storage per tier, USD per GB-hour, such as DRAM=0.0005; repeatable",
        group=REQUEST_GROUP,
        metavar="TIER=USD",
    )
    catalog: str | None = text(
        None,
        "folder with a subfolder models/ or systems/, searched before the packaged catalogue",
        group=READ_GROUP,
        metavar="FOLDER",
    )


def solve_prices(values: Mapping[str, Any], *, update: bool = False) -> Market:
    """Return the market of a model: its offers, and the cost of the same request.

    Args:
        values: Values of `PricesInputs` by name.
        update: Whether to download the newest prices first. Nothing else uses the network.

    Returns:
        Offers, costs on plausible systems, and margins.
    """
    inputs = bind(PricesInputs, values, "prices")
    return survey_prices(
        str(inputs.model), provider=inputs.provider, price_time=inputs.date, speed=inputs.speed, ttft=inputs.ttft,
        mix=inputs.mix, mode=read_modes(inputs.mode), hold=read_holds(list(inputs.hold) or None), chips=inputs.chips,
        evidence=inputs.evidence, catalog=inputs.catalog, update=update,
    )  # fmt: skip


def _sellers(market: Market) -> int:
    return len(market.offers)


def _lowest_price(market: Market) -> float:
    return min(market.prices)


def _highest_price(market: Market) -> float:
    return max(market.prices)


def _lowest_cost(market: Market) -> float:
    # Systems without a feasible plan have no cost.
    return min((cost.usd_per_request for cost in market.costs if cost.feasible), default=float("nan"))


PRICES = question_of_result(
    "prices",
    "prices of a model at its sellers, and what its tokens cost",
    inputs=inputs_from(PricesInputs),
    solve=solve_prices,
    answers={
        "lowest_usd_per_request": Answer(meaning="lowest price of a request", unit="USD", source=_lowest_price),
        "highest_usd_per_request": Answer(meaning="highest price of a request", unit="USD", source=_highest_price),
        "cost_usd_per_request": Answer(
            meaning="lowest cost of a request on a plausible system", unit="USD", source=_lowest_cost
        ),
        "sellers": Answer(meaning="number of offers", source=_sellers),
    },
    seconds=3.0,
)
