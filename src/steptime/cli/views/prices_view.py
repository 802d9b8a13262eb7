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

from steptime.cli.views.terminal_plots import LogScale, drawn, figure, label
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


BESIDE = 26  # columns beside the axis of the picture, at most
MOST_ROWS = 24  # sellers that are drawn: the cheapest and the dearest, where there are more


def dollars(value: float) -> str:
    """Write USD per million tokens; a dash where there is none."""
    return usd(value) if math.isfinite(value) else "-"


def market_view(found: Market, width: int, *, brief: bool = False) -> RenderableType:
    """Return the answer in a sentence, prices and costs by seller as a picture and a table, margins by system, and caches."""
    cached = f", {found.mix.cached_share:.0%} of them cached".replace("%", " %") if found.mix.cached_share else ""
    sizes = f"{found.mix.input_tokens:,.0f} tokens in{cached}, {found.mix.output_tokens:,.0f} out"
    asked = f"{sizes} at {found.speed:g} tok/s for each user"
    when = f"; prices and rents of {found.at}" if found.at else ""
    parts: list[RenderableType] = [Text(found.text, style="bold"), *notes(found.notes), Text(f"A request: {asked}{when}.")]
    if brief:
        return Group(*parts)
    parts += _picture(found, width)
    parts += [Text(), _offers(found), Text(), _costs(found)]
    if found.holds:
        parts += [Text(), _holds(found)]
    if found.left_out:
        parts += [Text(), Text("Not planned for: " + _others(found.left_out) + ".", style="bright_black")]
    return Group(*parts)


def _others(left: dict[str, str]) -> str:
    """Return systems by the reason for which they are left out."""
    reasons: dict[str, list[str]] = {}
    for name, reason in left.items():
        reasons.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _offers(found: Market) -> Grid:
    best = found.best
    shown = table(
        "Seller", "Variant", "In", "Out", "Hit", "Request", "Margin", "Source", "Read", "Others say",
        title=f"USD per million tokens: {counted(len(found.offers), 'offer')}, whoever sells and whichever variant",
        numbers=(2, 3, 4, 5, 6), first_to_go=(9, 8, 7, 1, 4),
    )  # fmt: skip
    for offer, price in sorted(
        zip(found.offers, found.prices, strict=True), key=lambda one: (one[0].role == "reseller", one[1])
    ):
        margin = "-" if best is None else f"{price / best.usd_per_request:.1f}"
        marks = {"first-party": " (maker)", "reseller": " (reseller)"}
        shown.add_row(
            offer.provider + marks.get(offer.role, ""), offer.variant, dollars(offer.input), dollars(offer.output),
            dollars(offer.cache_read), dollars(price), margin, offer.source, offer.as_of, offer.others,
            style="bright_black" if offer.role == "reseller" else None,
        )  # fmt: skip
    return shown


def _costs(found: Market) -> Grid:
    shown = table(
        "System", "Request", "Mode", "Chips", "Margin", "Range", "Aggregated", "Layout", "90 %", "Cheapest", "In", "Out",
        "Rent per chip",
        title="Cost on plausible systems, and the median seller's margin over it (a busy chip)",
        numbers=(1, 3, 4, 5, 6, 8, 9, 10, 11), first_to_go=(12, 10, 11, 9, 8, 5),
    )  # fmt: skip
    margins = {one.system: one for one in found.margins}
    if "hopper" in margins:
        one = margins["hopper"]
        shown.add_row(
            "Hopper, both", "", "", "", f"{one.median:.2g}", f"{one.range[0]:.2g} to {one.range[1]:.2g}", "", "", "",
            f"{one.lowest:.2g}", style="green",
        )  # fmt: skip
    for cost in sorted(found.costs, key=lambda one: (not one.feasible, one.usd_per_request)):
        if not cost.feasible:
            shown.add_row(cost.system, Text(cost.reason.partition(";")[0][:60], style="bright_black"))
            continue
        one, ends = margins[cost.system], cost.usd_per_request_range
        span = f"{usd(ends[0])} to {usd(ends[1])}" if ends else ""
        shown.add_row(
            cost.system, usd(cost.usd_per_request), cost.mode, f"{cost.chips:,}", f"{one.median:.2g}",
            f"{one.range[0]:.2g} to {one.range[1]:.2g}", dollars(cost.aggregated_usd_per_request), cost.layout_text, span,
            f"{one.lowest:.2g}", dollars(cost.input_usd_per_million), dollars(cost.output_usd_per_million),
            f"{show(float(cost.rent.typical), 'USD/s')} {kind_and_date(cost.rent)}",
        )  # fmt: skip
    return shown


