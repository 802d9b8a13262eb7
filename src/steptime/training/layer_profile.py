"""Work and memory of a layer in training: products, element-wise, activations.

A profile has sums over the operators of a layer, per row of tokens, before any parallelism. A model has two or three kinds
of layers, so that a search over layouts works on a few numbers.

The saved activations follow from the operators. Attention, an activation or a norm reads the output of a product and saves
it. Products that close a block (`CLOSING`) write to the residual stream and save their input instead. A norm of the
residual stream saves its input and its output.

Source: Korthikanti et al., arXiv 2205.05198, section 4, for GPT. With flash attention, gated feed-forward blocks and
grouped queries this gives $2(4h + 2q + 2k + 3f + 2a)$ bytes per token. The peak is within 1 % of measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from steptime.models.model import Attention, Layer, Model, Op
from steptime.physics.op_work import CLOSING

# Bytes of a saved activation: 16 bits, for any format of the products.
ACTIVATION_BYTES = 2.0
# Bytes of the log-sum-exp that flash attention saves per head and row.
SUM_BYTES = 4.0
MODULES = ("attention", "norms", "activation", "mlp", "moe_act", "mla_up_proj", "shared_experts", "moe_input", "moe")
"""Modules that can be recomputed, by engine names; `mlp` includes `activation`, `moe` includes `moe_input` and `moe_act`."""


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of a layer that tensor parallelism divides alike.

    flops [FLOP per row], weights [parameters] and inputs, outputs [values per row] are sums over the products. limit:
    largest tensor parallel degree that divides them. For routed experts, `weights` counts all experts and `flops` those of
    one token.
    """

    flops: float
    weights: float
    inputs: float
    outputs: float
    limit: float = math.inf
    replicated: bool = False
    routed: bool = False
    # Whether engines compute it in 8 or 4 bits if the job uses such a format.
    narrow: bool = True


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """Work and memory of one kind of layer.

    element_values: values per row that norms and residual additions read or write; sequence parallelism divides these rows.
    module_bytes: bytes per row and module; "rest" is outside all modules. recompute_work: FLOPs and element values per row
    to compute a module again.
    """

    products: tuple[Product, ...]
    attention: tuple[Attention, ...]
    element_values: float
    quantised_values: float
    module_bytes: dict[str, float]
    # Values per row of the input of the layer.
    boundary: float
    # Bytes per row that all dense products write.
    product_bytes: float
    # Bytes per row that norms of the residual stream read.
    residual: float
    recompute_work: dict[str, tuple[float, float]]
    # Blocks around which tensor parallelism gathers and scatters.
    blocks: int
    routed: Op | None
    # Values per row that are permuted to experts and back, read and written.
    routed_values: float
    # Values per row of keys and values that context parallelism exchanges.
    exchanged: float
    # Parameters of norms and other small operators.
    small: float
    # Inputs and outputs of dense products: the parameters of an adapter of rank 1.
    widths: float
    # FLOPs of five Newton-Schulz iterations: of dense products, and of all experts.
    orthogonal: tuple[float, float]
    # Heads whose scores are written to memory where attention is not fused.
    scores: float


@dataclass(frozen=True, slots=True)
class Stem:
    """Embedding and head: parameters of both, and FLOPs per row of the head."""

    embedding: float
    head: float
    head_flops: float
    # Whether head and embedding are one matrix.
    shared: bool
    vocabulary: int
    width: int


@lru_cache(maxsize=256)
def layer_profiles(model: Model) -> tuple[tuple[LayerProfile, int], ...]:
    """Return the profile of each kind of layer with the number of layers.

    Args:
        model: Model to train.

    Returns:
        Profile and count of each kind.
    """
    return tuple((layer_profile(layer, model), n) for layer, n in model.layers)


@lru_cache(maxsize=256)
def draft_layer_profiles(model: Model) -> tuple[tuple[LayerProfile, int], ...]:
    """Return the profiles of the multi-token-prediction layers with their number.

    Args:
        model: Model to train.

    Returns:
        Profile and count of each kind.
    """
    return tuple((layer_profile(layer, model), n) for layer, n in model.draft)


