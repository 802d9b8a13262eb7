"""`steptime models` and others on files of weights: exact bytes, differences by name, errors in one line."""

from __future__ import annotations

import json
import os

import pytest

from tests.cli.test_commands import run
from tests.models import checkpoints, gguf_files


def words(shown):
    return " ".join(shown.stdout.split())


def test_a_card_tells_the_bytes_on_disk_and_that_the_weights_equal_them(tmp_path):
    folder = checkpoints.written(tmp_path / "small", *checkpoints.gptq())
    said = words(run(f"models {folder}"))
    total = sum(len(raw) - 8 - int.from_bytes(raw[:8], "little") for raw in map(_raw, folder.glob("*.safetensors")))
    assert f"Tensors on disk {total:,} B" in said
    assert "in 2 safetensors files: 93 tensors" in said
    assert "Weights here less those on disk equal to the byte" in said
    assert "Not in the model's weights" not in said


def _raw(path):
    return path.read_bytes()


def test_a_card_names_what_the_model_does_not_count(tmp_path):
    folder = checkpoints.written(tmp_path / "small", *checkpoints.fp8_blocks())
    said = words(run(f"models {folder} --full", columns=140))
    assert "less those on disk -327,712 B (" in said
    assert "model.layers.N.shared_head.head.weight draft layers 1 +163,840" in said
    assert "model.layers.N.mlp.gate.e_score_correction_bias router 1 +16" in said


@pytest.mark.thorough
def test_json_has_the_same_figures(tmp_path):
    file = gguf_files.written(tmp_path / "small.gguf", *gguf_files.llama())
    told = json.loads(run(f"models {file} --json").stdout)
    assert told["checkpoint_bytes"] == told["checkpoint"]["bytes"] == 2_078_336
    assert told["weight_bytes"] == 2_078_336 - 128
    assert told["checkpoint"]["differences"] == [
        {"name": "rope_freqs.weight", "group": "other", "count": 1, "bytes": 128},
    ]
    assert {one["name"] for one in told["checkpoint"]["dtypes"]} == {"Q4_K", "Q6_K", "F32"}
    assert json.loads(run("models llama-3.1-8b --json").stdout)["checkpoint"] is None


def test_a_gguf_file_is_asked_like_any_model(tmp_path):
    file = gguf_files.written(tmp_path / "small.gguf", *gguf_files.qwen3moe())
    shown = run(f"step {file} hgx-h100 --batch 4 --context 512")
    assert shown.returncode == 0
    assert "of small takes" in shown.stdout


def test_a_partial_download_is_noted(tmp_path):
    folder = checkpoints.written(tmp_path / "small", *checkpoints.bf16(), shards=3)
    (folder / "model-00001-of-00003.safetensors").unlink()
    said = words(run(f"models {folder}", columns=200))
    assert "the checkpoint is incomplete: 1 file of 3 is missing (model-00001-of-00003.safetensors)" in said
    assert "less those on disk" not in said


@pytest.mark.parametrize("name", ["empty.gguf", "none.gguf", "short.safetensors", "folder.gguf"])
def test_what_is_no_checkpoint_leaves_with_2_and_one_line(name, tmp_path):
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "short.safetensors").write_bytes(b"123")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.bf16()[0]))
    shown = run(f"models {tmp_path / name}")
    assert shown.returncode == 2
    assert shown.stderr.startswith("steptime: ")
    assert shown.stderr.count("\n") == 1
    assert os.fspath(tmp_path / name) in shown.stderr
