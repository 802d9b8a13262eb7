"""steptime: the arithmetic of training and serving large language models.

    import steptime as st

    st.plan("deepseek-v3", "gb200-nvl72", st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2))
    st.decode_step("deepseek-v3", "gb200-nvl72", batch=8192, context=4096, layout=st.Layout(dp=72, ep=72)).total
    st.read_prices("openai/gpt-6-sol")["kv_bytes_per_token"].interval
    st.simulate("llama-3.1-8b", "hgx-h100", st.open_loop(20, 10_000, st.Lengths(mean=512), st.Lengths(mean=128)))
    st.budget("100B@200T", st.Demand(served=200e12))

A model, a system or an engine is given by its name, or by the result of `load_model`, `load_system` or `load_engine`. By
default the engine is a real one; `engine="ideal"` gives the physical bound. Any number of a step may be an array. Every
result has a short repr, `to_dict()` and `to_json()`; a table also has `to_dataframe()` and `to_csv()`. Names are loaded
when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptime import blackboard
    from steptime.catalog.hardware_loading import load_system, vary, with_rent
    from steptime.errors import InputError
    from steptime.hardware.system import System
    from steptime.lecture.pair_roofline import roofline
    from steptime.models.kv_compression import with_techniques
    from steptime.models.model import Model
    from steptime.models.model_loading import load_model
    from steptime.physics.chip_memory import Memory, memory_per_chip
    from steptime.physics.engine import Engine, load_engine
    from steptime.physics.layout import Layout
    from steptime.physics.step import Step, decode_step, mixed_step, prefill_step
    from steptime.physics.uncertainty import step_range
    from steptime.planning.plan_result import Plan
    from steptime.planning.planner import plan
    from steptime.planning.workload import Slo, Workload
    from steptime.pricing.market import Market, survey_prices
    from steptime.pricing.price_estimate import Reading
    from steptime.pricing.price_inversion import PriceReading, read_prices
    from steptime.pricing.price_list import PriceList
    from steptime.pricing.price_proposal import propose_prices
    from steptime.questions.image_cost import image_cost, with_images
    from steptime.questions.registry import ask
    from steptime.scaling.compute_optimal import equivalent_dense
    from steptime.scaling.lifetime_compute import Demand, Target, read_target
    from steptime.scaling.model_sizing import Budget, budget
    from steptime.scaling.moe_vs_dense import moe_board
    from steptime.scaling.rl_step import rl_step
    from steptime.scaling.scaling_laws import Law, load_law
    from steptime.scaling.sizing_on_system import Serving
    from steptime.simulation.plan_replay import replay
    from steptime.simulation.scheduling_policy import Policy
    from steptime.simulation.simulation_result import Simulation
    from steptime.simulation.simulator import simulate
    from steptime.simulation.trace_files import read_trace
    from steptime.simulation.traffic import Lengths, Traffic, closed_loop, open_loop
    from steptime.sweeps.context_limit import context_walls
    from steptime.sweeps.design import design
    from steptime.sweeps.point_grid import in_blocks
    from steptime.sweeps.ranking import compare
    from steptime.sweeps.sweep import sweep
    from steptime.training.training_job import TrainingLayout
    from steptime.training.training_planner import Training, train, training_step
    from steptime.training.training_result import TrainingStep
    from steptime.training.training_runs import Phase, Reliability
    from steptime.training.training_stack import training_engine
    from steptime.validation.user_calibration import load_anchor
    from steptime.validation.validate_api import calibrate, validate

__all__ = [
    "Budget", "Demand", "Engine", "InputError", "Law", "Layout", "Lengths", "Market", "Memory", "Model", "Phase", "Plan",
    "Policy", "PriceList", "PriceReading", "Reading", "Reliability", "Serving", "Simulation", "Slo", "Step", "System", "Target",
    "Traffic", "Training", "TrainingLayout", "TrainingStep", "Workload", "ask", "blackboard", "budget", "calibrate",
    "closed_loop",
    "compare", "context_walls", "decode_step", "design", "equivalent_dense", "image_cost", "in_blocks", "load_anchor",
    "load_engine", "load_law", "load_model", "load_system", "memory_per_chip", "mixed_step", "moe_board", "open_loop", "plan",
    "prefill_step", "propose_prices", "read_prices", "read_target", "read_trace", "replay", "rl_step", "roofline",
    "sensitivity", "simulate", "step_range", "survey_prices", "sweep", "train", "training_engine", "training_step", "validate",
    "vary", "with_images", "with_rent", "with_techniques",
]  # fmt: skip

# The public names of each module. They load on first use, so that `import steptime` stays fast.
_HOMES = {
    "blackboard": "blackboard",
    "scaling.lifetime_compute": "Demand Target read_target",
    "scaling.model_sizing": "Budget budget",
    "scaling.scaling_laws": "Law load_law",
    "scaling.sizing_on_system": "Serving",
    "scaling.moe_vs_dense": "moe_board",
    "scaling.compute_optimal": "equivalent_dense",
    "scaling.rl_step": "rl_step",
    "questions.image_cost": "image_cost with_images",
    "questions.registry": "ask",
    "catalog.hardware_loading": "load_system vary with_rent",
    "errors": "InputError",
    "lecture.pair_roofline": "roofline",
    "hardware.system": "System",
    "validation.user_calibration": "load_anchor",
    "validation.validate_api": "calibrate validate",
    "models.model_loading": "load_model",
    "models.model": "Model",
    "models.kv_compression": "with_techniques",
    "physics.engine": "Engine load_engine",
    "physics.layout": "Layout",
    "physics.chip_memory": "Memory memory_per_chip",
    "physics.step": "Step decode_step mixed_step prefill_step",
    "physics.uncertainty": "step_range",
    "planning.plan_result": "Plan",
    "planning.planner": "plan",
    "planning.workload": "Slo Workload",
    "pricing.price_inversion": "PriceReading read_prices",
    "pricing.price_list": "PriceList",
    "pricing.market": "Market survey_prices",
    "pricing.price_proposal": "propose_prices",
    "pricing.price_estimate": "Reading",
    "simulation.simulation_result": "Simulation",
    "simulation.scheduling_policy": "Policy",
    "simulation.plan_replay": "replay",
    "simulation.simulator": "simulate",
    "simulation.trace_files": "read_trace",
    "simulation.traffic": "Lengths Traffic closed_loop open_loop",
    "sweeps.design": "design",
    "sweeps.point_grid": "in_blocks",
    "sweeps.context_limit": "context_walls",
    "sweeps.ranking": "compare",
    "sweeps.sweep": "sweep",
    "sweeps.sensitivity": "sensitivity",
    "training.training_stack": "training_engine",
    "training.training_job": "TrainingLayout",
    "training.training_planner": "Training train training_step",
    "training.training_result": "TrainingStep",
    "training.training_runs": "Phase Reliability",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = _load(_HOME[name])
        attribute = module if name == _HOME[name] else getattr(module, name)
        globals()[name] = attribute
        return attribute

    # Private names come from tools such as copy and pickle, which need a plain AttributeError.
    from steptime.errors import did_you_mean

    near = " or ".join(did_you_mean(name, __all__, cutoff=0.65)) if not name.startswith("_") else ""
    raise AttributeError(f"module 'steptime' has no attribute {name!r}" + (f"; did you mean {near}?" if near else ""))


def _load(module: str) -> Any:
    try:
        return import_module(f"steptime.{module}")
    except ModuleNotFoundError as missing:
        if missing.name != "numba":
            raise
    from steptime.errors import NUMBA_MISSING, InputError

    raise InputError(NUMBA_MISSING)


def __dir__() -> list[str]:
    return sorted(__all__)
