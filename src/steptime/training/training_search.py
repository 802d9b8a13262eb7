"""All legal layouts of a training step, evaluated at once as arrays: the fastest that fits.

Numbers (tp, pp, cp, ep, dp, micro-batch, virtual stages) lie on one axis; recomputation, sharding and schedule are words, for
each of which the arrays are evaluated again, with what they do not change kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, divisors
from steptime.training.layer_profile import sheets
from steptime.training.layer_time import Passes, Terms, layer_passes
from steptime.training.schedules.schedule import known_schedules, schedule_named
from steptime.training.stage_balance import SLOTS, chunks_possible
from steptime.training.training_job import TrainingJob
from steptime.training.training_layout import WAYS, TrainingLayout
from steptime.training.training_memory import training_memory
from steptime.training.training_rules import kv_heads_of, widths_of
from steptime.training.training_stack import TrainingEngine
from steptime.training.training_step import StageTimes, held_by_stage, stage_times, step_seconds

LARGEST_TP: Final = 64  # where a scale-up domain is larger
MICRO_BATCHES: Final = (1, 2, 4, 8, 16)
CONTEXT_WAYS: Final = (1, 2, 4, 8, 16, 32, 64)
LEAST_TOKENS: Final = 1024  # of a sequence on one rank of context parallelism
SHARDED: Final = ("zero1", "zero3")
MARGIN: Final = 0.98  # of a chip's memory that a search fills: allocators leave gaps
DENSE: Final = ("none", "norms", "mlp", "norms+mlp", "full")
SPARSE: Final = ("none", "norms+moe_act", "mla_up_proj+moe_act", "norms+mla_up_proj+moe_act+shared_experts", "moe", "full")
SCHEDULES: Final = ("1f1b", "interleaved", "zb-h1")  # that a search tries where a stack does not say which it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Layouts of one word for each of recomputation, sharding and schedule: seconds of a step, bytes used, whether they fit."""

    layout: TrainingLayout
    seconds: Array
    used: Array
    fits: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def at(self, place: int) -> TrainingLayout:
        """Return one of them."""
        numbers: Any = {name: int(np.broadcast_to(getattr(self.layout, name), self.seconds.shape)[place]) for name in WAYS}
        return replace(self.layout, **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search found: all candidates, by words, and how many there are."""

    groups: tuple[Candidates, ...]

    @property
    def count(self) -> int:
        """Layouts evaluated."""
        return sum(len(group) for group in self.groups)

    def fastest(self, *, fitting: bool = True) -> tuple[TrainingLayout, float] | None:
        """Return the fastest layout with its seconds, None where none fits."""
        best: tuple[TrainingLayout, float] | None = None
        for group in self.groups:
            times = np.where(group.fits, group.seconds, np.inf) if fitting else group.seconds
            index = int(np.argmin(times))
            if np.isfinite(times[index]) and (best is None or times[index] < best[1] * (1 - 1e-9)):
                best = group.at(index), float(times[index])
        return best

    def smallest(self) -> tuple[TrainingLayout, float]:
        """Return the layout that takes least memory, with its bytes."""
        smallest_layouts = [(float(group.used.min()), group, int(np.argmin(group.used))) for group in self.groups]
        used_bytes, group, index = min(smallest_layouts, key=lambda choice: choice[0])
        return group.at(index), used_bytes


def search(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, *, chips: int, slower: float = 1.0,
    fixed: Mapping[str, Any] | None = None,
) -> Searched:  # fmt: skip
    """Return all legal layouts on `chips` chips; fixed: values of axes that are given."""
    given = dict(fixed or {})
    sparse = model.routed
    again = _words(given, "recompute", engine.recomputes, SPARSE if sparse else DENSE)
    sharded = _words(given, "sharding", engine.shardings, SHARDED)
    orders = [schedule_named(name).name for name in _words(given, "schedule", engine.schedules, SCHEDULES)]
    groups: list[Candidates] = []
    frame = proposed(model, system, job, chips, given)
    for recompute in dict.fromkeys(again):
        stages: dict[tuple[int, int], Any] = {}
        words = {"recompute": recompute, "layers": given.get("layers", "")}
        for order in orders:
            schedule = known_schedules()[order]
            alike = schedule.virtual, schedule.copies
            if alike not in stages:
                numbers = with_virtual(frame, model.depth, given, schedule.virtual)
                stages[alike] = _prepared(model, job, system, engine, numbers, words=words | {"schedule": order})
            numbers, times, held = stages[alike]
            for sharding in sharded:
                groups += _evaluated(
                    model, job, system, engine, numbers, times, held, slower,
                    words=words | {"sharding": sharding, "schedule": order, "sharding_group": given.get("sharding_group", 0)},
                )  # fmt: skip
    return Searched(groups=tuple(groups))


def _words(given: Mapping[str, Any], name: str, own: tuple[str, ...], usual: tuple[str, ...]) -> tuple[str, ...]:
    return (given[name],) if name in given else own or usual


def proposed(model: Model, system: System, job: TrainingJob, chips: int, given: Mapping[str, Any]) -> Array:
    """Return the legal (tp, pp, cp, ep, etp, dp, micro-batch) of one chunk a stage, a row each."""
    domain = int(min(system.scale_up.size, chips, LARGEST_TP))
    whole = int(min(system.scale_up.size, 1 << 20))  # a group of ranks lies in a domain, so that it divides it
    kv = kv_heads_of(model)
    able = [
        t for t in divisors(model.heads)
        if t <= domain and not whole % t and (not kv % t or not t % kv) and all(not width % t for width in widths_of(model))
    ]  # fmt: skip
    tps = [given["tp"]] if "tp" in given else able
    cps = (
        [given["cp"]] if "cp" in given else [c for c in CONTEXT_WAYS if job.seq % (2 * c) == 0 and job.seq / c >= LEAST_TOKENS]
    )
    cps = cps or [1]
    pps = [given["pp"]] if "pp" in given else [p for p in divisors(chips) if p <= chunks_possible(model)]
    rows = []
    experts = max((op.experts for layer, _ in model.layers for op in layer.ops if op.rows == "routed"), default=0)
    etps, group = [given.get("etp", 1)], int(given.get("sharding_group", 0))
    for tp in tps:
        for cp in cps:
            for pp in pps:
                dp, left = divmod(chips, tp * cp * pp)
                if left or dp < 1 or ("dp" in given and given["dp"] != dp) or job.batch % dp:
                    continue
                if group and (group > dp * cp or dp * cp % group):
                    continue
                each = int(job.batch) // dp
                micros = [given["micro_batch"]] if "micro_batch" in given else MICRO_BATCHES
                ways = (
                    [given["ep"]] if "ep" in given else [e for e in divisors(experts) if e <= tp * cp * dp] if experts else [1]
                )
                for ep in ways:
                    for etp in etps:
                        if (tp * cp * dp) % (ep * etp):
                            continue
                        rows += [(tp, pp, cp, ep, etp, dp, mbs) for mbs in micros if each % mbs == 0]
    return np.array(rows, dtype=np.float64).reshape(-1, 7)


def with_virtual(frame: Array, depth: int, given: Mapping[str, Any], virtual: int) -> Array:
    """Return rows with virtual stages: as many as a schedule has; of one with any, those that deal the layers out evenly."""
    if virtual == 1:
        asked = given.get("virtual_stages", 1)
        return np.column_stack([frame, np.ones(len(frame))]) if asked == 1 else np.zeros((0, 8))
    parts = []
    for pp in np.unique(frame[:, 1]):
        rows = frame[frame[:, 1] == pp]
        even = (virtual,) if virtual else even_chunks(depth, int(pp))
        ways = [given["virtual_stages"]] if "virtual_stages" in given else [v for v in even if pp * v <= depth + SLOTS]
        parts += [np.column_stack([rows, np.full(len(rows), v)]) for v in ways if v > 1 and pp > 1]
    return np.vstack(parts) if parts else np.zeros((0, 8))


@lru_cache(maxsize=256)
def even_chunks(depth: int, pp: int) -> tuple[int, ...]:
    """Return the virtual stages with which all chunks have as many layers, embedding and head counted or not.

    >>> even_chunks(126, 16), even_chunks(80, 8)
    ((2, 4, 8), (2, 5, 10))
    """
    return tuple(v for v in range(2, (depth + SLOTS) // pp + 1) if not depth % (pp * v) or not (depth + SLOTS) % (pp * v))


def _layout(numbers: Array, words: Mapping[str, Any]) -> TrainingLayout:
    tp, pp, cp, ep, etp, dp, mbs, v = numbers.T
    return TrainingLayout(tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, dp=dp, micro_batch=mbs, virtual_stages=v, **words)


def _prepared(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, numbers: Array, *, words: Mapping[str, Any]
) -> tuple[Array, StageTimes | None, Any]:
    """Return what does not depend on sharding, nor on the schedule but by its virtual stages and copies of parameters.

    Layers are timed once for equal ways of a stage.
    """
    if not len(numbers):
        return numbers, None, None
    keys, inverse = np.unique(numbers[:, [0, 2, 3, 4, 6]], axis=0, return_inverse=True)
    tp, cp, ep, etp, mbs = keys.T
    alone = TrainingLayout(tp=tp, cp=cp, ep=ep, etp=etp, micro_batch=mbs, dp=1, recompute=words["recompute"])
    inverse = inverse.ravel()

    def spread(terms: Terms) -> Terms:
        return {name: np.broadcast_to(value, tp.shape)[inverse] for name, value in terms.items()}

    passes = [layer_passes(sheet, job, system, engine, alone) for sheet, _ in sheets(model)]
    wide = [
        Passes(spread(one.forward), spread(one.backward), np.broadcast_to(one.weights, tp.shape)[inverse]) for one in passes
    ]
    x = _layout(numbers, words)
    return numbers, stage_times(model, job, system, engine, x, wide), held_by_stage(model, x)


def _evaluated(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, numbers: Array, times: StageTimes | None, held: Any,
    slower: float, *, words: Mapping[str, Any],
) -> list[Candidates]:  # fmt: skip
    """Return the candidates of a schedule that can run them."""
    if times is None:
        return []
    x = _layout(numbers, words)
    m = job.batch / (x.dp * x.micro_batch)
    schedule = schedule_named(words["schedule"])
    alone = np.asarray(x.pp) == 1
    legal = np.where(alone, words["schedule"] == "1f1b", schedule.legal(x.pp, m, x.virtual_stages))
    if not legal.any():
        return []
    seconds = np.asarray(step_seconds(model, job, system, engine, x, slower=slower, stages=times, held=held).total)
    memory = training_memory(model, job, system, engine, x, microbatches=m)
    used = np.broadcast_to(memory.used, seconds.shape)
    kept = np.flatnonzero(legal)
    return [
        Candidates(layout=_layout(numbers[kept], words), seconds=seconds[kept], used=used[kept],
                   fits=(used <= MARGIN * memory.capacity)[kept])
    ]  # fmt: skip
