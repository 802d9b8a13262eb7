"""Adds up the seconds of a pass: by term, by what it waits for, and as the ledger of lines that an explanation prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steptime.number_checks import Number
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operator, collective or overhead as the step recorded it.

    seconds [s] of one micro-batch in all layers that have it, `count` of them; compute and memory [s] are the two sides of an
    operator's roofline. What was asked for is `times` a `demand` of a chip, a `traffic` of links, or `count` times `each` [s].
    at_once: whether the levels of a network work at the same time, as where tokens are forwarded as they come.
    weight: how often its seconds count in the period of a cycle of micro-batches.
    """

    term: str
    name: str
    seconds: Number
    count: Number = 1
    compute: Number = 0.0
    memory: Number = 0.0
    demand: Demand | None = None
    times: Number = 1
    traffic: Traffic | None = None
    at_once: bool = False
    seconds_each: Number = 0.0
    weight: Number = 1.0

    @property
    def counted(self) -> Number:
        """Seconds of the step that are this entry's, over all micro-batches and stages [s]."""
        return self.seconds * self.weight


class Clock:
    """Sums of one part of a pass for one micro-batch: seconds by term and by resource, and busy seconds of each resource.

    `entries` are the lines behind the sums, kept where they are to be `explained`; terms and resources are left out where
    `parts` are not asked for, which takes half of the time.
    """

    def __init__(self, *, explained: bool = False, parts: bool = True) -> None:
        self.terms: dict[str, Number] = {}
        self.resources: dict[str, Number] = {}
        self.busy: dict[str, Number] = {}
        self.total: Number = 0.0
        self.explained, self.parts = explained, parts
        self.entries: list[Entry] = []

    def add(self, terms: Mapping[str, Number], blame: Mapping[str, Number], busy: Mapping[str, Number]) -> None:
        """Add seconds by term; `blame` divides them among resources, `busy` is how long each resource works [s]."""
        for seconds in terms.values():
            self.total = self.total + seconds
        accumulate(self.busy, busy)
        if self.parts:
            accumulate(self.terms, terms)
            accumulate(self.resources, blame)

    def record(self, term: str, seconds: Number, blame: Mapping[str, Number], busy: Mapping[str, Number], **line: Any) -> None:
        """Add the seconds of a term, as `add` does; `line`: what else its entry holds."""
        self.add({term: seconds}, blame, busy)
        if self.explained:
            self.entries.append(Entry(term=term, seconds=seconds, **line))

    def wait(self, name: str, count: Number, seconds_each: Number) -> None:
        """Add an overhead of the engine: `count` times `seconds_each` [s]."""
        seconds = count * seconds_each
        self.record(
            "overhead", seconds, {"overhead": seconds}, {"overhead": seconds}, name=name, count=count, seconds_each=seconds_each
        )


def accumulate(sums: dict[str, Number], values: Mapping[str, Number], times: Number = 1.0) -> None:
    """Add so many `times` the `values` to `sums`, name by name.

    >>> sums = {"a": 1.0}
    >>> accumulate(sums, {"a": 2.0, "b": 3.0}, 2.0)
    >>> sums
    {'a': 5.0, 'b': 6.0}
    """
    once = type(times) is float and times == 1
    for name, value in values.items():
        added = value if once else value * times
        sums[name] = sums[name] + added if name in sums else added
