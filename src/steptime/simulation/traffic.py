"""Requests: when they come and how long they are, drawn from a distribution or read from a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from steptime.errors import RangeError, UnknownName, expect
from steptime.number_checks import MOST_TOKENS, at_least_zero, between, positive, single, whole_number
from steptime.result_base import Result, unit
from steptime.units import in_digits

ARRIVALS = ("poisson", "gamma", "constant")
SHAPES = ("fixed", "uniform", "lognormal")
LARGEST_SPREAD = 100.0  # deviation over mean
LATEST = 1e15  # s
MAX_REQUESTS = 50_000_000  # requests of a run: some gigabytes
RATES = (1e-6, 1e9)  # requests/s that arrivals are drawn for
BURSTS = (1e-6, 1e6)
DEFAULT_REQUESTS, DEFAULT_REQUESTS_PER_CLIENT = (
    10_000,
    10,
)  # requests of a run where no number is given: in all, and of each client


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Traffic(Result):
    """Requests in order of arrival, all arrays of one length.

    arrival [s], inputs and outputs [tokens], rank (class, 0 is served first). clients: of a closed loop, each with one
    request in flight; 0 where requests come when they come. blocks: hashes of the prompt's blocks of `block_tokens` each,
    request i having those from `starts[i]` to `starts[i + 1]`.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "rate": unit("requests/s", "mean from the first to the last arrival; null in a closed loop", key="requests_per_s")
    }

    arrival: Any = field(metadata=unit("s", "of each request", left_out=True))
    inputs: Any = field(metadata=unit("tokens", "of each prompt", left_out=True))
    outputs: Any = field(metadata=unit("tokens", "that each gets", left_out=True))
    rank: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "of each", left_out=True))
    clients: int = field(default=0, metadata=unit("", "of a closed loop; 0 where requests come when they come"))
    blocks: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "hashes", left_out=True))
    starts: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "of each", left_out=True))
    block_tokens: int = field(default=512, metadata=unit("tokens", "of a block of a prompt", left_out=True))
    name: str = field(default="", metadata=unit("", "a trace's file, or how requests were drawn"))

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def ranks(self) -> Any:
        """The class of each request; 0 where none was given."""
        return self.rank if len(self.rank) else np.zeros(len(self), dtype=np.int64)

    @property
    def rate(self) -> float:
        """Requests per second from the first to the last arrival; NaN in a closed loop."""
        if self.clients or len(self) < 2:
            return math.nan
        span = float(self.arrival[-1] - self.arrival[0])
        return (len(self) - 1) / span if span > 0 else math.inf

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return how many requests come how, and their mean lengths."""
        comes = f"{self.clients:,} clients" if self.clients else f"{in_digits(self.rate)} requests/s"
        return f"Traffic {self.name}: {len(self):,} requests, {comes}", {
            "mean lengths": f"{np.mean(self.inputs):,.0f} tokens in, {np.mean(self.outputs):,.0f} out" if len(self) else "none"
        }


def checked(traffic: Traffic) -> Traffic:
    """Return the traffic as arrays; raise RangeError where they are not of one length, in order and of whole tokens."""
    expect("the traffic", traffic, Traffic, "a Traffic, as open_loop, closed_loop and read_trace give it")
    arrival = np.asarray(at_least_zero("arrival", traffic.arrival, "s", maximum=LATEST), dtype=np.float64)
    inputs, outputs = (
        np.asarray(whole_number(f"{name} of a request", tokens, minimum=0, maximum=1 << 40)).astype(np.int64)
        for name, tokens in (("inputs", traffic.inputs), ("outputs", traffic.outputs))
    )
    rank = np.asarray(whole_number("the class of a request", traffic.rank, minimum=0, maximum=1 << 10)).astype(np.int64)
    if arrival.ndim != 1 or not arrival.shape == inputs.shape == outputs.shape or rank.shape not in (arrival.shape, (0,)):
        raise RangeError(f"requests need an arrival, inputs and outputs each: {arrival.shape}, {inputs.shape}, {outputs.shape}")
    if not len(arrival):
        raise RangeError("there is no request to serve")
    if np.any(np.diff(arrival) < 0):
        raise RangeError("requests must be in order of arrival")
    single(clients=traffic.clients)
    clients = whole_number("clients", traffic.clients, minimum=0, maximum=MAX_REQUESTS)
    return replace(traffic, arrival=arrival, inputs=inputs, outputs=outputs, rank=rank, clients=clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of requests: "fixed" at mean, "uniform" in mean (1 ± spread), or "lognormal" with deviation spread x mean.

    >>> Lengths(mean=100).draw(np.random.default_rng(0), 3).tolist()
    [100, 100, 100]
    """

    mean: float
    shape: str = "fixed"
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.shape, str) or self.shape not in SHAPES:
            raise UnknownName(
                "length distribution",
                self.shape,
                SHAPES,
                f"Known: {', '.join(SHAPES)}.",
            )
        single(mean=self.mean, spread=self.spread)
        between("a mean length", self.mean, 1, MOST_TOKENS, "token")
        uniform = self.shape == "uniform"
        at_least_zero(
            "spread of uniform lengths" if uniform else "spread", self.spread, maximum=1 if uniform else LARGEST_SPREAD
        )

    def draw(self, random: np.random.Generator, n: int) -> Any:
        """Return `n` lengths of at least 1 token."""
        if self.shape == "uniform":
            low, high = max(1, round(self.mean * (1 - self.spread))), max(1, round(self.mean * (1 + self.spread)))
            return random.integers(low, high + 1, n)
        if self.shape == "lognormal" and self.spread > 0:
            sigma = math.sqrt(math.log1p(self.spread**2))
            return np.maximum(1, np.rint(random.lognormal(math.log(self.mean) - sigma**2 / 2, sigma, n))).astype(np.int64)
        return np.full(n, round(self.mean), dtype=np.int64)


