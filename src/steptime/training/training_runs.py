"""Cost of whole training runs: steps for a token budget, FLOPs, failures, money and energy.

Runs may have batch ramps and phases with longer sequences. FLOPs per token follow the model-FLOPs convention.

Chips fail independently at a rate $r$ per chip-second. A run on $N$ chips has a mean time between failures $M = 1 / (N r)$.
A checkpoint blocks the run for $d$ after every useful time $T$, and a restart takes $R$. With exponential failures, a useful
time $T$ takes $M e^{R/M} (e^{(T+d)/M} - 1)$ in total. Source: Daly, "A higher order estimate of the optimum checkpoint
interval", FGCS 22(3), 2006, equation 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from steptime.errors import Impossible
from steptime.hardware.system import System
from steptime.models.model import Layer, Model, matmul_flops_per_token, pairs, total_parameters
from steptime.number_checks import Number
from steptime.result_base import unit
from steptime.training.layer_profile import layer_profiles
from steptime.training.layer_time import ALTERNATE, recomputed_modules
from steptime.training.training_job import TrainingJob
from steptime.units import show

FAILURES_PER_CHIP_SECOND = 419 / (54 * 86400 * 16384)
"""Unexpected interruptions of Llama 3's training: 419 in 54 days on 16,384 H100 (arXiv 2407.21783, section 3.3.4)."""
# Seconds that an asynchronous checkpoint blocks the run; a guess in the range below.
CHECKPOINT_SECONDS = 30.0
# Seconds to find the fault, restart and load; the median retry of 504 B200 took 11 minutes (arXiv 2605.09370).
RESTART_SECONDS = 600.0
# Failures per chip-second of Meta's two clusters of A100: 2.34 and 6.50 per 1,000 days of a node of eight (arXiv 2410.21680).
# Llama 3's H100 are between them. So are 504 B200, with 10 faults of GPUs in 55 days (arXiv 2605.09370): chips of newer
# generations did not fail more often than chips of an older one in another cluster.
FAILURE_RANGE = (2.34e-3 / (8 * 86400), 6.50e-3 / (8 * 86400))
# A checkpoint of a 7B model blocks for 6.3 s if it is asynchronous, else for 148.8 s:
# https://pytorch.org/blog/reducing-checkpointing-times.
CHECKPOINT_RANGE = (6.3, 148.8)
# Recovery from peers takes under 2 minutes, from a checkpoint 15 to 30 minutes:
# https://aws.amazon.com/blogs/machine-learning/checkpointless-training-on-amazon-sagemaker-hyperpod-production-scale-training-with-faster-fault-recovery
RESTART_RANGE = (120.0, 1800.0)


TYPICAL_RUN_OVERHEAD, LARGEST_RUN_OVERHEAD = 1.08, 1.27
"""Median and largest of five published runs: chip-hours over those of their steps, beyond failures at the rate above.

Olmo 3 32B: 1.05 M hours for 5.5T tokens at 1,900 tok/s per chip, 1.27; Olmo 3 7B: 234,000 hours for 5.93T tokens at 7,700
tok/s, 1.08 (both with restarts, checkpoints and network problems, https://muxup.com/2025q4/minipost-olmo3-training-cost).
BLOOM: 1,082,990 hours (arXiv 2211.02001, table 1) for 366B tokens at 104.7 s per step of 4.2 M tokens
(https://github.com/bigscience-workshop/bigscience/blob/main/train/tr11-176B-ml/README.md), 1.10. Llama 3.1 405B: 30.84 M hours
for 3.8e25 FLOP at 400 TFLOP/s, 1.03 (model card, and arXiv 2407.21783, table 4). SmolLM3: 24 days on 384 chips for 11.1T
tokens at 14,000 tok/s, 0.99 (https://huggingface.co/blog/smollm3).
"""


