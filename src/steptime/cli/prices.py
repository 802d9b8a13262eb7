"""The command `steptime prices`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.option_groups import grouped
from steptime.cli.options import BRIEF, CATALOG, CSV, JSON, modes_of, not_empty, option, refuse_idle
from steptime.cli.output import check_outputs, console_of, patience, print_json, show, write_csv
from steptime.errors import InputError, RangeError, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steptime.pricing.price_list import PriceList
    from steptime.result_base import Tabular

READ, ASK, BACK = "What is read", "Requests", "Reading backward"


@dataclass(frozen=True, kw_only=True)
class What:
    """Whose prices."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="A model with open weights, at all its sellers; with --read a seller's model, such as openai/gpt-6-sol.",
            show_default=False,
        ),
    ] = None
    system: Annotated[str | None, typer.Argument(help="With --target-margin: what serves it.", show_default=False)] = None
    provider: Annotated[str | None, option("One seller.", READ, metavar="NAME")] = None
    at: Annotated[
        str | None, option("Prices and rents of a day, 2026-03-01, or an hour, 2026-11-20T02:00Z.", READ, metavar="DATE")
    ] = None
    list_: Annotated[
        str | None, option("A list of your own as TOML, read backward (`--read`).", READ, "--list", metavar="FILE.toml")
    ] = None
    read: Annotated[bool, option("Read one list backward.", READ, "--read")] = False
    history: Annotated[bool, option("Prices against the rents of the same days.", READ, "--history")] = False
    target_margin: Annotated[float | None, option("Propose a list at this margin, on SYSTEM.", READ, metavar="TIMES")] = None
    update: Annotated[bool, option("Fetch the newest prices first: the only use of a network.", READ, "--update")] = False
    catalog: CATALOG = None


@dataclass(frozen=True, kw_only=True)
class Sold:
    """What is sold."""

    speed: Annotated[float, option("Output speed for each user, in tok/s.", ASK)] = 40.0
    mix: Annotated[str, option("Prompt, answer, and cached share of the prompt.", ASK, metavar="IN:OUT[:CACHED]")] = "4096:1024"
    mode: Annotated[str, option("aggregated, disaggregated, or any: the cheaper of both.", ASK)] = "any"


@dataclass(frozen=True, kw_only=True)
class Backward:
    """How a list is read backward."""

    margin: Annotated[
        str | None,
        option(
            "Price over cost: a number, or a 90 % range such as 1.2..7.",
            BACK,
            metavar="LOW..HIGH",
            show_default="the host market's",
        ),
    ] = None
    fast_speed: Annotated[float | None, option("How many times as fast the fast service is.", BACK, metavar="TIMES")] = None
    hold: Annotated[
        list[str] | None,
        option("Cost of holding a cache, USD per GB-hour, such as DRAM=0.0005. Repeatable.", BACK, metavar="TIER=USD"),
    ] = None
    lecture: Annotated[bool, option("The lecture's closed forms too (sections 5, 13 to 15).", BACK, "--lecture")] = False
    balance: Annotated[float, option("R of the lecture's machine.", BACK, "--balance", metavar="R")] = 300.0
    active: Annotated[str, option("Active parameters of the lecture's model.", BACK, "--active", metavar="N")] = "100B"
    short: Annotated[str, option("Usual context below a step, for the lecture's joint reading.", BACK, metavar="TOKENS")] = (
        "20k"
    )
    long: Annotated[str, option("Usual context above it.", BACK, metavar="TOKENS")] = "400k"
    seed: Annotated[int, option("Of the draws.", BACK)] = 0
    brief: BRIEF = False
    csv: CSV = None
    json: JSON = False


@grouped
def prices(ctx: typer.Context, what: What, sold: Sold, backward: Backward) -> None:
    """Hold a model's prices against what its tokens cost; or read a price list backward, or propose one."""
    from steptime.pricing.market import Market
    from steptime.questions.prices_question import summary

    reading = what.read or what.list_ is not None
    _check(ctx, what, sold, backward, reading=reading)
    if what.target_margin is not None:
        found, view = _proposed(what, sold, backward)
    elif reading:
        found, view = _read(what, sold, backward)
    elif what.history:
        found, view = _history(what, sold)
    else:
        found, view = _surveyed(what, sold, backward)
    if backward.csv is not None:
        write_csv(backward.csv, found)
    if backward.json:
        survey = found if isinstance(found, Market) else None
        print_json(found if survey is None else survey.to_dict(summary=summary(survey)))
    else:
        console = console_of()
        show(view(console.width), console=console)


