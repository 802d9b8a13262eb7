"""What kernels compute in: the rules of engines by hand, what they change in a demand, and tables that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptime as st
from steptime.errors import DataFileError
from steptime.hardware.number_formats import number_format
from steptime.models.model import Attention
from steptime.physics.compute_dtype import (
    CHIPS,
    DECODE,
    KINDS,
    LATENT_DECODE,
    LATENT_PREFILL,
    PREFILL,
    WEIGHTS,
    Computed,
    select_compute_dtype,
)
from steptime.physics.engine import load_engine
from steptime.physics.layout import Layout
from steptime.physics.step import decode_step, prefill_step
from tests.conftest import each, engine, machine, matrix, model_of

HOPPER = {"bf16": 1e15, "fp8": 2e15}
BLACKWELL = HOPPER | {"fp4": 4e15}
FP8, FP4, BF16 = (number_format(name).arithmetic for name in ("fp8", "fp4", "bf16"))


def rule(what=WEIGHTS, stored="fp4", computed="bf16", chips="without fp4") -> Computed:
    return Computed(operation=what, stored=stored, computed=computed, chips=chips)


@each(
    "rules, what, stored, peak, found",
    [
        ((), WEIGHTS, FP4, HOPPER, FP4),
        ((rule(),), WEIGHTS, FP4, HOPPER, BF16),
        ((rule(),), WEIGHTS, FP4, BLACKWELL, FP4),
        ((rule(chips="with fp4"),), WEIGHTS, FP4, BLACKWELL, BF16),
        ((rule(chips="with fp4"),), WEIGHTS, FP4, HOPPER, FP4),
        ((rule(chips="any"),), WEIGHTS, FP4, BLACKWELL, BF16),
        ((rule(),), WEIGHTS, FP8, HOPPER, FP8),  # stored in something else
        ((rule(),), DECODE, FP4, HOPPER, FP4),  # no weights
        ((rule(what=DECODE, stored="fp8", chips="any"),), DECODE, FP8, HOPPER, BF16),
        ((rule(what=DECODE, stored="fp8", chips="any"),), LATENT_DECODE, FP8, HOPPER, FP8),
        ((rule(computed="fp8"), rule()), WEIGHTS, FP4, HOPPER, FP8),  # the first that fits
        ((rule(chips="with fp4", computed="fp8"), rule()), WEIGHTS, FP4, HOPPER, BF16),
    ],
)
def test_the_first_rule_that_fits_says_in_which_arithmetic(rules, what, stored, peak, found):
    assert select_compute_dtype(rules, what, stored, peak) == found


def chip(peak):
    system = machine(bandwidth=1e30)
    return replace(system, chip=replace(system.chip, peak=peak))


@pytest.mark.parametrize(("peak", "ideal", "real"), [(HOPPER, 10.0, 20.0), (BLACKWELL, 5.0, 5.0)])
def test_weights_of_four_bits_are_computed_as_the_engine_does(peak, ideal, real):
    """1e12 weights in ten layers, one row, 20 TFLOP: in 8 bits 10 ms of 2 PFLOP/s, in 16 twice that, in 4 half."""
    model = model_of(matrix(weights=1e12, stored="nvfp4"))
    seconds = [
        1e3 * float(decode_step(model, chip(peak), batch=1, context=1, engine=on).total)
        for on in (engine(), replace(engine(), arithmetic=(rule(),)))
    ]
    assert seconds == pytest.approx([ideal, real])


@each(
    "expand, what, changes",
    [
        (0.0, DECODE, ("decode",)),
        (0.0, PREFILL, ("prefill",)),
        (1e-9, LATENT_DECODE, ("decode",)),
        (1e-9, LATENT_PREFILL, ("prefill",)),
        (1e-9, DECODE, ()),
        (0.0, LATENT_PREFILL, ()),
        (0.0, WEIGHTS, ()),
    ],
)
def test_attention_over_a_cache_of_eight_bits_by_its_kind(expand, what, changes):
    """A rule of 16 bits makes the attention that it names take twice as long, and no other."""
    cache = Attention(
        name="kv", kv_bytes=1.0, kv_shards=1, heads=64, flops_per_pair_decode=1e6, flops_per_pair_prefill=1e6,
        expand_flops=expand, arithmetic=FP8,
    )  # fmt: skip
    model, plain = model_of(attention=(cache,)), engine()
    ruled = replace(plain, arithmetic=(rule(what=what, stored="fp8", chips="any"),))
    steps = {
        "decode": lambda on: decode_step(model, chip(HOPPER), batch=1, context=1000, engine=on).total,
        "prefill": lambda on: prefill_step(model, chip(HOPPER), tokens=1000, prompts=1, layout=Layout(), engine=on).total,
    }
    ratios = {name: float(step(ruled) / step(plain)) for name, step in steps.items()}
    assert ratios == pytest.approx({name: 2.0 if name in changes else 1.0 for name in steps})


# --- tables of engine files ------------------------------------------------------------------------------------------------

TABLE = '[[arithmetic]]\noperation = "weights"\nstored = "fp4"\ncomputed = "bf16"\n'


def written(tmp_path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text("[constants]\nmemory_efficiency = 0.5\n" + text)
    return load_engine(str(path))


def test_tables_of_a_file_are_its_rules_in_order(tmp_path):
    second = (
        '[[arithmetic]]\noperation = "latent decode"\nstored = "fp8"\ncomputed = "fp8"\nchips = "with fp4"\nsource = "read"\n'
    )
    found = written(tmp_path, TABLE + second)
    assert found.arithmetic == (
        rule(chips="any"),
        Computed(operation=LATENT_DECODE, stored="fp8", computed="fp8", chips="with fp4", source="read"),
    )
    assert written(tmp_path, "").arithmetic == ()
    assert engine().arithmetic == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[arithmetic]\noperation = "weights"\n', "arithmetic: must be a list of tables, [[arithmetic]]"),
        (TABLE + "source = 3\n", "arithmetic, table 1: must be a table of texts"),
        (
            TABLE + TABLE.replace('stored = "fp4"\n', ""),
            "arithmetic, table 2: has no stored; a table needs operation, stored and computed",
        ),
        ("[[arithmetic]]\n", "arithmetic, table 1: has no computed; a table needs"),
        (TABLE + 'chip = "any"\n', "arithmetic, table 1: unknown key, got 'chip'"),
        (TABLE.replace("weights", "wieghts"), f"table 1: operation must be one of {', '.join(KINDS)}, got 'wieghts'"),
        (TABLE + 'chips = "some"\n', f"arithmetic, table 1: chips must be one of {', '.join(CHIPS)}, got 'some'"),
        (TABLE.replace("bf16", "bf17"), "arithmetic, table 1: computed must be one of fp32, bf16, "),
        (TABLE.replace("fp4", "4bit"), "arithmetic, table 1: stored must be "),
    ],
)
def test_a_bad_table_is_refused_by_its_place(tmp_path, text, says):
    with pytest.raises(DataFileError) as caught:
        written(tmp_path, text)
    assert "mine.toml: " in str(caught.value)
    assert says in str(caught.value)


@each("name", ["vllm", "sglang", "trtllm", "typical"])
def test_shipped_engines_compute_in_what_chips_have_and_say_where_that_is_read(name):
    """Each rule has a source, and none makes a kernel faster than the ideal's."""
    found = load_engine(name)
    assert found.arithmetic
    for one in found.arithmetic:
        assert len(one.source) > 10
        for peak in (HOPPER, BLACKWELL):
            stored = next(f.arithmetic for f in map(number_format, ("fp8", "fp4", "bf16")) if f.arithmetic[0] == one.stored)
            chosen = select_compute_dtype(found.arithmetic, one.operation, stored, peak)
            best = {key: max(peak.get(a, 0.0) for a in key) for key in (chosen, stored)}
            assert 0 < best[chosen] <= best[stored]
    assert st.load_engine("ideal").arithmetic == ()
