"""Terminal views of `steptime prices`: sellers and costs, the history, a proposed list, and estimates from one list."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import LogScale, Ticks, figure, label, render_chart, room
from steptime.cli.views.widgets import Answer, Grid, facts, footnote, section, table
from steptime.hardware.rental_prices import kind_and_date, usd
from steptime.pricing.kv_storage_cost import paid_per_hour
from steptime.pricing.market import Market
from steptime.pricing.price_estimate import Reading
from steptime.pricing.price_inversion import PriceReading
from steptime.pricing.price_list import PriceList
from steptime.pricing.price_proposal import Proposal
from steptime.units import DAY, HOUR, MILLION, counted, in_digits, show

if TYPE_CHECKING:
    from steptime.pricing.price_history import PriceHistory
    from steptime.pricing.price_lookup import Offer


MAX_NAME_WIDTH = 26  # columns next to the axis of the chart, at most
MAX_ROWS = 24  # sellers in the chart: the cheapest and the most expensive, if there are more
THOUSAND = 1000  # requests that a price is shown for: one request costs fractions of a cent


def dollars(value: float) -> str:
    """Write USD.

    Args:
        value: amount [USD].

    Returns:
        Three digits; a dash where there is no price.
    """
    return usd(value) if math.isfinite(value) else "-"


def prices_view(result: Any, *, width: int, lecture: bool = False, full: bool = False) -> RenderableType:
    """Return the view of any answer of the command.

    Args:
        result: prices at sellers, a history, a proposed list, or a list read backward.
        width: columns of the terminal.
        lecture: whether to show the closed forms of the lecture.
        full: whether to show all of it.

    Returns:
        The answer.
    """
    if isinstance(result, Market):
        return market_view(result, width=width, full=full)
    if isinstance(result, PriceReading):
        return reading_view(result, width=width, lecture=lecture, full=full)
    return proposal_view(result, full=full) if isinstance(result, Proposal) else history_view(result, full=full)


def market_view(market: Market, *, width: int, full: bool = False) -> RenderableType:
    """Return prices of a model at its sellers, with margins over the cost on each system.

    Args:
        market: offers, costs and margins.
        width: columns of the terminal.
        full: whether to show all offers, the chart, the cost of caches, and systems that were not planned for.

    Returns:
        The answer.
    """
    cached = f", {market.mix.cached_share:.0%} of them cached".replace("%", " %") if market.mix.cached_share else ""
    date_note = f"; prices and rents of {market.price_time}" if market.price_time else ""
    details: list[RenderableType] = [_offers(market, range(len(market.offers))), *_picture(market, width)]
    details += [_holds(market)] if market.holds else []
    details += [footnote("Not planned for: " + _systems_by_reason(market.left_out) + ".")] if market.left_out else []
    return Answer(
        sentence=_market_sentence(market),
        conditions=f"A request: {market.mix.input_tokens:,.0f} tokens in{cached}, {market.mix.output_tokens:,.0f} out at "
        f"{market.speed:g} tok/s per user{date_note}.",
        body=[_offers(market, market.counted), _costs(market)],
        details=details,
        # long notes list sellers; short ones say how to read the margins
        warnings=sorted(market.notes, key=len),
        full_adds=f"all {counted(len(market.offers), 'offer')}, chart, cost of caches",
        full=full,
    )


def _market_sentence(market: Market) -> str:
    """Say what the median seller charges, what serving costs, and the ratio of both."""
    price = f"{usd(THOUSAND * market.median_price)} per 1,000 requests of {market.product}"
    text = f"{market.offers[market.counted[0]].provider} charges {price}."
    if len(market.counted) > 1:
        text = f"Sellers charge {price} (median of {len(market.counted)})."
    best, margins = market.best, {margin.system: margin for margin in market.margins}
    if best is None:
        return f"{text} No plausible system serves it at {market.speed:g} tok/s."
    cost, ratio = usd(THOUSAND * best.usd_per_request), margins[best.system].median
    text += f" Serving costs {cost} on {best.system} ({best.mode}) at full load: price / cost is {ratio:.1f}x."
    if "hopper" not in margins:
        return text
    hopper = margins["hopper"]
    cost = usd(THOUSAND * market.median_price / hopper.median)
    text += f" On H100 and H200 it costs {cost}: {hopper.median:.1f}x (90 %: {hopper.range[0]:.1f} to {hopper.range[1]:.1f})"
    differs = math.isfinite(hopper.aggregated) and not math.isclose(hopper.aggregated, hopper.median, rel_tol=0.05)
    return text + (f", or {hopper.aggregated:.1f}x in aggregated mode." if differs else ".")


def _systems_by_reason(excluded: dict[str, str]) -> str:
    """Return systems by the reason for which they are left out."""
    reasons: dict[str, list[str]] = {}
    for name, reason in excluded.items():
        reasons.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _offers(market: Market, places: Iterable[int]) -> Grid:
    """Return a row for each of some offers, resellers last."""
    best = market.best
    places = sorted(places, key=lambda place: (market.offers[place].role == "reseller", market.prices[place]))
    count = f"{len(places):,} of {counted(len(market.offers), 'offer')}"
    has_variants = any(market.offers[place].variant for place in places)
    first = 1 + has_variants
    grid = table(
        "Seller", *(["Variant"] if has_variants else []), "In", "Out", "Cached", "1k requests", "Price / cost", "Source",
        "Date", "Other sources", numbers=range(first, first + 5),
        title=f"USD per million tokens, {count}" + ("" if best is None else f"; price / cost on {best.system}"),
        first_to_go=(first + 7, first + 6, first + 5, *([1] if has_variants else []), first + 2),
    )  # fmt: skip
    # sources never wrap: a column that does not fit is left out
    grid.no_wrap = (first + 5,)
    for place in places:
        offer, price = market.offers[place], market.prices[place]
        marks = {"first-party": " (maker)", "reseller": " (reseller)"}
        grid.add_row(
            offer.provider + marks.get(offer.role, ""), *([offer.variant] if has_variants else []),
            dollars(offer.input), dollars(offer.output), dollars(offer.cache_read), dollars(THOUSAND * price),
            "-" if best is None else f"{price / best.usd_per_request:.1f}x",
            offer.source, offer.retrieval_date, offer.disagreeing,
            style="bright_black" if offer.role == "reseller" else None,
        )  # fmt: skip
    return grid


def _costs(market: Market) -> Grid:
    """Return the cost on each system, with the margin of the median seller over it."""
    grid = table(
        "System", "1k requests", "Price / cost", "Mode", "Chips", "90 % range", "Aggregated", "Layout", "90 % of cost",
        "Lowest price / cost", "In", "Out", "Rent per chip",
        title="Cost of 1,000 requests at full load, and price / cost of the median seller",
        numbers=(1, 2, 4, 5, 6, 8, 9, 10, 11), first_to_go=(12, 10, 11, 9, 8, 7, 6),
    )  # fmt: skip
    margins = {margin.system: margin for margin in market.margins}

    def add(system: str, name: str, *cells: str) -> None:
        margin = margins[name]
        low, high = margin.range
        figures = {1: cells[0], 2: f"{margin.median:.2g}x", 5: f"{low:.2g} to {high:.2g}", 9: f"{margin.lowest:.2g}x"}
        remaining_cells = iter(cells[1:])
        grid.add_row(system, *(figures[n] if n in figures else next(remaining_cells, "") for n in range(1, 13)))

    # Hopper is what most hosts own, so its mean stands first
    if "hopper" in margins:
        add("H100/H200 mean", "hopper", usd(THOUSAND * market.median_price / margins["hopper"].median))
    for cost in sorted(market.costs, key=lambda cost: (not cost.feasible, cost.usd_per_request)):
        if not cost.feasible:
            grid.add_row(cost.system, Text(cost.reason.partition(";")[0][:60], style="bright_black"))
            continue
        ends = cost.usd_per_request_range
        add(
            cost.system, cost.system, usd(THOUSAND * cost.usd_per_request), cost.mode, f"{cost.chips:,}",
            dollars(THOUSAND * cost.aggregated_usd_per_request), cost.layout_text,
            " to ".join(usd(THOUSAND * end) for end in ends) if ends else "",
            dollars(cost.input_usd_per_million), dollars(cost.output_usd_per_million),
            f"{show(float(cost.rent.typical), 'USD/s')} {kind_and_date(cost.rent)}",
        )  # fmt: skip
    return grid


def _holds(market: Market) -> Grid:
    grid = table(
        "Cache in", "USD/Mtok-hour", "Break-even with prefill", "One hit pays for", "Load time", "Grade",
        title=f"Storage of a KV cache of {show(market.kv_bytes, 'B')} per token (at 32k tokens)",
        numbers=(1, 2, 3, 4), first_to_go=(5, 4),
    )  # fmt: skip
    for storage in market.holds:
        grid.add_row(
            storage.tier, usd(storage.usd_per_mtok_hour), _time(storage.break_even), _time(storage.hit_pays),
            _time(storage.drain), storage.grade,
        )  # fmt: skip
    return grid


def _time(value: float) -> str:
    return show(value, "s") if math.isfinite(value) else "-"


def _picture(market: Market, width: int) -> list[RenderableType]:
    """Return prices by seller on a logarithmic axis, with the costs on Hopper and on the cheapest system."""
    rows = sorted(((price, offer) for offer, price in zip(market.offers, market.prices, strict=True)), key=lambda pair: pair[0])
    rows = [(price, offer) for price, offer in rows if offer.role != "reseller"] or rows
    # resellers repeat prices of others, and a long middle says little
    rows, gaps = _fewer(rows)
    best, spans = market.best, {margin.system: margin for margin in market.margins}
    marks = {"c": best.usd_per_request} if best is not None else {}
    if "hopper" in spans:
        marks["h"] = market.median_price / spans["hopper"].median
    rows, marks = [(THOUSAND * price, offer) for price, offer in rows], {name: THOUSAND * cost for name, cost in marks.items()}
    values = [price for price, _ in rows] + list(marks.values())
    names = [f"{offer.provider} {offer.variant}".strip() for _, offer in rows]
    scale = LogScale.fit(names, values, width, max_name_width=MAX_NAME_WIDTH, spare=1.05)
    lines: list[RenderableType] = []
    for number, ((price, offer), name) in enumerate(zip(rows, names, strict=True)):
        row = [" "] * scale.cells
        for mark, value in marks.items():
            row[scale.cell_index(value)] = mark
        for cell in range(scale.cell_index(max(marks.values(), default=price)) + 1, scale.cell_index(price)):
            row[cell] = "─"
        row[scale.cell_index(price)] = "◆" if offer.role == "first-party" else "●"
        if number in gaps:
            lines.append(Text(f"{'...':>{scale.name_width}} {counted(gaps[number], 'more offer')}", style="bright_black"))
        lines.append(
            Text.assemble(
                name[: scale.name_width].rjust(scale.name_width),
                " ",
                ("".join(row), "green" if offer.role == "first-party" else "cyan"),
            )
        )
    lines.append(scale.labels())
    legend = ["● price", "◆ the maker's"] if any(o.role == "first-party" for _, o in rows) else ["● price"]
    legend += [f"c cost on {best.system}"] if best is not None else []
    legend += ["h cost on H100 and H200"] if "h" in marks else []
    return [section("USD per 1,000 requests by seller", [*lines, Text("  ".join(legend))])]


def _fewer(rows: list[tuple[float, Offer]]) -> tuple[list[tuple[float, Offer]], dict[int, int]]:
    """Return the cheapest, the most expensive and the maker's rows, and the number left out before each."""
    ends = MAX_ROWS // 2
    positions = [n for n, (_, offer) in enumerate(rows) if n < ends or n >= len(rows) - ends or offer.role == "first-party"]
    gaps = {index: after - before - 1 for index, (before, after) in enumerate(pairwise(positions), 1) if after - before > 1}
    return [rows[n] for n in positions], gaps


