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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from steptime.atomic_files import create_text_exclusively
from steptime.catalog.data_files import files, is_dir, is_file, own_folder
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, UnknownName, replace_controls, short_repr
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics.bias_correction import SPREAD, WITHIN, Anchor, Anchors, Factor
from steptime.physics.engine import Engine
from steptime.validation.bench_results import OPTIONS, NotTold, Place, Runs, file_names, read_rows
from steptime.validation.error_summary import Predictions, measured_figures
from steptime.validation.predictions import predict, resolve_engine
from steptime.validation.run_table import COLUMNS, LOOPS, POOLS, read_runs, run_kind

# Folder of stored runs in the catalogue.
ANCHOR_FOLDER = "anchors"
SKIP = re.compile("; --skip-bad leaves such (runs|rows) out")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Row = Mapping[str, str]
Group = tuple[str, str, str, str]


def load_anchor(
    runs: Runs | None = None, *, engine: Engine | None = None, catalog: str | None = None, **settings: str | int
) -> Anchors:
    """Compare a user's runs with predictions: the `anchor=` of a plan, step or run.

    Args:
        runs: File, folder, several of them, or rows as dicts by column; by default the runs stored by `steptime anchors`.
        engine: Engine for the runs with its name, instead of the shipped one.
        catalog: Folder of additional catalogue entries.
        **settings: Values that JSON results lack (`system="hgx-h200", tp=4, weights="fp8"`).

    Returns:
        Correction factors for the same model, system and engine.

    Raises:
        InputError: A run is invalid (with file and line), or no run is usable.
    """
    if runs is None:
        return kept_anchors(catalog)
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
        predictions = predict(members, engine=resolve_engine(name, engine=own_engine, catalog=catalog), catalog=catalog)
        tpot, ttft = ratios(members, predictions)
        has_ratio = np.isfinite(tpot) | np.isfinite(ttft)
        useless = [
            f"{row['id']}: {_reason(row, why)}"
            for row, why, tells in zip(members, predictions.reason, has_ratio, strict=True)
            if not tells
        ]
        reasons += useless
        if has_ratio.any():
            anchor = Anchor(
                source=source, is_stored=is_stored, model=group[0], system=group[1], engine=group[2], version=group[3],
                runs=tuple(row["id"] for row, tells in zip(members, has_ratio, strict=True) if tells),
                tpot=compute_factor(tpot, "tpot"), ttft=compute_factor(ttft, "ttft"), left_out=tuple(useless),
                outside_range=tuple(
                    row["id"] for row, outside in zip(members, outside_range(members, predictions), strict=True) if outside
                ),
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


def outside_range(rows: Sequence[Row], predictions: Predictions) -> Array:
    """Check for each row whether a measured time is outside its 90 % range.

    Args:
        rows: Runs.
        predictions: Predictions of the same runs.

    Returns:
        Booleans of shape (rows,).
    """
    outside = np.zeros(len(rows), dtype=bool)
    for name, ratio in zip(("tpot", "ttft"), ratios(rows, predictions), strict=True):
        predicted, low, high = (getattr(predictions, f"{name}{end}") for end in ("", "_low", "_high"))
        outside |= (ratio < low / predicted) | (ratio > high / predicted)
    return outside


def compute_factor(measured_over_predicted: Array, quantity: str) -> Factor | None:
    """Return the correction factor of runs.

    Args:
        measured_over_predicted: Ratios, of shape (runs,); NaN if not usable.
        quantity: "tpot" or "ttft".

    Returns:
        Factor with its spread; None without a usable run.

    >>> compute_factor(np.array([2.0, np.nan, 8.0]), "tpot").ratio, compute_factor(np.array([np.nan]), "ttft")
    (4.0, None)
    """
    logs = np.log(measured_over_predicted[np.isfinite(measured_over_predicted)])
    if not len(logs):
        return None
    return Factor(runs=len(logs), ratio=math.exp(float(np.median(logs))), spread=SPREAD[quantity], within=WITHIN[quantity])


def _groups(rows: Iterable[dict[str, str]], catalog: str | None) -> dict[Group, list[dict[str, str]]]:
    """Group rows by catalogue name of model, system and engine, and by version; the newest version is last."""
    model = lru_cache(maxsize=None)(lambda name: load_model(name, catalog=catalog).name)
    system = lru_cache(maxsize=None)(lambda name: load_system(name, catalog).name)
    engine = lru_cache(maxsize=None)(lambda name: resolve_engine(name, catalog=catalog).name)
    groups: dict[Group, list[dict[str, str]]] = {}
    for row in rows:
        group = model(row["model"]), system(row["system"]), engine(row["engine"]), row.get("engine_version") or ""
        groups.setdefault(group, []).append(row)
    newest = {group: max(row.get("measured") or "" for row in members) for group, members in groups.items()}
    return dict(sorted(groups.items(), key=lambda item: (newest[item[0]], _numbers(item[0][3]))))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", version)))


# --- stored runs --------------------------------------------------------------------------------------------------------


def kept_anchor(model: Model, system: System, engine: Engine, catalog: str | None = None) -> Anchor | None:
    """Return the anchor of stored runs for a model, system and engine.

    Args:
        model: Model.
        system: System.
        engine: Engine.
        catalog: Folder of additional catalogue entries.

    Returns:
        Anchor of the newest engine version; None without stored runs.
    """
    group_key, origin, rows = (model.name, system.name, engine.name), dict[int, str](), []
    run_files = files(ANCHOR_FOLDER, catalog)
    for name, path in run_files.items():
        try:
            groups = _groups(_kept_rows(path, catalog), catalog)
        except InputError as problem:
            _note_skipped(path, problem)
            continue
        for group, members in groups.items():
            rows += members if group[:3] == group_key else []
            origin |= {id(row): name for row in members}
    if not rows:
        return None
    newest = list(_groups(rows, catalog).values())[-1]
    names = ", ".join(dict.fromkeys(origin[id(row)] for row in newest))
    try:
        return make_anchors(newest, names, engine=engine, is_stored=True, catalog=catalog).anchors[0]
    except InputError as problem:
        for name in dict.fromkeys(origin[id(row)] for row in newest):
            _note_skipped(run_files[name], problem)
        return None


def kept_anchors(catalog: str | None = None) -> Anchors:
    """Return the anchors of all stored runs.

    Args:
        catalog: Folder of additional catalogue entries.

    Returns:
        Anchors in the order of the files.
    """
    anchors: list[Anchor] = []
    for name, path in files(ANCHOR_FOLDER, catalog).items():
        try:
            anchors += make_anchors(_kept_rows(path, catalog), name, is_stored=True, catalog=catalog).anchors
        except InputError as problem:
            _note_skipped(path, problem)
    return Anchors(source="stored runs", anchors=tuple(anchors))


def keep(
    runs: Place | Sequence[Place],
    *,
    name: str = "",
    skip_bad: bool = False,
    catalog: str | None = None,
    **settings: str | int,
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
    called = name or Path(next(iter(file_names(runs)), "rows")).stem
    if not NAME.fullmatch(called):
        raise InputError(
            f"name of stored runs: must have letters, digits, '.', '_' and '-' only, got {short_repr(called)}; give --name"
        )
    path = own_folder(ANCHOR_FOLDER, catalog) / f"{called}.csv"
    conflict = f"already exists; `steptime anchors remove {called}` removes it, or give another --name"
    if path.exists():
        raise DataFileError(path, conflict)
    rows, unread = read_rows(runs, settings, skip_bad, catalog)

    # Later questions may start in another folder, so relative paths become absolute.
    rows = [row | {name: _lasting(row[name]) for name in ("model", "system")} for row in rows]
    anchors = make_anchors(rows, called, is_stored=True, unread=unread, catalog=catalog)
    columns = list(dict.fromkeys([*COLUMNS, *(key for row in rows for key, cell in row.items() if cell)]))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", restval="")
    writer.writeheader()
    writer.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create_text_exclusively(path, text.getvalue())
    except FileExistsError:
        raise DataFileError(path, conflict) from None
    except OSError as problem:
        raise DataFileError(path, f"cannot be written: {problem.strerror}") from None
    return path, anchors


def _lasting(name: str) -> str:
    """Return a catalogue name unchanged, and the absolute path of a file or folder.

    >>> _lasting("hgx-h100"), _lasting("meta-llama/Llama-3.1-8B")
    ('hgx-h100', 'meta-llama/Llama-3.1-8B')
    """
    path = Path(name)
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


def _kept_rows(path: Path, catalog: str | None) -> list[dict[str, str]]:
    try:
        return read_runs(path, catalog=catalog)[0]
    except DataFileError as problem:
        raise DataFileError(problem.path, in_own_words(problem.problem), problem.line) from None


def _note_skipped(path: Path, problem: InputError) -> None:
    """Log that a file of stored runs is left out."""
    _warn_once(path, str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}")


@lru_cache(maxsize=1024)
def _warn_once(path: Path, problem: str) -> None:
    remedy = f"`steptime anchors remove {path.stem}` removes it"
    logging.getLogger(__name__).warning(
        "%s", replace_controls(f"steptime: {problem}; these stored runs are left out; {remedy}")
    )
