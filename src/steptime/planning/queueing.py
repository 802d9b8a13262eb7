"""The mean time that a request waits before it is served, and the steps of attention groups that read prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from steptime.numbers import Array, Number

ROUNDS = 12  # of the fixed point of steps that read one prompt at once: it halves its error in each
SECANTS = 6  # evaluations for that of several slots, after which nearly all points are within 1e-8 of it
UNSETTLED, HALVINGS = 1e-5, 40  # last step of a share that is not settled, and of the interval that it is then looked for in
STEPS = 5  # of the fixed point of passes, of two each, at most
SETTLED = 1e-9  # change of the passes that is none
FULL = 1 - 1e-9  # load of a slot beyond which its queue grows
SERVERS_EXPONENT = 1.2102  # of sqrt(c) - 1: the wait of M/D/c over that of M/D/1, fitted to its exact values within 0.9 %
LEVELS = 1 - np.square(np.linspace(1, 0, 25))  # of utilisation that are tried, closer where waits bend
EACH, MANY_ROWS = 4, 200  # where there are so many rows, each fourth level is tried first, and then those next to the limit
MANY = 16  # replicas beyond which streams that are dealt out to them are as even as they get
FACTORIALS = np.cumprod(np.maximum(np.arange(MANY + 1.0), 1.0))


def queue_wait(service: Number, utilisation: Number, servers: Number = 1) -> Number:
    r"""Mean wait [s] of Poisson arrivals for servers of constant `service` time [s]: half of an M/M/c queue's.

    $W = \frac{S}{2} \frac{\rho^{\sqrt{2(c+1)} - 1}}{c (1 - \rho)}$ (Sakasegawa 1977, with Cosmetatos' factor of one half for
    M/D/c, 1976). Exact for one server (Pollaczek-Khinchine); infinite at a utilisation of 1 and above.

    >>> float(queue_wait(1.0, 0.5)), float(queue_wait(1.0, 0.0)), float(queue_wait(1.0, 1.0))
    (0.5, 0.0, inf)
    """
    room = 1 - np.asarray(utilisation, dtype=np.float64)
    busy = np.clip(utilisation, 0.0, 1.0) ** (np.sqrt(2 * (servers + 1.0)) - 1)
    return np.where(room > 0, service / 2 * busy / (servers * np.where(room > 0, room, 1.0)), np.inf)


def queue_share(utilisation: Number, servers: Number) -> Array:
    r"""Mean wait of M/D/c over half of the service time: $\rho^{1 + 1.21 (\sqrt c - 1)} / (c (1 - \rho))$, finite at 1.

    Exact for one server; within 0.9 % of exact values elsewhere.

    >>> float(queue_share(0.5, 1)), round(float(queue_share(0.9, 16)), 3)
    (1.0, 0.384)
    """
    used = np.clip(utilisation, 0.0, FULL)
    exponent = 1 + SERVERS_EXPONENT * (np.sqrt(servers) - 1)
    busy = np.exp(exponent * np.log(np.maximum(used, 1e-300)))  # half as long as a power takes
    found: Array = busy / (servers * (1 - used))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    r"""Seconds of a pass of k requests: arrays of one shape.

    first [s] of one; more [s] of each further one up to `kink`, as many as are read side by side; jump [s] of the first after
    it, for which all others wait; beyond [s] of each after it, and far [s] of each after `bend`; again [s] of the first after
    each further `kink`: third and later rows of requests that are read side by side.
    """

    first: Number
    more: Number = 0.0
    kink: Number = np.inf
    jump: Number = 0.0
    beyond: Number = 0.0
    bend: Number = np.inf
    far: Number = 0.0
    again: Number = 0.0

    def __call__(self, requests: Number) -> Array:
        """Return the seconds of a pass of so many requests, which need not be whole.

        >>> PassTime(first=1.0, more=0.1, kink=4, beyond=0.5, bend=6, far=1.0)(np.array([1, 4, 6, 7])).tolist()
        [1.0, 1.3, 2.3, 3.3]
        >>> PassTime(first=1.0, kink=4, jump=1.0)(np.array([4, 5, 8])).tolist()
        [1.0, 2.0, 2.0]
        >>> PassTime(first=1.0, kink=4, jump=1.0, again=0.5)(np.array([5, 8, 9, 13])).tolist()
        [2.0, 2.0, 2.5, 3.0]
        """
        side, near = np.minimum(requests, self.kink), np.minimum(requests, self.bend)
        jumped = self.first + self.jump * (np.asarray(requests) > self.kink)
        if np.any(np.asarray(self.again) > 0):
            jumped = jumped + self.again * np.maximum(np.ceil(requests / np.maximum(self.kink, 1)) - 2, 0)
        found: Array = jumped + self.more * (side - 1) + self.beyond * (near - side) + self.far * (requests - near)
        return found

    def smooth(self) -> Callable[[Array], Array]:
        """Return the function of requests that this is where it has no jump, with what does not change found once."""
        base, side, near, far = self.first - self.more, self.more - self.beyond, self.beyond - self.far, self.far

        def seconds(requests: Array) -> Array:
            found = base + side * np.minimum(requests, self.kink) + near * np.minimum(requests, self.bend)
            every: Array = found + far * requests
            return every

        return seconds

    def slope(self, requests: Number) -> Array:
        """Return the seconds that another request adds to so many."""
        few = np.where(np.asarray(requests) <= self.kink, self.more, self.beyond)
        return np.where(np.asarray(requests) <= self.bend, few, self.far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes of a batch server that departs when it is free and somebody waits: arrays of one shape.

    prompts: mean number in a pass; seconds: mean time of a pass [s]; busy: share of time in which one is under way; wait: mean
    time from arrival to departure [s]; service: mean time of the pass that a request takes part in [s], longer than `seconds`
    since more of them come in long ones.
    """

    prompts: Array
    seconds: Array
    busy: Array
    wait: Array
    service: Array


