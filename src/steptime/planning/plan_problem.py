"""What a plan is made for, the candidates it chooses among, and tables of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from steptime.hardware.system import System
from steptime.hardware.unit_cost import deployment_rent
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Layout, show_layout
from steptime.physics.layout_constraints import ENGINE, collect_facts
from steptime.physics.layout_rules import allowed
from steptime.planning.prefill_pool import Prefill, prefill_pool, within_limit
from steptime.planning.speculative_config import NONE, Speculation
from steptime.planning.steady_state import State, Transfer, aggregated, decode_pool, kv_transfer, ttft_seen, waited
from steptime.planning.workload import Slo, Workload

Memoized = TypeVar("Memoized")

_DEGREES = attrgetter(*(name for name in NAMES if name != "microbatches"))  # of a layout
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """Everything that a plan is made for.

    symmetric_domains: whether whole scale-up domains are laid out alike, so that caches stay in the domain where they are made. sure:
    probability with which its limits are to be met; None: in the mean. aim: factors on where TPOT and TTFT have to be.
    front: whether what misses the limits is evaluated too, for the front of speed and cost. diagnostics: whether a plan tells its
    runner-up, the ideal and what binds. memo: what is known of it already, by `memoize`.
    """

    model: Model
    system: System
    workload: Workload
    slo: Slo
    chips: int
    engine: Engine
    symmetric_domains: bool = False
    sure: float | None = None
    aim: tuple[float, float] = (1.0, 1.0)
    speculation: Speculation = NONE
    front: bool = True
    diagnostics: bool = True
    memo: dict[tuple[object, ...], Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def used(self) -> int:
        """Chips that replicas may take: of domains that are alike, whole ones."""
        return self.chips - self.chips % int(self.system.scale_up.size) if self.symmetric_domains else self.chips

    @property
    def rent(self) -> Number:
        """USD per second of all chips."""
        return deployment_rent(self.chips, self.system.rent.typical)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve: decode replicas of `layout` with `batch` sequences each, and how prompts are prefilled.

    Aggregated: in chunks of `chunk` tokens beside decode. Disaggregated: by `prefill_layout.replicas` replicas of their own
    that take `prompts` prompts per attention group in a pass. A batch is of the mean token, and need not be whole.
    """

    mode: str
    layout: Layout
    batch: float
    chunk: int = 0
    prefill_layout: Layout | None = None
    prompts: int = 0

    @property
    def text(self) -> str:
        """The candidate in a line."""
        if self.prefill_layout is None:
            return show_layout(self.layout)
        return f"prefill {show_layout(self.prefill_layout)} + decode {show_layout(self.layout)}"

    @property
    def same(self) -> tuple[object, ...]:
        """What two candidates share that differ in batch, chunk and micro-batches only."""
        return (self.mode, _DEGREES(self.layout), self.prefill_layout and _DEGREES(self.prefill_layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Candidates as columns, arrays of shape (candidates,); `layout` and `prefill_layout` index `layouts`.

    layout; batch [sequences of a replica]; chunk [tokens]; replicas; prefill_layout (-1: none), prefill_prompts [per attention
    group in a pass], prefill_replicas; tpot, ttft [s]; rate [requests/s of the whole deployment]; utilisation of the prompt
    queue; input_share of the chips' time; memory: used over capacity.
    """

    mode: str
    layouts: list[Layout]
    layout: Any
    batch: Any
    chunk: Any
    replicas: Any
    prefill_layout: Any
    prefill_prompts: Any
    prefill_replicas: Any
    tpot: Any
    ttft: Any
    rate: Any
    utilisation: Any
    input_share: Any
    memory: Any

    def __len__(self) -> int:
        return len(self.tpot)

    def row(self, index: int) -> Candidate:
        """Return one row."""
        is_disaggregated = self.mode == DISAGGREGATED
        return Candidate(
            mode=self.mode,
            layout=_times(self.layouts[self.layout[index]], int(self.replicas[index])),
            batch=int(self.batch[index]),
            chunk=int(self.chunk[index]),
            prefill_layout=_times(self.layouts[self.prefill_layout[index]], int(self.prefill_replicas[index]))
            if is_disaggregated
            else None,
            prompts=int(self.prefill_prompts[index]) if is_disaggregated else 0,
        )


def _times(layout: Layout, replicas: int) -> Layout:
    """Return a layout so many times."""
    return layout if layout.replicas == replicas else replace(layout, replicas=replicas)


COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("mode", "layouts"))


def joined(mode: str, layouts: list[Layout], parts: Sequence[Table]) -> Table:
    """Return the rows of all parts, tables of one mode over the same layouts, as one table."""
    nothing = (np.zeros(0, dtype=np.int64),)
    columns = {name: np.concatenate([getattr(part, name) for part in parts] or nothing) for name in COLUMNS}
    return Table(mode=mode, layouts=layouts, **columns)


def evaluate_state(case: PlanProblem, candidate: Candidate, batch: Number, chunk: Number) -> State:
    """Return the steady state of one replica of the candidate at any batch and chunk."""
    key = (candidate.mode, candidate.layout, batch, chunk) if np.ndim(batch) == np.ndim(chunk) == 0 else None
    if candidate.mode == DISAGGREGATED:
        return memoize(case, key, lambda: decoding(case, candidate.layout, batch))
    arguments: dict[str, Any] = {"layout": candidate.layout, "batch": batch, "chunk": chunk, "legal": True}
    arguments |= {"engine": case.engine, "speculation": case.speculation}
    return memoize(case, key, lambda: aggregated(case.model, case.system, case.workload, **arguments))


def decoding(case: PlanProblem, layout: Layout, batch: Number) -> State:
    """Return the steady state of a replica of `layout` that only decodes."""
    arguments: dict[str, Any] = {
        "layout": layout,
        "batch": batch,
        "engine": case.engine,
        "speculation": case.speculation,
        "legal": True,
    }
    return decode_pool(case.model, case.system, case.workload, **arguments)


def memoize(case: PlanProblem, key: tuple[object, ...] | None, find: Callable[[], Memoized]) -> Memoized:
    """Return what `find` finds, once for each key; every time for None."""
    if key is None:
        return find()
    if key not in case.memo:
        case.memo[key] = find()
    value: Memoized = case.memo[key]
    return value


def evaluate_prefill(case: PlanProblem, candidate: Candidate, tpot: Number = 0.0, ttft: Number | None = None) -> Prefill | None:
    """Return what one prefill replica of the candidate delivers, if it has any.

    tpot [s] of the pool that decodes; ttft [s]: where the first token has to be, by default within the limit.
    """
    if candidate.prefill_layout is None:
        return None
    layout, prompts = candidate.prefill_layout, candidate.prompts
    arguments: dict[str, Any] = {"layout": layout, "prompts": prompts, "engine": case.engine, "speculation": case.speculation}
    arguments["legal"] = True
    pool = memoize(
        case, ("prefill", layout, prompts), lambda: prefill_pool(case.model, case.system, case.workload, **arguments)
    )
    limit = pass_limit(case, layout, candidate.layout, tpot, case.slo.ttft if ttft is None else ttft)
    key = ("within", layout, prompts, float(limit)) if np.ndim(limit) == 0 else None
    return memoize(case, key, lambda: within_limit(pool, limit, layout.replicas))


def moving(case: PlanProblem, layout: Layout) -> Transfer:
    """Return how caches leave a prefill replica: over the scale-up links where one domain holds all chips."""
    near = case.symmetric_domains or case.used <= case.system.scale_up.size
    drafts = case.speculation.drafts
    return kv_transfer(case.model, case.system, case.workload, layout=layout, within_domain=bool(near), drafts=drafts)


def pass_limit(case: PlanProblem, layout: Layout, answering: Layout, tpot: Number, ttft: Number) -> Number:
    """Return how long a prompt may wait and be read in a prefill pool [s]: the aim for TTFT less what else comes to it.

    layout: of the pool; answering, tpot [s]: of the pool that decodes; ttft: the aim [s]. The wait for links is left out: it is
    added where the rate is known.
    """
    sent = moving(case, layout)
    other_delays = ttft_seen(case.workload, sent.latency + sent.moving, tpot, answering, case.engine, case.speculation)
    return (ttft - other_delays) / waited(case.engine)


def runs(case: PlanProblem, layouts: Layout, role: str) -> Array:
    """Return which layouts the engine runs in pools of a role, "prefill" or "decode": booleans of their shape."""
    facts = collect_facts(case.model, case.system, chips=case.used, engine=case.engine, role=role)
    is_allowed: Array = allowed(layouts, facts, (ENGINE,))
    return is_allowed
