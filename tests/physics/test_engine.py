"""Engine files: what they may hold, what is refused and how, and which engine a system gets."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import steptime as st
from steptime.catalog.data_files import PACKAGED
from steptime.errors import DataFileError, RangeError
from steptime.physics.engine import IDEAL, engine_for, label_values, load_engine, with_constants, with_imbalance
from steptime.physics.engine_parameters import CONSTANTS
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from tests.conftest import each, engine, machine, one_matrix, sparse_matrix

GIVEN = {"batch": 1, "context": 1}  # 2.5 ms of weights


def written(tmp_path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_engine(str(path))


def seconds(on, model=None) -> float:
    return float(decode_step(model or one_matrix(), machine(), engine=on, **GIVEN).total)


def test_a_file_is_the_engine_of_its_constants(tmp_path):
    found = written(
        tmp_path, 'title = "mine"\n[constants]\nmemory_efficiency = 0.5\nseconds_per_step = 1\n[source]\nurl = "u"\n'
    )
    assert (found.name, found.title, found.source["url"]) == ("mine", "mine", "u")
    assert seconds(found) == seconds(engine(memory_efficiency=0.5, seconds_per_step=1.0)) == pytest.approx(1.005)
    assert written(tmp_path, 'name = "other"\n[constants]\nsmall_kv = 1\n').name == "other"
    assert seconds(written(tmp_path, "[constants]\nroofline_norm = inf\n")) == seconds("ideal")


def test_a_file_that_changed_is_read_again(tmp_path):
    import os

    assert seconds(written(tmp_path, "[constants]\nmemory_efficiency = 0.5\n")) == pytest.approx(5e-3)
    path = tmp_path / "mine.toml"
    path.write_text("[constants]\nmemory_efficiency = 0.25\n")
    os.utime(path, (1, 1))
    assert seconds(load_engine(str(path))) == pytest.approx(10e-3)


NEUTRAL = {
    1.0: (
        "memory_efficiency", "narrow_efficiency", "compute_efficiency", "expert_call", "unmeasured_expert_time",
        "network_efficiency", "first_token_factor", "memory_share", "fp4_efficiency", "block_efficiency", "integer_efficiency",
        "eight_bit_efficiency", "timed_kernels", "expert_tile_share", "launch_time",
    ),
    0.0: (
        "chip_departure", "seconds_per_layer", "seconds_per_kernel", "seconds_per_quantised_kernel", "seconds_per_expert_layer",
        "seconds_per_latent_layer", "seconds_per_state_layer", "seconds_per_selected_layer",
        "seconds_per_collective", "seconds_per_step", "seconds_per_request", "seconds_before_queue",
        "seconds_before_queue_per_token", "steps_before_answer", "steps_to_balance", "seconds_per_sequence", "seconds_to_start",
        "activation_traffic", "fill_bytes", "expert_time", "attention_time", "exchange_time", "gathers_tokens", "prefill_first",
        "small_kv", "reserved_bytes", "collective_bytes", "sampling_bytes", "expert_imbalance", "expert_skew", "top_p_share",
        "top_p_seconds_per_entry", "top_p_seconds_per_sequence", "top_p_seconds_per_step", "expert_tile_rows",
        "seconds_per_sort", "seconds_per_launched_layer", "seconds_per_launched_kernel", "seconds_per_launched_latent_layer",
        "graph_tokens",
    ),
    math.inf: ("roofline_norm", "expert_evenness", "unpack_rate", "latent_contexts"),
    2.0: ("two_batch",),
    2048.0: ("step_tokens",),
}  # fmt: skip


@each("value, constant", [(value, name) for value, names in NEUTRAL.items() for name in names])
def test_the_ideal_engine_loses_nothing(value, constant):
    """Every efficiency is 1, every overhead 0, and every constant of an engine is one of these."""
    assert engine(**{constant: value}) == engine()
    assert engine(**{constant: value + 1 if math.isfinite(value) else 3e9}) != engine()
    assert {name for names in NEUTRAL.values() for name in names} == set(CONSTANTS)


SMALL = "[constants]\nsmall_kv = 1\n"
FIT = (
    '[constants]\nmemory_efficiency = 0.8\nseconds_per_step = 1e-3\n[fit]\nnames = ["memory_efficiency", "seconds_per_step"]\n'
)
GOOD = FIT + "covariance = [[0.01, 0.0], [0.0, 0.02]]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[constants]\nmemory_eficiency = 0.5\n",
            "constants.memory_eficiency: no such constant; did you mean memory_efficiency?",
        ),
        ("[constants]\nxyzzy = 0.5\n", "constants.xyzzy: no such constant"),
        ('[constants]\nmemory_efficiency = "high"\n', "constants.memory_efficiency: must be a number"),
        ("[constants]\nmemory_efficiency = true\n", "constants.memory_efficiency: must be a number"),
        ("[constants]\nseconds_per_step = -1\n", "constants.seconds_per_step: must be from 0 to 1 (time of host work"),
        ("[constants]\nseconds_per_step = nan\n", "constants.seconds_per_step: must be from 0 to 1 (time of host work"),
        ("[constants]\nmemory_efficiency = 0\n", "constants.memory_efficiency: must be from 0.001 to 1.25"),
        (SMALL + '[fit]\nnames = "memory_efficiency"\n', "fit.names: must be a list of names of constants"),
        (
            '[constants]\nsmall_kv = 1\n[fit]\nnames = ["speed"]\ncovariance = [[1.0]]\n',
            "fit.names: must be a list of names of constants",
        ),
        (
            '[constants]\nsmall_kv = 1\n[fit]\nnames = ["memory_efficiency", "speed"]\n',
            "fit.names: must be a list of names of constants",
        ),
        (FIT + 'covariance = "wide"\n', "fit.covariance: must be rows of numbers"),
        (FIT + "covariance = [[0.01, 0.0], [0.0]]\n", "fit.covariance: must be rows of numbers"),
        (FIT + "covariance = [[0.01]]\n", "fit.covariance: must be 2 x 2 numbers, not 1 x 1"),
        (FIT + "covariance = [[0.01, 0.0], [0.01, 0.02]]\n", "fit.covariance: must be symmetric"),
        (FIT + "covariance = [[0.01, inf], [inf, 0.02]]\n", "fit.covariance: must be symmetric"),
        (FIT + "covariance = [[0.01, 0.0], [0.0, nan]]\n", "fit.covariance: must be symmetric"),
        (FIT + "covariance = [[0.01, 0.0], [0.0, -0.02]]\n", "fit.covariance: must be symmetric"),
        (FIT + "covariance = [[0.01, 0.1], [0.1, 0.01]]\n", "fit.covariance: must be symmetric"),
        (GOOD + "[fit.interval]\ntpot = 3\n", "fit.interval: must have tables such as"),
        (
            GOOD + "[fit.interval]\nttft = 3\n[fit.interval.tpot]\ndecode = [0.8, 1.2]\n",
            "fit.interval: must have tables such as",
        ),
        (GOOD + "[fit.interval.tpot]\ndecode = 3\n", "fit.interval.tpot.decode: must be two factors"),
        (GOOD + "[fit.interval.tpot]\ndecode = [0.8, 1.0, 1.2]\n", "fit.interval.tpot.decode: must be two factors"),
        (GOOD + "[fit.interval.tpot]\ndecode = [0.0, 1.2]\n", "fit.interval.tpot.decode: must be two factors"),
        (GOOD + "[fit.interval.tpot]\ndecode = [0.8, inf]\n", "fit.interval.tpot.decode: must be two factors"),
        (GOOD + '[fit.interval.tpot]\ndecode = [0.8, "x"]\n', "fit.interval.tpot.decode: must be two factors"),
        (GOOD + '[fit.parameter_variance.tpot]\ndecode = "x"\n', "fit.parameter_variance.tpot.decode: must be a variance"),
        (GOOD + "[fit.parameter_variance.tpot]\ndecode = -0.1\n", "fit.parameter_variance.tpot.decode: must be a variance"),
        (GOOD + "[fit.interval.ttft]\ndecode = [0.8, 1.2]\n", "unknown regime 'decode'; ttft has prompt and queue; if"),
        (GOOD + "[fit.interval.tpot]\nqueue = [0.8, 1.2]\n", "unknown regime 'queue'; tpot has decode and mixed; if"),
        (GOOD + "[fit.parameter_variance.ttft]\nslow = 0.1\n", "unknown regime 'slow'; ttft has prompt and queue"),
        (GOOD + "[fit.interval.e2e]\ndecode = [0.8, 1.2]\n", "unknown quantity 'e2e'; use tpot or ttft"),
        (GOOD.replace("[fit]\n", '[fit]\nvendors = ["NVIDIA", 3]\n'), "fit.vendors: must be a list of chip vendors"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(tmp_path, text, says):
    with pytest.raises(DataFileError) as caught:
        written(tmp_path, text)
    assert says in str(caught.value)


def test_a_fit_is_read_as_it_is(tmp_path):
    tables = "[fit.interval.tpot]\ndecode = [0.9, 0.9]\nmixed = [0.8, 1.3]\n[fit.parameter_variance.tpot]\ndecode = 0\n"
    found = written(tmp_path, GOOD.replace("[fit]\n", '[fit]\nvendors = ["NVIDIA"]\n') + tables)
    assert found.fit["names"] == ["memory_efficiency", "seconds_per_step"]
    assert found.fit["interval"]["tpot"]["mixed"] == [0.8, 1.3]
    assert written(tmp_path, "[constants]\nmemory_efficiency = 1.25\n").fit == {}
    barely = FIT + "covariance = [[0.01, 1e-13], [0.0, 0.02]]\n"  # symmetric but for a rounding
    assert written(tmp_path, barely).fit["names"]


def test_which_engine_a_system_gets():
    assert engine_for(machine(vendor="NVIDIA")).name == "vllm"
    assert engine_for(machine(vendor="AMD")).name == "typical"
    assert engine_for(machine(vendor="NVIDIA")).name == "vllm"
    assert engine_for(machine(), "ideal") is IDEAL
    assert load_engine("Ideal") is IDEAL
    mine = engine(memory_efficiency=0.5)
    assert engine_for(machine(), mine) is mine
    with pytest.raises(st.InputError, match="did you mean"):
        load_engine("vlm")


def test_constants_in_the_order_of_their_names():
    changed = with_constants(IDEAL, label_values(["memory_efficiency", "seconds_per_step"], [0.5, 1]))
    assert seconds(changed) == pytest.approx(1.005)
    with pytest.raises(ValueError, match="argument"):
        label_values(["memory_efficiency"], [0.5, 1])


def test_an_imbalance_is_at_least_even():
    model, given = sparse_matrix(), {"batch": 10_000, "context": 1, "layout": Layout(dp=2, ep=2)}
    even = decode_step(model, machine(), engine="ideal", **given).total
    assert decode_step(model, machine(), engine=with_imbalance(IDEAL, 1.0), **given).total == even
    uneven = decode_step(model, machine(), engine=with_imbalance(IDEAL, 1.5), **given)
    assert uneven.terms["experts"] == pytest.approx(1.5 * 40e-3, rel=0.01)
    alone = {"batch": 10_000, "context": 1, "layout": Layout()}
    assert decode_step(model, machine(), engine=with_imbalance(IDEAL, 1.5), **alone).terms["experts"] == pytest.approx(80e-3)
    for wrong in (0.9, float("nan")):
        with pytest.raises(RangeError, match="imbalance must be at least 1"):
            with_imbalance(IDEAL, wrong)


def test_an_engine_in_words():
    shares = {"memory_efficiency": 0.8, "compute_efficiency": 0.5, "network_efficiency": 0.9}
    title, figures = engine(title="mine", fit={"runs": 1234}, **shares).headline()
    assert title == "Engine test: mine"
    assert figures == {"reaches of peak": "memory 80 %, matrices 50 %, network 90 %", "fitted to": "1,234 measured runs"}
    # A long title of a file of one's own ends after 120 characters.
    assert engine(title="x" * 500).headline()[0] == "Engine test: " + "x" * 120
    assert engine().headline() == ("Engine test", {"reaches of peak": "memory 100 %, matrices 100 %, network 100 %"})


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ('model_type = "llama"\n', "it looks like a model's config.json"),
        ('architectures = ["A"]\n', "it looks like a model's config.json"),
        ("[peak]\nfp8 = 1\n", "it looks like a chip, a system or a list of rents"),
        ("[[domains]]\nsize = 1\n", "it looks like a chip, a system or a list of rents"),
        ("[[quotes]]\nusd = 1\n", "it looks like a chip, a system or a list of rents"),
        ("", "an engine file has name, title, kernel_engine, [source], [constants], [[arithmetic]], "),
        ("constants = 3\n", "has no table [constants]"),
        ("[constants]\n", "has no table [constants]"),
        ("[other]\na = 1\n[constants]\nsmall_kv = 1\n", "'other' is not a key of an engine file"),
    ],
)
def test_a_file_of_something_else_is_told(tmp_path, text, looks):
    with pytest.raises(DataFileError) as caught:
        written(tmp_path, text)
    assert looks in str(caught.value)
    assert ("it looks like" in str(caught.value)) == ("it looks like" in looks)


def test_an_imbalance_beyond_its_range_says_the_range():
    with pytest.raises(RangeError, match="imbalance must be at least 1 and at most 10,000, not 20000"):
        with_imbalance(IDEAL, 2e4)
    assert with_imbalance(IDEAL, 1e4).experts.expert_imbalance == 1e4


@pytest.mark.parametrize("model", ["gpt-oss-120b", "llama-3.1-70b"])
def test_a_copy_of_an_engine_under_another_name_runs_its_kernels(tmp_path, model):
    """Constants fitted with the kernels of an engine belong to these kernels, whatever the copy is called."""
    text = (PACKAGED / "engines" / "vllm.toml").read_text(encoding="utf-8")
    copy = tmp_path / "mine.toml"
    copy.write_text(text.replace('name = "vllm"', 'name = "mine"'), encoding="utf-8")
    without = tmp_path / "all.toml"
    every_text = copy.read_text(encoding="utf-8").replace('kernel_engine = "vllm"', 'kernel_engine = ""')
    without.write_text(every_text, encoding="utf-8")
    vllm, mine, every = (
        float(decode_step(model, "hgx-h100", batch=16, context=1000, layout=Layout(tp=2), engine=e).total)
        for e in ("vllm", copy, without)
    )
    assert mine == vllm
    assert abs(every / vllm - 1) > 1e-4


def test_a_calibrated_engine_keeps_the_kernel_engine_its_prior_in_its_file(tmp_path):
    from steptime.validation.engine_fit import engine_file

    path = tmp_path / "mine.toml"
    path.write_text(engine_file(replace(load_engine("sglang"), name="mine"), {}), encoding="utf-8")
    mine = load_engine(path)
    assert (mine.name, mine.kernel_engine) == ("mine", "sglang")
    assert load_engine("typical").kernel_engine == IDEAL.kernel_engine == ""


def test_kernel_engine_an_unknown_engine_are_refused(tmp_path):
    with pytest.raises(DataFileError, match=r"kernel_engine: must be sglang, trtllm, vllm, or empty .* did you mean vllm"):
        written(tmp_path, 'kernel_engine = "vlm"\n[constants]\nsmall_kv = 1\n')
