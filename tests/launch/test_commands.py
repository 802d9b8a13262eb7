"""The commands of each engine for pools of every kind, word by word."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import steptime as st
from steptime.launch.launch_commands import ENGINES, launch_commands, launch_files
from steptime.launch.serve_args import longest_request
from steptime.planning.fleet import Fleet
from steptime.workload.workload import Speculation
from tests.conftest import each
from tests.launch.conftest import pool
from tests.launch.reading import commands, options_file


def words(lines: list[str]) -> str:
    """Return the commands themselves, their continued lines joined."""
    return " ".join(line.removesuffix("\\").strip() for line in lines if not line.startswith("#"))


def notes(lines: list[str]) -> list[str]:
    return [line[2:] for line in lines if line.startswith("#")]


# --- one chip, and every axis -------------------------------------------------------------------------------------------


def test_vllm_on_one_host(build):
    lines = launch_commands(build(pool(tp=8)), "vllm")
    assert lines[0] == "# prefill and decode: 1 replica of 8 chips"
    assert words(lines) == (
        "vllm serve org/m --tensor-parallel-size 8 --max-num-seqs 10 --max-num-batched-tokens 522 --max-model-len 5000 "
        "--port 8000"
    )
    assert all(len(line) <= 92 for line in lines)


def test_vllm_on_every_axis(build):
    """Ten sequences over four groups: three each, with a chunk of 512; three stages share them."""
    lines = launch_commands(build(pool(tp=2, cp=2, pp=3, dp=4, ep=16, microbatches=6)), "vllm")
    assert words(lines).startswith(
        "vllm serve org/m --tensor-parallel-size 4 --decode-context-parallel-size 2 --pipeline-parallel-size 3 "
        "--data-parallel-size 4 --nnodes 6 --node-rank 0 --master-addr $HEAD_ADDRESS --master-port 29501 "
        "--enable-expert-parallel --all2all-backend deepep_high_throughput --enable-dbo --dbo-decode-token-threshold 1 "
        "--dbo-prefill-token-threshold 172 --max-num-seqs 3 --max-num-batched-tokens 172 --max-model-len 5000"
    )
    assert notes(lines)[:3] == [
        "prefill and decode: 1 replica of 48 chips on 6 hosts of 8",
        "--max-num-seqs and --max-num-batched-tokens count for one data-parallel rank",
        "--max-num-seqs counts for all 3 micro-batches, --max-num-batched-tokens for one",
    ]


def test_sglang_on_every_axis(build):
    """Requests and chunks count for all four groups; a chunk has the sequences that decode, in whole pages of 64 tokens."""
    lines = launch_commands(build(pool(tp=2, cp=2, dp=4, ep=16, microbatches=2)), "sglang")
    assert words(lines).startswith(
        "python -m sglang.launch_server --model-path org/m --tp-size 16 --dcp-size 2 --attn-dp-size 4 --ep-size 16 "
        "--moe-a2a-backend deepep --deepep-mode auto --enable-two-batch-overlap --max-running-requests 12 "
        "--chunked-prefill-size 2304 --context-length 5000 --enable-mixed-chunk --nnodes 2 --node-rank 0 "
        "--dist-init-addr $HEAD_ADDRESS:20000 --host 0.0.0.0 --port 8000"
    )
    assert "--max-running-requests and --chunked-prefill-size count for all data-parallel ranks together" in notes(lines)
    staged = words(launch_commands(build(pool(pp=3, microbatches=3, chunk=300)), "sglang"))
    assert "--pp-size 3 --pp-max-micro-batch-size 4 --max-running-requests 10 --chunked-prefill-size 128 " in staged


def test_trtllm_on_every_axis(build):
    lines = launch_commands(build(pool(dp=4, ep=4, pp=2, microbatches=2)), "trtllm")
    end = lines[3].partition("<<")[2].strip("'")
    assert lines[3] == f"cat > serve.yaml <<'{end}'"
    assert options_file("\n".join(lines[4 : lines.index(end)])) == {
        "enable_chunked_prefill": True, "enable_attention_dp": True, "kv_cache_config": {"dtype": "auto"},
    }  # fmt: skip
    assert words(lines[lines.index(end) + 1 :]) == (
        "trtllm-serve org/m --tp_size 4 --pp_size 2 --ep_size 4 --max_batch_size 2 --max_num_tokens 258 --max_seq_len 5000 "
        "--extra_llm_api_options serve.yaml --host 0.0.0.0 --port 8000"
    )
    assert "--max_batch_size and --max_num_tokens count for one of the 2 micro-batches in flight" in notes(lines)
    assert any(
        "makes each chip a data-parallel rank" in n and "will not start" in n
        for n in notes(launch_commands(build(pool(tp=2, dp=2)), "trtllm"))
    )
    assert any(
        n.startswith("cp=2: trtllm divides contexts only as an experiment")
        for n in notes(launch_commands(build(pool(cp=2)), "trtllm"))
    )


@pytest.mark.parametrize("engine", ENGINES)
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
def test_what_an_engine_cannot_overlap_is_said(build, engine, layout, unsaid):
    lines = launch_commands(build(pool(**layout)), engine)
    where = "in no layout" if engine == "trtllm" else "only where data-parallel ranks exchange tokens (dp and ep above 1)"
    said = f"# {engine} overlaps two micro-batches of a stage {where}: expect slower steps"
    assert (said in lines) == (engine in unsaid)
    overlaps = layout.get("ep") == 2 and layout.get("microbatches") == 2
    assert ("--enable-dbo" in words(lines)) == (engine == "vllm" and overlaps)
    assert ("--enable-two-batch-overlap" in words(lines)) == (engine == "sglang" and overlaps)


# --- pools and routers --------------------------------------------------------------------------------------------------


def pools(build, **served):
    return build(
        pool("prefill", batch=4, chunk=0, dp=2, ep=2), pool("decode", batch=20, chunk=0, dp=4, ep=4), **served
    )  # fmt: skip


def test_vllm_in_pools(build):
    """Two prompts a group in a pass of prefill, five sequences a group in decode, and vLLM's router between them."""
    prefill, decode, router = commands(launch_commands(pools(build), "vllm"))
    assert (prefill.one("--max-num-seqs"), prefill.one("--max-num-batched-tokens")) == (2, 2000)
    assert (decode.one("--max-num-seqs"), decode.one("--max-num-batched-tokens")) == (5, 5)
    assert prefill.one("--all2all-backend") == "deepep_high_throughput"
    assert decode.one("--all2all-backend") == "deepep_low_latency"
    assert '"kv_role":"kv_producer"' in prefill.one("--kv-transfer-config")
    assert '"kv_role":"kv_consumer"' in decode.one("--kv-transfer-config")
    assert prefill.environment["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert decode.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert {prefill.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"], decode.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"]} == {
        "5600",
        "5728",
    }
    assert router.flags["--prefill"] == [[f"http://$PREFILL_0_ADDRESS:{prefill.one('--port')}"]]
    assert router.flags["--decode"] == [[f"http://$DECODE_0_ADDRESS:{decode.one('--port')}"]]
    assert "--vllm-pd-disaggregation" in router.flags
    assert (router.one("--port"), prefill.one("--port"), decode.one("--port")) == (8000, 8101, 8100)


