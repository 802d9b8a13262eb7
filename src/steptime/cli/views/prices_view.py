"""Text of `steptime prices`: sellers and costs, the history, a proposed list, and estimates from one list."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.terminal_plots import Axis, Curve, LogScale, draw, log10
from steptime.cli.views.widgets import Answer, Grid, facts, footnote, listing, section, table, write
from steptime.hardware.rental_prices import kind_and_date, usd
from steptime.planning.evidence import ANY, MEASURED, PUBLISHED
from steptime.pricing.kv_storage_cost import paid_per_hour
from steptime.pricing.market import NATIVE, Market
from steptime.pricing.price_estimate import Reading
from steptime.pricing.price_inversion import PriceReading
from steptime.pricing.price_list import PriceList
from steptime.pricing.price_proposal import Proposal
from steptime.pricing.self_hosting import SelfHosting
from steptime.pricing.serving_costs import HOPPER, USUAL
from steptime.units import DAY, HOUR, MILLION, counted, in_digits, in_span, percent, request_rate, show

if TYPE_CHECKING:
    from steptime.pricing.price_history import PriceHistory
    from steptime.pricing.price_lookup import Offer

# Columns next to the axis of the chart, at most.
MAX_NAME_WIDTH = 26
# Sellers in the chart: the cheapest and the most expensive, if there are more.
MAX_ROWS = 24
# Requests that a price is shown for: one request costs fractions of a cent.
THOUSAND = 1000
# Ratio of costs above which a digit says nothing.
MOST_RATIO = 1000
MARKS = {"first-party": " (maker)", "reseller": " (reseller)"}
ESTIMATES = {
    "kv_bytes_per_token": "KV bytes per token",
    "hits_short": "break-even hits, {short} write",
    "hits_long": "break-even hits, {long} write",
    "hold_price_short": "cache storage, {short} write",
    "hold_price_long": "cache storage, {long} write",
    "hold_price": "cache storage",
}
# Glyph and colour of HBM, DRAM, flash and disk in the chart of storage, and its shortest and longest times [s].
TIER_STYLES = (("H", "red"), ("D", "yellow"), ("F", "green"), ("K", "cyan"))
SHORTEST, LONGEST = 10.0, 10 * DAY


def market_view(market: Market, *, width: int) -> Answer:
    """Return prices of a model at its sellers, with margins over the cost on each system.

    Args:
        market: Offers, costs and margins.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    cached = f", {percent(market.mix.cached_share)} of them cached" if market.mix.cached_share else ""
    date_note = f"; prices and rents of {market.price_time}" if market.price_time else ""
    return Answer(
        sentence=_market_sentence(market),
        conditions=f"A request: {counted(market.mix.input_tokens, 'token')} in{cached}, {market.mix.output_tokens:,.0f} out at "
        f"{market.speed:g} tok/s per user, {_limit_words(market.ttft)}{date_note}. {_assumed(market)}",
        body=[_offers(market, market.counted), _costs(market)],
        details=[
            _offers(market, range(len(market.offers))),
            _price_chart(market, width),
            _storage(market) if market.holds else None,
            footnote("Not planned for: " + _systems_by_reason(market.left_out) + "." if market.left_out else ""),
        ],
        # Long notes list sellers; short ones say how to read the margins.
        warnings=sorted(market.notes, key=len),
        full_adds=f"all {counted(len(market.offers), 'offer')}, chart, cost of caches",
    )


def _limit_words(ttft: float) -> str:
    return f"first token within {show(ttft, 's')}" if math.isfinite(ttft) else "no limit on the first token (--ttft)"


def _weights_words(weights: str) -> str:
    return "weights as in the config" if weights == NATIVE else f"weights in {weights}, as most hosts serve it"


