"""Joins a config with the headers of its checkpoint: bytes, formats, differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from steptime.models.checkpoint_weights import DRAFT, VISION, Weight, assemble_weights
from steptime.models.dtype_assignment import (
    CheckpointSummary,
    Counted,
    Difference,
    Fit,
    HeldDtype,
    HeldGroup,
    differences,
    fitted_draft,
    fitted_layers,
    fitted_ops,
)
from steptime.models.model import Layer, Op
from steptime.models.safetensors_header import Headers, Tensor
from steptime.units import counted, show

# Names of files or layers in a note.
NAMES_PER_NOTE = 4
# Names of the embedding in checkpoints.
TABLES = ("embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embedding", "embeddings", "embed_in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A model's layers in the formats of its checkpoint, with a summary and notes."""

    layers: Counted
    stem: tuple[Op, ...]
    draft: Counted
    summary: CheckpointSummary
    notes: tuple[str, ...]


def fitted(
    layers: Iterable[Layer],
    stem: tuple[Op, ...],
    draft: Counted,
    headers: Headers,
    *,
    vocabulary: int,
    bits: int = 4,
    rename: Callable[[str], str] = str,
) -> Fitted:
    """Return the layers of a model in the formats of its checkpoint.

    If files of the checkpoint are missing, the formats of the config stay.

    Args:
        layers: The layers in order.
        stem: Operators before and after the layers.
        draft: Multi-token-prediction layers with their counts.
        headers: Headers of the checkpoint.
        vocabulary: Rows of the embedding.
        bits: Bits of an integer if several share a word and only the config gives them.
        rename: Maps a module name of the checkpoint to its name here.

    Returns:
        Layers, stem and draft layers, with a summary of the files and notes.
    """
    plain_layers = tuple(layers)
    weights = assemble_weights(headers.tensors, depth=len(plain_layers), bits=bits, rename=rename)
    summary = _summary(headers, weights)
    if headers.missing:
        from steptime.models.family_registry import grouped

        return Fitted(
            layers=grouped(plain_layers), stem=stem, draft=draft, summary=summary, notes=(_missing_files_note(headers),)
        )

    fit = Fit()
    weights, dtype_differences = _weights_in_bf16(weights, headers)

    # Towers have numbered layers too, but they belong to the stem.
    layer_weights = [w for w in weights if w.layer >= 0 and w.group not in (DRAFT, VISION)]
    other_weights = [w for w in weights if w.group == VISION or (w.layer < 0 and w.group != DRAFT)]
    fitted_kinds = fitted_layers(plain_layers, layer_weights, fit)
    fitted_stem = fitted_ops(stem, other_weights, fit)
    fitted_draft_layers = fitted_draft(draft, [w for w in weights if w.group == DRAFT], fit)
    mismatches = tuple(sorted((*differences(fit), *dtype_differences), key=lambda mismatch: -abs(mismatch.bytes)))
    notes = (
        *_missing_layers_note(layer_weights, len(plain_layers)),
        *_extra_layers_note(fit, len(plain_layers)),
        *_vocabulary_note(headers, vocabulary, rename),
        *_unmatched_ops_note(fit),
    )
    notes = (*notes, *_index_size_note(headers))

    return Fitted(
        layers=fitted_kinds,
        stem=fitted_stem,
        draft=fitted_draft_layers,
        summary=replace(summary, differences=mismatches),
        notes=notes,
    )


def _summary(headers: Headers, weights: Iterable[Weight]) -> CheckpointSummary:
    """Return the content of the files by part and by dtype, the largest first."""
    groups: dict[str, list[int]] = {}
    for weight in weights:
        counts = groups.setdefault(weight.group, [0, 0, 0, 0])
        for i, value in enumerate((len(weight.names), weight.parameters, weight.bytes, weight.scale_bytes)):
            counts[i] += value

    dtypes: dict[str, list[int]] = {}
    for tensor in headers.tensors:
        count_and_bytes = dtypes.setdefault(tensor.dtype, [0, 0])
        count_and_bytes[0] += 1
        count_and_bytes[1] += tensor.bytes

    parts = [HeldGroup(name=k, tensors=n, parameters=p, bytes=b, scales=s) for k, (n, p, b, s) in groups.items()]
    kinds = [HeldDtype(name=name, tensors=n, bytes=size) for name, (n, size) in dtypes.items()]

    return CheckpointSummary(
        kind=headers.kind,
        files=headers.files,
        missing=headers.missing,
        stated=headers.total,
        bytes=headers.bytes,
        tensors=len(headers.tensors),
        parameters=sum(part.parameters for part in parts),
        scales=sum(part.scales for part in parts),
        groups=tuple(sorted(parts, key=lambda part: -part.bytes)),
        dtypes=tuple(sorted(kinds, key=lambda kind: -kind.bytes)),
    )


