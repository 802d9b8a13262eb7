"""Facts that launch commands need: checkpoint, number formats, chips and hosts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from steptime.hardware.system import System
from steptime.models.model import Model, kv_bytes_per_token, stored_formats
from steptime.physics.layout import LARGEST_HOST, host_chips
from steptime.physics.lora_adapters import adapted_names
from steptime.result_base import unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The checkpoint, the number formats and the hosts of a plan."""

    checkpoint: str = field(default="", metadata=unit("", "Hugging Face id or local folder of the weights; empty: not known"))
    weights: str = field(default="", metadata=unit("", "format of the dense layers' weights"))
    experts: str = field(default="", metadata=unit("", "format of the routed experts; empty: no routed experts"))
    kv: str = field(default="", metadata=unit("", "format of the KV cache"))
    kv_bytes_per_token: float = field(
        default=math.nan, metadata=unit("B", "KV cache of a token, stored once", key="kv_bytes_per_token")
    )
    checkpoint_weights: str = field(default="", metadata=unit("", "format of the dense layers in the checkpoint"))
    checkpoint_experts: str = field(default="", metadata=unit("", "format of the routed experts in the checkpoint"))
    checkpoint_kv: str = field(default="", metadata=unit("", "format of the KV cache that the checkpoint specifies"))
    remote_code: bool = field(default=False, metadata=unit("", "whether the checkpoint contains its own model code"))
    routed_experts: int = field(default=0, metadata=unit("", "routed experts per layer"))
    max_context: float = field(default=math.inf, metadata=unit("tokens", "longest context of the model; null: not known"))
    vendor: str = field(default="", metadata=unit("", "manufacturer of the chip"))
    arithmetic: tuple[str, ...] = field(default=(), metadata=unit("", "number formats of the chip's matrix units"))
    memory: float = field(default=math.inf, metadata=unit("B", "memory per chip"))
    fabric: str = field(default="", metadata=unit("", "name of the scale-up fabric"))
    domain_chips: int = field(default=0, metadata=unit("", "chips per scale-up domain"))
    host_chips: int = field(default=LARGEST_HOST, metadata=unit("", "chips per host"))
    lora_adapters: int = field(default=0, metadata=unit("", "LoRA adapters in the memory of the chips"))
    lora_rank: int = field(default=0, metadata=unit("", "rank of their slots"))
    lora_modules: tuple[str, ...] = field(default=(), metadata=unit("", "names of the matrices that they adapt"))


def what_is_served(model: Model, system: System) -> Served:
    """Return the facts that launch commands need of a model and a system.

    Args:
        model: Model as it is served.
        system: System.

    Returns:
        Checkpoint, formats and hosts.
    """
    weights, experts = stored_formats(model)
    stored, domain = model.checkpoint, system.scale_up
    return Served(
        checkpoint=stored.place,
        weights=weights,
        experts=experts,
        kv=model.kv_format,
        kv_bytes_per_token=float(kv_bytes_per_token(model)),
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
        lora_adapters=0 if model.adapters is None else model.adapters.slots,
        lora_rank=0 if model.adapters is None else model.adapters.rank,
        lora_modules=adapted_names(model),
    )
