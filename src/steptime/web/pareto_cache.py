"""Speed against cost of a decoded token, full model and blackboard, with a cache."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steptime.blackboard.critical_batch import optimal_batch
from steptime.blackboard.decode_latency import step_seconds
from steptime.blackboard.token_cost import cost_per_token
from steptime.lecture.model_on_system import Pair, build_pair
from steptime.lecture.pair_roofline import SPEEDS, Front, full_model_front
from steptime.pareto import pareto
from steptime.units import HOUR, MILLION
from steptime.web.board_inputs import Shared, bar_inputs
from steptime.web.page_subject import load_subject

# Curves kept in memory.
MAX_CURVES: Final = 256


@dataclass(frozen=True)
class Curves:
    """Both curves at one context; costs are in `unit` per million tokens.

    full: points of the full model. pareto_indices: indices of its Pareto front, fastest first. max_batch: cheapest
    batch of the closed form, which is B* or the largest batch that fits the memory. cost_per_chip_second: cost of a
    million tokens at one chip-second per token.
    """

    context: int
    pair: Pair
    full: Front
    pareto_indices: Any
    max_batch: float
    cost_per_chip_second: float
    unit: str

    def cost(self, place: Any) -> Any:
        """Return the cost of points of the full model.

        Args:
            place: Index or indices of points.

        Returns:
            Cost per million tokens, in `unit`.
        """
        return self.full.chip_seconds[place] * self.cost_per_chip_second

    def closed(self, batch: Any) -> tuple[Any, Any]:
        """Return speed and cost of the closed form.

        Args:
            batch: Sequences.

        Returns:
            Speed [tok/s] and cost per million tokens, with the shape of `batch`.
        """
        pair = self.pair
        seconds = step_seconds(
            batch, pair.context, active=pair.active, total=pair.total, weight_bytes=pair.bytes_of_weight,
            kv_bytes_per_token=pair.kv_bytes, mac_rate=pair.mac_rate, bandwidth=pair.bandwidth,
        )  # fmt: skip
        return 1 / seconds, cost_per_token(seconds, batch, pair.chips, self.cost_per_chip_second)

    def closed_at(self, speed: float) -> float | None:
        """Return the cost of the closed form at a speed.

        It uses the largest batch B' with B' N_act / F and t_w + u B' within 1 / speed.

        Args:
            speed: Speed of each user [tok/s].

        Returns:
            Cost per million tokens, in `unit`; None if the speed is out of reach.
        """
        pair, seconds = self.pair, 1 / speed
        # Seconds to read the cache of one sequence: each sequence of the batch adds them.
        kv_seconds = pair.context * pair.kv_bytes / pair.bandwidth
        memory_batch = (seconds - pair.floor) / kv_seconds if kv_seconds else math.inf
        batch = (
            min(seconds * pair.mac_rate / pair.active, memory_batch, max(self.max_batch, 1.0)) if seconds > pair.floor else 0.0
        )
        return float(self.closed(batch)[1]) if batch >= 1 else None

    def labels(self) -> dict[int, str]:
        """Return the named points of the full model: the cheapest, and faster ones.

        Returns:
            Names by index of the point.
        """
        base = self.full.cheapest()
        labels: dict[int, str] = {}
        for times in (1.0, *SPEEDS) if base >= 0 else ():
            place = self.full.cheapest(times / self.full.seconds[base])
            name = "cheapest" if times == 1 else f"{times:g}x"
            if place >= 0:
                labels[place] = f"{labels[place]}, {name}" if place in labels else name
        return labels


_cache: OrderedDict[tuple[Shared, int], Curves] = OrderedDict()


def cached_curves(inputs: Shared, context: int, *, rough: bool = False) -> Curves:
    """Return the curves of the bar's subject at a context.

    Args:
        inputs: Inputs of a board.
        context: Tokens of each sequence.
        rough: Whether the curves of the last context are enough, if there are any.

    Returns:
        The curves.
    """
    shared = bar_inputs(inputs)
    key = shared, context
    if rough and key not in _cache:
        last = next((curves for (cached_inputs, _), curves in reversed(list(_cache.items())) if cached_inputs == shared), None)
        if last is not None:
            return last
    _cache[key] = curves = _cache.get(key) or _compute_curves(shared, context)
    _cache.move_to_end(key)
    if len(_cache) > MAX_CURVES:
        _cache.popitem(last=False)
    return curves


def _compute_curves(shared: Shared, context: int) -> Curves:
    subject = load_subject(shared)
    pair = build_pair(subject.model, subject.system, context=context)
    full = full_model_front(subject.model, subject.system, subject.engine, pair)
    rent = float(np.asarray(subject.system.rent.typical))
    # Sequences whose caches fit the memory next to the weights.
    room = (pair.capacity - pair.bytes_of_weight * pair.total) / max(pair.kv_bytes * context, 1e-9)
    best = float(optimal_batch(pair.balance, pair.sparsity, context, pair.knee))
    # Without a known rent, cost is in chip-hours.
    has_rent = math.isfinite(rent)
    return Curves(
        context=context, pair=pair, full=full, pareto_indices=pareto(1 / full.seconds, -full.chip_seconds),
        max_batch=min(best, room),
        cost_per_chip_second=rent * MILLION if has_rent else MILLION / HOUR, unit="USD" if has_rent else "chip-h",
    )  # fmt: skip
