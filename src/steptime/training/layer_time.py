"""Time of one layer in training: its passes for one micro-batch, and the exchanges of data-parallel replicas.

A product costs its FLOPs in the forward pass. The backward pass costs twice as much: gradients of the input and of the
weights (a frozen base needs the first only). Element-wise operators move bytes, twice as many in the backward pass.

Flash attention computes scores again, so that its backward pass takes 2.5 times its forward pass: five products against
two. Source: Dao, arXiv 2307.08691, section 3.1.

Tensor parallelism with sequence parallelism gathers before and scatters after each block. A layer has four collectives in
the forward pass and six in the backward pass, because sharded inputs are gathered again. Source: Korthikanti et al., arXiv
2205.05198, section 4.2.2. Inputs of products in 8 or 4 bits are gathered after they are quantized; sums are scattered in 16
bits. Source: `with_quantized_all_gather` in
https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/module/layernorm_linear.py.

Context parallelism passes keys and values around a ring of all ranks that share a sequence: once in the forward pass, twice
in the backward pass. A scan needs whole sequences of some heads: its inputs and outputs are exchanged between these
ranks. Source: https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/ssm/mamba_context_parallel.py. Experts exchange
tokens: dispatch and combine, in both passes.

**Data parallelism.** Once per step, gradients of $g$ bytes are reduce-scattered and weights of 2 bytes are all-gathered.
Stacks that keep weights in 8 bits gather 1 byte.
This moves $(g + 2) P (D-1)/D$ bytes per chip, for sharded optimizer states (ZeRO-1) as for sharded gradients (ZeRO-2).
Without sharding it is an all-reduce of $2 g P$.

With sharded gradients and accumulated micro-batches, each micro-batch is reduced; in a pipeline, each group of p
micro-batches of a chunk. With sharded weights (ZeRO-3, FSDP) each micro-batch gathers the weights in both passes and
scatters its gradients. Source: Rajbhandari et al., arXiv 1910.02054, section 7.

**Offload.** Optimizer states in host memory: the CPU reads and writes states, reads gradients and writes weights of 16 bits,
while earlier gradients and weights cross the link. The step takes the longer of both. Source: ZeRO-Offload, Ren et al.,
arXiv 2101.06840, sections 4 and 5; the CPU's Adam is the longer part in
https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/training/cpu-offloading.md. Activations in host memory cross the
link once in each pass, hidden by computation like data-parallel exchanges.

The reduction hides behind the backward pass of the last micro-batch. The gather hides behind the first forward pass of the
next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from steptime.hardware.number_formats import peak_rate
from steptime.hardware.system import System
from steptime.models.model import Attention, Op, pairs
from steptime.number_checks import Number, has_nonzero
from steptime.physics import network_time
from steptime.physics.layout import shard_count
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import REACHED
from steptime.training.layer_profile import (
    ACTIVATION_BYTES,
    MODULES,
    PARTS_OF_MODULES,
    QUANTISE_PASSES,
    LayerProfile,
    Product,
    Stem,
)
from steptime.training.training_job import ACTIVATIONS, OPTIMIZER, UNFUSED, TrainingJob, TrainingLayout, host_memory
from steptime.training.training_stack import TrainingEngine, largest_narrow_share

# Power per FLOP/s from which a chip keeps its clock [W s/FLOP]: an A100 has 1.28 W per TFLOP/s in bf16, an H100 0.71, a
# B200 0.44.
WATTS_PER_FLOP = 1e-12
# Arithmetic of products in 16 bits, best first.
WIDE_FORMATS = ("bf16", "fp16", "fp32")
# Backward over forward time of flash attention: 5 products against 2.
FLASH_BACKWARD = 2.5
# Rate of flash attention in 8 bits over that in 16 bits: 1.2 PFLOP/s and 740 TFLOP/s on H100 (FlashAttention-3, arXiv
# 2407.08608, abstract).
NARROW_ATTENTION_GAIN = 1.2 / 0.74
# Bytes per output of a step of a ring: its 16 bits are read, and a sum in 32 bits is read and written. Source:
# https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py.
RING_BYTES = 10.0
# Tokens of a chunk of a scan, and passes of the states of chunks, in 32 bits, through memory. Forward, states are written,
# read, and written and read in 16 bits. Backward, they are computed again (written, read, written), their gradients are
# written, both are read, and both are written in 16 bits and read, the gradients twice: 34 bytes per value. Source:
# https://github.com/state-spaces/mamba/blob/main/mamba_ssm/ops/triton/ssd_combined.py; chunks of 128 in Nemotron's configs.
SCAN_CHUNK = 128
SCAN_PASSES, SCAN_PASSES_BACKWARD = 12 / 4, 34 / 4
# Schedules that overlap expert exchanges with the computation of another micro-batch: a forward and a backward pass run as a
# pair (DeepSeek-V3, arXiv 2412.19437, section 3.2.1). 20 of 132 streaming multiprocessors then send instead of computing
# (section 3.2.2).
OVERLAPPING = ("dualpipe", "dualpipev")
SENDING_SHARE = 20 / 132
# Bytes per value that such a schedule dispatches in 8 bits, with a scale of 32 bits per 128 values; sums return in 16 bits
# (DeepSeek-V3, section 3.3.3).
DISPATCHED_BYTES = 1 + 4 / 128
# Passes of scores through memory where attention is not fused: product, softmax (2), dropout (2), product.
SCORE_PASSES = 6.0
# Bytes per logit through a fused cross-entropy in fp32, forward and backward.
LOGIT_BYTES = 12.0
# Formats of products that were timed; others have those of 16 bits.
NARROW_FORMS = ("fp8", "int8", "mxfp8", "nvfp4")
# Formats in which stacks gather weights: 8 bits, not 4.
GATHERED_FORMS = ("fp8", "mxfp8")
# Modules that "selective" recomputes, from Megatron-LM: core attention.
SELECTIVE = ("attention",)
# Every second product and all other operators: selective checkpointing by operator of torchtitan.
ALTERNATE = "alternate"

# Modules whose output a product reads; it is saved in the format of the product, such as 8 bits.
NARROW_MODULES = ("norms", "activation", "moe_act", "moe_input")
# Modules with a row for each token and expert.
ROUTED_MODULES = ("moe", "moe_input", "moe_act")
# Bytes of a dropout mask per value: 2 s b h of the 34 s b h of arXiv 2205.05198, section 4.1, are the masks after
# attention and after the feed-forward block.
MASK_BYTES = 1.0

# Terms of computation.
COMPUTED = ("matrices", "experts", "attention", "element-wise")

Terms = dict[str, Number]


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one layer and one micro-batch by term, forward and backward.

    weights: part of the backward pass for the gradients of the weights.
    """

    forward: Terms
    backward: Terms
    weights: Number

    def total(self, direction: str) -> Number:
        """Return the sum of the terms of one direction.

        Args:
            direction: "forward" or "backward".

        Returns:
            Seconds.
        """
        terms: Terms = getattr(self, direction)
        return sum(terms.values(), 0.0)


