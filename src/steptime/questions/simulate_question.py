"""The question `simulate`: requests served one by one, with the latencies that users see and the cost of a token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from steptime.errors import RangeError, numba_missing
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import Engine
from steptime.physics.engine_releases import TOP_P
from steptime.physics.layout import Layout
from steptime.physics.layout_space import default_layout
from steptime.questions.declaration import Answer, bind, count, inputs_from, number, question_of_result, text
from steptime.questions.plan_question import LatencyLimits, SessionInputs
from steptime.questions.subject import (
    DESIGN,
    LAYOUT_GROUP,
    USUAL_INPUT,
    USUAL_OUTPUT,
    DraftModel,
    LoraInputs,
    ParallelSizes,
    PricedSubject,
    PromptMedia,
    check_imbalance,
    read_subject,
    read_tier_capacities,
    sampling_input,
    with_prompt_media,
)
from steptime.units import DAY, show
from steptime.workload.workload import LARGEST_SPREAD, MOST_DRAFTS, NONE, Speculation, choose_speculation

if TYPE_CHECKING:
    from steptime.simulation.autoscaler import Autoscaler
    from steptime.simulation.prefix_cache import Cache
    from steptime.simulation.scheduling_policy import Policy
    from steptime.workload.traffic import Traffic

TRAFFIC, POLICY, LIMITS_GROUP, SCALING = "Traffic", "Scheduler", "Limits", "Autoscaler"


@dataclass(frozen=True, kw_only=True)
class TrafficInputs(SessionInputs):
    """Inputs that describe which requests arrive, and when."""

    rate: Any = number(None, "arrival rate in requests/s", unit="requests/s", group=TRAFFIC)
    concurrency: Any = count(None, "number of clients of a closed loop, in place of an arrival rate", group=TRAFFIC)
    trace: str | None = text(None, "trace file: Azure CSV, Mooncake or vLLM JSONL", group=TRAFFIC, metavar="FILE")
    requests: Any = count(
        None,
        "number of requests",
        group=TRAFFIC,
        default_words="10,000 with a rate; 10 per client with concurrency; the whole trace",
    )
    input: Any = count(USUAL_INPUT, "mean prompt tokens per request", unit="tokens", group=TRAFFIC)
    output: Any = count(USUAL_OUTPUT, "mean output tokens per request", unit="tokens", group=TRAFFIC)
    lengths: str = text(
        "lognormal", "distribution of prompt and output lengths: fixed, uniform or lognormal",
        choices=("fixed", "uniform", "lognormal"), group=TRAFFIC,
    )  # fmt: skip
    spread: Any = number(
        1.0, "spread of lengths: half the range (uniform) or the standard deviation (lognormal), divided by the mean",
        minimum=0.0, maximum=LARGEST_SPREAD, group=TRAFFIC,
    )  # fmt: skip
    output_spread: Any = number(
        None, "spread of output lengths", minimum=0.0, maximum=LARGEST_SPREAD, group=TRAFFIC, default_words="as spread"
    )
    arrivals: str = text(
        "poisson", "arrival process: poisson, gamma or constant", choices=("poisson", "gamma", "constant"), group=TRAFFIC
    )
    burst: Any = number(4.0, "squared coefficient of variation of gamma inter-arrival times", group=TRAFFIC)
    rate_scale: Any = number(1.0, "factor on the arrival rate of a trace", group=TRAFFIC)
    fast_share: Any = number(0.0, "share of requests with priority (0 to 1)", group=TRAFFIC)
    prefixes: Any = count(0, "number of shared prompt prefixes", minimum=0, group=TRAFFIC)
    prefix_tokens: Any = count(512, "tokens per shared prefix", unit="tokens", group=TRAFFIC)
    day: str | None = text(
        None,
        "rate by hour of the day, with the mean of rate: a measured profile (chat or images), the ratio of peak to mean, or 24 "
        "numbers with commas",
        group=TRAFFIC,
        metavar="PROFILE",
        default_words="a constant rate",
    )
    peak_hour: Any = count(
        None, "hour of the peak of day, 0 to 23", minimum=0, maximum=23, group=TRAFFIC, default_words="that of the profile"
    )
    seed: Any = count(0, "random seed of the traffic", minimum=0, group=TRAFFIC)

    def traffic(self, gained: int = 0, *, longest: float = math.inf) -> Traffic:
        """Return the requests, from a trace or drawn at random.

        Args:
            gained: Tokens that images and recordings add to each prompt.
            longest: Longest context of the model, before which a session ends [tokens].

        Returns:
            Arrival times and lengths of all requests.

        Raises:
            RangeError: Not exactly one of trace, rate and concurrency is given; a trace has its own prefixes; or sessions are
                combined with other kinds of requests.
        """
        from steptime.workload.trace_files import check_arrivals, read_trace
        from steptime.workload.traffic import Lengths, draw_traffic, longer, scaled, with_sessions

        # A run has one source of requests.
        kinds = [name for name in ("trace", "rate", "concurrency") if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise RangeError(
                "simulate: needs one of trace (--trace), rate (--rate) and concurrency (--concurrency), got "
                + (" and ".join(f"{kind} (--{kind})" for kind in kinds) or "none of them")
            )
        if self.day is not None and (self.trace is not None or self.sessions is not None):
            raise RangeError("day: a trace and sessions have their own times; leave day out, or give a rate alone")
        if self.sessions is not None:
            return self._turns(gained, longest)
        if self.trace is not None:
            check_arrivals(self.trace)
            requests = scaled(read_trace(self.trace, max_requests=self.requests), self.rate_scale)
        else:
            spread_out = self.spread if self.output_spread is None else self.output_spread
            prompts, outputs = (
                Lengths(mean=mean, shape=self.lengths, spread=spread)
                for mean, spread in ((self.input, self.spread), (self.output, spread_out))
            )
            requests = draw_traffic(
                prompts, outputs, rate=self.rate, clients=self.concurrency, requests=self._requests_drawn(),
                fast_share=self.fast_share, kind=self.arrivals, burst=self.burst, seed=self.seed,
            )  # fmt: skip
            if self.day is not None:
                from steptime.workload.day_profile import read_day, with_day

                requests = with_day(requests, read_day(self.day, None if self.peak_hour is None else int(self.peak_hour)))
        if self.prefixes:
            if len(requests.starts):
                raise RangeError(
                    f"prefixes: {self.trace} already has shared prefixes (hash_ids), got {self.prefixes}; leave prefixes out"
                )
            requests = with_sessions(requests, prefixes=self.prefixes, prefix_tokens=self.prefix_tokens, seed=self.seed)
        return longer(requests, gained) if gained else requests

    def _requests_drawn(self) -> Any:
        """Return the number of requests; those of a whole day with a profile, None for the default."""
        if self.requests is not None or self.day is None or self.rate is None:
            return self.requests
        return max(1, round(float(self.rate) * DAY))

    def _turns(self, gained: int, longest: float) -> Traffic:
        """Return the turns of sessions."""
        from steptime.workload.sessions import draw_sessions
        from steptime.workload.traffic import DEFAULT_REQUESTS

        other_requests = {
            "trace": self.trace, "concurrency": self.concurrency, "prefixes": self.prefixes, "fast_share": self.fast_share,
            "image or audio": gained,
        }  # fmt: skip
        conflicts = [name for name, value in other_requests.items() if value]
        if conflicts:
            raise RangeError(f"sessions: turns arrive at a rate, with their own prompts, got {conflicts[0]} too; leave it out")
        return draw_sessions(
            self.drawn_sessions(self.input, self.output, self.spread, self.output_spread), rate=self.rate,
            requests=DEFAULT_REQUESTS if self.requests is None else self.requests, longest=longest, lengths=self.lengths,
            kind=self.arrivals, burst=self.burst, seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SchedulerInputs:
    """Inputs that describe how a replica schedules requests."""

    policy: str | None = text(
        None, "scheduling policy: continuous, prefill-first, static or train (a batch starts at fixed intervals)",
        choices=("continuous", "prefill-first", "static", "train"), group=POLICY, default_words="the engine's",
    )  # fmt: skip
    max_num_seqs: Any = count(256, "maximum number of sequences in one replica at a time", group=POLICY)
    max_num_batched_tokens: Any = count(None, "maximum tokens per step", group=POLICY, default_words="the engine's")
    kv_tokens: Any = count(
        None, "capacity of the KV cache of one replica in tokens", group=POLICY, default_words="the free memory of the chips"
    )
    when_full: str | None = text(
        None, "action when the KV cache is full: recompute (preempt a request) or queue",
        choices=("recompute", "queue"), group=POLICY, default_words="the engine's: queue for trtllm, recompute for others",
    )  # fmt: skip
    interval: Any = number(
        None,
        "time in seconds between the starts of two batches (policy train)",
        unit="s",
        group=POLICY,
        default_words="time to read the HBM once",
    )
    patience: Any = number(0.0, "maximum wait in seconds of a static batch for more requests", unit="s", group=POLICY)
    drafts: Any = count(0, "speculative tokens per step", minimum=0, group=POLICY)
    acceptance: Any = number(
        None,
        "acceptance length: output tokens per step, from 1 to drafts + 1 (a count, not a share)",
        group=POLICY,
        default_words="measured, or the prior of what drafts",
    )
    route: str = text(
        "round-robin", "routing of requests to replicas: round-robin, least-loaded or prefix-aware",
        choices=("round-robin", "least-loaded", "prefix-aware"), group=POLICY,
    )  # fmt: skip
    prefix_cache: str = text(
        "",
        "capacity of the prefix cache of one replica by tier, such as hbm=20GB,host=1TB,ssd=4TB; with sessions, at most "
        "the HBM that running sequences leave free, also by default",
        group=POLICY,
        metavar="TIERS",
    )

    def schedule(self, engine: Engine, system: System, prompt: float) -> Policy:
        """Return the scheduler of a replica.

        Args:
            engine: The serving engine, which gives the defaults.
            system: The machine.
            prompt: Longest prompt [tokens].

        Returns:
            The policy with all its limits.

        Raises:
            RangeError: If there are speculative tokens and no acceptance length.
        """
        from steptime.simulation.scheduling_policy import policy_for

        if self.drafts and self.acceptance is None:
            raise RangeError(
                f"acceptance: is needed with drafts {self.drafts}, got none; give the tokens that a step yields, from 1 to "
                f"{self.drafts + 1}"
            )
        return policy_for(
            engine, system, prompt=prompt, kind=self.policy, max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens, kv_tokens=self.kv_tokens, when_full=self.when_full,
            interval=self.interval, patience=self.patience, speculative_tokens=self.drafts,
            acceptance_length=1.0 if self.acceptance is None else self.acceptance, route=self.route,
        )  # fmt: skip

    def cache(self, model: Model, system: System, layout: Layout, *, has_sessions: bool = False) -> Cache | None:
        """Return the prefix cache of a replica, from tiers such as hbm=20GB,host=1TB.

        Args:
            model: The model as it is served.
            system: The machine.
            layout: Layout of the replica.
            has_sessions: Whether requests are turns of sessions; HBM without a capacity then has the space that they leave.

        Returns:
            The cache; None if no tier is given.

        Raises:
            RangeError: If a tier has no capacity, or is given twice.
        """
        if not self.prefix_cache:
            return None
        from steptime.simulation.prefix_cache import cache_with_capacities

        return cache_with_capacities(
            model, system, layout, read_tier_capacities(self.prefix_cache, system), free_hbm=has_sessions
        )


@dataclass(frozen=True, kw_only=True)
class PoolInputs(ParallelSizes):
    """Inputs that give the number of replicas of each kind."""

    replicas: Any = count(1, "number of replicas", group=LAYOUT_GROUP)
    fast_replicas: Any = count(
        0,
        "additional replicas for requests with priority only (fast-share); 0: all requests share all replicas",
        minimum=0,
        group=LAYOUT_GROUP,
    )
    fast_max_num_seqs: Any = count(
        None,
        "maximum number of sequences in a replica for requests with priority",
        group=LAYOUT_GROUP,
        default_words="as max-num-seqs",
    )
    prefill_replicas: Any = count(
        0, "replicas for prefill only; 0: one pool for prefill and decode", minimum=0, group=LAYOUT_GROUP
    )
    prefill_tp: Any = count(None, "tensor-parallel size of the prefill replicas", group=LAYOUT_GROUP, default_words="as tp")


# Slowest bandwidth of storage [B/s]: a smaller number lacks its unit.
SLOWEST_LOAD: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class AutoscalerInputs:
    """Inputs of replicas that start and stop with the load."""

    autoscale: str | None = text(
        None, "fewest and most replicas that start and stop with the load, as MIN:MAX", group=SCALING, metavar="MIN:MAX",
        default_words="a fixed number of replicas",
    )  # fmt: skip
    scale_on: str = text(
        "concurrency", "metric of the autoscaler: concurrency (requests in a replica) or queue (requests that wait)",
        choices=("concurrency", "queue"), group=SCALING,
    )  # fmt: skip
    scale_target: Any = number(
        None, "requests per replica, of the metric, that the autoscaler keeps", unit="requests", group=SCALING,
        default_words="70 % of max-num-seqs, or 5 in the queue",
    )  # fmt: skip
    scale_interval: Any = number(
        15.0, "time between two readings of the metric in seconds", unit="s", minimum=0.1, group=SCALING
    )
    scale_down_wait: Any = number(
        300.0, "time in seconds for which fewer replicas must be enough before one ends", unit="s", minimum=0.0, group=SCALING
    )
    cold_start: Any = number(
        None, "time from the start of a replica to its first request in seconds", unit="s", minimum=0.0, group=SCALING,
        default_words="image-pull, weights over load-bandwidth, and engine-start",
    )  # fmt: skip
    image_pull: Any = number(
        510.0,
        "pull of the container image in a cold start, in seconds; 0: the host has it",
        unit="s",
        minimum=0.0,
        group=SCALING,
    )
    load_bandwidth: Any = number(
        0.892e9, "bandwidth from storage to the chips of a replica in a cold start, such as 2GB/s", unit="B/s", group=SCALING,
        default_words="0.892GB/s",
    )  # fmt: skip
    engine_start: Any = number(
        64.0, "imports, compilation and graph capture in a cold start, in seconds", unit="s", minimum=0.0, group=SCALING
    )

    def autoscaler(self, model: Model, slots: float) -> Autoscaler | None:
        """Return the autoscaler; None if the number of replicas is fixed.

        Args:
            model: The model as it is served, whose weights a cold start loads.
            slots: Sequences that a replica has at a time.

        Returns:
            The autoscaler.
        """
        if self.autoscale is None:
            return None
        from steptime.models.model import weight_bytes
        from steptime.simulation.autoscaler import (
            CONCURRENCY_SHARE,
            QUEUE_TARGET,
            Autoscaler,
            cold_start_seconds,
            read_autoscale,
        )

        fewest, maximum = read_autoscale(self.autoscale)
        if not self.load_bandwidth >= SLOWEST_LOAD:
            example = f"{self.load_bandwidth:g}GB/s" if self.load_bandwidth > 0 else "2GB/s"
            raise RangeError(
                f"load_bandwidth: must be at least {show(SLOWEST_LOAD, 'B/s', 1)}, got {self.load_bandwidth:g} B/s; "
                f"write a unit, such as {example}"
            )
        cold = cold_start_seconds(
            weight_bytes(model), image_pull=self.image_pull, load_bandwidth=self.load_bandwidth, engine_start=self.engine_start
        )
        target = QUEUE_TARGET if self.scale_on == "queue" else CONCURRENCY_SHARE * float(slots)
        return Autoscaler(
            minimum=fewest,
            maximum=maximum,
            metric=self.scale_on,
            target=target if self.scale_target is None else float(self.scale_target),
            interval=float(self.scale_interval),
            scale_down_wait=float(self.scale_down_wait),
            cold_start=cold if self.cold_start is None else float(self.cold_start),
        )


@dataclass(frozen=True, kw_only=True)
class SimulateInputs(
    PricedSubject,
    DraftModel,
    LoraInputs,
    PromptMedia,
    TrafficInputs,
    SchedulerInputs,
    PoolInputs,
    AutoscalerInputs,
    LatencyLimits,
):
    """Inputs of `simulate`: model, machine, traffic, scheduler, replicas and limits."""

    sampling: str = sampling_input(TOP_P)


TIMES = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "time to the last token"}
ANSWERS = {
    f"{name}_{point}": Answer(meaning=f"{point} of {meaning}", unit="s", source=f"answers.{name}.{point}")
    for name, meaning in TIMES.items()
    for point in ("mean", "p50", "p90", "p99")
} | {
    name: Answer(meaning=meaning, unit=unit, text=name == "verdict", source=f"answers.{name}")
    for name, unit, meaning in (
        ("requests_per_second", "requests/s", "throughput in requests"),
        ("output_tokens_per_second", "tok/s", "output throughput"),
        ("goodput", "requests/s", "goodput: throughput of requests within the limits"),
        ("within_limits", "", "share of all requests that are within the limits"),
        ("utilisation", "", "utilization: share of time in which a replica runs steps"),
        ("batch", "sequences", "mean decode batch of a replica"),
        ("usd_per_million_output_tokens", "USD", "rent per million output tokens in the steady state"),
        ("verdict", "", "stability of the queue: STABLE, SATURATED or OVERLOADED"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Objects that a simulation runs on, and the keyword arguments of `simulate`."""

    inputs: SimulateInputs
    model: Model
    system: System
    traffic: Traffic | None
    gained_tokens: int
    arguments: Mapping[str, Any]
    speculation: Speculation = NONE