def _assumed(market: Market) -> str:
    """Say which chips, formats and modes the costs assume, and how to change them."""
    chips = {
        "": "64 chips, or one scale-up domain if larger (--chips usual: as in plan and compare)",
        USUAL: "the usual number of chips of each system, as in plan and compare",
    }.get(market.chips, f"{market.chips} chips")
    weights = _weights_words(market.weights)
    layouts = {MEASURED: "measured layouts", PUBLISHED: "measured or published layouts", ANY: "all layouts"}[market.evidence]
    return f"Each cost: a plan on {chips}; {weights}; the cheaper mode (--mode) of {layouts} (--evidence)."


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
    machine = f"{counted(best.chips, 'chip')} of {best.system} ({best.mode})"
    text += f" Serving costs {cost} on {machine} at full load: price / cost is {ratio:.1f}x."
    if "hopper" not in margins:
        return text
    hopper = margins["hopper"]
    cost = usd(THOUSAND * market.median_price / hopper.median)
    served = {row.system: row.usd_per_request for row in market.costs if row.feasible and row.system in HOPPER}
    parts = [f"{usd(THOUSAND * served[name])} on {name}" for name in HOPPER if name in served]
    mean = f" (geometric mean of {' and '.join(parts)})" if len(parts) > 1 else ""
    text += f" On {market.hopper_words} it costs {cost}{mean}: {hopper.median:.1f}x"
    text += f" (90 %: {hopper.range[0]:.1f} to {hopper.range[1]:.1f})"
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
    offers, price = (
        [market.offers[place] for place in places],
        {id(o): p for o, p in zip(market.offers, market.prices, strict=True)},
    )
    variant = "Variant: {variant} | " if any(offer.variant for offer in offers) else ""
    first = 1 + bool(variant)
    return listing(
        "Seller: {seller} | " + variant + "In: {input:USD} | Out: {output:USD} | Cached: {cache_read:USD} | "
        "1k requests: {request:USD} | Price / cost: {ratio} | Source: {source} | Date: {retrieval_date} | "
        "Other sources: {disagreeing}",
        offers,
        title=f"USD per million tokens, {len(places):,} of {counted(len(market.offers), 'offer')}"
        + ("" if best is None else f"; price / cost on {best.system}"),
        first_to_go=(first + 7, first + 6, first + 5, *([1] if variant else []), first + 2),
        numbers=(first + 4,),
        # Sources never wrap: a column that does not fit is left out.
        no_wrap=(first + 5,),
        style=lambda offer: "bright_black" if offer.role == "reseller" else None,
        seller=lambda offer: offer.provider + MARKS.get(offer.role, ""),
        request=lambda offer: THOUSAND * price[id(offer)],
        ratio=lambda offer: "-" if best is None else f"{price[id(offer)] / best.usd_per_request:.1f}x",
    )


def _costs(market: Market) -> Grid:
    """Return the cost on each system, with the margin of the median seller over it."""
    grid = table(
        "System", "1k requests", "Price / cost", "Mode", "Chips", "90 % range", "Aggregated", "Layout", "90 % of cost",
        "Lowest price / cost", "In", "Out", "Rent per chip", "First token, p90", "Evidence",
        title="Cost of 1,000 requests at full load, and price / cost of the median seller",
        numbers=(1, 2, 4, 5, 6, 8, 9, 10, 11, 13), first_to_go=(12, 10, 11, 9, 8, 7, 6, 14, 13),
    )  # fmt: skip
    margins = {margin.system: margin for margin in market.margins}

    def ratios(name: str) -> tuple[str, str, str]:
        margin = margins[name]
        low, high = margin.range
        return f"{margin.median:.2g}x", in_span(low, high, 2), f"{margin.lowest:.2g}x"

    # Hopper is what most hosts own, so its mean stands first.
    if "hopper" in margins and market.hopper_words not in margins:
        median, span, lowest = ratios("hopper")
        hopper_cost = usd(THOUSAND * market.median_price / margins["hopper"].median)
        grid.add_row("H100/H200 mean", hopper_cost, median, "", "", span, "", "", "", lowest)
    for cost in sorted(market.costs, key=lambda cost: (not cost.feasible, cost.usd_per_request)):
        if not cost.feasible:
            grid.add_row(cost.system, Text(cost.reason.partition(";")[0][:60], style="bright_black"))
            continue
        median, span, lowest = ratios(cost.system)
        grid.add_row(
            cost.system, usd(THOUSAND * cost.usd_per_request), median, cost.mode, f"{cost.chips:,}", span,
            write(THOUSAND * cost.aggregated_usd_per_request, "USD"), cost.layout_text,
            " to ".join(usd(THOUSAND * end) for end in cost.usd_per_request_range or ()), lowest,
            write(cost.input_usd_per_million, "USD"), write(cost.output_usd_per_million, "USD"),
            f"{show(float(cost.rent.typical), 'USD/s')} {kind_and_date(cost.rent)}", show(cost.ttft, "s"), cost.evidence,
        )  # fmt: skip
    return grid


