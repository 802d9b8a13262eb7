"""One's own runs as anchors (`physics.anchor`): read from files, held against predictions, and kept for later questions.

A run is a row of a CSV as `validate` reads it, or a result of a load generator (`load_generators`). Only runs with a measured
time per token or first token count that can be right (`doubts`); of several versions of an engine the newest does, by its date.
Runs that are kept lie in `anchors/` of the user's folder of the catalogue, one CSV each time.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from steptime.atomic_files import create_text_exclusively
from steptime.catalog.data_files import files, is_dir, is_file, own_folder
from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError, UnknownName, short_repr
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.physics.bias_correction import SPREAD, WITHIN, Anchor, Anchors, Factor
from steptime.physics.engine import Engine
from steptime.safe_text import replace_controls
from steptime.validation.bench_results import OPTIONS, NotTold
from steptime.validation.error_summary import Predictions, measured_figures
from steptime.validation.predictions import predict, resolve_engine
from steptime.validation.run_kinds import LOOPS, POOLS, run_kind
from steptime.validation.run_table import COLUMNS, read_runs
from steptime.validation.validate_api import Place, Runs, read_rows

# the folder of the catalogue
ANCHOR_FOLDER = "anchors"
SKIP = re.compile("; --skip-bad leaves such (runs|rows) out")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Row = Mapping[str, str]
Group = tuple[str, str, str, str]


def load_anchor(
    runs: Runs | None = None, *, engine: Engine | None = None, catalog: str | None = None, **settings: str | int
) -> Anchors:
    """Return what runs of one's own say about others of the same model, system and engine: `anchor=` of a plan, step or run.

    runs: a file or a folder, several of them, or rows as dicts by column, as `validate` takes them; without them, those that
    `steptime anchors` keeps. engine: predicts the runs of its name, where it is not the shipped one. settings: what result JSON
    does not tell (`system="hgx-h200", tp=4, weights="fp8"`). Raises InputError with file and line of a run that cannot be
    read, and where no run tells anything.
    """
    if runs is None:
        return kept_anchors(catalog)
    try:
        rows, _ = read_rows(runs, settings, False, catalog)
    except NotTold:
        raise
    except DataFileError as problem:
        raise DataFileError(problem.path, in_own_words(problem.problem), problem.line) from None
    return make_anchors(rows, source_names(runs), engine=engine, catalog=catalog)


def in_own_words(problem: str) -> str:
    """Say what is wrong with a run as those can mend it who have no options of `validate`.

    >>> in_own_words("does not tell the tp of the run: give --tp WAYS")
    'does not tell the tp of the run: give tp=WAYS'
    """
    for option in OPTIONS.values():
        problem = problem.replace(option, option.removeprefix("--").replace(" ", "="))
    return SKIP.sub("", problem)


def source_names(runs: Runs) -> str:
    """Return the names of the files that runs are from."""
    places = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    names = [Path(place).resolve().name for place in places if isinstance(place, str | os.PathLike)]
    return ", ".join(names) or "rows"


def make_anchors(
    rows: Sequence[dict[str, str]],
    source: str,
    *,
    engine: Engine | None = None,
    is_stored: bool = False,
    catalog: str | None = None,
) -> Anchors:
    """Return the anchors of the groups that rows are of, the oldest version of each first.

    Raises InputError where a row has no group that can be told, or no row tells anything.
    """
    anchors, reasons = [], []
    for group, members in _groups(_distinct(rows), catalog).items():
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
        raise InputError(f"{source}: no run to go by: {reasons[0]}")
    return Anchors(source=source, anchors=tuple(anchors))


def _distinct(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows without those that tell the same run again, whatever they are called."""
    return list({tuple(sorted((k, v) for k, v in row.items() if k != "id" and v)): row for row in reversed(rows)}.values())[
        ::-1
    ]


def _reason(row: Row, why: str) -> str:
    if why or run_kind(row) in (*LOOPS, POOLS):
        return why or "it has neither tpot_s nor ttft_s"
    return f"its throughput ({run_kind(row)}) rests on more than a step"


def ratios(rows: Sequence[Row], predictions: Predictions) -> tuple[Array, Array]:
    """Return measured over predicted time per token and first token of each row, not a number where it tells none.

    A first token is told by its mean, or by its median where that alone was measured.
    """
    good = (predictions.reason == "") & np.array([run_kind(row) in (*LOOPS, POOLS) for row in rows])
    tpot, ttft, median = (
        np.where(good, measured_figures(rows, name) / getattr(predictions, name), np.nan)
        for name in ("tpot", "ttft", "ttft_median")
    )
    return tpot, np.where(np.isfinite(ttft), ttft, median)


