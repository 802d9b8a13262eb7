"""Bundled prices: the shipped rows of prices and other facts about sellers; `data/prices/README.md` lists their sources."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
