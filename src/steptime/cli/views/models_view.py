"""What the terminal shows of a config that is new: how sure, layer by layer, and the fields that were not read.

What the terminal shows of the images and recordings of a prompt.
"""

from __future__ import annotations

import json

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import facts, notes, table
from steptime.describe.config_summary import ConfigCard
from steptime.models.config_coverage import EXACT, GUESS, LIKELY
from steptime.questions.image_cost import ImageCost
from steptime.units import show

COLOURS = {EXACT: "green", LIKELY: "yellow", GUESS: "red"}
LONGEST = 60  # letters of a value


def config_view(card: ConfigCard) -> RenderableType:
    """Return the verdict, the sums, a row for each kind of layers, and the fields that nothing asked for."""
    parts: list[RenderableType] = [
        Text.assemble(
            (card.name, "bold"), f", read as {card.read_as}: ", (card.sure, f"bold {COLOURS[card.sure]}"), f"; {card.why}."
        ),
        Text(
            f"{show(card.parameters)} parameters ({card.parameters:,.0f}), {show(card.active)} for a token; "
            f"{show(card.weight_bytes, 'B')} of weights; {card.kv_bytes:,.0f} B of cache a token"
            + (f" and {show(card.state_bytes, 'B')} of state a sequence" if card.state_bytes else "")
            + (f"; {show(card.draft)} parameters of multi-token prediction beside" if card.draft else "")
            + "."
        ),
    ]
    if card.alternatives:
        parts.append(Text(f"By its fields it may as well be {', '.join(card.alternatives)}."))
    parts += [*notes(card.notes), _layers(card), *_ignored(card)]
    if card.sure == GUESS:
        parts += [
            Text(),
            Text(f'To go on with it, set "model_type": "{card.read_as}" in a copy; transformers:FILE reads the code itself.'),
        ]
    return Group(*parts)


def _layers(card: ConfigCard) -> RenderableType:
    grid = table(
        "Layers",
        "Count",
        "What each is",
        "Parameters each",
        "For a token",
        "Cache, B/token",
        numbers=(1, 3, 4, 5),
        first_to_go=(4,),
    )
    for group in card.layers:
        grid.add_row(
            group.layers or "-",
            f"{group.count}",
            group.description,
            show(group.parameters),
            show(group.active),
            f"{group.kv_bytes:,.0f}",
        )
    for name, size in card.stem.items():
        if size:
            grid.add_row("-", "1", name, show(size), "-" if name == "embed_tokens" else show(size), "-")
    return grid


def _ignored(card: ConfigCard) -> list[RenderableType]:
    harmless = [field.name for field in card.ignored if not field.doubtful]
    parts: list[RenderableType] = []
    if card.doubtful:
        parts += [Text(), Text("Not read, and may be architecture", style="bold yellow")]
        for field in card.doubtful:
            near = f" (near {field.near}, which was looked for and is not there)" if field.near else ""
            parts.append(Text(f"  {field.name} = {_short(field.value)}{near}"))
    parts.append(Text())
    parts.append(Text(f"{card.fields} fields, {card.fields - len(card.ignored)} of them read or empty."))
    if harmless:
        parts.append(
            Text(
                f"Not read, and of no effect on what is counted, by comparison or by their names: {', '.join(harmless)}.",
                style="bright_black",
            )
        )
    return parts


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def image_view(cost: ImageCost) -> RenderableType:
    """Return what they become, and the FLOPs of the towers beside those of the language model."""
    grid = table("Size", "How many", "Sequences", "Rows", "Prompt tokens", "FLOPs", numbers=range(1, 6), first_to_go=(2,))
    for row in cost.media:
        flops = show(row.tower_flop, "FLOP")
        grid.add_row(row.size, f"{row.count:,}", f"{row.sequences:,}", f"{row.rows:,}", f"{row.tokens:,}", flops)
    footnote = (
        "Rows, tokens and FLOPs of one of each size. Rows: patches of an image or frames of sound in the tower. FLOPs of the "
        "language model: of a prompt of these tokens alone."
    )
    return Group(
        Text(f"What a prompt of {cost.model} holds", style="bold"),
        grid,
        facts(
            [
                ("Tokens of the prompt", f"{cost.tokens:,}"),
                ("FLOPs of the towers", f"{show(cost.tower_flop, 'FLOP')} ({cost.tower_share:.1%} of both)"),
                ("FLOPs of the language model", show(cost.language_flop, "FLOP")),
                ("Parameters of the towers", f"{cost.tower_parameters:,.0f} ({show(cost.tower_parameters)})"),
            ]
        ),
        Text(footnote, style="bright_black"),
        *notes(cost.notes),
    )
