"""What a price list tells of the model behind it, by the lecture and by what is known of sellers: lecture sections 13 to 15."""

from __future__ import annotations

import math
import shlex
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.decode_latency import memory_over_compute
from steptime.blackboard.price_signals import ratio_below_step
from steptime.errors import InputError
from steptime.lecture.current_figures import kv_bytes
from steptime.pricing.lecture_inversion import Ideal, IdealReading
from steptime.pricing.price_estimate import Reading
from steptime.pricing.price_inversion import PriceReading, read_prices
from steptime.units import in_digits, show
from steptime.web.board import Answer, Board, Figure
from steptime.web.board_inputs import Shared, slider
from steptime.web.page_subject import WrongField
from steptime.web.snippets import python

CONTEXTS: Final = np.geomspace(1e3, 2e6, 121)
KNOWN: Final = {"DeepSeek-V3": "deepseek-v3", "Llama 3.3 70B": "llama-3.3-70b"}
LEAST, MOST = 0.01, 200.0  # USD per million


class Asked(Shared):
    """A price list of two tiers."""

    input: float = slider(2, LEAST, MOST, "input", "USD per million", "Price of a prompt's tokens.", log=True)
    output: float = slider(12, LEAST, MOST, "output", "USD per million", "Price of an answer's tokens.", log=True)
    cached: float = slider(0.2, LEAST / 10, MOST, "input from a cache", "USD per million", "Price of a hit.", log=True)
    tier: int = slider(200_000, 8000, 1_000_000, "dearer above", "tokens", "Context from which requests cost more.", log=True)
    dearer: float = slider(
        18, LEAST, MOST, "output above it", "USD per million", "As below it: a list without a step.", log=True
    )
    above: float = slider(4, LEAST, MOST, "input above it", "USD per million", "Input of long requests.", log=True, more=True)
    active: float = slider(1e11, 1e9, 1e12, "active parameters", "", "As the lecture supposes.", log=True, more=True)
    balance: float = slider(
        300, 50, 1000, "balance of the machine", "", "R: multiplies for each weight read.", log=True, more=True
    )


def answer(asked: Asked) -> Answer:
    """Return prices against context, and KV bytes as they are read from them."""
    found = _read(asked)
    ideal, kv = found.ideal, found["kv_bytes_per_token"]
    contexts = np.unique(np.concatenate([CONTEXTS, [asked.tier, asked.tier + 1]]))
    over = contexts > asked.tier
    stepped = math.isfinite(ideal.kv_bytes)
    apart = asked.input * ratio_below_step(ideal.threshold, contexts) if stepped else np.full(contexts.shape, np.nan)
    together = np.maximum(memory_over_compute(1.0, contexts, ideal.joint_batch, ideal.balanced), 1.0) * asked.input
    rows = [("the break alone", ideal.kv_bytes), ("break and ratio", ideal.joint_kv_bytes)]
    rows += list(zip(KNOWN, map(float, kv_bytes(list(KNOWN.values()))), strict=True))
    low, high = kv.interval or (math.nan, math.nan)
    return Answer(
        tables={
            "prices": {
                "context": contexts, "output": np.where(over, asked.dearer, asked.output),
                "input": np.where(over, asked.above, asked.input), "cached": np.full(contexts.shape, asked.cached),
                "apart": apart, "together": together,
            },
            "bytes": {
                "name": [name for name, _ in rows], "bytes": [size for _, size in rows],
                "known": [name in KNOWN for name, _ in rows],
            },
        },
        marks={
            "tier": asked.tier, "at": asked.output, "low": low, "high": high, "median": kv.value, "bound": kv.bound,
            "identifiable": kv.identifiable, "reason": kv.reason.split(";")[0],
        },
        sentence=_sentence(asked, found, kv),
        figures=_finite(
            Figure(name="output over input", value=ideal.ratio, words="Section 14: memory over arithmetic of a decode step."),
            Figure(name="decode runs at", value=ideal.decode_utilisation, unit="%", words="Of what prefill reaches."),
            Figure(name="KV bytes, section 13", value=ideal.kv_bytes, unit="B", words="If memory wins at the break."),
            Figure(name="KV bytes, 90 % low", value=low, unit="B", words="What sellers' own lists have held, in BF16."),
            Figure(name="KV bytes, 90 % high", value=high, unit="B", words="The same, at the upper end."),
            Figure(name="KV bytes, at most", value=kv.bound, unit="B", words="If the seller does not lose by a long request."),
            Figure(name="told by the list", value=kv.bits, unit="bits", words="Beyond the spread of models without it."),
            Figure(name="a hit is cheaper", value=asked.input / asked.cached, unit="times", words="Section 15."),
        ),
        formula=_formula(asked, ideal, stepped=stepped),
        command=f"printf {shlex.quote(_toml(asked))} > list.toml && steptime prices --list list.toml --read --lecture "
        f"--active {asked.active:.0f} --balance {asked.balance:g}",
        python=python(
            "from steptime.pricing.lecture_inversion import Ideal\n\n"
            f"prices = {_fields(asked)!r}\nideal = Ideal(balance={asked.balance:g}, active={asked.active:g})\n"
            "found = st.read_prices(prices, ideal=ideal)\n"
            'found.ideal.kv_bytes, found["kv_bytes_per_token"].interval'
        ),
        notes=(f"such intervals {kv.held}, such bounds {kv.bound_held}, on models of known size",) if kv.bound_held else (),
    )  # fmt: skip


