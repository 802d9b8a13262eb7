"""Measured acceptance lengths by number of speculative tokens, and public EAGLE-3 heads, with sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import AcceptanceEntry, CurveEntry, HeadEntry, LengthsEntry, validated
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Acceptance of one drafter with one number of speculative tokens, one figure per task.

    method: eagle3 or draft_model. kind: length (tokens per step, with the one of the model) or rate (probability per
    token). temperature: None if not published. tree: whether the drafts form a tree in place of a chain.
    """

    models: tuple[str, ...]
    method: str
    drafter: str
    drafts: int
    temperature: float | None
    kind: str
    tree: bool
    tasks: tuple[str, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A public EAGLE-3 head: shape of its layer, draft vocabulary, and id of its weights.

    A shape of 0 means that of the model's layers. place: "" if no public head with this shape is known. source: where the
    shape or the id comes from.
    """

    models: tuple[str, ...]
    place: str
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    source: str


def _entries(catalog: str | os.PathLike[str] | None) -> Iterator[tuple[AcceptanceEntry, Reader]]:
    """Yield the checked files of the catalogue, the user's files first, with what reads their figures."""
    for path in files("acceptance", catalog).values():
        entry = validated(AcceptanceEntry, path)
        yield entry, Reader(path, entry.sources)


def measured_lengths(catalog: str | os.PathLike[str] | None = None) -> Iterator[Lengths]:
    """Yield the acceptance of EAGLE-3 heads and draft models in the catalogue, the user's files first.

    Args:
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Yields:
        One entry per drafter and number of speculative tokens.

    Raises:
        DataFileError: A file does not fit the schema, or a figure is impossible.
    """
    for entry, reader in _entries(catalog):
        for number, lengths in enumerate(entry.lengths):
            yield _lengths(reader, f"lengths.{number}", lengths)


def _lengths(reader: Reader, place: str, entry: LengthsEntry) -> Lengths:
    if len(entry.tasks) != len(entry.values):
        problem = f"{place}: must have one value per task, got {len(entry.tasks)} tasks and {len(entry.values)} values"
        raise DataFileError(reader.path, problem, reader.line(place))
    low, high = (0.0, 1.0) if entry.kind == "rate" else (1.0, entry.drafts + 1.0)
    for count, figure in enumerate(entry.values, start=1):
        value = reader.number(f"{place}.values.{count}", figure, "")
        if not low <= value <= high:
            problem = f"{place}: a {entry.kind} with {entry.drafts} drafts is from {low:g} to {high:g}, got {value:g}"
            raise DataFileError(reader.path, problem, reader.line(place))
    return Lengths(
        models=tuple(entry.models),
        method=entry.method,
        drafter=entry.drafter,
        drafts=entry.drafts,
        temperature=entry.temperature,
        kind=entry.kind,
        tree=entry.tree,
        tasks=tuple(entry.tasks),
        figures=tuple(reader.figures[f"{place}.values.{count}"] for count in range(1, len(entry.values) + 1)),
    )


def eagle3_head(model: str, catalog: str | os.PathLike[str] | None = None) -> Head | None:
    """Return the first EAGLE-3 head of a model in the catalogue, the user's files first.

    Args:
        model: Name of the model in the catalogue.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The head; None if the catalogue has none.

    Raises:
        DataFileError: A file does not fit the schema.
    """
    for entry, reader in _entries(catalog):
        for number, head in enumerate(entry.heads):
            if model in head.models:
                return _head(reader, f"heads.{number}", head)
    return None


def _head(reader: Reader, place: str, entry: HeadEntry) -> Head:
    source = reader.sources.get(entry.source)
    if source is None:
        raise DataFileError(reader.path, f"{place}: source {entry.source!r} is not in [sources]", reader.line(place))
    shape = (entry.intermediate, entry.heads, entry.kv_heads, entry.head_dim)
    if any(shape) != all(shape):
        problem = f"{place}: needs all of intermediate, heads, kv_heads and head_dim, or none, got {shape}"
        raise DataFileError(reader.path, problem, reader.line(place))
    return Head(
        models=tuple(entry.models),
        place=entry.place,
        intermediate=entry.intermediate,
        heads=entry.heads,
        kv_heads=entry.kv_heads,
        head_dim=entry.head_dim,
        vocabulary=entry.vocabulary,
        source=f"{source.note} ({source.url})",
    )


def curves(catalog: str | os.PathLike[str] | None = None) -> Iterator[Curve]:
    """Yield every acceptance curve of the catalogue, the user's files first.

    Args:
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Yields:
        The curves, file by file.

    Raises:
        DataFileError: A file does not fit the schema, or a step yields an impossible number of tokens.
    """
    for entry, reader in _entries(catalog):
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