def _holds(found: Market) -> Grid:
    shown = table(
        "Cache in", "Mtok-hour", "Cheaper than remaking for", "One hit pays for", "Read in", "Grade",
        title=f"Holding {show(found.kv_bytes, 'B')} of cache a token (at 32k tokens)",
        numbers=(1, 2, 3, 4), first_to_go=(5, 4),
    )  # fmt: skip
    for one in found.holds:
        shown.add_row(
            one.tier, usd(one.usd_per_mtok_hour), _time(one.break_even), _time(one.hit_pays), _time(one.drain), one.grade
        )
    return shown


def _time(value: float) -> str:
    return show(value, "s") if math.isfinite(value) else "-"


def _picture(found: Market, width: int) -> list[RenderableType]:
    """Return prices by seller on a logarithmic axis, with the costs on Hopper and on the cheapest system."""
    rows = sorted(((price, offer) for offer, price in zip(found.offers, found.prices, strict=True)), key=lambda one: one[0])
    rows = [(price, offer) for price, offer in rows if offer.role != "reseller"] or rows
    rows, gaps = _fewer(rows)
    best, spans = found.best, {one.system: one for one in found.margins}
    marks = {"c": best.usd_per_request} if best is not None else {}
    if "hopper" in spans:
        marks["h"] = found.median_price / spans["hopper"].median
    values = [price for price, _ in rows] + list(marks.values())
    names = [f"{offer.provider} {offer.variant}".strip() for _, offer in rows]
    scale = LogScale.of(names, values, width, beside=BESIDE, spare=1.05)
    lines: list[RenderableType] = [Text(), Text("USD per request by seller, logarithmic", style="bold")]
    for number, ((price, offer), name) in enumerate(zip(rows, names, strict=True)):
        row = [" "] * scale.cells
        for mark, value in marks.items():
            row[scale.at(value)] = mark
        for cell in range(scale.at(max(marks.values(), default=price)) + 1, scale.at(price)):
            row[cell] = "─"
        row[scale.at(price)] = "◆" if offer.role == "first-party" else "●"
        if number in gaps:
            lines.append(Text(f"{'...':>{scale.left}} {counted(gaps[number], 'more offer')}", style="bright_black"))
        lines.append(
            Text.assemble(
                name[: scale.left].rjust(scale.left), " ", ("".join(row), "green" if offer.role == "first-party" else "cyan")
            )
        )
    lines.append(scale.labels())
    told = ["● price", "◆ the maker's"] if any(o.role == "first-party" for _, o in rows) else ["● price"]
    told += [f"c cost on {best.system}"] if best is not None else []
    told += ["h cost on Hopper"] if "h" in marks else []
    lines.append(Text("  ".join(told)))
    return lines


def _fewer(rows: list[tuple[float, Offer]]) -> tuple[list[tuple[float, Offer]], dict[int, int]]:
    """Return the cheapest, the dearest and the maker's rows, and how many are left out before which of them."""
    ends = MOST_ROWS // 2
    kept = [n for n, (_, offer) in enumerate(rows) if n < ends or n >= len(rows) - ends or offer.role == "first-party"]
    gaps = {at: here - before - 1 for at, (before, here) in enumerate(pairwise(kept), 1) if here - before > 1}
    return [rows[n] for n in kept], gaps