def recomputed_modules(recompute: str) -> tuple[str, ...]:
    """Return the modules that a recomputation option means.

    Args:
        recompute: "none", "full", "reversible", "selective", or modules joined by "+".

    Returns:
        Module names, without parts of other modules; all modules for "full".
    """
    if recompute in ("none", ""):
        return ()
    if recompute in ("full", "reversible"):
        return MODULES
    if recompute == "selective":
        return SELECTIVE
    modules = recompute.split("+")
    contained = {part for module in modules for part in PARTS_OF_MODULES.get(module, ())}
    return tuple(module for module in modules if module not in contained)


def activation_bytes(sheet: LayerProfile, job: TrainingJob, x: TrainingLayout) -> tuple[Number, Number]:
    """Return the saved and the peak bytes of a layer for one micro-batch on a chip.

    Args:
        sheet: Profile of the layer.
        job: Sequences, formats and optimizer of a step.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Bytes that stay until the backward pass, and bytes while the layer runs.
    """
    chip_rows = x.micro_batch * job.seq / x.cp / x.tp
    dtype_ratio = job.format.bytes / ACTIVATION_BYTES if job.format.bytes < ACTIVATION_BYTES else 1.0
    module_bytes: dict[str, Number] = {
        name: value * (dtype_ratio if name in NARROW_MODULES else 1.0) for name, value in sheet.module_bytes.items()
    }
    # Each rank that shares an expert has all rows of this expert; the busiest rank has more rows than the mean.
    module_bytes["moe_input"] = module_bytes["moe_input"] * x.etp
    for name in ROUTED_MODULES:
        module_bytes[name] = module_bytes[name] * job.expert_imbalance

    # Without sequence parallelism, each tensor-parallel rank has all rows between blocks.
    replicated_rows: Number = 0.0 * chip_rows
    if not job.sequence_parallel:
        replicated_rows = x.micro_batch * job.seq / x.cp * (1 - 1 / x.tp)

    # Unfused attention saves scores and probabilities in 16 bits, and the dropout mask: 5 bytes per pair. Such layers have
    # dropout after each block too, with masks of a byte per value.
    scores: Number = 0.0
    masks = 0.0
    if job.attention == UNFUSED:
        scores = 5.0 * x.micro_batch * job.seq * job.seq * sheet.scores / (x.tp * x.cp)
        masks = MASK_BYTES * sheet.blocks * sheet.boundary
    replicated_bytes = sheet.residual + module_bytes["norms"] + masks
    # Where the backward pass does not gather the inputs of blocks again, all rows of them stay.
    gathered_bytes: Number = 0.0
    if job.gathered_inputs:
        gathered_bytes = (x.tp - 1) * chip_rows * sheet.blocks * sheet.boundary * ACTIVATION_BYTES
    peak_bytes = chip_rows * (sum(module_bytes.values()) + masks) + scores + gathered_bytes + replicated_rows * replicated_bytes

    # The recomputation decides which of these bytes stay until the backward pass.
    if x.recompute == "full":
        return (chip_rows + replicated_rows) * sheet.boundary * ACTIVATION_BYTES, peak_bytes
    if x.recompute == "reversible":
        return 0.0 * chip_rows, peak_bytes
    if x.recompute == ALTERNATE:
        alternate_bytes = (
            sheet.boundary * ACTIVATION_BYTES
            + module_bytes["attention"]
            + sheet.product_bytes / 2
            + (module_bytes["moe"] + module_bytes["moe_input"]) / 2
        )
        kept_bytes = chip_rows * alternate_bytes + replicated_rows * sheet.boundary * ACTIVATION_BYTES
        # The gather follows a norm, which is computed again.
        return kept_bytes, peak_bytes
    recomputed = recomputed_modules(x.recompute)
    dropped = {*recomputed, *(part for module in recomputed for part in PARTS_OF_MODULES.get(module, ()))}
    stored_bytes = chip_rows * (sum(value for name, value in module_bytes.items() if name not in dropped) + masks)
    # The next product reads the output of attention, which therefore stays.
    if "attention" in recomputed:
        stored_bytes = stored_bytes + chip_rows * module_bytes["attention"]
    kept_replicated_bytes = replicated_bytes if "norms" not in dropped else sheet.residual + masks
    stored_bytes = stored_bytes + replicated_rows * kept_replicated_bytes + (gathered_bytes if "norms" not in dropped else 0.0)
    return stored_bytes + (0.0 if "attention" in recomputed else scores), peak_bytes


