"""Text of `steptime compare` and `steptime context`: a row for each alternative, and bars on a logarithmic axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from rich.console import Group
from rich.text import Text

from steptime.cli.views.plan_view import formats_in_words
from steptime.cli.views.terminal_plots import LogScale
from steptime.cli.views.widgets import Answer, Grid, footnote, listing, ranged, section
from steptime.hardware.rental_prices import has_rent, usd
from steptime.sweeps.context_limit import ContextWall, ContextWalls, tokens
from steptime.sweeps.ranking import RENT_KINDS, Ranking, Standing
from steptime.units import DAY, HOUR, counted, in_digits, percent, show

# Columns next to the axis of the chart, at most, of compare and of context.
MAX_PAIR_WIDTH, MAX_TECHNIQUE_WIDTH = 34, 30
ON_DEMAND = "ondemand"
# Pairs up to which the reasons of missing plans stand in the answer.
FEW_PAIRS = 8
# Times the first cost from which a row stands only in the full answer, since nobody would buy it.
FAR_COST = 10
# Why the same volume costs another amount there.
SELF_HOST_NOTE = (
    "prices --self-host has other defaults: 4,096 tokens in and 1,024 out, layouts published elsewhere too, and the cheapest "
    "of several numbers of chips. With --input and --output as its --mix, and the same --evidence and --chips, the "
    "cost is the same."
)
# Letters from which the name of a combination of techniques stands below the table.
COMBINED_WIDTH = 24
# Why a smaller cache is not always faster, or a faster one smaller.
EFFECTS = {
    "share": "share: each layer still reads the shared cache, so memory falls and time does not",
    "topk": "topk: all tokens and an index stay in memory; each step reads the index and the best tokens",
    "blocks": "blocks: all tokens stay in memory",
}


# --- compare ------------------------------------------------------------------------------------------------------------


def ranking_view(ranking: Ranking, *, width: int, full: bool) -> Answer:
    """Return the comparison of models and systems.

    Args:
        ranking: Pairs of model and system, the cheapest first.
        width: Columns of the terminal.
        full: Whether to show all columns, the chart of costs, and pairs without a plan.

    Returns:
        The answer.
    """
    conditions = [_load_words(ranking)]
    if math.isfinite(ranking.slo.tpot):
        conditions.append(f"at least {show(1 / ranking.slo.tpot, 'tok/s')} per user")
    if math.isfinite(ranking.slo.ttft):
        conditions.append(f"first token within {show(ranking.slo.ttft, 's')}")
    ranked = [standing for standing in ranking.standings if standing.place]
    far = [row for row in ranking.priced if row.cost > FAR_COST * ranking.priced[0].cost]
    placed = ranked if full else [row for row in ranked if row not in far]
    unpriced = [standing for standing in ranking.standings if standing.feasible and not standing.place]
    unable = [standing for standing in ranking.standings if not standing.feasible]
    speeds = [
        f"{ranking.called(row)}: {show(row.tokens_per_second_per_chip, 'tok/s')} per chip"
        + (f", {counted(row.hosts, 'host')} with {counted(row.fleet_chips, 'chip')}." if row.replicas else ".")
        for row in unpriced
    ]
    reasons = [f"{ranking.called(row)}: {row.reason.rstrip('.')}." for row in unable]
    is_brief = len(ranking.standings) <= FEW_PAIRS
    return Answer(
        sentence=_ranking_sentence(ranking), conditions=f"{'; '.join(conditions)}. {_settings(ranking)}",
        body=[
            *([_ranking_table(placed, ranking, full=full), footnote(_ranking_meaning(placed, full=full))] if placed else []),
            _far_words(ranking, far, full=full),
            section(f"A plan, but no rent{_kind_words(ranking)} is known", speeds) if is_brief else None,
            section("No plan", reasons) if is_brief else None,
            section("What would change the order of the first two", [f"{words}." for words in ranking.flips]),
        ],
        details=[
            section("Prefix cache of a replica, by tier", [_cache_words(ranking, row) for row in placed if row.hits_text]),
            _cost_chart(ranking.priced, ranking, width) if placed else None,
            None if is_brief else section(f"A plan, but no rent{_kind_words(ranking)} is known", speeds),
            None if is_brief else section(f"No plan on {counted(len(unable), 'pair')}", reasons),
        ],
        warnings=[*ranking.notes, *([SELF_HOST_NOTE] if ranking.is_fleet and ranking.sessions is None else [])],
        full_adds=[
            *(["rent and layout of each", "chart of costs"] if placed else []),
            "prefix cache by tier" if ranking.sessions is not None and placed else "",
            _unpriced_words(ranking, unpriced) if unpriced and not is_brief else "",
            f"{counted(len(unable), 'pair')} without a plan" if unable and not is_brief else "",
        ],
    )  # fmt: skip


def _far_words(ranking: Ranking, far: Sequence[Standing], *, full: bool) -> Text | None:
    """Name the pairs whose cost is many times that of the first."""
    if not far:
        return None
    *names, last = (_name(ranking, row) for row in far)
    subject = f"{', '.join(names)} and {last} cost" if names else f"{last} costs"
    return footnote(f"{subject} more than {FAR_COST} times the first{'' if full else ': see --full'}.")


def _unpriced_words(ranking: Ranking, unpriced: Sequence[Standing]) -> str:
    """Return how many pairs have no rent, and how many of them have one of another kind."""
    kind = next(iter({standing.rent.kind for standing in ranking.priced}), "") if _kind_words(ranking) else "known"
    numbers = Counter(name for row in unpriced for name in row.other_rents if name in RENT_KINDS)
    kind_texts = [f"{number:,} of them with --rent {name}" for name, number in numbers.items()]
    return f"{counted(len(unpriced), 'pair')} without a {kind} rent{''.join(f', {words}' for words in kind_texts)}"


def _daily_words(ranking: Ranking) -> str:
    """Return the tokens of a day of the fleet's requests, with the shares of output and of cached prompts."""
    work = ranking.workload
    tokens = work.input_tokens + work.output_tokens
    cached = f"{percent(work.cached_share)} of prompts cached" if work.cached_share else "no prompt cached"
    share = f"{percent(work.output_tokens / tokens)} of them output, {cached}"
    return f" ({show(ranking.rate * tokens * DAY)} tokens a day, {share})"


