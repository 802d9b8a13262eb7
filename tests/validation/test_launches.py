"""How public deployments were launched: ways that their columns tell wrong, and a kernel that splits no context."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from steptime.physics.engine import IDEAL, constant, load_engine, with_constants
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step
from steptime.validation.predictions import grouped, predict, predict_runs
from steptime.validation.published_deployments import (
    FLASHINFER_SHARE,
    PAIRS,
    PoolLaunch,
    as_launched,
    cache_format,
    is_scripted,
    latent_contexts,
    launch_constants,
    output_format,
    pool_launch,
    token_budget,
    with_contexts,
    with_gathering,
)
from steptime.validation.run_table import (
    OUTPUT_FORMAT,
    POOLS,
    PREFILL_SCHEDULE,
    TOKEN_BUDGET,
    is_drafted,
    read_runs,
    run_kind,
)
from tests.conftest import each
from tests.validation.rows import SHARED, apart, deepseek

ON = load_engine("sglang")
DECEMBER = {"part": "ix_disaggregated", "system": "gb200-nvl72", "measured": "2025-12-10", "chips": ""}
WIDE = DECEMBER | {"tp": "1", "dp": "24", "ep": "24.0", "input_tokens": "8192", "prefill_dp": "8", "decode_workers": "1"}
FOUR = DECEMBER | {
    "measured": "2025-12-19",
    "tp": "1.0",
    "dp": "4",
    "ep": "4",
    "weight_dtype": "nvfp4",
    "expert_dtype": "nvfp4",
}


@each(
    "changes, contexts",
    [
        ({}, PAIRS),
        ({"input_tokens": "1024", "output_tokens": "8192"}, PAIRS),
        ({"input_tokens": "1024.0"}, math.inf),  # launched by other scripts
        ({"measured": "2025-12-19"}, math.inf),  # from then on contexts are split
        ({"measured": ""}, math.inf),
        ({"weight_dtype": "nvfp4"}, math.inf),
        ({"engine": "trtllm"}, math.inf),
        ({"system": "hgx-b200"}, math.inf),
        ({"part": ""}, math.inf),  # a run of one's own
    ],
)
def test_runs_whose_attention_splits_no_context(changes, contexts):
    row = apart(**WIDE | changes)
    assert latent_contexts(row) == contexts
    assert is_scripted(row) == (math.isfinite(contexts) or bool(cache_format(row) or output_format(row)))


@each(
    "changes, ways",
    [
        ({}, ("4", "1", "1")),
        ({"input_tokens": "8192", "weight_dtype": "fp8"}, ("4", "1", "1")),
        ({"weight_dtype": "fp8"}, ("1.0", "4", "4")),
        ({"measured": "2026-02-08"}, ("1.0", "4", "4")),
        ({"measured": "2025-12-18"}, ("1.0", "4", "4")),  # of other scripts
        ({"measured": ""}, ("1.0", "4", "4")),
        ({"dp": "8", "ep": "8"}, ("1.0", "8", "8")),
        ({"part": ""}, ("1.0", "4", "4")),
        ({"model": "moonshotai/Kimi-K2.5"}, ("1.0", "4", "4")),
        ({"pp": "2"}, ("1.0", "4", "4")),
        ({"weight_dtype": "FP8"}, ("1.0", "4", "4")),
        ({"measured": "2025-12-31T10:00"}, ("4", "1", "1")),
        ({"measured": "2025-13-01"}, ("1.0", "4", "4")),
    ],
)
def test_groups_that_were_none(changes, ways):
    row = apart(**FOUR | changes)
    told = dict(row)
    found = as_launched(row)
    assert tuple(found[name] for name in ("tp", "dp", "ep")) == ways
    assert found.get("kv_dtype") == (None if {**found, OUTPUT_FORMAT: ""} == {**row, OUTPUT_FORMAT: ""} else "fp8")
    assert as_launched(found) == found
    assert row == told
    assert is_scripted(row) == (found != row or bool(launch_constants(row)))
    assert is_scripted(found) == bool(launch_constants(found))
    assert found["prefill_tp"] == "8.0"
    reads = as_launched(row | {"prefill_tp": "1.0", "prefill_dp": "4.0", "prefill_ep": "4.0"})
    assert (reads["prefill_tp"] == "4") == (ways == ("4", "1", "1"))


def test_runs_on_atom_prefill_all_waiting_prompts_before_decode():
    """Passes of 16,384 tokens, also of long prompts in 4 bits with many clients; a run of one's own has its engine's."""
    run = {"engine": "typical", "system": "mi355x-8", "weight_dtype": "mxfp4", "expert_dtype": "mxfp4", "concurrency": "128"}
    run |= {"part": "ix_aggregated", "engine_version": "atom nan", "measured": "2026-01-14", "input_tokens": "8192"}
    told = deepseek(**run)
    found = as_launched(told)
    assert (found[PREFILL_SCHEDULE], found[TOKEN_BUDGET], is_scripted(told)) == ("first", "16384", True)
    assert as_launched(told | {"part": ""}) == told | {"part": ""}
    named = told | {"part": "", PREFILL_SCHEDULE: "first", TOKEN_BUDGET: "16384", "length_spread": "0.11111"}
    times = predict([told | {"length_spread": "0.11111"}, named], by_simulation=False)
    assert times.tpot[0] == pytest.approx(times.tpot[1])
    assert times.ttft[0] == pytest.approx(times.ttft[1])


def test_predictions_are_of_runs_as_they_were_launched():
    """What such a replica takes that is told as it was launched, and not what four groups would."""
    told = apart(**FOUR | {"weight_dtype": "fp8", "expert_dtype": "fp8", "input_tokens": "8192", "concurrency": "8"})
    named = told | {"tp": "4", "dp": "1", "ep": "1", "kv_dtype": "fp8"}
    found = predict([told, named, told | {"part": ""}], by_simulation=False)
    assert found.tpot[0] == pytest.approx(found.tpot[1])
    assert found.tpot[2] > 1.2 * found.tpot[0]


def test_steps_take_as_long_for_few_sequences_as_for_many():
    """A pool of 24 groups, each with 2 to 20 sequences at 8,704 tokens of context: at most one for each pair."""
    rows = [apart(**WIDE | {"tpot_s": "0.03", "output_tok_s": str(n / 0.03), "length_spread": "0"}) for n in (48, 240, 480)]
    (runs,) = grouped(rows)
    assert runs.contexts == PAIRS
    whole, split = predict_runs(runs, ON)[0], [predict_runs(one, ON)[0][0] for one in split_of(rows)]
    given = {"context": 8192 + 512, "layout": Layout(dp=24, ep=24), "engine": with_contexts(ON, PAIRS)}
    steps = [decode_step(runs.model, runs.system, batch=n, **given) for n in (48, 240, 480)]
    assert whole == pytest.approx([float(step.total) for step in steps])
    attention = [float(step.terms["attention"]) for step in steps]
    assert attention == pytest.approx([attention[0]] * 3)
    assert np.all(whole > split)


def split_of(rows):
    """The same runs a week later."""
    return [runs for row in rows for runs in grouped([row | {"measured": "2025-12-19"}])]


def test_an_engine_without_the_kernel_is_as_it_was():
    engine = load_engine("sglang")
    assert with_contexts(engine, math.inf) is engine
    told = with_contexts(engine, 76.0)
    assert told.kernels.latent_contexts == 76
    assert with_contexts(told, 40.0) is told  # what an engine tells of itself
    assert with_contexts(IDEAL, 76.0) is IDEAL  # the bound, whatever the kernel


SCRIPTED = {"part": "ix_aggregated", "measured": "2026-02-01", "concurrency": "16"}


@each(
    "changes, tokens",
    [
        ({}, 32768),
        ({"weight_dtype": "nvfp4"}, 16384),
        ({"system": "mi300x-8"}, 131072),
        ({"system": "mi300x-8", "measured": "2025-11-01"}, 196608),
        ({"system": "mi355x-8", "weight_dtype": "mxfp4"}, 196608),
        ({"system": "mi355x-8", "weight_dtype": "mxfp4", "input_tokens": "8192", "concurrency": "64"}, 32768),
        ({"engine": "trtllm"}, 8192),
        ({"engine": "trtllm", "measured": "2026-01-21"}, 1152),  # 16 + 1,024 + 64, in blocks of 64
        ({"engine": "trtllm", "input_tokens": "8192"}, 8320),
        ({"engine": "trtllm", "model": "openai/gpt-oss-120b"}, 20000),
        ({"engine": "vllm", "model": "moonshotai/Kimi-K2.5", "weight_dtype": "nvfp4"}, 8192),
        ({"engine": "vllm", "model": "MiniMaxAI/MiniMax-M2.5", "measured": "2026-04-20"}, 2048),
        ({"engine": "vllm", "system": "mi355x-8"}, 0),
        ({"part": ""}, 0),  # a run of one's own
        ({"part": "ix_disaggregated"}, 0),
    ],
)
def test_tokens_of_a_pass_are_those_of_the_script(changes, tokens):
    row = deepseek(**SCRIPTED | changes)
    assert token_budget(row) == tokens
    assert as_launched(row).get(TOKEN_BUDGET, "0") == str(tokens)
    assert as_launched(row | {TOKEN_BUDGET: "4096"})[TOKEN_BUDGET] == "4096"  # what a row states


APART = {"part": "ix_disaggregated", "measured": "2026-02-01", "weight_dtype": "nvfp4", "input_tokens": "8192"}


@each(
    "changes, prompts, launch",
    [
        ({"engine": "trtllm"}, 2, {"pass_tokens": 16896.0, "pass_prompts": 2.0}),
        (
            {"engine": "trtllm", "system": "gb200-nvl72", "measured": "2025-12-10"},
            1,
            {"pass_tokens": 8448.0, "pass_prompts": 1.0},
        ),
        ({"engine": "trtllm", "input_tokens": "2048"}, math.inf, {}),  # of no script
        ({"prefill_dp": "4"}, 1, {"pass_tokens": 8192.0, "gathers_prefill": True, "gathers_decode": True}),
        ({"system": "gb200-nvl72", "prefill_dp": "4"}, 2, {"pass_tokens": 16384.0, "gathers_prefill": True}),
        ({"system": "gb200-nvl72", "prefill_dp": "8", "weight_dtype": "fp8"}, 2, {"pass_tokens": 16384.0}),
        ({"system": "mi355x-8", "ep": "8"}, 35, {"pass_tokens": 262144.0, "pass_prompts": 128.0, "slots": 256.0}),
        ({"system": "mi355x-8", "prefill_dp": "8"}, 2, {"pass_tokens": 16384.0, "pass_prompts": 3.0, "slots": 128.0}),
        ({"engine": "vllm"}, math.inf, {}),
        ({"model": "moonshotai/Kimi-K2.5"}, math.inf, {}),
        ({"part": ""}, math.inf, {}),
    ],
)
def test_pools_run_with_the_limits_of_their_script(changes, prompts, launch):
    found = pool_launch(apart(**APART | changes))
    assert found == PoolLaunch(**launch)
    assert found.prompts(7373) == prompts


ASSUMED = {"spec": "mtp", "drafted": "3.0", "acceptance": "2.6", "acceptance_assumed": "True"}
MI355 = {"system": "mi355x-8", "weight_dtype": "fp8", "expert_dtype": "fp8", "concurrency": "32"}


@each(
    "changes, drafted, acceptance",
    [
        ({"engine": "trtllm"}, "3", "2.5"),
        ({"engine": "trtllm", "dp": "8", "input_tokens": "1024"}, "2", ""),
        ({"engine": "trtllm", "dp": "4", "input_tokens": "1024"}, "1", ""),
        ({"engine": "trtllm", "dp": "8", "weight_dtype": "fp8", "input_tokens": "1024", "concurrency": "896"}, "3", "2.5"),
        ({"engine": "trtllm", "dp": "8", "weight_dtype": "fp8", "input_tokens": "1024", "concurrency": "1600"}, "2", ""),
        ({}, "2", ""),
        ({"measured": "2026-06-11"}, "3", "2.5"),
        ({"measured": "2026-06-11", "input_tokens": "1024"}, "2", ""),
        (MI355 | {"measured": "2026-01-08"}, "2", "2.72"),  # without a chat template
        (MI355 | {"measured": "2026-02-06"}, "2", ""),
        (MI355 | {"measured": "2026-02-12", "dp": "8", "ep": "8"}, "1", ""),
        (MI355 | {"measured": "2026-02-12"}, "2", ""),
        (MI355 | {"measured": "2026-03-13", "weight_dtype": "mxfp4"}, "3", "2.5"),
        (MI355 | {"measured": "2026-03-13", "weight_dtype": "mxfp4", "concurrency": "64"}, "1", ""),
        ({"part": "ix_mtp", "decode_workers": ""}, "3", "2.5"),
        ({"part": "ix_mtp", "decode_workers": "", "drafted": "2"}, "2", ""),
        ({"acceptance_assumed": "False"}, "3.0", "2.6"),
        ({"model": "moonshotai/Kimi-K2.5"}, "3.0", "2.6"),
        ({"part": "blogs"}, "3.0", "2.6"),
        ({"engine": "vllm"}, "3", "2.5"),  # of no script
    ],
)
def test_assumed_drafts_are_those_of_the_script(changes, drafted, acceptance):
    row = apart(**APART | {"measured": "2026-02-11", "dp": "1", "ep": "1"} | ASSUMED | changes)
    found = as_launched(row)
    assert (found["drafted"], found["acceptance"]) == (drafted, acceptance)
    assert as_launched(found) == found


def test_an_engine_that_gathers_tokens_is_changed_once():
    assert with_gathering(ON, False) is ON
    assert with_gathering(ON, True).kernels.gathers_tokens == 1
    assert with_gathering(IDEAL, True) is IDEAL


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured runs are not beside this checkout")
def test_pools_that_decode_are_near_what_was_measured():
    """Mean |log| of a decode step against the time per token, at the sequences of Little's law: 17 % was asked."""
    rows = [row for row in read_runs(SHARED / "serving_more.csv")[0] if run_kind(row) == POOLS and not is_drafted(row)]
    rows = [row for row in rows if row.get("tpot_s") and row.get("output_tok_s")]
    kept = [row for row, doubt in zip(rows, predict(rows, by_simulation=False).reason, strict=True) if not doubt]
    assert len(kept) > 230
    errors = []
    engines = {name: load_engine(name) for name in {row["engine"] for row in kept}}
    for runs in grouped(kept, engines):
        took = predict_runs(runs, engines[runs.engine])[0]
        errors.append(np.abs(np.log(took / [float(kept[i]["tpot_s"]) for i in runs.index])))
    assert np.mean(np.concatenate(errors)) < 0.17


