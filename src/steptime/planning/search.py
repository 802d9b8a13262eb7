"""Searches every legal layout and batch for the candidates of a deployment, as arrays.

`search` evaluates all candidates worth looking at and returns them as tables of columns. A `Candidate` is one row: a mode and
one or two pools. `refine.refined` tunes the batch of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime.frontier import pareto
from steptime.machines.money import rent_of
from steptime.machines.system import System
from steptime.models.model import Model
from steptime.numbers import Number
from steptime.physics.engine import Engine
from steptime.physics.layout import NAMES, Layout, exchanges_experts, legal, show_layout, stacked
from steptime.physics.memory import weights_per_chip
from steptime.planning.steady import (
    MOST_UTILISED,
    Prefill,
    State,
    aggregated,
    decode_pool,
    first_token,
    fresh_tokens,
    prefill_pool,
)
from steptime.planning.workload import Slo, Workload

CHUNKS = (256, 512, 1024, 2048, 4096, 8192, 16384)
LARGEST_PASS = 16384  # tokens of one prefill pass of a group, unless one prompt is longer
MOST_SEQUENCES = 65536
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that a plan is made for."""

    model: Model
    system: System
    workload: Workload
    slo: Slo
    chips: int
    engine: Engine

    @property
    def rent(self) -> Number:
        """USD per second of all chips."""
        return rent_of(self.chips, self.system.rent.typical)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve: decode replicas of `layout` with `batch` sequences each, and how prompts are prefilled.

    Aggregated: in chunks of `chunk` tokens beside decode. Disaggregated: by `prefill_layout.replicas` replicas of their own
    that take `prompts` prompts per attention group in a pass.
    """

    mode: str
    layout: Layout
    batch: int
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
        return (
            self.mode,
            replace(self.layout, microbatches=1),
            self.prefill_layout and replace(self.prefill_layout, microbatches=1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Layouts as columns, one row each; `layout` and `prefill_layout` index `layouts`.

    tpot, ttft [s]; rate [requests/s of the whole deployment]; input_share of the chips' time; used over capacity of memory.
    """

    mode: str
    layouts: list[Layout]
    layout: Number
    batch: Number
    chunk: Number
    replicas: Number
    prefill_layout: Number
    prefill_prompts: Number
    prefill_replicas: Number
    tpot: Number
    ttft: Number
    rate: Number
    utilisation: Number
    input_share: Number
    memory: Number

    def __len__(self) -> int:
        return len(self.tpot)


def batches(most: float, per_octave: int = 2) -> Number:
    """Batch sizes to try, evenly spaced in their logarithm: whole numbers from 1 to at least `most`.

    >>> batches(8).tolist()
    [1, 2, 3, 4, 6, 8]
    """
    count = int(np.ceil(np.log2(max(most, 1)) * per_octave)) + 1
    return np.unique(np.ceil(2 ** (np.arange(count) / per_octave) - 1e-9)).astype(np.int64)


def fitting(case: Case) -> list[Layout]:
    """Return the legal layouts that the engine can run and whose weights leave room on a chip."""
    layouts = [m for m in legal(case.model, case.system, case.chips) if can_overlap(case.engine, m)]
    if not layouts:
        return []
    room = case.system.chip.hbm.capacity * case.engine.room.memory_share - case.engine.room.reserved_bytes
    weights = np.broadcast_to(weights_per_chip(case.model, stacked(layouts)), (len(layouts),))
    return [layout for layout, bytes_ in zip(layouts, weights, strict=True) if bytes_ < room]


def can_overlap(engine: Engine, layout: Layout) -> bool:
    """Whether an engine can have the micro-batches of a layout in flight: one a stage, or two where it overlaps two.

    Sources: https://docs.vllm.ai/en/stable/design/dbo/, https://docs.sglang.io/advanced_features/expert_parallelism.html

    >>> from steptime.physics.engine import IDEAL, with_constants
    >>> vllm = with_constants(IDEAL, {"two_batch": 1})
    >>> [can_overlap(vllm, m) for m in (Layout(tp=8), Layout(tp=8, microbatches=2), Layout(dp=8, ep=8, microbatches=2))]
    [True, False, True]
    """
    return bool(layout.microbatches <= layout.pp or engine.scheduler.two_batch >= (1 if exchanges_experts(layout) else 2))


def take(layout: Layout, index: Number) -> Layout:
    """Return the layout with the rows `index` of every field."""
    return Layout(**{name: np.asarray(getattr(layout, name))[index] for name in NAMES})


def chunk_sizes(workload: Workload) -> Number:
    """Chunk sizes to try: powers of two, and the whole prompt."""
    fresh = fresh_tokens(workload)
    return np.unique([c for c in CHUNKS if c < 2 * fresh or c <= 2048] + [min(fresh, 2 * LARGEST_PASS)])


def search(case: Case, modes: tuple[str, ...], layouts: list[Layout]) -> list[Table]:
    """Evaluate the candidates of all modes asked for."""
    tables = [search_aggregated(case, layouts)] if AGGREGATED in modes else []
    return [*tables, search_disaggregated(case, layouts)] if DISAGGREGATED in modes else tables


