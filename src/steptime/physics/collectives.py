"""The collectives of a pass: which exchanges its layers need, and the time that each adds."""

from __future__ import annotations

import numpy as np

from steptime.blackboard.expert_activation import distinct_hit
from steptime.hardware.system import System
from steptime.models.model import Attention, Model, Op
from steptime.number_checks import Number, has_nonzero
from steptime.physics import network_time
from steptime.physics.chip_memory import ACTIVATION_BYTES
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout, shard_count
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import Work, ledger
from steptime.physics.time_ledger import Clock

SUM_BYTES = 4  # of a sum of squares, in fp32 (vLLM 0.19, model_executor/layers/mamba/linear_attn.py: forward_qk)
NORMS = "norms over all heads"
SHARED = "among the {sharing} chips that share an expert"


def run_network(clock: Clock, model: Model, work: Work, system: System, layout: Layout, engine: Engine) -> None:
    """Add the collectives of all layers."""
    rows = work.decode + work.prefill
    row_bytes = rows * model.width * ACTIVATION_BYTES
    has_dp_ranks = np.where(np.asarray(layout.dp) > 1, 1.0, 0.0)  # attention groups that exchange tokens
    sparse = sum(n for layer, n in model.layers if layer.routed)
    blocks = sum(n * (bool(layer.attention) + any(op.term == "feed-forward" for op in layer.ops)) for layer, n in model.layers)
    reductions = blocks + sparse * (1 - has_dp_ranks)
    if np.any(np.asarray(layout.group) > 1):
        _all_reduce(clock, layout.group, row_bytes, reductions, system, engine)
    if np.any(np.asarray(layout.tp) > 1):
        for attention, n in ledger(model, merged=True).mixers:
            if attention.summed:
                squares = rows * attention.summed * SUM_BYTES
                _all_reduce(clock, layout.tp, squares, n, system, engine, name=NORMS)
            if attention.gathered:
                values = rows * attention.gathered * ACTIVATION_BYTES
                gather = network_time.all_gather(system, layout.tp, values / 2)  # of queries, and of keys
                run_collective(clock, "all-reduce", gather * (2 * n), system, engine, name=f"{NORMS}, gathered", count=2 * n)
    if np.any(np.asarray(layout.cp) > 1):
        for attention, n in ledger(model, merged=True).mixers:
            traffic = _context_exchange(attention, work, system, layout) * n
            run_collective(clock, "context exchange", traffic, system, engine, count=n)
    if sparse and has_nonzero(has_dp_ranks):
        for layer, n in model.layers:
            if layer.routed:
                _run_exchange(clock, layer.routed, n * has_dp_ranks, model, work, system, layout, engine)


def run_hops(clock: Clock, model: Model, work: Work, system: System, layout: Layout, engine: Engine) -> None:
    """Add the hops of a micro-batch from stage to stage."""
    if np.any(np.asarray(layout.pp) > 1):
        bytes_ = (work.decode + work.prefill) * model.width * ACTIVATION_BYTES / layout.group
        traffic = network_time.point_to_point(system, layout.pp, bytes_, layout.stage)
        run_collective(clock, "pipeline", traffic, system, engine)


def run_collective(
    clock: Clock,
    term: str,
    traffic: Traffic,
    system: System,
    engine: Engine,
    *,
    name: str = "",
    count: Number = 1,
    pipelined: bool = False,
) -> None:
    """Add a collective: its levels one after another, or at once where tokens are forwarded as they come (`pipelined`)."""
    reached = engine.kernels.network_efficiency
    busy = {d.kind: b / reached for d, b in zip(system.domains, traffic.busy, strict=True) if has_nonzero(b)}
    blame: dict[str, Number] = dict(busy)
    moving: Number = 0.0
    if pipelined and len(busy) > 1:
        for b in busy.values():
            moving = np.maximum(moving, b)
        remaining = moving
        for kind, b in reversed(busy.items()):
            blame[kind] = np.where(b >= moving, remaining, 0.0)
            remaining = remaining - blame[kind]
    else:
        for b in busy.values():
            moving = moving + b
    waiting = blame["latency"] = traffic.latency
    if has_nonzero(engine.overheads.seconds_per_collective):
        blame["overhead"] = traffic.calls * engine.overheads.seconds_per_collective
        waiting = waiting + blame["overhead"]
    line = {"name": name, "count": count, "traffic": traffic, "at_once": pipelined}
    clock.record(term, moving + waiting, blame, {**busy, "latency": waiting}, **line)


def _all_reduce(
    clock: Clock, size: Number, bytes_: Number, count: Number, system: System, engine: Engine, *, name: str = ""
) -> None:
    """Add `count` all-reduces of so many bytes [B per chip] over groups of `size` chips."""
    phase, reached = engine.overheads.seconds_per_collective, engine.kernels.network_efficiency
    once = network_time.all_reduce(system, size, bytes_, overhead=phase, efficiency=reached)
    run_collective(clock, "all-reduce", once * count, system, engine, name=name, count=count)


def _context_exchange(a: Attention, work: Work, system: System, layout: Layout) -> Traffic:
    """Gather queries over the chips that divide a context, scatter partial outputs, and gather the cache of prompt prefixes."""
    values = work.decode * (a.query_values + a.output_values) / layout.tp * ACTIVATION_BYTES
    gathered = network_time.all_gather(system, layout.cp, values)
    if not has_nonzero(work.prompts):
        return gathered
    cached = work.prompts * np.minimum(work.prefix, a.window * a.stride) * a.kv_bytes / shard_count(a.kv_shards, layout.tp)
    return gathered + network_time.all_gather(system, layout.cp, cached)


def _run_exchange(
    clock: Clock, op: Op, count: Number, model: Model, work: Work, system: System, layout: Layout, engine: Engine
) -> None:
    """Add dispatch of tokens to their experts and combination of what comes back, which differ in bytes only."""
    sharing, active = layout.stage / layout.ep, round(op.active)
    groups = (op.expert_groups, op.active_groups) if op.expert_groups > 1 else (1, 1)
    per_byte = network_time.exchange(
        system,
        layout.ep,
        work.everywhere / layout.stage,
        model.width,
        experts=op.experts,
        active=active,
        expert_groups=groups[0],
        active_groups=groups[1],
        stride=sharing,
    )
    gathered = None
    if np.any(sharing > 1):
        rows = work.everywhere * distinct_hit(op.experts, active, layout.ep) / layout.ep
        gathered = network_time.all_gather(system, sharing, rows * model.width) * count
    per_byte = per_byte * count
    for term, value_bytes in (
        ("dispatch", min(ACTIVATION_BYTES, max(1.0, op.format.bytes))),
        ("combine", ACTIVATION_BYTES),
    ):
        run_collective(clock, term, per_byte.resized(value_bytes), system, engine, count=count, pipelined=True)
        if gathered is not None:
            run_collective(clock, term, gathered.resized(value_bytes), system, engine, name=SHARED, count=count)