def history_view(history: PriceHistory, *, full: bool = False) -> RenderableType:
    """Return prices with the rents of the same days, the oldest first.

    Args:
        history: dated prices.
        full: whether to show all rows.

    Returns:
        The answer.
    """
    grid = table(
        "Day", "Seller", "Id", "In", "Out", "1k requests", "Rent of H100", "Price / cost on H100, H200", "Basis",
        numbers=(3, 4, 5, 6, 7), first_to_go=(8, 2, 5),
    )  # fmt: skip
    for row in history.rows:
        grid.add_row(
            row.day, row.provider, row.model, dollars(row.input), dollars(row.output), dollars(THOUSAND * row.usd_per_request),
            show(row.rent, "USD/s") if math.isfinite(row.rent) else "not known",
            f"{row.margin:.2g}x" if math.isfinite(row.margin) else "-", row.source,
        )  # fmt: skip
    return Answer(
        sentence=history.text, body=[grid, footnote("In, out: USD per million tokens.")], warnings=history.notes, full=full
    )


def proposal_view(proposal: Proposal, *, full: bool = False) -> RenderableType:
    """Return a proposed price list.

    Args:
        proposal: prices with their reasons.
        full: whether to show the reason of each price.

    Returns:
        The answer.
    """
    base, model = proposal.list.base, proposal.model.rpartition("/")[2]
    ratio = in_digits(proposal.margin / proposal.utilisation, 2)
    busy, mix, cost = f"{100 * proposal.utilisation:.0f} %", proposal.mix, proposal.cost
    cached = f" ({100 * mix.cached_share:.0f} % cached)" if mix.cached_share else ""
    lines = _reasons_table(proposal) if full else _other_prices(proposal)
    return Answer(
        sentence=f"At {proposal.margin:g}x the cost of chips that are busy {busy} of the day ({ratio}x the cost at full "
        f"load), {model} on {proposal.system} sells a million tokens for {usd(base.input)} (input), {usd(base.output)} "
        f"(output) and {usd(base.effective_cache_read)} (cached).",
        conditions=f"At full load, 1,000 requests cost {usd(THOUSAND * cost.usd_per_request)}: {mix.input_tokens:,.0f} tokens "
        f"in{cached}, {mix.output_tokens:,.0f} out, {proposal.speed:g} tok/s per user, {counted(cost.chips, 'chip')}.",
        body=[_tier_prices(proposal), footnote(_tiers_meaning(proposal)), lines], warnings=proposal.notes,
        full_adds="reason of each price", full=full,
    )  # fmt: skip


