"""The mean time that a request waits before it is served."""

from __future__ import annotations

import numpy as np

from steptime.numbers import Number


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


def lockstep_wait(service: Number, utilisation: Number, seats: Number) -> Number:
    r"""Mean wait [s] for a batch server of `seats` that departs when it is free: the train of lecture section 4.

    An arrival finds a train under way with probability $\rho$ and waits half of it, so that a train that always runs gives
    the lecture's $1.5 \Delta$ in all; the queue that forms near saturation is that of `seats` servers.

    >>> round(0.020 + float(lockstep_wait(0.020, 0.99, 1e6)), 4)
    0.0299
    """
    held = np.where(np.asarray(seats) > 1, np.clip(utilisation, 0.0, 1.0) * service / 2, 0.0)
    return held + queue_wait(service, utilisation, seats)


def highest_utilisation(service: Number, limit: Number, seats: Number, ceiling: float) -> Number:
    """Return the highest utilisation, at most `ceiling`, that keeps wait plus service within `limit` [s]; 0 where none does."""
    shape = np.broadcast_shapes(np.shape(service), np.shape(limit), np.shape(seats))
    low, high = np.zeros(shape), np.full(shape, ceiling)
    for _ in range(24):
        middle = (low + high) / 2
        within = service + lockstep_wait(service, middle, seats) <= limit
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return np.where(service <= limit, np.where(service + lockstep_wait(service, ceiling, seats) <= limit, ceiling, low), 0.0)
