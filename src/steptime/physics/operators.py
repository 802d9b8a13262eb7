"""The time of operators: their arithmetic and traffic overlapped, divided between the resources that they wait for."""

from __future__ import annotations

import numpy as np

from steptime.machines.system import System
from steptime.models.model import Model
from steptime.numbers import Number
from steptime.physics.clock import Clock, Entry
from steptime.physics.demand import (
    Demand,
    Ledger,
    Work,
    attention_demands,
    chip_factor,
    kernel_counts,
    operator_demand,
)
from steptime.physics.engine import Engine, constant
from steptime.physics.layout import Layout
from steptime.physics.roofline import compute_time, is_norm, memory_time, root, smaller_power


def run_layers(clock: Clock, found: Ledger, model: Model, work: Work, system: System, layout: Layout, engine: Engine) -> None:
    """Add the operators and token mixers of all layers, and the overheads that go with them."""
    for op, n in found.layers:
        run(clock, op.term, op.name, operator_demand(op, work, system, layout, engine), system, engine, instances=n)
    for mixer, n in found.mixers:
        for phase, demand in attention_demands(mixer, work, system, layout, engine).items():
            run(clock, "attention", f"{mixer.name}, {phase}", demand, system, engine, count=n, instances=n)
    for kernel, times in kernel_counts(model).items():
        each = constant(engine, f"seconds_per_{kernel}")
        if times and np.any(each):
            clock.wait(kernel.replace("_", " "), times, each)


def run_stem(clock: Clock, found: Ledger, work: Work, system: System, layout: Layout, engine: Engine) -> None:
    """Add the operators before and after the layers, and what the host does for a step and its sequences."""
    for op in found.stem:
        if op.rows != "none":
            run(clock, op.term, op.name, operator_demand(op, work, system, layout, engine), system, engine)
    if np.any(engine.overheads.seconds_per_step):
        clock.wait("step", 1, engine.overheads.seconds_per_step)
    if np.any(engine.overheads.seconds_per_sequence):
        clock.wait("sequences of a group", work.sequences, engine.overheads.seconds_per_sequence)


def run(
    clock: Clock,
    term: str,
    name: str,
    demand: Demand,
    system: System,
    engine: Engine,
    *,
    count: Number = 1,
    instances: Number = 1,
) -> None:
    """Add `count` times an operator's demand; `instances` says how many operators of the model that is."""
    bandwidth, norm = system.chip.hbm.bandwidth, engine.kernels.roofline_norm
    compute = compute_time(count * demand.flops, demand.peak, demand.efficiency)
    blame: dict[str, Number] = {}
    if np.any(demand.kv):
        reached = engine.kernels.attention_memory_efficiency * chip_factor(system, "memory", engine)
        memory = memory_time(count * demand.kv, bandwidth, reached)
        seconds, to_compute, blame["kv"] = overlapped(compute, memory, norm)
    elif not np.any(demand.activations):
        memory = memory_time(count * demand.weights, bandwidth, demand.memory_efficiency)
        seconds, to_compute, blame["weights"] = overlapped(compute, memory, norm)
    else:
        reading = memory_time(count * demand.weights, bandwidth, demand.memory_efficiency)
        memory = reading + memory_time(count * demand.activations, bandwidth, engine.kernels.memory_efficiency)
        seconds, to_compute, to_memory = overlapped(compute, memory, norm)
        blame["weights"] = to_memory * (reading / np.maximum(memory, 1e-300))
        blame["activations"] = to_memory - blame["weights"]
    entry = Entry(
        term=term, name=name, seconds=seconds, count=instances, compute=compute, memory=memory, demand=demand, times=count
    )
    clock.add(entry, {"compute": to_compute, **blame}, {"compute": compute, "memory": memory})


def overlapped(compute: Number, memory: Number, norm: Number) -> tuple[Number, Number, Number]:
    """Return the seconds of an operator, and how they divide between arithmetic and traffic, as each brought them about.

    compute, memory [s]; norm: p of the p-norm that joins them.

    >>> [float(x) for x in overlapped(3.0, 4.0, np.inf)], [round(float(x), 3) for x in overlapped(3.0, 4.0, 1)]
    ([4.0, 0.0, 4.0], [7.0, 3.0, 4.0])
    """
    larger = np.maximum(compute, memory)
    if is_norm(norm, np.inf):
        seconds, to_memory = larger, memory * (memory > compute)
    else:  # as `roofline.overlap` has it, the powers kept for the shares
        smaller = smaller_power(compute, memory, norm)
        both = 1 + smaller
        seconds = larger * root(both, norm)
        to_memory = seconds * (smaller + (memory > compute) * (1 - smaller)) / both
    return seconds, seconds - to_memory, to_memory
