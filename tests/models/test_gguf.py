"""GGUF files: the header, the model that it describes, the types of each layer, and what is wrong with a file."""

from __future__ import annotations

import os
import random
import struct
from contextlib import suppress

import pytest

import steptime as st
from steptime.errors import DataFileError, InputError, UnknownName
from steptime.hardware.number_formats import GGML, number_format
from steptime.models.gguf_config import ARCHITECTURES
from steptime.models.gguf_header import BLOCKS, NAMES, Long, read_gguf
from steptime.models.model import total_parameters, weight_bytes
from steptime.models.model_loading import load_config_fields
from tests.conftest import every
from tests.models import gguf_files

MADE = (gguf_files.llama, gguf_files.qwen3moe, gguf_files.deepseek2)
APART = {"llama": ("rope_freqs.weight", 1, 4 * 32), "deepseek2": ("blk.N.exp_probs_b.bias", 2, 4 * 4 * 2)}


def made_of(made):
    return made.__name__


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("made", MADE, ids=made_of)
def test_bytes_and_parameters_are_exact_but_for_what_is_named(made, version, order, tmp_path):
    metadata, tensors = made()
    file = gguf_files.written(tmp_path / "small.gguf", metadata, tensors, version=version, order=order)
    model = st.load_model(file)
    held = model.checkpoint.summary
    assert model.checkpoint.bytes == held.bytes == sum(gguf_files.size_of(*one) for one in tensors.values())
    apart = APART.get(made.__name__)
    assert [(one.name, one.count, one.bytes) for one in held.differences] == ([apart] if apart else [])
    assert weight_bytes(model) == held.bytes - (apart[2] if apart else 0)
    assert total_parameters(model) == held.parameters - (apart[2] // 4 if apart else 0)
    assert (model.notes, model.name, held.kind, held.files) == ((), "small", "gguf", 1)
    assert model.checkpoint.place == str(file)


def test_the_model_is_that_of_the_metadata(tmp_path):
    model = st.load_model(gguf_files.written(tmp_path / "a.gguf", *gguf_files.deepseek2()))
    assert (model.family, model.width, model.heads, model.depth, model.vocabulary) == ("deepseek_v3", 256, 4, 3, 512)
    (attention,) = model.layers[0][0].attention
    assert attention.kv_bytes == 2 * (256 + 64)
    routed = next(layer.routed for layer, _ in model.layers if layer.routed)
    assert (routed.experts, routed.active, routed.columns) == (4, 2, 256)


def test_layers_of_other_mixes_are_other_kinds(tmp_path):
    model = st.load_model(gguf_files.written(tmp_path / "a.gguf", *gguf_files.llama()))
    assert [(layer.name, n) for layer, n in model.layers] == [
        ("attention + feed-forward, q4_k", 2),
        ("attention + feed-forward, q4_k and q6_k", 2),
    ]
    by_name = {op.name: op.format for op in model.layers[1][0].ops}
    assert (by_name["v_proj"].name, by_name["v_proj"].bytes) == ("q6_k", 210 / 256)
    assert (by_name["q_proj"].name, by_name["q_proj"].bytes) == ("q4_k", 144 / 256)
    assert by_name["q_proj"].arithmetic[0] == "fp16"
    assert model.checkpoint.weights == "q4_k"


def test_a_file_is_taken_wherever_a_model_is(tmp_path):
    file = gguf_files.written(tmp_path / "small.gguf", *gguf_files.qwen3moe())
    step = st.decode_step(str(file), "hgx-h100", batch=1, context=64, engine="ideal")
    assert step.total > 0
    assert st.load_model(tmp_path) == st.load_model(file)
    assert load_config_fields(file)["quantization_config"] == {"quant_method": "gguf", "type": "q8_0"}
    assert st.load_model(load_config_fields(file)).checkpoint.experts == "q8_0"
    gguf_files.written(tmp_path / "other.gguf", *gguf_files.llama())
    with pytest.raises(DataFileError, match=r"has 2 GGUF models.*: other, small"):
        st.load_model(tmp_path)


def test_shards_are_read_together_and_none_may_lack(tmp_path):
    metadata, tensors = gguf_files.llama()
    parts, every = [dict(list(tensors.items())[i::3]) for i in range(3)], []
    for number, part in enumerate(parts):
        split = {"split.no": number, "split.count": 3, "split.tensors.count": len(tensors)}
        told = {**metadata, **split} if number == 0 else split
        every.append(gguf_files.written(tmp_path / f"m-{number + 1:05d}-of-00003.gguf", told, part))
    whole = st.load_model(gguf_files.written(tmp_path / "whole.gguf", metadata, tensors))
    for file in every:
        model = st.load_model(file)
        assert (model.checkpoint.bytes, model.layers, model.name) == (whole.checkpoint.bytes, whole.layers, "m")
    assert model.checkpoint.summary.files == 3
    every[1].unlink()
    with pytest.raises(DataFileError, match="1 is missing: m-00002-of-00003"):
        st.load_model(every[0])


def test_metadata_of_every_type_is_read(tmp_path):
    metadata = {"a": 7, "b": -7, "c": 0.5, "d": True, "e": "text", "f": [1, 2], "g": ["x", "y"], "h": [False, True], "i": []}
    read = read_gguf(gguf_files.written(tmp_path / "a.gguf", metadata, {"t": ("F32", (2, 3))}))
    assert dict(read.metadata) == {**metadata, "g": Long(2)}
    assert (read.tensors[0].shape, read.tensors[0].bytes, read.version, read.big_endian) == ((2, 3), 24, 3, False)


def test_formats_of_ggml_cost_what_their_blocks_hold():
    assert set(BLOCKS) == set(NAMES.values())
    for name, (values, size) in GGML.items():
        assert number_format(name.upper()).bytes == size / values
    assert number_format("mxfp4").bytes == BLOCKS["MXFP4"][1] / BLOCKS["MXFP4"][0]
    assert number_format("nvfp4").bytes == BLOCKS["NVFP4"][1] / BLOCKS["NVFP4"][0]


def test_types_and_files_are_those_of_the_package_of_llama_cpp(tmp_path):
    package = pytest.importorskip("gguf")
    theirs = package.constants.GGML_QUANT_SIZES
    assert {kind.value: kind.name for kind in theirs} == NAMES
    assert {kind.name: size for kind, size in theirs.items()} == BLOCKS
    assert set(ARCHITECTURES) <= set(package.MODEL_ARCH_NAMES.values())
    read = package.GGUFReader(gguf_files.written(tmp_path / "a.gguf", *gguf_files.llama()))
    assert [(t.name, int(t.n_bytes)) for t in read.tensors] == [
        (name, gguf_files.size_of(*one)) for name, one in gguf_files.llama()[1].items()
    ]


# --- what is wrong with a file ----------------------------------------------------------------------------------------------

START = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1) + b"a"
NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(100))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a GGUF file"),
        (b"GGU", "is not a GGUF file"),
        (b"GGUF", "the version takes 4 bytes at byte 4, and 0 are left"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "version: must be 2 or 3, got 1"),
        (b"GGUF" + bytes(100), "version: must be 2 or 3, got 0"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1), "claims 4.61169e\\+18 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 62), "claims 4.61169e\\+18 keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 40), "has 1,099,511,627,776 bytes"),
        (START + struct.pack("<I", 77), "is of the unknown type 77"),
        (START + struct.pack("<IIQ", 9, 4, 10**18), "has 1e\\+18 values; at most"),
        (START + struct.pack("<IIQ", 9, 8, 10**18), "has 1e\\+18 values; at most"),
        (START + struct.pack("<IIQ", 9, 4, 10**6), "1,000,000 values, takes 4,000,000 bytes"),
        (
            START + struct.pack("<IIQ", 9, 9, 10**6) + struct.pack("<IQ", 4, 0) * 10**5,
            "has 1,000,000 arrays; at most 50,000 in all",
        ),
        (START + struct.pack("<I", 9) + NESTED, "is nested too deep"),
        (START + struct.pack("<IIQQ", 9, 8, 2, 1 << 62), "is truncated or malformed"),
    ],
)
def test_malformed_headers_name_file_and_problem(content, problem, tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(content)
    with pytest.raises(DataFileError, match=problem) as error:
        st.load_model(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def at_tensor(content: bytes, name: bytes, place: int, code: str, value: int) -> bytes:
    """Change a number behind the name of a tensor of two dimensions."""
    at = content.index(name) + len(name) + place
    return content[:at] + struct.pack(f"<{code}", value) + content[at + struct.calcsize(f"<{code}") :]


@pytest.mark.parametrize(
    ("place", "code", "value", "problem"),
    [
        (0, "I", 9, "has 9 dimensions; at most 4"),
        (4, "Q", 100, "has rows of 100 values, and Q4_K has blocks of 256"),
        (12, "Q", 1 << 63, "overlaps|is truncated"),
        (20, "I", 77, "is of the unknown ggml type 77; known: F32, F16, Q4_0"),
        (24, "Q", 33, "multiple of 32, got 33"),
        (24, "Q", 32, "overlaps the tensor before it"),
        (24, "Q", 1 << 62, "is truncated: its tensors end at byte"),
    ],
)
def test_malformed_tensors_are_named(place, code, value, problem, tmp_path):
    file = gguf_files.written(tmp_path / "a.gguf", *gguf_files.llama())
    file.write_bytes(at_tensor(file.read_bytes(), b"blk.0.attn_output.weight", place, code, value))
    with pytest.raises(InputError, match=problem):
        st.load_model(file)


def test_a_truncated_file_says_so(tmp_path):
    file = gguf_files.written(tmp_path / "a.gguf", *gguf_files.llama())
    os.truncate(file, file.stat().st_size - 1000)
    with pytest.raises(DataFileError, match="is truncated: its tensors end at byte 2,089,344"):
        st.load_model(file)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"general.architecture": "clip"}, "unknown architecture of a GGUF file 'clip'. Known: arcee"),
        ({"general.architecture": None}, "general.architecture is missing"),
        ({"general.architecture": 7}, "general.architecture must be a text, got 7"),
        ({"llama.attention.head_count": 0}, "head_count must be from 1 to the width 256, got 0"),
        ({"llama.attention.head_count": -4}, "must be a whole number from 0, got -4"),
        ({"llama.attention.head_count": [4, 4, 2, 4]}, "differs between layers"),
        ({"llama.embedding_length": 512}, "embedding_length is 512, but token_embd has 256 columns"),
        ({"llama.block_count": 10**9}, "at most 1000"),
        ({"general.alignment": 3}, "must be a power of two, got 3"),
        ({"split.count": 3, "split.no": 1}, "split 1 of 3"),
    ],
)
def test_metadata_that_cannot_be_is_refused(changes, problem, tmp_path):
    metadata, tensors = gguf_files.llama()
    told = {key: one for key, one in {**metadata, **changes}.items() if one is not None}
    with pytest.raises(InputError, match=problem):
        st.load_model(gguf_files.written(tmp_path / "a.gguf", told, tensors))


