"""Terminal view of the checkpoint files of a model: exact bytes by part and dtype, compared with the model's.

Terminal views of `steptime models --new` and `--image`: layers of a new config, and the cost of images and sound.

Terminal views of `steptime models`, `systems` and `engines`: lists of the catalogue, and cards of its entries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from steptime.cli.views.widgets import Answer, Grid, bar, facts, footnote, section, sourced, table
from steptime.describe.model_summary import ComparisonRow, ConfigCard, ModelCard, ModelRow
from steptime.describe.system_summary import RACK_KEYS, EngineCard, SystemCard, SystemRow
from steptime.hardware.energy import power_in_words
from steptime.hardware.rental_prices import has_rent, kind_in_words, origin_in_words
from steptime.hardware.system import Rent
from steptime.models.checkpoint import CheckpointSummary
from steptime.models.config_coverage import EXACT, GUESS, LIKELY
from steptime.number_checks import Number
from steptime.questions.image_cost import ImageCost
from steptime.units import counted, show

MAX_DIFFERENCES = 8  # lines of differences that are shown


def disk_facts(card: ModelCard) -> list[tuple[str, str]]:
    """Return the bytes of the files, and how the model's weights compare.

    Args:
        card: figures of the model.

    Returns:
        Names with values; nothing for a model without files.
    """
    checkpoint = card.checkpoint
    if checkpoint is None:
        return []
    size = f"{checkpoint.bytes:,} B ({show(checkpoint.bytes, 'B')}) in {counted(checkpoint.files, checkpoint.kind + ' file')}"
    lines = [("Tensors on disk", f"{size}: {counted(checkpoint.tensors, 'tensor')}, {show(checkpoint.parameters)} parameters")]
    lines.append(("  by dtype", ", ".join(f"{show(dtype.bytes, 'B')} {dtype.name}" for dtype in checkpoint.dtypes)))
    if not checkpoint.missing:
        lines.append(("Weights here less those on disk", _compared(card, checkpoint)))
    return lines


def _compared(card: ModelCard, checkpoint: CheckpointSummary) -> str:
    """Say how far the weights of the model, with those of its draft layers, are from the tensors on disk."""
    difference = round(card.weight_bytes + card.draft_weight_bytes) - checkpoint.bytes
    if not difference:
        return "equal to the byte"
    return f"{difference:+,} B ({difference / checkpoint.bytes:+.3%})" if checkpoint.bytes else f"{difference:+,} B"


def disk_tables(card: ModelCard) -> list[RenderableType]:
    """Return the bytes on disk by part of the model, and the tensors that only one of both counts.

    Args:
        card: figures of the model.

    Returns:
        Tables; nothing for a model without files.
    """
    checkpoint = card.checkpoint
    if checkpoint is None:
        return []
    parts = table("On disk", "Tensors", "Parameters", "Bytes", "Scales, zeros", numbers=(1, 2, 3, 4), first_to_go=(2, 1))
    for part in checkpoint.groups:
        scales = f"{part.scales:,}" if part.scales else "-"
        parts.add_row(part.name, f"{part.tensors:,}", show(part.parameters), f"{part.bytes:,}", scales)
    if not checkpoint.differences:
        return [parts]
    difference_grid = table("Not in the model's weights", "Part", "Number", "Bytes", numbers=(2, 3), first_to_go=(1,))
    for difference in checkpoint.differences[:MAX_DIFFERENCES]:
        difference_grid.add_row(difference.name, difference.group, f"{difference.count:,}", f"{difference.bytes:+,}")
    if further_differences := checkpoint.differences[MAX_DIFFERENCES:]:
        number, size = (
            sum(difference.count for difference in further_differences),
            sum(difference.bytes for difference in further_differences),
        )
        difference_grid.add_row(f"{counted(len(further_differences), 'other kind')}", "", f"{number:,}", f"{size:+,}")
    return [parts, Text(""), difference_grid] if not checkpoint.missing else [parts]


COLOURS = {EXACT: "green", LIKELY: "yellow", GUESS: "red"}
LONGEST = 60  # letters of a value


def config_view(card: ConfigCard, *, full: bool = False) -> RenderableType:
    """Return what a new config is read as.

    Args:
        card: the verdict, layers, and fields that are not read.
        full: whether to show all of it.

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
    return Answer(
        sentence=sentence, conditions=sizes + ".", body=[*_ignored(card), _config_layers(card)],
        warnings=[*warnings, *card.notes], full=full,
    )  # fmt: skip


