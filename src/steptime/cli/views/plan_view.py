"""Text of a plan: the answer, layout, time by operator, memory, alternatives, and the explanation of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.step_view import TERM_NAMES, bounds, memory_bar, own_runs, range_causes, resource_table, term_table
from steptime.cli.views.terminal_plots import Axis, Curve, draw, log10, nice
from steptime.cli.views.widgets import (
    Form,
    Grid,
    bar_table,
    beyond_runs,
    cautions,
    footnote,
    heading,
    listing,
    notes,
    ranged,
    sourced,
    table,
    write,
)
from steptime.hardware.energy import counted_by, power_in_words
from steptime.hardware.number_formats import missing_units
from steptime.hardware.rental_prices import origin_in_words, usd
from steptime.hardware.system import Rent, System
from steptime.models.model import Model
from steptime.physics.bias_correction import OperatingPoint
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import Engine
from steptime.physics.layout import Layout, show_layout
from steptime.physics.uncertainty import SEPARATE_POOLS
from steptime.planning.elasticity import IN_WORDS
from steptime.planning.evidence import ANY, PUBLISHED
from steptime.planning.launch_facts import Served
from steptime.planning.plan_alternatives import best_alternative
from steptime.planning.plan_messages import CLOSED_FORM_MEANS, trained_context_warning
from steptime.planning.plan_result import (
    Plan,
    Pool,
    SingleSystem,
    chosen_point,
    cost_changes,
    mean_resources,
    mean_terms,
    runner_up_dearer,
)
from steptime.planning.plan_search import AS_CHEAP, is_small_chunk
from steptime.planning.steady_state import mean_context
from steptime.planning.step_explanation import Line, equations, explain_step, sources, step_given
from steptime.units import counted, in_digits, percent, percent_change, request_rate, show, speed_change
from steptime.workload.workload import step_yield

# Power around the chips.
AROUND = "the power around them"
# Time from which a tier holds everything in practice [s].
LONG_HOLD = 1e7
# Share of prompt tokens from which a tier is in the short text, and most notes of a plan for sessions there.
LEAST_SHOWN, FEW_NOTES = 0.005, 1
# Main figures of a plan: name, field, and form of the value.
FIGURES: tuple[tuple[str, str, Form], ...] = (
    ("USD/M output", "usd_per_million_output_tokens", "USD"),
    ("Speed/user{at}", "tokens_per_second_per_user", "digits tok/s"),
    ("First token{at}", "ttft", "s"),
    ("Output/chip", "tokens_per_second_per_chip", "digits tok/s"),
)
AXES = {
    "tp": "tensor-parallel ranks", "pp": "pipeline stages", "dp": "data-parallel ranks of attention",
    "ep": "expert-parallel ranks", "cp": "context-parallel ranks", "mb": "micro-batches in flight", "x": "replicas",
    "red": "redundant experts",
}  # fmt: skip
# What the formulas of an explanation mean.
FORMULAS = (
    "n-norm(a, b) = (a^n + b^n)^(1/n): arithmetic and memory traffic overlap in part (n = 1: not at all; n large: fully). "
    "A rate / 0.65 reaches 65 % of the data sheet. Such shares, n and the seconds per kernel, layer, token and collective are "
    "constants of the engine: `steptime engines NAME --full`."
)
# Below this probability of meeting a limit, the answer points to --sure.
LIKELY = 0.9
# Time to a first token that needs a word where it has no limit: people turn away after 10 s (Nielsen, Usability
# Engineering, 1993, chapter 5).
PATIENT_SECONDS = 10.0
# Saving of a narrower format from which the first lines name it, and the options of formats.
LARGE_SAVING, FORMAT_OPTIONS = 0.4, ("--weights", "--experts")
# Relative difference up to which two rents or two costs are the same.
SAME: Final = 0.005
# Rows of the Pareto front.
FRONT_ROWS = 7


def plan_view(plan: Plan, width: int, replay: Sequence[RenderableType] = (), *, full: bool = False) -> RenderableType:
    """Return a plan as text: the answer, its figures and layout, what limits it, and with `full` everything else.

    Args:
        plan: A plan, feasible or not.
        width: Columns of the terminal.
        replay: Lines on the simulation of the plan, printed after the answer.
        full: Whether to add memory, time by operator, the Pareto front, elasticities and alternatives.

    Returns:
        Something that a console prints.
    """
    # Without a plan, the reason comes first; the Pareto front shows the possible speeds.
    if not plan.feasible:
        subject = f"{plan.model} on {plan.machines_text}, {_workload(plan)}"
        reason = Text.assemble(("Not possible: ", "bold red"), f"{plan.reason}. Asked: {subject}.")
        front = [Text(), _front_chart(plan, width)] if full and plan.front else []
        return Group(reason, *notes(plan.warnings), *front)
    drafts = [Text(f"Speculative decoding: {plan.speculation.text}.")] if plan.speculation.drafts else []
    warnings = _warnings(plan, full=full)
    parts: list[RenderableType | None] = [
        *_fleet(plan), _answer(plan), *cautions(_cautions(plan)), _conditions(plan), *_single_systems(plan), *_sessions(plan),
        *replay, *_tiers(plan, full), _figure_table(plan), _pools(plan, full), _short_legend(plan, full),
        *_own_runs(plan), *notes(warnings if full or plan.sessions is None else warnings[:FEW_NOTES]),
        *_money(plan, full=full), *drafts, Text(plan.why, style="bold"),
    ]  # fmt: skip
    if full:
        parts += [_legend(plan), *_totals(plan), *_memory_bars(plan, width), Text(), _time_tables(plan, width), Text()]
        parts += [_front_chart(plan, width), *_front_table(plan), *_front_note(plan)]
        parts += [Text(), _elasticity_table(plan, width)] if has_rent(plan) and plan.elasticities else []
        parts += [*_alternative_table(plan), *_speculation_table(plan)]
    return Group(*(part for part in parts if part is not None))


def has_rent(plan: Plan) -> bool:
    """Return whether the plan has a cost.

    Args:
        plan: A plan.

    Returns:
        Whether the rent of its chips is known.
    """
    return math.isfinite(plan.usd_per_second)


def _workload(plan: Plan) -> str:
    w = plan.workload
    cached = f" ({percent(w.cached_share)} cached, assumed)" if w.cached_share and plan.sessions is None else ""
    spreads = [f"{float(spread):.3g} x mean" for spread in (w.input_spread, w.output_spread)]
    spread = spreads[0].removeprefix("1 x ") if spreads[0] == spreads[1] else "{} in, {} out".format(*spreads)
    words = "" if spread == "0 x mean" else f" on average (standard deviation = {spread})"
    return f"{counted(w.input_tokens, 'token')} in{cached}, {w.output_tokens:,} out{words}"


def _answer(plan: Plan) -> Text:
    """Say what the plan serves, on what, and for how much."""
    idle = f", {plan.idle_chips:,} of them idle," if plan.idle_chips else ""
    # A fleet may grow by a part of the plan, such as one of eight replicas of one chip: then the cost is that of all chips.
    is_part = plan.fleet is not None and plan.fleet.replica_chips < plan.total_chips - plan.idle_chips
    verb = "Serve" if plan.fleet is None else "At full load, serve" if is_part else "Each replica serves"
    subject = f"{verb} {plan.model} ({formats_in_words(plan.served)}) on {plan.machines_text}{idle}"
    if has_rent(plan):
        cost = ranged(plan.usd_per_million_output_tokens, plan.cost_range, "USD")
        words = (f" for {cost} per million output tokens", ", input included." if is_part else " at full load, input included.")
    else:
        rate = ranged(plan.tokens_per_second_per_chip, plan.throughput_range, "digits tok/s")
        words = (f" at {rate} per chip", ". Its rent is not known.")
    if plan.is_pair:
        words = (words[0], f"{words[1]} Nobody has published runs of such a pair.")
    return Text.assemble((subject, "bold"), (words[0], "bold green"), words[1])


def formats_in_words(served: Served) -> str:
    """Write the number formats of the weights.

    Args:
        served: Formats of a plan.

    Returns:
        Words such as "weights in bf16", with the format of the experts if it differs.

    >>> formats_in_words(Served(weights="bf16", experts="mxfp4"))
    'weights in bf16, experts in mxfp4'
    """
    experts = f", experts in {served.experts}" if served.experts not in ("", served.weights) else ""
    return f"weights in {served.weights}{experts}"


def _conditions(plan: Plan) -> Text:
    """Say which load, number of chips, mode and engine the answer assumes, each with the option that changes it."""
    chips = f"{counted(plan.chips, 'chip')}{', one whole system' * (plan.chips == plan.served.domain_chips)} (--chips)"
    if plan.prefill_system:
        chips = f"{plan.prefill_chips:,} prefill chips (--prefill-chips) and {plan.chips:,} decode chips (--chips)"
    rate = request_rate(plan.requests_per_second)
    setting = f"{chips}, {plan.mode} (--mode), engine {plan.engine} (--engine)"
    if math.isinf(plan.slo.tpot) and math.isinf(plan.slo.ttft):
        setting += ", no limit on speed or first token (--speed, --ttft)"
    load = "Load" if plan.fleet is None else f"Full load of {counted(plan.total_chips, 'chip')}"
    return Text(f"{load}: {rate} of {_workload(plan)}. Setup: {setting}.{_narrower_format(plan)}")


def _narrower_format(plan: Plan) -> str:
    """Name a narrower format that saves much, since people serve such checkpoints."""
    alternative = best_alternative(plan)
    if alternative is None or alternative.saving < LARGE_SAVING or not alternative.option.startswith(FORMAT_OPTIONS):
        return ""
    words = alternative.words[0].upper() + alternative.words[1:]
    return f" {words} would cost about {percent(alternative.saving)} less ({alternative.option})."


def _cautions(plan: Plan) -> list[str]:
    """Return the warnings that put the whole answer in doubt: a context too long, and formats without units."""
    served, work = plan.served, plan.workload
    lines = (
        trained_context_warning(work.input_tokens + work.output_tokens, served.max_context),
        missing_units((served.weights, served.experts), served.arithmetic, plan.system),
    )
    # An engine with a rule for a format has no such warning in its plan.
    return [line for line in lines if line and line in plan.warnings]


def _figure_table(plan: Plan) -> Grid:
    """Return the plan's figures with their ranges and limits, next to the same layout without losses and the runner-up."""
    figures = list(zip(FIGURES, (plan.cost_range, plan.speed_range, plan.ttft_range, plan.throughput_range), strict=True))
    # Without a rent, output per chip stands in place of the cost.
    figures = figures if has_rent(plan) else [figures[3], *figures[1:3]]
    limits = {
        "tokens_per_second_per_user": (f"≥ {in_digits(1 / plan.slo.tpot)}", plan.slo.tpot, plan.slo_probability.get("tpot")),
        "ttft": (f"≤ {show(plan.slo.ttft, 's')}", plan.slo.ttft, plan.slo_probability.get("ttft")),
    }
    limits = {name: limit for name, limit in limits.items() if math.isfinite(limit[1])}
    points = {title: point for title, point in (("No losses", plan.ideal), ("Runner-up", plan.runner_up)) if point is not None}
    has_ranges = any(limit_range for _, limit_range in figures)
    chance_head, range_head = (" (probability)", " (90 % range)") if has_ranges else ("", "")
    heads = ["", f"This plan{range_head}", *([f"Limit{chance_head}"] if limits else []), *points]
    grid = table(*heads, numbers=range(1, len(heads)), first_to_go=range(len(heads) - 1, 2, -1))
    for (name, field, form), limit_range in figures:
        cells = [ranged(getattr(chosen_point(plan), field), limit_range, form, label="")]
        if limits:
            words, _, chance = limits.get(field, ("", 0.0, None))
            cells.append(f"{words} ({percent(chance)})" if chance is not None and has_ranges else words)
        # Without the simulator the figures are means, also where limits are at a percentile.
        is_mean = any(CLOSED_FORM_MEANS in words for words in plan.warnings)
        suffix = "" if plan.percentile == "mean" else ", mean" if is_mean else f", {plan.percentile}"
        grid.add_row(name.format(at=suffix), *cells, *(write(getattr(point, field), form) for point in points.values()))
    return grid


