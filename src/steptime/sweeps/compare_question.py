"""The question `compare`: the cheapest plan of models and systems side by side, at full load or for a rate of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial
from typing import Any, Final

from steptime.errors import RangeError, short_repr
from steptime.hardware.system import System
from steptime.questions.declaration import TEXTS, Answer, Question, bind, declare, inputs_from, read_answers, text
from steptime.questions.plan_question import (
    AT_RATE,
    DEPLOYMENT_GROUP,
    FLEET_LOADS,
    MONTH_COST,
    PLAN,
    FleetLoad,
    LatencyLimits,
    RequestSizes,
    SessionInputs,
    read_modes,
)
from steptime.questions.subject import REQUESTS_GROUP, read_tier_capacities
from steptime.sweeps.ranking import ANY, COST, Ranking, compare


@dataclass(frozen=True, kw_only=True)
class ComparedLoad(RequestSizes, SessionInputs, LatencyLimits, FleetLoad):
    """Requests or sessions, limits, and the load of a fleet, which all pairs share."""

    prefix_cache: str = text(
        "", "capacity of the prefix cache of one replica by tier, such as host=1TB,ssd=4TB; running sequences have HBM first",
        group=REQUESTS_GROUP, metavar="TIERS", default_words="free HBM, host memory and disks of each system",
    )  # fmt: skip
    chips: Any = text(
        None, "chips of each system; any: try 1, 2, 4, ... up to 64 or one scale-up domain, and keep the cheapest",
        group=DEPLOYMENT_GROUP, metavar="N", bare=True, default_words="the usual number of each system, as in plan",
    )  # fmt: skip

    def chip_count(self) -> int | str | None:
        """Return the number of chips.

        Returns:
            A number, ANY, or None for the usual number of each system.

        Raises:
            RangeError: It is neither.
        """
        words = None if self.chips is None else str(self.chips).strip()
        if words is None or words == ANY:
            return words
        if not (words.isascii() and words.isdecimal()):
            raise RangeError(f"chips: {short_repr(words)} is not a number; give one, or {ANY}")
        return int(words)

    def load(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `compare` for the requests or sessions, their limits and the fleet.

        Args:
            values: Values by input name, as the user gives them.

        Returns:
            Arguments by name.

        Raises:
            RangeError: Inputs contradict each other.
        """
        inputs = replace(self.with_trace(), **self.session_figures(values))
        sessions = None
        if inputs.sessions is not None:
            for name, why in (("trace", "have their own prompts"), ("cached", "give the cached share as a result")):
                if values.get(name):
                    raise RangeError(f"{name}: sessions {why}, got both; leave one out")
            sessions = inputs.drawn_sessions(inputs.input, inputs.output, inputs.spread, inputs.output_spread)
        elif inputs.prefix_cache:
            raise RangeError("prefix_cache: holds the histories of sessions, got none; give sessions too (--sessions)")
        return {
            "workload": inputs.workload(), "slo": inputs.slo(), "percentile": inputs.percentile, "sessions": sessions,
            "prefix_cache": partial(_capacities, inputs.prefix_cache) if inputs.prefix_cache else None, "rate": inputs.rate,
            "tokens_per_day": inputs.tokens_per_day, "spare": inputs.spare, "chips": inputs.chip_count(),
        }  # fmt: skip


def _capacities(words: str, system: System) -> dict[str, float]:
    return read_tier_capacities(words, system)


@dataclass(frozen=True, kw_only=True)
class CompareInputs(ComparedLoad):
    """Inputs of `compare`: models, systems, requests, limits and deployment."""

    models: Any = declare(TEXTS, MISSING, "models to compare: names of the catalogue")
    systems: Any = declare(
        TEXTS, (), "systems to compare: names of the catalogue", default_words="all systems, which takes long"
    )


def several_names(names: str | Sequence[str]) -> list[str]:
    """Return names from a list, or from a text with commas.

    Args:
        names: Names.

    Returns:
        Each name.

    >>> several_names("hgx-h100, hgx-b200"), several_names(["hgx-h100"])
    (['hgx-h100', 'hgx-b200'], ['hgx-h100'])
    """
    words = [names] if isinstance(names, str) else list(names)
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def solve(values: Mapping[str, Any], *, has_flips: bool = True) -> Ranking:
    """Return the ranking of models and systems.

    Args:
        values: Values of the inputs by name.
        has_flips: Whether to find what would reverse the order.

    Returns:
        The ranking.
    """
    sizes = inputs_from(CompareInputs)
    load = bind(CompareInputs, {name: value for name, value in values.items() if name in sizes}, "compare")
    return compare(
        several_names(load.models), several_names(load.systems) or None, engine=values.get("engine"),
        modes=read_modes(values.get("mode") or "any"), rent=values.get("rent"), sure=values.get("sure"),
        evidence=values.get("evidence") or PLAN.inputs["evidence"].default, has_flips=has_flips,
        **load.load(values),
    )  # fmt: skip