def test_sglang_in_pools(build):
    prefill, decode, router = commands(launch_commands(pools(build), "sglang"))
    assert (prefill.one("--max-running-requests"), prefill.one("--chunked-prefill-size")) == (4, 2 * 2048)
    assert (prefill.one("--deepep-mode"), decode.one("--deepep-mode")) == ("normal", "low_latency")
    assert "--chunked-prefill-size" not in decode.flags
    assert "--enable-mixed-chunk" not in prefill.flags | decode.flags
    bootstrap = str(prefill.one("--disaggregation-bootstrap-port"))
    assert router.flags["--prefill"] == [[f"http://$PREFILL_0_ADDRESS:{prefill.one('--port')}", bootstrap]]
    assert "--pd-disaggregation" in router.flags
    long = build(pool("prefill", batch=40, chunk=0), pool("decode", chunk=0))
    assert commands(launch_commands(long, "sglang"))[0].one("--max-prefill-tokens") == 40000


def test_trtllm_in_pools(build):
    prefill, decode, router = commands(launch_commands(pools(build), "trtllm"))
    assert (prefill.one("--max_batch_size"), prefill.one("--max_num_tokens")) == (2, 2000)
    assert options_file(prefill.files["prefill.yaml"])["disable_overlap_scheduler"] is True
    assert options_file(decode.files["decode.yaml"])["cache_transceiver_config"] == {"backend": "DEFAULT"}
    assert router.program == "trtllm-serve disaggregated"
    assert router.one("-c") == "router.yaml"
    assert options_file(router.files["router.yaml"])["context_servers"]["urls"] == ["@PREFILL_0_ADDRESS@:8101"]


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_replicas_stand_behind_a_router(build, engine):
    lines = launch_commands(build(pool(tp=2, replicas=3)), engine)
    assert (
        "# replicas 1 to 2: the same command on other chips of the host, ports up to 8102; "
        "--launch-dir writes one script per host" in lines
    )
    assert lines[0].endswith("3 replicas of 2 chips")
    assert "8102" in words(lines[-8:])
    assert not any("router" in line for line in launch_commands(build(pool(tp=2)), engine))


