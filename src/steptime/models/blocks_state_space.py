r"""Mixers with a state of fixed size per sequence, such as state-space models.

The recurrent state is in FP32, as in the reference implementations, unless the config names another format. The short
convolution keeps the last `kernel` - 1 inputs in the format of the model. The FLOPs are those of the recurrence; a multiply
and an add are two. The exponentials and gates of a token, a few per channel, are left out. The chunked form of prefill is
left out too; with chunks of $C$ tokens it adds about $C$ multiply-adds per channel and token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from steptime.hardware.number_formats import number_format
from steptime.models import blocks
from steptime.models.config import Config
from steptime.models.model import Attention, Op

DECAY, OUTER, READOUT = 1, 2, 2
"""FLOPs per value of the state: decay, addition of an outer product, multiplication by a query."""
SCAN = 6
"""FLOPs per value of a Mamba-1 state: step times decay rate, decay, outer product, product with C."""
DELTA = DECAY + READOUT + OUTER + READOUT
"""FLOPs per value of a state under the delta rule: decay, product with the key, correction, product with the query."""


def convolution(c: Config, channels: int, kernel: int, *, bias: bool = False) -> Op:
    """Return the depthwise causal convolution; its FLOPs are counted with the state.

    Args:
        c: Config of the model.
        channels: Number of channels.
        kernel: Taps per channel.
        bias: Whether it has a bias.

    Returns:
        The operator, without FLOPs.
    """
    return blocks.small(c, "conv1d", channels * kernel + bias * channels, term="projections", split="group")


def state(
    c: Config,
    *,
    heads: int,
    values: float = 0,
    flops_per_value: float = 0,
    channels: int = 0,
    kernel: int = 1,
    name: str = "state",
) -> Attention:
    """Return a recurrent state together with the buffered inputs of a convolution.

    Args:
        c: Config of the model.
        heads: Heads of the state, by which chips can divide it.
        values: Values of the recurrent state per sequence; 0: only a convolution.
        flops_per_value: FLOPs per value and token.
        channels: Channels of the convolution; 0: none.
        kernel: Taps of the convolution.
        name: Name of the mixer.

    Returns:
        The token mixer.
    """
    # Some configs name the format of the state; otherwise it is FP32.
    recurrent = number_format(c.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32"))
    return Attention(
        name=name,
        state_bytes=values * recurrent.bytes + channels * (kernel - 1) * c.base_format.bytes,
        state_flops_per_token=values * flops_per_value + 2 * channels * kernel,
        heads=heads,
    )


def delta(
    c: Config,
    module: str,
    projections: Iterable[Op],
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    decays: int,
    norm: str = "output_norm",
    output: str = "o_proj",
) -> blocks.Block:
    """Return a mixer with a gated delta rule (arXiv 2412.06464, 2510.26692).

    The inputs pass a convolution. The state has key by value dimensions for each value head.

    Args:
        c: Config of the model.
        module: Path of the module.
        projections: Matrices that make queries, keys, values, gates and steps.
        key_heads: Heads of queries and keys.
        value_heads: Heads of values.
        key_dim: Values per key head.
        value_dim: Values per value head.
        kernel: Taps of the convolution.
        decays: Parameters of decays and steps.
        norm: Name of the norm of the output, whose gain all heads share.
        output: Name of the output projection.

    Returns:
        The operators and the state.
    """
    values = value_heads * value_dim
    channels = 2 * key_heads * key_dim + values
    ops = (
        *projections,
        convolution(c, channels, kernel),
        blocks.small(c, "steps and decay", decays, split="group"),
        blocks.norm(c, norm, values, weights=value_dim),
        blocks.linear(c, f"{module}.{output}", values, c.width),
    )
    scan = state(c, heads=key_heads, values=values * key_dim, flops_per_value=DELTA, channels=channels, kernel=kernel)
    return blocks.Block(ops, (scan,))


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
    """Return a Mamba-1 mixer (arXiv 2312.00752).

    It projects to values and gate, runs a convolution, projects to step, B and C, and scans.

    Args:
        c: Config of the model.
        module: Path of the module.
        inner: Channels of the mixer.
        state_dim: State values per channel.
        rank: Rank of the step projection.
        kernel: Taps of the convolution.
        conv_bias: Whether the convolution has a bias.
        bias: Whether input and output projections have biases.
        norms: Whether step, B and C are normalized.

    Returns:
        The operators and the state.
    """
    ops = (
        blocks.linear(c, f"{module}.in_proj", c.width, 2 * inner, bias=bias),
        convolution(c, inner, kernel, bias=conv_bias),
        blocks.linear(c, f"{module}.x_proj", inner, rank + 2 * state_dim),
        blocks.linear(c, f"{module}.dt_proj", rank, inner, bias=True),
        blocks.small(c, "decay and skip", inner * (state_dim + 1), split="group"),
        *((blocks.norm(c, "step, B and C norms", rank + 2 * state_dim),) if norms else ()),
        blocks.linear(c, f"{module}.out_proj", inner, c.width, bias=bias),
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
    """Return a Mamba-2 mixer (arXiv 2405.21060).

    One projection gives gate, values, B, C and steps; then follow a convolution, the scan and a gated norm.

    Args:
        c: Config of the model.
        module: Path of the module.
        heads: Heads of the state.
        head_dim: Channels per head.
        groups: Groups of heads that share B and C.
        state_dim: State values per channel.
        kernel: Taps of the convolution.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the input projection has a bias.
        output_bias: Whether the output projection has a bias; None: as `bias`.
        gated_norm: Whether a norm follows the gate.

    Returns:
        The operators and the state.
    """
    inner = heads * head_dim

    # The convolution runs over values, B and C together.
    channels = inner + 2 * groups * state_dim
    ops = (
        blocks.linear(c, f"{module}.in_proj", c.width, inner + channels + heads, bias=bias, split_limit=heads),
        convolution(c, channels, kernel, bias=conv_bias),
        blocks.small(c, "steps, decay and skip", 3 * heads, split="group"),
        *((blocks.norm(c, "gated_norm", inner),) if gated_norm else ()),
        blocks.linear(c, f"{module}.out_proj", inner, c.width, bias=bias if output_bias is None else output_bias),
    )
    flops = DECAY + OUTER + READOUT
    scan = state(c, heads=heads, values=inner * state_dim, flops_per_value=flops, channels=channels, kernel=kernel)

    return blocks.Block(ops, (scan,))


def jamba_mixer(c: Config, module: str, *, norms: bool = False) -> blocks.Block:
    """Return a Mamba-1 mixer with the sizes in the fields of Jamba's and Zamba's configs.

    Args:
        c: Config of the model.
        module: Path of the module.
        norms: Whether step, B and C are normalized.

    Returns:
        The operators and the state.
    """
    automatic = c.raw("mamba_dt_rank", default="auto") == "auto"
    return mamba1(
        c,
        module,
        inner=c.integer("mamba_expand", default=2) * c.width,
        state_dim=c.integer("mamba_d_state", default=16),
        rank=math.ceil(c.width / 16) if automatic else c.integer("mamba_dt_rank"),
        kernel=c.integer("mamba_d_conv", default=4),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        bias=c.flag("mamba_proj_bias", default=False),
        norms=norms,
    )


def bamba_mixer(
    c: Config, module: str, inner: int | None = None, *, output_bias: bool | None = None, gated_norm: bool = True
) -> blocks.Block:
    """Return a Mamba-2 mixer with the sizes in the fields of Bamba's, Falcon-H1's and Granite's configs.

    Args:
        c: Config of the model.
        module: Path of the module.
        inner: Channels of all heads; None: `mamba_expand` times the width.
        output_bias: Whether the output projection has a bias; None: as the input projection.
        gated_norm: Whether a norm follows the gate.

    Returns:
        The operators and the state.

    Raises:
        ConfigError: The heads do not share the channels equally.
    """
    inner, heads = inner or c.integer("mamba_expand", default=2) * c.width, c.integer("mamba_n_heads", default=128)
    if inner % heads:
        raise c.error("mamba_n_heads", f"must divide the {inner} inner values, got {heads}")

    # The config may state the size of a head, which must then agree with the others.
    if c.raw("mamba_d_head", default="auto") != "auto" and c.integer("mamba_d_head") * heads != inner:
        problem = f"times {heads} heads must be the {inner} inner values, got {c.integer('mamba_d_head')}"
        raise c.error("mamba_d_head", problem)

    return mamba2(
        c,
        module,
        heads=heads,
        head_dim=inner // heads,
        groups=c.integer("mamba_n_groups", default=1),
        state_dim=c.integer("mamba_d_state", default=256),
        kernel=c.integer("mamba_d_conv", default=4),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        bias=c.flag("mamba_proj_bias", default=False),
        output_bias=output_bias,
        gated_norm=gated_norm,
    )