def _config_layers(card: ConfigCard) -> RenderableType:
    grid = table(
        "Layers", "Count", "Description", "Parameters each", "Active", "Cache, B/token", numbers=(1, 3, 4, 5),
        first_to_go=(4,),
    )  # fmt: skip
    for group in card.layers:
        grid.add_row(
            group.layers or "-", f"{group.count}", group.description, show(group.parameters), show(group.active),
            f"{group.kv_bytes:,.0f}",
        )  # fmt: skip
    for name, size in card.stem.items():
        if size:
            grid.add_row("-", "1", name, show(size), "-" if name == "embed_tokens" else show(size), "-")
    return grid


def _ignored(card: ConfigCard) -> list[RenderableType]:
    """Return the fields that are not read, those that may be architecture first."""
    doubtful = []
    for field in card.doubtful:
        near = f" (near {field.near}, which is expected and missing)" if field.near else ""
        doubtful.append(f"{field.name} = {_short(field.value)}{near}")
    parts: list[RenderableType] = [section("Fields that are not read and may be architecture", doubtful)] if doubtful else []
    harmless = [field.name for field in card.ignored if not field.doubtful]
    counts = f"{card.fields} fields, {card.fields - len(card.ignored)} of them read or empty."
    if harmless:
        counts += f" Not read, without effect on the counts: {', '.join(harmless)}."
    return [*parts, footnote(counts)]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def image_view(cost: ImageCost) -> RenderableType:
    """Return the cost of the images and recordings of a prompt.

    Args:
        cost: tokens and FLOP of each.

    Returns:
        The answer.
    """
    grid = table("Size", "Number", "Sequences", "Rows", "Prompt tokens", "Tower FLOP", numbers=range(1, 6), first_to_go=(2,))
    for row in cost.media:
        flops = show(row.tower_flop, "FLOP")
        grid.add_row(row.size, f"{row.count:,}", f"{row.sequences:,}", f"{row.rows:,}", f"{row.tokens:,}", flops)
    return Answer(
        sentence=f"The images and recordings become {cost.tokens:,} prompt tokens of {cost.model.rpartition('/')[2]}. Its "
        f"towers take {show(cost.tower_flop, 'FLOP')}, {cost.tower_share:.1%} of all FLOP.",
        conditions=f"Language model: {show(cost.language_flop, 'FLOP')} for these tokens. Towers: "
        f"{show(cost.tower_parameters)} parameters.",
        body=[grid, footnote("Of one of each size. Rows: patches of an image, or frames of sound, in the tower.")],
        warnings=cost.notes,
    )


RACK_LIMITS = ("power", "weight", "cables")
MAX_LISTED = 30  # models that are listed one by one without --full
MAX_NAMES_WIDTH = 44  # columns of the names of a maker's models
WIDE = 110  # columns from which names keep their makers
PART_COLOURS = {
    "projections": "blue", "experts": "green", "shared experts": "bright_green", "feed-forward": "cyan", "embedding": "magenta",
    "head": "bright_magenta", "norms": "white", "vision": "yellow",
}  # fmt: skip


def models_view(rows: Sequence[ModelRow], *, full: bool = False) -> RenderableType:
    """Return the list of models: by maker where they are many, else a row for each.

    Args:
        rows: the models.
        full: whether to show a row for each.

    Returns:
        The answer.
    """
    makers: dict[str, list[ModelRow]] = {}
    for row in rows:
        makers.setdefault(row.name.partition("/")[0] if "/" in row.name else "others", []).append(row)
    # hundreds of rows answer no question: a list that long shows makers instead
    listed = full or len(rows) <= MAX_LISTED
    return Answer(
        sentence=f"{counted(len(rows), 'model')} of {counted(len(makers), 'maker')}. `steptime models NAME` shows one, "
        "`steptime models --like TEXT` the names that contain a text.",
        body=[_model_rows(rows) if listed else _maker_rows(makers)],
        full_adds="" if listed else "a row for each model",
        full=full,
    )