def test_shared_prefixes_choose_the_cache_and_the_policy(build):
    shared = st.Workload(input_tokens=1000, output_tokens=201, cached_share=0.5)
    for engine, flag in (("vllm", "--enable-prefix-caching"), ("trtllm", '"enable_block_reuse": true')):
        assert flag in words(launch_commands(build(pool(tp=2), workload=shared), engine))
        assert flag not in words(launch_commands(build(pool(tp=2)), engine))
    for engine in ("vllm", "sglang"):
        policies = [
            commands(launch_commands(build(pool(replicas=2), workload=w), engine))[-1].one("--policy")
            for w in (shared, None)
        ]  # fmt: skip
        assert policies == ["cache_aware", "power_of_two"]


# --- several hosts ------------------------------------------------------------------------------------------------------


def test_vllm_joins_hosts_by_data_parallel_ranks_where_a_group_fits_one(build):
    head, rest = commands(launch_commands(build(pool(tp=2, dp=8, ep=16)), "vllm"))
    assert head.one("--data-parallel-size-local") == rest.one("--data-parallel-size-local") == 4
    assert head.one("--data-parallel-address") == "$HEAD_ADDRESS"
    assert head.one("--data-parallel-rpc-port") == rest.one("--data-parallel-rpc-port")
    assert rest.one("--data-parallel-start-rank") == "$((NODE_RANK * 4))"
    assert ("--headless" in rest.flags, "--headless" in head.flags) == (True, False)
    assert ("--port" in rest.flags, "--port" in head.flags) == (False, True)


def test_no_engine_is_told_of_fewer_tokens_than_sequences(build):
    """Ten sequences in three stages, which vLLM counts at once; five of a group of two chips, taken apart in TensorRT-LLM."""
    staged = build(pool("decode", chunk=0, pp=3, microbatches=3))
    assert commands(launch_commands(staged, "vllm"))[0].one("--max-num-batched-tokens") == 10
    grouped = commands(launch_commands(build(pool("decode", chunk=0, tp=2, dp=2)), "trtllm"))[0]
    assert (grouped.one("--max_batch_size"), grouped.one("--max_num_tokens")) == (3, 3)


@pytest.mark.parametrize("layout", [{"tp": 16}, {"tp": 8, "pp": 2, "microbatches": 2}, {"tp": 16, "dp": 2}])
def test_vllm_joins_hosts_by_rank_where_a_group_spans_them(build, layout):
    head, rest = commands(launch_commands(build(pool(**layout)), "vllm"))
    assert head.one("--nnodes") == 2 * layout.get("dp", 1)
    assert (head.one("--node-rank"), rest.one("--node-rank")) == (0, "$NODE_RANK")
    assert head.one("--master-addr") == "$HEAD_ADDRESS"
    assert "--headless" in rest.flags
    assert "--data-parallel-size-local" not in head.flags