def run_time_range(
    low: float, high: float, overhead: float = TYPICAL_RUN_OVERHEAD, losses: tuple[float, float] = (1.0, 1.0)
) -> tuple[float, float]:
    """Return the factors of the 90 % range of a run.

    A run takes longer than its steps by slow periods, evaluations and network problems, which are independent of the error of
    a step. At the lower end it has none of them. Losses by failures are independent of both.

    Args:
        low: Lower factor of the range of a step.
        high: Upper factor of the range of a step.
        overhead: Factor on the time of the steps that the run includes.
        losses: Lower and upper factor on the time of a run, of the uncertainty of its failures.

    Returns:
        Lower and upper factor.

    >>> [round(factor, 3) for factor in run_time_range(0.85, 1.3)]
    [0.787, 1.361]
    >>> [round(factor, 3) for factor in run_time_range(0.85, 1.3, losses=(0.9, 1.2))]
    [0.763, 1.431]
    """
    unknown = max(LARGEST_RUN_OVERHEAD / overhead, 1.0)
    shorter = math.hypot(math.log(min(low, 1.0)), math.log(min(losses[0], 1.0)))
    longer = math.hypot(math.log(max(high, 1.0)), math.log(unknown), math.log(max(losses[1], 1.0)))
    return math.exp(-shorter) / overhead, math.exp(longer)


def failure_losses(reliability: Reliability, chips: int) -> tuple[float, float]:
    """Return the factors of the 90 % range of the time of a run, of its failures.

    The failure rate, a checkpoint and a restart are uncertain, independently of each other, unless the user gave them.

    Args:
        reliability: Failure rate, checkpoint and restart times.
        chips: Chips in total.

    Returns:
        Lower and upper factor.

    >>> [round(factor, 2) for factor in failure_losses(Reliability(), 16384)]
    [0.93, 1.17]
    """
    base = failure_goodput(reliability, chips)[2]
    shorter = longer = 0.0
    for name, default, ends in UNCERTAIN_LOSSES:
        if getattr(reliability, name) == default:
            changes: list[dict[str, Any]] = [{name: end} for end in ends]
            low, high = (math.log(base / failure_goodput(replace(reliability, **change), chips)[2]) for change in changes)
            shorter, longer = math.hypot(shorter, low), math.hypot(longer, high)
    return math.exp(-shorter), math.exp(longer)


def failure_goodput(reliability: Reliability, chips: int, useful: float = math.inf) -> tuple[float, float, float]:
    """Return the mean time between failures, the optimal time between checkpoints, and the share of useful work.

    Args:
        reliability: Failure rate, checkpoint and restart times.
        chips: Chips in total.
        useful: Seconds of all steps, the longest time between checkpoints.

    Returns:
        Seconds, seconds, and a share.
    """
    if not reliability.rate:
        return math.inf, useful, 1.0
    between = float(mean_time_between_failures(chips, reliability.rate))
    # Such a run never ends.
    if (reliability.checkpoint + reliability.restart) / between > MAX_LOST_INTERVALS:
        return between, between, math.exp(-MAX_LOST_INTERVALS)
    interval = min(float(daly_interval(reliability.checkpoint, between)), useful)
    return between, interval, float(goodput(interval, reliability.checkpoint, reliability.restart, between))


def mean_time_between_failures(chips: Number, rate: Number = FAILURES_PER_CHIP_SECOND) -> Number:
    """Return the mean time between failures of all chips together.

    Args:
        chips: Chips in total.
        rate: Failures per chip-second.

    Returns:
        Seconds.

    >>> round(mean_time_between_failures(16384) / 3600, 2)
    3.09
    """
    return 1 / (chips * rate)


def young_interval(blocked: Number, between: Number) -> Number:
    r"""Return the first-order optimum of the time between checkpoints, $\sqrt{2 d M}$.

    Args:
        blocked: Time $d$ that a checkpoint blocks the run [s].
        between: Mean time $M$ between failures [s].

    Returns:
        Useful seconds between checkpoints.

    References:
        Young, CACM 17(9), 1974.

    >>> round(float(young_interval(30.0, 3.09 * 3600)) / 60, 1)
    13.6
    """
    return np.sqrt(2 * blocked * between)


