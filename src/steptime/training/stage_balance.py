"""Layers of each pipeline stage, and embedding and head.

Layers that are a multiple of the chunks are divided evenly. If only layers plus embedding and head are a multiple, the
first and the last chunk have one layer less (Llama 3 405B: 126 + 2 = 8 x 16). In other cases the fullest chunk has one more
than others. A layout may give the layers of each chunk itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_layout import TrainingLayout, read_layers

# The embedding and the head count as one layer each.
STEM_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers of each kind on a pipeline device, and its share of embedding and head.

    A share of 1 is the whole embedding or head. later: number of devices before it. With two copies of the model, one in
    each direction, all values are the mean of both.
    """

    parts: tuple[Number, ...]
    embedding: Number
    head: Number
    later: Number

    @property
    def layers(self) -> Number:
        """Layers of all kinds."""
        return sum(self.parts, 0.0)


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Layers of the first stage, of the fullest middle stage, and of the last stage."""

    first: Number
    middle: Number
    last: Number


def deal_layers(depth: int, x: TrainingLayout) -> LayerCounts:
    """Return the numbers of layers on the stages of a layout.

    Args:
        depth: Layers of the model.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Layers of the first, the fullest middle and the last stage.

    >>> d = deal_layers(126, TrainingLayout(pp=16, virtual_stages=8, tp=8))
    >>> float(d.first), float(d.middle), float(d.last)
    (7.0, 8.0, 7.0)
    >>> d = deal_layers(80, TrainingLayout(pp=8, virtual_stages=5)); float(d.first), float(d.last)
    (10.0, 10.0)
    """
    # Three cases: even, even with embedding and head as layers, or uneven.
    chunks = np.asarray(x.pp * x.virtual_stages)
    is_even = depth % chunks == 0
    is_slotted = ~is_even & ((depth + STEM_LAYERS) % chunks == 0) & (chunks > 1)
    layers_per_chunk = np.where(is_slotted, (depth + STEM_LAYERS) / chunks, np.ceil(depth / chunks))
    middle = np.where(is_even | is_slotted, layers_per_chunk * x.virtual_stages, np.ceil(depth / np.asarray(x.pp)))
    ends = middle - is_slotted
    # The last stage of an uneven division has the remaining layers.
    remaining_layers = depth - middle * (np.asarray(x.pp) - 1)
    is_uneven = ~is_even & ~is_slotted
    last = np.where(is_uneven, np.maximum(np.minimum(remaining_layers, middle), np.floor(depth / np.asarray(x.pp))), ends)
    return LayerCounts(np.where(np.asarray(x.pp) == 1, depth, ends), np.where(np.asarray(x.pp) == 1, depth, middle),
                 np.where(np.asarray(x.pp) == 1, depth, last))  # fmt: skip


def max_chunks(model: Model) -> int:
    """Return the largest number of chunks of a model.

    Each chunk has at least one layer, or the embedding or the head.

    Args:
        model: Model to train.

    Returns:
        Chunks.
    """
    return model.depth + STEM_LAYERS


def has_dense_prologue(counts: list[int]) -> bool:
    """Return whether the first kind of layer is only at the beginning of a model.

    Dense layers before experts are an example: one in eight layers or fewer.

    Args:
        counts: Layers of each kind, in the order of the model.

    Returns:
        True if the first kind is a prologue.

    >>> has_dense_prologue([3, 58]), has_dense_prologue([21, 21]), has_dense_prologue([32])
    (True, False, False)
    """
    return len(counts) > 1 and counts[0] * 8 <= sum(counts)


def stage_layers_by_kind(model: Model, layers: Number, *, first: bool) -> list[Any]:
    """Return the number of layers of each kind on a stage.

    Kinds that alternate are mixed evenly.

    Args:
        model: Model to train.
        layers: Layers of the stage.
        first: Whether it is the first stage.

    Returns:
        Layers per kind.
    """
    counts = [n for _, n in model.layers]
    depth = sum(counts)
    if not has_dense_prologue(counts):
        return [layers * (n / depth) for n in counts]
    other_layers = depth - counts[0]
    prologue_layers = np.minimum(layers, counts[0]) if first else np.where(np.asarray(layers) >= depth, counts[0], 0.0)
    return [prologue_layers, *((layers - prologue_layers) * (n / other_layers) for n in counts[1:])]


def layers_by_kind(model: Model, start: int, stop: int) -> list[float]:
    """Return the number of layers of each kind in a range of layers.

    Kinds that alternate are mixed evenly.

    Args:
        model: Model to train.
        start: First layer of the range.
        stop: Layer after the range.

    Returns:
        Layers per kind.
    """
    counts = [n for _, n in model.layers]
    if not has_dense_prologue(counts):
        return [(stop - start) * n / model.depth for n in counts]
    prologue_layers = max(min(stop, counts[0]) - start, 0)
    return [float(prologue_layers), *((stop - start - prologue_layers) * n / (model.depth - counts[0]) for n in counts[1:])]


def pipeline_stages(model: Model, x: TrainingLayout) -> tuple[Stage, ...]:
    """Return the stages of a layout that may be the slowest or the fullest, in order.

    These are all stages if the layout gives its layers; else the first, the fullest middle and the last stage.

    Args:
        model: Model to train.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Stages.
    """
    copies = schedule_named(x.schedule).copies
    if x.layers:
        return _stages_from_layers(model, x, read_layers(x.layers))
    layer_counts, has_no_pipeline = deal_layers(model.depth, x), np.asarray(x.pp) == 1
    first, middle, last = (
        tuple(stage_layers_by_kind(model, layers, first=place == 0))
        for place, layers in enumerate((layer_counts.first, layer_counts.middle, layer_counts.last))
    )
    if copies == 1:
        return Stage(first, 1.0, 1.0 * has_no_pipeline, 0.0), Stage(middle, 0.0, 0.0, 1.0), Stage(last, 0.0, 1.0, x.pp - 1.0)

    # Two copies of the model, one in each direction: a device has the mean of a stage and its mirror.
    mean_parts = tuple(np.where(has_no_pipeline, a, (a + b) / 2) for a, b in zip(first, last, strict=True))
    stem_share = np.where(has_no_pipeline, 1.0, 0.5)
    return Stage(mean_parts, stem_share, stem_share, 0.0), Stage(middle, 0.0, 0.0, 1.0)


def _stages_from_layers(model: Model, x: TrainingLayout, counts: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return all stages of a layout that gives the layers of each chunk.

    The chunks are on devices as in the paths of the schedule.
    """
    pp, chunks = int(np.max(x.pp)), len(counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    kinds = np.array([layers_by_kind(model, int(a), int(b)) for a, b in pairwise(starts)])
    paths = schedule_named(x.schedule).paths(pp, int(np.max(x.virtual_stages))) if pp > 1 else np.zeros((1, chunks, 2), int)
    stage_rows = np.zeros((pp, kinds.shape[1] + 2))
    for path in paths:
        np.add.at(stage_rows[:, :-2], path[:, 0], kinds / len(paths))
        stage_rows[path[0, 0], -2] += 1 / len(paths)
        stage_rows[path[-1, 0], -1] += 1 / len(paths)
    return tuple(
        Stage(tuple(map(float, row[:-2])), float(row[-2]), float(row[-1]), float(n)) for n, row in enumerate(stage_rows)
    )


def layers_of_chunks(depth: int, stages: Sequence[int]) -> list[int]:
    """Return the layers of each chunk, in the order of a micro-batch.

    Chunks differ by at most one layer. Chunks with one more are on middle devices first, then on the first device, and last
    on the device with the head.

    Args:
        depth: Layers of the model.
        stages: Device of each chunk.

    Returns:
        Layers per chunk.

    >>> layers_of_chunks(61, range(4))
    [15, 16, 15, 15]
    """
    base, extra = divmod(depth, len(stages))
    counts, extra_by_stage = [base] * len(stages), dict.fromkeys(stages, 0)
    for _ in range(extra):
        candidates = [n for n, count in enumerate(counts) if count == base]
        chunk = min(candidates, key=lambda n: (extra_by_stage[stages[n]], stages[n] == stages[-1], stages[n] == stages[0], n))
        counts[chunk] += 1
        extra_by_stage[stages[chunk]] += 1
    return counts
