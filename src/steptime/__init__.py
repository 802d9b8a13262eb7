"""steptime: the arithmetic of serving large language models.

    import steptime as st

    st.plan("deepseek-v3", "gb200-nvl72", st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2))
    st.decode_step("deepseek-v3", "gb200-nvl72", batch=8192, context=4096, layout=st.Layout(dp=72, ep=72)).total
    st.read_prices("openai/gpt-6-sol")["kv_bytes_per_token"].interval
    st.simulate("llama-3.1-8b", "hgx-h100", st.open_loop(20, 10_000, st.Lengths(mean=512), st.Lengths(mean=128)))
    st.budget("100B@200T", st.Demand(served=200e12))

Where a model, a system or an engine is asked for, its name will do, or what `load_model`, `load_system` and `load_engine`
return. The engine is a real one unless `engine="ideal"` asks for the bound that physics sets. Any number of a step may be an
array. Every result has a short repr, `to_dict()`, `to_json()`, and `to_dataframe()` and `to_csv()` where it is a table. Names
are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptime import blackboard
    from steptime.budgets.bill import Demand
    from steptime.budgets.budget import Budget, budget
    from steptime.budgets.laws import Law, load_law
    from steptime.budgets.moe import moe_board
    from steptime.budgets.optimum import equivalent_dense
    from steptime.budgets.rl import rl_step
    from steptime.budgets.served import Serving
    from steptime.budgets.target import Target, read_target
    from steptime.cards.images import image_cost, with_images
    from steptime.catalog.loading import load_system, vary, with_rent
    from steptime.errors import InputError
    from steptime.lecture.roofline import roofline
    from steptime.machines.system import System
    from steptime.measured.anchors import load_anchor
    from steptime.measured.outcomes import calibrate, validate
    from steptime.models.loading import load_model
    from steptime.models.model import Model
    from steptime.models.techniques import with_techniques
    from steptime.physics.engine import Engine, load_engine
    from steptime.physics.layout import Layout
    from steptime.physics.memory import Memory, memory_per_chip
    from steptime.physics.step import Step, decode_step, mixed_step, prefill_step
    from steptime.physics.uncertainty import step_range
    from steptime.planning.deployment import Plan
    from steptime.planning.planner import plan
    from steptime.planning.workload import Slo, Workload
    from steptime.pricing.backward import PriceReading, read_prices
    from steptime.pricing.lists import PriceList
    from steptime.pricing.market import Market, survey_prices
    from steptime.pricing.proposing import propose_prices
    from steptime.pricing.reading import Reading
    from steptime.simulation.outcome import Simulation
    from steptime.simulation.policy import Policy
    from steptime.simulation.replays import replay
    from steptime.simulation.run import simulate
    from steptime.simulation.traces import read_trace
    from steptime.simulation.traffic import Lengths, Traffic, closed_loop, open_loop
    from steptime.sweeping.blocks import in_blocks
    from steptime.sweeping.contexts import context_walls
    from steptime.sweeping.design import design
    from steptime.sweeping.ranking import compare
    from steptime.sweeping.sweep import sweep
    from steptime.training.engine import training_engine
    from steptime.training.layout import TrainingLayout
    from steptime.training.planner import Training, train, training_step
    from steptime.training.result import TrainingStep
    from steptime.training.runs import Phase, Reliability

__all__ = [
    "Budget", "Demand", "Engine", "InputError", "Law", "Layout", "Lengths", "Market", "Memory", "Model", "Phase", "Plan",
    "Policy", "PriceList", "PriceReading", "Reading", "Reliability", "Serving", "Simulation", "Slo", "Step", "System", "Target",
    "Traffic", "Training", "TrainingLayout", "TrainingStep", "Workload", "blackboard", "budget", "calibrate", "closed_loop",
    "compare", "context_walls", "decode_step", "design", "equivalent_dense", "image_cost", "in_blocks", "load_anchor",
    "load_engine", "load_law", "load_model", "load_system", "memory_per_chip", "mixed_step", "moe_board", "open_loop", "plan",
    "prefill_step", "propose_prices", "read_prices", "read_target", "read_trace", "replay", "rl_step", "roofline",
    "sensitivity", "simulate", "step_range", "survey_prices", "sweep", "train", "training_engine", "training_step", "validate",
    "vary", "with_images", "with_rent", "with_techniques",
]  # fmt: skip

_HOMES = {
    "blackboard": "blackboard",
    "budgets.bill": "Demand",
    "budgets.budget": "Budget budget",
    "budgets.laws": "Law load_law",
    "budgets.machine": "Serving",
    "budgets.moe": "moe_board",
    "budgets.optimum": "equivalent_dense",
    "budgets.rl": "rl_step",
    "budgets.target": "Target read_target",
    "cards.images": "image_cost with_images",
    "catalog.loading": "load_system vary with_rent",
    "errors": "InputError",
    "lecture.roofline": "roofline",
    "machines.system": "System",
    "measured.anchors": "load_anchor",
    "measured.outcomes": "calibrate validate",
    "models.loading": "load_model",
    "models.model": "Model",
    "models.techniques": "with_techniques",
    "physics.engine": "Engine load_engine",
    "physics.layout": "Layout",
    "physics.memory": "Memory memory_per_chip",
    "physics.step": "Step decode_step mixed_step prefill_step",
    "physics.uncertainty": "step_range",
    "planning.deployment": "Plan",
    "planning.planner": "plan",
    "planning.workload": "Slo Workload",
    "pricing.backward": "PriceReading read_prices",
    "pricing.lists": "PriceList",
    "pricing.market": "Market survey_prices",
    "pricing.proposing": "propose_prices",
    "pricing.reading": "Reading",
    "simulation.outcome": "Simulation",
    "simulation.policy": "Policy",
    "simulation.replays": "replay",
    "simulation.run": "simulate",
    "simulation.traces": "read_trace",
    "simulation.traffic": "Lengths Traffic closed_loop open_loop",
    "sweeping.design": "design",
    "sweeping.blocks": "in_blocks",
    "sweeping.contexts": "context_walls",
    "sweeping.ranking": "compare",
    "sweeping.sweep": "sweep",
    "sweeping.sensitivity": "sensitivity",
    "training.engine": "training_engine",
    "training.layout": "TrainingLayout",
    "training.planner": "Training train training_step",
    "training.result": "TrainingStep",
    "training.runs": "Phase Reliability",
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
