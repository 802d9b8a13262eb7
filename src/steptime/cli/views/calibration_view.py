"""What the terminal shows of runs that are kept: of what they are, and by which factors they set answers right."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.widgets import table
from steptime.physics.bias_correction import Anchors, Factor


def anchors_view(found: Anchors) -> RenderableType:
    """Return a row for each group of runs; where there are none, how they are added."""
    if not found.anchors:
        return Text("No runs are kept: `steptime anchors add FILE` keeps those of a load generator or a CSV.")
    shown = table("Name", "Model", "System", "Engine", "Runs", "Time per token", "First token", numbers=(4, 5, 6))
    for one in found.anchors:
        engine = f"{one.engine} {one.version}".strip()
        shown.add_row(one.source, one.model, one.system, engine, f"{len(one.runs):,}", _factor(one.tpot), _factor(one.ttft))
    left = [Text(f"Left out: {why}.") for one in found.anchors for why in one.left_out]
    return Group(shown, *left)


def _factor(found: Factor | None) -> str:
    return "" if found is None else f"x {found.factor:.3f}"