def _storage(market: Market) -> Grid:
    return listing(
        "Cache in: {tier} | USD/Mtok-hour: {usd_per_mtok_hour:USD} | Break-even with prefill: {break_even:s} | "
        "One hit pays for: {hit_pays:s} | Load time: {drain:s} | Grade: {grade}",
        market.holds, title=f"Storage of a KV cache of {show(market.kv_bytes, 'B')} per token (at 32k tokens)",
        first_to_go=(5, 4),
    )  # fmt: skip


def _price_chart(market: Market, width: int) -> Group | None:
    """Return prices by seller on a logarithmic axis, with the costs on Hopper and on the cheapest system."""
    rows = sorted(((price, offer) for offer, price in zip(market.offers, market.prices, strict=True)), key=lambda pair: pair[0])
    # Resellers repeat prices of others, and a long middle says little.
    rows, gaps = _fewer([(price, offer) for price, offer in rows if offer.role != "reseller"] or rows)
    best, spans = market.best, {margin.system: margin for margin in market.margins}
    marks = {"c": THOUSAND * best.usd_per_request} if best is not None else {}
    if "hopper" in spans:
        marks["h"] = THOUSAND * market.median_price / spans["hopper"].median
    names = [f"{offer.provider} {offer.variant}".strip() for _, offer in rows]
    values = [THOUSAND * price for price, _ in rows] + list(marks.values())
    scale = LogScale.fit(names, values, width, max_name_width=MAX_NAME_WIDTH, spare=1.05)
    lines: list[RenderableType] = []
    for number, ((_, offer), price, name) in enumerate(zip(rows, values, names, strict=False)):
        glyph, colour = ("◆", "green") if offer.role == "first-party" else ("●", "cyan")
        # A line joins the higher of both costs with a price above it.
        dearest = max(marks.values(), default=price)
        strokes = [(dearest, price, "─")] if price > dearest else []
        strokes += [(cost, cost, mark) for mark, cost in marks.items()]
        if number in gaps:
            lines.append(Text(f"{'...':>{scale.name_width}} {counted(gaps[number], 'more offer')}", style="bright_black"))
        lines.append(scale.line(name, [*strokes, (price, price, glyph)], colour))
    legend = ["● price", "◆ the maker's"] if any(o.role == "first-party" for _, o in rows) else ["● price"]
    legend += [f"c cost on {best.system}"] if best is not None else []
    legend += [f"h cost on {market.hopper_words}"] if "h" in marks else []
    return section("USD per 1,000 requests by seller", [*lines, scale.labels(), Text("  ".join(legend))])


def _fewer(rows: list[tuple[float, Offer]]) -> tuple[list[tuple[float, Offer]], dict[int, int]]:
    """Return the cheapest, the most expensive and the maker's rows, and the number left out before each."""
    ends = MAX_ROWS // 2
    positions = [n for n, (_, offer) in enumerate(rows) if n < ends or n >= len(rows) - ends or offer.role == "first-party"]
    gaps = {index: after - before - 1 for index, (before, after) in enumerate(pairwise(positions), 1) if after - before > 1}
    return [rows[n] for n in positions], gaps


def history_view(history: PriceHistory) -> Answer:
    """Return prices with the rents of the same days, the oldest first.

    Args:
        history: Dated prices.

    Returns:
        The answer.
    """
    grid = listing(
        "Day: {day} | Seller: {provider} | Id: {model} | In: {input:USD} | Out: {output:USD} | 1k requests: {request:USD} | "
        "Rent of H100: {hourly:USD/s} | Price / cost on H100, H200: {ratio} | Basis: {source}",
        history.rows, numbers=(7,), first_to_go=(8, 2, 5), request=lambda row: THOUSAND * row.usd_per_request,
        hourly=lambda row: row.rent if math.isfinite(row.rent) else "not known",
        ratio=lambda row: f"{row.margin:.2g}x" if math.isfinite(row.margin) else "-",
    )  # fmt: skip
    return Answer(sentence=history.text, body=[grid, footnote("In, out: USD per million tokens.")], warnings=history.notes)


