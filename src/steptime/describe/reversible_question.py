"""The question `reversible`: the KV cache as a trade of memory for arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from steptime.describe.kv_tradeoff import CacheTrade, cache_trade
from steptime.models.model_loading import load_model, resolve_model
from steptime.questions.declaration import Reader, bind_declared, count, question_of_result, read_answers, text
from steptime.questions.subject import read_machine


@dataclass(frozen=True, kw_only=True)
class CacheTradeInputs:
    """The cache of one sequence of a model, in the memory tiers of a machine."""

    model: Any = text(MISSING, "catalogue name, Hugging Face id, or path to a config.json", positional=True)
    system: Any = text(MISSING, "catalogue name, or path to a TOML file", positional=True)
    context: Any = count(8192, "tokens of context", unit="tokens")


def solve(values: Mapping[str, Any]) -> CacheTrade:
    """Return the size of a KV cache and the FLOP that it saves.

    Args:
        values: Values of `CacheTradeInputs` by name, and figures of the machine by path.

    Returns:
        Cache trade of one model at one context.
    """
    inputs = bind_declared(CacheTradeInputs, values, "reversible")
    model = load_model(inputs.model) if isinstance(inputs.model, str) else resolve_model(inputs.model)
    return cache_trade([model], read_machine(values), (inputs.context,))


def _of_cache(name: str) -> Any:
    return lambda trade: getattr(trade.caches[0], name)


READS: Final[Mapping[str, Reader]] = {
    "cache_bytes": Reader(meaning="KV cache and state of one sequence", unit="B", value=_of_cache("held_bytes")),
    "flop_saved": Reader(meaning="FLOP of one prefill, which the cache saves", unit="FLOP", value=_of_cache("flop_saved")),
    "flop_per_byte": Reader(meaning="FLOP saved per cached byte", value=_of_cache("flop_per_byte")),
    "recompute_seconds": Reader(
        meaning="time to recompute the cache at the peak rate of a chip", unit="s", value=_of_cache("recompute_seconds")
    ),
}
REVERSIBLE = question_of_result(
    "reversible",
    "the KV cache as a trade of memory for arithmetic",
    form=CacheTradeInputs,
    solve=solve,
    reads=READS,
    shows=tuple(READS),
    figures=True,
    seconds=0.02,
)


def summary(trade: CacheTrade) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        trade: Result of `solve`.

    Returns:
        Answers by name.
    """
    return read_answers(READS, trade)
