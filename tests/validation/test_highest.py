"""Throughput under a scenario: orders that hold whatever the constants, and bounds worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.models.model_loading import load_model
from steptime.physics.engine import IDEAL, load_engine
from steptime.physics.layout import Layout
from steptime.validation.disaggregated_loop import read_workload
from steptime.validation.max_throughput import highest, possible_layouts
from steptime.validation.predictions import predict
from steptime.validation.run_table import read_runs
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
    assert all_at_once == pytest.approx(most, rel=0.01)


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


def test_a_division_that_is_not_known_is_the_best():
    given = [predict([offline(tp=tp)]).output_tok_s[0] for tp in ("1", "2", "4", "8")]
    assert predict([offline(tp="")]).output_tok_s[0] == pytest.approx(max(given))


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
    assert len(rows) == 7
    assert all(reason.startswith("cannot be right: faster than physics") for reason in predict(rows).reason)
    told = [row | {"chips": str(2 * float(row["chips"])), "weight_dtype": "int8"} for row in rows]
    found, measured = predict(told), np.array([float(row["output_tok_s"]) for row in rows])
    assert set(found.reason) == {""}
    assert np.all((found.output_tok_s_low < measured) & (measured < found.output_tok_s_high))
