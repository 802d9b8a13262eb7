"""What the terminal shows of the catalogue: lists and cards of models, systems and engines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from steptime.cli.views.checkpoint_view import held_facts, held_tables
from steptime.cli.views.widgets import Grid, bar, facts, notes, sourced, table
from steptime.describe.engine_summary import EngineCard
from steptime.describe.model_summary import ComparisonRow, ModelCard, ModelRow
from steptime.describe.system_summary import RACK_KEYS, SystemCard, SystemRow
from steptime.hardware.energy import power_in_words
from steptime.hardware.rental_prices import has_rent, kind_in_words, origin_in_words
from steptime.hardware.system import Rent
from steptime.number_checks import Number
from steptime.units import counted, show

RACK_LIMITS = ("power", "weight", "cables")
PART_COLOURS = {
    "projections": "blue", "experts": "green", "shared experts": "bright_green", "feed-forward": "cyan", "embedding": "magenta",
    "head": "bright_magenta", "norms": "white", "vision": "yellow",
}  # fmt: skip


def models_view(rows: Sequence[ModelRow]) -> RenderableType:
    """Return the list of models."""
    grid = table("Model", "Params", "Active", "KV a token", "Weights", numbers=(1, 2, 3, 4), first_to_go=(3, 2))
    for row in rows:
        if row.problem:
            grid.add_row(row.name, Text("cannot be read: " + row.problem, style="red"), "", "", "")
            continue
        grid.add_row(
            row.name,
            show(row.total_parameters),
            show(row.active_parameters),
            f"{row.kv_bytes_per_token:,.0f} B",
            show(row.weight_bytes, "B"),
        )
    return Group(grid, Text(f"{counted(len(rows), 'model')}. `steptime models NAME` shows one."))


def comparison_view(rows: Sequence[ComparisonRow], width: int) -> RenderableType:
    """Return models side by side: what they are made of, and what a sequence costs them, with bars of its cache."""
    context = rows[0].context
    names = _short_names(rows) if width < 110 else [row.name for row in rows]
    parameters = table(
        "Model", "Parameters", "Active", "Share", "Weights", "FLOPs a token", numbers=range(1, 6), first_to_go=(3,)
    )
    for name, row in zip(names, rows, strict=True):
        parameters.add_row(
            name,
            show(row.total_parameters),
            show(row.active_parameters),
            f"{row.active_share:.1%}",
            show(row.weight_bytes, "B"),
            show(row.decode_flops_per_token, "FLOP"),
        )
    cache = table("Model", "KV a token", "State", "KV = weights", numbers=range(1, 4))
    picture = table("Model", f"Cache at {context:,} tokens", "", numbers=(1,), first_to_go=(2,))
    largest = max(row.cache_bytes_at_context for row in rows) or 1.0
    cells = max(10, min(60, width - 32 - max(map(len, names))))
    for name, row in zip(names, rows, strict=True):
        equal = row.context_of_equal_reads
        cache.add_row(
            name,
            f"{row.kv_bytes_per_token:,.0f} B",
            show(row.state_bytes_per_sequence, "B") if row.state_bytes_per_sequence else "-",
            show(equal) if math.isfinite(equal) else "never",
        )
        size = row.cache_bytes_at_context
        picture.add_row(name, show(size, "B"), bar(size / largest, cells, "cyan"))
    footnote = (
        f"FLOPs of one decode token, and cache with state of one sequence, at {context:,} tokens (--context). KV a token: "
        "while no window is full. KV = weights: context [tokens] at which a token reads as much cache as the model has weights."
    )
    return Group(parameters, cache, picture, Text(footnote, style="bright_black"))


def _short_names(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return names without their makers where that leaves them distinct."""
    short = [row.name.rpartition("/")[2] for row in rows]
    return [name if short.count(name) == 1 else row.name for name, row in zip(short, rows, strict=True)]


