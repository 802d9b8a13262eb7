"""Requests that wait for a batch that departs on a schedule: lecture section 4."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from steptime.blackboard.scheduled_batches import mean_wait, worst_wait
from steptime.catalog.hardware_loading import load_system
from steptime.hardware.system import System
from steptime.lecture.current_figures import drains
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.number_checks import Array
from steptime.units import show
from steptime.web.board import Answer, Board, Figure
from steptime.web.board_inputs import Shared, slider
from steptime.web.snippets import python

CARRIER: Final = ("llama-3.1-8b", "hgx-h100")  # what the trains are of: a model whose pass is shorter than any step asked for
SHOWN_SECONDS: Final = 0.15  # seconds of the timetable
TRAINS, MIN_REQUESTS, MAX_REQUESTS = 40, 200, 4000  # departures that are simulated, and requests at least and at most
QUANTILES: Final = 101
DRAINED: Final = "hgx-h100"


class Inputs(Shared):
    """Requests at a rate, and trains at an interval."""

    step: float = slider(20, 8, 60, "a train departs every", "ms", "Time between two departures, full or not.", log=True)
    rate: float = slider(600, 50, 2000, "requests arrive", "a second", "Requests a second, at random times.", log=True)
    seats: int = slider(64, 1, 256, "seats of a train", "requests", "Requests that ride in one train at most.", log=True)
    seed: int = slider(0, 0, 99, "seed", "", "Another number, other arrivals.", is_advanced=True, step=1)


def simulated_requests(inputs: Inputs) -> int:
    """Return how many requests are simulated: those of so many trains."""
    return int(np.clip(round(inputs.rate * inputs.step / 1e3 * TRAINS), MIN_REQUESTS, MAX_REQUESTS))


@cache
def _carrier() -> tuple[Model, System]:
    return load_model(CARRIER[0]), load_system(CARRIER[1])


@lru_cache(maxsize=256)
def _simulated(step: float, rate: float, seats: int, seed: int, requests: int) -> tuple[Array, Array, Array]:
    """Return when each request arrives, departs and ends [s]."""
    import steptime as st
    from steptime.simulation.scheduling_policy import Policy

    traffic = st.open_loop(rate, requests, st.Lengths(mean=1), st.Lengths(mean=1), seed=seed)
    policy = Policy(kind="train", interval=step, max_num_seqs=seats)
    done = st.simulate(*_carrier(), traffic, policy=policy, engine="ideal")
    arrival, departure, end = (np.asarray(done.requests[name], dtype=float) for name in ("arrival", "scheduled", "finish"))
    return arrival, departure, end


def answer(inputs: Inputs) -> Answer:
    """Return the timetable, and how long requests take by simulation and by the closed form."""
    step, count = inputs.step / 1e3, simulated_requests(inputs)
    arrival, departure, end = _simulated(step, inputs.rate, inputs.seats, inputs.seed, count)
    took = end - arrival
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
            Figure(name="mean, simulated", value=took.mean(), unit="s", words="From arrival to the end of the ride."),
            Figure(name="mean, closed form", value=mean, unit="s", words="Half a step of waiting and a step of riding."),
            Figure(name="longest, simulated", value=took.max(), unit="s"),
            Figure(name="longest, closed form", value=worst, unit="s", words="Just missed one train, and rode the next."),
            Figure(name="a train takes", value=min(arrivals, inputs.seats), unit="requests", words="In the mean."),
            Figure(name="seats taken", value=min(full, 1.0), unit="%"),
            Figure(name="an H100 reads its memory in", value=drain, unit="s", words="Capacity over bandwidth."),
        ),
        formula=(
            f"longest = 2 step = 2 x {show(step, 's')} = {show(worst, 's')}",
            f"mean = 1.5 step = 1.5 x {show(step, 's')} = {show(mean, 's')}",
            f"seats taken = rate x step / seats = {inputs.rate:g} x {show(step, 's')} / {inputs.seats} = {full:.3g}",
        ),
        command=f"steptime simulate {' '.join(CARRIER)} --engine ideal --policy train --interval {step:g} "
        f"--rate {inputs.rate:g} --requests {count} --input 1 --output 1 --max-sequences {inputs.seats} --seed {inputs.seed}",
        python=python(
            "from steptime.simulation.scheduling_policy import Policy\n\n"
            f"traffic = st.open_loop({inputs.rate:g}, {count}, st.Lengths(mean=1), st.Lengths(mean=1), seed={inputs.seed})\n"
            f'policy = Policy(kind="train", interval={step:g}, max_sequences={inputs.seats})\n'
            f'requests = st.simulate("{CARRIER[0]}", "{CARRIER[1]}", traffic, policy=policy, engine="ideal").requests\n'
            '(requests["finish"] - requests["arrival"]).mean()'
        ),
        notes=(f"the simulation serves {count:,} requests of one ride each, with times of arrival at random (Poisson)",),
    )  # fmt: skip


def _sentence(step: float, arrivals: float, took: Any, full: float, mean: float, worst: float) -> str:
    if full > 1:
        return (
            f"{arrivals:.3g} requests come for each train and too few find a seat: the queue grows as long as they come, and "
            f"the last of them took {show(took.max(), 's')}. The closed form holds only while trains are not full."
        )
    words = (
        f"A request waits for the next train and rides it for {show(step, 's')}: {show(took.mean(), 's')} in the mean "
        f"({show(mean, 's')} by the closed form), {show(worst, 's')} if it just missed one. "
    )
    if full > 0.8 or took.max() > worst * 1.02:
        return words + f"Trains are {100 * full:.0f} % full, and some requests find no seat: they wait for one more."
    return words + "That does not depend on how many come, as long as all find a seat: a shorter step is the only help."


BOARD = Board(
    name="trains", order=70, section=4, inputs=Inputs, answer=answer, bar=(),
    title="Why does a request wait, even when the machine is not full?",
    spoken={"step": 20, "rate": 1000, "seats": 256},
    today={"step": 36, "rate": 1500, "seats": 64},
)  # fmt: skip