def arrivals(rate: float, n: int, random: np.random.Generator, *, kind: str = "poisson", burst: float = 1.0) -> Any:
    """Return `n` times of arrival [s] at `rate` [requests/s].

    kind: "poisson", "constant", or "gamma" with intervals whose squared coefficient of variation is `burst` (1 is Poisson).
    """
    if not isinstance(kind, str) or kind not in ARRIVALS:
        raise UnknownName("arrival process", kind, ARRIVALS, f"Known: {', '.join(ARRIVALS)}.")
    single(rate=rate, burst=burst, requests=n)
    positive("a rate", rate, "requests/s", minimum=RATES[0], maximum=RATES[1])
    positive("burst", burst, minimum=BURSTS[0], maximum=BURSTS[1])
    n = whole_number("requests", n, maximum=MAX_REQUESTS)
    if kind == "constant":
        return np.arange(n) / rate
    gaps = random.exponential(1 / rate, n) if kind == "poisson" else random.gamma(1 / burst, burst / rate, n)
    return np.cumsum(gaps)


def _random(seed: int, n: int) -> np.random.Generator:
    """The source of what is drawn for `n` requests."""
    single(requests=n, seed=seed)
    whole_number("requests", n, maximum=MAX_REQUESTS)
    return np.random.default_rng(whole_number("a seed", seed, minimum=0, maximum=1 << 64))


def open_loop(
    rate: float,
    n: int,
    inputs: Lengths,
    outputs: Lengths,
    *,
    kind: str = "poisson",
    burst: float = 1.0,
    seed: int = 0,
) -> Traffic:
    """Return `n` requests that come at `rate` [requests/s] whatever the server does; the seed reproduces them."""
    random, n = _random(seed, n), int(n)
    for name, lengths in (("inputs", inputs), ("outputs", outputs)):
        expect(f"the length of {name}", lengths, Lengths, "a Lengths, such as Lengths(mean=512)")
    return Traffic(
        arrival=arrivals(rate, n, random, kind=kind, burst=burst),
        inputs=_draw_lengths(inputs, random, n),
        outputs=_draw_lengths(outputs, random, n),
        name=f"{kind} at {rate:g}/s",
    )


def closed_loop(clients: int, n: int, inputs: Lengths, outputs: Lengths, *, seed: int = 0) -> Traffic:
    """Return `n` requests of `clients` that each wait for an answer before they ask again; all ask at once at the start."""
    single(concurrency=clients)
    clients = whole_number("concurrency", clients, maximum=MAX_REQUESTS)
    random, n = _random(seed, n), int(n)
    for name, lengths in (("inputs", inputs), ("outputs", outputs)):
        expect(f"the length of {name}", lengths, Lengths, "a Lengths, such as Lengths(mean=512)")
    return Traffic(
        arrival=np.zeros(n),
        inputs=_draw_lengths(inputs, random, n),
        outputs=_draw_lengths(outputs, random, n),
        clients=min(clients, n),
        name=f"{clients} clients",
    )


def _draw_lengths(lengths: Lengths, random: np.random.Generator, n: int) -> Any:
    """Return the tokens of `n` requests."""
    if not isinstance(lengths, Lengths):
        raise RangeError(f"lengths are a Lengths, such as Lengths(mean=512), not {type(lengths).__name__}")
    return lengths.draw(random, n)


def scaled(traffic: Traffic, factor: float) -> Traffic:
    """Return the same requests at `factor` times the rate."""
    traffic = checked(traffic)
    single(rate_scale=factor)
    positive("a rate scale", factor, minimum=RATES[0], maximum=RATES[1])
    return replace(traffic, arrival=traffic.arrival / factor)


