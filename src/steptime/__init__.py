"""steptime: the arithmetic of training and serving large language models.

    import steptime as st

    model = st.load_model("deepseek-ai/DeepSeek-V3")
    system = st.load_system("gb200-nvl72")
    st.decode_step(model, system, batch=8192, context=4096, mapping=st.Mapping(dp=72, ep=72)).total
    st.plan(model, system, st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2))

A step is that of the ideal engine unless one is named; a plan is that of a real one. Any number may be an array. Names are
loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptime.architectures.hf import load_model
    from steptime.catalog import load_system
    from steptime.engine import Engine, load_engine
    from steptime.errors import InputError
    from steptime.hardware import vary
    from steptime.mapping import Mapping
    from steptime.memory import memory_per_chip
    from steptime.planner import plan
    from steptime.step import decode_step, mixed_step, prefill_step
    from steptime.uncertainty import step_range
    from steptime.workload import Slo, Workload

_HOMES = {
    "Engine": "engine",
    "InputError": "errors",
    "Mapping": "mapping",
    "Slo": "workload",
    "Workload": "workload",
    "decode_step": "step",
    "load_engine": "engine",
    "load_model": "architectures.hf",
    "load_system": "catalog",
    "memory_per_chip": "memory",
    "mixed_step": "step",
    "plan": "planner",
    "prefill_step": "step",
    "step_range": "uncertainty",
    "vary": "hardware",
}

__all__ = [
    "Engine",
    "InputError",
    "Mapping",
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
