"""User calibration: anchors (`physics.bias_correction`) from a user's runs, which correct later predictions.

A run is a row of a CSV that `validate` accepts, or a result of a load generator (`bench_results`). A run needs a measured time
per token or first token, and must pass the checks of `data_quality`. Of several engine versions, the newest by date counts.
Stored runs are CSV files in `anchors/` of the user's catalogue folder, one per set.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from steptime.atomic_files import create_text_exclusively
from steptime.catalog.data_files import files, is_dir, is_file, own_folder
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, UnknownName, replace_controls, short_repr
from steptime.hardware.system import System
from steptime.models.model import Model, stored_formats
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics.bias_correction import MAX_RUNS, Anchor, Anchors, MeasuredRun, select_anchor
from steptime.physics.engine import Engine
from steptime.physics.engine_releases import version_numbers
from steptime.units import in_digits
from steptime.validation.bench_results import OPTIONS, NotTold, Place, Runs, file_names, read_rows
from steptime.validation.closed_loop import solve_closed_loops
from steptime.validation.error_summary import Predictions, measured_figures
from steptime.validation.predictions import grouped, operating_point, predict, resolve_engine
from steptime.validation.run_table import AXES, COLUMNS, LOOPS, POOLS, read_runs, release_label, run_kind
from steptime.validation.training_run_table import is_training, read_header

# Folder of stored runs in the catalogue.
ANCHOR_FOLDER = "anchors"
# Runs outside their range for which possible causes are named.
MAX_EXPLAINED = 3
# Distance from its range, in widths of the range, beyond which a run is far outside.
FAR = 1.0
SKIP = re.compile("; --skip-bad leaves such (runs|rows) out")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Row = Mapping[str, str]
Group = tuple[str, str, str, str]


def load_anchor(
    runs: Runs | None = None, *, engine: Engine | str | None = None, catalog: str | None = None, **settings: str | int
) -> Anchors:
    """Compare a user's runs with predictions: the `anchor=` of a plan, step or run.

    Args:
        runs: File, folder, several of them, or rows as dicts by column; by default the runs stored by `steptime anchors`.
        engine: Engine for the runs with its name, instead of the shipped one; or the name of the engine that served the runs of
            a JSON result.
        catalog: Folder of additional catalogue entries.
        **settings: Values that JSON results lack (`system="hgx-h200", tp=4, weights="fp8"`).

    Returns:
        Correction factors for the same model, system and engine.

    Raises:
        InputError: A run is invalid (with file and line), or no run is usable.
    """
    if runs is None:
        return kept_anchors(catalog)
    if isinstance(engine, str):
        return read_anchors(runs, {**settings, "engine": engine}, catalog=catalog)
    return read_anchors(runs, settings, engine=engine, catalog=catalog)


def read_anchors(
    runs: Runs, settings: Mapping[str, str | int], *, engine: Engine | None = None, catalog: str | None = None
) -> Anchors:
    """Compare runs with predictions, as `load_anchor` does.

    Args:
        runs: Files, folders or rows.
        settings: Values that JSON results lack, by argument; `engine` is the name of the engine that served them.
        engine: Engine for the runs with its name, instead of the shipped one.
        catalog: Folder of additional catalogue entries.

    Returns:
        Correction factors.

    Raises:
        InputError: As for `load_anchor`.
    """
    try:
        rows, _ = read_rows(runs, settings, False, catalog)
    except NotTold:
        raise
    except DataFileError as problem:
        raise DataFileError(problem.path, in_own_words(problem.problem), problem.line) from None
    return make_anchors(rows, ", ".join(file_names(runs)) or "rows", engine=engine, catalog=catalog)


def in_own_words(problem: str) -> str:
    """Replace options of the command line in a message by arguments.

    Args:
        problem: Message of `validate`.

    Returns:
        Message for the library.

    >>> in_own_words("has no tp of the run: give --tp WAYS")
    'has no tp of the run: give tp=WAYS'
    """
    for option in OPTIONS.values():
        problem = problem.replace(option, option.removeprefix("--").replace(" ", "="))
    return SKIP.sub("", problem)


def make_anchors(
    rows: Sequence[dict[str, str]],
    source: str,
    *,
    engine: Engine | None = None,
    is_stored: bool = False,
    unread: Sequence[str] = (),
    catalog: str | None = None,
) -> Anchors:
    """Compute the anchors of rows, by group, with the oldest version first.

    Args:
        rows: Runs.
        source: Name of the source.
        engine: Engine for the runs with its name, instead of the shipped one.
        is_stored: Whether the runs are stored by `steptime anchors`.
        unread: Rows of the source that could not be read, with the reason; listed with the first anchor.
        catalog: Folder of additional catalogue entries.

    Returns:
        One anchor per model, system, engine and version.

    Raises:
        InputError: A name is unknown, or no run is usable.
    """
    anchors, reasons = [], []
    for group, members in _groups(_distinct(rows), catalog).items():
        # Each group has its own engine; a given engine predicts the runs of its name only.
        name, own_engine = members[0]["engine"], engine if engine is not None and engine.name == group[2] else None
        resolved = resolve_engine(name, engine=own_engine, catalog=catalog)
        predictions = predict(members, engine=resolved, catalog=catalog)
        tpot, ttft = ratios(members, predictions)
        has_ratio = np.isfinite(tpot) | np.isfinite(ttft)
        useless = [
            f"{row['id']}: {_reason(row, why)}"
            for row, why, tells in zip(members, predictions.reason, has_ratio, strict=True)
            if not tells
        ]
        reasons += useless
        if has_ratio.any():
            distance = range_distance(members, predictions)
            outside, far = ([members[i] for i in np.argsort(-distance, kind="stable") if distance[i] > x] for x in (0, FAR))
            anchor = Anchor(
                source=source, is_stored=is_stored, model=group[0], system=group[1], engine=group[2], version=group[3],
                measured=measured_runs(members, np.flatnonzero(has_ratio), tpot, ttft, group, resolved, catalog),
                outside_range=tuple(row["id"] for row in outside),
                far_outside=tuple(row["id"] for row in far),
                explanations=tuple(explain_outside(row, resolved, catalog) for row in outside[:MAX_EXPLAINED]),
                left_out=tuple(useless),
            )  # fmt: skip
            anchors.append(anchor)
    if not anchors:
        raise InputError(f"{source}: no usable run: {reasons[0]}")
    if unread:
        anchors[0] = replace(anchors[0], left_out=(*unread, *anchors[0].left_out))
    return Anchors(source=source, anchors=tuple(anchors))


def _distinct(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows without repeated runs, which may have another id."""
    return list({tuple(sorted((k, v) for k, v in row.items() if k != "id" and v)): row for row in reversed(rows)}.values())[
        ::-1
    ]


