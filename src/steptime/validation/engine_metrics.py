r"""Metrics of a running vLLM or SGLang server: scrapes of /metrics, and what the engine did between two scrapes.

Names are those of the engines' sources:

- vLLM: https://github.com/vllm-project/vllm/blob/main/vllm/v1/metrics/loggers.py
- SGLang: https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/observability/metrics_collector.py

The text is Prometheus' exposition format, https://prometheus.io/docs/instrumenting/exposition_formats/. Only the engines'
own metrics are read; samples of several data-parallel ranks are added.

A window is the difference of two scrapes. Mean times are differences of a histogram's sum over those of its count. Requests
that run follow from Little's law as in `bench_results`, without the measured time in the queue:
$X (TTFT - queue + (O - 1) TPOT)$ at $X$ requests per second.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

from steptime.errors import InputError, RangeError, short_repr
from steptime.result_base import unit

# Largest text that is read [bytes], and the time that one scrape may take [s].
LARGEST_TEXT: Final = 16_000_000
SCRAPE_SECONDS: Final = 10.0
SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
Names = Mapping[str, Mapping[str, tuple[str, ...]]]
# Counters, gauges and histograms by engine; of several names, the first that the server exports. A histogram has no suffix.
COUNTERS: Final[Names] = {
    "vllm": {
        "requests": ("vllm:request_success_total",),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "preemptions": ("vllm:num_preemptions_total",),
        "drafted_steps": ("vllm:spec_decode_num_drafts_total",),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    },
    "sglang": {
        "requests": ("sglang:num_requests_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "cache_queries": ("sglang:prompt_tokens_total",),
        "cache_hits": ("sglang:cached_tokens_total",),
        "drafted_steps": ("sglang:spec_verify_calls_total",),
    },
}
HISTOGRAMS: Final[Names] = {
    "vllm": {
        "ttft": ("vllm:time_to_first_token_seconds",),
        "tpot": (
            "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
            "vllm:request_time_per_output_token_seconds",
        ),
        "queue": ("vllm:request_queue_time_seconds",),
        "input": ("vllm:request_prompt_tokens",),
        "output": ("vllm:request_generation_tokens",),
    },
    "sglang": {
        "ttft": ("sglang:time_to_first_token_seconds",),
        "tpot": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "queue": ("sglang:queue_time_seconds",),
        "input": ("sglang:prompt_tokens_histogram",),
        "output": ("sglang:generation_tokens_histogram",),
    },
}  # fmt: skip
GAUGES: Final[Names] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_share": ("sglang:token_usage",),
    },
}
# Shares, whose samples of several ranks are averaged.
SHARES: Final = ("kv_share",)
SCHEMES: Final = {"http": 80, "https": 443}
REDIRECTS: Final = (301, 302, 303, 307, 308)
MOST_REDIRECTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One reading of the metrics of a server.

    seconds: time of the scrape on a clock that never goes back [s]; values: counters and gauges by quantity; sums and counts:
    those of histograms; model: name that the server serves.
    """

    engine: str
    model: str
    seconds: float
    values: Mapping[str, float]
    sums: Mapping[str, float]
    counts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a server did between two scrapes; a figure is NaN where the server counts none or had no request."""

    seconds: float = field(metadata=unit("s", "time between both scrapes", key="window_s"))
    requests_per_second: float = field(metadata=unit("requests/s", "requests that finished"))
    input_tokens_per_second: float = field(metadata=unit("tok/s", "prompt tokens"))
    output_tokens_per_second: float = field(metadata=unit("tok/s", "generated tokens"))
    tpot: float = field(metadata=unit("s", "mean time per output token after the first"))
    ttft: float = field(metadata=unit("s", "mean time to first token"))
    queue: float = field(metadata=unit("s", "mean time in the queue, a part of the time to first token"))
    input: float = field(metadata=unit("tokens", "mean input tokens of a request"))
    output: float = field(metadata=unit("tokens", "mean output tokens of a request"))
    in_flight: float = field(metadata=unit("", "mean requests that are not in the queue, by Little's law"))
    running: float = field(metadata=unit("", "requests that run at the second scrape"))
    waiting: float = field(metadata=unit("", "requests in the queue at the second scrape"))
    kv_share: float = field(metadata=unit("", "share of the KV cache in use at the second scrape"))
    cached_share: float = field(metadata=unit("", "share of the prompt tokens found in the prefix cache"))
    preemptions: float = field(metadata=unit("", "requests that lost their KV cache"))
    acceptance: float = field(metadata=unit("tokens", "output tokens of a speculative step; NaN without speculation"))


def metrics_url(url: str) -> str:
    """Return the address of the metrics of a server.

    Args:
        url: Address such as localhost:8000, http://host:8000 or http://host/engine/metrics.

    Returns:
        Address with a scheme and a path; /metrics without a path.

    Raises:
        InputError: The address is not one of HTTP, or contains a password.

    >>> metrics_url("localhost:8000"), metrics_url("https://a.example/x")
    ('http://localhost:8000/metrics', 'https://a.example/x')
    """
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        raise InputError(f"URL: must be an address with a port from 0 to 65,535, got {short_repr(url)}") from None
    del port
    if parts.scheme not in SCHEMES or not parts.hostname or re.search(r"[\s\x00-\x1f\x7f]", text):
        raise InputError(f"URL: must be an address such as http://localhost:8000, got {short_repr(url)}")
    if parts.username is not None or parts.password is not None:
        raise InputError("URL: leave the user and the password out; put the server behind a local proxy that adds them")
    path = parts.path if parts.path.strip("/") else "/metrics"
    return urlunsplit(SplitResult(parts.scheme, parts.netloc, path, parts.query, ""))


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or SCHEMES.get(parts.scheme, 0)


def _request(url: str, timeout: float) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Ask for an address of HTTP; no proxy sees the metrics of a local server."""
    scheme, host, port = _origin(url)
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout)
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        connection.request("GET", path, headers={"Accept": "text/plain", "Connection": "close"})
        return connection, connection.getresponse()
    except BaseException:
        connection.close()
        raise