def _tier_prices(proposal: Proposal) -> Grid:
    """Return the prices of tokens by prompt length and service."""
    rates = {(line.service, line.above_tokens): line for line in proposal.list.rates}
    services = [name for name in ("standard", "fast", "batch") if any(service == name for service, _ in rates)]
    starts = sorted({above for _, above in rates})
    grid = table(
        "Prompt tokens", "Input", "Output", *(f"Output, {name}" for name in services[1:]),
        title="USD per million tokens by length of the prompt", numbers=range(1, 2 + len(services)),
    )  # fmt: skip
    for above in starts:
        prompt = f"above {above:,.0f}" if above else f"up to {starts[1]:,.0f}" if len(starts) > 1 else "every length"
        outputs = [rates[name, above].output if (name, above) in rates else math.nan for name in services]
        grid.add_row(prompt, dollars(rates["standard", above].input), *map(dollars, outputs))
    return grid


def _tiers_meaning(proposal: Proposal) -> str:
    """Say what the services promise."""
    speeds = proposal.list.speeds
    is_sold = any(line.service == "fast" for line in proposal.list.rates)
    fast = f"Fast: {speeds['fast'] * proposal.speed:g} tok/s per user. " if is_sold and "fast" in speeds else ""
    return f"{fast}Batch: no promised speed, in idle time. A longer prompt of a service never costs less."


