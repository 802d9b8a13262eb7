"""The cost of images and recordings in a prompt: tower rows, prompt tokens, and FLOPs of tower and language model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from steptime.errors import InputError
from steptime.models.model import Model, prefill_flops
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.number_checks import MOST_TOKENS, positive
from steptime.result_base import Tabular, unit
from steptime.units import counted, percent, show

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class MediumRow:
    """Images or recordings of one size."""

    kind: str = field(metadata=unit("", "image or audio"))
    size: str = field(metadata=unit("", "width x height in pixels, or seconds"))
    count: int = field(metadata=unit("", "number of them in the prompt"))
    sequences: int = field(metadata=unit("", "sequences in the tower per item: its tiles, or 1"))
    rows: int = field(metadata=unit("", "rows of the tower per item: patches of all tiles, or frames"))
    tokens: int = field(metadata=unit("tokens", "of the prompt for one of them", key="prompt_tokens"))
    tower_flop: float = field(metadata=unit("FLOP", "FLOPs of the tower per item"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImageCost(Tabular):
    """Cost of the images and recordings of a prompt, as `steptime models` shows it."""

    SCHEMA: ClassVar[str] = "steptime.image-cost/2"
    ROWS: ClassVar[tuple[str, type]] = ("media", MediumRow)

    model: str = field(metadata=unit("", "name of the model"))
    media: tuple[MediumRow, ...] = field(metadata=unit("", "images and recordings by size"))
    rows: int = field(metadata=unit("", "rows of the towers, all items together"))
    tokens: int = field(metadata=unit("tokens", "prompt tokens of all items together", key="prompt_tokens"))
    tower_parameters: float = field(metadata=unit("", "parameters of the towers that encode them, with their projectors"))
    tower_flop: float = field(metadata=unit("FLOP", "FLOPs of the towers, all items together"))
    language_flop: float = field(
        metadata=unit("FLOP", "FLOPs of the language model for a prompt of only these tokens, without a prefix")
    )
    tower_share: float = field(metadata=unit("", "FLOPs of the towers, divided by those of towers and language model"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "notes on the result"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the tokens and FLOPs in words.

        Returns:
            The title, and short texts by name.
        """
        sizes = ", ".join(f"{row.count} x {row.size}" if row.count > 1 else row.size for row in self.media)
        return f"{sizes} in a prompt of {self.model}", {
            "prompt": f"{counted(self.tokens, 'token')} from {counted(self.rows, 'row')} of the tower",
            "tower": f"{show(self.tower_flop, 'FLOP')}, {percent(self.tower_share)} of the whole",
            "language model": f"{show(self.language_flop, 'FLOP')} for these tokens",
        }


def image_cost(model: ModelLike, images: str | Iterable[str] = (), *, audio: str | Iterable[str] = ()) -> ImageCost:
    """Return the cost of the images and recordings of a prompt.

    Args:
        model: Catalogue name, path or model with a vision or audio tower.
        images: Sizes "1024x768" (width x height in pixels); "1024x768*4" for four images.
        audio: Lengths in seconds, such as "30"; "30*2" for two recordings.

    Returns:
        Rows of the towers, tokens of the prompt, and FLOPs of towers and language model.

    Raises:
        InputError: If the model has no tower for them, or nothing is given.
        RangeError: If the processor of the model refuses a size.

    >>> image_cost("qwen3-vl-8b-instruct", "1024x1024").tokens
    1024
    """
    from steptime.models.blocks_vision import read_media

    loaded_model = resolve_model(model)
    readings = read_media(loaded_model, images, audio)
    if not readings:
        raise InputError("images: nothing is given; give an image, such as 1024x1024, or a recording, such as 30")
    return media_cost(loaded_model, readings)


def with_images(model: ModelLike, images: str | Iterable[str] = (), *, text: float, audio: str | Iterable[str] = ()) -> Model:
    """Return a model whose prompts contain images and recordings after their text.

    Steps, plans and simulations of this model add the time of its towers to prefill. Make the prompts longer by
    `image_cost(...).tokens`: a `Workload` of `text` tokens becomes one of `model.media.tokens`.

    Args:
        model: Catalogue name, path or model with a vision or audio tower.
        images: Sizes of the images, as for `image_cost`.
        text: Text tokens of each prompt.
        audio: Lengths of the recordings [s], as for `image_cost`.

    Returns:
        The model with its media.

    >>> with_images("qwen3-vl-8b-instruct", "1024x1024", text=500).media.tokens
    1524
    """
    from steptime.models.blocks_vision import read_media, with_media

    loaded_model = resolve_model(model)
    positive("text", text, "token", maximum=MOST_TOKENS)
    return with_media(loaded_model, read_media(loaded_model, images, audio), text)


def media_cost(model: Model, readings: tuple[Reading, ...]) -> ImageCost:
    """Return the cost of images and recordings whose sizes are already read.

    Args:
        model: Model with towers.
        readings: Sizes, tiles and tokens of each image or recording.

    Returns:
        Rows, tokens and FLOPs.
    """
    from steptime.models.blocks_vision import media_tokens, tower_flops, tower_parameters

    tokens = media_tokens(readings)
    # The language model is counted without a prefix: attention to earlier text depends on the prompt.
    flops, language = sum(tower_flops(reading) for reading in readings), float(prefill_flops(model, tokens))
    return ImageCost(
        model=model.name,
        media=tuple(_row(reading, tower_flops(reading)) for reading in readings),
        rows=sum(reading.medium.count * reading.cut.rows for reading in readings),
        tokens=tokens,
        tower_parameters=tower_parameters(readings),
        tower_flop=flops,
        language_flop=language,
        tower_share=flops / (flops + language),
        notes=tuple(dict.fromkeys(f"settings: {text}" for reading in readings if (text := reading.tower.rule.settings))),
    )


def _row(reading: Reading, flops: float) -> MediumRow:
    return MediumRow(
        kind=reading.medium.kind,
        size=reading.medium.size_text,
        count=reading.medium.count,
        sequences=sum(count for count, _ in reading.cut.sequences),
        rows=reading.cut.rows,
        tokens=reading.cut.tokens,
        tower_flop=flops / reading.medium.count,
    )
