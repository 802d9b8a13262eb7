"""Writes docs/models.md from the catalogue, docs/oracle.json and tests/golden; `--check` says whether it is up to date."""

# ruff: noqa: E402, I001 - the tests' figures lie beside this folder, which is put on the path first
from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from steptime.catalog.files import files
from steptime.models.loading import load_model
from steptime.errors import InputError
from steptime.models.model import (
    Model,
    active_parameters,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
)
from tests.published import DIFFERENT, GOLDEN, KV, RATIOS, agrees, counted, ratios

PAGE = HERE / "models.md"
ORACLE = json.loads((HERE / "oracle.json").read_text(encoding="utf-8"))
FAR = 0.005  # deviation of a stated total that the page explains


def verdict(name: str, total: float) -> str:
    """Return in words what docs/oracle.json holds on a model; "not judged" where it has no line."""
    row = ORACLE["models"].get(name)
    if row is None:
        return "not judged"
    kind = row["verdict"]
    if kind == "equal":
        part = "" if row["total"] == total else "text part "
        return f"{part}equal to transformers {ORACLE['transformers']} ({row['reference']})"
    if kind == "same shape":
        return f"same shape as {row['as']}, which is equal to transformers"
    if kind == "published":
        return f"published, {row['deviation']:+.1%}"
    if kind == "nominal":
        return f"published total is nominal, {row['deviation']:+.1%}"
    return "no reference and no published total" if kind == "no reference" else kind


def line(name: str, model: Model) -> str:
    """Return one model's row of the table."""
    total, stated, source = total_parameters(model), model.published.get("total"), model.source
    cells = [
        name,
        f"{total:,.0f}",
        f"{active_parameters(model):,.0f}",
        f"{kv_bytes_per_token(model):,.0f}",
        f"{growing_kv_bytes_per_token(model):,.0f}",
        model.kv_format,
        f"{state_bytes(model):,.0f}" if state_bytes(model) else "-",
        f"{stated:,.0f} ({total / stated - 1:+.1%})" if stated else "-",
        f"[{source.get('grade')}]({source.get('url')}), {source.get('date')}",
        verdict(name, total),
    ]
    return "| " + " | ".join(cells) + " |"


def judged() -> str:
    """Return the sentence that counts the verdicts."""
    count = Counter(row["verdict"] for row in ORACLE["models"].values())
    held = count["published"] + count["nominal"]
    return (
        f"Of {sum(count.values())} models {count['equal']} equal the reference to the last parameter, total and active, as "
        f"transformers {ORACLE['transformers']} builds it on PyTorch's meta device from the same config; "
        f"{count['same shape']} have the shape of such a model; {held}, which transformers lacks, are held to the "
        f"maker's total; {count['no reference']} has neither."
    )


def differences(models: dict[str, Model]) -> list[str]:
    """Return the section on figures that a config contradicts."""
    recalled = [entry for entry in KV if entry["grade"] == "recalled"]
    wrong = [entry for entry in recalled if not agrees(entry)]
    lines = [
        "## Where recalled figures turned out wrong",
        "",
        f"`tests/golden/kv_bytes.toml` holds {len(KV)} published figures of caches. {len(recalled)} of them were first "
        f"written from memory: {len(wrong) or 'none'} proved wrong once the config was read.",
        "Other figures that the configs contradict:",
        "",
        "| model | figure | stated | counted | grade | source | why |",
        "|---|---|---:|---:|---|---|---|",
    ]
    for entry in KV:
        if not agrees(entry):
            why, what = DIFFERENT[entry["model"], entry["bytes"]], f"{entry['what']} KV bytes, {entry.get('format', 'bf16')}"
            lines.append(told(entry, what, f"{entry['bytes']:,}", f"{counted(entry):,.0f}", why))
    for entry in RATIOS:
        over, context = entry["over"].rpartition("/")[2], f"{entry['context']:,}"
        for what, stated, found in zip(("cache", "FLOPs"), (entry["cache"], entry["flops"]), ratios(entry), strict=True):
            if round(found, 2) != stated:
                why = "Stated without the formats of the two caches or of their arithmetic; counted alike in BF16."
                lines.append(told(entry, f"{what} over {over} at {context} tokens", f"{stated:.0%}", f"{found:.1%}", why))
    lines += [
        "",
        f'Stated totals that differ from the count by more than {FAR:.1%} and are not mere names of a size ("nominal"):',
        "",
        "| model | stated | counted | difference | basis | grade |",
        "|---|---:|---:|---:|---|---|",
    ]
    for name, model in models.items():
        stated, basis = model.published.get("total"), str(model.published.get("basis", ""))
        if stated and "nominal" not in basis and abs(total_parameters(model) / stated - 1) > FAR:
            total, grade = total_parameters(model), model.published.get("grade", "-")
            lines.append(f"| {name} | {stated:,.0f} | {total:,.0f} | {total / stated - 1:+.1%} | {basis or '-'} | {grade} |")
    return lines


def told(entry: dict[str, Any], what: str, stated: str, found: str, why: str) -> str:
    """Return one row of the table of differences."""
    source = GOLDEN["sources"][entry["from"]]
    link = f"[{source['text']}]({source['url']})"
    return f"| {entry['model']} | {what} | {stated} | {found} | {entry['grade']} | {link} | {why} |"


def page() -> str:
    """Return the page: every model with its counts, its source and its check."""
    models, unread = {}, []
    for name, path in files("models").items():
        try:
            models[name] = load_model(str(path))
        except InputError as problem:
            unread.append(f"- {name} cannot be read: {problem}")
    lines = [
        "# Models",
        "",
        "Counted from each `config.json`. KV bytes are those of one more token in the format that the config asks for:",
        "*full* while no window is full, the figure of published tables; *growing* once every window is. State is bytes of a",
        "sequence, whatever its length. Total and active parameters leave out multi-token-prediction layers.",
        "Written by `docs/generate.py`.",
        "",
        judged(),
        "",
        "| model | total | active | KV B/token, full | growing | format | state, B | stated total | source | oracle |",
        "|---|---:|---:|---:|---:|---|---:|---:|---|---|",
        *(line(name, model) for name, model in models.items()),
        *unread,
        "",
        *differences(models),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" in sys.argv:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            print("docs/models.md is out of date: run python docs/generate.py")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
