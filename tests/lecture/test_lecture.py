"""The lecture as data: numbers as the lecture has them, verdicts by hand, files that fit, and commands that read well."""

from __future__ import annotations

import inspect
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from steptime.cli.main import app_for
from steptime.errors import DataFileError, RangeError
from steptime.lecture import lecture_content
from steptime.lecture.current_figures import microbatches_without_idle
from steptime.lecture.lecture_content import Statement, check, resolve_function, section, sections, statements, verdict
from tests.conftest import each

CHECKS = {  # acceptance checks of the lecture: number, what it must come to, relative tolerance
    1: (295, 0.02), 2: (2400, 0), 3: (5441, 1e-3), 4: (0.5, 0.01), 5: (14.4e-3, 1e-12), 6: (0.040, 0), 7: (128_000, 0),
    8: (2400, 0), 9: (15, 0), 10: (2.8, 1e-12), 11: (1.37e9, 0.01), 12: (4, 0), 13: (2, 0), 14: (12.5e9, 1e-3),
    15: (7.81e9, 1e-3), 16: (4, 0), 17: (0.030, 1e-12), 18: (2.592e14, 1e-3), 19: (2e12, 0), 20: (100, 0), 21: (1.5, 0),
    22: (1666.7, 1e-3), 23: (2048, 0), 24: (0.2, 0), 25: (4000, 0),
}  # fmt: skip
EVERY = list(statements())


def run(*words: str, **more):
    return CliRunner().invoke(app_for(words), list(words), env={"COLUMNS": "80"}, **more)


def test_every_acceptance_check_comes_to_its_number():
    found = {one.check: one for _, one in EVERY if one.check}
    assert sorted(found) == sorted(CHECKS)
    for number, (expected, tolerance) in CHECKS.items():
        assert found[number].computed == (pytest.approx(expected, rel=tolerance or 1e-12),), number
        assert found[number].computed_verdict in ("holds", "holds within a factor"), number


# Numbers of networks, which are drawn and trained for seconds, and of a table of all engines.
LONG = [
    entry for entry in EVERY if "network" in str(entry[1].arguments) or "trained" in entry[1].call or "alone" in entry[1].call
]


@pytest.mark.thorough
@each("place, one", LONG)
def test_verdicts_that_take_long_are_as_stored(place, one):
    assert one.computed_verdict == one.verdict, (place, one.computed, one.stated)


@each("place, one", [entry for entry in EVERY if entry not in LONG])
def test_verdicts_are_as_stored(place, one):
    assert one.computed_verdict == one.verdict, (place, one.computed, one.stated)
    assert one.reason
    assert one.source.startswith("https://")


def test_verdicts_by_hand():
    assert verdict([1.04], 1) == verdict([0.96], 1) == "holds"
    assert verdict([2.4], 1) == verdict([0.41], 1) == "holds within a factor"
    assert verdict([2.6], 1) == verdict([-1.0], 1) == "fails"
    assert verdict([1.0, 2.6], 1) == verdict([], 1) == verdict([math.nan], 1) == "undecided"
    assert verdict([1.0, 1.5], 1) == "holds within a factor"
    assert verdict([5.0], 1, relation="at least") == verdict([0.2], 1, relation="at most") == "holds"
    # A limit holds or fails: a factor is no excuse for it.
    assert verdict([0.9], 1, relation="at least") == verdict([1.1], 1, relation="at most") == "fails"
    with pytest.raises(RangeError, match="at least"):
        verdict([1.0], 1, relation="above")


@pytest.mark.slow
def test_there_are_eighteen_sections_each_with_a_picture_that_can_be_drawn():
    assert [one.number for one in sections()] == list(range(1, 19))
    for one in sections():
        assert len(one.statements) >= 2
        assert one.summary
        assert one.fails
        x, curves = one.picture.points(7)
        assert all(y.shape == x.shape and np.isfinite(y).all() for y in curves.values()), one.number


def test_arguments_are_those_of_the_functions():
    for _, one in EVERY:
        assert set(one.arguments) <= set(inspect.signature(resolve_function(one.call)).parameters), one.name


def test_a_loop_of_stages_is_busy_with_as_many_microbatches():
    assert [microbatches_without_idle(stages) for stages in (1, 2, 3, 8)] == [1, 2, 3, 8]


@pytest.mark.thorough
def test_check_prints_all_and_leaves_with_one_where_a_verdict_changed(monkeypatch):
    assert not check().changed
    assert len(run("lecture", "--check").output.splitlines()) <= 40
    done = run("lecture", "--check", "--full")
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in done.output.splitlines()) <= 80
    assert done.output.count("Verdict") == 3  # sections, claims and cards, no column lost
    assert "145 numbers" in done.output
    monkeypatch.setattr(Statement, "computed_verdict", property(lambda self: "fails"))
    changed = run("lecture", "--check", "--json")
    assert changed.exit_code == 1
    assert {row["verdict"] for row in json.loads(changed.output)["rows"]} == {"fails"}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 19))
