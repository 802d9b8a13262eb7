"""The command `steptime calibrate`: an engine fitted to measured runs."""

import os
from typing import Annotated

import typer

from steptime.atomic_files import write_text_atomically
from steptime.cli.option_groups import grouped
from steptime.cli.options import CATALOG, FULL, not_empty
from steptime.cli.output import check_outputs, patience, show, writing
from steptime.cli.run_files import FILES, SKIP, RunSettings, calibrate_training_file, training_file
from steptime.errors import DataFileError, InputError


@grouped
def calibrate(
    run_settings: RunSettings,
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
    full: FULL = False,
) -> None:
    """Fit an engine's physical constants to your own measured runs, with a shipped engine as prior.

    Args:
        run_settings: the first option; help texts describe this and the others.
    """
    from steptime.cli.views.validation_view import calibration_view
    from steptime.validation.error_summary import report
    from steptime.validation.predictions import predict
    from steptime.validation.validate_api import calibrate as fit

    path = _place(engine, out, force)
    not_empty("--prior", prior, "the name of an engine")
    if training_file(files):
        calibrate_training_file(files[0], engine, prior, path, catalog)
        return
    check_outputs({"--out": path}, [*files, prior or "", run_settings.model, run_settings.system])
    if prior is not None:
        _check_prior(prior, catalog)
    with patience(f"reading the runs and fitting {engine}; many runs take minutes"):
        calibration = fit(files, name=engine, prior=prior, skip_bad=skip_bad, catalog=catalog, **run_settings.arguments())
        rows, engines = list(calibration.rows), (calibration.prior, calibration.engine)
        tables = {candidate.name: report(rows, predict(rows, engine=candidate, catalog=catalog)) for candidate in engines}
    with writing(path):
        write_text_atomically(path, calibration.toml)
    show(calibration_view(*engines, tables, len(rows), list(calibration.left_out), path, full=full))


def _place(engine: str, out: str | None, force: bool) -> str:
    """Return where the engine file goes; a shipped engine's name, another folder and a file that is there are refused."""
    from steptime.catalog.data_files import files

    if not engine.strip() or engine in (".", "..") or engine != os.path.basename(engine) or not engine.isprintable():
        raise InputError(f"--engine takes a plain name, not {engine!r}; name another folder with --out FILE")
    if any(mark in engine for mark in '\\"'):
        raise InputError(f"--engine takes a plain name without quotes and backslashes, not {engine!r}")
    if engine.casefold() in ("ideal", *files("engines")):
        raise InputError(f"--engine {engine} is an engine of the catalogue; give yours another name, such as {engine}-mine")
    path = f"{engine}.toml" if out is None else out
    if os.path.isfile(path) and not force:
        raise DataFileError(path, "is there already; give --force to write over it, or another name with --out")
    return path


def _check_prior(name: str, catalog: str | None) -> None:
    """Raise InputError for an engine without fitted constants."""
    from steptime.physics.engine import load_engine
    from steptime.physics.uncertainty import has_range

    if not has_range(load_engine(name, catalog)):
        raise InputError(f"--prior {name} has no fitted constants to start from; `steptime engines` lists those that have")
