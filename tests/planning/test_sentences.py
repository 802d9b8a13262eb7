"""What a plan says: what to mind, why it is not cheaper, what does not fit and what is out of reach."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import steptime as st
from steptime.hardware.system import Rent
from steptime.models.model import Attention
from steptime.planning.plan_messages import warnings_of_step
from steptime.planning.plan_problem import AGGREGATED, DISAGGREGATED
from steptime.planning.plan_result import mean_resources
from steptime.planning.planner import DoesNotFit
from tests.conftest import engine, machine, matrix, model_of, one_matrix
from tests.planning.cases import MODEL, NODES, WHOLE, WORK, apart, closed_plan, equal_requests

# With what hardware figures would bring: the sentences tell it.
told_plan = partial(closed_plan, **WHOLE | {"elasticities": True})


@pytest.mark.slow
def test_why_a_plan_cannot_be_cheaper():
    found = told_plan(one_matrix(heads=1), machine(flops=1e30, size=1), WORK, st.Slo(tpot=3e-3), chips=1, engine="ideal")
    assert found.binding == ("speed",)
    assert "slower than 3.00 ms" in found.why
    assert "10 % more HBM bandwidth would make it" in found.why
    weights, cache = (mean_resources(found.pools[0])[name] / found.tpot for name in ("weights", "kv"))
    assert (
        f"spends {100 * weights:.0f} % of its time on reading weights and {100 * cache:.0f} % on reading the KV cache"
        in found.why
    )
    split = apart(tpot=3e-3)
    assert "A decode step " in split.why


@pytest.mark.slow
def test_small_shares_are_not_told():
    """A cache that takes less than a twentieth of the time."""
    found = told_plan(one_matrix(kv_bytes=1.0, heads=1), machine(flops=1e30, size=1), WORK, chips=1, engine="ideal")
    assert "A step spends 100 % of its time on reading weights." in found.why
    machine_ = machine(flops=1e30, size=1)
    cached = told_plan(
        one_matrix(kv_bytes=1e6, weights=1.0, heads=1), machine_, WORK, chips=1, engine="ideal", alternatives=False
    )
    assert cached.why.endswith(
        "A step spends 100 % of its time on reading the KV cache. 10 % more HBM bandwidth would make it 9.1 % cheaper."
    )


@pytest.mark.thorough
def test_a_machine_that_nothing_helps():
    """All time is the engine's overhead."""
    found = told_plan(
        one_matrix(heads=1), machine(size=1), WORK, chips=1, engine=engine(seconds_per_step=1e3, seconds_per_sequence=1e3)
    )
    assert "No single hardware figure, 10 % better, would lower the cost" in found.why
    assert "100 % of its time on the engine's overhead" in found.why


@pytest.mark.parametrize(
    ("gigabytes", "chips", "says"),
    [
        (3.0, 1, r"its weights take 10.0 GB, the chips hold 3.00 GB, 7.00 GB too little\. With --chips 4 it would fit"),
        (3.0, 3, r"the chips hold 9.00 GB, 1.00 GB too little\. With --chips 4 it would fit"),
        (6.0, 1, r"the chips hold 6.00 GB, 4.00 GB too little\. With --chips 2 it would fit"),
    ],
)
def test_weights_that_are_too_large_say_by_how_much(gigabytes, chips, says):
    with pytest.raises(DoesNotFit, match=says):
        told_plan(MODEL, machine(size=4, capacity=gigabytes * 1e9), WORK, chips=chips, engine="ideal")


def test_weights_that_cannot_be_divided_say_what_the_best_layout_holds():
    """One layer and one head: 10 GB on every chip, of however many."""
    model = model_of(matrix(weights=1e10), attention=(Attention(name="kv", kv_bytes=1.0),), layers=1, heads=1)
    with pytest.raises(DoesNotFit) as caught:
        told_plan(model, machine(size=4, capacity=6e9), WORK, chips=4, engine="ideal")
    assert "the best layout puts 10.0 GB on a chip of 6.00 GB" in str(caught.value)
    assert "--chips" not in str(caught.value)


def test_weights_that_only_some_layouts_divide_say_what_the_best_holds():
    """Two layers of one head: 5 GB on each of two chips, of four."""
    model = model_of(matrix(weights=5e9), attention=(Attention(name="kv", kv_bytes=1.0),), layers=2, heads=1)
    with pytest.raises(DoesNotFit, match=r"the best layout puts 5.00 GB on a chip of 4.00 GB"):
        told_plan(model, machine(size=4, capacity=4e9), WORK, chips=4, engine="ideal")


def test_whole_nodes_are_tried_where_fewer_chips_do_not_divide_a_model():
    """Three layers of three heads on nodes of three: seven chips would hold 10 GB at 1.5 each, but only nine divide it."""
    model = model_of(matrix(weights=10e9 / 3), attention=(Attention(name="kv", kv_bytes=1.0),), layers=3, heads=3)
    with pytest.raises(DoesNotFit, match=r"With --chips 9 it would fit"):
        told_plan(model, machine(size=3, capacity=1.5e9), WORK, chips=1, engine="ideal")


