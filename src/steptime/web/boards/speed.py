"""What a token costs at each speed, in the full model and as on the board: lecture sections 2 and 5."""

from __future__ import annotations

import numpy as np

from steptime.blackboard.token_cost import batch_ratio, speed_ceiling
from steptime.units import show
from steptime.web.board import Answer, Board, Figure
from steptime.web.board_inputs import Shared, coarse, slider
from steptime.web.page_subject import WrongField, subject_of
from steptime.web.pareto_cache import Curves, curves_of
from steptime.web.plan_cache import priced
from steptime.web.snippets import command, loaded, python

FASTER = "a sequence alone reads the experts that it uses, not all, and so can be faster than the floor of the board"
LISTED = (6.0, 2.5)  # price and speed of a fast mode over the usual one; lecture, section 5


class Asked(Shared):
    """A speed for each user, at a context."""

    speed: float = slider(50, 1, 2000, "speed of each user", "tok/s", "Tokens a second that each user gets.", log=True)
    context: int = slider(8192, 1, 1_048_576, "context", "tokens", "Tokens of context of each sequence.", log=True)
    coarse: bool = coarse()


def answer(asked: Asked) -> Answer:
    """Return both curves, and what the speed that is asked for costs."""
    longest = subject_of(asked).model.max_context
    if asked.context > longest:
        raise WrongField("context", f"this model has a context of at most {longest:,.0f} tokens")
    curves = curves_of(asked, asked.context, rough=asked.coarse)
    pair, full = curves.pair, curves.full
    speed = 1 / full.seconds[curves.kept]
    place = full.cheapest(asked.speed)
    here = float(curves.cost(place)) if place >= 0 else None
    ideal = curves.closed_at(asked.speed)
    batches = np.geomspace(1, max(curves.most, 2), 65)
    closed_speed, closed_cost = curves.closed(batches)
    points = [
        (name, float(1 / full.seconds[one]), float(curves.cost(one)), full.batch[one]) for one, name in curves.named().items()
    ]
    top = float(speed[0]) if len(speed) else None
    model, system = loaded(asked)
    engine = f", engine={asked.engine!r}" if asked.engine else ""
    money = curves.unit
    return Answer(
        tables={
            "full": {"speed": speed, "cost": curves.cost(curves.kept), "batch": full.batch[curves.kept]},
            "closed": {"speed": closed_speed, "cost": closed_cost, "batch": batches},
            "points": {name: [point[n] for point in points] for n, name in enumerate(("name", "speed", "cost", "batch"))},
        },
        marks={
            "speed": asked.speed, "cost": here, "closed": ideal, "unit": money, "floor": 1 / pair.floor, "ceiling": top,
            "listed_speed": points[0][1] * LISTED[1] if points else None,
            "listed_cost": points[0][2] * LISTED[0] if points else None,
        },
        sentence=_sentence(asked, curves, points, here),
        figures=(
            *([Figure(name="a million tokens", value=here, unit=money, words="Of decoding alone.")] if here else []),
            *([Figure(name="as on the board", value=ideal, unit=money, words="The closed form.")] if ideal else []),
            *(Figure(name=f"{name} the speed: price x", value=cost / points[0][2]) for name, _, cost, _ in points[1:]),
            *([Figure(name="greatest speed", value=top, unit="tok/s", words="One sequence alone.")] if top else []),
            Figure(name="speed of the floor", value=1 / pair.floor, unit="tok/s", words="Every weight read once a token."),
        ),
        formula=(
            f"floor = b_w N_tot / W = {show(pair.floor, 's')}: {1 / pair.floor:,.0f} tok/s on {pair.chips} chips",
            *([f"cost = rent t / B: {priced(here, money)}, B = {full.batch[place]:,.0f}"] if here else []),
            f"list price of a fast mode, {LISTED[0]:g}x for {LISTED[1]:g}x the speed: batch 1/{batch_ratio(*LISTED):g}, "
            f"greatest speed 1 + (s - 1)/(1 - 1/q) = {float(speed_ceiling(*LISTED)):.3g}x",
        ),
        notes=(
            *([f"a rough answer, of a context of {curves.context:,} tokens"] if curves.context != asked.context else []),
            *([FASTER] if top and top * pair.floor > 1 and pair.experts > 1 else []),
        ),
        command=command("roofline", asked, {"--context": asked.context}),
        python=python(f"st.roofline({model}, {system}, context={asked.context}{engine}).answers"),
    )  # fmt: skip


def _sentence(asked: Asked, curves: Curves, points: list[tuple[str, float, float, float]], here: float | None) -> str:
    chips = curves.pair.chips
    if not points:
        return (
            f"The weights and one sequence of {asked.context:,} tokens do not fit the {chips} chips: only the bound is drawn."
        )
    _, slow, least, _ = points[0]
    fastest = f"{float(1 / np.min(curves.full.seconds)):,.4g}"
    if here is None:
        return f"No price buys {asked.speed:g} tokens a second here: one sequence alone gets {fastest}."
    cheap = priced(least, curves.unit)
    if asked.speed <= slow:
        return f"The cheapest token costs {cheap} a million and comes at {slow:.3g} a second: to go slower saves nothing."
    return (
        f"{asked.speed:g} tokens a second cost {priced(here, curves.unit)} a million, {here / least:.2g} times the cheapest, "
        f"which comes at {slow:.3g} a second; no price buys more than {fastest}."
    )


BOARD = Board(
    name="speed",
    title="What does more speed cost?",
    order=40,
    section=5,
    asked=Asked,
    answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "system": "gb200-nvl72", "engine": "ideal", "speed": 100},
    today={"model": "deepseek-ai/DeepSeek-V3", "system": "gb300-nvl72", "speed": 60},
    slow=True,
)
