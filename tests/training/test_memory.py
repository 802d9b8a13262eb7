"""Bytes of the fullest chip: states a parameter, activations in flight, and peaks that were measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steptime.models.model_loading import read_model
from steptime.training.layer_profile import layer_profiles
from steptime.training.schedules.schedule import known_schedules, schedule_named
from steptime.training.training_job import TrainingLayout
from steptime.training.training_memory import PARTS, activation_bytes, memory_by_layer, training_memory
from steptime.training.training_stack import IDEAL, training_engine
from steptime.training.training_step import fullest_stage_parameters, parameters_per_layer, step_seconds
from tests.conftest import each
from tests.training.cases import CHIP, SMALL, SPARSE, golden, gpt, job, llama, model, system, toy

LAYERS, WEIGHTS = 8, 1e9
ALL = LAYERS * WEIGHTS


def memory(of=None, asked=None, engine=IDEAL, on=CHIP, m=4, **layout):
    asked = asked or job(seq=4096)
    return training_memory(of or toy(), asked, on, engine, TrainingLayout(**layout), microbatches=m)


def states(**given):
    found = memory(**given)
    return float(found.weights + found.gradients + found.optimizer)


@each(
    "given, bytes_",
    [
        ({"sharding": "none"}, 18),  # 2 + 4 + 12: Megatron-LM, training/theoretical_memory_usage.py
        ({"sharding": "none", "asked": job(gradient_bytes=2.0)}, 16),  # 2 + 2 + 12 (arXiv 1910.02054, section 3.1)
        ({"sharding": "zero1", "dp": 8}, 6 + 12 / 8),
        ({"sharding": "zero1", "dp": 4, "cp": 2}, 6 + 12 / 8),
        ({"sharding": "zero2", "dp": 8}, 2 + (4 + 12) / 8),
        ({"sharding": "zero3", "dp": 8}, (4 + 12) / 8),  # FSDP's weights are the fp32 master copy: what it gathers is apart
        ({"sharding": "zero3", "dp": 32, "sharding_group": 8}, (4 + 12) / 8),
        ({"sharding": "none", "asked": job(optimizer="adamw-bf16")}, 14),  # DeepSeek-V3: 2 + 4 + 4 + 2 + 2
        ({"sharding": "none", "asked": job(optimizer="adam-bf16", gradient_bytes=2.0)}, 8),  # no master copy
        ({"sharding": "none", "asked": job(optimizer="muon")}, 14),  # one fp32 moment
        ({"sharding": "none", "asked": job(optimizer="sgd")}, 14),
        ({"sharding": "none", "asked": job(optimizer="adafactor")}, 10),
        ({"sharding": "none", "asked": job(optimizer="adamw-fp8")}, 10),
        ({"sharding": "none", "asked": job(task="lora")}, 2),  # a frozen base
        ({"sharding": "none", "asked": job(task="lora", dtype="fp8")}, 1),
        ({"sharding": "none", "schedule": "dualpipe", "pp": 8}, (4 + 8 + 12) / 8),  # two copies of weights and gradients
    ],
)
def test_bytes_of_states_a_parameter(given, bytes_):
    assert states(**given) / ALL == pytest.approx(bytes_, rel=1e-3)


def test_states_are_divided_by_tensor_and_pipeline_parallelism():
    assert states(tp=8, sharding="none") == pytest.approx(18 * ALL / 8)
    assert states(pp=4, sharding="none") == pytest.approx(18 * ALL / 4)


@each("tp", [1, 2, 8, 16])
@each("name", [SMALL, "llama-3.1-405b"])
def test_shards_of_products_are_the_whole(name, tp):
    """Keys and values of eight heads are whole on each of more ranks, norms on all."""
    for sheet, _ in layer_profiles(model(name)):
        held = parameters_per_layer(sheet, TrainingLayout(tp=tp))
        whole = sum(p.weights for p in sheet.products)
        doubled = sum(p.weights * (tp / min(tp, p.limit) - 1) for p in sheet.products)
        assert tp * (held.dense - sheet.small) == pytest.approx(whole + doubled)
        assert doubled == 0 or tp > 8


@each("ep", [1, 4, 16, 128])
def test_shards_of_experts_are_the_whole(ep):
    ((sheet, _),) = layer_profiles(model(SPARSE))
    held = parameters_per_layer(sheet, TrainingLayout(dp=128, ep=ep))
    assert ep * held.experts == sum(p.weights for p in sheet.products if p.routed)


def test_stages_of_405b_hold_its_layers_and_the_first_its_embedding():
    """405B on 16 stages: 7 layers and the embedding or the head against 8 layers of 3.2e9: the middle is the fullest."""
    layer = 4 * 16384 * 16384 // 2 + 2 * 16384 * 1024 + 3 * 16384 * 53248 + 2 * 16384
    found = fullest_stage_parameters(model("llama-3.1-405b"), TrainingLayout(pp=16))
    assert float(found.all) == 8 * layer
    two = fullest_stage_parameters(model("llama-3.1-405b"), TrainingLayout(pp=2))
    assert float(two.all) == 63 * layer + 128256 * 16384


def test_activations_of_a_layer_are_divided_by_tensor_and_context_parallelism():
    """Llama 3 70B: 274,688 B a token."""
    ((sheet, _),) = layer_profiles(model("llama-3-70b"))
    kept, whole = activation_bytes(sheet, job(seq=8192), TrainingLayout(tp=8, cp=2, micro_batch=4))
    assert float(kept) == float(whole) == 4 * 8192 / 2 / 8 * 274_688


@each(
    "recompute, kept",
    [
        ("none", 274_688),
        ("full", 2 * 8192),
        ("reversible", 0),
        ("norms", 274_688 - 4 * 8192),
        ("activation", 274_688 - 2 * 28672),
        ("mlp", 274_688 - 6 * 28672),
        ("selective", 274_688),  # flash attention keeps no scores, and its output is what the next product reads
        ("norms+mlp", 274_688 - 4 * 8192 - 6 * 28672),
    ],
)
def test_what_recomputation_leaves_of_a_layer_of_70b(recompute, kept):
    ((sheet, _),) = layer_profiles(model("llama-3-70b"))
    found, whole = activation_bytes(sheet, job(), TrainingLayout(recompute=recompute))
    assert float(found) == 4096 * kept
    assert float(whole) == 4096 * 274_688


@each("schedule, virtual, flight", [("gpipe", 1, 8), ("1f1b", 1, 3), ("interleaved", 2, None)])
def test_reversible_stages_keep_two_streams_of_each_micro_batch_in_flight(schedule, virtual, flight):
    """What a chunk puts out, in 16 bits, for each micro-batch that has passed it; by 1F1B a middle stage is fullest, with 3."""

    def activations(recompute):
        layout = TrainingLayout(tp=8, pp=4, virtual_stages=virtual, schedule=schedule, recompute=recompute)
        asked = job(seq=8192, batch=8)
        engine = training_engine("megatron", system())
        return training_memory(model("llama-3.1-405b"), asked, system(), engine, layout, microbatches=8.0).activations

    streams = 2 * 2 * 16384 * 8192 / 8
    ((sheet, _),) = layer_profiles(model("llama-3.1-405b"))
    whole = float(activation_bytes(sheet, job(seq=8192), TrainingLayout(tp=8))[1])
    chunks = (float(activations("reversible")) - whole) / streams
    if flight:
        assert chunks == pytest.approx(flight)
    else:
        assert 8 <= chunks <= 16  # two chunks of each of four to eight micro-batches


def test_llama_405b_s_long_contexts_fit_as_published_and_16_times_as_long_only_with_reversible_layers():
    """Table 4 of arXiv 2407.21783: tensor 8, context 16, pipeline 16, 8 copies; 131,072 tokens, kept without recomputation."""

    def fits(recompute, seq):
        layout = TrainingLayout(tp=8, cp=16, pp=16, dp=8, sharding="zero1", recompute=recompute, schedule="interleaved",
                                virtual_stages=2)  # fmt: skip
        engine = training_engine("megatron", system())
        asked = job(seq=seq, batch=128)
        return bool(training_memory(model("llama-3.1-405b"), asked, system(), engine, layout, microbatches=16.0).fits)

    assert fits("none", 131072)
    words = ("none", "selective", "full", "reversible")
    assert [fits(word, 2**21) for word in words] == [False, False, False, True]


def test_scores_take_five_bytes_where_attention_is_not_fused_and_selective_drops_them():
    """5 a s^2 b / t (arXiv 2205.05198, equation 1)."""
    ((sheet, _),) = layer_profiles(model("llama-3-70b"))
    asked = job(seq=2048, attention="unfused")
    kept, _ = activation_bytes(sheet, asked, TrainingLayout(tp=8))
    masks = 2 * 8192
    assert float(kept) == 2048 * (274_688 + masks) / 8 + 5 * 64 * 2048**2 / 8
    dropped, whole = activation_bytes(sheet, asked, TrainingLayout(tp=8, recompute="selective"))
    assert float(whole) == float(kept)
    assert float(dropped) == 2048 * (274_688 + masks) / 8


@each(
    "sequence_parallel, recompute, per_value",
    [
        (False, "none", 10 + 24 / 8 + 5 * 64 * 2048 / 6144 / 8), (True, "none", (34 + 5 * 64 * 2048 / 6144) / 8),
        (False, "selective", 10 + 24 / 8), (True, "selective", 34 / 8), (False, "full", 2), (True, "full", 2 / 8),
    ],
)  # fmt: skip
def test_activations_of_a_gpt_layer_are_those_of_korthikanti_s_table_2(sequence_parallel, recompute, per_value):
    """Table 2 of arXiv 2205.05198, in bytes per value of s b h: 22B, 64 heads of 96, tensor parallel 8."""
    config = gpt(heads=64, width=6144, layers=1)
    ((sheet, _),) = layer_profiles(read_model(config, name="gpt-22b"))
    asked = job(seq=2048, attention="unfused", sequence_parallel=sequence_parallel)
    kept, _ = activation_bytes(sheet, asked, TrainingLayout(tp=8, recompute=recompute))
    assert float(kept) == pytest.approx(2048 * 6144 * per_value, rel=2e-3)


@each("recompute, kept", [("none", True), ("norms", False), ("full", False), ("alternate", False)])
def test_gathered_inputs_stay_where_the_backward_pass_does_not_gather_them(recompute, kept):
    """The input of attention and of the feed-forward block, whole on each of eight ranks: 2 x 2 h bytes a row."""
    ((sheet, _),) = layer_profiles(model("llama-3-70b"))
    layout = TrainingLayout(tp=8, recompute=recompute)
    again, saved = (activation_bytes(sheet, job(gathered_inputs=g), layout) for g in (False, True))
    gathered = 4096 * 7 / 8 * 2 * 2 * 8192
    assert float(saved[0] - again[0]) == (gathered if kept else 0)
    assert float(saved[1] - again[1]) == gathered


def test_the_busiest_rank_has_more_rows_of_experts():
    ((sheet, _),) = layer_profiles(model(SPARSE))
    even, busy = (activation_bytes(sheet, job(expert_imbalance=r), TrainingLayout(ep=8, dp=8))[0] for r in (1.0, 1.5))
    routed = sum(sheet.module_bytes[name] for name in ("moe", "moe_input", "moe_act"))
    assert float(busy - even) == pytest.approx(4096 * routed / 2)


def test_without_sequence_parallelism_norms_and_residuals_are_whole_on_each_rank():
    """10 s b h stays of Korthikanti's 34 (section 4.2.1), less its masks: 8 here."""
    ((sheet, _),) = layer_profiles(model("llama-3-70b"))
    kept, _ = activation_bytes(sheet, job(sequence_parallel=False), TrainingLayout(tp=8))
    assert float(kept) == pytest.approx(4096 * ((274_688 - 8 * 8192) / 8 + 8 * 8192))


