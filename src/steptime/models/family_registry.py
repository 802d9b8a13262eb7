"""Families of models, how they are found, and the refused architectures.

An architecture is refused if it is not a decoder with a cache.
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
from steptime.models.blocks_vision import Tower, tower_op
from steptime.models.config import Config
from steptime.models.model import Layer, Op

ENCODER: Final = "is an encoder without a KV cache; steptime supports decoders only"
BOTH: Final = "is an encoder-decoder with cross-attention to a second sequence; steptime supports decoders only"
SEQUENCE: Final = "is an audio model whose decoder has cross-attention to the sound; steptime supports decoders of text only"

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
"""Reasons for the refusal, by `model_type`."""


def refuse(c: Config) -> None:
    """Raise ConfigError for an architecture that is known not to be a decoder.

    Args:
        c: The config.

    Raises:
        ConfigError: The config is of an encoder or an encoder-decoder.
    """
    kind = c.fields.get("model_type")
    is_refused = isinstance(kind, str) and kind in REFUSED
    if is_refused or c.fields.get("is_encoder_decoder") is True:
        raise c.error("model_type", f"{short_repr(kind)} {REFUSED[str(kind)] if is_refused else BOTH}")


class Family(ABC):
    """Models with the same plan of layers, selected by `model_type`.

    A family is one file of `families` with one final class. The class defines the parts of layer `index`. The stem is an
    embedding, a final norm and a head unless the family overrides it.
    """

    model_types: ClassVar[tuple[str, ...]]
    # For configs without a model_type.
    architectures: ClassVar[tuple[str, ...]] = ()
    norm_bias: ClassVar[bool] = False

    @abstractmethod
    def layer(self, c: Config, index: int) -> Layer:
        """Return layer `index` of the model.

        Args:
            c: Config of the language model.
            index: Layer number, from 0.

        Returns:
            The layer with its operators and token mixers.
        """

    def depth(self, c: Config) -> int:
        """Return the number of layers.

        Args:
            c: Config of the language model.

        Returns:
            Layers that a token passes.
        """
        return c.depth

    def heads(self, c: Config) -> int:
        """Return the number of query heads, or of state heads without attention.

        Args:
            c: Config of the language model.

        Returns:
            Number of heads.
        """
        return c.heads

    def iter_layers(self, c: Config) -> Iterator[Layer]:
        """Yield the layers in the order of the model.

        Args:
            c: Config of the language model.

        Returns:
            Iterator over the layers.
        """
        return (self.layer(c.for_layer(index), index) for index in range(self.depth(c)))

    def layers(self, c: Config) -> tuple[tuple[Layer, int], ...]:
        """Return the kinds of layers with their counts.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count, in order of first appearance.
        """
        return grouped(self.iter_layers(c))

    def tied(self, c: Config) -> bool:
        """Return whether the embedding and the head share one matrix.

        The default for a config without `tie_word_embeddings` depends on the family.

        Args:
            c: Config of the language model.

        Returns:
            True if the matrix is stored once, by the head.
        """
        return c.flag("tie_word_embeddings", default=False)

    def stem(self, c: Config) -> tuple[Op, ...]:
        """Return the operators before and after the layers.

        Args:
            c: Config of the language model.

        Returns:
            Embedding, final norm and head.
        """
        return (
            blocks.embedding(c, tied=self.tied(c)),
            blocks.norm(c, "final_norm", c.width, bias=self.norm_bias),
            blocks.head(c),
        )

    def draft(self, c: Config) -> tuple[tuple[Layer, int], ...]:  # noqa: ARG002 - most families have none
        """Return the multi-token-prediction layers.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        return ()

    def text(self, c: Config) -> Config:
        """Return the config of the language part, which vision-language models nest.

        Args:
            c: Config of the whole model.

        Returns:
            Config of the language model.
        """
        return c.inner("text_config") if c.has("text_config") else c

    def towers(self, c: Config) -> tuple[Tower, ...]:  # noqa: ARG002 - most families have none
        """Return the towers for images and sound, each with its own model.

        Args:
            c: Config of the whole model.

        Returns:
            The towers; empty without any.
        """
        return ()

    def vision(self, c: Config) -> tuple[Op, ...]:
        """Return the parameters of the towers as operators that do not run for text.

        Args:
            c: Config of the whole model.

        Returns:
            One operator per tower.
        """
        return tuple(tower_op(tower) for tower in self.towers(c))

    def notes(self, c: Config) -> tuple[str, ...]:  # noqa: ARG002 - most families have none
        """Return remarks that a reader of the figures needs.

        Args:
            c: Config of the language model.

        Returns:
            One text per remark.
        """
        return ()


def grouped(layers: Iterable[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Count equal layers, in order of first appearance.

    Args:
        layers: The layers of a model.

    Returns:
        Pairs of layer and count.
    """
    return tuple(Counter(layers).items())


@cache
def known_families() -> dict[str, Family]:
    """Return every family by each `model_type` that it reads.

    Each module of `families` may define one family.

    Returns:
        The families by kind of model.
    """
    families_by_kind: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__):
        families_by_kind |= _families_in(module.name)
    return families_by_kind


@cache
def family_named(kind: str) -> Family | None:
    """Return the family of a kind of model from the module that its name suggests.

    This avoids the import of all other families. The name of the module must be the start of the kind.

    Args:
        kind: `model_type` or architecture.

    Returns:
        The family; None if no module with such a name reads the kind.

    >>> type(family_named("deepseek_v3")).__module__.rpartition(".")[2], family_named("no_such_kind")
    ('deepseek', None)
    """
    words = kind.split("_")
    # Try the longest prefix first, with and without a version number at its end.
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
