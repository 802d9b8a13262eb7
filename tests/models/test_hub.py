"""Models that are fetched by their Hugging Face id: what is said where they cannot be."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

import steptime as st
from steptime.errors import UnknownName

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
NAMES = ("GatedRepoError", "RepositoryNotFoundError", "LocalEntryNotFoundError", "EntryNotFoundError", "HFValidationError")


class Hub(ModuleType):
    """Stands for huggingface_hub, with its families of errors."""

    def __init__(self, answer):
        super().__init__("huggingface_hub")
        missing, entry = type(NAMES[1], (OSError,), {}), type(NAMES[3], (Exception,), {})
        self.errors = ModuleType("huggingface_hub.errors")
        self.errors.RepositoryNotFoundError, self.errors.EntryNotFoundError = missing, entry
        self.errors.GatedRepoError = type(NAMES[0], (missing,), {})
        self.errors.LocalEntryNotFoundError = type(NAMES[2], (FileNotFoundError, entry), {})
        self.errors.HFValidationError = type(NAMES[4], (ValueError,), {})
        self.answer = answer

    def hf_hub_download(self, name, file):
        assert file == "config.json"
        if isinstance(self.answer, str):
            raise getattr(self.errors, self.answer, TimeoutError)(name)
        return self.answer


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("GatedRepoError", "gated"),
        ("RepositoryNotFoundError", "no public repository of this name"),
        ("LocalEntryNotFoundError", "Hugging Face did not answer"),
        ("EntryNotFoundError", "has no config.json"),
        ("HFValidationError", "not a valid id"),
        ("anything else", "failed with TimeoutError"),
    ],
)
def test_what_hugging_face_does_not_give_is_told_with_its_reason(monkeypatch, error, says):
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(error))
    with pytest.raises(UnknownName, match=rf"unknown model 'nobody/lama-70b'.*{says}.*\.$"):
        st.load_model("nobody/lama-70b")


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnknownName, match=r"pip install '\.\[hub\]'"):
        st.load_model("nobody/lama-70b")


def test_a_config_that_hugging_face_gives_is_read(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path / "config.json"))
    assert "202,048" in repr(st.load_model("nobody/lama-70b"))


def test_names_that_are_no_ids_are_not_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub("LocalEntryNotFoundError"))
    with pytest.raises(UnknownName, match="unknown model 'lama-70b'"):
        st.load_model("lama-70b")
