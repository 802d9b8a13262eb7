"""Options of `validate` and `calibrate` for measured runs, and their work on a file of training runs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from steptime.atomic_files import write_text_atomically
from steptime.cli.options import count
from steptime.cli.output import check_outputs, make_console, patience, print_json, show, write_csv, writing, wrote
from steptime.errors import RangeError

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