@lru_cache(maxsize=256)
def stem_profile(model: Model) -> Stem:
    """Return the profile of embedding and head.

    Towers for images are left out; a text-only step does not use them.

    Args:
        model: Model to train.

    Returns:
        Embedding and head.
    """
    embedding = sum(op.total_weights for op in model.stem if op.term == "embedding")
    heads = [op for op in model.stem if op.rows == "outputs"]
    return Stem(
        embedding=embedding,
        head=sum(op.total_weights for op in heads),
        head_flops=sum(op.flops_per_row for op in heads),
        shared=not any(op.total_weights for op in model.stem if op.name == "embed_tokens"),
        vocabulary=model.vocabulary,
        width=model.width,
    )


def layer_profile(layer: Layer, model: Model) -> LayerProfile:
    """Return the profile of one layer.

    Args:
        layer: Layer of the model.
        model: Model to train.

    Returns:
        Work and memory per row.
    """
    ops, width = layer.ops, model.width
    # Group the operators: products, norms and routed experts.
    matrices = [op for op in ops if op.flops_per_row and op.rows in ("tokens", "routed")]
    norms = [op for op in ops if op.term == "norms" and op.inputs]
    routed = layer.routed
    active = routed.active if routed else 0.0
    expert_columns = routed.columns if routed else 0.0
    gated = 3 if routed and routed.flops_per_row >= 5 * width * max(expert_columns, 1) else 2

    def total(size: Callable[[Op], float], operators: list[Op]) -> float:
        return float(sum(size(op) for op in operators))

    def within(term: str, *, latent: bool | None = None) -> list[Op]:
        return [
            op
            for op in matrices
            if op.term == term and op.rows == "tokens" and (latent is None or _is_latent_expansion(op) == latent)
        ]

    # Saved activations by module: outputs of products, and inputs of products that close a block.
    activation_bytes = {
        "attention": ACTIVATION_BYTES * total(lambda op: op.inputs, [op for op in within("projections") if op.name in CLOSING])
        + SUM_BYTES * sum(a.heads for a in layer.attention if not a.state_bytes),
        "norms": ACTIVATION_BYTES * total(lambda op: op.outputs, norms),
        "mlp": ACTIVATION_BYTES * total(lambda op: op.outputs * (op.name not in CLOSING), within("feed-forward")),
        "activation": ACTIVATION_BYTES * total(lambda op: op.inputs * (op.name in CLOSING), within("feed-forward")),
        "mla_up_proj": ACTIVATION_BYTES * total(lambda op: op.outputs, within("projections", latent=True)),
        "shared_experts": ACTIVATION_BYTES * total(_stored_values, within("shared experts")),
        "moe": ACTIVATION_BYTES * active * (gated - 1) * expert_columns if routed else 0.0,
        "moe_input": ACTIVATION_BYTES * active * width,
        "moe_act": ACTIVATION_BYTES * active * expert_columns,
    }
    plain_projections = [op for op in within("projections", latent=False) if op.name not in CLOSING]
    # Outputs of other projections, inputs of norms, and the logits and probabilities of routers.
    routers = [op for op in matrices if op.name == "router"]
    activation_bytes["rest"] = ACTIVATION_BYTES * (
        total(lambda op: op.outputs, plain_projections)
        + total(lambda op: op.inputs, [op for op in norms if op.inputs == width])
        # The router saves logits and probabilities.
        + total(lambda op: 2 * op.outputs, routers)
    )

    # FLOPs and element values per row to compute a module again; `layer_time` adds the attention pass.
    recompute_work = {
        "attention": (0.0, 0.0),
        "norms": (0.0, total(lambda op: op.inputs + op.outputs, norms)),
        "mlp": (total(lambda op: op.flops_per_row * (op.name not in CLOSING), within("feed-forward")), 0.0),
        "activation": (0.0, 3 * total(lambda op: op.inputs * (op.name in CLOSING), within("feed-forward"))),
        "mla_up_proj": (total(lambda op: op.flops_per_row, within("projections", latent=True)), 0.0),
        "shared_experts": (total(lambda op: op.flops_per_row * (op.name not in CLOSING), within("shared experts")), 0.0),
        "moe_input": (0.0, 2 * width * active),
        "moe": ((gated - 1) / gated * active * routed.flops_per_row if routed else 0.0, 4 * width * active),
        "moe_act": (0.0, 3 * active * expert_columns),
    }
    return LayerProfile(
        products=_products(matrices),
        attention=layer.attention,
        element_values=_element_values(layer, norms, width),
        quantised_values=total(lambda op: op.inputs * (active if op.rows == "routed" else 1), _distinct_inputs(matrices))
        + active * expert_columns,
        module_bytes=activation_bytes,
        boundary=float(width),
        product_bytes=ACTIVATION_BYTES * total(lambda op: op.outputs, [op for op in matrices if op.rows == "tokens"]),
        residual=ACTIVATION_BYTES * total(lambda op: op.inputs, [op for op in norms if op.inputs == width]),
        recompute_work=recompute_work,
        blocks=bool(layer.attention) + bool(within("feed-forward") or within("shared experts")),
        routed=routed,
        routed_values=4 * width * active,
        exchanged=sum(_exchanged_values(a) for a in layer.attention),
        small=total(lambda op: op.total_weights, [op for op in ops if op not in matrices]),
        widths=total(lambda op: op.inputs + op.outputs, [op for op in matrices if op.rows == "tokens" and op.name != "router"]),
        orthogonal=(
            total(_newton_schulz, [op for op in matrices if op.rows == "tokens"]),
            routed.experts * 3 * _newton_schulz_of(width, expert_columns) if routed and expert_columns else 0.0,
        ),
        scores=float(sum(a.heads for a in layer.attention if not a.state_bytes)),
    )