def _reason(row: Row, why: str) -> str:
    if why or run_kind(row) in (*LOOPS, POOLS):
        return why or "it has neither tpot_s nor ttft_s"
    return f"its throughput ({run_kind(row)}) depends on more than the step time"


def ratios(rows: Sequence[Row], predictions: Predictions) -> tuple[Array, Array]:
    """Return measured over predicted times of each row.

    TTFT is the mean, or the median if no mean was measured.

    Args:
        rows: Runs.
        predictions: Predictions of the same runs.

    Returns:
        Ratios of TPOT and TTFT, of shape (rows,); NaN if not usable.
    """
    good = (predictions.reason == "") & np.array([run_kind(row) in (*LOOPS, POOLS) for row in rows])
    tpot, ttft, median = (
        np.where(good, measured_figures(rows, name) / getattr(predictions, name), np.nan)
        for name in ("tpot", "ttft", "ttft_median")
    )
    return tpot, np.where(np.isfinite(ttft), ttft, median)


def range_distance(rows: Sequence[Row], predictions: Predictions) -> Array:
    """Return how far measured times are outside their 90 % ranges, in widths of the range.

    Distances and widths are those of logarithms; the larger of TPOT and TTFT counts.

    Args:
        rows: Runs.
        predictions: Predictions of the same runs.

    Returns:
        Distances of shape (rows,); 0 inside the range or without a measurement.
    """
    distance = np.zeros(len(rows))
    for name, ratio in zip(("tpot", "ttft"), ratios(rows, predictions), strict=True):
        log, predicted, low, high = (
            np.log(x) for x in (ratio, *(getattr(predictions, f"{name}{end}") for end in ("", "_low", "_high")))
        )
        # Without a measurement, the ratio is NaN.
        distance = np.fmax(distance, np.maximum(predicted + log - high, low - predicted - log) / (high - low))
    return distance