def _load_words(ranking: Ranking) -> str:
    """Return the requests or sessions, and their rate, in words."""
    rate = f"{in_digits(ranking.rate)} {'turns' if ranking.sessions else 'requests'}/s of " if ranking.is_fleet else ""
    spare = f", {counted(ranking.spare, 'spare replica')}" if ranking.spare else ""
    sessions = ranking.sessions
    if sessions is None:
        sizes = f"{ranking.workload.input_tokens:,.0f} tokens in, {ranking.workload.output_tokens:,.0f} out on average"
        return f"{rate}{sizes}{_daily_words(ranking) if ranking.is_fleet else ''}{spare}"
    prompt = f", system prompt of {sessions.system_prompt:,.0f} tokens" if sessions.system_prompt else ""
    return (
        f"{rate}sessions of {sessions.turns:,.3g} turns on average, with {sessions.input_tokens:,.0f} new tokens in and "
        f"{sessions.output_tokens:,.0f} out, think time {show(sessions.think_time, 's')}{prompt}{spare}"
    )


def _cache_words(ranking: Ranking, standing: Standing) -> str:
    """Return what the tiers of a replica find, how long loads take, and how many bytes would hold nearly all."""
    return (
        f"{_name(ranking, standing)}: {standing.hits_text}; loads take {show(standing.load_seconds, 's')} of the first token; "
        f"{show(standing.needed_bytes, 'B')} hold 95 % of what repeats."
    )


def _kind_words(ranking: Ranking) -> str:
    """Return the kind of rent of all rows with one; empty where rows have several kinds."""
    kinds = {standing.rent.kind for standing in ranking.priced}
    return f" of kind {kinds.pop()}" if ranking.is_fleet and len(kinds) == 1 and "" not in kinds else ""


def _fleet_sentence(ranking: Ranking, first: Standing) -> str:
    """Say which fleet of the first pair serves the rate, and its cost."""
    spares = f" and {counted(ranking.spare, 'spare')}" if ranking.spare else ""
    size = f"{counted(first.replicas, 'replica')} of {counted(first.replica_chips, 'chip')}{spares}"
    return (
        f"{_cost(first)} a month for {size} on {counted(first.hosts, 'host')} ({counted(first.fleet_chips, 'chip')}), "
        f"{percent(first.utilisation)} utilized; {usd(first.usd_per_million_output_tokens_at_rate)} per million output "
        "tokens"
    )


