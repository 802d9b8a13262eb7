"""The command `steptime prices`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import CATALOG, CSV, FULL, JSON, grouped, not_empty, option, read_modes, refuse_idle
from steptime.cli.output import check_outputs, patience, print_result
from steptime.errors import InputError, RangeError, short_repr

if TYPE_CHECKING:
    from steptime.pricing.price_list import PriceList
    from steptime.result_base import Tabular

SOURCE, REQUESTS, INVERSION = "Prices", "Requests", "Estimates from one price list (--read)"


@dataclass(frozen=True, kw_only=True)
class PriceQuery:
    """Model, seller and date."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="Open model: all its sellers are shown. With --read: a seller's model, such as openai/gpt-6-sol.",
            show_default=False,
        ),
    ] = None
    system: Annotated[
        str | None, typer.Argument(help="System that serves the model, with --target-margin.", show_default=False)
    ] = None
    provider: Annotated[
        str | None, option("Name of the only seller to show.", SOURCE, metavar="NAME", show_default="all sellers")
    ] = None
    date: Annotated[
        str | None,
        option("Prices and rents of a day, 2026-03-01, or an hour, 2026-11-20T02:00Z.", SOURCE, "--date", metavar="DATE"),
    ] = None
    list_: Annotated[
        str | None, option("Your own price list as TOML, for the estimates of --read.", SOURCE, "--list", metavar="FILE.toml")
    ] = None
    is_inversion: Annotated[bool, option("Estimate a model's size and KV cache from its price list.", SOURCE, "--read")] = False
    history: Annotated[bool, option("Show the history of prices and rents, day by day.", SOURCE, "--history")] = False
    target_margin: Annotated[
        float | None, option("Propose a price list at this price / cost on SYSTEM, such as 2.", SOURCE, metavar="TIMES")
    ] = None
    update: Annotated[bool, option("Download the newest prices first. Nothing else uses the network.", SOURCE, "--update")] = (
        False
    )
    catalog: CATALOG = None


@dataclass(frozen=True, kw_only=True)
class Sold:
    """Requests that are sold."""

    speed: Annotated[float, option("Output speed for each user, in tok/s.", REQUESTS)] = 40.0
    mix: Annotated[
        str, option("Prompt tokens, output tokens, and cached share of the prompt.", REQUESTS, metavar="IN:OUT[:CACHED]")
    ] = "4096:1024"
    mode: Annotated[str, option("Deployment mode: aggregated, disaggregated, or any (the cheaper).", REQUESTS)] = "any"


@dataclass(frozen=True, kw_only=True)
class Backward:
    """Assumptions for estimates from one price list."""

    margin: Annotated[
        str | None,
        option(
            "Assumed price / cost: a number, or a 90 % range such as 1.2..7.",
            INVERSION,
            metavar="LOW..HIGH",
            show_default="that of open models on H100 and H200",
        ),
    ] = None
    fast_speed: Annotated[
        float | None,
        option(
            "Speed of the fast service / speed of standard.", INVERSION, metavar="TIMES", show_default="as the seller promises"
        ),
    ] = None
    hold: Annotated[
        list[str] | None,
        option(
            "Your cost of cache storage in USD per GB-hour, such as DRAM=0.0005, instead of the assumed one. Repeatable.",
            INVERSION,
            metavar="TIER=USD",
        ),
    ] = None
    lecture: Annotated[bool, option("Add the lecture's formulas (sections 5, 13 to 15).", INVERSION, "--lecture")] = False
    balance: Annotated[
        float, option("Lecture only: multiplies per weight read (R) of the machine.", INVERSION, "--balance", metavar="R")
    ] = 300.0
    active: Annotated[str, option("Lecture only: active parameters of the model.", INVERSION, "--active", metavar="N")] = "100B"
    short: Annotated[
        str, option("Lecture only: typical prompt length below the long-context price.", INVERSION, metavar="TOKENS")
    ] = "20k"
    long: Annotated[
        str, option("Lecture only: typical prompt length above the long-context price.", INVERSION, metavar="TOKENS")
    ] = "400k"
    seed: Annotated[int, option("Seed of the random draws.", INVERSION)] = 0
    full: FULL = False
    csv: CSV = None
    json: JSON = False