def _pools(plan: Plan, full: bool) -> RenderableType:
    """Return the pools: a table, or in the short text for sessions a line."""
    if full or plan.sessions is None:
        return _pool_table(plan)
    words = []
    for pool in plan.pools:
        size = f"{int(pool.layout.replicas)} x {counted(int(pool.layout.chips), 'chip')}, {show_layout(pool.layout)}"
        batch = counted(pool.batch, "prompt") if pool.role == "prefill" else f"batch {in_digits(pool.batch)}"
        chunk = f", chunk {pool.chunk:,}" if pool.chunk else ""
        words.append(f"{pool.role} {size}, {batch}{chunk}")
    return Text(f"Pools: {'; '.join(words)}.")


def _pool_table(plan: Plan) -> Grid:
    axes = ("tp", "pp", "dp", "ep", "cp", "microbatches", "redundant_experts")
    return listing(
        "Pool: {role} | Replicas x chips: {size} | Layout: {layout} | Batch: {batch} | Chunk: {chunk} | Step: {step:s}",
        plan.pools, numbers=(1, 3, 4), first_to_go=(4, 5),
        size=lambda pool: f"{int(pool.layout.replicas)} x {int(pool.layout.chips)}",
        layout=lambda pool: show_layout(Layout(**{name: getattr(pool.layout, name) for name in axes})),
        batch=lambda pool: counted(pool.batch, "prompt") if pool.role == "prefill" else f"{in_digits(pool.batch)} seq",
        chunk=lambda pool: f"{pool.chunk:,} tok" if pool.chunk else "-",
        step=lambda pool: sum(mean_terms(pool).values()),
    )  # fmt: skip