@each("name", sorted(known_schedules()))
def test_activations_in_flight_are_those_of_the_schedule(name):
    """A toy keeps 2,000 B a row and layer: eight layers on four stages."""
    schedule = schedule_named(name)
    v = schedule.virtual or 2
    found = memory(m=16, pp=4, virtual_stages=v, schedule=name, sharding="none")
    expected = float(schedule.in_flight(4, 16, v)) * LAYERS / 4 * 2000 * 4096
    assert float(found.activations) == pytest.approx(expected)


def test_one_chip_has_one_micro_batch_in_flight():
    assert float(memory(m=64).activations) == LAYERS * 2000 * 4096
    assert float(memory(m=1, pp=4).activations) == pytest.approx(LAYERS / 4 * 2000 * 4096)
    assert float(memory(m=3, pp=4).activations) == pytest.approx(3 * LAYERS / 4 * 2000 * 4096)


def test_logits_of_the_last_stage_take_six_bytes_each():
    of = model(SMALL)
    found = training_memory(of, job(), system(), IDEAL, TrainingLayout(tp=2, cp=2), microbatches=1)
    assert float(found.logits) == 6 * 4096 / 2 * 128_256 / 2
    wide = training_memory(of, job(logit_bytes=12.0), system(), IDEAL, TrainingLayout(), microbatches=1)
    assert float(wide.logits) == 12 * 4096 * 128_256


