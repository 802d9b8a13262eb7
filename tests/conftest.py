"""Machines and models that tests share."""

from __future__ import annotations

import gc
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Workers share the cores: BLAS threads of each would wait for one another, in ten times the processor time of one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import steptime as st
from steptime.cli import output
from steptime.hardware.number_formats import number_format
from steptime.hardware.system import Chip, Domain, Link, MemoryTier, Rent, System
from steptime.models.model import Attention, Layer, Model, Op
from steptime.physics.engine import IDEAL, Engine, with_constants
from steptime.planning import planner

# Thousands of collected tests live to the end: searching them for garbage takes a third of the collection's time.
gc.set_threshold(100_000, 50, 50)

# What Python and pytest compile is kept: without it, each worker takes 6 s more, and each process that a test starts 0.1 s.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

os.environ["STEPTIME_CATALOG"] = str(Path(__file__).parent / "golden")  # holds no data files: a home folder changes no test

# The simulator compiles in 10 s at this level, in 16 s at numba's own (`NUMBA_OPT=3`), to the same figures.
LEVEL = os.environ.setdefault("NUMBA_OPT", "1")
COMPILED = Path(os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / f"numba-{LEVEL}")))

output.SOON = 600.0  # a slow machine is no reason for another answer

# Ten examples a law in the everyday suite, forty in the slow stage of .ci/run; `EXAMPLES=400 pytest` looks closer.
USUAL_EXAMPLES = 40
EXAMPLES = int(os.environ.get("EXAMPLES", "10"))
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES
)
settings.load_profile("steady")


if EXAMPLES < USUAL_EXAMPLES:
    with suppress(ImportError):
        from hypothesis.internal.conjecture import providers

        # Now and then a law is tried on constants of the code. To read them from 700 modules takes 4 s of each worker.
        providers._get_local_constants = lambda: providers._local_constants


