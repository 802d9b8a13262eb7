"""Families of models, how they are found, and the refused architectures.

An architecture is refused if it is not a decoder with a cache.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Final

from steptime.errors import short_repr
from steptime.models import blocks, families
from steptime.models.config import Config
from steptime.models.model import Kinds, Layer, Op

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Tower

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

    A family is a final class in a file of `families`, alone or with relatives. The class defines the parts of layer
    `index`. The stem is an embedding, a final norm and a head unless the family overrides it.
    """

    model_types: ClassVar[tuple[str, ...]]
    # For configs without a model_type.
    architectures: ClassVar[tuple[str, ...]] = ()
    # Kind of a nested config without a model_type; empty: the first of `model_types`.
    default_kind: ClassVar[str] = ""
    # Fields that say whether embedding and head share one matrix; empty: they never do.
    tie_fields: ClassVar[tuple[str, ...]] = ("tie_word_embeddings",)
    # Kinds that share it if no field says so.
    tied_kinds: ClassVar[tuple[str, ...]] = ()
    # Whether the final norm and the head have biases.
    norm_bias: ClassVar[bool] = False
    head_bias: ClassVar[bool] = False

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

    def kind(self, c: Config) -> str:
        """Return the `model_type` of a config.

        Args:
            c: Config of the language model.

        Returns:
            The kind; `default_kind` or the first of `model_types` if the config does not state it.
        """
        return c.text("model_type", default=self.default_kind or self.model_types[0])

    def tied(self, c: Config) -> bool:
        """Return whether the embedding and the head share one matrix.

        Args:
            c: Config of the language model.

        Returns:
            True if the matrix is stored once, by the head.
        """
        return c.flag(*self.tie_fields, default=self.kind(c) in self.tied_kinds)

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
            blocks.head(c, bias=self.head_bias),
        )

    def draft(self, c: Config) -> Kinds:  # noqa: ARG002 - most families have none
        """Return the multi-token-prediction layers.

        Args:
            c: Config of the language model.

        Returns:
            Pairs of layer and count; empty without such layers.
        """
        return ()

    def image_tower(self, c: Config) -> Tower | None:  # noqa: ARG002 - most families have none
        """Return the tower for images of a config with a `vision_config`.

        Args:
            c: Config of the whole model.

        Returns:
            The tower with its own model; None if the family does not describe it.
        """
        return None

    def audio_tower(self, c: Config) -> Tower | None:  # noqa: ARG002 - most families have none
        """Return the tower for sound of a config with an `audio_config`.

        Args:
            c: Config of the whole model.

        Returns:
            The tower with its own model; None if the family does not describe it.
        """
        return None

    def towers(self, c: Config) -> tuple[Tower, ...]:
        """Return the towers for images and sound.

        Args:
            c: Config of the whole model.

        Returns:
            The towers; empty without any.
        """
        builders = {"vision_config": self.image_tower, "audio_config": self.audio_tower}
        towers = (builder(c) for field, builder in builders.items() if c.fields.get(field) is not None)
        return tuple(tower for tower in towers if tower is not None)

    def notes(self, c: Config) -> tuple[str, ...]:  # noqa: ARG002 - most families have none
        """Return remarks that a reader of the figures needs.

        Args:
            c: Config of the language model.

        Returns:
            One text per remark.
        """
        return ()


@cache
def known_families() -> dict[str, Family]:
    """Return every family by each `model_type` that it reads.

    A module of `families` defines families with the same kind of layers.

    Returns:
        The families by kind of model.
    """
    modules = (_families_in(module.name) for module in pkgutil.iter_modules(families.__path__))
    return {kind: family for families_by_kind in modules for kind, family in families_by_kind.items()}


@cache
def family_named(kind: str) -> Family | None:
    """Return the family of a kind of model from the module whose source names it.

    This avoids the import of all other families.

    Args:
        kind: `model_type` or architecture.

    Returns:
        The family; None if no module reads the kind.

    >>> type(family_named("deepseek_v3")).__module__.rpartition(".")[2], family_named("no_such_kind")
    ('mla', None)
    """
    for module in pkgutil.iter_modules(families.__path__):
        source = pkgutil.get_data(families.__name__, f"{module.name}.py") or b""
        if f'"{kind}"'.encode() in source and kind in (families_by_kind := _families_in(module.name)):
            return families_by_kind[kind]
    return None


@cache
def _families_in(module: str) -> dict[str, Family]:
    """Return the families of one module, by the kinds that they read."""
    name = f"{families.__name__}.{module}"
    values = vars(import_module(name)).values()
    classes = [v for v in values if isinstance(v, type) and issubclass(v, Family) and v.__module__ == name]
    return {kind: family for family in (cls() for cls in classes) for kind in (*family.model_types, *family.architectures)}
