"""Matching of prefill and decode replicas of all sizes to one request rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from steptime.number_checks import Array, Number, distinct
from steptime.pareto import pareto
from steptime.physics.layout import Layout, joined_layouts, select_layouts, shaped
from steptime.physics.layout_space import pairs
from steptime.physics.layout_space import replicas as fitting_replicas
from steptime.planning.batch_grids import batch_grid, batches
from steptime.planning.batch_queue import PassTime, passes
from steptime.planning.plan_problem import (
    DISAGGREGATED,
    PlanProblem,
    Table,
    joined,
    moving,
    pass_limit,
    runs,
    steady_state,
)
from steptime.planning.prefill_pool import Prefill, first_token, prefill_pool, within_limit
from steptime.planning.slo_probability import effective_targets
from steptime.planning.steady_state import (
    MOST_LOADED,
    MOST_UTILISED,
    State,
    answer_tokens,
    delivered,
    fresh_tokens,
    in_flight,
    load_shares,
    ttft_seen,
)

# TPOT of a decode pool that is not chosen yet and has no limit [s].
UNKNOWN = 0.03
# Share of the limit on TTFT from which the decode steps before the first token count: shorter TPOTs are then assumed too, each
# half of the one before, and at most so many.
NOTICEABLE, HALVES = 0.2, 3
# Tokens of one prefill pass of a data-parallel rank, unless one prompt is longer.
LARGEST_PASS = 16384
# Prefill replicas of each size that are evaluated before others of that size.
FIRST_CHALLENGERS = 4
# Pairs of pools that are matched in one step: about what the cache of a CPU core holds.
AT_ONCE = 1 << 16


def search_disaggregated(case: PlanProblem, table: Layout, decode: State, prefill_table: Layout | None = None) -> Table:
    """Match prefill and decode replicas of all sizes to one request rate.

    Args:
        case: Plan problem.
        table: Layouts of one replica, as one layout of arrays.
        decode: Steady states of decode pools, with the batches of `batch_grid`.
        prefill_table: Layouts of a prefill replica on another system; by default `table`.

    Returns:
        The disaggregated candidates. Their layouts are those of both tables, `table` first.
    """
    decoders = _best_decoders(case, table, decode)
    reading = _distinct(best_readers(case, table if prefill_table is None else prefill_table))
    if prefill_table is not None:
        first = len(np.atleast_1d(table.chips))
        reading = [replace(reader, layout=reader.layout + first) for reader in reading]
        table = joined_layouts(table, prefill_table)
    matches, which = _matched(case, reading, decoders, table)
    return replace(matches, ttft=_first_tokens(case, matches, table, reading, which))


def _distinct(readers: list[Reader]) -> list[Reader]:
    """Return prefill replicas without those that another of the same kind replaces at a higher rate."""
    return list({(reader.layout, reader.prompts, tuple(reader.usable)): reader for reader in readers}.values())


def _first_tokens(case: PlanProblem, matches: Table, table: Layout, pools: list[Reader], which: Array) -> Array:
    """Return the mean TTFT [s] of matched pools.

    `which` is the index of the prefill replica of each row.
    """
    if not len(matches):
        return np.zeros(0)
    pass_times = {f.name: np.array([getattr(pool.time, f.name) for pool in pools])[which] for f in fields(PassTime)}
    late, seats, rate = (np.array([getattr(pool, name) for pool in pools])[which] for name in _FIGURES)
    passed = passes(matches.utilisation * rate, PassTime(**pass_times), seats, replicas=matches.prefill_replicas)
    sent = moving(case, select_layouts(table, matches.prefill_layout)).seconds(matches.utilisation * rate)
    prefill_seconds = passed.wait + passed.service * (1 + late) + sent
    return np.asarray(
        ttft_seen(
            case.workload, prefill_seconds, matches.tpot, select_layouts(table, matches.layout), case.engine, case.speculation
        )
    )


# --- prefill replicas -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A prefill replica that serves the highest rate within the limit on TTFT.

    `layout` indexes the layouts, `prompts` counts prompts per data-parallel rank and pass. `usable`
    [requests/s] is the rate of each of 1, 2, ... such replicas within the limit and within the capacity of
    their links.
    """

    chips: int
    layout: int
    prompts: int
    time: PassTime
    late: float
    seats: float
    rate: float
    usable: Array


# Figures of a prefill pool that a `Reader` keeps.
_FIGURES = ("late", "seats", "rate")


