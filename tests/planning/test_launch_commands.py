"""The command lines of each engine for pools of every kind, word by word."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime.physics.layout import Layout
from steptime.planning.deployment import Pool
from steptime.planning.launch_commands import launch_commands
from steptime.planning.planner import plan
from tests.conftest import machine, one_matrix

PLAN = plan(one_matrix(heads=1), machine(size=1), st.Workload(input_tokens=1000, output_tokens=201), engine="ideal")


def commands(engine: str, *, role: str = "serve", batch: int = 10, chunk: int = 512, **layout) -> list[str]:
    pool = Pool(
        role=role, layout=Layout(**layout), batch=batch, seats=batch, chunk=chunk,
        step=PLAN.pools[0].step, memory=PLAN.pools[0].memory,
        tokens_per_second=1.0,
    )  # fmt: skip
    return launch_commands(replace(PLAN, model="m", pools=(pool,)), engine)


def words(lines: list[str]) -> str:
    """Return the command itself, its continued lines joined."""
    return " ".join(line.removesuffix("\\").strip() for line in lines if not line.startswith("#"))


def test_vllm_on_one_chip():
    lines = commands("vllm", replicas=3)
    assert lines[0] == "# 3 x 1 chips: each serves prompts and tokens"
    assert (
        words(lines)
        == "vllm serve m --tensor-parallel-size 1 --max-num-seqs 10 --max-num-batched-tokens 522 --max-model-len 1201"
    )
    assert len(lines) == 3  # the words wrap below 90 letters
    assert all(len(line) <= 92 for line in lines)


def test_vllm_on_every_axis():
    """Ten sequences over four groups: three each, with a chunk of 512."""
    lines = commands("vllm", tp=2, cp=2, pp=3, dp=4, ep=16, microbatches=6)
    assert words(lines) == (
        "vllm serve m --tensor-parallel-size 4 --decode-context-parallel-size 2 --pipeline-parallel-size 3 "
        "--data-parallel-size 4 --enable-expert-parallel --all2all-backend deepep_low_latency --enable-dbo --max-num-seqs 3 "
        "--max-num-batched-tokens 515 --max-model-len 1201"
    )
    assert lines[0] == "# 1 x 48 chips: each serves prompts and tokens"
    assert lines[1] == "# --max-num-seqs and --max-num-batched-tokens count for one data-parallel rank"
    assert not any("no flag" in line for line in lines)


@pytest.mark.parametrize(
    ("role", "what", "kv", "tokens", "backend"),
    [
        ("prefill", "prefills", "kv_producer", 3 * 1201, "high_throughput"),
        ("decode", "decodes", "kv_consumer", 3, "low_latency"),
    ],
)
def test_vllm_in_pools(role, what, kv, tokens, backend):
    lines = commands("vllm", role=role, chunk=0, dp=4, ep=4)
    assert lines[0] == f"# 1 x 4 chips: each {what}"
    text = words(lines)
    assert f"--all2all-backend deepep_{backend}" in text
    assert f"--max-num-batched-tokens {tokens} " in text
    assert text.endswith(f"""--kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"{kv}"}}'""")
    assert "--enable-dbo" not in text


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("layout", "unsaid"),
    [
        ({"tp": 2}, ()),
        ({"pp": 2, "microbatches": 2}, ()),
        ({"dp": 2, "ep": 2}, ()),
        ({"tp": 2, "microbatches": 2}, ("vllm", "sglang", "trtllm")),
        ({"dp": 2, "ep": 2, "microbatches": 2}, ("trtllm",)),
        ({"dp": 2, "microbatches": 2}, ("vllm", "sglang", "trtllm")),
    ],
)
def test_what_an_engine_cannot_overlap_is_said(engine, layout, unsaid):
    lines = commands(engine, **layout)
    where = "in no layout" if engine == "trtllm" else "only where attention groups exchange experts"
    said = f"# {engine} overlaps two micro-batches of a stage {where}: expect steps to be slower"
    assert (said in lines) == (engine in unsaid)
    assert any("expect steps" in line for line in lines) == (engine in unsaid)
    overlaps = layout.get("ep") == 2 and layout.get("microbatches") == 2
    assert ("--enable-dbo" in words(lines)) == (engine == "vllm" and overlaps)
    assert ("--enable-two-batch-overlap" in words(lines)) == (engine == "sglang" and overlaps)


