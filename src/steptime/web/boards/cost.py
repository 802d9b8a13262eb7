"""Board: cost of a token against the batch, with its floor. Sections 2, 3 and 5."""

from __future__ import annotations

from typing import Final

import numpy as np

from steptime import blackboard
from steptime.hardware.rental_prices import usd
from steptime.hardware.system import Rent, System
from steptime.lecture.current_figures import build_pair
from steptime.number_checks import Array, Number
from steptime.svg import in_colours
from steptime.units import HOUR, MILLION, in_digits, percent, show
from steptime.web.board import Answer, Board, Figure, Shared, question_input, slider
from steptime.web.page_subject import WrongField, command, decode_call, layout_options, load_replica, python_command

MAX_BATCH, POINTS = 65_536, 65
# Parts of a step that a larger batch shares.
SHARED: Final = {"weights": "each read of the weights", "overhead": "the engine's overhead of each step"}


class Inputs(Shared):
    """A batch and a context on a number of chips, and the rent of a chip."""

    batch: int = question_input("step.batch", 256, high=MAX_BATCH, log=True)
    context: int = question_input("step.context", 8192, high=4_194_304, log=True)
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
    replica = load_replica(inputs, inputs.chips)
    rent, chips = _rent(inputs, replica.system), replica.chips
    typical = float(np.asarray(rent.typical))
    batches = np.unique(np.append(np.geomspace(1, MAX_BATCH, POINTS), inputs.batch))
    steps, room = replica.step(batches, inputs.context), float(replica.room(inputs.context))
    seconds, index = np.asarray(steps.total), int(np.searchsorted(batches, inputs.batch))
    parts = in_colours(steps.resources, np.shape(batches))
    costs = {name: _million(part_seconds, batches, chips, typical) for name, part_seconds in parts.items()}
    total = _million(seconds, batches, chips, typical)
    low, high = (_million(seconds, batches, chips, float(np.nan_to_num(end, nan=typical))) for end in (rent.low, rent.high))
    # Batches that fit, with the largest one: the cheapest batch may be the limit of the memory.
    able = np.append(batches[batches < room], min(room, MAX_BATCH)) if room >= 1 else batches[:0]
    cheap = _million(np.interp(able, batches, seconds), able, chips, typical)
    # Without a batch that fits, the slow mode has no batch and no cost.
    best = int(np.argmin(cheap)) if able.size else None
    slow_batch, slow = (0.0, np.nan) if best is None else (float(able[best]), float(cheap[best]))
    cost, step = float(total[index]), float(seconds[index])
    speed, cost_ratio = step / float(seconds[0]), float(total[0]) / cost
    shared = max(("weights", "overhead"), key=lambda name: costs[name][index])
    pair = build_pair(replica.model, replica.system, context=inputs.context)
    arithmetic = blackboard.compute_seconds(1, pair.active, pair.mac_rate)
    reading = blackboard.kv_read_seconds(1, pair.context, pair.kv_bytes, pair.bandwidth)
    # The floor is the part that no batch shares: arithmetic or KV cache of a sequence.
    floor = float(_million(max(arithmetic, reading), 1, pair.chips, typical))
    hourly = usd(typical * HOUR)
    options = {"--context": inputs.context, **layout_options(replica.layout), "--over": f"batch={inputs.batch}"}
    options |= {"--answer": "usd_per_million_tokens", "--set": f"rent={inputs.rent:g} USD/h" if inputs.rent else ""}
    program = (
        f"step = {decode_call(inputs, replica)}\nst.blackboard.cost_per_token(step, {inputs.batch}, {chips}, {typical!r}) * 1e6"
    )
    return Answer(
        tables={"costs": {"batch": batches, **costs, "total": total, "low": low, "high": high, "seconds": seconds}},
        marks={
            "batch": inputs.batch, "total": cost, "floor": floor, "room": room, "slow_batch": slow_batch or None, "slow": slow,
        },
        sentence=_sentence(inputs, cost, slow, slow_batch, room, shared),
        figures=(
            Figure("per million tokens", cost, "USD", "Output tokens, at the typical rent."),
            Figure("at the low rent", float(low[index]), "USD"),
            Figure("at the high rent", float(high[index]), "USD"),
            Figure("slow mode saves", 1 - min(slow / cost, 1.0), "%", "Saving at the cheapest batch that fits the memory."),
            Figure("floor", floor, "USD", "Blackboard: only the part that no batch shares, at peak rates."),
            Figure("at batch 1", float(total[0]), "USD", "Per million tokens with a single sequence."),
            Figure("speed of each user", 1 / step, "tok/s"),
        ),
        formula=(
            f"cost = rent x chips x step / batch = {hourly}/h x {chips} x {show(step, 's')} / {inputs.batch:,} = {usd(cost)} "
            "per million tokens",
            f"floor = rent x chips x max(N_act/F, L kappa/W) = {usd(floor)} per million tokens, on {pair.chips} chips",
            f"batch 1 is {speed:.3g} times as fast at {in_digits(cost_ratio)} times the price: {speed:.3g} x "
            f"{in_digits(cost_ratio)} = {float(blackboard.batch_ratio(cost_ratio, speed)):,.0f} times fewer sequences",
        ),
        notes=(f"rent: {hourly} per chip-hour, {rent.kind}, {rent.date}",) if rent.kind else (),
        # The command has no option for copies of experts.
        command=python_command(program) if replica.layout.redundant_experts else command("sweep step", inputs, options),
        python=program,
    )  # fmt: skip


def _million(seconds: Number, batches: Number, chips: int, rent: float) -> Array:
    return np.asarray(blackboard.cost_per_token(seconds, batches, chips, rent)) * MILLION


def _rent(inputs: Inputs, system: System) -> Rent:
    """Return the rent of a chip [USD/s], with its range if it is the catalogue's."""
    if inputs.rent:
        rate = inputs.rent / HOUR
        return Rent(low=rate, typical=rate, high=rate)
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
        return words + f"A batch of {batch:,.0f} would save {percent(1 - slow / cost)}: this cost is already near the minimum."
    return words + f"A batch of {batch:,.0f} would cost {usd(slow)}: here too few sequences share {SHARED[shared]}."


BOARD = Board(
    name="cost", title="Why is a token cheaper in a large batch?", order=30, section=2, inputs=Inputs, answer=answer,
    spoken={"system": "gb200-nvl72", "batch": 2000, "context": 1, "engine": "ideal", "rent": 2},
    today={"system": "gb300-nvl72", "batch": 1024, "context": 8192},
)  # fmt: skip
