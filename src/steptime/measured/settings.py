"""Settings of public deployments that their runs do not tell, and that are no constants of an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from steptime.measured.kinds import HIGHEST, MLPERF, OFFLINE, kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Decode steps between two looks at new requests: `few` below `clients` of them, `many` from there on."""

    engine: str
    systems: tuple[str, ...]
    few: float
    many: float
    clients: float
    source: str


INTERVALS = (
    Interval(
        engine="sglang",
        systems=("hgx-b200", "hgx-b300"),
        few=10.0,
        many=20.0,
        clients=16.0,
        source="185 median first tokens; InferenceMAX's scripts there have --scheduler-recv-interval 10, or 30 from 16 clients",
    ),
)


BALANCED_WITHIN = 60.0
"""Steps after which TensorRT-LLM reads new prompts though some attention group has none, where it balances them (InferenceX,
its scripts of DeepSeek-R1 and TensorRT-LLM's own benchmarks: attention_dp_config, enable_balance, timeout_iters 60; it does not
unless told). _torch/pyexecutor/py_executor.py, _balance_adp_requests: the count runs on whether a prompt waits or not."""


def balance_period(groups: int, clients: float, output_tokens: float) -> float:
    """Return the steps between two in which new prompts are read: until each group has one, or `BALANCED_WITHIN`.

    A closed loop brings clients / output_tokens of them a step, each to the group where a request has ended: all groups have
    one after groups (1 + 1/2 + ... + 1/groups) of them in the mean.

    >>> balance_period(8, 64, 1024), round(balance_period(4, 256, 1024), 1)
    (60.0, 33.3)
    """
    needed = groups * sum(1 / n for n in range(1, groups + 1))
    return min(BALANCED_WITHIN, needed * output_tokens / clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """The requests that MLPerf has for a model: how many, and their longest output [tokens; 0: all alike]."""

    model: str
    requests: int
    longest: float = 0.0


DATA_SETS = (
    DataSet(model="llama-2-70b", requests=24576, longest=1024),
    DataSet(model="mixtral-8x7b", requests=15000, longest=1024),
    DataSet(model="llama-3.1-405b", requests=8313),
    DataSet(model="llama-3.1-8b", requests=13368),
    DataSet(model="deepseek-r1", requests=4388, longest=20000),
)
"""github.com/mlcommons/inference, loadgen/mlperf.conf (Offline.min_query_count), language/*/README.md (longest outputs), and
https://mlcommons.org/2025/09/deepseek-inference-5-1/ (20K)."""
MOST_SETS = 1000
LEAST_SECONDS = 600.0  # of an Offline run (loadgen/mlperf.conf, Offline.min_duration)

BENCHMARKED = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000, (2048, 128): 3000,
    (1000, 2000): 1500, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
}  # fmt: skip
"""Requests of `trtllm-bench` by lengths of prompt and output: TensorRT-LLM, docs/source/performance/perf-overview.md, table
"Preparing a Dataset"."""


def data_set_of(row: Mapping[str, str]) -> DataSet | None:
    """Return the data set of a run of MLPerf's Offline; None for other runs, and for models that are not known.

    >>> data_set_of({"part": "mlperf", "scenario": "Offline", "model": "deepseek-ai/DeepSeek-R1"}).requests
    4388
    """
    if row.get("part") != MLPERF or kind_of(row) != OFFLINE:
        return None
    name = row["model"].casefold().rpartition("/")[2]
    return next((one for one in DATA_SETS if name.startswith(one.model) and "distill" not in name), None)


def longest_of(row: Mapping[str, str]) -> float:
    """Return the longest output of a run's data set [tokens]; 0 where it is not known, or all are alike."""
    data_set = data_set_of(row)
    return 0.0 if data_set is None else data_set.longest


def requests_of(row: Mapping[str, str], seconds: Callable[[float], float]) -> float:
    """Return the requests of a run that are all there at its start; infinitely many where nothing tells.

    seconds: that a run of so many takes. MLPerf's runs take whole data sets, and ten minutes at least.

    >>> requests_of({"requests": "500", "scenario": "Offline"}, lambda requests: requests)
    500.0
    >>> requests_of({"part": "mlperf", "scenario": "Offline", "model": "DeepSeek-R1"}, lambda requests: requests / 10)
    8776.0
    """
    if row.get("requests"):
        return float(row["requests"])
    if kind_of(row) == HIGHEST:
        return float(BENCHMARKED.get((int(float(row["input_tokens"])), int(float(row["output_tokens"]))), math.inf))
    data_set = data_set_of(row)
    if data_set is None:
        return math.inf
    one = seconds(data_set.requests)
    least = max(1, math.floor(LEAST_SECONDS / one)) if one > 0 else 1  # that many take less time than as many runs of one
    enough = (n for n in count(least) if n > MOST_SETS or seconds(n * data_set.requests) >= LEAST_SECONDS)
    return float(data_set.requests * next(enough))


MOST_AT_ONCE = 4096
"""Sequences that `trtllm-bench` lets run at once: TensorRT-LLM, tensorrt_llm/bench/build/tuning.py, finetune_setting."""


def most_at_once(row: Mapping[str, str]) -> float:
    """Return the most sequences that a replica runs at once: as its row tells, or as `trtllm-bench` sets it.

    >>> [most_at_once({"engine": "trtllm", "part": "trt_max", "concurrency": told}) for told in ("64", "")]
    [64.0, 4096.0]
    """
    if row.get("concurrency"):
        return float(row["concurrency"])
    return MOST_AT_ONCE / int(float(row.get("pp") or 1)) if keeps_room(row) else math.inf


def keeps_room(row: Mapping[str, str]) -> bool:
    """Whether a run keeps room for all of a request's output from its start: TensorRT-LLM's highest throughput.

    Its scheduler does so unless set (GUARANTEED_NO_EVICT), and `trtllm-bench` leaves it; MLPerf's submitters set it.

    >>> [keeps_room({"engine": engine, "part": "trt_max"}) for engine in ("trtllm", "vllm")]
    [True, False]
    """
    return row["engine"] == "trtllm" and kind_of(row) == HIGHEST


def usual_interval(row: Mapping[str, str], clients: float | None = None) -> float:
    """Return the interval of a run that does not tell its `stream_interval` [decode steps]: 1 but for public deployments.

    clients: of one replica, by default all of the run. Attention groups that wait for each other wait half of a period in the
    mean: an interval of that and one more.

    >>> [usual_interval({"engine": "sglang", "system": "hgx-b200", "concurrency": clients}) for clients in ("4", "16")]
    [10.0, 20.0]
    >>> usual_interval({"engine": "vllm", "system": "hgx-b200", "concurrency": "4"})
    1.0
    """
    asked = max(1.0, float(row["concurrency"] or 1) if clients is None else clients)
    if row["engine"] == "trtllm" and float(row.get("dp") or 1) > 1:
        return 1 + balance_period(int(float(row["dp"])), asked, float(row["output_tokens"])) / 2
    one = looks_rarely(row)
    return 1.0 if one is None else one.many if asked >= one.clients else one.few


def looks_rarely(row: Mapping[str, str]) -> Interval | None:
    """Return the interval of public deployments at which a run's engine looks at what is new; None where it looks in each step.

    >>> looks_rarely({"engine": "vllm", "system": "hgx-b200"}) is None
    True
    """
    return next((one for one in INTERVALS if row["engine"] == one.engine and row["system"] in one.systems), None)
