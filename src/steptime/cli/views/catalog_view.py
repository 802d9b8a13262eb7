"""Text of the catalogue: lists and cards of models, systems and engines, a new config, checkpoint files, and images."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.training_view import stacks_view
from steptime.cli.views.widgets import (
    Answer,
    Grid,
    bar_table,
    facts,
    footnote,
    listing,
    section,
    share_table,
    sourced,
    table,
    write,
)
from steptime.describe.model_summary import Comparison, ComparisonRow, ConfigCard, ModelCard, ModelRow, ModelTable
from steptime.describe.system_summary import RACK_KEYS, EngineCard, EngineTable, SystemCard, SystemRow, SystemTable
from steptime.hardware.energy import power_in_words
from steptime.hardware.rental_prices import has_rent, kind_in_words, origin_in_words
from steptime.hardware.system import Rent
from steptime.models.config_coverage import EXACT, GUESS, LIKELY
from steptime.number_checks import Number
from steptime.physics.engine_parameters import DESCRIPTIONS
from steptime.questions.image_cost import ImageCost
from steptime.units import HOUR, counted, in_digits, percent, percent_change, show

# Differences between the files of a checkpoint and the model that are shown.
MAX_DIFFERENCES = 8
COLOURS = {EXACT: "green", LIKELY: "yellow", GUESS: "red"}
# Letters of a value of a config.
LONGEST = 60
# Models that are listed one by one without --full, and columns of the names of a maker's models.
MAX_LISTED, MAX_NAMES_WIDTH = 30, 44
# Columns from which names keep their makers.
WIDE = 110
PART_COLOURS = {
    "attention": "blue", "experts": "green", "shared experts": "bright_green", "feed-forward": "cyan", "embedding": "magenta",
    "head": "bright_magenta", "norms": "white", "vision": "yellow",
}  # fmt: skip
RACK_LIMITS = ("power", "weight", "cables")
RACK_UNITS = {"power": "W", "weight": "kg"}


# --- models -------------------------------------------------------------------------------------------------------------


def models_view(models: ModelTable, *, full: bool) -> Answer:
    """Return the list of models: by maker where they are many, else a row for each.

    Args:
        models: The models.
        full: Whether to show a row for each.

    Returns:
        The answer.
    """
    makers: dict[str, list[ModelRow]] = {}
    for row in models.models:
        makers.setdefault(row.name.partition("/")[0] if "/" in row.name else "others", []).append(row)
    # Hundreds of rows answer no question: a list that long shows makers instead.
    listed = full or len(models.models) <= MAX_LISTED
    return Answer(
        sentence=f"{counted(len(models.models), 'model')} of {counted(len(makers), 'maker')}. `steptime models NAME` shows "
        "one, `steptime models --like TEXT` the names that contain a text.",
        body=[_model_rows(models.models) if listed else _by_maker("Models", "Examples, the largest first", makers, _examples)],
        full_adds="" if listed else "a row for each model",
    )


def _model_rows(rows: Sequence[ModelRow]) -> Grid:
    grid = table("Model", "Parameters", "Active", "KV per token", "Weights", numbers=(1, 2, 3, 4), first_to_go=(3, 2))
    for row in rows:
        if row.problem:
            grid.add_row(row.name, Text("cannot be read: " + row.problem, style="red"))
        else:
            sizes = show(row.total_parameters), show(row.active_parameters)
            grid.add_row(row.name, *sizes, show(row.kv_bytes_per_token, "B"), show(row.weight_bytes, "B"))
    return grid


def _by_maker(count: str, names: str, makers: Mapping[str, Sequence[Any]], write_names: Callable[[Any], str]) -> Grid:
    """Return makers by the number of their entries, with names of these."""
    ranked = sorted(makers.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [(maker, f"{len(entries):,}", write_names(entries)) for maker, entries in ranked]
    return table("Maker", count, names, rows=rows, numbers=(1,))


def _examples(rows: Sequence[ModelRow]) -> str:
    """Return names of a maker's largest models, as many as fit."""
    sizes = sorted(rows, key=lambda row: -row.total_parameters if math.isfinite(row.total_parameters) else 0.0)
    short = [row.name.rpartition("/")[2] for row in sizes]
    names = ""
    for name in short:
        if len(names) + len(name) <= MAX_NAMES_WIDTH:
            names += f"{', ' if names else ''}{name}"
    return names or short[0]


