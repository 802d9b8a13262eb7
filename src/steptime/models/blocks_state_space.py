r"""Mixers that keep a state of fixed size for each sequence: state-space models and linear attention.

The recurrent state is kept in FP32, as the reference implementations keep it, unless the config names another format;
the short convolution keeps the last `kernel` - 1 inputs in the format of the model. The FLOPs are those of the
recurrence, a multiply and an add as two; the exponentials and gates of a token, a few for each channel, are left out.
So is what the chunked form adds in prefill, where a chunk of $C$ tokens costs about $C$ more multiply-adds for each
channel and token.
"""

from __future__ import annotations

from steptime.hardware.number_formats import number_format
from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.model import Attention, Op

DECAY, OUTER, READOUT = 1, 2, 2
"""FLOPs for each value of the state: decaying it, adding an outer product, multiplying it by a query."""
SCAN = 6
"""FLOPs for each value of a Mamba-1 state: step times decay rate, the decay, an outer product, the read by C."""
DELTA = DECAY + READOUT + OUTER + READOUT
"""FLOPs for each value of a state under the delta rule: it is decayed, read by the key, corrected, read by the query."""


def convolution(c: Config, channels: int, kernel: int, *, bias: bool = False) -> Op:
    """The depthwise causal convolution; its FLOPs belong to the state."""
    return blocks.small(c, "conv1d", channels * kernel + bias * channels, term="projections", split="group")


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


def delta(
    c: Config, *, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int, decays: int
) -> tuple[Op, Op, Attention]:
    """The convolution, the `decays` and steps of a gated delta rule, and its state of key by value dimensions for each head."""
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    scan = state(
        c,
        heads=key_heads,
        values=value_heads * key_dim * value_dim,
        flops_per_value=DELTA,
        channels=channels,
        kernel=kernel,
    )
    return convolution(c, channels, kernel), blocks.small(c, "steps and decay", decays, split="group"), scan


def mamba1(
    c: Config,
    module: str,
    *,
    inner: int,
    state_dim: int,
    rank: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
    norms: bool = False,
) -> blocks.Block:
    """Mamba-1 (arXiv 2312.00752): values and gate; convolution; steps, B and C (with `norms`: each normalised); scan."""
    term = "projections"
    ops = (
        blocks.linear(c, f"{module}.in_proj", c.width, 2 * inner, term=term, bias=bias),
        convolution(c, inner, kernel, bias=conv_bias),
        blocks.linear(c, f"{module}.x_proj", inner, rank + 2 * state_dim, term=term),
        blocks.linear(c, f"{module}.dt_proj", rank, inner, term=term, bias=True),
        blocks.small(c, "decay and skip", inner * (state_dim + 1), split="group"),
        *((blocks.norm(c, "step, B and C norms", rank + 2 * state_dim),) if norms else ()),
        blocks.linear(c, f"{module}.out_proj", inner, c.width, term=term, bias=bias),
    )
    scan = state(c, heads=inner, values=inner * state_dim, flops_per_value=SCAN, channels=inner, kernel=kernel)
    return blocks.Block(ops, (scan,))


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
    output_bias: bool | None = None,
    gated_norm: bool = True,
) -> blocks.Block:
    """Mamba-2 (arXiv 2405.21060): a projection to gate, values, B, C and steps; convolution; scan; gated norm."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state_dim
    term = "projections"
    ops = (
        blocks.linear(
            c,
            f"{module}.in_proj",
            c.width,
            inner + channels + heads,
            term=term,
            bias=bias,
            split_limit=heads,
        ),
        convolution(c, channels, kernel, bias=conv_bias),
        blocks.small(c, "steps, decay and skip", 3 * heads, split="group"),
        *((blocks.norm(c, "gated_norm", inner),) if gated_norm else ()),
        blocks.linear(c, f"{module}.out_proj", inner, c.width, term=term, bias=bias if output_bias is None else output_bias),
    )
    scan = state(
        c,
        heads=heads,
        values=inner * state_dim,
        flops_per_value=DECAY + OUTER + READOUT,
        channels=channels,
        kernel=kernel,
    )
    return blocks.Block(ops, (scan,))
