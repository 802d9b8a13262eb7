"""How far open models were trained beyond 20 tokens a parameter, as published."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from steptime.blackboard.compute_allocation import overtraining
from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import Reader
from steptime.catalog.schema import TrainedListEntry, validated
from steptime.models.model import active_parameters, total_parameters
from steptime.models.model_loading import load_model
from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An open model: its active and total parameters, the tokens that it was trained on, and how sure they are."""

    model: str = field(metadata=unit("", "the model"))
    active: float = field(metadata=unit("", "parameters that a token passes through"))
    total: float = field(metadata=unit("", "parameters in all"))
    tokens: float = field(metadata=unit("tokens", "that it was trained on"))
    over_chinchilla: float = field(metadata=unit("", "those over 20 for each active parameter"))
    url: str = field(metadata=unit("", "where the tokens stand"))
    grade: str = field(metadata=unit("", "how far to trust them"))


def open_models(catalog: str | os.PathLike[str] | None = None) -> tuple[Trained, ...]:
    """Return the open models whose training tokens were published, the most overtrained first.

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
