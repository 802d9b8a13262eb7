"""Designs: known optima are found, and the front is what no other beats."""

from __future__ import annotations

import pytest

import steptime as st
from steptime.errors import InputError, RangeError, UnknownName
from steptime.hardware.energy import power_shares
from steptime.questions.train_question import solve as solve_train
from tests.training.cases import FIXED

CHIP = {"tp": 8, "batch": 64, "context": 4096}
LONG = {"input": 131072, "output": 2048, "cached": 0.98, "speed": 30}


def test_more_bandwidth_against_more_flops_at_batch_64():
    """At batch 64 a step waits for memory: the best chip has more bandwidth, until arithmetic takes as long."""
    found = st.design(
        "step", "llama-3.3-70b", "hgx-h100", {"times.bandwidth": "0.5:5:181"}, within="power", engine="ideal", **CHIP
    )
    shares = power_shares(st.load_system("hgx-h100"))
    # matrices take max(c / f, m / w) in the budget p_f f + p_w w + p_l = 1; beyond the point where both are equal arithmetic
    # grows by 0.52 ms for each further w, and reading the cache falls by 0.38 ms
    compute, memory = 2 * 70.55e9 * 64 / (8 * 989.4e12), 5.187e-3
    best = memory * (1 - shares["link"]) / (compute * shares["flops"] + memory * shares["bandwidth"])
    value = found.sweep.axes[0].values[found.best]
    assert value == pytest.approx(best, rel=0.02)
    assert value > 2
    cost = found.sweep.answers["usd_per_million_tokens"].values
    assert cost[found.best] == cost.min() < 0.5 * float(found.today["usd_per_million_tokens"])


def test_at_a_large_batch_and_short_context_flops_are_worth_more():
    given = {"tp": 8, "tokens": 8192, "phase": "prefill"}
    found = st.design("step", "llama-3.3-70b", "hgx-h100", {"times.bandwidth": "0.3:3:28"}, within="power", engine="ideal",
                      aims=["usd_per_million_tokens"], **given)  # fmt: skip
    assert found.sweep.axes[0].values[found.best] < 1


@pytest.mark.slow
def test_latent_against_grouped_query_attention_at_128k():
    """Among all layouts, because a decode pool of latents that was measured takes 48 chips of a rack."""
    axes = {"arch.attention": ["grouped", "latent"]}
    found = st.design("plan", "deepseek-v3", "gb200-nvl72", axes, **LONG, evidence="any", **{"arch.equal": "total"})
    assert found.called(found.best) == "attention latent"
    grouped, latent = found.sweep.answers["usd_per_million_output_tokens"].values
    assert grouped > latent
    assert latent == pytest.approx(float(found.today["usd_per_million_output_tokens"]))


def test_the_front_is_what_no_other_beats():
    axes = {"arch.kv_heads": [1, 2, 4, 8], "batch": [1, 4, 16, 64]}
    found = st.design("step", "llama-3.3-70b", "hgx-h100", axes, tp=2)
    cost, speed = (found.sweep.answers[name].values.ravel() for name in found.aims)
    fits = found.fits.ravel()
    both = list(zip(cost, speed, strict=True))

    def beaten(i):
        return any(fits[j] and both[j] != both[i] and cost[j] <= cost[i] and speed[j] >= speed[i] for j in range(16))

    best = [i for i in range(16) if fits[i] and not beaten(i)]
    assert {both[i] for i in found.front} == {both[i] for i in best}  # of equal ones the first is shown
    assert cost[found.best] == min(cost[i] for i in best)
    assert found.columns()["on_front"].sum() == len(found.front)
    third = st.design("step", "llama-3.3-70b", "hgx-h100", axes, tp=2, aims=[*found.aims, "kv_bytes_per_token"])
    assert set(third.front) >= set(found.front)


# Data-parallel Llama 3.1 8B on 64 H100, with bare data-sheet rates unless an engine is given.
TRAINED = {
    "model": "llama-3.1-8b", "system": "hgx-h100", "chips": 64, "batch": 512, "dp": 64, "tp": 1, "pp": 1, "cp": 1,
    "micro_batch": 2, "sharding": "zero3", "recompute": "none",
}  # fmt: skip


def train_terms(**changes):
    return {name: float(term) for name, term in solve_train(TRAINED | changes, changes=False).step.terms.items()}


