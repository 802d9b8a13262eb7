"""Files and configs from strangers: memory that headers may take, places that code may come from, sizes that contradict."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import types

import pytest

import steptime as st
from steptime.errors import ConfigError, DataFileError, InputError
from steptime.models.from_transformers import _built
from steptime.models.model_loading import load_config_fields, load_model
from steptime.models.safetensors_header import LONGEST_HEADER, LONGEST_INDEX, MOST_TENSORS, read_header, read_headers
from tests.conftest import each, every
from tests.models import checkpoints

# The interpreter with steptime takes some 60 MB of it.
MOST_MB = 300
READ = """
import sys
from pathlib import Path
from steptime.errors import InputError
from steptime.models.gguf_header import read_gguf
from steptime.models.safetensors_header import read_headers
path = Path(sys.argv[1])
try:
    read_gguf(path) if path.suffix == ".gguf" else read_headers(path)
    print("read")
except InputError as error:
    print("refused", str(error)[:200])
# ru_maxrss would hold the peak of the process before exec as well.
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


def outcome_and_memory(path):
    """Read a file in another process; return what came of it and its peak memory [MB]."""
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    outcome, memory = done.stdout.splitlines()
    return outcome, int(memory) / 1000


def with_header(path, text, length=None):
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)
    return path


def index_of(names):
    return json.dumps({"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")})


def of_size(start, item, end, size):
    return (start + item * ((size - len(start) - len(end)) // len(item)) + end.lstrip(",")).encode()


@pytest.mark.parametrize("item", every(5, ["{},", "[],", "0,", '"ab",', '{"a":1},']))
def test_header_of_full_length_with_nested_values_is_refused_in_little_memory(tmp_path, item):
    text = of_size('{"a":[', item, '0],"b":0}', LONGEST_HEADER)
    assert len(text) <= LONGEST_HEADER
    outcome, memory = outcome_and_memory(with_header(tmp_path / "model.safetensors", text))
    assert outcome.startswith("refused")
    assert "values, lists and objects" in outcome
    assert memory < MOST_MB, memory


@pytest.mark.thorough
def test_header_of_as_many_values_as_are_read_takes_little_memory(tmp_path):
    pairs = ",".join(f'"{n:06x}":0' for n in range(900_000))
    text = ('{"__metadata__":{' + pairs[: LONGEST_HEADER - 100].rpartition(",")[0] + "}}").encode()
    outcome, memory = outcome_and_memory(with_header(tmp_path / "model.safetensors", text))
    assert outcome == "read"
    assert memory < MOST_MB, memory


def test_header_that_claims_more_than_the_limit_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", LONGEST_HEADER + 1))
        file.truncate(200_000_000)
    with pytest.raises(DataFileError, match="claim a header of 10,000,001 bytes"):
        read_header(path)


@pytest.mark.slow
def test_index_of_the_most_tensors_takes_little_memory_and_one_of_more_is_refused(tmp_path):
    named = [f"model.layers.{n % 61}.mlp.experts.{n // 61}.down_proj.weight_scale_2" for n in range(MOST_TENSORS)]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(index_of(named))
    outcome, memory = outcome_and_memory(tmp_path)
    assert outcome == "read"
    assert memory < MOST_MB, memory
    index.write_text(index_of([*named, *(str(n) for n in range(20_000))]))
    with pytest.raises(DataFileError, match="values, lists and objects"):
        read_headers(tmp_path)


def test_index_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "model.safetensors.index.json").open("wb") as file:
        file.truncate(LONGEST_INDEX + 1)
    with pytest.raises(DataFileError, match="50,000,001 bytes"):
        read_headers(tmp_path)


def gguf(path, *values):
    """A GGUF file with these (type, bytes) as metadata."""
    body = b"".join(
        struct.pack("<Q", 6) + f"k{n:05}".encode() + struct.pack("<I", kind) + raw for n, (kind, raw) in enumerate(values)
    )
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + body)
    return path