def product_rates(job: TrainingJob, system: System, engine: TrainingEngine) -> tuple[Number, Number]:
    """Return the rates of dense products, in the format of the job and in 16 bits.

    Args:
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.

    Returns:
        Two rates [FLOP/s].
    """
    c, peak = engine.constants, system.chip.peak
    reached = system.chip.reached.get("compute", REACHED["compute"])
    # A chip may reach more or less of its data sheet than usual; the fit gives how much of this shows. All times are divided
    # by the speed of the stack later, so that no product is faster than timed ones.
    share = c.compute_efficiency * (reached / REACHED["compute"]) ** c.chip_departure * power_limit_factor(system, engine)
    share = np.minimum(share, engine.largest_share / engine.speed)
    wide = peak_rate(peak, ("fp16", "bf16", "fp32") if job.dtype == "fp16" else WIDE_FORMATS) * share
    lanes = {"fp8": c.eight_bit_efficiency, "int8": c.eight_bit_efficiency, "mxfp8": c.block_efficiency}
    lanes["nvfp4"] = c.four_bit_efficiency
    if job.dtype not in lanes:
        return (peak_rate(peak, ("fp32", "tf32")) * share if job.dtype == "fp32" else wide), wide
    narrow_share = share * lanes[job.dtype]
    if engine.fill_outputs:
        narrow_share = np.minimum(narrow_share, largest_narrow_share(system.chip, job.dtype) / engine.speed)
    narrow_peak = peak_rate(peak, job.format.arithmetic)
    # Chips without units for 8-bit floats convert them: the products are those of 16 bits.
    has_units = (job.dtype == "int8") | (narrow_peak > peak_rate(peak, WIDE_FORMATS))
    return np.where(has_units, narrow_peak * narrow_share, wide), wide


def power_limit_factor(system: System, engine: TrainingEngine) -> Number:
    """Return the factor by which the power limit of a chip lowers its rates.

    A chip at its limit draws power about as the cube of its clock, so that a rate would follow the cube root of power.

    Args:
        system: Chips and links.
        engine: Training stack.

    Returns:
        Factor, at most 1; 1 if the power limit is unknown.
    """
    chip = system.chip
    watts_per_flop = np.asarray(chip.power_w) / peak_rate(chip.peak, WIDE_FORMATS) / WATTS_PER_FLOP
    return np.minimum(np.where(np.isfinite(watts_per_flop), watts_per_flop, 1.0), 1.0) ** engine.constants.power_exponent


