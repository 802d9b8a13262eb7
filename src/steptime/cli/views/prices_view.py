"""What the terminal shows of prices at all sellers, of their history, and of a list that is proposed.

What the terminal shows of one list read backward: readings, what is not identifiable, the lecture's own, and hold times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import LogScale, figure, label, render_chart
from steptime.cli.views.widgets import Grid, facts, notes, table
from steptime.hardware.rental_prices import kind_and_date
from steptime.hardware.unit_cost import usd
from steptime.pricing.kv_storage_cost import paid_per_hour
from steptime.pricing.market import Market
from steptime.pricing.price_estimate import Reading
from steptime.pricing.price_inversion import PriceReading
from steptime.pricing.price_list import PriceList
from steptime.units import DAY, HOUR, MILLION, counted, show

if TYPE_CHECKING:
    from steptime.pricing.price_history import PriceHistory
    from steptime.pricing.price_lookup import Offer
    from steptime.pricing.price_proposal import Proposal


MAX_NAME_WIDTH = 26  # columns beside the axis of the picture, at most
MOST_ROWS = 24  # sellers that are drawn: the cheapest and the dearest, where there are more


def dollars(value: float) -> str:
    """Write USD per million tokens; a dash where there is none."""
    return usd(value) if math.isfinite(value) else "-"


def market_view(market: Market, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer in a sentence, prices and costs by seller as a picture and a table, margins by system, and caches."""
    cached = f", {market.mix.cached_share:.0%} of them cached".replace("%", " %") if market.mix.cached_share else ""
    sizes = f"{market.mix.input_tokens:,.0f} tokens in{cached}, {market.mix.output_tokens:,.0f} out"
    request = f"{sizes} at {market.speed:g} tok/s for each user"
    date_note = f"; prices and rents of {market.price_time}" if market.price_time else ""
    parts: list[RenderableType] = [
        Text(market.text, style="bold"),
        *notes(market.notes),
        Text(f"A request: {request}{date_note}."),
    ]
    if brief:
        return Group(*parts)
    parts += _picture(market, width)
    parts += [Text(), _offers(market), Text(), _costs(market)]
    if market.holds:
        parts += [Text(), _holds(market)]
    if market.left_out:
        parts += [Text(), Text("Not planned for: " + _systems_by_reason(market.left_out) + ".", style="bright_black")]
    return Group(*parts)


def _systems_by_reason(excluded: dict[str, str]) -> str:
    """Return systems by the reason for which they are left out."""
    reasons: dict[str, list[str]] = {}
    for name, reason in excluded.items():
        reasons.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _offers(market: Market) -> Grid:
    best = market.best
    grid = table(
        "Seller", "Variant", "In", "Out", "Hit", "Request", "Margin", "Source", "Read", "Others say",
        title=f"USD per million tokens: {counted(len(market.offers), 'offer')}, whoever sells and whichever variant",
        numbers=(2, 3, 4, 5, 6), first_to_go=(9, 8, 7, 1, 4),
    )  # fmt: skip
    for offer, price in sorted(
        zip(market.offers, market.prices, strict=True), key=lambda pair: (pair[0].role == "reseller", pair[1])
    ):
        margin = "-" if best is None else f"{price / best.usd_per_request:.1f}"
        marks = {"first-party": " (maker)", "reseller": " (reseller)"}
        grid.add_row(
            offer.provider + marks.get(offer.role, ""), offer.variant, dollars(offer.input), dollars(offer.output),
            dollars(offer.cache_read), dollars(price), margin, offer.source, offer.retrieval_date, offer.disagreeing,
            style="bright_black" if offer.role == "reseller" else None,
        )  # fmt: skip
    return grid


