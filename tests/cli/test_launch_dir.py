"""`steptime plan --launch-dir`: scripts in a folder, and what is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest

from steptime.cli.output import WRITTEN, write_folder
from steptime.errors import DataFileError
from tests.cli.test_commands import run

pytestmark = pytest.mark.usefixtures("closed_forms")

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
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"vllm", "sglang", "trtllm", WRITTEN}


# --- what an earlier plan left --------------------------------------------------------------------------------------------

LARGER = {f"serve-{n}.sh": f"#!/bin/sh\nexec server {n}\n" for n in range(4)} | {"README.md": "four"}
SMALLER = {"serve-0.sh": "#!/bin/sh\nexec server 0 --wide\n", "README.md": "one"}


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_scripts_of_an_earlier_larger_plan_are_removed_with_force(tmp_path, capsys):
    write_folder(str(tmp_path), LARGER, force=False)
    write_folder(str(tmp_path), SMALLER, force=True)
    assert names(tmp_path) == ["README.md", "serve-0.sh", WRITTEN]
    assert "2 files, and removed 3 of an earlier plan, in place of an older file" in capsys.readouterr().err
    assert subprocess.run(["sha256sum", "--check", "--quiet", WRITTEN], cwd=tmp_path, check=True).returncode == 0


def test_scripts_of_an_earlier_larger_plan_are_named_without_force(tmp_path):
    write_folder(str(tmp_path), LARGER | {"serve-0.sh": SMALLER["serve-0.sh"], "README.md": "one"}, force=False)
    with pytest.raises(DataFileError, match=r"serve-1\.sh: is of an earlier plan, and no part of this one; give --force"):
        write_folder(str(tmp_path), SMALLER, force=False)
    assert len(names(tmp_path)) == 6


def test_files_of_others_and_files_that_were_changed_stay(tmp_path, capsys):
    (tmp_path / "serve-9.sh").write_text("mine")
    write_folder(str(tmp_path), LARGER, force=False)
    (tmp_path / "serve-2.sh").write_text("edited")
    write_folder(str(tmp_path), SMALLER, force=True)
    assert names(tmp_path) == ["README.md", "serve-0.sh", "serve-2.sh", "serve-9.sh", WRITTEN]
    assert f"{tmp_path / 'serve-2.sh'} of an earlier plan was changed by hand, and stays" in capsys.readouterr().err


def test_folders_of_engines_that_are_left_out_go_when_they_are_empty(tmp_path):
    write_folder(str(tmp_path), {"vllm/a.sh": "a", "sglang/a.sh": "a", "trtllm/a.sh": "a"}, force=False)
    (tmp_path / "sglang" / "notes").write_text("mine")
    write_folder(str(tmp_path), {"a.sh": "a"}, force=True)
    assert names(tmp_path) == ["a.sh", "sglang/notes", WRITTEN]
    assert not (tmp_path / "vllm").exists()


def test_no_list_of_files_leads_out_of_the_folder(tmp_path):
    """Paths upwards, from the root, and through a link are not the program's own, whatever the list says."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    outside.mkdir()
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (outside / "a.sh").write_text("a")
    told = hashlib.sha256(b"a").hexdigest()
    names_told = ("../outside/a.sh", str(outside / "a.sh"), "link/a.sh")
    (inside / WRITTEN).write_text("".join(f"{told}  {name}\n" for name in names_told) + "no sum\n")
    write_folder(str(inside), {"b.sh": "b"}, force=True)
    assert (outside / "a.sh").read_text() == "a"


def test_write_folder_link_in_place_of_a_file_replaces_the_link(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("theirs")
    (inside / "a.sh").symlink_to(outside)
    with pytest.raises(DataFileError, match="give --force"):
        write_folder(str(inside), {"a.sh": "a"}, force=False)
    write_folder(str(inside), {"a.sh": "a"}, force=True)
    assert (outside.read_text(), (inside / "a.sh").read_text()) == ("theirs", "a")
    assert not (inside / "a.sh").is_symlink()


def test_write_folder_engine_folder_is_a_link_raises(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "vllm").symlink_to(outside)
    with pytest.raises(DataFileError, match="symbolic link"):
        write_folder(str(inside), {"vllm/a.sh": "a"}, force=True)
    assert list(outside.iterdir()) == []


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


@pytest.mark.thorough
def test_formats_asked_for_are_printed():
    shown = run("plan llama-3.3-70b hgx-h100 --weights fp8 --kv fp8 --launch all").stdout
    assert "--quantization fp8_per_tensor" in shown
    assert "--quantization fp8 " in shown.replace("\\\n    ", "")
    assert shown.replace("\\\n    ", "").count("--kv-cache-dtype fp8") >= 2
    assert '"dtype": "fp8"' in shown


@pytest.mark.slow
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
    assert 'vllm serve "$CHECKPOINT"' in run("plan other.json hgx-h100 --chips 1 --launch vllm", folder=tmp_path).stdout
