"""The formulas that `--explain` prints: worked out as they stand, times their instances, they give the seconds beside them."""

from __future__ import annotations

import re

import pytest

import steptime as st
from steptime.physics.engine import load_engine
from steptime.planning.step_explanation import explain_step

POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "µ": 1e-6, "n": 1e-9, "p": 1e-12}


def parts(text: str, between: str) -> list[str]:
    """Return the text cut where no bracket is open."""
    found, depth = [""], 0
    for piece in re.split(f"({re.escape(between)}|[()])", text):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == between and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return found


def worked(text: str) -> float:
    """Return the seconds of a formula, from what stands behind each "=" [s]."""
    text = text.strip()
    if len(terms := parts(text, " + ")) > 1:
        return sum(worked(term) for term in terms)
    if times := re.match(r"([\d.]+) x (.*)$", text):
        return float(times[1]) * worked(times[2])
    if joined := re.match(r"(max|[\d.]+-norm)\((.*)\)$", text):
        sides = [worked(side) for side in parts(joined[2], ", ")]
        norm = joined[1].removesuffix("-norm")
        return max(sides) if norm == "max" else sum(side ** float(norm) for side in sides) ** (1 / float(norm))
    if text.startswith("("):
        return worked(text[1:-1])
    shown = re.fullmatch(r"([\d.]+) ([mµnp]?)s( latency)?", text.rsplit(" = ", 1)[-1])
    assert shown, text
    return float(shown[1]) * POWERS[shown[2]]


@pytest.mark.parametrize("engine", ["ideal", "vllm"])
@pytest.mark.parametrize(
    ("model", "system", "layout"),
    [
        ("llama-3.1-70b", "hgx-h100", st.Layout(tp=16)),  # all-reduce over two levels
        ("deepseek-v3", "hgx-h200", st.Layout(dp=16, ep=16)),  # exchange over two levels, at once
        ("deepseek-v3", "hgx-h200", st.Layout(tp=2, dp=8, ep=1)),  # experts shared by 16 chips, level after level
        ("gpt-oss-120b", "hgx-h100", st.Layout(tp=2, dp=2, ep=4)),  # two kinds of layers with the same formula
        ("openai/gpt-oss-20b", "hgx-h100", st.Layout(tp=4, cp=2)),
    ],
)
def test_a_formula_times_its_instances_gives_its_seconds(model, system, layout, engine):
    given = {"batch": 64, "context": 1, "prompts": 16, "tokens": 512, "prefix": 1000}
    described, machine = st.load_model(model), st.load_system(system)
    for line in explain_step(described, machine, sizes=given, layout=layout, engine=load_engine(engine)):
        count = re.search(r" x ([\d.e+]+)$", line.name)
        assert worked(line.formula) * (float(count[1]) if count else 1) == pytest.approx(line.seconds, rel=0.01), line


def test_tokens_that_chips_of_one_expert_share_are_told_apart_from_the_exchange():
    described, machine = st.load_model("deepseek-v3"), st.load_system("hgx-h200")
    layout = st.Layout(tp=2, dp=8, ep=4)
    lines = explain_step(described, machine, sizes={"batch": 64, "context": 1}, layout=layout, engine=load_engine("ideal"))
    assert {line.name for line in lines if line.term == "dispatch"} == {
        "of tokens to their experts on 4 chips",
        "among the 4 chips that share an expert",
    }
