"""Rules of a training layout.

Each error message names the axis and the nearest legal choice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from steptime.errors import LayoutError, UnknownName
from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import MOST_CHIPS, divisors, whole_number
from steptime.result_base import in_words
from steptime.training.layer_profile import MODULES, layers_of_chunks, max_chunks
from steptime.training.layer_time import ALTERNATE
from steptime.training.schedules.schedule import schedule_named
from steptime.training.training_job import DEGREES, SHARDINGS, TrainingJob, TrainingLayout, read_layers, show_layers
from steptime.training.training_stack import TrainingEngine
from steptime.units import counted

RECOMPUTE_WORDS = ("none", "selective", "full", ALTERNATE, "reversible")


def check_words(recompute: str, sharding: str, schedule: str) -> None:
    """Check the words for recomputation, sharding and schedule.

    Args:
        recompute: Recomputation.
        sharding: Sharding of the states.
        schedule: Name of the schedule.

    Raises:
        UnknownName: If a word is unknown.
        LayoutError: If a word that cannot be joined is joined by "+".
    """
    if recompute not in RECOMPUTE_WORDS:
        for part in recompute.split("+"):
            if part in RECOMPUTE_WORDS:
                raise LayoutError(f"recompute={recompute}: {part} cannot be joined by +; join only {', '.join(MODULES)}")
            if part not in MODULES:
                raise UnknownName("recomputation", part, (*RECOMPUTE_WORDS, *MODULES),
                                  f"Known: {', '.join(RECOMPUTE_WORDS)}; or {', '.join(MODULES)} joined by +.")  # fmt: skip
    if sharding not in SHARDINGS:
        raise UnknownName("sharding", sharding, SHARDINGS, f"Known: {', '.join(SHARDINGS)}.")
    schedule_named(schedule)


def check_counts(degrees: Mapping[str, Any]) -> None:
    """Check that degrees are whole numbers of at least 1.

    A sharding group may be 0.

    Args:
        degrees: Numbers or arrays, by the field names of `TrainingLayout`.

    Raises:
        RangeError: If a number is not a whole number in its range.
    """
    for name, value in degrees.items():
        if name in (*DEGREES, "sharding_group"):
            whole_number(
                "vpp" if name == "virtual_stages" else name,
                value,
                minimum=0 if name == "sharding_group" else 1,
                maximum=MOST_CHIPS,
            )


def check_group(sharding: str, group: Any) -> None:
    """Check that a sharding group has a sharding.

    Args:
        sharding: Sharding of the states.
        group: Ranks of the sharding group; 0 for all.

    Raises:
        LayoutError: If there is a group without sharding.
    """
    if sharding == "none" and np.any(np.asarray(group) > 0):
        raise LayoutError("sharding_group: a group needs sharded states, got sharding=none; take zero1, zero2 or zero3")


def check_virtual_stages(virtual: int) -> None:
    """Check that there are no virtual stages without a pipeline.

    Args:
        virtual: Virtual stages per device.

    Raises:
        LayoutError: If there are virtual stages.
    """
    if virtual > 1:
        raise LayoutError(f"vpp={virtual}: virtual stages need a pipeline, and pp=1 has none; give --pp, or leave --vpp out")


def nearest_divisors(number: int, degree: int) -> str:
    """Return the divisors of a number that are nearest to a degree, as text.

    Args:
        number: Number to divide.
        degree: Degree that does not divide it.

    Returns:
        Text, such as "8 or 16".

    >>> nearest_divisors(128, 12), nearest_divisors(80, 7)
    ('8 or 16', '5 or 8')
    """
    below = [d for d in divisors(number) if d <= degree][-1:]
    above = [d for d in divisors(number) if d > degree][:1]
    return " or ".join(map(str, below + above))


def check_layout(x: TrainingLayout, model: Model, system: System, job: TrainingJob, engine: TrainingEngine) -> None:
    """Check all rules of a layout of plain numbers.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.
        engine: Training stack.

    Raises:
        LayoutError: For the first rule that the layout breaks.
    """
    check_words(x.recompute, x.sharding, x.schedule)
    check_degrees(x, model, system, job)
    check_batch(x, job)

    # Schedules only matter with a pipeline.
    pp, v = int(x.pp), int(x.virtual_stages)
    schedule = schedule_named(x.schedule)
    if pp > 1:
        schedule.check(pp, int(job.batch) // int(x.dp * x.micro_batch), v)
        check_stack(schedule.name, engine)
    else:
        check_virtual_stages(v)
    if engine.shardings and x.sharding not in (*engine.shardings, "none"):
        raise LayoutError(
            f"stack {engine.name} has no sharding {x.sharding}; it has {', '.join(engine.shardings)}; --engine typical has all"
        )

    # Groups of hybrid sharding have equal size.
    group, sharing_ranks = int(x.sharding_group), int(x.dp * x.cp)
    if group and sharing_ranks % group:
        raise LayoutError(
            f"sharding_group={group} does not divide the {sharing_ranks} ranks that share states; "
            f"try {nearest_divisors(sharing_ranks, group)}"
        )
    check_group(x.sharding, x.sharding_group)


def check_draft(model: Model, job: TrainingJob) -> None:
    """Check that the model has multi-token-prediction layers if they are trained.

    Args:
        model: Model to train.
        job: Sequences, formats and optimizer of a step.

    Raises:
        LayoutError: If the model has none.
    """
    if job.mtp and not model.draft:
        raise LayoutError(f"{model.name} has no multi-token-prediction layers to train; leave --mtp out")


def check_stack(schedule: str, engine: TrainingEngine) -> None:
    """Check that a stack has a schedule.

    Args:
        schedule: Name of the schedule.
        engine: Training stack.

    Raises:
        LayoutError: If the stack lacks the schedule.
    """
    if engine.schedules and schedule not in engine.schedules:
        raise LayoutError(
            f"stack {engine.name} has no schedule {schedule}; it has {', '.join(engine.schedules)}; --engine typical has all"
        )


def check_batch(x: TrainingLayout, job: TrainingJob) -> None:
    """Check that the batch divides into micro-batches over all replicas.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.
        job: Sequences, formats and optimizer of a step.

    Raises:
        LayoutError: If it does not divide.
    """
    dp, mbs = int(x.dp), int(x.micro_batch)
    if int(job.batch) % (dp * mbs):
        below = int(job.batch) // (dp * mbs) * dp * mbs
        choices = " or ".join(f"{b:,}" for b in (below, below + dp * mbs) if b)
        raise LayoutError(f"batch={job.batch:,} does not divide over dp={dp} replicas in micro-batches of {mbs}; try {choices}")


def check_degrees(x: TrainingLayout, model: Model, system: System, job: TrainingJob) -> None:
    """Check that the degrees divide the model, the sequence and the machine.

    Args:
        x: Training layout; its numbers may be arrays that broadcast.
        model: Model to train.
        system: Chips and links.
        job: Sequences, formats and optimizer of a step.

    Raises:
        LayoutError: For the first degree that does not divide.
    """
    tp, pp, cp, ep, etp, dp, v = (int(getattr(x, n)) for n in ("tp", "pp", "cp", "ep", "etp", "dp", "virtual_stages"))
    if system.is_box and x.chips > system.scale_up.size:
        raise LayoutError(f"{x.chips:,.0f} chips are more than the {system.scale_up.size:,.0f} of {system.name}")
    if model.heads % tp:
        raise LayoutError(
            f"tp={tp} does not divide the {model.heads} heads of {model.name}; try {nearest_divisors(model.heads, tp)}"
        )
    # KV heads may be copied over ranks, so that a multiple of them is legal too.
    kv = kv_head_count(model)
    if kv % tp and tp % kv:
        raise LayoutError(
            f"tp={tp} neither divides the {kv} KV heads of {model.name} nor is a multiple; try {nearest_divisors(kv, tp)}"
        )
    # Models may have dense layers and shared experts of different widths.
    for width in feed_forward_widths(model):
        if width % tp:
            raise LayoutError(
                f"tp={tp} does not divide the {width:,} columns of a feed-forward block; try {nearest_divisors(width, tp)}"
            )
    if cp > 1 and int(job.seq) % (2 * cp):
        raise LayoutError(
            f"cp={cp} does not divide sequences of {job.seq:,} tokens into {2 * cp} parts, two for each rank (which balances "
            f"a causal mask); try cp={nearest_divisors(max(int(job.seq) // 2, 1), cp)}"
        )
    _check_experts(model, ep, etp, tp * cp * dp)
    if pp * v > max_chunks(model):
        largest_vpp = max_chunks(model) // pp
        raise LayoutError(
            f"pp={pp} x vpp={v} = {pp * v} chunks are more than the {model.depth} layers of {model.name} with embedding "
            "and head; " + (f"at most vpp={largest_vpp} with pp={pp}" if largest_vpp else f"at most pp={max_chunks(model)}")
        )
    check_layers(x.layers, model, pp * v)


def check_layers(layers: str, model: Model, chunks: Any) -> None:
    """Check the layers by chunk against the model and the number of chunks.

    Args:
        layers: Layers by chunk as text; "" for an even division.
        model: Model to train.
        chunks: Chunks of the layout; may be an array.

    Raises:
        LayoutError: If the sum is not the layers of the model, or the number of chunks differs.
    """
    if not layers:
        return
    counts = read_layers(layers)
    if np.any(np.asarray(chunks) != len(counts)):
        chunk_text = in_words(chunks, "{:,g}".format)
        raise LayoutError(f"layers={layers} has {counted(len(counts), 'chunk')}, and pp x vpp = {chunk_text}")
    if sum(counts) != model.depth:
        even = show_layers(layers_of_chunks(model.depth, range(len(counts))))
        raise LayoutError(f"layers={layers} has {sum(counts):,} layers, and {model.name} has {model.depth}; try layers={even}")
    if 0 in counts[1:-1]:
        raise LayoutError(f"layers={layers}: only the first chunk (with the embedding) and the last chunk may have 0 layers")


@lru_cache(maxsize=256)
def feed_forward_widths(model: Model) -> tuple[int, ...]:
    """Return the widths of feed-forward blocks that tensor parallelism divides.

    Args:
        model: Model to train.

    Returns:
        Sorted widths.
    """
    closing = (op for layer, _ in model.layers for op in layer.ops if op.name == "down_proj" and op.rows == "tokens")
    return tuple(sorted({int(op.inputs) for op in closing}))


@lru_cache(maxsize=256)
def kv_head_count(model: Model) -> int:
    """Return the number of KV heads that tensor parallelism divides.

    Args:
        model: Model to train.

    Returns:
        KV heads; 1 where all heads share a latent.
    """
    mixers = (a for layer, _ in model.layers for a in layer.attention if a.kv_bytes and not a.expand_flops)
    return max((a.kv_shards for a in mixers), default=1)


def _check_experts(model: Model, ep: int, etp: int, stage: int) -> None:
    experts = max((op.experts for layer, _ in model.layers for op in layer.ops if op.rows == "routed"), default=0)
    if not experts and ep * etp > 1:
        raise LayoutError(f"ep={ep}, etp={etp}, but {model.name} has no experts")
    if experts and experts % ep:
        raise LayoutError(f"ep={ep} does not divide the {experts} experts of {model.name}; try {nearest_divisors(experts, ep)}")
    if stage % (ep * etp):
        raise LayoutError(
            f"ep={ep} x etp={etp} does not divide the tp x cp x dp = {stage} chips of a stage; "
            f"try {nearest_divisors(stage, ep * etp)}"
        )
