"""Settings of public deployments that their runs do not tell, and that are no constants of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steptime.measured.kinds import HIGHEST, kind_of


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


def keeps_room(row: Mapping[str, str]) -> bool:
    """Whether a run keeps room for all of a request's output from its start: TensorRT-LLM's highest throughput.

    Its scheduler does so unless set (GUARANTEED_NO_EVICT), and `trtllm-bench` leaves it; MLPerf's submitters set it.

    >>> [keeps_room({"engine": engine, "part": "trt_max"}) for engine in ("trtllm", "vllm")]
    [True, False]
    """
    return row["engine"] == "trtllm" and kind_of(row) == HIGHEST


def usual_interval(row: Mapping[str, str]) -> float:
    """Return the interval of a run that does not tell its `stream_interval` [decode steps]: 1 but for public deployments.

    >>> [usual_interval({"engine": "sglang", "system": "hgx-b200", "concurrency": clients}) for clients in ("4", "16")]
    [10.0, 20.0]
    >>> usual_interval({"engine": "vllm", "system": "hgx-b200", "concurrency": "4"})
    1.0
    """
    for one in INTERVALS:
        if row["engine"] == one.engine and row["system"] in one.systems:
            return one.many if float(row["concurrency"] or 1) >= one.clients else one.few
    return 1.0
