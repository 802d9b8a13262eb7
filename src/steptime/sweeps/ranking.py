"""A ranking of models and systems for one workload and one SLO: the cheapest plan of each pair, and what reverses the order.

With a rate of requests each plan has its fleet, as in `plan --rate`. The order is then that of the rent of all hosts in a
month, with one kind of rent. With sessions each plan is that of `plan_sessions`.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Final

from steptime.catalog.data_files import files
from steptime.catalog.hardware_loading import SystemLike, resolve_system
from steptime.errors import InputError, RangeError, short_repr
from steptime.hardware.number_formats import missing_units
from steptime.hardware.rental_prices import KINDS, has_rent, kind_and_date, kind_asked, kind_in_words, rents_by_kind, usd
from steptime.hardware.rental_prices import with_rent as rented
from steptime.hardware.system import Rent, System
from steptime.models.model import Model, with_formats
from steptime.models.model_loading import ModelLike, resolve_model
from steptime.models.quantization import release_format
from steptime.number_checks import MOST_CHIPS, whole_number
from steptime.physics.compute_dtype import with_small_cache
from steptime.physics.engine import Engine, engine_for, load_engine, with_sampling
from steptime.physics.engine_releases import TOP_P
from steptime.planning.evidence import ANY as NO_EVIDENCE
from steptime.planning.evidence import EVIDENCE, MEASURED, PUBLISHED, check_evidence
from steptime.planning.fleet import MONTH, Fleet, size_fleet
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED
from steptime.planning.plan_result import Plan
from steptime.planning.planner import MODES, check_limits, likely_prefill, plan
from steptime.planning.session_hits import SessionCache
from steptime.planning.slo_probability import check_percentile
from steptime.planning.two_systems import LikelyPair
from steptime.processes import can_fork, map_in_processes
from steptime.questions.plan_question import read_rate
from steptime.result_base import Tabular, columns_by_key, range_columns, unit
from steptime.units import counted, percent, request_rate, show
from steptime.workload.sessions import Sessions
from steptime.workload.workload import Slo, Workload

COST: Final = "usd_per_million_output_tokens"
EVIDENCE_WORDS: Final = {
    MEASURED: "Measured kinds", PUBLISHED: "Kinds published elsewhere", NO_EVIDENCE: "Kinds that nobody ran"
}  # fmt: skip
# Pairs from which all are searched quickly and then the first ones wholly, and the number of these.
MANY_PAIRS, WHOLE_SEARCHES = 9, 3
# Pairs of systems that are tried, at most: those of four systems of one vendor. Each takes some seconds.
MOST_SYSTEM_PAIRS: Final = 12
# Pairs of systems of a model that are planned: those with the lowest cost per request by closed forms.
PLANNED_PAIRS: Final = 3
# Model, system of the decode pool and label; and the system of the prefill pool. A planned job has likely numbers of its chips
# too.
PairJob = tuple[tuple[Model, System, str], System]
PlannedJob = tuple[tuple[Model, System, str], System | None, tuple[int, ...] | None]
# Names in a note, at most.
MAX_NAMES: Final = 3
# Utilisation of a fleet below which a note says that other numbers of chips may serve the rate.
LOW_LOAD: Final = 0.5
# Kinds of rent, the preferred one first where systems have several.
RENT_KINDS: Final = ("contract", "ondemand", "owned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The cheapest plan of one model on one system, or with pools on two systems, or the reason for a missing plan."""

    place: int = field(
        default=0, metadata=unit("", "place from 1 by cost, or by output per chip if no rent is known at all; 0: no place")
    )
    quick: bool = field(default=False, metadata=unit("", "whether the plan comes from a quick search (`plan(quick=True)`)"))
    tied: bool = field(default=False, metadata=unit("", "whether its range of cost overlaps with the range of the cheapest"))
    model: str = field(metadata=unit("", "name of the model"))
    system: str = field(metadata=unit("", "name of the system"))
    label: str = field(
        default="", metadata=unit("", "name as the user wrote it, if two systems share a name; both names of two systems")
    )
    prefill_system: str = field(default="", metadata=unit("", "name of the system of the prefill pool; empty: the same system"))
    prefill_chips: int = field(default=0, metadata=unit("", "rented chips of that system; 0: the same system"))
    vendor: str = field(metadata=unit("", "vendor of the chip"))
    year: int = field(metadata=unit("", "year of the chip"))
    feasible: bool = field(metadata=unit("", "whether a plan meets the limits"))
    reason: str = field(default="", metadata=unit("", "why no plan meets the limits"))
    engine: str = field(default="", metadata=unit("", "name of the engine"))
    chips: int = field(default=0, metadata=unit("", "number of rented chips, those of both systems"))
    mode: str = field(default="", metadata=unit("", "aggregated or disaggregated"))
    layout_text: str = field(default="", metadata=unit("", "layout of each pool in words", key="layout"))
    usd_per_million_output_tokens: float = field(
        default=math.nan, metadata=unit("USD", "rent of all chips per million output tokens, prefill included", key=COST)
    )
    cost_range: tuple[float, float] | None = field(
        default=None, metadata=unit("USD", "90 % range of that cost", key=f"{COST}_range")
    )
    prefill_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "rent of the chip time for prefill, per million prompt tokens", key="prefill_usd_per_million_tokens"
        ),
    )
    decode_usd_per_million_tokens: float = field(
        default=math.nan,
        metadata=unit(
            "USD", "rent of the chip time for decode, per million output tokens", key="decode_usd_per_million_tokens"
        ),
    )
    tokens_per_second_per_user: float = field(
        default=math.nan, metadata=unit("tok/s", "output speed for each user", key="tokens_per_s_per_user")
    )
    ttft: float = field(default=math.nan, metadata=unit("s", "time to first token, at the percentile of the limits"))
    tokens_per_second_per_chip: float = field(
        default=math.nan, metadata=unit("tok/s", "output throughput per chip", key="tokens_per_s_per_chip")
    )
    tokens_per_second_per_kilowatt: float = field(
        default=math.nan, metadata=unit("tok/s", "output throughput per kW of power", key="tokens_per_s_per_kw")
    )
    power_basis: str = field(default="", metadata=unit("", "scope of that power: all-in, rack, whole, chip"))
    usd_per_month: float = field(
        default=math.nan, metadata=unit("USD", "rent of all hosts of the fleet for a month, with a rate", key="usd_per_month")
    )
    usd_per_month_range: tuple[float, float] | None = field(
        default=None,
        metadata=unit("USD", "its 90 % range: whole replicas at both ends of the throughput", key="usd_per_month_range"),
    )
    usd_per_million_output_tokens_at_rate: float = field(
        default=math.nan,
        metadata=unit(
            "USD",
            "rent of all hosts of the fleet per million output tokens at the rate",
            key="usd_per_million_output_tokens_at_rate",
        ),
    )
    replicas: int = field(default=0, metadata=unit("", "replicas of the fleet that serve the rate, without spares"))
    replica_chips: int = field(default=0, metadata=unit("", "chips of a replica of the fleet"))
    hosts: int = field(default=0, metadata=unit("", "whole hosts of the fleet, spares included"))
    fleet_chips: int = field(default=0, metadata=unit("", "chips of these hosts"))
    utilisation: float = field(
        default=math.nan, metadata=unit("", "rate over the requests that all replicas of the fleet but the spares can serve")
    )
    hit_share: float = field(
        default=math.nan, metadata=unit("", "share of prompt tokens that the prefix cache of sessions has")
    )
    hits_text: str = field(default="", metadata=unit("", "that share by memory tier, in words"))
    load_seconds: float = field(
        default=math.nan, metadata=unit("s", "mean time to load histories, which the first token contains", key="load_s")
    )
    needed_bytes: float = field(
        default=math.nan, metadata=unit("B", "bytes of a replica that hold 95 % of the tokens that repeat", key="needed_bytes")
    )
    rent: Rent = field(default=Rent(), metadata=unit("", "rent of a chip: kind, term, date, grade and source"))
    other_rents: tuple[str, ...] = field(
        default=(), metadata=unit("", "kinds of rent of a system without the kind asked for", left_out=True)
    )
    runs: int = field(default=0, metadata=unit("", "measured runs on this system that the engine was fitted to"))
    rests_on: str = field(default="", metadata=unit("", "basis of the range"))
    evidence: str = field(
        default="", metadata=unit("", "kind of the layout: measured, published elsewhere, or any for one that nobody ran")
    )
    plan: Plan | None = field(default=None, metadata=unit("", "the plan itself", left_out=True))

    @property
    def cost(self) -> float:
        """Cost that orders pairs: USD per month of the fleet, or USD per million output tokens without one; NaN if unknown."""
        return self.usd_per_month if self.replicas else self.usd_per_million_output_tokens

    @property
    def range_of_cost(self) -> tuple[float, float] | None:
        """90 % range of `cost`."""
        return self.usd_per_month_range if self.replicas else self.cost_range


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ranking(Tabular):
    """Pairs of models and systems, the cheapest first.

    Pairs without a rent follow, ordered by output per chip, then pairs without a plan. `flips` lists changes of rent, format or
    engine that would reverse the order of the first two.
    """

    SCHEMA: ClassVar[str] = "steptime.ranking/2"

    workload: Workload = field(metadata=unit("", "requests to serve"))
    slo: Slo = field(metadata=unit("", "latency limits"))
    percentile: str = field(default="p90", metadata=unit("", "percentile of requests that meets the limits"))
    chips: str = field(
        default="", metadata=unit("", "chips of each system as asked: a number or any; empty: the system's usual number")
    )
    rate: float = field(
        default=math.nan,
        metadata=unit("requests/s", "requests to serve; null: full load of each plan", key="rate_requests_per_s"),
    )
    spare: int = field(default=0, metadata=unit("", "further replicas of each fleet"))
    sessions: Sessions | None = field(default=None, metadata=unit("", "sessions to serve; null: each request stands alone"))
    standings: tuple[Standing, ...] = field(metadata=unit("", "one entry per pair, the cheapest first"))
    flips: tuple[str, ...] = field(
        default=(), metadata=unit("", "changes of rent, format or engine, and whether they reverse the order of the first two")
    )

    @property
    def priced(self) -> tuple[Standing, ...]:
        """Standings with a plan and a cost, the cheapest first."""
        return tuple(standing for standing in self.standings if standing.feasible and math.isfinite(standing.cost))

    @property
    def first(self) -> Standing | None:
        """The cheapest standing; None where no pair has a plan and a cost."""
        return next(iter(self.priced), None)

    @property
    def second(self) -> Standing | None:
        """The standing after the cheapest."""
        return next(iter(self.priced[1:]), None)

    @property
    def is_fleet(self) -> bool:
        """Whether the order is that of fleets for a rate."""
        return math.isfinite(self.rate)

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        feasible = [standing for standing in self.standings if standing.feasible]
        if len(self.standings) == 1 and not feasible:
            return f"No plan meets the limits: {self.standings[0].reason.rstrip('.')}."
        if not feasible:
            return f"No plan meets the limits, for {len(self.standings)} pairs of model and system."

        # Without any rent the order is by output per chip, so that no cost can be named.
        first, priced = feasible[0], self.priced
        if not priced:
            return (
                f"No rent is known. {self.called(first)} has the highest output: "
                f"{show(first.tokens_per_second_per_chip, 'tok/s')} per chip."
            )
        ties, other_pairs = sum(standing.tied for standing in priced[1:]), counted(len(priced) - 1, "other pair")
        tie_note = f"; {ties} of {other_pairs} may cost the same, since the ranges overlap" if ties else ""
        ends = first.range_of_cost
        span = "" if ends is None else f" (90 %: {usd(ends[0])} to {usd(ends[1])})"
        cost = f"{usd(first.cost)} per million output tokens, prefill included{span}"
        if self.is_fleet:
            fleet = f"{counted(first.hosts, 'host')} with {counted(first.fleet_chips, 'chip')}"
            cost = f"{usd(first.cost)} a month{span} for {request_rate(self.rate, 4)}, on {fleet}"
        return f"{self.called(first)} is the cheapest: {cost}{tie_note}."

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the order: rents of several kinds, and the basis of the first range."""
        near = [standing for standing in self.priced if standing.tied or standing.place == 1]
        if not near:
            return ()
        first, kinds = near[0], {standing.rent.kind: kind_in_words(standing.rent) for standing in near}
        notes = []
        if first.rests_on.startswith(("no run", "runs on other")):
            basis = first.rests_on.replace("runs on other", "the range comes from runs on other", 1)
            notes.append(f"{self.called(first)}: {basis}")
        if len(kinds) > 1:
            words = ", ".join(kinds.values())
            notes.append(f"the first rows have rents of several kinds ({words}); compare like with like by --rent contract")
        most_of_pair, most_of_one = (
            max((standing.chips for standing in self.priced if bool(standing.prefill_system) == is_pair), default=0)
            for is_pair in (True, False)
        )
        if most_of_pair > most_of_one > 0:
            notes.append(
                f"pairs have up to {most_of_pair} chips, single systems up to {most_of_one}: as many chips of one system may "
                f"be cheaper (--chips {most_of_pair})"
            )
        return (*notes, *self._load_notes(), *self._evidence_notes())

    def _load_notes(self) -> Iterator[str]:
        """Yield a note where the usual chips of a system are more than the rate needs."""
        idle = [row for row in self.priced if row.utilisation < LOW_LOAD]
        if idle and not self.chips:
            names = ", ".join(self.called(row) for row in idle[:MAX_NAMES])
            excess = f" and {len(idle) - MAX_NAMES} more" if len(idle) > MAX_NAMES else ""
            yield (
                f"at this rate, less than half of a replica is used on {names}{excess}: plans have the usual chips of each "
                "system, and --chips any also tries fewer and more"
            )

    def _evidence_notes(self) -> Iterator[str]:
        """Yield a note where layouts have unlike evidence, or none."""
        places = {level: [standing for standing in self.priced if standing.evidence == level] for level in EVIDENCE}
        words = []
        for level, standings in places.items():
            if standings:
                names = ", ".join(self.called(standing) for standing in standings[:MAX_NAMES])
                excess = f" and {len(standings) - MAX_NAMES} more" if len(standings) > MAX_NAMES else ""
                words.append(f"{EVIDENCE_WORDS[level]}: {names}{excess}")
        if len(words) > 1:
            weakest = next(level for level in reversed(EVIDENCE) if places[level])
            yield f"layouts have unlike evidence. {'. '.join(words)}. --evidence {weakest} lets every pair use all these kinds"
        elif places[NO_EVIDENCE]:
            yield words[0]

    def called(self, standing: Standing) -> str:
        """Return the name of a standing: its system, and its model if there are several.

        Args:
            standing: One entry of this ranking.

        Returns:
            The name.
        """
        several = len({row.model for row in self.standings}) > 1
        system = standing.label or standing.system
        return f"{standing.model} on {system}" if several else system

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title, and the cost of the first five pairs.

        Returns:
            The title, and costs or reasons in words by pair.
        """
        suffix = " a month" if self.is_fleet else ""
        figures = {
            f"{standing.model} on {standing.system}": f"{usd(standing.cost)}{suffix}"
            if standing.feasible
            else standing.reason[:100]
            for standing in self.standings[:5]
        }
        return f"Ranking of {len(self.standings):,} pairs of model and system", figures

    def columns(self) -> dict[str, Any]:
        """Return one row per pair; a rent as kind, date and USD/s, a range as two columns.

        Returns:
            Columns by name, one value per pair.
        """
        table = columns_by_key(Standing, self.standings)
        del table["rent"]
        for name in (COST, "usd_per_month"):
            table[f"{name}_low"], table[f"{name}_high"] = range_columns(table.pop(f"{name}_range"))
        table["rent_usd_per_s"] = [float(standing.rent.typical) for standing in self.standings]
        return table | {"rent": [kind_and_date(standing.rent) for standing in self.standings]}