def setup(values: Mapping[str, Any], *, searches_rate: bool = False) -> Setup:
    """Return the objects that a simulation runs on.

    Args:
        values: Values of `SimulateInputs` by name, and figures of the machine by path.
        searches_rate: Whether the caller searches the rate, so that none is needed.

    Returns:
        Inputs, model, system, traffic and arguments of `simulate`.

    Raises:
        RangeError: If an input is outside its bounds, or if numba is not installed.
    """
    if find_spec("numba") is None:
        raise RangeError(numba_missing())
    inputs = bind(SimulateInputs, values, "simulate")
    inputs.check_drafting(values.get("drafts"), inputs.acceptance)
    inputs = replace(inputs, **inputs.session_figures(values))
    model, system, engine = read_subject(values, TOP_P)
    speculation = _speculation(inputs, model)
    if speculation.drafts:
        inputs = replace(inputs, acceptance=speculation.acceptance)
    model, gained = with_prompt_media(model, inputs, inputs.input)

    # A search draws its own traffic at each rate; a trace has its own lengths in any case.
    draws_for_search = searches_rate and inputs.trace is None
    traffic = None if draws_for_search else inputs.traffic(gained, longest=float(model.max_context))

    # The mean prompt of a trace replaces the input, so that the media are weighed against the real text.
    if traffic is not None and gained:
        model, gained = with_prompt_media(
            read_subject(values, TOP_P)[0], inputs, max(1.0, float(traffic.inputs.mean()) - gained)
        )

    # The scheduler and the layout must fit the longest request, not the mean.
    longest = float(inputs.input + gained if traffic is None else max(traffic.inputs))
    policy = inputs.schedule(engine, system, longest)
    context = longest + (inputs.output if traffic is None else max(traffic.outputs))
    sizes = inputs.given_sizes()
    if sizes:
        layout = Layout(**sizes, microbatches=sizes.get("pp", 1), replicas=inputs.replicas)
    else:
        layout = replace(default_layout(model, system, engine=engine, batch=1, context=context), replicas=inputs.replicas)
    check_imbalance(values, layout)
    served = as_served(model, system, engine)

    # The prefill pool takes the tensor-parallel size of the decode pool by default.
    tp = layout.tp if inputs.prefill_tp is None else inputs.prefill_tp
    prefill = Layout(tp=tp, replicas=inputs.prefill_replicas) if inputs.prefill_replicas else None
    arguments: dict[str, Any] = {
        "layout": layout, "engine": engine, "policy": policy, "slo": inputs.slo(), "prefill": prefill,
        "percentile": inputs.percentile,
        "cache": inputs.cache(served, system, prefill or layout, has_sessions=inputs.sessions is not None),
    }  # fmt: skip

    autoscaler = inputs.autoscaler(served, policy.max_num_seqs)
    if autoscaler is not None:
        if searches_rate:
            raise RangeError(
                "autoscale: a search for the highest rate has a fixed number of replicas; leave one of the two out"
            )
        arguments |= {"autoscaler": autoscaler}
    # Replicas of the fast tier run the same policy with their own number of slots.
    if inputs.fast_replicas:
        slots = policy.max_num_seqs if inputs.fast_max_num_seqs is None else inputs.fast_max_num_seqs
        arguments |= {"fast": replace(policy, max_num_seqs=slots), "fast_replicas": inputs.fast_replicas}
    return Setup(
        inputs=inputs, model=model, system=system, traffic=traffic, gained_tokens=gained, arguments=arguments,
        speculation=speculation,
    )  # fmt: skip