@each(
    "changes, small",
    [
        ({}, True),
        ({"part": "", "id": "a"}, False),  # a run of one's own
        ({"part": "", "id": "2026-11-20 prod, cfg 3"}, False),
        ({"part": "", "id": "2026_04_06_dsr1_agg_1024x1024_c4_cfg3"}, True),
        ({"engine": "vllm"}, False),
        ({"system": "hgx-h200"}, False),
        ({"system": "mi300x-8", "measured": "2026-01-21"}, False),
        ({"system": "mi300x-8", "measured": "2026-01-22"}, True),
        ({"system": "mi355x-8", "measured": "2025-11-01", "part": "ix_disaggregated"}, True),
        ({"model": "zai-org/GLM-5", "system": "mi355x-8", "measured": "2026-04-16"}, False),
        ({"model": "zai-org/GLM-5", "system": "mi355x-8", "measured": "2026-04-17"}, True),
        ({"model": "Qwen/Qwen3.5-397B-A17B", "weight_dtype": "bf16"}, False),
        ({"model": "Qwen/Qwen3.5-397B-A17B", "system": "hgx-h200"}, True),
    ],
)
def test_scripts_that_keep_the_cache_in_eight_bits(changes, small):
    """--kv-cache-dtype fp8_e4m3 of InferenceX's scripts, from the day on which they have it; a stated format stays."""
    usual = {"system": "hgx-b200", "part": "ix_aggregated", "measured": "2026-03-20", "weight_dtype": "fp8"}
    row = apart(**WIDE | usual | changes)
    assert as_launched(row).get("kv_dtype", "") == ("fp8" if small else "")
    assert as_launched(row | {"kv_dtype": "bf16"})["kv_dtype"] == "bf16"


