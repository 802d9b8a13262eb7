"""The public surface: what `import steptime as st` offers, how soon, and names wherever a thing is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from inspect import isfunction, signature
from pathlib import Path

import numpy as np
import pytest

import steptime as st
from steptime.catalog.data_files import find, read_file
from steptime.errors import InputError, UnknownName
from tests.conftest import each

WORK, LIMITS = st.Workload(input_tokens=512, output_tokens=128), st.Slo(tpot=0.05)
# Without `site`, which imports modules for some installed packages.
PATH = f"import sys; sys.path.append({str(Path(st.__file__).parents[1])!r}); "
PASSES = {
    "decode_step": {"batch": 64, "context": 4096},
    "prefill_step": {"tokens": 2048},
    "mixed_step": {"batch": 64, "context": 4096, "prompts": 1, "tokens": 512},
    "step_range": {"batch": 64, "context": 4096},
    "memory_per_chip": {"batch": 64, "context": 4096},
}


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(st) == sorted(st.__all__)
    for name in dir(st):
        assert getattr(st, name).__doc__, name


def test_importing_loads_nothing_heavy():
    heavy = ("numpy", "pydantic", "numba", "pandas", "rich", "typer")
    code = f"import sys, steptime; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_importing_imports_no_other_module():
    code = "import sys; before = set(sys.modules); import steptime; print(sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-S", "-c", PATH + code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['steptime']"


@each("wrong, near", [("decode_stp", "decode_step"), ("load_sytem", "load_system"), ("Worklod", "Workload"), ("slo", "Slo")])
def test_a_wrong_attribute_suggests_the_nearest(wrong, near):
    with pytest.raises(AttributeError, match=f"did you mean .*{near}"):
        getattr(st, wrong)
    assert not hasattr(st, "__no_such_thing__")


@each("name", PASSES)
def test_names_do_wherever_a_thing_is_asked_for(name):
    function = getattr(st, name)
    named = function("llama-3.1-8b", "hgx-h100", engine="vllm", **PASSES[name])
    things = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    loaded = function(*things, engine=st.load_engine("vllm"), **PASSES[name])
    if isinstance(named, tuple):
        assert named == loaded
    else:
        assert named.to_dict() == loaded.to_dict()


@pytest.mark.slow
def test_a_plan_and_a_simulation_of_names():
    things = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    assert st.plan("llama-3.1-8b", "hgx-h100", WORK, LIMITS, chips=1).tpot == st.plan(*things, WORK, LIMITS, chips=1).tpot
    pytest.importorskip("numba")
    traffic = st.open_loop(5, 40, st.Lengths(mean=100), st.Lengths(mean=20))
    runs = [st.simulate(*pair, traffic).answers.ttft.mean for pair in (("llama-3.1-8b", "hgx-h100"), things)]
    assert runs[0] == runs[1]


def test_a_model_is_a_path_or_a_dict_and_a_system_a_path():
    model, system = find("models", "llama-3.1-8b"), find("systems", "hgx-h100")
    usual = st.decode_step("llama-3.1-8b", "hgx-h100", **PASSES["decode_step"]).total
    assert st.decode_step(model, system, **PASSES["decode_step"]).total == usual
    assert st.decode_step(read_file(model)["config"], str(system), **PASSES["decode_step"]).total == usual


@each("name", [*PASSES, "plan"])
def test_a_name_that_is_unknown_has_its_nearest(name):
    given = {"workload": WORK} if name == "plan" else PASSES[name]
    function = getattr(st, name)
    for pair, near in (
        (("lama-3.1-8b", "hgx-h100"), "meta-llama/Llama-3.1-8B"),
        (("llama-3.1-8b", "hgx-h10"), "hgx-h100"),
    ):
        with pytest.raises(UnknownName) as caught:
            function(*pair, **given)
        assert near in caught.value.nearest
    with pytest.raises(UnknownName, match="vllm"):
        function("llama-3.1-8b", "hgx-h100", engine="vlm", **given)
    for pair in ((5, "hgx-h100"), ("llama-3.1-8b", None), ("llama-3.1-8b", {"chips": 8})):
        with pytest.raises(st.InputError, match="must be a name, a path"):
            function(*pair, **given)


def test_every_public_function_that_takes_a_model_takes_a_name():
    takes = [name for name in dir(st) if isfunction(getattr(st, name)) and "model" in signature(getattr(st, name)).parameters]
    mine = {
        "compare_self_hosting", "compile_predictor", "context_walls", "design", "image_cost", "plan", "plan_sessions",
        "propose_prices", "replay",
        "rl_step",
        "roofline", "simulate",
        "survey_prices", "train", "training_step", "with_images", "with_techniques",
    }  # fmt: skip
    assert set(takes) == {*PASSES, *mine}
    for name in set(takes) - {
        "image_cost",
        "replay",
        "compare_self_hosting",
        "survey_prices",
        "with_images",
        "with_techniques",
    }:  # which take names of a plan, of sellers, and no system
        found = signature(getattr(st, name)).parameters
        assert (found["model"].annotation, found["system"].annotation) == ("ModelLike", "SystemLike"), name


# Import names of every extra of pyproject.toml.
EXTRAS = (
    "distributed", "fastapi", "genai_prices", "httptools", "huggingface_hub", "matplotlib", "netCDF4", "numba", "openpyxl",
    "pandas", "pyarrow", "pydantic", "scipy", "torch", "transformers", "uvicorn", "uvloop", "xarray", "yaml", "zarr",
)  # fmt: skip
WITHOUT_EXTRAS = f"""
import sys
for name in {EXTRAS}:
    sys.modules[name] = None