def test_divided_weights_are_gathered_for_use():
    """Two layers in 16 bits and the gradients of one; in a pipeline all of a stage."""
    assert float(memory(sharding="zero3", dp=8).gathered) == (2 + 2 + 4) * WEIGHTS
    assert float(memory(sharding="zero3", dp=8, pp=4).gathered) == (2 + 4) * ALL / 4
    assert float(memory(sharding="zero2", dp=8).gathered) == 0
    # One copy: nothing to gather, but the master copy is cast; without a master copy not even that.
    assert float(memory(sharding="zero3").gathered) == (2 + 2) * WEIGHTS
    assert float(memory(sharding="zero3", asked=job(optimizer="adam-bf16")).gathered) == 0
    alone = replace(IDEAL, prefetched=0.0)
    assert float(memory(sharding="zero3", dp=8, engine=alone).gathered) == (2 + 4) * WEIGHTS


def test_work_space_and_one_layers_gradients_are_buffers():
    assert float(memory().buffers) == 2 * WEIGHTS + 0.2e9
    assert float(memory(asked=job(task="lora")).buffers) == 0.2e9
    assert float(memory(engine=replace(IDEAL, reserved_bytes=3e9)).reserved) == 3e9


def test_parts_add_up_and_say_whether_they_fit():
    stack = training_engine("megatron", system())
    found = training_memory(model(SMALL), job(), system(), stack, TrainingLayout(dp=8, micro_batch=2), microbatches=1)
    assert float(found.used) == pytest.approx(sum(float(getattr(found, name)) for name in PARTS))
    assert float(found.used - found.allocated) == float(found.reserved) == 1e9
    assert not found.fits
    assert "does not fit" in found.headline()[0]
    assert float(found.capacity) == float(system().chip.capacity)
    assert 79e9 < float(found.capacity) < 86e9  # 80 GB as labelled; the driver counts 85.5
    assert found.columns()["weights_bytes"] == float(found.weights)


