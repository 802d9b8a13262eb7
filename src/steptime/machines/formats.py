"""Number formats: how many bytes a stored value takes with its scales, and which arithmetic it can run in.

A block-scaled format stores one scale for each block of values, so that a value costs a little more than its bits:
MXFP4 is 4 bits + 8 bits for each 32 values (OCP Microscaling Formats 1.0, table 1), NVFP4 is 4 bits + 8 bits for
each 16 (NVIDIA, "Introducing NVFP4"), FP8 of DeepSeek-V3 is 8 bits + 32 bits for each 128 x 128 block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from steptime.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A number format: `bytes` per stored value, scales included; `arithmetic`, the peak rates it can use, best first.

    block: columns that share a scale with the rows beside them, which engines do not divide (0: no such blocks).
    """

    name: str
    bytes: float
    arithmetic: tuple[str, ...]
    block: int = 0


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
        Format(name="int4", bytes=0.5 + 2 / 128, arithmetic=WIDE),  # weight only, 16-bit scale for each 128 values
    )
}
ALIASES: Final = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8": "fp8", "auto": "bf16",
}  # fmt: skip


def number_format(name: str, *, values_per_scale: float = 0.0, scale_bytes: float = 0.0, block: int = 0) -> Format:
    """Return the format `name`, optionally with a scale of `scale_bytes` for each `values_per_scale` values, in blocks.

    >>> number_format("fp8", values_per_scale=128 * 128, scale_bytes=4).bytes
    1.000244140625
    >>> number_format("mxfp4").bytes
    0.53125
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key not in FORMATS:
        raise UnknownName("number format", name, [*FORMATS, *ALIASES], "Known: " + ", ".join(FORMATS) + ".")
    base = FORMATS[key]
    if values_per_scale <= 0:
        return base
    bits = 4 if key in ("int4", "fp4", "nvfp4", "mxfp4") else 8 * base.bytes
    return replace(base, bytes=bits / 8 + scale_bytes / values_per_scale, block=block)


def peak_rate(peak: Mapping[str, Any], arithmetic: tuple[str, ...]) -> Any:
    """Return the dense peak rate [FLOP/s] of the first of `arithmetic` that the chip has.

    A chip without a format's own units runs it in the next wider one: FP4 in FP8, FP8 in BF16.

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
        f"The chip has peak rates for {', '.join(peak) or 'nothing'} only, and what is stored wider runs in {widest}: "
        f'add {widest} = "... TFLOP/s" under [peak] of the chip\'s file.',
    )