def _own_runs(plan: Plan) -> list[Text]:
    """Return how your own runs correct a plan, at the load and context of the pool that decodes."""
    if plan.anchor is None:
        return []
    pool = plan.pools[-1]
    point = OperatingPoint(layout=pool.layout, load=pool.batch, context=float(mean_context(plan.workload)))
    return own_runs(plan.anchor, plan.anchor.applied(point))


def _warnings(plan: Plan, *, full: bool) -> list[str]:
    """Return the warnings of a plan, each in a line where `full` is off and it can be."""
    first_lines = _cautions(plan)
    cached = float(plan.workload.cached_share)
    warnings = [*_evidence(plan), *(words for words in plan.warnings if words not in first_lines)]
    if cached and plan.sessions is None:
        warnings.append(
            f"The cached share of {percent(cached)} is assumed: nothing holds it or takes time to load. --sessions computes it."
        )
    if plan.session_cache is not None and not plan.session_cache.is_replayed:
        warnings.append(
            "Hits are means of closed forms, because numba is not installed. Where tiers hold little more than the sessions in "
            "progress, a few lost histories slow prefill, and more are lost: keep a margin."
        )
    if math.isinf(plan.slo.ttft) and plan.ttft > PATIENT_SECONDS:
        percentile = "" if plan.percentile == "mean" else f" ({plan.percentile})"
        warnings.append(f"No limit on the first token, which takes {show(plan.ttft, 's')}{percentile}: --ttft 2 sets one.")
    if plan.distance:
        warnings.append(beyond_runs(plan.distance))
    if SEPARATE_POOLS.words in plan.distance:
        inside = "; 3 of 4 runs are inside the range" if full else ""
        warnings.append(f"Measured TTFT with separate pools: {SEPARATE_POOLS.delay:.2g} times the prediction (median){inside}.")
    # Probability of the limits: promised by --sure, or low enough to name the option.
    if plan.sure is not None:
        warnings.append(f"The plan meets each limit with at least {100 * plan.sure:.3g} % probability (--sure {plan.sure:g}).")
    elif plan.slo_probability and plan.tpot_range is not None and min(plan.slo_probability.values()) < LIKELY:
        warnings.append("The column Limit has the chance of each limit; --sure 0.9 plans for 90 %.")
    # Own runs change the plan: show it without them.
    if plan.unanchored is not None:
        before = plan.unanchored
        cost = f", {usd(before.usd_per_million_output_tokens)}" if has_rent(plan) else ""
        speed = f"{in_digits(before.tokens_per_second_per_user)} tok/s per user, first token {show(before.ttft, 's')}"
        warnings.append(f"Without your runs, the same layout and batch: {speed}{cost}.")
    return [*warnings, *_other_layouts_of_runs(plan)]