@pytest.mark.parametrize(
    ("layers", "capacity", "chips"),
    [
        (6, 1.42e9, 24),  # at least 17 chips; 4 heads in 6 stages, of 17, 18, 20, 24 and 32 only 24 divide so
        (8, 1.90e9, 32),  # at least 17 chips; 4 heads in 8 stages
    ],
)
def test_multiples_of_eight_and_powers_of_two_are_tried(layers, capacity, chips):
    model = model_of(matrix(weights=4e9), attention=(Attention(name="kv", kv_bytes=1.0),), layers=layers, heads=4)
    with pytest.raises(DoesNotFit, match=rf"With --chips {chips} it would fit"):
        told_plan(model, machine(size=4, capacity=capacity), WORK, chips=1, engine="ideal")


def test_room_for_a_sequence_but_not_for_a_chunk_is_none():
    """A cache of 12 MB fits beside 10 GB of weights, and the activations of a chunk do not."""
    tight = machine(size=1, capacity=10e9 + 1201 * 1e4 + 5000)
    found = told_plan(one_matrix(heads=1), tight, WORK, chips=1, engine="ideal", modes=(AGGREGATED,))
    assert "leave no room for a request of 1,201 tokens" in found.reason


def test_an_engine_that_uses_less_says_so():
    with pytest.raises(DoesNotFit, match=r"the chips hold 4.00 GB \(test uses 75 % of 6.00 GB, 500 MB of it for buffers\)"):
        told_plan(MODEL, machine(size=4, capacity=6e9), WORK, chips=1, engine=engine(memory_share=0.75, reserved_bytes=0.5e9))
    with pytest.raises(DoesNotFit, match=r"the chips hold 4.50 GB \(test uses 75 % of 6.00 GB\)"):
        told_plan(MODEL, machine(size=4, capacity=6e9), WORK, chips=1, engine=engine(memory_share=0.75))


@pytest.mark.slow
def test_limits_that_are_out_of_reach_say_how_near_the_best_comes():
    found = told_plan(MODEL, NODES, WORK, st.Slo(tpot=1e-4), engine="ideal")
    fastest = max(p.tokens_per_second_per_user for p in told_plan(MODEL, NODES, WORK, engine="ideal").front)
    assert f"reaches 10,000 tok/s per user; the fastest gives {fastest:,.0f} tok/s" in found.reason
    late = told_plan(MODEL, NODES, WORK, st.Slo(ttft=1e-3), engine="ideal")
    assert "no layout on 4 chips gives a first token within 1.00 ms; the earliest comes" in late.reason
    readers = told_plan(MODEL, NODES, WORK, st.Slo(ttft=1e-3), engine="ideal", modes=(DISAGGREGATED,))
    assert "no layout on 4 chips gives a first token within 1.00 ms; the earliest comes" in readers.reason
    slow = told_plan(MODEL, machine(size=4, bandwidth=1e9, capacity=11e9), WORK, st.Slo(tpot=1e-4), engine="ideal")
    assert "the fastest gives" in slow.reason  # it serves fewer than a request a second
    assert slow.transfer_seconds == 0
    full = told_plan(
        MODEL,
        machine(size=1, capacity=10.0001e9),
        equal_requests(input_tokens=50_000, output_tokens=1),
        chips=1,
        engine="ideal",
    )
    assert "leave no room for a request of 50,001 tokens" in full.reason


def test_an_inner_network_that_is_slower_is_told():
    """The least of many inner rates, and the most of many outer ones."""
    assert warnings_of_step(MODEL, NODES, reach=1) == ()
    inner, outer = NODES.domains

    def rated(up, out):
        links = (replace(inner.link, bandwidth=up), replace(outer.link, bandwidth=out))
        domains = (replace(inner, link=links[0]), replace(outer, link=links[1]))
        return warnings_of_step(MODEL, replace(NODES, domains=domains), reach=1)

    (text,) = rated(1e9, 2e9)
    assert text.startswith("up, the scale-up network, is slower than out, the scale-out network outside it (1.00 GB/s and 2.00")
    assert "(1.00 GB/s and 4.00 GB/s)" in rated(np.array([1e9, 9e9]), np.array([4e9, 3e9]))[0]
    assert rated(2e9, 2e9) == ()


def test_a_step_that_reaches_beyond_the_model():
    model = replace(MODEL, max_context=1200)
    assert warnings_of_step(model, NODES, reach=np.array([1, 1200])) == ()
    assert warnings_of_step(model, NODES, reach=np.array([1, 1201])) == (
        "requests of 1,201 tokens exceed the model's context of 1,200",
    )


@pytest.mark.thorough
def test_without_a_rent_more_is_served_instead_of_cheaper():
    """9.1 % cheaper is 10 % more for the same rent."""
    free = replace(
        machine(flops=1e30, size=1), rent=Rent(low=math.nan, typical=math.nan, high=math.nan, note="nobody rents it")
    )
    found = told_plan(one_matrix(kv_bytes=1e6, weights=1.0, heads=1), free, WORK, chips=1, engine="ideal", alternatives=False)
    assert found.why.startswith("What keeps it from serving more: ")
    assert found.why.endswith("10 % more HBM bandwidth would serve 10.0 % more requests per second.")
    waits = engine(seconds_per_step=1.0, seconds_per_sequence=1.0)
    still = told_plan(one_matrix(heads=1), replace(free, chip=machine(size=1).chip), WORK, chips=1, engine=waits)
    assert "No single hardware figure, 10 % better, would raise the output." in still.why


def test_what_no_figure_would_bring_is_told_only_where_it_was_worked_out():
    asked = ("llama-3.1-8b", "hgx-h100", equal_requests(input_tokens=1000, output_tokens=200), st.Slo(tpot=0.02))
    assert "single figure" not in told_plan(*asked, chips=1, alternatives=False, elasticities=False).why
