"""Options of `validate` and `calibrate` for measured runs, and their work on a file of training runs.

The command `steptime calibrate`: an engine fitted to measured runs.

The command `steptime anchors`: keep measured runs, which correct later predictions.
"""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.atomic_files import write_text_atomically
from steptime.cli.options import CATALOG, CSV, FULL, JSON, count, grouped, not_empty, refuse_idle
from steptime.cli.output import check_outputs, make_console, patience, print_json, say, show, write_csv, writing, wrote
from steptime.errors import DataFileError, InputError, RangeError, UnknownName

if TYPE_CHECKING:
    from steptime.physics.bias_correction import Anchors


FILES = (
    "CSV of runs (`steptime validate --columns` lists its columns), result JSON of `vllm bench serve` or of SGLang's "
    "bench_serving, or folders of them."
)
SKIP = Annotated[bool, typer.Option("--skip-bad", help="Leave out runs that cannot be read, and say which.")]
PANEL = "Settings that a vLLM or SGLang result file lacks"


def _text_option(words: str, name: str, metavar: str) -> Any:
    return typer.Option(name, help=words, metavar=metavar, rich_help_panel=PANEL, show_default=False)


def _count_option(words: str, name: str) -> Any:
    return count(name, words, PANEL, show_default=False)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of the runs that the files lack."""

    model: Annotated[
        str,
        _text_option("Catalogue name or config, instead of the file's model_id (SGLang's may have none).", "--model", "NAME"),
    ] = ""
    system: Annotated[str, _text_option("Measured system.", "--system", "NAME")] = ""
    tp: Annotated[int | None, _count_option("Tensor-parallel size.", "--tp")] = None
    pp: Annotated[int | None, _count_option("Pipeline stages. Default: 1.", "--pp")] = None
    dp: Annotated[int | None, _count_option("Data-parallel ranks (DP attention); GPUs = tp x pp x dp. Default: 1.", "--dp")] = (
        None
    )
    ep: Annotated[int | None, _count_option("Expert-parallel size. Default: 1.", "--ep")] = None
    weights: Annotated[
        str, _text_option("Number format of all weights except routed experts: bf16, fp8, nvfp4, ...", "--weights", "FORMAT")
    ] = ""
    experts: Annotated[
        str, _text_option("Number format of the routed experts. Default: as --weights.", "--experts", "FORMAT")
    ] = ""
    kv: Annotated[
        str, _text_option("Number format of the KV cache. Default: 8 bits if the weights have 8 or fewer.", "--kv", "FORMAT")
    ] = ""

    def arguments(self) -> dict[str, Any]:
        """Return the settings that were typed.

        Returns:
            Values by the argument of `validate` and `calibrate`.
        """
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def training_file(files: Sequence[str]) -> bool:
    """Return whether the only file is one of training runs.

    Args:
        files: names of files.

    Returns:
        Whether its columns are those of training runs.

    Raises:
        RangeError: if other files are named as well.
    """
    if not any(name.casefold().endswith(".csv") for name in files):
        return False
    from steptime.validation.training_run_table import is_training, read_header

    training_tables = [name for name in files if name.casefold().endswith(".csv") and is_training(read_header(name))]
    if training_tables and len(files) > 1:
        raise RangeError(f"{training_tables[0]} holds training runs: give it alone")
    return bool(training_tables)


def validate_training_file(
    path: str, predictions: str | None, engine: str | None, catalog: str | None, csv: str | None, *, json: bool
) -> None:
    """Predict every row of a file of training runs, and print the errors.

    Args:
        path: the file.
        predictions: file for predicted times.
        engine: training stack for every row; None: that of the row.
        catalog: folder of own catalogue files.
        csv: file for the table.
        json: whether to print JSON.
    """
    from steptime.cli.views.training_view import validation_view
    from steptime.validation.training_validation import validate_training, write_training_predictions

    check_outputs({"--predictions": predictions, "--csv": csv}, [path])
    with patience(f"reading and predicting the training runs of {path}"):
        validation = validate_training(path, engine=engine, catalog=catalog)
    if predictions:
        existed = os.path.exists(predictions)
        with writing(predictions):
            write_training_predictions(predictions, validation.predictions)
        wrote(
            predictions,
            f"steps of {validation.runs:,} training runs in s, with 90 % ranges, and their memory",
            replaced=existed,
        )
    if csv is not None:
        write_csv(csv, validation)
    if json:
        print_json(validation)
        return
    console = make_console()
    show(validation_view(validation), console=console)


def calibrate_training_file(path: str, name: str, prior: str | None, out: str, catalog: str | None) -> None:
    """Fit a training stack to a file of runs and write its file.

    Args:
        path: the file of runs.
        name: name of the stack.
        prior: stack that the fit starts from.
        out: file to write.
        catalog: folder of own catalogue files.
    """
    from steptime.validation.training_validation import calibrate_training

    check_outputs({"--out": out}, [path, prior or ""])
    with patience(f"reading the runs and fitting {name}"):
        stack, text, runs = calibrate_training(path, name=name, prior=prior, catalog=catalog)
    with writing(out):
        write_text_atomically(out, text)
    show(f"{name}: fitted to {runs:,} training runs; speed {float(stack.speed):.3g} of the prior's constants")
    show(f"Written to {out}: use it with `steptime train --engine {out}`")


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


ACTIONS = ("add", "remove")


@grouped
def anchors(
    ctx: typer.Context,
    run_settings: RunSettings,
    action: Annotated[
        str | None,
        typer.Argument(metavar="[add|remove]", help="Without it, kept runs are listed.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="add: result JSON of `vllm bench serve` or of SGLang's bench_serving, or a CSV of runs; remove: a name.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Keep them under this name.", show_default="that of the file")] = None,
    catalog: CATALOG = None,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Keep your measured runs: plan, step and simulate correct predictions of the same model, system and engine.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.validation import user_calibration

    adds = "add FILE"
    refuse_idle(
        ctx,
        {
            adds: (action == "add", "name " + " ".join(field.name for field in dataclasses.fields(run_settings))),
            "the list of runs": (action is None, "csv"),
            "text, not --json": (not json, "full"),
        },
    )
    if action is None:
        check_outputs({"--csv": csv}, ())
        _list(user_calibration.kept_anchors(catalog), csv, full=full, json=json)
        return
    if action not in ACTIONS:
        raise UnknownName("action", action, ACTIONS, "Known: add FILE, remove NAME; alone it lists them.")
    if not target:
        raise RangeError(f"anchors {action} needs {'a file of runs' if action == 'add' else 'the name of runs that are kept'}")
    not_empty("--name", name, "a name for the runs")
    if action == "remove":
        say(f"Removed {user_calibration.remove(target, catalog=catalog)}.")
        return
    path, runs = user_calibration.keep(target, name=name or "", catalog=catalog, **run_settings.arguments())
    say(f"Keeping {path}: plan, step and simulate use it for the same model, system and engine; --no-anchor leaves it out.")
    _list(runs, None, full=full, json=json)


def _list(runs: "Anchors", csv: str | None, *, full: bool, json: bool) -> None:
    """Print anchors as text or JSON, and write them as CSV if a file is named."""
    from steptime.cli.views.validation_view import anchors_view

    if csv is not None:
        write_csv(csv, runs)
    if json:
        print_json(runs)
    else:
        show(anchors_view(runs, full=full))