def test_hosts_of_four_in_one_rack(build):
    """36 chips of a rack with trays of four are nine commands; the exchange goes over NVLink between trays."""
    rack = {"host_chips": 4, "domain_chips": 72, "arithmetic": ("bf16", "fp8", "fp4")}
    plan = build(pool("prefill", batch=36, chunk=0, dp=36, ep=36), pool("decode", batch=36, chunk=0, dp=36, ep=36), **rack)
    lines = launch_commands(plan, "vllm")
    assert lines[0] == "# prefill pool: 1 replica of 36 chips on 9 hosts of 4"
    assert "# on the other hosts, with NODE_RANK=1 to 8:" in lines
    assert {read.one("--all2all-backend") for read in commands(lines)[:4]} == {"flashinfer_nvlink_one_sided"}
    for read in commands(launch_commands(plan, "sglang"))[:4]:
        assert read.one("--moe-a2a-backend") == "flashinfer"
        assert read.one("--nnodes") == 9
    trt = words(launch_commands(plan, "trtllm"))
    assert "mpirun -n 36 -H $HOSTS " in trt
    assert "trtllm-llmapi-launch trtllm-serve org/m --tp_size 36 --gpus_per_node 4" in trt


# --- the exchange -------------------------------------------------------------------------------------------------------


@each(
    "role, layout, served, backend",
    [
        ("decode", {"dp": 8, "ep": 8}, {}, "deepep_low_latency"),
        ("prefill", {"dp": 8, "ep": 8}, {}, "deepep_high_throughput"),
        ("serve", {"dp": 8, "ep": 8}, {}, "allgather_reducescatter"),
        ("serve", {"dp": 16, "ep": 16}, {}, "deepep_high_throughput"),
        ("serve", {"dp": 8, "ep": 8, "microbatches": 2}, {}, "deepep_high_throughput"),
        ("decode", {"dp": 6, "ep": 6}, {}, "allgather_reducescatter"),
        ("decode", {"dp": 12, "ep": 12}, {}, "allgather_reducescatter"),
        ("decode", {"dp": 8, "ep": 8}, {"fabric": "pcie"}, "allgather_reducescatter"),
        ("decode", {"dp": 8, "ep": 8}, {"vendor": "AMD", "fabric": "infinity-fabric"}, "mori_low_latency"),
        ("prefill", {"dp": 8, "ep": 8}, {"vendor": "AMD", "fabric": "infinity-fabric"}, "mori_high_throughput"),
        (
            "decode",
            {"dp": 8, "ep": 8, "microbatches": 2},
            {"vendor": "AMD", "fabric": "infinity-fabric"},
            "allgather_reducescatter",
        ),
        ("decode", {"dp": 8, "ep": 8}, {"host_chips": 4, "domain_chips": 72}, "flashinfer_nvlink_one_sided"),
        ("decode", {"dp": 8, "ep": 8}, {"host_chips": 4, "domain_chips": 72, "experts": "int4"}, "flashinfer_nvlink_two_sided"),
        ("decode", {"dp": 8, "ep": 8, "microbatches": 2}, {"host_chips": 4, "domain_chips": 72}, "deepep_low_latency"),
    ],
)
def test_the_exchange_suits_machine_and_phase(build, role, layout, served, backend):
    chunk = 2000 if role == "serve" else 0
    read = commands(launch_commands(build(pool(role, batch=160, chunk=chunk, **layout), **served), "vllm"))[0]
    assert read.one("--all2all-backend") == backend
    overlapped = layout.get("microbatches", 1) > 1
    assert ("--enable-dbo" in read.flags) == overlapped
    rack = served.get("host_chips") == 4
    assert ("VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL" in read.environment) == (rack and overlapped)