def examples(count: int) -> settings:
    """Draw as many examples of a law where others have forty, and fewer or more as `EXAMPLES` has it."""
    return settings(max_examples=max(1, count * EXAMPLES // USUAL_EXAMPLES))


# The selection of pyproject.toml, and the marks that it leaves out.
EVERYDAY, LEFT_OUT = "not slow and not thorough", {"slow", "thorough"}
RUN = {"everyday": False}


def pytest_configure(config: pytest.Config) -> None:
    """Note whether a run leaves out what the slow stage checks: then those tests, two in five, are not even made."""
    RUN["everyday"] = config.option.markexpr == EVERYDAY and not any("::" in name for name in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: Any) -> list[pytest.Item] | None:
    """Make no tests of functions and modules that the everyday suite leaves out."""
    if not RUN["everyday"] or not name.startswith("test_"):
        return None
    of_module = getattr(collector.module, "pytestmark", [])
    marks = [*getattr(obj, "pytestmark", []), *(of_module if isinstance(of_module, list) else [of_module])]
    return [] if LEFT_OUT & {mark.name for mark in marks} else None


def pytest_collection(session: pytest.Session) -> None:
    """Let each worker of a whole run import its share of the tests first: the other workers find them compiled."""
    worker = getattr(session.config, "workerinput", None)
    here = Path(__file__).parent
    if worker is None or [Path(name).resolve() for name in session.config.args] != [here]:
        return
    share, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(here.rglob("test_*.py"))[share::workers]:
        # What is wrong with a file is reported where it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(here.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Let one process of a run compile the simulator; the others wait, and load what it compiled."""
    # What is collected lives to the end: the last collections of garbage pass it over.
    gc.freeze()
    loop = sys.modules.get("steptime.simulation.event_loop")
    if loop is None or sys.platform == "win32":
        return
    import fcntl

    compile_for = loop.serve.compile

    def compile_alone(signature: Any) -> Any:
        COMPILED.mkdir(parents=True, exist_ok=True)
        with (COMPILED / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_for(signature)

    loop.serve.compile = compile_alone


def each(names: str, rows: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Check one law over many rows in one test: `parametrize` takes 2 ms a row. A failure names all rows that break it."""
    keys = [name.strip() for name in names.split(",")]

    def merge(law: Callable[..., None]) -> Callable[..., None]:
        @wraps(law)
        def check(**fixtures: Any) -> None:
            broken, skips = [], []
            for row in rows:
                try:
                    law(**dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)), **fixtures)
                except pytest.skip.Exception as skip:
                    skips.append(skip)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{names} = {row!r:.300}")
                    broken.append(error)
            if broken:
                raise BaseExceptionGroup(f"{len(broken)} of {len(rows)} rows", broken)
            if skips and len(skips) == len(rows):
                raise skips[0]

        signature = inspect.signature(law)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        check.__signature__ = signature.replace(parameters=fixtures)
        return check

    return merge


def every(step: int, rows: Iterable[Any]) -> list[Any]:
    """Return the rows of a law: every `step`-th one is checked every day, the others in the slow stage of .ci/run."""
    further = pytest.mark.thorough
    return [
        row if n % step == 0 else pytest.param(*row if isinstance(row, tuple) else (row,), marks=further)
        for n, row in enumerate(rows)
    ]


RENT = Rent(low=2 / 3600, typical=2 / 3600, high=2 / 3600)


def machine(
    *,
    flops=2e15,
    bandwidth=4e12,
    capacity=1e14,
    size=8,
    up=1e30,
    out=1e30,
    latency=0.0,
    out_latency=None,
    topology="switch",
    reached=None,
    vendor="",
) -> System:
    """A chip with one peak rate on a switch; by default the network is free and memory without end."""
    memory = (MemoryTier(name="hbm", capacity=capacity, bandwidth=bandwidth),)
    outside = Link(bandwidth=out, latency=latency if out_latency is None else out_latency)
    return System(
        name="toy",
        chip=Chip(name="toy", vendor=vendor, peak={"bf16": flops, "fp8": flops}, memory=memory, reached=reached or {}),
        chips=size,
        domains=(
            Domain(name="up", kind="scale-up", size=size, link=Link(bandwidth=up, latency=latency, topology=topology)),
            Domain(name="out", kind="scale-out", size=math.inf, link=outside),
        ),
        rent=RENT,
    )  # fmt: skip


def engine(*, title="", source=None, fit=None, **constants) -> Engine:
    """An engine that differs from the ideal one in the constants named."""
    return with_constants(replace(IDEAL, name="test", title=title, source=source or {}, fit=fit or {}), constants)


def matrix(*, name="matrix", weights=1e9, term="feed-forward", stored="fp8", flops_per_weight=2.0, **more) -> Op:
    """A matrix: by default of 1e9 weights in 8 bits, with two FLOPs a row for each."""
    return Op(
        name=name, term=term, weights=weights, flops_per_row=flops_per_weight * weights, format=number_format(stored), **more
    )


def experts(*, weights=1e8, count=64, active=8, **more) -> Op:
    """Routed experts of one matrix each."""
    return matrix(
        name="experts", term="experts", weights=weights, rows="routed", split="experts", experts=count, active=active, **more
    )


def model_of(*ops, attention=(), layers=10, stem=(), draft=(), width=1000, heads=64) -> Model:
    """A model of one kind of layer."""
    return Model(
        name="toy",
        layers=((Layer(name="layer", ops=ops, attention=attention), layers),),
        stem=stem,
        draft=draft,
        width=width,
        vocabulary=1,
        heads=heads,
    )


def one_matrix(*, weights=1e9, layers=10, kv_bytes=1000.0, kv_flops=0.0, heads=64) -> Model:
    """A model of one kind of layer with one matrix and a cache: what the lecture's blackboard assumes."""
    op = Op(name="matrix", term="feed-forward", weights=weights, flops_per_row=2 * weights, format=number_format("fp8"))
    cache = Attention(
        name="attention",
        kv_bytes=kv_bytes,
        kv_shards=heads,
        flops_per_pair_decode=kv_flops,
        flops_per_pair_prefill=kv_flops,
        heads=heads,
    )
    return Model(
        name="one matrix",
        layers=((Layer(name="layer", ops=(op,), attention=(cache,)), layers),),
        width=1000,
        vocabulary=1,
        heads=heads,
    )


def sparse_matrix(*, weights=1e8, experts=64, active=8, layers=10, kv_bytes=100.0) -> Model:
    """A model of nothing but routed experts and a cache."""
    op = Op(
        name="experts", term="experts", weights=weights, flops_per_row=2 * weights, format=number_format("fp8"), rows="routed",
        split="experts", experts=experts, active=active,
    )  # fmt: skip
    cache = Attention(name="attention", kv_bytes=kv_bytes, kv_shards=1, heads=64)
    return Model(
        name="experts",
        layers=((Layer(name="layer", ops=(op,), attention=(cache,)), layers),),
        width=1000,
        vocabulary=1,
        heads=64,
    )


@pytest.fixture
def closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan by closed forms, as without numba: for tests of what is done with plans, in a tenth of the time."""
    monkeypatch.setattr(planner, "find_spec", lambda name: None)


@pytest.fixture(params=["closed forms", pytest.param("simulated", marks=pytest.mark.thorough)])
def both_forms(request: pytest.FixtureRequest) -> None:
    """Plan by closed forms, and in the slow stage with simulated finalists too: for laws that hold in any plan."""
    if request.param == "closed forms":
        request.getfixturevalue("closed_forms")


# What a test leaves out that reads the choice of a plan alone: without these, it takes a third of the time.
CHOICE_ALONE = {"alternatives": False, "elasticities": False, "front": False, "diagnostics": False}


@pytest.fixture(scope="session")
def deepseek() -> Model:
    return st.load_model("deepseek-ai/DeepSeek-V3")


@pytest.fixture(scope="session")
def rack() -> System:
    return st.load_system("gb200-nvl72")