def _speculation(inputs: SimulateInputs, model: Model) -> Speculation:
    """Return the speculative tokens of a run with their source; none where the drafts come from outside the model."""
    if not inputs.drafts or not model.can_draft or inputs.drafts > MOST_DRAFTS:
        return NONE
    return choose_speculation(model, int(inputs.drafts), inputs.acceptance)


def solve(values: Mapping[str, Any]) -> Any:
    """Return one simulated run: its answers, requests and timeline.

    Args:
        values: Values of `SimulateInputs` by name, and figures of the machine by path.

    Returns:
        The finished run.
    """
    prepared = setup(values)
    # numba compiles at the first import, so that only a run pays for it.
    from steptime.simulation.simulator import simulate

    assert prepared.traffic is not None
    return simulate(prepared.model, prepared.system, prepared.traffic, **prepared.arguments)


# A simulation can also vary models and machines that are not built.
SIMULATE = question_of_result(
    "simulate",
    "requests served one by one: latencies for users, and cost of a token",
    inputs={**inputs_from(SimulateInputs), **DESIGN},
    answers=ANSWERS,
    solve=solve,
    figures=True,
    shows=(
        "ttft_mean",
        "ttft_p90",
        "tpot_mean",
        "tpot_p90",
        "output_tokens_per_second",
        "usd_per_million_output_tokens",
        "verdict",
    ),
    seconds=0.1,
)