def _select_rows(pool: Prefill, index: Any) -> Prefill:
    """Return the pool with the rows `index` of its flattened times and rates."""
    shape = np.shape(pool.rate)

    def rows(column: Number) -> Array:
        column_rows: Array = np.broadcast_to(column, shape).reshape(-1)[index]
        return column_rows

    pass_times = {f.name: rows(getattr(pool.time, f.name)) for f in fields(PassTime)}
    figures: dict[str, Any] = {name: rows(getattr(pool, name)) for name in _FIGURES}
    return replace(pool, time=PassTime(**pass_times), **figures)


def best_readers(case: PlanProblem, table: Layout) -> list[Reader]:
    """Return the best prefill layout and pass of each replica size, for each level of the targets.

    The best is taken for one replica and for as many as fit on the chips. A size is left out where a smaller
    one, or several smaller ones, prefill as much on the same chips.

    Args:
        case: Plan problem.
        table: Layouts as one layout of arrays.

    Returns:
        Prefill replicas by level and size, smallest first.
    """
    maximum = max(1.0, LARGEST_PASS // fresh_tokens(case.workload))
    prompts = batches(maximum, per_octave=1)
    prompts = prompts[prompts <= maximum]
    wide = shaped(table, 1)
    pool = prefill_pool(case.model, case.prefill.system, case.workload, layout=wide, prompts=prompts[None, :], **case.settings)
    shape = np.shape(pool.rate)
    rows = math.prod(shape)

    # Rows of all levels follow each other.
    by_level = [replace(case, slo=level) for level in case.levels] or [case]
    loosest = max(by_level, key=lambda level: level.slo.ttft)
    levels = [(level, min(level.slo.tpot, UNKNOWN)) for level in by_level]
    levels += [(loosest, tpot) for tpot in _shorter_tpots(loosest, wide)]
    aims = [pass_limit(level, wide, wide, tpot, effective_targets(level, wide, wide)[1]) for level, tpot in levels]
    limit = np.concatenate([np.broadcast_to(aim, shape).reshape(-1) for aim in aims])
    links, chips, replicas = (
        np.broadcast_to(x, shape).reshape(-1) for x in (moving(case, wide).max_rate, wide.chips, wide.replicas)
    )

    def usable(index: Array, replica_counts: Array) -> Array:
        if not len(index):
            return np.zeros(0)
        part = _select_rows(pool, index % rows)
        highest_load = within_limit(part, limit[index], replica_counts).most_utilised
        capacity: Array = np.minimum(part.rate * highest_load, links[index % rows])
        return capacity

    runnable = np.logical_and(pool.memory.fits, runs(case.prefill, wide, "prefill"))
    highest = np.where(runnable, np.minimum(pool.rate * MOST_UTILISED, links.reshape(shape)), 0.0).reshape(-1)
    sizes = np.concatenate([chips + level * (1 + np.max(chips)) for level in range(len(levels))])
    highest, replicas = np.tile(highest, len(levels)), np.tile(replicas, len(levels))
    best = distinct(
        np.concatenate([_most_usable(pool, highest, sizes, counts, limit, usable) for counts in (replicas, 1 + 0 * replicas)])
    )

    # The rate per replica depends smoothly on their number: evaluate a grid and interpolate.
    max_replicas = [int(case.prefill.used // chips[index % rows]) for index in best]
    replica_grids = [
        np.append(numbers[numbers < maximum], maximum) for maximum in max_replicas for numbers in [batches(maximum)]
    ]
    usable_rates = usable(
        np.repeat(best, [len(numbers) for numbers in replica_grids]), np.concatenate([*replica_grids, best[:0]])
    )
    readers: list[list[Reader]] = [[] for _ in levels]
    best_pool = _select_rows(pool, best % rows)
    for row, (index, numbers) in enumerate(zip(best, replica_grids, strict=True)):
        rates, usable_rates = usable_rates[: len(numbers)], usable_rates[len(numbers) :]
        layout, column = (int(x) for x in np.unravel_index(index % rows, shape))
        rates = np.interp(np.arange(1, numbers[-1] + 1), numbers, rates)
        reader = Reader(
            chips=int(chips[index % rows]),
            layout=layout,
            prompts=int(prompts[column]),
            time=PassTime(**{f.name: float(getattr(best_pool.time, f.name)[row]) for f in fields(PassTime)}),
            **{name: float(getattr(best_pool, name)[row]) for name in _FIGURES},
            usable=rates,
        )
        of_level = readers[index // rows]
        if not any(_replaces(earlier, reader, case.prefill.system.scale_up.size) for earlier in of_level):
            of_level.append(reader)
    return [reader for of_level in readers for reader in of_level]


def _shorter_tpots(case: PlanProblem, layouts: Layout) -> list[float]:
    """Return times per token [s] of a faster decode pool than the limit or a usual one, which leave prefill more time."""
    steps = float(np.max(answer_tokens(case.workload, layouts, case.engine, case.speculation)))
    longest = min(case.slo.tpot, UNKNOWN)
    return [longest / 2**n for n in range(1, HALVES + 1) if steps * longest / 2 ** (n - 1) > NOTICEABLE * case.slo.ttft]


def _most_usable(
    pool: Prefill, highest: Array, sizes: Array, replicas: Array, limit: Array, usable: Callable[[Array, Array], Array]
) -> Array:
    """Return the row index of the highest rate of each size and level, for `replicas` replicas.

    `highest` is the rate of each row without a limit, 0 where it cannot run. Only rows that may beat the best
    rate so far are evaluated. The rows of the pool repeat for each level.
    """
    tops = _best_of_each(sizes, highest)
    group = np.searchsorted(sizes[tops], sizes)
    usable_rates = np.zeros(len(highest))
    usable_rates[tops] = np.where(highest[tops] > 0, usable(tops, replicas[tops]), 0.0)
    least = usable_rates[tops]

    # The most promising challengers of each size are evaluated first: their rates rule out most of the others.
    challengers = np.nonzero(highest > least[group])[0]
    order = challengers[np.lexsort((-highest[challengers], group[challengers]))]
    first_of_group = np.searchsorted(group[order], group[order])
    is_early = np.arange(len(order)) - first_of_group < FIRST_CHALLENGERS
    for part in (np.sort(order[is_early]), np.sort(order[~is_early])):
        challengers = part[highest[part] > least[group[part]]]
        if len(challengers):
            rows = _select_rows(pool, challengers % math.prod(np.shape(pool.rate)))
            seconds = first_token(rows, least[group[challengers]] / rows.rate, replicas[challengers])
            challengers = challengers[seconds <= limit[challengers]]
        usable_rates[challengers] = usable(challengers, replicas[challengers])
        np.maximum.at(least, group[challengers], usable_rates[challengers])
    best = _best_of_each(sizes, usable_rates)
    return best[usable_rates[best] > 0]


def _best_of_each(sizes: Array, values: Array) -> Array:
    """Return the index of the highest value of each size; of equals the first."""
    order = np.lexsort((-values, sizes))
    return order[np.unique(sizes[order], return_index=True)[1]]


def _replaces(small: Reader, large: Reader, domain: Number) -> bool:
    """Whether smaller replicas fit on the chips of larger ones and prefill as much."""
    if not _finds_place(small.chips, large.chips, domain):
        return False
    ratio = large.chips // small.chips
    return bool(np.all(ratio * small.usable[ratio - 1 :: ratio][: len(large.usable)] >= large.usable))


# --- decode replicas ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoders:
    """The decode replicas of one size that no other of that size beats: columns.

    Columns of one shape. `rate` is that with all of `batch` in flight, `max_rate` that of the links for
    incoming caches [requests/s per replica]. `load` is that of `load_shares`.
    """

    chips: int
    layout: Any
    batch: Any
    tpot: Any
    rate: Any
    max_rate: Any
    load: Any
    memory: Any


# Columns of `_Decoders`.
DECODED = ("layout", "batch", "tpot", "rate", "max_rate", "load", "memory")


def _best_decoders(case: PlanProblem, table: Layout, coarse: State) -> list[_Decoders]:
    """Return the decode layouts and batches that are not beaten in speed and rate.

    They are compared with others of their size and with several smaller ones on the same chips. In addition
    to the batches of a grid, the largest batch within the limits is evaluated.
    """
    wide = shaped(table, 1)
    grid = batch_grid(wide)
    load = load_shares(coarse.tpot, grid)
    top, top_load = _largest(case, wide, grid, coarse, load)
    fine = steady_state(case, DISAGGREGATED, wide, top)

    def both(first: Number, second: Number) -> Array:
        return np.concatenate([np.broadcast_to(first, grid.shape), np.broadcast_to(second, top.shape)], axis=1)

    sequences, loaded = both(grid, top), both(load, top_load)
    tpot, rate = both(coarse.tpot, fine.tpot), both(coarse.rate, fine.rate)
    used = both(*(state.memory.used / state.memory.capacity for state in (coarse, fine)))
    fits = both(coarse.memory.fits, fine.memory.fits)
    max_rates = np.broadcast_to(moving(case, table).max_rate, np.shape(table.chips))
    good = fits & (rate > 0) & (loaded * in_flight(sequences, 1) <= MOST_LOADED) & runs(case, wide, "decode")
    if not case.front and case.sure is None:
        good &= tpot <= case.slo.tpot / case.slack * (1 + 1e-9)

    # By size, smallest first, so that larger replicas are compared with the smaller ones that were kept.
    decoders: list[_Decoders] = []
    for size in distinct(table.chips):
        rows = np.nonzero(table.chips == size)[0]
        m, b = np.nonzero(good[rows])
        if not len(m):
            continue
        keep = pareto(-tpot[rows][m, b], rate[rows][m, b])
        index = rows[m[keep]], b[keep]
        columns = {
            "layout": index[0],
            "batch": sequences[index],
            "tpot": tpot[index],
            "rate": rate[index],
            "memory": used[index],
        }
        columns |= {"max_rate": max_rates[index[0]], "load": loaded[index]}
        is_kept = np.ones(len(keep), dtype=bool)
        for small in decoders:
            if _finds_place(small.chips, int(size), case.system.scale_up.size):
                is_kept &= ~_beaten(columns["tpot"], columns["rate"] / size, small)
        if np.any(is_kept):
            decoders.append(_Decoders(chips=int(size), **{name: column[is_kept] for name, column in columns.items()}))
    return decoders


def _largest(case: PlanProblem, wide: Layout, grid: Array, state: State, load: Array) -> tuple[Array, Array]:
    """Return the largest batch of each layout within the limits, and its load: (n, 1).

    The limits are those on TPOT and memory. The batch is interpolated between batches of the grid, in
    logarithms, on lines that lie above the curve of the times.
    """
    aim = effective_targets(case, wide, wide)[0]
    over = np.log(np.maximum(state.tpot / aim, state.memory.used / state.memory.capacity))
    last = np.clip(np.sum(np.logical_and.accumulate(over <= 0, axis=1), axis=1, keepdims=True) - 1, 0, grid.shape[1] - 2)
    (low, high), (size, larger), (load_before, load_after) = (
        (np.take_along_axis(x, last, 1), np.take_along_axis(x, last + 1, 1)) for x in (over, grid.astype(np.float64), load)
    )
    rising = (low < 0) & (high > low)
    share = np.where(rising, np.clip(-low / np.where(rising, high - low, 1.0), 0.0, 1.0), 0.0)
    unit = wide.dp * wide.microbatches
    batch = np.minimum(size * (larger / size) ** share, case.slots)
    batch = np.maximum(np.floor(batch / unit) * unit, size)
    return batch.astype(np.int64), load_before + share * (load_after - load_before)


def _finds_place(small: int, large: int, domain: Number) -> bool:
    """Whether replicas of `small` chips fit on the chips of a larger replica."""
    return large % small == 0 and bool(large <= domain or small > domain or domain % small == 0)


def _beaten(tpot: Array, per_chip: Array, small: _Decoders) -> Array:
    """Whether smaller replicas on the same chips match a larger one in speed and rate."""
    order = np.argsort(small.tpot)
    best_rates = np.maximum.accumulate(small.rate[order]) / small.chips
    # Number of smaller replicas that are at least as fast.
    slower = np.searchsorted(small.tpot[order], tpot, side="right")
    beaten: Array = (slower > 0) & (best_rates[slower - 1] >= per_chip)
    return beaten


def replica_counts(case: PlanProblem, prefill_chips: int, decode_chips: int) -> tuple[Array, Array]:
    """Return the numbers of prefill and decode replicas that fit together on the chips of a scale-up domain or of all.

    Args:
        case: Plan problem; symmetric domains have the same replicas each.
        prefill_chips: Chips of a prefill replica.
        decode_chips: Chips of a decode replica.

    Returns:
        Numbers of prefill replicas in rising order, and numbers of decode replicas. Two systems have one pair: all replicas
        that fit on each.
    """
    domain = case.system.scale_up.size
    if case.prefill_system is None:
        domains = case.used // int(domain) if case.symmetric_domains else 1
        return pairs(float(domain), case.used // domains, prefill_chips, decode_chips)
    prefill_count = fitting_replicas(case.prefill_system.scale_up.size, case.prefill_chips, prefill_chips)
    decode_count = fitting_replicas(domain, case.chips, decode_chips)
    counts = np.array([[prefill_count], [decode_count]], dtype=np.int64)[:, : min(prefill_count, decode_count, 1)]
    return counts[0], counts[1]


def _matched(case: PlanProblem, readers: list[Reader], decoders: list[_Decoders], layouts: Layout) -> tuple[Table, Array]:
    """Divide the chips between prefill and decode replicas for the highest rate.

    Each pair of sizes is matched. The second result is the index of the prefill replica of each row.
    """
    # All domains get the same layout where they are symmetric.
    domains = case.used // int(case.system.scale_up.size) if case.symmetric_domains else 1
    rows = np.array([len(pool.rate) for pool in decoders], dtype=np.int64)
    starts = np.cumsum(rows) - rows
    sizes = [(which, size) for which in range(len(readers)) for size in range(len(decoders))]
    fits = [replica_counts(case, readers[which].chips, decoders[size].chips) for which, size in sizes]
    firsts = np.cumsum([0, *(len(pool.usable) for pool in readers[:-1])])
    every = np.concatenate([pool.usable for pool in readers] or [np.zeros(0)])
    placed = [number for number, (counts, _) in enumerate(fits) if len(counts)]
    if not placed:
        return joined(DISAGGREGATED, layouts, []), np.zeros(0, dtype=np.int64)

    # Split the pairs into parts that fit the cache of a core.
    elements = np.array([len(fits[number][0]) * rows[sizes[number][1]] for number in placed])
    cuts = np.searchsorted(np.cumsum(elements) // AT_ONCE, np.arange(1, int(elements.sum()) // AT_ONCE + 1))
    columns = {name: np.concatenate([getattr(pool, name) for pool in decoders]) for name in DECODED}
    reader_index, decoder_index = (np.array(column) for column in zip(*sizes, strict=True))
    matches: list[tuple[Array, ...]] = []
    for part in np.split(np.array(placed), cuts):
        if not len(part):
            continue
        placements = [len(fits[number][0]) for number in part]
        # The pair of sizes of each pair of replica counts.
        pair_index = np.repeat(part, placements)
        counts, replicas = (domains * np.concatenate([fits[number][side] for number in part]) for side in (0, 1))
        reader, decoder = reader_index[pair_index], decoder_index[pair_index]
        usable = counts * every[firsts[reader] + counts - 1]
        # Each pair of counts is combined with each row of its decode replicas.
        pair = np.repeat(np.arange(len(pair_index)), rows[decoder])
        row = starts[decoder][pair] + np.arange(len(pair)) - (np.cumsum(rows[decoder]) - rows[decoder])[pair]
        rate, batch, max_rate, load = (columns[name][row] for name in ("rate", "batch", "max_rate", "load"))
        served = delivered(rate, batch, replicas[pair], max_rate)
        steady = load * in_flight(batch, replicas[pair]) <= MOST_LOADED
        matched = np.minimum(usable[pair], np.where(steady, served, 0.0))

        # Keep the best pair of counts for each decode row of each pair of sizes.
        best, start = [], 0
        for number, pairs_ in zip(part, placements, strict=True):
            wide = int(rows[sizes[number][1]])
            first = np.argmax(matched[start : start + pairs_ * wide].reshape(pairs_, wide), axis=0)
            best.append(start + first * wide + np.arange(wide))
            start += pairs_ * wide
        best_rows = np.concatenate(best)
        matches.append(
            (reader[pair][best_rows], counts[pair][best_rows], replicas[pair][best_rows], row[best_rows], matched[best_rows])
        )
    which, counts, replicas, row, rate = (np.concatenate(column) for column in zip(*matches, strict=True))

    def decode_column(name: str) -> Array:
        selection: Array = columns[name][row]
        return selection

    def prefill_column(name: str) -> Array:
        selection: Array = np.array([getattr(reader, name) for reader in readers])[which]
        return selection

    reading = counts * prefill_column("chips")
    serving = replicas * np.repeat([pool.chips for pool in decoders], rows)[row]
    table = Table(
        mode=DISAGGREGATED,
        layouts=layouts,
        layout=decode_column("layout"),
        batch=decode_column("batch"),
        chunk=0 * row,
        replicas=replicas,
        prefill_layout=prefill_column("layout"),
        prefill_prompts=prefill_column("prompts"),
        prefill_replicas=counts,
        tpot=decode_column("tpot"),
        # `_first_tokens` replaces the zeros.
        ttft=0.0 * rate,
        rate=rate,
        utilisation=rate / (counts * prefill_column("rate")),
        input_share=reading / (reading + serving),
        memory=decode_column("memory"),
    )
    return table, which
