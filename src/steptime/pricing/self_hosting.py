"""Own chips against an API: cost of a volume of tokens on a fleet of whole hosts, and the break-even volume.

An API sells each request at a price `p`. A fleet costs its rent, busy or not. A unit of the fleet, with rent `R` per second,
serves `m` requests/s within the limits. At the share `u` of that load its cost per request is R / (m u). Both costs are equal
at u = R / (m p), the break-even utilization. Above 1 the API is cheaper at any volume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError
from steptime.hardware.rental_prices import has_rent, rent_in_words, usd
from steptime.hardware.system import System
from steptime.number_checks import positive
from steptime.planning.fleet import MONTH, Fleet, replicas_per_host
from steptime.planning.plan_result import Plan
from steptime.planning.planner import MODES, plan
from steptime.pricing.market import NATIVE, Market, Mix, family_named, offers_of_seller, product_caveats, read_mix
from steptime.pricing.price_estimate import assumed
from steptime.pricing.price_lookup import find_offers
from steptime.pricing.serving_costs import SOLD_EVIDENCE, USUAL, plan_chips
from steptime.processes import map_in_processes
from steptime.result_base import Tabular, unit
from steptime.units import DAY, MILLION, counted, percent, show
from steptime.workload.workload import limits

# Units of a fleet among which the break-even volume is searched.
MOST_UNITS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """One way to get the tokens, and its cost."""

    name: str = field(metadata=unit("", "an API seller, or own chips"))
    usd_per_request: float = field(metadata=unit("USD", "cost of a request at this volume", key="usd_per_request"))
    usd_per_million_tokens: float = field(
        metadata=unit("USD", "cost per million tokens of the mix, input and output", key="usd_per_million_tokens")
    )
    usd_per_month: float = field(metadata=unit("USD", "cost of a month", key="usd_per_month"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SelfHosting(Tabular):
    """A volume of tokens at API prices and on own chips; as a table, one row per provision."""

    SCHEMA: ClassVar[str] = "steptime.self-hosting/1"
    ROWS: ClassVar[tuple[str, type]] = ("provisions", Provision)

    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    tokens_per_day: float = field(metadata=unit("tokens/day", "input and output tokens of a day", key="tokens_per_day"))
    rate: float = field(metadata=unit("requests/s", "requests, spread evenly over the day", key="requests_per_s"))
    mix: Mix = field(metadata=unit("", "request"))
    speed: float = field(metadata=unit("tok/s", "speed of each user"))
    ttft_limit: float = field(default=math.inf, metadata=unit("s", "limit on the time to first token; null: none"))
    weights: str = field(default="", metadata=unit("", "weight format of hosts; native: as in the config"))
    ttft: float = field(default=math.nan, metadata=unit("s", "time to first token of the plan, at the 90th percentile"))
    feasible: bool = field(metadata=unit("", "whether the system serves the model at that speed"))
    reason: str = field(default="", metadata=unit("", "why it does not"))
    sellers: int = field(metadata=unit("", "sellers in the median"))
    provisions: tuple[Provision, ...] = field(metadata=unit("", "API prices, and own chips"))
    mode: str = field(default="", metadata=unit("", "serving mode of the plan"))
    layout: str = field(default="", metadata=unit("", "layout of the plan"))
    evidence: str = field(default="", metadata=unit("", "evidence for the layout, as in a plan"))
    fleet: Fleet | None = field(default=None, metadata=unit("", "hosts for this volume"))
    break_even_utilisation: float = field(
        default=math.nan, metadata=unit("", "cost of own chips at full load over the median API price")
    )
    break_even_tokens_per_day: float = field(
        default=math.nan,
        metadata=unit(
            "tokens/day",
            "volume from which on own chips cost less than the median seller, with the cheapest of fleets; null: at none",
            key="break_even_tokens_per_day",
        ),
    )
    cheapest_break_even_utilisation: float = field(
        default=math.nan, metadata=unit("", "cost of own chips at full load over the cheapest API price")
    )
    cheapest_break_even_tokens_per_day: float = field(
        default=math.nan,
        metadata=unit(
            "tokens/day",
            "volume from which on own chips cost less than the cheapest seller too; null: at none",
            key="cheapest_break_even_tokens_per_day",
        ),
    )
    notes: tuple[str, ...] = field(default=(), metadata=unit("", "limitations"))

    @property
    def cheaper(self) -> str:
        """Name of the cheapest provision."""
        return min(self.provisions, key=lambda provision: provision.usd_per_month).name

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return the volume, and the cost of a month of each provision.

        Returns:
            Title, and cost by provision.
        """
        title = f"{show(self.tokens_per_day)} tokens a day of {self.model}"
        return title, {provision.name: f"{usd(provision.usd_per_month)} per month" for provision in self.provisions}


