"""Options that several commands take, and how what was asked is read and answered."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from steptime.machines.system import System
    from steptime.models.model import Model
    from steptime.physics.engine import Engine

MODEL = Annotated[
    str,
    typer.Argument(help="Catalogue name, Hugging Face id, or path to a config.json or its folder.", show_default=False),
]
SYSTEM = Annotated[str, typer.Argument(help="Catalogue name, or path to a TOML file.", show_default=False)]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON in SI units instead of text.")]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="What if: another figure of the machine, such as chip.hbm.bandwidth=16TB/s or rent='2 USD/h'. Repeatable.",
    ),
]
CATALOG = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="FOLDER",
        help="A folder with chips/, systems/, rents/, models/ or engines/ that comes before the packaged ones.",
    ),
]
ENGINE = Annotated[
    str | None,
    typer.Option(
        help="Serving engine: a name (`steptime engines`), a file of constants, or ideal, the bound that physics sets.",
        show_default="vllm on NVIDIA chips, typical on others",
    ),
]
WEIGHTS = Annotated[
    str,
    typer.Option(metavar="FORMAT", help="Store weights as fp8, nvfp4, mxfp4, int4, bf16, ... instead of as the config says."),
]
EXPERTS = Annotated[str, typer.Option(metavar="FORMAT", help="Store routed experts in this format.")]
KV = Annotated[str, typer.Option("--kv", metavar="FORMAT", help="Keep the KV cache as fp8, bf16, fp8_ds_mla, ...")]
IMBALANCE = Annotated[
    float | None, typer.Option(help="Rows on the busiest expert chip over the mean.", show_default="the engine's")
]


def read_model(name: str, weights: str, experts: str, kv: str, catalog: str | None) -> Model:
    """Return the model of a name or a path, in the formats asked for."""
    from steptime.models.loading import load_model

    return load_model(name, weights=weights, experts=experts, kv=kv, catalog=catalog)


def read_system(name: str, changes: list[str] | None, catalog: str | None) -> System:
    """Return the system of a name or a path, with its what-ifs."""
    from steptime.catalog.loading import load_system
    from steptime.machines.what_if import read_changes, vary

    system = load_system(name, catalog)
    return vary(system, read_changes(system, tuple(changes or ())))


def read_engine(name: str | None, imbalance: float | None, system: System, catalog: str | None) -> Engine:
    """Return the engine of a name or a path, or the default of the system, with the imbalance of experts asked for."""
    from steptime.physics.engine import engine_for, with_imbalance

    engine = engine_for(system, name, catalog)
    return engine if imbalance is None else with_imbalance(engine, imbalance)


def read_systems(catalog: str | None) -> list[System]:
    """Return every system of the catalogue."""
    from steptime.catalog.files import files
    from steptime.catalog.loading import load_system

    return [load_system(name, catalog) for name in files("systems", catalog)]


def reciprocal(name: str, value: float) -> float:
    """Return 1 / value; a value that is not above zero is the user's slip."""
    from steptime.errors import RangeError

    if not (math.isfinite(value) and value > 0):
        raise RangeError(f"--{name} must be greater than 0, not {value:g}")
    return 1 / value


def console_of() -> Console:
    """Return where text is printed."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    from steptime.results import to_json

    sys.stdout.write(to_json(value) + "\n")