def passes(rate: Number, time: PassTime, seats: Number, *, replicas: Number = 1) -> Passes:
    r"""Return the passes of a batch server of `seats` that takes `time` $t(k)$ for $k$ requests.

    rate $\lambda$ [requests/s of a server]; replicas $R$: servers that requests are dealt out to in turn, so that every $R$-th
    of a Poisson stream comes to one. All broadcast. A pass of $\tau$ seconds is followed at once
    by the next one, or, if nobody came ($p$), by a wait of $h$ for the one that leaves with the first who does:

    $$ b = \frac{\tau}{\tau + p h}, \qquad k = \lambda (\tau + p h), \qquad \tau = t(k) $$

    For $R = 1$: $p = e^{-\lambda \tau} (1 - \rho^{c+1})$, the second factor since nobody may be left over, and
    $h = 1 / \lambda$. An arrival that finds a pass under way waits for the rest of it, half where all last alike, and for the
    queue of `seats` servers that forms near saturation. Where $t$ jumps, passes above and below it follow one another
    (`_rows`). With $t(k)$ constant and many seats that is the train of lecture
    section 4: a wait of $b \tau / 2$ and a service of $\tau$, $1.5 \tau$ in all for one that always runs. One seat is M/D/R.

    >>> train = passes(10.0, PassTime(first=0.1), 1e6)
    >>> round(float(train.wait), 4), round(float(train.service), 4), round(float(train.prompts), 3)
    (0.0366, 0.1, 1.368)
    """
    if np.all(np.asarray(time.jump) == 0):
        return _passes(rate, time, seats, replicas)
    shape = np.broadcast_shapes(*map(np.shape, (rate, time.first, time.more, time.kink, time.jump, seats, replicas)))
    rows = int(np.max(np.where(np.asarray(time.again) > 0, np.ceil(seats / np.maximum(time.kink, 1)), 2)))
    number = np.arange(rows).reshape(-1, *(1,) * len(shape))
    first = time.first + time.jump * (number > 0) + time.again * np.maximum(number - 1, 0)
    state = replace(time, first=np.broadcast_to(first, (rows, *shape)), jump=0.0, again=0.0)
    each = _passes(rate, state, seats, replicas)
    carried = 1 - np.square(np.minimum(rate * state.slope(each.prompts), 0.95))
    return _rows(each, number, time.kink, seats, replicas, carried)


