"""Training tokens of open models over 20 per parameter, as published."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from steptime.blackboard.training_compute import overtraining
from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import TrainedListEntry, validated
from steptime.models.model import active_parameters, total_parameters
from steptime.models.model_loading import load_model
from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An open model: active and total parameters, and published training tokens."""

    model: str = field(metadata=unit("", "model"))
    active: float = field(metadata=unit("", "active parameters"))
    total: float = field(metadata=unit("", "total parameters"))
    tokens: float = field(metadata=unit("tokens", "training tokens"))
    over_chinchilla: float = field(metadata=unit("", "training tokens over 20 per active parameter"))
    url: str = field(metadata=unit("", "source of the training tokens"))
    grade: str = field(metadata=unit("", "grade of the source"))


def open_models(catalog: str | os.PathLike[str] | None = None) -> tuple[Trained, ...]:
    """Return the open models with published training tokens, most overtrained first.

    Args:
        catalog: Folder of the catalog; the one of the package if None.

    Returns:
        Models.

    >>> llama = next(one for one in open_models() if one.model == "meta-llama/Meta-Llama-3-8B")
    >>> round(llama.over_chinchilla)
    93
    """
    return tuple(sorted(_every(catalog), key=lambda model: -model.over_chinchilla))


def _every(catalog: str | os.PathLike[str] | None) -> Iterator[Trained]:
    names: set[str] = set()
    for path in files("trained", catalog).values():
        entry = validated(TrainedListEntry, path)
        reader = Reader(path, entry.sources)
        for position, published in enumerate(entry.trained):
            place = f"trained.{position}.tokens"
            tokens = reader.number(place, published.tokens, "")
            model = load_model(published.model, catalog=catalog)
            # Several files may list the same model; the first one counts.
            if model.name in names:
                continue
            names.add(model.name)
            active = float(active_parameters(model))
            figure = reader.figures[place]
            yield Trained(
                model=model.name,
                active=active,
                total=float(total_parameters(model)),
                tokens=tokens,
                over_chinchilla=float(overtraining(tokens, active)),
                url=figure.url,
                grade=figure.grade,
            )
