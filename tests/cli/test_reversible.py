"""The command `steptime reversible` as a user types it."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from tests.cli.test_commands import run
from tests.conftest import each


def test_sboxes_show_their_tables(closed_forms):
    found = run("reversible sboxes")
    assert found.returncode == 0
    assert "ifferential uniformity" in found.stdout
    assert " 1   .  .  .  4  .  .  .  4  .  4  .  .  .  4  .  ." in found.stdout
    assert json.loads(run("reversible sboxes aes --json").stdout)["nonlinearity"] == 112
    assert "own of 2 bits" in run("reversible sboxes 0,1,0x3,2").stdout


@pytest.mark.parametrize("width", ["80", "120"])
def test_caches_show_what_they_save(width):
    found = run("reversible cache llama-3.3-70b hgx-h200 --context 8k", columns=width)
    assert found.returncode == 0
    assert max(map(len, found.stdout.splitlines())) <= int(width)
    for words in ("FLOP/B", "never", "hdd", "tenth"):
        assert words in found.stdout


def test_a_table_is_written(tmp_path):
    path = tmp_path / "cache.csv"
    assert run(f"reversible cache deepseek-v3 gb200-nvl72 --context 8192,64k --csv {path}").returncode == 0
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["tier"] for row in rows] == ["hbm", "host", "ssd", "hdd"] * 2
    assert float(rows[0]["held_bytes"]) == 8192 * 35_136


@pytest.mark.slow
def test_mixing_shows_curves_and_times():
    found = run("reversible mixing --samples 200")
    assert found.returncode == 0
    for words in ("AES without ShiftRows", "Speck32/64", "never"):
        assert words in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("width", ["80", "120"])
def test_stacks_show_a_table_and_a_picture(width):
    pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'steptime[torch]'")
    found = run("reversible --depth 4 --width 32 --rows 4 --repeats 1", columns=width)
    assert found.returncode == 0
    assert max(map(len, found.stdout.splitlines())) <= int(width)
    for words in ("Kept for the backward pass", "reversible", "+33.3 %", "by depth", "bfloat16"):
        assert words in found.stdout
    data = json.loads(run("reversible stacks --depth 2 --width 32 --rows 4 --json").stdout)
    assert data["schema"] == "steptime.reversible/2"
    assert data["streams_bytes"] == 4 * 32 * 4


@each(
    "words, says",
    [
        (("stack",), "unknown topic 'stack'; did you mean stacks?"),
        (("cache", "llama-3.3-70b"), "takes a model, or several with commas between, and a system"),
        (("cache", "lama-3.3-70b", "hgx-h200"), "unknown model 'lama-3.3-70b'; did you mean"),
        (("cache", "llama-3.3-70b", "hgx-h200", "--context", "lots"), "--context"),
        (("mixing", "--depth", "8"), "--depth needs stacks, not mixing"),
        (("sboxes", "--seed", "8"), "--seed needs stacks or mixing, not sboxes"),
        (("stacks", "--context", "8k"), "--context needs cache, not stacks"),
        (("sboxes", "des"), "unknown S-box 'des'"),
        (("sboxes", "1,2,3"), "an S-box must have 2, 4, 8"),
        (("sboxes", "1,nan"), "whole numbers such as 12 or 0xc with commas between, not 'nan'"),
        (("mixing", "--samples", "nan"), "--samples"),
        (("mixing", "--samples", "3"), "samples must be at least 100"),
    ],
)
def test_bad_words_are_named(words, says):
    found = run("reversible " + " ".join(words))
    assert found.returncode == 2
    assert says in " ".join(found.stderr.split())


def test_without_pytorch_the_extra_is_named(monkeypatch):
    for name in ("reversible_blocks", "reversible_stacks"):
        monkeypatch.delitem(sys.modules, f"steptime.reversible.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = run("reversible --depth 4")
    assert found.returncode == 2
    assert "pip install '.[torch]'" in found.stderr
