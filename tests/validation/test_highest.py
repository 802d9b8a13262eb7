"""Throughput under a scenario: orders that hold whatever the constants, and bounds worked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.catalog.hardware_loading import load_system
from steptime.models.model_loading import load_model
from steptime.physics.engine import IDEAL, load_engine
from steptime.physics.layout import Layout
from steptime.validation.disaggregated_loop import read_workload
from steptime.validation.max_throughput import (
    best_run,
    expert_layouts,
    highest,
    late_token_time,
    possible_layouts,
    scenario_limits,
    scenario_workload,
)
from steptime.validation.mlperf_data_sets import submission_notes
from steptime.validation.predictions import predict
from steptime.validation.published_deployments import as_launched, is_scripted
from steptime.validation.run_table import read_runs, served_model
from steptime.validation.scenario_uncertainty import scenario_distances, tuning
from tests.conftest import each
from tests.planning.cases import equal_requests
from tests.validation.rows import SHARED, offline

LIMITS = {"ttft_limit_s": "2.0", "tpot_limit_s": "0.1"}


def test_limits_cost_throughput():
    """Offline is the highest of all but for its end; Server's limits allow less, and Interactive's less than those."""
    rows = [
        offline(),
        offline(scenario="", part="trt_max"),
        offline(scenario="Server", **LIMITS),
        offline(scenario="Interactive", ttft_limit_s="0.5", tpot_limit_s="0.01"),
    ]
    all_at_once, most, server, interactive = predict(rows).output_tok_s
    assert most >= server > interactive > 0
    assert all_at_once == pytest.approx(most * np.exp(tuning(rows[0])[0]), rel=0.01)


def test_the_limits_hold_for_what_is_predicted():
    found = predict([offline(scenario="Server", ttft_limit_s="0.2", tpot_limit_s="0.012")])
    assert found.tpot[0] <= 0.012
    assert found.ttft[0] <= 0.2
    (none,) = predict([offline(scenario="Server", tpot_limit_s="0.0001")]).reason
    assert none == "no prediction: no load meets the limits"


def test_replicas_are_as_many_as_the_chips_have_room_for():
    one, eight, idle = predict([offline(chips="1"), offline(chips="8"), offline(tp="2", chips="3")]).output_tok_s
    assert eight == pytest.approx(8 * one, rel=0.01)
    assert idle == pytest.approx(predict([offline(tp="2", chips="2")]).output_tok_s[0])


def test_a_layout_that_is_not_stated_is_expected_over_the_likely_ones():
    """One chip a replica is the best: 31 of 32, and 1 of 32 twice that; the range contains both."""
    given = [predict([offline(tp=tp)]).output_tok_s[0] for tp in ("1", "2", "4", "8")]
    assert given == sorted(given, reverse=True)
    found = predict([offline(tp="")])
    assert found.output_tok_s[0] == pytest.approx(given[0] ** (31 / 32) * given[1] ** (1 / 32), rel=1e-6)
    assert found.output_tok_s_low[0] < given[1]
    assert found.output_tok_s_high[0] > given[0]


def test_experts_of_a_table_are_divided_in_any_of_three_ways():
    """Half of the weight is data-parallel attention; a stated layout of MLPerf has one way."""
    model, system = load_model("qwen3-235b-a22b"), load_system("hgx-h200")
    table, stated = offline(scenario="", part="trt_max", tp="8"), offline(tp="8")
    ways = expert_layouts(table, Layout(tp=8), model, system)
    assert [(way.tp, way.dp, way.ep, weight) for way, weight in ways] == [(8, 1, 1, 1.0), (8, 1, 8, 1.0), (1, 8, 8, 2.0)]
    assert expert_layouts(stated, Layout(tp=8), model, system) == [(Layout(tp=8), 1.0)]
    assert expert_layouts(table, Layout(tp=8), load_model("llama-3.3-70b"), system) == [(Layout(tp=8), 1.0)]


def test_drafts_that_the_rules_allow_are_taken_where_they_are_faster():
    """gpt-oss-120b may draft with an EAGLE-3 head in Interactive since v6.1; a submission may also leave it off."""
    cells = {
        "model": "openai/gpt-oss-120b",
        "system": "hgx-b200",
        "engine": "trtllm",
        "weight_dtype": "bf16",
        "expert_dtype": "mxfp4",
    }
    limits = {"ttft_limit_s": "2.0", "tpot_limit_s": "0.015"}
    rows = [
        offline(**cells, part="mlperf", engine_version=mlperf_round, scenario=scenario, **limits)
        for scenario in ("Interactive", "Server")
        for mlperf_round in ("v6.0", "v6.1")
    ]
    found = predict(rows).output_tok_s / np.exp([tuning(row)[0] for row in rows])
    assert found[1] > 1.05 * found[0]
    assert found[3] == pytest.approx(found[2])


def test_late_tokens_by_hand():
    """q = 4 % of steps last 0.5 s longer: 0.5 sqrt(0.04 / 400) = 5 ms; half of a step of 60 ms grows with 50 sequences."""
    state = SimpleNamespace(
        tpot=np.array(0.06), growing=0.5, decode_only_share=np.array(0.96), decode=SimpleNamespace(total=np.array(0.04)),
        mixed=SimpleNamespace(total=np.array(0.54)),
    )  # fmt: skip
    work = equal_requests(input_tokens=128, output_tokens=400)
    load = 2 / np.e * 0.03**2 / (50 * 0.5)
    assert late_token_time(state, work, 50.0) == pytest.approx(0.06 + 2.3263 * np.sqrt(0.005**2 + load), rel=1e-4)


def test_server_is_at_most_offline_for_a_deployment():
    """Also where only one of the rows states its layout, or a smaller batch."""
    rows = [offline(tp="4"), offline(scenario="Server", tp="1", **LIMITS), offline(scenario="Interactive", tp="", **LIMITS)]
    all_at_once, server, interactive = predict(rows).output_tok_s
    assert predict(rows[1:2]).output_tok_s[0] > all_at_once
    assert server == pytest.approx(all_at_once)
    assert interactive == pytest.approx(all_at_once)
    other = predict([offline(tp="4", chips="4"), rows[1]]).output_tok_s[1]
    assert other > server


def test_each_row_is_checked_against_physics():
    """The first row of a group has no throughput, the others have their total or their output."""
    rows = [offline(), offline(output_tok_s="500000"), offline(total_tok_s="2500000"), offline(output_tok_s="20000")]
    reasons = [reason.split(":")[0] for reason in predict(rows).reason]
    assert reasons == ["", "cannot be right", "cannot be right", ""]


@each(
    "model, engine_version, mean",
    [
        ("gpt-oss-120b", "v6.0", -0.30),
        ("gpt-oss-120b", "v6.1", 0.0),
        ("llama-3.3-70b", "v9.9", -0.30),
        ("deepseek-ai/DeepSeek-R1", "v5.1", -0.30),
        # One later round: -0.13 x 0.15^2 / (0.15^2 + 0.1^2).
        ("meta-llama/Llama-3.1-8B", "v6.0", -0.13 * 0.0225 / 0.0325),
    ],
)
def test_tuning_of_first_and_later_rounds(model, engine_version, mean):
    assert tuning(offline(model=model, engine_version=engine_version))[0] == pytest.approx(mean, abs=1e-9)


@each("vendor, added", [("AMD", 0.23), ("Intel", 0.55), ("Google", 0.0)])
def test_submissions_on_chips_of_other_vendors_are_tuned_further(vendor, added):
    """In each scenario by the same factor, and by none in tables of maximum throughput."""
    for scenario in ("Offline", "Server", "Interactive"):
        row = offline(scenario=scenario)
        assert tuning(row, vendor)[0] - tuning(row, "NVIDIA")[0] == pytest.approx(added)
    assert tuning(offline(part="trt_max"), vendor) == (0.0, 0.0)


@each("scenario, deviation", [("Offline", 0.1), ("Server", 0.1), ("Interactive", 0.5)])
def test_ranges_contain_tuning_of_benchmarks_and_submitters(scenario, deviation):
    """Llama-2-70B, two later rounds: 0.15 sqrt(1 - 0.045 / 0.055) = 0.064 remains; 90 % are 1.645 deviations."""
    remaining = 0.15 if scenario == "Interactive" else 0.0640
    row = offline(model="llama-2-70b", engine_version="v6.0", scenario=scenario)
    layout, submission, end = (distance for distance, _ in scenario_distances(row, [1.0], np.ones(1)))
    assert (layout.low, end.low) == (0.0, 0.0)
    assert submission.low == submission.high == pytest.approx(1.645 * np.hypot(remaining, deviation), rel=1e-3)


def replayed(system, scenario, rate, count, **cells):
    """Return a run of Llama-2-70B on one chip, its prediction and its replay with drawn outputs."""
    row = offline(
        model="meta-llama/Llama-2-70b-hf", system=system, engine="trtllm", scenario=scenario, chips="1", tp="1",
        input_tokens="294", output_tokens="285", requests=str(count), **cells,
    )  # fmt: skip
    machine, engine = load_system(system), load_engine("trtllm")
    model = served_model(row, machine, engine, None)
    work, lengths = scenario_workload(row)
    best = best_run(row, model, machine, work, lengths, Layout(replicas=1), engine)
    drawn = np.random.default_rng(1).lognormal(lengths._location, lengths.deviation, count)
    outputs = np.clip(np.round(drawn), 1, lengths.longest).astype(np.int64)
    traffic = st.open_loop(rate or best["rate"], count, st.Lengths(mean=294), st.Lengths(mean=285), seed=1)
    policy = st.Policy(max_num_seqs=int(row["concurrency"]), max_num_batched_tokens=8192)
    return best, outputs, st.simulate(model, machine, replace(traffic, outputs=outputs), engine=engine, policy=policy).requests


def test_an_offline_run_with_its_end_is_that_of_the_simulator():
    pytest.importorskip("numba")
    best, outputs, requests = replayed("hgx-h200", "Offline", 1e5, 3000, weight_dtype="fp8", concurrency="512")
    assert best["output_tok_s"] == pytest.approx(outputs.sum() / np.max(requests["finish"]), rel=0.05)
    assert best["end_loss"] > 0.03


def test_the_99th_percentile_at_the_predicted_rate_is_that_of_the_simulator():
    pytest.importorskip("numba")
    limits = {"ttft_limit_s": "0.45", "tpot_limit_s": "0.04"}
    _, outputs, requests = replayed("hgx-b200", "Interactive", 0.0, 9000, weight_dtype="nvfp4", concurrency="768", **limits)
    times = (requests["finish"] - requests["first"]) / np.maximum(outputs - 1, 1)
    assert np.quantile(times, 0.99) == pytest.approx(0.9 * 0.04, rel=0.1)


def test_limits_of_mlperf_are_kept_at_a_distance():
    row = offline(scenario="Server", **LIMITS)
    assert scenario_limits(row) == pytest.approx((1.8, 0.09))
    assert scenario_limits(row | {"part": ""}) == (2.0, 0.1)
    assert scenario_limits(offline()) == (np.inf, np.inf)


def test_columns_of_mlperf_are_those_of_the_submission():
    row = offline(model="openai/gpt-oss-120b", scenario="Interactive", concurrency="110", tpot_limit_s="0.02")
    assert as_launched(row)["concurrency"] == ""
    assert as_launched(row)["tpot_limit_s"] == "0.015"
    assert as_launched(row | {"concurrency": "512"})["concurrency"] == "512"
    plain = offline()
    assert as_launched(plain) is plain
    assert not is_scripted(row)
    assert [note.split(" of")[0] for note in submission_notes([row, row, plain])] == ["2 runs"]
    assert submission_notes([plain]) == []
    assert scenario_workload(row)[0].input_tokens == 4200
    assert scenario_workload(row | {"input_mean": "900"})[0].input_tokens == 900


def test_a_batch_that_is_told_is_the_most_of_a_replica():
    """Of one sequence a replica the ideal makes 1 / step tokens a second, but for prompts: 3.35 TB/s over 16.06 GB are 208."""
    (one,) = predict([offline(concurrency="1", chips="1", input_tokens="1")], engine=IDEAL).output_tok_s
    assert one == pytest.approx(3.35e12 / 16.06e9, rel=0.1)


def test_no_throughput_is_more_than_the_arithmetic_of_the_chips():
    """989 TFLOP/s over 2 x 8.03e9 multiplies and adds a token, of prompts and of outputs."""
    (most,) = predict([offline(chips="1")], engine=IDEAL).output_tok_s
    assert most < 989e12 / (2 * 7.5e9) * 256 / (1024 + 256)
    (real,) = predict([offline(chips="1")]).output_tok_s
    assert 0.3 * most < real < most


def test_weights_that_fit_no_division_are_named():
    (reason,) = predict([offline(model="deepseek-v3", weight_dtype="bf16", tp="")]).reason
    assert reason.startswith("cannot be right: weights do not fit: 16")
    (reason,) = predict([offline(tp="8", chips="4")]).reason
    assert reason == "cannot be right: a replica has 8 chips, but the run has 4"


def test_more_than_physics_allows_is_named():
    slow, fast = predict([offline(output_tok_s="50000"), offline(output_tok_s="500000")]).reason
    assert slow == ""
    assert fast.startswith("cannot be right: faster than physics: 500,000 tok/s, the maximum is ")


def test_waits_have_a_tail():
    """A limit on the first token is kept by 99 % of requests: the mean is well below it where queues are."""
    model, system, engine = load_model("llama-3.1-8b"), load_system("hgx-h100"), load_engine("vllm")
    row = offline()
    layouts, _ = possible_layouts(row, model, system, read_workload(row), engine)
    assert layouts == [Layout(tp=1, replicas=8)]
    limits = np.array([0.1, 0.2, 0.4])
    speeds = [highest(model, system, read_workload(row), layouts, engine, ttft=ttft)["output_tok_s"] for ttft in limits]
    assert speeds == sorted(speeds)


def test_room_for_whole_outputs_is_room_for_fewer():
    """70 GB of weights and 160 kB a token: outputs of 4,096 tokens need 1.9 times the room of their means."""
    model, system = load_model("llama-3.3-70b", weights="fp8", kv="fp8"), load_system("hgx-h200")
    work = equal_requests(input_tokens=128, output_tokens=4096)
    part, whole = (
        highest(model, system, work, [Layout()], load_engine("trtllm"), is_output_reserved=kept)["output_tok_s"]
        for kept in (False, True)
    )
    assert 1.05 * whole < part < (4224 / 2176) * whole


@pytest.mark.skipif(not SHARED.exists(), reason="measured runs are not beside the checkout")
def test_dual_boards_of_intel_are_two_chips_each_and_multiply_in_int8():
    """MLPerf v5.1 counts four dual boards of Arc Pro B60 (48 GB) as four; weights of 4 bits go faster than bf16 could."""
    rows = [row for row in read_runs(str(SHARED / "serving_more.csv"))[0] if row["system"] == "intel-b60-8"]
    assert [int(float(as_launched(row)["chips"])) for row in rows] == [2 * int(float(row["chips"])) for row in rows]
    assert len(rows) == 7
    told = [row | {"weight_dtype": "int8"} for row in rows]
    found, measured = predict(told), np.array([float(row["output_tok_s"]) for row in rows])
    assert set(found.reason) == {""}
    assert np.all((found.output_tok_s_low < measured) & (measured < found.output_tok_s_high))
