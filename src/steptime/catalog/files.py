"""Finds data files by name and reads them; errors name the file and the line."""

from __future__ import annotations

import json
import os
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from steptime.errors import DataFileError, UnknownName

PACKAGED = Path(__file__).parents[1] / "data"
SUFFIXES = {"models": ".json"}


def folders(kind: str, catalog: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders that hold `kind` (chips, systems, rents, models, engines), first searched first."""
    user = Path(os.environ.get("STEPTIME_CATALOG") or Path.home() / ".steptime")
    if catalog is not None and not Path(catalog).is_dir():
        raise DataFileError(
            catalog,
            "is not a folder; --catalog names a folder with chips/, systems/, rents/, models/ or engines/ in it",
        )
    roots = ([Path(catalog)] if catalog is not None else []) + [user, PACKAGED]
    return [root / kind for root in roots if (root / kind).is_dir()]


def files(kind: str, catalog: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Return every file of `kind` by the name it goes by, nearer folders shadowing farther ones."""
    found: dict[str, Path] = {}
    suffix = SUFFIXES.get(kind, ".toml")
    for folder in folders(kind, catalog):
        for path in sorted(folder.glob("*" + suffix), key=lambda path: path.name):
            found.setdefault(path.stem.replace("--", "/"), path)
    return dict(sorted(found.items(), key=lambda item: item[0].casefold()))


def find(kind: str, name: str, catalog: str | os.PathLike[str] | None = None) -> Path:
    """Return the file of `name`: a path as it is, a name of the catalogue, or an alias of one; "_" counts as "-"."""
    suffix = SUFFIXES.get(kind, ".toml")
    path = Path(name)
    if path.suffix == suffix or path.is_file():
        if path.is_file():
            return path
        raise DataFileError(name, "no such file")
    known = files(kind, catalog)
    by_folded = {_folded(key): path for key, path in known.items()}
    if _folded(name) in by_folded:
        return by_folded[_folded(name)]
    aliases = {_folded(alias): path for path in known.values() for alias in read_file(path).get("aliases", ())}
    if _folded(name) in aliases:
        return aliases[_folded(name)]
    singular = kind.removesuffix("s")
    raise UnknownName(singular, name, [*known, *aliases], f"`steptime {kind}` lists them; a path to a file works too.")


def _folded(name: str) -> str:
    return name.casefold().replace("_", "-")


@lru_cache(maxsize=512)
def _read(path: Path, _modified: float) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8 text ({error.reason} at byte {error.start})") from None
    try:
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise DataFileError(path, f"is not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise DataFileError(path, "is nested too deep") from None
    except tomllib.TOMLDecodeError as error:
        line = str(error).rpartition("at line ")[2].partition(",")[0]
        raise DataFileError(
            path, f"is not valid TOML: {error}", int(line) if line.isdigit() else text.count("\n") + 1
        ) from None
    if not isinstance(data, dict):
        raise DataFileError(path, f"holds a {type(data).__name__}, not a table of keys", 1)
    return data


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON file into a dict; errors name the file and the line."""
    try:
        return _read(path, path.stat().st_mtime)
    except OSError as error:
        raise DataFileError(path, error.strerror or str(error)) from None