# Fields of a standing that are those of its plan.
FROM_PLAN: Final = (
    "engine", "chips", "mode", "layout_text", COST, "cost_range", "prefill_usd_per_million_tokens",
    "decode_usd_per_million_tokens", "tokens_per_second_per_user", "ttft", "tokens_per_second_per_chip", "evidence",
)  # fmt: skip
# Value of `chips` for the cheapest number of chips.
ANY: Final = "any"
# Bounds of the largest number of chips that the search for the cheapest number tries.
SCANNED, MOST_SCANNED = 64, 1024


def compare(
    models: ModelLike | Sequence[ModelLike],
    systems: SystemLike | Sequence[SystemLike] | None,
    workload: Workload,
    slo: Slo | None = None,
    *,
    chips: int | str | None = None,
    engine: Engine | str | None = None,
    modes: str | tuple[str, ...] = MODES,
    rent: str | float | None = None,
    sure: float | None = None,
    percentile: str = "p90",
    evidence: str = MEASURED,
    catalog: str | None = None,
    pairs: bool = False,
    rate: float | None = None,
    tokens_per_day: float | None = None,
    spare: int = 0,
    sessions: Sessions | None = None,
    prefix_cache: Callable[[System], Mapping[str, float]] | None = None,
    has_flips: bool = True,
) -> Ranking:
    """Return the cheapest plan of each model on each system, the cheapest pair first.

    Args:
        models: One or several names, paths or models.
        systems: One or several names, paths or systems; None: all systems of the catalogue.
        workload: Requests to serve.
        slo: Limits on latencies at `percentile`; None: no limits.
        chips: Chips of each system; by default the usual number of each system. "any" searches the cheapest number among
            powers of two up to the larger of a domain and `SCANNED`.
        engine: Engine of all plans; by default each system's own.
        modes: Deployment modes, as for `plan`.
        rent: Kind of rent ("owned", "contract", "ondemand"), or USD per chip-hour for all systems. A system without that
            kind has no cost.
        sure: Required probability that a plan meets each limit, as for `plan`.
        percentile: Percentile of requests that meets the limits, as for `plan`.
        evidence: Kinds of layouts to prefer, as for `plan`.
        catalog: Folder that is searched before the packaged catalogue.
        pairs: Whether to try a prefill pool on one system and a decode pool on another of the same vendor too, by quick
            searches. `chips` then decode. Closed forms rank these pairs, and the first `PLANNED_PAIRS` of a model are
            planned.
        rate: Requests to serve [requests/s]: each plan gets its fleet, and the order is that of USD per month. Without `rent`,
            all systems have one kind of rent (`common_kind`).
        tokens_per_day: Input and output tokens of a day, in place of a rate.
        spare: Further replicas of each fleet.
        sessions: Sessions in place of `workload`; a rate counts turns.
        prefix_cache: Function from a system to the capacity of its prefix cache for one replica by tier [B], for sessions.
        has_flips: Whether to find what would reverse the order, which takes up to as long as the plans.

    Returns:
        One standing per pair of model and system, and per pair of systems; one without a plan has a `reason`.

    Raises:
        InputError: If an input is wrong for all pairs.
        RangeError: If there is nothing to compare, or `chips` is out of bounds.
    """
    loaded = list({model.name: model for model in map(resolve_model, _several(models))}.values())
    distinct_systems, labels = _told_apart(files("systems", catalog) if systems is None else _several(systems))
    if not loaded or not distinct_systems:
        raise RangeError(f"{'models' if not loaded else 'systems'}: needs at least one to compare, got none")
    if isinstance(chips, str) and chips != ANY:
        raise RangeError(f"chips: must be a number or {ANY!r}, got {short_repr(chips)}")
    slo = slo or Slo()
    if chips is not None and chips != ANY:
        whole_number("chips", chips, maximum=MOST_CHIPS)

    # Inputs of all pairs are checked here, since errors of one plan are only reasons.
    check_limits(sure, slo)
    check_percentile(percentile)
    check_evidence(evidence)
    if prefix_cache is not None:
        for system in distinct_systems:
            prefix_cache(system)
    rate = read_rate(rate, tokens_per_day, workload, has_sessions=sessions is not None)
    if rate is None and spare:
        raise RangeError("spare: only a fleet has spare replicas; give a rate too (--rate)")
    whole_number("spare", spare, minimum=0, maximum=MOST_CHIPS)
    for name, value in (("rate", rate), ("sessions", sessions)):
        if pairs and value is not None:
            raise RangeError(f"pairs: have no {name}; leave out pairs (--pairs), or {name}")
    engine = with_sampling(load_engine(engine, catalog), TOP_P) if isinstance(engine, str) else engine
    kind = common_kind(distinct_systems) if rate is not None and rent is None else rent
    machines = [_rented(system, kind) for system in distinct_systems]

    # Alternatives, which only the first two need, take less time than another plan of these two.
    plan_options: dict[str, Any] = {
        "engine": engine,
        "modes": modes,
        "sure": sure,
        "percentile": percentile,
        "evidence": evidence,
    }
    plan_options |= {
        "alternatives": chips != ANY and has_flips,
        "elasticities": False,
        "diagnostics": False,
        "rate": rate,
        "spare": spare,
    }
    subjects = [(model, system, label) for model in loaded for system, label in zip(machines, labels, strict=True)]
    jobs = system_pairs(loaded, machines, chips, modes) if pairs else []
    stand = partial(
        _standing,
        workload=workload,
        slo=slo,
        chips=chips,
        plan_options=plan_options,
        sessions=sessions,
        prefix_cache=prefix_cache,
    )
    is_quick = len(subjects) >= MANY_PAIRS
    # Processes need not load or compile the simulator where this one has it.
    singles: list[PlannedJob] = [(subject, None, None) for subject in subjects]
    find_standing = partial(_stand_any, stand, is_quick)
    loading: list[Standing] = []
    if is_quick and chips != ANY:
        while len(loading) < len(singles) and _needs_simulator(subjects):
            loading.append(find_standing(singles[len(loading)]))
    else:
        _load_simulator(subjects, workload, slo, chips, plan_options)
    # All other plans are found in one call, so that processes share the work.
    likely, unplanned = _likely_pairs(jobs, workload, slo, chips, plan_options)
    rows = map_in_processes(find_standing, [*likely, *singles[len(loading) :]])
    standings = tuple(_placed([*loading, *rows, *unplanned]))
    if is_quick:
        standings = tuple(_placed(_with_whole_searches(stand, standings, subjects)))
    chips_text = "" if chips is None else str(chips)
    ranking = Ranking(
        workload=workload, slo=slo, percentile=percentile, chips=chips_text, standings=standings, spare=spare,
        sessions=sessions, rate=math.nan if rate is None else rate,
    )  # fmt: skip
    return replace(ranking, flips=tuple(flips(ranking, subjects, plan_options))) if has_flips else ranking