def comparison_view(comparison: Comparison, *, width: int, full: bool) -> Answer:
    """Return models next to each other: their parameters, and the cost of a sequence.

    Args:
        comparison: The models.
        width: Columns of the terminal.
        full: Whether to show bars, and the context of equal reads.

    Returns:
        The answer.
    """
    rows = comparison.models
    context = rows[0].context
    names = {id(row): name for row, name in zip(rows, _short_names(rows, keep_makers=full and width >= WIDE), strict=True)}
    grid = listing(
        "Model: {label} | Parameters: {total_parameters:count} | Active: {active_parameters:count} ({active_share:.0%}) | "
        "Weights: {weight_bytes:B} | KV per token: {kv_bytes_per_token:B} | "
        f"Cache at {context:,}: {{cache_bytes_at_context:B}} | "
        "FLOP per token: {decode_flops_per_token:FLOP} | State: {state:B}",
        rows, first_to_go=(7, 6, 3), label=lambda row: names[id(row)],
        state=lambda row: row.state_bytes_per_sequence or "-",
    )  # fmt: skip
    low, high = (pick(rows, key=lambda row: row.cache_bytes_at_context) for pick in (min, max))
    bars = []
    for row in rows:
        size, equal = row.cache_bytes_at_context, row.context_of_equal_reads
        equal_text = f"{show(equal)} tokens" if math.isfinite(equal) else "never"
        bars.append((names[id(row)], equal_text, show(size, "B"), size / (high.cache_bytes_at_context or 1.0), "cyan"))
    cells = max(10, min(60, width - 45 - max(map(len, names.values()))))
    # The KV cache differs more between models than their weights do.
    sentence = f"The cache of one sequence at {context:,} tokens is smallest for {low.name.rpartition('/')[2]}: "
    sentence += f"{show(low.cache_bytes_at_context, 'B')}."
    if high.cache_bytes_at_context > low.cache_bytes_at_context > 0:
        ratio = high.cache_bytes_at_context / low.cache_bytes_at_context
        sentence += f" It is {in_digits(ratio)}x as large for {high.name.rpartition('/')[2]}."
    meaning = f"KV per token: while no window is full. FLOP: of one decode token at {context:,} tokens (--context)."
    return Answer(
        sentence=sentence, body=[grid, footnote(meaning)],
        details=[
            bar_table(("Model", "KV = weights", f"Cache at {context:,}", ""), bars, cells),
            footnote("KV = weights: context at which a token reads as many bytes of cache as of weights."),
        ],
        full_adds="context where cache reads equal weight reads, bars",
    )  # fmt: skip


def _short_names(rows: Sequence[ComparisonRow], *, keep_makers: bool) -> list[str]:
    """Return names without their makers where that leaves them distinct."""
    short = [row.name.rpartition("/")[2] for row in rows]
    return [row.name if keep_makers or short.count(name) > 1 else name for name, row in zip(short, rows, strict=True)]


def model_view(card: ModelCard, *, width: int) -> Answer:
    """Return one model.

    Args:
        card: Its figures.
        width: Columns of the terminal.

    Returns:
        The answer.
    """
    p = card.parameters
    formats = ", ".join(f"{show(value, 'B')} {name}" for name, value in card.weight_bytes_by_format.items())
    growing, full_cache = card.growing_kv_bytes_per_token, card.kv_bytes_per_token
    cache = f"{show(full_cache, 'B')} in {card.kv_format}"
    if growing != full_cache:
        cache += f", of which {show(growing, 'B')} grow with any context"
    state, equal = card.state_bytes_per_sequence, card.context_of_equal_reads
    reads = f"{show(float(f'{equal:.3g}'))} cached tokens, summed over the batch" if math.isfinite(equal) else "no context"
    pairs = [
        ("Family", card.family),
        ("Parameters", f"{show(p.total)}{_published(card, 'total')}"),
        ("Active per token", f"{show(p.active)} ({percent(p.active_share, 1)}){_published(card, 'active')}"),
        ("Multi-token prediction (extra)", f"{show(p.draft)}, {show(card.draft_weight_bytes, 'B')}" if p.draft else ""),
        ("Weights", f"{show(card.weight_bytes, 'B')}: {formats}"),
        ("KV cache per token", cache),
        ("State per sequence", show(state, "B") if state else ""),
        (f"Cache at {card.context:,} tokens", show(card.cache_bytes_at_context, "B")),
        ("KV reads = all weight reads at", reads),
        ("Maximum context", f"{card.max_context:,.0f} tokens" if math.isfinite(card.max_context) else "no limit stated"),
        ("Smallest system that fits", _smallest(card)),
        ("Source of published numbers", _basis(card)),
        ("Source of the config", _source(card.source)),
        *_disk_facts(card),
    ]
    parts = {"attention" if name == "projections" else name: value for name, value in card.parts.items()}
    active = "" if p.active_share > 0.995 else f", {show(p.active)} active per token"
    return Answer(
        sentence=f"{card.name.rpartition('/')[2]} has {show(p.total)} parameters{active}. Its weights take "
        f"{show(card.weight_bytes, 'B')}, its KV cache {show(full_cache, 'B')} per token.",
        conditions=card.name,
        body=[
            facts(pairs), share_table(parts, PART_COLOURS, width, "Part", head="Parameters", form="count", least=0.0),
        ],
        details=[
            _counting(card), *_disk_tables(card),
            listing("Layers: {kind} | Count: {count:,} | Parameters each: {parameters:count}", card.layers),
            listing(
                "Context: {context:,} | FLOP per decode token: {decode:FLOP} | FLOP per prompt token, mean: {prefill:FLOP}",
                card.flops_per_token,
            ),
            _cache_picture(card, width),
        ],
        warnings=card.notes, full_adds="layers, FLOP and cache by context", files="",
    )  # fmt: skip


