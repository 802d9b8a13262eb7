"""Budgets with steptime's own costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import Impossible, InputError, RangeError
from steptime.models.model import active_parameters, total_parameters
from steptime.scaling.lifetime_compute import Demand, read_target
from steptime.scaling.model_sizing import budget
from steptime.scaling.scaling_laws import tokens_for
from steptime.scaling.sizing_on_system import Serving, model_config, per_layer, shaped, training_cost
from tests.conftest import CHOICE_ALONE, each

WORK = st.Workload(input_tokens=2048, output_tokens=512)
SERVING = Serving(
    system="gb200-nvl72", workload=WORK, slo=st.Slo(tpot=0.02), weights="fp8", kv="fp8", training_system="hgx-h100"
)
DEMAND = Demand(served=200e12, lifetime=365 * 86400.0)


@pytest.fixture(scope="module")
def found():
    return budget("llama-3.1-8b@15T", DEMAND, law="epoch", machine=SERVING)


@each("size", [1e9, 8e9, 70e9, 405e9, 2e12])
def test_shapes_have_the_parameters_that_are_asked_for(size):
    assert active_parameters(shaped(size)) == pytest.approx(size, rel=0.03)


@each("size, width, layers", [(8.03e9, 4096, 32), (70.6e9, 8192, 80), (405.9e9, 16384, 126)])
def test_the_rule_is_near_llama_3(size, width, layers):
    """Llama 3, Table 3: width and layers of 8 B, 70 B and 405 B."""
    made = model_config(size)
    assert made["hidden_size"] == pytest.approx(width, abs=1024)
    assert made["num_hidden_layers"] == pytest.approx(layers, rel=0.25)


def test_a_mixture_of_the_rule_has_the_active_parameters_of_the_dense_model():
    dense, mixed = shaped(10e9), shaped(10e9, 32, 4)
    assert active_parameters(mixed) == pytest.approx(active_parameters(dense), rel=0.02)
    width = mixed.width
    block = per_layer(width) - 2 * width**2 - 2 * width * 1024
    layers = sum(count for _, count in mixed.layers)
    assert total_parameters(mixed) - active_parameters(mixed) == pytest.approx(31 * block * layers, rel=0.02)
    with pytest.raises(RangeError, match=r"from 0.3 B to 30 T"):
        shaped(1e6)


@pytest.mark.slow
def test_the_bill_of_a_machine_adds_up_and_is_least(found):
    machine = found.machine
    assert machine.total_usd == pytest.approx(machine.training_usd + machine.rl_usd + machine.serving_usd)
    assert machine.tokens == pytest.approx(float(tokens_for("epoch", machine.params, found.choice.loss)))
    sums = [one.training_usd + one.rl_usd + one.serving_usd for one in machine.sizes if np.isfinite(one.training_usd)]
    assert machine.total_usd <= min(sums) * (1 + 1e-9)
    assert machine.double_cost > 1
    assert machine.half_cost > 1 or np.isinf(machine.half_cost)


@pytest.mark.thorough
@pytest.mark.parametrize("system", [pytest.param("gb200-nvl72", marks=pytest.mark.slow), "hgx-h200"])
def test_what_is_told_was_planned_and_trained(system, monkeypatch, closed_forms):
    """The size of least bill is one of those planned; its request costs what the plan says, its training what the run does."""
    if system != "gb200-nvl72":
        monkeypatch.setattr("steptime.scaling.sizing_on_system.SIZES", 3)
    serving = replace(SERVING, system=system)
    machine = budget("llama-3.1-8b@15T", DEMAND, law="epoch", machine=serving).machine
    one = next(one for one in machine.sizes if one.params == machine.params)
    plan = st.plan(shaped(one.params, 1, 1, "fp8", "fp8"), system, WORK, SERVING.slo, **CHOICE_ALONE)
    assert one.usd_per_request == pytest.approx(float(plan.usd_per_request))
    assert machine.serving_usd == pytest.approx(float(plan.usd_per_request) * 200e12 / 2560)
    run = st.train(shaped(one.params), "hgx-h100", chips=one.training_chips, seq=8192, batch=2048, tokens=one.tokens,
                   changes=False).run  # fmt: skip
    assert machine.training_usd == pytest.approx(float(run.usd))
    assert machine.training_seconds == pytest.approx(float(run.seconds))
    usd, mfu, seconds = training_cost(
        shaped(one.params), st.load_system("hgx-h100"), serving, chips=one.training_chips, tokens=one.tokens
    )
    assert (usd * one.tokens, seconds) == pytest.approx((machine.training_usd, machine.training_seconds))
    assert mfu == one.mfu == machine.mfu


@pytest.mark.slow
def test_training_ends_in_about_the_days_given(found):
    """Chips are systems by a power of two, counted at 0.4 of the rate: within a factor of two, MFU and failures included."""
    for one in found.machine.sizes:
        if np.isfinite(one.training_seconds) and one.training_chips > 8:
            assert 30 < one.training_seconds / 86400 < 120
    given = budget("llama-3.1-8b@15T", DEMAND, law="epoch", machine=replace(SERVING, training_chips=512)).machine
    assert {one.training_chips for one in given.sizes if np.isfinite(one.training_seconds)} == {512}


@pytest.mark.slow
def test_usd_buy_the_least_loss_by_the_machine_s_own_prices():
    machine = budget(read_target(usd=30e6), DEMAND, law="epoch", machine=SERVING).machine
    assert machine.total_usd == pytest.approx(30e6, rel=1e-3)
    rent = float(st.load_system("hgx-h100").rent.typical)
    assert machine.training_usd == pytest.approx(machine.training_chips * machine.training_seconds * rent, rel=1e-3)
    assert machine.tokens == pytest.approx(float(tokens_for("epoch", machine.params, machine.loss)), rel=1e-6)


@pytest.mark.slow
def test_cheap_prompts_make_eta_smaller_than_the_lecture_s(found):
    """Four tokens in five are prompts here, in fp8 on a newer chip: a served FLOP costs less than one of training."""
    assert 0.2 < found.machine.eta < 1.5
    assert found.machine.params > found.choice.params
    decode = Serving(system="gb200-nvl72", workload=st.Workload(input_tokens=32768, output_tokens=512), slo=st.Slo(tpot=0.005),
                     weights="bf16", training_system="hgx-h100")  # fmt: skip
    tight = budget("llama-3.1-8b@15T", DEMAND, law="epoch", machine=decode).machine
    assert tight.eta > 1.2 * found.machine.eta
    assert tight.params < found.machine.params


@pytest.mark.slow
def test_rollouts_cost_what_outputs_do():
    """Without RL training beside (2 FLOP a token, those of the pass itself) RL is the price of outputs, prompts apart."""
    asked = Demand(served=200e12, rl_tokens=5e12, rl_flop=2.0)
    machine = budget("llama-3.1-8b@15T", asked, law="epoch", machine=SERVING).machine
    plan = st.plan(
        shaped(machine.params, 1, 1, "fp8", "fp8"), "gb200-nvl72", WORK, SERVING.slo, alternatives=False, elasticities=False
    )
    # The budget takes costs between sizes that it has planned; a simulated plan of one size may differ by a percent.
    assert machine.rl_usd == pytest.approx(5e12 * float(plan.decode_usd_per_million_tokens) / 1e6, rel=0.02)
    more = budget("llama-3.1-8b@15T", replace(asked, rl_flop=3.0), law="epoch", machine=SERVING).machine
    assert more.rl_usd > machine.rl_usd
    a_request = 2560 * machine.serving_usd / 200e12
    assert machine.rl_usd < 5e12 / 512 * a_request


@pytest.mark.slow
def test_a_mixture_that_holds_more_than_the_law_s_is_noted():
    machine = budget("8B@1T", DEMAND, experts=64, machine=SERVING).machine
    assert any("the loss is that of another model" in note for note in machine.notes)
    assert machine.total_params > 10 * machine.params


@pytest.mark.slow
def test_what_no_machine_serves_is_told():
    with pytest.raises(Impossible, match=r"no size near .* is served within the limits"):
        budget("100B@10T", DEMAND, law="epoch", machine=Serving(system="hgx-h100", workload=WORK, slo=st.Slo(tpot=1e-4)))
    with pytest.raises(Impossible, match="8 chips of hgx-h100 can train no size near"):
        budget("1T@100T", DEMAND, law="epoch", machine=Serving(system="hgx-h100", workload=WORK, training_chips=8))
    with pytest.raises(InputError, match="no rent is known"):
        budget("8B@1T", DEMAND, law="epoch", machine=Serving(system="cs-3", workload=WORK))
    with pytest.raises(RangeError, match="training chips must be"):
        Serving(system="hgx-h100", workload=WORK, training_chips=0)
