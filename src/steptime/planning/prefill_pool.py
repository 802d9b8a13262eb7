"""Pools of replicas that only read prompts: the time of their passes, what they deliver, and how long a prompt is there."""

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
from steptime.planning.speculative_config import NONE, Speculation
from steptime.planning.steady_state import MOST_UTILISED, fresh_tokens
from steptime.planning.workload import Workload

MOST_ROWS = 6  # of prompts in a pass of a prefill pool, each looked at; of more, a line through all is as good
BEND = 3  # of the seats of a prefill pool: where its passes are looked at between a few prompts and all


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A replica that only prefills: arrays of one shape.

    time of a pass by its prompts, up to `seats`; late: how much longer a prompt is under way than a pass takes, through the
    stages of a pipeline, over the pass; rate of full passes [requests/s]; most_utilised: the highest utilisation within the
    limit [share]; memory of a chip [B]; step: a full pass, of a single pool with terms and resources.
    """

    time: PassTime
    late: Array
    seats: Number
    rate: Array
    most_utilised: Array
    memory: Memory
    step: Step


def _looked_at(groups: Number, seats: Array) -> list[Array]:
    """Return the prompts of passes that are looked at, of pools of `seats` that `groups` share evenly: arrays of one shape.

    All seats, and one prompt, one a group, one more than that, and, for the bend, half of the groups with all of theirs, or a
    third of the seats of one group or where each has over `MOST_ROWS`; between three rows and those, two prompts a group.
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
    """Whether passes are looked at by rows of prompts, one of each group: there are a few."""
    rows = seats / groups
    is_row: Array = (np.asarray(groups) > 2) & (rows > 2) & (rows <= MOST_ROWS)
    return is_row


def _pass_time(looked_at: list[Array], seconds: Array, groups: Number) -> PassTime:
    """Return the time of passes of any number of prompts: by lines between some, with a jump where a group has a second one.

    seconds of passes with the prompts `looked_at`, rows of one array. Where rows are few, there is a jump for each further one.
    """
    full, seats = seconds[0], looked_at[0]
    if len(looked_at) == 1:
        return PassTime(first=full)
    groups = np.broadcast_to(groups, np.shape(full))
    several, in_rows = groups > 1, _in_rows(groups, seats)
    single, side, after, bent = [*seconds[1:], *(full,) * 3][:4]
    more_than, bend = looked_at[3:] if len(looked_at) > 2 else (seats, seats)
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
    """Return what a prefill replica delivers with `prompts` [per attention group] in a pass, without a limit.

    legal: whether layouts and sizes are known to be sound.
    """
    fresh = fresh_tokens(workload)
    seats = np.asarray(prompts * layout.dp)
    arguments: dict[str, Any] = {
        "tokens": fresh, "prefix": workload.input_tokens - fresh, "drafts": speculation.drafts, "layout": layout,
        "engine": engine, "legal": legal,
    }  # fmt: skip
    shape = np.broadcast_shapes(np.shape(seats), np.shape(layout.chips), engine.shape)
    looked_at = _looked_at(layout.dp, np.broadcast_to(seats, shape))
    passes_ = drafted_step(model, system, prompts=np.stack(looked_at), **arguments, parts=np.ndim(seats) == 0)
    step, time = first_step(passes_, np.ndim(looked_at[0])), _pass_time(looked_at, passes_.total, layout.dp)
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
            batch=2 * seats,  # one pass under way, one being sent on
            context=workload.input_tokens,
            layout=layout,
            engine=engine,
            step_tokens=prompts * fresh / layout.microbatches,
            legal=legal,
        ),
        step=step,
    )


def within_limit(pool: Prefill, limit: Number, replicas: Number) -> Prefill:
    """Return the pool as busy as a limit [s] on the time from arrival to the end of the pass lets it be."""
    highest = highest_utilisation(limit, pool.time, pool.seats, MOST_UTILISED, late=pool.late, replicas=replicas)
    return replace(pool, most_utilised=highest)


def first_token(prefill: Prefill, utilisation: Number, replicas: Number) -> Number:
    """Return the mean time from arrival to the end of the prompt [s] in a pool of `replicas` at a utilisation [share]."""
    queue = passes(utilisation * prefill.rate, prefill.time, prefill.seats, replicas=replicas)
    latency: Number = queue.wait + queue.service * (1 + prefill.late)
    return latency
