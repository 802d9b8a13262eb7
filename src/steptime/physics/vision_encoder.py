r"""Vision encoder: the passes of towers over images and recordings before prefill.

An engine runs a tower on the chips of the language model, with the same tensor parallelism (vLLM `--mm-encoder-tp-mode
weights`, its default; SGLang without `--mm-enable-dp-encoder`). It runs before prefill: the times add up. Each
data-parallel rank processes the images of its prompts, on the first pipeline stage. Sometimes the tensor-parallel degree
does not divide the heads of a tower. Then the tower runs on the largest number of chips that divides both, and the other
chips wait. Images of one size share a pass; each other size has a separate pass, with the overheads of a step.

A pass over a part of a prompt processes that part of its images. Take $p$ prompts of $n$ new tokens each, in a model whose
prompts have $N$ tokens with images. The pass processes the images of $f = p n / N$ prompts. Let $t(f)$ be the time of their
passes; then it takes $t(\max(f, 1)) \min(f, 1)$ seconds. Over the prefill chunks of a prompt this adds up to $t(1)$.

Not included: decoding and scaling of images on the host, the transfer of pixels to the chips, and the
activations of a tower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steptime.models.model import Model
from steptime.number_checks import Number
from steptime.physics.layout import Layout
from steptime.physics.op_work import Work, build_work, busiest
from steptime.physics.time_ledger import Entry

if TYPE_CHECKING:
    from steptime.models.blocks_vision import Media, Tower


@dataclass(frozen=True, slots=True)
class TowerPass:
    """One pass of a tower: model, term, layout, work, and its `share` in a step."""

    model: Model
    term: str
    layout: Layout
    work: Work
    share: Number

    def entries(self, tower_entries: list[Entry]) -> list[Entry]:
        """Return the entries of the pass as entries of the step's term.

        Args:
            tower_entries: Entries of the tower's step.

        Returns:
            The changed entries.
        """
        return [
            replace(entry, term=self.term, name=f"{entry.name}, {entry.term}", weight=entry.weight * self.share)
            for entry in tower_entries
        ]


def tower_layout(tower: Tower, layout: Layout) -> Layout:
    """Return the layout of a tower on one data-parallel rank.

    Args:
        tower: The tower.
        layout: Layout of the language model.

    Returns:
        Tensor parallelism by the largest degree that also divides the tower's heads.
    """
    return Layout(tp=np.gcd(np.asarray(layout.tp).astype(np.int64), tower.model.heads) * 1.0)


def sequence_counts(media: Media) -> dict[tuple[Tower, int], int]:
    """Return the number of sequences of a prompt for each tower and size.

    Args:
        media: Images and recordings of a prompt.

    Returns:
        Numbers by tower and rows per sequence.
    """
    counts: dict[tuple[Tower, int], int] = {}
    for reading in media.readings:
        for count, rows in reading.sequences:
            key = (reading.tower, rows)
            counts[key] = counts.get(key, 0) + count
    return counts


def tower_passes(media: Media, inputs: Mapping[str, Any], layout: Layout) -> Iterator[TowerPass]:
    """Yield the passes of towers in a step.

    Args:
        media: Images and recordings of a prompt.
        inputs: Sizes of `mixed_step` by name.
        layout: Layout of the language model.

    Yields:
        One pass per tower and size.
    """
    # Prompts whose images this step processes, which may be a fraction of one.
    prompts = busiest(inputs["prompts"], layout.dp) * inputs["tokens"] / media.tokens
    if not np.any(prompts > 0):
        return
    for (tower, rows), count in sequence_counts(media).items():
        pass_layout = tower_layout(tower, layout)
        sizes = dict.fromkeys(("batch", "context", "prefix"), 0.0) | {"query": 1.0, "tokens": float(rows)}
        work = build_work(sizes | {"prompts": np.maximum(prompts, 1.0) * count}, pass_layout)
        yield TowerPass(tower.model, tower.name, pass_layout, work, np.minimum(prompts, 1.0))