def _newton_schulz(op: Op) -> float:
    return _newton_schulz_of(op.inputs, op.outputs)


def _newton_schulz_of(rows: float, columns: float) -> float:
    """Return the FLOPs of five iterations of Muon: $5 (4 m^2 n + 2 m^3)$.

    m is the smaller side (Jordan, "Muon", 2024).
    """
    m, n = min(rows, columns), max(rows, columns)
    return 5 * (4 * m * m * n + 2 * m**3)


def _is_latent_expansion(op: Op) -> bool:
    """Return whether an operator expands a latent into queries, keys or values."""
    return op.name in ("q_b_proj", "kv_b_proj")


def _stored_values(op: Op) -> float:
    return op.inputs if op.name in CLOSING else op.outputs


def _distinct_inputs(matrices: list[Op]) -> list[Op]:
    """Return one operator for each distinct input, which is quantized once."""
    operator_by_input = {(op.inputs, op.term, op.name in CLOSING): op for op in matrices if op.name != "router"}
    return list(operator_by_input.values())


def _exchanged_values(a: Attention) -> float:
    """Return the number of key and value elements per token, after expansion."""
    if a.state_bytes or not a.stored:
        return 0.0
    # Expanded keys and values of all heads: half of the FLOPs of a query-key pair, which are two per value.
    if a.expand_flops:
        return a.flops_per_pair_prefill / 2
    return a.kv_bytes / ACTIVATION_BYTES


def _element_values(layer: Layer, norms: list[Op], width: int) -> float:
    """Return the values that element-wise operators of a forward pass read and write.

    Norms read and write. A residual addition reads two values and writes one. An activation reads the outputs of the
    products and writes its product. Rotary positions read and write queries and keys.
    """
    values = sum(op.inputs + op.outputs for op in norms)
    blocks = bool(layer.attention) + any(op.term in ("feed-forward", "experts") for op in layer.ops)
    values += 3 * width * blocks
    for op in layer.ops:
        if op.term in ("feed-forward", "shared experts"):
            values += _stored_values(op)
        if op.term == "projections" and op.name in ("q_proj", "k_proj", "q_b_proj"):
            values += 2 * op.outputs
    if layer.routed:
        values += 3 * layer.routed.active * layer.routed.columns
    return float(values)


def _products(matrices: list[Op]) -> tuple[Product, ...]:
    """Return the products of a layer; products that are divided alike are summed."""
    # Few groups instead of many operators keep a search over layouts fast.
    groups: dict[tuple[float, bool, bool, bool], list[Op]] = {}
    for op in matrices:
        routed = op.rows == "routed"
        key = (op.split_limit, op.split == "replicated", routed, op.name != "router")
        groups.setdefault(key, []).append(op)
    return tuple(
        Product(
            flops=float(sum(op.flops_per_row * (op.active if routed else 1) for op in same)),
            weights=float(sum(op.total_weights for op in same)),
            inputs=float(sum(op.inputs * (op.active if routed else 1) for op in same)),
            outputs=float(sum(op.outputs * (op.active if routed else 1) for op in same)),
            limit=limit,
            replicated=replicated,
            routed=routed,
            narrow=narrow,
        )
        for (limit, replicated, routed, narrow), same in groups.items()
    )