def layer_passes(sheet: LayerProfile, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout) -> Passes:
    """Return the passes of one layer over the tokens of one micro-batch.

    Args:
        sheet: Profile of the layer.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Seconds by term, forward and backward.
    """
    c = engine.constants
    # Rows of a tensor-parallel group.
    rows = x.micro_batch * job.seq / x.cp
    # Rows of a chip where sequence parallelism divides them.
    chip_rows = rows / x.tp
    narrow_rate, wide_rate = product_rates(job, system, engine)
    bandwidth = system.chip.hbm.bandwidth
    forward: Terms = {}
    backward: Terms = {}
    weight_gradients: Number = 0.0

    for product in sheet.products:
        rate = narrow_rate if product.narrow else wide_rate
        name = "experts" if product.routed else "matrices"
        outputs, inputs, weights = _product_seconds(product, job, system, engine, x, rate)
        forward[name] = forward.get(name, 0.0) + outputs
        backward[name] = backward.get(name, 0.0) + inputs + weights
        weight_gradients = weight_gradients + weights

    if job.task == "lora":
        forward["adapters"], backward["adapters"] = _adapter_seconds(sheet, job, system, engine, chip_rows, wide_rate)

    scores = _attention_seconds(sheet, job, system, engine, x, wide_rate)
    forward["attention"], backward["attention"] = scores

    # Element-wise operators are bound by memory; narrow formats add a read and a write of each quantized value.
    element_bandwidth = bandwidth * c.memory_efficiency
    is_narrow = job.format.bytes < ACTIVATION_BYTES and job.dtype not in ("bf16", "fp16")
    quantised_values = sheet.quantised_values * QUANTISE_PASSES if is_narrow else 0.0
    is_fused = job.has_fused_experts and sheet.fused_values > 0
    fused_values = sheet.fused_values if is_fused else 0.0
    elements = (
        (sheet.element_values + quantised_values - fused_values + (sheet.routed_values if sheet.routed else 0.0))
        * chip_rows
        * ACTIVATION_BYTES
        / element_bandwidth
    )
    forward["element-wise"], backward["element-wise"] = elements, 2 * elements
    _add_exchanges(forward, backward, sheet, job, system, engine, x)
    if not is_fused:
        _add_launches(forward, backward, sheet, job, engine, x)
    _add_recompute(forward, backward, sheet, x, chip_rows=chip_rows, rate=narrow_rate, element_bandwidth=element_bandwidth)
    tier = host_memory(system)
    if tier is not None and job.offloads(ACTIVATIONS):
        link_seconds = activation_bytes(sheet, job, x)[0] / tier.bandwidth
        for terms in (forward, backward):
            terms["offload"] = np.maximum(link_seconds - c.data_overlap * sum(terms.values(), 0.0), 0.0)
    return Passes(forward, backward, weight_gradients)


def _adapter_seconds(
    sheet: LayerProfile, job: TrainingJob, system: System, engine: TrainingEngine, chip_rows: Number, rate: Number
) -> tuple[Number, Number]:
    """Return the seconds of LoRA adapters, forward and backward.

    Their products are thin, so that they are bound by memory. Forward, an adapter reads its input and writes its output,
    which is added to that of the product (two reads and a write). Backward, the gradient of the output is read for both
    matrices; the input is read and the gradient of the input is written, and added to that of the product. Source: `forward`
    of https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/src/megatron/bridge/peft/lora_layers.py.
    """
    inputs, outputs = sheet.widths_of_adapters(job.adapted)
    flops = 2 * job.lora_rank * (inputs + outputs)
    bandwidth = system.chip.hbm.bandwidth * engine.constants.memory_efficiency
    forward, backward = (
        chip_rows * np.maximum(factor * flops / rate, values * ACTIVATION_BYTES / bandwidth)
        for factor, values in ((1, inputs + 4 * outputs), (2, 5 * inputs + 2 * outputs))
    )
    return forward, backward


def _add_launches(
    forward: Terms, backward: Terms, sheet: LayerProfile, job: TrainingJob, engine: TrainingEngine, x: TrainingLayout
) -> None:
    """Add the launches of the host, unless a captured step has none.

    The host launches kernels while the chip runs earlier ones, so that a layer takes the longer of both. The sizes of the
    groups of experts are read by the host, which waits for them. It then launches the products of one expert after another,
    unless the stack has one kernel for all of them.
    """
    c = engine.constants
    expert_seconds: Number = 0.0
    if sheet.routed is not None:
        launched_experts = 0.0 if job.grouped_experts else sheet.routed.experts / (x.ep * x.etp)
        expert_seconds = c.seconds_per_expert_layer + c.seconds_per_local_expert * launched_experts
    if not has_nonzero(c.seconds_per_layer) and not has_nonzero(expert_seconds):
        return
    for terms, factor in ((forward, 1.0), (backward, 2.0)):
        waiting_seconds = np.maximum(factor * c.seconds_per_layer - sum(terms.values(), 0.0), 0.0)
        terms["launch"] = waiting_seconds + factor * expert_seconds


def _product_seconds(
    product: Product, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, rate: Number
) -> tuple[Number, Number, Number]:
    """Return the seconds of the outputs of products, and of the gradients of their inputs and of their weights.

    Each is the longer of arithmetic and memory traffic. Two times are added: the writes that arithmetic does not hide, and the
    outputs that are lost while the chip is not filled.
    """
    c, bandwidth = engine.constants, system.chip.hbm.bandwidth
    rows = x.micro_batch * job.seq / x.cp
    if product.routed:
        rate = rate * c.expert_efficiency
        share, weights = rows / x.tp * job.expert_imbalance, product.weights / (x.ep * x.etp)
    else:
        shards = x.tp if product.replicated else shard_count(product.limit, x.tp)
        share, weights = rows / shards, product.weights / (1 if product.replicated else shards)

    # Tensor parallelism divides the inputs or the outputs of a product, not both.
    is_whole = product.replicated or product.routed
    whole_rows, parts = (share, 1.0) if is_whole else (rows, share / rows)
    read_bytes = (share * (product.inputs - product.whole_inputs) + whole_rows * product.whole_inputs) * ACTIVATION_BYTES
    written_bytes = (share * (product.outputs - product.whole_outputs) + whole_rows * product.whole_outputs) * ACTIVATION_BYTES
    lost_outputs = c.fill_share * engine.fill_outputs.get(_form(job, narrow=product.narrow), 0.0)

    def gemm_seconds(moved: Number, written: Number, depth: Number) -> Number:
        busy = np.maximum(share * product.flops / rate, moved / bandwidth) + c.exposed_writes * written / bandwidth
        return busy + 2 * lost_outputs * depth / rate

    # Sums are over the inputs for outputs, over the outputs for gradients of inputs, and over the rows for those of weights.
    depth = (product.depth - product.whole_depth) * parts + product.whole_depth
    width = (product.outputs - product.whole_outputs) * parts + product.whole_outputs
    gemm_rows = whole_rows
    if product.routed:
        width = product.outputs / np.maximum(product.active, 1.0)
        gemm_rows = share * product.active / (product.experts / (x.ep * x.etp))
    moved = weights * job.format.bytes + read_bytes + written_bytes
    outputs = gemm_seconds(moved, written_bytes, depth)
    # Products of one input are one GEMM, which writes the gradients of this input once.
    input_gradients = whole_rows * depth * (product.active if product.routed else 1.0) * ACTIVATION_BYTES
    inputs = gemm_seconds(moved, input_gradients, width)
    if not job.trained:
        return outputs, inputs, 0.0
    sums = 2 * weights * job.gradient_bytes
    return outputs, inputs, gemm_seconds(read_bytes + written_bytes + sums, sums, gemm_rows * product.gemms)


