"""What `contexts` answers with: how long a context may be, by how the cache is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.hardware.unit_cost import usd
from steptime.number_checks import Array
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import MILLION, show

LONGEST: Final = 2**29  # tokens, up to which lengths are tried: more than half a year of reading aloud


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWall:
    """What a technique does at one length of context, and how long a context it allows."""

    technique: str = field(metadata=unit("", "as asked; empty: the model as it is"))
    words: str = field(metadata=unit("", "what it does"))
    parameters: float = field(metadata=unit("", "of the model with it"))
    kv_bytes: float = field(
        metadata=unit("B", "of the cache for one more token, while no window is full", key="kv_bytes_per_token")
    )
    cache: float = field(metadata=unit("B", "of one sequence of the length asked", key="cache_bytes"))
    read_bytes: float = field(metadata=unit("B", "of it that one step reads", key="read_bytes"))
    batch: int = field(default=0, metadata=unit("", "sequences in flight in a replica at that length; 0: none meets the limit"))
    layout: str = field(default="", metadata=unit("", "of the replica"))
    chips: int = field(default=0, metadata=unit("", "of the replica"))
    step: float = field(default=math.nan, metadata=unit("s", "time of a step at that length"))
    step_range: tuple[float, float] | None = field(default=None, metadata=unit("s", "90 % range"))
    usd_per_million: float = field(
        default=math.nan,
        metadata=unit("USD", "decode of a million output tokens at that length", key="usd_per_million_output_tokens"),
    )
    longest: float = field(
        metadata=unit("tokens", "longest context within the time per token; null: any, as the cache does not grow")
    )
    longest_range: tuple[float, float] | None = field(default=None, metadata=unit("tokens", "90 % range, by that of the step"))
    longest_priced: float = field(metadata=unit("tokens", "longest within the price too; null: any, or no rent is known"))
    binds: str = field(default="", metadata=unit("", "what ends it: time or memory"))
    caveats: tuple[str, ...] = field(default=(), metadata=unit("", "what it costs beside, and where that is told"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ContextWalls(Tabular):
    """How long a context may be by technique, the model as it is first."""

    SCHEMA: ClassVar[str] = "steptime.context_walls/1"

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine"))
    kv_format: str = field(metadata=unit("", "of the cache of the model as it is"))
    chips: int = field(metadata=unit("", "that one replica may take"))
    context: int = field(metadata=unit("tokens", "length at which techniques are held against one another"))
    tpot: float = field(metadata=unit("s", "limit on the time per token"))
    usd_per_million: float = field(metadata=unit("USD", "limit on the price of output", key="usd_per_million_output_tokens"))
    priced: bool = field(
        metadata=unit("", "whether that was asked for; else it is the cost of the model as it is at that length")
    )
    max_context: float = field(
        metadata=unit("tokens", "for which the model is made; null: no limit stated", key="max_context_tokens")
    )
    reason: str = field(default="", metadata=unit("", "why the model as it is reaches no length; empty: it does"))
    walls: tuple[ContextWall, ...] = field(metadata=unit("", "one for each technique, the model as it is first"))
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "usual techniques that the model cannot have, and why"))
    curves: tuple[tuple[Array, Array], ...] = field(
        default=(), metadata=unit("", "lengths [tokens] and costs [USD per million] of each technique", left_out=True)
    )

    @property
    def base(self) -> ContextWall:
        """The model as it is."""
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
            return f"{self.model} on {self.system} reaches no length of context at {speed}: {self.reason}."
        if base.longest_range and base.longest_range[1] < 1.01 * base.longest_range[0]:
            first = f"At {speed} {self.model} on {self.system} reaches {tokens(base.longest)} of context, where memory ends it"
        if math.isfinite(self.usd_per_million) and self.priced:
            first += f", and {tokens(base.longest_priced)} for {usd(self.usd_per_million)} per million output tokens"
        first += "."
        if longer is base or not longer.longest_priced > 1.01 * base.longest_priced:
            return first
        money = f" at {usd(self.usd_per_million)} per million output tokens" if math.isfinite(self.usd_per_million) else ""
        ends = "any length, as its cache does not grow" if math.isinf(longer.longest_priced) else tokens(longer.longest_priced)
        return f"{first} Of the techniques {longer.technique} goes farthest{money}: {ends}."

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the longest context of each technique."""
        title = f"Longest contexts of {self.model} on {self.system}, {show(self.tpot, 's')} a token"
        return title, {wall.technique or "as it is": tokens(wall.longest) for wall in self.walls}

    def columns(self) -> dict[str, Any]:
        """Return a row for each technique; ranges by their two ends."""
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
    """Write a length of context.

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