def test_scripts_without_a_flag_keep_the_cache_in_sixteen_bits():
    """vLLM's runs of MiniMax-M2.5 in FP8 have --kv-cache-dtype on H200 since 2026-05-26 and on B200 since 2026-04-03."""
    row = apart(**WIDE | {"part": "ix_aggregated", "engine": "vllm", "model": "MiniMaxAI/MiniMax-M2.5", "weight_dtype": "fp8"})
    days = {"hgx-h100": "2026-12-31", "hgx-h200": "2026-05-25", "hgx-b200": "2026-04-02"}
    assert {as_launched(row | {"system": name, "measured": day})["kv_dtype"] for name, day in days.items()} == {"bf16"}
    for name, day in (("hgx-h200", "2026-05-26"), ("hgx-b200", "2026-04-03")):
        assert as_launched(row | {"system": name, "measured": day}).get("kv_dtype", "") == ""


@each("version, measured, ranks, share", [
    ("dynamo-trt nan", "2026-01-14", "8", 1.0),
    ("dynamo-trt 0.5.1-rc0.pre3", "2025-12-19", "8", 1.0),
    ("dynamo-trt nan", "2026-01-14", "1", 1.0),  # although its script sets TRTLLM_ENABLE_PDL
    ("dynamo-trt 0.8.1.post2", "2026-02-05", "8", 0.765),
    ("1.1.0rc2.post2", "2026-02-05", "1", 1.0),
    ("1.2.0rc6.post2", "2026-01-14", "1", 0.765),
])  # fmt: skip
def test_pools_run_the_release_of_their_image(version, measured, ranks, share):
    """TensorRT-LLM launches kernels before their predecessors end since 1.2."""
    sizes = {"tp": "8", "dp": "1", "ep": "8"} if ranks == "1" else {"tp": "1", "dp": ranks, "ep": ranks}
    row = apart(**DECEMBER | sizes | {"engine": "trtllm", "engine_version": version, "measured": measured})
    given = with_constants(load_engine("trtllm"), {"launch_time": share})
    times = [predict([row], engine=on, by_simulation=False).tpot for on in (None, replace(given, releases=()))]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


