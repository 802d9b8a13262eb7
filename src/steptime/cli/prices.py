"""The command `steptime prices`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.catalog.data_files import find
from steptime.cli.options import CATALOG, Output, declared, grouped, not_empty, option, read_system
from steptime.cli.output import counting_plans
from steptime.errors import InputError, RangeError, UnknownName, short_repr
from steptime.questions.declaration import text as declare_text
from steptime.questions.economics_questions import PRICES, PricesInputs, solve_prices
from steptime.questions.plan_question import read_modes
from steptime.units import count as read_count

if TYPE_CHECKING:
    from steptime.pricing.price_inversion import PriceReading

SOURCE, INVERSION = "Prices", "Estimates from one price list (--read)"


@dataclass(frozen=True, kw_only=True)
class PriceQuery:
    """Model, seller, date, and the requests that are sold."""

    model: str | None = declare_text(
        None, "open model: all its sellers are shown; with --read a seller's model, such as openai/gpt-6-sol", positional=True
    )
    system: str | None = declare_text(None, "system that serves the model, with --target-margin", positional=True)
    provider: str | None = declared(PricesInputs, "provider")
    date: str | None = declared(PricesInputs, "date")
    list_: Annotated[
        str | None, option("Your own price list as TOML, for the estimates of --read.", SOURCE, "--list", metavar="FILE.toml")
    ] = None
    is_inversion: Annotated[bool, option("Estimate a model's size and KV cache from its price list.", SOURCE, "--read")] = False
    history: Annotated[bool, option("Show the history of prices and rents, day by day.", SOURCE, "--history")] = False
    target_margin: Annotated[
        float | None, option("Propose a price list at this price / cost on SYSTEM, such as 2.", SOURCE, metavar="TIMES")
    ] = None
    self_host: Annotated[
        str | None, option("Compare API prices with own chips of this system, at --tokens-per-day.", SOURCE, metavar="SYSTEM")
    ] = None
    tokens_per_day: Annotated[
        str | None, option("Input and output tokens of a day, such as 500M, for --self-host.", SOURCE, metavar="N")
    ] = None
    spare: Annotated[int, option("Further replicas of own chips, for --self-host.", SOURCE, metavar="N")] = 0
    update: Annotated[bool, option("Download the newest prices first. Nothing else uses the network.", SOURCE, "--update")] = (
        False
    )
    catalog: CATALOG = None
    speed: Any = declared(PricesInputs, "speed")
    ttft: Any = declared(PricesInputs, "ttft")
    mix: str = declared(PricesInputs, "mix")
    mode: str = declared(PricesInputs, "mode")
    chips: str | None = declared(PricesInputs, "chips")
    evidence: str = declared(PricesInputs, "evidence")
    hold: Any = declared(PricesInputs, "hold")


@dataclass(frozen=True, kw_only=True)
class Assumptions:
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


@grouped
def prices(ctx: typer.Context, query: PriceQuery, assumptions: Assumptions, output: Output) -> None:
    """Compare API prices with the cost of serving the model; estimate a model from its price list, or propose prices.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    is_inversion = query.is_inversion or query.list_ is not None
    _check(ctx, query, assumptions, output, is_inversion=is_inversion)
    if query.target_margin is not None:
        from steptime.pricing.kv_storage_cost import read_holds
        from steptime.pricing.price_proposal import propose_prices

        with counting_plans("steptime: planning at several speeds and contexts ..."):
            proposal = propose_prices(
                str(query.model), str(query.system), margin=query.target_margin, speed=query.speed, mix=query.mix,
                mode=read_modes(query.mode), hold=read_holds(query.hold), chips=query.chips,
                catalog=query.catalog,
            )  # fmt: skip
        output.print(proposal, "prices_view.proposal_view")
    elif query.self_host is not None:
        from steptime.pricing.self_hosting import compare_self_hosting
        from steptime.pricing.serving_costs import plan_chips

        machine = read_system(query.self_host, None, query.catalog)
        with counting_plans(f"steptime: planning on {query.self_host} ..."):
            comparison = compare_self_hosting(
                str(query.model), machine,
                tokens_per_day=float(read_count(str(query.tokens_per_day), "--tokens-per-day")), speed=query.speed,
                ttft=query.ttft, evidence=query.evidence, mix=query.mix,
                mode=read_modes(query.mode), provider=query.provider, spare=query.spare,
                chips=None if query.chips is None else plan_chips(machine, query.chips), catalog=query.catalog,
            )  # fmt: skip
        output.print(comparison, "prices_view.self_hosting_view")
        if not comparison.feasible:
            raise typer.Exit(1)
    elif is_inversion:
        output.print(_invert_list(query, assumptions), "prices_view.reading_view", lecture=assumptions.lecture)
    elif query.history:
        from steptime.pricing.price_history import price_history

        model, provider = str(query.model), query.provider
        history = price_history(model, provider=provider, speed=query.speed, mix=query.mix, catalog=query.catalog)
        output.print(history, "prices_view.history_view")
    else:
        names = ("model", "provider", "date", "speed", "ttft", "mix", "mode", "chips", "evidence", "hold", "catalog")
        with counting_plans("steptime: planning on eight systems ..."):
            market = solve_prices({name: getattr(query, name) for name in names}, update=query.update)
        output.print(market, "prices_view.market_view", summary=PRICES.read_result)


