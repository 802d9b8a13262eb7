"""The command `steptime models`.

The command `steptime systems`.

The command `steptime engines`.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import (
    AUDIO,
    CATALOG,
    CSV,
    EXPERTS,
    FULL,
    IMAGES,
    JSON,
    KV,
    OUTPUT,
    RENT,
    SET,
    WEIGHTS,
    count,
    option,
    read_model,
    read_system,
    read_systems,
    refuse_idle,
    with_rent,
)
from steptime.cli.output import check_outputs, make_console, print_json, print_result, show, write_csv, write_out
from steptime.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steptime.models.model import Model
    from steptime.result_base import Tabular


def models(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model names, or paths to a config.json or a checkpoint. One is shown, several are compared, none lists all.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        bool, option("Compare the named models, or those that --like matches, in a table.", OUTPUT, "--table")
    ] = False,
    new: Annotated[
        bool,
        option(
            "Check how a config is read: each layer, the fields that are not read, and how sure the reading is.",
            OUTPUT,
            "--new",
        ),
    ] = False,
    like: Annotated[str, option("List only names that contain this text.", OUTPUT)] = "",
    context: Annotated[int, count("--context", "Context in tokens, for cache size and FLOP (k is 1,000).", OUTPUT)] = 8192,
    weights: WEIGHTS = None,
    experts: EXPERTS = None,
    kv: KV = None,
    image: IMAGES = None,
    audio: AUDIO = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """List the models, compare some of them, or show one.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.describe import model_summary as cards
    from steptime.number_checks import whole_number

    requested_names, lists = list(names or []), not names and not compare
    if new:
        if compare or like or context != 8192 or any((weights, experts, kv, image, audio)):
            excluded_options = "--table, --like, --context, --weights, --experts, --kv, --image and --audio"
            raise InputError(f"--new reads a config as it stands: {excluded_options} do not go with it")
        _show_new(requested_names, catalog, csv, full=full, json=json)
        return
    refuse_idle(
        ctx,
        {
            "the whole list or --table, not names": (not requested_names, "like"),
            "a model, or --table": (not lists, "context weights experts kv"),
            "one model": (len(requested_names) == 1 and not compare, "image audio"),
            "the list or a table": (len(requested_names) != 1 or compare or bool(image or audio), "csv"),
            "another answer than --image": (not (image or audio), "context"),
            "text, not --json": (not json, "full"),
        },
    )
    whole_number("--context", context, unit="token")
    check_outputs({"--csv": csv}, requested_names)
    model_names = requested_names or _matching_names(like, catalog)
    loaded_models = [] if lists else [read_model(name, weights, experts, kv, catalog) for name in model_names]
    if image or audio:
        _show_images(loaded_models[0], image or [], audio or [], csv, json=json)
        return
    if len(loaded_models) == 1 and not compare:
        print_result(cards.model_card(loaded_models[0], context=context), "catalog_view.model_view", json=json, full=full)
        return
    from steptime.cli.views.catalog_view import comparison_view, models_view

    console = make_console()
    if lists:
        listed = cards.model_table(like, catalog)
        _show_table(listed, models_view(listed.models, full=full), csv, json=json)
    else:
        compared = cards.compared(loaded_models, context=context)
        _show_table(compared, comparison_view(compared.models, width=console.width, full=full), csv, json=json)


def _show_images(model: "Model", images: list[str], audio: list[str], csv: str | None, *, json: bool) -> None:
    """Print what the images and recordings of a prompt cost a model."""
    from steptime.cli.views.catalog_view import image_view
    from steptime.questions.image_cost import image_cost

    cost = image_cost(model, images, audio=audio)
    _show_table(cost, image_view(cost), csv, json=json)


def _show_new(names: list[str], catalog: str | None, csv: str | None, *, full: bool, json: bool) -> None:
    """Print each config as it is read; unreadable ones of several are an error at the end."""
    from steptime.describe.model_summary import config_card
    from steptime.models.model_loading import config_folder, load_config_fields, model_label

    if not names:
        raise InputError("--new needs a config.json, its folder, or a name: steptime models --new path/to/config.json")
    if csv is not None and len(names) > 1:
        raise InputError("--csv holds the layers of one config; name one, or leave it out")
    check_outputs({"--csv": csv}, names)
    cards, refused = [], []
    for name in names:
        try:
            cards.append(config_card(load_config_fields(name, catalog), name=model_label(name), folder=config_folder(name)))
        except InputError as error:
            if len(names) == 1:
                raise
            refused.append(f"{name}: {error}")
    if csv is not None:
        write_csv(csv, cards[0])
    if json:
        print_json(cards[0] if len(names) == 1 else [card.to_dict() for card in cards])
    else:
        from steptime.cli.views.catalog_view import config_view

        console = make_console()
        for index, card in enumerate(cards):
            show(*([""] if index else []), config_view(card, full=full), console=console)
    if refused:
        raise InputError("; ".join(refused))