def test_sglang_on_one_chip():
    assert words(commands("sglang")) == (
        "python -m sglang.launch_server --model-path m --tp-size 1 --max-running-requests 10 --chunked-prefill-size 512 "
        "--enable-mixed-chunk --context-length 1201"
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_one_chip_needs_no_words(engine):
    assert [line for line in commands(engine) if line.startswith("#")] == ["# 1 x 1 chips: each serves prompts and tokens"]


def test_sglang_on_every_axis():
    """Batches and chunks count for all four groups."""
    lines = commands("sglang", tp=2, cp=2, pp=3, dp=4, ep=16, microbatches=6)
    assert words(lines) == (
        "python -m sglang.launch_server --model-path m --tp-size 16 --pp-size 3 --dp-size 4 --enable-dp-attention --ep-size 16 "
        "--moe-a2a-backend deepep --enable-two-batch-overlap --max-running-requests 10 --chunked-prefill-size 2048 "
        "--enable-mixed-chunk --context-length 1201"
    )
    assert lines[1] == "# the cache of a sequence over 2 chips has no flag here: expect less room for KV cache"
    assert lines[2] == "# --max-running-requests and --chunked-prefill-size count for all data-parallel ranks together"


def test_sglang_in_pools():
    prefill, decode = (words(commands("sglang", role=role, chunk=0, dp=4, ep=4)) for role in ("prefill", "decode"))
    assert f"--chunked-prefill-size {4 * 3 * 1201} --disaggregation-mode prefill" in prefill
    assert "--max-running-requests 10 --disaggregation-mode decode" in decode
    assert "--enable-mixed-chunk" not in prefill + decode
    assert not any("--ep-size" in line for line in commands("sglang", dp=4))


def test_trtllm_on_one_chip():
    lines = commands("trtllm")
    assert lines[1:4] == ["cat > options.yaml <<'END'", "enable_chunked_prefill: true", "END"]
    assert words(lines[4:]) == (
        "trtllm-serve m --tp_size 1 --max_batch_size 10 --max_num_tokens 522 --max_seq_len 1201 "
        "--extra_llm_api_options options.yaml"
    )


def test_trtllm_on_every_axis():
    lines = commands("trtllm", tp=2, cp=2, pp=3, dp=4, ep=16)
    assert lines[1] == "# --max_batch_size and --max_num_tokens count for one attention data-parallel rank"
    assert lines[2] == "# attention over 4 chips inside 4 groups has no flag here: each rank is a group"
    assert lines[3:7] == ["cat > options.yaml <<'END'", "enable_chunked_prefill: true", "enable_attention_dp: true", "END"]
    assert words(lines[7:]) == (
        "trtllm-serve m --tp_size 16 --pp_size 3 --ep_size 16 --max_batch_size 3 --max_num_tokens 515 --max_seq_len 1201 "
        "--extra_llm_api_options options.yaml"
    )
    assert not any("no flag here: each rank" in line for line in commands("trtllm", dp=4))
    assert not any("no flag here: each rank" in line for line in commands("trtllm", tp=4))
    assert any("over 2 chips inside 2 groups has no flag here" in line for line in commands("trtllm", tp=2, dp=2))
    assert "enable_attention_dp: true" in commands("trtllm", dp=2)
    for engine, flags in (
        ("vllm", "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel"),
        ("sglang", "--tp-size 4 --pp-size 2 --dp-size 2 --enable-dp-attention --ep-size 2"),
        ("trtllm", "--tp_size 4 --pp_size 2 --ep_size 2"),
    ):
        assert flags in words(commands(engine, tp=2, pp=2, dp=2, ep=2))


def test_trtllm_in_pools():
    prefill, decode = (commands("trtllm", role=role, chunk=0) for role in ("prefill", "decode"))
    assert prefill[2:4] == ["enable_chunked_prefill: true", "cache_transceiver_config: {backend: DEFAULT}"]
    assert decode[1:4] == ["cat > options.yaml <<'END'", "cache_transceiver_config: {backend: DEFAULT}", "END"]
    assert "--max_num_tokens 12010 " in words(prefill)
    assert "--max_num_tokens 10 " in words(decode)


def test_lengths_are_rounded_up():
    workload = st.Workload(input_tokens=1000.5, output_tokens=200)
    assert words(launch_commands(replace(PLAN, workload=workload), "vllm")).endswith("--max-model-len 1201")
