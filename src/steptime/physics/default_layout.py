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
WAYS: Final = ("tp", "pp", "dp", "ep", "cp")


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
    found = _smallest(model, system, engine, sizes, 1.0, tokens)
    if found is None or int(found.chips) == 1 or sequences <= 1:
        return found or Layout()
    inside = [chips for chips in sizes if int(found.chips) <= chips <= max(system.scale_up.size, int(found.chips))]
    return _smallest(model, system, engine, inside, sequences, tokens) or found


def _sizes(system: System) -> list[int]:
    most = int(min(MOST_CHIPS, system.scale_out.size))
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def _smallest(
    model: Model, system: System, engine: Engine | None, sizes: Sequence[int], batch: float, context: float
) -> Layout | None:
    """Return the conventional layout on the fewest chips that holds sequences beside the weights."""
    for chips in sizes:
        layouts = [
            one
            for one in legal(model, system, chips, microbatches=(1,), engine=engine)
            if int(one.chips) == chips and int(one.dp) == int(one.cp) == 1
        ]
        if not layouts:
            continue
        layout = min(layouts, key=lambda one: (int(one.pp), -int(one.ep)))
        if bool(np.all(memory_per_chip(model, system, batch=batch, context=context, layout=layout).fits)):
            ways = {name: int(getattr(layout, name)) for name in WAYS}
            return Layout(**ways, microbatches=ways["pp"])
    return None


def most_spread(layouts: Sequence[Layout]) -> Layout:
    """Return the layout that uses most chips: experts over all, attention by copies; without experts heads are divided."""
    size = max(int(one.chips) for one in layouts)
    alike = [one for one in layouts if int(one.chips) == size]
    return max(alike, key=lambda one: (int(one.ep), -int(one.tp) if one.ep > 1 else int(one.tp)))
