"""Model names: sellers' model ids, converted to one spelling and matched as a whole, never by a prefix.

For example, "glm-4.5" is not glm-4.5-air, and "qwen3-coder" is not coder-next. A dated release, a faster mode and another
quantization are variants: separate products of a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from steptime.pricing.bundled_prices import open_rows, table

NOISE: Final = ("instruct", "it", "chat", "hf", "fp8", "bf16", "base", "maas", "tee", "versatile", "free")
"""Endings that do not change the product: the kind of fine-tuning, and the format that most hosts use."""

VARIANTS: Final = ("turbo", "fast", "highspeed", "instant", "tput", "lightning", "fp4", "nvfp4", "awq", "int4", "thinking")
_DATE = re.compile(r"-(\d{4}|\d{6}|20\d{2}-?\d{2}-?\d{2})$")
_PART = re.compile(r"(?<=\d)p(?=\d)")


def spelled(name: str) -> tuple[str, str]:
    """Return a name in one spelling, and its variant.

    Args:
        name: Model name.

    Returns:
        Name, and a mode, "@" with a date, or "".

    >>> spelled("accounts/fireworks/models/glm-4p7"), spelled("Qwen/Qwen3-235B-A22B-Instruct-2507")
    (('glm-4-7', ''), ('qwen3-235b-a22b', '@2507'))
    >>> spelled("moonshotai/kimi-k2.5-turbo"), spelled("glm-4.5-air")
    (('kimi-k2-5', 'turbo'), ('glm-4-5-air', ''))
    """
    text = name.strip().casefold().rsplit("/", 1)[-1].partition(":")[0]
    text = _PART.sub("-", text.replace("_", "-").replace(".", "-").replace(" ", "-")).removeprefix("meta-")

    # Remove endings from the right, but never a part of a family name.
    mode = date = ""
    while True:
        head, _, tail = text.rpartition("-")
        dated = _DATE.search(text)
        if head and tail in NOISE:
            text = head
        elif head and tail in VARIANTS and text not in whole_names():
            text, mode = head, tail
        elif dated and not date and text not in whole_names():
            text, date = text[: dated.start()], f"@{dated[1]}"
        else:
            return text, mode + date


@lru_cache(maxsize=1)
def whole_names() -> frozenset[str]:
    """Return the family names, whose endings are not variants.

    Returns:
        Names in one spelling.
    """
    return frozenset(row.family.replace(".", "-") for row in open_rows())


@lru_cache(maxsize=1)
def known_names() -> Mapping[str, str]:
    """Return the family of each known spelling.

    Returns:
        Families by spelling.
    """
    names: dict[str, str] = {}
    for row in open_rows():
        names.setdefault(spelled(row.family)[0], row.family)
    for family, aliases in table("names")["families"].items():
        for alias in aliases:
            names.setdefault(spelled(alias)[0], family)

    # A catalogue name counts only if it belongs to one family.
    catalogued: dict[str, set[str]] = {}
    for row in open_rows():
        catalogued.setdefault(spelled(row.catalogue)[0], set()).add(row.family)
    for name, families in catalogued.items():
        if len(families) == 1:
            names.setdefault(name, next(iter(families)))
    return names


def match_family(name: str) -> tuple[str, str]:
    """Return the family and the variant of a name.

    Args:
        name: Model name.

    Returns:
        Family and variant; two empty texts for an unknown name.

    >>> [match_family(name) for name in ("zai-org/GLM-4.5-Air", "glm-4", "Qwen/Qwen3-Coder-480B-A35B-Instruct-Turbo")]
    [('glm-4.5-air', ''), ('', ''), ('qwen3-coder-480b', 'turbo')]
    """
    text, variant = spelled(name)
    family = known_names().get(text, "")
    return (family, variant) if family else ("", "")
