"""steptime: the arithmetic of serving large language models.

    import steptime as st

    st.plan("deepseek-v3", "gb200-nvl72", st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2))
    st.decode_step("deepseek-v3", "gb200-nvl72", batch=8192, context=4096, layout=st.Layout(dp=72, ep=72)).total
    st.simulate("llama-3.1-8b", "hgx-h100", st.open_loop(20, 10_000, st.Lengths(mean=512), st.Lengths(mean=128)))

Where a model, a system or an engine is asked for, its name will do, or what `load_model`, `load_system` and `load_engine`
return. The engine is a real one unless `engine="ideal"` asks for the bound that physics sets. Any number of a step may be an
array. Every result has a short repr, `to_dict()`, `to_json()`, and `to_dataframe()` and `to_csv()` where it is a table. Names
are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptime import blackboard
    from steptime.catalog.loading import load_system, vary, with_rent
    from steptime.errors import InputError
    from steptime.machines.system import System
    from steptime.measured.anchors import load_anchor
    from steptime.measured.outcomes import calibrate, validate
    from steptime.models.loading import load_model
    from steptime.models.model import Model
    from steptime.physics.engine import Engine, load_engine
    from steptime.physics.layout import Layout
    from steptime.physics.memory import Memory, memory_per_chip
    from steptime.physics.step import Step, decode_step, mixed_step, prefill_step
    from steptime.physics.uncertainty import step_range
    from steptime.planning.deployment import Plan
    from steptime.planning.planner import plan
    from steptime.planning.workload import Slo, Workload
    from steptime.simulation.outcome import Simulation
    from steptime.simulation.policy import Policy
    from steptime.simulation.replays import replay
    from steptime.simulation.run import simulate
    from steptime.simulation.traces import read_trace
    from steptime.simulation.traffic import Lengths, Traffic, closed_loop, open_loop
    from steptime.sweeping.blocks import in_blocks
    from steptime.sweeping.design import design
    from steptime.sweeping.ranking import compare
    from steptime.sweeping.sweep import sweep

__all__ = [
    "Engine", "InputError", "Layout", "Lengths", "Memory", "Model", "Plan", "Policy", "Simulation", "Slo", "Step", "System",
    "Traffic", "Workload", "blackboard", "calibrate", "closed_loop", "compare", "decode_step", "design", "in_blocks",
    "load_anchor", "load_engine", "load_model", "load_system", "memory_per_chip", "mixed_step", "open_loop", "plan",
    "prefill_step", "read_trace", "replay", "sensitivity", "simulate", "step_range", "sweep", "validate", "vary",
    "with_rent",
]  # fmt: skip

_HOMES = {
    "blackboard": "blackboard",
    "catalog.loading": "load_system vary with_rent",
    "errors": "InputError",
    "machines.system": "System",
    "measured.anchors": "load_anchor",
    "measured.outcomes": "calibrate validate",
    "models.loading": "load_model",
    "models.model": "Model",
    "physics.engine": "Engine load_engine",
    "physics.layout": "Layout",
    "physics.memory": "Memory memory_per_chip",
    "physics.step": "Step decode_step mixed_step prefill_step",
    "physics.uncertainty": "step_range",
    "planning.deployment": "Plan",
    "planning.planner": "plan",
    "planning.workload": "Slo Workload",
    "simulation.outcome": "Simulation",
    "simulation.policy": "Policy",
    "simulation.replays": "replay",
    "simulation.run": "simulate",
    "simulation.traces": "read_trace",
    "simulation.traffic": "Lengths Traffic closed_loop open_loop",
    "sweeping.design": "design",
    "sweeping.blocks": "in_blocks",
    "sweeping.ranking": "compare",
    "sweeping.sweep": "sweep",
    "sweeping.sensitivity": "sensitivity",
}  # the module of each public name
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = _load(_HOME[name])
        found = module if name == _HOME[name] else getattr(module, name)
        globals()[name] = found
        return found
    from steptime.errors import did_you_mean

    near = " or ".join(did_you_mean(name, __all__, alike=0.65)) if not name.startswith("_") else ""
    raise AttributeError(f"module 'steptime' has no attribute {name!r}" + (f"; did you mean {near}?" if near else ""))


def _load(module: str) -> Any:
    try:
        return import_module(f"steptime.{module}")
    except ModuleNotFoundError as missing:
        if missing.name != "numba":
            raise
    from steptime.errors import InputError

    raise InputError("the simulator is compiled by numba, which is not installed: pip install 'steptime[simulate]'")


def __dir__() -> list[str]:
    return sorted(__all__)
