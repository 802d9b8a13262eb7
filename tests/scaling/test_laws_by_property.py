"""What every law and every best size obeys, whatever its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from steptime.blackboard.training_compute import cost_at_equality
from steptime.catalog.data_files import files
from steptime.scaling.compute_optimal import cheapest, cost_at, equivalent_dense, least, optimal, own_tokens
from steptime.scaling.lifetime_compute import Demand, at_equal_loss, equality, lifetime_bill, within
from steptime.scaling.scaling_laws import load_law, loss, tokens_for, with_constants
from tests.conftest import each

LOSSES = [name for name in files("laws") if load_law(name).tells_loss]
SIZES, TOKENS = some.floats(1e8, 1e12), some.floats(1e9, 1e14)
TARGETS = some.tuples(some.floats(1e9, 3e11), some.floats(20, 2000))  # parameters, tokens for each
SERVED = some.floats(1e11, 1e15)


@each("name", LOSSES)
@given(params=SIZES, tokens=TOKENS, more=some.floats(1.01, 100))
def test_loss_falls_with_parameters_and_with_tokens(name, params, tokens, more):
    here = float(loss(name, params, tokens))
    assert float(loss(name, params * more, tokens)) <= here
    assert float(loss(name, params, tokens * more)) < here


@each("name", ["clark-s-base", "clark-rl-r", "clark-hash"])
@given(params=some.floats(1e7, 1e10), more=some.floats(1.01, 100))
def test_routed_losses_fall_with_parameters(name, params, more):
    assert float(loss(name, params * more, 1e11, experts=64)) < float(loss(name, params, 1e11, experts=64))


@given(params=SIZES, tokens=TOKENS, unique=some.floats(1e9, 1e14))
def test_repeats_are_worth_less_than_fresh_tokens_and_more_than_none(params, tokens, unique):
    limited = float(loss("muennighoff", params, tokens, unique=unique))
    assert limited >= float(loss("muennighoff", params, tokens)) - 1e-12
    assert limited <= float(loss("muennighoff", params, min(tokens, unique))) + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@given(power=some.floats(19, 27))
def test_a_best_split_of_compute_is_stationary(name, power):
    compute = 10.0**power
    best = optimal(name, compute)
    for factor in (0.97, 1.03):
        params = float(best.params) * factor
        assert float(loss(name, params, compute / 6 / params)) >= float(best.loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@given(target=TARGETS, served=SERVED)
def test_a_least_bill_is_stationary(name, target, served):
    at_loss = float(loss(name, target[0], target[0] * target[1]))
    best = float(cheapest(name, at_loss, served))
    here = float(cost_at(name, at_loss, best, served))
    assert np.isfinite(here)
    for factor in (0.98, 1.02):
        assert float(cost_at(name, at_loss, best * factor, served)) >= here * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["epoch", "hoffmann", "sardana", "ludziejewski"])
@given(target=TARGETS, served=SERVED, more=some.floats(1.1, 100))
def test_more_traffic_means_smaller_models_and_more_tokens(name, target, served, more):
    law, at_loss = load_law(name), float(loss(name, target[0], target[0] * target[1]))
    few, many = (at_equal_loss(law, Demand(served=tokens), at_loss) for tokens in (served, served * more))
    assert float(many.params) < float(few.params)
    assert float(many.tokens) > float(few.tokens)


@given(target=TARGETS, served=SERVED, eta=some.floats(0.1, 10))
def test_an_optimum_holds_sardana_s_condition(target, served, eta):
    """eN / eD = 1 + D_inf eta / (3 D): by how much a part more parameters and tokens lower the loss, at the least bill."""
    law, at_loss = load_law("hoffmann"), float(loss("hoffmann", target[0], target[0] * target[1]))
    bill, c = at_equal_loss(law, Demand(served=served, eta=eta), at_loss), law.constants
    gain_n = c["alpha"] * c["A"] / float(bill.params) ** c["alpha"]
    gain_d = c["beta"] * c["B"] / float(bill.tokens) ** c["beta"]
    assert gain_n / gain_d == pytest.approx(1 + served * eta / 3 / float(bill.tokens), rel=1e-3)


@given(target=TARGETS, served=SERVED, discard=some.floats(0, 0.95))
def test_a_model_that_may_never_ship_is_one_of_less_traffic(target, served, discard):
    law, at_loss = load_law("epoch"), float(loss("epoch", target[0], target[0] * target[1]))
    one = at_equal_loss(law, Demand(served=served, discard=discard), at_loss)
    other = at_equal_loss(law, Demand(served=served * (1 - discard)), at_loss)
    assert float(one.params) == pytest.approx(float(other.params), rel=1e-9)
    assert float(one.total) == pytest.approx(float(other.total), rel=1e-9)


@given(falls=some.floats(0.3, 5), rises=some.floats(0.3, 5), scale=some.floats(-3, 3), slope=some.floats(-3, 3))
def test_equality_costs_what_theory_says(falls, rises, scale, slope):
    """A x^-m + B x^n is least where m of the one is n of the other; where they are equal it costs so many times that."""
    first, second = 10**scale, 10**slope

    def cost(x):
        return first * x**-falls + second * x**rises

    best = float(least(cost, low=1e-12, high=1e12))
    even = (first / second) ** (1 / (falls + rises))
    assert falls * first * best**-falls == pytest.approx(rises * second * best**rises, rel=1e-4)
    assert cost(even) / cost(best) == pytest.approx(cost_at_equality(falls, rises), rel=1e-6)


@given(scale=some.floats(-5, 5))
def test_equality_is_the_optimum_of_x_and_one_over_x(scale):
    first = 10.0**scale
    best = float(least(lambda x: x + first / x, low=1e-9, high=1e9))
    assert best == pytest.approx(first / best, rel=1e-4)
    assert cost_at_equality(1.0, 1.0) == 1


@given(target=TARGETS, served=SERVED)
def test_at_equality_training_costs_what_serving_does_and_never_less_than_the_least(target, served):
    law, at_loss = load_law("epoch"), float(loss("epoch", target[0], target[0] * target[1]))
    demand = Demand(served=served)
    even = equality(law, demand, at_loss)
    if np.isfinite(float(even.params)):
        assert float(even.training) == pytest.approx(float(even.serving))
        assert float(even.total) >= float(at_equal_loss(law, demand, at_loss).total) * (1 - 1e-9)


@given(target=TARGETS, served=SERVED)
def test_a_bill_at_least_loss_is_the_least_bill_at_that_loss(target, served):
    """The two questions are one another's dual: the least bill of a loss buys no better loss."""
    law, at_loss = load_law("hoffmann"), float(loss("hoffmann", target[0], target[0] * target[1]))
    demand = Demand(served=served)
    bill = at_equal_loss(law, demand, at_loss)
    again = within(law, demand, float(bill.total))
    assert float(again.loss) == pytest.approx(at_loss, rel=1e-6)
    assert float(again.params) == pytest.approx(float(bill.params), rel=1e-2)


