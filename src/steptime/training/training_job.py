"""Work of a training step: sequences, formats, optimizer, trained parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from steptime.errors import InputError, UnknownName
from steptime.hardware.number_formats import Format, number_format
from steptime.hardware.system import System
from steptime.number_checks import MOST_SEQUENCES, MOST_TOKENS, Number, whole_number
from steptime.training.training_layout import TASKS


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
        Optimizer("muon", 4, 4, "one fp32 moment: Kimi Team, arXiv 2502.16982"),
        Optimizer("adafactor", 4, 0, "row and column sums only: Shazeer and Stern, arXiv 1804.04235"),
        Optimizer("sgd", 4, 4, "momentum"),
    )
}
DTYPES: Final = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8", "fp32")
# Formats with a scale for every 32 or 16 values.
BLOCK_SCALED: Final = ("mxfp8", "nvfp4")
FLASH, UNFUSED = "flash", "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Work of a step: `batch` sequences of `seq` tokens over all chips.

    Numbers may be arrays. dtype: format of the products of layers; weights and attention stay in 16 bits. gradient_bytes:
    bytes per gradient, as it is stored and reduced. lora_rank: rank of the adapters, with task "lora". mtp: whether
    multi-token-prediction layers are trained.

    attention: "flash", or "unfused" where scores go through memory. sequence_parallel: whether tensor-parallel ranks divide
    the activations between blocks. logit_bytes: bytes per logit at one time: 6 with a fused cross-entropy (16-bit logits,
    fp32 gradients), 12 without.

    whole_hops: whether each tensor-parallel rank sends all activations of a micro-batch to the next stage, instead of its
    part.
    """

    seq: Number
    batch: Number
    dtype: str = "bf16"
    task: str = "pretrain"
    optimizer: str = "adamw"
    gradient_bytes: float = 4.0
    lora_rank: int = 16
    mtp: bool = False
    attention: str = FLASH
    sequence_parallel: bool = True
    logit_bytes: float = 6.0
    whole_hops: bool = False

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
    ):
        if value not in choices:
            raise UnknownName(parameter, value, choices, "Known: " + ", ".join(choices) + ".")

    # 16-bit and 32-bit formats always run: `product_rates` falls back to another of them.
    if not supports_format(system, job.dtype) and job.dtype not in ("fp32", "bf16", "fp16"):
        supported_formats = [d for d in DTYPES if supports_format(system, d)]
        raise InputError(
            f"{system.chip.title or system.chip.name} does not compute in {job.dtype}; try {' or '.join(supported_formats)}"
        )
    return job
