"""Lengths of requests in public traces and in trace files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from steptime.errors import InputError, UnknownName, did_you_mean, short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLengths:
    """Mean input and output tokens of the requests of a trace, and standard deviations over the means.

    `caution` says that the requests are too few; it is empty where they are enough.
    """

    input_tokens: int
    output_tokens: int
    input_spread: float
    output_spread: float
    source: str = ""
    caution: str = ""


# Requests below which a spread of lengths or a percentile says little.
FEW_REQUESTS: Final = 30


def few_requests_caution(requests: int) -> str:
    """Say that some requests are too few for a distribution.

    Args:
        requests: Number of requests.

    Returns:
        A sentence without a period; empty where the requests are enough.

    >>> few_requests_caution(1), few_requests_caution(100)
    ('one request gives no distribution of lengths and latencies', '')
    """
    if requests >= FEW_REQUESTS:
        return ""
    amount = "one request gives no" if requests == 1 else f"{requests} requests give no reliable"
    return f"{amount} distribution of lengths and latencies"


# Traces of one hour each: 19,366, 8,819 and 12,031 requests.
AZURE: Final = "https://github.com/Azure/AzurePublicDataset, LLM inference traces of 2023 (Patel et al., ISCA 2024)"
MOONCAKE: Final = "https://github.com/kvcache-ai/Mooncake, conversation trace (Qin et al., FAST 2025)"
PUBLIC_TRACES: Final = {
    "azure-chat": TraceLengths(
        input_tokens=1155, output_tokens=211, input_spread=0.960, output_spread=0.771, source=f"{AZURE}, conversations"
    ),
    "azure-code": TraceLengths(
        input_tokens=2048, output_tokens=28, input_spread=0.964, output_spread=2.147, source=f"{AZURE}, code completion"
    ),
    "mooncake": TraceLengths(input_tokens=12035, output_tokens=343, input_spread=1.313, output_spread=0.729, source=MOONCAKE),
}


def check_arrivals(name: str) -> None:
    """Raise InputError for the name of a public trace in place of a file, because only its lengths are known.

    Args:
        name: Path of a trace file.

    Raises:
        InputError: There is no such file, and the name is that of a public trace, or near to one.
    """
    near = did_you_mean(name, PUBLIC_TRACES, 1)
    if near and Path(name).name == name and not Path(name).suffix and not Path(name).exists():
        trace = PUBLIC_TRACES[near[0]]
        raise InputError(
            f"trace: no file {short_repr(name)}, and of the public trace {near[0]} only lengths are known; give the path of a "
            f"file, or in place of a trace a rate, with input {trace.input_tokens}, output {trace.output_tokens}, spread "
            f"{trace.input_spread:.3g}, output-spread {trace.output_spread:.3g}"
        )


def trace_lengths(name: str) -> TraceLengths:
    """Return the lengths of requests in a public trace or a file.

    Args:
        name: Name of a public trace, or path of a trace file.

    Returns:
        Means and spreads of the requests with input and output.

    Raises:
        UnknownName: There is no such trace and no such file.
        InputError: The file has no request with input and output.

    >>> trace_lengths("azure-code").output_tokens
    28
    """
    from steptime.catalog.data_files import is_file
    from steptime.workload.trace_files import read_trace

    if name in PUBLIC_TRACES:
        return PUBLIC_TRACES[name]
    path = Path(name)
    if not is_file(path) and path.name == name and not path.suffix:
        raise UnknownName("trace", name, PUBLIC_TRACES, f"Known: {', '.join(PUBLIC_TRACES)}; a path to a trace file works too.")
    requests = read_trace(path)
    served = (requests.inputs > 0) & (requests.outputs > 0)
    if not np.any(served):
        raise InputError(f"trace: {short_repr(name)} has no request with input and output tokens")
    inputs, outputs = requests.inputs[served], requests.outputs[served]
    return TraceLengths(
        input_tokens=max(1, round(float(inputs.mean()))), output_tokens=max(1, round(float(outputs.mean()))),
        input_spread=float(inputs.std() / inputs.mean()), output_spread=float(outputs.std() / outputs.mean()), source=name,
        caution=few_requests_caution(len(inputs)),
    )  # fmt: skip