def compare_self_hosting(
    model: str,
    system: SystemLike,
    *,
    tokens_per_day: float,
    speed: float = 40.0,
    ttft: float | None = None,
    mix: Mix | str | None = None,
    mode: tuple[str, ...] = MODES,
    chips: int | None = None,
    provider: str | None = None,
    spare: int = 0,
    evidence: str = SOLD_EVIDENCE,
    catalog: str | None = None,
) -> SelfHosting:
    """Compare API prices of a volume of tokens with own chips.

    Args:
        model: Model with open weights that is sold.
        system: System with a rent.
        tokens_per_day: Input and output tokens of a day.
        speed: Speed of each user [tok/s].
        ttft: Limit on the time to first token [s]; None: no limit.
        mix: Request, as "4096:1024:0.5" or a `Mix`.
        mode: Serving modes; the plan uses the cheapest.
        chips: Chips of the plan; by default the number with the cheapest fleet, among multiples of the usual number of the
            system up to 64 or one domain.
        provider: Only this seller.
        spare: Further replicas of the fleet.
        evidence: Layouts to prefer, as in `plan`.
        catalog: Folder of additional catalogue entries.

    Returns:
        Costs of both, and the volume from which own chips are cheaper.

    Raises:
        InputError: Nobody sells the model, or the system has no known rent.
    """
    volume = float(positive("tokens_per_day", tokens_per_day, "tokens/day"))
    request, product, machine = read_mix(mix), family_named(model), resolve_system(system)
    if not has_rent(machine.rent):
        raise InputError(
            f"no rent of {machine.chip.name} is known, so costs are unknown; choose a system with a rent, such as hgx-h100"
        )
    offers = find_offers(product.family)
    if not offers:
        raise InputError(f"no seller of {product.family} is known")
    if provider is not None:
        offers = offers_of_seller(offers, provider, product.family)
    loaded = product.load(catalog)
    prices = tuple(request.price(offer) for offer in offers)
    market = Market(
        model=loaded.name, family=product.family, variant=product.variant, weights=product.weights, mix=request, speed=speed,
        offers=offers, prices=prices, costs=(), margins=(), left_out={},
    )  # fmt: skip
    tokens = request.input_tokens + request.output_tokens
    rate = volume / DAY / tokens
    plans = _plans(
        partial(
            plan, loaded, machine, request.workload(), limits(speed=positive("--speed", speed, "tok/s"), ttft=ttft), modes=mode,
            rate=rate, spare=spare, evidence=evidence, alternatives=False, elasticities=False, front=False, diagnostics=False,
        ),
        _plan_sizes(machine) if chips is None else [chips],
    )  # fmt: skip

    def provision(name: str, usd_per_request: float) -> Provision:
        return Provision(
            name=name, usd_per_request=usd_per_request, usd_per_million_tokens=usd_per_request / tokens * MILLION,
            usd_per_month=usd_per_request * rate * MONTH,
        )  # fmt: skip

    first = min(market.counted, key=lambda index: prices[index])
    sellers = len(market.counted)
    provisions = [provision(f"API, {offers[first].provider}" + (" (cheapest)" if sellers > 1 else ""), prices[first])]
    if sellers > 1:
        provisions.append(provision("API, median seller", market.median_price))
    deployment = plans[0]
    common = SelfHosting(
        model=loaded.name, system=machine.name, tokens_per_day=volume, rate=rate, mix=request, speed=speed,
        ttft_limit=math.inf if ttft is None else ttft, weights=product.weights,
        feasible=deployment.feasible, reason=deployment.reason, sellers=sellers, provisions=tuple(provisions),
        notes=tuple(product_caveats(product, loaded, request)),
    )  # fmt: skip
    return common if deployment.fleet is None else _with_fleet(
        common, plans, deployment.fleet, machine, market.median_price, _same_fleet(common, deployment, evidence, mode)
    )  # fmt: skip


