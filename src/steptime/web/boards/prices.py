"""Board: what a price list implies about the model behind it. Sections 13 to 15."""

from __future__ import annotations

import math
import shlex
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime import blackboard
from steptime.lecture.current_figures import kv_bytes
from steptime.pricing.price_estimate import Reading
from steptime.pricing.price_inversion import Ideal, IdealReading, PriceReading, read_prices
from steptime.units import in_digits, percent, show
from steptime.web.board import Answer, Board, Figure, Shared, columns, finite_figures, slider
from steptime.web.page_subject import WrongField, at_field

CONTEXTS: Final = np.geomspace(1e3, 2e6, 121)
OPEN_MODELS: Final = {"DeepSeek-V3": "deepseek-v3", "Llama 3.3 70B": "llama-3.3-70b"}


def _price(default: float, name: str, words: str, *, low: float = 0.01, is_advanced: bool = False) -> Any:
    """Declare a price per million tokens."""
    return slider(default, low, 200.0, name, "USD per million", words, log=True, is_advanced=is_advanced)


class Inputs(Shared):
    """A price list with two context tiers."""

    input: float = _price(2, "input", "Price of prompt tokens.")
    output: float = _price(12, "output", "Price of output tokens.")
    cached: float = _price(0.2, "input from a cache", "Price of prompt tokens that hit the cache.", low=0.001)
    tier: int = slider(200_000, 8000, 1_000_000, "higher price above", "tokens", "Longer requests cost more.", log=True)
    dearer: float = _price(18, "output above it", "Output price of long requests; equal to the price below: no price step.")
    above: float = _price(4, "input above it", "Input price of long requests.", is_advanced=True)
    active: float = slider(1e11, 1e9, 1e12, "active parameters", "", "As the lecture assumes.", log=True, is_advanced=True)
    balance: float = slider(300, 50, 1000, "balance R", "", "Multiplies per weight read.", log=True, is_advanced=True)


def answer(inputs: Inputs) -> Answer:
    """Return prices against context, and the KV bytes that they imply.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The prices are invalid.
    """
    estimate = _invert_prices(inputs)
    ideal, kv = estimate.ideal, estimate["kv_bytes_per_token"]
    contexts = np.unique(np.concatenate([CONTEXTS, [inputs.tier, inputs.tier + 1]]))
    over, stepped = contexts > inputs.tier, math.isfinite(ideal.kv_bytes)
    prices_by_break = inputs.input * blackboard.ratio_below_step(ideal.threshold, contexts) if stepped else contexts * np.nan
    # The lecture's second reading uses the break and the ratio of output to input together.
    ratio = blackboard.memory_over_compute(1.0, contexts, ideal.joint_batch, ideal.balanced)
    together = np.maximum(ratio, 1.0) * inputs.input
    rows = [("price break only", ideal.kv_bytes, False), ("break and ratio", ideal.joint_kv_bytes, False)]
    rows += [(name, float(size), True) for name, size in zip(OPEN_MODELS, kv_bytes([*OPEN_MODELS.values()]), strict=True)]
    low, high = kv.interval or (math.nan, math.nan)
    return Answer(
        tables={
            "prices": {
                "context": contexts, "output": np.where(over, inputs.dearer, inputs.output),
                "input": np.where(over, inputs.above, inputs.input), "cached": np.full(contexts.shape, inputs.cached),
                "apart": prices_by_break, "together": together,
            },
            "bytes": columns("name bytes known", rows),
        },
        marks={
            "tier": inputs.tier, "at": inputs.output, "low": low, "high": high, "median": kv.value, "bound": kv.bound,
            "identifiable": kv.identifiable, "reason": kv.reason.split(";")[0],
        },
        sentence=_sentence(inputs, estimate, kv),
        figures=finite_figures(
            Figure("output over input", ideal.ratio, "x", "Section 14: memory time over arithmetic time of a decode step."),
            Figure("decode utilization", ideal.decode_utilisation, "%", "Relative to prefill."),
            Figure("KV bytes, price break", ideal.kv_bytes, "B", "If decode becomes memory-bound at the price break."),
            Figure("KV bytes, 90 % low", low, "B", "Range on price lists of known models, in BF16."),
            Figure("KV bytes, 90 % high", high, "B", "Upper end of the range."),
            Figure("KV bytes, at most", kv.bound, "B", "If a long request does not cost the seller more than its price."),
            Figure("information in the list", kv.bits, "bits", "Beyond the spread of models without a list."),
            Figure("input over cached input", inputs.input / inputs.cached, "x", "Section 15."),
        ),
        # Without a price step, only the ratio of output to input says something.
        formula=_formula(inputs, ideal)[: None if stepped else 1],
        command=f"printf {shlex.quote(_toml(inputs))} > list.toml && steptime prices --list list.toml --read --lecture "
        f"--active {inputs.active:.0f} --balance {inputs.balance:g}",
        python="from steptime.pricing.price_inversion import Ideal\n\n"
        f"prices = {_fields(inputs)!r}\nideal = Ideal(balance={inputs.balance:g}, active={inputs.active:g})\n"
        "estimate = st.read_prices(prices, ideal=ideal)\n"
        'estimate.ideal.kv_bytes, estimate["kv_bytes_per_token"].interval',
        notes=(f"on models of known size: ranges {kv.interval_held}, bounds {kv.bound_held}",) if kv.bound_held else (),
    )  # fmt: skip