def _ranking_sentence(ranking: Ranking) -> str:
    """Say which pair is cheapest, how far the second is, and which pair with measured runs is cheapest."""
    priced = ranking.priced
    if not priced:
        return ranking.text
    first, rivals = priced[0], priced[1:]
    several_models = len({row.model for row in ranking.standings}) > 1
    verb = "is" if several_models else f"serves {first.model.rpartition('/')[2]}"
    if ranking.is_fleet:
        load = f"{in_digits(ranking.rate)} {'turns' if ranking.sessions else 'requests'}/s"
        text = f"{_name(ranking, first)} {verb} cheapest at {load}: {_fleet_sentence(ranking, first)}"
    else:
        text = f"{_name(ranking, first)} {verb} cheapest: {_cost(first)} per million output tokens at full load"
        text += f" on {counted(first.chips, 'chip')}"
    # ranges without a measured run rest on other chips, so the first pair with runs is named too
    text += "." if first.runs or first.cost_range is None else ", but without measured runs."
    measured = next((standing for standing in priced if standing.runs), None)
    if measured is not None and measured is not first:
        unit_words = " a month" if ranking.is_fleet else ""
        text += f" Cheapest with measured runs: {_name(ranking, measured)}, {_cost(measured)}{unit_words}."
    if rivals:
        ratio = rivals[0].cost / first.cost
        text += f" {_name(ranking, rivals[0])} costs {ratio:.2g}x as much as the first"
        ties = sum(standing.tied for standing in rivals)
        share = f"ranges of {ties} of {len(rivals)} overlap with the first"
        share = "its range overlaps" if ties == len(rivals) == 1 else share
        text += f"; the order is not certain ({share})." if ties else "."
    return text


def _settings(ranking: Ranking) -> str:
    """Say how many chips each plan has, which formats the models have, and the options that change this."""
    rows = [standing for standing in ranking.standings if standing.feasible]
    sizes = sorted({standing.chips for standing in rows})
    if ranking.chips in ("", "any"):
        ends = [f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1]))] if sizes else []
        span = f" ({' to '.join(ends)})" if ends else ""
        chips = {"": "usual number of chips of each system, as in plan", "any": "cheapest number of chips"}[
            ranking.chips
        ] + span
    else:
        chips = counted(int(ranking.chips), "chip")
    formats = dict.fromkeys(formats_in_words(standing.plan.served) for standing in rows if standing.plan is not None)
    modes = " or ".join(sorted({standing.mode for standing in rows}))
    words = [chips, modes and f"{modes} mode", *(formats if len(formats) == 1 else ["weights as in each config"])]
    kind = _kind_words(ranking)
    words += [f"rent{kind} for all"] if kind else []
    options = "--chips, --mode, --weights and --rent" if kind else "--chips, --mode and --weights"
    return f"Settings: {', '.join(filter(None, words))}; {options} change them."


def _name(ranking: Ranking, standing: Standing) -> str:
    """Return the name of a pair without the maker of its model."""
    return ranking.called(standing) if standing.label else ranking.called(standing).rpartition("/")[2]


def _cost(standing: Standing) -> str:
    return ranged(standing.cost, standing.range_of_cost, "USD")


def _ranking_meaning(placed: Sequence[Standing], *, full: bool) -> str:
    """Say what marks and columns mean."""
    words = "USD/M: per million output tokens, prompts included"
    has_fleet, has_sessions = any(row.replicas for row in placed), any(math.isfinite(row.hit_share) for row in placed)
    words += ", at this load. Chips: in whole hosts." if has_fleet else "."
    words += " Cached: share of prompt tokens that the prefix cache has." if has_sessions else ""
    if any(standing.tied for standing in placed[1:]):
        words += " ≈: no clear difference, since the 90 % range overlaps with that of row 1."
    if any(standing.quick for standing in placed):
        words += " ~: a quick search, mostly within 6 % of plan."
    if any(standing.cost_range is not None for standing in placed):
        words += " Runs: measured runs on this system."
    if any(standing.rent.kind == ON_DEMAND for standing in placed):
        words += " o: rent on demand."
    if full:
        words += "" if has_fleet else " USD/M in: per million prompt tokens."
        if any(standing.power_basis == "chip" for standing in placed):
            words += " *: power of the chip, without host, network and cooling."
    return words


