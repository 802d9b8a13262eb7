"""Price proposal: a price list for a target margin over cost, with the reason of each price.

The cost is the rent of a busy chip divided by the utilization of interactive chips (`utilisation` in the shipped facts). A
batch service fills the idle time, and pays for a busy chip only. Prices of long contexts, fast service and batch come from
plans of the same model on the same system.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from typing import ClassVar, Final, NamedTuple

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import Impossible, InputError
from steptime.hardware.rental_prices import has_rent, rent_in_words, usd
from steptime.hardware.system import System
from steptime.models.model import Model, cache_bytes_read
from steptime.models.model_loading import ModelLike, load_model, resolve_model
from steptime.number_checks import positive
from steptime.planning.planner import MODES as EITHER
from steptime.pricing.bundled_prices import match_family
from steptime.pricing.kv_storage_cost import Tier, tiers
from steptime.pricing.market import Mix, family_named, read_mix
from steptime.pricing.price_estimate import assumed
from steptime.pricing.price_list import PriceList, Rates
from steptime.pricing.serving_costs import TokenCost, cost_on
from steptime.processes import map_in_processes
from steptime.result_base import Tabular, unit
from steptime.units import HOUR, MILLION, percent, show
from steptime.workload.workload import Slo, Workload, limits

# Speed of the proposed fast service over standard, as sellers promise.
FASTER: Final = 2.5
# Cost over the first cost of a tier at which the next tier starts, as sellers' tiers do.
TURNED: Final = 1.5
# Cost over that of the base request up to which longer requests have the base price.
FLAT_PRICE_RATIO: Final = 1.1
# Longest prompt of models without a stated limit [tokens].
LONGEST: Final = 262_144
# Lifetimes of the two cache writes [s].
LIVES: Final = ((300.0, "5 minutes"), (3600.0, "an hour"))


@dataclass(frozen=True, slots=True)
class Line:
    """One proposed price."""

    name: str = field(metadata=unit("", "item"))
    usd: float = field(
        metadata=unit("USD", "price per million tokens, or per million tokens and hour; null: not for sale", key="usd")
    )
    reason: str = field(metadata=unit("", "reason of the price"))

    @property
    def written(self) -> str:
        """The price as text."""
        return usd(self.usd) if math.isfinite(self.usd) else "not sold"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Proposal(Tabular):
    """A price list for a target margin; as a table, one row per price."""

    SCHEMA: ClassVar[str] = "steptime.price-proposal/2"
    ROWS: ClassVar[tuple[str, type]] = ("lines", Line)

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    margin: float = field(metadata=unit("", "price over cost, including the cost of idle time"))
    utilisation: float = field(metadata=unit("", "utilization: share of the day in which interactive chips are busy"))
    mix: Mix = field(metadata=unit("", "request"))
    speed: float = field(metadata=unit("tok/s", "speed of each user"))
    cost: TokenCost = field(
        metadata=unit("", "cost of the request on a busy chip, with the mode, chips and layout of its plan")
    )
    lines: tuple[Line, ...] = field(metadata=unit("", "prices with reasons"))
    list: PriceList = field(metadata=unit("", "the same prices as a price list"))
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "limitations"))

    @property
    def text(self) -> str:
        """The answer in one sentence."""
        base = self.list.base
        return (
            f"Sell {self.model} on {self.system} at {self.margin:g} times its cost: per million tokens, {usd(base.input)} for "
            f"input, {usd(base.output)} for output, {usd(base.effective_cache_read)} for cached input."
        )

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the model and the main prices.

        Returns:
            Title, and price by item.
        """
        title = f"Proposed prices of {self.model} on {self.system} at price / cost of {self.margin:g}"
        return title, {line.name: line.written for line in self.lines[:5]}


