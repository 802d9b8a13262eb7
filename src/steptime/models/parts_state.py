r"""Mixers that keep a state of fixed size for each sequence: state-space models and linear attention.

The recurrent state is kept in FP32, as the reference implementations keep it, unless the config names another format;
the short convolution keeps the last `kernel` - 1 inputs in the format of the model. The FLOPs are those of the
recurrence, a multiply and an add as two; the exponentials and gates of a token, a few for each channel, are left out.
So is what the chunked form adds in prefill, where a chunk of $C$ tokens costs about $C$ more multiply-adds for each
channel and token.
"""

from __future__ import annotations

from steptime.machines.formats import number_format
from steptime.models import parts
from steptime.models.config import Config
from steptime.models.model import Attention, Op

DECAY, OUTER, READ = 1, 2, 2
"""FLOPs for each value of the state: decaying it, adding an outer product, multiplying it by a query."""


def convolution(c: Config, channels: int, kernel: int, *, bias: bool = False) -> Op:
    """The depthwise causal convolution; its FLOPs belong to the state."""
    return parts.small(c, "conv1d", channels * kernel + bias * channels, term="projections", split="group")


def state(
    c: Config,
    *,
    heads: int,
    values: float,
    flops_per_value: float,
    channels: int = 0,
    kernel: int = 1,
    name: str = "state",
) -> Attention:
    """A recurrent state of `values` and the inputs that a convolution of `channels` and `kernel` still needs."""
    recurrent = number_format(c.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32"))
    return Attention(
        name=name,
        state_bytes=values * recurrent.bytes + channels * (kernel - 1) * c.base_format.bytes,
        state_flops_per_token=values * flops_per_value + 2 * channels * kernel,
        heads=heads,
    )


def mamba2(
    c: Config,
    module: str,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state_dim: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
) -> parts.Block:
    """Mamba-2 (arXiv 2405.21060): a projection to gate, values, B, C and steps; convolution; scan; gated norm."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state_dim
    term = "projections"
    ops = (
        parts.linear(
            c,
            f"{module}.in_proj",
            c.width,
            inner + channels + heads,
            term=term,
            bias=bias,
            split_limit=heads,
        ),
        convolution(c, channels, kernel, bias=conv_bias),
        parts.small(c, "steps, decay and skip", 3 * heads, split="group"),
        parts.norm(c, "gated_norm", inner),
        parts.linear(c, f"{module}.out_proj", inner, c.width, term=term, bias=bias),
    )
    scan = state(
        c,
        heads=heads,
        values=inner * state_dim,
        flops_per_value=DECAY + OUTER + READ,
        channels=channels,
        kernel=kernel,
    )
    return parts.Block(ops, (scan,))