def _smallest(card: ModelCard) -> str:
    system = card.smallest_system
    if not system:
        return "none in the catalogue"
    rent = Rent(kind=system.rent_kind, term=system.rent_term)
    rent_text = f"{show(system.rent, 'USD/s')}, {kind_in_words(rent)}" if math.isfinite(system.rent) else "no rent is known"
    together = "together " if system.chips > 1 else ""
    return f"{counted(system.chips, 'chip')} of {system.name}, {together}{rent_text}"


def _source(source: Mapping[str, str]) -> str:
    if not source:
        return "a local config"
    return f"{source.get('url', '')} ({source.get('grade', 'not graded')}, {source.get('date', 'no date')})"


def _published(card: ModelCard, kind: str) -> str:
    """Return the maker's number of total or active parameters, and how far the count is from it."""
    ratio = card.counted_over_published.get(kind)
    if ratio is None:
        return ""
    difference = (
        "" if abs(ratio - 1) < 0.0005 else f", the count is {percent(abs(ratio - 1), 1)} {'higher' if ratio > 1 else 'lower'}"
    )
    return f"; published {show(card.published[kind])}{difference}"


def _basis(card: ModelCard) -> str:
    """Return where the maker's numbers stand, and the grade of that source."""
    if not card.counted_over_published:
        return "no published numbers"
    grade = card.published.get("grade", "")
    grade_text = "recalled (from memory, not checked)" if grade == "recalled" else grade
    return ", ".join(str(text) for text in (card.published.get("basis", ""), grade_text) if text) or "not stated"


def _counting(card: ModelCard) -> Text | None:
    """Say why the count of active parameters differs from the maker's, if it does."""
    over = card.counted_over_published.get("active")
    if over is None or abs(over - 1) < 0.005:
        return None
    embedding = show(card.parts.get("embedding", 0.0))
    return footnote(f"Active parameters include the embedding ({embedding}); makers leave it out, and round.")


def _cache_picture(card: ModelCard, width: int) -> Grid:
    """Return the cache of a sequence by context, as bars on a logarithmic scale."""
    sizes = [row.bytes for row in card.cache_bytes if row.bytes > 0] or [1.0]
    low, high = math.floor(math.log10(min(sizes))), math.log10(max(sizes))
    rows = [
        (f"{row.context:,}", show(row.bytes, "B"), (math.log10(row.bytes) - low) / (high - low) if row.bytes else 0.0, "cyan")
        for row in card.cache_bytes
    ]
    return bar_table(("Context", "Cache of a sequence", "(logarithmic)"), rows, max(10, min(60, width - 40)), numbers=(0, 1))