def _other_prices(proposal: Proposal) -> Grid:
    """Return the prices of caches, and the services without a price."""
    grid = table("Other price", "USD", "per", numbers=(1,))
    for line in proposal.lines:
        if not line.name.startswith(("input", "output")):
            name, comma, per = line.name.partition(", Mtok-hour")
            words = f"storage {name.removeprefix('hold ')}" if comma else line.name
            grid.add_row(words, line.written, "M tokens and hour" if comma else "M tokens" if math.isfinite(line.usd) else per)
    return grid


def _reasons_table(proposal: Proposal) -> Grid:
    """Return every price with its reason."""
    grid = table("Price", "USD/M tokens", "Reason", numbers=(1,))
    for line in proposal.lines:
        grid.add_row(line.name, line.written, line.reason)
    return grid


NAMES = {
    "kv_bytes_per_token": "KV bytes per token",
    "hits_short": "break-even hits, {short} write",
    "hits_long": "break-even hits, {long} write",
    "hold_price_short": "cache storage, {short} write",
    "hold_price_long": "cache storage, {long} write",
    "hold_price": "cache storage",
}
GLYPHS = "HDFK"  # of HBM, DRAM, flash and disk in the picture
SHORTEST, LONGEST = 10.0, 10 * DAY  # s of the picture of hold times