SLOW_PRODUCTS = {"block_efficiency": FLASHINFER_SHARE}


@each(
    "changes, constants",
    [
        ({}, SLOW_PRODUCTS),
        ({"weight_dtype": "nvfp4"}, {}),
        ({"part": ""}, {}),  # a run of one's own
        ({"system": "hgx-h200"}, {}),
        ({"model": "zai-org/GLM-5"}, {}),
        ({"model": "Qwen/Qwen3.5-397B-A17B", "measured": "2026-04-29"}, SLOW_PRODUCTS),
        ({"model": "Qwen/Qwen3.5-397B-A17B", "measured": "2026-04-30"}, {}),
        ({"part": "ix_disaggregated", "input_tokens": "8192", "measured": "2026-02-07"}, SLOW_PRODUCTS),
        ({"part": "ix_disaggregated", "input_tokens": "8192", "measured": "2026-03-18"}, {}),
        ({"part": "ix_disaggregated", "input_tokens": "1024", "measured": "2026-03-18"}, SLOW_PRODUCTS),
        ({"part": "ix_disaggregated", "system": "gb200-nvl72"}, SLOW_PRODUCTS),
        ({"part": "ix_disaggregated", "system": "gb200-nvl72", "prefill_dp": "8"}, {}),
        ({"engine": "vllm", "model": "openai/gpt-oss-120b", "weight_dtype": "bf16"}, {"graph_tokens": 2048.0}),
        ({"engine": "vllm", "model": "MiniMaxAI/MiniMax-M2.5", "measured": "2026-04-02"}, {}),
        ({"engine": "vllm", "model": "MiniMaxAI/MiniMax-M2.5", "measured": "2026-04-03"}, {"graph_tokens": 2048.0}),
    ],
)
def test_scripts_change_constants_of_their_engine(changes, constants):
    row = apart(**{"system": "hgx-b200", "part": "ix_aggregated", "measured": "2026-03-01"} | changes)
    assert dict(launch_constants(row)) == constants
    assert is_scripted(row) or not constants