def model_view(card: ModelCard, width: int) -> RenderableType:
    """Return one model's card."""
    p = card.parameters
    formats = ", ".join(f"{show(value, 'B')} {name}" for name, value in card.weight_bytes_by_format.items())
    growing, full = card.growing_kv_bytes_per_token, card.kv_bytes_per_token
    cache = f"{full:,.0f} B in {card.kv_format}"
    if growing != full:
        cache += f", of which {growing:,.0f} B grow without bound"
    pairs = [
        ("Family", card.family),
        ("Parameters", f"{p.total:,.0f} ({show(p.total)})"),
        ("Active for a token", f"{p.active:,.0f} ({p.active_share:.1%})"),
        ("Weights", f"{show(card.weight_bytes, 'B')}: {formats}"),
        ("KV cache of a token", cache),
        (f"Cache at {card.context:,} tokens", show(card.cache_bytes_at_context, "B")),
        ("KV reads equal weight reads at", _tokens(card.context_of_equal_reads) + " of one sequence"),
        ("Longest context", _tokens(card.max_context, "no limit stated")),
        ("Smallest system that holds it", _smallest(card)),
        ("Published", _published(card)),
        ("Source", _source(card.source)),
    ]
    if card.state_bytes_per_sequence:
        pairs.insert(5, ("State of a sequence", show(card.state_bytes_per_sequence, "B")))
    if p.draft:
        pairs.insert(3, ("Multi-token prediction, besides", f"{show(p.draft)}, {show(card.draft_weight_bytes, 'B')}"))
    return Group(
        Text(card.name, style="bold"),
        facts([*pairs, *held_facts(card)]),
        *_counting(card),
        *held_tables(card),
        _layers(card),
        _parts(card, width),
        _flops(card),
        _cache_picture(card, width),
        *notes(card.notes),
    )


def _smallest(card: ModelCard) -> str:
    system = card.smallest_system
    if not system:
        return "none in the catalogue"
    rent = Rent(kind=system.rent_kind, term=system.rent_term)
    rent_text = f"{show(system.rent, 'USD/s')}, {kind_in_words(rent)}" if math.isfinite(system.rent) else "no rent is known"
    return f"{counted(system.chips, 'chip')} of {system.name} ({rent_text}): {system.title}"


def _source(source: Mapping[str, str]) -> str:
    if not source:
        return "a local config"
    return f"{source.get('url', '')} ({source.get('grade', 'not graded')}, {source.get('date', 'no date')})"


def _published(card: ModelCard) -> str:
    """Say what the maker states and how far the count is from it."""
    published, over = card.published, card.counted_over_published
    if not over:
        return "no figure of the maker"
    figures = [f"{show(published[kind])} {kind} (counted {ratio - 1:+.1%})" for kind, ratio in over.items()]
    basis = ", ".join(str(published[key]) for key in ("basis", "grade") if published.get(key))
    return ", ".join(figures) + (f"; {basis}" if basis else "")


def _counting(card: ModelCard) -> list[Text]:
    """Say why the count of active parameters differs from the maker's, where it does."""
    over = card.counted_over_published.get("active")
    if over is None or abs(over - 1) < 0.005:
        return []
    embedding = show(card.parts.get("embedding", 0.0))
    words = f"Active: counted is all that a token passes, the embedding ({embedding}) among it; makers leave out and round."
    return [Text(words, style="bright_black")]


def _tokens(value: float, otherwise: str = "no context") -> str:
    return f"{value:,.0f} tokens" if math.isfinite(value) else otherwise


def _layers(card: ModelCard) -> Grid:
    grid = table("Layers", "Count", "Parameters each", numbers=(1, 2))
    for layer in card.layers:
        grid.add_row(layer.kind, str(layer.count), show(layer.parameters))
    return grid


def _parts(card: ModelCard, width: int) -> Grid:
    grid = table("Part", "Parameters", "Share", "", numbers=(1, 2), first_to_go=(3,))
    total = card.parameters.total
    cells = max(10, min(40, width - 44))
    names = {"projections": "attention"}
    for name, value in sorted(card.parts.items(), key=lambda item: -item[1]):
        grid.add_row(
            names.get(name, name),
            show(value),
            f"{value / total:.1%}",
            bar(value / total, cells, PART_COLOURS.get(name, "white")),
        )
    return grid


def _flops(card: ModelCard) -> Grid:
    grid = table("Context", "FLOPs of a decode token", "FLOPs of a prompt token, mean", numbers=(0, 1, 2))
    for row in card.flops_per_token:
        grid.add_row(f"{row.context:,}", show(row.decode, "FLOP"), show(row.prefill, "FLOP"))
    return grid


