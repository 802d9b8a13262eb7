"""A training run for the writers of commands: one layout in whole numbers, its hosts and chunks, and the model's shape.

The shape has the numbers that flags of training stacks need, for plain GPTs and Llamas, with experts or latent attention. They
come from the operators of a `Model`, so that your own config works like one of the catalogue. Features that such flags cannot
express (windows, linear or sparse attention, parallel layers) are listed in words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptime.errors import LayoutError
from steptime.hardware.system import System
from steptime.launch.shell_script import select_texts
from steptime.models.model import Layer, Model, Op
from steptime.physics.layout import host_chips
from steptime.training.layer_profile import STEM_LAYERS, has_dense_prologue, layers_of_chunks
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import DEGREES, TrainingJob, TrainingLayout, read_layers

# Steps of a run that only measures.
STEPS: Final = 100
# Note of the stacks whose data are synthetic.
SYNTHETIC: Final = f"synthetic data, {STEPS} steps and a learning rate only to time a step: replace them for training"
# Port on which the hosts of a run meet.
PORT: Final = 29500
# Families whose attention has a bias by distance, without position embeddings or rotation.
ALIBI: Final = ("bloom", "mpt")
# Norms of the residual stream in a plain layer.
WHOLE_NORM: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention: ranks of queries (0: none) and keys, and the parts of a head.

    A head has plain, rotary and value dimensions.
    """

    query_rank: int
    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of a layer.

    count: all experts. active: experts per token. width: hidden size of one. shared: hidden size of the shared experts.
    groups: expert groups, and groups that a token uses.
    """

    count: int
    active: int
    width: int
    shared: int
    groups: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model in the numbers of training flags.

    head: query dimensions per head. hidden: hidden size of dense feed-forward blocks. dense: layers before those with experts.
    drafts: multi-token-prediction layers. odd: features that flags cannot express, in words.
    """

    layers: int
    width: int
    heads: int
    groups: int
    head: int
    hidden: int
    vocabulary: int
    gated: bool
    tied: bool
    learned_positions: bool
    rms: bool
    bias: bool
    qkv_bias: bool
    query_norms: bool
    latent: Latent | None
    experts: Experts | None
    dense: int
    drafts: int
    odd: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run in whole numbers: parallel sizes, batch, and hosts."""

    model: Model
    job: TrainingJob
    layout: TrainingLayout
    system: System
    shape: Shape
    tp: int
    pp: int
    virtual: int
    cp: int
    ep: int
    etp: int
    dp: int
    micro_batch: int
    seq: int
    batch: int
    nodes: int
    per_node: int

    @property
    def chips(self) -> int:
        """Number of chips of all hosts."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def chunks(self) -> int:
        """Number of chunks of layers: the virtual stages of all pipeline stages."""
        return self.pp * self.virtual

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a data-parallel rank per step."""
        return self.batch // (self.micro_batch * self.dp)

    @property
    def group(self) -> int:
        """Data-parallel ranks that share one copy of the sharded states."""
        return int(self.layout.sharding_group) or self.dp

    @property
    def schedule(self) -> str:
        """Full name of the pipeline schedule; "" without a pipeline."""
        return schedule_named(self.layout.schedule).name if self.pp > 1 else ""

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the recomputed modules; () for none, "selective" means attention."""
        word = self.layout.recompute
        return () if word in ("", "none") else ("attention",) if word == "selective" else tuple(word.split("+"))

    @property
    def vendor(self) -> str:
        """Manufacturer of the chips; "" if it is not known."""
        return self.system.chip.vendor

    @property
    def blackwell(self) -> bool:
        """Whether the chips are NVIDIA Blackwell or later, the first with fp4 GEMMs."""
        return self.vendor == "NVIDIA" and "fp4" in self.system.chip.peak

    @property
    def given_layers(self) -> tuple[int, ...]:
        """Layers of each chunk if the layout gives them, else ()."""
        return read_layers(self.layout.layers) if self.layout.layers else ()

    @property
    def even(self) -> bool:
        """Whether all chunks have the same number of layers."""
        return len(set(self.given_layers)) == 1 if self.given_layers else self.shape.layers % self.chunks == 0

    @property
    def slotted(self) -> bool:
        """Whether all chunks are equal if embedding and head count as one layer each."""
        if self.even:
            return False
        if not self.given_layers:
            return (self.shape.layers + STEM_LAYERS) % self.chunks == 0
        first, *between, last = self.given_layers
        return len({first + 1, *between, last + 1}) == 1

    @property
    def drafts(self) -> int:
        """Multi-token-prediction layers that are trained."""
        return self.shape.drafts if self.job.mtp else 0


