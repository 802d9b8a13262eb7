"""What the towers of a model make of images and recordings: rows that they read, tokens of the prompt, FLOPs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from steptime.errors import InputError
from steptime.models.blocks_vision import NAMES, Tower
from steptime.models.image_tokens import Cut, Medium, read_images, read_recordings
from steptime.models.model import Model, prefill_flops, total_parameters
from steptime.number_checks import MOST_TOKENS, between
from steptime.units import counted, show

MEDIA_NAMES = {"image": "images", "audio": "recordings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Images or recordings of one size in a prompt, what each becomes, and the tower that reads them."""

    medium: Medium
    cut: Cut
    tower: Tower

    @property
    def tokens(self) -> int:
        """Tokens of the prompt that all of them are."""
        return self.medium.count * self.cut.tokens

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """Sequences of all of them in the tower, as (how many, of how many rows)."""
        return tuple((self.medium.count * count, rows) for count, rows in self.cut.sequences)


def read_media(model: Model, images: str | Iterable[str] = (), audio: str | Iterable[str] = ()) -> tuple[Reading, ...]:
    """Return what a prompt's images (WIDTHxHEIGHT, or WIDTHxHEIGHT*COUNT) and recordings (SECONDS) become in a model.

    Raises RangeError for sizes that none has or that its processor refuses, InputError for a model without such a tower.
    """
    media = (*read_images(images), *read_recordings(audio))
    return tuple(_reading(model, medium) for medium in media)


def _reading(model: Model, medium: Medium) -> Reading:
    tower = find_tower(model, medium.kind)
    return Reading(medium=medium, cut=tower.rule.cut(medium), tower=tower)


def find_tower(model: Model, kind: str) -> Tower:
    """Return the tower of a model that reads "image" or "audio"; raise InputError, which says what it lacks."""
    tower_or_none = next((tower for tower in model.towers if tower.kind == kind), None)
    if tower_or_none is not None:
        return tower_or_none
    if any(op.term == "vision" for op in model.stem) and not model.towers:
        size = show(sum(op.total_weights for op in model.stem if op.term == "vision"))
        raise InputError(
            f"{model.name}: the {size} parameters of its towers are counted, but not how they read {MEDIA_NAMES[kind]}"
        )
    having = " and ".join(MEDIA_NAMES[tower.kind] for tower in model.towers)
    reads = f"text and {having}" if having else "text"
    raise InputError(f"{model.name} reads {reads} only: its config has no {NAMES[kind]} that would read {MEDIA_NAMES[kind]}")


def tower_flops(reading: Reading) -> float:
    """FLOPs of a tower for all images or recordings of a reading: of every sequence those of a pass over its rows."""
    return sum(count * float(prefill_flops(reading.tower.model, rows)) for count, rows in reading.sequences)


def tower_parameters(readings: Iterable[Reading]) -> float:
    """Parameters of the towers that read, each once."""
    return sum(total_parameters(tower.model) for tower in {reading.tower.kind: reading.tower for reading in readings}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What a prompt holds beside text, and its `tokens` with all of that."""

    readings: tuple[Reading, ...]
    tokens: float

    @property
    def words(self) -> str:
        """Return what a prompt holds in words."""
        sizes = (
            (
                counted(reading.medium.count, "image" if reading.medium.kind == "image" else "recording"),
                reading.medium.size_text,
            )
            for reading in self.readings
        )
        return " and ".join(f"{count} of {size}" for count, size in sizes)


def media_tokens(readings: Iterable[Reading]) -> int:
    """Tokens of a prompt that its images and recordings become."""
    return sum(reading.tokens for reading in readings)


def with_media(model: Model, readings: tuple[Reading, ...], text: float) -> Model:
    """Return a model whose every prompt of `text` tokens holds what is read besides; as it is where nothing is.

    Its prompts are longer by `media_tokens`, which whoever asks for a step adds; a step that reads a part of a prompt has that
    part of the towers' time (`physics.towers`).
    """
    if not readings:
        return model
    media = Media(readings=readings, tokens=text + media_tokens(readings))
    between("tokens of a prompt with its images", media.tokens, 1, MOST_TOKENS, "token")
    return replace(model, media=media, notes=(*model.notes, *media_notes(media)))


def media_notes(media: Media) -> tuple[str, ...]:
    """Say how many tokens of a prompt are images, by which settings they are cut, and how sure their time is."""
    towers = {reading.tower.name: reading.tower.rule.settings for reading in media.readings}
    settings = "; ".join(dict.fromkeys(text for text in towers.values() if text))
    return (
        f"each prompt of {media.tokens:,.0f} tokens holds {media.words}: {media_tokens(media.readings):,} of the tokens"
        + (f" (settings: {settings})" if settings else ""),
        f"the {' and the '.join(towers)} runs before the prompt on the same chips, tensor parallel; "
        "no measured run had one, so that ranges are those of text",
    )