def fetch_text(url: str, *, timeout: float = SCRAPE_SECONDS, largest: int = LARGEST_TEXT) -> str:
    """Fetch the text of an address of HTTP, with limits on time and size.

    Args:
        url: Address with scheme and path.
        timeout: Time of the whole transfer [s].
        largest: Most bytes.

    Returns:
        The text; bytes that are not UTF-8 are replaced.

    Raises:
        InputError: No answer in time, an error of HTTP, a redirect to another host, or a text that is too long.
    """
    ends, place = time.monotonic() + timeout, url
    try:
        for _ in range(MOST_REDIRECTS + 1):
            connection, answer = _request(place, max(ends - time.monotonic(), 1e-3))
            with contextlib.closing(connection):
                if answer.status not in REDIRECTS:
                    return _body(url, answer, ends, largest)
                target = urljoin(place, answer.getheader("Location") or "")
            if _origin(target) != _origin(place):
                raise InputError(f"{url}: redirects to another host, {short_repr(target)}, which is not followed")
            place = target
    except TimeoutError:
        raise InputError(f"{url}: no complete answer within {timeout:g} s") from None
    except OSError as error:
        raise InputError(f"{url}: cannot be reached: {error.strerror or error!s:.100}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise InputError(f"{url}: is not read: {type(error).__name__} {error!s:.100}") from None
    raise InputError(f"{url}: redirects more than {MOST_REDIRECTS} times")


def _body(url: str, answer: http.client.HTTPResponse, ends: float, largest: int) -> str:
    """Return the text of an answer; raise TimeoutError after `ends`."""
    if answer.status != http.client.OK:
        hint = "; SGLang needs --enable-metrics" if answer.status == http.client.NOT_FOUND else ""
        raise InputError(f"{url}: the server answered {answer.status} {short_repr(answer.reason)}{hint}")
    parts, size = [], 0
    while chunk := answer.read1(65_536):
        size += len(chunk)
        parts.append(chunk)
        if size > largest:
            raise InputError(f"{url}: sent more than {largest:,} bytes; is it the /metrics of vLLM or SGLang?")
        if time.monotonic() > ends:
            raise TimeoutError
    return b"".join(parts).decode("utf-8", errors="replace")


def parse_samples(text: str, names: Iterable[str]) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Parse the samples of some metrics.

    Args:
        text: Text in Prometheus' exposition format.
        names: Names of samples; others are skipped.

    Returns:
        Labels and values by name.

    >>> parse_samples('# TYPE a counter\\na_total{m="x"} 3.0\\nb 1\\n', ["a_total"])
    {'a_total': [({'m': 'x'}, 3.0)]}
    """
    sample_names = set(names)
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        # Most lines are buckets of histograms: the name decides before the expression is matched.
        name = line.partition("{")[0].partition(" ")[0]
        if name not in sample_names or not (match := SAMPLE.fullmatch(line)):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        samples.setdefault(name, []).append((dict(LABEL.findall(match[2] or "")), value))
    return samples


def read_scrape(text: str, seconds: float, served: str = "") -> Scrape:
    """Read the metrics of a server from their text.

    Args:
        text: Text of /metrics.
        seconds: Time of the scrape [s].
        served: Name of the served model, where the server has several.

    Returns:
        The scrape.

    Raises:
        InputError: The text has no metrics of vLLM or SGLang, lacks one that a window needs, or has several models.
    """
    engine = next((name for name in COUNTERS if re.search(rf"^{name}:", text, re.MULTILINE)), "")
    if not engine:
        kind = "HTML" if text.lstrip()[:1] == "<" else "a text without vllm: or sglang: metrics"
        raise InputError(f"is no /metrics of vLLM or SGLang, but {kind}; SGLang needs --enable-metrics")
    histograms = {
        quantity: tuple((f"{name}_sum", f"{name}_count") for name in names) for quantity, names in HISTOGRAMS[engine].items()
    }
    names = [name for group in (COUNTERS, GAUGES) for choices in group[engine].values() for name in choices]
    names += [name for choices in histograms.values() for pair in choices for name in pair]
    samples = parse_samples(text, names)
    models = sorted({labels["model_name"] for group in samples.values() for labels, _ in group if labels.get("model_name")})
    if served and served not in models:
        raise RangeError(
            f"--served-model-name: the server has no model {short_repr(served)}; it has {', '.join(models) or 'none'}"
        )
    if len(models) > 1 and not served:
        raise InputError(f"serves several models: {', '.join(models[:5])}; give --served-model-name NAME")

    def total(name: str, is_share: bool = False) -> float:
        values = [value for labels, value in samples[name] if not served or labels.get("model_name") == served]
        return sum(values) / (len(values) if is_share and values else 1)

    values: dict[str, float] = {}
    for group in (COUNTERS, GAUGES):
        for quantity, choices in group[engine].items():
            if name := next((name for name in choices if name in samples), ""):
                values[quantity] = total(name, quantity in SHARES)
    sums, counts = {}, {}
    for quantity, pairs in histograms.items():
        # A histogram that nothing was counted in gives way to the next name.
        present = [pair for pair in pairs if all(name in samples for name in pair)]
        if pair := next((pair for pair in present if total(pair[1]) > 0), present[0] if present else None):
            sums[quantity], counts[quantity] = total(pair[0]), total(pair[1])
    for quantity in ("prompt_tokens", "generation_tokens"):
        if quantity not in values:
            raise InputError(f"lacks {COUNTERS[engine][quantity][0]}: is the server one of prefill or decode only?")
    model = served or (models[0] if models else "")
    return Scrape(engine=engine, model=model, seconds=seconds, values=values, sums=sums, counts=counts)


def is_restarted(first: Scrape, second: Scrape) -> bool:
    """Check whether the server restarted between two scrapes: a counter is lower.

    Args:
        first: Earlier scrape.
        second: Later scrape.

    Returns:
        True if it restarted, or serves another model.
    """
    counters = COUNTERS[first.engine]
    fell = any(second.values.get(name, 0.0) < first.values.get(name, 0.0) for name in counters)
    fell = fell or any(second.counts.get(name, 0.0) < count for name, count in first.counts.items())
    return fell or (first.engine, first.model) != (second.engine, second.model)


def window_between(first: Scrape, second: Scrape) -> Window:
    """Return what a server did between two scrapes.

    Args:
        first: Earlier scrape.
        second: Later scrape of the same process.

    Returns:
        The window.
    """
    seconds = max(second.seconds - first.seconds, 1e-9)

    def gained(name: str) -> float:
        if name not in first.values or name not in second.values:
            return math.nan
        return second.values[name] - first.values[name]

    def mean(name: str) -> float:
        count = second.counts.get(name, 0.0) - first.counts.get(name, 0.0)
        return (second.sums[name] - first.sums.get(name, 0.0)) / count if count > 0 else math.nan

    prompts, generated, requests = gained("prompt_tokens"), gained("generation_tokens"), gained("requests")
    # First tokens count requests as they start, which is steadier than those that end.
    started = second.counts.get("ttft", 0.0) - first.counts.get("ttft", 0.0)
    if not requests > 0 and started > 0:
        requests = started
    lengths = {"input": mean("input"), "output": mean("output")}
    for name, tokens in (("input", prompts), ("output", generated)):
        if math.isnan(lengths[name]) and requests > 0:
            lengths[name] = tokens / requests
    queries, hits = gained("cache_queries"), gained("cache_hits")
    steps, accepted = gained("drafted_steps"), gained("accepted_tokens")
    tpot, ttft, queue = mean("tpot"), mean("ttft"), mean("queue")
    unqueued = ttft if math.isnan(queue) else max(ttft - queue, 0.0)
    flight = requests / seconds * (unqueued + max(lengths["output"] - 1, 0.0) * tpot)
    return Window(
        seconds=seconds,
        requests_per_second=requests / seconds,
        input_tokens_per_second=prompts / seconds,
        output_tokens_per_second=generated / seconds,
        tpot=tpot,
        ttft=ttft,
        queue=queue,
        **lengths,
        in_flight=flight,
        running=second.values.get("running", math.nan),
        waiting=second.values.get("waiting", math.nan),
        kv_share=second.values.get("kv_share", math.nan),
        cached_share=hits / queries if queries > 0 else math.nan,
        preemptions=gained("preemptions"),
        acceptance=1 + accepted / steps if steps > 0 and accepted >= 0 else math.nan,
    )
