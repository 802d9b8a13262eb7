"""Summaries of models, systems, engines and scaling laws, as plain data."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Card = TypeVar("Card")


def make_card(kind: type[Card], source: object, **figures: Any) -> Card:
    """Return a card whose fields are attributes of a catalogue entry.

    Args:
        kind: Dataclass of the card.
        source: Catalogue entry, such as a system; it has an attribute of the same name for each other field.
        **figures: Fields that are not attributes of the entry.

    Returns:
        The card.
    """
    names = [field.name for field in fields(kind) if field.name not in figures]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **figures)