def _other_layouts_of_runs(plan: Plan) -> list[str]:
    """Return that none of your runs has the layout of a plan, whose correction is then weaker than that of your layouts."""
    layout = plan.pools[-1].layout
    measured = () if plan.anchor is None else plan.anchor.measured
    runs = [run for run in measured if (run.model, run.system) == (plan.model, plan.system)]
    sizes = [{name: int(getattr(run, name)) for name in ("tp", "pp", "dp", "ep")} for run in runs]
    if not sizes or any(all(getattr(layout, name) == size for name, size in run_sizes.items()) for run_sizes in sizes):
        return []
    pinned = " ".join(f"--{name} {size}" for name, size in sizes[0].items() if size > 1) or "--tp 1"
    return [
        "None of your runs has this layout. The correction is weaker here than for theirs, which may look more expensive than "
        f"it is: {pinned} plans with it."
    ]


def _evidence(plan: Plan) -> list[str]:
    """Return what layouts of this kind rest on, and what the cheapest of all layouts would save."""
    lines = []
    if plan.evidence == PUBLISHED:
        lines.append("No fitted run has such a layout on this system; published ones have.")
    elif plan.evidence == ANY and plan.tpot_range is not None and not plan.is_pair:
        # Its layout may have more evidence, with larger chunks.
        chunk = plan.pools[-1].chunk
        feature = f"prefill chunks of {chunk:,} tokens" if is_small_chunk(plan.workload, chunk) else "a layout of this kind"
        lines.append(f"No measured or published run has {feature}.")
    if plan.unmeasured is not None:
        cheapest = plan.unmeasured
        if has_rent(plan):
            saving = 1 - cheapest.usd_per_million_output_tokens / plan.usd_per_million_output_tokens
            gain = f"costs {usd(cheapest.usd_per_million_output_tokens)}, {percent(saving)} less"
        else:
            gain = f"yields {in_digits(cheapest.tokens_per_second_per_chip)} tok/s per chip"
        # The same layout has less evidence with smaller chunks.
        words = cheapest.layout_text + (" with smaller prefill chunks" if cheapest.layout_text == plan.layout_text else "")
        lines.append(f"--evidence any {gain}, with fewer measured runs or none: {words}.")
    if plan.free is not None and has_rent(plan):
        cheapest, cost = plan.free, plan.usd_per_million_output_tokens
        saving = 1 - cheapest.usd_per_million_output_tokens / cost
        if saving > AS_CHEAP:
            words = f"{percent(saving)} less: {cheapest.layout_text}"
        elif saving < -AS_CHEAP:
            words = f"{percent(-saving)} more, because it keeps to layouts with more evidence"
        else:
            words = "the same"
        lines.append(f"Without your choices the plan costs {usd(cheapest.usd_per_million_output_tokens)}, {words}.")
    return lines


def _sessions(plan: Plan) -> list[Text]:
    """Say what the sessions are, and how much of their prompts the prefix cache has."""
    cache = plan.session_cache
    if cache is None:
        return []
    s = cache.sessions
    turns = float(f"{cache.mean_turns:.3g}")
    note = f" ({s.turns:,.3g} asked, the context of the model ends them)" if turns < 0.95 * s.turns else ""
    prompt = f", system prompt of {s.system_prompt:,.0f} tokens" if s.system_prompt else ""
    words = (
        f"Sessions: {turns:,.3g} {'turn' if turns == 1 else 'turns'} on average{note} of {s.input_tokens:,.0f} new tokens in "
        f"and {s.output_tokens:,.0f} out, think time {show(s.think_time, 's')}{prompt}; "
        f"{in_digits(cache.sessions_in_progress)} in progress."
    )
    # Drawn sessions may repeat more than sessions do on average.
    repeated = max(cache.held_share, cache.hit_share)
    is_all = f"{cache.hit_share:.3f}" == f"{repeated:.3f}"
    hits = "all of these are found" if is_all else f"{percent(cache.hit_share, 1)} are found"
    text = f"Prefix cache: {percent(repeated, 1)} of prompt tokens repeat earlier ones, and {hits}."
    if cache.held_share:
        needed = f"needs the {cache.needed_tier} tier" if cache.needed_tier else "is more than its tiers have"
        text += f" To find 95 % of what repeats, a replica stores {show(cache.needed_bytes, 'B')}, which {needed}."
    return [Text(words), Text(text, style="bold")]


def _tiers(plan: Plan, full: bool) -> list[RenderableType | None]:
    """Return the tiers of the prefix cache of a replica: one line, or with `full` what each holds and loads."""
    cache = plan.session_cache
    if cache is None:
        return []
    if not full:
        used = [tier for tier in cache.tiers if tier.hit_share >= LEAST_SHOWN] or list(cache.tiers[:1])
        words = "; ".join(f"{tier.name} {show(tier.capacity, 'B')} finds {percent(tier.hit_share, 1)}" for tier in used)
        return [Text(f"Tiers of a replica: {words}; loads take {show(cache.load_seconds, 's')} of the first token on average.")]
    rows = [
        (
            tier.name, show(tier.capacity, "B"), show(tier.hold_seconds, "s") if tier.hold_seconds < LONG_HOLD else "always",
            percent(tier.hit_share, 1),
            tier.why_unused or (show(tier.load_seconds, "s") if tier.hit_share >= LEAST_SHOWN else "-"),
            percent(tier.bandwidth_share),
        )
        for tier in cache.tiers
    ]  # fmt: skip
    heads = ("Tier", "Replica", "Holds for", "Found", "Load", "Bandwidth")
    words = f"Found: of all prompt tokens. The first token contains loads: {show(cache.load_seconds, 's')} on average."
    return [table(*heads, rows=rows, numbers=(1, 2, 3, 5), first_to_go=(5,)), footnote(words)]