@pytest.mark.slow
@given(compute=some.floats(1e20, 1e27))
def test_without_traffic_a_bill_is_the_law_s_own_best_split(compute):
    law = load_law("epoch")
    bill, best = within(law, Demand(), compute), optimal(law, compute)
    assert float(bill.params) == pytest.approx(float(best.params), rel=1e-3)
    assert float(own_tokens(law, best.params)) == pytest.approx(float(best.tokens), rel=1e-3)


@given(params=SIZES, tokens=TOKENS, served=SERVED, portion=some.floats(0.01, 0.9))
def test_rl_takes_its_share_of_the_bill_and_moves_nothing(params, tokens, served, portion):
    plain = lifetime_bill(Demand(served=served), params, tokens, 2.0)
    with_rl = lifetime_bill(Demand(served=served, rl_share=portion), params, tokens, 2.0)
    assert float(with_rl.rl / with_rl.total) == pytest.approx(portion)
    assert float(with_rl.total) == pytest.approx(float(plain.total) / (1 - portion))
    assert Demand(served=served, rl_share=portion).weight == Demand(served=served).weight


@each("name", ["clark-s-base", "clark-rl-r", "clark-hash", "ludziejewski", "krajewski", "abnar"])
@given(active=some.floats(1e8, 1e11), tokens=some.floats(1e10, 1e13))
def test_one_expert_is_a_dense_model(name, active, tokens):
    """Clark and Ludziejewski at one expert; Abnar where no parameter is left out."""
    assert float(equivalent_dense(name, active, 1, tokens=tokens)) == pytest.approx(active, rel=1e-9)


@given(active=some.floats(1e8, 1e10), tokens=some.floats(1e10, 1e12), experts=some.floats(1.5, 32))
def test_experts_help_inside_what_laws_were_fitted_to(active, tokens, experts):
    assert float(equivalent_dense("clark-s-base", min(active, 1.3e9), experts)) > min(active, 1.3e9)
    assert float(loss("abnar", active, tokens, sparsity=1 - 1 / experts)) < float(loss("abnar", active, tokens))


@given(params=some.floats(1e8, 1e11), tokens=TOKENS, bits=some.floats(2, 16))
def test_narrow_numbers_are_fewer_parameters(params, tokens, bits):
    law = with_constants("kumar", E=1.7, A=400.0, B=500.0, alpha=0.34, beta=0.3, gamma_w=2.5, gamma_a=2.2, gamma_kv=1.0)
    wide = float(loss(law, params, tokens))
    assert float(loss(law, params, tokens, bits=bits)) > wide
    assert float(loss(law, params, tokens, bits=200.0)) == pytest.approx(wide)


@given(params=some.floats(1e8, 1e11), ratio=some.floats(5, 640))
def test_overtraining_is_the_additive_form_of_equal_exponents(params, ratio):
    """Gadre et al.: 6^-eta a N^-2eta + 6^-eta b D^-2eta."""
    law = with_constants("gadre", E=1.7, a=140.0, b=190.0, eta=0.15)
    same = with_constants("hoffmann", E=1.7, A=140.0 / 6**0.15, B=190.0 / 6**0.15, alpha=0.3, beta=0.3)
    tokens = params * ratio
    assert float(loss(law, params, tokens)) == pytest.approx(float(loss(same, params, tokens)))
    assert float(tokens_for(law, params, loss(law, params, tokens))) == pytest.approx(tokens, rel=1e-6)
