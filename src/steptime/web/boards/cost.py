"""Board: cost of a token against the batch, with its floor. Sections 2, 3 and 5."""

from __future__ import annotations

from typing import Final

import numpy as np

from steptime.blackboard.decode_latency import compute_seconds, kv_read_seconds
from steptime.blackboard.token_cost import batch_ratio, cost_per_token
from steptime.hardware.rental_prices import usd
from steptime.hardware.system import Rent, System
from steptime.lecture.current_figures import build_pair
from steptime.number_checks import Array
from steptime.physics.chip_memory import sequences_that_fit
from steptime.physics.step import decode_step
from steptime.svg import in_colours
from steptime.units import HOUR, MILLION, in_digits, show
from steptime.web.board import Answer, Board, Figure, Shared, slider
from steptime.web.page_export import command, decode_call, layout_options, python
from steptime.web.page_subject import WrongField, load_subject, single_stage_layout

MAX_BATCH, POINTS = 65_536, 65
# Parts of a step that a larger batch shares.
SHARED: Final = {"weights": "each read of the weights", "overhead": "the engine's overhead of each step"}


class Inputs(Shared):
    """A batch and a context on a number of chips, and the rent of a chip."""

    batch: int = slider(256, 1, MAX_BATCH, "batch", "sequences", "Sequences that decode at once in one replica.", log=True)
    context: int = slider(8192, 1, 4_194_304, "context", "tokens", "Tokens of context of each sequence.", log=True)
    rent: float = slider(
        0, 0, 40, "rent", "USD/h; 0: catalogue", "Rent of one chip; 0: the known rent of the system, with its range."
    )
    chips: int = slider(0, 0, 1024, "chips", "chips", "Chips of the replica; 0: the scale-up domain.", is_advanced=True, step=1)


def answer(inputs: Inputs) -> Answer:
    """Return the cost of a token over all batches, and at the chosen batch.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The rent is not known.
    """
    subject = load_subject(inputs)
    model, system = subject.model, subject.system
    rent, layout = _rent(inputs, system), single_stage_layout(inputs, inputs.chips)
    typical = float(np.asarray(rent.typical))
    batches = np.unique(np.append(np.geomspace(1, MAX_BATCH, POINTS), inputs.batch))
    steps = decode_step(model, system, batch=batches, context=inputs.context, layout=layout, engine=subject.engine)
    max_sequences = sequences_that_fit(model, system, context=inputs.context, layout=layout, engine=subject.engine)
    room = max(float(max_sequences), 0.0)
    seconds, batches_and_chips = np.asarray(steps.total), (batches, float(layout.chips))
    costs = {
        name: _million(part_seconds, *batches_and_chips, typical)
        for name, part_seconds in in_colours(steps.resources, np.shape(batches)).items()
    }
    total, index = _million(seconds, *batches_and_chips, typical), int(np.searchsorted(batches, inputs.batch))
    low, high = (_million(seconds, *batches_and_chips, float(np.nan_to_num(end, nan=typical))) for end in (rent.low, rent.high))
    # Batches that fit, with the largest one: the cheapest batch may be the limit of the memory.
    able = np.append(batches[batches < room], min(room, MAX_BATCH)) if room >= 1 else batches[:0]
    cheap = _million(np.interp(able, batches, seconds), able, batches_and_chips[1], typical)
    best = int(np.argmin(cheap)) if able.size else -1
    cost, slow = float(total[index]), float(cheap[best]) if best >= 0 else np.nan
    speed, cost_ratio = float(seconds[index] / seconds[0]), float(total[0]) / cost
    shared = max(("weights", "overhead"), key=lambda name: costs[name][index])
    pair = build_pair(model, system, context=inputs.context)
    unshared_seconds = max(
        compute_seconds(1, pair.active, pair.mac_rate), kv_read_seconds(1, pair.context, pair.kv_bytes, pair.bandwidth)
    )
    # The floor is the part that no batch shares: arithmetic or KV cache of a sequence.
    floor = float(cost_per_token(unshared_seconds, 1, pair.chips, typical)) * MILLION
    hourly = usd(typical * HOUR)
    options = {"--context": inputs.context, **layout_options(layout), "--over": f"batch={inputs.batch}"}
    options |= {"--answer": "usd_per_million_tokens", "--set": f"rent={inputs.rent:g} USD/h" if inputs.rent else ""}
    return Answer(
        tables={"costs": {"batch": batches, **costs, "total": total, "low": low, "high": high, "seconds": seconds}},
        marks={
            "batch": inputs.batch, "total": cost, "floor": floor, "room": room if np.isfinite(room) else None,
            "slow_batch": float(able[best]) if best >= 0 else None, "slow": slow,
        },
        sentence=_sentence(inputs, cost, slow, float(able[best]) if best >= 0 else 0.0, room, shared),
        figures=(
            Figure(name="per million tokens", value=cost, unit="USD", words="Output tokens, at the typical rent."),
            Figure(name="at the low rent", value=float(low[index]), unit="USD"),
            Figure(name="at the high rent", value=float(high[index]), unit="USD"),
            Figure(name="slow mode saves", value=1 - slow / cost if slow < cost else 0.0 if best >= 0 else np.nan, unit="%",
                   words="Saving at the cheapest batch that fits the memory."),
            Figure(name="floor", value=floor, unit="USD",
                   words="Blackboard: only the part that no batch shares, at peak rates."),
            Figure(name="at batch 1", value=float(total[0]), unit="USD", words="Per million tokens with a single sequence."),
            Figure(name="speed of each user", value=1 / float(seconds[index]), unit="tok/s"),
        ),
        formula=(
            f"cost = rent x chips x step / batch = {hourly}/h x {int(layout.chips)} x "
            f"{show(float(seconds[index]), 's')} / {inputs.batch:,} = {usd(cost)} per million tokens",
            f"floor = rent x chips x max(N_act/F, L kappa/W) = {usd(floor)} per million tokens, on {pair.chips} chips",
            f"batch 1 is {speed:.3g} times as fast at {in_digits(cost_ratio)} times the price: {speed:.3g} x "
            f"{in_digits(cost_ratio)} = {float(batch_ratio(cost_ratio, speed)):,.0f} times fewer sequences",
        ),
        notes=(f"rent: {hourly} per chip-hour, {rent.kind}, {rent.date}",) if rent.kind else (),
        command=command("sweep", inputs, options).replace("sweep", "sweep step", 1),
        python=python(
            f"step = {decode_call(inputs, layout, batch=inputs.batch, context=inputs.context)}\n"
            f"st.blackboard.cost_per_token(step, {inputs.batch}, {int(layout.chips)}, {typical!r}) * 1e6"
        ),
    )  # fmt: skip


