r"""Bias correction from your own measured runs (an anchor).

Most of the error of a prediction is one constant of the group (model, system, engine, version). It depends on the kernels
that a release has for a model on a chip. Take $k$ runs with $r_i = \log(\text{measured}_i / \text{predicted}_i)$. The
factor of the group is:

$$ f = e^{m s}, \quad m = \mathrm{median}(r_i), \quad s = \frac{k}{k + h}, \quad h = \frac{w^2}{b^2} $$

This is the expected constant of the group after $k$ runs. Constants vary by $b$ between groups, and runs vary by $w$ within
a group. Every step takes $f$ times as long. Time per token and time to first token have one factor each, with $h = 1$ and
$h = 0.3$.

Without own runs a range covers both variances, $b^2 + w^2$. After the factor, another run of the group keeps the variance
$b^2 (1 - s)^2 + w^2 s^2 / k + w^2$. At the ends of the range, errors within a group have longer tails: there $u = w^2 /
b^2$ is larger than $h$. The logarithms of the range shrink by:

$$ \sqrt{\frac{(1 - s)^2 + u (1 + s^2 / k)}{1 + u}}, \quad u = 2 \text{ (time per token)}, 1.1 \text{ (first token)} $$

For the time per token this is 0.96 after one run and 0.82 after many. For the first token it is 0.93 and 0.72.

References:
    2,666 public runs without speculative tokens on shared chips (InferenceX and others, nine models on seven systems, 67
    groups). They were predicted with the whole model left out of the fit; measured, 2026-11-22.

    Standard deviations of logarithms (robust): time per token 0.09 between groups and 0.08 within groups, so $h$ is about 1
    (0.6 to 2.5 are as good). First token: 0.46 and 0.24. Errors at the 5 % and 95 % points, after one run and after four,
    give $u$ of 2.0 and from 0.97 to 1.2.

    Errors of the time per token are 8.3 % at the median and 23.4 % at the 90th percentile. After one run they are 7.7 % and
    22.8 %, after four 6.9 % and 21.2 % (docs/ablation.md). One run improves less where the engine was fitted to the group:
    the fit contains most of its constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.errors import InputError, expect
from steptime.result_base import Result, Tabular, unit
from steptime.units import counted

# Variance of errors within a group, divided by the variance between groups.
WITHIN: Final = {"tpot": 1.0, "ttft": 0.3}
# The same ratio at the ends of a 90 % range, where errors within a group have longer tails.
SPREAD: Final = {"tpot": 2.0, "ttft": 1.1}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Factor(Result):
    """The correction of one predicted quantity from the runs of one group.

    >>> one, many = Factor(runs=1, ratio=1.3), Factor(runs=10, ratio=1.3)
    >>> round(one.factor, 4), round(many.factor, 4), round(one.width, 3), round(many.width, 3)
    (1.1402, 1.2694, 0.957, 0.851)
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "factor": unit("", "factor on predictions: the ratio to the power of runs / (runs + within)"),
        "width": unit("", "width of the 90 % range in logarithms, divided by the width without the runs"),
    }

    runs: int = field(metadata=unit("", "number of measured runs"))
    ratio: float = field(metadata=unit("", "measured time divided by predicted time, median of the runs"))
    spread: float = field(
        default=SPREAD["tpot"],
        metadata=unit("", "variance within groups divided by variance between groups, at the ends of a 90 % range"),
    )

    within: float = field(
        default=WITHIN["tpot"], metadata=unit("", "variance of errors within groups divided by the variance between groups")
    )

    @property
    def factor(self) -> float:
        """The factor on predictions."""
        return math.exp(math.log(self.ratio) * self.runs / (self.runs + self.within))

    @property
    def width(self) -> float:
        """Width of a range in logarithms, divided by the width without the runs."""
        # The share of the group's error that the factor removes.
        share = self.runs / (self.runs + self.within)
        return math.sqrt(((1 - share) ** 2 + self.spread * (1 + share**2 / self.runs)) / (1 + self.spread))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the factor and the runs behind it.

        Returns:
            A title and a table of texts.
        """
        return f"Factor {self.factor:.3g}", {
            "from": f"{counted(self.runs, 'run')}, measured at {self.ratio:.3g} times the prediction"
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Anchor(Result):
    """The correction from your own runs of one group.

    Without measurements of a time, `tpot` or `ttft` has the value None.
    """

    source: str = field(metadata=unit("", "files with the runs"))
    is_stored: bool = field(default=False, metadata=unit("", "whether `steptime anchors` stores the runs"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine that predicted the runs"))
    version: str = field(default="", metadata=unit("", "version of the engine; empty where the runs do not state it"))
    runs: tuple[str, ...] = field(metadata=unit("", "ids of the runs"))
    outside_range: tuple[str, ...] = field(
        default=(), metadata=unit("", "ids of runs with a measured time outside the 90 % range of its prediction")
    )
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "runs that are not used, each with the reason"))
    tpot: Factor | None = field(
        default=None, metadata=unit("", "correction of the time per token; it applies to every step", key="tpot")
    )
    ttft: Factor | None = field(
        default=None, metadata=unit("", "correction of the time to first token; null: the same as steps", key="ttft")
    )

    @property
    def step(self) -> float:
        """Factor on the time of every step."""
        return 1.0 if self.tpot is None else self.tpot.factor

    @property
    def wait(self) -> float:
        """Factor on times to first token, in addition to the factor on steps."""
        return 1.0 if self.ttft is None else self.ttft.factor / self.step

    def width(self, quantity: str) -> float:
        """Return the width of a range in logarithms, divided by the width without runs.

        Args:
            quantity: "tpot" or "ttft".

        Returns:
            A factor; 1 where no run measured the quantity.
        """
        factor = self.tpot if quantity == "tpot" else self.ttft
        return 1.0 if factor is None else factor.width

    @property
    def group(self) -> str:
        """The model, system and engine of the runs, as text."""
        return f"{self.model} on {self.system} with engine {self.engine}"

    @property
    def text(self) -> str:
        """The correction in one sentence."""
        count = len(self.runs)
        whose = f"{count:,} run{'s' * (count != 1)} that you measured ({self.source}{', ' * bool(self.version)}{self.version})"
        sentences = [
            f"{name} measured at {factor.ratio:.2f} times the prediction, so predictions x {factor.factor:.2f}"
            for name, factor in (("time per token", self.tpot), ("first token", self.ttft))
            if factor is not None
        ]
        has_shrunk = any(abs(factor.factor - factor.ratio) > 0.005 for factor in (self.tpot, self.ttft) if factor is not None)
        why = " (the correction is smaller than the ratio because single runs scatter; more runs bring it closer)" * has_shrunk
        hint = "; --no-anchor ignores these runs" if self.is_stored else ""
        exclusions = f" Not used: {'; '.join(self.left_out)}." if self.left_out else ""
        return f"Corrected by {whose}: {'; '.join(sentences)}{why}{hint}.{exclusions}"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the group of the runs and the factors.

        Returns:
            A title and a table of texts.
        """
        factors = {
            name: f"measured at {factor.ratio:.3g} times the prediction, factor {factor.factor:.3g}"
            for name, factor in (("time per token", self.tpot), ("first token", self.ttft))
            if factor is not None
        }
        return f"Anchor: {counted(len(self.runs), 'run')} of {self.group}, from {self.source}", factors


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Anchors(Tabular):
    """The corrections of all groups in some files; as a table, one row per group."""

    SCHEMA: ClassVar[str] = "steptime.anchors/2"

    source: str = field(metadata=unit("", "files with the runs"))
    anchors: tuple[Anchor, ...] = field(metadata=unit("", "one correction per model, system, engine and version"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the number of groups and their factors.

        Returns:
            A title and a table of texts.
        """
        factors = {anchor.group: ", ".join(anchor.headline()[1].values()) for anchor in self.anchors}
        return f"Anchors of {len(self.anchors):,} group{'s' * (len(self.anchors) != 1)}, from {self.source}", factors

    def columns(self) -> dict[str, Any]:
        """Return one row per group.

        Returns:
            Lists by column name, one entry per group.
        """
        names = ("source", "model", "system", "engine", "version")
        columns: dict[str, Any] = {name: [getattr(anchor, name) for anchor in self.anchors] for name in names}
        columns["runs"] = [len(anchor.runs) for anchor in self.anchors]
        for name in ("tpot", "ttft"):
            factors = [getattr(anchor, name) for anchor in self.anchors]
            columns[f"{name}_ratio"] = [None if anchor is None else anchor.ratio for anchor in factors]
            columns[f"{name}_factor"] = [None if anchor is None else anchor.factor for anchor in factors]
        return columns


def select_anchor(anchors: Anchors | Anchor, *, model: str, system: str, engine: str) -> Anchor:
    """Return the correction for a model, system and engine.

    Args:
        anchors: Corrections of several groups, or of one.
        model: Name of the model.
        system: Name of the system.
        engine: Name of the engine.

    Returns:
        The correction of the group. Of several engine versions it is the last one, which is the newest.

    Raises:
        InputError: The runs belong to other groups; the message names both.
    """
    expect("an anchor", anchors, (Anchors, Anchor), "what st.load_anchor gives")
    all_ = anchors.anchors if isinstance(anchors, Anchors) else (anchors,)
    fitting = [anchor for anchor in all_ if (anchor.model, anchor.system, anchor.engine) == (model, system, engine)]
    if fitting:
        return fitting[-1]

    # Two groups are enough to see the mismatch; a file may have dozens.
    groups = list(dict.fromkeys(anchor.group for anchor in all_))
    remainder = f" and {len(groups) - 2:,} more" if len(groups) > 2 else ""
    target = f"{model} on {system} with engine {engine}"
    raise InputError(
        f"{anchors.source}: has no runs of {target}, got runs of {', and of '.join(groups[:2])}{remainder}; "
        f'use runs of the same model, system and engine (a result file without its engine, "backend", counts as typical)'
    )
