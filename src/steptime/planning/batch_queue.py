"""Queues of servers with constant service time, and of batch servers.

`queue_wait` gives the mean wait of M/D/c. `passes` describes a batch server, which takes all waiting requests
in one pass: how long a pass lasts, and how busy the server may be within a latency limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from steptime.number_checks import Array, Number

# Largest load of a slot [share]; at 1 its queue grows without end.
FULL = 1 - 1e-9
# Exponent per unit of sqrt(c) - 1: the wait of M/D/c over that of M/D/1, fitted to exact values within 0.9 %.
SERVERS_EXPONENT = 1.2102


def queue_wait(service: Number, utilisation: Number, servers: Number = 1) -> Number:
    r"""Return the mean wait of M/D/c: half of the wait of an M/M/c queue.

    $W = \frac{S}{2} \frac{\rho^{\sqrt{2(c+1)} - 1}}{c (1 - \rho)}$. Exact for one server
    (Pollaczek-Khinchine).

    Args:
        service: Constant service time $S$ [s].
        utilisation: Utilization of the servers $\rho$ [share].
        servers: Number of servers $c$.

    Returns:
        Mean wait [s]; infinite at a utilization of 1 or more.

    References:
        Sakasegawa 1977; factor of one half for M/D/c: Cosmetatos 1976.

    >>> float(queue_wait(1.0, 0.5)), float(queue_wait(1.0, 0.0)), float(queue_wait(1.0, 1.0))
    (0.5, 0.0, inf)
    """
    room = 1 - np.asarray(utilisation, dtype=np.float64)
    busy = np.clip(utilisation, 0.0, 1.0) ** (np.sqrt(2 * (servers + 1.0)) - 1)
    return np.where(room > 0, service / 2 * busy / (servers * np.where(room > 0, room, 1.0)), np.inf)


def queue_share(utilisation: Number, servers: Number) -> Array:
    r"""Return the mean wait of M/D/c over half of the service time.

    $\rho^{1 + 1.21 (\sqrt c - 1)} / (c (1 - \rho))$, finite at 1. Exact for one server; within 0.9 % of exact
    values for several.

    Args:
        utilisation: Utilization of the servers $\rho$ [share].
        servers: Number of servers $c$.

    Returns:
        Wait over half of the service time, in the broadcast shape.

    >>> float(queue_share(0.5, 1)), round(float(queue_share(0.9, 16)), 3)
    (1.0, 0.384)
    """
    used = np.clip(utilisation, 0.0, FULL)
    exponent = 1 + SERVERS_EXPONENT * (np.sqrt(servers) - 1)
    # exp and log take half as long as a power.
    busy = np.exp(exponent * np.log(np.maximum(used, 1e-300)))
    wait_share: Array = busy / (servers * (1 - used))
    return wait_share


# Iterations of the fixed point of passes, and further ones of those that have not converged; each evaluates two passes.
STEPS, FURTHER_STEPS = 3, 2
# Relative change of the passes at which the fixed point has converged.
SETTLED = 1e-9
# Utilization levels to evaluate, closer together at high utilization, where waits rise steeply.
LEVELS = 1 - np.square(np.linspace(1, 0, 25))
# From MANY_ROWS rows on, every LEVEL_STRIDE-th level is evaluated first, then the levels next to the limit.
LEVEL_STRIDE, MANY_ROWS = 4, 200
# Replicas beyond which a stream that goes to replicas in turn does not become more even.
MAX_DEALT_REPLICAS = 16
FACTORIALS = np.cumprod(np.maximum(np.arange(MAX_DEALT_REPLICAS + 1.0), 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Seconds of a pass of k requests: arrays of one shape.

    `first` [s] is the time of one request. Each further one adds `slope_to_kink` [s] up to `kink` requests,
    which run in parallel. The next one adds `jump` [s], and all others of the pass wait for it. Each one
    after that adds `beyond` [s], and `far` [s] after `bend` requests. `row_jump` [s] is added at each further
    multiple of `kink`: the third and later rows of requests that run in parallel. `variance` is the squared
    coefficient of variation of the requests' own sizes.
    """

    first: Number
    slope_to_kink: Number = 0.0
    kink: Number = np.inf
    jump: Number = 0.0
    beyond: Number = 0.0
    bend: Number = np.inf
    far: Number = 0.0
    row_jump: Number = 0.0
    variance: Number = 0.0

    def __call__(self, requests: Number) -> Array:
        """Return the seconds of a pass.

        Args:
            requests: Requests in the pass; need not be a whole number.

        Returns:
            Seconds, in the broadcast shape of `requests` and the fields.

        >>> bent = PassTime(first=1.0, slope_to_kink=0.1, kink=4, beyond=0.5, bend=6, far=1.0)
        >>> bent(np.array([1, 4, 6, 7])).round(9).tolist()
        [1.0, 1.3, 2.3, 3.3]
        >>> PassTime(first=1.0, kink=4, jump=1.0)(np.array([4, 5, 8])).tolist()
        [1.0, 2.0, 2.0]
        >>> PassTime(first=1.0, kink=4, jump=1.0, row_jump=0.5)(np.array([5, 8, 9, 13])).tolist()
        [2.0, 2.0, 2.5, 3.0]
        """
        seconds: Array = self.smooth()(np.asarray(requests)) + self.jump * (np.asarray(requests) > self.kink)
        if np.any(np.asarray(self.row_jump) > 0):
            seconds = seconds + self.row_jump * np.maximum(np.ceil(requests / np.maximum(self.kink, 1)) - 2, 0)
        return seconds

    def smooth(self) -> Callable[[Array], Array]:
        """Return the time of a pass without its jumps, as a function of requests.

        What does not depend on the number of requests is computed once.

        Returns:
            A function from requests to seconds.
        """
        base, side, near, far = (
            self.first - self.slope_to_kink,
            self.slope_to_kink - self.beyond,
            self.beyond - self.far,
            self.far,
        )

        def seconds(requests: Array) -> Array:
            partial_sum = base + side * np.minimum(requests, self.kink) + near * np.minimum(requests, self.bend)
            every: Array = partial_sum + far * requests
            return every

        return seconds

    def slope(self, requests: Number) -> Array:
        """Return the seconds that one more request adds to a pass.

        Args:
            requests: Requests in the pass.

        Returns:
            Seconds per request.
        """
        slope_to_bend = np.where(np.asarray(requests) <= self.kink, self.slope_to_kink, self.beyond)
        return np.where(np.asarray(requests) <= self.bend, slope_to_bend, self.far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes of a batch server that starts when it is free and a request waits.

    Arrays of one shape. `prompts` is the mean number in a pass. `seconds` is the mean time of a pass [s], and
    `busy` the share of time in which a pass runs. `wait` is the mean time from arrival to the start of the
    pass [s]. `service` is the mean time of the pass of a request [s]. It is longer than `seconds`, because
    long passes take more requests.
    """

    prompts: Array
    seconds: Array
    busy: Array
    wait: Array
    service: Array


def passes(rate: Number, time: PassTime, seats: Number, *, replicas: Number = 1) -> Passes:
    r"""Return the passes of a batch server at a request rate.

    A pass of $\tau$ seconds is followed at once by the next one. If no request came (probability $p$), the
    server waits for $h$ seconds and starts with the first that comes:

    $$ b = \frac{\tau}{\tau + p h}, \qquad k = \lambda (\tau + p h), \qquad \tau = t(k). $$

    For $R = 1$: $p = e^{-\lambda \tau} (1 - \rho^{c+1})$ and $h = 1 / \lambda$. The second factor of $p$
    covers requests that did not fit in the last pass. A request that arrives during a pass waits for the rest
    of it, which is half where all passes are equal. Near saturation it also waits in the queue of $c$
    servers. Where $t$ jumps, passes above and below the jump alternate (`_rows`).

    With constant $t(k)$ and many slots, this is the train of lecture section 4: a wait of $b \tau / 2$ and a
    service of $\tau$, $1.5 \tau$ in all for a train that always runs. One slot is M/D/R. All arguments
    broadcast.

    Args:
        rate: Request rate of one server $\lambda$ [requests/s].
        time: Time of a pass $t(k)$ by its requests.
        seats: Most requests of a pass $c$.
        replicas: Servers $R$ that receive requests in turn: each gets every $R$-th of a Poisson stream.

    Returns:
        The passes of one server.

    >>> train = passes(10.0, PassTime(first=0.1), 1e6)
    >>> round(float(train.wait), 4), round(float(train.service), 4), round(float(train.prompts), 3)
    (0.0366, 0.1, 1.368)
    """
    if np.all(np.asarray(time.jump) == 0):
        return _passes(rate, time, seats, replicas)
    shape = np.broadcast_shapes(*map(np.shape, (rate, time.first, time.slope_to_kink, time.kink, time.jump, seats, replicas)))
    rows = int(np.max(np.where(np.asarray(time.row_jump) > 0, np.ceil(seats / np.maximum(time.kink, 1)), 2)))
    number = np.arange(rows).reshape(-1, *(1,) * len(shape))
    first = time.first + time.jump * (number > 0) + time.row_jump * np.maximum(number - 1, 0)
    state = replace(time, first=np.broadcast_to(first, (rows, *shape)), jump=0.0, row_jump=0.0)
    row_passes = _passes(rate, state, seats, replicas)
    carried = 1 - np.square(np.minimum(rate * state.slope(row_passes.prompts), 0.95))
    return _rows(row_passes, number, time.kink, seats, replicas, carried)


def _rows(row_passes: Passes, number: Array, kink: Number, seats: Number, replicas: Number, carried: Array) -> Passes:
    """Return the passes of a server that changes between rows of requests in a pass.

    With more than `kink` requests a pass takes longer, so that more requests arrive during it. The server
    stays in this state until few arrive by chance. The number in a pass is taken as normal about the mean $k$
    of its state. Its variance is $k / R$, because arrivals go to replicas in turn. $u_r$ is the probability
    that it is beyond row $r$, and $d_r$ that it is below. The share $w_r$ of all passes has $r$ rows,
    $w_{r+1} = w_r u_r / d_{r+1}$.

    Compared with a simulation of such a server (12 in parallel, 24 slots, a jump of half of the time; 1, 3
    and 8 replicas), prompts and seconds of a pass agree within 5 %. With three to six rows of 3 to 8 at loads
    up to 0.9, first tokens are 4 to 14 % too early.
    """
    spread = np.sqrt(np.maximum(row_passes.prompts, 1.0) / carried / np.minimum(replicas, MAX_DEALT_REPLICAS))
    # A further row exists only if it has slots.
    has_row = kink * (number + 1) < seats
    up = np.where(has_row, upper_tail((kink * (number + 1) + 0.5 - row_passes.prompts) / spread), 0.0)
    down = 1 - upper_tail((kink * number + 0.5 - row_passes.prompts) / spread)
    odds = np.cumprod(np.concatenate([np.ones_like(up[:1]), up[:-1] / np.maximum(down[1:], 1e-12)]), axis=0)
    passes_ = odds / np.sum(odds, axis=0)
    requests = passes_ * row_passes.prompts / np.sum(passes_ * row_passes.prompts, axis=0)

    def mean(quantity: Array, weights: Array) -> Array:
        average: Array = np.sum(np.where(weights > 1e-12, quantity, 0.0) * weights, axis=0)
        return average

    return Passes(
        prompts=mean(row_passes.prompts, passes_),
        seconds=mean(row_passes.seconds, passes_),
        busy=mean(row_passes.busy, passes_),
        wait=mean(row_passes.wait, requests),
        service=mean(row_passes.service, requests),
    )


def upper_tail(deviations: Array) -> Array:
    """Return the upper tail of the normal distribution.

    Within 2 % up to 4 standard deviations.

    Args:
        deviations: Distance above the mean, in standard deviations.

    Returns:
        Probability, with the shape of `deviations`.

    References:
        Tsay, Huang and Wang 2013: exponential of a quadratic.

    >>> upper_tail(np.array([-1.0, 0.0, 1.0, 3.0])).round(4).tolist()
    [0.839, 0.5, 0.161, 0.0014]
    """
    far = np.abs(deviations)
    tail = np.exp(-0.717 * far - 0.416 * far * far) / 2
    probability: Array = np.where(deviations >= 0, tail, 1 - tail)
    return probability


def _passes(rate: Number, time: PassTime, seats: Number, replicas: Number) -> Passes:
    """Return the passes where `time` has no jump."""
    seats = np.asarray(seats, dtype=np.float64)
    is_batched = seats > 1
    longest = time(seats)
    seconds, empty, idle = _fixed_point(rate, time, seats, replicas, longest)
    prompts = np.maximum(rate * (seconds + empty * idle), 1e-12)
    slope = time.slope(prompts)
    busy = np.where(is_batched, seconds / (seconds + empty * idle), np.minimum(rate * time.first, 1.0))
    arrival_variance = np.maximum((prompts - 1) * (1 - (prompts - 1) / np.maximum(seats - 1, 1.0)), 0.0) / np.minimum(
        replicas, MAX_DEALT_REPLICAS
    )
    # A long pass collects more arrivals, so that the next pass is long too.
    carried = np.maximum(1 - np.square(rate * slope), 1e-3)
    # Variance of the number of requests in a pass.
    varied = np.where(is_batched, arrival_variance / carried, 0.0)
    service = np.minimum(seconds + slope * varied / np.maximum(prompts, 1.0), longest)
    # Mean number of requests that arrive during a pass.
    during = np.maximum(prompts - empty, 0.0)
    busy_on_arrival = during / prompts * np.minimum(during / np.maximum(rate * seconds, 1e-12), 1.0)
    # Unequal requests lengthen the rest of a pass as in M/G/1, and less where a pass has several.
    size_variance = time.variance / np.maximum(prompts, 1.0)
    residual = (seconds * (1 + size_variance) + np.square(slope) * varied / seconds) / 2
    queue = queue_share(rate * service / seats, seats * replicas)
    return Passes(
        prompts=np.minimum(np.maximum(prompts, 1.0), seats),
        seconds=seconds,
        busy=busy,
        wait=np.where(rate * longest < seats, np.where(is_batched, busy_on_arrival + busy * queue, queue) * residual, np.inf),
        service=service,
    )


def _fixed_point(rate: Number, time: PassTime, seats: Array, replicas: Number, longest: Array) -> tuple[Array, Array, Array]:
    """Return the mean seconds of a pass, the probability that no request waits after it, and the idle time then."""
    shape = np.broadcast_shapes(*map(np.shape, (rate, time.first, time.slope_to_kink, time.kink, seats, replicas)))
    seconds = np.broadcast_to(np.asarray(time.first * 1.0), shape)
    seconds, has_converged, nobody = _iterate_passes(seconds, STEPS, rate, time, seats, replicas, longest)
    if not np.all(has_converged):
        rows = ~has_converged

        def slow_rows(values: Number) -> Array:
            selection: Array = np.broadcast_to(values, seconds.shape)[rows]
            return selection

        slow = PassTime(**{f.name: slow_rows(getattr(time, f.name)) for f in fields(PassTime)})
        pools = slow_rows(seats), slow_rows(replicas), slow_rows(longest)
        seconds[rows] = _iterate_passes(seconds[rows], FURTHER_STEPS, slow_rows(rate), slow, *pools)[0]
    return seconds, *nobody(seconds)


def _iterate_passes(
    seconds: Array, steps: int, rate: Number, time: PassTime, seats: Array, replicas: Number, longest: Array
) -> tuple[Array, Array, Callable[[Array], tuple[Array, Array]]]:
    """Return the seconds of passes after some iterations, which of them have converged, and the function `nobody`."""
    last, least = time.smooth(), time.first
    none, gap = arrivals(replicas), 1 / np.maximum(rate, 1e-300)

    def nobody(pass_: Array) -> tuple[Array, Array]:
        """Return the probability that no request waits after a pass, and the idle time."""
        expected = rate * pass_
        empty, next_empty = none(expected)
        idle = next_empty / empty * gap - pass_
        full = np.minimum(expected / seats, 1.0)
        # exp and log take half as long as a power.
        all_full = np.exp((seats + 1) * np.log(np.maximum(full, 1e-300)))
        return empty * (1 - all_full), np.minimum(np.maximum(idle, 0.0), gap)

    # Steffensen's method: two passes give the differences from which the fixed point is extrapolated.
    for _ in range(steps):
        passes = [seconds]
        for _ in range(2):
            empty, idle = nobody(passes[-1])
            passes.append(np.minimum(np.maximum(last(rate * (passes[-1] + empty * idle)), least), longest))
        _, once, twice = passes
        fell = once - seconds
        bend = twice - once - fell
        ahead = seconds - fell * fell / np.where(np.abs(bend) > 1e-15 * seconds, bend, np.inf)
        before, seconds = seconds, np.where((ahead >= least) & (ahead <= longest) & (ahead > once), ahead, twice)
        has_converged = np.abs(seconds - before) <= SETTLED * before
        if np.all(has_converged):
            break
    return seconds, has_converged, nobody


def arrivals(replicas: Number) -> Callable[[Number], tuple[Array, Array]]:
    r"""Return the probability of no arrival among every R-th of a Poisson stream.

    The probabilities are $P(N < R)$ and $P(N \le R)$, with $N$ Poisson of $R$ times the expected number. More
    than `MAX_DEALT_REPLICAS` replicas count as `MAX_DEALT_REPLICAS`.

    Args:
        replicas: Replicas $R$ that receive requests in turn.

    Returns:
        A function from expected requests to two probabilities: no arrival at this replica, and none at the
        next.

    >>> [round(float(x), 4) for x in arrivals(1)(0.5)], [round(float(x), 4) for x in arrivals(8)(0.5)]
    ([0.6065, 0.9098], [0.9489, 0.9786])
    """
    count = np.minimum(np.asarray(replicas, dtype=np.int64), MAX_DEALT_REPLICAS)
    max_count = int(np.max(count, initial=1))
    is_uniform = max_count == int(np.min(count, initial=MAX_DEALT_REPLICAS))
    terms = [
        1 / divisor if is_uniform else (number < count) / divisor for number, divisor in enumerate(FACTORIALS[:max_count])
    ][::-1]
    factorial = FACTORIALS[count]

    def none(expected: Number) -> tuple[Array, Array]:
        # Beyond 700 the exponential underflows, and no arrival is impossible in any case.
        mean = np.minimum(np.maximum(expected * count, 1e-300), 700.0)
        never = np.exp(-mean)
        if max_count == 1:
            return np.maximum(never, 1e-250), never * (1 + mean)
        below = np.zeros(np.shape(mean))
        # Horner's method, 1 + m (1 + m (1/2 + m (1/6 ...))), with as many terms as the row has replicas.
        for term in terms:
            below *= mean
            below += term
        last = np.exp(count * np.log(mean) - mean) / factorial
        below *= never
        return np.maximum(below, 1e-250), below + last

    return none


def highest_utilisation(
    limit: Number, time: PassTime, seats: Number, ceiling: float, *, late: Number = 0.0, replicas: Number = 1
) -> Array:
    """Return the highest utilization at which wait and service stay within a limit.

    Utilization is the rate over the rate of full passes. The result is interpolated between two of `LEVELS`,
    on a line that lies above the curve of the times. All arguments broadcast.

    Args:
        limit: Limit on wait plus service of `passes` [s].
        time: Time of a pass by its requests.
        seats: Most requests of a pass.
        ceiling: Highest utilization to return [share].
        late: Time of a request beyond its pass, over the time of the pass.
        replicas: Servers that receive requests in turn.

    Returns:
        Utilization [share]; 0 where no level is within the limit.
    """
    limit, seats, late, replicas = (np.asarray(x, dtype=np.float64)[..., None] for x in (limit, seats, late, replicas))
    time = PassTime(**{f.name: np.asarray(getattr(time, f.name), dtype=np.float64)[..., None] for f in fields(PassTime)})
    full = seats / time(seats)

    def request_seconds(levels: Array) -> Array:
        """Return the seconds that a request takes at each of the levels of its row."""
        queue = passes(ceiling * levels * full, time, seats, replicas=replicas)
        seconds = queue.wait + queue.service * (1 + late)
        return np.broadcast_to(seconds, np.broadcast_shapes(seconds.shape, limit.shape))

    levels = LEVELS[::LEVEL_STRIDE] if full.size >= MANY_ROWS else LEVELS
    seconds = request_seconds(levels)
    last = _last(seconds <= limit)
    # Refine between the two levels that enclose the limit.
    if len(levels) < len(LEVELS):
        first = np.clip(last, 0, len(levels) - 2)
        low, high = (np.take_along_axis(seconds, first + side, axis=-1) for side in (0, 1))
        levels = LEVELS[LEVEL_STRIDE * first + np.arange(LEVEL_STRIDE + 1)]
        seconds = np.concatenate([low, request_seconds(levels[..., 1:-1]), high], axis=-1)
        last = _last(seconds <= limit)
    levels = np.broadcast_to(levels, seconds.shape)
    low, high = np.clip(last, 0, None), np.clip(last + 1, None, seconds.shape[-1] - 1)
    (before, after), (lower_level, upper_level) = (
        [np.take_along_axis(curve, index, axis=-1) for index in (low, high)] for curve in (seconds, levels)
    )
    share = np.where(after > before, (limit - before) / np.where(after > before, after - before, 1.0), 0.0)
    highest: Array = np.where(last < 0, 0.0, ceiling * (lower_level + np.clip(share, 0.0, 1.0) * (upper_level - lower_level)))
    return highest[..., 0]


def _last(good: Array) -> Array:
    """Return the index of the last true value before the first false one; -1 if none."""
    position: Array = np.sum(np.logical_and.accumulate(good, axis=-1), axis=-1, keepdims=True) - 1
    return position
