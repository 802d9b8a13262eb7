"""How far engines are for a chip, by the day: what their software reached of the speed that their constants tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from steptime.errors import RangeError, short_repr
from steptime.hardware.system import System

SOFTWARE = "software"  # its name among the shares that a chip reaches


def with_software(system: System, day: str) -> System:
    """Return the system with the software of a day, such as 2025-12-31, among those on which it was measured.

    Raises RangeError for what is no day, for a day before or after those, and for a chip that was not measured by the day.
    """
    if not is_day(day):
        raise RangeError(f"a day of software is written as 2025-12-31, not {short_repr(day)}")
    periods = system.chip.software
    if not periods:
        raise RangeError(f"{system.name} has no shares of software by the day; AMD's MI300X, MI325X and MI355X have")
    first, last = periods[0].first, periods[-1].last
    if not first <= day <= last:
        raise RangeError(f"software for {system.name} is known from {first} to {last}, not on {day}")
    return _with_software_share(system, day)


def is_day(text: str) -> bool:
    """Whether a text is a day as 2025-12-31.

    >>> [is_day(text) for text in ("2025-12-31", "2025-13-01", "20251231", "Christmas")]
    [True, False, False, False]
    """
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def as_measured(system: System, row: Mapping[str, str]) -> System:
    """Return the system with the software of the day of a run, or the next that is known; the newest where none is told."""
    day = software_day(system, row)
    return _with_software_share(system, day) if is_day(day) else system


def software_day(system: System, row: Mapping[str, str]) -> str:
    """Return the day of a measured run where the system's software is known by the day; else ""."""
    return (row.get("measured") or "") if system.chip.software else ""


def _with_software_share(system: System, day: str) -> System:
    periods = system.chip.software
    share = next((period.share for period in periods if day <= period.last), periods[-1].share)
    chip = system.chip
    return replace(system, chip=replace(chip, reached={**chip.reached, SOFTWARE: share}))