def _load_simulator(
    subjects: Sequence[tuple[Model, System, str]],
    workload: Workload,
    slo: Slo,
    chips: int | str | None,
    plan_options: Mapping[str, Any],
) -> None:
    """Load the compiled simulator by quick plans before other processes start, so that they need not load or compile it."""
    options = {**plan_options, "alternatives": False, "quick": True, "front": False}
    for model, system, _ in subjects:
        if not _needs_simulator(subjects):
            return
        with suppress(InputError):
            plan(model, system, workload, slo, chips=chips if isinstance(chips, int) else None, **options)


def _needs_simulator(subjects: Sequence[tuple[Model, System, str]]) -> bool:
    """Return whether plans of several subjects in other processes would each load or compile the simulator."""
    if len(subjects) < 2 or not can_fork() or find_spec("numba") is None:
        return False
    serve = getattr(sys.modules.get("steptime.simulation.event_loop"), "serve", None)
    return serve is None or not serve.signatures


def common_kind(systems: Sequence[System]) -> str | None:
    """Return one kind of rent for systems that have several: contract where two systems have it, as a fleet runs for months.

    Args:
        systems: Systems.

    Returns:
        The first of `RENT_KINDS` that two systems have, else the one of the largest number; None where all usual rents are of
        one kind.
    """
    if len({system.rent.kind for system in systems if has_rent(system.rent)}) < 2:
        return None
    numbers = Counter(kind for system in systems for kind in rents_by_kind(system) if kind in RENT_KINDS)
    shared = [kind for kind in RENT_KINDS if numbers[kind] > 1]
    return shared[0] if shared else max(RENT_KINDS, key=lambda kind: numbers[kind])


