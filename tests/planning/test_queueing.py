"""Waits by hand: of servers, of passes that take who waits, of steps that read prompts; and how busy a queue may be."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest

from steptime.planning.batch_queue import PassTime, arrivals, highest_utilisation, passes, queue_share, queue_wait
from steptime.planning.chunked_prefill import interleaved_prefill_share, mixed_step_stats
from tests.conftest import each


@each(
    "service, utilisation, servers, wait",
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


@each(
    "utilisation, servers, share",
    [
        (0.5, 1, 1.0),
        (0.9, 1, 9.0),
        (0.0, 8, 0.0),
        (0.5, 4, 0.5**2.2102 / (4 * 0.5)),  # sqrt(4) - 1 = 1
        (0.9, 16, 0.9 ** (1 + 3 * 1.2102) / (16 * 0.1)),
    ],
)
def test_waits_of_several_servers_over_half_of_their_service(utilisation, servers, share):
    assert queue_share(utilisation, servers) == pytest.approx(share)
    assert 1e8 < float(queue_share(1.0, 1)) < np.inf
    assert queue_share(1.5, servers) == queue_share(1.0, servers)


@each("servers", [2, 8, 64])
def test_servers_that_share_a_queue_wait_less_and_more_the_busier_they_are(servers):
    waits = queue_share(np.linspace(0.05, 0.95, 19), servers)
    assert np.all(np.diff(waits) > 0)
    assert np.all(waits < queue_share(np.linspace(0.05, 0.95, 19), 1) / servers)


# --- passes ----------------------------------------------------------------------------------------------------------------


def test_seconds_of_a_pass():
    """2 s for one, 0.5 s for each of three more beside it, 1.5 s for each after four."""
    time = PassTime(first=2.0, slope_to_kink=0.5, kink=4, beyond=1.5)
    assert time(np.array([1, 2, 4, 5, 8])).tolist() == [2.0, 2.5, 3.5, 5.0, 9.5]
    assert time(2.5) == pytest.approx(2.75)
    assert time.slope(np.array([1, 4, 5])).tolist() == [0.5, 0.5, 1.5]
    alike = PassTime(first=2.0)
    assert alike(np.array([1, 1000])).tolist() == [2.0, 2.0]
    assert alike.slope(7.0) == 0


@each(
    "expected, replicas, none, next_none",
    [
        (1.0, 1, exp(-1), 2 * exp(-1)),
        (1.0, 2, 3 * exp(-2), 5 * exp(-2)),  # Poisson of mean 2: 1 + 2, and 2 more
        (0.5, 4, (1 + 2 + 2 + 8 / 6) * exp(-2), (1 + 2 + 2 + 8 / 6 + 16 / 24) * exp(-2)),
        (0.0, 3, 1.0, 1.0),
    ],
)
def test_how_likely_nobody_comes_to_one_of_several_servers(expected, replicas, none, next_none):
    assert arrivals(replicas)(expected) == (pytest.approx(none), pytest.approx(next_none))
    assert arrivals(16)(expected) == arrivals(64)(expected)  # as even as they get


@each("rate, tau", [(10.0, 0.1), (2.0, 0.1), (40.0, 0.05)])
def test_a_train_that_leaves_with_who_waits(rate, tau):
    """With x = rate tau come while one is under way: x + e^-x in a pass, busy x of that; who comes waits for half of it."""
    x = rate * tau
    found = passes(rate, PassTime(first=tau), 1e6)
    busy = x / (x + exp(-x))
    assert found.prompts == pytest.approx(x + exp(-x))
    assert (found.seconds, found.service, found.busy) == (tau, tau, pytest.approx(busy))
    assert found.wait == pytest.approx(busy * tau / 2, rel=1e-6)


def test_a_train_that_every_second_request_comes_to():
    """x = 1: nobody (1 + 2) e^-2 = 0.406; the next after 5/3 - 1 = 0.667 s; 1 + 0.406 x 0.667 = 1.271 in a pass of 1 s."""
    found = passes(1.0, PassTime(first=1.0), 1e6, replicas=2)
    nobody = 3 * exp(-2)
    prompts = 1 + nobody * 2 / 3
    assert found.prompts == pytest.approx(prompts)
    assert found.busy == pytest.approx(1 / prompts)
    during = prompts - nobody  # 0.865 come while a pass is under way, and wait for half of what they find
    assert found.wait == pytest.approx(during / prompts * during / 2, rel=1e-6)


@each("load, replicas", [(0.5, 1), (0.9, 1), (0.5, 2), (0.8, 16)])
def test_one_seat_is_a_queue_for_constant_service(load, replicas):
    """Half of the service times the share: rho / (1 - rho) of one server."""
    found = passes(load / 2, PassTime(first=2.0), 1, replicas=replicas)
    share = load ** (1 + 1.2102 * (sqrt(replicas) - 1)) / (replicas * (1 - load))
    assert found.wait == pytest.approx(2.0 / 2 * share)
    assert (found.prompts, found.seconds, found.service) == (1, 2, 2)
    assert found.busy == pytest.approx(load)


def test_passes_that_last_longer_the_more_they_take():
    """t(k) = 1 + 0.1 (k - 1), 5 a second: k = 5 t + e^(-5 t), so that t = (0.9 + 0.1 e^(-5 t)) / 0.5, 1.800 s."""
    found = passes(5.0, PassTime(first=1.0, slope_to_kink=0.1), 1e6)
    seconds = float(found.seconds)
    assert seconds == pytest.approx((0.9 + 0.1 * exp(-5 * seconds)) / 0.5)
    assert seconds == pytest.approx(1.8, abs=1e-3)
    assert found.prompts == pytest.approx(5 * seconds + exp(-5 * seconds))
    varied = (float(found.prompts) - 1) / (1 - 0.25)  # of the number in a pass: (k - 1) / (1 - (5 x 0.1)^2)
    assert found.service == pytest.approx(seconds + 0.1 * varied / float(found.prompts), rel=1e-4)
    rest = (seconds + 0.01 * varied / seconds) / 2
    assert found.wait == pytest.approx(float(found.busy) * rest, rel=1e-3)


def test_passes_never_take_more_than_their_seats():
    rate = np.linspace(0.1, 3.9, 39)  # four seats, a second: 4 a second at most
    found = passes(rate, PassTime(first=1.0), 4)
    assert np.all(found.prompts <= 4)
    assert np.all(np.diff(found.wait) > 0)
    assert np.all(found.busy * found.prompts == pytest.approx(rate, rel=0.2))
    assert np.isinf(passes(np.array([4.0, 5.0]), PassTime(first=1.0), 4).wait).all()


@each(
    "limit, seats, ceiling, highest",
    [
        (2.0, 1, 0.9, 2 / 3),  # a wait of 1 s: rho / (2 (1 - rho)) = 1
        (1.5, 1, 0.9, 0.5),
        (100.0, 1, 0.9, 0.9),
        (100.0, 1, 0.5, 0.5),
        (1.0, 1, 0.9, 0.0),
        (0.99, 1, 0.9, 0.0),
        (np.inf, 8, 0.9, 0.9),
    ],
)
def test_how_busy_a_queue_of_one_second_may_be(limit, seats, ceiling, highest):
    """To a thousandth of the ceiling, and never more than the limit lets it."""
    found = float(highest_utilisation(limit, PassTime(first=1.0), seats, ceiling))
    assert highest - ceiling / 1000 <= found <= highest + 1e-12


def test_what_a_request_is_under_way_beyond_its_pass_counts():
    """A pass of 1 s that is 1.5 s under way: 2 s leave 0.5 s to wait, so that rho / (2 (1 - rho)) = 0.5."""
    time = PassTime(first=1.0)
    assert float(highest_utilisation(2.0, time, 1, 0.9, late=0.5)) == pytest.approx(0.5, abs=1e-3)
    assert highest_utilisation(1.5, time, 1, 0.9, late=0.5) == 0


def test_many_queues_at_once():
    found = highest_utilisation(np.array([[1.5], [3.0]]), PassTime(first=np.array([1.0, 2.0])), 1, 0.9)
    assert found == pytest.approx(np.array([[0.5, 0.0], [0.8, 0.5]]), abs=1e-3)


@each("seats", [1, 8, 100])
@each("replicas", [1, 4])
def test_the_highest_utilisation_meets_the_limit_and_no_more(seats, replicas):
    time = PassTime(first=0.1, slope_to_kink=0.01, kink=4, beyond=0.02)
    limit = 1.4 * float(time(seats))
    rho = float(highest_utilisation(limit, time, seats, 0.9, replicas=replicas))

    def late(used: float) -> float:
        found = passes(used * seats / float(time(seats)), time, seats, replicas=replicas)
        return float(found.wait + found.service)

    assert 0 < rho <= 0.9
    assert late(rho) <= limit
    assert rho > 0.899 or late(rho + 0.002) > limit


# --- steps that read prompts -----------------------------------------------------------------------------------------------


@each("load, chunks", [(0.5, 1), (0.1, 1), (0.8, 4)])
def test_one_slot_is_a_queue_whose_server_decodes_when_nobody_waits(load, chunks):
    """M/G/1 with vacations of t0: W = lambda S^2 / (2 (1 - rho)) + t0 / 2, with S = n t1; quiet steps are 1 - a."""
    t0, t1 = 0.02, 0.1
    found = mixed_step_stats(load, 1, chunks, t0, t1, 0.0)
    step = (1 - load) * t0 + load * t1
    rate, service = load / (chunks * step), chunks * t1
    busy = rate * service
    assert (found.decode_only_share, found.seconds, found.slow) == (pytest.approx(1 - load), pytest.approx(step), t1)
    assert (found.chunks_per_mixed_step, found.utilisation, found.service) == (1, pytest.approx(busy), pytest.approx(service))
    assert found.wait == pytest.approx(rate * service**2 / (2 * (1 - busy)) + t0 / 2)


def test_a_slot_that_is_full_is_waited_for_without_end():
    """Load 1 and 3 of one slot: all steps read, and a queue grows."""
    found = mixed_step_stats(np.array([0.99, 1.0, 3.0]), 1, 2, 0.02, 0.1, 0.0)
    assert np.isfinite(found.wait).tolist() == [True, False, False]
    assert found.utilisation[1:] == pytest.approx([1, 3])
    assert found.decode_only_share[1:] == pytest.approx([0, 0], abs=1e-6)
    assert found.seconds[1:] == pytest.approx([0.1, 0.1])


@each("slots", [2, 8, 72])
@each("more", [0.0, 0.005])
def test_laws_of_steps_of_many_slots(slots, more):
    """Chunks are conserved, a mean step lies between a quiet and a slow one, and more load is never faster."""
    load = np.linspace(0.02, 0.9, 30) * slots
    found = mixed_step_stats(load, slots, 2, 0.02, 0.1, more)
    assert (1 - found.decode_only_share) * found.chunks_per_mixed_step == pytest.approx(load)
    assert found.seconds == pytest.approx(found.decode_only_share * 0.02 + (1 - found.decode_only_share) * found.slow)
    assert found.slow == pytest.approx(0.1 + more * (found.chunks_per_mixed_step - 1))
    for rising in (found.seconds, found.utilisation, found.wait, -found.decode_only_share):
        assert np.all(np.diff(rising) > -1e-12)
        assert np.all(np.diff(rising)[load[1:] < 4] > 0)
    assert np.all((found.chunks_per_mixed_step >= 1) & (found.chunks_per_mixed_step <= slots))
    assert np.all(found.decode_only_share >= np.maximum(1 - load, 0))  # fewest where no two chunks share a step


@each("slots, chunks, more", [(2, 1, 0.0), (8, 4, 0.001), (48, 1, 0.002), (72, 64, 0.0)])
def test_slow_steps_are_where_their_equation_holds(slots, chunks, more):
    """The equation of `reading`'s docstring, written out: both of its sides agree at the share that is found."""
    load, decode, first = np.geomspace(1e-4, 0.9, 40) * slots, 0.01, 0.03
    found = mixed_step_stats(load, slots, chunks, decode, first, more)
    slow, power = found.slow, 1 / (slots**2 * chunks)
    full = load * slow / (slots * found.seconds)
    rate = load / (chunks * found.seconds)
    odds = np.exp(slots * full) / (1 - full ** (slots + 1)) - 1
    started = ((1 - np.exp(-rate * decode)) / (1 - np.exp(-rate * slow))) ** (1 - power) * (decode / slow) ** power
    np.testing.assert_allclose(found.decode_only_share, 1 / (1 + odds * started), rtol=1e-5, atol=1e-12)


