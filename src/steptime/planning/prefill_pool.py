"""Prefill pools: the time of their passes, their rate, and prompt latency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.hardware.system import System
from steptime.models.model import Model
from steptime.number_checks import Array, Number
from steptime.physics.chip_memory import Memory
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout
from steptime.physics.speculative_step import drafted_memory, drafted_step
from steptime.physics.step import Step, first_step
from steptime.planning.batch_queue import PassTime, highest_utilisation, passes
from steptime.planning.steady_state import MOST_UTILISED, fresh_tokens, longer_prefix
from steptime.workload.workload import NONE, Speculation, Workload

# Rows of prompts in a pass up to which each row is evaluated; more rows are well described by one line.
MOST_ROWS = 6
# The pass time is evaluated at 1 / BEND of the prompts, between a few and all.
BEND = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A replica that only prefills: arrays of one shape.

    `time` is the time of a pass by its prompts, up to `seats`. `late` is the time of a prompt beyond its
    pass, in the stages of a pipeline, over the time of the pass. `rate` is that of full passes [requests/s].
    `most_utilised` is the highest utilization within the limit [share]. `memory` is that of a chip [B].
    `step` is a full pass; that of a single pool has terms and resources.
    """

    time: PassTime
    late: Array
    seats: Number
    rate: Array
    most_utilised: Array
    memory: Memory
    step: Step


def _looked_at(groups: Number, seats: Array) -> list[Array]:
    """Return the prompts of the passes to evaluate: arrays of one shape.

    They are all `seats` of the pool, one prompt, one per data-parallel rank, one more than that, and a point
    for the bend. For the bend, half of the ranks have all of their prompts. Where each rank has over
    `MOST_ROWS` prompts, or there is one rank, it is a third of the prompts. Between three rows and
    `MOST_ROWS`, it is two prompts per rank.
    """
    if np.all(seats == 1):
        return [seats]
    if np.all(seats == groups):
        return [seats, np.ones_like(seats)]
    more_than = np.minimum(groups + 1, seats)
    is_evaluated = (groups > 1) & (seats <= BEND * groups)
    bend = np.where(is_evaluated, seats - groups // 2, groups + (seats - groups) // BEND)
    bend = np.clip(np.where(_in_rows(groups, seats), 2 * groups, bend), more_than, seats)
    return [seats, np.ones_like(seats), groups * np.ones_like(seats), more_than, bend]


def _in_rows(groups: Number, seats: Array) -> Array:
    """Whether a pass has few rows of prompts, one prompt of each data-parallel rank."""
    rows = seats / groups
    is_row: Array = (np.asarray(groups) > 2) & (rows > 2) & (rows <= MOST_ROWS)
    return is_row


def _pass_time(looked_at: list[Array], seconds: Array, groups: Number) -> PassTime:
    """Return the time of passes of any number of prompts.

    The time is linear between evaluated points, with a jump where a data-parallel rank has a second prompt.
    With few rows, there is a jump for each further row. `seconds` has one row for each entry of `looked_at`.
    """
    full, seats = seconds[0], looked_at[0]
    if len(looked_at) == 1:
        return PassTime(first=full)
    groups = np.broadcast_to(groups, np.shape(full))
    several, in_rows = groups > 1, _in_rows(groups, seats)
    single, side, after, bent = [*seconds[1:], *(full,) * 3][:4]
    more_than, bend = looked_at[3:] if len(looked_at) > 2 else (seats, seats)

    # Without a jump, the slope starts at one prompt per rank.
    beyond = np.maximum(bent - after, 0.0) / np.maximum(bend - more_than, 1)
    jump = np.where(several & (seats > groups), np.maximum(after - side - beyond, 0.0), 0.0)
    beyond = np.where(jump > 0, beyond, np.maximum(bent - side, 0.0) / np.maximum(bend - groups, 1))
    far = np.maximum(full - bent, 0.0) / np.maximum(seats - bend, 1)
    jump_after = (far - beyond) * groups * (seats - bend) / np.maximum(seats - 2 * groups, 1)
    return PassTime(
        first=single,
        slope_to_kink=np.maximum(side - single, 0.0) / np.maximum(groups - 1, 1),
        kink=groups,
        jump=jump,
        beyond=beyond,
        bend=bend,
        far=np.where(in_rows, beyond, far),
        row_jump=np.where(in_rows, np.maximum(jump_after, 0.0), 0.0),
    )


def prefill_pool(
    model: Model,
    system: System,
    workload: Workload,
    *,
    layout: Layout,
    prompts: Number,
    engine: Engine,
    speculation: Speculation = NONE,
    legal: bool = False,
) -> Prefill:
    """Return the performance of a prefill replica without a latency limit.

    Args:
        model: Model.
        system: System.
        workload: Requests.
        layout: Layout of the replica.
        prompts: Prompts per data-parallel rank in a pass.
        engine: Engine.
        speculation: Speculative tokens, whose layers also prefill.
        legal: True if layouts and sizes are already checked.

    Returns:
        The prefill replica, in the broadcast shape.
    """
    fresh = fresh_tokens(workload)
    seats = np.asarray(prompts * layout.dp)
    arguments: dict[str, Any] = {
        "tokens": fresh, "prefix": workload.input_tokens - fresh + longer_prefix(workload),
        "drafts": speculation.drafts, "layout": layout,
        "engine": engine, "legal": legal,
    }  # fmt: skip

    # A few passes with different numbers of prompts are evaluated in one call and interpolated.
    shape = np.broadcast_shapes(np.shape(seats), np.shape(layout.chips), engine.shape)
    looked_at = _looked_at(layout.dp, np.broadcast_to(seats, shape))
    passes_ = drafted_step(model, system, prompts=np.stack(looked_at), **arguments, parts=np.ndim(seats) == 0)
    step = first_step(passes_, np.ndim(looked_at[0]))
    time = replace(_pass_time(looked_at, passes_.total, layout.dp), variance=np.square(workload.input_spread))
    late = step.latency / step.total - 1
    return Prefill(
        time=time,
        late=late,
        seats=seats,
        rate=seats / step.total,
        most_utilised=np.full(np.shape(step.total), MOST_UTILISED),
        memory=drafted_memory(
            model,
            system,
            drafts=speculation.drafts,
            # Memory holds one pass in progress, and one that is being sent.
            batch=2 * seats,
            context=workload.input_tokens,
            layout=layout,
            engine=engine,
            step_tokens=prompts * fresh / layout.microbatches,
            legal=legal,
        ),
        step=step,
    )


def within_limit(pool: Prefill, limit: Number, replicas: Number) -> Prefill:
    """Return a prefill pool with the highest utilization within a latency limit.

    Args:
        pool: Prefill replica.
        limit: Limit on the time from arrival to the end of the pass [s].
        replicas: Replicas of the pool.

    Returns:
        The pool with its `most_utilised`.
    """
    highest = highest_utilisation(limit, pool.time, pool.seats, MOST_UTILISED, late=pool.late, replicas=replicas)
    return replace(pool, most_utilised=highest)


def first_token(prefill: Prefill, utilisation: Number, replicas: Number) -> Number:
    """Return the mean time from arrival to the end of prefill.

    Args:
        prefill: Prefill replica.
        utilisation: Utilization [share].
        replicas: Replicas of the pool.

    Returns:
        Seconds.
    """
    queue = passes(utilisation * prefill.rate, prefill.time, prefill.seats, replicas=replicas)
    latency: Number = queue.wait + queue.service * (1 + prefill.late)
    return latency
