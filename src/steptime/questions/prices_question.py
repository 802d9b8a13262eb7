"""The question `prices`: the prices of an open-weight model at its sellers, and the cost of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from steptime.pricing.kv_storage_cost import read_holds
from steptime.pricing.market import Market, survey_prices
from steptime.questions.declaration import Reader, bind, number, question_of_result, read_answers, text, texts
from steptime.questions.plan_question import read_modes

READ_GROUP, REQUEST_GROUP = "What is read", "Requests"


@dataclass(frozen=True, kw_only=True)
class PricesInputs:
    """Inputs of `prices`: a model with open weights, and a request."""

    model: Any = text(MISSING, "model with open weights: catalogue name", positional=True)
    provider: str | None = text(None, "name of the only seller to show", group=READ_GROUP, metavar="NAME")
    date: str | None = text(
        None,
        "time of prices and rents: a day, 2026-03-01, or an hour, 2026-11-20T02:00Z",
        group=READ_GROUP,
        metavar="DATE",
        default_words="the newest",
    )
    speed: Any = number(40.0, "output speed for each user in tok/s", unit="tok/s", group=REQUEST_GROUP)
    mix: str = text(
        "4096:1024",
        "request mix: prompt tokens, output tokens, and cached share of the prompt (0 to 1)",
        group=REQUEST_GROUP,
        metavar="IN:OUT[:CACHED]",
    )
    mode: str = text("any", "deployment mode: aggregated, disaggregated, or any", group=REQUEST_GROUP)
    hold: Any = texts(
        "cost of KV cache storage per tier, USD per GB-hour, such as DRAM=0.0005; repeatable",
        group=REQUEST_GROUP,
        metavar="TIER=USD",
    )
    catalog: str | None = text(
        None,
        "folder with a subfolder models/ or systems/, searched before the packaged catalogue",
        group=READ_GROUP,
        metavar="FOLDER",
    )


def solve(values: Mapping[str, Any], *, update: bool = False) -> Market:
    """Return the market of a model: its offers, and the cost of the same request.

    Args:
        values: Values of `PricesInputs` by name.
        update: Whether to download the newest prices first. Nothing else uses the network.

    Returns:
        Offers, costs on plausible systems, and margins.
    """
    inputs = bind(PricesInputs, values, "prices")
    return survey_prices(
        str(inputs.model), provider=inputs.provider, price_time=inputs.date, speed=inputs.speed, mix=inputs.mix,
        mode=read_modes(inputs.mode), hold=read_holds(list(inputs.hold) or None), catalog=inputs.catalog, update=update,
    )  # fmt: skip


def _lowest(market: Market) -> float:
    # Systems without a feasible plan have no cost.
    costs = [cost.usd_per_request for cost in market.costs if cost.feasible]
    return min(costs) if costs else float("nan")


READS: Final[Mapping[str, Reader]] = {
    "sellers": Reader(meaning="number of offers", value=lambda market: len(market.offers)),
    "lowest_price": Reader(meaning="lowest price of the request", unit="USD", value=lambda market: min(market.prices)),
    "highest_price": Reader(meaning="highest price of the request", unit="USD", value=lambda market: max(market.prices)),
    "lowest_cost": Reader(meaning="lowest cost of the request on a plausible system", unit="USD", value=_lowest),
}
PRICES = question_of_result(
    "prices",
    "prices of a model at its sellers, and what its tokens cost",
    form=PricesInputs,
    solve=solve,
    reads=READS,
    shows=tuple(READS),
    seconds=3.0,
)


def summary(market: Market) -> dict[str, Any]:
    """Return the answers of the question from its result.

    Args:
        market: Result of `solve`.

    Returns:
        Answers by name, in base units.
    """
    return read_answers(READS, market)