def _model_rows(rows: Sequence[ModelRow]) -> Grid:
    grid = table("Model", "Parameters", "Active", "KV per token", "Weights", numbers=(1, 2, 3, 4), first_to_go=(3, 2))
    for row in rows:
        if row.problem:
            grid.add_row(row.name, Text("cannot be read: " + row.problem, style="red"))
            continue
        grid.add_row(
            row.name, show(row.total_parameters), show(row.active_parameters), show(row.kv_bytes_per_token, "B"),
            show(row.weight_bytes, "B"),
        )  # fmt: skip
    return grid


def _maker_rows(makers: Mapping[str, Sequence[ModelRow]]) -> Grid:
    """Return makers by their number of models, each with names of its largest."""
    grid = table("Maker", "Models", "Examples, the largest first", numbers=(1,))
    for maker, rows in sorted(makers.items(), key=lambda item: (-len(item[1]), item[0])):
        sizes = sorted(rows, key=lambda row: -row.total_parameters if math.isfinite(row.total_parameters) else 0.0)
        names = ""
        for row in sizes:
            name = row.name.rpartition("/")[2]
            if len(names) + len(name) <= MAX_NAMES_WIDTH:
                names += f"{', ' if names else ''}{name}"
        grid.add_row(maker, f"{len(rows):,}", names or sizes[0].name.rpartition("/")[2])
    return grid


def comparison_view(rows: Sequence[ComparisonRow], *, width: int, full: bool = False) -> RenderableType:
    """Return models next to each other: their parameters, and the cost of a sequence.

    Args:
        rows: the models.
        width: columns of the terminal.
        full: whether to show bars, and the context of equal reads.

    Returns:
        The answer.
    """
    context = rows[0].context
    names = [row.name for row in rows] if full and width >= WIDE else _short_names(rows)
    grid = table(
        "Model", "Parameters", "Active", "Weights", "KV per token", f"Cache at {context:,}", "FLOP per token", "State",
        numbers=range(1, 8), first_to_go=(7, 6, 3),
    )  # fmt: skip
    picture = table("Model", "KV = weights", f"Cache at {context:,}", "", numbers=(1, 2), first_to_go=(3,))
    largest = max(row.cache_bytes_at_context for row in rows) or 1.0
    cells = max(10, min(60, width - 45 - max(map(len, names))))
    for name, row in zip(names, rows, strict=True):
        equal, size = row.context_of_equal_reads, show(row.cache_bytes_at_context, "B")
        grid.add_row(
            name, show(row.total_parameters), f"{show(row.active_parameters)} ({row.active_share:.0%})",
            show(row.weight_bytes, "B"),
            show(row.kv_bytes_per_token, "B"), size, show(row.decode_flops_per_token, "FLOP"),
            show(row.state_bytes_per_sequence, "B") if row.state_bytes_per_sequence else "-",
        )  # fmt: skip
        equal_text = f"{show(equal)} tokens" if math.isfinite(equal) else "never"
        picture.add_row(name, equal_text, size, bar(row.cache_bytes_at_context / largest, cells, "cyan"))
    low, high = (pick(rows, key=lambda row: row.cache_bytes_at_context) for pick in (min, max))
    ratio = high.cache_bytes_at_context / low.cache_bytes_at_context if low.cache_bytes_at_context else math.inf
    # the KV cache differs more between models than their weights do
    sentence = f"The cache of one sequence at {context:,} tokens is smallest for {low.name.rpartition('/')[2]}: "
    sentence += f"{show(low.cache_bytes_at_context, 'B')}."
    if math.isfinite(ratio) and ratio > 1:
        sentence += f" It is {ratio:.3g}x as large for {high.name.rpartition('/')[2]}."
    return Answer(
        sentence=sentence,
        body=[
            grid,
            footnote(f"KV per token: while no window is full. FLOP: of one decode token at {context:,} tokens (--context)."),
        ],
        details=[picture, footnote("KV = weights: context at which a token reads as many bytes of cache as of weights.")],
        full_adds="context where cache reads equal weight reads, bars",
        full=full,
    )


