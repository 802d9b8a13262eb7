"""MoonViT, the tower of Kimi's models: what its variants share."""

from __future__ import annotations

from steptime.models.config import Config
from steptime.models.images import Rule, native, rule
from steptime.models.model import Op
from steptime.models.parts_tower import matrix, positions

SIDE = 512  # patches on a side, at most


def moonvit_heads(v: Config) -> int:
    """Return the heads of a MoonViT."""
    return v.integer("vt_num_attention_heads", default=16)


def moonvit_stem(v: Config, width: int, *, bias: bool) -> tuple[Op, ...]:
    """Return the embedding of patches and the grid of positions, which is stretched to the image."""
    grid = v.integer("init_pos_emb_height") * v.integer("init_pos_emb_width")
    embedding = matrix(v, "patch_embed", 3 * v.integer("patch_size") ** 2, width, bias=bias, term="patches")
    return embedding, positions(v, grid * width, width)


def moonvit_rule(v: Config, merge: int, most: int, source: str) -> Rule:
    """Return the rule of at most so many patches of an image."""
    settings = f"at most {most:,} patches, {SIDE} on a side, {source}"
    return rule(native, settings, patch=v.integer("patch_size"), merge=merge, most=most, most_side=SIDE)
