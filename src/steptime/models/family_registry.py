"""Architectures that steptime does not read, and why: what they compute is no pass of a decoder with a cache.

What a family of models is, and how families are found.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import ClassVar, Final

from steptime.errors import short_repr
from steptime.models import blocks, families
from steptime.models.blocks_vision import Tower, counted
from steptime.models.config import Config
from steptime.models.model import Layer, Op

ENCODER: Final = "is an encoder: it reads a text at once and keeps no cache, and steptime reads decoders"
BOTH: Final = "is an encoder-decoder: its decoder reads a second sequence through cross-attention, and steptime reads decoders"
SEQUENCE: Final = (
    "is a model of sound with a decoder that reads it through cross-attention, and steptime reads decoders of text"
)

REFUSED: Final[dict[str, str]] = (
    dict.fromkeys(
        (
            "albert", "bert", "bert-generation", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2",
            "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert", "funnel", "ibert", "layoutlm",
            "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "neobert", "nomic_bert",
            "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert", "xlm",
            "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod", "yoso",
        ),
        ENCODER,
    )
    | dict.fromkeys(
        (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "longt5", "m2m_100", "marian", "mbart",
            "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet", "switch_transformers", "t5", "t5gemma",
            "t5gemma2", "trocr", "udop", "umt5",
        ),
        BOTH,
    )
    | dict.fromkeys(("moonshine", "musicgen", "musicgen_melody", "seamless_m4t", "speecht5", "whisper"), SEQUENCE)
)  # fmt: skip
"""By `model_type`."""


def refuse(c: Config) -> None:
    """Raise ConfigError for an architecture that is known to be no decoder."""
    kind = c.fields.get("model_type")
    is_refused = isinstance(kind, str) and kind in REFUSED
    if is_refused or c.fields.get("is_encoder_decoder") is True:
        raise c.error("model_type", f"{short_repr(kind)} {REFUSED[str(kind)] if is_refused else BOTH}")


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

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers in the order of the model."""
        return (self.layer(c.for_layer(index), index) for index in range(self.depth(c)))

    def layers(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the kinds of layers with their counts, in order of first appearance."""
        return grouped(self.iter_layers(c))

    def tied(self, c: Config) -> bool:
        """Whether embedding and head share their matrix; families differ in what a silent config means."""
        return c.flag("tie_word_embeddings", default=False)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return what stands before and after the layers."""
        return (
            blocks.embedding(c, tied=self.tied(c)),
            blocks.norm(c, "final_norm", c.width, bias=self.norm_bias),
            blocks.head(c),
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
    families_by_kind: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__):
        families_by_kind |= _families_in(module.name)
    return families_by_kind


@cache
def family_named(kind: str) -> Family | None:
    """Return the family that reads a kind of model if its module is named as the kind begins, without importing all others.

    >>> type(family_named("deepseek_v3")).__module__.rpartition(".")[2], family_named("no_such_kind")
    ('deepseek', None)
    """
    words = kind.split("_")
    prefixes = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    names = {module.name for module in pkgutil.iter_modules(families.__path__)}
    for name in dict.fromkeys(stem for begin in prefixes for stem in (begin, begin.rstrip("0123456789"))):
        if name in names and kind in (families_by_kind := _families_in(name)):
            return families_by_kind[kind]
    return None


@cache
def _families_in(module: str) -> dict[str, Family]:
    """Return the families of one module, by the kinds that they read."""
    families_by_kind: dict[str, Family] = {}
    for value in vars(import_module(f"{families.__name__}.{module}")).values():
        if isinstance(value, type) and issubclass(value, Family) and value is not Family and value.__module__.endswith(module):
            families_by_kind |= dict.fromkeys((*value.model_types, *value.architectures), value())
    return families_by_kind
