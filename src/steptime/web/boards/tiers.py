"""Board: cheapest memory tier for a KV cache against its storage time. Section 15."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from steptime.blackboard.token_cost import hold_cost, retrieve_cost
from steptime.describe.kv_tradeoff import HeldContext, cache_trade
from steptime.hardware.rental_prices import usd
from steptime.number_checks import Array
from steptime.pricing.kv_storage_cost import tiers
from steptime.units import HOUR, in_digits, show
from steptime.web.board import Answer, Board, Figure, Shared, choice, question_input, slider
from steptime.web.page_subject import WrongField, command, load_subject, python_command, refuse_long_context, require_rent

# Storage times of the picture [s].
MIN_SECONDS, MAX_SECONDS, POINTS = 1e-3, 1e7, 121
BILLION: Final = 1e9
# Cache lifetimes that sellers offer [s], lecture section 15.
LIVES: Final = {"5 min": 300.0, "1 h": 3600.0}
# Tiers of systems by their names in the list of storage prices.
MEMORY: Final = {"host": "DRAM", "ssd": "flash", "hdd": "disk"}
WORDS: Final = {"hbm": "HBM", "host": "host memory", "ssd": "flash", "hdd": "disk", "again": "recompute"}
PAYS: Final = "After this time recomputing is cheaper; 0: reading it back costs more than recomputing."


class Inputs(Shared):
    """A KV cache of one context that is stored for a time."""

    hold_seconds: float = slider(300, MIN_SECONDS, MAX_SECONDS, "stored for", "s", "Time until it is used again.", log=True)
    context: int = question_input("reversible.context", 8192, 64, 4_194_304, log=True)
    price: str = choice("memory", ("memory", "chip"), "cost of a tier", "Price of its memory, or the rent of a chip.")
    waits: str = choice("memory", ("memory", "chip"), "reading back blocks", "Only the tier, or the chip.", is_advanced=True)
    reach: float = slider(1.0, 0.05, 1, "share of peak", "", "Share of peak FLOP/s in recomputing.", is_advanced=True)


def answer(inputs: Inputs) -> Answer:
    """Return the cost of each tier over all times, and the cheapest tier.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The context is too long, the rent is not known, or the model has no KV cache.
    """
    subject = load_subject(inputs)
    model, system = subject.model, subject.system
    refuse_long_context(model, inputs.context)
    rent = require_rent(subject, "storage")
    trade = cache_trade((model,), system, (inputs.context,)).caches[0]
    if not trade.held_bytes:
        raise WrongField("model", f"{model.name} has no KV cache")
    lines = _lines(inputs, trade, rent)
    holding = {name: line for name, line in lines.items() if name != "again"}
    recompute, _ = lines["again"]
    times = np.unique(np.append(np.geomspace(MIN_SECONDS, MAX_SECONDS, POINTS), [*LIVES.values(), inputs.hold_seconds]))
    # Cost is linear in time: once for reading back, and per second for storage.
    costs = {name: once + second * times for name, (once, second) in lines.items()}
    index, every = int(np.searchsorted(times, inputs.hold_seconds)), np.stack(list(costs.values()))
    best = np.array(list(costs))[np.argmin(every, axis=0)]
    lives = {words: str(best[np.searchsorted(times, seconds)]) for words, seconds in LIVES.items()}
    tier = str(best[index])
    cheapest = float(costs[tier][index])
    as_chip = inputs.price == inputs.waits == "chip" and not inputs.engine
    program = _program(inputs, trade, rent, tier)
    return Answer(
        tables={"costs": {"seconds": times, **costs, "best": np.min(every, axis=0)}, "spans": _spans(times, best)},
        marks={"held": inputs.hold_seconds, "cost": cheapest, "tier": tier, "words": WORDS, "lives": LIVES, "again": recompute},
        sentence=_sentence(inputs, costs, index, tier, lives),
        figures=(
            Figure("cheapest", cheapest, "USD", f"Per billion tokens: {WORDS[tier]}."),
            Figure("recompute", recompute, "USD", "Per billion tokens of context."),
            Figure("bytes per token", trade.held_bytes / inputs.context, "B", "KV cache of all layers."),
            *(Figure(f"{WORDS[name]} breaks even at", max(recompute - once, 0.0) / second, "s", PAYS)
              for name, (once, second) in holding.items()),
        ),
        formula=(
            f"recompute = rent x t / L = {usd(rent * HOUR)}/h x {show(trade.recompute_seconds / inputs.reach, 's')} / "
            f"{inputs.context:,} = {usd(recompute)} per billion tokens",
            *(f"{WORDS[name]} = read back + storage x time = {usd(once)} + {usd(second * HOUR)}/h x "
              f"{show(inputs.hold_seconds, 's')} = {usd(float(costs[name][index]))}"
              for name, (once, second) in holding.items()),
        ),
        notes=tuple(_notes(inputs, rent)),
        # The command prices tiers at the chip's rent, and has no option for the engine.
        command=command("reversible cache", inputs, {"--context": inputs.context}) if as_chip else python_command(program),
        python=program,
    )  # fmt: skip


def _program(inputs: Inputs, trade: HeldContext, rent: float, tier: str) -> str:
    """Return the program that prints the cost of the cheapest choice per billion tokens."""
    if tier == "again":
        return f"{trade.recompute_seconds!r} / {inputs.reach!r} / {inputs.context} * {rent!r} * 1e9"
    sizes, number = trade.tiers, [entry.name for entry in trade.tiers].index(tier)
    bandwidth, capacity = sizes[number].capacity / sizes[number].drain_seconds, sizes[number].capacity
    tier_rent, busy = _rents(inputs, rent, number, sizes[number].name, capacity)
    token = trade.held_bytes / inputs.context
    return (
        f"once = st.blackboard.retrieve_cost({token!r}, {bandwidth!r}, {busy!r})\n"
        f"second = st.blackboard.hold_cost({token!r}, {capacity!r}, {tier_rent!r})\n"
        f"(once + second * {float(inputs.hold_seconds)!r}) * 1e9"
    )


def _rents(inputs: Inputs, rent: float, number: int, name: str, capacity: float) -> tuple[float, float]:
    """Return the rent of a whole tier and of what waits while it is read [USD/s]; the first tier is the chip's memory."""
    sold = {storage.name: storage.usd_per_byte_second for storage in tiers()}
    tier_rent = rent if number == 0 or inputs.price == "chip" else sold[MEMORY[name]] * capacity
    return tier_rent, 0.0 if number == 0 else rent if inputs.waits == "chip" else tier_rent


