"""`steptime plan --launch-dir`: scripts in a folder, and what is refused."""

from __future__ import annotations

import json

import pytest

from tests.terminal.test_commands import run

PLAN = "plan qwen3-14b hgx-h100 --chips 2 --mode aggregated --input 1000 --output 100"


def test_scripts_are_written_once_and_again_if_they_are_the_same(tmp_path):
    first = run(f"{PLAN} --launch vllm --launch-dir scripts", folder=tmp_path)
    assert first.returncode == 0
    assert "Wrote scripts: " in first.stderr
    assert "vllm serve Qwen/Qwen3-14B" in first.stdout
    folder = tmp_path / "scripts"
    assert (folder / "serve-0.sh").stat().st_mode & 0o111
    assert not (folder / "README.md").stat().st_mode & 0o111
    assert run(f"{PLAN} --launch vllm --launch-dir scripts", folder=tmp_path).returncode == 0


def test_other_scripts_are_kept_without_force(tmp_path):
    (tmp_path / "serve-0.sh").write_text("mine")
    refused = run(f"{PLAN} --launch vllm --launch-dir .", folder=tmp_path)
    assert refused.returncode == 2
    assert "serve-0.sh: is there already, with another text; give --force to write over it" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["serve-0.sh"]
    forced = run(f"{PLAN} --launch vllm --launch-dir . --force", folder=tmp_path)
    assert "in place of an older file" in forced.stderr
    assert "exec vllm serve" in (tmp_path / "serve-0.sh").read_text()


def test_several_engines_have_a_folder_each(tmp_path):
    assert run(f"{PLAN} --launch all --launch-dir all", folder=tmp_path).returncode == 0
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"vllm", "sglang", "trtllm"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--launch vllm --launch-dir there/too", "the folder that it would lie in does not exist"),
        ("--launch vllm --launch-dir config", "is a file; --launch-dir needs a folder"),
        ("--launch vllm --launch-dir=", "--launch-dir needs the name of a folder"),
        ("--launch-dir scripts", "--launch-dir needs --launch ENGINE"),
        ("--launch vllm --force", "--force needs --launch-dir FOLDER"),
    ],
)
def test_bad_folders_are_refused(tmp_path, words, said):
    (tmp_path / "config").write_text("")
    refused = run(f"{PLAN} {words}", folder=tmp_path)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config"]


def test_nothing_is_written_for_a_plan_that_meets_no_limit(tmp_path):
    assert run(f"{PLAN} --speed 1000000 --launch vllm --launch-dir scripts", folder=tmp_path).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_formats_asked_for_are_printed():
    shown = run("plan llama-3.3-70b hgx-h100 --weights fp8 --kv fp8 --launch all").stdout
    assert "--quantization fp8_per_tensor" in shown
    assert "--quantization fp8 " in shown.replace("\\\n    ", "")
    assert shown.replace("\\\n    ", "").count("--kv-cache-dtype fp8") >= 2
    assert "dtype: fp8" in shown


def test_a_local_config_is_served_from_its_folder(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 8192, "auto_map": {"AutoModel": "a.B"},
    }  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    (tmp_path / "other.json").write_text(json.dumps(config))
    shown = run("plan mine hgx-h100 --chips 1 --launch vllm", folder=tmp_path).stdout
    assert f"vllm serve {(tmp_path / 'mine').resolve()}" in shown
    assert "--trust-remote-code" in shown
    assert "vllm serve $CHECKPOINT" in run("plan other.json hgx-h100 --chips 1 --launch vllm", folder=tmp_path).stdout
