"""How a training step is laid over chips, and what is asked of it.

A training layout has other axes than one of serving: `dp` copies of the model (each its own batch), virtual stages, sharding of
states, recomputation and a schedule. `ep` divides `tp * cp * dp`, it does not multiply it: experts are spread over the chips
that hold copies of the rest. Neighbours in tp are neighbours in the machine, then cp, dp, pp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Final

import numpy as np

from steptime.errors import LayoutError
from steptime.number_checks import Number
from steptime.result_base import Tabular, broadcast, in_words, unit

SHARDINGS: Final = ("none", "zero1", "zero2", "zero3")
"""What data-parallel ranks divide: nothing; optimizer states; gradients too; weights too (FSDP)."""
TASKS: Final = ("pretrain", "sft", "lora")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingLayout(Tabular):
    """Ways of each kind of parallelism of a training step; numbers may be arrays, and all broadcast.

    dp: copies of the model. virtual_stages: model chunks that a pipeline stage holds. etp: tensor parallel ways of experts.
    micro_batch: sequences of one copy that are computed at once. sharding_group: ranks over which states are sharded, where
    that is fewer than all copies (hybrid sharding). recompute: "none", "full", "selective", or modules joined by "+".
    layers: of each chunk, in the order in which a micro-batch passes them, as "7,8x14,7"; "" where they are dealt out evenly.
    """

    tp: Number = field(default=1, metadata=unit("", "tensor parallel ways, with sequence parallelism"))
    pp: Number = field(default=1, metadata=unit("", "pipeline stages"))
    virtual_stages: Number = field(default=1, metadata=unit("", "model chunks of a pipeline stage", key="vpp"))
    cp: Number = field(default=1, metadata=unit("", "context parallel ways"))
    ep: Number = field(default=1, metadata=unit("", "expert parallel ways, out of tp x cp x dp"))
    etp: Number = field(default=1, metadata=unit("", "tensor parallel ways of experts"))
    dp: Number = field(default=1, metadata=unit("", "copies of the model"))
    micro_batch: Number = field(default=1, metadata=unit("", "sequences that a copy computes at once"))
    sharding: str = field(default="zero1", metadata=unit("", "states that copies divide: none, zero1, zero2, zero3"))
    sharding_group: Number = field(default=0, metadata=unit("", "copies that divide them; 0: all"))
    recompute: str = field(default="none", metadata=unit("", "what the backward pass computes again"))
    schedule: str = field(default="1f1b", metadata=unit("", "order of work in the pipeline"))
    layers: str = field(default="", metadata=unit("", "layers of each chunk, such as 7,8x14,7; empty: dealt out evenly"))

    @property
    def chips(self) -> Number:
        """Chips in all."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stage(self) -> Number:
        """Chips of one pipeline stage, all copies together."""
        return self.tp * self.cp * self.dp

    @property
    def expert_copies(self) -> Number:
        """Copies of each expert: experts are sharded over these, not over all copies of the model."""
        return self.stage / (self.ep * self.etp)

    def __repr__(self) -> str:
        return f"TrainingLayout({show_training_layout(self)})"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the ways that are not 1, and the chips."""
        return repr(self), {"chips": in_words(self.chips, "{:,g}".format)}

    def columns(self) -> dict[str, Any]:
        """Return a row for each layout."""
        return broadcast({name: getattr(self, name) for name in AXES})


AXES: Final = tuple(f.name for f in fields(TrainingLayout))
DEGREES: Final = ("tp", "pp", "virtual_stages", "cp", "ep", "etp", "dp", "micro_batch")
SHORT_NAMES: Final = {"virtual_stages": "vpp", "micro_batch": "mbs"}


def show_training_layout(layout: TrainingLayout) -> str:
    """Return a layout as text.

    >>> show_training_layout(TrainingLayout(tp=8, pp=16, virtual_stages=4, dp=16, schedule="interleaved"))
    'tp8 pp16 vpp4 dp16 mbs1 zero1, interleaved, recompute none'
    """
    parts = []
    for name in DEGREES:
        value = getattr(layout, name)
        if np.ndim(value):
            parts.append(f"{SHORT_NAMES.get(name, name)}={in_words(value, '{:g}'.format)}")
        elif value > 1 or name == "micro_batch":
            parts.append(f"{SHORT_NAMES.get(name, name)}{value:g}")
    group = "" if np.ndim(layout.sharding_group) or not layout.sharding_group else f" over {layout.sharding_group:g}"
    order = f", {layout.schedule}" if np.any(np.asarray(layout.pp) > 1) else ""
    layer_text = f", layers {layout.layers}" if layout.layers else ""
    return f"{' '.join(parts)} {layout.sharding}{group}{order}, recompute {layout.recompute}{layer_text}"


def read_layers(text: str) -> tuple[int, ...]:
    """Return the layers of each chunk from their text; raise LayoutError for one that cannot be read.

    >>> read_layers("7,8x3,7")
    (7, 8, 8, 8, 7)
    """
    counts: list[int] = []
    for part in text.split(","):
        count, repeats = (*part.replace("*", "x").split("x"), "1")[:2]
        if part.count("x") + part.count("*") > 1 or not (
            _is_small_number(count) and _is_small_number(repeats) and int(repeats)
        ):
            raise LayoutError(f"layers={text!r}: {part!r} is no number of layers; give them by chunk, such as 7,8x14,7")
        counts += [int(count)] * int(repeats)
    return tuple(counts)


def _is_small_number(text: str) -> bool:
    return text.strip().isdecimal() and len(text.strip()) <= 4


def show_layers(counts: Sequence[int]) -> str:
    """Return the layers of each chunk as text.

    >>> show_layers([7, 8, 8, 8, 7])
    '7,8x3,7'
    """
    runs = [(count, len(list(run))) for count, run in groupby(counts)]
    return ",".join(f"{count}" if repeats == 1 else f"{count}x{repeats}" for count, repeats in runs)