import inspect
import json
import steptime as st
"""


def run_without_extras(code: str) -> str:
    command = [sys.executable, "-c", WITHOUT_EXTRAS + code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.thorough
def test_public_names_without_extras_are_all_there():
    printed = run_without_extras("""
names = {}
exec("from steptime import *", names)
members = {name for name, _ in inspect.getmembers(st) if not name.startswith("_")}
print(json.dumps([
    sorted(set(names) - {"__builtins__"}) == dir(st), members >= set(dir(st)), all(hasattr(st, name) for name in dir(st)),
]))
""")
    assert json.loads(printed) == [True, True, True]


def test_a_missing_extra_is_reported_by_the_call_that_needs_it():
    printed = run_without_extras("""
step = st.decode_step("llama-3.1-8b", "hgx-h100", batch=64, context=4096)
traffic = st.open_loop(5, 40, st.Lengths(mean=100), st.Lengths(mean=20))
messages = {}
for extra, call in {
    "simulate": lambda: st.simulate("llama-3.1-8b", "hgx-h100", traffic, policy=st.Policy(max_num_seqs=8)),
    "pandas": lambda: st.sweep("step", {"batch": [1, 2]}, model="llama-3.1-8b", system="hgx-h100", context=99).to_dataframe(),
}.items():
    try:
        call()
    except st.InputError as problem:
        messages[extra] = str(problem)
print(json.dumps(messages))
""")
    messages = json.loads(printed)
    assert "pip install 'steptime[simulate]'" in messages["simulate"]
    assert "pandas" in messages["pandas"]


@pytest.mark.slow
def test_a_plan_without_numba_has_means():
    printed = run_without_extras("""
plan = st.plan("llama-3.1-8b", "hgx-h100", st.Workload(input_tokens=9, output_tokens=9), chips=1)
print(json.dumps([plan.feasible, st.validate.__name__]))
""")
    assert json.loads(printed) == [True, "validate"]


def test_a_name_costs_nothing_where_a_thing_is_given():
    model, system = st.load_model("llama-3.1-8b"), st.load_system("hgx-h100")
    swept = st.vary(system, {"chip.hbm.bandwidth": np.array([1e12, 2e12])})
    assert st.decode_step(model, swept, batch=1, context=1024).total.shape == (2,)


ASKED_OF = st.Workload(input_tokens=1000, output_tokens=100)


@pytest.mark.parametrize("wrong", [5, {}, [], "llama", np.array([1])], ids=str)
@each(
    "ask, says",
    [
        (lambda wrong: st.plan("llama-3.1-8b", "hgx-h100", wrong), "a workload is a Workload"),
        (lambda wrong: st.plan("llama-3.1-8b", "hgx-h100", ASKED_OF, wrong), "a pair of limits is a Slo"),
        (lambda wrong: st.plan("llama-3.1-8b", "hgx-h100", ASKED_OF, modes=wrong), "mode"),
        (lambda wrong: st.plan("llama-3.1-8b", "hgx-h100", ASKED_OF, engine=wrong), "engine"),
        (lambda wrong: st.decode_step("llama-3.1-8b", "hgx-h100", batch=8, context=100, layout=wrong), "a layout is a Layout"),
        (lambda wrong: st.prefill_step("llama-3.1-8b", "hgx-h100", tokens=8, layout=wrong), "a layout is a Layout"),
        (st.load_system, "system"),
        (st.load_engine, "engine"),
        (lambda wrong: st.open_loop(1.0, 10, wrong, st.Lengths(mean=10)), "the length of inputs is a Lengths"),
        (lambda wrong: st.simulate("llama-3.1-8b", "hgx-h100", wrong), "the traffic is a Traffic"),
    ],
)  # fmt: skip
def test_a_thing_of_another_kind_is_refused(ask, says, wrong):
    with pytest.raises(InputError, match=says):
        ask(wrong)


def test_changes_are_a_dict():
    with pytest.raises(InputError, match="a change is a dict"):
        st.vary(st.load_system("hgx-h100"), ["rent"])