def _rows(each: Passes, number: Array, kink: Number, seats: Number, replicas: Number, carried: Array) -> Passes:
    r"""Return the passes of a server that changes between states: `each`, by the rows of requests side by side in a pass.

    With more than `kink` requests a pass takes longer, so that more come meanwhile: it stays there, until few come by chance.
    The number in a pass is taken as normal about the mean $k$ of its state, with the variance $k / R$ of arrivals that are
    dealt out; $u_r$ is how likely it is beyond row $r$, $d_r$ that it is below, and of all passes the share $w_r$ has $r$ rows,
    $w_{r+1} = w_r u_r / d_{r+1}$. Against a simulation of such a server (12 side by side, 24 seats, a jump of half of the time;
    1, 3 and 8 replicas): prompts and seconds of a pass within 5 %. With three to six rows of 3 to 8 at loads up to 0.9, first
    tokens are 4 to 14 % too soon.
    """
    spread = np.sqrt(np.maximum(each.prompts, 1.0) / carried / np.minimum(replicas, MANY))
    there = kink * (number + 1) < seats  # whether a further row has seats
    up = np.where(there, upper_tail((kink * (number + 1) + 0.5 - each.prompts) / spread), 0.0)
    down = 1 - upper_tail((kink * number + 0.5 - each.prompts) / spread)
    odds = np.cumprod(np.concatenate([np.ones_like(up[:1]), up[:-1] / np.maximum(down[1:], 1e-12)]), axis=0)
    passes_ = odds / np.sum(odds, axis=0)
    requests = passes_ * each.prompts / np.sum(passes_ * each.prompts, axis=0)

    def mean(of: Array, weights: Array) -> Array:
        found: Array = np.sum(np.where(weights > 1e-12, of, 0.0) * weights, axis=0)
        return found

    return Passes(
        prompts=mean(each.prompts, passes_),
        seconds=mean(each.seconds, passes_),
        busy=mean(each.busy, passes_),
        wait=mean(each.wait, requests),
        service=mean(each.service, requests),
    )


def upper_tail(deviations: Array) -> Array:
    """Return how likely a normal number lies so many standard deviations above its mean, within 2 % up to 4 of them.

    Tsay, Huang and Wang's exponential of a quadratic (2013).

    >>> upper_tail(np.array([-1.0, 0.0, 1.0, 3.0])).round(4).tolist()
    [0.839, 0.5, 0.161, 0.0014]
    """
    far = np.abs(deviations)
    tail = np.exp(-0.717 * far - 0.416 * far * far) / 2
    found: Array = np.where(deviations >= 0, tail, 1 - tail)
    return found


def _passes(rate: Number, time: PassTime, seats: Number, replicas: Number) -> Passes:
    """Return the passes where `time` has no jump."""
    seats = np.asarray(seats, dtype=np.float64)
    many = seats > 1
    shape = np.broadcast_shapes(*map(np.shape, (rate, time.first, time.more, time.kink, seats, replicas)))
    seconds = np.broadcast_to(np.asarray(time.first * 1.0), shape)
    last, least, most = time.smooth(), time.first, time(seats)
    none, gap = arrivals(replicas), 1 / np.maximum(rate, 1e-300)

    def nobody(pass_: Array) -> tuple[Array, Array]:
        """Return how likely a pass of so many seconds ends with nobody waiting, and how long the server then waits [s]."""
        expected = rate * pass_
        empty, next_empty = none(expected)
        idle = next_empty / empty * gap - pass_
        full = np.minimum(expected / seats, 1.0)
        return empty * (1 - np.power(full, seats + 1)), np.minimum(np.maximum(idle, 0.0), gap)

    def next_pass(before: Array) -> Array:
        empty, idle = nobody(before)
        return np.minimum(np.maximum(last(rate * (before + empty * idle)), least), most)

    for _ in range(STEPS):  # Steffensen's: two passes, and where their differences lead
        once = next_pass(seconds)
        twice = next_pass(once)
        fell = once - seconds
        bend = twice - once - fell
        ahead = seconds - fell * fell / np.where(np.abs(bend) > 1e-15 * seconds, bend, np.inf)
        before, seconds = seconds, np.where((ahead >= least) & (ahead <= most) & (ahead > once), ahead, twice)
        if np.all(np.abs(seconds - before) <= SETTLED * before):
            break
    empty, idle = nobody(seconds)
    prompts = np.maximum(rate * (seconds + empty * idle), 1e-12)
    more = time.slope(prompts)
    busy = np.where(many, seconds / (seconds + empty * idle), np.minimum(rate * time.first, 1.0))
    drawn = np.maximum((prompts - 1) * (1 - (prompts - 1) / np.maximum(seats - 1, 1.0)), 0.0) / np.minimum(replicas, MANY)
    carried = np.maximum(1 - np.square(rate * more), 1e-3)  # long passes make long ones
    varied = np.where(many, drawn / carried, 0.0)  # variance of the number in a pass
    service = np.minimum(seconds + more * varied / np.maximum(prompts, 1.0), most)
    during = np.maximum(prompts - empty, 0.0)  # that come during a pass
    found = during / prompts * np.minimum(during / np.maximum(rate * seconds, 1e-12), 1.0)
    rest = (seconds + np.square(more) * varied / seconds) / 2
    queue = queue_share(rate * service / seats, seats * replicas)
    return Passes(
        prompts=np.minimum(np.maximum(prompts, 1.0), seats),
        seconds=seconds,
        busy=busy,
        wait=np.where(rate * most < seats, np.where(many, found + busy * queue, queue) * rest, np.inf),
        service=service,
    )


