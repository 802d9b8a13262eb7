"""Results as JSON: the same objects that Python calls return, with stable keys and SI units."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return `value` as dicts, lists, numbers and texts; a number that is not finite becomes None."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {f.name: plain(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
        return found | _derived(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _derived(value: Any) -> dict[str, Any]:
    """Return what a result works out of its fields, by name: the properties that its class lists in `DERIVED`."""
    return {name: plain(getattr(value, name)) for name in getattr(value, "DERIVED", ())}


def to_json(value: Any) -> str:
    """Return `value` as JSON text.

    >>> print(to_json({"seconds": np.array([1.0, math.inf])}))
    {
      "seconds": [
        1.0,
        null
      ]
    }
    """
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
