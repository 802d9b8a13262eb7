"""The question `context`: the longest context within a speed and a price, by KV cache technique."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptime.errors import InputError
from steptime.number_checks import MOST_CHIPS
from steptime.questions.declaration import (
    Reader,
    bind_declared,
    count,
    number,
    question_of_result,
    read_answers,
    texts,
)
from steptime.questions.subject import PricedSubject, read_subject
from steptime.sweeps.context_limit import LEAST, context_walls
from steptime.sweeps.context_limit_result import LONGEST, ContextWalls

CACHE_GROUP, LIMITS_GROUP = "Cache", "Limits"


@dataclass(frozen=True, kw_only=True)
class ContextInputs(PricedSubject):
    """Inputs of `context`: model, machine, techniques and limits."""

    technique: Any = texts(
        "KV cache technique. Formats: kv=int4. Tokens: window=4096, keep=8192 (drops the others). Layers that share a cache: "
        "share=2. Smaller entries: kv_heads=1, latent=512 (MLA), rank=0.5 (share of the rank). Tokens read: topk=2048, "
        "blocks=128x16 (16 blocks of 128 tokens). @5of6 applies a technique to 5 of 6 layers, @full or @local to layers of "
        "that kind. + combines techniques: window=1024@5of6+kv=int8. Repeatable",
        default_words="the usual ones that the model can have",
        group=CACHE_GROUP,
        metavar="CHANGE",
    )
    context: Any = count(
        131_072, "context at which techniques are compared, in tokens (k is 1,000)", unit="tokens", minimum=LEAST,
        maximum=LONGEST, group=CACHE_GROUP,
    )  # fmt: skip
    speed: Any = number(20.0, "minimum output speed for each user in tok/s", unit="tok/s", minimum=1e-6, group=LIMITS_GROUP)
    usd: Any = number(
        None, "maximum USD per million output tokens, decode only", unit="USD", minimum=1e-12,
        group=LIMITS_GROUP, default_words="what the unchanged model costs at --context",
    )  # fmt: skip
    chips: Any = count(
        None, "maximum chips per replica", maximum=MOST_CHIPS, group=LIMITS_GROUP,
        default_words="a scale-up domain, at most 128",
    )  # fmt: skip


def solve(values: Mapping[str, Any]) -> ContextWalls:
    """Return the longest context of a model by technique.

    Args:
        values: Values of `ContextInputs` by name, and figures of the machine by path.

    Returns:
        One wall per technique.
    """
    inputs = bind_declared(ContextInputs, values, "context")
    if not all(words.strip() for words in inputs.technique):
        raise InputError("technique: is empty; the unchanged model comes first in any case")
    model, system, engine = read_subject(values)
    return context_walls(
        model, system, techniques=inputs.technique or None, context=inputs.context, tpot=1 / inputs.speed,
        usd_per_million=inputs.usd, chips=inputs.chips or 0, engine=engine,
    )  # fmt: skip


READS: Final[Mapping[str, Reader]] = {
    "longest_context": Reader(
        meaning="longest context of the unchanged model", unit="tokens", value=lambda walls: walls.walls[0].longest
    ),
    "longest_context_in_price": Reader(
        meaning="longest context of the unchanged model within the price",
        unit="tokens",
        value=lambda walls: walls.walls[0].longest_priced,
    ),
    "cache_bytes": Reader(
        meaning="cache of one sequence at the compared length", unit="B", value=lambda walls: walls.walls[0].cache
    ),
    "batch": Reader(
        meaning="decode batch of a replica at the compared length", unit="sequences", value=lambda walls: walls.walls[0].batch
    ),
    "step_time": Reader(meaning="time of a step at the compared length", unit="s", value=lambda walls: walls.walls[0].step),
    "reason": Reader(meaning="why no length is reached", value=lambda walls: walls.reason, text=True),
}
CONTEXT = question_of_result(
    "context",
    "the longest context within a speed and a price",
    form=ContextInputs,
    solve=solve,
    reads=READS,
    shows=("longest_context", "longest_context_in_price", "batch", "step_time", "reason"),
    figures=True,
    seconds=1.0,
)


def summary(walls: ContextWalls) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        walls: Result of `solve`.

    Returns:
        Answers by name, in base units.
    """
    return read_answers(READS, walls)
