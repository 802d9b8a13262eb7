"""Compute dtype: the arithmetic of kernels where it is not the chip's best."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from steptime.errors import short_repr
from steptime.hardware.number_formats import FORMATS, GGUF, number_format
from steptime.physics.engine_parameters import numbered_tables

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
