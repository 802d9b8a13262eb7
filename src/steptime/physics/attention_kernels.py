r"""Attention kernels: the time of attention of a layer on one chip, from kernels that were timed alone.

A kernel computes whole tiles, so that each query also meets $\tau$ entries that it does not need. They lie past the diagonal
of a causal mask and past a window. They also lie at the ends of the parts into which a chip divides a context. The kernel ends
with its longest row of tiles, which meets $l$ entries. $r_0$ rows, one for each part, fill the chip. There are $q$ pairs of
queries and entries, $r$ rows of queries, and $h$ query heads. A key and a value together have $d$ values. Queries, results and
new entries have $A$ bytes. Prefill takes

$$ c = \frac{2 (d + d_0)}{e_c P} \sqrt{(h (q + \tau r))^2 + (r_0 (l + \tau))^2}, \qquad
   m = \frac{Q + a A}{W}, \qquad t = t_0 + (m^p + c^p)^{1/p} $$

$d_0$: exponentials of a pair, in multiplications. $Q$: bytes of the cache. $a$: passes of activations through memory, among
them those that quantise and store them. Decode has one query for each of $s$ sequences with $g$ KV heads:

$$ q = s (l + \tau) \sqrt{1 + \left(\frac{r_0}{s g}\right)^2}, \qquad c = \frac{2 h d q}{e_c P}, \qquad
   m = \frac{\kappa q}{e_m W} $$

with $\kappa$ bytes of an entry. There $r_0$ is small in kernels that divide a context among all parts of the chip. Decode from
latents has four kernels, by the number of heads (`HEADS`).

The constants are fitted to kernel timings (`docs/fit_kernels.py attention`), by operation, generation of chips and format.
They are also fitted by engine, where it is known which kernels an engine runs. Elsewhere the kernels of all engines are taken
together.

FlashAttention 2 takes a batch of prompts and decoding sequences in one call (`JointKernel`). Only calls with one query per
sequence pack the query heads of a KV head into a tile. In other calls each query head of a decoding sequence computes a tile of
$T$ rows, of which one is in use. The call starts as many blocks for each sequence as for the longest prompt of $n$ tokens. A
block takes as long as $T$ rows that meet $b$ entries. A head of a sequence then has these pairs, at the rate of prefill:

$$ q = T (l + \tau) + b \max(n, T). $$

References:
    Dao, "FlashAttention-2", arXiv 2307.08691: tiles and their order. Shah et al., "FlashAttention-3", arXiv 2407.08608:
    exponentials have 1/256 of the rate of products. Calls of FlashAttention 2: data/kernels/joint_attention.toml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.data_files import PACKAGED, read_file
from steptime.number_checks import Number
from steptime.physics.compute_dtype import DECODE, LATENT_DECODE, LATENT_PREFILL, PREFILL

# Chips for which no kernel was timed.
ANY: Final = "any"
OPERATIONS: Final = (DECODE, PREFILL, LATENT_DECODE, LATENT_PREFILL)
# Formats that kernels distinguish: of the cache in decode, and of the arithmetic in prefill.
WIDE, NARROW = "bf16", "fp8"
CONSTANTS: Final = {
    DECODE: ("seconds", "memory_share", "compute_share", "tile_entries", "fill_rows"),
    LATENT_DECODE: ("seconds", "memory_share", "compute_share", "tile_entries", "fill_rows"),
    PREFILL: ("seconds", "compute_share", "tile_entries", "pair_values", "fill_rows", "activation_passes"),
    LATENT_PREFILL: ("seconds", "compute_share", "tile_entries", "pair_values", "fill_rows", "activation_passes"),
}  # fmt: skip
# Most query heads of a chip that share a kernel of latents in decode. Kernels have tiles of few or of many heads, and those for
# 32 read each latent twice on Blackwell: 256 sequences of 8,192 entries in 8 bits take 0.20 ms on a B200 with up to 16 heads,
# 0.30 ms with 32, and 0.26 ms with 64 as with 128.
HEADS: Final = (16.0, 32.0, 64.0, math.inf)
# Rows of a tile of queries in FlashAttention-3 (arXiv 2407.08608).
TILE_ROWS: Final = 64.0
# Bytes of a query or a result.
VALUE_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """Constants of attention kernels; the defaults are those of an ideal chip.

    operation, engine, chips, form: Operation, name of the engine that runs them ("" for those of all engines), generation of
    chips, and format of cache (decode) or arithmetic (prefill).
    seconds: Time of a call without work. memory_share, compute_share: Shares of the data sheet's rates.
    tile_entries: Entries that a row of queries (prefill) or a sequence (decode) meets besides those that it needs.
    pair_values: Values of a head that take as long as the exponential of a pair.
    fill_rows: Rows of all heads that fill a chip, in decode of all KV heads.
    activation_passes: Passes of activations through memory.
    most_heads: Most query heads of a chip for which an engine runs the kernel.
    error, timings: Median error, and number of timings.
    FILE, KEY: File of the fitted kernels, and fields by which they are found (`load_kernels`).
    """

    FILE: ClassVar = "attention.toml"
    KEY: ClassVar = ("operation", "engine", "chips", "form", "most_heads")
    operation: str = ""
    engine: str = ""
    chips: str = ANY
    form: str = ""
    seconds: Number = 0.0
    memory_share: Number = 1.0
    compute_share: Number = 1.0
    tile_entries: Number = 0.0
    pair_values: Number = 0.0
    fill_rows: Number = 0.0
    activation_passes: Number = 0.0
    most_heads: float = math.inf
    error: float = 0.0
    timings: int = 0

    def slowed(self, factor: Number) -> AttentionKernel:
        """Return the kernel with all times multiplied by a factor.

        Args:
            factor: A factor, which may be an array.

        Returns:
            The kernel.
        """
        return replace(
            self,
            seconds=self.seconds * factor,
            memory_share=self.memory_share / factor,
            compute_share=self.compute_share / factor,
        )


IDEAL_KERNEL: Final = AttentionKernel()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointKernel:
    """Attention of prompts and decoding sequences in one call.

    engine, chips, form: Engine that runs it, generation of chips, and format of the cache.
    tile_rows: Rows of the tile that one query of a decoding sequence takes.
    block_entries: Entries of `tile_rows` rows that take as long as the start of a block without work.
    timed_compute: Share of the data sheet that plain products reach on the chip whose prefill was timed.
    FILE, KEY: As of `AttentionKernel`.
    """

    FILE: ClassVar = "joint_attention.toml"
    KEY: ClassVar = ("engine", "chips", "form")
    engine: str
    chips: str
    form: str
    tile_rows: float
    block_entries: float
    timed_compute: float


def prefill_pairs(kernel: AttentionKernel, pairs: Number, rows: Number, heads: Number, longest: Number) -> Number:
    """Return the pairs of all heads that take as long as those of a prefill, with tiles and the longest row of tiles.

    Args:
        kernel: The kernel.
        pairs: Pairs of queries and entries of a head.
        rows: Rows of queries.
        heads: Query heads of the chip.
        longest: Most entries that a row meets.

    Returns:
        Pairs.

    >>> float(prefill_pairs(AttentionKernel(tile_entries=50.0, fill_rows=400.0), 5000.0, 100.0, 4.0, 100.0))
    72111.02550927979
    """
    return np.hypot(heads * (pairs + kernel.tile_entries * rows), kernel.fill_rows * (longest + kernel.tile_entries))


def decode_entries(kernel: AttentionKernel, entries: Number, rows: Number) -> Number:
    """Return the entries of a sequence that take as long as those of a decode step, with tiles and idle parts of the chip.

    Args:
        kernel: The kernel.
        entries: Entries that a sequence needs.
        rows: Sequences times KV heads of the chip; at least 1.

    Returns:
        Entries.

    >>> float(decode_entries(AttentionKernel(tile_entries=100.0, fill_rows=3.0), 900.0, 4.0))
    1250.0
    """
    return (entries + kernel.tile_entries) * np.hypot(1.0, kernel.fill_rows / rows)


def joint_pairs(joint: JointKernel, kernel: AttentionKernel, entries: Number, tokens: Number) -> Number:
    """Return the pairs of a head of a decoding sequence, in a call with prompts.

    Args:
        joint: The kernel that takes both.
        kernel: Its constants in prefill.
        entries: Entries that the sequence meets.
        tokens: New tokens of a prompt.

    Returns:
        Pairs.

    >>> joint = JointKernel(engine="", chips="", form="", tile_rows=64, block_entries=10, timed_compute=1)
    >>> float(joint_pairs(joint, AttentionKernel(tile_entries=100.0), 900.0, 512.0))
    69120.0
    """
    return joint.tile_rows * (entries + kernel.tile_entries) + joint.block_entries * np.maximum(tokens, joint.tile_rows)


def padding(heads: Number, queries: Number) -> Number:
    """Return the rows of a tile that several queries of a sequence take, over those of as many single queries.

    The heads of a KV head and the queries of a sequence share the rows of a tile, which single queries leave mostly empty:
    FlashAttention-3 takes 3 to 9 % longer for 32 heads per KV head than for 8.

    Args:
        heads: Query heads per KV head.
        queries: Queries of a sequence.

    Returns:
        At most 1; 1 for one query.

    >>> float(padding(8.0, 1.0)), float(padding(8.0, 4.0)), float(padding(128.0, 4.0))
    (1.0, 0.25, 1.0)
    """
    return np.maximum(1.0, heads * queries / TILE_ROWS) / (np.maximum(1.0, heads / TILE_ROWS) * queries)


@lru_cache(maxsize=3)
def load_kernels(kind: type[Any]) -> Mapping[tuple[str, ...], Any]:
    """Return fitted kernels by their key, of which one part is the engine ("" for all) and one the generation of chips.

    Args:
        kind: Class of the kernels, with the name of their file and the fields of their key.

    Returns:
        Kernels by key.

    >>> load_kernels(AttentionKernel)[DECODE, "", ANY, WIDE, math.inf].operation == DECODE
    True
    """
    kernels = [kind(**entry) for entry in read_file(PACKAGED / "kernels" / kind.FILE)["kernel"]]
    return {tuple(getattr(kernel, name) for name in kind.KEY): kernel for kernel in kernels}


def select_kernel(
    operation: str, chips: str, form: str, factor: Number = 1.0, engine: str = "", heads: Number = math.inf
) -> AttentionKernel:
    """Return the kernels of an operation on a generation of chips, with the factor of an engine on their time.

    Args:
        operation: One of `OPERATIONS`.
        chips: Generation of the chips; those whose kernels were not timed have the kernels of all timed chips.
        form: One of `WIDE` and `NARROW`.
        factor: Factor on all times, which may be an array.
        engine: Engine whose kernels run (`Engine.kernel_engine`); other names have the kernels of all engines.
        heads: Query heads of a chip, which may be an array; they select among the kernels of latents.

    Returns:
        The kernels; with constants in arrays where numbers of heads have different kernels.
    """
    kernels: Mapping[Any, Any] = load_kernels(AttentionKernel)
    keys = (operation, engine, chips, form), (operation, "", chips, form), (operation, "", ANY, form)
    key = next(key for key in keys if (*key, math.inf) in kernels)
    by_heads = [kernels[*key, limit] for limit in HEADS if (*key, limit) in kernels]
    kernel: AttentionKernel = by_heads[0]
    # Only decode from latents has more than one kernel.
    if len(by_heads) > 1:
        places = np.searchsorted([kernel.most_heads for kernel in by_heads[:-1]], np.asarray(heads, dtype=np.float64))
        kernel = by_heads[int(places.flat[0])]
        if np.any(places != places.flat[0]):
            values: dict[str, Any] = {
                name: np.array([getattr(choice, name) for choice in by_heads])[places] for name in CONSTANTS[operation]
            }
            kernel = replace(kernel, **values)
    return kernel if type(factor) is float and factor == 1 else kernel.slowed(factor)
