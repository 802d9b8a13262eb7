"""How a model is laid over chips.

One replica is `tp * cp * dp * pp` chips: `pp` stages of `dp` attention groups of `tp * cp` chips. Attention and dense layers
are divided inside a group and repeated in each; `tp` divides heads, and `cp` the cached context where heads run out (each chip
keeps every cp-th token; queries are gathered and partial outputs scattered, as in vLLM's decode context parallelism). Routed
experts are spread over all chips of a stage, `ep` ways, each expert divided over the `tp * cp * dp / ep` chips that share it.
Neighbours in tp are neighbours in the machine, then cp, dp, pp.
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
    """Ways of each kind of parallelism; any field may be an array, and all broadcast.

    tp: tensor parallel. pp: pipeline stages. dp: attention groups (data parallel attention). ep: expert parallel. cp: context
    parallel. microbatches: parts of the batch in flight at once, which pipeline stages and two-batch overlap need.
    replicas: copies of it all. redundant_experts: extra copies of busy experts, held to balance the load.
    """

    tp: Number = field(default=1, metadata=unit("", "tensor parallel ways"))
    pp: Number = field(default=1, metadata=unit("", "pipeline stages"))
    dp: Number = field(default=1, metadata=unit("", "attention groups"))
    ep: Number = field(default=1, metadata=unit("", "expert parallel ways"))
    cp: Number = field(default=1, metadata=unit("", "context parallel ways"))
    microbatches: Number = field(default=1, metadata=unit("", "parts of the batch in flight at once"))
    replicas: Number = field(default=1, metadata=unit("", "copies of it all"))
    redundant_experts: Number = field(default=0, metadata=unit("", "extra copies of busy experts"))

    def __post_init__(self) -> None:
        """Raise LayoutError for a Python scalar that counts nothing; arrays are checked where they are used."""
        for name in NAMES:
            value = getattr(self, name)
            minimum = 0 if name == "redundant_experts" else 1
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
        """Chips of one attention group."""
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
        """Return the ways that are not 1, and the chips of a replica."""
        return repr(self), {"chips of a replica": in_words(self.chips, "{:,g}".format)}

    def columns(self) -> dict[str, Any]:
        """Return a row for each layout."""
        return broadcast({name: getattr(self, name) for name in NAMES})


NAMES = tuple(f.name for f in fields(Layout))


def show_layout(layout: Layout) -> str:
    """Return a layout as text: the axes that are not 1.

    >>> show_layout(Layout(tp=8, ep=8)), show_layout(Layout())
    ('tp8 ep8', 'one chip')
    """
    short = {"microbatches": "mb", "replicas": "x", "redundant_experts": "red"}
    texts = [f"{short.get(n, n)}{getattr(layout, n):g}" for n in NAMES if getattr(layout, n) > (n != "redundant_experts")]
    return " ".join(texts) or "one chip"


def check_ways(layout: Layout) -> Layout:
    """Return a layout, its lists as arrays.

    Raises LayoutError for anything else, or where a field is not made of whole numbers of at least 1 (redundant experts: 0).
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
        raise LayoutError(f"the fields of a layout do not go together: {error}") from None
    return replace(layout, **{name: np.asarray(value) for name, value in lists.items()}) if lists else layout


def shard_count(parts: float, chips: Number) -> Number:
    """Ways that `parts`, which cannot be cut, are divided over chips, by the chip that holds most of them.

    >>> [float(shard_count(8, chips)) for chips in (1, 6, 8, 16)], float(shard_count(10, 8)), float(shard_count(math.inf, 6))
    ([1.0, 4.0, 8.0, 8.0], 5.0, 6.0)
    """
    return chips if math.isinf(parts) else parts / np.ceil(parts / np.asarray(chips))


def exchanges_experts(layout: Layout) -> Any:
    """Whether attention groups send each other tokens for their experts."""
    return (np.asarray(layout.dp) > 1) & (np.asarray(layout.ep) > 1)


def stacked(layouts: list[Layout]) -> Layout:
    """Return one layout whose fields are arrays of shape (layouts,)."""
    return Layout(**{name: np.array([getattr(m, name) for m in layouts]) for name in NAMES})


def shaped(layout: Layout, dimensions: int) -> Layout:
    """Return the layout with `dimensions` axes of length one appended to every array field."""
    return replace(layout, **{n: np.asarray(getattr(layout, n)).reshape((-1,) + (1,) * dimensions) for n in NAMES})


def select_layouts(layout: Layout, index: Any) -> Layout:
    """Return the layout with the rows `index` of every array field."""
    return Layout(**{name: np.asarray(getattr(layout, name))[index] for name in NAMES})
