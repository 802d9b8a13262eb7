"""Results of vLLM's and SGLang's own load generators, read as runs.

The fields are those that these programs write, values are made up:
https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py (0.33; before, benchmarks/benchmark_serving.py)
https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_serving.py (0.4.6; later, sglang/benchmark/serving.py)
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from steptime.errors import DataFileError, InputError
from steptime.physics.engine import load_engine
from steptime.validation.bench_results import convert_result, objects, read_files
from steptime.validation.predictions import grouped, predict
from steptime.validation.run_table import checker
from tests.cli.test_commands import run
from tests.conftest import each
from tests.validation.test_validation import one, written

GIVEN = {"system": "hgx-h100", "tp": "1", "weight_dtype": "bf16"}
OPTIONS = "--system hgx-h100 --tp 1 --weights bf16"

VLLM = {  # --save-result with --max-concurrency 16, request rate inf
    "date": "20260520-203806", "endpoint_type": "openai", "backend": "openai", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 160, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 16,
    "duration": 40.0, "completed": 160, "failed": 0, "total_input_tokens": 147_440, "total_output_tokens": 73_680,
    "request_throughput": 4.0, "request_goodput": None, "output_throughput": 1842.0, "total_token_throughput": 5528.0,
    "max_output_tokens_per_s": 2100.0, "max_concurrent_requests": 18, "rtfx": 0.0,
    "mean_ttft_ms": 100.0, "median_ttft_ms": 90.0, "std_ttft_ms": 40.0, "p99_ttft_ms": 300.0,
    "mean_tpot_ms": 8.3, "median_tpot_ms": 8.3, "std_tpot_ms": 0.2, "p99_tpot_ms": 9.0,
    "mean_itl_ms": 8.3, "median_itl_ms": 8.0, "std_itl_ms": 2.0, "p99_itl_ms": 20.0,
}  # fmt: skip
VLLM_OLD = {  # 0.8: open arrivals, --metadata, the key with a colon, lists of --save-detailed
    "date": "20250530-203806", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 2, "tp": "2", "system": "hgx-h200",
    "weight_dtype": "fp8", "version": "0.8.5", "request_rate": 10.0, "burstiness": 1.0, "max_concurrency": None,
    "duration": 0.25, "completed": 2, "total_input_tokens": 2000, "total_output_tokens": 402, "request_throughput": 8.0,
    "request_goodput:": None, "output_throughput": 1608.0, "total_token_throughput": 9608.0,
    "input_lens": [1000, 1000], "output_lens": [201, 201], "ttfts": [0.05, 0.05], "itls": [[0.01], [0.01]],
    "generated_texts": ["a", "b"], "errors": ["", ""],
    "mean_ttft_ms": 50.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0,
}  # fmt: skip
SGLANG_OLD = {  # 0.4.6: no model, no number of prompts; an endless rate is the bare word Infinity
    "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 64,
    "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 512, "random_range_ratio": 0.8,
    "duration": 100.0, "completed": 640, "total_input_tokens": 589_824, "total_output_tokens": 294_912,
    "total_output_tokens_retokenized": 294_800, "request_throughput": 6.4, "input_throughput": 5898.2,
    "output_throughput": 2949.1, "mean_e2e_latency_ms": 9800.0, "median_e2e_latency_ms": 9700.0,
    "mean_ttft_ms": 250.0, "median_ttft_ms": 200.0, "mean_tpot_ms": 20.0, "median_tpot_ms": 20.0,
    "mean_itl_ms": 20.0, "concurrency": 62.7, "accept_length": None,
}  # fmt: skip
SERVER = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct", "tp_size": 2, "pp_size": 1, "dp_size": 1, "ep_size": 1,
    "kv_cache_dtype": "fp8_e4m3", "quantization": "fp8", "speculative_algorithm": None, "enable_dp_attention": False,
    "disaggregation_mode": "null", "version": "0.5.23", "internal_states": [{}],
}  # fmt: skip
SGLANG = SGLANG_OLD | {
    "tag": None, "server_info": SERVER, "total_input_text_tokens": 589_824, "total_input_vision_tokens": 0,
    "total_throughput": 8847.3, "max_output_tokens_per_s": 3500.0, "max_concurrent_requests": 70,
}  # fmt: skip


def row(result: dict[str, object], **given: str) -> dict[str, str]:
    return convert_result(json.loads(json.dumps(result)), given, id_="a")


def test_a_closed_loop_of_vllm():
    found = row(VLLM, **GIVEN)
    assert found["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (found["engine"], found["measured"]) == ("vllm", "2026-05-20")
    assert (found["input_mean"], found["output_mean"], found["concurrency_mean"]) == ("921.5", "460.5", "16")
    assert (found["ttft_s"], found["tpot_s"], found["requests"]) == ("0.1", "0.0083", "160")
    assert [found[axis] for axis in ("tp", "pp", "dp", "ep")] == ["1", "1", "1", "1"]


def test_mean_lengths_are_taken_as_they_are():
    """The range that ends at nominal lengths is for nominal ones alone."""
    (runs,) = grouped([row(VLLM, **GIVEN)])
    assert (runs.input_tokens[0], runs.output_tokens[0], runs.concurrency[0]) == (921.5, 460.5, 16)
    drawn = {"length_spread": "0.25"}
    mixed = [one(input_tokens="1000", output_tokens="100", **drawn), one(input_mean="1000", output_mean="100", **drawn)]
    (runs,) = grouped(mixed)
    assert list(runs.input_tokens) == [800, 1000]
    assert list(runs.output_tokens) == [80, 100]
    assert list(runs.spread) == [0.25, 0.25]
    tpot = predict(mixed).tpot
    assert tpot[0] != tpot[1]


def test_open_arrivals_hold_the_requests_of_littles_law_and_metadata_tells_the_rest():
    found = row(VLLM_OLD)
    assert float(found["concurrency_mean"]) == pytest.approx(2 / 0.25 * (0.05 + 0.010 * 200))  # 16.4 in flight
    assert found["concurrency"] == "16"
    assert (found["system"], found["tp"], found["weight_dtype"]) == ("hgx-h200", "2", "fp8")
    assert row(VLLM_OLD, tp="4")["tp"] == "4"
    assert float(row(VLLM_OLD | {"mean_e2el_ms": 1000.0})["concurrency_mean"]) == pytest.approx(8)
    assert float(row(VLLM_OLD | {"max_concurrency": 4})["concurrency_mean"]) == 4
    assert row(VLLM_OLD | {"duration": 1000.0})["concurrency_mean"] == "1"


def test_requests_sent_all_at_once_count_those_that_decode_and_have_no_first_token():
    found = row(VLLM | {"max_concurrency": None, "mean_ttft_ms": 9000.0}, **GIVEN)
    assert float(found["concurrency_mean"]) == pytest.approx(160 / 40 * 0.0083 * 459.5, rel=1e-5)
    assert found["ttft_s"] == ""
    assert row(VLLM | {"max_concurrency": 1000}, **GIVEN)["concurrency"] == "160"


def test_sglang_old_and_new():
    old = row(SGLANG_OLD, **GIVEN)
    assert (old["model"], old["engine"], old["concurrency_mean"]) == ("", "sglang", "64")
    new = row(SGLANG, **GIVEN | {"tp": "4"})
    assert (new["model"], new["tp"], new["kv_dtype"]) == ("meta-llama/Llama-3.1-8B-Instruct", "4", "fp8")
    assert row(SGLANG)["tp"] == "2"
    assert row(SGLANG)["engine_version"] == "0.5.23"
    grouped_attention = row(SGLANG | {"server_info": SERVER | {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}})
    assert (grouped_attention["tp"], grouped_attention["dp"]) == ("", "")
    traced = row(SGLANG | {"request_rate": "trace", "max_concurrency": None})
    assert float(traced["concurrency_mean"]) == pytest.approx(6.4 * 9.8)


@each(
    "result, spread",
    [
        (VLLM, 1 / 9),  # nothing tells: what is usual
        (VLLM_OLD, 0),  # its lists: all alike
        (VLLM_OLD | {"output_lens": [150, 250]}, 3**0.5 / 4),
        (VLLM_OLD | {"output_lens": [1, 1001]}, 1),
        (VLLM_OLD | {"output_lens": "many"}, 1 / 9),
        (SGLANG, 1 / 9),  # drawn from 0.8 to 1 of the longest
        (SGLANG | {"random_range_ratio": 1.0}, 0),
    ],
)
def test_how_far_lengths_reach(result, spread):
    assert float(row(result, **GIVEN)["length_spread"]) == pytest.approx(spread, rel=1e-3)


def test_a_kv_format_that_is_told_is_taken():
    plain, small = (grouped([one(kv_dtype=kv)])[0].model.kv_format for kv in ("", "fp8"))
    assert (plain, small) == ("bf16", "fp8")


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (VLLM | {"failed": 3}, "3 failed requests"),
        ({k: v for k, v in VLLM.items() if k != "failed"} | {"num_prompts": 170}, "10 failed requests and 160"),
        (SGLANG | {"errors": ["", "time out"] + [""] * 640}, "2 failed requests"),
        (VLLM | {"completed": 0, "mean_tpot_ms": 0.0}, "completed no request"),
        (VLLM | {"spec_decode_acceptance_length": 2.4}, "speculative decoding"),
        (SGLANG_OLD | {"accept_length": 2.1}, "speculative decoding"),
        (SGLANG | {"server_info": SERVER | {"speculative_algorithm": "EAGLE"}}, "speculative decoding"),
        (SGLANG | {"server_info": SERVER | {"disaggregation_mode": "decode"}}, "separate chips"),
        (SGLANG | {"cache_report": {"cache_hit_rate_pct": 40.0}}, "prefix cache"),
        (SGLANG | {"total_input_vision_tokens": 7}, "images"),
        (VLLM | {"ramp_up_strategy": "linear"}, "increased its request rate"),
        (VLLM | {"diffusion_steps_per_canvas": 8}, "diffusion"),
        ({k: v for k, v in VLLM.items() if "tpot" not in k}, "lacks mean_tpot_ms: run it with --percentile-metrics"),
        (VLLM | {"mean_tpot_ms": 0.0}, "mean_tpot_ms must be a number greater than 0, got 0"),
        (VLLM | {"mean_tpot_ms": float("nan")}, "mean_tpot_ms must be"),
        (VLLM | {"mean_tpot_ms": True}, "mean_tpot_ms must be"),
        (VLLM | {"duration": "40"}, "duration must be"),
        (VLLM | {"duration": None}, "lacks duration"),
        (VLLM | {"max_concurrency": -1}, "max_concurrency must be"),
        (VLLM | {"total_output_tokens": 160}, "one output token per request"),
        (VLLM | {"total_input_tokens": 0}, "total_input_tokens must be"),
        ({"avg_latency": 1.0}, "is not a result of `vllm bench serve`"),
        (17, "is not a result of `vllm bench serve`"),
    ],
)
def test_runs_that_no_prediction_is_of_are_named_and_may_be_left_out(tmp_path, result, says):
    (tmp_path / "runs.jsonl").write_text(f"{json.dumps(VLLM)}\n{json.dumps(result)}\n")
    with pytest.raises(DataFileError, match=says) as caught:
        read_files([tmp_path / "runs.jsonl"], overrides=GIVEN | {"model": "llama-3.1-8b"})
    assert caught.value.line == 2
    rows, problems = read_files([tmp_path / "runs.jsonl"], overrides=GIVEN | {"model": "llama-3.1-8b"}, skip_bad=True)
    assert [found["id"] for found in rows] == ["runs.jsonl:1"]
    assert problems[0].startswith("line 2: ")


@pytest.mark.slow
def test_no_value_of_a_field_is_more_than_an_error_or_a_row_with_a_prediction():
    odd = [None, "", [], {}, -1, 0, float("inf"), float("nan"), True, "x", 10**400, 1e-320, 1e308, [None], {"a": 1}, 0.5]
    more = dict.fromkeys(
        ("accept_length", "cache_report", "errors", "failed", "num_prompts", "ramp_up_strategy", "server_info")
    )
    results = [base | {key: value} for base in (VLLM, VLLM_OLD, SGLANG) for key in base | more for value in odd]
    results += [SGLANG | {"server_info": SERVER | {key: value}} for key in SERVER for value in odd]
    rows, problem_of = [], checker()
    for result in results:
        try:
            found = convert_result(result, GIVEN | {"model": "llama-3.1-8b"}, id_="a")
        except InputError:
            continue
        if not problem_of(found):
            rows.append(found)
    predicted = predict(rows)
    assert len(results) // 2 < len(rows) < len(results)
    assert np.all(np.isfinite(predicted.tpot) & (predicted.tpot > 0) & np.isfinite(predicted.ttft))


def test_objects_one_a_line_spread_over_lines_or_in_a_list():
    lines = json.dumps({"a": 1}) + "\n" + json.dumps({"a": 2})  # as --append-result writes: no newline at the end
    assert [(line, value["a"]) for line, value in objects(lines)] == [(1, 1), (2, 2)]
    spread = "\n" + json.dumps({"a": 1}, indent=2) + "\n" + json.dumps([{"a": 2}, {"a": 3}])
    assert [(line, value["a"]) for line, value in objects(spread)] == [(2, 1), (5, 2), (5, 3)]
    broken = [(line, value) for line, value in objects('{"a": 1}\n{"a": \n{"a": 3}\n')]
    assert [line for line, _ in broken] == [1, 2, 3]
    assert isinstance(broken[1][1], InputError)
    assert "nested too deep" in str(next(objects("[" * 100_000))[1])


def test_files_are_known_by_what_they_hold(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps(VLLM, indent=1))
    (tmp_path / "c.jsonl").write_text("\ufeff" + json.dumps(SGLANG) + "\n")
    (tmp_path / "notes.txt").write_text("not a run")
    written(tmp_path / "a.csv", one())
    (tmp_path / "d.csv").write_text(json.dumps(VLLM))
    rows, _ = read_files([tmp_path], overrides=GIVEN)
    assert [found["engine"] for found in rows] == ["vllm", "vllm", "sglang", "vllm"]
    assert all(predict(rows).tpot > 0)
    with pytest.raises(InputError, match=r"--system applies to JSON results only; .*a\.csv has a column for it"):
        read_files([tmp_path / "a.csv"], overrides={"system": "hgx-h100"})
    with pytest.raises(DataFileError, match="no such file"):
        read_files([tmp_path / "none.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFileError, match=r"is a folder without a \.json, \.jsonl or \.csv file"):
        read_files([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("options", "result", "says"),
    [
        (
            "",
            VLLM,
            "r.json:1: has no system, tp and weight_dtype of the run: give --system NAME, --tp WAYS and --weights FORMAT",
        ),
        ("--system hgx-h100", VLLM, "give --tp WAYS and --weights FORMAT"),
        ("--system hgx-h100 --tp 1", VLLM, "give --weights FORMAT"),
        (OPTIONS, SGLANG_OLD, "give --model NAME"),
        (
            "--system hgx-h100 --weights fp8 --tp 1",
            SGLANG | {"server_info": SERVER | {"dp_size": 8, "tp_size": 8}},
            "give --dp GROUPS",
        ),
        (OPTIONS.replace("h100", "h1000"), VLLM, "steptime: unknown system 'hgx-h1000'; did you mean hgx-h100"),
        (OPTIONS.replace("bf16", "fp9"), VLLM, "steptime: unknown number format 'fp9'; did you mean fp8"),
        (OPTIONS.replace("tp 1", "tp 0"), VLLM, "steptime: --tp must be at least 1"),
        (OPTIONS + " --kv fp9", VLLM, "unknown KV format 'fp9'"),
        (OPTIONS + " --model lama-3.1-8b", VLLM, "steptime: unknown model 'lama-3.1-8b'; did you mean"),
        (OPTIONS, VLLM | {"model_id": "/models/own"}, "--model NAME replaces it"),
        (OPTIONS.replace("tp 1", "tp 7"), VLLM, "--tp 7 does not divide the 32 heads"),
        (OPTIONS + " --ep 2", VLLM, "has no experts"),
        (OPTIONS, VLLM | {"failed": 3}, "r.json:1: has 3 failed requests and 160 completed ones; --skip-bad"),
        (OPTIONS + " --skip-bad", VLLM | {"failed": 3}, "r.json: has no runs: line 1: has 3 failed requests"),
    ],
)
def test_what_is_not_told_or_told_wrong_gets_one_line_and_exit_code_2(tmp_path, options, result, says):
    (tmp_path / "r.json").write_text(json.dumps(result))
    for command in ("validate r.json ", "calibrate r.json --name mine "):
        shown = run(command + options, folder=tmp_path)
        assert shown.returncode == 2, shown.stdout
        assert says in shown.stderr
        assert len(shown.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.thorough
def test_a_run_of_ones_own_is_validated_and_calibrated_in_one_command(tmp_path):
    pytest.importorskip("scipy")
    (tmp_path / "runs").mkdir()
    for limit, tpot in ((4, 9.0), (16, 9.9), (64, 13.0)):
        result = VLLM | {"max_concurrency": limit, "mean_tpot_ms": tpot}
        (tmp_path / "runs" / f"openai-infqps-concurrency{limit}.json").write_text(json.dumps(result))
    shown = run(f"validate runs {OPTIONS} --predictions out.csv", columns=80, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "time per output token" in shown.stdout
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("openai-infqps-concurrency16.json,")
    fitted = run(f"calibrate runs --name mine {OPTIONS} --kv bf16", folder=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    assert "TPOT, vllm" in fitted.stdout  # the engine of the runs is the prior
    assert load_engine(str(tmp_path / "mine.toml")).source["note"] == "3 runs of runs"
    before, after = (
        json.loads(run(f"validate runs {OPTIONS} --engine {engine} --json", folder=tmp_path).stdout)["tpot"]["all"]["median"]
        for engine in ("vllm", "mine.toml")
    )
    assert after < before


@pytest.mark.thorough
def test_a_catalogue_of_ones_own_reaches_the_runs(tmp_path):
    """--catalog names the machine and the model of a run, in validate and in calibrate."""
    pytest.importorskip("scipy")
    from steptime.catalog.data_files import PACKAGED, find

    for kind, name, own in (("systems", "hgx-h100", "own-box"), ("models", "llama-3.1-8b", "own-model")):
        path = find(kind, name)
        (tmp_path / "cat" / kind).mkdir(parents=True)
        text = path.read_text().replace('name = "hgx-h100"', 'name = "own-box"')
        (tmp_path / "cat" / kind / f"{own}{path.suffix}").write_text(text)
    assert PACKAGED in find("systems", "hgx-h100").parents
    written(tmp_path / "runs.csv", one(model="own-model", system="own-box"))
    for command in ("validate runs.csv", "calibrate runs.csv --name mine --prior vllm"):
        without = run(command, folder=tmp_path)
        assert without.returncode == 2
        assert "own-box" in without.stderr or "own-model" in without.stderr
        shown = run(f"{command} --catalog cat", folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
