"""Searches every legal layout and batch for the candidates of a deployment, as arrays.

`search` evaluates all candidates worth looking at and returns them as tables; `refine.refined` tunes the batch of one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from steptime.frontier import pareto
from steptime.numbers import Array, Number
from steptime.physics.facts import facts_of
from steptime.physics.layout import Layout, shaped, stacked, taken
from steptime.physics.memory import weights_per_chip
from steptime.physics.placement import pairs
from steptime.physics.rules import reasons
from steptime.physics.search_space import legal, not_tried
from steptime.planning.aims import aims_of
from steptime.planning.candidates import AGGREGATED, DISAGGREGATED, Candidate, Case, Table, joined, moving, pass_limit, runs
from steptime.planning.drafting import decode_steps
from steptime.planning.prefilling import Prefill, prefill_pool
from steptime.planning.queueing import PassTime, passes
from steptime.planning.seating import seated
from steptime.planning.steady import (
    MOST_LOADED,
    MOST_UTILISED,
    State,
    aggregated,
    decode_pool,
    fresh_tokens,
    load_of,
    ttft_seen,
)
from steptime.planning.workload import Workload
from steptime.units import show

LEAST_CHUNK = 64  # tokens: smaller ones cost as much
PARTS = 64  # of a prompt at most
UNKNOWN = 0.05  # s per token, of a pool that decodes and is not chosen yet, where no limit says more
LARGEST_PASS = 16384  # tokens of one prefill pass of a group, unless one prompt is longer
MOST_SEQUENCES = 65536
AS_CHEAP = 0.005  # costs this near are the same


def batches(most: float, per_octave: int = 2) -> Array:
    """Batch sizes to try, evenly spaced in their logarithm: whole numbers from 1 to at least `most`.

    >>> batches(8).tolist()
    [1, 2, 3, 4, 6, 8]
    """
    count = int(np.ceil(np.log2(max(most, 1)) * per_octave)) + 1
    return np.unique(np.ceil(2 ** (np.arange(count) / per_octave) - 1e-9)).astype(np.int64)


def fitting(case: Case) -> list[Layout]:
    """Return the legal layouts that the engine can run and whose weights leave room on a chip."""
    return held_by(case, legal(case.model, case.system, case.chips, engine=case.engine))


def held_by(case: Case, layouts: list[Layout]) -> list[Layout]:
    """Return those of some layouts whose weights leave room on a chip."""
    if not layouts:
        return []
    room = room_of(case)
    weights = np.broadcast_to(weights_per_chip(case.model, stacked(layouts)), (len(layouts),))
    return [layout for layout, bytes_ in zip(layouts, weights, strict=True) if bytes_ < room]


def absent_because(case: Case, layout: Layout) -> list[str]:
    """Return why a layout is not among those that a plan looks at: rules it breaks, memory, ways not tried; [] where it is.

    Only the axes of one replica count: as many replicas are taken as fit.
    """
    facts = facts_of(case.model, case.system, chips=case.chips, engine=case.engine)
    broken = reasons(layout, facts)
    if broken:
        return broken
    weights, room = float(weights_per_chip(case.model, layout)), float(room_of(case))
    if weights >= room:
        return [f"its weights take {show(weights, 'B')} of a chip, which has {show(room, 'B')}"]
    untried = not_tried(layout, facts, case.chips)
    return [untried] if untried else []


def room_of(case: Case) -> Number:
    """Bytes of a chip that the engine uses."""
    return case.system.chip.hbm.capacity * case.engine.room.memory_share - case.engine.room.reserved_bytes


def chunk_sizes(workload: Workload) -> Array:
    """Chunk sizes to try [tokens]: a prompt, its halves, quarters and so on, and several whole prompts.

    >>> chunk_sizes(Workload(input_tokens=1000, output_tokens=1)).tolist()
    [63, 125, 250, 500, 1000, 2000, 4000, 8000]
    """
    fresh = fresh_tokens(workload)
    parts = 2.0 ** np.arange(np.log2(PARTS) + 1)
    pieces = np.ceil(fresh / parts)
    whole = fresh * parts[1:]
    kept = [*pieces[(pieces >= LEAST_CHUNK - 1) & (pieces <= 2 * LARGEST_PASS)], *whole[whole <= LARGEST_PASS / 2]]
    return np.unique(kept or [min(fresh, 2 * LARGEST_PASS)]).astype(np.int64)


def readable(workload: Workload, sizes: Array, layout: Layout) -> Array:
    """Whether chunks are worth trying in a layout: several prompts in one only where there is one attention group.

    Of several groups the busiest would often have two prompts where the mean has one, and all would wait for it.
    """
    kept: Array = (sizes <= fresh_tokens(workload)) | (np.asarray(layout.dp) == 1)
    return kept


def search(case: Case, modes: tuple[str, ...], layouts: list[Layout]) -> list[Table]:
    """Evaluate the candidates of all modes asked for."""
    apart = search_disaggregated(case, layouts) if DISAGGREGATED in modes else None
    if AGGREGATED not in modes:
        return [apart] if apart is not None else []
    together = search_aggregated(case, layouts, apart if case.sure is None else None)
    return [together] if apart is None else [together, apart]


def search_aggregated(case: Case, layouts: list[Layout], apart: Table | None = None) -> Table:
    """Evaluate every layout with every batch and chunk that can be a steady state, decode and prefill sharing the chips.

    apart: what pools of their own deliver. Where one of those is as fast and serves as many requests as a layout that would
    read its prompts in no time, chunks are not looked at.
    """
    model, system, workload, engine = case.model, case.system, case.workload, case.engine
    table = stacked(layouts)
    wide = shaped(table, 1)
    sequences = _batches_of(wide)
    decode = decode_pool(model, system, workload, layout=wide, batch=sequences, engine=engine, drafting=case.drafting)
    new = np.diff(sequences, axis=1, prepend=0) > 0
    sizes = chunk_sizes(workload)
    work = sequences * fresh_tokens(workload) / (decode_steps(workload, case.drafting) * wide.dp)
    alone = sequences * wide.replicas <= 1  # whose prompts nobody waits for
    stable = ((work < MOST_UTILISED * sizes[-1]) | alone) & (work > 1e-4 * sizes[0])  # prompt tokens of a step
    decoding = load_of(decode.tpot, sequences)
    hopeful = decode.memory.fits & new & stable & (decoding <= MOST_LOADED)
    if apart is not None:
        hopeful &= ~_outdone(case, apart, decode.tpot, np.asarray(decode.rate * wide.replicas))
    m, b = np.nonzero(hopeful)
    batch = sequences[m, b]
    state = aggregated(
        model,
        system,
        workload,
        layout=taken(table, m[:, None]),
        batch=batch[:, None],
        chunk=sizes[None, :],
        engine=engine,
        drafting=case.drafting,
        quick=True,
    )
    loaded = _load(state, np.asarray(decode.tpot[m, b])[:, None], decoding[m, b][:, None], np.asarray(table.dp)[m][:, None])
    kept = readable(workload, sizes[None, :], taken(table, m[:, None]))
    kept &= (state.utilisation < MOST_UTILISED) & np.isfinite(state.ttft) & state.memory.fits & (loaded <= MOST_LOADED)
    i, j = np.nonzero(kept)
    replicas = np.asarray(table.replicas)[m[i]]
    aim = aims_of(case, taken(table, m[:, None]), None, state.input_share)[1]
    seats = seated(case, state, batch[:, None], np.asarray(table.replicas)[m][:, None], aim)
    memory = np.asarray(state.memory.used / state.memory.capacity)
    none = np.zeros(len(i), dtype=np.int64)
    return Table(
        mode=AGGREGATED,
        layouts=layouts,
        layout=m[i],
        batch=batch[i],
        chunk=sizes[j],
        replicas=replicas,
        prefill_layout=none - 1,
        prefill_prompts=none,
        prefill_replicas=none,
        tpot=state.tpot[i, j],
        ttft=(state.ttft + seats.wait)[i, j],
        rate=(state.rate * seats.share)[i, j] * replicas,
        utilisation=state.utilisation[i, j],
        input_share=state.input_share[i, j],
        memory=memory[i, j],
    )


def _outdone(case: Case, apart: Table, tpot: Array, rate: Array) -> Array:
    """Whether pools of their own keep the limit on the first token at no higher TPOT [s] and no lower rate [requests/s]."""
    good = np.nonzero((apart.ttft <= case.slo.ttft) & (apart.memory <= 1) & (apart.rate > 0))[0]
    if not len(good):
        return np.zeros(tpot.shape, dtype=bool)
    order = good[np.argsort(apart.tpot[good])]
    most = np.append(np.maximum.accumulate(apart.rate[order]), -np.inf)  # the last for none
    outdone: Array = most[np.searchsorted(apart.tpot[order], tpot, side="right") - 1] >= rate
    return outdone


def _load(state: State, decode: Array, loaded: Array, groups: Array) -> Array:
    """Return about how much of its highest rate a pool delivers that decodes and reads, `loaded` by decode alone.

    What prompts add to a token grows with the batch; of several groups, as long as more of them make more slow steps.
    """
    reads = state.reads * (1 - state.quiet)
    growing = np.clip(reads * state.quiet / np.maximum(1 - state.quiet, 1e-12), 0.0, 1.0)
    growing = np.where((state.reads > 1) & (groups > 1), growing, 1.0)
    load: Array = (loaded * decode + growing * (state.tpot - decode)) / state.tpot
    return load


def _batches_of(wide: Layout) -> Array:
    """Return batches to try, at least a sequence for each micro-batch of each group: layouts (n, 1) -> (n, batches)."""
    most: Array = np.maximum(batches(MOST_SEQUENCES)[None, :], wide.dp * wide.microbatches)
    return most


def search_disaggregated(case: Case, layouts: list[Layout]) -> Table:
    """Match prefill replicas and decode replicas of all sizes to one rate of requests."""
    table = stacked(layouts)
    readers, decoders = _best_readers(case, table), _best_decoders(case, table)
    both = [(n, other) for n, one in enumerate(readers) for other in decoders if one.chips + other.chips <= case.chips]
    parts = [_matched(readers[number], decoder, case, layouts) for number, decoder in both]
    which = np.repeat([number for number, _ in both], [len(part) for part in parts]).astype(np.int64)
    found = joined(DISAGGREGATED, layouts, parts)
    return replace(found, ttft=_first_tokens(case, found, table, [reader.pool for reader in readers], which))


def _first_tokens(case: Case, found: Table, table: Layout, pools: list[Prefill], which: Array) -> Array:
    """Return the mean times to first token [s] of matched pools; `which` of the prefill pools each row has."""
    if not len(found):
        return np.zeros(0)
    ways = {f.name: np.array([getattr(pool.time, f.name) for pool in pools])[which] for f in fields(PassTime)}
    late, seats, rate = (np.array([getattr(pool, name) for pool in pools])[which] for name in _FIGURES)
    passed = passes(found.utilisation * rate, PassTime(**ways), seats, replicas=found.prefill_replicas)
    sent = moving(case, taken(table, found.prefill_layout)).seconds(found.utilisation * rate)
    read = passed.wait + passed.service * (1 + late) + sent
    return np.asarray(ttft_seen(case.workload, read, found.tpot, taken(table, found.layout), case.engine, case.drafting))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """The prefill replica of `chips` chips that reads most within the limit: its layout, prompts a group, and pool."""

    chips: int
    layout: int
    prompts: int
    pool: Prefill


_FIGURES = ("late", "seats", "rate")  # of a pool, that a reader keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoders:
    """The decode replicas of `chips` chips that no other of that size beats in speed and rate: columns of one shape."""

    chips: int
    layout: Any
    batch: Any
    tpot: Any
    rate: Any
    memory: Any


def _best_readers(case: Case, table: Layout) -> list[_Reader]:
    """Return, for each size of a replica, the layout and pass that prefill most within the limit on TTFT.

    Without sizes in whose place several smaller ones, whose chips they have, prefill as much.
    """
    model, system, workload, engine = case.model, case.system, case.workload, case.engine
    most = max(1.0, LARGEST_PASS // fresh_tokens(workload))
    prompts = batches(most, per_octave=1)
    prompts = prompts[prompts <= most]
    wide = shaped(table, 1)
    limit = pass_limit(case, wide, wide, min(case.slo.tpot, UNKNOWN), aims_of(case, wide, wide)[1])
    pool = prefill_pool(
        model, system, workload,
        layout=wide, prompts=prompts[None, :], engine=engine, drafting=case.drafting, limit=limit,
    )  # fmt: skip
    each = np.minimum(pool.rate * pool.most_utilised, moving(case, wide).most)
    usable = np.where(pool.memory.fits & runs(case, wide, "prefill"), each, 0.0)
    found: list[_Reader] = []
    for size in np.unique(table.chips):
        rows = np.nonzero(table.chips == size)[0]
        row, column = np.unravel_index(int(np.argmax(usable[rows])), usable[rows].shape)
        at = (int(rows[row]), int(column))
        if usable[at] > 0:
            figures = {name: np.broadcast_to(getattr(pool, name), usable.shape)[at] for name in _FIGURES}
            ways = {f.name: np.broadcast_to(getattr(pool.time, f.name), usable.shape)[at] for f in fields(PassTime)}
            one = replace(pool, **figures, time=PassTime(**ways), most_utilised=usable[at] / pool.rate[at])
            reader = _Reader(chips=int(size), layout=at[0], prompts=int(prompts[at[1]]), pool=one)
            if not any(_replaces(other, reader, case.system.scale_up.size) for other in found):
                found.append(reader)
    return found


def _replaces(small: _Reader, large: _Reader, domain: Number) -> bool:
    """Whether smaller replicas find place on the chips of a larger one, and prefill as much there as it does."""
    each = [reader.pool.rate * reader.pool.most_utilised / reader.chips for reader in (small, large)]
    return _finds_place(small.chips, large.chips, domain) and bool(each[0] >= each[1])


def _best_decoders(case: Case, table: Layout) -> list[_Decoders]:
    """Return, for each size of a replica, the layouts and batches that no other of that size beats in speed and rate.

    Nor several smaller ones, whose chips they have.
    """
    wide = shaped(table, 1)
    sequences = _batches_of(wide)
    given: dict[str, Any] = {"engine": case.engine, "drafting": case.drafting}
    state = decode_pool(case.model, case.system, case.workload, layout=wide, batch=sequences, **given)
    rate = np.minimum(state.rate, moving(case, wide).most)  # links take caches in as fast as they send them
    used = np.asarray(state.memory.used / state.memory.capacity)
    steady = (load_of(state.tpot, sequences) <= MOST_LOADED) & runs(case, wide, "decode")
    found: list[_Decoders] = []
    for size in np.unique(table.chips):
        rows = np.nonzero(table.chips == size)[0]
        m, b = np.nonzero(state.memory.fits[rows] & steady[rows])
        if not len(m):
            continue
        keep = pareto(-state.tpot[rows][m, b], rate[rows][m, b])
        at = rows[m[keep]], b[keep]
        columns = {"layout": at[0], "batch": sequences[at], "tpot": state.tpot[at], "rate": rate[at], "memory": used[at]}
        good = np.ones(len(keep), dtype=bool)
        for small in found:
            if _finds_place(small.chips, int(size), case.system.scale_up.size):
                good &= ~_beaten(columns["tpot"], columns["rate"] / size, small)
        if np.any(good):
            found.append(_Decoders(chips=int(size), **{name: column[good] for name, column in columns.items()}))
    return found


def _finds_place(small: int, large: int, domain: Number) -> bool:
    """Whether replicas of `small` chips find place on the chips of a larger one."""
    return large % small == 0 and bool(large <= domain or small > domain or domain % small == 0)


def _beaten(tpot: Array, per_chip: Array, small: _Decoders) -> Array:
    """Whether smaller replicas on the same chips are as fast and serve as many requests: shape of `tpot`."""
    order = np.argsort(small.tpot)
    most = np.maximum.accumulate(small.rate[order]) / small.chips
    slower = np.searchsorted(small.tpot[order], tpot, side="right")  # than these
    beaten: Array = (slower > 0) & (most[slower - 1] >= per_chip)
    return beaten


def _matched(reader: _Reader, decoders: _Decoders, case: Case, layouts: list[Layout]) -> Table:
    """Divide the chips between prefill and decode replicas of two sizes, for the highest rate that both sustain."""
    counts, replicas = pairs(case.system.scale_up.size, case.chips, reader.chips, decoders.chips)
    if not len(counts):
        return joined(DISAGGREGATED, layouts, [])
    usable = counts * (reader.pool.rate * reader.pool.most_utilised)
    served = (replicas[:, None] - 1 / decoders.batch[None, :]) * decoders.rate[None, :]
    matched = np.minimum(usable[:, None], served)
    best = np.argmax(matched, axis=0)
    rate = matched[best, np.arange(len(decoders.rate))]
    counts, replicas = counts[best], replicas[best]
    utilisation = rate / (counts * reader.pool.rate)
    same = np.ones(len(rate), dtype=np.int64)
    return Table(
        mode=DISAGGREGATED,
        layouts=layouts,
        layout=decoders.layout,
        batch=decoders.batch,
        chunk=0 * same,
        replicas=replicas,
        prefill_layout=reader.layout * same,
        prefill_prompts=reader.prompts * same,
        prefill_replicas=counts,
        tpot=decoders.tpot,
        ttft=0.0 * rate,  # `_first_tokens` finds those of all pairs at once
        rate=rate,
        utilisation=utilisation,
        input_share=counts * reader.chips / (counts * reader.chips + replicas * decoders.chips),
        memory=decoders.memory,
    )


def ranked(case: Case, tables: list[Table], most: int = 400) -> list[Candidate]:
    """Return the candidates within the limits: by what they cost, in steps of half a percent, and the fastest of each first."""
    good = []
    for table in tables:
        tpot, ttft = _aims(case, table)
        good.append(np.nonzero((table.tpot <= tpot) & (table.ttft <= ttft) & (table.memory <= 1) & (table.rate > 0))[0])
    highest = max((float(np.max(table.rate[rows])) for table, rows in zip(tables, good, strict=True) if len(rows)), default=1.0)
    found: list[tuple[int, float, int, int]] = []
    for number, (table, rows) in enumerate(zip(tables, good, strict=True)):
        steps = np.floor(np.log(highest / table.rate[rows]) / AS_CHEAP).astype(np.int64)
        order = np.lexsort((table.tpot[rows], steps))[:most]
        found += [(int(steps[i]), float(table.tpot[rows[i]]), number, int(rows[i])) for i in order]
    return [tables[number].row(index) for _, _, number, index in sorted(found)]


def _aims(case: Case, table: Table) -> tuple[Number, Number]:
    """Return where TPOT and TTFT of each row have to be [s]."""
    layouts = stacked(table.layouts)
    decoding = taken(layouts, table.layout)
    if table.mode == AGGREGATED:
        return aims_of(case, decoding, None, table.input_share)
    return aims_of(case, decoding, taken(layouts, table.prefill_layout))
