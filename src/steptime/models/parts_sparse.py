"""DeepSeek's sparse attention (arXiv 2512.02556): latent attention over the tokens that an indexer selects."""

from __future__ import annotations

import math
from dataclasses import replace

from steptime.machines.formats import number_format
from steptime.models import parts
from steptime.models.config import Config
from steptime.models.model import Attention


def selecting(block: parts.Block, tokens: float) -> parts.Block:
    """Return latent attention that reads the best `tokens`; prefill runs in the latent space too, as each query has its own."""
    main = block.attention[0]
    main = replace(main, selected=tokens, flops_per_pair_prefill=main.flops_per_pair_decode, expand_flops=0.0)
    return parts.Block(block.ops, (main,))


def indexer(c: Config, module: str) -> parts.Block:
    r"""The indexer of $H$ heads of $d$ values: a score of a cached token costs $2H(d + 1)$ FLOPs.

    Its one key a token is cached in FP8 with a 4-byte scale for each 128 values, whatever the format of the latent.
    """
    heads, dim = c.integer("index_n_heads"), c.integer("index_head_dim")
    term = "projections"
    ops = (
        parts.linear(c, f"{module}.wq_b", c.integer("q_lora_rank"), heads * dim, term=term, split="replicated"),
        parts.linear(c, f"{module}.wk", c.width, dim, term=term, split="replicated"),
        parts.norm(c, "index_key_norm", dim, bias=True),
        replace(
            parts.linear(c, f"{module}.weights_proj", c.width, heads, term=term, split="replicated"),
            format=c.base_format,
        ),
    )
    index = Attention(
        name="indexer",
        query_values=heads * dim,
        kv_bytes=dim + 4 * math.ceil(dim / 128),
        flops_per_pair_decode=2 * heads * (dim + 1),
        flops_per_pair_prefill=2 * heads * (dim + 1),
        arithmetic=number_format("fp8").arithmetic,
        kv_format="fp8",
    )
    return parts.Block(ops, (index,))