def system_pairs(
    models: Sequence[Model], systems: Sequence[System], chips: int | str | None, modes: str | tuple[str, ...]
) -> list[tuple[tuple[Model, System, str], System]]:
    """Return the pairs of systems that can exchange KV caches: each with the system that decodes, and that of prefill.

    Args:
        models: Models.
        systems: Systems.
        chips: Chips that decode.
        modes: Deployment modes.

    Returns:
        Model, system of the decode pool and label; and the system of the prefill pool.

    Raises:
        RangeError: There are no such pairs, or too many, or pools or chips are not those of pairs.
    """
    if chips == ANY:
        raise RangeError(f"pairs: need a number of chips that decode, got {ANY}; leave out chips (--chips)")
    if DISAGGREGATED not in modes:
        raise RangeError(f"pairs: have separate pools, got mode {AGGREGATED}; leave out pairs (--pairs), or mode (--mode)")
    networked = [system for system in systems if not system.is_box]
    couples = [
        (decoding, prefilling)
        for decoding in networked
        for prefilling in networked
        if decoding.name != prefilling.name and decoding.chip.vendor == prefilling.chip.vendor
    ]
    if not couples:
        raise RangeError("pairs: need two systems of one vendor with a network, got none; name more systems")
    if len(models) * len(couples) > MOST_SYSTEM_PAIRS:
        raise RangeError(
            f"pairs: at most {MOST_SYSTEM_PAIRS} pairs of systems are tried, some seconds each, got "
            f"{len(models) * len(couples):,}; name up to 4 systems of a vendor, and one model"
        )
    return [
        ((model, decoding, f"{prefilling.name} (prefill) + {decoding.name}"), prefilling)
        for model in models
        for decoding, prefilling in couples
    ]


