r"""What copies of a model exchange for a step, how much of it hides, and the optimizer's own time.

A reduce-scatter of gradients of $g$ bytes and an all-gather of weights of 2 take $(g + 2) P (D-1)/D$ bytes a chip, once a
step, whether optimizer states are divided (ZeRO-1), gradients too (ZeRO-2), or nothing (an all-reduce of $2 g P$). With
gradients divided and micro-batches accumulated, each micro-batch is reduced, in a pipeline each p of a chunk. With
weights divided (ZeRO-3, FSDP) each micro-batch gathers them forward and backward and scatters its gradients (Rajbhandari et
al., arXiv 1910.02054, section 7). Reduction hides behind the last micro-batch's backward pass, the gather behind the next
step's first forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.hardware.system import System
from steptime.number_checks import Number
from steptime.physics import network_time
from steptime.training.layer_profile import WIDE
from steptime.training.layer_time import seconds_of
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import TrainingLayout
from steptime.training.training_stack import TrainingEngine


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters of a chip of a stage: dense ones, which all copies share, and those of its experts."""

    dense: Number
    experts: Number

    @property
    def all(self) -> Number:
        """Both."""
        return self.dense + self.experts


def copies_sharing(x: TrainingLayout) -> Number:
    """Ranks that share dense states: copies and context ranks, or the sharding group."""
    every = x.dp * x.cp
    group = np.asarray(x.sharding_group)
    return np.where(group > 0, np.minimum(np.maximum(group, 1), every), every) * 1.0


def exposed(
    held: Held, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *, forward: Number,
    backward: Number, microbatches: Number,
) -> Number:  # fmt: skip
    """Return the seconds of a step that data-parallel exchanges add; forward, backward [s] of one micro-batch on the stage."""
    c = engine.constants
    g = job.gradient_bytes
    trained = _trained(held, job)
    every = x.dp * x.cp * 1.0
    ranks, expert_ranks = copies_sharing(x), expert_copies_sharing(x)

    def gathered(bytes_: Number, experts: Number, among: Number, stride: Number = 1) -> Number:
        dense = network_time.all_gather(system, among, bytes_, x.tp * stride)
        routed = network_time.all_gather(system, expert_ranks, experts, x.ep * x.etp)
        return seconds_of(dense, engine) + np.where(np.asarray(experts) > 0, seconds_of(routed, engine), 0.0)

    if x.sharding == "zero3":
        gather = gathered(held.dense * WIDE, held.experts * WIDE, ranks)
        scatter = gathered(trained.dense * g, trained.experts * g, ranks)
        ahead = np.maximum(gather - c.data_overlap * forward, 0.0)
        each = ahead + np.maximum(gather + scatter - c.data_overlap * backward, 0.0)
        once = ahead + np.maximum(scatter - c.data_overlap * backward, 0.0)
        found = np.where(np.asarray(x.pp) > 1, once, each * microbatches)  # a pipeline keeps its stage gathered for a step
        outer = every / ranks
        if np.any(outer > 1):
            found = found + np.maximum(
                2 * gathered(trained.all * g / ranks, 0.0, outer, ranks) - c.data_overlap * backward, 0.0
            ) * (outer > 1)
        return found
    reduce = gathered(trained.dense * g, trained.experts * g, every)
    back = reduce if x.sharding == "none" else gathered(trained.dense * WIDE, trained.experts * WIDE, every)
    if x.sharding == "zero2":  # gradients that are divided are reduced at once: in a pipeline after p micro-batches of a chunk
        each = np.minimum(x.pp, microbatches)
        before = np.ceil(microbatches / each) - 1  # the last one hides behind the last micro-batch alone, as any does
        found = before * np.maximum(reduce - c.data_overlap * backward * each, 0.0)
        found = found + np.maximum(reduce - c.data_overlap * backward, 0.0)
    else:
        found = np.maximum(reduce - c.data_overlap * backward, 0.0)
    if x.sharding == "none":
        return np.maximum(reduce + back - c.data_overlap * backward, 0.0)
    return found + np.maximum(back - c.data_overlap * forward, 0.0)


def expert_copies_sharing(x: TrainingLayout) -> Number:
    """Ranks that share the states of an expert: its copies, or those of them in a sharding group."""
    copies = np.maximum(x.expert_copies, 1.0)
    group = np.asarray(x.sharding_group)
    return np.where(group > 0, np.minimum(copies, np.maximum(group, 1)), copies) * 1.0


def _trained(held: Held, job: TrainingJob) -> Held:
    return held if job.task != "lora" else Held(0.0 * held.dense, 0.0 * held.experts)


def optimizer_seconds(held: Held, job: TrainingJob, system: System, x: TrainingLayout) -> Number:
    """Return the seconds in which the optimizer reads and writes its states, gradients and weights."""
    if job.task == "lora":
        return 0.0 * held.dense
    states = job.states
    each = 2 * (states.master + states.moments) + job.gradient_bytes + WIDE
    divided = x.sharding != "none"
    dense = held.dense / (copies_sharing(x) if divided else 1.0)
    experts = held.experts / (expert_copies_sharing(x) if divided else 1.0)
    norm = held.all * job.gradient_bytes / (1.0 if x.sharding in ("none", "zero1") else copies_sharing(x))
    # element-wise passes of an optimizer are one fused kernel: bandwidth of the chip as it is
    return (each * (dense + experts) + norm) / system.chip.hbm.bandwidth