def _single_systems(plan: Plan) -> list[Text]:
    """Return what the same requests cost on each of two systems alone, in whole hosts, each with its rent."""
    lines = []
    for single in plan.single_systems:
        name = f"On {single.system} {'alone' if plan.is_pair else 'without fixed pools'}"
        words = f"{name} ({counted(single.chips, 'chip')}{_rent_against(plan, single)}): "
        if single.reason:
            words += f"not possible: {single.reason}"
        elif has_rent(plan) and math.isfinite(single.usd_per_million_output_tokens):
            change = single.usd_per_million_output_tokens / plan.usd_per_million_output_tokens - 1
            words += f"{usd(single.usd_per_million_output_tokens)} "
            words += f"({_against(change)}), "
            words += f"{request_rate(single.requests_per_second)}, {single.layout_text}"
        else:
            words += f"{in_digits(single.tokens_per_second_per_chip)} tok/s per chip, "
            words += f"{request_rate(single.requests_per_second)}, {single.layout_text}"
        lines.append(Text(f"{words.rstrip('.')}."))
    return lines


def _rent_against(plan: Plan, single: SingleSystem) -> str:
    """Return the rent of a system alone, against that of the plan. Costs per token at full load compare at unlike rents."""
    if not (has_rent(plan) and math.isfinite(single.usd_per_second)):
        return ""
    change = single.usd_per_second / plan.usd_per_second - 1
    return f" in whole hosts, {show(single.usd_per_second, 'USD/s')}, {_against(change)} rent"


def _against(change: float) -> str:
    """Return a relative change in words.

    >>> _against(0.032), _against(-0.02), _against(-0.004)
    ('3 % more', '2 % less', 'the same')
    """
    return "the same" if abs(change) < SAME else f"{percent(abs(change))} {'more' if change > 0 else 'less'}"


def _fleet(plan: Plan) -> list[Text]:
    """Return the hosts that a rate of requests needs or that a power supplies, and their cost."""
    fleet = plan.fleet
    if fleet is None:
        return []
    spares = f" and {counted(fleet.spare, 'spare')}" if fleet.spare else ""
    size = f"{counted(fleet.replicas, 'replica')} of {counted(fleet.replica_chips, 'chip')}"
    is_largest = math.isfinite(fleet.power_cap)
    words = f"Within {show(fleet.power_cap, 'W')}" if is_largest else f"For {request_rate(fleet.rate)}"
    words += f": {size}"
    words += f"{spares} on {counted(fleet.hosts, 'host')} ({counted(fleet.chips, 'chip')}), "
    waiting = fleet.chips - (fleet.replicas + fleet.spare) * fleet.replica_chips
    words += f"{percent(fleet.utilisation)} utilized"
    if is_largest:
        words += f" at {request_rate(fleet.rate)}; {show(fleet.watts, 'W')}, from {power_in_words(plan.power)}"
    if has_rent(plan):
        words += f"; {usd(fleet.usd_per_month)} a month, {usd(fleet.usd_per_million_output_tokens)} per million output tokens"
        words += f", {counted(waiting, 'idle chip')} included" if waiting else ""
    elif waiting:
        words += f"; {counted(waiting, 'chip')} of the hosts idle"
    return [Text(f"{words}.", style="bold")]


def _money(plan: Plan, *, full: bool) -> list[Text]:
    """Return the rent with its kind, date and grade, and the energy with its basis."""
    lines = []
    if has_rent(plan):
        words = f"Rent: {show(plan.usd_per_second, 'USD/s')} for {counted(plan.total_chips, 'chip')}, {_rent_origin(plan.rent)}"
        if plan.prefill_rent is not None and (plan.is_pair or plan.prefill_rent != plan.rent):
            words += f" ({plan.system}), {_rent_origin(plan.prefill_rent)} ({plan.prefill_system})"
        idle = -plan.total_chips % plan.served.host_chips
        if idle and plan.fleet is None and plan.prefill_rent is None:
            host = "host" if plan.total_chips < plan.served.host_chips else "last host"
            words += f"; without the {counted(idle, 'other chip')} of the {host}"
        lines.append(f"{words}.")
    if has_rent(plan) and full:
        lines.append(
            f"Share of the rent: {usd(plan.prefill_usd_per_million_tokens)} per million input tokens, "
            f"{usd(plan.decode_usd_per_million_tokens)} per million output tokens."
        )
    is_asked = math.isfinite(plan.electricity) or (plan.energy is not None and math.isfinite(plan.energy.carbon))
    if full or is_asked:
        lines += [_load_energy(plan), _energy(plan)]
    return [Text(line) for line in lines if line]


def _rent_origin(rent: Rent) -> str:
    """Return kind, date and grade of a rent, with its note."""
    return origin_in_words(rent) + (f" ({rent.note})" if rent.note and rent.kind != "given" else "")


def _load_energy(plan: Plan) -> str:
    """Return power, energy, electricity and CO2 at the load of the plan."""
    energy = plan.energy
    if energy is None:
        return ""
    words = f"Energy at this load: {ranged(energy.joules, energy.joules_range, 'J')} per output token: "
    words += f"{show(energy.chip_watts, 'W')} per chip, {show(energy.total_watts, 'W')} for all with {AROUND}; "
    words += f"{in_digits(energy.tokens_per_second_per_megawatt)} output tok/s per MW"
    if math.isfinite(energy.rent_per_megawatt_hour):
        words += f", rent {usd(energy.rent_per_megawatt_hour)} per MWh"
    if math.isfinite(energy.electricity_usd):
        words += f"; electricity {usd(energy.electricity_usd)} per million output tokens"
    if math.isfinite(energy.carbon_grams):
        words += f"; {show(energy.carbon_grams, 'g')} of CO2 per million output tokens at {energy.carbon:,.0f} g/kWh"
    return words + "."