def _formula(inputs: Inputs, ideal: IdealReading) -> tuple[str, ...]:
    used = f"{inputs.input:g} / {inputs.output:g} = {100 * ideal.decode_utilisation:.3g} %"
    return (
        f"section 14: decode utilization = input / output = {used}",
        f"section 13: kappa = b N / (R L) = {ideal.ideal.weight_bytes:g} B x {show(inputs.active)} / ({inputs.balance:g} x "
        f"{inputs.tier:,}) = {show(ideal.kv_bytes, 'B')}",
        f"both: L* = {in_digits(ideal.balanced)} tokens, kappa = {show(ideal.joint_kv_bytes, 'B')}, "
        f"B*/B = {in_digits(ideal.joint_batch)}",
    )


def _fields(inputs: Inputs) -> dict[str, Any]:
    tier = {"above_tokens": inputs.tier, "input": inputs.above, "output": inputs.dearer}
    return {"input": inputs.input, "output": inputs.output, "cache_read": inputs.cached, "tiers": [tier]}


def _toml(inputs: Inputs) -> str:
    first = f"input = {inputs.input:g}\\noutput = {inputs.output:g}\\ncache_read = {inputs.cached:g}\\n"
    return first + f"[[tiers]]\\nabove_tokens = {inputs.tier}\\ninput = {inputs.above:g}\\noutput = {inputs.dearer:g}\\n"


@lru_cache(maxsize=256)
def _invert_prices(inputs: Inputs) -> PriceReading:
    if inputs.cached > inputs.input:
        raise WrongField("cached", "cached: must be at most the price of input")
    ideal = Ideal(balance=inputs.balance, active=inputs.active)
    return at_field("input", read_prices, _fields(inputs), ideal=ideal)


def _sentence(inputs: Inputs, estimate: PriceReading, kv: Reading) -> str:
    ideal = estimate.ideal
    first = (
        f"Output costs {in_digits(ideal.ratio)} times as much as input: by the lecture, decode uses "
        f"{percent(ideal.decode_utilisation)} of the arithmetic. "
    )
    if not kv.identifiable:
        return first + f"The list does not determine the KV bytes: {kv.reason}."
    first += (
        f"The price break at {inputs.tier:,} tokens implies {show(ideal.kv_bytes, 'B')} of KV cache per token; the prices "
        f"give {kv.ends} (90 % range) and {in_digits(kv.bits, 2)} bits of information. "
    )
    if ideal.consistent:
        return first + "Price ratio and price break agree."
    words = "if decode is memory-bound only above the break, short requests should have equal prices for input and output."
    return f"{first}Price ratio and price break disagree: {words}"


BOARD = Board(
    name="prices", order=110, section=15, inputs=Inputs, answer=answer, bar=(),
    title="What does a price list show about the model behind it?",
    spoken={"input": 2, "output": 12, "cached": 0.2, "tier": 200_000, "dearer": 18, "above": 4},
    today={"input": 5, "output": 30, "cached": 0.5, "tier": 272_000, "dearer": 45, "above": 10},
)  # fmt: skip
