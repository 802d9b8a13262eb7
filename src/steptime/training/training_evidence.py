"""Evidence for a training layout: whether layouts of its kind are in the measured runs, and which layouts are conventional.

The stacks are fitted to 672 measured layouts. A search over thousands of layouts tends to choose one whose unmeasured costs
are underestimated, such as context parallelism of short sequences. Its exchanges seem to hide behind attention. A search
therefore prefers the kinds that runs cover. Of layouts whose times differ by less than the error between layouts, it takes
the most conventional one.

The fastest of thousands of predictions is one whose errors are lucky, and few runs have the best layout. `docs/fit_search.py`
searches a layout for every measured job without its layout, with constants that were fitted without the model of the job.
The logarithm of measured over predicted seconds is the sum of a value and of deviations. The value is that of dense models or
of experts; the deviations are those of the stack and the chip architecture. Where few models were measured, these are pulled to
zero (ridge regression).

The limits are those of the runs (Megatron-Bridge, MLPerf Training, NeMo, Megatron-LM, torchtitan, MaxText, llm-foundry):
tensor parallelism up to 8, pipelines up to 16 stages with at least one micro-batch per stage. Context parallelism is 2 from
4,096 tokens a rank, and more from sequences of 16,384 tokens. Expert parallelism is up to 64, with at most 2 tensor-parallel
ranks and undivided sequences. Schedules are 1F1B and interleaved 1F1B, and DualPipe with experts.

References:
    https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/performance-summary.md: all recipes of dense models below
    16,384 tokens have cp of 1 or 2, and all recipes with experts have cp=1.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.training.layer_time import sharding_ranks
from steptime.training.training_job import TrainingJob, TrainingLayout
from steptime.training.training_stack import DENSE, SPARSE, TrainingEngine

MEASURED: Final = "measured"
ANY: Final = "any"
# The levels, the best evidence first.
TRAINING_EVIDENCE: Final = (MEASURED, ANY)
LARGEST_MEASURED_TP: Final = 8
LARGEST_MEASURED_STAGES: Final = 16
LARGEST_MEASURED_EP: Final = 64
LARGEST_MEASURED_TP_WITH_EXPERTS: Final = 2
# Ranks that share weights: of MPT 7B on H100 (llm-foundry), and of stacks that always share them (MaxText on TPU v5e).
LARGEST_MEASURED_SHARDING: Final = 512
LARGEST_MEASURED_SHARDING_ALWAYS: Final = 2048
# Tokens: of a context-parallel rank, and of sequences with more than two ranks.
LEAST_TOKENS_PER_CONTEXT_RANK: Final = 4096
LONG_SEQUENCE: Final = 16_384
# Rows of a micro-batch on one chip, where the micro-batch has as many.
LEAST_ROWS: Final = 512
# Largest fitted runs: chips of Llama 3 405B (arXiv 2407.21783, table 4), and tokens of a sequence of NeMo 24.07.
MOST_MEASURED_CHIPS: Final = 8192
LONGEST_MEASURED_SEQUENCE: Final = 1_048_576
# Number formats of the fitted runs, by the maker of the chips. Another format has the efficiency of a format with as many bits.
MEASURED_FORMATS: Final = {
    "NVIDIA": ("bf16", "fp16", "fp8", "mxfp8", "nvfp4"), "AMD": ("fp8",), "Google": ("bf16", "int8"),
}  # fmt: skip
MEASURED_SCHEDULES: Final = ("1f1b", "interleaved")
# Schedules of one family's runs: DeepSeek-V3 on 2,048 H800 (arXiv 2412.19437, section 3.2.1). No public stack starts them.
MEASURED_SCHEDULES_OF: Final = {"deepseek_v3": ("dualpipe",)}
# Layouts whose times differ by less than this count as equal: the median standard deviation of the logarithm of
# predicted over measured times among the measured layouts of one job (docs/fit_search.py).
LAYOUT_ERROR: Final = 0.035


def is_measured_kind(x: TrainingLayout, job: TrainingJob, engine: TrainingEngine, *, experts: bool, family: str = "") -> Array:
    """Return whether layouts are of a kind that measured runs cover.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.
        job: Sequences, formats and optimizer of a step.
        engine: Training stack.
        experts: Whether the model has routed experts.
        family: Family of the model, which may have a schedule of its own.

    Returns:
        Booleans.
    """
    tp, pp, cp, rows = np.asarray(x.tp), np.asarray(x.pp), np.asarray(x.cp), x.micro_batch * job.seq
    is_long = job.seq >= LONG_SEQUENCE
    undivided = cp == 1
    divided = (job.seq / cp >= LEAST_TOKENS_PER_CONTEXT_RANK) & ((cp <= 2) | is_long)
    kinds = _is_power_of_two(tp) & (tp <= LARGEST_MEASURED_TP) & (pp <= LARGEST_MEASURED_STAGES)
    kinds = kinds & (undivided | (divided & (is_long | (not experts))))
    kinds = kinds & (rows / cp / tp >= np.minimum(LEAST_ROWS, rows / LARGEST_MEASURED_TP))
    kinds = kinds & ((pp == 1) | (job.batch / (x.dp * x.micro_batch) >= pp))
    if experts:
        tp_limit = LARGEST_MEASURED_TP_WITH_EXPERTS
        kinds = kinds & (tp <= tp_limit) & (np.asarray(x.ep) <= LARGEST_MEASURED_EP) & (np.asarray(x.etp) == 1)
    # Pipelines of sharded weights ran only in stacks that always shard them.
    if x.sharding == "zero3":
        always = engine.shardings == ("zero3",)
        most_ranks = LARGEST_MEASURED_SHARDING_ALWAYS if always else LARGEST_MEASURED_SHARDING
        kinds = kinds & ((pp == 1) | always) & (sharding_ranks(x) <= most_ranks)
    # Activations alone are recomputed by compilers only, as in MaxText; Megatron recomputes the whole block.
    if "activation" in x.recompute.split("+") and x.recompute not in engine.recomputes:
        kinds = kinds & False
    schedules = MEASURED_SCHEDULES + MEASURED_SCHEDULES_OF.get(family, ())
    return np.asarray(kinds & ((pp == 1) | (x.schedule in schedules)))


def unconventional_choices(x: TrainingLayout) -> Array:
    """Return the number of choices of a layout beyond data parallelism.

    Pipelines, virtual stages, tensor and context parallelism, and recomputation count one each.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Choices.

    >>> int(unconventional_choices(TrainingLayout(tp=8, pp=4, virtual_stages=2, dp=8))), int(unconventional_choices(
    ...     TrainingLayout(dp=8, recompute="full")))
    (3, 1)
    """
    degrees = (x.tp, x.pp, x.cp, x.virtual_stages)
    return np.asarray(sum((np.asarray(degree) > 1) * 1 for degree in degrees) + (x.recompute != "none"))


def _is_power_of_two(number: Number) -> Array:
    exponent = np.log2(np.asarray(number, dtype=np.float64))
    return np.asarray(exponent == np.rint(exponent))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptimism:
    """Correction of a searched layout.

    factor: on the seconds of the layout, at least 1. high: factor on corrected seconds that 95 % of the jobs are below.
    """

    factor: float = 1.0
    high: float = 1.0


@cache
def _fitted() -> dict[str, Any]:
    return tomllib.loads((resources.files("steptime") / "data" / "training_search.toml").read_text(encoding="utf-8"))


def searched_axes(model: Model) -> tuple[str, ...]:
    """Return the axes without which a layout counts as searched.

    Args:
        model: Model to train.

    Returns:
        Field names of `TrainingLayout`.
    """
    return ("tp", "pp", "ep") if model.routed else ("tp", "pp")


def search_optimism(engine: TrainingEngine, system: System, *, experts: bool) -> SearchOptimism:
    """Return the correction of a searched layout.

    Args:
        engine: Training stack.
        system: Chips and links.
        experts: Whether the model has routed experts.

    Returns:
        Correction; none for the stack "ideal", which is a bound.
    """
    if engine.name == "ideal":
        return SearchOptimism()
    fitted, kind = _fitted(), SPARSE if experts else DENSE
    architecture = fitted["chips"].get(system.chip.name, "")
    logarithm = fitted["kinds"][kind] + fitted["stacks"].get(engine.name, 0.0) + fitted["architectures"].get(architecture, 0.0)
    return SearchOptimism(factor=math.exp(max(logarithm, 0.0)), high=float(fitted["high"][kind]))


def unlike_measured_runs(engine: TrainingEngine, system: System, job: TrainingJob, chips: int) -> tuple[str, ...]:
    """Return the ways in which a run is unlike those of the fit: its chip, its format, its number of chips and its length.

    Args:
        engine: Training stack.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        chips: Chips in total.

    Returns:
        One text for each way; none for the ideal stack.
    """
    if not engine.fit:
        return ()
    vendor = system.chip.vendor
    differences = (
        (not engine.has_run_on(system.chip.name), f"no fitted run of this stack on {system.chip.title or system.chip.name}"),
        (
            job.dtype not in MEASURED_FORMATS.get(vendor, (job.dtype,)),
            f"no fitted run on chips of {vendor} has {job.dtype}",
        ),
        (chips > MOST_MEASURED_CHIPS, f"the largest fitted run has {MOST_MEASURED_CHIPS:,} chips"),
        (
            float(np.max(job.seq)) > LONGEST_MEASURED_SEQUENCE,
            f"the longest fitted sequence has {LONGEST_MEASURED_SEQUENCE:,} tokens",
        ),
    )
    return tuple(text for is_unlike, text in differences if is_unlike)