def reading_view(inversion: PriceReading, *, width: int, lecture: bool = False, full: bool = False) -> RenderableType:
    """Return what a price list implies about its model.

    Args:
        inversion: estimates from the list.
        width: columns of the terminal.
        lecture: whether to show the closed forms of the lecture.
        full: whether to show the basis of each estimate, and a chart of storage costs.

    Returns:
        The answer.
    """
    blind = [
        Text.assemble(
            ("  " + estimate.quantity[0].upper() + estimate.quantity[1:], "yellow"),
            f": {estimate.reason}.{_lecture_note(estimate)}",
        )
        for estimate in inversion.readings
        if not estimate.identifiable
    ]  # fmt: skip
    prior, readings = inversion.margin, _readings(inversion, full=full)
    margin = f"price / cost of {prior.median:.2g}"
    margin += f" (90 %: {prior.low:.2g} to {prior.high:.2g})" if prior.low < prior.high else ""
    meaning = _readings_meaning(inversion)
    return Answer(
        sentence=_reading_sentence(inversion),
        conditions=f"Assumed for the KV cache: {margin}, {prior.basis}; --margin changes it."
        if inversion["kv_bytes_per_token"].identifiable
        else "",
        body=[
            *(_ideal(inversion) if lecture else []),
            readings,
            *([footnote(meaning)] if meaning else []),
            _list(inversion.list),
        ],
        details=[
            section("Basis of each estimate", _reasons(inversion)),
            section("Not identifiable", blind),
            *_hold_plot(inversion, width),
            footnote(f"{inversion.draws:,} draws, seed {inversion.seed}."),
        ],
        # the sentence names the matched model already
        warnings=[note for note in inversion.list.notes if not note.startswith("matched ")],
        full_adds="basis of each estimate, quantities that are not identifiable, chart of storage costs",
        full=full,
    )


def _reading_sentence(inversion: PriceReading) -> str:
    """Say how large the model is by its price list."""
    active, kv = inversion["active_parameters"], inversion["kv_bytes_per_token"]
    units = ((active, "active parameters"), (kv, "of KV cache per token"))
    claims = [
        f"{estimate.written(estimate.value)} {words} (90 %: {estimate.ends})"
        for estimate, words in units
        if estimate.identifiable and estimate.interval
    ]
    blind = sum(not estimate.identifiable for estimate in inversion.readings)
    text = f"The prices of {inversion.list.name} imply {' and '.join(claims) or 'nothing about the size of the model'}."
    return f"{text} {blind} of {len(inversion.readings)} quantities cannot be estimated from prices."