def _lines(inputs: Inputs, trade: HeldContext, rent: float) -> dict[str, tuple[float, float]]:
    """Return the cost of a billion tokens for each tier and for recomputing.

    Each cost is a pair: USD at once, and USD per second of storage.
    """
    bytes_per_token = trade.held_bytes / inputs.context
    tier_costs = {}
    for number, tier in enumerate(trade.tiers):
        tier_rent, busy = _rents(inputs, rent, number, tier.name, tier.capacity)
        once = float(retrieve_cost(bytes_per_token, tier.capacity / tier.drain_seconds, busy)) * BILLION
        tier_costs[tier.name] = once, float(hold_cost(bytes_per_token, tier.capacity, tier_rent)) * BILLION
    tier_costs["again"] = trade.recompute_seconds / inputs.reach / inputs.context * rent * BILLION, 0.0
    return tier_costs


def _notes(inputs: Inputs, rent: float) -> Iterator[str]:
    sold = "the price of its memory over four years (a guess)" if inputs.price != "chip" else "as much as the chip's rent"
    yield f"rent of a chip: {usd(rent * HOUR)}/h; a tier costs {sold}"


def _spans(times: Array, best: Array) -> dict[str, list[object]]:
    """Return the time span in which each tier is the cheapest."""
    starts = [0, *(np.flatnonzero(best[1:] != best[:-1]) + 1)]
    ends = [*starts[1:], len(times) - 1]
    return {"from": times[starts].tolist(), "to": times[ends].tolist(), "tier": best[starts].tolist()}


def _sentence(inputs: Inputs, costs: Mapping[str, Array], index: int, cheapest_tier: str, lives: Mapping[str, str]) -> str:
    recompute, here_costs = float(costs["again"][index]), float(costs[cheapest_tier][index])
    words = f"After {show(inputs.hold_seconds, 's')} "
    if cheapest_tier == "again":
        words += f"it is cheapest to recompute the cache, for {usd(recompute)} per billion tokens. "
    else:
        words += f"{WORDS[cheapest_tier]} is the cheapest tier: {usd(here_costs)} per billion tokens, "
        words += f"{in_digits(recompute / here_costs)} times less than recomputing. "
    phrases = [f"{life}: " + ("recompute" if tier == "again" else WORDS[tier]) for life, tier in lives.items()]
    return words + f"Cheapest for the cache lifetimes that sellers offer: {', '.join(phrases)}."


BOARD = Board(
    name="tiers", title="Where should a cache wait?", order=120, section=15, inputs=Inputs, answer=answer,
    spoken={"system": "gb200-nvl72", "hold_seconds": 3600, "kv": "fp8"},
    today={"system": "gb300-nvl72", "hold_seconds": 300, "context": 32_768, "reach": 0.5},
    bar=("model", "system", "weights", "kv"),
)  # fmt: skip
