import re

import numpy as np
import pytest

pytest.importorskip("fastapi")


import steptime as st
from steptime.lecture.current_figures import build_pair
from steptime.physics.chip_memory import sequences_that_fit
from tests.web.page_client import CLIENT

LLAMA = {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 256, "context": 8192}


def asked(**inputs):
    answer = CLIENT.post("/api/boards/context", json=LLAMA | inputs)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_points_are_those_of_the_library():
    table = asked()["tables"]["steps"]
    picked = list(range(0, len(table["context"]), 7))[:10]
    contexts = np.array([table["context"][n] for n in picked])
    step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=256, context=contexts, layout=st.Layout(tp=8))
    assert [table["total"][n] for n in picked] == pytest.approx(step.total, rel=1e-12)
    assert [table["kv"][n] for n in picked] == pytest.approx(step.resources["kv"], rel=1e-12)
    rent = float(st.load_system("hgx-h100").rent.typical)
    assert [table["usd"][n] for n in picked] == pytest.approx(step.total * rent * 8 / 256 * 1e6, rel=1e-12)


def test_the_knee_is_that_of_the_pair():
    pair = build_pair(st.load_model("llama-3.1-8b"), st.load_system("hgx-h100"), context=8192)
    assert asked()["marks"]["knee"] == pytest.approx(pair.knee, rel=1e-12)


def test_the_wall_is_the_longest_context_that_fits():
    wall = asked()["marks"]["wall"]
    room = {"layout": st.Layout(tp=8), "engine": "vllm"}
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    assert sequences_that_fit(model, system, context=wall * 0.999, **room) >= 256
    assert sequences_that_fit(model, system, context=wall * 1.001, **room) < 256


def test_steps_never_shorten_with_the_context_and_larger_batches_fill_memory_sooner():
    assert np.all(np.diff(asked()["tables"]["steps"]["total"]) >= 0)
    assert asked(batch=512)["marks"]["wall"] < asked()["marks"]["wall"]


def test_what_does_not_fit_is_an_answer():
    assert "full at 17,6" in asked(context=100_000)["sentence"]
    assert "at any context" in asked(model="deepseek-ai/DeepSeek-V3")["sentence"]


@pytest.mark.parametrize(("engine", "kv"), [("vllm", ""), ("vllm", "fp8"), ("ideal", "")])
def test_command_has_the_cache_of_the_board(engine, kv):
    """A config without a format of the cache has 16 bits; `step` takes the format of the engine unless it is told."""
    answer = asked(model="deepseek-v3", system="hgx-h200", engine=engine, kv=kv)
    options = dict(re.findall(r"--(\w+) (\w+)", answer["command"]))
    step = st.ask("step", model="deepseek-v3", system="hgx-h200", **options)
    assert step["time"] == pytest.approx(answer["marks"]["total"], rel=1e-12)


def test_wrong_input_is_told_at_its_field():
    answer = CLIENT.post("/api/boards/context", json=LLAMA | {"batch": 0})
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (422, "batch")
