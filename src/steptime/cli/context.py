"""The command `steptime context`."""

from typing import Annotated

import typer

from steptime.cli.budget import check_picture
from steptime.cli.option_groups import grouped
from steptime.cli.options import CSV, JSON, LIMITS, OUTPUT, Rented, count, option
from steptime.cli.output import check_outputs, console_of, patience, print_json, show, write_csv, wrote
from steptime.errors import InputError

CACHE = "Cache"


@grouped
def context(
    asked: Rented,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE",
            help="How the cache is kept instead: kv=int4, window=4096, keep=8192, share=2, kv_heads=1, latent=512, rank=0.5, "
            "topk=2048, blocks=128x16 (16 blocks of 128 tokens). @5of6, @full or @local behind one says in which layers; + "
            "joins several: window=1024@5of6+kv=int8. Repeatable.",
            show_default="the usual ones that the model can have",
            rich_help_panel=CACHE,
        ),
    ] = None,
    at: Annotated[int, count("--context", "Tokens of context at which they are held against one another.", CACHE)] = 131_072,
    speed: Annotated[float, option("Least output speed for each user, in tok/s.", LIMITS)] = 20.0,
    usd: Annotated[
        float | None,
        option(
            "Most that decoding a million output tokens may cost, in USD; prompts are not counted in.", LIMITS,
            show_default="what it costs as it is, at --context",
        ),
    ] = None,
    chips: Annotated[
        int | None, count("--chips", "Chips that one replica may take.", LIMITS, show_default="a scale-up domain, at most 128")
    ] = None,
    plot: Annotated[
        str | None,
        option("Draw cost against length of context, by technique, to a PNG, SVG or PDF file.", OUTPUT, metavar="FILE"),
    ] = None,
    csv: CSV = None,
    json: JSON = False,
) -> None:  # fmt: skip
    """Tell how long a context may be for a speed and a price, and what windows, latents or selection would change."""
    from steptime.number_checks import MOST_CHIPS, limit, positive, whole
    from steptime.sweep.context_limit import LEAST, context_walls
    from steptime.sweep.context_limit_result import LONGEST

    check_outputs({"--csv": csv, "--plot": plot}, asked.files())
    if plot is not None:
        check_picture(plot)
    model, system, engine = asked.read()
    limit("--speed", speed, "tok/s", least=1e-6)
    positive("--usd", 1.0 if usd is None else usd, "USD")
    whole("--context", at, least=LEAST, most=LONGEST, unit="token")
    whole("--chips", 1 if chips is None else chips, most=MOST_CHIPS)
    if technique is not None and not all(one.strip() for one in technique):
        raise InputError("--technique is empty; the model as it is comes first anyhow")
    with patience("Trying layouts and batches for each length of context ..."):
        found = context_walls(
            model, system, techniques=technique or None, context=at, tpot=1 / speed, usd_per_million=usd, chips=chips or 0,
            engine=engine,
        )  # fmt: skip
    if csv is not None:
        write_csv(csv, found)
    if plot is not None:
        from steptime.sweep.context_plot import plot as draw

        draw(found, plot)
        wrote(plot, "the picture of costs by length")
    if json:
        print_json(found)
    else:
        from steptime.cli.views.context_view import contexts_view

        console = console_of()
        show(contexts_view(found, console.width), console=console)
    if found.reason:
        raise typer.Exit(1)
