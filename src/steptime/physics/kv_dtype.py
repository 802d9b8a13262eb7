"""A model as an engine serves it: the format in which it keeps the KV cache."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from steptime.hardware.number_formats import WIDE, number_format
from steptime.hardware.system import System
from steptime.models.model import Model, Op, with_kv
from steptime.physics.engine import Engine

SMALL = "fp8"  # the format of a small cache


def as_served(model: Model, system: System, engine: Engine) -> Model:
    """Return the model with the KV cache that the engine keeps: the model's own where it was told, else by the engine's rule.

    An engine with `small_kv` keeps 8 bits where the model is computed in 8 or fewer, and 16 elsewhere.
    """
    small = not model.kv_told and bool(engine.room.small_kv > 0.5) and is_narrow(model, "fp4" in system.chip.peak)
    return with_small_cache(model) if small else model


@lru_cache(maxsize=256)
def is_narrow(model: Model, fp4: bool) -> bool:
    """Whether a model is computed in 8 bits or fewer: most of its matrices, or 4-bit experts on chips that compute in `fp4`."""
    dense: dict[bool, float] = {True: 0.0, False: 0.0}
    routed: dict[bool, float] = {True: 0.0, False: 0.0}
    for layer, n in model.layers:
        for op in layer.ops:
            if op.rows == "routed":
                routed[op.format.bytes < 1 and _multiplied_narrow(op)] += n * op.total_weights
            else:
                dense[op.format.bytes < 1.5 and _multiplied_narrow(op)] += n * op.total_weights
    return dense[True] > dense[False] or (fp4 and routed[True] > routed[False])


def _multiplied_narrow(op: Op) -> bool:
    """Whether any chip multiplies what is stored so in less than 16 bits; 4-bit integers are unpacked to them."""
    return op.format.arithmetic[0] not in WIDE


@lru_cache(maxsize=256)
def with_small_cache(model: Model) -> Model:
    """Return the model with the KV cache in 8 bits; states, and what is kept in another format than the cache, stay."""
    return replace(with_kv(model, number_format(SMALL)), kv_told=True)
