"""Writes docs/models.md from the catalogue; `--check` says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from steptime import catalog
from steptime.architectures.hf import load_model
from steptime.errors import InputError
from steptime.model import active_parameters, kv_bytes_per_token, total_parameters

PAGE = Path(__file__).parent / "models.md"


def page() -> str:
    """Return the page: every model with its counts and where its config was read."""
    lines = [
        "# Models",
        "",
        "Counted from each `config.json`; KV bytes per token of a full cache in the model's own KV format. Written by `docs/generate.py`.",
        "",
        "| model | total | active | KV B/token | stated total | source |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, path in catalog.files("models").items():
        try:
            model = load_model(str(path))
        except InputError as problem:
            lines.append(f"| {name} | - | - | - | - | {problem} |")
            continue
        stated = model.published.get("total")
        lines.append(
            f"| {name} | {total_parameters(model):,.0f} | {active_parameters(model):,.0f} | {kv_bytes_per_token(model):,.0f} | "
            f"{f'{stated:,.0f}' if stated else '-'} | [{model.source.get('grade')}]({model.source.get('url')}), {model.source.get('date')} |"
        )
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
