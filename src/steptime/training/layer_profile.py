r"""What training does with one layer: products, element-wise passes, and what each module keeps for its backward pass.

A sheet holds sums over the operators of a layer, per row of tokens, before anything is divided: a model has two or three, so
that a search over layouts works on a few numbers. What is kept follows from the operators. A product's output goes to
attention, to an activation or to a norm, which keeps it; the products that close a block (`CLOSING`) write to the residual
stream instead, and keep their input, which is what they multiply. A norm of the residual stream keeps its input and its output.
Source: Korthikanti et al., arXiv 2205.05198, section 4, for GPT; with flash attention, gated feed-forward blocks and grouped
queries that gives $2(4h + 2q + 2k + 3f + 2a)$ bytes a token, a peak within 1 % of measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from steptime.models.model import Attention, Layer, Model, Op
from steptime.physics.op_work import CLOSING

ACTIVATION_BYTES = 2.0  # bytes of a kept activation: 16 bits, whatever the products are computed in
SUM_BYTES = 4.0  # of the log-sum-exp that flash attention keeps for a head and a row
MODULES = ("attention", "norms", "activation", "mlp", "moe_act", "mla_up_proj", "shared_experts", "moe_input", "moe")
"""What can be computed again by itself, as engines name it; `mlp` holds `activation`, `moe` holds `moe_input` and `moe_act`."""


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of a layer that are divided alike.

    flops [FLOP per row], weights [parameters] and inputs, outputs [values per row] are sums over them; limit: ways that tensor
    parallelism can divide them. Routed experts: `weights` of all, `flops` of those that one token uses.
    """

    flops: float
    weights: float
    inputs: float
    outputs: float
    limit: float = math.inf
    replicated: bool = False
    routed: bool = False
    narrow: bool = True  # whether engines compute it in 8 or 4 bits where asked


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One kind of layer.

    rows that norms and residual additions touch: `element_values` [values per row, one read or write each], divided by sequence
    parallelism as all else is. module_bytes: bytes per row by module, "rest" what no module holds. recompute_work: the FLOPs
    and element values per row of computing a module again.
    """

    products: tuple[Product, ...]
    attention: tuple[Attention, ...]
    element_values: float
    quantised_values: float
    module_bytes: dict[str, float]
    boundary: float  # values per row of the layer's input
    product_bytes: float  # per row of what all dense products write
    residual: float  # bytes per row of what norms of the residual stream read
    recompute_work: dict[str, tuple[float, float]]
    blocks: int  # that tensor parallelism gathers and scatters around
    routed: Op | None
    routed_values: float  # values per row that are permuted to experts and back, read and written
    exchanged: float  # values per row of keys and values that context parallelism sends on
    small: float  # parameters of norms and other small operators
    widths: float  # inputs and outputs of dense products: what an adapter of rank 1 has of parameters
    orthogonal: tuple[float, float]  # FLOPs of five Newton-Schulz iterations: of dense products, and of all experts
    scores: float  # heads whose scores exist where attention is not fused


@dataclass(frozen=True, slots=True)
class Stem:
    """What stands around the layers: parameters of the embedding and of the head, and FLOPs per row of the head."""

    embedding: float
    head: float
    head_flops: float
    shared: bool  # whether head and embedding are one matrix
    vocabulary: int
    width: int


@lru_cache(maxsize=256)
def layer_profiles(model: Model) -> tuple[tuple[LayerProfile, int], ...]:
    """Return the sheet of each kind of layer, with how many there are."""
    return tuple((layer_profile(layer, model), n) for layer, n in model.layers)


@lru_cache(maxsize=256)
def draft_layer_profiles(model: Model) -> tuple[tuple[LayerProfile, int], ...]:
    """Return the sheets of multi-token-prediction layers, with how many there are."""
    return tuple((layer_profile(layer, model), n) for layer, n in model.draft)


@lru_cache(maxsize=256)
def stem_profile(model: Model) -> Stem:
    """Return what stands around the layers; towers for images are left out, as a text-only step leaves them idle."""
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
    """Return the sheet of one layer."""
    ops, width = layer.ops, model.width
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
    routers = [op for op in matrices if op.name == "router"]
    activation_bytes["rest"] = ACTIVATION_BYTES * (
        total(lambda op: op.outputs, plain_projections)
        + total(lambda op: op.inputs, [op for op in norms if op.inputs == width])
        + total(lambda op: 2 * op.outputs, routers)  # logits and probabilities
    )
    recompute_work = {
        "attention": (0.0, 0.0),  # its own pass, which `step` knows
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
    """FLOPs of Muon's five iterations on a matrix: $5 (4 m^2 n + 2 m^3)$, m the smaller side (Jordan, "Muon", 2024)."""
    m, n = min(rows, columns), max(rows, columns)
    return 5 * (4 * m * m * n + 2 * m**3)


def _is_latent_expansion(op: Op) -> bool:
    """Whether an operator expands a latent into queries, keys or values of all heads."""
    return op.name in ("q_b_proj", "kv_b_proj")


def _stored_values(op: Op) -> float:
    return op.inputs if op.name in CLOSING else op.outputs


def _distinct_inputs(matrices: list[Op]) -> list[Op]:
    """Return one operator of those that share an input: it is quantised once."""
    operator_by_input = {(op.inputs, op.term, op.name in CLOSING): op for op in matrices if op.name != "router"}
    return list(operator_by_input.values())


def _exchanged_values(a: Attention) -> float:
    """Values of keys and values of one token: expanded from a latent where there is one."""
    if a.state_bytes or not a.stored:
        return 0.0
    if a.expand_flops:  # k of every head, and v: what a pair multiplies, twice
        return a.flops_per_pair_prefill / 2
    return a.kv_bytes / ACTIVATION_BYTES


def _element_values(layer: Layer, norms: list[Op], width: int) -> float:
    """Values that element-wise operators of a forward pass read and write, each by itself.

    Norms read and write; a residual addition reads two and writes one; an activation reads what the products wrote and writes
    its product; rotary positions read and write queries and keys.
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
    """Return the products of a layer, those that are divided alike as one."""
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
