"""Machines, models and figures that tests of steps share.

Unless told, ten layers of one matrix of 1 GB and a cache of 1 kB a token, on chips of 2 PFLOP/s and 4 TB/s.
"""

from __future__ import annotations

from dataclasses import replace

from steptime.models.model import Attention, Layer
from steptime.physics.step import decode_step
from tests.conftest import experts, machine, matrix, model_of, one_matrix

IDEAL = "ideal"
READ = 2.5e-3  # 10 GB at 4 TB/s
CHIP = machine()
UP, OUT = 1e11, 1e10
NODES = machine(size=8, up=UP, out=OUT, latency=1e-6, out_latency=5e-6)
MEMORY_BOUND = {"batch": 1, "context": 4096}  # 2.5 ms of weights, 10.24 us of cache, 10 us of arithmetic
COMPUTE_BOUND = {"batch": 1000, "context": 1}  # 10 ms of arithmetic
HEAD = matrix(name="head", term="head", rows="outputs", weights=2e9)
FULL = Layer(
    name="full",
    ops=(
        matrix(name="q", term="projections", weights=1.0, inputs=10),
        matrix(name="k", term="projections", weights=1.0, inputs=10),
        matrix(name="o", term="projections", weights=1.0, inputs=20, stored="bf16"),
        experts(weights=1.0, inputs=10),
    ),
    attention=(Attention(name="latent", kv_bytes=1.0, heads=64, expand_flops=1.0, selected=5.0),),
)
RECURRENT = Layer(
    name="recurrent", ops=(matrix(weights=1.0, inputs=10),), attention=(Attention(name="state", state_bytes=1.0, heads=64),)
)
HYBRID = replace(model_of(), layers=((FULL, 3), (RECURRENT, 2)))


def decode(model=None, system=CHIP, on=IDEAL, **given):
    return decode_step(model or one_matrix(), system, engine=on, **{"batch": 64, "context": 4096} | given)


def terms(step) -> dict[str, float]:
    return {name: float(value) for name, value in step.terms.items() if value > 1e-15}  # a free network takes some 1e-24 s


def resources(step) -> dict[str, float]:
    return {name: float(value) for name, value in step.resources.items() if value > 1e-15}
