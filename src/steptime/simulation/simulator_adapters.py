"""Simulator adapters and the predictor server: a step predictor as lines of JSON, and with the signatures of simulators.

One line is one request, and one line its answer:

    {"contexts": [900, 512], "prefills": [[256, 0]]}       {"seconds": 0.0071}
    {"batch": 64, "context": 2048}                         {"seconds": 0.0102}
    {"PromptTokens": 512, "CachedPromptTokens": 0, "RunningReqs": 8}      {"nanoseconds": 21000000}
    {"RunningReqs": 8}                                     {"nanoseconds": 7900000}

The last two have the field names of llm-d-inference-sim. A request that cannot be answered gets {"error": "..."}, and the
connection stays open. Lines, requests and connections are bounded, and only this machine is listened to.

Each adapter reads the objects of its simulator by their attributes, so that none of these packages is imported.
Interfaces as of autumn 2026:

- SGLang Simulator: `InferTimePredictor.predict_infer_time(batch)` of sglang_simulator/time_predictor/base.py in
  tools/sglang-simulator (github.com/sgl-project/sglang/pull/33824), seconds; requests have `extend_length` and
  `past_kv_length`.
- TensorRT-LLM: `InferTimePredictor.predict(batch)` with a `SimBatch` of four counts, seconds
  (github.com/NVIDIA/TensorRT-LLM/pull/12700).
- vLLM: `SchedulerOutput` of vllm/v1/core/sched/output.py, which a model runner without a forward pass gets
  (github.com/vllm-project/vllm/pull/47922).
- llm-d-inference-sim: `LatencyCalculator` of pkg/llm-d-inference-sim/latencies.go, durations in nanoseconds.
- Vidur: `BaseExecutionTimePredictor.get_execution_time(batch, pipeline_stage)` in vidur/execution_time_predictor, whose
  result has `total_time` in seconds.
- LLMServingSim 2: `Batch` of serving/core/request.py, whose trace of layers ASTRA-Sim runs; whole nanoseconds.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steptime.errors import InputError, RangeError, short_repr
from steptime.number_checks import at_least_zero
from steptime.simulation.step_predictor import StepPredictor

# Longest line [bytes], most sequences and prompts of a request, and most connections.
LONGEST_LINE, MOST_ITEMS, MOST_CONNECTIONS = 262_144, 16_384, 64
LOOPBACK: Final = "127.0.0.1"
PASS_FIELDS: Final = ("contexts", "prefills")
UNIFORM_FIELDS: Final = ("batch", "context", "prompts", "tokens", "prefix")
LLMD_FIELDS: Final = ("PromptTokens", "CachedPromptTokens", "DoRemotePrefill", "RunningReqs")
FORMS: Final = (PASS_FIELDS, UNIFORM_FIELDS, LLMD_FIELDS)


def answer_line(predictor: StepPredictor, line: str | bytes) -> dict[str, Any]:
    """Return the answer to a line of JSON.

    Args:
        predictor: The step predictor.
        line: A request.

    Returns:
        `seconds`, `nanoseconds` or `error`.
    """
    try:
        if len(line) > LONGEST_LINE:
            raise RangeError(f"request: a line has at most {LONGEST_LINE:,} bytes, got {len(line):,}; split the pass")
        return _answer(predictor, json.loads(line))
    except InputError as problem:
        return {"error": str(problem)}
    except (ValueError, RecursionError):
        return {"error": f"request: is not JSON, got {short_repr(line)[:80]}"}


def _answer(predictor: StepPredictor, request: Any) -> dict[str, Any]:
    if not isinstance(request, Mapping) or not request:
        raise RangeError(f'request: must be an object such as {{"batch": 64, "context": 2048}}, got {short_repr(request)[:80]}')
    for fields in FORMS:
        if set(request) <= set(fields):
            break
    else:
        unknown = set(request) - {name for names in FORMS for name in names}
        problem = "unknown fields" if unknown else "fields of several forms:"
        names_text = ", ".join(sorted(unknown or request))[:120]
        field_lists = "; ".join(", ".join(names) for names in FORMS)
        raise RangeError(f"request: {problem} {names_text}; use the fields of one form: {field_lists}")
    if fields is PASS_FIELDS:
        contexts = [_size("contexts", value) for value in _items("contexts", request)]
        prefills = [_prompt(entry) for entry in _items("prefills", request)]
        return {"seconds": predictor.seconds(contexts, prefills)}
    if fields is UNIFORM_FIELDS:
        return {"seconds": predictor.uniform_seconds(**{name: _size(name, value) for name, value in request.items()})}
    calculator, running = LlmdLatencyCalculator(predictor), int(_size("RunningReqs", request.get("RunningReqs", 1)))
    if "PromptTokens" not in request:
        return {"nanoseconds": calculator.get_inter_token_latency(running)}
    remote = request.get("DoRemotePrefill", False)
    if not isinstance(remote, bool):
        raise RangeError(f"DoRemotePrefill: must be true or false, got {short_repr(remote)}")
    prompt, cached = (int(_size(name, request.get(name, 0))) for name in ("PromptTokens", "CachedPromptTokens"))
    if max(prompt, cached) > predictor.max_context:
        raise RangeError(f"PromptTokens: the table holds up to {predictor.max_context:,} tokens, got {max(prompt, cached):,}")
    return {"nanoseconds": calculator.get_time_to_first_token(prompt, cached, remote, running)}


def _items(name: str, request: Mapping[str, Any]) -> list[Any]:
    items = request.get(name, [])
    if not isinstance(items, list) or len(items) > MOST_ITEMS:
        raise RangeError(f"{name}: must be a list of at most {MOST_ITEMS:,} entries, got {short_repr(items)[:80]}")
    return items


def _size(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise RangeError(f"{name}: must be a number of at least 0, got {short_repr(value)[:80]}")
    return float(value)


def _prompt(entry: Any) -> tuple[float, float]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise RangeError(f"prefills: each must be [new tokens, cached tokens], got {short_repr(entry)[:80]}")
    return _size("prefills", entry[0]), _size("prefills", entry[1])


def read_address(address: str) -> tuple[str, int] | Path:
    """Return a port of this machine, or the path of a Unix socket.

    Args:
        address: A port such as 7800, a host and port such as 127.0.0.1:7800, or a path.

    Returns:
        Host and port, or a path.

    Raises:
        RangeError: The port is out of range, the host is another machine, or this platform has no Unix sockets.

    >>> read_address("7800"), read_address("localhost:7800")
    (('127.0.0.1', 7800), ('127.0.0.1', 7800))
    """
    host, _, port = address.rpartition(":")
    if port.isdigit() and os.sep not in address:
        if host not in ("", LOOPBACK, "localhost"):
            raise RangeError(f"listen: only this machine is served, got {short_repr(host)}; use {LOOPBACK}:{port}")
        if not 0 <= int(port) < 65_536:
            raise RangeError(f"listen: a port is from 0 to 65535, got {port}")
        return LOOPBACK, int(port)
    if not hasattr(asyncio, "start_unix_server"):
        raise RangeError(f"listen: this platform has no Unix sockets, got {short_repr(address)}; use a port such as 7800")
    return Path(address)


async def serve_predictor(
    predictor: StepPredictor, address: str, *, ready: asyncio.Future[str] | None = None, connections: int = MOST_CONNECTIONS
) -> None:
    """Answer lines of JSON on a local socket until cancelled.

    Args:
        predictor: The step predictor.
        address: As for `read_address`.
        ready: Gets the address when the server listens.
        connections: Most connections at once; further ones get a message and are closed.

    Raises:
        RangeError: The address cannot be used.
    """
    target, open_connections = read_address(address), 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        try:
            if open_connections > connections:
                writer.write(json.dumps({"error": f"server: {connections} connections are open; close one"}).encode() + b"\n")
                await writer.drain()
                return
            await _converse(predictor, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_connections -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    try:
        if isinstance(target, Path):
            # A socket that a server left behind is replaced; any other file stays.
            if target.exists() and stat.S_ISSOCK(target.stat().st_mode):
                target.unlink()
            server: asyncio.Server = await asyncio.start_unix_server(handle, path=str(target), limit=LONGEST_LINE)
            target.chmod(0o600)
            place = str(target)
        else:
            server = await asyncio.start_server(handle, *target, limit=LONGEST_LINE)
            place = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    except OSError as problem:
        raise RangeError(f"listen: cannot listen on {address}: {problem.strerror or problem}; use another address") from None
    async with server:
        if ready is not None:
            ready.set_result(place)
        await server.serve_forever()


async def _converse(predictor: StepPredictor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the lines of one connection."""
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            error = {"error": f"request: a line has at most {LONGEST_LINE:,} bytes; split the pass"}
            writer.write(json.dumps(error).encode() + b"\n")
            await writer.drain()
            return
        writer.write(json.dumps(answer_line(predictor, line.strip())).encode() + b"\n")
        await writer.drain()


