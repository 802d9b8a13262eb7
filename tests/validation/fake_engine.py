"""A server on the loopback address that answers /metrics as vLLM or SGLang do, at a load that a test sets.

Names, labels, types and the order of samples are those of vLLM's vllm/v1/metrics/loggers.py (0.11) and SGLang's
python/sglang/srt/observability/metrics_collector.py (main of 2026-10); the numbers are made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def histogram(name: str, about: str, labels: str, total: float, count: float) -> list[str]:
    """Lines of a histogram whose values are all equal."""
    mean = total / count if count else 0.0
    lines = [f"# HELP {name} {about}", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{le}",{labels}}} {float(count) if mean <= le else 0.0}' for le in BUCKETS]
    lines += [f'{name}_bucket{{le="+Inf",{labels}}} {float(count)}', f"{name}_count{{{labels}}} {float(count)}"]
    return [*lines, f"{name}_sum{{{labels}}} {total!r}"]


@dataclass
class FakeEngine:
    """An engine in a steady state: each second `rate` requests of given lengths and times end."""

    engine: str = "vllm"
    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    rate: float = 4.0
    input: float = 1000.0
    output: float = 200.0
    tpot: float = 0.009
    ttft: float = 0.1
    queue: float = 0.01
    cached: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    texts: list[bytes] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        done = self.rate * seconds
        for name, value in {
            "requests": done, "prompt": done * self.input, "generation": done * self.output,
            "hits": done * self.input * self.cached,
            "ttft": done * self.ttft, "queue": done * self.queue, "gaps": done * (self.output - 1),
            "tpot": done * (self.output - 1) * self.tpot, "e2e": done * (self.ttft + (self.output - 1) * self.tpot),
        }.items():  # fmt: skip
            self.totals[name] = self.totals.get(name, 0.0) + value

    def text(self) -> str:
        """Return the text of /metrics."""
        t = {"requests": 0.0, **self.totals}
        running = self.rate * (self.ttft + (self.output - 1) * self.tpot)

        def of(name: str) -> float:
            return t.get(name, 0.0)

        labels = (
            f'engine="0",model_name="{self.model}"'
            if self.engine == "vllm"
            else f'model_name="{self.model}",engine_type="unified"'
        )
        n, p = of("requests"), self.engine
        counters = {
            "vllm": {"prompt_tokens": of("prompt"), "generation_tokens": of("generation"), "prefix_cache_queries": of("prompt"),
                     "prefix_cache_hits": of("hits"), "num_preemptions": 0.0},
            "sglang": {"prompt_tokens": of("prompt"), "generation_tokens": of("generation"), "cached_tokens": of("hits"),
                       "num_requests": n},
        }[p]  # fmt: skip
        gauges = {
            "vllm": {"num_requests_running": running, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.3},
            "sglang": {"num_running_reqs": running, "num_queue_reqs": 0.0, "token_usage": 0.3},
        }[p]
        lines = [
            "# HELP python_info Python platform information", "# TYPE python_info gauge",
            'python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"} 1.0',
        ]  # fmt: skip
        for name, value in gauges.items():
            lines += [f"# HELP {p}:{name} A gauge.", f"# TYPE {p}:{name} gauge", f"{p}:{name}{{{labels}}} {value!r}"]
        for name, value in counters.items():
            lines += [
                f"# HELP {p}:{name}_total A counter.",
                f"# TYPE {p}:{name}_total counter",
                f"{p}:{name}_total{{{labels}}} {value!r}",
            ]
        if p == "vllm":
            lines += [
                "# HELP vllm:request_success_total Count of successfully processed requests.",
                "# TYPE vllm:request_success_total counter",
            ]
            for reason, share in (("stop", 0.25), ("length", 0.75), ("abort", 0.0)):
                lines += [f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {n * share!r}']
        lengths = (
            ("request_prompt_tokens", "request_generation_tokens")
            if p == "vllm"
            else ("prompt_tokens_histogram", "generation_tokens_histogram")
        )
        queue = "request_queue_time_seconds" if p == "vllm" else "queue_time_seconds"
        for name, total, count in (
            ("time_to_first_token_seconds", of("ttft"), n), ("inter_token_latency_seconds", of("tpot"), of("gaps")),
            ("e2e_request_latency_seconds", of("e2e"), n), (queue, of("queue"), n), (lengths[0], of("prompt"), n),
            (lengths[1], of("generation"), n),
        ):  # fmt: skip
            lines += histogram(f"{p}:{name}", "A histogram.", labels, total, count)
        return "\n".join(lines) + "\n"


@contextmanager
def serving(engine: FakeEngine, *, seconds_per_scrape: float = 1.0, answer=None) -> Iterator[str]:
    """Serve an engine; each scrape lets time pass. `answer`: a function of the handler that answers instead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answer is not None:
                answer(self)
                return
            engine.run(seconds_per_scrape)
            body = engine.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
