"""Results of five benchmark harnesses, converted to the keys of a `vllm bench serve` result: one dict per measured load.

Files are recognised by their content. `bench_results.convert_result` turns each dict into the row of a run.

- **llm-d Benchmark Report v0.2** (JSON or YAML): package `llmd-benchmark-report` 0.2.1, `schema_v0_2.py`,
  https://github.com/llm-d/llm-d-benchmark/blob/main/llmdbenchmark/analysis/benchmark_report/schema_v0_2.py
- **AIPerf** `profile_export_aiperf.json`: package `aiperf` 0.13.0, schema 1.4 of `common/models/export_models.py`,
  https://github.com/ai-dynamo/aiperf
- **GuideLLM** `benchmarks.json`: package `guidellm` 0.8.1, report schema 2 (and 1 of releases before 0.7),
  `benchmark/schemas/report.py`, https://github.com/vllm-project/guidellm
- **inference-perf** `stage_N_lifecycle_metrics.json`: package `inference-perf` 0.7.0, `reportgen/base.py`,
  https://github.com/kubernetes-sigs/inference-perf
- **InferenceX** `agg_*.json`, and rows of its web page: `utils/process_result.py`,
  https://github.com/SemiAnalysisAI/InferenceX, `packages/app/src/lib/api.ts` of InferenceX-app

**Time per output token.** All harnesses have the mean of (latency - TTFT) / (tokens - 1), under unlike names: AIPerf and
GuideLLM call it inter-token latency, and GuideLLM's "time per output token" includes the first token. GuideLLM's mean weighs
requests by their tokens.

**Replicas.** A report of R equal replicas is read as one replica with 1/R of the requests in flight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from steptime.catalog.data_files import files
from steptime.errors import InputError, short_repr

HARNESS_NAMES: Final = "`vllm bench serve`, SGLang's bench_serving, llm-d, AIPerf, GuideLLM, inference-perf or InferenceX"
# Seconds per unit of a time, by the names that AIPerf and llm-d write.
SECONDS: Final = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "s/token": 1.0, "ms": 1e-3, "ms/token": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip
# Systems of the catalogue by the product name of a GPU, as node labels and InferenceX write it.
ACCELERATORS: Final = (
    ("gb300", "gb300-nvl72"), ("gb200", "gb200-nvl72"), ("b300", "hgx-b300"), ("b200", "hgx-b200"), ("h200", "hgx-h200"),
    ("h100", "hgx-h100"), ("a100-sxm4-80gb", "hgx-a100"), ("mi355x", "mi355x-8"), ("mi325x", "mi325x-8"),
    ("mi300x", "mi300x-8"), ("l40s", "l40s-8"), ("l4", "l4-8"), ("a10", "a10-8"),
)  # fmt: skip
# Boards of another build than the system of their name.
OTHER_BOARDS: Final = re.compile(r"pcie|nvl$|-nvl-|mig", re.IGNORECASE)
# Precisions of InferenceX, by vendor.
PRECISIONS: Final = {"fp4": ("nvfp4", "mxfp4"), "fp8": ("fp8", "fp8"), "bf16": ("bf16", "bf16"), "int4": ("int4", "int4")}
# Release in the name of a container image.
IMAGE_RELEASE: Final = re.compile(r"(?:vllm-openai|vllm|sglang|tensorrt-llm/release|sglang-rocm)[^:]*:v?(\d+\.\d+[\w.]*)")
ROLES: Final = ("prefill", "decode")


def split_results(value: Any) -> Iterator[Any]:
    """Split a value of a results file into one vLLM-style result per measured load.

    Args:
        value: Parsed JSON or YAML value, or an InputError of the parser.

    Yields:
        Results with the keys of `vllm bench serve`, or an InputError for a load that cannot be read. A value of another kind
        is passed on unchanged.
    """
    if not isinstance(value, dict):
        yield value
        return
    for is_kind, convert in READERS:
        if is_kind(value):
            for load in _loads(value, is_kind):
                try:
                    yield convert(*load)
                except InputError as error:
                    yield error
            return
    yield value


def _loads(value: Mapping[str, Any], is_kind: Any) -> list[tuple[Any, ...]]:
    """Return the arguments of the reader for each load of a file: only GuideLLM has several."""
    if is_kind is not _is_guidellm:
        return [(value,)]
    return [(value, place) for place in range(len(value["benchmarks"]))] or [(value, 0)]


# --- values by path ---------------------------------------------------------------------------------------------------------


def _get(value: Any, path: str) -> Any:
    """Return the value at a dotted path; None where a part is missing."""
    for key in path.split("."):
        if isinstance(value, list) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _number(value: Any, path: str) -> float | None:
    """Return the number at a path, or None if the path is missing. Raise InputError for anything else."""
    number = _get(value, path)
    if number is None:
        return None
    try:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise OverflowError
        return float(number)
    except OverflowError:
        raise InputError(f"{path} must be a number, got {short_repr(number)}") from None


def _needed(value: Any, path: str) -> float:
    """Return a number above 0 at a path."""
    number = _number(value, path)
    if number is None:
        raise InputError(f"lacks {path}")
    if not number > 0:
        raise InputError(f"{path} must be a number greater than 0, got {short_repr(_get(value, path))}")
    return number


def _positive_or_none(value: Any, path: str) -> float | None:
    """Return the number above 0 at a path, or None if the path is missing."""
    return None if _get(value, path) is None else _needed(value, path)


def _seconds(value: Any, path: str, unit_key: str, mean_key: str) -> float | None:
    """Return the mean of a time in seconds; the file states its unit in another field."""
    if _get(value, f"{path}.{mean_key}") is None:
        return None
    unit = _get(value, f"{path}.{unit_key}")
    if not isinstance(unit, str) or unit not in SECONDS:
        raise InputError(f"{path}.{unit_key} must be one of {', '.join(SECONDS)}, got {short_repr(unit)}")
    return _needed(value, f"{path}.{mean_key}") * SECONDS[unit]


def _refuse(reasons: Mapping[str, Any]) -> None:
    """Raise InputError for the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"{reason}, which is not modelled")


