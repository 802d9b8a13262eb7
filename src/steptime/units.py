"""Units: conversion between text with units and numbers in base units.

All values inside steptime are in SI base units with bytes, FLOPs, tokens and US dollars: seconds, B/s, FLOP/s, USD/s. Only
`parse` turns text into a number, and only `show` turns a number into text. A number of the catalogue is a `Figure`: value,
unit, source, date and confidence.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, SupportsFloat

from steptime.errors import RangeError, UnitError, short_repr

GRADES: Final = ("measured", "vendor", "reported", "recalled", "guess")
"""Confidence in a figure, best first.

measured: a repeatable measurement. vendor: a page or data sheet of the vendor. reported: read in a secondary source.
recalled: common knowledge, not yet confirmed. guess: an estimate, or a figure without a source.
"""

USER_SET: Final = "given"
"""The grade of a figure that the user has set; no file has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the catalogue: value, unit, original text, URL, date and grade."""

    value: float
    unit: str
    text: str
    url: str = ""
    date: str = ""
    grade: str = "guess"
    note: str = ""


MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0
MILLION: Final = 1e6

PREFIXES: Final[dict[str, float]] = {
    "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "P": 1e15, "E": 1e18,
}  # fmt: skip
BINARY_PREFIXES: Final[dict[str, float]] = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

# symbol -> (dimension, size in the base unit, whether it takes prefixes)
SYMBOLS: Final[dict[str, tuple[str, float, bool]]] = {
    "B": ("B", 1.0, True),
    "b": ("B", 0.125, True),
    "bit": ("B", 0.125, True),
    "FLOP": ("FLOP", 1.0, True),
    "OP": ("FLOP", 1.0, True),
    "s": ("s", 1.0, True),
    "min": ("s", MINUTE, False),
    "h": ("s", HOUR, False),
    "d": ("s", DAY, False),
    "W": ("W", 1.0, True),
    "J": ("J", 1.0, True),
    "Wh": ("J", HOUR, True),
    "USD": ("USD", 1.0, False),
    "$": ("USD", 1.0, False),
    "tok": ("tok", 1.0, True),
    "token": ("tok", 1.0, True),
    "tokens": ("tok", 1.0, True),
    "kg": ("kg", 1.0, False),
    "t": ("kg", 1000.0, False),
    "metre": ("m", 1.0, False),
}
# Ends of units in bits, in which rates are given and capacities are not.
BITS: Final = ("b", "bit")
# TFLOPS is TFLOP/s.
CONTRACTIONS: Final = {"FLOPS": "FLOP/s", "OPS": "OP/s", "bps": "b/s", "Bps": "B/s"}

# Words for times besides SI units [s].
_TIME_WORDS: Final = {
    "hour": HOUR, "day": DAY, "week": 7 * DAY, "month": 365 / 12 * DAY, "year": 365 * DAY, "w": 7 * DAY, "y": 365 * DAY,
}  # fmt: skip
# A number such as 0,5; 1,024 has groups of three digits.
DECIMAL_COMMA: Final = re.compile(r"[-+]?\d+,(?:\d{1,2}|\d{4,})")
_DURATION: Final = re.compile(rf"\s*+([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)\s*+({'|'.join(_TIME_WORDS)})s?\s*")
_NUMBER = re.compile(
    r"([-+]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]++(?:_[0-9]++)*+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,9})?)\s*([^\s0-9].*)?"
)
COUNTS: Final[dict[str, float]] = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "ki": 2.0**10, **BINARY_PREFIXES,
}  # fmt: skip
# Below this number every integer has an exact float.
MOST_COUNTED: Final = 1e15


def _symbol(text: str) -> tuple[str, float] | None:
    """Return the dimension and the size of one symbol with its prefix."""
    if text in SYMBOLS:
        dimension, size, _ = SYMBOLS[text]
        return dimension, size
    for symbol, (dimension, size, prefixed) in SYMBOLS.items():
        prefix = text.removesuffix(symbol)
        if prefixed and prefix != text:
            scale = PREFIXES.get(prefix) or (BINARY_PREFIXES.get(prefix) if dimension == "B" else None)
            if scale:
                return dimension, size * scale
    return None


@lru_cache(maxsize=1024)
def _unit(text: str) -> tuple[str, float] | None:
    """Return the dimension and the size of a unit: "TB/s" is "B/s" times 1e12."""
    for short, long in CONTRACTIONS.items():
        if text.endswith(short):
            text = text.removesuffix(short) + long
    parts = text.split("/")
    if len(parts) > 2:
        return None
    matches = [_symbol(p) for p in parts]
    symbols = [f for f in matches if f is not None]
    if len(symbols) < len(parts):
        return None
    size = symbols[0][1] / (symbols[1][1] if len(symbols) == 2 else 1.0)
    return "/".join(k[0] for k in symbols), size


def parse(text: str | float, unit: str = "") -> float:
    """Read a figure such as "1.8 TB/s".

    Args:
        text: A text with a unit, or a plain number.
        unit: Base unit of the needed dimension: "B/s", "FLOP/s", "s", "USD/s"; "" for a plain number.

    Returns:
        The value in the base unit.

    Raises:
        UnitError: The text is not a number, lacks its unit or has the unit of another quantity.

    >>> parse("1.8 TB/s", "B/s")
    1800000000000.0
    >>> parse("400 Gb/s", "B/s")
    50000000000.0
    >>> round(parse("3.6 USD/h", "USD/s"), 6)
    0.001
    >>> parse("2 TFLOPS", "FLOP/s")
    2000000000000.0
    >>> parse("10 Tb", "B")
    Traceback (most recent call last):
        ...
    steptime.errors.UnitError: '10 Tb' is in bits, but a capacity is in bytes; did you mean 10TB?
    >>> parse("80 GiB", "B/s")
    Traceback (most recent call last):
        ...
    steptime.errors.UnitError: '80 GiB' is a quantity in B, but one in B/s is needed, such as '1.8 TB/s'
    """
    number, written = _split(text, f" in {unit}, such as {_EXAMPLE.get(unit, unit)!r}" if unit else "")
    if not written:
        if unit:
            raise UnitError(f"{short_repr(text)} has no unit; write one in {unit}, such as {_EXAMPLE.get(unit, unit)!r}")
        return number
    parsed_unit = _unit(written)
    if parsed_unit is None:
        if not unit and written in PREFIXES:
            return number * PREFIXES[written]
        valid = f"one in {unit}, such as {_EXAMPLE.get(unit, unit)!r}" if unit else f"a plain number, such as {number:g}"
        raise UnitError(f"{short_repr(text)}: unknown unit {short_repr(written)}; write {valid}")
    dimension, size = parsed_unit
    if unit == dimension == "B" and written.endswith(BITS):
        in_bytes = f"{number:g}{written.removesuffix('bit').removesuffix('b')}B"
        raise UnitError(f"{short_repr(text)} is in bits, but a capacity is in bytes; did you mean {in_bytes}?")
    if dimension != unit:
        needed = f"one in {unit} is needed, such as {_EXAMPLE.get(unit, unit)!r}" if unit else "a plain number is needed"
        raise UnitError(f"{short_repr(text)} is a quantity in {dimension}, but {needed}", dimension)
    if not math.isfinite(number * size):
        raise UnitError(f"{short_repr(text)} is not a finite number")
    return number * size


def parse_duration(text: str) -> float:
    """Read a duration in units of time, or in words such as days, weeks, months and years.

    Args:
        text: Number and unit.

    Returns:
        Seconds. A month is a twelfth of 365 days.

    Raises:
        UnitError: The text is no duration.

    >>> parse_duration("60weeks") / DAY, parse_duration("2y") / DAY, parse_duration("36h") / DAY
    (420.0, 730.0, 1.5)
    """
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _TIME_WORDS[match[2]] if match else parse(text, "s")


def in_digits(value: float, digits: int = 3, *, zeros: bool = False) -> str:
    """Write a number with a number of significant digits and without an exponent.

    Args:
        value: The number.
        digits: Significant digits.
        zeros: Whether zeros at the end are written, as in a range.

    Returns:
        Text; large numbers have commas.

    >>> in_digits(122345.6), in_digits(0.5334), in_digits(12.5, 4)
    ('122,000', '0.533', '12.5')
    >>> in_digits(2, zeros=True), in_digits(200, zeros=True), in_digits(122345.6, zeros=True)
    ('2.00', '200', '122,000')
    """
    text = f"{value:{'#' * zeros},.{digits}g}".rstrip(".")
    return f"{float(f'{value:.{digits}g}'):,.0f}" if "e+" in text else text


def in_span(low: float, high: float, digits: int = 3) -> str:
    """Write the ends of a range with as many significant digits.

    Args:
        low: Lower end.
        high: Upper end.
        digits: Significant digits.

    Returns:
        Text such as "1.50 to 2.00".

    >>> in_span(1.5, 2), in_span(0.9, 12, 2), in_span(900, 1500)
    ('1.50 to 2.00', '0.90 to 12', '900 to 1,500')
    """
    return f"{in_digits(low, digits, zeros=True)} to {in_digits(high, digits, zeros=True)}"


def count(text: str | int | float, name: str = "number", maximum: float = MOST_COUNTED) -> int:
    """Read a whole number: with separators, an exponent, or a suffix.

    Suffixes are k, M, G or B (1e9) and T; Ki, Mi and Gi are binary.

    Args:
        text: A text or a number.
        name: Name of the number, for the message.
        maximum: Upper bound.

    Returns:
        The number.

    Raises:
        UnitError: The text is not a number. RangeError: The number is not whole, or is above `maximum`.

    >>> [count(text) for text in ("8k", "1e3", "1.5M", "8_192", "8,192", "128Ki", "2B", 72)]
    [8000, 1000, 1500000, 8192, 8192, 131072, 2000000000, 72]
    >>> count("2.5", "chips")
    Traceback (most recent call last):
        ...
    steptime.errors.RangeError: chips must be a whole number, not '2.5'
    """
    number = decimal(text, name, maximum)
    if number != int(number):
        raise RangeError(f"{name} must be a whole number, not {short_repr(text)}")
    return int(number)


def decimal(text: str | int | float, name: str = "number", maximum: float = MOST_COUNTED) -> float:
    """Read a number as `count` does, which may have a fraction.

    Args:
        text: A text or a number.
        name: Name of the number, for the message.
        maximum: Upper bound.

    Returns:
        The number.

    Raises:
        UnitError: The text is not a number. RangeError: The number is above `maximum`.

    >>> [decimal(text) for text in ("99.5k", "2.5", "1e3", 8192)]
    [99500.0, 2.5, 1000.0, 8192.0]
    """
    example = ", such as 8192, 8k or 1e3"
    try:
        number, written = _split(text, example)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None
    if written not in COUNTS:
        # A decimal comma leaves ",5" for a suffix.
        if DECIMAL_COMMA.fullmatch(str(text)):
            raise UnitError(f"{name}: {short_repr(text)} is not a number{example}; write {str(text).replace(',', '.')}")
        upper = written.upper()
        fix = f"; write {short_repr(f'{number:g}{upper}')}" if upper in COUNTS else example
        raise UnitError(f"{name}: the suffix of {short_repr(text)} must be k, M, G, B, T, Ki, Mi, Gi or Ti{fix}")
    # 4.1 k is 4100, although 4.1 * 1000 is a little less.
    rounded = round(number * COUNTS[written], 6)
    if abs(rounded) > maximum:
        bound = f"{maximum:,.0f}" if maximum < MOST_COUNTED else f"{maximum:g}"
        raise RangeError(f"{name} must be at most {bound}, not {short_repr(text)}")
    return rounded


def dollars(text: str | int | float, name: str) -> float:
    """Read an amount of US dollars, with or without its sign.

    Args:
        text: A text or a number.
        name: Name of the amount, for the message.

    Returns:
        The amount [USD].

    >>> [dollars(text, "budget") for text in ("$5M", "99.5k USD", 1234.5)]
    [5000000.0, 99500.0, 1234.5]
    """
    return decimal(str(text).strip().removeprefix("$").removesuffix("USD").strip(), name)


def _split(text: str | float, hint: str) -> tuple[float, str]:
    """Return the number at the start of a text, and the rest."""
    match = (
        None if isinstance(text, bool) else _NUMBER.fullmatch((text if isinstance(text, str) else str(_float(text))).strip())
    )
    if not match:
        raise UnitError(f"{short_repr(text)} is not a number{hint}")
    number = float(match[1].replace(",", "").replace("_", ""))
    if not math.isfinite(number):
        raise UnitError(f"{short_repr(text)} is not a finite number")
    return number, match[2] or ""


def _float(number: float) -> float:
    """Return a number as a float; infinite where it is too large."""
    try:
        return float(number)
    except (OverflowError, TypeError, ValueError):
        return math.inf


_EXAMPLE: Final = {
    "B": "80 GB",
    "B/s": "1.8 TB/s",
    "FLOP/s": "989 TFLOP/s",
    "s": "2 us",
    "USD/s": "2.5 USD/h",
    "USD/B": "5 USD/GB",
    "W": "700 W",
    "USD/J": "0.08 USD/kWh",
    "kg": "1360 kg",
    "": "72",
}

_USD_UNITS: Final = {"USD/s": (HOUR, "USD/h"), "USD/J": (1000 * HOUR, "USD/kWh")}
_STEPS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL: Final = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def _digits(value: float, digits: int) -> str:
    """Write `value` with `digits` digits, without an exponent from 1e-6 to 1e15."""
    if value == 0:
        return "0"
    # 99.97 with three digits is 100, not 100.0.
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits}g}")))))
    text = f"{value:,.{decimals}f}"
    # 0.00120 becomes 0.0012.
    if "." in text and decimals > digits - 1:
        text = text.rstrip("0").rstrip(".")
    return text


def show(number: SupportsFloat, unit: str = "", digits: int = 3) -> str:
    """Write a number in base units for readers, with a suitable prefix.

    Args:
        number: The number.
        unit: Base unit.
        digits: Significant digits.

    Returns:
        Text such as "1.80 TB/s".

    >>> show(1.8e12, "B/s"), show(0.0123, "s"), show(7.2e-6, "s"), show(671e9)
    ('1.80 TB/s', '12.3 ms', '7.20 µs', '671 B')
    >>> show(2.5 / 3600, "USD/s"), show(0.4567, "USD"), show(1234, "tok/s"), show(5400, "s")
    ('2.50 USD/h', '0.457 USD', '1,234 tok/s', '1.50 h')
    """
    value = float(number)
    if not math.isfinite(value):
        return {math.inf: "unlimited", -math.inf: "-unlimited"}.get(value, "none")
    if unit in _USD_UNITS:
        size, symbol = _USD_UNITS[unit]
        return f"{_digits(value * size, digits)} {symbol}"
    if unit == "s" and abs(value) >= 100:
        size, symbol = (DAY, "d") if abs(value) >= 2 * DAY else (HOUR, "h") if abs(value) >= HOUR else (MINUTE, "min")
        return f"{_digits(value / size, digits)} {symbol}"
    # Counts: M, B (billion), T.
    if unit == "":
        if abs(value) < 1e6 and value == round(value):
            return f"{value:,.0f}"
        for size, symbol in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
            if abs(value) >= size:
                return _digits(value / size, digits) + symbol
        return _digits(value, max(digits, 4) if abs(value) >= 1000 else digits)
    if unit in ("USD", "kg", "tok/s") or unit.startswith("USD/"):
        total_digits = max(digits, len(str(int(abs(value)))))
        return f"{_digits(value, total_digits)} {unit}"
    steps = _SMALL if abs(value) < 1 and unit in ("s",) else _STEPS
    for size, prefix in steps:
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size, digits)} {prefix}{unit}"
    size, prefix = steps[-1]
    return f"{_digits(value / size, digits)} {prefix}{unit}"


def speed_change(ratio: float) -> str:
    """Write a ratio of two speeds in words.

    Args:
        ratio: The speed over that without the change.

    Returns:
        How much faster or slower.

    >>> speed_change(1.234), speed_change(0.5), speed_change(0.999)
    ('1.23x as fast', '50 % slower', 'as fast')
    """
    if round(ratio, 2) == 1:
        return "as fast"
    return f"{ratio:.2f}x as fast" if ratio > 1 else f"{percent(1 - ratio)} slower"


def request_rate(rate: float, digits: int = 3) -> str:
    """Write a rate of requests.

    Args:
        rate: Requests per second.
        digits: Significant digits.

    Returns:
        Text.

    >>> request_rate(1.0), request_rate(2.5)
    ('1 request/s', '2.5 requests/s')
    """
    number = in_digits(rate, digits)
    return f"{number} request{'s' * (number != '1')}/s"


def percent(share: SupportsFloat, digits: int = 0) -> str:
    """Write a share as a percentage: the one form of all output.

    Args:
        share: The share.
        digits: Digits after the point.

    Returns:
        Text.

    >>> percent(0.4812), percent(0.4812, 1), percent(-0.0004), percent(11.43)
    ('48 %', '48.1 %', '0 %', '1,143 %')
    """
    return f"{100 * float(share):z,.{digits}f} %"


def percent_change(share: SupportsFloat, digits: int = 1) -> str:
    """Write a change as a percentage with its sign.

    Args:
        share: The change, relative to what changes.
        digits: Digits after the point.

    Returns:
        Text.

    >>> percent_change(0.052), percent_change(-0.1, 0), percent_change(-0.0004)
    ('+5.2 %', '-10 %', '+0.0 %')
    """
    return f"{100 * float(share):+z,.{digits}f} %"


def counted(n: float, singular: str, plural: str = "") -> str:
    """Write a number with its noun.

    Args:
        n: The number.
        singular: The noun.
        plural: The plural; by default with an s.

    Returns:
        Text.

    >>> counted(1, "prompt"), counted(8192, "prompt")
    ('1 prompt', '8,192 prompts')
    """
    return f"{n:,.0f} {singular if n == 1 else plural or singular + 's'}"