def daly_interval(blocked: Number, between: Number) -> Number:
    r"""Return the higher-order optimum of the time between checkpoints.

    The time is $\sqrt{2dM}\,(1 + \frac13\sqrt{d/2M} + \frac19 \frac{d}{2M}) - d$, and $M$ where $d \ge 2M$.

    Args:
        blocked: Time $d$ that a checkpoint blocks the run [s].
        between: Mean time $M$ between failures [s].

    Returns:
        Useful seconds between checkpoints.

    References:
        Daly, "A higher order estimate of the optimum checkpoint interval", FGCS 22(3), 2006.

    >>> round(float(daly_interval(30.0, 3.09 * 3600)) / 60, 1)
    13.3
    """
    ratio = blocked / (2 * between)
    interval = young_interval(blocked, between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - blocked
    return np.where(ratio < 1, interval, between)


def goodput(interval: Number, blocked: Number, restart: Number, between: Number) -> Number:
    """Return the share of the time that is useful work.

    Args:
        interval: Useful time between checkpoints [s].
        blocked: Time that a checkpoint blocks the run [s].
        restart: Time of a restart [s].
        between: Mean time between failures [s].

    Returns:
        Share, 0 to 1.

    References:
        Daly, equation 13 (see the module).

    >>> round(float(goodput(13.3 * 60, 30.0, 600.0, 3.09 * 3600)), 3)
    0.88
    """
    return interval / (between * np.exp(restart / between) * np.expm1((interval + blocked) / between))


def forward_flops(model: Model, seq: Number, *, full: bool) -> Number:
    """Return the FLOPs of the forward pass per token, with the head.

    Args:
        model: Model to train.
        seq: Tokens per sequence.
        full: Whether masked query-key pairs count.

    Returns:
        FLOPs per token.

    >>> import steptime as st
    >>> m = st.load_model("llama-3.1-405b")
    >>> round(3 * float(forward_flops(m, 8192, full=False)) / 1e9), round(3 * float(forward_flops(m, 8192, full=True)) / 1e9)
    (2524, 2625)
    """
    flops: Number = matmul_flops_per_token(model)
    for layer, n in model.layers:
        flops = flops + n * (_pair_flops(layer, seq, full=full) + sum(a.state_flops_per_token for a in layer.attention))
    return flops


def _pair_flops(layer: Layer, seq: Number, *, full: bool) -> Number:
    """Return the FLOPs of query-key pairs of a layer per token; full: whether masked pairs count."""
    flops: Number = 0.0
    for a in layer.attention:
        attended_tokens = np.minimum(seq, np.minimum(a.window, a.selected)) if full else pairs(a, seq * 1.0, 0.0) / seq
        flops = flops + a.flops_per_pair_prefill * attended_tokens
    return flops


def draft_product_flops(model: Model) -> float:
    """Return the FLOPs of the products of the multi-token-prediction layers forward, per token.

    Each layer counts with the head.

    Args:
        model: Model to train.

    Returns:
        FLOPs per token.
    """
    head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
    return sum(
        n * (head + sum(op.flops_per_row * op.active for op in layer.ops if op.rows in ("tokens", "routed")))
        for layer, n in model.draft
    )


def model_flops(model: Model, job: TrainingJob, *, full: bool) -> Number:
    """Return the FLOPs of training per token.

    Training costs three times the forward pass. Products with frozen weights cost twice (LoRA, without its adapters): they need
    no gradients of weights. Query-key pairs have gradients of both sides in any case.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        full: Whether masked query-key pairs count.

    Returns:
        FLOPs per token.

    References:
        Llama 2 70B with LoRA, 2/3 of the products and all of the pairs:
        https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/src/megatron/bridge/training/utils/flop_utils.py
    """
    products, forward = matmul_flops_per_token(model), forward_flops(model, job.seq, full=full)
    if job.mtp:
        drafted = draft_product_flops(model)
        pairs_of_drafts = sum(n * _pair_flops(layer, job.seq, full=full) for layer, n in model.draft)
        products, forward = products + drafted, forward + drafted + pairs_of_drafts
    return 3 * forward - (1 - job.trained) * products


def largest_batch_tokens(flops: Number) -> Number:
    """Return the largest batch that hardly costs quality, $0.2920\\,C^{0.3271}$.

    Losses stay within 0.25 % of the lowest one near this batch. DeepSeek LLM 7B and 67B trained with 9.4 M and 18.9 M tokens.

    Args:
        flops: FLOP of the training run.

    Returns:
        Tokens per step.

    References:
        DeepSeek LLM, arXiv 2401.02954, equation 1.

    >>> [round(float(largest_batch_tokens(6 * n * 2e12)) / 1e6, 1) for n in (7e9, 67e9)]
    [9.2, 19.3]
    """
    return 0.2920 * flops**0.3271


def proposed_batch(flops: float, seq: int, chips: int) -> int:
    """Return the largest batch that hardly costs quality and that the chips divide.

    Args:
        flops: FLOP of the training run.
        seq: Tokens per sequence.
        chips: Chips in total.

    Returns:
        Sequences: a multiple of the chips, or a divisor of them if the batch is smaller.

    >>> proposed_batch(6 * 70e9 * 15e12, 8192, 2048), proposed_batch(6 * 70e9 * 15e12, 8192, 6144)
    (4096, 3072)
    """
    largest = max(int(largest_batch_tokens(flops) / seq), 1)
    return largest // chips * chips or max(n for n in range(1, largest + 1) if chips % n == 0)


def recompute_flops(model: Model, job: TrainingJob, recompute: str) -> Number:
    """Return the FLOPs per token that the backward pass computes again.

    Attention counts all query-key pairs.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.
        recompute: Recomputation of the layout.

    Returns:
        FLOPs per token.
    """
    # The head is not inside a recomputed layer.
    if recompute in ("full", "reversible"):
        head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
        return forward_flops(model, job.seq, full=True) - head
    flops: Number = 0.0
    for (sheet, n), (layer, _) in zip(layer_profiles(model), model.layers, strict=True):
        if recompute == ALTERNATE:
            # Selective checkpointing by operator recomputes every second product.
            flops = flops + n * sum(product.flops for product in sheet.products) / 2
            continue
        for module in recomputed_modules(recompute):
            pair_flops = _pair_flops(layer, job.seq, full=True) if module == "attention" else 0.0
            flops = flops + n * (sheet.recompute_work[module][0] + pair_flops)
    return flops


# Batch sizes of a ramp at which a step is timed.
RAMP_POINTS = 8
# Bytes per weight in a checkpoint.
WEIGHT_BYTES = 2.0
# Largest checkpoint plus restart time, in units of the mean time between failures.
# Above it the goodput is below e^-7, and a run never ends.
MAX_LOST_INTERVALS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Part of a run: tokens at one sequence length and batch.

    first: batch at the start of a ramp, which grows evenly with the tokens; None without a ramp.
    """

    tokens: float
    seq: int
    batch: int
    first: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failure rate and its costs, and other overhead of a run.

    rate: failures per chip-second. checkpoint, restart: seconds of a checkpoint and of a restart. spares: spare chips.
    overhead: factor on the time of the steps, for slow periods, evaluations and network problems; that of published runs if
    None, and 1 for the ideal stack.
    """

    rate: float = FAILURES_PER_CHIP_SECOND
    checkpoint: float = CHECKPOINT_SECONDS
    restart: float = RESTART_SECONDS
    spares: int = 0
    overhead: float | None = None

    @property
    def run_overhead(self) -> float:
        """Factor of other overhead, that of published runs if not given."""
        return TYPICAL_RUN_OVERHEAD if self.overhead is None else self.overhead


# Fields of `Reliability` that are uncertain, where they have their default, with their 90 % range.
UNCERTAIN_LOSSES: Final = (
    ("rate", FAILURES_PER_CHIP_SECOND, FAILURE_RANGE),
    ("checkpoint", CHECKPOINT_SECONDS, CHECKPOINT_RANGE),
    ("restart", RESTART_SECONDS, RESTART_RANGE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunCost:
    """Cost of a whole run: time with failures, chip-hours, money and energy.

    Money is nan where the rent is unknown, energy where the power is unknown.
    """

    tokens: float = field(metadata=unit("tokens", "training tokens"))
    steps: float = field(metadata=unit("", "steps"))
    seconds: float = field(metadata=unit("s", "time with checkpoints, failures, restarts and other overhead"))
    low: float = field(metadata=unit("s", "lower end of the 90 % range of the time"))
    high: float = field(metadata=unit("s", "upper end of the 90 % range of the time"))
    goodput: float = field(metadata=unit("", "share of the time that is useful steps"))
    goodput_low: float = field(metadata=unit("", "lower end of its 90 % range"))
    goodput_high: float = field(metadata=unit("", "upper end of its 90 % range"))
    overhead: float = field(metadata=unit("", "factor on the time of the steps for other overhead, included in the goodput"))
    failures: float = field(metadata=unit("", "expected failures"))
    between_failures: float = field(metadata=unit("s", "mean time between failures"))
    checkpoint_every: float = field(metadata=unit("s", "optimal useful time between checkpoints"))
    checkpoint: float = field(metadata=unit("B", "bytes of a checkpoint: weights, master copy and moments"))
    chip_hours: float = field(metadata=unit("", "chip-hours with spares"))
    spares: int = field(metadata=unit("", "rented spare chips"))
    usd: float = field(metadata=unit("USD", "rent of the run"))
    usd_low: float = field(metadata=unit("USD", "lower end of its 90 % range, from the time of a step"))
    usd_high: float = field(metadata=unit("USD", "upper end of its 90 % range, from the time of a step"))
    joules: float = field(metadata=unit("J", "energy"))
    power_basis: str = field(metadata=unit("", "what the power includes"))
    flops: float = field(metadata=unit("FLOP", "model FLOPs with causal attention"))


def phase_seconds(
    phase: Phase, job: TrainingJob, step_seconds: Callable[[TrainingJob], float], quantum: int = 1
) -> tuple[float, float]:
    """Return the time and the number of steps of a phase.

    Args:
        phase: Part of the run.
        job: Sequences, formats and optimizer of a step.
        step_seconds: Function that returns the seconds of a step of a job.
        quantum: Sequences by which a batch ramp grows.

    Returns:
        Seconds, and steps.
    """
    if phase.first is None or phase.first >= phase.batch:
        steps = phase.tokens / (phase.batch * phase.seq)
        return steps * step_seconds(replace(job, seq=phase.seq, batch=phase.batch)), steps

    # Round the ramp to batches that divide over the replicas of the layout.
    batch_quanta = np.linspace(phase.first, phase.batch, RAMP_POINTS) / quantum
    batches = np.unique(np.clip((batch_quanta.round() * quantum).astype(int), quantum, phase.batch))
    tokens_per_batch = phase.tokens / len(batches)
    ramp_parts = [
        phase_seconds(Phase(tokens=tokens_per_batch, seq=phase.seq, batch=int(b)), job, step_seconds) for b in batches
    ]
    return sum(f[0] for f in ramp_parts), sum(f[1] for f in ramp_parts)


def training_run_cost(
    model: Model, system: System, job: TrainingJob, phases: Sequence[Phase], step_seconds: Callable[[TrainingJob], float], *,
    chips: int, step_range: tuple[float, float], reliability: Reliability, quantum: int = 1,
    loss_range: tuple[float, float] = (1.0, 1.0),
) -> TrainingRunCost:  # fmt: skip
    """Return the cost of a run.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        phases: Parts of the run.
        step_seconds: Function that returns the seconds of a step of a job.
        chips: Chips in total.
        step_range: Factors of the 90 % range of the time.
        reliability: Failure rate, checkpoint and restart times.
        quantum: Sequences by which a batch ramp grows.
        loss_range: Factors of the 90 % range of the time, of failures and other overhead.

    Returns:
        Time, chip-hours, money and energy.

    Raises:
        Impossible: If failures are so frequent that the run never ends.
    """
    parts = [phase_seconds(phase, job, step_seconds, quantum) for phase in phases]
    useful, steps = sum(p[0] for p in parts), sum(p[1] for p in parts)
    tokens = sum(phase.tokens for phase in phases)

    # Goodput: the optimal time between checkpoints, at most the length of the run.
    mean_time, checkpoint_interval, goodput_share = failure_goodput(reliability, chips, useful)
    if (reliability.checkpoint + reliability.restart) / mean_time > MAX_LOST_INTERVALS:
        raise Impossible(
            f"a run on {chips:,} chips with a failure every {show(mean_time, 's')} never ends: a checkpoint takes "
            f"{show(reliability.checkpoint, 's')}, a restart {show(reliability.restart, 's')}"
        )
    goodput_share /= reliability.run_overhead
    seconds = useful / goodput_share
    rented_chips = chips + reliability.spares
    rent, power = system.rent, system.power
    low, high = seconds * step_range[0], seconds * step_range[1]
    state_bytes = 0.0 if job.task == "lora" else job.states.master + job.states.moments
    return TrainingRunCost(
        tokens=tokens,
        steps=steps,
        seconds=seconds,
        low=low,
        high=high,
        goodput=goodput_share,
        goodput_low=goodput_share / loss_range[1],
        goodput_high=min(goodput_share / loss_range[0], 1.0),
        overhead=reliability.run_overhead,
        failures=seconds / mean_time,
        between_failures=mean_time,
        checkpoint_every=checkpoint_interval,
        checkpoint=total_parameters(model) * (WEIGHT_BYTES + state_bytes),
        chip_hours=rented_chips * seconds / 3600,
        spares=reliability.spares,
        usd=rented_chips * seconds * float(rent.typical),
        usd_low=rented_chips * low * float(rent.typical),
        usd_high=rented_chips * high * float(rent.typical),
        joules=rented_chips * seconds * float(power.watts),
        power_basis=power.basis,
        flops=sum(phase.tokens * float(model_flops(model, replace(job, seq=phase.seq), full=False)) for phase in phases),
    )
