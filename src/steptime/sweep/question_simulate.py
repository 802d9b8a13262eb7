"""A simulation as a question: what users see under traffic, over any of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptime.errors import RangeError
from steptime.physics.layout import Layout
from steptime.sweep.question_inputs import COUNT, TEXT, Answer, Input, Question
from steptime.sweep.question_plan import LIMITS, limits_of
from steptime.sweep.question_step import WAYS
from steptime.sweep.resolve_inputs import DESIGN, SUBJECT, read_subject

SIZES = ("input", "output")
INPUTS = {
    **SUBJECT,
    **DESIGN,
    **LIMITS,
    "rate": Input(meaning="requests that come", unit="requests/s", bare=True),
    "concurrency": Input(meaning="clients of a closed loop, in place of a rate", kind=COUNT),
    "requests": Input(meaning="requests that are served", kind=COUNT),
    "input": Input(meaning="mean prompt tokens", unit="tokens", kind=COUNT),
    "output": Input(meaning="mean output tokens", unit="tokens", kind=COUNT),
    "lengths": Input(meaning="fixed, uniform or lognormal", kind=TEXT),
    "spread": Input(meaning="half the range (uniform) or the deviation (lognormal) over the mean"),
    "arrivals": Input(meaning="poisson, gamma or constant", kind=TEXT),
    "burst": Input(meaning="squared variation of gamma intervals"),
    "seed": Input(meaning="which random numbers", kind=COUNT),
    **{name: Input(meaning=meaning, kind=COUNT) for name, meaning in WAYS.items()},
    "replicas": Input(meaning="replicas", kind=COUNT),
    "prefill_replicas": Input(meaning="replicas that only read prompts", kind=COUNT),
    "policy": Input(meaning="continuous, prefill-first, static or train", kind=TEXT),
    "max_sequences": Input(meaning="seats of a replica", kind=COUNT),
    "token_budget": Input(meaning="tokens of a step", kind=COUNT),
}
POINTS = ("mean", "p50", "p90", "p99")
TIMES = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "time to the last token"}
WHOLE = {
    "requests_per_second": Answer(meaning="requests served", unit="requests/s"),
    "output_tokens_per_second": Answer(meaning="output tokens", unit="tok/s"),
    "goodput": Answer(meaning="requests within the limits", unit="requests/s"),
    "within_limits": Answer(meaning="share of the requests sent that are within the limits"),
    "utilisation": Answer(meaning="share of time in which a replica works"),
    "batch": Answer(meaning="mean number that decode", unit="sequences"),
    "usd_per_million_output_tokens": Answer(meaning="whole rent over output tokens, per million", unit="USD"),
    "verdict": Answer(meaning="STABLE, SATURATED or OVERLOADED", text=True),
}
ANSWERS = {
    **{f"{name}_{point}": Answer(meaning=f"{point} of {what}", unit="s") for name, what in TIMES.items() for point in POINTS},
    **WHOLE,
}


def ask(given: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - all questions are asked alike
    """Return the answers about one run."""
    try:
        from steptime.simulation.scheduling_policy import policy_for
        from steptime.simulation.simulator import simulate
        from steptime.simulation.traffic import Lengths, drawn
    except ModuleNotFoundError:
        raise RangeError(
            "the simulator is compiled by numba, which is not installed: pip install 'steptime[simulate]'"
        ) from None

    model, system, engine = read_subject(given)
    if ("rate" in given) == ("concurrency" in given):
        raise RangeError("simulate needs one of rate (requests/s) and concurrency (clients of a closed loop)")
    usual = {"input": 1024, "output": 256}
    shape, spread = given.get("lengths", "fixed"), given.get("spread", 0.0)
    sizes = [Lengths(mean=given.get(name, usual[name]), shape=shape, spread=spread) for name in SIZES]
    traffic = drawn(
        *sizes, rate=given.get("rate"), clients=given.get("concurrency"), requests=given.get("requests"),
        kind=given.get("arrivals", "poisson"), burst=given.get("burst", 4.0), seed=given.get("seed", 0),
    )  # fmt: skip
    policy = policy_for(
        engine, system, prompt=float(max(traffic.inputs)), kind=given.get("policy"),
        max_sequences=given.get("max_sequences", 256), token_budget=given.get("token_budget"),
    )  # fmt: skip
    ways: dict[str, Any] = {name: given.get(name, 1) for name in WAYS}
    layout = Layout(**ways, microbatches=ways["pp"], replicas=given.get("replicas", 1))
    readers = given.get("prefill_replicas", 0)
    prefill = Layout(tp=ways["tp"], replicas=readers) if readers else None
    found = simulate(
        model, system, traffic, layout=layout, engine=engine, policy=policy, slo=limits_of(given), prefill=prefill
    ).answers
    told = {name: getattr(found, name) for name in WHOLE}
    for name in TIMES:
        told |= {f"{name}_{point}": getattr(getattr(found, name), point) for point in POINTS}
    return told


SIMULATE = Question(
    name="simulate",
    meaning="requests served one by one: what users see, and what a token costs",
    inputs=INPUTS,
    answers=ANSWERS,
    ask=ask,
    figures=True,
    needs=("model", "system"),
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
