"""A serving engine in plain Python, step by step, written from the meaning of vLLM's v1 scheduler and of its pipeline.

It is the oracle of queueing: every request has a data-parallel rank and a micro-batch, and nothing is averaged. An engine has
one scheduler per rank. The ranks step together. With pipeline stages a micro-batch is in one stage at a time, and at most one
micro-batch per stage is under way. A sequence waits for its token before its next decode step; the next chunk of a prompt
follows the last one into the pipeline without a wait. The time of a step is a function from outside, so that a comparison
shows queueing alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(eq=False)
class Request:
    """A request: `made` tokens are known to the user, `done` tokens have a cache or are on their way to it."""

    arrival: float
    inputs: int
    outputs: int
    cached: int = 0
    made: int = 0
    done: int = 0
    first: float = math.nan
    finish: float = math.nan
    preempted: int = 0

    @property
    def left(self) -> int:
        """Tokens to compute before the next token is known; 0 while its step is under way."""
        return self.inputs + self.made - self.done


@dataclass
class Batch:
    """The work of one rank in a step: contexts of decoding sequences, and (tokens, tokens before them) of prompt chunks."""

    contexts: list[int] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    ends: list[Request] = field(default_factory=list)


class Rank:
    """The scheduler of a data-parallel rank: `budget` tokens a step, of which `chunk` for prompts, and `room` for cache."""

    def __init__(self, seats: int, budget: int, chunk: float, room: float) -> None:
        self.seats, self.budget, self.chunk, self.room = seats, budget, chunk, room
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    @property
    def load(self) -> int:
        """The score by which vLLM chooses a rank: 4 per waiting and 1 per running request."""
        return 4 * len(self.waiting) + len(self.running)

    def free(self) -> float:
        """Tokens of cache that are free; a prompt in progress holds its whole room."""
        return self.room - sum(max(r.done, r.inputs + r.made - 1) for r in self.running) if self.room < math.inf else math.inf

    def schedule(self) -> Batch:
        """Choose the work of the next step: decode first, then prompts in progress, then the queue."""
        batch, pressed = Batch(), False
        decoding = [r for r in self.running if r.made and r.left == 1]
        while self.free() < len(decoding):
            victim = self.running.pop()
            victim.done, victim.cached = 0, victim.cached if victim.cached < victim.inputs else 0
            victim.preempted += 1
            self.waiting.insert(0, victim)
            decoding = [r for r in decoding if r is not victim]
            pressed = True
        for r in decoding[: self.budget]:
            r.done += 1
            batch.contexts.append(r.done)
            batch.ends.append(r)

        # Prompts take what is left of the tokens.
        left = min(self.budget - len(batch.contexts), self.chunk)
        begun = [r for r in self.running if r.left > 1 or (r.left == 1 and not r.made)]
        while left > 0:
            if begun:
                r = begun.pop(0)
            elif self.waiting and not pressed and len(self.running) < self.seats:
                r = self.waiting[0]
                if r.inputs + r.made > self.free():
                    break
                self.running.append(self.waiting.pop(0))
                r.done = r.cached
            else:
                break
            tokens = int(min(left, r.left))
            if r.made and r.left == 1:
                batch.contexts.append(r.done + 1)
            else:
                batch.chunks.append((tokens, r.done))
            left -= tokens
            r.done += tokens
            if not r.left:
                batch.ends.append(r)
        return batch


class Engine:
    """A replica. `seconds` gives the time of a step on one stage from the batches of the ranks."""

    def __init__(
        self,
        seconds: Callable[[Sequence[Batch]], float],
        *,
        seats: int = 256,
        budget: int = 2048,
        chunk: float = math.inf,
        room: float = math.inf,
        ranks: int = 1,
        stages: int = 1,
    ) -> None:
        self.seconds, self.stages = seconds, stages
        self.ranks = [Rank(seats // ranks, budget, chunk, room / ranks) for _ in range(ranks)]
        # When each stage is free, and the micro-batches under way with their ends.
        self.stage_free = [0.0] * stages
        self.under_way: list[tuple[float, list[Batch]]] = []
        self.begun = 0

    @property
    def load(self) -> int:
        """Requests that the replica has and has not finished."""
        return sum(len(rank.waiting) + len(rank.running) for rank in self.ranks)

    def add(self, request: Request) -> None:
        """Give a request to the rank with the lowest load; of equals the next in turn."""
        k = min(range(len(self.ranks)), key=lambda k: (self.ranks[k].load, (k - self.begun) % len(self.ranks)))
        self.ranks[k].waiting.append(request)
        self.begun = k + 1

    def advance(self, now: float, until: float) -> None:
        """Run every step that starts before `until`; requests that came by `now` are in the queues."""
        clock = now
        while True:
            start = clock
            if len(self.under_way) == self.stages:
                start = max(start, self.under_way[0][0])
            self._return(min(start, until))
            if start >= until:
                return
            batches = [rank.schedule() for rank in self.ranks]
            if not any(batch.contexts or batch.chunks for batch in batches):
                # Nothing to start: wait for the next micro-batch that ends, or for the next arrival.
                if not self.under_way or self.under_way[0][0] >= until:
                    return
                clock = self.under_way[0][0]
                continue
            took, moment = self.seconds(batches), start
            for stage in range(self.stages):
                moment = max(moment, self.stage_free[stage]) + took
                self.stage_free[stage] = moment
            self.under_way.append((moment, batches))
            clock = start

    def _return(self, now: float) -> None:
        """Give the tokens of the micro-batches that have ended."""
        while self.under_way and self.under_way[0][0] <= now:
            end, batches = self.under_way.pop(0)
            for rank, batch in zip(self.ranks, batches, strict=True):
                for r in batch.ends:
                    r.made += 1
                    r.first = end if r.made == 1 else r.first
                    if r.made == r.outputs:
                        r.finish = end
                        rank.running.remove(r)


Router = Callable[[Sequence[Engine], int], int]


def round_robin(engines: Sequence[Engine], k: int) -> int:
    """The replicas in turn."""
    return k % len(engines)


def least_loaded(engines: Sequence[Engine], k: int) -> int:
    """The replica with the fewest requests; of equals the next in turn."""
    return min(range(len(engines)), key=lambda i: (engines[i].load, (i - k) % len(engines)))


def at_random(seed: int) -> Router:
    """Any replica with equal probability."""
    draw = random.Random(seed)
    return lambda engines, k: draw.randrange(len(engines))


def serve(requests: Sequence[Request], engines: Sequence[Engine], router: Router = round_robin) -> None:
    """Serve requests in order of arrival on replicas, to the end."""
    clocks = [0.0] * len(engines)
    for k, request in enumerate(requests):
        for i, engine in enumerate(engines):
            engine.advance(clocks[i], request.arrival)
            clocks[i] = request.arrival
        engines[router(engines, k)].add(request)
    for i, engine in enumerate(engines):
        engine.advance(clocks[i], math.inf)


def serve_pools(
    requests: Sequence[Request],
    prefill: Sequence[Engine],
    decode: Sequence[Engine],
    transfer: Callable[[Request], float],
    router: Router = round_robin,
) -> None:
    """Serve requests on a prefill pool, move their caches, and decode on another pool."""
    prompts = [Request(r.arrival, r.inputs, 1, r.cached) for r in requests]
    serve(prompts, prefill, router)
    moved = []
    for r, p in zip(requests, prompts, strict=True):
        r.first = p.finish + transfer(r) if r.outputs > 1 else p.finish
        r.finish = r.first
        if r.outputs > 1:
            moved.append((r.first, r, Request(r.first, r.inputs, r.outputs, cached=r.inputs, made=1)))
    moved.sort(key=lambda item: item[0])
    serve([copy for _, _, copy in moved], decode, router)
    for _, r, copy in moved:
        r.finish, r.preempted = copy.finish, copy.preempted


def figures(arrival: Any, first: Any, finish: Any, outputs: Any) -> dict[str, float]:
    """Return the mean, p50 and p90 of TTFT and TPOT, and output tokens per second."""
    arrival, first, finish, outputs = (np.asarray(x, dtype=float) for x in (arrival, first, finish, outputs))
    ttft, tpot = first - arrival, ((finish - first) / np.maximum(outputs - 1, 1))[outputs > 1]
    found = {"tokens/s": float(outputs.sum() / (finish.max() - arrival.min()))}
    for name, values in (("TTFT", ttft), ("TPOT", tpot)):
        if len(values):
            found |= {f"{name} mean": float(values.mean())}
            found |= {f"{name} p{q}": float(np.percentile(values, q)) for q in (50, 90)}
    return found


def figures_of(requests: Sequence[Request]) -> dict[str, float]:
    """Return the figures of served requests."""
    return figures(*([getattr(r, name) for r in requests] for name in ("arrival", "first", "finish", "outputs")))