def _plan_sizes(machine: System) -> list[int]:
    """Return multiples of the usual number of chips of a system, up to the chips of a seller's plan."""
    usual, largest = plan_chips(machine, USUAL), plan_chips(machine)
    return [usual * n for n in range(1, max(1, largest // usual) + 1)]


def _plan_of_size(search: Callable[..., Plan], chips: int) -> Plan | InputError:
    """Return the plan of a number of chips, or why they cannot hold the model."""
    try:
        return search(chips=chips)
    except InputError as problem:
        return problem


def _plans(search: Callable[..., Plan], sizes: Sequence[int]) -> list[Plan]:
    """Return plans of several numbers of chips, the cheapest fleet first; raise InputError where none holds the model."""
    results = map_in_processes(partial(_plan_of_size, search), sizes)
    plans = [result for result in results if isinstance(result, Plan)]
    if not plans:
        # The largest number has the clearest reason.
        raise next(result for result in reversed(results) if isinstance(result, InputError))
    return sorted(plans, key=lambda option: math.inf if option.fleet is None else option.fleet.usd_per_month)


def _unit(fleet: Fleet) -> FleetUnit:
    """Return what a fleet grows by."""
    per_host, hosts_each = replicas_per_host(fleet.replica_chips, fleet.chips // fleet.hosts)
    return FleetUnit(
        capacity=fleet.rate / fleet.utilisation / fleet.replicas,
        host_rent=fleet.usd_per_month / MONTH / fleet.hosts,
        per_host=per_host,
        hosts_each=hosts_each,
    )


def _same_fleet(common: SelfHosting, deployment: Plan, evidence: str, modes: tuple[str, ...]) -> str:
    """Say how `compare` differs by default, and which of its commands has the same fleet."""
    mix, fleet = common.mix, deployment.fleet
    options = [
        "" if common.weights == NATIVE else f"--weights {common.weights}",
        f"--tokens-per-day {common.tokens_per_day:.12g} --input {mix.input_tokens:g}",
        f"--output {mix.output_tokens:g}",
        f"--cached {mix.cached_share:g}" if mix.cached_share else "",
        f"--speed {common.speed:g}",
        f"--ttft {common.ttft_limit:g}" if math.isfinite(common.ttft_limit) else "",
        f"--chips {deployment.chips} --evidence {evidence}",
        f"--mode {modes[0]}" if len(modes) == 1 else "",
        f"--spare {fleet.spare}" if fleet is not None and fleet.spare else "",
    ]
    share = mix.output_tokens / (mix.input_tokens + mix.output_tokens)
    return (
        f"{percent(share)} of these tokens are output. compare and plan have other defaults: 50 % output, one number of "
        f"chips, measured layouts. The same fleet: steptime compare {common.model} {common.system} "
        f"{' '.join(filter(None, options))}"
    )


def _with_fleet(
    common: SelfHosting, plans: Sequence[Plan], fleet: Fleet, machine: System, price: float, same_fleet: str
) -> SelfHosting:
    """Return a comparison with the fleet of the first plan, and the volume from which fleets of any plan cost less."""
    deployment, units = plans[0], [_unit(option.fleet) for option in plans if option.fleet is not None]
    cheapest = common.provisions[0].usd_per_request
    break_even, below_all = (break_even_rate(api_price, units, spare=fleet.spare) for api_price in (price, cheapest))
    cost = fleet.usd_per_month / MONTH / common.rate
    tokens = common.mix.input_tokens + common.mix.output_tokens
    own_chips = Provision(
        name=f"own {counted(fleet.chips, 'chip')}", usd_per_request=cost, usd_per_million_tokens=cost / tokens * MILLION,
        usd_per_month=fleet.usd_per_month,
    )  # fmt: skip
    low, high = assumed("utilisation")
    full = min(unit.usd_per_request for unit in units)
    return replace(
        common, ttft=deployment.ttft, provisions=(*common.provisions, own_chips), mode=deployment.mode,
        layout=deployment.layout_text,
        evidence=deployment.evidence, fleet=fleet,
        break_even_utilisation=full / price, break_even_tokens_per_day=break_even * tokens * DAY,
        cheapest_break_even_utilisation=full / cheapest, cheapest_break_even_tokens_per_day=below_all * tokens * DAY,
        notes=(
            f"rent {rent_in_words(machine.rent)}; people, network and storage are not in it",
            "the volume arrives evenly over the day; hosts report that their chips are busy "
            f"{100 * low:.0f} to {100 * high:.0f} % of it, because users sleep: plan for the busiest hour (plan --rate)",
            same_fleet,
            *common.notes,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUnit:
    """What a fleet grows by: a replica of `capacity` [requests/s], on a part of a host or on `hosts_each` hosts.

    `host_rent` is in USD/s.
    """

    capacity: float
    host_rent: float
    per_host: int = 1
    hosts_each: int = 1

    @property
    def usd_per_request(self) -> float:
        """Cost of a request at full load [USD]."""
        return self.host_rent * self.hosts_each / self.per_host / self.capacity


def break_even_rate(price: float, units: Sequence[FleetUnit], *, spare: int = 0) -> float:
    """Return the rate from which on the cheapest fleet costs no more than the API.

    The rent of a fleet rises in steps, so that it may cost less at some lower rates too.

    Args:
        price: API price of a request [USD].
        units: Kinds of fleets.
        spare: Further replicas.

    Returns:
        Rate [requests/s]; NaN where fleets of any size cost more than the API at some rate.

    >>> break_even_rate(0.01, [FleetUnit(capacity=2, host_rent=0.004)])
    0.4
    >>> round(break_even_rate(0.01, [FleetUnit(capacity=2, host_rent=0.012)], spare=1), 6)
    4.8
    >>> break_even_rate(0.001, [FleetUnit(capacity=2, host_rent=0.004)])
    nan
    """
    replicas = np.arange(1, MOST_UNITS + 1)
    # Beyond the largest fleet of a kind, only the others count; all kinds are compared up to the smallest of these.
    largest = min(unit.capacity for unit in units) * MOST_UNITS
    ends = np.unique(np.concatenate([unit.capacity * replicas for unit in units]))
    ends = ends[ends <= largest]

    def rents(unit: FleetUnit) -> Any:
        count = np.ceil(ends / unit.capacity - 1e-9) + spare
        return np.ceil(count / unit.per_host) * unit.hosts_each * unit.host_rent

    # Between two ends, the rent is constant. It is below the price everywhere if it is so at the lower end.
    parity_rates = np.min([rents(unit) for unit in units], axis=0) / price
    starts = np.concatenate([[0.0], ends[:-1]])
    dear = np.nonzero(parity_rates > starts * (1 + 1e-12))[0]
    last = int(dear[-1])
    if last == len(ends) - 1:
        return math.nan
    return float(min(parity_rates[last], ends[last]))