def _cache_picture(card: ModelCard, width: int) -> Grid:
    """Return the cache of a sequence by context, as bars on a logarithmic scale."""
    grid = table("Context", "Cache of a sequence", "(logarithmic)", numbers=(0, 1), first_to_go=(2,))
    sizes = [row.bytes for row in card.cache_bytes if row.bytes > 0]
    if not sizes:
        return grid
    low, high = math.floor(math.log10(min(sizes))), math.log10(max(sizes))
    cells = max(10, min(60, width - 40))
    for row in card.cache_bytes:
        share = (math.log10(row.bytes) - low) / (high - low) if row.bytes else 0.0
        grid.add_row(f"{row.context:,}", show(row.bytes, "B"), bar(share, cells, "cyan"))
    return grid


KINDS = {"owned": "owned", "contract": "contract", "ondemand": "ondemand", "assumed": "assumed", "given": "given"}


def systems_view(rows: Sequence[SystemRow]) -> RenderableType:
    """Return the list of systems."""
    heads = ("System", "Chips", "BF16", "FP8", "FP4", "HBM GB", "HBM TB/s", "Rent $/h", "Kind of rent")
    grid = table(*heads, numbers=range(1, 8), first_to_go=(2, 4, 3, 6, 5, 1))
    for row in rows:
        peak = row.peak
        grid.add_row(
            row.name,
            f"{row.scale_up_size:,.0f}",
            *(f"{peak[k] / 1e12:,.0f}" if k in peak else "-" for k in ("bf16", "fp8", "fp4")),
            *(f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in (row.hbm_capacity / 1e9, row.hbm_bandwidth / 1e12)),
            f"{row.rent * 3600:.2f}" if math.isfinite(row.rent) else "-",
            KINDS.get(row.rent_kind, "-"),
        )
    note = (
        "Chips of a scale-up domain; per chip: dense TFLOP/s, memory, rent. To compare rents of one kind: --rent owned, "
        "contract or ondemand. `steptime systems NAME` shows one system with its sources and dates."
    )
    return Group(grid, Text(note))


def system_view(card: SystemCard) -> RenderableType:
    """Return one system's card."""
    vendor_year = ", ".join(str(part) for part in (card.vendor, card.year) if part)
    out = math.isfinite(card.up_over_out)
    balances = ", ".join(f"{kind} {value:,.0f}" for kind, value in card.balance.items())
    pairs = [
        ("Chip", f"{card.chip_title or card.chip} ({vendor_year})" if vendor_year else card.chip_title or card.chip),
        ("Balance R, multiplies per weight read", balances),
        ("HBM drain time", show(card.drain_seconds, "s")),
        ("HBM of a usual deployment", f"{show(card.scale_up_hbm, 'B')} on {card.chips} chips"),
        ("Scale-up over scale-out bandwidth", f"{card.up_over_out:,.1f}" if out else "a box: no network beyond its chips"),
        ("Rent", _rent(card.rent_range)),
        *(_other_rent(other_rent) for other_rent in card.rents if other_rent != card.rent_range),
        ("Power", power_in_words(card.power) if math.isfinite(card.power.watts) else "not known"),
    ]
    if card.software:
        days = "; ".join(f"{period.share:.2g} from {period.first} to {period.last}" for period in card.software)
        pairs.append(("Software, of an engine's usual speed", days))
    links = card.scale_up_links
    pairs += [
        ("Scale-up links", f"{links.count:,.0f} ({links.basis})"),
        ("Rack", _rack(card)),
        ("Nearest physical limit", _nearest(card)),
    ]
    memory = table("Memory", "Capacity", "Bandwidth", "Drain", numbers=(1, 2, 3), first_to_go=(3,))
    for tier in card.memory:
        memory.add_row(tier.name, show(tier.capacity, "B"), show(tier.bandwidth, "B/s"), show(tier.drain_seconds, "s"))
    network = table(
        "Network", "Kind", "Chips", "Bandwidth, one way", "Latency", "Topology", numbers=(2, 3, 4), first_to_go=(1, 5, 4)
    )
    for d in card.domains:
        network.add_row(d.name, d.kind, show(d.size), show(d.bandwidth, "B/s"), show(d.latency, "s"), d.topology)
    rows = []
    for path in card.settable:
        figure = card.figures.get(path)
        if figure:
            rows.append((path, figure.text, figure.grade, figure.date, figure.url))
    rows += [
        (f"rent, {KINDS[rent.kind]}", show(rent.typical, "USD/s"), rent.grade, rent.date, rent.url) for rent in _rents(card)
    ]
    rack = ((path, figure) for path, figure in card.figures.items() if path.startswith("rack."))
    rows += [(path, figure.text, figure.grade, figure.date, figure.url) for path, figure in rack]
    return Group(
        Text(card.title or card.name, style="bold"),
        facts(pairs),
        memory,
        network,
        sourced("Figure (--set)", rows),
    )


