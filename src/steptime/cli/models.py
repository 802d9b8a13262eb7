"""The commands `steptime models`, `systems` and `engines`: lists of the catalogue, and cards of its entries."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.options import (
    CATALOG,
    NEEDED,
    OUTPUT,
    RENT,
    SET,
    Output,
    count,
    declared,
    grouped,
    not_empty,
    option,
    read_system,
    read_systems,
    with_rent,
)
from steptime.cli.output import check_outputs, print_json, write_out
from steptime.errors import InputError
from steptime.questions.subject import PromptMedia, Subject

if TYPE_CHECKING:
    from steptime.models.model import Model


@dataclass(frozen=True, kw_only=True)
class ModelFormats:
    """Options that change the number formats of a model."""

    weights: str | None = declared(Subject, "weights")
    experts: str | None = declared(Subject, "experts")
    kv: str | None = declared(Subject, "kv")

    def read_model(self, name: str, catalog: str | None) -> "Model":
        """Return a model in these number formats.

        Args:
            name: Name in the catalogue, or path of a config.
            catalog: Folder that is searched before the packaged catalogue.

        Returns:
            The model.
        """
        from steptime.models.model_loading import load_model

        for option_name, text in vars(self).items():
            not_empty(f"--{option_name}", text, NEEDED[option_name])
        return load_model(name, weights=self.weights or "", experts=self.experts or "", kv=self.kv or "", catalog=catalog)


@grouped
def models(
    ctx: typer.Context,
    formats: ModelFormats,
    media: PromptMedia,
    output: Output,
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
    catalog: CATALOG = None,
) -> None:
    """List the models, compare some of them, or show one.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.describe import model_summary as cards
    from steptime.number_checks import whole_number
    from steptime.questions.image_cost import image_cost

    requested_names, lists, has_media = list(names or []), not names and not compare, bool(media.image or media.audio)
    if new:
        if compare or like or context != 8192 or has_media or any(vars(formats).values()):
            excluded_options = "--table, --like, --context, --weights, --experts, --kv, --image and --audio"
            raise InputError(f"--new reads a config as it stands: {excluded_options} do not go with it")
        _show_new(requested_names, catalog, output)
        return
    needs = {
        "the whole list or --table, not names": (not requested_names, "like"),
        "a model, or --table": (not lists, "context weights experts kv"),
        "one model": (len(requested_names) == 1 and not compare, "image audio"),
        "the list or a table": (len(requested_names) != 1 or compare or has_media, "csv"),
        "another answer than --image": (not has_media, "context"),
    }
    output.check(ctx, needs, requested_names)
    whole_number("--context", context, unit="token")
    model_names = requested_names or _matching_names(like, catalog)
    loaded_models = [] if lists else [formats.read_model(name, catalog) for name in model_names]
    if has_media:
        output.print(image_cost(loaded_models[0], list(media.image), audio=list(media.audio)), "catalog_view.image_view")
    elif lists:
        output.print(cards.model_table(like, catalog), "catalog_view.models_view")
    elif len(loaded_models) == 1 and not compare:
        output.print(cards.model_card(loaded_models[0], context=context), "catalog_view.model_view")
    else:
        output.print(cards.compared(loaded_models, context=context), "catalog_view.comparison_view")


def _show_new(names: list[str], catalog: str | None, output: Output) -> None:
    """Print each config as it is read; unreadable ones of several are an error at the end."""
    from steptime.describe.model_summary import config_card
    from steptime.models.model_loading import config_folder, load_config_fields, model_label

    if not names:
        raise InputError("--new needs a config.json, its folder, or a name: steptime models --new path/to/config.json")
    if output.csv is not None and len(names) > 1:
        raise InputError("--csv holds the layers of one config; name one, or leave it out")
    check_outputs({"--csv": output.csv}, names)
    cards, refused = [], []
    for name in names:
        try:
            cards.append(config_card(load_config_fields(name, catalog), name=model_label(name), folder=config_folder(name)))
        except InputError as error:
            if len(names) == 1:
                raise
            refused.append(f"{name}: {error}")
    if output.json and len(names) > 1:
        print_json([card.to_dict() for card in cards])
    for index, card in enumerate(cards if not output.json or len(names) == 1 else ()):
        if index:
            write_out("\n")
        output.print(card, "catalog_view.config_view")
    if refused:
        raise InputError("; ".join(refused))


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


@grouped
def systems(
    ctx: typer.Context,
    output: Output,
    name: Annotated[
        str | None, typer.Argument(help="System to show. Without it: the list of systems.", show_default=False)
    ] = None,
    toml: Annotated[bool, option("Print the system's file as a template for a new one.", OUTPUT, "--toml")] = False,
    set_: SET = None,
    rent: RENT = None,
    catalog: CATALOG = None,
) -> None:
    """List the systems, or show one: balance, drain time, links, rent, and where each figure comes from.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.describe import system_summary as cards

    needs = {
        "the NAME of a system": (name is not None, "set_ toml"),
        "the list, not the NAME of a system": (name is None, "csv"),
        "text, not --json or --toml": (not (output.json or toml), "full"),
        "a file as it is, not --json, --set or --rent": (not (output.json or set_ or rent), "toml"),
    }
    output.check(ctx, needs)
    if name is None:
        listed = read_systems(catalog)
        vendors = {system.name: system.chip.vendor for system in listed}
        output.print(cards.system_table(listed, rent=rent), "catalog_view.systems_view", vendors=vendors)
    elif toml:
        from steptime.catalog.system_template import template

        write_out(template(name, catalog))
    else:
        system = with_rent(read_system(name, set_, catalog), rent, set_)
        output.print(cards.system_card(system), "catalog_view.system_view")


@grouped
def engines(
    ctx: typer.Context,
    output: Output,
    name: Annotated[
        str | None,
        typer.Argument(help="An engine or a training stack to show; without it, all are listed.", show_default=False),
    ] = None,
    catalog: CATALOG = None,
) -> None:
    """List the serving engines and the training stacks, or show the constants of one.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.catalog.data_files import files
    from steptime.describe import system_summary as cards
    from steptime.physics.engine import load_engine
    from steptime.training.training_stack import load_stack

    output.check(ctx, {"the list, not the NAME of an engine": (name is None, "csv")})
    stacks, engine_names = files("stacks", catalog), files("engines", catalog)
    if name is None:
        table = cards.engine_table(load_engine(engine, catalog) for engine in ("ideal", *engine_names))
        output.print(table, "catalog_view.engines_view", stacks=stacks, catalog=catalog)
    elif name in stacks and name not in engine_names:
        output.print(load_stack(name, catalog), "training_view.stack_view")
    else:
        output.print(cards.engine_table([load_engine(name, catalog)]).engines[0], "catalog_view.engine_view")
