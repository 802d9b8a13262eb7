"""Host and disk tiers of a plan for sessions in the commands of each engine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from steptime.launch.launch_commands import ENGINES, launch_commands, launch_files
from steptime.planning.session_hits import SessionCache, TierHits
from steptime.workload.sessions import Sessions
from tests.launch.conftest import pool
from tests.launch.reading import commands, golden, known, options_file

SESSIONS = Sessions(turns=3, input_tokens=100, output_tokens=100, think_time=10, system_prompt=0)


def tier(name: str, capacity: float, why_unused: str = "") -> TierHits:
    return TierHits(
        name=name, capacity=capacity, hold_seconds=60.0, hit_share=0.2, load_seconds=0.0, bandwidth_share=0.1,
        why_unused=why_unused,
    )  # fmt: skip


def with_tiers(plan, *tiers: TierHits):
    cache = SessionCache(
        sessions=SESSIONS, mean_turns=3.0, sessions_in_progress=10.0, held_share=0.8, hit_share=0.6, is_replayed=False,
        tiers=(tier("hbm", 1e9), *tiers), load_seconds=0.0, needed_bytes=1e12, needed_tier="host",
    )  # fmt: skip
    return replace(plan, session_cache=cache)


@pytest.fixture
def stored(build):
    """Return a plan of two data-parallel ranks of two chips, with 400 GB of host memory and 4 TB of disk per replica."""
    return with_tiers(build(pool(tp=2, dp=2)), tier("host", 400e9), tier("ssd", 4e12), tier("hdd", 9e13, "slower than prefill"))


def notes(lines: list[str]) -> list[str]:
    return [line[2:] for line in lines if line.startswith("#")]


def test_vllm_offloads_to_host_memory_and_a_folder(stored):
    """`cpu_bytes_to_use` counts for one data-parallel rank: half of 400 GB."""
    lines = launch_commands(stored, "vllm")
    config = json.loads(commands(lines)[0].one("--kv-transfer-config"))
    settings = config["kv_connector_extra_config"]
    assert (config["kv_connector"], config["kv_role"]) == ("OffloadingConnector", "kv_both")
    assert settings == {
        "cpu_bytes_to_use": 200_000_000_000, "offload_prompt_only": False, "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": "/mnt/ssd_kv_cache"}],
    }  # fmt: skip
    assert set(config) <= set(golden("vllm")["objects"]["--kv-transfer-config"])
    assert "/mnt/ssd_kv_cache: folder on the ssd tier, 4.00 TB per replica" in notes(lines)
    assert not any("hdd" in line for line in lines)


def test_sglang_has_a_hierarchical_cache_of_each_chip(stored):
    """Sizes count for one of four chips: 100 GB, and 1 TB of files."""
    lines = launch_commands(stored, "sglang")
    read = commands(lines)[0]
    assert "--enable-hierarchical-cache" in read.flags
    assert (read.one("--hicache-size"), read.one("--hicache-storage-backend")) == (100, "file")
    flags, counted = known(read.program)
    assert {"--enable-hierarchical-cache", "--hicache-size"} <= flags
    assert "file" in counted["--hicache-storage-backend"]
    set_by_tiers = {name for name in read.environment if "HICACHE" in name}
    assert set_by_tiers <= set(golden("sglang")["environment"])
    assert read.environment["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == "/mnt/ssd_kv_cache"
    assert read.environment["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] == "1000000000000"


def test_trtllm_has_a_host_cache_and_says_that_it_has_no_disk(stored):
    lines = launch_commands(stored, "trtllm")
    read = commands(lines)[0]
    told = options_file(read.files[read.one("--extra_llm_api_options")])
    assert told["kv_cache_config"]["host_cache_size"] == 100_000_000_000
    assert "host_cache_size" in golden("tensorrt_llm")["objects"]["KvCacheConfig"]
    assert any(note.startswith("no ssd tier is set up") for note in notes(lines))


@pytest.mark.parametrize("engine", ENGINES)
def test_tiers_of_plans_without_sessions_and_of_hbm_alone_add_nothing(build, engine):
    plan = build(pool(tp=2, dp=2))
    assert launch_commands(with_tiers(plan), engine) == launch_commands(plan, engine)
    assert not any("tier" in line or "hicache" in line for line in launch_commands(plan, engine))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_disks_without_host_memory_are_not_set_up(build, engine):
    lines = launch_commands(with_tiers(build(pool(tp=2)), tier("host", 0.0), tier("ssd", 4e12)), engine)
    flags = commands(lines)[0].flags
    assert not {"--kv-transfer-config", "--enable-hierarchical-cache"} & set(flags)
    assert sum("no ssd tier is set up" in note for note in notes(lines)) == 1


@pytest.mark.parametrize(
    ("layout", "capacity"), [({"cp": 2}, 400e9), ({"tp": 2}, 1e9)], ids=["decode context parallelism", "less than 1 GB a chip"]
)
def test_sglang_refuses_tiers_in_one_note(build, layout, capacity):
    lines = launch_commands(with_tiers(build(pool(**layout)), tier("host", capacity)), "sglang")
    assert "--enable-hierarchical-cache" not in commands(lines)[0].flags
    assert sum("no tier behind HBM is set up" in note for note in notes(lines)) == 1


def test_vllm_of_other_chips_refuses_tiers(build):
    lines = launch_commands(with_tiers(build(pool(tp=2), vendor="Google"), tier("host", 4e11)), "vllm")
    assert "--kv-transfer-config" not in commands(lines)[0].flags
    assert sum("no tier behind HBM is set up" in note for note in notes(lines)) == 1


def test_separate_pools_hold_the_prefix_cache_where_prompts_are_prefilled(build):
    plan = build(pool("prefill", batch=4, chunk=0, tp=2), pool("decode", batch=20, chunk=0, tp=4))
    prefill, decode, _ = commands(launch_commands(with_tiers(plan, tier("host", 4e11)), "vllm"))
    both = json.loads(prefill.one("--kv-transfer-config"))
    assert both["kv_connector"] == "MultiConnector"
    names = [child["kv_connector"] for child in both["kv_connector_extra_config"]["connectors"]]
    assert names == ["NixlConnector", "OffloadingConnector"]
    assert json.loads(decode.one("--kv-transfer-config")) == {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    prefill, decode, _ = commands(launch_commands(with_tiers(plan, tier("host", 4e11)), "sglang"))
    assert prefill.one("--hicache-size") == 200
    assert "--enable-hierarchical-cache" not in decode.flags


@pytest.mark.parametrize(("engine", "is_noted"), [("vllm", False), ("sglang", True), ("trtllm", True)])
def test_copies_of_latent_attention_are_said_where_each_chip_stores_one(build, engine, is_noted):
    """Two chips store each token twice. vLLM shares one copy of latent attention in host memory."""
    plan = build(pool(tp=2))
    room = plan.pools[0].memory.cache_room
    once = float(room) * 2 / (plan.pools[0].kv_tokens_per_rank * 2)
    copied = replace(plan, served=replace(plan.served, kv_bytes_per_token=once))
    lines = launch_commands(with_tiers(copied, tier("host", 4e11)), engine)
    assert any("holds 1/2 of the plan's tokens" in note for note in notes(lines)) == is_noted
    less = replace(copied, served=replace(copied.served, kv_bytes_per_token=2 * once))
    assert not any("of the plan's tokens" in line for line in launch_commands(with_tiers(less, tier("host", 4e11)), engine))


def test_the_manifest_has_the_tiers(stored):
    text = launch_files(stored, "vllm")["dynamo.yaml"]
    assert "OffloadingConnector" in text
    assert "--hicache-size" in launch_files(stored, "sglang")["dynamo.yaml"]
    assert "host_cache_size" in launch_files(stored, "trtllm")["dynamo.yaml"]
