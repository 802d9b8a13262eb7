"""What a measurement of reversible stacks says: memory, arithmetic, time and gradients by depth, beside closed forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from steptime.result_base import Tabular, columns_by_key, unit
from steptime.units import show

KINDS = ("plain", "checkpointed", "reversible")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPoint:
    """One stack of one depth: what its training step holds, computes and takes."""

    depth: int = field(metadata=unit("", "blocks"))
    kind: str = field(metadata=unit("", "plain, checkpointed (each block computed again from its input) or reversible"))
    saved: int = field(metadata=unit("B", "tensors kept at the end of the forward pass, without parameters"))
    peak: int = field(metadata=unit("B", "most activations and temporary tensors at once, without gradients of parameters"))
    allocated: int | None = field(metadata=unit("B", "most that a GPU's allocator gave out in a step; null on a CPU"))
    flop: int = field(metadata=unit("FLOP", "matrix products of forward and backward pass", key="flop"))
    arithmetic: float = field(metadata=unit("", "FLOPs over those of the plain stack"))
    seconds: float = field(metadata=unit("s", "median of forward and backward pass", key="step_s"))
    slowness: float = field(metadata=unit("", "time over that of the plain stack"))
    gradient_error: float = field(metadata=unit("", "distance of all gradients from the plain stack's, over their norm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPoint:
    """How far gradients of a reversible stack of one depth and number format are off."""

    depth: int = field(metadata=unit("", "blocks"))
    dtype: str = field(metadata=unit("", "number format of weights and streams"))
    gradient_error: float = field(metadata=unit("", "distance from the plain stack's in this format, over their norm"))
    plain_error: float = field(
        metadata=unit("", "distance of the plain stack's gradients from its own in float64: what the format costs by itself")
    )
    input_error: float = field(metadata=unit("", "distance of the rebuilt from the true input, over its norm"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stacks(Tabular):
    """Plain, checkpointed and reversible stacks of the same blocks, measured: what `steptime reversible` shows."""

    SCHEMA: ClassVar[str] = "steptime.reversible/2"

    depth: int = field(metadata=unit("", "blocks of the deepest stack"))
    width: int = field(metadata=unit("", "values of a row, both streams together"))
    rows: int = field(metadata=unit("", "rows of the input"))
    dtype: str = field(metadata=unit("", "number format of weights and streams"))
    device: str = field(metadata=unit("", "cpu or cuda"))
    torch: str = field(metadata=unit("", "version of PyTorch"))
    streams: float = field(metadata=unit("B", "closed form: both streams, which is all that reversible layers keep"))
    arithmetic: float = field(metadata=unit("", "closed form: FLOPs of a step with one more forward pass, over a plain one's"))
    points: tuple[StackPoint, ...] = field(metadata=unit("", "one each depth and kind"))
    error_width: int = field(metadata=unit("", "values of a row in the stacks that errors are measured on"))
    errors: tuple[ErrorPoint, ...] = field(metadata=unit("", "one each depth and number format"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what the deepest stacks hold, and what reversible layers cost."""
        plain, _, reversible = self.deepest()
        return f"Reversible stack of {self.depth} blocks, {self.width:,} wide, {self.rows} rows, {self.dtype}, {self.device}", {
            "kept": f"{show(reversible.saved, 'B')} of {show(plain.saved, 'B')}, {plain.saved / reversible.saved:.3g}x less",
            "arithmetic": f"{reversible.arithmetic - 1:+.1%} (closed form {self.arithmetic - 1:+.1%})",
            "time": f"{reversible.slowness:.2f} times the plain stack's",
            "gradients": f"off by {reversible.gradient_error:.1e}",
        }

    def columns(self) -> dict[str, Any]:
        """Return a row for each depth and kind."""
        return columns_by_key(StackPoint, self.points)

    def deepest(self) -> tuple[StackPoint, StackPoint, StackPoint]:
        """Return the points of the deepest stacks: plain, checkpointed and reversible."""
        point_by_kind = {point.kind: point for point in self.points if point.depth == self.depth}
        return point_by_kind["plain"], point_by_kind["checkpointed"], point_by_kind["reversible"]