# Answers about the cheapest pair: name, meaning, unit and field of its standing.
FIRST: Final = (
    ("model", "model of the cheapest pair", ""),
    ("system", "system of the cheapest pair", ""),
    ("chips", "chips of its plan", ""),
    ("layout_text", "layout of its plan", ""),
    ("evidence", "evidence for its layout: measured, published elsewhere, or any", ""),
    (COST, "rent of all its chips per million output tokens at full load, prefill included", "USD"),
    (MONTH_COST, "rent of all hosts of its fleet for a month, with a rate", "USD"),
    (AT_RATE, "rent of all hosts of its fleet per million output tokens at the rate", "USD"),
    ("replicas", "replicas of its fleet, without spares; 0 without a rate", ""),
    ("hosts", "hosts of its fleet, spares included", ""),
    ("fleet_chips", "chips of these hosts", ""),
    ("utilisation", "rate over the requests that its replicas can serve", ""),
    ("ttft", "its time to first token, at the percentile of the limits", "s"),
    ("tokens_per_second_per_user", "its output speed for each user", "tok/s"),
    ("tokens_per_second_per_chip", "its output throughput per chip", "tok/s"),
    ("hit_share", "share of prompt tokens that its prefix cache has, with sessions", ""),
)
TEXT_ANSWERS: Final = ("model", "system", "layout_text", "evidence", "second_system", "reason")
BANDS: Final = {name: (f"{name}_low", f"{name}_high") for name in (COST, MONTH_COST)}


def _first(name: str, ranking: Ranking) -> Any:
    return None if ranking.first is None else getattr(ranking.first, name)


def _end(name: str, side: int, ranking: Ranking) -> float:
    ends = _first(f"{name}_range" if name == MONTH_COST else "cost_range", ranking)
    return math.nan if ends is None else float(ends[side])


def _ratio(ranking: Ranking) -> float:
    first, second = ranking.first, ranking.second
    return math.nan if first is None or second is None else second.cost / first.cost


def _second(ranking: Ranking) -> str | None:
    return None if ranking.second is None else ranking.second.system


def _reason(ranking: Ranking) -> str:
    return "" if any(row.feasible for row in ranking.standings) else ranking.text


def _feasible_pairs(ranking: Ranking) -> int:
    return sum(row.feasible for row in ranking.standings)


def _answers() -> dict[str, Answer]:
    answers = {
        name: Answer(meaning=meaning, unit=symbol, text=name in TEXT_ANSWERS, source=partial(_first, name))
        for name, meaning, symbol in FIRST
    }
    for name, ends in BANDS.items():
        for side, word in enumerate(("lower", "upper")):
            answers[ends[side]] = Answer(
                meaning=f"{word} end of the 90 % range of {name}", unit="USD", source=partial(_end, name, side)
            )
    return answers | {
        "second_system": Answer(meaning="system of the pair after the cheapest", text=True, source=_second),
        "second_over_first": Answer(meaning="its cost over that of the cheapest", source=_ratio),
        "feasible_pairs": Answer(meaning="pairs with a plan within the limits", source=_feasible_pairs),
        "reason": Answer(meaning="why no pair has a plan", text=True, source=_reason),
    }


def ask(values: Mapping[str, Any], answer_names: frozenset[str]) -> dict[str, Any]:
    """Return the answers about the cheapest pair, without what would reverse the order.

    Args:
        values: Values of the inputs by name.
        answer_names: Names of the answers; empty for all.

    Returns:
        Answers by name, in base units.
    """
    return read_answers(COMPARE.answers, solve(values, has_flips=False), answer_names)


COMPARE: Final = Question(
    name="compare",
    meaning="models and systems side by side: the cheapest plan of each pair, ties, and changes that would reverse the order",
    ask=ask,
    inputs={
        **inputs_from(CompareInputs),
        **{name: PLAN.inputs[name] for name in ("evidence", "sure", "mode", "engine", "rent")},
    },
    solve=solve,
    answers=_answers(),
    shows=("system", COST, *BANDS[COST], MONTH_COST, "replicas", "second_system", "second_over_first", "reason"),
    shows_with=dict.fromkeys(
        FLEET_LOADS, ("system", AT_RATE, MONTH_COST, "replicas", "second_system", "second_over_first", "reason")
    ),
    bands=BANDS,
    seconds=1.0,
    limits=tuple(inputs_from(LatencyLimits)),
)