def test_sections_are_played(number):
    done = run("lecture", str(number))
    assert done.exit_code == 0, done.output
    assert section(number).title in done.output
    assert max(len(line) for line in done.output.splitlines()) <= 80


def test_wrong_words_are_refused():
    assert "1 to 18" in str(run("lecture", "19").exception)
    assert "--check" in str(run("lecture", "3", "--check").exception)


def test_a_file_that_does_not_fit_is_told(tmp_path, monkeypatch):
    text = (lecture_content.FOLDER / "03-batch.toml").read_text(encoding="utf-8")
    (tmp_path / "03-batch.toml").write_text(text.replace('verdict = "holds"', 'verdict = "true"', 1), encoding="utf-8")
    monkeypatch.setattr(lecture_content, "FOLDER", tmp_path)
    with pytest.raises(DataFileError, match="not 'true'"):
        lecture_content._section("03-batch.toml")
    (tmp_path / "03-batch.toml").write_text(text.replace("title =", "tilte =", 1), encoding="utf-8")
    with pytest.raises(DataFileError, match="tilte"):
        lecture_content._section("03-batch.toml")


def test_claims_and_cards_are_all_there():
    assert [one.number for one in lecture_content.claims()] == list(range(1, 55))
    assert [one.number for one in lecture_content.cards()] == list(range(1, 28))
    for card in lecture_content.cards():
        assert card.question.endswith(("?", ".")), card.number
        assert card.answer, card.number
        assert card.watch, card.number
        assert 1 <= card.section <= 18, card.number


VERDICTS_OF_CLAIMS = {  # as the science of the lecture has them (section 19), by hand
    1: "holds", 2: "holds within a factor", 3: "fails", 4: "undecided", 5: "fails", 6: "holds within a factor", 7: "holds",
    8: "holds within a factor", 9: "undecided", 10: "fails", 11: "fails", 12: "holds", 13: "holds within a factor", 14: "fails",
    15: "holds", 16: "undecided", 17: "holds within a factor", 18: "holds", 19: "holds", 20: "holds", 21: "holds", 22: "fails",
    23: "holds within a factor", 24: "holds", 25: "holds", 26: "fails", 27: "fails", 28: "holds", 29: "undecided", 30: "holds",
    31: "undecided", 32: "holds within a factor", 33: "holds", 34: "fails", 35: "holds within a factor",
    36: "holds within a factor", 37: "holds", 38: "holds", 39: "holds", 40: "holds", 41: "holds", 42: "fails",
    43: "holds within a factor", 44: "fails", 45: "holds", 46: "holds within a factor", 47: "holds", 48: "fails", 49: "holds",
    50: "holds within a factor", 51: "fails", 52: "holds", 53: "undecided", 54: "holds",
}  # fmt: skip


@pytest.mark.thorough
def test_verdicts_on_claims():
    assert {one.number: one.statement.computed_verdict for one in lecture_content.claims()} == VERDICTS_OF_CLAIMS


def test_five_predictions_have_a_dated_verdict_and_every_claim_its_section():
    dated = [one for one in lecture_content.claims() if one.statement.date]
    assert [one.number for one in dated] == [1, 2, 3, 4, 5]
    assert all(one.statement.date >= "2026-04-29" for one in dated)
    assert {one.section for one in lecture_content.claims()} >= set(range(1, 17)) - {6, 9} | {9}


def test_quiz_judges_numbers_and_ends_with_its_input():
    right = run("lecture", "5", "--quiz", input="")
    assert right.exit_code != 0  # no card is of section 5
    told = run("lecture", "3", "--quiz", input="300\n17\n")
    assert told.exit_code == 0, told.output
    assert "Right." in told.output
    assert "No." in told.output
    assert "R = F b_w / W" in told.output
    assert run("lecture", "--quiz", input="q\n").exit_code == 0
    assert "Not a number" in run("lecture", "3", "--quiz", input="many\nq\n").output


def test_flops_of_training_a_token_by_hand():
    """Llama-3.1-8B: 7.5 B multiplied weights, and 32 layers of 4,096 wide attention to half of 8,192 tokens."""
    from steptime.lecture.current_figures import training_flops_per_parameter

    weights, attention = 6 * (8.03e9 - 0.525e9), 3 * 32 * 4 * 4096 * 4096.5
    assert training_flops_per_parameter("llama-3.1-8b", 8192) == pytest.approx((weights + attention) / 8.03e9, rel=2e-3)