def _costs(market: Market) -> Grid:
    grid = table(
        "System", "Request", "Mode", "Chips", "Margin", "Range", "Aggregated", "Layout", "90 %", "Cheapest", "In", "Out",
        "Rent per chip",
        title="Cost on plausible systems, and the median seller's margin over it (a busy chip)",
        numbers=(1, 3, 4, 5, 6, 8, 9, 10, 11), first_to_go=(12, 10, 11, 9, 8, 5),
    )  # fmt: skip
    margins = {margin.system: margin for margin in market.margins}
    if "hopper" in margins:
        margin = margins["hopper"]
        grid.add_row(
            "Hopper, both", "", "", "", f"{margin.median:.2g}", f"{margin.range[0]:.2g} to {margin.range[1]:.2g}", "", "", "",
            f"{margin.lowest:.2g}", style="green",
        )  # fmt: skip
    for cost in sorted(market.costs, key=lambda cost: (not cost.feasible, cost.usd_per_request)):
        if not cost.feasible:
            grid.add_row(cost.system, Text(cost.reason.partition(";")[0][:60], style="bright_black"))
            continue
        margin, ends = margins[cost.system], cost.usd_per_request_range
        span = f"{usd(ends[0])} to {usd(ends[1])}" if ends else ""
        grid.add_row(
            cost.system, usd(cost.usd_per_request), cost.mode, f"{cost.chips:,}", f"{margin.median:.2g}",
            f"{margin.range[0]:.2g} to {margin.range[1]:.2g}", dollars(cost.aggregated_usd_per_request), cost.layout_text, span,
            f"{margin.lowest:.2g}", dollars(cost.input_usd_per_million), dollars(cost.output_usd_per_million),
            f"{show(float(cost.rent.typical), 'USD/s')} {kind_and_date(cost.rent)}",
        )  # fmt: skip
    return grid


def _holds(market: Market) -> Grid:
    grid = table(
        "Cache in", "Mtok-hour", "Cheaper than remaking for", "One hit pays for", "Read in", "Grade",
        title=f"Holding {show(market.kv_bytes, 'B')} of cache a token (at 32k tokens)",
        numbers=(1, 2, 3, 4), first_to_go=(5, 4),
    )  # fmt: skip
    for storage in market.holds:
        grid.add_row(
            storage.tier,
            usd(storage.usd_per_mtok_hour),
            _time(storage.break_even),
            _time(storage.hit_pays),
            _time(storage.drain),
            storage.grade,
        )
    return grid


def _time(value: float) -> str:
    return show(value, "s") if math.isfinite(value) else "-"


def _picture(market: Market, width: int) -> list[RenderableType]:
    """Return prices by seller on a logarithmic axis, with the costs on Hopper and on the cheapest system."""
    rows = sorted(((price, offer) for offer, price in zip(market.offers, market.prices, strict=True)), key=lambda pair: pair[0])
    rows = [(price, offer) for price, offer in rows if offer.role != "reseller"] or rows
    rows, gaps = _fewer(rows)
    best, spans = market.best, {margin.system: margin for margin in market.margins}
    marks = {"c": best.usd_per_request} if best is not None else {}
    if "hopper" in spans:
        marks["h"] = market.median_price / spans["hopper"].median
    values = [price for price, _ in rows] + list(marks.values())
    names = [f"{offer.provider} {offer.variant}".strip() for _, offer in rows]
    scale = LogScale.fit(names, values, width, max_name_width=MAX_NAME_WIDTH, spare=1.05)
    lines: list[RenderableType] = [Text(), Text("USD per request by seller, logarithmic", style="bold")]
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
    legend += ["h cost on Hopper"] if "h" in marks else []
    lines.append(Text("  ".join(legend)))
    return lines


def _fewer(rows: list[tuple[float, Offer]]) -> tuple[list[tuple[float, Offer]], dict[int, int]]:
    """Return the cheapest, the dearest and the maker's rows, and how many are left out before which of them."""
    ends = MOST_ROWS // 2
    positions = [n for n, (_, offer) in enumerate(rows) if n < ends or n >= len(rows) - ends or offer.role == "first-party"]
    gaps = {index: after - before - 1 for index, (before, after) in enumerate(pairwise(positions), 1) if after - before > 1}
    return [rows[n] for n in positions], gaps


