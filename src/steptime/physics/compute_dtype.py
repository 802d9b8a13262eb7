"""Compute dtype and KV cache dtype: the arithmetic of kernels, and the format in which an engine keeps the cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from steptime.errors import short_repr
from steptime.hardware.number_formats import FORMATS, GGUF, WIDE, number_format
from steptime.hardware.system import System
from steptime.models.model import Model, with_kv
from steptime.physics.engine_parameters import numbered_tables

if TYPE_CHECKING:
    from steptime.physics.engine import Engine

WEIGHTS, LATENT_DECODE, LATENT_PREFILL, DECODE, PREFILL = "weights", "latent decode", "latent prefill", "decode", "prefill"
KINDS: Final = (WEIGHTS, LATENT_DECODE, LATENT_PREFILL, DECODE, PREFILL)
CHIPS: Final = ("any", "with fp4", "without fp4")
# The best arithmetic of each format, and the mark of formats of GGUF files.
STORED: Final = (*dict.fromkeys(dtype.arithmetic[0] for dtype in FORMATS.values()), GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A rule of an engine file: the format in which kernels compute an operation.

    operation: "weights", or attention over a cache ("decode", "prefill"; for MLA "latent decode" and "latent
    prefill").
    stored: The first arithmetic of the stored format (fp8, fp4), or gguf for formats of GGUF files.
    computed: The format in which the products run.
    chips: "with fp4", "without fp4" (4-bit arithmetic) or "any".
    source: Where the rule was found.
    """

    operation: str
    stored: str
    computed: str
    chips: str = "any"
    source: str = ""


def select_compute_dtype(
    rules: Iterable[Computed], operation: str, stored: tuple[str, ...], peak: Collection[str]
) -> tuple[str, ...]:
    """Return the arithmetic in which a chip computes an operation, best first.

    Args:
        rules: Rules of the engine.
        operation: An operation of `KINDS`.
        stored: Arithmetic that can multiply the stored format, best first.
        peak: Arithmetic that the chip has.

    Returns:
        Names of arithmetic; `stored` where no rule applies.

    >>> rule = Computed(operation="weights", stored="fp4", computed="bf16", chips="without fp4")
    >>> select_compute_dtype((rule,), "weights", ("fp4", "fp8", "bf16"), {"fp8": 2e15, "bf16": 1e15})[0]
    'bf16'
    >>> select_compute_dtype((rule,), "weights", ("fp4", "fp8", "bf16"), {"fp4": 4e15, "fp8": 2e15, "bf16": 1e15})[0]
    'fp4'
    """
    kind = "with fp4" if "fp4" in peak else "without fp4"
    for rule in rules:
        is_stored = rule.stored == stored[0] or rule.stored == stored[-1] == GGUF
        if rule.operation == operation and is_stored and rule.chips in ("any", kind):
            return number_format(rule.computed).arithmetic
    return stored


def has_rule(rules: Iterable[Computed], format_name: str) -> bool:
    """Whether an engine multiplies weights of a format in an arithmetic of its choice on every chip.

    Args:
        rules: Rules of the engine.
        format_name: Name of the format; "" for none.

    Returns:
        True or false.

    >>> has_rule((Computed(operation="weights", stored="fp6", computed="int8"),), "mxfp4")
    True
    """
    if not format_name:
        return False
    stored = number_format(format_name).arithmetic
    return any(rule.operation == WEIGHTS and rule.chips == "any" and rule.stored in (stored[0], stored[-1]) for rule in rules)


def read_rules(entries: object) -> tuple[Computed, ...]:
    """Read the [[arithmetic]] tables of an engine file.

    Args:
        entries: Value of the key "arithmetic" of the file.

    Returns:
        The rules, in the order of the file.

    Raises:
        ValueError: A table is malformed; the message says which and why.
    """
    rules = []
    for place, entry in numbered_tables("arithmetic", entries):
        if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
            raise ValueError(f"{place}: must be a table of texts")
        unknown = set(entry) - {"operation", "stored", "computed", "chips", "source"}
        missing = {"operation", "stored", "computed"} - set(entry)
        if missing:
            raise ValueError(
                f"{place}: has no {min(missing)}; a table needs operation, stored and computed, and may have chips and source"
            )
        if unknown:
            raise ValueError(
                f"{place}: unknown key, got {short_repr(min(unknown))}; use operation, stored, computed, chips and source"
            )
        choices = (("operation", KINDS), ("stored", STORED), ("chips", CHIPS), ("computed", tuple(FORMATS)))
        for name, options in choices:
            if entry.get(name, options[0]) not in options:
                raise ValueError(f"{place}: {name} must be one of {', '.join(options)}, got {short_repr(entry[name])}")
        rules.append(Computed(**entry))
    return tuple(rules)


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
    dense: defaultdict[bool, float] = defaultdict(float)
    routed: defaultdict[bool, float] = defaultdict(float)
    for layer, n in model.layers:
        for op in layer.ops:
            # Whether any chip multiplies these weights in less than 16 bits (not int4).
            narrow = op.format.arithmetic[0] not in WIDE
            # Engines decide by dense weights; 4-bit experts count only where the chip multiplies them in 4 bits.
            if op.rows == "routed":
                routed[op.format.bytes < 1 and narrow] += n * op.total_weights
            else:
                dense[narrow] += n * op.total_weights
    return dense[True] > dense[False] or (fp4 and routed[True] > routed[False])


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
