"""What is said of a file that does not fit its schema: the place with all its keys, what is wanted, and what stands there."""

from __future__ import annotations

import copy

import pytest

from steptime.catalog.schema import ChipEntry, LawEntry, Misfit, SystemEntry
from tests.conftest import each

SOURCE = {"url": "u", "date": "2026-01-01", "grade": "vendor"}
CHIP = {
    "name": "mine",
    "peak": {"bf16": "1 PFLOP/s"},
    "memory": [{"name": "hbm", "capacity": "80 GB", "bandwidth": "3 TB/s"}],
    "sources": {"a.b": SOURCE},
}
SYSTEM = {"name": "box", "chips": 8, "chip": CHIP, "domains": [{"name": "links", "kind": "scale-up", "bandwidth": "1 TB/s"}]}
LAW = {"name": "law", "form": "f", "year": 2022, "counts": "total", "domain": {"tokens": {"least": "1"}}}


def told(data, schema, place, value):
    """What is said of data with another value at a place; none for no such key."""
    data = copy.deepcopy(data)
    *before, last = place
    inner = data
    for key in before:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    with pytest.raises(Misfit) as caught:
        schema.from_data(data)
    return str(caught.value)


@each(
    "data, schema, place, value, says",
    [
        (CHIP, ChipEntry, ["name"], None, "name: is missing"),
        (CHIP, ChipEntry, ["name"], "", "name: must not be empty"),
        (CHIP, ChipEntry, ["peak", "bf16"], [1], "peak.bf16: must be a number, a text or a table"),
        (CHIP, ChipEntry, ["peak", "bf16"], True, "peak.bf16: must be a number, a text or a table, got true"),
        (CHIP, ChipEntry, ["peak", "bf61"], "1", "peak.bf61: no such key; known: fp32, tf32, bf16"),
        (CHIP, ChipEntry, ["peak", "bf16"], {"valeu": 1}, "peak.bf16.valeu: no such key; did you mean value?"),
        (CHIP, ChipEntry, ["memory"], [], "memory: must not be empty"),
        (CHIP, ChipEntry, ["memory", 0, "name"], "rack", "memory.0.name: 'rack' is reserved"),
        (
            CHIP,
            ChipEntry,
            ["memory", 0, "name"],
            "a b",
            "memory.0.name: must be a letter and up to 39 letters, digits, - and _",
        ),
        (
            CHIP,
            ChipEntry,
            ["sources", "a.b", "grade"],
            "good",
            "sources.'a.b'.grade: must be measured, vendor, reported, recalled or guess",
        ),
        (CHIP, ChipEntry, ["sources", "a.b", "url"], None, "sources.'a.b'.url: is missing"),
        (SYSTEM, SystemEntry, ["chips"], 1.5, "chips: must be a whole number, got 1.5"),
        (SYSTEM, SystemEntry, ["chips"], 0, "chips: must be at least 1, got 0"),
        (SYSTEM, SystemEntry, ["chip"], 3, "chip: must be a text or a table, got 3"),
        (
            SYSTEM,
            SystemEntry,
            ["chip", "memory", 0, "capasity"],
            "1 B",
            "chip.memory.0.capasity: no such key; did you mean capacity?",
        ),
        (
            SYSTEM,
            SystemEntry,
            ["domains", 0, "kind"],
            "scaleup",
            "domains.0.kind: must be scale-up, pod or scale-out, got 'scaleup'",
        ),
        (LAW, LawEntry, ["domain", "tokens", "least"], {"grade": "vendor"}, "domain.tokens.least.value: is missing"),
    ],
)
def test_what_is_said(data, schema, place, value, says):
    assert told(data, schema, place, value).startswith(says)