def _check(ctx: typer.Context, what: What, sold: Sold, backward: Backward, *, reading: bool) -> None:
    """Refuse what does not go together, before any work."""
    if what.model is None and what.list_ is None:
        raise InputError(
            "prices needs a model, such as deepseek-v3, a seller's, such as openai/gpt-6-sol with --read, or --list FILE.toml"
        )
    if what.model is not None and what.list_ is not None:
        raise RangeError("--list is a list of your own, and a model is named too; keep one of the two")
    several = [
        name
        for name, on in (("--read", reading), ("--history", what.history), ("--target-margin", what.target_margin is not None))
        if on
    ]
    if len(several) > 1:
        raise RangeError(f"{' and '.join(several)} are different questions; keep one")
    if what.system is not None and what.target_margin is None:
        raise RangeError(
            f"a system ({shown(what.system)}) goes with --target-margin 2; sellers are held against all plausible systems"
        )
    if what.target_margin is not None and what.system is None:
        raise RangeError("--target-margin needs a system after the model: prices deepseek-v3 gb200-nvl72 --target-margin 2")
    for name, text, needs in (
        ("--provider", what.provider, "the name of a seller"),
        ("--at", what.at, "a day, such as 2026-03-01"),
    ):
        not_empty(name, text, needs)
    refuse_idle(
        ctx,
        {
            "--read or --list": (reading, "margin fast_speed lecture balance active short long seed"),
            "--lecture": (backward.lecture or not reading, "short long"),
            "a model at its sellers or a proposal, not a list that is read": (not reading, "mode mix catalog"),
            "a model at its sellers or a list, not --history": (not what.history, "mode at hold update brief"),
            "prices that are sold, not --target-margin": (what.target_margin is None, "provider at update brief"),
            "text, not --json": (not backward.json, "brief"),
        },
    )
    modes_of(sold.mode)
    check_outputs({"--csv": backward.csv}, [what.list_] if what.list_ else [])


def _read(what: What, sold: Sold, backward: Backward) -> "tuple[Tabular, _View]":
    from steptime.pricing.kv_storage_cost import read_holds
    from steptime.pricing.lecture_inversion import Ideal
    from steptime.pricing.price_inversion import read_prices
    from steptime.pricing.price_list import read_list
    from steptime.units import count

    given: PriceList | str = read_list(what.list_) if what.list_ is not None else str(what.model)
    size, short, long = (
        float(count(text, name))
        for text, name in ((backward.active, "--active"), (backward.short, "--short"), (backward.long, "--long"))
    )
    found = read_prices(
        given,
        provider=what.provider,
        at=what.at,
        margin=backward.margin,
        speed=sold.speed,
        fast_speed=backward.fast_speed,
        hold=read_holds(backward.hold),
        ideal=Ideal(balance=backward.balance, active=size, short=short, long=long),
        seed=backward.seed,
        update=what.update,
    )

    def view(width: int) -> "RenderableType":
        from steptime.cli.views.prices_view import reading_view

        return reading_view(found, width, lecture=backward.lecture, brief=backward.brief)

    return found, view


def _surveyed(what: What, sold: Sold, backward: Backward) -> "tuple[Tabular, _View]":
    from steptime.questions.prices_question import solve as survey_prices

    values = {
        "model": what.model, "provider": what.provider, "at": what.at, "speed": sold.speed, "mix": sold.mix, "mode": sold.mode,
        "hold": tuple(backward.hold or ()), "catalog": what.catalog,
    }  # fmt: skip
    with patience("steptime: planning on eight systems ..."):
        found = survey_prices(values, update=what.update)

    def view(width: int) -> "RenderableType":
        from steptime.cli.views.prices_view import market_view

        return market_view(found, width, brief=backward.brief)

    return found, view


def _history(what: What, sold: Sold) -> "tuple[Tabular, _View]":
    from steptime.pricing.price_history import price_history

    found = price_history(str(what.model), provider=what.provider, speed=sold.speed, mix=sold.mix, catalog=what.catalog)

    def view(width: int) -> "RenderableType":
        from steptime.cli.views.prices_view import history_view

        return history_view(found, width)

    return found, view


def _proposed(what: What, sold: Sold, backward: Backward) -> "tuple[Tabular, _View]":
    from steptime.pricing.kv_storage_cost import read_holds
    from steptime.pricing.price_proposal import propose_prices

    with patience("steptime: planning at several speeds and contexts ..."):
        found = propose_prices(
            str(what.model),
            str(what.system),
            margin=float(what.target_margin or 0),
            speed=sold.speed,
            mix=sold.mix,
            mode=modes_of(sold.mode),
            hold=read_holds(backward.hold),
            catalog=what.catalog,
        )

    def view(width: int) -> "RenderableType":
        from steptime.cli.views.prices_view import proposal_view

        return proposal_view(found, width)

    return found, view


if TYPE_CHECKING:
    from collections.abc import Callable

    _View = Callable[[int], RenderableType]
