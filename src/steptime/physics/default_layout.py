"""The default layout of a replica: the smallest conventional layout that fits.

This is one chip where the model fits on one chip. A conventional layout is the layout of `vllm serve --tensor-parallel-size
N`: tensor parallelism inside the scale-up domain, experts over all chips, and pipeline stages beyond the domain. Sizes are
powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.layout_space import legal

# Chips of one replica: eight racks of 72 hold every model of the catalogue.
MOST_CHIPS: Final = 1024
DEGREES: Final = ("tp", "pp", "dp", "ep", "cp")


def default_layout(
    model: Model, system: System, *, engine: Engine | None = None, batch: Number = 1, context: Number = 1
) -> Layout:
    """Return the smallest conventional layout that fits, one chip where possible.

    Args:
        model: The model.
        system: The system.
        engine: Excludes layouts that this engine cannot run; by default no layout is excluded.
        batch: Sequences in flight in the replica, which should fit where a scale-up domain allows it; the
            minimum of an array.
        context: Context of each sequence [tokens]; the minimum of an array.

    Returns:
        A layout of one replica. It is one chip where no layout fits the model, so that the answer names memory
        as the reason.
    """
    sequences, tokens = float(np.min(batch)), float(np.min(context))
    sizes = _sizes(system)

    # First the weights with one sequence, then the requested batch where it does not need a second scale-up domain.
    smallest = _smallest(model, system, engine, sizes, 1.0, tokens)
    if smallest is None or int(smallest.chips) == 1 or sequences <= 1:
        return smallest or Layout()
    inside = [chips for chips in sizes if int(smallest.chips) <= chips <= max(system.scale_up.size, int(smallest.chips))]
    return _smallest(model, system, engine, inside, sequences, tokens) or smallest


def _sizes(system: System) -> list[int]:
    largest = int(min(MOST_CHIPS, system.scale_out.size))
    return [2**n for n in range(largest.bit_length()) if 2**n <= largest]


def _smallest(
    model: Model, system: System, engine: Engine | None, sizes: Sequence[int], batch: float, context: float
) -> Layout | None:
    """Return the conventional layout on the fewest chips that fits the sequences."""
    for chips in sizes:
        layouts = [
            candidate
            for candidate in legal(model, system, chips, microbatches=(1,), engine=engine)
            if int(candidate.chips) == chips and int(candidate.dp) == int(candidate.cp) == 1
        ]
        if not layouts:
            continue
        # As few pipeline stages as possible, then as many expert-parallel ranks as possible.
        layout = min(layouts, key=lambda candidate: (int(candidate.pp), -int(candidate.ep)))
        if bool(np.all(memory_per_chip(model, system, batch=batch, context=context, layout=layout).fits)):
            degrees = {name: int(getattr(layout, name)) for name in DEGREES}
            return Layout(**degrees, microbatches=degrees["pp"])
    return None


def most_spread(layouts: Sequence[Layout]) -> Layout:
    """Return the layout with the most chips.

    Experts are spread over all chips, with data-parallel attention. Without experts, heads are divided.

    Args:
        layouts: Layouts of one replica each; at least one.

    Returns:
        One of the layouts.
    """
    size = max(int(layout.chips) for layout in layouts)
    largest_layouts = [layout for layout in layouts if int(layout.chips) == size]
    return max(largest_layouts, key=lambda layout: (int(layout.ep), -int(layout.tp) if layout.ep > 1 else int(layout.tp)))