def _finite(*figures: Figure) -> tuple[Figure, ...]:
    return tuple(one for one in figures if math.isfinite(one.value))


def _formula(asked: Asked, ideal: IdealReading, *, stepped: bool) -> tuple[str, ...]:
    """Return the lecture's formulas with the numbers in place; without a step there is one."""
    used = f"{asked.input:g} / {asked.output:g} = {100 * ideal.decode_utilisation:.3g} %"
    first = f"section 14: decode runs at input / output = {used}"
    if not stepped:
        return (first,)
    return (
        first,
        f"section 13: kappa = b N / (R L) = {ideal.ideal.weight_bytes:g} B x {show(asked.active)} / ({asked.balance:g} x "
        f"{asked.tier:,}) = {show(ideal.kv_bytes, 'B')}",
        f"both: L* = {in_digits(ideal.balanced)} tokens, kappa = {show(ideal.joint_kv_bytes, 'B')}, "
        f"B*/B = {in_digits(ideal.joint_batch)}",
    )


def _fields(asked: Asked) -> dict[str, Any]:
    tier = {"above_tokens": asked.tier, "input": asked.above, "output": asked.dearer}
    return {"input": asked.input, "output": asked.output, "cache_read": asked.cached, "tiers": [tier]}


def _toml(asked: Asked) -> str:
    first = f"input = {asked.input:g}\\noutput = {asked.output:g}\\ncache_read = {asked.cached:g}\\n"
    return first + f"[[tiers]]\\nabove_tokens = {asked.tier}\\ninput = {asked.above:g}\\noutput = {asked.dearer:g}\\n"


@lru_cache(maxsize=256)
def _read(asked: Asked) -> PriceReading:
    if asked.cached > asked.input:
        raise WrongField("cached", "a cached token cannot be dearer than a fresh one")
    try:
        return read_prices(_fields(asked), ideal=Ideal(balance=asked.balance, active=asked.active))
    except InputError as error:
        raise WrongField("input", str(error)) from None


def _sentence(asked: Asked, found: PriceReading, kv: Reading) -> str:
    ideal = found.ideal
    first = (
        f"Output costs {in_digits(ideal.ratio)} times input: by the lecture decode uses "
        f"{100 * ideal.decode_utilisation:.0f} % of the chips. "
    )
    if not kv.identifiable:
        return first + f"The list does not tell KV bytes: {kv.reason}."
    first += (
        f"The break at {asked.tier:,} tokens would mean {show(ideal.kv_bytes, 'B')} of KV cache a token; the prices "
        f"themselves say {kv.ends} (90 %), and tell {in_digits(kv.bits, 2)} bits. "
    )
    if ideal.consistent:
        return first + "Ratio and break agree."
    return (
        first
        + "Ratio and break contradict each other: if memory wins only above it, short answers should cost what input does."
    )


BOARD = Board(
    name="prices", order=110, section=15, asked=Asked, answer=answer, bar=(),
    title="What does a price list tell of the model behind it?",
    spoken={"input": 2, "output": 12, "cached": 0.2, "tier": 200_000, "dearer": 18, "above": 4},
    today={"input": 5, "output": 30, "cached": 0.5, "tier": 272_000, "dearer": 45, "above": 10},
)  # fmt: skip
