"""A sweep says at each point what the question alone says there."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import steptime as st
from steptime.errors import DataFileError, InputError, RangeError, UnknownName
from steptime.sweeps import point_grid
from steptime.sweeps.axes import duration
from steptime.sweeps.sweep import sweep
from tests.conftest import examples

ON = {"model": "llama-3.1-8b", "system": "hgx-h100"}


def test_a_grid_of_steps_is_each_step():
    found = sweep("step", {"batch": [1, 8, 64], "tp": [1, 2], "chip.hbm.bandwidth": [2e12, 4e12]}, **ON, context=2048)
    for i, batch in enumerate([1, 8, 64]):
        for j, tp in enumerate([1, 2]):
            for k, bandwidth in enumerate([2e12, 4e12]):
                system = st.vary(st.load_system("hgx-h100"), {"chip.hbm.bandwidth": bandwidth})
                alone = {"batch": batch, "context": 2048, "layout": st.Layout(tp=tp)}
                step = st.decode_step("llama-3.1-8b", system, **alone)
                assert found.answers["time"].values[i, j, k] == pytest.approx(float(step.total), rel=1e-12)
                low, _ = st.step_range("llama-3.1-8b", system, **alone)
                assert found.answers["time_low"].values[i, j, k] == pytest.approx(float(low), rel=1e-12)
                cost = system.rent.typical * tp * float(step.total) / batch * 1e6
                assert found.answers["usd_per_million_tokens"].values[i, j, k] == pytest.approx(cost, rel=1e-12)


def test_prefill_counts_what_is_read():
    found = sweep("step", {"tokens": [512, 4096]}, **ON, phase="prefill")
    step = st.prefill_step("llama-3.1-8b", "hgx-h100", tokens=4096)
    assert found.answers["time"].values[1] == pytest.approx(float(step.total), rel=1e-12)
    assert found.answers["tokens_per_second_per_chip"].values[1] == pytest.approx(4096 / float(step.total), rel=1e-12)
    with pytest.raises(InputError, match=r"batch: .*phase prefill"):
        sweep("step", {"batch": [1, 2]}, **ON, phase="prefill")


@examples(10)
@given(block=some.integers(1, 40), batches=some.integers(1, 9), contexts=some.integers(1, 7))
def test_blocks_are_the_whole(block, batches, contexts):
    axes = {"batch": list(range(1, batches + 1)), "context": [1000 * n for n in range(1, contexts + 1)]}
    whole = sweep("step", axes, **ON)
    before, point_grid.GRID = point_grid.GRID, block
    try:
        parts = sweep("step", axes, **ON)
    finally:
        point_grid.GRID = before
    assert np.array_equal(whole.answers["time"].values, parts.answers["time"].values)


def test_axes_that_go_together_are_rows_of_points():
    batch, ways = np.array([4, 64, 256]), np.array([1, 2, 8])
    found = st.sweep("step", {"batch": batch, "tp": ways}, together=True, **ON)
    every = st.sweep("step", {"batch": batch, "tp": ways}, **ON)
    assert found.shape == (3,)
    assert found.answers["time"].values == pytest.approx(np.diag(every.answers["time"].values), rel=1e-12)
    with pytest.raises(RangeError, match="batch 3, tp 2"):
        sweep("step", {"batch": batch, "tp": [1, 2]}, together=True, **ON)


def test_long_axes_that_advance_together_are_not_multiplied():
    """10,000 points: all combinations would be 100 million, more than fit in memory."""
    values = np.linspace(1e12, 2e12, 10_000)
    found = sweep("blackboard.drain_seconds", {"bandwidth": values, "capacity": values}, together=True)
    assert found.answers["drain_seconds"].values == pytest.approx(np.ones(10_000))
    with pytest.raises(RangeError, match="100,000,000 points"):
        sweep("blackboard.drain_seconds", {"bandwidth": values, "capacity": values})


@pytest.mark.slow
def test_a_plan_is_that_plan_and_what_nothing_meets_has_a_reason():
    found = sweep(st.plan, {"speed": [40, 4000]}, **ON, input=512, output=128, ttft=1, chips=2)
    alone = st.plan(
        "llama-3.1-8b", "hgx-h100", st.Workload(input_tokens=512, output_tokens=128), st.Slo(tpot=1 / 40, ttft=1), chips=2
    )
    assert found.answers["usd_per_million_output_tokens"].values[0] == alone.usd_per_million_output_tokens
    assert found.answers["layout_text"].values[0] == alone.layout_text
    assert math.isnan(found.answers["usd_per_million_output_tokens"].values[1])
    assert "reaches 4,000" in found.reasons[1]
    assert found.columns()["reason"][1] == found.reasons[1]


def test_names_are_axes_and_models_that_are_loaded_too():
    model = st.load_model("llama-3.1-8b")
    found = sweep("step", {"system": ["hgx-h100", "hgx-b200"], "model": [model, "qwen3-32b"]}, batch=8)
    assert found.shape == (2, 2)
    assert found.columns()["model"].tolist()[:2] == ["llama-3.1-8b", "qwen3-32b"] or found.axes[1].labels[0] == model.name
    step = st.decode_step("qwen3-32b", "hgx-b200", batch=8, context=4096)
    assert found.answers["time"].values[1, 1] == pytest.approx(float(step.total), rel=1e-12)


def test_a_simulation_is_that_simulation():
    found = sweep("simulate", {"rate": [5.0], "seed": [1, 2]}, **ON, requests=300, input=256, output=32)
    lengths = (st.Lengths(mean=mean, shape="lognormal", spread=1.0) for mean in (256, 32))
    traffic = st.open_loop(5.0, 300, *lengths, seed=2)
    alone = st.simulate("llama-3.1-8b", "hgx-h100", traffic)
    assert found.answers["tpot_mean"].values[0, 1] == pytest.approx(alone.answers.tpot.mean, rel=1e-9)
    assert found.answers["verdict"].values[0, 1] == alone.answers.verdict


def test_an_illegal_layout_has_a_reason_and_the_others_an_answer():
    found = sweep("step", {"tp": [1, 3, 8], "batch": [1, 64]}, model="llama-3.1-8b", system="hgx-h100")
    legal = np.isfinite(found.answers["time"].values)
    assert legal[[0, 2]].all()
    assert set(found.reasons) == set(np.flatnonzero(~legal))


def test_part_of_a_block_may_be_refused():
    def root(x):
        if np.any(np.asarray(x) < 0):
            raise InputError("no root of a negative number")
        return np.sqrt(x)

    found = sweep(root, {"x": np.linspace(-3, 5, 33)}, vectorised=True)
    values = found.answers["root"].values
    assert np.isnan(values[:12]).all()
    assert values[12:] == pytest.approx(np.sqrt(np.linspace(0, 5, 21)))
    assert found.refused_because == {"no root of a negative number": 12}


def test_what_is_wrong_for_every_point_is_an_error():
    with pytest.raises(InputError, match=r"every point is refused; the first reason: batch.* at least 1"):
        sweep("step", {"batch": [-1, -2]}, **ON)
    with pytest.raises(UnknownName, match=r"llama-3\.1-8c"):
        sweep("step", {"batch": [1]}, model="llama-3.1-8c", system="hgx-h100")
    with pytest.raises(InputError, match="step needs system"):
        sweep("step", {"batch": [1]}, model="llama-3.1-8b")
    with pytest.raises(InputError, match="needs an axis"):
        sweep("step", {}, **ON)
    with pytest.raises(UnknownName, match="did you mean time"):
        sweep("step", {"batch": [1]}, **ON, answers=["tim"])
    with pytest.raises(RangeError, match=r"1,000,000 x 1,000,000 are 1,000,000,000,000 points.* 4.6 days"):
        sweep("step", {"batch": "1:1000000:1000000", "context": "1:1000000:1000000"}, **ON)


def test_a_function_of_ones_own():
    def price(hours, rent=2.0):
        """Money: of some hours."""
        return {"usd": hours * rent, "words": f"{hours} h"}

    found = sweep(price, {"hours": [1, 2.5], "rent": [2.0, 4.0]})
    assert found.answers["usd"].values.tolist() == [[2.0, 4.0], [5.0, 10.0]]
    assert found.answers["words"].values[0, 1] == "1.0 h" or found.answers["words"].values[0, 1] == "1 h"
    with pytest.raises(UnknownName, match="did you mean hours"):
        sweep(price, {"hour": [1]})


def test_closed_forms_take_any_axis():
    found = sweep(st.blackboard.drain_seconds, {"bandwidth": "1TB/s:4TB/s:log2", "capacity": ["80GB", "160 GB"]})
    assert found.answers["drain_seconds"].values.tolist() == [[0.08, 0.16], [0.04, 0.08], [0.02, 0.04]]
    assert list(found.columns()) == ["bandwidth_bytes_per_s", "capacity_bytes", "drain_seconds"]


def _late(x, y=1):
    time.sleep(0.002)
    return {"sum": x + y, "pid": float(os.getpid())}


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing():
    killed = []

    def kill(done, total):
        if done > 20 and not killed:
            children = subprocess.run(
                ["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="], capture_output=True, text=True, check=False
            )
            workers = [int(line.split()[0]) for line in children.stdout.splitlines() if "ps" not in line.split()[1]]
            killed.append(workers[-1])
            os.kill(workers[-1], 9)

    if not Path("/proc").is_dir():
        pytest.skip("children are found by ps")
    found = sweep(_late, {"x": list(range(60)), "y": [1, 2]}, workers=2, progress=kill)
    assert killed
    assert found.answers["sum"].values.tolist() == [[x + 1, x + 2] for x in range(60)]
    assert len(set(found.answers["pid"].values.ravel())) > 1


def test_a_sweep_that_was_ended_goes_on_from_there(tmp_path):
    out, asked, seen = str(tmp_path / "sums.csv"), [], []

    def note(x, y=1):
        asked.append(x)
        return x + y

    def end(done, total):
        if done == 7:
            raise KeyboardInterrupt

    axes = {"x": list(range(20))}
    with pytest.raises(KeyboardInterrupt):
        sweep(note, axes, out=out, progress=end, workers=1)
    with open(out + ".partial", "a", encoding="utf-8") as file:
        file.write('{"region": [[7, 8]], "answ')  # as a power cut leaves it
    found = sweep(note, axes, out=out, progress=lambda done, total: seen.append(done), workers=1)
    assert seen[0] == 7
    assert asked.count(3) == 1
    assert found.answers["note"].values.tolist() == [x + 1 for x in range(20)]
    assert not Path(out + ".partial").exists()
    assert len(Path(out).read_text().splitlines()) == 21


def test_log_with_a_torn_line_between_keeps_the_lines_after_it(tmp_path):
    out, log, asked = str(tmp_path / "a.csv"), tmp_path / "a.csv.partial", []

    def end(done, total):
        if done == 4:
            raise KeyboardInterrupt

    def note(x):
        asked.append(x)
        return x

    with pytest.raises(KeyboardInterrupt):
        sweep(note, {"x": [1, 2, 3, 4, 5]}, out=out, progress=end, workers=1)
    lines = log.read_text().splitlines(keepends=True)
    # Two processes append at once, and one of them is killed in the middle of its line.
    log.write_text("".join([*lines[:2], lines[2][:20], lines[3], *lines[4:]]))
    assert sweep(note, {"x": [1, 2, 3, 4, 5]}, out=out, workers=1).answers["note"].values.tolist() == [1, 2, 3, 4, 5]
    assert [asked.count(x) for x in (1, 2, 3, 4, 5)] == [1, 2, 2, 1, 1]


@pytest.mark.parametrize("length", [0, 1, 20])
def test_log_with_a_torn_first_line_begins_anew(tmp_path, length):
    out, log = str(tmp_path / "a.csv"), tmp_path / "a.csv.partial"

    def end(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(_late, {"x": [1, 2, 3]}, out=out, progress=end, workers=1)
    log.write_text(log.read_text()[:length])
    assert sweep(_late, {"x": [1, 2, 3]}, out=out, workers=1).answers["sum"].values.tolist() == [2, 3, 4]
    assert not log.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_during_a_sweep_stops_it_and_keeps_the_answers_before(tmp_path):
    import resource

    out, seen = str(tmp_path / "a.csv"), []
    axes = {"x": list(range(30))}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, before[1]))
    try:
        with pytest.raises(DataFileError, match="cannot be written: File too large"):
            sweep(_late, axes, out=out, progress=lambda done, total: seen.append(done), workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not Path(out).exists()
    again = []
    found = sweep(_late, axes, out=out, progress=lambda done, total: again.append(done), workers=1)
    assert 3 <= seen[-1] == again[0] < 30
    assert found.answers["sum"].values.tolist() == [x + 1 for x in range(30)]


def test_the_beginning_of_another_sweep_is_not_taken(tmp_path):
    out = str(tmp_path / "a.csv")

    def end(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(_late, {"x": [1, 2, 3]}, out=out, progress=end, workers=1)
    with pytest.raises(DataFileError, match="another sweep"):
        sweep(_late, {"x": [1, 2, 4]}, out=out, workers=1)
    Path(out + ".partial").write_text("not ours\n")
    with pytest.raises(DataFileError, match="is not a log"):
        sweep(_late, {"x": [1, 2, 3]}, out=out, workers=1)


def test_times_in_words():
    assert [duration(t) for t in (0.1, 90, 7200, 3e7)] == ["less than a second", "90 seconds", "2 hours", "347 days"]


def test_a_line_that_was_changed_is_not_taken(tmp_path):
    out = str(tmp_path / "a.csv")

    def end(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(_late, {"x": [1, 2, 3]}, out=out, progress=end, workers=1)
    kept = Path(out + ".partial")
    kept.write_text(kept.read_text().replace('"sum": [2.0]', '"sum": [-99.0]'))
    found = sweep(_late, {"x": [1, 2, 3]}, out=out, workers=1)
    assert found.answers["sum"].values.tolist() == [2.0, 3.0, 4.0]


def test_odd_axes_from_python():
    for axes, words in (({1: [1]}, "name must be"), ({"batch": None}, "needs values"), ({"batch": [1.0, math.nan]}, "got nan")):
        with pytest.raises(InputError, match=words):
            sweep("step", axes, **ON)


def test_sweep_fixed_count_stays_a_number():
    assert sweep("step", {"batch": [1, 2]}, **ON, tp=2.0).fixed_inputs["tp"] == 2


def test_sweep_over_a_list_of_texts_has_one_answer_per_text():
    found = sweep("budget", {"law": ["epoch", "hoffmann"]}, match_quality="8B@15T")
    assert found.answers["params"].values[0] == st.ask("budget", match_quality="8B@15T", law=["epoch"])["params"]
    assert found.answers["params"].values[0] != found.answers["params"].values[1]
