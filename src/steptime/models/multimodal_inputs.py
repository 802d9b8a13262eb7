"""Rows, prompt tokens and FLOPs of images and recordings in a model's towers."""

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
    """Images or recordings of one size in a prompt, with their cut and their tower."""

    medium: Medium
    cut: Cut
    tower: Tower

    @property
    def tokens(self) -> int:
        """Prompt tokens of all images or recordings of this size."""
        return self.medium.count * self.cut.tokens

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """Sequences of all of them in the tower, as pairs of count and rows."""
        return tuple((self.medium.count * count, rows) for count, rows in self.cut.sequences)


def read_media(model: Model, images: str | Iterable[str] = (), audio: str | Iterable[str] = ()) -> tuple[Reading, ...]:
    """Return the rows and tokens of a prompt's images and recordings in a model.

    Args:
        model: The model with its towers.
        images: Sizes as WIDTHxHEIGHT or WIDTHxHEIGHT*COUNT [pixels].
        audio: Lengths as SECONDS or SECONDS*COUNT [s].

    Returns:
        One reading per size or length.

    Raises:
        RangeError: A size is impossible, or the model's processor refuses it.
        InputError: The model has no such tower.
    """
    media = (*read_images(images), *read_recordings(audio))
    return tuple(_reading(model, medium) for medium in media)


def _reading(model: Model, medium: Medium) -> Reading:
    tower = find_tower(model, medium.kind)
    return Reading(medium=medium, cut=tower.rule.cut(medium), tower=tower)


def find_tower(model: Model, kind: str) -> Tower:
    """Return the tower of a model for images or for sound.

    Args:
        model: The model.
        kind: "image" or "audio".

    Returns:
        The tower.

    Raises:
        InputError: The model has no such tower.
    """
    tower_or_none = next((tower for tower in model.towers if tower.kind == kind), None)
    if tower_or_none is not None:
        return tower_or_none

    # The family counts the towers but does not describe their passes.
    if any(op.term == "vision" for op in model.stem) and not model.towers:
        size = show(sum(op.total_weights for op in model.stem if op.term == "vision"))
        raise InputError(f"{kind}: {model.name} has towers of {size} parameters, but steptime does not model their time")
    having = " and ".join(MEDIA_NAMES[tower.kind] for tower in model.towers)
    reads = f"text and {having}" if having else "text"
    raise InputError(f"{kind}: {model.name} reads {reads} only; its config has no {NAMES[kind]} for {MEDIA_NAMES[kind]}")


def tower_flops(reading: Reading) -> float:
    """Return the FLOPs of a tower for all images or recordings of a reading.

    Each sequence costs one pass over its rows.

    Args:
        reading: Images or recordings of one size.

    Returns:
        FLOPs per prompt.
    """
    return sum(count * float(prefill_flops(reading.tower.model, rows)) for count, rows in reading.sequences)


def tower_parameters(readings: Iterable[Reading]) -> float:
    """Return the parameters of the towers that run, each tower once.

    Args:
        readings: Images and recordings of a prompt.

    Returns:
        Parameters.
    """
    return sum(total_parameters(tower.model) for tower in {reading.tower.kind: reading.tower for reading in readings}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Images and recordings of a prompt, and all its `tokens` including text."""

    readings: tuple[Reading, ...]
    tokens: float

    @property
    def words(self) -> str:
        """Images and recordings in words, with their sizes."""
        sizes = (
            (
                counted(reading.medium.count, "image" if reading.medium.kind == "image" else "recording"),
                reading.medium.size_text,
            )
            for reading in self.readings
        )
        return " and ".join(f"{count} of {size}" for count, size in sizes)


def media_tokens(readings: Iterable[Reading]) -> int:
    """Return the prompt tokens of images and recordings.

    Args:
        readings: Images and recordings of a prompt.

    Returns:
        Tokens.
    """
    return sum(reading.tokens for reading in readings)


def with_media(model: Model, readings: tuple[Reading, ...], text: float) -> Model:
    """Return a model whose every prompt includes images and recordings.

    The prompts are longer by `media_tokens`; the caller adds these tokens to a step. A step with a part of a prompt has the
    same part of the towers' time (`physics.towers`).

    Args:
        model: The model.
        readings: Images and recordings of a prompt; if empty, the model stays as it is.
        text: Text tokens of a prompt.

    Returns:
        The model with `media` and notes.

    Raises:
        RangeError: The prompt has too many tokens.
    """
    if not readings:
        return model
    media = Media(readings=readings, tokens=text + media_tokens(readings))
    between("tokens of a prompt with its images", media.tokens, 1, MOST_TOKENS, "token")
    return replace(model, media=media, notes=(*model.notes, *media_notes(media)))


def media_notes(media: Media) -> tuple[str, ...]:
    """Return notes about image tokens, settings, and the accuracy of the time.

    Args:
        media: Images and recordings of a prompt.

    Returns:
        Two notes.
    """

    # One tower may read images of several sizes; its settings are written once.
    towers = {reading.tower.name: reading.tower.rule.settings for reading in media.readings}
    settings = "; ".join(dict.fromkeys(text for text in towers.values() if text))
    return (
        f"each prompt of {media.tokens:,.0f} tokens includes {media.words}: {media_tokens(media.readings):,} tokens"
        + (f" (settings: {settings})" if settings else ""),
        f"the {' and the '.join(towers)} runs before the prefill on the same chips with tensor parallelism; "
        "no measured run has a tower, so the ranges are those of text",
    )
