"""The default layout of a board: experts over all chips, else maximum TP.

Model, system and engine of a board: names of the catalogue, or pasted texts.

Names are searched in the catalogue only: no name from the network opens another file, and nothing is downloaded.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from steptime.catalog.data_files import DEEPEST_KEY, files, folded, read_file
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, short_repr
from steptime.hardware.number_formats import number_format
from steptime.hardware.system import System
from steptime.lecture.current_figures import domain_chips
from steptime.models.model import Model, with_formats
from steptime.models.model_loading import KV_FORMATS, load_model, read_model
from steptime.physics.engine import IDEAL, Engine, engine_for, load_engine
from steptime.physics.layout import Layout
from steptime.physics.layout_space import legal, most_spread
from steptime.web.board import Shared, bar_inputs, is_config, is_toml


def single_stage_layout(inputs: Shared, chips: int) -> Layout:
    """Return the layout of one pipeline stage with the most chips of one replica.

    Experts are spread over all chips, with as many data-parallel ranks as possible. Models without experts use tensor
    parallelism.

    Args:
        inputs: Inputs of a board; only the bar counts.
        chips: Number of chips; 0: the scale-up domain.

    Returns:
        Layout of one replica.

    Raises:
        WrongField: No layout is legal.
    """
    return _layout(bar_inputs(inputs), chips)


@lru_cache(maxsize=512)
def _layout(shared: Shared, chips: int) -> Layout:
    subject = load_subject(shared)
    model, system = subject.model, subject.system
    max_chips = chips or domain_chips(system)
    layouts = [x for x in legal(model, system, max_chips, microbatches=(1,)) if x.pp == 1 and x.cp == 1]
    if not layouts:
        raise WrongField("chips", f"{model.name} has no legal layout on {max_chips:,} chips of {system.name}")
    return most_spread(layouts)


# Models and systems kept in memory.
LOADED: Final = 256
PASTED: Final = "pasted"


class WrongField(InputError):
    """An invalid input; `field` is its name."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model, system and engine of a board."""

    model: Model
    system: System
    engine: Engine


@cache
def names(kind: str) -> dict[str, str]:
    """Return the names and aliases of the catalogue, folded, with their full names.

    Args:
        kind: Folder of the catalogue, such as "models".

    Returns:
        Names by folded name or alias.
    """
    names_by_alias: dict[str, str] = {}
    for name, path in files(kind).items():
        names_by_alias[folded(name)] = name
        data = read_file(path)
        for alias in data.get("aliases", ()):
            names_by_alias.setdefault(folded(alias), name)
        if isinstance(data.get("name"), str):
            names_by_alias.setdefault(folded(data["name"]), name)
    return names_by_alias


def _catalog_file(kind: str, name: str) -> Path:
    """Return the file of a catalogue name; no other file is ever opened."""
    names_by_alias = names(kind)
    if folded(name) not in names_by_alias:
        raise UnknownName(
            kind.removesuffix("s"), name, [*dict.fromkeys(names_by_alias.values()), *names_by_alias], "The list shows all."
        )
    return files(kind)[names_by_alias[folded(name)]]


def catalogue_file(kind: str, name: object) -> Path:
    """Return the file of a catalogue entry; no other file is ever opened.

    Args:
        kind: Folder of the catalogue, such as "models".
        name: Name in a request.

    Returns:
        Path of the file.

    Raises:
        RangeError: The name is not a text.
        UnknownName: The catalogue has no such entry.
    """
    if not isinstance(name, str):
        raise RangeError(f"{kind.removesuffix('s')} must be a name of the catalogue, not {short_repr(name)}")
    return _catalog_file(kind, name)


def catalog_model(name: str, kv: str = "") -> Model:
    """Return a model of the catalogue.

    Args:
        name: Name or alias; a path is not allowed.
        kv: Number format of the KV cache; empty: as in the config.

    Returns:
        The model.

    Raises:
        UnknownName: The catalogue has no such model.
    """
    return load_model(_catalog_file("models", name), kv=kv)


def load_subject(inputs: Shared) -> Subject:
    """Return the model, system and engine of the bar.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Model, system and engine.

    Raises:
        WrongField: An input is invalid.
    """
    return Subject(
        _read_field("model", _model, inputs.model, inputs.weights, inputs.kv),
        system := _read_field("system", _system, inputs.system),
        _read_field("engine", _engine, system, inputs.engine),
    )


def _read_field(field: str, reader: Any, *arguments: Any) -> Any:
    try:
        return reader(*arguments)
    except WrongField:
        raise
    except InputError as error:
        raise WrongField(field, str(error)) from None
    except RecursionError:
        raise WrongField(field, f"{field}: the text is nested too deeply") from None


@lru_cache(maxsize=LOADED)
def _model(text: str, weights: str, kv: str) -> Model:
    if kv and kv not in KV_FORMATS:
        raise WrongField("kv", str(UnknownName("KV format", kv, KV_FORMATS, "Known: " + ", ".join(KV_FORMATS) + ".")))
    if is_config(text):
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InputError(f"the pasted config.json is not JSON: {error}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("config", {}), dict):
            raise InputError("the pasted config.json must be one object, in braces")
        # A catalogue file has the config under "config"; a Hugging Face file is the config itself.
        model = read_model(fields.get("config", fields), kv_format=kv)
    else:
        model = catalog_model(text, kv)
    if not weights:
        return model
    try:
        form = number_format(weights)
    except InputError as error:
        raise WrongField("weights", str(error)) from None
    return with_formats(model, weights=form, experts=form)


@lru_cache(maxsize=LOADED)
def _system(text: str) -> System:
    if not is_toml(text):
        return load_system(_catalog_file("systems", text))
    try:
        # Very many dots would make the parser recurse too deeply.
        data = tomllib.loads(text) if text.count(".") < 10_000 else {}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the pasted system is not TOML: {error}") from None
    if any(line.split("=")[0].count(".") > DEEPEST_KEY for line in text.splitlines()):
        raise InputError("the pasted system has a key that is nested too deeply")
    chip = data.get("chip")
    # A chip by name must be in the catalogue; the loader alone would also open a path.
    if isinstance(chip, str):
        _catalog_file("chips", chip)
    # The loader reads files only, so the pasted text goes through a temporary file.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{PASTED}.toml"
        path.write_text(text, encoding="utf-8")
        try:
            return load_system(path)
        except DataFileError as error:
            raise InputError(str(DataFileError(PASTED, error.problem, error.line))) from None


def _engine(system: System, name: str) -> Engine:
    if not name or folded(name) == IDEAL.name:
        return engine_for(system, IDEAL if name else None)
    names_by_alias = names("engines")
    if folded(name) not in names_by_alias:
        raise UnknownName("engine", name, [*names_by_alias.values(), IDEAL.name], "The list shows all.")
    return engine_for(system, load_engine(files("engines")[names_by_alias[folded(name)]]))


def listed() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield the models, systems and engines of the bar's lists.

    Yields:
        Kind, and names with their titles.
    """
    for kind in ("models", "systems", "engines"):
        options = []
        for name, path in files(kind).items():
            data = read_file(path)
            options.append({"name": data.get("name", name) if kind == "models" else name, "title": str(data.get("title", ""))})
        yield kind, options + ([{"name": IDEAL.name, "title": IDEAL.title}] if kind == "engines" else [])
