"""Number formats: bytes per stored value with its scales, and usable arithmetic.

A block-scaled format stores one scale for each block of values, so that a value costs a little more than its
bits:

- MXFP4: 4 bits + 8 bits for each 32 values (OCP Microscaling Formats 1.0, table 1).
- NVFP4: 4 bits + 8 bits for each 16 values (NVIDIA, "Introducing NVFP4").
- FP8 of DeepSeek-V3: 8 bits + 32 bits for each 128 x 128 block.

A `Packing` gives the exact bytes of a matrix in a checkpoint, with all data that tools store in addition to the
values.

Software of a chip matures: `SOFTWARE` is the share of the fitted speed that it reached by day.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from steptime.errors import RangeError, UnknownName, short_repr
from steptime.hardware.system import Software, System
from steptime.number_checks import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The storage of a matrix in a checkpoint.

    bits, word: Bits per value; values are packed into words of `word` bytes.
    scale, columns, rows: A scale of `scale` bytes for each `columns` inputs of each `rows` outputs (columns 0: all inputs;
    scale 0: no scales).
    zero_bits: Bits of a zero point, packed in the same way.
    per_input: Bytes for each input (g_idx of GPTQ).
    fixed: Bytes for each matrix (its scale, its shape).
    flat: Whether scales pass through the matrix as one row of values, as in bitsandbytes.
    nested: Scales per second-level scale: each scale then has 1 byte, and each `nested` scales have 4 more
    bytes.
    state: Name of the format in a bitsandbytes state.
    """

    bits: int = 8
    word: int = 1
    columns: int = 0
    rows: int = 1
    scale: int = 0
    zero_bits: int = 0
    per_input: int = 0
    fixed: int = 0
    flat: bool = False
    nested: int = 0
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A number format: `bytes` per stored value with scales, and its `arithmetic`.

    arithmetic: The peak rates that the format can use, best first.
    block: Columns that share one scale with neighbouring rows; engines do not divide them (0: no such blocks).
    packing: Storage of a matrix in a checkpoint, if the config describes it.
    """

    name: str
    bytes: float
    arithmetic: tuple[str, ...]
    block: int = 0
    packing: Packing | None = None


WIDE = ("bf16", "fp16", "tf32", "fp32")

FORMATS: Final[dict[str, Format]] = {
    f.name: f
    for f in (
        Format(name="fp32", bytes=4.0, arithmetic=("tf32", "fp32", "bf16")),
        Format(name="bf16", bytes=2.0, arithmetic=WIDE),
        Format(name="fp16", bytes=2.0, arithmetic=("fp16", "bf16", "tf32", "fp32")),
        Format(name="fp8", bytes=1.0, arithmetic=("fp8", *WIDE)),
        Format(name="int8", bytes=1.0, arithmetic=("int8", *WIDE)),
        Format(name="nvfp4", bytes=0.5 + 1 / 16, arithmetic=("fp4", "fp8", *WIDE)),
        Format(name="mxfp4", bytes=0.5 + 1 / 32, arithmetic=("fp6", *WIDE)),
        Format(name="mxfp8", bytes=1.0 + 1 / 32, arithmetic=("fp8", *WIDE)),
        Format(name="fp4", bytes=0.5, arithmetic=("fp4", "fp8", *WIDE)),
        # Weight only, with a 16-bit scale for each 128 values.
        Format(name="int4", bytes=0.5 + 2 / 128, arithmetic=WIDE),
    )
}
ALIASES: Final = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8": "fp8", "auto": "bf16",
}  # fmt: skip


GGML: Final[dict[str, tuple[int, int]]] = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q8_1": (32, 40),
    "q1_0": (128, 18), "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
    "q8_k": (256, 292), "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74), "iq2_s": (256, 82),
    "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136), "tq1_0": (256, 54), "tq2_0": (256, 66),
}  # fmt: skip
"""Formats of GGUF files: values and bytes of a block (ggml-common.h and gguf-py/gguf/constants.py of llama.cpp).

Kernels unpack them and multiply in 16 bits. MXFP4 in GGUF is the MXFP4 of OCP, and NVFP4 has the bytes of `nvfp4`.
"""
GGUF_MIXTURES: Final[dict[str, float]] = {
    "iq2_m": 2.9294, "q3_k_s": 3.6429, "iq3_m": 3.7628, "q3_k_m": 3.91, "q3_k_l": 4.2979, "q4_k_s": 4.6672,
    "q4_k_m": 4.8944, "q5_k_s": 5.5704, "q5_k_m": 5.7036,
}  # fmt: skip
"""Bits per weight of GGUF files that mix types, with scales, embeddings and head.