def far_runs(
    rows: Sequence[dict[str, str]], predictions: Predictions, *, engine: Engine | None = None, catalog: str | None = None
) -> list[str]:
    """Say what to check of the runs that are the furthest outside their 90 % range, by more than its width.

    Args:
        rows: Runs.
        predictions: Predictions of the same runs.
        engine: Engine for every run, instead of the engine of each run.
        catalog: Folder of additional catalogue entries.

    Returns:
        At most `MAX_EXPLAINED` texts, farthest run first.
    """
    distance = range_distance(rows, predictions)
    farthest = [i for i in np.argsort(-distance, kind="stable")[:MAX_EXPLAINED] if distance[i] > FAR]
    return [
        explain_outside(rows[i], resolve_engine(rows[i]["engine"], engine=engine, catalog=catalog), catalog) for i in farthest
    ]


def measured_runs(
    rows: Sequence[dict[str, str]],
    positions: Array,
    tpot: Array,
    ttft: Array,
    group: Group,
    engine: Engine,
    catalog: str | None = None,
) -> tuple[MeasuredRun, ...]:
    """Return runs with their ratios, and the properties that they share with other runs.

    Args:
        rows: Runs of one group.
        positions: Positions of the runs with a ratio.
        tpot: Measured over predicted times per token, of shape (rows,); NaN if not measured.
        ttft: The same for times to first token.
        group: Names of model, system and engine, and version.
        engine: Engine that predicted the runs.
        catalog: Folder of additional catalogue entries.

    Returns:
        Runs in the order of the positions.
    """
    usable_rows = [rows[i] | {"engine": engine.name} for i in positions]
    measured: list[MeasuredRun | None] = [None] * len(usable_rows)
    for runs in grouped(usable_rows, {engine.name: engine}, catalog=catalog):
        point, formats = operating_point(runs, solve_closed_loops(runs, engine).running), stored_formats(runs.model)
        load, context = np.asarray(point.load), np.asarray(point.context)
        for place, index in enumerate(runs.index):
            row = positions[index]
            degrees = {name: int(getattr(runs.layout, name)[place]) for name in AXES}
            measured[index] = MeasuredRun(
                name=rows[row]["id"], model=group[0], system=group[1], version=group[3], formats=formats, **degrees,
                load=float(load[place]), context=float(context[place]), tpot=_number(tpot[row]), ttft=_number(ttft[row]),
            )  # fmt: skip
    return tuple(run for run in measured if run is not None)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# Measured over predicted times that suggest milliseconds in a column of seconds.
MILLISECOND_RATIOS = (200.0, 5000.0)


