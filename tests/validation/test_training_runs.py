"""Files of training runs: their columns, what a note says of a machine, words for recomputation, and layouts not told."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from steptime.catalog.hardware_loading import load_system
from steptime.errors import DataFileError, InputError
from steptime.models.model_loading import load_model
from steptime.training.training_stack import training_engine
from steptime.validation.training_run_table import (
    adjust_system,
    is_training,
    measured_step,
    read_training_runs,
    translate_recompute,
)
from steptime.validation.training_validation import (
    COLUMNS,
    Runs,
    attention_kernel,
    calibrate_training,
    fit,
    fits_without,
    predict_training,
    predicted,
    resolve_layout,
    validate_training,
    write_training_predictions,
)
from tests.cli.test_commands import run
from tests.conftest import each

ROW = {
    "id": "one", "source": "here", "model": "llama-3.1-8b", "system": "hgx-h100", "chips": "8", "seq_len": "8192",
    "global_batch": "64", "micro_batch": "1", "tp": "1", "pp": "1", "cp": "1", "dp": "8", "sharding": "zero1", "dtype": "bf16",
    "recompute": "", "schedule": "", "framework": "Megatron-Bridge", "date": "2025-09", "step_s": "5.0", "note": "",
}  # fmt: skip


def written(folder, *rows, columns=None):
    path = folder / "runs.csv"
    rows = [ROW | row for row in rows]
    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def one(folder, **row):
    ((found,), _) = read_training_runs(written(folder, row))
    return found


@pytest.mark.parametrize(
    ("row", "recompute", "is_open"),
    [
        ({"model": "deepseek-v3", "system": "gb200-nvl72"}, "mla_up_proj", False),
        ({"model": "deepseek-v3"}, "mla_up_proj+mlp", False),
        ({"model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"}, "moe+norms+attention+moe_act", False),
        ({"model": "deepseek-v3", "recompute": "none"}, "none", False),
        ({"model": "deepseek-v3", "framework": "Megatron-LM"}, "none", True),
        ({}, "none", True),
    ],
)
def test_recipes_say_what_a_row_does_not_record(tmp_path, row, recompute, is_open):
    found = one(tmp_path, **row)
    assert (found.layout.recompute, found.open) == (recompute, is_open)


@pytest.mark.parametrize(
    ("row", "overlaps"),
    [
        ({"system": "hgx-b200", "date": "2026-04"}, False),
        ({"system": "hgx-b200", "date": "2026-05"}, True),
        ({"system": "hgx-h100", "date": "2025-10"}, True),
        ({"system": "hgx-h100", "date": "2026-02"}, False),
        ({"system": "hgx-h100", "date": "2025-10", "framework": "Megatron-LM"}, False),
        ({"system": "hgx-h100", "date": "2025-12", "model": "qwen3-30b-a3b"}, True),
        ({"system": "hgx-h100", "date": "2026-03", "model": "qwen3-30b-a3b"}, False),
        ({"system": "hgx-h100", "date": "2026-06", "model": "Qwen/Qwen3-235B-A22B"}, True),
        ({"system": "hgx-b300", "date": "2026-03", "model": "Qwen/Qwen3-235B-A22B"}, False),
        ({"system": "gb200-nvl72", "date": "2026-06", "model": "gpt-oss-120b"}, True),
        ({"system": "gb300-nvl72", "date": "2026-06", "model": "gpt-oss-120b"}, False),
    ],
)
def test_recipes_of_some_releases_overlap_the_exchange_of_tokens(tmp_path, row, overlaps):
    """`moe_a2a_overlap` of the recipes of Megatron-Bridge at its tags."""
    assert one(tmp_path, **{"model": "deepseek-v3"} | row).job.overlapped_exchange is overlaps


@pytest.mark.parametrize(
    ("row", "fused"),
    [
        ({"model": "gpt-oss-120b", "system": "gb200-nvl72", "date": "2026-06"}, True),
        ({"model": "gpt-oss-120b", "system": "gb200-nvl72", "date": "2026-05"}, False),
        ({"model": "gpt-oss-120b", "system": "hgx-b300", "date": "2026-07"}, False),
        ({"model": "qwen3-30b-a3b", "system": "hgx-b200", "date": "2026-06"}, False),
        ({"model": "qwen3-30b-a3b", "system": "hgx-b200", "date": "2026-07"}, True),
        ({"model": "deepseek-v3", "system": "hgx-b300", "date": "2026-07"}, True),
        ({"model": "deepseek-v3", "system": "hgx-b200", "date": "2026-07"}, False),
    ],
)
def test_recipes_of_some_chips_have_fused_experts(tmp_path, row, fused):
    """`cutedsl_fused_grouped_mlp` of the recipes of Megatron-Bridge at v0.5.0 and v0.5.1."""
    assert one(tmp_path, dtype="mxfp8", **row).job.has_fused_experts is fused


def test_a_fit_without_a_group_is_near_a_fit_of_the_others(tmp_path):
    rows = [
        {"id": f"{name} {batch}", "model": name, "global_batch": str(batch), "step_s": str(seconds * batch / 64)}
        for name, seconds in (("llama-3.1-8b", 6.0), ("mistral-7b", 5.0))
        for batch in (64, 128)
    ]
    runs = read_training_runs(written(tmp_path, *rows))[0]
    layouts = [run.layout for run in runs]
    data = Runs(runs, layouts, {})
    labels = [run.model.name for run in runs]
    found = fits_without(data, fit(data), labels)
    assert sorted(found) == sorted(set(labels))
    for name, without in found.items():
        kept = [place for place, label in enumerate(labels) if label != name]
        alone = fit(Runs([runs[i] for i in kept], [layouts[i] for i in kept], {}))
        logs = [predicted(data, f.free, f.differs, slopes=False)[0] for f in (without, alone)]
        assert logs[0] == pytest.approx(logs[1], abs=0.02)
        assert not np.allclose(without.free, fit(data).free)


def test_a_row_is_a_run(tmp_path):
    found = one(tmp_path, tp="2", pp="2", vpp="4", dp="2", peak_memory_gib="70", recompute="full")
    x = found.layout
    assert (x.tp, x.pp, x.virtual_stages, x.dp, x.schedule, x.recompute) == (2, 2, 4, 2, "interleaved", "full")
    assert (found.stack, found.step, found.peak, found.chips) == ("megatron", 5.0, 70 * 2**30, 8)
    assert (found.job.seq, found.job.batch, found.job.dtype) == (8192, 64, "bf16")
    assert not found.open
    assert found.driver


def test_what_a_row_leaves_out_is_as_most_stacks_have_it(tmp_path):
    found = one(tmp_path, micro_batch="", cp="", pp="", sharding="", dp="")
    x = found.layout
    assert (x.pp, x.cp, x.dp, x.micro_batch, x.sharding, x.schedule) == (1, 1, 8, 1, "zero1", "1f1b")
    assert found.open
    assert one(tmp_path, tp="", dp="", pp="").layout is None


@pytest.mark.parametrize(("chips", "recompute"), [("1", "none"), ("8", "full")])
def test_runs_of_automodel_have_the_flags_of_its_recipes(tmp_path, chips, recompute):
    """bf16 parameters with torch.optim.Adam; benchmarks on one chip do not checkpoint."""
    found = one(tmp_path, framework="NeMo AutoModel (FSDP2)", task="lora", sharding="zero3", chips=chips, dp=chips)
    assert (found.stack, found.layout.recompute, found.open) == ("automodel", recompute, False)
    assert (found.job.optimizer, found.job.gradient_bytes, found.job.adapted) == ("adam-bf16", 2.0, ("qkv", "output", "mlp"))
    bridge = one(tmp_path, task="lora")
    assert (bridge.job.adapted, bridge.job.optimizer) == (("qkv",), "adamw")


def test_a_machine_whose_products_its_source_timed_has_their_rate(tmp_path):
    row = {"system": "hgx-b200", "framework": "Megatron-LM", "date": "2026-04"}
    timed, usual = one(tmp_path, source="SimuMax v1.2 B200 real runs", **row), one(tmp_path, **row)
    assert timed.system.chip.reached["compute"] == 0.485 < usual.system.chip.reached["compute"]
    assert predict_training(timed).step > predict_training(usual).step


def test_stacks_with_flash_attention_2_share_a_rate_on_hopper():
    names = {(stack, chips): attention_kernel(stack, chips) for stack in ("torchtitan", "llm-foundry", "megatron")
             for chips in ("hopper", "ampere")}  # fmt: skip
    assert names["torchtitan", "hopper"] == names["llm-foundry", "hopper"] != names["megatron", "hopper"] == "hopper"
    assert {name for (_, chips), name in names.items() if chips == "ampere"} == {"ampere"}
    torchtitan, nemo = (training_engine(stack, load_system("hgx-h100")).chips["h100"] for stack in ("torchtitan", "nemo"))
    assert torchtitan["attention"] < nemo["attention"]


def test_torchtitan_cuts_a_batch_in_as_many_micro_batches_as_stages(tmp_path):
    found = one(tmp_path, framework="torchtitan", micro_batch="", pp="4", dp="2", sharding="zero3")
    assert found.layout.micro_batch == 64 // 2 // 4


def test_hybrid_sharding_has_a_group(tmp_path):
    found = one(tmp_path, sharding="hsdp", sharding_group="4").layout
    assert (found.sharding, found.sharding_group) == ("zero3", 4)
    assert one(tmp_path, sharding="zero3", sharding_group="4").layout.sharding_group == 0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"chips": ""}, "chips: is empty"),
        ({"chips": "eight"}, "chips: must be a number, got 'eight'"),
        ({"chips": "0"}, "chips: must be more than 0"),
        ({"chips": "7.5"}, "chips: must be a whole number"),
        ({"tp": "2"}, "tp x pp x cp x dp = 16 is not the 8 chips of the row"),
        ({"dtype": "bf17"}, "dtype: 'bf17' is not one of bf16"),
        ({"task": "rl"}, "task: an RL step is rollout"),
        ({"task": "play"}, "task: 'play' is not one of"),
        ({"sharding": "zero8"}, "sharding: 'zero8' is not one of"),
        ({"recompute": "half"}, "recompute: 'half' is not one of none, full, selective"),
        ({"schedule": "2f2b"}, "unknown schedule '2f2b'"),
        ({"model": "llama-9"}, "unknown model 'llama-9'"),
        ({"system": "hgx-h1000"}, "unknown system 'hgx-h1000'"),
        ({"step_s": "-5"}, "step_s: must be more than 0"),
    ],
)
def test_rows_that_cannot_be_read_say_why_and_are_not_left_out(tmp_path, row, says):
    runs, rows = read_training_runs(written(tmp_path, row, {}))
    assert len(runs) == len(rows) == 2
    assert says in runs[0]
    found = predict_training(runs[0], name="one")
    assert (found.id, found.fits, found.reason) == ("one", None, runs[0])
    held = validate_training(written(tmp_path, row, {}))
    assert held.runs == 2
    assert [says in text for text in held.unanswered] == [True]


def test_files_that_are_no_training_runs(tmp_path):
    with pytest.raises(DataFileError, match="has no column 'dtype'"):
        read_training_runs(written(tmp_path, {}, columns=["model", "system", "chips", "seq_len", "global_batch"]))
    empty = tmp_path / "empty.csv"
    for text, says in (
        ("model,system,chips,seq_len,global_batch,dtype\n", "no runs"),
        ("model,system\n", "no column 'chips'"),
        ('{"model_id": "llama", "num_prompts": 200}', "no column 'model'"),
        ("", "no column 'model'"),
    ):
        empty.write_text(text, encoding="utf-8")
        with pytest.raises(DataFileError, match=says):
            read_training_runs(empty)
    with pytest.raises(DataFileError, match="no such file"):
        read_training_runs(tmp_path / "none.csv")
    assert is_training(["seq_len", "global_batch", "step_s"])
    assert not is_training(["seq_len", "tpot_s"])


@each(
    "note, outer",
    [
        ("4x100 Gb/s OPA per node", 400 / 8 / 8 * 1e9),  # four ports of 100 Gb/s, which eight chips share
        ("1600 Gbps node-node", 1600 / 8 / 8 * 1e9),
        ("nothing told", 50e9),
    ],
)
def test_links_of_a_node_are_shared_by_its_chips(note, outer):
    before = load_system("hgx-h100")
    after = adjust_system(note, before)
    assert float(after.domains[-1].link.bandwidth) == pytest.approx(outer)
    assert after.domains[0] == before.domains[0]


def test_power_caps_and_memory_are_those_of_the_note():
    before = load_system("hgx-h100")
    after = adjust_system("96 GB H100 at 2.4 TB/s, 500 W cap", before)
    assert after.chip.power_w == 500
    assert float(after.chip.hbm.bandwidth) == 2.4e12
    assert after.chip.hbm.capacity == before.chip.hbm.capacity
    assert adjust_system("", before) == before


@each(
    "recompute, stack, words",
    [
        ("", "megatron", ""),
        ("none", "megatron", "none"),
        ("full", "megatron", "full"),
        ("selective", "megatron", "selective"),
        ("selective", "torchtitan", "alternate"),
        ("minimal", "maxtext", "norms+activation"),
        ("core_attn", "megatron", "attention"),
        ("core_attn+mlp", "megatron", "attention+mlp"),
        ("rmsnorm+mla_up_proj+swiglu", "typical", "norms+mla_up_proj+moe_act"),
        ("layernorm+moe_act", "megatron", "norms+moe_act"),
    ],
)
def test_words_for_recomputation(recompute, stack, words):
    assert translate_recompute(recompute, stack) == words


def test_unknown_words_for_recomputation_are_named():
    with pytest.raises(InputError, match="recompute: 'everything' is not one of none, full, selective, attention"):
        translate_recompute("mlp+everything", "megatron")


def test_steps_from_seconds_from_tokens_and_from_flops():
    of = load_model("llama-3.1-8b")
    base = {"global_batch": "64", "seq_len": "8192", "chips": "8"}
    assert measured_step(base | {"step_s": "5"}, of) == 5
    assert measured_step(base | {"tokens_per_s_per_chip": "8192"}, of) == 64 * 8192 / 8 / 8192
    h, layers, n = 4096, 32, 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    for convention, pairs in (("full", 12), ("causal", 6)):
        row = base | {"model_tflops_per_chip": "400", "flops_convention": convention}
        flops = (6 * n + pairs * layers * h * 8192) * 64 * 8192
        assert measured_step(row, of) == pytest.approx(flops / 8 / 400e12)
    assert measured_step(base | {"model_tflops_per_chip": "400", "flops_convention": "hfu"}, of) is None
    assert measured_step(base, of) is None


def test_recomputation_that_is_not_told_is_the_least_that_fits(tmp_path):
    """8B on eight H100 at 8k: nothing with one sequence, more with more."""
    stack = training_engine("megatron", load_system("hgx-h100"))
    assert resolve_layout(one(tmp_path, seq_len="4096"), stack).recompute == "none"
    assert resolve_layout(one(tmp_path, micro_batch="8"), stack).recompute == "full"
    words = [resolve_layout(one(tmp_path, micro_batch=str(mbs), seq_len="4096"), stack).recompute for mbs in (1, 2, 4)]
    order = ("none", "norms+activation", "mlp", "full")
    assert [order.index(word) for word in words] == sorted(order.index(word) for word in words)
    assert words[-1] != "none"
    assert resolve_layout(one(tmp_path, micro_batch="8", recompute="none"), stack).recompute == "none"


def test_a_mapping_that_is_not_told_is_the_fastest_that_fits(tmp_path):
    stack = training_engine("megatron", load_system("hgx-h100"))
    found = resolve_layout(one(tmp_path, tp="", dp="", pp=""), stack)
    assert found.chips == 8
    assert found.virtual_stages == 1


def test_runs_that_ran_out_of_memory_or_dropped_tokens(tmp_path):
    runs, _ = read_training_runs(
        written(tmp_path, {"note": "OUT OF MEMORY", "micro_batch": "8", "recompute": "none"}, {"note": "tokendrop"})
    )
    full, dropped = (predict_training(run) for run in runs)
    assert runs[0].out_of_memory
    assert full.fits is False
    assert "needs" in full.reason
    assert dropped.fits is None
    assert "tokens were dropped" in dropped.reason


def test_a_model_may_be_a_config_beside_the_file(tmp_path):
    (tmp_path / "mine.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
                    "intermediate_size": 8192,
                    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 10, "vocab_size": 50000,
                    "torch_dtype": "bfloat16"}), encoding="utf-8")  # fmt: skip
    assert one(tmp_path, model="mine.json").model.depth == 10


def test_ages_of_kernels_follow_the_date(tmp_path):
    old, new = one(tmp_path, date="2021-04"), one(tmp_path, date="2025-09")
    assert (old.job.attention, new.job.attention) == ("unfused", "flash")
    assert (old.job.sequence_parallel, new.job.sequence_parallel) == (False, True)
    assert predict_training(old).step > predict_training(new).step


def test_predictions_are_a_row_each(tmp_path):
    path = written(tmp_path, {}, {"id": "two", "dtype": "bf17"}, {"id": "three", "chips": "16", "dp": "16"})
    out = tmp_path / "out.csv"
    write_training_predictions(out, validate_training(path).predictions)
    with open(out, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["id"] for row in rows] == ["one", "two", "three"]
    assert (rows[1]["step_s"], rows[1]["fits"]) == ("", "")
    assert rows[1]["reason"]
    for row in (rows[0], rows[2]):
        assert float(row["step_low_s"]) < float(row["step_s"]) < float(row["step_high_s"])
        tokens = 64 * 8192 / float(row["step_s"]) / (8 if row["id"] == "one" else 16)
        assert float(row["tokens_per_s_per_chip"]) == pytest.approx(tokens)
        assert row["fits"] == "true"
        assert float(row["peak_memory_gib"]) > 8e9 * (6 + 12 / 16) / 2**30


def test_validate_and_calibrate_know_the_file_by_its_columns(tmp_path):
    path = written(tmp_path, {}, {"id": "two", "global_batch": "128", "step_s": "10"})
    shown = run(f"validate {path} --predictions {tmp_path / 'out.csv'}")
    assert (shown.returncode, "training runs" in shown.stdout) == (0, True)
    assert len((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()) == 3
    found = json.loads(run(f"validate {path} --json").stdout)
    assert found["schema"] == "steptime.training_validation/2"
    assert found["runs"] == 2
    both = run(f"validate {path} {path}")
    assert both.returncode == 2
    assert "has training runs; give no other file with it" in both.stderr


def test_a_stack_fitted_to_ones_own_runs_goes_half_the_way_and_more(tmp_path):
    """Four runs twice as slow as the prior says: the fitted stack is nearer to them than to the prior."""
    rows = [{"id": str(b), "global_batch": str(b)} for b in (64, 128, 256, 512)]
    prior = [predict_training(one_) for one_ in read_training_runs(written(tmp_path, *rows))[0]]
    slow = [row | {"step_s": str(2 * p.step)} for row, p in zip(rows, prior, strict=True)]
    path = written(tmp_path, *slow)
    made, text, runs = calibrate_training(path, name="mine")
    assert runs == 4
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    after = validate_training(path, engine=str(tmp_path / "mine.toml"))
    for found, before in zip(after.predictions, prior, strict=True):
        assert before.step * 2**0.5 < found.step < before.step * 2.2
    assert made.name == "mine"