def _ranking_table(placed: Sequence[Standing], ranking: Ranking, *, full: bool) -> Grid:
    """Return a row for each pair with a price; rent, layout and engine only in full, since they wrap."""
    range_head = " (90 %)" if any(standing.cost_range is not None for standing in placed) else ""

    def rent(row: Standing) -> str:
        kind = "on demand" if row.rent.kind == ON_DEMAND else row.rent.kind
        has_known_rent = has_rent(row.rent)
        return f"{show(float(row.rent.typical), 'USD/s')} {kind} {row.rent.date}".rstrip() if has_known_rent else "not known"

    def hourly(row: Standing) -> str:
        if row.plan is not None and row.prefill_system:
            # The mean of both systems.
            return f"{row.plan.usd_per_second / row.chips * HOUR:.2f}" if math.isfinite(row.plan.usd_per_second) else "-"
        mark = " o" if row.rent.kind == ON_DEMAND else ""
        return f"{float(row.rent.typical) * HOUR:.2f}{mark}" if has_rent(row.rent) else "-"

    def power(row: Standing) -> str:
        mark = "*" if full and row.power_basis == "chip" else ""
        rate = row.tokens_per_second_per_kilowatt
        return f"{rate:,.0f}{mark}" if math.isfinite(rate) else "-"

    # Columns in their order; those of the second list go first in a narrow terminal, its first one first.
    cost_head = f"USD/month{range_head}: {{cost}}" if ranking.is_fleet else f"USD/M output{range_head}: {{cost}}"
    columns = [": {mark}", "System: {name}", cost_head]
    if ranking.is_fleet:
        columns += [
            "Chips: {fleet_chips:,}", "Replicas: {replicas:,}", "Used: {used}",
            "USD/M output: {usd_per_million_output_tokens_at_rate:USD}",
        ]  # fmt: skip
    else:
        columns += ["Chips: {chips:,}", "USD per chip-hour: {hourly}", "Runs: {runs}"]
    columns += ["Cached: {cached}"] if ranking.sessions is not None else []
    speed, ttft = "tok/s/user: {tokens_per_second_per_user:,.1f}", "TTFT: {ttft:s}"
    if ranking.is_fleet:
        columns += [ttft, speed, "Runs: {runs}", "USD per chip-hour: {hourly}"]
    else:
        columns += [speed, ttft, "tok/s/chip: {tokens_per_second_per_chip:,.0f}", "tok/s/kW: {power}"]
        columns += ["USD/M in: {prefill_usd_per_million_tokens:USD}"]
    columns += ["Rent per chip: {rent}", "Layout: {layout_text}", "Engine: {engine}"] if full else []
    heads = [column.partition(":")[0] for column in columns]
    right = ("USD per chip-hour", "Runs", "tok/s/kW", "Used", "Cached", heads[2])
    to_go = [
        "Layout", "Engine", "Rent per chip", "USD/M in", "tok/s/kW", "tok/s/chip",
        *(["USD per chip-hour", "Runs"] if ranking.is_fleet else []), "TTFT", "tok/s/user", "Cached",
        *([] if ranking.is_fleet else ["USD per chip-hour", "Chips"]),
    ]  # fmt: skip
    return listing(
        " | ".join(columns), placed, first_to_go=[heads.index(head) for head in to_go if head in heads], no_wrap=(0,),
        numbers=[place for place, head in enumerate(heads) if head in right],
        style=lambda row: "green" if row.place == 1 else None,
        mark=lambda row: f"{row.place}{' ≈' if row.tied and row.place > 1 else ''}", name=lambda row: _name(ranking, row),
        cost=lambda row: "~" * row.quick + ranged(row.cost, row.range_of_cost, "USD", label=""),
        cached=lambda row: percent(row.hit_share) if math.isfinite(row.hit_share) else "-",
        used=lambda row: percent(row.utilisation), hourly=hourly,
        runs=lambda row: f"{row.runs:,}" if row.runs else "none", rent=rent,
        power=power,
    )  # fmt: skip