def arrivals(replicas: Number) -> Callable[[Number], tuple[Array, Array]]:
    r"""Return a function of the requests that are expected: how likely none comes, of every R-th of a Poisson stream.

    And how likely none comes of that stream's next, $P(N < R)$ and $P(N \le R)$ with $N$ Poisson of $R$ times those expected;
    more than `MANY` replicas are taken for as many.

    >>> [round(float(x), 4) for x in arrivals(1)(0.5)], [round(float(x), 4) for x in arrivals(8)(0.5)]
    ([0.6065, 0.9098], [0.9489, 0.9786])
    """
    count = np.minimum(np.asarray(replicas, dtype=np.int64), MANY)
    most = int(np.max(count, initial=1))
    alike = most == int(np.min(count, initial=MANY))
    terms = [1 / one if alike else (number < count) / one for number, one in enumerate(FACTORIALS[:most])][::-1]
    factorial = FACTORIALS[count]

    def none(expected: Number) -> tuple[Array, Array]:
        mean = np.minimum(np.maximum(expected * count, 1e-300), 700.0)  # of more, none is as unlikely
        never = np.exp(-mean)
        if most == 1:
            return np.maximum(never, 1e-250), never * (1 + mean)
        below = np.zeros(np.shape(mean))
        for term in terms:  # Horner's: 1 + m (1 + m (1/2 + m (1/6 ...))), as far as a row's count goes
            below *= mean
            below += term
        last = np.exp(count * np.log(mean) - mean) / factorial
        below *= never
        return np.maximum(below, 1e-250), below + last

    return none


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Steps of a replica of which some read prompts: arrays of one shape.

    quiet: share of steps that read nothing; seconds: mean step [s]; slow: mean step that reads [s]; reads: mean number of
    chunks in one of those; utilisation: share of what full steps could read; wait: mean time from a request's
    arrival to its first chunk [s]; service: from there to the end of its prompt [s].
    """

    quiet: Array
    seconds: Array
    slow: Array
    reads: Array
    utilisation: Array
    wait: Array
    service: Array


def read_beside(
    others: Number, steps: Number, chunks: Number, decode: Number, slow: Number, *, replicas: Number = 1
) -> tuple[Array, Array]:
    r"""Return the share of steps that read as tokens see it, and that of all steps, where one prompt is read at once.

    others: sequences that decode beside, in the mean, each for `steps` steps; chunks $n$ of a prompt, read one prompt after
    another in steps of `slow` $t_1$ instead of `decode` $t_0$ [s]; replicas: that requests are dealt out to.

    Whoever begins to decode leaves the prompts behind that came while its own waited and was read, $\lambda (W_q + n t_1)$ of
    them in the mean (fewer where they are dealt out in turn), and meets all of their chunks; whoever ends leaves what is there
    at any time. With $\rho = \lambda n t_1$ and $\pi$ the share of all steps that read, decode meets

    $$ \lambda n D + n (\rho + \lambda W_q) - n \left(\frac\rho 2 + \lambda W_q\right) \frac\pi\rho $$

    slow steps in its time $D$. Without the two last terms, tokens of prompts that take long would look up to twice as fast.

    >>> [round(float(x), 3) for x in read_beside(4.0, 127, 4, 0.01, 0.1)]
    [0.149, 0.104]
    """
    dealt = np.power(np.asarray(replicas, dtype=np.float64), 0.75)  # for who comes during a service, within 0.2
    others, steps = np.asarray(others, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    seen = np.minimum(others * chunks / steps, 1.0)
    share = seen
    for _ in range(ROUNDS):
        rate = others / (steps * (decode + seen * (slow - decode)))
        used = np.clip(rate * chunks * slow, 1e-300, FULL)
        share = np.minimum(rate * chunks * decode / np.maximum(1 - rate * chunks * (slow - decode), 1e-9), 1.0)
        left = used / 2 * queue_share(used, replicas)
        came = np.exp(dealt * np.log(used))
        extra = chunks * (came + left - (used / 2 + left) * share / used)
        seen = (seen + np.clip((others * chunks + extra) / steps, 0.0, 1.0)) / 2
    return seen, np.asarray(share)


def reading(
    load: Number,
    slots: Number,
    chunks: Number,
    decode: Number,
    first: Number,
    more: Number,
    *,
    replicas: Number = 1,
) -> Reading:
    r"""Return the steps of a replica that decodes and reads prompts in `slots` at once.

    load $a$: chunks that a step brings in the mean; slots $c$: chunks that a step can read, one of each attention group where
    a chunk holds one prompt; chunks $n$ of a prompt, one after another in the same slot; a step lasts decode $t_0$ [s] with no
    chunk and $t_1 + s (j - 1)$ [s] with $j$ of them (`first` and `more`); replicas: that requests are dealt out to. All
    broadcast. Requests go to replicas and slots in turn, or to those that have least to read, which is the same where all are
    alike: none waits while a slot anywhere is free, as in a queue of them all.

    Were all steps slow, slots would be servers of a queue M/D/c at the load $f = a \tau / (c T)$, idle all together at the odds
    $1 : B$ with $B = e^{c f} / (1 - f^{c+1}) - 1$. Only the starts out of quiet steps differ: arrivals come per second and not
    per step, so that slow steps attract them. With $\pi$ the share of slow steps, $\tau = t_1 + s (a / \pi - 1)$ their mean,
    $T$ the mean step, $\lambda = a / (n T)$ and $w = 1 / (c^2 n)$:

    $$ \frac{\pi}{1 - \pi} = B \left(\frac{1 - e^{-\lambda t_0}}{1 - e^{-\lambda \tau}}\right)^{1-w}
       \left(\frac{t_0}{\tau}\right)^w $$

    The queue for slots grows without end where $\lambda$ is what full steps read: its load is $\lambda n t(c) / c$, above the
    share of time in which a slot is taken, since steps with few chunks are shorter.

    For one slot that is $\pi = a$, whatever the times. Against a Monte Carlo of the queues (260 points: 1 to 72 slots, 1 and 4
    chunks): the mean step is off by 0.3 % in the mean and 1.7 % at most; the binomial $(1 - a/c)^c$ for quiet steps stands 5 to
    11 % too high at 8 to 32 slots, and up to 23 %. Time to the end of a prompt: 0.5 %, 3 % at most. Held-out points agree to
    0.7 % but where single steps vary much (`more` a fifth of `first`, 48 slots: 14 %).

    >>> one = reading(0.5, 1, 1, 0.02, 0.1, 0.0)
    >>> [round(float(x), 6) for x in (one.quiet, one.seconds, one.utilisation)]
    [0.5, 0.06, 0.833333]
    >>> round(float(reading(0.5, 32, 1, 0.02, 0.1, 0.0).quiet), 3)  # e^-0.5 = 0.607 were arrivals independent of steps
    0.651
    """
    slots = np.asarray(slots, dtype=np.float64)
    given = np.asarray(load, dtype=np.float64)
    load = np.clip(given, 1e-12, FULL * slots)  # beyond it the queue grows, and all slots are busy
    slow_share = _slow_share(load, slots, chunks, decode, first, more)
    reads = np.maximum(load / slow_share, 1.0)
    slow = first + more * (reads - 1)
    seconds = decode + slow_share * (slow - decode)
    rate = load / (chunks * seconds)
    varied = (reads - 1) * (1 - (reads - 1) / np.maximum(slots - 1, 1.0))  # variance of the chunks of a slow step
    beside = slow + more * varied / reads  # the step that a reader sees
    full_step = first + more * (slots - 1)
    utilisation = np.where(given < FULL * slots, rate * chunks * full_step / slots, np.maximum(given / slots, 1.0))
    rest = (np.square(decode) * (1 - slow_share) + slow_share * (np.square(slow) + np.square(more) * varied)) / (2 * seconds)
    wait = rest + (rest + (chunks - 1) * beside / 2) * queue_share(utilisation, slots * replicas)
    return Reading(
        quiet=1 - slow_share,
        seconds=seconds,
        slow=slow,
        reads=reads,
        utilisation=utilisation,
        wait=np.where(utilisation < 1, wait, np.inf),
        service=chunks * beside,
    )


def _slow_share(*given: Number) -> Array:
    """Return the share of steps that read, by load, slots, chunks, decode, first, more of `reading`: the load of one slot."""
    every = np.broadcast_arrays(*given)
    found: Array = every[0].copy()
    several = every[1] > 1
    if np.any(several):
        found[several] = _settled(*(one[several] for one in every))
    return found


def _settled(*given: Array) -> Array:
    """Return the share of steps that read, where more than one slot can: the fixed point of `reading`.

    By secants; of the few points that these leave unsettled, where a step that reads is long, by halving: what follows from no
    share is above it, what follows from all is not.
    """
    before = -np.expm1(-given[0])
    fell = _excess(before, *given)
    share = before + fell / 2
    for _ in range(SECANTS - 1):
        off = _excess(share, *given)
        bend = off - fell
        step = off * (share - before) / np.where(np.abs(bend) > 1e-300, bend, np.inf)
        ahead = share - step
        sound = (ahead > 0) & (ahead <= 1) & (np.abs(step) <= 2 * np.abs(off))
        before, fell, share = share, off, np.where(sound, ahead, share + off / 2)
    moving = np.abs(share - before) > UNSETTLED * share
    if np.any(moving):
        rest = [one[moving] for one in given]
        low, high = np.zeros(len(rest[0])), np.ones(len(rest[0]))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            above = _excess(middle, *rest) > 0
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        share[moving] = (low + high) / 2
    return share


def _excess(share: Array, load: Array, slots: Array, chunks: Array, decode: Array, first: Array, more: Array) -> Array:
    """Return how far above a share of steps that read the one lies that follows from it."""
    power = 1 / (np.square(slots) * chunks)
    slow = first + more * (np.maximum(load / share, 1.0) - 1)
    seconds = decode + share * (slow - decode)
    full = np.minimum(load * slow / (slots * seconds), FULL)
    rate = load / (chunks * seconds)
    odds = np.expm1(np.minimum(slots * full - np.log(1 - np.exp((slots + 1) * np.log(full))), 700.0))
    starts = np.expm1(-rate * decode) / np.expm1(-rate * slow)
    odds = odds * np.exp((1 - power) * np.log(starts) + power * np.log(decode / slow))
    found: Array = odds / (1 + odds) - share
    return found


def highest_utilisation(
    limit: Number, time: PassTime, seats: Number, ceiling: float, *, late: Number = 0.0, replicas: Number = 1
) -> Array:
    """Return the highest utilisation, at most `ceiling`, at which wait and service of `passes` stay within `limit` [s].

    Utilisation is the rate over that of full passes of `seats`; 0 where none keeps the limit. late: what a request is under way
    beyond the pass, over it. All broadcast. Read off a line between two of `LEVELS`, which lies above the curve of the times.
    """
    limit, seats, late, replicas = (np.asarray(x, dtype=np.float64)[..., None] for x in (limit, seats, late, replicas))
    time = PassTime(**{f.name: np.asarray(getattr(time, f.name), dtype=np.float64)[..., None] for f in fields(PassTime)})
    full = seats / time(seats)

    def taken(levels: Array) -> Array:
        """Return the seconds that a request takes at each of the levels of its row."""
        found = passes(ceiling * levels * full, time, seats, replicas=replicas)
        seconds = found.wait + found.service * (1 + late)
        return np.broadcast_to(seconds, np.broadcast_shapes(seconds.shape, limit.shape))

    levels = LEVELS[::EACH] if full.size >= MANY_ROWS else LEVELS
    seconds = taken(levels)
    last = _last(seconds <= limit)
    if len(levels) < len(LEVELS):  # and between the two levels that the limit lies between
        first = np.clip(last, 0, len(levels) - 2)
        low, high = (np.take_along_axis(seconds, first + side, axis=-1) for side in (0, 1))
        levels = LEVELS[EACH * first + np.arange(EACH + 1)]
        seconds = np.concatenate([low, taken(levels[..., 1:-1]), high], axis=-1)
        last = _last(seconds <= limit)
    levels = np.broadcast_to(levels, seconds.shape)
    low, high = np.clip(last, 0, None), np.clip(last + 1, None, seconds.shape[-1] - 1)
    (before, after), (least, most) = ([np.take_along_axis(of, at, axis=-1) for at in (low, high)] for of in (seconds, levels))
    share = np.where(after > before, (limit - before) / np.where(after > before, after - before, 1.0), 0.0)
    highest: Array = np.where(last < 0, 0.0, ceiling * (least + np.clip(share, 0.0, 1.0) * (most - least)))
    return highest[..., 0]


def _last(good: Array) -> Array:
    """Return the place of the last of those that are good from the first on, along the last axis: -1 where the first is not."""
    found: Array = np.sum(np.logical_and.accumulate(good, axis=-1), axis=-1, keepdims=True) - 1
    return found
