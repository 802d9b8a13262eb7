"""Writes a system of the catalogue as one TOML file to copy and change."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from steptime.catalog.data_files import find
from steptime.catalog.hardware_loading import entry_of_chip
from steptime.catalog.schema import ChipEntry, FigureEntry, SourceEntry, SystemEntry, Table, validated

HEAD: Final = """\
# A machine for steptime: chip and system in one file. Change the figures, and give the path of the file in place of a name:
#   steptime plan MODEL this.toml
#
# A figure is a text with its unit, "3.35 TB/s", or a table:
#   { value = "3.35 TB/s", from = "SOURCE", grade = "...", note = "..." }
# SOURCE is a name in [sources]. The grade (measured, vendor, reported, recalled, guess) replaces the grade of the source.
# Figures without a source count as guesses. Bandwidths are one way and per chip. Peak rates are dense.
"""
NOTES: Final = {
    "chips": "of a usual deployment; the default of a plan",
    "sources": "\n# Sources of the figures.",
    "domains": """
# The network, from the inner to the outer domain: size in chips, bandwidth in GB/s or Gb/s, latency in us.
# kind: scale-up, pod or scale-out. topology: switch, mesh, torus or ring. sums: whether the switch adds up an all-reduce
# (NVLink SHARP).
# The outermost domain has no size. A single domain with a size is a box.""",
    "tiers": "\n# Host memory per chip, fastest first: capacity in GB, bandwidth in GB/s, latency in us.",
    "rack": "\n# One rack: power in kW, weight in kg, cables, the limit of each, chips. links: scale-up links of\n"
    "# one chip. host_chips: chips that one operating system manages.",
    "chip": "\n# The chip.",
    "peak": "\n# Dense arithmetic in TFLOP/s: fp32, tf32, bf16 (needed by most models), fp16, fp8, int8, fp6, fp4, int4.",
    "memory": "\n# Memory of the chip, fastest first; the last stores weights and KV cache. capacity in GB, bandwidth in TB/s.",
    "power": """
# Power of one chip in W. tdp: its limit. whole: its limit including the machine. all_in: with its share of host, network
# and cooling.""",
    "reached": "\n# Shares of the data sheet: measured rate of plain matrix products, and capacity that the driver reports.",
    "software": "\n# By day of measurement: share of their usual speed that engines reached, and factor on fixed times.",
}


def template(name: str, catalog: str | os.PathLike[str] | None = None) -> str:
    """Return the TOML text of a system with its chip and explanatory comments.

    Loading the text gives an equal system.

    Args:
        name: Name of the system in the catalogue, or a path.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The text of the file.
    """
    path = find("systems", name, catalog)
    system = validated(SystemEntry, path)
    chip = entry_of_chip(system, path, catalog)[0]
    lines = [HEAD.rstrip(), *_plain(system, ("name", "title", "chips", "year"))]
    lines += _sources(system.sources, "sources")
    for key in ("domains", "tiers"):
        lines += _tables(key, getattr(system, key), NOTES[key])
    rack = _filled(system.rack)
    lines += [NOTES["rack"], "[rack]", *_pairs(rack)] if rack else []
    lines += [NOTES["chip"], "[chip]", *_plain(chip, ("name", "title", "vendor", "generation", "year"))]

    # A source that the system has too is written once.
    written = {name: vars(source) for name, source in system.sources.items()}
    lines += _sources(
        {name: source for name, source in chip.sources.items() if written.get(name) != vars(source)}, "chip.sources"
    )
    lines += [NOTES["peak"], "[chip.peak]", *_pairs(chip.peak)]
    lines += _tables("chip.memory", chip.memory, NOTES["memory"])
    for key, figures in (("power", chip.power), ("reached", chip.reached)):
        lines += [NOTES[key], f"[chip.{key}]", *_pairs(figures)] if figures else []
    lines += _tables("chip.software", chip.software, NOTES["software"])

    return "\n".join(lines) + "\n"


def _plain(entry: SystemEntry | ChipEntry, keys: tuple[str, ...]) -> Iterator[str]:
    for key in keys:
        if value := getattr(entry, key):
            note = NOTES.get(key)
            yield f"{key} = {_text(value)}" + (f"  # {note}" if note else "")


def _sources(sources: Mapping[str, SourceEntry], place: str) -> list[str]:
    lines = [NOTES["sources"]] if sources else []
    for number, (name, source) in enumerate(sources.items()):
        lines += ([""] if number else []) + [f"[{place}.{_key(name)}]", *_pairs(_filled(source))]
    return lines


def _tables(place: str, entries: Sequence[Any], note: str) -> list[str]:
    lines = [note] if entries else []
    for number, entry in enumerate(entries):
        lines += ([""] if number else []) + [f"[[{place}]]", *_pairs(_filled(entry))]
    return lines


def _filled(entry: Table) -> dict[str, Any]:
    """Return the attributes of an entry that differ from their defaults."""
    kind = type(entry)
    values = {name: getattr(entry, name) for name in kind.forms}
    return {name: value for name, value in values.items() if value != getattr(kind, name, None)}


def _pairs(fields: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in sorted(fields.items(), key=lambda item: isinstance(item[1], FigureEntry)):
        yield f"{name} = {_figure(value) if isinstance(value, FigureEntry) else _text(value)}"


def _figure(figure: FigureEntry) -> str:
    """Return a figure in TOML: only its value, or a table with its source and notes."""
    parts = {"value": figure.value, "from": figure.source, "grade": figure.grade, "note": figure.note}
    entries = {name: value for name, value in parts.items() if value not in ("", None)}
    # A figure without source and note needs no table.
    if len(entries) == 1:
        return _text(figure.value)
    return "{ " + ", ".join(f"{name} = {_text(value)}" for name, value in entries.items()) + " }"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str | float) -> str:
    """Return a text or a number in TOML, which quotes texts as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
