"""Plans and curves of speed against cost, kept for rough answers while a slider moves."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from steptime.blackboard.token_cost import cost_per_token
from steptime.errors import Impossible, InputError
from steptime.hardware.rental_prices import usd
from steptime.lecture.current_figures import Pair, build_pair
from steptime.lecture.pair_roofline import SPEEDS, Front, full_model_front
from steptime.pareto import pareto
from steptime.physics.engine import with_sampling
from steptime.physics.engine_releases import TOP_P
from steptime.planning.plan_result import Plan, Point, chosen_point, mean_resources
from steptime.planning.planner import plan
from steptime.svg import in_colours
from steptime.units import HOUR, MILLION
from steptime.web.board import Shared, bar_inputs, columns
from steptime.web.page_subject import WrongField, load_subject, with_engine
from steptime.workload.workload import Slo, Workload

# Answers kept in memory: of each kind, subjects with a rough answer, and answers of one subject.
MAX_KEPT, MAX_SUBJECTS, MAX_OF_SUBJECT = 256, 64, 16


class Newest:
    """The newest answers of each subject, from which rough answers come.

    distance: function of two keys; the answer with the smallest distance is the nearest.
    """

    def __init__(self, distance: Callable[[Any, Any], float]) -> None:
        self.distance = distance
        self.answers: OrderedDict[Shared, dict[Any, Any]] = OrderedDict()

    def keep(self, bar: Shared, key: Any, answer: Any) -> None:
        """Keep an answer, and drop the oldest ones.

        Args:
            bar: Inputs of the bar.
            key: Other inputs.
            answer: Answer for them.
        """
        earlier = self.answers.pop(bar, {})
        self.answers[bar] = dict([(key, answer), *(pair for pair in earlier.items() if pair[0] != key)][:MAX_OF_SUBJECT])
        while len(self.answers) > MAX_SUBJECTS:
            self.answers.popitem(last=False)

    def nearest(self, bar: Shared, key: Any) -> Any:
        """Return the kept answer of a subject with the nearest inputs.

        Args:
            bar: Inputs of the bar.
            key: Other inputs.

        Returns:
            The answer; None if no answer of this subject is kept.
        """
        by_key = self.answers.get(bar, {})
        return by_key[min(by_key, key=lambda kept_key: self.distance(kept_key, key))] if by_key else None


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
        seconds = self.pair.step_seconds(batch)
        return 1 / seconds, cost_per_token(seconds, batch, self.pair.chips, self.cost_per_chip_second)

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


_NEWEST_CURVES = Newest(lambda first, second: abs(math.log(first / second)))


def cached_curves(inputs: Shared, context: int, *, rough: bool = False) -> Curves:
    """Return the curves of the bar's subject at a context.

    Args:
        inputs: Inputs of a board.
        context: Tokens of each sequence.
        rough: Whether the curves of the nearest known context are enough, if there are any.

    Returns:
        The curves.
    """
    bar = bar_inputs(inputs)
    nearest = _NEWEST_CURVES.nearest(bar, context) if rough else None
    if nearest is not None:
        curves: Curves = nearest
        return curves
    curves = _curves(bar, context)
    _NEWEST_CURVES.keep(bar, context, curves)
    return curves


@lru_cache(maxsize=MAX_KEPT)
def _curves(bar: Shared, context: int) -> Curves:
    subject = load_subject(bar)
    pair = build_pair(subject.model, subject.system, context=context)
    full = full_model_front(subject.model, subject.system, subject.engine, pair)
    # Without a known rent, cost is in chip-hours.
    rent, unit = (subject.rent, "USD") if math.isfinite(subject.rent) else (1 / HOUR, "chip-h")
    return Curves(
        context=context, pair=pair, full=full, pareto_indices=pareto(1 / full.seconds, -full.chip_seconds),
        max_batch=min(pair.best_batch, pair.room), cost_per_chip_second=rent * MILLION, unit=unit,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """The workload, limits and chips of a plan.

    prompt, output: mean tokens. speed: minimum for each user [tok/s]. ttft: largest time to first token [s]. chips: 0
    is one scale-up domain. Spread, percentile and evidence are the defaults of `plan`.
    """

    prompt: int
    output: int
    speed: float
    ttft: float
    chips: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """A plan, or the reason why there is no plan; `spec` is its workload."""

    spec: PlanSpec
    plan: Plan | None = None
    reason: str = ""


@lru_cache(maxsize=MAX_KEPT)
def _planned(bar: Shared, spec: PlanSpec, diagnostics: bool) -> PlanOutcome:
    """Return the cheapest deployment for a workload, or the reason why nothing fits."""
    subject = load_subject(bar)
    workload = Workload(input_tokens=spec.prompt, output_tokens=spec.output)
    limits = Slo(tpot=1 / spec.speed, ttft=spec.ttft)
    try:
        best = plan(
            subject.model, subject.system, workload, limits, chips=spec.chips or None,
            engine=with_sampling(subject.engine, TOP_P), alternatives=False, elasticities=False,
            diagnostics=diagnostics,
        )  # fmt: skip
        return PlanOutcome(spec=spec, plan=best)
    except Impossible as problem:
        return PlanOutcome(spec=spec, reason=str(problem))
    except InputError as problem:
        raise WrongField("chips" if spec.chips else "system", str(problem)) from None


def _spec_distance(first: PlanSpec, second: PlanSpec) -> float:
    lengths = sum(abs(math.log(getattr(first, name) / getattr(second, name))) for name in ("prompt", "output", "ttft"))
    return lengths + abs(math.log((1 + first.chips) / (1 + second.chips)))


_NEWEST_PLANS = Newest(_spec_distance)


def answered(
    inputs: Shared, spec: PlanSpec, *, rough: bool, diagnostics: bool = True
) -> tuple[PlanOutcome, Point | None, bool]:
    """Return a plan and its chosen point, or a rough answer from a known front.

    Args:
        inputs: Inputs of a board; the bar names model, system and engine.
        spec: Workload and limits.
        rough: Whether the front of the nearest kept plan is enough.
        diagnostics: Whether the plan says why it is not cheaper, which takes longer than the plan itself.

    Returns:
        The plan, its chosen point (None: no point meets the limits), and whether the answer is rough.

    Raises:
        WrongField: An input is invalid.
    """
    bar = bar_inputs(inputs)
    nearest = _NEWEST_PLANS.nearest(bar, spec) if rough else None
    if nearest is not None:
        # The points of a front are ordered by speed, fastest first, and with it by cost.
        fast = [point for point in nearest.plan.front if point.tokens_per_second_per_user >= spec.speed]
        return nearest, fast[-1] if fast else None, True
    outcome = _planned(bar, spec, diagnostics)
    if outcome.plan is not None and outcome.plan.front:
        _NEWEST_PLANS.keep(bar, spec, outcome)
    return outcome, chosen_point(outcome.plan) if outcome.plan is not None and outcome.plan.feasible else None, False


def cost_and_unit(point: Point) -> tuple[float, str]:
    """Return the cost of a million output tokens.

    Args:
        point: Point of a front.

    Returns:
        Cost and its unit: USD, or chip-h if the rent is not known.
    """
    if math.isfinite(point.usd_per_million_output_tokens):
        return point.usd_per_million_output_tokens, "USD"
    return MILLION / point.tokens_per_second_per_chip / HOUR, "chip-h"


def priced(cost: float, unit: str) -> str:
    """Write the cost of a million tokens.

    Args:
        cost: Cost in `unit`.
        unit: USD or chip-h.

    Returns:
        Text with the unit.

    >>> priced(1.0573, "USD"), priced(0.31, "chip-h")
    ('$1.06', '0.31 chip-hours')
    """
    return usd(cost) if unit == "USD" else f"{cost:.3g} chip-hours"


def resource_bars(plan: Plan | None) -> dict[str, list[Any]]:
    """Return the stacked bars of memory and step time of each pool.

    Args:
        plan: The plan; None: no bars.

    Returns:
        Columns: start and end as shares of the whole, sizes [B or s].
    """
    rows: list[tuple[Any, ...]] = []
    for pool in plan.pools if plan else ():
        memory, role = pool.memory, pool.role if pool.role != "serve" else ""
        memory_parts = {"weights": memory.weights, "kv": memory.cache, "overhead": memory.activations + memory.reserved}
        # The mean step of the pool, with its mix of prefill chunks and decode.
        step = in_colours(mean_resources(pool))
        duration = float(sum(step.values()))
        for name, parts, total, unit in (
            ("memory", memory_parts, float(memory.capacity), "B"),
            ("pass" if role == "prefill" else "step", step, duration, "s"),
        ):
            sizes = [float(np.asarray(amount)) for amount in parts.values()]
            for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
                rows.append((f"{role} {name}".strip(), part, (end - size) / total, end / total, size, total, unit))
    return columns("row part start end size whole unit", rows)


def chip_roles(plan: Plan | None) -> dict[str, list[Any]]:
    """Return the role and the replica of each rented chip.

    Args:
        plan: The plan; None: no chips.

    Returns:
        Columns `role` and `replica`, one value per chip.
    """
    rows = [(pool.role, n // int(pool.layout.chips)) for pool in (plan.pools if plan else ()) for n in range(pool.chips)]
    rows += [("idle", 0)] * (plan.idle_chips if plan else 0)
    return columns("role replica", rows)


def plan_call(kind: str, subject: str, spec: PlanSpec, inputs: Shared) -> str:
    """Return the call of `st.plan` or `st.compare`.

    Args:
        kind: plan or compare.
        subject: Model and system as Python expressions.
        spec: Workload and limits.
        inputs: Inputs of a board; the bar names the engine.

    Returns:
        Python expression.

    >>> print(plan_call("plan", "'m', 's'", PlanSpec(prompt=10, output=5, speed=20, ttft=2), Shared()))
    st.plan('m', 's', st.Workload(input_tokens=10, output_tokens=5),
            st.Slo(tpot=1 / 20, ttft=2))
    """
    options = (f", chips={spec.chips}" if spec.chips else "") + with_engine(inputs)
    return (
        f"st.{kind}({subject}, st.Workload(input_tokens={spec.prompt}, output_tokens={spec.output}),\n"
        f"{' ' * (len(kind) + 4)}st.Slo(tpot=1 / {spec.speed:g}, ttft={spec.ttft:g}){options})"
    )