def search_aggregated(case: Case, layouts: list[Layout]) -> Table:
    """Evaluate every layout with every batch and chunk that can be a steady state, decode and prefill sharing the chips."""
    model, system, workload, engine = case.model, case.system, case.workload, case.engine
    table = stacked(layouts)
    grid = batches(MOST_SEQUENCES)
    sequences = np.maximum(grid[None, :], table.dp[:, None] * table.microbatches[:, None])
    decode = decode_pool(model, system, workload, layout=_columns(table), batch=sequences, engine=engine)
    new = np.diff(sequences, axis=1, prepend=0) > 0
    sizes = chunk_sizes(workload)
    work = (
        sequences * fresh_tokens(workload) / (max(1.0, workload.output_tokens - 1) * table.dp[:, None])
    )  # prompt tokens of a step
    stable = (work < MOST_UTILISED * sizes[-1]) & (work > 1e-4 * sizes[0])
    m, b = np.nonzero(decode.memory.fits & new & stable)
    batch = sequences[m, b]
    state = aggregated(
        model,
        system,
        workload,
        layout=take(table, m[:, None]),
        batch=batch[:, None],
        chunk=sizes[None, :],
        engine=engine,
    )
    i, j = np.nonzero((state.utilisation < MOST_UTILISED) & np.isfinite(state.ttft))
    replicas = table.replicas[m[i]]
    return Table(
        mode=AGGREGATED,
        layouts=layouts,
        layout=m[i],
        batch=batch[i],
        chunk=sizes[j],
        replicas=replicas,
        prefill_layout=np.full(len(i), -1),
        prefill_prompts=np.zeros(len(i), dtype=int),
        prefill_replicas=np.zeros(len(i), dtype=int),
        tpot=state.tpot[i, j],
        ttft=state.ttft[i, j],
        rate=state.rate[i, j] * replicas,
        utilisation=state.utilisation[i, j],
        input_share=state.input_share[i, j],
        memory=(state.memory.used / state.memory.capacity)[i, j],
    )


def _columns(layout: Layout) -> Layout:
    return Layout(**{name: np.asarray(getattr(layout, name))[:, None] for name in NAMES})


def search_disaggregated(case: Case, layouts: list[Layout]) -> Table:
    """Match prefill replicas and decode replicas of all sizes to one rate of requests."""
    chips = case.chips
    table = stacked(layouts)
    sizes = np.unique(table.chips)
    prefill = _best_prefill(case, table)
    decode = _best_decode(case, table)
    chosen: list[tuple[Number, ...]] = []
    for size, pre in prefill.items():
        for other in sizes:
            if other not in decode or size + other > chips:
                continue
            chosen.append(_matched(size, pre, other, decode[other], chips, case.engine))
    if not chosen:
        return _empty(DISAGGREGATED, layouts)
    columns = [np.concatenate(parts) for parts in zip(*chosen, strict=True)]
    layout, batch, tpot, memory, rate, replicas, pre_layout, pre_prompts, pre_replicas, utilisation, ttft, share = columns
    return Table(
        mode=DISAGGREGATED,
        layouts=layouts,
        layout=layout.astype(int),
        batch=batch,
        chunk=np.zeros(len(batch), dtype=int),
        replicas=replicas.astype(int),
        prefill_layout=pre_layout.astype(int),
        prefill_prompts=pre_prompts.astype(int),
        prefill_replicas=pre_replicas.astype(int),
        tpot=tpot,
        ttft=ttft,
        rate=rate,
        utilisation=utilisation,
        input_share=share,
        memory=memory,
    )


@dataclass(frozen=True, slots=True)
class _Pre:
    """The best prefill replica of one size."""

    layout: int
    prompts: int
    rate: float
    most_utilised: float
    pool: Prefill
    row: tuple[int, int]

    def ttft(self, utilisation: Number, engine: Engine) -> Number:
        one = replace(
            self.pool,
            seconds=self.pool.seconds[self.row],
            seats=np.broadcast_to(self.pool.seats, self.pool.seconds.shape)[self.row],
        )
        return first_token(one, utilisation, engine)


