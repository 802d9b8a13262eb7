"""Sentences of a plan: why it is not cheaper, which limit fails, what cannot fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise

import numpy as np

from steptime.errors import install_hint
from steptime.hardware.number_formats import SOFTWARE, WIDE, missing_units
from steptime.hardware.rental_prices import kind_in_words
from steptime.hardware.system import System
from steptime.models.model import Model, stored_formats, weight_bytes, with_formats
from steptime.models.quantization import release_format
from steptime.number_checks import Number
from steptime.physics.chip_memory import reserved_per_chip, weights_per_chip
from steptime.physics.compute_dtype import has_rule
from steptime.physics.engine import IDEAL, Engine
from steptime.physics.layout import Layout, collect_facts, select_layouts, show_layout, stacked, unstacked
from steptime.physics.layout_rules import reasons
from steptime.physics.layout_space import legal_table
from steptime.physics.uncertainty import has_range, unmeasured_engine_warning
from steptime.planning.elasticity import IN_WORDS, NUDGE
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED, Pinned, PlanProblem, Table
from steptime.planning.plan_result import Plan, best_change, mean_resources
from steptime.planning.plan_search import EARLIEST, LATER, fitting, prefill_room, ranked, search
from steptime.planning.steady_state import MOST_UTILISED
from steptime.units import counted, percent, show
from steptime.workload.workload import Slo

# Formats of published checkpoints that may fit where wider weights do not; the one with the most bits first.
SMALL_WEIGHTS = ("fp8", "int8", "int4")
# What a plan without the simulator says of figures at a percentile; the text of the plan labels its columns by it.
CLOSED_FORM_MEANS = "figures are means of closed forms"
STOPS = {
    "speed": "a larger batch would make each token slower than {tpot}",
    "first token": "a larger batch would delay the first token beyond {ttft}",
    "memory": "the memory of a chip has no room for the KV cache of a larger batch",
    "slots": "requests already wait for the {slots} of a replica (--max-num-seqs)",
    "prompt queue": "prompts already arrive almost as fast as chunked prefill can process them",
    "prefill rate": "the prefill pool is already at {busiest} utilization, the highest that a plan uses",
    "transfer rate": "the links between the pools are at their capacity for KV caches",
    "saturation": "a larger batch would {same}, since enough sequences already share each read of the weights",
}
# With a separate prefill pool, the first token waits in the queue of this pool.
STOPS_SEPARATE = {
    "first token": "at a higher request rate, queueing in the prefill pool would delay the first token beyond {ttft}",
}
# With a required probability, a limit binds before the predicted value reaches it.
STOPS_SURE = {
    "speed": "a larger batch would reach {speed} per user with less than {sure} probability",
    "first token": "a larger batch would give the first token within {ttft} with less than {sure} probability",
}
STOPS_SURE_SEPARATE = {
    "first token": "at a higher request rate, queueing in the prefill pool would leave less than {sure} probability "
    "of a first token within {ttft}",
}
WAITS = {
    "compute": "arithmetic",
    "weights": "reading weights",
    "kv": "reading the KV cache",
    "activations": "moving activations",
    "scale-up": "the scale-up network",
    "pod": "the pod network",
    "scale-out": "the scale-out network",
    "latency": "network latency",
    "overhead": "the engine's overhead",
}
# Most chips of one host.
MOST_HOST_CHIPS = 8
# Layouts with the smallest weights on a chip, which are tried before all others.
LIGHTEST = 16
BETTER = {"kv_bytes": "10 % fewer KV bytes per token", "rent": "10 % lower rent"}


def why(case: PlanProblem, deployment: Plan) -> str:
    """Return why a plan is not cheaper, where the time of a step goes, and what would help.

    Args:
        case: Plan problem.
        deployment: Plan.

    Returns:
        Two or three sentences.
    """
    server = deployment.pools[-1]
    resources = mean_resources(server)
    total = sum(resources.values())
    leading = sorted(resources, key=lambda name: -resources[name])[:2]
    time_shares = [(resources[name] / total, WAITS.get(name, name)) for name in leading if resources[name] > 0.05 * total]
    shares = " and ".join(
        f"{percent(share)}{' of its time' * (index == 0)} on {words}" for index, (share, words) in enumerate(time_shares)
    )
    rented = math.isfinite(float(case.rent))
    step = "step" if server.role == "serve" else "decode step"
    verb = "being cheaper" if rented else "serving more"
    text = f"What keeps it from {verb}: {_binding_sentence(case, deployment)}."
    text += f" A {step} spends {shares}."
    change = best_change(deployment)
    if not deployment.elasticities:
        return text
    if change is None:
        return text + f" No single hardware figure, 10 % better, would {'lower the cost' if rented else 'raise the output'}."
    name, saving = change
    better = BETTER.get(name, f"10 % more {IN_WORDS.get(name, name)}")
    gain = f"{percent(saving, 1)} cheaper" if rented else f"{percent(saving / (1 - saving), 1)} more requests per second"

    # More than 10 % of output for 10 % of a figure: faster steps alone cannot explain it.
    explained = 100 * (1 - 1 / NUDGE) if rented else 100 * (NUDGE - 1)
    larger = float(gain.partition(" ")[0]) - round(explained, 1)
    reason = ""
    if name == "hbm_capacity":
        reason = ", because larger batches then fit"
    elif saving > 1 - 1 / NUDGE + 5e-4:
        reason = f": {explained:.1f} % by faster steps, {larger:.1f} % because larger batches then meet the limits"
    effect = f"make it {gain}" if rented else f"serve {gain}"
    return text + f" {better} would {effect}{reason}."


def _binding_sentence(case: PlanProblem, deployment: Plan) -> str:
    """Return in words which limits bind."""
    rented = math.isfinite(float(case.rent))
    separate = deployment.mode == DISAGGREGATED
    words = STOPS | (STOPS_SEPARATE if separate else {})
    if case.sure is not None and has_range(case.engine):
        words = words | STOPS_SURE | (STOPS_SURE_SEPARATE if separate else {})
    values = {
        "tpot": show(case.limits.tpot, "s"),
        "ttft": show(case.limits.ttft, "s"),
        "speed": show(1 / case.limits.tpot, "tok/s"),
        "slots": counted(deployment.pools[-1].max_num_seqs, "slot"),
        "sure": "" if case.sure is None else f"{100 * case.sure:.3g} %",
        "busiest": percent(MOST_UTILISED),
        "same": "cost the same per token" if rented else "bring no more output",
    }
    return ", and ".join(words[name].format(**values) for name in deployment.binding)


def warnings_of_step(model: Model, system: System, *, reach: Number, engine: Engine = IDEAL) -> tuple[str, ...]:
    """Return warnings about a step: a context too long, number formats without units, or an unusual network.

    Args:
        model: Model.
        system: System.
        reach: Tokens of the longest sequence.
        engine: The engine: where it has a rule for a format, the units of the chip do not decide.

    Returns:
        Warnings.
    """
    too_long = trained_context_warning(reach, model.max_context)
    formats = [name for name in stored_formats(model) if not has_rule(engine.arithmetic, name)]
    without_units = missing_units(formats, system.chip.peak, system.name)
    warnings = [words for words in (too_long, without_units) if words]
    for inner, outer in pairwise(system.domains):
        if np.any(np.asarray(inner.link.bandwidth) < outer.link.bandwidth):
            warnings.append(
                f"{inner.name}, the {inner.kind} network, is slower than {outer.name}, the {outer.kind} network outside it "
                f"({show(float(np.min(inner.link.bandwidth)), 'B/s')} and {show(float(np.max(outer.link.bandwidth)), 'B/s')}): "
                "chips of one domain are assumed to use the inner network only"
            )
    return tuple(warnings)


def trained_context_warning(tokens: Number, max_context: Number) -> str:
    """Say that requests are longer than the context that the model was trained for.

    Args:
        tokens: Tokens of a request.
        max_context: Longest context of the model.

    Returns:
        A sentence without a period; empty if the requests are short enough.
    """
    longest = float(np.max(tokens))
    if longest <= max_context:
        return ""
    return f"requests of {longest:,.0f} tokens exceed the model's context of {max_context:,.0f}"


def list_warnings(case: PlanProblem) -> tuple[str, ...]:
    """Return warnings about a plan: context, number formats, rent, measured runs, notes on the model.

    Args:
        case: Plan problem.

    Returns:
        Warnings.
    """
    if case.prefill_system is not None:
        of_decode = list_warnings(replace(case, prefill_system=None, prefill_chips=0))
        return tuple(dict.fromkeys((*of_decode, *list_warnings(case.prefill))))
    reach = case.workload.input_tokens + case.workload.output_tokens
    warnings = [*warnings_of_step(case.model, case.system, reach=reach, engine=case.engine)]
    if find_spec("numba") is None and case.percentile != "mean":
        warnings.append(
            f"{case.percentile} {CLOSED_FORM_MEANS}, because requests are simulated only with numba, which is "
            f"not installed: {install_hint('simulate')}"
        )
    rent = case.system.rent
    if not math.isfinite(rent.typical):
        warnings.append(rent.note)
    elif rent.grade in ("recalled", "guess"):
        warnings.append(
            f"the rent of {show(float(rent.typical), 'USD/s')} per chip is a {rent.grade} figure ({kind_in_words(rent)}); "
            "give yours in USD per chip-hour, such as --rent 2.10"
        )
    if has_range(case.engine) and SOFTWARE in case.system.chip.reached:
        chip = case.system.chip.title or case.system.chip.name
        warnings.append(
            f"times on {chip} rest only on runs of DeepSeek-R1, with software of {_days(case.system)}: on other models, and "
            "with newer software, they may be shorter"
        )
    if unmeasured := unmeasured_engine_warning(case.engine, case.system):
        warnings.append(unmeasured)
    return (*warnings, *case.model.notes)


def _days(system: System) -> str:
    """Return the dates of the software that a system is assumed to run."""
    share = system.chip.reached[SOFTWARE]
    period = next((period_entry for period_entry in system.chip.software if period_entry.share == share), None)
    if period is None:
        return "unknown date (your own share)"
    return period.first if period.first == period.last else f"{period.first} to {period.last}"


def _likely(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout]) -> bool:
    """Whether any layout meets the limits if its typical times are right."""
    typical = replace(case, sure=None, aim=(1.0, 1.0))
    return bool(ranked(typical, search(typical, modes, layouts), 1))


def unreachable(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], *, simulated: bool = False) -> str:
    """Return which limit no layout meets, and how close the best layout comes to it.

    Requests beyond the context of the model are named first.

    Args:
        case: Plan problem.
        modes: Modes to search.
        layouts: Layouts to search.
        simulated: Whether simulations find the earliest first token at the percentile, in place of closed forms.

    Returns:
        The reason and a remedy.
    """
    reason = _missed_limit(case, modes, layouts, simulated)
    too_long = trained_context_warning(case.workload.input_tokens + case.workload.output_tokens, case.model.max_context)
    return f"{too_long}. Besides, {reason}" if too_long else reason


def _missed_limit(case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], simulated: bool) -> str:
    """Return which limit no layout meets, and how close the best layout comes to it.

    Each limit is checked separately, then both together.

    Args:
        case: Plan problem.
        modes: Modes to search.
        layouts: Layouts to search.
        simulated: Whether simulations find the earliest first token at the percentile.

    Returns:
        The reason and a remedy.
    """
    chips = counted(case.chips, "chip")
    if case.prefill_system is not None:
        chips = f"{chips} of {case.system.name} and {counted(case.prefill_chips, 'chip')} of {case.prefill_system.name}"
    tables = search(replace(case, slo=Slo(), levels=(Slo(),)), modes, layouts)
    tpot = np.concatenate([t.tpot for t in tables])
    fits = np.concatenate([(t.memory <= 1) & (t.rate > 0) for t in tables])
    if not np.any(fits):
        if (
            AGGREGATED not in modes
            and case.prefill_system is None
            and any(np.any(t.memory <= 1) for t in search(replace(case, slo=Slo(), levels=(Slo(),)), (AGGREGATED,), layouts))
        ):
            return (
                f"separate pools store the {show(weight_bytes(case.model), 'B')} of weights twice, and {chips} are too few for "
                "that; use more chips, or one pool (--mode aggregated)"
            )
        return (
            f"the {show(weight_bytes(case.model), 'B')} of weights fit {chips}, but leave no room for a request "
            f"of {case.workload.input_tokens + case.workload.output_tokens:,.0f} tokens; use more chips"
        )

    # With a probability, separate limits that are too strict in any case from limits that only the probability makes strict.
    if case.sure is not None:
        is_likely = _likely(case, modes, layouts)
        likely = "" if is_likely else _missed_limit(replace(case, sure=None), modes, layouts, simulated)
        return likely or (
            "no layout meets the limits with this probability, although typical times of some do; relax the limits, use a "
            "lower --sure, or use more chips"
        )

    def earliest(tpot: float) -> float:
        """Return the earliest first token at the percentile [s] within a TPOT; the limit if that can be met."""
        # Targets of the mean stand for the limit at a percentile.
        factor = case.limits.ttft / case.slo.ttft if math.isfinite(case.limits.ttft) else 1.0
        is_rough = simulated and math.isfinite(case.limits.ttft)
        estimate = factor * _earliest(case, modes, layouts, tables, tpot, LATER if is_rough else EARLIEST)
        if not is_rough:
            return estimate
        # numba takes a third of a second to import.
        from steptime.planning.finalists import earliest_first_token

        limits = replace(case.limits, tpot=tpot)
        return earliest_first_token(replace(case, limits=limits), modes, layouts, estimate)

    # Closed forms estimate a percentile, and replays of sessions, which load caches, are not part of the simulations.
    is_estimate = case.turns is not None or (len(case.levels) > 1 and not simulated)
    return _late_or_slow(case, chips, float(np.min(tpot[fits])), earliest, "about " if is_estimate else "")


def _late_or_slow(case: PlanProblem, chips: str, fastest: float, earliest: Callable[[float], float], about: str = "") -> str:
    """Return which limit is missed, by the lowest TPOT [s] and the earliest first token [s] within a TPOT."""
    limits, late_at = case.limits, "" if case.percentile == "mean" else f" at {case.percentile}"
    speed, first = show(1 / limits.tpot, "tok/s"), show(limits.ttft, "s") + late_at
    soonest = earliest(math.inf)
    is_late = soonest > limits.ttft
    if fastest > limits.tpot:
        too_late = f", and the earliest first token comes after {about}{_show_up(soonest)}, not {first}" if is_late else ""
        return (
            f"no layout on {chips} reaches {speed} per user; the fastest gives {show(1 / fastest, 'tok/s')}{too_late}. "
            "Use more or faster chips, smaller weights (--weights), or a lower limit"
        )
    if is_late:
        cache = ", shorter prompts, or a prefix cache (--cached)" if case.turns is None else " or shorter prompts"
        return (
            f"no layout on {chips} gives a first token within {first}; the earliest comes after {about}{_show_up(soonest)}. "
            f"Use more chips{cache}"
        )
    with_speed = earliest(limits.tpot)
    if with_speed <= limits.ttft:
        return (
            f"no layout meets the limits{late_at} when requests arrive at random, although closed forms of mean waits do. Use "
            "more chips, or relax a limit"
        )
    return (
        f"each limit can be met, but not both: at {speed} per user the earliest first token comes after "
        f"{about}{_show_up(with_speed)}, not {first}. Use more chips, or relax one limit"
    )


def _show_up(seconds: float) -> str:
    """Return a time in words, rounded up: a limit of this time can be met."""
    if not 0 < seconds < math.inf:
        return show(seconds, "s")
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return show(math.ceil(seconds / unit - 1e-9) * unit, "s")


def _earliest(
    case: PlanProblem, modes: tuple[str, ...], layouts: list[Layout], tables: Sequence[Table], tpot: float, factor: float
) -> float:
    """Return the earliest mean first token of any layout whose time per token is at most `tpot` [s], to a factor.

    Queues are shorter at lower rates, which the search takes only where a limit asks for them: bisection over the limit, from
    that of the case to the earliest of the `tables` without limits.
    """

    def first_token(candidates: Iterable[Table]) -> float:
        in_time = [t.ttft[(t.memory <= 1) & (t.rate > 0) & (t.tpot <= tpot)] for t in candidates]
        return float(np.min(np.concatenate(in_time), initial=np.inf))

    def is_reached(limit: float, among: tuple[str, ...]) -> bool:
        limits = Slo(ttft=limit, tpot=tpot)
        return first_token(search(replace(case, slo=limits, levels=(limits,)), among, layouts)) <= limit

    earliest = first_token(tables)
    if not case.slo.ttft < earliest < math.inf:
        return earliest
    if is_reached(case.slo.ttft, modes):
        return case.slo.ttft
    # Separate pools take little time to evaluate, and are mostly the earliest.
    for among in ((DISAGGREGATED,), modes) if DISAGGREGATED in modes else (modes,):
        low = earliest / factor
        if is_reached(low, among):
            low, earliest = case.slo.ttft, low
        while earliest > factor * low * (1 + 1e-9):
            limit = math.sqrt(low * earliest)
            low, earliest = (low, limit) if is_reached(limit, among) else (limit, earliest)
    return earliest


def blame_choices(pinned: Pinned, best_with: Callable[[Pinned], Plan]) -> str:
    """Return which of the user's choices leave no plan within the limits.

    Args:
        pinned: The user's choices; without them a plan meets the limits.
        best_with: Returns the best plan with other choices.

    Returns:
        The reason and a remedy.
    """
    choices = {
        **{
            f"--{name} {size}": replace(pinned, sizes=tuple(x for x in pinned.sizes if x[0] != name))
            for name, size in pinned.sizes
        },
        **({f"--chunk {pinned.chunk}": replace(pinned, chunk=None)} if pinned.chunk else {}),
        **({f"--max-num-seqs {pinned.max_num_seqs}": replace(pinned, max_num_seqs=None)} if pinned.max_num_seqs else {}),
    }
    if len(choices) == 1:
        return f"no layout meets the limits with {next(iter(choices))}, although one does without it; change it or leave it out"
    blamed = [option for option, kept_choices in choices.items() if best_with(kept_choices).feasible]
    return f"no layout meets the limits with {', '.join(choices)}; change {' or '.join(blamed) or 'several of them'}"


def chunk_without_effect(deployment: Plan, shared: Plan) -> str:
    """Say that a plan with separate pools has no use for the user's chunk.

    Args:
        deployment: Plan with separate pools.
        shared: The best plan whose replicas prefill in such chunks.

    Returns:
        A sentence without a period.
    """
    if not shared.feasible:
        return "no aggregated layout meets the limits with this --chunk; separate pools prefill whole prompts"
    share = shared.requests_per_second / deployment.requests_per_second
    return (
        f"separate pools prefill whole prompts, so that --chunk has no effect; aggregated layouts with it serve "
        f"{percent(share)} of these requests (--mode aggregated)"
    )


def _best_layout(case: PlanProblem, need: float, capacity: float) -> str:
    """Return how near the layout with the fewest bytes per chip comes to fitting.

    If it fits, return why the engine cannot run it.
    """
    table = legal_table(case.model, case.system, case.chips)
    weights = np.broadcast_to(weights_per_chip(case.model, table), np.shape(table.tp))
    best = unstacked(select_layouts(table, [int(np.argmin(weights))]))[0] if len(weights) else None
    least = need if best is None else float(np.min(weights))
    if best is None or least >= capacity:
        return f"; the best layout puts {show(least, 'B')} on a chip of {show(capacity, 'B')}"
    refused = reasons(best, collect_facts(case.model, case.system, chips=case.chips, engine=case.engine))
    return (
        f"; {case.engine.name} cannot start a layout that fits, such as {show_layout(replace(best, replicas=1))}: {refused[0]}"
    )


def does_not_fit(case: PlanProblem) -> str:
    """Return by how much the weights are too large, and how many chips hold them and a request.

    Args:
        case: Plan problem.

    Returns:
        The message.
    """
    capacity = float(prefill_room(case, Layout(tp=case.chips)))
    need, have = weight_bytes(case.model), case.chips * capacity
    total = float(case.chips * case.system.chip.capacity)
    buffers = case.chips * float(reserved_per_chip(case.engine, case.system, Layout(tp=case.chips)))
    share = f"{case.engine.name} uses {percent(float(case.engine.room.memory_share))} of {show(total, 'B')}"
    share += f", {show(buffers, 'B')} of it for buffers" * bool(buffers)
    used = "" if have == total else f" ({share})"
    message = (
        f"{case.model.name} does not fit {case.chips} x {case.system.chip.name}: its weights take {show(need, 'B')}, "
        f"the chips hold {show(have, 'B')}{used}"
    )
    if need > have:
        message += f", {show(need - have, 'B')} too little"
    else:
        message += _best_layout(case, need, capacity)

    enough_chips = _enough_chips(case, math.ceil(need / capacity))
    if enough_chips:
        tokens = case.workload.input_tokens + case.workload.output_tokens
        message += f". With --chips {enough_chips} it would fit, with room for requests of {tokens:,.0f} tokens"

    # The format with the most bits that fits.
    for name in SMALL_WEIGHTS:
        stored = release_format(case.model.name, name)
        smaller = with_formats(case.model, weights=stored, experts=stored)
        is_multiplied = name in case.system.chip.peak or stored.arithmetic[0] in WIDE
        if is_multiplied and weight_bytes(smaller) < need and fitting(replace(case, model=smaller)):
            size = show(weight_bytes(smaller), "B")
            return message + (", or" if enough_chips else ". It would fit") + f" with --weights {name} ({size})"
    return message


def _enough_chips(case: PlanProblem, least: int) -> int | None:
    """Return the first number of chips, from `least` on, that holds the weights and a request.

    The numbers are those that layouts divide well: multiples of 8, whole domains and powers of two. Above one
    domain, only whole hosts are tried.
    """
    domain = min(case.system.scale_up.size, 4096)
    host = int(min(domain, MOST_HOST_CHIPS))
    first_hosts = host * math.ceil(least / host)
    tries = sorted(
        {
            *range(least, 2 * least + 1, max(1, least // 8)),
            *range(first_hosts, 2 * first_hosts + 1, host * max(1, first_hosts // host // 8)),
            8 * math.ceil(least / 8),
            domain * math.ceil(least / domain),
            2 ** math.ceil(math.log2(least)),
        }
    )
    largest = min(4096, case.system.scale_out.size)
    usual = [n for n in tries if case.chips < n <= largest and (n <= domain or n % host == 0)]
    return next((n for n in usual if _holds_request(replace(case, chips=n, slo=Slo(), sure=None))), None)


def _holds_request(case: PlanProblem) -> bool:
    """Whether a layout that the engine can run holds the weights and a request."""
    layouts = fitting(case)
    if not layouts:
        return False
    weights = np.broadcast_to(weights_per_chip(case.model, stacked(layouts)), (len(layouts),))
    # The layouts with the most room mostly hold a request if any does, and take little time.
    lightest = [layouts[index] for index in np.argsort(weights, kind="stable")[:LIGHTEST]]
    tables = (table for part in (lightest, layouts) for table in search(case, (AGGREGATED,), part))
    return any(np.any((table.memory <= 1) & (table.rate > 0)) for table in tables)
