"""What is understood of a config: fields that were not read are named, and how sure that is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import steptime as st
from steptime.catalog.data_files import files
from steptime.errors import ConfigError, UnknownName
from steptime.models.config_coverage import EXACT, GUESS, LIKELY, understand
from steptime.models.model import total_parameters
from steptime.models.model_loading import load_config_fields
from steptime.models.safetensors_header import read_headers
from tests.cli.test_commands import run
from tests.conftest import each
from tests.models import checkpoints

ROOT = Path(__file__).parents[2]
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "bos_token_id": 1,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "head_dim": 128, "max_position_embeddings": 8192,
}  # fmt: skip


def test_what_is_compared_and_read_whole_is_exact():
    found = understand(LLAMA)
    assert (found.sure, found.read_as, found.doubtful) == (EXACT, "llama", ())
    assert [one.layer_indices for one in found.kinds] == [tuple(range(32))]
    assert {one.name for one in found.ignored} == {"rms_norm_eps", "rope_theta", "bos_token_id"}


@each(
    "field, value, near",
    [
        ("num_memory_heads", 4, ""),
        ("num_key_value_head", 2, ""),
        ("n_shared_experts", 2, ""),
        ("attention_biass", True, ""),
    ],
)
def test_a_field_that_may_be_architecture_is_named(field, value, near):
    found = understand({**LLAMA, field: value})
    assert found.sure == LIKELY
    assert [(one.name, one.value, one.near) for one in found.doubtful] == [(field, value, near)]


@pytest.mark.thorough
def test_a_kind_that_is_not_known_is_a_guess_by_its_fields():
    found = understand({**LLAMA, "model_type": "foo4"}, name="foo")
    assert (found.sure, found.read_as) == (GUESS, "llama")
    assert found.alternatives
    assert total_parameters(found.model) == total_parameters(st.load_model(LLAMA))
    latent = {**load_config_fields("deepseek-v3"), "model_type": "foo4", "architectures": ["Foo4"]}
    found = understand(latent)
    assert (found.read_as, found.doubtful) == ("deepseek_v3", ())
    assert total_parameters(found.model) == total_parameters(st.load_model("deepseek-v3"))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gemma-2-2b", "num_key_value_heads", None),
        ("qwen3-8b", "num_recurrent_steps", 8),
        ("qwen3-8b", "cla_share_factor", 2),
        ("deepseek-v3", "n_shared_experts", None),
        ("gpt-oss-120b", "hc_mult", 4),
        ("qwen3-8b", "attention_bias", True),
    ],
)
def test_what_was_not_compared_is_not_exact(name, field, value):
    fields = {key: it for key, it in load_config_fields(name).items() if key != field}
    assert understand(load_config_fields(name)).sure == EXACT
    assert understand(fields if value is None else {**fields, field: value}).sure == LIKELY


def test_a_known_text_part_of_an_unknown_whole_wins():
    found = understand({"model_type": "foovl", "text_config": LLAMA, "vision_config": {"depth": 3}})
    assert (found.sure, found.read_as) == (LIKELY, "llama")
    assert total_parameters(found.model) == total_parameters(st.load_model(LLAMA))


def test_what_nothing_reads_says_why():
    with pytest.raises(UnknownName, match="foo4"):
        understand({"model_type": "foo4", "colour": "blue"})
    with pytest.raises(ConfigError, match="hidden_size"):
        understand({key: value for key, value in LLAMA.items() if key != "hidden_size"})
    with pytest.raises(ConfigError, match="encoder"):
        understand({**LLAMA, "model_type": "bert"})


@pytest.mark.slow
def test_catalogue_is_understood():
    """Every model of the catalogue; those that equal transformers are exact, and their layers add up."""
    verdicts = json.loads((ROOT / "docs" / "oracle.json").read_text())["models"]
    for name in files("models"):
        found = understand(load_config_fields(name), name=name)
        layers = sum(kind.count * sum(op.total_weights for op in kind.layer.ops) for kind in found.kinds)
        assert layers + sum(op.total_weights for op in found.model.stem) == total_parameters(found.model)
        if verdicts.get(name, {}).get("verdict") == "equal":
            assert found.sure == EXACT, (name, [one.name for one in found.doubtful])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_file_of_harmless_fields_is_up_to_date():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("config_fields", ROOT / "docs" / "config_fields.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.text(module.facts())


def test_as_a_user_types_it(tmp_path):
    place = tmp_path / "config.json"
    place.write_text(json.dumps({**LLAMA, "num_memory_slots": 64}))
    shown = run(f"models --new {place}")
    assert shown.returncode == 0, shown.stderr
    assert "read as llama: likely; 1 field" in " ".join(shown.stdout.split())
    assert "num_memory_slots = 64" in shown.stdout
    told = json.loads(run(f"models --new {place} --json").stdout)
    assert (told["schema"], told["sure"], told["layers"][0]["layers"]) == ("steptime.config/2", "likely", "0-31")


@each(
    "words, match",
    [
        ("models --new", "needs a config.json"),
        ("models --new nowhere.json", "no such file"),
        ("models --new llama-3.1-8b --context 5", "--context"),
    ],
)
def test_wrong_input_is_one_line(words, match):
    shown = run(words)
    assert shown.returncode == 2
    assert match in shown.stderr


def test_of_several_those_that_cannot_be_read_come_last(tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"model_type": "foo4", "colour": 3}')
    shown = run(f"models --new {bad} llama-3.1-8b")
    assert shown.returncode == 2
    assert "read as llama: exact" in shown.stdout
    assert "bad.json" in shown.stderr


def test_files_beside_a_config_make_a_guess_likely_and_slips_plain(tmp_path):
    """Tensors beside it that are those of the model back a guess; others say that it was not read right."""
    fields, tensors = checkpoints.bf16()
    checkpoints.written(tmp_path, {**fields, "model_type": "foo4"}, tensors)
    found = understand(json.loads((tmp_path / "config.json").read_text()), headers=read_headers(tmp_path))
    assert (found.sure, found.read_as) == (LIKELY, "llama")
    assert "have exactly its tensors" in found.why
    other = understand({**fields, "intermediate_size": 640}, headers=read_headers(tmp_path))
    assert other.sure == LIKELY
    assert "have other tensors" in other.why
    shown = run(f"models --new {tmp_path}")
    assert "have exactly its tensors" in " ".join(shown.stdout.split())
