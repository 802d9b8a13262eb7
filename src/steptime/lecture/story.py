"""The story of the lecture page as data: its state, derived numbers, chapters, and tables of the catalogue.

The text is in `data/lecture/chapters`. A reader changes the variables; every other number of the page is derived from
them by a closed form, in the order of `state.toml`.
"""

from __future__ import annotations

import csv
import math
import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime import blackboard
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, UnknownName
from steptime.hardware.system import System
from steptime.lecture.current_figures import balances_by_format, build_pair, cheapest_overtraining, domain_chips
from steptime.lecture.lecture_content import FOLDER
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Number
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import engine_for
from steptime.physics.layout_space import legal, most_spread
from steptime.physics.step import decode_step
from steptime.svg import in_colours
from steptime.units import in_digits

CHAPTERS: Final = FOLDER / "chapters"
# Operations that need no function of the blackboard, with arguments a and b.
ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
# Context of the KV cache bytes of a model [tokens].
CONTEXT: Final = 8192
# Batches and contexts of the full model [sequences, tokens].
ENGINE_BATCHES: Final = np.geomspace(1, 65_536, 33)
ENGINE_CONTEXTS: Final = (400, 2000, 8192, 32_768, 131_072)
# Parts of a step that the closed forms leave out; the page has them for every fourth batch.
LEFT_OUT: Final = ("network", "overhead")
THINNED: Final = slice(None, None, 4)
# Chips in the picture of balances, with the format of their weights.
BALANCES: Final = (
    ("hgx-a100", "bf16"), ("hgx-h100", "bf16"), ("hgx-h100", "fp8"), ("hgx-h200", "fp8"), ("hgx-b200", "fp8"),
    ("gb200-nvl72", "fp4"), ("mi355x-8", "fp8"), ("tpu7x", "fp8"), ("hgx-b300", "fp4"), ("vr200-nvl72", "fp4"),
)  # fmt: skip
# Chips in the picture of drain times.
DRAINS: Final = (
    "hgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72", "hgx-b300", "mi355x-8", "tpu7x", "vr200-nvl72"
)  # fmt: skip
# Systems in the picture of scale-up domains.
DOMAINS: Final = ("hgx-a100", "hgx-h100", "gb200-nvl72", "vr200-nvl72", "rubin-ultra-nvl576")
# Tiers below HBM: capacity [B] and bandwidth [B/s], as in section 15 of the lecture.
TIERS: Final = {
    "DRAM of a host": (2e12, 614e9), "flash, 3.84 TB": (3.84e12, 7e9), "dense flash, 61 TB": (61e12, 14e9),
    "disk, 20 TB": (20e12, 0.28e9),
}  # fmt: skip


def closed_form(name: str) -> Callable[..., Any]:
    """Return a closed form of the page.

    Args:
        name: Name of a function of the blackboard, or of `ARITHMETIC`.

    Returns:
        The function.

    Raises:
        UnknownName: There is no such function.

    >>> closed_form("optimal_batch").__name__, closed_form("mul")(2, 3)
    ('optimal_batch', 6)
    """
    if name in ARITHMETIC:
        return ARITHMETIC[name]
    if name not in blackboard.__all__:
        raise UnknownName("closed form", name, [*blackboard.__all__, *ARITHMETIC])
    function: Callable[..., Any] = getattr(blackboard, name)
    return function