def _short_names(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return names without their makers where that leaves them distinct."""
    short = [row.name.rpartition("/")[2] for row in rows]
    return [name if short.count(name) == 1 else row.name for name, row in zip(short, rows, strict=True)]


def model_view(card: ModelCard, *, width: int, full: bool = False) -> RenderableType:
    """Return one model.

    Args:
        card: its figures.
        width: columns of the terminal.
        full: whether to show layers, files on disk, and FLOP and cache by context.

    Returns:
        The answer.
    """
    p = card.parameters
    formats = ", ".join(f"{show(value, 'B')} {name}" for name, value in card.weight_bytes_by_format.items())
    growing, full_cache = card.growing_kv_bytes_per_token, card.kv_bytes_per_token
    cache = f"{show(full_cache, 'B')} in {card.kv_format}"
    if growing != full_cache:
        cache += f", of which {show(growing, 'B')} grow with any context"
    pairs = [
        ("Family", card.family),
        ("Parameters", f"{show(p.total)}{_published(card, 'total')}"),
        ("Active per token", f"{show(p.active)} ({p.active_share:.1%}){_published(card, 'active')}"),
        ("Weights", f"{show(card.weight_bytes, 'B')}: {formats}"),
        ("KV cache per token", cache),
        (f"Cache at {card.context:,} tokens", show(card.cache_bytes_at_context, "B")),
        ("KV reads = all weight reads at", _cached(card.context_of_equal_reads)),
        ("Maximum context", _tokens(card.max_context, "no limit stated")),
        ("Smallest system that fits", _smallest(card)),
        ("Source of published numbers", _basis(card)),
        ("Source of the config", _source(card.source)),
    ]
    if card.state_bytes_per_sequence:
        pairs.insert(5, ("State per sequence", show(card.state_bytes_per_sequence, "B")))
    if p.draft:
        pairs.insert(3, ("Multi-token prediction (extra)", f"{show(p.draft)}, {show(card.draft_weight_bytes, 'B')}"))
    active = "" if p.active_share > 0.995 else f", {show(p.active)} active per token"
    return Answer(
        sentence=f"{card.name.rpartition('/')[2]} has {show(p.total)} parameters{active}. Its weights take "
        f"{show(card.weight_bytes, 'B')}, its KV cache {show(full_cache, 'B')} per token.",
        conditions=card.name, body=[facts([*pairs, *disk_facts(card)]), _parts(card, width)],
        details=[*_counting(card), *disk_tables(card), _layers(card), _flops(card), _cache_picture(card, width)],
        warnings=card.notes, full_adds="layers, FLOP and cache by context", files="", full=full,
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
    difference = "" if abs(ratio - 1) < 0.0005 else f", the count is {abs(ratio - 1):.1%} {'higher' if ratio > 1 else 'lower'}"
    return f"; published {show(card.published[kind])}{difference}"


def _basis(card: ModelCard) -> str:
    """Return where the maker's numbers stand, and the grade of that source."""
    if not card.counted_over_published:
        return "no published numbers"
    grade = card.published.get("grade", "")
    grade_text = "recalled (from memory, not checked)" if grade == "recalled" else grade
    return ", ".join(str(text) for text in (card.published.get("basis", ""), grade_text) if text) or "not stated"


def _cached(value: float) -> str:
    return f"{show(float(f'{value:.3g}'))} cached tokens, summed over the batch" if math.isfinite(value) else "no context"


def _counting(card: ModelCard) -> list[Text]:
    """Say why the count of active parameters differs from the maker's, if it does."""
    over = card.counted_over_published.get("active")
    if over is None or abs(over - 1) < 0.005:
        return []
    embedding = show(card.parts.get("embedding", 0.0))
    words = f"Active parameters include the embedding ({embedding}); makers leave it out, and round."
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
            names.get(name, name), show(value), f"{value / total:.1%}",
            bar(value / total, cells, PART_COLOURS.get(name, "white")),
        )  # fmt: skip
    return grid


def _flops(card: ModelCard) -> Grid:
    grid = table("Context", "FLOP per decode token", "FLOP per prompt token, mean", numbers=(0, 1, 2))
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


