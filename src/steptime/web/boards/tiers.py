"""Which memory should hold a KV cache, against how long it is held; or none, and make it again. Lecture section 15."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from steptime.blackboard.cache_tiers import hold_cost, retrieve_cost
from steptime.describe.kv_tradeoff import HeldContext, cache_trade
from steptime.hardware.unit_cost import usd
from steptime.number_checks import Array
from steptime.pricing.kv_storage_cost import tiers
from steptime.units import HOUR, in_digits, show
from steptime.web.board import Answer, Board, Figure
from steptime.web.board_inputs import Shared, choice, slider
from steptime.web.page_subject import WrongField, subject_of
from steptime.web.snippets import command, loaded, python

LEAST, MOST, POINTS = 1e-3, 1e7, 121  # seconds
BILLION: Final = 1e9
LIVES: Final = {"5 min": 300.0, "1 h": 3600.0}  # lifetimes that sellers offer, lecture section 15
MEMORY: Final = {"host": "DRAM", "ssd": "flash", "hdd": "disk"}  # tiers of systems, as the list of what holding costs has them
WORDS: Final = {"hbm": "HBM", "host": "host memory", "ssd": "flash", "hdd": "disk", "again": "make it again"}


PAYS: Final = "Beyond it, making it again is cheaper; 0: reading it back is dearer from the start."


class Asked(Shared):
    """A cache of one context that is held for a while."""

    held: float = slider(300, LEAST, MOST, "held for", "s", "Time until the cache is used again.", log=True)
    context: int = slider(8192, 64, 4_194_304, "context", "tokens", "Tokens of the cached prefix.", log=True)
    price: str = choice("memory", ("memory", "chip"), "a tier costs", "What its memory sells for, or a chip's rent.")
    waits: str = choice("memory", ("memory", "chip"), "reading back holds up", "Its memory alone, or the chip.", more=True)
    reach: float = slider(1.0, 0.05, 1, "share of peak", "", "Of the arithmetic that makes a cache again.", more=True)


def answer(asked: Asked) -> Answer:
    """Return what each tier costs for all times, and the cheapest at the one that is asked."""
    subject = subject_of(asked)
    model, system = subject.model, subject.system
    if asked.context > model.max_context:
        raise WrongField("context", f"{model.name} has a context of at most {model.max_context:,.0f} tokens")
    rent = float(np.asarray(system.rent.typical))
    if not np.isfinite(rent):
        raise WrongField("system", f"no rent of {system.name} is known, so that holding has no price")
    trade = cache_trade((model,), system, (asked.context,)).held[0]
    if not trade.held:
        raise WrongField("model", f"{model.name} keeps no cache")
    lines = _lines(asked, trade, rent)
    times = np.unique(np.append(np.geomspace(LEAST, MOST, POINTS), [*LIVES.values(), asked.held]))
    costs = {name: once + second * times for name, (once, second) in lines.items()}
    at = int(np.searchsorted(times, asked.held))
    names = list(costs)
    every = np.stack(list(costs.values()))
    best = np.argmin(every, axis=0)
    lives = {words: names[best[int(np.searchsorted(times, seconds))]] for words, seconds in LIVES.items()}
    again = lines["again"][0]
    holding = {name: line for name, line in lines.items() if name != "again"}
    worth = {name: (again - once) / second if once < again else 0.0 for name, (once, second) in holding.items()}
    here = names[best[at]]
    cheapest = float(costs[here][at])
    model_text, system_text = loaded(asked)
    return Answer(
        tables={"costs": {"seconds": times, **costs, "best": np.min(every, axis=0)}, "spans": _spans(times, best, names)},
        marks={"held": asked.held, "cost": cheapest, "tier": here, "words": WORDS, "lives": LIVES, "again": again},
        sentence=_sentence(asked, costs, at, here, lives),
        figures=(
            Figure(name="cheapest", value=cheapest, unit="USD", words=f"A billion tokens: {WORDS[here]}."),
            Figure(name="make it again", value=again, unit="USD", words="A billion tokens of context, computed once more."),
            Figure(name="bytes a token", value=trade.held / asked.context, unit="B", words="Of cache, all layers."),
            *(Figure(name=f"{WORDS[name]} pays for", value=seconds, unit="s", words=PAYS)
              for name, seconds in worth.items()),
        ),
        formula=(
            f"make it again = rent x t / L = {usd(rent * HOUR)}/h x {show(trade.recompute_seconds / asked.reach, 's')} / "
            f"{asked.context:,} = {usd(again)} a billion tokens",
            *(f"{WORDS[name]} = read back + hold x time = {usd(once)} + {usd(second * HOUR)}/h x "
              f"{show(asked.held, 's')} = {usd(float(costs[name][at]))}" for name, (once, second) in holding.items()),
        ),
        notes=tuple(_notes(asked, rent)),
        command=command("reversible", asked, {"--context": asked.context}).replace("reversible", "reversible cache", 1),
        python=python(
            "from steptime.describe.kv_tradeoff import cache_trade\n\n"
            f"cache_trade([{model_text}], {system_text}, [{asked.context}]).to_dataframe()"
        ),
    )  # fmt: skip


def _lines(asked: Asked, trade: HeldContext, rent: float) -> dict[str, tuple[float, float]]:
    """Return USD of a billion tokens, at once and for each second that they are held: in each tier, and made again."""
    each, sold = trade.held / asked.context, {one.name: one.usd_per_byte_second for one in tiers()}
    found = {}
    for tier in trade.tiers:
        own = tier.name == trade.tiers[0].name
        whole = rent if own or asked.price == "chip" else sold[MEMORY[tier.name]] * tier.capacity  # USD/s of all of it
        busy = rent if asked.waits == "chip" else whole
        once = 0.0 if own else float(retrieve_cost(each, tier.capacity / tier.drain_seconds, busy)) * BILLION
        found[tier.name] = once, float(hold_cost(each, tier.capacity, whole)) * BILLION
    found["again"] = trade.recompute_seconds / asked.reach / asked.context * rent * BILLION, 0.0
    return found


def _notes(asked: Asked, rent: float) -> Iterator[str]:
    sold = "what memory sells for, over four years, a guess" if asked.price != "chip" else "the chip's rent, by its capacity"
    yield f"rent of a chip: {usd(rent * HOUR)} an hour; a tier costs {sold}"
    if asked.price != "chip" or asked.waits != "chip":
        yield "the command and the Python line price tiers at the chip's rent while it waits: choose both for their numbers"


def _spans(times: Array, best: Array, names: list[str]) -> dict[str, list[object]]:
    """Return from when to when each is the cheapest."""
    starts = [0, *(np.flatnonzero(np.diff(best)) + 1)]
    ends = [*starts[1:], len(times) - 1]
    return {"from": times[starts].tolist(), "to": times[ends].tolist(), "tier": [names[best[n]] for n in starts]}


def _sentence(asked: Asked, costs: Mapping[str, Array], at: int, here: str, lives: Mapping[str, str]) -> str:
    again, here_costs = float(costs["again"][at]), float(costs[here][at])
    words = f"After {show(asked.held, 's')} "
    if here == "again":
        words += f"it is cheapest to make the cache again, for {usd(again)} a billion tokens. "
    else:
        words += f"{WORDS[here]} is the cheapest place: {usd(here_costs)} a billion tokens, "
        words += f"{in_digits(again / here_costs)} times less than making it again. "
    told = [f"{life} costs least " + ("not held" if tier == "again" else f"in {WORDS[tier]}") for life, tier in lives.items()]
    return words + f"Of the lifetimes that sellers offer, {' and '.join(told)}."


BOARD = Board(
    name="tiers", title="Where should a cache wait?", order=120, section=15, asked=Asked, answer=answer,
    spoken={"system": "gb200-nvl72", "held": 3600, "kv": "fp8"},
    today={"system": "gb300-nvl72", "held": 300, "context": 32_768, "reach": 0.5},
    bar=("model", "system", "weights", "kv"),
)  # fmt: skip
