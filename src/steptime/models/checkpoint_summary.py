"""What the files of a checkpoint hold, by their headers."""

from __future__ import annotations

from dataclasses import dataclass, field

from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """What the files hold of one part of a model."""

    name: str = field(metadata=unit("", "part of the model"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    parameters: int = field(metadata=unit("", "parameters, unpacked"))
    bytes: int = field(metadata=unit("B", "bytes of its tensors", key="bytes"))
    scales: int = field(metadata=unit("B", "bytes of scales and zero points among them", key="scale_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDtype:
    """What the files hold in one dtype."""

    name: str = field(metadata=unit("", "dtype as the header names it"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    bytes: int = field(metadata=unit("B", "bytes of its tensors", key="bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Tensors that the model does not count, or operators that the files do not hold."""

    name: str = field(metadata=unit("", "tensors or operators, N for the number of a layer"))
    group: str = field(metadata=unit("", "part of the model"))
    count: int = field(metadata=unit("", "how many"))
    bytes: int = field(metadata=unit("B", "bytes on disk less those of the model", key="bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """What the files of a checkpoint hold: exact bytes by the headers, and why the model's differ from them, if they do."""

    kind: str = field(metadata=unit("", "safetensors or gguf"))
    files: int = field(metadata=unit("", "files that are there"))
    missing: tuple[str, ...] = field(default=(), metadata=unit("", "files that belong to it and are not there"))
    stated: int = field(default=0, metadata=unit("B", "all tensors as the index states it; 0: it does not", key="stated_bytes"))
    bytes: int = field(metadata=unit("B", "all tensors of the files that are there", key="bytes"))
    tensors: int = field(metadata=unit("", "number of tensors"))
    parameters: int = field(metadata=unit("", "parameters that they hold, unpacked"))
    scales: int = field(metadata=unit("B", "bytes of scales and zero points", key="scale_bytes"))
    groups: tuple[HeldGroup, ...] = field(default=(), metadata=unit("", "bytes by part of the model"))
    dtypes: tuple[HeldDtype, ...] = field(default=(), metadata=unit("", "bytes by dtype"))
    differences: tuple[Difference, ...] = field(
        default=(), metadata=unit("", "why the bytes on disk are not those of the model; empty: they are")
    )
