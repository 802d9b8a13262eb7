"""The exceptions that steptime raises.

    SteptimeError
    └── InputError            what was asked for cannot be read; the command line prints it and exits with 2
        ├── UnknownName       no such model, system, engine, key or family; carries the nearest names
        ├── UnitError         a figure without the unit it needs, or with another quantity's unit
        ├── DataFileError     a TOML or JSON file that is malformed or does not fit the schema: file and place
        ├── ConfigError       a model's config.json lacks a field, or holds one of a wrong kind
        ├── LayoutError      a layout that does not divide the model or the system
        └── RangeError        a size, rate or share outside its range

What is well asked but impossible (a model that does not fit) is an answer, not an exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

LONGEST_SHOWN: Final = 60  # characters of what is wrong that an error repeats


def short_repr(value: Any) -> str:
    """Return the beginning of `value` for an error, however long it is.

    >>> short_repr(2_000_000), short_repr(0.5), short_repr("8k"), short_repr(10**23), short_repr(10**5000)
    ('2,000,000', '0.5', "'8k'", '1e+23', 'a number of some 5,000 digits')
    """
    if type(value) is float and (not math.isfinite(value) or abs(value) < 1e15):
        return f"{value:,.0f}" if math.isfinite(value) and value == int(value) and abs(value) >= 1e6 else f"{value:g}"
    if type(value) in (int, float):
        if abs(value) < 1e15:
            return f"{value:,}"
        if abs(value) < 1e300:
            return f"{float(value):.6g}"
        return (
            f"a number of some {round(math.log10(2) * value.bit_length(), -2):,.0f} digits"
            if type(value) is int
            else f"{value:g}"
        )
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python prints no whole number of more than 4300 digits
        return "what is too long to print"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 4]} ..."


class SteptimeError(Exception):
    """Base of all errors that steptime raises on purpose."""


class InputError(SteptimeError):
    """The input is wrong; the message names the cause, the place and the nearest valid choice."""


class Impossible(InputError):
    """What is asked for is understood, and cannot be had; the message names the reason."""


class UnknownName(InputError):
    """A name that is not in the catalogue, the schema or the list of families."""

    def __init__(self, kind: str, name: object, options: Iterable[str], hint: str = "") -> None:
        self.kind, self.name = kind, name
        self.nearest = did_you_mean(name, options) if isinstance(name, str) else ()
        message = f"unknown {kind} {short_repr(name)}"
        if self.nearest:
            message += "; did you mean " + " or ".join(self.nearest) + "?"
        if hint:
            message += ("" if self.nearest else ".") + f" {hint}"
        super().__init__(message)


class UnitError(InputError):
    """A text that is not a number with the unit that is needed."""


class DataFileError(InputError):
    """A data file that cannot be read: the file, the place and what is wrong."""

    def __init__(self, path: object, problem: str, line: int | None = None) -> None:
        self.path, self.line, self.problem = str(path), line, problem
        location = f"{path}:{line}" if line else str(path)
        super().__init__(f"{location}: {problem}")


class ConfigError(InputError):
    """A model configuration that cannot be turned into a model."""


class LayoutError(InputError):
    """A layout that does not divide the model or the system."""


class RangeError(InputError):
    """A number outside the range in which it means something."""


def expect(name: str, value: object, kind: type | tuple[type, ...], words: str) -> None:
    """Raise InputError where `value` is of another kind than `name` is.

    >>> expect("a workload", "8k", dict, "a dict")
    Traceback (most recent call last):
        ...
    steptime.errors.InputError: a workload is a dict, not '8k'
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is {words}, not {short_repr(value)}")


def did_you_mean(name: str, options: Iterable[str], max_names: int = 3, *, cutoff: float = 0.5) -> tuple[str, ...]:
    """Return the nearest of `options` to `name`, best first, at most `max_names` of them; `cutoff` is how near, from 0 to 1.

    >>> did_you_mean("gb200-nvl", ["gb200-nvl72", "hgx-h100", "gb300-nvl72"])
    ('gb200-nvl72', 'gb300-nvl72')
    """
    name, by_folded = name[:100], dict[str, str]()
    for option in options:
        by_folded.setdefault(option.casefold(), option)
        by_folded.setdefault(option.casefold().rsplit("/", 1)[-1], option)
    close = get_close_matches(name.casefold(), list(by_folded), n=2 * max_names, cutoff=cutoff)
    close += [o for o in by_folded if name.casefold() in o and len(name) > 2][:max_names] if len(close) < max_names else []
    return tuple(dict.fromkeys(by_folded[c] for c in close))[:max_names]
