r"""The end of a run whose requests are all there at its start: the last ones run beside ever fewer others.

While requests wait for seats a replica delivers what a steady state does. From then on, of the $B$ in flight $B\,S_e(x)$ are
left $x$ tokens later, where $S_e$ is the share of requests found under way that have more than $x$ tokens to go. Steps with
fewer sequences hardly take less time, so that a run of $n$ requests at $r$ a second takes

$$ T = n / r + \int_0^\infty t(B\,S_e(x))\,dx - t(B) \int_0^\infty S_e(x)\,dx $$

with $t$ the time of a step. Those with more than $x$ to go have made $\int_x^\infty S_e / S_e(x)$ tokens when the last
one starts, and $x$ more since. Outputs of DeepSeek-R1 have 3,700 tokens in the mean and 20,000 at most: eight B200 spend a
third of MLPerf's ten minutes on the last ones. The steady state itself has contexts of outputs that are all alike.

Source: renewal theory (residual life), $S_e(x) = \int_x^\infty S(u)\,du / m$ of lengths with survival $S$ and mean $m$; the
time of steps is `decode_step`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step

# of a curve of what is left
POINTS = 257
BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Outputs of `mean` tokens, drawn evenly from within a share `spread` of it.

    Where a `longest` one is told, they are exponential up to that length, where they are cut off.
    """

    mean: float
    spread: float = 0.0
    longest: float = 0.0

    @property
    def _is_cut(self) -> bool:
        return self.longest > self.mean * (1 + 1e-9)

    @cached_property
    def tokens(self) -> Array:
        """Numbers of tokens from none to the most, closer where most outputs end."""
        if not self._is_cut:
            return np.linspace(0.0, self.mean * (1 + self.spread), POINTS)
        shares = np.linspace(0.0, 1.0, POINTS) * -math.expm1(-self.longest / self._scale)
        ends = np.minimum(-self._scale * np.log1p(-np.minimum(shares, 1 - 1e-15)), self.longest)
        return np.unique(np.concatenate([ends, np.geomspace(self.mean / 2, self.longest, POINTS)]))

    @cached_property
    def survival(self) -> Array:
        """Share of outputs that have more than `tokens`.

        >>> Lengths(mean=100.0, spread=0.5).survival[[0, 64, 128, 192, 256]].tolist()
        [1.0, 1.0, 0.75, 0.375, 0.0]
        """
        if self._is_cut:
            longer: Array = np.where(self.tokens < self.longest, np.exp(-self.tokens / self._scale), 0.0)
            return longer
        if not self.spread:
            return np.ones(POINTS)
        return np.clip((self.mean * (1 + self.spread) - self.tokens) / (2 * self.mean * self.spread), 0.0, 1.0)

    @cached_property
    def residual_survival(self) -> Array:
        """Share of requests found under way that have more than `tokens` to go: $S_e$.

        >>> Lengths(mean=100.0).residual_survival[[0, 128, 256]].round(3).tolist()
        [1.0, 0.5, 0.0]
        >>> long = Lengths(mean=3700.0, longest=20_000.0)
        >>> round(float(integral(long.residual_survival, long.tokens)))
        3625
        """
        if self._is_cut:
            beyond = self._scale * (np.exp(-self.tokens / self._scale) - np.exp(-self.longest / self._scale))
        else:
            least, largest = self.mean * (1 - self.spread), self.mean * (1 + self.spread)
            cut = (largest - self.tokens) ** 2 / (2 * max(largest - least, 1e-9))
            beyond = np.where(self.tokens < least, self.mean - self.tokens, cut)
        share: Array = np.clip(beyond / self.mean, 0.0, 1.0)
        return share

    @cached_property
    def generated_tokens(self) -> Array:
        """Tokens that requests found under way, with more than `tokens` to go, have made when they are found.

        >>> Lengths(mean=100.0).generated_tokens[[0, 128]].round(2).tolist()
        [50.0, 25.0]
        """
        residual, parts = self.residual_survival, np.diff(self.tokens)
        pieces = (residual[1:] + residual[:-1]) / 2 * parts
        beyond = np.append(np.cumsum(pieces[::-1])[::-1], 0.0)
        generated: Array = np.where(residual > 0, beyond / np.where(residual > 0, residual, 1.0), 0.0)
        return generated

    @cached_property
    def _scale(self) -> float:
        """The scale of an exponential distribution that has this mean where it is cut off."""
        low, high = self.mean / 2, self.mean
        while -high * math.expm1(-self.longest / high) < self.mean:
            high *= 2
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if -middle * math.expm1(-self.longest / middle) < self.mean else (low, middle)
        return high


def integral(values: Array, points: Array) -> float:
    """Return the integral of straight lines between values."""
    return float(np.sum((values[1:] + values[:-1]) * np.diff(points)) / 2)


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A replica with `batch` sequences in flight, of prompts of `prompt` tokens and outputs of `lengths`."""

    model: Model
    system: System
    layout: Layout
    engine: Engine
    batch: float
    prompt: float
    lengths: Lengths

    def step(self, batch: Number, generated_tokens: Number) -> Array:
        """Return the seconds of a decode step of sequences that have made so many tokens in the mean."""
        single_replica = replace(self.layout, replicas=1)
        arguments: dict[str, Any] = {"layout": single_replica, "engine": self.engine, "context": self.prompt + generated_tokens}
        return np.asarray(decode_step(self.model, self.system, batch=batch, **arguments).total)

    @cached_property
    def steady(self) -> float:
        """Seconds of a step where all seats are taken, as a steady state has it: half of an output made."""
        return float(self.step(self.batch, self.lengths.mean / 2))

    def drained(self, batch: float, share: Array, generated_tokens: Array) -> float:
        """Return the seconds until all of `batch` are over.

        `share` of them have more than `lengths.tokens` to go, and had made so many when the last one started.
        """
        any_left = np.where(share >= 1, 1.0, -np.expm1(batch * np.log1p(-np.minimum(share, 1 - 1e-12))))
        tokens = self.lengths.tokens
        return integral(self.step(np.maximum(batch * share, 1.0), generated_tokens + tokens) * any_left, tokens)

    @cached_property
    def end(self) -> float:
        """Seconds by which a run is longer than a steady state would take for its requests."""
        lengths = self.lengths
        residual_tokens = integral(lengths.residual_survival, lengths.tokens)
        return max(
            0.0, self.drained(self.batch, lengths.residual_survival, lengths.generated_tokens) - self.steady * residual_tokens
        )

    def seconds(self, requests: float, rate: float) -> float:
        """Return the time of a run of `requests`, of which a steady state serves `rate` a second.

        No more than have a seat all start together: after their prompts, none has others behind it.
        """
        if requests > self.batch:
            return requests / rate + self.end
        decode = self.lengths.mean * self.steady / self.batch
        return requests * max(0.0, 1 / rate - decode) + self.drained(requests, self.lengths.survival, 0 * self.lengths.tokens)