def _show_table(table: "Tabular", view: "RenderableType", csv: str | None, *, json: bool) -> None:
    """Print a table as text or JSON, and write it where a file is named."""
    if csv is not None:
        write_csv(csv, table)
    if json:
        print_json(table)
    else:
        show(view)


def _matching_names(like: str, catalog: str | None) -> list[str]:
    """Return the names of the catalogue that contain a text; raise InputError with the nearest where none does."""
    from steptime.catalog.data_files import files
    from steptime.errors import did_you_mean

    catalog_names = files("models", catalog)
    matches = [name for name in catalog_names if like.casefold() in name.casefold()]
    if not matches:
        near = ", ".join(did_you_mean(like, catalog_names, cutoff=0.0))
        raise InputError(f"--like {like!r} finds no model; the nearest names are {near}")
    return matches


def systems(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="System to show. Without it: the list of systems.", show_default=False)
    ] = None,
    toml: Annotated[bool, option("Print the system's file as a template for a new one.", OUTPUT, "--toml")] = False,
    set_: SET = None,
    rent: RENT = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """List the systems, or show one: balance, drain time, links, rent, and where each figure comes from.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.describe import system_summary as cards

    refuse_idle(
        ctx,
        {
            "the NAME of a system": (name is not None, "set_ toml"),
            "the list, not the NAME of a system": (name is None, "csv"),
            "text, not --json or --toml": (not (json or toml), "full"),
            "a file as it is, not --json, --set or --rent": (not (json or set_ or rent), "toml"),
        },
    )
    check_outputs({"--csv": csv}, ())
    if name is not None:
        if toml:
            from steptime.catalog.system_template import template

            write_out(template(name, catalog))
            return
        card = cards.system_card(with_rent(read_system(name, set_, catalog), rent, set_))
        if json:
            print_json(card)
            return
        from steptime.cli.views.catalog_view import system_view

        show(system_view(card, full=full))
        return
    listed = read_systems(catalog)
    table = cards.system_table(listed, rent=rent)
    if csv is not None:
        write_csv(csv, table)
    if json:
        print_json(table)
        return
    from steptime.cli.views.catalog_view import systems_view

    show(systems_view(table.systems, {system.name: system.chip.vendor for system in listed}, full=full))


def engines(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="An engine or a training stack to show; without it, all are listed.", show_default=False),
    ] = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """List the serving engines and the training stacks, or show the constants of one.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.catalog.data_files import files
    from steptime.describe import system_summary as cards
    from steptime.physics.engine import load_engine

    refuse_idle(ctx, {"the list, not the NAME of an engine": (name is None, "csv"), "text, not --json": (not json, "full")})
    check_outputs({"--csv": csv}, ())
    if name is not None and name in files("stacks", catalog) and name not in files("engines", catalog):
        _stack(name, catalog, full=full, json=json)
        return
    names = ("ideal", *files("engines", catalog)) if name is None else (name,)
    table = cards.engine_table(load_engine(n, catalog) for n in names)
    if csv is not None:
        write_csv(csv, table)
    if json:
        print_json(table if name is None else table.engines[0])
        return
    from steptime.cli.views.catalog_view import engine_view, engines_view

    if name is not None:
        show(engine_view(table.engines[0], full=full))
        return
    from steptime.cli.views.training_view import stacks_view

    show(engines_view(table.engines, stacks_view(files("stacks", catalog), catalog), full=full))


def _stack(name: str, catalog: str | None, *, full: bool, json: bool) -> None:
    """Show a training stack."""
    from steptime.cli.views.training_view import stack_view
    from steptime.training.training_stack import load_stack

    stack = load_stack(name, catalog)
    if json:
        print_json(stack)
    else:
        from rich.console import Group

        from steptime.cli.views.widgets import Answer

        view = stack_view(stack)
        parts = view.renderables if isinstance(view, Group) else [view]
        sentence = f"{stack.name}: {stack.title}, fitted to {stack.fit.get('runs', 0):,} measured runs."
        show(Answer(sentence=sentence, body=parts, full_adds="all constants", files="", full=full))