NANOSECONDS: Final = 1_000_000_000


def split_pass(requests: Iterable[tuple[float, float]]) -> tuple[list[float], list[tuple[float, float]]]:
    """Return the decoding sequences and the prompts of a batch.

    A request with one new token after cached ones decodes. All others are prompts or chunks of prompts.

    Args:
        requests: New tokens and cached tokens of each request; those without new tokens wait.

    Returns:
        Contexts of decoding sequences, and prompts as pairs of new and cached tokens.

    >>> split_pass([(1, 900), (512, 0), (256, 512), (0, 40)])
    ([900], [(512, 0), (256, 512)])
    """
    contexts, prefills = [], []
    for tokens, cached in requests:
        if tokens == 1 and cached > 0:
            contexts.append(cached)
        elif tokens > 0:
            prefills.append((tokens, cached))
    return contexts, prefills


class SglangTimePredictor:
    """`InferTimePredictor` of the SGLang Simulator.

    Args:
        model: Not used; the predictor knows its model.
        hw: Not used.
        config: Not used.
        predictor: The step predictor.
    """

    def __init__(self, model: Any = None, hw: Any = None, config: Any = None, *, predictor: StepPredictor) -> None:
        self.model, self.hw, self.config = model, hw, config
        self._predictor, self._calls = predictor, 0

    def predict_infer_time(self, batch: Any) -> float:
        """Return the time of a batch.

        Args:
            batch: `ScheduleBatch`: its `reqs` have `extend_length` and `past_kv_length`.

        Returns:
            Seconds.
        """
        self._calls += 1
        requests = ((request.extend_length, request.past_kv_length) for request in batch.reqs)
        return self._predictor.seconds(*split_pass(requests))

    def get_metrics(self) -> dict[str, Any]:
        """Return the number of calls since the last reset.

        Returns:
            Metrics by name.
        """
        return {"predictor": "steptime", "calls": self._calls, "table_error": self._predictor.error}

    def reset_metrics(self) -> None:
        """Set the number of calls to 0."""
        self._calls = 0


