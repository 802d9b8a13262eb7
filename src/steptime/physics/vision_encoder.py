r"""The passes of towers: what reads the images and recordings of prompts before the language model reads the prompts.

An engine runs a tower on the chips of the language model, tensor parallel as that is (vLLM `--mm-encoder-tp-mode weights`, its
default; SGLang without `--mm-enable-dp-encoder`), and before the prompt: their times add up. Each attention group reads what
its own prompts hold, and the first stage of a pipeline does it. Where the ways do not divide the heads of a tower, as many
chips as divide both run it, and the others wait. Images of one size go through in one pass, other sizes in passes of their own,
each with the overheads of a step.

A pass that reads a part of a prompt reads that part of its images: of $p$ prompts of $n$ new tokens each, in a model whose
prompts have $N$ with images, it reads those of $f = p n / N$ prompts, in $t(\max(f, 1)) \min(f, 1)$ seconds where $t(f)$ is
the time of their passes. Over the chunks of a prompt that adds up to $t(1)$.

Left out: decoding and scaling the images on the host, the transfer of pixels to the chips, and the activations of a tower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.models.blocks_vision import Tower
from steptime.models.model import Model
from steptime.models.multimodal_inputs import Media
from steptime.number_checks import Number
from steptime.physics.layout import Layout
from steptime.physics.op_work import Work, build_work, busiest
from steptime.physics.time_ledger import Entry


@dataclass(frozen=True, slots=True)
class TowerPass:
    """One pass of a tower: its model and term, how it is laid out, its work, and the `share` of its time that a step takes."""

    model: Model
    term: str
    layout: Layout
    work: Work
    share: Number

    def entries(self, tower_entries: list[Entry]) -> list[Entry]:
        """Return the entries of the pass as those of the step's term."""
        return [
            replace(entry, term=self.term, name=f"{entry.name}, {entry.term}", weight=entry.weight * self.share)
            for entry in tower_entries
        ]


def tower_layout(tower: Tower, layout: Layout) -> Layout:
    """Return how a tower is laid over an attention group: as many tensor parallel ways as divide its heads too."""
    return Layout(tp=np.gcd(np.asarray(layout.tp).astype(np.int64), tower.model.heads) * 1.0)


def sequence_counts(media: Media) -> dict[tuple[Tower, int], int]:
    """Return the sequences that a prompt has for each tower, by their rows."""
    counts: dict[tuple[Tower, int], int] = {}
    for reading in media.readings:
        for count, rows in reading.sequences:
            key = (reading.tower, rows)
            counts[key] = counts.get(key, 0) + count
    return counts


def tower_passes(media: Media | None, inputs: Mapping[str, Any], layout: Layout) -> Iterator[TowerPass]:
    """Yield the passes of towers that go with a step; `inputs` are the arguments of `mixed_step`."""
    if media is None:
        return
    prompts = busiest(inputs["prompts"], layout.dp) * inputs["tokens"] / media.tokens  # whose images are read
    if not np.any(prompts > 0):
        return
    for (tower, rows), count in sequence_counts(media).items():
        pass_layout = tower_layout(tower, layout)
        sizes = dict.fromkeys(("batch", "context", "prefix"), 0.0) | {"query": 1.0, "tokens": float(rows)}
        work = build_work(sizes | {"prompts": np.maximum(prompts, 1.0) * count}, pass_layout)
        yield TowerPass(tower.model, tower.name, pass_layout, work, np.minimum(prompts, 1.0))