def _cost_chart(priced: Sequence[Standing], ranking: Ranking, width: int) -> Group | None:
    """Return costs with their ranges as intervals on a logarithmic axis."""
    if len(priced) < 2:
        return None
    costs = [standing.cost for standing in priced]
    ends = [standing.range_of_cost or (cost, cost) for standing, cost in zip(priced, costs, strict=True)]
    names = [standing.label or _name(ranking, standing) for standing in priced]
    scale = LogScale.fit(names, chain.from_iterable(ends), width, max_name_width=MAX_PAIR_WIDTH)
    with_range = any(standing.cost_range is not None for standing in priced)
    # Costs left of this edge overlap with the first.
    edge = [(ends[0][1], ends[0][1], "┊")] if with_range else []
    lines = []
    for standing, name, cost, (low, high) in zip(priced, names, costs, ends, strict=True):
        colour = "green" if standing.place == 1 else "cyan" if standing.tied else "white"
        lines.append(scale.line(name, [*edge, (low, high, "─"), (cost, cost, "●")], colour))
    legend = Text("● cost  ─ its 90 % range  ┊ upper end of the first") if with_range else None
    unit_words = "USD per month" if ranking.is_fleet else "USD per million output tokens"
    return section(f"{unit_words}{', 90 % ranges' if with_range else ''}", [*lines, scale.labels(), legend])


# --- context ------------------------------------------------------------------------------------------------------------


