"""Shared texts of decode-step boards: layout options, Python call, sum of a step."""

from __future__ import annotations

from collections.abc import Mapping

from steptime.physics.layout import Layout
from steptime.svg import PART_NAMES, PARTS
from steptime.units import show
from steptime.web.board_inputs import Shared
from steptime.web.snippets import loaded

PARALLEL_AXES = ("tp", "dp", "ep", "pp", "cp")


def parallel_sizes(layout: Layout) -> dict[str, int]:
    """Return the parallel sizes of a layout that are not 1.

    Args:
        layout: The layout.

    Returns:
        Sizes by axis: tp, dp, ep, pp, cp.
    """
    return {name: int(getattr(layout, name)) for name in PARALLEL_AXES if int(getattr(layout, name)) > 1}


def layout_options(layout: Layout) -> dict[str, int]:
    """Return the command-line options of a layout.

    Args:
        layout: The layout.

    Returns:
        Sizes by option, such as --tp.
    """
    return {f"--{name}": size for name, size in parallel_sizes(layout).items()}


def decode_call(inputs: Shared, layout: Layout, *, batch: int, context: int) -> str:
    """Return the Python call that computes a decode step.

    Args:
        inputs: Inputs of the bar.
        layout: Layout of one replica.
        batch: Sequences per replica.
        context: Tokens of each sequence.

    Returns:
        Python expression.
    """
    model, system = loaded(inputs)
    sizes = ", ".join(f"{name}={size}" for name, size in parallel_sizes(layout).items())
    engine = f", engine={inputs.engine!r}" if inputs.engine else ""
    return f"st.decode_step({model}, {system}, batch={batch}, context={context}, layout=st.Layout({sizes}){engine}).total"


def show_step_sum(parts: Mapping[str, float], total: float) -> str:
    """Return the step time as a sum of its parts.

    Args:
        parts: Seconds by part.
        total: Seconds of the step.

    Returns:
        Line of text.

    >>> show_step_sum({"compute": 1e-3, "weights": 2e-3, "kv": 0.0, "network": 0.0, "overhead": 0.0}, 3e-3)
    'step = 1.00 ms arithmetic + 2.00 ms weights = 3.00 ms'
    """
    listed = " + ".join(f"{show(parts[name], 's')} {PART_NAMES[name]}" for name in PARTS if parts[name] > 0)
    return f"step = {listed} = {show(total, 's')}"