def test_slow_steps_are_found_where_they_are_very_long():
    """Two slots, steps that read 280 times as long: the share by bisection of the equation."""
    found = mixed_step_stats(0.6140852564786954, 2, 16, 0.01, 2.8470276153025127, 0.35246067226328353)
    assert 1 - float(found.decode_only_share) == pytest.approx(0.310429, abs=1e-6)


def test_where_steps_last_alike_utilisation_is_the_load_of_a_slot():
    """t0 = t1: a step brings a chunks for c slots."""
    found = mixed_step_stats(np.array([0.5, 4.0, 6.0]), 8, 3, 0.05, 0.05, 0.0)
    assert found.utilisation == pytest.approx(np.array([0.5, 4.0, 6.0]) / 8)
    assert found.seconds == pytest.approx([0.05] * 3)
    assert found.service == pytest.approx([0.15] * 3)


def test_more_replicas_wait_less_for_a_slot():
    waits = [float(mixed_step_stats(0.8, 1, 2, 0.02, 0.1, 0.0, replicas=n).wait) for n in (1, 2, 8, 64, 10_000)]
    assert waits == sorted(waits, reverse=True)
    step = 0.2 * 0.02 + 0.8 * 0.1
    rest = (0.2 * 0.02**2 + 0.8 * 0.1**2) / (2 * step)
    assert waits[-1] == pytest.approx(rest, rel=0.01)  # of the step that goes on


