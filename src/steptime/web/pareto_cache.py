"""Speed against the cost of a decoded token, of the full model and of the blackboard, kept for each subject."""

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

MAX_CURVES: Final = 256


@dataclass(frozen=True)
class Curves:
    """Both curves at a context; costs in `unit` a million tokens, `cost_per_chip_second` of them for a chip-second a token.

    full: points of the full model; pareto_indices: those of them that none beats, fastest first; max_batch: the closed form's
    cheapest batch, B* or what the memory holds, whichever is less.
    """

    context: int
    pair: Pair
    full: Front
    pareto_indices: Any
    max_batch: float
    cost_per_chip_second: float
    unit: str

    def cost(self, place: Any) -> Any:
        """Return the cost of points of the full model."""
        return self.full.chip_seconds[place] * self.cost_per_chip_second

    def closed(self, batch: Any) -> tuple[Any, Any]:
        """Return the speed [tok/s] and the cost of the closed form at a batch."""
        pair = self.pair
        seconds = step_seconds(
            batch, pair.context, active=pair.active, total=pair.total, weight_bytes=pair.bytes_of_weight,
            kv_bytes_per_token=pair.kv_bytes, mac_rate=pair.mac_rate, bandwidth=pair.bandwidth,
        )  # fmt: skip
        return 1 / seconds, cost_per_token(seconds, batch, pair.chips, self.cost_per_chip_second)

    def closed_at(self, speed: float) -> float | None:
        """Return the closed form's cost at a speed [tok/s]: its largest batch with B' N_act / F and t_w + u B' within 1/s."""
        pair, seconds = self.pair, 1 / speed
        kv_seconds = pair.context * pair.kv_bytes / pair.bandwidth
        memory_batch = (seconds - pair.floor) / kv_seconds if kv_seconds else math.inf
        batch = (
            min(seconds * pair.mac_rate / pair.active, memory_batch, max(self.max_batch, 1.0)) if seconds > pair.floor else 0.0
        )
        return float(self.closed(batch)[1]) if batch >= 1 else None

    def labels(self) -> dict[int, str]:
        """Return the points of the full model that have a name: the cheapest, and the cheapest of so many times its speed."""
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
    """Return the curves of the subject at a context; rough: else those of the context asked for last, where there is one."""
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
    room = (pair.capacity - pair.bytes_of_weight * pair.total) / max(pair.kv_bytes * context, 1e-9)
    best = float(optimal_batch(pair.balance, pair.sparsity, context, pair.knee))
    has_rent = math.isfinite(rent)
    return Curves(
        context=context, pair=pair, full=full, pareto_indices=pareto(1 / full.seconds, -full.chip_seconds),
        max_batch=min(best, room),
        cost_per_chip_second=rent * MILLION if has_rent else MILLION / HOUR, unit="USD" if has_rent else "chip-h",
    )  # fmt: skip
