"""What a number is: the type that every formula takes, and the gate that checks sizes from outside."""

from __future__ import annotations

import math
from typing import Any

from steptime.errors import RangeError

Number = Any  # a float or an array of floats; every formula broadcasts


def check_positive(**values: float) -> None:
    """Raise RangeError for a size that is not a finite number greater than 0; names are shown as options are written."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise RangeError(f"{name.replace('_', '-')} must be greater than 0, not {value:g}")