Llama-3.1-8B (github.com/ggml-org/llama.cpp, tools/quantize/README.md); q3_k_m: Llama-2-7B, an earlier version of that page.
"""
# Marks formats of GGUF files, which an engine may multiply in blocks of int8. No chip has a rate of this name.
GGUF: Final = "gguf"
FORMATS_OF_GGML: Final = {
    name: Format(name=name, bytes=stored_bytes, arithmetic=("fp16", "bf16", "tf32", "fp32", GGUF))
    for name, stored_bytes in (
        *((name, size / values) for name, (values, size) in GGML.items()),
        *((name, bits / 8) for name, bits in GGUF_MIXTURES.items()),
    )
}
# Type of the head in GGUF files of one type with fewer bits (llama-quant.cpp of llama.cpp). Mixtures contain their head.
GGUF_HEAD: Final = "q6_k"


def packed_bytes(packing: Packing, inputs: int, outputs: int) -> int:
    r"""Return the bytes of a matrix in a checkpoint.

    The formula for $n$ inputs and $m$ outputs:

    $$ \lceil b n / w \rceil w m + s \lceil n/c \rceil \lceil m/r \rceil + ... $$

    A value has $b$ bits, in words of $w$ bytes. A scale has $s$ bytes, for $c$ inputs of $r$ outputs.

    Args:
        packing: Storage of the matrix.
        inputs: Number of inputs.
        outputs: Number of outputs.

    Returns:
        Bytes of values, scales and other data.

    >>> packed_bytes(Packing(bits=8, columns=128, rows=128, scale=4), 7168, 576)  # kv_a_proj of DeepSeek-V3: 56 x 5 blocks
    4129888
    >>> packed_bytes(Packing(bits=4, word=4, columns=128, scale=2, zero_bits=4, per_input=4), 4096, 4096)  # GPTQ
    8732672
    """
    # bitsandbytes scales one row of all values; other tools scale groups of inputs.
    if packing.flat:
        values = inputs * outputs
        scales = math.ceil(values / packing.columns)
        scale_bytes = scales + 4 * math.ceil(scales / packing.nested) if packing.nested else packing.scale * scales
        return math.ceil(values * packing.bits / 8) + scale_bytes + packing.fixed
    groups = math.ceil(inputs / packing.columns) if packing.columns else 1
    row = math.ceil(inputs * packing.bits / 8 / packing.word) * packing.word
    zeros = groups * math.ceil(outputs * packing.zero_bits / 32) * 4
    scales = groups * math.ceil(outputs / packing.rows) * packing.scale
    return row * outputs + scales + zeros + packing.per_input * inputs + packing.fixed


def number_format(name: str, *, values_per_scale: float = 0.0, scale_bytes: float = 0.0, block: int = 0) -> Format:
    """Return a number format by name.

    Args:
        name: Name of the format, in any case, or a type of GGUF files.
        values_per_scale: Values that share a scale; 0 for the format's default.
        scale_bytes: Bytes of each scale.
        block: Columns that share one scale with neighbouring rows.

    Returns:
        The format.

    Raises:
        UnknownName: There is no format of that name.

    >>> number_format("fp8", values_per_scale=128 * 128, scale_bytes=4).bytes
    1.000244140625
    >>> number_format("mxfp4").bytes
    0.53125
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key in FORMATS_OF_GGML:
        return FORMATS_OF_GGML[key]
    if key not in FORMATS:
        known_formats = ", ".join(FORMATS) + ", and types of GGUF files such as q4_k_m or q8_0."
        raise UnknownName("number format", name, [*FORMATS, *ALIASES, *FORMATS_OF_GGML], f"Known: {known_formats}")
    base = FORMATS[key]
    if values_per_scale <= 0:
        return base
    bits = 4 if key in ("int4", "fp4", "nvfp4", "mxfp4") else 8 * base.bytes
    return replace(base, bytes=bits / 8 + scale_bytes / values_per_scale, block=block)


def peak_rate(peak: Mapping[str, Any], arithmetic: tuple[str, ...]) -> Any:
    """Return the dense peak rate of the first arithmetic that the chip has.

    A chip without units for a format runs it in the next wider arithmetic: FP4 in FP8, FP8 in BF16.

    Args:
        peak: Peak rates of the chip by arithmetic [FLOP/s].
        arithmetic: Names of arithmetic, best first.

    Returns:
        FLOP/s.

    Raises:
        UnknownName: The chip has none of the rates.

    >>> peak_rate({"bf16": 312e12}, ("fp8", "bf16"))
    312000000000000.0
    """
    for kind in arithmetic:
        if kind in peak:
            return peak[kind]
    widest = "bf16" if "bf16" in arithmetic else arithmetic[0]
    raise UnknownName(
        "arithmetic",
        arithmetic[0],
        (),
        f"The chip has peak rates only for {', '.join(peak) or 'no arithmetic'}, and wider formats run in {widest}: "
        f'add {widest} = "... TFLOP/s" under [peak] in the file of the chip.',
    )


