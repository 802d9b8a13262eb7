"""What the terminal shows of runs that are kept: of what they are, and by which factors they set answers right."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import table
from steptime.physics.bias_correction import Anchors, Factor


def anchors_view(anchors: Anchors) -> RenderableType:
    """Return a row for each group of runs; where there are none, how they are added."""
    if not anchors.anchors:
        return Text("No runs are kept: `steptime anchors add FILE` keeps those of a load generator or a CSV.")
    grid = table("Name", "Model", "System", "Engine", "Runs", "Time per token", "First token", numbers=(4, 5, 6))
    for anchor in anchors.anchors:
        engine = f"{anchor.engine} {anchor.version}".strip()
        grid.add_row(
            anchor.source,
            anchor.model,
            anchor.system,
            engine,
            f"{len(anchor.runs):,}",
            _factor(anchor.tpot),
            _factor(anchor.ttft),
        )
    exclusions = [Text(f"Left out: {why}.") for anchor in anchors.anchors for why in anchor.left_out]
    return Group(grid, *exclusions)


def _factor(correction: Factor | None) -> str:
    return "" if correction is None else f"x {correction.factor:.3f}"