def _disk_facts(card: ModelCard) -> list[tuple[str, str]]:
    """Return the bytes of the files, and how the model's weights compare; nothing for a model without files."""
    disk = card.checkpoint
    if disk is None:
        return []
    difference = round(card.weight_bytes + card.draft_weight_bytes) - disk.bytes
    compared = f"{difference:+,} B" + (f" ({percent_change(difference / disk.bytes, 3)})" if disk.bytes else "")
    size = f"{disk.bytes:,} B ({show(disk.bytes, 'B')}) in {counted(disk.files, disk.kind + ' file')}"
    return [
        ("Tensors on disk", f"{size}: {counted(disk.tensors, 'tensor')}, {show(disk.parameters)} parameters"),
        ("  by dtype", ", ".join(f"{show(dtype.bytes, 'B')} {dtype.name}" for dtype in disk.dtypes)),
        ("Weights here less those on disk", "" if disk.missing else compared if difference else "equal to the byte"),
    ]


def _disk_tables(card: ModelCard) -> list[RenderableType]:
    """Return the bytes on disk by part of the model, and the tensors that only one of both counts."""
    disk = card.checkpoint
    if disk is None:
        return []
    parts = listing(
        "On disk: {name} | Tensors: {tensors:,} | Parameters: {parameters:count} | Bytes: {bytes:,} | "
        "Scales, zeros: {scales:or -}",
        disk.groups, first_to_go=(2, 1),
    )  # fmt: skip
    if not disk.differences or disk.missing:
        return [parts]
    difference_grid = listing(
        "Not in the model's weights: {name} | Part: {group} | Number: {count:,} | Bytes: {bytes:+,}",
        disk.differences[:MAX_DIFFERENCES], first_to_go=(1,),
    )  # fmt: skip
    if further := disk.differences[MAX_DIFFERENCES:]:
        number, size = sum(difference.count for difference in further), sum(difference.bytes for difference in further)
        difference_grid.add_row(counted(len(further), "other kind"), "", f"{number:,}", f"{size:+,}")
    return [parts, Text(""), difference_grid]


# --- a new config, and images -------------------------------------------------------------------------------------------


def config_view(card: ConfigCard) -> Answer:
    """Return what a new config is read as.

    Args:
        card: The verdict, layers, and fields that are not read.

    Returns:
        The answer.
    """
    sentence = Text.assemble(
        (card.name, "bold"), f", read as {card.read_as}: ", (card.sure, f"bold {COLOURS[card.sure]}"), f"; {card.why}."
    )
    sizes = f"{show(card.parameters)} parameters ({card.parameters:,.0f}), {show(card.active)} active per token; "
    sizes += f"{show(card.weight_bytes, 'B')} of weights; {card.kv_bytes:,.0f} B of KV cache per token"
    sizes += f" and {show(card.state_bytes, 'B')} of state per sequence" if card.state_bytes else ""
    sizes += f"; {show(card.draft)} more parameters of multi-token prediction" if card.draft else ""
    warnings = [f"its fields also fit {', '.join(card.alternatives)}"] if card.alternatives else []
    if card.sure == GUESS:
        warnings.append(f'to use it, set "model_type": "{card.read_as}" in a copy; transformers:FILE reads the code itself')
    layers = listing(
        "Layers: {name} | Count: {count:,} | Description: {description} | Parameters each: {parameters:count} | "
        "Active: {active:count} | Cache, B/token: {kv_bytes:,.0f}",
        card.layers, first_to_go=(4,), name=lambda group: group.layers or "-",
    )  # fmt: skip
    for name, size in card.stem.items():
        if size:
            layers.add_row("-", "1", name, show(size), "-" if name == "embed_tokens" else show(size), "-")
    return Answer(sentence=sentence, conditions=sizes + ".", body=[*_ignored(card), layers], warnings=[*warnings, *card.notes])


def _ignored(card: ConfigCard) -> list[RenderableType | None]:
    """Return the fields that are not read, those that may be architecture first."""
    doubtful = []
    for field in card.doubtful:
        near = f" (near {field.near}, which is expected and missing)" if field.near else ""
        value = json.dumps(field.value)
        doubtful.append(f"{field.name} = {value if len(value) <= LONGEST else value[: LONGEST - 1] + '…'}{near}")
    harmless = [field.name for field in card.ignored if not field.doubtful]
    counts = f"{card.fields} fields, {card.fields - len(card.ignored)} of them read or empty."
    if harmless:
        counts += f" Not read, without effect on the counts: {', '.join(harmless)}."
    return [section("Fields that are not read and may be architecture", doubtful), footnote(counts)]