def systems_view(rows: Sequence[SystemRow], vendors: Mapping[str, str], *, full: bool = False) -> RenderableType:
    """Return the list of systems: by maker of the chips, or a row for each.

    Args:
        rows: the systems.
        vendors: maker of the chips by name of the system.
        full: whether to show a row for each.

    Returns:
        The answer.
    """
    makers: dict[str, list[str]] = {}
    for row in rows:
        makers.setdefault(vendors.get(row.name) or "others", []).append(row.name)
    grid = table("Maker", "Systems", "Names (USD per chip-hour)", numbers=(1,))
    rents = {row.name: f" (${row.rent * 3600:.2f})" if math.isfinite(row.rent) else "" for row in rows}
    for maker, names in sorted(makers.items(), key=lambda item: (-len(item[1]), item[0])):
        grid.add_row(maker, f"{len(names)}", ", ".join(f"{name}{rents[name]}" for name in names))
    kinds = "--rent owned, contract or ondemand shows rents of one kind."
    meaning = f"Chips of a scale-up domain. Per chip: dense TFLOP/s, memory, rent. {kinds}"
    short = f"The newest known contract or on-demand rent; {kinds} No number: no rent is known."
    return Answer(
        sentence=f"{counted(len(rows), 'system')} of {counted(len(makers), 'maker')}. `steptime systems NAME` shows one: "
        "rates, links, rent and sources.",
        body=[_system_rows(rows), footnote(meaning)] if full else [grid, footnote(short)],
        full_adds="rates, memory and rent of each",
        full=full,
    )


def _system_rows(rows: Sequence[SystemRow]) -> Grid:
    heads = ("System", "Chips", "BF16", "FP8", "FP4", "HBM GB", "HBM TB/s", "USD/h", "Kind of rent")
    grid = table(*heads, numbers=range(1, 8), first_to_go=(2, 4, 3, 6, 5, 1))
    for row in rows:
        peak = row.peak
        grid.add_row(
            row.name, f"{row.scale_up_size:,.0f}",
            *(f"{peak[k] / 1e12:,.0f}" if k in peak else "-" for k in ("bf16", "fp8", "fp4")),
            *(f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in (row.hbm_capacity / 1e9, row.hbm_bandwidth / 1e12)),
            f"{row.rent * 3600:.2f}" if math.isfinite(row.rent) else "-", row.rent_kind or "-",
        )  # fmt: skip
    return grid


def system_view(card: SystemCard, *, full: bool = False) -> RenderableType:
    """Return one system.

    Args:
        card: its figures.
        full: whether to show every figure with its source.

    Returns:
        The answer.
    """
    vendor_year = ", ".join(str(part) for part in (card.vendor, card.year) if part)
    is_networked = math.isfinite(card.up_over_out)
    pairs = [
        ("Chip", f"{card.chip_title or card.chip} ({vendor_year})" if vendor_year else card.chip_title or card.chip),
        ("R: multiplies per weight read", _balance(card)),
        (f"All {counted(card.chips, 'chip')}", _deployment_totals(card)),
        ("Scale-up/scale-out bandwidth", f"{card.up_over_out:.3g}" if is_networked else "no network outside the box"),
        ("Rent", _rent(card.rent_range)),
        *(_other_rent(other_rent) for other_rent in card.rents if other_rent != card.rent_range),
        ("Power", power_in_words(card.power) if math.isfinite(card.power.watts) else "not known"),
    ]
    if card.software:
        days = "; ".join(f"{period.share:.2g} from {period.first} to {period.last}" for period in card.software)
        pairs.append(("Speed relative to the engine's usual", days))
    if _rack(card):
        pairs.append(("Rack", _rack(card)))
    if card.physical_limits["nearest"] is not None:
        pairs.append(("Nearest physical limit", _nearest(card)))
    links = card.scale_up_links
    link_facts = facts([("Scale-up links", f"{links.count:,.0f} ({links.basis})")])
    memory = table("Memory per chip", "Capacity", "Bandwidth", "Time to read all", numbers=(1, 2, 3), first_to_go=(3,))
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
    rows += [(f"rent, {rent.kind}", show(rent.typical, "USD/s"), rent.grade, rent.date, rent.url) for rent in _rents(card)]
    rack = ((path, figure) for path, figure in card.figures.items() if path.startswith("rack."))
    rows += [(path, figure.text, figure.grade, figure.date, figure.url) for path, figure in rack]
    hbm = card.memory[0]
    rent = f", rent {show(card.rent_range.typical, 'USD/s')}" if has_rent(card.rent_range) else ""
    return Answer(
        sentence=f"{card.title or card.name}. Per chip: {show(hbm.capacity, 'B')} of {hbm.name.upper()} at "
        f"{show(hbm.bandwidth, 'B/s')}{rent}.",
        body=[memory, network, facts(pairs)], details=[link_facts, sourced("Figure (--set)", rows)],
        full_adds="every figure with its source", files="", full=full,
    )  # fmt: skip


