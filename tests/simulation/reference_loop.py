"""The same schedule one step at a time, in plain Python: slow, short, and the oracle of the tests.

Nothing is counted ahead: every step looks at every request in a seat. `loop` must give the same times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from steptime.simulation.loop_state import CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN, Rates, Rules

ROUND = 1e-9


@dataclass
class Job:
    """A request on its way: `kept` units of context in the cache, of which `read` tokens were read from the prompt."""

    index: int
    arrival: float
    inputs: int
    outputs: int
    rank: int
    cached: int
    load: float
    turn: int = 0
    ready: float = 0.0
    made: int = 0
    read: int = 0
    kept: int = 0
    decoding: bool = False
    owed: int = 0
    scheduled: float = math.nan
    first: float = math.nan
    finish: float = math.nan
    preempted: int = 0


class Server:
    """One replica: a queue and seats as lists, and a clock."""

    def __init__(self, rules: Rules, rates: Rates) -> None:
        self.rules, self.rates = rules, rates
        self.clock = 0.0
        self.queue: list[Job] = []
        self.seats: list[Job] = []
        self.padding: list[Job] = []  # of a static batch: done, but their seats are not free
        self.done: list[Job] = []
        self.turns = 0  # requests that came so far
        self.link_free = 0.0  # when the loads of all requests so far have ended

    def seconds(self, decode: list[Job], chunks: list[tuple[int, int]]) -> float:
        """Time of a step: decode sequences, and (tokens, tokens before them) of each chunk."""
        rates, rules, b = self.rates, self.rules, len(decode)
        context = sum(job.kept / rules.unit + 1.0 for job in decode)
        time = rates.decode[b] + rates.context[b] * context
        if chunks:
            attention = [rates.pair * (c * p + c * (c + 1) / 2) + rates.key * (c + p) for c, p in chunks]
            total = sum(c for c, _ in chunks)
            factor = _joint(rates.joint, b, total)
            time += _added(rates.rows, b, total)
            return float(factor * time + sum(attention) + rates.chunk * len(chunks))
        return float(time)

    def blocks(self, job: Job, more: int = 0) -> int:
        """Blocks that a seated request holds."""
        if self.rules.reserve:
            return -(-(job.inputs + job.outputs) * self.rules.unit // self.rules.block)
        units = job.kept + more if job.decoding else (job.inputs + job.made) * self.rules.unit
        return -(-units // self.rules.block)

    def free(self, more: int = 0) -> int:
        """Blocks left when every decoding sequence has grown by `more` units."""
        return self.rules.blocks - sum(self.blocks(job, more) for job in (*self.seats, *self.padding))

    def step(self, until: float) -> bool:
        """Run one step if it starts before `until`; return whether one ran."""
        rules = self.rules
        self.queue.sort(key=_turn)
        if not (self.queue or self.seats) or self.clock >= until or not self._departs(until):
            return False
        decode = [job for job in self.seats if job.decoding]
        first = rules.kind == PREFILL_FIRST
        chunks: list[tuple[int, int]] = []
        ended: list[Job] = []
        if first:
            self._read(min(rules.budget, rules.reads), chunks, ended)
        if not chunks:
            pressed = False
            while self.free(rules.growth) < 0:
                self._preempt()
                pressed = True
            decode = [job for job in self.seats if job.decoding]
            if rules.kind in (CONTINUOUS, TRAIN):
                budget = min(rules.budget - rules.query * len(decode), rules.reads)
                self._read(budget, chunks, ended, closed=pressed)
            elif rules.kind == STATIC and not decode:
                self._read(1 << 60, chunks, ended)
            decode = [job for job in self.seats if job.decoding]
            time = self.seconds([*decode, *self.padding], chunks)
        else:
            decode = []
            time = self.seconds([], chunks)
        if rules.kind == TRAIN:
            time = rules.interval * max(1.0, math.ceil(time / rules.interval - ROUND))
        self.clock += time
        if rules.kind == TRAIN:
            self.clock = float(np.rint(self.clock / rules.interval) * rules.interval)
        for job in (*decode, *(self.padding if not chunks else ())):
            job.kept += rules.growth
        for job in decode:
            job.owed -= 1
        self._settle([job for job in decode if job.owed == 0], ended)
        return True

    def _departs(self, until: float) -> bool:
        """Move the clock to when the next step starts; return whether that is before `until`, or nothing more comes."""
        rules = self.rules
        if not self.seats and not self._front():
            ready = min(job.ready for job in self._heads())
            if ready >= until and until < math.inf:
                return False
            self.clock = ready
        if rules.kind == TRAIN:
            departs = math.ceil(self.clock / rules.interval - ROUND) * rules.interval
            if departs >= until:
                return False
            self.clock = max(self.clock, departs)
        while rules.kind == STATIC and not self.seats and sum(job.ready <= self.clock for job in self.queue) < rules.seats:
            patient = min(job.arrival for job in self._heads() if job.ready <= self.clock) + rules.patience
            more = min((job.ready for job in self.queue if job.ready > self.clock), default=math.inf)
            leaves = max(self.clock, min(more, patient))
            if leaves >= until and until < math.inf:
                return False
            self.clock = leaves if leaves < math.inf else self.clock
            if self.clock >= patient or more == math.inf:
                break
        return True

    def _read(self, budget: int, chunks: list[tuple[int, int]], ended: list[Job], *, closed: bool = False) -> None:
        """Go on with the prompt that is half read, then seat what waits."""
        half = [job for job in self.seats if not job.decoding]
        while budget > 0:
            if half:
                job = half.pop(0)
            else:
                self.queue.sort(key=_turn)
                front = self._front()
                if closed or not front or len(self.seats) + len(self.padding) >= self.rules.seats:
                    break
                job = front[0]
                ready = job.cached == job.inputs + job.made
                units = (job.inputs + (job.outputs if self.rules.reserve else job.made)) * self.rules.unit
                units += self.rules.growth if ready and not self.rules.reserve else 0
                if -(-units // self.rules.block) > self.free(self.rules.growth):
                    break
                self.queue.remove(job)
                self.seats.append(job)
                job.read, job.scheduled = job.cached, self.clock if math.isnan(job.scheduled) else job.scheduled
                if ready:
                    job.first = self.clock if math.isnan(job.first) else job.first
                    self._join(job)
                    budget -= self.rules.query
                    continue
            tokens = min(job.inputs + job.made - job.read, budget)
            chunks.append((tokens, job.read))
            job.read += tokens
            budget -= tokens
            if job.read == job.inputs + job.made:
                ended.append(job)

    def _heads(self) -> list[Job]:
        """The front of each class."""
        return [job for k, job in enumerate(self.queue) if all(other.rank != job.rank for other in self.queue[:k])]

    def _front(self) -> list[Job]:
        """The request that is served next, if any front of a class is in the queue by now."""
        return [job for job in self._heads() if job.ready <= self.clock][:1]

    def _join(self, job: Job) -> None:
        job.decoding, job.kept = True, (job.inputs + job.made) * self.rules.unit
        job.owed = -(-(job.outputs - job.made - 1) * self.rules.unit // self.rules.growth)

    def _preempt(self) -> None:
        job = max(enumerate(self.seats), key=lambda item: (item[1].rank, item[0]))[1]
        self.seats.remove(job)
        if job.decoding:
            job.made = job.made + 1 + (job.kept // self.rules.unit - job.inputs - job.made)
        job.cached = 0 if job.cached == job.inputs else job.cached
        job.decoding, job.load = False, 0.0
        job.preempted += 1
        self.queue.append(job)

    def _settle(self, done: list[Job], ended: list[Job]) -> None:
        done.sort(key=lambda job: job.index)
        for job in ended:
            job.first = self.clock if math.isnan(job.first) else job.first
            if job.outputs == job.made + 1:
                done.append(job)
            else:
                self._join(job)
        for job in done:
            job.finish = self.clock
            self.done.append(job)
            self.seats.remove(job)
            if self.rules.kind == STATIC and job.outputs > 1:
                self.padding.append(job)
        if not self.seats:
            self.padding = []


def _turn(job: Job) -> tuple[int, float, int]:
    return job.rank, job.ready, job.turn


def _joint(table: Any, batch: int, rows: int) -> float:
    """Factor on a step with prompts, between the points of a table at powers of two, less one."""
    if 1 in table.shape:
        return 1.0
    by_rows = [np.interp(np.log2(1 + rows), np.arange(len(row)), row) for row in table]
    return float(np.interp(np.log2(1 + batch), np.arange(len(table)), by_rows))


def _added(table: Any, before: int, rows: int) -> float:
    """Seconds that `rows` more rows add to a pass of `before`."""
    return _rows(table, before + rows) - _rows(table, min(before, len(table) - 1))


def _rows(table: Any, rows: int) -> float:
    last = len(table) - 1
    return float(table[rows] if rows <= last else table[last] + (table[last] - table[last - 1]) * (rows - last))


def serve(requests: Any, rules: Rules, rates: Rates, *, clients: int = 0) -> list[Job]:
    """Serve rows of `pool.REQUEST` on one replica and return them as jobs; `clients` as in a closed loop."""
    names = ("arrival", "inputs", "outputs", "rank", "cached", "load")
    jobs = [Job(k, *(requests[name][k].item() for name in names)) for k in range(len(requests))]
    server = Server(rules, rates)
    coming = jobs[: clients or None]
    later = jobs[len(coming) :]
    while True:
        until = coming[0].arrival if coming else math.inf
        if server.step(until):
            for job in server.done if clients else ():
                _send(server, later, rules, server.clock + rules.extra_delay * (job.first - job.scheduled))
            server.done = []
            continue
        if not coming:
            return jobs
        job = coming.pop(0)
        if not server.seats and (not server.queue or rules.kind == STATIC):
            server.clock = max(server.clock, job.arrival)
        if not _admit(server, job, rules) and clients:
            _send(server, later, rules, job.arrival)


def _send(server: Server, later: list[Job], rules: Rules, now: float) -> None:
    while later:
        job = later.pop(0)
        job.arrival = now
        if _admit(server, job, rules):
            return


def _admit(server: Server, job: Job, rules: Rules) -> bool:
    room = job.inputs + job.outputs
    units = room * rules.unit + (rules.growth if rules.unit > 1 else 0)
    if job.inputs < 1 or job.outputs < 1 or room > rules.longest or -(-units // rules.block) > rules.blocks:
        return False
    server.turns += 1
    job.turn = server.turns
    job.ready = job.arrival + rules.before + rules.before_token * job.inputs
    if job.load > 0:
        job.ready = server.link_free = max(job.ready, server.link_free) + job.load
    server.queue.append(job)
    return True
