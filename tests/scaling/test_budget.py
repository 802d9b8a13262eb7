"""Budgets: the lecture's numbers, ranges, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import steptime as st
from steptime.errors import Impossible, InputError, RangeError, UnitError, UnknownName
from steptime.scaling.lifetime_compute import Demand, Target, at_equal_loss, read_served, read_target, total_parameters
from steptime.scaling.model_sizing import budget
from steptime.scaling.scaling_laws import extrapolation_note, load_law, loss, tokens_for
from steptime.scaling.sizing_plots import contours, cost_curve, frontier, open_models
from tests.conftest import each

SPOKEN = Demand(served=200e12, lifetime=60 * 86400.0)  # lecture, section 12


@pytest.mark.parametrize(
    ("law", "eta", "params", "tokens", "ratio", "portion"),
    [
        ("hoffmann", 3, 104.9e9, 180.2e12, 85.9, 0.474),
        ("hoffmann-tex", 3, 112e9, 152e12, 68, 0.43),
        ("epoch", 3, 124.1e9, 75.8e12, 30.5, 0.275),
        ("hoffmann", 1, None, None, 37.1, None),
        ("epoch", 1, None, None, 13.0, None),
    ],
)
def test_the_true_optimum_of_the_lecture(law, eta, params, tokens, ratio, portion):
    """The loss of 100 B parameters on 200 T tokens, 200 T served: D / 20N, and 6ND / (6ND + 2ND eta)."""
    found = budget("100B@200T", Demand(served=200e12, eta=eta), law=law).choice
    assert found.over_chinchilla == pytest.approx(ratio, rel=0.01)
    if params:
        assert found.params == pytest.approx(params, rel=0.01)
        assert found.tokens == pytest.approx(tokens, rel=0.01)
        assert found.training_share == pytest.approx(portion, rel=0.01)


def test_the_equality_point_is_the_model_that_was_spoken_of():
    """At eta 3 equality trains on as many tokens as are served, here 200 T, which is the model whose loss is aimed at."""
    found = budget("100B@200T", SPOKEN, law="hoffmann").choice
    assert found.equality_params == pytest.approx(100e9, rel=1e-6)
    assert found.equality_tokens == pytest.approx(200e12)
    assert 1 < found.equality_cost < 1.01
    assert budget("100B@200T", SPOKEN, law="epoch").choice.equality_cost == pytest.approx(1.168, rel=0.01)


def test_a_bill_adds_up():
    found = budget("100B@200T", Demand(served=100e12, lifetime=86400.0 * 30, rl_tokens=10e12, discard=0.3), law="epoch")
    best = found.choice
    assert best.training_flop == pytest.approx(6 * best.params * best.tokens)
    assert best.serving_flop == pytest.approx(2 * best.params * 3 * 100e12 * 0.7)
    assert best.rl_flop == pytest.approx(3 * best.params * 3 * 10e12)
    assert best.total_flop == pytest.approx(best.training_flop + best.rl_flop + best.serving_flop)
    assert best.usd == pytest.approx(best.training_usd + best.rl_usd + best.serving_usd)
    rate = st.load_system("hgx-h100").chip.peak["bf16"] * found.mfu
    assert best.usd == pytest.approx(best.total_flop / rate * found.rent)
    assert best.training_chips == pytest.approx(best.training_flop / rate / 60 / 86400)
    assert best.serving_chips == pytest.approx(2 * best.params * 3 * 100e12 / rate / 30 / 86400)  # if it ships
    assert float(loss("epoch", best.params, best.tokens)) == pytest.approx(best.loss, rel=1e-9)


def test_half_and_twice_cost_what_the_law_says():
    best = budget("100B@200T", SPOKEN, law="hoffmann").choice
    for size, told in ((best.params / 2, best.half_cost), (best.params * 2, best.double_cost)):
        again = 6 * size * float(tokens_for("hoffmann", size, best.loss)) + 2 * size * 3 * 200e12
        assert told == pytest.approx(again / best.total_flop)
    assert not math.isfinite(budget("100B@200T", SPOKEN, law="epoch").choice.half_cost)  # no tokens make up for it


def test_ranges_are_over_laws_and_over_errors():
    found = budget("100B@200T", SPOKEN)
    assert [choice.law for choice in found.choices] == ["epoch", "hoffmann", "muennighoff", "sardana"]
    assert found.params_over_laws == (pytest.approx(104.9e9, rel=0.01), pytest.approx(126.5e9, rel=0.01))
    assert found.over_chinchilla_over_laws[1] == pytest.approx(85.9, rel=0.01)
    best = found.choice
    for name in ("params", "tokens", "over_chinchilla", "training_share"):
        low, high = best.ranges[name]
        assert low < getattr(best, name) < high, name
    assert best.ranges["tokens"][1] / best.ranges["tokens"][0] > 1.5
    assert found.choices[1].ranges == {}
    assert budget("100B@200T", SPOKEN).choice.ranges == best.ranges  # the draws are the same each time


def test_what_lies_beyond_the_runs_is_told():
    best = budget("100B@200T", SPOKEN, law="hoffmann").choice
    assert best.beyond == {"params": pytest.approx(6.56, rel=0.01), "tokens": pytest.approx(360, rel=0.01)}
    assert budget("1B@20B", law="hoffmann").choice.beyond == {}


def test_no_traffic_gives_the_law_s_own_best():
    found = budget(read_target(compute=1e24), law="hoffmann-tex")
    best = found.choice
    assert best.training_share == 1
    assert best.over_own == pytest.approx(1, rel=1e-3)
    assert math.isnan(best.equality_params)
    assert "no served tokens" in found.warnings[0]


def test_usd_are_flop_at_the_rent():
    rent = 2 / 3600
    system = st.vary("hgx-h100", {"rent": 2})
    money = budget(read_target(usd=100e6), SPOKEN, law="epoch", system=system).choice
    flop = 100e6 / rent * system.chip.peak["bf16"] * 0.43
    same = budget(read_target(compute=flop), SPOKEN, law="epoch", system=system).choice
    assert money.usd == pytest.approx(100e6)
    assert money.params == pytest.approx(same.params)


@pytest.mark.thorough
def test_unique_tokens_make_models_larger():
    free, tight = (budget("10B@2T", Demand(served=1e13), law="muennighoff", **more).choice for more in ({}, {"unique": 0.5e12}))
    assert tight.params > 1.05 * free.params
    assert tight.total_flop > free.total_flop
    assert budget("10B@2T", Demand(served=1e13), unique=1e20).choice.params == pytest.approx(free.params, rel=1e-3)


def test_mixtures_are_smaller_and_cheaper_than_the_dense_model_of_their_loss():
    dense, mixed = (
        budget("2B@100B", Demand(served=1e12), law="ludziejewski", **more).choice for more in ({"experts": 1}, {"experts": 32})
    )
    assert mixed.params < dense.params
    assert mixed.total_flop < dense.total_flop
    assert mixed.total_params > mixed.params
    assert budget("2B@100B", Demand(served=1e12), experts=32).choice.law == "ludziejewski"
    assert budget("2B@100B", Demand(served=1e12), experts=64, granularity=8).choice.law == "krajewski"
    assert budget("2B@100B", Demand(served=1e12), sparsity=0.9).choice.law == "abnar"


def test_totals_are_as_the_runs_were_built():
    """Clark's every second layer of experts: 64 are some 22 times the parameters (lecture, section 6)."""
    assert float(total_parameters(load_law("clark-s-base"), 1.0, {"experts": 64})) == pytest.approx(22)
    assert float(total_parameters(load_law("krajewski"), 100e6, {"experts": 64})) == pytest.approx(3.7e9)
    assert float(total_parameters(load_law("abnar"), 1e9, {"sparsity": 0.9})) == pytest.approx(1e10)
    assert float(total_parameters(load_law("epoch"), 1e9, {})) == 1e9