def history_view(history: PriceHistory, width: int) -> RenderableType:
    """Return prices with the rents of the same days, the oldest first."""
    parts: list[RenderableType] = [Text(history.text, style="bold"), *notes(history.notes), Text()]
    grid = table(
        "Day", "Seller", "Id", "In", "Out", "Request", "Rent of H100", "Margin on Hopper", "Basis",
        numbers=(3, 4, 5, 6, 7), first_to_go=(8, 2, 5),
    )  # fmt: skip
    for row in history.rows:
        rent = f"{show(row.rent, 'USD/s')}" if math.isfinite(row.rent) else "not known"
        margin = f"{row.margin:.2g}" if math.isfinite(row.margin) else "-"
        grid.add_row(
            row.day, row.provider, row.model, dollars(row.input), dollars(row.output), dollars(row.usd_per_request), rent,
            margin, row.source,
        )  # fmt: skip
    del width
    return Group(*parts, grid)


def proposal_view(proposal: Proposal, width: int) -> RenderableType:
    """Return a list that is proposed, each figure with its reason."""
    grid = table("Price", "USD/M tokens", "Why", numbers=(1,))
    for line in proposal.lines:
        grid.add_row(line.name, line.written, line.reason)
    parts: Sequence[RenderableType] = [Text(proposal.text, style="bold"), *notes(proposal.notes), Text(), grid]
    del width
    return Group(*parts)


NAMES = {
    "kv_bytes_per_token": "KV bytes a token",
    "hits_short": "hits that pay, short",
    "hits_long": "hits that pay, long",
    "hold_price_short": "holding, short",
    "hold_price_long": "holding, long",
    "hold_price": "holding, storage",
}
GLYPHS = "HDFK"  # of HBM, DRAM, flash and disk in the picture
SHORTEST, LONGEST = 10.0, 10 * DAY  # s of the picture of hold times


def reading_view(inversion: PriceReading, width: int, *, lecture: bool = False, brief: bool = False) -> RenderableType:
    """Return what a list says in a sentence, the list, its readings, and what it does not say."""
    parts: list[RenderableType] = [Text(inversion.text, style="bold"), *notes(inversion.list.notes)]
    if brief:
        return Group(*parts)
    parts += [Text(), _list(inversion.list), Text(), _readings(inversion)]
    parts += [Text("What it rests on", style="bold"), *_reasons(inversion)]
    parts += [Text(), Text("Not identifiable", style="bold")]
    for estimate in inversion.readings:
        if not estimate.identifiable:
            parts.append(
                Text.assemble(
                    ("  " + estimate.quantity[0].upper() + estimate.quantity[1:], "yellow"),
                    f": {estimate.reason}.{_lecture_note(estimate)}",
                )
            )
    if lecture:
        parts += [Text(), *_ideal(inversion)]
    parts += _hold_plot(inversion, width)
    prior = inversion.margin
    margin = f"margin {prior.median:.2g} ({prior.low:.2g} to {prior.high:.2g}), {prior.basis}"
    parts += [Text(), Text(f"{inversion.draws:,} draws, seed {inversion.seed}; {margin}.", style="bright_black")]
    return Group(*parts)


def _lecture_note(estimate: Reading) -> str:
    if not math.isfinite(estimate.ideal):
        return ""
    return f" Ideal, lecture: {estimate.written(estimate.ideal)} ({estimate.ideal_from})."