def longer(traffic: Traffic, tokens: int) -> Traffic:
    """Return the same requests with prompts that are longer by so many tokens, which no other prompt begins with."""
    traffic = checked(traffic)
    name = f"{traffic.name}, {tokens:,} tokens of images or recordings in each prompt".lstrip(", ")
    return checked(replace(traffic, inputs=np.asarray(traffic.inputs) + tokens, name=name))


def with_sessions(traffic: Traffic, *, prefixes: int, prefix_tokens: int, block_tokens: int = 64, seed: int = 0) -> Traffic:
    """Return the traffic with prompts that begin with one of `prefixes` shared texts of `prefix_tokens` [tokens]."""
    traffic = checked(traffic)
    single(block_tokens=block_tokens, prefixes=prefixes, prefix_tokens=prefix_tokens)
    block_tokens = whole_number("block tokens", block_tokens)
    prefixes = whole_number("prefixes", prefixes)
    prefix_tokens = whole_number("prefix tokens", prefix_tokens, minimum=block_tokens)
    if (blocks := float(np.sum(traffic.inputs, dtype=np.float64)) / block_tokens) > MAX_REQUESTS:
        raise RangeError(
            f"prompts of {blocks:,.0f} blocks in all are too many to tell apart; at most {MAX_REQUESTS:,}: fewer requests"
        )
    random = _random(seed, len(traffic))
    which = random.integers(0, prefixes, len(traffic))
    shared = np.minimum(prefix_tokens, traffic.inputs) // block_tokens
    total = np.asarray(traffic.inputs) // block_tokens
    starts = np.concatenate([[0], np.cumsum(total)]).astype(np.int64)
    first_unshared_id = prefixes * (prefix_tokens // block_tokens + 1)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], total)
    ids = np.where(
        place < np.repeat(shared, total),
        np.repeat(which, total) * (prefix_tokens // block_tokens + 1) + place,
        first_unshared_id + np.arange(starts[-1]),
    )
    return replace(traffic, blocks=ids.astype(np.int64), starts=starts, block_tokens=block_tokens)


def repeated_share(traffic: Traffic) -> float:
    """Return the share of the blocks of prompts that an earlier block equals; 0 where no blocks are known.

    >>> one = Traffic(arrival=[0.0, 1.0], inputs=[1024, 512], outputs=[1, 1], blocks=[7, 8, 7], starts=[0, 2, 3])
    >>> round(repeated_share(one), 3)
    0.333
    """
    blocks = np.asarray(traffic.blocks)
    return 1 - len(np.unique(blocks)) / len(blocks) if len(blocks) else 0.0


def merged(parts: list[Traffic]) -> Traffic:
    """Return several open traffics as one, each a class: the first is served first where priorities count."""
    if not parts:
        raise RangeError("no traffic is given")
    arrival = np.concatenate([t.arrival for t in parts])
    order = np.argsort(arrival, kind="stable")
    rank = np.concatenate([np.full(len(t), k) for k, t in enumerate(parts)])
    return Traffic(
        arrival=arrival[order],
        inputs=np.concatenate([t.inputs for t in parts])[order],
        outputs=np.concatenate([t.outputs for t in parts])[order],
        rank=rank[order],
        name=" + ".join(t.name for t in parts),
    )


def draw_traffic(
    inputs: Lengths,
    outputs: Lengths,
    *,
    rate: float | None = None,
    clients: int | None = None,
    requests: int | None = None,
    fast_share: float = 0.0,
    kind: str = "poisson",
    burst: float = 1.0,
    seed: int = 0,
) -> Traffic:
    """Return requests of some lengths that come at `rate` [requests/s], or from `clients` of a closed loop.

    requests: USUAL of them, or PER_CLIENT of each client, unless given. fast_share: of a rate, in a class of their own that
    is served first.
    """
    if clients is not None:
        return closed_loop(
            clients, DEFAULT_REQUESTS_PER_CLIENT * clients if requests is None else requests, inputs, outputs, seed=seed
        )
    if rate is None:
        raise RangeError("requests are drawn at a rate or for clients, and neither is given")
    count = DEFAULT_REQUESTS if requests is None else requests
    if not 0 <= fast_share < 1:
        raise RangeError(f"the fast share must be at least 0 and below 1, not {fast_share:g}")
    if not fast_share:
        return open_loop(rate, count, inputs, outputs, kind=kind, burst=burst, seed=seed)
    if count < 2:
        raise RangeError("two classes need at least 2 requests")
    fast = max(1, round(count * fast_share))
    parts = ((fast_share, fast), (1 - fast_share, max(1, count - fast)))
    return merged(
        [
            open_loop(rate * share, n, inputs, outputs, kind=kind, burst=burst, seed=seed + rank)
            for rank, (share, n) in enumerate(parts)
        ]
    )
