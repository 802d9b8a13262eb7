"""Steps of attention groups that decode and read prompts beside: how many of them read, how long they take, who waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steptime.number_checks import Array, Number
from steptime.planning.batch_queue import FULL, queue_share

ROUNDS = 12  # of the fixed point of steps that read one prompt at once: it halves its error in each
SECANTS = 6  # evaluations for that of several slots, after which nearly all points are within 1e-8 of it
UNSETTLED, HALVINGS = 1e-5, 40  # last step of a share that is not settled, and of the interval that it is then looked for in


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStepStats:
    """Steps of a replica of which some read prompts: arrays of one shape.

    decode_only_share: share of steps that read nothing; seconds: mean step [s]; slow: mean step that reads [s]; chunks_per_mixed_step: mean number of
    chunks in one of those; utilisation: share of what full steps could read; wait: mean time from a request's
    arrival to its first chunk [s]; service: from there to the end of its prompt [s].
    """

    decode_only_share: Array
    seconds: Array
    slow: Array
    chunks_per_mixed_step: Array
    utilisation: Array
    wait: Array
    service: Array


def interleaved_prefill_share(
    decode_sequences: Number, steps: Number, chunks: Number, decode: Number, slow: Number, *, replicas: Number = 1
) -> tuple[Array, Array]:
    r"""Return the share of steps that read as tokens see it, and that of all steps, where one prompt is read at once.

    decode_sequences: sequences that decode beside, in the mean, each for `steps` steps; chunks $n$ of a prompt, read one
    prompt after another in steps of `slow` $t_1$ instead of `decode` $t_0$ [s]; replicas: that requests are dealt out to.

    Whoever begins to decode leaves the prompts behind that came while its own waited and was read, $\lambda (W_q + n t_1)$ of
    them in the mean (fewer where they are dealt out in turn), and meets all of their chunks; whoever ends leaves what is there
    at any time. With $\rho = \lambda n t_1$ and $\pi$ the share of all steps that read, decode meets

    $$ \lambda n D + n (\rho + \lambda W_q) - n \left(\frac\rho 2 + \lambda W_q\right) \frac\pi\rho $$

    slow steps in its time $D$. Without the two last terms, tokens of prompts that take long would look up to twice as fast.

    >>> [round(float(x), 3) for x in interleaved_prefill_share(4.0, 127, 4, 0.01, 0.1)]
    [0.149, 0.104]
    """
    dealt = np.power(np.asarray(replicas, dtype=np.float64), 0.75)  # for who comes during a service, within 0.2
    decode_sequences, steps = np.asarray(decode_sequences, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    observed_share = np.minimum(decode_sequences * chunks / steps, 1.0)
    share = observed_share
    for _ in range(ROUNDS):
        rate = decode_sequences / (steps * (decode + observed_share * (slow - decode)))
        used = np.clip(rate * chunks * slow, 1e-300, FULL)
        share = np.minimum(rate * chunks * decode / np.maximum(1 - rate * chunks * (slow - decode), 1e-9), 1.0)
        queue_length = used / 2 * queue_share(used, replicas)
        came = np.exp(dealt * np.log(used))
        extra = chunks * (came + queue_length - (used / 2 + queue_length) * share / used)
        observed_share = (observed_share + np.clip((decode_sequences * chunks + extra) / steps, 0.0, 1.0)) / 2
    return observed_share, np.asarray(share)


def mixed_step_stats(
    load: Number,
    slots: Number,
    chunks: Number,
    decode: Number,
    first: Number,
    per_chunk: Number,
    *,
    replicas: Number = 1,
) -> MixedStepStats:
    r"""Return the steps of a replica that decodes and reads prompts in `slots` at once.

    load $a$: chunks that a step brings in the mean; slots $c$: chunks that a step can read, one of each attention group where
    a chunk holds one prompt; chunks $n$ of a prompt, one after another in the same slot; a step lasts decode $t_0$ [s] with no
    chunk and $t_1 + s (j - 1)$ [s] with $j$ of them (`first` and `per_chunk`); replicas: that requests are dealt out to. All
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
    0.7 % but where single steps vary much (`per_chunk` a fifth of `first`, 48 slots: 14 %).

    >>> one = mixed_step_stats(0.5, 1, 1, 0.02, 0.1, 0.0)
    >>> [round(float(x), 6) for x in (one.decode_only_share, one.seconds, one.utilisation)]
    [0.5, 0.06, 0.833333]
    >>> stats = mixed_step_stats(0.5, 32, 1, 0.02, 0.1, 0.0)
    >>> round(float(stats.decode_only_share), 3)  # e^-0.5 = 0.607 were arrivals independent of steps
    0.651
    """
    slots = np.asarray(slots, dtype=np.float64)
    offered_load = np.asarray(load, dtype=np.float64)
    load = np.clip(offered_load, 1e-12, FULL * slots)  # beyond it the queue grows, and all slots are busy
    slow_share = _slow_share(load, slots, chunks, decode, first, per_chunk)
    reads = np.maximum(load / slow_share, 1.0)
    slow = first + per_chunk * (reads - 1)
    seconds = decode + slow_share * (slow - decode)
    rate = load / (chunks * seconds)
    varied = (reads - 1) * (1 - (reads - 1) / np.maximum(slots - 1, 1.0))  # variance of the chunks of a slow step
    reader_step = slow + per_chunk * varied / reads  # the step that a reader sees
    full_step = first + per_chunk * (slots - 1)
    utilisation = np.where(
        offered_load < FULL * slots, rate * chunks * full_step / slots, np.maximum(offered_load / slots, 1.0)
    )
    residual = (np.square(decode) * (1 - slow_share) + slow_share * (np.square(slow) + np.square(per_chunk) * varied)) / (
        2 * seconds
    )
    wait = residual + (residual + (chunks - 1) * reader_step / 2) * queue_share(utilisation, slots * replicas)
    return MixedStepStats(
        decode_only_share=1 - slow_share,
        seconds=seconds,
        slow=slow,
        chunks_per_mixed_step=reads,
        utilisation=utilisation,
        wait=np.where(utilisation < 1, wait, np.inf),
        service=chunks * reader_step,
    )


def _slow_share(*arguments: Number) -> Array:
    """Return the share of steps that read, by load, slots, chunks, decode, first, per_chunk: the load of one slot."""
    every = np.broadcast_arrays(*arguments)
    shares: Array = every[0].copy()
    several = every[1] > 1
    if np.any(several):
        shares[several] = _settled(*(column[several] for column in every))
    return shares


def _settled(*columns: Array) -> Array:
    """Return the share of steps that read, where more than one slot can: the fixed point of `mixed_step_stats`.

    By secants; of the few points that these leave unsettled, where a step that reads is long, by halving: what follows from no
    share is above it, what follows from all is not.
    """
    before = -np.expm1(-columns[0])
    fell = _excess(before, *columns)
    share = before + fell / 2
    for _ in range(SECANTS - 1):
        off = _excess(share, *columns)
        bend = off - fell
        step = off * (share - before) / np.where(np.abs(bend) > 1e-300, bend, np.inf)
        ahead = share - step
        sound = (ahead > 0) & (ahead <= 1) & (np.abs(step) <= 2 * np.abs(off))
        before, fell, share = share, off, np.where(sound, ahead, share + off / 2)
    moving = np.abs(share - before) > UNSETTLED * share
    if np.any(moving):
        unsettled = [column[moving] for column in columns]
        low, high = np.zeros(len(unsettled[0])), np.ones(len(unsettled[0]))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            above = _excess(middle, *unsettled) > 0
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        share[moving] = (low + high) / 2
    return share


def _excess(share: Array, load: Array, slots: Array, chunks: Array, decode: Array, first: Array, per_chunk: Array) -> Array:
    """Return how far above a share of steps that read the one lies that follows from it."""
    power = 1 / (np.square(slots) * chunks)
    slow = first + per_chunk * (np.maximum(load / share, 1.0) - 1)
    seconds = decode + share * (slow - decode)
    full = np.minimum(load * slow / (slots * seconds), FULL)
    rate = load / (chunks * seconds)
    odds = np.expm1(np.minimum(slots * full - np.log(1 - np.exp((slots + 1) * np.log(full))), 700.0))
    starts = np.expm1(-rate * decode) / np.expm1(-rate * slow)
    odds = odds * np.exp((1 - power) * np.log(starts) + power * np.log(decode / slow))
    residual: Array = odds / (1 + odds) - share
    return residual
