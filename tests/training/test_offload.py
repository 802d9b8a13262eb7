"""Offload to host memory, gathers of quantized inputs, and fused experts: by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import steptime as st
from steptime.cli.main import app_for
from steptime.errors import InputError, UnknownName
from steptime.launch.training_commands import training_commands
from steptime.training.layer_profile import layer_profiles
from steptime.training.layer_time import activation_bytes, layer_passes
from steptime.training.training_alternatives import NothingFits
from steptime.training.training_job import TrainingLayout, host_memory
from steptime.training.training_memory import BUFFERED_LAYERS, training_memory
from steptime.training.training_runs import LARGEST_RUN_OVERHEAD, TYPICAL_RUN_OVERHEAD, Reliability, failure_losses
from steptime.training.training_stack import IDEAL, load_stack
from steptime.training.training_step import fullest_stage_parameters, step_seconds
from tests.conftest import each
from tests.training.cases import SMALL, job, model, system

HOST = 55e9
PARTS = ("optimizer", "activations", "optimizer+activations")


def exposed(**constants):
    """The ideal stack with nothing overlapped."""
    return replace(IDEAL, constants=replace(IDEAL.constants, tensor_overlap=0.0, data_overlap=0.0, **constants))


def test_the_cpu_reads_and_writes_states_at_the_bandwidth_of_host_memory():
    """12 B of states read and written, 4 B of gradients read and 2 B of weights written; a norm of gradients on the chip."""
    assert float(host_memory(system()).bandwidth) == HOST
    x = TrainingLayout(dp=8)
    parameters = float(fullest_stage_parameters(model(SMALL), x).all)
    found = step_seconds(model(SMALL), job(offload="optimizer"), system(), IDEAL, x)
    norm = 4 * parameters / float(system().chip.hbm.bandwidth)
    assert float(found.terms["optimizer"]) == pytest.approx((2 * 12 + 4 + 2) * parameters / 8 / HOST + norm)
    plain = step_seconds(model(SMALL), job(), system(), IDEAL, x)
    assert float(found.total - plain.total) == pytest.approx(float(found.terms["optimizer"] - plain.terms["optimizer"]))


def test_activations_cross_the_link_once_in_each_pass():
    x = TrainingLayout(tp=2)
    sheet, _ = layer_profiles(model(SMALL))[0]
    asked = job(seq=8192, offload="activations")
    moved = float(activation_bytes(sheet, asked, x)[0]) / HOST
    found = layer_passes(sheet, asked, system(), exposed(), x)
    assert float(found.forward["offload"]) == pytest.approx(moved)
    assert float(found.backward["offload"]) == pytest.approx(moved)
    # Half of a pass hides as many seconds of the link.
    half = layer_passes(sheet, asked, system(), replace(exposed(), constants=replace(exposed().constants, data_overlap=0.5)), x)
    computed = sum(float(v) for name, v in half.forward.items() if name != "offload")
    assert float(half.forward["offload"]) == pytest.approx(max(moved - 0.5 * computed, 0.0))


@each("offload", PARTS)
def test_bytes_move_from_the_chip_to_the_host(offload):
    x, of, on = TrainingLayout(dp=8, micro_batch=4), model(SMALL), system()
    asked = job(seq=8192)
    plain, moved = (
        training_memory(of, replace(asked, offload=kind), on, IDEAL, x, microbatches=4) for kind in ("none", offload)
    )
    sheet, layers = layer_profiles(of)[0]
    layer = float(activation_bytes(sheet, asked, x)[0])
    states = float(plain.optimizer) if "optimizer" in offload else 0.0
    activations = layers * layer if "activations" in offload else 0.0
    assert float(plain.host) == 0
    assert float(moved.host) == pytest.approx(states + activations)
    kept = BUFFERED_LAYERS * layer if "activations" in offload else layers * layer
    assert float(moved.activations) == pytest.approx(kept)
    assert float(moved.optimizer) == pytest.approx(float(plain.optimizer) - states)
    assert float(moved.weights) == float(plain.weights)


def test_host_memory_has_an_end():
    """12 B of states of 70B parameters are 840 GB; a chip of a DGX H100 has 256 GB of host memory."""
    moved = training_memory(
        model("llama-3.1-70b"), job(offload="optimizer"), system(), IDEAL, TrainingLayout(sharding="none"), microbatches=1
    )
    roomy = replace(moved, capacity=1e13)
    assert float(roomy.host) > float(roomy.host_capacity) == 256e9
    assert not roomy.fits
    assert replace(roomy, host_capacity=1e13).fits


def test_a_refusal_names_the_memory_that_is_too_small():
    """12 B of states of 406 G parameters on 16 chips are 304 GB in host memory, which has 192 GiB a chip."""
    with pytest.raises(NothingFits, match=r"needs 304\.4 GB of host memory per chip, and 206\.2 GB are there: 98\.3 GB"):
        st.train("llama-3.1-405b", "mi300x-8", chips=16, seq=4096, batch=16, offload="optimizer")


@pytest.mark.thorough
def test_an_offload_is_named_next_to_a_narrower_optimizer():
    """Adam in 8 bits changes the arithmetic; host memory holds the same states."""
    with pytest.raises(NothingFits, match=r"it fits with --optimizer adamw-fp8 or with --offload optimizer$"):
        st.train("llama-3.1-405b", "hgx-h100", chips=64, seq=4096, batch=256, engine="megatron-lm")


def test_a_job_that_does_not_fit_names_an_offload_that_does():
    with pytest.raises(NothingFits, match=r"it fits with --offload optimizer$"):
        st.train(SMALL, "hgx-h100", chips=1, seq=4096, batch=8, engine="megatron-lm")
    found = st.train(SMALL, "hgx-h100", chips=1, seq=4096, batch=8, offload="optimizer", changes=False)
    assert found.step.fits
    assert float(found.step.memory.host) == pytest.approx(12 * 8.03e9, rel=0.01)


def test_offload_of_activations_is_named_where_a_layout_recomputes():
    found = st.train("llama-3.1-70b", "hgx-h100", chips=16, seq=8192, batch=64)
    assert found.step.layout.recompute == "full"
    assert any(change.description == "--offload activations" and change.faster > 1.1 for change in found.changes)


def test_offloads_that_cannot_be():
    with pytest.raises(InputError, match="a frozen base has no optimizer states"):
        st.train(SMALL, "hgx-h100", chips=8, batch=8, task="lora", offload="optimizer")
    with pytest.raises(UnknownName, match="unknown offload 'weights'"):
        st.train(SMALL, "hgx-h100", chips=8, batch=8, offload="weights")
    with pytest.raises(InputError, match="has no host memory"):
        st.train(SMALL, replace(system(), tiers=()), chips=8, batch=8, offload="activations")


@pytest.mark.parametrize("stack", ["torchtitan", "maxtext"])
def test_a_stack_that_cannot_offload_is_refused_before_a_search(stack):
    words = ["train", SMALL, "hgx-h100", "--chips", "8", "--batch", "8", "--offload", "optimizer", "--launch", stack]
    with pytest.raises(InputError, match=f"--launch {stack} cannot configure --offload; use --launch megatron"):
        CliRunner().invoke(app_for(words), words, standalone_mode=False, catch_exceptions=False)


def test_megatron_gets_the_flags_of_an_offload():
    asked = job(seq=8192, batch=8, offload="optimizer+activations")
    (command,) = training_commands(model(SMALL), asked, TrainingLayout(dp=8, recompute="norms"), system(), "megatron")
    text = " ".join(command.words)
    assert "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --overlap-cpu-optimizer-d2h-h2d" in text
    assert "--fine-grained-activation-offloading --offload-modules core_attn attn_proj" in text
    assert "norm" not in text.partition("--offload-modules")[2].partition("--mock-data")[0].replace("attn_proj", "")


@pytest.mark.parametrize(("dtype", "forward", "backward"), [("bf16", 1.0, 1.0), ("fp8", 3 / 4, 4 / 6)])
def test_inputs_are_gathered_in_the_format_of_the_products(dtype, forward, backward):
    """A block gathers twice and scatters once more: in fp8, 1 + 2 B forward and 2 x 1 + 2 B backward, against 4 and 6."""
    on = system()
    fast = replace(on, domains=tuple(replace(d, link=replace(d.link, latency=0.0)) for d in on.domains))
    sheet, _ = layer_profiles(model(SMALL))[0]
    wide, narrow = (layer_passes(sheet, job(dtype=kind), fast, exposed(), TrainingLayout(tp=8)) for kind in ("bf16", dtype))
    for terms, plain, share in ((narrow.forward, wide.forward, forward), (narrow.backward, wide.backward, backward)):
        assert float(terms["tensor parallel"] / plain["tensor parallel"]) == pytest.approx(share)


def test_fused_experts_launch_nothing_and_move_less():
    """Qwen3's recipe in mxfp8 has them, and in bf16 it has not; 8 experts of 768 columns have 5 x 6,144 values a row."""
    sheet, _ = layer_profiles(model("qwen3-30b-a3b"))[0]
    assert sheet.fused_values == 5 * 8 * 768
    x = TrainingLayout(dp=8, ep=8, micro_batch=4)
    asked = {"seq": 4096, "batch": 64, "layout": x, "engine": "megatron"}
    found = {kind: st.training_step("qwen3-30b-a3b", "gb200-nvl72", dtype=kind, **asked).terms for kind in ("mxfp8", "bf16")}
    assert "launch" not in found["mxfp8"] or not float(found["mxfp8"]["launch"])
    assert float(found["bf16"]["launch"]) > 0
    other = st.training_step("moonshotai/Kimi-K2-Instruct", "gb200-nvl72", dtype="mxfp8", **asked).terms
    assert float(other["launch"]) > 0