def _check(ctx: typer.Context, query: PriceQuery, assumptions: Assumptions, output: Output, *, is_inversion: bool) -> None:
    """Refuse what does not go together, before any work."""
    if query.model is None and query.list_ is None:
        raise InputError(
            "prices needs a model, such as deepseek-v3, a seller's, such as openai/gpt-6-sol with --read, or --list FILE.toml"
        )
    if query.model is not None and query.list_ is not None:
        raise RangeError("--list names your own list, and a model is named too; keep one of the two")
    is_proposal = query.target_margin is not None
    questions = {"--read": is_inversion, "--history": query.history, "--target-margin": is_proposal}
    is_hosting = query.self_host is not None
    questions["--self-host"] = is_hosting
    several = [name for name, is_given in questions.items() if is_given]
    if len(several) > 1:
        raise RangeError(f"{' and '.join(several)} are different questions; keep one")
    if query.system is not None and not is_proposal:
        try:
            find("systems", query.system)
        except UnknownName:
            words = f"{short_repr(query.system)} is left over; an option takes one word, such as --tokens-per-day 2B"
            raise RangeError(words) from None
        raise RangeError(
            f"a system ({short_repr(query.system)}) goes with --target-margin 2; without it all plausible systems are used"
        )
    if is_proposal and query.system is None:
        raise RangeError("--target-margin needs a system after the model: prices deepseek-v3 gb200-nvl72 --target-margin 2")
    if is_hosting != (query.tokens_per_day is not None):
        raise RangeError("--self-host SYSTEM and --tokens-per-day N go together: --self-host hgx-h100 --tokens-per-day 500M")
    not_empty("--self-host", query.self_host, "a system, such as hgx-h100")
    not_empty("--provider", query.provider, "the name of a seller")
    not_empty("--chips", query.chips, "a number, or usual")
    not_empty("--date", query.date, "a day, such as 2026-03-01")
    needs = {
        "--read or --list": (is_inversion, "margin fast_speed lecture balance active short long seed"),
        "--lecture": (assumptions.lecture or not is_inversion, "short long"),
        "a model at its sellers or a proposal, not a list that is read": (not is_inversion, "mode mix catalog chips"),
        "a model at its sellers or --self-host": (not is_inversion and not is_proposal and not query.history, "ttft evidence"),
        "a model at its sellers or a list, not --history": (not query.history, "mode chips date hold update"),
        "prices that are sold, not --target-margin": (not is_proposal, "provider date update"),
        "--self-host": (is_hosting, "spare"),
        "a call without --self-host, which uses today's prices": (not is_hosting, "date update hold"),
    }
    output.check(ctx, needs, [query.list_] if query.list_ else [])
    read_modes(query.mode)


def _invert_list(query: PriceQuery, assumptions: Assumptions) -> "PriceReading":
    from steptime.pricing.kv_storage_cost import read_holds
    from steptime.pricing.price_inversion import Ideal, read_prices
    from steptime.pricing.price_list import read_list
    from steptime.units import count

    size, short, long = (float(count(getattr(assumptions, name), f"--{name}")) for name in ("active", "short", "long"))
    return read_prices(
        str(query.model) if query.list_ is None else read_list(query.list_), provider=query.provider, price_time=query.date,
        margin=assumptions.margin, speed=query.speed, fast_speed=assumptions.fast_speed, hold=read_holds(query.hold),
        ideal=Ideal(balance=assumptions.balance, active=size, short=short, long=long), seed=assumptions.seed,
        update=query.update,
    )  # fmt: skip
