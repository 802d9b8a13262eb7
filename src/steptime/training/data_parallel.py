"""Exchanges of data-parallel replicas, their overlap, and the optimizer time.

Once per step, gradients of $g$ bytes are reduce-scattered and weights of 2 bytes are all-gathered. This moves
$(g + 2) P (D-1)/D$ bytes per chip, for sharded optimizer states (ZeRO-1) as for sharded gradients (ZeRO-2). Without
sharding it is an all-reduce of $2 g P$.

With sharded gradients and accumulated micro-batches, each micro-batch is reduced; in a pipeline, each group of p
micro-batches of a chunk. With sharded weights (ZeRO-3, FSDP) each micro-batch gathers the weights in both passes and
scatters its gradients. Source: Rajbhandari et al., arXiv 1910.02054, section 7.

The reduction hides behind the backward pass of the last micro-batch. The gather hides behind the first forward pass of the
next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.hardware.system import System
from steptime.number_checks import Number
from steptime.physics import network_time
from steptime.training.layer_profile import ACTIVATION_BYTES
from steptime.training.layer_time import collective_seconds
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import TrainingLayout
from steptime.training.training_stack import TrainingEngine


@dataclass(frozen=True, slots=True)
class ChipParameters:
    """Parameters on a chip of a stage.

    dense: parameters that all replicas share. experts: parameters of the experts of the chip.
    """

    dense: Number
    experts: Number

    @property
    def all(self) -> Number:
        """Dense and expert parameters together."""
        return self.dense + self.experts


def sharding_ranks(x: TrainingLayout) -> Number:
    """Return the ranks that share dense states.

    These are the replicas and context ranks, or the sharding group.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Ranks.
    """
    every = x.dp * x.cp
    group = np.asarray(x.sharding_group)
    return np.where(group > 0, np.minimum(np.maximum(group, 1), every), every) * 1.0


def exposed_exchange_seconds(
    parameters: ChipParameters, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *, forward: Number,
    backward: Number, microbatches: Number,
) -> Number:  # fmt: skip
    """Return the time that data-parallel exchanges add to a step.

    Args:
        parameters: Parameters on the chip.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.
        forward: Forward pass of one micro-batch on the stage [s].
        backward: Backward pass of one micro-batch on the stage [s].
        microbatches: Micro-batches per step and replica.

    Returns:
        Seconds per step that no pass hides.
    """
    constants = engine.constants
    gradient_bytes = job.gradient_bytes
    gradients = _trained_parameters(parameters, job)
    replica_ranks = x.dp * x.cp * 1.0
    ranks, expert_ranks = sharding_ranks(x), expert_sharding_ranks(x)

    def gather_seconds(dense_bytes: Number, expert_bytes: Number, group_size: Number, stride: Number = 1) -> Number:
        dense = network_time.all_gather(system, group_size, dense_bytes, x.tp * stride)
        routed = network_time.all_gather(system, expert_ranks, expert_bytes, x.ep * x.etp)
        return collective_seconds(dense, engine) + np.where(
            np.asarray(expert_bytes) > 0, collective_seconds(routed, engine), 0.0
        )

    # ZeRO-3: weights are gathered twice and gradients scattered once per micro-batch.
    if x.sharding == "zero3":
        weight_gather = gather_seconds(parameters.dense * ACTIVATION_BYTES, parameters.experts * ACTIVATION_BYTES, ranks)
        scatter = gather_seconds(gradients.dense * gradient_bytes, gradients.experts * gradient_bytes, ranks)
        exposed_gather = np.maximum(weight_gather - constants.data_overlap * forward, 0.0)
        seconds_per_microbatch = exposed_gather + np.maximum(weight_gather + scatter - constants.data_overlap * backward, 0.0)
        pipeline_seconds = exposed_gather + np.maximum(scatter - constants.data_overlap * backward, 0.0)
        # A pipeline keeps the weights of its stage gathered for a whole step.
        seconds = np.where(np.asarray(x.pp) > 1, pipeline_seconds, seconds_per_microbatch * microbatches)

        # Hybrid sharding: gradients are all-reduced between the sharding groups.
        groups = replica_ranks / ranks
        if np.any(groups > 1):
            seconds = seconds + np.maximum(
                2 * gather_seconds(gradients.all * gradient_bytes / ranks, 0.0, groups, ranks)
                - constants.data_overlap * backward,
                0.0,
            ) * (groups > 1)
        return seconds

    # Without sharded weights: one reduction of gradients and one gather of weights per step.
    reduce = gather_seconds(gradients.dense * gradient_bytes, gradients.experts * gradient_bytes, replica_ranks)
    gather = (
        reduce
        if x.sharding == "none"
        else gather_seconds(gradients.dense * ACTIVATION_BYTES, gradients.experts * ACTIVATION_BYTES, replica_ranks)
    )

    # ZeRO-2 reduces sharded gradients at once; in a pipeline, after p micro-batches of a chunk.
    if x.sharding == "zero2":
        seconds_per_microbatch = np.minimum(x.pp, microbatches)
        # Only the last reduction is limited to one micro-batch to hide behind.
        earlier_reductions = np.ceil(microbatches / seconds_per_microbatch) - 1
        seconds = earlier_reductions * np.maximum(reduce - constants.data_overlap * backward * seconds_per_microbatch, 0.0)
        seconds = seconds + np.maximum(reduce - constants.data_overlap * backward, 0.0)
    else:
        seconds = np.maximum(reduce - constants.data_overlap * backward, 0.0)
    if x.sharding == "none":
        return np.maximum(reduce + gather - constants.data_overlap * backward, 0.0)
    return seconds + np.maximum(gather - constants.data_overlap * forward, 0.0)


def expert_sharding_ranks(x: TrainingLayout) -> Number:
    """Return the ranks that share the states of an expert.

    These are the copies of the expert, or those of them in a sharding group.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Ranks.
    """
    copies = np.maximum(x.expert_copies, 1.0)
    group = np.asarray(x.sharding_group)
    return np.where(group > 0, np.minimum(copies, np.maximum(group, 1)), copies) * 1.0


def _trained_parameters(parameters: ChipParameters, job: TrainingJob) -> ChipParameters:
    return parameters if job.task != "lora" else ChipParameters(0.0 * parameters.dense, 0.0 * parameters.experts)


def optimizer_seconds(parameters: ChipParameters, job: TrainingJob, system: System, x: TrainingLayout) -> Number:
    """Return the time in which the optimizer reads and writes states and weights.

    Args:
        parameters: Parameters on the chip.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Seconds per step.
    """
    if job.task == "lora":
        return 0.0 * parameters.dense
    states = job.states
    bytes_per_parameter = 2 * (states.master + states.moments) + job.gradient_bytes + ACTIVATION_BYTES
    is_sharded = x.sharding != "none"
    dense = parameters.dense / (sharding_ranks(x) if is_sharded else 1.0)
    experts = parameters.experts / (expert_sharding_ranks(x) if is_sharded else 1.0)
    norm_bytes = parameters.all * job.gradient_bytes / (1.0 if x.sharding in ("none", "zero1") else sharding_ranks(x))
    # The element-wise passes of an optimizer are one fused kernel, which reaches the full memory bandwidth.
    return (bytes_per_parameter * (dense + experts) + norm_bytes) / system.chip.hbm.bandwidth