def _energy(plan: Plan) -> str:
    """Return the energy per token, its cost if a price is given, and whether the rent includes it."""
    joules, cost = plan.joules_per_output_token, plan.electricity_usd_per_million_output_tokens
    if not math.isfinite(joules):
        is_asked = math.isfinite(plan.electricity)
        unknown = plan.system if not plan.prefill_system or math.isnan(float(plan.power.watts)) else plan.prefill_system
        return f"Energy: the power of {unknown} is not known; set it per chip: --set power=1.5kW." if is_asked else ""
    words = f"Energy at the limit of all chips: {show(joules, 'J')} per output token, from {power_in_words(plan.power)}"
    if plan.prefill_power is not None:
        words += f" ({plan.system}) and {power_in_words(plan.prefill_power)} ({plan.prefill_system})"
    if math.isfinite(cost):
        price = show(plan.electricity, "USD/J")
        words += f"; at {price} {usd(cost)} per million output tokens, {counted_by(plan.rent)}"
    return words + "."


def _legend(plan: Plan) -> Text | None:
    """Return the meaning of the letters in layouts."""
    runner_up = [plan.runner_up.layout_text] if plan.runner_up else []
    texts = [plan.layout_text, *runner_up, *(point.layout_text for point in plan.front)]
    used_axes = {word.rstrip("0123456789") for text in texts for word in text.split()}
    meanings = "; ".join(f"{axis}: {words}" for axis, words in AXES.items() if axis in used_axes)
    words = f"{meanings}." if meanings else "One chip: no layout is needed."
    if any(pool.role == "prefill" and pool.batch > 1 for pool in plan.pools):
        words += " Batch and step of the prefill pool are maxima; the mean prefill pass has fewer prompts and is shorter."
    return footnote(words)


def _short_legend(plan: Plan, full: bool) -> Text | None:
    """Return the meaning of the rare letters in the layout; with `full` all letters are explained."""
    letters = {word.rstrip("0123456789") for word in plan.layout_text.split()}
    meanings = [f"{axis}: {AXES[axis]}" for axis in ("mb", "red") if axis in letters]
    return footnote("; ".join(meanings) + ".") if meanings and not full else None


def _totals(plan: Plan) -> list[Text]:
    """Return the load of the deployment, the runner-up, and the share of measured runs inside such ranges."""
    transfer = f"; {show(plan.transfer_seconds, 's')} of KV transfer per request" if plan.transfer_seconds else ""
    load = f"{request_rate(plan.requests_per_second)}; {in_digits(plan.concurrency)} requests in flight"
    lines = [Text(f"{load}; {percent(plan.utilisation)} utilization of prefill{transfer}.")]
    if plan.runner_up:
        runner_up = plan.runner_up
        lines.append(Text(f"Runner-up: {runner_up.layout_text}, batch {runner_up.batch:,}: {_compared_cost(plan)}."))
    if plan.interval_coverage:
        lines.append(Text(f"The 90 % range contains {'; '.join(plan.interval_coverage)}.", style="bright_black"))
    return lines


def _compared_cost(plan: Plan) -> str:
    """Compare the runner-up: in money, or in output per chip if the rent is not known."""
    cost_difference = runner_up_dearer(plan)
    if abs(cost_difference) < 0.0005:
        return "the same cost" if has_rent(plan) else "the same output per chip"
    if not has_rent(plan):
        change = cost_difference / (1 + cost_difference)
        return f"{percent(abs(change), 1)} {'less' if change > 0 else 'more'} output per chip"
    if cost_difference > 0:
        return f"{percent(cost_difference, 1)} more expensive"
    within = f"among layouts within {percent(AS_CHEAP, 1)} in cost, the plan is the fastest"
    return f"{percent(-cost_difference, 1)} cheaper; {within}"


