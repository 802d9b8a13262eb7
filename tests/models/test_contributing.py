"""The worked example of CONTRIBUTING.md runs, and counts what is written there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import steptime as st
from steptime.errors import InputError
from steptime.models.family_registry import Family, known_families
from steptime.models.model import (
    active_parameters,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    prefill_flops,
    total_parameters,
)

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the one fenced block of a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    return found


@pytest.fixture
def config(monkeypatch):
    """Return the example's config, its family known for as long as the test runs."""
    names: dict[str, object] = {"__name__": "steptime.models.families.tandem"}
    exec(compile(block("python"), "CONTRIBUTING.md", "exec"), names)  # what the reader is told to write
    (family,) = [v for v in names.values() if isinstance(v, type) and issubclass(v, Family) and v is not Family]
    assert family.__final__
    for kind in family.model_types:
        monkeypatch.setitem(known_families(), kind, family())
    return json.loads(block("json"))


def test_the_example_counts_what_the_page_says(config):
    model = st.load_model(config)
    assert total_parameters(model) == active_parameters(model) == 101_192_704
    assert kv_bytes_per_token(model) == 4_096
    assert growing_kv_bytes_per_token(model) == 2_048
    assert [(layer.name, n) for layer, n in model.layers] == [("global", 2), ("local", 2)]
    # one token: 2 x (4 x 8,912,896 + 32,768,000) in matrices, 4 x 4 x 1,024 in attention of itself
    assert float(prefill_flops(model, 1)) == 2 * (4 * 8_912_896 + 32_768_000) + 4 * 4 * 1_024


def test_the_page_tells_these_numbers():
    for number in ("8,913,920", "101,192,704", "4,096 bytes", "2,048"):
        assert number in TEXT


def test_the_example_names_a_missing_field(config):
    del config["sliding_window"]
    with pytest.raises(InputError, match="'sliding_window' is missing"):
        st.load_model(config)
