"""Board: timeline and idle time of a training pipeline schedule. Section 10."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from steptime.blackboard.pipeline_stages import bubble_fraction
from steptime.errors import InputError
from steptime.training.schedule_timeline import KIND_NAMES, simulate_step, timeline
from steptime.training.schedules.schedule import Schedule, schedule_named
from steptime.training.schedules.work_order import KINDS
from steptime.units import in_digits, percent
from steptime.web.board import Answer, Board, Figure, Shared, choice, columns, question_input, slider
from steptime.web.page_subject import python_command

NAMES: Final = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipe", "dualpipev")
BOXES: Final = ("device", "kind", "chunk", "micro", "back", "start", "end")
# Unit of time: the forward pass of one micro-batch on one device.
FORWARD: Final = 1.0


class Inputs(Shared):
    """A pipeline schedule with stages and micro-batches."""

    schedule: str = choice("1f1b", NAMES, "schedule", "Order of the forward and backward passes on each device.")
    stages: int = question_input("train.pp", 4, 2, 16, label="stages", unit="devices", step=1)
    microbatches: int = slider(8, 1, 32, "micro-batches", "", "Micro-batches of a step.", step=1)
    virtual: int = slider(2, 2, 4, "virtual stages", "per device", "Only for schedule interleaved.", is_advanced=True, step=1)
    backward: float = slider(2, 1, 4, "backward pass", "forward passes", "Time of a backward pass.", is_advanced=True)
    weight_share: float = slider(0.5, 0, 0.9, "weight gradients", "", "Share of the backward pass.", is_advanced=True)


def answer(inputs: Inputs) -> Answer:
    """Return the timeline of a step, its idle time and its memory.

    Both the simulation and the closed forms are shown.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    schedule = schedule_named(inputs.schedule)
    p, m, v = inputs.stages, inputs.microbatches, schedule.virtual or inputs.virtual
    f, b, w = FORWARD, inputs.backward, inputs.weight_share * inputs.backward
    # Only schedules that are legal for these stages and micro-batches are compared.
    schedules = [plan for plan in map(schedule_named, NAMES) if bool(plan.legal(p, m, plan.virtual or inputs.virtual))]
    rows = (_row(plan, p, m, plan.virtual or inputs.virtual, f, b, w) for plan in schedules)
    table = columns("name idle in_flight copies", rows)
    base_marks, snippets = {"devices": p, "chosen": schedule.name}, _snippets(inputs, schedule, v, f / v, b / v, w / v)
    try:
        order = schedule.order(p, m, v)
    except InputError as error:
        # A schedule that cannot run has no boxes; the others are shown.
        return Answer(
            tables={"boxes": dict.fromkeys(BOXES, ()), "kinds": {"kind": (), "words": ()}, "schedules": table},
            marks={**dict.fromkeys(("total", "idle", "share", "held")), **base_marks},
            sentence=f"{str(error)[0].upper()}{str(error)[1:]}.", **snippets,
        )  # fmt: skip
    done = timeline(simulate_step(order, f / v, b / v, w / v))
    idle, total = float(done.idle.max()), done.total
    closed = float(schedule.idle(p, m, v, f, b, w) + schedule.stagger(p, v, f, b, w))
    peak, holds = float(done.in_flight.max()), float(np.max(schedule.in_flight(p, m, v)))
    gpipe = float(bubble_fraction(p, m))
    return Answer(
        tables={
            "boxes": {
                "device": done.device + 1, "kind": [KINDS[kind] for kind in done.kind], "chunk": done.chunk,
                "micro": done.micro + 1, "back": np.where(done.back_micro < 0, 0, done.back_micro + 1),
                "start": done.start, "end": done.end,
            },
            "kinds": {"kind": list(done.kinds), "words": [KIND_NAMES[KINDS.index(kind)] for kind in done.kinds]},
            "schedules": table,
        },
        marks={"total": total, "idle": idle, "share": idle / total, "held": peak, **base_marks},
        sentence=_sentence(schedule, idle, total, peak, gpipe),
        figures=(
            Figure("step", total, "forward passes", "Forward passes of one device for one micro-batch."),
            Figure("idle, simulated", idle, "forward passes", "Device with the longest idle time."),
            Figure("idle, closed form", closed, "forward passes", schedule.source),
            Figure("idle share", idle / total, "%"),
            Figure("GPipe's (P-1)/(M+P-1)", gpipe, "%", "Formula of the lecture."),
            Figure("in flight, simulated", peak, "micro-batches", "Peak activations of a device."),
            Figure("in flight, closed form", holds, "micro-batches"),
            Figure("copies of the weights", schedule.copies),
        ),
        formula=(
            f"step = M (f + b) + idle = {m} x ({f:g} + {b:g}) + {in_digits(total - m * (f + b))} = {in_digits(total)}",
            f"idle share = {in_digits(idle)} / {in_digits(total)} = {percent(idle / total, 1)}",
            f"GPipe: (P - 1) / (M + P - 1) = {p - 1} / {m + p - 1} = {percent(gpipe, 1)}",
        ),
        **snippets,
    )  # fmt: skip


