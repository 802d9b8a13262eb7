"""Model, system and engine of a board: names of the catalogue, or pasted texts.

With them come the layout of one replica, and the command and the Python call that give a board's answer.

Names are searched in the catalogue only: no name from the network opens another file, and nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from steptime.catalog.data_files import DEEPEST_KEY, files, folded, read_file
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, RangeError, UnknownName, short_repr
from steptime.hardware.system import System
from steptime.lecture.current_figures import domain_chips
from steptime.models.model import Model, stored_formats, with_formats
from steptime.models.model_loading import KV_FORMATS, load_model, read_model
from steptime.models.quantization import release_format
from steptime.physics.chip_memory import sequences_that_fit
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import IDEAL, Engine, default_formats, engine_for, load_engine
from steptime.physics.layout import Layout
from steptime.physics.layout_space import legal, most_spread
from steptime.physics.step import Step, decode_step
from steptime.svg import PART_NAMES, PARTS
from steptime.units import show
from steptime.web.board import Shared, bar_inputs, is_config, is_toml, printed

# Models and systems kept in memory.
LOADED: Final = 256
PASTED: Final = "pasted"
Output = TypeVar("Output")


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

    @property
    def rent(self) -> float:
        """Typical rent of a chip [USD/s]; NaN: not known."""
        return float(np.asarray(self.system.rent.typical))


@dataclass(frozen=True, slots=True)
class Replica(Subject):
    """The model, system and engine of a board, with the layout of one replica."""

    layout: Layout

    @property
    def chips(self) -> int:
        """Chips of the replica."""
        return int(self.layout.chips)

    def step(self, batch: Any, context: Any) -> Step:
        """Return decode steps of the full model.

        Args:
            batch: Sequences.
            context: Tokens of each sequence.

        Returns:
            Steps, with the common shape of the arguments.
        """
        return decode_step(self.model, self.system, batch=batch, context=context, layout=self.layout, engine=self.engine)

    def room(self, context: Any) -> Any:
        """Return the sequences that fit the memory.

        Args:
            context: Tokens of each sequence.

        Returns:
            Sequences, with the shape of `context`; not below 0.
        """
        fits = sequences_that_fit(self.model, self.system, context=context, layout=self.layout, engine=self.engine)
        return np.maximum(fits, 0.0)


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
        for alias in (*data.get("aliases", ()), data.get("name", name)):
            names_by_alias.setdefault(folded(alias), name)
    return names_by_alias


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
    names_by_alias = names(kind)
    if folded(name) not in names_by_alias:
        every = [*dict.fromkeys(names_by_alias.values()), *names_by_alias]
        raise UnknownName(kind.removesuffix("s"), name, every, f"The list of {kind} shows all.")
    return files(kind)[names_by_alias[folded(name)]]


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
    return load_model(catalogue_file("models", name), kv=kv)


def load_subject(inputs: Shared) -> Subject:
    """Return the model, system and engine of the bar, with the KV cache format of the engine as in commands.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Model, system and engine.

    Raises:
        WrongField: An input is invalid.
    """
    model = at_field("model", _model, inputs.model, inputs.weights, inputs.kv)
    system = at_field("system", _system, inputs.system)
    engine = at_field("engine", _engine, system, inputs.engine)
    return Subject(as_served(model if inputs.weights else default_formats(model, engine), system, engine), system, engine)


def refuse_long_context(model: Model, context: int) -> None:
    """Raise an error if a context is too long for a model.

    Args:
        model: The model.
        context: Tokens of each sequence.

    Raises:
        WrongField: The context is too long.
    """
    if context > model.max_context:
        raise WrongField("context", f"the longest context of this model is {model.max_context:,.0f} tokens")


def require_rent(subject: Subject, product: str) -> float:
    """Return the typical rent of a chip.

    Args:
        subject: Subject of a board.
        product: What has no price without a rent, for the message.

    Returns:
        USD per second.

    Raises:
        WrongField: The rent is not known.
    """
    if not np.isfinite(subject.rent):
        raise WrongField("system", f"the rent of {subject.system.name} is not known, so {product} has no price")
    return subject.rent


def load_replica(inputs: Shared, chips: int) -> Replica:
    """Return the model, system and engine of the bar on one pipeline stage with the most chips of one replica.

    Experts are spread over all chips, with as many data-parallel ranks as possible. Models without experts use tensor
    parallelism.

    Args:
        inputs: Inputs of a board; only the bar counts.
        chips: Number of chips; 0: the scale-up domain.

    Returns:
        Model, system, engine and layout.

    Raises:
        WrongField: An input is invalid, or no layout is legal.
    """
    return _replica(bar_inputs(inputs), chips)


@lru_cache(maxsize=512)
def _replica(bar: Shared, chips: int) -> Replica:
    subject = load_subject(bar)
    model, system = subject.model, subject.system
    max_chips = chips or domain_chips(system)
    layouts = [x for x in legal(model, system, max_chips, microbatches=(1,)) if x.pp == 1 and x.cp == 1]
    if not layouts:
        raise WrongField("chips", f"{model.name} has no legal layout on {max_chips:,} chips of {system.name}")
    return Replica(model, system, subject.engine, most_spread(layouts))


def at_field(field: str, function: Callable[..., Output], *arguments: Any, **options: Any) -> Output:
    """Call a function, and name the field of the page in the errors of its input.

    Args:
        field: Name of the input.
        function: The function.
        *arguments: Its arguments.
        **options: Its arguments by name.

    Returns:
        What the function returns.

    Raises:
        WrongField: The input is invalid.
    """
    try:
        return function(*arguments, **options)
    except WrongField:
        raise
    except InputError as error:
        # The page has fields and no options.
        raise WrongField(field, re.sub(r"^--[\w-]+(?=:)", field, str(error))) from None
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
        form = release_format(model.name, weights)
    except InputError as error:
        raise WrongField("weights", str(error)) from None
    return with_formats(model, weights=form, experts=form)


@lru_cache(maxsize=LOADED)
def _system(text: str) -> System:
    if not is_toml(text):
        return load_system(catalogue_file("systems", text))
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
        catalogue_file("chips", chip)
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
        raise UnknownName("engine", name, [*names_by_alias.values(), IDEAL.name], "The list of engines shows all.")
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


# --- the commands and calls that give the answer of a board --------------------------------------------------------------

PARALLEL_AXES: Final = ("tp", "dp", "ep", "pp", "cp")


def subject_names(inputs: Shared) -> tuple[str, str]:
    """Return the model and the system as a command names them.

    For a pasted text it is the name of a file to save it in.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Model and system.
    """
    model = "config.json" if is_config(inputs.model) else inputs.model
    system = "system.toml" if is_toml(inputs.system) else inputs.system
    return model, system


def command(name: str, inputs: Shared, options: Mapping[str, Any]) -> str:
    """Return a steptime command; options with empty values are left out.

    Args:
        name: Name of the command.
        inputs: Inputs of the bar.
        options: Values by option.

    Returns:
        Shell command.

    >>> command("step", Shared(model="llama-3.1-8b", system="hgx-h100"), {"--batch": 64, "--context": 4096})
    'steptime step llama-3.1-8b hgx-h100 --batch 64 --context 4096'
    """
    words = ["steptime", *name.split(), *subject_names(inputs)]
    for option, value in {"--engine": inputs.engine, "--weights": inputs.weights, "--kv": inputs.kv, **options}.items():
        if value not in ("", None):
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def python_command(program: str) -> str:
    """Return a shell command that runs a program, for answers that no command of steptime gives.

    Args:
        program: Lines of Python after `import steptime as st`.

    Returns:
        Shell command.

    >>> print(python_command("st.blackboard.bubble_fraction(4, 8)"))
    python -c 'import steptime as st
    print(st.blackboard.bubble_fraction(4, 8))'
    """
    return shlex.join(["python", "-c", f"import steptime as st\n{printed(program)}"])


def loaded(inputs: Shared, *, is_served: bool = False) -> tuple[str, str]:
    """Return the model and the system as Python expressions.

    Args:
        inputs: Inputs of the bar.
        is_served: Whether to name the formats that the engine chooses, for functions that do not choose them.

    Returns:
        Names, or a call of `st.load_model` for other number formats.
    """
    model, system = subject_names(inputs)
    engine_formats = _engine_formats(bar_inputs(inputs)) if is_served else {}
    formats = {name: value for name in ("weights", "kv") if (value := getattr(inputs, name))} | engine_formats
    texts = [repr(model), *(f"{name}={value!r}" for name, value in formats.items())]
    return (f"st.load_model({', '.join(texts)})" if formats else repr(model)), repr(system)


@lru_cache(maxsize=LOADED)
def _engine_formats(bar: Shared) -> dict[str, str]:
    """Return the number formats that differ from those of the config because the engine chooses them."""
    plain, served = _model(bar.model, bar.weights, bar.kv), load_subject(bar).model
    before, after = ((*stored_formats(model), "", "")[:2] for model in (plain, served))
    formats = dict(zip(("weights", "experts"), after, strict=True)) if before != after else {}
    formats["kv"] = "" if plain.kv_format == served.kv_format else served.kv_format
    return {name: value for name, value in formats.items() if value}


def with_engine(inputs: Shared) -> str:
    """Return the engine of the bar as the last argument of a Python call.

    Args:
        inputs: Inputs of the bar.

    Returns:
        Text such as ", engine='vllm'"; empty for the default engine.
    """
    return f", engine={inputs.engine!r}" if inputs.engine else ""


def layout_options(layout: Layout) -> dict[str, int]:
    """Return the command-line options of a layout; sizes of 1 are left out.

    Args:
        layout: The layout.

    Returns:
        Sizes by option, such as --tp.
    """
    return {f"--{name}": int(getattr(layout, name)) for name in PARALLEL_AXES if int(getattr(layout, name)) > 1}


def step_command(inputs: Any, replica: Replica) -> str:
    """Return the command that computes a decode step; a program where the layout has copies of experts.

    The command has no option for copies.

    Args:
        inputs: Inputs of a board with a batch and a context.
        replica: Subject and layout of one replica.

    Returns:
        Shell command.
    """
    if replica.layout.redundant_experts:
        return python_command(decode_call(inputs, replica))
    return command("step", inputs, {"--batch": inputs.batch, "--context": inputs.context, **layout_options(replica.layout)})


def decode_call(inputs: Any, replica: Replica) -> str:
    """Return the Python call that computes a decode step.

    Args:
        inputs: Inputs of a board with a batch and a context.
        replica: Subject and layout of one replica.

    Returns:
        Python expression.
    """
    sizes = ", ".join(f"{option[2:]}={size}" for option, size in layout_options(replica.layout).items())
    copies = int(replica.layout.redundant_experts)
    sizes += f", redundant_experts={copies}" if copies else ""
    subject = f"{', '.join(loaded(inputs, is_served=True))}, batch={inputs.batch}, context={inputs.context}"
    return f"st.decode_step({subject}, layout=st.Layout({sizes}){with_engine(inputs)}).total"


def show_step_sum(parts: Mapping[str, float], total: float) -> str:
    """Return the step time as a sum of its parts.

    Args:
        parts: Seconds by part.
        total: Seconds of the step.

    Returns:
        Line of text.

    >>> show_step_sum({"compute": 1e-3, "weights": 2e-3, "kv": 0.0, "network": 0.0, "overhead": 0.0}, 3e-3)
    'step = 1.00 ms arithmetic + 2.00 ms weights = 3.00 ms'
    """
    listed = " + ".join(f"{show(parts[name], 's')} {PART_NAMES[name]}" for name in PARTS if parts[name] > 0)
    return f"step = {listed} = {show(total, 's')}"
