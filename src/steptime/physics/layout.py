"""Layout: how a model is distributed over chips by each kind of parallelism.

One replica has `tp * cp * dp * pp` chips: `pp` stages of `dp` data-parallel ranks of `tp * cp` chips. Attention and dense
layers are divided inside a rank and repeated in each rank. `tp` divides heads. `cp` divides the cached context where there
are not enough heads: each chip keeps every cp-th token, queries are gathered and partial outputs are scattered, as in
vLLM's decode context parallelism. Routed experts are spread over all chips of a stage, `ep` ways. The `tp * cp * dp / ep`
chips that share an expert divide it. Neighbours in tp are neighbours in the machine, then neighbours in cp, dp and pp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from steptime.errors import LayoutError, RangeError, expect
from steptime.number_checks import MOST_CHIPS, Number, whole_number
from steptime.result_base import Tabular, broadcast, in_words, unit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Layout(Tabular):
    """Degrees of each kind of parallelism; any field may be an array.

    tp: Tensor parallelism.
    pp: Pipeline stages.
    dp: Data-parallel ranks of attention.
    ep: Expert parallelism.
    cp: Context parallelism.
    microbatches: Parts of the batch in flight at once, for pipeline stages and two-batch overlap.
    replicas: Copies of the whole.
    redundant_experts: Extra copies of busy experts, which balance the load.
    """

    tp: Number = field(default=1, metadata=unit("", "tensor-parallel degree"))
    pp: Number = field(default=1, metadata=unit("", "pipeline stages"))
    dp: Number = field(default=1, metadata=unit("", "data-parallel ranks"))
    ep: Number = field(default=1, metadata=unit("", "expert-parallel degree"))
    cp: Number = field(default=1, metadata=unit("", "context-parallel degree"))
    microbatches: Number = field(default=1, metadata=unit("", "micro-batches in flight at once"))
    replicas: Number = field(default=1, metadata=unit("", "replicas"))
    redundant_experts: Number = field(default=0, metadata=unit("", "extra copies of busy experts"))

    def __post_init__(self) -> None:
        """Raise LayoutError for an invalid Python scalar; arrays are checked where used."""
        for name in NAMES:
            value = getattr(self, name)
            minimum = 0 if name == "redundant_experts" else 1
            # A search creates thousands of layouts, so that the common case skips the full check.
            if isinstance(value, np.ndarray | np.generic | list | tuple) or (
                type(value) is int and minimum <= value <= MOST_CHIPS
            ):
                continue
            try:
                whole_number(name, value, minimum=minimum, maximum=MOST_CHIPS)
            except RangeError as error:
                raise LayoutError(str(error)) from None

    @property
    def group(self) -> Number:
        """Chips of one data-parallel rank."""
        return self.tp * self.cp

    @property
    def stage(self) -> Number:
        """Chips of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def chips(self) -> Number:
        """Chips of one replica."""
        return self.stage * self.pp

    def __repr__(self) -> str:
        values = ((f.name, f.default, getattr(self, f.name)) for f in fields(self))
        texts = (f"{name}={in_words(value, '{:g}'.format)}" for name, usual, value in values if np.any(value != usual))
        return f"Layout({', '.join(texts)})"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the degrees that are not 1, and the chips of a replica.

        Returns:
            A title and a table of texts.
        """
        return repr(self), {"chips of a replica": in_words(self.chips, "{:,g}".format)}

    def columns(self) -> dict[str, Any]:
        """Return one row per layout.

        Returns:
            Arrays of one shape by field name.
        """
        return broadcast({name: getattr(self, name) for name in NAMES})


NAMES = tuple(f.name for f in fields(Layout))


def show_layout(layout: Layout) -> str:
    """Return a layout as text: the degrees that are not 1.

    Args:
        layout: A layout of plain numbers.

    Returns:
        Text such as "tp8 ep8".

    >>> show_layout(Layout(tp=8, ep=8)), show_layout(Layout())
    ('tp8 ep8', 'one chip')
    """
    short = {"microbatches": "mb", "replicas": "x", "redundant_experts": "red"}
    texts = [f"{short.get(n, n)}{getattr(layout, n):g}" for n in NAMES if getattr(layout, n) > (n != "redundant_experts")]
    return " ".join(texts) or "one chip"


def check_ways(layout: Layout) -> Layout:
    """Return a layout with lists as arrays.

    Args:
        layout: A layout; fields may be numbers, lists or arrays.

    Returns:
        The layout.

    Raises:
        LayoutError: A field has other numbers than whole numbers of at least 1 (redundant experts: 0).
        InputError: The argument is not a layout.
    """
    expect("a layout", layout, Layout, "a Layout, such as Layout(tp=8)")
    lists = {name: value for name in NAMES if isinstance(value := getattr(layout, name), list | tuple)}
    for name in NAMES:
        try:
            whole_number(name, getattr(layout, name), minimum=0 if name == "redundant_experts" else 1, maximum=MOST_CHIPS)
        except RangeError as error:
            raise LayoutError(str(error)) from None
    try:
        np.broadcast_shapes(*(np.shape(getattr(layout, name)) for name in NAMES))
    except ValueError as error:
        raise LayoutError(f"layout: the shapes of its fields do not broadcast: {error}") from None
    return replace(layout, **{name: np.asarray(value) for name, value in lists.items()}) if lists else layout


def shard_count(parts: float, chips: Number) -> Number:
    """Return the number of shards of indivisible parts over chips.

    The chip with the most parts determines the number.

    Args:
        parts: Number of parts that cannot be cut; infinite where any cut is possible.
        chips: Number of chips, or an array.

    Returns:
        Number of shards, at most `chips`.

    >>> [float(shard_count(8, chips)) for chips in (1, 6, 8, 16)], float(shard_count(10, 8)), float(shard_count(math.inf, 6))
    ([1.0, 4.0, 8.0, 8.0], 5.0, 6.0)
    """
    return chips if math.isinf(parts) else parts / np.ceil(parts / np.asarray(chips))


def exchanges_experts(layout: Layout) -> Any:
    """Whether data-parallel ranks exchange tokens for their experts.

    Args:
        layout: A layout; fields may be arrays.

    Returns:
        Booleans with the broadcast shape of dp and ep.
    """
    return (np.asarray(layout.dp) > 1) & (np.asarray(layout.ep) > 1)


def stacked(layouts: list[Layout]) -> Layout:
    """Return one layout whose fields are arrays of shape (layouts,).

    Args:
        layouts: Layouts of plain numbers.

    Returns:
        One layout.
    """
    return Layout(**{name: np.array([getattr(m, name) for m in layouts]) for name in NAMES})


def shaped(layout: Layout, dimensions: int) -> Layout:
    """Append axes of length one to every field of a layout.

    Args:
        layout: A layout with fields of shape (layouts,).
        dimensions: Number of axes to append.

    Returns:
        The layout.
    """
    return replace(layout, **{n: np.asarray(getattr(layout, n)).reshape((-1,) + (1,) * dimensions) for n in NAMES})


def select_layouts(layout: Layout, index: Any) -> Layout:
    """Return the layout with the rows `index` of every field.

    Args:
        layout: A layout with fields of shape (layouts, ...).
        index: Any index of a numpy array.

    Returns:
        The layout.
    """
    return Layout(**{name: np.asarray(getattr(layout, name))[index] for name in NAMES})
