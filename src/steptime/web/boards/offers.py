"""Board: prices of an open model at its sellers, for one request. Sections 13 to 15."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from steptime.pricing.market import Mix, family_named
from steptime.pricing.price_lookup import NEWEST, Offer, find_offers
from steptime.units import counted, in_digits, percent
from steptime.web.board import Answer, Board, Figure, Shared, columns, finite_figures, is_config, question_input, slider
from steptime.web.page_subject import WrongField, at_field, catalog_model

# Most sellers of the picture.
MAX_OFFERS: Final = 24


class Inputs(Shared):
    """A request."""

    prompt: int = question_input("plan.input", 4096, 16, 262_144, label="prompt", log=True)
    output: int = question_input("plan.output", 1024, high=65_536, log=True)
    cached: float = slider(0, 0, 0.99, "share of the prompt in a cache", "", "Cached input costs less at many sellers.")


def answer(inputs: Inputs) -> Answer:
    """Return the price of the request at each seller.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.

    Raises:
        WrongField: The model is pasted, or nobody sells it.
    """
    if is_config(inputs.model):
        raise WrongField("model", "a pasted config.json has no sellers; choose a model of the catalogue")
    family = at_field("model", family_named, at_field("model", catalog_model, inputs.model).name).family
    mix = Mix(input_tokens=inputs.prompt, output_tokens=inputs.output, cached_share=inputs.cached)
    offers = sorted((offer for offer in find_offers(family) if math.isfinite(mix.price(offer))), key=mix.price)
    if not offers:
        raise WrongField("model", f"no seller of {family} is known")
    prices = np.array([mix.price(offer) for offer in offers])
    median, output_ratio = float(np.median(prices)), float(np.median([offer.output / offer.input for offer in offers]))
    request = f"{inputs.prompt}:{inputs.output}" + (f":{inputs.cached:g}" if inputs.cached else "")
    first, last = offers[0], offers[-1]
    return Answer(
        tables={
            "offers": columns("seller role variant price input output cache_read date", (
                (
                    offer.provider, offer.role, offer.variant, price, offer.input, offer.output, _finite(offer.cache_read),
                    offer.retrieval_date,
                )
                for offer, price in zip(offers[:MAX_OFFERS], prices, strict=False)
            )),
        },
        marks={"median": median, "sellers": len(offers)},
        sentence=(
            f"{first.provider} sells a request of {inputs.prompt:,} and {inputs.output:,} tokens of {family} for the lowest "
            f"of {counted(len(offers), 'price')}, ${in_digits(float(prices[0]))}; {last.provider} asks "
            f"{in_digits(float(prices[-1] / prices[0]))} times as much. Output costs {in_digits(output_ratio)} times input at "
            "the median seller."
        ),
        figures=finite_figures(
            Figure("lowest price", float(prices[0]), "USD", f"Of the request, at {first.provider}."),
            Figure("median price", median, "USD"),
            Figure("highest price", float(prices[-1]), "USD", f"At {last.provider}."),
            Figure("output over input", output_ratio, "x", "Median of the sellers."),
            Figure("input over cached", _cache_ratio(offers), "x", "Median of the sellers that have a cache price."),
        ),
        formula=tuple(
            f"{offer.provider}: {inputs.prompt:,} x ${offer.input:g} + {inputs.output:,} x ${offer.output:g} per million"
            + (f", {percent(inputs.cached)} of the prompt cached" if inputs.cached else "")
            for offer in offers[:MAX_OFFERS]
        ),
        notes=(
            f"prices of {NEWEST}; `steptime prices` compares them with the cost of serving on eight systems",
            *([f"{len(offers) - MAX_OFFERS} higher prices are not shown"] if len(offers) > MAX_OFFERS else []),
        ),
        command=f"steptime prices {inputs.model} --mix {request}",
        python=f"market = st.survey_prices({inputs.model!r}, mix={request!r})\nmin(market.prices)",
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cache_ratio(offers: list[Offer]) -> float:
    ratios: list[Any] = [
        offer.input / offer.cache_read for offer in offers if math.isfinite(offer.cache_read) and offer.cache_read > 0
    ]
    return float(np.median(ratios)) if ratios else math.nan


BOARD = Board(
    name="offers", title="What do sellers ask for the tokens of a model?", order=105, section=13, inputs=Inputs, answer=answer,
    spoken={"model": "deepseek-ai/DeepSeek-V3", "prompt": 20_000, "output": 1000},
    today={"model": "zai-org/GLM-5.2", "prompt": 8192, "output": 1024, "cached": 0.5}, bar=("model",),
)  # fmt: skip
