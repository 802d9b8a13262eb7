"""Writes data/config_fields.json: how many configs of a kind equal transformers, and fields that change nothing in them.

`python docs/config_fields.py`, with the extra `oracle` installed. Configs are those of the catalogue that docs/oracle.json
calls equal, and the defaults of transformers that a family reads with equal parameters.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from steptime.catalog.data_files import files
from steptime.errors import InputError
from steptime.models.config_coverage import _field_value, is_trifle, leaves, plain
from steptime.models.family_registry import known_families
from steptime.models.model import total_parameters
from steptime.models.model_loading import load_config_fields, read_model

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "steptime" / "data" / "config_fields.json"
MOST = 24  # values of a field that are kept


def equal_configs() -> list[tuple[str, dict[str, Any]]]:
    """Return configs that equal transformers, with their kinds: of the catalogue, and defaults."""
    verdicts = json.loads((HERE / "oracle.json").read_text())["models"]
    found = []
    for name in files("models"):
        fields = load_config_fields(name)
        if verdicts.get(name, {}).get("verdict") == "equal":
            found.append((str(fields.get("model_type")), dict(fields)))
    tests = import_module("tests.models.test_decoders_of_transformers")
    import transformers

    for kind in tests.kinds(transformers.models.auto):
        built = tests.causal(transformers.models.auto, kind)
        if built is None or kind not in known_families():
            continue
        model, fields = built
        try:
            ours = total_parameters(read_model(fields))
        except InputError:
            continue
        if ours == tests.text_parameters(model, fields)[0]:
            found.append((kind, fields))
    return found


def facts() -> dict[str, Any]:
    """Return how many configs of each kind are equal, and the values of fields that no family asked for."""
    compared: Counter[str] = Counter()
    ignored: dict[str, set[str]] = {}
    read: dict[str, dict[str, set[str | None]]] = {}
    for kind, fields in equal_configs():
        compared[kind] += 1
        asked: set[str] = set()
        read_model(fields, lookups=asked)
        of_kind = read.setdefault(kind, {})
        for name in asked:
            value = _field_value(fields, name)
            switch = isinstance(value, bool | str)
            of_kind.setdefault(name, set()).add(None if value is None else plain(value) if switch else "number")
        entered = frozenset(name.rpartition(".")[0] for name in asked)
        for full, value in leaves(fields, entered=entered):
            key = full.rpartition(".")[2]
            if value is None or full in asked or key.startswith("_"):
                continue
            ignored.setdefault(key, set())
            if not is_trifle(key):
                ignored[key].add(plain(value))
    values = {key: sorted(found)[:MOST] for key, found in sorted(ignored.items())}
    return {
        "compared": dict(sorted(compared.items())),
        "ignored": values,
        "read": {k: told(v) for k, v in sorted(read.items())},
    }


def told(fields: dict[str, set[str | None]]) -> dict[str, list[str | None]]:
    """Return the values of the switches that a kind reads, null among them where a config lacks one; no values of numbers."""
    found: dict[str, list[str | None]] = {}
    for name, values in sorted(fields.items()):
        if values != {None} and not is_trifle(name.rpartition(".")[2]):
            switches = sorted(value for value in values if value not in (None, "number"))
            found[name] = [*switches, *([None] if None in values else [])]
    return found


def text(found: dict[str, Any]) -> str:
    """Return the file: a line for each field."""
    compared = json.dumps(found["compared"])
    parts = [f'"{part}": {{\n{lines(found[part])}\n}}' for part in ("ignored", "read")]
    joined = ",\n".join(parts)
    return f'{{"compared": {compared},\n{joined}}}\n'


def lines(table: dict[str, Any]) -> str:
    """Return the entries of a table, one a line."""
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(values)}" for key, values in table.items())


if __name__ == "__main__":
    TARGET.write_text(text(facts()), encoding="utf-8")
