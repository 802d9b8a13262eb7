"""Bundled prices: the shipped rows of prices and other facts about sellers, and the names of their models.

`data/prices/README.md` lists the sources of the rows.

Sellers' model ids are converted to one spelling and matched as a whole, never by a prefix. For example, "glm-4.5" is not
glm-4.5-air, and "qwen3-coder" is not coder-next. A dated release, a faster mode and another quantization are variants: separate
products of a model.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any, Final

from steptime.catalog.data_files import PACKAGED

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
    since: str = ""
    retrieval_date: str = ""
    source: str = ""
    agreeing: int = 1
    disagreeing: str = ""
    grade: str = "reported"


# Columns of the files whose names differ from the fields of a row.
RENAMED: Final = {"sources_agreeing": "agreeing", "price_since": "since", "date": "since"}


def _cells(file_name: str) -> Iterator[dict[str, str]]:
    with open(FOLDER / file_name, encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _rows(file_name: str, model_column: str = "model") -> Iterator[Row]:
    """Yield the rows of a file, from the columns that a row has."""
    blank = Row(provider="", model="")
    kinds = {row_field.name: type(getattr(blank, row_field.name)) for row_field in fields(Row)}
    for cells in _cells(file_name):
        texts = {RENAMED.get(column, column): text for column, text in cells.items()} | {"model": cells[model_column]}
        # An empty price is unknown.
        values: dict[str, Any] = {
            name: math.nan if kind is float and not texts[name] else kind(texts[name])
            for name, kind in kinds.items()
            if name in texts
        }
        yield Row(**values)


@lru_cache(maxsize=1)
def open_rows() -> tuple[Row, ...]:
    """Return the price rows of models with open weights.

    Returns:
        Rows.
    """
    return tuple(_rows("open_models.csv", model_column="family"))


@lru_cache(maxsize=1)
def closed_rows() -> tuple[Row, ...]:
    """Return the price rows of models with closed weights.

    Returns:
        Rows.
    """
    return tuple(_rows("closed_models.csv"))


@lru_cache(maxsize=1)
def dated_rows() -> tuple[Row, ...]:
    """Return first prices and price changes, the oldest first.

    Returns:
        Rows, with the day of the price in `since`.
    """
    rows = (replace(row, retrieval_date=row.since) for row in _rows("price_history.csv"))
    return tuple(sorted(rows, key=lambda row: row.since))


@lru_cache(maxsize=1)
def costs_by_model() -> Mapping[tuple[str, str], Mapping[str, Mapping[str, str]]]:
    """Return the costs of models on plausible systems, which `docs/fit_prices.py` wrote.

    Returns:
        Rows of the file, as texts by column, by (catalogue, weights) and system.
    """
    costs: dict[tuple[str, str], dict[str, Mapping[str, str]]] = defaultdict(dict)
    for row in _cells("model_costs.csv"):
        costs[row["catalogue"], row["weights"]][row["system"]] = row
    return costs


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