def test_a_decode_batch_beyond_the_low_latency_buffers_takes_the_throughput_kernels(build):
    big = build(pool("decode", batch=8 * 1025, chunk=0, dp=8, ep=8))
    assert commands(launch_commands(big, "vllm"))[0].one("--all2all-backend") == "deepep_high_throughput"
    assert commands(launch_commands(big, "sglang"))[0].one("--deepep-mode") == "normal"
    for engine in ("vllm", "sglang"):
        deep = commands(launch_commands(build(pool("decode", batch=8 * 600, chunk=0, dp=8, ep=8)), engine))[0]
        assert deep.environment["NVSHMEM_QP_DEPTH"] == "2048"  # two for each of 601 tokens are 1,202
    some = commands(launch_commands(build(pool("decode", batch=8 * 200, chunk=0, dp=8, ep=8)), "sglang"))[0]
    assert some.environment["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "200"


def test_sglang_without_an_exchange_gathers_rows_and_says_so(build):
    for served in ({"fabric": "pcie"}, {"domain_chips": 6, "host_chips": 6}):
        lines = launch_commands(build(pool("decode", dp=6, ep=6, chunk=0), **served), "sglang")
        assert "--moe-a2a-backend" not in words(lines)
        assert any("rows are gathered instead" in note for note in notes(lines))
    for engine in ("vllm", "sglang"):
        lines = launch_commands(build(pool(dp=8, ep=4)), engine)
        assert any(note.startswith("ep=4: ") and note.endswith("will not start with this layout") for note in notes(lines))


@pytest.mark.parametrize("engine", ENGINES)
def test_redundant_experts(build, engine):
    """32 copies beside 256 experts on 8 chips: 36 slots each."""
    lines = launch_commands(build(pool(dp=8, ep=8, redundant_experts=32)), engine)
    wanted = {
        "vllm": "--enable-eplb --eplb-config '{\"num_redundant_experts\":32}'",
        "sglang": "--ep-num-redundant-experts 32 --enable-eplb",
        "trtllm": '"moe_config": { "load_balancer": { "num_slots": 288, "layer_updates_per_iter": 1 } }',
    }
    assert wanted[engine] in words(lines)
    assert "eplb" not in words(launch_commands(build(pool(dp=8, ep=8)), engine))


# --- formats ------------------------------------------------------------------------------------------------------------


@each(
    "served, vllm, sglang",
    [
        ({}, "", ""),
        ({"weights": "fp8", "experts": "fp8"}, "--quantization fp8_per_tensor", "--quantization fp8"),
        ({"weights": "fp8", "experts": "", "checkpoint_experts": ""}, "--quantization fp8_per_tensor", "--quantization fp8"),
        ({"weights": "mxfp8", "experts": "mxfp8"}, "--quantization mxfp8", "--quantization mxfp8"),
        (
            {"experts": "fp8"},
            "--quantization online --quantization-config '{\"moe\":\"fp8_per_tensor\"}'",
            "$CHECKPOINT",
        ),
        (
            {"weights": "fp8", "experts": "int8"},
            "--quantization online --quantization-config "
            "'{\"linear\":\"fp8_per_tensor\",\"moe\":\"int8_per_channel_weight_only\"}'",
            "$CHECKPOINT",
        ),
        ({"weights": "nvfp4", "experts": "nvfp4"}, "$CHECKPOINT", "$CHECKPOINT"),
        ({"weights": "nvfp4", "experts": "nvfp4", "arithmetic": ("fp4",)}, "$CHECKPOINT", "--quantization nvfp4_online"),
        (
            {"experts": "nvfp4", "arithmetic": ("fp4",)},
            "--quantization online --quantization-config '{\"moe\":\"nvfp4_per_token\"}'",
            "$CHECKPOINT",
        ),
        ({"weights": "int4", "experts": "int4"}, "$CHECKPOINT", "$CHECKPOINT"),
        ({"checkpoint_weights": "fp8", "checkpoint_experts": "fp8"}, "$CHECKPOINT", "$CHECKPOINT"),
        (
            {"weights": "fp8", "experts": "fp8", "checkpoint_weights": "fp8", "checkpoint_experts": "fp8"},
            "",
            "",
        ),
    ],
)  # fmt: skip
def test_formats_of_weights(build, served, vllm, sglang):
    """An engine is told to quantise what it can while it loads; what is stored so already needs no word, and what it cannot
    make needs another checkpoint, as always in TensorRT-LLM."""
    plan = build(pool(tp=8), **served)
    for engine, wanted in (("vllm", vllm), ("sglang", sglang), ("trtllm", "$CHECKPOINT" if vllm or sglang else "")):
        lines = launch_commands(plan, engine)
        text = words(lines)
        assert wanted in text
        assert ("--quantization" in text) == wanted.startswith("--quantization")
        assert ("$CHECKPOINT" in text) == (wanted == "$CHECKPOINT")
        assert any(note.startswith("CHECKPOINT: ") for note in notes(lines)) == (wanted == "$CHECKPOINT")


@pytest.mark.parametrize(
    ("kv", "stored", "vllm", "sglang", "trtllm"),
    [
        ("bf16", "bf16", None, None, "auto"),
        ("bf16", "fp8", "bfloat16", "bf16", "auto"),
        ("fp8", "bf16", "fp8", "fp8_e4m3", "fp8"),
        ("fp8", "fp8", "fp8", "fp8_e4m3", "fp8"),
        ("nvfp4", "bf16", "nvfp4", "nvfp4", "nvfp4"),
        ("fp8_ds_mla", "bf16", "fp8_ds_mla", "fp8_e4m3", "auto"),
        ("int8", "bf16", "int8_per_token_head", None, "auto"),
        ("mxfp4", "bf16", None, None, "auto"),
    ],
)
def test_formats_of_the_cache(build, kv, stored, vllm, sglang, trtllm):
    plan = build(pool(tp=8), kv=kv, checkpoint_kv=stored)
    assert commands(launch_commands(plan, "vllm"))[0].one("--kv-cache-dtype") == vllm
    assert commands(launch_commands(plan, "sglang"))[0].one("--kv-cache-dtype") == sglang
    assert f'    "dtype": "{trtllm}"' in launch_commands(plan, "trtllm")
    for engine, told in (("vllm", vllm), ("sglang", sglang), ("trtllm", trtllm != "auto" or None)):
        unsaid = kv not in ("bf16", "fp16") and told is None
        assert any(f"has no KV cache in {kv}" in note for note in notes(launch_commands(plan, engine))) == unsaid
    follows = any("dtype auto follows the checkpoint" in note for note in notes(launch_commands(plan, "trtllm")))
    assert follows == (kv == "bf16" and stored == "fp8")


def test_a_local_folder_and_a_file_that_names_no_weights(build, tmp_path):
    assert words(launch_commands(build(pool(), checkpoint="/models/mine"), "vllm")).startswith(
        "CUDA_VISIBLE_DEVICES=0 vllm serve /models/mine"
    )
    lines = launch_commands(build(pool(), checkpoint=""), "sglang")
    assert '--model-path "$CHECKPOINT"' in words(lines)
    assert "CHECKPOINT: id or folder of the weights in bf16, which the model's file does not name" in notes(lines)
    spaced = words(launch_commands(build(pool(), checkpoint="/my models/it's"), "vllm"))
    assert """vllm serve '/my models/it'"'"'s'""" in spaced
    trusting = build(pool(), remote_code=True)
    assert all("trust" in words(launch_commands(trusting, engine)) for engine in ENGINES)


# --- lengths and machines -----------------------------------------------------------------------------------------------


def test_the_longest_request_is_what_the_cache_has_room_for(build):
    """With room for more than 5,000 tokens the model's context bounds; without one, the pool with the least room does."""
    assert longest_request(build(pool())) == 5000
    pools = pool("prefill", chunk=0, kv_tokens_per_rank=7000.0), pool("decode", chunk=0, kv_tokens_per_rank=2100.0)
    assert longest_request(build(*pools, max_context=1e18)) == 2048
    assert longest_request(build(pools[0], max_context=1e18)) == 6144
    assert longest_request(build(pool(kv_tokens_per_rank=900.0), max_context=1e18)) == 1201
    assert longest_request(build(pool(), max_context=800)) == 800
    lines = launch_commands(build(pool(), max_context=800), "vllm")
    assert any("requests of 1,201 tokens are longer than the model's context of 800" in note for note in notes(lines))


def test_the_longest_request_with_more_slots_than_the_cache_has_room_for_is_unchanged(build):
    """Slots without a cache of their own give one request no more room."""
    for role in ("serve", "prefill"):
        own = pool(role)
        plans = (build(own, max_context=1e18), build(replace(own, max_num_seqs=30), max_context=1e18))
        assert longest_request(plans[0]) == longest_request(plans[1])


def test_the_longest_request_of_a_simulated_plan_fits_one_chip(closed_forms):
    """8 billion parameters in 16 bits leave a chip of 24 GB a third of the cache for the model's 131,072 tokens."""
    plan = st.plan(
        "llama-3.1-8b",
        "rtx-4090-8",
        st.Workload(input_tokens=2048, output_tokens=512),
        st.Slo(tpot=0.05, ttft=2),
        chips=1,
        alternatives=False,
        elasticities=False,
        front=False,
        diagnostics=False,
    )
    memory, longest = plan.pools[0].memory, longest_request(plan)
    free = float(memory.capacity - memory.weights - memory.activations - memory.reserved)
    # 32 layers, 8 heads of keys and of values with 128 numbers of 2 bytes.
    assert 8192 < longest < free / (32 * 2 * 8 * 128 * 2)


@pytest.mark.parametrize(
    ("vendor", "missing"),
    [("AMD", {"trtllm"}), ("Google", {"sglang", "trtllm"}), ("Groq", {"vllm", "sglang", "trtllm"}), ("NVIDIA", set())],
)
def test_engines_that_do_not_run_on_a_chip_say_so(build, vendor, missing):
    for engine in ENGINES:
        lines = launch_commands(build(pool(), vendor=vendor), engine)
        assert (len(lines) == 1 and f"not on chips of {vendor}" in lines[0]) == (engine in missing)


@pytest.mark.parametrize(("vendor", "is_set"), [("AMD", True), ("NVIDIA", False)])
def test_vllm_on_chips_of_amd_switches_their_kernels_on(build, vendor, is_set):
    for plan in (build(pool(tp=8), vendor=vendor), build(pool("prefill"), pool("decode"), vendor=vendor)):
        text = words(launch_commands(plan, "vllm"))
        assert text.count("VLLM_ROCM_USE_AITER=1") == text.count("vllm serve") * is_set


def test_other_chips_need_a_plug_in_and_parts_of_hosts_their_chips(build):
    assert "pip install vllm-tpu, which may not know every flag" in notes(
        launch_commands(build(pool(), vendor="Google"), "vllm")
    )
    parts = build(pool(dp=12, ep=12))
    assert "mpirun -n 12 -H $HOSTS -x CUDA_VISIBLE_DEVICES" in words(launch_commands(parts, "trtllm"))
    assert "-x " not in words(launch_commands(build(pool(dp=16, ep=16)), "trtllm"))


def test_memory_that_the_plan_leaves_to_the_engine(build):
    share = float(pool().memory.capacity)
    assert commands(launch_commands(build(pool(), memory=share / 0.9), "vllm"))[0].one("--gpu-memory-utilization") == "0.9"
    assert "--gpu-memory-utilization" not in words(launch_commands(build(pool(), memory=share), "vllm"))


def test_sglang_has_the_share_of_weights_and_cache_without_activations(build):
    own = pool().memory
    chip = float(own.capacity) / 0.9
    (read,) = commands(launch_commands(build(pool(), memory=chip), "sglang"))
    assert float(read.one("--mem-fraction-static")) == pytest.approx(0.9 - float(own.activations) / chip, abs=1e-4)
    assert "--mem-fraction-static" not in words(launch_commands(build(pool(), memory=float(own.capacity)), "sglang"))


def test_trtllm_has_the_share_of_free_memory(build):
    own = pool().memory
    chip = float(own.capacity) / 0.9
    (read,) = commands(launch_commands(build(pool(), memory=chip), "trtllm"))
    told = options_file(read.files["serve.yaml"])["kv_cache_config"]
    taken = float(own.weights + own.activations)
    assert told["free_gpu_memory_fraction"] == pytest.approx((0.9 * chip - taken) / (chip - taken), abs=1e-4)


def test_sglang_chunk_of_mixed_passes_has_the_sequences_that_decode(build):
    """SGLang takes those sequences from the chunk, and has no mixed passes with drafts."""
    plan = build(pool(batch=200, chunk=512))
    assert commands(launch_commands(plan, "sglang"))[0].one("--chunked-prefill-size") == 768
    drafting = replace(plan, speculation=Speculation(drafts=1, acceptance=1.5))
    lines = launch_commands(drafting, "sglang")
    assert commands(lines)[0].one("--chunked-prefill-size") == 512
    assert "--enable-mixed-chunk" not in words(lines)
    assert any("no prefill together with decode where it drafts" in note for note in notes(lines))


def test_idle_chips_are_said(build):
    lines = launch_commands(replace(build(pool(tp=8)), chips=12), "vllm")
    assert lines[0] == "# 4 chips of the 12 that the cost counts stay idle; the commands use 1 host of 8 chips"


def test_what_to_mind_of_a_whole_plan_stands_first(build):
    plan = replace(build(pool(tp=8)), engine="sglang")
    other = "# planned for SGLang: vLLM may not start this layout, and its times differ; for vLLM plan with --engine vllm"
    assert launch_commands(plan, "vllm")[0] == other
    assert other not in launch_commands(plan, "sglang")
    odd = replace(build(pool(dp=12, ep=12, replicas=2)), chips=24)
    assert (
        launch_commands(odd, "vllm")[0]
        == "# replicas in equal parts take 4 hosts of 8 chips, more than the 24 chips of the plan need"
    )
    assert not launch_commands(replace(odd, chips=32), "vllm")[0].startswith("# equal parts")


def test_vllm_pushes_the_cache_of_prefill_stages(build):
    """Only its connector that pushes takes a cache from stages, and both sides must have the same one."""
    for stages, connector in ((1, "NixlConnector"), (2, "NixlPushConnector")):
        reader = pool("prefill", chunk=0, pp=stages, microbatches=stages)
        lines = "\n".join(launch_commands(build(reader, pool("decode", chunk=0)), "vllm"))
        assert re.findall(r'"kv_connector":"(\w+)"', lines) == [connector, connector]


@pytest.mark.parametrize(
    ("role", "layout", "refused"),
    [
        ("decode", {"pp": 2, "microbatches": 2}, "pipeline stages in a decode pool"),
        ("prefill", {"pp": 2, "microbatches": 2}, ""),
        ("decode", {"tp": 2, "cp": 2}, "all 4 chips of a data-parallel rank"),
        ("decode", {"cp": 4}, ""),
    ],
)
def test_vllm_says_which_pools_its_connector_refuses(build, role, layout, refused):
    said = [note for note in notes(launch_commands(build(pool(role, chunk=0, **layout)), "vllm")) if "will not start" in note]
    assert len(said) == bool(refused)
    assert refused in "".join(said)


def test_an_engine_that_cannot_start_the_plan_of_another_has_a_reason_and_no_command(build):
    plan = replace(build(pool(tp=2, dp=2)), engine="vllm")
    lines = launch_commands(plan, "trtllm")
    assert len(notes(lines)) == len(lines)
    assert "makes each chip a data-parallel rank" in lines[0]
    assert "--engine trtllm --launch trtllm" in " ".join(lines)
    assert list(launch_files(plan, "trtllm")) == ["README.md"]
    assert any("vllm serve" in line for line in launch_commands(plan, "vllm"))


@pytest.mark.parametrize(
    ("chips", "host", "count", "place"),
    [(8, 8, 2, "each of 2 hosts"), (16, 8, 3, "each of 3 groups of 2 hosts"), (2, 8, 9, "9 times on 3 hosts"), (8, 8, 1, "")],
)
def test_a_fleet_says_where_the_command_starts(build, chips, host, count, place):
    hosts = max(1, -(-count * chips // host))
    fleet = Fleet(
        rate=5.0, replicas=count, spare=0, replica_chips=chips, hosts=hosts, chips=hosts * host, utilisation=0.5,
        usd_per_month=1.0, usd_per_million_output_tokens=1.0,
    )  # fmt: skip
    plan = replace(build(pool(dp=chips, ep=chips), host_chips=host), fleet=fleet)
    fleet_notes = [note for note in notes(launch_commands(plan, "vllm")) if note.startswith("the fleet has ")]
    assert len(fleet_notes) == bool(place)
    assert place in "".join(fleet_notes)
