"""The question `plan`: the cheapest deployment of a model on a machine within latency limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, Self

import numpy as np

from steptime.errors import RangeError, UnknownName, short_repr
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import MOST_CHIPS, MOST_RATE, MOST_TOKENS, limit, positive, share
from steptime.physics.engine import Engine
from steptime.physics.engine_releases import TOP_P
from steptime.planning.evidence import EVIDENCE
from steptime.planning.plan_result import Plan
from steptime.planning.planner import MODES, MOST_SLOTS, OWN_CHUNKS, PINNED_SIZES, plan
from steptime.questions.declaration import Answer, Question, bind, count, inputs_from, number, read_answers, text
from steptime.questions.subject import (
    DESIGN,
    DESIGN_ANSWERS,
    REQUESTS_GROUP,
    USUAL_INPUT,
    USUAL_OUTPUT,
    DraftModel,
    LoraInputs,
    PricedSubject,
    PromptMedia,
    design_answers,
    read_prefill_system,
    read_subject,
    read_tier_capacities,
    sampling_input,
    with_prompt_media,
)
from steptime.units import DAY
from steptime.workload.sessions import LONGEST_THINK_TIME, PRESETS, Sessions, read_turns
from steptime.workload.trace_files import trace_lengths
from steptime.workload.workload import LARGEST_SPREAD, LONGEST_TPOT, Slo, Workload, limits

COST, TPOT, TTFT = "usd_per_million_output_tokens", "tpot", "ttft"
OUTPUT, SPEED = "tokens_per_second_per_chip", "tokens_per_second_per_user"
DEPLOYMENT_GROUP, LIMITS_GROUP, OWN_GROUP = "Deployment", "Limits", "Your own layout"
EVIDENCE_HELP = (
    "layouts to prefer: measured (in the engine's fitted runs: one pool on one node), published (run elsewhere, such as "
    "separate pools), or any (the cheapest of all)"
)
# Inputs that a trace sets.
TRACE_SETS = ("input", "output", "spread", "output_spread")
PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, kw_only=True)
class RequestSizes:
    """Sizes of requests."""

    input: Any = count(USUAL_INPUT, "mean prompt tokens per request", unit="tokens", maximum=MOST_TOKENS, group=REQUESTS_GROUP)
    output: Any = count(
        USUAL_OUTPUT, "mean output tokens per request", unit="tokens", maximum=MOST_TOKENS, group=REQUESTS_GROUP
    )
    spread: Any = number(
        1.0, "standard deviation of prompt and output lengths over their mean; 0: all equal, as in most benchmarks",
        minimum=0.0, maximum=LARGEST_SPREAD, group=REQUESTS_GROUP,
    )  # fmt: skip
    output_spread: Any = number(
        None, "standard deviation of output lengths over their mean", minimum=0.0, maximum=LARGEST_SPREAD,
        group=REQUESTS_GROUP, default_words="as spread",
    )  # fmt: skip
    cached: Any = number(0.0, "share of the prompt that is in the prefix cache (0 to below 1)", group=REQUESTS_GROUP)
    trace: str | None = text(
        None, "requests whose mean lengths and spreads to take: azure-chat, azure-code, mooncake, or a trace file",
        group=REQUESTS_GROUP, metavar="NAME", default_words="input, output and spread",
    )  # fmt: skip

    def with_trace(self) -> Self:
        """Return the inputs with the lengths of the trace, if one is named.

        Returns:
            Inputs without a trace.

        Raises:
            RangeError: Lengths are given in addition to the trace.
        """
        if self.trace is None:
            return self
        repeated_inputs = [name for name in TRACE_SETS if getattr(self, name) != getattr(RequestSizes, name)]
        if repeated_inputs:
            raise RangeError(f"trace: contains the lengths, got {' and '.join(repeated_inputs)} too; leave one out")
        lengths = trace_lengths(self.trace)
        return replace(
            self, input=lengths.input_tokens, output=lengths.output_tokens, spread=min(lengths.input_spread, LARGEST_SPREAD),
            output_spread=min(lengths.output_spread, LARGEST_SPREAD), trace=None,
        )  # fmt: skip

    def workload(self, gained: int = 0) -> Workload:
        """Return the requests as a workload.

        Args:
            gained: Tokens that images and recordings add to each prompt.

        Returns:
            The workload.
        """
        sizes = self.with_trace()
        share("cached", sizes.cached, whole_too=False)
        return Workload(
            input_tokens=sizes.input + gained, output_tokens=sizes.output, cached_share=sizes.cached,
            input_spread=sizes.spread, output_spread=sizes.spread if sizes.output_spread is None else sizes.output_spread,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LatencyLimits:
    """Limits on latencies, at a percentile of the requests."""

    speed: Any = number(None, "minimum output speed for each user in tok/s", unit="tok/s", group=LIMITS_GROUP)
    tpot: Any = number(
        None, "maximum time per output token in seconds, in place of a minimum speed", unit="s", group=LIMITS_GROUP
    )
    ttft: Any = number(None, "maximum time to first token in seconds", unit="s", group=LIMITS_GROUP)
    percentile: str = text(
        "p90", "requests that must meet the limits: p50, p90 (90 % of them), p95, p99, or mean for the average request",
        choices=PERCENTILES, group=LIMITS_GROUP,
    )  # fmt: skip

    def slo(self) -> Slo:
        """Return the limits as an SLO.

        Returns:
            Limits on output speed and time to first token.

        Raises:
            RangeError: If speed and time per output token are both limited, or a limit is not above 0.
        """
        if self.speed is not None and self.tpot is not None:
            raise RangeError(
                f"speed (--speed) and tpot (--tpot) limit the same latency, got {short_repr(self.speed)} tok/s and "
                f"{short_repr(self.tpot)} s; keep one"
            )
        for name, unit in (("speed", "tok/s"), ("tpot", "s"), ("ttft", "s")):
            positive(name, 1.0 if getattr(self, name) is None else getattr(self, name), unit)
        limit("tpot", 1.0 if self.tpot is None else self.tpot)
        if self.tpot is not None and self.tpot > LONGEST_TPOT:
            raise RangeError(
                f"tpot: must be at most {LONGEST_TPOT:g} s, got {self.tpot:g} s; it is in seconds, so give {self.tpot / 1e3:g} "
                f"for {self.tpot:g} ms"
            )
        return limits(speed=self.speed if self.tpot is None else 1 / self.tpot, ttft=self.ttft)


@dataclass(frozen=True, kw_only=True)
class FleetLoad:
    """What a fleet of whole replicas serves."""

    rate: Any = number(
        None, "requests/s to serve: sizes a fleet of whole replicas on whole hosts", unit="requests/s", group=DEPLOYMENT_GROUP
    )
    tokens_per_day: Any = count(
        None, "input and output tokens of a day, such as 500M, in place of a rate", unit="tokens", group=DEPLOYMENT_GROUP
    )
    spare: Any = count(0, "further replicas of that fleet", minimum=0, maximum=MOST_CHIPS, group=DEPLOYMENT_GROUP)

    def request_rate(self, workload: Workload, *, has_sessions: bool = False) -> float | None:
        """Return the requests to serve: the rate, or that of the tokens of a day.

        Args:
            workload: Requests.
            has_sessions: Whether requests are turns of sessions, whose prompts contain histories.

        Returns:
            Requests/s; None where neither is given.
        """
        return read_rate(self.rate, self.tokens_per_day, workload, has_sessions=has_sessions)


def read_rate(
    rate: float | None, tokens_per_day: float | None, workload: Workload, *, has_sessions: bool = False
) -> float | None:
    """Return the requests to serve: the rate, or that of the tokens of a day, spread evenly.

    Args:
        rate: Requests/s, or None.
        tokens_per_day: Input and output tokens of a day, or None.
        workload: Requests.
        has_sessions: Whether requests are turns of sessions, whose prompts contain histories.

    Returns:
        Requests/s; None where neither is given.

    Raises:
        RangeError: Both are given, or one is not positive.

    >>> read_rate(None, 86_400 * 3_000, Workload(input_tokens=1000, output_tokens=500))
    2.0
    """
    if tokens_per_day is None:
        return None if rate is None else float(positive("rate", rate, "requests/s", maximum=MOST_RATE))
    if rate is not None:
        raise RangeError("tokens_per_day: sets the rate, so that it does not go with --rate; leave one out")
    if has_sessions:
        raise RangeError("tokens_per_day: histories of sessions repeat tokens; give the turns per second (--rate) instead")
    daily = float(positive("tokens_per_day", tokens_per_day, "tokens/day"))
    served = daily / DAY / float(workload.input_tokens + workload.output_tokens)
    return float(positive("tokens_per_day / tokens of a request", served, "requests/s", maximum=MOST_RATE))


def pinned_size(words: str) -> Any:
    """Declare a parallel size that the user may choose.

    Args:
        words: What it is.

    Returns:
        A field of inputs.
    """
    return count(
        None,
        f"{words} of every pool, in place of the searched ones",
        maximum=MOST_CHIPS,
        group=OWN_GROUP,
        default_words="searched",
    )


# Sessions with a number of turns in place of a preset have the think time of conversations.
USUAL_THINK_TIME: Final = PRESETS["chat"].think_time


@dataclass(frozen=True, kw_only=True)
class SessionInputs:
    """Inputs that make each request a turn of a conversation or of an agent."""

    sessions: Any = text(
        None,
        "conversations or agents, whose prompts repeat their history: chat, agent, or a mean number of turns; input and output "
        "are then the new tokens of a turn, and a rate counts turns",
        group=REQUESTS_GROUP,
        metavar="KIND",
        bare=True,
        default_words="each request stands alone",
    )
    think_time: Any = number(
        None, "mean time in seconds from an answer to the next turn (exponential)", unit="s", minimum=0.0,
        maximum=LONGEST_THINK_TIME,
        group=REQUESTS_GROUP, default_words=f"of the kind; {USUAL_THINK_TIME:g} s with a number of turns",
    )  # fmt: skip
    system_prompt: Any = count(
        None, "tokens of a system prompt that all sessions share", unit="tokens", minimum=0, maximum=MOST_TOKENS,
        group=REQUESTS_GROUP, default_words="of the kind; 0 with a number of turns",
    )  # fmt: skip

    def session_figures(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that the kind of sessions sets.

        Args:
            values: Values by input name, as the user gives them; these stay.

        Returns:
            Values by input name: turns in place of a kind, and figures that the user does not give.

        Raises:
            RangeError: A think time or a system prompt is given without sessions.
            UnknownName: There is no such kind.
        """
        if self.sessions is None:
            for name in ("think_time", "system_prompt"):
                if getattr(self, name) is not None:
                    raise RangeError(
                        f"{name}: only sessions have one, got {getattr(self, name):g}; give sessions too (--sessions)"
                    )
            return {}
        kind = read_turns(self.sessions)
        if not isinstance(kind, Sessions):
            defaults = {"think_time": USUAL_THINK_TIME, "system_prompt": 0}
            turns = kind
        else:
            turns = kind.turns
            defaults = {
                "think_time": kind.think_time, "system_prompt": kind.system_prompt, "input": kind.input_tokens,
                "output": kind.output_tokens,
            }  # fmt: skip
        return {"sessions": turns} | {name: value for name, value in defaults.items() if values.get(name) is None}

    def drawn_sessions(self, input_tokens: float, output_tokens: float, spread: float, output_spread: float | None) -> Sessions:
        """Return the sessions, after `session_figures` has set their inputs.

        Args:
            input_tokens: New input tokens per turn.
            output_tokens: Output tokens per turn.
            spread: Standard deviation of lengths over their mean.
            output_spread: That of output lengths; None: as `spread`.

        Returns:
            The sessions.
        """
        return Sessions(
            turns=self.sessions, input_tokens=input_tokens, output_tokens=output_tokens, think_time=self.think_time,
            system_prompt=self.system_prompt, input_spread=spread,
            output_spread=spread if output_spread is None else output_spread,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanInputs(PricedSubject, DraftModel, LoraInputs, PromptMedia, RequestSizes, SessionInputs, LatencyLimits, FleetLoad):
    """Inputs of `plan`: model, machine, requests, limits and deployment."""

    sampling: str = sampling_input(TOP_P)
    prefix_cache: str = text(
        "", "capacity of the prefix cache of one replica by tier, such as host=1TB,ssd=4TB; running sequences have HBM first",
        group=REQUESTS_GROUP, metavar="TIERS", default_words="free HBM, host memory and disks of the system",
    )  # fmt: skip

    chips: Any = count(
        None, "number of chips", maximum=MOST_CHIPS, group=DEPLOYMENT_GROUP,
        default_words="the system's usual number, such as 8 for an HGX node or 72 for an NVL72 rack",
    )  # fmt: skip
    mode: str = text(
        "any",
        "deployment mode: aggregated (prefill and decode share chips), disaggregated (separate pools), or any",
        group=DEPLOYMENT_GROUP,
    )  # fmt: skip
    evidence: str = text("measured", EVIDENCE_HELP, choices=EVIDENCE, group=DEPLOYMENT_GROUP)
    sure: Any = number(
        None, "required probability (0.5 to 0.99) of meeting each limit by itself", group=DEPLOYMENT_GROUP,
        default_words="the predicted times just meet the limits, a chance of about 0.5",
    )  # fmt: skip
    drafts: Any = text(
        None, "speculative tokens per step, 0 to 8, or auto for the best number",
        group=DEPLOYMENT_GROUP, metavar="N", bare=True, default_words="none",
    )  # fmt: skip
    acceptance: Any = number(
        None, "acceptance length: output tokens per step with speculative decoding, from 1 to drafts + 1",
        group=DEPLOYMENT_GROUP, default_words="measured, or the prior of what drafts",
    )  # fmt: skip
    tp: Any = pinned_size("tensor-parallel size")
    pp: Any = pinned_size("pipeline stages")
    dp: Any = pinned_size("data-parallel ranks")
    ep: Any = pinned_size("expert-parallel size")
    cp: Any = pinned_size("context-parallel size")
    chunk: Any = count(
        None, "your own prefill chunk without separate pools: prompt tokens of a data-parallel rank in a step, next to decode",
        minimum=OWN_CHUNKS[0], maximum=OWN_CHUNKS[1], group=OWN_GROUP, default_words="searched",
    )  # fmt: skip
    max_num_seqs: Any = count(
        None, "maximum sequences in a replica at a time", maximum=MOST_SLOTS, group=OWN_GROUP, default_words="from the plan"
    )
    prefill_system: Any = text(
        None, "system of the prefill pool, if it is another one than that of decode: catalogue name, or path to a TOML file",
        group=DEPLOYMENT_GROUP, metavar="SYSTEM", default_words="the same system",
    )  # fmt: skip
    prefill_chips: Any = count(
        None, "number of chips of the prefill system", maximum=MOST_CHIPS, group=DEPLOYMENT_GROUP,
        default_words="the whole hosts with the lowest cost per token",
    )  # fmt: skip
    prefill_rent: Any = text(
        None, "rent of a chip of the prefill system: owned, contract, ondemand, or USD per chip-hour such as 2.10",
        group=DEPLOYMENT_GROUP, metavar="KIND", default_words="the kind of rent, or the newest known",
    )  # fmt: skip
    power_cap: Any = text(
        None, "power of all hosts, such as 1MW: without a rate, sizes the largest fleet within it", group=DEPLOYMENT_GROUP,
        metavar="POWER", bare=True, default_words="no cap",
    )  # fmt: skip
    electricity: Any = text(
        None,
        "price of electricity in USD per kWh, such as 0.08/kWh; its cost is shown, and not added to the rent",
        group=DEPLOYMENT_GROUP,
        metavar="PRICE",
        bare=True,
        default_words="electricity is not priced",
    )
    carbon: Any = text(
        None,
        "CO2 of the grid: a number in g/kWh, or a grid such as us, germany, france, china or world",
        group=DEPLOYMENT_GROUP,
        metavar="GRID",
        bare=True,
        default_words="no CO2 is counted",
    )


# Fields and properties of `Plan` that are answers of the question; their meanings are in the metadata of `Plan`.
PLAN_FIELDS = (
    COST, "prefill_usd_per_million_tokens", "decode_usd_per_million_tokens", "usd_per_request", TPOT, TTFT,
    "mean_ttft", "mean_tpot", "evidence", "requests_per_second", "utilisation", "concurrency", "chips", "mode", "layout_text",
    "reason", SPEED, OUTPUT,
    "joules_per_output_token",
)  # fmt: skip
# Fields of `Plan` with the ends of 90 % ranges, by answer.
RANGES = {COST: "cost_range", TPOT: "tpot_range", TTFT: "ttft_range", OUTPUT: "throughput_range"}
# Answers about the energy at the load of a plan: name, field, meaning and unit.
ENERGY_ANSWERS = (
    ("load_chip_watts", "chip_watts", "mean power of a chip at this load, without host, network and cooling", "W"),
    ("load_joules_per_output_token", "joules", "energy of all chips per output token at this load", "J"),
    ("carbon_grams_per_million_output_tokens", "carbon_grams", "CO2 per million output tokens, with carbon", "g"),
    (
        "tokens_per_second_per_megawatt", "tokens_per_second_per_megawatt",
        "output tokens per second of a megawatt, with the power around the chips", "tok/s",
    ),
)  # fmt: skip
MONTH_COST: Final = "usd_per_month"
AT_RATE: Final = "usd_per_million_output_tokens_at_rate"
# Inputs that give a fleet its load.
FLEET_LOADS: Final = ("rate", "tokens_per_day")
# Answers about the fleet of a rate: name, field, meaning and unit.
FLEET_ANSWERS = (
    (MONTH_COST, "usd_per_month", "rent of all hosts of the fleet for a month, with a rate", "USD"),
    ("replicas", "replicas", "replicas of that fleet, without spares", ""),
    ("hosts", "hosts", "hosts of that fleet, spares included", ""),
    ("fleet_chips", "chips", "chips of these hosts", ""),
    ("fleet_utilisation", "utilisation", "rate over the requests that the replicas can serve", ""),
    (
        AT_RATE, "usd_per_million_output_tokens",
        "rent of all hosts of the fleet per million output tokens at the rate", "USD",
    ),
)  # fmt: skip
BANDS = {name: (f"{name}_low", f"{name}_high") for name in RANGES}
DEFAULT_ANSWERS: Final = (COST, *BANDS[COST], SPEED, OUTPUT, TTFT, "batch", "layout_text", "reason")


def _range_end(name: str, side: int, deployment: Plan) -> float:
    """Return an end of a 90 % range; NaN for the ideal engine, which has no ranges."""
    ends: tuple[float, float] = getattr(deployment, name) or (math.nan, math.nan)
    return ends[side]


def _decode_batch(deployment: Plan) -> float:
    return deployment.pools[-1].batch


def _of_energy(name: str, deployment: Plan) -> float:
    """Return a figure of the energy at the load of a plan; NaN where the power of a chip is not known."""
    return math.nan if deployment.energy is None else float(getattr(deployment.energy, name))


def _of_fleet(name: str, deployment: Plan) -> float:
    """Return a figure of the fleet of a plan; NaN without a rate."""
    return math.nan if deployment.fleet is None else float(getattr(deployment.fleet, name))


def _plan_answers() -> dict[str, Answer]:
    # Meanings and units come from `Plan`, so that question and result cannot disagree.
    metadata = {**{plan_field.name: plan_field.metadata for plan_field in fields(Plan)}, **Plan.DERIVED}
    answers = {
        name: Answer(
            meaning=metadata[name]["meaning"],
            unit=metadata[name]["unit"],
            text=name in ("mode", "evidence", "layout_text", "reason"),
        )
        for name in PLAN_FIELDS
    }
    for name, range_name in RANGES.items():
        for side, word in enumerate(("lower", "upper")):
            answers[BANDS[name][side]] = Answer(
                meaning=f"{word} end of its 90 % range", unit=answers[name].unit, source=partial(_range_end, range_name, side)
            )
    answers["cached_share"] = Answer(
        meaning="share of prompt tokens that count as cached: given, or what the prefix cache of sessions holds",
        source="workload.cached_share",
    )
    answers["batch"] = Answer(
        meaning="decode batch: sequences in flight in one replica", unit="sequences", source=_decode_batch
    )
    for name, field_name, meaning, symbol in ENERGY_ANSWERS:
        answers[name] = Answer(meaning=meaning, unit=symbol, source=partial(_of_energy, field_name))
    for name, field_name, meaning, symbol in FLEET_ANSWERS:
        answers[name] = Answer(meaning=meaning, unit=symbol, source=partial(_of_fleet, field_name))
    return answers


PLAN_ANSWERS = _plan_answers()
ANSWERS = PLAN_ANSWERS | DESIGN_ANSWERS


def ask(values: Mapping[str, Any], answer_names: frozenset[str]) -> dict[str, Any]:
    """Return the answers about the cheapest plan; only the reason if there is no plan.

    Args:
        values: Values of `PlanInputs` by name, and figures of the machine by path.
        answer_names: Names of the answers; empty for all.

    Returns:
        Answers by name, in base units.
    """
    deployment = solve(values, diagnostics=False)
    model, system, _ = read_subject(values, TOP_P)
    return answers_from(deployment, model, system, answer_names)


def answers_from(deployment: Plan, model: Model, system: System, answer_names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the answers of the question from a plan.

    Args:
        deployment: The plan.
        model: The model that it serves.
        system: The machine that it runs on.
        answer_names: Names of the answers about model and machine; empty for all.

    Returns:
        Answers by name, in base units; only `reason` if the plan does not meet the limits.
    """
    if not deployment.feasible:
        return {"reason": deployment.reason}
    return read_answers(PLAN_ANSWERS, deployment) | design_answers(model, system, answer_names or frozenset(ANSWERS))


def bind_plan(values: Mapping[str, Any]) -> tuple[PlanInputs, Model, System, Engine, Workload]:
    """Return the inputs of a plan, and the objects that they name.

    Args:
        values: Values of `PlanInputs` by name, and figures of the machine by path.

    Returns:
        Checked inputs, model, system, engine, and workload.
    """
    inputs = bind(PlanInputs, values, "plan")
    inputs.check_drafting(read_drafts(inputs.drafts), inputs.acceptance)
    inputs = replace(inputs.with_trace(), **inputs.session_figures(values))
    model, system, engine = read_subject(values, TOP_P)
    model, gained = with_prompt_media(model, inputs, inputs.input)
    if inputs.sessions is not None:
        conflicts = {"trace": values.get("trace"), "cached": inputs.cached, "image or audio": gained}
        for name, value in conflicts.items():
            if value:
                why = "the cached share is a result of sessions" if name == "cached" else "sessions have their own prompts"
                raise RangeError(f"sessions: {why}, got {name} too; leave it out")
    elif inputs.prefix_cache:
        raise RangeError("prefix_cache: holds the histories of sessions, got none; give sessions too (--sessions)")
    return inputs, model, system, engine, inputs.workload(gained)


def solve(values: Mapping[str, Any], *, diagnostics: bool = True) -> Plan:
    """Return the cheapest plan.

    Args:
        values: Values of `PlanInputs` by name, and figures of the machine by path.
        diagnostics: Whether alternatives, elasticities and the other figures beyond the plan itself are computed too.

    Returns:
        The plan; `feasible` is False if no plan meets the limits.
    """
    inputs, model, system, engine, workload = bind_plan(values)
    arguments: dict[str, Any] = {
        "chips": inputs.chips, "engine": engine, "modes": read_modes(inputs.mode), "sure": inputs.sure,
        "drafts": read_drafts(inputs.drafts), "acceptance": inputs.acceptance, "percentile": inputs.percentile,
        "evidence": inputs.evidence,
        "sizes": {name: value for name in PINNED_SIZES if (value := getattr(inputs, name)) is not None},
        "chunk": inputs.chunk, "max_num_seqs": inputs.max_num_seqs,
        "rate": inputs.request_rate(workload, has_sessions=inputs.sessions is not None), "spare": inputs.spare,
        "power_cap": inputs.power_cap, "prefill_system": read_prefill_system(values), "prefill_chips": inputs.prefill_chips,
        "electricity": inputs.electricity, "carbon": inputs.carbon,
    }  # fmt: skip
    effects: dict[str, Any] = {"alternatives": diagnostics, "elasticities": diagnostics, "diagnostics": diagnostics}
    if inputs.sessions is not None:
        if arguments["prefill_system"] is not None:
            raise RangeError(
                "prefill_system: histories of sessions are on one system; leave out prefill_system (--prefill-system), or "
                "sessions (--sessions)"
            )
        # Plans of requests need no search for hits.
        from steptime.planning.session_plan import plan_sessions

        capacities = read_tier_capacities(inputs.prefix_cache, system) if inputs.prefix_cache else None
        sessions = inputs.drawn_sessions(inputs.input, inputs.output, inputs.spread, inputs.output_spread)
        deployment = plan_sessions(model, system, sessions, inputs.slo(), prefix_cache=capacities, **arguments, **effects)
    else:
        deployment = plan(model, system, workload, inputs.slo(), **arguments, **effects)
    trace = values.get("trace")
    caution = "" if trace is None else trace_lengths(trace).caution
    cautions = [words for words in (caution, _idle_imbalance(values, deployment)) if words]
    return replace(deployment, warnings=(*cautions, *deployment.warnings)) if cautions else deployment


def _idle_imbalance(values: Mapping[str, Any], deployment: Plan) -> str:
    """Return a warning where the user's expert imbalance has no effect, because the plan does not divide its experts."""
    if values.get("imbalance") is None or any(int(pool.layout.ep) > 1 for pool in deployment.pools):
        return ""
    return "the expert imbalance (--imbalance) has no effect: the plan has no expert parallelism" if deployment.pools else ""


def read_modes(words: str) -> tuple[str, ...]:
    """Return the deployment modes in a text: one, several separated by commas, or any.

    Args:
        words: Text such as "any" or "aggregated,disaggregated".

    Returns:
        Modes in the order of `MODES`.

    Raises:
        RangeError: If "any" is combined with other modes.
        UnknownName: If a mode does not exist.

    >>> read_modes("any"), read_modes("disaggregated")
    (('aggregated', 'disaggregated'), ('disaggregated',))
    """
    names = MODES if words == "any" else tuple(name.strip() for name in words.split(","))
    for name in names:
        if name == "any":
            raise RangeError(f"mode any cannot be combined with other modes, got {short_repr(words)}")
        if name not in MODES:
            raise UnknownName("mode", name, [*MODES, "any"], "Known: aggregated, disaggregated, any.")
    return tuple(name for name in MODES if name in names)


def read_drafts(value: Any) -> int | str | None:
    """Return the number of speculative tokens.

    Args:
        value: A count as number or text, "auto", or None.

    Returns:
        The count as an integer; other values unchanged, for the planner to check.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return int(value) if isinstance(value, float | np.number) and value == int(value) else value


PLAN = Question(
    name="plan",
    meaning="the cheapest deployment within limits",
    inputs={**inputs_from(PlanInputs), **DESIGN},
    answers=ANSWERS,
    ask=ask,
    solve=solve,
    figures=True,
    shows=DEFAULT_ANSWERS,
    # With a rate, the cost at full load does not say what the fleet costs.
    shows_with=dict.fromkeys((*FLEET_LOADS, "power_cap"), (AT_RATE, MONTH_COST, "replicas", *DEFAULT_ANSWERS)),
    bands=BANDS,
    seconds=2.0,
    limits=tuple(inputs_from(LatencyLimits)),
)
