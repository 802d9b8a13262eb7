"""A training step: its work (sequences, formats, optimizer, trained parameters) and its layout over chips.

A training layout has other axes than a serving layout: `dp` replicas of the model (each with its own batch), virtual
stages, sharding of states, recomputation and a schedule. `ep` divides `tp * cp * dp` and does not multiply it: experts are
spread over the chips of the replicas. Neighbours in tp are neighbours in the machine, then cp, dp, pp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Final

import numpy as np

from steptime.errors import InputError, LayoutError, UnknownName
from steptime.hardware.number_formats import Format, number_format
from steptime.hardware.system import MemoryTier, System
from steptime.number_checks import MOST_SEQUENCES, MOST_TOKENS, Number, whole_number
from steptime.result_base import Tabular, broadcast, in_words, unit


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes per parameter of an optimizer: master copy and moments.

    Weights and gradients come in addition.
    """

    name: str
    master: float
    moments: float
    source: str


OPTIMIZERS: Final = {
    o.name: o
    for o in (
        Optimizer("adamw", 4, 8, "fp32 master and two fp32 moments: Megatron-LM, training/theoretical_memory_usage.py"),
        Optimizer("adamw-bf16", 4, 4, "two bf16 moments: DeepSeek-V3, arXiv 2412.19437, section 3.3"),
        Optimizer("adamw-fp8", 2, 2, "fp8 moments, fp16 master: precision-aware optimizer of Megatron-LM"),
        Optimizer("adam-bf16", 0, 4, "bf16 weights, two bf16 moments: torch.optim.Adam of bf16 parameters"),
        Optimizer("muon", 4, 4, "one fp32 moment: Kimi Team, arXiv 2502.16982"),
        Optimizer("adafactor", 4, 0, "row and column sums only: Shazeer and Stern, arXiv 1804.04235"),
        Optimizer("sgd", 4, 4, "momentum"),
    )
}
DTYPES: Final = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8", "fp32")
# Formats with a scale for every 32 or 16 values.
BLOCK_SCALED: Final = ("mxfp8", "nvfp4")
NO_OFFLOAD, OPTIMIZER, ACTIVATIONS = "none", "optimizer", "activations"
# Parts of the states that a step can have in host memory.
OFFLOADS: Final = (NO_OFFLOAD, OPTIMIZER, ACTIVATIONS, f"{OPTIMIZER}+{ACTIVATIONS}")
FLASH, UNFUSED = "flash", "unfused"
# Format of fused grouped products with their activation and quantization, captured in CUDA graphs of a whole step:
# https://github.com/NVIDIA-NeMo/Megatron-Bridge/releases/tag/v0.5.1
FUSED_DTYPE: Final = "mxfp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Work of a step: `batch` sequences of `seq` tokens over all chips.

    Numbers may be arrays. dtype: format of the products of layers; weights and attention stay in 16 bits. gradient_bytes:
    bytes per gradient, as it is stored and reduced. lora_rank: rank of the adapters, with task "lora"; adapted: groups of
    products that have them. mtp: whether multi-token-prediction layers are trained.

    attention: "flash", or "unfused" where scores go through memory. sequence_parallel: whether tensor-parallel ranks divide
    the activations between blocks. logit_bytes: bytes per logit at one time: 6 with a fused cross-entropy (16-bit logits,
    fp32 gradients), 12 without.

    whole_hops: whether each tensor-parallel rank sends all activations of a micro-batch to the next stage, instead of its
    part. gathered_inputs: whether tensor-parallel ranks save the gathered inputs of blocks, instead of gathering them again.
    grouped_experts: whether one kernel has the products of all experts of a chip.
    narrow_gather: whether data-parallel ranks gather weights of products in 8 bits in this format, instead of in 16 bits.
    expert_imbalance: rows of the busiest expert-parallel rank over the mean; 1 if routing is balanced. fused_experts: whether
    the stack has one kernel for grouped products, activation and quantization in mxfp8. Its step is captured, and overlaps the
    exchange of tokens with another micro-batch. narrow_attention, narrow_head: whether attention and the
    head of such a step are in 8 bits. overlapped_exchange: whether 1F1B overlaps the exchange of tokens with another
    micro-batch, without such a kernel. offload: what is in host memory: "none", "optimizer", "activations", or both joined by
    "+". least_micro_batch: sequences that a searched micro-batch has at least; packed ones have room for the longest sequence.
    """

    seq: Number
    batch: Number
    dtype: str = "bf16"
    task: str = "pretrain"
    optimizer: str = "adamw"
    gradient_bytes: float = 4.0
    lora_rank: int = 16
    adapted: tuple[str, ...] = ("qkv", "output", "mlp")
    mtp: bool = False
    attention: str = FLASH
    sequence_parallel: bool = True
    logit_bytes: float = 6.0
    whole_hops: bool = False
    gathered_inputs: bool = False
    grouped_experts: bool = False
    narrow_gather: bool = False
    expert_imbalance: Number = 1.0
    fused_experts: bool = False
    narrow_attention: bool = False
    narrow_head: bool = False
    overlapped_exchange: bool = False
    offload: str = NO_OFFLOAD
    least_micro_batch: int = 1

    def offloads(self, part: str) -> bool:
        """Return whether a part is in host memory.

        Args:
            part: "optimizer" or "activations".

        Returns:
            True if it is.
        """
        return part in self.offload.split("+")

    @property
    def has_fused_experts(self) -> bool:
        """Whether experts run in one kernel, which exists for mxfp8."""
        return self.fused_experts and self.dtype == FUSED_DTYPE

    @property
    def format(self) -> Format:
        """Format of the products of layers."""
        return number_format(self.dtype)

    @property
    def states(self) -> Optimizer:
        """Optimizer with its bytes per parameter."""
        return OPTIMIZERS[self.optimizer]

    @property
    def trained(self) -> float:
        """Share of the weight gradients that are computed; 0 with a frozen base."""
        return 0.0 if self.task == "lora" else 1.0


def host_memory(system: System) -> MemoryTier | None:
    """Return the host memory of a chip.

    Args:
        system: Chips and links.

    Returns:
        Capacity and bandwidth per chip; None if the catalogue has none.
    """
    return next((tier for tier in system.tiers if tier.name == "host"), None)


def supports_format(system: System, dtype: str) -> bool:
    """Return whether a chip computes in a number format.

    Matrix units with 4-bit formats (Blackwell, CDNA 4) also support block scales.

    Args:
        system: Chips and links.
        dtype: Number format.

    Returns:
        True if the chip supports it.
    """
    peak = system.chip.peak
    return number_format(dtype).arithmetic[0] in peak and (dtype not in BLOCK_SCALED or "fp4" in peak)


def check_job(job: TrainingJob, system: System) -> TrainingJob:
    """Check the words, sizes and format of a job.

    Args:
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.

    Returns:
        The job.

    Raises:
        UnknownName: If a word is unknown.
        InputError: If the chip does not compute in the format.
        RangeError: If the batch or the sequence is not a whole number in its range.
    """
    whole_number("seq", job.seq, maximum=MOST_TOKENS, unit="token")
    whole_number("batch", job.batch, maximum=MOST_SEQUENCES, unit="sequences")
    for parameter, value, choices in (
        ("number format of training", job.dtype, DTYPES),
        ("task", job.task, TASKS),
        ("optimizer", job.optimizer, tuple(OPTIMIZERS)),
        ("attention", job.attention, (FLASH, UNFUSED)),
        ("offload", job.offload, OFFLOADS),
    ):
        if value not in choices:
            raise UnknownName(parameter, value, choices, "Known: " + ", ".join(choices) + ".")

    if job.offload != NO_OFFLOAD and host_memory(system) is None:
        raise InputError(f"offload={job.offload}: {system.name} has no host memory in the catalogue; leave --offload out")
    if job.offloads(OPTIMIZER) and (job.task == "lora" or job.optimizer == "muon"):
        reason = "a frozen base has no optimizer states" if job.task == "lora" else "muon multiplies matrices on the chips"
        raise InputError(f"offload={job.offload}: {reason}; try --offload activations")
    # 16-bit and 32-bit formats always run: `product_rates` falls back to another of them.
    if not supports_format(system, job.dtype) and job.dtype not in ("fp32", "bf16", "fp16"):
        supported_formats = [d for d in DTYPES if supports_format(system, d)]
        raise InputError(
            f"{system.chip.title or system.chip.name} does not compute in {job.dtype}; try {' or '.join(supported_formats)}"
        )
    return job


SHARDINGS: Final = ("none", "zero1", "zero2", "zero3")
"""States that data-parallel ranks shard: none; optimizer states; also gradients; also weights (FSDP)."""
TASKS: Final = ("pretrain", "sft", "lora")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingLayout(Tabular):
    """Degrees of each kind of parallelism of a training step.

    Numbers may be arrays, and all broadcast. dp: replicas of the model. virtual_stages: model chunks per pipeline stage.
    etp: tensor parallel degree of experts. micro_batch: sequences that a replica computes at once. sharding_group: ranks
    that share states, if fewer than all replicas (hybrid sharding).

    recompute: "none", "full", "selective", or modules joined by "+". layers: layers of each chunk, in the order of a
    micro-batch, such as "7,8x14,7"; "" if they are divided evenly.
    """

    tp: Number = field(default=1, metadata=unit("", "tensor parallel degree, with sequence parallelism"))
    pp: Number = field(default=1, metadata=unit("", "pipeline stages"))
    virtual_stages: Number = field(default=1, metadata=unit("", "model chunks per pipeline stage", key="vpp"))
    cp: Number = field(default=1, metadata=unit("", "context parallel degree"))
    ep: Number = field(default=1, metadata=unit("", "expert parallel degree, a part of tp x cp x dp"))
    etp: Number = field(default=1, metadata=unit("", "tensor parallel degree of experts"))
    dp: Number = field(default=1, metadata=unit("", "data parallel degree: replicas of the model"))
    micro_batch: Number = field(default=1, metadata=unit("", "sequences that a replica computes at once"))
    sharding: str = field(default="zero1", metadata=unit("", "states that replicas shard: none, zero1, zero2, zero3"))
    sharding_group: Number = field(default=0, metadata=unit("", "replicas that share the sharded states; 0 for all"))
    recompute: str = field(default="none", metadata=unit("", "modules that the backward pass computes again"))
    schedule: str = field(default="1f1b", metadata=unit("", "pipeline schedule"))
    layers: str = field(default="", metadata=unit("", "layers of each chunk, such as 7,8x14,7; empty for an even division"))

    @property
    def chips(self) -> Number:
        """Chips in total."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stage(self) -> Number:
        """Chips of one pipeline stage, all replicas together."""
        return self.tp * self.cp * self.dp

    @property
    def expert_copies(self) -> Number:
        """Copies of each expert, over which the states of experts are sharded."""
        return self.stage / (self.ep * self.etp)

    def __repr__(self) -> str:
        return f"TrainingLayout({show_training_layout(self)})"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the degrees above 1 as a title, and the chips.

        Returns:
            Title, and lines by name.
        """
        return repr(self), {"chips": in_words(self.chips, "{:,g}".format)}

    def columns(self) -> dict[str, Any]:
        """Return one row per layout.

        Returns:
            Values by column name.
        """
        return broadcast({name: getattr(self, name) for name in AXES})


AXES: Final = tuple(f.name for f in fields(TrainingLayout))
DEGREES: Final = ("tp", "pp", "virtual_stages", "cp", "ep", "etp", "dp", "micro_batch")
SHORT_NAMES: Final = {"virtual_stages": "vpp", "micro_batch": "mbs"}


def show_training_layout(layout: TrainingLayout) -> str:
    """Return a layout as text.

    Args:
        layout: Training layout.

    Returns:
        Text.

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
    """Return the layers of each chunk from their text.

    Args:
        text: Layers by chunk, such as "7,8x14,7".

    Returns:
        Layers per chunk.

    Raises:
        LayoutError: If the text cannot be read.

    >>> read_layers("7,8x3,7")
    (7, 8, 8, 8, 7)
    """
    counts: list[int] = []
    for part in text.split(","):
        count, repeats = (*part.replace("*", "x").split("x"), "1")[:2]
        # Both "8x3" and "8*3" stand for 8,8,8.
        if part.count("x") + part.count("*") > 1 or not (
            _is_small_number(count) and _is_small_number(repeats) and int(repeats)
        ):
            raise LayoutError(f"layers={text!r}: {part!r} is not a number of layers; give them by chunk, such as 7,8x14,7")
        counts += [int(count)] * int(repeats)
    return tuple(counts)


def _is_small_number(text: str) -> bool:
    return text.strip().isdecimal() and len(text.strip()) <= 4


def show_layers(counts: Sequence[int]) -> str:
    """Return the layers of each chunk as text.

    Args:
        counts: Layers per chunk.

    Returns:
        Text, such as "7,8x3,7".

    >>> show_layers([7, 8, 8, 8, 7])
    '7,8x3,7'
    """
    runs = [(count, len(list(run))) for count, run in groupby(counts)]
    return ",".join(f"{count}" if repeats == 1 else f"{count}x{repeats}" for count, repeats in runs)
