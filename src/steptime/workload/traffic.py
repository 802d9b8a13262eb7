"""Traffic: arrival times and lengths of requests, drawn or from a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from steptime.errors import RangeError, UnknownName, expect
from steptime.number_checks import MOST_TOKENS, at_least_zero, between, positive, single, whole_number
from steptime.result_base import Result, unit
from steptime.units import request_rate
from steptime.workload.workload import LARGEST_SPREAD

ARRIVALS = ("poisson", "gamma", "constant")
SHAPES = ("fixed", "uniform", "lognormal")
# Latest time of arrival [s].
LATEST = 1e15
# Requests of a run, which take some gigabytes.
MAX_REQUESTS = 50_000_000
# Lowest and highest rate for which arrivals are drawn [requests/s].
RATES = (1e-6, 1e9)
BURSTS = (1e-6, 1e6)
# Default requests of a run: in all, and per client.
DEFAULT_REQUESTS, DEFAULT_REQUESTS_PER_CLIENT = 10_000, 10


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Traffic(Result):
    """Requests in order of arrival; all arrays have one length.

    `arrival` is in s, `inputs` and `outputs` in tokens. `rank` is the class of priority, 0 first. `clients`
    counts the clients of a closed loop, each with one request in flight. It is 0 in an open loop. `blocks`
    has the hashes of prompt blocks of `block_tokens` each; request i has those from `starts[i]` to `starts[i
    + 1]`. Turns of sessions are numbered by `turn` in `turns`. Each uses its blocks until `release` [s], and `earlier` are
    those before the run, which arrive before 0 s.
    """

    DERIVED: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "rate": unit("requests/s", "mean from the first to the last arrival; null in a closed loop", key="requests_per_s")
    }

    arrival: Any = field(metadata=unit("s", "arrival of each request", left_out=True))
    inputs: Any = field(metadata=unit("tokens", "input of each request", left_out=True))
    outputs: Any = field(metadata=unit("tokens", "output of each request", left_out=True))
    rank: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "of each", left_out=True))
    clients: int = field(default=0, metadata=unit("", "clients of a closed loop; 0 in an open loop"))
    blocks: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "hashes", left_out=True))
    starts: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "of each", left_out=True))
    block_tokens: int = field(default=512, metadata=unit("tokens", "tokens of a block of a prompt", left_out=True))
    turns: Any = field(default=None, metadata=unit("", "drawn sessions", left_out=True))
    turn: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=unit("", "of each", left_out=True))
    release: Any = field(default_factory=lambda: np.zeros(0), metadata=unit("s", "end of the use of blocks", left_out=True))
    earlier: Any = field(default=None, metadata=unit("", "turns before the run, which fill the cache", left_out=True))
    name: str = field(default="", metadata=unit("", "file of the trace, or how requests were drawn"))

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def ranks(self) -> Any:
        """The class of each request; 0 where no class is given."""
        return self.rank if len(self.rank) else np.zeros(len(self), dtype=np.int64)

    @property
    def rate(self) -> float:
        """Requests per second from the first to the last arrival; NaN in a closed loop."""
        if self.clients or len(self) < 2:
            return math.nan
        span = float(self.arrival[-1] - self.arrival[0])
        return (len(self) - 1) / span if span > 0 else math.inf

    def headline(self) -> tuple[str, dict[str, str]]:
        """Return a title and the mean lengths.

        Returns:
            Title with the number of requests and the rate; lengths by label.
        """
        comes = f"{self.clients:,} clients" if self.clients else request_rate(self.rate)
        return f"Traffic {self.name}: {len(self):,} requests, {comes}", {
            "mean lengths": f"{np.mean(self.inputs):,.0f} tokens in, {np.mean(self.outputs):,.0f} out" if len(self) else "none"
        }


def checked(traffic: Traffic) -> Traffic:
    """Return a traffic with valid arrays.

    Args:
        traffic: Traffic.

    Returns:
        The traffic with numpy arrays.

    Raises:
        RangeError: Arrays differ in length, are not in order of arrival, or have fractions of tokens.
    """
    expect("the traffic", traffic, Traffic, "a Traffic, as open_loop, closed_loop and read_trace give it")
    arrival = np.asarray(at_least_zero("arrival", traffic.arrival, "s", maximum=LATEST), dtype=np.float64)
    inputs, outputs = (
        np.asarray(whole_number(f"{name} of a request", tokens, minimum=0, maximum=1 << 40)).astype(np.int64)
        for name, tokens in (("inputs", traffic.inputs), ("outputs", traffic.outputs))
    )
    rank = np.asarray(whole_number("the class of a request", traffic.rank, minimum=0, maximum=1 << 10)).astype(np.int64)
    if arrival.ndim != 1 or not arrival.shape == inputs.shape == outputs.shape or rank.shape not in (arrival.shape, (0,)):
        raise RangeError(
            f"arrival, inputs, outputs: must have one length, got {arrival.shape}, {inputs.shape}, {outputs.shape}"
        )
    if not len(arrival):
        raise RangeError("traffic: must have at least one request, got 0")
    if np.any(np.diff(arrival) < 0):
        raise RangeError("arrival: requests must be in order of arrival, got times that decrease; sort them")
    single(clients=traffic.clients)
    clients = whole_number("clients", traffic.clients, minimum=0, maximum=MAX_REQUESTS)
    return replace(traffic, arrival=arrival, inputs=inputs, outputs=outputs, rank=rank, clients=clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of the tokens of requests.

    "fixed" gives the mean, "uniform" mean (1 ± spread), and "lognormal" a standard deviation of spread x
    mean.

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
        """Draw lengths of at least 1 token.

        Args:
            random: Random generator.
            n: Number of lengths.

        Returns:
            Tokens, of shape (n,).
        """
        if self.shape == "uniform":
            low, high = max(1, round(self.mean * (1 - self.spread))), max(1, round(self.mean * (1 + self.spread)))
            return random.integers(low, high + 1, n)
        if self.shape == "lognormal" and self.spread > 0:
            sigma = math.sqrt(math.log1p(self.spread**2))
            return np.maximum(1, np.rint(random.lognormal(math.log(self.mean) - sigma**2 / 2, sigma, n))).astype(np.int64)
        return np.full(n, round(self.mean), dtype=np.int64)


def arrivals(rate: float, n: int, random: np.random.Generator, *, kind: str = "poisson", burst: float = 1.0) -> Any:
    """Draw times of arrival.

    Args:
        rate: Request rate [requests/s].
        n: Number of requests.
        random: Random generator.
        kind: "poisson", "constant" or "gamma".
        burst: Squared coefficient of variation of gamma intervals; 1 is Poisson.

    Returns:
        Times [s], of shape (n,).
    """
    if not isinstance(kind, str) or kind not in ARRIVALS:
        raise UnknownName("arrival process", kind, ARRIVALS, f"Known: {', '.join(ARRIVALS)}.")
    single(rate=rate, burst=burst, requests=n)
    positive("rate", rate, "requests/s", minimum=RATES[0], maximum=RATES[1])
    positive("burst", burst, minimum=BURSTS[0], maximum=BURSTS[1])
    n = whole_number("requests", n, maximum=MAX_REQUESTS)
    if kind == "constant":
        return np.arange(n) / rate
    gaps = random.exponential(1 / rate, n) if kind == "poisson" else random.gamma(1 / burst, burst / rate, n)
    return np.cumsum(gaps)


def _random(seed: int, n: int) -> np.random.Generator:
    """Return the random generator for `n` requests."""
    single(requests=n, seed=seed)
    whole_number("requests", n, maximum=MAX_REQUESTS)
    return np.random.default_rng(whole_number("a seed", seed, minimum=0, maximum=1 << 64))


# Arrival processes in words.
ARRIVALS_IN_WORDS: Final = {"poisson": "Poisson arrivals", "gamma": "gamma arrivals", "constant": "constant arrivals"}


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
    """Draw requests that arrive at a rate, independent of the server.

    Args:
        rate: Request rate [requests/s].
        n: Number of requests.
        inputs: Input tokens.
        outputs: Output tokens.
        kind: Arrival process: "poisson", "constant" or "gamma".
        burst: Squared coefficient of variation of gamma intervals.
        seed: Random seed; the same seed gives the same requests.

    Returns:
        The traffic.
    """
    random, n = _random(seed, n), int(n)
    for name, lengths in (("inputs", inputs), ("outputs", outputs)):
        expect(f"the length of {name}", lengths, Lengths, "a Lengths, such as Lengths(mean=512)")
    return Traffic(
        arrival=arrivals(rate, n, random, kind=kind, burst=burst),
        inputs=_draw_lengths(inputs, random, n),
        outputs=_draw_lengths(outputs, random, n),
        name=f"{ARRIVALS_IN_WORDS.get(kind, kind)} at {request_rate(rate)}",
    )


def closed_loop(clients: int, n: int, inputs: Lengths, outputs: Lengths, *, seed: int = 0) -> Traffic:
    """Draw requests of clients that wait for each answer before the next request.

    All clients send their first request at the start.

    Args:
        clients: Number of clients.
        n: Number of requests.
        inputs: Input tokens.
        outputs: Output tokens.
        seed: Random seed.

    Returns:
        The traffic.
    """
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
    """Draw the tokens of `n` requests."""
    if not isinstance(lengths, Lengths):
        raise RangeError(f"lengths: must be a Lengths, got {type(lengths).__name__}; give for example Lengths(mean=512)")
    return lengths.draw(random, n)


def scaled(traffic: Traffic, factor: float) -> Traffic:
    """Return the same requests at a multiple of the rate; of sessions, those that start, with the same think times.

    Args:
        traffic: Traffic.
        factor: Factor on the rate.

    Returns:
        The traffic.
    """
    traffic = checked(traffic)
    single(rate_scale=factor)
    positive("a rate scale", factor, minimum=RATES[0], maximum=RATES[1])
    if traffic.turns is not None:
        at_scale: Traffic = replace(traffic.turns, start=traffic.turns.start / factor).traffic()
        return at_scale
    return replace(traffic, arrival=traffic.arrival / factor)


def longer(traffic: Traffic, tokens: int) -> Traffic:
    """Return the same requests with longer prompts.

    No other prompt shares the added tokens.

    Args:
        traffic: Traffic.
        tokens: Tokens to add to each prompt.

    Returns:
        The traffic.
    """
    traffic = checked(traffic)
    name = f"{traffic.name}, {tokens:,} tokens of images or recordings in each prompt".lstrip(", ")
    return checked(replace(traffic, inputs=np.asarray(traffic.inputs) + tokens, name=name))


def with_sessions(traffic: Traffic, *, prefixes: int, prefix_tokens: int, block_tokens: int = 64, seed: int = 0) -> Traffic:
    """Return a traffic with prompts that begin with shared prefixes.

    Args:
        traffic: Traffic.
        prefixes: Number of different prefixes.
        prefix_tokens: Tokens of a prefix.
        block_tokens: Tokens of a block.
        seed: Random seed.

    Returns:
        The traffic with block hashes.

    Raises:
        RangeError: There are too many blocks, or a prefix is shorter than a block.
    """
    traffic = checked(traffic)
    single(block_tokens=block_tokens, prefixes=prefixes, prefix_tokens=prefix_tokens)
    block_tokens = whole_number("block tokens", block_tokens)
    prefixes = whole_number("prefixes", prefixes)
    prefix_tokens = whole_number("prefix tokens", prefix_tokens, minimum=block_tokens)
    if (blocks := float(np.sum(traffic.inputs, dtype=np.float64)) / block_tokens) > MAX_REQUESTS:
        raise RangeError(f"blocks: must be at most {MAX_REQUESTS:,} in all prompts, got {blocks:,.0f}; use fewer requests")
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
    """Return the share of prompt blocks that are equal to an earlier block; of sessions, the share of tokens that repeat.

    Args:
        traffic: Traffic.

    Returns:
        Share; 0 without block hashes.

    >>> one = Traffic(arrival=[0.0, 1.0], inputs=[1024, 512], outputs=[1, 1], blocks=[7, 8, 7], starts=[0, 2, 3])
    >>> round(repeated_share(one), 3)
    0.333
    """
    if traffic.turns is not None:
        return 1 - float(traffic.turns.new[traffic.turn].sum() / traffic.inputs.sum())
    blocks = np.asarray(traffic.blocks)
    return 1 - len(np.unique(blocks)) / len(blocks) if len(blocks) else 0.0


def merged(parts: list[Traffic]) -> Traffic:
    """Merge open-loop traffics into one, each as a class.

    Args:
        parts: Traffics; the first one has the highest priority.

    Returns:
        The traffic.
    """
    if not parts:
        raise RangeError("parts: must have at least one traffic, got 0")
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
    """Draw requests at a rate, or from the clients of a closed loop.

    Args:
        inputs: Input tokens.
        outputs: Output tokens.
        rate: Request rate [requests/s].
        clients: Clients of a closed loop, instead of a rate.
        requests: Number of requests; by default DEFAULT_REQUESTS, or DEFAULT_REQUESTS_PER_CLIENT per client.
        fast_share: Share of the requests in a class that is served first.
        kind: Arrival process: "poisson", "constant" or "gamma".
        burst: Squared coefficient of variation of gamma intervals.
        seed: Random seed.

    Returns:
        The traffic.

    Raises:
        RangeError: There is neither a rate nor a number of clients, or a value is out of range.
    """
    if clients is not None:
        return closed_loop(
            clients, DEFAULT_REQUESTS_PER_CLIENT * clients if requests is None else requests, inputs, outputs, seed=seed
        )
    if rate is None:
        raise RangeError("rate, clients: one of the two is needed, got none; give a rate or a number of clients")
    count = DEFAULT_REQUESTS if requests is None else requests
    if not 0 <= fast_share < 1:
        raise RangeError(f"fast_share: must be at least 0 and below 1, got {fast_share:g}")
    if not fast_share:
        return open_loop(rate, count, inputs, outputs, kind=kind, burst=burst, seed=seed)
    if count < 2:
        raise RangeError(f"requests: two classes need at least 2, got {count}")
    fast = max(1, round(count * fast_share))
    parts = ((fast_share, fast), (1 - fast_share, max(1, count - fast)))
    return merged(
        [
            open_loop(rate * share, n, inputs, outputs, kind=kind, burst=burst, seed=seed + rank)
            for rank, (share, n) in enumerate(parts)
        ]
    )