def _likely_pairs(
    jobs: Sequence[PairJob], workload: Workload, slo: Slo, chips: int | str | None, plan_options: Mapping[str, Any]
) -> tuple[list[PlannedJob], list[Standing]]:
    """Return the pairs of systems that are likely to be the cheapest of their model, and why the others are not planned.

    Each pair comes with its likely numbers of prefill chips.
    """
    settings = {name: plan_options[name] for name in ("engine", "percentile", "evidence")}
    find_pair = partial(_likely_pair, workload=workload, slo=slo, chips=chips, settings=settings)
    ranked_pairs = sorted(zip(map_in_processes(find_pair, jobs), range(len(jobs)), strict=True))
    likely: list[PlannedJob] = []
    unplanned: list[Standing] = []
    for pair, index in ranked_pairs:
        (model, _, _), _ = job = jobs[index]
        if sum(subject[0].name == model.name for subject, _, _ in likely) < PLANNED_PAIRS:
            likely.append((*job, pair.prefill_chips or None))
        else:
            reason = f"closed forms rank {PLANNED_PAIRS} other pairs of systems first, and only these are planned"
            unplanned.append(Standing(feasible=False, reason=reason, **_identity(*job)))
    return likely, unplanned


def _likely_pair(
    job: PairJob, *, workload: Workload, slo: Slo, chips: int | str | None, settings: Mapping[str, Any]
) -> LikelyPair:
    """Return what closed forms say of a pair of systems; those that cannot be planned come last, without prefill chips."""
    (model, decoding, _), prefilling = job
    try:
        count = chips if isinstance(chips, int) else None
        return likely_prefill(model, decoding, prefilling, workload, slo, chips=count, **settings)
    except InputError:
        return LikelyPair(is_unpriced=True, cost=math.inf, prefill_chips=())


