"""Base class of pipeline schedules, and the lookup of a schedule by name."""

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

# Forward passes of chunks in a simulated step; the largest takes about five seconds.
MAX_ITEMS: Final = 1_000_000


class Shape(NamedTuple):
    """Shape of a step: stages p, micro-batches m and virtual stages v of a device.

    Each is a number or an array.
    """

    p: Any
    m: Any
    v: Any


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that a schedule puts on the shape of a step.

    holds: whether the shape satisfies it; the shape may have arrays. reason: why not, as text; the shape has plain numbers.
    """

    holds: Callable[[Shape], Any]
    reason: Callable[[Shape], str]


class Schedule(ABC):
    """A schedule of `p` devices with `v` virtual stages for `m` micro-batches a step.

    A schedule is one final class in a module of this package. Times are those of a whole device for one micro-batch [s]: f
    is the forward pass, b the backward pass, w the part of b for the gradients of the weights. A device works m (f + b) per
    step.

    name, aliases: names that a user may type, in any case; aliases are names that engines use. virtual: virtual stages per
    device, 0 for any number from 2. split: whether the backward pass is split into gradients of inputs and of weights.

    copies: copies of the parameters on a device. conditions: conditions on p, m and v in addition to the number of virtual
    stages. source: URL of the description.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    virtual: ClassVar[int] = 1
    split: ClassVar[bool] = False
    copies: ClassVar[int] = 1
    conditions: ClassVar[tuple[Condition, ...]] = ()
    source: ClassVar[str]

    @abstractmethod
    def items(self, p: int, m: int, v: int, device: int) -> list[Item]:
        """Return the work of a device in a step, in order.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Items of the device.
        """

    @abstractmethod
    def idle(self, p: Number, m: Number, v: Number, f: Number, b: Number, w: Number, fb: Number | None = None) -> Number:
        """Return the idle seconds of a device in a step of equal stages; all broadcast.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].
            fb: A forward pass overlapped with a whole backward pass [s]; their sum if not given.

        Returns:
            Seconds.
        """

    @abstractmethod
    def in_flight(self, p: Number, m: Number, v: Number, device: Number = 0) -> Number:
        """Return the peak number of micro-batches whose activations are on a device.

        The first device has the most; with most schedules all devices have the same number. Activations count until the
        gradients of the weights are computed. All arguments broadcast.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.
            device: Index of the device, from 0.

        Returns:
            Micro-batches, in units of 1/p of the model.
        """

    def stagger(self, p: Number, v: Number, f: Number, b: Number, w: Number) -> Number:
        """Return the additional time of a step whose optimizer waits for all stages.

        It is not 0 where `idle` assumes an optimizer that does not wait for all stages.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.
            f: Forward pass of one micro-batch on a device [s].
            b: Whole backward pass of one micro-batch on a device [s].
            w: Part of `b` for the gradients of the weights [s].

        Returns:
            Seconds; broadcasts.
        """
        return 0.0 * (p + f)

    @abstractmethod
    def hops(self, p: Number, m: Number, v: Number) -> Number:
        """Return how many hops between devices a step waits for.

        Valid for hops that are far shorter than a pass.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Hops per step; broadcasts.
        """

    def paths(self, p: int, v: int) -> Array:
        """Return the path of micro-batches through the devices.

        Args:
            p: Pipeline stages (devices).
            v: Virtual stages per device.

        Returns:
            Device and chunk of each stage, (lanes, stages, 2).
        """
        return interleaved_path(p, v)

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """All conditions on p, m and v."""
        return (_virtual_stage_condition(self), *self.conditions)

    def legal(self, p: Number, m: Number, v: Number) -> Any:
        """Return whether the schedule can run; all broadcast.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            True or false, or an array of these.
        """
        shape, holds = Shape(*map(np.asarray, (p, m, v))), np.asarray(True)
        for condition in self.all_conditions:
            holds = holds & condition.holds(shape)
        return holds

    def check(self, p: int, m: int, v: int) -> None:
        """Check that the schedule can run.

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Raises:
            LayoutError: If a condition is not satisfied, with the reason.
        """
        shape = Shape(p, m, v)
        for condition in self.all_conditions:
            if not condition.holds(shape):
                raise LayoutError(f"schedule {self.name} {condition.reason(shape)}")

    def order(self, p: int, m: int, v: int = 1) -> Order:
        """Return the order of work of all devices in a step.

        The last orders are cached by (p, m, v).

        Args:
            p: Pipeline stages (devices).
            m: Micro-batches per step.
            v: Virtual stages per device.

        Returns:
            Order of the step.

        Raises:
            LayoutError: If the schedule cannot run.
            RangeError: If the step is too long to simulate.
        """
        return _order(self, p, m, v)


@lru_cache(maxsize=16)
def _order(schedule: Schedule, p: int, m: int, v: int) -> Order:
    schedule.check(p, m, v)
    if p * m * v > MAX_ITEMS:
        raise RangeError(
            f"a step of {p} stages x {m:,} micro-batches x {v} virtual stages is too long to simulate; "
            f"at most {MAX_ITEMS:,} in total"
        )
    return step_order(schedule.paths(p, v), m, [schedule.items(p, m, v, device) for device in range(p)])


def _virtual_stage_condition(schedule: Schedule) -> Condition:
    """Return the condition of a schedule on virtual stages."""
    number = schedule.virtual
    if number == 0:
        return Condition(
            lambda x: (x.v >= 2) & (x.m >= 1) & (x.p >= 1),
            lambda x: f"needs at least 2 virtual stages per device, got {x.v}; give --vpp 2, or take 1f1b",
        )
    words = "has no virtual stages" if number == 1 else f"has {number} virtual stages per device"
    return Condition(
        lambda x: (x.v == number) & (x.m >= 1) & (x.p >= 1),
        lambda x: f"{words}, got vpp={x.v}; leave --vpp out, or take interleaved",
    )


@cache
def known_schedules() -> dict[str, Schedule]:
    """Return all schedules by name.

    Each module of this package may define schedules.

    Returns:
        Schedule by name, sorted.
    """
    schedule_by_name: dict[str, Schedule] = {}
    for module in pkgutil.iter_modules(schedules.__path__):
        for value in vars(import_module(f"{schedules.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Schedule) and not isabstract(value):
                schedule_by_name[value.name] = value()
    return dict(sorted(schedule_by_name.items()))


def schedule_named(name: str) -> Schedule:
    """Return a schedule by its name or alias, in any case.

    Args:
        name: Name or alias; case, hyphens, underscores and spaces do not matter.

    Returns:
        Schedule.

    Raises:
        UnknownName: If no schedule has this name.

    >>> schedule_named("ZB1P").name, schedule_named("Interleaved1F1B").name
    ('zb-h1', 'interleaved')
    """
    schedule_by_name = known_schedules()
    plain_name = _folded_name(name)
    for schedule in schedule_by_name.values():
        if plain_name in map(_folded_name, (schedule.name, *schedule.aliases)):
            return schedule
    raise UnknownName("schedule", name, schedule_by_name, "Known: " + ", ".join(schedule_by_name) + ".")


# Condition of schedules that need more than one device.
TWO_STAGES: Final = Condition(lambda x: x.p >= 2, lambda x: f"needs at least 2 stages, got pp={x.p}")


def longest(*chains: Number) -> Number:
    """Return the longest of several chains of work; broadcasts.

    Args:
        *chains: Seconds of each chain.

    Returns:
        Seconds.
    """
    return reduce(np.maximum, chains)


def _folded_name(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")
