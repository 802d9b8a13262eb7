"""The result of `context`: the longest context of a model by KV cache technique."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.hardware.unit_cost import usd
from steptime.number_checks import Array
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import MILLION, show

# Longest context of the search [tokens].
LONGEST: Final = 2**29


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWall:
    """Cost and longest context of a model with one KV cache technique."""

    technique: str = field(metadata=unit("", "technique as the user wrote it; empty: the unchanged model"))
    words: str = field(metadata=unit("", "technique in words"))
    parameters: float = field(metadata=unit("", "parameters of the model with the technique"))
    kv_bytes: float = field(
        metadata=unit("B", "KV cache per additional token, before any window is full", key="kv_bytes_per_token")
    )
    cache: float = field(metadata=unit("B", "KV cache of one sequence at the compared length", key="cache_bytes"))
    read_bytes: float = field(metadata=unit("B", "part of that cache that one step reads", key="read_bytes"))
    batch: int = field(default=0, metadata=unit("", "decode batch of a replica at that length; 0: no layout meets the limit"))
    layout: str = field(default="", metadata=unit("", "layout of the replica"))
    chips: int = field(default=0, metadata=unit("", "chips of the replica"))
    step: float = field(default=math.nan, metadata=unit("s", "time of a step at that length"))
    step_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range of the step"))
    usd_per_million: float = field(
        default=math.nan,
        metadata=unit("USD", "cost of decode per million output tokens at that length", key="usd_per_million_output_tokens"),
    )
    longest: float = field(
        metadata=unit("tokens", "longest context within the time per token; null: any length, because the cache does not grow")
    )
    longest_range: tuple[float, float] | None = field(
        default=None, metadata=unit("tokens", "90 % range, from the range of the step")
    )
    longest_priced: float = field(
        metadata=unit("tokens", "longest context within time and price; null: any length, or no known rent")
    )
    binds: str = field(default="", metadata=unit("", "limit of the longest context: time or memory"))
    caveats: tuple[str, ...] = field(default=(), metadata=unit("", "drawbacks of the technique, with their sources"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ContextWalls(Tabular):
    """Longest contexts of a model by KV cache technique, the unchanged model first."""

    SCHEMA: ClassVar[str] = "steptime.context_walls/2"

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    kv_format: str = field(metadata=unit("", "number format of the KV cache of the unchanged model"))
    chips: int = field(metadata=unit("", "chips that one replica may take"))
    context: int = field(metadata=unit("tokens", "length at which techniques are compared"))
    tpot: float = field(metadata=unit("s", "limit on the time per token"))
    usd_per_million: float = field(metadata=unit("USD", "limit on the price of output", key="usd_per_million_output_tokens"))
    priced: bool = field(
        metadata=unit("", "whether the user gave that limit; else it is the cost of the unchanged model at the compared length")
    )
    max_context: float = field(
        metadata=unit("tokens", "maximum context of the model; null: not stated", key="max_context_tokens")
    )
    reason: str = field(default="", metadata=unit("", "why the unchanged model reaches no length; empty: it reaches one"))
    walls: tuple[ContextWall, ...] = field(metadata=unit("", "one entry per technique, the unchanged model first"))
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "usual techniques that the model cannot have, and why"))
    curves: tuple[tuple[Array, Array], ...] = field(
        default=(), metadata=unit("", "lengths [tokens] and costs [USD per million tokens] of each technique", left_out=True)
    )

    @property
    def base(self) -> ContextWall:
        """The unchanged model."""
        return self.walls[0]

    @property
    def text(self) -> str:
        """The answer in a sentence or two."""
        base, longer = self.base, max(self.walls, key=lambda wall: (wall.longest_priced, wall.longest))
        speed = f"{1 / self.tpot:,.3g} tok/s"
        first = f"At {speed} {self.model} on {self.system} reaches {tokens(base.longest)} of context"
        first += (
            f" (90 % range {tokens(base.longest_range[0])} to {tokens(base.longest_range[1])})" if base.longest_range else ""
        )
        if not base.longest:
            return f"{self.model} on {self.system} reaches no context at {speed}: {self.reason}."

        # A range narrower than 1 % comes from memory, which has no uncertainty.
        if base.longest_range and base.longest_range[1] < 1.01 * base.longest_range[0]:
            first = f"At {speed} {self.model} on {self.system} reaches {tokens(base.longest)} of context, limited by memory"
        if math.isfinite(self.usd_per_million) and self.priced:
            first += f", and {tokens(base.longest_priced)} for {usd(self.usd_per_million)} per million output tokens"
        first += "."
        if longer is base or not longer.longest_priced > 1.01 * base.longest_priced:
            return first
        money = f" at {usd(self.usd_per_million)} per million output tokens" if math.isfinite(self.usd_per_million) else ""
        ends = (
            "any length, because its cache does not grow"
            if math.isinf(longer.longest_priced)
            else tokens(longer.longest_priced)
        )
        return f"{first} The technique with the longest context{money} is {longer.technique}: {ends}."

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the longest context of each technique.

        Returns:
            The title, and lengths in words by technique.
        """
        title = f"Longest contexts of {self.model} on {self.system}, {show(self.tpot, 's')} a token"
        return title, {wall.technique or "unchanged": tokens(wall.longest) for wall in self.walls}

    def columns(self) -> dict[str, Any]:
        """Return one row per technique; ranges as two columns.

        Returns:
            Columns by name, one value per technique.
        """
        table = {
            name: values
            for name, values in columns_by_key(ContextWall, self.walls).items()
            if not name.endswith(("_range_s", "_range_tokens", "_range")) and name != "caveats"
        }
        for name, key in (("step_range", "step_{}_s"), ("longest_range", "longest_{}_tokens")):
            for side, end in enumerate(("low", "high")):
                pairs = [getattr(wall, name) for wall in self.walls]
                table[key.format(end)] = [math.nan if pair is None else pair[side] for pair in pairs]
        return table


def tokens(value: float) -> str:
    """Write a length of context in words.

    Args:
        value: Tokens; 0 for no length, infinite for any.

    Returns:
        A text with three digits.

    >>> tokens(131072), tokens(2_345_678), tokens(math.inf), tokens(LONGEST), tokens(0)
    ('131,000 tokens', '2.35 M tokens', 'any length', 'over 536 M tokens', 'no length')
    """
    if not value:
        return "no length"
    if math.isinf(value):
        return "any length"
    if value >= LONGEST:
        return f"over {LONGEST // MILLION:,.0f} M tokens"
    rounded = float(f"{value:.3g}")
    return f"{rounded / MILLION:,.4g} M tokens" if rounded >= MILLION else f"{rounded:,.0f} tokens"