def _stand_any(stand: Callable[..., Standing], is_quick: bool, job: PlannedJob) -> Standing:
    """Return the standing of a model on a system, or on two; two are searched quickly."""
    subject, prefill_system, prefill_chips = job
    is_quick = is_quick or prefill_system is not None
    return stand(subject, quick=is_quick, prefill_system=prefill_system, prefill_chips=prefill_chips)


def _several(subjects: Any) -> list[Any]:
    return list(subjects) if isinstance(subjects, list | tuple) else [subjects]


def _told_apart(candidates: Iterable[SystemLike]) -> tuple[list[System], list[str]]:
    """Return distinct systems, and labels for those that share a name."""
    systems: list[System] = []
    labels: list[str] = []
    for candidate in candidates:
        system = resolve_system(candidate)
        if system in systems:
            continue
        has_namesake = any(earlier.name == system.name for earlier in systems)
        mark = candidate if isinstance(candidate, str) else len(systems) + 1
        labels.append(f"{system.name} ({mark})" if has_namesake else "")
        systems.append(system)
    return systems, labels


def _rented(system: System, rent: str | float | None) -> System:
    """Return a system with a rent of the given kind; without any rent if unknown."""
    if rent is None:
        return system
    try:
        return rented(system, rent)
    except RangeError:
        if not isinstance(rent, str) or kind_asked(rent) not in KINDS:
            raise
        return replace(system, rent=Rent())


def _counts(system: System, chips: int | str | None) -> list[int | None]:
    if chips != ANY:
        return [chips if isinstance(chips, int) else None]
    max_chips = int(min(max(system.scale_up.size, SCANNED), system.scale_out.size, MOST_SCANNED))
    domain = int(min(system.scale_up.size, max_chips))
    return sorted({*(2**n for n in range(max_chips.bit_length()) if 2**n <= max_chips), domain})


def _standing(
    pair: tuple[Model, System, str],
    *,
    workload: Workload,
    slo: Slo,
    chips: int | str | None,
    plan_options: dict[str, Any],
    quick: bool = False,
    prefill_system: System | None = None,
    prefill_chips: tuple[int, ...] | None = None,
    sessions: Sessions | None = None,
    prefix_cache: Callable[[System], Mapping[str, float]] | None = None,
) -> Standing:
    """Return the best plan of a model on a system, or on two, over the numbers of chips to try."""
    model, system, _ = pair
    identity = _identity(pair, prefill_system)
    plan_options = plan_options | {"prefill_system": prefill_system, "prefill_chips": prefill_chips}

    if sessions is not None:
        # Plans of requests need no search for hits.
        from steptime.planning.session_plan import plan_sessions

    # A number of chips without a plan is skipped; the last reason stays if all have none.
    best, reason = None, ""
    # A quick search needs no front, so that it skips candidates beyond the limits.
    options = plan_options | {"quick": quick, "alternatives": plan_options["alternatives"] and not quick, "front": not quick}
    for count in _counts(system, chips):
        try:
            if sessions is None:
                candidate = plan(model, system, workload, slo, chips=count, **options)
            else:
                capacities = None if prefix_cache is None else prefix_cache(system)
                candidate = plan_sessions(model, system, sessions, slo, prefix_cache=capacities, chips=count, **options)
        except InputError as problem:
            reason = str(problem)
            continue
        if not candidate.feasible:
            reason = candidate.reason
        elif best is None or _value(candidate) > _value(best):
            best = candidate
    if best is None:
        return Standing(feasible=False, reason=reason, **identity)
    runs, rests = _rests_on(best, system, plan_options["engine"])
    if prefill_system is not None:
        runs, rests = 0, "no run of a pool on each of two systems"
    return Standing(
        feasible=True,
        prefill_chips=best.prefill_chips,
        tokens_per_second_per_kilowatt=1e3 / best.joules_per_output_token,
        power_basis=best.power.basis,
        quick=quick,
        runs=runs,
        rests_on=rests,
        plan=best,
        **identity,
        **{name: getattr(best, name) for name in FROM_PLAN} | {"chips": best.total_chips},
        **({} if best.fleet is None else _fleet_figures(best, best.fleet)),
        **({} if best.session_cache is None else _cache_figures(best.session_cache)),
    )


def _fleet_figures(best: Plan, fleet: Fleet) -> dict[str, Any]:
    """Return the fields of a standing that its fleet gives, with the rent of a month at both ends of the throughput."""
    served = fleet.rate / (fleet.utilisation * fleet.replicas)
    sizes: dict[str, Any] = {
        "replica_chips": fleet.replica_chips, "host_chips": fleet.chips // fleet.hosts, "spare": fleet.spare,
        "chip_rent": fleet.usd_per_month / MONTH / fleet.chips, "output_tokens": float(best.workload.output_tokens),
    }  # fmt: skip
    ends = best.throughput_range
    months = None
    if ends is not None:
        factors = [end / best.tokens_per_second_per_chip for end in reversed(ends)]
        low, high = (size_fleet(fleet.rate, served=served * factor, **sizes).usd_per_month for factor in factors)
        months = low, high
    return {
        "usd_per_month": fleet.usd_per_month, "usd_per_month_range": months, "replicas": fleet.replicas,
        "usd_per_million_output_tokens_at_rate": fleet.usd_per_million_output_tokens, "replica_chips": fleet.replica_chips,
        "hosts": fleet.hosts, "fleet_chips": fleet.chips, "utilisation": fleet.utilisation,
    }  # fmt: skip


def _cache_figures(cache: SessionCache) -> dict[str, Any]:
    """Return the fields of a standing that its prefix cache gives."""
    tiers = ", ".join(
        f"{tier.name} {show(tier.capacity, 'B')}: {percent(tier.hit_share, 1)}" for tier in cache.tiers if tier.hit_share > 0
    )
    return {
        "hit_share": cache.hit_share, "hits_text": tiers, "load_seconds": cache.load_seconds,
        "needed_bytes": cache.needed_bytes,
    }  # fmt: skip