def contexts_view(limits: ContextWalls, *, width: int) -> Answer:
    """Return how long a context may be for a speed and a price.

    Args:
        limits: Longest contexts of a model as it is, and with each technique.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    limits_words = f"At most {counted(limits.chips, 'chip')}, {show(limits.tpot, 's')} per token, engine {limits.engine}"
    caveats = list(dict.fromkeys(text for wall in limits.walls for text in wall.caveats))
    return Answer(
        sentence=_context_sentence(limits),
        conditions=f"{limits_words}, cache in {limits.kv_format}; decode only, without prefill.",
        body=[]
        if limits.reason
        else [_context_table(limits), footnote(_context_meaning(limits)), _context_chart(limits, width)],
        details=[section("Caveats of techniques", caveats), section("Techniques that do not apply", limits.left_out)],
        warnings=_context_warnings(limits),
        full_adds=[
            "caveats of techniques" if caveats else "",
            f"{counted(len(limits.left_out), 'technique')} not applied" if limits.left_out else "",
        ],
    )  # fmt: skip


def _context_sentence(limits: ContextWalls) -> str:
    """Say how long a context the model reaches as it is, and with the best technique."""
    base, model = limits.base, limits.model.rpartition("/")[2]
    speed = f"{1 / limits.tpot:,.3g} tok/s"
    if not base.longest:
        return limits.text
    text = f"{model} on {limits.system} reaches {tokens(base.longest)} of context at {speed} for at least one sequence"
    remarks = []
    if base.longest_range and base.longest_range[1] >= 1.01 * base.longest_range[0]:
        remarks.append(f"90 %: {' to '.join(map(_length, base.longest_range))}")
    if base.longest > limits.max_context:
        remarks.append(f"trained for {limits.max_context:,.0f}")
    text += f" ({'; '.join(remarks)})" if remarks else ""
    has_price = math.isfinite(limits.usd_per_million)
    price = f"{usd(limits.usd_per_million)} per million output tokens" if has_price else ""
    if has_price and limits.priced:
        text += f", and {tokens(base.longest_priced)} for {price}"
    elif has_price:
        # Without --usd, the price is that of the unchanged model at the asked length.
        text += f". At {limits.context:,} tokens it costs {price}"
    # among equal lengths at the price, the longer one at the speed is named
    longest = max(limits.walls, key=lambda wall: (wall.longest_priced, wall.longest))
    if longest is base or not longest.longest_priced > 1.01 * base.longest_priced:
        return text + "."
    ends = "any length" if math.isinf(longest.longest_priced) else tokens(longest.longest_priced)
    at_price = "at the same price" if has_price else "at this speed"
    quality = ", perhaps with lower quality (caveats: --full)" if longest.caveats else ""
    return f"{text}; {at_price} the technique {longest.technique} allows {ends}{quality}."


def _context_warnings(limits: ContextWalls) -> list[str]:
    """Say where the model itself ends before memory and time do, and where no price is known."""
    no_rent = not (math.isfinite(limits.usd_per_million) or limits.reason)
    rent_notes = [f"no rent of {limits.system} is known; --rent 2.50 sets one"] if no_rent else []
    trained = f"{limits.model} is trained for at most {limits.max_context:,.0f} tokens"
    if limits.context > limits.max_context:
        return [f"{trained}, fewer than --context {limits.context:,}", *limits.notes, *rent_notes]
    beyond = limits.base.longest > limits.max_context
    trained_notes = [f"{trained}; longer contexts show only what memory and time allow"] if beyond else []
    return [*trained_notes, *limits.notes, *rent_notes]


def _context_table(limits: ContextWalls) -> Grid:
    combined = _combined(limits)

    def name(wall: ContextWall) -> str:
        is_combined = combined and wall.technique == combined
        return "combined" if is_combined else wall.technique.replace("+", "+\n") or "unchanged"

    return listing(
        "Technique: {name} | Longest: {reach} | Within price: {priced} | USD/M out: {usd_per_million:USD} | Cache: {cache:B} | "
        "Batch: {sequences} | Step (90 % range): {time} | Bytes read: {read_bytes:B} | Parameters: {parameters:count} | "
        "Limit: {bound} | Layout: {ranks}",
        limits.walls, numbers=(1, 2, 5, 6), first_to_go=(10, 8, 7, 9, 6, 5, 4),
        style=lambda wall: None if wall.technique else "green", name=name,
        reach=lambda wall: _length(wall.longest), priced=lambda wall: _priced(wall, limits),
        sequences=lambda wall: f"{wall.batch:,}" if wall.batch else "none",
        time=lambda wall: ranged(wall.step, wall.step_range, "s", label="") if wall.batch else "-",
        bound=lambda wall: wall.binds or "-", ranks=lambda wall: wall.layout or "-",
    )  # fmt: skip


def _combined(limits: ContextWalls) -> str:
    """Return the only technique whose name is too long for the table; empty where there are several or none."""
    names = [wall.technique for wall in limits.walls if len(wall.technique) > COMBINED_WIDTH]
    return names[0] if len(names) == 1 else ""


def _priced(wall: ContextWall, limits: ContextWalls) -> str:
    """Write how long a context the price allows; for what the model costs as it is, that is the length asked."""
    if not math.isfinite(limits.usd_per_million):
        return "-"
    return f"{limits.context:,}" if wall is limits.base and not limits.priced and wall.batch else _length(wall.longest_priced)


def _length(value: float) -> str:
    if not value or math.isinf(value):
        return "any" if value else "none"
    return tokens(value).removesuffix(" tokens").replace("over ", "> ")


def _context_meaning(limits: ContextWalls) -> str:
    price = usd(limits.usd_per_million) if math.isfinite(limits.usd_per_million) else ""
    text = f"Longest: context in tokens within {show(limits.tpot, 's')} per token."
    text += f" Within price: also within {price} per million output tokens." if price else ""
    text += f" Cache, batch and USD/M: at {limits.context:,} tokens."
    combined = _combined(limits)
    text += f" Combined: {combined}." if combined else ""
    single_names = {wall.technique.partition("=")[0] for wall in limits.walls if "+" not in wall.technique}
    return text + "".join(f" {words}." for name, words in EFFECTS.items() if name in single_names)


def _context_chart(limits: ContextWalls, width: int) -> Group | None:
    """Return how long a context each technique allows, with the price and without, on a logarithmic axis."""
    lengths = [length for wall in limits.walls for length in (wall.longest, wall.longest_priced) if 0 < length < math.inf]
    if not lengths:
        return None
    names = [wall.technique or "unchanged" for wall in limits.walls]
    has_price, trained = math.isfinite(limits.usd_per_million), limits.max_context
    values = [*lengths, limits.context, *([trained] if math.isfinite(trained) else [])]
    scale = LogScale.fit(names, values, width, max_name_width=MAX_TECHNIQUE_WIDTH, spare=1.3)
    lines = []
    for wall, name in zip(limits.walls, names, strict=True):
        reached = [(wall.longest, "░"), *([(wall.longest_priced, "█")] if has_price else [])]
        strokes = [(0.0, length, glyph) for length, glyph in reached if length]
        strokes += [(trained, trained, "┊")] if math.isfinite(trained) else []
        label = name if len(name) <= scale.name_width else name[: scale.name_width - 1] + "…"
        lines.append(scale.line(label, strokes, "cyan" if wall.technique else "green"))
    legend = "█ within speed and price  ░ within speed" if has_price else "░ within speed"
    legend += "  ┊ trained context" if math.isfinite(trained) else ""
    return section("Longest context [tokens]", [*lines, scale.labels(_length), Text(legend)])
