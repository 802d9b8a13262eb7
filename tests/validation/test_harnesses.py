"""Results of llm-d, AIPerf, GuideLLM, inference-perf and InferenceX, read as the rows that their summaries state.

The samples in `harnesses/` are written by the packages of the harnesses, or measured (README.md there).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptime.errors import DataFileError, InputError
from steptime.validation.bench_results import convert_result, read_files
from steptime.validation.harness_results import catalogue_system, split_results
from tests.cli.test_commands import run
from tests.conftest import each

SAMPLES = Path(__file__).with_name("harnesses")
GIVEN = {"model": "llama-3.1-8b", "system": "hgx-h100", "tp": "1", "weight_dtype": "bf16"}
LAYOUT = "--system hgx-h100 --tp 1 --weights bf16"


def sample(name: str) -> Any:
    return json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))


def rows(name: str, **given: str) -> list[dict[str, str]]:
    return read_files([SAMPLES / name], overrides=given or GIVEN, skip_bad=True)[0]


def read(value: Any) -> list[dict[str, str]]:
    return [convert_result(result, GIVEN, id_="a") for result in split_results(value)]


def figures(row: dict[str, str]) -> dict[str, float]:
    names = ("tpot_s", "ttft_s", "input_mean", "output_mean", "concurrency_mean", "requests")
    return {name: float(row[name]) for name in names}


def test_aiperf_equals_its_summary():
    (row,), summary = rows("aiperf.json"), sample("aiperf")
    assert figures(row) == pytest.approx({
        "tpot_s": summary["inter_token_latency"]["avg"] / 1e3, "ttft_s": summary["time_to_first_token"]["avg"] / 1e3,
        "input_mean": summary["input_sequence_length"]["avg"], "output_mean": summary["output_sequence_length"]["avg"],
        "concurrency_mean": 16, "requests": summary["request_count"]["avg"],
    }, rel=1e-5)  # fmt: skip
    # The warm-up phase is left out; lengths from 180 to 220 are uniform.
    assert row["measured"] == "2026-09-01"
    assert float(row["length_spread"]) == pytest.approx(20 / 200, abs=0.01)


def test_aiperf_names_its_model():
    (result,) = split_results(sample("aiperf"))
    assert result["model_id"] == "meta-llama/Llama-3.1-8B-Instruct"


def test_older_aiperf_has_one_load_generator():
    old = sample("aiperf")
    old["input_config"] = {"endpoint": {"model_names": ["Qwen/Qwen3-8B"]}, "loadgen": {"concurrency": 4}}
    (result,) = split_results(old)
    assert (result["model_id"], result["max_concurrency"]) == ("Qwen/Qwen3-8B", 4)


def test_guidellm_gives_a_row_for_each_benchmark():
    loads, report = rows("guidellm.json"), sample("guidellm")
    assert len(loads) == len(report["benchmarks"]) == 3
    for row, benchmark in zip(loads, report["benchmarks"], strict=True):
        metrics = {name: value["successful"]["mean"] for name, value in benchmark["metrics"].items() if "total" not in name}
        assert float(row["tpot_s"]) == pytest.approx(metrics["inter_token_latency_ms"] / 1e3, rel=1e-5)
        assert float(row["ttft_s"]) == pytest.approx(metrics["time_to_first_token_ms"] / 1e3, rel=1e-5)
        assert float(row["concurrency_mean"]) == pytest.approx(metrics["request_concurrency"], rel=1e-4)
        assert (row["input_mean"], row["output_mean"], row["length_spread"]) == ("512", "128", "0")
    assert [row["concurrency"] for row in loads] == ["8", "32", "6"]


def test_inference_perf_equals_its_summary():
    (row,), latency = rows("inference_perf.json"), sample("inference_perf")["successes"]["latency"]
    # 74.28 requests/s for 0.7645 s each.
    expected = {"tpot_s": 0.00561806, "ttft_s": 0.0385768, "input_mean": 200.93, "output_mean": 62.7518, "requests": 4496}
    assert figures(row) == pytest.approx(
        expected | {"concurrency_mean": 74.28257 * latency["request_latency"]["mean"]}, rel=1e-4
    )


@each("name", ["aiperf", "guidellm", "inference_perf"])
def test_an_llm_d_report_gives_the_row_of_the_harness_it_was_converted_from(name: str):
    converted, original = rows(f"llmd_{name}.json")[0], rows(f"{name}.json")[0]
    assert figures(converted) == pytest.approx(figures(original), rel=1e-4)


def test_llm_d_states_the_deployment_of_a_replica():
    report = sample("llmd_guidellm")
    accelerator = {"model": "NVIDIA-B200", "count": 4, "parallelism": {"tp": 4, "dp": 1, "pp": 1, "ep": 1}}
    engine = {
        "kind": "inference_engine", "tool": "vllm", "tool_version": "vllm/vllm-openai:v0.11.0", "role": "replica",
        "replicas": 2, "model": {"name": "Qwen/Qwen3-32B"}, "accelerator": accelerator,
    }  # fmt: skip
    report["scenario"]["stack"] = [{"metadata": {}, "standardized": engine, "native": {}}]
    (result,) = split_results(report)
    row = convert_result(result, {}, id_="a")
    assert (row["model"], row["system"], row["tp"], row["engine"]) == ("Qwen/Qwen3-32B", "hgx-b200", "4", "vllm")
    assert (row["engine_version"], row["concurrency"], row["requests"]) == ("0.11.0", "4", "40")
    # Without the deployment, the report has no accelerators, and its sizes of 1 say nothing.
    engine["accelerator"] = accelerator | {"count": 0}
    (result,) = split_results(report)
    assert convert_result(result, {}, id_="a")["tp"] == ""


def test_inferencex_has_nominal_lengths_layouts_and_formats():
    plain, attention_parallel, pools = rows("inferencex.json", system="hgx-h200")
    assert (plain["model"], plain["weight_dtype"], plain["expert_dtype"]) == ("openai/gpt-oss-120b", "bf16", "mxfp4")
    assert (plain["tp"], plain["dp"], plain["ep"], plain["tpot_s"], plain["ttft_s"]) == ("2", "1", "1", "0.0134", "0.1825")
    assert (plain["input_tokens"], plain["length_spread"], plain["engine_version"]) == ("1024", "0.1111", "0.15.1")
    assert [attention_parallel[axis] for axis in ("tp", "dp", "ep", "engine")] == ["1", "8", "8", "sglang"]
    assert [pools[name] for name in ("decode_workers", "dp", "prefill_workers", "prefill_dp", "chips")] == [
        "1",
        "16",
        "2",
        "8",
        "32",
    ]
    _, problems = read_files([SAMPLES / "inferencex.json"], skip_bad=True)
    assert len(problems) == 1
    assert "number of speculative tokens" in problems[0]


def test_rows_of_the_inferencex_page_are_read():
    raw = sample("inferencex")[1]
    page = {
        "hardware": "b200", "framework": "sglang", "model": "dsr1", "precision": "fp8", "spec_method": "none", "disagg": False,
        "prefill_tp": 8, "prefill_ep": 8, "prefill_dp_attention": True, "decode_tp": 8, "decode_ep": 8,
        "decode_dp_attention": True, "isl": 1024, "osl": 1024, "conc": 64, "image": raw["image"], "date": "2026-08-01",
        "metrics": {"mean_tpot": 0.0134, "mean_ttft": 0.1825, "median_ttft": 0.11},
    }  # fmt: skip
    given = {"model": "deepseek-ai/DeepSeek-R1"}
    ours, theirs = convert_result(page, given, id_="a"), convert_result(raw, given, id_="a")
    assert {key: value for key, value in ours.items() if value != theirs[key]} == {
        "measured": "2026-08-01",
        "ttft_median_s": "0.11",
    }


@each(
    "product, system",
    [
        ("NVIDIA-H100-80GB-HBM3", "hgx-h100"), ("b200-dgxc", "hgx-b200"), ("GB200", "gb200-nvl72"), ("NVIDIA GH200 480GB", ""),
        ("NVIDIA-H100-PCIe", ""), ("NVIDIA-H200-NVL", ""), ("NVIDIA-A100-SXM4-40GB", ""),
        ("AMD_Instinct_MI300X_OAM", "mi300x-8"),
        ("hgx-h100", "hgx-h100"), ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", ""), (None, ""),
    ],
)  # fmt: skip
def test_products_name_systems_of_the_same_build(product: str, system: str):
    assert catalogue_system(product) == system


def test_yaml_is_known_by_its_content(tmp_path):
    yaml = pytest.importorskip("yaml")
    place = tmp_path / "report.txt"
    place.write_text(yaml.safe_dump(sample("llmd_guidellm"), sort_keys=False), encoding="utf-8")
    (row,), _ = read_files([place], overrides=GIVEN)
    assert figures(row) == figures(rows("llmd_guidellm.json")[0])


def changed(name: str, path: str, value: Any) -> Any:
    document = sample(name)
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[last] = value
    return document


AGGREGATE = "results.request_performance.aggregate"


@each(
    "document, says",
    [
        (changed("aiperf", "is_complete", False), "was not completed"),
        (changed("aiperf", "inter_token_latency.unit", "fortnights"), r"inter_token_latency\.unit must be one of s, "),
        (changed("aiperf", "inter_token_latency", None), "no time per output token"),
        (changed("aiperf", "time_to_first_token.avg", -3), r"time_to_first_token\.avg must be a number greater than 0, got -3"),
        (changed("aiperf", "input_config.phases.1.rate_ramp", 5), "increased its load over time"),
        (changed("aiperf", "usage_prompt_cache_read_tokens", {"unit": "tokens", "avg": 500}), "prefix cache"),
        (changed("guidellm", "config.spec.data", [{"prefix_buckets": [{"prefix_tokens": 64}]}]), "shared a prefix"),
        (changed("guidellm", "benchmarks", []), "benchmarks: is empty"),
        (changed("guidellm", "benchmarks.0.metrics.request_totals.errored", 3), "3.0 failed requests"),
        (changed("inference_perf", "load_summary.requested_rate", None), "stage_N_lifecycle_metrics"),
        (changed("inference_perf", "successes.latency.time_per_output_token", None), "no time per output token"),
        (changed("llmd_guidellm", "version", "0.1"), "is a Benchmark Report 0.1"),
        (changed("llmd_guidellm", f"{AGGREGATE}.throughput", {}), r"lacks results\.request_performance\.aggregate\.throughput"),
        (changed("llmd_guidellm", f"{AGGREGATE}.requests.total", 10**400), "must be a number, got a number of some 400 digits"),
        ({"start_time": 1.0, "end_time": 2.0, "info": {}}, "record of one request"),
        ({"anything": 1}, "is not a result of `vllm bench serve`, SGLang's bench_serving, llm-d, AIPerf"),
    ],
)  # fmt: skip
def test_odd_files_are_refused_with_a_reason(document: Any, says: str):
    with pytest.raises(InputError, match=says):
        read(document)


def test_the_example_of_llm_d_shares_a_prefix():
    pytest.importorskip("yaml")
    with pytest.raises(DataFileError, match=r"llmd_example\.yaml:2: shared a prefix between prompts, which is not modelled"):
        read_files([SAMPLES / "llmd_example.yaml"], overrides=GIVEN)


def test_broken_yaml_names_its_line(tmp_path):
    pytest.importorskip("yaml")
    place = tmp_path / "a.yaml"
    place.write_text("version: '0.2'\nresults: [1, 2\nrun: {}\n", encoding="utf-8")
    with pytest.raises(DataFileError, match=r"a\.yaml:3: is not valid YAML"):
        read_files([place], overrides=GIVEN)


def test_validate_reads_the_files():
    files = " ".join(str(SAMPLES / f"{name}.json") for name in ("guidellm", "inference_perf"))
    result = run(f"validate {files} {LAYOUT} --model llama-3.1-8b --json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["runs"] == 4


def test_a_simulation_is_written_and_read_as_an_llm_d_report(tmp_path):
    pytest.importorskip("numba")
    pytest.importorskip("yaml")
    place = tmp_path / "report.yaml"
    result = run(
        f"simulate llama-3.1-8b hgx-h100 --concurrency 8 --requests 60 --input 500 --output 50 --report {place} --json"
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)["answers"]
    (row,), _ = read_files([place], overrides={"weight_dtype": "bf16"})
    assert float(row["tpot_s"]) == pytest.approx(answers["tpot_s"]["mean"], rel=1e-5)
    assert float(row["ttft_s"]) == pytest.approx(answers["ttft_s"]["mean"], rel=1e-5)
    assert (row["system"], row["tp"], row["concurrency"], row["engine"]) == ("hgx-h100", "1", "8", "vllm")


def test_a_report_needs_a_known_format():
    assert run("simulate llama-3.1-8b hgx-h100 --rate 1 --report report.txt").returncode == 2
