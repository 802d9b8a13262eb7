"""What a family of models is, and how families are found."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import ClassVar

from steptime.models import families, parts
from steptime.models.config import Config
from steptime.models.model import Layer, Op
from steptime.models.parts_tower import Tower, counted


class Family(ABC):
    """Models whose config.json has one of `model_types` and whose layers follow one plan.

    A family is one file of this package with one final class. It says what layer `index` is made of; the stem is an
    embedding, a final norm and a head unless the family says otherwise.
    """

    model_types: ClassVar[tuple[str, ...]]
    architectures: ClassVar[tuple[str, ...]] = ()  # for configs that carry no model_type
    norm_bias: ClassVar[bool] = False

    @abstractmethod
    def layer(self, c: Config, index: int) -> Layer:
        """Return layer `index` of the model, counted from 0."""

    def depth(self, c: Config) -> int:
        """Number of layers."""
        return c.depth

    def heads(self, c: Config) -> int:
        """Number of query heads, or of heads of the state where there is no attention."""
        return c.heads

    def each(self, c: Config) -> Iterator[Layer]:
        """Yield the layers in the order of the model."""
        return (self.layer(c.at(index), index) for index in range(self.depth(c)))

    def layers(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the kinds of layers with their counts, in order of first appearance."""
        return grouped(self.each(c))

    def tied(self, c: Config) -> bool:
        """Whether embedding and head share their matrix; families differ in what a silent config means."""
        return c.flag("tie_word_embeddings", default=False)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return what stands before and after the layers."""
        return (
            parts.embedding(c, tied=self.tied(c)),
            parts.norm(c, "final_norm", c.width, bias=self.norm_bias),
            parts.head(c),
        )

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:  # noqa: ARG002 - most families have none
        """Return the multi-token-prediction layers."""
        return ()

    def text(self, c: Config) -> Config:
        """Return the config of the language part, which vision-language models nest."""
        return c.inner("text_config") if c.has("text_config") else c

    def towers(self, c: Config) -> tuple[Tower, ...]:  # noqa: ARG002 - most families have none
        """Return the towers that read images and sound, as models of their own."""
        return ()

    def vision(self, c: Config) -> tuple[Op, ...]:
        """Return the operators of the towers as the language model stores them, not run for text."""
        return tuple(counted(tower) for tower in self.towers(c))

    def notes(self, c: Config) -> tuple[str, ...]:  # noqa: ARG002 - most families have none
        """Return what a reader of the figures should know about this model."""
        return ()


def grouped(layers: Iterable[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Count equal layers, in order of first appearance."""
    return tuple(Counter(layers).items())


@cache
def known_families() -> dict[str, Family]:
    """Return every family by the `model_type` it reads; each module of this package may define one."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__):
        found |= _families_in(module.name)
    return found


@cache
def family_named(kind: str) -> Family | None:
    """Return the family that reads a kind of model if its module is named as the kind begins, without importing all others.

    >>> type(family_named("deepseek_v3")).__module__.rpartition(".")[2], family_named("no_such_kind")
    ('deepseek', None)
    """
    words = kind.split("_")
    begins = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    names = {module.name for module in pkgutil.iter_modules(families.__path__)}
    for name in dict.fromkeys(one for begin in begins for one in (begin, begin.rstrip("0123456789"))):
        if name in names and kind in (found := _families_in(name)):
            return found[kind]
    return None


@cache
def _families_in(module: str) -> dict[str, Family]:
    """Return the families of one module, by the kinds that they read."""
    found: dict[str, Family] = {}
    for value in vars(import_module(f"{families.__name__}.{module}")).values():
        if isinstance(value, type) and issubclass(value, Family) and value is not Family and value.__module__.endswith(module):
            found |= dict.fromkeys((*value.model_types, *value.architectures), value())
    return found