def test_products_without_deepgemm_take_as_long_as_timed():
    """Further rows of 24,576 x 7,168 and of 576 x 7,168 on a GB200 (sgl-project/sglang, pull request 13528)."""
    timed = [2 * rows * outputs * 7168 / seconds for rows, outputs, seconds in ((1024, 24576, 806e-6), (2048, 576, 22.3e-6))]
    peak, other = 5e15, constant(ON, "compute_efficiency")
    assert FLASHINFER_SHARE * other * peak == pytest.approx(math.sqrt(timed[0] * timed[1]), rel=0.01)


def test_prompts_wait_for_slow_products_and_not_for_launches():
    slow = deepseek(part="ix_aggregated", measured="2026-03-01", input_tokens="8192", concurrency="64")
    other = slow | {"part": "", "kv_dtype": "fp8", "max_num_batched_tokens": "32768", "stream_interval": "10"}
    tpots = predict([slow | {"stream_interval": "10"}, other], by_simulation=False).tpot
    assert 1.05 < tpots[0] / tpots[1] < 1.6
    graphs = {"engine": "vllm", "model": "openai/gpt-oss-120b", "weight_dtype": "bf16", "expert_dtype": "mxfp4"}
    graphed, launched = (deepseek(**graphs, part=part, max_num_batched_tokens="8192") for part in ("ix_aggregated", ""))
    ttfts = predict([graphed, launched], by_simulation=False).ttft
    assert ttfts[0] < 0.8 * ttfts[1]


def test_output_projections_of_a_release_are_in_four_bits():
    """NVIDIA's second release of DeepSeek-R1 in NVFP4 quantizes wo besides; other projections are in 16 bits in both."""
    row = deepseek(weight_dtype="nvfp4", expert_dtype="nvfp4", part="ix_aggregated")
    formats = []
    for day in ("2025-10-01", "2025-12-08"):
        (runs,) = grouped([row | {"measured": day}])
        stored = {op.name: op.format.name for layer, _ in runs.model.layers for op in layer.ops if op.term == "projections"}
        formats.append((stored["o_proj"], stored["q_b_proj"]))
    assert formats == [("bf16", "bf16"), ("nvfp4", "bf16")]
