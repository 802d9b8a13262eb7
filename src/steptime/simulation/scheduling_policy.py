"""How a server schedules: each policy is a few numbers that the loop reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from steptime.blackboard.ideal_machine import drain_seconds
from steptime.errors import RangeError, UnknownName
from steptime.hardware.system import System
from steptime.number_checks import LONGEST, at_least_zero, limit, positive, single, whole_number
from steptime.physics.engine import Engine
from steptime.result_base import unit
from steptime.simulation.loop_state import CONTINUOUS, PREFILL_FIRST, STATIC, TRAIN, Rules

KINDS = {"continuous": CONTINUOUS, "prefill-first": PREFILL_FIRST, "static": STATIC, "train": TRAIN}
ROUTES = ("round-robin", "least-loaded", "prefix-aware")
UNIT = 64  # parts of a token in which contexts grow where drafts make it a fraction
NO_LIMIT = 1 << 50
MAX_NUM_SEQS, MAX_STEP_TOKENS = 1 << 20, 1 << 24  # of a replica, of a step
MAX_BLOCK_TOKENS, MAX_SPECULATIVE_TOKENS, MAX_CLASSES = 1 << 16, 1 << 10, 1 << 10  # tokens, tokens of a step, classes


def engine_policy_kind(engine: Engine) -> str:
    """The schedule that an engine has: prompts before decode, or beside it."""
    return "prefill-first" if float(engine.scheduler.prefill_first) > 0.5 else "continuous"


def engine_token_budget(engine: Engine, *, prompt: float, batch: float) -> int:
    """Tokens of an attention group in a step of an engine: its own figure, or a prompt and a decode batch [tokens]."""
    return int(engine.scheduler.step_tokens) or math.ceil(prompt + batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A schedule for the replicas of one pool.

    kind: "continuous" (prompt chunks beside decode, as vLLM), "prefill-first" (steps that read prompts come before steps that
    decode, as SGLang and TensorRT-LLM), "static" (a batch is done before the next begins) or "train" (a step departs every
    `interval` [s], full or not). max_num_seqs: sequences of a replica. max_num_batched_tokens: tokens of an attention group in
    a step, decoded ones among them. chunk: prompt tokens of a group in a step at most, however few it decodes.
    kv_tokens: room of a replica [tokens], without end if infinite; block: tokens that are allotted at once. when_full:
    "recompute" (the last seated sequence gives up its room and starts over) or "queue" (a request is seated only with room for
    all of it).
    patience [s]: how long a static batch that is not full waits after its first request. acceptance_length: tokens
    that a sequence gains in a decode step with `speculative_tokens`. ranks: classes of priority, 0 first. max_context [tokens].
    """

    kind: str = field(default="continuous", metadata=unit("", "continuous, prefill-first, static or train"))
    max_num_seqs: int = field(default=256, metadata=unit("", "seats of a replica"))
    max_num_batched_tokens: int = field(
        default=2048, metadata=unit("tokens", "of an attention group in a step", key="max_num_batched_tokens")
    )
    chunk: float = field(default=math.inf, metadata=unit("tokens", "of prompts of a group in a step; null: no limit"))
    kv_tokens: float = field(default=math.inf, metadata=unit("tokens", "room of a replica"))
    block: int = field(default=16, metadata=unit("tokens", "that are allotted at once"))
    when_full: str = field(default="recompute", metadata=unit("", "recompute or queue"))
    interval: float = field(default=0.0, metadata=unit("s", "between trains"))
    patience: float = field(default=0.0, metadata=unit("s", "that a static batch waits to fill"))
    acceptance_length: float = field(default=1.0, metadata=unit("tokens", "that a sequence gains in a step by drafts"))
    speculative_tokens: int = field(default=0, metadata=unit("tokens", "drafted for a step"))
    ranks: int = field(default=1, metadata=unit("", "classes of priority"))
    max_context: float = field(default=math.inf, metadata=unit("tokens", "longest context; null: no limit"))
    route: str = field(default="round-robin", metadata=unit("", "round-robin, least-loaded or prefix-aware"))

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
            if isinstance(number, np.generic):  # a narrow one would overflow
                object.__setattr__(self, name, number.item())
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
                "acceptance_length must be between 1 and "
                f"speculative_tokens + 1 = {self.speculative_tokens + 1}, got {self.acceptance_length:g}"
            )

    def rules(self, *, closed: bool = False, groups: int = 1) -> Rules:
        """Return the numbers that the loop reads, for a replica of `groups` attention groups."""
        is_speculative = self.acceptance_length > 1
        unit, block = (UNIT, 1) if is_speculative else (1, self.block)
        room = int(min(float(self.kv_tokens), NO_LIMIT) * unit // block)
        return Rules(
            kind=KINDS[self.kind],
            seats=int(self.max_num_seqs),
            budget=int(self.max_num_batched_tokens) * groups,
            chunk=int(self.max_num_batched_tokens),
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
            reads=int(min(float(self.chunk), MAX_STEP_TOKENS)),
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
    interval: float | None = None,
    **settings: Any,
) -> Policy:
    """Return the schedule that an engine has on a system, with what is given in place of its own figures.

    prompt: the longest [tokens], for engines that read a prompt in one step. kv_tokens: what the chips hold where None.
    interval [s] between trains: the time to read the whole HBM once where None. `settings` goes to `Policy`.
    """
    hbm = system.chip.hbm
    return Policy(
        kind=kind or engine_policy_kind(engine),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=engine_token_budget(engine, prompt=prompt, batch=max_num_seqs)
        if max_num_batched_tokens is None
        else max_num_batched_tokens,
        kv_tokens=math.inf if kv_tokens is None else kv_tokens,
        interval=float(drain_seconds(hbm.capacity, hbm.bandwidth)) if interval is None else interval,
        **settings,
    )
