"""What the terminal shows of the images and recordings of a prompt."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cards.images import ImageCost
from steptime.terminal.views.widgets import facts, notes, table
from steptime.units import show


def image_view(cost: ImageCost) -> RenderableType:
    """Return what they become, and the FLOPs of the towers beside those of the language model."""
    shown = table("Size", "How many", "Sequences", "Rows", "Prompt tokens", "FLOPs", numbers=range(1, 6), first_to_go=(2,))
    for row in cost.media:
        flops = show(row.tower_flop, "FLOP")
        shown.add_row(row.size, f"{row.count:,}", f"{row.sequences:,}", f"{row.rows:,}", f"{row.tokens:,}", flops)
    said = (
        "Rows, tokens and FLOPs of one of each size. Rows: patches of an image or frames of sound in the tower. FLOPs of the "
        "language model: of a prompt of these tokens alone."
    )
    return Group(
        Text(f"What a prompt of {cost.model} holds", style="bold"),
        shown,
        facts(
            [
                ("Tokens of the prompt", f"{cost.tokens:,}"),
                ("FLOPs of the towers", f"{show(cost.tower_flop, 'FLOP')} ({cost.tower_share:.1%} of both)"),
                ("FLOPs of the language model", show(cost.language_flop, "FLOP")),
                ("Parameters of the towers", f"{cost.tower_parameters:,.0f} ({show(cost.tower_parameters)})"),
            ]
        ),
        Text(said, style="bright_black"),
        *notes(cost.notes),
    )
