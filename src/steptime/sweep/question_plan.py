"""A plan as a question: the cheapest deployment within limits, over any of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from steptime.errors import RangeError, UnknownName, shown
from steptime.planning.plan_result import Plan
from steptime.planning.planner import MODES, plan
from steptime.planning.workload import Workload, limits
from steptime.sweep.question_inputs import COUNT, TEXT, Answer, Input, Question
from steptime.sweep.resolve_inputs import DESIGN, MADE, SUBJECT, made, read_subject

COST, TPOT, TTFT = "usd_per_million_output_tokens", "tpot", "ttft"
OUTPUT, SPEED = "tokens_per_second_per_chip", "tokens_per_second_per_user"
LOAD = {
    "input": Input(meaning="prompt tokens of a request", unit="tokens", kind=COUNT),
    "output": Input(meaning="output tokens of a request", unit="tokens", kind=COUNT),
    "cached": Input(meaning="share of the prompt that a prefix cache holds"),
}
LIMITS = {
    "speed": Input(meaning="least output speed for each user", unit="tok/s", bare=True),
    "tpot": Input(meaning="longest time per output token", unit="s", bare=True),
    "ttft": Input(meaning="longest mean time to first token", unit="s", bare=True),
}
INPUTS = {
    **SUBJECT,
    **DESIGN,
    **LOAD,
    **LIMITS,
    "chips": Input(meaning="chips; by default one scale-up domain", kind=COUNT),
    "mode": Input(meaning="aggregated, disaggregated, or any", kind=TEXT),
    "sure": Input(meaning="probability with which each limit is met; else in the mean"),
    "drafts": Input(meaning="tokens that the model's own layers draft for a step", kind=COUNT),
    "acceptance": Input(meaning="tokens that a step then yields"),
}
TOLD = (  # of a plan; its fields say what they mean
    COST, "prefill_usd_per_million_tokens", "decode_usd_per_million_tokens", "usd_per_request", TPOT, TTFT,
    "requests_per_second", "utilisation", "concurrency", "chips", "mode", "layout_text", "reason",
)  # fmt: skip
RANGES = {
    COST: "cost_range", TPOT: "tpot_range", TTFT: "ttft_range", OUTPUT: "throughput_range",
}  # fmt: skip


def _answers() -> dict[str, Answer]:
    metadata = {one.name: one.metadata for one in fields(Plan)} | {
        name: Plan.DERIVED[name] for name in (SPEED, OUTPUT, "joules_per_output_token")
    }
    found = {
        name: Answer(
            meaning=metadata[name]["meaning"], unit=metadata[name]["unit"], text=name in ("mode", "layout_text", "reason")
        )
        for name in (*TOLD, SPEED, OUTPUT, "joules_per_output_token")
    }
    for name in (COST, TPOT, TTFT, OUTPUT):
        for side, word in (("low", "lower"), ("high", "upper")):
            found[f"{name}_{side}"] = Answer(meaning=f"{word} end of its 90 % range", unit=found[name].unit)
    found["batch"] = Answer(meaning="sequences that a replica decodes at once", unit="sequences")
    return found | MADE


ANSWERS = _answers()
BANDS = {name: (f"{name}_low", f"{name}_high") for name in (COST, TPOT, TTFT, OUTPUT)}


def ask(given: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """Return the answers about the cheapest plan; where nothing meets the limits, the reason alone."""
    found = planned(given)
    if not found.feasible:
        return {"reason": found.reason}
    told = {name: getattr(found, name) for name in (*TOLD, SPEED, OUTPUT, "joules_per_output_token")}
    for name in BANDS:
        low, high = getattr(found, RANGES[name]) or (math.nan, math.nan)
        told |= {f"{name}_low": low, f"{name}_high": high}
    return told | {"batch": found.pools[-1].batch} | _made(given, wanted)


def _made(given: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    if not wanted & MADE.keys():
        return {}
    model, system, _ = read_subject(given)
    return made(model, system, wanted)


def planned(given: Mapping[str, Any]) -> Plan:
    """Return the plan that a question comes to."""
    model, system, engine = read_subject(given)
    mode = given.get("mode", "any")
    if mode not in (*MODES, "any"):
        raise UnknownName("mode", mode, [*MODES, "any"], "Known: aggregated, disaggregated, any.")
    return plan(
        model,
        system,
        workload_of(given),
        limits_of(given),
        chips=given.get("chips"),
        engine=engine,
        modes=MODES if mode == "any" else mode,
        sure=given.get("sure"),
        drafts=given.get("drafts"),
        acceptance=given.get("acceptance"),
        levers=False,
        worth=False,
    )


def workload_of(given: Mapping[str, Any]) -> Workload:
    """Return the requests of a question: 1,024 tokens in and out unless told."""
    return Workload(
        input_tokens=given.get("input", 1024), output_tokens=given.get("output", 1024), cached_share=given.get("cached", 0.0)
    )


def limits_of(given: Mapping[str, Any]) -> Any:
    """Return the limits of a question; raise RangeError where speed and time per token are both limited."""
    if "speed" in given and "tpot" in given:
        raise RangeError(f"speed and tpot limit the same: speed {shown(given['speed'])}, tpot {shown(given['tpot'])}; keep one")
    speed = 1 / given["tpot"] if "tpot" in given else given.get("speed")
    if speed is not None and not speed > 0:
        raise RangeError(f"speed must be greater than 0 tok/s, not {shown(speed)}")
    return limits(speed=speed, ttft=given.get("ttft"))


PLAN = Question(
    name="plan",
    meaning="the cheapest deployment within limits",
    inputs=INPUTS,
    answers=ANSWERS,
    ask=ask,
    figures=True,
    needs=("model", "system"),
    shows=(COST, *BANDS[COST], SPEED, OUTPUT, TTFT, "batch", "layout_text", "reason"),
    bands=BANDS,
    seconds=0.4,
    limits=tuple(LIMITS),
)
