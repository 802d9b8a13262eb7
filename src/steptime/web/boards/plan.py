"""Board: the cheapest deployment within limits; cost by speed. Section 7."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from steptime.launch.host_placement import place_replicas
from steptime.launch.launch_commands import engines_of_plan, launch_commands
from steptime.planning.plan_result import Plan, Point, runner_up_dearer
from steptime.units import counted, in_digits, show
from steptime.web.board import Answer, Board, Figure, SlowInputs, columns, finite_figures, question_input, slider
from steptime.web.page_subject import command, loaded
from steptime.web.plan_cache import PlanSpec, answered, chip_roles, cost_and_unit, plan_call, priced, resource_bars

# Work of the chips of a pool.
ROLES = {"prefill": "run prefill", "decode": "run decode", "serve": "run both"}
# Name of a step of a pool, if it is not a decode step.
WORK = {"prefill": "pass"}


class Inputs(SlowInputs):
    """A workload and its limits."""

    speed: float = question_input("plan.speed", 50, 2, 1000, label="speed of each user", log=True)
    ttft: float = question_input("plan.ttft", 2, 0.05, 60, label="first token within", log=True)
    prompt: int = question_input("plan.input", 8192, 16, 262_144, label="prompt", log=True)
    output: int = question_input("plan.output", 1024, high=65_536, log=True)
    chips: int = slider(0, 0, 144, "chips", "chips", "Rented chips; 0: one scale-up domain.", is_advanced=True, step=1)


def answer(inputs: Inputs) -> Answer:
    """Return the plan; while a slider moves, a point of a known front.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    spec = PlanSpec(prompt=inputs.prompt, output=inputs.output, speed=inputs.speed, ttft=inputs.ttft, chips=inputs.chips)
    outcome, point, rough = answered(inputs, spec, rough=inputs.coarse)
    plan = outcome.plan
    front = plan.front if plan else ()
    costs = [cost_and_unit(option)[0] for option in front]
    unit = cost_and_unit(front[0])[1] if front else "USD"
    # Without a point that meets the limits, the mark is at the largest cost of the picture.
    cost, unit = cost_and_unit(point) if point else (max(costs, default=math.nan), unit)
    low, high = (plan.cost_range if plan and point and not rough and unit == "USD" else None) or (None, None)
    if plan is None:
        sentence = f"No deployment is possible: {outcome.reason}."
    elif point is None:
        sentence = f"No deployment meets these limits: {plan.reason or f'none reaches {inputs.speed:g} tok/s per user'}."
    else:
        sentence = _sentence(inputs, plan, point, rough=rough)
    if rough and replace(outcome.spec, speed=spec.speed) != spec:
        sentence = f"From the last plan ({outcome.spec.prompt:,} prompt and {outcome.spec.output:,} output tokens): " + sentence
    options = {"--input": inputs.prompt, "--output": inputs.output, "--speed": inputs.speed, "--ttft": inputs.ttft}
    return Answer(
        tables={
            "front": columns("speed cost ttft layout batch", (
                (option.tokens_per_second_per_user, cost_and_unit(option)[0], option.ttft, option.layout_text, option.batch)
                for option in front
            )),
            "bars": resource_bars(plan), "chips": chip_roles(plan),
        },
        marks={
            "limit": inputs.speed, "x": point.tokens_per_second_per_user if point else inputs.speed, "y": cost, "unit": unit,
            "low": low, "high": high, "feasible": point is not None, "rough": rough,
        },
        # A reason may already end in a period.
        sentence=sentence.replace("..", "."),
        figures=finite_figures(
            Figure("per million output tokens", cost, unit, "The whole rent, with prefill, per output token."),
            Figure("90 % low", low, unit),
            Figure("90 % high", high, unit),
            Figure("speed of each user", point.tokens_per_second_per_user, "tok/s"),
            Figure("first token", point.ttft, "s", f"{plan.percentile} TTFT."),
            Figure("output per chip", point.tokens_per_second_per_chip, "tok/s"),
            Figure("in flight", None if low is None else plan.concurrency, "requests"),
            Figure("memory in use", None if rough else _memory_share(plan), "%", "Of the fullest pool."),
            Figure("hosts", None if rough else _hosts(plan), "", "Machines that the plan runs on."),
        ) if plan and point else (),
        formula=_formula(plan, point, cost, unit) if plan and point and not rough else (),
        notes=() if rough or plan is None else (*_notes(plan), *plan.warnings),
        scripts=_scripts(plan) if plan and point and not rough else {},
        command=command("plan", inputs, {**options, "--chips": inputs.chips or None}),
        python=plan_call("plan", ", ".join(loaded(inputs)), spec, inputs),
    )  # fmt: skip