@lru_cache(maxsize=1)
def state() -> Mapping[str, Any]:
    """Return the variables and the derived numbers of the page.

    Returns:
        Tables of `state.toml`.
    """
    return tomllib.loads((CHAPTERS / "state.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def chapters() -> tuple[Mapping[str, Any], ...]:
    """Return the chapters in order.

    Returns:
        One table per chapter.

    Raises:
        DataFileError: A picture, a control or a number of a chapter does not exist.
    """
    files = sorted(CHAPTERS.glob("[0-9]*.toml"))
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in files]
    variables = {variable["name"] for variable in state()["variables"]}
    for path, chapter in zip(files, tables, strict=True):
        pictures = {picture["id"] for picture in chapter["pictures"]}
        for step in chapter["steps"]:
            if step["picture"] not in pictures:
                raise DataFileError(path, f"unknown picture {step['picture']!r}; the chapter has {', '.join(pictures)}")
            if wrong := set(step.get("controls", ())) - variables:
                raise DataFileError(path, f"unknown control {min(wrong)!r}; state.toml has the variables")
    return tuple(tables)


def engine_seconds(model: str, system: str, batch: float, context: float) -> float:
    """Return the time of a decode step of a real engine, from `engine_tables`.

    Batches are interpolated on logarithmic axes, contexts on a linear one. Below the shortest context the time is that of
    the shortest context.

    Args:
        model: Model of the page.
        system: System of the page.
        batch: Sequences.
        context: Tokens of each sequence.

    Returns:
        Seconds; NaN without a layout, or beyond the contexts of the table or of the model.

    >>> 1e-3 < engine_seconds("deepseek-ai/DeepSeek-V3", "gb200-nvl72", 2400, 400) < 1e-1
    True
    """
    rows = engine_tables()["seconds"][model].get(system)
    if rows is None or context > ENGINE_CONTEXTS[-1]:
        return math.nan
    numbers = np.array(rows, dtype=float)
    by_context = [float(np.exp(np.interp(np.log(batch), np.log(ENGINE_BATCHES), np.log(row)))) for row in numbers]
    upper = max(int(np.searchsorted(ENGINE_CONTEXTS, context)), 1)
    low, high = ENGINE_CONTEXTS[upper - 1 : upper + 1]
    share = min(max((context - low) / (high - low), 0.0), 1.0)
    # A context of the table needs no neighbour, which may be too long for the model.
    if share in (0.0, 1.0):
        return by_context[upper - 1 + int(share)]
    return by_context[upper - 1] * (1 - share) + by_context[upper] * share


@lru_cache(maxsize=1)
def engine_tables() -> Mapping[str, Any]:
    """Return decode steps of the full model on the scale-up domain, for each model and system of the page.

    Returns:
        Batches, contexts, and seconds, network and overhead by model and system.
    """
    systems = {place: load_system(place) for place in state()["systems"]}
    parts: dict[str, dict[str, dict[str, Any]]] = {part: {} for part in ("seconds", *LEFT_OUT)}
    for name in state()["models"]:
        model = load_model(name)
        rows = {place: engine_rows(model, system) for place, system in systems.items()}
        for part, by_model in parts.items():
            by_model[name] = {place: row[part] for place, row in rows.items() if row}
    return {"batches": [float(batch) for batch in ENGINE_BATCHES], "contexts": list(ENGINE_CONTEXTS), **parts}


def engine_rows(model: Model, system: System) -> dict[str, list[list[float | None]]]:
    """Return decode steps of the full model on the scale-up domain, by the usual engine of the system.

    Args:
        model: The model.
        system: The system.

    Returns:
        Seconds by context and batch, with their parts network and overhead for every fourth batch; None for contexts
        beyond those of the model; empty without a layout.
    """
    layouts = [
        layout for layout in legal(model, system, domain_chips(system), microbatches=(1,)) if layout.pp == 1 and layout.cp == 1
    ]
    if not layouts:
        return {}
    batch, context, engine = ENGINE_BATCHES[None, :], np.array(ENGINE_CONTEXTS)[:, None], engine_for(system)
    served = as_served(model, system, engine)
    step = decode_step(served, system, batch=batch, context=context, layout=most_spread(layouts), engine=engine)
    resources = in_colours(step.resources)
    parts = {"seconds": np.asarray(step.total)} | {part: np.asarray(resources.get(part, 0.0)) for part in LEFT_OUT}
    is_known = np.array(ENGINE_CONTEXTS) <= model.max_context

    def column(part: str, values: Any, digits: str) -> list[list[float | None]]:
        rows = np.broadcast_to(values, (len(ENGINE_CONTEXTS), len(ENGINE_BATCHES)))
        rows = rows if part == "seconds" else rows[:, THINNED]
        return [
            [float(format(value, digits)) if is_inside else None for value in row]
            for row, is_inside in zip(rows, is_known, strict=True)
        ]

    return {part: column(part, values, ".4g" if part == "seconds" else ".2g") for part, values in parts.items()}


def pair_tables(model: Model, system: System) -> Mapping[str, Any]:
    """Return the variables that a model and a system set.

    Args:
        model: The model.
        system: The system.

    Returns:
        Variables of the model, of the system and of the pair.
    """
    pair = build_pair(as_served(model, system, engine_for(system)), system, context=CONTEXT)
    rent = float(system.rent.typical * 3600)
    of_model = {"active": pair.active, "total": pair.total, "weight_bytes": pair.bytes_of_weight}
    # A dense model leaves the experts of the page as they are.
    if pair.experts > 1:
        of_model |= {"experts": float(pair.experts), "active_experts": float(pair.active_experts)}
    of_system = {
        "chips": float(pair.chips), "bandwidth": pair.bandwidth / pair.chips, "capacity": pair.capacity / pair.chips,
    } | ({"rent": rent} if np.isfinite(rent) else {})  # fmt: skip
    # The FLOP/s depend on the formats of the model's products, the KV cache on the format that the engine chooses.
    of_pair = {"flops": 2 * pair.mac_rate / pair.chips, "kv_bytes": pair.kv_bytes}
    return {"model": of_model, "system": of_system, "pair": of_pair}


def alone_over_cheapest(model: str, system: str) -> float:
    """Return the cost of a token of a single sequence over the lowest cost, by the full model at the shortest context.

    Args:
        model: Model of the page.
        system: System of the page.

    Returns:
        Ratio.
    """
    seconds = np.array(engine_tables()["seconds"][model][system][0], dtype=float)
    return float(seconds[0] / np.min(seconds / ENGINE_BATCHES))


@lru_cache(maxsize=1)
def measured_runs() -> Mapping[str, Any]:
    """Return measured decode steps, on one server of eight chips or on the decode pool of a rack.

    Returns:
        Rows of engine, context, concurrency, seconds and chips, by model and system.
    """
    runs: dict[str, dict[str, list[list[Any]]]] = {}
    with (CHAPTERS / "measured.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = [float(row[key]) for key in ("context", "concurrency", "tpot_s", "chips")]
            runs.setdefault(row["model"], {}).setdefault(row["system"], []).append([row["engine"], *numbers])
    return runs


def evaluate(values: Mapping[str, Number]) -> dict[str, Number]:
    """Compute all derived numbers of the page.

    Args:
        values: Variables by name; the others have their defaults.

    Returns:
        Variables and derived numbers by name.

    >>> evaluate({"flops": 5e15, "bandwidth": 8e12, "total": 8 * 37e9, "active": 37e9})["best_batch"].round()
    np.float64(2500.0)
    """
    numbers: dict[str, Number] = {variable["name"]: variable["default"] for variable in state()["variables"]}
    numbers |= {number["name"]: math.nan for number in state()["lookups"]} | dict(values)
    for number in state()["derived"]:
        arguments = {key: numbers[value] if isinstance(value, str) else value for key, value in number["arguments"].items()}
        function = closed_form(number["call"])
        numbers[number["name"]] = function(*arguments.values()) if number["call"] in ARITHMETIC else function(**arguments)
    return numbers


@lru_cache(maxsize=1)
def defaults() -> Mapping[str, float]:
    """Return the first values of all variables: those of the default model and system, and the others of `state.toml`.

    Returns:
        Values by name.
    """
    numbers = {variable["name"]: float(variable["default"]) for variable in state()["variables"]}
    tables = catalogue_tables()
    model, system = state()["model"], state()["system"]
    for table in (tables["models"][model], tables["systems"][system], tables["pairs"][model][system]):
        numbers.update(table)
    return numbers


# Sizes and words of numbers, from the largest; the page writes numbers by the same tables.
LARGE: Final = ((1e15, "quadrillion "), (1e12, "trillion "), (1e9, "billion "), (1e6, "million "))
PREFIXES: Final = (
    (1e24, "Y"),
    (1e21, "Z"),
    (1e18, "E"),
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (0.0, ""),
)
SCALES: Final[Mapping[str, tuple[tuple[float, float, str], ...]]] = {
    # Smallest value, size of the unit, and its name.
    "s": (
        (172800.0, 86400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"),
        (1e-6, 1e-6, "µs"), (0.0, 1e-9, "ns"),
    ),
    **{unit: tuple((size, size or 1.0, prefix + unit) for size, prefix in PREFIXES) for unit in ("B", "B/s", "FLOP", "FLOP/s")},
    "share": ((0.0, 0.01, "%"),),
}  # fmt: skip


def write_number(value: float, unit: str, digits: int = 0) -> str:
    """Write a number of the page for readers, with three digits, or four for sequences.

    Args:
        value: The number.
        unit: Its unit.
        digits: Digits of a number whose text multiplies it; 0: the usual digits.

    Returns:
        Text with unit.

    >>> write_number(0.0023, "s"), write_number(5448.2, "sequences"), write_number(0.123, "share")
    ('2.3 ms', '5,448 sequences', '12.3 %')
    >>> write_number(671e9, "parameters"), write_number(0.352, "USD/Mtok"), write_number(1, "racks")
    ('671 billion parameters', '$0.352', '1 rack')
    """
    if not np.isfinite(value):
        return "unknown here" if np.isnan(value) else "no limit"
    # Ties such as 23.25 ms round up, in Python and in JavaScript.
    value *= 1 + 1e-12
    digits = digits or (4 if unit == "sequences" else 3)
    if unit in ("USD/Mtok", "USD/h"):
        return f"${in_digits(value, digits)}{' per hour' if unit == 'USD/h' else ''}"
    if unit in SCALES:
        # A rounded 1,000 of one unit is 1 of the next.
        size, name = next((size, name) for low, size, name in SCALES[unit] if abs(value) >= low * 0.9995)
        return f"{in_digits(value / size, digits)} {name}"
    if unit == "x":
        return f"{in_digits(value, digits)}x"
    size, word = next(((size, word) for size, word in LARGE if abs(value) >= size * 0.9995), (1.0, ""))
    text = in_digits(value / size, digits)
    return f"{text} {word}{unit[:-1] if text == '1' and not word and unit.endswith('s') else unit}".rstrip()


@lru_cache(maxsize=1)
def catalogue_tables() -> Mapping[str, Any]:
    """Return the variables of the models and systems that the page offers, and of each pair.

    Returns:
        Variables by model, by system, and by model and system.
    """
    names = state()
    systems = {name: load_system(name) for name in names["systems"]}
    tables: dict[str, Any] = {"models": {}, "pairs": {}, "systems": {}}
    for name in names["models"]:
        model, tables["pairs"][name] = load_model(name), {}
        for place, system in systems.items():
            pair = pair_tables(model, system)
            tables["models"][name], tables["systems"][place], tables["pairs"][name][place] = (
                pair["model"],
                pair["system"],
                pair["pair"],
            )
    return tables


@lru_cache(maxsize=1)
def fixed_tables() -> Mapping[str, Any]:
    """Return the tables that no variable of the page changes.

    Returns:
        Balances and drain times of chips, chips of scale-up domains, overtraining by scaling law, and mixing by round.
    """
    balances = []
    for name, number_format in BALANCES:
        chip = load_system(name).chip
        value = float(balances_by_format([(name, number_format)])[0])
        balances.append({"name": f"{_title(chip.name)} {number_format.upper()}", "year": _year(name), "value": value})
    drains = []
    for name in DRAINS:
        chip = load_system(name).chip
        seconds = blackboard.drain_seconds(float(chip.hbm.capacity), float(chip.hbm.bandwidth))
        drains.append({"name": _title(chip.name), "year": _year(name), "value": float(seconds)})
    domains = [
        {"name": f"{_title(system.chip.name)}: {domain_chips(system)}", "year": _year(name), "value": domain_chips(system)}
        for name, system in ((name, load_system(name)) for name in DOMAINS)
    ]
    served = np.geomspace(1e12, 1e16, 33)
    laws = {
        law: [float(cheapest_overtraining(law, 1e11, 2e14, float(3 * tokens))) for tokens in served]
        for law in ("hoffmann", "epoch")
    }
    flips = tomllib.loads((CHAPTERS / "mixing.toml").read_text(encoding="utf-8"))
    tiers = [{"name": name, "drain": blackboard.drain_seconds(*numbers)} for name, numbers in TIERS.items()]
    return {
        "balances": balances,
        "drains": drains,
        "domains": domains,
        "laws": {"served": served.tolist(), **laws},
        "flips": flips,
        "tiers": tiers,
    }


def _title(chip: str) -> str:
    """Write the name of a chip as its maker does: A100, TPU7x, Rubin Ultra."""
    return chip.replace("-", " ").title() if "-" in chip else chip.upper().replace("TPU7X", "TPU7x")


def _year(system: str) -> int:
    return int(load_system(system).chip.year)


def glossary() -> Mapping[str, str]:
    """Return the words that the page explains.

    Returns:
        Meaning by word.
    """
    words: Mapping[str, str] = tomllib.loads((CHAPTERS / "glossary.toml").read_text(encoding="utf-8"))
    return words


def text_numbers(texts: Sequence[str]) -> list[str]:
    """Return the names of the numbers in texts, such as "batch" of "{batch}".

    A part that stands only where a number exists, "{?engine}...{/}", names this number too.

    Args:
        texts: Texts of chapters.

    Returns:
        Names in order, each once.

    >>> text_numbers(["at {batch} it takes {step}", "{?engine}{batch}{/}"])
    ['batch', 'step', 'engine']
    """
    names: dict[str, None] = {}
    for text in texts:
        for part in text.split("{")[1:]:
            names[part.partition("}")[0].lstrip("?/")] = None
    return [name for name in names if name]


def formula_letters(formula: str) -> dict[str, str]:
    """Return the letters of a formula of the page with their meaning.

    Args:
        formula: Formula in plain letters and words.

    Returns:
        Meaning by letter, in the order of `state.toml`.

    >>> formula_letters("drafts = B* / M")
    {'B*': 'best batch', 'M': 'micro-batches'}
    """
    symbols = set(re.findall(r"\w+\*?(?!\w)", formula.replace("'", "")))
    return {letter: meaning for letter, meaning in state()["letters"].items() if letter in symbols}