def proposal_view(proposal: Proposal, *, full: bool) -> Answer:
    """Return a proposed price list.

    Args:
        proposal: Prices with their reasons.
        full: Whether to show the reason of each price.

    Returns:
        The answer.
    """
    base, model = proposal.list.base, proposal.model.rpartition("/")[2]
    ratio = in_digits(proposal.margin / proposal.utilisation, 2)
    busy, mix, cost = percent(proposal.utilisation), proposal.mix, proposal.cost
    cached = f" ({percent(mix.cached_share)} cached)" if mix.cached_share else ""
    reasons = listing("Price: {name} | USD/M tokens: {written} | Reason: {reason}", proposal.lines, numbers=(1,))
    return Answer(
        sentence=f"At {proposal.margin:g}x the cost of chips that are busy {busy} of the day ({ratio}x the cost at full "
        f"load), {model} on {proposal.system} sells a million tokens for {usd(base.input)} (input), {usd(base.output)} "
        f"(output) and {usd(base.effective_cache_read)} (cached).",
        conditions=f"At full load, 1,000 requests cost {usd(THOUSAND * cost.usd_per_request)}: {mix.input_tokens:,.0f} tokens "
        f"in{cached}, {mix.output_tokens:,.0f} out, {proposal.speed:g} tok/s per user, {counted(cost.chips, 'chip')}.",
        body=[*_tiers(proposal), reasons if full else _other_prices(proposal)], warnings=proposal.notes,
        full_adds="reason of each price",
    )  # fmt: skip


def self_hosting_view(comparison: SelfHosting, **_: bool) -> Answer:
    """Return API prices and own chips for a volume of tokens.

    Args:
        comparison: The comparison.
        **_: Whether all is shown; there is no more.

    Returns:
        The answer.
    """
    model, fleet, mix = comparison.model.rpartition("/")[2], comparison.fleet, comparison.mix
    cached = f" ({percent(mix.cached_share)} cached)" if mix.cached_share else ""
    volume = f"{show(comparison.tokens_per_day)} tokens a day"
    conditions = (
        f"A request: {counted(mix.input_tokens, 'token')} in{cached}, {mix.output_tokens:,.0f} out at "
        f"{comparison.speed:g} tok/s per user, {_limit_words(comparison.ttft_limit)}; {request_rate(comparison.rate, 3)}. "
        f"Own chips: {_weights_words(comparison.weights)}."
    )
    grid = table("From", "1k requests", "1M tokens (in + out)", "A month", numbers=(1, 2, 3))
    for provision in comparison.provisions:
        grid.add_row(
            provision.name,
            *(
                usd(amount)
                for amount in (THOUSAND * provision.usd_per_request, provision.usd_per_million_tokens, provision.usd_per_month)
            ),
        )
    if fleet is None:
        return Answer(
            sentence=f"{comparison.system} cannot serve {model} within these limits: {comparison.reason}",
            conditions=conditions,
            body=[grid], warnings=comparison.notes,
        )  # fmt: skip
    own_chips, api = comparison.provisions[-1], comparison.provisions[-2]
    times = own_chips.usd_per_month / api.usd_per_month
    ratio = f"{in_digits(times, 2)}x" if times < MOST_RATIO else f"more than {MOST_RATIO:,}x"
    spare = f", {fleet.spare} of them spare" if fleet.spare else ""
    verdict = "Buy from the API" if times > 1 else "Run own chips"
    return Answer(
        sentence=f"{verdict}: {volume} of {model} cost {usd(api.usd_per_month)} a month from {_seller_words(comparison)}, and "
        f"{usd(own_chips.usd_per_month)} on {counted(fleet.chips, 'own chip')} of {comparison.system} ({ratio} as much). "
        f"{_break_even_words(comparison)}",
        conditions=conditions,
        body=[
            grid,
            footnote(
                f"Own: {counted(fleet.replicas + fleet.spare, 'replica')} of {counted(fleet.replica_chips, 'chip')}{spare}, on "
                f"{counted(fleet.hosts, 'host')}; "
                f"{percent(fleet.utilisation)} busy; {comparison.mode}, {comparison.layout} "
                f"(evidence: {comparison.evidence}); first token within {show(comparison.ttft, 's')} (p90)."
            ),
        ],
        warnings=comparison.notes,
    )  # fmt: skip


