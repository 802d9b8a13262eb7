"""Board: requests wait for a batch with a fixed departure time. Section 4."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.decode_latency import mean_wait, worst_wait
from steptime.lecture.current_figures import drains
from steptime.number_checks import Array
from steptime.units import percent, show
from steptime.web.board import Answer, Board, Figure, Shared, question_input, slider

# Model and system of the simulation; their step is shorter than any interval of the board.
CARRIER: Final = ("llama-3.1-8b", "hgx-h100")
# Seconds of the timetable.
SHOWN_SECONDS: Final = 0.15
# Simulated departures, and the smallest and largest number of requests.
TRAINS, MIN_REQUESTS, MAX_REQUESTS = 40, 200, 4000
QUANTILES: Final = 101
DRAINED: Final = "hgx-h100"


class Inputs(Shared):
    """Requests at a rate, and batches (trains) at an interval."""

    step: float = slider(20, 8, 60, "a batch departs every", "ms", "Time between two departures, full or not.", log=True)
    rate: float = question_input("simulate.rate", 600, 50, 2000, label="requests arrive", unit="per second", log=True)
    seats: int = question_input("simulate.max_num_seqs", 64, 1, 256, label="slots of a batch", unit="requests", log=True)
    seed: int = question_input("simulate.seed", 0, high=99, is_advanced=True, step=1)


@lru_cache(maxsize=256)
def _simulated(step: float, rate: float, seats: int, seed: int, requests: int) -> tuple[Array, Array, Array]:
    """Return the times [s] at which each request arrives, departs and ends."""
    import steptime as st
    from steptime.simulation.scheduling_policy import Policy

    traffic = st.open_loop(rate, requests, st.Lengths(mean=1), st.Lengths(mean=1), seed=seed)
    policy = Policy(kind="train", interval=step, max_num_seqs=seats)
    done = st.simulate(*CARRIER, traffic, policy=policy, engine="ideal")
    arrival, departure, end = (np.asarray(done.requests[name], dtype=float) for name in ("arrival", "scheduled", "finish"))
    return arrival, departure, end


def answer(inputs: Inputs) -> Answer:
    """Return the timetable, and the latency by simulation and by the closed form.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    step = inputs.step / 1e3
    count = int(np.clip(round(inputs.rate * inputs.step / 1e3 * TRAINS), MIN_REQUESTS, MAX_REQUESTS))
    arrival, departure, end = _simulated(step, inputs.rate, inputs.seats, inputs.seed, count)
    took = end - arrival
    # Only the first requests fit the timetable.
    is_shown = arrival < SHOWN_SECONDS
    share = np.linspace(0.0, 1.0, QUANTILES)
    arrivals = inputs.rate * step
    full = arrivals / inputs.seats
    mean, worst = float(mean_wait(step)), float(worst_wait(step))
    departures = np.arange(1, int(SHOWN_SECONDS / step) + 1) * step
    return Answer(
        tables={
            "requests": {
                "number": np.arange(int(is_shown.sum())) + 1, "arrival": arrival[is_shown], "departure": departure[is_shown],
                "end": end[is_shown],
            },
            "trains": {"departure": departures},
            "waits": {"share": share, "simulated": np.quantile(took, share), "closed": step + share * step},
        },
        marks={
            "step": step, "mean": mean, "worst": worst, "simulated_mean": took.mean(), "simulated_worst": took.max(),
            "shown": SHOWN_SECONDS, "full": full, "height": inputs.rate * SHOWN_SECONDS,
        },
        sentence=_sentence(step, arrivals, took, full, mean, worst),
        figures=(
            Figure("mean, simulated", took.mean(), "s", "From arrival to the end of the step."),
            Figure("mean, closed form", mean, "s", "Half a step of waiting, and a full step."),
            Figure("longest, simulated", took.max(), "s"),
            Figure("longest, closed form", worst, "s", "Just missed one batch, and ran in the next."),
            Figure("requests per batch", min(arrivals, inputs.seats), "requests", "Mean."),
            Figure("slot utilization", min(full, 1.0), "%"),
            Figure("drain time of an H100", float(drains([DRAINED])[0]), "s", "Capacity over bandwidth."),
        ),
        formula=(
            f"longest = 2 step = 2 x {show(step, 's')} = {show(worst, 's')}",
            f"mean = 1.5 step = 1.5 x {show(step, 's')} = {show(mean, 's')}",
            f"slot utilization = rate x step / slots = {inputs.rate:g} x {show(step, 's')} / {inputs.seats} = {full:.3g}",
        ),
        command=f"steptime simulate {' '.join(CARRIER)} --engine ideal --policy train --interval {step:g} "
        f"--rate {inputs.rate:g} --requests {count} --input 1 --output 1 --max-num-seqs {inputs.seats} --seed {inputs.seed}",
        python="from steptime.simulation.scheduling_policy import Policy\n\n"
        f"traffic = st.open_loop({inputs.rate:g}, {count}, st.Lengths(mean=1), st.Lengths(mean=1), seed={inputs.seed})\n"
        f'policy = Policy(kind="train", interval={step:g}, max_num_seqs={inputs.seats})\n'
        f'requests = st.simulate("{CARRIER[0]}", "{CARRIER[1]}", traffic, policy=policy, engine="ideal").requests\n'
        '(requests["finish"] - requests["arrival"]).mean()',
        notes=(f"the simulation has {count:,} requests of one step each, with Poisson arrivals",),
    )  # fmt: skip


def _sentence(step: float, arrivals: float, took: Any, full: float, mean: float, worst: float) -> str:
    if full > 1:
        return (
            f"{arrivals:.3g} requests arrive per batch, more than its slots: the queue grows, and the slowest request takes "
            f"{show(took.max(), 's')}. The closed form is valid only while batches are not full."
        )
    words = (
        f"A request waits for the next batch, which takes {show(step, 's')}: {show(took.mean(), 's')} on average "
        f"({show(mean, 's')} by the closed form), {show(worst, 's')} if it just missed a batch. "
    )
    if full > 0.8 or took.max() > worst * 1.02:
        return words + f"Batches are {percent(full)} full, and some requests find no slot: they wait for the next batch."
    return words + "While batches are not full, this does not depend on the rate: only a shorter step helps."


BOARD = Board(
    name="trains", order=70, section=4, inputs=Inputs, answer=answer, bar=(),
    title="Why does a request wait, even when the machine is not full?",
    spoken={"step": 20, "rate": 1000, "seats": 256},
    today={"step": 36, "rate": 1500, "seats": 64},
)  # fmt: skip
