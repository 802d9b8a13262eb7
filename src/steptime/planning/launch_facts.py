"""What a plan serves and on which hosts, as commands that start it must say: the checkpoint, its formats, and the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.hardware.system import System
from steptime.models.model import Model, stored_formats
from steptime.physics.layout_constraints import LARGEST_HOST, host_chips
from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The checkpoint that a plan serves, the formats that the plan reckons with and those of the checkpoint, and the hosts."""

    checkpoint: str = field(default="", metadata=unit("", "Hugging Face id or local folder of the weights; empty: not told"))
    weights: str = field(default="", metadata=unit("", "format of the dense layers' weights"))
    experts: str = field(default="", metadata=unit("", "format of the routed experts; empty: there are none"))
    kv: str = field(default="", metadata=unit("", "format of the KV cache"))
    checkpoint_weights: str = field(default="", metadata=unit("", "the dense layers' format in the checkpoint"))
    checkpoint_experts: str = field(default="", metadata=unit("", "the routed experts' format in the checkpoint"))
    checkpoint_kv: str = field(default="", metadata=unit("", "format of the KV cache that the checkpoint asks for"))
    remote_code: bool = field(default=False, metadata=unit("", "whether the checkpoint brings code of its own"))
    routed_experts: int = field(default=0, metadata=unit("", "routed experts of a layer"))
    max_context: float = field(default=math.inf, metadata=unit("tokens", "longest context of the model; null: not told"))
    vendor: str = field(default="", metadata=unit("", "who makes the chip"))
    arithmetic: tuple[str, ...] = field(default=(), metadata=unit("", "formats that the chip multiplies in"))
    memory: float = field(default=math.inf, metadata=unit("B", "memory of a chip"))
    fabric: str = field(default="", metadata=unit("", "name of the scale-up fabric"))
    domain_chips: int = field(default=0, metadata=unit("", "chips of a scale-up domain"))
    host_chips: int = field(default=LARGEST_HOST, metadata=unit("", "chips of one host"))


def what_is_served(model: Model, system: System) -> Served:
    """Return what is served on which hosts."""
    weights, experts = stored_formats(model)
    stored, domain = model.checkpoint, system.scale_up
    return Served(
        checkpoint=stored.place,
        weights=weights,
        experts=experts,
        kv=model.kv_format,
        checkpoint_weights=stored.weights,
        checkpoint_experts=stored.experts,
        checkpoint_kv=stored.kv,
        remote_code=stored.remote_code,
        routed_experts=max((layer.routed.experts for layer, _ in model.layers if layer.routed), default=0),
        max_context=model.max_context,
        vendor=system.chip.vendor,
        arithmetic=tuple(system.chip.peak),
        memory=float(system.chip.capacity),
        fabric=domain.name,
        domain_chips=int(min(domain.size, system.scale_out.size, 1 << 20)),
        host_chips=host_chips(system),
    )
