"""What images and recordings cost a model: rows of its towers, tokens of the prompt, and FLOPs of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.errors import InputError
from steptime.models.model import Model, prefill_flops
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.models.multimodal_inputs import Reading, media_tokens, read_media, tower_flops, tower_parameters, with_media
from steptime.number_checks import MOST_TOKENS, positive
from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import counted, show


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumRow:
    """Images or recordings of one size."""

    kind: str = field(metadata=unit("", "image or audio"))
    size: str = field(metadata=unit("", "width x height in pixels, or seconds"))
    count: int = field(metadata=unit("", "how many the prompt has"))
    sequences: int = field(metadata=unit("", "that one of them is in the tower: tiles, or 1"))
    rows: int = field(metadata=unit("", "of the tower for one of them: patches of all tiles, or frames"))
    tokens: int = field(metadata=unit("tokens", "of the prompt for one of them", key="prompt_tokens"))
    tower_flop: float = field(metadata=unit("FLOP", "of the tower for one of them"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImageCost(Tabular):
    """What the images and recordings of a prompt cost: what `steptime models NAME --image 1024x1024` shows."""

    SCHEMA: ClassVar[str] = "steptime.image-cost/2"

    model: str = field(metadata=unit("", "name of the model"))
    media: tuple[MediumRow, ...] = field(metadata=unit("", "images and recordings by size"))
    rows: int = field(metadata=unit("", "of the towers for all of them"))
    tokens: int = field(metadata=unit("tokens", "of the prompt for all of them", key="prompt_tokens"))
    tower_parameters: float = field(metadata=unit("", "of the towers that read them, projectors among them"))
    tower_flop: float = field(metadata=unit("FLOP", "of the towers for all of them"))
    language_flop: float = field(
        metadata=unit("FLOP", "of the language model for a prompt of those tokens alone, after no prefix")
    )
    tower_share: float = field(metadata=unit("", "FLOPs of the towers over both"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "what to mind"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return tokens and FLOPs."""
        sizes = ", ".join(f"{row.count} x {row.size}" if row.count > 1 else row.size for row in self.media)
        return f"{sizes} in a prompt of {self.model}", {
            "prompt": f"{counted(self.tokens, 'token')} from {counted(self.rows, 'row')} of the tower",
            "tower": f"{show(self.tower_flop, 'FLOP')}, {self.tower_share:.0%} of the whole",
            "language model": f"{show(self.language_flop, 'FLOP')} for these tokens",
        }

    def columns(self) -> dict[str, Any]:
        """Return a row for each size."""
        return columns_by_key(MediumRow, self.media)


def image_cost(model: ModelLike, images: str | Iterable[str] = (), *, audio: str | Iterable[str] = ()) -> ImageCost:
    """Return what a prompt's images and recordings cost: rows of the towers, tokens of the prompt, FLOPs of both.

    images: "1024x768" (width by height in pixels), "1024x768*4" for four, or several of these; audio: seconds, such as "30".
    Raises InputError for a model without a tower that reads them, RangeError for sizes that its processor refuses.

    >>> image_cost("qwen3-vl-8b-instruct", "1024x1024").tokens
    1024
    """
    loaded_model = resolve_model(model)
    readings = read_media(loaded_model, images, audio)
    if not readings:
        raise InputError("name an image, such as 1024x1024, or a recording, such as 30")
    return media_cost(loaded_model, readings)


def with_images(model: ModelLike, images: str | Iterable[str] = (), *, text: float, audio: str | Iterable[str] = ()) -> Model:
    """Return a model whose every prompt holds these images and recordings behind `text` [tokens], as for `image_cost`.

    Steps, plans and simulations of it add the time of its towers where prompts are read. Their prompts are to be longer, by
    `image_cost(...).tokens`: a `Workload` of `text` tokens becomes one of `model.media.tokens`.

    >>> with_images("qwen3-vl-8b-instruct", "1024x1024", text=500).media.tokens
    1524
    """
    loaded_model = resolve_model(model)
    positive("text", text, "token", maximum=MOST_TOKENS)
    return with_media(loaded_model, read_media(loaded_model, images, audio), text)


def media_cost(model: Model, readings: tuple[Reading, ...]) -> ImageCost:
    """Return what images and recordings cost that were read already."""
    tokens = media_tokens(readings)
    flops, language = sum(tower_flops(reading) for reading in readings), float(prefill_flops(model, tokens))
    return ImageCost(
        model=model.name,
        media=tuple(_row(reading) for reading in readings),
        rows=sum(reading.medium.count * reading.cut.rows for reading in readings),
        tokens=tokens,
        tower_parameters=tower_parameters(readings),
        tower_flop=flops,
        language_flop=language,
        tower_share=flops / (flops + language),
        notes=tuple(dict.fromkeys(f"settings: {text}" for reading in readings if (text := reading.tower.rule.settings))),
    )


def _row(reading: Reading) -> MediumRow:
    return MediumRow(
        kind=reading.medium.kind,
        size=reading.medium.size_text,
        count=reading.medium.count,
        sequences=sum(count for count, _ in reading.cut.sequences),
        rows=reading.cut.rows,
        tokens=reading.cut.tokens,
        tower_flop=tower_flops(reading) / reading.medium.count,
    )
