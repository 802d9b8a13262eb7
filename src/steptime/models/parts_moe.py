"""Routed experts beside shared ones, as DeepSeek-V2 has them (arXiv 2405.04434, section 2.2)."""

from __future__ import annotations

from steptime.models import parts
from steptime.models.config import Config


def shared_and_routed(
    c: Config,
    module: str,
    hidden: int,
    *,
    count: int,
    active: int,
    shared: int,
    groups: tuple[int, int] = (1, 1),
    shared_module: str = "shared_experts",
    shared_bias: bool = False,
) -> parts.Block:
    """A router, `count` gated experts of `hidden` values, and a gated block of `shared` values for every token."""
    block = parts.experts(c, module, hidden, count=count, active=active, groups=groups)
    if not shared:
        return block
    return block + parts.gated(c, f"{module}.{shared_module}", shared, bias=shared_bias, term="shared experts")


def is_sparse(c: Config, index: int, *, dense: int = 0) -> bool:
    """Whether layer `index` has experts: by `mlp_layer_types`, else by the leading dense layers and the period."""
    if c.has("mlp_layer_types"):
        return c.choices("mlp_layer_types", known=("dense", "sparse"), length=index + 1)[index] == "sparse"
    first = c.integer("first_k_dense_replace", default=dense, least=0, most=c.depth)
    return index >= first and index % c.integer("moe_layer_freq", default=1) == 0