class TrtllmTimePredictor:
    """`InferTimePredictor` of the simulation mode of TensorRT-LLM.

    Args:
        predictor: The step predictor.
        mean_context: Tokens in the KV cache of a decoding sequence, which a `SimBatch` does not state.
    """

    def __init__(self, predictor: StepPredictor, *, mean_context: float = 1024.0) -> None:
        at_least_zero("mean_context", mean_context, maximum=predictor.max_context)
        self._predictor, self._context = predictor, mean_context

    def predict(self, batch: Any) -> float:
        """Return the time of a batch.

        Args:
            batch: `SimBatch`: `num_context_requests`, `num_context_tokens`, `num_generation_requests`.

        Returns:
            Seconds.
        """
        prompts = batch.num_context_requests
        tokens = batch.num_context_tokens / prompts if prompts else 0.0
        return self._predictor.uniform_seconds(batch.num_generation_requests, self._context, prompts, tokens)


class LlmServingSimTimePredictor:
    """Time of a `Batch` of LLMServingSim, in place of its trace of layers (`generate_trace`) and ASTRA-Sim's run of that.

    Args:
        predictor: The step predictor.
    """

    def __init__(self, predictor: StepPredictor) -> None:
        self._predictor = predictor

    def batch_nanoseconds(self, batch: Any) -> int:
        """Return the time of a batch.

        Args:
            batch: `Batch`: new tokens `prefill_q_list` and cached tokens `prefill_k_list` by prompt, and cached tokens
                `decode_k_list` by sequence. A last prompt token counts as a sequence that decodes.

        Returns:
            Nanoseconds.
        """
        prefills = zip(batch.prefill_q_list, batch.prefill_k_list, strict=True)
        return round(self._predictor.seconds(batch.decode_k_list, prefills) * NANOSECONDS)


class VllmTimePredictor:
    """Time of a `SchedulerOutput` of vLLM.

    Args:
        predictor: The step predictor.
    """

    def __init__(self, predictor: StepPredictor) -> None:
        self._predictor = predictor

    def step_seconds(self, scheduler_output: Any) -> float:
        """Return the time of the forward pass of a scheduler step.

        Args:
            scheduler_output: `SchedulerOutput`: `num_scheduled_tokens` by request, `scheduled_new_reqs` with `req_id` and
                `num_computed_tokens`, `scheduled_cached_reqs` with lists of both.

        Returns:
            Seconds.
        """
        new_tokens: Mapping[str, int] = scheduler_output.num_scheduled_tokens
        cached = scheduler_output.scheduled_cached_reqs
        computed = {request.req_id: request.num_computed_tokens for request in scheduler_output.scheduled_new_reqs}
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return self._predictor.seconds(*split_pass((tokens, computed.get(name, 0)) for name, tokens in new_tokens.items()))