def image_view(cost: ImageCost) -> Answer:
    """Return the cost of the images and recordings of a prompt.

    Args:
        cost: Tokens and FLOP of each.

    Returns:
        The answer.
    """
    grid = listing(
        "Size: {size} | Number: {count:,} | Sequences: {sequences:,} | Rows: {rows:,} | Prompt tokens: {tokens:,} | "
        "Tower FLOP: {tower_flop:FLOP}",
        cost.media, first_to_go=(2,),
    )  # fmt: skip
    return Answer(
        sentence=f"The images and recordings become {cost.tokens:,} prompt tokens of {cost.model.rpartition('/')[2]}. Its "
        f"towers take {show(cost.tower_flop, 'FLOP')}, {percent(cost.tower_share, 1)} of all FLOP.",
        conditions=f"Language model: {show(cost.language_flop, 'FLOP')} for these tokens. Towers: "
        f"{show(cost.tower_parameters)} parameters.",
        body=[grid, footnote("Of one of each size. Rows: patches of an image, or frames of sound, in the tower.")],
        warnings=cost.notes,
    )


# --- systems ------------------------------------------------------------------------------------------------------------


def systems_view(systems: SystemTable, *, vendors: Mapping[str, str], full: bool) -> Answer:
    """Return the list of systems: by maker of the chips, or a row for each.

    Args:
        systems: The systems.
        vendors: Maker of the chips by name of the system.
        full: Whether to show a row for each.

    Returns:
        The answer.
    """
    makers: dict[str, list[SystemRow]] = {}
    for row in systems.systems:
        makers.setdefault(vendors.get(row.name) or "others", []).append(row)
    kinds = "--rent owned, contract or ondemand shows rents of one kind."
    meaning = f"Chips of a scale-up domain. Per chip: dense TFLOP/s, memory, rent. {kinds}"
    short = f"The newest known contract or on-demand rent; {kinds} No number: no rent is known."
    names = _by_maker("Systems", "Names (USD per chip-hour)", makers, _priced_names)
    return Answer(
        sentence=f"{counted(len(systems.systems), 'system')} of {counted(len(makers), 'maker')}. `steptime systems NAME` shows "
        "one: rates, links, rent and sources.",
        body=[_system_rows(systems.systems), footnote(meaning)] if full else [names, footnote(short)],
        full_adds="rates, memory and rent of each",
    )


def _priced_names(rows: Iterable[SystemRow]) -> str:
    return ", ".join(row.name + (f" (${row.rent * HOUR:.2f})" if math.isfinite(row.rent) else "") for row in rows)


def _system_rows(rows: Sequence[SystemRow]) -> Grid:
    def digits(value: Number) -> str:
        return f"{float(value):,.0f}" if value >= 100 else f"{float(value):.3g}"

    heads = ("System", "Chips", "BF16", "FP8", "FP4", "HBM GB", "HBM TB/s", "USD/h", "Kind of rent")
    grid = table(*heads, numbers=range(1, 8), first_to_go=(2, 4, 3, 6, 5, 1))
    for row in rows:
        peaks = (write(row.peak.get(kind, math.nan) / 1e12, ",.0f") for kind in ("bf16", "fp8", "fp4"))
        memory = digits(row.hbm_capacity / 1e9), digits(row.hbm_bandwidth / 1e12)
        rent = write(row.rent * HOUR, ".2f"), row.rent_kind or "-"
        grid.add_row(row.name, f"{row.scale_up_size:,.0f}", *peaks, *memory, *rent)
    return grid