def _break_even_words(comparison: SelfHosting) -> str:
    """Say from which volume on own chips cost less than the median seller, and than the cheapest."""
    share, level = comparison.break_even_utilisation, comparison.break_even_tokens_per_day
    several = comparison.sellers > 1
    seller = "the median seller" if several else "the API"
    if not math.isfinite(level):
        if share > 1:
            subject = "The median seller is" if several else "The API is"
            return f"{subject} cheaper at any volume: even a full fleet of the best size costs {in_digits(share, 2)}x as much."
        return f"Own chips cost less than {seller} only where they are nearly full."
    text = f"A fleet of the best size for its volume costs less than {seller} from {show(level)} tokens a day on"
    if not several:
        return f"{text}."
    cheapest = comparison.provisions[0].name.removeprefix("API, ").removesuffix(" (cheapest)")
    lowest_share, lowest_level = comparison.cheapest_break_even_utilisation, comparison.cheapest_break_even_tokens_per_day
    if math.isfinite(lowest_level):
        return f"{text}, and less than {cheapest}, the cheapest, from {show(lowest_level)} tokens a day on."
    if lowest_share > 1:
        return f"{text}. It costs at least {in_digits(lowest_share, 2)}x as much as {cheapest}, the cheapest seller."
    return f"{text}, and less than {cheapest}, the cheapest, only where it is nearly full."


def _seller_words(comparison: SelfHosting) -> str:
    return f"the median of {comparison.sellers} API sellers" if comparison.sellers > 1 else "the only API seller"


def _tiers(proposal: Proposal) -> list[RenderableType | None]:
    """Return the prices of tokens by prompt length and service, and what the services promise."""
    rates = {(line.service, line.above_tokens): line for line in proposal.list.rates}
    services = [name for name in ("standard", "fast", "batch") if any(service == name for service, _ in rates)]
    starts = sorted({above for _, above in rates})
    heads = ["Prompt tokens", "Input", "Output", *(f"Output, {name}" for name in services[1:])]
    grid = table(*heads, title="USD per million tokens by length of the prompt", numbers=range(1, len(heads)))
    for above in starts:
        prompt = f"above {above:,.0f}" if above else f"up to {starts[1]:,.0f}" if len(starts) > 1 else "every length"
        outputs = [rates[name, above].output if (name, above) in rates else math.nan for name in services]
        grid.add_row(prompt, *(write(price, "USD") for price in (rates["standard", above].input, *outputs)))
    speed = proposal.list.speeds.get("fast")
    fast = f"Fast: {speed * proposal.speed:g} tok/s per user. " if "fast" in services and speed is not None else ""
    return [
        grid, footnote(f"{fast}Batch: no promised speed, in idle time. A longer prompt of a service never costs less.")
    ]  # fmt: skip


def _other_prices(proposal: Proposal) -> Grid:
    """Return the prices of caches, and the services without a price."""
    grid = table("Other price", "USD", "per", numbers=(1,))
    for line in proposal.lines:
        if not line.name.startswith(("input", "output")):
            name, comma, per = line.name.partition(", Mtok-hour")
            words = f"storage {name.removeprefix('hold ')}" if comma else line.name
            grid.add_row(words, line.written, "M tokens and hour" if comma else "M tokens" if math.isfinite(line.usd) else per)
    return grid


# --- estimates from one list --------------------------------------------------------------------------------------------