def test_paths_that_are_no_file_are_refused(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(DataFileError, match="neither a config"):
        st.load_model(tmp_path / "folder.gguf")
    (tmp_path / "broken.gguf").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("broken.gguf", "pipe.gguf", "none.gguf", "a\0b.gguf"):
        with pytest.raises(DataFileError, match="no such file"):
            st.load_model(str(tmp_path / name))
    (tmp_path / "link.gguf").symlink_to(gguf_files.written(tmp_path / "a.gguf", *gguf_files.llama()))
    assert st.load_model(tmp_path / "link.gguf").checkpoint.bytes == st.load_model(tmp_path / "a.gguf").checkpoint.bytes


def test_an_unknown_architecture_lists_the_known_ones():
    assert len(ARCHITECTURES) > 35
    with pytest.raises(UnknownName, match="mxfp4"):
        number_format("q9_k")


def disturbed(content: bytes, length: int, chance: random.Random) -> bytes:
    """Overwrite some bytes among the first `length`."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 2, 8))):
        at, size = chance.randrange(length), chance.choice((1, 4, 8))
        changed[at : at + size] = chance.choice((chance.randbytes(size), b"\xff" * size, bytes(size)))
    return bytes(changed)


@pytest.mark.parametrize("seed", every(3, range(60)))
def test_no_disturbed_file_breaks_the_reader(seed, tmp_path):
    chance, made = random.Random(seed), MADE[seed % 3]
    begin, size = gguf_files.header(*made())
    (tmp_path / "a.gguf").write_bytes(disturbed(begin, len(begin), chance) + bytes(size))
    with suppress(InputError):
        assert st.load_model(tmp_path / "a.gguf").checkpoint.bytes >= 0