def system_view(card: SystemCard) -> Answer:
    """Return one system.

    Args:
        card: Its figures.

    Returns:
        The answer.
    """
    vendor_year = ", ".join(str(part) for part in (card.vendor, card.year) if part)
    hbm, links, rent = card.memory[0], card.scale_up_links, card.rent_range
    total_rent = f", {show(card.chips * rent.typical, 'USD/s')}" if has_rent(rent) else ""
    slower = {period.launches: f" (fixed times x {period.launches:.3g})" for period in card.software if period.launches != 1}
    days = "; ".join(
        f"{period.share:.2g}{slower.get(period.launches, '')} from {period.first} to {period.last}" for period in card.software
    )
    other_rents = [other_rent for other_rent in card.rents if other_rent != rent]
    pairs = [
        ("Chip", f"{card.chip_title or card.chip}{f' ({vendor_year})' if vendor_year else ''}"),
        ("R: multiplies per weight read", _balance(card)),
        (
            f"{hbm.name.upper()} as the driver counts it",
            ""
            if math.isclose(card.driver_memory, hbm.capacity, rel_tol=1e-3)
            else f"{show(card.driver_memory, 'B')} per chip, used in plans; the label says {show(hbm.capacity, 'B')}",
        ),
        (f"All {counted(card.chips, 'chip')}", f"{show(card.scale_up_hbm, 'B')} of {hbm.name.upper()}{total_rent}"),
        (
            "Scale-up/scale-out bandwidth",
            f"{card.up_over_out:.3g}x" if math.isfinite(card.up_over_out) else "no network outside the box",
        ),
        ("Rent", _rent(rent)),
        *((f"  --rent {other_rent.kind}", _rent(other_rent)) for other_rent in other_rents),
        ("Power", power_in_words(card.power) if math.isfinite(card.power.watts) else "not known"),
        ("Speed relative to the engine's usual", days),
        ("Rack", _rack(card)),
        ("Nearest physical limit", _nearest(card) if card.physical_limits["nearest"] is not None else ""),
    ]
    memory = listing(
        "Memory per chip: {name} | Capacity: {capacity:B} | Bandwidth: {bandwidth:B/s} | Time to read all: {drain_seconds:s}",
        card.memory, first_to_go=(3,),
    )  # fmt: skip
    network = listing(
        "Network: {name} | Kind: {kind} | Chips: {chips} | Bandwidth, one way: {bandwidth:B/s} | Latency: {latency:s} | "
        "Topology: {topology}",
        card.domains, numbers=(2,), first_to_go=(1, 5, 4), chips=lambda domain: show(domain.size),
    )  # fmt: skip
    figures = {path: card.figures[path] for path in card.settable if card.figures.get(path)}
    rack = {path: figure for path, figure in card.figures.items() if path.startswith("rack.")}
    rows = [
        *((path, figure.text, figure.grade, figure.date, figure.url) for path, figure in figures.items()),
        *(
            (
                f"rent, {listed_rent.kind}",
                show(listed_rent.typical, "USD/s"),
                listed_rent.grade,
                listed_rent.date,
                listed_rent.url,
            )
            for listed_rent in (rent, *other_rents)
            if has_rent(listed_rent)
        ),
        *((path, figure.text, figure.grade, figure.date, figure.url) for path, figure in rack.items()),
    ]
    chip_rent = f", rent {_usd_per_hour(rent.typical)} USD/h" if has_rent(rent) else ""
    return Answer(
        sentence=f"{card.title or card.name}. Per chip: {show(hbm.capacity, 'B')} of {hbm.name.upper()} at "
        f"{show(hbm.bandwidth, 'B/s')}{chip_rent}.",
        body=[memory, network, facts(pairs)],
        details=[facts([("Scale-up links", f"{links.count:,.0f} ({links.basis})")]), sourced("Figure (--set)", rows)],
        full_adds="every figure with its source", files="",
    )  # fmt: skip


def _balance(card: SystemCard) -> str:
    """Return the balance by number format; formats with the same balance share one number."""
    formats: dict[str, list[str]] = {}
    for kind, value in card.balance.items():
        formats.setdefault(f"{value:,.0f}", []).append(kind)
    return "; ".join(f"{value} in {', '.join(kinds)}" for value, kinds in formats.items())


def _rent(rent: Rent) -> str:
    """Return the rent of a chip with its kind, date and grade, the range of its kind, and its note."""
    if not has_rent(rent):
        return rent.note
    low, typical, high = (_usd_per_hour(value) for value in (rent.low, rent.typical, rent.high))
    span = f"; past twelve months {low} to {high}" if rent.low != rent.high else ""
    note = f"; {rent.note}" if rent.note and rent.kind != "given" else ""
    return f"{typical} USD per chip-hour, {origin_in_words(rent)}{span}{note}"


def _usd_per_hour(rent: Number) -> str:
    usd_per_hour = float(rent) * 3600
    return f"{usd_per_hour:.2f}" if usd_per_hour < 10 else f"{usd_per_hour:.3g}"


def _amount(name: str, value: Number) -> str:
    return show(value, RACK_UNITS[name]) if name in RACK_UNITS else f"{value:,.0f}"


def _rack(card: SystemCard) -> str:
    rack = card.rack
    keys = {name: RACK_KEYS.get(name, name) for name in ("chips", "power", "weight", "cables")}
    limits = [f"{_amount(name, rack[key])} {name}" for name, key in keys.items() if key in rack]
    return ", ".join(limits)