def _memory_bars(plan: Plan, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for pool in plan.pools:
        title = "Memory of a chip" if pool.role == "serve" else f"Memory of a {pool.role} chip"
        parts += [memory_bar(pool.memory, width, title), Text(_cached_sequences(plan, pool), style="bright_black")]
    return parts


def _cached_sequences(plan: Plan, pool: Pool) -> str:
    """Say which sequences the KV cache of a pool contains."""
    is_prefill = pool.role == "prefill"
    context = float(plan.workload.input_tokens if is_prefill else mean_context(plan.workload))
    # The cache of a prefill pool has the prompts of the pass that runs, and of the one that is sent.
    slots = pool.max_num_seqs * (2 if is_prefill else 1)
    sequence_count = min(slots, pool.kv_tokens_per_rank * int(pool.layout.dp) / context)
    sequences = f"KV cache per replica: {in_digits(sequence_count)}"
    if is_prefill:
        return f"{sequences} prompts of {context:,.0f} tokens, prefilled or being sent."
    sequences += f" sequences of {context:,.0f} tokens on average."
    return f"{sequences} The mean batch is {in_digits(pool.batch)}; the rest is spare for peaks."


def _time_tables(plan: Plan, width: int) -> RenderableType:
    server = plan.pools[-1]
    terms, details = mean_terms(server), ["prefill chunks included"] * (server.mixed is not None)
    if plan.speculation.drafts:
        details.append(f"{float(step_yield(plan.workload, plan.speculation)):.3g} tokens per user")
    title = f"Where the {show(sum(terms.values()), 's')} of a mean {'decode ' * (server.mixed is None)}step go"
    title += f" ({'; '.join(details)})" * bool(details)
    return Group(heading(title), term_table(terms, width, "Term"), resource_table(mean_resources(server), width))


def _front_chart(plan: Plan, width: int) -> RenderableType:
    """Return speed against throughput on the Pareto front, with the chosen layout marked."""
    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return Text("Only one layout is on the Pareto front.")
    speed = log10([p.tokens_per_second_per_user for p in points])
    output = np.array([p.tokens_per_second_per_chip for p in points])
    step = nice(float(max(output)) / 8)
    rows = math.ceil(float(max(output)) / step)
    low, high = math.floor(2 * speed.min()) / 2, math.ceil(2 * speed.max() + 1e-9) / 2
    curves = [Curve(speed, output)]
    if plan.feasible:
        best = "the cheapest layout" if has_rent(plan) else "the layout of most output"
        plan_point = ([math.log10(plan.tokens_per_second_per_user)], [plan.tokens_per_second_per_chip])
        curves.append(Curve(*plan_point, best, "green", "◆", has_line=False))
    if math.isfinite(plan.slo.tpot) and low < -math.log10(plan.slo.tpot) < high:
        limit = -math.log10(plan.slo.tpot)
        curves.append(Curve([limit, limit], [0, rows * step], "the speed asked for", "red", glyph="│"))
    across = Axis("tok/s per user", low, high)
    up = Axis("tok/s per chip", 0, rows * step, "{:,g}".format, log=False)
    return draw(curves, across, up, width, rows, "Pareto front: output of each chip against mean speed for each user [tok/s]")


def _front_table(plan: Plan) -> list[RenderableType]:
    """Return some points of the Pareto front, evenly spaced in speed."""
    points = [p for p in plan.front if p.tokens_per_second_per_chip > 0]
    if len(points) < 2:
        return []
    # Points with equal ratios of speed cover the front better than equal differences.
    speed = np.log([p.tokens_per_second_per_user for p in points])
    marks = np.linspace(speed.max(), speed.min(), FRONT_ROWS)
    places = dict.fromkeys(int(np.argmin(np.abs(speed - mark))) for mark in marks)
    columns = [
        "Mean tok/s per user: {tokens_per_second_per_user:digits}",
        "tok/s per chip: {tokens_per_second_per_chip:digits}",
    ]
    columns += ["USD/M out: {usd_per_million_output_tokens:USD}"] if has_rent(plan) else []
    columns += ["Batch: {batch:,}", "Layout: {layout_text}"]
    going = (3, 2) if has_rent(plan) else (2,)
    return [listing(" | ".join(columns), [points[place] for place in places], first_to_go=going)]


def _front_note(plan: Plan) -> list[RenderableType]:
    """Return why a row of the front may look better than the plan, whose speed is a percentile."""
    if plan.percentile == "mean" or not plan.feasible or len(plan.front) < 2:
        return []
    return [Text(f"The plan (◆) gives its speed at {plan.percentile}, which is below its mean speed; the front has means.")]


def _elasticity_table(plan: Plan, width: int) -> RenderableType:
    """Return the change of the cost for 10 % more of each figure."""
    changes = cost_changes(plan)
    largest = max((abs(change) for change in changes.values()), default=1.0) or 1.0
    rows = [
        (IN_WORDS.get(name, name), _signed(change), abs(change) / largest, "green" if change < 0 else "red")
        for name, change in sorted(changes.items(), key=lambda item: item[1])
    ]
    grid = bar_table(("10 % more", "Cost changes by", ""), rows, max(10, min(30, width - 44)))
    return Group(heading("Change of the cost with each figure"), grid)


def _signed(change: float) -> str:
    return percent_change(change) if abs(change) >= 5e-4 else "0.0 %"


def _alternative_table(plan: Plan) -> list[RenderableType | None]:
    """Return the alternatives: other formats, more chips, other pools, speculative decoding."""
    if not plan.alternatives:
        return []
    # Without a rent, the change is that of the output per chip.
    priced = has_rent(plan)
    rows = [
        (
            alternative.option or alternative.words,
            _signed(-alternative.saving if priced else 1 / (1 - alternative.saving) - 1),
            alternative.layout_text,
        )
        for alternative in plan.alternatives
    ]
    head = "Cost changes by" if priced else "Output per chip"
    grid = table("Alternative", head, "Layout", rows=rows, numbers=(1,), first_to_go=(2,))
    words = footnote("Searched only near the chosen layout; a separate plan may find a better layout.")
    return [Text(), heading("Alternatives"), grid, words]


def _speculation_table(plan: Plan) -> list[RenderableType | None]:
    """Return TPOT and rate with and without speculative decoding, by batch."""
    if not plan.drafted:
        return []
    grid = listing(
        "Batch: {batch:,} | Plain TPOT: {tpot_without:s} | Speculative: {tpot:s} | Plain rate: {rate_without:tok/s} | "
        "Speculative: {rate:tok/s} | With drafts: {change}",
        plan.drafted, first_to_go=(3, 4), change=lambda row: speed_change(row.speed_up),
    )  # fmt: skip
    words = footnote("TPOT and rate per chip of decode steps without prefill chunks.")
    return [Text(), heading("Speculative decoding at each batch"), grid, words]


def launch_view(plan: Plan, engines: Iterable[str]) -> RenderableType:
    """Return launch commands, one block per engine.

    Args:
        plan: A feasible plan.
        engines: Names of engines.

    Returns:
        Something that a console prints.
    """
    from steptime.launch.launch_commands import launch_commands, only_own_plans, slot_note
    from steptime.launch.llama_cpp import NAME as LLAMA_CPP
    from steptime.launch.serve_args import NAMES

    parts: list[RenderableType] = [Text(), Text(f"# {slot_note(plan)}", no_wrap=True, overflow="ignore")]
    blocks = [(NAMES.get(engine, engine), launch_commands(plan, engine)) for engine in engines]
    if len(blocks) > 1:
        # llama.cpp has other formats and layouts.
        blocks.append((LLAMA_CPP, [f"# {only_own_plans(LLAMA_CPP)}"]))
    for title, lines in blocks:
        parts += [Text(), heading(title), *(Text(line, no_wrap=True, overflow="ignore") for line in lines)]
    return Group(*parts)


# --- explanation --------------------------------------------------------------------------------------------------------


def explain_json(
    model: Model, system: System, plan: Plan, engine: Engine, prefill_system: System | None = None
) -> dict[str, Any]:
    """Return the explanation of a plan as data.

    Args:
        model: The model.
        system: The system.
        plan: A feasible plan.
        engine: The engine.
        prefill_system: The system of the prefill pool, if it is another one.

    Returns:
        Equations and passes by pool, what the ranges are made of, and the sources of model and system.
    """
    # The KV cache has the number format of the engine.
    model, drafts = as_served(model, system, engine), plan.speculation.drafts
    pools = []
    for pool in plan.pools:
        passes, machine = [], prefill_system or system if pool.role == "prefill" else system
        for name, step, mixed in _passes(pool):
            sizes = step_given(pool, plan.workload, mixed=mixed, drafts=drafts)
            lines = explain_step(model, machine, sizes=sizes, layout=pool.layout, engine=engine, drafts=drafts)
            times = {"total_s": step.total, "lower_s": step.lower, "upper_s": step.upper}
            passes.append({"pass": name, **times, "lines": lines})
        rules = equations(model, pool, plan.workload, utilisation=plan.utilisation, speculation=plan.speculation)
        pools.append({"pool": pool.role, "equations": rules, "passes": passes})
    machines = [machine for machine in (system, prefill_system) if machine is not None]
    figures = [
        {**row, "figure": f"{machine.name} {row['figure']}"} if len(machines) > 1 else row
        for machine in machines
        for row in sources_json(machine)
    ]
    shares = {name: dict(parts) for name, parts in plan.range_shares.items()}
    return {"pools": pools, "range_shares": shares, "model_source": dict(model.source), "sources": figures}


def _passes(pool: Pool) -> Iterator[tuple[str, Any, bool]]:
    """Yield name and step of each pass of a pool, and whether it combines a prefill chunk with decode."""
    yield "prefill pass" if pool.role == "prefill" else "decode step", pool.step, False
    if pool.mixed is not None:
        yield "step with a prefill chunk", pool.mixed, True


def explanation_view(explanation: dict[str, Any], system: System, prefill_system: System | None = None) -> RenderableType:
    """Return every term of a plan's steps with formulas, numbers and sources.

    Args:
        explanation: Equations and passes by pool, as `explain_json` returns them.
        system: The system.
        prefill_system: The system of the prefill pool, if it is another one.

    Returns:
        Something that a console prints.
    """
    parts: list[RenderableType] = []
    for pool in explanation["pools"]:
        parts += [Text(), heading(f"Equations of the {pool['pool']} pool"), *(Text(f"  {rule}") for rule in pool["equations"])]
        for step in pool["passes"]:
            limits = bounds(step["lower_s"], step["upper_s"])
            parts += [Text(), heading(f"A {step['pass']}: {show(step['total_s'], 's')} (bounds {limits})")]
            parts.append(lines_table(step["lines"]))
        parts.append(Text(FORMULAS, style="bright_black"))
    if explanation["range_shares"]:
        parts += [Text(), heading("Width of the 90 % ranges, upwards")]
        parts += [Text(f"  {name}: {range_causes(shares)}") for name, shares in explanation["range_shares"].items()]
    origin = explanation["model_source"] or {"url": "a local config"}
    provenance = ", ".join(text for key in ("grade", "date") if (text := origin.get(key)))
    parts.append(Text(f"Model: {origin['url']}" + (f" ({provenance})" if provenance else ""), no_wrap=True, overflow="ignore"))
    machines = [machine for machine in (system, prefill_system) if machine is not None]
    for machine in machines:
        parts += [heading(f"Figures of {machine.name}")] if len(machines) > 1 else []
        parts.append(sources_table(machine))
    return Group(*parts)


def lines_table(lines: list[Line]) -> Grid:
    """Return a step's operators and collectives with their formulas.

    Args:
        lines: Operators and collectives with formula and time.

    Returns:
        A table; the name of a term stands in its first row only.
    """
    first_lines = {line.term: line for line in reversed(lines)}
    return listing(
        "Term: {term} | Operator: {name} | Per chip and micro-batch: {formula} | Time: {seconds:s}", lines, first_to_go=(1,),
        term=lambda line: TERM_NAMES.get(line.term, line.term) if line is first_lines[line.term] else "",
    )  # fmt: skip


def sources_table(system: System) -> RenderableType:
    """Return the sources of a system's figures as a table.

    Args:
        system: The system.

    Returns:
        A table with the list of sources.
    """
    return sourced("Figure", sources(system))


def sources_json(system: System) -> list[dict[str, str]]:
    """Return the sources of a system's figures as data.

    Args:
        system: The system.

    Returns:
        Name, value, grade, date and URL of each figure.
    """
    return [dict(zip(("figure", "value", "grade", "date", "url"), row, strict=True)) for row in sources(system)]
