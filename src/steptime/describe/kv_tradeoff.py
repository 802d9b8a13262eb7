"""The KV cache as a trade of memory for arithmetic, by context and memory tier: the question `reversible`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import RangeError
from steptime.hardware.number_formats import peak_rate
from steptime.hardware.system import MemoryTier, System
from steptime.models.model import Model, cache_bytes, decode_flops_per_token, pairs, prefill_flops
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import whole_number
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import engine_for
from steptime.questions.declaration import Answer, bind, count, inputs_from, question_of_result, text
from steptime.questions.subject import read_machine
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.reversible.memory_tradeoff import break_even_seconds, exchange_rate
from steptime.units import show


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTier:
    """The KV cache of one context in one memory tier."""

    name: str = field(metadata=unit("", "name of the tier, such as hbm or host"))
    capacity: float = field(metadata=unit("B", "share of one chip"))
    read_seconds: float = field(
        metadata=unit("s", "time to read the cache back to the chip; 0 in the chip's own memory", key="read_s")
    )
    break_even_seconds: float = field(
        metadata=unit(
            "s",
            "storage time that costs as much as recomputing, if the whole tier costs as much as the chip's rent; 0: reading "
            "back takes longer than recomputing",
            key="break_even_s",
        )
    )
    drain_seconds: float = field(
        metadata=unit("s", "capacity over bandwidth: the storage time that suits the tier", key="drain_s")
    )
    contexts: float = field(metadata=unit("", "caches of this length that fit, without weights"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldContext:
    """The KV cache of one model at one context: its size and the FLOP it saves."""

    model: str = field(metadata=unit("", "name of the model"))
    context: int = field(metadata=unit("tokens", "tokens in the cache"))
    held_bytes: float = field(metadata=unit("B", "KV cache and state of one sequence"))
    flop_saved: float = field(metadata=unit("FLOP", "FLOP to recompute the cache: one prefill", key="flop_saved"))
    flop_per_byte: float = field(metadata=unit("FLOP/B", "exchange rate: FLOP that a cached byte saves", key="flop_per_byte"))
    of_decode: float = field(metadata=unit("", "FLOP of a token without a cache over FLOP with it"))
    recompute_seconds: float = field(
        metadata=unit("s", "time to recompute the cache at the peak rates of one chip", key="recompute_s")
    )
    tiers: tuple[HeldTier, ...] = field(metadata=unit("", "memory tiers, fastest first"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CacheTrade(Tabular):
    """KV caches as memory for arithmetic (`steptime reversible cache`)."""

    SCHEMA: ClassVar[str] = "steptime.cache-trade/2"

    system: str = field(metadata=unit("", "name of the system"))
    caches: tuple[HeldContext, ...] = field(metadata=unit("", "one entry per model and context"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the exchange rates of the first five models and contexts.

        Returns:
            Title, and figures by name.
        """
        return f"KV cache against arithmetic on {self.system}", {
            f"{cache.model} at {cache.context:,}": f"{show(cache.flop_per_byte, 'FLOP/B')}, as expensive as recomputing after "
            f"{show(cache.tiers[0].break_even_seconds, 's')} in {cache.tiers[0].name}"
            for cache in self.caches[:5]
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per model, context and tier.

        Returns:
            Columns by name, each with one value per row.
        """
        rows = [(cache, tier) for cache in self.caches for tier in cache.tiers]
        columns = columns_by_key(HeldContext, [cache for cache, _ in rows])
        tier_columns = columns_by_key(HeldTier, [tier for _, tier in rows])
        cache_names = ("model", "context_tokens", "held_bytes", "flop_saved", "flop_per_byte", "recompute_s")
        tier_names = ("read_s", "break_even_s", "drain_s", "contexts")
        return {
            **{name: columns[name] for name in cache_names},
            "tier": tier_columns["name"],
            **{name: tier_columns[name] for name in tier_names},
        }


def cache_trade(models: Iterable[ModelLike], system: SystemLike, contexts: Sequence[int] = (8192, 131_072)) -> CacheTrade:
    """Return the size and the saved FLOP of KV caches, by context and memory tier.

    The chip runs at its peak rates without losses, so both sides of the trade are bounds. The cache has the format of the
    system's usual engine.

    Args:
        models: Models, or names of the catalogue.
        system: System, or name of the catalogue.
        contexts: Tokens in each cache.

    Returns:
        One entry per model and context, with one row per tier.

    Raises:
        RangeError: A model has no such context, or no model or context is given.
    """
    machine = resolve_system(system)
    served = [as_served(resolve_model(model), machine, engine_for(machine)) for model in models]
    # One entry per pair, so that the table compares models at the same context.
    caches = tuple(_held_context(model, machine, context) for model in served for context in contexts)
    if not caches:
        raise RangeError("a cache trade needs at least one model and one context")
    return CacheTrade(system=machine.name, caches=caches)


def _held_context(model: Model, system: System, context: int) -> HeldContext:
    context = whole_number("the context", context, unit="token")
    # A context beyond the model's limit has no meaning for its cache.
    if context > model.max_context:
        raise RangeError(f"{model.name} has a context of at most {model.max_context:,.0f} tokens, not {context:,}")
    held_bytes, flops = float(cache_bytes(model, context)), float(prefill_flops(model, context))
    # The FLOP over this time are the rate of the trade, because formats have different peaks.
    recompute_time = recompute_seconds(model, system, context)
    rate = float(exchange_rate(flops, held_bytes))
    # The rate includes the mix of number formats, so both sides of the trade use the same seconds.
    own_memory = _tier(system.chip.hbm, held_bytes, rate, flops / recompute_time, is_own=True)
    return HeldContext(
        model=model.name, context=context, held_bytes=held_bytes, flop_saved=flops, flop_per_byte=rate,
        recompute_seconds=recompute_time, of_decode=flops / float(decode_flops_per_token(model, context)),
        tiers=(own_memory, *(_tier(tier, held_bytes, rate, flops / recompute_time) for tier in system.tiers)),
    )  # fmt: skip


def _tier(tier: MemoryTier, held_bytes: float, exchange: float, rate: float, *, is_own: bool = False) -> HeldTier:
    """Return a cache in one tier; decode reads the chip's own memory anyway."""
    capacity, bandwidth = float(tier.capacity), float(tier.bandwidth)
    return HeldTier(
        name=tier.name, capacity=capacity, read_seconds=0.0 if is_own else float(tier.latency) + held_bytes / bandwidth,
        break_even_seconds=float(break_even_seconds(exchange, capacity, rate, math.inf if is_own else bandwidth)),
        drain_seconds=capacity / bandwidth, contexts=capacity / held_bytes,
    )  # fmt: skip


def recompute_seconds(model: Model, system: System, context: int) -> float:
    """Return the time to recompute a cache at the peak rates of one chip.

    It counts all products of a prefill, each at the peak rate of its arithmetic.

    Args:
        model: The model.
        system: System of the chip.
        context: Tokens in the cache.

    Returns:
        Seconds.
    """
    peak, seconds = system.chip.peak, 0.0
    # The stem is outside the layers: it counts once.
    for op, copies in [(op, n) for layer, n in model.layers for op in layer.ops] + [(op, 1) for op in model.stem]:
        if op.rows in ("tokens", "routed", "outputs"):
            tokens = 1 if op.rows == "outputs" else context
            seconds += copies * tokens * op.flops_per_row * op.active / peak_rate(peak, op.format.arithmetic)
    # Attention has no weights: it computes per pair of tokens.
    for a, copies in [(a, n) for layer, n in model.layers for a in layer.attention]:
        flops = a.flops_per_pair_prefill * pairs(a, context, 0) + a.state_flops_per_token * context
        seconds += copies * float(flops) / peak_rate(peak, a.arithmetic)
    return float(seconds)


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
    inputs = bind(CacheTradeInputs, values, "reversible")
    return cache_trade([resolve_model(inputs.model)], read_machine(values), (inputs.context,))


REVERSIBLE = question_of_result(
    "reversible",
    "the KV cache as a trade of memory for arithmetic",
    inputs=inputs_from(CacheTradeInputs),
    solve=solve,
    answers={
        "cache_bytes": Answer(meaning="KV cache and state of one sequence", unit="B", source="caches.0.held_bytes"),
        "flop_saved": Answer(meaning="FLOP of one prefill, which the cache saves", unit="FLOP", source="caches.0.flop_saved"),
        "flop_per_byte": Answer(meaning="FLOP saved per cached byte", source="caches.0.flop_per_byte"),
        "recompute_seconds": Answer(
            meaning="time to recompute the cache at the peak rate of a chip", unit="s", source="caches.0.recompute_seconds"
        ),
    },
    figures=True,
    seconds=0.02,
)
