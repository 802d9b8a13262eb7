"""How `--anchor` is read: runs of one's own by which a model's times on a system are set right."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from steptime.errors import DataFileError, RangeError, UnknownName, shown

if TYPE_CHECKING:
    from steptime.physics.bias_correction import Anchors
    from steptime.physics.engine import Engine


def file_of(text: str) -> str:
    """Return the name of the file in front of what it does not tell.

    >>> file_of("result.json,tp=4,weights=fp8")
    'result.json'
    """
    return text if os.path.exists(text) else text.partition(",")[0]


def told_of(text: str) -> dict[str, str]:
    """Return what stands behind the name of the file, by the argument of `load_anchor`.

    >>> told_of("result.json,tp=4,weights=fp8")
    {'tp': '4', 'weights': 'fp8'}
    """
    from steptime.validation.validate_api import TOLD

    told: dict[str, str] = {}
    for part in filter(None, text.removeprefix(file_of(text)).split(",")):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not (equals and value):
            raise RangeError(f"--anchor: {shown(part)} is not NAME=VALUE, as in --anchor result.json,tp=4,weights=fp8")
        if name not in TOLD:
            raise UnknownName("name in --anchor", name, TOLD, f"Known: {', '.join(TOLD)}.")
        if name in told:
            raise RangeError(f"--anchor: {name} is given twice")
        told[name] = value
    return told


def read_anchor(text: str, asked: Mapping[str, str], engine: Engine, catalog: str | None) -> Anchors:
    """Return the anchors of a file of runs; what results do not tell, is told behind it, or taken from what is `asked`."""
    from steptime.validation.bench_results import NotTold
    from steptime.validation.user_calibration import in_own_words, load_anchor
    from steptime.validation.validate_api import TOLD

    if not text.strip():
        raise RangeError("--anchor needs a file of runs: a result of a load generator, or a CSV as of `steptime validate`")
    path, told = file_of(text), told_of(text)
    for _ in range(len(asked) + 1):
        try:
            return load_anchor(path, engine=engine, catalog=catalog, **told)
        except NotTold as problem:
            name = next(name for name, column in TOLD.items() if column == problem.column)
            if not asked.get(name) or name in told:
                hint = (
                    f"{in_own_words(problem.problem)} behind the file, as in --anchor {os.path.basename(path)},tp=4,weights=fp8"
                )
                raise DataFileError(problem.path, hint, problem.line) from None
            told[name] = asked[name]
    raise RangeError(f"--anchor: {path} does not tell what was run")
