"""Command lines with odd options, run in process."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from steptime.cli.main import app_for
from steptime.errors import InputError
from tests.fuzz.damage import TEXTS

WRITES = (
    "--out",
    "--predictions",
    "--export",
    "--chrome",
    "--report",
    "--csv",
    "--plot",
)  # files, which are written to a folder of their own
LONG = ("--requests", "--concurrency", "--replicas", "--prefill-replicas", "--fast-replicas")  # run for as long as they say
USUAL: dict[str, tuple[str, ...]] = {
    "models": ("gpt2 hgx-h100",),
    "plan": ("llama-3.2-1b hgx-h100 --chips 2",),
    "step": ("llama-3.2-1b hgx-h100", "qwen3-30b-a3b hgx-h200 --tp 2 --ep 2"),
    "simulate": ("llama-3.2-1b hgx-h100 --rate 2 --requests 20 --input 100 --output 10",),
    "systems": ("hgx-h100",),
    "train": (
        "llama-3.2-1b hgx-h100 --chips 8 --seq 2048 --batch 64",
        "qwen3-30b-a3b hgx-h200 --chips 16 --seq 4096 --batch 64 --ep 8",
    ),
    "laws": ("epoch", "", "--moe 1B"),
    "budget": ("--match-quality 1B@20B", "--compute 1e22 --law epoch"),
    "rl": ("llama-3.2-1b hgx-h100 --chips 8 --rollouts 64",),
    "lecture": ("", "3"),
    "roofline": ("llama-3.2-1b hgx-h100",),
    "engines": ("vllm",),
    "calibrate": ("nowhere.csv --engine mine",),
    "validate": ("nowhere.csv",),
    "prices": ("openai/gpt-6-sol --read", "anthropic/claude-opus-4-6 --read --date 2026-03-01", "--list nowhere.toml"),
}
SHARES = {
    "step": 30,
    "train": 10,
    "laws": 5,
    "budget": 10,
    "rl": 5,
    "lecture": 3,
    "roofline": 5,
    "systems": 10,
    "engines": 10,
    "models": 5,
    "plan": 3,
    "simulate": 2,
    "validate": 3,
    "calibrate": 2,
    "prices": 10,
}


@cache
def options() -> dict[str, list[tuple[str, bool]]]:
    """Return the options of every command, and whether each takes a value."""
    found: dict[str, Any] = typer.main.get_command(app_for()).commands  # type: ignore[attr-defined]
    return {
        name: [(of.opts[0], not getattr(of, "is_flag", False)) for of in one.params if of.param_type_name == "option"]
        for name, one in found.items()
    }


def command(rng: random.Random, folder: Path) -> Any:
    """Run a command with one to three odd options; what it writes goes to a folder of its own."""
    names = [name for name in SHARES if name in options()]
    name = rng.choices(names, [SHARES[one] for one in names])[0]
    words = [name, *(rng.choice(TEXTS) if rng.random() < 0.1 else word for word in rng.choice(USUAL[name]).split())]
    for _ in range(rng.choice((1, 1, 2, 3))):
        option, takes = rng.choice(options()[name])
        words.append(option)
        if takes:
            few = [text for text in TEXTS if len(text) < 4 or len(text) > 9] if option in LONG else TEXTS
            words.append(str(folder / "out.csv") if option in WRITES else rng.choice(few))
    result = CliRunner().invoke(app_for(words), words)
    if isinstance(result.exception, InputError):
        raise result.exception
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"steptime {' '.join(words)[:400]}: {result.exception!r}") from result.exception
    assert result.exit_code in (0, 1, 2), (words, result.exit_code)
