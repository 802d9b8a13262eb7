"""The walk: against an independent one, by hand, and the laws of unequal stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.errors import InputError
from steptime.training.schedule_timeline import peak_in_flight, simulate_step
from steptime.training.schedules.schedule import known_schedules
from steptime.training.schedules.work_order import BACKWARD, FORWARD, interleaved_path, step_order
from tests.conftest import each, every, examples
from tests.training.shapes import NAMES, by_hand, closed_step, equal, legal

KNOWN = known_schedules()


def test_two_stages_and_two_micro_batches_by_hand() -> None:
    """1F1B, the second stage twice as long: F 0-1, 1-2; F 1-3, B 3-7, F 7-9, B 9-13; B 7-9, 13-15 on the first."""
    done = simulate_step(KNOWN["1f1b"].order(2, 2, 1), [[1.0], [2.0]], [[2.0], [4.0]])
    assert done.start.tolist() == [0, 1, 7, 13, 1, 3, 7, 9]
    assert done.end.tolist() == [1, 2, 9, 15, 3, 7, 9, 13]
    assert (done.total, done.busy.tolist(), done.idle.tolist()) == (15, [6, 12], [9, 3])
    assert (done.span.tolist(), done.in_flight.tolist()) == ([15, 12], [2, 1])


@each("name", NAMES)
@examples(10)
@given(seed=st.integers(0, 2**32 - 1), hop=st.sampled_from([0.0, 0.3]))
def test_the_walk_is_that_of_dictionaries(name: str, seed: int, hop: float) -> None:
    rng = np.random.default_rng(seed)
    shapes = [shape for shape in legal(name) if shape[1] <= 16]
    order = KNOWN[name].order(*shapes[int(rng.integers(len(shapes)))])
    f, inputs, w = rng.uniform(0.2, 2.0, (3, order.devices, order.chunks))
    table = {"F": f, "I": inputs, "W": w}
    ends, total = by_hand(order, lambda kind, d, c: table[kind][d, c], hop)
    done = simulate_step(order, f, inputs + w, w, hop=hop)
    assert done.total == pytest.approx(total)
    for place in range(len(order.kind)):
        d, kind = int(order.device[place]), int(order.kind[place])
        part = {FORWARD: "F", BACKWARD: "I", 2: "I", 3: "W", 4: "F"}[kind]
        assert done.end[place] == pytest.approx(ends[part, d, int(order.chunk[place]), int(order.micro[place])])


@each("name", NAMES)
def test_arrays_of_times_go_together_as_one_after_the_other(name: str) -> None:
    rng = np.random.default_rng(7)
    order = KNOWN[name].order(*legal(name)[-1])
    f, b = rng.uniform(0.5, 2.0, (2, 3, 2, order.devices, order.chunks))
    together = simulate_step(order, f, b + 1, 1.0, hop=np.full((2, 1, 1), 0.1))
    assert together.total.shape == (3, 2)
    alone = [[float(simulate_step(order, f[i, j], b[i, j] + 1, 1.0, hop=0.1).total) for j in range(2)] for i in range(3)]
    assert together.total == pytest.approx(np.array(alone), rel=1e-12)


@each("name", NAMES)
@examples(15)
@given(seed=st.integers(0, 2**32 - 1))
def test_laws_of_unequal_stages(name: str, seed: int) -> None:
    """No less than the busiest device's work and one micro-batch's way; longer passes and hops never shorten a step."""
    rng = np.random.default_rng(seed)
    shapes = legal(name)
    order = KNOWN[name].order(*shapes[int(rng.integers(len(shapes)))])
    f, inputs, w = rng.uniform(0.3, 2.0, (3, order.devices, order.chunks))
    done = simulate_step(order, f, inputs + w, w)
    assert done.total >= done.busy.max() * (1 - 1e-12)
    for path in order.paths:
        assert done.total >= sum(f[d, c] + inputs[d, c] for d, c in path) * (1 - 1e-12)
    assert done.busy == pytest.approx(order.microbatches // len(order.paths) * (f + inputs + w).sum(axis=-1))
    slower = f.copy()
    slower[rng.integers(order.devices), rng.integers(order.chunks)] *= 1.5
    assert simulate_step(order, slower, inputs + w, w).total >= done.total * (1 - 1e-12)
    assert simulate_step(order, f, inputs + w, w, hop=0.2).total >= done.total
    assert simulate_step(order, 2 * f, 2 * (inputs + w), 2 * w).total == pytest.approx(2 * float(done.total))


# How far the closed form of unequal stages is from the walk where parts of the model differ by up to 5 % and 15 % each way.
FAR = {
    "gpipe": (0.0, 0.0), "1f1b": (0.025, 0.06), "interleaved": (0.06, 0.10), "zb-h1": (0.03, 0.05), "zb-h2": (0.08, 0.13),
    "zbv": (0.04, 0.06), "v-half": (0.05, 0.09), "v-min": (0.06, 0.10), "dualpipe": (0.05, 0.09), "dualpipev": (0.05, 0.09),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("number", "spread"), every(2, [(1, 0.15), (0, 0.05)]))
@examples(12)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_closed_form_of_unequal_stages_is_near_the_walk(name: str, number: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = KNOWN[name]
    shapes = [(p, m, v) for p, m, v in legal(name) if p >= 4 and m >= 2 * p]
    p, m, v = shapes[int(rng.integers(len(shapes)))]
    order = schedule.order(p, m, v)
    f = 1 + spread * rng.uniform(-1, 1, (p, order.chunks))
    done = simulate_step(order, f, 2 * f, 0.95 * f)
    work = f.sum(axis=-1) / len(order.paths)  # with two paths each takes half of the micro-batches
    slow = work.max()
    rest = (work.sum() - slow) / (p - 1) / slow
    said = closed_step(schedule, p, m, v, slow, 2 * slow, 0.95 * slow, mean_over_slowest=rest)
    assert said >= done.busy.max() * (1 - 1e-12)
    assert said == pytest.approx(float(done.total), rel=max(FAR[name][number], 1e-9))


@each("name, far", [(name, 0.03 if name[:1] in "dv" else 0.01 if name == "zbv" else 1e-9) for name in NAMES])
@each("p", [4, 8])
def test_the_closed_form_of_a_last_stage_with_a_head(name: str, far: float, p: int) -> None:
    """A quarter of a device more on the last stage of the model: exact but for schedules that overlap or go by a block."""
    schedule, v = KNOWN[name], KNOWN[name].virtual or 2
    order = schedule.order(p, 8 * p, v)
    f = np.full((p, order.chunks), p / order.paths.shape[1])
    for path in order.paths:
        f[*path[-1]] += 0.25
    work = f.sum(axis=-1) / len(order.paths)
    rest = (work.sum() - work.max()) / (p - 1) / work.max()
    said = closed_step(schedule, p, 8 * p, v, work.max(), 2 * work.max(), work.max(), mean_over_slowest=rest)
    assert said == pytest.approx(float(simulate_step(order, f, 2 * f, f).total), rel=far)


def test_in_flight_in_bytes_and_by_share_kept() -> None:
    """A device whose second chunk is heavier; and gradients of weights that need a part of what forward passes left."""
    order = KNOWN["zbv"].order(4, 16, 2)
    size = np.array([[1e9, 3e9]] * 4)
    assert (peak_in_flight(order, size) <= 4 * 4e9).all()
    assert peak_in_flight(order, size).max() > peak_in_flight(order, size.mean()).max() * 0.5
    assert peak_in_flight(order, 2e9).tolist() == pytest.approx((peak_in_flight(order) * 2 * 2e9).tolist())
    assert (peak_in_flight(order, retained_share=0.3) <= peak_in_flight(order)).all()
    gpipe = KNOWN["gpipe"].order(2, 5, 1)
    assert peak_in_flight(gpipe, [[2.0], [3.0]]).tolist() == [10.0, 15.0]


def test_pairs_take_their_own_time() -> None:
    schedule = KNOWN["dualpipe"]
    apart, overlapped = (equal(schedule, 4, 16, 1, 1.0, 2.0, 1.0, pair=pair).total for pair in (3.0, 2.5))
    assert equal(schedule, 4, 16, 1, 1.0, 2.0, 1.0).total == apart
    assert overlapped < apart


def test_devices_that_wait_in_a_circle_are_refused() -> None:
    rows = [[(BACKWARD, 0, 0, -1, -1), (FORWARD, 0, 0, -1, -1)], [(FORWARD, 0, 0, -1, -1), (BACKWARD, 0, 0, -1, -1)]]
    with pytest.raises(InputError, match="circle"):
        simulate_step(step_order(interleaved_path(2, 1), 1, rows), 1.0, 1.0)
