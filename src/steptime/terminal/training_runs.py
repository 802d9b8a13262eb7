"""What `validate` and `calibrate` do with a file of training runs, which they know by its columns."""

import os
from collections.abc import Sequence

from steptime.atomic_files import write_text_atomically
from steptime.errors import RangeError
from steptime.terminal.output import check_outputs, console_of, patience, print_json, show, write_csv, writing, wrote


def training_file(files: Sequence[str]) -> bool:
    """Whether the files given are one of training runs; raise RangeError where it stands beside others."""
    if not any(name.casefold().endswith(".csv") for name in files):
        return False
    from steptime.measured.training_runs import header_of, is_training

    found = [name for name in files if name.casefold().endswith(".csv") and is_training(header_of(name))]
    if found and len(files) > 1:
        raise RangeError(f"{found[0]} holds training runs: give it alone")
    return bool(found)


def validate_training_file(
    path: str, predictions: str | None, engine: str | None, catalog: str | None, csv: str | None, *, json: bool
) -> None:
    """Predict every row of a file of training runs, and show how far off they are."""
    from steptime.measured.training_outcomes import validate_training
    from steptime.measured.training_predictions import write_training_predictions
    from steptime.terminal.views.training_runs import validation_view

    check_outputs({"--predictions": predictions, "--csv": csv}, [path])
    with patience(f"reading and predicting the training runs of {path}"):
        found = validate_training(path, engine=engine, catalog=catalog)
    if predictions:
        existed = os.path.exists(predictions)
        with writing(predictions):
            write_training_predictions(predictions, found.predictions)
        wrote(predictions, f"steps of {found.runs:,} training runs in s, with 90 % ranges, and their memory", replaced=existed)
    if csv is not None:
        write_csv(csv, found)
    if json:
        print_json(found)
        return
    console = console_of()
    show(validation_view(found), console=console)


def calibrate_training_file(path: str, name: str, prior: str | None, out: str, catalog: str | None) -> None:
    """Fit a training stack to a file of runs and write its file."""
    from steptime.measured.training_outcomes import calibrate_training

    check_outputs({"--out": out}, [path, prior or ""])
    with patience(f"reading the runs and fitting {name}"):
        made, text, runs = calibrate_training(path, name=name, prior=prior, catalog=catalog)
    with writing(out):
        write_text_atomically(out, text)
    show(f"{name}: fitted to {runs:,} training runs; speed {float(made.speed):.3g} of the prior's constants")
    show(f"Written to {out}: use it with `steptime train --engine {out}`")
