r"""Expert kernels: the time of the routed experts of a layer on one chip, from kernels that were timed alone.

A kernel moves activations of $r$ rows, and reads the weights of $x$ touched experts. An expert has $n$ matrices of $h \times i$
weights in $b$ bytes. Narrow experts fill the chip's memory system less, which costs as much as $i_0$ further columns. A
kernel computes whole tiles of $\tau$ rows for each expert:

$$ m = \frac{x n h i b}{e_m W} \left(1 + \frac{i_0}{i}\right) + \frac{2 a r (5 h + 2 n i) + 2 a_0 s h}{W}, \qquad
   c = \frac{2 n h i \sqrt{r^2 + (\tau x)^2}}{e_c P}, \qquad t = t_0 + (m^p + c^p)^{1/p} $$

$s$ are the tokens that the chip receives, with experts there or not: all tokens of a step, unless data-parallel ranks exchange
them. A call sorts them, starts blocks for each of their experts, and sums into each of them, which takes as long
as $a_0$ passes of them through memory.

Kernels of TensorRT-LLM and FlashInfer have tiles of 8, 16 and more rows, and take those of the rows that they expect of an
expert: $s$ times the experts of a token, over the experts of the chip. With expert parallelism most of these rows belong to
experts of other chips, so that tiles are larger than the rows that fill them (flashinfer, `computeSelectedTileN` in
csrc/trtllm_fused_moe_kernel_launcher.cu). $\tau$ grows with the expected rows, up to a largest tile (`tile_size`).

The constants are fitted to kernel timings (`docs/fit_kernels.py`), by generation of chips and format of the weights.
They are also fitted by engine, where it is known which kernels an engine runs. Elsewhere the kernels of all engines are taken
together. A factor on $t$,
from whole serving runs, belongs to an engine (`ExpertFactor`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from steptime.errors import short_repr
from steptime.hardware.number_formats import Format
from steptime.number_checks import Number
from steptime.physics.attention_kernels import ANY, load_kernels
from steptime.physics.engine_parameters import numbered_tables

# Bytes of an activation.
ACTIVATION_BYTES: Final = 2
# Kinds of stored experts; 8-bit weights with scales for blocks have separate kernels.
BLOCKS: Final = "fp8_block"
# Kinds of stored experts that have other kernels where ranks exchange tokens; those of blocks are fast with many rows.
EXCHANGED: Final = "fp8_block, exchanged"
EXCHANGED_FP4: Final = "nvfp4, exchanged"
CONSTANTS: Final = (
    "seconds", "memory_share", "compute_share", "fill_columns", "tile_rows", "activation_share", "token_passes", "tile_growth",
)  # fmt: skip
STORED: Final = ("bf16", "fp8", BLOCKS, "int4", "nvfp4", "mxfp4")
# Rows of the smallest tile of kernels that choose tiles by the rows that they expect (flashinfer: `mBaseSupportedTileNums`).
LEAST_TILE: Final = 8
# Smallest and largest factor of whole serving runs.
FACTORS: Final = (0.1, 10.0)
# Keys of a table of an engine file.
NEEDED: Final = {"chips", "stored", "factor"}
# Bytes per weight up to which weights count as 4-bit and as 8-bit.
FOUR_BITS, EIGHT_BITS = 5 / 8, 5 / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernel:
    """Constants of the kernels of routed experts; the defaults are those of an ideal chip.

    engine: Name of the engine that runs them; "" for those of all engines. chips, stored: Generation of chips, and kind of
    stored experts. computed: Arithmetic; "" for the chip's best.
    seconds: Time of a call without work. memory_share, compute_share: Shares of the data sheet's rates.
    fill_columns: Columns that cost as much as the start of each expert's reads.
    tile_rows: Rows of the smallest tile. tile_growth: Largest tile over the smallest. activation_share: Share of activations
    that passes through memory. token_passes: Passes of all tokens of the chip through memory that take as long as their sort
    and sum.
    error, timings: Median error, and number of timings.
    FILE, KEY: File of the fitted kernels, and fields by which they are found (`load_kernels`).
    """

    FILE: ClassVar = "experts.toml"
    KEY: ClassVar = ("engine", "chips", "stored")
    engine: str = ""
    chips: str = ANY
    stored: str = ""
    computed: str = ""
    seconds: Number = 0.0
    memory_share: Number = 1.0
    compute_share: Number = 1.0
    fill_columns: Number = 0.0
    tile_rows: Number = 0.0
    activation_share: Number = 0.0
    token_passes: Number = 0.0
    tile_growth: Number = 1.0
    error: float = 0.0
    timings: int = 0


IDEAL_KERNEL: Final = ExpertKernel()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFactor:
    """A factor of an engine file: time of routed experts in whole serving runs over the time of the kernels.

    chips, stored: Generation of chips, and kind of stored experts. runs: Runs that the factor was fitted to.
    """

    chips: str
    stored: str
    factor: Number = 1.0
    runs: int = 0


def kernel_times(
    kernel: ExpertKernel,
    *,
    touched: Number,
    rows: Number,
    tokens: Number,
    width: Number,
    columns: Number,
    matrices: Number,
    stored: Number,
    bandwidth: Number,
    peak: Number,
    expected: Number = 0.0,
) -> tuple[Number, Number]:
    """Return the seconds of arithmetic and of memory traffic of one call.

    Args:
        kernel: The kernel.
        touched: Experts that are read.
        rows: Rows of all experts of the chip.
        tokens: Tokens that the chip receives.
        width: Width of a row [values].
        columns: Columns of an expert on the chip.
        matrices: Matrices of an expert.
        stored: Bytes per weight.
        bandwidth: Bytes per second.
        peak: FLOP/s.
        expected: Rows that the kernel expects of an expert.

    Returns:
        Two times [s].

    >>> sizes = {"touched": 8, "rows": 8, "tokens": 1, "width": 4096, "columns": 1024, "matrices": 3, "stored": 1}
    >>> [float(seconds) for seconds in kernel_times(IDEAL_KERNEL, **sizes, bandwidth=4e12, peak=1e15)]
    [2.01326592e-07, 2.5165824e-05]
    """
    weights = matrices * width * columns
    compute = 2 * weights * np.hypot(rows, touched * tile_size(kernel, expected)) / (kernel.compute_share * peak)
    reads = touched * weights * stored / (memory_share(kernel, columns) * bandwidth)
    return compute, reads + activation_bytes(kernel, rows, tokens, width, columns, matrices) / bandwidth


def tile_size(kernel: ExpertKernel, expected: Number) -> Number:
    """Return the rows of a tile.

    Args:
        kernel: The kernel.
        expected: Rows that it expects of an expert.

    Returns:
        Rows.

    >>> kernel = ExpertKernel(tile_rows=10.0, tile_growth=8.0)
    >>> [float(tile_size(kernel, expected)) for expected in (1, 8, 32, 1000)]
    [10.0, 10.0, 40.0, 80.0]
    """
    return kernel.tile_rows * np.maximum(1.0, np.minimum(np.asarray(expected) / LEAST_TILE, kernel.tile_growth))


def memory_share(kernel: ExpertKernel, columns: Number) -> Number:
    """Return the share of memory bandwidth in reads of weights.

    Args:
        kernel: The kernel.
        columns: Columns of an expert on the chip.

    Returns:
        A share.

    >>> memory_share(ExpertKernel(memory_share=0.9, fill_columns=128.0), 1024)
    0.8
    """
    return kernel.memory_share / (1 + kernel.fill_columns / columns)


def activation_bytes(
    kernel: ExpertKernel, rows: Number, tokens: Number, width: Number, columns: Number, matrices: Number
) -> Number:
    """Return the bytes of activations through memory of one call.

    Rows: a sort reads and writes them, the first products read them, the last product writes them, and the sum reads them.
    Columns of each matrix: written and read.

    Args:
        kernel: The kernel.
        rows: Rows of all experts of the chip.
        tokens: Tokens that the chip receives.
        width: Width of a row [values].
        columns: Columns of an expert on the chip.
        matrices: Matrices of an expert.

    Returns:
        Bytes.
    """
    of_rows = kernel.activation_share * rows * (5 * width + 2 * matrices * columns)
    return (of_rows + kernel.token_passes * tokens * width) * ACTIVATION_BYTES


def stored_kind(form: Format) -> str:
    """Return the kind of stored experts, as kernels distinguish them.

    Args:
        form: Format of the stored weights.

    Returns:
        One of `STORED`.

    >>> from steptime.hardware.number_formats import number_format
    >>> [stored_kind(number_format(name)) for name in ("bf16", "fp8", "int4", "nvfp4", "mxfp4", "q4_k")]
    ['bf16', 'fp8', 'int4', 'nvfp4', 'mxfp4', 'int4']
    """
    first = form.arithmetic[0]
    if form.bytes < FOUR_BITS:
        return {"fp4": "nvfp4", "fp6": "mxfp4"}.get(first, "int4")
    if form.bytes <= EIGHT_BITS and first in ("fp8", "int8"):
        return BLOCKS if form.block else "fp8"
    return "bf16"


def select_kernel(chips: str, stored: str, *, has_fp4: bool, engine: str = "", exchanges: Number = False) -> ExpertKernel:
    """Return the kernels for stored experts on a generation of chips.

    Chips without 4-bit arithmetic unpack nvfp4 weights with the kernels of other 4-bit integers (Marlin). Chips whose kernels
    were not timed get the kernels of all timed chips. Where data-parallel ranks exchange tokens, experts with scales for blocks
    run in DeepGEMM and its like (SGLang's and vLLM's DeepEP; TensorRT-LLM), and those in nvfp4 in TensorRT-LLM's CUTLASS
    (InferenceX, benchmarks/single_node: dsr1_fp4_b200_trt.sh; srt-slurm, recipes/trtllm/b200-fp4).

    Args:
        chips: Generation of the chips.
        stored: Kind of the stored experts (`stored_kind`).
        has_fp4: Whether the chips have 4-bit arithmetic.
        engine: Engine whose kernels run (`Engine.kernel_engine`); other names have the kernels of all engines.
        exchanges: Whether data-parallel ranks exchange tokens; may be an array.

    Returns:
        The kernels.

    >>> [select_kernel(chips, "nvfp4", has_fp4=fp4).computed for chips, fp4 in (("blackwell", True), ("hopper", False))]
    ['fp4', 'bf16']
    """
    kernels = load_kernels(ExpertKernel)
    if stored == "nvfp4" and not has_fp4:
        stored = "int4"
    keys = (engine, chips, stored), ("", chips, stored), ("", ANY, stored)
    kernel: ExpertKernel = next(kernels[key] for key in keys if key in kernels)
    kind = exchanged_kind(chips, stored, engine)
    if not kind or not np.any(exchanges):
        return kernel
    exchanged: ExpertKernel = kernels.get((engine, chips, kind)) or kernels["", chips, kind]
    if np.all(exchanges):
        return exchanged
    values = {name: np.where(exchanges, getattr(exchanged, name), getattr(kernel, name)) for name in CONSTANTS}
    return replace(kernel, **values)


def exchanged_kind(chips: str, stored: str, engine: str = "") -> str:
    """Return the kind of stored experts whose kernels run where data-parallel ranks exchange tokens.

    Args:
        chips: Generation of the chips.
        stored: Kind of the stored experts.
        engine: Engine whose kernels run.

    Returns:
        A kind of timed kernels; "" where experts have the same kernels as without exchange.

    >>> [exchanged_kind("blackwell", "nvfp4", engine) for engine in ("trtllm", "sglang")]
    ['nvfp4, exchanged', '']
    """
    kind, kernels = f"{stored}, exchanged", load_kernels(ExpertKernel)
    return kind if (engine, chips, kind) in kernels or ("", chips, kind) in kernels else ""


def expert_factor(factors: tuple[ExpertFactor, ...], chips: str, stored: str, unmeasured: Number = 1.0) -> Number:
    """Return the factor of an engine on the time of the kernels.

    Args:
        factors: Factors of the engine.
        chips: Generation of the chips.
        stored: Kind of the stored experts.
        unmeasured: Factor where no run had such experts.

    Returns:
        A factor.

    >>> expert_factor((ExpertFactor(chips="hopper", stored="fp8", factor=0.9),), "hopper", "fp8")
    0.9
    """
    return next((entry.factor for entry in factors if entry.chips == chips and entry.stored == stored), unmeasured)


def read_factors(entries: object) -> tuple[ExpertFactor, ...]:
    """Read the [[experts]] tables of an engine file.

    Args:
        entries: Value of the key "experts" of the file.

    Returns:
        The factors, in the order of the file.

    Raises:
        ValueError: A table is malformed; the message says which and why.
    """
    factors = []
    for place, entry in numbered_tables("experts", entries):
        if not isinstance(entry, dict) or not NEEDED <= set(entry) <= NEEDED | {"runs"}:
            raise ValueError(f"{place}: needs chips, stored and factor, and may have runs")
        factor, runs = entry["factor"], entry.get("runs", 0)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not FACTORS[0] <= factor <= FACTORS[1]:
            raise ValueError(f"{place}: factor must be from {FACTORS[0]:g} to {FACTORS[1]:g}, got {short_repr(factor)}")
        if isinstance(runs, bool) or not isinstance(runs, int) or runs < 0:
            raise ValueError(f"{place}: runs must be a whole number of at least 0, got {short_repr(runs)}")
        if not isinstance(entry["chips"], str) or entry["stored"] not in (*STORED, EXCHANGED, EXCHANGED_FP4):
            kinds = f"{', '.join(STORED)}, {EXCHANGED!r} or {EXCHANGED_FP4!r}"
            raise ValueError(f"{place}: chips must be a text and stored one of {kinds}, got {short_repr(entry['stored'])}")
        factors.append(ExpertFactor(**entry))
    return tuple(factors)
