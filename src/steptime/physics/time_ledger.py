"""Time ledger: sums of the seconds of a pass, by term and by resource.

It also records the lines that an explanation prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.number_checks import Number
from steptime.physics.network_time import Traffic
from steptime.physics.op_work import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operator, collective or overhead, as the step recorded it.

    seconds: Seconds of one micro-batch in all layers, `count` of them.
    compute, memory: The two times of an operator's roofline [s].
    demand, times: The work of an operator on a chip, and its multiple.
    traffic: The work of links.
    seconds_each: Seconds of one overhead, which occurs `count` times.
    at_once: Whether the levels of a network work at the same time, because tokens are forwarded as they arrive.
    weight: The weight of its seconds in the period of a cycle of micro-batches.
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
        """Seconds of this entry in the step, over all micro-batches and stages."""
        return self.seconds * self.weight


@dataclass(eq=False, kw_only=True)
class Clock:
    """Sums of one part of a pass for one micro-batch.

    There are seconds by term and by resource, and busy seconds of each resource. `entries` are the lines behind the sums,
    if `explained`. Terms or resources are missing without `has_terms` or `has_resources`; without both a pass takes half the
    time. `host`: seconds in which a host launches the kernels one by one.
    """

    explained: bool = False
    has_terms: bool = True
    has_resources: bool = True
    terms: dict[str, Number] = field(init=False, default_factory=dict)
    resources: dict[str, Number] = field(init=False, default_factory=dict)
    busy: dict[str, Number] = field(init=False, default_factory=dict)
    total: Number = field(init=False, default=0.0)
    host: Number = field(init=False, default=0.0)
    entries: list[Entry] = field(init=False, default_factory=list)

    def add(self, terms: Mapping[str, Number], blame: Mapping[str, Number], busy: Mapping[str, Number], **line: Any) -> None:
        """Add seconds.

        Args:
            terms: Seconds by term.
            blame: The same seconds by resource.
            busy: Busy seconds of each resource.
            line: Further fields of an `Entry` in the ledger, for seconds of one term.
        """
        for term, seconds in terms.items():
            self.total = self.total + seconds
            if self.explained and line:
                self.entries.append(Entry(term=term, seconds=seconds, **line))
        accumulate(self.busy, busy)
        if self.has_terms:
            accumulate(self.terms, terms)
        if self.has_resources:
            accumulate(self.resources, blame)

    def wait(self, name: str, count: Number, seconds_each: Number) -> None:
        """Add an overhead of the engine.

        Args:
            name: Name of the line.
            count: Number of occurrences.
            seconds_each: Seconds of one.
        """
        seconds = count * seconds_each
        self.total = self.total + seconds
        if self.explained:
            line = Entry(term="overhead", name=name, seconds=seconds, count=count, seconds_each=seconds_each)
            self.entries.append(line)
        for sums, is_kept in ((self.busy, True), (self.terms, self.has_terms), (self.resources, self.has_resources)):
            if is_kept:
                sums["overhead"] = sums["overhead"] + seconds if "overhead" in sums else seconds


def accumulate(sums: dict[str, Number], values: Mapping[str, Number], times: Number = 1.0) -> None:
    """Add `times` times the `values` to `sums`, name by name.

    Args:
        sums: Sums by name, which this function changes.
        values: Values by name.
        times: A factor.

    >>> sums = {"a": 1.0}
    >>> accumulate(sums, {"a": 2.0, "b": 3.0}, 2.0)
    >>> sums
    {'a': 5.0, 'b': 6.0}
    """
    # A product with 1 would copy each array.
    once = type(times) is float and times == 1
    for name, value in values.items():
        added = value if once else value * times
        sums[name] = sums[name] + added if name in sums else added