def _balance(card: SystemCard) -> str:
    """Return the balance by number format; formats with the same balance share one number."""
    formats: dict[str, list[str]] = {}
    for kind, value in card.balance.items():
        formats.setdefault(f"{value:,.0f}", []).append(kind)
    return "; ".join(f"{value} in {', '.join(kinds)}" for value, kinds in formats.items())


def _deployment_totals(card: SystemCard) -> str:
    """Return memory and rent of all chips of the usual deployment."""
    rent = card.rent_range
    amounts = [f"{show(card.scale_up_hbm, 'B')} of {card.memory[0].name.upper()}"]
    amounts += [f"{show(card.chips * rent.typical, 'USD/s')}"] if has_rent(rent) else []
    return ", ".join(amounts)


def _rents(card: SystemCard) -> list[Rent]:
    """Return the rent that plans use, and those of other kinds."""
    return [rent for rent in (card.rent_range, *(rent for rent in card.rents if rent != card.rent_range)) if has_rent(rent)]


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


def _other_rent(rent: Rent) -> tuple[str, str]:
    return f"  --rent {rent.kind}", _rent(rent)


RACK_UNITS = {"power": "W", "weight": "kg"}


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
        f"{name}, {_amount(name, used[name]['value'])} of {_amount(name, used[name]['limit'])} ({used[name]['share']:.0%})"
        for name in shares
    ]
    return "; ".join([*usages, ends] if ends else usages)


def engines_view(cards: Sequence[EngineCard], stacks: RenderableType, *, full: bool = False) -> RenderableType:
    """Return the list of engines and training stacks.

    Args:
        cards: the engines.
        stacks: view of the training stacks.
        full: whether to show all rows.

    Returns:
        The answer.
    """
    grid = table("Engine", "Title")
    for card in cards:
        grid.add_row(card.name, card.title)
    return Answer(
        sentence=f"{counted(len(cards), 'serving engine')}; without --engine, vllm on NVIDIA chips and typical on others. "
        "`steptime engines NAME` shows the constants of one.",
        body=[grid, stacks],
        full=full,
    )


def engine_view(card: EngineCard, *, full: bool = False) -> RenderableType:
    """Return one engine.

    Args:
        card: its constants.
        full: whether to show all of them.

    Returns:
        The answer.
    """
    fit = card.fit
    deviations = fit.get("deviation", {})
    grid = table("Constant", "Value", *(["Fitted to within"] if deviations else []), numbers=(1, 2))
    # constants that were fitted come first: the others are set to times of kernels that are measured separately
    for name, value in sorted(card.constants.items(), key=lambda item: item[0] not in deviations):
        unit = "s" if name.startswith("seconds") else "B" if name.endswith("bytes") else ""
        cells = [f"{deviations[name]:.1%}" if name in deviations else ""] if deviations else []
        grid.add_row(name.replace("_", " "), show(value, unit) if unit else f"{value:g}", *cells)
    makers = f" on chips of {', '.join(fit['vendors'])}" if fit.get("vendors") else ""
    fitted = f", fitted to {fit['runs']:,} measured runs{makers}" if fit.get("interval") else ""
    body: list[RenderableType] = []
    if fit.get("interval"):
        ranges = table("90 % range over the estimate", "Decode", "With prefill", numbers=(1, 2))
        for quantity, title in (("tpot", "Time per token, step"), ("ttft", "Time to first token")):
            interval = fit["interval"].get(quantity, {})
            cells = [f"{interval[r][0]:.2f} to {interval[r][1]:.2f}" if r in interval else "-" for r in ("decode", "mixed")]
            ranges.add_row(title, *cells)
        body = [ranges, footnote("Each run was left out of the fit in its turn.")]
    meaning = (
        [footnote("Fitted to within: one standard deviation; other constants are measured on kernels.")] if deviations else []
    )
    return Answer(
        sentence=f"{card.name}: {card.title}{fitted}.", body=[*body, grid, *meaning], full_adds="all constants", files="",
        full=full,
    )  # fmt: skip
