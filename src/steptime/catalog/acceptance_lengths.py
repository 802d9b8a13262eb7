"""Measured acceptance lengths by number of speculative tokens, with sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import AcceptanceEntry, CurveEntry, validated
from steptime.errors import DataFileError
from steptime.units import Figure

TYPICAL: Final = "typical"
# Method of speculative tokens that come from the model's own layers.
OWN_LAYERS: Final = "mtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean tokens per step with 1, 2, ... speculative tokens, measured on `models`.

    The tokens include the one that the model itself produces in each step. method: how the speculative tokens are made, mtp
    (the model's own multi-token-prediction layers), eagle3 or dspark (other drafters). words: the workload of the
    measurement.
    """

    models: tuple[str, ...]
    method: str
    words: str
    figures: tuple[Figure, ...]

    @property
    def tokens(self) -> tuple[float, ...]:
        """Tokens per step with 1, 2, ... speculative tokens."""
        return tuple(figure.value for figure in self.figures)


def curves(catalog: str | os.PathLike[str] | None = None) -> Iterator[Curve]:
    """Yield every acceptance curve of the catalogue, the user's files first.

    Args:
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Yields:
        The curves, file by file.

    Raises:
        DataFileError: A file does not fit the schema, or a step yields an impossible number of tokens.
    """
    for path in files("acceptance", catalog).values():
        entry = validated(AcceptanceEntry, path)
        reader = Reader(path, entry.sources)
        for number, curve in enumerate(entry.curves):
            yield _curve(reader, f"curves.{number}", curve)


def _curve(reader: Reader, place: str, entry: CurveEntry) -> Curve:
    for count, figure in enumerate(entry.tokens, start=1):
        figure_place = f"{place}.tokens.{count}"
        value = reader.number(figure_place, figure, "")
        # A step yields its own token and at most every speculative token.
        if not 1 <= value <= count + 1:
            problem = f"{place}: a step with {count} speculative tokens yields from 1 to {count + 1} tokens, got {value:g}"
            raise DataFileError(reader.path, problem, reader.line(place))
    figures = tuple(reader.figures[f"{place}.tokens.{count}"] for count in range(1, len(entry.tokens) + 1))
    return Curve(models=tuple(entry.models), method=entry.method, words=entry.words, figures=figures)


def acceptance_curve(model: str, catalog: str | os.PathLike[str] | None = None) -> Curve:
    """Return the acceptance curve of a model's own layers, or else the typical curve.

    Args:
        model: Name of the model in the catalogue.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The first curve measured on the model; without one, the first typical curve of other models.
    """
    own_layer_curves = [curve for curve in curves(catalog) if curve.method == OWN_LAYERS]
    # A measured curve of the model itself is better than the typical one.
    mine = [curve for curve in own_layer_curves if model in curve.models]
    return (mine or [curve for curve in own_layer_curves if TYPICAL in curve.models])[0]