class LlmdLatencyCalculator:
    """`LatencyCalculator` of llm-d-inference-sim, with durations in nanoseconds as in Go.

    Args:
        predictor: The step predictor.
        mean_context: Tokens in the KV cache of a running request, which the interface does not state.
        chunk: Prompt tokens of a step (`max_num_batched_tokens`).
        transfer_bandwidth: Bytes per second between pools, for a prompt that another pool prefilled.
        kv_bytes: Bytes of the KV cache of a token.
    """

    def __init__(
        self,
        predictor: StepPredictor,
        *,
        mean_context: float = 1024.0,
        chunk: int = 2048,
        transfer_bandwidth: float = 50e9,
        kv_bytes: float = 131_072.0,
    ) -> None:
        self._predictor, self._context = predictor, mean_context
        self._chunk = min(chunk, predictor.max_tokens)
        self._transfer = kv_bytes / transfer_bandwidth

    def get_time_to_first_token(
        self, prompt_tokens: int, cached_prompt_tokens: int = 0, do_remote_prefill: bool = False, running_reqs: int = 1
    ) -> int:
        """Return the time to the first token of a prompt, in chunks together with the running requests.

        Args:
            prompt_tokens: `PromptTokens`.
            cached_prompt_tokens: `CachedPromptTokens`.
            do_remote_prefill: `DoRemotePrefill`: the cache comes from another pool.
            running_reqs: `RunningReqs`, with this one.

        Returns:
            Nanoseconds.
        """
        if do_remote_prefill:
            return round(prompt_tokens * self._transfer * NANOSECONDS)
        seconds, start = 0.0, cached_prompt_tokens
        batch = max(running_reqs - 1, 0)
        while start < prompt_tokens:
            tokens = min(self._chunk, prompt_tokens - start)
            seconds += self._predictor.uniform_seconds(batch, self._context, 1, tokens, start)
            start += tokens
        # A prompt that is in the cache entirely still computes its last token.
        seconds = seconds or self._predictor.uniform_seconds(batch, self._context, 1, 1, max(prompt_tokens - 1, 0))
        return round(seconds * NANOSECONDS)

    def get_inter_token_latency(self, running_reqs: int = 1) -> int:
        """Return the time of a decode step.

        Args:
            running_reqs: `RunningReqs`.

        Returns:
            Nanoseconds.
        """
        return round(self._predictor.uniform_seconds(max(running_reqs, 1), self._context) * NANOSECONDS)


@dataclass(frozen=True, slots=True)
class VidurExecutionTime:
    """The times of a batch that Vidur reads: `total_time` and `model_time` in seconds, and the latter in ms."""

    total_time: float

    @property
    def model_time(self) -> float:
        """Seconds on the accelerator."""
        return self.total_time

    @property
    def model_time_ms(self) -> float:
        """Milliseconds on the accelerator."""
        return 1e3 * self.total_time


class VidurTimePredictor:
    """`BaseExecutionTimePredictor` of Vidur, for one pipeline stage.

    Args:
        predictor: The step predictor.
    """

    def __init__(self, predictor: StepPredictor) -> None:
        self._predictor = predictor

    def get_execution_time(self, batch: Any, pipeline_stage: int = 0) -> VidurExecutionTime:
        """Return the time of a batch.

        Args:
            batch: `Batch`: `num_q_tokens` and `num_kv_tokens` by request, the latter with the new ones; or `KVParallelBatch`,
                whose `batch_mapping` has one per group. In the original repository: `num_tokens`, and `requests` that have
                `num_processed_tokens`.
            pipeline_stage: Stage, of which there is one.

        Returns:
            Its times.
        """
        if hasattr(batch, "batch_mapping"):
            groups = [self.get_execution_time(group, pipeline_stage) for group in batch.batch_mapping.values()]
            return max(groups, key=lambda times: times.total_time)
        if hasattr(batch, "num_q_tokens"):
            new = batch.num_q_tokens
            cached = [stored - tokens for stored, tokens in zip(batch.num_kv_tokens, new, strict=True)]
        else:
            new, cached = batch.num_tokens, [request.num_processed_tokens for request in batch.requests]
        return VidurExecutionTime(self._predictor.seconds(*split_pass(zip(new, cached, strict=True))))
