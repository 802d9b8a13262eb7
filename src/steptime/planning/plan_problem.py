"""The problem of a plan, its candidates, and tables of candidates."""

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

# Degrees of a layout that identify it; micro-batches may differ.
_DEGREES = attrgetter(*(name for name in NAMES if name != "microbatches"))
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """The inputs of a plan search.

    `symmetric_domains` means that all whole scale-up domains have the same layout, so that caches stay in
    their domain. `sure` is the probability with which the limits must be met; None means on average. `aim`
    holds factors on the targets of TPOT and TTFT. `front` also evaluates candidates that miss the limits, for
    the front of speed and cost. `diagnostics` adds the runner-up, the ideal and the binding limits. `memo`
    holds results of `memoize`.
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
        """Chips that replicas may use: those of whole domains where domains are symmetric."""
        return self.chips - self.chips % int(self.system.scale_up.size) if self.symmetric_domains else self.chips

    @property
    def rent(self) -> Number:
        """Rent of all chips [USD/s]."""
        return deployment_rent(self.chips, self.system.rent.typical)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve: decode replicas with their batch, and the prefill of prompts.

    An aggregated candidate prefills in chunks of `chunk` tokens together with decode. A disaggregated one has
    `prefill_layout.replicas` prefill replicas, which take `prompts` prompts per data-parallel rank in a pass.
    `batch` counts the sequences per replica among which a token is made. It need not be a whole number.
    """

    mode: str
    layout: Layout
    batch: float
    chunk: int = 0
    prefill_layout: Layout | None = None
    prompts: int = 0

    @property
    def text(self) -> str:
        """The candidate in one line."""
        if self.prefill_layout is None:
            return show_layout(self.layout)
        return f"prefill {show_layout(self.prefill_layout)} + decode {show_layout(self.layout)}"

    @property
    def same(self) -> tuple[object, ...]:
        """Key of candidates that differ only in batch, chunk and micro-batches."""
        return (self.mode, _DEGREES(self.layout), self.prefill_layout and _DEGREES(self.prefill_layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Candidates as columns, arrays of shape (candidates,).

    `layout` and `prefill_layout` index `layouts` (-1: none). `batch` counts sequences per replica, `chunk`
    tokens, and `prefill_prompts` prompts per data-parallel rank in a pass. `tpot` and `ttft` are in s, `rate`
    in requests/s of the whole deployment. `utilisation` is that of the prefill queue, `input_share` the share
    of the chips' time for prefill, and `memory` the used share of the capacity.
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
        """Return one candidate.

        Args:
            index: Row of the table.

        Returns:
            The candidate.
        """
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
    """Return a layout with a number of replicas."""
    return layout if layout.replicas == replicas else replace(layout, replicas=replicas)


COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("mode", "layouts"))


def joined(mode: str, layouts: list[Layout], parts: Sequence[Table]) -> Table:
    """Join tables of one mode over the same layouts.

    Args:
        mode: Mode of all parts.
        layouts: Layouts that the tables index.
        parts: Tables to join.

    Returns:
        One table with the rows of all parts.
    """
    nothing = (np.zeros(0, dtype=np.int64),)
    columns = {name: np.concatenate([getattr(part, name) for part in parts] or nothing) for name in COLUMNS}
    return Table(mode=mode, layouts=layouts, **columns)


def evaluate_state(case: PlanProblem, candidate: Candidate, batch: Number, chunk: Number) -> State:
    """Return the steady state of one replica of a candidate.

    Args:
        case: Plan problem.
        candidate: Candidate; its own batch and chunk are not used.
        batch: Sequences per replica.
        chunk: Prompt tokens per data-parallel rank in a mixed step; has no effect on a decode pool.

    Returns:
        The steady state, in the broadcast shape of batch and chunk.
    """

    # Only single points are stored: grids differ in each call.
    key = (candidate.mode, candidate.layout, batch, chunk) if np.ndim(batch) == np.ndim(chunk) == 0 else None
    if candidate.mode == DISAGGREGATED:
        return memoize(case, key, decoding, case, candidate.layout, batch)
    arguments: dict[str, Any] = {"layout": candidate.layout, "batch": batch, "chunk": chunk, "legal": True}
    arguments |= {"engine": case.engine, "speculation": case.speculation}
    return memoize(case, key, aggregated, case.model, case.system, case.workload, **arguments)


def decoding(case: PlanProblem, layout: Layout, batch: Number) -> State:
    """Return the steady state of a replica that only decodes.

    Args:
        case: Plan problem.
        layout: Layout of a replica.
        batch: Sequences per replica.

    Returns:
        The steady state.
    """
    arguments: dict[str, Any] = {
        "layout": layout,
        "batch": batch,
        "engine": case.engine,
        "speculation": case.speculation,
        "legal": True,
    }
    return decode_pool(case.model, case.system, case.workload, **arguments)


def memoize(
    case: PlanProblem, key: tuple[object, ...] | None, find: Callable[..., Memoized], *arguments: Any, **keywords: Any
) -> Memoized:
    """Return a result, computed once per key.

    Args:
        case: Plan problem, which stores the results.
        key: Key of the result; None computes it every time.
        find: Function that computes the result.
        arguments: Positional arguments of `find`.
        keywords: Keyword arguments of `find`.

    Returns:
        The result.
    """
    if key is None:
        return find(*arguments, **keywords)
    if key not in case.memo:
        case.memo[key] = find(*arguments, **keywords)
    value: Memoized = case.memo[key]
    return value


def evaluate_prefill(case: PlanProblem, candidate: Candidate, tpot: Number = 0.0, ttft: Number | None = None) -> Prefill | None:
    """Return the performance of one prefill replica of a candidate.

    Args:
        case: Plan problem.
        candidate: Candidate.
        tpot: TPOT of the decode pool [s].
        ttft: Target of the TTFT [s]; by default its limit.

    Returns:
        The prefill replica; None for an aggregated candidate.
    """
    if candidate.prefill_layout is None:
        return None
    layout, prompts = candidate.prefill_layout, candidate.prompts
    arguments: dict[str, Any] = {"layout": layout, "prompts": prompts, "engine": case.engine, "speculation": case.speculation}
    arguments["legal"] = True
    pool = memoize(case, ("prefill", layout, prompts), prefill_pool, case.model, case.system, case.workload, **arguments)
    limit = pass_limit(case, layout, candidate.layout, tpot, case.slo.ttft if ttft is None else ttft)
    key = ("within", layout, prompts, float(limit)) if np.ndim(limit) == 0 else None
    return memoize(case, key, within_limit, pool, limit, layout.replicas)


def moving(case: PlanProblem, layout: Layout) -> Transfer:
    """Return how KV caches leave a prefill replica.

    They use the scale-up links where one domain contains all chips, or where domains are symmetric.

    Args:
        case: Plan problem.
        layout: Layout of the prefill replica.

    Returns:
        The transfer.
    """
    near = case.symmetric_domains or case.used <= case.system.scale_up.size
    drafts = case.speculation.drafts
    return kv_transfer(case.model, case.system, case.workload, layout=layout, within_domain=bool(near), drafts=drafts)


def pass_limit(case: PlanProblem, layout: Layout, answering: Layout, tpot: Number, ttft: Number) -> Number:
    """Return the limit on wait plus pass in a prefill pool.

    It is the target of TTFT without the other delays. The wait for links depends on the rate and is added
    later.

    Args:
        case: Plan problem.
        layout: Layout of the prefill pool.
        answering: Layout of the decode pool.
        tpot: TPOT of the decode pool [s].
        ttft: Target of the TTFT [s].

    Returns:
        Seconds from the queue to the end of the pass.
    """
    sent = moving(case, layout)
    other_delays = ttft_seen(case.workload, sent.latency + sent.moving, tpot, answering, case.engine, case.speculation)
    return (ttft - other_delays) / waited(case.engine)


def runs(case: PlanProblem, layouts: Layout, role: str) -> Array:
    """Return which layouts the engine supports in a pool of one role.

    Args:
        case: Plan problem.
        layouts: Layouts.
        role: "prefill" or "decode".

    Returns:
        Booleans with the shape of the layouts.
    """
    facts = collect_facts(case.model, case.system, chips=case.used, engine=case.engine, role=role)
    is_allowed: Array = allowed(layouts, facts, (ENGINE,))
    return is_allowed
