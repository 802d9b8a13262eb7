"""What a number is: the type that every formula takes, and the gate that checks sizes from outside."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from numpy.typing import NDArray

from steptime.errors import RangeError

Array: TypeAlias = NDArray[Any]
"""An array of numbers of any kind: floats, whole numbers, booleans."""
Number: TypeAlias = float | Array
"""A number, or an array of numbers: every formula broadcasts."""


def check_positive(**values: float) -> None:
    """Raise RangeError for a size that is not a finite number greater than 0; names are shown as options are written."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise RangeError(f"{name.replace('_', '-')} must be greater than 0, not {value:g}")
