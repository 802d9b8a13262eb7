"""Parts of a plan on hand-made tables and plans: fronts, probabilities, equal domains and speculative tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import steptime as st
from steptime.errors import Impossible, InputError, RangeError, UnknownName
from steptime.hardware.system import Power
from steptime.physics.engine_rules import most_sequences
from steptime.physics.layout import Layout, stacked
from steptime.planning import planner
from steptime.planning.launch_facts import what_is_served
from steptime.planning.plan_figures import _drafted, front_points
from steptime.planning.plan_problem import AGGREGATED, COLUMNS, DISAGGREGATED, Candidate, Pinned, Table
from steptime.planning.planner import _choose_speculation, _of_evidence, _over, _symmetric_problem
from steptime.planning.steady_state import decode_pool
from steptime.workload.workload import NONE, Speculation
from tests.conftest import each, engine, machine
from tests.planning.cases import MODEL, NODES, WHOLE, WORK, case, closed_plan, made

BOTH = (AGGREGATED, DISAGGREGATED)
TABLES = {"tpot": {"decode": [0.8, 1.25]}}
SHORT = {"front": False, "alternatives": False, "elasticities": False}
FITTED = engine(fit={"names": [], "interval": TABLES})


def table(mode: str, **columns) -> Table:
    count = len(columns["tpot"])
    values = {name: np.ones(count, dtype=np.int64) for name in COLUMNS} | {"layout": np.zeros(count, dtype=np.int64)}
    values |= {"prefill_layout": values["layout"], "memory": np.full(count, 0.5)}
    return Table(
        mode=mode, layouts=stacked([Layout()]), **values | {name: np.asarray(value) for name, value in columns.items()}
    )


def test_a_front_has_what_is_within_memory_and_the_first_token_of_all_modes():
    given = case(slo=st.Slo(tpot=1e-9, ttft=1.0))
    shared = table(
        AGGREGATED, tpot=[0.01, 0.02, 0.005, 0.004, 0.003], ttft=[1.0, 0.5, 1.1, 0.5, 0.5], memory=[1.0, 0.9, 0.5, 1.01, 0.5],
        rate=[4.0, 5.0, 9.0, 9.0, 0.0], batch=[7, 8, 9, 10, 11], replicas=[2, 3, 1, 1, 1],
    )  # fmt: skip
    apart = table(DISAGGREGATED, tpot=[0.05, 0.02, 0.015], ttft=[0.3, 0.2, 0.1], rate=[6.0, 4.9, 4.5], batch=[20, 21, 22])
    points = front_points(given, [shared, apart])
    assert [(p.mode, p.batch) for p in points] == [
        (AGGREGATED, 7), (DISAGGREGATED, 22), (AGGREGATED, 8), (DISAGGREGATED, 20)
    ]  # fmt: skip
    assert [p.tokens_per_second_per_user for p in points] == pytest.approx([100, 1 / 0.015, 50, 20])
    assert [p.tokens_per_second_per_chip for p in points] == pytest.approx([r * 201 / 4 for r in (4.0, 4.5, 5.0, 6.0)])
    usd = 4 * 2 / 3600
    assert [p.usd_per_million_output_tokens for p in points] == pytest.approx([usd / (r * 201) * 1e6 for r in (4, 4.5, 5, 6)])
    assert [p.ttft for p in points] == [1.0, 0.1, 0.5, 0.3]
    assert points[0].layout_text == shared.row(0).text
    assert points[-1].layout_text.startswith("prefill ")
    assert front_points(given, [replace(shared, rate=0 * shared.rate)]) == ()


# --- probabilities ---------------------------------------------------------------------------------------------------------


def test_a_quantile_is_compared_with_its_limit():
    """The end of the range, 15 ms, has a probability of 95 %."""
    found = made(tpot=0.010, tpot_range=(0.008, 0.015), ttft=1.0, ttft_range=None)
    assert _over(found, st.Slo(tpot=0.020, ttft=0.5), "tpot", 0.95) == pytest.approx(0.75)
    assert _over(found, st.Slo(tpot=0.020, ttft=0.5), "ttft", 0.95) == pytest.approx(2.0)
    assert _over(found, st.Slo(tpot=0.020), "ttft", 0.95) == 0.0


@pytest.fixture
def planned(monkeypatch):
    """Plans whose figures follow the targets that the search aims at, and the targets."""
    aims: list[tuple[float, float]] = []
    ratio = {"tpot": 1.1, "ttft": 1.05, "turns": 99}

    def planned(given, modes, layouts, price, *, alternatives, elasticities):
        aims.append(given.aim)
        late = ratio if len(aims) <= ratio["turns"] else {"tpot": 0.9, "ttft": 0.9}
        tpot, ttft = given.aim[0] * 0.02 * late["tpot"], given.aim[1] * late["ttft"]
        return replace(made(tpot=tpot, ttft=ttft), feasible=given.aim[0] > 0.5, reason="too slow")

    monkeypatch.setattr(planner, "_planned", planned)
    return ratio, aims


def sure_plan(sure, on=FITTED):
    given = replace(case(slo=st.Slo(tpot=0.02, ttft=1.0)), engine=on, sure=sure)
    return _of_evidence(given, (AGGREGATED,), math.nan, alternatives=True, elasticities=True)


def test_a_plan_that_is_not_sure_enough_is_searched_with_lower_targets(planned):
    """A tenth and a twentieth above: the next targets are 0.998 / 1.1 and 0.998 / 1.05 of the limits."""
    _, aims = planned
    found = sure_plan(0.95)
    assert aims == [(1.0, 1.0), (pytest.approx(0.998 / 1.1), pytest.approx(0.998 / 1.05))]
    assert (found.feasible, found.sure) == (True, 0.95)


def test_a_target_that_is_met_is_not_lowered(planned):
    ratio, aims = planned
    ratio.update(tpot=1.2, ttft=0.5)
    sure_plan(0.9)
    assert aims == [(1.0, 1.0), (pytest.approx(0.998 / 1.2), 1.0)]
    aims.clear()
    ratio.update(tpot=0.5, ttft=1.2)
    sure_plan(0.9)
    assert aims == [(1.0, 1.0), (1.0, pytest.approx(0.998 / 1.2))]
    aims.clear()
    ratio.update(tpot=1.0, ttft=1.0)
    sure_plan(0.9)
    assert aims == [(1.0, 1.0)]


def test_a_plan_that_never_becomes_sure_is_searched_seven_times(planned, monkeypatch):
    _, aims = planned
    monkeypatch.setattr(planner, "_over", lambda *_: 1.01)
    sure_plan(0.9)
    assert len(aims) == 7
    assert aims[-1][0] == pytest.approx((0.998 / 1.01) ** 6)


def test_without_a_probability_or_ranges_a_plan_is_searched_once(planned):
    _, aims = planned
    assert sure_plan(None).sure is None
    assert sure_plan(0.9, st.load_engine("ideal")).sure == 0.9
    assert aims == [(1.0, 1.0)] * 2


def test_a_plan_that_no_target_makes_sure_says_so(planned):
    ratio, aims = planned
    ratio.update(tpot=2.5)
    found = sure_plan(0.95)
    assert (found.feasible, found.sure, found.reason) == (False, 0.95, "with probability 0.95, too slow")
    assert len(aims) == 2


# --- equal domains ---------------------------------------------------------------------------------------------------------


@each(
    "chips, modes, tried",
    [
        (4, BOTH, False),
        (5, BOTH, True),
        (8, (DISAGGREGATED,), True),
        (8, (AGGREGATED,), False),
        (19, BOTH, True),
        (20, BOTH, False),
    ],
)
def test_a_few_domains_are_tried_with_equal_layouts(chips, modes, tried):
    found = _symmetric_problem(case(chips), modes)
    assert (found is not None) == tried
    assert found is None or (found.symmetric_domains, found.chips) == (True, chips)
    none_fits = replace(case(chips), system=machine(size=4, capacity=1e8))
    assert _symmetric_problem(none_fits, modes) is None


@pytest.mark.parametrize(("alike", "asked", "turns"), [(3.0, True, 3), (3.0, False, 2), (1.5, True, 2)])
def test_equal_domains_are_planned_where_they_serve_more(monkeypatch, alike, asked, turns):
    calls = []

    def planned(given, modes, layouts, price, *, alternatives, elasticities):
        calls.append((given.symmetric_domains, modes, alternatives))
        return made(requests_per_second=alike if given.symmetric_domains else 2.0)

    monkeypatch.setattr(planner, "_planned", planned)
    found = closed_plan(MODEL, NODES, WORK, chips=8, engine="ideal", alternatives=asked)
    assert found.requests_per_second == max(alike, 2.0)
    assert 0 < found.search_seconds < 60
    expected = [(False, BOTH, asked), (True, (DISAGGREGATED,), False), (True, (DISAGGREGATED,), True)]
    assert calls == expected[:turns]


@pytest.mark.parametrize("name", ["front", "diagnostics", "sure"])
def test_what_is_asked_reaches_the_search(monkeypatch, name):
    asked = []
    monkeypatch.setattr(planner, "_planned", lambda given, *_, **__: asked.append(given) or made())
    closed_plan(MODEL, NODES, WORK, st.Slo(tpot=0.02), engine="ideal", **WHOLE | {name: 0.9 if name == "sure" else False})
    assert [getattr(asked[0], key) for key in ("front", "diagnostics", "sure")] == [
        name != "front", name != "diagnostics", 0.9 if name == "sure" else None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "evidence", "is_named"), [(2.04, "any", True), (2.02, "any", False), (2.04, "measured", False)]
)
def test_the_cheapest_layout_of_all_kinds_takes_a_search_of_published_and_a_rough_one(monkeypatch, rate, evidence, is_named):
    """It has to serve 1.5 % more with less evidence; its search begins at the rate of the plan, and draws no front."""
    searches = []

    def planned(given, modes, price, **effects):
        searches.append((given, effects))
        return made(requests_per_second=rate, evidence=evidence)

    best = made(requests_per_second=2.0, evidence="measured")
    monkeypatch.setattr(planner, "_of_evidence", planned)
    found = planner._with_cheaper_plans(case(), best, "measured", "measured", BOTH, math.nan)
    levels = [(given.evidence, given.rough, given.at_least, given.front, given.diagnostics) for given, _ in searches]
    assert levels == [("published", False, 2.0, False, False), ("any", True, rate, False, False)]
    assert [effects for _, effects in searches] == [{"alternatives": False, "elasticities": False}] * 2
    assert (found.unmeasured is not None) == is_named


def test_a_plan_without_front_and_diagnostics_has_neither():
    bare = closed_plan(MODEL, NODES, WORK, engine="ideal", modes=(AGGREGATED,), chips=1, **SHORT, diagnostics=False)
    assert (bare.front, bare.binding, bare.runner_up, bare.ideal, bare.why) == ((), (), None, None, "")
    box = replace(NODES, domains=(NODES.domains[0],))
    assert closed_plan(MODEL, box, WORK, engine="ideal", modes=(AGGREGATED,), chips=4, **SHORT).chips == 4


# --- speculative tokens ----------------------------------------------------------------------------------------------------


def test_speculative_tokens_are_none_given_or_searched(monkeypatch):
    deepseek = replace(case(), model=st.load_model("deepseek-v3"))
    assert _choose_speculation(deepseek, BOTH, [], None, None) is deepseek
    given = _choose_speculation(deepseek, BOTH, [], 2, 1.7).speculation
    assert (given.drafts, given.acceptance, given.source) == (2, 1.7, "given")
    monkeypatch.setattr(planner, "best_drafting", lambda *_: Speculation(drafts=3, acceptance=2.0, source="x"))
    assert _choose_speculation(deepseek, BOTH, [], "auto", None).speculation.drafts == 3
    with pytest.raises(InputError, match="no layers that draft"):
        _choose_speculation(case(), BOTH, [], "auto", None)


def test_speculative_tokens_are_shown_at_powers_of_two_that_fit_and_at_the_batch():
    model, system = st.load_model("deepseek-v3"), st.load_system("hgx-h200")
    speculation = Speculation(drafts=1, acceptance=1.8, source="given")
    given = replace(case(8), model=model, system=system, speculation=speculation)
    candidate = Candidate(mode=AGGREGATED, layout=Layout(tp=2, dp=4, ep=8), batch=12, chunk=500)
    found = _drafted(given, candidate)
    fitting = [4 * 2**n for n in range(14)]
    state = {
        name: decode_pool(
            model,
            system,
            WORK,
            layout=candidate.layout,
            batch=np.array([*fitting, 12.0]),
            engine=given.engine,
            speculation=spec,
        )
        for name, spec in (("plain", NONE), ("drafted", speculation))
    }
    fits = [n for n, good in zip(fitting, state["drafted"].memory.fits, strict=False) if good]
    assert 0 < len(fits) < 14
    assert [row.batch for row in found] == sorted([*fits, 12])
    row, plain, drafted = found[2], float(state["plain"].tpot[-1]), float(state["drafted"].tpot[-1])
    assert (row.batch, row.tpot_without, row.tpot) == (12, plain, drafted)
    assert row.rate_without == pytest.approx(12 / plain / 8)
    assert row.rate == pytest.approx(12 / drafted / 8)
    assert row.speed_up == pytest.approx(plain / drafted)
    assert _drafted(replace(given, speculation=NONE), candidate) == ()
    too_large = replace(candidate, batch=4e6)
    assert _drafted(given, too_large)[-1].batch == 4e6


# --- choices of the user, levels and fleets by hand ------------------------------------------------------------------------


def test_choices_of_the_user_are_checked_and_kept_in_one_order():
    found = planner._pinned({"dp": 2, "tp": 4}, 1024, 64)
    assert (found.chunk, found.max_num_seqs, found.sizes) == (1024, 64, (("tp", 4), ("dp", 2)))
    assert planner._pinned(None, None, None) == Pinned()
    low, high = planner.OWN_CHUNKS
    for chunk in (low, high):
        assert planner._pinned(None, chunk, None).chunk == chunk
    for sizes, chunk, slots in (({"tp": 0}, None, None), (None, low - 1, None), (None, high + 1, None), (None, None, 0)):
        with pytest.raises(RangeError):
            planner._pinned(sizes, chunk, slots)
    assert planner._pinned(None, None, planner.MOST_SLOTS).max_num_seqs == planner.MOST_SLOTS
    with pytest.raises(RangeError):
        planner._pinned(None, None, planner.MOST_SLOTS + 1)
    with pytest.raises(UnknownName, match="parallel size"):
        planner._pinned({"zp": 2}, None, None)


def test_slots_beyond_the_engine_and_chunks_beyond_all_slots_are_refused():
    """A context of 1,000 tokens and 4 slots: a chunk of 4,000 tokens at most."""
    given = replace(case(), model=replace(MODEL, max_context=1000), pinned=Pinned(max_num_seqs=4))
    planner._check_lengths(given, 4000)
    planner._check_lengths(replace(given, pinned=Pinned()), 10**9)
    with pytest.raises(RangeError, match="at most 4,000 tokens"):
        planner._check_lengths(given, 4001)
    most = int(most_sequences("llama.cpp"))
    desk = replace(given, engine=replace(given.engine, name="llama.cpp"))
    planner._check_lengths(replace(desk, pinned=Pinned(max_num_seqs=most)), None)
    with pytest.raises(RangeError, match=f"llama.cpp serves at most {most}"):
        planner._check_lengths(replace(desk, pinned=Pinned(max_num_seqs=most + 1)), None)


def test_the_usual_level_of_targets_comes_before_the_widest():
    levels = tuple(st.Slo(ttft=ttft) for ttft in (9.0, 3.0, 1.0))
    assert [given.slo.ttft for given in planner._by_level(replace(case(), levels=levels))] == [3.0, 9.0]
    assert [given.slo.ttft for given in planner._by_level(replace(case(), levels=levels[:1]))] == [9.0]


def test_an_alternative_has_the_figures_of_its_saving(monkeypatch):
    """A fifth cheaper: four fifths of the cost, and five quarters of the output."""
    plan = made(requests_per_second=2.0, usd_per_million_output_tokens=10.0)
    monkeypatch.setattr(planner, "replace", lambda _, **changes: changes)
    found = planner._scaled_to(plan, SimpleNamespace(saving=0.2))
    assert found["usd_per_million_output_tokens"] == pytest.approx(8.0)
    assert found["tokens_per_second_per_chip"] == pytest.approx(2.0 * 201 / 4 / 0.8)


@pytest.mark.parametrize(
    ("batches", "slots", "mode", "names", "tpot", "limits"),
    [
        # Slots of the user or engine that are fewer than the candidate would have, and whose steps are fast enough.
        (9.0, 8, AGGREGATED, ("first token", "speed"), 0.01, ("slots", "speed")),
        (9.0, 8, AGGREGATED, ("prompt queue",), 0.01, ("slots",)),
        (9.0, 8, DISAGGREGATED, ("first token", "speed"), 0.01, ("first token", "slots")),
        (8.0, 8, AGGREGATED, ("first token",), 0.01, ("first token",)),
        (9.0, None, AGGREGATED, ("first token",), 0.01, ("first token",)),
        (9.0, 8, AGGREGATED, ("first token",), 0.021, ("first token",)),
        (9.0, 8, AGGREGATED, ("first token",), 0.02, ("slots",)),
    ],
)
def test_slots_are_a_limit_where_requests_wait_for_them(monkeypatch, batches, slots, mode, names, tpot, limits):
    given = replace(case(slo=st.Slo(tpot=0.02)), pinned=Pinned(max_num_seqs=slots))
    asked = []

    def state(problem, candidate, batch, chunk):
        asked.append((batch, chunk))
        return SimpleNamespace(max_num_seqs=batches, tpot=tpot)

    monkeypatch.setattr(planner, "evaluate_state", state)
    monkeypatch.setattr(planner, "binding", lambda *_: names)
    candidate = Candidate(mode=mode, layout=Layout(), batch=7, chunk=0)
    selection = SimpleNamespace(candidate=candidate, run=None, pools=(SimpleNamespace(max_num_seqs=8.0),))
    assert planner._limits_reached(given, given, candidate, selection) == limits
    assert asked == ([] if slots is None else [(7, 1)] if batches <= slots else [(7, 1), (8, 1)])
    ran = SimpleNamespace(candidate=candidate, run=SimpleNamespace(binding="memory"), pools=())
    assert planner._limits_reached(given, given, candidate, ran) == ("memory",)
    # More slots than the plan has change nothing.
    fewer = SimpleNamespace(candidate=candidate, run=None, pools=(SimpleNamespace(max_num_seqs=7.0),))
    assert planner._limits_reached(given, given, candidate, fewer) == names


def test_a_fleet_within_a_power_has_its_spares_and_says_what_is_too_little():
    """4 hosts of 4 chips at 1 kW; 2 replicas of 2 chips serve 3 requests/s each."""
    given = replace(case(), system=replace(NODES, power=Power(watts=1000.0, basis="given")))
    pool = replace(made().pools[0], layout=Layout(tp=2, replicas=2))
    plan = replace(made(requests_per_second=6.0), pools=(pool,), served=what_is_served(MODEL, NODES))

    def fleet(rate, spare, power):
        return planner._fleet(given, plan, rate, spare, power)

    largest = fleet(None, 1, 16_000.0)
    assert (largest.replicas, largest.spare, largest.rate, largest.power_cap) == (7, 1, pytest.approx(21.0), 16_000.0)
    asked = fleet(20.9, 1, 16_000.0)
    assert (asked.replicas, asked.rate) == (7, 20.9)
    with pytest.raises(Impossible, match=r"supply 8 replicas, which serve at most 21 requests/s of 21\.1"):
        fleet(21.1, 1, 16_000.0)
    with pytest.raises(Impossible, match="supply 8 replicas, all of them spare"):
        fleet(None, 8, 16_000.0)
    assert fleet(None, 7, 16_000.0).replicas == 1
    free = fleet(6.0, 0, math.inf)
    assert (free.replicas, math.isnan(free.power_cap)) == (2, True)
    # Separate pools are one unit: its 6 requests/s on 8 chips.
    both = replace(plan, pools=(pool, pool))
    assert (planner._fleet(given, both, 12.1, 0, math.inf).replicas, both.pools[0].chips) == (3, 4)
    assert planner._with_fleet(given, plan, None, 0, math.inf) is plan
    missed = planner._with_fleet(given, plan, 99.0, 0, 16_000.0)
    assert (missed.feasible, missed.fleet) == (False, None)


@pytest.mark.parametrize(
    ("evidence", "serves", "turns", "kind", "rate"),
    [
        ("measured", {"measured": 1.0, "published": 9.0}, ["measured"], "measured", 1.0),
        ("measured", {"published": 2.0}, ["measured", "published"], "published", 2.0),
        ("measured", {}, ["measured", "published", "any"], "any", 0.0),
        ("published", {"any": 3.0}, ["published", "any"], "any", 3.0),
        # Layouts of any kind are compared with usual ones, which count where they serve more.
        ("any", {"any": 3.0, "published": 2.0}, ["any", "published"], "any", 3.0),
        ("any", {"any": 3.0, "published": 3.0}, ["any", "published"], "any", 3.0),
        ("any", {"any": 3.0, "published": 4.0}, ["any", "published"], "any", 4.0),
        ("any", {"published": 4.0}, ["any", "published"], "any", 4.0),
    ],
)
def test_the_first_level_of_evidence_with_a_plan_counts(monkeypatch, evidence, serves, turns, kind, rate):
    asked = []

    def of_evidence(given, modes, price, **effects):
        asked.append((given.evidence, given.front))
        served = serves.get(given.evidence, 0.0)
        return replace(made(requests_per_second=served), feasible=served > 0, front=("front of", given.evidence))

    monkeypatch.setattr(planner, "_of_evidence", of_evidence)
    found, level = planner._with_most_evidence(replace(case(), engine=FITTED), evidence, BOTH, math.nan)
    assert ([one for one, _ in asked], level, found.requests_per_second) == (turns, kind, rate)
    # The front is that of all layouts, and drawn once.
    assert found.front == ("front of", turns[0] if evidence == "any" else kind)
    assert [front for _, front in asked] == [True] * (len(asked) - (evidence == "any")) + [False] * (evidence == "any")
    asked.clear()
    planner._with_most_evidence(replace(case(), engine=st.load_engine("ideal")), "measured", BOTH, math.nan)
    assert [one for one, _ in asked] == ["any"]