# --- targets and traffic -------------------------------------------------------------------------------------------------


def test_qualities_are_read_as_people_write_them():
    asked = read_target("100B@200T")
    assert (asked.params, asked.tokens, asked.model, asked.note) == (100e9, 200e12, "", "")
    llama = read_target("llama-3.1-8b@15T")
    assert llama.params == pytest.approx(8.03e9, rel=0.001)
    assert llama.model == "meta-llama/Llama-3.1-8B"
    assert "37" in read_target("deepseek-v3@14.8T").note
    assert read_target((1e9, 2e10)).tokens == 2e10


def test_traffic_is_a_rate_over_a_life_or_a_sum():
    assert read_served("50M/s", "60d") == (pytest.approx(2.592e14), 60 * 86400)
    assert read_served("50M tok/s", "60d")[0] == pytest.approx(2.592e14)
    assert read_served("3B/d", "10d")[0] == pytest.approx(3e10)
    assert read_served("3B/day", "2 weeks") == (pytest.approx(4.2e10), 14 * 86400)
    assert read_served("3B/month", "1y")[0] == pytest.approx(3.6e10)
    assert read_served("200T")[0] == 200e12
    assert read_served("0") == (0.0, pytest.approx(math.nan, nan_ok=True))


@each(
    "ask, kind, words",
    [
        (read_target, RangeError, "a budget has one target, and nothing is given"),
        (lambda: read_target("1B@1T", loss=2.0), RangeError, "--match-quality and --loss are given"),
        (lambda: read_target("100B"), InputError, "match-quality: must be MODEL@TOKENS"),
        (lambda: read_target("lama-3.1-8b@15T"), UnknownName, "did you mean .*Llama-3.1-8B"),
        (lambda: read_target("1B@many"), UnitError, "'many' is not a number"),
        (lambda: read_served("50M/s"), InputError, "'50M/s' is a rate, .* --lifetime"),
        (lambda: read_served("50M/parsec", "60d"), UnitError, "parsec"),
        (lambda: read_served("-5"), RangeError, "must be at least 0"),
        (lambda: Demand(served=-1), RangeError, "tokens served must be at least 0"),
        (lambda: Demand(rl_tokens=1e12, rl_share=0.3), RangeError, "give one of the two"),
        (lambda: Demand(discard=1.5), RangeError, "discard must be a share"),
        (
            lambda: budget(read_target(loss=1.5), SPOKEN, law="epoch"),
            Impossible,
            "at a loss of 1.5: its floor is 1.817",
        ),
        (lambda: budget("100B@200T", law="llama-3"), InputError, "llama-3 has no loss"),
        (lambda: budget("100B@200T", law="clark-s-base", experts=8), InputError, "has no tokens"),
        (lambda: budget("100B@200T", law="epoch", experts=8), InputError, "epoch has no input for experts"),
        (lambda: budget("100B@200T", granularity=8), InputError, "granularity: "),
        (lambda: budget("100B@200T", law=[]), InputError, "law: the list is empty"),
        (lambda: budget("100B@200T", mfu=1.2), RangeError, "mfu must be a share"),
        (lambda: budget(read_target(compute=1e10), SPOKEN), Impossible, "takes more than"),
        (lambda: budget(read_target("70B@15T"), SPOKEN, unique=1e9), Impossible, "unique tokens are too few"),
    ],
)
def test_bad_input_is_told_clearly(ask, kind, words):
    with pytest.raises(kind, match=words):
        ask()


