"""Scheduling policy: the rules by which a server forms its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from steptime.blackboard.decode_latency import drain_seconds
from steptime.errors import RangeError, UnknownName
from steptime.hardware.system import System
from steptime.number_checks import LONGEST, at_least_zero, limit, positive, single, whole_number
from steptime.physics.engine import Engine
from steptime.result_base import unit
from steptime.simulation.loop_state import CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN, Rules

# The engine that reserves memory for whole outputs.
TRTLLM = "trtllm"
KINDS = {"continuous": CONTINUOUS, "prefill-first": PREFILL_FIRST, "static": STATIC, "train": TRAIN}
ROUTES = ("round-robin", "least-loaded", "prefix-aware", "random")
# Parts of a token in which contexts grow where the acceptance length is a fraction.
UNIT = 64
NO_LIMIT = 1 << 50
# Largest number of slots per replica, and of tokens per step.
MAX_NUM_SEQS, MAX_STEP_TOKENS = 1 << 20, 1 << 24
# Largest tokens per block, speculative tokens per step, and number of classes.
MAX_BLOCK_TOKENS, MAX_SPECULATIVE_TOKENS, MAX_CLASSES = 1 << 16, 1 << 10, 1 << 10


def engine_policy_kind(engine: Engine) -> str:
    """Return the kind of schedule of an engine.

    Args:
        engine: Engine.

    Returns:
        "prefill-first" or "continuous".
    """
    return "prefill-first" if float(engine.scheduler.prefill_first) > 0.5 else "continuous"


def engine_when_full(engine: Engine) -> str:
    """Return what an engine does with requests for which its KV cache has no room.

    TensorRT-LLM starts a request only with room for its whole output (GUARANTEED_NO_EVICT). vLLM starts it with room for its
    prompt, and preempts the last request where a decode step has no room. SGLang retracts requests (retract_decode).

    Args:
        engine: Engine.

    Returns:
        "queue" or "recompute".

    References:
        https://nvidia.github.io/TensorRT-LLM/performance/performance-tuning-guide/useful-runtime-flags.html
        https://docs.vllm.ai/en/latest/configuration/optimization.html
    """
    return "queue" if engine.kernel_engine == TRTLLM else "recompute"


def engine_token_budget(engine: Engine, *, prompt: float, batch: float) -> int:
    """Return the token budget of a step of an engine.

    Args:
        engine: Engine.
        prompt: Longest prompt [tokens].
        batch: Decode batch [tokens].

    Returns:
        Tokens per data-parallel rank: the engine's figure, or a prompt and a decode batch.
    """
    return int(engine.scheduler.step_tokens) or math.ceil(prompt + batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A schedule for the replicas of one pool.

    `kind` is one of four. "continuous" runs prefill chunks together with decode, as vLLM. "prefill-first"
    runs steps with prefill before steps with decode, as SGLang and TensorRT-LLM. "static" completes a batch
    before the next one starts. "train" starts a step every `interval` [s], full or not.

    `max_num_seqs` counts the slots per replica. `max_num_batched_tokens` limits the tokens of a data-parallel
    rank in a step, including decode. `chunk` limits its prompt tokens in a step. `kv_tokens` is the KV cache
    of a replica [tokens], which is allocated in units of `block` tokens. `when_full` is "recompute" (preempt
    the last sequence, and compute its cache again) or "queue" (admit a request only with room for all its
    tokens).

    `patience` [s] is how long a static batch that is not full waits after its first request.
    `acceptance_length` is the mean number of tokens that a decode step with `speculative_tokens` yields per
    sequence. `ranks` counts classes of priority, 0 first. `max_context` is in tokens.
    """

    kind: str = field(default="continuous", metadata=unit("", "continuous, prefill-first, static or train"))
    max_num_seqs: int = field(default=256, metadata=unit("", "slots per replica"))
    max_num_batched_tokens: int = field(
        default=2048, metadata=unit("tokens", "tokens of a data-parallel rank in a step", key="max_num_batched_tokens")
    )
    chunk: float = field(
        default=math.inf, metadata=unit("tokens", "prompt tokens of a data-parallel rank in a step; null: no limit")
    )
    kv_tokens: float = field(default=math.inf, metadata=unit("tokens", "KV cache of a replica"))
    block: int = field(default=16, metadata=unit("tokens", "tokens per block of the KV cache"))
    when_full: str = field(default="recompute", metadata=unit("", "recompute or queue"))
    interval: float = field(default=0.0, metadata=unit("s", "time between trains"))
    patience: float = field(default=0.0, metadata=unit("s", "time that a static batch waits for more requests"))
    acceptance_length: float = field(
        default=1.0, metadata=unit("tokens", "acceptance length: tokens per decode step and sequence")
    )
    speculative_tokens: int = field(default=0, metadata=unit("tokens", "speculative tokens per step"))
    ranks: int = field(default=1, metadata=unit("", "number of priority classes"))
    max_context: float = field(default=math.inf, metadata=unit("tokens", "longest context; null: no limit"))
    route: str = field(default="round-robin", metadata=unit("", "round-robin, least-loaded, prefix-aware or random"))

    def __post_init__(self) -> None:
        for kind, value, options in (
            ("policy", self.kind, tuple(KINDS)),
            ("routing", self.route, ROUTES),
            ("answer to a full cache", self.when_full, ("recompute", "queue")),
        ):
            if not isinstance(value, str) or value not in options:
                raise UnknownName(kind, value, options, f"Known: {', '.join(options)}.")
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("kind", "route", "when_full")}
        single(**numbers)
        for name, number in numbers.items():
            # A narrow numpy integer would overflow.
            if isinstance(number, np.generic):
                object.__setattr__(self, name, number.item())

        # Bounds keep the arrays of the event loop small enough.
        whole_number("max_num_seqs", self.max_num_seqs, maximum=MAX_NUM_SEQS)
        whole_number("max_num_batched_tokens", self.max_num_batched_tokens, maximum=MAX_STEP_TOKENS)
        whole_number("block", self.block, maximum=MAX_BLOCK_TOKENS, unit="token")
        whole_number("speculative_tokens", self.speculative_tokens, minimum=0, maximum=MAX_SPECULATIVE_TOKENS)
        whole_number("ranks", self.ranks, maximum=MAX_CLASSES)
        limit("chunk", self.chunk, "token", minimum=1)
        limit("KV tokens", self.kv_tokens, "token", minimum=1)
        limit("max context", self.max_context, "token", minimum=1)
        limit("patience", self.patience, minimum=0)
        at_least_zero("interval", self.interval, "s", maximum=LONGEST)
        if self.kind == "train":
            positive("the interval of a train schedule", self.interval, "s", minimum=1e-6, maximum=LONGEST)
        positive("acceptance_length", self.acceptance_length)
        if not 1 <= self.acceptance_length <= self.speculative_tokens + 1:
            raise RangeError(
                "acceptance_length: must be between 1 and "
                f"speculative_tokens + 1 = {self.speculative_tokens + 1}, got {self.acceptance_length:g}"
            )

    def rules(self, *, closed: bool = False, groups: int = 1, stages: int = 1, waves: int = 1) -> Rules:
        """Return the numbers that the event loop uses.

        Args:
            closed: True for a closed loop.
            groups: Data-parallel ranks per replica.
            stages: Pipeline stages; 1 runs all micro-batches of a step together.
            waves: Micro-batches under way in the stages; they share the tokens of a step.

        Returns:
            The rules.
        """
        is_speculative = self.acceptance_length > 1
        unit, block = (UNIT, 1) if is_speculative else (1, self.block)
        room = int(min(float(self.kv_tokens), NO_LIMIT) * unit // block)
        return Rules(
            kind=KINDS[self.kind],
            seats=int(self.max_num_seqs),
            budget=-(-int(self.max_num_batched_tokens) // waves),
            unit=unit,
            block=block,
            blocks=room,
            kv_tokens=int(min(float(self.kv_tokens), NO_LIMIT)),
            reserve=self.when_full == "queue" or self.kind == "static",
            query=int(self.speculative_tokens) + 1,
            growth=round(float(self.acceptance_length) * unit),
            interval=float(self.interval),
            patience=float(self.patience),
            ranks=int(self.ranks),
            closed=closed,
            longest=int(min(float(self.max_context), NO_LIMIT)),
            reads=-(-int(min(float(self.chunk), MAX_STEP_TOKENS)) // waves),
            groups=groups,
            rank_seats=-(-int(self.max_num_seqs) // groups),
            tracks=groups > 1 or stages > 1 or self.route == "least-loaded",
            stages=stages,
            waves=waves,
        )


def policy_for(
    engine: Engine,
    system: System,
    *,
    prompt: float,
    kind: str | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int | None = None,
    kv_tokens: float | None = None,
    when_full: str | None = None,
    interval: float | None = None,
    **settings: Any,
) -> Policy:
    """Return the schedule of an engine on a system.

    Args:
        engine: Engine.
        system: System.
        prompt: Longest prompt [tokens], for engines that prefill a prompt in one step.
        kind: Kind of schedule; by default the engine's.
        max_num_seqs: Slots per replica.
        max_num_batched_tokens: Tokens per data-parallel rank in a step; by default the engine's.
        kv_tokens: KV cache of a replica [tokens]; by default the room of the chips.
        when_full: "recompute" or "queue" where the cache is full; by default what the engine does.
        interval: Time between trains [s]; by default the time to stream the whole HBM once.
        settings: Other fields of `Policy`.

    Returns:
        The policy.
    """
    hbm = system.chip.hbm
    return Policy(
        kind=kind or engine_policy_kind(engine),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=engine_token_budget(engine, prompt=prompt, batch=max_num_seqs)
        if max_num_batched_tokens is None
        else max_num_batched_tokens,
        kv_tokens=math.inf if kv_tokens is None else kv_tokens,
        when_full=when_full or engine_when_full(engine),
        interval=float(drain_seconds(hbm.capacity, hbm.bandwidth)) if interval is None else interval,
        **settings,
    )
