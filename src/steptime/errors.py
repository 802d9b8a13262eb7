"""The exceptions that steptime raises, and text that is safe for terminals and spreadsheets.

    SteptimeError
    └── InputError            invalid input; the command line prints the message and exits with 2
        ├── UnknownName       no such model, system, engine, key or family; contains the nearest names
        ├── UnitError         a figure without its unit, or with the unit of another quantity
        ├── DataFileError     a malformed TOML or JSON file: file and place
        ├── ConfigError       a config.json of a model without a field, or with a field of a wrong type
        ├── LayoutError       a layout that does not divide the model or the system
        └── RangeError        a size, rate or share outside its range

A valid question with a negative answer (a model that does not fit) gives a result, not an exception.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

# C0 and C1 controls except tab and line feed, and marks that reorder text on a screen.
CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Spreadsheets evaluate a cell with one of these first characters as a formula.
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
# Choices that a message names, up to its next part.
CHOICES: Final = re.compile(r"\b(?:try|did you mean) ([^;?]+)")
# Minimum similarity of a word with a part of a name, such as tokns in tokens_per_second_per_user.
SIMILAR_PART: Final = 0.75
# Words of a choice: an option and its value. More words are advice, such as "a batch that is a multiple of 8".
CHOICE_WORDS: Final = 2


def replace_controls(text: str) -> str:
    """Replace each control character of a text; tabs and line feeds stay.

    Args:
        text: Text from outside.

    Returns:
        Text with replacement characters.

    >>> replace_controls("evil\\x1b[2J"), replace_controls("a\\tb\\n")
    ('evil�[2J', 'a\\tb\\n')
    """
    return CONTROL.sub("\ufffd", text)


def one_line(text: str) -> str:
    """Return a text from outside as one line.

    Args:
        text: Text from outside.

    Returns:
        Text with escaped line breaks and tabs, and replaced control characters.

    >>> one_line("a\\nb\\tc")
    'a\\\\nb\\\\tc'
    """
    return replace_controls("\\n".join(text.splitlines()).replace("\t", "\\t"))


def escape_controls(json_text: str) -> str:
    """Return JSON text with the control characters that JSON allows as \\u escapes.

    Args:
        json_text: JSON text.

    Returns:
        JSON text with the same meaning.

    >>> escape_controls('["\\x9b2J"]')
    '["\\\\u009b2J"]'
    """
    return CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", json_text)


def safe_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet evaluates as a formula.

    Args:
        value: A number or a text. Numbers in text stay unchanged.

    Returns:
        The value, with an apostrophe before a formula.

    >>> safe_cell("=1+1"), safe_cell("-3.5"), safe_cell(-3.5), safe_cell("gpt-2")
    ("'=1+1", '-3.5', -3.5, 'gpt-2')
    """
    if not isinstance(value, str):
        return value
    text = f"'{value}" if value.startswith(FORMULA_STARTS) and not _is_number(value) else value
    return replace_controls(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Maximum characters of a wrong value in an error message.
LONGEST_SHOWN: Final = 60


def short_repr(value: Any) -> str:
    """Return the beginning of a value for an error message.

    Args:
        value: Any value.

    Returns:
        Text of limited length.

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
    except (ValueError, RecursionError):
        # Python prints no integer of more than 4300 digits.
        return "a value that is too long to print"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 4]} ..."


class SteptimeError(Exception):
    """Base class of all errors that steptime raises on purpose."""


class InputError(SteptimeError):
    """The input is wrong; the message names cause, place and nearest valid choice."""


class Impossible(InputError):
    """The input is valid but has no solution; the message names the reason."""


class UnknownName(InputError):
    """A name that is not in the catalogue, the schema or the list of families."""

    def __init__(
        self, kind: str, name: object, options: Iterable[str], hint: str = "", *, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.kind, self.name, canonical = kind, name, aliases or {}
        near = did_you_mean(name, [*options, *canonical]) if isinstance(name, str) else ()
        self.nearest = tuple(dict.fromkeys(canonical.get(option, option) for option in near))
        message = f"unknown {kind} {short_repr(name)}"
        if self.nearest:
            message += "; did you mean " + " or ".join(self.nearest) + "?"
        if hint:
            message += ("" if self.nearest else ".") + f" {hint}"
        super().__init__(message)


class UnitError(InputError):
    """A text that is not a number with the needed unit.

    dimension: Base unit of the quantity that the text has instead; "" where it has none.
    """

    def __init__(self, message: str, dimension: str = "") -> None:
        self.dimension = dimension
        super().__init__(message)


class DataFileError(InputError):
    """A data file that cannot be read: file, place and problem."""

    def __init__(self, path: object, problem: str, line: int | None = None) -> None:
        self.path, self.line, self.problem = str(path), line, problem
        location = f"{path}:{line}" if line else str(path)
        super().__init__(f"{location}: {problem}")


def os_problem(error: OSError) -> str:
    """Return why a file cannot be read, for a `DataFileError`.

    Args:
        error: What the operating system reports.

    Returns:
        Text.

    >>> os_problem(FileNotFoundError(2, "No such file or directory")), os_problem(PermissionError(13, "Permission denied"))
    ('no such file', 'Permission denied')
    """
    return "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


class ConfigError(InputError):
    """A model configuration that does not describe a model."""


class LayoutError(InputError):
    """A layout that does not divide the model or the system."""


class RangeError(InputError):
    """A number outside its meaningful range."""


def expect(name: str, value: object, kind: type | tuple[type, ...], words: str) -> None:
    """Raise InputError where a value has the wrong type.

    Args:
        name: Name of the value, for the message.
        value: The value.
        kind: Accepted types.
        words: Accepted types in words.

    Raises:
        InputError: The value has another type.

    >>> expect("a workload", "8k", dict, "a dict")
    Traceback (most recent call last):
        ...
    steptime.errors.InputError: a workload is a dict, not '8k'
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is {words}, not {short_repr(value)}")


def did_you_mean(name: str, options: Iterable[str], max_names: int = 3, *, cutoff: float = 0.5) -> tuple[str, ...]:
    """Return the options that are nearest to a name, best first.

    Args:
        name: An unknown name.
        options: Valid names.
        max_names: Maximum number of results.
        cutoff: Minimum similarity, from 0 to 1.

    Returns:
        Valid names.

    >>> did_you_mean("gb200-nvl", ["gb200-nvl72", "hgx-h100", "gb300-nvl72"])
    ('gb200-nvl72', 'gb300-nvl72')
    """
    name, by_folded = name[:100], dict[str, str]()
    for option in options:
        by_folded.setdefault(option.casefold(), option)
        by_folded.setdefault(option.casefold().rsplit("/", 1)[-1], option)

    # A few typing errors first, then names with a similar part, then names that contain the text.
    close = get_close_matches(name.casefold(), list(by_folded), n=2 * max_names, cutoff=cutoff)
    if not close and len(name) > 2:
        parts = {part: option for option in reversed(by_folded) for part in option.split("_") if len(part) > 2}
        close = [parts[part] for part in get_close_matches(name.casefold(), list(parts), n=max_names, cutoff=SIMILAR_PART)]
    close += [o for o in by_folded if name.casefold() in o and len(name) > 2][:max_names] if len(close) < max_names else []
    return tuple(dict.fromkeys(by_folded[c] for c in close))[:max_names]


def choices_in(message: str) -> tuple[str, ...]:
    """Return the valid choices that a message names.

    Args:
        message: Message of an error.

    Returns:
        Choices in the order of the message; none if it gives advice in other words.

    >>> choices_in("tp=3 does not divide the 12 heads of m; try 2, 4 or 6"), choices_in("no such key; did you mean rent?")
    (('2', '4', '6'), ('rent',))
    """
    match = CHOICES.search(message)
    choices = re.split(", or |, | or ", match[1].strip().rstrip(".")) if match else []
    return tuple(choices) if all(len(choice.split()) <= CHOICE_WORDS for choice in choices) else ()


def install_hint(extra: str) -> str:
    """Return how to install an optional part of steptime.

    Args:
        extra: Name of the extra, such as "simulate".

    Returns:
        The pip command for the released package, and that for a checkout.

    >>> install_hint("plot")
    "pip install 'steptime[plot]' (in a checkout: pip install '.[plot]')"
    """
    return f"pip install 'steptime[{extra}]' (in a checkout: pip install '.[{extra}]')"


def numba_missing() -> str:
    """Return the message of every entry to the simulator where numba is missing."""
    return f"the simulator is compiled by numba, which is not installed: {install_hint('simulate')}"
