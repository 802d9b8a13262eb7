"""Search over all legal layouts of a training step for the fastest that fits.

All layouts are evaluated at once as arrays. Numbers (tp, pp, cp, ep, dp, micro-batch, virtual stages) are one axis.
Recomputation, sharding and schedule are words; the arrays are evaluated once per word. Results that do not depend on a word
are reused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from typing import Any, Final

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, divisors
from steptime.training.layer_profile import MODULES, STEM_LAYERS, layer_profiles, max_chunks
from steptime.training.layer_time import OVERLAPPING, Passes, Terms, layer_passes
from steptime.training.schedules.schedule import known_schedules, schedule_named
from steptime.training.training_evidence import (
    LAYOUT_ERROR,
    MEASURED,
    MEASURED_SCHEDULES_OF,
    is_measured_kind,
    unconventional_choices,
)
from steptime.training.training_job import DEGREES, TrainingJob, TrainingLayout
from steptime.training.training_memory import training_memory
from steptime.training.training_rules import feed_forward_widths, kv_head_count
from steptime.training.training_stack import TrainingEngine
from steptime.training.training_step import StageTimes, fullest_stage_parameters, stage_times, step_seconds

# Limit for scale-up domains that are larger.
LARGEST_TP: Final = 64
MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
# Largest micro-batch of a search: sequences, or tokens where sequences are short.
MOST_SEQUENCES_TOGETHER, MOST_TOKENS_TOGETHER = 16, 65_536
CONTEXT_DEGREES: Final = (1, 2, 4, 8, 16, 32, 64)
# Smallest part of a sequence on one context-parallel rank.
MIN_TOKENS_PER_RANK: Final = 1024
SHARDINGS_TRIED: Final = ("zero1", "zero3")
# Share of the memory of a chip that a search may fill; allocators leave gaps.
MEMORY_MARGIN: Final = 0.98
DENSE_RECOMPUTES: Final = ("none", "norms", "norms+activation", "mlp", "norms+mlp", "full")
MOE_RECOMPUTES: Final = (
    "none",
    "norms+moe_act",
    "mla_up_proj+moe_act",
    # DeepSeek-V3, arXiv 2412.19437, section 3.2.3.
    "norms+mla_up_proj+moe_act",
    "norms+mla_up_proj+moe_act+shared_experts",
    "moe",
    "full",
)
# Schedules of a search if the stack does not list its own; models with experts also have the one that hides their exchanges.
SCHEDULES: Final = ("1f1b", "interleaved", "zb-h1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Layouts with the same words for recomputation, sharding and schedule.

    seconds: per step. used: bytes on the fullest chip. fits: whether they fit. measured: whether measured runs cover layouts
    of their kind.
    """

    layout: TrainingLayout
    seconds: Array
    used: Array
    fits: Array
    measured: Array

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def choices(self) -> Array:
        """Choices of each layout beyond data parallelism."""
        return np.broadcast_to(unconventional_choices(self.layout), self.seconds.shape)

    def layout_at(self, index: int) -> TrainingLayout:
        """Return one of the layouts.

        Args:
            index: Index of the layout.

        Returns:
            Layout of plain numbers.
        """
        numbers: Any = {name: int(np.broadcast_to(getattr(self.layout, name), self.seconds.shape)[index]) for name in DEGREES}
        return replace(self.layout, **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended layout of a search.

    seconds: per step. measured: whether measured runs cover its kind. fastest: the fastest of all layouts, with its time.
    fastest_measured: whether runs cover the kind of the fastest. close: layouts with the same evidence that are about as fast.
    """

    layout: TrainingLayout
    seconds: float
    measured: bool
    fastest: tuple[TrainingLayout, float]
    fastest_measured: bool
    close: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """All layouts of a search, grouped by their words."""

    groups: tuple[Candidates, ...]

    @property
    def count(self) -> int:
        """Number of evaluated layouts."""
        return sum(len(group) for group in self.groups)

    def fastest(self, *, fitting: bool = True, measured: bool = False) -> tuple[TrainingLayout, float] | None:
        """Return the fastest layout with its time.

        Args:
            fitting: Whether only layouts that fit the memory count.
            measured: Whether only layouts of measured kinds count.

        Returns:
            Layout and seconds per step; None if nothing fits.
        """
        best: tuple[TrainingLayout, float] | None = None
        for group in self.groups:
            times = np.where((group.fits | (not fitting)) & (group.measured | (not measured)), group.seconds, np.inf)
            index = int(np.argmin(times))
            # A tie keeps the earlier, simpler words.
            if np.isfinite(times[index]) and (best is None or times[index] < best[1] * (1 - 1e-9)):
                best = group.layout_at(index), float(times[index])
        return best

    def recommended(self, evidence: str = MEASURED) -> Recommendation | None:
        """Return the most conventional of the layouts that are about as fast as the fastest.

        Args:
            evidence: "measured" for layouts of measured kinds if any of them fits, or "any".

        Returns:
            Layout with its time, the fastest of all layouts, and the number of layouts that are about as fast; None if
            nothing fits.
        """
        fastest = self.fastest()
        if fastest is None:
            return None
        is_measured = evidence == MEASURED and self.fastest(measured=True) is not None
        fastest_of_kind = self.fastest(measured=is_measured) or fastest
        limit = fastest_of_kind[1] * math.exp(LAYOUT_ERROR)

        # Of the layouts within the error of the fastest, take measured kinds, then the fewest choices; of these the fastest.
        best: tuple[bool, float, float, Candidates, int] | None = None
        close = 0
        for group in self.groups:
            is_close = group.fits & (group.measured | (not is_measured)) & (group.seconds <= limit)
            close += int(is_close.sum())
            choices = group.choices
            for index in np.flatnonzero(is_close):
                choice = not group.measured[index], float(choices[index]), float(group.seconds[index])
                if best is None or choice < best[:3]:
                    best = (*choice, group, int(index))
        assert best is not None
        return Recommendation(
            layout=best[3].layout_at(best[4]), seconds=best[2], measured=not best[0], fastest=fastest,
            fastest_measured=is_measured and fastest_of_kind[1] <= fastest[1] * (1 + 1e-9), close=close,
        )  # fmt: skip

    def smallest(self) -> tuple[TrainingLayout, float]:
        """Return the layout with the smallest memory.

        Returns:
            Layout, and bytes on its fullest chip.
        """
        smallest_layouts = [(float(group.used.min()), group, int(np.argmin(group.used))) for group in self.groups]
        used_bytes, group, index = min(smallest_layouts, key=lambda choice: choice[0])
        return group.layout_at(index), used_bytes


def search(
    model: Model, system: System, job: TrainingJob, engine: TrainingEngine, *, chips: int,
    fixed: Mapping[str, Any] | None = None,
) -> SearchResult:  # fmt: skip
    """Return all legal layouts on a number of chips.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        engine: Training stack.
        chips: Chips in total.
        fixed: Axes that are given, by the field names of `TrainingLayout`.

    Returns:
        Layouts with seconds and bytes.
    """
    fixed_axes = dict(fixed or {})
    sparse = model.routed
    recomputes = _word_choices(fixed_axes, "recompute", engine.recomputes, MOE_RECOMPUTES if sparse else DENSE_RECOMPUTES)
    if "recompute" not in fixed_axes:
        recomputes = tuple(existing_modules(model, words) for words in recomputes)
    shardings = _word_choices(fixed_axes, "sharding", engine.shardings, SHARDINGS_TRIED)
    default_schedules = (*SCHEDULES, *chain(*MEASURED_SCHEDULES_OF.values())) if sparse else SCHEDULES
    schedule_names = [
        schedule_named(name).name for name in _word_choices(fixed_axes, "schedule", engine.schedules, default_schedules)
    ]

    # Layer times depend on recomputation and on the stages of the schedule, not on the sharding: reuse them.
    groups: list[Candidates] = []
    degree_rows = legal_degrees(model, system, job, chips, fixed_axes)
    for recompute in dict.fromkeys(recomputes):
        stages: dict[tuple[int, int, bool], Any] = {}
        options = {"recompute": recompute, "layers": fixed_axes.get("layers", "")}
        for schedule_name in schedule_names:
            schedule = known_schedules()[schedule_name]
            stage_key = schedule.virtual, schedule.copies, schedule_name in OVERLAPPING
            if stage_key not in stages:
                layout_rows = add_virtual_stages(degree_rows, model.depth, fixed_axes, schedule.virtual)
                stages[stage_key] = _layer_times(
                    model, job, system, engine, layout_rows, options=options | {"schedule": schedule_name}
                )
            layout_rows, layer_times, parameters = stages[stage_key]
            for sharding in shardings:
                groups += _candidates(
                    model, job, system, engine, layout_rows, layer_times, parameters,
                    options=options | {"sharding": sharding, "schedule": schedule_name,
                                       "sharding_group": fixed_axes.get("sharding_group", 0)},
                )  # fmt: skip
    return SearchResult(groups=tuple(groups))


def _word_choices(
    fixed_axes: Mapping[str, Any], name: str, engine_words: tuple[str, ...], default_words: tuple[str, ...]
) -> tuple[str, ...]:
    return (fixed_axes[name],) if name in fixed_axes else engine_words or default_words


def existing_modules(model: Model, recompute: str) -> str:
    """Return a recomputation without the modules that no layer of the model has.

    Args:
        model: Model to train.
        recompute: Modules joined by +, or a word such as "full".

    Returns:
        The modules of the model joined by +; "none" if it has none of them.

    >>> import steptime as st
    >>> models = [st.load_model(name) for name in ("deepseek-v3", "qwen3-30b-a3b", "llama-3.1-8b")]
    >>> [existing_modules(model, "mla_up_proj+moe_act") for model in models]
    ['mla_up_proj+moe_act', 'moe_act', 'none']
    """
    profiles = [profile for profile, _ in layer_profiles(model)]
    modules = [
        module for module in recompute.split("+")
        if module not in MODULES or any(np.any(profile.module_bytes[module]) for profile in profiles)
    ]  # fmt: skip
    return "+".join(modules) or "none"


def legal_degrees(model: Model, system: System, job: TrainingJob, chips: int, fixed_axes: Mapping[str, Any]) -> Array:
    """Return the legal degrees of layouts without virtual stages.

    Args:
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        chips: Chips in total.
        fixed_axes: Axes of the layout that are given, by the field names of `TrainingLayout`.

    Returns:
        Rows of (tp, pp, cp, ep, etp, dp, micro-batch).
    """
    domain = int(min(system.scale_up.size, chips, LARGEST_TP))
    # A tensor-parallel group stays inside a scale-up domain, and its size divides the domain.
    domain_size = int(min(system.scale_up.size, 1 << 20))
    kv = kv_head_count(model)
    possible_tps = [
        t for t in divisors(model.heads)
        if t <= domain and not domain_size % t and (not kv % t or not t % kv)
        and all(not width % t for width in feed_forward_widths(model))
    ]  # fmt: skip
    possible_cps = [c for c in CONTEXT_DEGREES if job.seq % (2 * c) == 0 and job.seq / c >= MIN_TOKENS_PER_RANK] or [1]
    possible_pps = [p for p in divisors(chips) if p <= max_chunks(model)]
    experts = max((op.experts for layer, _ in model.layers for op in layer.ops if op.rows == "routed"), default=0)

    def choices(name: str, possible: Sequence[int]) -> Sequence[int]:
        return [fixed_axes[name]] if name in fixed_axes else possible

    most_sequences = max(MOST_SEQUENCES_TOGETHER, MOST_TOKENS_TOGETHER // job.seq)
    sizes = [job.least_micro_batch * size for size in MICRO_BATCHES]
    micro_batches = [size for size in sizes if size <= max(most_sequences, job.least_micro_batch)]

    # dp is the remaining factor of the chips; every combination that divides model and batch is a row.
    rows = []
    etp, group = fixed_axes.get("etp", 1), int(fixed_axes.get("sharding_group", 0))
    for tp, cp, pp in product(choices("tp", possible_tps), choices("cp", possible_cps), choices("pp", possible_pps)):
        dp, remainder = divmod(chips, tp * cp * pp)
        if remainder or dp < 1 or fixed_axes.get("dp", dp) != dp or job.batch % dp:
            continue
        if group and (group > dp * cp or dp * cp % group):
            continue
        possible_eps = [e for e in divisors(experts) if e <= tp * cp * dp] if experts else [1]
        for ep, micro_batch in product(choices("ep", possible_eps), choices("micro_batch", micro_batches)):
            if (tp * cp * dp) % (ep * etp) == 0 and int(job.batch) // dp % micro_batch == 0:
                rows.append((tp, pp, cp, ep, etp, dp, micro_batch))
    return np.array(rows, dtype=np.float64).reshape(-1, 7)


def add_virtual_stages(degree_rows: Array, depth: int, fixed_axes: Mapping[str, Any], virtual: int) -> Array:
    """Return the rows with virtual stages added.

    A schedule with a fixed number of virtual stages gets this number. A schedule with any number gets those that divide the
    layers evenly.

    Args:
        degree_rows: Rows of `legal_degrees`.
        depth: Layers of the model.
        fixed_axes: Axes of the layout that are given, by the field names of `TrainingLayout`.
        virtual: Virtual stages of the schedule; 0 for any number from 2.

    Returns:
        Rows of (tp, pp, cp, ep, etp, dp, micro-batch, virtual stages).
    """
    if virtual == 1:
        requested_vpp = fixed_axes.get("virtual_stages", 1)
        return np.column_stack([degree_rows, np.ones(len(degree_rows))]) if requested_vpp == 1 else np.zeros((0, 8))
    parts = []
    for pp in np.unique(degree_rows[:, 1]):
        rows = degree_rows[degree_rows[:, 1] == pp]
        even_counts = [v for v in ((virtual,) if virtual else even_chunks(depth, int(pp))) if pp * v <= depth + STEM_LAYERS]
        virtual_stages = [fixed_axes["virtual_stages"]] if "virtual_stages" in fixed_axes else even_counts
        parts += [np.column_stack([rows, np.full(len(rows), v)]) for v in virtual_stages if v > 1 and pp > 1]
    return np.vstack(parts) if parts else np.zeros((0, 8))


@lru_cache(maxsize=256)
def even_chunks(depth: int, pp: int) -> tuple[int, ...]:
    """Return the virtual stages with which all chunks have the same number of layers.

    Embedding and head count as layers or not.

    Args:
        depth: Layers of the model.
        pp: Pipeline stages.

    Returns:
        Virtual stages per device, from 2.

    >>> even_chunks(126, 16), even_chunks(80, 8)
    ((2, 4, 8), (2, 5, 10))
    """
    return tuple(
        v for v in range(2, (depth + STEM_LAYERS) // pp + 1) if not depth % (pp * v) or not (depth + STEM_LAYERS) % (pp * v)
    )


def _layout(layout_rows: Array, options: Mapping[str, Any]) -> TrainingLayout:
    tp, pp, cp, ep, etp, dp, mbs, v = layout_rows.T
    return TrainingLayout(tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, dp=dp, micro_batch=mbs, virtual_stages=v, **options)


def _layer_times(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, layout_rows: Array, *, options: Mapping[str, Any]
) -> tuple[Array, StageTimes | None, Any]:
    """Return the stage times and parameters, which do not depend on the sharding.

    They depend on the schedule only by its virtual stages and its copies of the parameters. Layers are timed once per
    distinct degrees of a stage.
    """
    if not len(layout_rows):
        return layout_rows, None, None
    # Many rows share the degrees that a layer depends on; time each distinct combination once. Of the replicas only those with
    # one micro-batch matter: no other micro-batch hides their exchanges.
    replicas = layout_rows[:, 5]
    counted_replicas = np.where(replicas * layout_rows[:, 6] == job.batch, replicas, 1)
    keys, inverse = np.unique(np.column_stack((layout_rows[:, [0, 2, 3, 4, 6]], counted_replicas)), axis=0, return_inverse=True)
    tp, cp, ep, etp, mbs, dp = keys.T
    # Of the stages it only matters whether there are several, as all layouts of a schedule that hides exchanges have.
    distinct_layouts = TrainingLayout(
        tp=tp, pp=2, cp=cp, ep=ep, etp=etp, micro_batch=mbs, dp=dp, recompute=options["recompute"], schedule=options["schedule"]
    )
    inverse = inverse.ravel()

    def spread(terms: Terms) -> Terms:
        return {name: np.broadcast_to(value, tp.shape)[inverse] for name, value in terms.items()}

    passes = [layer_passes(sheet, job, system, engine, distinct_layouts) for sheet, _ in layer_profiles(model)]
    row_passes = [
        Passes(spread(layer_pass.forward), spread(layer_pass.backward), np.broadcast_to(layer_pass.weights, tp.shape)[inverse])
        for layer_pass in passes
    ]
    x = _layout(layout_rows, options)
    return layout_rows, stage_times(model, job, system, engine, x, row_passes), fullest_stage_parameters(model, x)


def _candidates(
    model: Model, job: TrainingJob, system: System, engine: TrainingEngine, layout_rows: Array,
    layer_times: StageTimes | None, parameters: Any, *, options: Mapping[str, Any],
) -> list[Candidates]:  # fmt: skip
    """Return the candidates of a schedule that can run them."""
    if layer_times is None:
        return []
    x = _layout(layout_rows, options)
    m = job.batch / (x.dp * x.micro_batch)
    schedule = schedule_named(options["schedule"])
    # Without a pipeline all schedules are the same; count them once, as 1f1b.
    has_no_pipeline = np.asarray(x.pp) == 1
    is_legal = np.where(has_no_pipeline, options["schedule"] == "1f1b", schedule.legal(x.pp, m, x.virtual_stages))
    if not is_legal.any():
        return []
    seconds = np.asarray(step_seconds(model, job, system, engine, x, stages=layer_times, parameters=parameters).total)
    memory = training_memory(model, job, system, engine, x, microbatches=m)
    used_bytes = np.broadcast_to(memory.used, seconds.shape)
    fits = (used_bytes <= MEMORY_MARGIN * memory.capacity) & (np.asarray(memory.host) <= memory.host_capacity)
    legal_rows = np.flatnonzero(is_legal)
    layouts = _layout(layout_rows[legal_rows], options)
    measured = is_measured_kind(layouts, job, engine, experts=model.routed, family=model.family)
    return [
        Candidates(layout=layouts, seconds=seconds[legal_rows], used=used_bytes[legal_rows],
                   fits=fits[legal_rows],
                   measured=np.broadcast_to(measured, len(legal_rows)))
    ]  # fmt: skip
