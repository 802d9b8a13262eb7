"""The content of a checkpoint's files, from their headers."""

from __future__ import annotations

from dataclasses import dataclass, field

from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """The tensors of one part of a model."""

    name: str = field(metadata=unit("", "part of the model"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    parameters: int = field(metadata=unit("", "parameters, unpacked"))
    bytes: int = field(metadata=unit("B", "bytes of its tensors", key="bytes"))
    scales: int = field(metadata=unit("B", "bytes of scales and zero points, included in bytes", key="scale_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDtype:
    """The tensors of one dtype."""

    name: str = field(metadata=unit("", "dtype as the header names it"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    bytes: int = field(metadata=unit("B", "bytes of its tensors", key="bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Tensors that the model does not count, or operators that the files do not have."""

    name: str = field(metadata=unit("", "tensors or operators, with N for the layer number"))
    group: str = field(metadata=unit("", "part of the model"))
    count: int = field(metadata=unit("", "number of tensors or operators"))
    bytes: int = field(metadata=unit("B", "bytes on disk minus bytes in the model", key="bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """The exact content of a checkpoint's files, and its differences from the model."""

    kind: str = field(metadata=unit("", "safetensors or gguf"))
    files: int = field(metadata=unit("", "files present"))
    missing: tuple[str, ...] = field(default=(), metadata=unit("", "missing files"))
    stated: int = field(default=0, metadata=unit("B", "size of all tensors in the index; 0: not given", key="stated_bytes"))
    bytes: int = field(metadata=unit("B", "size of all tensors in the files present", key="bytes"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    parameters: int = field(metadata=unit("", "parameters, unpacked"))
    scales: int = field(metadata=unit("B", "bytes of scales and zero points", key="scale_bytes"))
    groups: tuple[HeldGroup, ...] = field(default=(), metadata=unit("", "bytes by part of the model"))
    dtypes: tuple[HeldDtype, ...] = field(default=(), metadata=unit("", "bytes by dtype"))
    differences: tuple[Difference, ...] = field(
        default=(), metadata=unit("", "differences between the files and the model; empty: none")
    )
