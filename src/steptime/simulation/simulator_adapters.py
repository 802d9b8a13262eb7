"""Simulator adapters: a step predictor with the signatures that simulators of engines call.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from steptime.number_checks import at_least_zero
from steptime.simulation.step_predictor import StepPredictor

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