def _formula(plan: Plan, point: Point, cost: float, unit: str) -> tuple[str, ...]:
    output = f"{plan.chips} chips x {point.tokens_per_second_per_chip:,.4g} tok/s"
    rent = show(plan.usd_per_second, "USD/s") if unit == "USD" else f"{plan.chips} chips"
    return (
        f"cost = rent / output = {rent} / ({output}) = {priced(cost, unit)} per million",
        *(
            f"{pool.role}: {counted(int(pool.layout.replicas), 'replica')} of {counted(int(pool.layout.chips), 'chip')}, "
            f"batch {pool.batch:,.0f}, {WORK.get(pool.role, 'decode step')} {show(float(pool.step.total), 's')}"
            for pool in plan.pools
        ),
        f"mean TPOT, with prefill chunks in some steps: {show(plan.mean_tpot, 's')}; {plan.percentile}: {show(plan.tpot, 's')}",
        f"layout: {plan.layout_text}; evidence: {plan.evidence}",
    )


def _notes(plan: Plan) -> Iterator[str]:
    """Yield what the curve and the mark rest on, and the cheapest layout of all."""
    if plan.feasible and plan.mean_tpot != plan.tpot:
        yield f"The curve shows mean times by closed forms, the mark the {plan.percentile} of requests served one by one."
    if plan.runner_up is not None:
        cost = priced(*cost_and_unit(plan.runner_up))
        yield f"Runner-up: {plan.runner_up.layout_text} costs {cost}, {in_digits(1 + runner_up_dearer(plan))} times as much."
    if plan.unmeasured is not None:
        cost = priced(*cost_and_unit(plan.unmeasured))
        yield f"The cheapest layout of all, of a kind that nobody measured, costs {cost}: {plan.unmeasured.layout_text}."


def _memory_share(plan: Plan) -> float:
    """Return the share of the memory that the fullest pool uses."""
    return max(
        float((pool.memory.weights + pool.memory.cache + pool.memory.activations + pool.memory.reserved) / pool.memory.capacity)
        for pool in plan.pools
    )


def _hosts(plan: Plan) -> float:
    return float(sum(replica.nodes for replica in place_replicas(plan)))


def _scripts(plan: Plan) -> dict[str, str]:
    """Return the launch commands of each engine; an engine that cannot serve the plan says why."""
    return {f"launch with {engine}": "\n".join(launch_commands(plan, engine)) for engine in engines_of_plan(plan)}


def _sentence(inputs: Inputs, plan: Plan, point: Point, *, rough: bool) -> str:
    cost = priced(*cost_and_unit(point))
    words = f"{inputs.speed:g} tok/s per user cost {cost} per million tokens on {counted(plan.chips, 'chip')}"
    if rough:
        return f"About {words}."
    pools = ", ".join(f"{pool.chips} {ROLES[pool.role]}" for pool in plan.pools)
    return f"{words}: {pools}. {plan.why}"


BOARD = Board(
    name="plan", title="What is the cheapest way to serve it?", order=50, section=7, inputs=Inputs, answer=answer, slow=True,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "engine": "ideal", "speed": 50, "ttft": 60},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "speed": 50, "ttft": 2},
)  # fmt: skip
