"""Measured reversible stacks: memory, FLOP, time and gradients by depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from steptime.result_base import Tabular, unit
from steptime.units import show

KINDS = ("plain", "checkpointed", "reversible")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPoint:
    """The training step of one stack: memory, FLOP, time and gradient error."""

    depth: int = field(metadata=unit("", "blocks"))
    kind: str = field(metadata=unit("", "plain, checkpointed (each block is computed again from its input) or reversible"))
    saved: int = field(metadata=unit("B", "saved tensors at the end of the forward pass, without parameters"))
    peak: int = field(metadata=unit("B", "peak of activations and temporary tensors, without gradients of parameters"))
    allocated: int | None = field(metadata=unit("B", "peak allocation of a step on a GPU; null on a CPU"))
    flop: int = field(metadata=unit("FLOP", "matrix products of the forward and the backward pass", key="flop"))
    arithmetic: float = field(metadata=unit("", "FLOP over the FLOP of the plain stack"))
    seconds: float = field(metadata=unit("s", "median time of a forward and a backward pass", key="step_s"))
    slowness: float = field(metadata=unit("", "time over the time of the plain stack"))
    gradient_error: float = field(metadata=unit("", "distance of all gradients from those of the plain stack, over their norm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPoint:
    """Gradient and input errors of one reversible stack in one number format."""

    depth: int = field(metadata=unit("", "blocks"))
    dtype: str = field(metadata=unit("", "number format of weights and streams"))
    gradient_error: float = field(
        metadata=unit("", "distance from the plain stack's gradients in this format, over their norm")
    )
    plain_error: float = field(
        metadata=unit("", "distance of the plain stack's gradients from those in float64: the error of the format itself")
    )
    input_error: float = field(metadata=unit("", "distance of the rebuilt input from the true input, over its norm"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stacks(Tabular):
    """Measured plain, checkpointed and reversible stacks (`steptime reversible`)."""

    SCHEMA: ClassVar[str] = "steptime.reversible/2"
    ROWS: ClassVar[tuple[str, type]] = ("points", StackPoint)

    depth: int = field(metadata=unit("", "blocks of the deepest stack"))
    width: int = field(metadata=unit("", "values of a row, both streams together"))
    rows: int = field(metadata=unit("", "rows of the input"))
    dtype: str = field(metadata=unit("", "number format of weights and streams"))
    device: str = field(metadata=unit("", "cpu or cuda"))
    torch: str = field(metadata=unit("", "version of PyTorch"))
    streams: float = field(metadata=unit("B", "closed form: both streams, the only activations that reversible layers keep"))
    arithmetic: float = field(metadata=unit("", "closed form: FLOP with one more forward pass over FLOP of a plain step"))
    points: tuple[StackPoint, ...] = field(metadata=unit("", "one point per depth and kind"))
    error_width: int = field(metadata=unit("", "values of a row in the stacks that measure errors"))
    errors: tuple[ErrorPoint, ...] = field(metadata=unit("", "one point per depth and number format"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return memory, arithmetic, time and errors of the deepest stacks.

        Returns:
            Title, and figures by name.
        """
        plain, _, reversible = self.deepest()
        return f"Reversible stack of {self.depth} blocks, {self.width:,} wide, {self.rows} rows, {self.dtype}, {self.device}", {
            "kept": f"{show(reversible.saved, 'B')} of {show(plain.saved, 'B')}, {plain.saved / reversible.saved:.3g}x less",
            "arithmetic": f"{reversible.arithmetic - 1:+.1%} (closed form {self.arithmetic - 1:+.1%})",
            "time": f"{reversible.slowness:.2f} times the plain stack's",
            "gradients": f"off by {reversible.gradient_error:.1e}",
        }

    def deepest(self) -> tuple[StackPoint, StackPoint, StackPoint]:
        """Return the points of the deepest stacks.

        Returns:
            Plain, checkpointed and reversible point.
        """
        point_by_kind = {point.kind: point for point in self.points if point.depth == self.depth}
        return point_by_kind["plain"], point_by_kind["checkpointed"], point_by_kind["reversible"]