def history_view(found: PriceHistory, width: int) -> RenderableType:
    """Return prices with the rents of the same days, the oldest first."""
    parts: list[RenderableType] = [Text(found.text, style="bold"), *notes(found.notes), Text()]
    shown = table(
        "Day", "Seller", "Id", "In", "Out", "Request", "Rent of H100", "Margin on Hopper", "Basis",
        numbers=(3, 4, 5, 6, 7), first_to_go=(8, 2, 5),
    )  # fmt: skip
    for one in found.rows:
        rent = f"{show(one.rent, 'USD/s')}" if math.isfinite(one.rent) else "not known"
        margin = f"{one.margin:.2g}" if math.isfinite(one.margin) else "-"
        shown.add_row(
            one.day, one.provider, one.model, dollars(one.input), dollars(one.output), dollars(one.usd_per_request), rent,
            margin, one.source,
        )  # fmt: skip
    del width
    return Group(*parts, shown)


def proposal_view(found: Proposal, width: int) -> RenderableType:
    """Return a list that is proposed, each figure with its reason."""
    shown = table("Price", "USD/M tokens", "Why", numbers=(1,))
    for one in found.lines:
        shown.add_row(one.name, one.written, one.reason)
    parts: Sequence[RenderableType] = [Text(found.text, style="bold"), *notes(found.notes), Text(), shown]
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


def reading_view(found: PriceReading, width: int, *, lecture: bool = False, brief: bool = False) -> RenderableType:
    """Return what a list says in a sentence, the list, its readings, and what it does not say."""
    parts: list[RenderableType] = [Text(found.text, style="bold"), *notes(found.list.notes)]
    if brief:
        return Group(*parts)
    parts += [Text(), _list(found.list), Text(), _readings(found)]
    parts += [Text("What it rests on", style="bold"), *_reasons(found)]
    parts += [Text(), Text("Not identifiable", style="bold")]
    for one in found.readings:
        if not one.identifiable:
            parts.append(Text.assemble(("  " + one.what[0].upper() + one.what[1:], "yellow"), f": {one.reason}.{_beside(one)}"))
    if lecture:
        parts += [Text(), *_ideal(found)]
    parts += _hold_plot(found, width)
    margin = f"margin {found.margin.median:.2g} ({found.margin.low:.2g} to {found.margin.high:.2g}), {found.margin.basis}"
    parts += [Text(), Text(f"{found.draws:,} draws, seed {found.seed}; {margin}.", style="bright_black")]
    return Group(*parts)


def _beside(one: Reading) -> str:
    if not math.isfinite(one.ideal):
        return ""
    return f" Ideal, lecture: {one.written(one.ideal)} ({one.ideal_from})."


def _list(found: PriceList) -> Grid:
    about = ", ".join(filter(None, (found.source, found.as_of, found.grade)))
    shown = table(
        "Service", "Above", "In", "Out", "Hit", "Write", "Write, long",
        title=f"{found.name}{', ' + found.at if found.at else ''}: USD per million tokens ({about})",
        numbers=(1, 2, 3, 4, 5, 6), first_to_go=(6, 5),
    )  # fmt: skip
    for line in sorted(found.rates, key=lambda line: (line.service != "standard", line.service, line.above_tokens)):
        prices = (line.input, line.output, line.cache_read, line.cache_write, line.cache_write_long)
        shown.add_row(
            line.service,
            f"{line.above_tokens:,.0f}" if line.above_tokens else "",
            *("-" if not math.isfinite(one) else usd(one) for one in prices),
        )
    return shown


def _readings(found: PriceReading) -> Grid:
    """Return the figures of what is read; why stands below (`_reasons`)."""
    heads = ["What it says", "Value", "90 %", "At most", "Bits", "Held", "Bound held", *(["Known"] if found.known else [])]
    shown = table(*heads, numbers=(1, 2, 3), first_to_go=(4, 6, 5))
    for one in found.readings:
        if one.identifiable and not one.words:
            shown.add_row(
                NAMES.get(one.name, one.name.replace("_", " ")),
                one.written(one.value),
                " to ".join(map(one.written, one.interval)) if one.interval else "",
                one.written(one.bound) if math.isfinite(one.bound) else "",
                f"{one.bits:.2f}" if math.isfinite(one.bits) else "",
                f"{one.held.held} of {one.held.of}" if one.held else "",
                f"{one.bound_held.held} of {one.bound_held.of}" if one.bound_held else "",
                *([one.written(found.known.get(one.name, math.nan)).replace("none", "")] if found.known else []),
            )
    return shown