def _identity(pair: tuple[Model, System, str], prefill_system: System | None) -> dict[str, Any]:
    """Return the fields of a standing that do not depend on its plan."""
    model, system, label = pair
    return {
        "model": model.name, "system": system.name, "vendor": system.chip.vendor, "year": system.chip.year, "rent": system.rent,
        "label": label, "prefill_system": "" if prefill_system is None else prefill_system.name,
        "other_rents": () if has_rent(system.rent) else tuple(rents_by_kind(system)),
    }  # fmt: skip


def _with_whole_searches(
    stand: Callable[..., Standing], standings: Sequence[Standing], pairs: Sequence[tuple[Model, System, str]]
) -> list[Standing]:
    """Return standings of quick searches, the first ones with plans of whole searches."""
    by_name = {(model.name, system.name, label): (model, system, label) for model, system, label in pairs}
    leaders = [row for row in standings if row.place and not row.prefill_system][:WHOLE_SEARCHES]
    jobs = [(by_name[leader.model, leader.system, leader.label], leader.chips) for leader in leaders]
    return [*map_in_processes(partial(_whole_search, stand), jobs), *(row for row in standings if row not in leaders)]


def _whole_search(stand: Callable[..., Standing], job: tuple[tuple[Model, System, str], int]) -> Standing:
    return stand(job[0], chips=job[1])


def _value(candidate: Plan) -> float:
    """Return a value that is larger for a better plan.

    It is output per dollar, of the fleet if there is one, or output per chip if no rent is known.
    """
    cost = _plan_cost(candidate)
    return 1 / cost if math.isfinite(cost) else candidate.tokens_per_second_per_chip


def _plan_cost(candidate: Plan) -> float:
    """Return the cost that orders plans: USD per month of the fleet, or USD per million output tokens without a fleet."""
    fleet = candidate.fleet
    return candidate.usd_per_million_output_tokens if fleet is None else fleet.usd_per_month


def _rests_on(best: Plan, system: System, engine: Engine | str | None) -> tuple[int, str]:
    """Return the number of measured runs on this system, and the basis of the range."""
    if best.cost_range is None and best.tpot_range is None:
        return 0, "times without losses, not a prediction"
    fit = engine_for(system, engine).fit
    runs = int(fit.get("systems", {}).get(system.name, 0))
    if runs:
        words = f"{runs:,} run{'s' * (runs > 1)} on it"
    elif system.chip.vendor in fit.get("vendors", ()):
        words = f"runs on other chips of {system.chip.vendor}"
    else:
        words = f"no run on a chip of {system.chip.vendor}"
    return runs, words + (f"; beyond the measured runs: {', '.join(best.distance)}" if best.distance else "")


def _placed(standings: Iterable[Standing]) -> Iterator[Standing]:
    """Yield standings in order, each with its place and whether it ties the first."""
    ordered = sorted(standings, key=_order)
    able = [standing for standing in ordered if standing.feasible]
    priced = [standing for standing in able if math.isfinite(standing.cost)]
    # Places count either costs or, if no rent is known at all, output per chip.
    counted = priced or able
    for standing in ordered:
        if standing not in counted:
            yield standing
            continue
        cost_range, least = (row.range_of_cost or (math.nan, math.nan) for row in (standing, counted[0]))
        # Unknown ranges are NaN, which compare as not tied.
        yield replace(standing, place=counted.index(standing) + 1, tied=cost_range[0] < least[1])


def _order(standing: Standing) -> tuple[bool, bool, float, str]:
    fallback = -standing.tokens_per_second_per_chip if standing.feasible else 0.0
    is_priced = math.isfinite(standing.cost)
    return not standing.feasible, not is_priced, standing.cost if is_priced else fallback, standing.system


# --- what reverses the order --------------------------------------------------------------------------------------------

# Options that change a number format.
FORMATS: Final = ("--weights", "--experts", "--kv")
Job = tuple[Model, System, int, dict[str, Any]]
# Serving engines by the vendor of the chip.
ENGINES_BY_VENDOR: Final = {"NVIDIA": ("vllm", "sglang", "trtllm"), "AMD": ("vllm", "sglang")}


def flips(ranking: Ranking, pairs: list[tuple[Model, System, str]], plan_options: dict[str, Any]) -> Iterator[str]:
    """Yield sentences on the rent, format or engine that would reverse the order.

    Args:
        ranking: Ranking whose first two entries are compared.
        pairs: Model, system and label of each entry.
        plan_options: Options of the plans of the ranking.

    Yields:
        One sentence per rent, format and engine.
    """
    if len(ranking.priced) < 2 or any(standing.prefill_system for standing in ranking.priced[:2]):
        return
    first, second = both = ranking.priced[:2]
    by_name = {(model.name, system.name, label): (model, system) for model, system, label in pairs}
    subjects = [by_name[standing.model, standing.system, standing.label] for standing in both]
    if subjects[0][1] != subjects[1][1]:
        yield from _rent_flips(ranking, first, second, [system for _, system in subjects])
    if ranking.sessions is not None:
        # Each of the plans below would take several seconds.
        return

    # The plans of both entries name their cheaper formats only with alternatives.
    has_levers = plan_options["alternatives"] and not any(standing.quick for standing in both)
    # Many pairs are compared by quick searches, and so are the formats and engines of the first two.
    is_quick = len(pairs) >= MANY_PAIRS
    with_levers = plan_options | {"alternatives": True}
    plan_options = plan_options | {"alternatives": False, "quick": is_quick, "front": not is_quick}
    jobs: list[Job] = [(*subject, standing.chips, with_levers) for subject, standing in zip(subjects, both, strict=True)]
    engines: list[str] = []
    # An engine that the user chose is not in question.
    if plan_options["engine"] is None:
        choices = [ENGINES_BY_VENDOR.get(standing.vendor, ()) for standing in both]
        engines = [name for name in choices[0] if name in choices[1] and (name != first.engine or name != second.engine)]
    jobs += [(*job[:3], plan_options | {"engine": name}) for name in engines for job in jobs[:2]]
    find_plan = partial(_feasible_plan, workload=ranking.workload, slo=ranking.slo)

    # All plans are found in one call, so that processes share the work.
    earlier_plans = [standing.plan for standing in both] if has_levers else []
    plans = [*earlier_plans, *map_in_processes(find_plan, jobs[len(earlier_plans) :])]
    yield from _format_flips([(*job[:3], plan_options) for job in jobs[:2]], plans[:2], find_plan)
    for name, first_plan, second_plan in zip(engines, plans[2::2], plans[3::2], strict=True):
        yield from _both(f"engine: with {name}", first_plan, second_plan, is_quick=is_quick)
    if plan_options["engine"] is None and first.engine != second.engine and not engines:
        yield (
            f"engine: {first.engine} for the first and {second.engine} for {ranking.called(second)}; "
            "no engine of this comparison serves both"
        )