def propose_prices(
    model: ModelLike,
    system: SystemLike,
    *,
    margin: float,
    speed: float = 40.0,
    mix: Mix | str | None = None,
    mode: tuple[str, ...] = EITHER,
    hold: Mapping[str, float] | None = None,
    chips: int | str | None = None,
    catalog: str | None = None,
) -> Proposal:
    """Propose a price list for a model on a system.

    All prices are proportional to the margin.

    Args:
        model: Model.
        system: System with a rent.
        margin: Target price over cost.
        speed: Speed of each user [tok/s].
        mix: Request, as "4096:1024:0.5" or a `Mix`.
        mode: Serving modes; the plan uses the cheapest.
        hold: Storage cost by memory tier [USD per GB-hour].
        chips: Chips of the plan: a number, or "usual" for the default of `plan`; by default 64, or one scale-up domain if that
            is larger.
        catalog: Folder of additional catalogue entries.

    Returns:
        Prices with reasons.

    Raises:
        InputError: The system has no known rent.
        Impossible: The system cannot serve the model at that speed.
    """
    positive("target margin", margin)
    request = read_mix(mix)
    machine, loaded = resolve_system(system), _loaded(model, catalog)
    if not has_rent(machine.rent):
        raise InputError(
            f"no rent of {machine.chip.name} is known, so costs are unknown; choose a system with a rent, such as hgx-h100"
        )

    # Geometric mean of the reported range of utilization.
    low, high = assumed("utilisation")
    busy = math.sqrt(low * high)
    works = _works(request, loaded)
    slo = limits(speed=positive("--speed", speed, "tok/s"))
    base, *longer = map_in_processes(partial(_cost, machine, loaded, slo, mode, chips), works)
    if not base.feasible:
        raise Impossible(f"{machine.name} cannot serve {loaded.name} at {speed:g} tok/s: {base.reason}")
    maker = _Maker(margin=margin, busy=busy, speed=speed, base=base, machine=machine, model=loaded, request=request)
    lines, rates = maker.base_prices(tiers(hold))

    # Longer contexts cost more; plans at doubled prompt lengths, up to the first that is not served, give the tiers.
    served = takewhile(lambda pair: pair[1].feasible, zip(works[1:], longer, strict=True))
    points = [_point(float(work.input_tokens), cost) for work, cost in served]
    refused_tokens = next((work.input_tokens for work in works[1 + len(points) :]), math.nan)
    steps_ = [(step, maker.tier_rates(step, rates)) for step in steps(maker.base_point, points)]
    lines += maker.tier_lines(steps_, points, refused_tokens)

    # Each tier has a fast and a batch service.
    services = list[Rates]()
    for cost, paid_rates in ((base, rates), *((step.cost, paid_rates) for step, paid_rates in steps_)):
        service_lines, service_rates = maker.services(cost, paid_rates, services)
        lines += service_lines
        services += service_rates
    listed = PriceList(
        provider="proposed", model=loaded.name, rates=(rates, *(paid_rates for _, paid_rates in steps_), *services),
        hold=LIVES[0][0], hold_long=LIVES[1][0], longest=points[-1].tokens if points else math.nan, speeds={"fast": FASTER},
        source="computed", grade="given",
    )  # fmt: skip
    notes = (
        f"prices cover idle time: chips of standard and fast service are assumed busy {percent(busy)} of the day "
        f"(reported: {100 * low:.0f} to {100 * high:.0f} %)",
        f"rent {rent_in_words(machine.rent)}",
        f"layout: {base.mode} mode on {base.chips:,} chips, {base.layout_text}",
    )
    return Proposal(
        model=loaded.name, system=machine.name, margin=margin, utilisation=busy, mix=request, speed=speed,
        cost=base, lines=tuple(lines), list=listed, notes=notes,
    )  # fmt: skip


def _loaded(model: ModelLike, catalog: str | None) -> Model:
    """Return a named model in the format that hosts use, or unchanged if nobody sells it."""
    if not isinstance(model, str):
        return resolve_model(model)
    try:
        return family_named(model).load(catalog)
    except InputError:
        # Nobody sells this variant of a known family.
        if match_family(model)[0]:
            raise
        return load_model(model, catalog=catalog)


def _works(request: Mix, model: Model) -> list[Workload]:
    """Return the request, and the same request with doubled prompts up to the longest that leaves room for the output."""
    longest = model.max_context - request.output_tokens if math.isfinite(model.max_context) else float(LONGEST)
    doublings = takewhile(lambda size: size < longest, (request.input_tokens * 2**power for power in count(1)))
    longer = [*doublings, longest] if longest > request.input_tokens else []
    return [
        request.workload(),
        *(Workload(input_tokens=size, output_tokens=request.output_tokens, input_spread=0.0) for size in longer),
    ]


