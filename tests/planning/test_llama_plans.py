"""Plans of llama.cpp: the sequences that its server has, batches beyond its runs, and the command that starts them."""

from __future__ import annotations

from itertools import pairwise

import pytest

import steptime as st
from steptime.errors import InputError, RangeError
from steptime.launch.launch_commands import launch_commands
from steptime.physics.layout import Layout, host_chips
from steptime.physics.uncertainty import LARGE_BATCH, distances
from steptime.workload.workload import Workload
from tests.conftest import CHOICE_ALONE, each

WORK = Workload(input_tokens=1024, output_tokens=1024)


@pytest.fixture(scope="module")
def planned():
    return st.plan("gpt-oss-20b", "dgx-spark", WORK, engine="llama.cpp", percentile="mean", quick=True)


@pytest.mark.thorough
def test_a_replica_has_at_most_the_sequences_of_llama_cpp(planned):
    assert planned.chips == 1
    assert planned.pools[-1].max_num_seqs <= 256
    assert planned.pools[-1].batch > 32
    assert LARGE_BATCH.words in planned.distance
    with pytest.raises(RangeError, match="256"):
        st.plan("gpt-oss-20b", "dgx-spark", WORK, engine="llama.cpp", max_num_seqs=257)


@pytest.mark.parametrize(("batch", "applies"), [(32, False), (33, True)])
def test_batches_beyond_the_runs_widen_the_range(batch, applies):
    engine, system = st.load_engine("llama.cpp"), st.load_system("dgx-spark")
    assert (LARGE_BATCH in [flag for flag, there in distances(engine, system, Layout(), batch=batch) if there]) == applies
    other = st.load_engine("vllm")
    assert LARGE_BATCH not in [flag for flag, there in distances(other, system, Layout(), batch=batch) if there]


@pytest.mark.thorough
def test_the_command_has_the_slots_of_the_plan(planned):
    words = " ".join(line.removesuffix("\\") for line in launch_commands(planned, "llama.cpp") if line[0] != "#").split()
    assert words[:3] == ["llama-server", "-m", '"$GGUF"']
    flags = dict(pairwise(words))
    assert int(flags["-np"]) == planned.pools[-1].max_num_seqs
    assert int(flags["-ub"]) >= planned.pools[-1].chunk
    # llama.cpp rounds the cache up to 256 tokens, and the memory of the plan has to hold that.
    assert int(flags["-c"]) % 256 == 0
    assert int(flags["-c"]) <= planned.pools[-1].kv_tokens_per_rank
    assert {"-kvu", "-cram"} & set(words) == {"-kvu"}


@pytest.mark.thorough
def test_formats_with_a_rule_of_the_engine_have_no_warning(planned):
    assert not [words for words in planned.warnings if "multiplied" in words]


@each("name", ["dgx-spark", "m2-ultra", "m3-max", "m3-ultra", "m4", "m4-max", "strix-halo"])
def test_a_desk_machine_is_one_computer(name):
    system = st.load_system(name)
    assert system.chips == host_chips(system) == 1


@each(
    "name, tokens_per_second",
    [("m2-ultra", (1238.48, 94.27)), ("m3-max", (759.70, 66.31)), ("m4-max", (885.68, 83.06)), ("m4", (221.29, 24.11))],
)
def test_apple_chips_are_as_fast_as_llama_bench_measured(name, tokens_per_second):
    """A prompt of 512 tokens and decoded tokens of Llama 2 7B in Q4_0: github.com/ggml-org/llama.cpp/discussions/4167."""
    inputs = {"engine": "llama.cpp", "layout": Layout()}
    model = st.load_model("llama-2-7b", weights="q4_0")
    prefill = st.prefill_step(model, name, tokens=512, prompts=1, **inputs)
    decode = st.decode_step(model, name, batch=1, context=64, **inputs)
    # Measured time over predicted one, within the 90 % range of the fit.
    low, high = st.load_engine("llama.cpp").fit["interval"]["tpot"]["decode"]
    assert 512 / tokens_per_second[0] / float(prefill.total) == pytest.approx(1, rel=0.15)
    assert low < 1 / tokens_per_second[1] / float(decode.total) < high


@pytest.mark.thorough
@pytest.mark.parametrize(("system", "engine", "is_named"), [("m4-max", "typical", True), ("blackhole-p150-4", None, False)])
def test_a_plan_without_runs_on_a_chip_names_the_engine_that_has_them(system, engine, is_named, closed_forms):
    plan = st.plan("llama-3.1-8b", system, WORK, engine=engine, percentile="mean", quick=True)
    warnings = " ".join(plan.warnings)
    assert "has no measured run on chips of" in warnings
    assert ("--engine llama.cpp has measured runs there" in warnings) == is_named


def test_plans_of_llama_cpp_have_one_pool_of_tensor_parallel_replicas(closed_forms):
    given = {"engine": "llama.cpp", "percentile": "mean", "quick": True, **CHOICE_ALONE}
    plan = st.plan(st.load_model("llama-3.3-70b", weights="q4_k_m"), "rtx-4090-8", WORK, **given)
    (pool,) = plan.pools
    assert pool.layout.chips == pool.layout.tp > 1
    command = " ".join(line.removesuffix("\\") for line in launch_commands(plan, "llama.cpp") if line[0] != "#").split()
    assert dict(pairwise(command))["-sm"] == "tensor"
    with pytest.raises(RangeError, match="no separate pools"):
        st.plan("gpt-oss-20b", "dgx-spark", WORK, modes="disaggregated", **given)
    with pytest.raises(InputError, match="split-mode tensor"):
        st.plan(st.load_model("deepseek-v3", weights="q4_k_m"), "hgx-h200", WORK, **given)


def test_the_command_says_what_the_slots_need_where_the_cache_has_more_room():
    """44 slots of 400 tokens on average do not fill 600,000 tokens, and no request waits for more of them."""
    work = Workload(input_tokens=200, output_tokens=200)
    given = {"engine": "llama.cpp", "chips": 1, "quick": True, "alternatives": False, "elasticities": False}
    plan = st.plan("gpt-oss-20b", "rtx-5090-8", work, st.Slo(tpot=1 / 60), **given)
    pool = plan.pools[-1]
    assert pool.max_num_seqs * 400 < 0.9 * pool.kv_tokens_per_rank
    (note,) = (line for line in launch_commands(plan, "llama.cpp") if "-c takes all memory" in line)
    assert f"{pool.max_num_seqs} slots need" in note
    assert "slots" not in plan.binding
