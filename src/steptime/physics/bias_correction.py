r"""One's own runs as an anchor: what a few runs of a model on a system by an engine say about all others there.

Most of how far a prediction is off is one constant of the group (model, system, engine, version): which kernels a release has
for a model on a chip. Of $k$ runs with $r_i = \log(\text{measured}_i / \text{predicted}_i)$, the group's factor is

$$ f = e^{m s}, \quad m = \mathrm{median}(r_i), \quad s = \frac{k}{k + h}, \quad h = \frac{w^2}{b^2} $$

the mean of the group's constant after $k$ runs, where constants vary by $b$ between groups and runs by $w$ within one: every
step takes $f$ times as long. Time per token and time to first token have a factor each, with $h = 1$ and $h = 0.3$.

A range is made of both, $b^2 + w^2$. Of another run, less the factor, $b^2 (1 - s)^2 + w^2 s^2 / k + w^2$ is left, so that with
$u = w^2 / b^2$ at the ends of the range, where errors within a group have longer tails, its logarithms shrink by

$$ \sqrt{\frac{(1 - s)^2 + u (1 + s^2 / k)}{1 + u}}, \quad u = 2 \text{ (time per token)}, 1.1 \text{ (first token)} $$

which is 0.96 after one run and 0.82 after many for the time per token, 0.93 and 0.72 for the first token.

Source: 2,666 public runs without drafts on shared chips (InferenceX and others, nine models on seven systems, 67 groups),
predicted with the whole model left out of the fit; measured, 2026-11-22. Standard deviations of the time per token, in
logarithms, are 0.09 between and 0.08 within groups (robust), so that $h$ is about 1 (0.6 to 2.5 do as well); of first tokens
0.46 and 0.24. Errors at the 5 % and 95 % points, after one run and after four, give $u$ of 2.0 and from 0.97 to 1.2. One run
takes errors of the time per token from 8.3 % at the median and 23.4 % at the 90th percentile to 7.7 % and 22.8 %, four to 6.9 %
and 21.2 % (docs/ablation.md). Of a group that the engine was fitted to, one run tells less: its constant is mostly in the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from steptime.errors import InputError, expect
from steptime.result_base import Result, Tabular, unit
from steptime.units import counted

WITHIN: Final = {"tpot": 1.0, "ttft": 0.3}  # variance of errors within a group over that between groups
SPREAD: Final = {"tpot": 2.0, "ttft": 1.1}  # the same at the ends of a 90 % range


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Factor(Result):
    """How far some runs of a group were from what was predicted of one quantity, and what that makes of other predictions.

    >>> one, many = Factor(runs=1, ratio=1.3), Factor(runs=10, ratio=1.3)
    >>> round(one.factor, 4), round(many.factor, 4), round(one.width, 3), round(many.width, 3)
    (1.1402, 1.2694, 0.957, 0.851)
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "factor": unit("", "on what is predicted: the ratio to the power of runs / (runs + within)"),
        "width": unit("", "of the 90 % range over that without the runs, in logarithms"),
    }

    runs: int = field(metadata=unit("", "runs that it rests on"))
    ratio: float = field(metadata=unit("", "measured over predicted, at the median of the runs"))
    spread: float = field(
        default=SPREAD["tpot"], metadata=unit("", "variance within such groups over that between, at the ends of a 90 % range")
    )

    within: float = field(
        default=WITHIN["tpot"], metadata=unit("", "variance of errors within such groups over that between them")
    )

    @property
    def factor(self) -> float:
        """The factor on predictions."""
        return math.exp(math.log(self.ratio) * self.runs / (self.runs + self.within))

    @property
    def width(self) -> float:
        """Width of a range in logarithms over that without the runs."""
        share = self.runs / (self.runs + self.within)
        return math.sqrt(((1 - share) ** 2 + self.spread * (1 + share**2 / self.runs)) / (1 + self.spread))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the factor and what it rests on."""
        return f"Factor {self.factor:.3g}", {"from": f"{counted(self.runs, 'run')}, {self.ratio:.3g} times what was predicted"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Anchor(Result):
    """What one's own runs of one group say: `tpot` and `ttft` are None where none of them measured it."""

    source: str = field(metadata=unit("", "files that the runs are from"))
    is_stored: bool = field(default=False, metadata=unit("", "whether `steptime anchors` keeps the runs"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    engine: str = field(metadata=unit("", "name of the engine that predicted them"))
    version: str = field(default="", metadata=unit("", "of the engine, where the runs tell it"))
    runs: tuple[str, ...] = field(metadata=unit("", "the runs by their ids"))
    outside_range: tuple[str, ...] = field(
        default=(), metadata=unit("", "runs that measured a time outside the 90 % range of its prediction")
    )
    left_out: tuple[str, ...] = field(default=(), metadata=unit("", "runs that were not gone by, with the reason of each"))
    tpot: Factor | None = field(default=None, metadata=unit("", "of the time per token: on every step", key="tpot"))
    ttft: Factor | None = field(default=None, metadata=unit("", "of the time to first token; null: as steps", key="ttft"))

    @property
    def step(self) -> float:
        """Factor on the time of every step."""
        return 1.0 if self.tpot is None else self.tpot.factor

    @property
    def wait(self) -> float:
        """Factor on times to first token that are made of such steps."""
        return 1.0 if self.ttft is None else self.ttft.factor / self.step

    def width(self, quantity: str) -> float:
        """Return what is left of the range of "tpot" or "ttft", in logarithms; a first token is no surer than its runs."""
        factor = self.tpot if quantity == "tpot" else self.ttft
        return 1.0 if factor is None else factor.width

    @property
    def group(self) -> str:
        """What the runs are of, in words."""
        return f"{self.model} on {self.system} with engine {self.engine}"

    @property
    def text(self) -> str:
        """What the runs say, in a sentence."""
        count = len(self.runs)
        whose = f"{count:,} run{'s' * (count != 1)} of your own ({self.source}{', ' * bool(self.version)}{self.version})"
        sentences = [
            f"{name} {factor.ratio:.2f} times what was predicted, so x {factor.factor:.2f}"
            for name, factor in (("time per token", self.tpot), ("first token", self.ttft))
            if factor is not None
        ]
        hint = "; --no-anchor leaves them out" if self.is_stored else ""
        exclusions = f" Left out: {'; '.join(self.left_out)}." if self.left_out else ""
        return f"Anchored on {whose}: {'; '.join(sentences)}{hint}.{exclusions}"

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return what the runs are of, and the factors."""
        factors = {
            name: f"{factor.ratio:.3g} times what was predicted, factor {factor.factor:.3g}"
            for name, factor in (("time per token", self.tpot), ("first token", self.ttft))
            if factor is not None
        }
        return f"Anchor: {counted(len(self.runs), 'run')} of {self.group}, from {self.source}", factors


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Anchors(Tabular):
    """Anchors of all groups that some files hold runs of; as a table, one row a group."""

    SCHEMA: ClassVar[str] = "steptime.anchors/2"

    source: str = field(metadata=unit("", "files that the runs are from"))
    anchors: tuple[Anchor, ...] = field(metadata=unit("", "one for each model, system, engine and version"))

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many groups there are, and their factors."""
        factors = {anchor.group: ", ".join(anchor.headline()[1].values()) for anchor in self.anchors}
        return f"Anchors of {len(self.anchors):,} group{'s' * (len(self.anchors) != 1)}, from {self.source}", factors

    def columns(self) -> dict[str, Any]:
        """Return a row for each group."""
        names = ("source", "model", "system", "engine", "version")
        columns: dict[str, Any] = {name: [getattr(anchor, name) for anchor in self.anchors] for name in names}
        columns["runs"] = [len(anchor.runs) for anchor in self.anchors]
        for name in ("tpot", "ttft"):
            factors = [getattr(anchor, name) for anchor in self.anchors]
            columns[f"{name}_ratio"] = [None if anchor is None else anchor.ratio for anchor in factors]
            columns[f"{name}_factor"] = [None if anchor is None else anchor.factor for anchor in factors]
        return columns


def select_anchor(anchors: Anchors | Anchor, *, model: str, system: str, engine: str) -> Anchor:
    """Return the anchor of a model, system and engine, by their names; of several versions the last, which is the newest.

    Raises InputError, which names both, where the runs are of others.
    """
    expect("an anchor", anchors, (Anchors, Anchor), "what st.load_anchor gives")
    all_ = anchors.anchors if isinstance(anchors, Anchors) else (anchors,)
    fitting = [anchor for anchor in all_ if (anchor.model, anchor.system, anchor.engine) == (model, system, engine)]
    if fitting:
        return fitting[-1]
    groups = list(dict.fromkeys(anchor.group for anchor in all_))
    remainder = f" and {len(groups) - 2:,} more" if len(groups) > 2 else ""
    target = f"{model} on {system} with engine {engine}"
    raise InputError(f"{anchors.source}: its runs are of {', and of '.join(groups[:2])}{remainder}; asked is {target}")
