"""What a training layout must satisfy: each message names the axis and the nearest choice."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import steptime as st
from steptime.errors import Impossible, InputError, LayoutError, RangeError, UnknownName
from steptime.training.training_alternatives import NothingFits
from steptime.training.training_job import DTYPES, OPTIMIZERS
from steptime.training.training_rules import nearest_divisors
from tests.conftest import each
from tests.training.cases import SMALL, SPARSE, system

BIG = "llama-3.1-405b"
TOO_MANY = "are more than the 32 layers of meta-llama/Llama-3.1-8B with embedding and head;"


def step(name=SMALL, on="hgx-h100", seq=4096, batch=64, **given):
    layout = {key: given.pop(key) for key in list(given) if key in vars_of_a_layout()}
    return st.training_step(name, on, seq=seq, batch=batch, layout=st.TrainingLayout(**layout), **given)


def vars_of_a_layout():
    return st.TrainingLayout.__dataclass_fields__


@each(
    "given, kind, says",
    [
        (
            {"dp": 8, "batch": 60},
            LayoutError,
            "batch=60 does not divide over dp=8 replicas in micro-batches of 1; try 56 or 64",
        ),
        ({"dp": 8, "micro_batch": 3, "batch": 64}, LayoutError, "micro-batches of 3; try 48 or 72"),
        ({"dp": 8, "batch": 4}, LayoutError, "does not divide over dp=8 replicas in micro-batches of 1; try 8"),
        ({"tp": 6}, LayoutError, "tp=6 does not divide the 32 heads of meta-llama/Llama-3.1-8B; try 4 or 8"),
        ({"cp": 3}, LayoutError, "cp=3 does not divide sequences of 4,096 tokens into 6 parts"),
        (
            {"name": SPARSE, "dp": 96, "ep": 96, "batch": 96},
            LayoutError,
            "ep=96 does not divide the 128 experts of Qwen/Qwen3-30B-A3B; try 64 or 128",
        ),
        (
            {"name": SPARSE, "dp": 8, "ep": 16},
            LayoutError,
            "ep=16 x etp=1 does not divide the tp x cp x dp = 8 chips of a stage; try 8",
        ),
        (
            {"name": SPARSE, "dp": 8, "ep": 8, "etp": 2},
            LayoutError,
            "ep=8 x etp=2 does not divide the tp x cp x dp = 8 chips of a stage",
        ),
        ({"dp": 8, "ep": 8}, LayoutError, "ep=8, etp=1, but meta-llama/Llama-3.1-8B has no experts"),
        ({"pp": 35}, LayoutError, f"pp=35 x vpp=1 = 35 chunks {TOO_MANY} at most pp=34"),
        (
            {"pp": 8, "virtual_stages": 5, "schedule": "interleaved"},
            LayoutError,
            f"pp=8 x vpp=5 = 40 chunks {TOO_MANY} at most vpp=4 with pp=8",
        ),
        (
            {"pp": 4, "virtual_stages": 2, "schedule": "1f1b"},
            LayoutError,
            "schedule 1f1b has no virtual stages, got vpp=2; leave --vpp out, or take interleaved",
        ),
        (
            {"pp": 4, "virtual_stages": 2, "schedule": "zb-h1", "engine": "typical"},
            LayoutError,
            "schedule zb-h1 has no virtual stages",
        ),
        (
            {"pp": 4, "virtual_stages": 4, "schedule": "zbv", "engine": "typical"},
            LayoutError,
            "schedule zbv has 2 virtual stages per device",
        ),
        (
            {"pp": 4, "schedule": "interleaved"},
            LayoutError,
            "schedule interleaved needs at least 2 virtual stages per device, got 1",
        ),
        ({"virtual_stages": 2}, LayoutError, "vpp=2: "),
        (
            {"pp": 4, "schedule": "zbv", "virtual_stages": 2, "engine": "megatron-lm"},
            LayoutError,
            "stack megatron-lm has no schedule zbv; it has 1f1b, interleaved",
        ),
        ({"pp": 4, "schedule": "2f2b"}, UnknownName, "unknown schedule '2f2b'"),
        ({"sharding": "zero4"}, UnknownName, "unknown sharding 'zero4'; did you mean zero3"),
        ({"recompute": "mpl"}, UnknownName, "unknown recomputation 'mpl'; did you mean mlp"),
        ({"recompute": "norms+everything"}, UnknownName, "unknown recomputation 'everything'"),
        ({"sharding": "none", "sharding_group": 8, "dp": 8}, LayoutError, "sharding_group: "),
        ({"dtype": "fp8", "on": "hgx-a100"}, InputError, "does not compute in fp8; try"),
        ({"dtype": "nvfp4"}, InputError, "does not compute in nvfp4; try"),
        ({"dtype": "fp9"}, UnknownName, "unknown number format of training 'fp9'; did you mean fp8"),
        ({"optimizer": "adam"}, UnknownName, "unknown optimizer 'adam'; did you mean adamw"),
        ({"task": "rl"}, UnknownName, "unknown task 'rl'"),
        ({"attention": "slow"}, UnknownName, "unknown attention 'slow'"),
        ({"lora": 16}, InputError, "lora: "),
        ({"seq": 0}, InputError, "seq must be at least 1"),
        ({"seq": 1000.5}, InputError, "seq must be a whole number"),
        ({"batch": -8}, InputError, "batch must be at least 1"),
        ({"name": "llama-9"}, UnknownName, "unknown model 'llama-9'"),
        ({"engine": "pytorch"}, UnknownName, "unknown"),
    ],
)
def test_layouts_that_cannot_run_are_refused_by_name(given, kind, says):
    with pytest.raises(kind, match=re.escape(says)):
        step(**given)


@each(
    "given, says",
    [
        ({"chips": 512, "layout": {"tp": 3}}, "tp=3 does not divide 512 chips"),
        ({"chips": 8, "layout": {"tp": 2, "pp": 8}}, "tp=2 x pp=8 = 16 does not divide 8 chips"),
        ({"chips": 8, "layout": {"tensor": 2}}, "tensor: "),
        ({"chips": 8, "batch": 7, "layout": {"dp": 8}}, "batch=7 does not divide over dp=8"),
        ({"chips": 8, "layout": {"virtual_stages": 2, "schedule": "1f1b"}}, "schedule 1f1b has no virtual stages"),
        ({"chips": 8, "layout": {"virtual_stages": 2, "pp": 1}}, "pp=1 has none"),
        (
            {"chips": 8, "layout": {"pp": 4, "schedule": "zb-h1"}, "engine": "megatron-lm"},
            "stack megatron-lm has no schedule zb-h1",
        ),
        ({"chips": 0}, "chips must be at least 1"),
    ],
)
def test_axes_that_are_given_to_a_search_are_checked(given, says):
    with pytest.raises(InputError, match=re.escape(says)):
        st.train(SMALL, "hgx-h100", **{"batch": 64} | given)


@pytest.mark.thorough
def test_what_does_not_fit_says_by_how_much_and_what_would():
    with pytest.raises(NothingFits) as refused:
        st.train(BIG, "hgx-h100", chips=64, seq=8192, batch=64)
    words = str(refused.value)
    need, room, excess = (
        float(n)
        for n in re.search(r"needs ([\d.]+) GB per chip, and ([\d.]+) GB are usable .*: ([\d.]+) GB too", words).groups()
    )
    assert need - room == pytest.approx(excess, abs=0.11)
    assert need > 405.85e9 * (6 + 12 / 8) / 64 / 1e9  # states alone at ZeRO-1
    assert re.search(r"; it fits .*\d+ chips|; it fits with ", words)


def test_the_change_that_is_named_does_fit():
    with pytest.raises(NothingFits, match="it fits 16 chips"):
        st.train("llama-3.1-70b", replace(system(), tiers=()), chips=8, seq=4096, batch=8, engine="megatron-lm")
    given = {"seq": 4096, "layout": {"tp": 8, "cp": 1}, "changes": False}
    assert st.train("llama-3.1-70b", "hgx-h100", chips=16, batch=16, **given).step.fits
    assert st.train("llama-3.1-70b", "hgx-h100", chips=8, batch=8, task="lora", **given).step.fits
    with pytest.raises(NothingFits, match="it fits with another recompute than none"):
        st.train(SMALL, "hgx-h100", chips=8, seq=131072, batch=8, layout={"recompute": "none", "cp": 1, "tp": 8})


def test_layers_that_do_not_divide_are_dealt_out_and_not_refused():
    """126 and 80 layers on 12, 16 and 7 stages."""
    for name, pp, batch in ((BIG, 12, 12), (BIG, 16, 16), (SMALL, 7, 7), (SMALL, 5, 5)):
        found = step(name, pp=pp, batch=batch)
        assert float(found.total) > 0


def test_a_box_has_the_chips_that_it_has():
    box = replace(system(), domains=system().domains[:1])
    with pytest.raises(LayoutError, match="16 chips are more than the 8 of hgx-h100"):
        step(on=box, dp=16)
    with pytest.raises(LayoutError, match="16 chips are more than the 8 of hgx-h100"):
        st.train(SMALL, box, chips=16, batch=64)


def test_the_nearest_divisors():
    assert nearest_divisors(128, 12) == "8 or 16"
    assert nearest_divisors(7, 3) == "1 or 7"
    assert nearest_divisors(16, 32) == "16"


@each("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_is_known(optimizer):
    assert float(step(optimizer=optimizer, dp=8).total) > 0
    assert OPTIMIZERS[optimizer].source


def test_formats_run_where_the_chip_has_them():
    able = {"hgx-a100": {"bf16", "fp16", "fp32", "int8"}, "hgx-h100": {"bf16", "fp16", "fp32", "int8", "fp8"}}
    for name, formats in able.items():
        for dtype in DTYPES:
            if dtype in formats:
                assert float(step(on=name, dtype=dtype, dp=8).total) > 0
    with pytest.raises(InputError):
        step(on="hgx-a100", dtype="mxfp8")


def test_arrays_are_answered_without_rules_but_for_words():
    found = step(tp=np.array([1, 2, 4, 8]), dp=np.array([8, 4, 2, 1]))
    assert found.total.shape == (4,)
    with pytest.raises(UnknownName, match="unknown schedule"):
        step(tp=np.array([1, 2]), schedule="3f")


def test_micro_batches_that_no_schedule_runs_are_the_reason():
    """1,000 sequences divide among copies, and by no number of them into as many micro-batches as 16 stages take at once."""
    given = {"tp": 8, "pp": 16, "virtual_stages": 5}
    with pytest.raises(LayoutError, match=r"runs 1,000 micro-batches in 16 stages .*; try a batch that is a multiple of 16,"):
        st.train("llama-3-70b", "hgx-h100", chips=512, batch=1000, layout=given)
    assert st.train("llama-3-70b", "hgx-h100", chips=512, batch=1024, layout=given, changes=False).step.fits


def test_a_schedule_of_one_stage_is_the_cause_that_is_named():
    with pytest.raises(LayoutError, match=r"^schedule=dualpipe needs at least 2 stages, and pp is 1"):
        st.train("llama-3.1-8b", "hgx-h100", chips=8, seq=4096, batch=64, layout={"pp": 1, "schedule": "dualpipe"})


def test_block_scales_ask_for_matrix_units_that_have_them():
    with pytest.raises(InputError, match="does not compute in mxfp8; try bf16"):
        st.train("llama-3-8b", "hgx-h100", chips=8, batch=64, dtype="mxfp8")
    with pytest.raises(InputError, match=r"does not compute in nvfp4; try (?!.*mxfp8)"):
        st.train("llama-3-8b", "hgx-h100", chips=8, batch=64, dtype="nvfp4")
    assert st.train("llama-3-8b", "hgx-b200", chips=8, batch=64, dtype="mxfp8", changes=False).step.fits


def test_dividing_gradients_never_saves_traffic():
    """ZeRO-2 hides its last reduction behind one micro-batch, as ZeRO-1 its only one, and has others before it."""
    for pp, dp in ((1, 64), (16, 8), (8, 16)):
        given = {"seq": 8192, "batch": 2048, "engine": "typical"}
        seconds = [
            float(
                st.training_step(
                    "llama-3.1-405b", "hgx-h100", layout=st.TrainingLayout(tp=8, pp=pp, dp=dp, sharding=word), **given
                ).terms.get("data parallel", 0.0)
            )
            for word in ("zero1", "zero2")
        ]
        assert seconds[1] >= seconds[0]


def test_groups_that_do_not_divide_the_copies_are_not_searched():
    found = st.train("llama-3-8b", "hgx-h100", chips=64, batch=256, layout={"sharding_group": 4}, changes=False)
    assert (found.step.layout.dp * found.step.layout.cp) % 4 == 0
    with pytest.raises(LayoutError):
        st.train("llama-3-8b", "hgx-h100", chips=64, batch=256, layout={"dp": 32, "sharding_group": 3})


def test_runs_that_never_end_and_runs_shorter_than_a_step_are_refused():
    with pytest.raises(Impossible, match="never ends"):
        st.train("llama-3-8b", "hgx-h100", chips=64, batch=256, tokens=15e12, reliability=st.Reliability(rate=1.0))
    with pytest.raises(RangeError, match="1,048,576, got 1,000"):
        st.train("llama-3-8b", "hgx-h100", chips=64, batch=256, tokens=1000)


def test_words_that_stand_alone_are_told_so():
    with pytest.raises(LayoutError, match="full cannot be joined"):
        st.train("llama-3-8b", "hgx-h100", chips=64, batch=256, layout={"recompute": "full+mlp"})
