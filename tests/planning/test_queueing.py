"""Waits by hand: of one server, of several, of a train with seats; and how busy a queue may be."""

from __future__ import annotations

import numpy as np
import pytest

from steptime.planning.queueing import highest_utilisation, lockstep_wait, queue_wait


@pytest.mark.parametrize(
    ("service", "utilisation", "servers", "wait"),
    [
        (1.0, 0.5, 1, 0.5),  # 0.5 / (2 x 0.5)
        (2.0, 0.5, 1, 1.0),
        (1.0, 0.9, 1, 4.5),
        (1.0, 0.0, 1, 0.0),
        (1.0, 0.81, 7, 0.81**3 / (2 * 7 * 0.19)),  # sqrt(2 x 8) - 1 = 3
        (1.0, 0.64, 17, 0.64**5 / (2 * 17 * 0.36)),
        (1.0, 1.0, 1, np.inf),
        (1.0, 1.5, 3, np.inf),
    ],
)
def test_mean_wait_of_a_queue(service, utilisation, servers, wait):
    assert queue_wait(service, utilisation, servers) == pytest.approx(wait)
    assert queue_wait(np.array([service]), np.array([utilisation]), servers)[0] == pytest.approx(wait)


@pytest.mark.parametrize(
    ("seats", "utilisation", "wait"),
    [
        (1, 0.5, 0.5),  # a queue alone
        (2, 0.5, 0.25 + 0.5 ** (6**0.5 - 1) / 2 / (2 * 0.5)),  # half the time, half a train; and the queue for two seats
        (7, 0.5, 0.25 + 0.125 / 2 / (7 * 0.5)),
        (7, 0.0, 0.0),
        (7, 1.0, np.inf),
    ],
)
def test_a_train_of_two_seats_or_more_is_waited_for(seats, utilisation, wait):
    assert lockstep_wait(1.0, utilisation, seats) == pytest.approx(wait)
    assert lockstep_wait(3.0, utilisation, seats) == pytest.approx(3 * wait)


@pytest.mark.parametrize(
    ("limit", "seats", "ceiling", "highest"),
    [
        (2.0, 1, 0.95, 2 / 3),  # a wait of 1 s: rho / (2 (1 - rho)) = 1
        (1.5, 1, 0.95, 0.5),
        (100.0, 1, 0.95, 0.95),
        (100.0, 1, 0.5, 0.5),
        (1.0, 1, 0.95, 0.0),
        (0.99, 1, 0.95, 0.0),
        (np.inf, 8, 0.95, 0.95),
    ],
)
def test_how_busy_a_queue_of_one_second_may_be(limit, seats, ceiling, highest):
    assert highest_utilisation(1.0, limit, seats, ceiling) == pytest.approx(highest, abs=1e-6)


def test_many_queues_at_once():
    found = highest_utilisation(np.array([1.0, 2.0]), np.array([[1.5], [3.0]]), 1, 0.95)
    assert found == pytest.approx(np.array([[0.5, 0.0], [0.8, 0.5]]), abs=1e-6)