def _row(schedule: Schedule, p: int, m: int, virtual: int, f: float, b: float, w: float) -> tuple[str, float, float, float]:
    """Return name, idle share, micro-batches in flight and copies of the weights, by the closed forms of a schedule."""
    v = schedule.virtual or virtual
    step = m * (f + b) + float(schedule.idle(p, m, v, f, b, w) + schedule.stagger(p, v, f, b, w))
    return schedule.name, 1 - m * (f + b) / step, float(np.max(schedule.in_flight(p, m, v))), schedule.copies


def _snippets(inputs: Inputs, schedule: Schedule, v: int, f: float, b: float, w: float) -> dict[str, Any]:
    """Return the command and the Python call; the times of passes are those of one chunk."""
    # The model needs at least one layer per stage.
    model = "llama-3-8b" if inputs.stages * max(v, 1) <= 32 else "llama-3.1-405b"
    train = (
        f"steptime train {model} hgx-h100 --engine typical --chips {8 * inputs.stages} --tp 8 --pp {inputs.stages}"
        f"{f' --vpp {v}' if v > 1 else ''} --batch {inputs.microbatches} --micro-batch 1 --schedule {schedule.name}"
    )
    program = (
        "from steptime.training.schedules.schedule import schedule_named\n"
        "from steptime.training.schedule_timeline import simulate_step\n\n"
        f'order = schedule_named("{schedule.name}").order({inputs.stages}, {inputs.microbatches}, {v})\n'
        f"done = simulate_step(order, {f:g}, {b:g}, {w:g})\n"
        "float(done.total), float(done.idle.max()), float(done.in_flight.max())"
    )
    return {"command": python_command(program), "python": program, "scripts": {"the schedule for a real model": train}}


def _sentence(schedule: Schedule, idle: float, total: float, peak: float, gpipe: float) -> str:
    share = idle / total
    words = (
        f"A step takes as long as {in_digits(total)} forward passes. One device is idle for up to {in_digits(idle)} of "
        f"them, {percent(share)}. A device stores activations of up to {in_digits(peak)} micro-batches. "
    )
    if share > 0.25:
        return words + "More micro-batches reduce the idle share, but a larger batch learns less per token."
    if schedule.name in ("gpipe", "1f1b"):
        return words + "GPipe and 1F1B have the same idle time; 1F1B frees activations earlier."
    return words + f"GPipe is idle for {percent(gpipe)} of its step."


BOARD = Board(
    name="schedule", order=90, section=10, inputs=Inputs, answer=answer, bar=(),
    title="How long do pipeline stages wait for each other?",
    spoken={"schedule": "gpipe", "stages": 4, "microbatches": 4},
    today={"schedule": "dualpipe", "stages": 8, "microbatches": 20},
)  # fmt: skip
