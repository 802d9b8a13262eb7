"""A simulation as an llm-d Benchmark Report v0.2, in JSON or YAML, which llm-d-benchmark's tools read like measured reports.

The fields are those of `schema_v0_2.py` (package `llmd-benchmark-report` 0.2.1), whose models forbid further ones:
https://github.com/llm-d/llm-d-benchmark/blob/main/llmdbenchmark/analysis/benchmark_report/schema_v0_2.py

Rates are averages from the first arrival to the last token, as load generators compute them. They differ from the steady rates
of `steptime simulate`. The report's id is a hash of its content, so that equal runs give equal files.
"""

from __future__ import annotations

import json
import os
import uuid
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.atomic_files import write_text_atomically
from steptime.errors import DataFileError, InputError, install_hint
from steptime.physics.layout import Layout
from steptime.simulation.loop_state import DONE, REJECTED
from steptime.simulation.simulation_result import Simulation

VERSION: Final = version("steptime")
REPORT_VERSION: Final = "0.2"
SUFFIXES: Final = (".json", ".yaml", ".yml")
# Keys of the percentiles of a report.
PERCENTILES: Final = {
    "p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p99p9": 99.9,
}  # fmt: skip


def check_report_path(path: str) -> None:
    """Raise InputError unless a report can be written in the format of a file name.

    Args:
        path: File that ends in .json, .yaml or .yml.
    """
    suffix = Path(path).suffix.casefold()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: a report needs a file name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if suffix != ".json" and find_spec("yaml") is None:
        raise InputError(f"YAML needs PyYAML: {install_hint('launch')}; or write a .json file")


def benchmark_report(run: Simulation) -> dict[str, Any]:
    """Return a simulation as a Benchmark Report v0.2.

    Args:
        run: Finished run with at least one served request.

    Returns:
        The report as data. Times in s, lengths in tokens.

    Raises:
        InputError: No request was served.
    """
    rows = run.requests[run.requests["status"] == DONE]
    if not len(rows):
        raise InputError("no request was served, so that a report would have no latencies")
    seconds, sent = run.answers.seconds, len(run.requests)
    rejected = int((run.requests["status"] == REJECTED).sum())
    longer = rows[rows["outputs"] > 1]
    tokens = {"input": float(rows["inputs"].sum()), "output": float(rows["outputs"].sum())}
    latency = {
        "time_to_first_token": _statistics(rows["first"] - rows["arrival"], "s"),
        "request_latency": _statistics(rows["finish"] - rows["arrival"], "s"),
        "normalized_time_per_output_token": _statistics((rows["finish"] - rows["arrival"]) / rows["outputs"], "s/token"),
    }
    if len(longer):
        per_token = (longer["finish"] - longer["first"]) / (longer["outputs"] - 1)
        gaps = {key: getattr(run.answers.inter_token, key) for key in ("mean", "p50", "p90", "p95", "p99")}
        latency |= {
            "time_per_output_token": _statistics(per_token, "s/token"),
            "inter_token_latency": {"units": "s/token", **gaps},
        }
    rates = {
        "input_token_rate": (tokens["input"], "tokens/s"),
        "output_token_rate": (tokens["output"], "tokens/s"),
        "total_token_rate": (sum(tokens.values()), "tokens/s"),
        "request_rate": (float(len(rows)), "queries/s"),
    }
    report = {
        "version": REPORT_VERSION,
        "run": {
            "time": {"duration": f"PT{seconds:.6f}S"},
            "description": f"simulated by steptime {VERSION}, not measured",
            "keywords": ["simulated"],
        },
        "scenario": {"stack": _stack(run), "load": _load(run)},
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": {
                        "total": sent,
                        "failures": rejected,
                        "incomplete": sent - rejected - len(rows),
                        "input_length": _statistics(rows["inputs"], "count"),
                        "output_length": _statistics(rows["outputs"], "count"),
                    },
                    "latency": latency,
                    "throughput": {name: {"units": unit, "mean": total / seconds} for name, (total, unit) in rates.items()},
                }
            }
        },
    }
    content = json.dumps(report, sort_keys=True)
    report["run"] = {"uid": str(uuid.uuid5(uuid.NAMESPACE_URL, content)), **report["run"]}  # type: ignore[dict-item]
    return report


def _statistics(values: Any, units: str) -> dict[str, Any]:
    """Return the Statistics of a report: mean, deviation and percentiles."""
    numbers = np.asarray(values, dtype=float)
    percentiles = np.percentile(numbers, list(PERCENTILES.values())).tolist()
    extremes = {"min": float(numbers.min()), "max": float(numbers.max())}
    summary = {"units": units, "mean": float(numbers.mean()), "stddev": float(numbers.std())}
    return summary | extremes | dict(zip(PERCENTILES, percentiles, strict=True))


def _stack(run: Simulation) -> list[dict[str, Any]]:
    """Return the components: one engine, or prefill and decode engines."""
    role = "decode" if run.prefill_replicas else "replica"
    stack = [_component(run, role, run.layout, run.system, run.replicas)]
    if run.prefill_replicas:
        # A result has the layout of the replicas that decode only.
        decode_chips = int(run.layout.chips) * run.replicas
        chips = (run.chips - decode_chips) // run.prefill_replicas
        system = run.prefill_system or run.system
        stack.append(_component(run, "prefill", Layout(tp=chips), system, run.prefill_replicas))
    return stack


def _component(run: Simulation, role: str, layout: Layout, system: str, replicas: int) -> dict[str, Any]:
    sizes = {axis: int(getattr(layout, axis)) for axis in ("tp", "pp", "dp", "ep")}
    standardized = {
        "kind": "inference_engine",
        "tool": run.engine,
        "tool_version": f"steptime {VERSION}",
        "role": role,
        "replicas": replicas,
        "model": {"name": run.model},
        "accelerator": {"model": system, "count": int(layout.chips), "parallelism": sizes},
    }
    config_id = str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(standardized, sort_keys=True)))
    return {"metadata": {"label": f"{role}-0", "cfg_id": config_id}, "standardized": standardized, "native": {}}


def _load(run: Simulation) -> dict[str, Any]:
    traffic = run.traffic
    standardized: dict[str, Any] = {
        "tool": "steptime",
        "tool_version": VERSION,
        "source": "random",
        "input_seq_len": _lengths(traffic.inputs),
        "output_seq_len": _lengths(traffic.outputs),
    }
    if traffic.clients:
        standardized["concurrency"] = int(traffic.clients)
    elif np.isfinite(traffic.rate) and traffic.rate > 0:
        standardized["rate_qps"] = float(traffic.rate)
    return {"metadata": {"description": traffic.name}, "standardized": standardized, "native": {}}


def _lengths(values: Any) -> dict[str, Any]:
    lengths = np.asarray(values)
    kind = "fixed" if lengths.min() == lengths.max() else "other"
    return {"distribution": kind, "value": float(lengths.mean()), "min": int(lengths.min()), "max": int(lengths.max())}


def write_report(path: str | os.PathLike[str], run: Simulation) -> None:
    """Write a simulation as a Benchmark Report v0.2.

    Args:
        path: File that ends in .json, .yaml or .yml.
        run: Finished run.

    Raises:
        InputError: The format is not known, PyYAML is missing, or no request was served.
        DataFileError: The file cannot be written.
    """
    check_report_path(str(path))
    report = benchmark_report(run)
    if Path(path).suffix.casefold() == ".json":
        text = json.dumps(report, indent=2) + "\n"
    else:
        import yaml

        text = yaml.safe_dump(report, sort_keys=False)
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror}") from None