def _missing_files_note(headers: Headers) -> str:
    lacking = counted(len(headers.missing), "file")
    total_text = f" of {show(headers.total, 'B')} in total" if headers.total else ""
    return (
        f"the checkpoint is incomplete: {lacking} of {headers.files + len(headers.missing)} "
        f"{'is' if len(headers.missing) == 1 else 'are'} missing ({_first_names(headers.missing)}); "
        f"{show(headers.bytes, 'B')} of tensors are present{total_text}. Weights are computed from the config"
    )


def _first_names(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    return ", ".join(texts[:NAMES_PER_NOTE]) + (
        f" and {len(texts) - NAMES_PER_NOTE} more" if len(texts) > NAMES_PER_NOTE else ""
    )


def _weights_in_bf16(weights: list[Weight], headers: Headers) -> tuple[list[Weight], tuple[Difference, ...]]:
    """Return the weights of an FP32 checkpoint in BF16, as engines serve them.

    The second result is the difference in bytes.
    """
    fp32_weights = [weight for weight in weights if weight.format == "fp32"]
    # GGUF runs as stored; a few FP32 values in a BF16 checkpoint stay FP32.
    if headers.kind == "gguf" or 2 * sum(w.parameters for w in fp32_weights) <= sum(w.parameters for w in weights):
        return weights, ()
    bf16_weights = [replace(w, format="bf16", bytes=w.bytes // 2) if w.format == "fp32" else w for w in weights]
    saved_bytes = sum(weight.bytes - weight.bytes // 2 for weight in fp32_weights)
    label = "values in fp32 that engines serve in bf16"
    return bf16_weights, (Difference(name=label, group="all", count=len(fp32_weights), bytes=saved_bytes),)


def _missing_layers_note(weights: Iterable[Weight], depth: int) -> tuple[str, ...]:
    """Return a note about layers of the config that the files lack."""
    stored_layers = {weight.layer for weight in weights}
    missing_layers = [number for number in range(depth) if number not in stored_layers]
    if not missing_layers:
        return ()
    return (f"the config has {depth} layers, but the files lack {len(missing_layers)} of them: {_first_names(missing_layers)}",)


def _extra_layers_note(fit: Fit, depth: int) -> tuple[str, ...]:
    """Return a note about layers of the files that the model lacks."""
    extra_layers = sorted({weight.layer for weight in fit.over if weight.layer >= depth and weight.part == "norms"})
    if not extra_layers:
        return ()
    return (f"the config has {depth} layers, but the files have {len(extra_layers)} more: {_first_names(extra_layers)}",)


def _index_size_note(headers: Headers) -> tuple[str, ...]:
    """Return a note if the index states other bytes than the files have."""
    if headers.total in (0, headers.bytes):
        return ()
    return (f"the index states {headers.total:,} B of tensors, but the files have {headers.bytes:,} B",)


def _vocabulary_note(headers: Headers, vocabulary: int, rename: Callable[[str], str]) -> tuple[str, ...]:
    """Return a note if the embedding has another number of rows than the config."""
    for tensor in headers.tensors:
        module = rename(tensor.name.removesuffix(".weight")).rpartition(".")[2]
        if module in TABLES and len(tensor.shape) == 2 and not _of_vision(tensor) and tensor.shape[0] != vocabulary:
            return (
                f"the config has a vocabulary of {vocabulary:,}, but the embedding of the files has {tensor.shape[0]:,} rows",
            )
    return ()


def _of_vision(tensor: Tensor) -> bool:
    return any(word in tensor.name for word in ("vision", "visual", "audio"))


def _unmatched_ops_note(fit: Fit) -> tuple[str, ...]:
    """Return a note about operators without tensors, whose formats are guesses."""
    if not fit.short:
        return ()
    names = dict.fromkeys(op.name for _, op in fit.short)
    return (f"no tensors of the files have the parameters of the config for: {_first_names(names)}",)
