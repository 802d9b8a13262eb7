"""Software maturity by day: the share of the fitted speed that a chip reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from steptime.errors import RangeError, short_repr
from steptime.hardware.system import System

# Key of the software's share in `Chip.reached`.
SOFTWARE = "software"


def with_software(system: System, day: str) -> System:
    """Return the system with the software of a day.

    Args:
        system: The system.
        day: A day such as 2025-12-31.

    Returns:
        The changed system.

    Raises:
        RangeError: The text is not a day, the day is outside the measured period, or the chip has no
            measurements by day.
    """
    if not is_day(day):
        raise RangeError(f"software: must be a day such as 2025-12-31, got {short_repr(day)}")
    periods = system.chip.software
    if not periods:
        raise RangeError(f"software: {system.name} has no data by day; use AMD's MI300X, MI325X or MI355X")
    first, last = periods[0].first, periods[-1].last
    if not first <= day <= last:
        raise RangeError(f"software: known for {system.name} from {first} to {last}, got {day}")
    return _with_software_share(system, day)


def is_day(text: str) -> bool:
    """Whether a text is a day such as 2025-12-31.

    Args:
        text: Any text.

    Returns:
        True or false.

    >>> [is_day(text) for text in ("2025-12-31", "2025-13-01", "20251231", "Christmas")]
    [True, False, False, False]
    """
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def as_measured(system: System, row: Mapping[str, str]) -> System:
    """Return the system with the software of the day of a measured run.

    Args:
        system: The system.
        row: Columns of the run; "measured" is the day.

    Returns:
        The system with the software of that day or of the next measured period; the newest software for a run
        without a day.
    """
    day = software_day(system, row)
    return _with_software_share(system, day) if is_day(day) else system


def software_day(system: System, row: Mapping[str, str]) -> str:
    """Return the day of a measured run, if the system has software by day.

    Args:
        system: The system.
        row: Columns of the run; "measured" is the day.

    Returns:
        The day; "" without one.
    """
    return (row.get("measured") or "") if system.chip.software else ""


def _with_software_share(system: System, day: str) -> System:
    periods = system.chip.software
    # A day between two periods belongs to the next one, and a day after all of them to the newest.
    share = next((period.share for period in periods if day <= period.last), periods[-1].share)
    chip = system.chip
    return replace(system, chip=replace(chip, reached={**chip.reached, SOFTWARE: share}))
