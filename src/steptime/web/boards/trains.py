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
SHOWN: Final = 0.15  # seconds of the timetable
TRAINS, FEWEST, MOST = 40, 200, 4000  # departures that are simulated, and requests at least and at most
QUANTILES: Final = 101
DRAINED: Final = "hgx-h100"


class Asked(Shared):
    """Requests at a rate, and trains at an interval."""

    step: float = slider(20, 8, 60, "a train departs every", "ms", "Time between two departures, full or not.", log=True)
    rate: float = slider(600, 50, 2000, "requests arrive", "a second", "Requests a second, at random times.", log=True)
    seats: int = slider(64, 1, 256, "seats of a train", "requests", "Requests that ride in one train at most.", log=True)
    seed: int = slider(0, 0, 99, "seed", "", "Another number, other arrivals.", more=True, step=1)


def requests_of(asked: Asked) -> int:
    """Return how many requests are simulated: those of so many trains."""
    return int(np.clip(round(asked.rate * asked.step / 1e3 * TRAINS), FEWEST, MOST))


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


def answer(asked: Asked) -> Answer:
    """Return the timetable, and how long requests take by simulation and by the closed form."""
    step, count = asked.step / 1e3, requests_of(asked)
    arrival, departure, end = _simulated(step, asked.rate, asked.seats, asked.seed, count)
    took = end - arrival
    shown = arrival < SHOWN
    share = np.linspace(0.0, 1.0, QUANTILES)
    each = asked.rate * step
    full = each / asked.seats
    mean, worst = float(mean_wait(step)), float(worst_wait(step))
    left = np.arange(1, int(SHOWN / step) + 1) * step
    drain = float(drains([DRAINED])[0])
    return Answer(
        tables={
            "requests": {
                "number": np.arange(int(shown.sum())) + 1, "arrival": arrival[shown], "departure": departure[shown],
                "end": end[shown],
            },
            "trains": {"departure": left},
            "waits": {
                "share": share, "simulated": np.quantile(took, share), "closed": step + share * step,
            },
        },
        marks={
            "step": step, "mean": mean, "worst": worst, "simulated_mean": took.mean(), "simulated_worst": took.max(),
            "shown": SHOWN, "full": full, "height": asked.rate * SHOWN,
        },
        sentence=_sentence(step, each, took, full, mean, worst),
        figures=(
            Figure(name="mean, simulated", value=took.mean(), unit="s", words="From arrival to the end of the ride."),
            Figure(name="mean, closed form", value=mean, unit="s", words="Half a step of waiting and a step of riding."),
            Figure(name="longest, simulated", value=took.max(), unit="s"),
            Figure(name="longest, closed form", value=worst, unit="s", words="Just missed one train, and rode the next."),
            Figure(name="a train takes", value=min(each, asked.seats), unit="requests", words="In the mean."),
            Figure(name="seats taken", value=min(full, 1.0), unit="%"),
            Figure(name="an H100 reads its memory in", value=drain, unit="s", words="Capacity over bandwidth."),
        ),
        formula=(
            f"longest = 2 step = 2 x {show(step, 's')} = {show(worst, 's')}",
            f"mean = 1.5 step = 1.5 x {show(step, 's')} = {show(mean, 's')}",
            f"seats taken = rate x step / seats = {asked.rate:g} x {show(step, 's')} / {asked.seats} = {full:.3g}",
        ),
        command=f"steptime simulate {' '.join(CARRIER)} --engine ideal --policy train --interval {step:g} "
        f"--rate {asked.rate:g} --requests {count} --input 1 --output 1 --max-sequences {asked.seats} --seed {asked.seed}",
        python=python(
            "from steptime.simulation.scheduling_policy import Policy\n\n"
            f"traffic = st.open_loop({asked.rate:g}, {count}, st.Lengths(mean=1), st.Lengths(mean=1), seed={asked.seed})\n"
            f'policy = Policy(kind="train", interval={step:g}, max_sequences={asked.seats})\n'
            f'requests = st.simulate("{CARRIER[0]}", "{CARRIER[1]}", traffic, policy=policy, engine="ideal").requests\n'
            '(requests["finish"] - requests["arrival"]).mean()'
        ),
        notes=(f"the simulation serves {count:,} requests of one ride each, with times of arrival at random (Poisson)",),
    )  # fmt: skip


def _sentence(step: float, each: float, took: Any, full: float, mean: float, worst: float) -> str:
    if full > 1:
        return (
            f"{each:.3g} requests come for each train and too few find a seat: the queue grows as long as they come, and the "
            f"last of them took {show(took.max(), 's')}. The closed form holds only while trains are not full."
        )
    words = (
        f"A request waits for the next train and rides it for {show(step, 's')}: {show(took.mean(), 's')} in the mean "
        f"({show(mean, 's')} by the closed form), {show(worst, 's')} if it just missed one. "
    )
    if full > 0.8 or took.max() > worst * 1.02:
        return words + f"Trains are {100 * full:.0f} % full, and some requests find no seat: they wait for one more."
    return words + "That does not depend on how many come, as long as all find a seat: a shorter step is the only help."


BOARD = Board(
    name="trains", order=70, section=4, asked=Asked, answer=answer, bar=(),
    title="Why does a request wait, even when the machine is not full?",
    spoken={"step": 20, "rate": 1000, "seats": 256},
    today={"step": 36, "rate": 1500, "seats": 64},
)  # fmt: skip
