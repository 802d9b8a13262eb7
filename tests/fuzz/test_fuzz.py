"""10^5 odd inputs: each is refused with InputError or answered, in time and without a warning."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import steptime as st
from steptime.errors import InputError
from tests.fuzz import inputs
from tests.fuzz.commands import command
from tests.fuzz.damage import in_time

COUNTS: dict[Any, int] = {
    inputs.config: 24_000, inputs.config_file: 6_000, inputs.chip_file: 8_000, inputs.system_file: 9_000,
    inputs.rents_file: 3_000, inputs.engine_file: 5_000, inputs.runs_file: 6_000, inputs.trace_file: 8_000,
    inputs.result_file: 4_000, inputs.what_if: 9_000, inputs.figure: 4_000, inputs.unit_text: 6_000, inputs.step: 4_000,
    inputs.workload: 1_500, inputs.policy: 2_500, inputs.traffic: 2_200, command: 2_000, inputs.plan: 450,
    inputs.simulation: 600, inputs.question: 3_000,
}  # fmt: skip
LONGEST = 2500  # characters of a message: lists of all families are long
TRIED: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the simulator before any clock runs: the first time in a new environment that takes longer than an input may."""
    st.simulate("llama-3.1-8b", "hgx-h100", st.open_loop(1.0, 10, st.Lengths(mean=100), st.Lengths(mean=10)))


def tried(kind: inputs.Try, number: int, folder: Path) -> None:
    """Try one input, which its number alone decides; a fault tells kind and number."""
    name = kind.__name__
    TRIED[name] += 1
    try:
        with in_time():
            kind(random.Random(f"{name} {number}"), folder)
    except InputError as error:
        REFUSED[name] += 1
        if len(str(error)) > LONGEST:
            raise AssertionError(f"{name} {number}: a message of {len(str(error))} characters") from error
    except BaseException as error:
        raise AssertionError(f"{name} {number}: {error!r:.500}") from error


def test_there_are_enough_inputs() -> None:
    assert sum(COUNTS.values()) >= 100_000
    assert COUNTS[inputs.plan] + COUNTS[inputs.simulation] <= 2_000


KINDS = list(COUNTS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_few_odd_inputs(kind: inputs.Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(max(1, COUNTS[kind] // 1000)):
        tried(kind, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_odd_inputs_are_refused_or_answered(kind: inputs.Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(COUNTS[kind]):
        tried(kind, number, tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _counts(request: pytest.FixtureRequest) -> Any:
    """Print how many inputs of each kind were tried and how many of them were refused."""
    yield
    lines = [f"{name:12} {count:7,} tried, {REFUSED[name]:7,} refused" for name, count in TRIED.items()]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *lines, f"{'in all':12} {sum(TRIED.values()):7,} tried, {sum(REFUSED.values()):7,} refused", sep="\n")
