"""Parts of the lines of an explained step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from steptime.physics.bias_correction import USUAL
from steptime.physics.layout import Layout
from steptime.planning import step_explanation
from steptime.planning.step_explanation import _line, _over, _passes, _slower, equations
from steptime.workload.workload import Speculation
from tests.conftest import engine, machine
from tests.planning.cases import MODEL, WORK, made


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, ""),
        (0.9996, ""),
        (1.0004, ""),
        (0.9994, " / 0.999"),
        (1.25, " / 1.250"),
        (0.1, " / 0.100"),
        (0.01234, " / 0.0123"),
    ],
)
def test_a_share_that_is_one_is_not_shown(share, text):
    assert _over(share) == text


@pytest.mark.parametrize(("count", "formula", "seconds"), [(1.0, "2.00 ms", 0.002), (1.5, "1.5 x 2.00 ms", 0.003)])
def test_passes_of_draft_layers_are_counted(count, formula, seconds):
    line = _passes(count, 0.002, "draft")
    assert (line.formula, line.name, line.seconds) == (formula, "draft", pytest.approx(seconds))


@pytest.mark.parametrize(
    ("term", "count", "name", "formula"),
    [
        ("overhead", 1, "n", "1 x f"),
        ("overhead", 3, "n", "3 x f"),
        ("all-reduce", 1, "n", "(f)"),
        ("all-reduce", 3, "n", "3 x (f)"),
        ("attention", 1, "n", "f"),
        ("attention", 3, "n x 3", "f"),
    ],
)
def test_a_line_counts_its_instances(term, count, name, formula):
    line = _line(term, "n", "f", count, 0.5)
    assert (line.term, line.name, line.formula, line.seconds) == (term, name, formula, 0.5)


def test_factors_on_all_times_end_a_formula(monkeypatch):
    anchored = replace(engine(), anchor=SimpleNamespace(step_factor=lambda point: 1.23456))
    assert _slower(machine(), engine(), USUAL) == ""
    assert _slower(machine(), anchored, USUAL) == " x 1.235 (your own runs)"
    monkeypatch.setattr(step_explanation, "software_factor", lambda *_: 1.25)
    assert _slower(machine(), engine(), USUAL) == " x 1.25 (software)"
    assert _slower(machine(), anchored, USUAL) == " x 1.25 (software) x 1.235 (your own runs)"


def test_equations_of_steps_with_chunks_and_speculative_tokens_have_their_numbers():
    """Two prompts of 1,000 in a chunk of 2,500 and two ranks; of 8 sequences half is an arrival; 200 / 1.6 = 125 steps."""
    (pool,) = made(resources={}).pools
    pool = replace(
        pool, layout=Layout(dp=2, ep=2, replicas=2), chunk=2500, chunk_share=0.25, chunks_per_mixed_step=1.5,
        step=SimpleNamespace(total=0.01), mixed=SimpleNamespace(total=0.03),
    )  # fmt: skip
    drafts = Speculation(drafts=1, acceptance=1.6, source="given")
    lines = equations(MODEL, pool, WORK, utilisation=0.5, speculation=drafts)
    assert lines[0] == "batch 8 = 4 sequences x 2 data-parallel ranks"
    assert lines[1].startswith("mean context of decode 1,100 = input + output x (1 + output spread^2) / 2 = ")
    assert "/ ((output - 1) / accepted) = 7.5 x 1 / 125 = 0.060: 1.5 in each mixed step," in lines[2]
    assert lines[2].endswith("the share f = 0.250")
    assert lines[3] == "time per step = (1 - f) x 10.0 ms + f x 30.0 ms = 15.0 ms"
    assert lines[4] == "prefill queue: 4 slots for a chunk per step, in use for 50.0% of the time"
    assert lines[6] == "time per token = 15.0 ms / 1.6 = 9.38 ms"
    plain = equations(MODEL, replace(pool, mixed=None, layout=Layout(microbatches=2), batch=1), WORK, utilisation=0.5)
    assert plain == ["batch 1 = 1 sequence x 1 data-parallel rank, in 2 micro-batches", lines[1]]
    staged = equations(MODEL, replace(pool, mixed=None, layout=Layout(pp=2), batch=1), WORK, utilisation=0.5)
    assert staged[-1] == "the fullest of 2 stages contains 50.0% of the layers"