def _rent_flips(ranking: Ranking, first: Standing, second: Standing, systems: Sequence[System]) -> Iterator[str]:
    """Yield the break-even rents, and the costs of both with each common kind of rent."""
    # Cost is proportional to rent, so that the break-even rent is the rent times the ratio of costs.
    a, b = first.cost, second.cost
    first_rent, second_rent = float(first.rent.typical), float(second.rent.typical)
    month = " a month" if ranking.is_fleet else ""
    yield (
        f"rent: both cost the same if {ranking.called(second)} rents for {show(second_rent * a / b, 'USD/s')} per chip instead "
        f"of {show(second_rent, 'USD/s')}, or {ranking.called(first)} for {show(first_rent * b / a, 'USD/s')} "
        f"instead of {show(first_rent, 'USD/s')}"
    )
    kinds = [rents_by_kind(system) for system in systems]
    for kind in kinds[0]:
        if kind in kinds[1] and (first.rent.kind, second.rent.kind) != (kind, kind):
            x, y = a * float(kinds[0][kind].typical) / first_rent, b * float(kinds[1][kind].typical) / second_rent
            order = "stays" if x <= y else "reverses"
            yield (
                f"rent: with {kind_in_words(kinds[0][kind])!r} as rent of both, {ranking.called(first)} costs {usd(x)}{month} "
                f"and {ranking.called(second)} {usd(y)}{month}; the order {order}"
            )


def _both(words: str, first: Plan | None, second: Plan | None, *, is_quick: bool) -> Iterator[str]:
    """Yield the costs of both with one choice; nothing if neither has a plan with it.

    A cost of a quick search has the mark ~.
    """
    x, y = (math.nan if candidate is None else _plan_cost(candidate) for candidate in (first, second))
    mark = "~" * is_quick
    if math.isfinite(x) and math.isfinite(y):
        order = "stays" if x <= y else "reverses"
        yield f"{words} on both: first {mark}{usd(x)}, second {mark}{usd(y)}; the order {order}"
    elif math.isfinite(x) or math.isfinite(y):
        which, cost = ("first", x) if math.isfinite(x) else ("second", y)
        yield f"{words}: only the {which} has a plan, at {mark}{usd(cost)}"


def _feasible_plan(job: Job, *, workload: Workload, slo: Slo) -> Plan | None:
    model, system, chips, options = job
    try:
        candidate = plan(model, system, workload, slo, chips=chips, **options)
    except InputError:
        return None
    return candidate if candidate.feasible else None


def _format_flips(jobs: Sequence[Job], plans: Sequence[Plan | None], find_plan: Callable[[Job], Plan | None]) -> Iterator[str]:
    """Yield the costs of both with each number format that makes one of them cheaper."""
    # Only formats that are an alternative of at least one of the two plans are tried.
    levers = [lever for candidate in plans if candidate is not None for lever in candidate.alternatives]
    options = list(dict.fromkeys(lever.option for lever in levers if lever.option.startswith(FORMATS)))
    new_jobs = [
        (_stored(model, option), system, chips, plan_options)
        for option in options
        for model, system, chips, plan_options in jobs
    ]
    new_plans = map_in_processes(find_plan, new_jobs)
    for option, first_plan, second_plan in zip(options, new_plans[::2], new_plans[1::2], strict=True):
        remarks = [
            _format_remark(new, old) for new, old in zip((first_plan, second_plan), plans, strict=True) if new is not None
        ]
        for words in _both(f"format: with {option}", first_plan, second_plan, is_quick=bool(jobs[0][3].get("quick"))):
            yield "; ".join(filter(None, (words, *remarks)))


def _format_remark(new: Plan, old: Plan | None) -> str:
    """Say that a chip has no units for a format, and that another format costs less; empty without either."""
    words = missing_units((new.served.weights, new.served.experts), new.served.arithmetic, new.system)
    before = math.nan if old is None else _plan_cost(old)
    if _plan_cost(new) > before:
        dearer = f"{new.system} is cheaper in its present formats, at {usd(before)}"
        words = f"{words}; {dearer}" if words else dearer
    return words


def _stored(model: Model, option: str) -> Model:
    """Return a model in the format of a lever's option."""
    name, stored = option.split()
    if name == "--kv":
        return with_small_cache(model)
    stored_format = release_format(model.name, stored)
    return with_formats(model, weights=stored_format if name == "--weights" else None, experts=stored_format)