def training_run(model: Model, job: TrainingJob, layout: TrainingLayout, system: System) -> Run:
    """Return the run that a layout describes.

    Args:
        model: The model.
        job: Sequence length, batch, formats and optimizer.
        layout: One training layout.
        system: The machine.

    Returns:
        The run in whole numbers.

    Raises:
        LayoutError: If the layout is an array, or does not divide chips or batch, or its schedule does not run.
    """
    numbers: dict[str, int] = {}
    for name, value in {**{n: getattr(layout, n) for n in DEGREES}, "seq": job.seq, "batch": job.batch}.items():
        if np.ndim(value):
            raise LayoutError(
                f"{name}: must be one number to write commands, got an array of {np.size(value)}; give one layout"
            )
        numbers[name] = int(value)
    host = host_chips(system)
    chips = numbers["tp"] * numbers["cp"] * numbers["pp"] * numbers["dp"]

    # The smallest number of hosts must divide the chips, since launchers start equal hosts.
    nodes = -(-chips // host)
    if chips % nodes:
        raise LayoutError(
            f"chips: must divide evenly over {nodes} hosts of {host}, got {chips}; use {chips // host * host} chips"
        )
    sequences_per_step = numbers["micro_batch"] * numbers["dp"]
    if numbers["batch"] % sequences_per_step:
        raise LayoutError(
            f"batch: must be a multiple of dp {numbers['dp']} x micro-batch {numbers['micro_batch']}, got {numbers['batch']}; "
            f"use {max(numbers['batch'] // sequences_per_step, 1) * sequences_per_step}"
        )
    virtual = numbers.pop("virtual_stages")
    if numbers["pp"] > 1:
        schedule_named(layout.schedule).check(numbers["pp"], numbers["batch"] // sequences_per_step, virtual)
    return Run(
        model=model, job=job, layout=layout, system=system, shape=_model_shape(model, numbers["seq"]), virtual=virtual,
        nodes=nodes, per_node=chips // nodes, **numbers,
    )  # fmt: skip


def layers_by_chunk(run: Run) -> list[int]:
    """Return the layers of each chunk, in the order of a micro-batch's path.

    Args:
        run: The training run.

    Returns:
        The given layers, or evenly divided ones.
    """
    if run.given_layers:
        return list(run.given_layers)
    path = schedule_named(run.layout.schedule).paths(run.pp, run.virtual)[0]
    return layers_of_chunks(run.shape.layers, [int(stage) for stage, _ in path])


def hosts_started(run: Run) -> list[str]:
    """Return the note on the hosts of a command.

    Args:
        run: The training run.

    Returns:
        One note; empty for a single host.
    """
    ranks = f"with NODE_RANK from 0 to {run.nodes - 1}"
    return select_texts((run.nodes > 1, f"run on each of {run.nodes} hosts, {ranks}; HEAD_ADDRESS: address of the first host"))


def torchrun(run: Run) -> list[str]:
    """Return `torchrun` with its hosts and the chips of each.

    Args:
        run: The training run.

    Returns:
        Words of the command.
    """
    hosts = [
        "torchrun", f"--nnodes {run.nodes}", "--node-rank $NODE_RANK", "--master-addr $HEAD_ADDRESS", f"--master-port {PORT}",
    ]  # fmt: skip
    return [*(hosts if run.nodes > 1 else ["torchrun --standalone"]), f"--nproc-per-node {run.per_node}"]


# --- the model's shape --------------------------------------------------------------------------------------------------


def _model_shape(model: Model, seq: float) -> Shape:
    """Return the numbers of a model for flags; windows longer than `seq` tokens have no effect.

    >>> import steptime as st
    >>> shape = _model_shape(st.load_model("llama-3.1-8b"), 8192)
    >>> shape.width, shape.groups, shape.hidden, shape.odd
    (4096, 8, 14336, ())
    """
    # First and last kind of layer: dense layers come before those with experts.
    kinds = [layer for layer, _ in model.layers]
    first, routed = kinds[0], kinds[-1].routed
    query, keys = _find_op(first, "q_b_proj") or _find_op(first, "q_proj"), _find_op(first, "k_proj")
    inner = [op for layer in kinds for op in layer.ops if op.term == "feed-forward"]
    experts = _experts(kinds[-1])
    norms = [op for op in first.ops if op.term == "norms" and op.inputs == model.width and op.name not in ("q_norm", "k_norm")]
    head = int(query.outputs / model.heads) if query else 0
    gated_experts = routed is not None and routed.columns > 0 and routed.flops_per_row >= 5 * routed.inputs * routed.columns
    return Shape(
        layers=model.depth,
        width=model.width,
        heads=model.heads,
        # Without a key projection of that name, every head has its own keys.
        groups=int(keys.outputs / head) if keys and head else model.heads,
        head=head,
        hidden=int(max((op.inputs for op in inner if op.name == "down_proj"), default=experts.width if experts else 0)),
        vocabulary=model.vocabulary,
        gated=any(op.name == "gate_proj" for op in inner) or gated_experts,
        tied=not any(op.name == "embed_tokens" and op.total_weights for op in model.stem),
        learned_positions=any(op.name == "positions" for op in model.stem),
        rms=all(op.total_weights <= op.inputs for op in norms),
        bias=any(map(_biased, [_find_op(first, "o_proj"), *inner])),
        qkv_bias=_biased(query) or _biased(_find_op(first, "v_proj")),
        query_norms=_find_op(first, "q_norm") is not None,
        latent=_latent(first, model.heads),
        experts=experts,
        dense=model.layers[0][1] if len(kinds) > 1 and not first.routed and routed else 0,
        drafts=sum(n for _, n in model.draft),
        odd=tuple(_odd(model, seq, len(norms), head)),
    )


def _find_op(layer: Layer, name: str) -> Op | None:
    return next((op for op in layer.ops if op.name == name and op.term != "shared experts"), None)


def _biased(op: Op | None) -> bool:
    return op is not None and op.weights > op.inputs * op.outputs


def _latent(layer: Layer, heads: int) -> Latent | None:
    keys, expanded, out = _find_op(layer, "kv_a_proj_with_mqa"), _find_op(layer, "kv_b_proj"), _find_op(layer, "o_proj")
    query, ranked = _find_op(layer, "q_b_proj") or _find_op(layer, "q_proj"), _find_op(layer, "q_a_proj")
    if keys is None or expanded is None or query is None or out is None:
        return None
    rank = int(expanded.inputs)
    rotary = int(keys.outputs) - rank
    return Latent(
        query_rank=int(ranked.outputs) if ranked else 0,
        rank=rank,
        plain=int(query.outputs / heads) - rotary,
        rotary=rotary,
        value=int(out.inputs / heads),
    )


def _experts(layer: Layer) -> Experts | None:
    routed = layer.routed
    if routed is None:
        return None
    return Experts(
        count=routed.experts,
        active=int(routed.active),
        width=routed.columns,
        shared=int(sum(op.inputs for op in layer.ops if op.term == "shared experts" and op.name == "down_proj")),
        groups=(routed.expert_groups, routed.active_groups),
    )


def _odd(model: Model, seq: float, norms: int, head: int) -> list[str]:
    """Return the features that flags of plain models cannot express."""
    kinds = [layer for layer, _ in model.layers]
    mixers = [a for layer in kinds for a in layer.attention]
    ops = [op for layer in kinds for op in layer.ops]
    window = min((a.window for a in mixers), default=math.inf)

    # A dense prologue before layers with experts is plain; any other alternation is not.
    mixed = len({layer.routed is None for layer in kinds}) > 1
    plain = len(kinds) == 1 or (len(kinds) == 2 and mixed and has_dense_prologue([n for _, n in model.layers]))
    return select_texts(
        (
            any(a.state_bytes for a in mixers) or not all(layer.attention for layer in kinds),
            "layers with a recurrent state, or without attention",
        ),
        (window < seq, f"windows of {window:,.0f} tokens in sequences of {seq:,.0f}"),
        (any(a.selected < seq or a.stride > 1 for a in mixers), "sparse attention"),
        (not all(a.stored for a in mixers), "layers that share keys and values"),
        (not plain, "layers of several kinds that alternate"),
        (norms != WHOLE_NORM, f"{norms} norms of the residual stream in a layer, not {WHOLE_NORM}"),
        (any(op.name == "q_norm" and op.total_weights > head for op in ops), "norms of queries over all heads"),
        (any(op.name == "sinks" for op in ops), "attention sinks"),
        (model.family in ALIBI, "attention biased by distance (ALiBi)"),
        (not all(0 < a.flops_per_pair_prefill < math.inf for a in mixers), "attention of an unknown kind"),
    )