@grouped
def prices(ctx: typer.Context, query: PriceQuery, sold: Sold, backward: Backward) -> None:
    """Compare API prices with the cost of serving the model; estimate a model from its price list, or propose prices.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.pricing.market import Market
    from steptime.pricing.price_history import price_history
    from steptime.questions.economics_questions import PRICES

    reading = query.is_inversion or query.list_ is not None
    _check(ctx, query, sold, backward, reading=reading)
    if query.target_margin is not None:
        table: Tabular = _propose(query, sold, backward)
    elif reading:
        table = _invert_list(query, sold, backward)
    elif query.history:
        table = price_history(str(query.model), provider=query.provider, speed=sold.speed, mix=sold.mix, catalog=query.catalog)
    else:
        table = _survey(query, sold, backward)
    print_result(
        table, "prices_view.prices_view", csv=backward.csv, json=backward.json,
        summary=PRICES.read_result if isinstance(table, Market) else None, lecture=backward.lecture, full=backward.full,
    )  # fmt: skip


def _check(ctx: typer.Context, query: PriceQuery, sold: Sold, backward: Backward, *, reading: bool) -> None:
    """Refuse what does not go together, before any work."""
    if query.model is None and query.list_ is None:
        raise InputError(
            "prices needs a model, such as deepseek-v3, a seller's, such as openai/gpt-6-sol with --read, or --list FILE.toml"
        )
    if query.model is not None and query.list_ is not None:
        raise RangeError("--list names your own list, and a model is named too; keep one of the two")
    several = [
        name
        for name, is_given in (
            ("--read", reading),
            ("--history", query.history),
            ("--target-margin", query.target_margin is not None),
        )
        if is_given
    ]
    if len(several) > 1:
        raise RangeError(f"{' and '.join(several)} are different questions; keep one")
    if query.system is not None and query.target_margin is None:
        raise RangeError(
            f"a system ({short_repr(query.system)}) goes with --target-margin 2; without it all plausible systems are used"
        )
    if query.target_margin is not None and query.system is None:
        raise RangeError("--target-margin needs a system after the model: prices deepseek-v3 gb200-nvl72 --target-margin 2")
    for name, text, needs in (
        ("--provider", query.provider, "the name of a seller"),
        ("--date", query.date, "a day, such as 2026-03-01"),
    ):
        not_empty(name, text, needs)
    refuse_idle(
        ctx,
        {
            "--read or --list": (reading, "margin fast_speed lecture balance active short long seed"),
            "--lecture": (backward.lecture or not reading, "short long"),
            "a model at its sellers or a proposal, not a list that is read": (not reading, "mode mix catalog"),
            "a model at its sellers or a list, not --history": (not query.history, "mode date hold update"),
            "prices that are sold, not --target-margin": (query.target_margin is None, "provider date update"),
            "text, not --json": (not backward.json, "full"),
        },
    )
    read_modes(sold.mode)
    check_outputs({"--csv": backward.csv}, [query.list_] if query.list_ else [])


def _invert_list(query: PriceQuery, sold: Sold, backward: Backward) -> "Tabular":
    from steptime.pricing.kv_storage_cost import read_holds
    from steptime.pricing.lecture_inversion import Ideal
    from steptime.pricing.price_inversion import read_prices
    from steptime.pricing.price_list import read_list
    from steptime.units import count

    source: PriceList | str = read_list(query.list_) if query.list_ is not None else str(query.model)
    size, short, long = (
        float(count(text, name))
        for text, name in ((backward.active, "--active"), (backward.short, "--short"), (backward.long, "--long"))
    )
    return read_prices(
        source, provider=query.provider, price_time=query.date, margin=backward.margin, speed=sold.speed,
        fast_speed=backward.fast_speed, hold=read_holds(backward.hold),
        ideal=Ideal(balance=backward.balance, active=size, short=short, long=long), seed=backward.seed, update=query.update,
    )  # fmt: skip


def _survey(query: PriceQuery, sold: Sold, backward: Backward) -> "Tabular":
    from steptime.questions.economics_questions import solve_prices as survey_prices

    values = {
        "model": query.model, "provider": query.provider, "date": query.date, "speed": sold.speed, "mix": sold.mix,
        "mode": sold.mode, "hold": tuple(backward.hold or ()), "catalog": query.catalog,
    }  # fmt: skip
    with patience("steptime: planning on eight systems ..."):
        return survey_prices(values, update=query.update)


def _propose(query: PriceQuery, sold: Sold, backward: Backward) -> "Tabular":
    from steptime.pricing.kv_storage_cost import read_holds
    from steptime.pricing.price_proposal import propose_prices

    with patience("steptime: planning at several speeds and contexts ..."):
        return propose_prices(
            str(query.model), str(query.system), margin=float(query.target_margin or 0), speed=sold.speed, mix=sold.mix,
            mode=read_modes(sold.mode), hold=read_holds(backward.hold), catalog=query.catalog,
        )  # fmt: skip
