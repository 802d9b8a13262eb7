"""Plans that boards ask for: each made once, the last ones kept, so that a board answers roughly while a slider moves."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np

from steptime.errors import Impossible, InputError
from steptime.hardware.unit_cost import usd
from steptime.planning.plan_result import Plan, Point, chosen_point, mean_resources
from steptime.planning.planner import plan
from steptime.planning.workload import Slo, Workload
from steptime.svg import in_colours
from steptime.units import HOUR, MILLION
from steptime.web.board_inputs import Shared, bar_of
from steptime.web.page_subject import WrongField, subject_of

KEPT: Final = 256  # plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of a deployment: tokens of a prompt and of its answer, limits [tok/s per user, s], chips (0: a domain)."""

    prompt: int
    output: int
    speed: float
    ttft: float
    chips: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan, or why there is none; `wanted` is what it was made for."""

    wanted: Wanted
    plan: Plan | None = None
    reason: str = ""

    @property
    def feasible(self) -> bool:
        """Whether it meets its limits."""
        return self.plan is not None and self.plan.feasible


_last: OrderedDict[Shared, list[Found]] = OrderedDict()  # the newest plans of each subject


def planned(asked: Shared, wanted: Wanted) -> Found:
    """Return the cheapest deployment of the model on the system that `asked` names, or why nothing fits."""
    shared = bar_of(asked)
    found = _planned(shared, wanted)
    if found.plan is not None and found.plan.front:
        others = [one for one in _last.pop(shared, []) if one.wanted != wanted]
        _last[shared] = [found, *others][:16]
        while len(_last) > KEPT // 4:
            _last.popitem(last=False)
    return found


@lru_cache(maxsize=KEPT)
def _planned(shared: Shared, wanted: Wanted) -> Found:
    subject = subject_of(shared)
    workload = Workload(input_tokens=wanted.prompt, output_tokens=wanted.output)
    limits = Slo(tpot=1 / wanted.speed, ttft=wanted.ttft)
    given: dict[str, Any] = {"chips": wanted.chips or None, "engine": subject.engine, "levers": False, "elasticities": False}
    try:
        return Found(wanted=wanted, plan=plan(subject.model, subject.system, workload, limits, **given))
    except Impossible as problem:
        return Found(wanted=wanted, reason=str(problem))
    except InputError as problem:
        raise WrongField("chips" if wanted.chips else "system", str(problem)) from None


def nearest(asked: Shared, wanted: Wanted) -> Found | None:
    """Return the kept plan of the subject whose lengths, first token and chips are nearest, if there is any."""
    shared = bar_of(asked)
    known = _last.get(shared, [])
    return min(known, key=lambda one: _apart(one.wanted, wanted), default=None)


def answered(asked: Shared, wanted: Wanted, *, rough: bool) -> tuple[Found, Point | None, bool]:
    """Return a plan, the point that it chose, and whether that is rough, of a front that is known: where that is enough."""
    known = nearest(asked, wanted) if rough else None
    found = known or planned(asked, wanted)
    if found.plan is None:
        return found, None, False
    if known is not None:
        return found, cheapest(found.plan.front, wanted.speed), True
    return found, chosen_point(found.plan) if found.plan.feasible else None, False


def same_but_speed(one: Wanted, other: Wanted) -> bool:
    """Whether two questions have one front, since they differ in the limit on speed alone."""
    return replace(one, speed=1.0) == replace(other, speed=1.0)


def _apart(one: Wanted, other: Wanted) -> float:
    lengths = sum(abs(math.log(getattr(one, name) / getattr(other, name))) for name in ("prompt", "output", "ttft"))
    return lengths + abs(math.log((1 + one.chips) / (1 + other.chips)))


def cheapest(points: tuple[Point, ...], speed: float) -> Point | None:
    """Return the cheapest point of a front, fastest first, that is as fast as `speed` [tok/s]."""
    fast = [one for one in points if one.tokens_per_second_per_user >= speed]
    return fast[-1] if fast else None


def price_of(point: Point) -> tuple[float, str]:
    """Return what a million output tokens cost and its unit: USD, or chip-hours where no rent is known."""
    if math.isfinite(point.usd_per_million_output_tokens):
        return point.usd_per_million_output_tokens, "USD"
    return MILLION / point.tokens_per_second_per_chip / HOUR, "chip-h"


def priced(cost: float, unit: str) -> str:
    """Write what a million tokens cost.

    >>> priced(1.0573, "USD"), priced(0.31, "chip-h")
    ('$1.06', '0.31 chip-hours')
    """
    return usd(cost) if unit == "USD" else f"{cost:.3g} chip-hours"


def bars_of(plan: Plan | None) -> dict[str, list[Any]]:
    """Return what fills a chip's memory and a step of each pool, as shares of it one after another, with the sizes [B, s]."""
    rows: list[tuple[Any, ...]] = []
    for pool in plan.pools if plan else ():
        memory, role = pool.memory, pool.role if pool.role != "serve" else ""
        held = {"weights": memory.weights, "kv": memory.cache, "overhead": memory.activations + memory.reserved}
        step = in_colours(mean_resources(pool))
        duration = float(sum(step.values()))
        for name, parts, whole, unit in (
            ("memory", held, float(memory.capacity), "B"),
            ("pass" if role == "prefill" else "step", step, duration, "s"),
        ):
            sizes = [float(np.asarray(one)) for one in parts.values()]
            for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
                rows.append((f"{role} {name}".strip(), part, (end - size) / whole, end / whole, size, whole, unit))
    names = ("row", "part", "start", "end", "size", "whole", "unit")
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def chips_of(plan: Plan | None) -> dict[str, list[Any]]:
    """Return what each chip that is rented does, and in which replica of its pool."""
    rows = [(pool.role, n // int(pool.layout.chips)) for pool in (plan.pools if plan else ()) for n in range(pool.chips)]
    rows += [("idle", 0)] * (plan.idle_chips if plan else 0)
    return {"role": [role for role, _ in rows], "replica": [replica for _, replica in rows]}


def python_of(kind: str, subject: str, wanted: Wanted, engine: str) -> str:
    """Return the call of `st.plan` or `st.compare` for what is wanted, of "model, system" as expressions.

    >>> print(python_of("plan", "'m', 's'", Wanted(prompt=10, output=5, speed=20, ttft=2), ""))
    st.plan('m', 's', st.Workload(input_tokens=10, output_tokens=5),
            st.Slo(tpot=1 / 20, ttft=2))
    """
    more = (f", chips={wanted.chips}" if wanted.chips else "") + (f", engine={engine!r}" if engine else "")
    return (
        f"st.{kind}({subject}, st.Workload(input_tokens={wanted.prompt}, output_tokens={wanted.output}),\n"
        f"{' ' * (len(kind) + 4)}st.Slo(tpot=1 / {wanted.speed:g}, ttft={wanted.ttft:g}){more})"
    )
