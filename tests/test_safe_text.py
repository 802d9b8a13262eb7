"""Texts from outside move no cursor and become no formula."""

from __future__ import annotations

import csv
import io
import json

import steptime as st
from steptime.errors import CONTROL, escape_controls, replace_controls, safe_cell
from tests.conftest import each


@each("code", [0x00, 0x07, 0x1B, 0x7F, 0x9B, 0x0D, 0x202E, 0x2066])
def test_replace_controls_control_character_is_replaced(code):
    assert replace_controls(f"a{chr(code)}b") == "a\ufffdb"


def test_replace_controls_printable_text_stays():
    text = "naïve 模型 µ → █\t\n"
    assert replace_controls(text) == text


def test_escape_controls_in_json_keeps_the_value():
    value = {"name": "evil\x1b\x9b2J\u202e"}
    text = escape_controls(json.dumps(value, ensure_ascii=False))
    assert CONTROL.search(text) is None
    assert json.loads(text) == value


@each("text", ["=cmd|' /C calc'!A0", "+1+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", "-"])
def test_safe_cell_formula_gets_an_apostrophe(text):
    assert safe_cell(text).startswith("'")


@each("value", ["-3.5", "+1e9", "gpt-2", "a=b", "", -3.5, 7, None])
def test_safe_cell_number_or_plain_text_stays(value):
    assert safe_cell(value) == value


def test_to_csv_model_named_as_a_formula_is_text(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    (tmp_path / "=1+1").mkdir()
    (tmp_path / "=1+1" / "config.json").write_text(json.dumps(config))
    swept = st.sweep("step", {"model": [str(tmp_path / "=1+1"), "llama-3.1-8b"], "batch": [1]}, system="hgx-h100")
    rows = list(csv.DictReader(io.StringIO(swept.to_csv())))
    assert not any(cell.startswith("=") for row in rows for cell in row.values())