def _result(
    *,
    requests: float,
    failed: float | None,
    duration: float,
    tokens: tuple[float, float],
    times: tuple[float | None, float | None, float | None],
    clients: float | None,
    rate: float | None,
    replicas: float = 1.0,
    **settings: Any,
) -> dict[str, Any]:
    """Return a result with vLLM's keys.

    `tokens`: mean input and output tokens; `times`: mean TPOT, TTFT and latency [s]; `clients`: limit of requests in flight;
    `rate`: sent requests/s, None if as many as possible.
    """
    tpot, ttft, latency = times
    if tpot is None:
        raise InputError("has no time per output token: run the harness with streaming")
    if not requests > 0:
        raise InputError("completed no request")
    names = ("mean_tpot_ms", "mean_ttft_ms", "mean_e2el_ms")
    milliseconds = {name: value * 1e3 for name, value in zip(names, (tpot, ttft, latency), strict=True) if value is not None}
    return {
        "completed": requests / replicas,
        "failed": failed or 0,
        "duration": duration,
        "total_input_tokens": tokens[0] * requests / replicas,
        "total_output_tokens": tokens[1] * requests / replicas,
        **milliseconds,
        "max_concurrency": None if clients is None or not math.isfinite(clients) else clients / replicas,
        "request_rate": "inf" if rate is None else rate / replicas,
        **{name: value for name, value in settings.items() if value not in (None, "")},
    }


def catalogue_system(accelerator: Any) -> str:
    """Return the catalogue's system with a GPU of a product name, or "" without such a system.

    Args:
        accelerator: Name as in the node label nvidia.com/gpu.product, InferenceX's `hw`, or the name of a system.

    Returns:
        Name of the system.

    >>> catalogue_system("NVIDIA-H100-80GB-HBM3"), catalogue_system("b200-dgxc"), catalogue_system("NVIDIA-H100-PCIe")
    ('hgx-h100', 'hgx-b200', '')
    """
    name = str(accelerator or "").casefold().replace("_", "-").replace(" ", "-")
    if name in files("systems", None) or OTHER_BOARDS.search(name):
        return name if name in files("systems", None) else ""
    return next((system for key, system in ACCELERATORS if re.search(rf"(?<![a-z0-9]){key}(?![a-z0-9])", name)), "")


def _release(image: Any) -> dict[str, str]:
    """Return the release of vLLM or SGLang in the name of a container image, as a server_info."""
    match = IMAGE_RELEASE.search(str(image or "").replace("#", "/"))
    return {"version": match[1].removesuffix(".post")} if match else {}