def missing_units(formats: Iterable[str], arithmetic: Container[str], system: str) -> str:
    """Say which weight formats a chip multiplies in wider arithmetic, because it has no units for them.

    Args:
        formats: Names of weight formats; empty names are skipped.
        arithmetic: Names of the arithmetic of the chip.
        system: Name of the system in the sentence.

    Returns:
        A sentence without a period; empty if the chip has units for all formats.

    >>> missing_units(["nvfp4", "bf16"], ["bf16", "fp8"], "hgx-h100")
    'hgx-h100 has no units for nvfp4: such weights save memory and bandwidth, but are multiplied in fp8'
    >>> missing_units(["mxfp4"], ["fp4", "fp8", "bf16"], "a")
    'a has no rate in fp6, the arithmetic of mxfp4: such weights save memory and bandwidth, but are multiplied in bf16'
    """
    clauses = []
    for name in dict.fromkeys(filter(None, formats)):
        kinds = number_format(name).arithmetic
        used = next((kind for kind in kinds if kind in arithmetic), "")
        if kinds[0] not in WIDE and used and used != kinds[0]:
            saving = f"such weights save memory and bandwidth, but are multiplied in {used}"
            # Units for another format of four bits do not help: name the arithmetic that lacks.
            lacks = f"rate in {kinds[0]}, the arithmetic of {name}" if "fp4" in arithmetic else f"units for {name}"
            clauses.append(f"{system} has no {lacks}: {saving}")
    return "; ".join(clauses)


# Keys of the software's share, and of its factor on fixed times, in `Chip.reached`.
SOFTWARE, SLOWER_LAUNCHES = "software", "launches"


def with_software(system: System, day: str) -> System:
    """Return the system with the software of a day.

    Args:
        system: The system.
        day: A day such as 2025-12-31.

    Returns:
        The changed system.

    Raises:
        RangeError: The text is not a day, the day is outside the measured period, or the chip has no
            measurements by day.
    """
    if not is_day(day):
        raise RangeError(f"software: must be a day such as 2025-12-31, got {short_repr(day)}")
    periods = system.chip.software
    if not periods:
        raise RangeError(f"software: {system.name} has no data by day; use AMD's MI300X, MI325X or MI355X")
    first, last = periods[0].first, periods[-1].last
    if not first <= day <= last:
        raise RangeError(f"software: known for {system.name} from {first} to {last}, got {day}")
    return _with_software_of(system, day)


def is_day(text: str) -> bool:
    """Whether a text is a day such as 2025-12-31.

    Args:
        text: Any text.

    Returns:
        True or false.

    >>> [is_day(text) for text in ("2025-12-31", "2025-13-01", "20251231", "Christmas")]
    [True, False, False, False]
    """
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def as_measured(system: System, row: Mapping[str, str]) -> System:
    """Return the system with the software of the day of a measured run.

    Args:
        system: The system.
        row: Columns of the run; "measured" is the day.

    Returns:
        The system with the software of that day or of the next measured period; the newest software for a run
        without a day.
    """
    day = software_day(system, row)
    return _with_software_of(system, day) if is_day(day) else system


def software_day(system: System, row: Mapping[str, str]) -> str:
    """Return the day of a measured run, if the system has software by day.

    Args:
        system: The system.
        row: Columns of the run; "measured" is the day.

    Returns:
        The day; "" without one.
    """
    return (row.get("measured") or "") if system.chip.software else ""


def _with_software_of(system: System, day: str) -> System:
    periods, chip = system.chip.software, system.chip
    # A day between two periods belongs to the next one, and a day after all of them to the newest.
    period = next((period for period in periods if day <= period.last), periods[-1])
    return replace(system, chip=replace(chip, reached={**chip.reached, **reached_by(period)}))


def reached_by(period: Software) -> dict[str, Number]:
    """Return what engines reach on a chip with the software of a period, by name.

    Args:
        period: The period.

    Returns:
        The share of the usual speed, and the factor on fixed times.
    """
    return {SOFTWARE: period.share, SLOWER_LAUNCHES: period.launches}
