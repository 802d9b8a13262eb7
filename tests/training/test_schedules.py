"""Every schedule: what all obey, and what was published of each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.blackboard.pipeline_stages import bubble_fraction
from steptime.errors import LayoutError, RangeError, UnknownName
from steptime.training.schedule_timeline import peak_in_flight, simulate_step
from steptime.training.schedules.schedule import known_schedules, schedule_named
from steptime.training.schedules.work_order import BACKWARD, FORWARD, INPUT, PAIR, WEIGHT, interleaved_path, step_order
from tests.conftest import each, every, examples
from tests.training.shapes import (
    FEW,
    NAMES,
    PAIRS,
    POST_VALIDATED,
    PUBLISHED_IDLE,
    PUBLISHED_IN_FLIGHT,
    SHAPES,
    closed_step,
    enough,
    equal,
    legal,
)

KNOWN = known_schedules()


def test_all_that_are_known_and_no_two_share_a_name() -> None:
    assert tuple(KNOWN) == NAMES
    names = Counter(name.casefold() for schedule in KNOWN.values() for name in (schedule.name, *schedule.aliases))
    assert max(names.values()) == 1
    assert all(schedule.source.startswith("https://") for schedule in KNOWN.values())


@each(
    "typed, name",
    [("1F1B", "1f1b"), ("ZB1P", "zb-h1"), ("zb2p", "zb-h2"), ("ZBVZeroBubble", "zbv"), ("Interleaved1F1B", "interleaved"),
     ("GPipe", "gpipe"), ("DualPipeV", "dualpipev"), ("V_Half", "v-half")],
)  # fmt: skip
def test_names_of_engines(typed: str, name: str) -> None:
    assert schedule_named(typed).name == name


def test_unknown_schedules_are_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="zb-h1"):
        schedule_named("zb-h3")


@each("name", NAMES)
def test_every_pass_of_every_micro_batch_is_done_once(name: str) -> None:
    for p, m, v in legal(name, (*SHAPES, *FEW)):
        order = KNOWN[name].order(p, m, v)
        done: Counter[tuple[str, int, int, int]] = Counter()
        columns = (order.device, order.kind, order.chunk, order.micro, order.back_chunk, order.back_micro)
        for d, kind, chunk, micro, back, behind in zip(*(column.tolist() for column in columns), strict=True):
            if kind in (FORWARD, PAIR):
                done["F", d, chunk, micro] += 1
            if kind in (BACKWARD, INPUT):
                done["I", d, chunk, micro] += 1
            if kind in (BACKWARD, WEIGHT):
                done["W", d, chunk, micro] += 1
            if kind == PAIR:
                done["I", d, back, behind] += 1
                done["W", d, back, behind] += 1
        assert set(done.values()) == {1}, (name, p, m, v)
        assert len(done) == 3 * m * order.paths.shape[1], (name, p, m, v)


@each("name", NAMES)
def test_a_split_backward_pass_makes_gradients_of_weights_later(name: str) -> None:
    kinds = set(KNOWN[name].order(*legal(name)[-1]).kind.tolist())
    assert (WEIGHT in kinds) == (INPUT in kinds) == KNOWN[name].split
    assert (PAIR in kinds) == (name in PAIRS)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", PUBLISHED_IDLE)
def test_idle_time_is_as_published(name: str, part: int) -> None:
    schedule, tried = KNOWN[name], 0
    for p, m, v in legal(name)[part::2]:
        if not enough(name, p, m):
            continue
        tried += 1
        done = equal(schedule, p, m, v, 1.0, 2.0, 1.0)
        step = done.period if name in POST_VALIDATED else done.total
        expected = PUBLISHED_IDLE[name](p, m, v)
        assert step - 3 * m == pytest.approx(expected, abs=1e-9), (p, m, v)
        assert schedule.idle(p, m, v, 1.0, 2.0, 1.0) == pytest.approx(expected, abs=1e-9), (p, m, v)
    assert tried >= 4


@pytest.mark.parametrize(("name", "share"), [("v-half", 1 / 2), ("v-min", 2 / 3)])
@pytest.mark.parametrize("p", [4, 6, 8, 12, 16])
def test_v_half_and_v_min_idle_as_their_paper_says(name: str, share: float, p: int) -> None:
    """arXiv 2405.15362: bubble rates of about p/2m and 2p/3m, those of 1F1B being p/m: within a pass and a half of a device."""
    idle = equal(KNOWN[name], p, 4 * p, 2, 1.0, 2.0, 1.0).idle.min()
    assert idle == pytest.approx(share * 3 * p, rel=0.07, abs=2.6)


@pytest.mark.parametrize("part", every(4, range(4)))
@pytest.mark.parametrize("name", NAMES)
def test_in_flight_is_as_published(name: str, part: int) -> None:
    for p, m, v in legal(name, (*SHAPES, *FEW))[part::4]:
        expected = PUBLISHED_IN_FLIGHT[name](p, m, v)
        assert equal(KNOWN[name], p, m, v, 1.0, 2.0, 1.0).in_flight.max() == pytest.approx(expected), (p, m, v)
        assert KNOWN[name].in_flight(p, m, v) == pytest.approx(expected), (p, m, v)


@each("name", NAMES)
def test_in_flight_of_every_device(name: str) -> None:
    """Each as the walk has it; in a V a device may hold half a micro-batch less where there are few."""
    for p, m, v in legal(name):
        walked = peak_in_flight(KNOWN[name].order(p, m, v))
        said = np.broadcast_to(KNOWN[name].in_flight(p, m, v, np.arange(p)), (p,))
        assert (said >= walked - 1e-9).all()
        if enough(name, p, m):
            assert (said <= walked + (0.5 if name in ("v-half", "v-min") else 1e-9)).all(), (p, m, v)


def test_a_step_that_is_too_long_to_walk_is_refused() -> None:
    with pytest.raises(RangeError, match="16 stages x 100,000 micro-batches"):
        KNOWN["1f1b"].order(16, 100_000, 1)


def test_in_flight_of_interleaved_is_capped_at_the_micro_batches() -> None:
    assert KNOWN["interleaved"].in_flight(8, np.array([8, 16]), 2).tolist() == [8, 11.5]
    assert equal(KNOWN["interleaved"], 8, 8, 2, 1.0, 2.0, 1.0).in_flight[0] == 8


def test_in_flight_of_each_stage() -> None:
    """1F1B: p - i (arXiv 2104.04473); ZB-H1 and ZB-H2 with a share of an activation kept for W (arXiv 2401.10241, 2.3)."""
    assert equal(KNOWN["1f1b"], 4, 16, 1, 1.0, 2.0, 1.0).in_flight.tolist() == [4, 3, 2, 1]
    p, kept = 4, 0.5
    first = peak_in_flight(KNOWN["zb-h1"].order(p, 16, 1), retained_share=kept)
    second = peak_in_flight(KNOWN["zb-h2"].order(p, 16, 1), retained_share=kept)
    assert first.tolist() == [(p - i) + i * kept for i in range(p)]
    assert second.tolist() == [(2 * p - 2 * i - 1) + 2 * i * kept for i in range(p)]


TIMES = st.tuples(*[st.floats(0.7, 1.4) for _ in range(3)], st.floats(0.85, 1.0))
EXACT = {"v-half": 0.07, "v-min": 0.07, "zbv": 0.005}  # the V ones: worst at p = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@examples(25)
@given(times=TIMES, pick=st.integers(0, 10_000))
def test_closed_forms_are_the_walk_where_kinds_of_passes_differ(
    name: str, times: tuple[float, float, float, float], pick: int
) -> None:
    f, inputs, w, gain = times
    schedule = KNOWN[name]
    shapes = [(p, m, v) for p, m, v in legal(name) if m >= 2 * p]
    p, m, v = shapes[pick % len(shapes)]
    pair = {"pair": gain * (f + inputs + w)} if name in PAIRS else {}
    done = equal(schedule, p, m, v, f, inputs + w, w, **pair)
    steps = {True: done.total} | ({False: done.period} if name in POST_VALIDATED else {})
    for waits, step in steps.items():
        said = closed_step(schedule, p, m, v, f, inputs + w, w, pair.get("pair"), waits=waits)
        assert said == pytest.approx(float(step), rel=EXACT.get(name, 1e-9)), (p, m, v)


@each("name", [name for name in NAMES if name not in ("v-min",)])
def test_hops_are_the_walk_where_they_are_short(name: str) -> None:
    schedule = KNOWN[name]
    for p, m, v in legal(name):
        if p % 2 or m < 4 * p or p < 4:
            continue
        hop = 0.01
        more = equal(schedule, p, m, v, 1.0, 2.0, 1.0, hop=hop).total - equal(schedule, p, m, v, 1.0, 2.0, 1.0).total
        assert more / hop == pytest.approx(schedule.hops(p, m, v), rel=0.1), (p, m, v)


@each("name", NAMES)
def test_closed_forms_broadcast_as_the_loop(name: str) -> None:
    schedule = KNOWN[name]
    p, m, v = (np.array(values) for values in zip(*legal(name), strict=True))
    f, b, w = np.linspace(1.0, 1.3, len(p)), np.linspace(2.5, 2.0, len(p)), np.linspace(0.9, 1.1, len(p))
    together = closed_step(schedule, p, m, v, f, b, w, mean_over_slowest=0.9, hop=0.01)
    alone = [closed_step(schedule, *values, mean_over_slowest=0.9, hop=0.01) for values in zip(p, m, v, f, b, w, strict=True)]
    assert together == pytest.approx(np.array(alone), rel=1e-12)
    assert np.asarray(schedule.in_flight(p, m, v)) == pytest.approx([schedule.in_flight(*s) for s in zip(p, m, v, strict=True)])
    assert schedule.legal(p, m, v).all()


@each("name", NAMES)
def test_legal_says_of_arrays_what_check_says_of_each(name: str) -> None:
    schedule = KNOWN[name]
    for p in range(1, 7):
        for m in (1, 4, 5, 12):
            for v in (1, 2, 3):
                if schedule.legal(p, m, v):
                    schedule.check(p, m, v)
                else:
                    with pytest.raises(LayoutError, match=f"schedule {name} "):
                        schedule.check(p, m, v)


@each(
    "name, shape, words",
    [
        ("1f1b", (4, 8, 2), "has no virtual stages, got vpp=2; leave --vpp out, or take interleaved"),
        ("interleaved", (4, 8, 1), "needs at least 2 virtual stages"),
        ("interleaved", (4, 10, 2), "multiple of pp=4, got 10; the nearest are 8 and 12"),
        ("interleaved", (4, 2, 2), "the nearest are 4$"),
        ("zbv", (4, 8, 3), "has 2 virtual stages"),
        ("dualpipe", (5, 20, 1), "even number of stages, got pp=5"),
        ("dualpipe", (4, 6, 1), "at least 2 x pp = 8, got 6"),
        ("dualpipev", (4, 7, 2), "at least 2 x pp = 8 micro-batches, got 7"),
        ("v-min", (2, 8, 2), "at least 3 stages"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(name: str, shape: tuple[int, int, int], words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        KNOWN[name].order(*shape)


def test_lecture_bubble_of_a_training_step() -> None:
    """Lecture, section 10: (P-1)/(M+P-1) of a step is idle."""
    for p, m in ((4, 4), (4, 13), (8, 64)):
        done = equal(KNOWN["1f1b"], p, m, 1, 1.0, 2.0, 1.0)
        assert done.idle / done.total == pytest.approx(bubble_fraction(p, m))


@each("microbatches, idles", [(3, True), (4, False), (5, False)])
def test_lecture_four_micro_batches_fill_a_loop_of_four_stages(microbatches: int, idles: bool) -> None:
    """Lecture, section 10: decoding goes round and round; P = 4 stages need four micro-batches to have no idle time."""
    rounds = 6
    row = [(FORWARD, turn, micro, -1, -1) for turn in range(rounds) for micro in range(microbatches)]
    done = simulate_step(step_order(interleaved_path(4, rounds), microbatches, [row] * 4), 1.0, 0.0)
    assert (done.span > done.busy + 1e-9).all() == idles
    assert (done.span > done.busy + 1e-9).any() == idles


@each("name", [name for name in NAMES if KNOWN[name].legal(1, 5, 1)])
def test_one_stage_never_waits(name: str) -> None:
    done = equal(KNOWN[name], 1, 5, 1, 1.0, 2.0, 1.0)
    assert done.total == 15
    assert closed_step(KNOWN[name], 1, 5, 1, 1.0, 2.0, 1.0, hop=0.1) == pytest.approx(15)