def _readings_meaning(inversion: PriceReading) -> str:
    """Say what the rows of caches mean, if the list has them."""
    names = {estimate.name for estimate in inversion.readings if estimate.identifiable}
    words = ["Break-even hits: cache reads that repay one cache write."] if names & {"hits_short", "hits_long"} else []
    if any(name.startswith("hold_price") for name in names):
        words.append("USD/Mtok-h: to keep 1 M tokens for an hour.")
    return " ".join(words)


def _lecture_note(estimate: Reading) -> str:
    if not math.isfinite(estimate.ideal):
        return ""
    return f" Lecture: {estimate.written(estimate.ideal)} ({estimate.ideal_from})."


def _list(price_list: PriceList) -> Grid:
    about = ", ".join(filter(None, (price_list.source, price_list.retrieval_date, price_list.grade)))
    grid = table(
        "Service", "Above [tokens]", "In", "Out", "Cached", "Write", "Write, long",
        title=f"USD per million tokens{' on ' + price_list.price_time if price_list.price_time else ''} ({about})",
        numbers=(1, 2, 3, 4, 5, 6), first_to_go=(6, 5),
    )  # fmt: skip
    for line in sorted(price_list.rates, key=lambda line: (line.service != "standard", line.service, line.above_tokens)):
        prices = (line.input, line.output, line.cache_read, line.cache_write, line.cache_write_long)
        grid.add_row(
            line.service,
            f"{line.above_tokens:,.0f}" if line.above_tokens else "",
            *("-" if not math.isfinite(price) else usd(price) for price in prices),
        )
    return grid


def _readings(inversion: PriceReading, *, full: bool) -> Grid:
    """Return the estimates; their basis stands below (`_reasons`)."""
    has_truth = bool(inversion.true_values)
    heads = [
        "Estimate",
        "Value",
        "90 %",
        "At most",
        *(["Known"] if has_truth else []),
        *(["Bits", "Range right", "Bound right"] if full else []),
    ]
    grid = table(
        *heads, numbers=range(1, len(heads)), first_to_go=(5 + has_truth, 6 + has_truth, 4 + has_truth) if full else ()
    )
    for estimate in inversion.readings:
        if not estimate.identifiable or estimate.words:
            continue
        true_value = (
            estimate.written(inversion.true_values.get(estimate.name, math.nan)).replace("none", "") if has_truth else ""
        )
        coverages = [
            f"{coverage.hits} of {coverage.trials}" if coverage else ""
            for coverage in (estimate.interval_held, estimate.bound_held)
        ]
        grid.add_row(
            _estimate_name(inversion.list, estimate.name),
            f"{estimate.written(estimate.value)}{' hits' if estimate.name.startswith('hits_') else ''}",
            " to ".join(map(estimate.written, estimate.interval)) if estimate.interval else "",
            estimate.written(estimate.bound) if math.isfinite(estimate.bound) else "", *([true_value] if has_truth else []),
            *([f"{estimate.bits:.2f}" if math.isfinite(estimate.bits) else "", *coverages] if full else []),
        )  # fmt: skip
    return grid


def _estimate_name(price_list: PriceList, name: str) -> str:
    """Return the label of an estimate, with the lifetime of its cache write if the list states it."""
    lifetimes = {
        key: str(show(seconds, "s", digits=2)) if math.isfinite(seconds) else key
        for key, seconds in (("short", price_list.hold), ("long", price_list.hold_long))
    }
    return NAMES.get(name, name.replace("_", " ")).format(**lifetimes)