def _cost(machine: System, model: Model, slo: Slo, mode: tuple[str, ...], chips: int | str | None, work: Workload) -> TokenCost:
    return cost_on(machine, model=model, workload=work, slo=slo, modes=mode, chips=chips)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Inputs of a price proposal."""

    margin: float
    busy: float
    speed: float
    base: TokenCost
    machine: System
    model: Model
    request: Mix

    @property
    def times(self) -> float:
        """Price over the cost of a busy chip."""
        return self.margin / self.busy

    @property
    def base_point(self) -> Point:
        """Token costs of the request."""
        # A plan divides the cost of prefill by all prompt tokens, cached ones included.
        point = _point(self.request.input_tokens, self.base)
        return point._replace(input=point.input / (1 - self.request.cached_share))

    def base_prices(self, memory: tuple[Tier, ...]) -> tuple[list[Line], Rates]:
        """Return the prices of input, output, cached input, cache writes and storage."""
        multiplier = f"x {self.margin:g} / {percent(self.busy)} busy"
        costs = {"input": self.base_point.input, "output": self.base_point.output}
        lines = [
            Line(name, cost * self.times, f"chip time of {name} tokens: {usd(cost)} {multiplier}")
            for name, cost in costs.items()
        ]
        input_price, output_price = (line.usd for line in lines)

        # A cache hit costs the transfer of KV bytes from host memory, plus their storage.
        bytes_ = float(cache_bytes_read(self.model, 32_768.0)) / 32_768
        host = self.machine.tiers[0] if self.machine.tiers else None
        width = float(host.bandwidth) if host is not None else float(self.machine.scale_up.link.bandwidth)
        load = bytes_ / width * float(self.machine.rent.typical) * MILLION
        stays = hold_cost_by_life(memory)

        # Storage is busy all day, so its price does not include idle time.
        hold_prices = [self.margin * bytes_ * usd_per_byte * MILLION for usd_per_byte, _ in stays]
        back = self.times * load + hold_prices[0]
        hit = min(back, input_price)
        reason = (
            f"transfer of {show(bytes_, 'B')} per token to the chip at {show(width, 'B/s')}, as chip time {multiplier}, "
            f"plus storage for {stays[0][1]}"
        )
        lines.append(Line("cached input", hit, reason if hit == back else f"same as input: {reason} cost {usd(back)}"))
        writes = [input_price + hold_price for hold_price in hold_prices]
        for (_, name), write, hold_price, (_, place) in zip(LIVES, writes, hold_prices, stays, strict=True):
            lines.append(Line(f"cache write, {name}", write, f"input plus storage for {place} ({usd(hold_price)})"))
        for tier in memory:
            hourly = self.margin * bytes_ * tier.usd_per_byte_second * HOUR * MILLION
            reason = f"{show(bytes_, 'B')} per token x {self.margin:g}; {tier.grade}"
            lines.append(Line(f"hold in {tier.name}, Mtok-hour", hourly, reason))
        return lines, Rates(
            input=input_price, output=output_price, cache_read=hit, cache_write=writes[0], cache_write_long=writes[1]
        )

    def tier_rates(self, step: Step, base: Rates) -> Rates:
        """Return the rates of a tier of long contexts, from its most expensive context."""
        input_price = step.input * self.times
        return Rates(
            above_tokens=step.above,
            input=input_price,
            output=step.output * self.times,
            cache_read=min(base.cache_read, input_price),
            cache_write=input_price + base.cache_write - base.input,
            cache_write_long=input_price + base.cache_write_long - base.input,
        )

    def tier_lines(self, step_rates: list[tuple[Step, Rates]], points: list[Point], refused: float) -> list[Line]:
        """Return the prices of long contexts with reasons, and the limit of the context."""
        lines = []
        for step, rates in step_rates:
            ratio = step.output / self.base.output_usd_per_million
            name, contexts = f"above {step.above:,.0f} tokens", f"at contexts up to {step.end:,.0f} tokens"
            lines += [
                Line(f"input {name}", rates.input, f"chip time of prefill {contexts}"),
                Line(f"output {name}", rates.output, f"{contexts}, an output token costs {ratio:.2f} times the base"),
            ]
        longest = points[-1].tokens if points else self.request.input_tokens
        if not step_rates:
            reason = f"up to {longest:,.0f} tokens, the cost per token is equal within {percent(FLAT_PRICE_RATIO - 1)}"
            lines.append(Line("long contexts", math.nan, reason))
        if math.isfinite(refused):
            reason = f"the system cannot serve prompts of {refused:,.0f} tokens at {self.speed:g} tok/s"
            lines.append(Line(f"above {longest:,.0f} tokens", math.nan, reason))
        return lines

    def services(self, cost: TokenCost, base: Rates, shorter: list[Rates]) -> tuple[list[Line], list[Rates]]:
        """Return a fast and a batch service; the price factor never falls with the context."""
        least = {rates.service: rates.output / base.output for rates in shorter}
        base_cost = float(cost.at_speed(self.speed))
        fast = float(cost.at_speed(self.speed * FASTER)) / base_cost
        slow = min((usd_ for _, usd_ in cost.front), default=math.nan) / base_cost
        is_sold = math.isfinite(fast)
        reason = f"cost at this speed: {fast:.2f} times standard"
        if not is_sold:
            reason = f"the maximum speed of a plan is {max((top for top, _ in cost.front), default=math.nan):,.0f} tok/s"
        elif least.get("fast", 0.0) > fast:
            fast, reason = least["fast"], f"{reason}; raised to the price of shorter contexts"

        # Batch runs in the idle time of interactive chips, so it pays for a busy chip only.
        share = max(slow * self.busy, least.get("batch", 0.0))
        filled = (
            f"no promised speed (x {slow:.2f} of the cost), and batch work fills the idle time of chips (x {self.busy:.2f})"
        )
        above = f", above {base.above_tokens:,.0f} tokens" if base.above_tokens else ""
        lines = [
            Line(f"output, fast ({FASTER:g} times {self.speed:g} tok/s){above}", base.output * fast, reason),
            Line(f"output, batch{above}", base.output * share, filled),
        ]
        factors = {"fast": fast, "batch": share} if is_sold else {"batch": share}
        rates = [
            Rates(service=name, above_tokens=base.above_tokens, input=base.input * factor, output=base.output * factor)
            for name, factor in factors.items()
        ]
        return lines, rates


def hold_cost_by_life(memory: tuple[Tier, ...]) -> list[tuple[float, str]]:
    """Return the storage cost of a byte for each lifetime, and its tiers.

    A cache may be read at any time, and moves to cheaper tiers as it ages. For the first five minutes it is in the cheapest
    tier that can be read within five minutes. After that it is in the cheapest tier that can be read within an hour. A longer
    lifetime therefore costs more.

    Args:
        memory: Tiers.

    Returns:
        Cost [USD per byte] and text, by lifetime.
    """
    hold_costs, cost, begun, words = [], 0.0, 0.0, list[str]()
    for life, _ in LIVES:
        able = [memory_tier for memory_tier in memory if memory_tier.drain <= life]
        tier = min(able or memory, key=lambda memory_tier: memory_tier.usd_per_byte_second)
        cost += tier.usd_per_byte_second * (life - begun)
        words.append(f"{show(life - begun, 's')} in {tier.name}")
        begun = life
        hold_costs.append((cost, ", then ".join(words)))
    return hold_costs


class Point(NamedTuple):
    """Token costs at a context length [USD per million tokens]."""

    tokens: float
    input: float
    output: float
    cost: TokenCost


def _point(tokens: float, cost: TokenCost) -> Point:
    return Point(tokens, cost.input_usd_per_million, cost.output_usd_per_million, cost)


class Step(NamedTuple):
    """A tier: its lower and upper context, and the highest token costs in it [USD per million tokens]."""

    above: float
    end: float
    input: float
    output: float
    cost: TokenCost


def steps(base: Point, points: list[Point]) -> list[Step]:
    """Divide contexts above the base into price tiers.

    A tier ends at the first context with `TURNED` times the cost of its first context. Its price is that of its most expensive
    context, so every request in it earns the margin, and never below that of the tier before. The base rates apply while the
    cost is the same within `FLAT_PRICE_RATIO`.

    Args:
        base: Costs of the base request.
        points: Costs of longer contexts, ascending.

    Returns:
        Tiers, the shortest contexts first.
    """
    price_steps: list[Step] = []
    above, first = base.tokens, base
    for point in points:
        ratios = point.input / first.input, point.output / first.output
        if price_steps or max(ratios) > FLAT_PRICE_RATIO:
            last = price_steps[-1] if price_steps else Step(above, above, 0.0, 0.0, base.cost)
            is_new = not price_steps or max(ratios) >= TURNED
            step = Step(
                above if is_new else last.above, point.tokens, max(point.input, last.input), max(point.output, last.output),
                point.cost,
            )  # fmt: skip
            if is_new:
                first = point
                price_steps.append(step)
            else:
                price_steps[-1] = step
        above = point.tokens
    return price_steps
