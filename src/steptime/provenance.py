"""A figure with its source.

Every number in the catalogue is a `Figure`: what it is, in which unit, where it was read, when, and how far to trust it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GRADES: Final = ("measured", "vendor", "reported", "recalled", "guess")
"""How far to trust a figure, best first.

measured: a measurement that can be repeated. vendor: the maker's own page or data sheet. reported: read in a secondary
source. recalled: common knowledge, not yet confirmed. guess: an estimate, or a figure that came without a source.
"""

USER_SET: Final = "given"
"""The grade of a figure that the one who asks has set; no file has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the catalogue: value in base units, its text as written, unit, URL, date and grade."""

    value: float
    unit: str
    text: str
    url: str = ""
    date: str = ""
    grade: str = "guess"
    note: str = ""
