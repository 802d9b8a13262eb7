"""KV cache dtype: the format in which an engine keeps the KV cache of a model."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from steptime.hardware.number_formats import WIDE, number_format
from steptime.hardware.system import System
from steptime.models.model import Model, Op, with_kv
from steptime.physics.engine import Engine

# Format of a KV cache of 8 bits.
SMALL = "fp8"


def as_served(model: Model, system: System, engine: Engine) -> Model:
    """Return the model with the KV cache format of the engine.

    A format that the user chose stays. An engine with `small_kv` uses 8 bits for models that are computed in 8 bits or
    fewer, and 16 bits for other models.

    Args:
        model: The model.
        system: The system.
        engine: The engine.

    Returns:
        The model, unchanged where no rule applies.
    """
    small = not model.kv_told and bool(engine.room.small_kv > 0.5) and is_narrow(model, "fp4" in system.chip.peak)
    return with_small_cache(model) if small else model


@lru_cache(maxsize=256)
def is_narrow(model: Model, fp4: bool) -> bool:
    """Whether a model is computed in 8 bits or fewer.

    This is true where most of its dense weights are, or where most of its expert weights are 4-bit on chips
    with 4-bit arithmetic.

    Args:
        model: The model.
        fp4: Whether the chip has 4-bit arithmetic.

    Returns:
        True or false.
    """
    dense: dict[bool, float] = {True: 0.0, False: 0.0}
    routed: dict[bool, float] = {True: 0.0, False: 0.0}
    for layer, n in model.layers:
        for op in layer.ops:
            # Engines decide by dense weights; 4-bit experts count only where the chip multiplies them in 4 bits.
            if op.rows == "routed":
                routed[op.format.bytes < 1 and _multiplied_narrow(op)] += n * op.total_weights
            else:
                dense[op.format.bytes < 1.5 and _multiplied_narrow(op)] += n * op.total_weights
    return dense[True] > dense[False] or (fp4 and routed[True] > routed[False])


def _multiplied_narrow(op: Op) -> bool:
    """Whether any chip multiplies these weights in less than 16 bits (not int4)."""
    return op.format.arithmetic[0] not in WIDE


@lru_cache(maxsize=256)
def with_small_cache(model: Model) -> Model:
    """Return the model with a KV cache of 8 bits.

    Recurrent states, and parts with another format than the KV cache, stay.

    Args:
        model: The model.

    Returns:
        The changed model.
    """
    return replace(with_kv(model, number_format(SMALL)), kv_told=True)