def _form(job: TrainingJob, *, narrow: bool) -> str:
    """Return the format of a product by the names of the timed kernels."""
    return job.dtype if narrow and job.dtype in NARROW_FORMS else "bf16"


def _attention_seconds(
    sheet: LayerProfile, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, rate: Number
) -> tuple[Number, Number]:
    """Return the seconds of attention forward and backward, fused or unfused."""
    c = engine.constants
    peak = peak_rate(system.chip.peak, WIDE_FORMATS)
    bandwidth = system.chip.hbm.bandwidth * c.memory_efficiency
    # Unaligned heads cannot use the matrix units, which limits unfused attention to the fp32 rate.
    unfused_rate = np.minimum(rate, peak_rate(system.chip.peak, ("fp32", "bf16", "fp16")))
    forward: Number = 0.0
    backward: Number = 0.0
    for a in sheet.attention:
        heads = shard_count(a.heads, x.tp) * x.cp
        if a.state_bytes:
            chip_tokens = x.micro_batch * job.seq / heads
            flops = a.state_flops_per_token + 2 * SCAN_CHUNK * sheet.scan_channels
            busy = flops / (peak * c.attention_efficiency * power_limit_factor(system, engine))
            forward_scan, backward_scan = (
                chip_tokens
                * np.maximum(
                    factor * busy,
                    (state_passes * a.state_bytes / SCAN_CHUNK + factor * sheet.scanned * ACTIVATION_BYTES) / bandwidth,
                )
                for factor, state_passes in ((1.0, SCAN_PASSES), (FLASH_BACKWARD, SCAN_PASSES_BACKWARD))
            )
            forward, backward = forward + forward_scan, backward + backward_scan
        elif job.attention == UNFUSED:
            score_count = job.seq * np.minimum(job.seq, a.window) * 1.0
            seconds = x.micro_batch * score_count * a.flops_per_pair_prefill / heads / (rate if is_aligned(a) else unfused_rate)
            score_bytes = SCORE_PASSES * ACTIVATION_BYTES * x.micro_batch * score_count * a.heads / heads
            seconds = seconds + score_bytes / bandwidth
            forward, backward = forward + seconds, backward + 2 * seconds
        else:
            pair_flops = x.micro_batch * pairs(a, job.seq * 1.0, 0.0) * a.flops_per_pair_prefill / heads
            faster = NARROW_ATTENTION_GAIN if job.has_fused_experts and job.narrow_attention else 1.0
            seconds = pair_flops / faster / (peak * c.attention_efficiency * power_limit_factor(system, engine))
            forward, backward = forward + seconds, backward + FLASH_BACKWARD * seconds
    return forward, backward


def is_aligned(a: Attention) -> bool:
    """Return whether the width of a head suits matrix units.

    Matrix units take rows of 16 bytes; other widths run on the vector units.

    Args:
        a: Attention of the layer.

    Returns:
        True if the head width is a multiple of 8 values.

    References:
        NVIDIA, "Matrix Multiplication Background", section 2.2: dimensions are multiples of 16 bytes for tensor cores.
    """
    return a.flops_per_pair_prefill / 4 / a.heads % 8 == 0


def collective_seconds(traffic: Traffic, engine: TrainingEngine) -> Number:
    """Return the time of a collective whose network levels run one after another.

    Args:
        traffic: Latency and busy time per network level.
        engine: Training stack.

    Returns:
        Seconds.
    """
    return sum(_level_seconds(traffic, engine), traffic.latency)


def concurrent_seconds(traffic: Traffic, engine: TrainingEngine) -> Number:
    """Return the time of an exchange whose network levels run at the same time.

    Args:
        traffic: Latency and busy time per network level.
        engine: Training stack.

    Returns:
        Seconds.

    References:
        DeepSeek-V3, arXiv 2412.19437, section 3.2.2: sending over InfiniBand, forwarding and receiving over NVLink overlap.
    """
    return traffic.latency + reduce(np.maximum, _level_seconds(traffic, engine))


