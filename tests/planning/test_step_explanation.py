"""Parts of the lines of an explained step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from steptime.planning import step_explanation
from steptime.planning.step_explanation import _line, _over, _passes, _slower
from tests.conftest import engine, machine


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
    anchored = replace(engine(), anchor=SimpleNamespace(step=1.23456))
    assert _slower(machine(), engine()) == ""
    assert _slower(machine(), anchored) == " x 1.235 (your own runs)"
    monkeypatch.setattr(step_explanation, "software_factor", lambda *_: 1.25)
    assert _slower(machine(), engine()) == " x 1.25 (software)"
    assert _slower(machine(), anchored) == " x 1.25 (software) x 1.235 (your own runs)"