def decoded(rate, steps, chunks, decode, slow, requests, seed):
    """Return the mean number that decode and their time per step, where one prompt is read at once: step by step."""
    came = list(np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests)))
    now, left, number, queue = 0.0, 0, 0, 0
    left_of: list[list[float]] = []  # steps left, time of the start
    lives = []
    while number < requests or queue or left_of:
        while number < requests and came[number] <= now:
            queue, number = queue + 1, number + 1
        if not queue and not left_of:
            if number == requests:
                break
            now = came[number]
            continue
        left = left or (chunks if queue else 0)
        now += slow if left else decode
        for one in left_of:
            one[0] -= 1
        lives += [now - one[1] for one in left_of if one[0] == 0]
        left_of = [one for one in left_of if one[0]]
        if left:
            left -= 1
            if not left:
                queue -= 1
                left_of.append([steps, now])
    mean = float(np.mean(lives))
    return rate * mean, mean / steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "steps", "chunks", "decode", "slow"),
    [
        (1.6, 127, 4, 0.009, 0.09),
        (0.03, 1000, 30, 0.015, 0.7),
        (2.0, 200, 1, 0.01, 0.2),
        (10.0, 100, 2, 0.01, 0.02),
        (3.0, 15, 1, 0.007, 0.19),
    ],
)
def test_tokens_see_more_prompts_read_than_there_are(rate, steps, chunks, decode, slow):
    """Against a simulation of steps: within 8 % of the time per token; with as many as there are, up to 40 % too soon."""
    others, seconds = decoded(rate, steps, chunks, decode, slow, 6000, 1)
    seen, _ = interleaved_prefill_share(others, steps, chunks, decode, slow)
    assert decode + float(seen) * (slow - decode) == pytest.approx(seconds, rel=0.08)