def _rents(card: SystemCard) -> list[Rent]:
    """Return the rent that plans reckon with, and those of other kinds."""
    return [rent for rent in (card.rent_range, *(rent for rent in card.rents if rent != card.rent_range)) if has_rent(rent)]


def _rent(rent: Rent) -> str:
    """Return a rent of a chip with its kind, date and grade, the range of its kind, and what to mind."""
    if not has_rent(rent):
        return rent.note
    span = f"; {show(rent.low, 'USD/s')} to {show(rent.high, 'USD/s')} in a year" if rent.low != rent.high else ""
    note = f"; {rent.note}" if rent.note and rent.kind != "given" else ""
    return f"{show(rent.typical, 'USD/s')} a chip, {origin_in_words(rent)}{span}{note}"


def _other_rent(rent: Rent) -> tuple[str, str]:
    return f"  --rent {rent.kind}", _rent(rent)


RACK_UNITS = {"power": "W", "weight": "kg"}


def _amount(name: str, value: Number) -> str:
    return show(value, RACK_UNITS[name]) if name in RACK_UNITS else f"{value:,.0f}"


def _rack(card: SystemCard) -> str:
    rack = card.rack
    keys = {name: RACK_KEYS.get(name, name) for name in ("chips", "power", "weight", "cables")}
    limits = [f"{_amount(name, rack[key])} {name}" for name, key in keys.items() if key in rack]
    return ", ".join(limits) or "not known"


def _nearest(card: SystemCard) -> str:
    """Say what is nearest to its limit, with the others, and which limits nobody has published."""
    limits = card.physical_limits
    used = limits["used"]
    open_ended = [name for name in RACK_LIMITS if used.get(name, {}).get("share") is None]
    listed = " or ".join(", ".join(open_ended).rsplit(", ", 1))
    ends = f"no limit of {listed} is known" if open_ended else ""
    if limits["nearest"] is None:
        return f"not known: {ends}"
    shares = sorted((name for name in used if used[name]["share"] is not None), key=lambda name: -used[name]["share"])
    usages = [
        f"{name}, {_amount(name, used[name]['value'])} of {_amount(name, used[name]['limit'])} ({used[name]['share']:.0%})"
        for name in shares
    ]
    return "; ".join([*usages, ends] if ends else usages)


def engines_view(cards: Sequence[EngineCard]) -> RenderableType:
    """Return the list of engines."""
    grid = table("Engine", "What it is")
    for card in cards:
        grid.add_row(card.name, card.title)
    return Group(grid, Text("Without --engine: vllm on NVIDIA chips, on which it was measured, and typical on others."))


def engine_view(card: EngineCard) -> RenderableType:
    """Return one engine's constants."""
    fit = card.fit
    deviations = fit.get("deviation", {})
    heads = ("Constant", "Value", "Fitted to within") if deviations else ("Constant", "Value")
    grid = table(*heads, numbers=(1, 2))
    for name, value in card.constants.items():
        unit = "s" if name.startswith("seconds") else "B" if name.endswith("bytes") else ""
        row = [name.replace("_", " "), show(value, unit) if unit else f"{value:g}"]
        grid.add_row(*row, *([f"{deviations[name]:.1%}" if name in deviations else ""] if deviations else []))
    parts: list[RenderableType] = [Text(f"{card.name}: {card.title}", style="bold"), grid]
    if deviations:
        parts.append(Text("Within: one standard deviation; the others are held at what kernels take that are measured alone."))
    if fit.get("interval"):
        ranges = table("90 % range, over the estimate", "Decode", "With prompts", numbers=(1, 2))
        for quantity, title in (("tpot", "Time per token, step"), ("ttft", "Time to first token")):
            interval = fit["interval"].get(quantity, {})
            cells = [f"{interval[r][0]:.2f} to {interval[r][1]:.2f}" if r in interval else "-" for r in ("decode", "mixed")]
            ranges.add_row(title, *cells)
        makers = f" on chips of {', '.join(fit['vendors'])}" if fit.get("vendors") else ""
        parts += [ranges, Text(f"From {fit['runs']:,} measured runs{makers}, each left out of the fit in its turn.")]
    return Group(*parts)