def test_multi_token_prediction_layers_are_on_the_last_stage():
    of = model("deepseek-ai/DeepSeek-V3")
    plain, more = (
        training_memory(of, job(mtp=mtp), system(), IDEAL, TrainingLayout(dp=8, ep=8), microbatches=1) for mtp in (False, True)
    )
    parameters = sum(op.total_weights for layer, n in of.draft for op in layer.ops if op.rows == "routed") / 8
    assert float(more.weights - plain.weights) > 2 * parameters
    assert float(more.activations) > float(plain.activations)


def peaks() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return how far off the peaks of SimuMax's runs are, and how many runs each stands for."""
    shapes = {
        "405b": llama(width=16384, ffn=53248, heads=128, kv=16, layers=4),
        "70b": llama(width=8192, ffn=28672, heads=64, kv=8, layers=12),
    }
    on = system("hgx-b200")
    stack = training_engine("megatron-lm", on)
    names, off, runs = [], [], []
    for row in golden("simumax")["rows"]:
        x = TrainingLayout(tp=row["tp"], pp=row["pp"], cp=row["cp"], dp=row["dp"])
        asked = job(seq=row["seq"], batch=row["batch"], logit_bytes=stack.logit_bytes)
        found = training_memory(shapes[row["model"]], asked, on, stack, x, microbatches=row["batch"] / row["dp"])
        names.append(f"{row['model']} {x} {row['seq']}")
        off.append(float(found.allocated) / (row["peak"] * 2**30) - 1)
        runs.append(row["runs"])
    return names, np.array(off), np.array(runs)


