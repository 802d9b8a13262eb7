"""Figures of plans and of their parts over drawn inputs, as recorded in tests/golden/recorded_plans.csv."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

import steptime as st
from steptime.physics.layout import Layout
from steptime.physics.layout_space import legal_table, pairs, replicas, stays_inside
from steptime.planning import (
    batch_grids,
    batch_queue,
    chunked_prefill,
    fleet_program,
    planner,
    session_hits,
    session_plan,
    slo_probability,
)
from steptime.planning.elasticity import binding
from steptime.planning.finalists import (
    Course,
    SimulatedPool,
    expected_figures,
    highest_met,
    list_finalists,
    neighbours,
    other_copies,
    other_divisions,
    other_pairs,
    other_readers,
    simulate_candidate,
    simulate_finalists,
    simulated_pools,
    sooner_readers,
    with_chunks_of,
)
from steptime.planning.fleet_program import FleetOption
from steptime.planning.model_fleet import FleetModel, FleetSystem, plan_fleet
from steptime.planning.plan_figures import Selection, plan_point
from steptime.planning.plan_intervals import list_distances
from steptime.planning.plan_problem import (
    AGGREGATED,
    DISAGGREGATED,
    Candidate,
    Pinned,
    PlanProblem,
    capped_occupancy,
    filled,
    queued,
)
from steptime.planning.plan_replay import replay
from steptime.planning.plan_search import fitting, search
from steptime.planning.planner import MODES, plan
from steptime.planning.prefill_pool import first_token, prefill_pool, within_limit
from steptime.planning.rate_curve import blend
from steptime.planning.refinement import best, refined
from steptime.planning.session_hits import flow_of_sessions
from steptime.planning.simulated_rate import Deployment, Loop, by_length, coarse_server, steady_requests
from steptime.planning.steady_state import aggregated, decode_pool, kv_transfer, load_shares, ttft_seen
from steptime.planning.step_explanation import explain_step, step_given
from steptime.workload.sessions import PRESETS
from steptime.workload.workload import Speculation
from tests.conftest import CHOICE_ALONE, engine, machine, sparse_matrix
from tests.planning.cases import MODEL, NODES, WHOLE, case, closed_plan
from tests.recorded import Recorded, spread

RECORDED = Recorded(Path(__file__).parents[1] / "golden" / "recorded_plans.csv")

# --- queues ----------------------------------------------------------------------------------------------------------------


@RECORDED("queues", (1, 2))
def queues(seed):
    at = spread(
        seed, 40, service=(1e-3, 3), used=(0.02, 1.2), servers=(1, 40), room=(1e-4, 9), growing=(0.01, 0.9), seats=(1, 90)
    )
    servers, seats = np.floor(at["servers"]), np.floor(at["seats"])
    return {
        "wait": batch_queue.queue_wait(at["service"], at["used"], servers),
        "share": batch_queue.queue_share(at["used"], servers),
        "filled": filled(at["service"], at["room"], seats),
        "queued": queued(at["used"] * seats, at["service"], seats, at["growing"], 1 + at["growing"]),
        "tail": batch_queue.upper_tail(np.linspace(-5, 5, 31)),
        "loads": load_shares(np.cumsum(at["service"]).reshape(4, 10), np.cumsum(np.floor(at["servers"])).reshape(4, 10)),
        "nobody": [batch_queue.arrivals(count)(at["used"] * 3) for count in (1, 3, 16, 40, np.floor(at["servers"]))],
    }


def pass_times(seed):
    at = spread(
        seed, 60, first=(1e-2, 2), slope=(1e-4, 0.2), kink=(1, 12), jump=(1e-3, 1), beyond=(1e-3, 0.3), bend=(2, 40),
        far=(0.01, 0.3), row=(0.01, 0.3), variance=(0.01, 4), seats=(1, 60), used=(0.03, 0.9), replicas=(1, 30), limit=(0.1, 9)
    )  # fmt: skip
    several = seed % 2 == 0
    time = batch_queue.PassTime(
        first=at["first"], slope_to_kink=at["slope"], kink=np.floor(at["kink"]), jump=at["jump"] * several, beyond=at["beyond"],
        bend=np.floor(at["kink"] + at["bend"]), far=at["far"], row_jump=at["row"] * (at["row"] > 0.01) * several,
        variance=at["variance"],
    )  # fmt: skip
    return time, at, np.floor(at["seats"]), np.floor(at["replicas"])


@RECORDED("passes", (1, 2))
def passes_of_servers(seed):
    time, at, seats, count = pass_times(seed)
    full = seats / time(seats)
    return {
        "seconds": [time(seats), time.slope(seats)],
        "passes": batch_queue.passes(at["used"] * full, time, seats, replicas=count),
        "one": batch_queue.passes(at["used"] * full, time, seats),
        "highest": batch_queue.highest_utilisation(at["limit"], time, seats, 0.95, late=at["slope"], replicas=count),
    }


@RECORDED("many passes")
def many_passes(_):
    time, at, seats, count = pass_times(3)
    wide = [column[:, None] for column in (at["limit"], seats, count)]
    spread = np.geomspace(0.3, 3, 5)
    wider = batch_queue.PassTime(**{name: getattr(time, name)[:, None] for name in time.__slots__})
    return batch_queue.highest_utilisation(wide[0] * spread, wider, wide[1], 0.9, replicas=wide[2])


@RECORDED("chunks", (1, 2))
def chunks(seed):
    at = spread(
        seed, 60, decode=(1e-3, 0.1), longer=(1.05, 40), chunks=(1, 20), slots=(1, 60), load=(0.01, 1.3), extra=(1e-4, 0.5)
    )
    slots, count = np.floor(at["slots"]), np.floor(at["chunks"])
    first = at["decode"] * at["longer"]
    return {
        "one": chunked_prefill.interleaved_prefill_share(slots, 100 * at["longer"], count, at["decode"], first, replicas=count),
        "steps": chunked_prefill.mixed_step_stats(
            at["load"] * slots, slots, count, at["decode"], first, first * at["extra"], replicas=np.floor(at["longer"])
        ),
    }


# --- states ----------------------------------------------------------------------------------------------------------------

CHAT = st.Workload(input_tokens=1700, output_tokens=230, cached_share=0.3, input_spread=1.3, output_spread=0.7)
EQUAL = st.Workload(input_tokens=6000, output_tokens=900, input_spread=0.0, output_spread=0.0)
STATES = {
    "dense": ("llama-3.1-70b", "hgx-h100", "vllm", CHAT, Speculation(drafts=0)),
    "sparse": ("deepseek-v3", "hgx-b200", "sglang", EQUAL, Speculation(drafts=2, acceptance=2.3)),
    "windows": ("openai/gpt-oss-20b", "mi300x-8", "typical", EQUAL, Speculation(drafts=0)),
}  # fmt: skip


@cache
def subject_of(name: str, **changes: Any) -> PlanProblem:
    model, system, runs_on, workload, speculation = STATES[name]
    limits = st.Slo(ttft=2.0, tpot=0.04)
    return PlanProblem(
        model=st.load_model(model), system=st.load_system(system), workload=workload, slo=limits, limits=limits, chips=8,
        engine=st.load_engine(runs_on), speculation=speculation, **changes,
    )  # fmt: skip


def some_layouts(case: PlanProblem, count: int) -> Layout:
    table = legal_table(case.model, case.system, case.chips, engine=case.engine)
    rows = np.random.default_rng(count).integers(0, len(table.tp), count)
    return Layout(**{name: np.asarray(getattr(table, name))[rows] for name in table.__slots__})


@RECORDED("states", STATES)
def states(name):
    case = subject_of(name)
    layout, random = some_layouts(case, 8), np.random.default_rng(5)
    batch, chunk = random.choice([1, 4, 24, 130, 600], 8), random.choice([64, 512, 2048, 9000], 8)
    subject, settings = (case.model, case.system, case.workload), case.settings
    both = [aggregated(*subject, layout=layout, batch=batch, chunk=chunk, quick=quick, **settings) for quick in (False, True)]
    alone = decode_pool(*subject, layout=layout, batch=batch, **case.settings)
    pool = prefill_pool(*subject, layout=layout, prompts=random.choice([1, 2, 5, 12], 8), **case.settings)
    sent = [kv_transfer(*subject, layout=layout, within_domain=near, drafts=case.speculation.drafts) for near in (True, False)]
    return {
        "whole": both[0], "quick": both[1], "decode": alone, "prefill": pool,
        "within": within_limit(pool, 1.5, layout.replicas).most_utilised,
        "first": first_token(pool, 0.7, layout.replicas),
        "sent": [(one, one.seconds(0.3), one.max_rate) for one in sent],
        "seats": capped_occupancy(case, both[0], batch, layout, 1.2),
        "seen": ttft_seen(case.workload, 0.4, both[0].tpot, layout, case.engine, case.speculation, batch),
    }  # fmt: skip


# --- searches --------------------------------------------------------------------------------------------------------------


@RECORDED("search", ("dense", "windows"))
def searches(name):
    case = subject_of(name)
    tables = search(case, MODES, fitting(case))
    found = list_finalists(case, tables, [case.slo])
    return {
        "tables": [(len(table), table.rate.sum(), table.tpot.sum(), np.nansum(1 / table.ttft)) for table in tables],
        "rows": [[getattr(table, name)[:: max(1, len(table) // 50)] for name in table.__slots__[2:]] for table in tables],
        "finalists": found,
        "expected": expected_figures(case, found),
        "pools": [simulated_pools(case, candidate) for candidate in found],
        "neighbours": [list(neighbours(case, candidate)) for candidate in found],
        "chunks": [list(with_chunks_of(case, candidate, found)) for candidate in found],
        "copies": [list(other_copies(case, candidate)) for candidate in found],
        "divisions": [list(other_divisions(case, candidate)) for candidate in found],
        "pairs": [list(other_pairs(case, candidate, found)) for candidate in found],
        "readers": [list(other_readers(case, candidate)) for candidate in found if candidate.prefill_layout is not None],
        "sooner": sooner_readers(case, found),
        "bounds": [(course.rate, course.ttft, course.tpot, course.bound) for course in (Course(case, one) for one in found)],
    }


# A search of four chips takes a tenth of a second.
PLANS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "whole": ((MODEL, NODES, CHAT, st.Slo(tpot=8e-3, ttft=1.0)), {"engine": "typical", "elasticities": True, **WHOLE}),
    "dense": (("llama-3.1-8b", "hgx-h100", CHAT, st.Slo(tpot=0.015, ttft=0.4)), {"chips": 2, "front": True, "sure": 0.9}),
    "drafts": (("XiaomiMiMo/MiMo-7B-Base", "l4-8", CHAT, st.Slo(tpot=0.08)), {"chips": 2, "drafts": 1, "rate": 9.0}),
    "pinned": (
        (MODEL, NODES, CHAT, st.Slo(tpot=0.05)), {"sizes": {"tp": 2}, "chunk": 700, "max_num_seqs": 90, "modes": (AGGREGATED,)}
    ),
    "desk": (
        ("llama-3.1-8b", "rtx-4090-8", CHAT, None),
        {"chips": 1, "engine": "llama.cpp", "electricity": 2e-8, "carbon": 300.0, "power_cap": 1e5}
    ),
    "missed": ((MODEL, NODES, CHAT, st.Slo(tpot=1e-3, ttft=0.05)), {"engine": "ideal"}),
    "apart": (
        (MODEL, NODES, CHAT, st.Slo(tpot=0.01, ttft=2.0)), {"modes": (DISAGGREGATED,), "engine": "vllm", "front": True}
    ),
    "two": (
        (MODEL, NODES, CHAT, st.Slo(tpot=0.02, ttft=1.0)),
        {"prefill_system": machine(size=4, bandwidth=1e12), "chips": 2, "prefill_chips": 4, "modes": (DISAGGREGATED,)},
    ),
}  # fmt: skip


@cache
def planned(name: str):
    subject, settings = PLANS[name]
    return closed_plan(*subject, **settings)


@RECORDED("plan", ("whole", "dense", "desk", "drafts"), thorough=True)
@RECORDED("plan", ("pinned", "missed", "apart", "two"))
def plans(name):
    answer = planned(name).to_dict()
    return {key: value for key, value in answer.items() if key != "search_s"}


# --- runs ------------------------------------------------------------------------------------------------------------------


def deployments() -> dict[str, Deployment]:
    serve = SimulatedPool(role="serve", layout=Layout(tp=2, replicas=2), batch=20, max_num_seqs=40, chunk=512)
    reader = SimulatedPool(role="prefill", layout=Layout(replicas=2), batch=2, max_num_seqs=2)
    decode = SimulatedPool(role="decode", layout=Layout(tp=2), batch=30, max_num_seqs=48, queued=True)
    wide = SimulatedPool(role="serve", layout=Layout(tp=2), batch=9000, max_num_seqs=12_000, chunk=2048)
    piped = SimulatedPool(role="serve", layout=Layout(pp=2, microbatches=2), batch=24, max_num_seqs=40, chunk=700)
    shared = {"model": MODEL, "system": NODES, "engine": engine(seconds_per_step=1e-4, steps_before_answer=1.0)}
    small = replace(CHAT, input_tokens=300, output_tokens=90)
    return {
        "one pool": Deployment(workload=CHAT, pools=(serve,), **shared),
        "two pools": Deployment(workload=CHAT, pools=(reader, decode), **shared),
        "drafts": Deployment(workload=small, pools=(serve,), speculation=Speculation(drafts=2, acceptance=1.8), **shared),
        "many": Deployment(workload=replace(small, output_tokens=400), pools=(wide,), **shared | {"system": machine(size=4)}),
        "pipeline": Deployment(workload=small, pools=(piped,), **shared),
    }


RATES = {"one pool": 60.0, "two pools": 25.0, "drafts": 200.0, "many": 9000.0, "pipeline": 90.0}


@RECORDED("run", RATES)
def run_of(name):
    deployment, rate = deployments()[name], RATES[name]
    loop = Loop(deployment, rate, 2.0, first=0.1, seed=4)
    tpot = loop.expected_tpot(rate, 0.2)
    factors = ((0.6, "p90"), (1.0, "mean"), (4.0, "p99"))[: 2 if name == "pipeline" else 3]
    runs = [loop.run(factor * rate, st.Slo(ttft=1.0, tpot=0.05), percentile, tpot, 0.1) for factor, percentile in factors]
    return {
        "sizes": (loop.count, loop.parts, loop.share, loop.read_share, loop.lifetime, loop.server.replicas, loop.server.policy),
        "tpot": tpot, "low": runs[0], "usual": runs[1], "high": runs[-1],
        "quiet": [loop.quiet_ttft(percentile) for percentile in ("mean", "p50", "p99")],
        "coarse": coarse_server(loop.whole_server, 3, 20.0, 700.0).pace.decode[:9],
        "blend": blend(runs[0], runs[1], 0.3, 0.7 * rate),
    }  # fmt: skip


# --- fleets, sessions and words --------------------------------------------------------------------------------------------


@RECORDED("fleet", (3,), thorough=True)
def fleets(seed):
    random = np.random.default_rng(seed)
    options = [
        FleetOption(
            model=m, system=s, chips=chips, rate=chips * float(random.uniform(0.5, 2)),
            usd_per_hour=chips * float(random.uniform(1, 3)),
        )
        for m in range(2) for s in range(2) for chips in (1, 2, 4)
    ]  # fmt: skip
    chips, rents = [12, 9], [2.0, 1.3]
    day = random.uniform(0, 6, (2, 3))
    return {
        "now": fleet_program.solve_fleet(options, [5.0, 3.0], chips),
        "day": fleet_program.solve_day(options, day, chips, rents),
        "demand": fleet_program.solve_day(options, day, chips, rents, [3.1, math.inf]),
        "possible": fleet_program.possible_share(options, [15.0, 18.0], chips),
        "unserved": fleet_program.unserved_shares(options, [15.0, 18.0], chips),
        "more": fleet_program.additional_chips(options, [15.0, 18.0], chips, rents),
    }


@RECORDED("sessions", PRESETS, thorough=True)
def sessions_held(name):
    sessions = PRESETS[name]
    flow = flow_of_sessions(sessions, rate=0.7, answer=9.0, answer_spread=0.8, longest=131_072.0)
    return {
        "used": session_hits.tokens_used_within(np.geomspace(0.1, 1e4, 9), flow),
        "hits": session_hits.find_hits([3e4, 4e5, 5e6, math.inf], flow),
        "ratios": [session_plan.history_ratio(sessions, 131_072.0, percentile) for percentile in ("mean", "p50", "p95")],
        "square": session_plan.history_square_ratio(sessions, 131_072.0),
        "cache": session_plan.evaluate_cache(
            planned("dense"), sessions, (st.load_system("hgx-h100").chip.hbm, *st.load_system("hgx-h100").tiers), None,
            model=st.load_model("llama-3.1-8b"),
        ),
    }  # fmt: skip


@RECORDED("places")
def places(_):
    sizes = [(8, 32, 3, 2), (8, 36, 12, 5), (8, 40, 6, 16), (8, 64, 16, 12), (72, 300, 10, 20), (4, 400, 3, 1), (4, 30, 8, 4)]
    return {
        "pairs": [pairs(*size) for size in sizes],
        "replicas": [replicas(domain, chips, first) for domain, chips, first, _ in sizes],
        "inside": [stays_inside(domain, (first, 2), (second, 4)) for domain, _, first, second in sizes],
        "grids": [
            batch_grids.batches(900.0), batch_grids.batches(900.0, 1), batch_grids.batches_around(77.0, 6),
            batch_grids.with_less(np.array([5, 40, 700]), 4), batch_grids.spacing(np.array([3, 50, 9000])),
            batch_grids.nearby_batches(np.array([[8], [300]]), np.array([[2], [6]])),
            batch_grids.closer_batches(np.array([[8], [300]]), np.array([[2], [6]])),
        ],
    }  # fmt: skip


# --- plans whose finalists serve drawn requests ----------------------------------------------------------------------------

SHORT = st.Workload(input_tokens=1000, output_tokens=61, input_spread=0.5)
READER = machine(size=4, bandwidth=1e12, capacity=11e9, up=1e11, out=1e10, latency=1e-6)
QUICK: dict[str, tuple[st.Workload, st.Slo, dict[str, Any]]] = {
    "mean": (SHORT, st.Slo(tpot=8e-3, ttft=0.5), {"percentile": "mean"}),
    "late": (CHAT, st.Slo(tpot=8e-3, ttft=0.15), {"modes": (AGGREGATED,), "percentile": "p99"}),
    "apart": (SHORT, st.Slo(tpot=6e-3, ttft=1.0), {"modes": (DISAGGREGATED,), "percentile": "p95"}),
    "typical": (EQUAL, st.Slo(tpot=0.05), {"engine": "typical", "rate": 3.0, "spare": 1}),
    "sure": (SHORT, st.Slo(tpot=0.02, ttft=1.0), {"engine": "vllm", "sure": 0.8, "chips": 2}),
    "two": (SHORT, st.Slo(tpot=0.01, ttft=1.0), {"prefill_system": READER, "prefill_chips": 4, "chips": 2}),
    "slots": (SHORT, st.Slo(tpot=0.02, ttft=1.0), {"max_num_seqs": 12, "chunk": 500}),
    "missed": (CHAT, st.Slo(tpot=0.02, ttft=0.01), {}),
    "slow": (CHAT, st.Slo(tpot=0.5e-3), {}),
}  # fmt: skip


@RECORDED("quick plan", ("apart", "two", "typical", "sure", "slots", "missed"), thorough=True)
@RECORDED("quick plan", ("mean", "late", "slow"))
def quick_plans(name):
    workload, limits, settings = QUICK[name]
    found = plan(
        MODEL, NODES, workload, limits, **{"engine": "ideal", "quick": True, "evidence": "any"} | CHOICE_ALONE | settings
    )
    return {key: value for key, value in found.to_dict().items() if key != "search_s"}


@RECORDED("finalists", (0.3, math.inf), thorough=True)
def finalists(ttft):
    """Candidates whose neighbours are tried too."""
    limits = st.Slo(ttft=ttft, tpot=8e-3)
    problem = replace(case(), slo=limits, limits=limits, percentile="p90", workload=SHORT)
    several = [
        Candidate(mode=AGGREGATED, layout=Layout(tp=2, replicas=2), batch=16, chunk=512),
        Candidate(mode=AGGREGATED, layout=Layout(tp=4), batch=64, chunk=2048),
        Candidate(mode=DISAGGREGATED, layout=Layout(replicas=2), batch=40, prefill_layout=Layout(replicas=2), prompts=2),
    ]  # fmt: skip
    found = [(one.run, one.pools, one.candidate) for one in simulate_finalists(replace(problem, rough=True), several)]
    return {
        "found": found, "met": highest_met(problem, several),
        "binding": [len(words) for words in (binding(problem, candidate) for candidate in several)],
        "alone": [simulate_candidate(problem, candidate, 0.0) for candidate in several],
        "refined": [refined(problem, candidate) for candidate in several],
        "chosen": [(peak.candidate, peak.rate) for peak in best(problem, several)],
    }  # fmt: skip


@RECORDED("models", (100.0, 0.5), thorough=True)
def fleets_of_models(budget):
    """Two models by the hour on two systems."""
    models = [
        FleetModel(name="a", rate=50.0, rates=(50.0, 400.0, 20.0), workload=SHORT, slo=st.Slo(tpot=0.02), loaded=MODEL),
        FleetModel(name="b", rate=90.0, rates=(90.0, 30.0, 200.0), workload=CHAT, slo=st.Slo(ttft=3.0), loaded=MODEL),
    ]
    systems = [
        FleetSystem(name="x", chips=6, usd_per_chip_hour=2.0, on_demand=3.5, engine="typical", loaded=NODES),
        FleetSystem(name="y", chips=4, usd_per_chip_hour=1.1, engine="vllm", loaded=READER),
    ]
    with patch.object(planner, "find_spec", return_value=None):
        found = plan_fleet(models, systems, budget)
        once = plan_fleet([replace(model, rates=()) for model in models], systems, budget)
    timed = {"plan_seconds": 0.0, "solve_seconds": 0.0, "models": (), "systems": ()}
    return {"day": replace(found, **timed), "once": replace(once, **timed)}


@RECORDED("turns", ("chat", "agent"), thorough=True)
def plans_of_sessions(name):
    with patch.object(planner, "find_spec", return_value=None):
        found = session_plan.plan_sessions(
            "llama-3.1-8b", "hgx-h100", name, st.Slo(tpot=0.03, ttft=1.5), chips=1, modes=(AGGREGATED,), evidence="any",
            percentile="mean", **CHOICE_ALONE,
        )  # fmt: skip
    return {key: value for key, value in found.to_dict().items() if key != "search_s"}


@RECORDED("lines", ("dense", "pinned"), thorough=True)
def lines(name):
    """Every line of the steps of a plan."""
    found = planned(name)
    subject = (MODEL, NODES) if name == "pinned" else (st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"))
    runs_on = st.load_engine(found.engine)
    return {
        f"{n} {mixed}": explain_step(
            *subject, sizes=step_given(pool, found.workload, mixed=mixed), layout=pool.layout, engine=runs_on
        )
        for n, pool in enumerate(found.pools) for mixed in (False, True) if pool.mixed is not None or not mixed
    }  # fmt: skip


# --- parts with several ranks, stages, domains and hosts -------------------------------------------------------------------

SPARSE = sparse_matrix(kv_bytes=1e4, active=2)
WIDE = machine(size=8, capacity=11e9, up=1e11, out=1e10, latency=1e-6, out_latency=5e-6)


@RECORDED("ranks", ("symmetric", "slots"), thorough=True)
@RECORDED("ranks", ("one domain",))
def ranks(name):
    """What is tried around candidates of experts with several ranks, stages and fractional batches."""
    limits = st.Slo(ttft=1.0, tpot=0.02)
    changes = {
        "one domain": {"system": WIDE, "chips": 8}, "symmetric": {"chips": 12, "symmetric_domains": True},
        "slots": {"system": WIDE, "chips": 8, "pinned": Pinned(max_num_seqs=33, chunk=600), "sure": 0.9},
    }[name]  # fmt: skip
    settings = {"model": SPARSE, "workload": CHAT, "slo": limits, "limits": limits, "engine": st.load_engine("typical")}
    problem = replace(case(), **settings | changes)
    several = [
        Candidate(mode=AGGREGATED, layout=Layout(dp=4, ep=4, replicas=2), batch=37.5, chunk=700),
        Candidate(mode=AGGREGATED, layout=Layout(dp=2, ep=2, pp=2, microbatches=2), batch=26, chunk=256),
        Candidate(
            mode=DISAGGREGATED, layout=Layout(dp=2, ep=2, replicas=2), batch=90.5,
            prefill_layout=Layout(dp=2, ep=2, replicas=2), prompts=3,
        ),
        Candidate(
            mode=DISAGGREGATED, layout=Layout(tp=2), batch=7000.5, prefill_layout=Layout(pp=2, microbatches=4), prompts=6,
        ),
    ]  # fmt: skip
    apart = several[2:]
    return {
        "expected": expected_figures(problem, several), "pools": [simulated_pools(problem, one) for one in several],
        "binding": [binding(problem, one) for one in several], "refined": [refined(problem, one) for one in several],
        "neighbours": [list(neighbours(problem, one)) for one in several],
        "copies": [list(other_copies(problem, one)) for one in several],
        "divisions": [list(other_divisions(problem, one)) for one in several],
        "pairs": [list(other_pairs(problem, one, several)) for one in apart],
        "readers": [list(other_readers(problem, one)) for one in apart], "sooner": sooner_readers(problem, several),
        "bounds": [(one.rate, one.ttft, one.tpot, one.bound, one.limits) for one in (Course(problem, two) for two in several)],
        "figures": [plan_point(problem, Selection(one, None)) for one in several[:1]] if "pinned" not in changes else 0,
        "shares": [list_distances(problem, one) for one in several],
    }  # fmt: skip


@RECORDED("limits")
def limits_of_percentiles(_):
    asked, ends = st.Slo(ttft=1.5, tpot=0.03), (0.7, 1.9)
    return {
        "ratio": [slo_probability.percentile_ratio(CHAT, percentile) for percentile in ("mean", "p50", "p90", "p95", "p99")],
        "levels": [
            slo_probability.target_levels(workload, asked, percentile, simulated=is_simulated)
            for workload in (CHAT, EQUAL) for percentile in ("mean", "p90") for is_simulated in (False, True)
        ],
        "points": [slo_probability.point(1.1, limits, sure) for limits in (ends, None) for sure in (0.5, 0.8, 0.99)],
        "likely": [slo_probability.likelihood(1.1, limits, limit) for limits in (ends, None) for limit in (0.8, 1.1, 2.5)],
    }  # fmt: skip


@RECORDED("order")
def order_of_queues(_):
    """Requests at the start of a run, in the order of their queues, for replicas of several ranks."""
    present = steady_requests(CHAT, 4000, 9000.0, 3)
    server = SimpleNamespace(replicas=4, pace=SimpleNamespace(before_token=1e-6, groups=3))
    return by_length(present, server).inputs[::50]


@RECORDED("pair", ("small", "large"), thorough=True)
def pairs_of_systems(name):
    """Hosts of a prefill pool on another system, and what each system costs alone."""
    few = replace(READER, rack={"host_chips": 2})
    chips = {"small": 2, "large": 12}[name]
    limits = st.Slo(tpot=0.01, ttft=2.0)
    found = closed_plan(MODEL, NODES, CHAT, limits, chips=chips, prefill_system=few, diagnostics=True)
    likely = planner.likely_prefill(MODEL, NODES, few, CHAT, limits, chips=chips, evidence="any")
    return {"likely": likely} | {key: value for key, value in found.to_dict().items() if key != "search_s"}


@RECORDED("replay", ("pinned", "apart"), thorough=True)
def replays(name):
    """Requests served with a plan."""
    found = planned(name)
    answer = replay(found, model=MODEL, system=NODES, engine=found.engine, seed=2, requests=600)
    return {key: value for key, value in answer.to_dict().items() if not key.endswith("_s") or key == "rate_s"}


test_figures_are_as_recorded = RECORDED.test()