def _reasons(inversion: PriceReading) -> list[RenderableType]:
    """Return the basis of each estimate."""
    identifiable = [estimate for estimate in inversion.readings if estimate.identifiable]
    return [
        Text.assemble(
            ("  " + estimate.quantity[0].upper() + estimate.quantity[1:], "cyan"),
            f": {'; '.join(estimate.words) + '; ' if estimate.words else ''}"
            f"{estimate.reason}{_how_often(estimate)}.{_lecture_note(estimate)}",
        )
        for estimate in identifiable
    ]


def _how_often(estimate: Reading) -> str:
    """Say how often the range and the bound of a known model contained its value."""
    coverages = [
        f"the {kind} was right for {coverage.hits} of {coverage.trials}"
        for kind, coverage in (("range", estimate.interval_held), ("upper bound", estimate.bound_held))
        if coverage
    ]
    return f". Tested on known models: {', '.join(coverages)}" if coverages else ""


def _ideal(inversion: PriceReading) -> list[RenderableType]:
    """Return the closed forms of the lecture."""
    lecture = inversion.ideal
    title, figures = lecture.headline()
    inputs = (
        f"R = {lecture.ideal.balance:g}, {show(lecture.ideal.active)} active parameters, "
        f"{lecture.ideal.weight_bytes:g} bytes per weight"
    )
    lines: list[RenderableType] = [facts(figures.items())]
    if not lecture.consistent:
        text = (
            f"Sections 13 and 14 contradict each other here: with the threshold as L*, decode at {lecture.ideal.short:,.0f} "
            f"tokens is compute-bound and would cost {lecture.ratio_left:.2g} times input, not {lecture.ratio:.3g}."
        )
        lines.append(Text(text))
    return [section(f"{title} ({inputs})", lines)]


def _hold_plot(inversion: PriceReading, width: int) -> list[RenderableType]:
    """Return the cost of storing a token over time by tier, with the prices of the list at its lifetimes."""
    hourly_prices = paid_per_hour(inversion.list)
    kv = inversion["kv_bytes_per_token"]
    if not hourly_prices:
        return []
    known_bytes = inversion.true_values.get(kv.name, math.nan)
    bytes_, whose = (
        (known_bytes, "known")
        if math.isfinite(known_bytes)
        else (kv.value, "estimated")
        if kv.identifiable
        else (70_272.0, "of DeepSeek-V3, as no estimate exists")
    )
    seconds = np.geomspace(SHORTEST, LONGEST, 60)
    lines = {tier.name: bytes_ * tier.usd_per_byte_second * seconds * MILLION for tier in inversion.memory}
    low = math.log10(max(min(line[0] for line in lines.values()), 1e-9))
    high = math.log10(max(line[-1] for line in lines.values()))
    chart = figure(room(width), 14)
    chart.set_x_limits(math.log10(SHORTEST), math.log10(LONGEST))
    chart.set_y_limits(low, high)
    label(chart, "lifetime", "USD/Mtok", width)
    for colour, glyph, (_, line) in zip(("red", "yellow", "green", "cyan"), GLYPHS, lines.items(), strict=True):
        chart.plot(np.log10(seconds), np.log10(line), lc=colour)
        chart.scatter(np.log10(seconds[6::12]), np.log10(line[6::12]), lc=colour, marker=glyph)
    price_texts = []
    for words, per_hour in hourly_prices.items():
        life = {"short": inversion.list.hold, "long": inversion.list.hold_long}.get(words.partition(" ")[0], HOUR)
        chart.scatter([math.log10(life)], [math.log10(max(per_hour * life / HOUR, 1e-9))], lc="white", marker="◆")
        price_texts.append(f"{words}: {per_hour * life / HOUR:.3g} USD/Mtok")
    legend = "  ".join(f"{glyph} {name}" for glyph, name in zip(GLYPHS, lines, strict=True))
    title = f"Storage of a million tokens of {show(bytes_, 'B')} ({whose})"
    picture = render_chart(chart, Ticks(partial(show, unit="s", digits=2)), Ticks("{:g}".format))
    return [section(title, [picture, Text(f"{legend}  ◆ price in the list ({'; '.join(price_texts)})")])]