def test_measured_peaks_are_within_one_percent_in_the_mean_and_two_and_a_half_at_worst():
    names, off, runs = peaks()
    assert runs.sum() == 31
    assert np.abs(off) @ runs / 31 <= 0.01
    assert np.abs(off).max() <= 0.025, names[int(np.argmax(np.abs(off)))]


@each(
    "name, given, layout",
    [
        (SMALL, {}, {}),
        (SMALL, {}, {"recompute": "full", "micro_batch": 4, "tp": 4}),
        (SMALL, {}, {"recompute": "reversible"}),
        (SMALL, {"offload": "activations"}, {}),
        (SMALL, {}, {"sharding": "zero3", "dp": 8}),
        # Layers of two kinds, the first kind only at the beginning, with a layer of multi-token prediction.
        ("deepseek-v3", {"mtp": True}, {"recompute": "full", "ep": 8, "dp": 8}),
        ("qwen3-next-80b-a3b", {}, {"recompute": "norms", "ep": 8, "dp": 8}),
    ],
)
def test_memory_by_layer_has_the_peak_of_the_memory_and_the_time_of_the_step(name, given, layout):
    asked, x, shown = job(seq=4096, **given), TrainingLayout(**layout), 3
    peak = training_memory(model(name), asked, system(), IDEAL, x, microbatches=4)
    curve = memory_by_layer(model(name), asked, system(), IDEAL, x, peak, microbatches=shown)
    total = sum(curve.levels.values())
    assert float(total.max()) == pytest.approx(float(peak.used))
    assert float(total.min()) == float(total[-1]) == pytest.approx(float(peak.used - peak.activations - peak.logits))
    assert np.all(np.diff(curve.seconds) > 0)
    slowest = step_seconds(model(name), asked, system(), IDEAL, x).stages.slowest
    assert float(curve.seconds[-1]) == pytest.approx(shown * float(sum(slowest)))


def test_each_layer_adds_its_activations_in_the_forward_pass_and_frees_them_in_the_backward_pass():
    """Llama 3 70B: 274,688 bytes per token and layer, 8 h + 4 q + 4 k + 6 f + 4 a, of 80 layers; tp 8 has an eighth."""
    llama_70b, asked, x = model("llama-3-70b"), job(seq=8192), TrainingLayout(tp=8)
    peak = training_memory(llama_70b, asked, system(), IDEAL, x, microbatches=4)
    curve = memory_by_layer(llama_70b, asked, system(), IDEAL, x, peak, microbatches=1)
    layers = np.concatenate([np.arange(1, 81), [80, 80], np.arange(80, 0, -1), [0]])
    assert curve.levels["activations"] == pytest.approx(layers * 274_688 * 8192 / 8, rel=1e-3)
    # The head is between the passes; its logits stay until the last layer has gone back.
    assert np.flatnonzero(curve.levels["logits"]).tolist() == [80, 81, 82]
