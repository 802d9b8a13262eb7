"""What the terminal shows of a checkpoint's files: exact bytes by part and dtype, and how far the model's are from them."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.widgets import table
from steptime.describe.model_summary import ModelCard
from steptime.models.checkpoint_summary import Held
from steptime.units import counted, show

MOST = 8  # lines of differences that are shown


def held_facts(card: ModelCard) -> list[tuple[str, str]]:
    """Return what the files hold in all, and how the model's weights compare."""
    held = card.checkpoint
    if held is None:
        return []
    size = f"{held.bytes:,} B ({show(held.bytes, 'B')}) in {counted(held.files, held.kind + ' file')}"
    lines = [("Tensors on disk", f"{size}: {counted(held.tensors, 'tensor')}, {show(held.parameters)} parameters")]
    lines.append(("  by dtype", ", ".join(f"{show(one.bytes, 'B')} {one.name}" for one in held.dtypes)))
    if not held.missing:
        lines.append(("Weights here less those on disk", _compared(card, held)))
    return lines


def _compared(card: ModelCard, held: Held) -> str:
    """Say how far the weights of the model, with those of its draft layers, are from the tensors on disk."""
    less = round(card.weight_bytes + card.draft_weight_bytes) - held.bytes
    if not less:
        return "equal to the byte"
    return f"{less:+,} B ({less / held.bytes:+.3%})" if held.bytes else f"{less:+,} B"


def held_tables(card: ModelCard) -> list[RenderableType]:
    """Return the bytes on disk by part of the model, and what the model does not count of them, or counts besides."""
    held = card.checkpoint
    if held is None:
        return []
    parts = table("On disk", "Tensors", "Parameters", "Bytes", "Scales, zeros", numbers=(1, 2, 3, 4), first_to_go=(2, 1))
    for part in held.groups:
        scales = f"{part.scales:,}" if part.scales else "-"
        parts.add_row(part.name, f"{part.tensors:,}", show(part.parameters), f"{part.bytes:,}", scales)
    if not held.differences:
        return [parts]
    apart = table("Not in the model's weights", "Part", "Number", "Bytes", numbers=(2, 3), first_to_go=(1,))
    for one in held.differences[:MOST]:
        apart.add_row(one.what, one.group, f"{one.count:,}", f"{one.bytes:+,}")
    if rest := held.differences[MOST:]:
        number, size = sum(one.count for one in rest), sum(one.bytes for one in rest)
        apart.add_row(f"{counted(len(rest), 'other kind')}", "", f"{number:,}", f"{size:+,}")
    return [parts, Text(""), apart] if not held.missing else [parts]