def reading_view(inversion: PriceReading, *, width: int, lecture: bool, full: bool) -> Answer:
    """Return what a price list implies about its model.

    Args:
        inversion: Estimates from the list.
        width: Columns of the terminal.
        lecture: Whether to show the closed forms of the lecture.
        full: Whether to show the basis of each estimate, and a chart of storage costs.

    Returns:
        The answer.
    """
    identifiable = [estimate for estimate in inversion.readings if estimate.identifiable]
    blind = [estimate for estimate in inversion.readings if not estimate.identifiable]
    prior = inversion.margin
    margin = f"price / cost of {prior.median:.2g}"
    margin += f" (90 %: {in_span(prior.low, prior.high, 2)})" if prior.low < prior.high else ""
    assumed = f"Assumed for the KV cache: {margin}, {prior.basis}; --margin changes it."
    return Answer(
        sentence=_reading_sentence(inversion),
        conditions=assumed if inversion["kv_bytes_per_token"].identifiable else "",
        body=[
            _lecture_forms(inversion) if lecture else None,
            _estimates(inversion, full=full),
            footnote(_readings_meaning(identifiable)),
            _list(inversion.list),
        ],
        details=[
            section("Basis of each estimate", [_reason(estimate, "cyan") for estimate in identifiable]),
            section("Not identifiable", [_reason(estimate, "yellow") for estimate in blind]),
            _storage_chart(inversion, width),
            footnote(f"{inversion.draws:,} draws, seed {inversion.seed}."),
        ],
        # The sentence names the matched model already.
        warnings=[note for note in inversion.list.notes if not note.startswith("matched ")],
        full_adds="basis of each estimate, quantities that are not identifiable, chart of storage costs",
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
    if kv.identifiable:
        text += " The KV cache is read at the cost of Hopper chips: newer chips read a byte for less and imply more bytes."
    return f"{text} {blind} of {len(inversion.readings)} quantities cannot be estimated from prices."


def _readings_meaning(estimates: Iterable[Reading]) -> str:
    """Say what the rows of caches mean, if the list has them."""
    estimates = list(estimates)
    names = {estimate.name for estimate in estimates}
    words = ["Break-even hits: cache reads that repay one cache write."] if names & {"hits_short", "hits_long"} else []
    if any(name.startswith("hold_price") for name in names):
        words.append("USD/Mtok-h: to keep 1 M tokens for an hour.")
    if any(math.isfinite(estimate.bound) for estimate in estimates):
        words.insert(0, "At most: if the price covers the cost.")
    return " ".join(words)


def _reason(estimate: Reading, colour: str) -> Text:
    """Return the basis of an estimate, and how often its range and its bound contained the value of a known model."""
    words = f"{'; '.join(estimate.words)}; " if estimate.words else ""
    coverages = [
        f"the {kind} was right for {coverage.hits} of {coverage.trials}"
        for kind, coverage in (("range", estimate.interval_held), ("upper bound", estimate.bound_held))
        if coverage and estimate.identifiable
    ]
    tested = f". Tested on known models: {', '.join(coverages)}" if coverages else ""
    lecture = f" Lecture: {estimate.written(estimate.ideal)} ({estimate.ideal_from})." if math.isfinite(estimate.ideal) else ""
    name = f"  {estimate.quantity[0].upper()}{estimate.quantity[1:]}"
    return Text.assemble((name, colour), f": {words}{estimate.reason}{tested}.{lecture}")


def _list(price_list: PriceList) -> Grid:
    firsts: dict[str, float] = {}
    for line in sorted(price_list.rates, key=lambda line: line.above_tokens):
        if line.above_tokens:
            firsts.setdefault(line.service, line.above_tokens)
    about = ", ".join(filter(None, (price_list.source, price_list.retrieval_date, price_list.grade)))
    return listing(
        "Service: {service} | Prompt: {above} | In: {input:USD} | Out: {output:USD} | Cached: {cache_read:USD} | "
        "Write: {cache_write:USD} | Write, long: {cache_write_long:USD}",
        sorted(price_list.rates, key=lambda line: (line.service != "standard", line.service, line.above_tokens)),
        title=f"USD per million tokens{' on ' + price_list.price_time if price_list.price_time else ''} ({about})",
        numbers=(1,), first_to_go=(6, 5), above=lambda line: (
            f"above {line.above_tokens:,.0f} tokens" if line.above_tokens
            else f"up to {firsts[line.service]:,.0f} tokens" if line.service in firsts else "any length"
        ),
    )  # fmt: skip


def _estimates(inversion: PriceReading, *, full: bool) -> Grid:
    """Return the estimates; their basis stands below (`_reason`)."""
    has_truth = bool(inversion.true_values)
    known_head, bits = (["Known"] if has_truth else []), (["Bits", "Range right", "Bound right"] if full else [])
    # The column of upper bounds is left out of the short answer: few estimates have one, and then it stands with the value.
    heads = ["Estimate", "Value", "90 % range", *(["At most"] if full else []), *known_head, *bits]
    going = (5 + has_truth, 6 + has_truth, 4 + has_truth) if full else ()
    grid = table(*heads, numbers=range(1, len(heads)), first_to_go=going)
    for estimate in inversion.readings:
        if not estimate.identifiable or estimate.words:
            continue
        true_value = estimate.written(inversion.true_values.get(estimate.name, math.nan)).replace("none", "")
        coverages = (
            f"{coverage.hits} of {coverage.trials}" if coverage else ""
            for coverage in (estimate.interval_held, estimate.bound_held)
        )
        bound = estimate.written(estimate.bound) if math.isfinite(estimate.bound) else ""
        ends = " to ".join(map(estimate.written, estimate.interval or ()))
        grid.add_row(
            _estimate_name(inversion.list, estimate.name),
            f"{estimate.written(estimate.value)}{' hits' if estimate.name.startswith('hits_') else ''}",
            ends if full or not bound else f"{ends}, at most {bound}".removeprefix(", "),
            *([bound] if full else []), *([true_value] if has_truth else []),
            *([f"{estimate.bits:.2f}" if math.isfinite(estimate.bits) else "", *coverages] if full else []),
        )  # fmt: skip
    return grid


def _estimate_name(price_list: PriceList, name: str) -> str:
    """Return the label of an estimate, with the lifetime of its cache write if the list states it."""
    lifetimes = {
        key: str(show(seconds, "s", digits=2)) if math.isfinite(seconds) else key
        for key, seconds in (("short", price_list.hold), ("long", price_list.hold_long))
    }
    return ESTIMATES.get(name, name.replace("_", " ")).format(**lifetimes)


def _lecture_forms(inversion: PriceReading) -> Group | None:
    """Return the closed forms of the lecture."""
    lecture, ideal = inversion.ideal, inversion.ideal.ideal
    title, figures = lecture.headline()
    contradiction = (
        f"Sections 13 and 14 contradict each other here: with the threshold as L*, decode at {ideal.short:,.0f} "
        f"tokens is compute-bound and would cost {lecture.ratio_left:.2g} times input, not {lecture.ratio:.3g}."
    )
    inputs = f"R = {ideal.balance:g}, {show(ideal.active)} active parameters, {ideal.weight_bytes:g} bytes per weight"
    lines = [facts(figures.items()), None if lecture.consistent else Text(contradiction)]
    return section(f"{title} ({inputs})", lines)


def _storage_chart(inversion: PriceReading, width: int) -> Group | None:
    """Return the cost of storing a token over time by tier, with the prices of the list at its lifetimes."""
    hourly_prices = paid_per_hour(inversion.list)
    if not hourly_prices:
        return None
    kv = inversion["kv_bytes_per_token"]
    bytes_, whose = inversion.true_values.get(kv.name, math.nan), "known"
    if not math.isfinite(bytes_):
        bytes_, whose = (kv.value, "estimated") if kv.identifiable else (70_272.0, "of DeepSeek-V3, as no estimate exists")
    times, curves = np.geomspace(SHORTEST, LONGEST, 60), []
    for (glyph, colour), tier in zip(TIER_STYLES, inversion.memory, strict=True):
        cost = bytes_ * tier.usd_per_byte_second * times * MILLION
        curves.append(Curve(np.log10(times), np.log10(cost), tier.name, colour, glyph, (6, 12)))
    low, high = min(float(curve.y[0]) for curve in curves), max(float(curve.y[-1]) for curve in curves)
    price_texts = []
    for words, per_hour in hourly_prices.items():
        life = {"short": inversion.list.hold, "long": inversion.list.hold_long}.get(words.partition(" ")[0], HOUR)
        curves.append(Curve([math.log10(life)], [float(log10(per_hour * life / HOUR))], "", "white", "◆", has_line=False))
        price_texts.append(f"{words}: {per_hour * life / HOUR:.3g} USD/Mtok")
    across = Axis("lifetime", math.log10(SHORTEST), math.log10(LONGEST), partial(show, unit="s", digits=2))
    chart = draw(curves, across, Axis("USD/Mtok", max(low, -9.0), high, "{:g}".format), width, 14)
    title = f"Storage of a million tokens of {show(bytes_, 'B')} ({whose})"
    return section(title, [chart, Text(f"◆ price in the list ({'; '.join(price_texts)})")])
