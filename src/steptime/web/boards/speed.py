"""Board: cost of a token by speed, full model and ideal machine. Sections 2 and 5."""

from __future__ import annotations

import numpy as np

from steptime.blackboard.token_cost import batch_ratio, speed_ceiling
from steptime.units import show
from steptime.web.board import Answer, Board, Figure, SlowInputs, columns, finite_figures, question_input
from steptime.web.page_subject import command, load_subject, loaded, python_command, refuse_long_context
from steptime.web.plan_cache import Curves, cached_curves, priced

FASTER = "a single sequence reads only the experts that it uses, so it can be faster than the floor"
# Price and speed of a fast mode over the usual mode; lecture, section 5.
LISTED = (6.0, 2.5)


class Inputs(SlowInputs):
    """A speed for each user, at a context."""

    speed: float = question_input("plan.speed", 50, 1, 2000, label="speed of each user", log=True)
    context: int = question_input("roofline.context", 8192, high=1_048_576, log=True)


def answer(inputs: Inputs) -> Answer:
    """Return both curves, and the cost at the chosen speed.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The context is too long for the model.
    """
    refuse_long_context(load_subject(inputs).model, inputs.context)
    curves = cached_curves(inputs, inputs.context, rough=inputs.coarse)
    pair, full = curves.pair, curves.full
    speed = 1 / full.seconds[curves.pareto_indices]
    place = full.cheapest(inputs.speed)
    price = float(curves.cost(place)) if place >= 0 else None
    ideal = curves.closed_at(inputs.speed)
    # The closed form is shown from batch 1 to its cheapest batch.
    batches = np.geomspace(1, max(curves.max_batch, 2), 65)
    closed_speed, closed_cost = curves.closed(batches)
    points = [
        (name, float(1 / full.seconds[index]), float(curves.cost(index)), full.batch[index])
        for index, name in curves.labels().items()
    ]
    top = float(speed[0]) if len(speed) else None
    program = _program(inputs, curves)
    money = curves.unit
    return Answer(
        tables={
            "full": {"speed": speed, "cost": curves.cost(curves.pareto_indices), "batch": full.batch[curves.pareto_indices]},
            "closed": {"speed": closed_speed, "cost": closed_cost, "batch": batches},
            "points": columns("name speed cost batch", points),
        },
        marks={
            "speed": inputs.speed, "cost": price, "closed": ideal, "unit": money, "floor": 1 / pair.floor, "ceiling": top,
            "listed_speed": points[0][1] * LISTED[1] if points else None,
            "listed_cost": points[0][2] * LISTED[0] if points else None,
        },
        sentence=_sentence(inputs, curves, points, price),
        figures=finite_figures(
            Figure("per million tokens", price, money, "Decode only."),
            Figure("ideal machine", ideal, money, "Closed form."),
            *(Figure(f"price at {name} the speed", cost / points[0][2], "x") for name, _, cost, _ in points[1:]),
            Figure("greatest speed", top, "tok/s", "A single sequence."),
            Figure("speed of the floor", 1 / pair.floor, "tok/s", "Every weight is read once per token."),
        ),
        formula=(
            f"floor = b_w N_tot / W = {show(pair.floor, 's')}: {1 / pair.floor:,.0f} tok/s on {pair.chips} chips",
            *([f"cost = rent t / B: {priced(price, money)}, B = {full.batch[place]:,.0f}"] if price else []),
            f"list price of a fast mode, {LISTED[0]:g}x for {LISTED[1]:g}x the speed: batch 1/{batch_ratio(*LISTED):g}, "
            f"greatest speed 1 + (s - 1)/(1 - 1/q) = {float(speed_ceiling(*LISTED)):.3g}x",
        ),
        notes=(
            *([f"rough answer from a context of {curves.context:,} tokens"] if curves.context != inputs.context else []),
            *([FASTER] if top and top * pair.floor > 1 and pair.experts > 1 else []),
        ),
        command=python_command(program), python=program,
        scripts={"the lecture's numbers for this pair": command("roofline", inputs, {"--context": inputs.context})},
    )  # fmt: skip


def _program(inputs: Inputs, curves: Curves) -> str:
    """Return the program that prints the cost at the speed, and the greatest speed."""
    model, system = loaded(inputs, is_served=True)
    return (
        "from steptime.lecture.current_figures import build_pair\n"
        "from steptime.lecture.pair_roofline import full_model_front\n"
        "from steptime.physics.engine import engine_for\n\n"
        f"model, system = {model if model.startswith('st.') else f'st.load_model({model})'}, st.load_system({system})\n"
        f"pair = build_pair(model, system, context={inputs.context})\n"
        f"front = full_model_front(model, system, engine_for(system{f', {inputs.engine!r}' if inputs.engine else ''}), pair)\n"
        f"cost = front.chip_seconds[front.cheapest({inputs.speed!r})] * {curves.cost_per_chip_second!r}\n"
        "float(cost), float(1 / front.seconds.min())"
    )


def _sentence(inputs: Inputs, curves: Curves, points: list[tuple[str, float, float, float]], price: float | None) -> str:
    chips = curves.pair.chips
    if not points:
        return (
            f"The weights and one sequence of {inputs.context:,} tokens do not fit the {chips} chips: only the ideal is shown."
        )
    _, slow, least, _ = points[0]
    fastest = f"{float(1 / np.min(curves.full.seconds)):,.4g}"
    if price is None:
        return f"{inputs.speed:g} tok/s is out of reach at any price: a single sequence reaches {fastest} tok/s."
    cheap = priced(least, curves.unit)
    if inputs.speed <= slow:
        return f"The cheapest tokens cost {cheap} per million at {slow:.3g} tok/s: a lower speed saves nothing."
    return (
        f"{inputs.speed:g} tok/s cost {priced(price, curves.unit)} per million tokens, {price / least:.2g} times the "
        f"cheapest at {slow:.3g} tok/s. The greatest speed at any price is {fastest} tok/s."
    )


BOARD = Board(
    name="speed", title="What does more speed cost?", order=40, section=5, inputs=Inputs, answer=answer, slow=True,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "engine": "ideal", "speed": 100},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "speed": 60},
)  # fmt: skip
