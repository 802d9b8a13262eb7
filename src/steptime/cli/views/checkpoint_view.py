"""Terminal view of the checkpoint files of a model: exact bytes by part and dtype, compared with the model's."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.widgets import table
from steptime.describe.model_summary import ModelCard
from steptime.models.checkpoint_summary import CheckpointSummary
from steptime.units import counted, show

MAX_DIFFERENCES = 8  # lines of differences that are shown


def disk_facts(card: ModelCard) -> list[tuple[str, str]]:
    """Return the bytes of the files, and how the model's weights compare.

    Args:
        card: figures of the model.

    Returns:
        Names with values; nothing for a model without files.
    """
    checkpoint = card.checkpoint
    if checkpoint is None:
        return []
    size = f"{checkpoint.bytes:,} B ({show(checkpoint.bytes, 'B')}) in {counted(checkpoint.files, checkpoint.kind + ' file')}"
    lines = [("Tensors on disk", f"{size}: {counted(checkpoint.tensors, 'tensor')}, {show(checkpoint.parameters)} parameters")]
    lines.append(("  by dtype", ", ".join(f"{show(dtype.bytes, 'B')} {dtype.name}" for dtype in checkpoint.dtypes)))
    if not checkpoint.missing:
        lines.append(("Weights here less those on disk", _compared(card, checkpoint)))
    return lines


def _compared(card: ModelCard, checkpoint: CheckpointSummary) -> str:
    """Say how far the weights of the model, with those of its draft layers, are from the tensors on disk."""
    difference = round(card.weight_bytes + card.draft_weight_bytes) - checkpoint.bytes
    if not difference:
        return "equal to the byte"
    return f"{difference:+,} B ({difference / checkpoint.bytes:+.3%})" if checkpoint.bytes else f"{difference:+,} B"


def disk_tables(card: ModelCard) -> list[RenderableType]:
    """Return the bytes on disk by part of the model, and the tensors that only one of both counts.

    Args:
        card: figures of the model.

    Returns:
        Tables; nothing for a model without files.
    """
    checkpoint = card.checkpoint
    if checkpoint is None:
        return []
    parts = table("On disk", "Tensors", "Parameters", "Bytes", "Scales, zeros", numbers=(1, 2, 3, 4), first_to_go=(2, 1))
    for part in checkpoint.groups:
        scales = f"{part.scales:,}" if part.scales else "-"
        parts.add_row(part.name, f"{part.tensors:,}", show(part.parameters), f"{part.bytes:,}", scales)
    if not checkpoint.differences:
        return [parts]
    difference_grid = table("Not in the model's weights", "Part", "Number", "Bytes", numbers=(2, 3), first_to_go=(1,))
    for difference in checkpoint.differences[:MAX_DIFFERENCES]:
        difference_grid.add_row(difference.name, difference.group, f"{difference.count:,}", f"{difference.bytes:+,}")
    if further_differences := checkpoint.differences[MAX_DIFFERENCES:]:
        number, size = (
            sum(difference.count for difference in further_differences),
            sum(difference.bytes for difference in further_differences),
        )
        difference_grid.add_row(f"{counted(len(further_differences), 'other kind')}", "", f"{number:,}", f"{size:+,}")
    return [parts, Text(""), difference_grid] if not checkpoint.missing else [parts]
