"""Forty plans' commands: every flag and value is one that the engine's released package has, and read back they take the
memory that the plan says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from steptime.launch.launch_commands import ENGINES, launch_commands, launch_files
from steptime.models.model_loading import load_model
from steptime.physics.chip_memory import memory_per_chip
from steptime.physics.compute_dtype import as_served
from steptime.physics.engine import load_engine
from tests.launch.draws import drawn, plans
from tests.launch.reading import commands, golden, known, options_file, said


def each(count):
    return [(made, model, machine, engine) for made, model, machine in plans(count) for engine in ENGINES]


def check(read) -> None:
    """Hold a command to the flags that were extracted from its package."""
    if read.program == "nginx":
        return
    flags, counted = known(read.program)
    assert set(read.flags) <= flags, set(read.flags) - flags
    for flag, uses in read.flags.items():
        if flag in counted:
            assert {value for values in uses for value in values} <= counted[flag], (flag, uses)


@drawn
def test_every_flag_and_value_is_the_engines_own(count):
    seen, found = set(), 0
    for made, _, _, engine in each(count):
        for read in commands(launch_commands(made, engine)):
            check(read)
            found += 1
            seen |= set(read.flags)
            for flag, fields in golden("vllm")["objects"].items():
                if read.program == "vllm serve" and flag in read.flags:
                    assert set(json.loads(read.one(flag))) <= set(fields), flag
    assert found > 3 * count
    assert {"--kv-cache-dtype", "--moe-a2a-backend", "--ep_size", "--nnodes"} <= seen
    assert {"--enable-dbo", "--quantization"} <= seen or count < 40


@drawn
def test_every_key_of_an_options_file_is_the_engines_own(count):
    models = golden("tensorrt_llm")["objects"]
    inner = {
        "kv_cache_config": "KvCacheConfig", "moe_config": "MoeConfig", "cache_transceiver_config": "CacheTransceiverConfig",
    }  # fmt: skip
    found = 0
    for made, *_ in plans(count):
        for read in commands(launch_commands(made, "trtllm")):
            for name, text in read.files.items():
                told = options_file(text)
                if name == "router.yaml":
                    assert set(told) <= set(models["disaggregated"])
                elif name.endswith(".yaml"):
                    assert set(told) <= set(models["BaseLlmArgs"]) | set(models["TorchLlmArgs"])
                    for key, of in inner.items():
                        fields = told.get(key, {})
                        assert set(fields) <= set(models[of])
                        assert all(not models[of][k] or v in models[of][k].split() for k, v in fields.items())
                    found += 1
    assert found >= 0.75 * count


@drawn
def test_variables_of_the_environment_are_the_engines_own(count):
    extracted = {name for package in ("vllm", "sglang") for name in golden(package)["environment"]}
    used = set()
    for made, _, _, engine in each(count):
        for read in commands(launch_commands(made, engine)):
            used |= set(read.environment)
    used -= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVSHMEM_QP_DEPTH"}  # of CUDA, HIP and NVSHMEM
    assert used <= extracted
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in used


@drawn
def test_read_back_a_command_takes_the_memory_of_the_plan(count):
    """Layout, formats, sequences and tokens of the printed command, put into the memory of a chip, give the plan's figure."""
    checked, off = 0, []
    for made, model, machine, engine in each(count):
        servers = [read for read in commands(launch_commands(made, engine)) if "--headless" not in read.flags]
        servers = [read for read in servers if read.program in ("vllm serve", "python -m sglang.launch_server", "trtllm-serve")]
        servers = [read for read in servers if read.one("--node-rank", 0) == 0]
        assert len(servers) in (0, len(made.pools))
        for read, pool in zip(servers, made.pools, strict=False):
            layout = pool.layout
            if engine == "trtllm" and (layout.cp > 1 or (layout.dp > 1 and layout.group > 1)):
                continue  # no flag: the comment says so
            if engine == "trtllm" and -(-pool.max_num_seqs // layout.pp) * layout.pp > 1.05 * pool.max_num_seqs:
                continue  # which counts whole requests for each micro-batch
            told = said(read, made.served.routed_experts)
            place = read.place or read.one("--model-path")
            if place == "$CHECKPOINT":
                as_read = as_served(model, machine, load_engine(made.engine))  # a comment says in which formats it must be
            else:
                as_read = load_model(place, weights=told.weights, kv=told.kv)
                assert as_read.kv_format == made.served.kv
            at = made.workload
            batch, context = told.sequences, at.input_tokens + at.output_tokens / 2
            if pool.role == "prefill":
                batch, context = 2 * told.sequences, at.input_tokens  # one pass under way, one being sent on
            memory = memory_per_chip(
                as_read, machine, batch=batch, context=context, layout=told.layout, engine=made.engine, step_tokens=told.tokens
            )
            apart = float(np.abs(memory.used / pool.memory.used - 1))
            checked += 1
            if apart > 0.05:
                off.append((made.model, made.system, engine, made.layout_text, pool.role, apart))
    assert not off
    assert checked > 2.5 * count


@pytest.mark.parametrize("engine", ENGINES)
@drawn
def test_scripts_say_what_is_printed(engine, count):
    """Each script is a command of the same flags, with the variables of the shell filled in or set before it."""
    for made, *_ in plans(count):
        printed = {frozenset(read.flags) for read in commands(launch_commands(made, engine))}
        for name, text in launch_files(made, engine).items():
            if not name.endswith(".sh") or name == "addresses.sh":
                continue
            lines = text.splitlines()
            start = next(n for n, line in enumerate(lines) if line.startswith(("exec ", "cat > ")))
            for read in commands([line.removeprefix("exec ") for line in lines[start:]]):
                check(read)
                assert frozenset(read.flags) in printed