def _nearest(card: SystemCard) -> str:
    """Return how much of each physical limit is used, the nearest first, and which limits are not published."""
    limits = card.physical_limits
    used = limits["used"]
    open_ended = [name for name in RACK_LIMITS if used.get(name, {}).get("share") is None]
    listed = " or ".join(", ".join(open_ended).rsplit(", ", 1))
    ends = f"no limit of {listed} is known" if open_ended else ""
    if limits["nearest"] is None:
        return f"not known: {ends}"
    shares = sorted((name for name in used if used[name]["share"] is not None), key=lambda name: -used[name]["share"])
    usages = [
        f"{name}, {_amount(name, used[name]['value'])} of {_amount(name, used[name]['limit'])} ({percent(used[name]['share'])})"
        for name in shares
    ]
    return "; ".join([*usages, ends] if ends else usages)


# --- engines ------------------------------------------------------------------------------------------------------------


def engines_view(engines: EngineTable, *, stacks: Sequence[str], catalog: str | None) -> Answer:
    """Return the list of engines and training stacks.

    Args:
        engines: The engines.
        stacks: Names of training stacks.
        catalog: Folder that is searched before the packaged catalogue.

    Returns:
        The answer.
    """
    return Answer(
        sentence=f"{counted(len(engines.engines), 'serving engine')}; without --engine, vllm on NVIDIA chips, llama.cpp on "
        "Apple's, and typical on others. `steptime engines NAME` shows the constants of one.",
        body=[listing("Engine: {name} | Title: {title}", engines.engines), stacks_view(stacks, catalog)],
    )


def _constant(value: float, unit: str) -> str:
    """Write a constant of an engine with its unit, if it has one.

    >>> _constant(3.24e-6, "s per kernel"), _constant(4.5e12, "weights/s"), _constant(0.828, "share")
    ('3.24 µs per kernel', '4.50 T weights/s', '0.828')
    """
    base, _, per = unit.partition(" per ")
    if base in ("s", "B"):
        return show(value, base) + (f" per {per}" if per else "")
    return f"{show(value)} {unit}" if unit.endswith("/s") else f"{value:g}"


def engine_view(card: EngineCard, *, full: bool) -> Answer:
    """Return one engine.

    Args:
        card: Its constants.
        full: Whether to show the meaning of each constant.

    Returns:
        The answer.
    """
    fit = card.fit
    deviations, intervals = fit.get("deviation", {}), fit.get("interval")
    rows = []
    # Constants that were fitted come first: the others are set to times of kernels that are measured separately.
    for name, value in sorted(card.constants.items(), key=lambda item: item[0] not in deviations):
        fitted = percent(deviations[name], 1) if name in deviations else ""
        meanings = [DESCRIPTIONS[name]["line"]] if full else []
        rows.append(
            (name.replace("_", " "), _constant(value, DESCRIPTIONS[name]["unit"]), *([fitted] if deviations else []), *meanings)
        )
    heads = ["Constant", "Value", *(["Fitted to within"] if deviations else []), *(["Meaning"] if full else [])]
    grid = table(*heads, rows=rows, numbers=(1, 2) if deviations else (1,))
    meaning = "Fitted to within: one standard deviation; other constants are measured on kernels." if deviations else ""
    makers = f" on chips of {', '.join(fit['vendors'])}" if fit.get("vendors") else ""
    fitted_to, ranges = "", []
    if intervals:
        fitted_to = f", fitted to {fit['runs']:,} measured runs{makers}"
        for quantity, title in (("tpot", "Time per token, step"), ("ttft", "Time to first token")):
            interval = intervals.get(quantity, {})
            cells = [f"{interval[r][0]:.2f} to {interval[r][1]:.2f}" if r in interval else "-" for r in ("decode", "mixed")]
            if cells != ["-", "-"]:
                ranges.append((title, *cells))
    ranges_grid = table("90 % range of measured / predicted", "Decode", "With prefill", rows=ranges, numbers=(1, 2))
    body = [ranges_grid, footnote("Each run was left out of the fit that predicts it.")] if ranges else []
    return Answer(
        sentence=f"{card.name}: {card.title}{fitted_to}.",
        body=[*body, grid, footnote(meaning)], full_adds="all constants and their meaning", files="",
    )  # fmt: skip