def explain_outside(row: dict[str, str], engine: Engine, catalog: str | None = None) -> str:
    """Say what may explain a run outside the 90 % range of its prediction.

    Other tensor-parallel degrees and formats are predicted; those that contain the measured time are named.

    Args:
        row: Run.
        engine: Engine that predicted it.
        catalog: Folder of additional catalogue entries.

    Returns:
        Sentences with the id, measured over predicted times, and what to check.
    """
    changes = {f"the run had tp={tp}": {"tp": str(tp)} for tp in (1, 2, 4, 8) if str(tp) != f"{float(row['tp']):g}"}
    for weights in ("bf16", "fp8", "nvfp4"):
        if weights not in (row["weight_dtype"], row.get("expert_dtype")):
            changes[f"the run had weights in {weights}"] = {
                "weight_dtype": weights, "expert_dtype": weights if row.get("expert_dtype") else "",
            }  # fmt: skip
    predictions = predict([row], engine=engine, catalog=catalog)
    sides: dict[str, int] = {}
    took, in_milliseconds = [], []
    run = short_repr(row["id"])
    for name, (ratio,) in zip(("tpot", "ttft"), ratios([row], predictions), strict=True):
        predicted, low, high = (float(getattr(predictions, f"{name}{end}")[0]) for end in ("", "_low", "_high"))
        sides[name] = int(ratio * predicted > high) - int(ratio * predicted < low)
        column = next((column for column in (f"{name}_s", f"{name}_median_s") if row.get(column)), "")
        if column and MILLISECOND_RATIOS[0] <= ratio <= MILLISECOND_RATIOS[1]:
            in_milliseconds.append(f"{in_digits(float(ratio))} times as long as predicted: is {column} in milliseconds?")
        if sides[name]:
            took.append(f"{ratio:.2g} times as long as predicted{' for its first tokens' * (name == 'ttft')}")
    if in_milliseconds:
        return f"Run {run} took {' And '.join(in_milliseconds)} Times are in seconds."
    causes = [words for words, change in changes.items() if _fits(row | change, engine, catalog)] if sides["tpot"] else []
    causes += [words for words, is_possible in _causes(row, sides).items() if is_possible]
    return f"Run {run} took {' and '.join(took) or 'as long as predicted'}. Possible causes: {'; '.join(causes)}."


def _causes(row: Row, sides: Mapping[str, int]) -> dict[str, bool]:
    """Return causes of times above (1) or below (-1) their range, and whether the row leaves them possible."""
    return {
        "a prefix cache (prompts that are repeated)": sides["ttft"] < 0,
        "a limit on sequences, or as a first run that compiles kernels": sides["ttft"] > 0,
        "sampling by top-p or penalties": sides["tpot"] > 0 and (row.get("sampling") or "greedy") == "greedy",
        "speculative tokens": sides["tpot"] < 0 and (row.get("spec") or "none") == "none",
        "another version of the engine": True,
    }


def _fits(row: dict[str, str], engine: Engine, catalog: str | None) -> bool:
    """Return whether a run with changed settings is inside its range; an illegal layout or format is not."""
    try:
        predictions = predict([row], engine=engine, catalog=catalog, by_simulation=False)
        measured = np.isfinite(ratios([row], predictions)[0]).any()
        return bool(measured and range_distance([row | {"ttft_s": "", "ttft_median_s": ""}], predictions)[0] == 0)
    except InputError:
        return False


def _groups(rows: Iterable[dict[str, str]], catalog: str | None) -> dict[Group, list[dict[str, str]]]:
    """Group rows by catalogue name of model, system and engine, and by version; the newest version is last."""
    model = lru_cache(maxsize=None)(lambda name: load_model(name, catalog=catalog).name)
    system = lru_cache(maxsize=None)(lambda name: load_system(name, catalog).name)
    engine = lru_cache(maxsize=None)(lambda name: resolve_engine(name, catalog=catalog).name)
    groups: dict[Group, list[dict[str, str]]] = {}
    for row in rows:
        group = model(row["model"]), system(row["system"]), engine(row["engine"]), release_label(row)
        groups.setdefault(group, []).append(row)
    newest = {group: max(row.get("measured") or "" for row in members) for group, members in groups.items()}
    return dict(sorted(groups.items(), key=lambda item: (newest[item[0]], version_numbers(item[0][3]))))


