"""Names and folders that carry code: they are refused at the door, or stay texts in shell, Python, YAML and Markdown."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml

import steptime as st
from steptime.errors import DataFileError, LayoutError
from steptime.launch.launch_commands import ENGINES, launch_commands, launch_files
from steptime.launch.shell_script import Command, comments, escape_markdown, spoken
from steptime.launch.training_commands import STACKS, training_commands, training_lines
from steptime.training.training_job import TrainingJob, TrainingLayout
from steptime.workload.workload import Speculation
from tests.conftest import each, every
from tests.launch.conftest import pool

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 8192,
}  # fmt: skip
HOSTILE = (
    "evil/$(touch PWN)",
    "evil/`touch PWN`",
    "evil/x\nEND\ntouch PWN\ncat <<END",
    'evil/x")\nimport os; os.system("touch PWN")\n("',
    "evil/x\ntouch PWN\n#",
    "evil/x\rtouch PWN",
    "evil/x; touch PWN",
    "evil/'; touch PWN; '",
    'evil/"; touch PWN; "',
    "evil/x\x1b[201~\ntouch PWN\n",
    "evil/x\u2028touch PWN",
)
FOLDERS = (
    'd"); import os; os.system("touch PWN"); ("',
    "d'); import os; os.system('touch PWN'); ('",
    'd""" ; import os; os.system("touch PWN") ; """',
    "d $(touch PWN) `touch PWN`",
    "d\nEND\ntouch PWN\ncat <<END",
    "d\\",
)
JOB, LAYOUT = TrainingJob(seq=1024, batch=16, task="lora"), TrainingLayout(dp=8)
PROGRAMS = ("vllm", "python", "trtllm-serve", "torchrun", "nginx", "vllm-router", "mpirun")


@pytest.fixture
def shell(tmp_path):
    """Return a runner of scripts in an empty folder, where every program that they start prints its words."""
    bin_folder, work = tmp_path / "bin", tmp_path / "work"
    bin_folder.mkdir()
    work.mkdir()
    for name in PROGRAMS:
        (bin_folder / name).write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
        (bin_folder / name).chmod(0o755)

    def ran(text: str, **environment: str) -> tuple[str, Path]:
        environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", **environment}
        done = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=True, cwd=work, env=environment)
        assert not [path for path in work.rglob("*") if "PWN" in path.name]
        return done.stdout, work

    return ran


def hostile_folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


# --- at the door --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HOSTILE, "", "-rf", "../x", "a/../b", "a b", "a" * 201, 7, None])
def test_load_model_hostile_name_raises(tmp_path, name):
    (tmp_path / "m.json").write_text(json.dumps({"name": name, "config": CONFIG}))
    with pytest.raises(DataFileError, match="name: must be 1 to 200 letters"):
        st.load_model(tmp_path / "m.json")


@pytest.mark.parametrize("name", ["org/m-7B_v1.5", "hf:org/m@main+x", "a..b", "a" * 200])
def test_load_model_plain_name_loads(tmp_path, name):
    (tmp_path / "m.json").write_text(json.dumps({"name": name, "config": CONFIG}))
    assert st.load_model(tmp_path / "m.json").name == name


@each("name", HOSTILE)
def test_load_model_hostile_field_does_not_become_its_name(name):
    assert st.load_model(CONFIG | {"_name_or_path": name}).name == "llama"


# --- training -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLDERS)
def test_megatron_bridge_hostile_folder_stays_a_text(tmp_path, shell, name):
    """The lines run in a shell as they are pasted, and the file that they write holds the folder as one literal."""
    folder = hostile_folder(tmp_path, name)
    model, machine = st.load_model(folder), st.load_system("hgx-h100")
    lines = training_lines(model, JOB, LAYOUT, machine, "megatron-bridge")
    _, work = shell("\n".join(lines), CHECKPOINT="x")
    tree = ast.parse((work / "steptime_run.py").read_text())
    (call,) = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "from_hf_pretrained")
    assert ast.literal_eval(call.args[0]) == str(folder.resolve())
    (command,) = training_commands(model, JOB, LAYOUT, machine, "megatron-bridge")
    assert (work / "steptime_run.py").read_text() == command.files["steptime_run.py"]
    kinds = [type(node) for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert set(kinds) == {ast.Expr, ast.Assign, ast.If}
    assert kinds.count(ast.Expr) == 1


@pytest.mark.parametrize("stack", STACKS)
def test_training_lines_hostile_folder_runs_nothing(tmp_path, shell, stack):
    model = st.load_model(hostile_folder(tmp_path, "d\ntouch PWN\n#"))
    lines = training_lines(model, JOB, LAYOUT, st.load_system("hgx-h100"), stack)
    assert all("\n" not in line for line in lines)
    shell("\n".join(lines), CHECKPOINT="x", MAXTEXT_CONFIGS="x")


def test_training_commands_refusal_of_a_hostile_folder_is_one_line(tmp_path):
    model = st.load_model(hostile_folder(tmp_path, "d\ntouch PWN\n\x1b[2J"))
    with pytest.raises(LayoutError) as caught:
        training_commands(model, JOB, LAYOUT, st.load_system("hgx-h100"), "torchtitan")
    assert str(caught.value).isprintable()


# --- serving ------------------------------------------------------------------------------------------------------------

PLACES = (*(f"/models/{name}" for name in FOLDERS), *HOSTILE)
PAIR = (pool("prefill", batch=4, chunk=0, tp=2), pool("decode", batch=20, chunk=0, tp=4))


@pytest.mark.thorough
@each("engine, place, formats", list(product(ENGINES, PLACES, [{}, {"weights": "int4", "experts": "int4"}])))
def test_launch_commands_hostile_place_runs_nothing(build, shell, engine, place, formats):
    """Once as the checkpoint that is served, once in the comment on a checkpoint of other formats."""
    lines = launch_commands(build(*PAIR, checkpoint=place, **formats), engine)
    assert all("\n" not in line for line in lines)
    said, _ = shell("\n".join(lines), CHECKPOINT="my weights", NODE_ADDRESS="a", PREFILL_0_ADDRESS="p", DECODE_0_ADDRESS="d")
    expected = "my weights" if formats or not place.isprintable() else place
    assert said.split("\n").count(expected) == 2


@pytest.mark.parametrize(("place", "engine"), every(5, list(product(PLACES, ENGINES))))
def test_launch_files_hostile_place_runs_nothing(build, shell, tmp_path, engine, place):
    made = build(*PAIR, checkpoint=place, weights="int4", experts="int4", vendor="NVIDIA")
    files = launch_files(made, engine)
    _, work = shell("")
    for name, text in files.items():
        (work / name).write_text(text)
    for name in (name for name in files if name.endswith(".sh") and name != "addresses.sh"):
        shell(f"sh ./{name}", CHECKPOINT="my weights")
    for component in yaml.safe_load(files["dynamo.yaml"])["spec"]["components"]:
        assert set(component) <= {"name", "type", "replicas", "podTemplate", "multinode"}


def test_router_files_take_addresses_from_the_environment(build, shell):
    lines = launch_commands(build(*PAIR), "trtllm")
    _, work = shell("\n".join(lines), PREFILL_0_ADDRESS="10.0.0.1", DECODE_0_ADDRESS="$(touch PWN)")
    told = yaml.safe_load((work / "router.yaml").read_text())
    assert told["context_servers"]["urls"] == ["10.0.0.1:8101"]
    assert told["generation_servers"]["urls"] == ["$(touch PWN):8100"]


@each("name", HOSTILE)
def test_readme_hostile_name_is_a_title(build, name):
    made = replace(build(pool(tp=8)), model=name, system="box\n<script>")
    for vendor in ("NVIDIA", "Google"):
        made = replace(made, served=replace(made.served, vendor=vendor))
        title = launch_files(made, "trtllm")["README.md"].split("\n")[0]
        assert title.startswith(f"# {escape_markdown(name)} on ")
        assert "\\<script\\>" in title


# --- manifests ----------------------------------------------------------------------------------------------------------


def expanded(argument: str, environment: dict[str, str]) -> str:
    """Return an argument as Kubernetes passes it on: `$$` is `$`, `$(NAME)` a variable where there is one."""
    found, rest = "", argument
    while rest:
        if rest.startswith("$$"):
            found, rest = found + "$", rest[2:]
        elif rest.startswith("$(") and (name := rest[2:].partition(")")[0]) in environment:
            found, rest = found + environment[name], rest[len(name) + 3 :]
        else:
            found, rest = found + rest[0], rest[1:]
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "place", ["/models/a b  c", "/models/$HOME", "/m/$(HF_TOKEN)", "/m/$$(HF_TOKEN)$", "/m/a'b", "/m/x: #y"]
)
def test_manifest_path_with_blanks_and_dollars_survives(build, engine, place):
    text = launch_files(build(pool(tp=8), checkpoint=place), engine)["dynamo.yaml"]
    (container,) = yaml.safe_load(text)["spec"]["components"][1]["podTemplate"]["spec"]["containers"]
    flag = "--model-path" if engine == "sglang" else "--model"
    argument = container["args"][container["args"].index(flag) + 1]
    assert expanded(argument, {"HF_TOKEN": "secret"}) == place


def test_manifest_without_pyyaml_is_left_out_with_a_hint(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    files = launch_files(build(pool(tp=8)), "vllm")
    assert "dynamo.yaml" not in files
    assert "pip install 'steptime[launch]'" in files["README.md"]


# --- scripts ------------------------------------------------------------------------------------------------------------


def test_heredoc_text_with_every_end_is_written_whole(shell):
    text = "END\n$(touch PWN) `touch PWN` \\\n" + spoken(Command(words=("true",), files={"f": "a\n"}))[-2] + "\n\n"
    _, work = shell("\n".join(spoken(Command(words=("true",), files={"a file": text}))))
    assert (work / "a file").read_text() == text


@each("note", HOSTILE)
def test_comments_hostile_note_is_one_printable_line(note):
    (line,) = comments((note,))
    assert line.startswith("# ")
    assert line.isprintable()


# --- drafters -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@each("engine, place, method", list(product(ENGINES, PLACES, ["eagle3", "draft_model"])))
def test_launch_commands_hostile_drafter_runs_nothing(build, shell, engine, place, method):
    """It arrives as one text, or the variable takes its place."""
    drafting = Speculation(drafts=3, acceptance=2.2, source="given", method=method, draft_model=place)
    lines = launch_commands(replace(build(*PAIR), speculation=drafting), engine)
    assert all("\n" not in line for line in lines)
    names = {"CHECKPOINT": "w", "NODE_ADDRESS": "a", "PREFILL_0_ADDRESS": "p", "DECODE_0_ADDRESS": "d"}
    said, work = shell("\n".join(lines), **names, DRAFT_MODEL="my head")
    expected = place if place.isprintable() else "my head"
    words = said.split("\n")
    if engine == "vllm":
        found = [json.loads(word)["model"] for word in words if word.startswith('{"method"')]
    elif engine == "sglang":
        found = [words[n + 1] for n, word in enumerate(words) if word == "--speculative-draft-model-path"]
    else:
        texts = [(work / f"{role}.yaml").read_text() for role in ("prefill", "decode")]
        found = [yaml.safe_load(text)["speculative_config"]["speculative_model_dir"] for text in texts]
    assert found == [expected] * 2


@pytest.mark.parametrize(("place", "engine"), every(7, list(product(PLACES, ENGINES))))
def test_launch_files_hostile_drafter_runs_nothing(build, shell, engine, place):
    drafting = Speculation(drafts=3, acceptance=2.2, source="given", method="eagle3", draft_model=place)
    files = launch_files(replace(build(*PAIR, vendor="NVIDIA"), speculation=drafting), engine)
    _, work = shell("")
    for name, text in files.items():
        (work / name).write_text(text)
    for name in (name for name in files if name.endswith(".sh") and name != "addresses.sh"):
        shell(f"sh ./{name}", DRAFT_MODEL="my head")
    assert yaml.safe_load(files["dynamo.yaml"])
