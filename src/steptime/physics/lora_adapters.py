r"""LoRA adapters: the memory of their slots, and the work of their products in a step.

An adapter of rank $r$ adds $B A$ to a matrix with $k$ inputs and $n$ outputs: $A$ is $r \times k$ and $B$ is $n \times r$.
One batch has requests of several adapters. Grouped products compute $y \mathrel{+}= B_i (A_i x)$ for the rows of each adapter
$i$: one kernel for all $A_i$ (shrink), one for all $B_i$ (expand).

**Memory.** Engines allocate all slots at the largest rank when they start, in 16 bits: $r (k + n)$ parameters per matrix.
Tensor parallelism divides one of the two. A matrix whose outputs are divided keeps $A$ whole and divides $B$; a matrix whose
inputs are divided divides $A$ and keeps $B$ whole.

**Time.** Of $s$ slots with equal popularity, $q$ requests use $d = s (1 - (1 - 1/s)^q)$ distinct ones. A step reads the
matrices of these once. Each row costs $2 r (k + n)$ FLOP. It reads $k$ inputs, writes and reads $r$ sums in 32 bits, and reads
and writes $n$ outputs. Each kernel also takes the engine's time per kernel.

Routed experts, embedding and head have no adapters here. Launch commands name the adapted matrices, so that an engine allocates
no more. All requests use an adapter; drafters and vision towers have none.

Not included:

- S-LoRA divides both matrices, at the cost of further collectives (`--fully-sharded-loras` of vLLM).
- SGLang all-reduces the sums of matrices whose inputs are divided: two small all-reduces per layer of a tensor-parallel group.

References:
    Punica, grouped products: https://arxiv.org/abs/2310.18547. S-LoRA, tensor parallelism: https://arxiv.org/abs/2311.03285
    vLLM, slots and their division: https://github.com/vllm-project/vllm/tree/main/vllm/lora/layers (base_linear.py,
    column_parallel_linear.py, row_parallel_linear.py), https://docs.vllm.ai/en/stable/api/vllm/config/lora/
    SGLang, the same division: https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/lora/layers.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from steptime.blackboard.expert_activation import experts_touched
from steptime.errors import InputError, RangeError
from steptime.hardware.number_formats import number_format
from steptime.models.model import LoraAdapters, Model, Op
from steptime.number_checks import Number
from steptime.physics.layout import CLOSING, SECOND, Layout, shard_count
from steptime.units import show

ALL_LINEAR: Final = "all-linear"
ATTENTION: Final = "attention"
# Terms of the operators that each target adapts. State-space mixers count as attention; shared experts as dense layers.
TERMS: Final = {ALL_LINEAR: ("projections", "feed-forward", "shared experts"), ATTENTION: ("projections",)}
# Words for the terms other than token mixers.
PARTS: Final = {"feed-forward": "dense layers", "shared experts": "shared experts"}
USUAL_RANK: Final = 16
# Bytes per parameter: adapters have the 16 bits of activations, https://docs.vllm.ai/en/stable/api/vllm/config/lora/
WEIGHT_BYTES: Final = 2.0
# Arithmetic of the products, best first.
ARITHMETIC: Final = number_format("bf16").arithmetic
# Bytes per input or output value, and per sum between shrink and expand (vllm/lora/punica_wrapper/punica_gpu.py).
VALUE_BYTES, SUM_BYTES = 2.0, 4.0
# Kernels per product with its own input: shrink and expand (SGLang: srt/lora/triton_ops/chunked_sgmv_*.py). vLLM also sets the
# sums to zero (vllm/lora/ops/triton_ops/lora_shrink_op.py, `output_tensor.zero_()`).
KERNELS: Final = 2
ENGINE_KERNELS: Final = {"vllm": 3}
# Ranks of vLLM's slots, https://docs.vllm.ai/en/stable/api/vllm/config/lora/ (`MaxLoRARanks`).
SLOT_RANKS: Final = {"vllm": (1, 8, 16, 32, 64, 128, 256, 320, 512)}
TERM: Final = "LoRA adapters"
# Matrices whose inputs chips divide; of state-space mixers also x_proj (vllm/model_executor/layers/mamba/mamba_mixer.py).
ROW_PARALLEL: Final = (*SECOND, "x_proj")
# Relative tolerance for FLOPs that equal 2 x inputs x outputs.
EXACT: Final = 1e-6


@dataclass(frozen=True, slots=True)
class AdapterProduct:
    """One grouped product on a chip in a micro-batch, in all layers that have it.

    instances: Layers. flops: FLOP. weights, activations: Bytes.
    """

    name: str
    instances: int
    flops: Number
    weights: Number
    activations: Number


def with_adapters(model: Model, slots: int, *, rank: int, target: str = ALL_LINEAR, engine_name: str = "") -> Model:
    """Return a model that is served with LoRA adapters.

    Args:
        model: The model.
        slots: Adapters in the memory of the chips, and in a batch.
        rank: Largest rank of an adapter.
        target: Matrices that adapters change, of `TERMS`.
        engine_name: Name of the engine, which may round the rank up.

    Returns:
        The model with its adapters, and notes on them.

    Raises:
        InputError: The model has no such matrices.
        RangeError: The engine has no slots of this rank.
    """
    adapters = LoraAdapters(slots=slots, rank=slot_rank(rank, engine_name), target=target)
    adapted = replace(model, adapters=adapters)
    if not adapted_layers(adapted):
        raise InputError(f"lora_target: {model.name} has no matrices that {target} adapts; leave lora_adapters out")
    parts = _adapted_parts(adapted)
    matrices = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    if target == ATTENTION and ATTENTION not in parts:
        raise InputError(f"lora_target: {model.name} has no attention to adapt; use {ALL_LINEAR}, for its {matrices}")
    size = adapter_parameters(adapted) * WEIGHT_BYTES
    rounded = f" (slots of {engine_name} for rank {rank})" if adapters.rank != rank else ""
    notes = [
        f"LoRA: each of the {slots:,} adapters of rank {adapters.rank}{rounded} takes {show(size, 'B')}, on the matrices of "
        f"{matrices}; every request uses one of them, all equally often"
    ]
    if model.routed:
        notes.append("LoRA: routed experts have no adapters here")
    return replace(adapted, notes=(*model.notes, *notes))


def _adapted_parts(model: Model) -> tuple[str, ...]:
    """Return the parts of the layers whose matrices have adapters, in words."""
    words = set()
    for layer, _ in model.layers:
        is_recurrent = bool(layer.attention) and all(mixer.state_bytes and not mixer.kv_bytes for mixer in layer.attention)
        mixer_words = "recurrent mixers" if is_recurrent else ATTENTION
        for ops, _ in adapted_layers(replace(model, layers=((layer, 1),))):
            words |= {mixer_words if op.term == "projections" else PARTS.get(op.term, op.term) for op in ops}
    order = (ATTENTION, "recurrent mixers", *PARTS.values())
    return tuple(sorted(words, key=order.index))


def slot_rank(rank: int, engine_name: str) -> int:
    """Return the rank of the slots that an engine allocates for adapters of a rank.

    Args:
        rank: Largest rank of an adapter.
        engine_name: Name of the engine.

    Returns:
        The smallest possible rank that is at least `rank`.

    Raises:
        RangeError: The engine has no slots of this rank.

    >>> slot_rank(24, "vllm"), slot_rank(24, "sglang")
    (32, 24)
    """
    ranks = SLOT_RANKS.get(engine_name, (rank,))
    if rank > ranks[-1]:
        raise RangeError(f"lora_rank: must be at most {ranks[-1]} with engine {engine_name}, got {rank}; give a lower rank")
    return next(possible for possible in ranks if possible >= rank)


@lru_cache(maxsize=64)
def adapted_layers(model: Model) -> tuple[tuple[tuple[Op, ...], int], ...]:
    """Return the operators with adapters, by kind of layer.

    Args:
        model: The model.

    Returns:
        Operators and the number of such layers; empty for a model without adapters.
    """
    if model.adapters is None:
        return ()
    terms = TERMS[model.adapters.target]

    def is_adapted(op: Op) -> bool:
        product = 2 * op.inputs * op.outputs
        return op.rows == "tokens" and op.term in terms and product > 0 and abs(op.flops_per_row - product) <= EXACT * product

    kinds = [(tuple(filter(is_adapted, layer.ops)), n) for layer, n in model.layers]
    return tuple((ops, n) for ops, n in kinds if ops)


def adapter_parameters(model: Model) -> float:
    """Return the parameters of one adapter.

    Args:
        model: A model with adapters.

    Returns:
        Parameters; 0 for a model without adapters.
    """
    rank = 0 if model.adapters is None else model.adapters.rank
    return sum(n * rank * (op.inputs + op.outputs) * op.stored for ops, n in adapted_layers(model) for op in ops)


def adapted_names(model: Model) -> tuple[str, ...]:
    """Return the names of the matrices with adapters, each once.

    Args:
        model: A model with adapters.

    Returns:
        Names, as in the checkpoint.
    """
    return tuple(dict.fromkeys(op.name for ops, _ in adapted_layers(model) for op in ops))


def sharing(op: Op, group: Number) -> tuple[Number, Number]:
    """Return the number of shards of the two matrices of an adapter.

    Args:
        op: The operator that it adapts.
        group: Chips of a tensor-parallel group.

    Returns:
        Shards of A (shrink) and of B (expand).
    """
    shards = 1.0 if op.split == "replicated" else shard_count(op.split_limit, group)
    return (shards, 1.0) if op.name in ROW_PARALLEL else (1.0, shards)


def adapter_bytes(model: Model, layout: Layout) -> Number:
    """Return the bytes of all slots on a chip, if the chip had all layers.

    Args:
        model: A model with adapters.
        layout: Parallel degrees; fields may be arrays.

    Returns:
        Bytes.
    """
    assert model.adapters is not None
    values: Number = 0.0
    for ops, n in adapted_layers(model):
        for op in ops:
            shrink, expand = sharing(op, layout.group)
            values = values + n * op.stored * (op.inputs / shrink + op.outputs / expand)
    return model.adapters.slots * model.adapters.rank * WEIGHT_BYTES * values


def distinct_adapters(slots: Number, requests: Number) -> Number:
    """Return the expected number of distinct adapters that requests use.

    Args:
        slots: Adapters with equal popularity.
        requests: Requests; a mean number below 1 is the share of steps with a request.

    Returns:
        Adapters.

    >>> [round(float(distinct_adapters(8, requests)), 3) for requests in (0.5, 1, 8, 64)]
    [0.5, 1.0, 5.251, 7.998]
    """
    return np.minimum(experts_touched(slots, 1, requests), requests)


def adapter_products(
    model: Model, group: Number, *, rows: Number, requests: Number, activation_traffic: Number
) -> Iterator[AdapterProduct]:
    """Yield the grouped products of adapters on a chip for one micro-batch.

    Args:
        model: A model with adapters.
        group: Chips of a tensor-parallel group.
        rows: Rows of a data-parallel rank.
        requests: Sequences and prompts of the rank.
        activation_traffic: Share of activations that passes through memory.

    Yields:
        Shrink and expand of each kind of matrix.
    """
    assert model.adapters is not None
    rank, distinct = model.adapters.rank, distinct_adapters(model.adapters.slots, requests)
    counts: dict[tuple[str, float, float, float], tuple[Op, int]] = {}
    for ops, n in adapted_layers(model):
        for op in ops:
            key = (op.name, op.inputs, op.outputs, op.split_limit)
            counts[key] = (op, n + counts.get(key, (op, 0))[1])
    for op, n in counts.values():
        shrink, expand = sharing(op, group)
        inputs, outputs = op.inputs / shrink, op.outputs / expand
        for name, values, moved in (("shrink", inputs, inputs), ("expand", outputs, 2 * outputs)):
            yield AdapterProduct(
                name=f"{op.name}, {name}",
                instances=n,
                flops=n * rows * (2 * rank * values),
                weights=n * distinct * (rank * WEIGHT_BYTES * values),
                activations=n * rows * (activation_traffic * (moved * VALUE_BYTES + rank * SUM_BYTES)),
            )


def adapter_kernels(model: Model, engine_name: str) -> int:
    """Return the kernels of adapters in a pass: products of one input share theirs.

    Args:
        model: A model with adapters.
        engine_name: Name of the engine whose kernels run.

    Returns:
        Kernels of all layers.
    """
    products = sum(n * len({(op.inputs, op.term, op.name in CLOSING) for op in ops}) for ops, n in adapted_layers(model))
    return products * ENGINE_KERNELS.get(engine_name, KERNELS)
