"""Model names: sellers' model ids, converted to one spelling and matched as a whole, never by a prefix.

For example, "glm-4.5" is not glm-4.5-air, and "qwen3-coder" is not coder-next. A dated release, a faster mode and another
quantization are variants: separate products of a model.

Bundled prices: the shipped rows of prices and other facts about sellers; `data/prices/README.md` lists their sources.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from steptime.catalog.data_files import PACKAGED

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


FOLDER: Final = PACKAGED / "prices"
RESELLER, FIRST_PARTY = "reseller", "first-party"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One shipped row: a seller's rates for a model [USD per million tokens]; NaN if missing.

    family, catalogue and weights describe a model with open weights. family: name in this package. catalogue: name in the
    catalogue of models. weights: format that hosts use ("native": as in its config). variant: separate product of the family,
    such as turbo or @0528.
    """

    provider: str
    model: str
    family: str = ""
    catalogue: str = ""
    weights: str = ""
    role: str = FIRST_PARTY
    variant: str = ""
    service: str = "standard"
    above_tokens: float = 0.0
    input: float = math.nan
    output: float = math.nan
    cache_read: float = math.nan
    cache_write: float = math.nan
    cache_write_long: float = math.nan
    long_hold: str = ""
    since: str = ""
    retrieval_date: str = ""
    source: str = ""
    agreeing: int = 1
    disagreeing: str = ""
    grade: str = "reported"


def _number(text: str) -> float:
    return float(text) if text else math.nan


def _rows(name: str) -> Iterator[dict[str, str]]:
    with open(FOLDER / name, encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _row(cells: Mapping[str, str], **extra: Any) -> Row:
    """Convert the cells of a file to a row; all files use the same column names."""
    numbers = ("input", "output", "cache_read", "cache_write", "cache_write_long", "above_tokens")
    texts = (
        "provider",
        "service",
        "source",
        "grade",
        "family",
        "catalogue",
        "weights",
        "role",
        "variant",
        "long_hold",
        "retrieval_date",
    )
    values: dict[str, Any] = {name: _number(cells[name]) for name in numbers if name in cells}
    values |= {name: cells[name] for name in texts if name in cells}
    return Row(**(values | extra))


@lru_cache(maxsize=1)
def open_rows() -> tuple[Row, ...]:
    """Return the price rows of models with open weights.

    Returns:
        Rows.
    """
    return tuple(_row(c, model=c["family"], **_source_fields(c)) for c in _rows("open_models.csv"))


@lru_cache(maxsize=1)
def closed_rows() -> tuple[Row, ...]:
    """Return the price rows of models with closed weights.

    Returns:
        Rows.
    """
    return tuple(_row(c, model=c["model"], **_source_fields(c)) for c in _rows("closed_models.csv"))


def _source_fields(cells: Mapping[str, str]) -> dict[str, Any]:
    agreeing = int(cells["sources_agreeing"])
    return {"since": cells["price_since"], "agreeing": agreeing, "disagreeing": cells["disagreeing"]}


@lru_cache(maxsize=1)
def dated_rows() -> tuple[Row, ...]:
    """Return first prices and price changes, the oldest first.

    Returns:
        Rows, with the day of the price in `since`.
    """
    rows = (_row(c, model=c["model"], since=c["date"], retrieval_date=c["date"]) for c in _rows("price_history.csv"))
    return tuple(sorted(rows, key=lambda row: row.since))


@lru_cache(maxsize=1)
def model_costs() -> tuple[dict[str, str], ...]:
    """Return the costs of models on plausible systems.

    `docs/fit_prices.py` wrote the file.

    Returns:
        Rows of the file, as texts by column.
    """
    return tuple(_rows("model_costs.csv"))


@cache
def table(name: str) -> dict[str, Any]:
    """Return a shipped TOML file.

    Args:
        name: "facts", "names", "priors" or "tier_models".

    Returns:
        Content of the file.
    """
    with open(FOLDER / f"{name}.toml", "rb") as file:
        return tomllib.load(file)
