"""Headers of safetensors files: exact bytes, the formats they tell, and what is wrong with a file."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress

import pytest

import steptime as st
from steptime.errors import DataFileError, InputError
from steptime.models.checkpoint import assemble_weights
from steptime.models.model import draft_bytes, draft_parameters, total_parameters, weight_bytes
from steptime.models.model_loading import load_config_fields, read_model
from steptime.models.safetensors_header import read_header
from tests.conftest import each, every
from tests.models import checkpoints

EXACT = {
    "bf16": checkpoints.bf16,
    "fp16": checkpoints.fp16,
    "fp8 of a matrix (ModelOpt)": checkpoints.fp8_tensor,
    "fp8 of a channel (compressed-tensors)": checkpoints.fp8_channel,
    "nvfp4 (ModelOpt)": checkpoints.nvfp4,
    "nvfp4 (compressed-tensors)": checkpoints.nvfp4_packed,
    "mxfp8 (ModelOpt)": checkpoints.mxfp8,
    "mxfp4 (gpt-oss)": checkpoints.mxfp4,
    "GPTQ": checkpoints.gptq,
    "AWQ": checkpoints.awq,
    "int4 (compressed-tensors)": checkpoints.packed,
    "int4 with zero points (compressed-tensors)": lambda: checkpoints.packed(symmetric=False),
    "nf4 (bitsandbytes)": checkpoints.nf4,
    "nf4, nested (bitsandbytes)": lambda: checkpoints.nf4(nested=True),
}


def stored(folder):
    """Bytes behind the headers of the files of a folder: what tensors take."""
    raw = [file.read_bytes() for file in folder.glob("*.safetensors")]
    return sum(len(one) - 8 - int.from_bytes(one[:8], "little") for one in raw)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("made", EXACT.values(), ids=EXACT)
def test_bytes_of_published_formats_are_exact_by_headers_and_by_the_config_alone(made, shards, tmp_path):
    fields, tensors = made()
    folder = checkpoints.written(tmp_path / "model", fields, tensors, shards=shards)
    model, alone = st.load_model(folder), read_model(fields)
    held = model.checkpoint.summary
    assert model.checkpoint.bytes == held.bytes == stored(folder)
    assert weight_bytes(model) == held.bytes
    assert weight_bytes(alone) == held.bytes
    assert held.parameters == total_parameters(model) == total_parameters(alone)
    assert (held.differences, held.missing, held.tensors, held.files) == ((), (), len(tensors), shards)
    assert model.notes == alone.notes
    assert (model.checkpoint.weights, model.checkpoint.experts) == (alone.checkpoint.weights, alone.checkpoint.experts)
    assert sum(group.bytes for group in held.groups) == sum(one.bytes for one in held.dtypes) == held.bytes
    assert model.depth == alone.depth


def test_deepseek_is_exact_but_for_what_is_named(tmp_path):
    fields, tensors = checkpoints.fp8_blocks()
    model = st.load_model(checkpoints.written(tmp_path / "model", fields, tensors))
    alone, held = read_model(fields), model.checkpoint.summary
    assert held.bytes == stored(tmp_path / "model")
    assert weight_bytes(alone) + draft_bytes(alone) == weight_bytes(model) + draft_bytes(model)
    assert weight_bytes(model) + draft_bytes(model) + sum(one.bytes for one in held.differences) == held.bytes
    assert {(one.name, one.count, one.bytes) for one in held.differences} == {
        ("model.layers.N.embed_tokens.weight", 1, 2 * 320 * 256),
        ("model.layers.N.shared_head.head.weight", 1, 2 * 320 * 256),
        ("model.layers.N.mlp.gate.e_score_correction_bias", 1, 16),
    }
    assert held.parameters == total_parameters(model) + draft_parameters(model) + 2 * 320 * 256 + 2 * 4
    blocks = {op.format.block for layer, _ in model.layers for op in layer.ops if op.format.name == "fp8"}
    assert blocks == {128}


@each(
    "name, changed, total",
    [
        # metadata.total_size of huggingface.co/openai/gpt-oss-20b/blob/main/model.safetensors.index.json, and of -120b
        ("openai/gpt-oss-20b", {}, 13_761_264_768),
        ("openai/gpt-oss-120b", {}, 65_248_815_744),
        # tensors of the four files of huggingface.co/Qwen/Qwen3-32B-AWQ, whose index states 19,338,405,888 by mistake
        (
            "Qwen/Qwen3-32B",
            {"torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
            19_325_298_688,
        ),
    ],
)
def test_bytes_by_the_config_alone_are_those_published(name, changed, total):
    assert weight_bytes(read_model({**load_config_fields(name), **changed})) == total


def test_formats_come_from_the_files_where_the_config_tells_none_or_is_not_understood(tmp_path):
    fields, tensors = checkpoints.nvfp4()
    told = fields.pop("quantization_config")
    silent = st.load_model(checkpoints.written(tmp_path / "silent", fields, tensors))
    assert silent.checkpoint.weights == "nvfp4"
    odd = st.load_model(
        checkpoints.written(tmp_path / "odd", {**fields, "quantization_config": {"quant_method": "own"}}, tensors)
    )
    assert weight_bytes(odd) == weight_bytes(silent) == odd.checkpoint.bytes
    assert "'own'" in odd.notes[0]
    assert odd.notes[0].endswith("formats of the files are used")
    with pytest.raises(InputError, match="'own'"):
        read_model({**fields, "quantization_config": {"quant_method": "own"}})
    assert told


def test_a_single_matrix_in_another_format_makes_another_kind_of_layer(tmp_path):
    fields, tensors = checkpoints.bf16()
    tensors["model.layers.1.mlp.down_proj.weight"] = ("F32", (256, 576))
    model = st.load_model(checkpoints.written(tmp_path / "model", fields, tensors))
    assert weight_bytes(model) == model.checkpoint.bytes == weight_bytes(read_model(fields)) + 2 * 256 * 576
    assert [(n, layer.name) for layer, n in model.layers] == [
        (2, "attention + feed-forward, bf16"),
        (1, "attention + feed-forward, bf16 and fp32"),
    ]


def test_a_checkpoint_in_fp32_is_served_in_bf16_and_says_so(tmp_path):
    fields, tensors = checkpoints.bf16()
    tensors = {name: ("F32", shape) for name, (_, shape) in tensors.items()}
    model = st.load_model(checkpoints.written(tmp_path / "model", fields, tensors))
    assert 2 * weight_bytes(model) == model.checkpoint.bytes
    (less,) = model.checkpoint.summary.differences
    assert (less.name, less.bytes) == ("values in fp32 that engines serve in bf16", model.checkpoint.bytes // 2)


def test_scales_and_zero_points_are_told_apart_from_values(tmp_path):
    fields, tensors = checkpoints.gptq()
    groups = {
        one.name: one for one in st.load_model(checkpoints.written(tmp_path / "m", fields, tensors)).checkpoint.summary.groups
    }
    beside = {"qzeros", "scales", "g_idx"}
    sizes = {"I32": 4, "F16": 2}
    wanted = 0
    for name, (dtype, shape) in tensors.items():
        if ".mlp." in name and name.rpartition(".")[2] in beside:
            wanted += sizes[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
    assert groups["feed-forward"].scales == wanted
    assert groups["norms"].scales == groups["embedding"].scales == 0


def test_words_of_other_tools_hold_as_many_parameters_as_their_matrices():
    def one(held, **told):
        from steptime.models.safetensors_header import Tensor

        tensors = [Tensor(f"model.layers.0.mlp.up_proj.{name}", dtype, shape, 1) for name, (dtype, shape) in held.items()]
        (weight,) = assemble_weights(tensors, depth=1, **told)
        return weight.parameters, weight.format

    n, m = 256, 128
    assert one({"qweight": ("I32", (n * 3 // 32, m)), "qzeros": ("I32", (2, m * 3 // 32)), "scales": ("F16", (2, m))}) == (
        n * m,
        "int4",
    )
    assert one({"qweight": ("I32", (n // 4, m)), "qzeros": ("I32", (2, m // 4)), "scales": ("F16", (2, m))}) == (n * m, "int8")
    assert one({"weight_packed": ("I32", (m, n // 4)), "weight_scale": ("BF16", (m, 1))}, bits=8) == (n * m, "int8")
    assert one({"weight": ("I8", (m, n)), "SCB": ("F32", (m,)), "weight_format": ("U8", ())}) == (n * m, "int8")
    assert one({"_weight_qdata": ("I8", (m, n)), "_weight_scale": ("BF16", (m,))}) == (n * m, "int8")
    assert one({"_weight_qdata": ("F8_E4M3", (m, n)), "_weight_scale": ("F32", (m, 1))}) == (n * m, "fp8")
    mlx = {"weight": ("U32", (m, n // 8)), "scales": ("BF16", (m, n // 64)), "biases": ("BF16", (m, n // 64))}
    assert one(mlx) == (n * m, "int4")
    assert one({"weight": ("U32", (m, n // 8)), "scales": ("U8", (m, n // 32))}) == (n * m, "mxfp4")
    assert one({"weight": ("I8", (m, n // 2)), "scale": ("F8_E8M0", (m, n // 32))}) == (n * m, "mxfp4")
    assert one({"weight": ("U8", (m // 2, n)), "weight_scale": ("BF16", (m, n // 128))}) == (n * m, "int4")


# --- what is not whole, or does not agree -----------------------------------------------------------------------------------


def test_a_partial_download_is_said_and_not_guessed(tmp_path):
    fields, tensors = checkpoints.bf16()
    folder = checkpoints.written(tmp_path / "model", fields, tensors, shards=3)
    whole = st.load_model(folder).checkpoint.bytes
    (folder / "model-00002-of-00003.safetensors").unlink()
    model = st.load_model(folder)
    assert model.checkpoint.bytes == 0
    assert model.checkpoint.summary.missing == ("model-00002-of-00003.safetensors",)
    assert 0 < model.checkpoint.summary.bytes < model.checkpoint.summary.stated == whole
    assert model.notes[0].startswith("the checkpoint is incomplete: 1 file of 3 is missing")
    assert weight_bytes(model) == weight_bytes(read_model(fields))
    (folder / "model.safetensors.index.json").unlink()  # the numbers of the shards tell as much
    assert st.load_model(folder).checkpoint.summary.missing == ("model-00002-of-00003.safetensors",)


def test_shards_may_count_from_0(tmp_path):
    fields, tensors = checkpoints.bf16()
    folder = checkpoints.written(tmp_path / "model", fields, tensors, shards=2)
    (folder / "model.safetensors.index.json").unlink()
    for number in (1, 2):
        (folder / f"model-{number:05d}-of-00002.safetensors").rename(folder / f"model-{number - 1:05d}-of-00001.safetensors")
    model = st.load_model(folder)
    assert (model.checkpoint.summary.files, model.checkpoint.summary.missing) == (2, ())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_any_file_of_a_checkpoint_names_it(name, tmp_path):
    folder = checkpoints.written(tmp_path / "model", *checkpoints.awq())
    assert st.load_model(folder / name) == st.load_model(folder)
    assert st.load_model(folder).checkpoint.place == str(folder)


def test_a_changed_file_is_read_again(tmp_path):
    fields, tensors = checkpoints.bf16()
    folder = checkpoints.written(tmp_path / "model", fields, tensors, shards=1)
    before = st.load_model(folder).checkpoint.bytes
    fields, tensors = checkpoints.nvfp4()
    checkpoints.written(folder, checkpoints.bf16()[0], tensors, shards=1)
    assert st.load_model(folder).checkpoint.bytes < before


def test_a_config_of_other_sizes_is_said(tmp_path):
    fields, tensors = checkpoints.bf16()
    more = st.load_model(checkpoints.written(tmp_path / "a", {**fields, "num_hidden_layers": 5}, tensors))
    assert "the config has 5 layers, but the files lack 2 of them: 3, 4" in more.notes
    fewer = st.load_model(checkpoints.written(tmp_path / "b", {**fields, "num_hidden_layers": 2}, tensors))
    assert "the config has 2 layers, but the files have 1 more: 2" in fewer.notes
    rows = st.load_model(checkpoints.written(tmp_path / "c", {**fields, "vocab_size": 384}, tensors))
    assert "the config has a vocabulary of 384, but the embedding of the files has 320 rows" in rows.notes
    wide = st.load_model(checkpoints.written(tmp_path / "d", {**fields, "intermediate_size": 640}, tensors))
    assert any("gate_proj, up_proj, down_proj" in note for note in wide.notes)
    differs = sum(one.bytes for one in wide.checkpoint.summary.differences)
    assert wide.checkpoint.bytes == weight_bytes(wide) + differs


def test_an_index_that_states_another_sum_is_said(tmp_path):
    folder = checkpoints.written(tmp_path / "model", *checkpoints.bf16())
    index = folder / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    told["metadata"]["total_size"] += 1
    index.write_text(json.dumps(told))
    model = st.load_model(folder)
    assert model.notes == (
        f"the index states {model.checkpoint.bytes + 1:,} B of tensors, but the files have {model.checkpoint.bytes:,} B",
    )


# --- malformed files --------------------------------------------------------------------------------------------------------

ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def raw(header, behind=0):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(behind)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it has 0 bytes"),
        (b"1234567", "it has 7 bytes"),
        (struct.pack("<Q", 1 << 63) + b"{}", "claim a header of 9.22337e\\+18 bytes"),
        (struct.pack("<Q", 1000) + b"{}", "is truncated: its header has 1,000 bytes"),
        (raw(b"no"), "not valid JSON"),
        (raw(b"[]"), "must be an object"),
        (raw(b'{"\xff": 1}'), "not UTF-8 text"),
        (raw(b"[" * 100_000), "nested too deep"),
        (raw(b'{"a": {}, "a": {}}'), "has the key 'a' twice"),
        (raw({"a": None}), "must be an object with dtype, shape and data_offsets, got None"),
        (raw({"a": {**ONE, "dtype": "Q4"}}, 4), "dtype: unknown, got 'Q4'; known: BOOL"),
        (raw({"a": {**ONE, "shape": [-1]}}, 4), "whole numbers from 0, got \\[-1\\]"),
        (raw({"a": {**ONE, "shape": [10**18] * 15}}, 4), "takes 4e\\+270 bytes, but data_offsets cover 4"),
        (raw({"a": {**ONE, "shape": [1] * 100_000}}, 4), "whole numbers from 0"),
        (raw({"a": {**ONE, "data_offsets": [4, 0]}}, 4), "first and end byte, got \\[4, 0\\]"),
        (raw({"a": ONE}, 2), "is truncated: its header lists 4 bytes of tensors"),
        (raw({"a": ONE}, 8), "has 4 bytes after its tensors"),
        (raw({"a": ONE, "b": {**ONE, "data_offsets": [2, 6]}}, 6), "'b' overlaps the tensor before it, at byte 2 of 6"),
        (raw({"a": ONE, "b": {**ONE, "data_offsets": [8, 12]}}, 12), "'b' has 4 unused bytes before it"),
    ],
)
def test_malformed_headers_name_file_and_problem(content, problem, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(DataFileError, match=problem) as error:
        read_header(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("[]", "must be an object"),
        ("", "is not valid JSON"),
        ('{"weight_map": []}', "weight_map: must be a table"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "must be in a file in the folder of the index"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "must be in a file in the folder of the index"),
        ('{"weight_map": {"a": "m.safetensors", "b": "m.safetensors"}}', "lacks the tensor 'b'"),
        (
            '{"weight_map": {"a": "other.safetensors", "c": "m.safetensors"}}',
            "'a', but the index lists it in other.safetensors",
        ),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(index, problem, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.bf16()[0]))
    (tmp_path / "m.safetensors").write_bytes(raw({"a": ONE}, 4))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(DataFileError, match=problem):
        st.load_model(tmp_path)


def test_a_file_of_weights_alone_is_no_model(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.raises(DataFileError, match="no such file"):
        st.load_model(file)
    file.write_bytes(raw({"a": ONE}, 4))
    with pytest.raises(DataFileError, match="has no config"):
        st.load_model(file)
    for name in ("a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"):
        (tmp_path / name).write_bytes(raw({"a": ONE}, 4))
    file.unlink()
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.bf16()[0]))
    with pytest.raises(DataFileError, match="has the tensor 'a', but another file of the checkpoint has it too"):
        st.load_model(tmp_path)


@pytest.mark.parametrize("seed", every(3, range(30)))
def test_no_disturbed_file_breaks_the_reader(seed, tmp_path):
    chance = random.Random(seed)
    folder = checkpoints.written(tmp_path / "model", *checkpoints.mxfp4(), shards=1)
    file = folder / "model.safetensors"
    changed = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 2, 4))):
        at, size = chance.randrange(8 + int.from_bytes(changed[:8], "little") % 10_000), chance.choice((1, 2))
        changed[at : at + size] = chance.choice((b"9" * size, b'"' * size, b"\xff" * size, chance.randbytes(size)))
    file.write_bytes(changed)
    with suppress(InputError):
        assert st.load_model(folder).checkpoint.bytes >= 0