# --- llm-d ------------------------------------------------------------------------------------------------------------------


def _is_llmd(value: Mapping[str, Any]) -> bool:
    return "results" in value and "scenario" in value and "version" in value


def _read_llmd(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a Benchmark Report v0.2."""
    version = str(value["version"])
    if not re.fullmatch(r"0\.2(\.\d+)?", version):
        raise InputError(f"version: is a Benchmark Report {version:.20}; convert it to 0.2 with `llmd-benchmark-report`")
    aggregate, load = "results.request_performance.aggregate", "scenario.load.standardized"
    stack = _get(value, "scenario.stack")
    engines = [c for c in stack if _get(c, "standardized.kind") == "inference_engine"] if isinstance(stack, list) else []
    roles = [_get(engine, "standardized.role") for engine in engines]
    _refuse({
        "ran prefill and decode on separate chips": "prefill" in roles,
        "ran several engines of unlike settings": len(engines) > 1,
        "shared a prefix between prompts": _number(value, f"{load}.prefix.prefix_len.value"),
        "had conversations of several turns": _get(value, f"{load}.multi_turn.enabled"),
        "ran at the same time as other loads": _get(value, "scenario.load.metadata.concurrent_with"),
        "has images, video or audio in its prompts": _get(value, f"{aggregate}.requests.multimodal"),
    })  # fmt: skip
    engine = _get(engines[0], "standardized") if engines else {}
    replicas = _positive_or_none(engine, "replicas") or 1.0
    failures = (_number(value, f"{aggregate}.requests.failures") or 0) + (
        _number(value, f"{aggregate}.requests.incomplete") or 0
    )
    requests = _needed(value, f"{aggregate}.requests.total") - failures

    # GuideLLM's time per output token contains the first token.
    latency = f"{aggregate}.latency"
    names = ["time_per_output_token", "inter_token_latency"]
    if _get(value, f"{load}.tool") == "guidellm":
        names.reverse()
    tpot = next(filter(None, (_seconds(value, f"{latency}.{name}", "units", "mean") for name in names)), None)
    times = (
        tpot,
        _seconds(value, f"{latency}.time_to_first_token", "units", "mean"),
        _seconds(value, f"{latency}.request_latency", "units", "mean"),
    )
    completed_rate, rate = (
        _needed(value, f"{aggregate}.throughput.request_rate.mean"),
        _positive_or_none(value, f"{load}.rate_qps"),
    )
    clients = None if _get(value, f"{load}.concurrency") in (None, math.inf) else _needed(value, f"{load}.concurrency")
    sizes = {axis: _get(engine, f"accelerator.parallelism.{axis}") for axis in ("tp", "pp", "dp", "ep")}
    # Without the deployment's settings, llm-d writes no accelerators and sizes of 1.
    if not _number(engine, "accelerator.count"):
        sizes = {}
    image = f"{_get(engine, 'tool') or ''} {_get(engine, 'tool_version') or ''}"
    return _result(
        requests=requests,
        failed=_number(value, f"{aggregate}.requests.failures"),
        duration=requests / completed_rate,
        tokens=(
            _needed(value, f"{aggregate}.requests.input_length.mean"),
            _needed(value, f"{aggregate}.requests.output_length.mean"),
        ),
        times=times,
        clients=clients,
        # Some importers leave the load out; then requests arrive as they are completed.
        rate=completed_rate if rate is None and clients is None else rate,
        replicas=replicas,
        std_output_tokens=_number(value, f"{aggregate}.requests.output_length.stddev"),
        model_id=_get(engine, "model.name"),
        backend=_engine_name(image),
        server_info=_release(image),
        date=_compact_date(_get(value, "run.time.end") or _get(value, "run.time.start")),
        system=catalogue_system(_get(engine, "accelerator.model")),
        **{axis: size for axis, size in sizes.items() if isinstance(size, int) and size > 0},
    )


def _engine_name(text: str) -> str:
    """Return the engine in a tool's name or in a container image; llm-d serves with vLLM."""
    folded = text.casefold()
    return next(
        (n for n, marks in (("sglang", ("sglang",)), ("vllm", ("vllm", "llm-d"))) if any(m in folded for m in marks)), ""
    )


def _compact_date(date: Any) -> str:
    """Return a date as vLLM writes it, YYYYMMDD-HHMMSS; "" without one."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)", str(date or ""))
    return "".join(match.groups()) + "-000000" if match else ""


# --- AIPerf -----------------------------------------------------------------------------------------------------------------


def _is_aiperf(value: Mapping[str, Any]) -> bool:
    return "aiperf_version" in value or (isinstance(_get(value, "request_count.unit"), str) and "request_latency" in value)


def _read_aiperf(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert AIPerf's profile_export_aiperf.json, and the older form of GenAI-Perf's successor."""
    if "request_count" not in value:
        raise InputError("lacks request_count: give profile_export_aiperf.json of one run, not an aggregate of several")
    if value.get("is_complete") is False or value.get("was_cancelled"):
        raise InputError(f"was not completed: {short_repr(value.get('incomplete_reason') or 'cancelled')}")
    requests, inputs = _needed(value, "request_count.avg"), "input_sequence_length.avg"
    cached = _number(value, "usage_prompt_cache_read_tokens.avg") or 0.0
    _refuse({
        "used speculative decoding": value.get("pooled_spec_decode_acceptance_histogram"),
        "found prompts in a prefix cache": cached > 0.01 * (_number(value, inputs) or math.inf),
        "has images in its prompts": _get(value, "image_throughput") or _get(value, "num_images"),
    })  # fmt: skip
    errors = _number(value, "error_request_count.avg")
    if errors is None and isinstance(value.get("error_summary"), list):
        errors = sum(_number(entry, "count") or 0 for entry in value["error_summary"])

    # 0.13 has a list of phases; earlier releases have one load generator.
    phases = _get(value, "input_config.phases")
    measured = (
        [p for p in phases if _get(p, "kind") != "warmup" and _get(p, "exclude_from_results") is not True]
        if (isinstance(phases, list))
        else []
    )
    if len(measured) > 1:
        raise InputError("input_config.phases: has several measured phases; give a run of one")
    load = measured[0] if measured else _get(value, "input_config.loadgen") or {}
    if any(_get(load, key) for key in ("rate_ramp", "concurrency_ramp", "rate_series")):
        raise InputError("increased its load over time, which is not modelled")
    gpus = _get(value, "telemetry_data.endpoints")
    gpu_names = {
        str(_get(gpu, "gpu_name")) for endpoint in (gpus or {}).values() for gpu in (_get(endpoint, "gpus") or {}).values()
    } if isinstance(gpus, dict) else set()  # fmt: skip
    model = _get(value, "input_config.models.items.0.name") or _get(value, "input_config.endpoint.model_names.0")
    return _result(
        requests=requests,
        failed=errors,
        duration=requests / _needed(value, "request_throughput.avg"),
        tokens=(_needed(value, inputs), _needed(value, "output_sequence_length.avg")),
        times=(
            _seconds(value, "inter_token_latency", "unit", "avg"),
            _seconds(value, "time_to_first_token", "unit", "avg"),
            _seconds(value, "request_latency", "unit", "avg"),
        ),
        clients=_positive_or_none(load, "concurrency"),
        rate=_positive_or_none(load, "rate") or _positive_or_none(load, "request_rate"),
        std_output_tokens=_number(value, "output_sequence_length.std"),
        model_id=model,
        date=_compact_date(value.get("end_time")),
        system=catalogue_system(next(iter(gpu_names))) if len(gpu_names) == 1 else "",
    )


# --- GuideLLM ---------------------------------------------------------------------------------------------------------------


def _is_guidellm(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("benchmarks"), list) and ("metadata" in value or "args" in value or "config" in value)


def _read_guidellm(value: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Convert one benchmark of GuideLLM's report."""
    benchmarks = value["benchmarks"]
    if not benchmarks:
        raise InputError("benchmarks: is empty")
    benchmark, path = benchmarks[place], f"benchmarks.{place}"
    if not isinstance(_get(benchmark, "metrics.request_totals"), dict):
        raise InputError(f"lacks {path}.metrics.request_totals")
    strategy = _get(benchmark, "config.strategy") or _get(benchmark, "scheduler.strategy") or {}
    kind = _get(strategy, "type_")
    data = _get(value, "config.spec.data.0")
    bucket = _get(data, "prefix_buckets.0.prefix_tokens") or _get(data, "prefix_tokens")
    turns = _get(data, "turns")
    _refuse({
        f"{path}: shared a prefix between prompts": bucket,
        f"{path}: had conversations of several turns": isinstance(turns, int) and turns > 1,
    })  # fmt: skip
    metrics = f"{path}.metrics"
    requests = _needed(value, f"{metrics}.request_totals.successful")
    clients = {"synchronous": 1.0, "concurrent": _positive_or_none(strategy, "streams")}.get(
        str(kind), _positive_or_none(strategy, "max_concurrency")
    )

    def milliseconds(name: str) -> float | None:
        # Without streaming, GuideLLM writes 0.
        mean = _number(value, f"{metrics}.{name}.successful.mean") or None
        return None if mean is None else _needed(value, f"{metrics}.{name}.successful.mean") / 1e3

    model = _get(benchmark, "config.backend.model") or _get(value, "config.spec.backend.model") or _get(value, "args.model")
    return _result(
        requests=requests,
        failed=_number(value, f"{metrics}.request_totals.errored"),
        duration=requests / _needed(value, f"{metrics}.requests_per_second.successful.mean"),
        tokens=(
            _needed(value, f"{metrics}.prompt_token_count.successful.mean"),
            _needed(value, f"{metrics}.output_token_count.successful.mean"),
        ),
        times=(
            milliseconds("inter_token_latency_ms"),
            milliseconds("time_to_first_token_ms"),
            _positive_or_none(value, f"{metrics}.request_latency.successful.mean"),
        ),
        clients=clients,
        rate=_positive_or_none(strategy, "rate"),
        std_output_tokens=_number(value, f"{metrics}.output_token_count.successful.std_dev"),
        model_id=model if isinstance(model, str) else "",
    )


# --- inference-perf ---------------------------------------------------------------------------------------------------------


def _is_inference_perf(value: Mapping[str, Any]) -> bool:
    return {"load_summary", "successes", "failures"} <= value.keys()


def _read_inference_perf(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert one stage of inference-perf."""
    rate, clients = (_number(value, f"load_summary.{name}") or None for name in ("requested_rate", "concurrency"))
    if not rate and not clients:
        raise InputError(
            "load_summary: has no requested_rate and no concurrency; give stage_N_lifecycle_metrics.json, not the summary"
        )
    requests = _needed(value, "successes.count")
    cached = _number(value, "successes.prompt_tokens.cached") or 0.0
    _refuse({"found prompts in a prefix cache": cached > 0.01 * (_number(value, "successes.prompt_tokens.total") or math.inf)})
    prompts = "prompt_len" if _get(value, "successes.prompt_len") else "prompt_tokens"
    # The server's count is exact; that of the client tokenises the text again.
    outputs = "output_tokens" if _number(value, "successes.output_tokens.mean") else "output_len"
    latency = "successes.latency"
    return _result(
        requests=requests,
        failed=_number(value, "failures.count"),
        duration=requests / _needed(value, "successes.throughput.requests_per_sec"),
        tokens=(_needed(value, f"successes.{prompts}.mean"), _needed(value, f"successes.{outputs}.mean")),
        times=(
            _positive_or_none(value, f"{latency}.time_per_output_token.mean"),
            _positive_or_none(value, f"{latency}.time_to_first_token.mean"),
            _positive_or_none(value, f"{latency}.request_latency.mean"),
        ),
        # With a limit of requests in flight, the requested rate is infinite or a formality.
        clients=clients,
        rate=None if clients else rate,
    )


# --- InferenceX -------------------------------------------------------------------------------------------------------------


def is_inferencex(value: Any) -> bool:
    """Check whether a value is a result of InferenceX.

    Args:
        value: Parsed JSON value.

    Returns:
        True for the aggregated form (`hw`) and for a row of its web page (`hardware`).
    """
    return (
        isinstance(value, dict)
        and {"conc", "isl", "osl", "framework"} <= value.keys()
        and bool({"hw", "hardware"} & value.keys())
    )


def inferencex_columns(value: Mapping[str, Any]) -> dict[str, str]:
    """Convert one result of InferenceX to columns of a run.

    Lengths are nominal: InferenceX draws 80 to 100 % of them. A pool with attention parallelism over its tp chips has tp 1
    and dp tp. The web page has no checkpoint, so `model` is its short name, which --model replaces.

    Args:
        value: One member of an `agg_*.json`, or of the answer of /api/v1/benchmarks.

    Returns:
        Columns of the run.

    Raises:
        InputError: The run had speculative tokens of unknown number, or lacks a figure.
    """
    metrics = value["metrics"] if isinstance(value.get("metrics"), dict) else value
    drafts = str(value.get("spec_decoding") or value.get("spec_method") or "none")
    if drafts != "none":
        raise InputError(f"spec_decoding is {short_repr(drafts)}, and the file lacks the number of speculative tokens")
    name = str(value.get("framework"))
    engine = next(
        (engine for key, engine in (("sglang", "sglang"), ("vllm", "vllm"), ("trt", "trtllm")) if key in name), "typical"
    )
    system = catalogue_system(value.get("hw") or value.get("hardware"))
    model = str(value.get("model") or value.get("infmax_model_prefix") or "")
    precision = str(value.get("precision"))
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {short_repr(precision)}")
    weights = PRECISIONS[precision][system.startswith("mi")]
    # Checkpoints of gpt-oss have experts in 4 bits and all else in bf16.
    is_gpt_oss = "gpt-oss" in model or "gptoss" in model
    columns = {
        "model": model, "system": system, "engine": engine,
        "engine_version": _release(value.get("image")).get("version", ""), "measured": str(value.get("date") or "")[:10],
        "input_tokens": f"{_needed(value, 'isl'):.0f}", "output_tokens": f"{_needed(value, 'osl'):.0f}",
        "concurrency": f"{_needed(value, 'conc'):.0f}",
        "weight_dtype": "bf16" if is_gpt_oss else weights, "expert_dtype": "mxfp4" if is_gpt_oss else weights, "kv_dtype": "",
        "length_spread": f"{1 / 9:.4g}",
    }  # fmt: skip
    tpot = _number(metrics, "mean_tpot") or _number(metrics, "median_tpot")
    if not tpot:
        raise InputError("lacks mean_tpot")
    columns["tpot_s"] = f"{tpot:.6g}"
    for key, column in (("mean_ttft", "ttft_s"), ("median_ttft", "ttft_median_s")):
        time = _number(metrics, key)
        columns[column] = f"{time:.6g}" if time else ""
    return columns | _inferencex_layout(value)


def _inferencex_layout(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the parallel sizes of an InferenceX result: one pool, or decode and prefill pools."""

    def sizes(side: str) -> dict[str, str]:
        # The web page repeats the sizes of one pool for both sides.
        key = f"{side}_" if f"{side}_tp" in value else ""
        tp, ep, pp = _needed(value, f"{key}tp"), _number(value, f"{key}ep") or 1, _number(value, f"{key}pp") or 1
        over_attention = str(value.get(f"{key}dp_attention", "")).casefold() == "true"
        width = {"tp": 1.0, "dp": tp} if over_attention else {"tp": tp, "dp": 1.0}
        return {axis: f"{size:.0f}" for axis, size in ({"pp": pp, "ep": ep} | width).items()}

    if str(value.get("disagg", "")).casefold() != "true":
        return sizes("decode")
    prefill = {f"prefill_{axis}": size for axis, size in sizes("prefill").items() if axis != "pp"}
    workers = {f"{side}_workers": f"{_needed(value, f'{side}_num_workers'):.0f}" for side in ROLES}
    chips = _needed(value, "num_prefill_gpu") + _needed(value, "num_decode_gpu")
    return sizes("decode") | prefill | workers | {"part": "ix_disaggregated", "chips": f"{chips:.0f}"}


# --- files that look alike --------------------------------------------------------------------------------------------------


def _is_per_request(value: Mapping[str, Any]) -> bool:
    return ("start_time" in value and "info" in value and "completed" not in value) or (
        isinstance(value.get("metrics"), dict)
        and isinstance(value.get("metadata"), dict)
        and "request_latency" in value["metrics"]
    )


def _refuse_per_request(value: Mapping[str, Any]) -> dict[str, Any]:
    del value
    summaries = "profile_export_aiperf.json or stage_N_lifecycle_metrics.json"
    raise InputError(f"is a record of one request: give the summary of the run, {summaries}")


READERS: Final = (
    (_is_llmd, _read_llmd),
    (_is_aiperf, _read_aiperf),
    (_is_guidellm, _read_guidellm),
    (_is_inference_perf, _read_inference_perf),
    (_is_per_request, _refuse_per_request),
)