def _reasons(found: PriceReading) -> list[RenderableType]:
    """Return what each reading rests on."""
    known = [one for one in found.readings if one.identifiable]
    return [
        Text.assemble(
            ("  " + one.what[0].upper() + one.what[1:], "cyan"),
            f": {'; '.join(one.words) + '; ' if one.words else ''}{one.reason}{_how_often(one)}.{_beside(one)}",
        )
        for one in known
    ]


def _how_often(one: Reading) -> str:
    """Return how often such an interval and such a bound held."""
    told = [f"such {what} {held}" for what, held in (("intervals", one.held), ("bounds", one.bound_held)) if held]
    return "; " + ", ".join(told) if told else ""


def _ideal(found: PriceReading) -> list[RenderableType]:
    """Return the lecture's own reading."""
    one = found.ideal
    title, figures = one.headline()
    given = f"R = {one.ideal.balance:g}, {show(one.ideal.active)} active parameters, {one.ideal.weight_bytes:g} B a weight"
    parts: list[RenderableType] = [Text(f"{title} ({given})", style="bold"), facts(figures.items())]
    if not one.consistent:
        parts += notes(
            [
                f"sections 13 and 14 cannot both be read from this list: with the threshold as L* decode at "
                f"{one.ideal.short:,.0f} tokens is bound by arithmetic and would cost "
                f"{one.ratio_left:.2g} times input, not {one.ratio:.3g}"
            ]
        )
    return parts


def _hold_plot(found: PriceReading, width: int) -> list[RenderableType]:
    """Return what holding a token costs over time by tier, with what the list asks at its lifetimes."""
    asked = paid_per_hour(found.list)
    kv = found["kv_bytes_per_token"]
    if not asked:
        return []
    known = found.known.get(kv.name, math.nan)
    bytes_, whose = (
        (known, "known")
        if math.isfinite(known)
        else (kv.value, "the reading's")
        if kv.identifiable
        else (70_272.0, "DeepSeek-V3's, as none is read")
    )
    seconds = np.geomspace(SHORTEST, LONGEST, 60)
    lines = {one.name: bytes_ * one.usd_per_byte_second * seconds * MILLION for one in found.memory}
    low = math.log10(max(min(line[0] for line in lines.values()), 1e-9))
    high = math.log10(max(line[-1] for line in lines.values()))
    made = figure(max(20, min(70, width - 34)), 14)
    made.set_x_limits(math.log10(SHORTEST), math.log10(LONGEST))
    made.set_y_limits(low, high)
    made.x_ticks_fkt = lambda value, _: show(10**value, "s", 2)
    made.y_ticks_fkt = lambda value, _: f"{10**value:.0e}"
    label(made, "held for", "USD/Mtok", width)
    for colour, glyph, (_, line) in zip(("red", "yellow", "green", "cyan"), GLYPHS, lines.items(), strict=True):
        made.plot(np.log10(seconds), np.log10(line), lc=colour)
        made.scatter(np.log10(seconds[6::12]), np.log10(line[6::12]), lc=colour, marker=glyph)
    paid = []
    for words, per_hour in asked.items():
        life = {"short": found.list.hold, "long": found.list.hold_long}.get(words.partition(" ")[0], HOUR)
        made.scatter([math.log10(life)], [math.log10(max(per_hour * life / HOUR, 1e-9))], lc="white", marker="◆")
        paid.append(f"{words}: {per_hour * life / HOUR:.3g} USD/Mtok")
    legend = "  ".join(f"{glyph} {name}" for glyph, name in zip(GLYPHS, lines, strict=True))
    title = f"Holding a million tokens of {show(bytes_, 'B')} ({whose}), both axes logarithmic"
    return [Text(), Text(title, style="bold"), drawn(made), Text(f"{legend}  ◆ what the list asks ({'; '.join(paid)})")]