def test_factors_on_the_chip_divide_the_terms_of_a_training_step():
    """Arithmetic takes half the time with twice the FLOP/s, and element-wise operators with twice the bandwidth."""
    present, flops, bandwidth = train_terms(), train_terms(**{"times.flops": 2}), train_terms(**{"times.bandwidth": 2})
    assert flops["attention"] == pytest.approx(present["attention"] / 2, rel=1e-9)
    assert flops["element-wise"] == pytest.approx(present["element-wise"], rel=1e-9)
    for name in ("element-wise", "optimizer"):
        assert bandwidth[name] == pytest.approx(present[name] / 2, rel=1e-9)
    both = train_terms(**{"times.flops": 2, "times.bandwidth": 2})
    assert both["matrices"] == pytest.approx(present["matrices"] / 2, rel=1e-9)
    inside = {"tp": 8, "dp": 8}
    one, two = (train_terms(**inside, **{"times.link": factor})["tensor parallel"] for factor in (1, 2))
    # Half the time, and the latency of the collectives.
    assert 0.5 < two / one < 0.51


def test_a_chip_of_a_design_keeps_its_power_per_flop_unless_the_power_is_given():
    """A clock that the power limit lowers would cancel a part of the FLOP/s; its exponent is 0.338 (docs/training.md)."""
    free, limited = train_terms(**{"times.flops": 2}), train_terms(**{"times.flops": 2, "chip.power": 700})
    assert limited["attention"] / free["attention"] == pytest.approx(2**0.338, rel=1e-3)
    # Within a power, arithmetic has 1 / f of its rate, and no clock above that of today.
    left = 1 - 2 * power_shares(st.load_system("hgx-h100"))["bandwidth"] - power_shares(st.load_system("hgx-h100"))["link"]
    left /= power_shares(st.load_system("hgx-h100"))["flops"]
    traded = train_terms(**{"times.bandwidth": 2, "within": "power"})
    assert traded["attention"] == pytest.approx(train_terms()["attention"] / left, rel=1e-9)


def test_more_kv_heads_lengthen_a_training_step_by_their_flops():
    """32 instead of 8 KV heads: 2 x 24 x 128 x 4,096 further weights in each of 32 layers, 6 FLOP for each token and weight."""
    ideal = {"engine": "ideal"}
    further = train_terms(**ideal, **{"arch.kv_heads": 32})["matrices"] - train_terms(**ideal)["matrices"]
    assert further == pytest.approx(6 * 2 * 24 * 128 * 4096 * 32 * 512 * 4096 / (64 * 989.4e12), rel=1e-3)
    axes = {"arch.kv_heads": [8, 32]}
    found = st.design("train", "llama-3.1-8b", "hgx-h100", axes, chips=64, batch=512, **FIXED, **{"arch.equal": "total"})
    assert found.sweep.answers["parameters"].values.tolist() == [8030261248.0, 8030261248.0]
    assert found.sweep.answers["kv_bytes_per_token"].values.tolist() == [131072.0, 524288.0]


def test_a_design_of_a_training_run_aims_at_rent_and_days():
    """More chips take fewer days and more rent, and twice the FLOP/s are better in both: two designs are on the front."""
    axes = {"chips": [64, 256], "times.flops": [1.0, 2.0]}
    found = st.design("train", "llama-3.1-8b", "hgx-h100", axes, batch=512, tokens="1T", **FIXED)
    assert (found.aims, found.front) == (("usd", "days"), (1, 3))
    usd, days = (found.sweep.answers[name].values.ravel() for name in found.aims)
    assert usd[1] == usd.min()
    assert days[3] == days.min()
    assert float(found.today["days"]) == pytest.approx(days[0])


def test_a_design_of_a_training_step_aims_at_its_time():
    found = st.design("train", "llama-3.1-8b", "hgx-h100", {"times.flops": [1.0, 2.0]}, chips=64, batch=512)
    assert (found.aims[0], found.best) == ("step_time", 1)
    with pytest.raises(RangeError, match="needs the tokens of the run"):
        st.design("train", "llama-3.1-8b", "hgx-h100", {"times.flops": [1, 2]}, chips=64, batch=512, aims=["days"])


def test_a_budget_of_ones_own():
    shares = {"within": "bandwidth=0.5,link=0.1"}
    found = st.sweep(
        "step", {"times.bandwidth": [1.0, 1.4]}, model="llama-3.3-70b", system="hgx-h100", answers=["flops"], **shares
    )
    before, after = found.answers["flops"].values
    assert after / before == pytest.approx((1 - 0.1 - 0.5 * 1.4) / 0.4)
    over = st.sweep("step", {"times.bandwidth": [1.0, 1.9]}, model="llama-3.3-70b", system="hgx-h100", **shares)
    assert "no FLOP/s remain" in over.reasons[1]


