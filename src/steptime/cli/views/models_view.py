"""Terminal views of `steptime models --new` and `--image`: layers of a new config, and the cost of images and sound."""

from __future__ import annotations

import json

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.answer import Answer, footnote, section
from steptime.cli.views.widgets import table
from steptime.describe.config_summary import ConfigCard
from steptime.models.config_coverage import EXACT, GUESS, LIKELY
from steptime.questions.image_cost import ImageCost
from steptime.units import show

COLOURS = {EXACT: "green", LIKELY: "yellow", GUESS: "red"}
LONGEST = 60  # letters of a value


def config_view(card: ConfigCard, *, full: bool = False) -> RenderableType:
    """Return what a new config is read as.

    Args:
        card: the verdict, layers, and fields that are not read.
        full: whether to show all of it.

    Returns:
        The answer.
    """
    sentence = Text.assemble(
        (card.name, "bold"), f", read as {card.read_as}: ", (card.sure, f"bold {COLOURS[card.sure]}"), f"; {card.why}."
    )
    sizes = f"{show(card.parameters)} parameters ({card.parameters:,.0f}), {show(card.active)} active per token; "
    sizes += f"{show(card.weight_bytes, 'B')} of weights; {card.kv_bytes:,.0f} B of KV cache per token"
    sizes += f" and {show(card.state_bytes, 'B')} of state per sequence" if card.state_bytes else ""
    sizes += f"; {show(card.draft)} more parameters of multi-token prediction" if card.draft else ""
    warnings = [f"its fields also fit {', '.join(card.alternatives)}"] if card.alternatives else []
    if card.sure == GUESS:
        warnings.append(f'to use it, set "model_type": "{card.read_as}" in a copy; transformers:FILE reads the code itself')
    return Answer(
        sentence=sentence, conditions=sizes + ".", body=[*_ignored(card), _layers(card)], warnings=[*warnings, *card.notes],
        full=full,
    )  # fmt: skip


def _layers(card: ConfigCard) -> RenderableType:
    grid = table(
        "Layers", "Count", "Description", "Parameters each", "Active", "Cache, B/token", numbers=(1, 3, 4, 5),
        first_to_go=(4,),
    )  # fmt: skip
    for group in card.layers:
        grid.add_row(
            group.layers or "-", f"{group.count}", group.description, show(group.parameters), show(group.active),
            f"{group.kv_bytes:,.0f}",
        )  # fmt: skip
    for name, size in card.stem.items():
        if size:
            grid.add_row("-", "1", name, show(size), "-" if name == "embed_tokens" else show(size), "-")
    return grid


def _ignored(card: ConfigCard) -> list[RenderableType]:
    """Return the fields that are not read, those that may be architecture first."""
    doubtful = []
    for field in card.doubtful:
        near = f" (near {field.near}, which is expected and missing)" if field.near else ""
        doubtful.append(f"{field.name} = {_short(field.value)}{near}")
    parts: list[RenderableType] = [section("Fields that are not read and may be architecture", doubtful)] if doubtful else []
    harmless = [field.name for field in card.ignored if not field.doubtful]
    counts = f"{card.fields} fields, {card.fields - len(card.ignored)} of them read or empty."
    if harmless:
        counts += f" Not read, without effect on the counts: {', '.join(harmless)}."
    return [*parts, footnote(counts)]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def image_view(cost: ImageCost) -> RenderableType:
    """Return the cost of the images and recordings of a prompt.

    Args:
        cost: tokens and FLOP of each.

    Returns:
        The answer.
    """
    grid = table("Size", "Number", "Sequences", "Rows", "Prompt tokens", "Tower FLOP", numbers=range(1, 6), first_to_go=(2,))
    for row in cost.media:
        flops = show(row.tower_flop, "FLOP")
        grid.add_row(row.size, f"{row.count:,}", f"{row.sequences:,}", f"{row.rows:,}", f"{row.tokens:,}", flops)
    return Answer(
        sentence=f"The images and recordings become {cost.tokens:,} prompt tokens of {cost.model.rpartition('/')[2]}. Its "
        f"towers take {show(cost.tower_flop, 'FLOP')}, {cost.tower_share:.1%} of all FLOP.",
        conditions=f"Language model: {show(cost.language_flop, 'FLOP')} for these tokens. Towers: "
        f"{show(cost.tower_parameters)} parameters.",
        body=[grid, footnote("Of one of each size. Rows: patches of an image, or frames of sound, in the tower.")],
        warnings=cost.notes,
    )
