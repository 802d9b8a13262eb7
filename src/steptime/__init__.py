"""steptime: the arithmetic of training and serving large language models.

    import steptime as st

    model = st.load_model("deepseek-ai/DeepSeek-V3")
    system = st.load_system("gb200-nvl72")
    st.decode_step(model, system, batch=8192, context=4096, layout=st.Layout(dp=72, ep=72)).total
    st.plan(model, system, st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2))

A step is that of the ideal engine unless one is named; a plan is that of a real one. Any number may be an array. Names are
loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptime.catalog.loading import load_system
    from steptime.errors import InputError
    from steptime.machines.what_if import vary
    from steptime.models.loading import load_model
    from steptime.physics.engine import Engine, load_engine
    from steptime.physics.layout import Layout
    from steptime.physics.memory import memory_per_chip
    from steptime.physics.step import decode_step, mixed_step, prefill_step
    from steptime.physics.uncertainty import step_range
    from steptime.planning.planner import plan
    from steptime.planning.workload import Slo, Workload

_HOMES = {
    "Engine": "physics.engine",
    "InputError": "errors",
    "Layout": "physics.layout",
    "Slo": "planning.workload",
    "Workload": "planning.workload",
    "decode_step": "physics.step",
    "load_engine": "physics.engine",
    "load_model": "models.loading",
    "load_system": "catalog.loading",
    "memory_per_chip": "physics.memory",
    "mixed_step": "physics.step",
    "plan": "planning.planner",
    "prefill_step": "physics.step",
    "step_range": "physics.uncertainty",
    "vary": "machines.what_if",
}

__all__ = [
    "Engine",
    "InputError",
    "Layout",
    "Slo",
    "Workload",
    "decode_step",
    "load_engine",
    "load_model",
    "load_system",
    "memory_per_chip",
    "mixed_step",
    "plan",
    "prefill_step",
    "step_range",
    "vary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    return getattr(import_module(f"steptime.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
