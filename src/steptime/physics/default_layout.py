"""The default layout of a replica: one chip where the model fits it, else the smallest conventional layout that fits.

Conventional is what `vllm serve --tensor-parallel-size N` runs: tensor parallelism inside the scale-up domain, experts over
all chips, and pipeline stages beyond the domain. Sizes are powers of two.
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

MOST_CHIPS: Final = 1024  # of one replica: eight racks of 72 hold every model of the catalogue
DEGREES: Final = ("tp", "pp", "dp", "ep", "cp")


def default_layout(
    model: Model, system: System, *, engine: Engine | None = None, batch: Number = 1, context: Number = 1
) -> Layout:
    """Return one chip where the model fits it, else the smallest conventional layout that fits.

    Args:
        model: The model.
        system: The machine.
        engine: Leaves out what it cannot run; by default any can.
        batch: Sequences in flight in the replica, held where a scale-up domain holds them; the least where it is an array.
        context: Context of each [tokens]; the least where it is an array.

    Returns:
        One replica. One chip where no layout holds the model, so that memory is what an answer then names.
    """
    sequences, tokens = float(np.min(batch)), float(np.min(context))
    sizes = _sizes(system)
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
    """Return the conventional layout on the fewest chips that holds sequences beside the weights."""
    for chips in sizes:
        layouts = [
            candidate
            for candidate in legal(model, system, chips, microbatches=(1,), engine=engine)
            if int(candidate.chips) == chips and int(candidate.dp) == int(candidate.cp) == 1
        ]
        if not layouts:
            continue
        layout = min(layouts, key=lambda candidate: (int(candidate.pp), -int(candidate.ep)))
        if bool(np.all(memory_per_chip(model, system, batch=batch, context=context, layout=layout).fits)):
            degrees = {name: int(getattr(layout, name)) for name in DEGREES}
            return Layout(**degrees, microbatches=degrees["pp"])
    return None


def most_spread(layouts: Sequence[Layout]) -> Layout:
    """Return the layout that uses most chips: experts over all, attention by copies; without experts heads are divided."""
    size = max(int(layout.chips) for layout in layouts)
    largest_layouts = [layout for layout in layouts if int(layout.chips) == size]
    return max(largest_layouts, key=lambda layout: (int(layout.ep), -int(layout.tp) if layout.ep > 1 else int(layout.tp)))