def test_what_is_no_design_is_named():
    with pytest.raises(InputError, match="a design needs an axis of the model"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"batch": [1, 2]})
    with pytest.raises(UnknownName, match=r"did you mean arch\.kv_heads"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"arch.kv_head": [1, 2]})
    with pytest.raises(UnknownName, match="did you mean usd_per_million_tokens"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"arch.kv_heads": [1, 2]}, aims=["usd_per_million"])
    with pytest.raises(UnknownName, match="Known: step, plan"):
        st.design("simulate", "llama-3.3-70b", "hgx-h100", {"arch.kv_heads": [1, 2]})
    with pytest.raises(InputError, match="within: must be power"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"times.link": [1, 2]}, within="money")
    with pytest.raises(InputError, match="follows from the other parts"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"times.flops": [1, 2]}, within="power")
    with pytest.raises(InputError, match="must be power, or shares"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"times.flops": [1, 2]}, within="powr")
    with pytest.raises(InputError, match="every point is refused"):
        st.design("step", "llama-3.3-70b", "hgx-h100", {"times.bandwidth": [-1.0]})
    with pytest.raises(InputError, match="needs a model name"):
        st.sweep("step", {"arch.kv_heads": [1, 2]}, model=st.load_model("llama-3.3-70b"), system="hgx-h100")


def test_none_that_fits_is_said():
    with pytest.raises(InputError, match=r"no design fits: .* of the memory of a chip"):
        st.design("step", "deepseek-v3", "hgx-h100", {"arch.latent": [256, 512]}, tp=8)


def test_design_without_a_layout_of_a_large_model_takes_the_default_one():
    found = st.design("step", "deepseek-v3", "hgx-h200", {"times.bandwidth": "1:2:3"}, within="power")
    assert (found.sweep.fixed["tp"], found.sweep.fixed["ep"]) == (8, 8)
    assert found.front
    assert found.fits.any()


def test_design_of_a_model_that_fits_one_chip_keeps_one_chip():
    found = st.design("step", "llama-3.1-8b", "hgx-h100", {"times.bandwidth": "1:2:3"})
    assert "tp" not in found.sweep.fixed


def test_design_with_a_given_layout_keeps_it():
    found = st.design("step", "llama-3.3-70b", "hgx-h100", {"times.bandwidth": "1:2:3"}, tp=4)
    assert found.sweep.fixed["tp"] == 4


def test_design_that_does_not_fit_within_a_budget_names_the_memory():
    with pytest.raises(InputError, match="of the memory of a chip"):
        st.design("step", "deepseek-v3", "hgx-h200", {"times.bandwidth": [1.0, 4.9]}, within="power", tp=1)


def test_rows_and_table_agree():
    found = st.design("step", "llama-3.3-70b", "hgx-h100", {"times.bandwidth": [1.0, 2.0, 3.0]}, within="power", **CHIP)
    assert [row["times.bandwidth"] for row in found.front_rows] == [found.sweep.axes[0].values[at] for at in found.front]
    assert found.columns()["on_front"].tolist() == [float(at in found.front) for at in range(3)]


def test_parts_that_are_traded_are_not_set_beside():
    held = {"model": "llama-3.3-70b", "system": "hgx-h100", "within": "power", "answers": ["flops"]}
    with pytest.raises(InputError, match="give times"):
        st.sweep("step", {"chip.hbm.bandwidth": [3.35e12, 8e12], "times.link": [2.0]}, **held)
    strong, weak = (
        st.sweep("step", {"times.bandwidth": [2.0]}, **held, **{"chip.power": watts}).answers["flops"].values[0]
        for watts in (700, 400)
    )
    assert strong > weak


@pytest.mark.thorough
def test_what_stands_today_must_fit_and_have_an_answer(closed_forms):
    found = st.design("step", "llama-3.3-70b", "hgx-h100", {"tp": [1, 2], "times.capacity": [1.0, 4.0]}, batch=64, context=8192)
    assert found.today == {}
    assert "than as it is" not in found.text
    axes = {"speed": [1000.0, 30.0], "times.bandwidth": [1.0, 2.0]}
    found = st.design("plan", "llama-3.1-8b", "hgx-h100", axes, chips=1)
    assert found.today["usd_per_million_output_tokens"] > 0


def test_one_variant_that_cannot_be_is_refused_alone():
    found = st.sweep("step", {"arch.kv_heads": [8, 5, 4]}, model="llama-3.3-70b", system="hgx-h100", tp=8)
    assert list(found.reasons) == [1]


def test_prompts_beside_decode_take_memory():
    held = {"model": "llama-3.3-70b", "system": "hgx-h100", "tp": 8, "prompts": 32, "prefix": 60_000}
    alone = st.sweep("step", {"tokens": [4096]}, phase="prefill", **held).answers["memory_share"].values[0]
    mixed = st.sweep("step", {"tokens": [4096]}, phase="mixed", batch=1, context=1000, **held).answers["memory_share"].values[0]
    assert mixed > alone > 1
