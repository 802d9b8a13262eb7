"""The best of the layouts that a search found: each tuned in batch and chunk, then the cheapest of them.

A search looks at batches on a coarse grid, where layouts tie that are not equal: those nearest to the best are all refined
before one is chosen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steptime.hardware import Number
from steptime.search import AGGREGATED, Case, Layout, chunk_sizes, prefill_of, state_of
from steptime.serving import MOST_UTILISED, Prefill, State

AS_CHEAP = 0.005  # costs this near are the same
FINALISTS = 6  # layouts that are refined before one is chosen


def within(case: Case, state: State) -> Number:
    """Whether a state meets the limits and fits."""
    return (
        (state.tpot <= case.slo.tpot) & (state.ttft <= case.slo.ttft) & state.memory.fits & (state.utilisation <= MOST_UTILISED)
    )


def refined(case: Case, layout: Layout) -> Layout:
    """Return the layout with the batch (in whole sequences per group and micro-batch) and the chunk that serve most.

    Of batches that cost the same to within half a percent, the fastest for the user.
    """
    unit = int(layout.mapping.dp * layout.mapping.microbatches)
    middle = max(1, round(layout.batch / unit))
    low, high = max(1, int(middle / 1.5)), int(middle * 1.5) + 1
    batch = unit * np.unique(np.linspace(low, high, min(256, high - low + 1)).astype(np.int64))
    sizes = chunk_sizes(case.workload) if layout.mode == AGGREGATED else np.zeros(1, dtype=np.int64)
    state = state_of(case, layout, batch[:, None], sizes[None, :])
    rate = state.rate * layout.mapping.replicas
    prefill = prefill_of(case, layout)
    if prefill is not None and layout.prefill_mapping is not None:
        rate = np.minimum(rate, prefill.rate * prefill.most_utilised * layout.prefill_mapping.replicas)
    rate = np.where(within(case, state), rate, -np.inf)
    most = np.max(rate)
    if not np.isfinite(most):
        return layout
    as_cheap = np.where(rate >= most * (1 - AS_CHEAP), state.tpot, np.inf)
    i, j = np.unravel_index(int(np.argmin(as_cheap)), rate.shape)
    return replace(layout, batch=int(batch[i]), chunk=int(sizes[j]))


def matched_rate(layout: Layout, state: State, prefill: Prefill | None) -> tuple[Number, Number]:
    """Return the requests per second of the whole deployment, and how busy its prompt queue is."""
    rate = state.rate * layout.mapping.replicas
    if prefill is None or layout.prefill_mapping is None:
        return rate, state.utilisation
    can = prefill.rate * layout.prefill_mapping.replicas
    rate = np.minimum(rate, can * prefill.most_utilised)
    return rate, rate / can


def best(case: Case, candidates: list[Layout], most: int = FINALISTS) -> list[Layout]:
    """Refine the first `most` candidates that differ in more than batch and chunk, and return them, the cheapest first.

    Of layouts that cost the same to within half a percent, the fastest for the user comes first.
    """
    distinct: dict[object, Layout] = {}
    for candidate in candidates:
        if candidate.same not in distinct and len(distinct) < most:
            distinct[candidate.same] = candidate
    found = []
    for layout in (refined(case, candidate) for candidate in distinct.values()):
        state = state_of(case, layout, layout.batch, max(layout.chunk, 1))
        found.append((float(matched_rate(layout, state, prefill_of(case, layout))[0]), float(state.tpot), layout))
    highest = max(rate for rate, _, _ in found)
    found.sort(key=lambda one: (one[1], -one[0]) if one[0] >= highest * (1 - AS_CHEAP) else (np.inf, -one[0]))
    return [layout for _, _, layout in found]
