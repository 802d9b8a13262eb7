"""How many drafted tokens models accept, as measured: curves by the number of drafts, each figure with its source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import AcceptanceEntry, CurveEntry, validated
from steptime.errors import DataFileError
from steptime.provenance import Figure

TYPICAL: Final = "typical"
OWN_LAYERS: Final = "mtp"  # drafts by a model's own layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Tokens that a step yields with 1, 2, ... drafts, in the mean, the sure one among them: of `models`, drafted by `method`.

    method: mtp (the model's own layers), eagle3 or dspark (other drafters). words: what it was measured on.
    """

    models: tuple[str, ...]
    method: str
    words: str
    figures: tuple[Figure, ...]

    @property
    def tokens(self) -> tuple[float, ...]:
        """The tokens by number of drafts, from one."""
        return tuple(figure.value for figure in self.figures)


def curves(catalog: str | os.PathLike[str] | None = None) -> Iterator[Curve]:
    """Yield every curve of the catalogue, the user's own files first."""
    for path in files("acceptance", catalog).values():
        entry = validated(AcceptanceEntry, path)
        reader = Reader(path, entry.sources)
        for number, curve in enumerate(entry.curves):
            yield _curve(reader, f"curves.{number}", curve)


def _curve(reader: Reader, place: str, entry: CurveEntry) -> Curve:
    for count, figure in enumerate(entry.tokens, start=1):
        figure_place = f"{place}.tokens.{count}"
        value = reader.number(figure_place, figure, "")
        if not 1 <= value <= count + 1:
            problem = f"{place}: a step with {count} drafts yields from 1 to {count + 1} tokens, not {value:g}"
            raise DataFileError(reader.path, problem, reader.line(place))
    figures = tuple(reader.figures[f"{place}.tokens.{count}"] for count in range(1, len(entry.tokens) + 1))
    return Curve(models=tuple(entry.models), method=entry.method, words=entry.words, figures=figures)


def acceptance_curve(model: str, catalog: str | os.PathLike[str] | None = None) -> Curve:
    """Return the first curve of a model's own layers, or the typical one of other models where none was measured."""
    own_layer_curves = [curve for curve in curves(catalog) if curve.method == OWN_LAYERS]
    mine = [curve for curve in own_layer_curves if model in curve.models]
    return (mine or [curve for curve in own_layer_curves if TYPICAL in curve.models])[0]