def _level_seconds(traffic: Traffic, engine: TrainingEngine) -> list[Number]:
    """Return the time of each network level at the rate that the stack reaches on it."""
    c = engine.constants
    return [
        busy_seconds / (c.scale_out_efficiency if level else c.scale_up_efficiency)
        for level, busy_seconds in enumerate(traffic.busy)
    ]


def gathered_value_bytes(job: TrainingJob) -> float:
    """Return the bytes per value of an input that tensor-parallel ranks gather.

    Args:
        job: Sequences, formats and optimizer of a step.

    Returns:
        Bytes, in the format of the products if it is narrower than 16 bits.
    """
    return min(job.format.bytes, ACTIVATION_BYTES)


def gathered_weight_bytes(job: TrainingJob) -> float:
    """Return the bytes per weight that data-parallel ranks gather.

    Args:
        job: Sequences, formats and optimizer of a step.

    Returns:
        Bytes, in the format of the products if the stack keeps its weights in 8 bits.
    """
    return job.format.bytes if job.narrow_gather and job.dtype in GATHERED_FORMS else ACTIVATION_BYTES


def _add_exchanges(
    forward: Terms,
    backward: Terms,
    sheet: LayerProfile,
    job: TrainingJob,
    system: System,
    engine: TrainingEngine,
    x: TrainingLayout,
) -> None:
    """Add the exchanges of a layer between the chips of one replica."""
    c = engine.constants
    rows = x.micro_batch * job.seq / x.cp
    if np.any(np.asarray(x.tp) > 1):
        # Sharded inputs are gathered again for the gradients of the weights, hence 2 + trained in the backward
        # pass, unless the gathered inputs were saved.
        gather_share = 0.0 if job.gathered_inputs else job.trained
        gather, scatter = (
            collective_seconds(network_time.all_gather(system, x.tp, rows * sheet.boundary * size), engine)
            * (1 - c.tensor_overlap)
            for size in (gathered_value_bytes(job), ACTIVATION_BYTES)
        )
        forward["tensor parallel"] = sheet.blocks * (gather + scatter)
        backward["tensor parallel"] = sheet.blocks * ((1 + gather_share) * gather + scatter)
    if np.any(np.asarray(x.cp) > 1):
        _add_context_exchanges(forward, backward, sheet, system, engine, x, rows)
    if sheet.routed is not None and np.any(np.asarray(x.ep) > 1):
        computing_seconds = sum((terms.get(name, 0.0) for terms in (forward, backward) for name in COMPUTED), 0.0)
        exchange_seconds = _exchange_seconds(sheet.routed, job, system, engine, x, computing_seconds)
        forward["expert exchange"] = backward["expert exchange"] = exchange_seconds
    # Ranks that share an expert gather its rows and scatter its outputs.
    if sheet.routed is not None and np.any(np.asarray(x.etp) > 1):
        expert_bytes = rows / x.tp * sheet.routed.active * sheet.routed.inputs * ACTIVATION_BYTES * x.etp
        phase = collective_seconds(network_time.all_gather(system, x.etp, expert_bytes), engine) * (1 - c.tensor_overlap)
        for terms, factor in ((forward, 2.0), (backward, 2.0 + job.trained)):
            terms["expert exchange"] = terms.get("expert exchange", 0.0) + factor * phase


def _add_context_exchanges(
    forward: Terms,
    backward: Terms,
    sheet: LayerProfile,
    system: System,
    engine: TrainingEngine,
    x: TrainingLayout,
    rows: Number,
) -> None:
    """Add the exchanges between the ranks that share a sequence.

    rows: of a tensor-parallel group.
    """
    c = engine.constants
    for terms in (forward, backward):
        terms["context parallel"] = 0.0
    if sheet.exchanged:
        # Keys and values of the next step of the ring hide behind attention to those of this step; the first step has nothing
        # to receive. After each step but one, outputs of the step are added to the sums, on a second stream.
        passed_bytes = rows * sheet.exchanged * ACTIVATION_BYTES / x.tp
        ring_seconds = collective_seconds(network_time.ring(system, x.cp, passed_bytes, x.tp), engine)
        steps = np.asarray(x.cp) - 1.0
        added_values = steps * rows / x.tp * sheet.module_bytes["attention"] / ACTIVATION_BYTES
        added_seconds = added_values * RING_BYTES / (system.chip.hbm.bandwidth * c.memory_efficiency)
        for terms, factor in ((forward, 1.0), (backward, 2.0)):
            hidden_seconds = c.data_overlap * terms["attention"] * steps / x.cp
            exposed_seconds = np.maximum(factor * ring_seconds - hidden_seconds, 0.0)
            terms["context parallel"] = exposed_seconds + factor * added_seconds * (1 - c.data_overlap)
    if sheet.rearranged:
        # Inputs of a scan change from a part of the sequence to a part of the heads, and its outputs back; nothing hides them.
        for values in sheet.rearranged:
            traffic = network_time.all_to_all(system, x.cp, rows * values * ACTIVATION_BYTES / x.tp, x.tp)
            for terms in (forward, backward):
                terms["context parallel"] = terms["context parallel"] + collective_seconds(traffic, engine)


