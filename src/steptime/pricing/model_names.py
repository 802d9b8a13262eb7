"""What sellers call a model: ids brought to one spelling, and matched whole, never by a prefix.

"glm-4.5" is not glm-4.5-air and "qwen3-coder" is not coder-next. A dated release, a faster mode and another quantisation are
variants: products of their own of a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from steptime.pricing.bundled_prices import open_rows, table

NOISE: Final = ("instruct", "it", "chat", "hf", "fp8", "bf16", "base", "maas", "tee", "versatile", "free")
"""Endings that name the same product: how a model is trained to answer, and the format that most hosts keep it in."""

VARIANTS: Final = ("turbo", "fast", "highspeed", "instant", "tput", "lightning", "fp4", "nvfp4", "awq", "int4", "thinking")
_DATE = re.compile(r"-(\d{4}|\d{6}|20\d{2}-?\d{2}-?\d{2})$")
_PART = re.compile(r"(?<=\d)p(?=\d)")


def spelled(name: str) -> tuple[str, str]:
    """Return a name in one spelling, and its variant: a mode, "@" with a date, or "".

    >>> spelled("accounts/fireworks/models/glm-4p7"), spelled("Qwen/Qwen3-235B-A22B-Instruct-2507")
    (('glm-4-7', ''), ('qwen3-235b-a22b', '@2507'))
    >>> spelled("moonshotai/kimi-k2.5-turbo"), spelled("glm-4.5-air")
    (('kimi-k2-5', 'turbo'), ('glm-4-5-air', ''))
    """
    text = name.strip().casefold().rsplit("/", 1)[-1].partition(":")[0]
    text = _PART.sub("-", text.replace("_", "-").replace(".", "-").replace(" ", "-")).removeprefix("meta-")
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
    """Return the families' own names, whose ends are no variants."""
    return frozenset(row.family.replace(".", "-") for row in open_rows())


@lru_cache(maxsize=1)
def known_names() -> Mapping[str, str]:
    """Return the family of each spelling that is known."""
    names: dict[str, str] = {}
    for row in open_rows():
        names.setdefault(spelled(row.family)[0], row.family)
    for family, aliases in table("names")["families"].items():
        for alias in aliases:
            names.setdefault(spelled(alias)[0], family)
    catalogued: dict[str, set[str]] = {}
    for row in open_rows():
        catalogued.setdefault(spelled(row.catalogue)[0], set()).add(row.family)
    for name, families in catalogued.items():
        if len(families) == 1:
            names.setdefault(name, next(iter(families)))
    return names


def match_family(name: str) -> tuple[str, str]:
    """Return the family that a name means, and its variant; two empty texts where it is none that is known.

    >>> [match_family(name) for name in ("zai-org/GLM-4.5-Air", "glm-4", "Qwen/Qwen3-Coder-480B-A35B-Instruct-Turbo")]
    [('glm-4.5-air', ''), ('', ''), ('qwen3-coder-480b', 'turbo')]
    """
    text, variant = spelled(name)
    family = known_names().get(text, "")
    return (family, variant) if family else ("", "")
