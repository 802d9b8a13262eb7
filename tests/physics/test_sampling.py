"""Top-p: its time by vocabulary and sequence, and the constants of older releases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.errors import DataFileError
from steptime.models.model_loading import load_model
from steptime.physics.engine import IDEAL, at_release, load_engine, with_constants, with_sampling
from steptime.physics.engine_releases import Release, read_releases, release_bound
from steptime.physics.expert_kernels import ExpertFactor
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from tests.conftest import each, one_matrix
from tests.physics.passes import decode

MODEL = replace(one_matrix(), vocabulary=100_000)
# 1 ps an entry: 100 ns a token; with 1 us of host work 1.1 us; 64 sequences take 70.4 us, and the step 10 us more.
COSTS = {"top_p_seconds_per_entry": 1e-12, "top_p_seconds_per_sequence": 1e-6, "top_p_seconds_per_step": 1e-5}
ENGINE = replace(with_constants(IDEAL, COSTS), name="costly")


def test_top_p_costs_by_token_vocabulary_and_step():
    greedy, drawn = decode(MODEL, on=ENGINE), decode(MODEL, on=with_sampling(ENGINE, "top-p"))
    assert float(drawn.total - greedy.total) == pytest.approx(64 * 1.1e-6 + 1e-5)
    assert greedy.total == decode(MODEL, on=IDEAL).total
    half = with_constants(ENGINE, {"top_p_share": 0.5})
    assert float(decode(MODEL, on=half).total - greedy.total) == pytest.approx((64 * 1.1e-6 + 1e-5) / 2)


def test_tensor_parallelism_does_not_divide_sampling_and_data_parallelism_does():
    model = load_model("deepseek-v3")

    def extra(**sizes):
        given = {"batch": 64, "context": 1000, "layout": Layout(**sizes)}
        on = {sampling: with_sampling(ENGINE, sampling) for sampling in ("greedy", "top-p")}
        times = {sampling: decode_step(model, "hgx-h200", engine=engine, **given).total for sampling, engine in on.items()}
        return float(times["top-p"] - times["greedy"])

    token = 129_280 * 1e-12 + 1e-6
    assert extra(tp=8) == pytest.approx(64 * token + 1e-5)
    assert extra(tp=2, dp=4, ep=8) == pytest.approx(16 * token + 1e-5)


def test_the_constants_of_old_releases():
    old, older = Release(before="0.12", constants={"seconds_per_step": 2e-3}), Release(before="0.9", constants={})
    engine = replace(ENGINE, releases=(older, old))
    assert [at_release(engine, version).overheads.seconds_per_step for version in ("0.11.1", "0.12.0", "", "nightly-9")] == [
        2e-3, 0.0, 0.0, 0.0,
    ]  # fmt: skip
    assert release_bound(engine.releases, "0.8.5") == "0.9"


def test_vllm_sorted_the_logits_before_0_12():
    vllm = load_engine("vllm")
    now, before = (at_release(vllm, version).overheads for version in ("0.19.0", "0.11.1"))
    assert (before.top_p_seconds_per_entry, now.top_p_seconds_per_entry) == (9.2e-11, 3.1e-11)
    assert before.top_p_seconds_per_step > now.top_p_seconds_per_step == 0


def test_expert_kernel_engine_an_old_release_have_a_factor_by_format():
    old = Release(before="0.12", constants={}, experts={"fp8_block": 2.0})
    entries = tuple(ExpertFactor(chips="hopper", stored=stored, factor=1.5) for stored in ("fp8_block", "bf16"))
    engine = replace(ENGINE, releases=(old,), expert_factors=entries)
    assert [entry.factor for entry in at_release(engine, "0.11").expert_factors] == [3.0, 1.5]
    assert at_release(engine, "0.12").expert_factors == entries


@each(
    "entries, problem",
    [
        ({}, "must be a list of tables"),
        ([{"seconds_per_step": 1e-3}], "needs before"),
        ([{"before": "soon"}], "needs before"),
        ([{"before": "0.9", "seconds_a_step": 1e-3}], "unknown constant"),
        ([{"before": "0.9", "seconds_per_step": -1}], "seconds_per_step"),
        ([{"before": "0.9"}, {"before": "0.8"}], "must follow the older release"),
        ([{"before": "0.9", "experts": {"bf16": 20}}], "experts must be factors from 0.1 to 10"),
    ],
)
def test_malformed_releases_are_named(entries, problem):
    with pytest.raises(ValueError, match=problem):
        read_releases(entries)


def test_an_engine_file_with_a_wrong_release_names_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[constants]\nmemory_efficiency = 0.8\n[[releases]]\nbefore = "0.9"\nx = 1\n')
    with pytest.raises(DataFileError, match="releases, table 1: unknown constant"):
        load_engine(path)


@pytest.mark.parametrize(("name", "share"), [("hgx-b200", 0.765), ("hgx-a100", 1.0)])
def test_kernels_launched_before_their_predecessors_end_save_a_share_of_their_fixed_times(name, share):
    """TensorRT-LLM does so since 1.2, on Hopper and newer chips."""
    model, layout = load_model("deepseek-v3"), Layout(tp=8, ep=8)
    now, before = (at_release(load_engine("trtllm"), version) for version in ("1.2.0rc6.post2", "1.1.0rc2.post2"))
    assert (now.overheads.launch_time, before.overheads.launch_time) == (0.765, 1.0)

    def fixed(engine):
        step = decode_step(model, name, layout=layout, batch=8, context=4096, engine=engine)
        host = engine.overheads.seconds_per_step + 8 * engine.overheads.seconds_per_sequence
        return float(step.resources["overhead"]) - host

    assert fixed(now) == pytest.approx(share * fixed(before), rel=1e-9)