def _million(seconds: Array, batches: Array, chips: float, rent: float) -> Array:
    return np.asarray(cost_per_token(seconds, batches, chips, rent)) * MILLION


def _rent(inputs: Inputs, system: System) -> Rent:
    """Return the rent of a chip [USD/s], with its range if it is the catalogue's."""
    if inputs.rent:
        return Rent(low=inputs.rent / HOUR, typical=inputs.rent / HOUR, high=inputs.rent / HOUR)
    if not np.isfinite(float(np.asarray(system.rent.typical))):
        raise WrongField("rent", f"the rent of {system.name} is not known; set a rent in USD/h")
    return system.rent


def _sentence(inputs: Inputs, cost: float, slow: float, batch: float, room: float, shared: str) -> str:
    words = f"With {inputs.batch:,} sequences, a million tokens cost {usd(cost)}. "
    if room < 1:
        return words + "They do not fit: the weights leave no memory for a KV cache on these chips."
    if inputs.batch > room:
        return (
            words
            + f"They do not fit: memory is full at {room:,.0f} sequences, where a million tokens cost {usd(slow)} or more."
        )
    if slow >= 0.98 * cost:
        return words + "A slow mode with a larger batch would save nothing: this is the cheapest batch that fits."
    if slow >= 0.75 * cost:
        return words + f"A batch of {batch:,.0f} would save {1 - slow / cost:.0%}: this cost is already near the minimum."
    return words + f"A batch of {batch:,.0f} would cost {usd(slow)}: here too few sequences share {SHARED[shared]}."


BOARD = Board(
    name="cost", title="Why is a token cheaper in a large batch?", order=30, section=2, inputs=Inputs, answer=answer,
    spoken={"system": "gb200-nvl72", "batch": 2000, "context": 1, "engine": "ideal", "rent": 2},
    today={"system": "gb300-nvl72", "batch": 1024, "context": 8192},
)  # fmt: skip
