"""Shapes of pipelines, steps of equal stages, and what was published of each schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steptime.training.schedule_timeline import PipelineRun, simulate_step
from steptime.training.schedules.schedule import Schedule, known_schedules
from steptime.training.schedules.work_order import Order

NAMES = ("1f1b", "dualpipe", "dualpipev", "gpipe", "interleaved", "v-half", "v-min", "zb-h1", "zb-h2", "zbv")
SHAPES = tuple((p, m, v) for p in (2, 3, 4, 6, 8) for m in (p, 2 * p, 4 * p, 8 * p) for v in (1, 2, 3))
FEW = tuple((p, m, v) for p in (2, 3, 4, 5, 8) for m in (1, 2, 3, 5, 7, 12) for v in (1, 2, 3))

# Idle time of a step and peak in flight where forward, gradients of inputs and gradients of weights take 1 each, b = 2.
PUBLISHED_IDLE: dict[str, Callable[[int, int, int], float]] = {
    "gpipe": lambda p, m, v: (p - 1) * 3,  # arXiv 1811.06965: (p-1)/(m+p-1) of the step
    "1f1b": lambda p, m, v: (p - 1) * 3,  # arXiv 2104.04473, section 2.2.1
    "interleaved": lambda p, m, v: (p - 1) * 3 / v,  # arXiv 2104.04473, section 2.2.2
    "zb-h1": lambda p, m, v: (p - 1) * (1 + 1 - 1),  # arXiv 2401.10241, table 2: T_F + T_B - T_W
    "zb-h2": lambda p, m, v: (p - 1) * (1 + 1 - 2),  # the same: T_F + T_B - 2 T_W
    "zbv": lambda p, m, v: 0,  # README of sail-sg/zero-bubble-pipeline-parallelism
    "dualpipe": lambda p, m, v: (p / 2 - 1) * (3 + 2 - 3),  # README of deepseek-ai/DualPipe, F&B = 3
    "dualpipev": lambda p, m, v: (2 * p / 2 - 1) * (3 + 2 - 3) / 2,  # the same: PP = 2p stages, half as long
}
PUBLISHED_IN_FLIGHT: dict[str, Callable[[int, int, int], float]] = {
    "gpipe": lambda p, m, v: m,
    "1f1b": lambda p, m, v: min(m, p),  # arXiv 2104.04473
    "interleaved": lambda p, m, v: min(m, p * (1 + (p - 1) / (p * v))),  # arXiv 2205.05198, section 4.2.3
    "zb-h1": lambda p, m, v: min(m, p),  # arXiv 2401.10241, table 2
    "zb-h2": lambda p, m, v: min(m, 2 * p - 1),  # the same
    "zbv": lambda p, m, v: min(m, p),  # README of sail-sg/zero-bubble-pipeline-parallelism: 1x of 1F1B
    # huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory: (p+2)//2, (p+4)//3
    "v-half": lambda p, m, v: min(m, (p + 2) // 2),
    "v-min": lambda p, m, v: min(m, (p + 4) // 3),
    "dualpipe": lambda p, m, v: p + 1,  # README of deepseek-ai/DualPipe: PP + 1
    "dualpipev": lambda p, m, v: (2 * p + 1) / 2,  # the same: PP + 1 halves
}


# Pairs of a forward and a backward pass on the device with most of them.
PAIRS: dict[str, Callable[[Any, Any], Any]] = {"dualpipe": lambda p, m: m - p - 1, "dualpipev": lambda p, m: m - p - 0.5}
# Schedules whose idle time assumes an optimizer that does not wait for all stages.
POST_VALIDATED = ("zb-h2", "zbv")


def closed_step(
    schedule: Schedule,
    p: Any,
    m: Any,
    v: Any,
    f: Any,
    b: Any,
    w: Any,
    fb: Any = None,
    *,
    mean_over_slowest: float = 1.0,
    hop: float = 0.0,
    waits: bool = True,
) -> Any:
    """Return the time of a step by the closed forms.

    mean_over_slowest: mean time of the other devices over that of the slowest; waits: whether the optimizer waits for all
    stages.
    """
    overlapped = 0.0 if fb is None else PAIRS[schedule.name](p, m) * (f + b - fb)
    idle = schedule.idle(p, m, v, f, b, w, fb) + (schedule.stagger(p, v, f, b, w) if waits else 0.0)
    return m * (f + b) - overlapped + mean_over_slowest * idle + hop * schedule.hops(p, m, v)


def legal(name: str, shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> list[tuple[int, int, int]]:
    """Return the shapes that a schedule can run, and at least one."""
    found = [shape for shape in shapes if known_schedules()[name].legal(*shape)]
    assert found, name
    return found


def enough(name: str, p: int, m: int) -> bool:
    """Whether a step has the micro-batches from which the published formulas hold."""
    return m >= {"zb-h2": 2 * p - 1, "zbv": 2 * p - 1}.get(name, p)


def equal(schedule: Schedule, p: int, m: int, v: int, f: Any, b: Any, w: Any, **more: Any) -> PipelineRun:
    """Walk through a step of equal stages; f, b and w are times of a whole device and may be arrays (n,)."""
    order = schedule.order(p, m, v)
    share = p / order.paths.shape[1]
    chunks = [np.asarray(t, dtype=float)[..., None, None] * share for t in (f, b, w)]
    more = {name: np.asarray(value)[..., None, None] * (share if name == "pair" else 1) for name, value in more.items()}
    return simulate_step(order, *chunks, **more)


def by_hand(order: Order, times: Any, hop: float = 0.0) -> tuple[dict[Any, float], float]:
    """Return when each pass ends and the whole: dictionaries and repeated passes over rows, nothing shared with the walk.

    times: (kind, device, chunk) -> seconds, of F, I (gradients of inputs) and W.
    """
    stage = {(lane, d, c): s for lane, path in enumerate(order.paths.tolist()) for s, (d, c) in enumerate(path)}
    lanes, stages, _ = order.paths.shape
    rows: dict[int, list[tuple[int, ...]]] = {}
    columns = (order.device, order.kind, order.chunk, order.micro, order.back_chunk, order.back_micro)
    for d, *item in zip(*(column.tolist() for column in columns), strict=True):
        rows.setdefault(d, []).append(tuple(item))
    ends: dict[Any, float] = {}
    free = dict.fromkeys(rows, 0.0)

    def before(kind: str, d: int, chunk: int, micro: int) -> tuple[Any, int]:
        lane = micro * lanes // order.microbatches
        here = stage[lane, d, chunk] + (-1 if kind == "F" else 1)
        if kind == "F" and here < 0:
            return None, d
        if kind == "I" and here >= stages:
            return ("F", d, chunk, micro), d
        other, its = order.paths[lane, here].tolist()
        return (kind, other, its, micro), other

    while any(rows.values()):
        moved = False
        for d, row in rows.items():
            while row:
                kind, chunk, micro, back, behind = row[0]
                parts = {0: "F", 1: "IW", 2: "I", 3: "W", 4: "FIW"}[kind]
                named = [(part, *((back, behind) if kind == 4 and part != "F" else (chunk, micro))) for part in parts]
                needs = [before(part, d, c, i) for part, c, i in named if part in "FI"]
                if any(need is not None and need not in ends for need, _ in needs):
                    break
                ready = [ends[need] + hop * (other != d) for need, other in needs if need is not None]
                free[d] = max([free[d], *ready]) + sum(times(part, d, c) for part, c, _ in named)
                ends |= {(part, d, c, i): free[d] for part, c, i in named}
                row.pop(0)
                moved = True
        assert moved, "devices wait for one another"
    return ends, max(free.values())
