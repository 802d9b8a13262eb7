"""The command `steptime calibrate`: an engine fitted to measured runs."""

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.errors import DataFileError, InputError
from steptime.terminal.groups import grouped
from steptime.terminal.measured_runs import FILES, SKIP, Told
from steptime.terminal.options import CATALOG, not_empty
from steptime.terminal.output import check_outputs, patience, show, writing

if TYPE_CHECKING:
    from steptime.physics.engine import Engine


@grouped
def calibrate(
    told: Told,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=FILES, show_default=False)],
    engine: Annotated[str, typer.Option(help="Name of the engine to make.", show_default=False)],
    prior: Annotated[
        str | None,
        typer.Option(help="Engine to start from, which few runs move little; by default that of the runs, or typical."),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Engine file to write; by default NAME.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an engine file that is there already.")] = False,
    skip_bad: SKIP = False,
    catalog: CATALOG = None,
) -> None:
    """Fit an engine's physical constants to your own measured runs, with a shipped engine as prior."""
    from steptime.measured.calibration import calibrate as fit
    from steptime.measured.calibration import engine_file
    from steptime.measured.load_generators import read_files
    from steptime.measured.validation import predict, report

    path = _place(engine, out, force)
    not_empty("--prior", prior, "the name of an engine")
    check_outputs({"--out": path}, [*files, prior or "", told.model, told.system])
    with patience(f"reading the runs and fitting {engine}; many runs take minutes"):
        rows, problems = read_files(files, given=told.by_column(), skip_bad=skip_bad, catalog=catalog)
        before = _prior(prior, {row["engine"] for row in rows}, catalog)
        fitted = fit(rows, name=engine, prior=before, catalog=catalog)
        tables = {one.name: report(rows, predict(rows, engine=one, catalog=catalog)) for one in (before, fitted)}
    with writing(path):
        Path(path).write_text(engine_file(fitted, _source(files, len(rows))), encoding="utf-8")
    from steptime.terminal.validation_view import calibration_view

    show(calibration_view(before, fitted, tables, len(rows), problems))
    show(f"Written to {path}: use it with --engine {path}")


def _place(engine: str, out: str | None, force: bool) -> str:
    """Return where the engine file goes; a name that leads to another folder, or a file that is there, is refused."""
    if not engine.strip() or engine in (".", "..") or engine != os.path.basename(engine) or not engine.isprintable():
        raise InputError(f"--engine takes a plain name, not {engine!r}; name another folder with --out FILE")
    if any(mark in engine for mark in '\\"'):
        raise InputError(f"--engine takes a plain name without quotes and backslashes, not {engine!r}")
    path = f"{engine}.toml" if out is None else out
    if os.path.isfile(path) and not force:
        raise DataFileError(path, "is there already; give --force to write over it, or another name with --out")
    return path


def _prior(name: str | None, ran: set[str], catalog: str | None) -> "Engine":
    """Return the engine to start from: the one asked for, that of all the runs, or the typical one."""
    from steptime.measured.validation import engine_of
    from steptime.physics.engine import TYPICAL, load_engine
    from steptime.physics.uncertainty import has_range

    before = load_engine(name, catalog) if name else engine_of(min(ran) if len(ran) == 1 else TYPICAL, catalog=catalog)
    if not has_range(before):
        raise InputError(
            f"--prior {before.name} has no fitted constants to start from; `steptime engines` lists those that have"
        )
    return before


def _source(files: list[str], runs: int) -> dict[str, str]:
    """Return where the constants of an engine file come from."""
    first, *others = (Path(file).resolve().name for file in files)
    return {
        "url": "",
        "date": datetime.date.today().isoformat(),
        "grade": "measured",
        "note": f"{runs} runs of {first}" + (f" and {len(others)} more files" if others else ""),
    }
