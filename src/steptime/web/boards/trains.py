"""Board: requests wait for a batch with a fixed departure time. Section 4."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.decode_latency import mean_wait, worst_wait
from steptime.catalog.hardware_loading import load_system
from steptime.hardware.system import System
from steptime.lecture.current_figures import drains
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.units import show
from steptime.web.board import Answer, Board, Figure, Shared, slider
from steptime.web.page_export import python

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
    rate: float = slider(600, 50, 2000, "requests arrive", "per second", "Arrivals per second, at random times.", log=True)
    seats: int = slider(64, 1, 256, "slots of a batch", "requests", "Largest number of requests in one batch.", log=True)
    seed: int = slider(0, 0, 99, "seed", "", "Seed of the random arrivals.", is_advanced=True, step=1)


def simulated_requests(inputs: Inputs) -> int:
    """Return the number of simulated requests: the arrivals of 40 batches.

    Args:
        inputs: Inputs of the board.

    Returns:
        Number of requests, 200 to 4,000.
    """
    return int(np.clip(round(inputs.rate * inputs.step / 1e3 * TRAINS), MIN_REQUESTS, MAX_REQUESTS))


@cache
def _carrier() -> tuple[Model, System]:
    return load_model(CARRIER[0]), load_system(CARRIER[1])


@lru_cache(maxsize=256)
def _simulated(step: float, rate: float, seats: int, seed: int, requests: int) -> tuple[Array, Array, Array]:
    """Return the times [s] at which each request arrives, departs and ends."""
    import steptime as st
    from steptime.simulation.scheduling_policy import Policy

    traffic = st.open_loop(rate, requests, st.Lengths(mean=1), st.Lengths(mean=1), seed=seed)
    policy = Policy(kind="train", interval=step, max_num_seqs=seats)
    done = st.simulate(*_carrier(), traffic, policy=policy, engine="ideal")
    arrival, departure, end = (np.asarray(done.requests[name], dtype=float) for name in ("arrival", "scheduled", "finish"))
    return arrival, departure, end


def answer(inputs: Inputs) -> Answer:
    """Return the timetable, and the latency by simulation and by the closed form.

    Args:
        inputs: Inputs of the board.

    Returns:
        Tables, figures and sentence.
    """
    step, count = inputs.step / 1e3, simulated_requests(inputs)
    arrival, departure, end = _simulated(step, inputs.rate, inputs.seats, inputs.seed, count)
    took = end - arrival
    # Only the first requests fit the timetable.
    is_shown = arrival < SHOWN_SECONDS
    share = np.linspace(0.0, 1.0, QUANTILES)
    arrivals = inputs.rate * step
    full = arrivals / inputs.seats
    mean, worst = float(mean_wait(step)), float(worst_wait(step))
    departures = np.arange(1, int(SHOWN_SECONDS / step) + 1) * step
    drain = float(drains([DRAINED])[0])
    return Answer(
        tables={
            "requests": {
                "number": np.arange(int(is_shown.sum())) + 1, "arrival": arrival[is_shown], "departure": departure[is_shown],
                "end": end[is_shown],
            },
            "trains": {"departure": departures},
            "waits": {
                "share": share, "simulated": np.quantile(took, share), "closed": step + share * step,
            },
        },
        marks={
            "step": step, "mean": mean, "worst": worst, "simulated_mean": took.mean(), "simulated_worst": took.max(),
            "shown": SHOWN_SECONDS, "full": full, "height": inputs.rate * SHOWN_SECONDS,
        },
        sentence=_sentence(step, arrivals, took, full, mean, worst),
        figures=(
            Figure(name="mean, simulated", value=took.mean(), unit="s", words="From arrival to the end of the step."),
            Figure(name="mean, closed form", value=mean, unit="s", words="Half a step of waiting, and a full step."),
            Figure(name="longest, simulated", value=took.max(), unit="s"),
            Figure(name="longest, closed form", value=worst, unit="s", words="Just missed one batch, and ran in the next."),
            Figure(name="requests per batch", value=min(arrivals, inputs.seats), unit="requests", words="Mean."),
            Figure(name="slot utilization", value=min(full, 1.0), unit="%"),
            Figure(name="drain time of an H100", value=drain, unit="s", words="Capacity over bandwidth."),
        ),
        formula=(
            f"longest = 2 step = 2 x {show(step, 's')} = {show(worst, 's')}",
            f"mean = 1.5 step = 1.5 x {show(step, 's')} = {show(mean, 's')}",
            f"slot utilization = rate x step / slots = {inputs.rate:g} x {show(step, 's')} / {inputs.seats} = {full:.3g}",
        ),
        command=f"steptime simulate {' '.join(CARRIER)} --engine ideal --policy train --interval {step:g} "
        f"--rate {inputs.rate:g} --requests {count} --input 1 --output 1 --max-sequences {inputs.seats} --seed {inputs.seed}",
        python=python(
            "from steptime.simulation.scheduling_policy import Policy\n\n"
            f"traffic = st.open_loop({inputs.rate:g}, {count}, st.Lengths(mean=1), st.Lengths(mean=1), seed={inputs.seed})\n"
            f'policy = Policy(kind="train", interval={step:g}, max_num_seqs={inputs.seats})\n'
            f'requests = st.simulate("{CARRIER[0]}", "{CARRIER[1]}", traffic, policy=policy, engine="ideal").requests\n'
            '(requests["finish"] - requests["arrival"]).mean()'
        ),
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
        return words + f"Batches are {100 * full:.0f} % full, and some requests find no slot: they wait for the next batch."
    return words + "While batches are not full, this does not depend on the rate: only a shorter step helps."


BOARD = Board(
    name="trains", order=70, section=4, inputs=Inputs, answer=answer, bar=(),
    title="Why does a request wait, even when the machine is not full?",
    spoken={"step": 20, "rate": 1000, "seats": 256},
    today={"step": 36, "rate": 1500, "seats": 64},
)  # fmt: skip