def _exchange_seconds(
    op: Op,
    job: TrainingJob,
    system: System,
    engine: TrainingEngine,
    x: TrainingLayout,
    computing_seconds: Number,
) -> Number:
    r"""Return the exposed seconds of dispatch and combine of a pass.

    Where a forward pass and a backward pass of two micro-batches run together, the exchanges of both hide behind the
    computation of both. An exchange of $c$ seconds takes a share $s$ of the multiprocessors while it runs. A computation of
    $T$ seconds then goes on at the rate $1 - s$. After the exchange, $T - (1 - s) c$ seconds of it are left: both
    take $T + s c$ together, or $c$ where the exchange is longer. The exposed time is $\max(s c, c - T)$.

    Source: DeepSeek-V3, arXiv 2412.19437, section 3.2.2: 20 multiprocessors are enough for the bandwidth of all links.

    computing_seconds: $T$, the computation of both passes of the layer.
    """
    c = engine.constants
    groups = (op.expert_groups, op.active_groups) if op.expert_groups > 1 else (1, 1)

    def traffic(value_bytes: float) -> Traffic:
        return network_time.exchange(
            system, x.ep, x.micro_batch * job.seq / x.cp / x.tp, op.inputs * value_bytes, experts=op.experts,
            active=round(op.active), expert_groups=groups[0], active_groups=groups[1], stride=x.etp,
        )  # fmt: skip

    combine = traffic(ACTIVATION_BYTES)
    pass_seconds = 2 * collective_seconds(combine, engine)
    seconds = pass_seconds * (1 - c.expert_overlap)
    # Schedules only matter with a pipeline.
    has_pairs = np.asarray(x.pp > 1) & (x.schedule in OVERLAPPING)
    # Recipes with 1F1B overlap the exchange with the next micro-batch; DualPipe always has two under way.
    is_overlapped_recipe = job.has_fused_experts or job.overlapped_exchange
    overlaps = has_pairs | (is_overlapped_recipe & np.asarray(job.batch > x.dp * x.micro_batch))
    if not np.any(overlaps):
        return seconds
    if np.any(has_pairs):
        dispatch = traffic(DISPATCHED_BYTES) if job.format.bytes < ACTIVATION_BYTES else combine
        pair_seconds = sum(concurrent_seconds(transfer, engine) for transfer in (dispatch, combine))
        pass_seconds = np.where(has_pairs, pair_seconds, pass_seconds)
    overlapped_seconds = np.maximum(SENDING_SHARE * pass_seconds, pass_seconds - computing_seconds / 2)
    return np.where(overlaps, np.minimum(seconds, overlapped_seconds), seconds)


def _add_recompute(
    forward: Terms,
    backward: Terms,
    sheet: LayerProfile,
    x: TrainingLayout,
    *,
    chip_rows: Number,
    rate: Number,
    element_bandwidth: Number,
) -> None:
    """Add the operators that the backward pass computes again."""
    if x.recompute in ("full", "reversible"):
        backward["recompute"] = sum(forward.values(), 0.0)
        return
    seconds: Number = 0.0
    if x.recompute == ALTERNATE:
        seconds = (forward.get("matrices", 0.0) + forward.get("experts", 0.0)) / 2 + forward["element-wise"]
    for module in recomputed_modules(x.recompute) if x.recompute != ALTERNATE else ():
        flops, values = sheet.recompute_work[module]
        seconds = seconds + chip_rows * flops / rate + chip_rows * values * ACTIVATION_BYTES / element_bandwidth
        if module == "attention":
            seconds = seconds + forward["attention"]
        # Recomputed experts need their tokens again, which repeats the exchange.
        if module == "moe":
            seconds = seconds + sum((forward.get(name, 0.0) for name in ("experts", "expert exchange", "launch")), 0.0)
    if has_nonzero(seconds):
        backward["recompute"] = seconds


def stem_passes(
    stem: Stem, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout
) -> tuple[Number, Number]:
    """Return the time of the head with its cross-entropy, forward and backward.

    Valid on the stage that has the head.

    Args:
        stem: Embedding and head.
        job: Sequences, formats and optimizer of a step.
        system: Chips and links.
        engine: Training stack.
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Seconds forward and backward of one micro-batch.
    """
    rows = x.micro_batch * job.seq / x.cp
    narrow, wide = product_rates(job, system, engine)
    once = rows * stem.head_flops / x.tp / (narrow if job.has_fused_experts and job.narrow_head else wide)
    loss = rows * stem.vocabulary / x.tp * LOGIT_BYTES / (system.chip.hbm.bandwidth * engine.constants.memory_efficiency)
    return once + loss / 3, once * (1 + job.trained) + loss * 2 / 3


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
    return _ranks_in_group(x, x.dp * x.cp)


def _ranks_in_group(x: TrainingLayout, ranks: Number) -> Number:
    """Return the ranks, or those of them in a sharding group."""
    group = np.asarray(x.sharding_group)
    return np.where(group > 0, np.minimum(np.maximum(group, 1), ranks), ranks) * 1.0