# --- stored runs --------------------------------------------------------------------------------------------------------


def kept_anchor(model: Model, system: System, engine: Engine, catalog: str | None = None) -> Anchor | None:
    """Return the anchor of stored runs for a model, system and engine.

    Args:
        model: Model.
        system: System.
        engine: Engine.
        catalog: Folder of additional catalogue entries.

    Returns:
        Anchor with all runs of the engine; None without stored runs.
    """
    group_key, origin = (model.name, system.name, engine.name), dict[int, str]()
    rows: list[dict[str, str]] = []
    rows_of_other_groups: list[dict[str, str]] = []
    run_files = kept_files(catalog)
    for name, path in run_files.items():
        try:
            groups = _groups(_kept_rows(path, catalog), catalog)
        except InputError as problem:
            note_skipped(path, problem)
            continue
        for group, members in groups.items():
            if group[2] == engine.name:
                (rows if group[:3] == group_key else rows_of_other_groups).extend(members)
            origin |= {id(row): name for row in members}
    rows = (rows_of_other_groups + rows)[-MAX_RUNS:]
    if not rows:
        return None
    names = list(dict.fromkeys(origin[id(row)] for row in rows))
    try:
        anchors = make_anchors(rows, ", ".join(names), engine=engine, is_stored=True, catalog=catalog)
    except InputError as problem:
        for name in names:
            note_skipped(run_files[name], problem)
        return None
    formats = stored_formats(model)
    return select_anchor(anchors, model=model.name, system=system.name, engine=engine.name, formats=formats)


def kept_anchors(catalog: str | None = None) -> Anchors:
    """Return the anchors of all stored serving runs.

    Args:
        catalog: Folder of additional catalogue entries.

    Returns:
        Anchors in the order of the files.
    """

    def load(name: str, path: Path) -> Anchors:
        return make_anchors(_kept_rows(path, catalog), name, is_stored=True, catalog=catalog)

    return Anchors(source="stored runs", anchors=anchors_of_files(kept_files(catalog), load))


def anchors_of_files(run_files: Mapping[str, Path], load: Callable[[str, Path], Anchors]) -> tuple[Anchor, ...]:
    """Return the anchors of stored files; one that cannot be read is left out with a note.

    Args:
        run_files: Paths by name.
        load: Function from the name and the path of a file to its anchors.

    Returns:
        Anchors in the order of the files.
    """
    anchors: list[Anchor] = []
    for name, path in run_files.items():
        try:
            anchors += load(name, path).anchors
        except InputError as problem:
            note_skipped(path, problem)
    return tuple(anchors)


def keep(
    runs: Place | Sequence[Place], *, name: str = "", skip_bad: bool = False, catalog: str | None = None, **settings: str | int
) -> tuple[Path, Anchors]:
    """Store runs for later predictions.

    Args:
        runs: File, folder, several of them.
        name: Name of the set; by default that of the first file.
        skip_bad: Whether to leave out rows that cannot be read instead of raising.
        catalog: Folder of additional catalogue entries.
        **settings: Values that JSON results lack.

    Returns:
        Path of the stored file, and its anchors.

    Raises:
        InputError: The name is invalid or in use, or no run is usable.
    """
    path = own_path(name or Path(next(iter(file_names(runs)), "rows")).stem, catalog)
    rows, unread = read_rows(runs, settings, skip_bad, catalog)
    rows = as_lasting_rows(rows)
    anchors = make_anchors(rows, path.stem, is_stored=True, unread=unread, catalog=catalog)
    store_rows(path, list(dict.fromkeys([*COLUMNS, *(key for row in rows for key, cell in row.items() if cell)])), rows)
    return path, anchors