@pytest.mark.thorough
def test_gguf_metadata_that_is_kept_is_bounded_in_all(tmp_path):
    text = struct.pack("<Q", 3_000_000) + b"x" * 3_000_000
    outcome, memory = outcome_and_memory(gguf(tmp_path / "texts.gguf", *[(8, text)] * 40))
    assert outcome.startswith("refused")
    assert memory < MOST_MB, memory
    numbers = struct.pack("<IQ", 10, 4096) + struct.pack("<4096Q", *range(1 << 40, (1 << 40) + 4096))
    outcome, memory = outcome_and_memory(gguf(tmp_path / "numbers.gguf", *[(9, numbers)] * 3000))
    assert outcome.startswith("refused")
    assert memory < MOST_MB, memory


class Transformers(types.SimpleNamespace):
    """A stand-in for transformers that notes the places it loads code from."""

    def __init__(self, place_fields=None):
        self.places = []
        self.built = []

        def from_pretrained(place, trust_remote_code):
            assert trust_remote_code
            self.places.append(place)
            return types.SimpleNamespace()

        def for_model(kind, **fields):
            self.built.append(fields)
            return types.SimpleNamespace()

        auto = types.SimpleNamespace(
            _model_mapping=(),
            from_config=lambda config, **_: types.SimpleNamespace(eval=lambda: "model"),
        )
        super().__init__(
            __version__="0",
            CONFIG_MAPPING=("llama",),
            AutoConfig=types.SimpleNamespace(from_pretrained=from_pretrained, for_model=for_model),
            PretrainedConfig=types.SimpleNamespace(get_config_dict=lambda place: (place_fields or {}, {})),
            AutoModelForImageTextToText=auto,
            AutoModelForCausalLM=auto,
        )


def test_trusted_code_comes_from_the_named_place_whatever_the_config_says():
    transformers = Transformers()
    _built(transformers, {"model_type": "own", "_name_or_path": "attacker/repo"}, "/home/me/model", contextlib.nullcontext)
    assert transformers.places == ["/home/me/model"]


@pytest.mark.parametrize("place_fields", [{}, {"auto_map": {"AutoModelForCausalLM": ["x", "attacker/repo--modeling.Evil"]}}])
def test_auto_map_of_another_repository_is_refused(place_fields):
    transformers = Transformers(place_fields)
    own = {} if place_fields else {"text_config": {"auto_map": {"AutoConfig": "attacker/repo--configuration.Evil"}}}
    with pytest.raises(InputError, match="trust_remote_code: auto_map takes code from another repository"):
        _built(transformers, {"model_type": "own", **own}, "owner/model", contextlib.nullcontext)
    assert transformers.places == []


def test_config_of_a_known_kind_brings_no_place_of_code():
    transformers = Transformers()
    fields = {"model_type": "llama", "_name_or_path": "attacker/repo", "auto_map": {"AutoConfig": "m.C"}, "vocab_size": 7}
    _built(transformers, fields, "", contextlib.nullcontext)
    assert transformers.built == [{"vocab_size": 7}]


@each("name", [{"model_type": "own", "_name_or_path": "attacker/repo"}, "llama-3.1-8b", "../x/y", "a/b/c"])
def test_trust_without_a_place_of_code_is_refused(name):
    with pytest.raises(InputError, match="trust_remote_code: needs the place of the code"):
        load_model(name, via="transformers", trust_remote_code=True)


@each("field, value", [("first_k_dense_replace", 100), ("n_group", 7), ("topk_group", 9)])
def test_config_whose_sizes_contradict_each_other_is_refused_at_its_field(field, value):
    with pytest.raises(ConfigError, match=f"'{field}' must"):
        load_model({**load_config_fields("deepseek-v3"), field: value})


def test_file_that_is_no_config_is_called_so_and_not_read_as_toml(tmp_path):
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0:root:/root:/bin/sh\n")
    for read in (load_model, load_config_fields):
        with pytest.raises(DataFileError, match=r"is not a.*config\.json") as caught:
            read(path)
        assert "TOML" not in str(caught.value)


def test_unread_field_of_an_own_config_is_noted_on_the_model(tmp_path):
    fields, _ = checkpoints.bf16()
    (tmp_path / "config.json").write_text(json.dumps({**fields, "num_gadget_heads": 7}))
    model = st.load_model(tmp_path)
    assert any("num_gadget_heads" in note for note in model.notes)
    (tmp_path / "config.json").write_text(json.dumps({**fields, "rms_norm_eps": 1e-6}))
    assert st.load_model(tmp_path / "config.json").notes == ()
