"""What a pipeline schedule is, and how schedules are found by name."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from importlib import import_module
from inspect import isabstract
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from steptime.errors import LayoutError, RangeError, UnknownName
from steptime.number_checks import Array, Number
from steptime.training import schedules
from steptime.training.schedules.work_order import Item, Order, interleaved_path, step_order

MAX_ITEMS: Final = 1_000_000  # forward passes of chunks in a step that is walked through: some five seconds


class Shape(NamedTuple):
    """What conditions ask of: stages p, micro-batches m and virtual stages v of a device, numbers or arrays."""

    p: Any
    m: Any
    v: Any


@dataclass(frozen=True, slots=True)
class Condition:
    """What a schedule asks of a shape: whether it holds (of arrays too), and in words why not (of numbers)."""

    holds: Callable[[Shape], Any]
    reason: Callable[[Shape], str]


class Schedule(ABC):
    """A schedule of `p` devices that pass `m` micro-batches of a step, each device holding `v` virtual stages.

    A schedule is one final class in a module of this package. Times are those of the whole of a device for one micro-batch
    [s]: f forward, b backward, w the part of b that makes gradients of weights, so that a device works m (f + b) in a step.

    name, aliases: as typed, whatever the case; aliases are those of engines. virtual: virtual stages of a device, 0 for any
    number from 2. split: whether backward is split into gradients of inputs and of weights. copies: of the parameters that a
    device holds. post_validation: whether the closed form of idle time counts on an optimizer that does not wait for all
    stages; `stagger` is what a step loses otherwise. overlapped: whether it runs forward and backward passes as pairs.
    source: where it is described.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    virtual: ClassVar[int] = 1
    split: ClassVar[bool] = False
    copies: ClassVar[int] = 1
    post_validation: ClassVar[bool] = False
    overlapped: ClassVar[bool] = False
    source: ClassVar[str]

    @abstractmethod
    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return what a device does in a step, in order."""

    @abstractmethod
    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the seconds of a step in which a device has no work, on equal stages; all broadcast.

        fb: seconds of a forward and a whole backward pass overlapped; their sum if not given.
        """

    @abstractmethod
    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the most micro-batches whose activations a device holds at once, in those of a p-th of the model.

        The first device is the fullest; with most schedules all are alike. Activations count until the gradients of weights are
        made. All broadcast.
        """

    def stagger(self, p: Number, v: Number, f: Number, b: Number, w: Number) -> Number:
        """Return the seconds by which a step is longer if the optimizer waits for all stages; broadcasts."""
        return 0.0 * (p + f)

    def pairs(self, p: Number, m: Number, v: Number) -> Number:
        """Return how many micro-batches of a step go forward overlapped with one that goes backward; broadcasts."""
        return 0.0 * (p + m)

    @abstractmethod
    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return how many hops between devices a step waits for, each far shorter than a pass; broadcasts."""

    def crossings(self, p: Number, v: Number) -> Number:
        """Return how often a micro-batch goes from one device to another on its way forward, and as often back; broadcasts.

        >>> from steptime.training.schedules.schedule import schedule_named
        >>> [schedule_named(name).crossings(8, 2) for name in ("interleaved", "zbv")]
        [15, 14]
        """
        return v * (p - 1)

    def step(
        self,
        p: Number,
        m: Number,
        v: Number,
        f: Number,
        b: Number,
        w: Number,
        fb: Number | None = None,
        *,
        mean_over_slowest: Number = 1.0,
        hop: Number = 0.0,
        post_validation: bool = False,
    ) -> Number:
        r"""Return about how long a step takes [s]: the work of the slowest device, what it waits for the others, and hops.

        f, b, w, fb [s]: of the slowest device; mean_over_slowest: mean time of the others over its own, 1 on equal stages,
        where the step is as exact as `idle` is; hop [s] from device to device. Without post_validation the optimizer waits for
        all stages. All broadcast.

        >>> from steptime.training.schedules.schedule import schedule_named
        >>> float(schedule_named("1f1b").step(4, 8, 1, 1.0, 2.0, 1.0))
        33.0
        """
        overlap_seconds = 0.0 if fb is None else self.pairs(p, m, v) * (f + b - fb)
        idle_seconds = self.idle(p, m, v, f, b, w, fb)
        if not (post_validation and self.post_validation):
            idle_seconds = idle_seconds + self.stagger(p, v, f, b, w)
        return m * (f + b) - overlap_seconds + mean_over_slowest * idle_seconds + hop * self.hops(p, m, v)

    def paths(self, p: int, v: int) -> Array:
        """Return the path of micro-batches over (device, chunk)."""
        return interleaved_path(p, v)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the schedule asks of p, m and v beside what `virtual` says."""
        return ()

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """What the schedule asks of p, m and v."""
        return (_virtual_stage_condition(self), *self.conditions)

    def legal(self, p: Number, m: Number, v: Number) -> Any:
        """Return whether the schedule can run; all broadcast."""
        shape, holds = Shape(*map(np.asarray, (p, m, v))), np.asarray(True)
        for condition in self.all_conditions:
            holds = holds & condition.holds(shape)
        return holds

    def check(self, p: int, m: int, v: int) -> None:
        """Raise LayoutError with the reason where the schedule cannot run."""
        shape = Shape(p, m, v)
        for condition in self.all_conditions:
            if not condition.holds(shape):
                raise LayoutError(f"schedule {self.name} {condition.reason(shape)}")

    def order(self, p: int, m: int, v: int = 1) -> Order:
        """Return who does what in a step, in which order; remembered for some (p, m, v)."""
        return _order(self, p, m, v)


@lru_cache(maxsize=16)
def _order(schedule: Schedule, p: int, m: int, v: int) -> Order:
    schedule.check(p, m, v)
    if p * m * v > MAX_ITEMS:
        raise RangeError(
            f"a step of {p} stages x {m:,} micro-batches x {v} virtual stages is too long to walk through; "
            f"at most {MAX_ITEMS:,} in all"
        )
    return step_order(schedule.paths(p, v), m, [schedule.items(p, m, v, device) for device in range(p)])


def _virtual_stage_condition(schedule: Schedule) -> Condition:
    """Return what a schedule asks of virtual stages."""
    number = schedule.virtual
    if number == 0:
        return Condition(
            lambda x: (x.v >= 2) & (x.m >= 1) & (x.p >= 1),
            lambda x: f"needs at least 2 virtual stages on each device, not {x.v}; give --vpp 2, or take 1f1b",
        )
    words = "has no virtual stages" if number == 1 else f"has just {number} virtual stages on each device"
    return Condition(
        lambda x: (x.v == number) & (x.m >= 1) & (x.p >= 1),
        lambda x: f"{words}, and vpp={x.v} was asked for; leave --vpp out, or take interleaved",
    )


@cache
def known_schedules() -> dict[str, Schedule]:
    """Return every schedule by its name; each module of this package may define some."""
    schedule_by_name: dict[str, Schedule] = {}
    for module in pkgutil.iter_modules(schedules.__path__):
        for value in vars(import_module(f"{schedules.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Schedule) and not isabstract(value):
                schedule_by_name[value.name] = value()
    return dict(sorted(schedule_by_name.items()))


def schedule_named(name: str) -> Schedule:
    """Return a schedule by its name or an alias, whatever the case.

    >>> schedule_named("ZB1P").name, schedule_named("Interleaved1F1B").name
    ('zb-h1', 'interleaved')
    """
    schedule_by_name = known_schedules()
    plain_name = _folded_name(name)
    for schedule in schedule_by_name.values():
        if plain_name in map(_folded_name, (schedule.name, *schedule.aliases)):
            return schedule
    raise UnknownName("schedule", name, schedule_by_name, "Known: " + ", ".join(schedule_by_name) + ".")


def longest(*chains: Number) -> Number:
    """Return the longest of chains of work [s]; broadcasts."""
    return reduce(np.maximum, chains)


def _folded_name(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")