def own_path(name: str, catalog: str | None = None) -> Path:
    """Return the path of a new set of stored runs.

    Args:
        name: Name of the set.
        catalog: Folder of additional catalogue entries.

    Returns:
        Path.

    Raises:
        InputError: The name is invalid or in use.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"name of stored runs: must have letters, digits, '.', '_' and '-' only, got {short_repr(name)}; give --name"
        )
    path = own_folder(ANCHOR_FOLDER, catalog) / f"{name}.csv"
    if path.exists():
        raise DataFileError(path, _conflict(path))
    return path


def _conflict(path: Path) -> str:
    return f"already exists; `steptime anchors remove {path.stem}` removes it, or give another --name"


def store_rows(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write stored runs, never over a file.

    Args:
        path: Path of the set.
        columns: Names of the columns.
        rows: Runs.

    Raises:
        DataFileError: The file exists, or cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_text_exclusively(path, text.getvalue())
    except FileExistsError:
        raise DataFileError(path, _conflict(path)) from None
    except OSError as problem:
        raise DataFileError(path, f"cannot be written: {problem.strerror}") from None


def as_lasting_rows(rows: Iterable[Row], folder: Path | None = None) -> list[dict[str, str]]:
    """Return rows whose models and systems are found from another folder too: relative paths become absolute.

    Args:
        rows: Runs.
        folder: Folder of the file, in which training runs find their models.

    Returns:
        Rows.
    """
    return [{**row, "model": _lasting(row["model"], folder), "system": _lasting(row["system"])} for row in rows]


def _lasting(name: str, folder: Path | None = None) -> str:
    """Return a catalogue name unchanged, and the absolute path of a file or folder.

    >>> _lasting("hgx-h100"), _lasting("meta-llama/Llama-3.1-8B")
    ('hgx-h100', 'meta-llama/Llama-3.1-8B')
    """
    path = Path(name)
    if folder is not None and name.endswith(".json") and is_file(folder / name):
        path = folder / name
    return str(path.resolve()) if is_file(path) or is_dir(path) else name


def remove(name: str, *, catalog: str | None = None) -> Path:
    """Remove stored runs.

    Args:
        name: Name of the set.
        catalog: Folder of additional catalogue entries.

    Returns:
        Path of the removed file.

    Raises:
        UnknownName: No stored runs have this name.
        DataFileError: The file cannot be removed.
    """
    path = own_folder(ANCHOR_FOLDER, catalog) / f"{name}.csv"
    names = sorted(csv_path.stem for csv_path in path.parent.glob("*.csv"))
    if name not in names:
        raise UnknownName("stored runs", name, names, "`steptime anchors` lists them.")
    try:
        path.unlink()
    except OSError as problem:
        raise DataFileError(path, f"cannot be removed: {problem.strerror}") from None
    return path


def kept_files(catalog: str | None = None, *, training: bool = False) -> dict[str, Path]:
    """Return the stored files of runs.

    Args:
        catalog: Folder of additional catalogue entries.
        training: Whether those of training, not of serving.

    Returns:
        Paths by name.
    """
    return {name: path for name, path in files(ANCHOR_FOLDER, catalog).items() if is_training(read_header(path)) is training}


def _kept_rows(path: Path, catalog: str | None) -> list[dict[str, str]]:
    try:
        return read_runs(path, catalog=catalog)[0]
    except DataFileError as problem:
        raise DataFileError(problem.path, in_own_words(problem.problem), problem.line) from None


def note_skipped(path: Path, problem: InputError) -> None:
    """Log that a file of stored runs is left out.

    Args:
        path: The file.
        problem: Why it is left out.
    """
    _warn_once(path, str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}")


@lru_cache(maxsize=1024)
def _warn_once(path: Path, problem: str) -> None:
    remedy = f"`steptime anchors remove {path.stem}` removes it"
    logging.getLogger(__name__).warning(
        "%s", replace_controls(f"steptime: {problem}; these stored runs are left out; {remedy}")
    )
