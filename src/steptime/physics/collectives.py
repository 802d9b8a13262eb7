"""Collectives of a forward pass: the exchanges that its layers need, with times.

A phase of an exchange of tokens with experts takes longer than one of other collectives: counts and rows of each expert are
sent, and every chip waits for all. Kernels of DeepEP (low latency) take 14 to 22 us for a few tokens on NVLink, where a phase
of an all-reduce takes 5 us. `data/kernels/exchange.toml` has the seconds by generation of chips (`docs/fit_exchange.py`).
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from steptime.blackboard.expert_activation import distinct_hit
from steptime.catalog.data_files import PACKAGED, read_file
from steptime.hardware.system import System
from steptime.models.model import Attention, Model, Op
from steptime.number_checks import Number, has_nonzero
from steptime.physics import network_time
from steptime.physics.attention_kernels import ANY
from steptime.physics.chip_memory import ACTIVATION_BYTES
from steptime.physics.engine import Engine, launch_factor
from steptime.physics.layout import Layout, shard_count
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import Pass, Work, ledger
from steptime.physics.time_ledger import Clock

# Bytes of a sum of squares in fp32 (vLLM 0.19, model_executor/layers/mamba/linear_attn.py: forward_qk).
SUM_BYTES = 4
NORMS = "norms over all heads"
SHARED = "among the {sharing} chips that share an expert"


def run_network(clock: Clock, hops: Clock, model: Model, context: Pass) -> None:
    """Add the collectives of all layers to a clock, and the transfers between pipeline stages to another.

    Args:
        clock: Sums of seconds of collectives, which this function increases.
        hops: The same of transfers between stages.
        model: The model.
        context: Work of a micro-batch on a chip.
    """
    work, system, layout, engine, rows = context.work, context.system, context.layout, context.engine, context.rows
    row_bytes = rows * model.width * ACTIVATION_BYTES

    # Data-parallel ranks exchange tokens with experts by dispatch and combine, which replace the all-reduce of the experts.
    has_dp_ranks = np.where(np.asarray(layout.dp) > 1, 1.0, 0.0)
    sparse = sum(n for layer, n in model.layers if layer.routed)
    blocks = sum(n * (bool(layer.attention) + any(op.term == "feed-forward" for op in layer.ops)) for layer, n in model.layers)
    reductions = blocks + sparse * (1 - has_dp_ranks)
    phase, reached = collective_phase(system, engine), engine.kernels.network_efficiency
    all_reduce = partial(network_time.all_reduce, system, overhead=phase, efficiency=reached)
    if has_nonzero(layout.group > 1):
        traffic = all_reduce(layout.group, row_bytes) * reductions
        run_collective(clock, "all-reduce", traffic, system, engine, count=reductions)

    # Norms over all heads need values from every tensor-parallel rank.
    if has_nonzero(layout.tp > 1):
        for attention, n in ledger(model, merged=True).mixers:
            if attention.summed:
                squares = rows * attention.summed * SUM_BYTES
                run_collective(clock, "all-reduce", all_reduce(layout.tp, squares) * n, system, engine, name=NORMS, count=n)
            if attention.gathered:
                values = rows * attention.gathered * ACTIVATION_BYTES
                # One all-gather for the queries and one for the keys.
                gather = network_time.all_gather(system, layout.tp, values / 2)
                run_collective(clock, "all-reduce", gather * (2 * n), system, engine, name=f"{NORMS}, gathered", count=2 * n)
    if has_nonzero(layout.cp > 1):
        for attention, n in ledger(model, merged=True).mixers:
            traffic = _context_exchange(attention, work, system, layout) * n
            run_collective(clock, "context exchange", traffic, system, engine, count=n)
    if sparse and has_nonzero(has_dp_ranks):
        for layer, n in model.layers:
            if layer.routed:
                exchange = _run_gather if has_nonzero(engine.kernels.gathers_tokens) else _run_exchange
                exchange(clock, layer.routed, n * has_dp_ranks, model, context)
    if has_nonzero(layout.pp > 1):
        traffic = network_time.point_to_point(system, layout.pp, row_bytes / layout.group, layout.stage)
        run_collective(hops, "pipeline", traffic, system, engine)


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
    phase: Number | None = None,
) -> None:
    """Add one collective to a clock.

    Args:
        clock: Sums of seconds, which this function increases.
        term: Term of the step, such as "all-reduce".
        traffic: Busy seconds of each link level, latency and calls.
        system: The system.
        engine: The engine.
        name: Name of the line in the ledger.
        count: Number of collectives in `traffic`.
        pipelined: Whether the levels work at the same time, because tokens are forwarded as they arrive. Otherwise the
            levels run one after another.
        phase: Seconds of a phase besides its transfer; by default the engine's `seconds_per_collective`.
    """
    reached = engine.kernels.network_efficiency
    busy = {d.kind: b / reached for d, b in zip(system.domains, traffic.busy, strict=True) if has_nonzero(b)}
    blame: dict[str, Number] = dict(busy)
    moving: Number = 0.0
    if pipelined and len(busy) > 1:
        # Levels overlap: the slowest level sets the time, and the step waits for it only.
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
    phase = collective_phase(system, engine) if phase is None else phase
    if has_nonzero(phase):
        blame["overhead"] = traffic.calls * phase
        waiting = waiting + blame["overhead"]
    line = {"name": name, "count": count, "traffic": traffic, "at_once": pipelined, "seconds_each": phase}
    clock.add({term: moving + waiting}, blame, {**busy, "latency": waiting}, **line)


def _context_exchange(a: Attention, work: Work, system: System, layout: Layout) -> Traffic:
    """Return the traffic of context parallelism: queries and outputs of decode, and cached prefixes of prompts."""
    gather = partial(network_time.all_gather, system, layout.cp)
    # Means below 1 are shares of steps; a step without the rows has no exchange of them.
    decodes, prefixed = np.minimum(work.decode, 1.0), np.minimum(work.prompts, 1.0) * (np.asarray(work.prefix) > 0)
    values = work.decode * (a.query_values + a.output_values) / layout.tp * ACTIVATION_BYTES
    cached = work.prompts * np.minimum(work.prefix, a.window * a.stride) * a.kv_bytes / shard_count(a.kv_shards, layout.tp)
    return gather(values).called(decodes) + gather(cached).called(prefixed)


def _run_exchange(clock: Clock, op: Op, count: Number, model: Model, context: Pass) -> None:
    """Add dispatch of tokens to their experts and combination of the results."""
    work, system, layout, engine = context.work, context.system, context.layout, context.engine
    # Dispatch and combine differ in bytes only, so that one traffic per byte serves both.
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
    phase = exchange_phase(system, engine)
    gathered = None
    # Chips that share an expert each need all of its rows.
    if has_nonzero(sharing > 1):
        rows = work.everywhere * distinct_hit(op.experts, active, layout.ep) / layout.ep
        gathered = network_time.all_gather(system, sharing, rows * model.width) * count
    per_byte = per_byte * count
    for term, value_bytes in (("dispatch", min(ACTIVATION_BYTES, max(1.0, op.format.bytes))), ("combine", ACTIVATION_BYTES)):
        run_collective(clock, term, per_byte.resized(value_bytes), system, engine, count=count, pipelined=True, phase=phase)
        if gathered is not None:
            run_collective(clock, term, gathered.resized(value_bytes), system, engine, name=SHARED, count=count)


def _run_gather(clock: Clock, op: Op, count: Number, model: Model, context: Pass) -> None:
    """Add the gathering of all tokens before the experts and the sum of the results, without an exchange of tokens.

    In a step with prompts both are all-reduces of the tokens of all ranks, whose numbers differ. In a decode step they are an
    all-gather and a reduce-scatter of equal numbers (SGLang 0.5.23, layers/dp_attention.py: DpPaddingMode). NCCL runs these.
    With few tokens each takes as long as a phase of an exchange: 16 to 19 us on eight B200, 10 to 13 us on eight H100
    (aiconfigurator-core 0.12.0, systems/data, nccl_perf).
    """
    work, system, layout, engine = context.work, context.system, context.layout, context.engine
    every_row = work.everywhere * model.width * ACTIVATION_BYTES
    phase, reached = collective_phase(system, engine), engine.kernels.network_efficiency
    has_prompts = np.asarray(work.prompts) > 0
    reduced = network_time.all_reduce(system, layout.stage, every_row, overhead=phase, efficiency=reached)
    traffic = network_time.choose(reduced, network_time.all_gather(system, layout.stage, every_row), has_prompts)
    phase = np.where(has_prompts, phase, exchange_phase(system, engine))
    for term in ("dispatch", "combine"):
        run_collective(clock, term, traffic * count, system, engine, name=op.name, count=count, phase=phase)


def collective_phase(system: System, engine: Engine) -> Number:
    """Return the seconds of a phase of a collective, besides the transfer.

    Args:
        system: The system.
        engine: The engine.

    Returns:
        Seconds.
    """
    return launch_factor(engine, system.chip) * engine.overheads.seconds_per_collective


def exchange_phase(system: System, engine: Engine) -> Number:
    """Return the seconds of a phase of an exchange of tokens with experts, besides the transfer.

    Args:
        system: The system.
        engine: The engine.

    Returns:
        Seconds: those of timed kernels times the engine's factor, or the time of other collectives without a factor.
    """
    factor = engine.kernels.exchange_time
    if not has_nonzero(factor):
        return collective_phase(system, engine)
    seconds = load_exchanges()
    return factor * seconds.get(system.chip.generation, seconds[ANY])


@lru_cache(maxsize=1)
def load_exchanges() -> dict[str, float]:
    """Return the seconds of a phase of an exchange by generation of chips."""
    entries: list[dict[str, Any]] = read_file(PACKAGED / "kernels" / "exchange.toml")["kernel"]
    return {entry["chips"]: entry["seconds"] for entry in entries}