def exposed_exchange_seconds(
    parameters: ChipParameters, job: TrainingJob, system: System, engine: TrainingEngine, x: TrainingLayout, *, forward: Number,
    backward: Number, microbatches: Number, layers: Number = 1.0,
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
        layers: Layers on the chip; sharded weights are gathered layer by layer.

    Returns:
        Seconds per step that no pass hides.

    References:
        Fernandez et al., "Hardware Scaling Trends and Diminishing Returns in Large-Scale Distributed Training", arXiv
        2411.13055: the rings of ZeRO-3 slow with their ranks; 2,048 H100 are 37 % slower per chip than 128 with a 7B model.
    """
    overlap = engine.constants.data_overlap
    gradient_bytes, weight_bytes = job.gradient_bytes, gathered_weight_bytes(job)
    gradients = ChipParameters(job.trained * parameters.dense, job.trained * parameters.experts)
    replica_ranks = x.dp * x.cp * 1.0
    ranks = sharding_ranks(x)
    # Unless weights are sharded in groups, gradients of experts are reduced over all their copies.
    expert_ranks = expert_sharding_ranks(x) if x.sharding == "zero3" else np.maximum(x.expert_copies, 1.0)

    def gather_seconds(dense_bytes: Number, expert_bytes: Number, group_size: Number, stride: Number = 1) -> Number:
        dense = network_time.all_gather(system, group_size, dense_bytes, x.tp * stride)
        routed = network_time.all_gather(system, expert_ranks, expert_bytes, x.ep * x.etp)
        return collective_seconds(dense, engine) + np.where(
            np.asarray(expert_bytes) > 0, collective_seconds(routed, engine), 0.0
        )

    # ZeRO-3: weights are gathered twice and gradients scattered once per micro-batch, each layer by one ring.
    if x.sharding == "zero3":
        rings = layers * network_time.ring_latency(system, ranks, x.tp) if engine.rings else 0.0
        weight_gather = gather_seconds(parameters.dense * weight_bytes, parameters.experts * weight_bytes, ranks) + rings
        scatter = gather_seconds(gradients.dense * gradient_bytes, gradients.experts * gradient_bytes, ranks) + rings
        exposed_gather = np.maximum(weight_gather - overlap * forward, 0.0)
        seconds_per_microbatch = exposed_gather + np.maximum(weight_gather + scatter - overlap * backward, 0.0)
        pipeline_seconds = exposed_gather + np.maximum(scatter - overlap * backward, 0.0)
        # A pipeline keeps the weights of its stage gathered for a whole step.
        seconds = np.where(np.asarray(x.pp) > 1, pipeline_seconds, seconds_per_microbatch * microbatches)

        # Hybrid sharding: gradients are all-reduced between the sharding groups.
        groups = replica_ranks / ranks
        if np.any(groups > 1):
            seconds = seconds + np.maximum(
                2 * gather_seconds(gradients.all * gradient_bytes / ranks, 0.0, groups, ranks) - overlap * backward,
                0.0,
            ) * (groups > 1)
        return seconds

    # Without sharded weights: one reduction of gradients and one gather of weights per step.
    reduce = gather_seconds(gradients.dense * gradient_bytes, gradients.experts * gradient_bytes, replica_ranks)
    if x.sharding == "none":
        return np.maximum(2 * reduce - overlap * backward, 0.0)
    gather = gather_seconds(gradients.dense * weight_bytes, gradients.experts * weight_bytes, replica_ranks)
    seconds = np.maximum(reduce - overlap * backward, 0.0) + np.maximum(gather - overlap * forward, 0.0)

    # ZeRO-2 reduces sharded gradients at once; in a pipeline, after p micro-batches of a chunk. Only the last reduction is
    # limited to one micro-batch to hide behind.
    if x.sharding == "zero2":
        reduced_together = np.minimum(x.pp, microbatches)
        earlier_reductions = np.ceil(microbatches / reduced_together) - 1
        seconds = seconds + earlier_reductions * np.maximum(reduce - overlap * backward * reduced_together, 0.0)
    return seconds


def expert_sharding_ranks(x: TrainingLayout) -> Number:
    """Return the ranks that share the states of an expert.

    These are the copies of the expert, or those of them in a sharding group.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.

    Returns:
        Ranks.
    """
    return _ranks_in_group(x, np.maximum(x.expert_copies, 1.0))


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
    tier = host_memory(system)
    if tier is not None and job.offloads(OPTIMIZER):
        # Gradients and weights cross the link, in opposite directions, while the CPU works on others.
        link_bytes = max(job.gradient_bytes, ACTIVATION_BYTES)
        host_bytes = max(bytes_per_parameter, link_bytes)
        return host_bytes * (dense + experts) / tier.bandwidth + norm_bytes / system.chip.hbm.bandwidth
    # The element-wise passes of an optimizer are one fused kernel, which reaches the full memory bandwidth.
    return (bytes_per_parameter * (dense + experts) + norm_bytes) / system.chip.hbm.bandwidth