def _list(price_list: PriceList) -> Grid:
    about = ", ".join(filter(None, (price_list.source, price_list.retrieval_date, price_list.grade)))
    grid = table(
        "Service", "Above", "In", "Out", "Hit", "Write", "Write, long",
        title=f"{price_list.name}{', ' + price_list.price_time if price_list.price_time else ''}: USD per million tokens ({about})",
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


def _readings(inversion: PriceReading) -> Grid:
    """Return the figures of what is read; why stands below (`_reasons`)."""
    heads = [
        "What it says",
        "Value",
        "90 %",
        "At most",
        "Bits",
        "Held",
        "Bound held",
        *(["Known"] if inversion.true_values else []),
    ]
    grid = table(*heads, numbers=(1, 2, 3), first_to_go=(4, 6, 5))
    for estimate in inversion.readings:
        if estimate.identifiable and not estimate.words:
            grid.add_row(
                NAMES.get(estimate.name, estimate.name.replace("_", " ")),
                estimate.written(estimate.value),
                " to ".join(map(estimate.written, estimate.interval)) if estimate.interval else "",
                estimate.written(estimate.bound) if math.isfinite(estimate.bound) else "",
                f"{estimate.bits:.2f}" if math.isfinite(estimate.bits) else "",
                f"{estimate.interval_held.hits} of {estimate.interval_held.trials}" if estimate.interval_held else "",
                f"{estimate.bound_held.hits} of {estimate.bound_held.trials}" if estimate.bound_held else "",
                *(
                    [estimate.written(inversion.true_values.get(estimate.name, math.nan)).replace("none", "")]
                    if inversion.true_values
                    else []
                ),
            )
    return grid


def _reasons(inversion: PriceReading) -> list[RenderableType]:
    """Return what each reading rests on."""
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
    """Return how often such an interval and such a bound held."""
    coverages = [
        f"such {kind} {coverage}"
        for kind, coverage in (("intervals", estimate.interval_held), ("bounds", estimate.bound_held))
        if coverage
    ]
    return "; " + ", ".join(coverages) if coverages else ""


def _ideal(inversion: PriceReading) -> list[RenderableType]:
    """Return the lecture's own reading."""
    lecture = inversion.ideal
    title, figures = lecture.headline()
    inputs = (
        f"R = {lecture.ideal.balance:g}, {show(lecture.ideal.active)} active parameters, "
        f"{lecture.ideal.weight_bytes:g} B a weight"
    )
    parts: list[RenderableType] = [Text(f"{title} ({inputs})", style="bold"), facts(figures.items())]
    if not lecture.consistent:
        parts += notes(
            [
                f"sections 13 and 14 cannot both be read from this list: with the threshold as L* decode at "
                f"{lecture.ideal.short:,.0f} tokens is bound by arithmetic and would cost "
                f"{lecture.ratio_left:.2g} times input, not {lecture.ratio:.3g}"
            ]
        )
    return parts


def _hold_plot(inversion: PriceReading, width: int) -> list[RenderableType]:
    """Return what holding a token costs over time by tier, with what the list asks at its lifetimes."""
    hourly_prices = paid_per_hour(inversion.list)
    kv = inversion["kv_bytes_per_token"]
    if not hourly_prices:
        return []
    known_bytes = inversion.true_values.get(kv.name, math.nan)
    bytes_, whose = (
        (known_bytes, "known")
        if math.isfinite(known_bytes)
        else (kv.value, "the reading's")
        if kv.identifiable
        else (70_272.0, "DeepSeek-V3's, as none is read")
    )
    seconds = np.geomspace(SHORTEST, LONGEST, 60)
    lines = {tier.name: bytes_ * tier.usd_per_byte_second * seconds * MILLION for tier in inversion.memory}
    low = math.log10(max(min(line[0] for line in lines.values()), 1e-9))
    high = math.log10(max(line[-1] for line in lines.values()))
    chart = figure(max(20, min(70, width - 34)), 14)
    chart.set_x_limits(math.log10(SHORTEST), math.log10(LONGEST))
    chart.set_y_limits(low, high)
    chart.x_ticks_fkt = lambda value, _: show(10**value, "s", 2)
    chart.y_ticks_fkt = lambda value, _: f"{10**value:.0e}"
    label(chart, "held for", "USD/Mtok", width)
    for colour, glyph, (_, line) in zip(("red", "yellow", "green", "cyan"), GLYPHS, lines.items(), strict=True):
        chart.plot(np.log10(seconds), np.log10(line), lc=colour)
        chart.scatter(np.log10(seconds[6::12]), np.log10(line[6::12]), lc=colour, marker=glyph)
    price_texts = []
    for words, per_hour in hourly_prices.items():
        life = {"short": inversion.list.hold, "long": inversion.list.hold_long}.get(words.partition(" ")[0], HOUR)
        chart.scatter([math.log10(life)], [math.log10(max(per_hour * life / HOUR, 1e-9))], lc="white", marker="◆")
        price_texts.append(f"{words}: {per_hour * life / HOUR:.3g} USD/Mtok")
    legend = "  ".join(f"{glyph} {name}" for glyph, name in zip(GLYPHS, lines, strict=True))
    title = f"Holding a million tokens of {show(bytes_, 'B')} ({whose}), both axes logarithmic"
    return [
        Text(),
        Text(title, style="bold"),
        render_chart(chart),
        Text(f"{legend}  ◆ what the list asks ({'; '.join(price_texts)})"),
    ]
