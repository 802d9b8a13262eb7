"""The text of `--anchor`: a file of measured runs, with settings that the file lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from steptime.errors import DataFileError, RangeError, UnknownName, short_repr

if TYPE_CHECKING:
    from steptime.physics.bias_correction import Anchors
    from steptime.physics.engine import Engine


def anchor_path(text: str) -> str:
    """Return the name of the file in front of its settings.

    Args:
        text: text of --anchor.

    Returns:
        The name.

    >>> anchor_path("result.json,tp=4,weights=fp8")
    'result.json'
    """
    return text if os.path.exists(text) else text.partition(",")[0]


def anchor_settings(text: str) -> dict[str, str]:
    """Return the settings behind the name of the file.

    Args:
        text: text of --anchor.

    Returns:
        Texts by the argument of `load_anchor`.

    >>> anchor_settings("result.json,tp=4,weights=fp8")
    {'tp': '4', 'weights': 'fp8'}
    """
    from steptime.validation.validate_api import SETTING_COLUMNS

    settings: dict[str, str] = {}
    for part in filter(None, text.removeprefix(anchor_path(text)).split(",")):
        name, equals, value = (field.strip() for field in part.partition("="))
        if not (equals and value):
            raise RangeError(f"--anchor: {short_repr(part)} is not NAME=VALUE, as in --anchor result.json,tp=4,weights=fp8")
        if name not in SETTING_COLUMNS:
            raise UnknownName("name in --anchor", name, SETTING_COLUMNS, f"Known: {', '.join(SETTING_COLUMNS)}.")
        if name in settings:
            raise RangeError(f"--anchor: {name} is given twice")
        settings[name] = value
    return settings


def read_anchor(text: str, defaults: Mapping[str, str], engine: Engine, catalog: str | None) -> Anchors:
    """Return the anchors of a file of runs.

    Args:
        text: text of --anchor.
        defaults: settings that apply where neither the file nor the text has one.
        engine: engine whose predictions the runs correct.
        catalog: folder of own catalogue files.

    Returns:
        Runs in groups, with their corrections.

    Raises:
        DataFileError: if a setting is missing.
    """
    from steptime.validation.bench_results import NotTold
    from steptime.validation.user_calibration import in_own_words, load_anchor
    from steptime.validation.validate_api import SETTING_COLUMNS

    if not text.strip():
        raise RangeError("--anchor needs a file of runs: a result of a load generator, or a CSV as of `steptime validate`")
    path, settings = anchor_path(text), anchor_settings(text)
    for _ in range(len(defaults) + 1):
        try:
            return load_anchor(path, engine=engine, catalog=catalog, **settings)
        except NotTold as problem:
            name = next(name for name, column in SETTING_COLUMNS.items() if column == problem.column)
            if not defaults.get(name) or name in settings:
                hint = (
                    f"{in_own_words(problem.problem)} behind the file, as in --anchor {os.path.basename(path)},tp=4,weights=fp8"
                )
                raise DataFileError(problem.path, hint, problem.line) from None
            settings[name] = defaults[name]
    raise RangeError(f"--anchor: {path} lacks settings of the run")