def _best_prefill(case: Case, table: Layout) -> dict[int, _Pre]:
    """Return, for each size of a replica, the layout and pass that prefill most within the limit on TTFT."""
    model, system, workload, engine = case.model, case.system, case.workload, case.engine
    most = max(1.0, LARGEST_PASS // fresh_tokens(workload))
    prompts = batches(most, per_octave=1)
    prompts = prompts[prompts <= most]
    pool = prefill_pool(
        model, system, workload, layout=_columns(table), prompts=prompts[None, :], engine=engine, ttft=case.slo.ttft
    )
    usable = np.where(pool.memory.fits, pool.rate * pool.most_utilised, 0.0)
    best: dict[int, _Pre] = {}
    for size in np.unique(table.chips):
        rows = np.nonzero(table.chips == size)[0]
        row, column = np.unravel_index(int(np.argmax(usable[rows])), usable[rows].shape)
        index = (int(rows[row]), int(column))
        if usable[index] > 0:
            best[int(size)] = _Pre(index[0], int(prompts[column]), pool.rate[index], pool.most_utilised[index], pool, index)
    return best


def _best_decode(case: Case, table: Layout) -> dict[int, tuple[Number, ...]]:
    """Return, for each size of a replica, the candidates that no other of that size beats in speed and rate."""
    model, system, workload, engine = case.model, case.system, case.workload, case.engine
    grid = batches(MOST_SEQUENCES)[None, :]
    sequences = np.maximum(grid, (table.dp * table.microbatches)[:, None])
    state: State = decode_pool(model, system, workload, layout=_columns(table), batch=sequences, engine=engine)
    used = state.memory.used / state.memory.capacity
    found = {}
    for size in np.unique(table.chips):
        rows = np.nonzero(table.chips == size)[0]
        fits = state.memory.fits[rows]
        if not np.any(fits):
            continue
        m, b = np.nonzero(fits)
        keep = pareto(-state.tpot[rows][m, b], state.rate[rows][m, b])
        m, b = m[keep], b[keep]
        layout = rows[m]
        found[int(size)] = (
            layout,
            sequences[layout, b],
            state.tpot[layout, b],
            state.rate[layout, b],
            used[layout, b],
        )
    return found


def _matched(size: int, pre: _Pre, other: int, decode: tuple[Number, ...], chips: int, engine: Engine) -> tuple[Number, ...]:
    """Divide the chips between prefill replicas of `size` and decode replicas of `other`, for the highest matched rate."""
    layout, batch, tpot, rate, memory = decode
    count = np.arange(1, (chips - other) // size + 1)[:, None]
    decoders = (chips - count * size) // other
    matched = np.minimum(count * pre.rate * pre.most_utilised, decoders * rate[None, :])
    best = np.argmax(matched, axis=0)
    total = matched[best, np.arange(len(rate))]
    count, decoders = count[best, 0], decoders[best, 0]
    utilisation = total / (count * pre.rate)
    share = count * size / (count * size + decoders * other)
    n = len(rate)
    return (
        layout, batch, tpot, memory, total, decoders, np.full(n, pre.layout), np.full(n, pre.prompts), count, utilisation,
        pre.ttft(utilisation, engine), share,
    )  # fmt: skip


def _empty(mode: str, layouts: list[Layout]) -> Table:
    nothing = np.zeros(0)
    whole = np.zeros(0, dtype=int)
    return Table(
        mode=mode, layouts=layouts, layout=whole, batch=whole, chunk=whole, replicas=whole, prefill_layout=whole,
        prefill_prompts=whole, prefill_replicas=whole, tpot=nothing, ttft=nothing, rate=nothing, utilisation=nothing,
        input_share=nothing, memory=nothing,
    )  # fmt: skip


# --- one candidate ---------------------------------------------------------------------------------------------------------


def row(table: Table, index: int) -> Candidate:
    """Return one row of a table."""
    candidate = Candidate(
        mode=table.mode,
        layout=replace(table.layouts[table.layout[index]], replicas=int(table.replicas[index])),
        batch=int(table.batch[index]),
        chunk=int(table.chunk[index]),
    )
    if table.mode == AGGREGATED:
        return candidate
    prefill = replace(table.layouts[table.prefill_layout[index]], replicas=int(table.prefill_replicas[index]))
    return replace(candidate, prefill_layout=prefill, prompts=int(table.prefill_prompts[index]))


def ranked(case: Case, tables: list[Table], most: int = 400) -> list[Candidate]:
    """Return the candidates within the limits, those that serve most requests first, then the fastest."""
    found: list[tuple[float, float, int, int]] = []
    for number, table in enumerate(tables):
        good = np.nonzero(
            (table.tpot <= case.slo.tpot) & (table.ttft <= case.slo.ttft) & (table.memory <= 1) & (table.rate > 0)
        )[0]
        order = good[np.lexsort((table.tpot[good], -table.rate[good]))][:most]
        found += [(-float(table.rate[i]), float(table.tpot[i]), number, int(i)) for i in order]
    return [row(tables[number], index) for _, _, number, index in sorted(found)]


def state_of(case: Case, candidate: Candidate, batch: Number, chunk: Number) -> State:
    """Return the steady state of one replica of the candidate at any batch and chunk."""
    layout = replace(candidate.layout, replicas=1)
    if candidate.mode == AGGREGATED:
        return aggregated(case.model, case.system, case.workload, layout=layout, batch=batch, chunk=chunk, engine=case.engine)
    return decode_pool(case.model, case.system, case.workload, layout=layout, batch=batch, engine=case.engine)


def prefill_of(case: Case, candidate: Candidate) -> Prefill | None:
    """Return what one prefill replica of the candidate delivers, if it has any."""
    if candidate.prefill_layout is None:
        return None
    layout = replace(candidate.prefill_layout, replicas=1)
    return prefill_pool(
        case.model,
        case.system,
        case.workload,
        layout=layout,
        prompts=candidate.prompts,
        engine=case.engine,
        ttft=case.slo.ttft,
    )
