"""The step predictor against exact steps, its adapters against the signatures of simulators, and its local server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from typer.testing import CliRunner

import steptime as st
from steptime.catalog.hardware_loading import load_system
from steptime.cli.main import app_for
from steptime.errors import LayoutError, RangeError
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import load_engine
from steptime.physics.layout import Layout
from steptime.physics.step import mixed_step
from steptime.simulation import simulator_adapters, step_predictor
from steptime.simulation.simulator_adapters import (
    LlmdLatencyCalculator,
    LlmServingSimTimePredictor,
    SglangTimePredictor,
    TrtllmTimePredictor,
    VidurTimePredictor,
    VllmTimePredictor,
    answer_line,
    read_address,
    serve_predictor,
    split_pass,
)
from steptime.simulation.step_predictor import compile_predictor, drawn_passes
from tests.conftest import each, every, examples

CASES = {
    "dense": ("llama-3.1-8b", "hgx-h100", {}),
    "experts": ("qwen3-30b-a3b", "hgx-h100", {}),
    "windows": ("gpt-oss-20b", "dgx-spark", {"engine": "llama.cpp", "weights": "q8_0", "experts": "mxfp4", "max_batch": 32}),
    "tensor parallel": ("llama-3.1-70b", "hgx-h100", {"layout": st.Layout(tp=8)}),
    "latent": ("deepseek-v2-lite", "hgx-h200", {}),
    "joint attention": ("llama-3.1-8b", "rtx-pro-6000-8", {"max_context": 16_384}),
    "expert parallel": ("deepseek-v3", "hgx-h200", {"layout": st.Layout(tp=8, ep=8)}),
}


@pytest.fixture(scope="module")
def dense():
    return compile_predictor("llama-3.1-8b", "hgx-h100")


@pytest.fixture(scope="module")
def routed():
    return compile_predictor("deepseek-v3", "hgx-h200", layout=st.Layout(tp=8, ep=8))


@pytest.mark.parametrize("case", every(2, CASES))
def test_drawn_passes_equal_exact_steps_within_one_percent(case):
    model, system, options = CASES[case]
    predictor = compile_predictor(model, system, **options)
    loaded = st.load_model(model, weights=options.get("weights", ""), experts=options.get("experts", ""))
    loaded = as_served(loaded, load_system(system), load_engine(predictor.engine))
    sizes = drawn_passes(predictor, 900, 23)
    exact = mixed_step(loaded, system, **sizes, layout=predictor.layout, engine=options.get("engine"), parts=False).total
    names = ("batch", "context", "prompts", "tokens", "prefix")
    answers = [predictor.uniform_seconds(*values) for values in zip(*(sizes[name].tolist() for name in names), strict=True)]
    assert np.max(sizes["prompts"]) > 0.9 * predictor.max_batch
    assert np.max(np.abs(np.array(answers) / exact - 1)) < 0.01
    assert predictor.error < 0.01


@examples(60)
@given(
    batch=some.integers(0, 256), context=some.integers(1, 100_000), prompts=some.integers(0, 8),
    tokens=some.integers(1, 1024), prefix=some.integers(0, 20_000),
)  # fmt: skip
def test_any_pass_equals_the_exact_step_within_one_percent(dense, batch, context, prompts, tokens, prefix):
    if batch == prompts == 0:
        return
    sizes = {"batch": batch, "context": context, "prompts": prompts, "tokens": tokens * (prompts > 0), "prefix": prefix}
    assert dense.uniform_seconds(**sizes) == pytest.approx(
        float(mixed_step("llama-3.1-8b", "hgx-h100", **sizes).total), rel=0.01
    )


def test_equal_requests_are_a_uniform_pass_and_an_empty_pass_takes_no_time(dense):
    assert dense.seconds([4096] * 32, [(512, 1024)] * 2) == pytest.approx(dense.uniform_seconds(32, 4096, 2, 512, 1024))
    assert dense.seconds() == dense.uniform_seconds() == 0.0


def test_new_tokens_belong_to_one_prompt_where_no_number_of_prompts_is_given(dense):
    """As in `steptime step`; the server of lines answered with decode alone."""
    exact = float(mixed_step("llama-3.1-8b", "hgx-h100", batch=64, context=2048, prompts=1, tokens=500).total)
    assert dense.uniform_seconds(batch=64, context=2048, tokens=500) == pytest.approx(exact, rel=0.01)
    assert dense.uniform_seconds(64, 2048) < 0.9 * exact


def test_unequal_contexts_count_with_their_mean(dense):
    assert dense.seconds([1000, 3000]) == pytest.approx(dense.uniform_seconds(2, 2000))


def test_unequal_prompts_count_with_their_pairs(dense):
    """A prompt of 3,000 tokens has more pairs than two of 1,500; both together are between two equal pairs of prompts."""
    unequal = dense.seconds([], [(2900, 0), (100, 0)])
    assert dense.seconds([], [(1500, 0), (1500, 0)]) < unequal < dense.seconds([], [(1500, 1500), (1500, 1500)])


@pytest.mark.parametrize(
    ("prompts", "tokens", "batch"), [(1, 7308, 0), (21, 348, 0), (203, 36, 0), (21, 348, 64), (256, 1, 256)]
)
def test_experts_of_several_ranks_depend_on_tokens_and_prompts(routed, prompts, tokens, batch):
    sizes = {"prompts": prompts, "tokens": tokens, "batch": batch, "context": 500 * (batch > 0)}
    # Engines keep 8 bits of the cache of a model that is computed in 8 bits.
    model = st.load_model("deepseek-v3", kv="fp8")
    exact = float(mixed_step(model, "hgx-h200", **sizes, layout=routed.layout).total)
    assert routed.uniform_seconds(**sizes) == pytest.approx(exact, rel=0.005)
    assert routed.seconds([500] * batch, [(tokens, 0)] * prompts) == pytest.approx(exact, rel=0.005)


def test_experts_count_the_tokens_of_unequal_prompts(routed):
    """Prompts of 7,000 and thrice 100 tokens fluctuate as 7,300² / (7,000² + 3 x 100²) = 1.0869 equal ones."""
    prompts = [(7000, 0)] + [(100, 0)] * 3
    # Four equal prompts with the same pairs: half of the sum of squares, over the tokens, less half of the mean tokens.
    prefix = 49_030_000 / 2 / 7300 - 1825 / 2
    effective = 7300**2 / 49_030_000
    assert effective == pytest.approx(1.0869, abs=1e-4)
    one, four = (
        float(mixed_step("deepseek-v3", "hgx-h200", prompts=p, tokens=7300 / p, layout=routed.layout).terms["experts"])
        for p in (effective, 4)
    )
    assert one > 1.15 * four
    assert routed.seconds([], prompts) - routed.uniform_seconds(0, 0, 4, 1825, prefix) == pytest.approx(one - four, rel=0.01)


def test_only_expert_parallel_tables_have_experts_apart(dense, routed):
    whole = compile_predictor("qwen3-30b-a3b", "hgx-h100", max_batch=16, max_tokens=256, max_context=1024)
    assert not dense.experts
    assert not whole.experts
    assert np.shape(routed.experts) == (len(routed.expert_rows), len(routed.expert_requests))
    assert routed.expert_requests[-1] == pytest.approx(2 * routed.max_batch)


def test_a_prompt_of_almost_no_tokens_has_a_time(routed):
    assert routed.uniform_seconds(prompts=1, tokens=1e-200) > 0


def test_a_table_with_a_large_error_has_a_note(dense, monkeypatch):
    assert not dense.note
    assert "note" not in dense.headline()[1]
    wrong = replace(dense, error=0.034)
    assert "3.4 %" in wrong.note
    assert wrong.headline()[1]["note"] == wrong.note == wrong.to_dict()["note"]
    monkeypatch.setattr(step_predictor, "PROMISED", 0.0)
    words = ["predictor", "llama-3.1-8b", "hgx-h100", "--max-batch", "16", "--max-tokens", "512", "--max-context", "4096"]
    ran = CliRunner().invoke(app_for(words), words, input='{"batch": 4, "context": 1000}\n')
    assert "Note: this table departs" in ran.stderr
    assert "seconds" in json.loads(ran.stdout)


def test_weights_that_do_not_fit_have_a_note(dense):
    """810 GB of weights on one chip of 80 GB; its step times are those of a machine that cannot be."""
    wrong = compile_predictor("llama-3.1-405b", "hgx-h100", layout=st.Layout(), max_batch=4, max_tokens=16, max_context=64)
    assert wrong.excess == pytest.approx(2 * 405.85e9 - 0.92 * 80e9, rel=0.02)
    assert "does not fit" in wrong.note
    assert (dense.excess, dense.note) == (0.0, "")


def test_fields_of_several_forms_are_not_unknown(dense):
    mixed = answer_line(dense, '{"batch": 64, "contexts": [1]}')["error"]
    assert "fields of several forms: batch, contexts;" in mixed
    assert "unknown fields bach;" in answer_line(dense, '{"bach": 64, "context": 2048}')["error"]


def test_it_answers_thousands_of_times_a_second(dense):
    start = time.perf_counter()
    for _ in range(2000):
        dense.uniform_seconds(64, 3000, 1, 300, 1000)
    # 50 us each are the aim; a machine that does other work may take more.
    assert time.perf_counter() - start < 2000 * 250e-6


@each("values", [(300, 10), (1, -1), (1, 1e9), (float("nan"), 1), (0, 0, 1, 9000), (0, 0, 2, 100, -5)])
def test_a_pass_outside_the_table_is_refused(dense, values):
    with pytest.raises(RangeError):
        dense.uniform_seconds(*values)


def test_layouts_with_several_ranks_are_refused():
    with pytest.raises(LayoutError, match="one data-parallel rank"):
        compile_predictor("llama-3.1-8b", "hgx-h100", layout=st.Layout(dp=2))
    with pytest.raises(RangeError, match="max_batch"):
        compile_predictor("llama-3.1-8b", "hgx-h100", max_batch=0)


# Contracts of the simulators' interfaces, written from their sources.


@dataclass
class ScheduleRequest:
    """sglang_simulator/time_predictor/base.py (github.com/sgl-project/sglang/pull/33824)."""

    extend_length: int = 0
    past_kv_length: int = 0


@dataclass
class ScheduleBatch:
    """The batch of the same file."""

    reqs: list[ScheduleRequest] = field(default_factory=list)
    forward_mode: str | None = None


@dataclass
class SimBatch:
    """Batch of the simulation mode of TensorRT-LLM (github.com/NVIDIA/TensorRT-LLM/pull/12700)."""

    num_context_requests: int
    num_context_tokens: int
    num_generation_requests: int
    num_generation_tokens: int


def test_sglang_contract(dense):
    predictor = SglangTimePredictor(object(), object(), object(), predictor=dense)
    mixed = ScheduleBatch([ScheduleRequest(512, 0), ScheduleRequest(1, 900), ScheduleRequest(256, 512)], "MIXED")
    seconds = predictor.predict_infer_time(mixed)
    assert isinstance(seconds, float)
    assert seconds == dense.seconds([900], [(512, 0), (256, 512)])
    assert predictor.get_metrics()["calls"] == 1
    predictor.reset_metrics()
    assert predictor.get_metrics()["calls"] == 0
    assert predictor.predict_infer_time(ScheduleBatch()) == 0.0


def test_tensorrt_llm_contract(dense):
    predictor = TrtllmTimePredictor(dense, mean_context=2000)
    assert predictor.predict(SimBatch(0, 0, 16, 16)) == dense.uniform_seconds(16, 2000)
    assert predictor.predict(SimBatch(2, 600, 16, 16)) == dense.uniform_seconds(16, 2000, 2, 300)


def test_vllm_contract(dense):
    """`SchedulerOutput`, `NewRequestData` and `CachedRequestData` of vllm/v1/core/sched/output.py."""
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="a", num_computed_tokens=64)],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["b", "c"], num_computed_tokens=[700, 2048]),
        num_scheduled_tokens={"a": 448, "b": 1, "c": 512},
    )
    assert VllmTimePredictor(dense).step_seconds(output) == dense.seconds([700], [(448, 64), (512, 2048)])


def test_llmservingsim_contract(dense):
    """`Batch` of LLMServingSim at 5daddb21, serving/core/request.py: new and cached tokens of prompts."""
    batch = SimpleNamespace(prefill_q_list=[448, 512], prefill_k_list=[64, 2048], decode_k_list=[700, 0])
    nanoseconds = LlmServingSimTimePredictor(dense).batch_nanoseconds(batch)
    assert isinstance(nanoseconds, int)
    assert nanoseconds == round(1e9 * dense.seconds([700, 0], [(448, 64), (512, 2048)]))


def test_llm_d_contract(dense):
    """`LatencyCalculator` of llm-d-inference-sim, pkg/llm-d-inference-sim/latencies.go: `time.Duration` counts nanoseconds."""
    calculator = LlmdLatencyCalculator(dense, mean_context=1000, chunk=2048)
    assert calculator.get_inter_token_latency(8) == round(1e9 * dense.uniform_seconds(8, 1000))
    first = calculator.get_time_to_first_token(3000, 0, False, 1)
    assert first == round(1e9 * (dense.uniform_seconds(0, 1000, 1, 2048, 0) + dense.uniform_seconds(0, 1000, 1, 952, 2048)))
    assert calculator.get_time_to_first_token(3000, 2000) < first
    assert calculator.get_time_to_first_token(3000, 3000) > 0
    assert calculator.get_time_to_first_token(1000, 0, True) == round(1e9 * 1000 * 131_072 / 50e9)


def test_vidur_contract(dense):
    """`Batch` of Vidur 0.0.26: tokens of the KV cache include the new ones; `KVParallelBatch` has a batch per group."""
    predictor = VidurTimePredictor(dense)
    batch = SimpleNamespace(num_q_tokens=[1, 256], num_kv_tokens=[901, 768])
    times = predictor.get_execution_time(batch, 0)
    assert times.total_time == times.model_time == dense.seconds([900], [(256, 512)])
    assert times.model_time_ms == 1e3 * times.total_time
    small = SimpleNamespace(num_q_tokens=[1], num_kv_tokens=[10])
    assert predictor.get_execution_time(SimpleNamespace(batch_mapping={0: small, 1: batch})) == times
    older = SimpleNamespace(num_tokens=[256], requests=[SimpleNamespace(num_processed_tokens=512)])
    assert predictor.get_execution_time(older).total_time == dense.seconds([], [(256, 512)])


def test_a_single_first_token_is_a_prompt():
    assert split_pass([(1, 0), (1, 5)]) == ([5], [(1, 0)])


@each(
    "line",
    [
        b"", b"[]", b"{}", b"nan", b'{"batch": -1}', b'{"batch": "x"}', b'{"batch": true}', b'{"bach": 1}', b'{"contexts": 5}',
        b'{"prefills": [[1]]}', b'{"batch": 1e999}', b'{"batch": 100000, "context": 5}', b"[" * 50_000, b"\xff",
        b'{"PromptTokens": 1, "DoRemotePrefill": 1}', b'{"PromptTokens": 99999999}', b'{"prefills": [[1, null]]}',
    ],
)  # fmt: skip
def test_an_odd_line_gets_an_error(dense, line):
    answer = answer_line(dense, line)
    assert set(answer) == {"error"}
    assert len(answer["error"]) < 400


def test_addresses_are_of_this_machine():
    assert read_address("localhost:80") == ("127.0.0.1", 80)
    for wrong in ("0.0.0.0:80", "example.org:80", "99999"):
        with pytest.raises(RangeError, match="listen"):
            read_address(wrong)


async def talk(predictor: Any, address: str, lines: list[bytes], **limits: Any) -> tuple[str, list[dict[str, Any]]]:
    """Start a server, send lines on one connection, and return its address and answers."""
    ready = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(serve_predictor(predictor, address, ready=ready, **limits))
    await asyncio.wait({ready, server}, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    place = ready.result()
    host, _, port = place.rpartition(":")
    opened = asyncio.open_connection(host, int(port)) if port.isdigit() else asyncio.open_unix_connection(place)
    reader, writer = await opened
    answers = []
    for line in lines:
        writer.write(line + b"\n")
        answers.append(json.loads(await asyncio.wait_for(reader.readline(), 10)))
    writer.close()
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    return place, answers


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_the_server_answers_lines_and_survives_odd_ones(dense, tmp_path, kind):
    address = "0" if kind == "port" else str(tmp_path / "s")
    lines = [b'{"batch": 8, "context": 1000}', b"odd", b'{"contexts": [1000], "prefills": [[64, 0]]}', b'{"RunningReqs": 4}']
    _, answers = asyncio.run(talk(dense, address, lines))
    assert answers[0] == {"seconds": dense.uniform_seconds(8, 1000)}
    assert "error" in answers[1]
    assert answers[2] == {"seconds": dense.seconds([1000], [(64, 0)])}
    assert answers[3]["nanoseconds"] > 0


def test_connections_and_lines_are_bounded(dense, monkeypatch):
    _, answers = asyncio.run(talk(dense, "0", [b"{}"], connections=0))
    assert "connections are open" in answers[0]["error"]
    monkeypatch.setattr(simulator_adapters, "LONGEST_LINE", 100)
    _, answers = asyncio.run(talk(dense, "0", [b" " * 200]))
    assert "at most 100 bytes" in answers[0]["error"]


def test_an_address_that_is_a_file_is_refused(dense, tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(RangeError, match="cannot listen"):
        asyncio.run(talk(dense, str(tmp_path / "file"), []))
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"


def test_the_command_answers_lines_of_standard_input():
    words = ["predictor", "llama-3.1-8b", "hgx-h100", "--max-batch", "16", "--max-tokens", "512", "--max-context", "4096"]
    ran = CliRunner().invoke(app_for(words), words, input='{"batch": 4, "context": 1000}\nodd\n')
    assert ran.exit_code == 0, ran.output
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert answers[0]["seconds"] == pytest.approx(
        float(st.decode_step("llama-3.1-8b", "hgx-h100", batch=4, context=1000).total), rel=0.01
    )
    assert "error" in answers[1]
    summary = CliRunner().invoke(app_for(words), [*words, "--json"])
    assert json.loads(summary.stdout)["max_batch"] == 16


@pytest.mark.parametrize("tp", [1, 8])
def test_launches_of_tensorrt_llm_are_a_least_time_of_a_pass(tp):
    """Of 32 layers: 12.8 ms and what is outside of layers, whatever a pass holds; longer passes hide it."""
    layout = Layout(tp=tp)
    predictor = compile_predictor("llama-3.1-8b", "hgx-h100", engine="trtllm", layout=layout, max_batch=64, max_tokens=2048)
    assert predictor.error < 0.02
    for batch, tokens in ((0, 8), (64, 8), (32, 2048)):
        exact = mixed_step(
            "llama-3.1-8b", "hgx-h100", engine="trtllm", layout=layout, batch=batch, context=4000, prompts=1, tokens=tokens
        )
        assert predictor.uniform_seconds(batch, 4000, 1, tokens) == pytest.approx(float(exact.total), rel=0.02)
        assert float(exact.lower) >= 32 * 0.4e-3