# --- curves and open models ----------------------------------------------------------------------------------------------


def test_the_curve_has_its_minimum_where_the_budget_says():
    best = budget("100B@200T", SPOKEN, law="epoch").choice
    curve = cost_curve("epoch", SPOKEN, best.loss, best.params)
    at = int(np.nanargmin(np.where(np.isfinite(curve.total), curve.total, np.nan)))
    assert curve.params[at] == pytest.approx(best.params, rel=0.04)
    assert curve.total[at] >= best.total_flop * (1 - 1e-9)


def test_cheaper_tokens_take_more_training():
    law, at_loss = load_law("epoch"), float(loss("epoch", 100e9, 10e12))
    training, serving = frontier(law, at_loss, float(at_equal_loss(law, Demand(), at_loss).params))
    assert (np.diff(training) < 0).all()
    assert (np.diff(serving) > 0).all()
    losses = contours(law, (1e9, 1e11)).losses
    assert (np.diff(losses, axis=0) < 0).all()
    assert (np.diff(losses, axis=1) < 0).all()


@pytest.mark.thorough
def test_open_models_are_overtrained_as_the_lecture_says():
    """Lecture, section 19: Llama-3-8B on 15 T tokens 94x, DeepSeek-V3 on 14.8 T with 37 B active 20x."""
    known = {one.model: one for one in open_models()}
    assert known["meta-llama/Meta-Llama-3-8B"].over_chinchilla == pytest.approx(94, rel=0.01)
    assert known["deepseek-ai/DeepSeek-V3"].over_chinchilla == pytest.approx(20, rel=0.02)
    assert all(one.url and one.grade in ("reported", "recalled") for one in known.values())


def test_laws_at_other_tokens_per_parameter_than_their_runs_leave_the_range():
    """Chinchilla's budget, 5.88e23 FLOP: by Sardana's law 237 B on 414 B tokens, 1.7 per parameter; its runs begin at 10."""
    found = budget(Target(compute=5.88e23))
    sardana = {choice.law: choice for choice in found.choices}["sardana"]
    assert sardana.beyond["ratio"] == pytest.approx(10 / (sardana.tokens / sardana.params))
    assert [choice.law for choice in found.comparable_choices] == ["epoch", "hoffmann", "muennighoff"]
    assert found.params_over_laws == (found.choices[1].params, found.choice.params)
    # The leading law gives the answer, and stays.
    leading = budget(Target(compute=5.88e23), law=["sardana", "epoch"])
    assert [choice.law for choice in leading.comparable_choices] == ["sardana", "epoch"]


def test_one_note_has_the_bounds_of_the_first_law_and_the_number_of_others():
    epoch, hoffmann, sardana = load_law("epoch"), load_law("hoffmann"), load_law("sardana")
    assert extrapolation_note([(epoch, {})]) == ""
    bounds = "hoffmann extrapolates 2x beyond 44.0 M to 16.0 B parameters and 3x beyond 5.00 B to 500 B tokens"
    far = {"params": 2.0, "tokens": 3.0}
    assert extrapolation_note([(epoch, {}), (hoffmann, far)]) == bounds
    assert extrapolation_note([(hoffmann, far), (epoch, far)]) == f"{bounds}; so does 1 other law"
    assert extrapolation_note([(hoffmann, far), (epoch, far), (sardana, far)]) == f"{bounds}; so do 2 other laws"
    # Runs without a lower end.
    assert extrapolation_note([(load_law("kumar"), {"tokens": 4.0})]) == "kumar extrapolates 4x beyond 26.0 B tokens"
    notes = budget(Target(compute=5.88e23)).warnings
    assert sum("extrapolates" in note for note in notes) == sum("leaves out sardana" in note for note in notes) == 1
