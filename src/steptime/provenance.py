"""Provenance: a figure with its source.

Every number of the catalogue is a `Figure`: value, unit, source, date and confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
