"""What the terminal shows of prices at all sellers, of their history, and of a list that is proposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.machines.money import usd
from steptime.machines.rents import kind_and_date
from steptime.pricing.market import Market
from steptime.terminal.views.log_scale import LogScale
from steptime.terminal.views.widgets import Grid, notes, table
from steptime.units import counted, show

if TYPE_CHECKING:
    from steptime.pricing.finding import Offer
    from steptime.pricing.history import PriceHistory
    from steptime.pricing.proposing import Proposal

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