def test_models_of_one_family_have_its_recipe():
    recipes = load_stack("megatron")
    for name, fused in (
        ("deepseek-ai/DeepSeek-R1", True),
        ("Qwen/Qwen3-235B-A22B", True),
        ("openai/gpt-oss-120b", True),
        ("moonshotai/Kimi-K2-Instruct", False),
    ):
        assert recipes.recipe_flags(st.load_model(name).family, "gb300")["fused_experts"] is fused
    # On H100 no recipe is in mxfp8, on B200 only that of Qwen3 has fused experts.
    assert [recipes.recipe_flags(family, "b200")["fused_experts"] for family in ("qwen3_moe", "deepseek_v3", "gpt_oss")] == [
        True, False, False,
    ]  # fmt: skip


def test_the_range_of_a_run_is_wider_than_that_of_a_step():
    found = st.train(SMALL, "hgx-h100", chips=64, seq=8192, batch=64, tokens=1e12, changes=False)
    step_high = float(found.step.high / found.step.total)
    run_high = found.run.high / found.run.seconds
    unknown = np.log(LARGEST_RUN_OVERHEAD / TYPICAL_RUN_OVERHEAD)
    shorter, longer = np.log(failure_losses(Reliability(), 64))
    assert np.log(run_high) ** 2 == pytest.approx(np.log(step_high) ** 2 + unknown**2 + longer**2)
    step_low = np.log(float(found.step.low / found.step.total))
    run_low = np.log(found.run.low / found.run.seconds * TYPICAL_RUN_OVERHEAD)
    assert run_low**2 == pytest.approx(step_low**2 + shorter**2)