def outside_range(rows: Sequence[Row], predictions: Predictions) -> Array:
    """Return for each row whether a measured time that counts lies outside the 90 % range of its prediction."""
    outside = np.zeros(len(rows), dtype=bool)
    for name, ratio in zip(("tpot", "ttft"), ratios(rows, predictions), strict=True):
        predicted, low, high = (getattr(predictions, f"{name}{end}") for end in ("", "_low", "_high"))
        outside |= (ratio < low / predicted) | (ratio > high / predicted)
    return outside


def compute_factor(measured_over_predicted: Array, quantity: str) -> Factor | None:
    """Return the factor of runs with those ratios of "tpot" or "ttft", None without any.

    >>> compute_factor(np.array([2.0, np.nan, 8.0]), "tpot").ratio, compute_factor(np.array([np.nan]), "ttft")
    (4.0, None)
    """
    logs = np.log(measured_over_predicted[np.isfinite(measured_over_predicted)])
    if not len(logs):
        return None
    return Factor(runs=len(logs), ratio=math.exp(float(np.median(logs))), spread=SPREAD[quantity], within=WITHIN[quantity])


def _groups(rows: Iterable[dict[str, str]], catalog: str | None) -> dict[Group, list[dict[str, str]]]:
    """Return rows by model, system, engine and version, each by the name that the catalogue has; the newest version last."""
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


# --- runs that are kept -------------------------------------------------------------------------------------------------


def kept_anchor(model: Model, system: System, engine: Engine, catalog: str | None = None) -> Anchor | None:
    """Return what the runs that are kept say about a model on a system by an engine; None where there are none of them."""
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
    """Return what all runs say that are kept, file by file."""
    anchors: list[Anchor] = []
    for name, path in files(ANCHOR_FOLDER, catalog).items():
        try:
            anchors += make_anchors(_kept_rows(path, catalog), name, is_stored=True, catalog=catalog).anchors
        except InputError as problem:
            _note_skipped(path, problem)
    return Anchors(source="runs that are kept", anchors=tuple(anchors))


def keep(
    runs: Place | Sequence[Place], *, name: str = "", catalog: str | None = None, **settings: str | int
) -> tuple[Path, Anchors]:
    """Keep runs for later questions under a name, by default that of their first file; return where, and what they say.

    Raises InputError for a name that is taken, and for runs that tell nothing.
    """
    called = name or Path(source_names(runs).split(", ")[0]).stem
    if not NAME.fullmatch(called):
        raise InputError(
            f"runs are kept under a name of letters, digits, '.', '_' and '-', not {short_repr(called)}; give --name"
        )
    path = own_folder(ANCHOR_FOLDER, catalog) / f"{called}.csv"
    conflict = f"is there already; `steptime anchors remove {called}` removes it, or give another --name"
    if path.exists():
        raise DataFileError(path, conflict)
    try:
        rows, _ = read_rows(runs, settings, False, catalog)
    except DataFileError as problem:
        raise DataFileError(problem.path, SKIP.sub("", problem.problem), problem.line) from None
    rows = [row | {name: _lasting(row[name]) for name in ("model", "system")} for row in rows]
    anchors = make_anchors(rows, called, is_stored=True, catalog=catalog)
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
    """Return a name of the catalogue as it is, and that of a file or a folder as it can be found from anywhere.

    >>> _lasting("hgx-h100"), _lasting("meta-llama/Llama-3.1-8B")
    ('hgx-h100', 'meta-llama/Llama-3.1-8B')
    """
    path = Path(name)
    return str(path.resolve()) if is_file(path) or is_dir(path) else name


def remove(name: str, *, catalog: str | None = None) -> Path:
    """Remove runs that are kept under a name, and return where they were. Raises UnknownName where there are none."""
    path = own_folder(ANCHOR_FOLDER, catalog) / f"{name}.csv"
    names = sorted(csv_path.stem for csv_path in path.parent.glob("*.csv"))
    if name not in names:
        raise UnknownName("kept runs", name, names, "`steptime anchors` lists them.")
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
    """Log that a file of kept runs is left out."""
    _warn_once(path, str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}")


@lru_cache(maxsize=1024)
def _warn_once(path: Path, problem: str) -> None:
    remedy = f"`steptime anchors remove {path.stem}` removes it"
    logging.getLogger(__name__).warning("%s", replace_controls(f"steptime: {problem}; these kept runs are left out; {remedy}"))
